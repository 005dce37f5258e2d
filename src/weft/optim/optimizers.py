"""The optimisers: each names its options, the state it keeps, and its rule in `rules.py`.

>>> import weft as wf
>>> w = wf.tensor([4.0], requires_grad=True)
>>> optimizer = wf.optim.AdamW([w], lr=0.5, weight_decay=0.0)
>>> for _ in range(20):
...     optimizer.minimize((w * w).sum())
>>> abs(w.item()) < 1
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, Unpack

import weft as wf
from weft.optim import rules
from weft.optim.checks import check_count
from weft.optim.groups import Group, Parameters
from weft.optim.optimizer import Optimizer, Shared
from weft.optim.rules import Rule, is_zero
from weft.optim.schedules import Schedule

Options: TypeAlias = Mapping[str, Any]
Rate: TypeAlias = float | wf.Tensor | Schedule
Betas: TypeAlias = Sequence[Any]


class SGD(Optimizer):
    """Gradient descent, with momentum; see `rules.sgd`.

    >>> import weft as wf
    >>> w = wf.tensor([1.0, 2.0], requires_grad=True)
    >>> optimizer = wf.optim.SGD([w], lr=0.25)
    >>> optimizer.minimize((w * w).sum())
    >>> w.tolist()
    [0.5, 1.0]
    """

    _rule = staticmethod(rules.sgd)

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 1e-3,
        momentum: float | wf.Tensor = 0.0,
        dampening: float = 0.0,
        weight_decay: float | wf.Tensor = 0.0,
        nesterov: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        if nesterov and (is_zero(momentum) or dampening != 0):
            raise wf.ArgumentError(
                "SGD",
                "Nesterov's step needs momentum and no dampening",
                expected="momentum > 0 and dampening == 0",
                got={"momentum": momentum, "dampening": dampening},
                fix="momentum=0.9, nesterov=True",
            )
        options = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(parameters, options, **shared)

    def slots(self, options: Options) -> dict[str, float]:
        """See `Optimizer`."""
        return {} if is_zero(options["momentum"]) else {"momentum": 0.0}


class Adam(Optimizer):
    """Steps of the size of the learning rate, whatever the gradients' scale; see `rules.adam`.

    >>> import weft as wf
    >>> w = wf.tensor([1.0, -200.0], requires_grad=True)
    >>> optimizer = wf.optim.Adam([w], lr=0.5)
    >>> optimizer.minimize((w * w).sum())
    >>> [round(value, 4) for value in w.tolist()]
    [0.5, -199.5]
    """

    _rule = staticmethod(rules.adam)

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float | wf.Tensor = 0.0,
        amsgrad: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        options = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
        }
        super().__init__(parameters, options, **shared)

    def slots(self, options: Options) -> dict[str, float]:
        """See `Optimizer`."""
        return {"mean": 0.0, "square": 0.0, **({"largest": 0.0} if options["amsgrad"] else {})}


class AdamW(Adam):
    """Adam with weight decay beside the gradient; see `rules.adamw`.

    >>> import weft as wf
    >>> w = wf.tensor([1.0], requires_grad=True)
    >>> optimizer = wf.optim.AdamW([w], lr=0.5, weight_decay=0.5)
    >>> optimizer.minimize((w * w).sum())
    >>> round(w.item(), 4)
    0.25
    """

    _rule = staticmethod(rules.adamw)

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float | wf.Tensor = 0.01,
        amsgrad: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay, amsgrad, **shared)


class RMSprop(Optimizer):
    """Gradients divided by the root of their mean square; see `rules.rmsprop`.

    >>> import weft as wf
    >>> w = wf.tensor([1.0], requires_grad=True)
    >>> optimizer = wf.optim.RMSprop([w], lr=0.1, alpha=0.75)
    >>> optimizer.minimize((w * w).sum())
    >>> round(w.item(), 4)
    0.8
    """

    _rule = staticmethod(rules.rmsprop)

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float | wf.Tensor = 0.0,
        momentum: float | wf.Tensor = 0.0,
        centered: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        options = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
        }
        super().__init__(parameters, options, **shared)

    def slots(self, options: Options) -> dict[str, float]:
        """See `Optimizer`."""
        chosen = {"mean": options["centered"], "momentum": not is_zero(options["momentum"])}
        return {"square": 0.0, **{name: 0.0 for name, kept in chosen.items() if kept}}


class Adagrad(Optimizer):
    """Gradients divided by the root of the sum of their squares; see `rules.adagrad`.

    >>> import weft as wf
    >>> w = wf.tensor([1.0], requires_grad=True)
    >>> optimizer = wf.optim.Adagrad([w], lr=0.5)
    >>> optimizer.minimize((w * w).sum())
    >>> w.tolist()
    [0.5]
    """

    _rule = staticmethod(rules.adagrad)

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float | wf.Tensor = 0.0,
        initial: float = 0.0,
        eps: float = 1e-10,
        **shared: Unpack[Shared],
    ) -> None:
        options = {
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "initial": initial,
            "eps": eps,
        }
        super().__init__(parameters, options, **shared)

    def slots(self, options: Options) -> dict[str, float]:
        """See `Optimizer`."""
        return {"sum": options["initial"]}


class Adadelta(Optimizer):
    """Steps as large as earlier steps and gradients say; see `rules.adadelta`.

    >>> import weft as wf
    >>> w = wf.tensor([1.0], requires_grad=True)
    >>> optimizer = wf.optim.Adadelta([w])
    >>> optimizer.minimize((w * w).sum())
    >>> round(w.item(), 4)
    0.9968
    """

    _rule = staticmethod(rules.adadelta)
    _slots = ("square", "delta")

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float | wf.Tensor = 0.0,
        **shared: Unpack[Shared],
    ) -> None:
        options = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, options, **shared)


class Lamb(Optimizer):
    """Adam for very large batches: each tensor's step is as long as the tensor; see `rules.lamb`.

    >>> import weft as wf
    >>> w = wf.tensor([3.0, 4.0], requires_grad=True)
    >>> optimizer = wf.optim.Lamb([w], lr=0.1)
    >>> optimizer.minimize((w * w).sum())
    >>> [round(value, 4) for value in w.tolist()]
    [2.6464, 3.6464]
    """

    rowwise = False
    _rule = staticmethod(rules.lamb)
    _slots = ("mean", "square")

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float | wf.Tensor = 0.0,
        **shared: Unpack[Shared],
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, options, **shared)


class Lion(Optimizer):
    """Steps by the sign of an average gradient; half of Adam's state; see `rules.lion`.

    >>> import weft as wf
    >>> w = wf.tensor([1.0, -2.0], requires_grad=True)
    >>> optimizer = wf.optim.Lion([w], lr=0.25)
    >>> optimizer.minimize((w * w).sum())
    >>> w.tolist()
    [0.75, -1.75]
    """

    _rule = staticmethod(rules.lion)
    _slots = ("mean",)

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 1e-4,
        betas: Betas = (0.9, 0.99),
        weight_decay: float | wf.Tensor = 0.0,
        **shared: Unpack[Shared],
    ) -> None:
        options = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(parameters, options, **shared)


class Muon(Optimizer):
    """Orthogonal steps for matrices, AdamW for all other parameters; see `rules.muon`.

    Each group is divided: its tensors of two axes go by Muon with `lr` and `weight_decay`, the
    others by AdamW with `adamw_lr` and `adamw_weight_decay`. A group with the option `orthogonal`
    says itself how all of it goes: embeddings and the last layer are best left to AdamW.

    >>> import weft as wf
    >>> net = {"w": wf.eye(2).requires_grad_(), "b": wf.zeros(2).requires_grad_()}
    >>> optimizer = wf.optim.Muon(net, lr=0.5, adamw_lr=0.25)
    >>> [(group.names, group["orthogonal"]) for group in optimizer.groups]
    [(('w',), True), (('b',), False)]
    """

    rowwise = False

    def __init__(
        self,
        parameters: Parameters | None = None,
        lr: Rate = 1e-3,
        momentum: float | wf.Tensor = 0.95,
        nesterov: bool = True,
        weight_decay: float | wf.Tensor = 0.1,
        iterations: int = 5,
        adamw_lr: Rate = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        adamw_weight_decay: float | wf.Tensor = 0.01,
        orthogonal: bool | None = None,
        **shared: Unpack[Shared],
    ) -> None:
        check_count("Muon", "iterations", iterations)
        options = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "iterations": iterations,
            "adamw_lr": adamw_lr,
            "betas": betas,
            "eps": eps,
            "adamw_weight_decay": adamw_weight_decay,
            "orthogonal": orthogonal,
            "amsgrad": False,
        }
        super().__init__(parameters, options, **shared)

    def _divide_groups(self, groups: list[Group]) -> list[Group]:
        return [part for group in groups for part in _by_rule(group)]

    def rule(self, options: Options) -> Rule:
        """See `Optimizer`."""
        return rules.muon if options["orthogonal"] else rules.adamw

    def slots(self, options: Options) -> dict[str, float]:
        """See `Optimizer`."""
        return {"momentum": 0.0} if options["orthogonal"] else {"mean": 0.0, "square": 0.0}


def _by_rule(group: Group) -> list[Group]:
    """The matrices of a group, and its other parameters with AdamW's options."""
    chosen = group.options.pop("orthogonal")
    rate, decay = group.options.pop("adamw_lr"), group.options.pop("adamw_weight_decay")
    kinds = [p.ndim == 2 if chosen is None else bool(chosen) for p in group.parameters]
    parts = []
    for orthogonal in (True, False):
        places = [i for i, kind in enumerate(kinds) if kind is orthogonal]
        part = Group(
            [group.parameters[i] for i in places],
            {**group.options, "orthogonal": orthogonal},
            tuple(group.names[i] for i in places),
            group.owner,
        )
        if orthogonal:
            _check_matrices(part)
        else:
            part.options["weight_decay"] = decay
            del part.options["lr"]
            part._set_lr(rate)
        parts.append(part)
    return [part for part in parts if part.parameters]


def _check_matrices(group: Group) -> None:
    for parameter in group.parameters:
        if parameter.ndim < 2:
            raise wf.ShapeError(
                "Muon",
                "a parameter of less than two axes cannot be orthogonal",
                expected="matrices in groups with orthogonal=True",
                got={"parameter": parameter},
                fix='give it to AdamW: {"params": [p], "orthogonal": False}',
            )
