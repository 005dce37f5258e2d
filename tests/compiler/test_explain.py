"""`explain`, `memory`, `loops`, `assembly`, `compilations`: a program says what became of it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from tests.quiet import peak_bytes

import weft as wf
from weft.compiler import pipeline as pipeline_module
from weft.compiler.fusion.costs import operations
from weft.compiler.fusion.grouping import why_stored
from weft.compiler.graph_passes import graph_pass
from weft.compiler.graph_passes.graph_pass import Pass, StageReport
from weft.compiler.lowering.groups import is_lowered
from weft.compiler.pipeline import stages
from weft.compiler.plan.planning import plan_program
from weft.compiler.report.memory_use import CHARTED
from weft.compiler.report.stages import stage_reports
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.products.tiles import tile_of
from weft.compiler.targets.cpu.target import CPU, CpuTarget
from weft.compiler.targets.plain.target import PLAIN
from weft.compiler.targets.target import Target
from weft.ir.dispatch import apply
from weft.ir.graph import Graph
from weft.ops.determinants import adjugate_slope


def mlp(w1: wf.Tensor, w2: wf.Tensor, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    hidden = wf.tanh(x @ w1)
    loss = -(wf.log_softmax(hidden @ w2) * y).sum(axis=-1).mean()
    loss.backward()
    with wf.no_grad():
        w1 -= 0.1 * w1.grad
        w2 -= 0.1 * w2.grad
    w1.grad = None
    w2.grad = None
    return loss


def mlp_arguments(rows: int = 64) -> tuple[wf.Tensor, ...]:
    shapes = [(20, 30), (30, 5), (rows, 20), (rows, 5)]
    generator = np.random.default_rng(0)
    tensors = [wf.asarray(generator.normal(size=s).astype(np.float32)) for s in shapes]
    tensors[0].requires_grad = tensors[1].requires_grad = True
    return tuple(tensors)


def test_a_training_step_is_explained_kernel_by_kernel() -> None:
    report = wf.jit(mlp).explain(*mlp_arguments())
    kinds = [kernel.kind for kernel in report.kernels]
    assert sum(kernel.primitives.count("dot") for kernel in report.kernels) == 5
    assert "product" in kinds
    assert "reference" not in kinds
    assert report.references == []
    softmax = next(k for k in report.kernels if "reduce_max" in k.primitives)
    assert {"exp", "log", "reduce_sum"} <= set(softmax.primitives)
    # without masks, 30 columns are no whole vectors, and are packed in panels
    columns = tile_of(wf.float32, host()).columns
    panels = f"f32[1, {-(-30 // columns)}, 20, {columns}]"
    weights = "f32[20, 30]" if host().masked else panels
    assert softmax.space == f"f32[64, 20] · {weights} and its rows"
    assert any("loss = -(wf.log_softmax" in line for line in softmax.lines)
    assert any("test_explain.py" in line for line in softmax.lines)
    assert len(report.graph.nodes) > len(report.optimized.nodes)
    assert any(each.rewrites for each in report.passes)
    text = str(report)
    for words in ("after passes", "products", "peak memory", "laws:", "stores"):
        assert words in text


def reasons(f: object, *args: wf.Tensor) -> str:
    report = wf.jit(f).explain(*args)  # type: ignore[arg-type]
    return "\n".join(value.reason for kernel in report.kernels for value in kernel.stored)


def test_what_prevents_fusion_is_said() -> None:
    x = wf.ones((8, 6))
    assert "an output" in reasons(wf.exp, x)
    assert "dot reads it as a whole" in reasons(lambda x: wf.exp(x) @ x.T, x)
    assert "dot makes it as a whole" in reasons(lambda x: wf.exp(x @ x.T), x)
    along = reasons(lambda x: (x - x.sum(axis=0)).sum(axis=1), x)
    assert "a reduction; k1 runs over [8, 6], this kernel over [6, 8]" in along

    def expensive(x: wf.Tensor) -> wf.Tensor:
        y = wf.sin(wf.cos(wf.exp(wf.tanh(wf.sin(x)))))
        return (y * 2).sum(axis=0) + (y * 3).sum(axis=1)[:6]

    assert "2 readers, and 5 operations to compute it again" in reasons(expensive, x)


def test_an_expression_that_is_too_long_is_cut() -> None:
    def long(x: wf.Tensor) -> wf.Tensor:
        for _ in range(70):
            x = wf.sin(x)
        return x

    graph = wf.ir.trace(long, wf.spec("float32", (8,)))
    found = list(why_stored(graph, is_lowered, CPU.limits.fusion).values())
    assert found == ["an output", "an expression of 61 operations, the most are 60"]


def test_a_call_by_reference_is_named_with_its_reason() -> None:
    report = wf.jit(lambda x: apply(adjugate_slope, x, x)).explain(wf.eye(70))
    (call,) = report.references
    assert call.primitives == ["adjugate_slope"]
    assert call.reason
    assert "by reference: " + call.reason in str(report)
    complex_ = wf.jit(wf.asin).explain(wf.ones(3, dtype=wf.complex64)).references
    assert [each.reason for each in complex_] == ["complex numbers are computed by reference"]


def names_in_order(reports: Iterable[StageReport]) -> list[str]:
    """The stages, each where it ran first: passes run in several rounds."""
    return list(dict.fromkeys(report.name for report in reports))


@pytest.mark.parametrize("target", [CPU, PLAIN], ids=lambda target: target.name)
def test_every_stage_is_listed_from_the_traced_graph_to_the_executable(target: Target) -> None:
    graph = wf.jit(mlp).graph(*mlp_arguments())
    plan = plan_program(graph, target)
    assert names_in_order(stage_reports(plan)) == [stage.name for stage in stages(target)]


def test_explain_names_every_stage_once_and_says_what_it_made() -> None:
    step = wf.jit(mlp)
    text = str(step.explain(*mlp_arguments()))
    for stage in stages(CPU):
        assert f"{stage.name}:" in text or f" {stage.name}" in text, stage.name
    report = {each.name: each for each in step.explain(*mlp_arguments()).stages}
    assert report["fusion"].after == report["lowering"].before
    assert report["lowering"].after == report["row fusion"].before
    assert report["row fusion"].after == report["schedule"].before


def test_stages_count_what_is_inside_of_loops() -> None:
    def f(xs: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.scan(lambda c, x: (wf.tanh(c @ w + x), None), wf.zeros((4, 8)), xs)[0]

    report = wf.jit(f).explain(wf.ones((3, 4, 8)), wf.ones((8, 8)))
    (fusion,) = [each for each in report.stages if each.name == "fusion"]
    nodes = [len(plan.graph.nodes) for plan in report.plan.every_plan()]
    assert len(nodes) == 2
    assert fusion.before == sum(nodes)


def test_explain_runs_each_pass_as_often_as_compiling_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    plain = pipeline_module.run_pass

    def counting(each: Pass, graph: Graph) -> tuple[Graph, StageReport]:
        ran.append(each.name)
        return plain(each, graph)

    monkeypatch.setattr(pipeline_module, "run_pass", counting)
    graph = wf.jit(mlp).graph(*mlp_arguments())
    plan_program(graph, CPU)
    compiling = list(ran)
    ran.clear()
    explained = wf.explain(graph)
    assert ran == compiling
    own = [each.name for each in pipeline_module.last_passes(CPU)]
    assert [each.name for each in explained.passes if each.name not in own] == ran


def test_a_pass_of_the_target_is_verified_like_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_the_first_node(graph: Graph, tally: object = None) -> Graph:
        return Graph(graph.inputs, graph.nodes[1:], graph.outputs, graph.name)

    faulty = Pass("faulty", lose_the_first_node, "a fault")
    monkeypatch.setattr(CpuTarget, "passes", (*CPU.passes, faulty))
    monkeypatch.setattr(graph_pass, "VERIFYING", [True])
    with pytest.raises(wf.GraphError):
        plan_program(wf.ir.trace(lambda x: wf.exp(wf.sin(x)), wf.spec("float32", (3,))), CPU)


def test_costs_are_those_of_the_types() -> None:
    def f(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.exp(x @ w).sum(axis=1)

    report = wf.jit(f).explain(wf.ones((8, 16)), wf.ones((16, 4)))
    *packing, product, kernel = report.kernels
    assert [each.name for each in packing] == ([] if host().masked else ["pack"])
    # without masks, 4 columns are packed as if there were a whole panel of them
    columns = 4 if host().masked else tile_of(wf.float32, host()).columns
    read = 4 * (8 * 16 + 16 * columns)
    assert (product.flops, product.read, product.written) == (2 * 8 * 16 * 4, read, 128)
    assert (kernel.flops, kernel.read, kernel.written) == (2 * 32, 128, 32)
    assert report.flops == sum(each.flops for each in report.kernels)
    assert report.bytes == sum(each.read + each.written for each in (*packing, product, kernel))


def test_a_convolution_and_its_derivatives_cost_the_same() -> None:
    x, w = wf.ones((2, 3, 8, 8)), wf.ones((4, 3, 3, 3))
    graph = wf.ir.trace(lambda x, w: wf.vjp(wf.conv2d, x, w)[1](wf.ones((2, 4, 6, 6))), x, w)
    costs = [operations(n, {}) for n in graph.nodes if n.primitive.name.startswith("conv_")]
    assert costs == [2 * (2 * 4 * 6 * 6) * (3 * 3 * 3)] * 2


def test_symbols_need_sizes() -> None:
    graph = wf.ir.trace(lambda x: x * 2, wf.spec("float32", ("n",)))
    assert wf.explain(graph, n=10).kernels[0].written == 40
    with pytest.raises(wf.ArgumentError) as caught:
        wf.explain(graph)
    assert "n" in caught.value.expected


def test_sizes_are_those_of_the_arguments_where_the_program_takes_all() -> None:
    fast = wf.jit(wf.exp)
    for size in (2, 3):
        fast(wf.ones(size))
    assert fast.explain(wf.ones(100)).kernels[0].read == 400
    assert fast.memory(wf.ones(100)).outputs == 400
    assert len(fast.compilations) == 2


def test_nothing_is_run_by_looking() -> None:
    arguments = mlp_arguments()
    before = [x.detach().numpy().copy() for x in arguments]
    step = wf.jit(mlp)
    step.explain(*arguments)
    step.memory(*arguments)
    for tensor, array in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(tensor.detach().numpy(), array)


def test_loops_and_assembly_are_texts() -> None:
    fast = wf.jit(lambda x: x * 2 + 1)
    assert "parallel vector i < count" in fast.loops(wf.ones(32))
    assert ".globl" in fast.assembly(wf.ones(32))
    assert wf.jit(lambda x: x).assembly(wf.ones(3)) == ""


def test_compilations_are_a_table() -> None:
    fast = wf.jit(wf.exp)
    fast(wf.ones(2))
    fast(wf.ones(3))
    assert repr(fast.compilations).splitlines() == [
        "2 compilations",
        "  f32[2]   first call",
        "  f32[n0]  a second size: axis 0 of tensor 0: 2 then 3",
    ]


# --- memory ------------------------------------------------------------------------------------


def chain(x: wf.Tensor) -> wf.Tensor:
    for _ in range(4):
        x = wf.tanh(x @ x)
    return x


def fork(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
    parts = [wf.exp(x) @ x, wf.sin(x) @ x, wf.cos(x) @ x]
    return parts[0] @ parts[1] @ parts[2], parts[0] + parts[1]


@pytest.mark.parametrize("f", [chain, fork, wf.softmax, lambda x: x.T.reshape(-1) * 2])
def test_what_is_allocated_is_what_was_predicted(f: object) -> None:
    x = wf.asarray(np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32))
    fast = wf.jit(f)  # type: ignore[arg-type]
    report = fast.memory(x)
    program = fast.program(x)
    program.run([np.zeros((300, 300), np.float32)])  # what is made once for all runs

    def run() -> list[np.ndarray]:
        program.release()
        return program.run([x.numpy()])

    assert run()
    assert report.allocated == pytest.approx(peak_bytes(run), rel=0.02)
    assert report.inputs == x.numpy().nbytes
    assert report.peak == report.inputs + report.constants + report.allocated


def test_the_largest_values_are_named_with_their_lines() -> None:
    report = wf.jit(fork).memory(wf.ones((64, 64)))
    largest = report.largest[0]
    assert largest.bytes == 64 * 64 * 4
    assert largest.at is not None
    assert largest.at.file == __file__
    assert max(report.timeline) <= report.arena
    assert len(report.timeline) == len(report.calls)
    assert "test_explain.py" in str(report)
    assert str(report).startswith("peak ")


def test_what_is_listed_as_living_together_fits_the_arena() -> None:
    # Elementwise results take their operands' places: each place is listed once.
    report = wf.jit(lambda x: wf.cumsum(wf.sin(wf.cumsum(x, axis=0)), axis=1)).memory(
        wf.ones((64, 64))
    )
    assert sum(value.bytes for value in report.largest) <= report.arena


def test_a_long_program_is_charted_by_its_busiest_calls() -> None:
    def long(x: wf.Tensor) -> wf.Tensor:
        for _ in range(CHARTED * 2):
            x = wf.cumsum(x @ x, axis=0)
        return x

    report = wf.jit(long).memory(wf.ones((8, 8)))
    lines = str(report).partition("live bytes at each call\n")[2].splitlines()
    assert len(report.calls) > CHARTED
    assert len(lines) <= CHARTED + 1
    assert f"of {len(report.calls)} calls" in lines[0]
    assert max(map(len, lines)) < 100
