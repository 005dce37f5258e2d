"""What a script cannot do is refused at the user's line, with what to write instead."""

# ruff: noqa: ANN001, ANN202, RET503
# The functions are written as a user would write them.

from __future__ import annotations

import inspect
from typing import Any

import pytest

import weft as wf

X = wf.tensor(2.0)
VECTOR = wf.tensor([1.0, 2.0])
total = 0


def line_of(function: Any, text: str) -> int:
    """The line of this file that holds a text, inside a function."""
    lines, first = inspect.getsourcelines(function)
    return first + next(index for index, line in enumerate(lines) if text in line)


def refused(function: Any, kind: type[wf.WeftError], *arguments: Any) -> Any:
    """The error of a scripted function under `jit`, which must point into it."""
    scripted = wf.script(function)
    with pytest.raises(kind) as caught:
        wf.jit(scripted)(*(arguments or (X,)))
    error = caught.value
    assert error.op == "script"
    assert error.at is not None
    assert error.at.file == __file__
    assert error.at.function == function.__name__
    assert error.fix
    return error


def test_a_name_without_value_on_one_side_is_refused_where_it_is_used() -> None:
    def f(x):
        if x > 0:
            y = x
        x = x + 1
        return y + x

    error = refused(f, wf.UnsupportedError)
    assert error.at.line == line_of(f, "return y")
    assert "y may have no value here" in error.problem
    assert f"line {line_of(f, 'if x > 0')}" in error.problem
    assert wf.script(f)(X).item() == 5.0
    with pytest.raises(UnboundLocalError):
        wf.script(f)(-X)


def test_a_name_that_only_a_loop_gives_a_value_is_refused_where_it_is_used() -> None:
    def f(x):
        while x < 10:
            y = x
            x = x * 2
        return y

    error = refused(f, wf.UnsupportedError)
    assert error.at.line == line_of(f, "return y")
    assert "inside a loop" in error.problem


def test_different_shapes_are_named_with_both_types() -> None:
    def f(x):
        if x > 0:
            y = wf.zeros((2,))
        else:
            y = wf.zeros((3,))
        return y

    error = refused(f, wf.ShapeError)
    assert error.at.line == line_of(f, "if x > 0")
    assert error.at.source().splitlines() == ["if x > 0:", "   ^^^^^"]
    assert error.problem.startswith("y has another shape")
    assert error.got == "if true: f32[2]   if false: f32[3]"


def test_different_dtypes_are_named_with_both_types() -> None:
    def f(x):
        y = x
        if x > 0:
            y = x.astype(wf.float64)
        return y

    error = refused(f, wf.DTypeError)
    assert error.got == "if true: f64[]   if false: f32[]"
    assert error.fix == "convert it: y.astype(wf.float32)"


def test_different_returned_types_are_named() -> None:
    def f(x):
        if x > 0:
            return x
        return wf.zeros((3,))

    error = refused(f, wf.ShapeError)
    assert error.problem.startswith("the returned value has another shape")


def test_different_python_objects_are_refused() -> None:
    def f(x):
        name = "a"
        if x > 0:
            name = "b"
        return x if name == "a" else -x

    error = refused(f, wf.UnsupportedError)
    assert error.problem == "name is another Python object if false than if true"
    assert error.at.line == line_of(f, "if x > 0")


def test_a_list_of_another_length_on_one_side_is_refused() -> None:
    def f(x):
        items = [x]
        if x > 0:
            items.append(x)
        return items[-1]

    error = refused(f, wf.UnsupportedError)
    assert "another structure" in error.problem
    assert error.fix == "write to a tensor of a fixed size: out[i] = y"


def test_a_list_that_grows_in_a_traced_loop_is_refused() -> None:
    def f(x):
        items = []
        while x < 10:
            items.append(x)
            x = x + 1
        return items

    error = refused(f, wf.UnsupportedError)
    assert "list is changed in a loop" in error.problem
    assert error.at.line == line_of(f, "while")
    assert len(wf.script(f)(X)) == 8


def test_a_carried_tensor_must_keep_its_type() -> None:
    def f(x):
        y = x
        while y.sum() < 10:
            y = wf.stack([y.sum(), y.sum()])
        return y

    error = refused(f, wf.ShapeError)
    assert error.problem == "y has another shape after a step than before the loop"
    assert error.got == "before the loop: f32[]   after a step: f32[2]"
    assert error.at.line == line_of(f, "while")


def test_updating_and_replacing_one_tensor_in_a_loop_is_refused() -> None:
    def f(x):
        while x < 10:
            x += 1
            x = x * 2
        return x

    error = refused(f, wf.UnsupportedError)
    assert error.fix == "write x = x + y in place of x += y"


def test_a_test_with_several_elements_is_refused() -> None:
    def f(x):
        if x > 0:
            return x
        return -x

    error = refused(f, wf.ArgumentError, VECTOR)
    assert "ambiguous" in error.problem
    assert "wf.where" in error.fix


def test_some_ways_without_a_return_are_refused() -> None:
    def f(x):
        if x > 0:
            return x

    error = refused(f, wf.UnsupportedError)
    assert "reaches its end" in error.problem
    assert wf.script(f)(-X) is None


def test_a_global_name_bound_in_a_branch_is_refused() -> None:
    def f(x):
        global total
        if x > 0:
            total = total + 1
        return x

    error = refused(f, wf.UnsupportedError)
    assert "global name total" in error.problem
    before = total
    wf.script(f)(X)
    assert total == before + 1


def test_a_branch_inside_try_is_refused_only_for_traced_tensors() -> None:
    def f(x, flag=True):
        try:
            if flag:
                y = x + 1
            if x > 0:
                y = y * 2
        except ValueError:
            y = x
        return y

    error = refused(f, wf.UnsupportedError)
    assert error.problem == "if on a traced tensor inside try/except is not supported"
    assert error.at.line == line_of(f, "if x > 0")
    assert wf.script(f)(X).item() == 6.0


def test_a_branch_in_a_generator_is_refused_only_for_traced_tensors() -> None:
    def parts(x):
        for i in range(3):
            if i == 1:
                continue
            if x > i:
                yield x * i

    def f(x):
        return sum(parts(x))

    with pytest.raises(wf.UnsupportedError) as caught:
        wf.jit(wf.script(f))(X)
    assert "inside yield" in caught.value.problem
    assert caught.value.at is not None
    assert caught.value.at.line == line_of(parts, "if x > i")
    assert wf.script(f)(wf.tensor(3.0)).item() == 6.0


def test_the_filter_of_a_comprehension_is_refused() -> None:
    def f(x):
        return sum([x * i for i in range(3) if x > i])

    with pytest.raises(wf.UnsupportedError) as caught:
        wf.jit(wf.script(f))(X)
    assert "inside a comprehension" in caught.value.problem
    assert caught.value.at is not None
    assert caught.value.at.line == line_of(f, "return sum")
    assert wf.script(f)(X).item() == 2.0


def test_recursion_on_a_traced_tensor_is_refused() -> None:
    @wf.script
    def factorial(n):
        if n <= 1:
            return 1
        return n * factorial(n - 1)

    assert factorial(5) == 120
    with pytest.raises(wf.UnsupportedError) as caught:
        wf.jit(factorial)(wf.tensor(5))
    assert "calls itself" in caught.value.problem
    assert "while" in caught.value.fix


def test_reverse_mode_without_a_bound_is_refused() -> None:
    def f(x):
        while x < 10:
            x = x * 2
        return x

    with pytest.raises(wf.GradientError) as caught:
        wf.jit(wf.grad(wf.script(f)))(X)
    assert "@wf.script(max_steps=100)" in caught.value.fix


def test_a_loop_that_takes_more_than_max_steps_is_an_error() -> None:
    @wf.script(max_steps=3)
    def f(x):
        while x < 100:
            x = x * 2
        return x

    assert wf.jit(f)(wf.tensor(20.0)).item() == 160.0
    with pytest.raises(wf.CheckError, match="not done after max_steps=3"):
        wf.jit(f)(X)
    with pytest.raises(wf.ArgumentError, match="not done after max_steps"):
        f(X)


def test_what_has_no_source_is_refused() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(x):\n    return x", namespace)
    with pytest.raises(wf.UnsupportedError) as caught:
        wf.script(namespace["f"])
    assert "source" in caught.value.problem
    with pytest.raises(wf.ArgumentTypeError):
        wf.script(3)  # type: ignore[call-overload]


@pytest.mark.parametrize("options", [{"max_steps": 0}, {"max_steps": 1.5}, {"unroll": -1}])
def test_options_that_are_no_numbers_of_steps_are_refused(options: Any) -> None:
    with pytest.raises(wf.ArgumentError):
        wf.script(**options)(line_of)


def test_an_error_in_a_branch_points_at_its_own_line() -> None:
    def f(x, y):
        if x > 0:
            z = x + 1
            return z * wf.matmul(y, wf.zeros((3, 3)))
        return y

    with pytest.raises(wf.ShapeError) as caught:
        wf.jit(wf.script(f))(X, VECTOR)
    assert caught.value.at is not None
    assert caught.value.at.line == line_of(f, "matmul")
    assert caught.value.at.function == "f"
    assert caught.value.at.source().splitlines()[1].count("^") == len(
        "wf.matmul(y, wf.zeros((3, 3)))"
    )


def test_a_plain_exception_keeps_the_lines_of_the_function() -> None:
    def f(x):
        for i in range(2):
            if i == 1:
                x = x / {}["missing"]
        return x

    with pytest.raises(KeyError) as caught:
        wf.script(f)(X)
    assert caught.traceback[-1].lineno + 1 == line_of(f, "missing")
    assert str(caught.traceback[-1].path) == __file__
