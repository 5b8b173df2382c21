"""Names and owners of the slabs under /dev/shm: who is alive, what is left over from a killed engine.

Each engine has two files: ``warmtier_ENGINE.slab`` (the bytes) and ``warmtier_ENGINE.lock`` (empty). Every process that
maps the slab holds the lock file with ``flock(LOCK_SH)`` from before the slab exists until it dies, however it dies.
So a lock file that can be had with ``LOCK_EX`` belongs to nobody, and only then is its slab removed. Files of other
programs, vLLM's own regions included, are never touched: their owners cannot be seen from here (other containers may
share the directory).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmtier.core.errors import RequirementError

SHM_DIRECTORY: Final = Path("/dev/shm")  # noqa: S108 - shared memory between processes is its purpose
_PREFIX: Final = "warmtier_"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9.-]+")
_LOCK_ATTEMPTS: Final = 100


@dataclass(frozen=True, slots=True)
class SlabFiles:
    """Paths of one engine's slab and of its lock."""

    slab: Path
    lock: Path


def slab_files(engine_id: str, directory: Path = SHM_DIRECTORY) -> SlabFiles:
    """Return the paths of ``engine_id``'s files. Characters that do not belong in a file name become ``-``."""
    name = _PREFIX + _UNSAFE.sub("-", engine_id)[:200]
    return SlabFiles(directory / f"{name}.slab", directory / f"{name}.lock")


def hold(files: SlabFiles) -> int:
    """Mark this process as a user of the slab and return the descriptor to keep open for as long as it is one.

    Blocks only while another start examines the same leftover (milliseconds).
    """
    for _ in range(_LOCK_ATTEMPTS):
        descriptor = os.open(files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _still_named(descriptor, files.lock):
            return descriptor
        os.close(descriptor)  # a cleaner removed the name between our open and our lock
    raise RequirementError(f"cannot hold {files.lock}", why="it is removed again and again by another process")


def remove_stale(directory: Path = SHM_DIRECTORY) -> list[Path]:
    """Remove the slabs of engines that no longer run; return what was removed. Another user's files are left alone."""
    removed: list[Path] = []
    for lock in sorted(directory.glob(f"{_PREFIX}*.lock")):
        with contextlib.suppress(OSError):
            removed += _remove_if_free(lock)
    return removed


def remove(files: SlabFiles) -> None:
    """Remove both names. Mappings and held descriptors stay valid; the memory goes with the last of them."""
    files.slab.unlink(missing_ok=True)
    files.lock.unlink(missing_ok=True)


def _remove_if_free(lock: Path) -> list[Path]:
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _still_named(descriptor, lock):
            return []
        slab = lock.with_suffix(".slab")
        existed = slab.exists()
        remove(SlabFiles(slab, lock))
        return [slab, lock] if existed else [lock]
    except BlockingIOError:
        return []  # alive
    finally:
        os.close(descriptor)


def _still_named(descriptor: int, path: Path) -> bool:
    try:
        named = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)
