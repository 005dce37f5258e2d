"""Control flow."""

# ruff: noqa: ANN001, ANN202

from tests.mistakes.entry import Family, mistake

import weft as wf
from weft import ArgumentError, ArgumentTypeError, DTypeError, GradientError, ShapeError

FAMILY: Family = []


@mistake(
    FAMILY,
    "Branches of different types",
    ShapeError,
    "cond",
    problem="the branches return different types at result",
    expected="f32[3] from every branch",
    got="true_fn: f32[3]   false_fn: f32[]",
    fix="in false_fn return result.reshape((3,))",
)
def cond_types() -> None:
    wf.cond(wf.tensor(True), lambda x: x, lambda x: x.sum(), wf.ones(3))


@mistake(
    FAMILY,
    "Branches of different dtypes",
    DTypeError,
    "cond",
    problem="the branches return different types at result",
    expected="f32[3] from every branch",
    got="true_fn: f32[3]   false_fn: bool[3]",
    fix='in false_fn return result.astype("float32")',
)
def cond_dtypes() -> None:
    wf.cond(wf.tensor(True), lambda x: x, lambda x: x > 0, wf.ones(3))


@mistake(
    FAMILY,
    "Branches of different structures",
    ArgumentError,
    "cond",
    problem="the branches return different structures",
    expected="results structured as true_fn's: *",
    got="true_fn: *   false_fn: (*, *)",
    fix="return * from false_fn",
)
def cond_structures() -> None:
    wf.cond(wf.tensor(True), lambda x: x, lambda x: (x, x), wf.ones(3))


@mistake(
    FAMILY,
    "A condition of several elements",
    ArgumentTypeError,
    "cond",
    problem="the predicate is not one truth value",
    expected="a bool, or a bool tensor without axes",
    got="pred: bool[3]",
    fix="compare and reduce: wf.any(x > 0), or wf.where for a choice by element",
)
def cond_predicate() -> None:
    x = wf.ones(3)
    wf.cond(x > 0, lambda x: x, lambda x: -x, x)


@mistake(
    FAMILY,
    "A switch without branches",
    ArgumentError,
    "switch",
    problem="no branches",
    expected="at least one function",
    got="branches: ()",
    fix="switch(index, [f, g], x)",
)
def switch_nothing() -> None:
    wf.switch(wf.tensor(0), [], wf.ones(3))


@mistake(
    FAMILY,
    "A switch by a floating-point number",
    ArgumentTypeError,
    "switch",
    problem="the index is not one integer",
    expected="a Python integer or an integer tensor without axes",
    got="index: f32[]",
    fix='index.astype("int32"), or wf.vmap for many indices',
)
def switch_float() -> None:
    wf.switch(wf.tensor(0.0), [wf.sin, wf.cos], wf.ones(3))


@mistake(
    FAMILY,
    "A scan whose carry changes type",
    ShapeError,
    "scan",
    problem="f changes the type of the carry at init",
    expected="f to give f32[] there, as init has",
    got="init: f32[]   f: f32[3]",
    fix="give init the shape [3], or keep its shape in f",
)
def scan_carry() -> None:
    wf.scan(lambda total, x: (total + x, x), wf.tensor(0.0), wf.ones((5, 3)))


@mistake(
    FAMILY,
    "A scan whose function returns no pair",
    ArgumentTypeError,
    "scan",
    problem="the function does not return a pair",
    expected="f(carry, x) -> (carry, y)",
    got="f: *",
    fix="return carry, y (y may be None)",
)
def scan_pair() -> None:
    wf.scan(lambda total, x: total + x, wf.tensor(0.0), wf.ones(5))


@mistake(
    FAMILY,
    "A scan over sequences of different lengths",
    ShapeError,
    "scan",
    problem="lengths differ",
    expected="a first axis of 5, as xs[0] has",
    got="xs[0]: 5   xs[1]: f32[4]",
    fix="xs[1][:5]",
)
def scan_lengths() -> None:
    wf.scan(lambda c, xs: (c + xs[0] * xs[1], c), wf.tensor(0.0), (wf.ones(5), wf.ones(4)))


@mistake(
    FAMILY,
    "A scan over nothing, without a length",
    ArgumentError,
    "scan",
    problem="the number of steps is not known",
    expected="xs with a first axis, or length of at least 0",
    got="length: None",
    fix="scan(f, init, None, length=10)",
)
def scan_no_length() -> None:
    wf.scan(lambda c, _: (c * 2, c), wf.tensor(1.0))


@mistake(
    FAMILY,
    "A loop whose state changes type",
    DTypeError,
    "while_loop",
    problem="body_fn changes the type of the carry at init",
    expected="body_fn to give i64[] there, as init has",
    got="init: i64[]   body_fn: f32[]",
    fix='make init float32: init.astype("float32")',
)
def while_carry() -> None:
    wf.while_loop(lambda n: n < 10, lambda n: n * 1.5, wf.tensor(1))


@mistake(
    FAMILY,
    "A loop whose condition has several elements",
    ArgumentTypeError,
    "while_loop",
    problem="the condition is not one truth value",
    expected="cond_fn(carry) -> bool[]",
    got="cond_fn: [bool[3]]",
    fix="compare and reduce: lambda x: wf.any(x > 0)",
)
def while_condition() -> None:
    wf.while_loop(lambda x: x < 10, lambda x: x * 2, wf.ones(3))


@mistake(
    FAMILY,
    "The reverse derivative of an unbounded loop",
    GradientError,
    "while_loop",
    problem="going back over a loop needs a bound on its steps",
    expected="max_steps, for a derivative in reverse mode",
    got="max_steps: None",
    fix="while_loop(…, max_steps=100), @wf.script(max_steps=100), or forward mode: wf.jvp",
)
def while_reverse() -> None:
    def grow(x):
        return wf.while_loop(lambda v: v < 10, lambda v: v * x, x)

    wf.grad(grow)(wf.tensor(2.0))


@mistake(
    FAMILY,
    "A write to one of two tensors, as a traced test says",
    ArgumentError,
    "+=",
    problem="whether this is the same tensor as another one depends on a traced tensor",
    expected="a write to a tensor that is one and the same, whatever the test says",
    got="x: f32[2]   other: f32[2]",
    fix="give it a value of its own: x = x + 1 in place of x += 1, or y = x.clone()",
)
def write_to_one_of_two() -> None:
    @wf.jit
    @wf.script
    def smaller(a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
        y = a if a.sum() < b.sum() else b
        y += 1  # wrong
        return y

    smaller(wf.ones(2), wf.zeros(2))
