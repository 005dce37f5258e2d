"""What bulk copies of windows take, and what the kernels that use them compute, by NumPy."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from weft.compiler.targets.cuda.convolution.implicit import Geometry
from weft.compiler.targets.cuda.convolution.sizes import WEIGHT_GRADIENT
from weft.compiler.targets.cuda.products.description import ProductSpec
from weft.core.records import frozen

Array = np.ndarray[Any, Any]


@frozen
class WindowTable:
    """A map of windows: sizes and strides from the channels to the images, corners of places."""

    sizes: tuple[int, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]
    element_strides: tuple[int, ...] = ()

    def view(self, flat: Array) -> Array:
        """The array [images, *size, channels] that lies in flat memory as the strides say."""
        item = flat.itemsize
        strides = [item * count for count in (1, *self.element_strides)]
        shape = self.sizes[::-1]
        last = sum((dim - 1) * step // item for dim, step in zip(self.sizes, strides, strict=True))
        assert last < flat.size, "windows reach beyond the memory"
        return np.lib.stride_tricks.as_strided(flat, shape, strides[::-1], writeable=False)

    def places(self) -> Array:
        """The places [N·counts, axes], from the first axis to the last, that copies go through."""
        found = [
            np.arange(low, size + high, step)
            for low, high, size, step in zip(
                self.lower, self.upper, self.sizes[1:-1], self.steps[1:-1], strict=True
            )
        ]
        lines = [np.arange(self.sizes[-1]), *reversed(found)]
        return np.stack([each.ravel() for each in np.meshgrid(*lines, indexing="ij")], axis=1)

    def tap(self, data: Array, offsets: tuple[int, ...]) -> Array:
        """What a copy with offsets (last axis first) takes of all places, zeros outside."""
        places = self.places()
        at = places[:, 1:] + np.array(offsets[::-1])
        limits = np.array(self.sizes[1:-1][::-1])
        inside = ((at >= 0) & (at < limits)).all(axis=1)
        clipped = np.clip(at, 0, limits - 1)
        taken = data[(places[:, 0], *clipped.T)]
        return np.where(inside[:, None], taken, np.float32(0))


def product_shapes(
    geometry: Geometry, spec: ProductSpec, words: dict[str, int], table: WindowTable
) -> dict[str, tuple[int, ...]]:
    """The shapes of the operands and of the result."""
    m, n = words["m"], words["n"]
    images = table.sizes[::-1]
    if geometry.direction == WEIGHT_GRADIENT:
        return {"a": (len(table.places()), m), "b": images, "out": (words.get("batch", 1), m, n)}
    taps = int(np.prod([axis.kernel for axis in geometry.axes]))
    outputs, channels = (n, images[-1]) if spec.transpose_b else (images[-1], n)
    return {"a": images, "b": (outputs, taps, channels), "out": (words.get("batch", 1), m, n)}


def window_product(
    geometry: Geometry,
    spec: ProductSpec,
    words: dict[str, int],
    table: WindowTable,
    a: Array,
    b: Array,
) -> Array:
    """What a kernel computes of float32 operands, by the map of windows it was given."""
    m, n, images = words["m"], words["n"], table.sizes[::-1]
    counts = [words[f"count{k}"] for k in range(len(images) - 2)]
    assert len(table.places()) == images[0] * np.prod(counts)
    axes = geometry.axes[::-1]
    if geometry.direction == WEIGHT_GRADIENT:
        padded, parts = words["blocks"] * 64, words.get("batch", 1)
        length = words["run"] * 64 if parts > 1 else len(a)
        assert (parts - 1) * length < len(a) <= parts * length
        out = np.zeros((parts, m, n // padded, padded), np.float32)
        for number, taps in enumerate(product(*(range(axis.kernel) for axis in axes))):
            offsets = [tap * axis.steps[1] for tap, axis in zip(taps, axes, strict=True)]
            taken = table.tap(b, tuple(reversed(offsets)))
            for part in range(parts):
                rows = slice(part * length, (part + 1) * length)
                out[part, :, number, : images[-1]] = a[rows].T @ taken[rows]
        return out.reshape(parts, m, n)
    kernel = [axis.kernel for axis in axes]
    results = []
    for phase in product(*(range(len(axis.counts)) for axis in axes)):
        choices = [
            [
                (axis.first_taps[own] + k * axis.steps[0],
                 axis.first_offsets[own] + k * axis.steps[1])
                for k in range(axis.counts[own])
            ]
            for axis, own in zip(axes, phase, strict=True)
        ]  # fmt: skip
        total = np.zeros((m, n), np.float32)
        for chosen in product(*choices):
            tap = np.ravel_multi_index([each[0] for each in chosen], kernel)
            taken = table.tap(a, tuple(each[1] for each in reversed(chosen)))
            total += taken @ (b[:, tap].T if spec.transpose_b else b[:, tap])
        results.append(total)
    return np.stack(results)
