"""PTX: the text that the driver compiles, made of LLVM's by its NVPTX target on any machine.

>>> from weft.core.dtypes import float32
>>> from weft.ir.loops import For, Kernel, Store
>>> from weft.ir.scalars import Buffer, index, size
>>> x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
>>> body = (For(i, size("n"), (Store(y, i, x[i] * 2),), "parallel vector"),)
>>> ".entry weft_double(" in kernels_to_ptx([Kernel("double", (x, y), ("n",), body)])
True
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from threading import RLock

import llvmlite.binding as llvm

from weft.compiler.targets.cuda.emit import emit_device_module
from weft.compiler.targets.cuda.machine import TRIPLE, card
from weft.compiler.targets.llvm.machine import Machine
from weft.core.forks import wait_at_fork
from weft.ir.loops import Kernel

_lock = RLock()
wait_at_fork(_lock)


def kernels_to_ptx(kernels: Sequence[Kernel], machine: Machine | None = None) -> str:
    """The PTX of kernels, each an entry."""
    target = machine or card()
    return text_to_ptx(emit_device_module(kernels, target), target)


def text_to_ptx(text: str, machine: Machine | None = None) -> str:
    """The PTX of a module in LLVM's language."""
    target = machine or card()
    with _lock:
        _initialize()
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
        chosen = llvm.Target.from_triple(TRIPLE).create_target_machine(
            cpu=target.processor, features=target.features, opt=3, reloc="pic"
        )
        return str(chosen.emit_assembly(module))


@cache
def _initialize() -> None:
    """Load the NVPTX target, which is in every wheel of llvmlite."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
