"""Reading and writing by index, against NumPy on random keys; takes and scatters; mistakes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.refusals import check_refusal

import weft as wf
from weft.testing import check_grads

Array = np.ndarray[Any, Any]


def counted(*shape: int, dtype: Any = np.float64) -> Array:
    return np.arange(1, np.prod(shape) + 1, dtype=dtype).reshape(shape)


def check(found: wf.Tensor, expected: Any) -> None:
    assert found.shape == np.shape(expected)
    np.testing.assert_array_equal(found.numpy(), expected)


# --- random keys -------------------------------------------------------------------------------


@st.composite
def slices(draw: st.DrawFn, size: int) -> slice:
    bound = st.none() | st.integers(-size - 2, size + 2)
    return slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, -1, -3])))


@st.composite
def arrays_of_indices(draw: st.DrawFn, size: int, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape))
    values = draw(st.lists(st.integers(-size, size - 1), min_size=count, max_size=count))
    return np.array(values, np.int64).reshape(shape)


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, ...]) -> Array:
    count = int(np.prod(shape))
    values = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return np.array(values, bool).reshape(shape)


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Items of all kinds in any order, index arrays of shapes that broadcast together."""
    common = draw(st.sampled_from([(), (2,), (1,), (2, 1), (2, 3)]))
    items: list[Any] = []
    axis = 0
    while axis < len(shape):
        kind = draw(st.sampled_from("islnaamt.x"))
        size = shape[axis]
        if kind == "x":
            break
        if kind == "." and not any(item is Ellipsis for item in items):
            items.append(Ellipsis)
            axis += draw(st.integers(0, len(shape) - axis))
        elif kind == "n":
            items.append(None)
        elif kind == "t":
            items.append(draw(st.booleans()))
        elif kind == "m":
            rank = draw(st.integers(1, len(shape) - axis))
            items.append(draw(masks(shape[axis : axis + rank])))
            axis += rank
        else:
            if kind == "i" and size:
                items.append(draw(st.integers(-size, size - 1)))
            elif kind in "al" and size:
                index = draw(arrays_of_indices(size, draw(st.sampled_from([common, (1,)]))))
                items.append(index.tolist() if kind == "l" else index)
            else:
                items.append(draw(slices(size)))
            axis += 1
    return tuple(items)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Array, tuple[Any, ...]]:
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    return counted(*shape), draw(keys(shape))


def as_tensors(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(wf.asarray(item) if isinstance(item, np.ndarray) else item for item in key)


def read(x: Array, key: tuple[Any, ...]) -> Array | None:
    """What a key selects; None where it is refused."""
    try:
        wf.asarray(x)[key]
        return x[key]
    except (IndexError, wf.WeftError):
        return None


@pytest.mark.slow
@settings(max_examples=300)
@given(calls())
def test_reading_agrees_with_numpy(call: tuple[Array, tuple[Any, ...]]) -> None:
    x, key = call
    try:
        expected = x[key]
    except IndexError:
        with pytest.raises(wf.WeftError):
            wf.asarray(x)[as_tensors(key)]
        return
    for tensor in (wf.asarray(x), wf.tensor(x, requires_grad=True)):
        for form in (key, as_tensors(key)):
            try:
                check(tensor[form].detach(), expected)
            except wf.WeftError:
                assert expected.size == 0  # NumPy does not check indices that select nothing


@pytest.mark.slow
@settings(max_examples=300)
@given(calls(), st.data())
def test_writing_agrees_with_numpy(
    call: tuple[Array, tuple[Any, ...]], data: st.DataObject
) -> None:
    x, key = call
    selected = read(x, key)
    if selected is None:
        return
    shapes = [(), selected.shape, selected.shape[-1:], (1, *selected.shape)]
    value = -counted(*data.draw(st.sampled_from(shapes)))
    expected = x.copy()
    try:
        expected[key] = value
    except (TypeError, ValueError):  # what NumPy does not take, one mask having rules of its own
        return
    before = wf.asarray(x)
    y = before.clone()
    y[as_tensors(key)] = wf.asarray(value)
    check(y, expected)
    check(before, x)


@settings(max_examples=60)
@given(calls(), st.data())
def test_reading_and_writing_are_differentiable(
    call: tuple[Array, tuple[Any, ...]], data: st.DataObject
) -> None:
    x, key = call
    selected = read(x, key)
    if selected is None or x.size == 0:
        return
    value = np.full(data.draw(st.sampled_from([(), selected.shape])), 0.5)

    def written(x: wf.Tensor, value: wf.Tensor) -> wf.Tensor:
        y = x * 1.0
        y[key] = value
        return y * y

    check_grads(lambda x: x[key] ** 2, [wf.asarray(x / 10)])
    check_grads(written, [wf.asarray(x / 10), wf.asarray(value)])


@pytest.mark.slow
@settings(max_examples=100)
@given(calls())
def test_reading_and_writing_batch(call: tuple[Array, tuple[Any, ...]]) -> None:
    x, key = call
    selected = read(x, key)
    if selected is None:
        return
    batch = np.stack([x, -x], axis=x.ndim)

    def written(x: wf.Tensor) -> wf.Tensor:
        y = x * 1.0
        y[key] = x[key] * 2.0
        return y

    check(wf.vmap(lambda x: x[key], in_axes=-1)(wf.asarray(batch)), np.stack([selected, -selected]))
    once = written(wf.asarray(x)).numpy()
    check(wf.vmap(written, in_axes=-1)(wf.asarray(batch)), np.stack([once, -once]))


# --- particular cases --------------------------------------------------------------------------


def test_the_last_of_several_writes_stays_and_has_the_gradient() -> None:
    place = wf.tensor([1, 1, 0])

    def written(value: wf.Tensor) -> wf.Tensor:
        x = wf.zeros(3)
        x[place] = value
        return x

    value = wf.tensor([1.0, 2.0, 3.0])
    assert written(value).tolist() == [3.0, 2.0, 0.0]
    gradient = wf.grad(lambda v: (written(v) * wf.tensor([10.0, 20.0, 30.0])).sum())(value)
    assert gradient.tolist() == [0.0, 20.0, 10.0]


def test_what_is_overwritten_has_no_gradient() -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        y = x * 1.0
        y[wf.tensor([0, 2])] = 5.0
        return y.sum()

    assert wf.grad(f)(wf.ones(4)).tolist() == [0.0, 1.0, 0.0, 1.0]


def test_the_last_of_several_writes_stays_whatever_the_layout_of_the_index() -> None:
    index = np.array([[0, 1], [1, 0]], order="F")
    value = np.array([[1.0, 2.0], [3.0, 4.0]])
    x = wf.zeros(2, dtype="float64")
    x[wf.asarray(index)] = wf.asarray(value)
    assert x.tolist() == [4.0, 3.0]


def test_indices_may_be_batched_and_traced() -> None:
    x = counted(2, 5)
    index = np.array([[3, -1], [0, -5]])
    found = wf.vmap(lambda x, i: x[i])(wf.asarray(x), wf.asarray(index))
    check(found, np.stack([x[0, index[0]], x[1, index[1]]]))
    shared = wf.vmap(lambda i: wf.asarray(x)[:, i])(wf.asarray(index))
    check(shared, np.moveaxis(x[:, index], 1, 0))
    graph = wf.ir.trace(lambda x, i: x[i], wf.spec("float64", (5,)), wf.spec("int64", (3,)))
    assert graph.output_types == (wf.spec("float64", (3,)),)
    graph = wf.ir.trace(lambda x, i: x[i], wf.spec("float64", ("n", 2)), wf.spec("int32", ()))
    assert graph.output_types == (wf.spec("float64", (2,)),)


def test_an_index_out_of_range_is_refused_inside_a_transform() -> None:
    with pytest.raises(wf.BoundsError, match="out of range"):
        wf.vmap(lambda i: wf.ones(3)[i])(wf.tensor([0, 3]))


def test_a_mask_reads_under_grad_and_jvp() -> None:
    x = wf.tensor([1.0, -2.0, 3.0])
    assert wf.grad(lambda x: (x[x > 0] ** 2).sum())(x).tolist() == [2.0, 0.0, 6.0]
    _, tangent = wf.jvp(lambda x: x[x > 0].sum(), (x,), (wf.ones(3),))
    assert tangent.item() == 2.0


def test_a_mask_is_refused_in_a_trace_with_a_way_out() -> None:
    with pytest.raises(wf.TraceError) as caught:
        wf.vmap(lambda x: x[x > 0])(wf.ones((2, 3)))
    assert "wf.where" in caught.value.fix


def test_a_number_is_written_through_a_mask_in_a_trace() -> None:
    def clipped(x: wf.Tensor) -> wf.Tensor:
        y = x * 1.0
        y[x > 1.5] = 0.0
        return y

    batch = wf.asarray(counted(2, 2))
    assert wf.vmap(clipped)(batch).tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert wf.vmap(wf.grad(lambda x: clipped(x).sum()))(batch).tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_a_number_is_written_through_a_mask_without_elements_in_a_trace() -> None:
    def clipped(x: wf.Tensor) -> wf.Tensor:
        y = x * 1.0
        y[x > 0] = 0.0
        return y

    assert wf.vmap(clipped)(wf.ones((2, 3, 0))).shape == (2, 3, 0)
    assert wf.jit(clipped)(wf.ones((0, 4))).shape == (0, 4)


def test_a_row_is_written_through_a_mask() -> None:
    x = counted(3, 2)
    y = wf.asarray(x).clone()
    y[wf.tensor([True, False, True])] = wf.tensor([7.0, 8.0])
    check(y, [[7.0, 8.0], [3.0, 4.0], [7.0, 8.0]])


def test_what_is_written_gets_the_dtype_of_the_tensor() -> None:
    x = wf.zeros(2, dtype="bfloat16")
    x[0] = wf.tensor(1.5, dtype="float64")
    assert x.dtype is wf.bfloat16
    y = wf.zeros(2, dtype="int64")
    with pytest.raises(wf.DTypeError):
        y[1] = 2.7
    assert y.tolist() == [0, 0]
    z = wf.zeros(2, dtype="float64")
    z[0] = 0.1
    assert z[0].item() == 0.1


def test_sixteen_bit_sums_do_not_lose_small_terms() -> None:
    x = wf.zeros(1, dtype="bfloat16")
    ones = wf.ones(1000, dtype="bfloat16")
    total = wf.index_add(x, 0, wf.zeros(1000, dtype="int64"), ones)
    assert total.tolist() == [1000.0]


# --- functions ---------------------------------------------------------------------------------


X = counted(3, 4, 2)
AT = np.array([[0, -1], [2, 1]])
ALONG = np.array([[[0, 3]], [[-1, 2]], [[1, 1]]])
CALLS: dict[str, tuple[Callable[[Any], wf.Tensor], Callable[[Array], Array]]] = {
    "take": (lambda x: wf.take(x, wf.asarray(AT), axis=1), lambda x: np.take(x, AT, 1)),
    "take flat": (lambda x: wf.take(x, wf.asarray(AT)), lambda x: np.take(x, AT)),
    "take one": (lambda x: wf.take(x, 1, axis=-1), lambda x: np.take(x, 1, -1)),
    "take a list": (lambda x: wf.take(x, [0, 0], axis=0), lambda x: np.take(x, [0, 0], 0)),
    "take_along_axis": (
        lambda x: wf.take_along_axis(x, wf.asarray(ALONG), axis=1),
        lambda x: np.take_along_axis(x, ALONG, 1),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_taking_agrees_with_numpy_differentiates_and_batches(name: str) -> None:
    ours, theirs = CALLS[name]
    check(ours(wf.asarray(X)), theirs(X))
    check_grads(lambda x: ours(x) ** 2, [wf.asarray(X / 10)])
    batch = wf.asarray(np.stack([X, -X]))
    check(wf.vmap(ours)(batch), np.stack([theirs(X), theirs(-X)]))


def test_put_along_axis_agrees_with_numpy() -> None:
    values = counted(3, 2, 2)
    places = np.broadcast_to([[[0, 3], [1, 2]]], (3, 2, 2))
    expected = X.copy()
    np.put_along_axis(expected, places, values, 1)
    check(
        wf.put_along_axis(wf.asarray(X), wf.asarray(places), wf.asarray(values), axis=1), expected
    )


def test_an_embedding_has_a_gradient_for_every_use() -> None:
    table = wf.ones((4, 2))
    gradient = wf.grad(lambda t: t[wf.tensor([[1, 3], [1, 1]])].sum())(table)
    assert gradient.tolist() == [[0.0, 0.0], [3.0, 3.0], [0.0, 0.0], [1.0, 1.0]]


def test_gather_and_scatter_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    x = counted(3, 4)
    index = np.array([[3, 0, 3], [1, 1, 2]])
    source = counted(3, 3) / 7
    ours = [wf.asarray(a) for a in (x, index, source)]
    theirs = [torch.asarray(a) for a in (x, index, source)]
    check(wf.gather(ours[0], 1, ours[1]), torch.gather(theirs[0], 1, theirs[1]).numpy())
    for name in ("scatter_add", "index_add"):
        at = index if name == "scatter_add" else np.array([2, 0, 2])
        what = source if name == "scatter_add" else counted(3, 3)
        found = getattr(wf, name)(ours[0], 1, wf.asarray(at), wf.asarray(what))
        expected = getattr(torch, name)(theirs[0], 1, torch.asarray(at), torch.asarray(what))
        np.testing.assert_allclose(found.numpy(), expected.numpy())
    for how, own in product(("sum", "mean", "amax", "amin", "prod"), (True, False)):
        found = wf.scatter_reduce(ours[0], 1, ours[1], ours[2], how, include_self=own)
        expected = torch.scatter_reduce(*theirs[:1], 1, theirs[1], theirs[2], how, include_self=own)
        np.testing.assert_allclose(found.numpy(), expected.numpy())


@pytest.mark.parametrize(
    ("how", "joined"), [("sum", 8), ("prod", 15), ("mean", 4), ("amax", 5), ("amin", 3)]
)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_what_is_joined_may_leave_out_the_element_itself(
    how: str, joined: float, dtype: str
) -> None:
    x, src = wf.tensor([100, 7], dtype=dtype), wf.tensor([3, 5], dtype=dtype)
    found = wf.scatter_reduce(x, 0, wf.tensor([0, 0]), src, how, include_self=False)
    assert found.tolist() == [joined, 7]  # what nothing is joined to stays
    if dtype == "float32":
        gradient = wf.grad(
            lambda x: wf.scatter_reduce(x, 0, [0, 0], src, how, include_self=False).sum()
        )(x)
        assert gradient.tolist() == [0.0, 1.0]


def test_the_gradient_of_an_extreme_is_shared_by_equals() -> None:
    index = wf.tensor([0, 0, 1])
    f = lambda s: wf.scatter_reduce(wf.zeros(2), 0, index, s, "amax").sum()  # noqa: E731
    assert wf.grad(f)(wf.tensor([2.0, 2.0, -1.0])).tolist() == [0.5, 0.5, 0.0]


def test_scatter_keeps_the_last() -> None:
    found = wf.scatter(wf.zeros(3), 0, wf.tensor([1, 1]), wf.tensor([5.0, 6.0]))
    assert found.tolist() == [0.0, 6.0, 0.0]
    assert wf.index_copy(wf.zeros((2, 2)), 1, [0, 0], 3.0).tolist() == [[3.0, 0.0], [3.0, 0.0]]


def test_masked_functions() -> None:
    x = wf.asarray(counted(2, 2))
    mask = wf.tensor([True, False])
    assert wf.masked_fill(x, mask, -1).tolist() == [[-1.0, 2.0], [-1.0, 4.0]]
    assert wf.masked_select(x, mask).tolist() == [1.0, 3.0]


def test_boxes_move_inside_and_batch() -> None:
    x = counted(4, 5)
    at = np.array([[0, 9], [-2, 1]])
    ours = wf.vmap(lambda i, j: wf.dynamic_slice(wf.asarray(x), (i, j), (2, 2)))
    check(ours(*wf.asarray(at.T)), np.stack([x[0:2, 3:5], x[0:2, 1:3]]))
    box = wf.dynamic_update_slice(wf.zeros((2, 3)), wf.ones((1, 2)), (5, 5))
    assert box.tolist() == [[0.0, 0.0, 0.0], [0.0, 1.0, 1.0]]
    check_grads(
        lambda x, u: wf.dynamic_update_slice(x * x, u * u, (wf.tensor(1), wf.tensor(2))),
        [wf.asarray(x / 10), wf.asarray(counted(2, 2))],
    )


# --- segments and labels -----------------------------------------------------------------------


LABELS = np.array([2, 0, 2, 4])


def test_segments_agree_with_numpy() -> None:
    data = counted(4, 3)
    ours = [wf.asarray(data), wf.asarray(LABELS)]
    total = np.zeros((5, 3))
    np.add.at(total, LABELS, data)
    check(wf.segment_sum(*ours), total)
    check(wf.segment_sum(*ours, 7), np.concatenate([total, np.zeros((2, 3))]))
    check(wf.segment_mean(*ours), total / np.maximum(np.bincount(LABELS), 1)[:, None])
    greatest = np.full((5, 3), -np.inf)
    np.maximum.at(greatest, LABELS, data)
    check(wf.segment_max(*ours), greatest)
    assert wf.segment_min(wf.tensor([3, 1]), wf.tensor([0, 0])).tolist() == [1]
    for function in (wf.segment_sum, wf.segment_mean, wf.segment_max):
        check_grads(lambda x, f=function: f(x, ours[1], 5)[wf.tensor([0, 2, 4])], [ours[0]])


def test_bincount_agrees_with_numpy() -> None:
    labels, weights = wf.asarray(LABELS), wf.asarray(counted(4))
    check(wf.bincount(labels), np.bincount(LABELS))
    check(wf.bincount(labels, minlength=8), np.bincount(LABELS, minlength=8))
    check(wf.bincount(labels, weights=weights), np.bincount(LABELS, counted(4)))
    check(wf.bincount(labels[:0]), np.bincount(LABELS[:0]))
    batched = wf.vmap(lambda x: wf.bincount(x, length=5))(wf.asarray(np.stack([LABELS, LABELS])))
    check(batched, np.stack([np.bincount(LABELS)] * 2))


def test_histogram_agrees_with_numpy(rng: np.random.Generator) -> None:
    x = rng.normal(size=(5, 6))
    for options in ({}, {"bins": 3}, {"bins": 4, "range": (-0.5, 0.5)}, {"bins": [0.0, 0.5, 2.0]}):
        given = {k: wf.asarray(np.array(v)) if type(v) is list else v for k, v in options.items()}
        for found, expected in zip(
            wf.histogram(wf.asarray(x), **given), np.histogram(x, **options), strict=True
        ):
            np.testing.assert_allclose(found.numpy(), expected)


def test_one_hot() -> None:
    assert wf.one_hot(wf.tensor([[1], [0]])).tolist() == [[[0.0, 1.0]], [[1.0, 0.0]]]
    assert wf.one_hot(wf.tensor(1), 3, "int8").dtype is wf.int8
    assert wf.vmap(lambda i: wf.one_hot(i, 2))(wf.tensor([1, 0])).tolist() == [[0, 1], [1, 0]]


# --- mistakes ----------------------------------------------------------------------------------


x = wf.ones((3, 4))
i = wf.tensor([0, 1])


def write(value: Any, key: Any = 0, to: wf.Tensor = x) -> None:
    to.clone()[key] = value


MISTAKES: dict[str, tuple[Callable[[], object], type[wf.WeftError], str, str]] = {
    "too many": (lambda: x[0, 0, 0], wf.AxisError, "index", "3 indices for 2 axes"),
    "out of range": (lambda: x[3], wf.BoundsError, "index", "index 3 is out of range for axis 0"),
    "before the first": (
        lambda: x[:, -5],
        wf.BoundsError,
        "index",
        "-5 is out of range for axis 1",
    ),
    "in a tensor": (lambda: x[wf.tensor([7])], wf.BoundsError, "index", "7 is out of range"),
    "a float": (lambda: x[1.0], wf.ArgumentTypeError, "index", "float is not an index"),
    "floats": (lambda: x[wf.tensor([1.0])], wf.DTypeError, "index", "neither integers nor"),
    "a list of floats": (lambda: x[[1.0]], wf.DTypeError, "index", "neither integers nor"),
    "a string": (lambda: x["a"], wf.ArgumentTypeError, "index", "str is not an index"),
    "a ragged list": (lambda: x[[[0], [0, 1]]], wf.ArgumentTypeError, "index", "list is not"),
    "two ellipses": (lambda: x[..., ...], wf.ArgumentError, "index", "more than one ellipsis"),
    "step 0": (lambda: x[::0], wf.ArgumentError, "index", "step is 0"),
    "a bound of 1.5": (lambda: x[1.5:], wf.ArgumentTypeError, "index", "not an integer"),
    "a mask too short": (lambda: x[wf.tensor([True])], wf.BoundsError, "index", "the mask"),
    "no common shape": (lambda: x[i, wf.tensor([0, 1, 2])], wf.ShapeError, "index", "broadcast"),
    "a value too long": (lambda: write(wf.ones(5)), wf.ShapeError, "index", "does not broadcast"),
    "a complex value": (lambda: write(1j), wf.DTypeError, "index", "complex"),
    "complex values": (lambda: write(wf.tensor([1j])), wf.DTypeError, "index", "complex"),
    "a number too large": (
        lambda: write(300, 0, wf.zeros(1, dtype="int8")),
        wf.DTypeError,
        "index",
        "does not fit",
    ),
    "take": (lambda: wf.take(x, wf.tensor([4]), axis=0), wf.BoundsError, "take", "out of range"),
    "take floats": (
        lambda: wf.take(x, wf.tensor([0.0]), axis=0),
        wf.DTypeError,
        "take",
        "integers",
    ),
    "take_along_axis": (
        lambda: wf.take_along_axis(x, i),
        wf.AxisError,
        "take_along_axis",
        "different ranks",
    ),
    "put_along_axis": (
        lambda: wf.put_along_axis(x[:1], wf.zeros((3, 1), dtype="int64"), 0.0),
        wf.ShapeError,
        "put_along_axis",
        "more positions",
    ),
    "gather": (
        lambda: wf.gather(x, 1, wf.zeros((5, 1), dtype="int64")),
        wf.ShapeError,
        "gather",
        "longer",
    ),
    "scatter": (
        lambda: wf.scatter(x, 0, wf.zeros((2, 2), dtype="int64"), wf.ones((3, 1))),
        wf.ShapeError,
        "scatter",
        "does not fit",
    ),
    "scatter_reduce": (
        lambda: wf.scatter_reduce(x[0], 0, i, 1.0, "or"),
        wf.ArgumentError,
        "scatter_reduce",
        "unknown",
    ),
    "index_add": (lambda: wf.index_add(x, 0, i[None], x), wf.ShapeError, "index_add", "not a line"),
    "masked_select": (
        lambda: wf.masked_select(x, x),
        wf.DTypeError,
        "masked_select",
        "not boolean",
    ),
    "a box too large": (
        lambda: wf.dynamic_slice(x, (0, 0), (4, 1)),
        wf.ShapeError,
        "dynamic_slice",
        "larger",
    ),
    "a start missing": (
        lambda: wf.dynamic_slice(x, (0,), (1, 1)),
        wf.ArgumentError,
        "dynamic_slice",
        "not one start",
    ),
    "negative labels": (
        lambda: wf.bincount(wf.tensor([-1])),
        wf.BoundsError,
        "bincount",
        "negative number -1",
    ),
    "labels of a matrix": (
        lambda: wf.bincount(wf.tensor([[1]])),
        wf.ShapeError,
        "bincount",
        "line",
    ),
    "a class too large": (lambda: wf.one_hot(i, 1), wf.BoundsError, "one_hot", "no class"),
    "labels missing": (lambda: wf.segment_sum(x, i), wf.ShapeError, "segment_sum", "not one label"),
    "no bins": (lambda: wf.histogram(x, bins=0), wf.ArgumentError, "histogram", "no bins"),
    "traced labels": (
        lambda: wf.vmap(wf.bincount)(wf.tensor([[1]])),
        wf.TraceError,
        "bincount",
        "depends on values",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(name: str) -> None:
    check_refusal(MISTAKES[name], __file__)
