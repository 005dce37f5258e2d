"""`WeftClassifier` and `WeftRegressor`: what scikit-learn asks of an estimator, around a trainer.

Inputs are checked as scikit-learn checks them, and scaled by the training rows. Computations are in
float64, as scikit-learn's own: the answer to a row does not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Self

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.optional import require

NAMES = ("BaseEstimator", "ClassifierMixin", "RegressorMixin")


def _sklearn_bases() -> tuple[Any, ...]:
    """Scikit-learn's base classes; without it others, of which no estimator can be made."""
    try:
        module = import_module("sklearn.base")
    except ImportError:
        return tuple(type(name, (), {}) for name in NAMES)
    return tuple(getattr(module, name) for name in NAMES)


BaseEstimator, ClassifierMixin, RegressorMixin = _sklearn_bases()

__all__ = ["WeftClassifier", "WeftRegressor"]

Array = npt.NDArray[Any]


class _Estimator(BaseEstimator):  # type: ignore[misc, valid-type]
    """What both share: settings, checks, scaling and training."""

    def __init__(
        self,
        hidden: Sequence[int] = (64,),
        *,
        module: Callable[[int, int], Any] | None = None,
        optimizer: str = "Adam",
        lr: float = 0.01,
        weight_decay: float = 0.0,
        epochs: int = 50,
        batch_size: int = 32,
        compile: bool = False,
        random_state: Any = None,
    ) -> None:
        require("sklearn", "scikit-learn", type(self).__name__, extra="sklearn")
        self.hidden, self.module, self.optimizer, self.lr = hidden, module, optimizer, lr
        self.weight_decay, self.epochs, self.batch_size = weight_decay, epochs, batch_size
        self.compile, self.random_state = compile, random_state

    # --- training --------------------------------------------------------------------------------

    def _train(self, x: Array, y: Array, outputs: int, loss: Callable[..., Any]) -> None:
        """Fit a new network; the global random state is as before."""
        validation = require("sklearn.utils", "scikit-learn", "fit", extra="sklearn")
        seed = int(validation.check_random_state(self.random_state).randint(1 << 31))
        self.center_ = x.mean(axis=0)
        spread = x.std(axis=0)
        self.scale_ = np.where(spread > 0, spread, 1.0)
        before = wf.random.get_state()
        try:
            wf.random.seed(seed)
            self.network_ = self._network(x.shape[1], outputs).to("float64")
            kind = getattr(wf.optim, self.optimizer)
            rule = kind(self.network_.parameters(), lr=self.lr, weight_decay=self.weight_decay)
            trainer = wf.train.Trainer(
                self.network_, loss, rule, compile=self.compile, seed=seed, progress=False
            )
            data = (wf.asarray(self._scaled_rows(x)), wf.asarray(y))
            history = trainer.fit(data, self.epochs, batch_size=self.batch_size)
        finally:
            wf.random.set_state(before)
        self.loss_curve_, self.n_iter_ = history["loss"], len(history)

    def _network(self, inputs: int, outputs: int) -> Any:
        if self.module is not None:
            return self.module(inputs, outputs)
        return wf.models.MLP([inputs, *self.hidden, outputs])

    def _scaled_rows(self, x: Array) -> Array:
        return np.asarray((x - self.center_) / self.scale_, np.float64)

    def _outputs(self, x: Any) -> Array:
        """What the trained network gives for rows: [rows, outputs]."""
        validation = require("sklearn.utils.validation", "scikit-learn", "predict", "sklearn")
        validation.check_is_fitted(self, "network_")
        checked = validation.validate_data(self, x, reset=False, dtype=np.float64)
        self.network_.eval()
        with wf.no_grad():
            return np.asarray(self.network_(wf.asarray(self._scaled_rows(checked))))

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle: weights as arrays, since networks hold more than data."""
        state: dict[str, Any] = dict(super().__getstate__())
        if "network_" in state:
            weights = state.pop("network_").state_dict()
            state["_weights"] = {name: np.asarray(value) for name, value in weights.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        weights = state.pop("_weights", None)
        super().__setstate__(state)
        if weights is not None:
            self.network_ = self._network(self.n_features_in_, self.n_outputs_).to("float64")
            self.network_.load_state_dict({k: wf.asarray(v) for k, v in weights.items()})


class WeftClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc, valid-type]
    """A network that tells classes apart, as an estimator of scikit-learn.

    `hidden` are the widths of a perceptron's hidden layers; `module(inputs, classes)` makes any
    other network. `optimizer` is a name of `wf.optim`. What was learned stands in `network_`,
    `classes_` and `loss_curve_`.
    """

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803 (scikit-learn's name)
        """Train on rows X [rows, features] and their classes y [rows]."""
        validation = require("sklearn.utils.validation", "scikit-learn", "fit", "sklearn")
        classes = require("sklearn.utils.multiclass", "scikit-learn", "fit", "sklearn")
        X, y = validation.validate_data(self, X, y, dtype=np.float64)  # noqa: N806
        classes.check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        self.n_outputs_ = len(self.classes_)
        if self.n_outputs_ < 2:
            raise ValueError(
                f"{type(self).__name__} cannot be trained on one class: {self.classes_.tolist()}"
            )
        self._train(X, numbers.astype(np.int64), self.n_outputs_, wf.nn.functional.cross_entropy)
        return self

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """The probabilities of all classes: [rows, classes]."""
        logits = self._outputs(X)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The most likely class of each row."""
        outputs = self._outputs(X)
        return np.asarray(self.classes_[outputs.argmax(axis=1)])


class WeftRegressor(RegressorMixin, _Estimator):  # type: ignore[misc, valid-type]
    """A network that finds numbers, as an estimator of scikit-learn; see `WeftClassifier`.

    Targets are scaled by the training rows, too.
    """

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Train on rows X [rows, features] and numbers y [rows] or [rows, outputs]."""
        validation = require("sklearn.utils.validation", "scikit-learn", "fit", "sklearn")
        X, y = validation.validate_data(  # noqa: N806
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True
        )
        self._is_single = y.ndim == 1
        targets = np.asarray(y, np.float64).reshape(len(y), -1)
        self.n_outputs_ = targets.shape[1]
        self.target_center_ = targets.mean(axis=0)
        spread = targets.std(axis=0)
        self.target_scale_ = np.where(spread > 0, spread, 1.0)
        scaled = (targets - self.target_center_) / self.target_scale_
        self._train(X, scaled, self.n_outputs_, wf.nn.functional.mse_loss)
        return self

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The number of each row, or the numbers."""
        outputs = self._outputs(X) * self.target_scale_ + self.target_center_
        return np.asarray(outputs[:, 0] if self._is_single else outputs)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
