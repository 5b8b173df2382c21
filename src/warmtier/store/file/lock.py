"""One writer per directory: an flock on a file in it, released by the kernel however the holder dies."""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from typing import Final

from warmtier.core.errors import StoreError, StoreLockedError
from warmtier.store.file.io import Directory

LOCK_NAME: Final = "lock"


class DirectoryLock:
    """Holds a directory from construction until ``release``. A forked child never keeps it."""

    def __init__(self, directory: Directory) -> None:
        """Take the lock at once. Raises StoreLockedError when another live process holds it: try again later."""
        try:
            self._fd = directory.open_plain(LOCK_NAME, os.O_CREAT | os.O_RDWR)
        except OSError as error:
            raise StoreError(f"cannot write to the file tier's directory {directory.path}", why=str(error)) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise _refusal(directory, holder, error) from error
        self._note_holder()
        _held.add(self)

    def _note_holder(self) -> None:
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode("ascii"), 0)
        except OSError:
            pass  # only a help for people; a full disk must not close the tier

    def release(self) -> None:
        """Give the directory back. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _refusal(directory: Directory, holder: str, error: OSError) -> StoreError:
    if error.errno in (errno.EAGAIN, errno.EACCES):
        return StoreLockedError(
            f"the file tier's directory {directory.path} is in use",
            why=f"process {holder} holds its lock",
            fix="give each engine its own directory, or wait until the other has ended",
        )
    return StoreError(f"cannot lock the file tier's directory {directory.path}", why=str(error))


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
