"""A kernel as the text of an LLVM function: loops in vectors, accumulators in their fixed order.

The function is `void name(ptr buffers, ptr sizes, i64 begin, i64 end)`: an array of pointers, an
array of int64s, and the part of the parallel loop to run.

>>> from weft.compiler.llvm.machine import host
>>> from weft.core.dtypes import float32
>>> from weft.ir.loops import For, Kernel, Store
>>> from weft.ir.scalars import Buffer, index, size
>>> x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
>>> copy = Kernel("copy", (x, y), ("n",), (For(i, size("n"), (Store(y, i, x[i]),)),))
>>> 'define void @"weft.copy"(ptr' in emit_module([copy], host(width=1))
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.compiler.llvm.instructions import TABLE, declarations, select
from weft.compiler.llvm.machine import Machine
from weft.compiler.llvm.values import Lanes, Values
from weft.compiler.llvm.writing import Function, Lines, Type, steps, widened
from weft.core.dtypes import DType
from weft.ir.loop_reference import identity
from weft.ir.loops import (
    PARTIALS,
    Accumulate,
    For,
    Kernel,
    Let,
    Scratch,
    Statement,
    Store,
    Update,
    expressions,
    has_loops,
    walk,
    written,
)
from weft.ir.scalars import Buffer, Scalar, const, size

_UNROLLED = ((12, 4), (48, 2))
"""Instructions of a vector loop's body up to which it is written so many times."""
_SHORT = 16
"""Instructions of an accumulation's body up to which it is written for 64 elements."""
_MANY = 8
"""Vectors of partial results beyond which they are kept in memory."""
_LOCAL_BYTES = 16384
"""Scratch memory up to this size is on the stack."""

Vectors = tuple[str, ...]
Body = Callable[[str, list[str]], list[str]]


def emit_module(kernels: Sequence[Kernel], machine: Machine) -> str:
    """The text of a module with a function for each kernel."""
    functions = [_Emitter(kernel, machine) for kernel in kernels]
    text = [line for each in functions for line in each.run()]
    externals = {external for each in functions for external in each.values.function.externals}
    head = [f'target triple = "{machine.triple}"', *declarations(externals)]
    if any(kernel.scratch for kernel in kernels):
        head += ["declare ptr @malloc(i64)", "declare void @free(ptr)"]
    return "\n".join([*head, *text, ""])


def symbol_name(kernel_name: str) -> str:
    """The name of a kernel's function, which is no name of the C library's."""
    return f"weft.{kernel_name}"


class _Emitter:
    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        self.kernel = kernel
        self.machine = machine
        self.values = Values(machine, Function())
        self.entry: list[str] = ["  %nowhere = alloca i64, align 8", "  store i64 0, ptr %nowhere"]
        self.freed: list[str] = []

    def run(self) -> list[str]:
        """The lines of the function."""
        self._arguments()
        self._body(self.kernel.body)
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
            self.values.pointers[buffer] = lines.put(f"load ptr, ptr {place}, align 8")
        for scratch in self.kernel.scratch:
            self.values.pointers[scratch.buffer] = self._scratch(scratch)

    def _scratch(self, scratch: Scratch) -> str:
        width, count = scratch.buffer.dtype.itemsize, scratch.count
        if count.op == "const" and count.detail * width <= _LOCAL_BYTES:
            return self._local(f"[{max(1, count.detail)} x i{8 * width}]")
        lines = self.values.lines
        total = lines.put(f"mul i64 {self.values.scalar(count)}, {width}")
        # one vector more, as malloc(0) may be no memory at all
        pointer = lines.put(f"call ptr @malloc(i64 {lines.put(f'add i64 {total}, 64')})")
        self.freed.append(pointer)
        return pointer

    def _local(self, kind: str) -> str:
        """Memory on the stack, for the whole call."""
        name = f"%local{next(self.values.function.numbers)}"
        self.entry.append(f"  {name} = alloca {kind}, align 64")
        return name

    # --- statements ------------------------------------------------------------------------------

    def _body(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            match statement:
                case Let(variable, value):
                    self._let(variable, value)
                case Store(buffer, offset, value, where):
                    self.values.store(buffer, offset, value, where)
                case For():
                    self._for(statement)
                case Accumulate():
                    self._accumulate(statement)

    def _let(self, variable: Scalar, value: Scalar) -> None:
        found = self.values.value(self.values.expand(value))
        self.values.define(variable, found.names, found.width)

    def _for(self, loop: For) -> None:
        if loop.kind == "unrolled":
            self._unrolled(loop)
            return
        start, stop = "0", self.values.scalar(loop.extent)
        if loop.is_parallel:
            start, stop = "%begin", "%end"
        write = self._vector_for if loop.is_vector and self.machine.width > 1 else self._serial_for
        self._guarded(start, stop, written(loop.body), lambda: write(loop, start, stop) or [], [])

    def _unrolled(self, loop: For) -> None:
        writes = written(loop.body)
        for i in range(int(loop.extent.detail)):
            self.values.enter(writes)
            self.values.define(loop.index, (str(i),))
            self._body(loop.body)
            self.values.lines.text += self._left()

    def _left(self) -> list[str]:
        """Close the innermost scope; its lines."""
        return self.values.leave()

    def _serial_for(self, loop: For, start: str, stop: str) -> None:
        def body(i: str, _: list[str]) -> list[str]:
            self.values.define(loop.index, (i,))
            self._body(loop.body)
            return []

        self._loop(start, stop, 1, written(loop.body), body, [], runs=True)

    def _vector_for(self, loop: For, start: str, stop: str) -> None:
        width = self.machine.width
        extent = loop.extent.detail if loop.extent.op == "const" and start == "0" else None
        count = self._unrolling(loop) if extent is None or extent >= width else 1
        writes = written(loop.body)
        done = start
        for vectors in (count, 1) if count > 1 and not self.machine.masked else (count,):
            if extent is not None and extent - int(done) < width * vectors:
                continue
            until = self._whole(done, stop, width * vectors, extent)
            body = self._vector_body(loop, width, vectors)
            self._loop(done, until, width * vectors, writes, body, [])
            done = until
        if done == str(extent):
            return
        if self.machine.masked:
            self._loop(done, stop, width, writes, self._masked_body(loop, width, stop), [])
        else:
            self._loop(done, stop, 1, writes, self._scalar_body(loop), [])

    def _whole(self, start: str, stop: str, step: int, extent: int | None) -> str:
        """The end of as many whole steps as there are."""
        if extent is not None:
            return str(int(start) + (extent - int(start)) // step * step)
        lines = self.values.lines
        count = lines.put(f"sub i64 {stop}, {start}") if start != "0" else stop
        whole = lines.put(f"and i64 {count}, {-step}")
        return lines.put(f"add i64 {start}, {whole}") if start != "0" else whole

    def _unrolling(self, loop: For) -> int:
        """How many vectors a step takes: more of shorter bodies, for latency."""
        if has_loops(loop.body):
            return 4
        work = self._work(loop)
        return next((count for most, count in _UNROLLED if work <= most), 1)

    def _work(self, loop: For | Accumulate) -> int:
        """The instructions of a loop's body."""
        seen: set[Scalar] = set()
        for statement in walk((loop,)):
            for x in expressions(statement):
                _collect(self.values.expand(x), seen)
        return sum(1 for x in seen if x.args and x.variables)

    def _vector_body(self, loop: For, width: int, count: int) -> Body:
        def body(i: str, _: list[str]) -> list[str]:
            with_lanes = self._bases(i, width, count)
            self._in_lanes(Lanes(loop.index, width, with_lanes), lambda: self._body(loop.body))
            return []

        return body

    def _masked_body(self, loop: For, width: int, stop: str) -> Body:
        def body(i: str, _: list[str]) -> list[str]:
            mask = self._mask(i, stop, width)
            lanes = Lanes(loop.index, width, (i,), (mask,))
            self._in_lanes(lanes, lambda: self._body(loop.body))
            return []

        return body

    def _scalar_body(self, loop: For) -> Body:
        def body(i: str, _: list[str]) -> list[str]:
            self.values.define(loop.index, (i,))
            self._body(loop.body)
            return []

        return body

    def _bases(self, i: str, width: int, count: int) -> Vectors:
        lines = self.values.lines
        return (i, *(lines.put(f"add i64 {i}, {width * k}") for k in range(1, count)))

    def _mask(self, i: str, stop: str, width: int) -> str:
        """The lanes from an index on that are before the end."""
        lines = self.values.lines
        left = lines.put(f"sub i64 {stop}, {i}")
        most = lines.put(f"call i64 @llvm.smin.i64(i64 {left}, i64 {width})")
        short = lines.put(f"trunc i64 {most} to i32")
        one = lines.put(f"insertelement <{width} x i32> poison, i32 {short}, i64 0")
        kind = widened("i32", width)
        splat = lines.put(f"shufflevector {kind} {one}, {kind} poison, {kind} zeroinitializer")
        return lines.put(f"icmp slt {kind} {steps(width, 'i32')}, {splat}")

    def _in_lanes(self, lanes: Lanes, write: Callable[[], None]) -> None:
        values = self.values
        outer = values.lanes, values.lanes_depth
        values.lanes, values.lanes_depth = lanes, values.depth
        write()
        values.lanes, values.lanes_depth = outer

    # --- control flow ----------------------------------------------------------------------------

    def _guarded(
        self,
        start: str,
        stop: str,
        writes: frozenset[Buffer],
        inside: Callable[[], list[str]],
        instead: list[tuple[str, str]],
    ) -> list[str]:
        """Write code that runs only if start < stop; its values, or others of the given types."""
        values = self.values
        values.enter(writes)
        results = inside()
        text = values.leave()
        lines = values.lines
        if _runs(start, stop):
            lines.text += text
            return results
        guard, then, end, after = (lines.fresh(stem) for stem in ("guard", "then", "end", "after"))
        lines.do(f"br label %{guard}")
        lines.label(guard)
        some = lines.put(f"icmp slt i64 {start}, {stop}")
        lines.do(f"br i1 {some}, label %{then}, label %{after}")
        lines.label(then)
        lines.text += text
        lines.do(f"br label %{end}")
        lines.label(end)
        lines.do(f"br label %{after}")
        lines.label(after)
        return [
            lines.put(f"phi {kind} [ {other}, %{guard} ], [ {result}, %{end} ]")
            for result, (kind, other) in zip(results, instead, strict=True)
        ]

    def _loop(
        self,
        start: str,
        stop: str,
        step: int,
        writes: frozenset[Buffer],
        body: Body,
        carried: list[tuple[str, str]],
        runs: bool = False,
    ) -> list[str]:
        """Write a loop that carries values of given types and beginnings; their last values."""
        values = self.values
        entry, head, latch, after = (
            values.lines.fresh(stem) for stem in ("entry", "body", "latch", "after")
        )
        i, following = f"%{values.lines.fresh('i')}", f"%{values.lines.fresh('n')}"
        names = [f"%{values.lines.fresh('c')}" for _ in carried]
        values.enter(writes)
        results = body(i, names)
        text = values.leave()
        lines = values.lines
        lines.do(f"br label %{entry}")
        lines.label(entry)
        if runs or _runs(start, stop):
            lines.do(f"br label %{head}")
        else:
            some = lines.put(f"icmp slt i64 {start}, {stop}")
            lines.do(f"br i1 {some}, label %{head}, label %{after}")
        lines.label(head)
        lines.do(f"{i} = phi i64 [ {start}, %{entry} ], [ {following}, %{latch} ]")
        for name, result, (kind, first) in zip(names, results, carried, strict=True):
            lines.do(f"{name} = phi {kind} [ {first}, %{entry} ], [ {result}, %{latch} ]")
        lines.text += text
        lines.do(f"br label %{latch}")
        lines.label(latch)
        lines.do(f"{following} = add nsw i64 {i}, {step}")
        again = lines.put(f"icmp slt i64 {following}, {stop}")
        lines.do(f"br i1 {again}, label %{head}, label %{after}")
        lines.label(after)
        if runs or _runs(start, stop):
            return results
        return [
            lines.put(f"phi {kind} [ {first}, %{entry} ], [ {result}, %{latch} ]")
            for result, (kind, first) in zip(results, carried, strict=True)
        ]

    # --- accumulation ----------------------------------------------------------------------------

    def _accumulate(self, loop: Accumulate) -> None:
        stop = self.values.scalar(loop.extent)
        in_vectors = self.values.lanes is not None
        if in_vectors or has_loops(loop.body):
            write = self._in_order
        elif PARTIALS // self.machine.width > _MANY or self._work(loop) > _SHORT:
            write = self._partials_in_memory
        else:
            write = self._partials_in_registers
        width, count = self._shape()
        kinds = [Type(u.variable.dtype, width) for u in loop.updates]
        instead = [
            (kind.text, _identity(update, kind))
            for update, kind in zip(loop.updates, kinds, strict=True)
            for _ in range(count)
        ]
        results = self._guarded("0", stop, written(loop.body), lambda: write(loop, stop), instead)
        for position, update in enumerate(loop.updates):
            names = tuple(results[position * count : (position + 1) * count])
            self._finish(update, names, kinds[position])

    def _shape(self) -> tuple[int, int]:
        """The lanes of a vector, and the vectors, that statements are written for."""
        lanes = self.values.lanes
        return (1, 1) if lanes is None else (lanes.width, len(lanes.bases))

    def _finish(self, update: Update, names: Vectors, kind: Type) -> None:
        if update.init is not None:
            init = self.values.vectors(update.init)
            combine = TABLE[update.combine]
            lines = self.values.lines
            pairs = zip(init, names, strict=True)
            names = tuple(combine(lines, kind, first, name) for first, name in pairs)
        self.values.define(update.variable, names, kind.width)

    def _in_order(self, loop: Accumulate, stop: str) -> list[str]:
        """One accumulator, or one for each lane of the loop around."""
        width, count = self._shape()
        carried = [
            (Type(u.variable.dtype, width).text, _identity(u, Type(u.variable.dtype, width)))
            for u in loop.updates
            for _ in range(count)
        ]

        def body(i: str, names: list[str]) -> list[str]:
            self.values.define(loop.index, (i,))
            self._body(loop.body)
            return self._updated(loop.updates, names, width, ())

        return self._loop("0", stop, 1, written(loop.body), body, carried, runs=True)

    def _updated(
        self, updates: tuple[Update, ...], names: list[str], width: int, masks: Vectors
    ) -> list[str]:
        """Combine accumulators with the values of this iteration, in the lanes of masks."""
        lines = self.values.lines
        count = len(names) // len(updates)
        results = []
        for position, update in enumerate(updates):
            kind = Type(update.variable.dtype, width)
            vectors = self.values.vectors(update.value)
            for k, vector in enumerate(vectors):
                name = names[position * count + k]
                result = TABLE[update.combine](lines, kind, name, vector)
                results.append(select(lines, kind, masks[k], result, name) if masks else result)
        return results

    def _partials_in_registers(self, loop: Accumulate, stop: str) -> list[str]:
        """64 partial results as vectors, each step one element for all of them."""
        width, writes = self.machine.width, written(loop.body)
        extent = _constant(loop)
        whole = self._whole("0", stop, PARTIALS, extent)
        names = self._beginnings(loop)
        if whole != "0":
            body = self._partial_body(loop, width)
            names = self._loop("0", whole, PARTIALS, writes, body, self._carried(loop, names))
        if whole != str(extent):
            places = self._memory(loop)
            self._spill(loop, places, names)
            self._rest(loop, places, whole, stop)
            names = self._restored(loop, places)
        return self._joined(loop, names)

    def _partials_in_memory(self, loop: Accumulate, stop: str) -> list[str]:
        """64 partial results in memory, so that long bodies are written only once."""
        places = self._memory(loop)
        self._spill(loop, places, self._beginnings(loop))
        self._rest(loop, places, "0", stop)
        return self._joined(loop, self._restored(loop, places))

    def _rest(self, loop: Accumulate, places: list[str], start: str, stop: str) -> None:
        """Go on with partial results in memory: in vectors, the last one masked or scalar."""
        width, writes, extent = self.machine.width, written(loop.body), _constant(loop)
        whole = self._whole(start, stop, width, extent)
        if width == 1 or (self.machine.masked and whole != str(extent)):
            body = self._spot_body(loop, places, stop)
            self._loop(start, stop, width, writes, body, [])
            return
        self._loop(start, whole, width, writes, self._spot_body(loop, places, ""), [])
        if whole != str(extent):
            self._loop(whole, stop, 1, writes, self._single_body(loop, places), [])

    def _memory(self, loop: Accumulate) -> list[str]:
        return [
            self._local(f"[{PARTIALS} x {Type(u.variable.dtype).memory}]") for u in loop.updates
        ]

    def _beginnings(self, loop: Accumulate) -> list[str]:
        width = self.machine.width
        kinds = [(u, Type(u.variable.dtype, width)) for u in loop.updates]
        return [_identity(u, kind) for u, kind in kinds for _ in range(PARTIALS // width)]

    def _carried(self, loop: Accumulate, names: list[str]) -> list[tuple[str, str]]:
        count = len(names) // len(loop.updates)
        kinds = [Type(u.variable.dtype, self.machine.width).text for u in loop.updates]
        return [(kinds[position // count], name) for position, name in enumerate(names)]

    def _partial_body(self, loop: Accumulate, width: int) -> Body:
        def body(i: str, names: list[str]) -> list[str]:
            lanes = Lanes(loop.index, width, self._bases(i, width, PARTIALS // width))
            return self._lane_updates(loop, lanes, names)

        return body

    def _spot_body(self, loop: Accumulate, places: list[str], stop: str) -> Body:
        """Combine a vector of elements with the partial results of its lanes, in memory."""
        width = self.machine.width
        if width == 1:
            return self._single_body(loop, places)

        def body(i: str, _: list[str]) -> list[str]:
            masks = (self._mask(i, stop, width),) if stop else ()
            pointers = self._spots(loop, places, i)
            names = self._loaded(loop, pointers)
            results = self._lane_updates(loop, Lanes(loop.index, width, (i,), masks), names)
            self._stored(loop, pointers, results)
            return []

        return body

    def _single_body(self, loop: Accumulate, places: list[str]) -> Body:
        """Combine one element with the partial result of its number, in memory."""

        def body(i: str, _: list[str]) -> list[str]:
            self.values.define(loop.index, (i,))
            self._body(loop.body)
            pointers = self._spots(loop, places, i)
            names = self._loaded(loop, pointers, 1)
            self._stored(loop, pointers, self._updated(loop.updates, names, 1, ()), 1)
            return []

        return body

    def _spots(self, loop: Accumulate, places: list[str], i: str) -> list[str]:
        lines = self.values.lines
        spot = lines.put(f"and i64 {i}, {PARTIALS - 1}")
        return [
            lines.put(f"getelementptr {Type(u.variable.dtype).memory}, ptr {place}, i64 {spot}")
            for u, place in zip(loop.updates, places, strict=True)
        ]

    def _loaded(self, loop: Accumulate, pointers: list[str], width: int = 0) -> list[str]:
        lines, lanes = self.values.lines, width or self.machine.width
        kinds = [Type(u.variable.dtype, lanes) for u in loop.updates]
        pairs = zip(kinds, pointers, strict=True)
        return [_from_local(lines, kind, pointer) for kind, pointer in pairs]

    def _stored(
        self, loop: Accumulate, pointers: list[str], names: list[str], width: int = 0
    ) -> None:
        lanes = width or self.machine.width
        for update, pointer, name in zip(loop.updates, pointers, names, strict=True):
            _to_local(self.values.lines, Type(update.variable.dtype, lanes), pointer, name)

    def _spill(self, loop: Accumulate, places: list[str], names: list[str]) -> None:
        for (kind, pointer), name in zip(self._vectors(loop, places), names, strict=True):
            _to_local(self.values.lines, kind, pointer, name)

    def _restored(self, loop: Accumulate, places: list[str]) -> list[str]:
        lines = self.values.lines
        return [_from_local(lines, kind, spot) for kind, spot in self._vectors(loop, places)]

    def _vectors(self, loop: Accumulate, places: list[str]) -> list[tuple[Type, str]]:
        """The type and place of each vector of partial results."""
        lines, width = self.values.lines, self.machine.width
        found = []
        for update, place in zip(loop.updates, places, strict=True):
            kind = Type(update.variable.dtype, width)
            for lane in range(0, PARTIALS, width):
                step = f"getelementptr {Type(kind.dtype).memory}, ptr {place}, i64 {lane}"
                found.append((kind, lines.put(step)))
        return found

    def _lane_updates(self, loop: Accumulate, lanes: Lanes, names: list[str]) -> list[str]:
        results: list[str] = []

        def write() -> None:
            self._body(loop.body)
            results.extend(self._updated(loop.updates, names, lanes.width, lanes.masks))

        self._in_lanes(lanes, write)
        return results

    def _joined(self, loop: Accumulate, names: list[str]) -> list[str]:
        """64 partial results made one: each half combined with the other."""
        width = self.machine.width
        count = len(names) // len(loop.updates)
        results = []
        for position, update in enumerate(loop.updates):
            own = names[position * count : (position + 1) * count]
            while len(own) > 1:
                kind, half = Type(update.variable.dtype, width), len(own) // 2
                own = [self._combined(update, kind, own[k], own[k + half]) for k in range(half)]
            results.append(self._across(update, own[0], width))
        return results

    def _across(self, update: Update, name: str, width: int) -> str:
        lines, dtype = self.values.lines, update.variable.dtype
        while width > 1:
            kind, half = Type(dtype, width), width // 2
            parts = [_lanes_of(lines, kind, name, range(k, k + half)) for k in (0, half)]
            name = self._combined(update, Type(dtype, half), *parts)
            width = half
        return name

    def _combined(self, update: Update, kind: Type, x: str, y: str) -> str:
        return TABLE[update.combine](self.values.lines, kind, x, y)


def _lanes_of(lines: Lines, kind: Type, name: str, lanes: range) -> str:
    if len(lanes) == 1:
        return lines.put(f"extractelement {kind.text} {name}, i64 {lanes[0]}")
    chosen = "<" + ", ".join(f"i32 {lane}" for lane in lanes) + ">"
    mask = f"<{len(lanes)} x i32> {chosen}"
    return lines.put(f"shufflevector {kind.text} {name}, {kind.text} poison, {mask}")


def _from_local(lines: Lines, kind: Type, pointer: str) -> str:
    """A vector of partial results from the stack; truth values take a byte there."""
    name = lines.put(f"load {kind.memory}, ptr {pointer}, align {kind.dtype.itemsize}")
    return (
        name
        if kind.memory == kind.text
        else lines.put(f"trunc {kind.memory} {name} to {kind.text}")
    )


def _to_local(lines: Lines, kind: Type, pointer: str, name: str) -> None:
    if kind.memory != kind.text:
        name = lines.put(f"zext {kind.text} {name} to {kind.memory}")
    lines.do(f"store {kind.memory} {name}, ptr {pointer}, align {kind.dtype.itemsize}")


def _constant(loop: For | Accumulate) -> int | None:
    """The extent, if it is known."""
    return int(loop.extent.detail) if loop.extent.op == "const" else None


def _identity(update: Update, kind: Type) -> str:
    return kind.literal(_identity_of(update.combine, kind.dtype))


def _identity_of(combine: str, dtype: DType) -> bool | int | float:
    return const(identity(combine, dtype).item(), dtype).detail  # type: ignore[no-any-return]


def _runs(start: str, stop: str) -> bool:
    """Whether a loop with constant bounds runs at all."""
    return start.isdigit() and stop.isdigit() and int(start) < int(stop)


def _collect(x: Scalar, seen: set[Scalar]) -> None:
    pending = [x]
    while pending:
        current = pending.pop()
        if current not in seen:
            seen.add(current)
            pending += current.args
