"""Real English text that every CPython brings: the language reference's topics. Nothing is downloaded."""

from __future__ import annotations

import re
from typing import Final

from warmtier.core.errors import RequirementError

_SLACK: Final = 2000  # no paragraph is longer


def load_text() -> str:
    """Return about 450,000 characters of English prose about Python, in a fixed order for one Python version."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise RequirementError(
            "this Python comes without its documentation texts",
            why="the package pydoc_data is missing",
            fix="install your system's full Python (Debian: libpython3-stdlib)",
        ) from error
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return re.sub(r"[ \t]+", " ", text)


def passages(count: int, characters: int) -> list[str]:
    """Return ``count`` different passages of about ``characters`` each, beginning at paragraphs, without overlap."""
    text = load_text()
    if count * (characters + _SLACK) > len(text):
        have = len(text) // (characters + _SLACK)
        raise RequirementError(f"{count} passages of {characters} characters are wanted, the text has {have}")
    stride = len(text) // count
    return [_from_paragraph(text, index * stride)[:characters] for index in range(count)]


def _from_paragraph(text: str, start: int) -> str:
    boundary = text.find("\n\n", start)
    return text[start if boundary < 0 or start == 0 else boundary + 2 :]
