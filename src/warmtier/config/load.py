"""Where configuration comes from: default < file < ``WARMTIER_SECTION__KEY`` < flag, each value with its source.

Errors name the place: line and column of the YAML file, the variable or the flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from warmtier.config import parse
from warmtier.config.schema import WarmtierConfig
from warmtier.core.errors import ConfigError

ENV_PREFIX: Final = "WARMTIER_"
_SEPARATOR: Final = "__"
_DEPTH_MAX: Final = 8  # more than the schema has; an alias to its own ancestor would never end

KeyPath = tuple[str | int, ...]


@dataclass(slots=True)
class Layers:
    """Values merged so far, and where each was written. Later layers win, key by key."""

    data: dict[str, object] = field(default_factory=dict)
    places: dict[KeyPath, str] = field(default_factory=dict)

    def set(self, path: KeyPath, value: object, place: str) -> None:
        """Set one value, making the sections above it."""
        section = self.data
        for depth, part in enumerate(path[:-1]):
            inner = section.get(str(part))
            if not isinstance(inner, dict):
                inner = {}
                section[str(part)] = inner
                self.places[path[: depth + 1]] = place
            section = inner
        section[str(path[-1])] = value
        self.places[path] = place

    def place(self, path: KeyPath) -> str | None:
        """Return where ``path`` was written, or the section nearest above it that was."""
        for depth in range(len(path), 0, -1):
            if (found := self.places.get(path[:depth])) is not None:
                return found
        return None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and the source of each value that is not a default."""

    config: WarmtierConfig
    places: Mapping[KeyPath, str]

    def source(self, *path: str | int) -> str:
        """Return where the value at ``path`` comes from; ``"default"`` when nobody set it."""
        return self.places.get(path, "default")


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, tuple[KeyPath, object]] | None = None,
) -> Loaded:
    """Merge the sources and validate the result. ``flags`` maps a flag's name to its key path and value.

    Raises ConfigError with the place of every value that is wrong.
    """
    layers = Layers()
    if file is not None:
        _read_file(file, layers)
    _read_environment(environ or {}, layers)
    for name, (path, value) in (flags or {}).items():
        layers.set(path, value, name)
    if "host" not in layers.data:
        fix = "give --host-tier SIZE, or host.capacity in the file"
        raise ConfigError("host.capacity: missing, and it has no default", fix=fix)
    config = parse.validate(WarmtierConfig, layers.data, layers.place)
    return Loaded(config, layers.places)


def _read_file(file: Path, layers: Layers) -> None:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read", why=str(error)) from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise ConfigError(f"{place}: not YAML", why=error.problem) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not YAML", why=str(error)) from error
    if root is None:
        return
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{_place(file, root)}: expected sections such as `host:`, got something else")
    _read_mapping(file, root, (), layers)


def _read_mapping(file: Path, node: yaml.MappingNode, path: KeyPath, layers: Layers) -> None:
    if len(path) >= _DEPTH_MAX:
        raise ConfigError(f"{_place(file, node)} {parse.dotted(path)}: nested too deeply")
    seen: dict[str, str] = {}
    for key_node, value_node in node.value:
        name, place = str(key_node.value), _place(file, key_node)
        if name in seen:
            raise ConfigError(f"{place} {parse.dotted((*path, name))}: given twice", why=f"first at {seen[name]}")
        seen[name] = place
        if isinstance(value_node, yaml.MappingNode):
            layers.set((*path, name), {}, place)
            _read_mapping(file, value_node, (*path, name), layers)
        else:
            layers.set((*path, name), _construct(file, value_node), place)


def _construct(file: Path, node: yaml.Node) -> object:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except yaml.YAMLError as error:
        raise ConfigError(f"{_place(file, node)}: not a value", why=str(error)) from error
    finally:
        loader.dispose()


def _place(file: Path, node: yaml.Node) -> str:
    mark = node.start_mark
    return f"{file}:{mark.line + 1}:{mark.column + 1}"


def _read_environment(environ: Mapping[str, str], layers: Layers) -> None:
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX) or _SEPARATOR not in variable:
            continue
        path = tuple(part.lower() for part in variable.removeprefix(ENV_PREFIX).split(_SEPARATOR))
        layers.set(path, _env_value(variable, environ[variable]), variable)


def _env_value(variable: str, text: str) -> object:
    if text[:1] not in "{[" and text != "null":
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{variable}: not YAML", why=str(error)) from error
