"""A kernel as the text of an LLVM function for a card.

The function takes a pointer for each buffer, an int64 for each size, and one more pointer where
scratch memory is too large for a block. What `schedule` says of loops and teams is written down
here: the prologue finds a thread's place, loops that a team divides go in steps of the whole team,
and accumulators are combined in a fixed order, first in a thread, then across its team.

>>> from weft.core.dtypes import float32
>>> from weft.ir.loops import For, Kernel, Store
>>> from weft.ir.scalars import Buffer, index, size
>>> x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
>>> copy = Kernel("copy", (x, y), ("n",), (For(i, size("n"), (Store(y, i, x[i]),)),))
>>> 'define ptx_kernel void @weft_copy(ptr addrspace(1)' in emit_device_module([copy])
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from weft.compiler.targets.cuda.library import definitions
from weft.compiler.targets.cuda.machine import WARP, card
from weft.compiler.targets.cuda.memory_accesses import buffers_read, is_team_loop
from weft.compiler.targets.cuda.row_prefetch import LANE, lines_ahead
from weft.compiler.targets.cuda.schedule import Schedule, schedule, steps_of
from weft.compiler.targets.cuda.teams import DECLARATIONS, ColumnTeam, Team
from weft.compiler.targets.cuda.values import NOWHERE_BYTES, DeviceValues
from weft.compiler.targets.llvm.blocks import Body
from weft.compiler.targets.llvm.emit import Emitter
from weft.compiler.targets.llvm.instructions import constants
from weft.compiler.targets.llvm.ir_builder import Function
from weft.compiler.targets.llvm.ir_types import Type
from weft.compiler.targets.llvm.machine import Machine
from weft.ir.loop_reference import identity
from weft.ir.loops import (
    Accumulate,
    For,
    Kernel,
    Let,
    Scratch,
    Statement,
    Store,
    Update,
    has_loops,
    written_buffers,
)
from weft.ir.scalars import Buffer, const, size

LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
LOCAL_BYTES = 16 * 1024
"""Scratch memory of one thread up to this size is its local memory."""
SHARED_BYTES = 40 * 1024
"""Scratch memory of the teams of a block up to this size is shared memory."""
CHUNKS_AT_ONCE = 4
"""Blocks with sums down columns that a multiprocessor runs at once: registers are shared so."""
_UNROLLED = 4
"""Steps of a loop over a long row that are written out, so that their loads overlap."""

Step = Callable[[str, str, list[str], object], list[str]]
"""A step: of its base, when it is there, what it carries and its key; what it carries on."""


def emit_device_module(kernels: Sequence[Kernel], machine: Machine | None = None) -> str:
    """The text of a module with a function for each kernel."""
    target = machine or card()
    emitters = [DeviceEmitter(schedule(kernel), target) for kernel in kernels]
    text = [line for each in emitters for line in each.run()]
    return device_module(emitters, text, target)


def device_module(emitters: Sequence[DeviceEmitter], text: Sequence[str], target: Machine) -> str:
    """The text of a module with functions that emitters have written."""
    functions = [each.values.function for each in emitters]
    tables = {name: table for each in functions for name, table in each.tables.items()}
    called = {name for each in functions for name, _, _ in each.externals}
    head = [
        f'target datalayout = "{LAYOUT}"',
        f'target triple = "{target.triple}"',
        f"@nowhere = internal addrspace(1) global [{NOWHERE_BYTES} x i8] zeroinitializer, align 16",
        *DECLARATIONS,
        *constants(tables),
    ]
    shared = [line for each in emitters for line in each.globals]
    return "\n".join([*head, *shared, *definitions(called, target), *text, ""])


def symbol(kernel_name: str) -> str:
    """The name of a kernel's function."""
    return f"weft_{kernel_name}"


class DeviceEmitter(Emitter):
    """Writes the statements of one kernel for the threads of a card.

    A kernel that is a part of a function is given values of it: its buffers, then its sizes.
    """

    values: DeviceValues

    def __init__(
        self,
        plan: Schedule,
        machine: Machine,
        function: Function | None = None,
        given: Sequence[str] | None = None,
    ) -> None:
        super().__init__(plan.kernel, machine)
        self.plan = plan
        buffers = [f"%buffer{k}" for k in range(len(plan.kernel.buffers))]
        sizes = [f"%size{k}" for k in range(len(plan.kernel.sizes))]
        self.given = [*buffers, *sizes] if given is None else given
        self.name = symbol(plan.kernel.name)
        self.values = DeviceValues(machine, function or Function())
        self.exit = self.values.lines.fresh("exit")
        self.values.registers = frozenset(plan.registers)
        self.globals: list[str] = []
        self.team = (ColumnTeam if plan.is_across else Team)(self.values, plan.team, self.name)
        self.entry = ["  %nowhere = addrspacecast ptr addrspace(1) @nowhere to ptr"]
        self.entry.append("  %zeros = getelementptr i8, ptr %nowhere, i64 0")

    def run(self) -> list[str]:
        """The lines of the function."""
        body = self.run_block("call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()")
        given = ", ".join(self.parameters())
        block = f'"nvvm.maxntid"="{self.plan.block}"'
        if self.plan.closing:
            block += f' "nvvm.minctasm"="{CHUNKS_AT_ONCE}"'
        return [
            f"define ptx_kernel void @{self.name}({given}) nounwind {block} {{",
            "entry:", *self.entry, *body, "  ret void", "}",
        ]  # fmt: skip

    def run_block(self, block: str) -> list[str]:
        """The lines for the threads of a block, whose number an instruction gives."""
        self._prologue(block)
        self._arguments()
        self._indices()
        body = self.values.leave()
        self.globals += self.team.globals()
        return [*body, f"  br label %{self.exit}", f"{self.exit}:", *self._closing_lines(block)]

    def _closing_lines(self, block: str) -> list[str]:
        """The lines for what a block does when all of its teams are done."""
        if not self.plan.closing:
            return []
        function, machine = self.values.function, self.values.machine
        last = DeviceEmitter(self.plan.block_layout, machine, function, self.given)
        body = last.run_block(block)
        self.entry += last.entry[2:]
        self.globals += [line for line in last.globals if line not in self.globals]
        return ["  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)", *body]

    def parameters(self) -> list[str]:
        """The types and names of what the function is given."""
        kinds = ["ptr addrspace(1)"] * len(self.kernel.buffers) + ["i64"] * len(self.kernel.sizes)
        given = [f"{kind} {name}" for kind, name in zip(kinds, self.given, strict=True)]
        more = ["ptr addrspace(1) %scratch"] if scratch_bytes(self.plan) is None else []
        return [*given, *more]

    def _arguments(self) -> None:
        lines = self.values.lines
        count = len(self.kernel.buffers)
        for name, given in zip(self.kernel.sizes, self.given[count:], strict=True):
            self.values.define(size(name), (given,))
        for buffer, given in zip(self.kernel.buffers, self.given, strict=False):
            place = f"addrspacecast ptr addrspace(1) {given} to ptr"
            self.values.pointers[buffer] = lines.put(place)
        for scratch in self.kernel.scratch:
            if scratch.buffer not in self.values.registers:
                self.values.pointers[scratch.buffer] = self._scratch(scratch)

    # --- a thread's place ------------------------------------------------------------------------

    def _prologue(self, block_number: str) -> None:
        """Which thread this is: its number in the grid, that of its team, and its lane there."""
        lines = self.values.lines
        thread = lines.put("call i32 @llvm.nvvm.read.ptx.sreg.tid.x()")
        block = lines.put(block_number)
        wide = [lines.put(f"zext i32 {each} to i64") for each in (block, thread)]
        start = lines.put(f"mul i64 {wide[0]}, {self.plan.block}")
        self.number = lines.put(f"add i64 {start}, {wide[1]}")
        if self.plan.is_across:
            self.team.enter(thread)
            first = lines.put(f"mul i64 {wide[0]}, {WARP}")
            self.number = lines.put(f"add i64 {first}, {self.team.number}")
        elif self.plan.team > 1:
            self.number = lines.put(f"lshr i64 {self.number}, {self.plan.team.bit_length() - 1}")
            self.team.enter(thread)

    def _indices(self) -> None:
        """Give the grid's indices their values, and write the body for them."""
        extents = [self.values.scalar(loop.extent) for loop in self.plan.grid]
        lines, vector = self.values.lines, self.plan.vector
        stop = extents[-1] if extents else "1"
        if vector is not None and self.plan.width > 1:
            extents[-1] = self._chunks(stop)
        total = extents[0] if extents else "1"
        for extent in extents[1:]:
            total = lines.put(f"mul i64 {total}, {extent}")
        inside, run = lines.put(f"icmp slt i64 {self.number}, {total}"), lines.fresh("run")
        lines.do(f"br i1 {inside}, label %{run}, label %{self.exit}")
        lines.label(run)
        names = self._grid_indices(self.number, extents)
        outer = self.plan.grid if vector is None else self.plan.grid[:-1]
        for loop, name in zip(outer, names, strict=False):
            self.values.define(loop.index, (name,))
        if vector is None:
            self.body(self.plan.body)
        else:
            self._elements(vector, names[-1], stop)

    def _grid_indices(self, number: str, extents: list[str]) -> list[str]:
        """An index for each extent of a number in the grid, by divisions of as few bits as do."""
        lines = self.values.lines
        if len(extents) < 2:
            return [number] if extents else []
        is_short = all(map(str.isdigit, extents)) and prod(map(int, extents)) < 1 << 31
        kind = "i32" if is_short else "i64"
        rest = lines.put(f"trunc i64 {number} to i32") if is_short else number
        found: list[str] = []
        for extent in reversed(extents[1:]):
            found.append(lines.put(f"urem {kind} {rest}, {extent}"))
            rest = lines.put(f"udiv {kind} {rest}, {extent}")
        names = [rest, *reversed(found)]
        return [lines.put(f"zext i32 {name} to i64") for name in names] if is_short else names

    def _chunks(self, stop: str) -> str:
        lines, width = self.values.lines, self.plan.width
        if stop.isdigit():
            return str(-(-int(stop) // width))
        more = lines.put(f"add i64 {stop}, {width - 1}")
        return lines.put(f"lshr i64 {more}, {width.bit_length() - 1}")

    def _elements(self, loop: For, number: str, stop: str) -> None:
        """A thread's own elements: a vector of them, and at the end one after the other."""
        lines, width, writes = self.values.lines, self.plan.width, written_buffers(loop.body)
        self.in_vectors = True
        if width == 1:
            self.values.define(loop.index, (number,))
            self.body(loop.body)
            return
        base = lines.put(f"mul i64 {number}, {width}")
        if stop.isdigit() and int(stop) % width == 0:
            with self.values.step(loop.index, base, width, "", writes):
                self._body_with_late_stores(loop)
            return
        end = lines.put(f"add i64 {base}, {width}")
        whole = lines.put(f"icmp sle i64 {end}, {stop}")
        # both bodies are written before the branch: what depends on no element stands above it
        self.values.enter(writes)
        with self.values.step(loop.index, base, width, "", writes):
            self.body(loop.body)
        vector_text = self.values.leave()
        self.values.enter(writes)
        self.loop(base, stop, 1, writes, self._scalar_body(loop), [], runs=True)
        rest_text = self.values.leave()
        vector, rest, after = (lines.fresh(stem) for stem in ("vector", "rest", "after"))
        lines.do(f"br i1 {whole}, label %{vector}, label %{rest}")
        for label, text in ((vector, vector_text), (rest, rest_text)):
            lines.label(label)
            lines.text += text
            lines.do(f"br label %{after}")
        lines.label(after)

    def _body_with_late_stores(self, loop: For) -> None:
        """A body of several stores, which wait until all loads are under way."""
        stores = [each for each in loop.body if isinstance(each, Store)]
        is_plain = all(isinstance(each, Let | Store) for each in loop.body) and len(stores) > 1
        if not is_plain or written_buffers(loop.body) & buffers_read((loop,)):
            self.body(loop.body)
            return
        values = self.values
        values.deferred = type(values.lines)(values.function)
        self.body(loop.body)
        values.lines.text += values.deferred.text
        values.deferred = None

    # --- memory ----------------------------------------------------------------------------------

    def _scratch(self, scratch: Scratch) -> str:
        """Memory of this thread, of its team in the block, or of its team in the card's memory."""
        lines, width, plan = self.values.lines, scratch.buffer.dtype.itemsize, self.plan
        needed = scratch_bytes(plan)
        name = f"{self.name}.{scratch.buffer.name}"
        if needed is None:
            return self._in_card_memory(scratch)
        count = int(scratch.count.detail)
        if plan.team == 1:
            return self.local(f"[{max(1, count)} x i{8 * width}]")
        is_shared = scratch.buffer in plan.shared_buffers
        teams = 1 if is_shared else plan.block // plan.team
        bytes_each = -(-max(1, count) * width // 16) * 16
        kind = f"[{teams * bytes_each} x i8]"
        self.globals.append(f'@"{name}" = internal addrspace(3) global {kind} poison, align 16')
        start = lines.put(f'addrspacecast ptr addrspace(3) @"{name}" to ptr')
        if is_shared:
            return start
        place = lines.put(f"mul i64 {self.team.number}, {bytes_each}")
        return lines.put(f"getelementptr i8, ptr {start}, i64 {place}")

    def _in_card_memory(self, scratch: Scratch) -> str:
        """A team's part of the scratch memory that the launch was given."""
        lines, before, each = self.values.lines, "0", "0"
        for other in self.kernel.scratch:
            count = self.values.scalar(other.count)
            wide = lines.put(f"mul i64 {count}, {other.buffer.dtype.itemsize}")
            more = lines.put(f"add i64 {wide}, 15")
            rounded = lines.put(f"and i64 {more}, -16")
            if other is scratch:
                before = each
            each = lines.put(f"add i64 {each}, {rounded}")
        start = lines.put("addrspacecast ptr addrspace(1) %scratch to ptr")
        team = lines.put(f"mul i64 {self.number}, {each}")
        place = lines.put(f"add i64 {team}, {before}")
        return lines.put(f"getelementptr i8, ptr {start}, i64 {place}")

    # --- statements ------------------------------------------------------------------------------

    def body(self, body: tuple[Statement, ...]) -> None:
        """Write statements; a team waits where its threads see each other's memory."""
        for statement in body:
            waits = self._is_team_level() and self._is_exchange(statement)
            if waits:
                self.team.wait()
            super().body((statement,))
            if waits:
                self.team.wait()

    def _is_team_level(self) -> bool:
        """Whether all threads of a team run the same code here."""
        return self.plan.team > 1 and not self.in_vectors

    def _is_exchange(self, statement: Statement) -> bool:
        is_own = isinstance(statement, Store) or (
            isinstance(statement, For | Accumulate) and self._is_divided(statement)
        )
        return is_own and bool(written_buffers((statement,)) & self.plan.exchanged_buffers)

    def _is_divided(self, loop: For | Accumulate) -> bool:
        """Whether the threads of a team divide a loop."""
        return self._is_team_level() and is_team_loop(loop)

    def _for(self, loop: For) -> None:
        if loop.kind == "unrolled":
            self._write_unrolled(loop)
        elif self._is_divided(loop):
            self._divided_for(loop)
        else:
            stop = self.values.scalar(loop.extent)
            writes = written_buffers(loop.body)
            self.guard_range("0", stop, writes, lambda: self._serial_for(loop, "0", stop), [])

    def _scalar_body(self, loop: For) -> Body:
        if not self.plan.closing or loop not in self.plan.body or loop.extent.op != "const":
            return super()._scalar_body(loop)

        def body(i: str, _: list[str]) -> list[str]:
            values, lines = self.values, self.values.lines
            values.define(loop.index, (i,))
            values.define(LANE, (self.team.lane,))
            for buffer, offset in lines_ahead(loop):
                place = lines.put(f"mul i64 {values.scalar(offset)}, {buffer.dtype.itemsize}")
                line = lines.put(f"getelementptr i8, ptr {values.pointers[buffer]}, i64 {place}")
                lines.do(f'call void asm sideeffect "prefetch.L2 [$0];", "l"(ptr {line})')
            self.body(loop.body)
            return []

        return body

    def _divided_for(self, loop: For) -> None:
        def write(names: list[str]) -> list[str]:
            self.body(loop.body)
            return names

        self._divide_over_team(loop, write, [])

    def accumulate(self, loop: Accumulate) -> None:
        """Write an accumulation, and define its locals."""
        if not self._is_divided(loop):
            outer = self.in_vectors
            # without loops inside, one thread runs it alone
            self.in_vectors = outer or not has_loops(loop.body)
            super().accumulate(loop)
            self.in_vectors = outer
            return
        width = self.plan.width
        carried = [(Type(u.variable.dtype, width), u) for u in loop.updates]

        def write(names: list[str]) -> list[str]:
            self.body(loop.body)
            return self._update_accumulators(loop.updates, names, width, ())

        partial = self._divide_over_team(
            loop, write, [(kind, _identity(u, kind)) for kind, u in carried]
        )
        for update, name in zip(loop.updates, partial, strict=True):
            total = self.team.combine_threads(update, name, width)
            self._finish(update, (total,), Type(update.variable.dtype))

    # --- loops that a team divides ---------------------------------------------------------------

    def _divide_over_team(
        self,
        loop: For | Accumulate,
        write: Callable[[list[str]], list[str]],
        carried: list[tuple[Type, str]],
    ) -> list[str]:
        """A loop in steps of the team; what its threads carry, each its own part."""
        writes = written_buffers(loop.body)

        def step_values(base: str, active: str, names: list[str], key: object) -> list[str]:
            outer, self.in_vectors = self.in_vectors, True
            with self.values.step(loop.index, base, self.plan.width, active, writes, key):
                results = write(names)
                if active:
                    results = self._keep_inactive(
                        active, results, names, [kind for kind, _ in carried]
                    )
            self.in_vectors = outer
            return results

        stride = self.plan.team * self.plan.width
        steps = steps_of(loop.extent, self.plan.team, self.plan.width)
        if steps is not None and loop.extent.op == "const":
            return self._steps(loop, steps, [name for _, name in carried], step_values)
        stop = self.values.scalar(loop.extent)
        begins = [(kind.text, name) for kind, name in carried]

        def long_loop() -> list[str]:
            return self._long(stop, stride, writes, begins, step_values)

        return self.guard_range("0", stop, writes, long_loop, begins)

    def _steps(
        self,
        loop: For | Accumulate,
        steps: int,
        names: list[str],
        one: Step,
    ) -> list[str]:
        """All steps written out, so that the next loop over the row knows what they computed."""
        extent, values = int(loop.extent.detail), self.values
        stride = self.plan.team * self.plan.width
        waits = not (written_buffers(loop.body) & buffers_read((loop,)))
        lines = values.lines
        values.deferred = type(lines)(values.function) if waits else None
        for step in range(steps):
            base = self.team.base(self.plan.width, step * stride)
            active = ""
            if (step + 1) * stride > extent:
                active = lines.put(f"icmp slt i64 {base}, {extent}")
            names = one(base, active, names, (loop.index, loop.extent, step))
        if values.deferred is not None:
            lines.text += values.deferred.text
        values.deferred = None
        return names

    def _long(
        self,
        stop: str,
        stride: int,
        writes: frozenset[Buffer],
        carried: list[tuple[str, str]],
        one: Step,
    ) -> list[str]:
        """A loop over steps, a few of them at once."""

        def body(i: str, names: list[str]) -> list[str]:
            lines = self.values.lines
            for number in range(_UNROLLED):
                own = self.team.base(self.plan.width, number * stride)
                base = lines.put(f"add i64 {i}, {own}")
                active = lines.put(f"icmp slt i64 {base}, {stop}")
                names = one(base, active, names, None)
            return names

        return self.loop("0", stop, stride * _UNROLLED, writes, body, carried, runs=True)

    def _keep_inactive(
        self, active: str, results: list[str], names: list[str], kinds: Sequence[Type]
    ) -> list[str]:
        """Accumulators, changed only where the elements of a step are there."""
        lines = self.values.lines
        return [
            lines.put(f"select i1 {active}, {kind.text} {result}, {kind.text} {name}")
            for result, name, kind in zip(results, names, kinds, strict=True)
        ]


def scratch_bytes(plan: Schedule) -> int | None:
    """The bytes of scratch memory that a thread or a block has of its own; None if too many."""
    held = [s for s in plan.kernel.scratch if s.buffer not in plan.registers]
    if any(s.count.op != "const" for s in held):
        return None
    sizes = {s.buffer: int(s.count.detail) * s.buffer.dtype.itemsize + 16 for s in held}
    total = sum(sizes.values())
    if plan.team == 1:
        return total if total <= LOCAL_BYTES else None
    once = sum(sizes.get(buffer, 0) for buffer in plan.shared_buffers)
    total = once + (total - once) * (plan.block // plan.team)
    return total if total <= SHARED_BYTES else None


def _identity(update: Update, kind: Type) -> str:
    number = identity(update.combine, kind.dtype).item()
    return kind.literal(const(number, kind.dtype).detail)
