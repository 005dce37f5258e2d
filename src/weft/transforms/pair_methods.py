"""Methods that give values and places in PyTorch, and values alone here.

`x.max(1)[1]` are the places of the largest elements there. Here it would be one of the values,
which broadcasts against labels without a word. So an element that is taken behind an axis by
position is refused. Who names the axis means NumPy's.

>>> import weft as wf
>>> x = wf.tensor([[1.0, 5.0], [4.0, 2.0]])
>>> x.max(1).tolist(), x.max(axis=1)[1].item()
([5.0, 4.0], 4.0)
>>> try:
...     x.max(1)[1]
... except wf.ArgumentError as error:
...     print(error.fix)
x.argmax(axis=1) for the places, x.max(axis=1)[1] for that element of the values
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from opcode import opmap
from types import FrameType
from typing import Any

from weft.core.errors import ArgumentError
from weft.core.wrong_calls import explain_arguments
from weft.ir.tensor import Tensor

Function = Callable[..., Any]


def pair_method(function: Function) -> Function:
    """A method with an axis that gives values and places in PyTorch: x.max(0), but not x.max(0)[1].

    The element behind an axis by position is refused: it is a tensor there, and a number here.
    """
    name = function.__name__

    @wraps(function)
    def method(self: Tensor, axis: Any = _NAMED, /, **options: Any) -> Any:
        if axis is _NAMED:
            return function(self, **options)
        caller = sys._getframe(1)
        if caller.f_code is _EXPLAINING:
            caller = caller.f_back or caller
        element = _element_taken(caller)
        if element is not None:
            raise _pair_error(name, self, axis, element)
        return function(self, axis=axis, **options)

    return method


_NAMED = object()
"""Stands for an axis that is passed by name, or not at all."""


def _element_taken(caller: FrameType) -> int | None:
    """0 or 1 where the instructions behind a call take that element of its result."""
    code, place = caller.f_code.co_code, caller.f_lasti
    if place < 0:
        return None
    first = place + 2
    while code[first] == _CACHE:  # what a call is followed by, for the interpreter
        first += 2
    if code[first] == _LOAD_CONST:
        number = caller.f_code.co_consts[code[first + 1]]
    elif code[first] == _LOAD_SMALL_INT:
        number = code[first + 1]
    else:
        return None
    is_pair = type(number) is int and number in (0, 1) and _takes_element(code, first + 2)
    return number if is_pair else None


def _takes_element(code: bytes, at: int) -> bool:
    """Whether an instruction takes an element: an operator since Python 3.14."""
    if _BINARY_SUBSCR is not None:
        return code[at] == _BINARY_SUBSCR
    return code[at] == opmap["BINARY_OP"] and code[at + 1] == _SUBSCRIPT


_EXPLAINING = explain_arguments(lambda x, /, *, axis=None: x).__code__
"""The wrapper that a method is called by."""
_CACHE, _LOAD_CONST = opmap["CACHE"], opmap["LOAD_CONST"]
_LOAD_SMALL_INT, _BINARY_SUBSCR = opmap.get("LOAD_SMALL_INT"), opmap.get("BINARY_SUBSCR")
_SUBSCRIPT = 26
"""The operand of `BINARY_OP` for an element, in Python 3.14."""


def _pair_error(name: str, x: Tensor, axis: Any, element: int) -> ArgumentError:
    pair = f"x.{name}(axis={axis!r}) for the values", f"x.arg{name}(axis={axis!r}) for the places"
    return ArgumentError(
        name,
        "this means one thing in PyTorch and another in NumPy",
        expected="an axis by name: the result is one tensor, of values",
        got={"x": x, "axis": axis, "element": element},
        fix=f"{pair[element]}, x.{name}(axis={axis!r})[{element}] for that element of the values",
    )
