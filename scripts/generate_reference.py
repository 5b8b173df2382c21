"""Write the reference pages that are generated from the code."""

from __future__ import annotations

from pathlib import Path

from warmtier.config import reference

DOCS = Path(__file__).resolve().parent.parent / "docs" / "reference"


def main() -> None:
    """Entry point."""
    reference.write(DOCS / "config.md")
    print(f"wrote {DOCS / 'config.md'}")


if __name__ == "__main__":
    main()
