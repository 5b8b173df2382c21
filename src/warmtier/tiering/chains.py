"""Victims and the prefixes they need: what must be written so that a colder tier holds whole prefixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from warmtier.core.types import Key


@dataclass(slots=True)
class Chain:
    """Consecutive ``keys`` below ``parent``, root first; ``start`` is the path index of the first.

    ``path`` is the whole path as far as it is known (only for chains without a request).
    """

    keys: Sequence[Key]
    parent: Key | None
    start: int
    uses: Sequence[int] | None = None
    path: list[Key] = field(default_factory=list)


def chains_above(
    victims: Sequence[Key],
    parents: Mapping[Key, Key | None],
    held: Callable[[Key], bool],
    available: Callable[[Key], bool],
) -> list[Chain]:
    """Return the chains to write so that each victim (tails first) ends up below a held or written parent.

    A victim whose prefix is neither held nor available is left out. O(keys of the chains and their paths).
    """
    seen: set[Key] = set()
    chains: list[Chain] = []
    for victim in victims:
        keys: list[Key] = []
        key: Key | None = victim
        while key is not None and key not in seen and not held(key) and available(key):
            keys.append(key)
            key = parents.get(key)
        if keys and (key is None or key in seen or held(key)):
            seen.update(keys)
            keys.reverse()
            above = _path_to(key, parents)
            chains.append(Chain(keys, key, len(above), None, above + keys))
    return chains


def _path_to(key: Key | None, parents: Mapping[Key, Key | None]) -> list[Key]:
    path: list[Key] = []
    while key is not None:
        path.append(key)
        key = parents.get(key)
    path.reverse()
    return path
