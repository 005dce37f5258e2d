"""Convolutions that a card must compute exactly, whether it is a real one or one of the host's.

Operands are small whole numbers, so that every sum is exact in float32, and results differ from the
reference's in nothing but what is rounded to 16 bits at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import weft as wf
from weft.core.dtypes import as_dtype
from weft.core.records import frozen
from weft.ops.convolution import conv, conv_input_gradient, conv_weight_gradient

Array = np.ndarray[Any, Any]


@frozen(slots=False)
class Case:
    """A convolution of images [images, channels, *size] with so many outputs."""

    images: int
    channels: int
    outputs: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the primitive."""
        return {
            "strides": self.stride, "padding": self.padding, "dilation": self.dilation,
            "groups": self.groups,
        }  # fmt: skip


def square(
    images: int, channels: int, outputs: int, size: int, kernel: int,
    stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1,
) -> Case:  # fmt: skip
    """A convolution that is the same along both axes."""
    return Case(
        images, channels, outputs, (size, size), (kernel, kernel), (stride, stride),
        ((padding, padding),) * 2, (dilation, dilation), groups,
    )  # fmt: skip


CASES = {
    "one image": square(1, 64, 64, 5, 3, padding=1),
    "less than a tile": square(2, 64, 32, 4, 3),
    "just more than a tile": square(3, 64, 72, 7, 3, padding=1),
    "two blocks of channels": square(2, 128, 64, 6, 3, padding=1),
    "channels that fill no block": square(2, 72, 40, 6, 3, padding=1),
    "few channels of a block": square(2, 32, 136, 6, 3, padding=1),
    "odd outputs": square(2, 64, 37, 5, 3, padding=1),
    "a stride of 2": square(2, 64, 64, 8, 3, stride=2, padding=1),
    "a stride of 2 of odd sizes": square(2, 64, 64, 7, 3, stride=2, padding=1),
    "a stride that leaves elements": square(2, 64, 64, 9, 2, stride=3),
    "a stride of 3": square(2, 64, 64, 10, 5, stride=3, padding=2),
    "single elements with a stride": square(2, 64, 128, 7, 1, stride=2),
    "single elements": square(2, 64, 72, 5, 1),
    "single elements with padding": square(2, 64, 64, 5, 1, padding=1),
    "holes": square(2, 64, 64, 9, 3, padding=2, dilation=2),
    "holes and a stride": square(2, 64, 64, 9, 3, stride=2, padding=2, dilation=2),
    "holes and another stride": square(2, 64, 64, 11, 3, stride=2, padding=3, dilation=3),
    "a kernel as large as the image": square(3, 64, 64, 5, 5),
    "more padding than the kernel": square(1, 64, 64, 3, 3, padding=4),
    "seven taps": square(1, 32, 64, 15, 7, stride=2, padding=3),
    "one channel": square(2, 1, 8, 6, 3, padding=1),
    "three channels": square(2, 3, 64, 9, 7, stride=2, padding=3),
    "axes that differ": Case(
        2, 64, 64, (5, 9), (3, 2), (1, 2), ((1, 0), (0, 3)), (1, 2)
    ),
    "a row of places longer than a tile": Case(
        1, 64, 64, (2, 200), (1, 3), (1, 1), ((0, 0), (1, 1)), (1, 1)
    ),
    "one axis": Case(3, 64, 64, (33,), (3,), (2,), ((1, 2),), (1,)),
    "three axes": Case(
        1, 64, 64, (4, 3, 5), (2, 3, 2), (1, 1, 2), ((1, 0), (1, 1), (0, 1)), (1, 1, 1)
    ),
    "each channel alone": square(3, 72, 72, 7, 3, padding=1, groups=72),
    "each channel alone with a stride": square(2, 16, 16, 8, 3, 2, 1, groups=16),
    "each channel alone with holes": square(2, 5, 5, 9, 3, 2, 3, 2, groups=5),
    "each channel alone along one axis": Case(
        2, 12, 12, (21,), (4,), (1,), ((3, 0),), (1,), groups=12
    ),
    "groups": square(2, 32, 64, 5, 3, padding=1, groups=4),
    "sums in parts": square(4, 64, 64, 24, 3, padding=1),
}  # fmt: skip


def _whole_numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def check_convolution(case: Case, dtype: str = "bfloat16") -> None:
    """The convolution and both gradients on the card have the reference's numbers."""
    x = _whole_numbers(0, case.images, case.channels, *case.size)
    w = _whole_numbers(1, case.outputs, case.channels // case.groups, *case.kernel)
    y = conv.reference(x, w, **case.params)
    ct = _whole_numbers(2, *y.shape)
    params = {**case.params}
    wanted = (
        y,
        conv_input_gradient.reference(ct, w, spatial=case.size, **params),
        conv_weight_gradient.reference(x, ct, kernel=case.kernel, **params),
    )

    def all_three(x: wf.Tensor, w: wf.Tensor, ct: wf.Tensor) -> Any:
        def loss(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
            y = wf.ir.dispatch.bind(conv, x, w, **case.params)
            return (y * ct).astype("float32").sum()

        return wf.ir.dispatch.bind(conv, x, w, **case.params), *wf.grad(loss, argnums=(0, 1))(x, w)

    moved = [wf.asarray(array).astype(dtype).to("cuda") for array in (x, w, ct)]
    found = wf.jit(all_three)(*moved)
    for name, result, array in zip(("y", "dx", "dw"), found, wanted, strict=True):
        rounded = array.astype(as_dtype(dtype).numpy).astype(np.float32)
        np.testing.assert_array_equal(result.astype("float32").numpy(), rounded, err_msg=name)
