"""Signals while a function is traced, compiled, run and written back; each at a random moment.

Every program runs in a process of its own, whose timer raises at moments that a seed decides.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.hammer import times

import weft as wf
from weft.compiler.function.compiled_function import Compiled

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")

START = """
import gc, random, signal, sys, time, _thread, threading
import numpy as np
import weft as wf
from weft.ir.lifting import here
from weft.ir.tensor import traces

class Late(BaseException):
    pass

def late(*_):
    raise Late

signal.signal(signal.SIGALRM, late)
# a shell's job in the background ignores it, and passes that on to its processes
signal.signal(signal.SIGINT, signal.default_int_handler)
count, chance = int(sys.argv[1]), random.Random(0)

def interrupted(work, longest):
    "Work again and again until a signal comes; whether one did."
    end = time.monotonic() + 20
    try:
        # and once more: the interpreter drops what is raised where a weak reference ends
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, longest), 1.0)
        while time.monotonic() < end:
            work()
    except Late:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False

def check_thread():
    assert not traces.stack and not traces.recording and traces.keeper is None
    assert not here.table and here.block is None
    assert gc.isenabled()
"""


def run(program: str, count: int = 1, timeout: float = 300) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"
        file.write_text(START + program, encoding="utf-8")
        command = [sys.executable, str(file), str(count)]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False
        )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


STATE = """
states = [wf.zeros(3), wf.zeros((20, 300)), wf.zeros(()), wf.zeros(40000), wf.zeros((8, 8))]
random_numbers = wf.random.get_state()

def update(x):
    for state in states:
        state.copy_(state + x.mean())
    return states[0] * 2

def check():
    check_thread()
    seen = {float(edge) for state in states for edge in (state.min(), state.max())}
    assert len(seen) == 1, seen  # all of them were written, or none
    return seen.pop()

step = wf.jit(update)
step(wf.ones(5))
step(wf.ones(5))
"""


@pytest.mark.slow
def test_state_is_never_half_written_when_runs_are_interrupted() -> None:
    program = """
steps = check()
for _ in range(count):
    assert interrupted(lambda: step(wf.ones(5)), 0.01)
    now = check()
    assert now >= steps
    steps = now
step(wf.ones(5))
assert check() == steps + 1
print("done")
"""
    assert run(STATE + program, times(50)) == "done\n"


@pytest.mark.slow
def test_state_is_as_it_was_when_traces_and_compilations_are_interrupted() -> None:
    program = """
def anew():
    wf.jit(lambda x: update(x * chance.choice([1.0, 1.0]) + 0.0))(wf.ones(chance.randint(2, 9)))

for _ in range(count):
    assert interrupted(anew, 0.1)
    steps = check()
step(wf.ones(5))
assert check() == steps + 1
print("done")
"""
    assert run(STATE + program, times(30)) == "done\n"


@pytest.mark.slow
def test_steps_of_training_end_in_the_same_bits_whatever_interrupts_them() -> None:
    program = """
def trained(interrupt):
    net = wf.nn.Sequential(wf.nn.Linear(16, 64), wf.nn.Tanh(), wf.nn.Linear(64, 1))
    with wf.no_grad():
        for p in net.parameters():
            p.copy_(wf.linspace(-0.5, 0.5, p.size).reshape(p.shape))
    optimizer = wf.optim.Adam(net.parameters(), lr=0.01)
    steps = wf.zeros((), dtype="int64")

    @wf.jit
    def step(net, x):
        optimizer.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        steps.copy_(steps + 1)
        return loss

    x = wf.full((4, 16), 0.25)
    step(net, x)
    for _ in range(30 if interrupt else 0):
        try:  # the timer is set once, and set and ended where what it raises is caught
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.01))
            while steps.item() < 40:
                step(net, x)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Late:
            check_thread()
    while steps.item() < 40:
        step(net, x)
    return [p.detach().numpy().tobytes() for p in net.parameters()]

expected = trained(False)
for _ in range(count):
    assert trained(True) == expected
print("done")
"""
    assert run(program, times(3)) == "done\n"


@pytest.mark.slow
def test_a_loop_without_end_is_interrupted() -> None:
    program = """
x, w = wf.ones(4), wf.ones(3)

@wf.jit
def f(x, limit):
    w.copy_(w + 1)
    return wf.while_loop(lambda a: a.sum() < limit, lambda a: wf.sin(a), x)

def main():
    for stop in (lambda: signal.setitimer(signal.ITIMER_REAL, 0.3),
                 lambda: threading.Timer(0.3, _thread.interrupt_main).start()):
        for _ in range(2):
            try:
                stop()
                f(x, wf.tensor(100.0))
            except (Late, KeyboardInterrupt) as error:
                print(type(error).__name__)
            check_thread()

f(x, wf.tensor(0.0))
main()
print(w.tolist(), f(x, wf.tensor(0.0)).tolist(), w.tolist())
"""
    shown = run(program, timeout=300).splitlines()
    assert shown[:4] == ["Late", "Late", "KeyboardInterrupt", "KeyboardInterrupt"]
    assert shown[4] == "[2.0, 2.0, 2.0] [1.0, 1.0, 1.0, 1.0] [3.0, 3.0, 3.0]"


@pytest.mark.slow
def test_a_long_loop_that_trains_is_interrupted_and_writes_nothing() -> None:
    program = """
w = wf.zeros(5000)

@wf.jit
def f(n):
    w.copy_(wf.fori_loop(0, n, lambda i, w: wf.sin(w) + 1, w))

f(2)
before = w.numpy().copy()
assert interrupted(lambda: f(10**9), 0.5)
assert np.array_equal(w.numpy(), before)
f(2)
print("done")
"""
    assert run(program, timeout=300) == "done\n"


@pytest.mark.slow
def test_an_interrupted_preparation_is_made_again() -> None:
    """Weights that stay are packed once: what was packed in half must not be used."""
    program = """
net = wf.nn.Sequential(*[wf.nn.Linear(256, 256) for _ in range(4)]).eval()
f = wf.jit(net)
x = wf.ones((64, 256))
with wf.no_grad():
    f(x)

def changed():
    with wf.no_grad():
        net[0].weight.copy_(net[0].weight * -1)
        for _ in range(3):
            f(x)

for _ in range(count):
    assert interrupted(changed, 0.02)
    with wf.no_grad():
        found, expected = f(x).numpy(), net(x).numpy()
    assert np.allclose(found, expected, atol=1e-3)
print("done")
"""
    assert run(program, times(20)) == "done\n"


@pytest.mark.slow
def test_a_call_back_that_a_signal_ends_is_no_result() -> None:
    program = """
import sys
sys.unraisablehook = lambda _: None  # the interpreter tells of what it must drop

@wf.jit
def f(x):
    def body(i, a):
        wf.debug.print("{}", a.sum())
        return a + 1
    return wf.fori_loop(0, 50, body, x)

class Nowhere:
    def write(self, text):
        return len(text)
    def flush(self):
        pass

shown, sys.stdout = sys.stdout, Nowhere()
expected = f(wf.ones(3)).tolist()

def work():
    assert f(wf.ones(3)).tolist() == expected

for _ in range(count):
    try:
        interrupted(work, 0.01)
    except KeyboardInterrupt:
        pass
    check_thread()
sys.stdout = shown
print("done")
"""
    assert run(program, times(20)) == "done\n"


def stepped() -> tuple[wf.Jit, list[wf.Tensor]]:
    """A function that adds 1 to some state, of which large arrays are written in place."""
    states = [wf.zeros(3), wf.zeros(5000), wf.zeros(())]

    def step() -> None:
        for state in states:
            state.copy_(state + 1)

    f = wf.jit(step)
    f()
    f()
    return f, states


def seen(states: list[wf.Tensor]) -> set[float]:
    return {float(edge) for state in states for edge in (state.min(), state.max())}


def test_a_write_back_that_is_interrupted_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    f, states = stepped()

    def half(self: Compiled, handles: list[wf.Tensor], values: list[Any]) -> None:
        write = self.recording.writes[0]
        owner = write.source.owner(handles)
        assert owner is not None
        assert write.output is not None
        owner._value = values[write.output]
        raise KeyboardInterrupt

    held = [state.detach() for state in states]  # so that nothing is written in place
    with monkeypatch.context() as patched:
        patched.setattr(Compiled, "_write_back", half)
        with pytest.raises(KeyboardInterrupt):
            f()
    assert seen(states) == {3.0}
    assert seen(held) == {2.0}
    f()
    assert seen(states) == {4.0}


def test_what_was_written_in_place_is_kept_when_a_signal_comes_right_after_the_run() -> None:
    f, states = stepped()
    (made,) = f._compiled.values()
    program = made.program
    assert program is not None
    launch = program._launch
    if launch is None or not made.donated:
        pytest.skip("nothing is written in place here")

    def interrupted(*given: object) -> None:
        launch(*given)
        raise KeyboardInterrupt

    held = states[0].detach()  # this one is not written in place, the others are
    program._launch = interrupted
    with pytest.raises(KeyboardInterrupt):
        f()
    program._launch = launch
    assert seen(states) == {3.0}
    assert seen([held]) == {2.0}
    f()
    assert seen(states) == {4.0}
