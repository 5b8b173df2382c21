"""What vLLM must be told: the ``--kv-transfer-config`` JSON and the plain command of a configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Final

from warmtier.config.schema import WarmtierConfig, dump

CONNECTOR: Final = "OffloadingConnector"
SPEC_NAME: Final = "WarmtierSpec"
SPEC_MODULE: Final = "warmtier.engines.vllm.spec"


def kv_transfer_config(config: WarmtierConfig, blocks_per_chunk: int) -> dict[str, object]:
    """Return the object for vLLM's ``--kv-transfer-config``. ``blocks_per_chunk`` applies where the file has none."""
    return {
        "kv_connector": CONNECTOR,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": SPEC_NAME,
            "spec_module_path": SPEC_MODULE,
            "blocks_per_chunk": config.vllm.blocks_per_chunk or blocks_per_chunk,
            "warmtier": dump(config.engine_part()),
        },
    }


def compact_json(value: object) -> str:
    """Return JSON on one line, keys in the order given."""
    return json.dumps(value, separators=(",", ":"))


def shell_command(environment: dict[str, str], arguments: Sequence[str]) -> str:
    """Return the command as one line that a POSIX shell runs as it is."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*variables, shlex.join(arguments)])
