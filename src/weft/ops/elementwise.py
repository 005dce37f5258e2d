"""Element-wise arithmetic and functions of real and complex numbers.

>>> import weft as wf
>>> wf.exp(wf.tensor([0.0])).tolist()
[1.0]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ir.derivatives import additive, linear, tangent
from weft.ir.tensor import Tensor
from weft.ops.families import elementwise


def _conj(x: Any) -> Any:
    """The complex conjugate, free of charge for real operands."""
    return conj(x) if isinstance(x, Tensor) and x.dtype.is_complex else x


add = elementwise(
    "add",
    doc="The sum of two tensors, element by element.",
    reference=np.add,
    derivatives=[additive(lambda ct, x1, x2: ct), additive(lambda ct, x1, x2: ct)],
    dtypes="number",
)

subtract = elementwise(
    "subtract",
    doc="The difference of two tensors, element by element.",
    reference=np.subtract,
    derivatives=[additive(lambda ct, x1, x2: ct), additive(lambda ct, x1, x2: negative(ct))],
    dtypes="number",
)

multiply = elementwise(
    "multiply",
    doc="The product of two tensors, element by element.",
    reference=np.multiply,
    derivatives=[
        linear(lambda ct, x1, x2: ct * _conj(x2)),
        linear(lambda ct, x1, x2: ct * _conj(x1)),
    ],
    dtypes="number",
)

divide = elementwise(
    "divide",
    doc="The quotient of two tensors, element by element; integers give the default float.",
    reference=np.divide,
    derivatives=[
        linear(lambda ct, x1, x2: ct / _conj(x2)),
        tangent(lambda t, out, x1, x2: negative(t) * (out / x2)),
    ],
    domain=((-2.0, 2.0), (0.5, 2.0)),
)

negative = elementwise(
    "negative",
    doc="The negative of each element.",
    reference=np.negative,
    derivatives=[linear(lambda ct, x: negative(ct))],
    dtypes="number",
)

conj = elementwise(
    "conj",
    doc="The complex conjugate of each element.",
    reference=np.conj,
    derivatives=[linear(lambda ct, x: conj(ct))],
    dtypes="number",
)

exp = elementwise(
    "exp",
    doc="e to the power of each element.",
    reference=np.exp,
    derivatives=[tangent(lambda t, out, x: t * out)],
)

log = elementwise(
    "log",
    doc="The natural logarithm of each element.",
    reference=np.log,
    derivatives=[tangent(lambda t, out, x: t / x)],
    domain=(0.1, 3.0),
)

sin = elementwise(
    "sin",
    doc="The sine of each element, in radians.",
    reference=np.sin,
    derivatives=[tangent(lambda t, out, x: t * cos(x))],
)

cos = elementwise(
    "cos",
    doc="The cosine of each element, in radians.",
    reference=np.cos,
    derivatives=[tangent(lambda t, out, x: negative(t) * sin(x))],
)

tanh = elementwise(
    "tanh",
    doc="The hyperbolic tangent of each element.",
    reference=np.tanh,
    derivatives=[tangent(lambda t, out, x: t * (1.0 - out * out))],
)
