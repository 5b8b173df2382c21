"""The host tier alone: what is stored, served, protected, refused."""

from __future__ import annotations

import pytest

from warmtier.core.errors import ConfigError, InternalError, UsageError
from warmtier.core.types import MissReason, RequestId, StoreOutcome, TierKind, TierMode
from warmtier.policy.lru import LruPolicy
from warmtier.policy.ranges import RetentionRange
from warmtier.testing.fakes import Driver, cold_tier, path_of
from warmtier.testing.invariants import check, check_quiet
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.settings import CacheConfig, HintLimits, HostTier, TenantQuota
from warmtier.tiering.types import RequestHints


def test_what_was_stored_is_served_and_not_before() -> None:
    driver, path = Driver(), path_of("a", 4)
    request = driver.begin()
    offer = driver.cache.offer(request, path, 0, 0.0)
    assert offer.keys == path
    assert len(set(offer.slots)) == 4
    other = driver.begin()
    waiting = driver.cache.lookup(other, path, 0, 0.0)
    assert (waiting.pending, waiting.usable) == (True, 4)
    driver.cache.store_done(request, set(path), 0.1)
    served = driver.cache.lookup(other, path, 0, 0.1)
    assert (served.pending, served.usable, served.reason, dict(served.by_tier)) == (False, 4, None, {TierKind.HOST: 4})
    assert driver.cache.pin_for_load(other, path[1:3], 0.1) == offer.slots[1:3]


def test_a_store_that_never_ends_is_a_miss_after_its_deadline() -> None:
    driver, path = Driver(pending_deadline_s=0.5), path_of("a", 4)
    driver.cache.offer(driver.begin(), path, 0, 0.0)
    other = driver.begin()
    assert driver.cache.lookup(other, path, 0, 0.0).pending
    assert driver.cache.lookup(other, path, 0, 0.4).pending
    late = driver.cache.lookup(other, path, 0, 0.5)
    assert (late.pending, late.usable, late.reason) == (False, 0, MissReason.PENDING_DEADLINE)


def test_a_failed_store_is_absent() -> None:
    driver, path = Driver(), path_of("a", 4)
    request = driver.begin()
    driver.cache.offer(request, path, 0, 0.0)
    driver.cache.store_done(request, set(path[2:]), 0.0, ok=False)
    driver.cache.store_done(request, set(path[:2]), 0.0)
    assert driver.usable(path) == 2
    check(driver.cache)


def test_a_failed_load_invalidates_the_lookup_and_forgets_the_bytes() -> None:
    driver, path = Driver(), path_of("a", 4)
    driver.store(path)
    request = driver.begin()
    driver.cache.lookup(request, path, 0, 0.0)
    driver.cache.pin_for_load(request, path, 0.0)
    driver.cache.load_done(request, {path[2]}, 0.1, ok=False)
    driver.cache.load_done(request, {path[0], path[1], path[3]}, 0.1)
    again = driver.cache.lookup(request, path, 0, 0.2)
    assert (again.usable, again.reason) == (2, MissReason.LOAD_FAILED)
    assert driver.usable(path) == 2
    driver.store(path)
    assert driver.cache.lookup(request, path, 0, 0.3).usable == 2, "the same request must not try again"
    assert driver.usable(path) == 4


def test_a_failed_load_of_a_shared_chunk_keeps_the_slot_until_the_other_load_ends() -> None:
    driver, path = Driver(slots=4), path_of("a", 1)
    driver.store(path)
    first, second = driver.begin(), driver.begin()
    for request in (first, second):
        driver.cache.lookup(request, path, 0, 0.0)
        driver.cache.pin_for_load(request, path, 0.0)
    driver.cache.load_done(first, path, 0.0, ok=False)
    assert driver.cache.stats().tiers["host"].quarantined == 1
    assert len(driver.store(path_of("b", 4))) == 3
    driver.cache.load_done(second, path, 0.0)
    for request in (first, second):
        driver.cache.end_request(request, 0.0)
    check_quiet(driver.cache)


def test_a_promise_of_a_lookup_holds_until_the_tick() -> None:
    driver, path = Driver(slots=4), path_of("a", 4)
    driver.store(path)
    request = driver.begin()
    assert driver.cache.lookup(request, path, 0, 0.0).usable == 4
    other = driver.begin()
    assert driver.cache.offer(other, path_of("b", 2), 0, 0.0).outcomes == {StoreOutcome.NO_ROOM: 2}
    driver.cache.pin_for_load(request, path, 0.0)
    driver.cache.tick(0.0)
    assert driver.cache.offer(other, path_of("b", 2), 0, 0.0).outcomes == {StoreOutcome.NO_ROOM: 2}
    driver.cache.load_done(request, path, 0.0)
    assert len(driver.cache.offer(other, path_of("b", 2), 0, 0.0).evicted) == 2


def test_a_pin_without_a_lookup_is_a_bug_of_the_driver() -> None:
    driver = Driver()
    with pytest.raises(InternalError, match="not ready"):
        driver.cache.pin_for_load(driver.begin(), path_of("a", 1), 0.0)


def test_all_parts_of_a_chunk_or_none() -> None:
    driver, path = Driver(slots=7, parts_per_chunk=3), path_of("a", 3, parts=3)
    assert driver.store(path) == path[:6], "seven slots hold two chunks of three parts"
    request = driver.begin()
    driver.cache.lookup(request, path, 0, 0.0)
    driver.cache.pin_for_load(request, path[:6], 0.0)
    driver.cache.load_done(request, [path[4]], 0.0, ok=False)
    assert driver.usable(path) == 3


def test_an_orphan_is_not_stored() -> None:
    driver, path = Driver(), path_of("a", 4)
    request = driver.begin()
    offer = driver.cache.offer(request, path, 0, 0.0)
    driver.cache.store_done(request, offer.keys, 0.0, ok=False)
    later = driver.begin()
    driver.cache.lookup(later, path, 0, 0.0)
    assert driver.cache.offer(later, path[2:], 2, 0.0).outcomes == {StoreOutcome.REFUSED_ORPHAN: 2}


def test_holes_are_filled_again() -> None:
    driver, path = Driver(), path_of("a", 5)
    driver.store(path)
    request = driver.begin()
    driver.cache.lookup(request, path, 0, 0.0)
    driver.cache.pin_for_load(request, path, 0.0)
    driver.cache.load_done(request, {path[1], path[3]}, 0.0, ok=False)
    driver.cache.load_done(request, {path[0], path[2], path[4]}, 0.0)
    offer = driver.cache.offer(request, path, 0, 0.0)
    assert offer.keys == [path[1], path[3]]
    assert offer.outcomes == {StoreOutcome.PRESENT: 3, StoreOutcome.STORED: 2}


def test_only_prompts_are_stored_by_default() -> None:
    driver, path = Driver(offload_prompt_only=True), path_of("a", 4)
    assert driver.store(path, tokens=39) == path[:2]
    assert driver.cache.stats().tiers["host"].counters.stores[StoreOutcome.REFUSED_DECODE] == 2


def test_the_threshold_counts_offers_like_the_host_engine() -> None:
    driver, path = Driver(store_threshold=3), path_of("a", 2)
    assert [len(driver.store(path)) for _ in range(4)] == [0, 0, 2, 0]


def test_the_tracker_of_offers_is_bounded_and_never_drops_the_offer_at_hand() -> None:
    driver = Driver(store_threshold=2, max_tracker_size=4)
    driver.store(path_of("a", 4))
    driver.store(path_of("b", 9))
    assert driver.cache.tracked_offers() == 4
    assert driver.store(path_of("b", 9)) == path_of("b", 4)


def test_below_the_minimum_priority_the_rest_of_the_path_is_not_stored() -> None:
    driver, path = Driver(offload_min_priority=35), path_of("a", 6)
    hints = RequestHints((RetentionRange(0, 32, 80), RetentionRange(32, 48, 10), RetentionRange(48, None, 90)))
    assert driver.store(path, hints=hints) == path[:2]
    assert driver.cache.stats().tiers["host"].counters.stores[StoreOutcome.REFUSED_PRIORITY] == 4
    assert len(driver.store(path_of("b", 3))) == 3, "the default priority passes the default minimum"
    assert Driver(offload_min_priority=36).store(path_of("b", 3)) == []


def test_hints_are_cut_to_the_limits_unless_clients_are_trusted() -> None:
    hints = RequestHints((RetentionRange(0, None, 100, None),), decode_priority=90, tenant="x" * 100)
    limits = HintLimits(max_priority=60, max_duration_s=30.0)
    cut = Driver(hint_limits=limits).begin(hints=hints).hints
    assert cut.ranges == (RetentionRange(0, None, 60, 30.0),)
    assert (cut.decode_priority, cut.decode_duration_s, len(cut.tenant or "")) == (60, 30.0, 64)
    assert Driver(hint_limits=limits, trust_client_hints=True).begin(hints=hints).hints == hints


def test_no_load_and_no_store() -> None:
    driver, path = Driver(), path_of("a", 2)
    assert driver.store(path, hints=RequestHints(no_store=True)) == []
    driver.store(path)
    answer = driver.cache.lookup(driver.begin(hints=RequestHints(no_load=True)), path, 0, 0.0)
    assert (answer.usable, answer.reason) == (0, MissReason.HINT)


def test_a_tenant_stays_within_its_bytes_at_its_own_cost() -> None:
    driver = Driver(slots=16, quotas={"a": TenantQuota(max_bytes=400)})
    hints = RequestHints(tenant="a")
    driver.store(path_of("o", 4))
    driver.store(path_of("x", 3), hints=hints)
    assert driver.store(path_of("y", 3), hints=hints) == path_of("y", 3)
    assert driver.cache.stats().tenants == {"other": 4, "a": 4}
    assert driver.usable(path_of("o", 4)) == 4
    assert len(driver.store(path_of("z", 9), hints=hints)) == 4


def test_no_tenant_pushes_another_below_its_share() -> None:
    driver = Driver(slots=10, quotas={"a": TenantQuota(share=0.4)})
    driver.store(path_of("mine", 6), hints=RequestHints(tenant="a"))
    for name in "pqrs":
        driver.store(path_of(name, 5), hints=RequestHints(tenant="b"))
    assert driver.cache.stats().tenants["a"] == 4
    assert driver.usable(path_of("mine", 6)) == 4, "its tails went, its heads stayed"
    driver.store(path_of("new", 8), hints=RequestHints(tenant="a"))
    assert driver.usable(path_of("new", 8)) == 8, "its own share protects nothing from itself"


def test_tenants_are_bounded() -> None:
    driver = Driver(quotas={"a": TenantQuota(share=0.1)}, max_tenants=3)
    for name in "bcdefg":
        driver.store(path_of(name, 1), hints=RequestHints(tenant=name))
    assert set(driver.cache.stats().tenants) == {"other", "a", "b"}
    assert driver.cache.stats().tenants["other"] == 5
    check(driver.cache)


def test_a_reset_makes_everything_unreachable_and_quarantines_transfers() -> None:
    driver, path = Driver(slots=8, reset_quarantine_ticks=2), path_of("a", 4)
    driver.store(path)
    writing, reading = driver.begin(), driver.begin()
    driver.cache.offer(writing, path_of("w", 2), 0, 0.0)
    driver.cache.lookup(reading, path, 0, 0.0)
    driver.cache.pin_for_load(reading, path[:1], 0.0)
    driver.cache.reset(0.0)
    assert driver.usable(path) == 0
    assert driver.cache.stats().tiers["host"].quarantined == 3
    assert driver.cache.offer(writing, path_of("w", 4), 0, 0.0).outcomes == {StoreOutcome.REFUSED_EPOCH: 4}
    assert len(driver.store(path_of("n", 8))) == 5
    driver.cache.load_done(reading, path[:1], 0.0)
    driver.cache.tick(0.0)
    assert driver.cache.stats().tiers["host"].quarantined == 0
    assert driver.cache.stats().late_completions == 1
    check(driver.cache)


def test_flushed_ends_the_quarantine_at_once() -> None:
    driver = Driver(reset_quarantine_ticks=1000)
    driver.cache.offer(driver.begin(), path_of("w", 2), 0, 0.0)
    driver.cache.reset(0.0)
    assert driver.cache.stats().tiers["host"].quarantined == 2
    driver.cache.flushed(0.0)
    assert driver.cache.stats().tiers["host"].quarantined == 0


def test_a_tier_that_is_off_neither_serves_nor_stores() -> None:
    driver, path = Driver(), path_of("a", 2)
    driver.store(path)
    driver.cache.set_mode("host", TierMode.OFF, 0.0)
    request = driver.begin()
    assert driver.cache.lookup(request, path, 0, 0.0).reason is MissReason.TIER_OFF
    assert driver.cache.offer(request, path_of("b", 2), 0, 0.0).outcomes == {StoreOutcome.TIER_OFF: 2}
    driver.cache.set_mode("host", TierMode.ON, 0.0)
    assert driver.usable(path) == 2


def test_unknown_tiers_and_modes_are_refused() -> None:
    driver = Driver()
    with pytest.raises(UsageError, match="no tier 'disk'"):
        driver.cache.set_mode("disk", TierMode.OFF, 0.0)
    with pytest.raises(UsageError, match="not available"):
        driver.cache.set_mode("host", TierMode.CANARY, 0.0)


def test_settings_that_contradict_are_refused() -> None:
    with pytest.raises(ConfigError, match="shares"):
        CacheConfig(part_bytes=1, tokens_per_chunk=1, quotas={"a": TenantQuota(share=0.6), "b": TenantQuota(share=0.6)})
    with pytest.raises(ConfigError, match="tokens_per_chunk"):
        CacheConfig(part_bytes=1, tokens_per_chunk=0)
    with pytest.raises(ConfigError, match="host"):
        TieredCache(CacheConfig(part_bytes=1, tokens_per_chunk=1), HostTier(LruPolicy(1), 1), [cold_tier("host")])


def test_events_are_bounded_and_the_loss_is_counted() -> None:
    driver = Driver(max_events=3)
    for name in "abcde":
        driver.store(path_of(name, 1))
    assert [event.keys for event in driver.cache.take_events()] == [tuple(path_of(name, 1)) for name in "cde"]
    assert driver.cache.stats().dropped_events == 2


def test_a_device_load_by_another_request_does_not_convoy() -> None:
    driver, path = Driver(load_conflict_wait_s=0.2), path_of("a", 4)
    driver.store(path)
    first, second = driver.begin(), driver.begin()
    driver.cache.lookup(first, path, 0, 0.0)
    driver.cache.pin_for_load(first, path[2:], 0.0)
    assert driver.cache.lookup(second, path, 0, 0.0).pending
    assert driver.cache.lookup(second, path, 0, 0.19).pending
    late = driver.cache.lookup(second, path, 0, 0.2)
    assert (late.pending, late.usable, late.reason) == (False, 2, MissReason.PENDING_DEADLINE)
    driver.cache.load_done(first, path[2:], 0.21)
    assert driver.cache.lookup(second, path, 0, 0.21).usable == 4


def test_without_such_an_engine_loads_are_shared() -> None:
    driver, path = Driver(), path_of("a", 4)
    driver.store(path)
    requests = [driver.begin() for _ in range(3)]
    for request in requests:
        answer = driver.cache.lookup(request, path, 0, 0.0)
        assert (answer.usable, answer.pending) == (4, False)
        driver.cache.pin_for_load(request, path, 0.0)
    for request in requests:
        driver.cache.load_done(request, set(path), 0.0)
        driver.cache.end_request(request, 0.0)
    check_quiet(driver.cache)


def test_completions_after_the_end_and_twice_are_harmless() -> None:
    driver, path = Driver(), path_of("a", 2)
    request = driver.begin()
    driver.cache.offer(request, path, 0, 0.0)
    driver.cache.end_request(request, 0.0)
    driver.cache.end_request(request, 0.0)
    driver.cache.store_done(request, path, 0.0)
    driver.cache.store_done(request, path, 0.0)
    assert driver.usable(path) == 2
    assert driver.cache.stats().late_completions == 2


def test_a_short_host_load_can_be_refused() -> None:
    driver, path = Driver(host_min_tokens=48), path_of("a", 3)
    driver.store(path[:2])
    answer = driver.cache.lookup(driver.begin(), path, 0, 0.0)
    assert (answer.usable, answer.reason) == (0, MissReason.BELOW_MINIMUM)
    driver.store(path)
    assert driver.usable(path) == 3


def test_a_request_id_used_again_keeps_both_apart() -> None:
    driver, path = Driver(), path_of("a", 2)
    first = driver.cache.begin_request(RequestId("same"), 0.0)
    second = driver.cache.begin_request(RequestId("same"), 0.0)
    driver.cache.end_request(first, 0.0)
    assert driver.cache.stats().requests == 1
    driver.cache.offer(second, path, 0, 0.0)
    driver.cache.store_done(second, path, 0.0)
    driver.cache.end_request(second, 0.0)
    check_quiet(driver.cache)
