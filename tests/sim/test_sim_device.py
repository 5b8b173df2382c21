from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmtier.core.errors import InternalError
from warmtier.sim.device import DevicePool


class NaivePool:
    """The same rules with a plain list as the queue."""

    def __init__(self, blocks: int) -> None:
        self.queue = list(range(blocks))
        self.refs = [0] * blocks
        self.key: list[int | None] = [None] * blocks
        self.order: list[int] = []  # keyed blocks, oldest key first

    def find(self, key: int) -> int | None:
        return next((b for b in self.order if self.key[b] == key), None)

    def take(self, count: int) -> list[int]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        for block in taken:
            self.refs[block] = 1
            if self.key[block] is not None:
                self.order.remove(block)
                self.key[block] = None
        return taken

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if not self.refs[block]:
                self.queue.remove(block)
            self.refs[block] += 1

    def set_key(self, block: int, key: int) -> None:
        if self.key[block] is None:
            self.key[block] = key
            self.order.append(block)

    def release(self, blocks: list[int]) -> None:
        front: list[int] = []
        for block in reversed(blocks):
            self.refs[block] -= 1
            if not self.refs[block]:
                if self.key[block] is None:
                    front.append(block)
                else:
                    self.queue.append(block)
        self.queue = front + self.queue


@settings(max_examples=80, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 4)), max_size=60))
def test_pool_does_what_a_plain_list_does(steps: list[tuple[int, int, int]]) -> None:
    pool, naive = DevicePool(12), NaivePool(12)
    held: list[list[int]] = []
    for action, family, length in steps:
        path = [10 * family + depth for depth in range(length)]
        if action < 2:
            hit = pool.prefix(path, length)
            expected = []
            for key in path:
                block = naive.find(key)
                if block is None:
                    break
                expected.append(block)
            assert hit == expected
            missing = length - len(hit)
            if missing > pool.free_blocks - pool.idle(hit):
                continue
            pool.touch(hit)
            naive.touch(hit)
            new = pool.take(missing)
            assert new == naive.take(missing)
            blocks = [*hit, *new]
            for block, key in zip(blocks, path[: length - action], strict=False):  # action 1: the last stays open
                pool.set_key(block, key)
                naive.set_key(block, key)
            held.append(blocks)
        elif held:
            blocks = held.pop(family % len(held))
            pool.release(blocks)
            naive.release(blocks)
        assert pool.free_blocks == len(naive.queue)
        assert list(pool._free) == naive.queue


def test_freed_tails_go_before_their_heads() -> None:
    pool = DevicePool(3)
    blocks = pool.take(3)
    for block, key in zip(blocks, (1, 2, 3), strict=True):
        pool.set_key(block, key)
    pool.release(blocks)
    pool.take(1)
    assert len(pool.prefix([1, 2, 3], 3)) == 2
    assert pool.evictions == 1


def test_double_keys_survive_the_loss_of_one() -> None:
    pool = DevicePool(2)
    first, second = pool.take(2)
    pool.set_key(first, 7)
    pool.set_key(second, 7)
    pool.release([first])
    pool.take(1)
    assert pool.prefix([7], 1) == [second]
    assert pool.cached_blocks == 1


def test_taking_more_than_there_is_raises() -> None:
    with pytest.raises(InternalError):
        DevicePool(1).take(2)
