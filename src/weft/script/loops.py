"""Loops on traced tensors: a body recorded once, what it changes carried from step to step.

Carried are the tensors and numbers among the names that a next step, or what follows, reads, and
the tensors from outside that the body writes to. A number takes the dtype that the body gives it.
A `while` is tested at its end as well as before, so the test happens as often as in Python.

>>> import weft as wf
>>> from weft.script.loops import BEFORE
>>> BEFORE
('before the loop', 'after a step')
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.core.dtypes import bool_
from weft.core.records import frozen
from weft.core.trees import TreeStructure, flatten, unflatten
from weft.core.types import TensorType
from weft.ir.dispatch import apply_multiple
from weft.ir.graph import Atom, Graph, Variable
from weft.ir.parts import as_choice
from weft.ir.reverse import filled_tensor
from weft.ir.tensor import Tensor
from weft.ops import control_loop
from weft.ops.control import same_type
from weft.ops.operands import as_tensor, convert_to
from weft.ops.random_bits import GENERATOR
from weft.script import mistakes, notes
from weft.script.aliases import aliases
from weft.script.branches import NUMBERS, literal_of, promoted_type, type_of, write
from weft.script.jumps import RESULT
from weft.script.regions import Region, Slot, record, under_test
from weft.script.state import State, undefined

__all__: list[str] = []

BEFORE = ("before the loop", "after a step")
TRIES = 8
"""How often a body is recorded again, as more is found to be carried."""
BOOL = TensorType(bool_, ())


@frozen
class Leaf:
    """A tensor or number in the value of a carried name."""

    name: str
    before: Any
    start: Tensor
    """What it is as a tensor, in the dtype that it has in the loop."""

    @property
    def number(self) -> bool:
        """Whether the leaf was a Python number before the loop."""
        return isinstance(self.before, NUMBERS) or self.before in notes.numbers


@dataclass(slots=True)
class Loop:
    """One loop: its names, what is carried, and the body."""

    state: State
    step: Callable[[Any], Any]
    """Runs the body; given the leading argument, gives whether to go on, or None."""
    happens: bool
    """Whether there surely is a step."""
    before: list[Any] = field(default_factory=list)
    lifted: list[Tensor] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    structures: list[TreeStructure | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.state.theirs:
            raise mistakes.rebinds_global(self.state.theirs)
        self.before = self.state.get()
        for name, value in self.wanted_values():
            self._enter(name, value)

    def wanted_values(self) -> list[tuple[str, Any]]:
        """The names that are read afterwards or by a next step, and their values."""
        names = self.state.names[: self.state.wanted]
        return list(zip(names, self.before, strict=False))

    def _enter(self, name: str, value: Any) -> None:
        """Carry a name: as the tensor that it is updated in, or by its tensors and numbers."""
        stays = name in self.state.updated and isinstance(value, Tensor)
        if stays and value not in notes.numbers:
            self.lift(value)
        if value is undefined or (stays and value not in notes.numbers):
            self.structures.append(None)
            return
        leaves, structure = flatten(value)
        self.structures.append(structure)
        self.leaves += [
            Leaf(name, leaf, as_tensor("script", leaf)) for leaf in leaves if type_of(leaf)
        ]

    def lift(self, handle: Tensor) -> None:
        """Carry the value of a tensor from outside the loop."""
        if not any(handle is each for each in self.lifted):
            self.lifted.append(handle)

    # --- recording -----------------------------------------------------------------------------

    def record_until_stable(self, lead: TensorType) -> Region:
        """The region of (lead, leaves, lifted), whose results have the types of what is carried."""
        for _ in range(TRIES):
            region = record(self._run, [lead, *self._types()], self.lifted)
            if region.touched:
                raise mistakes.growing_container_error(type(region.touched[0][0].owner).__name__)
            new_handles = [handle for handle, _ in region.written]
            for handle in new_handles:
                self.lift(handle)
            if not self._widen(region) and not self._begin(region) and not new_handles:
                return region
        raise mistakes.growing_container_error("tensor")

    def starts(self) -> list[Tensor]:
        """The values that the loop starts with."""
        return [*[leaf.start for leaf in self.leaves], *self.lifted]

    def _types(self) -> list[TensorType]:
        carried = [leaf.start.type for leaf in self.leaves]
        return carried + [handle.type for handle in self.lifted]

    def _run(self, lead: Tensor, *rest: Any) -> list[Any]:
        *carried, keep = rest
        starts = [tensor._value for tensor in carried]
        try:
            self.state.put([*self._values_inside(carried), *self.before[self.state.wanted :]])
            going = self.step(lead)
            after = self.state.get()[: self.state.wanted]
            for leaf, tensor, start in zip(self.leaves, carried, starts, strict=True):
                if tensor._value is not start and not leaf.number:
                    raise mistakes.both_ways(leaf.name, tensor)
            return [going if going is None else keep(going), *map(keep, self._values_left(after))]
        finally:
            self.state.put(self.before)

    def _values_inside(self, carried: Sequence[Tensor]) -> list[Any]:
        """The names' values inside a step."""
        rest = iter(zip(self.leaves, carried, strict=True))
        values = []
        for (_, value), structure in zip(self.wanted_values(), self.structures, strict=True):
            if structure is None:
                values.append(value)
                continue
            leaves = [_next_tensor(rest) if type_of(x) else x for x in flatten(value)[0]]
            values.append(unflatten(structure, leaves))
        return values

    def _values_left(self, after: Sequence[Any]) -> list[Any]:
        """What a step leaves in the names; a tensor that was updated in place is carried itself."""
        pairs = zip(after, self.before, strict=False)
        return [
            None if value is old and value in self.lifted_set() else value for value, old in pairs
        ]

    def lifted_set(self) -> _Same:
        """The lifted tensors, compared by identity."""
        return _Same(self.lifted)

    def _widen(self, region: Region) -> bool:
        """Give numbers the dtypes that a step gave them; whether any has changed."""
        changed = False
        for place, (leaf, left) in enumerate(
            zip(self.leaves, self._leaves_after(region), strict=True)
        ):
            kind = type_of(left)
            if leaf.number and kind is not None and kind.shape == () == leaf.start.shape:
                wide = leaf.start.dtype if _is_weaker(left, leaf) else kind.dtype
                if wide is not leaf.start.dtype:
                    self.leaves[place] = replace(leaf, start=convert_to(leaf.start, wide))
                    changed = True
        return changed

    def _begin(self, region: Region) -> bool:
        """Give names that only a step gives a value one to begin with; whether there are any.

        Nobody looks at it: a step comes first, or a flag says whether a value was returned.
        """
        names = [name for name, _ in self.wanted_values()]
        places_without_value = [
            place
            for place, name in enumerate(names)
            if self.before[place] is undefined
            and region.values[1 + place] is not undefined
            and (self.happens or name == RESULT)
        ]
        for place in places_without_value:
            leaves, structure = flatten(region.values[1 + place])
            zeros = [_zeros(leaf.type) if isinstance(leaf, Slot) else leaf for leaf in leaves]
            self.before[place] = unflatten(structure, zeros)
        if places_without_value:
            self.leaves, self.structures = [], []
            for name, value in self.wanted_values():
                self._enter(name, value)
        return bool(places_without_value)

    def note_missing(self, region: Region) -> None:
        """Remember which names have a value only if there is a step."""
        for place, (name, value) in enumerate(self.wanted_values()):
            if value is undefined and region.values[1 + place] is not undefined:
                notes.note_missing(name, "it gets one only inside a loop, which may take no step")

    # --- results -------------------------------------------------------------------------------

    def _leaves_after(self, region: Region) -> list[Any]:
        """What a step leaves for each leaf, in order; other Python values must stay as they are."""
        leaves_left: list[Any] = []
        for place, (name, value) in enumerate(self.wanted_values()):
            structure = self.structures[place]
            if structure is None:
                continue
            left = region.values[1 + place]
            if left is undefined:
                raise mistakes.missing_value(name, "a step of the loop deletes it", None)
            leaves, other = flatten(left)
            if structure != other:
                raise mistakes.differing_structures(name, BEFORE, (value, left))
            for old, new in zip(flatten(value)[0], leaves, strict=True):
                if type_of(old):
                    leaves_left.append(new)
                elif old is not new and old != new:
                    raise mistakes.differing_objects(name, BEFORE, (old, new))
        return leaves_left

    def atoms(self, region: Region) -> list[Atom]:
        """The outputs of a step's graph, one for each value carried."""
        output_atoms: list[Atom] = []
        for leaf, left in zip(self.leaves, self._leaves_after(region), strict=True):
            kind = leaf.start.type
            if type_of(left) is None:
                raise mistakes.differing_objects(leaf.name, BEFORE, (leaf.before, left))
            if not same_type(promoted_type(leaf.name, BEFORE, leaf.start, left), kind):
                raise mistakes.differing_types(leaf.name, BEFORE, (kind, type_of(left)))
            output_atoms.append(
                region.atom(left) if isinstance(left, Slot) else literal_of(left, kind)
            )
        slots = region.values[len(region.values) - len(self.lifted) :] if self.lifted else []
        return output_atoms + [region.atom(slot) for slot in slots]

    def leave(self, region: Region, results: Sequence[Tensor]) -> None:
        """Put the results of the loop into the names and the tensors that were written to."""
        self.note_missing(region)
        rest = iter(results)
        finals = iter(
            [self._final_value(leaf, next(rest), *p) for leaf, p in self._leaf_atoms(region)]
        )
        written = list(rest)
        self._link(region, results)
        values = [
            self._value_outside(value, structure, finals)
            for (_, value), structure in zip(self.wanted_values(), self.structures, strict=True)
        ]
        self.state.put([*values, *self.before[self.state.wanted :]])
        for handle, final in zip(self.lifted, written, strict=True):
            write(handle, final)

    def _link(self, region: Region, results: Sequence[Tensor]) -> None:
        """Mark results that are tensors from outside, after no step or after the last one."""
        pairs = zip(self.leaves, self._leaves_after(region), results, strict=False)
        for leaf, left, result in pairs:
            sides = [left] if self.happens else [leaf.before, left]
            for side in sides:
                as_choice(result, aliases(leaf.name, side))

    def _value_outside(
        self, value: Any, structure: TreeStructure | None, finals: Iterator[Any]
    ) -> Any:
        """A name's value after the loop; what no step changes stays the same object."""
        if structure is None:
            return value
        old = flatten(value)[0]
        new = [next(finals) if type_of(leaf) else leaf for leaf in old]
        same = all(a is b for a, b in zip(old, new, strict=True))
        return value if same else unflatten(structure, new)

    def _leaf_atoms(self, region: Region) -> list[tuple[Leaf, tuple[Atom, Atom]]]:
        own = region.argument_variables[1:]
        pairs = zip(own, self.atoms(region), strict=True)
        return list(zip(self.leaves, pairs, strict=False))

    def _final_value(self, leaf: Leaf, result: Tensor, given: Atom, left: Atom) -> Any:
        if given is left:
            return leaf.before
        if leaf.number:
            notes.numbers.add(result)
        return result


class _Same:
    """A set of tensors compared by identity."""

    def __init__(self, things: Sequence[Any]) -> None:
        self.things = things

    def __contains__(self, thing: object) -> bool:
        return any(thing is each for each in self.things)


def _next_tensor(pairs: Any) -> Tensor:
    leaf, tensor = next(pairs)
    if leaf.number:
        notes.numbers.add(tensor)
    next_tensor: Tensor = tensor
    return next_tensor


def _is_weaker(left: Any, leaf: Leaf) -> bool:
    """Whether a number that a step leaves fits the dtype that the leaf has."""
    if not isinstance(left, NUMBERS):
        return False
    kind = type_of(left)
    assert kind is not None
    return promoted_type(leaf.name, BEFORE, leaf.start, left) == leaf.start.type


# --- the two kinds of loop ---------------------------------------------------------------------


def staged_while(
    first: Tensor,
    step: Callable[[], Any],
    state: State,
    max_steps: int | None,
    index: Sequence[Any],
) -> Tensor:
    """Steps as long as they say so, the first if `first` holds; gives whether to go on still.

    `index` are tensors that only the loop itself writes to.
    """

    def guarded_step(going: Tensor) -> Any:
        try:
            with under_test(going):
                return step()
        except Exception as error:
            raise (mistakes.raises_in_loop(error) if notes.is_raised(error) else error) from None

    loop = Loop(state, guarded_step, happens=False)
    for handle in index:
        loop.lift(handle)
    region = loop.record_until_stable(BOOL)
    going = region.values[0]
    atom = region.atom(going) if isinstance(going, Slot) else literal_of(bool(going), BOOL)
    graph, carry = _with_counter(region, region.argument_variables, [atom, *loop.atoms(region)], [])
    carry = [first, *loop.starts(), *carry]
    consts = region.captured
    inputs = tuple(Variable(kind) for kind in graph.input_types)
    results = apply_multiple(
        control_loop.while_,
        *consts,
        *carry,
        cond=Graph(inputs, (), (inputs[len(consts)],)),
        body=graph,
        num_consts=len(consts),
        max_steps=max_steps,
    )
    loop.leave(region, _hand_over_counter(region, results)[1:])
    return results[0]


def staged_scan(xs: Tensor, step: Callable[[Tensor], None], state: State) -> None:
    """One step for each row of a tensor."""
    length = xs.shape[0]
    loop = Loop(state, step, happens=isinstance(length, int) and length > 0)
    region = loop.record_until_stable(xs.type.with_shape(xs.shape[1:]))
    row, *own = region.argument_variables
    graph, counter = _with_counter(region, own, loop.atoms(region), [row])
    carry = [*loop.starts(), *counter]
    results = apply_multiple(
        control_loop.scan,
        *region.captured,
        *carry,
        xs,
        graph=graph,
        num_consts=len(region.captured),
        num_carry=len(carry),
        length=length,
        reverse=False,
    )
    loop.leave(region, _hand_over_counter(region, results))


def _with_counter(
    region: Region, own: Sequence[Variable], outputs: Sequence[Atom], rows: Sequence[Variable]
) -> tuple[Graph, list[Tensor]]:
    """The graph of (captured, carry, rows) to the carry; the counter is last in it if it draws."""
    counter = [region.counter] if region.draws else []
    last = [region.graph.outputs[-1]] if region.draws else []
    inputs = (*region.captures, *own, *counter, *rows)
    graph = Graph(inputs, region.graph.nodes, (*outputs, *last))
    return graph, [GENERATOR.state()[1]] if region.draws else []


def _hand_over_counter(region: Region, results: Sequence[Tensor]) -> Sequence[Tensor]:
    """The results without the counter, which the generator takes over."""
    if not region.draws:
        return results
    GENERATOR.advance(results[-1])
    return results[:-1]


def _zeros(kind: TensorType) -> Tensor:
    return filled_tensor(kind.shape, kind.dtype, 0)
