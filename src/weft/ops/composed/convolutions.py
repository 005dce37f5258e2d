"""Convolution layers' functions, in PyTorch's meaning: cross-correlation of [N, C, *spatial].

>>> import weft as wf
>>> x = wf.ones((1, 1, 3, 3))
>>> wf.conv2d(x, wf.ones((1, 1, 3, 3)), padding="same").tolist()
[[[[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.errors import ArgumentError, ShapeError
from weft.ir.dispatch import apply
from weft.ir.eager import unit
from weft.ir.tensor import Tensor
from weft.ops.convolution import Padding, conv, conv_input_gradient
from weft.ops.movement import is_below, pad, reshape
from weft.ops.operands import apply_as, promote_operands

__all__ = [
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
]  # fmt: skip

Sizes = int | Sequence[int]
PaddingArgument = int | str | Sequence[int] | Sequence[tuple[int, int]]


# --- arguments ---------------------------------------------------------------------------------


def per_axis(op: str, name: str, value: Any, rank: int, least: int = 1) -> tuple[int, ...]:
    """One integer for each spatial axis, from one for all or one for each."""
    entries = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    whole = all(isinstance(entry, int) and entry >= least for entry in entries)
    if len(entries) != rank or not whole:
        raise ArgumentError(
            op,
            f"{name} is not one integer for each of the {rank} spatial axes",
            expected=f"an integer of at least {least}, or {rank} of them",
            got={name: value},
            fix=f"{name}={_suggested_sizes(entries, rank, least)}",
        )
    return entries


def _suggested_sizes(entries: tuple[Any, ...], rank: int, least: int) -> Any:
    """A correct value to suggest: the given entries where they are valid, one for each axis."""
    right = [e if isinstance(e, int) and e >= least else least for e in entries][:rank]
    full = (*right, *[least] * (rank - len(right)))
    return full if rank > 1 else full[0]


def sides(op: str, value: Any, rank: int) -> Padding:
    """(low, high) for each spatial axis, from an integer, integers, or pairs."""
    entries = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    pairs = tuple([tuple(e) if isinstance(e, (tuple, list)) else (e, e) for e in entries])
    whole = all(len(p) == 2 and all(isinstance(s, int) and s >= 0 for s in p) for p in pairs)
    if len(pairs) != rank or not whole:
        raise ArgumentError(
            op,
            "padding does not say how much for each spatial axis",
            expected=f"an integer of at least 0, or {rank} of them, or {rank} pairs (low, high)",
            got={"padding": value},
            fix="padding=0",
        )
    return pairs


def _conv_sides(
    op: str, value: PaddingArgument, kernel: Any, strides: Sequence[int], dilation: Sequence[int]
) -> Padding:
    if value == "valid":
        return ((0, 0),) * len(strides)
    if value == "same" and all(step == 1 for step in strides):
        spans = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple([(span // 2, span - span // 2) for span in spans])
    if isinstance(value, str):
        raise ArgumentError(
            op,
            '"same" needs a stride of 1' if value == "same" else "unknown padding",
            expected='a number, "valid", or "same" with stride 1',
            got={"padding": repr(value), "stride": strides},
            fix="padding=0",
        )
    return sides(op, value, len(strides))


def with_batch_axis(op: str, x: Tensor, rank: int) -> tuple[Tensor, bool]:
    """The tensor as [N, C, *spatial], and whether the batch axis had to be added."""
    if x.ndim == rank + 2:
        return x, False
    if x.ndim != rank + 1:
        raise ShapeError(
            op,
            f"the input does not have {rank} spatial axes",
            expected=f"[batch, channels, *{rank} spatial], or without batch",
            got={"x": x},
            fix=f"give x {rank + 2} axes: x[{', '.join(['None'] * max(rank + 2 - x.ndim, 1))}]",
        )
    return apply(reshape, x, shape=(1, *x.shape)), True


def without_batch_axis(x: Tensor, added: bool) -> Tensor:
    """The result without the batch axis that `with_batch_axis` added."""
    return apply(reshape, x, shape=x.shape[1:]) if added else x


def _operands(
    op: str, x: Any, weight: Any, bias: Any, rank: int
) -> tuple[Tensor, Tensor, Tensor | None, bool]:
    given = (x, weight) if bias is None else (x, weight, bias)
    tensors = promote_operands(op, given)
    image, added = with_batch_axis(op, tensors[0], rank)
    if tensors[1].ndim != rank + 2:
        raise ShapeError(
            op,
            f"the weight does not have {rank} spatial axes",
            expected=f"a weight with {rank + 2} axes: two of channels and {rank} of the kernel",
            got={"x": tensors[0], "weight": tensors[1]},
            fix=f"use conv{max(tensors[1].ndim - 2, 1)}d, or reshape the weight",
        )
    return image, tensors[1], tensors[2] if bias is not None else None, added


def _plus_bias(op: str, out: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return out
    if bias.shape != (out.shape[1],):
        raise ShapeError(
            op,
            "the bias does not have one element per output channel",
            expected=f"a bias of shape ({out.shape[1]},)",
            got={"bias": bias},
            fix=f"bias = wf.zeros({out.shape[1]})",
        )
    return out + apply(reshape, bias, shape=(bias.shape[0], *[1] * (out.ndim - 2)))


# --- convolution -------------------------------------------------------------------------------


def _convolve(
    op: str,
    rank: int,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sizes,
    padding: PaddingArgument,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    image, kernel, offset, added = _operands(op, x, weight, bias, rank)
    strides = per_axis(op, "stride", stride, rank)
    dilations = per_axis(op, "dilation", dilation, rank)
    around = _conv_sides(op, padding, kernel.shape[2:], strides, dilations)
    params = {"strides": strides, "padding": around, "dilation": dilations, "groups": groups}
    out = apply_as(op, conv, image, kernel, **params)
    return without_batch_axis(_plus_bias(op, out, offset), added)


@unit(weights=("weight", "bias"))
def conv1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: PaddingArgument = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of [N, C, L] with a weight [O, C/groups, K].

    `padding` is a number of zeros on both sides, pairs (low, high), "valid" for none, or "same" for
    a result of the input's size.

    >>> import weft as wf
    >>> x = wf.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    >>> wf.conv1d(x, wf.tensor([[[1.0, -1.0]]]), stride=2).tolist()
    [[[-1.0, -1.0]]]
    """
    return _convolve("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


@unit(weights=("weight", "bias"))
def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: PaddingArgument = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of [N, C, H, W] with a weight [O, C/groups, KH, KW]; see `conv1d`.

    >>> import weft as wf
    >>> wf.conv2d(wf.ones((1, 2, 4, 4)), wf.ones((3, 2, 3, 3)), padding=1).shape
    (1, 3, 4, 4)
    """
    return _convolve("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


@unit(weights=("weight", "bias"))
def conv3d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: PaddingArgument = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of [N, C, D, H, W] with a weight [O, C/groups, *kernel]; see `conv1d`.

    >>> import weft as wf
    >>> wf.conv3d(wf.ones((1, 1, 3, 3, 3)), wf.ones((1, 1, 3, 3, 3))).tolist()
    [[[[[27.0]]]]]
    """
    return _convolve("conv3d", 3, x, weight, bias, stride, padding, dilation, groups)


# --- its transpose -----------------------------------------------------------------------------


def _conv_transpose(
    op: str,
    rank: int,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sizes,
    padding: Any,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
) -> Tensor:
    image, kernel, offset, added = _operands(op, x, weight, bias, rank)
    strides = per_axis(op, "stride", stride, rank)
    dilations = per_axis(op, "dilation", dilation, rank)
    around = sides(op, padding, rank)
    extra = per_axis(op, "output_padding", output_padding, rank, least=0)
    if any(e >= max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
        raise ArgumentError(
            op,
            "output_padding is not smaller than stride or dilation",
            expected="output_padding < max(stride, dilation)",
            got={"output_padding": extra, "stride": strides, "dilation": dilations},
            fix="output_padding=0",
        )
    around, extra, beyond = _split_output_padding(around, extra, strides)
    spatial = tuple(
        [
            (dim - 1) * s - low - high + d * (k - 1) + e + 1
            for dim, s, (low, high), d, k, e in zip(
                image.shape[2:], strides, around, dilations, kernel.shape[2:], extra, strict=True
            )
        ]
    )
    if any(is_below(size + more, 0) for size, more in zip(spatial, beyond, strict=True)):
        raise ArgumentError(
            op,
            "the padding is wider than the result",
            expected="a padding that leaves a size of at least 0 on each axis",
            got={"x": image, "weight": kernel, "padding": padding},
            fix="padding=0",
        )
    out = apply_as(
        op,
        conv_input_gradient,
        image,
        kernel,
        spatial=spatial,
        strides=strides,
        padding=around,
        dilation=dilations,
        groups=groups,
    )
    if any(beyond):
        zeros = ((0, 0, 0), (0, 0, 0), *[(0, count, 0) for count in beyond])
        out = apply(pad, out, padding=zeros, value=0.0)
    return without_batch_axis(_plus_bias(op, out, offset), added)


def _split_output_padding(
    around: Padding, extra: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[Padding, tuple[int, ...], tuple[int, ...]]:
    """Padding, output padding, and zeros to add at the end of each axis.

    Output padding of a stride or more is room for another window of the convolution, which is no
    longer the one to transpose. Taken from the padding it shows what that had cut off; what is
    left lies beyond all windows.
    """
    triples = [
        ((low, max(high - e, 0)), 0, max(e - high, 0)) if e >= s else ((low, high), e, 0)
        for (low, high), e, s in zip(around, extra, strides, strict=True)
    ]
    sides, rest, beyond = zip(*triples, strict=True)
    return sides, rest, beyond


@unit(weights=("weight", "bias"))
def conv_transpose1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The transpose of `conv1d`: [N, C, L] with a weight [C, O/groups, K], to a longer result.

    `padding` is what the convolution would have had; `output_padding` adds to one side of the
    result, to choose among the sizes that the convolution would have mapped to this one.

    >>> import weft as wf
    >>> x = wf.tensor([[[1.0, 2.0]]])
    >>> wf.conv_transpose1d(x, wf.tensor([[[1.0, 1.0]]]), stride=2).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """
    op = "conv_transpose1d"
    return _conv_transpose(
        op, 1, x, weight, bias, stride, padding, output_padding, groups, dilation
    )


@unit(weights=("weight", "bias"))
def conv_transpose2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The transpose of `conv2d`; see `conv_transpose1d`.

    >>> import weft as wf
    >>> wf.conv_transpose2d(wf.ones((1, 3, 4, 4)), wf.ones((3, 2, 2, 2)), stride=2).shape
    (1, 2, 8, 8)
    """
    op = "conv_transpose2d"
    return _conv_transpose(
        op, 2, x, weight, bias, stride, padding, output_padding, groups, dilation
    )


@unit(weights=("weight", "bias"))
def conv_transpose3d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The transpose of `conv3d`; see `conv_transpose1d`.

    >>> import weft as wf
    >>> wf.conv_transpose3d(wf.ones((1, 1, 2, 2, 2)), wf.ones((1, 1, 2, 2, 2))).shape
    (1, 1, 3, 3, 3)
    """
    op = "conv_transpose3d"
    return _conv_transpose(
        op, 3, x, weight, bias, stride, padding, output_padding, groups, dilation
    )
