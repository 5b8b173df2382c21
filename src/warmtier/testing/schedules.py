"""Random schedules: a seed makes a configuration, faults and an engine's behaviour, and runs them through a cache."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from warmtier.core.types import Key, RequestId, TierKind, TierMode
from warmtier.guard.breaker import BreakerSettings
from warmtier.policy.admission import Admitter, NthTouch
from warmtier.policy.lru import LruPolicy
from warmtier.policy.ranges import RetentionRange
from warmtier.testing.invariants import BrokenInvariantError, check, check_quiet
from warmtier.testing.world import Faults, Value, World
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.calibration import Calibration, LinkSpeed, PrefillSpeed
from warmtier.tiering.request import Request
from warmtier.tiering.settings import CacheConfig, ColdTier, HostTier, TenantQuota
from warmtier.tiering.types import NO_HINTS, Placement, RequestHints


@dataclass(slots=True)
class Setup:
    """What a seed decides before the first step."""

    config: CacheConfig
    slots: int
    cold: list[tuple[str, Placement, int]]
    faults: Faults
    admit: bool
    steps: int
    read_budget: int
    calibration: Calibration | None
    reset_rate: float


def make_setup(seed: int, steps: int) -> Setup:
    """Return the setup of a seed. A third of the seeds has no faults at all."""
    rng = random.Random(seed)
    parts = rng.choice([1, 1, 2, 3])
    config = CacheConfig(
        part_bytes=4096,
        tokens_per_chunk=16,
        parts_per_chunk=parts,
        offload_prompt_only=rng.random() < 0.3,
        offload_min_priority=rng.choice([0, 0, 0, 35, 35, 50]),
        store_threshold=rng.choice([1, 1, 1, 2]),
        max_tracker_size=rng.choice([8, 64_000]),
        pending_deadline_s=0.5,
        hold_deadline_s=rng.choice([0.05, 1.0]),
        load_conflict_wait_s=rng.choice([None, None, 0.1]),
        max_events=rng.choice([4, 65_536]),
        quotas={"a": TenantQuota(4096 * 8, 0.2), "b": TenantQuota(None, 0.3)} if rng.random() < 0.3 else {},
        static_min_tokens=rng.choice([0, 16, 64]),
        retention=rng.random() < 0.7,
        exact_retention=rng.random() < 0.3,
    )
    names = ["near", "far"][: rng.choice([0, 1, 1, 2, 2])]
    cold = [(name, rng.choice(list(Placement)), rng.choice([4, 20, 60]) * parts) for name in names]
    faults = Faults() if rng.random() < 0.33 else _faults(rng)
    return Setup(
        config,
        rng.choice([3, 8, 8, 24, 60]) * parts,
        cold,
        faults,
        rng.random() < 0.2,
        steps,
        rng.choice([4, 24]),
        _calibration(rng),
        rng.choice([0.0, 0.01, 0.1]),
    )


def _calibration(rng: random.Random) -> Calibration | None:
    """Half the seeds know speeds: at 4096 bytes a part, loading wins from a few chunks on."""
    if rng.random() < 0.5:
        return None
    links = {"host": LinkSpeed(4e8, 1e-4), "near": LinkSpeed(1e8, 2e-3), "far": LinkSpeed(1e7, 1e-2)}
    return Calibration(1, PrefillSpeed(1e-4, 1e-7), links)


def _faults(rng: random.Random) -> Faults:
    rate = rng.choice([0.02, 0.1, 0.4])
    picked = {name: rate for name in ("lost", "corrupt", "timeout", "late", "write_fails") if rng.random() < 0.5}
    return Faults(store_evicts=rate / 4, transfer_fails=rng.choice([0.0, rate / 4]), **picked)


@dataclass(slots=True)
class _Live:
    """A request in the fake engine."""

    request: Request
    path: list[Key]
    phase: str = "waiting"
    start: int = 0
    done: int = 0
    since_s: float = 0.0
    epoch: int = 0
    waited_from_s: float | None = None
    loading: list[Key] = field(default_factory=list)


class Schedule:
    """One run. ``run`` raises BrokenInvariantError that names the seed."""

    def __init__(self, seed: int, steps: int = 60) -> None:
        self.seed = seed
        self.setup = make_setup(seed, steps)
        self.world = World(seed + 1, self.setup.faults, self.setup.slots, [name for name, _, _ in self.setup.cold])
        self.world.cache = self._build()
        self.rng = self.world.random
        self.live: list[_Live] = []
        self.device: set[Key] = set()
        self.seen = 0
        self.loads = 0

    def run(self) -> None:
        """Run all steps, then let everything end and check that nothing is left over."""
        try:
            for _ in range(self.setup.steps):
                self._step()
            self._drain()
        except Exception as error:
            raise BrokenInvariantError(f"seed {self.seed}: {type(error).__name__}: {error}") from error

    # --- building ---

    def _build(self) -> TieredCache:
        setup = self.setup
        cold = [
            ColdTier(
                name,
                TierKind.FILE if name == "near" else TierKind.OBJECT,
                LruPolicy(capacity),
                placement,
                admit=self._filter(),
                max_reads=3,
                max_writes=3,
                max_read_bytes=4096 * self.setup.read_budget,
                max_write_bytes=4096 * 24,
                deadline_cap_s=0.5,
                write_deadline_s=1.0,
                breaker=BreakerSettings(failures=3, cooldown_s=1.0, probe_timeout_s=2.0),
            )
            for name, placement, capacity in setup.cold
        ]
        return TieredCache(
            setup.config, HostTier(LruPolicy(setup.slots), setup.slots), cold, calibration=setup.calibration
        )

    def _filter(self) -> Admitter[Key] | None:
        return NthTouch(2, remember=16) if self.setup.admit else None

    # --- one step of the engine ---

    def _step(self) -> None:
        world = self.world
        self._upset()
        if self.rng.random() < 0.5 and len(self.live) < 6:
            self._arrive()
        for live in list(self.live):
            self._advance(live)
            check(world.cache)
        # As in vLLM, others were looked up between a request's lookup and its load.
        for live in [live for live in self.live if live.phase == "admitted"]:
            self._load(live)
        check(world.cache)
        world.perform()
        world.cache.tick(world.now)
        check(world.cache)
        world.run_until(world.now + self.rng.choice([0.001, 0.02, 0.2]))
        check(world.cache)
        self._forget_device()

    def _upset(self) -> None:
        """Now and then an operator, a reset, or a crash."""
        world, dice = self.world, self.rng.random()
        if dice < 0.02:
            tier = self.rng.choice(["host", *world.stores])
            world.cache.set_mode(tier, self.rng.choice([TierMode.OFF, TierMode.ON]), world.now)
        elif dice < 0.025:
            self._restart()
        elif dice > 1.0 - self.setup.reset_rate:
            self._reset()
        check(world.cache)

    def _reset(self) -> None:
        """New weights: the engine's own cache is empty, running requests begin anew, old transfers are dead."""
        self.world.epoch += 1
        self.device.clear()
        for live in list(self.live):
            if self.rng.random() < 0.5 or live.phase != "waiting":
                self._end(live)
        self.world.cache.reset(self.world.now)

    def _restart(self) -> None:
        world = self.world
        world.restart()
        self.live.clear()
        self.device.clear()
        world.cache = self._build()
        for name, store in world.stores.items():
            for key in [key for key, value in store.held.items() if value[1] != world.epoch]:
                del store.held[key]  # another namespace: the store does not list it
            world.cache.restore(name, list(store.held), world.now)

    def _arrive(self) -> None:
        world, parts = self.world, self.setup.config.parts_per_chunk
        path = self._path(parts)
        hints = self._hints()
        self.seen += 1
        tokens = 16 * self.rng.randint(1, max(1, len(path) // parts))
        request = world.cache.begin_request(RequestId(str(self.seen)), world.now, prompt_tokens=tokens, hints=hints)
        self.live.append(_Live(request, path, since_s=world.now, epoch=world.epoch))

    def _path(self, parts: int) -> list[Key]:
        branch, keys = self.rng.choice("xyz"), []
        length = self.rng.randint(1, 8)
        for depth in range(length):
            branch += self.rng.choice("ab") if depth > 2 and self.rng.random() < 0.3 else "a"
            keys += [Key(f"{branch}#{part}".encode()) for part in range(parts)]
        return keys

    def _hints(self) -> RequestHints:
        if self.rng.random() < 0.5:
            return NO_HINTS
        end = 16 * self.rng.randint(1, 6)
        ranges = (RetentionRange(0, end, self.rng.choice([0, 20, 35, 60, 90]), self.rng.choice([None, 0.3, 5.0])),)
        hints = RequestHints(ranges, tenant=self.rng.choice([None, "a", "b", "c"]))
        return replace(hints, no_store=self.rng.random() < 0.05, no_load=self.rng.random() < 0.05)

    # --- one request ---

    def _advance(self, live: _Live) -> None:
        if self.rng.random() < 0.03:
            self._end(live)
        elif live.phase == "waiting":
            self._look(live)
        elif live.phase == "running":
            self._compute(live)

    def _look(self, live: _Live) -> None:
        world, parts = self.world, self.setup.config.parts_per_chunk
        if live.waited_from_s is None:
            start = next((i for i, key in enumerate(live.path) if key not in self.device), len(live.path))
            live.start = start - start % parts
        answer = world.cache.lookup(live.request, live.path, live.start, world.now)
        again = world.cache.lookup(live.request, live.path, live.start, world.now)
        if again != answer:
            raise BrokenInvariantError(f"two lookups differ: {answer} and {again}")
        if answer.usable % parts or answer.usable > len(live.path) - live.start:
            raise BrokenInvariantError(f"{answer.usable} of {len(live.path)} parts usable, {parts} per chunk")
        if answer.pending:
            self._bound_wait(live)
            return
        live.waited_from_s = None
        live.epoch = world.epoch
        keys = live.path[live.start : live.start + answer.usable]
        if keys and self.rng.random() < 0.9:
            live.phase, live.loading = "admitted", keys
        elif not keys:
            live.phase, live.done = "running", live.start

    def _bound_wait(self, live: _Live) -> None:
        live.waited_from_s = self.world.now if live.waited_from_s is None else live.waited_from_s
        waited_s = self.world.now - live.waited_from_s
        if waited_s > 2.0:
            raise BrokenInvariantError(f"a request has waited for {waited_s:.2f} s")

    def _load(self, live: _Live) -> None:
        world, keys = self.world, live.loading
        self.loads += 1
        slots = world.cache.pin_for_load(live.request, keys, world.now)
        expected: list[Value] = [(key, world.epoch) for key in keys]
        for slot, value in zip(slots, expected, strict=True):
            world.require(slot, value, "load")
        live.phase = "loading"
        ok, epoch = not world.chance(world.faults.transfer_fails), world.epoch

        def end() -> None:
            if epoch != world.epoch:
                return  # the engine discards completions of an earlier epoch
            for slot, value in zip(slots, expected, strict=True):
                world.require(slot, value, "end of load")
            world.cache.load_done(live.request, set(keys), world.now, ok=ok)
            live.phase, live.done = ("running", live.start + len(keys)) if ok else ("waiting", 0)

        world.after(world.delay(), end)

    def _compute(self, live: _Live) -> None:
        parts = self.setup.config.parts_per_chunk
        # Device hits are offered again now and then.
        start = 0 if self.rng.random() < 0.1 else live.done
        stop = min(len(live.path), live.done + parts * self.rng.randint(1, 3))
        keys = live.path[start:stop]
        self.device.update(keys)
        live.done = stop
        if keys:
            self._store(live, keys, start)
        if live.done >= len(live.path):
            self._end(live)

    def _store(self, live: _Live, keys: list[Key], start: int) -> None:
        world = self.world
        offer = world.cache.offer(live.request, keys, start, world.now)
        if sum(offer.outcomes.values()) != len(keys):
            raise BrokenInvariantError(f"{len(keys)} chunks offered, outcomes {offer.outcomes}")
        if not offer.keys:
            return
        stored, slots, epoch = offer.keys, offer.slots, world.epoch
        ok = not world.chance(world.faults.transfer_fails)

        def end() -> None:
            for key, slot in zip(stored, slots, strict=True):
                # The copy runs to its end whatever happened to the epoch since.
                world.slab[slot] = (key, epoch) if ok else (key, -1)
            if epoch == world.epoch:
                world.cache.store_done(live.request, set(stored), world.now, ok=ok)

        # A reset's quarantine lasts two ticks: device transfers are over by then.
        world.after(min(world.delay(), 0.001), end)

    def _end(self, live: _Live) -> None:
        self.world.cache.end_request(live.request, self.world.now)
        self.live.remove(live)

    def _forget_device(self) -> None:
        for key in sorted(self.device):
            if self.rng.random() < 0.1:
                self.device.discard(key)

    def _drain(self) -> None:
        world = self.world
        for live in list(self.live):
            self._end(live)
        for _ in range(10_000):
            world.perform()
            world.cache.tick(world.now)
            check(world.cache)
            if not world.waiting:
                break
            world.run_until(world.next_due_s())
        for _ in range(3):
            world.run_until(world.now + 100.0)
            world.cache.tick(world.now)
        check_quiet(world.cache)


def run_schedule(seed: int, steps: int = 60) -> Schedule:
    """Run the schedule of a seed. Raises BrokenInvariantError with the seed."""
    schedule = Schedule(seed, steps)
    schedule.run()
    return schedule
