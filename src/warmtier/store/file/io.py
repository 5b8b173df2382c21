"""The filesystem as the store sees it: one directory by descriptor, whole reads and writes, aligned memory.

Names inside the directory are our own constants; links are refused. All calls block; none takes a lock.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from warmtier.core.errors import StoreError
from warmtier.store.file.format import PAGE, padded

O_DIRECT: Final = getattr(os, "O_DIRECT", 0)
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PROBE: Final = "direct-io-probe"
_BASE: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_BLOCK: Final = 512  # the unit of st_blocks, whatever the filesystem


def aligned(size_bytes: int) -> memoryview:
    """Return fresh zeroed memory that starts on a page, ``size_bytes`` rounded up to pages."""
    return memoryview(mmap.mmap(-1, max(PAGE, padded(size_bytes))))


def is_aligned(view: memoryview) -> bool:
    """Return whether the memory of ``view`` starts on a page."""
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address % PAGE == 0


class Directory:
    """One engine's directory: made 0700, its files 0600. Tests replace methods to make the medium fail."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        """Open ``path``, making it if asked. Raises StoreError for a link, another's directory or a broken medium."""
        self.path = path
        self.direct = False
        try:
            if create:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _BASE)
        except OSError as error:
            raise StoreError(f"cannot open the file tier's directory {path}", why=str(error)) from error
        if create:
            self._own()

    def _own(self) -> None:
        status = os.fstat(self._fd)
        if status.st_uid != os.geteuid():
            self.close()
            raise StoreError(f"the file tier's directory {self.path} belongs to user {status.st_uid}")
        if stat.S_IMODE(status.st_mode) & 0o077:
            try:
                os.fchmod(self._fd, 0o700)
            except OSError as error:
                self.close()
                raise StoreError(
                    f"cannot make the file tier's directory {self.path} private", why=str(error)
                ) from error

    def probe_direct(self) -> bool:
        """Find out by one written page whether O_DIRECT works here, and use it from now on if so."""
        self.direct = False
        if O_DIRECT:
            with contextlib.suppress(OSError):
                self._probe()
                self.direct = True
        with contextlib.suppress(OSError):
            self.unlink(_PROBE)
        return self.direct

    def _probe(self) -> None:
        flags = os.O_CREAT | os.O_RDWR | os.O_TRUNC | O_DIRECT | _BASE
        fd = os.open(_PROBE, flags, 0o600, dir_fd=self._fd)
        try:
            os.pwrite(fd, aligned(PAGE), 0)
        finally:
            os.close(fd)

    def open(self, name: str, *, write: bool = False) -> int:
        """Return a descriptor of a data file, with O_DIRECT where it works."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | _BASE
        return os.open(name, flags | (O_DIRECT if self.direct else 0), dir_fd=self._fd)

    def create(self, name: str, size_bytes: int) -> int:
        """Make a data file with all its blocks allocated; return its descriptor. Leaves nothing behind on failure."""
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | _BASE | (O_DIRECT if self.direct else 0)
        fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
        except OSError:
            os.close(fd)
            self.unlink(name)
            raise
        return fd

    def open_plain(self, name: str, flags: int) -> int:
        """Return a descriptor without O_DIRECT, for the lock and the snapshot."""
        return os.open(name, flags | _BASE, 0o600, dir_fd=self._fd)

    def unlink(self, name: str) -> None:
        """Remove a file."""
        os.unlink(name, dir_fd=self._fd)

    def rename(self, old: str, new: str) -> None:
        """Put ``old`` in the place of ``new``."""
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def names(self) -> list[str]:
        """Return all names in the directory, sorted."""
        return sorted(os.listdir(self._fd))  # noqa: PTH208 - a descriptor has no Path

    def size_on_disk(self, name: str) -> tuple[int, int]:
        """Return (file size, bytes of its blocks). A link counts as itself."""
        status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        return status.st_size, status.st_blocks * _BLOCK

    def own_bytes(self) -> int:
        """Return the bytes that the directory itself occupies."""
        return os.fstat(self._fd).st_blocks * _BLOCK

    def free_bytes(self) -> int:
        """Return what the filesystem still gives to an ordinary user."""
        status = os.fstatvfs(self._fd)
        return status.f_bavail * status.f_frsize

    def readv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill ``buffers`` from ``offset``; return the bytes read, fewer only at the end of the file."""
        return _whole(os.preadv, fd, buffers, offset)

    def writev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
        """Write all of ``buffers`` at ``offset``. Raises OSError, also when the medium takes only a part."""
        size_bytes = sum(len(buffer) for buffer in buffers)
        written = _whole(os.pwritev, fd, buffers, offset)
        if written != size_bytes:
            raise OSError(errno.EIO, f"wrote {written} of {size_bytes} bytes")

    def fsync(self, fd: int) -> None:
        """Wait until the file's data is on the medium."""
        os.fdatasync(fd)

    def fsync_names(self) -> None:
        """Wait until the names in the directory are on the medium."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Release the directory. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _whole(
    call: Callable[[int, Sequence[memoryview], int], int], fd: int, buffers: Sequence[memoryview], at: int
) -> int:
    """Repeat a call that did a part, from the last whole page: O_DIRECT takes nothing else."""
    size_bytes = sum(len(buffer) for buffer in buffers)
    done = call(fd, buffers, at)
    while 0 < done < size_bytes:
        start = done - done % PAGE
        reached = start + call(fd, _after(buffers, start), at + start)
        if reached <= done:
            break
        done = reached
    return done


def _after(buffers: Sequence[memoryview], done: int) -> list[memoryview]:
    rest: list[memoryview] = []
    for buffer in buffers:
        if done < len(buffer):
            rest.append(buffer[done:])
        done = max(0, done - len(buffer))
    return rest
