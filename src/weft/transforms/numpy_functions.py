"""NumPy's functions on tensors: `np.exp(x)`, `np.concatenate([x, y])`, `array + x`.

A function with a counterpart here gives a tensor, recorded for derivatives and traces like any
other; what only looks at values, such as `np.save`, gets an array; the rest is refused with the
call to write. So nothing leaves the framework without being asked to.

>>> import numpy as np, weft as wf
>>> x = wf.tensor([0.0, 1.0])
>>> np.exp(x).tolist()[0], np.stack([x, x], axis=1).shape, (np.ones(2) + x).tolist()
(1.0, (2, 2), [1.0, 2.0])
>>> wf.grad(lambda x: np.sum(np.square(x)))(x).tolist()
[0.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

import numpy as np

from weft.core import trees
from weft.core.errors import UnsupportedError
from weft.core.names import PUBLIC, suggestion
from weft.ir.tensor import Tensor

__all__ = ["array_function", "array_ufunc"]

Function = Callable[..., Any]

RENAMED: dict[str, str] = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "conjugate": "conj",
    "degrees": "rad2deg", "fabs": "abs", "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift", "power": "pow", "radians": "deg2rad",
    "right_shift": "bitwise_right_shift", "rint": "round", "true_divide": "divide",
    "amax": "max", "amin": "min", "around": "round", "concatenate": "concat",
}  # fmt: skip
"""NumPy's functions that have another name here."""

REDUCTIONS: dict[str, str] = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all",
    "logical_or": "any",
}  # fmt: skip
ACCUMULATIONS = {"add": "cumulative_sum", "multiply": "cumulative_prod"}

ON_ARRAYS = frozenset([
    "allclose", "array_equal", "array_equiv", "array_repr", "array_str", "array2string", "can_cast",
    "copyto", "iscomplexobj", "isrealobj", "may_share_memory", "min_scalar_type", "result_type",
    "save", "savetxt", "savez", "savez_compressed", "shares_memory",
])  # fmt: skip
"""What looks at values, and gives no array to go on with: tensors are given as arrays."""

OPTIONS = {"ddof": "correction", "a_min": "min", "a_max": "max", "reps": "repetitions"}
"""NumPy's options that have another name here."""


def array_ufunc(x: Tensor, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """NumPy's universal functions: the protocol `__array_ufunc__`."""
    name = ufunc.__name__
    outputs = options.pop("out", None)
    if outputs is not None and all(isinstance(each, np.ndarray) for each in outputs):
        arrays = _as_arrays(inputs)
        return getattr(ufunc, method)(*arrays, out=outputs, **options)
    if method == "__call__" and not options and outputs is None:
        if name == "divmod":
            return PUBLIC[0].floor_divide(*inputs), PUBLIC[0].remainder(*inputs)
        function = _counterpart(name)
        if function is not None:
            return function(*inputs)
    known = {"reduce": REDUCTIONS, "accumulate": ACCUMULATIONS}.get(method, {})
    if name in known and outputs is None:
        axis = options.pop("axis", 0)
        kept = {key: value for key, value in options.items() if value is not None}
        return getattr(PUBLIC[0], known[name])(*inputs, axis=axis, **kept)
    call = name if method == "__call__" else f"{name}.{method}"
    raise _refusal(call, name, [*options, *(["out"] if outputs is not None else [])])


def array_function(
    x: Tensor, function: Any, kinds: Any, args: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """NumPy's other functions: the protocol `__array_function__`."""
    name = function.__name__
    if name in ("shape", "ndim", "size"):
        return _attribute(name, *args, **options)
    if name in ON_ARRAYS:
        return function(*_as_arrays(args), **_as_arrays(dict(options)))
    here = _counterpart(name, function.__module__)
    if here is None:
        raise _refusal(name, name, [])
    positional, named = _arguments(name, function, here, args, options)
    return here(*positional, **named)


def _counterpart(name: str, module: str = "numpy") -> Function | None:
    """The function of this library that one of NumPy's is."""
    public = PUBLIC[0]
    for part in ("linalg", "fft"):
        if module.endswith(part):
            public = getattr(public, part)
    wanted = RENAMED.get(name, name)
    if wanted not in public.__all__:
        return None
    found: Function = getattr(public, wanted)
    return found


def _arguments(
    name: str, function: Function, here: Function, args: Sequence[Any], options: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """A call of NumPy's as one of this library: what is given, under the names here."""
    bound = signature(function).bind(*args, **options)
    theirs = signature(function).parameters
    ours = signature(here).parameters
    first = [p.name for p in ours.values() if p.kind is not Parameter.KEYWORD_ONLY]
    operands = [p.name for p in ours.values() if p.default is Parameter.empty]
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for number, (key, value) in enumerate(bound.arguments.items()):
        if theirs[key].kind is Parameter.VAR_POSITIONAL:
            positional += [*value]
        elif theirs[key].kind is Parameter.VAR_KEYWORD:
            named |= value
        elif number < len(operands) and number < len(first):
            positional.append(value)
        elif _is_default(value, theirs[key].default):
            continue
        elif OPTIONS.get(key, key) in ours:
            named[OPTIONS.get(key, key)] = value
        else:
            raise _refusal(name, name, [key])
    return positional, named


def _is_default(value: Any, default: Any) -> bool:
    if value is default or value is np._NoValue:
        return True
    plain = isinstance(value, (int, float, str, bool)) or value is None
    return plain and type(value) is type(default) and bool(value == default)


def _attribute(name: str, x: Any, axis: int | None = None) -> Any:
    value = x.shape if name == "shape" else getattr(x, name)
    return x.shape[axis] if name == "size" and axis is not None else value


def _as_arrays(tree: Any) -> Any:
    """The same with arrays in place of tensors; a traced one has no array, which is an error."""
    return trees.map_tree(lambda x: np.asarray(x) if isinstance(x, Tensor) else x, tree)


def _refusal(call: str, name: str, options: Sequence[str]) -> UnsupportedError:
    meant = suggestion(name, [], "wf").partition("  #")[0]
    here = _counterpart(name)
    told = f" with {', '.join(options)}" if options else ""
    if here is not None and options:
        fix = f"leave {options[0]} out, or give it an array: np.{call}(np.asarray(x), ...)"
    else:
        fix = f"{meant + ', or ' if meant else ''}on an array: np.{call}(np.asarray(x), ...)"
    return UnsupportedError(
        f"np.{call}",
        f"NumPy's {call}{told} has no counterpart for tensors",
        expected="a function that is in wf, with options that it has",
        got={"function": f"np.{call}"},
        fix=fix,
    )
