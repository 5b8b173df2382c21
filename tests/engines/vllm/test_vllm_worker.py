from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from vllm.v1.kv_offload.base import GPULoadStoreSpec

from warmtier.core.errors import StoreError
from warmtier.engines.vllm import copier as copier_module
from warmtier.engines.vllm.copier import NO_DIGEST, BlockCopier, stack_pages
from warmtier.engines.vllm.digests import DigestLog
from warmtier.engines.vllm.pool import CopyJob, CopyPool
from warmtier.engines.vllm.slab import CORRUPT, EMPTY, FAILED, STORED, Bytes, Slab, SlabLayout
from warmtier.engines.vllm.specs import HostSlots
from warmtier.engines.vllm.worker import HostCopyWorker, block_moves

BLOCKS, PAGE = 24, 512
SEED = 20261129


class Device:
    """Pages of several layers in one allocation, as vLLM makes them on the CPU; ``holes`` breaks the even distance."""

    def __init__(self, layers: int = 3, holes: bool = False) -> None:
        gap = 64 if holes else 0
        self.memory = np.zeros(layers * BLOCKS * PAGE + gap * layers * layers, np.uint8)
        starts = [layer * BLOCKS * PAGE + gap * layer * layer for layer in range(layers)]
        self.tensors: list[Bytes] = [
            self.memory[start : start + BLOCKS * PAGE].reshape(BLOCKS, PAGE) for start in starts
        ]

    def fill(self, rng: np.random.Generator) -> None:
        self.memory[:] = rng.integers(0, 256, self.memory.size, np.uint8)

    def block(self, block: int) -> bytes:
        return b"".join(tensor[block].tobytes() for tensor in self.tensors)


class Bench:
    """A device, a slab and a worker."""

    def __init__(
        self,
        directory: Path,
        *,
        blocks_per_chunk: int = 1,
        threads: int = 1,
        check_every: int = 1,
        holes: bool = False,
        slots: int = 12,
        groups: Sequence[Sequence[int]] = ((0, 1, 2),),
        log: DigestLog | None = None,
    ) -> None:
        self.device = Device(holes=holes)
        layout = SlabLayout(slots, 1, blocks_per_chunk, 3 * PAGE)
        self.slab = Slab.open("bench", layout, {}, directory=directory)
        stacks = [stack_pages(self.device.tensors, list(group)) for group in groups]
        self.stack_counts = [len(stack) for stack in stacks]
        self.copier = BlockCopier(stacks, self.slab, 0, check_every)
        self.worker = HostCopyWorker(self.copier, self.slab, 0, threads=threads, digest_log=log)
        self.jobs = 0

    def store(self, blocks: Sequence[int], slots: Sequence[int], first: int = 0) -> None:
        self.jobs += 1
        assert self.worker.submit_store(
            self.jobs, GPULoadStoreSpec(list(blocks), [len(blocks)], [first]), HostSlots(slots)
        )
        self.worker.wait({self.jobs})

    def load(self, slots: Sequence[int], blocks: Sequence[int], first: int = 0) -> None:
        self.jobs += 1
        assert self.worker.submit_load(
            self.jobs, HostSlots(slots), GPULoadStoreSpec(list(blocks), [len(blocks)], [first])
        )
        self.worker.wait({self.jobs})


@pytest.mark.parametrize("blocks_per_chunk", [1, 4])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("holes", [False, True])
def test_what_is_loaded_is_what_was_stored(tmp_path: Path, blocks_per_chunk: int, threads: int, holes: bool) -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    bench = Bench(tmp_path, blocks_per_chunk=blocks_per_chunk, threads=threads, holes=holes, slots=6)
    assert bench.stack_counts == [2 if holes else 1]
    for _ in range(20):
        bench.device.fill(np.random.default_rng(rng.randrange(1 << 30)))
        chunks = rng.randint(1, 3)
        stored = rng.sample(range(BLOCKS), chunks * blocks_per_chunk)
        slots = rng.sample(range(6), chunks)
        before = [bench.device.block(block) for block in stored]
        bench.store(stored, slots)
        bench.device.memory[:] = 0
        skip = rng.randrange(blocks_per_chunk)
        into = rng.sample(range(BLOCKS), len(stored) - skip)
        bench.load(slots, into, first=5 * blocks_per_chunk + skip)
        assert [bench.device.block(block) for block in into] == before[skip:]
        untouched = set(range(BLOCKS)) - set(into)
        assert all(bench.device.block(block) == bytes(3 * PAGE) for block in untouched)
        results = bench.worker.get_finished()
        assert [result.success for result in results] == [True, True]
        assert [result.transfer_size for result in results] == [len(stored) * 3 * PAGE, len(into) * 3 * PAGE]
        assert all(result.transfer_time > 0 for result in results)


def test_a_digest_is_the_same_however_a_block_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores digest piece by piece, loads at once: layouts of one and of several pieces must agree."""
    digests = []
    for piece_bytes in (1, 2 * PAGE, 1 << 20):
        monkeypatch.setattr(copier_module, "_PIECE_BYTES", piece_bytes)
        directory = tmp_path / str(piece_bytes)
        directory.mkdir()
        bench = Bench(directory)
        bench.device.fill(np.random.default_rng(9))
        bench.store([5], [3])
        digests.append(int(bench.slab.digests[3, 0, 0]))
        bench.load([3], [6])
        assert bench.device.block(6) == bench.device.block(5)
    assert len(set(digests)) == 1
    assert digests[0] == bench.copier.device_digest(0, 5)


def test_groups_that_share_tensors_keep_their_own_pages(tmp_path: Path) -> None:
    bench = Bench(tmp_path, groups=((0, 2), (1,)))
    bench.device.fill(np.random.default_rng(1))
    before = [tensor.copy() for tensor in bench.device.tensors]
    device = GPULoadStoreSpec([3, 4, 9], [2, 1], [0, 0])
    bench.worker.submit_store(1, device, HostSlots([5, 6, 7]))
    bench.worker.wait({1})
    bench.device.memory[:] = 0
    bench.worker.submit_load(2, HostSlots([5, 6, 7]), GPULoadStoreSpec([13, 14, 19], [2, 1], [0, 0]))
    bench.worker.wait({2})
    first, second, third = bench.device.tensors
    for old, new in ((3, 13), (4, 14)):
        assert (first[new] == before[0][old]).all()
        assert (third[new] == before[2][old]).all()
        assert not second[new].any()
    assert (second[19] == before[1][9]).all()
    assert not first[19].any()


def test_moves_follow_groups_and_partial_first_chunks() -> None:
    device = GPULoadStoreSpec([10, 11, 12, 13, 20, 21], [4, 2], [6, 3])
    moves = block_moves(device, np.array([7, 8, 9, 5]), 4)
    assert moves == [
        (0, 10, 7, 2), (0, 11, 7, 3), (0, 12, 8, 0), (0, 13, 8, 1),
        (1, 20, 9, 3), (1, 21, 5, 0),
    ]  # fmt: skip


def test_a_group_without_blocks_takes_no_slot() -> None:
    device = GPULoadStoreSpec([4, 5], [0, 2], [3, 0])
    assert block_moves(device, np.array([1, 2]), 1) == [(1, 4, 1, 0), (1, 5, 2, 0)]


def test_a_changed_byte_in_host_memory_is_found_and_never_copied(tmp_path: Path) -> None:
    bench = Bench(tmp_path, blocks_per_chunk=2)
    bench.device.fill(np.random.default_rng(2))
    bench.store([0, 1, 2, 3], [4, 5])
    bench.slab.blocks[5, 0, 1, 700] ^= 1
    bench.device.memory[:] = 0
    bench.worker.contain_failures()
    bench.load([4, 5], [8, 9, 10, 11])
    assert bench.device.block(8) != bytes(3 * PAGE)
    assert bench.device.block(11) == bytes(3 * PAGE)
    assert [result.success for result in bench.worker.get_finished()] == [True, True]
    assert bench.worker.take_failed_loads() == {2}
    assert bench.worker.take_failed_loads() == set()
    assert bench.slab.status[[4, 5], 0].tolist() == [STORED, CORRUPT]


def test_without_containment_a_failed_load_stops_the_engine(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.store([0], [0])
    bench.slab.blocks[0] ^= 1
    bench.load([0], [1])
    with pytest.raises(StoreError, match="did not arrive intact"):
        bench.worker.get_finished()


def test_a_store_that_fails_is_marked_and_the_next_one_into_the_slot_clears_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, threads=2)
    bench.slab.mark(list(range(12)), EMPTY)
    store = bench.copier.store

    def failing(group: int, block: int, slot: int, place: int) -> None:
        if slot == 1:
            raise MemoryError("injected")
        store(group, block, slot, place)

    with monkeypatch.context() as patch:
        patch.setattr(bench.copier, "store", failing)
        bench.store([0, 1, 2], [0, 1, 2])
    assert bench.slab.status[:4, 0].tolist() == [STORED, FAILED, STORED, EMPTY]
    bench.store([1], [1])
    assert bench.slab.status[1, 0] == STORED
    assert all(result.success for result in bench.worker.get_finished())


def test_checks_can_be_off_or_sampled(tmp_path: Path) -> None:
    for check_every, checked in ((0, []), (4, [0, 4]), (1, [0, 1, 4, 5])):
        directory = tmp_path / str(check_every)
        directory.mkdir()
        bench = Bench(directory, check_every=check_every)
        bench.device.fill(np.random.default_rng(3))
        bench.store([0, 1, 2, 3], [0, 1, 4, 5])
        digests = bench.slab.digests[:, 0, 0]
        assert [slot for slot in (0, 1, 4, 5) if digests[slot] != NO_DIGEST] == checked
        bench.worker.contain_failures()
        bench.slab.blocks[:] ^= 1
        for slot in (0, 1, 4, 5):
            bench.load([slot], [9])
            bench.worker.get_finished()
            assert bool(bench.worker.take_failed_loads()) == (slot in checked)


def test_a_chunk_without_digest_loads_from_any_slot(tmp_path: Path) -> None:
    """A promotion may bring bytes stored unchecked into a slot that is sampled."""
    bench = Bench(tmp_path, check_every=4)
    bench.device.fill(np.random.default_rng(4))
    bench.store([0], [1])
    bench.slab.chunk(4)[:] = bench.slab.chunk(1)
    bench.load([4], [7])
    assert bench.device.block(7) == bench.device.block(0)
    bench.worker.get_finished()


def test_the_digest_log_tells_what_the_device_holds(tmp_path: Path) -> None:
    bench = Bench(tmp_path, log=DigestLog(tmp_path / "log", 0))
    bench.device.fill(np.random.default_rng(5))
    bench.worker.submit_store(1, GPULoadStoreSpec([3], [1], [0]), HostSlots([2], [b"k1"]))  # type: ignore[list-item]
    bench.worker.wait({1})
    bench.worker.submit_load(2, HostSlots([2], [b"k1"]), GPULoadStoreSpec([8], [1], [0]))  # type: ignore[list-item]
    bench.worker.wait({2})
    import json

    stored, loaded = map(json.loads, (tmp_path / "log.0").read_text().splitlines())
    assert (stored["op"], loaded["op"]) == ("store", "load")
    assert stored["key"] == loaded["key"] == b"k1".hex()
    assert stored["digest"] == loaded["digest"] == bench.copier.device_digest(0, 3)


def test_shutdown_finishes_what_is_queued(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.device.fill(np.random.default_rng(6))
    bench.worker.submit_store(1, GPULoadStoreSpec([3], [1], [0]), HostSlots([2]))
    bench.worker.shutdown()
    assert bench.slab.status[2, 0] == STORED


class Gate:
    """A copy that waits until it is let through, and notes the order."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.order: list[int] = []

    def __call__(self, group: int, block: int, slot: int, place: int) -> bool:
        self.entered.set()
        assert self.open.wait(10)
        self.order.append(slot)
        return True


def _job(job_id: int, gate: Gate, *, is_load: bool, moves: int = 1) -> CopyJob:
    return CopyJob(job_id, is_load, [(0, 0, job_id, place) for place in range(moves)], gate, 1)


def test_loads_overtake_stores_that_wait() -> None:
    gate, done = Gate(), threading.Event()
    pool = CopyPool(1, lambda job: done.set() if job.job_id == 3 else None)
    pool.submit(_job(1, gate, is_load=False))
    assert gate.entered.wait(10)
    pool.submit(_job(2, gate, is_load=False))
    pool.submit(_job(3, gate, is_load=True))
    gate.open.set()
    pool.wait({1, 2, 3})
    assert gate.order == [1, 3, 2]
    assert [job.job_id for job in pool.take_done()] == [1, 3, 2]
    pool.close()


def test_wait_blocks_until_the_jobs_named_are_done_and_ignores_unknown_ones() -> None:
    gate = Gate()
    pool = CopyPool(1, lambda _: None)
    pool.wait({99})
    pool.submit(_job(1, gate, is_load=False))
    waiter = threading.Thread(target=pool.wait, args=({1},))
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    gate.open.set()
    waiter.join(10)
    assert not waiter.is_alive()
    pool.close()


def test_a_job_whose_end_cannot_be_noted_has_failed_and_the_thread_lives_on() -> None:
    def broken(job: CopyJob) -> None:
        if job.job_id == 1:
            raise OSError("disk full")

    gate = Gate()
    gate.open.set()
    pool = CopyPool(1, broken)
    for job_id in (1, 2):
        pool.submit(_job(job_id, gate, is_load=True))
        pool.wait({job_id})
    first, second = pool.take_done()
    assert (first.failed_slots, second.failed_slots) == ({1}, set())
    assert isinstance(first.error, OSError)
    pool.close()


def test_an_empty_job_ends_too() -> None:
    pool = CopyPool(2, lambda _: None)
    pool.submit(_job(1, Gate(), is_load=True, moves=0))
    pool.wait({1})
    assert [job.job_id for job in pool.take_done()] == [1]
    pool.close()


def test_one_large_job_uses_all_threads() -> None:
    both = threading.Barrier(2, timeout=10)
    pool = CopyPool(2, lambda _: None)
    job = CopyJob(1, True, [(0, 0, slot, 0) for slot in range(8)], lambda *_: both.wait() >= 0, 1)
    pool.submit(job)
    pool.wait({1})
    assert job.error is None
    pool.close()
