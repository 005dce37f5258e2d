"""NVIDIA cards as a target: which nodes have kernels of their own, and what runs plans.

Plans are made on any machine; only an executable needs a card.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> graph = wf.ir.trace(lambda a, b: wf.exp(a @ b), *[wf.spec("bfloat16", (64, 64))] * 2)
>>> [str(launch.kind) for launch in plan_program(graph, CUDA).launches]
['product']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from weft.compiler.graph_passes.channels_last_primitives import CHANNELS_LAST
from weft.compiler.graph_passes.graph_pass import Pass
from weft.compiler.plan.launch import Launch
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cuda import control
from weft.compiler.targets.cuda.attention.binding import attention_launch, is_attention
from weft.compiler.targets.cuda.attention.exact_binding import (
    exact_attention_launch,
    is_exact_attention,
)
from weft.compiler.targets.cuda.attention.head_views import is_viewed, view_heads, viewed_launch
from weft.compiler.targets.cuda.binding import MOST_BRANCHING
from weft.compiler.targets.cuda.capabilities import (
    has_warp_products,
    has_warpgroup_products,
    multiprocessor_count,
)
from weft.compiler.targets.cuda.code import begin_kernels
from weft.compiler.targets.cuda.convolution import binding as convolution_binding
from weft.compiler.targets.cuda.convolution.launches import convolution_launches, is_convolution
from weft.compiler.targets.cuda.cross_entropy import (
    cross_entropy_launch,
    fuse_cross_entropy,
    is_cross_entropy,
)
from weft.compiler.targets.cuda.deep_picks import pick_deeply
from weft.compiler.targets.cuda.device import device
from weft.compiler.targets.cuda.driver import is_available
from weft.compiler.targets.cuda.executable import CudaExecutable, watched_launches
from weft.compiler.targets.cuda.machine import card
from weft.compiler.targets.cuda.nvptx import kernels_to_ptx
from weft.compiler.targets.cuda.ordered_scatters import (
    is_ordered_scatter,
    order_scatters,
    ordered_scatter_launches,
)
from weft.compiler.targets.cuda.pooling import is_pooling_gradient, pooling_gradient_launches
from weft.compiler.targets.cuda.products.binding import (
    arrange_products,
    is_product,
    product_launch,
)
from weft.compiler.targets.cuda.products.code_casts import cast_codes, codes_launch, is_codes
from weft.compiler.targets.cuda.products.code_transposes import (
    is_transposed_codes,
    transposed_codes_launch,
)
from weft.compiler.targets.cuda.products.float8 import arrange_codes
from weft.compiler.targets.cuda.products.fusing import fuse_epilogues
from weft.compiler.targets.cuda.scans import is_running, running_launch
from weft.compiler.targets.cuda.sorting import is_sorting, sort_launch
from weft.compiler.targets.cuda.stored_programs import stored_program
from weft.compiler.targets.cuda.wide_sums import widen_sums
from weft.compiler.targets.limits import (
    FusionLimits,
    Limits,
    LoweringLimits,
    PassLimits,
    PlanLimits,
    Rates,
)
from weft.compiler.targets.target import Array, Executable, Observer
from weft.core.once import made_once
from weft.ir.graph import Graph, GraphNode, Literal
from weft.ir.loops import Kernel

__all__ = ["CUDA", "CudaTarget", "control", "convolution_binding", "cuda_target"]

CUDA_LIMITS = Limits(
    passes=PassLimits(
        recognized_queries=1 << 40,
        multiplies_short_floats=True,
        sums_by_image=False,
        expands_matrix_functions=False,
        mask_operations=0,
        divided_sum_rows=128,  # fewer leave most of a card without work
        divided_sum_columns=1,
    ),
    fusion=FusionLimits(
        divided_join_elements=1 << 62,
        chunk_rows=64,
        fewest_chunk_rows=4,
        most_chunk_rows=128,
        ragged_chunks=False,
        chunk_elements=1 << 18,
        fewest_chunks=512,
        early_elements=1 << 15,
        recomputed_reads=2,
        stores_narrow_floats=True,
    ),
    lowering=LoweringLimits(
        guards_places=True,
        transposed_tile=0,
        near_row_elements=1,
        scanned_lines=0,
        conflict_bytes=0,
    ),
    plan=PlanLimits(
        fused_launches=0,
        filling_chunks=64.0,
        filling_update_chunks=float("inf"),
        gathered_bytes=5 << 20,
        side_by_side=MOST_BRANCHING,
        column_sum_teams=4,
    ),
    rates=Rates(5e14, 3e14, 1e13, 4e12, 1e12),
)
"""What pays on a card. Rates are those of one H200; joins are one launch; nothing is fused by rows,
as no cache lies between launches."""

PASSES = (
    Pass("deep picks", pick_deeply, "on values as they are: no row is stored for one element"),
    Pass("wide sums", widen_sums, "on scatters that are left: 16-bit floats add up in float32"),
    Pass("ordered scatters", order_scatters, "on wide sums: updates are sorted by their places"),
    Pass("product operands", arrange_products, "on what is left: as kernels take them"),
)
"""What is done for every card."""
HOPPER_PASSES = (
    PASSES[0],
    Pass(
        "cross entropy",
        fuse_cross_entropy,
        "when picks need no softmax: logits are read once, and their gradient written",
    ),
    *PASSES[1:-1],
    Pass("float8 products", arrange_codes, "on products as they are: codes as kernels read them"),
    PASSES[-1],
    Pass("head views", view_heads, "on attention as it is: heads are read where they lie"),
    Pass("epilogues", fuse_epilogues, "on products as kernels take them: what follows them"),
    Pass("float8 codes", cast_codes, "last: of what products have left in memory"),
)
"""The same with what kernels of PTX text alone can do."""


class CudaTarget:
    """One card."""

    name = "cuda"
    limits = CUDA_LIMITS

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal

    @property
    def passes(self) -> tuple[Pass, ...]:
        """See `Target`."""
        return HOPPER_PASSES if has_warpgroup_products(self.ordinal) else PASSES

    def target_at(self, index: int) -> CudaTarget:
        """See `Target`."""
        return cuda_target(index)

    def environment(self) -> tuple[str, ...]:
        """See `Target`."""
        return (self.name, card().processor)

    def has_convolution(self, node: GraphNode) -> bool:
        """See `Target`."""
        return self._has_products() and is_convolution(node)

    def has_attention(self, node: GraphNode) -> bool:
        """See `Target`."""
        if is_exact_attention(node):
            return True
        return has_warpgroup_products(self.ordinal) and is_attention(node)

    def takes(self, node: GraphNode) -> bool:
        """See `Target`."""
        for_all = (is_sorting, is_running, is_ordered_scatter, is_exact_attention)
        if any(is_one(node) for is_one in for_all):
            return True
        for_hopper = (is_attention, is_viewed, is_cross_entropy, is_transposed_codes, is_codes)
        if has_warpgroup_products(self.ordinal) and any(is_one(node) for is_one in for_hopper):
            return True
        kinds = (is_product, is_pooling_gradient, self._is_convolution)
        return self._has_products() and any(is_one(node) for is_one in kinds)

    def _is_convolution(self, node: GraphNode) -> bool:
        return node.primitive in CHANNELS_LAST and is_convolution(node)

    def launches(self, node: GraphNode, error: Literal) -> list[Launch] | None:
        """See `Target`."""
        if not self.takes(node):
            return None
        if is_sorting(node) or is_running(node):
            return [sort_launch(node) if is_sorting(node) else running_launch(node)]
        if self._is_convolution(node):
            has_copies = has_warpgroup_products(self.ordinal)
            count = multiprocessor_count(self.ordinal)
            return convolution_launches(node, reads_windows=has_copies, multiprocessors=count)
        if is_pooling_gradient(node):
            return pooling_gradient_launches(node)
        if is_ordered_scatter(node):
            return ordered_scatter_launches(node, error)
        if is_exact_attention(node):
            return [exact_attention_launch(node)]
        if is_viewed(node):
            return [viewed_launch(node)]
        if is_cross_entropy(node):
            return [cross_entropy_launch(node)]
        if is_transposed_codes(node):
            return [transposed_codes_launch(node)]
        if is_codes(node):
            return [codes_launch(node)]
        return [attention_launch(node) if is_attention(node) else product_launch(node)]

    def _has_products(self) -> bool:
        return has_warp_products(self.ordinal)

    def start(self) -> None:
        """See `Target`: the driver is there."""

    def prepare(self, graph: Graph) -> None:
        """See `Target`: there is nothing to make ready."""

    def begin(self, kernels: Sequence[Kernel]) -> None:
        """See `Target`."""
        if is_available():
            begin_kernels(kernels, device(self.ordinal))

    def executable(self, plan: ProgramPlan) -> CudaExecutable:
        """See `Target`."""
        return CudaExecutable(plan, self.ordinal)

    def stored_executable(self, digest: str, compiled: Callable[[], Executable]) -> Executable:
        """See `Target`."""
        return stored_program(digest, self.ordinal, compiled) if is_available() else compiled()

    def watch(self, observe: Observer) -> AbstractContextManager[None]:
        """See `Target`."""
        return watched_launches(observe)

    def memory_comparison(self) -> Callable[[Array], bool] | None:
        """See `Target`: calls are recognised on the host alone."""
        return None

    def new_book(
        self, handle_class: type, usual: Mapping[str, Any], places: Mapping[str, int]
    ) -> None:
        """See `Target`: calls are known natively on the host alone."""

    def listing(self, kernels: Sequence[Kernel]) -> str:
        """See `Target`: PTX."""
        return kernels_to_ptx(kernels)


CUDA = CudaTarget(0)


@made_once
def cuda_target(ordinal: int) -> CudaTarget:
    """The target of a card."""
    return CUDA if ordinal == 0 else CudaTarget(ordinal)
