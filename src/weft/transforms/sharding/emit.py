"""The program of one device, written from the strategies that were chosen for a graph.

The graph is run once on traced tensors of local types. Each node reads its operands in the
placements that its strategy wants; where a value is placed otherwise, a collective changes that,
once for all readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir.dispatch import apply, bind
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.sharding import (
    REPLICATED,
    Part,
    Partial,
    Placement,
    Split,
    local_type,
)
from weft.ir.tensor import Tensor, wrap
from weft.ir.tracing import trace
from weft.ops.collectives import (
    all_reduce_max,
    all_reduce_min,
    all_reduce_sum,
    exchange_parts,
    gather_shards,
    scatter_sum,
    shard_index,
)
from weft.ops.elementwise import equal, where
from weft.ops.sharding_mark import shard_mark
from weft.ops.sharding_rules import slice_part
from weft.transforms.sharding.costs import bytes_moved
from weft.transforms.sharding.search import Along, Candidate, Search, steps_of

ALL_REDUCE = {"add": all_reduce_sum, "maximum": all_reduce_max, "minimum": all_reduce_min}


@frozen
class Transfer:
    """One change of placement in the program of a device, for reports.

    value: what is moved, by its type and the operation that made it. times: how often, in loops.
    """

    mesh_axis: str
    value: str
    kind: TensorType
    source: Placement
    target: Placement
    collective: str
    moved: float
    times: int = 1


def local_program(search: Search, report: list[Transfer], times: int = 1) -> Graph:
    """The program of one device, with local types; `report` gets what it moves."""
    along, graph = search.along, search.graph
    kinds = [_local(variable, search) for variable in graph.inputs]
    return trace(lambda *xs: _Writer(search, xs, report, times).outputs(), kinds).closed()


def _local(variable: Variable, search: Search) -> TensorType:
    kind = local_type(variable.type, search.placed[variable], search.along.count)
    assert kind is not None
    return kind


class _Writer:
    """Runs a searched graph on the tensors of one device."""

    def __init__(
        self, search: Search, inputs: Sequence[Tensor], report: list[Transfer], times: int
    ) -> None:
        self.search, self.along = search, search.along
        self.report, self.times = report, times
        self._values: dict[tuple[Variable, Placement], Tensor] = {}
        self._makers: dict[Variable, GraphNode] = {}
        self._index: Tensor | None = None
        for variable, tensor in zip(search.graph.inputs, inputs, strict=True):
            self._values[variable, search.placed[variable]] = tensor

    def outputs(self) -> list[Tensor]:
        """The local outputs, in the placements that were asked for."""
        for node in self.search.graph.nodes:
            self._write(node)
        return [
            self._read(atom, self.search.output_placement(place))
            for place, atom in enumerate(self.search.graph.outputs)
        ]

    def _write(self, node: GraphNode) -> None:
        candidate = self.search.chosen[node]
        strategy = candidate.strategy
        pairs = zip(node.operands, strategy.operands, strict=True)
        operands = [self._read(atom, placement) for atom, placement in pairs]
        results = self._compute(node, candidate, operands)
        for variable, tensor, placement in zip(
            node.results, results, strategy.results, strict=True
        ):
            self._values[variable, placement] = tensor
            self._makers[variable] = node

    def _compute(
        self, node: GraphNode, candidate: Candidate, operands: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        primitive, strategy = node.primitive, candidate.strategy
        if primitive is shard_mark:
            return operands
        params = {**node.params, **(strategy.params or {})}
        if candidate.graphs is not None:
            params |= {name: self._graphs(each, node) for name, each in candidate.graphs.items()}
        if strategy.compute is None:
            result = bind(primitive, *operands, **params)
        else:
            part = Part(primitive, self.along.count, self.index)
            result = strategy.compute(part, *operands, **params)
        return result if primitive.multiple else (result,)

    def _graphs(self, searched: Any, node: GraphNode) -> Any:
        if isinstance(searched, tuple):
            return tuple(self._graphs(each, node) for each in searched)
        return local_program(searched, self.report, self.times * steps_of(node))

    def index(self) -> Tensor:
        """The number of the device along the mesh axis."""
        if self._index is None:
            self._index = apply(shard_index, **_axis_params(self.along))
        return self._index

    def _read(self, atom: Atom, placement: Placement) -> Tensor:
        """A value in a placement; what it is changed to is kept for other readers."""
        if not isinstance(atom, Variable):
            return self._change(wrap(atom.value), REPLICATED, placement)
        known = self._values.get((atom, placement))
        if known is not None:
            return known
        sources = {target: source for source, target in self.search.changes(atom)}
        source = sources[placement]
        changed = self._change(self._read(atom, source), source, placement)
        self._values[atom, placement] = changed
        self._note(atom, source, placement)
        return changed

    def _note(self, variable: Variable, source: Placement, target: Placement) -> None:
        maker = self._makers.get(variable)
        name = variable.name or ("an input" if maker is None else maker.primitive.name)
        moved = bytes_moved(variable.type, source, target, self.along.count)
        if moved:
            collective = _collective_name(source, target)
            self.report.append(
                Transfer(
                    self.along.name, name, variable.type, source, target, collective, moved,
                    self.times,
                )
            )  # fmt: skip

    def _change(self, x: Tensor, source: Placement, target: Placement) -> Tensor:
        if source == target:
            return x
        part = Part(shard_mark, self.along.count, self.index)
        if isinstance(source, Split):
            return _from_split(x, source, target, self.along)
        if isinstance(source, Partial):
            return _from_terms(x, source, target, self.along)
        if isinstance(target, Split):
            return slice_part(part, x, target.axis)
        assert isinstance(target, Partial)
        return _as_term(x, self.index) if target.combine == "add" else x


def _axis_params(along: Along) -> dict[str, Any]:
    return {"mesh_axis": along.name, "size": along.count, "stacked": False}


def _from_split(x: Tensor, source: Split, target: Placement, along: Along) -> Tensor:
    params = _axis_params(along)
    if isinstance(target, Split):
        return apply(exchange_parts, x, split_axis=target.axis, concat_axis=source.axis, **params)
    assert target == REPLICATED
    return apply(gather_shards, x, axis=source.axis, **params)


def _from_terms(x: Tensor, source: Partial, target: Placement, along: Along) -> Tensor:
    params = _axis_params(along)
    if isinstance(target, Split):
        return apply(scatter_sum, x, axis=target.axis, **params)
    assert target == REPLICATED
    return apply(ALL_REDUCE[source.combine], x, **params)


def _as_term(x: Tensor, index: Callable[[], Tensor]) -> Tensor:
    """A replicated value as a sum: the first device has it, the others have zeros."""
    return where(equal(index(), 0), x, wrap(_zero_like(x)))


def _zero_like(x: Tensor) -> Any:
    return x.dtype.numpy.type(0)


def _collective_name(source: Placement, target: Placement) -> str:
    if isinstance(source, Split):
        return "all_to_all" if isinstance(target, Split) else "all_gather"
    return "reduce_scatter" if isinstance(target, Split) else "all_reduce"
