"""`vmap` is a loop: whatever the axes, the nesting, and what is inside."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.core.errors import ArgumentError, AxisError, LeakError, ShapeError, TraceError, WeftError


def data(*shape: int) -> wf.Tensor:
    return wf.reshape(wf.sin(wf.arange(int(np.prod(shape)), dtype=wf.float64)), shape)


@pytest.mark.parametrize("out_axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("in_axis", [0, 1, 2, -1, -2, -3])
def test_any_axis_in_and_out(in_axis: int, out_axis: int) -> None:
    x = data(2, 3, 4)
    found = wf.vmap(wf.sin, in_axes=in_axis, out_axes=out_axis)(x).numpy()
    expected = np.moveaxis(np.moveaxis(np.sin(x.numpy()), in_axis, 0), 0, out_axis)
    np.testing.assert_array_equal(found, expected)


def test_different_axes_for_each_argument() -> None:
    a, b = data(4, 2, 3), data(3, 2, 4)
    found = wf.vmap(lambda x, y: x @ y, in_axes=(0, 2))(a, b)
    expected = np.stack([a.numpy()[i] @ b.numpy()[:, :, i] for i in range(4)])
    np.testing.assert_allclose(found.numpy(), expected)


def test_none_passes_an_argument_whole() -> None:
    a, b = data(4, 3), data(3, 2)
    found = wf.vmap(lambda x, w: x @ w, in_axes=(0, None))(a, b)
    np.testing.assert_allclose(found.numpy(), a.numpy() @ b.numpy())


def test_closed_over_tensors_are_passed_whole() -> None:
    a, b = data(4, 3), data(3, 2)
    np.testing.assert_allclose(wf.vmap(lambda x: x @ b)(a).numpy(), a.numpy() @ b.numpy())


def test_nested_maps() -> None:
    a, b = data(4, 3), data(5, 3)
    outer = wf.vmap(wf.vmap(lambda x, y: (x * y).sum(), in_axes=(None, 0)), in_axes=(0, None))
    np.testing.assert_allclose(outer(a, b).numpy(), a.numpy() @ b.numpy().T)


def test_three_nested_maps_over_different_axes() -> None:
    x = data(2, 3, 4)
    f = wf.vmap(wf.vmap(wf.vmap(lambda y: y * 2.0), in_axes=1, out_axes=1), in_axes=2, out_axes=2)
    np.testing.assert_array_equal(f(x).numpy(), 2.0 * x.numpy())


def test_an_inner_map_over_a_tensor_of_the_outer_function() -> None:
    x = data(3, 4)

    def outer(row: wf.Tensor) -> wf.Tensor:
        return wf.vmap(lambda y: y * row.sum())(wf.arange(2, dtype=wf.float64))

    expected = x.numpy().sum(1)[:, None] * np.arange(2.0)
    np.testing.assert_allclose(wf.vmap(outer)(x).numpy(), expected)


def test_trees_as_arguments_and_results() -> None:
    arguments = {"a": data(3, 2), "b": [data(3), data(2, 3)]}

    def f(tree: dict) -> dict:
        return {"sum": tree["a"] + tree["b"][0], "parts": (tree["b"][1], 1.0)}

    axes = {"a": 0, "b": [0, 1]}
    found = wf.vmap(f, in_axes=(axes,), out_axes={"sum": 1, "parts": 0})(arguments)
    a, b, c = (arguments["a"].numpy(), *[x.numpy() for x in arguments["b"]])
    np.testing.assert_allclose(found["sum"].numpy(), (a + b[:, None]).T)
    np.testing.assert_allclose(found["parts"][0].numpy(), c.T)
    assert found["parts"][1].tolist() == [1.0, 1.0, 1.0]


def test_one_axis_for_a_whole_tree() -> None:
    tree = {"x": data(2, 3), "y": data(2, 3)}
    assert wf.vmap(lambda t: t["x"] * t["y"], in_axes=1)(tree).shape == (3, 2)


def test_out_axes_none_needs_a_result_that_does_not_vary() -> None:
    x = data(3)
    whole, each = wf.vmap(lambda y: (wf.ones(2), y), out_axes=(None, 0))(x)
    assert whole.shape == (2,)
    assert each.shape == (3,)
    with pytest.raises(ArgumentError) as caught:
        wf.vmap(lambda y: y, out_axes=None)(x)
    assert caught.value.fix == "use out_axes=0"


def test_results_that_do_not_vary_are_repeated() -> None:
    found = wf.vmap(lambda y: wf.tensor([1.0, 2.0]))(data(3))
    assert found.tolist() == [[1.0, 2.0]] * 3


def test_an_axis_size_without_mapped_arguments() -> None:
    found = wf.vmap(lambda x: x * 2.0, in_axes=None, axis_size=3)(wf.tensor(1.0))
    assert found.tolist() == [2.0, 2.0, 2.0]


def test_keyword_arguments_are_mapped_along_their_first_axis() -> None:
    found = wf.vmap(lambda x, *, scale: x * scale)(data(3), scale=wf.tensor([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(found.numpy(), data(3).numpy() * [1, 2, 3])


def test_an_empty_batch() -> None:
    assert wf.vmap(lambda x: x.sum())(wf.zeros((0, 3))).shape == (0,)


def test_shape_and_dtype_inside_are_those_of_one_element() -> None:
    seen: list[object] = []

    def f(x: wf.Tensor) -> wf.Tensor:
        seen.extend([x.shape, x.ndim, x.dtype, x.size])
        return x

    wf.vmap(f)(wf.zeros((5, 2, 3)))
    assert seen == [(2, 3), 2, wf.float32, 6]


def test_control_flow_that_is_part_of_the_program_is_batched() -> None:
    x = wf.tensor([-2.0, 1.0, 3.0])
    assert wf.vmap(lambda y: wf.cond(y > 0.0, lambda z: z * 2.0, lambda z: -z, y))(x).tolist() == [
        2.0, 2.0, 6.0,
    ]  # fmt: skip
    doubled = wf.vmap(lambda y: wf.while_loop(lambda z: z < 10.0, lambda z: z * 2.0, y))
    assert doubled(wf.tensor([1.0, 3.0, 20.0])).tolist() == [16.0, 12.0, 20.0]
    sums = wf.vmap(lambda ys: wf.scan(lambda c, y: (c + y, c), wf.tensor(0.0), ys)[0])
    assert sums(wf.ones((2, 4))).tolist() == [4.0, 4.0]


def test_indexing_inside_a_map() -> None:
    table = data(5, 2)
    places = wf.tensor([0, 4, 2])
    np.testing.assert_array_equal(
        wf.vmap(lambda i: table[i])(places).numpy(), table.numpy()[[0, 4, 2]]
    )

    def written(row: wf.Tensor, i: wf.Tensor) -> wf.Tensor:
        row = row * 1.0
        row[i] = 0.0
        return row

    found = wf.vmap(written)(wf.ones((3, 3)), wf.tensor([0, 1, 2]))
    np.testing.assert_array_equal(found.numpy(), 1.0 - np.eye(3))


def test_random_numbers_with_a_key_differ_along_the_batch() -> None:
    keys = wf.random.split(wf.random.key(0), 3)
    found = wf.vmap(lambda key: wf.random.normal((2,), key=key))(keys)
    expected = np.stack([wf.random.normal((2,), key=key).numpy() for key in keys])
    np.testing.assert_array_equal(found.numpy(), expected)
    assert len({tuple(row) for row in found.tolist()}) == 3


def test_random_numbers_without_a_key_are_refused() -> None:
    with pytest.raises((WeftError, NotImplementedError)) as caught:
        wf.vmap(lambda x: x + wf.random.normal(()))(wf.zeros(3))
    assert "key" in str(caught.value)


# --- what is refused ---


def test_batches_of_different_sizes_are_refused() -> None:
    with pytest.raises(ShapeError) as caught:
        wf.vmap(lambda x, y: x + y)(wf.zeros((3, 2)), wf.zeros((4, 2)))
    error = caught.value
    assert error.op == "vmap"
    assert error.problem == "arguments have batches of different sizes"
    assert error.got == "argument 0: f32[3, 2]   argument 1: f32[4, 2]"
    assert error.note == "3 != 4"


def test_an_axis_size_that_contradicts_an_argument_is_refused() -> None:
    with pytest.raises(ShapeError):
        wf.vmap(lambda x: x, axis_size=4)(wf.zeros(3))


def test_an_axis_that_is_not_there_is_refused() -> None:
    with pytest.raises(AxisError):
        wf.vmap(lambda x: x, in_axes=2)(wf.zeros((3, 3)))
    with pytest.raises(AxisError):
        wf.vmap(lambda x: x)(wf.tensor(1.0))
    with pytest.raises(AxisError):
        wf.vmap(lambda x: x, out_axes=3)(wf.zeros((3, 3)))


def test_in_axes_must_fit_the_arguments() -> None:
    with pytest.raises(ArgumentError) as caught:
        wf.vmap(lambda x, y: x, in_axes=(0,))(wf.zeros(3), wf.zeros(3))
    assert caught.value.expected == "2 entries"
    with pytest.raises(ArgumentError, match="does not fit the structure"):
        wf.vmap(lambda x: x["a"], in_axes=({"b": 0},))({"a": wf.zeros(3)})
    with pytest.raises(ArgumentError, match="does not fit the structure"):
        wf.vmap(lambda x: x, in_axes=((0, 0),))(wf.zeros(3))
    with pytest.raises(ArgumentError, match="does not fit the structure"):
        wf.vmap(lambda x: (x, x), out_axes=(0, 0, 0))(wf.zeros(3))


def test_nothing_to_map_over_is_refused() -> None:
    with pytest.raises(ArgumentError) as caught:
        wf.vmap(lambda x: x, in_axes=None)(wf.zeros(3))
    assert caught.value.problem == "no argument has a batch axis"
    assert "axis_size" in caught.value.fix


def test_python_control_flow_on_an_element_is_refused() -> None:
    with pytest.raises(TraceError) as caught:
        wf.vmap(lambda x: x if x > 0.0 else -x)(wf.zeros(3))
    assert "wf.where" in caught.value.fix
    assert "vmap" in caught.value.problem


@pytest.mark.parametrize("read", [float, int, bool, lambda x: x.item(), lambda x: x.numpy()])
def test_an_element_has_no_value_of_its_own(read: object) -> None:
    with pytest.raises(TraceError):
        wf.vmap(lambda x: wf.tensor(read(x)))(wf.zeros(3))  # type: ignore[operator]


def test_an_element_that_leaks_is_refused_with_the_line_where_it_was_mapped() -> None:
    kept: list[wf.Tensor] = []
    wf.vmap(lambda x: kept.append(x) or x)(wf.zeros(3))  # traced here
    with pytest.raises(LeakError) as caught:
        kept[0] + 1.0
    line = _line_of("# traced here")
    assert f":{line}" in caught.value.note
    assert "vmap" in caught.value.problem
    with pytest.raises(LeakError):
        kept[0].item()


def _line_of(mark: str) -> int:
    with open(__file__, encoding="utf-8") as source:
        return next(number for number, line in enumerate(source, 1) if mark in line)
