"""NumPy's functions on tensors: its values as tensors, or a refusal that says what to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf

X = np.array([[1.0, 2.0, 0.5], [3.0, 4.0, 0.25]])
CALLS: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "arctan": np.arctan,
    "power": lambda x: np.power(x, 2),
    "float32 scalar": lambda x: np.float32(2) * x,
    "float64 scalar": lambda x: np.float64(2) - x,
    "array first": lambda x: X + x,
    "array compared": lambda x: X < x,
    "product": lambda x: X.T @ x,
    "divmod": lambda x: np.divmod(x, 2.0)[1],
    "sum": np.sum,
    "sum along": lambda x: np.sum(x, 0),
    "sum kept": lambda x: np.sum(x, axis=1, keepdims=True),
    "reduce": np.add.reduce,
    "largest": lambda x: np.maximum.reduce(x, axis=1),
    "accumulate": lambda x: np.add.accumulate(x, axis=1),
    "var": lambda x: np.var(x, axis=1, ddof=1),
    "concatenate": lambda x: np.concatenate([x, X], 1),
    "stack": lambda x: np.stack([x, x], axis=-1),
    "where": lambda x: np.where(x > 1, x, 0.0),
    "reshape": lambda x: np.reshape(x, (3, 2)),
    "transpose": lambda x: np.transpose(x, (1, 0)),
    "clip": lambda x: np.clip(x, 1.0, 2.0),
    "split": lambda x: np.split(x, 3, axis=1)[1],
    "repeat": lambda x: np.repeat(x, 2),
    "tile": lambda x: np.tile(x, (2, 1)),
    "pad": lambda x: np.pad(x, 1, mode="constant", constant_values=3.0),
    "einsum": lambda x: np.einsum("ij->ji", x),
    "sort": lambda x: np.sort(x, axis=0),
    "argmax": lambda x: np.argmax(x, 1),
    "median": lambda x: np.median(x, axis=1),
    "outer": lambda x: np.outer(x[0], x[1]),
    "norm": lambda x: np.linalg.norm(x, axis=1),
    "svdvals": lambda x: np.linalg.svdvals(x) if hasattr(np.linalg, "svdvals") else x,
    "fft": np.fft.fft,
    "zeros": np.zeros_like,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_of_numpy_gives_a_tensor_with_its_values(name: str) -> None:
    found = CALLS[name](wf.tensor(X))
    assert isinstance(found, wf.Tensor)
    np.testing.assert_allclose(found.numpy(), CALLS[name](X), rtol=1e-12)
    compiled = wf.jit(CALLS[name])(wf.tensor(X))
    np.testing.assert_allclose(compiled.numpy(), CALLS[name](X), rtol=1e-6)


def test_functions_of_numpy_have_derivatives() -> None:
    def loss(x: Any) -> Any:
        return np.sum(np.square(np.sin(x))) + np.mean(np.concatenate([x, X]))

    here = wf.grad(lambda x: (wf.sin(x) ** 2).sum() + wf.mean(wf.concat([x, wf.tensor(X)])))
    x = wf.tensor(X)
    np.testing.assert_allclose(wf.grad(loss)(x).numpy(), here(x).numpy(), rtol=1e-12)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "spacing": (np.spacing, "np.spacing(np.asarray(x), ...)"),
    "unique": (np.unique, "wf.unique_values(x)"),
    "trace": (np.trace, "wf.linalg.trace(x)"),
    "where option": (lambda x: np.exp(x, where=True), "leave where out"),
    "order": (lambda x: np.reshape(x, (6,), order="F"), "leave order out"),
    "at": (lambda x: np.add.at(x, [0], 1.0), "np.add.at(np.asarray(x), ...)"),
    "dot": (lambda x: np.dot(x, x), "np.dot(np.asarray(x), ...)"),
    "out": (lambda x: np.exp(x, out=x), "np.exp(np.asarray(x), ...)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_without_a_counterpart_is_refused_with_what_to_write(name: str) -> None:
    call, fix = REFUSED[name]
    with pytest.raises(wf.UnsupportedError) as caught:
        call(wf.tensor(X))
    assert fix in caught.value.fix


def test_what_looks_at_values_gets_arrays(tmp_path: Path) -> None:
    x = wf.tensor(X)
    assert np.shape(x) == (2, 3)
    assert np.ndim(x) == 2
    assert np.size(x, 1) == 3
    assert np.allclose(x, X) is True
    assert np.array_equal(x, X) is True
    np.save(tmp_path / "x.npy", x)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), X)
    array = X.copy()
    array += x
    assert type(array) is np.ndarray
    np.testing.assert_array_equal(array, 2 * X)
    with pytest.raises(wf.TraceError):
        wf.jit(lambda x: np.save(tmp_path / "y.npy", x))(x)


def test_a_compiled_function_takes_arrays_and_numbers_as_an_eager_one_does() -> None:
    def f(x: Any, tree: Any, factor: float) -> Any:
        return wf.sum(x) * factor + tree["y"][0]

    compiled = wf.jit(f)
    for scale in (1.0, 2.0):
        array, tree = X * scale, {"y": [np.ones(3, np.float32)]}
        found, expected = compiled(array, tree, 2.0), f(wf.tensor(array), tree, 2.0)
        assert found.dtype is expected.dtype
        np.testing.assert_allclose(found.numpy(), np.asarray(expected))
    assert len(compiled.compilations) == 1
    array = np.zeros(3)
    total = wf.jit(lambda x: wf.sum(x))
    assert total(array).item() == 0.0
    array[:] = 1.0  # the same object with other values
    assert total(array).item() == 3.0
    assert total(wf.tensor(array)).item() == 3.0
    assert len(total.compilations) == 1
    net = wf.nn.Linear(3, 2)
    assert wf.jit(lambda net, x: net(x))(net, np.ones((4, 3), np.float32)).shape == (4, 2)
    assert total.graph(array) is not None
