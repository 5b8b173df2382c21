"""The index table: bins, the closed form of the index, shrinkage, fading."""

from __future__ import annotations

import numpy as np
import pytest

from warmtier.policy.hazard import CLASSES, AgeBins, Floats, ReuseTable, class_of, fresh_bucket, gittins


def index_by_definition(hazard: Floats, widths_s: Floats) -> Floats:
    """max over horizons of P(reuse) / E[min(time, horizon)], straight from the words."""
    best = np.zeros_like(hazard)
    for row in range(len(hazard)):
        for start in range(hazard.shape[1]):
            alive, chance, time = 1.0, 0.0, 0.0
            for stop in range(start, hazard.shape[1]):
                chance += alive * hazard[row, stop]
                time += alive * widths_s[stop] * (1 - hazard[row, stop] / 2)
                alive *= 1 - hazard[row, stop]
                best[row, start] = max(best[row, start], chance / time)
    return best


@pytest.mark.parametrize("seed", range(5))
def test_gittins_agrees_with_its_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hazard = rng.random((7, 36)) ** rng.integers(1, 6)
    widths_s = AgeBins().widths()
    expected = index_by_definition(hazard.clip(0, 0.999), widths_s)
    waiting = np.cumprod(1 - hazard, axis=1) > 1e-8
    reached = np.concatenate((np.ones((7, 1), bool), waiting[:, :-1]), axis=1)
    assert reached.sum() > 20
    assert gittins(hazard, widths_s)[reached] == pytest.approx(expected[reached], rel=1e-4)


def test_bins_of_one_and_of_many_agree() -> None:
    bins, table = AgeBins(), ReuseTable()
    ages_s = np.concatenate(([0.0, 0.0999, 0.1, 0.1001, 1e9], np.random.default_rng(1).uniform(0, 9_000, 500)))
    assert [bins.of(age) for age in ages_s] == bins.of_many(ages_s).tolist() == [table.bin(age) for age in ages_s]
    assert bins.of(1e9) == bins.count - 1


def test_fresh_buckets_are_powers_of_two_of_256_tokens() -> None:
    assert [fresh_bucket(tokens) for tokens in (-5, 0, 255, 256, 768, 10**7)] == [0, 0, 0, 1, 2, 6]


def test_classes_are_distinct_where_they_should_be() -> None:
    new = {class_of(0, uses, fresh) for uses in range(1, 10) for fresh in range(7)}
    continuing = {class_of(1, uses, fresh) for uses in range(1, 10) for fresh in range(7)}
    assert (len(new), len(continuing), len(new & continuing)) == (6 * 7, 6 * 3, 0)
    assert max(new | continuing | {class_of(2, 9, 6)}) < CLASSES


def rebuilt(table: ReuseTable) -> list[list[float]]:
    table.rebuild(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    return table.index


def test_before_the_first_rebuild_every_index_is_one() -> None:
    assert {value for row in ReuseTable().index for value in row} == {1.0}


def test_a_class_used_again_is_worth_more_than_one_that_is_not() -> None:
    table = ReuseTable()
    good, bad = class_of(1, 2, 0), class_of(0, 1, 0)
    for _ in range(50):
        table.reused(good, 10.0, 20)
        table.censored(bad, 300.0, 20)
    index = rebuilt(table)
    assert index[good][0] > 5 * index[bad][0]
    assert index[good][table.bin(10.0)] > index[good][table.bin(200.0)], "past its usual time it is worth less"


def test_an_unseen_class_inherits_from_its_kind() -> None:
    table = ReuseTable()
    for _ in range(50):
        table.reused(class_of(1, 2, 0), 10.0, 20)
        table.censored(class_of(0, 1, 0), 300.0, 20)
    index = rebuilt(table)
    assert index[class_of(1, 3, 6)][0] > index[class_of(0, 3, 6)][0]


def test_chunks_tracked_now_count_as_censored_at_their_age() -> None:
    table = ReuseTable()
    class_ = class_of(0, 1, 0)
    table.reused(class_, 5.0, 100)
    alone = rebuilt(table)[class_][0]
    table.rebuild(np.array([class_]), np.array([900.0]), np.array([5_000.0]))
    assert table.index[class_][0] < alone / 5


def test_counts_are_bounded_by_halving() -> None:
    table = ReuseTable(memory=1_000.0)
    for _ in range(40):
        table.reused(0, 1.0, 100)
        rebuilt(table)
    assert table._sum <= 1_000
    assert sum(table._reused) == pytest.approx(table._sum)


def test_the_table_is_the_index_of_every_class_seen_or_not() -> None:
    rng = np.random.default_rng(9)
    table = ReuseTable()
    for _ in range(200):
        table.reused(int(rng.integers(0, CLASSES)) // 3 * 3, float(rng.uniform(0, 900)), 5)
        table.censored(int(rng.integers(0, CLASSES)) // 3 * 3, float(rng.uniform(0, 900)), 9)
    index = rebuilt(table)
    shape = (CLASSES, table.bins.count)
    reused, censored = np.array(table._reused).reshape(shape), np.array(table._censored).reshape(shape)
    exposed = np.flip(np.flip(reused + censored, 1).cumsum(1), 1)
    assert np.array(index) == pytest.approx(gittins(table._hazard(reused, exposed), table.bins.widths()))


def test_values_at_a_time_are_those_of_the_bins() -> None:
    table = ReuseTable()
    table.reused(4, 7.0, 100)
    index = rebuilt(table)
    value = table.at(1_000.0)
    for used_s in (1_000.0, 999.95, 999.0, 700.0, -1e7):
        assert value(4, used_s) == index[4][table.bin(1_000.0 - used_s)]
