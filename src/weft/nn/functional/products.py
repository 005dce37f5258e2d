"""Products with weights.

>>> import weft as wf
>>> linear(wf.tensor([1.0, 2.0]), wf.tensor([[3.0, 4.0]]), wf.tensor([0.5])).tolist()
[11.5]
"""

from __future__ import annotations

import weft as wf
from weft.eager import unit
from weft.nn.functional.checks import needs_axes
from weft.precision import follow_table


@follow_table
@unit(weights=("weight", "bias"))
def linear(x: wf.Tensor, weight: wf.Tensor, bias: wf.Tensor | None = None) -> wf.Tensor:
    """x [..., in] times weight [out, in], transposed, plus bias [out].

    >>> linear(wf.ones((2, 3)), wf.ones((1, 3))).tolist()
    [[3.0], [3.0]]
    """
    needs_axes("linear", 2, weight=weight)
    if x.ndim < 1 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        raise wf.ShapeError(
            "linear",
            "the input does not have as many features as the weight takes",
            expected=f"x: [..., {weight.shape[-1]}], for weight [out, in]",
            got={"x": x, "weight": weight},
            fix=f"nn.Linear({x.shape[-1] if x.ndim else 1}, {weight.shape[0]}), or reshape x",
        )
    y: wf.Tensor = x @ weight.T
    return y if bias is None else y + bias


@follow_table
@unit(weights=("weight", "bias"))
def bilinear(
    a: wf.Tensor, b: wf.Tensor, weight: wf.Tensor, bias: wf.Tensor | None = None
) -> wf.Tensor:
    """a [..., in1] and b [..., in2] joined by weight [out, in1, in2], plus bias [out].

    >>> bilinear(wf.tensor([1.0, 2.0]), wf.tensor([3.0]), wf.ones((1, 2, 1))).tolist()
    [9.0]
    """
    needs_axes("bilinear", 1, a=a, b=b)
    needs_axes("bilinear", 3, weight=weight)
    if (a.shape[-1], b.shape[-1]) != weight.shape[1:] or a.shape[:-1] != b.shape[:-1]:
        raise wf.ShapeError(
            "bilinear",
            "the inputs do not fit the weight, or each other",
            expected=f"a: [..., {weight.shape[1]}], b: [..., {weight.shape[2]}] with equal batches",
            got={"a": a, "b": b, "weight": weight},
            fix=f"nn.Bilinear({a.shape[-1]}, {b.shape[-1]}, {weight.shape[0]})",
        )
    y = wf.einsum("...i,oij,...j->...o", a, weight, b)
    return y if bias is None else y + bias
