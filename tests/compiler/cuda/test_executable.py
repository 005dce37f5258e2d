"""Programs for cards, on a card in the host's memory: values, memory, graphs, loops and faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.device_cases import (
    PROGRAMS,
    SAMPLES,
    check_program,
    check_sample,
    numbers,
    train,
)
from tests.compiler.cuda.host_card import HostCard

import weft as wf
from weft.compiler.targets.cuda.array import CudaArray
from weft.ir.primitive import Primitive, Sample
from weft.ir.tensor import wrap

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize(("primitive", "sample"), SAMPLES)
def test_a_primitive_gives_on_a_card_what_its_reference_gives(
    card: HostCard, primitive: Primitive, sample: Sample
) -> None:
    check_sample(primitive, sample)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_on_a_card_what_it_gives_on_the_processor(
    card: HostCard, name: str
) -> None:
    check_program(name)


def test_sizes_may_change_from_call_to_call(card: HostCard) -> None:
    f = wf.jit(lambda x: wf.softmax(x @ x.T, axis=1).sum(axis=0))
    for rows in (3, 5, 9, 5):
        x = numbers(rows, 4)
        np.testing.assert_allclose(
            f(wf.asarray(x).to("cuda")).numpy(), f(wf.asarray(x)).numpy(), rtol=1e-5
        )


def test_a_training_step_has_the_processors_losses_and_becomes_one_graph(card: HostCard) -> None:
    found, wanted = train("cuda", 8), train("cpu", 8)
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


def test_a_carry_that_is_a_row_of_the_result_is_not_copied(card: HostCard) -> None:
    x = wf.asarray(numbers(6, 4)).to("cuda")

    def step(c: wf.Tensor, r: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        h = wf.tanh(c + r)
        return h, h

    run = wf.jit(lambda x: wf.scan(step, x[0], x))
    run(x)
    card.calls.clear()
    run(x)
    wf.cuda.synchronize()
    assert card.names().count("cuMemcpyDtoDAsync_v2") <= 2  # the last carry, not one of each step


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


def test_settings_that_are_equal_and_not_the_same_have_programs_of_their_own(
    card: HostCard,
) -> None:
    x = wf.tensor([-1.0, 0.5, 2.0]).to("cuda")
    for low, sign in ((0.0, 1.0), (-0.0, -1.0), (0.0, 1.0)):
        found = wf.clip(x, wf.tensor(low), wf.tensor(1.0))
        assert float(wf.copysign(wf.ones(3, device="cuda"), found)[0]) == sign
    assert wf.sum(wf.ones((2, 3), device="cuda"), axis=1).tolist() == [3, 3]
    assert wf.sum(wf.ones((2, 3), device="cuda"), axis=0).tolist() == [2, 2, 2]


def test_a_kernel_that_faults_is_reported_with_the_program_that_ran_last(card: HostCard) -> None:
    x = wf.asarray(numbers(3, 4)).to("cuda")
    eager, compiled = (lambda: wf.exp(x)), wf.jit(lambda x: wf.sort(wf.sin(x), axis=1) * 2)
    for call, names in ((eager, "exp"), (lambda: compiled(x), "sin, sort, multiply")):
        for _ in range(3):
            result = call()
        card.results["cuEventSynchronize"] = 700
        try:
            with pytest.raises(wf.DeviceError, match="refused a call") as caught:
                result.numpy()
        finally:
            del card.results["cuEventSynchronize"]
        text = str(caught.value)
        assert f"launches of {names}" in text
        assert "restart the process" in caught.value.fix
    assert "test_executable.py" in text
    assert wf.ones(3).sum().item() == 3.0, "the processor goes on"
