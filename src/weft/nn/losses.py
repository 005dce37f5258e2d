"""Losses as modules.

>>> import weft as wf
>>> from weft import nn
>>> nn.MSELoss()(wf.tensor([1.0, 2.0]), wf.tensor([1.0, 4.0])).item()
2.0
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.nn.functional.checks import choose
from weft.nn.functional.losses import REDUCTIONS
from weft.nn.module import Module


class _Loss(Module):
    """A loss function with its options, which are attributes of these names."""

    function: ClassVar[Callable[..., wf.Tensor]]
    names: ClassVar[tuple[str, ...]] = ("reduction",)
    reductions: ClassVar[tuple[str, ...]] = REDUCTIONS

    def __init__(self, reduction: str = "mean") -> None:
        choose(type(self).__name__, "reduction", reduction, self.reductions)
        self.reduction = reduction

    def _hold(self, **tensors: wf.Tensor | None) -> None:
        """Hold weights as buffers, which are saved with the module."""
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, *given: wf.Tensor) -> wf.Tensor:
        """The loss of a prediction and its target, in the order of the function's arguments."""
        return type(self).function(*given, **{name: getattr(self, name) for name in self.names})

    def extra_repr(self) -> str:
        """See `Module`."""
        options: dict[str, Any] = {name: getattr(self, name) for name in self.names}
        plain = {n: v for n, v in options.items() if not isinstance(v, wf.Tensor) and v is not None}
        return ", ".join(f"{name}={value!r}" for name, value in plain.items())


class MSELoss(_Loss):
    """(x - target)².

    >>> MSELoss()(wf.tensor([1.0, 3.0]), wf.tensor([2.0, 5.0])).item()
    2.5
    """

    function = F.mse_loss


class L1Loss(_Loss):
    """|x - target|.

    >>> L1Loss()(wf.tensor([1.0, 3.0]), wf.tensor([2.0, 5.0])).item()
    1.5
    """

    function = F.l1_loss


class SmoothL1Loss(_Loss):
    """Quadratic below beta, linear above.

    >>> SmoothL1Loss()(wf.tensor([1.0, 3.0]), wf.tensor([2.0, 5.0])).item()
    1.0
    """

    function = F.smooth_l1_loss
    names = ("reduction", "beta")

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta


class HuberLoss(_Loss):
    """Quadratic below delta, linear above, with slope delta.

    >>> HuberLoss()(wf.tensor([1.0, 3.0]), wf.tensor([2.0, 5.0])).item()
    1.0
    """

    function = F.huber_loss
    names = ("reduction", "delta")

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta


class CrossEntropyLoss(_Loss):
    """-log softmax(x) at the target; see `nn.functional.cross_entropy`.

    >>> round(CrossEntropyLoss()(wf.tensor([[0.0, 0.0]]), wf.tensor([1])).item(), 4)
    0.6931
    """

    function = F.cross_entropy
    names = ("weight", "ignore_index", "reduction", "label_smoothing")

    def __init__(
        self,
        weight: wf.Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        self._hold(weight=weight)


class NLLLoss(_Loss):
    """-x at the target, for log-probabilities x.

    >>> NLLLoss()(wf.tensor([[-0.5, -1.5]]), wf.tensor([1])).item()
    1.5
    """

    function = F.nll_loss
    names = ("weight", "ignore_index", "reduction")

    def __init__(
        self, weight: wf.Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.ignore_index = ignore_index
        self._hold(weight=weight)


class BCELoss(_Loss):
    """Binary cross entropy of probabilities.

    >>> round(BCELoss()(wf.tensor([0.5, 0.5]), wf.tensor([1.0, 0.0])).item(), 4)
    0.6931
    """

    function = F.binary_cross_entropy
    names = ("weight", "reduction")

    def __init__(self, weight: wf.Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._hold(weight=weight)


class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of sigmoid(x).

    >>> round(BCEWithLogitsLoss()(wf.zeros(2), wf.tensor([1.0, 0.0])).item(), 4)
    0.6931
    """

    function = F.binary_cross_entropy_with_logits
    names = ("weight", "reduction", "pos_weight")

    def __init__(
        self,
        weight: wf.Tensor | None = None,
        reduction: str = "mean",
        pos_weight: wf.Tensor | None = None,
    ) -> None:
        super().__init__(reduction)
        self._hold(weight=weight, pos_weight=pos_weight)


class KLDivLoss(_Loss):
    """The Kullback-Leibler divergence of the target from exp(x).

    >>> KLDivLoss(reduction="sum")(wf.log(wf.tensor([0.5, 0.5])), wf.tensor([0.5, 0.5])).item()
    0.0
    """

    function = F.kl_div
    names = ("reduction", "log_target")
    reductions = (*REDUCTIONS, "batchmean")

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target


class CTCLoss(_Loss):
    """Connectionist temporal classification; see `nn.functional.ctc_loss`.

    >>> scores = wf.nn.functional.log_softmax(wf.zeros((5, 1, 3)), axis=2)
    >>> round(CTCLoss()(scores, wf.tensor([[1, 2]]), wf.tensor([5]), wf.tensor([2])).item(), 3)
    0.969
    """

    function = F.ctc_loss
    names = ("blank", "reduction", "zero_infinity")

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        super().__init__(reduction)
        self.blank, self.zero_infinity = blank, zero_infinity


class PoissonNLLLoss(_Loss):
    """The negative log-likelihood of counts.

    >>> PoissonNLLLoss()(wf.zeros(2), wf.ones(2)).item()
    1.0
    """

    function = F.poisson_nll_loss
    names = ("log_input", "full", "eps", "reduction")

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-8,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.log_input, self.full, self.eps = log_input, full, eps


class GaussianNLLLoss(_Loss):
    """The negative log-likelihood of normal numbers: loss(x, target, var).

    >>> GaussianNLLLoss()(wf.zeros(2), wf.ones(2), wf.ones(2)).item()
    0.5
    """

    function = F.gaussian_nll_loss
    names = ("full", "eps", "reduction")

    def __init__(self, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full, self.eps = full, eps


class _MarginLoss(_Loss):
    names = ("margin", "reduction")
    default: ClassVar[float] = 0.0

    def __init__(self, margin: float | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = self.default if margin is None else margin


class MarginRankingLoss(_MarginLoss):
    """max(0, margin - target (x1 - x2)); the margin is 0 by default.

    >>> MarginRankingLoss()(wf.tensor([1.0]), wf.tensor([3.0]), wf.tensor([1.0])).item()
    2.0
    """

    function = F.margin_ranking_loss


class CosineEmbeddingLoss(_MarginLoss):
    """1 - cos(x1, x2) for like pairs, max(0, cos(x1, x2) - margin) for unlike ones.

    >>> CosineEmbeddingLoss()(wf.ones((1, 2)), wf.ones((1, 2)), wf.tensor([-1.0])).item()
    0.9999999403953552
    """

    function = F.cosine_embedding_loss


class HingeEmbeddingLoss(_MarginLoss):
    """x where the target is 1, max(0, margin - x) where it is -1; the margin is 1 by default.

    >>> HingeEmbeddingLoss()(wf.tensor([0.25, 0.5]), wf.tensor([1.0, -1.0])).item()
    0.375
    """

    function = F.hinge_embedding_loss
    default = 1.0


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target x)).

    >>> round(SoftMarginLoss()(wf.zeros(2), wf.tensor([1.0, -1.0])).item(), 4)
    0.6931
    """

    function = F.soft_margin_loss


class MultiMarginLoss(_Loss):
    """The hinge loss over classes.

    >>> MultiMarginLoss()(wf.tensor([[0.5, 0.0]]), wf.tensor([0])).item()
    0.25
    """

    function = F.multi_margin_loss
    names = ("p", "margin", "weight", "reduction")

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: wf.Tensor | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.p, self.margin = p, margin
        self._hold(weight=weight)


class MultiLabelMarginLoss(_Loss):
    """The hinge loss over several right classes for each row.

    >>> MultiLabelMarginLoss()(wf.tensor([[0.5, 0.0]]), wf.tensor([[0, -1]])).item()
    0.25
    """

    function = F.multilabel_margin_loss


class MultiLabelSoftMarginLoss(_Loss):
    """Binary cross entropy of each class by itself, and the mean of all classes.

    >>> MultiLabelSoftMarginLoss()(wf.tensor([[0.0, 0.0]]), wf.tensor([[1.0, 0.0]])).item() < 0.7
    True
    """

    function = F.multilabel_soft_margin_loss
    names = ("weight", "reduction")

    def __init__(self, weight: wf.Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._hold(weight=weight)


class TripletMarginLoss(_Loss):
    """max(0, |anchor - positive| - |anchor - negative| + margin).

    >>> TripletMarginLoss()(wf.zeros((1, 2)), wf.zeros((1, 2)), wf.full((1, 2), 9.0)).item()
    0.0
    """

    function = F.triplet_margin_loss
    names = ("margin", "p", "eps", "swap", "reduction")

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap
