"""The programs that are replayed: Weft's side of every benchmark, and one of each kind of launch.

Each is a function without arguments that gives what a compiled function would be called with; the
benchmarks are stopped at their first call. Nothing is run.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reader import CapturedCall, captured_calls

import weft as wf

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from suite.workloads import WORKLOADS  # noqa: E402

Program = Callable[[], Any]
"""Gives the explanation of a compiled call."""

F = wf.nn.functional
PROGRAMS: dict[str, Program] = {}


def floats(*shape: int, dtype: str = "float32") -> wf.Tensor:
    """Numbers that depend on the shape alone."""
    count = int(np.prod(shape, dtype=np.int64))
    return wf.asarray(np.sin(np.arange(count)).reshape(shape)).astype(dtype)


def integers(*shape: int, below: int, dtype: str = "int64") -> wf.Tensor:
    """Integers from 0, in no order."""
    count = int(np.prod(shape, dtype=np.int64))
    return wf.asarray((np.arange(count) * 7919 % below).reshape(shape)).astype(dtype)


def of_call(function: Any, *args: Any) -> Any:
    """What the call of a function is compiled to."""
    return wf.jit(function).explain(*args)


def program(define: Callable[[], Any]) -> Callable[[], Any]:
    """Have a program replayed under its function's name."""
    PROGRAMS[define.__name__.replace("_", "-")] = define
    return define


def _benchmark(name: str, quick: bool) -> Any:
    workload = WORKLOADS[name]
    step = workload.sides["weft"](workload.task(quick, compiled=True))
    try:
        with captured_calls():
            step()
    except CapturedCall as call:
        return call.explanation()
    raise RuntimeError(f"the benchmark {name} calls no compiled function")


for _name in WORKLOADS:
    PROGRAMS[f"benchmark-{_name}"] = partial(_benchmark, _name, quick=False)
    PROGRAMS[f"quick-{_name}"] = partial(_benchmark, _name, quick=True)


# --- products ----------------------------------------------------------------------------------


@program
def products_with_epilogues() -> Any:
    def f(x: Any, w: Any, b: Any, v: Any) -> Any:
        hidden = wf.gelu(x @ w + b)
        return wf.softmax(hidden @ w.T), hidden @ v, x.T @ hidden, (hidden * hidden).sum(axis=0)

    return of_call(f, floats(96, 64), floats(64, 80), floats(80), floats(80))


@program
def products_of_few_rows() -> Any:
    def f(x: Any, w: Any, many: Any) -> Any:
        return wf.relu(x @ w), wf.einsum("bij,bjk->bik", many, many), x[0] @ w, wf.outer(x[0], x[1])

    return of_call(f, floats(3, 512), floats(512, 256), floats(12, 8, 8))


@program
def products_of_double_complex_and_integers() -> Any:
    def f(x: Any, c: Any, n: Any) -> Any:
        return x @ x.T, c @ c, n @ n

    complexes = floats(8, 8).astype("complex64")
    return of_call(f, floats(40, 30, dtype="float64"), complexes, integers(6, 6, below=9))


@program
def products_of_fixed_weights() -> Any:
    net = wf.models.MLP([64, 128, 128, 10]).eval()
    with wf.no_grad():
        return of_call(lambda net, x: net(x), net, floats(32, 64))


# --- attention and convolutions ----------------------------------------------------------------


def _attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, causal=True)


@program
def attention_forward() -> Any:
    return of_call(_attention, *[floats(2, 4, 96, 32)] * 3)


@program
def attention_backward() -> Any:
    def f(q: Any, k: Any, v: Any) -> Any:
        return wf.grad(lambda q, k, v: _attention(q, k, v).sum(), argnums=(0, 1, 2))(q, k, v)

    return of_call(f, *[floats(2, 4, 96, 32)] * 3)


@program
def attention_written_out() -> Any:
    def f(q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = wf.where(mask, q @ wf.matrix_transpose(k) * 0.25, -wf.inf)
        return wf.softmax(scores, axis=-1) @ v

    mask = wf.tril(wf.ones((48, 48), dtype=wf.bool))
    return of_call(f, *[floats(2, 4, 48, 16)] * 3, mask)


def _slopes(function: Any, *args: Any) -> Any:
    def f(*args: Any) -> Any:
        numbers = tuple(range(len(args)))
        return wf.value_and_grad(lambda *a: (function(*a) ** 2).sum(), argnums=numbers)(*args)

    return of_call(f, *args)


@program
def convolution_by_winograd() -> Any:
    convolve = lambda x, w: wf.relu(wf.conv2d(x, w, padding=1))  # noqa: E731
    return _slopes(convolve, floats(4, 32, 28, 28), floats(64, 32, 3, 3))


@program
def convolution_direct() -> Any:
    def f(x: Any, w: Any, point: Any, each: Any) -> Any:
        x = wf.conv2d(x, w, stride=2, padding=3)
        return wf.conv2d(wf.conv2d(x, point), each, padding=1, groups=24)

    return _slopes(f, floats(2, 3, 32, 32), floats(16, 3, 7, 7), floats(24, 16, 1, 1),
                   floats(24, 1, 3, 3))  # fmt: skip


@program
def convolution_in_one_and_three_dimensions() -> Any:
    def f(x: Any, w: Any, y: Any, v: Any) -> Any:
        return (
            wf.conv1d(x, w, dilation=2),
            wf.conv_transpose2d(y[:, :, 0], v[:, :, 0]),
            wf.conv3d(y, v.swapaxes(0, 1)),
        )

    return of_call(f, floats(2, 4, 40), floats(6, 4, 3), floats(1, 4, 6, 6, 6),
                   floats(4, 5, 3, 3, 3))  # fmt: skip


@program
def pooling_and_norms() -> Any:
    def f(x: Any, scale: Any) -> Any:
        x = wf.max_pool2d(F.group_norm(x, 4, scale, scale), 2)
        return wf.avg_pool2d(x, 3, stride=1) + wf.interpolate(x, size=(12, 12))[:, :, :12, :12]

    return _slopes(f, floats(2, 8, 28, 28), floats(8))


# --- control flow ------------------------------------------------------------------------------


@program
def scan_and_its_gradient() -> Any:
    def f(w: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            state = wf.tanh(state @ w + x)
            return state, state.sum()

        last, sums = wf.scan(step, wf.zeros((4, 16)), xs)
        return last.sum() + (sums**2).sum()

    return of_call(wf.value_and_grad(f), floats(16, 16), floats(10, 4, 16))


@program
def while_with_a_state() -> Any:
    def f(x: Any) -> Any:
        return wf.while_loop(
            lambda state: (state[0] ** 2).sum() > 1.0,
            lambda state: (state[0] * 0.7, state[1] + 1),
            (x, wf.asarray(0)),
        )

    return of_call(f, floats(20))


@program
def switch_of_one_and_of_rows() -> Any:
    branches = [lambda x: x * 2, lambda x: wf.exp(x), lambda x: wf.sort(x, axis=-1)]

    def f(index: Any, rows: Any, x: Any) -> Any:
        whole = wf.switch(index, branches, x)
        return whole, wf.vmap(lambda i, row: wf.switch(i, branches, row))(rows, x)

    return of_call(f, wf.asarray(1), integers(6, below=3), floats(6, 9))


@program
def loop_in_a_loop() -> Any:
    def f(x: Any) -> Any:
        def outer(total: Any, row: Any) -> Any:
            inner = wf.fori_loop(0, 3, lambda _, value: value * 1.5 + row, total)
            return inner, wf.cond(inner.sum() > 0, lambda v: v + 1, lambda v: v - 1, inner)

        return wf.scan(outer, wf.zeros((5,)), x)

    return of_call(f, floats(4, 5))


# --- order, joins, sums, lookups ---------------------------------------------------------------


@program
def sort_and_search() -> Any:
    def f(x: Any, edges: Any) -> Any:
        return (
            wf.sort(x, axis=0), wf.argsort(x, axis=1), *wf.topk(x, 5), wf.searchsorted(edges, x),
            wf.argmax(x, axis=1), wf.quantile(x, 0.3, axis=1),
        )  # fmt: skip

    return of_call(f, floats(40, 300), floats(17))


@program
def joins() -> Any:
    def f(x: Any, y: Any) -> Any:
        joined = wf.concatenate([wf.exp(x), y * 2, x[:, :3]], axis=1)
        return joined, wf.stack([x, x + 1]), wf.pad(joined, ((1, 1), (2, 0))), wf.roll(x, 2, axis=1)

    return of_call(f, floats(8, 16), floats(8, 5))


@program
def sums_over_rows_and_running_sums() -> Any:
    def f(x: Any) -> Any:
        scaled = wf.tanh(x)
        return (
            scaled, scaled.sum(axis=0), wf.logsumexp(x, axis=0), wf.var(x, axis=1), x.max(),
            wf.cumsum(x, axis=1), wf.cumulative_logsumexp(x, axis=0),
        )  # fmt: skip

    return of_call(f, floats(2000, 96))


@program
def long_sums() -> Any:
    return of_call(lambda x: (x.sum(), (x * x).mean(), wf.argmax(x), wf.prod(x)), floats(1_000_003))


@program
def embedding_and_its_gradient() -> Any:
    def f(table: Any, rows: Any) -> Any:
        return (F.embedding(rows, table) ** 2).sum()

    return of_call(wf.value_and_grad(f), floats(500, 24), integers(8, 12, below=500))


@program
def lookups_and_updates() -> Any:
    def f(x: Any, index: Any, at: Any) -> Any:
        return (
            wf.take_along_axis(x, index, axis=1), wf.scatter_add(x, 1, index, x[:, :4]),
            wf.dynamic_update_slice(x, x[:2, :2] * 3, (at, 1)),
            wf.segment_sum(x, index[:, 0], num_segments=10),
        )  # fmt: skip

    return of_call(f, floats(10, 12), integers(10, 4, below=10), wf.asarray(3))


# --- dtypes ------------------------------------------------------------------------------------


@program
def integers_and_booleans() -> Any:
    def f(a: Any, b: Any, small: Any) -> Any:
        return (
            a // (b + 1), a % (b + 1), a << 2, a ^ b, wf.any(a > b, axis=0), small * small,
            wf.where(a > b, a, b), wf.bincount(b, length=11), a.astype("float32").mean(),
        )  # fmt: skip

    first, second = integers(64, below=50), integers(64, below=11)
    return of_call(f, first, second, integers(7, 9, below=100, dtype="uint8"))


@program
def sixteen_bit_floats() -> Any:
    def f(x: Any, w: Any, h: Any) -> Any:
        loss = lambda x, w: (wf.softmax(wf.gelu(x @ w)) ** 2).sum()  # noqa: E731
        return wf.value_and_grad(loss, argnums=(0, 1))(x, w), wf.sort(h), h.sum(axis=0), wf.exp(h)

    wide = [floats(32, 48, dtype="bfloat16"), floats(48, 24, dtype="bfloat16")]
    return of_call(f, *wide, floats(20, 10, dtype="float16"))


@program
def elementary_functions() -> Any:
    def f(x: Any) -> Any:
        names = ("sin", "cos", "tan", "atan", "lgamma", "erf", "erfinv", "log1p", "expm1", "cbrt",
                 "digamma", "sinh", "asinh", "i0e", "exp2", "rsqrt")  # fmt: skip
        values = [getattr(wf, name)(x) for name in names]
        return [value.sum(axis=1) for value in values], values[3] @ x.T

    return of_call(f, floats(24, 40))


@program
def complex_numbers_and_transforms() -> Any:
    def f(x: Any) -> Any:
        spectrum = wf.fft.fft(x)
        return wf.abs(spectrum), wf.fft.irfft(wf.fft.rfft(x)), wf.conj(spectrum) * spectrum

    return of_call(f, floats(3, 64))


# --- sizes, state, randomness, memory ----------------------------------------------------------


def _of_all_sizes(function: Any, *calls: tuple[Any, ...]) -> Any:
    """What a function is compiled to once it has been called with other sizes."""
    compiled = wf.jit(function)
    for args in calls[:-1]:
        compiled.explain(*args)
    return compiled.explain(*calls[-1])


@program
def symbolic_sizes() -> Any:
    def f(x: Any, w: Any) -> Any:
        hidden = wf.relu(x @ w)
        return wf.softmax(hidden), hidden.sum(axis=0), wf.sort(hidden, axis=0)

    return _of_all_sizes(f, *[(floats(rows, 32), floats(32, 48)) for rows in (8, 13, 40)])


@program
def symbolic_attention_and_scan() -> Any:
    def f(x: Any) -> Any:
        mixed = _attention(x, x, x)
        return wf.scan(lambda c, row: (c * 0.9 + row, c), wf.zeros((16,)), mixed[0, 0])

    return _of_all_sizes(f, *[(floats(1, 2, time, 16),) for time in (16, 24, 33)])


@program
def state_that_is_written_in_place() -> Any:
    def f(cache: Any, row: Any, at: Any) -> Any:
        cache.set_(wf.dynamic_update_slice(cache, row, (at, 0)))
        return cache.sum()

    return of_call(f, floats(64, 32), floats(1, 32), wf.asarray(5))


@program
def random_numbers() -> Any:
    def f(x: Any, key: Any) -> Any:
        drawn = wf.random.normal((16,), key=key) + wf.random.uniform((16,), key=key)
        return F.dropout(x, 0.3, training=True), drawn, wf.random.categorical(x, key=key)

    return of_call(f, floats(8, 16), wf.random.key(3))


def _deep(x: Any, *weights: Any) -> Any:
    for w in weights:
        x = wf.tanh(x @ w)
    return (x**2).sum()


@program
def budget_of_memory() -> Any:
    weights = [floats(64, 64)] * 6
    slopes = wf.grad(_deep, argnums=tuple(range(1, 7)))
    free = wf.jit(slopes).memory(floats(512, 64), *weights).peak
    return wf.jit(slopes, memory=int(free * 0.8)).explain(floats(512, 64), *weights)


@program
def checkpoints() -> Any:
    block = wf.checkpoint(lambda x, w: wf.tanh(x @ w))

    def f(x: Any, w: Any) -> Any:
        return (block(block(block(x, w), w), w) ** 2).sum()

    return of_call(wf.value_and_grad(f, argnums=(0, 1)), floats(128, 32), floats(32, 32))


# --- calls out ---------------------------------------------------------------------------------


@program
def reference_calls() -> Any:
    def f(x: Any) -> Any:
        square = x @ x.T + wf.eye(6)
        values, vectors = wf.linalg.eigh(square)
        return wf.linalg.svd(x)[1], values * 2, vectors, wf.linalg.solve(square, x)

    return of_call(f, floats(6, 8))


@program
def library_calls() -> Any:
    if shutil.which("cc") is None:
        raise wf.UnsupportedError("there is no C compiler for a library's function")
    sys.path.insert(0, str(ROOT / "examples" / "custom_operator"))
    import softclip

    with tempfile.TemporaryDirectory() as folder:
        clip = softclip.define_softclip(wf.custom.load_library(softclip.build(Path(folder))))
        return of_call(wf.grad(lambda x: (clip(x * 3, limit=2.0) ** 2).sum()), floats(5, 7))


def explanations(only: list[str]) -> Iterator[tuple[str, Any]]:
    """Each program's name, and what it is compiled to."""
    for name in only or PROGRAMS:
        yield name, PROGRAMS[name]()
