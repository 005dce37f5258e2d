"""Mixed precision: 16 or 8 bits in products, float32 in what is kept.

`mixed(net, "bfloat16")` is the network inside of `wf.autocast`, with results widened on the way
out; the parameters themselves, their gradients and the optimiser's state stay float32. `LossScale`
keeps gradients in the range of float16.

>>> import weft as wf
>>> from weft.optim.precision import mixed
>>> product = mixed(lambda a, b: a @ b, "bfloat16")(wf.tensor([1.01]), wf.tensor([1.0]))
>>> product.item(), product.dtype
(1.0078125, weft.float32)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import weft as wf
from weft.optim.clipping import Gradients

PRECISIONS = ("float32", "bfloat16", "float16", "float8")


def check_precision(op: str, precision: Any) -> str | None:
    """The name of a precision, or None for the precision of the parameters."""
    name = precision.name if isinstance(precision, wf.DType) else precision
    if name is not None and name not in PRECISIONS:
        raise wf.ArgumentError(
            op,
            "unknown precision",
            expected='"bfloat16", "float16", "float8" or None',
            got={"precision": precision},
            fix='precision="bfloat16"',
        )
    return None if name == "float32" else name


def mixed(function: Callable[..., Any], precision: Any = "bfloat16") -> Callable[..., Any]:
    """A module or function that runs inside of `wf.autocast`, and gives float32."""
    chosen = check_precision("mixed", precision)
    if chosen is None:
        return function

    def compute(*args: Any, **kwargs: Any) -> Any:
        with wf.autocast(chosen):
            result = function(*args, **kwargs)
        return _widen_tree(result)

    return compute


def _widen_tree(tree: Any) -> Any:
    def convert(leaf: Any) -> Any:
        is_narrow = isinstance(leaf, wf.Tensor) and leaf.dtype in (wf.float16, wf.bfloat16)
        return leaf.astype(wf.float32) if is_narrow else leaf

    return wf.tree.map_tree(convert, tree)


def _static_field(value: Any) -> Any:
    return field(default=value, metadata={"static": True})


@dataclass(eq=False)
class LossScale:
    """A factor on the loss that keeps small gradients from vanishing in float16.

    Multiplied by `backoff` when a gradient overflows, and that step is skipped, but not below 1;
    by `growth` after `interval` steps without, as long as it is finite (Micikevicius et al., 2018).
    The factor and the count are tensors, so that all of it compiles.
    """

    scale: wf.Tensor = field(default_factory=lambda: wf.tensor(65536.0))
    good_steps: wf.Tensor = field(default_factory=lambda: wf.tensor(0))
    growth: float = _static_field(2.0)
    backoff: float = _static_field(0.5)
    interval: int = _static_field(2000)

    def unscaled(self, gradients: Gradients) -> list[wf.Tensor | None]:
        """The gradients without the factor."""
        inverse = 1 / self.scale
        return [None if g is None else g * inverse for g in gradients]

    def update(self, finite: wf.Tensor) -> None:
        """Adapt the factor to whether the last gradients were finite."""
        good = self.good_steps + 1
        grow = good >= self.interval
        larger, smaller = self.scale * self.growth, wf.maximum(self.scale * self.backoff, 1.0)
        grown = wf.where(grow & wf.isfinite(larger), larger, self.scale)
        self.scale.copy_(wf.where(finite, grown, smaller))
        self.good_steps.copy_(wf.where(finite & ~grow, good, 0))


def all_finite(gradients: Gradients) -> wf.Tensor:
    """Whether all elements of all gradients are finite: one truth value."""
    finite = wf.tensor(True)
    for gradient in gradients:
        if gradient is not None:
            finite = finite & wf.all(wf.isfinite(gradient))
    return finite
