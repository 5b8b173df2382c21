"""What the user says to ``vllm serve`` that matters to warmtier, read without importing vLLM.

vLLM accepts ``--a-b`` and ``--a_b``, ``--a=v`` and ``--a v``, dotted ``--a.key v``, unique abbreviations, and a YAML
file after ``--config``. All of these are understood here; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from warmtier.core.errors import UsageError

_OWNED: Final = ("--kv-transfer-config", "--kv-offloading-size", "--kv-offloading-backend")
# The shortest abbreviations that argparse can take for one of these.
_OWNED_STEMS: Final = ("--kv-t", "--kv-o")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag as vLLM will see it: dashed name without dotted part, its value if any, and where it was written."""

    name: str
    value: str | None
    place: str


def flag_name(argument: str) -> str:
    """Return the dashed name in ``--a_b.c=v``: ``--a-b``."""
    return "--" + argument[2:].split("=", 1)[0].split(".", 1)[0].replace("_", "-")


def read_flags(arguments: Sequence[str]) -> list[Flag]:
    """Return every long flag of the command line and of the file named by ``--config``."""
    flags = list(_command_line(arguments))
    for flag in [flag for flag in flags if flag.name == "--config" and flag.value is not None]:
        flags.extend(_config_file(Path(str(flag.value))))
    return flags


def _command_line(arguments: Sequence[str]) -> Iterator[Flag]:
    for index, argument in enumerate(arguments):
        if not argument.startswith("--") or argument == "--":
            continue
        value: str | None = None
        if "=" in argument:
            value = argument.split("=", 1)[1]
        elif index + 1 < len(arguments) and not arguments[index + 1].startswith("--"):
            value = arguments[index + 1]
        yield Flag(flag_name(argument), value, argument.split("=", 1)[0])


def _config_file(path: Path) -> Iterator[Flag]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return  # vLLM reads it too and says what is wrong with it
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield Flag(flag_name(f"--{key}"), None if value is None else str(value), f"{path}: {key}")


def refuse_owned(flags: Sequence[Flag]) -> None:
    """Raise UsageError when the user configures what warmtier must build, or turns off what it lives on."""
    for flag in flags:
        if flag.name in _OWNED or (
            flag.name.startswith(_OWNED_STEMS) and any(owned.startswith(flag.name) for owned in _OWNED)
        ):
            raise UsageError(
                f"{flag.place} cannot be combined with `warmtier serve`",
                why="an engine has one KV connector, and warmtier builds its configuration; overriding yours "
                "silently would lose what you asked for",
                fix=f"remove {flag.place}; or run plain `vllm serve` with the JSON of `warmtier config render`",
            )
        disabled = flag.name == "--no-enable-prefix-caching"
        if disabled or (flag.name == "--enable-prefix-caching" and str(flag.value).lower() == "false"):
            raise UsageError(
                f"{flag.place} cannot be combined with `warmtier serve`",
                why="tiers are found by the hashes of the prefix cache; without it every lookup is a miss",
                fix=f"remove {flag.place}",
            )


def last_value(flags: Sequence[Flag], name: str) -> str | None:
    """Return the value of the flag's last appearance, or None."""
    return next((flag.value for flag in reversed(flags) if flag.name == name), None)
