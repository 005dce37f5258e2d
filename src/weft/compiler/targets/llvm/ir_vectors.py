"""Vectors in functions that are written with the builder: memory, masks, sums of products.

>>> from weft.core.dtypes import float32
>>> out = IRBuilder("double", ("ptr %x",))
>>> vectors = Vectors(out, float32, 4)
>>> x = vectors.load("%x")
>>> vectors.store(vectors.add(x, x), "%x")
>>> print(out.definition)
define internal void @double(ptr %x) nounwind noinline {
entry:
  %v0 = load <4 x float>, ptr %x, align 4
  %v1 = fadd <4 x float> %v0, %v0
  store <4 x float> %v1, ptr %x, align 4
  ret void
}
"""

from __future__ import annotations

from weft.compiler.targets.llvm.ir_builder import IRBuilder, Operand
from weft.compiler.targets.llvm.ir_types import Type, steps
from weft.core.dtypes import DType


class Vectors:
    """Arithmetic of vectors of a dtype; a product is added in one step where `fused`."""

    def __init__(self, out: IRBuilder, dtype: DType, lanes: int, *, fused: bool = True) -> None:
        self.out, self.type, self.fused = out, Type(dtype, lanes), fused
        self.kind, self.element, self.align = self.type.text, Type(dtype).text, dtype.itemsize

    def at(self, pointer: str, offset: Operand) -> str:
        """The address of an element."""
        return self.out.at(self.element, pointer, offset)

    def load(self, pointer: str, mask: str = "") -> str:
        """A vector in memory; with a mask, zeros where that does not hold."""
        if not mask:
            return self.out.load(self.kind, pointer, self.align)
        given = f"ptr {pointer}", f"i32 {self.align}", mask, f"{self.kind} zeroinitializer"
        name = f"llvm.masked.load.{self.type.suffix}.p0"
        return self.out.call(name, *given, result=self.kind)

    def store(self, value: str, pointer: str, mask: str = "") -> None:
        """Write a vector, or the lanes of it where a mask holds."""
        if not mask:
            self.out.store(value, pointer, self.kind, self.align)
            return
        given = f"{self.kind} {value}", f"ptr {pointer}", f"i32 {self.align}", mask
        self.out.call(f"llvm.masked.store.{self.type.suffix}.p0", *given)

    def mask(self, count: str) -> str:
        """The lanes below a count; nothing where there is one lane."""
        lanes = self.type.width
        if lanes == 1:
            return ""
        kind = f"<{lanes} x i64>"
        one = self.out.put(f"insertelement {kind} poison, i64 {count}, i64 0", kind)
        order = f"<{lanes} x i32> zeroinitializer"
        every = self.out.put(f"shufflevector {kind} {one}, {kind} poison, {order}", kind)
        return self.out.put(f"icmp slt {kind} {steps(lanes)}, {every}", self.type.mask)

    def splat(self, scalar: str) -> str:
        """A scalar in each lane."""
        return self.out.splat(scalar, self.type)

    def add(self, x: str, y: str) -> str:
        """x + y."""
        how = "fadd" if self.type.dtype.is_floating else "add"
        return self.out.put(f"{how} {self.kind} {x}, {y}", self.kind)

    def sub(self, x: str, y: str) -> str:
        """x - y."""
        return self.out.put(f"fsub {self.kind} {x}, {y}", self.kind)

    def multiply_add(self, x: str, y: str, total: str) -> str:
        """x y + total."""
        if self.type.dtype.is_floating and self.fused:
            given = [f"{self.kind} {each}" for each in (x, y, total)]
            return self.out.call(f"llvm.fma.{self.type.suffix}", *given, result=self.kind)
        how = "fmul" if self.type.dtype.is_floating else "mul"
        return self.add(total, self.out.put(f"{how} {self.kind} {x}, {y}", self.kind))

    def scale_and_add(self, factor: float, x: str, y: str | None = None) -> str:
        """factor x + y."""
        number = self.type.literal(float(self.type.dtype.numpy.type(factor)))
        if y is None:
            return self.out.put(f"fmul {self.kind} {x}, {number}", self.kind)
        if self.fused:
            return self.multiply_add(number, x, y)
        return self.add(self.scale_and_add(factor, x), y)
