"""Traces and batches."""

# ruff: noqa: ANN001, ANN202

import numpy as np
from tests.mistakes.entry import Family, mistake

import weft as wf
from weft import ArgumentError, AxisError, LeakError, ShapeError, TraceError

FAMILY: Family = []


@mistake(
    FAMILY,
    "A batch of arguments of different sizes",
    ShapeError,
    "vmap",
    problem="arguments have batches of different sizes",
    expected="one size along all mapped axes",
    got="argument 0: f32[3]   argument 1: f32[4]",
    fix="slice the arguments to one size, or map fewer of them with in_axes=None",
)
def vmap_sizes() -> None:
    wf.vmap(wf.add)(wf.ones(3), wf.ones(4))


@mistake(
    FAMILY,
    "in_axes without one entry per argument",
    ArgumentError,
    "vmap",
    problem="in_axes does not have one entry per argument",
    expected="2 entries",
    got="in_axes: (0,)",
    fix="give one axis or None for each positional argument",
)
def vmap_in_axes_length() -> None:
    wf.vmap(wf.add, in_axes=(0,))(wf.ones(3), wf.ones(3))


@mistake(
    FAMILY,
    "in_axes that does not fit the arguments",
    ArgumentError,
    "vmap",
    problem="in_axes does not fit the structure it describes",
    expected="an axis, None, or a tree of them that is a prefix of the argument's",
    got="in_axes: {'w': 0}",
    fix="use in_axes=0, or one entry for each part",
)
def vmap_in_axes_structure() -> None:
    params = {"w": wf.ones((3, 2)), "b": wf.ones(3)}
    wf.vmap(lambda p: p["w"] * p["b"], in_axes=({"w": 0},))(params)


@mistake(
    FAMILY,
    "A batch axis that the argument does not have",
    AxisError,
    "vmap",
    problem="an argument does not have the axis that is mapped over",
    expected="an axis from -1 to 0, or None",
    got="argument: f32[3]   in_axes: 1",
    fix="in_axes=(0, None) where the first argument alone has a batch axis",
)
def vmap_axis() -> None:
    wf.vmap(wf.sin, in_axes=1)(wf.ones(3))


@mistake(
    FAMILY,
    "A batch of a number",
    AxisError,
    "vmap",
    problem="an argument does not have the axis that is mapped over",
    expected="an axis from 0 to -1, or None",
    got="argument: f32[]   in_axes: 0",
    fix="in_axes=(0, None) where the first argument alone has a batch axis",
)
def vmap_scalar() -> None:
    wf.vmap(wf.add)(wf.ones(3), 2.0)


@mistake(
    FAMILY,
    "No batch at all",
    ArgumentError,
    "vmap",
    problem="no argument has a batch axis",
    expected="at least one entry of in_axes that is not None",
    got="in_axes: [None]",
    fix="map over an argument, or pass axis_size=",
)
def vmap_nothing() -> None:
    wf.vmap(wf.sin, in_axes=None)(wf.ones(3))


@mistake(
    FAMILY,
    "A result that differs per element, with out_axes=None",
    ArgumentError,
    "vmap",
    problem="a result with out_axes=None varies along the batch",
    expected="a result that is the same for all elements",
    got="result: f32[3]",
    fix="use out_axes=0",
)
def vmap_out_axes() -> None:
    wf.vmap(wf.sin, out_axes=None)(wf.ones(3))


@mistake(
    FAMILY,
    "A Python `if` on a batched value",
    TraceError,
    "bool()",
    problem="a tensor traced by vmap has no value yet",
    expected="a concrete tensor",
    got="x: bool[]",
    fix="write @wf.script above the function, which compiles if and while; or choose",
)
def vmap_if() -> None:
    wf.vmap(lambda x: x if x > 0 else -x)(wf.ones(3))


@mistake(
    FAMILY,
    "A Python number of a batched value",
    TraceError,
    "float()",
    problem="a tensor traced by vmap has no value yet",
    expected="a concrete tensor",
    got="x: f32[]",
    fix="keep it a tensor: x in place of float(x)",
)
def vmap_float() -> None:
    wf.vmap(lambda x: x * float(x))(wf.ones(3))


@mistake(
    FAMILY,
    "The NumPy array of a batched value",
    TraceError,
    "numpy",
    problem="a tensor traced by vmap has no value yet",
    expected="a concrete tensor",
    got="x: f32[]",
    fix="use weft functions here: wf.sin(x) in place of np.sin(x)",
)
def vmap_numpy() -> None:
    wf.vmap(lambda x: np.sin(x.numpy()))(wf.ones(3))


@mistake(
    FAMILY,
    "A mask, whose result has no fixed size, in a batch",
    TraceError,
    "index",
    problem="how many elements this gives depends on values that a trace does not",
    expected="a concrete tensor, or an operation whose result has a fixed shape",
    got="mask: bool[4]",
    fix="keep the shape and choose by wf.where(mask, x, 0.0)",
)
def vmap_mask() -> None:
    wf.vmap(lambda row: row[row > 0])(wf.ones((3, 4)))


@mistake(
    FAMILY,
    "A Python `if` on a traced value",
    TraceError,
    "bool()",
    problem="a tensor traced by trace has no value yet",
    expected="a concrete tensor",
    got="x: bool[]",
    fix="write @wf.script above the function, which compiles if and while; or choose",
)
def trace_if() -> None:
    def absolute(x):
        if x > 0:  # wrong
            return x
        return -x

    wf.ir.trace(absolute, wf.tensor(1.0))


@mistake(
    FAMILY,
    "The item of a traced value",
    TraceError,
    "item",
    problem="a tensor traced by trace has no value yet",
    expected="a concrete tensor",
    got="x: f32[]",
    fix="keep it a tensor: x in place of x.item()",
)
def trace_item() -> None:
    wf.ir.trace(lambda x: x * x.item(), wf.tensor(1.0))


@mistake(
    FAMILY,
    "A Python loop as long as a traced value says",
    TraceError,
    "index",
    problem="a tensor traced by trace has no value yet",
    expected="a concrete tensor",
    got="x: i64[]",
    fix="loop with wf.fori_loop(0, n, body, init), or pass n as a Python integer",
)
def trace_range() -> None:
    def power(x, n):
        for _ in range(n):  # wrong
            x = x * x
        return x

    wf.ir.trace(power, wf.tensor(2.0), wf.tensor(3))


@mistake(
    FAMILY,
    "The places of what is not zero, whose number is not known",
    TraceError,
    "nonzero",
    problem="how many elements this gives depends on values that a trace does not",
    expected="a concrete tensor, or an operation whose result has a fixed shape",
    got="mask: f32[3]",
    fix="keep the shape and choose by wf.where(mask, x, 0.0)",
)
def trace_nonzero() -> None:
    wf.ir.trace(wf.nonzero, wf.ones(3))


@mistake(
    FAMILY,
    "A batched tensor kept for later",
    LeakError,
    "add",
    problem="a tensor traced by vmap was used after the trace had ended",
    expected="a tensor that the traced function returned",
    got="x: f32[]",
    fix="return the tensor from the function instead of storing it outside",
)
def leak_vmap() -> None:
    kept = []
    wf.vmap(lambda x: kept.append(x) or x * 2)(wf.ones(3))
    kept[0] + 1


@mistake(
    FAMILY,
    "A traced tensor kept for later",
    LeakError,
    "add",
    problem="a tensor traced by trace was used after the trace had ended",
    expected="a tensor that the traced function returned",
    got="x: f32[3]",
    fix="return the tensor from the function instead of storing it outside",
)
def leak_trace() -> None:
    kept = []
    wf.ir.trace(lambda x: kept.append(x) or x * 2, wf.ones(3))
    kept[0] + 1


@mistake(
    FAMILY,
    "A tensor with a tangent kept for later",
    LeakError,
    "add",
    problem="a tensor traced by jvp was used after the trace had ended",
    expected="a tensor that the traced function returned",
    got="x: f32[3]",
    fix="return the tensor from the function instead of storing it outside",
)
def leak_jvp() -> None:
    kept = []
    wf.jvp(lambda x: kept.append(x) or x * 2, (wf.ones(3),), (wf.ones(3),))
    kept[0] + 1


@mistake(
    FAMILY,
    "A batched tensor kept and printed later",
    LeakError,
    "tolist",
    problem="a tensor traced by vmap was used after the trace had ended",
    expected="a tensor that the traced function returned",
    got="x: f32[]",
    fix="return the tensor from the function instead of storing it outside",
)
def leak_printed() -> None:
    kept = []
    wf.vmap(lambda x: kept.append(x) or x * 2)(wf.ones(3))
    kept[0].tolist()


@mistake(
    FAMILY,
    "A traced tensor for an option that is read as a number",
    TraceError,
    "random.dropout",
    problem="p is read as a number, but a tensor traced by jit has no value yet",
    expected="a Python number, or a concrete tensor, for p",
    got="p: f32[]",
    fix="pass p as a Python number, which a function is compiled for",
)
def traced_option() -> None:
    @wf.jit
    def noisy(x: wf.Tensor, p: wf.Tensor) -> wf.Tensor:
        return wf.random.dropout(x, p)  # wrong

    noisy(wf.ones(3), wf.tensor(0.5))
