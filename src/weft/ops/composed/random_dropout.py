"""Dropout: elements that are set to 0 by chance.

>>> import weft as wf
>>> wf.random.dropout(wf.ones(4), 1.0).tolist()
[0.0, 0.0, 0.0, 0.0]
"""

from __future__ import annotations

from typing import Any

from weft.core.arrays import can_compute_on, device_of, is_concrete, is_host
from weft.core.devices import CPU
from weft.core.dtypes import DEFAULT_FLOAT, uint64
from weft.core.errors import DTypeError
from weft.core.shapes import check_shape
from weft.ir.constants import beside_operands
from weft.ir.eager import unit
from weft.ir.number_arrays import kept_array, number_array
from weft.ir.reverse import zeros
from weft.ir.tensor import Tensor, traces, wrap
from weft.ops.arithmetic import divide
from weft.ops.composed.random_discrete import SHARE, Key, bernoulli, is_share
from weft.ops.composed.random_keys import key_of_draw, key_or_next, require
from weft.ops.operands import as_number, as_tensor
from weft.ops.placement import draws_on_device
from weft.ops.random_bits import GENERATOR, fold_key
from weft.ops.selection import where

__all__ = ["dropout", "dropout_mask"]


@draws_on_device
def dropout_mask(shape: Any, p: float = 0.5, *, key: Key = None, device: Any = None) -> Tensor:
    """True where an element stays: each is dropped with the chance `p`.

    >>> import weft as wf
    >>> wf.random.dropout_mask((3,), 0.0, key=wf.random.key(0)).tolist()
    [True, True, True]
    """
    op = "random.dropout_mask"
    p = as_number(op, "p", p)
    require(op, is_share, SHARE, f"wf.{op}(shape, 0.5)", p=p)
    return bernoulli(1.0 - p, check_shape(op, shape), key=key_or_next(op, key))


@beside_operands
def dropout(x: Any, p: float = 0.5, training: bool = True, *, key: Key = None) -> Tensor:
    """x with elements set to 0 with the chance `p`, the rest divided by 1 - p; x if not training.

    >>> import weft as wf
    >>> wf.random.dropout(wf.ones(4), 1.0).tolist()
    [0.0, 0.0, 0.0, 0.0]
    """
    op = "random.dropout"
    tensor = as_tensor(op, x)
    p = as_number(op, "p", p)
    require(op, is_share, SHARE, f"wf.{op}(x, 0.5)", p=p)
    if not tensor.dtype.is_inexact:
        raise DTypeError(
            op,
            "elements that stay are divided by 1 - p",
            expected="a floating-point or complex tensor",
            got={"x": tensor},
            fix='x.astype("float32")',
        )
    if not training or p == 0:
        return tensor
    if p == 1:
        return zeros(tensor.type)
    if traces.stack or traces.keeper is not None or not is_concrete(tensor._value):
        return _drop_elements(tensor, 1.0 - p, 1.0 - p, key)
    return _drop_now(tensor, 1.0 - p, key)


def _drop_now(x: Tensor, share: float, key: Key) -> Tensor:
    """The elements that stay, a share of them, with all that changes from call to call as data.

    So one program serves every chance and every draw. Which draw of the global generator it is, is
    counted on the host. Keys of draws are made of that in the program, or for many draws at once.
    """
    device = device_of(x._value)
    stays = wrap(number_array(share, DEFAULT_FLOAT.numpy, device))
    scale = wrap(number_array(share, x.dtype.numpy, device))
    if key is not None:
        return _drop_elements(x, stays, scale, key)
    base, number = GENERATOR.draw_number("random.dropout")
    if number is None:
        return _drop_elements(x, stays, scale, base)
    if device is not CPU and can_compute_on(device) and is_host(base._value):
        return _drop_elements(x, stays, scale, wrap(key_of_draw(base._value, number, device)))
    drawn = wrap(number_array(number, uint64.numpy, device))
    return _drop_drawn(x, stays, scale, wrap(kept_array(base._value, device)), drawn)


@unit
def _drop_elements(x: Tensor, share: Any, scale: Any, key: Key) -> Tensor:
    stays = bernoulli(share, x.shape, key=key_or_next("random.dropout", key))
    return where(stays, divide(x, scale), zeros(x.type))


@unit
def _drop_drawn(x: Tensor, share: Tensor, scale: Tensor, key: Tensor, number: Tensor) -> Tensor:
    return _drop_elements(x, share, scale, fold_key(key, number))
