"""Programs with parts on the processor and on a card: one plan, with transfers between."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.cuda.device_cases import numbers
from tests.compiler.cuda.host_card import HostCard
from tests.compiler.cuda.two_device_cases import CASES, both, check_moves, check_training

import weft as wf


def test_parts_on_two_devices_are_one_program_that_gives_what_eager_work_gives(
    card: HostCard,
) -> None:
    x, y = wf.asarray(numbers(3, 4)).to("cuda"), wf.asarray(numbers(3, 4) + 1)
    wanted = both(x, y)
    compiled = wf.jit(both)
    for _ in range(4):
        for one, other in zip(compiled(x, y), wanted, strict=True):
            assert one.device == other.device
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)
    report = compiled.explain(x, y)
    assert [str(step).replace(" f32[3, 4]", "") for step in report.plan.steps] == [
        "cuda:0: 2 nodes", "transfer from cuda:0 to cpu", "cpu: 3 nodes",
        "transfer from cpu to cuda:0", "cuda:0: 2 nodes",
    ]  # fmt: skip
    assert "3 segments and 2 transfers of 96 bytes" in str(report)
    assert set(compiled.memory(x, y).peaks) == {"cpu", "cuda:0"}


def test_a_network_on_two_devices_is_trained_by_one_program(card: HostCard) -> None:
    check_training()


def test_state_on_both_devices_is_written_in_place_unless_a_later_part_may_fail(
    card: HostCard,
) -> None:
    def step(a: wf.Tensor, b: wf.Tensor, index: wf.Tensor | None) -> wf.Tensor:
        moved = (a * 2).to("cpu")
        a += 1
        b += moved if index is None else moved[index]
        return b.sum()

    for index in (None, wf.asarray([2, 0, 1])):
        a, b = wf.asarray(numbers(3)).to("cuda"), wf.asarray(numbers(3))
        compiled, start = wf.jit(step), a.numpy()
        compiled(a, b, index)
        before = a._value.pointer
        compiled(a, b, index)
        assert (a._value.pointer == before) is (index is None)
        np.testing.assert_allclose(a.numpy(), start + 2)
    with pytest.raises(wf.BoundsError):
        compiled(a, b, wf.asarray([0, 1, 3]))
    np.testing.assert_allclose(a.numpy(), start + 2)


@pytest.mark.parametrize("name", CASES)
def test_compiled_moves_are_eager_moves(card: HostCard, name: str) -> None:
    check_moves(name)


def test_sizes_of_a_program_on_two_devices_may_differ_from_call_to_call(card: HostCard) -> None:
    compiled = wf.jit(lambda x: (x.to("cuda") * 2).to("cpu") + x[:1])
    for size in (3, 4, 5, 1, 7):
        x = wf.asarray(numbers(size, 2))
        np.testing.assert_allclose(compiled(x).numpy(), x.numpy() * 2 + x.numpy()[:1], rtol=1e-6)


def test_a_compiled_call_on_two_devices_is_differentiated_later(card: HostCard) -> None:
    x = wf.asarray(numbers(3, 4)).requires_grad_()
    w = wf.asarray(numbers(4, 2)).to("cuda").requires_grad_()
    f = lambda x, w: wf.tanh(wf.exp(x).to("cuda") @ w).to("cpu") * x[:, :2]  # noqa: E731
    f(x, w).sum().backward()
    wanted = x.grad, w.grad
    x.grad = w.grad = None
    wf.jit(f)(x, w).sum().backward()
    for one, other in zip((x.grad, w.grad), wanted, strict=True):
        assert one.device == other.device
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


def test_operands_on_two_devices_are_refused_where_they_meet(card: HostCard) -> None:
    x, y = wf.ones(3).to("cuda"), wf.ones(3)
    with pytest.raises(wf.DeviceError, match="different devices") as caught:
        wf.jit(lambda x, y: wf.exp(x) + y)(x, y)
    assert caught.value.op == "add"
    assert "test_devices_together.py" in str(caught.value)
    with pytest.raises(wf.DeviceError, match="different devices"):
        wf.jit(lambda x: x.to("cpu") + x)(x)
    with pytest.raises(wf.UnsupportedError, match="no part on another device here") as refused:
        wf.jit(lambda x: wf.scan(lambda c, r: (c + r.to("cpu"), r), x[0], x))(x)
    assert 'y.to("cpu")' in refused.value.fix
    with pytest.raises(wf.UnsupportedError, match="no budget of memory"):
        wf.jit(lambda x: x.to("cpu") + 1, memory="1MB")(x)


def test_a_program_on_two_devices_runs_by_reference_and_watched_for_nan(card: HostCard) -> None:
    x, y = wf.asarray(numbers(3, 4)).to("cuda"), wf.asarray(numbers(3, 4))
    wanted = both(x, y)
    with wf.settings.changed(compiler=False):
        for one, other in zip(wf.jit(both)(x, y), wanted, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)
    with wf.debug.nans():
        for one, other in zip(wf.jit(both)(x, y), wanted, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)
        with pytest.raises(wf.NanError):
            wf.jit(lambda x: wf.log(x.to("cuda") - 10).to("cpu"))(y)
