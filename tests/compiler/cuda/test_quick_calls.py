"""Eager functions on a card: one program each, found by one key, and parts without a launch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.host_card import HostCard
from tests.hammer import at_once

import weft as wf
from weft.compiler.targets.cuda.bound_program import BoundProgram
from weft.compiler.targets.cuda.device import RUN_LOCK
from weft.compiler.targets.cuda.executable import BOUND
from weft.ir import eager

Call = Callable[[wf.Tensor, wf.Tensor, wf.Tensor], wf.Tensor]

CALLS: dict[str, Call] = {
    "mean": lambda x, y, i: x.mean(),
    "mean of rows": lambda x, y, i: wf.mean(x, axis=1, keepdims=True),
    "sum of columns": lambda x, y, i: x.sum(axis=0),
    "softmax": lambda x, y, i: wf.softmax(x, axis=-1),
    "leaky relu": lambda x, y, i: wf.nn.functional.leaky_relu(x, 0.25),
    "stack": lambda x, y, i: wf.stack([x, y], axis=1),
    "a tensor twice": lambda x, y, i: wf.concat([x, y, x], axis=1),
    "running sums": lambda x, y, i: wf.cumsum(x, axis=1),
    "rows at indices": lambda x, y, i: x[i],
    "elements at indices and a number": lambda x, y, i: x[i, 2],
    "columns at indices": lambda x, y, i: x[:, i],
    "taken rows": lambda x, y, i: wf.take(x, i, axis=0),
    "a column": lambda x, y, i: x[:, -1],
    "every other column": lambda x, y, i: x[1:4, ::2],
    "columns from the end": lambda x, y, i: x[..., ::-1],
    "a new axis": lambda x, y, i: x[:, None, :3],
    "a transpose": lambda x, y, i: x.T,
    "a rolled tensor": lambda x, y, i: wf.roll(x, 2, axis=0),
    "a choice": lambda x, y, i: wf.where(x > y, x, y),
    "a choice of one tensor": lambda x, y, i: wf.where(x > y, x, x),
    "a choice beside a number": lambda x, y, i: wf.where(x > y, 0.5, x),
    "bounds": lambda x, y, i: wf.clip(x, -0.25, 1),
    "a lower bound": lambda x, y, i: wf.clip(x, min=0),
    "bounds of which one is a tensor": lambda x, y, i: wf.clip(x, -0.25, y),
    "a triangle": lambda x, y, i: wf.tril(x, k=1),
    "a variance": lambda x, y, i: x.var(axis=1),
}
PARTS: dict[str, Call] = {
    "rows": lambda x, y, i: x[1:3],
    "a row": lambda x, y, i: x[-2],
    "an element": lambda x, y, i: x[1, 2],
    "a stretch of a row": lambda x, y, i: x[2, 1:4],
    "no rows": lambda x, y, i: x[2:2],
    "a row with new axes": lambda x, y, i: x[None, 3, ..., None],
    "a shape": lambda x, y, i: x.reshape(-1),
    "a part of a part": lambda x, y, i: x[1:].reshape(-1)[3:],
    "axes of size 1": lambda x, y, i: wf.expand_dims(x, axis=(0, 2)),
    "axes of size 1 in another order": lambda x, y, i: wf.permute_dims(x[:, None], (1, 0, 2)),
}


FURTHER_ROWS = {
    "rows at indices", "elements at indices and a number", "taken rows", "a row", "an element",
    "a stretch of a row", "a row with new axes",
}  # fmt: skip
"""What reads more than the first row."""


def operands(rows: int, columns: int = 7, device: str = "cuda") -> list[wf.Tensor]:
    """Numbers that differ, with ties and signs, and indices that count from both ends."""
    generator = np.random.default_rng(rows)
    x, y = (generator.normal(size=(rows, columns)).astype(np.float32) for _ in range(2))
    index = np.array([0, -1, 2, 0, -3])
    return [wf.asarray(each).to(device) for each in (x, y, index)]


class Counts:
    """How many programs were compiled, and run with all their preparations."""

    compiled = bound = 0


@contextmanager
def counted_runs() -> Iterator[Counts]:
    """Count what is not quick."""
    counts = Counts()
    compile_unit, run = eager.COMPILE[0], BoundProgram.run

    def counting_compile(*args: Any) -> Any:
        counts.compiled += 1
        return compile_unit(*args)

    def counting_run(self: BoundProgram, *args: Any) -> Any:
        counts.bound += 1
        return run(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eager, "COMPILE", [counting_compile])
        patch.setattr(BoundProgram, "run", counting_run)
        yield counts


@pytest.mark.parametrize("name", CALLS | PARTS)
def test_a_call_that_was_made_before_builds_and_binds_nothing(card: HostCard, name: str) -> None:
    f = (CALLS | PARTS)[name]
    rows = 20 + [*(CALLS | PARTS)].index(name)  # sizes that no other test has
    there, here = operands(rows), operands(rows, device="cpu")
    for _ in range(2):
        f(*there)
    with counted_runs() as counts:
        found = f(*there)
    assert (counts.compiled, counts.bound) == (0, 0)
    assert found.device == there[0].device
    np.testing.assert_allclose(found.numpy(), f(*here).numpy(), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [5, 1])
@pytest.mark.parametrize("name", CALLS | PARTS)
def test_all_calls_give_what_they_give_on_the_host(card: HostCard, name: str, rows: int) -> None:
    if rows == 1 and name in FURTHER_ROWS:
        pytest.skip("there are no such rows")
    f = (CALLS | PARTS)[name]
    x, y, index = operands(5, device="cpu")
    here = x[:rows], y[:rows], index
    there = [each.to("cuda") for each in here]
    for _ in range(3):
        np.testing.assert_allclose(f(*there).numpy(), f(*here).numpy(), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", CALLS | PARTS)
def test_gradients_are_those_of_the_host_at_every_call(card: HostCard, name: str) -> None:
    f = (CALLS | PARTS)[name]
    rows = 60 + [*(CALLS | PARTS)].index(name)
    x, y, index = operands(rows, device="cpu")
    leaf = x.requires_grad_()
    (f(leaf, y, index) ** 2).sum().backward()
    for call in range(4):
        there = x.detach().to("cuda").requires_grad_()
        with counted_runs() as counts:
            result = f(there, y.to("cuda"), index.to("cuda"))
        assert call < 2 or (counts.compiled, counts.bound) == (0, 0)
        (result**2).sum().backward()
        assert there.grad is not None
        assert leaf.grad is not None
        np.testing.assert_allclose(there.grad.numpy(), leaf.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CALLS | PARTS)
def test_transforms_of_the_same_functions_agree(card: HostCard, name: str) -> None:
    f, there = (CALLS | PARTS)[name], operands(5)
    for _ in range(3):
        wanted = f(*there).numpy()
    np.testing.assert_allclose(wf.jit(f)(*there).numpy(), wanted, rtol=2e-6, atol=1e-6)
    x, y, index = there
    batched = wf.vmap(lambda x: f(x, y, index))(wf.stack([y, x]))
    np.testing.assert_allclose(batched[1].numpy(), wanted, rtol=2e-6, atol=1e-6)
    _, tangent = wf.jvp(lambda x: f(x, y, index), (x,), (wf.ones_like(x),))
    here = [each.to("cpu") for each in there]
    _, expected = wf.jvp(lambda x: f(x, here[1], here[2]), (here[0],), (wf.ones_like(here[0]),))
    np.testing.assert_allclose(tangent.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_numbers_and_options_are_told_apart(card: HostCard) -> None:
    x = wf.tensor([[-3.0, 0.0], [2.0, 5.0]], device="cuda")
    y = wf.arange(12, dtype="float32").reshape(3, 4).to("cuda")
    for _ in range(3):
        assert wf.clip(x, -1, 1).tolist() == [[-1, 0], [1, 1]]
        assert wf.clip(x, 0.0, 1.0).tolist() == [[0, 0], [1, 1]]
        zeros = [wf.where(x > 9, x, zero).numpy() for zero in (0.0, -0.0)]
        assert [np.signbit(each).all() for each in zeros] == [False, True]
        assert wf.sum(x, axis=0).tolist() == [-1, 5]
        assert wf.sum(x, axis=1, keepdims=True).tolist() == [[-3], [7]]
        assert wf.sum(x, axis=1, keepdims=False).tolist() == [-3, 7]
        assert (y[1:, 0].tolist(), y[:2, 0].tolist()) == ([4, 8], [0, 4])
        assert (y[1, ::2].tolist(), y[1, 1::2].tolist()) == ([4, 6], [5, 7])
        assert x[:, True].shape == (2, 1, 2)
        assert x[:, 1].tolist() == [0, 5]
        assert wf.nn.functional.leaky_relu(x, 0.5).tolist() == [[-1.5, 0], [2, 5]]
        assert wf.nn.functional.leaky_relu(x, 1.0).tolist() == [[-3, 0], [2, 5]]


def test_bounds_of_integers_are_those_of_the_host(card: HostCard) -> None:
    here = wf.tensor([-3, 0, 300])
    for bounds in ((-1, 5), (None, float("inf")), (0.5, None), (None, 2**40), (None, None)):
        for _ in range(2):
            found, expected = wf.clip(here.to("cuda"), *bounds), wf.clip(here, *bounds)
            assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())


def test_an_index_out_of_range_is_reported_at_every_call(card: HostCard) -> None:
    x = wf.asarray(np.ones((11, 3), np.float32)).to("cuda")
    good, bad = (wf.tensor(each).to("cuda") for each in ([0, 10, -11], [0, 11, 1]))
    for _ in range(3):
        assert x[good].shape == (3, 3)
        with pytest.raises(wf.BoundsError):
            x[bad].numpy()
        for key in (11, (0, 3), (slice(None), -4)):
            with pytest.raises(wf.BoundsError):
                x[key]
    assert x[good].tolist() == [[1.0] * 3] * 3


def test_a_second_thread_gets_its_own_values(card: HostCard) -> None:
    x, y, index = operands(13)
    calls = [CALLS[name] for name in ("mean", "rows at indices", "a column", "bounds")]
    calls += [PARTS["a row"], lambda x, y, i: wf.zeros((13, 7), device="cuda") + y]
    for f in calls:
        f(x, y, index)
    wanted = [f(y, x, index).numpy() for f in calls]
    found: list[Any] = []

    times = range(20)
    at_once(
        lambda: found.extend(f(y, x, index).numpy() for _ in times for f in calls),
        lambda: [f(x, y, index) for _ in times for f in calls],
    )
    for one, other in zip(found, wanted * len(times), strict=True):
        np.testing.assert_array_equal(one, other)


def test_settings_and_precision_hold_for_calls_that_were_made_before(card: HostCard) -> None:
    x, y, index = operands(17)
    calls = [CALLS[name] for name in ("mean", "rows at indices", "softmax", "stack", "a choice")]
    for f in calls:
        wanted = [f(x, y, index).numpy() for _ in range(3)][-1]
        with wf.settings.changed(eager="reference"), counted_runs() as counts:
            np.testing.assert_allclose(f(x, y, index).numpy(), wanted, rtol=2e-6)
        assert counts.compiled == 0
        with wf.autocast("bfloat16"):
            cast = f(x, y, index)
            here = f(x.to("cpu"), y.to("cpu"), index.to("cpu"))
        assert cast.dtype == here.dtype
        np.testing.assert_array_equal(f(x, y, index).numpy(), wanted)


def test_a_quick_call_keeps_its_program_when_other_sizes_take_its_place(card: HostCard) -> None:
    """An executable keeps launches for some sizes; a call that was made before is made again."""
    made: list[weakref.ref[BoundProgram]] = []
    start = BoundProgram.__init__

    def noted_start(self: BoundProgram, *args: Any) -> None:
        start(self, *args)
        made.append(weakref.ref(self))

    tensors = [wf.full((2, 100 + n), 0.5, device="cuda") for n in range(2 * BOUND)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoundProgram, "__init__", noted_start)
        for x in tensors * 2:
            wf.sin(x) * x
    gc.collect()
    assert len(made) >= 2 * BOUND
    assert all(program() is not None for program in made), "native calls would read freed tables"
    for x in tensors:
        np.testing.assert_allclose((wf.sin(x) * x).numpy(), 0.5 * np.sin(0.5), rtol=1e-6)


# --- parts ---------------------------------------------------------------------------------------


def test_parts_lie_where_the_whole_does_if_vectors_begin_there(card: HostCard) -> None:
    x = wf.asarray(np.arange(48, dtype=np.float32).reshape(4, 12)).to("cuda")
    start = x._value.pointer
    before = card.launched
    assert x[1:]._value.pointer == start + 48
    assert x[2, 4:8]._value.pointer == start + 96 + 16
    assert x[1:][1:]._value.pointer == start + 96
    assert wf.squeeze(x[None, 3], axis=0)._value.pointer == start + 144
    between = x[1, 1:]  # kernels would read vectors from its first element on
    assert between._value.pointer % 16 == 0
    assert card.launched == before
    assert between.tolist() == [*range(13, 24)]
    assert (x[2, 4:8] * 2).tolist() == [56, 58, 60, 62]


def test_a_part_stays_what_it_was_when_the_whole_is_written_or_dropped(card: HostCard) -> None:
    x = wf.asarray(np.arange(16, dtype=np.float32).reshape(4, 4)).to("cuda")
    row, column = x[1], x[:, 1]
    x += 100.0
    x[1] = 7.0
    wf.optim.SGD([x.requires_grad_()], lr=1.0)
    with wf.no_grad():
        x.mul_(2.0)
    assert (row.tolist(), column.tolist()) == ([4, 5, 6, 7], [1, 5, 9, 13])
    del x
    others = [wf.full((4, 4), float(k), device="cuda") for k in range(4)]
    assert (row + others[0][1]).tolist() == [4, 5, 6, 7]


def test_a_step_that_writes_in_place_leaves_parts_alone(card: HostCard) -> None:
    weights = wf.asarray(np.ones((4, 4), np.float32)).to("cuda").requires_grad_()
    optimizer = wf.optim.SGD([weights], lr=0.5)
    step = wf.jit(lambda: optimizer.minimize(weights.sum()))
    step()
    part = weights.detach()[2:]
    for _ in range(3):
        step()
    assert part.tolist() == [[0.5] * 4] * 2
    assert weights.tolist() == [[-1.0] * 4] * 4


def test_parts_are_not_written_to_as_on_the_host(card: HostCard) -> None:
    for device in ("cpu", "cuda"):
        x = wf.zeros((3, 4), device=device)
        for part in (x[0], x[:, 1], x.T, x.reshape(-1), wf.expand_dims(x, axis=0)):
            for _ in range(2):
                with pytest.raises(wf.ArgumentError, match="a part of another tensor") as caught:
                    part.fill_(1.0)
        assert caught.value.op == "fill_"
        fixes = [_proposed_fix(part) for part in (wf.reshape(x, (12,)), x[1], x.T)]
        assert ["x.reshape((12,))" in fixes[0], "x[1] = value" in fixes[1], "x.T" in fixes[2]] == [
            True
        ] * 3
        x[wf.tensor([0], device=device)].fill_(1.0)  # a tensor of its own


def _proposed_fix(part: wf.Tensor) -> str:
    """What the error of a write to a part proposes."""
    with pytest.raises(wf.ArgumentError) as caught:
        part.fill_(1.0)
    return str(caught.value.fix)


# --- tensors of one value ------------------------------------------------------------------------

VALUES = {
    "float32": (0.0, -0.0, 1.0, 3.5, float("nan"), float("-inf"), 7),
    "bfloat16": (0.0, -0.0, 1.0, 2.5),
    "float16": (1.0, 70000.0),
    "float64": (0.0, 1.5, -0.0),
    "int8": (0, -1, 5),
    "uint16": (0, 258),
    "int64": (0, -1, 1, 2**40),
    "bool": (False, True),
    "complex64": (0.0, 1.0),
}


@pytest.mark.parametrize("dtype", VALUES)
def test_a_fill_has_the_bits_of_the_host(card: HostCard, dtype: str) -> None:
    for value in VALUES[dtype]:
        for shape in ((5, 3), (), (0, 2), (1 << 10,)):
            there = wf.full(shape, value, dtype=dtype, device="cuda")
            here = wf.full(shape, value, dtype=dtype)
            assert there.type == here.type
            assert there.numpy().tobytes() == here.numpy().tobytes(), (value, shape)


def test_tensors_of_one_value_are_not_copied_to_a_card(card: HostCard) -> None:
    x = wf.asarray(np.ones((3, 4), np.float32)).to("cuda")
    card.calls.clear()
    with wf.default_device("cuda"):
        tensors = [wf.zeros((3, 4)), wf.ones(5, dtype="bfloat16"), wf.full((2,), 7, dtype="int32")]
    tensors += [wf.zeros_like(x), wf.full_like(x, 2.0), wf.empty((3,), device="cuda")]
    assert "cuMemcpyHtoDAsync_v2" not in card.names()
    sums = [float(each.astype("float32").numpy().sum()) for each in tensors]
    assert sums == [0, 5, 14, 0, 24, 0]
    assert {each.device for each in tensors} == {x.device}


def test_a_fill_waits_while_a_stream_is_captured(card: HostCard) -> None:
    found: list[wf.Tensor] = []
    x = wf.asarray(np.arange(12, dtype=np.float32)).to("cuda")

    def work() -> None:
        found.append(wf.ones((3,), device="cuda"))
        found.append(x[1:3])  # which is a copy
        found.append(wf.asarray(np.array([7.0, 8.0], np.float32)).to("cuda"))
        found.append(x[:2].clone())

    thread = Thread(target=work)
    with RUN_LOCK:
        card.calls.clear()
        thread.start()
        thread.join(0.2)
        assert thread.is_alive(), "a program may be captured by who holds the lock"
        assert "cuMemsetD32Async" not in card.names()
    thread.join()
    assert [each.tolist() for each in found] == [[1, 1, 1], [1, 2], [7, 8], [0, 1]]


def test_a_copy_to_a_card_waits_while_a_stream_is_captured(card: HostCard) -> None:
    wf.zeros((1,), device="cuda")
    found: list[wf.Tensor] = []
    thread = Thread(target=lambda: found.append(wf.asarray(np.ones(3)).to("cuda")))
    with RUN_LOCK:
        card.calls.clear()
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert "cuMemcpyHtoDAsync_v2" not in card.names()
    thread.join()
    assert found[0].tolist() == [1, 1, 1]


def test_tensors_of_one_value_are_part_of_programs_and_transforms(card: HostCard) -> None:
    x = wf.asarray(np.arange(6, dtype=np.float32).reshape(2, 3)).to("cuda")

    def f(x: wf.Tensor) -> wf.Tensor:
        return x * wf.full(x.shape, 2.0, device=x.device) + wf.ones_like(x)

    for _ in range(2):
        assert wf.jit(f)(x).tolist() == f(x).tolist() == [[1, 3, 5], [7, 9, 11]]
        assert wf.vmap(f)(x).tolist() == [[1, 3, 5], [7, 9, 11]]
        assert wf.grad(lambda x: f(x).sum())(x).tolist() == [[2.0] * 3] * 2
