"""Declared dimensions, types and graphs."""

# ruff: noqa: ANN001, ANN202, F821

import dataclasses

from tests.mistakes.entry import Family, mistake

import weft as wf
from weft import ArgumentError, ArgumentTypeError, DTypeError, GraphError, ShapeError

FAMILY: Family = []


@mistake(
    FAMILY,
    "A named dimension of two sizes",
    ShapeError,
    "attend",
    problem="axis 1 of k is 12, not 10",
    expected='k: Float["batch", "time", "head"] with time = 10 from q',
    got="q: f32[8, 10, 64]   k: f32[8, 12, 64]",
    fix="make k.shape[1] 10, or write another name for that axis in its",
)
def checked_size() -> None:
    @wf.checked
    def attend(q: wf.Float["batch", "time", "head"], k: wf.Float["batch", "time", "head"]):
        return q @ k.mT

    attend(wf.ones((8, 10, 64)), wf.ones((8, 12, 64)))


@mistake(
    FAMILY,
    "A tensor with fewer axes than its annotation",
    ShapeError,
    "centre",
    problem="x has 1 axes, not 2",
    expected='x: Float["batch", "features"]',
    got="x: f32[3]",
    fix="add 1 in front: x[None, ...]",
)
def checked_axes() -> None:
    @wf.checked
    def centre(x: wf.Float["batch", "features"]):
        return x - x.mean(axis=0)

    centre(wf.ones(3))


@mistake(
    FAMILY,
    "Integers where floats are declared",
    DTypeError,
    "centre",
    problem="x is int64",
    expected='x: Float["batch", "features"], one of float16, bfloat16, float32,',
    got="x: i64[4, 3]",
    fix='convert it: x.astype("float32")',
)
def checked_dtype() -> None:
    @wf.checked
    def centre(x: wf.Float["batch", "features"]):
        return x - x.mean(axis=0)

    centre(wf.ones((4, 3), dtype="int64"))


@mistake(
    FAMILY,
    "A named dimension that would have two sizes",
    ShapeError,
    "add",
    problem="shapes do not broadcast",
    expected="dimensions equal or 1, from the right",
    got="x1: f32[batch, 10]   x2: f32[11]",
    fix="make x2.shape[-1] 10, or 1 to repeat it: x2[..., :1]",
)
def infer_contradiction() -> None:
    def model(x, w, b):
        return x @ w + b  # wrong

    x = wf.spec("float32", ("batch", "n"))
    wf.ir.infer(model, x, wf.spec("float32", (784, 10)), wf.spec("float32", (11,)))


@mistake(
    FAMILY,
    "A named dimension that two lines give two sizes",
    ShapeError,
    "multiply",
    problem="shapes do not broadcast",
    expected="dimensions equal or 1, from the right",
    got="x1: f32[3]   x2: f32[4]",
    fix="make x2.shape[-1] 3, or 1 to repeat it: x2[..., :1]",
)
def infer_two_places() -> None:
    def model(x):
        first = x + wf.zeros(3)
        return first * wf.zeros(4)  # wrong

    wf.ir.infer(model, wf.spec("float32", ("n",)))


@mistake(
    FAMILY,
    "A traced function that returns text",
    ArgumentTypeError,
    "trace",
    problem="this is not a tensor",
    expected="tensors, NumPy arrays or numbers as results",
    got="result: done",
    fix="return only tensors, or trees of them",
)
def result_not_tensor() -> None:
    wf.ir.trace(lambda x: "done", wf.ones(3))


@mistake(
    FAMILY,
    "Graph text with a missing parenthesis",
    GraphError,
    "parse",
    problem="line 3 is not a graph's",
    expected="','",
    got="line 3: return b",
    fix="compare with the text that print(graph) gives",
)
def parse_error() -> None:
    wf.ir.parse("graph(a: f32[3]) {\n  b: f32[3] = add(a, a\n  return b\n}")


@mistake(
    FAMILY,
    "Graph text whose types do not fit",
    GraphError,
    "verify",
    problem="a result has another type than it should",
    expected="f32[3]",
    got="node: b: f32[4] = add(a, a)   result: f32[4]",
    fix="declare it as f32[3]",
)
def parse_type() -> None:
    wf.ir.parse("graph(a: f32[3]) {\n  b: f32[4] = add(a, a)\n  return b\n}")


@mistake(
    FAMILY,
    "Graph text with an unknown primitive",
    GraphError,
    "parse",
    problem="line 2 is not a graph's",
    expected="the name of a primitive, one in wf.ir.PRIMITIVES",
    got="line 2: plus(a, a)",
    fix="compare with the text that print(graph) gives",
)
def parse_name() -> None:
    wf.ir.parse("graph(a: f32[3]) {\n  b: f32[3] = plus(a, a)\n  return b\n}")


@mistake(
    FAMILY,
    "A primitive whose name is taken",
    ArgumentError,
    "primitive",
    problem="a primitive called 'add' exists",
    expected="a new name",
    got="name: add",
    fix='choose another name, for example "add_of_mine"',
)
def duplicate_primitive() -> None:
    dataclasses.replace(wf.ir.PRIMITIVES["add"], doc="A sum of mine.")


@mistake(
    FAMILY,
    "A graph run on fewer tensors than it has inputs",
    ArgumentError,
    "interpret",
    problem="not as many tensors as the graph has inputs",
    expected="2 tensors: f32[3], f32[3]",
    got="x1: f32[3]",
    fix="pass one tensor for each input, in order",
)
def interpret_count() -> None:
    graph = wf.ir.trace(wf.add, wf.ones(3), wf.ones(3))
    wf.ir.interpret(graph, wf.ones(3))
