"""Every public function on a card in the host's memory: its result is there, with the CPU's values.

The functions, and calls of them that work, are those that `tests/test_numbers.py` finds. What a
function, a derivative or a layer makes of nothing (masks, counts, zeros, random bits) must lie
beside the operands, or the next primitive refuses it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.host_card import HostCard
from tests.test_numbers import FUNCTIONS, Applied, Call, working_calls

import weft as wf

pytestmark = pytest.mark.slow

Function = Callable[..., Any]


def move(tree: Any, device: str) -> Any:
    """All tensors of a tree on a device."""
    return wf.tree.map(lambda x: x.to(device) if isinstance(x, wf.Tensor) else x, tree)


def tensors_of(tree: Any) -> list[wf.Tensor]:
    return [x for x in wf.tree.leaves(tree) if isinstance(x, wf.Tensor)]


def function_on(f: Function, call: Call, device: str) -> tuple[Function, list[wf.Tensor]]:
    """A call as a function of its tensors, and these on a device; a layer is moved there."""
    args, options = call
    if isinstance(f, Applied):
        layer = f.layer(*args, **options).to(device)
        return layer, [x.to(device) for x in f.inputs or ()]
    leaves, structure = wf.tree.flatten((args, options))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, wf.Tensor)]

    def function(*tensors: wf.Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        given, named = wf.tree.unflatten(structure, filled)
        return f(*given, **named)

    return function, [leaves[place].to(device) for place in places]


def inexact(tree: Any) -> list[wf.Tensor]:
    return [x for x in tensors_of(tree) if x.dtype.is_inexact]


def values(f: Function, tensors: list[wf.Tensor]) -> Any:
    return f(*tensors)


def backward(f: Function, tensors: list[wf.Tensor]) -> Any:
    leaves = [x.detach().requires_grad_() if x.dtype.is_inexact else x for x in tensors]
    parts = [x for x in inexact(f(*leaves)) if x.requires_grad]
    for part in parts:
        (part.real if part.dtype.is_complex else part).sum().backward(retain_graph=True)
    return [x.grad for x in leaves if x.requires_grad]


def forward(f: Function, tensors: list[wf.Tensor]) -> Any:
    if not inexact(tensors):
        return []
    moving = [x for x in tensors if x.dtype.is_inexact]

    def of_moving(*given: wf.Tensor) -> list[wf.Tensor]:
        rest = iter(given)
        return inexact(f(*[next(rest) if x.dtype.is_inexact else x for x in tensors]))

    return wf.jvp(of_moving, tuple(moving), tuple([wf.ones_like(x) for x in moving]))


def batched(f: Function, tensors: list[wf.Tensor]) -> Any:
    if not tensors:
        return []
    rows = [wf.stack([x, x]) for x in tensors]
    return wf.vmap(lambda *given: tensors_of(f(*given)))(*rows)


WAYS = {"values": values, "backward": backward, "forward": forward, "batched": batched}


def run(way: Function, f: Function, call: Call, device: str) -> Any:
    """What a call gives in one way on a device; an error of the house as itself."""
    wf.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return way(*function_on(f, call, device))
        except wf.WeftError as error:
            return error


def check_call(f: Function, call: Call, way: str) -> None:
    wanted, found = (run(WAYS[way], f, call, device) for device in ("cpu", "cuda"))
    if isinstance(wanted, wf.WeftError):
        assert type(found) is type(wanted), found
        return
    if isinstance(found, wf.WeftError):
        raise found
    place = wf.device("cuda")
    there = bool(function_on(f, call, "cpu")[1])
    for one, other in zip(tensors_of(found), tensors_of(wanted), strict=True):
        assert not there or one.device == place
        assert one.type == other.type
        limit = 1e-2 if other.dtype.itemsize == 2 else 1e-4
        np.testing.assert_allclose(wide(one), wide(other), rtol=limit, atol=limit)


def wide(x: wf.Tensor) -> Any:
    return x.detach().numpy().astype(complex if x.dtype.is_complex else np.float64)


def walk(name: str) -> int:
    """Check calls of a function in every way; how many there were."""
    f = FUNCTIONS[name]
    calls = list(working_calls(f, count=1))
    for call in calls:
        for way in WAYS:
            check_call(f, call, way)
    return len(calls)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "Tensor.cpu"])
def test_a_function_gives_on_a_card_what_it_gives_on_the_processor(
    card: HostCard, name: str
) -> None:
    walk(name)


NEEDING_CONSTANTS = [
    "tril", "diag", "unfold", "take", "take_along_axis", "one_hot", "segment_mean", "histogram",
    "unique_all", "nonzero", "adaptive_max_pool1d", "avg_pool1d", "max_pool1d", "interpolate",
    "cumprod", "pad", "sort", "median", "imag", "scan", "softmax", "einsum", "linalg.expm",
    "linalg.pinv", "linalg.cholesky", "random.normal", "random.gamma", "random.shuffle",
    "random.dropout", "nn.functional.alpha_dropout", "nn.functional.rotary_angles",
    "nn.functional.cross_entropy", "nn.Dropout2d", "nn.LSTMCell", "nn.LearnedPosition",
    "Tensor.cumsum", "Tensor.diagonal",
]  # fmt: skip
"""Functions, of which each makes constants of another kind, or has a rule that does."""


@pytest.mark.parametrize("name", [name for name in NEEDING_CONSTANTS if name in FUNCTIONS])
def test_constants_of_a_function_are_made_beside_its_operands(card: HostCard, name: str) -> None:
    walk(name)


def test_constants_stay_with_operands_on_the_host_where_the_default_device_is_a_card(
    card: HostCard,
) -> None:
    x = wf.ones((3, 3), device="cpu")
    with wf.settings.changed(device="cuda"):
        assert wf.ones(3).device == wf.device("cuda")
        assert wf.tril(x).device == wf.device("cpu")
        assert wf.nn.functional.dropout2d(x[None]).device == wf.device("cpu")
        leaf = x.detach().requires_grad_()
        wf.cumprod(leaf, axis=0).sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.device == wf.device("cpu")


# --- optimisers ----------------------------------------------------------------------------------


OPTIMIZERS = [
    name
    for name in wf.optim.__all__
    if inspect.isclass(getattr(wf.optim, name))
    and issubclass(getattr(wf.optim, name), wf.optim.Optimizer)
    and name not in ("Optimizer", "LBFGS")
]


def losses_of_steps(name: str, device: str, compiled: bool) -> list[float]:
    """The losses of three steps, and the norm of what is learned then."""
    wf.random.seed(0)
    layers = wf.nn.Linear(4, 8), wf.nn.Tanh(), wf.nn.Linear(8, 2)
    model = wf.nn.Sequential(*layers).to(device)
    optimizer = getattr(wf.optim, name)(model.parameters(), lr=0.05)
    numbers = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    x = wf.asarray(numbers).to(device)

    def step(x: wf.Tensor) -> wf.Tensor:
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    run = wf.jit(step) if compiled else step
    losses = [float(run(x)) for _ in range(3)]
    assert all(p.device == wf.device(device) for p in model.parameters())
    return [*losses, *[float(p.detach().square().sum()) for p in model.parameters()]]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_takes_the_same_steps_on_a_card(
    card: HostCard, name: str, compiled: bool
) -> None:
    found, wanted = (losses_of_steps(name, device, compiled) for device in ("cuda", "cpu"))
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=1e-6)
    assert wanted[0] != wanted[2]


def test_lbfgs_takes_the_same_steps_on_a_card(card: HostCard) -> None:
    found = []
    for device in ("cuda", "cpu"):
        x = wf.tensor([-1.0, 1.5], device=device, requires_grad=True)
        optimizer = wf.optim.LBFGS([x], lr=0.5, max_iterations=4)

        def loss(x: wf.Tensor = x, optimizer: Any = optimizer) -> wf.Tensor:
            optimizer.zero_grad()
            value = (1 - x[0]) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2
            value.backward()
            return value

        found.append([float(optimizer.step(loss)) for _ in range(3)] + x.tolist())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)


def test_a_model_continues_text_on_a_card_as_on_the_host(card: HostCard) -> None:
    texts = []
    for device in ("cuda", "cpu"):
        wf.random.seed(2)
        config = wf.models.GPTConfig(
            vocabulary=11, context=8, layers=1, heads=2, width=8, dropout=0.0
        )
        model = wf.models.GPT(config).eval().to(device)
        start = wf.tensor([[1, 2, 3]], device=device)
        texts.append(model.generate(start, 3, temperature=0.0).tolist())
    assert texts[0] == texts[1]
