"""Scripts inside transforms, modules and graphs: state, randomness, prints, checks, caches."""

# ruff: noqa: ANN001, ANN202, ANN204, ANN205, ANN206
# The functions are written as a user would write them.

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn


def names_of(graph: Any) -> set[str]:
    """The primitives of a graph, and of the graphs inside it."""
    found = set()
    for node in graph.nodes:
        found.add(node.primitive.name)
        for value in node.params.values():
            for each in value if isinstance(value, tuple) else (value,):
                found |= names_of(each) if hasattr(each, "nodes") else set()
    return found


def primitives(function: Any, *types: Any) -> set[str]:
    return names_of(wf.ir.trace(function, *types))


SCALAR = wf.spec("float32", ())


def test_branches_and_loops_become_the_graphs_own() -> None:
    @wf.script
    def branch(x):
        return x * 2 if x > 0 else -x

    @wf.script
    def loop(x):
        while x < 10:
            x = x * 2
        return x

    @wf.script
    def rows(xs):
        total = 0.0
        for x in xs:
            total += x
        return total

    @wf.script
    def counted(x):
        for i in range(100):
            x = x + i
        return x

    assert "switch" in primitives(branch, SCALAR)
    assert "while" in primitives(loop, SCALAR)
    assert "scan" in primitives(rows, wf.spec("float32", (7,)))
    assert "scan" in primitives(counted, SCALAR)
    assert len(wf.ir.trace(counted, SCALAR).nodes) < 10


def test_each_body_is_recorded_once_however_deep() -> None:
    @wf.script
    def f(x):
        if x > 0:
            print("a")
            if x > 1:
                print("b")
                if x > 2:
                    print("c")
        return x

    printed = []
    for node in wf.ir.trace(f, SCALAR).nodes:
        printed += [
            text for text in ("a", "b", "c") if str(node.params).count(f"text='{text}'") == 1
        ]
    assert printed == ["a", "b", "c"]


def test_what_a_branch_computes_stands_in_the_branch() -> None:
    @wf.script
    def f(x):
        if x > 0:
            return wf.sqrt(x)
        return x * 0

    graph = wf.ir.trace(f, SCALAR)
    assert "sqrt" not in {node.primitive.name for node in graph.nodes}
    assert wf.jit(wf.grad(f))(wf.tensor(0.0)).item() == 0.0  # the other side's slope is infinite


def test_a_closed_over_tensor_is_read_anew_at_each_call() -> None:
    w = wf.tensor([1.0, 2.0])

    @wf.jit
    @wf.script
    def f(x):
        if x > 0:
            return x * w
        return x + w

    assert f(wf.tensor(2.0)).tolist() == [2.0, 4.0]
    w.copy_(wf.tensor([5.0, 6.0]))
    assert f(wf.tensor(2.0)).tolist() == [10.0, 12.0]


def test_a_module_with_a_scripted_forward() -> None:
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()
            self.scale = nn.Parameter(wf.tensor(2.0))
            self.register_buffer("calls", wf.tensor(0.0))

        @wf.script
        def forward(self, x):
            if x.sum() > 0:
                self.calls += 1
                x = x * self.scale
            return self.inner(x)

    class Inner(nn.Module):
        def forward(self, x):
            if x.sum() > 3:
                return super().__repr__() and x * 0.5
            return x

    eager, compiled = Gate(), Gate()
    step = wf.jit(lambda net, x: net(x))
    for value in (1.0, -1.0, 4.0):
        x = wf.tensor([value, value])
        np.testing.assert_allclose(step(compiled, x).tolist(), eager(x).tolist())
    assert eager.calls.item() == compiled.calls.item() == 2.0


def test_modules_in_containers_are_followed() -> None:
    class Flip(nn.Module):
        def forward(self, x):
            if x.sum() < 0:
                x = -x
            return x

    net = nn.Sequential(Flip(), nn.ReLU(), Flip())
    f = wf.jit(wf.script(lambda x: net(x)))
    assert f(wf.tensor([-1.0, -2.0])).tolist() == [1.0, 2.0]
    assert f(wf.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]


def test_a_training_step_with_a_branch_on_the_loss() -> None:
    def train(compile: Any) -> Any:
        w = nn.Parameter(wf.tensor([3.0, -2.0]))
        optimizer = wf.optim.SGD([w], lr=0.1)

        @wf.script
        def loss_of(w):
            loss = (w * w).sum()
            if loss > 5:
                loss = loss * 0.5
            return loss

        def step():
            loss = loss_of(w)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        run = compile(step)
        losses = [run().item() for _ in range(8)]
        return losses, w.tolist()

    eager, compiled = train(lambda f: f), train(wf.jit)
    np.testing.assert_allclose(compiled[0], eager[0], rtol=1e-6)
    np.testing.assert_allclose(compiled[1], eager[1], rtol=1e-6)


def test_tensors_from_outside_are_written_to() -> None:
    count = wf.tensor(0)

    @wf.script
    def f(x):
        while x > 0:
            if x > 2:
                count.copy_(count + 1)
            x = x - 1
        return x

    wf.jit(f)(wf.tensor(5.0))
    assert count.item() == 3
    f(wf.tensor(5.0))
    assert count.item() == 6


def test_an_argument_updated_in_place_is_the_callers() -> None:
    @wf.script
    def f(x, n):
        for _ in range(n):
            x += 1

    eager, compiled = wf.tensor(1.0), wf.tensor(1.0)
    f(eager, wf.tensor(4))
    wf.jit(f)(compiled, wf.tensor(4))
    assert eager.item() == compiled.item() == 5.0


def test_random_numbers_continue_through_branches_and_loops() -> None:
    @wf.script
    def f(n):
        total = wf.random.normal(())
        while n > 0:
            if n > 2:
                total = total + wf.random.normal(())
            n -= 1
        return total + 10 * wf.random.normal(())

    def drawn(function: Any) -> list[float]:
        wf.random.seed(3)
        return [function(wf.tensor(5)).item(), wf.random.normal(()).item()]

    np.testing.assert_allclose(drawn(wf.jit(f)), drawn(f), rtol=1e-6)


def test_assertions_hold_when_the_program_runs(capsys: Any) -> None:
    @wf.script
    def f(x):
        y = x
        if x > 10:
            assert x < 20, f"x must be small, not {type(x).__name__}"
            y = x * 2
        return y

    compiled = wf.jit(f)
    assert compiled(wf.tensor(15.0)).item() == 30.0
    assert compiled(wf.tensor(5.0)).item() == 5.0
    for run in (f, compiled):
        with pytest.raises(AssertionError, match="x must be small, not Tensor"):
            run(wf.tensor(25.0))
    with pytest.raises(wf.CheckError) as caught:
        compiled(wf.tensor(25.0))
    assert caught.value.at is not None
    assert caught.value.at.file == __file__
    assert "assert x < 20" in caught.value.at.source()


def test_an_assertion_in_a_branch_is_not_made_for_rows_that_do_not_take_it() -> None:
    @wf.script
    def f(x):
        if x > 0:
            assert x < 5
        steps = 0
        while x > 0:
            assert x > 0
            x = x - 1
            steps += 1
        return steps

    rows = wf.tensor([-9.0, 1.0, 4.0])
    assert wf.vmap(f)(rows).tolist() == [0, 1, 4]
    assert wf.jit(wf.vmap(f))(rows).tolist() == [0, 1, 4]
    with pytest.raises(AssertionError):
        wf.jit(wf.vmap(f))(wf.tensor([1.0, 6.0]))


def test_a_raise_on_a_traced_tensor_happens_when_the_program_runs() -> None:
    @wf.script
    def f(x):
        if x < 0:
            raise ValueError("negative")
        return wf.sqrt(x)

    compiled = wf.jit(f)
    assert compiled(wf.tensor(4.0)).item() == 2.0
    with pytest.raises(wf.CheckError, match="ValueError: negative"):
        compiled(wf.tensor(-1.0))
    with pytest.raises(ValueError, match="negative"):
        f(wf.tensor(-1.0))


def test_prints_happen_where_the_program_comes_by(capsys: Any) -> None:
    @wf.script
    def f(x):
        while x < 10:
            if x > 4:
                print("large", {"x": 1}, x, sep="; ")
            x = x * 2
        return x

    compiled = wf.jit(f)
    compiled(wf.tensor(3.0))
    assert capsys.readouterr().out == "large; {'x': 1}; 6.\n"
    compiled(wf.tensor(1.0))
    assert capsys.readouterr().out == "large; {'x': 1}; 8.\n"


def test_a_bounded_while_is_differentiated_twice() -> None:
    @wf.script(max_steps=12)
    def f(x):
        while x < 50:
            x = x * x
        return x

    x = wf.tensor(2.0)  # x ** 8
    assert wf.jit(f)(x).item() == 256.0
    assert wf.jit(wf.grad(f))(x).item() == pytest.approx(8 * 2.0**7)
    assert wf.jit(wf.grad(wf.grad(f)))(x).item() == pytest.approx(56 * 2.0**6)


def test_an_unbounded_while_has_forward_mode() -> None:
    @wf.script
    def f(x):
        while x < 50:
            x = x * x
        return x

    _, slope = wf.jit(lambda x: wf.jvp(f, (x,), (wf.ones(()),)))(wf.tensor(2.0))
    assert slope.item() == pytest.approx(8 * 2.0**7)


def test_methods_static_methods_private_names_and_super() -> None:
    class Base:
        def limit(self, x):
            return 3.0

    class Limiter(Base):
        def __init__(self):
            self.__scale = 2.0

        @wf.script
        def limit(self, x):
            if x > super().limit(x):
                x = x * self.__scale
                return super().limit(x) + self.shift(x)
            return x * Limiter.factor()

        @staticmethod
        @wf.script
        def shift(x):
            return 1.0 if x > 10 else 0.0

        @classmethod
        def factor(cls):
            return 5.0

    limiter = Limiter()
    for value in (1.0, 4.0, 8.0):
        x = wf.tensor(value)
        assert wf.jit(limiter.limit)(x).item() == float(limiter.limit(x))


def test_a_function_is_rewritten_once() -> None:
    from weft.script import decorator

    def f(x):
        return x if x > 0 else -x

    wf.script(f)
    count = len(decorator._codes)
    wf.script(f)(wf.tensor(1.0))
    wf.script(f)
    assert len(decorator._codes) == count


def test_a_scripted_function_keeps_its_name_documentation_and_signature() -> None:
    @wf.script
    def f(x: int, *, scale: float = 2.0) -> float:
        """Scaled."""
        return x * scale

    assert (f.__name__, f.__doc__, f(3), f(3, scale=1.0)) == ("f", "Scaled.", 6.0, 3.0)
    assert f.__wrapped__.__kwdefaults__ == {"scale": 2.0}


def test_symbolic_sizes_are_scanned_over() -> None:
    @wf.script
    def f(xs):
        total = 0.0
        for x in xs:
            if x > 0:
                total += x
        return total

    compiled = wf.jit(f)
    for size in (3, 5, 7, 9):
        xs = np.linspace(-1, 1, size, dtype=np.float32)
        assert compiled(wf.tensor(xs)).item() == pytest.approx(xs[xs > 0].sum(), rel=1e-6)


def test_a_static_graph_takes_scripts() -> None:
    @wf.script
    def f(x):
        while x < 10:
            x = x * 2 if x > 2 else x + 1
        return x

    with wf.Graph() as graph:
        x = wf.placeholder(wf.float32, (), name="x")
        y = f(x)
    with wf.Session(graph) as session:
        assert float(session.run(y, {x: 1.0})) == f(wf.tensor(1.0)).item()
        assert float(session.run(y, {x: 50.0})) == 50.0


def test_the_decorator_is_the_same_however_it_is_reached() -> None:
    package = importlib.import_module("weft.script")
    assert package(lambda x: 1 if x else 2)(True) == 1
    assert package.script(lambda x: 1 if x else 2)(False) == 2
