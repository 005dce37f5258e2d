"""What code is generated for: the processor, and how wide its vectors are.

>>> host().width in (1, 4, 8, 16)
True
>>> host(width=1).width
1
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import llvmlite.binding as llvm

WIDTHS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Machine:
    """A processor: `width` is the lanes of a vector, whatever the dtype; LLVM splits wide ones.

    masked: whether the last vector of a loop is a masked one; otherwise the rest is scalar.
    half: whether there are instructions that convert float16.
    permuted: the widths of vectors of float32 that have an instruction to permute them by index.
    """

    triple: str
    processor: str
    features: str
    width: int
    masked: bool
    half: bool
    permuted: tuple[int, ...] = ()


def host(width: int | None = None) -> Machine:
    """This machine, with vectors of its own width or of another one."""
    machine = _host()
    if width is None or width == machine.width:
        return machine
    return replace(machine, width=width, masked=machine.masked and width > 1)


@cache
def _host() -> Machine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    triple = llvm.get_process_triple()
    has = {name for name, present in features.items() if present}
    wide = {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= has
    is_arm = triple.startswith(("aarch64", "arm64"))
    width = 16 if wide else 8 if "avx2" in has else 4 if is_arm or "sse2" in has else 1
    half = is_arm or "f16c" in has
    name = llvm.get_host_cpu_name()
    permuted = (16,) * wide + (8,) * ("avx2" in has)
    return Machine(triple, name, features.flatten(), width, wide, half, permuted)
