from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from warmtier.core.errors import InternalError, RequirementError
from warmtier.engines.vllm.slab import CORRUPT, EMPTY, STORED, Slab, SlabLayout
from warmtier.engines.vllm.slab_files import remove_stale, slab_files

LAYOUT = SlabLayout(slots=5, ranks=2, blocks_per_chunk=3, block_bytes=4096)

HOLDER = """
import sys, time
from pathlib import Path
from warmtier.engines.vllm.slab import Slab, SlabLayout
slab = Slab.open(sys.argv[1], SlabLayout(4, 1, 1, 4096), {}, directory=Path(sys.argv[2]))
print("up", flush=True)
time.sleep(600)
"""


def _holder(engine: str, directory: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, engine, str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("blocks", [1, 4])
def test_the_layout_fits_and_one_slot_more_would_not(ranks: int, blocks: int) -> None:
    capacity = 10_000_000
    layout = SlabLayout.fit(capacity, ranks, blocks, 98_304)
    assert layout.total_bytes <= capacity
    assert SlabLayout(layout.slots + 1, ranks, blocks, 98_304).total_bytes > capacity
    assert layout.row_bytes % 4096 == 0
    assert layout.rows_offset % 4096 == 0


def test_a_tier_too_small_for_one_chunk_is_refused_with_both_sizes() -> None:
    with pytest.raises(RequirementError, match="single chunk") as raised:
        SlabLayout.fit(1_000_000, 1, 4, 1_000_000)
    assert "3.9MiB" in str(raised.value)


def test_places_do_not_overlap_and_lie_inside_their_row(tmp_path: Path) -> None:
    slab = Slab.open("places", LAYOUT, {}, directory=tmp_path)
    for slot in range(LAYOUT.slots):
        for rank in range(LAYOUT.ranks):
            slab.status[slot, rank] = 10 * slot + rank
            for place in range(LAYOUT.blocks_per_chunk):
                slab.blocks[slot, rank, place] = 100 + 10 * slot + 3 * rank + place
                slab.digests[slot, rank, place] = (slot << 40) | (rank << 8) | place
    for slot in range(LAYOUT.slots):
        for rank in range(LAYOUT.ranks):
            assert slab.status[slot, rank] == 10 * slot + rank
            for place in range(LAYOUT.blocks_per_chunk):
                assert (slab.blocks[slot, rank, place] == 100 + 10 * slot + 3 * rank + place).all()
                assert slab.digests[slot, rank, place] == (slot << 40) | (rank << 8) | place


def test_the_bytes_of_a_chunk_carry_its_digests_to_another_slot(tmp_path: Path) -> None:
    slab = Slab.open("move", LAYOUT, {}, directory=tmp_path)
    slab.blocks[1] = 7
    slab.digests[1] = 0xDEADBEEF
    slab.chunk(3)[:] = slab.chunk(1)
    assert (slab.blocks[3] == 7).all()
    assert (slab.digests[3] == 0xDEADBEEF).all()
    assert (slab.blocks[2] == 0).all()
    assert (slab.blocks[4] == 0).all()


def test_worker_and_manager_share_memory_and_facts(tmp_path: Path) -> None:
    worker = Slab.open("shared", LAYOUT, {"model": "m"}, directory=tmp_path)
    manager, facts = Slab.attach("shared", directory=tmp_path)
    worker.blocks[2, 1, 0] = 42
    assert (manager.blocks[2, 1, 0] == 42).all()
    assert facts["model"] == "m"
    assert manager.layout == LAYOUT


def test_the_name_can_go_while_all_mappings_stay(tmp_path: Path) -> None:
    worker = Slab.open("gone", LAYOUT, {}, directory=tmp_path)
    manager, _ = Slab.attach("gone", directory=tmp_path)
    manager.remove_name()
    assert list(tmp_path.iterdir()) == []
    worker.chunk(0)[0] = 9
    assert manager.chunk(0)[0] == 9


def test_a_second_worker_waits_for_the_first_and_joins(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def before(_: int) -> None:
        entered.set()
        leave.wait(10)

    slabs: list[Slab] = []
    first = threading.Thread(
        target=lambda: slabs.append(Slab.open("join", LAYOUT, {}, before=before, directory=tmp_path))
    )
    first.start()
    assert entered.wait(10)
    second = threading.Thread(target=lambda: slabs.append(Slab.open("join", LAYOUT, {}, directory=tmp_path)))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    leave.set()
    first.join(10)
    second.join(10)
    slabs[0].blocks[4, 0, 2] = 5
    assert (slabs[1].blocks[4, 0, 2] == 5).all()


def test_a_worker_that_needs_another_layout_is_refused(tmp_path: Path) -> None:
    Slab.open("other", LAYOUT, {}, directory=tmp_path)
    with pytest.raises(RequirementError, match="another layout"):
        Slab.open("other", SlabLayout(4, 2, 3, 4096), {}, directory=tmp_path)


def test_a_creator_that_fails_leaves_nothing_behind_and_frees_the_others(tmp_path: Path) -> None:
    def before(_: int) -> None:
        raise RequirementError("no room")

    with pytest.raises(RequirementError, match="no room"):
        Slab.open("failed", LAYOUT, {}, before=before, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_attaching_before_any_worker_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="no worker"):
        Slab.attach("nobody", directory=tmp_path)


def test_failed_asks_every_rank(tmp_path: Path) -> None:
    slab = Slab.open("status", LAYOUT, {}, directory=tmp_path)
    slab.mark([0, 1, 2], EMPTY)
    slab.status[0] = STORED
    slab.status[1, 0] = STORED
    slab.status[2] = [STORED, CORRUPT]
    assert slab.failed([0, 1, 2]).tolist() == [False, True, True]


def test_only_our_own_slabs_of_dead_engines_are_removed(tmp_path: Path) -> None:
    live, dead = _holder("live", tmp_path), _holder("dead", tmp_path)
    foreign = tmp_path / "vllm_offload_dead.mmap"
    foreign.write_bytes(b"not ours")
    try:
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert slab_files("dead", tmp_path).slab.exists()
        removed = remove_stale(tmp_path)
        assert set(removed) == {slab_files("dead", tmp_path).slab, slab_files("dead", tmp_path).lock}
        assert slab_files("live", tmp_path).slab.exists()
        assert foreign.read_bytes() == b"not ours"
        assert remove_stale(tmp_path) == []
    finally:
        live.kill()
        live.wait()
        for process in (live, dead):
            assert process.stdout is not None
            process.stdout.close()


def test_a_new_engine_of_the_same_name_takes_over_from_a_dead_one(tmp_path: Path) -> None:
    dead = _holder("again", tmp_path)
    dead.kill()
    dead.wait()
    assert dead.stdout is not None
    dead.stdout.close()
    remove_stale(tmp_path)
    slab = Slab.open("again", LAYOUT, {}, directory=tmp_path)
    assert slab.layout == LAYOUT


def test_engine_names_become_safe_file_names(tmp_path: Path) -> None:
    assert slab_files("../x/y z_dp0", tmp_path).slab == tmp_path / "warmtier_..-x-y-z-dp0.slab"


def test_files_are_private(tmp_path: Path) -> None:
    Slab.open("private", LAYOUT, {}, directory=tmp_path)
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


def test_every_page_is_there_before_the_slab_is_ready(tmp_path: Path) -> None:
    layout = SlabLayout(64, 1, 1, 4096 * 4)
    Slab.open("pages", layout, {}, directory=tmp_path)
    assert slab_files("pages", tmp_path).slab.stat().st_blocks * 512 >= layout.total_bytes


def test_chunks_are_views(tmp_path: Path) -> None:
    slab = Slab.open("views", LAYOUT, {}, directory=tmp_path)
    assert np.shares_memory(slab.blocks, slab.chunks)
    assert np.shares_memory(slab.digests, slab.chunks)
