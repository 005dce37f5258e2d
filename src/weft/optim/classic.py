"""Optimisers from before Adam: steps by signs, and descent whose average is the result.

>>> import weft as wf
>>> w = wf.tensor([4.0], requires_grad=True)
>>> optimizer = wf.optim.Rprop([w], lr=0.5)
>>> for _ in range(10):
...     optimizer.minimize((w * w).sum())
>>> abs(w.item()) < 1
True
"""

from __future__ import annotations

from typing import Unpack

import weft as wf
from weft.optim import rules
from weft.optim.groups import Parameters
from weft.optim.optimizer import Optimizer, Shared
from weft.optim.optimizers import Rate


class Rprop(Optimizer):
    """Steps by the signs of gradients, for whole data sets; see `rules.rprop`.

    >>> import weft as wf
    >>> w = wf.tensor([1.0, -200.0], requires_grad=True)
    >>> optimizer = wf.optim.Rprop([w], lr=0.25)
    >>> optimizer.minimize((w * w).sum())
    >>> w.tolist()
    [0.75, -199.75]
    """

    _rule = staticmethod(rules.rprop)
    _slots = ("gradient", "size")

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        **shared: Unpack[Shared],
    ) -> None:
        shrink, grow = etas
        least, most = step_sizes
        if not (0 < shrink < 1 < grow and 0 < least <= most):
            raise wf.ArgumentError(
                "Rprop",
                "steps that do not shrink and grow between two sizes",
                expected="0 < etas[0] < 1 < etas[1] and 0 < step_sizes[0] <= step_sizes[1]",
                got={"etas": etas, "step_sizes": step_sizes},
                fix="etas=(0.5, 1.2), step_sizes=(1e-6, 50.0)",
            )
        options = {"lr": lr, "etas": etas, "step_sizes": step_sizes}
        super().__init__(parameters, options, **shared)


class ASGD(Optimizer):
    """Gradient descent with a falling rate, and the average of its steps; see `rules.asgd`.

    The averages are in `optimizer.state`, under "average"; they begin after `t0` steps.

    >>> import weft as wf
    >>> w = wf.tensor([1.0], requires_grad=True)
    >>> optimizer = wf.optim.ASGD([w], lr=0.25)
    >>> optimizer.minimize((w * w).sum())
    >>> round(w.item(), 4), round(optimizer.state[0]["average"].item(), 4)
    (0.5, 0.5)
    """

    _rule = staticmethod(rules.asgd)
    _slots = ("average",)

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float | wf.Tensor = 0.0,
        **shared: Unpack[Shared],
    ) -> None:
        options = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
        }
        super().__init__(parameters, options, **shared)
