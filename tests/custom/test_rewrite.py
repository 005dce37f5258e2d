"""Rules that users give the compiler."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.custom.operators import clean_names

import weft as wf
from weft.compiler.function.program_cache import executable
from weft.compiler.pipeline import optimize
from weft.compiler.targets.cpu.target import CPU


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    with clean_names():
        yield
    for rule in wf.compiler.rewrites():
        rule.remove()


def names(graph: wf.ir.Graph) -> list[str]:
    return [node.primitive.name for node in optimize(graph, CPU).nodes]


def of(f: Any, *shapes: tuple[Any, ...], dtype: str = "float32") -> wf.ir.Graph:
    return wf.ir.trace(f, *[wf.spec(dtype, shape) for shape in shapes])


def exponentials(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    return wf.exp(x) * wf.exp(y)


def one_exponential(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    return wf.exp(x + y)


# --- applying ------------------------------------------------------------------------------------


def test_a_rule_holds_inside_its_block_only() -> None:
    graph = of(exponentials, (3,), (3,))
    assert names(graph) == ["exp", "exp", "multiply"]
    with wf.compiler.rewrite(exponentials, one_exponential) as rule:
        assert wf.compiler.rewrites() == (rule,)
        assert names(graph) == ["add", "exp"]
    assert wf.compiler.rewrites() == ()
    assert names(graph) == ["exp", "exp", "multiply"]


def test_a_rule_applies_to_16_bits_inside_of_autocast_as_outside() -> None:
    """Its functions cast where users call them, but not where they are the sides of a rule."""
    graph = of(exponentials, (3,), (3,), dtype="bfloat16")
    with wf.compiler.rewrite(exponentials, one_exponential), wf.autocast("bfloat16"):
        assert names(graph) == ["add", "exp"]
    with wf.autocast("bfloat16"):
        rule = wf.compiler.rewrite(exponentials, one_exponential)
    assert names(graph) == ["add", "exp"]
    rule.remove()


def test_a_rule_holds_from_now_on_until_it_is_removed() -> None:
    rule = wf.compiler.rewrite(exponentials, one_exponential)
    graph = of(exponentials, (3,), (3,))
    assert names(graph) == ["add", "exp"]
    rule.remove()
    rule.remove()
    assert names(graph) == ["exp", "exp", "multiply"]
    with rule:
        assert names(graph) == ["add", "exp"]
    assert names(graph) == ["exp", "exp", "multiply"]


def test_compiled_functions_see_the_rules_that_hold_when_they_are_called() -> None:
    f = wf.jit(exponentials)
    x, y = wf.tensor([200.0]), wf.tensor([-200.0])  # where rounding tells the two sides apart
    assert math.isnan(f(x, y).item())
    with wf.compiler.rewrite(exponentials, one_exponential):
        assert f(x, y).item() == 1.0
        assert wf.jit(exponentials)(x, y).item() == 1.0
    assert math.isnan(f(x, y).item())
    with wf.compiler.rewrite(exponentials, one_exponential):
        assert f(x, y).item() == 1.0


def test_programs_made_under_a_rule_are_not_stored_for_others() -> None:
    graph = of(lambda x, y: exponentials(x, y) + 17, (3,), (3,))
    with wf.compiler.rewrite(exponentials, one_exponential):
        under = executable(graph)
        assert executable(graph) is under
    assert type(under).__name__ == "Program"
    assert executable(graph) is not under


def test_a_rule_shows_up_in_explain() -> None:
    with wf.compiler.rewrite(exponentials, one_exponential, name="sum of exponents"):
        report = wf.explain(of(exponentials, (3,), (3,)))
    assert "rewrites: 3 -> 2 nodes   sum of exponents 1" in str(report)


def test_forward_and_backward_programs_are_rewritten(rng: np.random.Generator) -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        return (wf.exp(x) * wf.exp(x * 0.5)).sum()

    x = wf.tensor(rng.normal(size=4))
    plain = wf.jit(wf.value_and_grad(f))(x)
    with wf.compiler.rewrite(exponentials, one_exponential):
        step = wf.jit(wf.value_and_grad(f))
        assert step.explain(x).passes[2].rewrites
        for one, other in zip(step(x), plain, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-12)


def test_a_rule_is_applied_inside_loops_and_branches() -> None:
    graph = of(lambda x: wf.scan(lambda c, _: (exponentials(c, c), c), x, wf.zeros(3))[0], (2,))
    with wf.compiler.rewrite(exponentials, one_exponential):
        assert [names(body).count("exp") for body in optimize(graph, CPU).subgraphs()] == [1]


# --- what matches --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (2, 7), (3, 1, 4), (2, 3, 4, 5), ("n", 6)])
def test_rules_match_any_rank_and_size(shape: tuple[Any, ...], rng: np.random.Generator) -> None:
    """Along the last axis, whichever that is, and with the mean of any number of elements."""

    def centered(x: wf.Tensor) -> wf.Tensor:
        return (x - x.mean(-1, keepdims=True)).sum(-1)

    with wf.compiler.rewrite(centered, lambda x: x.sum(-1) * 0.0):
        graph = of(lambda x: centered(wf.sin(x)), shape)
        assert "subtract" not in names(graph)
        other = of(lambda x: (x - x.mean(0, keepdims=True)).sum(0), (2, *[3] * 2))
        assert "subtract" in names(other)


def test_a_match_along_another_axis_is_none(rng: np.random.Generator) -> None:
    """A pattern on the last axis of a matrix must not stand for the middle axis of a stack."""
    x = wf.tensor(rng.normal(size=(2, 3, 3)))
    with wf.compiler.rewrite(lambda x: x.sum(-1) * 2.0, lambda x: (x * 2.0).sum(-1)):
        for axis in (0, 1, 2):
            f = wf.jit(lambda x, axis=axis: x.sum(axis) * 2.0)
            np.testing.assert_allclose(f(x).numpy(), 2 * x.numpy().sum(axis), rtol=1e-12)


def test_arguments_with_a_default_stand_for_any_number() -> None:
    with wf.compiler.rewrite(
        lambda x, c=3.0: wf.log(wf.exp(x) * c), lambda x, c: x + math.log(c) if c > 0 else None
    ):
        assert names(of(lambda x: wf.log(wf.exp(x) * 7.0), (3,))) == ["add"]
        assert "log" in names(of(lambda x: wf.log(wf.exp(x) * -7.0), (3,)))


def test_a_number_that_is_a_size_by_chance_is_not_taken_for_an_argument(
    rng: np.random.Generator,
) -> None:
    x = rng.normal(size=(2, 3))
    with wf.compiler.rewrite(
        lambda x, c=3.0: x.sum(-1) / x.shape[-1] * c,
        lambda x, c: (x * (c / x.shape[-1])).sum(-1),
        name="mean",
        on=[wf.spec("float64", (2, 4))],
    ):
        for count, factor, applies in ((3.0, 3.0, 1), (5.0, 5.0, 0), (3.0, 5.0, 0)):
            f = wf.jit(lambda x, n=count, c=factor: x.sum(-1) / n * c)
            np.testing.assert_allclose(f(wf.tensor(x)).numpy(), x.sum(-1) / count * factor)
            reports = f.explain(wf.tensor(x)).passes
            assert sum(p.rewrites.get("mean", 0) for p in reports) == applies


def test_operands_of_different_types_are_given_by_hand(rng: np.random.Generator) -> None:
    kinds = wf.spec("float32", (4, 3)), wf.spec("float32", (3, 5)), wf.spec("float32", (3, 5))
    with wf.compiler.rewrite(
        lambda x, a, b: x @ a + x @ b, lambda x, a, b: x @ (a + b), on=kinds, name="join"
    ):
        graph = of(lambda x, a, b: wf.exp(x) @ a + wf.exp(x) @ b, (8, 6), (6, 2), (6, 2))
        assert names(graph).count("dot") == 1


def test_a_dtype_that_the_rule_is_not_for_is_left_alone() -> None:
    with wf.compiler.rewrite(lambda x: wf.abs(x) * wf.sign(x), lambda x: x):
        graphs = [of(lambda x: wf.abs(x) * wf.sign(x), (3,), dtype=d) for d in ("f64", "i32")]
        assert [names(graph) for graph in graphs] == [[], ["abs", "sign", "multiply"]]


def test_lone_patterns_are_left_where_something_else_uses_their_parts() -> None:
    def both(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        e = wf.exp(x)
        return wf.expm1(x) + e, e

    for lone, kept in ((True, True), (False, False)):
        with wf.compiler.rewrite(
            lambda x: wf.expm1(x) + wf.exp(x), lambda x: 2 * wf.exp(x) - 1, lone=lone
        ):
            assert ("expm1" in names(of(both, (3,)))) is kept


def test_an_operation_of_ones_own_may_replace_a_program() -> None:
    @wf.primitive(
        type_rule=wf.custom.elementwise("float"),
        lower=lambda scalar, x: scalar.divide(x, 1 + scalar.exp(-x)),
    )
    def swish(x: Any) -> Any:
        return (x / (1 + np.exp(-x))).astype(x.dtype)

    with wf.compiler.rewrite(lambda x: x * wf.sigmoid(x), swish, name="swish"):
        graph = of(lambda x: wf.relu(x) * wf.sigmoid(wf.relu(x)), (4, 4))
        assert names(graph) == ["relu", "swish"]
        gradient = wf.jit(wf.grad(lambda x: (x * wf.sigmoid(x)).sum()))
        assert gradient(wf.tensor([0.0])).tolist() == [0.5]


def test_rules_are_tried_in_the_order_in_which_they_were_added() -> None:
    with (
        wf.compiler.rewrite(exponentials, one_exponential, name="first"),
        wf.compiler.rewrite(exponentials, one_exponential, name="second"),
    ):
        report = wf.explain(of(exponentials, (3,), (3,)))
    assert next(p.rewrites for p in report.passes if p.name == "rewrites") == {"first": 1}


# --- what is refused -----------------------------------------------------------------------------


def test_a_wrong_rule_is_refused_with_the_counterexample() -> None:
    with pytest.raises(wf.ArgumentError) as caught:
        wf.compiler.rewrite(lambda x: wf.sqrt(x * x), lambda x: x, name="root")
    error = caught.value
    assert error.problem == "root: pattern and replacement differ"
    shown = dict(part.split(": ", 1) for part in error.got.split("   "))
    assert float(shown["pattern"]) == pytest.approx(-float(shown["replacement"]), rel=1e-6)
    assert shown["x1"].startswith("f32[3, 3]")
    assert error.note.startswith("at [")
    assert wf.compiler.rewrites() == ()
    with wf.compiler.rewrite(lambda x: wf.sqrt(x * x), lambda x: x, domain=(0.1, 4.0)):
        assert names(of(lambda x: wf.sqrt(x * x), (2,))) == []


def test_different_gradients_are_refused() -> None:
    with pytest.raises(wf.ArgumentError, match="the gradients in operand 1 differ"):
        wf.compiler.rewrite(lambda x: wf.sin(x), lambda x: wf.stop_gradient(wf.sin(x)))


def test_a_rule_that_is_wrong_for_some_ranks_only_is_refused() -> None:
    with pytest.raises(wf.ArgumentError, match="differ"):
        wf.compiler.rewrite(lambda x: x.sum(-1), lambda x: x.sum(x.ndim and 0))


def draw(x: wf.Tensor) -> wf.Tensor:
    wf.debug.print("{}", x)
    return x * 2


BAD: list[tuple[str, Any, Any, dict[str, Any]]] = [
    ("have different types", lambda x: x * 2, lambda x: (x * 2).sum(0), {}),
    ("does not take operands", lambda x: x * 2, lambda x, y: x, {}),
    ("holds the pattern again", lambda x, y: x + y, lambda x, y: y + x, {}),
    ("computes nothing", lambda x: x, lambda x: x, {}),
    ("takes none of the operands", lambda x, y: x @ y[..., :2, :], lambda x, y: x, {}),
    ("c is not found again", lambda x, c=2.0: x * 3.0, lambda x, c: x * 3.0, {}),
    ("several results", lambda x: (x, x), lambda x: x, {}),
    ("several results", lambda x: wf.sort(x), lambda x: (x, x), {}),
    ("has an effect", draw, lambda x: x + x, {}),
    ("unknown class", lambda x: x * 2, lambda x: x + x, {"dtypes": "floats"}),
    ("f is not a function", 3, lambda x: x, {}),
]


@pytest.mark.parametrize(
    ("problem", "left", "right", "options"), BAD, ids=[f"{i} {b[0]}" for i, b in enumerate(BAD)]
)
def test_a_rule_that_is_none_is_refused(
    problem: str, left: Any, right: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(wf.WeftError) as caught:
        wf.compiler.rewrite(left, right, **options)
    assert problem in caught.value.problem
    assert caught.value.fix
    assert wf.compiler.rewrites() == ()


def test_an_unknown_name_of_the_compiler_is_refused() -> None:
    with pytest.raises(AttributeError, match="rewrit"):
        wf.compiler.rewrit
    assert dir(wf.compiler) == ["Rewrite", "rewrite", "rewrites"]
