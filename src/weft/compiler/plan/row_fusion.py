"""Row fusion: a product and the row-wise kernels around it, run block of rows by block of rows.

What such a kernel reads of the product are rows that have just been made, and are still in cache:
bias, activation, residual, softmax or an optimiser's update become the epilogue of a product, and
a value that only the fusion reads is never in main memory: it lies in scratch memory of a block.
A kernel is part of a fusion if each of its iterations touches nothing of the fusion's values but
its own rows, which the lowering tells (`by_rows`); its code is the same as outside of fusions. Sums
over the rows are taken chunk by chunk (`weft.compiler.fusion.split_reduction`): of what a fusion
makes or reads, the sums of chunks are part of it. Without a product, they follow a kernel that has
rows.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.cpu.target import CPU
>>> kinds = [wf.spec("float32", shape) for shape in ((64, 32), (32, 16), (16,))]
>>> plan = plan_program(wf.ir.trace(lambda x, w, b: wf.relu(x @ w + b), *kinds), CPU)
>>> [launch.name for launch in plan.launches]
['dot+k0']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import lcm

from weft.compiler.plan.launch import Kind, Launch, Root, Sizes, Value, no_numbers, one
from weft.compiler.plan.order import runnable_order
from weft.compiler.targets.limits import PlanLimits
from weft.core.records import frozen
from weft.core.shapes import Dimension, size, substitute
from weft.ir.graph import Graph, Variable

STARTS = (Kind.PRODUCT, Kind.CONVOLUTION, Kind.VECTOR_PRODUCT)
"""The kinds of launches that a fusion begins with."""
EXACT = (Kind.CONVOLUTION, Kind.VECTOR_PRODUCT)
"""Those of which a block has the rows that they ask for, each of them as large as any."""


@frozen
class Stage:
    """A launch in a row fusion: it has `many` iterations for each `few` rows."""

    launch: Launch
    many: Dimension
    few: Dimension


def fuse_rows(
    launches: Sequence[Launch],
    outputs: Sequence[Value],
    graph: Graph,
    root: Root,
    limits: PlanLimits,
) -> list[Launch]:
    """The launches, row fusions as one each, as early as they can run; `outputs` are stored."""
    if not limits.fused_launches:
        return list(launches)
    order = _order_with_late_sums(launches, root)
    made = _Finder([launches[place] for place in order], outputs, graph, root, limits).all()
    found = {place: launch for place, launch in zip(order, made, strict=True) if launch is not None}
    return runnable_order([found[place] for place in sorted(found)], root)


def _order_with_late_sums(launches: Sequence[Launch], root: Root) -> list[int]:
    """An order in which sums over rows, and what is made of them, wait until they are read.

    So they are in nobody's way: a fusion may go on behind them, or take them in.
    """
    order: list[int] = []
    waiting: set[int] = set()
    # a join has several, one for each of its parts
    makers: dict[Value, list[int]] = {}

    def awaited_launches(place: int) -> set[int]:
        """The launches before one that wait, and make what it reads or begin what it writes."""
        found = {p for value in launches[place].values for p in makers.get(root(value), ())}
        return {other for other in found if other < place} & waiting

    def put(place: int) -> None:
        needed, unseen = {place}, [place]
        while unseen:
            others = awaited_launches(unseen.pop()) - needed
            needed |= others
            unseen += others
        waiting.difference_update(needed)
        order.extend(sorted(needed))

    for place, launch in enumerate(launches):
        if is_sum(launch) or (
            awaited_launches(place) and launch.group is not None and not launch.by_rows
        ):
            for value in launch.writes:
                makers.setdefault(root(value), []).append(place)
            waiting.add(place)
        else:
            put(place)
    for place in sorted(waiting):  # what one waits for comes before it, and was put already
        put(place)
    return order


class _Finder:
    """What is looked up while row fusions are found."""

    def __init__(
        self,
        launches: Sequence[Launch],
        outputs: Sequence[Value],
        graph: Graph,
        root: Root,
        limits: PlanLimits,
    ) -> None:
        self.launches, self.root, self.limits = launches, root, limits
        self.outputs = {root(atom) for atom in outputs}
        barriers = [node for node in graph.nodes if node.primitive.name == "barrier"]
        self.fenced: set[Value] = {node.results[0] for node in barriers}
        """What is read behind a barrier is read at its own time, and is no reason for a fusion."""
        self.joined: set[Value] = {root(v) for launch in launches for v in launch.updates}
        """What several launches write, each a part: a block of rows would have one part of it."""
        self.taken: set[int] = set()
        self.readers: dict[Value, list[int]] = {}
        self.maker: dict[Value, int] = {}
        self.sums = [position for position, launch in enumerate(launches) if is_sum(launch)]
        self.packs = [
            p for p, launch in enumerate(launches) if is_end(launch) and not is_sum(launch)
        ]
        self.end: dict[int, int] = {}
        """Behind which launch one runs that is part of a fusion."""
        for position, launch in enumerate(launches):
            self.maker.update((root(value), position) for value in launch.writes)
            for value in {root(v) for v in launch.values} - {root(v) for v in launch.writes}:
                self.readers.setdefault(value, []).append(position)

    def all(self) -> list[Launch | None]:
        """Every product is the start of a fusion, unless it is part of one; then kernels are.

        A fusion stands where its start was, and nothing where its other launches were.
        """
        fusions: dict[int, _Fusion] = {}
        for position, launch in enumerate(self.launches):
            if position not in self.taken and self.is_start(launch):
                fusions[position] = (
                    _Fusion(self, position, _beside_product).extend_backward().extend_forward()
                )
                self.take(fusions[position])
        for position in self.row_kernels() if self.sums else ():
            if position not in self.taken:
                fusions[position] = _Fusion(self, position, _beside_sum).extend_by_sums()
                self.take(fusions[position])
        made = {p: fusion.launch() for p, fusion in fusions.items() if len(fusion.stages) > 1}
        return [
            made.get(position, None if position in self.taken else launch)
            for position, launch in enumerate(self.launches)
        ]

    def is_start(self, launch: Launch) -> bool:
        return launch.kind in STARTS and bool(launch.by_rows)

    def row_kernels(self) -> list[int]:
        """The kernels of which a sum over rows may be a neighbour."""
        return [p for p, launch in enumerate(self.launches) if launch.group and not is_sum(launch)]

    def take(self, fusion: _Fusion) -> None:
        """Note the launches of a fusion: they run where its last one was."""
        if len(fusion.stages) > 1:
            self.taken.update(fusion.positions)
            self.end.update(dict.fromkeys(fusion.positions, fusion.end))

    def first_reader(self, values: Sequence[Value], besides: Sequence[int]) -> int | None:
        """The first launch outside that reads any of some values."""
        found = [p for v in values for p in self.readers.get(v, []) if p not in besides]
        return min(found, default=None)

    def are_made(self, launch: Launch, place: int, besides: Sequence[int]) -> bool:
        """Whether all that a launch reads is made before a place, or by some launches."""
        makers = [self.maker.get(self.root(v), -1) for v in launch.values if v not in launch.writes]
        return all(self.end.get(maker, maker) < place for maker in makers if maker not in besides)

    def move(self, position: int, place: int) -> None:
        """Let what a launch reads be read at another place: there it will run."""
        # Later questions who reads a value first must see the new place, not the one in the list.
        for value in {self.root(v) for v in self.launches[position].values}:
            readers = self.readers.get(value, [])
            if position in readers:
                self.readers[value] = [place if p == position else p for p in readers]


class _Fusion:
    """A fusion that is being made: its stages, and the elements that a row of its values has.

    All launches outside that read what it makes come behind its `end`, the place of its last one. A
    launch is moved to the end if all else that it reads is there by then.
    """

    def __init__(self, finder: _Finder, start: int, beginning: Beginning) -> None:
        self.finder = finder
        self.positions, self.end = [start], start
        launch = finder.launches[start]
        self.width: dict[Value, Dimension] = {}
        self.seen, self.rows = beginning(finder, launch)
        """Values that are read, and not made, with the elements of a row."""
        self.partials: list[Value] = []
        """What is made of rows and has none: sums, and packed operands."""
        first = self.stage(launch, self.seen) if launch.group else self.product(launch)
        self.stages = [] if first is None else [first]
        for value in self.width:
            self.seen.pop(value, None)

    def product(self, launch: Launch) -> Stage:
        """A product as the first stage."""
        self.width = {self.finder.root(value): launch.by_rows[value] for value in launch.writes}
        return Stage(launch, 1, 1)

    def extend_backward(self) -> _Fusion:
        """The fusion with the launch before it that makes its left operand, if that fits."""
        finder, (start,), (own,) = self.finder, self.positions, self.stages
        left = finder.root(own.launch.values[0])
        made = finder.maker.get(left)
        if made is None or made in finder.taken or own.launch.values[0] not in own.launch.by_rows:
            return self
        if own.launch.values[0] in finder.fenced:
            return self
        launch = finder.launches[made]
        waiting = [finder.root(value) for value in launch.writes]
        whole = {finder.root(v) for v in own.launch.values if v not in own.launch.by_rows}
        if not whole.isdisjoint(waiting):  # the product needs all rows of what the launch makes
            return self
        # A reader in between would want all rows before the fusion has made them.
        if finder.is_start(launch) or finder.first_reader(waiting, [start, made]) in range(start):
            return self
        before = dict(self.width)
        self.width[left] = own.launch.by_rows[own.launch.values[0]]  # type: ignore[index]
        stage = self.stage(launch, self.width)
        if stage is None:
            self.width = before
        else:
            self.positions, self.stages = [made, start], [stage, own]
            self.seen.pop(left, None)
        return self

    def extend_forward(self) -> _Fusion:
        """The fusion with as many of the launches that follow as fit, and then with sums."""
        count, most = len(self.stages), self.finder.limits.fused_launches
        while count < most and any(
            self.add_stage(position) for position in self.following_launches()
        ):
            count += 1
        return self.extend_by_sums()

    def following_launches(self) -> list[int]:
        """The launches that read what the fusion makes, but for those at its ends."""
        found = {p for value in self.width for p in self.finder.readers.get(value, ())}
        return sorted(found.difference(self.positions, self.finder.sums, self.finder.packs))

    def extend_by_sums(self) -> _Fusion:
        """The fusion with sums over rows that it makes or reads, and packing of what it makes."""
        if self.stages:
            for position in self.finder.sums:
                self.add_stage(position)
            for position in self.finder.packs:
                if self.is_last(position):
                    self.add_stage(position)
        return self

    def is_last(self, position: int) -> bool:
        """Whether packing is all that a value of the fusion is for: then it takes no memory."""
        value = self.finder.root(self.finder.launches[position].values[0])
        if value not in self.width or value in self.finder.outputs:
            return False
        return self.finder.first_reader([value], [*self.positions, position]) is None

    def add_stage(self, position: int) -> bool:
        """Whether a launch fits as the next stage; if so it is."""
        finder, launch = self.finder, self.finder.launches[position]
        moved = not launch.updates and finder.are_made(launch, self.end, self.positions)
        if position in finder.taken or position <= self.end:
            return False
        if not moved and not self.is_next(position):
            return False
        stage = self.stage(launch, {**self.seen, **self.width} if is_sum(launch) else self.width)
        if stage is None:
            return False
        if moved:
            finder.move(position, self.end)
        self.end = self.end if moved else position
        self.positions.append(position)
        self.stages.insert(self.place(launch), stage)
        return True

    def place(self, launch: Launch) -> int:
        """Where among the stages a launch goes: an end behind what makes, or reads, its rows."""
        if not is_end(launch):
            return len(self.stages)
        root = self.finder.root
        read = {root(value) for value in launch.values}
        made = [n for n, s in enumerate(self.stages) if read & {root(v) for v in s.launch.writes}]
        seen = [n for n, s in enumerate(self.stages) if read & {root(v) for v in s.launch.values}]
        return 1 + max(made, default=seen[0])

    def is_next(self, position: int) -> bool:
        """Whether a launch comes before all others that read what the fusion makes."""
        made = [*self.width, *self.partials]
        others = self.finder.first_reader(made, [*self.positions, position])
        return others is None or others > position

    def stage(self, launch: Launch, known: Mapping[Value, Dimension]) -> Stage | None:
        """A launch as the next stage; None if it does not fit."""
        root = self.finder.root
        own = {root(value): parts for value, parts in launch.by_rows.items()}
        shared = {root(value) for value in launch.values} & set(known)
        whole = {root(value) for value in launch.values if value not in launch.by_rows}
        whole |= {root(value) for value in launch.values if value in self.finder.fenced}
        made = set[Value]() if is_end(launch) else {root(v) for v in launch.writes}
        if not made.isdisjoint(self.finder.joined):
            return None
        if not shared <= set(own) - whole or not made <= set(own):
            return None
        most = self.finder.limits.most_iteration_rows
        ratios = {_ratio(known[value], own[value], most) for value in shared}
        ratio = ratios.pop() if len(ratios) == 1 else None
        if ratio is None:
            return None
        if is_end(launch):
            self.partials += [root(v) for v in launch.writes]
            return Stage(launch, *ratio)
        widths: Widths = {}
        for value in map(root, launch.writes):
            width = _width(own[value], ratio)
            if width is None:
                return None
            widths[value] = width
        self.width.update(widths)
        return Stage(launch, *ratio)

    # --- the launch --------------------------------------------------------------------------

    def launch(self) -> Launch:
        """The fusion as one launch."""
        starts = [stage.launch for stage in self.stages if stage.launch.kind in STARTS]
        first = starts[0] if starts else self.stages[0].launch
        blocks = self.blocks()
        values = blocks.values
        return replace(
            first,
            kind=Kind.ROW_FUSION,
            name="+".join(stage.launch.name for stage in self.stages),
            kernel=("row fusion",),
            values=values,
            writes=tuple(v for s in self.stages for v in s.launch.writes if v in values),
            numbers=no_numbers,
            extent=lambda sizes: -(-blocks.rows(sizes) // blocks.height(sizes)),
            grain=one,
            work=self.work,
            in_place=tuple(self.in_place()),
            by_rows={},
            blocks=blocks,
            group=None,
        )

    def blocks(self) -> RowBlocks:
        """What the stages read and write, block by block."""
        root = self.finder.root
        every = [v for stage in self.stages for v in stage.launch.values]
        values = tuple(dict.fromkeys(v for v in every if not self.is_local(v)))
        scratch = tuple(dict.fromkeys(root(v) for v in every if self.is_local(v)))
        operands = tuple(
            tuple(root(v) if self.is_local(v) else values.index(v) for v in stage.launch.values)
            for stage in self.stages
        )
        return RowBlocks(
            tuple(self.stages), self.rows, dict(self.width), self.widths_read_again(), values,
            scratch, operands, self.finder.limits,
        )  # fmt: skip

    def widths_read_again(self) -> Widths:
        """The elements of a row of each value that is read by several stages and made by none."""
        root = self.finder.root
        readers = Counter(v for s in self.stages for v in {root(each) for each in s.launch.values})
        return {value: width for value, width in self.seen.items() if readers[value] > 1}

    def work(self, sizes: Sizes) -> float:
        """The work of all stages, which products, packing and loops over rows know."""
        total = 0.0
        for stage in self.stages:
            assert stage.launch.work is not None
            total += stage.launch.work(sizes)
        return total

    def in_place(self) -> Iterator[tuple[Variable, Variable]]:
        """Pairs whose operand no other stage reads, and whose result none has begun.

        A stage runs for a block of rows before the next one does: later stages read of the result
        what it has stored there, and other blocks have other rows of both.
        """
        root = self.finder.root
        uses = Counter(root(v) for stage in self.stages for v in stage.launch.values)
        stored = Counter(root(v) for stage in self.stages for v in stage.launch.writes)
        for stage in self.stages:
            for result, operand in stage.launch.in_place:
                is_by_rows = {result, operand} <= set(stage.launch.by_rows)
                is_alone = uses[root(result)] == 1 or is_by_rows
                if is_alone and uses[root(operand)] == 1 == stored[root(result)]:
                    yield result, operand

    def is_local(self, value: Value) -> bool:
        """Whether a value is made and read in this fusion only."""
        root = self.finder.root(value)
        if root not in self.width or root in self.finder.outputs:
            return False
        return self.finder.first_reader([root], self.positions) is None


@frozen
class RowBlocks:
    """The stages of a row fusion, and how rows are cut into blocks.

    widths: the elements of one row of each value that is made; read_again: the same of values that
    several stages read, which should stay in cache between them; values: what is in memory, each
    once; scratch: what is in scratch memory of a block; operands: for each stage its buffers, as
    places among the values, or as values in scratch memory.
    """

    stages: tuple[Stage, ...]
    rows: Rows
    widths: Mapping[Value, Dimension]
    read_again: Mapping[Value, Dimension]
    values: tuple[Value, ...]
    scratch: tuple[Value, ...]
    operands: tuple[tuple[int | Value, ...], ...]
    limits: PlanLimits

    def row_bytes(self, value: Value, sizes: Sizes) -> int:
        """The bytes that one row of a value takes."""
        width = self.widths[value] if value in self.widths else self.read_again[value]
        return _number(width, sizes) * value.type.dtype.itemsize

    def height(self, sizes: Sizes) -> int:
        """The rows of a block: as many as a product wants, if they stay in cache."""
        limits = self.limits
        unit = lcm(*[_number(stage.few, sizes) for stage in self.stages])
        grains = [s.launch.grain(sizes) for s in self.stages if s.launch.kind in STARTS]
        wanted = min(grains, default=self.rows(sizes) // limits.row_blocks)
        held = sum(self.row_bytes(value, sizes) for value in (*self.widths, *self.read_again))
        fits = min(wanted, limits.row_block_bytes // max(1, held))
        if not grains or any(stage.launch.kind in EXACT for stage in self.stages):
            return max(1, fits // unit) * unit
        whole = lcm(unit, limits.tile_rows)
        step = whole if whole <= limits.most_rounded_rows else unit
        return max(1, (max(limits.fewest_block_rows, fits) + step // 2) // step) * step

    def places(self, sizes: Sizes, height: int) -> tuple[dict[Value, tuple[int, int]], int]:
        """Where in scratch memory each value is, the bytes of its rows; and how much there is."""
        offsets, used = dict[Value, tuple[int, int]](), 0
        line = self.limits.cache_line_bytes
        for value in self.scratch:
            wide = self.row_bytes(value, sizes)
            offsets[value] = used, wide
            used += -(-wide * height // line) * line
        return offsets, used


def is_sum(launch: Launch) -> bool:
    """Whether a launch makes sums of chunks of rows."""
    return launch.group is not None and all(root.rows for root in launch.group.roots)


def is_end(launch: Launch) -> bool:
    """Whether a launch makes something without rows of rows: sums, or a packed operand."""
    return is_sum(launch) or (launch.kind is Kind.PACK and bool(launch.by_rows))


Widths = dict[Value, Dimension]
Rows = Callable[[Sizes], int]
Beginning = Callable[["_Finder", Launch], tuple[Widths, Rows]]


def _beside_product(finder: _Finder, launch: Launch) -> tuple[Widths, Rows]:
    """The elements of a row of what a product touches, and how many rows there are.

    A row is an iteration, also where it has no elements.
    """
    read = {finder.root(v): part for v, part in launch.by_rows.items() if v not in finder.fenced}
    return read, launch.extent


def _beside_sum(finder: _Finder, launch: Launch) -> tuple[Widths, Rows]:
    """The same for a kernel, by the first sum over rows of what it touches."""
    touched = {finder.root(value) for value in launch.by_rows}
    for position in finder.sums:
        other = finder.launches[position]
        if position in finder.taken or other.group is None:
            continue
        rows = other.group.roots[0].rows
        read = {finder.root(v): part for v, part in other.by_rows.items() if v not in other.writes}
        wide = {
            v: part // rows for v, part in read.items() if isinstance(part, int) and v in touched
        }
        shared: Widths = {v: width for v, width in wide.items() if width > 1}
        for value, width in shared.items():
            return shared, partial(_number, size(value.type.shape) // width)
    return {}, partial(_number, 0)


def _number(dim: Dimension, sizes: Sizes) -> int:
    return int(substitute(dim, dict(sizes)))


def _ratio(width: Dimension, part: Dimension, most: int) -> tuple[Dimension, Dimension] | None:
    """How many iterations there are for how many rows; None if it is not known to come out.

    Of rows without elements it is not known which of them belong to an iteration.
    """
    if 0 in (width, part):
        return None
    if part == width:
        return 1, 1
    if part == 1:
        return width, 1
    if not isinstance(width, int) or not isinstance(part, int):
        return None
    if width % part == 0:
        return width // part, 1
    return (1, part // width) if part % width == 0 and part // width <= most else None


def _width(part: Dimension, ratio: tuple[Dimension, Dimension]) -> Dimension | None:
    """The elements of a row of a value of which an iteration makes a part."""
    many, few = ratio
    total = part * many
    if few == 1:
        return total
    exact = isinstance(total, int) and isinstance(few, int) and total % few == 0
    return total // few if exact else None
