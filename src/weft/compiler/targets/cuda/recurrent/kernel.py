"""All steps of a recurrent layer in one kernel, whose blocks stay and wait for each other.

A block has four units of 64 rows: their columns of the weights lie in its shared memory for all
steps, and a thread keeps the carries of one unit of one row. In each step threads compute what is
multiplied, put it into memory where all blocks of the rows read it, and wait for these blocks. Then
warps multiply, each a stretch of the summed axis, their sums are added in a fixed order, and the
threads compute the rest. What is exchanged has two places in turns: no block is two steps ahead.

A counter for each 64 rows says how many blocks have put down theirs, over all steps; a second one
how many are done with it, and the last makes zeros of both. So blocks of the same rows must all run
at once: a launch has at most as many as there are multiprocessors.
"""

from __future__ import annotations

from functools import cache
from math import ceil

from weft.compiler.targets.cuda.products.expressions import write_expressions
from weft.compiler.targets.cuda.ptx_writer import (
    Kernel,
    Parameter,
    Pointer,
    Value,
    Word,
    at,
    braces,
)
from weft.compiler.targets.cuda.recurrent.description import (
    PRODUCT,
    Input,
    StepForm,
    depends_on_product,
    input_name,
)
from weft.core.records import frozen
from weft.ir.scalars import Scalar

__all__ = [
    "RecurrentKernel", "block_count", "counter_count", "exchange_bytes", "recurrent_kernel",
    "why_no_kernel",
]  # fmt: skip

UNITS, ROWS = 4, 64  # of a block
THREADS = UNITS * ROWS
_WARPS = THREADS // 32
_LANE_ROWS, _LANE_COLUMNS = 8, 4  # sums of a lane
_MOST_COLUMNS = 16  # of a block's product
_UNROLLED = 8  # steps of the summed axis, at most
_SHARED = 200 << 10  # bytes of a block, at most


@frozen(slots=False)
class RecurrentKernel:
    """The kernel, ready for the driver."""

    form: StepForm
    name: str
    text: str
    threads: int
    shared_bytes: int
    parameters: tuple[Parameter, ...]


def _groups(form: StepForm) -> int:
    """Groups of rows, each of which has blocks that wait for each other."""
    return ceil(form.batch / ROWS)


def block_count(form: StepForm) -> int:
    """Blocks of a launch, all of which must run at once."""
    return form.units // UNITS * _groups(form)


def counter_count(form: StepForm) -> int:
    """Counters of a launch."""
    return 2 * _groups(form)


def exchange_bytes(form: StepForm) -> int:
    """Bytes in which blocks put down what is multiplied, for two steps."""
    return 2 * _groups(form) * ROWS * _depth(form) * 4


def _depth(form: StepForm) -> int:
    """The summed axis."""
    return len(form.multiplied) * form.units


def _columns(form: StepForm) -> int:
    """Columns of a block's product, where a lane has four."""
    return {1: 4, 2: 8}.get(form.products, _MOST_COLUMNS)


def _lane_slices(form: StepForm) -> int:
    """How many neighbours along the summed axis the lanes of a warp have at once."""
    lanes = 32 * _LANE_ROWS * _LANE_COLUMNS
    return lanes // (ROWS * _columns(form))


def why_no_kernel(form: StepForm, multiprocessors: int) -> str:
    """The reason why there is no kernel of a form; empty where there is one."""
    if form.products * UNITS > _MOST_COLUMNS:
        return "a product has more than four parts"
    if form.units % UNITS or _depth(form) % (_WARPS * _lane_slices(form)):
        return "units do not come out even"
    if block_count(form) > multiprocessors:
        return "blocks would wait for others that do not run"
    if _Memory(form).size > _SHARED:
        return "the weights of a block do not fit into its shared memory"
    return ""


@cache
def recurrent_kernel(form: StepForm, *, reverse: bool) -> RecurrentKernel:
    """The kernel of a form, which takes its rows from the first or, in `reverse`, from the last."""
    writer = _Writer(form, reverse)
    writer.write()
    kernel = writer.kernel
    return RecurrentKernel(
        form, kernel.name, kernel.text(), kernel.threads, writer.memory.size, kernel.parameters
    )


class _Memory:
    """Where in a block's shared memory what lies."""

    def __init__(self, form: StepForm) -> None:
        self.columns = _columns(form)
        self.slices = _WARPS * _lane_slices(form)
        self.weights = 0
        self.sums = 4 * _depth(form) * self.columns
        self.size = self.sums + 4 * self.slices * ROWS * self.columns


class _Writer:
    """Writes the kernel."""

    def __init__(self, form: StepForm, reverse: bool) -> None:
        self.form, self.reverse, self.memory = form, reverse, _Memory(form)
        names = ["weights", *map(_pointer_name, form.inputs)]
        names += [f"carry{n}" for n in range(len(form.carries)) if f"carry{n}" not in names]
        names += [f"final{n}" for n in range(len(form.carries))]
        names += [f"made{n}" for n in range(len(form.rows))]
        pointers = [Pointer(name) for name in (*names, "exchange", "counters")]
        self.kernel = Kernel("recurrent_steps", [*pointers, Word("steps")], THREADS, target="sm_80")

    def write(self) -> None:
        """The whole kernel: weights, what threads keep, all steps, and what is left."""
        kernel, form = self.kernel, self.form
        self.thread = kernel.special_register("tid.x")
        block = kernel.special_register("ctaid.x")
        slabs = form.units // UNITS
        self.group, slab = block // slabs, block % slabs
        self.shared = kernel.shared_memory()
        self.steps = kernel.parameter("steps")
        self.leads = self.thread.equals(0)
        self._load_weights(slab)
        self.place = self.thread // UNITS
        self.row = self.group * ROWS + self.place
        self.unit = slab * UNITS + self.thread % UNITS
        self.inside = self.row < form.batch
        self._begin_values()
        self._find_exchange()
        step = kernel.variable("u32", 0, "step")
        with kernel.loop("step") as loop:
            loop.stop_if(step >= self.steps)
            self._write_step(step)
            kernel.assign(step, step + 1)
        for number, carry in enumerate(self.carries):
            place = self._element(kernel.parameter(f"final{number}"), 1, 0)
            kernel.do("st.global.f32", at(place), carry, when=self.inside)
        self._clear_counters(slabs)

    def _load_weights(self, slab: Value) -> None:
        """The block's columns of the weights, in rows of the summed axis; zeros behind them."""
        kernel, form, columns = self.kernel, self.form, self.memory.columns
        source, depth = kernel.parameter("weights"), _depth(form)
        number = kernel.variable("u32", self.thread, "number")
        with kernel.loop("weights") as loop:
            loop.stop_if(number >= depth * columns)
            k, column = number // columns, number % columns
            part, unit = column // UNITS, slab * UNITS + column % UNITS
            where = part * form.units + unit
            exists = part < form.products
            width = form.products * form.units
            index = where * depth + k if form.transposed else k * width + where
            weight = kernel.variable("f32", 0.0)
            kernel.do("ld.global.f32", weight, at(kernel.address(source, index, 4)), when=exists)
            kernel.do("st.shared.f32", at(self.shared + number * 4, self.memory.weights), weight)
            kernel.assign(number, number + THREADS)

    # --- what a thread keeps ----------------------------------------------------------------------

    def _element(self, base: Value, parts: int, part: int) -> Value:
        """Where this thread's element of a part of a matrix lies."""
        columns = parts * self.form.units
        index = self.kernel.let("u64", "mul.wide.u32", self.row, columns)
        index = index + self.kernel.let("u64", "cvt.u64.u32", self.unit + part * self.form.units)
        return base + index * 4

    def _begin_values(self) -> None:
        """Carries, constants, and the rows of the first step."""
        kernel, form = self.kernel, self.form
        self.values: dict[str, Value] = {}
        self.carries = [
            self._load_number(self._element(kernel.parameter(f"carry{n}"), 1, 0), self.inside)
            for n in range(len(form.carries))
        ]
        self.row_places: dict[str, tuple[Value, int]] = {}
        self.following: dict[str, Value] = {}
        for each in form.inputs:
            for part in range(each.parts):
                name = input_name(each, part)
                if each.role == "carry":
                    self.values[name] = self.carries[each.number]
                elif each.role == "constant":
                    self.values[name] = self._constant(each, part)
                else:
                    self.following[name] = kernel.variable("f32", 0.0, "following")
                    self.values[name] = kernel.variable("f32", 0.0, "row")
            if each.role == "row":
                place = self._first_row(_pointer_name(each), each.parts)
                self.row_places[_pointer_name(each)] = (place, each.parts)
        self.made_places = [
            (self._first_row(f"made{n}", len(parts)), len(parts))
            for n, parts in enumerate(form.rows)
        ]
        self._load_rows(self.inside & (self.steps > 0))

    def _load_number(self, place: Value, when: Value) -> Value:
        value = self.kernel.variable("f32", 0.0)
        self.kernel.do("ld.global.f32", value, at(place), when=when)
        return value

    def _constant(self, each: Input, part: int) -> Value:
        kernel = self.kernel
        base = kernel.parameter(_pointer_name(each))
        if each.lies == "scalar":
            return kernel.let("f32", "ld.global.f32", at(base))
        if each.lies == "vector":
            place = kernel.address(base, self.unit + part * self.form.units, 4)
            return kernel.let("f32", "ld.global.f32", at(place))
        return self._load_number(self._element(base, each.parts, part), self.inside)

    def _first_row(self, name: str, parts: int) -> Value:
        """Where this thread's element of the first step lies."""
        kernel = self.kernel
        place = self._element(kernel.parameter(name), parts, 0)
        if not self.reverse:
            return kernel.variable("u64", place, "place")
        last = self.steps.maximum(1) - 1
        size = kernel.let("u64", "mul.wide.u32", last, self._row_bytes(parts))
        return kernel.variable("u64", place + size, "place")

    def _row_bytes(self, parts: int) -> int:
        """From one step to the next."""
        return 4 * self.form.batch * parts * self.form.units

    def _advance(self, place: Value, parts: int) -> None:
        """Go to the row of the next step."""
        size = self._row_bytes(parts)
        self.kernel.assign(place, place - size if self.reverse else place + size)

    def _load_rows(self, when: Value) -> None:
        """Begin to read what the next step takes of its rows, and go on behind it."""
        for each in self.form.inputs:
            if each.role == "row":
                place, parts = self.row_places[_pointer_name(each)]
                for part in range(parts):
                    target = self.following[input_name(each, part)]
                    where = at(place, 4 * part * self.form.units)
                    self.kernel.do("ld.global.f32", target, where, when=when)
                self._advance(place, parts)

    # --- a step -----------------------------------------------------------------------------------

    def _write_step(self, step: Value) -> None:
        kernel, form = self.kernel, self.form
        for name, following in self.following.items():
            kernel.assign(self.values[name], following)
        made = [(n, part) for n, parts in enumerate(form.rows) for part in range(len(parts))]
        early = [each for each in made if not depends_on_product(form.rows[each[0]][each[1]])]
        late = [each for each in made if each not in early]
        roots = [*form.multiplied, *[form.rows[n][part] for n, part in early]]
        found = self._compute_all(roots, self.values)
        for part, value in enumerate(found[: len(form.multiplied)]):
            offset = 4 * part * form.units * ROWS
            kernel.do("st.global.f32", at(self.mine, offset), value)
        self._arrive()
        for (n, part), value in zip(early, found[len(form.multiplied) :], strict=True):
            self._store_made(n, part, value)
        self._load_rows(self.inside & (step + 1 < self.steps))
        self._wait((step + 1) * (form.units // UNITS))
        self._multiply()
        known = self.values | {f"{PRODUCT}{n}": x for n, x in enumerate(self._sums())}
        roots = [*form.carries, *[form.rows[n][part] for n, part in late]]
        found = self._compute_all(roots, known)
        for (n, part), value in zip(late, found[len(form.carries) :], strict=True):
            self._store_made(n, part, value)
        for place, parts in self.made_places:
            self._advance(place, parts)
        for carry, value in zip(self.carries, found[: len(form.carries)], strict=True):
            kernel.assign(carry, value)
        for place in (self.mine, self.theirs):
            kernel.assign(place, place + self.turn)
        kernel.assign(self.turn, kernel.let("u64", "neg.s64", self.turn))

    def _compute_all(self, roots: list[Scalar], values: dict[str, Value]) -> list[Value]:
        """Expressions of this thread's numbers, in registers that are not written again."""
        pairs = {name: [value] for name, value in values.items()}
        found = write_expressions(self.kernel, roots, [pairs])
        return [self.kernel.variable("f32", one) for [[one]] in found]

    def _store_made(self, number: int, part: int, value: Value) -> None:
        where = at(self.made_places[number][0], 4 * part * self.form.units)
        self.kernel.do("st.global.f32", where, value, when=self.inside)

    # --- blocks beside each other -----------------------------------------------------------------

    def _find_exchange(self) -> None:
        """Where this thread puts down what it has, and where its lane reads, in this step."""
        kernel, depth = self.kernel, _depth(self.form)
        half = 4 * _groups(self.form) * ROWS * depth
        own = kernel.let("u64", "mul.wide.u32", self.group, 4 * ROWS * depth)
        base = kernel.parameter("exchange") + own
        index = self.unit * ROWS + self.place
        self.mine = kernel.variable("u64", kernel.address(base, index, 4), "mine")
        self._find_lane()
        first = self.first_depth * ROWS + self.lane_row
        self.theirs = kernel.variable("u64", kernel.address(base, first, 4), "theirs")
        self.turn = kernel.variable("u64", half, "turn")
        self.counter = kernel.address(kernel.parameter("counters"), self.group, 8)

    def _find_lane(self) -> None:
        """The lane's rows and columns of the product, and where it begins along the summed axis."""
        slices, lane = _lane_slices(self.form), self.thread & 31
        warp = self.thread >> 5
        column_groups = self.memory.columns // _LANE_COLUMNS
        self.lane_row = (lane & 7) * _LANE_ROWS
        other = lane >> 3
        self.lane_column = (other % column_groups) * _LANE_COLUMNS
        own = other // column_groups
        self.first_depth = warp * (_depth(self.form) // _WARPS) + own
        self.slice = warp * slices + own

    def _arrive(self) -> None:
        """Say that this block has put down what it has."""
        kernel = self.kernel
        kernel.do("bar.sync", 0)
        kernel.do("fence.acq_rel.gpu", when=self.leads)
        kernel.do("red.release.gpu.global.add.u32", at(self.counter), 1, when=self.leads)

    def _wait(self, count: Value) -> None:
        """Wait until all blocks of these rows have put down theirs."""
        kernel = self.kernel
        with kernel.when(self.leads):
            again = kernel.label("turn")
            kernel.place(again)
            arrived = kernel.let("u32", "ld.acquire.gpu.global.u32", at(self.counter))
            kernel.jump(again, arrived < count)
        kernel.do("bar.sync", 0)

    def _clear_counters(self, slabs: int) -> None:
        """The last block that is done with the counters makes zeros of them."""
        kernel = self.kernel
        with kernel.when(self.leads):
            order = "atom.acq_rel.gpu.global.add.u32"
            before = kernel.let("u32", order, at(self.counter, 4), 1)
            with kernel.when(before.equals(slabs - 1)):
                kernel.do("st.global.u32", at(self.counter), 0)
                kernel.do("st.global.u32", at(self.counter, 4), 0)

    # --- the product ------------------------------------------------------------------------------

    def _multiply(self) -> None:
        """Sums of a stretch of the summed axis: eight rows and four columns of each lane."""
        kernel, columns = self.kernel, self.memory.columns
        slices = _lane_slices(self.form)
        count = _depth(self.form) // _WARPS // slices
        unrolled = next(size for size in (_UNROLLED, 4, 2, 1) if count % size == 0)
        sums = [kernel.variable("f32", 0.0, "sum") for _ in range(_LANE_ROWS * _LANE_COLUMNS)]
        source = kernel.variable("u64", self.theirs, "source")
        first = (self.first_depth * columns + self.lane_column) * 4
        weights = kernel.variable("u32", self.shared + self.memory.weights + first, "weights")
        left = kernel.variable("u32", count // unrolled, "left")
        with kernel.loop("multiply") as loop:
            loop.stop_if(left.equals(0))
            loaded = [self._load_factors(source, weights, n * slices) for n in range(unrolled)]
            for rows, factors in loaded:
                for n, total in enumerate(sums):
                    x, y = rows[n // _LANE_COLUMNS], factors[n % _LANE_COLUMNS]
                    kernel.do("fma.rn.f32", total, x, y, total)
            kernel.assign(source, source + unrolled * slices * ROWS * 4)
            kernel.assign(weights, weights + unrolled * slices * columns * 4)
            kernel.assign(left, left - 1)
        corner = (self.slice * ROWS + self.lane_row) * columns + self.lane_column
        target = self.shared + self.memory.sums + corner * 4
        for row in range(_LANE_ROWS):
            four = braces(sums[row * _LANE_COLUMNS : (row + 1) * _LANE_COLUMNS])
            kernel.do("st.shared.v4.f32", at(target, 4 * row * columns), four)
        kernel.do("bar.sync", 0)

    def _load_factors(
        self, source: Value, weights: Value, depth: int
    ) -> tuple[list[Value], list[Value]]:
        """Eight rows of what was exchanged, past the first level of cache, and four weights."""
        kernel = self.kernel
        rows = kernel.registers("f32", "x", _LANE_ROWS)
        for half in (0, 4):
            where = at(source, 4 * (depth * ROWS + half))
            kernel.do("ld.global.cg.v4.f32", braces(rows[half : half + 4]), where)
        factors = kernel.registers("f32", "w", _LANE_COLUMNS)
        where = at(weights, 4 * depth * self.memory.columns)
        kernel.do("ld.shared.v4.f32", braces(factors), where)
        return rows, factors

    def _sums(self) -> list[Value]:
        """The product of this thread's unit and row: sums of all stretches, in their order."""
        kernel, columns = self.kernel, self.memory.columns
        corner = self.place * columns + self.thread % UNITS
        source = self.shared + self.memory.sums + corner * 4
        found = []
        for part in range(self.form.products):
            total = kernel.variable("f32", 0.0)
            for number in range(self.memory.slices):
                where = at(source, 4 * (number * ROWS * columns + part * UNITS))
                value = kernel.let("f32", "ld.shared.f32", where)
                total = value if not number else total + value
            found.append(total)
        return found


def _pointer_name(each: Input) -> str:
    """The parameter that an input is read from."""
    return f"{each.role}{each.number}"
