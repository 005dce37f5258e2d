"""`wf.debug`: prints, breakpoints and the NaN check, eager, in transforms and in compiled code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.pipeline import optimize
from weft.compiler.targets.cpu.target import CPU
from weft.ir.dispatch import OBSERVERS, apply
from weft.ops import families


def shown(x: wf.Tensor) -> wf.Tensor:
    wf.debug.print("x = {}", x)
    return (x * x).sum()


X = [1.0, 2.0]
LINE = "x = [1., 2.]\n"


# --- prints ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run",
    [
        lambda x: shown(x),
        lambda x: wf.jit(shown)(x),
        lambda x: wf.grad(shown)(x),
        lambda x: wf.jvp(shown, (x,), (x,)),
        lambda x: wf.jit(wf.grad(shown))(x),
        lambda x: wf.grad(wf.jit(shown))(x),
        lambda x: wf.jit(wf.grad(wf.jit(shown)))(x),
        lambda x: wf.jvp(wf.jit(shown), (x,), (x,)),
        lambda x: wf.vmap(shown)(x[None]),
        lambda x: wf.jit(wf.vmap(shown))(x[None]),
    ],
    ids=range(10),
)
def test_a_print_happens_once_with_the_primal_values(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run(wf.tensor(X))
    assert capsys.readouterr().out == LINE


def test_a_print_happens_at_each_run_of_a_compiled_function(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fast = wf.jit(lambda x: wf.debug.print("{:.1f}", x) or x + 1)
    for value in (1.0, 2.0, 3.0):
        fast(wf.tensor(value))
    assert capsys.readouterr().out == "1.0\n2.0\n3.0\n"
    assert len(fast.compilations) == 1


def test_prints_keep_their_order_and_equal_ones_are_not_merged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @wf.jit
    def f(x: wf.Tensor) -> wf.Tensor:
        wf.debug.print("begin")
        y = wf.exp(x)
        wf.debug.print("y {}", y)
        wf.debug.print("y {}", y)
        z = y @ y
        wf.debug.print("x {}", x)
        wf.debug.print("z {}", z)
        return z

    f(wf.zeros(2))
    expected = ["begin", "y [1., 1.]", "y [1., 1.]", "x [0., 0.]", "z 2."]
    assert capsys.readouterr().out.splitlines() == expected


def test_a_print_of_what_nothing_else_needs_is_not_removed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    graph = wf.ir.trace(lambda x: wf.debug.print("{}", x * 3) or x * 2, wf.spec("float32", (2,)))
    assert [n.primitive.name for n in optimize(graph, CPU).nodes].count("debug_print") == 1
    wf.jit(lambda x: wf.debug.print("{}", wf.sin(x) * 0 + 5) or x)(wf.ones(1))
    assert capsys.readouterr().out == "[5.]\n"


def test_a_print_in_a_loop_happens_at_each_step_also_when_its_results_are_not_needed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def body(carry: wf.Tensor, x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        wf.debug.print("{:.0f} {:.0f}", carry, x)
        return carry + x, x

    def loop(xs: wf.Tensor) -> wf.Tensor:
        return wf.scan(body, wf.tensor(0.0), xs)[0]

    expected = "0 1\n1 2\n"
    xs = wf.tensor(X)
    for run in (loop, wf.jit(loop), wf.grad(loop), wf.jit(wf.grad(loop))):
        run(xs)
        assert capsys.readouterr().out == expected
    wf.jit(lambda xs: (loop(xs), xs)[1])(xs)
    assert capsys.readouterr().out == expected


def test_vmap_prints_a_line_for_each_element_in_any_depth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def f(x: wf.Tensor, y: wf.Tensor) -> None:
        wf.debug.print("{} {}", x, y)

    wf.vmap(lambda x: wf.vmap(lambda y: f(x, y))(wf.tensor([3, 4])))(wf.tensor([1, 2]))
    assert capsys.readouterr().out == "1 3\n1 4\n2 3\n2 4\n"


def test_a_tensor_from_outside_is_printed_as_it_is_at_each_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    w = wf.tensor(5.0)
    fast = wf.jit(lambda x: wf.debug.print("{}", w) or x)
    fast(wf.ones(1))
    w.fill_(6.0)
    fast(wf.ones(1))
    assert capsys.readouterr().out == "5.\n6.\n"


@pytest.mark.parametrize(
    ("text", "values", "named", "expected"),
    [
        ("{} {}", (1, "a"), {}, "1 a"),
        ("{1} {0}", (wf.tensor(1), wf.tensor(2)), {}, "2 1"),
        ("{x:.2f}{{}}", (), {"x": wf.tensor(0.5)}, "0.50{}"),
        ("{0!s} {0}", (wf.zeros(2),), {}, "[0., 0.] [0., 0.]"),
        ("{:.1f}", (wf.tensor([[1.0, 2.0]]),), {}, "[[1.0, 2.0]]"),
        ("{}", (wf.ones(2, dtype=wf.bfloat16),), {}, "[1., 1.]"),
        ("{v!r:>4} {s}", (), {"v": 7, "s": "{}"}, "   7 {}"),
    ],
)
def test_places_are_those_of_format(
    text: str, values: Any, named: Any, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wf.debug.print(text, *values, **named)
    assert capsys.readouterr().out == expected + "\n"


@pytest.mark.parametrize(
    ("arguments", "named", "problem"),
    [
        (("{}",), {}, "0 values, and none for place 0"),
        (("no place", 1), {}, "1 values for 0 places"),
        (("{loss}",), {"x": 1}, "no value is called 'loss'"),
        (("{",), {}, "Single '{' encountered"),
        (("{0.shape}", wf.ones(2)), {}, "'0.shape' is a part of a value"),
        (("{x[0]}",), {"x": wf.ones(2)}, "'x[0]' is a part of a value"),
        (("{0.__class__}", 1), {}, "'0.__class__' is a part of a value"),
        (("{0:{1}}", wf.ones(2), wf.ones(2)), {}, "no plain form of a value"),
        (("{0:.99999f}", wf.ones(2)), {}, "no plain form of a value"),
        (("{0:d}", wf.ones(2)), {}, "Unknown format code 'd'"),
        (("{0!x}", wf.ones(2)), {}, "no conversion 'x'"),
        ((wf.tensor(1.0),), {}, "not a text"),
    ],
)
def test_places_without_values_are_refused_at_once(
    arguments: Any, named: Any, problem: str
) -> None:
    with pytest.raises(wf.WeftError) as caught:
        wf.debug.print(*arguments, **named)
    assert problem in caught.value.problem
    assert caught.value.op == "debug.print"


SECRETS = [
    "{0.__init__.__globals__}", "{0.__init__.__globals__[sys].modules[os].environ}",
    "{0.__class__}", "{0._array}", "{0[0]}", "{0:{0.__class__}}", "{0:{0}}", "{0!r:{0._array}}",
    "{0:999999999}", "{0:.999999999f}", "{}", "{1}", "{x}", "{0", "{0!x}",
]  # fmt: skip


@pytest.mark.parametrize("text", SECRETS)
def test_a_text_cannot_ask_for_more_than_a_value(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    primitive = wf.ir.PRIMITIVES["debug_print"]
    for run in (
        lambda: wf.ir.parse(
            f"graph(a: f32[2]) {{ b: bool[] = debug_print(a, rows=0, text={text!r}) return a }}"
        ),
        lambda: primitive.reference(np.ones(2, np.float32), text=text, rows=0),
        lambda: wf.jit(lambda x: apply(primitive, x, text=text, rows=0))(wf.ones(2)),
        lambda: apply(primitive, wf.ones(2), text=text, rows=0),
    ):
        with pytest.raises(wf.WeftError) as caught:
            run()
        assert len(str(caught.value)) < 2000
    assert capsys.readouterr().out == ""


def test_a_check_from_elsewhere_shows_no_line_of_the_file_that_it_names(tmp_path: Path) -> None:
    secret = tmp_path / "settings.py"
    secret.write_text("PASSWORD = 'swordfish'\n")
    graph = wf.ir.parse(
        "graph(a: bool[]) { b: bool[] = debug_check(a, text='no', fix='', "
        f"file={str(secret)!r}, line=1, function='f', rows=0) return a }}"
    )
    with pytest.raises(wf.CheckError) as caught:
        wf.ir.interpret(graph, wf.tensor(False))
    assert "swordfish" not in str(caught.value)
    assert f"the test stands in {secret}:1" in caught.value.note


@pytest.mark.parametrize(
    "call",
    [
        "debug_print(a, text='x', rows=1000)",
        "debug_print(a, text='x', rows=-1)",
        "debug_print(a, text=3, rows=0)",
        "debug_check(a, text='x', fix='y', file='f', line=99999999999, function='g', rows=0)",
        "debug_breakpoint(a, names=('x',), file='f', line=99999999999, rows=0)",
        "debug_breakpoint(a, names=('x', 'y'), file='f', line=1, rows=0)",
        "debug_breakpoint(a, names=(1,), file='f', line=1, rows=0)",
    ],
)
def test_what_no_program_says_is_refused_when_it_is_read(call: str) -> None:
    with pytest.raises(wf.GraphError):
        wf.ir.parse(f"graph(a: bool[2]) {{ b: bool[] = {call} return a }}")


# --- breakpoints -------------------------------------------------------------------------------


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def hook() -> None:
        frame = sys._getframe(1)
        values = {k: v.tolist() for k, v in frame.f_locals.items() if isinstance(v, wf.Tensor)}
        found.append({**values, "file": frame.f_code.co_filename, "line": frame.f_lineno})

    monkeypatch.setattr(sys, "breakpointhook", hook)
    return found


def test_a_breakpoint_has_the_callers_tensors_and_stands_at_the_callers_line(
    stops: list[dict[str, Any]],
) -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        y = x * 2
        wf.debug.breakpoint()
        return y

    for run in (f, wf.jit(f), wf.grad(lambda x: f(x).sum())):
        run(wf.tensor([1.0]))
        line = f.__code__.co_firstlineno + 2
        assert stops.pop() == {"x": [1.0], "y": [2.0], "file": __file__, "line": line}
        assert stops == []


def test_a_breakpoint_has_what_it_is_given(stops: list[dict[str, Any]]) -> None:
    wf.vmap(lambda x: wf.debug.breakpoint(twice=x * 2) or x)(wf.tensor([1, 2]))
    assert [stop["twice"] for stop in stops] == [2, 4]


def test_what_the_debugger_raises_comes_out_of_compiled_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hook() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "breakpointhook", hook)
    fast = wf.jit(lambda x: wf.debug.breakpoint(x=x) or x)
    with pytest.raises(KeyboardInterrupt):
        fast(wf.ones(1))
    monkeypatch.setattr(sys, "breakpointhook", lambda: None)
    assert fast(wf.ones(1)).tolist() == [1.0]


# --- NaN ---------------------------------------------------------------------------------------


def bad(x: wf.Tensor) -> wf.Tensor:
    y = x - 1
    z = wf.log(y)  # the line
    return (z * 2).sum()


@pytest.mark.parametrize(
    "run",
    [
        bad,
        wf.jit(bad),
        wf.jit(wf.vmap(lambda x: bad(x))),
        wf.jit(wf.value_and_grad(lambda x: bad(x[0]))),
        wf.grad(lambda x: bad(x[0])),
        wf.grad(wf.jit(lambda x: bad(x[0]))),
        lambda x: wf.scan(lambda c, r: (c + bad(r), r), wf.tensor(0.0), x)[0],
        wf.jit(lambda x: wf.scan(lambda c, r: (c + bad(r), r), wf.tensor(0.0), x)[0]),
    ],
    ids=["eager", "jit", "jit vmap", "jit grad", "grad", "grad jit", "scan", "jit scan"],
)
def test_the_line_that_made_the_first_nan_is_named(run: Any) -> None:
    with wf.debug.nans(), pytest.raises(wf.NanError) as caught:
        run(wf.tensor([[0.5, 2.0]]))
    error = caught.value
    assert error.op == "log"
    assert error.problem == "the first NaN is made here"
    assert "in [-0.5, 1]" in error.got
    assert error.at is not None
    assert error.at.file == __file__
    assert error.at.line == bad.__code__.co_firstlineno + 2
    assert isinstance(error, ArithmeticError)


def test_products_of_matrices_are_checked_too() -> None:
    x = wf.tensor([[float("inf"), 1.0]])
    with wf.debug.nans(), pytest.raises(wf.NanError, match=r"dot|matmul"):
        x @ wf.zeros((2, 1))


def test_nan_that_comes_from_outside_is_named_where_it_is_first_used() -> None:
    x = wf.tensor([float("nan"), 1.0])
    for f in (lambda x: x * 2, wf.jit(lambda x: x * 2)):
        with wf.debug.nans(), pytest.raises(wf.NanError, match="x1 already holds NaN"):
            f(x)


def test_what_takes_nan_away_is_no_error() -> None:
    x = wf.tensor([float("nan"), 1.0])
    with wf.debug.nans():
        assert wf.nansum(x).item() == 1.0
        assert wf.jit(wf.nansum)(x).item() == 1.0
        assert wf.jit(lambda x: wf.where(x < 0, wf.log(x), x))(wf.tensor([2.0])).tolist() == [2.0]


def test_state_is_as_before_when_a_compiled_step_is_refused() -> None:
    w = wf.tensor([1.0, 2.0])

    @wf.jit
    def step(x: wf.Tensor) -> wf.Tensor:
        w.copy_(wf.sqrt(x))
        return w

    with wf.debug.nans(), pytest.raises(wf.NanError):
        step(wf.tensor([-1.0, 1.0]))
    assert w.tolist() == [1.0, 2.0]


def test_a_loop_over_many_sizes_is_run_again_with_the_sizes_it_has() -> None:
    fast = wf.jit(lambda x: wf.sqrt(x.reshape(x.shape[0], 1)))
    for size in (2, 3, 4):
        fast(wf.ones(size))
    with wf.debug.nans(), pytest.raises(wf.NanError) as caught:
        fast(-wf.ones(5))
    assert "f32[5, 1]" in caught.value.got


def test_the_check_ends_with_the_block() -> None:
    quiet = families.quiet
    with pytest.raises(RuntimeError), wf.debug.nans():
        raise RuntimeError
    assert OBSERVERS == []
    assert families.quiet is quiet
    assert np.isnan(wf.log(wf.tensor(-1.0)).item())
