"""What vLLM must be told: the ``--kv-transfer-config`` JSON and the plain command of a configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Final

from warmtier.config.schema import Connector, WarmtierConfig, dump

SPEC_NAME: Final = "WarmtierSpec"
SPEC_MODULE: Final = "warmtier.engines.vllm.spec"
_CONNECTORS: Final[dict[Connector, dict[str, object]]] = {
    Connector.OFFLOADING: {"kv_connector": "OffloadingConnector"},
    Connector.WARMTIER: {
        "kv_connector": "WarmtierConnector",
        "kv_connector_module_path": "warmtier.engines.vllm.connector",
        "kv_load_failure_policy": "recompute",
    },
}


def kv_transfer_config(config: WarmtierConfig, blocks_per_chunk: int) -> dict[str, object]:
    """Return the object for vLLM's ``--kv-transfer-config``. ``blocks_per_chunk`` applies where the file has none."""
    extra = {
        "spec_name": SPEC_NAME,
        "spec_module_path": SPEC_MODULE,
        "blocks_per_chunk": config.vllm.blocks_per_chunk or blocks_per_chunk,
        "warmtier": dump(config.engine_part()),
    }
    return {**_CONNECTORS[config.vllm.connector], "kv_role": "kv_both", "kv_connector_extra_config": extra}


def compact_json(value: object) -> str:
    """Return JSON on one line, keys in the order given."""
    return json.dumps(value, separators=(",", ":"))


def shell_command(environment: dict[str, str], arguments: Sequence[str]) -> str:
    """Return the command as one line that a POSIX shell runs as it is."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*variables, shlex.join(arguments)])
