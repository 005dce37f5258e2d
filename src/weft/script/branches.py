"""Branches on traced tensors: both bodies recorded, their results merged, one node of the graph.

Names, tensors and containers that a body did not change are merged as what they were before. What
is the same object after both bodies stays that object; tensors and numbers that differ become
outputs of the branch; anything else that differs is an error that names it.

>>> import weft as wf
>>> from weft.script.branches import promoted_type
>>> promoted_type("k", ("if", "else"), 1, 2.5)
f32[]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import bool_, int32
from weft.core.records import frozen
from weft.core.trees import flatten, unflatten
from weft.core.types import TensorType
from weft.ir.dispatch import apply_multiple
from weft.ir.graph import Atom, Graph, Variable
from weft.ir.parts import as_choice
from weft.ir.tape import is_own_leaf, rebind
from weft.ir.tensor import Tensor
from weft.ops import control_branch
from weft.ops.composed.datatypes import result_type
from weft.ops.control import same_type
from weft.ops.logic import logical_not
from weft.ops.operands import as_tensor, convert_to
from weft.ops.random_bits import GENERATOR
from weft.script import mistakes, notes
from weft.script.aliases import aliases
from weft.script.jumps import RESULT
from weft.script.regions import Region, Slot, identity, literal, record, under_test
from weft.script.state import State, undefined
from weft.transforms.backward import no_grad

__all__: list[str] = []

Body = Callable[[], Any]
NUMBERS = (bool, int, float, complex)
WAYS = ("if true", "if false")
WRITTEN = "a tensor written to"


@frozen(slots=False)
class Stopped:
    """A body that only raises: the test under which it does, its error, and the other body."""

    test: Tensor
    error: Exception
    other: Body


def staged_branch(
    test: Tensor, true: Body, false: Body, state: State, *, fill: bool = False
) -> Stopped | None:
    """Record both bodies, and leave what the one that the test chooses leaves.

    With `fill`, names without a value on one side get one there, which nobody looks at.
    """
    if state.theirs:
        raise mistakes.rebinds_global(state.theirs)
    before = state.get()
    regions = []
    for (holds, body), other in zip(_sides(test, true, false), (false, true), strict=True):
        try:
            regions.append(_record(holds, body, state, before))
        except Exception as error:
            if not notes.is_raised(error):
                raise
            return Stopped(holds, error, other)
    merged = Merger(regions, fill=fill)
    wanted = state.names[: state.wanted]
    trees = [
        merged.value(name, *[region.values[place] for region in regions])
        for place, name in enumerate(wanted)
    ]
    merged.effects()
    results = merged.run(test)
    state.put([*[merged.rebuild(tree, results) for tree in trees], *before[state.wanted :]])
    merged.write(results)
    return None


def _sides(test: Tensor, true: Body, false: Body) -> list[tuple[Tensor, Body]]:
    return [(test, true), (logical_not(test), false)]


def _record(test: Tensor, body: Body, state: State, before: Sequence[Any]) -> Region:
    def run(keep: Callable[[Any], Any]) -> list[Any]:
        try:
            body()
            pairs = list(zip(state.get(), before, strict=True))[: state.wanted]
            return [value if value is old else keep(value) for value, old in pairs]
        finally:
            state.put(before)

    with under_test(test):
        return record(run, [])


def choose(test: Tensor, true: Body, false: Body) -> Any:
    """The value of a conditional expression on a traced tensor."""
    regions = [_record_value(t, body) for t, body in _sides(test, true, false)]
    merged = Merger(regions)
    tree = merged.value("the value", regions[0].values[0], regions[1].values[0])
    merged.effects()
    results = merged.run(test)
    merged.write(results)
    return merged.rebuild(tree, results)


def _record_value(test: Tensor, body: Body) -> Region:
    with under_test(test):
        return record(lambda keep: [keep(body())], [])


class _Merged:
    """Stands for a result of the branch; `number` if a Python number stands on either side."""

    __slots__ = ("index", "number")

    def __init__(self, index: int, number: bool) -> None:
        self.index = index
        self.number = number


class Merger:
    """Brings two regions to the same outputs."""

    def __init__(self, regions: Sequence[Region], *, fill: bool = False) -> None:
        self.regions = regions
        self.fill = fill
        self.columns: list[tuple[Any, Any]] = []
        self.names: list[str] = []
        self.types: list[TensorType] = []
        self.handles: list[tuple[Tensor, Any]] = []
        self.containers: list[tuple[Any, Any]] = []

    def value(self, name: str, a: Any, b: Any) -> Any:
        """One tree that holds the value of a name on both sides."""
        if a is b:
            return a
        if a is undefined or b is undefined:
            return self._merge_one_sided(name, a, b)
        (xs, shape), (ys, other) = flatten(a), flatten(b)
        if shape != other:
            raise mistakes.differing_structures(name, WAYS, (a, b))
        return unflatten(shape, [self._leaf(name, x, y) for x, y in zip(xs, ys, strict=True)])

    def _merge_one_sided(self, name: str, a: Any, b: Any) -> Any:
        """A name with a value on one side only; a returned value is not looked at on the other."""
        if name != RESULT and not self.fill:
            side = "true" if b is undefined else "false"
            notes.note_missing(name, f"it gets one only where a traced test is {side}")
            return undefined
        leaves, structure = flatten(b if a is undefined else a)
        return unflatten(
            structure, [self._fill_other_side(leaf, a is undefined) for leaf in leaves]
        )

    def _fill_other_side(self, leaf: Any, first: bool) -> Any:
        kind = type_of(leaf)
        if kind is None:
            return leaf
        zeros = Zeros(kind)
        return self._column(zeros, leaf, kind) if first else self._column(leaf, zeros, kind)

    def _leaf(self, name: str, x: Any, y: Any) -> Any:
        if x is y or (type(x) is type(y) and type_of(x) is None and _equal(x, y)):
            return x
        if type_of(x) is None or type_of(y) is None:
            raise mistakes.differing_objects(name, WAYS, (x, y))
        if type(x) is type(y) and isinstance(x, NUMBERS) and x == y:
            return x
        return self._column(x, y, promoted_type(name, WAYS, x, y), name)

    def _column(self, x: Any, y: Any, kind: TensorType, name: str = "") -> _Merged:
        self.columns.append((x, y))
        self.names.append(name)
        self.types.append(kind)
        return _Merged(len(self.columns) - 1, isinstance(x, NUMBERS) and isinstance(y, NUMBERS))

    def effects(self) -> None:
        """Tensors and containers that either body wrote to."""
        by_side = [{id(h): slot for h, slot in region.written} for region in self.regions]
        for handle in {id(h): h for region in self.regions for h, _ in region.written}.values():
            a, b = (side.get(id(handle), handle) for side in by_side)
            self.handles.append((handle, self.value(WRITTEN, a, b)))
        held = [{id(t.owner): tree for t, tree in region.touched} for region in self.regions]
        by_owner = {id(t.owner): t for region in self.regions for t, _ in region.touched}
        for touched in by_owner.values():
            a, b = (side.get(id(touched.owner), touched.before) for side in held)
            what = f"a {type(touched.owner).__name__}"
            self.containers.append((touched.owner, self.value(what, a, b)))

    def run(self, test: Tensor) -> Sequence[Tensor]:
        """The results of the branch, computed or recorded."""
        draws = any(region.draws for region in self.regions)
        consts = {identity(t): t for region in self.regions for t in region.captured}
        outer = [x for column in self.columns for x in column if isinstance(x, Tensor)]
        consts.update({identity(t): t for t in outer})
        if not self.columns and not draws:
            if not any(region.graph.nodes for region in self.regions):
                return ()
            self._column(True, True, TensorType(bool_, ()))  # a node has at least one result
        sides = zip(*self.columns, strict=True) if self.columns else ((), ())
        pairs = zip(self.regions, sides, strict=True)
        graphs = tuple(self._graph(r, column, consts, draws) for r, column in pairs)
        counters = [GENERATOR.state()[1]] if draws else []
        given = (*consts.values(), *counters)
        index = convert_to(test, int32)
        results = apply_multiple(
            control_branch.switch, index, *given, branches=graphs[::-1], rows=0
        )
        if draws:
            GENERATOR.advance(results[-1])
        self._link(results)
        return results

    def _link(self, results: Sequence[Tensor]) -> None:
        """Mark results that are tensors from outside, or each other, on one side only."""
        holders: dict[Slot, list[Tensor]] = {}
        for name, column, result in zip(self.names, self.columns, results, strict=False):
            for side in column if name not in ("", WRITTEN) else ():
                as_choice(result, aliases(name, side))
                if isinstance(side, Slot):
                    as_choice(result, holders.setdefault(side, []))
                    holders[side].append(result)

    def _graph(
        self, region: Region, column: Sequence[Any], consts: dict[Any, Tensor], draws: bool
    ) -> Graph:
        """(all that either side captured, the counter) to the merged outputs."""
        places = zip(region.captured, region.captures, strict=True)
        own = {identity(tensor): variable for tensor, variable in places}
        inputs = {key: own.get(key) or Variable(t.type) for key, t in consts.items()}

        def atom(leaf: Any, kind: TensorType) -> Atom:
            if isinstance(leaf, Slot):
                return region.atom(leaf)
            return inputs[identity(leaf)] if isinstance(leaf, Tensor) else literal_of(leaf, kind)

        outputs = [atom(leaf, kind) for leaf, kind in zip(column, self.types, strict=True)]
        counter = [region.counter] if draws else []
        last = [region.graph.outputs[-1]] if draws else []
        return Graph((*inputs.values(), *counter), region.graph.nodes, (*outputs, *last))

    def rebuild(self, tree: Any, results: Sequence[Tensor]) -> Any:
        """A tree with the results of the branch in their places."""
        if tree is undefined:
            return tree
        leaves, structure = flatten(tree)
        if not any(isinstance(leaf, _Merged) for leaf in leaves):
            return tree
        return unflatten(structure, [self._result(leaf, results) for leaf in leaves])

    def _result(self, leaf: Any, results: Sequence[Tensor]) -> Any:
        if not isinstance(leaf, _Merged):
            return leaf
        if leaf.number:
            notes.numbers.add(results[leaf.index])
        return results[leaf.index]

    def write(self, results: Sequence[Tensor]) -> None:
        """Let the tensors and containers that were written to hold what the branch left."""
        for handle, tree in self.handles:
            write(handle, self.rebuild(tree, results))
        for owner, tree in self.containers:
            notes.replace(owner, self.rebuild(tree, results))


class Zeros:
    """Zeros in place of a value that is not used on this side."""

    __slots__ = ("type",)

    def __init__(self, kind: TensorType) -> None:
        self.type = kind


def literal_of(leaf: Any, kind: TensorType) -> Atom:
    """A Python number, or zeros, as a constant of a graph."""
    if isinstance(leaf, Zeros):
        return literal(np.zeros(kind.shape, kind.dtype.numpy), kind)
    return literal(leaf, kind)


def write(handle: Tensor, value: Tensor) -> None:
    """Let a tensor stand for a new value; also a leaf, which was written to under `no_grad`."""
    if is_own_leaf(handle):
        with no_grad():
            rebind(handle, value, "script")
    else:
        rebind(handle, value, "script")


def type_of(leaf: Any) -> TensorType | None:
    """The type that a value has as a tensor; None where it cannot be one."""
    if isinstance(leaf, (Slot, Tensor, Zeros)):
        return leaf.type
    return as_tensor("script", leaf).type if isinstance(leaf, NUMBERS) else None


def promoted_type(name: str, where: tuple[str, str], x: Any, y: Any) -> TensorType:
    """The type of a value that is x on one way and y on another; numbers take a tensor's dtype."""
    a, b = type_of(x), type_of(y)
    assert a is not None and b is not None
    if isinstance(x, NUMBERS) and isinstance(y, NUMBERS):
        alike = (a.dtype is bool_) == (b.dtype is bool_)
        return a.with_dtype(result_type(a.dtype, b.dtype)) if alike else _refuse(name, where, a, b)
    if isinstance(x, NUMBERS) and b.shape == () and result_type(b.dtype, x) is b.dtype:
        return b
    if isinstance(y, NUMBERS) and a.shape == () and result_type(a.dtype, y) is a.dtype:
        return a
    return a if same_type(a, b) else _refuse(name, where, a, b)


def _refuse(name: str, where: tuple[str, str], a: TensorType, b: TensorType) -> TensorType:
    raise mistakes.differing_types(name, where, (a, b))


def _equal(x: Any, y: Any) -> bool:
    try:
        return bool(x == y)
    except Exception:  # an object's own comparison may do anything
        return False
