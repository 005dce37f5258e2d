"""Convolution in any number of spatial dimensions, and its two transposes.

All three primitives are one sum of products seen from its three sides. With x: [N, C, *size],
w: [O, C/groups, *kernel] and y: [N, O, *out], over everything:

    Σ y[n, o, p] · x[n, c, stride·p + dilation·k - padding] · w[o, c, k]

`conv` gives what stands beside y, `conv_input_gradient` what stands beside x and
`conv_weight_gradient` what stands beside w. So each is linear in its two operands, and its
transposes are the other two: the set is closed under derivatives. As in PyTorch the kernel is not
flipped (cross-correlation).

>>> import weft as wf
>>> wf.conv1d(wf.ones((1, 1, 4)), wf.ones((1, 1, 2))).tolist()
[[[2.0, 2.0, 2.0]]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from weft.core.errors import ArgumentError, DTypeError, ShapeError
from weft.core.shapes import Dimension, Shape, require_equal, size
from weft.core.types import TensorType
from weft.ir.batching import move_axis
from weft.ir.derivatives import linear
from weft.ir.dispatch import apply
from weft.ir.kinds import Contraction
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops import sharding_rules as shardings
from weft.ops.arithmetic import conj
from weft.ops.cumulative import is_narrow
from weft.ops.movement import is_below, reshape
from weft.ops.operands import DTYPE_CLASSES, wrong_dtype

__all__: list[str] = []

Array = np.ndarray[Any, Any]
Padding = tuple[tuple[int, int], ...]
CHUNK = 1 << 24
"""Bytes of unfolded input that the reference multiplies at a time."""


# --- types -------------------------------------------------------------------------------------


def window_count(
    dim: Dimension, width: Dimension, stride: int, sides: tuple[int, int], dilation: int
) -> Dimension:
    """How many windows of a width fit along an axis."""
    return (dim + sides[0] + sides[1] - dilation * (width - 1) - 1) // stride + 1


def window_counts(
    spatial: Shape, window: Shape, strides: Sequence[int], padding: Padding, dilation: Sequence[int]
) -> Any:
    """`window_count` of each axis; integers where all sizes are integers."""
    return tuple(map(window_count, spatial, window, strides, padding, dilation))


def check_windows(
    op: str,
    got: dict[str, object],
    spatial: Shape,
    window: Shape,
    strides: tuple[int, ...],
    padding: Padding,
    dilation: tuple[int, ...],
) -> Shape:
    """The number of windows along each axis; refuses parameters that make no sense."""
    rank = len(spatial)
    if not len(window) == len(strides) == len(padding) == len(dilation) == rank:
        raise _parameter_error(op, f"not one entry per spatial axis: there are {rank}", got)
    if any(step < 1 for step in (*strides, *dilation)) or any(width == 0 for width in window):
        raise _parameter_error(op, "kernel, stride and dilation must be positive", got)
    if any(low < 0 or high < 0 for low, high in padding):
        raise _parameter_error(op, "padding is negative", got)
    counts: Shape = window_counts(spatial, window, strides, padding, dilation)
    for axis, count in enumerate(counts):
        if is_below(count, 1):
            raise ShapeError(
                op,
                "the kernel is larger than the padded input",
                expected=f"at least {dilation[axis] * (int(window[axis]) - 1) + 1} elements"
                f" along spatial axis {axis}",
                got=got,
                note=f"{spatial[axis]} + {sum(padding[axis])} elements there",
                fix="pad the input, or use a smaller kernel or dilation",
            )
    return counts


def _parameter_error(op: str, problem: str, got: dict[str, object]) -> ArgumentError:
    return ArgumentError(
        op,
        problem,
        expected="one positive stride and dilation and one (low, high) padding per spatial axis",
        got=got,
        fix="stride=1, padding=0, dilation=1",
    )


def _check_operands(op: str, operands: dict[str, TensorType], groups: int) -> None:
    first, second = operands.values()
    if first.dtype is not second.dtype or first.dtype not in DTYPE_CLASSES["number"]:
        raise wrong_dtype(op, "number", {**operands})
    if first.ndim != second.ndim or first.ndim < 3:
        raise ShapeError(
            op,
            "operands do not have the same number of spatial axes",
            expected="two tensors of rank 2 + spatial axes: [batch, channels, *spatial]",
            got={**operands},
            fix="add the missing axis, for example x[None] for a batch of one",
        )
    if groups < 1:
        raise _parameter_error(op, "groups must be at least 1", {**operands, "groups": groups})


def _check_channels(
    op: str, got: dict[str, object], channels: Dimension, per_group: Dimension, groups: int
) -> None:
    require_equal(
        op,
        channels,
        per_group * groups,
        expected="input channels == weight.shape[1] * groups",
        got={**got, "groups": groups},
        fix=_channels_fix(next(iter(got.values())), channels, per_group * groups, groups),
        what="channels differ",
    )


def _channels_fix(x: Any, channels: Dimension, wanted: Dimension, groups: int) -> str:
    """What to write for other channels than the weight has; they may stand on the last axis."""
    if x.shape[-1] == wanted:
        order = ", ".join(map(str, (0, x.ndim - 1, *range(1, x.ndim - 1))))
        return f"channels stand on axis 1: x.permute({order})"
    if channels % groups == 0:
        return f"give the weight {channels // groups} input channels"
    return f"choose groups that divide the {channels} channels"


def _check_groups(op: str, got: dict[str, object], channels: Dimension, groups: int) -> None:
    if isinstance(channels, int) and channels % groups:
        raise ShapeError(
            op,
            "channels do not divide into groups",
            expected=f"a multiple of {groups} channels",
            got={**got, "groups": groups},
            note=f"{channels} % {groups} == {channels % groups}",
            fix="groups=1, or another number of channels",
        )


def _conv_type(
    x: TensorType,
    w: TensorType,
    strides: tuple[int, ...],
    padding: Padding,
    dilation: tuple[int, ...],
    groups: int,
) -> TensorType:
    _check_operands("conv", {"x": x, "weight": w}, groups)
    got: dict[str, object] = {"x": x, "weight": w}
    _check_channels("conv", got, x.shape[1], w.shape[1], groups)
    _check_groups("conv", got, w.shape[0], groups)
    counts = check_windows("conv", got, x.shape[2:], w.shape[2:], strides, padding, dilation)
    return x.with_shape((x.shape[0], w.shape[0], *counts))


def _input_type(
    y: TensorType,
    w: TensorType,
    spatial: Shape,
    strides: tuple[int, ...],
    padding: Padding,
    dilation: tuple[int, ...],
    groups: int,
) -> TensorType:
    op = "conv_input_gradient"
    _check_operands(op, {"y": y, "weight": w}, groups)
    got: dict[str, object] = {"y": y, "weight": w, "spatial": spatial}
    _check_groups(op, got, w.shape[0], groups)
    counts = check_windows(op, got, spatial, w.shape[2:], strides, padding, dilation)
    _check_counts(op, got, y.shape[1:], (w.shape[0], *counts))
    return y.with_shape((y.shape[0], w.shape[1] * groups, *spatial))


def _weight_type(
    x: TensorType,
    y: TensorType,
    kernel: Shape,
    strides: tuple[int, ...],
    padding: Padding,
    dilation: tuple[int, ...],
    groups: int,
) -> TensorType:
    op = "conv_weight_gradient"
    _check_operands(op, {"x": x, "y": y}, groups)
    got: dict[str, object] = {"x": x, "y": y, "kernel": kernel}
    _check_groups(op, got, x.shape[1], groups)
    _check_groups(op, got, y.shape[1], groups)
    counts = check_windows(op, got, x.shape[2:], kernel, strides, padding, dilation)
    _check_counts(op, got, (y.shape[0], *y.shape[2:]), (x.shape[0], *counts))
    return x.with_shape((y.shape[1], x.shape[1] // groups, *kernel))


def _check_counts(op: str, got: dict[str, object], found: Shape, wanted: Shape) -> None:
    for a, b in zip(found, wanted, strict=True):
        require_equal(
            op,
            a,
            b,
            expected="y of the shape that conv would give: channels and window counts",
            got=got,
            fix=f"use y with sizes {wanted}",
            what="y is not a result of this convolution",
        )


# --- references --------------------------------------------------------------------------------


def pad_array(x: Array, padding: Padding, value: Any = 0) -> Array:
    """The array with a constant around its last axes."""
    if not any(map(any, padding)):
        return x
    lead = x.ndim - len(padding)
    sides = [(0, 0)] * lead + list(padding)
    out = np.full([d + sum(s) for d, s in zip(x.shape, sides, strict=True)], value, x.dtype)
    out[tuple(slice(low, low + d) for d, (low, _) in zip(x.shape, sides, strict=True))] = x
    return out


def crop_padding(x: Array, spatial: Sequence[int], padding: Padding) -> Array:
    """The array without the padding around its last axes."""
    inside: list[Any] = [slice(low, low + d) for d, (low, _) in zip(spatial, padding, strict=True)]
    return x[(..., *inside)]


def windows(
    x: Array,
    window: Sequence[int],
    counts: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> Array:
    """A view [..., *window, *counts] of a padded array: element k of window p, along each axis."""
    lead = x.ndim - len(window)
    steps = x.strides[lead:]  # bytes from one element to the next
    within = [step * d for step, d in zip(steps, dilation, strict=True)]
    between = [step * s for step, s in zip(steps, strides, strict=True)]
    return np.lib.stride_tricks.as_strided(
        x,
        (*x.shape[:lead], *window, *counts),
        (*x.strides[:lead], *within, *between),
        writeable=False,
    )


def positions(
    window: Sequence[int],
    counts: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...]]]:
    """Each element k of a window, with the slice of a padded array that holds it for all windows.

    The slice has the shape [..., *counts].
    """
    for k in product(*map(range, window)):
        starts = [i * d for i, d in zip(k, dilation, strict=True)]
        spans = zip(starts, strides, counts, strict=True)
        yield k, (..., *[slice(i, i + s * (n - 1) + 1, s) for i, s, n in spans])


def _in_float32(reference: Callable[..., Any]) -> Callable[..., Any]:
    """16-bit floats are multiplied and added in float32."""

    def wide_reference(a: Array, b: Array, **params: Any) -> Any:
        if is_narrow(a.dtype):
            return reference(a.astype(np.float32), b.astype(np.float32), **params).astype(a.dtype)
        return reference(a, b, **params)

    return wide_reference


def _chunks(count: int, bytes_each: int) -> Iterator[slice]:
    step = max(1, CHUNK // max(bytes_each, 1))
    for start in range(0, count, step):
        yield slice(start, start + step)


@_in_float32
def _conv(x: Array, w: Array, strides: Any, padding: Padding, dilation: Any, groups: int) -> Array:
    kernel = w.shape[2:]
    counts = window_counts(x.shape[2:], kernel, strides, padding, dilation)
    out = np.zeros((len(x), groups, w.shape[0] // groups, prod(counts)), x.dtype)
    # [groups, O / groups, C / groups · kernel]
    matrix = w.reshape(groups, w.shape[0] // groups, -1 if w.size else 0)
    depth = matrix.shape[-1]
    for part in _chunks(len(x) if depth else 0, groups * depth * prod(counts) * x.itemsize):
        # [n, C, *kernel, *counts], copied to [n, groups, C / groups · kernel, out]
        view = windows(pad_array(x[part], padding), kernel, counts, strides, dilation)
        columns = view.reshape(len(view), groups, depth, prod(counts))
        np.matmul(matrix, columns, out=out[part])
    return out.reshape(len(x), w.shape[0], *counts)


@_in_float32
def _input_gradient(
    y: Array, w: Array, spatial: Any, strides: Any, padding: Padding, dilation: Any, groups: int
) -> Array:
    kernel, counts = w.shape[2:], y.shape[2:]
    channels = w.shape[1] * groups
    full = [d + low + high for d, (low, high) in zip(spatial, padding, strict=True)]
    out = np.zeros((len(y), channels, *full), y.dtype)
    # [groups, C / groups · kernel, O / groups]
    matrix = w.reshape(groups, w.shape[0] // groups, w.shape[1] * prod(kernel)).swapaxes(1, 2)
    for part in _chunks(len(y), channels * prod(kernel) * prod(counts) * y.itemsize):
        images = len(y[part])
        stack = y[part].reshape(images, groups, w.shape[0] // groups, prod(counts))
        columns = np.matmul(matrix, stack).reshape(images, channels, *kernel, *counts)
        # Windows overlap, so each element of the kernel adds to its places in turn.
        for k, place in positions(kernel, counts, strides, dilation):
            out[part][place] += columns[(slice(None), slice(None), *k)]
    return crop_padding(out, spatial, padding)


@_in_float32
def _weight_gradient(
    x: Array, y: Array, kernel: Any, strides: Any, padding: Padding, dilation: Any, groups: int
) -> Array:
    counts = y.shape[2:]
    per_group = x.shape[1] // groups
    depth = per_group * prod(kernel)
    out = np.zeros((groups, y.shape[1] // groups, depth), x.dtype)
    for part in _chunks(len(x), groups * depth * prod(counts) * x.itemsize):
        view = windows(pad_array(x[part], padding), kernel, counts, strides, dilation)
        places = len(view) * prod(counts)
        # [n, C, *kernel, *counts] -> [C, *kernel, n, *counts] -> [groups, depth, n · out]
        columns = np.moveaxis(view, 0, 1 + len(kernel)).reshape(groups, depth, places)
        # [n, O, *counts] -> [O, n, *counts] -> [groups, O / groups, n · out]
        rows = np.moveaxis(y[part], 0, 1).reshape(groups, y.shape[1] // groups, places)
        out += np.matmul(rows, columns.swapaxes(1, 2))
    return out.reshape(y.shape[1], per_group, *kernel)


# --- derivatives -------------------------------------------------------------------------------


def _conj(x: Tensor) -> Tensor:
    return conj(x) if x.dtype.is_complex else x


def _to_input(y: Tensor, w: Tensor, x: Tensor, **params: Any) -> Tensor:
    return apply(conv_input_gradient, y, w, spatial=x.shape[2:], **params)


def _to_weight(x: Tensor, y: Tensor, w: Tensor, **params: Any) -> Tensor:
    return apply(conv_weight_gradient, x, y, kernel=w.shape[2:], **params)


# --- batching ----------------------------------------------------------------------------------

_CHANNEL_AXIS = {"x": 1, "w": 0, "y": 1}
_SHARED = {  # the index that two of x, w and y share: its axis in each, and whether it has groups
    "xy": {"x": (0, False), "y": (0, False)},
    "xw": {"x": (1, True), "w": (1, False)},
    "wy": {"w": (0, True), "y": (1, True)},
}


def _fold_batch(x: Tensor, batch: int, axis: int, groups: int) -> Tensor:
    """The batch axis merged into another axis, inside its groups: [g, a] -> [g, batch, a]."""
    front = move_axis(x, batch, 0)
    size, shape = front.shape[0], front.shape[1:]
    # [batch, ..., groups · a, ...] -> [batch, ..., groups, a, ...] -> [..., groups, batch, a, ...]
    split_shape = (size, *shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])
    batch_in_groups = move_axis(apply(reshape, front, shape=split_shape), 0, axis + 1)
    merged_shape = (*shape[:axis], shape[axis] * size, *shape[axis + 1 :])
    return apply(reshape, batch_in_groups, shape=merged_shape)


def _unfold_batch(x: Tensor, size: Dimension, axis: int, groups: int) -> Tensor:
    """The inverse of `_fold_batch`, with the batch axis in front."""
    rest = x.shape[axis] // (size * groups)
    # [..., groups · batch · a, ...] -> [..., groups, batch, a, ...] -> [batch, ..., groups, a, ...]
    split_shape = (*x.shape[:axis], groups, size, rest, *x.shape[axis + 1 :])
    front = move_axis(apply(reshape, x, shape=split_shape), axis + 1, 0)
    merged_shape = (size, *x.shape[:axis], groups * rest, *x.shape[axis + 1 :])
    return apply(reshape, front, shape=merged_shape)


def _batch(
    primitive_of: Callable[[], Primitive],
    roles: str,
    size: Dimension,
    operands: tuple[Tensor, ...],
    places: tuple[int | None, ...],
    /,
    **params: Any,
) -> tuple[Tensor, int]:
    """The batch axis as a part of one that the convolution has anyway.

    Where one operand has a batch, that is the axis which it shares with the result; where both
    have one, each element of the batch is a group of its own. `roles` names what the two operands
    and the result are.
    """
    groups, result = params["groups"], roles[2]
    axes = {role: (axis, 1) for role, axis in _CHANNEL_AXIS.items()}
    if None in places:
        role = roles[0] if places[0] is not None else roles[1]
        shared = _SHARED["".join(sorted(role + result, key="xwy".index))]
        axes = {
            name: (axis, groups if has_groups else 1) for name, (axis, has_groups) in shared.items()
        }
    else:
        params = {**params, "groups": size * groups}
    folded = [
        x if place is None else _fold_batch(x, place, *axes[role])
        for x, place, role in zip(operands, places, roles[:2], strict=True)
    ]
    return _unfold_batch(apply(primitive_of(), *folded, **params), size, *axes[result]), 0


# --- samples -----------------------------------------------------------------------------------

_CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 3, 5), (4, 3, 2), {"strides": (1,), "padding": ((0, 0),), "dilation": (1,), "groups": 1}),
    ((1, 4, 7), (2, 2, 3), {"strides": (2,), "padding": ((1, 2),), "dilation": (2,), "groups": 2}),
    (
        (2, 2, 4, 5),
        (4, 1, 3, 2),
        {"strides": (2, 1), "padding": ((1, 1), (0, 1)), "dilation": (1, 2), "groups": 2},
    ),
    (
        (1, 1, 3, 3, 4),
        (2, 1, 2, 1, 3),
        {
            "strides": (1, 2, 1),
            "padding": ((0, 0), (1, 0), (0, 0)),
            "dilation": (1, 1, 1),
            "groups": 1,
        },
    ),
    ((0, 2, 4), (3, 2, 2), {"strides": (1,), "padding": ((0, 0),), "dilation": (1,), "groups": 1}),
)


def _samples(roles: str) -> list[Sample]:
    """The cases with the operands that a primitive takes."""
    samples = []
    for number, (x, w, params) in enumerate(_CASES):
        y = _shape_of_y(x, w, params)
        shapes = {"x": x, "w": w, "y": y}
        extra = {"y": {}, "x": {"spatial": x[2:]}, "w": {"kernel": w[2:]}}[roles[2]]
        generator = np.random.default_rng(number)
        operands = [generator.normal(size=shapes[r]).astype(np.float32) for r in roles[:2]]
        samples.append(Sample(tuple(operands), {**extra, **params}))
    complex_operands = tuple((x * (1 + 0.5j)).astype(np.complex64) for x in samples[0].operands)
    return [*samples, Sample(complex_operands, samples[0].params)]


def _shape_of_y(x: tuple[int, ...], w: tuple[int, ...], params: dict[str, Any]) -> tuple[int, ...]:
    sizes = {name: value for name, value in params.items() if name != "groups"}
    return (x[0], w[0], *window_counts(x[2:], w[2:], **sizes))


def _mistakes() -> list[Mistake]:
    x, w = np.ones((1, 4, 5), np.float32), np.ones((2, 4, 3), np.float32)
    plain = {"strides": (1,), "padding": ((0, 0),), "dilation": (1,), "groups": 1}
    return [
        Mistake((x, w[:, :3]), plain, ShapeError, "channels differ"),
        Mistake((x, w.astype(int)), plain, DTypeError, "not defined"),
        Mistake((x[0], w), plain, ShapeError, "spatial axes"),
        Mistake((x[..., :2], w), plain, ShapeError, "larger than the padded input"),
        Mistake((x, w), {**plain, "strides": (0,)}, ArgumentError, "must be positive"),
        Mistake((x, w), {**plain, "padding": ((-1, 0),)}, ArgumentError, "negative"),
        Mistake((x, w[:1, :2]), {**plain, "groups": 2}, ShapeError, "divide into groups"),
    ]


# --- the three sides ---------------------------------------------------------------------------


def _operations(result: TensorType, weight: TensorType) -> Dimension:
    """Two for each element of a convolution's result and of a window's weights."""
    return 2 * result.size * size(weight.shape[1:])


conv: Primitive = Primitive(
    "conv",
    "Cross-correlation of x: [N, C, *size] with w: [O, C/groups, *kernel], to [N, O, *out].",
    kind=Contraction(
        lambda operands, results, params: _operations(results[0], operands[1]),
        "convolution",
    ),
    sharding=shardings.of_convolution("xwy"),
    type_rule=_conv_type,
    reference=_conv,
    derivatives=[
        linear(lambda ct, x, w, **params: _to_input(ct, _conj(w), x, **params)),
        linear(lambda ct, x, w, **params: _to_weight(_conj(x), ct, w, **params)),
    ],
    batch=partial(_batch, lambda: conv, "xwy"),
    samples=lambda: _samples("xwy"),
    mistakes=_mistakes,
)

conv_input_gradient: Primitive = Primitive(
    "conv_input_gradient",
    "The transpose of conv in its input: y: [N, O, *out] and w to [N, C, *spatial].",
    kind=Contraction(
        lambda operands, results, params: _operations(operands[0], operands[1]),
        "convolution",
    ),
    sharding=shardings.of_convolution("ywx"),
    type_rule=_input_type,
    reference=_input_gradient,
    derivatives=[
        linear(lambda ct, y, w, spatial, **params: apply(conv, ct, _conj(w), **params)),
        linear(lambda ct, y, w, spatial, **params: _to_weight(ct, _conj(y), w, **params)),
    ],
    batch=partial(_batch, lambda: conv_input_gradient, "ywx"),
    samples=lambda: _samples("ywx"),
)

conv_weight_gradient: Primitive = Primitive(
    "conv_weight_gradient",
    "The transpose of conv in its kernel: x and y: [N, O, *out] to [O, C/groups, *kernel].",
    kind=Contraction(
        lambda operands, results, params: _operations(operands[1], results[0]),
        "convolution",
    ),
    sharding=shardings.of_convolution("xyw"),
    type_rule=_weight_type,
    reference=_weight_gradient,
    derivatives=[
        linear(lambda ct, x, y, kernel, **params: _to_input(_conj(y), ct, x, **params)),
        linear(lambda ct, x, y, kernel, **params: apply(conv, _conj(x), ct, **params)),
    ],
    batch=partial(_batch, lambda: conv_weight_gradient, "xyw"),
    samples=lambda: _samples("xyw"),
)
