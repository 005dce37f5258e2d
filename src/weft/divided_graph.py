"""A graph over whole values that devices of a mesh compute together, and its derivatives.

The program of one device, differentiated by itself, would give the derivative of the sum of all
devices' results, of which each has the whole one. So the whole graph is differentiated, and what
that gives is divided in its turn: forward and backward by one search.

>>> import weft as wf
>>> f = wf.distributed.partition(lambda x: (x * x).sum(), wf.distributed.Mesh(data=2))
>>> wf.distributed.run_threads(lambda: wf.grad(f)(wf.ones(2)).tolist(), 2)
[[2.0, 2.0], [2.0, 2.0]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from weft.compiler.function.taped import Cut, cut_in_two, graph_with_derivative
from weft.compiler.targets.target import Target
from weft.ir.dispatch import apply_multiple
from weft.ir.graph import Graph
from weft.ir.reverse import or_zeros
from weft.ir.sharding import REPLICATED, Placement
from weft.ir.tensor import Tensor
from weft.ops.control import (
    Marks,
    cotangent_graph,
    inexact_marks,
    moving_outputs,
    place_marked,
    select_marked,
    shows_nothing,
    tangent_graph,
)
from weft.transforms.custom import Rule, custom
from weft.transforms.sharding.costs import Costs
from weft.transforms.sharding.partition import Partitioned, partition_graph
from weft.transforms.sharding.shell import Kept, device_graph

__all__ = ["DividedGraph"]

Row = Mapping[str, Placement | None]
"""How one value is placed along each mesh axis; None where that is open."""


class DividedGraph:
    """A graph over whole values, the mesh that divides it, and how inputs and outputs are placed.

    kept: the inputs and outputs, by position, of which a device has its part alone.
    """

    def __init__(
        self,
        whole: Graph,
        mesh: Mapping[str, tuple[int, Costs]],
        inputs: Sequence[Row],
        outputs: Sequence[Row],
        kept: Kept,
    ) -> None:
        self.whole, self.mesh, self.kept = whole, mesh, kept
        self.inputs, self.outputs = inputs, outputs
        self.is_silent = shows_nothing(whole)
        self.primitive = custom
        self.params = {"rule": Rule("partition", self._push, self._pull)}

    @cached_property
    def partitioned(self) -> Partitioned:
        """The program of one device between parts."""
        return partition_graph(
            self.whole, self.mesh, self._by_axis(self.inputs), self._by_axis(self.outputs)
        )

    @cached_property
    def program(self) -> Graph:
        """The program of one device between whole values, but for those that are kept."""
        sizes = {name: count for name, (count, _) in self.mesh.items()}
        return device_graph(self.partitioned, self.whole, sizes, self.kept)

    def _by_axis(self, rows: Sequence[Row]) -> dict[str, list[Placement | None]]:
        return {axis: [row[axis] for row in rows] for axis in self.mesh}

    # --- derivatives ---

    def split_graph(self, graph: Graph, wanted: Marks, target: Target | None) -> Cut:
        """See `GraphDerivative`: what is saved between the halves are parts, as they come."""
        joint = self._derived_graph(
            graph_with_derivative(self.whole, wanted, target),
            self._cotangent_places,
            [place for place, want in enumerate(wanted) if want],
            with_outputs=True,
        )
        return cut_in_two(joint.program, len(self.inputs), len(self.outputs))

    @property
    def _cotangent_places(self) -> list[int]:
        """The outputs that have cotangents."""
        marks = inexact_marks(self.whole.output_types)
        return [place for place, is_inexact in enumerate(marks) if is_inexact]

    def _derived_graph(
        self, whole: Graph, cotangents: Sequence[int], gradients: Sequence[int], with_outputs: bool
    ) -> DividedGraph:
        """A graph of inputs and cotangents of some outputs to gradients of some inputs.

        A gradient is placed as the input it belongs to where that is kept, and a cotangent as its
        output; others are whole on every device.
        """
        kept_inputs, kept_outputs = self.kept
        count, shift = len(self.inputs), len(self.outputs) if with_outputs else 0
        inputs = [*self.inputs]
        inputs += [
            self.outputs[place] if place in kept_outputs else self._open_row for place in cotangents
        ]
        outputs = [*self.outputs] if with_outputs else []
        outputs += [
            self.inputs[place] if place in kept_inputs else self._whole_row for place in gradients
        ]
        given = [count + i for i, place in enumerate(cotangents) if place in kept_outputs]
        found = [shift + i for i, place in enumerate(gradients) if place in kept_inputs]
        kept = (
            kept_inputs.union(given),
            frozenset([*(kept_outputs if with_outputs else ()), *found]),
        )
        return DividedGraph(whole, self.mesh, inputs, outputs, kept)

    @property
    def _open_row(self) -> Row:
        return dict.fromkeys(self.mesh)

    @property
    def _whole_row(self) -> Row:
        return dict.fromkeys(self.mesh, REPLICATED)

    def call_program(self, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        """The outputs of this process, whose derivatives are those of the whole graph."""
        return apply_multiple(custom, *operands, graph=self.program, **self.params)

    def _pull(self, primals: Sequence[Tensor]) -> Any:
        """See `Rule`: the results, and the way back from their cotangents."""
        marks = inexact_marks(self.whole.input_types)

        def pullback(cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
            given = [x for x in cotangents if x is not None]
            return place_marked(self._way_back.call_program([*primals, *given]), marks)

        return self.call_program(primals), pullback

    @cached_property
    def _way_back(self) -> DividedGraph:
        """Inputs and cotangents of the outputs, to the cotangents of the inputs."""
        marks = inexact_marks(self.whole.input_types)
        places = [place for place, is_inexact in enumerate(marks) if is_inexact]
        whole = cotangent_graph(self.whole, marks)
        return self._derived_graph(whole, self._cotangent_places, places, with_outputs=False)

    def _push(
        self, primals: Sequence[Tensor], tangents: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """See `Rule`: the results and their tangents."""
        moving = inexact_marks(self.whole.input_types)
        wanted = moving_outputs(self.whole, moving)
        found = self.call_program(primals)
        pushed = self._way_forward.call_program([*primals, *select_marked(tangents, moving)])
        return [*found], or_zeros(place_marked(pushed, wanted), found)

    @cached_property
    def _way_forward(self) -> DividedGraph:
        """Inputs and their tangents, to the tangents of the outputs that have any."""
        moving = inexact_marks(self.whole.input_types)
        wanted = moving_outputs(self.whole, moving)
        whole = tangent_graph(self.whole, moving, wanted)
        inputs = [*self.inputs, *select_marked(self.inputs, moving)]
        outputs = select_marked(self.outputs, wanted)
        kept_inputs, kept_outputs = self.kept
        count = len(self.inputs)
        places = select_marked(range(count), moving)
        moved = [count + i for i, place in enumerate(places) if place in kept_inputs]
        results = select_marked(range(len(self.outputs)), wanted)
        kept = (
            kept_inputs.union(moved),
            frozenset(i for i, place in enumerate(results) if place in kept_outputs),
        )
        return DividedGraph(whole, self.mesh, inputs, outputs, kept)
