"""The laws on programs drawn at random, and every order of three transforms.

A program is a directed graph of operations on float64 tensors. Its element-wise operations come
from the registry: each is made total by mapping its operands into the interval of its samples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.laws import LAWS, Arguments, Program, close

import weft as wf
from weft import Tensor
from weft.core.errors import Unsupported
from weft.ir.derivatives import Constant
from weft.ir.dispatch import apply
from weft.ir.primitive import PRIMITIVES, Primitive

SHAPES = [(), (3,), (2, 3), (2, 1), (1, 3)]
Interval = tuple[float, float]


# --- drawing programs ---


def intervals(primitive: Primitive) -> list[Interval] | None:
    """Where the operands of a differentiable element-wise primitive are sampled, or None."""
    derivatives = primitive.derivatives
    if not primitive.broadcasts or isinstance(derivatives, Unsupported):
        return None
    if any(isinstance(primitive.derivative(i), Constant) for i in range(len(derivatives))):
        return None
    real = [s for s in primitive.samples() if all(_is_real(x) for x in s.operands) and not s.params]
    if not real:
        return None
    sample = max(real, key=lambda sample: np.asarray(sample.operands[0]).size)
    found = [(float(np.min(x)), float(np.max(x))) for x in sample.operands]
    return found if _gives_float64(primitive, found) else None


def _is_real(operand: Any) -> bool:
    array = np.asarray(operand)
    return array.dtype in (np.float32, np.float64) and array.size > 0


def _gives_float64(primitive: Primitive, domains: list[Interval]) -> bool:
    kind = wf.spec("float64", ())
    return bool(primitive.type_rule(*[kind for _ in domains]) == kind)


ELEMENTWISE = {
    name: domains
    for name, primitive in sorted(PRIMITIVES.items())
    if (domains := intervals(primitive)) is not None
}


def into(x: Tensor, interval: Interval) -> Tensor:
    """x mapped smoothly into an interval."""
    low, high = interval
    return low + (high - low) * wf.sigmoid(x)


@dataclass(frozen=True)
class Step:
    """One operation: what it does to the values it takes, by their places on the stack."""

    text: str
    places: tuple[int, ...]
    run: Callable[..., Tensor]


@dataclass(frozen=True)
class RandomProgram:
    """Steps over a stack of values that starts with the arguments; returns the last two."""

    steps: tuple[Step, ...]

    def __call__(self, *xs: Tensor) -> list[Tensor]:
        values = list(xs)
        for step in self.steps:
            values.append(step.run(*[values[place] for place in step.places]))
        return values[-2:]

    def __repr__(self) -> str:
        return "; ".join(f"{step.text}{list(step.places)}" for step in self.steps)


def elementwise_step(name: str, places: tuple[int, ...]) -> Step:
    primitive, domains = PRIMITIVES[name], ELEMENTWISE[name]

    def run(*xs: Tensor) -> Tensor:
        return apply(primitive, *[into(x, d) for x, d in zip(xs, domains, strict=True)])

    return Step(name, places, run)


Shape = tuple[int, ...]
MOVES: dict[str, Callable[[Shape], list[Callable[[Tensor], Tensor]]]] = {
    "sum": lambda shape: [lambda x, a=axis: x.sum(axis=a) for axis in [None, *range(len(shape))]],
    "max": lambda shape: [lambda x, a=axis: wf.max(x, axis=a) for axis in range(len(shape))],
    "logsumexp": lambda shape: [
        lambda x, a=axis: wf.logsumexp(x, axis=a, keepdims=True) for axis in range(len(shape))
    ],
    "transpose": lambda shape: [lambda x: x.T] if len(shape) == 2 else [],
    "reshape": lambda shape: [lambda x: x.reshape(-1), lambda x: wf.expand_dims(x, axis=-1)],
    "slice": lambda shape: [lambda x: x[1:], lambda x: x[..., ::-1]] if shape else [],
    "index": lambda shape: [lambda x: x[wf.asarray([0, 0])]] if shape else [],
    "concatenate": lambda shape: [lambda x: wf.concat([x, 2.0 * x], axis=0)] if shape else [],
    "cumulative_sum": lambda shape: [lambda x: wf.cumulative_sum(x, axis=0)] if shape else [],
    "sort": lambda shape: [lambda x: wf.sort(x, axis=-1)] if shape else [],
    "softmax": lambda shape: [lambda x: wf.softmax(x, axis=-1)] if shape else [],
    "where": lambda shape: [lambda x: wf.where(x > 0.1, x, 0.5 * x)],
    "power": lambda shape: [lambda x: wf.tanh(x) ** 3],
    "cond": lambda shape: [
        lambda x: wf.cond(x.sum() > 0.0, lambda y: wf.sin(y) * 2.0, lambda y: y * y, x)
    ],
    "scan": lambda shape: (
        [lambda x: wf.scan(lambda c, y: (wf.tanh(c + y), c * y), wf.zeros_like(x[0]), x)[1]]
        if shape
        else []
    ),
    "loop": lambda shape: [lambda x: wf.fori_loop(0, 3, lambda i, y: wf.sin(y) + 0.5 * y, x)],
    "checkpoint": lambda shape: [lambda x: wf.checkpoint(lambda y: wf.tanh(y) * y)(x)],
}


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, Arguments]:
    """A program and arguments for it."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    seed = draw(st.integers(0, 2**16))
    generator = np.random.default_rng(seed)
    xs = [wf.asarray(generator.normal(size=shape)) for shape in shapes]
    values, steps = list(xs), []
    for _ in range(draw(st.integers(2, 6))):
        step = draw(_step(values))
        value = step.run(*[values[place] for place in step.places])
        if 1 <= int(value.size) <= 24 and value.ndim <= 3:
            values.append(value)
            steps.append(step)
    steps = steps or [Step("identity", (0,), lambda x: x * 1.0)]
    return RandomProgram(tuple(steps)), xs


@st.composite
def _step(draw: st.DrawFn, values: list[Tensor]) -> Step:
    latest = st.integers(max(0, len(values) - 3), len(values) - 1)
    kind = draw(st.sampled_from(["elementwise", "elementwise", "move", "matmul"]))
    place = draw(latest)
    if kind == "move":
        name = draw(st.sampled_from(sorted(MOVES)))
        options = MOVES[name](values[place].shape)
        if options:
            return Step(name, (place,), draw(st.sampled_from(options)))
    if kind == "matmul" and values[place].ndim == 2:
        return Step("gram", (place,), lambda x: x @ x.T)
    name = draw(st.sampled_from(sorted(ELEMENTWISE)))
    places = (place,) * len(ELEMENTWISE[name])
    if len(ELEMENTWISE[name]) == 2:
        others = [i for i, v in enumerate(values) if _broadcast(v, values[place])]
        places = (draw(st.sampled_from(others)), place)
    return elementwise_step(name, places)


def _broadcast(a: Tensor, b: Tensor) -> bool:
    pairs = zip(reversed(a.shape), reversed(b.shape), strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs)


# --- the laws ---


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.removeprefix("law_"))
@settings(max_examples=settings.default.max_examples * 2 // 5)
@given(programs())
def test_a_law_holds_for_random_programs(
    law: Callable[[Program, Arguments], None], drawn: tuple[Program, Arguments]
) -> None:
    law(*drawn)


def test_random_programs_use_most_element_wise_primitives() -> None:
    print(*ELEMENTWISE)
    assert len(ELEMENTWISE) > 30


# --- every order of three transforms ---

Scalar = Callable[[Tensor], Tensor]


def graded(f: Scalar) -> Scalar:
    return wf.grad(f)


def pushed(f: Scalar) -> Scalar:
    return lambda x: wf.jvp(f, (x,), (wf.ones_like(x),))[1]


def mapped(f: Scalar) -> Scalar:
    return lambda x: wf.vmap(f)(wf.stack([x, 2.0 * x])).sum()


def traced(f: Scalar) -> Scalar:
    def run(x: Tensor) -> Tensor:
        (result,) = wf.ir.interpret(wf.ir.trace(f, x), x)
        return result

    return run


TRANSFORMS = {"grad": graded, "jvp": pushed, "vmap": mapped, "trace": traced}


@dataclass(frozen=True)
class Terms:
    """Σ aᵢ f⁽ᵏⁱ⁾(cᵢ x): what the transforms make of f, on paper."""

    terms: tuple[tuple[float, int, float], ...] = ((1.0, 0, 1.0),)

    def after(self, transform: str) -> Terms:
        if transform in ("grad", "jvp"):
            return Terms(tuple((a * c, k + 1, c) for a, k, c in self.terms))
        if transform == "vmap":
            return Terms(self.terms + tuple((a, k, 2 * c) for a, k, c in self.terms))
        return self

    def at(self, derivative: Callable[[int, float], float], x: float) -> float:
        return sum(a * derivative(k, c * x) for a, k, c in self.terms)


@wf.custom_derivative
def custom_sine(x: Tensor) -> Tensor:
    return wf.sin(x)


@custom_sine.jvp
def custom_sine_rule(primals: Any, tangents: Any) -> Any:
    return custom_sine(primals[0]), tangents[0] * custom_cosine(primals[0])


@wf.custom_derivative
def custom_cosine(x: Tensor) -> Tensor:
    return wf.cos(x)


@custom_cosine.jvp
def custom_cosine_rule(primals: Any, tangents: Any) -> Any:
    return custom_cosine(primals[0]), -tangents[0] * custom_sine(primals[0])


def sine(k: int, x: float) -> float:
    return math.sin(x + k * math.pi / 2)


def sine_with_slope(k: int, x: float) -> float:
    return sine(k, x) + (k == 1)


def sine_beside_constant(x: Tensor) -> Tensor:
    with wf.no_grad():
        constant = wf.tanh(x) + x - wf.tanh(x)
    return wf.sin(x) + x - constant


def decay(k: int, x: float) -> float:
    return (-1.0) ** k * math.exp(-x)


def fourth_power(k: int, x: float) -> float:
    return math.perm(4, k) * x ** (4 - k)


def reciprocal(k: int, x: float) -> float:
    return (-1.0) ** k * math.factorial(k) / (1 + x) ** (k + 1)


OFFSET = wf.asarray(np.array(1.0))
FUNCTIONS: dict[str, tuple[Scalar, Callable[[int, float], float]]] = {
    "sin": (wf.sin, sine),
    "exp": (lambda x: wf.exp(-x), decay),
    "power": (lambda x: x**4, fourth_power),
    "quotient of a closure": (lambda x: OFFSET / (OFFSET + x), reciprocal),
    "branch": (lambda x: wf.cond(x > 0.0, wf.sin, wf.cos, x), sine),
    "choice": (lambda x: wf.where(x > 0.0, wf.sin(x), wf.exp(x)), sine),
    "loop": (lambda x: wf.fori_loop(0, 4, lambda i, y: y * x, wf.ones_like(x)), fourth_power),
    "scan": (
        lambda x: wf.scan(lambda c, y: (c * y, c), wf.ones_like(x), wf.stack([x] * 4))[0],
        fourth_power,
    ),
    "bounded while": (
        lambda x: wf.while_loop(
            lambda state: state[0] < 4,
            lambda state: (state[0] + 1, state[1] * x),
            (wf.asarray(0), wf.ones_like(x)),
            max_steps=6,
        )[1],
        fourth_power,
    ),
    "matrix": (lambda x: (wf.stack([x, x])[None] @ wf.stack([x, x])[:, None])[0, 0] ** 2 / 4.0,
               fourth_power),
    "checkpoint": (wf.checkpoint(lambda x: wf.sin(x)), sine),
    "custom": (custom_sine, sine),
    "no_grad": (sine_beside_constant, sine_with_slope),
    "no_grad in a compiled function": (wf.jit(sine_beside_constant), sine_with_slope),
    "inner gradient": (lambda x: wf.grad(wf.cos)(x) * -1.0, sine),
    "inner batch": (lambda x: wf.vmap(lambda y: y * x)(wf.stack([x, x])).sum() ** 2 / 4.0,
                    fourth_power),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("order", list(itertools.product(TRANSFORMS, repeat=3)), ids="-".join)
def test_transforms_nest_in_any_order(order: tuple[str, ...]) -> None:
    x = wf.asarray(np.array(0.375))
    for name, (f, derivative) in FUNCTIONS.items():
        transformed, expected = f, Terms()
        for transform in reversed(order):
            transformed, expected = TRANSFORMS[transform](transformed), expected.after(transform)
        found = transformed(x)
        assert found.dtype == wf.float64
        close(found, np.array(expected.at(derivative, 0.375)), f"{'('.join(order)}({name})")
