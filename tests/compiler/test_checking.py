"""The checking mode: what it lets pass, and what it must not."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.plan.launch import Launch
from weft.compiler.plan.planning import live_ranges
from weft.compiler.plan.verify import verify_plan
from weft.compiler.targets.cpu.checking.fences import FENCE, Fences, noted_faults
from weft.compiler.targets.cpu.checking.memory import NAN
from weft.compiler.targets.cpu.runtime.program import Program
from weft.compiler.targets.cpu.target import compile_program
from weft.runtime.memory import Planner


def program_of(f: Callable[..., Any], *kinds: Any, fixed: tuple[int, ...] = ()) -> Program:
    return compile_program(wf.ir.trace(f, *kinds), fixed)


def square(size: int = 64) -> Any:
    return wf.spec("float32", (size, size))


def numbers(*shape: int) -> np.ndarray:
    count = int(np.prod(shape))
    return np.sin(np.arange(count, dtype=np.float32)).reshape(shape)


# --- what must pass ------------------------------------------------------------------------------


def training_step(x: wf.Tensor) -> wf.Tensor:
    return wf.grad(lambda x: wf.nn.functional.layer_norm(wf.gelu(x @ x), (64,)).sum())(x)


PROGRAMS: dict[str, Callable[[wf.Tensor], Any]] = {
    "a chain around a product": lambda x: wf.relu(x @ x + x[0]).sum(axis=0),
    "a training step": training_step,
    "softmax": lambda x: wf.softmax(x, axis=-1) @ x,
    "a scan": lambda x: wf.scan(lambda c, row: (c * 0.5 + row, c * 2), x[0], x),
    "a scan backwards": lambda x: wf.grad(
        lambda x: wf.scan(lambda c, row: (wf.tanh(c + row), c), x[0], x)[0].sum()
    )(x),
    "a while loop": lambda x: wf.while_loop(
        lambda c: c[1] < 5, lambda c: (c[0] @ x * 0.1, c[1] + 1), (x, wf.tensor(0))
    ),
    "a choice": lambda x: wf.cond(x.sum() > 0, lambda x: x @ x, lambda x: x * 2, x),
    "a choice for each row": lambda x: wf.vmap(
        lambda row: wf.cond(row[0] > 0, lambda r: r * 2, lambda r: r - 1, row)
    )(x),
    "sorting": lambda x: wf.sort(x, axis=0),
    "a convolution": lambda x: wf.conv2d(
        x.reshape(1, 4, 32, 32), x[:36].reshape(-1)[:288].reshape(8, 4, 3, 3), padding=1
    ),
    "a call back": lambda x: wf.linalg.inv((x @ x.T + 100 * wf.eye(64)).astype("float16")),
    "a linear system": lambda x: wf.linalg.inv(x @ x.T + 100 * wf.eye(64)) @ x,
    "a factorisation": lambda x: wf.linalg.qr(x @ x.T + 100 * wf.eye(64))[1] @ x,
    "a transform": lambda x: wf.fft.irfft(wf.fft.rfft(x, axis=0), axis=0),
    "an update of rows": lambda x: wf.index_add(x, 0, wf.tensor([3, 5, 3]), x[:3]),
    "nothing at all": lambda x: wf.exp(x[:0] @ x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_programs_pass_and_give_the_same_bits(name: str) -> None:
    program = program_of(PROGRAMS[name], square())
    x = numbers(64, 64)
    wanted = program.run([x])
    with wf.testing.checked_memory():
        found = program.run([x])
    assert [each.tobytes() for each in found] == [each.tobytes() for each in wanted]


def test_a_network_and_its_optimiser_train_in_the_checking_mode() -> None:
    def losses() -> list[float]:
        wf.random.seed(0)
        net = wf.nn.Sequential(wf.nn.Linear(8, 16), wf.nn.ReLU(), wf.nn.Linear(16, 1))
        optimizer = wf.optim.Adam(net.parameters(), lr=0.01)

        @wf.jit
        def step(x: wf.Tensor) -> wf.Tensor:
            loss = (net(x) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return [step(wf.asarray(numbers(12, 8))).item() for _ in range(4)]

    wanted = losses()
    with wf.testing.checked_memory():
        assert losses() == wanted


def test_symbolic_sizes_pass() -> None:
    f = wf.jit(lambda x: wf.softmax(x @ x.T, axis=-1).sum(axis=0))
    with wf.testing.checked_memory():
        for rows in (3, 7, 1, 0, 20):
            assert f(wf.asarray(numbers(rows, 5))).shape == (rows,)


def test_an_index_out_of_bounds_is_the_users_error() -> None:
    f = wf.jit(lambda x, i: x[i] * 2)
    with wf.testing.checked_memory(), pytest.raises(wf.BoundsError, match="index 70 is out of"):
        f(wf.asarray(numbers(64, 2)), wf.tensor([1, 70]))


def test_what_calls_back_is_called_once(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        wf.debug.print("sum {:.0f}", x.sum())
        return wf.scan(lambda c, row: (c, wf.debug.print("row") or row), x[0], x)[1]

    with wf.testing.checked_memory():
        wf.jit(f)(wf.ones((3, 2)))
    assert capsys.readouterr().out == "sum 6\nrow\nrow\nrow\n"


# --- what must not -------------------------------------------------------------------------------


def refused(program: Program, arrays: list[np.ndarray], problem: str) -> None:
    with wf.testing.checked_memory(), pytest.raises(wf.MiscompiledError, match=problem):
        program.run(arrays)


def with_launch(program: Program, position: int, launch: Launch) -> Program:
    launches = [*program.plan.launches]
    launches[position] = launch
    return Program(replace(program.plan, launches=tuple(launches)))


def test_a_launch_that_writes_one_element_too_many_is_named() -> None:
    program = program_of(lambda x: wf.exp(x), wf.spec("float32", (50,)))
    launch = program.plan.launches[0]
    count = len(launch.numbers({}))
    wider = replace(launch, extent=lambda sizes: 51, numbers=lambda sizes: [51] * count)
    refused(
        with_launch(program, 0, wider), [numbers(50)], r"launch k0.* touched 1 byte behind its end"
    )


def test_a_value_that_is_overwritten_while_it_is_needed_is_seen() -> None:
    program = program_of(lambda x: wf.exp(x @ x) @ x + wf.tanh(x @ x.T) @ x, square())
    buffers = program.plan.planner.buffers
    short = [replace(b, last=b.first) for b in buffers]
    assert short != list(buffers)
    with pytest.raises(wf.MiscompiledError, match="share memory while both live"):
        verify_plan(replace(program.plan, planner=Planner(short)), {})


def test_a_launch_before_the_one_that_makes_what_it_reads_is_seen() -> None:
    plan = program_of(lambda x: wf.sort(wf.exp(x), axis=1) * 2, wf.spec("float32", (3, 3))).plan
    assert len(plan.launches) > 1
    with pytest.raises(wf.MiscompiledError, match="is read before it is written"):
        verify_plan(replace(plan, launches=plan.launches[::-1]), {})
    with pytest.raises(wf.MiscompiledError, match="is never written"):
        verify_plan(replace(plan, launches=plan.launches[:-1]), {})


def test_members_of_a_group_that_wait_for_each_other_are_seen() -> None:
    kinds = wf.spec("float32", (8,)), wf.spec("float32", (9,))
    plan = program_of(lambda x, y: (x * 2, y * 2), *kinds).plan
    (group,) = plan.launches
    one, other = group.members
    waiting = replace(other, values=(*other.values, *one.writes))
    wrong = replace(plan, launches=(replace(group, members=(one, waiting)),))
    verify_plan(plan, {})
    with pytest.raises(wf.MiscompiledError, match="a member reads what another one writes"):
        verify_plan(wrong, {})


def test_memory_that_nobody_wrote_is_seen() -> None:
    program = program_of(lambda x: wf.exp(x) * 2, wf.spec("float32", (64, 64)))
    shorter = replace(program.plan.launches[0], extent=lambda sizes: 32)
    refused(with_launch(program, 0, shorter), [numbers(64, 64)], "before all of it is written")


def test_a_result_in_the_place_of_an_operand_that_is_read_elsewhere_is_seen() -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        y = wf.linalg.inv(wf.exp(x))
        return wf.linalg.inv(y.T * y + x)

    program = program_of(f, square())
    position = [call.name for call in program.plan.launches].index("k1")
    call = program.plan.launches[position]
    operand = next(v for v in call.values if v not in (*call.writes, *program.graph.inputs))
    wrong = replace(call, in_place=((call.writes[0], operand),))
    plan = with_launch(program, position, wrong).plan
    ranges = live_ranges(plan.launches, plan.once, plan.graph, plan.root, dict(plan.slots), False)
    plan = replace(plan, planner=Planner(ranges))
    assert plan.planner.plan_for({}).reused
    refused(Program(plan), [numbers(64, 64)], "is not what the launch makes in isolation")


def test_stale_preparation_is_seen() -> None:
    kinds = wf.spec("float32", (128, 512)), wf.spec("float32", (512, 1024))
    program = program_of(lambda x, w: x @ w, *kinds, fixed=(1,))
    assert program.once
    x, w = numbers(128, 512), numbers(512, 1024)
    with wf.testing.checked_memory():
        program.run([x, w])
        program.run([x, w])
        w[:] = 7  # nobody is told
        with pytest.raises(wf.MiscompiledError, match="was written over since it was made"):
            program.run([x, w])


def test_an_array_that_is_a_view_may_not_be_donated() -> None:
    program = program_of(lambda x: x * 2, wf.spec("float32", (64,)))
    base = numbers(2, 64)
    with wf.testing.checked_memory(), pytest.raises(wf.MiscompiledError, match="is written over"):
        program.run([base[0]], [(0, 0)])


def test_an_array_that_is_given_twice_may_not_be_donated() -> None:
    kinds = wf.spec("float32", (64,)), wf.spec("float32", (64,))
    program = program_of(lambda x, y: (x * 2, y @ y), *kinds)
    x = numbers(64)
    with wf.testing.checked_memory(), pytest.raises(wf.MiscompiledError, match="is written over"):
        program.run([x, x], [(0, 0)])


# --- fences --------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("size", [0, 1, 7, 4096, 5000])
def test_touching_the_bytes_beside_a_buffer_is_noted(at_end: bool, size: int) -> None:
    fences = Fences(NAN, at_end=at_end)
    buffer = fences.buffer(size)
    edge = buffer.address + size if at_end else buffer.address - 1
    with noted_faults():
        assert fences.damage() is None
        ctypes.c_uint8.from_address(edge).value  # a load
        found = fences.damage()
        assert found is not None
        side = "behind its end" if at_end else "before its start"
        assert found == (buffer, f"was touched 1 byte {side}")
        assert fences.damage() is None
        ctypes.memset(buffer.address + size + FENCE // 2, 0, 1)  # far behind, a store
        assert fences.damage() is not None
    fences.release()


def test_a_fault_elsewhere_still_ends_the_process() -> None:
    code = (
        "import ctypes\n"
        "from weft.compiler.targets.cpu.checking.fences import noted_faults\n"
        "with noted_faults():\n"
        "    ctypes.c_uint8.from_address(8).value\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert ended.returncode == -11


@pytest.mark.slow
def test_the_environment_asks_for_checks() -> None:
    code = "import weft as wf; wf.jit(lambda x: x + 1)(wf.ones(2))"
    bad = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "WEFT_CHECK": "memry"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert bad.returncode != 0
    assert "WEFT_CHECK=memory" in bad.stderr
