"""Token ids for traces that have none: equal keys give equal tokens, so a server hits where the trace does."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import numpy as np

from warmtier.trace.schema import TraceRequest

MAX_CACHED_KEYS: Final = 100_000
_TAIL_SALT: Final = 0x7A11


class TokenSource:
    """Makes prompts. Ids are drawn from [first_id, last_id); bounded memory; not for several threads at once."""

    def __init__(self, first_id: int = 1000, last_id: int = 30_000, seed: int = 0) -> None:
        if not 0 <= first_id < last_id:
            raise ValueError(f"no token ids between {first_id} and {last_id}")
        self._range = (first_id, last_id)
        self._seed = seed
        self._known: OrderedDict[int, list[int]] = OrderedDict()

    def prompt(self, request: TraceRequest, number: int) -> list[int]:
        """Return the prompt of the trace's request ``number``; what no full key covers is unlike any other."""
        ids: list[int] = []
        for key in request.full_keys:
            ids += self._block(key, request.chunk_tokens)
        rest = request.prompt_tokens - len(ids)
        return ids + self._draw([self._seed, _TAIL_SALT, number], rest)

    def unique(self, number: int, tokens: int) -> list[int]:
        """Return a prompt that shares nothing with any other number."""
        return self._draw([self._seed, _TAIL_SALT + 1, number], tokens)

    def _block(self, key: int, tokens: int) -> list[int]:
        ids = self._known.get(key)
        if ids is None or len(ids) != tokens:
            ids = self._known[key] = self._draw([self._seed, key], tokens)
            if len(self._known) > MAX_CACHED_KEYS:
                self._known.popitem(last=False)
        return ids

    def _draw(self, entropy: list[int], tokens: int) -> list[int]:
        ids: list[int] = np.random.default_rng(entropy).integers(*self._range, size=tokens).tolist()
        return ids
