"""The errors of scripts: what a branch or loop over traced tensors cannot do, and what to write.

All point at the user's line: the innermost frame outside the package is the function's own.

>>> from weft.script.mistakes import name_in_message
>>> name_in_message("_weft_result")
'the returned value'
"""

from __future__ import annotations

from typing import Any

from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
    UnsupportedError,
    WeftError,
)
from weft.core.locations import Location
from weft.ir.tensor import Tensor
from weft.script.jumps import RESULT

__all__: list[str] = []


def name_in_message(name: str) -> str:
    """The name of a variable as messages show it."""
    return "the returned value" if name == RESULT else name


def differing_types(what: str, where: tuple[str, str], kinds: tuple[Any, Any]) -> WeftError:
    """A value that has another type on another way through the function."""
    a, b = kinds
    by_shape = a.shape != b.shape
    error: type[WeftError] = ShapeError if by_shape else DTypeError
    word = "shape" if by_shape else "dtype"
    return error(
        "script",
        f"{name_in_message(what)} has another {word} {where[1]} than {where[0]}",
        expected="one dtype and shape, whatever a traced test says",
        got={where[0]: a, where[1]: b},
        fix=_conversion_fix(what, by_shape),
    )


def _conversion_fix(what: str, by_shape: bool) -> str:
    name = "value" if what == RESULT else what
    if by_shape:
        return f"give it one shape: wf.broadcast_to({name}, shape)"
    return f"convert it: {name}.astype(wf.float32)"


def differing_objects(what: str, where: tuple[str, str], values: tuple[Any, Any]) -> WeftError:
    """A Python value that is another one on another way through the function."""
    return UnsupportedError(
        "script",
        f"{name_in_message(what)} is another Python object {where[1]} than {where[0]}",
        expected="tensors or numbers where a traced test decides; the same object otherwise",
        got={where[0]: values[0], where[1]: values[1]},
        fix="make it a tensor in both, or decide by a Python value",
    )


def differing_structures(what: str, where: tuple[str, str], values: tuple[Any, Any]) -> WeftError:
    """Containers of different kinds or lengths."""
    return UnsupportedError(
        "script",
        f"{name_in_message(what)} has another structure {where[1]} than {where[0]}",
        expected="the same containers with as many items, whatever a traced test says",
        got={where[0]: values[0], where[1]: values[1]},
        fix="write to a tensor of a fixed size: out[i] = y",
    )


def missing_value(name: str, reason: str, at: Location | None) -> WeftError:
    """A name that was given a value only on some ways through the function."""
    return UnsupportedError(
        "script",
        f"{name} may have no value here: {reason}",
        expected="a value on every way to this line",
        got={name: "undefined"},
        fix=f"give it a value before: {name} = wf.zeros(())",
        at=at,
    )


def falls_off() -> WeftError:
    """A function that returns a value on some ways only."""
    return UnsupportedError(
        "script",
        "a traced tensor decides whether the function returns a value or reaches its end",
        expected="a return on every way",
        got={"at the end": None},
        fix="end the function with a return of the same type: return x",
    )


def ambiguous_test(test: Tensor) -> WeftError:
    """A test with several elements."""
    return ArgumentError(
        "script",
        "the truth of a tensor with several elements is ambiguous",
        expected="one element",
        got={"test": test},
        fix="say which you mean: test.any() or test.all(); for each element: wf.where(test, a, b)",
    )


_INSTEAD = {
    "yield": "collect the values in a tensor and return it, or decide by a Python value",
    "async": "move the tensors to a function of its own, without async",
    "try/except": "move what depends on the tensor out of the try, or use assert",
    "a comprehension": "write the values with wf.where(test, a, b), or decide by a Python value",
}


def refused_construct(construct: str, around: str, test: Tensor) -> WeftError:
    """Control flow on a traced tensor inside a construct that graphs cannot express."""
    return UnsupportedError(
        "script",
        f"{construct} on a traced tensor inside {around} is not supported",
        expected=f"a Python value as the test inside {around}",
        got={"test": test},
        fix=_INSTEAD[around],
    )


def rebinds_global(names: tuple[str, ...]) -> WeftError:
    """A global name that a recorded body binds."""
    return UnsupportedError(
        "script",
        f"the global name {names[0]} is bound where a traced tensor decides",
        expected="local names there",
        got={"global": names[0]},
        fix=f"return the value, and bind {names[0]} outside",
    )


def both_ways(name: str, value: Tensor) -> WeftError:
    """A tensor from outside a loop that the loop both updates in place and replaces."""
    return UnsupportedError(
        "script",
        f"{name} is updated in place and bound anew in one loop on traced tensors",
        expected="one of the two",
        got={name: value},
        fix=f"write {name} = {name} + y in place of {name} += y",
    )


def growing_container_error(what: str) -> WeftError:
    """A container that each step of a loop without known length changes."""
    return UnsupportedError(
        "script",
        f"a {what} is changed in a loop whose number of steps a traced tensor decides",
        expected="tensors as what the loop changes",
        got={"container": what},
        fix="write to a tensor of a fixed size: out[i] = y",
    )


def endless_loop_error(steps: int) -> WeftError:
    """A loop over an iterator that only a traced tensor would end."""
    return UnsupportedError(
        "script",
        "a traced tensor decides when a loop over an iterator ends, and it has not ended",
        expected=f"at most {steps} steps that are recorded one by one",
        got={"steps": steps},
        fix="while True: with an index that is counted up, and the same break",
    )


def unknown_container(owner: Any) -> WeftError:
    """Something whose contents cannot be put back."""
    return UnsupportedError(
        "script",
        f"a {type(owner).__name__} is changed where a traced tensor decides",
        expected="a tensor, a list, a dict, a set, or an object with attributes",
        got={"object": owner},
        fix="change it outside, by a value that the branch or loop gives",
    )


def raises_in_loop(error: BaseException) -> WeftError:
    """A loop whose body does nothing but raise."""
    return UnsupportedError(
        "script",
        "every step of a loop on traced tensors raises",
        expected="a body that may also not raise",
        got={"raise": repr(error)},
        fix="assert the opposite of the loop's test before it",
    )


def too_many_steps(steps: int) -> WeftError:
    """A loop that Python runs for longer than it may."""
    return ArgumentError(
        "script",
        "a while loop is not done after max_steps",
        expected=f"at most {steps} steps",
        got={"max_steps": steps},
        fix="@wf.script(max_steps=...) with a larger number",
    )


def no_source(function: Any) -> WeftError:
    """A function whose text cannot be read."""
    return UnsupportedError(
        "script",
        "the source of the function is not at hand",
        expected="a function defined in a file, or in a notebook's cell",
        got={"function": repr(function)},
        fix="write it to a file; for a lambda, use def",
    )


def not_a_function(given: Any) -> WeftError:
    """Something that has no source at all."""
    return ArgumentTypeError(
        "script",
        "not a Python function",
        expected="a function, a method or a lambda",
        got={"f": given},
        fix="@wf.script above def, below other decorators such as @wf.jit",
    )
