"""What a compiled function asks of a size is answered as it is in eager mode, for every size."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn

SIZES = (6, 7, 8, 2, 9, 3, 12, 7, 6, 5, 16, 1, 4)
TABLE = {6: 2.0, 7: 3.0, 8: 5.0}
TYPES = {wf.spec("float32", (7, 3)), wf.spec("float32", (2, 3))}
SHAPES = {(6, 3), (8, 3)}


def scaled(x: Any, factor: Any) -> Any:
    """Twice or three times x for a condition, that many times for a number."""
    return x * (factor if not isinstance(factor, bool) else 2 if factor else 3)


def matched(x: Any) -> Any:
    match x.shape[0]:
        case 7:
            return x * 2
        case 6 | 8:
            return x * 3
    return x * 5


def matched_shape(x: Any) -> Any:
    match x.shape:
        case (7, 3):
            return x * 2
        case (n, 3) if n % 2 == 0:
            return x * 3
    return x * 5


@functools.cache
def remembered(n: int) -> int:
    return n * n


def tried(x: Any) -> Any:
    try:
        return x * TABLE[x.shape[0]]
    except KeyError:
        return x


def padded_to_even(x: Any) -> Any:
    return wf.concat([x, x[:1]], axis=0) if x.shape[0] % 2 else x


class Branching(nn.Module):
    """A layer of a user's own, which looks at its input's size."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.small(x) if x.shape[0] in (6, 8) else self.large(x)


BRANCHING = Branching()


@wf.script
def scripted(x: Any) -> Any:
    if 5 < x.shape[0] == 7 or 2 == x.shape[0] != 3:
        y = x * 2
    else:
        y = x * 3
    if not x.shape[0] - 8:
        y = y + 1
    return y


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "equal": lambda x: scaled(x, x.shape[0] == 7),
    "equal, reflected": lambda x: scaled(x, 7 == x.shape[0]),
    "unequal": lambda x: scaled(x, x.shape[0] != 6),
    "equal to a float": lambda x: scaled(x, x.shape[0] == 7.0),
    "equal to no integer": lambda x: scaled(x, x.shape[0] == 7.5),
    "equal to a NumPy integer": lambda x: scaled(x, bool(np.int64(7) == x.shape[0])),
    "equal to None": lambda x: scaled(x, x.shape[0] is None or x.shape[0] == "7"),
    "parity": lambda x: scaled(x, x.shape[0] % 2 == 0),
    "among numbers": lambda x: scaled(x, x.shape[0] in (6, 8)),
    "among a list": lambda x: scaled(x, x.shape[0] in [6, 8]),
    "in a set": lambda x: scaled(x, x.shape[0] in {6, 8}),
    "in a range": lambda x: scaled(x, x.shape[0] in range(5, 8)),
    "in an array": lambda x: scaled(x, bool(x.shape[0] in np.array([6, 8]))),
    "equal in an array": lambda x: scaled(x, bool((x.shape[0] == np.array([6, 8])).any())),
    "order": lambda x: scaled(x, x.shape[0] > 6),
    "order to a float": lambda x: scaled(x, x.shape[0] > 6.5),
    "shape": lambda x: scaled(x, x.shape == (7, 3)),
    "shape, unequal": lambda x: scaled(x, x.shape != (7, 3)),
    "shape in a set": lambda x: scaled(x, x.shape in SHAPES),
    "shape in a list": lambda x: scaled(x, x.shape in [(7, 3), (8, 3)]),
    "shape begins": lambda x: scaled(x, x.shape[:1] == (7,)),
    "type": lambda x: scaled(x, x.type == wf.spec("float32", (7, 3))),
    "type in a set": lambda x: scaled(x, x.type in TYPES),
    "number of elements": lambda x: scaled(x, x.size == 21),
    "is empty": lambda x: scaled(x, x.size == 0),
    "rank": lambda x: scaled(x, x.ndim == 2),
    "length": lambda x: scaled(x, len(x) == 7),
    "table": lambda x: x * TABLE.get(x.shape[0], 7.0),
    "table or error": tried,
    "table of text": lambda x: x * {"6": 2.0, "7": 3.0}.get(str(x.shape[0]), 7.0),
    "table of formatted text": lambda x: x * {"6": 2.0, "7": 3.0}.get(f"{x.shape[0]}", 7.0),
    "table of padded text": lambda x: x * {"06": 2.0, "07": 3.0}.get(f"{x.shape[0]:02d}", 7.0),
    "table of a shape's text": lambda x: x * {"(6, 3)": 2.0}.get(str(x.shape), 7.0),
    "match": matched,
    "match of a shape": matched_shape,
    "remembered": lambda x: x * remembered(x.shape[0]),
    "list": lambda x: x * list(range(20))[x.shape[0]],
    "square root": lambda x: x * math.sqrt(x.shape[0]),
    "quotient": lambda x: x * (x.shape[0] / 2),
    "reciprocal": lambda x: x * (1 / x.shape[0]),
    "times a float": lambda x: x * (0.5 * x.shape[0]),
    "plus a NumPy float": lambda x: x * float(np.float64(0.5) + x.shape[0]),
    "quotient and rest": lambda x: x * divmod(x.shape[0], 4)[0] + divmod(100, x.shape[0])[1],
    "power": lambda x: x * (x.shape[0] ** 2),
    "root by a power": lambda x: x * (x.shape[0] ** 0.5),
    "power of two": lambda x: x * (2 ** x.shape[0]),
    "smaller": lambda x: x[: min(x.shape[0], 7)] * max(x.shape[0], 7),
    "absolute": lambda x: x * abs(x.shape[0] - 7),
    "rounded": lambda x: x * round(x.shape[0]) * math.floor(x.shape[0]) * math.ceil(x.shape[0]),
    "truth": lambda x: scaled(x, bool(x.shape[0] - 7)),
    "not": lambda x: scaled(x, not x.shape[0] - 7),
    "bits": lambda x: x * x.shape[0].bit_length() + (x.shape[0] & 6) + (x.shape[0] >> 1),
    "common divisor": lambda x: x * math.gcd(x.shape[0], 6),
    "range in NumPy": lambda x: x * wf.tensor(np.arange(x.shape[0], dtype="float32"))[:, None],
    "zeros in NumPy": lambda x: x + wf.tensor(np.zeros((x.shape[0], 3), "float32") + 1),
    "product in NumPy": lambda x: scaled(x, bool(np.prod(x.shape) == 21)),
    "mean in NumPy": lambda x: x * float(np.mean(x.shape)),
    "array of a shape": lambda x: scaled(x, bool((np.array(x.shape) == (7, 3)).all())),
    "loop": lambda x: sum((x * i for i in range(x.shape[0])), x),
    "doubling": lambda x: x * next(2**k for k in range(9) if 2**k >= x.shape[0]),
    "other sizes": lambda x: scaled(x, x[5:].shape[0] == 2) if x.shape[0] > 5 else x,
    "half": lambda x: scaled(x, x.shape[0] // 2 == 3),
    "second half": lambda x: x[x.shape[0] // 2 :] * 2,
    "second half of a half": lambda x: x[x.shape[0] // 2 :][x.shape[0] // 4 :] * 2,
    "every second": lambda x: x[::2] + x[::-2][::-1] * 2,
    "decomposed": lambda x: wf.linalg.qr(x)[1] * (2 if x.shape[0] == 7 else 3),
    "derivative of a part": wf.grad(lambda x: (x[::2] ** 2).sum() + (x[x.shape[0] // 2 :]).sum()),
    "squeezed": lambda x: x[: x.shape[0] // 2].squeeze(),
    "squeezed rest": lambda x: x[x.shape[0] // 2 * 2 - 1 :].squeeze(),
    "even": padded_to_even,
    "layer": BRANCHING,
    "derivative": wf.grad(lambda x: (x**2).sum() if x.shape[0] == 7 else (x**3).sum()),
    "batched": lambda x: wf.vmap(lambda row: scaled(row, x.shape[0] == 7))(x),
    "inner function": wf.jit(lambda x: wf.jit(lambda y: scaled(y, y.shape[0] == 7))(x) + 1),
    "script": scripted,
    "reduction": lambda x: functools.reduce(operator.mul, x.shape, 1) * x,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_compiled_function_answers_as_eager_mode_does(name: str) -> None:
    f = QUESTIONS[name]
    compiled = wf.jit(f)
    for n in SIZES:
        x = wf.tensor(np.arange(3 * n, dtype=np.float32).reshape(n, 3) / 7 + 1)
        expected, found = f(x), compiled(x)
        assert found.shape == expected.shape, n
        np.testing.assert_allclose(found.detach(), expected.detach(), rtol=1e-5, err_msg=f"{n}")


def test_two_answers_are_two_programs_for_all_sizes() -> None:
    f = wf.jit(lambda x: x * 2 if x.shape[0] == 7 else x * 3)
    for n in range(2, 60):
        assert f(wf.ones((n,)))[0].item() == (2 if n == 7 else 3)
    assert len(f.compilations) == 3  # the first size, every other one, and seven
    assert "sizes that the function tells apart: n0 = 7" in f.compilations[2].reason


def test_sizes_of_two_arguments_are_compared_for_each_call() -> None:
    f = wf.jit(lambda x, y: x.sum() if x.shape[0] == y.shape[0] else y.sum() * 2)
    for n, m in [(4, 5), (5, 6), (7, 7), (8, 3), (9, 9), (3, 4), (4, 4)]:
        assert f(wf.ones((n,)), wf.ones((m,))).item() == (n if n == m else 2 * m)


def test_axes_that_change_one_after_the_other_are_different_sizes() -> None:
    f = wf.jit(lambda x: x.sum(axis=0) * x.shape[1])
    for shape in [(5, 7), (5, 8), (6, 9), (7, 7), (9, 6), (3, 8)]:
        x = wf.ones(shape)
        assert f(x).tolist() == [float(shape[0] * shape[1])] * shape[1]
    assert len(f.compilations) == 3


def test_a_part_that_broadcasts_for_some_sizes_does_so() -> None:
    w = wf.arange(5, dtype="float32")
    f = wf.jit(lambda x: x[2:] + w)
    for n in (7, 3, 7, 3):
        assert f(wf.ones((n,))).tolist() == (wf.ones((n,))[2:] + w).tolist()
    other = wf.jit(lambda x: x[2:] + w)
    assert other(wf.ones((3,))).shape == (5,)
    assert other(wf.ones((7,))).shape == (5,)
    for n in (4, 6):
        with pytest.raises(wf.ShapeError):
            other(wf.ones((n,)))


def test_what_is_empty_for_some_sizes_is_refused_for_them() -> None:
    f = wf.jit(lambda x: x[5:].max())
    assert [f(wf.ones((n,))).item() for n in (7, 8, 9)] == [1.0, 1.0, 1.0]
    for n in (5, 4):
        with pytest.raises(wf.WeftError):
            f(wf.ones((n,)))


@pytest.mark.slow
def test_questions_of_the_library_itself_compile_nothing_more(rng: np.random.Generator) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))
    heads = nn.MultiheadAttention(4, 2)

    @wf.jit
    def loss(x: Any) -> Any:
        y = model(x)
        found, _ = heads(y[None], y[None], y[None])
        return nn.functional.cross_entropy(found[0], wf.zeros((x.shape[0],), dtype="int64"))

    for n in range(2, 70):
        loss(wf.tensor(rng.normal(size=(n, 8)).astype(np.float32)))
    assert len(loss.compilations) == 2


@pytest.mark.parametrize(
    "question",
    [
        lambda n: n == 7,
        lambda n: n != 7,
        lambda n: n in (6, 8),
        lambda n: n % 2 == 0,
        lambda n: (n, 3) == (7, 3),
        lambda n: {7: 1}.get(n),
        lambda n: {(7, 3): 1}.get((n, 3)),
        lambda n: n > 7,
        lambda n: bool(n - 7),
        lambda n: n / 2,
        lambda n: n**0.5,
        lambda n: 0.5 * n,
        lambda n: f"{n:3d}",
        lambda n: n.bit_length(),
        lambda n: np.array([6, 7]) == n,
    ],
)
def test_where_no_size_is_known_the_question_is_refused(question: Callable[[Any], Any]) -> None:
    def f(x: Any) -> Any:
        question(x.shape[0])
        return x

    with pytest.raises(wf.TraceError, match="not known while tracing"):
        wf.ir.trace(f, wf.spec("float32", ("n", 3)))
    with wf.Graph():
        x = wf.placeholder("float32", (None, 3))
        with pytest.raises(wf.TraceError, match="not known while tracing"):
            question(x.shape[0])


def test_a_question_that_all_sizes_answer_alike_is_answered() -> None:
    n = wf.symbol("n")
    assert n == wf.symbol("n")
    assert n + 1 != n
    assert n != 0
    assert n == n * 2 // 2
    assert (n, 3) != (n, 4)
    assert n**2 == n * n
    assert divmod(2 * n, 2) == (n, 0)
    assert abs(n) == n
    assert f"{n} and {(n, 3)}" == "n and (n, 3)"
    assert n
    assert n != None  # noqa: E711
    assert n != "n"


def test_a_trace_inside_a_compiled_function_has_symbols_of_its_own() -> None:
    def f(x: Any) -> Any:
        wf.ir.trace(lambda y: y * 2 if y.shape[0] == 9 else y, wf.spec("float32", ("n0",)))
        return x

    compiled = wf.jit(f)
    for n in (5, 9):
        with pytest.raises(wf.TraceError, match="whether n0 == 9"):
            compiled(wf.ones((n,)))


def test_what_an_inner_function_needs_of_a_size_is_known_outside() -> None:
    inner = wf.jit(lambda x, y: wf.stack([x, x], axis=-1) - y)
    outer = wf.jit(lambda x, y: inner(x, y) * 1.0)
    assert outer(wf.ones((2, 13)), wf.ones((2, 13, 2))).shape == (2, 13, 2)
    for rows in (16, 7):
        with pytest.raises(wf.ShapeError, match="do not broadcast"):
            outer(wf.ones((2, 13)), wf.ones((2, rows, 2)))
        assert outer(wf.ones((2, rows)), wf.ones((2, rows, 2))).shape == (2, rows, 2)


def test_operations_are_counted_in_a_compiled_function_that_is_one_for_all_sizes() -> None:
    double = wf.jit(lambda x: (x * 2).sum())
    for size in (2, 5, 3):  # from the second size on its graph has a symbol of its own
        double(wf.zeros(size))
    assert wf.flops(wf.ir.trace(lambda x: double(x), wf.zeros(7))) == 14
