"""From a URL to an object store of obstore. Secrets come from the environment or the instance's role only."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from warmtier.core.errors import StoreError, UsageError
from warmtier.core.extras import require

_SCHEMES: Final = ("s3", "gs", "az", "file", "memory")
_PARAMETERS: Final = {
    "s3": {"endpoint", "region", "ca", "path_style"},
    "gs": {"endpoint", "ca"},
    "az": {"endpoint", "ca", "account"},
    "file": set[str](),
    "memory": set[str](),
}


@dataclass(frozen=True, slots=True)
class Backend:
    """An object store of obstore and where in it we are. ``name`` may be shown."""

    store: object
    prefix: str
    name: str
    keeps_buffers: bool = False
    ordered: bool = True


def open_backend(url: str, *, timeout_s: float, longest_s: float) -> Backend:
    """Return the backend of ``s3://bucket/prefix``, ``gs://``, ``az://``, ``file:///directory`` or ``memory://name``.

    Parameters after ``?``: ``endpoint``, ``region``, ``ca`` (a PEM file), ``path_style`` (true or false, S3),
    ``account`` (Azure). Credentials in the URL are refused. No request is made here. ``timeout_s`` bounds connecting
    and retrying, ``longest_s`` any one request. Raises UsageError.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise UsageError("the object tier's URL has an unknown scheme", fix=f"use one of {', '.join(_SCHEMES)}")
    if parts.username or parts.password or "@" in parts.netloc:
        raise UsageError("the object tier's URL holds credentials", fix="put them into the environment instead")
    parameters = _parameters(parts)
    obstore = require("obstore.store", extra="s3", purpose="the object tier")
    prefix = unquote(parts.path).strip("/")
    name = f"{parts.scheme}://{parts.netloc}{parts.path}"
    if parts.scheme == "file":
        return _local(obstore, Path(unquote(parts.path)), name)
    if parts.scheme == "memory":
        return Backend(_memory(obstore, parts.netloc), prefix, name, keeps_buffers=True)
    if not parts.netloc:
        raise UsageError(f"the object tier's URL {name!r} names no bucket")
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=longest_s),
        "connect_timeout": timedelta(seconds=timeout_s),
        "allow_http": parameters.get("endpoint", "").startswith("http://"),
    }
    if "ca" in parameters:
        client["root_certificate"] = _certificate(parameters["ca"])
    backoff = {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(milliseconds=200), "base": 2}
    retry = {"max_retries": 2, "retry_timeout": timedelta(seconds=timeout_s), "backoff": backoff}
    make = {"s3": _s3, "gs": _gcs, "az": _azure}[parts.scheme]
    store = make(obstore, parts.netloc, parameters, {"client_options": client, "retry_config": retry})
    return Backend(store, prefix, name)


def _parameters(parts: SplitResult) -> dict[str, str]:
    known = _PARAMETERS[parts.scheme]
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    for given in parameters:
        if given not in known:
            # The value is not repeated: it may be a secret that does not belong there.
            allowed = ", ".join(sorted(known)) or "none"
            raise UsageError(f"the object tier's URL has an unknown parameter {given!r}", fix=f"known: {allowed}")
    return parameters


def _s3(obstore: Any, bucket: str, parameters: dict[str, str], common: dict[str, Any]) -> object:  # noqa: ANN401
    options: dict[str, Any] = dict(common)
    if "endpoint" in parameters:
        options["endpoint"] = parameters["endpoint"]
    if "region" in parameters:
        options["region"] = parameters["region"]
    # Signing a body hashes every byte, here and there. Over TLS that proves nothing more; over plain HTTP answers are
    # unprotected anyway. Our checksums find accidents.
    options["unsigned_payload"] = True
    path_style = parameters.get("path_style", "true" if "endpoint" in parameters else "false")
    if path_style not in {"true", "false"}:
        raise UsageError(f"path_style must be true or false, not {path_style!r}")
    return obstore.S3Store(bucket, virtual_hosted_style_request=path_style == "false", **options)


def _gcs(obstore: Any, bucket: str, parameters: dict[str, str], common: dict[str, Any]) -> object:  # noqa: ANN401
    options: dict[str, Any] = dict(common)
    if "endpoint" in parameters:
        options["url"] = parameters["endpoint"]
    return obstore.GCSStore(bucket, **options)


def _azure(obstore: Any, container: str, parameters: dict[str, str], common: dict[str, Any]) -> object:  # noqa: ANN401
    options: dict[str, Any] = dict(common)
    if "endpoint" in parameters:
        options["endpoint"] = parameters["endpoint"]
    if "account" in parameters:
        options["account_name"] = parameters["account"]
    return obstore.AzureStore(container, **options)


def _certificate(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the certificates in {path}", why=error.strerror) from error


def _local(obstore: Any, directory: Path, name: str) -> Backend:  # noqa: ANN401
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot use the directory {directory}", why=error.strerror) from error
    return Backend(obstore.LocalStore(directory), "", name, ordered=False)


_memories: Final[dict[str, object]] = {}
_memories_lock: Final = threading.Lock()


def _memory(obstore: Any, name: str) -> object:  # noqa: ANN401
    """Return the store of that name in this process: what one replica stores there, another finds."""
    with _memories_lock:
        if name not in _memories:
            _memories[name] = obstore.MemoryStore()
        return _memories[name]
