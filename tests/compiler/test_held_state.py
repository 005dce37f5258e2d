"""Steps that are told again by what their tensors hold, here and on a card in this memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.device_cases import numbers, training_step
from tests.compiler.cuda.host_card import HostCard, host_card

import weft as wf
from weft.compiler.targets.cpu.runtime.executable import CpuExecutable
from weft.compiler.targets.cuda.executable import CudaExecutable
from weft.models.generation import token_step

pytestmark = pytest.mark.skipif(
    not wf.settings.in_place_updates, reason="state is written in place nowhere"
)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a step runs: on the processor, and on a card that is imitated."""
    if request.param == "cpu":
        yield "cpu"
        return
    with host_card(monkeypatch) as card:
        yield "cuda"
        card.check_fences()


class Training:
    """A small network with its optimiser, and a step that closes over both."""

    def __init__(self, device: str, fastcall: bool = True) -> None:
        wf.random.seed(1)
        self.model = wf.nn.Sequential(wf.nn.Linear(6, 5), wf.nn.Tanh(), wf.nn.Linear(5, 3))
        self.model.to(device)
        self.optimizer = wf.optim.AdamW(self.model.parameters(), lr=0.05)
        self.x = wf.asarray(numbers(4, 6)).to(device)
        self.y = wf.tensor([0, 2, 1, 2]).to(device)
        self.fastcall = fastcall
        self.step = training_step(self.model, self.optimizer)

    def __call__(self) -> float:
        with wf.settings.changed(fastcall=self.fastcall):
            return float(self.step(self.x, self.y))

    @property
    def is_held(self) -> bool:
        return self.step._repeated.step is not None

    @property
    def weight(self) -> wf.Tensor:
        first: wf.Tensor = self.model[0].weight
        return first


def pair(device: str) -> tuple[Training, Training]:
    """A training whose steps are told again, and one of which each is looked at."""
    held, plain = Training(device), Training(device, fastcall=False)
    for _ in range(5):
        assert held() == plain()
    assert held.is_held
    assert not plain.is_held
    return held, plain


@pytest.mark.slow
def test_a_step_that_is_told_again_has_the_losses_of_one_that_is_not(device: str) -> None:
    held, plain = pair(device)
    host = Training("cpu")
    found = [held() for _ in range(6)]
    assert found == [plain() for _ in range(6)]
    wanted = [host() for _ in range(11)][5:]
    np.testing.assert_allclose(found, wanted, rtol=1e-3)
    np.testing.assert_array_equal(held.weight.detach().numpy(), plain.weight.detach().numpy())
    assert held.weight.grad is not None
    assert plain.weight.grad is not None
    np.testing.assert_array_equal(held.weight.grad.numpy(), plain.weight.grad.numpy())


def replace_weight(training: Training) -> None:
    with wf.no_grad():
        training.weight.copy_(training.weight * 0.5)


def change_rate(training: Training) -> None:
    training.optimizer.lr = 0.01


def change_activation(training: Training) -> None:
    training.model[1] = wf.nn.ReLU()


def change_batch(training: Training) -> None:
    training.x = wf.asarray(numbers(4, 6) * 2).to(training.x.device)


def change_sizes(training: Training) -> None:
    training.x = wf.asarray(numbers(2, 6)).to(training.x.device)
    training.y = wf.tensor([1, 1]).to(training.x.device)


def clear_gradients(training: Training) -> None:
    training.optimizer.zero_grad()


def freeze(training: Training) -> None:
    training.weight.requires_grad = False


CHANGES: list[Callable[[Training], None]] = [
    replace_weight, change_rate, change_activation, change_batch, change_sizes, clear_gradients,
    freeze,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_changes_between_steps_is_seen(
    device: str, change: Callable[[Training], None]
) -> None:
    held, plain = pair(device)
    before = held()
    assert before == plain()
    change(held)
    change(plain)
    found = [held() for _ in range(4)]
    assert found == [plain() for _ in range(4)]


@pytest.mark.slow
def test_what_somebody_else_holds_is_not_written_over(device: str) -> None:
    held, _ = pair(device)
    for hold in (
        lambda: held.weight.detach(),
        lambda: held.weight._value,
        lambda: held.weight.grad,
        lambda: held.optimizer,
    ):
        kept: Any = hold()
        before = None
        if isinstance(kept, wf.Tensor):
            before = kept.numpy().copy()
        held()
        held()
        if before is not None:
            np.testing.assert_array_equal(kept.numpy(), before)
        del kept
        for _ in range(3):
            held()
        assert held.is_held


@pytest.mark.slow
def test_memory_that_was_lent_is_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with host_card(monkeypatch) as card:
        _lend_and_train(card)


def _lend_and_train(card: HostCard) -> None:
    held, plain = pair("cuda")
    for lend in (lambda: held.weight.detach(), lambda: held.weight.grad):
        lent: Any = lend()
        place = lent.__cuda_array_interface__["data"][0]
        size, kept = lent._value.nbytes, lent._value.base  # the memory, and not the array
        del lent
        before = card.memory_at(place)[:size].copy()
        assert held() == plain()
        np.testing.assert_array_equal(card.memory_at(place)[:size], before)
        del kept
        for _ in range(5):
            assert held() == plain()
        assert held.is_held


@pytest.mark.slow
def test_views_of_numpy_s_are_not_written_over() -> None:
    held, plain = pair("cpu")
    for lend in (lambda: held.weight.detach(), lambda: held.weight.grad):
        lent: Any = lend()
        view = lent.numpy()[1:]
        del lent
        before = view.copy()
        for _ in range(3):
            assert held() == plain()
        np.testing.assert_array_equal(view, before)
        del view
        for _ in range(20):
            assert held() == plain()
        assert held.is_held


@pytest.mark.slow
def test_a_step_of_modules_as_arguments_is_told_again(device: str) -> None:
    def losses(fastcall: bool) -> list[float]:
        training = Training(device)

        @wf.jit
        def step(model: Any, optimizer: Any, x: wf.Tensor, y: wf.Tensor, scale: int) -> wf.Tensor:
            loss = wf.nn.functional.cross_entropy(model(x), y) * scale
            optimizer.minimize(loss)
            return loss

        found = []
        with wf.settings.changed(fastcall=fastcall):
            for scale in (1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 1):
                loss = step(training.model, training.optimizer, training.x, training.y, scale)
                found.append(float(loss))
        assert (step._repeated.step is not None) == fastcall or scale == 1
        return found

    assert losses(True) == losses(False)


def test_the_same_tensor_in_two_places_goes_the_long_way(device: str) -> None:
    state = wf.zeros((4, 4)).to(device)

    @wf.jit
    def add(x: wf.Tensor) -> wf.Tensor:
        state.copy_(state * 2 + x)
        return x.sum()

    one = wf.ones((4, 4)).to(device)
    for _ in range(5):
        add(one)
    assert float(state[0, 0]) == 31
    before = float(state.sum())
    assert float(add(state)) in (before, 3 * before)
    assert float(state[0, 0]) == 93


def test_a_model_that_is_gone_is_not_kept_alive(device: str) -> None:
    def step(model: Any, x: wf.Tensor) -> None:
        with wf.no_grad():
            model.weight.copy_(model.weight + x.sum())

    compiled, x = wf.jit(step), wf.ones((2, 2)).to(device)
    model = wf.nn.Linear(3, 3).to(device)
    for _ in range(5):
        compiled(model, x)
    assert compiled._repeated.step is not None
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    other = wf.nn.Linear(3, 3).to(device)
    before = other.weight.detach().numpy().copy()
    compiled(other, x)
    np.testing.assert_allclose(other.weight.detach().numpy(), before + 4, rtol=1e-6)


def test_numbers_and_containers_in_arguments_are_compared_by_what_they_hold(
    device: str,
) -> None:
    def found(fastcall: bool) -> list[float]:
        state = wf.zeros(4).to(device)
        x, y = wf.ones(4).to(device), (wf.ones(4) * 2).to(device)

        @wf.jit
        def add(given: Any, factor: float) -> None:
            terms = given["terms"] if isinstance(given, dict) else given
            state.copy_(state * factor + sum(terms))

        totals, held = [], {"terms": [x, y], "name": 0.5}
        with wf.settings.changed(fastcall=fastcall):
            for _ in range(4):
                add(held, 0.5)
            totals.append(float(state.sum()))
            held["terms"] = [y, y * 2]
            for factor in (0.5, 0.5, 0.25, 0.25, -0.0, 0.0, 1, True, 1.0):
                add(held, factor)
                totals.append(float(state.sum()))
            for each in (x, y, x, y, x):  # a tuple at each call, where the last one was
                add((each, y), 0.5)
                totals.append(float(state.sum()))
            held["terms"].append(x)
            for _ in range(3):
                add(held, 0.5)
                totals.append(float(state.sum()))
        return totals

    assert found(True) == found(False)


@pytest.mark.slow
def test_a_float_in_an_optimiser_may_be_another_where_the_last_one_was(device: str) -> None:
    held, plain = pair(device)
    for number in range(6):
        for each in (held, plain):
            each.optimizer.groups[0].memo = 0.1 * number  # freed by the next one
        assert held() == plain()


@pytest.mark.slow
def test_text_that_a_model_writes_is_told_again(device: str) -> None:
    config = wf.models.GPTConfig(vocabulary=11, width=8, layers=1, heads=2, context=16)
    wf.random.seed(3)
    net = wf.models.GPT(config).to(device)
    token_step._repeated.step = None
    found = net.generate([[1, 2], [3, 4]], 8, temperature=0.0).tolist()
    assert token_step._repeated.step is not None
    with wf.settings.changed(fastcall=False):
        assert found == net.generate([[1, 2], [3, 4]], 8, temperature=0.0).tolist()


@pytest.mark.slow
def test_a_signal_right_after_a_run_leaves_state_that_belongs_together(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, plain = pair(device)
    kind = CudaExecutable if device == "cuda" else CpuExecutable
    run: Any = kind.run

    def interrupted(self: Any, *given: Any) -> Any:
        run(self, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(kind, "run", interrupted)
        held()
    plain()
    assert [held() for _ in range(3)] == [plain() for _ in range(3)]


@pytest.mark.slow
def test_nan_is_looked_for_in_steps_that_are_known(device: str) -> None:
    held, _ = pair(device)
    held.x = wf.asarray(np.full((4, 6), np.nan, np.float32)).to(device)
    with wf.debug.nans(), pytest.raises(wf.NanError):
        held()


def test_state_that_is_not_written_in_place_alternates_between_two_arrays() -> None:
    state, total = wf.zeros((64, 64)), wf.zeros((64, 64))

    @wf.jit
    def step(x: wf.Tensor) -> wf.Tensor:
        before = state * 1
        state.copy_(total @ x + 1)  # which reads what is written below
        total.copy_(before @ x + 2)
        return before.sum()

    x = wf.ones((64, 64))
    places = set[int]()
    for number in range(20):
        step(x * 0.01)
        if number > 5:
            places |= {state.numpy().ctypes.data, total.numpy().ctypes.data}
    assert step._repeated.step is not None
    assert len(places) <= 4
