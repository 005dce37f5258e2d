"""How a product is cut: the rule that chooses tiles, stages and the order of work, and the launch.

The rule compares estimates in cycles of one multiprocessor. A step multiplies 128 bytes of the
summed axis: the tensor cores take tile_m · tile_n / 32 cycles for it (four instructions, 128 cycles
for 64 × 256) and reach nine tenths of that, and its operands come from the cache at about 62 bytes
a cycle. Whole tiles cost waves · (steps · step + epilogue); where consumers alternate, half of the
epilogues is hidden, while their smaller tiles load shared memory more. Split tiles have fewer
steps, but their parts are written, and read once more by the block that comes last.

Steps of 8-bit floats have as many cycles for twice as many terms, and then wait for their sums; the
cache gives them 42 bytes a cycle. These numbers are from six tiles at ten sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from weft.compiler.targets.cuda.products.cluster_products import (
    CLUSTERS,
    MOST_STEPS,
    MOST_STEPS_ELSEWHERE,
    STEP,
    TILE,
    cluster_kernel,
    takes_clusters,
)
from weft.compiler.targets.cuda.products.description import (
    FLOAT8_PAIRS,
    INTEGER_PAIRS,
    Apply,
    Combine,
    Compute,
    Plan,
    ProductKernel,
    ProductSpec,
    Sizes,
    Sum,
    dtype_bytes,
)
from weft.compiler.targets.cuda.products.expressions import instruction_count
from weft.compiler.targets.cuda.products.plain import PLAIN_DEPTH, plain_kernel
from weft.compiler.targets.cuda.products.tensor_core import (
    shared_bytes,
    stage_bytes,
    tensor_core_kernel,
)
from weft.compiler.targets.cuda.products.warp_products import (
    takes_warp_products,
    warp_kernel,
    warp_plan,
)
from weft.core.errors import UnsupportedError
from weft.core.records import frozen

__all__ = [
    "Launch", "best_plan", "estimated_cycles", "kernel_of", "launch", "with_most_stages",
]  # fmt: skip

_SHARED_BYTES = 227 * 1024  # of a block on Hopper
_TILES = ((128, 256), (192, 192), (128, 192), (128, 128), (128, 64), (64, 256), (64, 128), (64, 64))
_FLOAT8_TILES = ((192, 128), (128, 192), (128, 128), (128, 64), (64, 128), (64, 64))
"""Tiles whose sums find room in registers twice: in float32, and of one step."""
_PROMOTION_CYCLES = 160  # of a step of 8-bit floats, while its sums are waited for and added
_FLOAT8_BYTES_PER_CYCLE = 42
_MOST_STAGES = 8
_START_CYCLES = 3500
_SHORTEST_STEP = 200
_CACHE_BYTES_PER_CYCLE = 62
_PART_CYCLES = 1000  # a part's way to the block that adds it up
_PART_BYTES_PER_CYCLE = 20  # of parts that are written and read
_FEWEST_STEPS = 3  # of a part
_PLAIN_RATES = {128: (91, 95), 64: (63, 64)}
"""Multiply-adds of plain tiles in a cycle of a multiprocessor, for one, two and more blocks."""
_FEWEST_PLAIN = 0.12  # large plain tiles for each multiprocessor, from which they are considered
_LONG_SUM = 64  # steps of a small plain tile from which it may have many parts
_SHORTEST_PART = 8  # steps of such a tile
_MOST_PLAIN_PARTS = 8
_MOST_PLAIN_FLOATS = 1 << 23  # of the parts of all such tiles, in memory
_PLAIN_PART_CYCLES = 5000
_MEMORY_BYTES_PER_CYCLE = 16  # of a multiprocessor
_CLUSTER_STEP_CYCLES = 850  # of a small tile in a cluster, behind the first
_CLUSTER_CYCLES = 1200  # until all blocks of a cluster have seen each other's sums twice
_CLUSTER_BLOCK_CYCLES = 16  # more for each block of the launch
_MOST_IN_CLUSTERS = (1.0, 1.0, 0.83, 0.77)
"""Of multiprocessors that blocks of clusters of 1, 2, 3 and more can have at once.

A cluster lies in one group of multiprocessors, and groups of one kind of card differ: an H200 had
room for 39, 30, 22, 17, 15 and 15 clusters of 3 to 8. One cluster more than there is room for takes
twice the time, and the plan must not depend on which card of a kind it is.
"""
_DTYPES = ("bfloat16", "float16", "float32", "tfloat32", "int32", *INTEGER_PAIRS, *FLOAT8_PAIRS)


@frozen(slots=False)
class Launch:
    """What one launch needs beside the operands' addresses.

    `words` holds the numbers that parameters of that name get. The workspace is any memory of that
    many bytes; the counters are 32-bit zeros, and are zeros again when the kernel has ended.
    """

    blocks: int
    words: dict[str, int]
    workspace_bytes: int = 0
    counters: int = 0


def kernel_of(spec: ProductSpec, plan: Plan) -> ProductKernel:
    """The kernel of a product that is cut as a plan says."""
    if plan.warps:
        return warp_kernel(spec, plan)
    if plan.cluster:
        return cluster_kernel(spec, plan)
    return plain_kernel(spec, plan) if plan.plain else tensor_core_kernel(spec, plan)


def best_plan(
    spec: ProductSpec,
    sizes: Sizes,
    multiprocessors: int = 132,
    *,
    is_even: bool = True,
    has_warpgroups: bool = True,
) -> Plan:
    """The plan with the least estimate; without warpgroups single warps multiply.

    Without `is_even`, tiles have different numbers of steps: none is shared by blocks, and
    consumers do not alternate.
    """
    for dtype in (spec.dtype, spec.output):
        if dtype not in _DTYPES:
            raise UnsupportedError(
                "matmul",
                "products on CUDA cards take 16-bit floats, float32 and its tfloat32",
                expected=", ".join(_DTYPES),
                got={"dtype": dtype},
                fix='cast the operands: a.astype("float32")',
            )
    if (not has_warpgroups or spec.dtype in INTEGER_PAIRS) and takes_warp_products(spec):
        tiles = math.ceil(sizes.m / 128) * math.ceil(sizes.n / 128) * sizes.batch
        return warp_plan(tiles, multiprocessors)
    if not has_warpgroups or not _takes_tensor_cores(spec):
        shared = list(_cluster_plans(sizes, multiprocessors, has_clusters=has_warpgroups))
        return _plain_plan(spec, sizes, multiprocessors, shared if takes_clusters(spec) else [])
    is_float8 = spec.dtype in FLOAT8_PAIRS
    plans = [
        with_most_stages(spec, Plan(*tile, stages=0, split=split))
        for tile in (_FLOAT8_TILES if is_float8 else _TILES)
        for split in ((False, True) if is_even else (False,))
        if not split or _tile_parts(spec, Plan(*tile, stages=0), sizes, multiprocessors) > 1
    ]
    if is_even and not is_float8:
        plans.append(with_most_stages(spec, Plan(128, 128, stages=0, alternate=True)))
    return min(plans, key=lambda plan: estimated_cycles(spec, plan, sizes, multiprocessors))


def _takes_tensor_cores(spec: ProductSpec) -> bool:
    """Copies need rows of whole 16 bytes; all but 16-bit floats are multiplied along rows alone."""
    if spec.dtype == "float32" or not spec.aligned:
        return False
    return dtype_bytes(spec.dtype) == 2 or (not spec.transpose_a and spec.transpose_b)


def _plain_plan(
    spec: ProductSpec, sizes: Sizes, multiprocessors: int, shared: Sequence[Plan]
) -> Plan:
    """The plan with the least estimate; few large tiles are small ones, split if they are few.

    `shared` are plans whose blocks share tiles in clusters.
    """
    plans = [Plan(side, side, stages=2, bulk=False, plain=True) for side in (128, 64)]
    if _counts(spec, plans[0], sizes)[0] < multiprocessors * _FEWEST_PLAIN:
        plans = plans[1:]
    split = [
        replace(plan, split=_tile_parts(spec, plan, sizes, multiprocessors) > 1) for plan in plans
    ]
    every = [*split, *shared]
    return min(every, key=lambda plan: _plain_cycles(spec, plan, sizes, multiprocessors))


def _cluster_plans(sizes: Sizes, multiprocessors: int, *, has_clusters: bool) -> Iterator[Plan]:
    """Plans of small tiles whose blocks all run at once; without clusters each has one block."""
    clusters, most_steps = (
        (CLUSTERS, MOST_STEPS) if has_clusters else (CLUSTERS[:1], MOST_STEPS_ELSEWHERE)
    )
    tiles = math.ceil(sizes.m / TILE) * math.ceil(sizes.n / TILE) * sizes.batch
    steps = math.ceil(sizes.k / STEP)
    for cluster in clusters:
        run = math.ceil(steps / cluster)
        most = multiprocessors * _MOST_IN_CLUSTERS[min(cluster, len(_MOST_IN_CLUSTERS)) - 1]
        if run <= most_steps and (cluster - 1) * run < steps and tiles * cluster <= most:
            yield Plan(TILE, TILE, run, bulk=False, plain=True, cluster=cluster)


def _plain_cycles(spec: ProductSpec, plan: Plan, sizes: Sizes, multiprocessors: int) -> float:
    """The estimate that plain plans are compared by."""
    if plan.cluster:
        cycles = _CLUSTER_STEP_CYCLES * (plan.stages - 1)
        blocks = _counts(spec, plan, sizes)[0] * plan.cluster
        is_shared = plan.cluster > 1
        return cycles + is_shared * (_CLUSTER_CYCLES + _CLUSTER_BLOCK_CYCLES * blocks)
    parts = _tile_parts(spec, plan, sizes, multiprocessors) if plan.split else 1
    return _cycles_of_parts(spec, plan, sizes, multiprocessors, parts)


def _cycles_of_parts(
    spec: ProductSpec, plan: Plan, sizes: Sizes, multiprocessors: int, parts: int
) -> float:
    """The estimate for plain tiles that so many blocks share.

    A multiprocessor makes its blocks one or two at a time. Parts are written and read once more.
    """
    tiles, steps = _counts(spec, plan, sizes)
    blocks = math.ceil(tiles * parts / multiprocessors)
    area = plan.tile_m * plan.tile_n
    work = area * PLAIN_DEPTH * math.ceil(steps / parts)
    rates = _PLAIN_RATES[plan.tile_m]
    cycles = blocks * work / rates[min(blocks, len(rates)) - 1]
    if parts == 1:
        return cycles
    moved = 2 * tiles * parts * area * 4 / (_MEMORY_BYTES_PER_CYCLE * multiprocessors)
    return cycles + _PLAIN_PART_CYCLES + moved


def with_most_stages(spec: ProductSpec, plan: Plan) -> Plan:
    """The plan with as many stages as shared memory has room for."""
    fixed = shared_bytes(spec, plan) + 16 * _MOST_STAGES
    return plan.with_stages(min(_MOST_STAGES, (_SHARED_BYTES - fixed) // stage_bytes(plan)))


def estimated_cycles(
    spec: ProductSpec, plan: Plan, sizes: Sizes, multiprocessors: int = 132
) -> float:
    """The estimate that the rule compares."""
    tiles, steps = _counts(spec, plan, sizes)
    area = plan.tile_m * plan.tile_n
    step = max(area / 29, stage_bytes(plan) / _CACHE_BYTES_PER_CYCLE, _SHORTEST_STEP)
    if spec.dtype in FLOAT8_PAIRS:
        operands = stage_bytes(plan) / _FLOAT8_BYTES_PER_CYCLE
        step = max(area / 28 + _PROMOTION_CYCLES, operands)
    epilogue = _epilogue_cycles(spec, area)
    if plan.alternate:
        waves = math.ceil(tiles / multiprocessors)
        return _START_CYCLES + waves * (1.05 * steps * step + epilogue / 2) + epilogue
    if not plan.split:
        waves = math.ceil(tiles / multiprocessors)
        return _START_CYCLES + waves * (steps * step + epilogue)
    parts = _tile_parts(spec, plan, sizes, multiprocessors)
    moved = (1 + parts) * area * 4 / _PART_BYTES_PER_CYCLE
    return _START_CYCLES + math.ceil(steps / parts) * step + epilogue + _PART_CYCLES + moved


def _epilogue_cycles(spec: ProductSpec, area: int) -> float:
    """Stores at 40 bytes a cycle; functions with exponentials, and what is read for the others."""
    cycles = 600 + area * dtype_bytes(spec.output) * len(spec.outputs) / 40
    for step in spec.epilogue:
        if isinstance(step, Compute):
            cycles += area * instruction_count(step.expression) / 150
            continue
        heavy = isinstance(step, Apply | Sum) or (
            isinstance(step, Combine) and step.function.endswith("_derivative")
        )
        cycles += area / (12 if heavy else 60)
    return cycles


def _counts(spec: ProductSpec, plan: Plan, sizes: Sizes) -> tuple[int, int]:
    """Tiles, and steps of each."""
    tiles = math.ceil(sizes.m / plan.tile_m) * math.ceil(sizes.n / plan.tile_n) * sizes.batch
    depth = PLAIN_DEPTH if plan.plain else 128 // dtype_bytes(spec.dtype)
    return tiles, math.ceil(sizes.k / depth)


def _tile_parts(spec: ProductSpec, plan: Plan, sizes: Sizes, multiprocessors: int) -> int:
    """Parts of each tile, so that all of them run at once; plain ones may come one after another.

    Nobody waits for another part of a plain tile: who comes last adds all of them up.
    """
    tiles, steps = _counts(spec, plan, sizes)
    is_long = plan.tile_m == 128 or steps >= _LONG_SUM
    if plan.plain and is_long and tiles >= multiprocessors * _FEWEST_PLAIN:
        most = min(_MOST_PLAIN_PARTS, _MOST_PLAIN_FLOATS // (tiles * plan.tile_m * plan.tile_n))
        several = [math.ceil(steps / run) for run in range(_SHORTEST_PART, steps + 1)]
        few = sorted({parts for parts in several if parts <= most} | {1})
        return min(few, key=lambda each: _cycles_of_parts(spec, plan, sizes, multiprocessors, each))
    parts = max(1, min(multiprocessors // tiles, steps // _FEWEST_STEPS))
    return math.ceil(steps / math.ceil(steps / parts))  # no part is empty


def launch(kernel: ProductKernel, sizes: Sizes, multiprocessors: int = 132) -> Launch:
    """The launch of a kernel for these sizes."""
    plan = kernel.plan
    tiles, steps = _counts(kernel.spec, plan, sizes)
    words = {"m": sizes.m, "n": sizes.n, "k": sizes.k, "batch": sizes.batch}
    if plan.cluster:
        return Launch(tiles * plan.cluster, words)
    if not plan.split:
        stays = not (plan.plain or plan.warps)
        return Launch(min(tiles, multiprocessors) if stays else tiles, words)
    parts = _tile_parts(kernel.spec, plan, sizes, multiprocessors)
    words |= {"parts": parts, "run": math.ceil(steps / parts)}
    blocks = tiles * parts if plan.plain else min(tiles * parts, multiprocessors)
    workspace = tiles * parts * plan.tile_m * plan.tile_n * 4
    return Launch(blocks, words, workspace, tiles * plan.consumers)
