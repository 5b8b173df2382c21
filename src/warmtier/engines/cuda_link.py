"""The link between host memory and an NVIDIA device: bandwidth with pinned memory, and where the device sits.

Imports torch only when called; nothing here runs on a machine without it.
"""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_SIZES: Final = (4 << 20, 64 << 20, 256 << 20)
_REPEATS: Final = 5
_PCI: Final = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class CudaLink:
    """(bytes, seconds) of copies each way, with the facts that explain them; None where the system does not say."""

    device: str
    numa_node: int | None
    pcie: str | None
    loads: list[tuple[int, float]]
    stores: list[tuple[int, float]]


def measure_cuda_link() -> CudaLink | None:
    """Measure the first CUDA device; None without one. Blocks for about a second."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    host = torch.empty(max(_SIZES), dtype=torch.uint8, pin_memory=True)
    device = torch.empty(max(_SIZES), dtype=torch.uint8, device="cuda")
    host.fill_(1)
    loads = [(size, _copy_s(torch, device[:size], host[:size])) for size in _SIZES]
    stores = [(size, _copy_s(torch, host[:size], device[:size])) for size in _SIZES]
    properties = torch.cuda.get_device_properties(0)
    place = _pci_place(properties)
    return CudaLink(properties.name, _numa_node(place), _pcie(place), loads, stores)


def _copy_s(torch: Any, target: Any, source: Any) -> float:  # noqa: ANN401 - torch's
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    times = []
    for _ in range(_REPEATS):
        start_s = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start_s)
    return sorted(times)[_REPEATS // 2]


def _pci_place(properties: Any) -> Path | None:  # noqa: ANN401
    numbers = [getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    known = [int(number) for number in numbers if number is not None]
    if len(known) < 3:
        return None
    place = _PCI / "{:04x}:{:02x}:{:02x}.0".format(*known)
    return place if place.is_dir() else None


def _numa_node(place: Path | None) -> int | None:
    text = _read(place, "numa_node")
    return int(text) if text is not None and text.lstrip("-").isdecimal() and int(text) >= 0 else None


def _pcie(place: Path | None) -> str | None:
    speed, width = _read(place, "current_link_speed"), _read(place, "current_link_width")
    return None if speed is None or width is None else f"{speed} x{width}"


def _read(place: Path | None, name: str) -> str | None:
    if place is None:
        return None
    try:
        return (place / name).read_text().strip()
    except OSError:
        return None
