"""A program for all sizes is not used for one that is too small for what its function reads.

A place, a window or a stretch fits the sizes that were traced. For smaller ones the function is
traced anew: its result is another, or it is refused as it is outside of `jit`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft as wf
from weft.compiler.targets.cpu.target import compile_program
from weft.nn import functional

pytestmark = pytest.mark.slow

Function = Callable[[wf.Tensor], wf.Tensor]


def written(x: wf.Tensor) -> wf.Tensor:
    y = x.clone()
    y[3] = 1.0
    return y


FORMS: dict[str, Function] = {
    "a row": lambda x: x[3] * 2,
    "a row from the end": lambda x: x[-3] * 2,
    "an element": lambda x: x[3, 1] * 2,
    "rows by number": lambda x: x[[0, 3]] * 2,
    "a row that is written": written,
    "rows from the front": lambda x: x[2:5] * 2,
    "rows from the end": lambda x: x[-3:] * 2,
    "neighbours": lambda x: x[3:] + x[:-3],
    "rolled": lambda x: wf.roll(x, 3, axis=0) * 2,
    "rolled back": lambda x: wf.roll(x, -3, axis=0) * 2,
    "rolled flat": lambda x: wf.roll(x, 7) * 2,
    "a stretch": lambda x: wf.narrow(x, 0, 1, 3) * 2,
    "a box": lambda x: wf.dynamic_slice(x, (wf.tensor(0), wf.tensor(0)), (4, 2)) * 2,
    "windows": lambda x: wf.unfold(x, 0, 4, 1) * 2,
    "reflected": lambda x: wf.pad(x, ((4, 4), (0, 0)), mode="reflect") * 2,
    "wrapped": lambda x: wf.pad(x, ((4, 4), (0, 0)), mode="wrap") * 2,
    "symmetric": lambda x: wf.pad(x, ((4, 4), (0, 0)), mode="symmetric") * 2,
    "the largest": lambda x: wf.topk(x, 4, axis=0)[0] * 2,
    "differences": lambda x: wf.diff(x, n=4, axis=0) * 2,
    "a diagonal": lambda x: wf.linalg.diagonal(x @ x.T, offset=3) * 2,
    "pooled": lambda x: functional.avg_pool1d(x.T[None], 4) * 2,
    "the largest of windows": lambda x: functional.max_pool1d(x.T[None], 4) * 2,
    "a convolution": lambda x: functional.conv1d(x.T[None], wf.ones((1, 2, 4))) * 2,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_smaller_size_is_traced_anew_or_refused(form: str) -> None:
    f = FORMS[form]
    compiled = wf.jit(f)
    for rows in (34, 41, 7, 4, 3, 2, 1, 0, 41):
        x = wf.tensor(np.random.default_rng(rows).standard_normal((rows, 2)).astype(np.float32))
        try:
            wanted = f(x).numpy()
        except wf.WeftError as error:
            with pytest.raises(type(error)):
                compiled(x)
        else:
            np.testing.assert_allclose(compiled(x).numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_sizes_that_are_large_enough_share_a_program() -> None:
    f = wf.jit(lambda x: wf.roll(x, 3, axis=0) + x[3])
    for rows in (34, 41, 7, 12):
        f(wf.ones((rows, 2)))
    assert len(f.compilations) == 2


def test_an_unknown_size_is_rolled_by_what_is_left_of_the_shift() -> None:
    graph = wf.ir.trace(lambda x: wf.roll(x, 3, axis=0), wf.spec("float32", ("n",)))
    program = compile_program(graph)
    for size in (1, 2, 3, 4, 7):
        x = np.arange(size, dtype=np.float32)
        assert np.array_equal(program.run([x])[0], np.roll(x, 3))
