"""Arrangements against NumPy, on fixed and on symbolic sizes, and what wrong calls get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refusals import check_refusal

import weft as wf
from weft.ir import PRIMITIVES
from weft.testing import check_grads

Array = np.ndarray[Any, Any]


def counted(*shape: int) -> Array:
    return np.arange(1.0, np.prod(shape) + 1).reshape(shape)


def check(found: Any, expected: Any) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check(one, other)
        return
    assert found.shape == np.shape(expected)
    np.testing.assert_array_equal(found.numpy(), expected)


X = counted(2, 3, 4)
CALLS: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Any]]] = {
    "reshape": (lambda x: wf.reshape(x, (4, -1)), lambda x: x.reshape(4, -1)),
    "reshape to a line": (lambda x: wf.reshape(x, -1), lambda x: x.reshape(-1)),
    "expand_dims": (lambda x: wf.expand_dims(x, axis=-1), lambda x: x[..., None]),
    "expand_dims twice": (lambda x: wf.expand_dims(x, axis=(0, -1)), lambda x: x[None, ..., None]),
    "squeeze": (lambda x: wf.squeeze(x[:, :1], axis=1), lambda x: x[:, 0]),
    "squeeze all": (lambda x: wf.squeeze(x[:1, :, :1]), lambda x: x[0, :, 0]),
    "broadcast_to": (
        lambda x: wf.broadcast_to(x[:, :1], (5, 2, 3, 4)),
        lambda x: np.broadcast_to(x[:, :1], (5, 2, 3, 4)),
    ),
    "broadcast_arrays": (
        lambda x: wf.broadcast_arrays(x, x[0, :1]),
        lambda x: list(np.broadcast_arrays(x, x[0, :1])),
    ),
    "permute_dims": (lambda x: wf.permute_dims(x, (1, -1, 0)), lambda x: x.transpose(1, 2, 0)),
    "transpose": (wf.transpose, np.transpose),
    "swapaxes": (lambda x: wf.swapaxes(x, 0, -1), lambda x: x.swapaxes(0, -1)),
    "moveaxis": (lambda x: wf.moveaxis(x, 0, 2), lambda x: np.moveaxis(x, 0, 2)),
    "moveaxis of two": (
        lambda x: wf.moveaxis(x, (0, 1), (-1, 0)),
        lambda x: np.moveaxis(x, (0, 1), (-1, 0)),
    ),
    "flip": (wf.flip, np.flip),
    "flip of two": (lambda x: wf.flip(x, axis=(0, -1)), lambda x: np.flip(x, (0, -1))),
    "roll": (lambda x: wf.roll(x, 5), lambda x: np.roll(x, 5)),
    "roll of two": (
        lambda x: wf.roll(x, (1, -9), axis=(0, 2)),
        lambda x: np.roll(x, (1, -9), (0, 2)),
    ),
    "roll of one by two": (
        lambda x: wf.roll(x, 1, axis=(1, 1)),
        lambda x: np.roll(x, 1, (1, 1)),
    ),
    "concat": (lambda x: wf.concat([x, x[:1]]), lambda x: np.concatenate([x, x[:1]])),
    "concat flat": (
        lambda x: wf.concat([x, x[0]], axis=None),
        lambda x: np.concatenate([x, x[0]], None),
    ),
    "stack": (lambda x: wf.stack([x, x], axis=-1), lambda x: np.stack([x, x], -1)),
    "unstack": (lambda x: wf.unstack(x, axis=1), lambda x: list(np.moveaxis(x, 1, 0))),
    "tile": (lambda x: wf.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
    "tile with few": (lambda x: wf.tile(x, 2), lambda x: np.tile(x, 2)),
    "tile with many": (lambda x: wf.tile(x, (2, 1, 1, 1)), lambda x: np.tile(x, (2, 1, 1, 1))),
    "repeat": (lambda x: wf.repeat(x, 2), lambda x: np.repeat(x, 2)),
    "repeat along": (lambda x: wf.repeat(x, 3, axis=1), lambda x: np.repeat(x, 3, 1)),
    "repeat by each": (
        lambda x: wf.repeat(x, wf.tensor([1, 0, 2]), axis=1),
        lambda x: np.repeat(x, [1, 0, 2], 1),
    ),
    "flatten": (lambda x: wf.flatten(x, 1), lambda x: x.reshape(2, 12)),
    "ravel": (wf.ravel, np.ravel),
    "hstack": (lambda x: wf.hstack([x, x]), lambda x: np.hstack([x, x])),
    "vstack": (lambda x: wf.vstack([x, x]), lambda x: np.vstack([x, x])),
    "vstack of lines": (lambda x: wf.vstack([x[0, 0]] * 2), lambda x: np.vstack([x[0, 0]] * 2)),
    "split": (lambda x: wf.split(x, 2, axis=2), lambda x: np.split(x, 2, 2)),
    "split at": (lambda x: wf.split(x, [1, 3, 9], 2), lambda x: np.split(x, [1, 3, 9], 2)),
    "chunk": (lambda x: wf.chunk(x, 2, axis=1), lambda x: np.array_split(x, 2, 1)),
    "narrow": (lambda x: wf.narrow(x, 2, 1, 2), lambda x: x[:, :, 1:3]),
    "diagonal": (wf.diagonal, np.diagonal),
    "diagonal below": (
        lambda x: wf.diagonal(x, -1, 2, 1),
        lambda x: np.diagonal(x, -1, 2, 1),
    ),
    "diagonal outside": (lambda x: wf.diagonal(x, 7), lambda x: np.diagonal(x, 7)),
    "diag of a line": (lambda x: wf.diag(x[0, 0], -1), lambda x: np.diag(x[0, 0], -1)),
    "diag of a matrix": (lambda x: wf.diag(x[0], 1), lambda x: np.diag(x[0], 1)),
    "atleast_1d": (wf.atleast_1d, np.atleast_1d),
    "atleast_2d": (lambda x: wf.atleast_2d(x[0, 0]), lambda x: np.atleast_2d(x[0, 0])),
    "atleast_3d": (lambda x: wf.atleast_3d(x[0]), lambda x: np.atleast_3d(x[0])),
    "windows": (
        lambda x: wf.as_windows(x, (2, 3), axis=(1, 2)),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, (2, 3), (1, 2)),
    ),
    "unfold": (
        lambda x: wf.unfold(x, 2, 2, 2),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, 2)[:, :, ::2],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_arrangement_agrees_with_numpy(name: str) -> None:
    ours, theirs = CALLS[name]
    check(ours(wf.asarray(X)), theirs(X))


@pytest.mark.parametrize("name", CALLS)
def test_an_arrangement_is_differentiable_and_batches(name: str) -> None:
    ours, _ = CALLS[name]

    def joined(x: wf.Tensor) -> wf.Tensor:
        found = ours(x)
        parts = found if isinstance(found, (list, tuple)) else [found]
        return wf.concat([part.reshape(-1) for part in parts])

    check_grads(joined, [wf.asarray(X)])
    batch = np.stack([X, -X], 1)
    expected = np.stack([joined(wf.asarray(X)).numpy(), joined(wf.asarray(-X)).numpy()])
    check(wf.vmap(joined, in_axes=1)(wf.asarray(batch)), expected)


@pytest.mark.parametrize("k", range(-1, 5))
def test_rot90_agrees_with_numpy(k: int) -> None:
    check(wf.rot90(wf.asarray(X), k, (2, 0)), np.rot90(X, k, (2, 0)))


@pytest.mark.parametrize("mode", ["reflect", "edge", "symmetric", "wrap", "constant"])
@pytest.mark.parametrize("width", [0, 1, (2, 0), [(1, 7), (9, 2)], [(0, 3)], 8])
@pytest.mark.parametrize("shape", [(3, 4), (1, 2)])
def test_padding_agrees_with_numpy(mode: Any, width: Any, shape: tuple[int, ...]) -> None:
    x = counted(*shape)
    check(wf.pad(wf.asarray(x), width, mode), np.pad(x, width, mode))


def test_padding_by_a_constant_is_differentiable_in_both() -> None:
    x, value = wf.asarray(counted(2, 3)), wf.asarray(np.array(7.0))
    check(wf.pad(x, 1, constant_values=value), np.pad(counted(2, 3), 1, constant_values=7))
    check(wf.pad(x, 1, constant_values=7), np.pad(counted(2, 3), 1, constant_values=7))
    check_grads(lambda x, value: wf.pad(x, (1, 2), constant_values=value), [x, value])
    check_grads(lambda x: wf.pad(x, (1, 2), constant_values=3.0), [x])
    check_grads(lambda x: wf.pad(x, (1, 9), mode="reflect"), [x])


def test_the_gradient_of_padding_by_a_number_does_not_see_the_number() -> None:
    gradient = wf.grad(lambda x: wf.pad(x, 1, constant_values=5.0).sum())(wf.ones(2))
    assert gradient.tolist() == [1.0, 1.0]


@given(st.data())
def test_reshape_finds_the_dimension_that_is_left(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), max_size=4))
    x = wf.asarray(np.arange(int(np.prod(shape))).reshape(shape))
    target = data.draw(st.permutations([*shape, 1]))
    free = data.draw(st.integers(0, len(target) - 1))
    target[free] = -1
    check(wf.reshape(x, tuple(target)), x.numpy().reshape(target))


N = wf.symbol("n")
SYMBOLIC: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "reshape": (lambda x: wf.reshape(x, (2, -1)), (2, 2 * N)),
    "reshape to a line": (lambda x: wf.reshape(x, -1), (4 * N,)),
    "reshape by a symbol": (lambda x: wf.reshape(x, (2, N, 2)), (2, N, 2)),
    "concat": (lambda x: wf.concat([x, x[:1], x]), (2 * N + 1, 4)),
    "stack": (lambda x: wf.stack([x, x], axis=1), (N, 2, 4)),
    "flip": (wf.flip, (N, 4)),
    "expand_dims": (lambda x: wf.expand_dims(x, axis=0), (1, N, 4)),
    "broadcast_to": (lambda x: wf.broadcast_to(x, (3, *x.shape)), (3, N, 4)),
    "tile": (lambda x: wf.tile(x, (3, 1)), (3 * N, 4)),
    "repeat": (lambda x: wf.repeat(x, 2, axis=0), (2 * N, 4)),
    "roll": (lambda x: wf.roll(x, 1, axis=0), (N, 4)),
    "pad": (lambda x: wf.pad(x, [(1, 2), (0, 0)]), (N + 3, 4)),
    "pad by wrapping": (lambda x: wf.pad(x, [(1, 1), (0, 0)], "wrap"), (N + 2, 4)),
    "windows": (lambda x: wf.unfold(x, 0, 1), (N, 4, 1)),
    "slices": (lambda x: x[1:, ::-1], (N - 1, 4)),
    "from the end": (lambda x: x[:-1, -1], (N - 1,)),
    "turned round": (lambda x: x[::-1], (N, 4)),
    "every second": (lambda x: x[::2], ((N + 1) // 2, 4)),
    "an element": (lambda x: x[-1], (4,)),
    "by index": (lambda x: x[wf.tensor([0, 0, 0])], (3, 4)),
    "take": (lambda x: wf.take(x, wf.tensor([-1]), axis=0), (1, 4)),
    "sort": (lambda x: wf.sort(x, axis=0), (N, 4)),
    "gradient": (wf.grad(lambda x: (x[1:] * x[:-1]).sum()), (N, 4)),
    "gradient of a gather": (wf.grad(lambda x: (x[wf.tensor([0, -1])] ** 2).sum()), (N, 4)),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_sizes_work(name: str) -> None:
    function, expected = SYMBOLIC[name]
    assert wf.ir.infer(function, wf.spec("float32", ("n", 4))).shape == expected


def test_a_question_that_depends_on_a_size_is_refused() -> None:
    with pytest.raises(wf.TraceError):
        wf.ir.infer(lambda x: x[:5], wf.spec("float32", ("n",)))


def test_nothing_is_copied_that_numpy_would_not_copy() -> None:
    x = wf.asarray(X)
    for view in (x[1], x[..., 0], x[:, ::-1], x[None], wf.flip(x), x.reshape(-1), x.transpose()):
        assert np.shares_memory(view.numpy(), X)


def test_results_are_handles_of_their_own() -> None:
    x = wf.ones((2, 3))
    same = [
        wf.reshape(x, (2, 3)),
        wf.squeeze(x),
        wf.broadcast_to(x, (2, 3)),
        wf.roll(x, 0, axis=0),
        wf.permute_dims(x, (0, 1)),
        wf.moveaxis(x, 0, 0),
        wf.pad(x, 0, "edge"),
        x[...],
    ]
    for y in same:
        y += 1
    assert x.sum().item() == 6.0


def test_dtypes_are_promoted_when_tensors_are_joined() -> None:
    assert wf.concat([wf.ones(1), wf.tensor([1])]).dtype is wf.float32
    assert wf.stack([wf.tensor([1], dtype="int8"), wf.tensor([1])]).dtype is wf.int64


def test_reshape_without_a_copy() -> None:
    x = wf.asarray(X)
    assert wf.reshape(x, (6, 4), copy=False).shape == (6, 4)
    with pytest.raises(wf.ArgumentError, match="without a copy"):
        wf.reshape(wf.transpose(x), (6, 4), copy=False)


MISTAKES: dict[str, tuple[Callable[[], object], type[wf.WeftError], str, str]] = {
    "two free sizes": (lambda: wf.reshape(wf.ones(4), (-1, -1)), wf.ShapeError, "reshape", "-1"),
    "a size that is not left": (
        lambda: wf.reshape(wf.ones(4), (3, -1)),
        wf.ShapeError,
        "reshape",
        "do not divide",
    ),
    "any size": (lambda: wf.reshape(wf.ones((0,)), (0, -1)), wf.ShapeError, "reshape", "any size"),
    "a size of 1.5": (
        lambda: wf.reshape(wf.ones(4), (1.5,)),
        wf.ArgumentTypeError,
        "reshape",
        "not an integer",
    ),
    "squeeze of 3": (lambda: wf.squeeze(wf.ones(3), axis=0), wf.ShapeError, "squeeze", "size 3"),
    "no such axis": (lambda: wf.flip(wf.ones(3), axis=1), wf.AxisError, "flip", "out of range"),
    "axis twice": (
        lambda: wf.permute_dims(wf.ones((2, 2)), (0, 0)),
        wf.AxisError,
        "permute_dims",
        "twice",
    ),
    "axis missing": (
        lambda: wf.permute_dims(wf.ones((2, 2)), (0,)),
        wf.AxisError,
        "permute_dims",
        "permutation",
    ),
    "moveaxis": (
        lambda: wf.moveaxis(wf.ones((2, 2)), (0, 1), 0),
        wf.ArgumentError,
        "moveaxis",
        "as many",
    ),
    "roll": (
        lambda: wf.roll(wf.ones((2, 2)), (1, 2, 3), axis=(0, 1)),
        wf.ArgumentError,
        "roll",
        "as many",
    ),
    "concat of nothing": (lambda: wf.concat([]), wf.ArgumentTypeError, "concat", "sequence"),
    "concat of ranks": (
        lambda: wf.concat([wf.ones(2), wf.ones((2, 2))]),
        wf.ShapeError,
        "concat",
        "rank",
    ),
    "concat of sizes": (
        lambda: wf.concat([wf.ones((2, 1)), wf.ones((2, 2))]),
        wf.ShapeError,
        "concat",
        "differ",
    ),
    "stack of shapes": (
        lambda: wf.stack([wf.ones(2), wf.ones(3)]),
        wf.ShapeError,
        "stack",
        "differ",
    ),
    "stack of ranks": (
        lambda: wf.stack([wf.ones(2), wf.ones((2, 2))]),
        wf.ShapeError,
        "stack",
        "different shapes",
    ),
    "repeat": (lambda: wf.repeat(wf.ones(3), [1, 2]), wf.ArgumentError, "repeat", "do not fit"),
    "repeat by -1": (lambda: wf.repeat(wf.ones(3), -1), wf.ArgumentError, "repeat", "do not fit"),
    "repeat by 1.5": (lambda: wf.repeat(wf.ones(3), 1.5), wf.DTypeError, "repeat", "not integers"),
    "split": (lambda: wf.split(wf.ones(3), 2, axis=0), wf.ArgumentError, "split", "equal parts"),
    "chunk": (lambda: wf.chunk(wf.ones(3), 0), wf.ArgumentError, "chunk", "no parts"),
    "narrow": (lambda: wf.narrow(wf.ones(3), 0, 2, 2), wf.ArgumentError, "narrow", "not inside"),
    "flatten": (lambda: wf.flatten(wf.ones((2, 2)), 1, 0), wf.ArgumentError, "flatten", "after"),
    "diagonal": (lambda: wf.diagonal(wf.ones(3)), wf.ShapeError, "diagonal", "1 axes"),
    "diag": (lambda: wf.diag(wf.ones((2, 2, 2))), wf.ShapeError, "diag", "3 axes"),
    "unfold": (lambda: wf.unfold(wf.ones(3), 0, 4), wf.ArgumentError, "unfold", "do not fit"),
    "windows": (
        lambda: wf.as_windows(wf.ones((3, 3)), (2,)),
        wf.ArgumentError,
        "as_windows",
        "not one size",
    ),
    "pad mode": (lambda: wf.pad(wf.ones(3), 1, "fold"), wf.ArgumentError, "pad", "unknown mode"),
    "pad by -1": (lambda: wf.pad(wf.ones(3), -1), wf.ArgumentError, "pad", "do not fit"),
    "pad widths": (
        lambda: wf.pad(wf.ones(3), [(1, 1), (1, 1), (1, 1)]),
        wf.ArgumentError,
        "pad",
        "do not fit",
    ),
    "pad of nothing": (lambda: wf.pad(wf.ones(0), 1, "wrap"), wf.ShapeError, "pad", "no elements"),
    "pad by many": (
        lambda: wf.pad(wf.ones(3), 1, constant_values=wf.ones(2)),
        wf.ShapeError,
        "pad",
        "has axes",
    ),
    "broadcast": (
        lambda: wf.broadcast_to(wf.ones(3), (2,)),
        wf.ShapeError,
        "broadcast_to",
        "broadcast",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(name: str) -> None:
    check_refusal(MISTAKES[name], __file__)


def test_the_primitives_of_movement_are_registered() -> None:
    names = {"transpose", "flip", "reshape", "broadcast_to", "concatenate", "slice", "pad", "full"}
    assert names <= set(PRIMITIVES)
