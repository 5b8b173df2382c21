"""Contracts of eviction policies. No logic here; ``warmtier.testing.policy_suite`` proves an implementation.

A policy decides, for ONE tier, which chunk to give up and whether a new chunk is worth a victim. It is pure: no clock,
no I/O, no threads, no unseeded randomness. Time comes in as ``now`` (seconds, never going back).

Rules every production policy keeps:

* a parent is never given up before its resident child (a chunk without its prefix is useless);
* a child whose parent is not resident is never admitted;
* ``admit`` answers with a *prefix* of what it was given (heads before tails) and takes victims tails first;
* a chunk for which ``pinned(key)`` is true is never a victim;
* everything it remembers about absent chunks (ghosts, sketches, histograms) is bounded by its capacity.

Source of the rules: vLLM 0.32 ``v1/kv_offload/cpu/policies/base.py`` (atomic eviction), SGLang HiCache (leaf first).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

Pinned = Callable[[K], bool]
"""Answers whether a resident chunk must stay (a transfer, a quota or an operator holds it)."""


@dataclass(slots=True)
class Access(Generic[K]):
    """One request as a policy sees it: its path from the root, as far as it is known.

    ``path`` holds the keys of the request's full chunks, root first (partial last chunks never appear). Drivers may
    extend it while the request runs, never shorten it. A key fixes its parent (content hashes chain the prefix). The
    keys given to ``touch`` and ``admit`` lie on the path. ``tokens_per_chunk`` is constant for one cache. ``state`` is
    the policy's own.
    """

    path: list[K]
    tokens_per_chunk: int
    prompt_tokens: int
    started_s: float
    tenant: str | None = None
    session: str | None = None
    state: object = None


@dataclass(slots=True)
class Admission(Generic[K]):
    """The answer to ``admit``: the first ``admitted`` of the keys offered get a place, ``victims`` lose theirs.

    The policy has already forgotten the victims and counts the admitted as resident; the caller must perform it, or
    undo it with ``remove``. ``refused_by_value`` tells a bypass (not worth a victim) from no room (all pinned).
    """

    admitted: int
    victims: list[K] = field(default_factory=list)
    refused_by_value: bool = False


class EvictionPolicy(ABC, Generic[K]):
    """Which chunks of one tier stay. All methods are synchronous, single-threaded and bounded.

    Cost: amortised O(1) to O(log n) per key. Keys are any hashable; capacity is in chunks of equal size.
    """

    name: ClassVar[str]

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"capacity must not be negative, got {capacity}")
        self.capacity = capacity

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of resident chunks."""

    @abstractmethod
    def __contains__(self, key: object) -> bool:
        """Return whether ``key`` is resident."""

    @abstractmethod
    def resident(self) -> Iterable[K]:
        """Iterate over the resident chunks in no particular order. O(n); for tests, snapshots and shrinking."""

    def begin(self, access: Access[K], now: float) -> None:
        """A request was seen. ``access.path`` may still be empty or grow later. Default: nothing."""

    @abstractmethod
    def touch(self, access: Access[K], keys: Sequence[K], now: float) -> None:
        """The request uses these chunks, root first, loaded or as a device hit. Absent keys: ignored."""

    @abstractmethod
    def admit(
        self, access: Access[K], keys: Sequence[K], parent: K | None, now: float, pinned: Pinned[K]
    ) -> Admission[K]:
        """Decide on storing ``keys``: absent, consecutive on one path, root first, below ``parent`` (None: root).

        The caller guarantees that ``parent`` is resident or None. Victims are chosen only as needed. Chunks of
        ``access`` itself that are already resident are never victims of its own admission.
        """

    def finish(self, access: Access[K], now: float) -> None:
        """The request has ended; its whole path counts as used now, tails before heads. Default: nothing."""

    @abstractmethod
    def evict(self, count: int, now: float, pinned: Pinned[K]) -> list[K]:
        """Give up to ``count`` chunks up, tails first; fewer when the rest is pinned. For shrinking and pressure."""

    def give_up(self, keys: Iterable[K], count: int, now: float, pinned: Pinned[K]) -> list[K]:
        """Give up to ``count`` of the resident ``keys`` up, in the order given, leaves only. For wrappers.

        Default: one ``evict`` that sees all others as pinned, O(n); override it where leaves are known.
        """
        wanted = set(keys)
        return self.evict(count, now, lambda key: key not in wanted or pinned(key))

    def defer(self, keys: Sequence[K]) -> None:
        """Consider these resident chunks last for a while; this is no use of them. Default: nothing."""

    @abstractmethod
    def remove(self, keys: Iterable[K], now: float) -> None:
        """These chunks are gone for reasons of others (failed store, corruption, deletion). Absent keys: ignored.

        Descendants of a removed chunk may stay resident for a while; the policy must treat them as evictable roots.
        """

    def resize(self, capacity: int) -> None:
        """Set a new capacity. The caller evicts what is above it."""
        if capacity < 0:
            raise ValueError(f"capacity must not be negative, got {capacity}")
        self.capacity = capacity

    @abstractmethod
    def clear(self) -> None:
        """Forget everything, evidence included."""

    def explain(self) -> dict[str, float | int | str]:
        """Return a few bounded facts for people and metrics (for example the policy now in charge)."""
        return {"policy": self.name}
