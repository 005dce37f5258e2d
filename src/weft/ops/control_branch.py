"""Branches: one of several graphs, chosen by an index.

>>> import weft as wf
>>> wf.cond(wf.tensor(True), wf.sin, wf.cos, wf.tensor(0.0)).item()
0.0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import ArgumentError, BoundsError, DTypeError
from weft.core.shapes import Dimension
from weft.core.types import TensorType, spec
from weft.ir.batching import move_axis, to_front
from weft.ir.derivatives import joint
from weft.ir.dispatch import apply_multiple
from weft.ir.graph import Graph
from weft.ir.kinds import Control
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import multiply
from weft.ops.control import (
    Array,
    batched_graph,
    batched_outputs,
    closed_graph,
    cotangent_graph,
    inexact_marks,
    moving_outputs,
    place_marked,
    require_types,
    run,
    tangent_graph,
    union,
)
from weft.ops.elementary import cos, exp, sin

__all__: list[str] = []

Branches = tuple[Graph, ...]


def _switch_type(
    index: TensorType, *operands: TensorType, branches: Branches, rows: int
) -> tuple[TensorType, ...]:
    if not index.dtype.is_integer:
        raise DTypeError(
            "switch",
            "the index of a branch is not an integer",
            expected="an integer dtype",
            got={"index": index},
            fix='convert it first: index.astype("int32")',
        )
    if index.ndim != rows:
        raise ArgumentError(
            "switch",
            "the index of a branch has axes",
            expected=f"an index with {rows} axes",
            got={"index": index},
            fix="choose for one element, and use wf.vmap for many",
        )
    for number, branch in enumerate(branches):
        require_types("switch", f"branch {number}", branch.input_types, operands)
        what = f"results of branch {number}"
        require_types("switch", what, branches[0].output_types, branch.output_types)
    return branches[0].output_types


def _switch(index: Array, *operands: Array, branches: Branches, rows: int) -> tuple[Array, ...]:
    low, high = (index.min(), index.max()) if index.size else (0, 0)
    if low < 0 or high >= len(branches):
        raise BoundsError(
            "switch",
            "no branch has this index",
            expected=f"an index of 0 to {len(branches) - 1}",
            got={"index": index.tolist()},
            fix=f"wf.clip(index, 0, {len(branches) - 1})",
        )
    if rows == 0:
        return run(branches[int(index)], operands)
    results = [run(branch, operands) for branch in branches]
    return tuple(_choose_rows(index, column) for column in zip(*results, strict=True))


def _choose_rows(index: Array, column: Sequence[Array]) -> Array:
    """Each row from the array that its index names."""
    choice = index.reshape(index.shape + (1,) * (column[0].ndim - index.ndim))
    result = column[0]
    for number, each in enumerate(column[1:], start=1):
        result = np.where(choice == number, each, result)
    return result


def _switch_jvp(
    primals: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
    out: Any,
    branches: Branches,
    rows: int,
) -> list[Tensor | None]:
    moving = tuple(tangent is not None for tangent in tangents[1:])
    wanted = union(*[moving_outputs(branch, moving) for branch in branches])
    if not any(wanted):
        return [None] * len(wanted)
    graphs = tuple(tangent_graph(branch, moving, wanted) for branch in branches)
    given = [tangent for tangent in tangents[1:] if tangent is not None]
    return place_marked(
        apply_multiple(switch, *primals, *given, branches=graphs, rows=rows), wanted
    )


def _switch_vjp(
    cotangents: Sequence[Tensor | None],
    out: Any,
    primals: Sequence[Tensor],
    wanted: Sequence[bool],
    branches: Branches,
    rows: int,
) -> list[Tensor | None]:
    asked = tuple(w and d for w, d in zip(wanted[1:], inexact_marks(primals[1:]), strict=True))
    graphs = tuple(cotangent_graph(branch, asked) for branch in branches)
    given = [cotangent for cotangent in cotangents if cotangent is not None]
    cotangents_asked = apply_multiple(switch, *primals, *given, branches=graphs, rows=rows)
    return [None, *place_marked(cotangents_asked, asked)]


def _batch_switch(
    size: Dimension,
    operands: tuple[Tensor, ...],
    axes: tuple[int | None, ...],
    branches: Branches,
    rows: int,
) -> tuple[tuple[Tensor, ...], list[int | None]]:
    """One index for the whole batch batches the branches; one for each element selects rows.

    Rows are selected by the primitive itself and not by `where`, so that a derivative also
    selects: what a branch gives for rows that did not take it, not even NaN, reaches a result.
    """
    if axes[0] is None and rows == 0:
        marks = tuple(axis is not None for axis in axes[1:])
        wanted = union(*[batched_outputs(branch, marks, size) for branch in branches])
        pairs = zip(operands, axes, strict=True)
        fronts = [x if axis is None else move_axis(x, axis, 0) for x, axis in pairs]
    else:
        marks, wanted = (True,) * len(axes[1:]), (True,) * len(branches[0].outputs)
        fronts = [to_front(size, x, a) for x, a in zip(operands, axes, strict=True)]
        rows += 1
    graphs = tuple(batched_graph(branch, size, marks, wanted) for branch in branches)
    out = apply_multiple(switch, *fronts, branches=graphs, rows=rows)
    return out, [0 if want else None for want in wanted]


def _sample_branches() -> Branches:
    kinds = [spec("float64"), spec("float64", (3,))]
    return (
        closed_graph(lambda a, x: [sin(x), a], kinds),
        closed_graph(lambda a, x: [multiply(a, x), exp(a)], kinds),
        closed_graph(lambda a, x: [cos(multiply(x, x)), multiply(a, a)], kinds),
    )


def _samples() -> list[Sample]:
    branches = _sample_branches()
    scale, x = np.float64(0.7), np.array([0.3, -1.1, 0.8], np.float64)
    params = {"branches": branches, "rows": 0}
    by_row = tuple(batched_graph(b, 2, (True, True), (True, True)) for b in branches)
    rows = (np.array([2, 1]), np.array([0.4, -0.6], np.float64), np.stack([x, x + 1]))
    counted = closed_graph(lambda n, x: [multiply(x, x), n], [spec("int64"), spec("float64", (2,))])
    return [
        *[Sample((np.array(i), np.asarray(scale), x), params) for i in range(3)],
        Sample(rows, {"branches": by_row, "rows": 1}),
        Sample((np.array(0), np.array(5), np.ones(2)), {"branches": (counted,), "rows": 0}),
    ]


def _mistakes() -> list[Mistake]:
    params = {"branches": _sample_branches(), "rows": 0}
    scale, x = np.ones((), np.float64), np.ones(3, np.float64)
    return [
        Mistake((scale, scale, x), params, DTypeError, "the index of a branch is not an integer"),
        Mistake((np.array([0]), scale, x), params, ArgumentError, "the index of a branch has axes"),
        Mistake((np.array(3), scale, x), params, BoundsError, "no branch has this index"),
        Mistake((np.array(0), scale), params, ArgumentError, "branch 0: 1 values for 2 places"),
    ]


switch = Primitive(
    "switch",
    "The results of the branch that the index names; with `rows`, each row's own branch's.",
    kind=Control(),
    type_rule=_switch_type,
    reference=_switch,
    derivatives=joint(_switch_jvp, _switch_vjp),
    batch=_batch_switch,
    samples=_samples,
    mistakes=_mistakes,
    multiple=True,
)
