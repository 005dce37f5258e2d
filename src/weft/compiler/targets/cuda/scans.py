"""Running sums, products and places of extremes on a card, in an order that sizes alone decide.

A row is cut into chunks, one for each block, and a chunk into runs of neighbours, one for each
thread. Threads combine their runs one by one, then all totals of the block in a tree of known
shape, and go over their runs once more from what is before them. Where a row has several chunks,
their totals come first and are scanned in the same way. Running results of floats are float64, as
on the CPU, and each is rounded once.

The place of the extreme so far is a running maximum of words: a key above, the step below.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Literal

from weft.compiler.plan.launch import Kind, Launch, no_numbers, one, static_shape
from weft.compiler.targets.cuda.binding import Binding, Run, aligned_size, binder
from weft.compiler.targets.cuda.device_text import DeviceBuilder, TextKernel
from weft.compiler.targets.cuda.sorting import Step, bind_steps, first_of_row
from weft.compiler.targets.llvm.sort_keys import MOST, Keys
from weft.core.dtypes import INDEX, DType, bfloat16
from weft.core.records import frozen
from weft.ir.graph import GraphNode

__all__ = ["RunningForm", "is_running", "running_kernel", "running_launch"]

Part = Literal["results", "totals", "offsets"]
THREADS = 256
"""Threads of a block, at most."""
RUN = 8
"""Elements that a thread combines one by one, where a row is one chunk or more."""
_WARP = 32
_FORMS = {
    "cumulative_sum": "add",
    "cumulative_prod": "multiply",
    "cumulative_argmax": "highest",
    "cumulative_argmin": "lowest",
}


@frozen(slots=False)
class RunningForm:
    """What runs along a row: how elements of a dtype are combined, and in which direction."""

    combine: str
    dtype: DType
    reverse: bool

    @property
    def is_place(self) -> bool:
        """Whether results are places of extremes."""
        return self.combine in ("highest", "lowest")

    @property
    def keys(self) -> Keys:
        """How extremes are compared."""
        return Keys(self.dtype, self.combine == "lowest")

    @property
    def state(self) -> str:
        """The type of what is known so far."""
        if self.is_place:
            return self.keys.word
        return "double" if self.dtype.is_floating else f"i{self.dtype.bits}"

    @property
    def state_bytes(self) -> int:
        """The bytes of what is known so far."""
        if self.is_place:
            return self.keys.word_bytes
        return 8 if self.dtype.is_floating else self.dtype.bits // 8

    @property
    def start(self) -> str:
        """What is known before the first element."""
        if self.is_place or self.combine == "add":
            return "0.0" if self.state == "double" else "0"
        return "1.0" if self.state == "double" else "1"


def is_running(node: GraphNode) -> bool:
    """Whether a node is a running form of numbers that are not complex."""
    kind = node.operands[0].type if node.operands else None
    if node.primitive.name not in _FORMS or kind is None or kind.dtype.is_complex:
        return False
    return all(dim < MOST for dim in kind.shape if isinstance(dim, int))


def running_launch(node: GraphNode) -> Launch:
    """The launch of a running form."""
    name, params = node.primitive.name, node.params
    words = ("running", _FORMS[name], str(params["axis"]), str(int(params["reverse"])))
    return Launch(
        Kind.LOOP, name, words, (*node.operands, *node.results), node.results, no_numbers, one, one
    )


# --- the kernel ----------------------------------------------------------------------------------


@cache
def running_kernel(form: RunningForm, part: Part, threads: int) -> TextKernel:
    """A kernel over chunks of rows: results, their totals, or what is before each total."""
    return _Writer(form, part, threads).write()


class _Writer:
    """Writes one of the kernels of a scan: totals of chunks, what comes before each, or results."""

    def __init__(self, form: RunningForm, part: Part, threads: int) -> None:
        self.form, self.part, self.threads = form, part, threads
        pointers = ("ptr %source", "ptr %target", "ptr %before")
        numbers = ("i64 %count", "i64 %stride", "i64 %chunks", "i64 %run")
        self.out = DeviceBuilder(f"running_{part}", (*pointers, *numbers), threads)

    def write(self) -> TextKernel:
        """The whole kernel: a run of steps for each thread, its total, then the steps again."""
        out, form = self.out, self.form
        _, target, before, count, stride, chunks, run = out.parameters
        held = out.shared_array(form.state, self.threads)
        self.row, chunk = out.div(out.block_number, chunks), out.rem(out.block_number, chunks)
        self.corner = first_of_row(out, self.row, count, stride)
        first = out.mul(out.add(out.mul(chunk, self.threads), out.thread), run)
        first, last = out.least(first, count), out.least(out.add(first, run), count)
        total = out.variable(form.start, form.state)
        with out.loop(first, last) as step:
            total.value = self._combine(total.value, self._element(step))
        self._scan_threads(held, total.value)
        if self.part == "totals":
            with out.when(out.test("eq", out.thread, self.threads - 1)):
                self._store(self._load(held, out.thread), target, out.block_number)
            return out.kernel()
        state = out.variable(form.start, form.state)
        if self.part == "results":
            with out.when(out.test("sgt", chunks, 1)):
                state.value = self._load(before, out.block_number)
        with out.when(out.test("sgt", out.thread, 0)):
            state.value = self._combine(state.value, self._load(held, out.sub(out.thread, 1)))
        with out.loop(first, last) as step:
            if self.part == "offsets":
                self._store(state.value, target, out.add(self.corner, step))
            state.value = self._combine(state.value, self._element(step))
            if self.part == "results":
                self._store_result(state.value, step)
        return out.kernel()

    def _scan_threads(self, held: str, total: str) -> None:
        """Each thread's total becomes that of all threads up to it."""
        out = self.out
        self._store(total, held, out.thread)
        out.wait()
        distance = 1
        while distance < self.threads:
            own = out.variable(self._load(held, out.thread), self.form.state)
            with out.when(out.test("sge", out.thread, distance)):
                other = self._load(held, out.sub(out.thread, distance))
                own.value = self._combine(other, own.value)
            out.wait()
            self._store(own.value, held, out.thread)
            out.wait()
            distance *= 2

    def _combine(self, left: str, right: str) -> str:
        state, how = self.form.state, self.form.combine
        if self.form.is_place:
            above = self.out.put(f"icmp ugt {state} {left}, {right}", "i1")
            text = f"select i1 {above}, {state} {left}, {state} {right}"
            return self.out.put(text, state)
        name = {"add": "add", "multiply": "mul"}[how]
        return self.out.put(f"{'f' * (state == 'double')}{name} {state} {left}, {right}", state)

    def _load(self, pointer: str, place: str) -> str:
        form = self.form
        place = self.out.at(form.state, pointer, place)
        return self.out.load(form.state, place, min(8, form.state_bytes))

    def _store(self, value: str, pointer: str, place: str) -> None:
        form = self.form
        target = self.out.at(form.state, pointer, place)
        self.out.store(value, target, form.state, min(8, form.state_bytes))

    def _offset(self, step: str) -> str:
        """Where the element of a step lies, counted in elements."""
        _, _, _, count, stride, _, _ = self.out.parameters
        out = self.out
        place = out.sub(out.sub(count, 1), step) if self._turns else step
        return out.add(self.corner, out.mul(place, stride))

    @property
    def _turns(self) -> bool:
        """Whether steps go from the last element to the first; totals lie in the order of steps."""
        return self.form.reverse and self.part != "offsets"

    def _element(self, step: str) -> str:
        """The element of a step, as it is combined."""
        out, form, source = self.out, self.form, self.out.parameters[0]
        offset = self._offset(step)
        if self.part == "offsets":
            return self._load(source, offset)
        if form.is_place:
            return self._word(offset, step)
        kind = f"i{form.dtype.bits}"
        if not form.dtype.is_floating:
            return out.load(kind, out.at(kind, source, offset))
        if form.dtype is bfloat16:
            bits = out.load("i16", out.at("i16", source, offset))
            high = out.put(f"shl i32 {out.convert('zext', bits, 'i32')}, 16", "i32")
            return out.convert("fpext", out.convert("bitcast", high, "float"), "double")
        kind = {16: "half", 32: "float", 64: "double"}[form.dtype.bits]
        found = out.load(kind, out.at(kind, source, offset))
        return found if kind == "double" else out.convert("fpext", found, "double")

    def _word(self, offset: str, step: str) -> str:
        """Key and step of an element; NaN is above all, whichever extreme is looked for."""
        out, keys = self.out, self.form.keys
        key = keys.key(out, out.parameters[0], offset)
        if keys.descending and self.form.dtype.is_floating:
            is_nan = out.put(f"icmp eq {keys.kind} {key}, 0", "i1")
            key = out.put(f"select i1 {is_nan}, {keys.kind} -1, {keys.kind} {key}")
        wide = out.put(f"zext {keys.kind} {key} to {keys.word}")
        high = out.put(f"shl {keys.word} {wide}, {keys.place_bits}", keys.word)
        low = step if keys.word == "i64" else out.put(f"zext i64 {step} to {keys.word}")
        return out.put(f"or {keys.word} {high}, {low}", keys.word)

    def _store_result(self, state: str, step: str) -> None:
        """What is known at a step, rounded or as a place."""
        out, form = self.out, self.form
        _, target, _, count, *_ = out.parameters
        offset = self._offset(step)
        if form.is_place:
            found = form.keys.place(out, state)
            place = out.sub(out.sub(count, 1), found) if form.reverse else found
            out.store(place, out.at("i64", target, offset), "i64")
            return
        kind = f"i{form.dtype.bits}"
        if form.dtype is bfloat16:
            state = self._short_bits(out.convert("fptrunc", state, "float"))
        elif form.dtype.is_floating:
            kind = {16: "half", 32: "float", 64: "double"}[form.dtype.bits]
            state = state if kind == "double" else out.put(f"fptrunc double {state} to {kind}")
        out.store(state, out.at(kind, target, offset), kind)

    def _short_bits(self, value: str) -> str:
        """The bits of a float32 as bfloat16, rounded to the nearest, to even where two are."""
        out = self.out
        bits = out.convert("bitcast", value, "i32")
        odd = out.put(f"and i32 {out.put(f'lshr i32 {bits}, 16')}, 1")
        up = out.put(f"add i32 {out.put(f'add i32 {bits}, 32767')}, {odd}")
        is_nan = out.put(f"fcmp uno float {value}, {value}", "i1")
        quiet = out.put(f"or i32 {bits}, {1 << 22}")
        chosen = out.put(f"select i1 {is_nan}, i32 {quiet}, i32 {up}")
        return out.put(f"trunc i32 {out.put(f'lshr i32 {chosen}, 16')} to i16", "i16")


# --- launches ------------------------------------------------------------------------------------


def running_steps(form: RunningForm, rows: int, count: int, stride: int) -> list[Step]:
    """The launches of a running form: one, or three where rows have several chunks."""
    if not rows or not count:
        return []
    threads = _WARP
    while threads < THREADS and threads * RUN < count:
        threads *= 2
    chunks = -(-count // (threads * RUN))
    numbers = (count, stride, chunks, RUN)
    results = running_kernel(form, "results", threads)
    steps = [Step(results, rows * chunks, ("x", "out", "before"), numbers)]
    if chunks > 1:
        totals = running_kernel(form, "totals", threads)
        offsets = running_kernel(form, "offsets", threads)
        run = -(-chunks // threads)
        steps = [
            Step(totals, rows * chunks, ("x", "totals", "before"), numbers),
            Step(offsets, rows, ("totals", "before", "before"), (chunks, 1, 1, run)),
            *steps,
        ]
    return steps


@binder("running")
def bind_running(binding: Binding, launch: Launch) -> Run:
    """What runs a running form."""
    assert isinstance(launch.kernel, tuple)
    combine, axis, reverse = launch.kernel[1:]
    kind = launch.values[0].type
    shape = static_shape(kind.shape, binding.sizes)
    count, stride = shape[int(axis)], prod(shape[int(axis) + 1 :])
    rows = prod(shape[: int(axis)]) * stride
    form = RunningForm(combine, kind.dtype, reverse == "1")
    assert not form.is_place or launch.values[1].type.dtype is INDEX
    steps = running_steps(form, rows, count, stride)
    chunks = max([step.numbers[2] for step in steps], default=1)
    size = aligned_size(rows * chunks * form.state_bytes)
    cells = {
        "x": binding.cell(launch, launch.values[0]),
        "out": binding.cell(launch, launch.values[1]),
        "totals": binding.workspace_cell(0, size),
        "before": binding.workspace_cell(size, size),
    }
    return bind_steps(binding, steps, cells)
