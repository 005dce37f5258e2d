"""Operations defined in Python: a type rule and a reference, and what each further slot adds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.custom.operators import clean_names

import weft as wf
from weft.custom import constant, elementwise, joint, linear, loops, nest, scalars, tangent
from weft.ir.primitive import PRIMITIVES

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    with clean_names():
        yield


def row_type(x: wf.TensorType) -> wf.TensorType:
    return wf.TensorType(x.dtype, x.shape[:-1])


def spread_of(x: Array) -> Array:
    return np.asarray(np.ptp(x, axis=-1))


def define_spread(**slots: Any) -> Any:
    return wf.primitive(spread_of, name="spread", type_rule=row_type, **slots)


def define_cube(**slots: Any) -> Any:
    @wf.primitive(type_rule=elementwise("float"), **slots)
    def cube(x: Array, *, scale: float = 1.0) -> Any:
        """The third power, scaled."""
        return (scale * x * x * x).astype(x.dtype)

    return cube


CUBE = {
    "derivatives": [tangent(lambda t, out, x, *, scale: 3 * scale * x * x * t)],
    "lower": lambda scalar, x, scale: scale * x * x * x,
}


def rows(builder: Any) -> Any:
    """The loops of `spread`: the largest and the smallest of each row."""
    width = builder.extent(builder.shape(0)[-1])
    row, column = scalars.index("row"), scalars.index("column")
    x = builder.operands[0][row * width + column]
    top, low = scalars.local("top", x.dtype), scalars.local("low", x.dtype)
    body = (
        loops.Accumulate(column, width, (loops.Update(top, "maximum", x),)),
        loops.Accumulate(column, width, (loops.Update(low, "minimum", x),)),
        loops.Store(builder.result, row, top - low),
    )
    count = wf.TensorType(wf.float32, builder.shape(-1)).size
    return builder.kernel(nest([(row, builder.extent(count))], body, vector=False), count)


X = np.array([[1.0, 4.0, -2.0], [0.5, 0.25, 0.75]], np.float32)


# --- a type rule and a reference are enough ------------------------------------------------------


def test_a_type_rule_and_a_reference_are_enough_to_use_it_everywhere() -> None:
    spread = define_spread()
    x = wf.tensor(X)
    expected = [6.0, 0.5]
    assert spread(x).tolist() == expected
    assert wf.ir.infer(spread, wf.spec("float64", ("n", 3))) == wf.spec("float64", ("n",))
    graph = wf.ir.trace(spread, x)
    assert wf.ir.parse(str(graph)) == graph
    assert wf.ir.interpret(graph, x)[0].tolist() == expected
    compiled = wf.jit(lambda x: spread(x * 2) + 1)
    assert compiled(x).tolist() == [13.0, 2.0]
    assert [each.name for each in compiled.explain(x).references] == ["spread"]
    assert compiled(wf.tensor(X[:1])).tolist() == [13.0]  # a second size


def test_without_a_batching_rule_the_batch_is_a_loop() -> None:
    spread = define_spread()
    x = wf.tensor(np.stack([X, -3 * X], axis=1))
    assert wf.vmap(spread, in_axes=1)(x).tolist() == [[6.0, 0.5], [18.0, 1.5]]
    assert wf.jit(wf.vmap(spread, in_axes=1))(x).tolist() == [[6.0, 0.5], [18.0, 1.5]]


def test_a_batching_rule_may_say_that_axes_in_front_are_welcome() -> None:
    spread = define_spread(batch="leading", samples=[X])
    graph = wf.ir.trace(wf.vmap(spread), wf.spec("float32", (5, 2, 3)))
    assert [node.primitive.name for node in graph.nodes] == ["spread"]
    wf.testing.check_primitive(spread)


def test_without_derivatives_a_derivative_is_refused_with_the_reason() -> None:
    spread = define_spread()
    with pytest.raises(wf.UnsupportedError, match="spread was defined without derivatives"):
        wf.grad(lambda x: spread(x).sum())(wf.tensor(X))


def test_several_results() -> None:
    @wf.primitive(type_rule=lambda x: (row_type(x), row_type(x)), results=2)
    def extremes(x: Array) -> Any:
        return x.max(-1), x.min(-1)

    top, low = wf.jit(extremes)(wf.tensor(X))
    assert (top.tolist(), low.tolist()) == ([4.0, 0.75], [-2.0, 0.25])
    both = wf.vmap(extremes)(wf.tensor(X[None]))
    assert [each.shape for each in both] == [(1, 2), (1, 2)]


def test_any_number_of_operands() -> None:
    @wf.primitive(
        type_rule=lambda *xs: xs[0],
        derivatives=wf.custom.every(lambda i: wf.custom.additive(lambda ct, *xs: ct)),
        samples=[(X,), (X, X), (X, X, X)],
    )
    def total(*xs: Array) -> Any:
        return np.asarray(sum(xs))

    wf.testing.check_primitive(total)
    assert total(wf.tensor([1.0]), wf.tensor([2.0]), wf.tensor([4.0])).tolist() == [7.0]


# --- what each slot adds -------------------------------------------------------------------------


def test_with_all_slots_it_passes_the_derived_tests() -> None:
    wf.testing.check_primitive(define_cube(**CUBE))


def test_a_lowering_is_fused_with_what_surrounds_it() -> None:
    cube = define_cube(**CUBE)
    report = wf.jit(lambda x: wf.exp(cube(x * 2, scale=0.5)) + 1).explain(wf.tensor([1.0]))
    assert [each.primitives for each in report.kernels] == [["multiply", "cube", "exp", "add"]]


def test_derivatives_of_any_order_are_compiled_too(rng: np.random.Generator) -> None:
    cube = define_cube(**CUBE)
    x = rng.normal(size=5)
    second = wf.jit(wf.vmap(wf.grad(wf.grad(lambda x: cube(x, scale=2.0)))))
    np.testing.assert_allclose(second(wf.tensor(x)).numpy(), 12 * x, rtol=1e-12)


def test_a_joint_derivative(rng: np.random.Generator) -> None:
    spread = define_spread(
        derivatives=joint(
            jvp=lambda primals, tangents, out: pushed(primals[0], tangents[0]),
            vjp=lambda cts, out, primals, wanted: (pulled(primals[0], cts),),
        ),
        samples=[rng.normal(size=(2, 3)).astype(np.float32)],
    )

    def slopes(x: wf.Tensor) -> wf.Tensor:
        top, low = wf.argmax(x, axis=-1), wf.argmin(x, axis=-1)
        return wf.one_hot(top, 3).astype(x.dtype) - wf.one_hot(low, 3).astype(x.dtype)

    def pushed(x: wf.Tensor, t: wf.Tensor) -> wf.Tensor:
        return (slopes(x) * t).sum(-1)

    def pulled(x: wf.Tensor, ct: wf.Tensor) -> wf.Tensor:
        return slopes(x) * ct[..., None]

    wf.testing.check_primitive(spread)


def test_loops_are_the_lowering_of_what_is_not_elementwise(rng: np.random.Generator) -> None:
    big = rng.normal(size=(7, 100)).astype(np.float32)
    spread = define_spread(loops=rows, samples=[X, big, X[:0]])
    wf.testing.check_primitive(spread)
    compiled = wf.jit(spread)
    assert [each.kind for each in compiled.explain(wf.tensor(big)).kernels] == ["kernel"]
    np.testing.assert_array_equal(compiled(wf.tensor(big)).numpy(), spread_of(big))
    for size in (3, 5):  # symbolic sizes
        np.testing.assert_array_equal(
            compiled(wf.tensor(big[:size])).numpy(), spread_of(big[:size])
        )


def test_dtypes_are_promoted_as_the_librarys_are() -> None:
    cube = define_cube()
    assert cube(2).dtype is wf.float32
    assert cube(wf.tensor([1.0], dtype="float64")).dtype is wf.float64
    with pytest.raises(wf.DTypeError, match="only for floats"):
        cube(wf.tensor([1j]))


# --- the derived tests see faults ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "seen"),
    [
        ({"derivatives": [tangent(lambda t, out, x, *, scale: 2 * scale * x * x * t)]}, "mode"),
        ({"derivatives": [linear(lambda ct, x, *, scale: ct)]}, "mode"),
        ({"derivatives": [constant("it looks like it")]}, "mode"),
        ({"lower": lambda scalar, x, scale: scale * x * x}, "steps from"),
        ({"batch": lambda size, xs, axes, scale: (xs[0] * 1.0, axes[0])}, "batched"),
    ],
    ids=["tangent", "linear", "constant", "lower", "batch"],
)
def test_a_wrong_slot_is_seen(slots: dict[str, Any], seen: str) -> None:
    cube = define_cube(**slots)
    with pytest.raises(AssertionError, match=seen):
        wf.testing.check_primitive(cube)


def test_wrong_loops_are_seen_before_they_run_natively() -> None:
    def beyond(builder: Any) -> Any:
        i = scalars.index("i")
        store = loops.Store(builder.result, i + 1000, builder.operands[0][i])
        return builder.kernel(nest([(i, builder.extent(2))], (store,)), 2)

    spread = define_spread(loops=beyond, samples=[X])
    with pytest.raises(IndexError):
        wf.testing.check_primitive(spread)


def test_a_reference_cannot_write_to_its_operands() -> None:
    @wf.primitive(type_rule=lambda x: x)
    def clear(x: Array) -> Array:
        x[:] = 0
        return x

    x = wf.tensor([1.0, 2.0])
    for call in (clear, wf.jit(clear)):
        with pytest.raises(ValueError, match="read-only"):
            call(x)
    assert x.tolist() == [1.0, 2.0]


def test_a_result_shares_no_memory_with_an_operand() -> None:
    @wf.primitive(type_rule=lambda x: x)
    def same(x: Array) -> Array:
        return x

    x = wf.tensor([1.0, 2.0])
    y = same(x)
    x[0] = 5.0
    assert y.tolist() == [1.0, 2.0]


# --- bad definitions -----------------------------------------------------------------------------


def wrong_types(x: Array) -> Array:
    return x.astype(np.float64)


BAD: list[tuple[str, Any]] = [
    ("no type rule", lambda: wf.primitive(spread_of, name="bad")),
    ("exists", lambda: wf.primitive(spread_of, name="sin", type_rule=row_type)),
    ("cannot be the name", lambda: wf.primitive(lambda x: x, type_rule=row_type)),
    ("one derivative for each", lambda: define_spread(derivatives=[])),
    ("not of the kinds", lambda: define_spread(derivatives=[lambda t, out, x: t])),
    ("batching rule is not one", lambda: define_spread(batch="sideways")),
    ("element-wise operations", lambda: define_spread(lower=lambda scalar, x: x)),
    ("cannot be written", lambda: define_cube(lower=lambda scalar, x, scale: np.cbrt(x))),
    ("cannot be written", lambda: define_cube(lower=lambda scalar, x: x)),
    ("not a function that writes", lambda: define_spread(loops=3)),
    (
        "contradicts the type rule",
        lambda: wf.primitive(wrong_types, name="bad", type_rule=lambda x: x, samples=[X]),
    ),
    (
        "contradicts the type rule",
        lambda: wf.primitive(spread_of, name="bad", type_rule=lambda x: x, samples=[X]),
    ),
    (
        "does not give the types",
        lambda: wf.primitive(spread_of, name="bad", type_rule=lambda x: x.shape, samples=[X]),
    ),
    ("not a class of dtypes", lambda: elementwise("floats")),
    ("neither an operand", lambda: wf.primitive(np.ptp, name="bad", type_rule=lambda x: x)),
]


@pytest.mark.parametrize(
    ("problem", "define"), BAD, ids=[f"{i} {p}" for i, (p, _) in enumerate(BAD)]
)
def test_a_bad_definition_is_refused_and_leaves_nothing_behind(problem: str, define: Any) -> None:
    before = dict(PRIMITIVES)
    with pytest.raises(wf.WeftError) as caught:
        define()
    assert problem in caught.value.problem
    assert caught.value.expected
    assert caught.value.got
    assert caught.value.fix
    assert before == PRIMITIVES


def test_a_name_is_taken_until_it_is_given_back() -> None:
    spread = define_spread()
    with pytest.raises(wf.ArgumentError, match="exists"):
        define_spread()
    spread.remove()
    define_spread()


def test_a_definition_given_anew_is_not_taken_for_the_old_one() -> None:
    x = wf.tensor([2.0])
    first = define_cube(**CUBE)
    old = wf.jit(lambda x: first(x))
    assert old(x).tolist() == [8.0]
    first.remove()

    @wf.primitive(type_rule=elementwise("float"), lower=lambda scalar, x, scale: x + scale)
    def cube(x: Array, *, scale: float = 1.0) -> Any:
        return (x + scale).astype(x.dtype)

    assert wf.jit(lambda x: cube(x))(x).tolist() == [3.0]
    assert old(x).tolist() == [8.0]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda cube: cube(), "another number of operands"),
        (lambda cube: cube(1.0, 2.0), "another number of operands"),
        (lambda cube: cube(1.0, size=2), "no attribute 'size'"),
        (lambda cube: cube(1.0, scale=np.ones(3)), "not a value that graphs can hold"),
        (lambda cube: cube("1"), "not a tensor"),
    ],
)
def test_a_wrong_call_is_refused(call: Any, problem: str) -> None:
    with pytest.raises(wf.WeftError) as caught:
        call(define_cube())
    assert problem in caught.value.problem


def test_an_attribute_without_a_default_must_be_given() -> None:
    @wf.primitive(type_rule=lambda x, *, times: x)
    def scaled(x: Array, *, times: int) -> Array:
        return x * np.asarray(times, x.dtype)

    assert scaled(wf.tensor([2.0]), times=np.int64(3)).tolist() == [6.0]
    with pytest.raises(wf.ArgumentError, match="attribute times is missing"):
        scaled(wf.tensor([2.0]))


def test_a_definition_without_samples_cannot_be_checked() -> None:
    with pytest.raises(wf.ArgumentError, match="has no samples"):
        wf.testing.check_primitive(define_spread())


def test_a_reference_that_contradicts_the_type_rule_is_refused_in_compiled_programs_too() -> None:
    fickle = wf.primitive(spread_of, name="fickle", type_rule=lambda x: x)
    for call in (fickle, wf.jit(fickle)):
        with pytest.raises(wf.ArgumentError, match="contradicts the type rule"):
            call(wf.tensor(X))
