"""How much host memory may be taken: the machine's, the container's, and the room under /dev/shm.

Checked before anything is allocated, because running out later means a kill without a message.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from warmtier.core.errors import RequirementError
from warmtier.core.units import format_size
from warmtier.engines.vllm.slab_files import SHM_DIRECTORY

_V2_ROOT: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")
_UNLIMITED: Final = 1 << 60  # version 1 writes a huge number for "no limit"


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """Bytes that can still be taken, and what sets that bound."""

    available_bytes: int
    bound: str


def memory_room(cgroup_root: Path = _V2_ROOT, own_groups: Path = _OWN_GROUPS) -> MemoryRoom:
    """Return what is left of the machine's memory or of the tightest cgroup limit above this process."""
    rooms = [MemoryRoom(psutil.virtual_memory().available, "free memory of the machine")]
    rooms += [room for group in _groups(cgroup_root, own_groups) if (room := _cgroup_room(group)) is not None]
    return min(rooms, key=lambda room: room.available_bytes)


def check_budget(needed_bytes: int, headroom_bytes: int, room: MemoryRoom | None = None) -> None:
    """Raise RequirementError unless ``needed_bytes`` can be taken and ``headroom_bytes`` stay free."""
    room = room or memory_room()
    if needed_bytes + headroom_bytes <= room.available_bytes:
        return
    most = max(0, room.available_bytes - headroom_bytes)
    raise RequirementError(
        f"a host tier of {format_size(needed_bytes)} does not fit",
        why=f"{room.bound}: {format_size(room.available_bytes)} left, of which {format_size(headroom_bytes)} "
        "must stay free (engine.memory_headroom)",
        fix=f"take at most --host-tier {format_size(most // (1 << 20) * (1 << 20))}, or raise the limit",
    )


def check_shared_memory(needed_bytes: int, directory: Path = SHM_DIRECTORY) -> None:
    """Raise RequirementError unless ``directory`` has room for ``needed_bytes``."""
    facts = os.statvfs(directory)
    free = facts.f_bavail * facts.f_frsize
    if needed_bytes <= free:
        return
    raise RequirementError(
        f"{directory} has room for {format_size(free)}, the host tier needs {format_size(needed_bytes)}",
        why="containers get 64 MB of shared memory unless told otherwise",
        fix="docker: --shm-size or --ipc=host; Kubernetes: an emptyDir with medium: Memory mounted at /dev/shm",
    )


def _groups(root: Path, own_groups: Path) -> list[Path]:
    """Return the directories of this process's memory cgroup and of all its parents, for version 2 and 1."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        found += [top, *(top / part for part in _ancestry(path))]
    return found


def _ancestry(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _cgroup_room(group: Path) -> MemoryRoom | None:
    for limit_name, usage_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _number(group / limit_name), _number(group / usage_name)
        if limit is not None and usage is not None and limit < _UNLIMITED:
            reclaimable = _stat(group / "memory.stat", cache_name)
            return MemoryRoom(max(0, limit - usage + reclaimable), f"container memory limit {format_size(limit)}")
    return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def _stat(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
