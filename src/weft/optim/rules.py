"""Update rules: each a pure function of one parameter, its gradient, its state and the settings.

`rule(p, g, state, h)` gives the new parameter and the new state. `h` holds the settings by name
(`h.lr`, `h.betas`), the number of the step from 1 (`h.step`), and `h.correction(beta)`, which is
1 − βᵗ. In the formulas θ is the parameter, g the gradient, η the learning rate, λ the weight decay.

>>> import weft as wf
>>> from weft.optim.rules import Settings, sgd
>>> h = Settings({"lr": 0.1, "weight_decay": 0.0}, step=wf.tensor(1.0))
>>> sgd(wf.tensor([1.0, 2.0]), wf.tensor([1.0, -1.0]), {}, h)[0].tolist()
[0.8999999761581421, 2.0999999046325684]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import weft as wf

State: TypeAlias = dict[str, wf.Tensor]
Updated: TypeAlias = tuple[wf.Tensor, State]


class Settings:
    """The settings of a group of parameters in one step, and what rules derive from them once."""

    def __init__(self, options: Mapping[str, Any], step: wf.Tensor) -> None:
        self._options = options
        self._corrections: dict[Any, Any] = {}
        self.step = step

    def __getattr__(self, name: str) -> Any:
        try:
            return self._options[name]
        except KeyError:
            raise AttributeError(name) from None

    def correction(self, beta: Any) -> Any:
        """1 − βᵗ: the bias of an average that began at zero, after t steps.

        Through expm1, for β near 1 loses all its digits in the plain formula.
        """
        key = id(beta) if isinstance(beta, wf.Tensor) else beta
        if key not in self._corrections:
            self._corrections[key] = -wf.expm1(self.step * _logarithm(beta))
        return self._corrections[key]


Rule: TypeAlias = Callable[[wf.Tensor, wf.Tensor, State, Settings], Updated]


def _logarithm(beta: Any) -> Any:
    if isinstance(beta, wf.Tensor):
        return wf.log(beta)
    return math.log(beta) if beta > 0 else -math.inf


def is_zero(setting: Any) -> bool:
    """Whether a setting is the number 0; one that is a tensor may change, and counts as another."""
    return not isinstance(setting, wf.Tensor) and setting == 0


def add_penalty(p: wf.Tensor, g: wf.Tensor, h: Settings) -> wf.Tensor:
    """g + λ θ: the gradient of the loss with λ/2 ‖θ‖² added to it."""
    return g if is_zero(h.weight_decay) else g + p * h.weight_decay


def decay_weights(p: wf.Tensor, h: Settings) -> wf.Tensor:
    """θ − η λ θ: decay beside the gradient, not through it (Loshchilov and Hutter, 2019)."""
    return p if is_zero(h.weight_decay) else p - p * (h.lr * h.weight_decay)


def average(old: wf.Tensor, new: wf.Tensor, beta: Any) -> wf.Tensor:
    """β old + (1 − β) new."""
    joined: wf.Tensor = old * beta + new * (1 - beta)
    return joined


def sgd(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """Gradient descent with momentum μ and dampening τ.

    b ← μ b + (1 − τ) g, in the first step b ← g;  θ ← θ − η b;  with Nesterov θ ← θ − η (g + μ b).
    """
    g = add_penalty(p, g, h)
    if "momentum" not in state:
        return p - h.lr * g, {}
    b = h.momentum * state["momentum"] + (1 - h.dampening) * g
    if not is_zero(h.dampening):
        b = wf.where(wf.equal(h.step, 1), g, b)
    direction = g + h.momentum * b if h.nesterov else b
    return p - h.lr * direction, {"momentum": b}


def adam(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """Adam (Kingma and Ba, 2015); with AMSGrad v̂ is the largest so far (Reddi et al., 2018).

    m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;
    θ ← θ − η m/(1 − β₁ᵗ) / (√(v/(1 − β₂ᵗ)) + ε)
    """
    return _adam_step(p, add_penalty(p, g, h), state, h)


def adamw(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """Adam with decoupled weight decay: θ ← θ − η λ θ, then as `adam` (Loshchilov, 2019)."""
    return _adam_step(decay_weights(p, h), g, state, h)


def _adam_step(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    (beta1, beta2), new = h.betas, {}
    new["mean"] = m = average(state["mean"], g, beta1)
    new["square"] = v = average(state["square"], g * g, beta2)
    if "largest" in state:
        new["largest"] = v = wf.maximum(state["largest"], v)
    rate = h.lr / h.correction(beta1)
    return p - rate * m / (wf.sqrt(v) / wf.sqrt(h.correction(beta2)) + h.eps), new


def rmsprop(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """RMSprop (Hinton, 2012); centered, the variance stands in place of the mean square.

    v ← α v + (1 − α) g²;  d = g / (√v + ε);  b ← μ b + d;  θ ← θ − η b
    """
    g, new = add_penalty(p, g, h), {}
    new["square"] = v = average(state["square"], g * g, h.alpha)
    if "mean" in state:
        new["mean"] = mean = average(state["mean"], g, h.alpha)
        v = v - mean * mean
    direction = g / (wf.sqrt(v) + h.eps)
    if "momentum" in state:
        new["momentum"] = direction = h.momentum * state["momentum"] + direction
    return p - h.lr * direction, new


def adagrad(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """Adagrad (Duchi et al., 2011): s ← s + g²;  θ ← θ − η/(1 + (t − 1) δ) g / (√s + ε)."""
    g = add_penalty(p, g, h)
    s = state["sum"] + g * g
    rate = h.lr if is_zero(h.lr_decay) else h.lr / (1 + (h.step - 1) * h.lr_decay)
    return p - rate * g / (wf.sqrt(s) + h.eps), {"sum": s}


def adadelta(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """Adadelta (Zeiler, 2012).

    v ← ρ v + (1 − ρ) g²;  d = √(u + ε) / √(v + ε) g;  u ← ρ u + (1 − ρ) d²;  θ ← θ − η d
    """
    g = add_penalty(p, g, h)
    v = average(state["square"], g * g, h.rho)
    d = wf.sqrt(state["delta"] + h.eps) / wf.sqrt(v + h.eps) * g
    return p - h.lr * d, {"square": v, "delta": average(state["delta"], d * d, h.rho)}


def lamb(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """LAMB (You et al., 2020): Adam's direction, as long as the parameter.

    r = m̂ / (√v̂ + ε) + λ θ;  θ ← θ − η ‖θ‖/‖r‖ r, with the quotient 1 where a norm is 0.
    """
    beta1, beta2 = h.betas
    m = average(state["mean"], g, beta1)
    v = average(state["square"], g * g, beta2)
    r = (m / h.correction(beta1)) / (wf.sqrt(v / h.correction(beta2)) + h.eps)
    r = add_penalty(p, r, h)
    length, size = wf.sqrt((p * p).sum()), wf.sqrt((r * r).sum())
    measurable = (length > 0) & (size > 0)
    trust = wf.where(measurable, length / wf.where(measurable, size, 1.0), 1.0)
    return p - h.lr * trust * r, {"mean": m, "square": v}


def lion(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """Lion (Chen et al., 2023), with decoupled weight decay.

    θ ← θ − η λ θ − η sign(β₁ m + (1 − β₁) g);  m ← β₂ m + (1 − β₂) g
    """
    beta1, beta2 = h.betas
    direction = wf.sign(average(state["mean"], g, beta1))
    return decay_weights(p, h) - h.lr * direction, {"mean": average(state["mean"], g, beta2)}


def muon(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """Muon (Jordan et al., 2024): momentum made orthogonal, with decoupled weight decay.

    b ← μ b + (1 − μ) g;  O = orthogonal(b), with Nesterov of μ b + (1 − μ) g;
    θ ← θ − η λ θ − η √max(1, rows/columns) O. Further axes of p count as columns.
    """
    b = average(state["momentum"], g, h.momentum)
    direction = average(b, g, h.momentum) if h.nesterov else b
    matrix = direction.reshape(direction.shape[0], -1)
    rows, columns = matrix.shape
    turned = orthogonalize(matrix, h.iterations).reshape(p.shape)
    rate = h.lr * math.sqrt(max(1.0, int(rows) / int(columns)))
    return decay_weights(p, h) - rate * turned, {"momentum": b}


def nadam(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """Adam with Nesterov's momentum (Dozat, 2016), whose momentum grows with the steps.

    μₜ = β₁ (1 − ½ 0.96^(t ψ));  P ← P μₜ;  m, v as in `adam`;
    θ ← θ − η ((1 − μₜ) g/(1 − P) + μₜ₊₁ m/(1 − P μₜ₊₁)) / (√(v/(1 − β₂ᵗ)) + ε)
    """
    beta1, beta2 = h.betas
    if h.decoupled_weight_decay:
        p = decay_weights(p, h)
    else:
        g = add_penalty(p, g, h)
    now, after = (
        beta1 * (1 - 0.5 * wf.pow(0.96, step * h.momentum_decay)) for step in (h.step, h.step + 1)
    )
    product = state["product"] * now
    m = average(state["mean"], g, beta1)
    v = average(state["square"], g * g, beta2)
    ahead = (1 - now) / (1 - product) * g + after / (1 - product * after) * m
    spread = wf.sqrt(v) / wf.sqrt(h.correction(beta2)) + h.eps
    return p - h.lr * ahead / spread, {"mean": m, "square": v, "product": product}


def radam(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """Rectified Adam (Liu et al., 2020): plain momentum until the variance of v is finite.

    ρ∞ = 2/(1 − β₂) − 1;  ρ = ρ∞ − 2 t β₂ᵗ/(1 − β₂ᵗ);  m, v as in `adam`;
    where ρ > 5, the step is Adam's times √((ρ−4)(ρ−2)ρ∞ / ((ρ∞−4)(ρ∞−2)ρ)).
    """
    beta1, beta2 = h.betas
    if h.decoupled_weight_decay:
        p = decay_weights(p, h)
    else:
        g = add_penalty(p, g, h)
    m = average(state["mean"], g, beta1)
    v = average(state["square"], g * g, beta2)
    limit = 2 / (1 - beta2) - 1
    correction = h.correction(beta2)
    length = limit - 2 * h.step * (1 - correction) / correction
    is_finite = length > 5
    safe = wf.where(is_finite, length, 6.0)
    rectified = wf.sqrt((safe - 4) * (safe - 2) * limit / ((limit - 4) * (limit - 2) * safe))
    adaptive = rectified * wf.sqrt(correction) / (wf.sqrt(v) + h.eps)
    mean = m / h.correction(beta1)
    return p - h.lr * mean * wf.where(is_finite, adaptive, 1.0), {"mean": m, "square": v}


def adamax(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """Adam by the largest gradient (Kingma and Ba, 2015).

    m ← β₁ m + (1 − β₁) g;  u ← max(β₂ u, |g| + ε);  θ ← θ − η/(1 − β₁ᵗ) m/u
    """
    beta1, beta2 = h.betas
    g = add_penalty(p, g, h)
    m = average(state["mean"], g, beta1)
    u = wf.maximum(state["largest"] * beta2, wf.abs(g) + h.eps)
    return p - h.lr / h.correction(beta1) * m / u, {"mean": m, "largest": u}


def sparse_adam(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """Adam of the rows that have a gradient; the others, and their averages, stay as they are."""
    axes = tuple(range(1, g.ndim))
    touched = wf.any(wf.not_equal(g, 0), axis=axes, keepdims=True) if axes else wf.not_equal(g, 0)
    moved, new = _adam_step(p, g, state, h)
    kept = {name: wf.where(touched, new[name], state[name]) for name in new}
    return wf.where(touched, moved, p), kept


def adafactor(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """Adafactor (Shazeer and Stern, 2018): second moments of rows and columns in place of all.

    γ = t^c;  R ← R + γ (mean of g² over rows − R), C likewise over columns;  V = R C / mean(R);
    U = g/√V, cut to a root mean square of d;  θ ← θ − η λ θ − max(ε₂, rms(θ)) min(η, 1/√t) U
    """
    floor = wf.finfo(p.dtype).eps if h.floor is None else h.floor
    share = wf.pow(h.step, h.beta2_decay)
    rate = wf.maximum(_root_mean_square(p), h.least) * wf.minimum(h.lr, 1 / wf.sqrt(h.step))
    squares, new = g * g, {}
    if "rows" in state:
        for name, axis in (("rows", -1), ("columns", -2)):
            means = wf.mean(squares, axis=axis, keepdims=True)
            new[name] = state[name] + share * (means - state[name])
        total = wf.maximum(wf.mean(new["rows"], axis=-2, keepdims=True), floor)
        variance = new["rows"] * new["columns"] / total
    else:
        new["square"] = variance = state["square"] + share * (squares - state["square"])
    update = g * wf.rsqrt(wf.maximum(variance, floor * floor))
    excess = wf.maximum(_root_mean_square(update) / h.d, 1.0)
    return decay_weights(p, h) - rate / excess * update, new


def _root_mean_square(x: wf.Tensor) -> wf.Tensor:
    return wf.sqrt(wf.mean(x * x))


def rprop(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """Resilient steps (Riedmiller and Braun, 1993): only the signs of gradients count.

    A step grows where the sign stays and shrinks where it changes, where nothing is done then.
    """
    (shrink, grow), (least, most) = h.etas, h.step_sizes
    before = wf.where(wf.equal(h.step, 1), h.lr, state["size"])
    agreement = g * state["gradient"]
    # Of two numbers alone `where` would be float32, whatever the parameters are.
    shorter = wf.where(agreement < 0, before * shrink, before)
    size = wf.clip(wf.where(agreement > 0, before * grow, shorter), least, most)
    g = wf.where(agreement < 0, 0.0, g)
    return p - wf.sign(g) * size, {"gradient": g, "size": size}


def asgd(p: wf.Tensor, g: wf.Tensor, state: State, h: Settings) -> Updated:
    """Averaged gradient descent (Polyak and Juditsky, 1992), with a learning rate that falls.

    ηₜ = η (1 + λ' η (t − 1))^−α;  θ ← θ (1 − λ' ηₜ) − ηₜ g;
    the average ← average + (θ − average)/max(1, t − 1 − t₀)
    """
    g = add_penalty(p, g, h)
    earlier = h.step - 1
    rate = h.lr / wf.pow(1 + h.lambd * h.lr * earlier, h.alpha)
    p = p * (1 - h.lambd * rate) - rate * g
    share = 1 / wf.maximum(earlier - h.t0, 1.0)
    return p, {"average": state["average"] + (p - state["average"]) * share}


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""The coefficients of a quintic that draws singular values towards 1, steepest at 0."""


def orthogonalize(matrix: wf.Tensor, iterations: int = 5) -> wf.Tensor:
    """The matrix with its singular values drawn near 1, by Newton–Schulz iterations.

    X ← a X + (b A + c A²) X with A = X Xᵀ; only products, so it is quick and has no branches.

    >>> import weft as wf
    >>> from weft.optim.rules import orthogonalize
    >>> turned = orthogonalize(wf.tensor([[3.0, 0.0], [0.0, 0.2]]))
    >>> all(0.6 < value < 1.3 for value in wf.diag(turned).tolist())
    True
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / wf.maximum(wf.sqrt((x * x).sum()), 1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if tall else x
