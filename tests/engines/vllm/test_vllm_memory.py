from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from warmtier.core.errors import RequirementError
from warmtier.engines.vllm.memory import MemoryRoom, check_budget, check_shared_memory, memory_room

GIB = 1 << 30


def _version_two(root: Path, path: str, limit: str, usage: int, inactive_file: int = 0) -> None:
    group = root / path
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{usage}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {inactive_file}\nactive_file 7\n")


def _own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cgroup"
    path.write_text(text)
    return path


def test_the_machine_is_the_bound_without_a_container(tmp_path: Path) -> None:
    room = memory_room(tmp_path, tmp_path / "absent")
    assert room.bound == "free memory of the machine"
    assert 0 < room.available_bytes <= psutil.virtual_memory().total


def test_the_tightest_group_above_the_process_is_the_bound(tmp_path: Path) -> None:
    root = tmp_path / "fs"
    _version_two(root, ".", "max", 0)
    _version_two(root, "a", str(900), 500)
    _version_two(root, "a/b", "max", 10)
    _version_two(root, "a/b/c", str(5 * GIB), 100)
    room = memory_room(root, _own(tmp_path, "0::/a/b/c\n"))
    assert room == MemoryRoom(400, "container memory limit 900B")


def test_file_cache_that_the_kernel_would_give_back_counts_as_free(tmp_path: Path) -> None:
    root = tmp_path / "fs"
    _version_two(root, ".", "1000", 900, inactive_file=300)
    assert memory_room(root, _own(tmp_path, "0::/\n")).available_bytes == 400


def test_version_one_limits_are_read_and_its_unlimited_is_no_limit(tmp_path: Path) -> None:
    group = tmp_path / "fs" / "memory" / "docker"
    group.mkdir(parents=True)
    (group / "memory.usage_in_bytes").write_text("200")
    (group / "memory.stat").write_text("total_inactive_file 50\n")
    own = _own(tmp_path, "12:cpu,cpuacct:/docker\n5:memory:/docker\n")
    (group / "memory.limit_in_bytes").write_text("9223372036854771712")
    assert memory_room(tmp_path / "fs", own).bound == "free memory of the machine"
    (group / "memory.limit_in_bytes").write_text("1000")
    assert memory_room(tmp_path / "fs", own).available_bytes == 850


def test_the_budget_keeps_headroom_and_says_what_would_fit() -> None:
    room = MemoryRoom(10 * GIB, "container memory limit 12GiB")
    check_budget(9 * GIB, GIB, room)
    with pytest.raises(RequirementError) as raised:
        check_budget(9 * GIB + 1, GIB, room)
    text = str(raised.value)
    assert "container memory limit 12GiB" in text
    assert "--host-tier 9GiB" in text
    assert raised.value.exit_code == 3


def test_too_little_shared_memory_names_the_flag_that_fixes_it(tmp_path: Path) -> None:
    check_shared_memory(4096, tmp_path)
    with pytest.raises(RequirementError, match="room for") as raised:
        check_shared_memory(1 << 60, tmp_path)
    assert "--shm-size" in str(raised.value)
    assert "emptyDir" in str(raised.value)
