"""Random numbers that are drawn on a card: those of the host, and no copy of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.emulated import run_emulated
from tests.compiler.cuda.host_card import HostCard
from tests.compiler.cuda.sample_kernels import program_of
from tests.compiler.cuda.test_quick_calls import counted_runs

import weft as wf
from weft.ops.composed.random_continuous import tail

random = wf.random
Draw = Callable[..., wf.Tensor]
DRAWS: dict[str, Draw] = {
    "uniform": lambda **o: random.uniform((5, 3), **o),
    "uniform in float64, from -1 to 2": lambda **o: random.uniform(
        7, -1.0, 2.0, dtype="float64", **o
    ),
    "uniform in bfloat16": lambda **o: random.uniform((2, 2, 2), dtype="bfloat16", **o),
    "normal": lambda **o: random.normal((4, 5), **o),
    "normal, an odd number of them": lambda **o: random.normal(9, 10.0, 0.5, **o),
    "normal in float16": lambda **o: random.normal((3, 2), dtype="float16", **o),
    "one number": lambda **o: random.normal((), **o),
    "no numbers": lambda **o: random.normal((0, 3), **o),
    "exponential": lambda **o: random.exponential((6,), 2.0, **o),
    "gumbel": lambda **o: random.gumbel((6,), **o),
    "bernoulli": lambda **o: random.bernoulli(0.3, (40,), **o),
    "a mask of dropout": lambda **o: random.dropout_mask((30,), 0.3, **o),
    "integers": lambda **o: random.randint(-3, 9, (8,), **o),
    "an order": lambda **o: random.permutation(9, **o),
    "laplace": lambda **o: random.laplace((4,), **o),
}
ON_CARD = [name for name in [*DRAWS][:13] if name != "no numbers"]
N = 200


def assert_same(found: wf.Tensor, wanted: wf.Tensor) -> None:
    """Equal but for NumPy's logarithm and cosine, which this card has in the place of its own."""
    assert str(found.device) == "cuda:0"
    assert found.type == wanted.type
    most = 2e-3 if wanted.dtype.bits == 16 else 1e-5 if wanted.dtype.is_floating else 0
    np.testing.assert_allclose(
        found.numpy().astype(np.float64), wanted.numpy().astype(np.float64), rtol=most, atol=most
    )


@pytest.mark.parametrize("name", DRAWS)
def test_draws_on_a_card_are_those_of_the_host(card: HostCard, name: str) -> None:
    draw, key = DRAWS[name], random.key(11)
    random.seed(5)
    wanted = [draw() for _ in range(3)]
    after = random.uniform().item()
    for make in (lambda: draw(device="cuda"), lambda: in_block(draw)):
        random.seed(5)
        for each in wanted:
            assert_same(make(), each)
        assert random.uniform().item() == after
    assert_same(draw(key=key, device="cuda"), draw(key=key))
    assert_same(draw(key=key.to("cuda")), draw(key=key))


def in_block(draw: Draw) -> wf.Tensor:
    with wf.default_device("cuda"):
        return draw()


def test_draws_alternate_between_devices(card: HostCard) -> None:
    random.seed(2)
    wanted = [random.uniform((3,)).tolist() for _ in range(6)]
    random.seed(2)
    places = ["cuda", "cpu"] * 3
    assert [random.uniform((3,), device=place).tolist() for place in places] == wanted


def test_the_block_of_a_counter_ends_anywhere(card: HostCard) -> None:
    state = random.get_state()
    start = random.GeneratorState(state.key, wf.tensor(1022, dtype="uint64"))
    random.set_state(start)
    wanted = [random.uniform((2,)).tolist() for _ in range(4)]
    random.set_state(start)
    assert [random.uniform((2,), device="cuda").tolist() for _ in range(4)] == wanted


@pytest.mark.parametrize("name", ON_CARD)
def test_numbers_are_not_copied_to_the_card(card: HostCard, name: str) -> None:
    for _ in range(3):
        DRAWS[name](device="cuda")
    card.calls.clear()
    with counted_runs() as counts:
        for _ in range(4):
            DRAWS[name](device="cuda")
    assert counts.compiled == 0
    assert counts.bound == 0 or name == "integers"  # with bounds of the host
    assert not {"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"} & set(card.names())


def test_counts_that_are_near_share_a_program(card: HostCard) -> None:
    random.normal((1000,), device="cuda")
    known = len(card.modules)
    for count in (961, 1000, 1023, 1024):
        wanted = random.normal((count,), key=random.key(3))
        assert_same(random.normal((count,), key=random.key(3), device="cuda"), wanted)
    many = random.normal((31, 33), key=random.key(3), device="cuda")
    assert_same(many, random.normal((31, 33), key=random.key(3)))
    assert len(card.modules) == known


def test_parameters_on_a_card_take_draws_and_gradients(card: HostCard) -> None:
    mean, std = wf.tensor([1.0, -2.0, 0.5]), wf.tensor([0.1, 1.0, 3.0])
    key = random.key(4)

    def drawn(mean: Any, std: Any) -> wf.Tensor:
        return (random.normal((4, 3), mean, std, key=key) ** 2).sum()

    wanted, gradients = wf.value_and_grad(drawn, argnums=(0, 1))(mean, std)
    found, others = wf.value_and_grad(drawn, argnums=(0, 1))(mean.to("cuda"), std.to("cuda"))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5)
    for one, other in zip(others, gradients, strict=True):
        assert str(one.device) == "cuda:0"
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)


def test_compiled_functions_draw_the_same_numbers(card: HostCard) -> None:
    x = wf.ones((5, 4), device="cuda")
    noisy = lambda x: x + random.normal(x.shape, device=x.device)  # noqa: E731
    random.seed(8)
    wanted = [noisy(x).tolist() for _ in range(3)]
    random.seed(8)
    step = wf.jit(noisy)
    assert [step(x).tolist() for _ in range(3)] == wanted


def pairs(first: wf.Tensor, second: wf.Tensor) -> tuple[wf.Tensor, ...]:
    """What `standard_normal` makes of two words."""
    radius = wf.sqrt(wf.log(tail(first, wf.float32)) * -2.0)
    turn = wf.bitwise_right_shift(second, 8).astype("float32") * (2 * math.pi * 2.0**-24)
    return radius * wf.cos(turn), radius * wf.sin(turn)


def extremes(first: wf.Tensor, second: wf.Tensor) -> tuple[wf.Tensor, ...]:
    """What an exponential and a Gumbel number are made of a word."""
    lot = wf.minimum(tail(first, wf.float32), 1.0 - 2.0**-24)
    return -wf.log(lot), -wf.log(-wf.log1p(-lot))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("made", [pairs, extremes])
def test_the_code_of_cards_makes_the_hosts_bits_of_the_same_words(made: Callable[..., Any]) -> None:
    words = np.random.default_rng(0).integers(0, 1 << 32, (2, N), dtype=np.uint32)
    words[:, :3] = 0, 1, (1 << 32) - 1
    wanted = [each.numpy() for each in wf.jit(made)(*map(wf.asarray, words))]
    (lowered,) = program_of(made, [wf.spec("uint32", (N,))] * 2).lowered
    kernel, given = lowered.kernel, iter(words)
    kinds = [buffer.dtype.numpy for buffer in kernel.buffers]
    arrays = [next(given) if kind == np.uint32 else np.zeros(N, kind) for kind in kinds]
    found = run_emulated(kernel, arrays, [N] * len(kernel.sizes))[: len(wanted)]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))


def test_layers_begin_with_the_weights_of_the_host(card: HostCard) -> None:
    random.seed(1)
    wanted = wf.nn.Linear(3, 4).weight
    random.seed(1)
    known = len(card.modules)
    assert_same(wf.nn.Linear(3, 4, device="cuda").weight.detach(), wanted.detach())
    random.seed(1)
    with wf.default_device("cuda"):
        assert_same(wf.nn.Linear(3, 4).weight.detach(), wanted.detach())
    assert len(card.modules) == known  # nothing was compiled for it


@pytest.mark.parametrize("name", ["normal", "exponential", "gumbel"])
def test_a_card_beside_it_changes_no_bits_of_the_hosts_numbers(card: HostCard, name: str) -> None:
    wf.ones(1, device="cuda")
    draw, key = getattr(random, name), random.key(6)
    compiled = wf.jit(lambda key: draw((400,), key=key))
    np.testing.assert_array_equal(draw((400,), key=key).numpy(), compiled(key).numpy())


@pytest.mark.parametrize("make", [wf.tensor, np.array])
def test_parameters_of_the_host_are_taken_there_and_the_numbers_are_moved(
    card: HostCard, make: Callable[..., Any]
) -> None:
    key = random.key(9)
    low, high = make([0.0, 0.5]), make([1.0, 3.0])
    for draw in (
        lambda **o: random.uniform((3, 2), low, high, key=key, **o),
        lambda **o: random.normal((3, 2), mean=low, std=high, key=key, **o),
        lambda **o: random.bernoulli(p=low, key=key, **o),
        lambda **o: random.randint(make([0, 5]), make([3, 9]), (4, 2), key=key, **o),
    ):
        assert_same(draw(device="cuda"), draw())
    assert_same(random.uniform((2,), low.tolist()[1], 3.0, key=key, device="cuda"),
                random.uniform((2,), 0.5, 3.0, key=key))  # fmt: skip
