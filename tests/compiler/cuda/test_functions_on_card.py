"""Every function of tensors works at once on a card: the examples of docstrings, and more."""

from __future__ import annotations

import doctest
import pkgutil
from collections.abc import Iterator
from importlib import import_module

import numpy as np
import pytest
from tests.compiler.cuda.host_card import HostCard

import weft as wf
from weft import nn
from weft.ops import composed

MODULES = [f"weft.ops.composed.{each.name}" for each in pkgutil.iter_modules(composed.__path__)]
"""The modules whose examples are run: all functions that are composed of primitives."""


def _examples(module: str) -> Iterator[doctest.DocTest]:
    found = doctest.DocTestFinder(exclude_empty=True).find(import_module(module), module)
    return (each for each in found if each.examples)


@pytest.mark.slow
@pytest.mark.parametrize("module", [name for name in MODULES if [*_examples(name)]])
def test_examples_give_on_a_card_what_they_give_on_the_processor(
    card: HostCard, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setattr(wf.settings, "device", "cuda")
    said: list[str] = []
    for example in _examples(module):
        wf.random.seed(0)
        doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert not said, "".join(said)


def _on_card(*shape: int) -> wf.Tensor:
    return wf.tensor(np.random.default_rng(0).random(shape, np.float32)).to("cuda")


FUNCTIONS = {
    "a quantile of columns": lambda x: wf.quantile(x, 0.3, axis=0),
    "several quantiles": lambda x: wf.quantile(x, [0.25, 0.5], axis=1),
    "a median": lambda x: wf.median(x, axis=1),
    "a number put along an axis": lambda x: wf.put_along_axis(
        x, wf.argmax(x, axis=0, keepdims=True), 0, axis=0
    ),
    "a choice with chances": lambda x: wf.random.choice(
        x, (3,), p=[0.25] * 4, key=wf.random.key(0)
    ),
    "a shuffle": lambda x: wf.random.shuffle(x, key=wf.random.key(0)),
    "a mean at places": lambda x: wf.scatter_reduce(x, 0, wf.argsort(x, axis=0) // 2, x, "mean"),
    "numbers from a distribution of a tensor and a number": lambda x: wf.random.beta(
        None, x + 0.5, 1.5, key=wf.random.key(0)
    ),
    "numbers of a key that is computed": lambda x: wf.vmap(
        lambda row: wf.random.poisson(
            (3,), 2.5, key=wf.random.fold_in(wf.random.key(1).to(x.device), wf.argmax(row))
        )
    )(x),
    "a linear function": lambda x: wf.linearize(lambda x: wf.sin(x) * x, x)[1](x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_make_constants_make_them_beside_their_operands(
    card: HostCard, name: str
) -> None:
    x = _on_card(4, 3)
    y = FUNCTIONS[name](x)
    assert str(y.device) == "cuda:0"
    np.testing.assert_allclose(y.numpy(), FUNCTIONS[name](x.to("cpu")).numpy(), rtol=1e-6)


def test_a_network_on_a_card_is_summed_up_and_traced_from_types_alone(card: HostCard) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    kind = wf.spec("float32", (2, 3))
    expected = str(net.summary(kind)), len(wf.ir.trace(net, kind).nodes)
    net = net.to("cuda")
    assert (str(net.summary(kind)), len(wf.ir.trace(net, kind).nodes)) == expected


def test_a_compiled_function_takes_constants_of_the_program_that_calls_it(card: HostCard) -> None:
    x = wf.tensor(0.25).to("cuda")

    def f(x: wf.Tensor) -> wf.Tensor:
        drawn = wf.random.normal((3,), key=wf.random.key(0))
        return wf.jit(lambda y: wf.maximum(y, x))(drawn)

    np.testing.assert_array_equal(wf.jit(f)(x).numpy(), f(x.to("cpu")).numpy())


def test_a_sum_of_one_term_is_no_negative_zero(card: HostCard) -> None:
    a, b = wf.zeros((1, 1), dtype=wf.float64), -wf.ones((1, 3), dtype=wf.float64)
    for device in ("cpu", "cuda"):
        product = wf.jit(lambda a, b: a @ b)(a.to(device), b.to(device))
        assert not np.signbit(product.numpy()).any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_with_a_constant_takes_what_follows_it(card: HostCard, dtype: str) -> None:
    x = _on_card(2, 3, 4, 4).astype(dtype)

    def f(x: wf.Tensor) -> wf.Tensor:
        pooled = nn.functional.adaptive_avg_pool2d(x, 1)
        return wf.abs(pooled) + 0.5

    np.testing.assert_allclose(
        wf.jit(f)(x).astype("float32").numpy(), f(x).astype("float32").numpy(), rtol=1e-2
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_running_products_are_made_in_double_and_stored_narrow(card: HostCard, dtype: str) -> None:
    x = wf.tensor(np.linspace(0.5, 1.5, 9)).astype(dtype)
    running = wf.jit(lambda x: wf.cumulative_prod(wf.tanh(x) + 0.5, axis=0))
    found, expected = running(x.to("cuda")).astype("float64"), running(x).astype("float64")
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-2)
