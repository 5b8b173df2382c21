"""The flags by which commands take a configuration, and how they become one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from warmtier.config.load import KeyPath, Loaded, load
from warmtier.core.errors import UsageError

HostTierOption = Annotated[
    str | None,
    typer.Option(
        "--host-tier", metavar="SIZE", help="Host memory for KV, such as 16GiB: total over tensor-parallel ranks."
    ),
]
FileTierOption = Annotated[
    str | None,
    typer.Option("--file-tier", metavar="DIR:SIZE", help="Directory on a local disk and its bound: /mnt/kv:200GiB."),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--warmtier-config", metavar="FILE", help="YAML file with any knob of warmtier.")
]


def load_config(file: Path | None, host_tier: str | None, file_tier: str | None) -> Loaded:
    """Merge file, environment and flags. Raises ConfigError or UsageError."""
    flags: dict[str, tuple[KeyPath, object]] = {}
    if host_tier is not None:
        flags["--host-tier"] = (("host", "capacity"), host_tier)
    if file_tier is not None:
        directory, separator, capacity = file_tier.rpartition(":")
        if not separator or not directory:
            fix = "write DIR:SIZE, such as /mnt/kv:200GiB"
            raise UsageError(f"--file-tier {file_tier!r}: a directory and a size are needed", fix=fix)
        flags["--file-tier (directory)"] = (("file", "directory"), str(Path(directory).expanduser().absolute()))
        flags["--file-tier (size)"] = (("file", "capacity"), capacity)
    return load(file, os.environ, flags)
