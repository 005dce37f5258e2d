"""Kernels of nodes that stand alone: one small function for each primitive.

What has no kernel here, and is neither part of a group nor a product of matrices, is called back by
reference.

>>> import weft as wf
>>> from weft.compiler.lowering.nodes import SINGLES
>>> "gather" in SINGLES
True
"""

from __future__ import annotations

from collections.abc import Callable

from weft.compiler.lowering.builder import Draft, Producers, SingleKernel, Singles
from weft.compiler.lowering.nodes import (
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
    pooling,
    scans,
    scatters,
    windows,
)
from weft.core.errors import Unsupported
from weft.ir.graph import GraphNode, Literal

__all__ = ["SINGLES", "SingleKernel", "single_kernel", "single_kernels"]

SINGLES: dict[str, Callable[[Draft], Singles]] = {
    "argmax": scans.argmax,
    "argmin": scans.argmin,
    "attention": attention.attention,
    "attention_gradient": attention_gradients.attention_gradient,
    "bitcast": elements.bitcast,
    "computed_attention": attention.attention,
    "computed_attention_gradient": attention_gradients.attention_gradient,
    "conv": convolutions.conv,
    "conv_input_gradient": convolution_gradients.conv_input_gradient,
    "conv_weight_gradient": convolution_gradients.conv_weight_gradient,
    "conv_last": depthwise.conv_last,
    "conv_last_input_gradient": depthwise.conv_last_input_gradient,
    "conv_last_weight_gradient": depthwise.conv_last_weight_gradient,
    "cumulative_argmax": scans.cumulative_argmax,
    "cumulative_argmin": scans.cumulative_argmin,
    "cumulative_logsumexp": scans.cumulative_logsumexp,
    "cumulative_prod": scans.cumulative_prod,
    "cumulative_sum": scans.cumulative_sum,
    "dot": contractions.dot,
    "dynamic_slice": gathers.dynamic_slice,
    "dynamic_update_slice": boxes.dynamic_update_slice,
    "gather": gathers.gather,
    "linear_recurrence": scans.linear_recurrence,
    "pad": boxes.pad,
    "random_bits": bits.random_bits,
    "scatter": scatters.scatter,
    "scatter_add": scatters.scatter_add,
    "scatter_max": scatters.scatter_max,
    "scatter_min": scatters.scatter_min,
    "triangle": elements.triangle,
    "update_slice": boxes.update_slice,
    "window_argmax": windows.window_argmax,
    "window_max": windows.window_max,
    "window_max_gradient": pooling.window_max_gradient,
    "window_spread": windows.window_spread,
    "window_sum": windows.window_sum,
}
"""The kernel of each primitive; None where it cannot be written for these operands."""


def single_kernels(
    node: GraphNode, producers: Producers, error: Literal
) -> tuple[SingleKernel, ...]:
    """The kernels that compute a node, in order; none where there is none.

    `error` is the number that a kernel sets when its operands are wrong.
    """
    write = SINGLES.get(node.primitive.name) or node.primitive.loops
    kinds = [atom.type.dtype for atom in (*node.operands, *node.results)]
    if write is None or any(kind.is_complex for kind in kinds):
        return ()
    try:
        found: Singles = write(Draft(node, producers, error))
    except Unsupported:
        return ()
    if found is None:
        return ()
    return found if isinstance(found, tuple) else (found,)


def single_kernel(node: GraphNode, producers: Producers, error: Literal) -> SingleKernel | None:
    """The kernel that computes a node alone; None where none does."""
    found = single_kernels(node, producers, error)
    return found[0] if len(found) == 1 and found[0].copied is None else None
