"""The way back over arrays with less work: the bits and the refusals of the rules for tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.applications import KnownPull
from weft.ir.derivatives import Linear
from weft.ir.dispatch import apply
from weft.ir.primitive import PRIMITIVES, Sample
from weft.ir.tensor import wrap

WITH_ARRAYS = [
    (name, number)
    for name, primitive in PRIMITIVES.items()
    if isinstance(primitive.derivatives, tuple)
    and any(isinstance(d, Linear) and d.of_arrays is not None for d in primitive.derivatives)
    for number, _ in enumerate(primitive.samples())
]
FUNCTIONS: dict[str, Callable[..., wf.Tensor]] = {
    "sum": lambda x, y: wf.sum(x, axis=0),
    "sum, kept": lambda x, y: x.sum(axis=1, keepdims=True),
    "mean": lambda x, y: x.mean(),
    "max": lambda x, y: x.max(axis=1),
    "permute": lambda x, y: wf.permute_dims(x, (1, 0)),
    "reshape of a permutation": lambda x, y: wf.permute_dims(x, (1, 0)).reshape(-1),
    "concat": lambda x, y: wf.concat([x, y], axis=1),
    "concat with itself": lambda x, y: wf.concat([x, x], axis=0),
    "stack": lambda x, y: wf.stack([x, y, x]),
    "tile": lambda x, y: wf.tile(x, (2, 1)),
    "flip": lambda x, y: wf.flip(x, axis=1),
    "expand": lambda x, y: wf.broadcast_to(x, (3, *x.shape)),
    "where": lambda x, y: wf.where(x > 0, x, y),
    "outer": lambda x, y: wf.linalg.outer(x[0], y[0]),
    "product": lambda x, y: x @ y.T,
    "running sum": lambda x, y: wf.cumulative_sum(x, axis=1),
}
KEYS: list[Any] = [
    0, -1, slice(1, None), slice(None), slice(5, 1), slice(None, None, 2), slice(-3, -1), None, ...,
    (0, 1), (slice(None), -2), (..., 0), (None, 1), (slice(1, 3), None, slice(0, 6, 3)),
    (slice(0, 0), 2), (1, ...), (..., None), (0, None, 0), slice(None, None, -1),
    (slice(None), slice(4, 0, -2)), (2, slice(None, None, -1)), (slice(0, 1), slice(2, 3)),
    (slice(1, 100),), (slice(-100, 2, 5), slice(6, None)),
]  # fmt: skip


@pytest.fixture
def known_pulls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each application that was gone back over as it was before."""
    found: list[int] = []
    inner = KnownPull.__call__

    def call(self: KnownPull, given: list[Any]) -> list[Any] | None:
        backs = inner(self, given)
        found.extend([] if backs is None else [len(backs)])
        return backs

    monkeypatch.setattr(KnownPull, "__call__", call)
    return found


def cotangent_of(result: wf.Tensor) -> wf.Tensor:
    drawn = np.random.default_rng(5).standard_normal(result.shape)
    return wf.tensor(drawn.astype(result.dtype.numpy))


def slopes(f: Callable[..., wf.Tensor], arrays: list[Any], **options: Any) -> list[bytes]:
    given = [wf.tensor(array).requires_grad_() for array in arrays]
    result = f(*given)
    result.backward(cotangent_of(result), **options)
    return [b"" if x.grad is None else x.grad.detach().numpy().tobytes() for x in given]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_way_back_of_remembered_calls_has_the_bits_of_the_rules(
    name: str, dtype: str, known_pulls: list[int]
) -> None:
    rng = np.random.default_rng(2)
    for shape in ((4, 6), (30, 40)):
        kind = wf.zeros(0, dtype=dtype).numpy().dtype
        arrays = [rng.standard_normal(shape).astype(kind) for _ in range(2)]
        expected = slopes(FUNCTIONS[name], arrays, create_graph=True)  # by the rules themselves
        known_pulls.clear()
        for _ in range(5):
            assert slopes(FUNCTIONS[name], arrays) == expected
        assert known_pulls or name in ("where", "product")


def test_only_what_is_asked_for_is_computed_and_kept_apart(known_pulls: list[int]) -> None:
    arrays = [np.ones((3, 4), "f4"), np.full((3, 4), 2, "f4")]
    for asked in [(True, True), (True, False), (False, True)] * 4:
        given = [
            wf.tensor(a).requires_grad_(is_asked) for a, is_asked in zip(arrays, asked, strict=True)
        ]
        wf.concat(given, axis=1).backward(wf.tensor(np.arange(24, dtype="f4")).reshape(3, 8))
        for place, (x, is_asked) in enumerate(zip(given, asked, strict=True)):
            assert (x.grad is not None) == is_asked
            if x.grad is not None:
                assert x.grad[0].tolist() == [4.0 * place + i for i in range(4)]
    assert known_pulls


def test_a_hook_may_put_another_type_in_place_of_a_cotangent(known_pulls: list[int]) -> None:
    for number in range(-3, 6):
        if number == 0:  # the way back is known by now, for cotangents of the result's own type
            known_pulls.clear()
        x = wf.ones((2, 3)).requires_grad_()
        y = wf.sum(x, axis=0)
        has_hook = number > 0 and number % 2 == 1
        if has_hook:
            y.register_hook(lambda ct: ct.astype("float64") * 2)
        (y * 3.0).backward(wf.ones(3))
        assert x.grad is not None
        assert x.grad.tolist() == [[6.0 if has_hook else 3.0] * 3] * 2
    assert len(known_pulls) == 3  # with the cotangents that are no replacement


def test_large_values_that_no_derivative_needs_are_not_kept() -> None:
    for _ in range(4):
        x = wf.ones((64, 1024)).requires_grad_()
        node = wf.sum(x, axis=0)._node
        assert not isinstance(node.values[0], np.ndarray)
        assert node.values[0].shape == (64, 1024)


def test_what_networks_take_apart_has_a_form_for_arrays() -> None:
    assert {name for name, _ in WITH_ARRAYS} == {"slice", "reshape", "transpose"}


@pytest.mark.parametrize(("name", "number"), WITH_ARRAYS)
def test_the_form_for_arrays_is_the_transpose(name: str, number: int) -> None:
    primitive = PRIMITIVES[name]
    sample: Sample = [*primitive.samples()][number]
    (operand,) = [wf.tensor(np.asarray(each)) for each in sample.operands]
    (derivative,) = primitive.derivatives  # type: ignore[misc]
    ct = cotangent_of(apply(primitive, operand, **sample.params))
    expected = derivative.transpose(ct, operand, **sample.params)
    found = derivative.of_arrays(ct._value, operand.shape, **sample.params)
    assert wrap(found).type == expected.type
    assert found.tobytes() == expected.numpy().tobytes()


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_view_on_the_tape_is_the_one_that_is_selected(key: Any) -> None:
    for shape in ((4, 6), (300, 70)):
        array = np.arange(np.prod(shape), dtype="f4").reshape(shape)
        x = wf.tensor(array).requires_grad_()
        part = x[key]
        assert part.detach().numpy().tobytes() == array[key].tobytes()
        assert part.shape == array[key].shape
        assert (part * 2)._node is not None
        ct = cotangent_of(part)
        part.backward(ct)
        expected = np.zeros(shape, "f4")
        expected[key] = ct.numpy()
        assert x.grad is not None
        assert (x.grad.numpy() == expected).all()
        slope = wf.grad(lambda x, ct=ct: (x[key] * ct).sum())(x.detach())
        assert (slope.numpy() == expected).all()


def test_a_view_on_the_tape_is_a_part() -> None:
    x = wf.ones((3, 4)).requires_grad_()
    for key in (0, slice(1, None), (slice(None), 2), ..., None):
        part = x[key]
        with wf.no_grad(), pytest.raises(wf.ArgumentError):
            part.fill_(1.0)


def test_second_derivatives_and_kept_graphs_go_through_views() -> None:
    x = wf.tensor(np.arange(6, dtype="f8").reshape(2, 3)).requires_grad_()
    y = (x[1, 1:] ** 3).sum()
    y.backward(create_graph=True)
    first, x.grad = x.grad, None
    assert first is not None
    first.sum().backward(retain_graph=True)
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0] * 3, [0.0, 24.0, 30.0]]
    y2 = x[0, :2].sum()
    y2.backward(retain_graph=True)
    y2.backward()
    with pytest.raises(wf.GradientError):
        y2.backward()


def test_observers_see_what_goes_back() -> None:
    x = wf.tensor([1.0, 2.0, 3.0]).requires_grad_()
    for _ in range(3):
        x[1:].sum().backward()
    y = wf.concat([x, x])
    with wf.debug.nans(), pytest.raises(wf.WeftError):
        y.backward(wf.full((6,), float("nan")))
