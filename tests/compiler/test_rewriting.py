"""Rules: what they match, what they keep, and whether each of them is true."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.pipeline import laws
from weft.compiler.targets.cpu.target import CPU
from weft.core.dtypes import DTYPES
from weft.core.errors import GraphError, Unsupported, WeftError
from weft.core.types import TensorType
from weft.ir import PRIMITIVES, Graph
from weft.ir.dispatch import apply
from weft.ir.printing import print_graph
from weft.ir.rewriting import Rule, RuleSet

LAWS = laws(CPU.limits.passes)

Array = np.ndarray[Any, Any]


def text(graph: Graph) -> str:
    return print_graph(graph, locations=False)


def parse(program: str) -> Graph:
    graph = wf.ir.parse(program)
    wf.ir.verify(graph)
    return graph


def assert_rewrites(rules: RuleSet, before: str, after: str) -> None:
    rewritten = rules.apply(parse(before))
    wf.ir.verify(rewritten)
    assert text(rewritten) == text(parse(after))


# --- every law, on every dtype it claims -------------------------------------------------------

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -2.5, 6e-8, 1e-40, 6e4, 3e38]
EXTREME = [0, 1, -1, 2, 3, 7, -128, 127, 255, 2**31 - 1, -(2**31), 2**63 - 1]
LIMITS = {16: 2e-2, 32: 1e-5, 64: 1e-12}


def drawn(rng: np.random.Generator, kind: TensorType, rule: Rule) -> Array:
    dtype, shape = kind.dtype.numpy, tuple(map(int, kind.shape))
    if kind.dtype.kind == "bool":
        return rng.random(shape) < 0.5
    low, high = rule.domain
    if kind.dtype.is_integer and not rule.exact:
        return rng.integers(max(int(low), 0), int(high) + 1, shape).astype(dtype)
    if kind.dtype.is_integer:
        values = np.array(EXTREME, object)[rng.integers(0, len(EXTREME), shape)]
        mask = (1 << kind.dtype.bits) - 1
        bits = np.array([int(v) & mask for v in np.ravel(values)], f"u{kind.dtype.itemsize}")
        return bits.view(dtype).reshape(shape)
    values = rng.uniform(low, high, (2, *shape))
    if rule.exact:
        special = np.array(SPECIAL)[rng.integers(0, len(SPECIAL), (2, *shape))]
        values = np.where(rng.random((2, *shape)) < 0.6, special, values)
    with np.errstate(all="ignore"):
        if kind.dtype.is_complex:
            parts = np.empty(shape, dtype)
            parts.real, parts.imag = values
            return parts
        return np.asarray(values[0]).astype(dtype)


def assert_same(found: Array, expected: Array, rule: Rule) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype.kind == "c":
        assert_same(found.real, expected.real, rule)
        assert_same(found.imag, expected.imag, rule)
        return
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
        return
    a, b = found.astype(np.float64), expected.astype(np.float64)
    if not rule.exact:
        limit = LIMITS[found.dtype.itemsize * 8]
        np.testing.assert_allclose(a, b, rtol=limit, atol=limit)
        return
    np.testing.assert_array_equal(a, b)
    if rule.signed_zeros:
        known = ~np.isnan(b)
        np.testing.assert_array_equal(np.signbit(a)[known], np.signbit(b)[known])


def typings(rule: Rule) -> Iterator[tuple[TensorType, ...]]:
    """The rule's own types, the same in all dtypes, and with operands that broadcast."""
    mixed = len({kind.dtype for kind in rule.types}) > 1
    for dtype in DTYPES:
        yield tuple(
            kind if mixed and kind.dtype.kind == "bool" else kind.with_dtype(dtype)
            for kind in rule.types
        )
    if rule.pattern.primitive.broadcasts:
        yield tuple(kind.with_shape(()) for kind in rule.types)
        for place in range(len(rule.types) if len(rule.types) > 1 else 0):
            yield tuple(
                kind.with_shape((3,)) if index == place else kind
                for index, kind in enumerate(rule.types)
            )


def traced(rule: Rule, types: tuple[TensorType, ...], holes: dict[str, Any]) -> Graph | None:
    """The left side on these types; None where it is not defined for them."""
    try:
        return wf.ir.trace(lambda *xs: rule.left(*xs, **holes), *types)
    except WeftError:
        return None


def test_each_law_has_its_own_name_and_is_written_down() -> None:
    names = Counter(rule.name for rule in LAWS)
    assert [name for name, count in names.items() if count > 1] == []
    assert [rule.name for rule in LAWS if not rule.law] == []
    assert len(LAWS) > 90


@pytest.mark.slow
@pytest.mark.parametrize("rule", LAWS.rules, ids=lambda rule: rule.name)
def test_a_law_holds_wherever_it_is_applied(rule: Rule, rng: np.random.Generator) -> None:
    alone = RuleSet(rule.name)
    alone._add(rule)
    applied = 0
    for holes in [dict(rule.holes), *[{**rule.holes, **case} for case in rule.cases]]:
        for types in typings(rule):
            before = traced(rule, types, holes)
            if before is None:
                continue
            tally: Counter[str] = Counter()
            after = alone.apply(before, tally)
            wf.ir.verify(after)
            assert after.output_types == before.output_types
            if not tally:
                continue
            applied += 1
            for _ in range(6):
                xs = [wf.asarray(drawn(rng, kind, rule)) for kind in types]
                (found,), (expected,) = wf.ir.interpret(after, *xs), wf.ir.interpret(before, *xs)
                assert_same(np.asarray(found), np.asarray(expected), rule)
    assert applied > 0


@pytest.mark.parametrize("rule", LAWS.rules, ids=lambda rule: rule.name)
def test_a_law_is_found_in_its_own_sample(rule: Rule) -> None:
    graph = traced(rule, rule.types, dict(rule.holes))
    assert graph is not None
    tally: Counter[str] = Counter()
    rewritten = LAWS.apply(graph, tally)
    assert tally
    assert LAWS.apply(rewritten) is rewritten


def test_what_commutes_says_so() -> None:
    """Derived from the samples: exchanging the operands gives the same, and only then."""
    found = set()
    for name, primitive in PRIMITIVES.items():
        if not primitive.broadcasts or isinstance(primitive.derivatives, Unsupported):
            continue
        samples = [s for s in primitive.samples() if len(s.operands) == 2 and not s.params]
        if samples and all(_commutes(primitive, *sample.operands) for sample in samples):
            found.add(name)
    assert found == {name for name, each in PRIMITIVES.items() if each.commutative}


def _commutes(primitive: Any, a: Any, b: Any) -> bool:
    try:
        one, other = (apply(primitive, wf.asarray(x), wf.asarray(y)) for x, y in ((a, b), (b, a)))
    except WeftError:
        return False
    # NumPy fuses one of the four products of complex parts, so their order shows in the last bit.
    limit = 1e-6 if one.dtype.is_complex else 0.0
    return bool(np.allclose(np.asarray(one), np.asarray(other), rtol=limit, atol=0.0))


# --- matching ----------------------------------------------------------------------------------

example = RuleSet("example")


@example.rule(lambda x: x * 1)
def times_one(x: wf.Tensor) -> wf.Tensor:
    """x * 1 = x"""
    return x


@example.rule(lambda x, y: wf.sin(x) * wf.cos(y))
def sine_times_cosine(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    """sin(x) * cos(y) = tan(x) * y, for the sake of argument"""
    return wf.tan(x) * y


def test_a_rule_matches_any_rank_and_dtype() -> None:
    assert_rewrites(
        example,
        """graph(a: i8[4, 5, 6]) {
          b: i8[4, 5, 6] = multiply(a, i8[] 1)
          return b
        }""",
        "graph(a: i8[4, 5, 6]) {\n  return a\n}",
    )


def test_commutative_operands_match_in_both_orders_at_each_level() -> None:
    after = """graph(a: f32[2], b: f32[2]) {
      c: f32[2] = tan(a)
      d: f32[2] = multiply(c, b)
      return d
    }"""
    for operands in ("c, d", "d, c"):
        before = f"""graph(a: f32[2], b: f32[2]) {{
          c: f32[2] = sin(a)
          d: f32[2] = cos(b)
          e: f32[2] = multiply({operands})
          return e
        }}"""
        assert_rewrites(example, before, after)
    assert_rewrites(
        example,
        "graph(a: f32[2]) {\n b: f32[2] = multiply(1.0, a)\n return b\n}",
        "graph(a: f32[2]) {\n return a\n}",
    )


@pytest.mark.parametrize(
    "one",
    [
        "b: f32[2, 3] = full(shape=(2, 3), dtype=float32, value=1.0)",
        "b: f32[2, 3] = broadcast_to(1.0, shape=(2, 3))",
        "b: f32[2, 3] = broadcast_to(f32[3] [1.0, 1.0, 1.0], shape=(2, 3))",
    ],
)
def test_a_number_matches_a_tensor_of_equal_elements_and_keeps_its_shape(one: str) -> None:
    assert_rewrites(
        example,
        f"""graph(a: f32[3]) {{
          {one}
          c: f32[2, 3] = multiply(a, b)
          return c
        }}""",
        """graph(a: f32[3]) {
          b: f32[2, 3] = broadcast_to(a, shape=(2, 3))
          return b
        }""",
    )


def test_symbolic_sizes_are_kept() -> None:
    assert_rewrites(
        example,
        """graph(a: f32[3], b: f32[n, 3]) {
          c: f32[n, 3] = full(shape=(<n>, 3), dtype=float32, value=1.0)
          d: f32[n, 3] = multiply(a, c)
          e: f32[n, 3] = add(d, b)
          return e
        }""",
        """graph(a: f32[3], b: f32[n, 3]) {
          c: f32[n, 3] = broadcast_to(a, shape=(<n>, 3))
          d: f32[n, 3] = add(c, b)
          return d
        }""",
    )


def test_the_sign_of_zero_and_truth_count_in_a_match() -> None:
    zero = RuleSet("zero")

    @zero.rule(lambda x: x + 0)
    def add_zero(x: wf.Tensor) -> wf.Tensor:
        """x + 0 = x"""
        return x

    for number in ("-0.0", "f32[] nan", "1.0"):
        graph = parse(f"graph(a: f32[2]) {{\n b: f32[2] = add(a, {number})\n return b\n}}")
        assert zero.apply(graph) is graph


def test_a_place_that_stands_twice_is_the_same_operand() -> None:
    itself = RuleSet("itself")

    @itself.rule(lambda x: x * x)
    def squared(x: wf.Tensor) -> wf.Tensor:
        """x * x = x²"""
        return wf.square(x)

    different = parse("graph(a: f32[2], b: f32[2]) {\n c: f32[2] = multiply(a, b)\n return c\n}")
    assert itself.apply(different) is different
    assert_rewrites(
        itself,
        "graph(a: f32[2]) {\n b: f32[2] = multiply(a, a)\n return b\n}",
        "graph(a: f32[2]) {\n b: f32[2] = square(a)\n return b\n}",
    )


def test_holes_give_the_parameters_that_were_found() -> None:
    axes = RuleSet("axes")

    @axes.rule(
        lambda x, first=(1, 0): apply(PRIMITIVES["transpose"], wf.sin(x), order=first),
    )
    def sine_last(x: wf.Tensor, first: tuple[int, ...]) -> wf.Tensor:
        """transpose(sin(x)) = sin(transpose(x))"""
        return wf.sin(apply(PRIMITIVES["transpose"], x, order=first))

    assert_rewrites(
        axes,
        """graph(a: f32[2, 3, 4]) {
          b: f32[2, 3, 4] = sin(a)
          c: f32[4, 2, 3] = transpose(b, order=(2, 0, 1))
          return c
        }""",
        """graph(a: f32[2, 3, 4]) {
          b: f32[4, 2, 3] = transpose(a, order=(2, 0, 1))
          c: f32[4, 2, 3] = sin(b)
          return c
        }""",
    )


def test_a_lone_rule_leaves_what_is_used_elsewhere() -> None:
    lone = RuleSet("lone")

    @lone.rule(lambda x: wf.exp(wf.sin(x)), lone=True)
    def exp_of_sine(x: wf.Tensor) -> wf.Tensor:
        """exp(sin(x)) = cos(x), for the sake of argument"""
        return wf.cos(x)

    def program(outputs: str) -> Graph:
        return parse(
            f"graph(a: f32[2]) {{\n b: f32[2] = sin(a)\n c: f32[2] = exp(b)\n return {outputs}\n}}"
        )

    assert lone.apply(program("b, c")) == program("b, c")
    renamed = RuleSet("renamed", lone, example)
    hidden = wf.ir.trace(lambda x: [y := wf.sin(x) * 1.0, wf.exp(y)], wf.spec("float32", (3,)))
    assert [n.primitive.name for n in renamed.apply(hidden).nodes] == ["sin", "exp"]
    assert [node.primitive.name for node in lone.apply(program("c, c")).nodes] == ["cos"]


# --- applying ----------------------------------------------------------------------------------


def test_a_graph_without_a_match_is_returned_as_it_is() -> None:
    graph = wf.ir.trace(
        lambda x: wf.cond(x.sum() > 0.0, wf.sin, wf.cos, x), wf.spec("float32", (3,))
    )
    assert example.apply(graph) is graph


def test_graphs_in_parameters_are_rewritten() -> None:
    kind = wf.spec("float32", (3,))
    graph = wf.ir.trace(lambda x: wf.cond(x.sum() > 0.0, lambda y: y * 1.0, wf.cos, x), kind)
    rewritten = example.apply(graph)
    wf.ir.verify(rewritten)
    branches = rewritten.nodes[-1].params["branches"]
    assert sorted(len(branch.nodes) for branch in branches) == [0, 1]


def test_what_is_put_in_place_stands_at_the_users_line() -> None:
    def program(x: wf.Tensor) -> wf.Tensor:
        y = wf.sin(x)
        return y * wf.cos(x)

    graph = wf.ir.trace(program, wf.spec("float32", (3,)))
    line = graph.nodes[-1].location
    assert line is not None
    rewritten = example.apply(graph)
    assert [node.primitive.name for node in rewritten.nodes] == ["tan", "multiply"]
    assert [node.location for node in rewritten.nodes] == [line, line]


def test_rules_that_never_rest_are_stopped() -> None:
    restless = RuleSet("restless")

    @restless.rule(lambda x: wf.sin(x))
    def deeper(x: wf.Tensor) -> wf.Tensor:
        """sin(x) = sin(-x), again and again"""
        return wf.sin(-x)

    graph = restless.apply(wf.ir.trace(wf.sin, wf.spec("float32", (3,))))
    wf.ir.verify(graph)
    assert len(graph.nodes) < 50


def test_a_rule_that_declines_changes_nothing() -> None:
    shy = RuleSet("shy")

    @shy.rule(lambda x: wf.sin(x))
    def only_floats(x: wf.Tensor) -> wf.Tensor | None:
        """sin(x) = cos(x), of float32 only"""
        return wf.cos(x) if x.dtype is wf.float32 else None

    graph = wf.ir.trace(wf.sin, wf.spec("float64", (3,)))
    assert shy.apply(graph) is graph


def test_time_grows_with_the_size_of_the_graph_only() -> None:
    def seconds(count: int) -> float:
        def chain(x: wf.Tensor) -> wf.Tensor:
            for _ in range(count // 2):
                x = wf.sin(x * 1.0)
            return x

        graph = wf.ir.trace(chain, wf.spec("float32", (3,)))
        best = 9.0
        for _ in range(3):
            start = time.thread_time()
            assert len(LAWS.apply(graph).nodes) == count // 2
            best = min(best, time.thread_time() - start)
        return best

    assert seconds(5000) < 12 * seconds(1000) + 0.05


# --- refusals ----------------------------------------------------------------------------------


def refused(left: Any, right: Any, **options: Any) -> GraphError:
    with pytest.raises(GraphError) as error:
        RuleSet("wrong").rule(left, **options)(right)
    return error.value


def test_a_replacement_of_another_type_is_refused() -> None:
    error = refused(lambda x: wf.sin(x), lambda x: x.sum(axis=0, keepdims=True)[0:0])
    assert "right side is of type f32[0, 3]" in error.problem
    error = refused(lambda x: wf.sin(x), lambda x: x > 0)
    assert "right side is of type bool[2, 3]" in error.problem


def test_a_rule_that_declines_its_sample_is_refused() -> None:
    assert "declines its own sample" in refused(lambda x: wf.sin(x), lambda x: None).problem


def test_a_left_side_that_computes_nothing_is_refused() -> None:
    assert "computes nothing" in refused(lambda x: x, lambda x: x).problem


def test_a_hole_that_does_not_come_back_is_refused() -> None:
    assert "c is not found again" in refused(lambda x, c=3.0: wf.sin(x), lambda x, c: x).problem


def test_a_replacement_of_another_type_at_a_match_names_the_rule() -> None:
    wrong = RuleSet("wrong")

    @wrong.rule(lambda x: wf.sin(x))
    def sine(x: wf.Tensor) -> wf.Tensor:
        """Right for float32 only."""
        return x if x.dtype is wf.float32 else x > 0

    with pytest.raises(GraphError, match="rule sine: the replacement has another type") as error:
        wrong.apply(wf.ir.trace(wf.sin, wf.spec("float64", (3,))))
    assert error.value.at is not None
