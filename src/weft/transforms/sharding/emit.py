"""The program of one device, written from the strategies that were chosen for a graph.

The graph is run once on traced tensors of local types. Each node reads its operands in the
placements that its strategy wants; where a value is placed otherwise, a collective changes that,
once for all readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.locations import Location
from weft.core.types import TensorType
from weft.ir.dispatch import apply, bind
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.primitive import Primitive
from weft.ir.sharding import (
    REPLICATED,
    Part,
    Partial,
    Placement,
    Split,
    local_type,
)
from weft.ir.tensor import Tensor, wrap
from weft.ir.tracing import GraphTrace, trace
from weft.ops.collectives import (
    REDUCERS,
    exchange_parts,
    gather_shards,
    scatter_sum,
    shard_index,
)
from weft.ops.comparison import equal
from weft.ops.selection import where
from weft.ops.sharding_mark import shard_mark
from weft.ops.sharding_rules import slice_part
from weft.transforms.sharding.search import Along, Candidate, Search


def local_program(search: Search) -> Graph:
    """The program of one device, with local types; its nodes keep the user's lines."""
    kinds = [_local(variable, search) for variable in search.graph.inputs]
    recorder = _LocatedTrace()

    def outputs(*inputs: Tensor) -> list[Tensor]:
        return _Writer(search, inputs, recorder).outputs()

    return trace(outputs, kinds, recorder=recorder).closed_graph()


class _LocatedTrace(GraphTrace):
    """Records nodes at the place of the node that they are written for."""

    at: Location | None = None

    def process_primitive(
        self, primitive: Primitive, operands: tuple[Tensor, ...], params: dict[str, Any], types: Any
    ) -> Any:
        """See `Trace`."""
        results = super().process_primitive(primitive, operands, params, types)
        last = self.nodes[-1]
        self.nodes[-1] = GraphNode(
            last.primitive, last.operands, last.params, last.results, self.at
        )
        return results


def _local(variable: Variable, search: Search) -> TensorType:
    kind = local_type(variable.type, search.placed[variable], search.along.count)
    assert kind is not None
    return kind


class _Writer:
    """Runs a searched graph on the tensors of one device."""

    def __init__(self, search: Search, inputs: Sequence[Tensor], recorder: _LocatedTrace) -> None:
        self.search, self.along, self._recorder = search, search.along, recorder
        self._values: dict[tuple[Variable, Placement], Tensor] = {}
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
        self._recorder.at = node.location
        candidate = self.search.chosen[node]
        strategy = candidate.strategy
        pairs = zip(node.operands, strategy.operands, strict=True)
        operands = [self._read(atom, placement) for atom, placement in pairs]
        results = self._compute(node, candidate, operands)
        for variable, tensor, placement in zip(
            node.results, results, strategy.results, strict=True
        ):
            self._values[variable, placement] = tensor

    def _compute(
        self, node: GraphNode, candidate: Candidate, operands: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        primitive, strategy = node.primitive, candidate.strategy
        params = {**node.params, **(strategy.params or {})}
        if candidate.graphs is not None:
            params |= {name: _local_graphs(each) for name, each in candidate.graphs.items()}
        if strategy.compute is None:
            result = bind(primitive, *operands, **params)
        else:
            part = Part(primitive, self.along.count, self.index)
            result = strategy.compute(part, *operands, **params)
        return result if primitive.multiple else (result,)

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
        return changed

    def _change(self, x: Tensor, source: Placement, target: Placement) -> Tensor:
        if source == target:
            return x
        if isinstance(source, Split):
            return _from_split(x, source, target, self.along)
        if isinstance(source, Partial):
            return _from_terms(x, source, target, self.along)
        if isinstance(target, Split):
            return slice_part(Part(shard_mark, self.along.count, self.index), x, target.axis)
        assert isinstance(target, Partial)
        return _as_term(x, self.index) if target.combine == "add" else x


def _local_graphs(searched: Any) -> Any:
    """The programs of one device for the graphs that control flow holds."""
    if isinstance(searched, tuple):
        return tuple(map(local_program, searched))
    return local_program(searched)


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
    return apply(REDUCERS[source.combine], x, **params)


def _as_term(x: Tensor, index: Callable[[], Tensor]) -> Tensor:
    """A replicated value as a sum: the first device has it, the others have zeros."""
    return where(equal(index(), 0), x, wrap(np.zeros((), x.dtype.numpy)))
