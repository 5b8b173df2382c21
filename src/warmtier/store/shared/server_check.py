"""Whether a Valkey or Redis server is fit to hold a cache: bounded, evicting, one node."""

from __future__ import annotations

from dataclasses import dataclass

from warmtier.core.errors import StoreError
from warmtier.store.shared.resp import Connection, ReplyError


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server said about itself. ``maximum_bytes`` 0 means no bound."""

    version: str
    used_bytes: int
    maximum_bytes: int
    policy: str
    cluster: bool


def read_facts(connection: Connection, deadline_s: float) -> ServerFacts:
    """Ask the server. Raises OSError, ReplyError."""
    fields: dict[str, str] = {}
    for section in (b"server", b"memory", b"cluster"):
        reply = connection.call(b"INFO", section, deadline_s=deadline_s)
        text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else ""
        for line in text.splitlines():
            name, _, value = line.partition(":")
            fields[name] = value
    return ServerFacts(
        version=fields.get("valkey_version") or fields.get("redis_version", "unknown"),
        used_bytes=int(fields.get("used_memory", "0")),
        maximum_bytes=int(fields.get("maxmemory", "0")),
        policy=fields.get("maxmemory_policy", "unknown"),
        cluster=fields.get("cluster_enabled") == "1",
    )


def check_facts(facts: ServerFacts, name: str, *, expires: bool) -> None:
    """Refuse a server that is not fit, with what to change. ``expires``: our values have a time to live."""
    if facts.cluster:
        raise StoreError(
            f"{name} is a node of a cluster", why="keys would be redirected", fix="use a single server, or Mooncake"
        )
    if facts.maximum_bytes == 0:
        raise StoreError(
            f"{name} has no memory bound", why="it would grow until its machine fails", fix="set its maxmemory"
        )
    evicts = facts.policy.startswith("allkeys-") or (expires and facts.policy.startswith("volatile-"))
    if not evicts:
        raise StoreError(
            f"{name} never makes room",
            why=f"its maxmemory-policy is {facts.policy}",
            fix="set its maxmemory-policy to allkeys-lru",
        )


def explain(error: OSError | ReplyError, name: str) -> StoreError:
    """Return what to tell when the store cannot be opened. The server's text holds no secrets."""
    if isinstance(error, ReplyError):
        if error.code in {"NOAUTH", "WRONGPASS", "NOPERM"}:
            fix = "check WARMTIER_SHARED_USERNAME and WARMTIER_SHARED_PASSWORD"
            return StoreError(f"{name} refuses access", why=error.code, fix=fix)
        return StoreError(f"{name} refuses to serve", why=str(error))
    return StoreError(f"{name} cannot be reached", why=str(error) or type(error).__name__, fix="check the address")
