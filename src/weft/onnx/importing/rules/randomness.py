"""Random numbers, from Weft's generator: `wf.random.seed` says which."""

from __future__ import annotations

from typing import Any

import weft as wf
from weft.onnx.importing.reading import Array, element_of
from weft.onnx.importing.registry import rule
from weft.onnx.importing.running import Call

Tensor = wf.Tensor


def _key(call: Call) -> Any:
    """The key of a node that has a seed of its own."""
    seed = call.get("seed")
    return None if seed is None else wf.random.key(int(seed))


def _dtype(call: Call, x: Tensor | None) -> str:
    code = call.get("dtype")
    if code is None:
        return "float32" if x is None or not x.dtype.is_floating else x.dtype.name
    return element_of(code, str(call.node)).name


def _normal(call: Call, shape: Any, dtype: str) -> Any:
    call.check_room(shape)
    draws = wf.random.normal(shape, key=_key(call))
    return (call["mean"] + call["scale"] * draws).astype(dtype)


def _uniform(call: Call, shape: Any, dtype: str) -> Any:
    call.check_room(shape)
    draws = wf.random.uniform(shape, key=_key(call))
    return (call["low"] + (call["high"] - call["low"]) * draws).astype(dtype)


@rule("RandomNormal")
def random_normal(call: Call) -> Any:
    """Normal numbers in a shape."""
    return _normal(call, tuple(call["shape"]), _dtype(call, None))


@rule("RandomNormalLike")
def random_normal_like(call: Call, x: Tensor) -> Any:
    """Normal numbers in the shape of a value."""
    return _normal(call, x.shape, _dtype(call, x))


@rule("RandomUniform")
def random_uniform(call: Call) -> Any:
    """Uniform numbers in a shape."""
    return _uniform(call, tuple(call["shape"]), _dtype(call, None))


@rule("RandomUniformLike")
def random_uniform_like(call: Call, x: Tensor) -> Any:
    """Uniform numbers in the shape of a value."""
    return _uniform(call, x.shape, _dtype(call, x))


@rule("Bernoulli")
def bernoulli(call: Call, x: Tensor) -> Tensor:
    """One with the probability that each element gives, else zero."""
    draws = wf.random.uniform(x.shape, key=_key(call))
    kind = x.dtype.name if call.get("dtype") is None else _dtype(call, x)
    return (draws < x.astype("float32")).astype(kind)


@rule("Multinomial")
def multinomial(call: Call, x: Tensor) -> Tensor:
    """Classes drawn by their logarithmic probabilities: [batch, samples]."""
    count = call["sample_size"]
    call.check_room([*x.shape, count])
    noise = wf.random.uniform((x.shape[0], count, x.shape[1]), key=_key(call))
    # The largest of logarithms with Gumbel noise is a draw of the class.
    gumbel = -wf.log(-wf.log(wf.clip(noise, 1e-12, 1.0 - 1e-7)))
    drawn = wf.argmax(x[:, None].astype("float32") + gumbel, axis=-1)
    return drawn.astype(element_of(call["dtype"], str(call.node)).name)


@rule("Dropout")
def dropout_of_inference(call: Call, x: Tensor) -> tuple[Tensor, ...]:
    """The value itself: older files are for inference."""
    kind = "bool" if call.version >= 10 else x.dtype.name
    return x, wf.ones(x.shape, dtype=kind)


@rule("Dropout", since=12, known=(1, 2))
def dropout(
    call: Call, x: Tensor, ratio: Array | None = None, training: Array | None = None
) -> tuple[Tensor, ...]:
    """Elements dropped by chance in training; the value itself otherwise."""
    share = 0.5 if ratio is None else float(ratio.reshape(-1)[0])
    if training is None or not bool(training.reshape(-1)[0]) or share == 0.0:
        return x, wf.ones(x.shape, dtype="bool")
    kept = wf.random.uniform(x.shape, key=_key(call)) >= share
    return wf.where(kept, x / (1.0 - share), 0.0), kept
