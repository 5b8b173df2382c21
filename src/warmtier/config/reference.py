"""The schema as documents: JSON Schema for editors, a Markdown page for people. Both are generated from the code."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from warmtier.config.fields import ExactDuration, ExactSize, write_duration, write_size
from warmtier.config.parse import named_section_of, section_of
from warmtier.config.schema import WarmtierConfig

_HEAD: Final = """# Configuration

Generated from the schema by `make docs`; a test fails when this page is out of date.

One YAML file (`warmtier serve MODEL --warmtier-config kv.yaml`), the environment and flags give the same knobs. Later
wins: default, file, `WARMTIER_SECTION__KEY`, flag. Inside vLLM the same sections (without `vllm`) are the object
`"warmtier"` of `kv_connector_extra_config`; `warmtier config render kv.yaml` prints it. `warmtier config validate`
names the place of every mistake, and where each value comes from. `warmtier config schema` prints JSON Schema.

Sizes are written with a unit (`16GiB`, `500MB`), times too (`250ms`, `2h`). Sizes of memory are totals over
tensor-parallel ranks, per data-parallel engine. An unknown key is an error.

```yaml
host:
  capacity: 16GiB
file:
  directory: /mnt/kv
  capacity: 200GiB
```
"""


class _Schema(GenerateJsonSchema):
    """Writes defaults as people write them."""

    def encode_default(self, dft: Any) -> Any:  # noqa: ANN401 - pydantic's signature
        """Return the default with its unit."""
        return _written(dft) if isinstance(dft, ExactSize | ExactDuration) else super().encode_default(dft)


def json_schema() -> dict[str, object]:
    """Return the JSON Schema of the configuration file."""
    return WarmtierConfig.model_json_schema(schema_generator=_Schema)


def _written(value: ExactSize | ExactDuration) -> str:
    return write_size(value) if isinstance(value, ExactSize) else write_duration(value)


def markdown() -> str:
    """Return the reference page."""
    return _HEAD + "".join(_section(path, model) for path, model in sections(WarmtierConfig))


def sections(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    """Yield every section below ``model`` with its key path, in the order of the schema."""
    for name, field in model.model_fields.items():
        inner = section_of(field.annotation)
        if (named := named_section_of(field.annotation)) is not None:
            yield (*path, name, "NAME"), named
        if inner is not None:
            yield (*path, name), inner
            yield from sections(inner, (*path, name))


def _section(path: tuple[str, ...], model: type[BaseModel]) -> str:
    lines = [
        f"\n## {'.'.join(path)}\n",
        f"\n{(model.__doc__ or '').strip()}\n",
        "\n| key | default | what |\n|---|---|---|\n",
    ]
    for name, field in model.model_fields.items():
        if (section_of(field.annotation) or named_section_of(field.annotation)) is None:
            lines.append(f"| `{name}` | {_default(field)} | {_what(field)} |\n")
    return "".join(lines)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, ExactSize | ExactDuration):
        return f"`{_written(value)}`"
    if value is None:
        return "`null`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _what(field: FieldInfo) -> str:
    choices = [member.value for member in _enum_of(field.annotation)]
    text = (field.description or "").replace("|", "\\|")
    missing = [choice for choice in choices if choice not in text]
    return f"{text} ({', '.join(f'`{c}`' for c in choices)})" if missing else text


def _enum_of(annotation: object) -> list[enum.Enum]:
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return list(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [member for part in typing.get_args(annotation) for member in _enum_of(part)]
    return []


def write(path: Path) -> None:
    """Write the reference page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown())
