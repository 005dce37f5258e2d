"""The launches that a convolution becomes: packing of its weights, and the convolution itself.

>>> import weft as wf
>>> from weft.compiler.graph_passes.channels_last_primitives import PLAIN, conv_last
>>> from weft.compiler.targets.cpu.machine import host
>>> from weft.ir.dispatch import apply
>>> kinds = wf.spec("float32", (4, 9, 8)), wf.spec("float32", (16, 8, 3))
>>> graph = wf.ir.trace(lambda x, w: apply(conv_last, x, w, **PLAIN), *kinds)
>>> [launch.name for launch in convolution_launches(graph.nodes[0], host())]
['pack', 'conv']
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from weft.compiler.graph_passes.channels_last_primitives import CHANNELS_LAST
from weft.compiler.lowering.convolution_sizes import Sizes as ConvolutionSizes
from weft.compiler.lowering.convolution_sizes import node_sizes, sizes_of
from weft.compiler.lowering.nodes.depthwise import is_alone
from weft.compiler.plan.launch import Kind, Launch
from weft.compiler.targets.cpu.convolution import gathered, plans, winograd_select
from weft.compiler.targets.cpu.convolution.packing import packing_launch, sum_launch
from weft.compiler.targets.cpu.convolution.plans import Plan, WeightPlan
from weft.compiler.targets.cpu.products.tiles import tile_of
from weft.compiler.targets.llvm.machine import Machine
from weft.core.dtypes import DType, bfloat16, float16, float32, float64
from weft.core.shapes import Dimension, Shape, substitute
from weft.core.types import TensorType
from weft.ir.graph import GraphNode, Variable

Sizes = Mapping[str, int]
DTYPES = (float32, float64)


def convolution_launches(node: GraphNode, machine: Machine) -> list[Launch] | None:
    """The launches that make a convolution with channels last; None where there are none."""
    sizes = node_sizes(node) if node.primitive in CHANNELS_LAST else None
    if sizes is None or node.results[0].type.dtype not in DTYPES:
        return None
    if winograd_select.fits(sizes, node.results[0].type.dtype, machine):
        found = winograd_select.winograd_launches(node, sizes, machine)
        if found is not None:
            return found
    made = _Direct(node, sizes, machine)
    if node.primitive.name != "conv_last_weight_gradient":
        return made.by_places()
    if _has_whole_vectors(sizes.outputs, made.dtype, machine):
        return made.weight_gradient()
    return None


def is_native(node: GraphNode, most_taps: int, machine: Machine) -> bool:
    """Whether a convolution with channels second has native code once its channels are last.

    most_taps: those of a depthwise convolution's window that is written out.
    """
    a, b = (operand.type for operand in node.operands)
    dims = (*a.shape[1:], *b.shape[1:], *node.results[0].type.shape[1:])
    if a.ndim > 5 or a.dtype not in (*DTYPES, float16, bfloat16):
        return False
    if not all(isinstance(dim, int) for dim in dims) or 0 in dims:
        return False
    if node.primitive.name != "conv_weight_gradient":
        return True
    weight = node.results[0].type.shape
    sizes = sizes_of(_with_last(a.shape), weight, _with_last(b.shape), node.params)
    dtype = float64 if a.dtype is float64 else float32
    assert sizes is not None, "all of its sizes are among these dimensions"
    return is_alone(sizes, most_taps) or _has_whole_vectors(sizes.outputs, dtype, machine)


def _with_last(shape: Shape) -> Shape:
    """A shape with its channels last."""
    return (shape[0], *shape[2:], shape[1])


def _has_whole_vectors(outputs: int, dtype: DType, machine: Machine) -> bool:
    """Whether vectors of cotangents end with them: without masks they would reach beyond."""
    return machine.masked or outputs % tile_of(dtype, machine).lanes == 0


def flops(node: GraphNode, sizes: Sizes) -> int:
    """The floating-point operations of a convolution that has launches."""
    found = node_sizes(node)
    assert found is not None
    return int(substitute(found.flops, dict(sizes)))


class _Direct:
    """Writes the launches of one convolution."""

    def __init__(self, node: GraphNode, sizes: ConvolutionSizes, machine: Machine) -> None:
        self.node, self.sizes, self.machine = node, sizes, machine
        self.dtype: DType = node.results[0].type.dtype
        self.width = tile_of(self.dtype, machine).columns
        self.functions = gathered.functions(self.dtype, machine)

    def images(self, sizes: Sizes) -> int:
        """How many images there are."""
        return int(substitute(self.sizes.images, dict(sizes)))

    def by_places(self) -> list[Launch]:
        """A convolution, or the gradient of its input."""
        s, forward = self.sizes, self.node.primitive.name == "conv_last"
        plan = plans.forward(s, self.width) if forward else plans.backward(s, self.width)
        columns = s.outputs if forward else s.channels
        panels = -(-columns // self.width)
        stack, terms = (s.groups, s.channels * s.taps) if forward else (
            s.groups * s.outputs, s.taps
        )  # fmt: skip
        target = Variable(TensorType(self.dtype, (stack * panels, terms, self.width)))
        steps = [
            terms * panels * self.width * (stack // s.groups),
            terms * self.width,
        ]
        return [
            packing_launch(
                self.node.operands[1],
                target,
                columns,
                self.machine,
                groups=s.groups,
                turned=not forward,
            ),
            self.direct_launch(plan, target, columns, steps),
        ]

    def direct_launch(
        self, plan: Plan, weights: Variable, columns: int, steps: list[int]
    ) -> Launch:
        """The launch that multiplies."""
        s = self.sizes
        result = self.node.results[0]
        image = prod(int(dim) for dim in result.type.shape[1:])
        x_group = plan.pixel // s.groups

        def table(sizes: Sizes) -> list[int]:
            head = [
                *plan.head(self.images(sizes)), image, plan.y_step, s.groups, x_group, *steps,
                columns, columns, plans.DEPTH, plan.parts, len(plan.phases),
            ]  # fmt: skip
            return _with_tables(head, plan)

        return Launch(
            Kind.CONVOLUTION,
            "conv",
            self.functions["direct"],
            (self.node.operands[0], weights, result),
            (result,),
            table,
            lambda sizes: -(-self.images(sizes) // plan.at_once) * plan.blocks * plan.parts,
            lambda sizes: 1,
            by_rows=self.by_rows(plan, result),
        )

    def by_rows(self, plan: Plan, result: Variable) -> dict[Variable, Dimension]:
        """A block of the result is its own part, where all blocks are of one size."""
        if not plan.whole or plan.parts > 1:
            return {}
        return {result: prod(result.type.shape[1:]) * plan.at_once // plan.blocks}

    # --- the gradient of the weights ---------------------------------------------------------

    def weight_gradient(self) -> list[Launch]:
        """Partial sums, and what adds them up."""
        s = self.sizes
        plan = plans.weights(s)
        rows = s.channels * s.taps
        partial = Variable(TensorType(self.dtype, (plan.splits, s.groups, rows, s.outputs)))
        return [self.partial_launch(plan, partial, rows), sum_launch(self.node, partial)]

    def partial_launch(self, plan: WeightPlan, target: Variable, rows: int) -> Launch:
        """The launch that multiplies."""
        s, inner = self.sizes, plan.plan
        rest = prod(s.counts) // inner.y_step
        outputs = s.groups * s.outputs

        def table(sizes: Sizes) -> list[int]:
            start = len(gathered.WEIGHTS)
            head = [
                *inner.head(self.images(sizes)), prod(s.counts) * outputs, inner.y_step, s.groups,
                s.channels, rows * s.outputs, s.outputs, s.outputs, outputs, plan.splits,
                plan.slices, rows, start, start + len(plan.rows), rest,
                s.groups * rows * s.outputs,
            ]  # fmt: skip
            return [*head, *plan.rows.tolist(), *plan.terms.tolist()]

        return Launch(
            Kind.CONVOLUTION,
            "conv",
            self.functions["weights"],
            (*self.node.operands, target),
            (target,),
            table,
            lambda sizes: plan.splits * plan.slices,
            lambda sizes: 1,
        )


def _with_tables(head: list[int], plan: Plan) -> list[int]:
    """The numbers of a call, its phases, and their tables."""
    at = len(head) + len(gathered.PHASE) * len(plan.phases)
    records, tables = list[int](), list[int]()
    for phase in plan.phases:
        terms_at = at + len(phase.rows)
        records += [phase.count, phase.rest, at, terms_at, len(phase.terms) // 2]
        tables += [*phase.rows.tolist(), *phase.terms.tolist()]
        at = terms_at + len(phase.terms)
    return [*head, *records, *tables]
