"""NVIDIA cards: whether there are any, what they hold, and waiting for them.

Tensors are moved with `x.to("cuda")` or made there with `device="cuda"`; what is computed of them
is computed there. Nothing is needed but the driver.

>>> import weft as wf
>>> wf.cuda.device_count() > 0 or not wf.cuda.is_available()
True
"""

from __future__ import annotations

from typing import Any

from weft.compiler.targets.cuda import dlpack
from weft.compiler.targets.cuda.array import CudaArray, compute_stream, filler, place_of, uploader
from weft.compiler.targets.cuda.device import MemoryStats, device_count
from weft.compiler.targets.cuda.device import device as card
from weft.compiler.targets.cuda.driver import is_available
from weft.compiler.targets.cuda.faults import raise_faults
from weft.compiler.targets.cuda.staging import Staging
from weft.core.arrays import EXCHANGES, add_device
from weft.core.devices import DEVICES, Device, as_device
from weft.core.errors import DeviceError
from weft.core.names import missing_from

__all__ = ["MemoryStats", "Staging", "device_count", "get_device_name", "is_available",
           "memory_stats", "release_memory", "reset_peak_memory", "synchronize"]  # fmt: skip


def find_card(name: str) -> Device:
    """The device of a name such as `cuda` or `cuda:1`; an error where there is no such card."""
    _, colon, number = name.partition(":")
    if colon and not number.isdigit():
        raise DeviceError(
            "device",
            "a card is named by its number",
            expected="'cuda', or 'cuda:0', 'cuda:1' and so on",
            got={"device": name},
            fix="device='cuda:0'",
        )
    ordinal = int(number or 0)
    card(ordinal)  # which says what is wrong where there is none
    place = place_of(ordinal)
    if place.kind not in DEVICES:
        add_device(place, CudaArray, uploader(ordinal), computing=True, fill=filler(ordinal))
        EXCHANGES["cuda"] = dlpack
    return place


def synchronize(device: Any = "cuda") -> None:
    """Wait for all that was started on a card; an error of its kernels is raised here."""
    number = _number_of(device)
    dlpack.collect_dropped(wait=True)
    compute_stream(number).synchronize()
    raise_faults(number)


def memory_stats(device: Any = "cuda") -> MemoryStats:
    """Bytes of a card: in all, free, held by the process, of these in use now and at most."""
    number = _number_of(device)
    stats, arena = card(number).memory_stats(), compute_stream(number).arena
    return MemoryStats(stats.total, stats.free, stats.reserved, arena.used, arena.peak)


def reset_peak_memory(device: Any = "cuda") -> None:
    """Let `memory_stats().peak` count from what is in use now."""
    arena = compute_stream(_number_of(device)).arena
    arena.peak = arena.used


def get_device_name(device: Any = "cuda") -> str:
    """What a card calls itself."""
    return card(_number_of(device)).name


def release_memory(device: Any = "cuda") -> None:
    """Give memory that no tensor holds back to the system."""
    number = _number_of(device)
    compute_stream(number).arena.release()
    card(number).release_memory()


def _number_of(device: Any) -> int:
    """The number of a card; an error for another device."""
    place = as_device(device)
    if place.family != "cuda":
        raise DeviceError(
            "cuda",
            "this is no card",
            expected="'cuda', or 'cuda:0', 'cuda:1' and so on",
            got={"device": str(place)},
            fix="leave device= out, or pass device='cuda:0'",
        )
    return place.index


__getattr__ = missing_from("wf.cuda", __all__)
