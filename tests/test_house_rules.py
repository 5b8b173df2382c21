"""House rules that a linter does not know: sizes of files and functions, imports of the base package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES_MAX = 400
TEST_FILE_LINES_MAX = 500  # the cases of one subject stay together
FUNCTION_LINES_MAX = 70

LONGER_FILES: dict[str, str] = {}
"""Files that may be longer, each with its reason. Prefer splitting."""

BASE_MODULES = (
    "warmtier", "warmtier.cli.app", "warmtier.cli.serve", "warmtier.cli.config", "warmtier.cli.demo",
    "warmtier.config.assemble", "warmtier.config.load", "warmtier.config.reference", "warmtier.bench.evict",
    "warmtier.bench.server", "warmtier.report.evict", "warmtier.engines.vllm.launch", "warmtier.engines.vllm.plugin",
    "warmtier.tiering.cache", "warmtier.policy.registry",
)  # fmt: skip
OPTIONAL = (
    "torch", "vllm", "transformers", "safetensors", "aiohttp", "prometheus_client", "scipy", "jinja2", "matplotlib",
    "obstore", "redis", "polars",
)  # fmt: skip


def sources() -> list[Path]:
    return sorted(path for part in ("src", "tests", "benchmarks", "scripts") for path in (ROOT / part).rglob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_short(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    text = path.read_text()
    limit = TEST_FILE_LINES_MAX if name.startswith("tests/") else FILE_LINES_MAX
    if name not in LONGER_FILES:
        assert text.count("\n") <= limit, f"{name}: split it, or list it in LONGER_FILES with a reason"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{name}:{node.lineno} {node.name} has {lines} lines"


def test_listed_exceptions_are_still_needed() -> None:
    for name in LONGER_FILES:
        assert (ROOT / name).read_text().count("\n") > FILE_LINES_MAX, f"{name} is short now; take it off the list"


def test_the_base_package_imports_without_optional_packages() -> None:
    code = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"blocked: {{name}}", name=name)
sys.meta_path.insert(0, Blocker())
import importlib
for module in {BASE_MODULES!r}:
    importlib.import_module(module)
print("imported", len({BASE_MODULES!r}))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == f"imported {len(BASE_MODULES)}"


def test_every_package_has_a_docstring_or_is_empty() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        assert not text.strip() or ast.get_docstring(ast.parse(text)), (
            f"{path.relative_to(ROOT)} says nothing about itself"
        )
