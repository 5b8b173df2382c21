"""What a shared tier on Mooncake Store is told."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from warmtier.core.errors import UsageError
from warmtier.core.units import parse_size

_PARAMETERS: Final = {"host", "protocol", "devices", "segment", "metadata"}
_DEFAULT_PORT: Final = 50051


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeOptions:
    """How one replica uses a cluster. ``segment_bytes`` is the memory that this process lends; 0 lends none.

    A chunk must fit into ``lane_bytes``; each of ``lanes`` calls at once has that much memory. A call may take
    ``timeout_s`` plus its bytes at ``slowest_bytes_per_s``.
    """

    master: str
    host: str
    protocol: str = "tcp"
    devices: str = ""
    metadata: str = "P2PHANDSHAKE"
    segment_bytes: int = 0
    lanes: int = 3
    lane_bytes: int = 64 << 20
    timeout_s: float = 2.0
    slowest_bytes_per_s: int = 64 << 20
    open_timeout_s: float = 15.0


def parse_mooncake(url: str) -> MooncakeOptions:
    """Return the options of ``mooncake://master:port?host=&protocol=tcp|rdma&devices=&segment=4GiB&metadata=``.

    ``host`` is the address of this machine that others reach; by default the one that reaches the master.
    Raises UsageError.
    """
    parts = urlsplit(url)
    if parts.scheme != "mooncake" or not parts.hostname or "@" in parts.netloc:
        raise UsageError("the shared tier's URL is not of the form mooncake://master:port")
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    for given in parameters:
        if given not in _PARAMETERS:
            known = ", ".join(sorted(_PARAMETERS))
            raise UsageError(f"the shared tier's URL has an unknown parameter {given!r}", fix=f"known: {known}")
    protocol = parameters.get("protocol", "tcp")
    if protocol not in {"tcp", "rdma"}:
        raise UsageError(f"protocol must be tcp or rdma, not {protocol!r}")
    port = parts.port or _DEFAULT_PORT
    return MooncakeOptions(
        master=f"{parts.hostname}:{port}",
        host=parameters.get("host") or _local_address(parts.hostname, port),
        protocol=protocol,
        devices=parameters.get("devices", ""),
        metadata=parameters.get("metadata", "P2PHANDSHAKE"),
        segment_bytes=parse_size(parameters.get("segment", "0B")),
    )


def _local_address(host: str, port: int) -> str:
    """Return our address towards ``host``; sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
