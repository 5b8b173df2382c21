"""Generated pages are what the code says today."""

from __future__ import annotations

from pathlib import Path

from warmtier.config.reference import json_schema, markdown, sections
from warmtier.config.schema import WarmtierConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_configuration_page_is_up_to_date() -> None:
    assert (DOCS / "reference" / "config.md").read_text() == markdown(), "run `make docs`"


def test_every_knob_is_described() -> None:
    for path, model in sections(WarmtierConfig):
        assert model.__doc__, path
        for name, field in model.model_fields.items():
            assert field.description, (*path, name)


def test_defaults_carry_their_units_in_the_schema() -> None:
    definitions = json_schema()["$defs"]
    assert isinstance(definitions, dict)
    assert definitions["Engine"]["properties"]["log_interval"]["default"] == "1min"
    assert definitions["FileTier"]["properties"]["segment_size"]["default"] == "256MiB"
