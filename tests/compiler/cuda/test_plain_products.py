"""Products by plain multiply-adds, run from their PTX: every thread, barrier and copy of them.

The interpreter is strict, so these tests are of order and of memory as much as of numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.assembling import needs_ptxas, spilled_bytes
from tests.compiler.cuda.epilogues_by_numpy import beside_product, run_epilogue
from tests.compiler.cuda.ptx_interpreter import Memory, run_kernel

from weft.compiler.targets.cuda.products.choice import best_plan, kernel_of, launch
from weft.compiler.targets.cuda.products.cluster_products import CLUSTERS, MOST_STEPS, STEP
from weft.compiler.targets.cuda.products.description import (
    Compute,
    Keep,
    Matrix,
    Operand,
    Plan,
    ProductSpec,
    Scalar,
    Sizes,
    Vector,
)
from weft.core.dtypes import as_dtype, float32
from weft.ir import scalars

Array = np.ndarray[Any, Any]
ORDERS = [(False, False), (False, True), (True, False), (True, True)]
LEAST_SHARED = 99 * 1024
"""Bytes of shared memory that a block may ask for on every card since Ampere."""


def cluster_plan(cluster: int, depth: int) -> Plan:
    """A plan whose clusters have so many blocks, for so long a sum."""
    stages = (
        -(-depth // STEP // cluster) if depth % STEP == 0 else -(-(depth // STEP + 1) // cluster)
    )
    return Plan(64, 64, stages, bulk=False, plain=True, cluster=cluster)


def is_whole(spec: ProductSpec, sizes: Sizes) -> bool:
    """Whether rows of both operands are whole numbers of 16 bytes."""
    lines = (
        sizes.m if spec.transpose_a else sizes.k,
        sizes.k if spec.transpose_b else sizes.n,
    )
    return all(line % 4 == 0 for line in lines)


def product_on_interpreter(spec: ProductSpec, sizes: Sizes, plan: Plan) -> None:
    """A product from its PTX is what NumPy says, and each element is stored once."""
    m, n, k, batch = sizes.m, sizes.n, sizes.k, sizes.batch
    random = np.random.default_rng(m + 31 * n + 17 * k)
    front = (batch,) if spec.batched else ()
    kind_of_operands = "float32" if spec.dtype == "tfloat32" else spec.dtype
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "a": (kind_of_operands, (*front, *((k, m) if spec.transpose_a else (m, k)))),
        "b": (kind_of_operands, (*front, *((n, k) if spec.transpose_b else (k, n)))),
    }
    for step in spec.epilogue:
        for each in step.operands if isinstance(step, Compute) else ():
            shape: tuple[int, ...] = ()
            if isinstance(each, Matrix):
                shape = (*front, m, n)
            elif isinstance(each, Vector):
                shape = (m,) if each.per == "row" else (n,)
            shapes[each.name] = getattr(each, "dtype", "float32"), shape
    arrays = {
        name: random.normal(size=shape).astype(as_dtype(dtype).numpy)
        for name, (dtype, shape) in shapes.items()
    }
    stored = {each.name: as_dtype(each.dtype).numpy for each in spec.outputs}
    outputs = {name: np.zeros((*front, m, n), kind) for name, kind in stored.items()}
    kernel = kernel_of(spec, plan)
    how = launch(kernel, sizes)
    room = {
        "workspace": np.full(how.workspace_bytes // 4, np.nan, np.float32),
        "counters": np.zeros(how.counters, np.uint32),
    }
    memory = Memory(arrays | outputs | room)
    words = how.words | {
        "a_stride": arrays["a"].shape[-1], "b_stride": arrays["b"].shape[-1],
        "a_batch_stride": m * k, "b_batch_stride": k * n,
    }  # fmt: skip
    for each in (*spec.outputs, *spec.matrices):
        words |= {f"{each.name}_stride": n, f"{each.name}_batch_stride": m * n}
    run_kernel(kernel.text, kernel.threads, how.blocks, kernel.shared_bytes, memory, words)
    a, b = arrays["a"].astype(np.float64), arrays["b"].astype(np.float64)
    a = np.swapaxes(a, -1, -2) if spec.transpose_a else a
    b = np.swapaxes(b, -1, -2) if spec.transpose_b else b

    def operand(each: Operand) -> Array:
        assert isinstance(each, Scalar | Vector | Matrix)
        return beside_product(each, arrays[each.name])

    wanted = run_epilogue(spec, (a @ b).astype(np.float32), operand)
    for name, kind in stored.items():
        assert (memory.store_counts(name) == 1).all()
        found, reference = memory.result(name).astype(np.float64), wanted[name].astype(np.float64)
        most = 1e-5 if kind == np.float32 else 2e-2
        np.testing.assert_allclose(found, reference, rtol=most, atol=most * np.sqrt(k))
    kept = arrays | {"counters": room["counters"]}
    assert all((memory.result(name) == array).all() for name, array in kept.items())


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_clusters_of_every_size_multiply_operands_of_every_order(
    cluster: int, order: tuple[bool, bool]
) -> None:
    for m, n, k in ((72, 68, 16 * cluster + 20), (4, 8, 32 * cluster - 4)):
        sizes, plan = Sizes(m, n, k), cluster_plan(cluster, k)
        spec = ProductSpec("float32", transpose_a=order[0], transpose_b=order[1])
        assert is_whole(spec, sizes)
        product_on_interpreter(spec, sizes, plan)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("size", [(1, 1, 1), (65, 3, 17), (7, 66, 33), (64, 1, 130)], ids=str)
def test_rows_of_any_length_are_multiplied_number_by_number(
    size: tuple[int, int, int], order: tuple[bool, bool]
) -> None:
    for cluster in (1, 2, 7):
        if cluster == 1 or -(-size[2] // STEP) % cluster == 0 or size[2] > 112:
            spec = ProductSpec(
                "float32", transpose_a=order[0], transpose_b=order[1], aligned=False,
                aligned_output=False,
            )  # fmt: skip
            product_on_interpreter(spec, Sizes(*size), cluster_plan(cluster, size[2]))


X = scalars.local("x", float32)
AFTER: dict[str, ProductSpec] = {
    "a bias, what it was added to, a maximum": ProductSpec(
        "float32",
        epilogue=(
            Compute(
                scalars.node("add", float32, (X, scalars.local("bias", float32))),
                (Vector("bias", "float32"),),
            ),
            Keep("kept", "float32"),
            Compute(scalars.node("maximum", float32, (X, scalars.const(0.0, float32)))),
        ),
    ),
    "a factor for each row, in 16 bits": ProductSpec(
        "float32",
        output="bfloat16",
        transpose_b=True,
        epilogue=(
            Compute(
                scalars.node("multiply", float32, (X, scalars.local("w", float32))),
                (Vector("w", "float32", per="row"),),
            ),
        ),
    ),
    "a matrix of each item of a stack": ProductSpec(
        "float32",
        batched=True,
        transpose_a=True,
        epilogue=(
            Compute(
                scalars.node("subtract", float32, (X, scalars.local("before", float32))),
                (Matrix("before", "float32"),),
            ),
        ),
    ),
    "a number in memory, rows that end anywhere": ProductSpec(
        "float32",
        output="float16",
        aligned=False,
        aligned_output=False,
        epilogue=(
            Compute(
                scalars.node("multiply", float32, (X, scalars.local("scale", float32))),
                (Scalar("scale"),),
            ),
        ),
    ),
    "no tensor cores": ProductSpec("tfloat32", transpose_a=True, transpose_b=True),
}


@pytest.mark.parametrize("cluster", [1, 4, 7])
@pytest.mark.parametrize("name", AFTER)
def test_what_follows_a_product_is_done_by_the_block_that_adds_the_rows_up(
    name: str, cluster: int
) -> None:
    spec = AFTER[name]
    sizes = Sizes(72, 40, 16 * cluster, 3 if spec.batched else 1)
    if not spec.aligned:
        sizes = Sizes(67, 41, 16 * cluster - 3)
    product_on_interpreter(spec, sizes, cluster_plan(cluster, sizes.k))


@pytest.mark.parametrize(
    "size", [(64, 130, 784), (128, 10, 512), (10, 200, 128), (1, 1, 700)],
    ids=str,
)  # fmt: skip
def test_the_plan_that_is_chosen_is_right_for_its_sizes(size: tuple[int, int, int]) -> None:
    sizes = Sizes(*size)
    spec = ProductSpec("float32", aligned_output=sizes.n % 4 == 0)
    spec = replace(spec, aligned=is_whole(spec, sizes))
    plan = best_plan(spec, sizes)
    assert plan.cluster
    product_on_interpreter(spec, sizes, plan)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_plain_tiles_are_whole_or_added_up_by_the_block_that_comes_last(
    order: tuple[bool, bool], dtype: str
) -> None:
    side_of_parts = 128 if dtype == "float32" else 64
    for side, m, n, k, batch in ((64, 67, 5, 33, 3), (side_of_parts, 8, 72, 100, 1)):
        spec = ProductSpec(
            dtype, transpose_a=order[0], transpose_b=order[1], batched=batch > 1,
            aligned=n % 4 == 0, aligned_output=n % 4 == 0,
        )  # fmt: skip
        plan = Plan(side, side, 2, bulk=False, plain=True, split=k > 33)
        product_on_interpreter(spec, Sizes(m, n, k, batch), plan)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_cards_before_hopper_are_asked_for_no_more_shared_memory_than_all_have(
    order: tuple[bool, bool],
) -> None:
    spec = ProductSpec("float32", transpose_a=order[0], transpose_b=order[1])
    taken = set()
    for side in (64, 512, 576):
        for depth in range(4, 300, 4):
            plan = best_plan(spec, Sizes(side, side, depth), 84, has_warpgroups=False)
            assert plan.cluster <= 1
            assert kernel_of(spec, plan).shared_bytes <= LEAST_SHARED
            taken.add(plan.cluster)
    assert taken == {0, 1}


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_clusters_assemble_without_spills(cluster: int, order: tuple[bool, bool]) -> None:
    for aligned in (True, False):
        for stages in (1, 5, MOST_STEPS):
            spec = ProductSpec(
                "float32", transpose_a=order[0], transpose_b=order[1], aligned=aligned,
                aligned_output=aligned, batched=stages == 5,
            )  # fmt: skip
            plan = Plan(64, 64, stages, bulk=False, plain=True, cluster=cluster)
            most = 0 if aligned else 32  # copies of single numbers have 16 places and sources
            assert spilled_bytes(kernel_of(spec, plan).text) <= most
