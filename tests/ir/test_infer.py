"""Types follow from types: through all operations, with symbols for sizes, over trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.core.errors import ArgumentTypeError, ShapeError, WeftError
from weft.core.shapes import ContradictionError, Dimension, Unifier, substitute, symbol
from weft.core.types import TensorType
from weft.ir.graph import Literal
from weft.ir.primitive import PRIMITIVES, Primitive

spec = wf.spec
infer = wf.ir.infer
trace = wf.ir.trace


def affine(x: Any, w: Any, b: Any) -> Any:
    return wf.add(wf.matmul(x, w), b)


# --- infer -------------------------------------------------------------------------------------


def test_symbols_pass_through_operations() -> None:
    x, w, b = spec("float32", ("batch", 784)), spec("float32", (784, 10)), spec("float32", (10,))
    assert infer(affine, x, w, b) == spec("float32", ("batch", 10))
    assert infer(wf.matmul, spec("float32", ("n", 3)), spec("float32", (3, "m"))) == spec(
        "float32", ("n", "m")
    )


def test_symbols_that_must_be_equal_are_unified_and_resolved() -> None:
    x, w = spec("float32", ("batch", "n")), spec("float32", (784, "m"))
    assert infer(wf.matmul, x, w) == spec("float32", ("batch", "m"))
    result = infer(
        lambda x, w, y: (wf.matmul(x, w), x, wf.add(x, y)), x, w, spec("float32", ("time", 784))
    )
    assert len({str(kind.shape[0]) for kind in result}) == 1
    assert result[1].shape[1] == 784


def test_a_late_equation_resolves_earlier_results() -> None:
    def f(x: Any, y: Any) -> Any:
        early = wf.sin(x)
        return early, wf.add(early, y)

    assert infer(f, spec("float32", ("n",)), spec("float32", (5,))) == (spec("float32", (5,)),) * 2


def test_arguments_and_results_are_trees() -> None:
    params = {"w": spec("float32", (784, "out")), "b": spec("float32", ("out",))}

    def model(params: Any, x: Any, *, scale: Any) -> Any:
        y = affine(x, params["w"], params["b"])
        return {"y": wf.multiply(y, scale), "parts": [x, None, 2.5, np.zeros(3)]}

    result = infer(model, params, spec("float32", ("batch", 784)), scale=spec("float32"))
    assert result == {
        "y": spec("float32", ("batch", "out")),
        "parts": [spec("float32", ("batch", 784)), None, spec("float32"), spec("float64", (3,))],
    }


def test_arguments_may_be_values_and_settings() -> None:
    def f(x: Any, y: Any, axis: int, *, eps: float) -> Any:
        assert (axis, eps) == (1, 1e-5)
        return wf.add(wf.add(x, y), eps)

    assert infer(f, wf.tensor([[1.0]]), np.ones((2, 1), "float32"), 1, eps=1e-5) == spec(
        "float32", (2, 1)
    )
    assert infer(wf.sin, 2.0) == spec("float32")


def test_nothing_is_computed() -> None:
    huge = spec("float32", (10**9, 10**9))
    assert infer(lambda x: wf.matmul(x, x), huge) == huge


def test_a_symbolic_size_is_a_number_in_expressions() -> None:
    x = spec("float32", ("batch", 3))
    assert infer(lambda x: x.sum() / x.shape[0], x) == spec("float32")
    assert infer(lambda x: x * x.size, x.with_dtype(wf.int32)) == x.with_dtype(wf.int32)
    graph = trace(lambda x: x.sum() / x.shape[0] + wf.mean(x), x)
    (result,) = wf.ir.interpret(graph, wf.ones((5, 3)))
    assert float(result) == 4.0


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda q: wf.softmax(q @ q.mT, axis=-1) @ q, ("batch", "time", 16)),
        (lambda q: wf.einsum("bth,bsh->bts", q, q), ("batch", "time", "time")),
        (lambda q: wf.concat([q, q], axis=1), ("batch", 2 * symbol("time"), 16)),
        (lambda q: q.reshape(-1, 4), (4 * symbol("batch") * symbol("time"), 4)),
        (lambda q: wf.pad(q, ((0, 0), (1, 1), (0, 0))), ("batch", symbol("time") + 2, 16)),
        (lambda q: q[:, ::2, None, :5], ("batch", (symbol("time") + 1) // 2, 1, 5)),
        (lambda q: q + wf.zeros(q.shape), ("batch", "time", 16)),
        (lambda q: wf.arange(q.shape[1]) + wf.mean(q, axis=(0, 2)), ("time",)),
        (lambda q: wf.scan(lambda c, x: (c + x, c), q[0], q)[1], ("batch", "time", 16)),
        (wf.grad(lambda q: (q**2).mean()), ("batch", "time", 16)),
        (wf.vmap(lambda q: q.sum(axis=0)), ("batch", 16)),
    ],
)
def test_programs_keep_symbols_and_run_for_any_size(f: Any, shape: tuple[Any, ...]) -> None:
    kind = spec("float32", ("batch", "time", 16))
    assert infer(f, kind) == spec("float32", shape)
    graph = trace(f, kind)
    wf.ir.verify(graph)
    assert wf.ir.parse(str(graph)) == graph
    x = wf.tensor(np.linspace(-1, 1, 2 * 5 * 16, dtype=np.float32).reshape(2, 5, 16))
    (found,) = wf.ir.interpret(graph, x)
    np.testing.assert_allclose(found.numpy(), f(x).numpy(), rtol=1e-5, atol=1e-6)


def test_a_contradiction_is_reported_with_both_places() -> None:
    def f(x: Any, a: Any, b: Any) -> Any:
        first = wf.add(x, a)
        return first, wf.add(x, b)

    line = f.__code__.co_firstlineno
    with pytest.raises(ContradictionError) as caught:
        infer(f, spec("float32", ("batch",)), spec("float32", (32,)), spec("float32", (64,)))
    error = caught.value
    assert error.op == "add"
    assert error.earlier is not None
    assert error.at is not None
    assert (error.earlier.file, error.earlier.line) == (__file__, line + 1)
    assert (error.at.file, error.at.line) == (__file__, line + 2)
    assert "batch = 32 was fixed at" in error.note
    assert str(error.earlier) in str(error)


def test_a_result_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        infer(lambda x: "text", spec("float32"))
    assert (caught.value.op, caught.value.got) == ("infer", "result: text")


def symbolic(kind: TensorType) -> TensorType:
    """The type with a symbol for each size above 1, the same for equal sizes."""
    return kind.with_shape(tuple([symbol(f"s{d}") if d > 1 else d for d in kind.shape]))


@pytest.mark.parametrize("primitive", PRIMITIVES.values(), ids=lambda p: p.name)
def test_type_rules_on_symbols_agree_with_type_rules_on_sizes(primitive: Primitive) -> None:
    for sample in primitive.samples():
        kinds = [Literal(np.asarray(each)).type for each in sample.operands]
        sizes: dict[str, Dimension] = {f"s{d}": d for kind in kinds for d in kind.shape}
        known = primitive.type_rule(*kinds, **sample.params)
        with Unifier() as unifier:
            try:
                found = primitive.type_rule(*map(symbolic, kinds), **sample.params)
            except WeftError:  # the type depends on the sizes, or one symbol stands for too much
                continue
        pairs = zip(_several(found), _several(known), strict=True)
        for kind, wanted in pairs:
            shape = tuple([substitute(unifier.resolve(dim), sizes) for dim in kind.shape])
            assert kind.with_shape(shape) == wanted


def _several(kinds: Any) -> tuple[TensorType, ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)


# --- trace -------------------------------------------------------------------------------------


def test_a_traced_graph_has_its_sizes_resolved() -> None:
    def f(x: Any, y: Any) -> Any:
        return wf.add(wf.sin(x), y)

    graph = trace(f, spec("float32", ("n", 2)), spec("float32", (5, 2)))
    wf.ir.verify(graph)
    kinds = [*graph.input_types, *[r.type for node in graph.nodes for r in node.results]]
    assert set(kinds) == {spec("float32", (5, 2))}
    assert "n" not in str(graph).replace("sin", "").replace("return", "").split("#")[0]


def test_sizes_in_parameters_and_inner_graphs_are_resolved() -> None:
    def f(x: Any, y: Any) -> Any:
        carry, _ = wf.scan(lambda c, row: (wf.add(c, row), c), x, y)
        return wf.add(carry, np.zeros(5, np.float32))

    graph = trace(f, spec("float32", ("n",)), spec("float32", ("time", "n")))
    wf.ir.verify(graph)
    for inner in graph.subgraphs():
        assert all("n" not in str(kind) for kind in inner.input_types)
    assert graph.input_types == (spec("float32", (5,)), spec("float32", ("time", 5)))
    assert wf.ir.parse(str(graph)) == graph


def test_inputs_are_the_tensors_in_the_arguments_in_order() -> None:
    def f(tree: Any, axis: int, *, scale: Any, name: str) -> Any:
        assert (axis, name) == (0, "f")
        return wf.multiply(tree["a"], scale), tree["b"]

    tree = {"b": spec("int64", (2,)), "a": spec("float32", (3,))}
    graph = trace(f, tree, 0, scale=wf.tensor(2.0), name="f")
    assert graph.input_types == (spec("float32", (3,)), spec("int64", (2,)), spec("float32"))
    assert graph.output_types == (spec("float32", (3,)), spec("int64", (2,)))


def test_tensors_from_outside_become_constants() -> None:
    outside = wf.tensor([1.0, 2.0])
    graph = trace(lambda x: wf.add(x, outside), spec("float32", (2,)))
    assert "f32[2] [1.0, 2.0]" in str(graph)
    assert len(graph.inputs) == 1


def test_every_node_knows_the_line_that_made_it() -> None:
    def f(x: Any) -> Any:
        return wf.sin(x)

    (node,) = trace(f, spec("float32")).nodes
    assert node.location is not None
    assert (node.location.file, node.location.function) == (__file__, "f")


# --- running what was traced -------------------------------------------------------------------


def test_a_symbolic_graph_runs_on_tensors_of_any_size() -> None:
    graph = trace(affine, spec("float32", ("batch", "n")), spec("float32", ("n", 2)), 1.0)
    for batch, n in ((1, 3), (4, 5)):
        x, w = np.ones((batch, n), np.float32), np.ones((n, 2), np.float32)
        (result,) = wf.ir.interpret(graph, wf.tensor(x), wf.tensor(w), wf.tensor(1.0))
        assert np.array_equal(np.asarray(result._value), np.full((batch, 2), n + 1.0))


def test_specializing_gives_the_graph_that_tracing_the_sizes_gives() -> None:
    kinds = spec("float32", (4, 5)), spec("float32", (5, 2)), spec("float32", (2,))
    graph = trace(affine, spec("float32", ("batch", "n")), spec("float32", ("n", 2)), kinds[2])
    assert wf.ir.specialize(graph, kinds) == trace(affine, *kinds)


def test_arguments_that_do_not_fit_the_graph_are_refused() -> None:
    graph = trace(affine, spec("float32", ("batch", "n")), spec("float32", ("n", 2)), 1.0)
    with pytest.raises(ShapeError) as caught:
        wf.ir.specialize(graph, [spec("float32", (4, 5)), spec("float32", (6, 2)), spec("float32")])
    error = caught.value
    assert error.problem == "argument 1 does not fit the graph's input"
    assert (error.expected, error.got) == ("f32[n, 2]", "argument: f32[6, 2]")
    assert "n = 5" in error.note
    assert error.fix == "pass a tensor of type f32[5, 2]"
