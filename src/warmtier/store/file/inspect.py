"""Looking into a directory from outside, without its engine: list, sum up, verify, collect.

Only ``collect`` takes the lock and changes anything. The others may run beside a live engine; then a segment that is
reused meanwhile is left out of the verdict.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from warmtier.core.errors import StoreError
from warmtier.store.file.format import FORMAT_VERSION, PAGE, SegmentHeader
from warmtier.store.file.io import Directory
from warmtier.store.file.lock import LOCK_NAME, DirectoryLock
from warmtier.store.file.recovery import read_header, scan
from warmtier.store.file.segment import segment_number


@dataclass(slots=True)
class SegmentFacts:
    """One segment file. ``state``: sealed, open (being written, or its writer was killed), unknown, unreadable.

    ``records`` and below are None where they were not looked at or cannot be.
    """

    engine: str
    name: str
    state: str
    size_on_disk_bytes: int
    sequence: int | None = None
    format_version: int | None = None
    namespace: str | None = None
    records: int | None = None
    payload_bytes: int | None = None
    corrupt: int | None = None
    missing: int | None = None


def engine_directories(root: Path) -> list[Path]:
    """Return the store directories at ``root``: itself, or its ``dp0``, ``dp1`` ... Raises StoreError if none."""
    if not root.is_dir():
        raise StoreError(f"{root} is not a directory", fix="name the directory given to --file-tier, or a dp0 in it")
    found = [path for path in sorted(root.glob("dp*")) if path.is_dir() and not path.is_symlink()]
    if (root / LOCK_NAME).is_file():
        found.insert(0, root)
    if not found:
        raise StoreError(f"no file tier in {root}", why="there is neither a dp0 nor a lock in it")
    return found


def list_segments(path: Path) -> list[SegmentFacts]:
    """Return what the headers of the segments in one engine's directory say, oldest first."""
    directory = Directory(path, create=False)
    try:
        numbered = [name for name in directory.names() if segment_number(name) is not None]
        facts = [fact for fact in (_facts(directory, name) for name in numbered) if fact is not None]
    finally:
        directory.close()
    return sorted(facts, key=lambda fact: fact.sequence or 0)


def _facts(directory: Directory, name: str) -> SegmentFacts | None:
    try:
        blocks_bytes = directory.size_on_disk(name)[1]
    except FileNotFoundError:
        return None  # evicted while we looked
    fact = SegmentFacts(directory.path.name, name, "unreadable", blocks_bytes)
    with contextlib.suppress(OSError):
        header = read_header(directory, name)
        if header is not None:
            _describe(fact, header)
    return fact


def _describe(fact: SegmentFacts, header: SegmentHeader) -> None:
    fact.sequence = header.sequence
    fact.format_version = header.version
    if header.version != FORMAT_VERSION:
        fact.state = "unknown"
        return
    fact.state = "sealed" if header.sealed else "open"
    fact.namespace = header.namespace.hex()
    fact.records = header.records if header.sealed else None


def verify_segments(path: Path, progress: Callable[[int, int], None] | None = None) -> list[SegmentFacts]:
    """Read every record of every known segment and check it; return the facts with ``corrupt`` and ``missing``."""
    facts = list_segments(path)
    directory = Directory(path, create=False)
    try:
        for done, fact in enumerate(facts, 1):
            if fact.state in ("sealed", "open"):
                _verify(directory, fact)
            if progress is not None:
                progress(done, len(facts))
    finally:
        directory.close()
    return facts


def _verify(directory: Directory, fact: SegmentFacts) -> None:
    try:
        header = read_header(directory, fact.name)
        if header is None or header.sequence != fact.sequence:
            return  # reused since it was listed
        intact, corrupt, payload_bytes = _read_records(directory, fact, header)
        after = read_header(directory, fact.name)
    except FileNotFoundError:
        return
    except OSError:
        fact.state = "unreadable"
        return
    if after is None or after.sequence != header.sequence:
        return
    fact.payload_bytes = payload_bytes
    if header.sealed:
        fact.corrupt = corrupt
        fact.missing = max(0, header.records - intact - corrupt)
    else:  # what is torn here was never acknowledged, or is being written now
        fact.corrupt = fact.missing = 0
    fact.records = intact


def _read_records(directory: Directory, fact: SegmentFacts, header: SegmentHeader) -> tuple[int, int, int]:
    size_bytes = directory.size_on_disk(fact.name)[0]
    end = header.used_bytes if header.sealed else size_bytes
    intact = corrupt = payload_bytes = 0
    for found in scan(directory, fact.name, header, PAGE, end, verify=True):
        intact += bool(found.intact)
        corrupt += not found.intact
        payload_bytes += found.header.length if found.intact else 0
    return intact, corrupt, payload_bytes


@dataclass(slots=True)
class Collected:
    """What ``collect`` removed, or would remove."""

    removed: list[SegmentFacts]
    kept: list[SegmentFacts]
    kept_namespace: str | None


def collect(path: Path, *, keep: str | None = None, to_bytes: int | None = None, dry_run: bool = False) -> Collected:
    """Remove segments of every namespace but ``keep`` (default: the one written last), then the oldest down to a size.

    Raises StoreLockedError while an engine holds the directory, unless ``dry_run``.
    """
    directory = Directory(path, create=False)
    lock = None
    try:
        lock = None if dry_run else DirectoryLock(directory)
        facts = list_segments(path)
        known = [fact.namespace for fact in facts if fact.namespace is not None]
        kept_namespace = keep if keep is not None else (known[-1] if known else None)
        removed = _choose(facts, kept_namespace, to_bytes)
        if not dry_run:
            for fact in removed:
                directory.unlink(fact.name)
        return Collected(removed, [fact for fact in facts if fact not in removed], kept_namespace)
    except OSError as error:
        raise StoreError(f"cannot collect {path}", why=str(error)) from error
    finally:
        if lock is not None:
            lock.release()
        directory.close()


def _choose(facts: list[SegmentFacts], namespace: str | None, to_bytes: int | None) -> list[SegmentFacts]:
    removed = [fact for fact in facts if fact.namespace != namespace]
    kept = [fact for fact in facts if fact.namespace == namespace]
    if to_bytes is not None:
        while kept and sum(fact.size_on_disk_bytes for fact in kept) > to_bytes:
            removed.append(kept.pop(0))
    return removed
