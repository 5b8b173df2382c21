"""From the URL of a far tier to its store. Nothing is contacted before ``Store.open``."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from warmtier.core.errors import UsageError
from warmtier.core.types import Namespace, TierKind
from warmtier.store.base import Store
from warmtier.store.object.options import ObjectOptions
from warmtier.store.shared.address import SCHEMES as VALKEY_SCHEMES
from warmtier.store.shared.address import parse_address
from warmtier.store.shared.mooncake import MooncakeStore
from warmtier.store.shared.mooncake_options import parse_mooncake
from warmtier.store.shared.valkey import ValkeyOptions, ValkeyStore

OBJECT_SCHEMES: Final = ("s3", "gs", "az", "file", "memory")
SHARED_SCHEMES: Final = (*VALKEY_SCHEMES, "mooncake")


def kind_of(url: str) -> TierKind:
    """Return which kind of tier ``url`` names. Raises UsageError; the URL itself is not repeated."""
    scheme = urlsplit(url).scheme
    if scheme in OBJECT_SCHEMES:
        return TierKind.OBJECT
    if scheme in SHARED_SCHEMES:
        return TierKind.SHARED
    known = ", ".join((*OBJECT_SCHEMES, *SHARED_SCHEMES))
    raise UsageError(f"no far tier has the scheme {scheme!r}", fix=f"use one of {known}")


def writer_name(engine: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return a name for this replica that lasts over restarts: WARMTIER_WRITER, or made of host and engine.

    ``engine`` tells apart engines of one host, such as data-parallel ranks. A pod's host name lasts in a StatefulSet;
    in a Deployment set WARMTIER_WRITER, or what a replaced pod left stays until it expires.
    """
    given = environment.get("WARMTIER_WRITER")
    if given:
        return f"{given}-{engine}" if engine else given
    host = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in socket.gethostname())[:40]
    digest = hashlib.blake2b(f"{socket.gethostname()}\0{engine}".encode(), digest_size=4).hexdigest()
    return f"{host}-{digest}"


def open_object_store(url: str, namespace: Namespace, options: ObjectOptions) -> Store:
    """Return the object store of ``url``; see ``object.backend``. Raises UsageError, RequirementError, StoreError."""
    # obstore is an extra: it is imported only where an object tier is used.
    from warmtier.store.object.backend import open_backend
    from warmtier.store.object.store import ObjectStore

    backend = open_backend(url, timeout_s=options.timeout_s, longest_s=options.longest_s)
    return ObjectStore(backend, namespace, options)


def open_shared_store(url: str, namespace: Namespace, *, timeout_s: float = 2.0, ttl_s: float = 86400.0) -> Store:
    """Return the shared store of ``url``; see ``shared.address`` and ``shared.mooncake_options``.

    ``ttl_s`` is for Valkey and Redis; a Mooncake cluster keeps what it has room for. Raises UsageError.
    """
    if urlsplit(url).scheme == "mooncake":
        return MooncakeStore(namespace, replace(parse_mooncake(url), timeout_s=timeout_s))
    return ValkeyStore(parse_address(url), namespace, ValkeyOptions(timeout_s=timeout_s, ttl_s=ttl_s))


def open_store(
    url: str, namespace: Namespace, *, capacity_bytes: int, engine: str = "", timeout_s: float = 2.0
) -> Store:
    """Return the far store of ``url`` with defaults for all that is not named; ``open`` it before use.

    ``capacity_bytes`` is for object tiers: what this replica keeps there. Others bound themselves. Raises UsageError,
    RequirementError, StoreError.
    """
    if kind_of(url) is TierKind.SHARED:
        return open_shared_store(url, namespace, timeout_s=timeout_s)
    options = ObjectOptions(capacity_bytes=capacity_bytes, writer=writer_name(engine), timeout_s=timeout_s)
    return open_object_store(url, namespace, options)
