"""Threads that trace, run, train and save at once; forks while another thread computes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.hammer import at_once, times

import weft as wf
from weft import nn


def weights(net: nn.Module) -> dict[str, bytes]:
    return {name: value.detach().numpy().tobytes() for name, value in net.state_dict().items()}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Linear(16, 4)).eval()


def test_a_trace_is_not_seen_by_other_threads() -> None:
    x, w = wf.ones(3), wf.tensor([1.0] * 3, requires_grad=True)
    w.grad = wf.ones(3)
    seen: list[object] = []

    @wf.jit
    def f(x: wf.Tensor) -> wf.Tensor:
        with wf.no_grad():
            w.copy_(w * x)
        (w * x).sum().backward()
        look = threading.Thread(
            target=lambda: seen.append((x.tolist(), w.tolist(), w.grad.tolist()))
        )
        look.start()
        look.join()
        return w * x

    f(x)
    assert seen == [([1.0] * 3, [1.0] * 3, [1.0] * 3)]


def test_a_graph_that_is_built_is_not_seen_by_other_threads() -> None:
    net, seen = nn.Linear(2, 2), list[object]()
    before = weights(net)
    with wf.Graph():
        x = wf.placeholder("float32", (None, 2))
        net(x)
        look = threading.Thread(target=lambda: seen.append(weights(net)))
        look.start()
        look.join()
    assert seen == [before]


def test_a_second_run_of_a_checkpoint_is_not_seen_by_other_threads() -> None:
    state, seen = wf.zeros(()), list[float]()

    def f(x: wf.Tensor) -> wf.Tensor:
        look = threading.Thread(target=lambda: seen.append(state.item()))
        look.start()
        look.join()
        result = x * (state + 2)
        state.copy_(state + 1)
        return result

    x = wf.tensor(3.0, requires_grad=True)
    y = wf.checkpoint(f)(x)
    y.backward()
    assert seen == [0.0, 1.0]
    assert (x.grad.item(), state.item()) == (2.0, 1.0)


def test_a_call_with_a_lifted_module_inside_a_trace_is_not_taken_for_a_known_one() -> None:
    net, x = nn.Linear(3, 3), wf.ones((2, 3))
    inner = wf.jit(lambda net, x: net(x))
    for _ in range(4):
        expected = inner(net, x)
    outer = wf.jit(lambda net, x: inner(net, x) * 2)
    assert np.array_equal(outer(net, x).detach().numpy(), (expected * 2).detach().numpy())


@pytest.mark.slow
def test_threads_call_one_function_with_new_sizes() -> None:
    for _ in range(times(4)):
        net = network()
        f = wf.jit(net)
        before = weights(net)

        def work(first: int, f: wf.Jit = f, net: nn.Module = net) -> None:
            for size in range(first, first + 3):
                x = wf.tensor(np.full((size, 8), 0.5, np.float32))
                assert np.allclose(f(x).detach().numpy(), net(x).detach().numpy(), atol=1e-6)

        at_once(*[lambda first=first: work(first) for first in range(2, 26, 3)])
        assert weights(net) == before


def test_threads_trace_run_save_and_take_gradients_at_once(tmp_path: Path) -> None:
    net = network()
    before = weights(net)
    x = wf.tensor(np.linspace(0, 1, 40, dtype=np.float32).reshape(5, 8))
    expected = net(x).detach().numpy()
    ready = wf.jit(net)
    ready(x)

    def loss(params: dict[str, wf.Tensor]) -> wf.Tensor:
        return wf.functional_call(net, params, x).sum()

    slope = wf.grad(loss)(dict(net.named_parameters()))["0.weight"].detach().numpy()

    def traces() -> None:
        for _ in range(times(6)):
            assert np.allclose(wf.jit(net)(x).detach().numpy(), expected, atol=1e-6)

    def runs() -> None:
        for _ in range(times(60)):
            assert np.allclose(ready(x).detach().numpy(), expected, atol=1e-6)

    def computes() -> None:
        for _ in range(times(30)):
            assert np.array_equal(net(x).detach().numpy(), expected)

    def saves() -> None:
        for number in range(times(20)):
            wf.save(net.state_dict(), tmp_path / "net.safetensors")
            found = wf.load(tmp_path / "net.safetensors")
            assert {name: found[name].numpy().tobytes() for name in found} == before, number

    def differentiates() -> None:
        for _ in range(times(10)):
            params = dict(net.named_parameters())
            assert np.allclose(wf.grad(loss)(params)["0.weight"].detach().numpy(), slope, atol=1e-6)

    def maps() -> None:
        for _ in range(times(10)):
            rows = wf.vmap(lambda row: net(row[None])[0])(x)
            assert np.allclose(rows.detach().numpy(), expected, atol=1e-6)

    at_once(traces, runs, computes, saves, differentiates, maps)
    assert weights(net) == before


def test_threads_train_networks_of_their_own_to_the_same_bits() -> None:
    """Steps that differ in nothing share one program, its memory and its tables."""

    def trained(steps: int) -> dict[str, bytes]:
        net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        with wf.no_grad():
            for p in net.parameters():
                p.copy_(wf.linspace(-0.5, 0.5, p.size).reshape(p.shape))
        optimizer = wf.optim.Adam(net.parameters(), lr=0.01)

        @wf.jit
        def step(net: nn.Module, x: wf.Tensor) -> wf.Tensor:
            optimizer.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        for number in range(steps):
            step(net, wf.full((4 + number % 3, 8), 0.25))
        return weights(net)

    expected, found = trained(9), list[dict[str, bytes]]()
    at_once(*[lambda: found.append(trained(9))] * 4)
    assert found == [expected] * 4


def test_settings_that_are_changed_for_a_while_are_those_of_one_thread() -> None:
    def work() -> None:
        for _ in range(times(200)):
            with wf.settings.changed(compiler=False):
                assert wf.settings.compiler is False
                with wf.settings.changed(compiler=True, print_precision=2):
                    assert wf.settings.compiler is True

    with wf.settings.changed(print_precision=7):
        at_once(*[work] * 4)
        assert (wf.settings.compiler, wf.settings.print_precision) == (True, 7)
    assert (wf.settings.compiler, wf.settings.print_precision) == (True, 4)


FORKS = """
import gc, os, signal, sys, threading, time
import numpy as np
import weft as wf
from weft import nn

net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).eval()
loop = wf.jit(lambda x: wf.fori_loop(0, 300, lambda i, a: wf.sin(net(a)), x))
x = wf.ones((16, 64))
expected = loop(x).detach().numpy()
going, begun = True, threading.Event()

def run():
    while going:
        loop(x)
        begun.set()

def trace():
    size = 2
    while going:
        wf.jit(net)(wf.ones((size, 64)))
        size = size % 9 + 1

threads = [threading.Thread(target=run), threading.Thread(target=trace)]
for thread in threads:
    thread.start()
begun.wait()
failed = 0
for number in range(int(sys.argv[1])):
    time.sleep(0.003 * (number % 7))  # not always at the same moment
    child = os.fork()
    if child == 0:
        signal.alarm(300)  # a child that hangs is ended, and counted
        wrong = []
        if not np.array_equal(loop(x).detach().numpy(), expected):
            wrong.append("the function that was running")
        new = wf.jit(lambda x: net(x) * 2)(x).detach().numpy()
        if not np.allclose(new, (net(x) * 2).detach().numpy(), atol=1e-5):
            wrong.append("a new function")
        if any(type(p) is not wf.Tensor for p in net.parameters()):
            wrong.append("classes of parameters")
        with wf.settings.changed(compiler=False):
            wf.random.normal((2,))
        if not gc.isenabled():
            wrong.append("garbage collection")
        print(*wrong, sep=", ", end="", file=sys.stderr, flush=True)
        os._exit(bool(wrong))
    failed += os.waitpid(child, 0)[1] != 0
going = False
for thread in threads:
    thread.join()
print("failed", failed)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_that_is_forked_while_other_threads_run_and_trace_computes() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(times(12))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.stdout == "failed 0\n", ended.stderr
