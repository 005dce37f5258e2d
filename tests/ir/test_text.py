"""Every graph prints, parses back to an equal graph, and wrong text is refused with its line."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ir.programs import arrays, graphs, holding, node, params, sample_graph, types, variable

import weft as wf
from weft.core.dtypes import DTYPES, DType
from weft.core.errors import GraphError
from weft.core.locations import Location
from weft.core.types import TensorType
from weft.ir.graph import Graph, GraphNode, Literal, Variable
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.text import _Parser, parse, print_graph


def read(text: str) -> Graph:
    """The graph of a text whose types need not fit."""
    return _Parser(text).graph()


def constant(value: Any) -> Graph:
    return Graph((), (), (Literal(np.asarray(value)),))


def shown(value: Any) -> str:
    """How a constant is written."""
    return str(constant(value)).split("return ")[1].split("\n")[0]


# --- round trips -------------------------------------------------------------------------------


@given(graphs())
def test_graphs_read_back(graph: Graph) -> None:
    again = parse(str(graph))
    assert again == graph
    assert str(again) == str(graph)


@pytest.mark.parametrize("primitive", PRIMITIVES.values(), ids=lambda p: p.name)
def test_samples_of_every_primitive_read_back(primitive: Primitive) -> None:
    for sample in primitive.samples():
        graph = sample_graph(primitive, sample)
        assert parse(str(graph)) == graph


@given(arrays())
def test_constants_read_back_to_the_bit(array: np.ndarray[Any, Any]) -> None:
    (again,) = parse(str(constant(array))).outputs
    assert isinstance(again, Literal)
    assert again.type == Literal(array).type
    assert again.value.tobytes() == array.tobytes()


@pytest.mark.slow
@given(params, params)
def test_parameters_read_back(first: Any, second: Any) -> None:
    graph = holding(first=first, second=second)
    assert read(str(graph)) == graph


@given(graphs(), st.booleans())
def test_nested_graphs_read_back(inner: Graph, listed: bool) -> None:
    middle = holding(body=(inner, inner) if listed else inner, axis=0)
    outer = holding(branches=(middle, inner), name="outer")
    again = read(str(outer))
    assert again == outer
    assert list(again.subgraphs()) == [middle, inner]


@given(st.lists(types, max_size=3))
def test_types_read_back(kinds: list[TensorType]) -> None:
    inputs = tuple(map(Variable, kinds))
    graph = Graph(inputs, (), inputs)
    assert parse(str(graph)) == graph


@pytest.mark.slow
def test_long_programs_have_names_that_are_not_words_of_the_language() -> None:
    inputs = tuple([variable(1) for _ in range(26 + 26**2 + 26**3)])
    more = tuple([variable(1) for _ in range(26**3)])
    graph = Graph((*inputs, *more), (), (inputs[-1], more[-1]))
    assert parse(str(graph)) == graph


# --- how it looks ------------------------------------------------------------------------------


def test_a_graph_is_written_line_by_line() -> None:
    x = variable("batch", 3)
    first = node("add", x, Literal(np.array(2.0, np.float32)))
    last = GraphNode(
        PRIMITIVES["sin"], first.results, {}, (Variable(x.type),), Location("train.py", 4, "f")
    )
    graph = Graph((x,), (first, last), last.results)
    assert str(graph).splitlines() == [
        "graph(a: f32[batch, 3]) {",
        "  b: f32[batch, 3] = add(a, 2.0)",
        "  c: f32[batch, 3] = sin(b)  # train.py:4",
        "  return c",
        "}",
    ]
    assert "train.py" not in print_graph(graph, locations=False)
    assert parse(str(graph)) == graph


def test_graphs_inside_are_indented() -> None:
    inner = Graph((), (), ())
    assert str(holding(body=inner)).splitlines() == [
        "graph() {",
        "  a: f32[3] = sin(body=graph() {",
        "    return",
        "  })",
        "  return a",
        "}",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(0.1), "0.1"),
        (np.float32(-2), "-2.0"),
        (np.float32("inf"), "inf"),
        (np.float32("nan"), "nan"),
        (np.float32(1e20), "1e+20"),
        (np.int64(-3), "-3"),
        (True, "True"),
        (np.float64(0.1), "f64 0.1"),
        (np.int8(-3), "i8 -3"),
        (np.array(1.5, wf.bfloat16.numpy), "bf16 1.5"),
        (np.complex64(1 - 2j), "c64 1.0-2.0j"),
        (np.array([1, 2, 3], np.float32), "f32[3] [1.0, 2.0, 3.0]"),
        (np.array([[1, 2], [3, 4]]), "i64[2, 2] [[1, 2], [3, 4]]"),
        (np.array([[True], [False]]), "bool[2, 1] [[True], [False]]"),
        (np.zeros((0, 3), np.float32), "f32[0, 3] []"),
        (np.zeros((2, 0), np.float32), "f32[2, 0] []"),
        (np.array([1 + 2j, complex(-0.0, np.inf)]), "c128[2] [1.0+2.0j, -0.0+infj]"),
        (np.array(0x7FC00001, np.uint32).view(np.float32), "f32[] 0x0100c07f"),
        (np.arange(17, dtype=np.uint8), "u8[17] 0x" + bytes(range(17)).hex()),
    ],
)
def test_constants_are_readable_where_they_are_short_and_exact(value: Any, text: str) -> None:
    assert shown(value) == text


def test_comments_and_layout_do_not_matter() -> None:
    text = "# a program\ngraph( a:f32[3] ){b:f32[3]=sin(a,)#here\n return b,}  # end\n# more"
    assert len(parse(text).nodes) == 1


def test_a_location_with_a_newline_stays_in_its_comment() -> None:
    x = variable(3)
    odd = Location("odd\nname.py", 3, "f")
    only = GraphNode(PRIMITIVES["sin"], (x,), {}, (variable(3),), odd)
    graph = Graph((x,), (only,), only.results)
    assert parse(str(graph)) == graph


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "at", "expected"),
    [
        ("", 1, "the end of the text", "'graph'"),
        ("grap() { return }", 1, "grap() { return }", "'graph'"),
        ("graph() {\n  return a\n}", 2, "a", "a variable that is declared before"),
        ("graph() {\n  return ?\n}", 2, "?", "a variable or a constant"),
        ("graph() { return }\nx", 2, "x", "the end of the text"),
        (
            "graph(a: f32[3], a: f32[3]) { return }",
            1,
            "a: f32[3]) { return }",
            "a name other than a",
        ),
        ("graph(a: f32[3]) {\n a: f32[3] = sin(a)\n return }", 2, "sin(a)", "a name other than a"),
        ("graph(a: f31[3]) { return }", 1, "f31[3]) { return }", "the name of a dtype"),
        ("graph(a: f32[3) { return }", 1, "f32[3) { return }", "a type, as in f32[3]"),
        ("graph(a: f32[-3]) { return }", 1, "f32[-3]) { return }", "dimensions of at least 0"),
        ("graph(a: f32[3 n]) { return }", 1, "f32[3 n]) { return }", "a dimension"),
        ("graph(a: f32[floor(n/0)]) { return }", 1, "f32[floor(n/0)]) { return }", "a dimension"),
        ("graph(a: f32[3]) {\n b: f32[3] = sine(a)", 2, "sine(a)", "the name of a primitive"),
        ("graph(a: f32[3]) {\n b: f32[3] = sin(a", 2, "the end of the text", "','"),
        ("graph() { return f32[2] [1.0] }", 1, "] }", "','"),
        ("graph() { return f32[n] [1.0] }", 1, "[1.0] }", "a constant whose size is known"),
        ("graph() { return f32[2] 0x00 }", 1, "0x00 }", "2 elements of 4 bytes"),
        ("graph() { return i8 300 }", 1, "300 }", "a number that int8 can hold"),
        ("graph() { return i8[1] [1.5] }", 1, "1.5] }", "a number that int8 can hold"),
        ("graph() { return bool[1] [2] }", 1, "2] }", "a number that bool can hold"),
        ("graph() { return 1+2j }", 1, "1+2j }", "a number that float32 can hold"),
        ("graph() { a: f32[] = sin(x=1, x=2)", 1, "x=2)", "a parameter other than x"),
        ("graph() { a: f32[] = sin(x=<n)", 1, "<n)", "a parameter"),
        ("graph() { a: f32[] = sin(x=<3>)", 1, "<3>)", "a parameter"),
        ("graph() { a: f32[] = sin(x=word)", 1, "word)", "a parameter"),
        ("graph() { a: f32[] = sin(x='\\x')", 1, "'\\x')", "a parameter"),
        ("graph() { a: f32[] = sin(x='a\nb')", 1, "'a", "a parameter"),
    ],
)
def test_wrong_text_is_refused_with_its_line(text: str, line: int, at: str, expected: str) -> None:
    with pytest.raises(GraphError) as caught:
        parse(text)
    error = caught.value
    assert (error.op, error.problem) == ("parse", f"line {line} is not a graph's")
    assert error.expected.startswith(expected)
    assert error.got == f"line {line}: {at}"
    assert "print(graph)" in error.fix
    assert error.at is not None
    assert error.at.file == __file__


def test_brackets_beyond_reason_are_refused() -> None:
    with pytest.raises(GraphError, match="fewer brackets"):
        parse("graph() { a: f32[] = sin(x=" + "(" * 100_000)
    with pytest.raises(GraphError):
        parse("graph(a: f32[" + "(" * 100_000 + "]) { return }")
    with pytest.raises(GraphError):
        parse("graph() { return " + "9" * 10_000 + " }")


def test_types_that_do_not_fit_are_refused() -> None:
    with pytest.raises(GraphError) as caught:
        parse("graph(a: f32[3]) {\n  b: f32[4] = sin(a)\n  return b\n}")
    assert (caught.value.op, caught.value.expected) == ("verify", "f32[3]")
    assert caught.value.got.startswith("node: b: f32[4] = sin(a)")


PIECES = [
    "(", ")", "[", "]", "{", "}", ",", "=", ":", "0x", "<", ">", "'", "\\", "#", "\n", "-", "inf",
    "j", "graph", "return", "f32", "n", "0", "9", ".", "é", "floor(", "/", "True", "None", "sin",
]  # fmt: skip


def mutated(text: str, seed: int) -> str:
    """The text with some pieces cut, doubled, moved or put in."""
    choose = random.Random(seed)
    for _ in range(choose.randint(1, 4)):
        start, end = sorted(choose.choices(range(len(text) + 1), k=2))
        end = min(end, start + choose.randint(0, 6))
        insert = choose.choice(["", choose.choice(PIECES), text[start:end] * 2])
        text = text[:start] + insert + text[end:]
    return text


def seeds_of_text() -> list[str]:
    graphs = [sample_graph(p, s) for p in PRIMITIVES.values() for s in list(p.samples())[:1]]
    return [str(graph) for graph in graphs] + [str(holding(a=(1, -2.5e3, "x'\n"), b=None, c=1j))]


TEXTS = seeds_of_text()


def read_or_refused(text: str) -> Graph | None:
    """The graph; None where the text was refused with all fields."""
    try:
        return parse(text)
    except GraphError as error:
        complete = error.expected and error.got and error.fix and error.op in ("parse", "verify")
        return None if complete else pytest.fail(f"a field is missing: {error}")


@given(st.sampled_from(TEXTS), st.integers(0, 2**32))
def test_mutated_text_is_read_or_refused_in_form(text: str, seed: int) -> None:
    graph = read_or_refused(mutated(text, seed))
    assert graph is None or parse(str(graph)) == graph


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_in_form(text: str) -> None:
    for whole in (text, f"graph() {{ return {text} }}", f"graph(a: f32[{text}]) {{ return a }}"):
        read_or_refused(whole)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_has_zero_one_and_its_bounds(dtype: DType) -> None:
    values = np.array([0, 1], dtype.numpy)
    if dtype.is_integer:
        bounds = np.iinfo(dtype.numpy)
        values = np.array([0, 1, bounds.min, bounds.max], dtype.numpy)
    assert shown(values).startswith(f"{dtype.short}[{len(values)}] [")
    assert parse(str(constant(values))) == constant(values)


LONG = {
    "brackets": "(" * 20_000_000,
    "ends": "graph(" + "a: f32[1], " * 10 + ")" * 20_000_000,
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_text_that_is_none_is_refused_at_its_first_wrong_word(name: str) -> None:
    begun = time.perf_counter()
    with pytest.raises(wf.GraphError):
        wf.ir.parse(LONG[name])
    assert time.perf_counter() - begun < 5.0


def test_graphs_inside_each_other_without_end_are_refused() -> None:
    text = "graph() { a: f32[] = cond(graph=" * 3000
    with pytest.raises(wf.GraphError, match="is not a graph's"):
        wf.ir.parse(text)
