"""Python numbers that change from call to call: one program for all of them, on cards and the CPU.

A loop over the steps of a sequence, a learning rate that falls, a shift that is drawn: where such a
number were part of a program, every step would compile one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.host_card import HostCard
from tests.compiler.cuda.test_quick_calls import Counts, counted_runs
from tests.hammer import at_once

import weft as wf
from weft.compiler.function import taped, units
from weft.nn import functional

Call = Callable[[wf.Tensor, int], wf.Tensor]


def written(x: wf.Tensor, key: Any, value: Any) -> wf.Tensor:
    """A copy of x that was written to."""
    copy = x * 1.0
    copy[key] = value
    return copy


def index_beside(x: wf.Tensor) -> wf.Tensor:
    """Indices that count from both ends, where x is."""
    return wf.asarray(np.array([0, -1, 2, 0])).to(x.device)


PLACES: dict[str, Call] = {
    "a column": lambda x, t: x[:, t],
    "a column from the end": lambda x, t: x[:, -1 - t],
    "a row": lambda x, t: x[t],
    "an element": lambda x, t: x[t, t + 1],
    "columns": lambda x, t: x[..., t : t + 3],
    "every other column": lambda x, t: x[:, t : t + 5 : 2],
    "columns the other way round": lambda x, t: x[:, t + 4 : t : -1],
    "a box": lambda x, t: x[t : t + 2, t + 1 : t + 4],
    "a new axis": lambda x, t: x[:, None, t],
    "indices beside a number": lambda x, t: x[t, index_beside(x)],
    "indices before a number": lambda x, t: x[index_beside(x), t - 3],
    "a written column": lambda x, t: written(x, (slice(None), t), 0.5),
    "a written row": lambda x, t: written(x, t, x[0]),
    "written columns": lambda x, t: written(x, (..., slice(t, t + 3)), x[:, :3]),
    "every other column written": lambda x, t: written(x, (..., slice(t, t + 5, 2)), 2.0),
    "written at indices": lambda x, t: written(x, (t, index_beside(x)), 1.5),
    "a roll": lambda x, t: wf.roll(x, t + 1, axis=1),
    "a roll back": lambda x, t: wf.roll(x, -t - 1, axis=0),
    "a roll of two axes": lambda x, t: wf.roll(x, (t + 1, 3), axis=(0, 1)),
    "a roll of all": lambda x, t: wf.roll(x, t + 1),
    "narrow": lambda x, t: wf.narrow(x, 1, t, 2),
    "zeros around": lambda x, t: wf.pad(x, ((0, 0), (t, 12 - t))),
    "parts": lambda x, t: wf.unstack(x, axis=1)[t],
    "rows one after the other": lambda x, t: [*x][t],
}
NUMBERS: dict[str, Call] = {
    "a product": lambda x, t: x * (0.1 * t + 0.25),
    "a quotient": lambda x, t: (0.1 * t) / (x * x + 1.5 + t),
    "a power": lambda x, t: wf.abs(x) ** (0.1 * t + 0.3),
    "bounds": lambda x, t: wf.clip(x, -0.1 * t - 0.1, 0.1 * t + 0.1),
    "a choice": lambda x, t: wf.where(x > 0.1 * t, x, 0.3 * t),
    "leaky relu": lambda x, t: functional.leaky_relu(x, 0.01 * t + 0.001),
    "leaky relu by name": lambda x, t: functional.leaky_relu(x, negative_slope=0.03 * t),
    "elu": lambda x, t: functional.elu(x, 0.1 * t + 0.3),
    "celu": lambda x, t: functional.celu(x, 0.1 * t + 0.3),
    "hardtanh": lambda x, t: functional.hardtanh(x, -0.1 * t - 0.1, 0.1 * t + 0.1),
    "hardshrink": lambda x, t: functional.hardshrink(x, 0.1 * t),
    "softshrink": lambda x, t: functional.softshrink(x, 0.1 * t),
    "threshold": lambda x, t: functional.threshold(x, 0.1 * t, -0.2 * t),
    "huber loss": lambda x, t: functional.huber_loss(x, x * 0.5, delta=0.1 * t + 0.1),
    "an average that follows": lambda x, t: wf.lerp(x, x * 2.0, 0.1 * t),
    "one value": lambda x, t: wf.full(x.shape, 0.1 * t, device=x.device) * x,
}
DRAWS: dict[str, Call] = {
    "dropout": lambda x, t: functional.dropout(x, 0.05 * t + 0.1),
    "dropout of a key": lambda x, t: wf.random.dropout(
        x, 0.05 * t + 0.1, key=wf.random.key(t).to(x.device)
    ),
}
ALL = PLACES | NUMBERS | DRAWS


@contextmanager
def counted_programs() -> Iterator[Counts]:
    """Count programs that are compiled: of calls, and of the way back from them."""
    with counted_runs() as counts, pytest.MonkeyPatch.context() as patch:
        compiled = units.unit_executable

        def counting(*args: Any, **kwargs: Any) -> Any:
            counts.compiled += 1
            return compiled(*args, **kwargs)

        for module in (units, taped):
            patch.setattr(module, "unit_executable", counting)
        yield counts


def drawn(name: str, device: str, rows: int = 9, columns: int = 17) -> wf.Tensor:
    """Numbers of both signs in a size that each name has alone, so that no program is known."""
    random = np.random.default_rng(len(name))
    shape = rows, columns + [*ALL].index(name)
    return wf.asarray(random.normal(size=shape).astype(np.float32)).to(device)


def both_ways(f: Call, x: wf.Tensor, t: int) -> list[bytes]:
    """The bits of a result, and of the gradient of x."""
    leaf = x.detach().requires_grad_()
    result = f(leaf, t)
    (result * result).sum().backward()
    assert leaf.grad is not None
    return [each.detach().numpy().tobytes() for each in (result, leaf.grad)]


def programs_of_new_numbers(f: Call, x: wf.Tensor) -> int:
    """How many programs are compiled for numbers that follow two others."""
    for t in (1, 2):
        both_ways(f, x, t)
        f(x, t)
    with counted_programs() as counts:
        for t in (3, 4, 5):
            both_ways(f, x, t)
            f(x, t)
    return counts.compiled


@pytest.mark.parametrize("name", ALL)
def test_a_number_that_changes_compiles_nothing_on_a_card(card: HostCard, name: str) -> None:
    assert programs_of_new_numbers(ALL[name], drawn(name, "cuda")) == 0


@pytest.mark.parametrize("name", ALL)
def test_a_number_that_changes_compiles_nothing_on_the_host(name: str) -> None:
    assert programs_of_new_numbers(ALL[name], drawn(name, "cpu", rows=64)) == 0


@pytest.mark.parametrize("name", PLACES | DRAWS)
def test_elements_at_places_have_the_bits_of_the_host(card: HostCard, name: str) -> None:
    f, there, here = ALL[name], drawn(name, "cuda"), drawn(name, "cpu")
    for t in (0, 1, 5, 1):
        wf.random.seed(t)
        found = f(there, t).numpy()
        gradient = both_ways(f, there, t)[1]
        wf.random.seed(t)
        assert found.tobytes() == f(here, t).numpy().tobytes()
        assert gradient == both_ways(f, here, t)[1]


@pytest.mark.parametrize(
    "name", [each for each in NUMBERS if each != "a power"]
)  # constant ones have other programs
def test_programs_that_read_a_number_give_what_those_with_it_do(name: str) -> None:
    f, x = ALL[name], drawn(name, "cpu", rows=64)
    for t in (0, 1, 5):
        compiled = wf.jit(lambda x, t=t: f(x, t))(x)  # part of the code, as powers never are
        np.testing.assert_array_equal(f(x, t).numpy(), compiled.numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", ["leaky relu", "hardtanh", "an average that follows", "dropout"])
def test_a_number_gets_the_dtype_of_the_tensors(card: HostCard, name: str, dtype: str) -> None:
    f = ALL[name]
    for device in ("cpu", "cuda"):
        x = drawn(name, device, rows=64).astype(dtype)
        for t in (1, 2):
            wf.random.seed(t)
            found = f(x, t)
            with wf.settings.changed(eager="reference"):
                wf.random.seed(t)
                wanted = f(x.to("cpu"), t)
            assert found.dtype is wanted.dtype
            np.testing.assert_array_equal(found.numpy(), wanted.numpy())


def test_numbers_beside_tensors_of_several_dtypes_are_not_rounded_to_one(card: HostCard) -> None:
    wide = wf.asarray(np.linspace(-2, 2, 512))
    narrow = wf.zeros((512,), dtype="float32")
    for device in ("cpu", "cuda"):
        a, b = narrow.to(device), wide.to(device)
        for delta in (0.1, 0.3):
            found = functional.huber_loss(a, b, "none", delta)
            distance = np.abs(wide.numpy())
            inside = np.minimum(distance, delta)
            np.testing.assert_array_equal(found.numpy(), inside * (distance - 0.5 * inside))


def test_autocast_computes_in_the_same_dtypes(card: HostCard) -> None:
    for device in ("cpu", "cuda"):
        x = drawn("leaky relu", device, rows=64)
        with wf.autocast("bfloat16"):
            product = x @ x.T
            assert functional.leaky_relu(product, 0.25).dtype is wf.bfloat16
            assert (
                functional.elu(product, 0.25).dtype is functional.elu(product.to("cpu"), 0.25).dtype
            )
            assert functional.dropout(product, 0.25).dtype is wf.bfloat16


# --- places --------------------------------------------------------------------------------------


def test_a_slice_with_gaps_is_one_launch_both_ways(card: HostCard) -> None:
    x = wf.asarray(np.ones((8, 6), np.float32)).to("cuda").requires_grad_()
    calls: list[Call] = [lambda x, t: x[:, t], lambda x, t: x[2:5, t : t + 4 : 2], PLACES["a row"]]
    for t in range(3):
        for f in calls:
            cotangent = wf.ones_like(f(x.detach(), t))
            card.calls.clear()
            part = f(x, t)
            assert card.names().count("cuLaunchKernel") == (f is not calls[2])
            card.calls.clear()
            part.backward(cotangent)
            x.grad = None
            assert t == 0 or card.names() == ["cuLaunchKernel"]


def test_integers_out_of_range_are_refused_at_the_call(card: HostCard) -> None:
    x = wf.asarray(np.ones((5, 7), np.float32)).to("cuda")
    index = index_beside(x)
    for t in (1, 2):
        assert x[:, t].shape == (5,)
        keys = ((slice(None), 7), (slice(None), -8), 5, (5, index), (index, 7))
        for tensor in (x, (x * 1.0).requires_grad_()):
            for key in keys:
                with pytest.raises(wf.BoundsError) as caught:
                    tensor[key]
                assert "test_changing_numbers.py" in str(caught.value.at)
        with pytest.raises(wf.BoundsError):
            written(x, (slice(None), 7), 1.0)


def test_slices_are_cut_to_size_and_may_be_empty(card: HostCard) -> None:
    here = wf.asarray(np.arange(35, dtype=np.float32).reshape(5, 7))
    there = here.to("cuda")
    for key in (
        (slice(None), slice(5, 99)),
        (slice(None), slice(-99, 2)),
        (slice(None), slice(4, 2)),
        (slice(3, 3), 1),
        (slice(None), slice(-3, None)),
    ):
        for tensor in (there, (there * 1.0).requires_grad_()):
            np.testing.assert_array_equal(tensor[key].detach().numpy(), here[key].numpy())
    empty = wf.zeros((0, 4), device="cuda")
    assert empty[:, 2].shape == (0,)
    assert wf.roll(empty, 3, axis=1).shape == (0, 4)
    assert wf.roll(there, 0, axis=1).tolist() == here.tolist()
    assert wf.roll(there, 14, axis=1).tolist() == here.tolist()
    assert wf.roll(there, (1, 2), axis=(0, 0)).tolist() == np.roll(here.numpy(), 3, 0).tolist()


@pytest.mark.parametrize("dtype", ["int8", "bool", "bfloat16", "complex64", "int64", "float64"])
def test_all_dtypes_are_moved(card: HostCard, dtype: str) -> None:
    values = np.arange(60).reshape(5, 12) % 7
    here = wf.asarray(values).astype(dtype)
    there = here.to("cuda")
    for t in (1, 3):
        for f in (PLACES[each] for each in ("a column", "every other column", "a roll")):
            np.testing.assert_array_equal(f(there, t).numpy(), f(here, t).numpy())
        copies = [each.clone() for each in (there, here)]
        for copy in copies:
            copy[:, t] = copy[:, 0]
        np.testing.assert_array_equal(copies[0].numpy(), copies[1].numpy())


def test_what_is_selected_is_a_part_as_on_the_host(card: HostCard) -> None:
    for device in ("cpu", "cuda"):
        x = wf.zeros((4, 6), device=device)
        for part in (x[:, 2], x[1:3, ::2], wf.narrow(x, 1, 2, 2)):
            with pytest.raises(wf.ArgumentError, match="a part of another tensor"):
                part.fill_(1.0)
        wf.roll(x, 1, axis=0).fill_(1.0)  # a tensor of its own
        assert x.sum().item() == 0.0


@pytest.mark.parametrize("name", PLACES)
def test_transforms_of_the_same_places_agree(card: HostCard, name: str) -> None:
    f, x = PLACES[name], drawn(name, "cuda")
    wanted = f(x, 3).numpy()
    np.testing.assert_array_equal(wf.jit(lambda x: f(x, 3))(x).numpy(), wanted)
    if "written" not in name and "rows" not in name:
        batched = wf.vmap(lambda x: f(x, 3))(wf.stack([x * 2.0, x]))
        np.testing.assert_array_equal(batched[1].numpy(), wanted)
    _, tangent = wf.jvp(lambda x: f(x, 3), (x,), (x,))
    host = x.to("cpu")
    _, expected = wf.jvp(lambda x: f(x, 3), (host,), (host,))
    np.testing.assert_array_equal(tangent.numpy(), expected.numpy())


def test_second_derivatives_through_places(card: HostCard) -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        return (x[:, 2] ** 3).sum() + (wf.roll(x, 1, axis=1)[:, 0] ** 3).sum()

    here = drawn("a column", "cpu")
    twice = wf.grad(lambda x: wf.grad(f)(x).sum())
    np.testing.assert_allclose(twice(here.to("cuda")).numpy(), twice(here).numpy(), rtol=1e-6)


def test_a_loop_over_steps_on_the_tape(card: HostCard) -> None:
    here = wf.asarray(np.random.default_rng(0).normal(size=(3, 40, 4)).astype(np.float32))
    gradients = []
    for device in ("cpu", "cuda"):
        x = (here * 1.0).to(device).requires_grad_()
        state = wf.zeros((3, 4), device=device)
        with counted_programs() as counts:
            for t in range(40):
                state = wf.tanh(state + x[:, t])
            state.sum().backward()
        assert counts.compiled < 20
        assert x.grad is not None
        gradients.append(x.grad.numpy())
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-5, atol=1e-7)


def test_a_second_thread_has_places_of_its_own(card: HostCard) -> None:
    x = wf.asarray(np.arange(400, dtype=np.float32).reshape(20, 20)).to("cuda")
    x[:, 0], wf.roll(x, 1, axis=0)
    wrong: list[Any] = []

    def work(shift: int) -> None:
        for t in range(20):
            place = (t + shift) % 20
            column, rolled = x[:, place].numpy(), wf.roll(x, place, axis=0).numpy()
            if (column != np.arange(20) * 20 + place).any() or rolled[place, 0] != 0:
                wrong.append(place)

    at_once(lambda: work(0), lambda: work(7))
    assert not wrong


# --- draws ---------------------------------------------------------------------------------------


def test_dropout_is_known_launches_and_no_copy(card: HostCard) -> None:
    x = drawn("dropout", "cuda")
    for p in (0.5, 0.1, 0.2, 0.3, 0.5):
        functional.dropout(x, p)
    card.calls.clear()
    with counted_runs() as counts:
        for _ in range(5):
            functional.dropout(x, 0.5)
    assert counts.bound == 0
    assert set(card.names()) == {"cuLaunchKernel"}
    assert len(card.names()) == 10  # bits, and what stays


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_dropout_draws_what_its_mask_draws(card: HostCard, device: str) -> None:
    x = drawn("dropout", device, rows=64)
    wf.random.seed(3)
    found = [functional.dropout(x, 0.3) for _ in range(2)]
    after = wf.random.uniform((3,)).tolist()
    wf.random.seed(3)
    for each in found:
        stays = wf.random.dropout_mask(x.shape, 0.3)
        np.testing.assert_array_equal(
            each.numpy(), np.where(stays.numpy(), x.numpy() / np.float32(0.7), 0)
        )
    assert wf.random.uniform((3,)).tolist() == after
    step = wf.jit(lambda x: functional.dropout(x, 0.3))
    for draw in (lambda: functional.dropout(x, 0.3), lambda: step(x)):
        wf.random.seed(3)
        np.testing.assert_array_equal(draw().numpy(), found[0].numpy())
        np.testing.assert_array_equal(step(x).numpy(), found[1].numpy())
        assert wf.random.uniform((3,)).tolist() == after


def test_many_draws_of_a_card_are_those_of_the_host(card: HostCard) -> None:
    x = wf.ones((5,))
    there = x.to("cuda")
    state = wf.random.get_state()
    start = wf.random.GeneratorState(state.key, wf.tensor(1020, dtype="uint64"))
    wf.random.set_state(start)
    wanted = [wf.random.dropout(x).tolist() for _ in range(10)]  # over the end of a block of counts
    wf.random.set_state(start)
    assert [wf.random.dropout(there).tolist() for _ in range(10)] == wanted
