"""Convolutions and pooling with channels last: what the layout pass makes of those of a program.

x is [N, *size, C] and y [N, *out, O]; weights stay [O, C/groups, *kernel].

>>> import numpy as np
>>> conv_last.reference(np.ones((1, 4, 1)), np.ones((1, 1, 2)), **PLAIN)[0, :, 0].tolist()
[2.0, 2.0, 2.0]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.errors import Unsupported
from weft.core.types import TensorType
from weft.ir.kinds import Window
from weft.ir.primitive import Primitive, Sample
from weft.ops.convolution import conv, conv_input_gradient, conv_weight_gradient, window_counts
from weft.ops.windows import window_argmax

Array = np.ndarray[Any, Any]
PLAIN: dict[str, Any] = {"strides": (1,), "padding": ((0, 0),), "dilation": (1,), "groups": 1}
"""The parameters of a convolution along one axis."""
WITH_CHANNELS_LAST: dict[Primitive, tuple[Primitive, tuple[bool, bool], bool]] = {}
"""For each convolution the one with channels last, which operands have channels, and whether the
result does."""
CHANNELS_LAST: set[Primitive] = set()
"""Those with channels last."""
_REASON = Unsupported("it stands in compiled programs only, after derivatives and batching")


def to_last(ndim: int) -> tuple[int, ...]:
    """The order of axes that puts channels last."""
    return (0, *range(2, ndim), 1)


def to_first(ndim: int) -> tuple[int, ...]:
    """The order of axes that puts channels second."""
    return (0, ndim - 1, *range(1, ndim - 1))


def _type_with_channels_first(kind: TensorType) -> TensorType:
    return kind.with_shape(tuple(kind.shape[axis] for axis in to_first(kind.ndim)))


def _channels_last_type(kind: Any) -> TensorType:
    return kind.with_shape(tuple(kind.shape[axis] for axis in to_last(kind.ndim)))  # type: ignore[no-any-return]


def _channels_first_array(array: Array) -> Array:
    return array.transpose(to_first(array.ndim))


def _channels_last_array(array: Array) -> Array:
    return np.ascontiguousarray(array.transpose(to_last(array.ndim)))


def _samples(primitive: Primitive, turned: tuple[bool, bool]) -> list[Sample]:
    """The samples of the primitive with channels second."""
    return [
        Sample(
            tuple(
                _channels_last_array(array) if turn else array
                for array, turn in zip(each.operands, turned, strict=True)
            ),
            each.params,
            derivative=False,
        )
        for each in primitive.samples()
    ]


def _with_channels_last(of: Primitive, turned: tuple[bool, bool], **slots: Any) -> Primitive:
    """Define what a convolution is with channels last; weights, and their gradients, have none.

    turned: which operands have channels.
    """
    last = Primitive(
        kind=of.kind,
        derivatives=_REASON,
        batch=_REASON,
        samples=lambda: _samples(of, turned),
        **slots,
    )
    WITH_CHANNELS_LAST[of] = last, turned, not all(turned)
    CHANNELS_LAST.add(last)
    return last


conv_last = _with_channels_last(
    conv,
    (True, False),
    name="conv_last",
    doc="Cross-correlation of x: [N, *size, C] with w: [O, C/groups, *kernel], to [N, *out, O].",
    type_rule=lambda x, w, **params: _channels_last_type(
        conv.type_rule(_type_with_channels_first(x), w, **params)
    ),
    reference=lambda x, w, **params: _channels_last_array(
        conv.reference(_channels_first_array(x), w, **params)
    ),
)

conv_last_input_gradient = _with_channels_last(
    conv_input_gradient,
    (True, False),
    name="conv_last_input_gradient",
    doc="The transpose of conv_last in its input: y: [N, *out, O] and w to [N, *spatial, C].",
    type_rule=lambda y, w, **params: _channels_last_type(
        conv_input_gradient.type_rule(_type_with_channels_first(y), w, **params)
    ),
    reference=lambda y, w, **params: _channels_last_array(
        conv_input_gradient.reference(_channels_first_array(y), w, **params)
    ),
)

conv_last_weight_gradient = _with_channels_last(
    conv_weight_gradient,
    (True, True),
    name="conv_last_weight_gradient",
    doc="The transpose of conv_last in its kernel: x and y to [O, C/groups, *kernel].",
    type_rule=lambda x, y, **params: conv_weight_gradient.type_rule(
        _type_with_channels_first(x), _type_with_channels_first(y), **params
    ),
    reference=lambda x, y, **params: conv_weight_gradient.reference(
        _channels_first_array(x), _channels_first_array(y), **params
    ),
)


# --- the gradient of a maximum over windows ------------------------------------------------------


def _window_type(x: TensorType, ct: TensorType, **params: Any) -> TensorType:
    window_argmax.type_rule(x, **params)
    return x


def _window_gradient(x: Array, ct: Array, **params: Any) -> Array:
    rank = len(params["window"])
    lead = x.ndim - rank
    rows = int(np.prod(x.shape[:lead]))
    at = window_argmax.reference(x, **params).reshape(rows, -1)
    kind = np.float32 if x.dtype.itemsize == 2 else x.dtype
    out = np.zeros((rows, int(np.prod(x.shape[lead:]))), kind)
    np.add.at(out, (np.arange(rows)[:, None], at), ct.reshape(rows, -1).astype(kind))
    return out.reshape(x.shape).astype(x.dtype)


def _window_samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    cases: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((2, 4, 3), {"window": (2, 1), "strides": (2, 1), "padding": ((0, 0),) * 2}),
        ((2, 5, 6, 3), {"window": (3, 3, 1), "strides": (2, 1, 1), "padding": ((1, 1),) * 2}),
    ]
    samples = []
    for shape, given in cases:
        rank = len(given["window"])
        padding = (*given["padding"], (0, 0))[:rank]
        params = {**given, "padding": padding, "dilation": (1,) * rank}
        x = rng.permutation(int(np.prod(shape))).astype(np.float32).reshape(shape)
        counts = window_counts(shape[-rank:], *(params[k] for k in _ORDER))
        ct = rng.normal(size=(*shape[:-rank], *counts)).astype(np.float32)
        samples.append(Sample((x, ct), params, derivative=False))
    return samples


_ORDER = ("window", "strides", "padding", "dilation")

window_max_gradient: Primitive = Primitive(
    "window_max_gradient",
    "Cotangents of windows, each added to where the window's first largest element is.",
    kind=Window(None),
    type_rule=_window_type,
    reference=_window_gradient,
    derivatives=_REASON,
    batch=_REASON,
    samples=_window_samples,
)
