"""Limits of a target: every stage reads its own, other ones give other plans, and equal results."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.memory_budget.model import Flow
from weft.compiler.pipeline import optimize
from weft.compiler.plan.launch import Launch
from weft.compiler.plan.planning import plan_program
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.limits import (
    FusionLimits,
    Limits,
    LoweringLimits,
    PassLimits,
    PlanLimits,
    Rates,
)
from weft.compiler.targets.plain.target import PlainTarget
from weft.ir.graph import Graph

COMPILER = Path(wf.__file__).parent / "compiler"


class OtherMachine(PlainTarget):
    """The plain target with limits of its own."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits


def plan_with(graph: Graph, **limits: Any) -> ProgramPlan:
    return plan_program(graph, OtherMachine(replace(Limits(), **limits)))


def trace_of(f: Callable[..., Any], *shapes: tuple[int, ...]) -> Graph:
    return wf.ir.trace(f, *[wf.spec("float32", shape) for shape in shapes])


def attend(q: wf.Tensor) -> wf.Tensor:
    return wf.scaled_dot_product_attention(q, q, q)


@pytest.mark.slow
def test_every_limit_is_read_by_some_stage() -> None:
    read: set[str] = set()
    for path in COMPILER.rglob("*.py"):
        if path.parent.name != "targets":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    limits = Limits()
    stages = [getattr(limits, each.name) for each in fields(limits)]
    names = [each.name for stage in stages for each in fields(stage)]
    assert len(names) == len(set(names)) > 50
    assert [name for name in names if name not in read] == []


def test_an_expression_is_cut_where_the_target_says() -> None:
    graph = trace_of(lambda x: wf.sin(wf.cos(wf.sin(wf.cos(wf.sin(wf.cos(x)))))), (8,))
    short = plan_with(graph, fusion=FusionLimits(expression_operations=2))
    assert [len(step.roots) for step in plan_with(graph).steps] == [1]  # type: ignore[union-attr]
    assert [len(step.roots) for step in short.steps] == [2]  # type: ignore[union-attr]


def test_columns_are_summed_in_chunks_where_the_target_says() -> None:
    graph = trace_of(lambda x: x.sum(axis=0), (128, 32))
    whole = plan_with(graph, fusion=FusionLimits(chunked_rows=1024))
    rows = [[root.rows for root in step.roots] for step in plan_with(graph).steps]  # type: ignore[union-attr]
    assert rows == [[16], [0]]
    assert [len(step.roots) for step in whole.steps] == [1]  # type: ignore[union-attr]


def test_a_transpose_goes_in_tiles_where_a_line_holds_several_elements() -> None:
    graph = trace_of(lambda x: x.mT + 1, (128, 128))
    by_row = plan_with(graph, lowering=LoweringLimits(transposed_tile=0))
    assert ".tile" in str(plan_with(graph).kernels[0])
    assert ".tile" not in str(by_row.kernels[0])


def test_a_row_is_held_where_it_fits() -> None:
    graph = trace_of(lambda x: wf.softmax(x, axis=-1), (64, 128))
    held, stored = plan_with(graph), plan_with(graph, lowering=LoweringLimits(held_row_bytes=64))
    assert [bool(each.scratch) for each in held.kernels] == [True]
    assert [bool(each.scratch) for each in stored.kernels] == [False]


def test_attention_has_blocks_as_large_as_the_target_says() -> None:
    graph = trace_of(attend, (1, 2, 128, 16))
    texts = {
        keys: str(plan_with(graph, lowering=LoweringLimits(attention_block_keys=keys)).kernels[0])
        for keys in (32, 64)
    }
    assert "minimum(32, " in texts[32]
    assert "minimum(32, " not in texts[64]


def test_attention_of_few_queries_is_products_where_the_target_says() -> None:
    graph = trace_of(attend, (1, 2, 32, 16))
    kept = plan_with(graph, passes=PassLimits(attention_queries=16))
    names = [node.primitive.name for node in kept.graph.nodes]
    assert names == ["attention"]
    assert "attention" not in [node.primitive.name for node in plan_with(graph).graph.nodes]


def test_a_launch_is_cut_into_chunks_as_large_as_the_target_says() -> None:
    def chunks(plan: ProgramPlan) -> list[int]:
        return [-(-each.extent({}) // each.grain({})) for each in plan.launches]

    graph = trace_of(lambda x: wf.exp(x), (1 << 18,))
    assert chunks(plan_with(graph)) == [8]
    assert chunks(plan_with(graph, plan=PlanLimits(chunk_operations=1 << 16))) == [4]


def test_launches_that_fill_the_threads_are_not_grouped() -> None:
    def members(plan: ProgramPlan) -> list[int]:
        return [len(launch.members) for launch in plan.launches]

    graph = trace_of(lambda x, y: (wf.exp(x), wf.sin(y)), (64, 64), (32, 32))
    assert members(plan_with(graph)) == [2]
    assert members(plan_with(graph, plan=PlanLimits(filling_chunks=0.01))) == [0, 0]


def test_seconds_follow_the_rates_of_the_target() -> None:
    f = wf.grad(lambda x, w: wf.sin(wf.sin(wf.sin(x @ w) @ w) @ w).sum())
    graph = optimize(trace_of(f, (64, 64), (64, 64)), OtherMachine(Limits()))
    slow = replace(Limits(), rates=Rates(*[rate / 2 for rate in _values(Rates())[:4]], 1e9))
    costs = [Flow(graph, limits).costs for limits in (Limits(), slow)]
    assert costs[0]
    for value, seconds in costs[0].items():
        assert costs[1][value] == pytest.approx(2 * seconds)


def _values(record: Any) -> list[Any]:
    return [getattr(record, each.name) for each in fields(record)]


TIGHT = Limits(
    PassLimits(8, 8, 1, 1, 64, 2, 1, 1, True),
    FusionLimits(
        recomputed_operations=1, cached_distance=1, expression_operations=3, kernel_weight=32,
        undivided_sum_elements=8, divided_join_elements=8, chunk_rows=4, fewest_chunk_rows=2,
        most_chunk_rows=8, chunked_rows=8, chunked_columns=2,
    ),
    LoweringLimits(
        vector_lanes=4, transposed_tile=2, accumulators=8, accumulated_rows=2, held_row_bytes=64,
        product_block=8,
        attention_block_queries=8, causal_block_queries=4, attention_block_keys=8,
        divided_head_key_blocks=1, convolution_block_places=8, fewest_block_places=2,
        patch_elements=64, weight_gradient_channels=2, unrolled_depthwise_taps=1,
        unrolled_window_taps=1, scatter_block_elements=2, conflict_bytes=4,
    ),
    PlanLimits(64, 16, 1.0, 256, 2, 2, 6, 3, 8, 2, 16),
)  # fmt: skip
"""A machine with hardly any registers and cache."""

PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "a softmax": (lambda x: wf.softmax(wf.sin(wf.exp(x) * 2) + x, axis=-1), [(12, 20)]),
    "sums both ways": (lambda x: (x.sum(axis=0), wf.exp(x).sum(axis=1), x.sum()), [(32, 12)]),
    "a product, and sums": (lambda x, w: wf.tanh(x @ w + 1).sum(axis=0), [(16, 10), (10, 9)]),
    "a join": (lambda x, y: wf.concat([x, y * 2, wf.sin(x)], axis=0) + 1, [(3, 5), (4, 5)]),
    "attention": (attend, [(1, 2, 16, 4)]),
    "attention's gradient": (wf.grad(lambda q: attend(q).sum()), [(1, 2, 12, 4)]),
    "a convolution's gradients": (
        lambda x, w: wf.vjp(wf.conv2d, x, w)[1](wf.ones((2, 3, 4, 4))),
        [(2, 2, 6, 6), (3, 2, 3, 3)],
    ),
    "a scatter": (
        lambda x, y: wf.index_add(x, 0, wf.asarray([1, 0, 1]), y), [(4, 6), (3, 6)],
    ),
    "a loop": (
        lambda xs, w: wf.scan(lambda c, x: (wf.tanh(c @ w + x), c), wf.zeros((3, 4)), xs),
        [(5, 3, 4), (4, 4)],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_limits_change_plans_and_not_results(name: str) -> None:
    f, shapes = PROGRAMS[name]
    rng = np.random.default_rng(len(name))
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    graph = wf.ir.trace(f, *map(wf.asarray, arrays))
    target = OtherMachine(TIGHT)
    plan = plan_program(graph, target)
    found = target.executable(plan).run([array.copy() for array in arrays])
    expected = wf.ir.interpret(graph, *map(wf.asarray, arrays))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-4)
    assert list(map(_description, plan.launches)) != list(
        map(_description, plan_with(graph).launches)
    )


def _description(launch: Launch) -> tuple[str, list[int], int, int]:
    return str(launch.kernel), launch.numbers({}), launch.extent({}), launch.grain({})


def test_what_is_made_of_a_few_labels_is_made_first_where_it_pays() -> None:
    def f(x: wf.Tensor, labels: wf.Tensor) -> tuple[wf.Tensor, ...]:
        counted = (labels != -100).astype("float32")
        total = wf.logsumexp(x, axis=-1)
        loss = (total * counted).sum() / counted.sum()
        return loss, (x - total[:, None]) / counted.sum()

    graph = wf.ir.trace(f, wf.spec("float32", (64, 8)), wf.spec("int64", (64,)))
    labels = graph.inputs[1]

    def first_reads(elements: int) -> set[Any]:
        launch, *_ = plan_with(graph, fusion=FusionLimits(early_elements=elements)).launches
        return {value for value in launch.values if value not in launch.writes}

    assert first_reads(64) == {labels}
    assert first_reads(63) != {labels}
    assert first_reads(0) != {labels}
