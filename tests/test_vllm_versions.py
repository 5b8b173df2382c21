"""The comparison with wheels of vLLM: it finds what is missing, and the page agrees with the installed version."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_vllm_versions", REPOSITORY / "scripts/check_vllm_versions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _wheel(path: Path, source: str) -> Path:
    wheel = path / "vllm-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/v1/kv_offload/base.py", source)
    return wheel


def test_missing_names_arguments_and_new_abstract_methods_are_found(script: ModuleType, tmp_path: Path) -> None:
    source = (
        "class OffloadingManager:\n"
        "    def lookup(self, key, context): ...\n"
        "    @abstractmethod\n"
        "    def brand_new(self): ...\n"
        "class Medium(Enum):\n"
        "    CPU = 1\n"
    )
    found = script.check(script.Package(_wheel(tmp_path, source)))
    assert found["OffloadingManager.lookup"] == "no: no argument req_context"
    assert found["OffloadingManager: abstract methods"] == "no: brand_new"
    assert found["Medium"] == "no: no STORAGE"
    assert found["TransferResult"] == "no: no TransferResult"
    assert found["KVConnectorTransferResults"] == "without: no WarmtierConnector"


def test_the_installed_version_has_everything(script: ModuleType, tmp_path: Path) -> None:
    vllm = importlib.util.find_spec("vllm")
    if vllm is None or not vllm.submodule_search_locations:
        pytest.skip("vLLM is not installed")
    root = Path(vllm.submodule_search_locations[0]).parent
    wheel = tmp_path / f"vllm-{script.installed_version()}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in {use.file for use in script.USES}:
            archive.write(root / file, file)
    package = script.Package(wheel)
    assert set(script.check(package).values()) == {"yes"}
    page = (REPOSITORY / "docs/reference/vllm-versions.md").read_text()
    assert f"vLLM {package.version} (run)" in page
    for name in script.check(package):
        assert f"| `{name}` |" in page, "run scripts/check_vllm_versions.py again"
