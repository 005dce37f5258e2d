"""Where values lie in the work space of a run, for any sizes that its caller chooses.

A plan for the largest sizes says which blocks of memory lie on which. A block of smaller values is
smaller, and what lies on it begins lower: offsets and the bytes of the whole work space are amounts
that a run computes from its sizes. An amount knows its value for every choice of sizes, so that
terms which never count are left out, and what is a polynomial of the sizes is written as one.

>>> sizes = SizeRange({"batch": 4})
>>> amounts = Amounts(sizes)
>>> amounts.number(lambda at: 100 * at["batch"]).in_lines.values.tolist()
[128, 256, 320, 448]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from weft.compiler.export.sizes import Count, SizeRange, Values
from weft.compiler.export.writers import Operand, Writer
from weft.compiler.plan.control_flow import Choice, Loop
from weft.compiler.plan.launch import Sizes, byte_count
from weft.compiler.plan.program_plan import ProgramPlan
from weft.core.dimensions import Dim
from weft.core.records import frozen
from weft.core.types import TensorType
from weft.runtime.memory import ALIGNMENT as LINE
from weft.runtime.memory import Lifetime, Size, StackedBlock, stacked_blocks


@frozen(eq=False, slots=False)
class Amount:
    """A number for each choice of sizes, and how it comes from others."""

    values: Values
    how: str = "number"
    """"number" (of the sizes alone), "sum", "largest", or "lines" (in whole lines of cache)."""
    parts: tuple[Amount, ...] = ()

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.values + other.values, "sum", (self, other))

    @cached_property
    def in_lines(self) -> Amount:
        """The amount in whole lines of cache."""
        return Amount(-(-self.values // LINE) * LINE, "lines", (self,))


def largest_amount(amounts: Sequence[Amount]) -> Amount:
    """The largest of some amounts; those that are not needed to say it are left out."""
    values = np.maximum.reduce([amount.values for amount in amounts])
    kept = list(amounts)
    for amount in amounts:
        others = [each for each in kept if each is not amount]
        if others and np.array_equal(np.maximum.reduce([o.values for o in others]), values):
            kept = others
    return kept[0] if len(kept) == 1 else Amount(values, "largest", tuple(kept))


class Amounts:
    """Makes amounts for a range of sizes."""

    def __init__(self, sizes: SizeRange) -> None:
        self.sizes = sizes
        self.nothing = self.number(lambda at: 0)
        self._known: dict[Dim, Amount] = {}

    def number(self, function: Callable[[Sizes], int]) -> Amount:
        """A number that is computed from the sizes."""
        values = [function(each) for each in self.sizes.choices]
        return Amount(np.array(values, np.int64))

    def bytes(self, size: Size) -> Amount:
        """The bytes of a buffer."""
        if isinstance(size, Dim):
            if size not in self._known:
                self._known[size] = Amount(self.sizes.values_of(size))
            return self._known[size]
        if isinstance(size, int):
            return self.number(lambda at: size)
        return self.number(size)

    def of_type(self, kind: TensorType) -> Amount:
        """The bytes of a value, in whole lines."""
        return self.bytes(byte_count(kind)).in_lines


@frozen(eq=False)
class LoopSpace:
    """Where in its scratch memory a loop has the memory of its plans, and spare places."""

    plan_places: tuple[Amount, ...]
    spare_places: tuple[Amount, ...]


@frozen(eq=False)
class PlanSpace:
    """Where the values of a plan lie in its memory, and those of the plans inside."""

    offsets: Mapping[str, Amount]
    """By slot."""
    peak: Amount
    """The bytes of all."""
    inner: Mapping[int, PlanSpace]
    """By identity of the plan."""
    loops: Mapping[int, LoopSpace]
    """By identity of the form of a launch."""

    def every_amount(self) -> Iterator[Amount]:
        """All amounts that a run may ask for."""
        yield from self.offsets.values()
        yield self.peak
        for loop in self.loops.values():
            yield from (*loop.plan_places, *loop.spare_places)
        for space in self.inner.values():
            yield from space.every_amount()


def plan_space(plan: ProgramPlan, amounts: Amounts, kept: Collection[str] = ()) -> PlanSpace:
    """The space of a plan; `kept`: the slots that lie elsewhere."""
    inner, loops = dict[int, PlanSpace](), dict[int, LoopSpace]()
    scratch: dict[str, Amount] = {}
    for launch in plan.launches:
        if launch.nested is not None:
            form = launch.nested.form
            inner |= {id(each): plan_space(each, amounts) for each in form.plans}
            peaks = [inner[id(each)].peak for each in form.plans]
            if isinstance(form, Loop):
                loops[id(form)] = _loop_space(form, peaks, amounts)
            slot = str(plan.slots[plan.root(launch.nested.scratch)])
            scratch[slot] = (
                largest_amount(peaks)
                if isinstance(form, Choice)
                else loops[id(form)].spare_places[-1]
            )
    own = {buffer.name for buffer in plan.planner.buffers} - set(kept)
    buffers = buffers_among(plan.planner.buffers, own)
    offsets, ends = dict[str, Amount](), list[Amount]()
    for block in stacked_blocks(buffers, amounts.sizes.largest):
        below = [ends[each] for each in block.below]
        start = largest_amount(below) if below else amounts.nothing
        ends.append(start + _block_size(block, scratch, amounts))
        offsets |= {buffer.name: start for buffer in block.buffers}
    peak = largest_amount(ends) if ends else amounts.nothing
    return PlanSpace(offsets, peak, inner, loops)


def buffers_among(buffers: Sequence[Lifetime], names: Collection[str]) -> list[Lifetime]:
    """Some of the buffers of a plan; none takes the place of one that is not among them."""
    return [
        each if each.reuses in names else replace(each, reuses=None)
        for each in buffers
        if each.name in names
    ]


def _block_size(block: StackedBlock, scratch: Mapping[str, Amount], amounts: Amounts) -> Amount:
    sizes = [scratch.get(each.name) or amounts.bytes(each.size).in_lines for each in block.buffers]
    return largest_amount(sizes)


def _loop_space(form: Loop, peaks: Sequence[Amount], amounts: Amounts) -> LoopSpace:
    plans = form.stack_plans(peaks, amounts.nothing, largest_amount)
    return LoopSpace(tuple(plans), tuple(form.stack_spares(plans[-1], amounts.of_type)))


class AmountWriter:
    """Writes amounts into one function, each once; where loops follow, before all of them."""

    def __init__(self, out: Writer, sizes: SizeRange) -> None:
        self.out, self.sizes = out, sizes
        self._written: dict[bytes, Operand] = {}

    def write(self, amount: Amount) -> Operand:
        """An amount for the sizes of the call."""
        key = amount.values.tobytes()
        if key not in self._written:
            self._written[key] = self._operand(amount)
        return self._written[key]

    def _operand(self, amount: Amount) -> Operand:
        count = self.sizes.count_of_values(amount.values)
        if amount.how == "number" or isinstance(count, int) or not count.table:
            written = write_count(self.out, count, self.sizes)
            return written if isinstance(written, int) else self.out.hold(written)
        parts = [self.write(part) for part in amount.parts]
        if amount.how == "lines":
            lines = self.out.div(self.out.add(parts[0], LINE - 1), LINE)
            return self.out.hold(self.out.mul(lines, LINE))
        result = parts[0]
        for part in parts[1:]:
            if amount.how == "sum":
                result = self.out.hold(self.out.add(result, part))
            else:
                is_less = self.out.test("slt", result, part)
                result = self.out.hold(self.out.select(is_less, part, result))
        return result


def write_count(out: Writer, count: int | Count, sizes: SizeRange) -> Operand:
    """A number of the plan: known, or what computes it from the sizes of the call."""
    if isinstance(count, int):
        return count
    if count.table:
        place: Operand = 0
        for name, most in sizes.largest.items():
            place = out.add(out.mul(place, most), out.sub(out.size(name), 1))
        return out.look_up(count.table, place)
    total: Operand = 0
    for exponents, coefficient in count.terms:
        term: Operand = coefficient
        for name, power in zip(sizes.names, exponents, strict=True):
            for _ in range(power):
                term = out.mul(term, out.size(name))
        total = term if total == 0 else out.add(total, term)
    return total


@frozen(eq=False)
class Staircase:
    """Numbers that are not exceeded: one for each class of sizes, up to powers of two."""

    sizes: SizeRange
    table: npt.NDArray[np.int64]
    """An axis for each size."""

    @classmethod
    def lowest_above(cls, values: Values, sizes: SizeRange) -> Staircase:
        """The lowest that is nowhere below these values."""
        table = np.zeros([len(_steps(most)) for most in sizes.largest.values()], np.int64)
        if not sizes.largest:
            return cls(sizes, np.array(values.max()))
        np.maximum.at(table, _classes(sizes), values)
        return cls(sizes, table)

    @property
    def values(self) -> Values:
        """The number for each choice."""
        return np.broadcast_to(self.table[_classes(self.sizes)], (len(self.sizes.choices),))

    def write(self, out: Writer) -> Operand:
        """The number for the sizes of the call."""
        if (self.table == self.table.flat[0]).all():
            return int(self.table.flat[0])
        index: Operand = 0
        for name, most in self.sizes.largest.items():
            steps = _steps(most)
            index = out.mul(index, len(steps)) if index else 0
            for bound in steps[:-1]:
                passed = out.select(out.test("slt", bound, out.size(name)), 1, 0)
                index = out.hold(out.add(index, passed))
        return out.look_up(self.table.reshape(-1).tolist(), index)


def _classes(sizes: SizeRange) -> tuple[npt.NDArray[np.intp], ...]:
    """The class of each size for every choice."""
    return tuple(
        np.searchsorted(_steps(most), sizes.values[n]) for n, most in sizes.largest.items()
    )


def _steps(most: int) -> list[int]:
    """The sizes up to which the classes of a size go.

    >>> _steps(1), _steps(6), _steps(8)
    ([1], [1, 2, 4, 6], [1, 2, 4, 8])
    """
    return [*[2**n for n in range(most.bit_length()) if 2**n < most], most]
