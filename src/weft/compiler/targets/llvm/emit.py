"""A kernel as the text of an LLVM function: loops in vectors, accumulators in their fixed order.

The function is `void name(ptr buffers, ptr sizes, i64 begin, i64 end)`: an array of pointers, an
array of int64s, and the part of the parallel loop to run.

>>> from weft.compiler.targets.cpu.machine import host
>>> from weft.core.dtypes import float32
>>> from weft.ir.loops import For, Kernel, Store
>>> from weft.ir.scalars import Buffer, index, size
>>> x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
>>> copy = Kernel("copy", (x, y), ("n",), (For(i, size("n"), (Store(y, i, x[i]),)),))
>>> 'define void @"weft.copy"(ptr' in emit_module([copy], host(width=1))
True
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.targets.llvm.accumulation import LONGEST, Accumulation
from weft.compiler.targets.llvm.blocks import Body
from weft.compiler.targets.llvm.instructions import constants, declarations
from weft.compiler.targets.llvm.machine import Machine
from weft.compiler.targets.llvm.prefetching import Touch, plan_prefetch
from weft.compiler.targets.llvm.values import Lanes
from weft.ir.loops import (
    Accumulate,
    For,
    Kernel,
    Let,
    Scratch,
    Statement,
    Store,
    has_loops,
    walk,
    written_buffers,
)
from weft.ir.scalars import Scalar, size

_UNROLLED = ((12, 4), (64, 2))
"""Instructions of a vector loop's body up to which it is written so many times."""
_LOCAL_BYTES = 16384
"""Scratch memory up to this size is on the stack."""


def emit_module(kernels: Sequence[Kernel], machine: Machine) -> str:
    """The text of a module with a function for each kernel."""
    functions = [Emitter(kernel, machine) for kernel in kernels]
    text = [line for each in functions for line in each.run()]
    externals = {external for each in functions for external in each.values.function.externals}
    tables = {k: v for each in functions for k, v in each.values.function.tables.items()}
    head = [f'target triple = "{machine.triple}"', *declarations(externals), *constants(tables)]
    if any(kernel.scratch for kernel in kernels):
        head += ["declare ptr @malloc(i64)", "declare void @free(ptr)"]
    return "\n".join([*head, *text, ""])


def is_local(scratch: Scratch) -> bool:
    """Whether scratch memory of a kernel is on the stack."""
    width, count = scratch.buffer.dtype.itemsize, scratch.count
    return count.op == "const" and int(count.detail) * width <= _LOCAL_BYTES


def symbol_name(kernel_name: str) -> str:
    """The name of a kernel's function, which is no name of the C library's."""
    return f"weft.{kernel_name}"


class Emitter(Accumulation):
    """Writes the statements of one kernel."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        super().__init__(machine)
        self.kernel = kernel
        self.freed: list[str] = []
        self.ahead: dict[int, tuple[Touch, ...]] = {}
        """What a loop fetches ahead, by its identity."""

    def run(self) -> list[str]:
        """The lines of the function."""
        self._arguments()
        self.body(self.kernel.body)
        body = self.values.leave()
        name = f'@"{symbol_name(self.kernel.name)}"'
        head = f"define void {name}(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) nounwind {{"
        freed = [f"  call void @free(ptr {pointer})" for pointer in self.freed]
        return [head, "entry:", *self.entry, *body, *freed, "  ret void", "}"]

    def _arguments(self) -> None:
        lines = self.values.lines
        for position, name in enumerate(self.kernel.sizes):
            place = lines.put(f"getelementptr i64, ptr %sizes, i64 {position}")
            self.values.define(size(name), (lines.put(f"load i64, ptr {place}, align 8"),))
        for position, buffer in enumerate(self.kernel.buffers):
            place = lines.put(f"getelementptr ptr, ptr %buffers, i64 {position}")
            self.values.pointers[buffer] = lines.put(
                f"load ptr, ptr {place}, align {self.machine.address_bytes}"
            )
        for scratch in self.kernel.scratch:
            self.values.pointers[scratch.buffer] = self._scratch(scratch)

    def _scratch(self, scratch: Scratch) -> str:
        width, count = scratch.buffer.dtype.itemsize, scratch.count
        if is_local(scratch):
            return self.local(f"[{max(1, count.detail)} x i{8 * width}]")
        lines = self.values.lines
        total = lines.put(f"mul i64 {self.values.scalar(count)}, {width}")
        # one vector more, as malloc(0) may be no memory at all
        pointer = lines.put(f"call ptr @malloc(i64 {lines.put(f'add i64 {total}, 64')})")
        self.freed.append(pointer)
        return pointer

    def body(self, body: tuple[Statement, ...]) -> None:
        """Write statements."""
        rest = list(body)
        while rest:
            statement = rest.pop(0)
            if rest and self.values.are_pairs(statement, rest[0]):
                self.values.store_pairs(statement, rest.pop(0))
                continue
            match statement:
                case Let(variable, value):
                    self._let(variable, value)
                case Store(buffer, offset, value, where):
                    self.values.store(buffer, offset, value, where)
                case For():
                    self._for(statement)
                case Accumulate():
                    self.accumulate(statement)

    def _let(self, variable: Scalar, value: Scalar) -> None:
        found = self.values.value(self.values.expand(value))
        self.values.define(variable, found.names, found.width)

    def _for(self, loop: For) -> None:
        if loop.kind == "unrolled":
            self._write_unrolled(loop)
            return
        start, stop = "0", self.values.scalar(loop.extent)
        if loop.is_parallel:
            start, stop = "%begin", "%end"
        write = self._vector_for if loop.is_vector and self.machine.width > 1 else self._serial_for
        outer, self.in_vectors = self.in_vectors, self.in_vectors or loop.is_vector
        self.guard_range(
            start, stop, written_buffers(loop.body), lambda: write(loop, start, stop), []
        )
        self.in_vectors = outer

    def _write_unrolled(self, loop: For) -> None:
        writes = written_buffers(loop.body)
        for i in range(int(loop.extent.detail)):
            self.values.enter(writes)
            self.values.define(loop.index, (str(i),))
            self.body(loop.body)
            text = self.values.leave()
            self.values.lines.text += text

    def _serial_for(self, loop: For, start: str, stop: str) -> list[str]:
        plan = (
            plan_prefetch(loop, self.work) if loop.is_parallel and self.machine.width > 1 else None
        )
        if plan is not None:
            self.ahead[id(plan[0])] = plan[1]
        body = self._scalar_body(loop)
        return self.loop(start, stop, 1, written_buffers(loop.body), body, [], runs=True)

    def _vector_for(self, loop: For, start: str, stop: str) -> list[str]:
        width = self.machine.width
        extent = loop.extent.detail if loop.extent.op == "const" and start == "0" else None
        count = self._vectors_per_step(loop)
        while extent is not None and count > 1 and extent < count * width:
            count //= 2
        writes = written_buffers(loop.body)
        done = start
        for vectors in (count, 1) if count > 1 and not self.machine.masked else (count,):
            if extent is not None and extent - int(done) < width * vectors:
                continue
            until = self.end_of_whole_steps(done, stop, width * vectors, extent)
            body = self._vector_body(loop, width, vectors)
            self.loop(done, until, width * vectors, writes, body, [])
            done = until
        if done == str(extent):
            return []
        if self.machine.masked:
            return self.loop(done, stop, width, writes, self._masked_body(loop, width, stop), [])
        return self.loop(done, stop, 1, writes, self._scalar_body(loop), [])

    def _vectors_per_step(self, loop: For) -> int:
        """How many vectors a step takes: more of shorter bodies, for latency."""
        work = self.work(loop)
        if has_loops(loop.body):
            return self._columns(loop, work)
        return next((count for most, count in _UNROLLED if work <= most), 1)

    def _columns(self, loop: For, work: int) -> int:
        """Vectors of a loop around accumulations: as long a stretch of rows as registers hold."""
        carried = sum(len(s.updates) for s in walk(loop.body) if isinstance(s, Accumulate))
        if carried == 0 or work > LONGEST:
            return 4
        registers = 8 if self.machine.width == 8 else 16
        return max(1, 1 << (registers // carried).bit_length() - 1)

    def _vector_body(self, loop: For, width: int, count: int) -> Body:
        def body(i: str, _: list[str]) -> list[str]:
            lanes = Lanes(loop.index, width, self.bases(i, width, count))
            self.in_lanes(lanes, lambda: self._with_prefetches(loop))
            return []

        return body

    def _with_prefetches(self, loop: For) -> None:
        self.body(loop.body)
        for touch in self.ahead.get(id(loop), ()):
            self.values.prefetch(*touch)

    def _masked_body(self, loop: For, width: int, stop: str) -> Body:
        def body(i: str, _: list[str]) -> list[str]:
            mask = self.mask(i, stop, width)
            lanes = Lanes(loop.index, width, (i,), (mask,))
            self.in_lanes(lanes, lambda: self.body(loop.body))
            return []

        return body

    def _scalar_body(self, loop: For) -> Body:
        def body(i: str, _: list[str]) -> list[str]:
            self.values.define(loop.index, (i,))
            self.body(loop.body)
            return []

        return body
