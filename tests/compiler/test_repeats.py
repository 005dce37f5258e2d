"""Equal nodes and groups are written once; drafts are programs whose kernels are not compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.function.program_cache import draft, forget_drafts, program
from weft.compiler.lowering.node_reuse import Repeats
from weft.compiler.plan.planning import WrittenKernels, plan_program
from weft.compiler.targets.cpu.target import CPU, compile_program
from weft.ir.graph import Graph, Literal

ERROR = Literal(np.zeros(1, np.int32))


def traced(f: Any, *shapes: tuple[int, ...]) -> Graph:
    return wf.ir.trace(f, *[wf.spec("float32", shape) for shape in shapes])


def kernels(graph: Graph) -> list[Any]:
    known = Repeats()
    producers = {v: node for node in graph.nodes for v in node.results}
    return [known.kernels(node, producers, ERROR, CPU.limits.lowering) for node in graph.nodes]


def test_other_parameters_and_types_have_kernels_of_their_own() -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        return wf.cumsum(wf.cumsum(wf.cumsum(x, axis=1), axis=0), axis=1)

    first, second, third = kernels(traced(f, (4, 4)))
    assert first[0].kernel is third[0].kernel
    assert first[0].kernel is not second[0].kernel


def test_an_operand_that_comes_twice_is_not_two_operands() -> None:
    attend = wf.scaled_dot_product_attention

    def f(x: wf.Tensor, y: wf.Tensor) -> Any:
        return attend(x, x, x), attend(x, y, y), attend(y, y, y)

    graph = compile_program(traced(f, (1, 2, 128, 16), (1, 2, 128, 16))).graph
    known = [each for each in kernels(graph) if each]
    assert len(known) == 3
    assert known[0][0].kernel is known[2][0].kernel
    assert known[0][0].kernel is not known[1][0].kernel


def test_what_looks_at_the_makers_of_its_operands_is_written_for_itself() -> None:
    index = wf.asarray([0, 2])

    def f(x: wf.Tensor, y: wf.Tensor) -> Any:
        onto_nothing = wf.index_add(wf.zeros((4, 3)), 0, index, x)
        return onto_nothing, wf.index_add(y, 0, index, x)

    graph = traced(f, (2, 3), (4, 3))
    first, second = [each for each in kernels(graph) if each]
    assert [each.kernel for each in first] != [each.kernel for each in second]
    arguments = wf.full((2, 3), 2.0), wf.ones((4, 3))
    found = wf.jit(f)(*arguments)
    assert found[0][:, 0].tolist() == [2.0, 0.0, 2.0, 0.0]
    assert found[1][:, 0].tolist() == [3.0, 1.0, 3.0, 1.0]


def layers(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
    for _ in range(3):
        heads = (x @ w).reshape(1, 2, 8, 4)
        heads = wf.scaled_dot_product_attention(heads, heads, heads)
        x = x + wf.gelu(heads.reshape(8, 8))
        x = wf.scan(lambda h, row: (h * 0.5 + row, h), x[0], x)[1]
    return wf.cumsum(x, axis=0)


@pytest.mark.parametrize("fixed", [(), (1,)])
def test_a_draft_is_the_plan_of_the_program(fixed: tuple[int, ...]) -> None:
    graph = traced(layers, (8, 8), (8, 8))
    drafted = plan_program(graph, CPU, fixed, WrittenKernels())
    whole = compile_program(graph, fixed)
    assert str(drafted) == str(whole.plan)
    identities = [launch.identity for launch in drafted.every_launch()]
    assert identities == [launch.identity for launch in whole.plan.every_launch()]
    inputs = [np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32) for _ in range(2)]
    np.testing.assert_array_equal(CPU.executable(drafted).run(inputs)[0], whole.run(inputs)[0])


def test_drafts_share_what_is_written() -> None:
    graph = traced(layers, (8, 8), (8, 8))
    written = WrittenKernels()
    first, second = [plan_program(graph, CPU, (), written) for _ in range(2)]
    pairs = zip(first.every_lowered, second.every_lowered, strict=True)
    assert all(one.kernel.digest == other.kernel.digest for one, other in pairs)
    inputs = [np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32) for _ in range(2)]
    results = [CPU.executable(plan).run(inputs)[0] for plan in (first, second)]
    np.testing.assert_array_equal(*results)


def test_the_program_of_a_graph_is_its_draft_unless_that_is_forgotten() -> None:
    graph = traced(lambda x: wf.sin(x) * 3.25, (5,))
    made = draft(graph)
    assert draft(graph) is made
    assert program(graph).plan is made
    other = traced(lambda x: wf.sin(x) * 4.25, (5,))
    made = draft(other)
    forget_drafts(None)
    assert program(other).plan is not made
    x = np.ones(5, np.float32)
    np.testing.assert_allclose(program(other).run([x])[0], np.sin(x) * 4.25, rtol=1e-6)
