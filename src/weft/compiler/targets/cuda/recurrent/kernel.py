"""All steps of a recurrent layer in one kernel, whose blocks stay and wait for each other.

A block has four units of 32 or 64 rows: their columns of the weights lie in its shared memory for
all steps, and a thread keeps the carries of one unit of one row. In each step threads compute what
is multiplied, put it into memory where all blocks of the rows read it, and wait for these blocks.
Then warps multiply, each a stretch of the summed axis, their sums are added in a fixed order, and
the threads compute the rest. What is exchanged has two places in turns: none is two steps ahead.

A counter for each group of rows says how many blocks have put down theirs, over all steps; a second
one how many are done with it, and the last makes zeros of both. So blocks of the same rows must all
run at once: a launch has at most as many as there are multiprocessors.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
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
from weft.core.dtypes import float32, int64
from weft.core.errors import Unsupported
from weft.core.records import frozen
from weft.ir.scalars import Scalar

__all__ = ["Layout", "RecurrentKernel", "best_layout", "recurrent_kernel"]

UNITS, THREADS = 4, 256  # of a block
_WARPS = THREADS // 32
_LANE_ROWS, _LANE_COLUMNS = 8, 4  # sums of a lane
_MOST_COLUMNS = 16  # of a block's product
_UNROLLED = 8  # steps of the summed axis, at most
_SHARED = 200 << 10  # bytes of a block, at most
_KINDS = {float32: "f32", int64: "s64"}


@frozen(slots=False)
class Layout:
    """How a form is cut into blocks, and what these share."""

    form: StepForm
    rows: int  # of a block: 32 or 64

    @property
    def groups(self) -> int:
        """Groups of rows, each of which has blocks that wait for each other."""
        return ceil(self.form.batch / self.rows)

    @property
    def slabs(self) -> int:
        """Blocks of a group."""
        return self.form.units // UNITS

    @property
    def blocks(self) -> int:
        """Blocks of a launch, all of which must run at once."""
        return self.slabs * self.groups

    @property
    def counters(self) -> int:
        """Counters of a launch."""
        return 2 * self.groups

    @property
    def depth(self) -> int:
        """The summed axis."""
        return len(self.form.multiplied) * self.form.units

    @property
    def exchange_bytes(self) -> int:
        """Bytes in which blocks put down what is multiplied, for two steps."""
        return 2 * self.groups * self.rows * self.depth * 4

    @property
    def columns(self) -> int:
        """Columns of a block's product, where a lane has four."""
        return {1: 4, 2: 8}.get(self.form.products, _MOST_COLUMNS)

    @property
    def lane_slices(self) -> int:
        """How many neighbours along the summed axis the lanes of a warp have at once."""
        return 32 * _LANE_ROWS * _LANE_COLUMNS // (self.rows * self.columns)

    @property
    def slices(self) -> int:
        """Stretches of the summed axis that are summed apart."""
        return _WARPS * self.lane_slices

    @property
    def is_even(self) -> bool:
        """Whether units make whole blocks, and the summed axis whole stretches."""
        return self.form.units % UNITS == self.depth % self.slices == 0

    @property
    def sums_place(self) -> int:
        """Where in shared memory the sums of stretches lie, behind the weights."""
        return 4 * self.depth * self.columns

    @property
    def row_pitch(self) -> int:
        """Numbers from one row of sums to the next: neighbours are in other banks of the memory."""
        return self.columns + (_LANE_COLUMNS if self.columns > _LANE_COLUMNS else 0)

    @property
    def slice_pitch(self) -> int:
        """Numbers from the sums of one stretch to those of the next, likewise."""
        return self.rows * self.row_pitch + _LANE_COLUMNS

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.sums_place + 4 * self.slices * self.slice_pitch


def best_layout(form: StepForm, multiprocessors: int) -> Layout:
    """The layout of most blocks that run at once; `Unsupported` where there is none."""
    if form.products * UNITS > _MOST_COLUMNS:
        raise Unsupported("a product has more than four parts")
    layouts = [Layout(form, rows) for rows in (32, 64)]
    even = [each for each in layouts if each.is_even]
    if not even:
        raise Unsupported("units do not come out even")
    fitting = [each for each in even if each.blocks <= multiprocessors]
    if not fitting:
        raise Unsupported("blocks would wait for others that do not run")
    if fitting[0].shared_bytes > _SHARED:
        raise Unsupported("the weights of a block do not fit into its shared memory")
    return fitting[0]


@frozen(slots=False)
class RecurrentKernel:
    """The kernel, ready for the driver."""

    layout: Layout
    name: str
    text: str
    threads: int
    shared_bytes: int
    parameters: tuple[Parameter, ...]


@cache
def recurrent_kernel(layout: Layout, *, reverse: bool) -> RecurrentKernel:
    """The kernel of a form, which takes its rows from the first or, in `reverse`, from the last."""
    assert layout.is_even
    writer = _Writer(layout, reverse)
    writer.write()
    kernel = writer.kernel
    return RecurrentKernel(
        layout, kernel.name, kernel.text(), kernel.threads, layout.shared_bytes, kernel.parameters
    )


class _Writer:
    """Writes the kernel."""

    def __init__(self, layout: Layout, reverse: bool) -> None:
        self.layout, self.reverse = layout, reverse
        self.form = form = layout.form
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
        self.group, slab = block // self.layout.slabs, block % self.layout.slabs
        self.shared = kernel.shared_memory()
        self.steps = kernel.parameter("steps")
        self.leads = self.thread.equals(0)
        self._load_weights(slab)
        self.place = self.thread // UNITS
        self.row = self.group * self.layout.rows + self.place
        self.unit = slab * UNITS + self.thread % UNITS
        self.inside = self.row < form.batch
        self.owns = self.thread < self.layout.rows * UNITS
        if self.layout.rows * UNITS < THREADS:
            self.inside = self.inside & self.owns
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
        self._clear_counters()

    def _load_weights(self, slab: Value) -> None:
        """The block's columns of the weights, in rows of the summed axis; zeros behind them."""
        kernel, form, columns = self.kernel, self.form, self.layout.columns
        source, depth = kernel.parameter("weights"), self.layout.depth
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
            kernel.do("st.shared.f32", at(self.shared + number * 4), weight)
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
                    kind = _KINDS[each.dtype]
                    self.following[name] = kernel.variable(kind, 0, "following")
                    self.values[name] = kernel.variable(kind, 0, "row")
            if each.role == "row":
                name, parts = _pointer_name(each), 0 if each.lies == "scalar" else each.parts
                size = self._row_bytes(parts) if parts else each.dtype.itemsize
                self.row_places[name] = (self._first_row(name, parts, size), size)
        self.made_places = [
            (self._first_row(f"made{n}", len(parts), size), size)
            for n, parts in enumerate(form.rows)
            for size in [self._row_bytes(len(parts))]
        ]
        self._load_rows(self.inside & (self.steps > 0))

    def _load_number(self, place: Value, when: Value, kind: str = "f32") -> Value:
        value = self.kernel.variable(kind, 0)
        self.kernel.do(f"ld.global.{kind}", value, at(place), when=when)
        return value

    def _constant(self, each: Input, part: int) -> Value:
        kernel, kind = self.kernel, _KINDS[each.dtype]
        base = kernel.parameter(_pointer_name(each))
        if each.lies == "scalar":
            return kernel.let(kind, f"ld.global.{kind}", at(base))
        if each.lies == "vector":
            place = kernel.address(base, self.unit + part * self.form.units, each.dtype.itemsize)
            return kernel.let(kind, f"ld.global.{kind}", at(place))
        if each.lies == "line":
            place = kernel.address(base, self.row, each.dtype.itemsize)
            return self._load_number(place, self.inside, kind)
        return self._load_number(self._element(base, each.parts, part), self.inside)

    def _first_row(self, name: str, parts: int, size: int) -> Value:
        """Where this thread's element of the first step lies; without parts, the step's number."""
        kernel = self.kernel
        place = kernel.parameter(name)
        if parts:
            place = self._element(place, parts, 0)
        if self.reverse:
            last = self.steps.maximum(1) - 1
            place = place + kernel.let("u64", "mul.wide.u32", last, size)
        return kernel.variable("u64", place, "place")

    def _row_bytes(self, parts: int) -> int:
        """From one step to the next."""
        return 4 * self.form.batch * parts * self.form.units

    def _advance(self, place: Value, size: int) -> None:
        """Go to the row of the next step."""
        self.kernel.assign(place, place - size if self.reverse else place + size)

    def _load_rows(self, when: Value) -> None:
        """Begin to read what the next step takes of its rows, and go on behind it."""
        for each in self.form.inputs:
            if each.role == "row":
                place, size = self.row_places[_pointer_name(each)]
                for part in range(each.parts):
                    target = self.following[input_name(each, part)]
                    where = at(place, 4 * part * self.form.units)
                    self.kernel.do(f"ld.global.{target.kind}", target, where, when=when)
                self._advance(place, size)

    # --- a step -----------------------------------------------------------------------------------

    def _for_owners(self) -> AbstractContextManager[None]:
        """Code for the threads that have a unit of a row: those of the first warps, or all."""
        is_whole = self.layout.rows * UNITS == THREADS
        return nullcontext() if is_whole else self.kernel.when(self.owns)

    def _write_step(self, step: Value) -> None:
        kernel, form = self.kernel, self.form
        made = [(n, part) for n, parts in enumerate(form.rows) for part in range(len(parts))]
        early = [each for each in made if not depends_on_product(form.rows[each[0]][each[1]])]
        late = [each for each in made if each not in early]
        with self._for_owners():
            for name, following in self.following.items():
                kernel.assign(self.values[name], following)
            roots = [*form.multiplied, *[form.rows[n][part] for n, part in early]]
            found = self._compute_all(roots, self.values)
            for part, value in enumerate(found[: len(form.multiplied)]):
                offset = 4 * part * form.units * self.layout.rows
                kernel.do("st.global.f32", at(self.mine, offset), value)
        self._arrive()
        with self._for_owners():
            for (n, part), value in zip(early, found[len(form.multiplied) :], strict=True):
                self._store_made(n, part, value)
            self._load_rows(self.inside & (step + 1 < self.steps))
        self._wait((step + 1) * self.layout.slabs)
        self._multiply()
        with self._for_owners():
            known = self.values | {f"{PRODUCT}{n}": x for n, x in enumerate(self._add_sums())}
            roots = [*form.carries, *[form.rows[n][part] for n, part in late]]
            found = self._compute_all(roots, known)
            for (n, part), value in zip(late, found[len(form.carries) :], strict=True):
                self._store_made(n, part, value)
            for place, size in self.made_places:
                self._advance(place, size)
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
        kernel, rows, depth = self.kernel, self.layout.rows, self.layout.depth
        own = kernel.let("u64", "mul.wide.u32", self.group, 4 * rows * depth)
        base = kernel.parameter("exchange") + own
        index = self.unit * rows + self.place
        self.mine = kernel.variable("u64", kernel.address(base, index, 4), "mine")
        self._find_lane()
        first = self.first_depth * rows + self.lane_row
        self.theirs = kernel.variable("u64", kernel.address(base, first, 4), "theirs")
        self.turn = kernel.variable("u64", self.layout.exchange_bytes // 2, "turn")
        self.counter = kernel.address(kernel.parameter("counters"), self.group, 8)

    def _find_lane(self) -> None:
        """The lane's rows and columns of the product, and where it begins along the summed axis."""
        layout, lane, warp = self.layout, self.thread & 31, self.thread >> 5
        row_groups, column_groups = layout.rows // _LANE_ROWS, layout.columns // _LANE_COLUMNS
        # A lane has four rows of each half, so that neighbours read what lies side by side.
        self.lane_row = (lane % row_groups) * (_LANE_ROWS // 2)
        other = lane // row_groups
        self.lane_column = (other % column_groups) * _LANE_COLUMNS
        own = other // column_groups
        self.first_depth = warp * (layout.depth // _WARPS) + own
        self.slice = warp * layout.lane_slices + own

    def _arrive(self) -> None:
        """Say that this block has put down what it has.

        The release tells of the stores of all threads, which the barrier has put before it.
        """
        kernel = self.kernel
        kernel.do("bar.sync", 0)
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

    def _clear_counters(self) -> None:
        """The last block that is done with the counters makes zeros of them."""
        kernel = self.kernel
        with kernel.when(self.leads):
            order = "atom.acq_rel.gpu.global.add.u32"
            before = kernel.let("u32", order, at(self.counter, 4), 1)
            with kernel.when(before.equals(self.layout.slabs - 1)):
                kernel.do("st.global.u32", at(self.counter), 0)
                kernel.do("st.global.u32", at(self.counter, 4), 0)

    # --- the product ------------------------------------------------------------------------------

    def _multiply(self) -> None:
        """Sums of a stretch of the summed axis: eight rows and four columns of each lane.

        What is read next is on its way while this is multiplied.
        """
        kernel, layout = self.kernel, self.layout
        count = layout.depth // layout.slices
        unrolled = next(size for size in (_UNROLLED, 4, 2, 1) if count % size == 0)
        self.lane_sums = [
            kernel.variable("f32", 0.0, "sum") for _ in range(_LANE_ROWS * _LANE_COLUMNS)
        ]
        self.source = kernel.variable("u64", self.theirs, "source")
        first = (self.first_depth * layout.columns + self.lane_column) * 4
        self.weights = kernel.variable("u32", self.shared + first, "weights")
        left = kernel.variable("u32", count // unrolled, "left")
        batches = [
            [kernel.registers("f32", "x", _LANE_ROWS) for _ in range(unrolled)] for _ in range(2)
        ]
        self._load_batch(batches[0])
        with kernel.loop("multiply") as loop:
            for now, following in (batches, batches[::-1]):
                self._load_batch(following, left > 1)
                self._add_batch(now)
                kernel.assign(left, left - 1)
                loop.stop_if(left.equals(0))
        self._store_sums()

    def _load_batch(self, batch: list[list[Value]], when: Value | None = None) -> None:
        """Begin to read rows of what was exchanged, past the first level of cache."""
        kernel, layout = self.kernel, self.layout
        for number, rows in enumerate(batch):
            for half in (0, 1):
                row = number * layout.lane_slices * layout.rows + half * (layout.rows // 2)
                four = braces(rows[4 * half : 4 * half + 4])
                kernel.do("ld.global.cg.v4.f32", four, at(self.source, 4 * row), when=when)
        step = len(batch) * layout.lane_slices * layout.rows * 4
        kernel.assign(self.source, self.source + step)

    def _add_batch(self, batch: list[list[Value]]) -> None:
        """Multiply rows by their weights."""
        kernel, layout = self.kernel, self.layout
        for number, rows in enumerate(batch):
            factors = kernel.registers("f32", "w", _LANE_COLUMNS)
            where = at(self.weights, 4 * number * layout.lane_slices * layout.columns)
            kernel.do("ld.shared.v4.f32", braces(factors), where)
            for n, total in enumerate(self.lane_sums):
                x, y = rows[n // _LANE_COLUMNS], factors[n % _LANE_COLUMNS]
                kernel.do("fma.rn.f32", total, x, y, total)
        step = len(batch) * layout.lane_slices * layout.columns * 4
        kernel.assign(self.weights, self.weights + step)

    def _store_sums(self) -> None:
        """Put down the sums of this lane's stretch."""
        kernel, layout = self.kernel, self.layout
        corner = self.slice * layout.slice_pitch + self.lane_row * layout.row_pitch
        target = self.shared + layout.sums_place + (corner + self.lane_column) * 4
        for n in range(_LANE_ROWS):
            row = n % 4 + n // 4 * (layout.rows // 2)
            four = braces(self.lane_sums[n * _LANE_COLUMNS : (n + 1) * _LANE_COLUMNS])
            kernel.do("st.shared.v4.f32", at(target, 4 * row * layout.row_pitch), four)
        kernel.do("bar.sync", 0)

    def _add_sums(self) -> list[Value]:
        """The product of this thread's unit and row: sums of all stretches, in their order."""
        kernel, layout = self.kernel, self.layout
        corner = self.place * layout.row_pitch + self.thread % UNITS
        source = self.shared + layout.sums_place + corner * 4
        found = []
        for part in range(self.form.products):
            total = kernel.variable("f32", 0.0)
            for number in range(layout.slices):
                where = at(source, 4 * (number * layout.slice_pitch + part * UNITS))
                value = kernel.let("f32", "ld.shared.f32", where)
                total = value if not number else total + value
            found.append(total)
        return found


def _pointer_name(each: Input) -> str:
    """The parameter that an input is read from."""
    return f"{each.role}{each.number}"
