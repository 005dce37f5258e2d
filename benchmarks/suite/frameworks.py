"""What can be measured, and in which environment it is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Framework:
    """One row of the comparison: a library, used in one way."""

    title: str
    module: str
    """What is imported, and thus must be installed."""
    side: str
    """The key of its function in a workload, and the name of its `with_` file."""
    compiled: bool = False


FRAMEWORKS = {
    "weft": Framework("Weft", "weft", "weft", compiled=True),
    "torch": Framework("PyTorch", "torch", "torch"),
    "torch-compile": Framework("torch.compile", "torch", "torch", compiled=True),
    "jax": Framework("JAX", "jax", "jax", compiled=True),
    "keras": Framework("Keras (TF)", "keras", "keras"),
    "keras-xla": Framework("Keras (TF, XLA)", "keras", "keras", compiled=True),
    "onnx": Framework("ONNX Runtime", "onnxruntime", "onnx", compiled=True),
}
EAGER = {
    "weft": Framework("Weft", "weft", "weft"),
    "torch": FRAMEWORKS["torch"],
    "jax": Framework("JAX", "jax", "jax"),
    "numpy": Framework("NumPy", "numpy", "numpy"),
}
"""Those that work operation by operation, without a compiler around the step."""


def interpreters(named: Iterable[Path]) -> list[Path]:
    """Those named, this one, and those of the environments that `make bench` creates."""
    found = [*named, Path(sys.executable), *sorted(ROOT.glob(".venv-bench*/bin/python"))]
    return list(dict.fromkeys(path.absolute() for path in found))


def installed(
    named: Iterable[Path], frameworks: Mapping[str, Framework] = FRAMEWORKS
) -> dict[str, Path]:
    """For each framework that is there, the first interpreter that has it."""
    modules = sorted({framework.module for framework in frameworks.values()})
    homes: dict[str, Path] = {}
    for interpreter in interpreters(named):
        for module in _present(interpreter, modules):
            homes.setdefault(module, interpreter)
    return {n: homes[f.module] for n, f in frameworks.items() if f.module in homes}


def _present(interpreter: Path, modules: list[str]) -> list[str]:
    code = "import sys, importlib.util as u; print(*filter(u.find_spec, sys.argv[1:]))"
    command = [str(interpreter), "-c", code, *modules]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.split()
