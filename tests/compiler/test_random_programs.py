"""jit(f) = f: on programs drawn at random, with gradients, and on values that are no numbers."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.laws import Arguments, Program, positions, total
from tests.test_laws import programs

import weft as wf
from weft.compiler.targets.cpu.target import compile_program
from weft.core import trees

pytestmark = pytest.mark.slow

EXAMPLES = max(200, settings().max_examples)


def agree(found: object, expected: object, limit: float) -> None:
    for one, other in zip(trees.leaves(found), trees.leaves(expected), strict=True):
        assert one.dtype is other.dtype
        a, b = one.detach().numpy(), other.detach().numpy()
        scale = 1.0 + np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
        np.testing.assert_allclose(a, b, rtol=limit, atol=limit * scale)


@settings(max_examples=EXAMPLES)
@given(programs())
def test_compiled_programs_agree_with_the_function(drawn: tuple[Program, Arguments]) -> None:
    f, xs = drawn
    agree(wf.jit(f)(*xs), f(*xs), 1e-9)


@settings(max_examples=EXAMPLES // 4)
@given(programs())
def test_compiled_gradients_agree_with_the_gradient(drawn: tuple[Program, Arguments]) -> None:
    f, xs = drawn
    gradient = wf.grad(total(f), argnums=positions(xs))
    agree(wf.jit(gradient)(*xs), gradient(*xs), 1e-7)


ODD = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 1e-40, 3e38]
STEPS = {
    "exp": wf.exp,
    "tanh": wf.tanh,
    "sum": lambda x: x - wf.sum(x, axis=-1, keepdims=True),
    "max": lambda x: x - wf.max(x, axis=0, keepdims=True),
    "turn": lambda x: (x.T * 2.0).T,
    "sign": lambda x: wf.where(x > 0, x, -x),
    "maximum": lambda x: wf.maximum(x, wf.flip(x, axis=1)),
    "shift": lambda x: wf.concat([x[:, 1:], x[:, :1]], axis=1),
    "half": lambda x: x.astype("bfloat16").astype("float32"),
}


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5),
    st.tuples(st.integers(0, 20), st.integers(1, 37)),
    st.integers(0, 1 << 30),
)
def test_odd_sizes_and_odd_numbers_come_out_the_same(
    names: list[str], shape: tuple[int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = wf.asarray(rng.choice(np.array(ODD, np.float32), shape))
    if shape[0] == 0 and "max" in names:
        return

    def f(x: wf.Tensor) -> wf.Tensor:
        for name in names:
            x = STEPS[name](x)
        return x

    agree(wf.jit(f)(x), f(x), 1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_bits_on_every_run_and_any_number_of_threads(
    threads: int, rng: np.random.Generator
) -> None:
    x = wf.asarray(rng.normal(size=(129, 517)).astype(np.float32))
    f = wf.grad(lambda x: wf.softmax(wf.tanh(x) * 3.0).std() + (x @ x.T).mean())
    program = compile_program(wf.ir.trace(f, x))
    before = wf.get_num_threads()
    try:
        wf.set_num_threads(1)
        expected = program.run([x._value])[0].tobytes()
        wf.set_num_threads(threads)
        assert all(program.run([x._value])[0].tobytes() == expected for _ in range(5))
    finally:
        wf.set_num_threads(before)
