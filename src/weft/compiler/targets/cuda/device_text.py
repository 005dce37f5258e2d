"""Kernels for cards that are written in LLVM's language: what the loop language does not say.

A block's threads, its shared memory and its barrier are the card's own; the rest is the builder's.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.targets.cuda.emit import LAYOUT
from weft.compiler.targets.cuda.machine import TRIPLE
from weft.compiler.targets.cuda.teams import DECLARATIONS
from weft.compiler.targets.llvm.ir_builder import IRBuilder
from weft.core.records import frozen

__all__ = ["DeviceBuilder", "TextKernel"]


@frozen(slots=False)
class TextKernel:
    """A kernel as a module in LLVM's language."""

    name: str
    text: str
    threads: int
    parameters: int  # how many: pointers, and integers of 64 bits
    shared_bytes: int = 0  # that a launch asks for


class DeviceBuilder(IRBuilder):
    """A kernel's function; parameters are pointers and integers of 64 bits."""

    def __init__(self, name: str, parameters: Sequence[str], threads: int, blocks: int = 1) -> None:
        """`blocks`, where given, are to fit into the registers of a multiprocessor."""
        super().__init__(name, parameters)
        self.name, self.threads = name, threads
        self.symbol = f"@{name}"
        resident = f' "nvvm.minctasm"="{blocks}"' if blocks else ""
        self.head = (
            f"define ptx_kernel void @{name}({', '.join(parameters)}) "
            f'nounwind "nvvm.maxntid"="{threads}"{resident} {{'
        )
        self._globals: list[str] = []
        self._dynamic = 0
        """Floats of shared memory that a launch asks for."""
        self.thread = self._special_register("tid")
        self.block_number = self._special_register("ctaid")

    def _special_register(self, name: str) -> str:
        found = self.put(f"call i32 @llvm.nvvm.read.ptx.sreg.{name}.x()", "i32")
        return self.put(f"zext i32 {found} to i64")

    def shared_array(self, kind: str, count: int) -> str:
        """The address of shared memory for so many values of a type."""
        name = f'@"{self.name}.shared{len(self._globals)}"'
        self._globals.append(
            f"{name} = internal addrspace(3) global [{count} x {kind}] poison, align 16"
        )
        return self.put(f"addrspacecast ptr addrspace(3) {name} to ptr", "ptr")

    def dynamic_array(self, floats: int) -> str:
        """The address of shared memory for so many floats, of that which a launch asks for."""
        name = f"@{self.name}_dynamic"
        if not self._dynamic:
            self._globals.append(f"{name} = external addrspace(3) global [0 x float], align 16")
        start = self.put(f"addrspacecast ptr addrspace(3) {name} to ptr", "ptr")
        place, self._dynamic = self._dynamic, self._dynamic + -(-floats // 4) * 4
        return self.at("float", start, place)

    def wait(self) -> None:
        """No thread goes on before all of the block are here."""
        self.do("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")

    def kernel(self) -> TextKernel:
        """The finished kernel."""
        header = (f'target datalayout = "{LAYOUT}"', f'target triple = "{TRIPLE}"')
        parts = (*header, *self._globals, *DECLARATIONS, *sorted(self.declared), self.definition)
        text = "\n".join([*parts, ""])
        return TextKernel(self.name, text, self.threads, len(self.parameters), 4 * self._dynamic)
