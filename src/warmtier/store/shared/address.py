"""Where a Valkey or Redis server is. Its password comes from the environment only."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from warmtier.core.errors import UsageError

USERNAME_VARIABLE: Final = "WARMTIER_SHARED_USERNAME"
PASSWORD_VARIABLE: Final = "WARMTIER_SHARED_PASSWORD"  # noqa: S105 - the variable's name

_TCP: Final = ("valkey", "redis")
_TLS: Final = ("valkeys", "rediss")
_UNIX: Final = ("valkey+unix", "redis+unix", "unix")
SCHEMES: Final = _TCP + _TLS + _UNIX
_DEFAULT_PORT: Final = 6379


@dataclass(frozen=True, slots=True)
class Address:
    """One server: ``host`` and ``port``, or the Unix socket ``path``. ``name`` may be shown; the password never."""

    name: str
    host: str = ""
    port: int = _DEFAULT_PORT
    path: str = ""
    database: int = 0
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)


def parse_address(url: str, environment: Mapping[str, str] = os.environ) -> Address:
    """Return the server of ``valkey://host:port/db``, ``valkeys://`` (TLS) or ``valkey+unix:///path?db=0``.

    ``redis://``, ``rediss://`` and ``unix://`` mean the same. TLS takes ``ca``, ``cert`` and ``key``, PEM files.
    User and password are WARMTIER_SHARED_USERNAME and WARMTIER_SHARED_PASSWORD. Raises UsageError.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise UsageError("the shared tier's URL has an unknown scheme", fix=f"use one of {', '.join(SCHEMES)}")
    if "@" in parts.netloc:
        fix = f"put them into {USERNAME_VARIABLE} and {PASSWORD_VARIABLE}"
        raise UsageError("the shared tier's URL holds credentials", fix=fix)
    allowed = {"db"} if parts.scheme in _UNIX else ({"ca", "cert", "key"} if parts.scheme in _TLS else set())
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    for given in parameters:
        if given not in allowed:
            known = ", ".join(sorted(allowed)) or "none"
            raise UsageError(f"the shared tier's URL has an unknown parameter {given!r}", fix=f"known: {known}")
    name = f"{parts.scheme}://{parts.netloc}{parts.path}"
    username, password = environment.get(USERNAME_VARIABLE), environment.get(PASSWORD_VARIABLE)
    if parts.scheme in _UNIX:
        database = _number(parameters.get("db", "0"), "database")
        return Address(name, path=unquote(parts.path), database=database, username=username, password=password)
    if not parts.hostname:
        raise UsageError(f"the shared tier's URL {name!r} names no host")
    return Address(
        name,
        host=parts.hostname,
        port=_port(parts.netloc),
        database=_number(parts.path.strip("/") or "0", "database"),
        tls=_context(parameters) if parts.scheme in _TLS else None,
        username=username,
        password=password,
    )


def _port(netloc: str) -> int:
    _, colon, text = netloc.rpartition(":")
    return _number(text, "port") if colon and not text.endswith("]") else _DEFAULT_PORT


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 65_535:
        raise UsageError(f"the shared tier's URL has a {what} that is no number: {text!r}")
    return int(text)


def _context(parameters: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=parameters.get("ca"))
        if "cert" in parameters:
            context.load_cert_chain(parameters["cert"], parameters.get("key"))
    except (OSError, ssl.SSLError) as error:
        raise UsageError("the shared tier's certificates cannot be used", why=str(error)) from error
    return context
