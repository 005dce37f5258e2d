"""Programs for cards, on a card in the host's memory: values, memory, graphs, loops and faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.host_card import HostCard, host_card

import weft as wf
from weft.compiler.plan.launch import Kind
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.array import CudaArray
from weft.compiler.targets.cuda.target import CUDA
from weft.ir.primitive import PRIMITIVES, Primitive, Sample
from weft.ir.tensor import wrap

Array = np.ndarray[Any, Any]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCard]:
    with host_card(monkeypatch) as card:
        yield card
        card.check_fences()


def numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def _wide(array: Array) -> Array:
    return array.astype(complex if array.dtype.kind == "c" else np.float64)


SAMPLES = [
    pytest.param(primitive, sample, id=f"{name} {number}")
    for name, primitive in sorted(PRIMITIVES.items())
    for number, sample in enumerate(primitive.samples())
    if not primitive.impure
]


@pytest.mark.parametrize(("primitive", "sample"), SAMPLES)
def test_a_primitive_gives_on_a_card_what_its_reference_gives(
    card: HostCard, primitive: Primitive, sample: Sample
) -> None:
    with np.errstate(all="ignore"):
        wanted = primitive.reference(*sample.operands, **sample.params)
    place = wf.device("cuda")
    handles = [wf.asarray(np.asarray(x)).to(place) for x in sample.operands]
    found = wf.ir.dispatch.bind(primitive, *handles, **sample.params)
    results = found if primitive.multiple else (found,)
    expected = wanted if primitive.multiple else (wanted,)
    for result, array in zip(results, expected, strict=True):
        if handles:
            assert result.device == place
        host = result.numpy()
        assert (host.shape, host.dtype) == (np.shape(array), np.asarray(array).dtype)
        limit = 1e-2 if host.dtype.itemsize == 2 else 2e-5
        np.testing.assert_allclose(_wide(host), _wide(np.asarray(array)), rtol=limit, atol=limit)


def compare(f: Callable[..., Any], *arrays: Array, limit: float = 1e-5) -> list[Kind]:
    """Run a compiled function on the card and on the CPU; the kinds of the card's launches."""
    compiled = wf.jit(f)
    wanted = wf.tree.leaves(compiled(*map(wf.asarray, arrays)))
    for _ in range(4):  # the last of them as a graph
        moved = [wf.asarray(array).to("cuda") for array in arrays]
        found = wf.tree.leaves(compiled(*moved))
        for one, other in zip(found, wanted, strict=True):
            assert one.device == wf.device("cuda")
            np.testing.assert_allclose(
                _wide(one.numpy()), _wide(other.numpy()), rtol=limit, atol=limit
            )
    plan = plan_program(wf.ir.trace(f, *map(wf.asarray, arrays)), CUDA)
    return [launch.kind for launch in plan.every_launch()]


def _switch(x: wf.Tensor) -> wf.Tensor:
    return wf.switch((x.sum() > 0).astype("int32"), [lambda y: y * 2, lambda y: wf.exp(y)], x)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[int, ...], Kind]] = {
    "softmax of a product": (lambda x: wf.softmax(x @ x.T).sum(axis=0), (6, 8), Kind.PRODUCT),
    "a stack of products": (lambda x: wf.einsum("bij,bkj->bik", x, x), (3, 4, 8), Kind.PRODUCT),
    "a product of odd sizes": (lambda x: x.T @ x, (7, 5), Kind.PRODUCT),
    "a scan": (
        lambda x: wf.scan(lambda c, r: (wf.tanh(c + r), c * r), x[0], x), (5, 4), Kind.CONTROL,
    ),
    "a scan over rows that begin anywhere": (
        lambda x: wf.scan(lambda c, r: (c + r, c * r), x[0], x), (5, 3), Kind.CONTROL,
    ),
    "a scan that hands its carry on": (
        lambda x: wf.scan(lambda c, r: ((c[1], c[0] + r), r), (x[0], x[1]), x), (4, 4),
        Kind.CONTROL,
    ),
    "a gradient through a scan": (
        wf.grad(lambda x: wf.scan(lambda c, r: (wf.sin(c * r), c), x[0], x)[0].sum()), (4, 3),
        Kind.CONTROL,
    ),
    "a while loop": (
        lambda x: wf.while_loop(lambda v: v.sum() < 100, lambda v: v * 2 + 1, wf.abs(x)), (3, 4),
        Kind.CONTROL,
    ),
    "a choice": (_switch, (3, 4), Kind.CONTROL),
    "a choice in each row": (wf.vmap(_switch), (5, 3), Kind.CONTROL),
    "a sort": (lambda x: wf.sort(wf.exp(x), axis=1)[:, ::2], (3, 5), Kind.REFERENCE),
    "a long sum": (lambda x: (x * x).sum(), (70_000,), Kind.LOOP),
    "a join": (lambda x: wf.concat([x, wf.flip(x, axis=0) * 2, x[:1]], axis=0), (5, 4), Kind.LOOP),
    "its own input": (lambda x: [x, x.reshape(-1), x * 1.5], (3, 4), Kind.LOOP),
    "no elements": (lambda x: [wf.exp(x), x.sum(axis=0), x.T @ x], (0, 4), Kind.PRODUCT),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_on_a_card_what_it_gives_on_the_processor(
    card: HostCard, name: str
) -> None:
    f, shape, kind = PROGRAMS[name]
    assert kind in compare(f, numbers(*shape))


def test_sizes_may_change_from_call_to_call(card: HostCard) -> None:
    f = wf.jit(lambda x: wf.softmax(x @ x.T, axis=1).sum(axis=0))
    for rows in (3, 5, 9, 5):
        x = numbers(rows, 4)
        np.testing.assert_allclose(
            f(wf.asarray(x).to("cuda")).numpy(), f(wf.asarray(x)).numpy(), rtol=1e-5
        )


def _train(device: str, steps: int) -> list[float]:
    wf.random.seed(3)
    model = wf.nn.Sequential(wf.nn.Linear(6, 16), wf.nn.GELU(), wf.nn.Linear(16, 3)).to(device)
    optimizer = wf.optim.AdamW(model.parameters(), lr=0.01)
    generator = np.random.default_rng(0)
    xs = generator.normal(size=(8, 6)).astype(np.float32)
    x, y = wf.asarray(xs).to(device), wf.asarray(np.arange(8) % 3).to(device)

    @wf.jit
    def step(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        optimizer.zero_grad()
        loss = wf.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return [float(step(x, y)) for _ in range(steps)]


def test_a_training_step_has_the_processors_losses_and_becomes_one_graph(card: HostCard) -> None:
    found, wanted = _train("cuda", 8), _train("cpu", 8)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert card.names().count("cuGraphLaunch") >= 2


def test_state_is_written_in_its_place(card: HostCard) -> None:
    state = wf.zeros((64, 64)).to("cuda")

    @wf.jit
    def add(x: wf.Tensor) -> None:
        state.copy_(state + x)

    one = wf.ones((64, 64)).to("cuda")
    add(one)
    before = state._value.pointer
    add(one)
    add(one)
    assert state._value.pointer == before
    assert float(state.sum()) == 3 * 64 * 64


def test_what_shares_memory_is_not_written_to(card: HostCard) -> None:
    state = wf.zeros(64).to("cuda")
    other = wf.jit(lambda x: x.reshape(8, 8))(state)
    assert other._value.base is state._value

    @wf.jit
    def add() -> None:
        state.copy_(state + 1)

    add()
    add()
    assert float(other.sum()) == 0
    assert float(state.sum()) == 128


def test_an_index_out_of_range_is_reported_where_the_host_waits(card: HostCard) -> None:
    x = wf.arange(12, dtype="float32").reshape(4, 3).to("cuda")
    pick = wf.jit(lambda x, i: x[i] * 2)
    assert pick(x, wf.tensor([1, 3]).to("cuda")).tolist() == [[6, 8, 10], [18, 20, 22]]
    bad = pick(x, wf.tensor([1, 4]).to("cuda"))
    with pytest.raises(wf.BoundsError, match="out of range") as caught:
        bad.numpy()
    assert "test_executable.py" in str(caught.value.at)
    assert pick(x, wf.tensor([0, 0]).to("cuda")).tolist() == [[0, 2, 4]] * 2


def test_a_scatter_out_of_range_writes_nowhere(card: HostCard) -> None:
    add = wf.jit(
        lambda x, i, u: wf.scatter_add(
            wf.exp(x), 0, i[:, None] + wf.zeros((1, 3), dtype="int64"), u
        )
    )
    x, u = wf.zeros((4, 3)).to("cuda"), wf.ones((2, 3)).to("cuda")
    good = add(x, wf.tensor([1, 3]).to("cuda"), u)
    assert good.sum(axis=1).tolist() == [3, 6, 3, 6]
    bad = add(x, wf.tensor([1, 1 << 40]).to("cuda"), u)
    with pytest.raises(wf.BoundsError, match="out of range"):
        bad.numpy()
    wf.cuda.synchronize()


def test_operands_on_the_host_and_on_a_card_are_refused(card: HostCard) -> None:
    there, here = wf.ones(3).to("cuda"), wf.ones(3)
    for call in (lambda: there + here, lambda: wf.jit(lambda a, b: a + b)(there, here)):
        with pytest.raises(wf.DeviceError, match="different devices") as caught:
            call()
        assert "cuda:0" in str(caught.value)
    assert (there + 1.0).tolist() == [2, 2, 2]
    assert (there * wf.tensor(2.0)).tolist() == [2, 2, 2]


def test_random_numbers_have_the_processors_bits(card: HostCard) -> None:
    draw = wf.jit(lambda x: wf.random.normal(x.shape) + x * 0)
    wf.random.seed(5)
    wanted = [draw(wf.zeros(6)).tolist() for _ in range(3)]
    wf.random.seed(5)
    x = wf.zeros(6).to("cuda")
    found = [draw(x).tolist(), draw(wf.zeros(6)).tolist(), draw(x).tolist()]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_memory_does_not_grow_over_steps(card: HostCard) -> None:
    f = wf.jit(lambda x: wf.exp(x @ x) + 1)
    x = wf.ones((16, 16)).to("cuda")
    held = []
    for _ in range(12):
        x = f(x) * 0
        held.append(sum(len(block) for block in card.blocks.values()))
    assert held[-1] == held[5]


def test_an_array_of_a_card_lies_where_it_says(card: HostCard) -> None:
    value = wrap(wf.ones((3, 4)).to("cuda")._value)._value
    assert type(value) is CudaArray
    assert (value.shape, value.nbytes, value.ndim) == ((3, 4), 48, 2)
    assert value.copy().pointer != value.pointer
    assert "cuda:0" in repr(value)
