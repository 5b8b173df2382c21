"""Whole pages around a payload: the caller's own memory wherever it is aligned, a bounce buffer where it is not."""

from __future__ import annotations

from typing import NamedTuple

from warmtier.store.file.format import PAGE, padded
from warmtier.store.file.io import aligned, is_aligned


class ReadFrame(NamedTuple):
    """Buffers to read into, and (to, from) copies to make afterwards."""

    buffers: list[memoryview]
    copies: list[tuple[memoryview, memoryview]]

    def finish(self) -> None:
        """Copy what could not be read in place."""
        for into, source in self.copies:
            into[:] = source


def frame_for_write(data: memoryview, *, direct: bool) -> list[memoryview]:
    """Return buffers that hold ``data`` padded with zeros to whole pages."""
    length = len(data)
    if direct and not is_aligned(data):
        bounce = aligned(length)
        bounce[:length] = data
        return [bounce[: padded(length)]] if length else []
    body = length - length % PAGE
    if body == length:
        return [data] if length else []
    tail = aligned(PAGE)
    tail[: length - body] = data[body:]
    return [data[:body], tail] if body else [tail]


def frame_for_read(into: memoryview, *, direct: bool) -> ReadFrame:
    """Return buffers of whole pages that end up in ``into``."""
    length = len(into)
    if direct and not is_aligned(into):
        bounce = aligned(length)
        return ReadFrame([bounce[: padded(length)]] if length else [], [(into, bounce[:length])])
    body = length - length % PAGE
    if body == length:
        return ReadFrame([into] if length else [], [])
    tail = aligned(PAGE)
    buffers = [into[:body], tail] if body else [tail]
    return ReadFrame(buffers, [(into[body:], tail[: length - body])])
