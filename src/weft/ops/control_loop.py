"""Loops: a graph run once for each element of its inputs, or as long as another graph says.

>>> import weft as wf
>>> wf.scan(lambda total, x: (total + x, total), 0.0, wf.tensor([1.0, 2.0, 3.0]))[0].item()
6.0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.core.dtypes import bool_, int32
from weft.core.errors import ArgumentError, GradientError
from weft.core.shapes import Dimension, equal
from weft.core.types import TensorType, spec
from weft.ir.batching import move_axis, to_front
from weft.ir.derivatives import joint
from weft.ir.dispatch import apply, apply_multiple
from weft.ir.graph import Graph, Variable
from weft.ir.kinds import Control
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.reverse import or_zeros, zeros
from weft.ir.tensor import Tensor
from weft.ir.tracing import interpret
from weft.ops.arithmetic import add, multiply, subtract
from weft.ops.control import (
    Array,
    Marks,
    batched_graph,
    batched_outputs,
    closed_graph,
    inexact_marks,
    input_cotangents,
    moving_outputs,
    place_marked,
    remember,
    require_types,
    run,
    select_marked,
    settle,
    silent_graph,
    split_by_counts,
    tangent_outputs,
)
from weft.ops.control_branch import switch
from weft.ops.conversion import convert
from weft.ops.elementary import sin
from weft.ops.reduction import reduce_sum

__all__: list[str] = []

# --- scan --------------------------------------------------------------------------------------


def _stacked_type(kind: TensorType, length: Dimension) -> TensorType:
    return kind.with_shape((length, *kind.shape))


def _scan_type(
    *operands: TensorType,
    graph: Graph,
    num_consts: int,
    num_carry: int,
    length: Dimension,
    reverse: bool,
) -> tuple[TensorType, ...]:
    held = num_consts + num_carry
    for x in operands[held:]:
        if x.ndim == 0 or not equal(x.shape[0], length):
            raise ArgumentError(
                "scan",
                "what is scanned over has another length",
                expected=f"a first axis of {length}",
                got={"x": x},
                fix="slice or pad xs to one length",
            )
    steps = [x.with_shape(x.shape[1:]) for x in operands[held:]]
    require_types("scan", "operands", graph.input_types, [*operands[:held], *steps])
    outputs = graph.output_types
    require_types("scan", "carry", operands[num_consts:held], outputs[:num_carry])
    return (*outputs[:num_carry], *[_stacked_type(y, length) for y in outputs[num_carry:]])


def _scan(
    *operands: Array, graph: Graph, num_consts: int, num_carry: int, length: Any, reverse: bool
) -> tuple[Array, ...]:
    consts = operands[:num_consts]
    carry = operands[num_consts : num_consts + num_carry]
    xs = operands[num_consts + num_carry :]
    kinds = graph.output_types[num_carry:]
    ys = [np.empty((length, *kind.shape), kind.dtype.numpy) for kind in kinds]
    for step in reversed(range(length)) if reverse else range(length):
        results = run(graph, (*consts, *carry, *[x[step, ...] for x in xs]))
        carry = results[:num_carry]
        for y, result in zip(ys, results[num_carry:], strict=True):
            y[step] = result
    return (*carry, *ys)


def _scan_jvp(
    primals: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
    out: Any,
    graph: Graph,
    num_consts: int,
    num_carry: int,
    length: Dimension,
    reverse: bool,
) -> list[Tensor | None]:
    """A scan whose carry holds the tangents of the carry beside it."""
    held = num_consts + num_carry
    moving = tuple(tangent is not None for tangent in tangents)
    # A carry that has no tangent at first may get one in a step.
    moving = _settle_marks(moving_outputs, graph, num_consts, num_carry, moving)
    moving_ys = moving_outputs(graph, moving)[num_carry:]
    consts, carry, xs = _with_tangents(primals, tangents, moving, num_consts, held)
    results = apply_multiple(
        scan,
        *consts,
        *carry,
        *xs,
        graph=_tangent_step(graph, num_consts, num_carry, moving, moving_ys),
        num_consts=len(consts),
        num_carry=len(carry),
        length=length,
        reverse=reverse,
    )
    return place_marked(results[num_carry:], moving[num_consts:held] + moving_ys)


def _settle_marks(
    rule: Callable[[Graph, Marks], Marks],
    graph: Graph,
    num_consts: int,
    num_carry: int,
    marks: Marks,
) -> Marks:
    """The inputs of a loop's body that are marked in any step, given those marked in the first."""
    held = num_consts + num_carry
    before, carry, after = marks[:num_consts], marks[num_consts:held], marks[held:]
    return before + settle(lambda m: rule(graph, before + m + after)[:num_carry], carry) + after


def _with_tangents(
    primals: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
    moving: Marks,
    *bounds: int,
) -> list[list[Tensor]]:
    """The primals divided at the bounds (constants, carry, xs), each part followed by its tangents.

    Only operands that move have a tangent; zeros stand for one that is not given.
    """
    parts = []
    for low, high in zip((0, *bounds), (*bounds, len(primals)), strict=True):
        models = select_marked(primals[low:high], moving[low:high])
        slopes = or_zeros(select_marked(tangents[low:high], moving[low:high]), models)
        parts.append([*primals[low:high], *slopes])
    return parts


@remember
def _tangent_step(
    graph: Graph, num_consts: int, num_carry: int, moving: Marks, found: Marks
) -> Graph:
    """The graph of a step of the tangent scan.

    It takes constants, carry and x, each followed by its tangents, and gives the next carry with
    its tangents, and the tangents of y.
    """
    held = num_consts + num_carry
    fixed, varied, stepped = moving[:num_consts], moving[num_consts:held], moving[held:]
    wanted = varied + found
    counts = (num_consts, sum(fixed), num_carry, sum(varied), len(stepped), sum(stepped))

    def step(*values: Tensor) -> list[Tensor]:
        c, tc, s, ts, x, tx = split_by_counts(values, counts)
        outputs, slopes = tangent_outputs(graph, [*c, *s, *x], [*tc, *ts, *tx], moving)
        return [
            *outputs[:num_carry],
            *or_zeros(select_marked(slopes, wanted), select_marked(outputs, wanted)),
        ]

    kinds = graph.input_types
    parts = [(kinds[:num_consts], fixed), (kinds[num_consts:held], varied), (kinds[held:], stepped)]
    return closed_graph(
        step, [k for part, marks in parts for k in (*part, *select_marked(part, marks))]
    )


def _scan_vjp(
    cotangents: Sequence[Tensor | None],
    out: Any,
    primals: Sequence[Tensor],
    wanted: Sequence[bool],
    graph: Graph,
    num_consts: int,
    num_carry: int,
    length: Dimension,
    reverse: bool,
) -> list[Tensor | None]:
    """Run again and keep the carry of every step, then go back over the steps."""
    held = num_consts + num_carry
    varied = inexact_marks(primals)
    # The carry's cotangents are always needed: they lead from a step to the one before it.
    asked = tuple(
        d and (w or num_consts <= place < held)
        for place, (w, d) in enumerate(zip(wanted, varied, strict=True))
    )
    params = {"num_consts": num_consts, "length": length}
    forth = {"graph": _saving_step(graph, num_consts, num_carry), "num_carry": num_carry}
    saved = apply_multiple(scan, *primals, **forth, **params, reverse=reverse)[num_carry:]
    # The constants' cotangents are sums over all steps, so they are carried.
    sums = [zeros(x.type) for x in select_marked(primals[:num_consts], asked[:num_consts])]
    ct_carry = [ct for ct in cotangents[:num_carry] if ct is not None]
    ct_ys = [ct for ct in cotangents[num_carry:] if ct is not None]
    back = apply_multiple(
        scan,
        *primals[:num_consts],
        *sums,
        *ct_carry,
        *saved,
        *primals[held:],
        *ct_ys,
        graph=_cotangent_step(graph, num_consts, num_carry, asked),
        num_carry=len(sums) + len(ct_carry),
        **params,
        reverse=not reverse,
    )
    return place_marked(back, asked)


@remember
def _saving_step(graph: Graph, num_consts: int, num_carry: int) -> Graph:
    """The step, with the carry that it is given in place of y."""
    return closed_graph(
        lambda *values: [
            *interpret(silent_graph(graph), *values)[:num_carry],
            *values[num_consts : num_consts + num_carry],
        ],
        graph.input_types,
    )


@remember
def _cotangent_step(graph: Graph, num_consts: int, num_carry: int, asked: Marks) -> Graph:
    """The graph of a step of the reverse scan.

    It takes the constants; as its carry, the sums of the constants' cotangents and the cotangents
    of the carry after the step; and as its x the step's carry, x and cotangents of y. It gives the
    next sums, the cotangents of the carry before the step, and those of x.
    """
    held = num_consts + num_carry
    kinds, outputs = graph.input_types, graph.output_types
    sums = select_marked(kinds[:num_consts], asked[:num_consts])
    ct_carry, ct_ys = (
        select_marked(part, inexact_marks(part))
        for part in (outputs[:num_carry], outputs[num_carry:])
    )
    parts = [kinds[:num_consts], sums, ct_carry, kinds[num_consts:held], kinds[held:], ct_ys]

    def step(*values: Tensor) -> list[Tensor]:
        c, totals, ct_s, s, x, ct_y = split_by_counts(values, [len(part) for part in parts])
        cotangents = input_cotangents(graph, [*c, *s, *x], [*ct_s, *ct_y], asked)
        next_totals = [add(a, b) for a, b in zip(totals, cotangents[: len(totals)], strict=True)]
        return [*next_totals, *cotangents[len(totals) :]]

    return closed_graph(step, [kind for part in parts for kind in part])


def _batch_scan(
    size: Dimension,
    operands: tuple[Tensor, ...],
    axes: tuple[int | None, ...],
    graph: Graph,
    num_consts: int,
    num_carry: int,
    length: Dimension,
    reverse: bool,
) -> tuple[tuple[Tensor, ...], list[int | None]]:
    """The batch axis is first inside a step, so it stands behind the steps' axis in xs and ys."""
    held = num_consts + num_carry
    marks = tuple(axis is not None for axis in axes)
    rule = partial(batched_outputs, size=size)
    marks = _settle_marks(rule, graph, num_consts, num_carry, marks)
    batched_ys = rule(graph, marks)[num_carry:]
    fronts = [
        to_front(size, x, axis) if mark else x
        for x, axis, mark in zip(operands[:held], axes[:held], marks[:held], strict=True)
    ]
    steps = [
        x if axis is None else move_axis(x, axis, 1)
        for x, axis in zip(operands[held:], axes[held:], strict=True)
    ]
    out = apply_multiple(
        scan,
        *fronts,
        *steps,
        graph=batched_graph(graph, size, marks, marks[num_consts:held] + batched_ys),
        num_consts=num_consts,
        num_carry=num_carry,
        length=length,
        reverse=reverse,
    )
    places: list[int | None] = [0 if mark else None for mark in marks[num_consts:held]]
    return out, places + [1 if mark else None for mark in batched_ys]


def _scan_samples() -> list[Sample]:
    def step(w: Tensor, h: Tensor, x: Tensor) -> list[Tensor]:
        h = sin(add(multiply(w, h), x))
        return [h, multiply(h, x)]

    vector = spec("float64", (2,))
    graph = closed_graph(step, [spec("float64"), vector, vector])
    number = spec("float64")
    counting = closed_graph(
        lambda n, total, x: [add(n, n), add(total, x)], [spec("int32"), number, number]
    )
    w, h = np.array(0.6, np.float64), np.array([0.2, -0.5], np.float64)
    xs = np.linspace(-1, 1, 6, dtype=np.float64).reshape(3, 2)
    params = {"graph": graph, "num_consts": 1, "num_carry": 1, "length": 3, "reverse": False}
    start = (np.array(1, np.int32), np.array(0.5, np.float64), xs[:, 0])
    return [
        Sample((w, h, xs), params),
        Sample((w, h, xs), {**params, "reverse": True}),
        Sample((w, h, xs[:0]), {**params, "length": 0}),
        Sample(start, {**params, "graph": counting, "num_consts": 0, "num_carry": 2}),
    ]


def _scan_mistakes() -> list[Mistake]:
    sample = _scan_samples()[0]
    w, h, xs = sample.operands
    return [
        Mistake((w, h, xs[:2]), sample.params, ArgumentError, "scanned over has another length"),
        Mistake((w, w, xs), sample.params, ArgumentError, "value 1 has another type"),
    ]


scan = Primitive(
    "scan",
    "A graph of (constants, carry, x) to (carry, y) along the first axis of xs.",
    kind=Control(),
    type_rule=_scan_type,
    reference=_scan,
    derivatives=joint(_scan_jvp, _scan_vjp),
    batch=_batch_scan,
    samples=_scan_samples,
    mistakes=_scan_mistakes,
    multiple=True,
)

# --- while -------------------------------------------------------------------------------------


def _while_type(
    *operands: TensorType, cond: Graph, body: Graph, num_consts: int, max_steps: int | None
) -> tuple[TensorType, ...]:
    require_types("while", "operands of the condition", cond.input_types, operands)
    require_types("while", "operands of the body", body.input_types, operands)
    require_types("while", "the condition", [TensorType(bool_, ())], cond.output_types)
    require_types("while", "carry", operands[num_consts:], body.output_types)
    return body.output_types


def _while(
    *operands: Array, cond: Graph, body: Graph, num_consts: int, max_steps: int | None
) -> tuple[Array, ...]:
    consts, carry = operands[:num_consts], operands[num_consts:]
    step = 0
    while step != max_steps and run(cond, (*consts, *carry))[0]:
        carry = run(body, (*consts, *carry))
        step += 1
    return carry


def _while_jvp(
    primals: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
    out: Any,
    cond: Graph,
    body: Graph,
    num_consts: int,
    max_steps: int | None,
) -> list[Tensor | None]:
    """A loop whose carry holds the tangents of the carry beside it."""
    num_carry = len(primals) - num_consts
    moving = tuple(tangent is not None for tangent in tangents)
    moving = _settle_marks(moving_outputs, body, num_consts, num_carry, moving)
    step = _tangent_step(body, num_consts, num_carry, moving, ())
    consts, carry = _with_tangents(primals, tangents, moving, num_consts)
    results = apply_multiple(
        while_,
        *consts,
        *carry,
        cond=_beside_tangents(cond, num_consts, moving, step.input_types),
        body=step,
        num_consts=len(consts),
        max_steps=max_steps,
    )
    return place_marked(results[num_carry:], moving[num_consts:])


@remember
def _beside_tangents(
    cond: Graph, num_consts: int, moving: Marks, kinds: tuple[TensorType, ...]
) -> Graph:
    """The condition of (constants, tangents, carry, tangents), which reads no tangents."""
    counts = (num_consts, sum(moving[:num_consts]), len(moving) - num_consts)

    def test(*values: Tensor) -> tuple[Tensor, ...]:
        consts, _, carry, _ = split_by_counts(values, (*counts, len(values) - sum(counts)))
        return interpret(silent_graph(cond), *consts, *carry)

    return closed_graph(test, kinds)


def _identity_body(kinds: Sequence[TensorType], num_consts: int) -> Graph:
    """The graph of (constants, carry) that returns the carry as it is."""
    inputs = tuple(Variable(kind) for kind in kinds)
    return Graph(inputs, (), inputs[num_consts:])


def _while_vjp(
    cotangents: Sequence[Tensor | None],
    out: Any,
    primals: Sequence[Tensor],
    wanted: Sequence[bool],
    cond: Graph,
    body: Graph,
    num_consts: int,
    max_steps: int | None,
) -> list[Tensor | None]:
    """The loop as a scan of `max_steps` steps; those after its end change nothing."""
    if max_steps is None:
        raise GradientError(
            "while_loop",
            "going back over a loop needs a bound on its steps",
            expected="max_steps, for a derivative in reverse mode",
            got={"max_steps": max_steps},
            fix="while_loop(…, max_steps=100), @wf.script(max_steps=100), or forward mode: wf.jvp",
        )
    return _scan_vjp(
        cotangents,
        out,
        primals,
        wanted,
        graph=_step_or_stay(cond, body, num_consts),
        num_consts=num_consts,
        num_carry=len(primals) - num_consts,
        length=max_steps,
        reverse=False,
    )


@remember
def _step_or_stay(cond: Graph, body: Graph, num_consts: int) -> Graph:
    """The body if the condition holds; otherwise the carry as it is."""
    branches = (_identity_body(body.input_types, num_consts), body)

    def step(*values: Tensor) -> Sequence[Tensor]:
        active = apply(convert, interpret(cond, *values)[0], dtype=int32)
        return apply_multiple(switch, active, *values, branches=branches, rows=0)

    return closed_graph(step, body.input_types)


def _batch_while(
    size: Dimension,
    operands: tuple[Tensor, ...],
    axes: tuple[int | None, ...],
    cond: Graph,
    body: Graph,
    num_consts: int,
    max_steps: int | None,
) -> tuple[tuple[Tensor, ...], list[int | None]]:
    """The loop of a batch: one that all elements leave together, or one for the longest of them.

    Where the condition differs between elements, the loop runs as long as it holds for any, and a
    step changes only the elements for which it holds.
    """
    marks = tuple(axis is not None for axis in axes)
    marks = _settle_marks(
        partial(batched_outputs, size=size), body, num_consts, len(marks) - num_consts, marks
    )
    fixed, varied = marks[:num_consts], marks[num_consts:]
    (apart,) = batched_outputs(cond, marks, size)
    if apart:
        varied = (True,) * len(varied)
        test, step = _any_row(size, cond, fixed + varied), _by_row(size, cond, body, fixed, varied)
    else:
        test = batched_graph(cond, size, fixed + varied, (False,))
        step = batched_graph(body, size, fixed + varied, varied)
    fronts = [
        to_front(size, x, axis) if mark else x
        for x, axis, mark in zip(operands, axes, fixed + varied, strict=True)
    ]
    out = apply_multiple(
        while_, *fronts, cond=test, body=step, num_consts=num_consts, max_steps=max_steps
    )
    return out, [0 if mark else None for mark in varied]


@remember
def _any_row(size: Dimension, cond: Graph, marks: Marks) -> Graph:
    """Whether the condition holds for any element of the batch."""
    by_row = batched_graph(cond, size, marks, (True,))

    def test(*values: Tensor) -> list[Tensor]:
        holds = apply(convert, interpret(by_row, *values)[0], dtype=int32)
        return [apply(convert, apply(reduce_sum, holds, axes=(0,)), dtype=bool_)]

    return closed_graph(test, by_row.input_types)


@remember
def _by_row(size: Dimension, cond: Graph, body: Graph, fixed: Marks, varied: Marks) -> Graph:
    """The body for the elements whose condition holds; the others keep their carry."""
    by_row = batched_graph(cond, size, fixed + varied, (True,))
    every = (True,) * len(fixed + varied)
    step = batched_graph(body, size, every, varied)
    branches = (_identity_body(step.input_types, len(fixed)), step)

    def body_of_some(*values: Tensor) -> Sequence[Tensor]:
        holds = apply(convert, interpret(by_row, *values)[0], dtype=int32)
        pairs = zip(values, fixed + varied, strict=True)
        rows = [to_front(size, value, 0 if mark else None) for value, mark in pairs]
        return apply_multiple(switch, holds, *rows, branches=branches, rows=1)

    return closed_graph(body_of_some, by_row.input_types)


def _while_samples() -> list[Sample]:
    kinds = [spec("float64"), spec("int32"), spec("float64", (2,))]
    cond = closed_graph(lambda w, n, x: [apply(convert, n, dtype=bool_)], kinds)
    one = np.array(1, np.int32)
    body = closed_graph(lambda w, n, x: [subtract(n, one), sin(multiply(w, x))], kinds)
    w, x = np.array(0.8, np.float64), np.array([0.4, -0.9], np.float64)
    params = {"cond": cond, "body": body, "num_consts": 1, "max_steps": 4}
    return [
        Sample((w, np.array(3, np.int32), x), params),
        Sample((w, np.array(9, np.int32), x), params),
        Sample((w, np.array(0, np.int32), x), params),
        Sample((w, np.array(3, np.int32), x), {**params, "max_steps": None}, derivative=False),
    ]


def _while_mistakes() -> list[Mistake]:
    sample = _while_samples()[0]
    w, n, x = sample.operands
    endless = {**sample.params, "cond": sample.params["body"]}
    return [
        Mistake((w, x, x), sample.params, ArgumentError, "operands of the condition: value 1 has"),
        Mistake((w, n, x), endless, ArgumentError, "the condition: 2 values for 1 places"),
    ]


while_ = Primitive(
    "while",
    "A graph of (constants, carry) to the carry, as long as a condition holds or steps are left.",
    kind=Control(),
    type_rule=_while_type,
    reference=_while,
    derivatives=joint(_while_jvp, _while_vjp),
    batch=_batch_while,
    samples=_while_samples,
    mistakes=_while_mistakes,
    multiple=True,
)
