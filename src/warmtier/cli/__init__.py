"""The command line. ``main`` is the console script; nothing heavy is imported before a command asks for it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``warmtier`` with the process's arguments and exit with its code."""
    from warmtier.cli.app import run

    sys.exit(run(sys.argv[1:]))
