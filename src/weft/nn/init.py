"""Initial values: each function gives a tensor's handle new values and returns the tensor.

>>> import weft as wf
>>> from weft.nn import init
>>> wf.random.seed(0)
>>> w = init.xavier_uniform_(wf.empty((3, 5)))
>>> bool(wf.max(wf.abs(w)) <= (6 / 8) ** 0.5)
True
"""

from __future__ import annotations

import math
from typing import Any

import weft as wf
from weft.names import explain_all as _explain_all
from weft.names import missing_from as _missing_from

__all__ = [
    "calculate_gain", "constant_", "dirac_", "eye_", "fans", "kaiming_normal_", "kaiming_uniform_",
    "normal_", "ones_", "orthogonal_", "trunc_normal_", "uniform_", "xavier_normal_",
    "xavier_uniform_", "zeros_",
]  # fmt: skip

FanMode = str


def _write(tensor: wf.Tensor, values: Any) -> wf.Tensor:
    wf.ir.refuse_derivative("init", "the initial value", values)
    with wf.no_grad():
        return tensor.copy_(values)


def uniform_(tensor: wf.Tensor, a: float = 0.0, b: float = 1.0) -> wf.Tensor:
    """Numbers evenly spread over [a, b).

    >>> x = uniform_(wf.empty(100), 2.0, 3.0)
    >>> bool(wf.all((x >= 2) & (x < 3)))
    True
    """
    return _write(tensor, wf.random.uniform(tensor.shape, a, b, dtype=tensor.dtype))


def normal_(tensor: wf.Tensor, mean: float = 0.0, std: float = 1.0) -> wf.Tensor:
    """Normally distributed numbers.

    >>> normal_(wf.empty(3), 5.0, 0.0).tolist()
    [5.0, 5.0, 5.0]
    """
    return _write(tensor, wf.random.normal(tensor.shape, mean, std, dtype=tensor.dtype))


def trunc_normal_(
    tensor: wf.Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> wf.Tensor:
    """Normally distributed numbers between a and b, both given as values.

    >>> x = trunc_normal_(wf.empty(100), std=10.0)
    >>> bool(wf.all(wf.abs(x) <= 2))
    True
    """
    low, high = (a - mean) / std, (b - mean) / std
    drawn = wf.random.truncated_normal(tensor.shape, low, high, dtype=tensor.dtype)
    return _write(tensor, wf.clip(drawn * std + mean, a, b))


def constant_(tensor: wf.Tensor, value: float) -> wf.Tensor:
    """One number everywhere.

    >>> constant_(wf.empty(2), 0.5).tolist()
    [0.5, 0.5]
    """
    return _write(tensor, value)


def zeros_(tensor: wf.Tensor) -> wf.Tensor:
    """Zeros.

    >>> zeros_(wf.ones(2)).tolist()
    [0.0, 0.0]
    """
    return _write(tensor, 0)


def ones_(tensor: wf.Tensor) -> wf.Tensor:
    """Ones.

    >>> ones_(wf.zeros(2)).tolist()
    [1.0, 1.0]
    """
    return _write(tensor, 1)


def eye_(tensor: wf.Tensor) -> wf.Tensor:
    """The identity matrix.

    >>> eye_(wf.empty((2, 3))).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    _check_rank("eye_", tensor, tensor.ndim == 2, "two axes")
    return _write(tensor, wf.eye(int(tensor.shape[0]), int(tensor.shape[1]), dtype=tensor.dtype))


def dirac_(tensor: wf.Tensor, groups: int = 1) -> wf.Tensor:
    """A convolution's weight that passes as many channels as possible through unchanged.

    >>> dirac_(wf.empty((2, 2, 3))).tolist()
    [[[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]
    """
    _check_rank("dirac_", tensor, tensor.ndim in (3, 4, 5), "three, four or five axes")
    if tensor.shape[0] % groups:
        raise wf.ArgumentError(
            "dirac_",
            "the output channels cannot be divided into the groups",
            expected="tensor.shape[0] % groups == 0",
            got={"tensor": tensor, "groups": groups},
            fix="groups=1",
        )
    values = wf.zeros(tensor.shape, dtype=tensor.dtype)
    out = int(tensor.shape[0]) // groups
    middle = tuple(int(size) // 2 for size in tensor.shape[2:])
    for group in range(groups):
        for channel in range(min(out, int(tensor.shape[1]))):
            values[(group * out + channel, channel, *middle)] = 1
    return _write(tensor, values)


GAINS: dict[str, float] = {
    "linear": 1.0, "identity": 1.0, "sigmoid": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0,
    "conv_transpose1d": 1.0, "conv_transpose2d": 1.0, "conv_transpose3d": 1.0, "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0), "selu": 0.75,
}  # fmt: skip


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By how much weights grow to keep the variance through an activation.

    >>> round(calculate_gain("relu"), 4), round(calculate_gain("leaky_relu", 0.1), 4)
    (1.4142, 1.4072)
    """
    if nonlinearity == "leaky_relu":
        wf.ir.refuse_derivative("calculate_gain", "param", param)
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1 + slope * slope))
    if nonlinearity not in GAINS:
        raise wf.ArgumentError(
            "calculate_gain",
            "the gain of this activation is not known",
            expected="one of " + ", ".join([*GAINS, "leaky_relu"]),
            got={"nonlinearity": nonlinearity},
            fix='nonlinearity="relu"',
        )
    return GAINS[nonlinearity]


def fans(op: str, tensor: wf.Tensor) -> tuple[int, int]:
    """How many inputs and outputs each element of a weight [out, in, *window] joins."""
    _check_rank(op, tensor, tensor.ndim >= 2, "at least two axes")
    window = math.prod(int(size) for size in tensor.shape[2:])
    return int(tensor.shape[1]) * window, int(tensor.shape[0]) * window


def xavier_uniform_(tensor: wf.Tensor, gain: float = 1.0) -> wf.Tensor:
    """Uniform numbers of variance 2 gain² / (fan_in + fan_out) (Glorot and Bengio, 2010)."""
    bound = gain * math.sqrt(6.0 / max(sum(fans("xavier_uniform_", tensor)), 1))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: wf.Tensor, gain: float = 1.0) -> wf.Tensor:
    """Normal numbers of variance 2 gain² / (fan_in + fan_out) (Glorot and Bengio, 2010)."""
    std = gain * math.sqrt(2.0 / max(sum(fans("xavier_normal_", tensor)), 1))
    return normal_(tensor, 0.0, std)


def kaiming_uniform_(
    tensor: wf.Tensor, a: float = 0.0, mode: FanMode = "fan_in", nonlinearity: str = "leaky_relu"
) -> wf.Tensor:
    """Uniform numbers of variance gain² / fan (He et al., 2015)."""
    std = _kaiming_std("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -math.sqrt(3.0) * std, math.sqrt(3.0) * std)


def kaiming_normal_(
    tensor: wf.Tensor, a: float = 0.0, mode: FanMode = "fan_in", nonlinearity: str = "leaky_relu"
) -> wf.Tensor:
    """Normal numbers of variance gain² / fan (He et al., 2015)."""
    return normal_(tensor, 0.0, _kaiming_std("kaiming_normal_", tensor, a, mode, nonlinearity))


def _kaiming_std(op: str, tensor: wf.Tensor, a: float, mode: FanMode, nonlinearity: str) -> float:
    by_mode = dict(zip(("fan_in", "fan_out"), fans(op, tensor), strict=True))
    if mode not in by_mode:
        raise wf.ArgumentError(
            op,
            "there is no such mode",
            expected='"fan_in" or "fan_out"',
            got={"mode": mode},
            fix='mode="fan_in"',
        )
    return calculate_gain(nonlinearity, a) / math.sqrt(max(by_mode[mode], 1))


def orthogonal_(tensor: wf.Tensor, gain: float = 1.0) -> wf.Tensor:
    """Rows, or columns where there are fewer, that are orthonormal, times the gain.

    >>> w = orthogonal_(wf.empty((2, 3)))
    >>> [[abs(round(v, 4)) for v in row] for row in (w @ w.T).tolist()]
    [[1.0, 0.0], [0.0, 1.0]]
    """
    _check_rank("orthogonal_", tensor, tensor.ndim >= 2, "at least two axes")
    rows, columns = int(tensor.shape[0]), math.prod(int(size) for size in tensor.shape[1:])
    drawn = wf.random.normal((max(rows, columns), min(rows, columns)), dtype=tensor.dtype)
    q, r = wf.linalg.qr(drawn)
    q = q * wf.where(wf.diagonal(r) < 0, -1.0, 1.0)  # makes the distribution uniform
    matrix = q if rows >= columns else q.T
    return _write(tensor, wf.reshape(matrix, tensor.shape) * gain)


def _check_rank(op: str, tensor: wf.Tensor, fits: bool, expected: str) -> None:
    if not fits:
        raise wf.ShapeError(
            op,
            "the tensor has the wrong number of axes",
            expected=f"a tensor with {expected}",
            got={"tensor": tensor},
            fix="for a vector use normal_ or zeros_",
        )


_explain_all(globals(), __all__)
__getattr__ = _missing_from("wf.nn.init", __all__)
