"""Compiled programs give what the references give: for every primitive, and for whole functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.quiet import wait_for_quiet
from tests.threads import same_result_for_all_threads

import weft as wf
from weft.compiler.targets.cpu.target import compile_program
from weft.core import trees
from weft.ir.dispatch import bind
from weft.ir.primitive import PRIMITIVES, Primitive, Sample
from weft.ir.tensor import Tensor, wrap
from weft.ir.tracing import trace
from weft.runtime.arena import account

Array = np.ndarray[Any, Any]


def of_samples(primitive: Primitive, samples: Sequence[Sample]) -> Callable[..., list[Tensor]]:
    """All samples of a primitive in one function, so that they are compiled at once."""

    def f(*operands: Tensor) -> list[Tensor]:
        rest, found = list(operands), []
        for sample in samples:
            taken = [rest.pop(0) for _ in sample.operands]
            result = bind(primitive, *taken, **sample.params)
            found += result if primitive.multiple else [result]
        return found

    return f


def close(found: Array, expected: Array) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    short = found.dtype.itemsize == 2 and found.dtype.kind in "fV"
    part = found.dtype.itemsize // (2 if found.dtype.kind == "c" else 1)
    limit = 2e-2 if short else 1e-5 if part <= 4 else 1e-11
    if short:
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=limit, atol=limit)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_every_primitive_gives_the_same_compiled(name: str) -> None:
    primitive = PRIMITIVES[name]
    samples = list(primitive.samples())
    f = of_samples(primitive, samples)
    arrays = [np.asarray(x) for sample in samples for x in sample.operands]
    program = compile_program(trace(f, [wrap(a).type for a in arrays]).graph)
    for found, expected in zip(program.run(arrays), f(*map(wrap, arrays)), strict=True):
        close(found, expected._value)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return wf.softmax(q @ k.mT / 4.0) @ v


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean = wf.mean(x, axis=-1, keepdims=True)
    variance = wf.var(x, axis=-1, keepdims=True)
    return (x - mean) * wf.rsqrt(variance + 1e-5) * w + b


def classifier(w: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return -wf.log_softmax(wf.relu(x @ w + b))[:, 0].mean()


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "attention": (attention, ((2, 3, 5, 16), (2, 3, 7, 16), (2, 3, 7, 16))),
    "attention backward": (
        wf.grad(lambda *a: attention(*a).sum(), argnums=(0, 1, 2)),
        ((2, 5, 16), (2, 7, 16), (2, 7, 16)),
    ),
    "layer norm": (layer_norm, ((6, 33), (33,), (33,))),
    "layer norm backward": (
        wf.grad(lambda *a: wf.tanh(layer_norm(*a)).sum(), argnums=(0, 1, 2)),
        ((6, 33), (33,), (33,)),
    ),
    "classifier backward": (
        wf.grad(classifier, argnums=(0, 1)),
        ((20, 10), (10,), (16, 20)),
    ),
    "movement": (
        lambda x: wf.concat([wf.pad(x, ((1, 0), (0, 2))), wf.flip(x, axis=1)[:, [0] * 7]])[::2],
        ((4, 5),),
    ),
    "a constant that repeats along some axes": (
        lambda x: wf.softmax(x * 2 + wf.tensor(np.triu(np.full((5, 5), -9.0, np.float32)))),
        ((2, 3, 5, 5),),
    ),
    "sums along every axis": (lambda x: [wf.sum(x * x, axis=a) for a in (0, 1, 2)], ((4, 5, 6),)),
    "a scalar": (lambda x: wf.sum(wf.exp(x)) / 3.0, ((7,),)),
    "nothing": (lambda x: x * 2, ((0, 3),)),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_give_the_same_compiled(name: str, rng: np.random.Generator) -> None:
    function, shapes = FUNCTIONS[name]
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    tensors = [wf.asarray(array) for array in arrays]
    program = compile_program(wf.ir.trace(function, *tensors))
    expected = trees.leaves(function(*tensors))
    for found, wanted in zip(program.run(arrays), expected, strict=True):
        assert found.dtype == wanted._value.dtype
        np.testing.assert_allclose(found, wanted._value, rtol=1e-4, atol=1e-5)


def test_normalisation_is_one_kernel_forward_and_two_backward() -> None:
    types = [wf.spec("float32", (6, 32)), wf.spec("float32", (32,)), wf.spec("float32", (32,))]
    forward = compile_program(wf.ir.trace(layer_norm, *types))
    assert len(forward.plan.launches) == 1
    gradient = wf.grad(lambda *a: layer_norm(*a).sum(), argnums=(0, 1, 2))
    assert len(compile_program(wf.ir.trace(gradient, *types)).plan.launches) <= 3
    assert len(compile_program(wf.ir.trace(wf.softmax, types[0])).plan.launches) == 1


def test_strided_and_broadcast_inputs_are_read_right(rng: np.random.Generator) -> None:
    program = compile_program(wf.ir.trace(lambda x: x + 1, wf.spec("float32", (4, 3))))
    array = rng.normal(size=(3, 8)).astype(np.float32)
    for given in (array[:, ::2].T, np.broadcast_to(array[0, :3], (4, 3))):
        np.testing.assert_array_equal(program.run([given])[0], given + 1)


def test_an_error_in_a_primitive_called_by_reference_reaches_the_caller() -> None:
    program = compile_program(wf.ir.trace(wf.linalg.inv, wf.spec("float16", (2, 2))))
    with pytest.raises(wf.ArgumentError, match="singular"):
        program.run([np.zeros((2, 2), np.float16)])
    good = program.run([np.eye(2, dtype=np.float16)])[0]
    np.testing.assert_array_equal(good, np.eye(2))


def test_the_same_bits_come_out_for_any_number_of_threads(rng: np.random.Generator) -> None:
    program = compile_program(
        wf.ir.trace(lambda x: wf.softmax(x).sum(axis=0), wf.spec("float32", (300, 257)))
    )
    array = rng.normal(size=(300, 257)).astype(np.float32)
    same_result_for_all_threads(lambda: program.run([array]))


def test_all_sizes_of_a_program_share_one_block_of_memory() -> None:
    kind = wf.spec("float32", ("n", 64))
    program = compile_program(wf.ir.trace(lambda x: wf.exp(x) @ x.T @ x, kind))
    wait_for_quiet()  # or programs of other tests may give back their memory meanwhile
    before = account.current
    for size in (200, 300, 100, 250):
        program.run([np.ones((size, 64), np.float32)])
    largest = program.plan.planner.plan_for({"n": 300}).peak
    assert account.current - before == largest
    program.release()
    assert account.current == before


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_reshaped_constant_is_read_and_never_written_over(dtype: str) -> None:
    constant = np.linspace(-1, 1, 2000, dtype=dtype).reshape(2, 25, 40)

    def f(y: Tensor) -> tuple[Tensor, Tensor]:
        def normed(y: Tensor) -> Tensor:
            return wf.nn.functional.group_norm(wf.tensor(constant) + y, 5)

        return normed(y), wf.grad(lambda y: (normed(y) * wf.tensor(constant)).sum())(y)

    y = np.linspace(0, 1, 80, dtype=dtype).reshape(2, 1, 40)
    program = compile_program(wf.ir.trace(f, wf.spec(dtype, y.shape)))
    with wf.settings.changed(compiler=False):
        wanted = f(wf.tensor(y))
    for _ in range(2):
        for found, want in zip(program.run([y]), wanted, strict=True):
            np.testing.assert_allclose(found, want.numpy(), rtol=1e-3, atol=1e-4)
