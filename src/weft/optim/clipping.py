"""Keeping gradients within bounds.

>>> import weft as wf
>>> w = wf.tensor([3.0, 4.0], requires_grad=True)
>>> (w * w / 2).sum().backward()
>>> wf.optim.clip_grad_norm([w], 1.0).item(), [round(g, 4) for g in w.grad.tolist()]
(5.0, [0.6, 0.8])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import weft as wf
from weft.optim.checks import check_positive

Gradients = Sequence[wf.Tensor | None]


def clip_grad_norm(
    parameters: wf.Tensor | Iterable[wf.Tensor], max_norm: float, norm_type: float = 2.0
) -> wf.Tensor:
    """Scale all gradients together so that their common norm is at most `max_norm`.

    Returns the norm before. `norm_type` is p of the p-norm, or math.inf for the largest element.

    >>> import weft as wf
    >>> w = wf.tensor([3.0, 4.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> clip_grad_norm([w], 1.0).item()
    10.0
    >>> [round(value, 4) for value in w.grad.tolist()]
    [0.6, 0.8]
    """
    check_positive("clip_grad_norm", "max_norm", max_norm)
    chosen = _with_gradients(parameters)
    with wf.no_grad():
        norm = gradient_norm([p.grad for p in chosen], norm_type)
        for parameter, clipped in zip(
            chosen, scaled_to_norm([p.grad for p in chosen], norm, max_norm), strict=True
        ):
            parameter.grad = clipped
    return norm


def clip_grad_value(parameters: wf.Tensor | Iterable[wf.Tensor], max_value: float) -> None:
    """Cut every element of the gradients to lie between -max_value and max_value.

    >>> import weft as wf
    >>> w = wf.tensor([3.0, -0.5], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> wf.optim.clip_grad_value([w], 2.0)
    >>> w.grad.tolist()
    [2.0, -1.0]
    """
    check_positive("clip_grad_value", "max_value", max_value)
    with wf.no_grad():
        for parameter in _with_gradients(parameters):
            parameter.grad = wf.clip(parameter.grad, -max_value, max_value)


def gradient_norm(gradients: Gradients, norm_type: float = 2.0) -> wf.Tensor:
    """The norm of all gradients as one vector, in float32 at least; 0 without any."""
    wide = [g.astype(wf.result_type(g.dtype, wf.float32)) for g in gradients if g is not None]
    if not wide:
        return wf.tensor(0.0)
    if math.isinf(norm_type):
        return wf.max(wf.stack([wf.max(wf.abs(g)) for g in wide if g.size != 0]))
    if norm_type == 2:
        return wf.sqrt(_total([(g * g).sum() for g in wide]))
    return _total([(wf.abs(g) ** norm_type).sum() for g in wide]) ** (1 / norm_type)


def _total(parts: Sequence[wf.Tensor]) -> wf.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def scaled_to_norm(
    gradients: Gradients, norm: wf.Tensor, max_norm: float
) -> list[wf.Tensor | None]:
    """The gradients, shortened where their norm is over the limit."""
    factor = wf.minimum(max_norm / (norm + 1e-6), 1.0)
    return [None if g is None else (g * factor).astype(g.dtype, copy=False) for g in gradients]


def _with_gradients(parameters: wf.Tensor | Iterable[wf.Tensor]) -> list[wf.Tensor]:
    all_parameters = [parameters] if isinstance(parameters, wf.Tensor) else list(parameters)
    return [p for p in all_parameters if p.grad is not None]
