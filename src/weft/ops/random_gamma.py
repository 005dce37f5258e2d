"""The derivative of gamma samples in their concentration, implicitly.

A sample x of the gamma distribution keeps its place F(x; a) in the distribution when the
concentration a moves, so dx/da = -(∂F/∂a)/(∂F/∂x) (Figurnov, Mohamed, Mnih: "Implicit
reparameterization gradients", 2018), however the sample was drawn.

>>> import numpy as np
>>> from weft.ops.random_gamma import slope_of
>>> float(slope_of(np.array(2.0), np.array(2.0)).round(4))
1.0862
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.errors import ArgumentError, Unsupported
from weft.core.shapes import Dimension
from weft.core.types import TensorType
from weft.ir.batching import to_front
from weft.ir.derivatives import joint
from weft.ir.dispatch import apply
from weft.ir.kinds import DEAR, Opaque
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops import sharding_rules as shardings
from weft.ops.arithmetic import multiply
from weft.ops.control import require_types
from weft.ops.families import elementwise, elementwise_samples
from weft.ops.special_series import digamma

__all__: list[str] = []

Array = np.ndarray[Any, Any]
_LARGE = 1000.0


def slope_of(x: Array, a: Array) -> Array:
    """dx/da at a fixed place in the distribution, for each sample and concentration."""
    x, a = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(a, np.float64))
    large = a > _LARGE
    series = _by_series(np.where(large, 1.0, x), np.where(large, 1.0, a))
    return np.asarray(np.where(large, _by_cube_root(x, np.where(large, a, _LARGE)), series))


def _by_series(x: Array, a: Array) -> Array:
    """-Σ x**(n+1) Γ(a)/Γ(a+n+1) (log x - ψ(a+n+1)), from the series of the incomplete gamma."""
    term, log_x = x / a, np.log(np.maximum(x, np.finfo(np.float64).tiny))
    psi = digamma(a) + 1.0 / a
    total = term * (log_x - psi)
    for n in range(1, 100_000):
        place = a + n
        term = term * (x / place)
        psi = psi + 1.0 / place
        step = term * (log_x - psi)
        total = total + step
        if not np.any((np.abs(step) > 1e-17 * np.abs(total)) | (place < x)):
            break
    return -total


def _by_cube_root(x: Array, a: Array) -> Array:
    """Wilson and Hilferty: the cube root of x/a is nearly normal, for large concentrations."""
    root = np.cbrt(x / a)
    z = (root - 1.0 + 1.0 / (9.0 * a)) * 3.0 * np.sqrt(a)
    change = 1.0 / (9.0 * a**2) - z / (6.0 * a * np.sqrt(a))
    return np.asarray(root**3 + 3.0 * a * root**2 * change)


def _samples() -> list[Sample]:
    """Without derivatives: a sample is noise, and its slope a derivative already."""
    pairs = elementwise_samples("gamma", 2, "float", ((0.2, 4.0), (0.5, 3.0)))
    return [replace(sample, derivative=False) for sample in pairs]


gamma_slope = elementwise(
    "gamma_slope",
    doc="How a gamma sample moves with its concentration, at a fixed place in the distribution.",
    cost=DEAR,
    reference=lambda x, a: slope_of(x, a).astype(np.result_type(x)),
    derivatives=Unsupported("implicit derivatives of gamma samples are of first order"),
    lower=Unsupported("the series is summed until it converges"),
    dtypes="float",
    arity=2,
    samples=lambda: _samples(),
)


def _same_type(x: TensorType, a: TensorType) -> TensorType:
    require_types("gamma_by_concentration", "sample and concentration", [x], [a])
    return x


def _jvp(
    primals: Sequence[Tensor], tangents: Sequence[Tensor | None], out: Tensor
) -> Tensor | None:
    return None if tangents[1] is None else multiply(tangents[1], gamma_slope(out, primals[1]))


def _vjp(
    cotangent: Tensor, out: Tensor, primals: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    back = multiply(cotangent, gamma_slope(out, primals[1])) if wanted[1] else None
    return [None, back]


def _batch(
    size: Dimension, operands: tuple[Tensor, ...], axes: tuple[int | None, ...]
) -> tuple[Tensor, int]:
    fronts = [to_front(size, x, axis) for x, axis in zip(operands, axes, strict=True)]
    return apply(by_concentration, *fronts), 0


by_concentration = Primitive(
    "gamma_by_concentration",
    "A gamma sample as what varies with its concentration; the value is the sample itself.",
    kind=Opaque(),
    lower=Unsupported("it is there for its derivative, which takes a series"),
    sharding=shardings.before_last(0),
    type_rule=_same_type,
    reference=lambda x, a: np.array(x),
    derivatives=joint(_jvp, _vjp),  # of the way it was drawn, which its value does not show
    batch=_batch,
    samples=lambda: [sample for sample in _samples() if np.shape(sample.operands[1])][:1],
    mistakes=lambda: [
        Mistake((np.ones(2), np.ones(3)), {}, ArgumentError, "value 0 has another type")
    ],
)


def gamma_by_concentration(x: Tensor, a: Tensor) -> Tensor:
    """A gamma sample with its derivative in the concentration, both of one type."""
    return apply(by_concentration, x, a)
