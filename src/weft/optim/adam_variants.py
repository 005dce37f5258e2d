"""Optimisers that change one thing in Adam each: momentum, warm-up, norm, rows, or memory.

>>> import weft as wf
>>> w = wf.tensor([4.0], requires_grad=True)
>>> optimizer = wf.optim.NAdam([w], lr=0.5)
>>> for _ in range(20):
...     optimizer.minimize((w * w).sum())
>>> abs(w.item()) < 1
True
"""

from __future__ import annotations

from typing import Unpack

import weft as wf
from weft.optim import rules
from weft.optim.groups import Parameters, wide_dtype
from weft.optim.optimizer import Optimizer, Shared
from weft.optim.optimizers import Adam, Betas, Options, Rate
from weft.optim.rules import State


class NAdam(Optimizer):
    """Adam with Nesterov's momentum; see `rules.nadam`.

    >>> import weft as wf
    >>> w = wf.tensor([1.0], requires_grad=True)
    >>> optimizer = wf.optim.NAdam([w], lr=0.1)
    >>> optimizer.minimize((w * w).sum())
    >>> round(w.item(), 4)
    0.8944
    """

    rowwise = False
    _rule = staticmethod(rules.nadam)
    _slots = ("mean", "square")

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 2e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float | wf.Tensor = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(parameters, options, **shared)

    def _initial_state(self, p: wf.Tensor, options: Options) -> State:
        """The averages, and the product of all momenta so far, one number."""
        product = wf.ones((), dtype=wide_dtype(p), device=p.device)
        return {**super()._initial_state(p, options), "product": product}


class RAdam(Optimizer):
    """Adam that needs no warm-up; see `rules.radam`.

    >>> import weft as wf
    >>> w = wf.tensor([1.0], requires_grad=True)
    >>> optimizer = wf.optim.RAdam([w], lr=0.1)
    >>> optimizer.minimize((w * w).sum())
    >>> round(w.item(), 4)
    0.8
    """

    _rule = staticmethod(rules.radam)
    _slots = ("mean", "square")

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float | wf.Tensor = 0.0,
        decoupled_weight_decay: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(parameters, options, **shared)


class Adamax(Optimizer):
    """Adam by the largest gradients so far; see `rules.adamax`.

    >>> import weft as wf
    >>> w = wf.tensor([1.0, -200.0], requires_grad=True)
    >>> optimizer = wf.optim.Adamax([w], lr=0.5)
    >>> optimizer.minimize((w * w).sum())
    >>> [round(value, 4) for value in w.tolist()]
    [0.5, -199.5]
    """

    _rule = staticmethod(rules.adamax)
    _slots = ("mean", "largest")

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 2e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float | wf.Tensor = 0.0,
        **shared: Unpack[Shared],
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, options, **shared)


class SparseAdam(Adam):
    """Adam of the rows of a table that have a gradient; see `rules.sparse_adam`.

    With `optimizer.step(rows=...)` the other rows are not even read. A whole gradient, as PyTorch's
    `Embedding(sparse=True)` stands for, is looked through: rows of zeros stay as they are, and so
    do their averages.

    >>> import weft as wf
    >>> table = wf.ones((3, 2)).requires_grad_()
    >>> optimizer = wf.optim.SparseAdam([table], lr=0.5)
    >>> optimizer.minimize((table[1] * 2.0).sum())
    >>> [[round(value, 4) for value in row] for row in table.tolist()]
    [[1.0, 1.0], [0.5, 0.5], [1.0, 1.0]]
    """

    _rule = staticmethod(rules.sparse_adam)

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(parameters, lr, betas, eps, **shared)


class Adafactor(Optimizer):
    """Adam's second moments of rows and columns alone: hardly any state; see `rules.adafactor`.

    >>> import weft as wf
    >>> w = wf.ones((3, 4)).requires_grad_()
    >>> optimizer = wf.optim.Adafactor([w], lr=0.1)
    >>> {name: slot.shape for name, slot in optimizer.state[0].items()}
    {'rows': (3, 1), 'columns': (1, 4)}
    >>> optimizer.minimize((w * w).sum())
    >>> round(w[0, 0].item(), 4)
    0.9
    """

    rowwise = False
    _rule = staticmethod(rules.adafactor)
    _slots = ("square",)

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float | wf.Tensor = 0.0,
        **shared: Unpack[Shared],
    ) -> None:
        first, second = eps
        if (first is not None and first < 0) or second < 0 or d < 1:
            raise wf.ArgumentError(
                "Adafactor",
                "a bound is out of range",
                expected="eps: None or a number >= 0, and a number >= 0; d >= 1",
                got={"eps": eps, "d": d},
                fix="eps=(None, 1e-3), d=1.0",
            )
        options = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "floor": first,
            "least": second,
            "d": d,
            "weight_decay": weight_decay,
        }
        super().__init__(parameters, options, **shared)

    def _initial_state(self, p: wf.Tensor, options: Options) -> State:
        """Means over rows and over columns; of a line, all squares."""
        if p.ndim < 2:
            return super()._initial_state(p, options)
        shapes = {"rows": (*p.shape[:-1], 1), "columns": (*p.shape[:-2], 1, p.shape[-1])}
        kind = {"dtype": wide_dtype(p), "device": p.device}
        return {name: wf.zeros(shape, **kind) for name, shape in shapes.items()}
