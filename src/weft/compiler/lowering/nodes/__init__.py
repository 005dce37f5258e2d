"""Kernels of nodes that stand alone: one small function for each primitive.

A function says by `@kernel_of("gather")` which primitive it is the kernel of. When the compiler is
imported, every primitive must have a lowering: by its kind, its `lower` slot, a kernel here, or
`Unsupported("why")`, which is the only way to leave one out; such a node is called by reference.

>>> import weft as wf
>>> from weft.compiler.lowering.nodes import NODE_KERNELS
>>> "gather" in NODE_KERNELS
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weft.compiler.lowering.builder import (
    NODE_KERNELS,
    KernelBuilder,
    NodeKernel,
    NodeKernels,
    Producers,
)
from weft.compiler.lowering.nodes import (  # noqa: F401 (they register their kernels)
    attention,
    attention_gradients,
    bits,
    boxes,
    contractions,
    convolution_gradients,
    convolutions,
    depthwise,
    elements,
    gathers,
    placed_boxes,
    pooling,
    scans,
    scatters,
    windows,
)
from weft.compiler.targets.limits import LoweringLimits
from weft.core.errors import ArgumentError, Unsupported
from weft.ir.graph import GraphNode, Literal
from weft.ir.kinds import Control, Movement, Reduction
from weft.ir.primitive import PRIMITIVES, Primitive

__all__ = ["NODE_KERNELS", "NodeKernel", "require_lowering", "single_kernel", "single_kernels"]


def require_lowering(primitive: Primitive) -> None:
    """Refuse a primitive of which nothing says how it is compiled."""
    if primitive.lower is not None or _kernel(primitive) or primitive.native is not None:
        return
    kind = primitive.kind
    if isinstance(kind, Reduction | Control) or (isinstance(kind, Movement) and kind.read):
        return
    raise ArgumentError(
        "primitive",
        f"nothing says how {primitive.name} is compiled",
        expected="lower=..., a kind that says it, a kernel in compiler/lowering/nodes, or a reason",
        got={"name": primitive.name, "kind": kind},
        fix='lower=Unsupported("why it is called by reference")',
    )


def _kernel(primitive: Primitive) -> Callable[[KernelBuilder], NodeKernels] | None:
    return NODE_KERNELS.get(primitive.name) or primitive.loops


def single_kernels(
    node: GraphNode, producers: Producers, error: Literal, limits: LoweringLimits
) -> tuple[NodeKernel, ...]:
    """The kernels that compute a node, in order; none where there is none.

    `error` is the number that a kernel sets when its operands are wrong.
    """
    require_lowering(node.primitive)
    write = _kernel(node.primitive)
    kinds = [atom.type.dtype for atom in (*node.operands, *node.results)]
    if write is None or any(kind.is_complex for kind in kinds):
        return ()
    try:
        found: NodeKernels = write(KernelBuilder(node, producers, error, limits))
    except Unsupported:
        return ()
    if found is None:
        return ()
    return found if isinstance(found, tuple) else (found,)


def single_kernel(
    node: GraphNode, producers: Producers, error: Literal, limits: LoweringLimits
) -> NodeKernel | None:
    """The kernel that computes a node alone; None where none does."""
    found = single_kernels(node, producers, error, limits)
    return found[0] if len(found) == 1 and found[0].copied is None else None


def check_lowerings(primitives: Iterable[Primitive]) -> None:
    """Refuse the first primitive of which nothing says how it is compiled."""
    for primitive in primitives:
        require_lowering(primitive)


check_lowerings(PRIMITIVES.values())
