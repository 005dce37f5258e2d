"""Patches of images as columns, columns put back, and pooled values put back where they came from.

>>> import weft as wf
>>> image = wf.arange(9.0).reshape(1, 1, 3, 3)
>>> unfold(image, 2).shape
(1, 4, 4)
>>> fold(unfold(image, 2), (3, 3), 2).tolist()[0][0][1]  # the centre is in four patches
[6.0, 16.0, 10.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import weft as wf
from weft.eager import unit

Sizes = int | Sequence[int]


def _per_axis(op: str, name: str, value: Sizes, rank: int, least: int) -> tuple[int, ...]:
    """One number for each spatial axis."""
    sizes = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(sizes) != rank or any(type(size) is not int or size < least for size in sizes):
        raise wf.ArgumentError(
            op,
            f"{name} is not one number for each spatial axis",
            expected=f"an integer of at least {least}, or {rank} of them",
            got={name: value},
            fix=f"{name}={max(least, 1)}",
        )
    return sizes


def _with_batch(op: str, x: wf.Tensor, axes: int, expected: str) -> tuple[wf.Tensor, bool]:
    """The tensor with a batch axis, and whether it was added."""
    if x.ndim not in (axes - 1, axes):
        raise wf.ShapeError(
            op,
            f"the input has {x.ndim} axes",
            expected=expected,
            got={"x": x},
            fix="give it axes for batch and channels: x[None, None]",
        )
    return (x, False) if x.ndim == axes else (wf.expand_dims(x, axis=0), True)


def _places(size: int, kernel: int, dilation: int, padding: int, stride: int) -> wf.Tensor | None:
    """Where the elements of patches lie on a padded axis: [kernel, count]; None where none fits."""
    count = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    if count < 1:
        return None
    return wf.arange(kernel)[:, None] * dilation + wf.arange(count) * stride


def _image_places(
    op: str, image: tuple[int, int], kernel_size: Sizes, dilation: Sizes, padding: Sizes,
    stride: Sizes,
) -> tuple[wf.Tensor, wf.Tensor, tuple[int, ...]]:  # fmt: skip
    """Rows [rows of kernel, 1, rows of patches, 1], columns likewise, and the padding."""
    kernel, step = (_per_axis(op, n, v, 2, 1) for n, v in (("kernel_size", kernel_size),
                                                             ("stride", stride)))  # fmt: skip
    spread = _per_axis(op, "dilation", dilation, 2, 1)
    edges = _per_axis(op, "padding", padding, 2, 0)
    rows, columns = (
        _places(*each) for each in zip(image, kernel, spread, edges, step, strict=True)
    )
    if rows is None or columns is None:
        raise wf.ArgumentError(
            op,
            "a patch is larger than the image",
            expected=f"patches within {image[0]} × {image[1]} and the padding",
            got={"kernel_size": kernel_size, "dilation": dilation, "padding": padding},
            fix="kernel_size=1",
        )
    return rows[:, None, :, None], columns[None, :, None, :], edges


@unit
def unfold(
    x: wf.Tensor,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> wf.Tensor:
    """Patches of images as columns: [N, C, H, W] -> [N, C · rows · columns, patches].

    Windows along one axis of a tensor are `wf.unfold`.

    >>> unfold(wf.arange(4.0).reshape(1, 1, 2, 2), 2).tolist()
    [[[0.0], [1.0], [2.0], [3.0]]]
    """
    x, alone = _with_batch("unfold", x, 4, "x: [batch, channels, height, width]")
    image = int(x.shape[2]), int(x.shape[3])
    rows, columns, edges = _image_places("unfold", image, kernel_size, dilation, padding, stride)
    padded = wf.pad(x, [(0, 0), (0, 0), *((edge, edge) for edge in edges)])
    patches = padded[:, :, rows, columns]  # [batch, channels, *kernel, *positions]
    height, width = patches.shape[2] * patches.shape[3], patches.shape[4] * patches.shape[5]
    out = wf.reshape(patches, (x.shape[0], x.shape[1] * height, width))
    return wf.squeeze(out, axis=0) if alone else out


@unit
def fold(
    x: wf.Tensor,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> wf.Tensor:
    """Columns put back as patches of images and added where they overlap: the way back of `unfold`.

    >>> fold(wf.ones((1, 4, 4)), (3, 3), 2).tolist()
    [[[[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]]]
    """
    x, alone = _with_batch("fold", x, 3, "x: [batch, channels · kernel, patches]")
    height, width = _per_axis("fold", "output_size", output_size, 2, 1)
    size = (height, width)
    rows, columns, edges = _image_places("fold", size, kernel_size, dilation, padding, stride)
    kernel = rows.shape[0], columns.shape[1]
    positions = rows.shape[2], columns.shape[3]
    if x.shape[1] % prod(kernel) or x.shape[2] != prod(positions):
        raise wf.ShapeError(
            "fold",
            "the columns are not the patches of such an image",
            expected=f"[batch, channels · {prod(kernel)}, {prod(positions)}]",
            got={"x": x, "output_size": output_size, "kernel_size": kernel_size},
            fix="give the options that the columns were made with by unfold",
        )
    channels = x.shape[1] // prod(kernel)
    patches = wf.reshape(x, (x.shape[0], channels, *kernel, *positions))
    canvas = wf.zeros(
        (height + 2 * edges[0], width + 2 * edges[1], x.shape[0], channels), dtype=x.dtype
    )
    updates = wf.permute_dims(patches, (2, 3, 4, 5, 0, 1))  # [*kernel, *positions, batch, channels]
    summed = wf.index_put(canvas, (rows, columns), updates, accumulate=True)
    inside = summed[edges[0] : edges[0] + height, edges[1] : edges[1] + width]
    out = wf.permute_dims(inside, (2, 3, 0, 1))
    return wf.squeeze(out, axis=0) if alone else out


# --- pooled values put back --------------------------------------------------------------------


def _unpool(
    rank: int, x: wf.Tensor, indices: wf.Tensor, kernel_size: Sizes, stride: Sizes | None,
    padding: Sizes, output_size: Sequence[int] | None,
) -> wf.Tensor:  # fmt: skip
    op = f"max_unpool{rank}d"
    shape = f"x: [batch, channels, {rank} spatial axes]"
    x, alone = _with_batch(op, x, rank + 2, shape)
    places = wf.expand_dims(indices, axis=0) if alone else indices
    kernel = _per_axis(op, "kernel_size", kernel_size, rank, 1)
    step = kernel if stride is None else _per_axis(op, "stride", stride, rank, 1)
    edges = _per_axis(op, "padding", padding, rank, 0)
    sizes = [
        (int(dim) - 1) * hop - 2 * edge + width
        for dim, hop, edge, width in zip(x.shape[2:], step, edges, kernel, strict=True)
    ]
    if output_size is not None:
        sizes = list(_per_axis(op, "output_size", tuple(output_size)[-rank:], rank, 1))
    lines = wf.reshape(x, (*x.shape[:2], prod(map(int, x.shape[2:]))))
    canvas = wf.zeros((*x.shape[:2], prod(sizes)), dtype=x.dtype)
    filled = wf.scatter(canvas, -1, wf.reshape(places, lines.shape), lines)
    out = wf.reshape(filled, (*x.shape[:2], *sizes))
    return wf.squeeze(out, axis=0) if alone else out


def max_unpool1d(
    x: wf.Tensor,
    indices: wf.Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> wf.Tensor:
    """Values put back to where `max_pool1d(return_indices=True)` found them, zeros elsewhere.

    >>> y, places = wf.max_pool1d(wf.tensor([[[1.0, 3.0, 2.0, 0.0]]]), 2, return_indices=True)
    >>> max_unpool1d(y, places, 2).tolist()
    [[[0.0, 3.0, 2.0, 0.0]]]
    """
    return _unpool(1, x, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    x: wf.Tensor,
    indices: wf.Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> wf.Tensor:
    """Values put back to where `max_pool2d(return_indices=True)` found them, zeros elsewhere.

    >>> y, places = wf.max_pool2d(wf.eye(2)[None, None], 2, return_indices=True)
    >>> max_unpool2d(y, places, 2).tolist()
    [[[[1.0, 0.0], [0.0, 0.0]]]]
    """
    return _unpool(2, x, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    x: wf.Tensor,
    indices: wf.Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> wf.Tensor:
    """Values put back to where `max_pool3d(return_indices=True)` found them, zeros elsewhere."""
    return _unpool(3, x, indices, kernel_size, stride, padding, output_size)
