"""From pydantic's findings to errors with a place, a reason and the nearest valid name."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from warmtier.config.schema import EngineConfig
from warmtier.core.errors import ConfigError

Path = tuple[str | int, ...]
Locate = Callable[[Path], str | None]
"""Answers where a key path was written: ``kv.yaml:3:5``, a variable, a flag; None when nobody wrote it."""

M = TypeVar("M", bound=BaseModel)
REFERENCE = "docs/reference/config.md"


def dotted(path: Sequence[str | int]) -> str:
    """Return ``host.capacity`` or ``tiers[1].policy``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def nearest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name most like ``name``, or None when none is close."""
    found = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.6)
    return found[0] if found else None


def section_at(model: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the schema of the section at ``path`` below ``model``, or None where the path leaves the schema."""
    annotation: object = model
    for part in path:
        section = section_of(annotation)
        if section is not None:
            if part not in section.model_fields:
                return None
            annotation = section.model_fields[str(part)].annotation
        elif (inner := named_section_of(annotation)) is not None:
            annotation = inner  # a free name, such as a tenant's
        else:
            return None
    return section_of(annotation)


def section_of(annotation: object) -> type[BaseModel] | None:
    """Return the section type in a field's annotation, None for plain values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            if (found := section_of(part)) is not None:
                return found
    return None


def named_section_of(annotation: object) -> type[BaseModel] | None:
    """Return the section type of a mapping from names that the user chooses to sections."""
    return section_of(typing.get_args(annotation)[1]) if typing.get_origin(annotation) is dict else None


def unknown_key(model: type[BaseModel], path: Path) -> tuple[str, str]:
    """Return why and how to fix, for a key that ``model`` does not know."""
    section = section_at(model, path[:-1])
    known = list(section.model_fields) if section is not None else []
    guess = nearest(str(path[-1]), known)
    fix = f"did you mean {guess!r}? " if guess else ""
    return "unknown key", f"{fix}valid here: {', '.join(known)} ({REFERENCE})"


def _explain(model: type[BaseModel], detail: ErrorDetails) -> tuple[str, str | None]:
    if detail["type"] == "extra_forbidden":
        return unknown_key(model, detail["loc"])
    if detail["type"] == "missing":
        return "missing, and it has no default", f"set it ({REFERENCE})"
    if detail["type"] == "enum":
        expected = detail["ctx"]["expected"]
        names = [name.strip("' ") for name in expected.replace(" or ", ",").split(",")]
        guess = nearest(str(detail["input"]), names)
        return f"{detail['input']!r} is not one of {', '.join(names)}", f"did you mean {guess!r}?" if guess else None
    return detail["msg"].removeprefix("Value error, "), None


def config_error(model: type[BaseModel], error: ValidationError, locate: Locate) -> ConfigError:
    """Turn the findings into one ConfigError; the first finding leads, the rest follow as lines."""
    findings = [(detail["loc"], *_explain(model, detail)) for detail in error.errors(include_url=False)]
    if len(findings) == 1:
        path, why, fix = findings[0]
        return ConfigError(_line(path, why, locate), fix=fix)
    lines = [_line(path, why, locate) + (f"; {fix}" if fix else "") for path, why, fix in findings]
    return ConfigError("\n".join(lines))


def _line(path: Path, why: str, locate: Locate) -> str:
    place = locate(path)
    return f"{place + ' ' if place else ''}{dotted(path) or 'configuration'}: {why}"


def validate(model: type[M], data: Mapping[str, object], locate: Locate = lambda _: None) -> M:
    """Validate ``data`` against ``model``. Raises ConfigError that names every wrong place."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise config_error(model, error, locate) from error


def parse_extra_config(data: object, where: str = "kv_connector_extra_config.warmtier") -> EngineConfig:
    """Parse the ``"warmtier"`` object that the engine hands over. Raises ConfigError that names ``where``."""
    if not isinstance(data, Mapping):
        fix = 'write "warmtier": {"host": {"capacity": "16GiB"}}'
        raise ConfigError(f"{where}: expected an object, got {type(data).__name__}", fix=fix)
    return validate(EngineConfig, data, lambda _: where)
