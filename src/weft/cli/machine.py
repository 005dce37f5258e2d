"""`weft info`: what the machine is, and what is installed.

>>> from weft.cli.machine import facts
>>> sorted(facts())[:4]
['cache', 'cores', 'devices', 'features']
"""

from __future__ import annotations

import json
import os
import platform
import sys
from argparse import Namespace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import weft as wf

__all__ = ["facts", "info"]

PACKAGES = ("numpy", "ml_dtypes", "llvmlite")
OPTIONAL = (
    "rich", "optuna", "tensorboard", "matplotlib", "pyarrow", "pillow", "tokenizers", "datasets",
    "torch", "jax",
)  # fmt: skip
SHOWN = ("avx512", "avx2", "avx", "fma", "amx", "f16c", "sse4.2", "neon", "sve", "bf16")


def info(flags: Namespace) -> int:
    """Print the facts as a table, or as JSON."""
    machine_facts = facts()
    if flags.quiet:
        return 0
    if flags.json:
        sys.stdout.write(json.dumps(machine_facts, indent=1) + "\n")
        return 0
    width = max(map(len, machine_facts))
    for name, value in machine_facts.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        sys.stdout.write(f"{name:<{width}}  {text}\n")
    return 0


def facts() -> dict[str, Any]:
    """Versions, the processor and its features, threads, memory, devices, and the cache."""
    host = import_module("llvmlite.binding")
    features = [name for name, on in host.get_host_cpu_features().items() if on]
    return {
        "weft": wf.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "packages": [f"{name} {_version(name)}" for name in PACKAGES],
        "optional": [f"{name} {found}" for name in OPTIONAL if (found := _version(name))],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": f"{_processor()} ({host.get_host_cpu_name()})",
        "features": [name for name in features if name.startswith(SHOWN)],
        "cores": os.cpu_count() or 1,
        "threads": wf.get_num_threads(),
        "memory": _memory(),
        "devices": ["cpu", *_cards()],
        "cache": wf.settings.cache_folder or "the user's cache folder",
    }


def _cards() -> list[str]:
    """The NVIDIA cards, each with its name."""
    return [
        f"cuda:{number} ({wf.cuda.get_device_name(f'cuda:{number}')})"
        for number in range(wf.cuda.device_count())
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    """The processor's name, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return "unknown"
    return f"{total / 2**30:.1f} GiB"
