"""A file store whose medium fails on demand, for the tests of this directory."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from warmtier.core.types import Namespace
from warmtier.store.file import FileStore
from warmtier.store.file.io import Directory

MINE = Namespace(b"mine".ljust(16, b"."))
SEGMENT = 128 << 10
CAPACITY = 1 << 20


class Medium(Directory):
    """A directory whose calls fail on demand."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fail: dict[str, int] = {}
        self.delay_s = 0.0
        self.short = False

    def _maybe(self, name: str) -> None:
        time.sleep(self.delay_s)
        if name in self.fail:
            raise OSError(self.fail[name], os.strerror(self.fail[name]))

    def create(self, name: str, size_bytes: int) -> int:
        self._maybe("create")
        return super().create(name, size_bytes)

    def open(self, name: str, *, write: bool = False) -> int:
        self._maybe("open_write" if write else "open_read")
        return super().open(name, write=write)

    def readv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._maybe("readv")
        if self.short:
            return super().readv(fd, [buffers[0]], offset)
        return super().readv(fd, buffers, offset)

    def writev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
        self._maybe("writev")
        super().writev(fd, buffers, offset)

    def unlink(self, name: str) -> None:
        if name.endswith(".kv"):
            self._maybe("unlink")
        super().unlink(name)


class Store(FileStore):
    """A file store over a ``Medium``."""

    medium: Medium

    def _open_directory(self) -> Directory:
        self.medium = Medium(self._path)
        return self.medium


def make(directory: Path, capacity_bytes: int = CAPACITY, namespace: Namespace = MINE) -> Store:
    return Store(directory, namespace, capacity_bytes=capacity_bytes, segment_bytes=SEGMENT)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def flip_bit(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))
