"""Checked dimensions: annotations that say what shapes a function takes, verified at each call.

A name stands for one size in all annotations of one call, the result's too. Under a trace the
sizes may be symbolic; those that must be equal are unified.

>>> import weft as wf
>>> @wf.checked
... def attend(q: wf.Float["batch", "time", "head"], k: wf.Float["batch", "time", "head"]):
...     return q @ k.mT
>>> attend(wf.zeros((2, 8, 16)), wf.zeros((2, 9, 16)))  # doctest: +ELLIPSIS
Traceback (most recent call last):
weft.core.errors.ShapeError: attend: axis 1 of k is 9, not 8
  expected  k: Float["batch", "time", "head"] with time = 8 from q
  got       q: f32[2, 8, 16]   k: f32[2, 9, 16]      8 != 9
...
"""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from types import FrameType
from typing import Any, NoReturn, TypeVar, get_args, get_origin

import numpy as np

from weft.core import dtypes, wrong_calls
from weft.core.dimension_text import parse_dim
from weft.core.dimensions import Dim, Dimension, substitute, symbol, symbols_in
from weft.core.dtypes import DType, from_numpy
from weft.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, WeftError
from weft.core.records import frozen
from weft.core.shapes import Shape, equal, match_size, mismatch
from weft.core.types import TensorType
from weft.ir.tensor import Tensor
from weft.ops.operands import check_function

__all__ = [
    "BFloat16", "Bool", "Complex", "Complex64", "Complex128", "Float", "Float16", "Float32",
    "Float64", "Int", "Int8", "Int16", "Int32", "Int64", "Shaped", "UInt8", "UInt16", "UInt32",
    "UInt64", "checked",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


@frozen
class DTypeClass:
    """What stands before the brackets: a name, and the dtypes it allows."""

    name: str
    dtypes: tuple[DType, ...]

    def __getitem__(self, axes: object) -> TensorAnnotation:
        written = axes if isinstance(axes, tuple) else (axes,)
        return TensorAnnotation(self, tuple([_axis_text(self, each) for each in written]))

    def __repr__(self) -> str:
        return f"weft.{self.name}"


@frozen
class TensorAnnotation:
    """What a tensor must be: dtypes, and a size or name for each axis."""

    kind: DTypeClass
    axes: tuple[str, ...]  # as written: "batch", "2*n", "784", "_", "...", "*batch"
    optional: bool = False

    def __post_init__(self) -> None:
        if sum(map(_is_variadic, self.axes)) > 1:
            _refuse_axis(self.kind, self.axes, "only one entry may stand for several axes")

    def __str__(self) -> str:
        shown = [axis if axis.isdecimal() else f'"{axis}"' for axis in self.axes]
        return f"{self.kind.name}[{', '.join(shown)}]" + (" | None" if self.optional else "")

    __repr__ = __str__

    def __or__(self, other: object) -> TensorAnnotation:
        if other is not None and other is not type(None):
            return NotImplemented
        return TensorAnnotation(self.kind, self.axes, optional=True)

    __ror__ = __or__

    def __call__(self) -> NoReturn:
        """Not for calling; `typing` takes for types only what can be called."""
        raise TypeError(f"{self} is an annotation")


def _axis_text(kind: DTypeClass, axis: object) -> str:
    if axis is None or axis is Ellipsis:
        return "_" if axis is None else "..."
    if isinstance(axis, int) and not isinstance(axis, bool) and axis >= 0:
        return str(axis)
    if isinstance(axis, Dim):
        return str(axis)
    if not isinstance(axis, str):
        _refuse_axis(kind, axis, f"{axis!r} does not describe an axis")
    text = axis.strip()
    if text.startswith("*") and text[1:].isidentifier():
        return text
    if text not in ("...", "_"):
        _pattern(kind, text)
    return text


def _pattern(kind: DTypeClass, text: str) -> Dimension:
    try:
        return parse_dim(text)
    except WeftError:
        _refuse_axis(kind, text, f"{text!r} does not describe an axis")


def _refuse_axis(kind: DTypeClass, axes: object, problem: str) -> NoReturn:
    raise ArgumentError(
        kind.name,
        problem,
        expected='sizes, names, expressions such as "2*n", "_" for any size, and one "..." at most',
        got={"axes": repr(axes)},
        fix=f'{kind.name}["batch", "time", 64], or {kind.name}["...", "channels"]',
    )


def _is_variadic(axis: str) -> bool:
    return axis == "..." or axis.startswith("*")


def _dtype_class(name: str, *members: DType) -> Any:
    return DTypeClass(name, members)


# Typed Any, so that a type checker lets a tensor annotated with one be used as a tensor.
Float: Any = _dtype_class("Float", *[d for d in dtypes.DTYPES if d.is_floating])
Int: Any = _dtype_class("Int", *[d for d in dtypes.DTYPES if d.is_integer])
Bool: Any = _dtype_class("Bool", dtypes.bool_)
Complex: Any = _dtype_class("Complex", *[d for d in dtypes.DTYPES if d.is_complex])
Shaped: Any = _dtype_class("Shaped", *dtypes.DTYPES)
Float16: Any = _dtype_class("Float16", dtypes.float16)
BFloat16: Any = _dtype_class("BFloat16", dtypes.bfloat16)
Float32: Any = _dtype_class("Float32", dtypes.float32)
Float64: Any = _dtype_class("Float64", dtypes.float64)
Int8: Any = _dtype_class("Int8", dtypes.int8)
Int16: Any = _dtype_class("Int16", dtypes.int16)
Int32: Any = _dtype_class("Int32", dtypes.int32)
Int64: Any = _dtype_class("Int64", dtypes.int64)
UInt8: Any = _dtype_class("UInt8", dtypes.uint8)
UInt16: Any = _dtype_class("UInt16", dtypes.uint16)
UInt32: Any = _dtype_class("UInt32", dtypes.uint32)
UInt64: Any = _dtype_class("UInt64", dtypes.uint64)
Complex64: Any = _dtype_class("Complex64", dtypes.complex64)
Complex128: Any = _dtype_class("Complex128", dtypes.complex128)


# --- the decorator -----------------------------------------------------------------------------


def checked(f: F) -> F:
    """The function with its tensor annotations verified at each call, before and after it runs.

    Annotations are `wf.Float`, `Int`, `Bool`, `Complex`, `Shaped` (any dtype) or one dtype's own,
    such as `Float32`, over axes: names, sizes, expressions ("2*n"), "_" for any size, "..." for
    any axes and "*batch" for axes with a name. Parameters without such annotations are let be.

    >>> import weft as wf
    >>> @wf.checked
    ... def double(x: wf.Float["n"]) -> wf.Float["2*n"]:
    ...     return wf.concat([x, x])
    >>> double(wf.ones(3)).shape
    (6,)
    """
    if isinstance(f, (staticmethod, classmethod)):
        return type(f)(checked(f.__func__))
    check_function("checked", f)
    signature = inspect.signature(f)
    names = _names_in_scope(f, _caller_frame().f_locals)
    wanted = {
        name: annotation
        for name, parameter in signature.parameters.items()
        if (annotation := _annotation(f, name, parameter.annotation, names)) is not None
    }
    results = _result_annotations(f, signature.return_annotation, names)
    if not wanted and not results:
        _refuse_unannotated(f)

    @wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return f(*args, **kwargs)  # for Python's own message
        bound.apply_defaults()
        check = _Check(f.__name__)
        for name, annotation in wanted.items():
            for label, value in _values(name, bound.arguments[name], signature.parameters[name]):
                check.add(label, annotation, value)
        check.settle()
        result = f(*args, **kwargs)
        for label, value, annotation in _result_values(f.__name__, result, results):
            check.add(label, annotation, value)
        check.settle()
        return result

    return call  # type: ignore[return-value]


def _caller_frame() -> FrameType:
    """The frame that called `checked`: the user's, or one of this library's own functions."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == wrong_calls.__name__:
        frame = frame.f_back  # the public name explains wrong arguments
    return frame


def _names_in_scope(f: Callable[..., Any], around: Mapping[str, Any]) -> dict[str, Any]:
    """What names in the annotations of f mean, where they are kept as text."""
    inner = inspect.unwrap(f)
    closure = inspect.getclosurevars(inner).nonlocals if inspect.isfunction(inner) else {}
    return {**getattr(inner, "__globals__", {}), **around, **closure}


def _annotation(
    f: Callable[..., Any], name: str, written: object, names: dict[str, Any]
) -> TensorAnnotation | None:
    """The annotation as an object, from text too; None where it is not one of ours."""
    annotation = _evaluate_annotation(f, name, written, names)
    if isinstance(annotation, TensorAnnotation):
        return annotation
    inside = [each for each in get_args(annotation) if isinstance(each, TensorAnnotation)]
    if get_origin(annotation) is tuple or not inside:
        return None
    return inside[0] | None if type(None) in get_args(annotation) else inside[0]


def _evaluate_annotation(
    f: Callable[..., Any], name: str, written: object, names: dict[str, Any]
) -> object:
    """The value of an annotation kept as text; an unknown name is the name of an axis."""
    if not isinstance(written, str):
        return written
    try:
        try:
            return eval(written, names)
        except NameError:
            return eval(written, names, _AxisNames(names))
    except WeftError:
        raise
    except Exception as error:
        if not any(f"{kind}[" in written for kind in __all__):
            return None  # some other type, of a name known to type checkers only
        raise ArgumentError(
            "checked",
            f"the annotation of {name} cannot be read",
            expected="names that are known where the function is defined",
            got={name: written},
            note=f"{error.__context__ or error}",
            fix="import weft as wf at the top of the module",
        ) from None


class _AxisNames(dict[str, Any]):
    """Names in scope; others are symbols. Linters take the quotes from names in annotations."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name) if hasattr(builtins, name) else symbol(name)


def _result_annotations(
    f: Callable[..., Any], written: object, names: dict[str, Any]
) -> tuple[TensorAnnotation | None, ...]:
    """One for the result, or one for each part of a result that is annotated as a tuple."""
    annotation = _evaluate_annotation(f, "return", written, names)
    if get_origin(annotation) is tuple:
        parts = tuple([_annotation(f, "return", each, names) for each in get_args(annotation)])
        return parts if any(parts) else ()
    single = _annotation(f, "return", annotation, names)
    return () if single is None else (single,)


def _refuse_unannotated(f: Callable[..., Any]) -> NoReturn:
    raise ArgumentError(
        "checked",
        f"{f.__name__} has nothing to check",
        expected="a parameter or a result annotated with a shape",
        got={"function": f"{f.__name__}{inspect.signature(f)}"},
        fix=f'annotate it: def {f.__name__}(x: wf.Float["batch", "time"])',
    )


def _values(name: str, value: Any, parameter: inspect.Parameter) -> Iterator[tuple[str, Any]]:
    if parameter.kind is parameter.VAR_POSITIONAL:
        yield from ((f"{name}[{i}]", each) for i, each in enumerate(value))
    elif parameter.kind is parameter.VAR_KEYWORD:
        yield from value.items()
    elif value is not None or parameter.default is not None:
        yield name, value


def _result_values(
    op: str, result: Any, annotations: tuple[TensorAnnotation | None, ...]
) -> Iterator[tuple[str, Any, TensorAnnotation]]:
    if len(annotations) == 1 and annotations[0] is not None:
        yield "result", result, annotations[0]
    elif annotations:
        if not isinstance(result, tuple) or len(result) != len(annotations):
            raise ArgumentTypeError(
                op,
                "the result is not the tuple that is annotated",
                expected=f"a tuple of {len(annotations)}",
                got={"result": result},
                fix="return as many values as the annotation has",
            )
        for i, (value, annotation) in enumerate(zip(result, annotations, strict=True)):
            if annotation is not None:
                yield f"result[{i}]", value, annotation


# --- one call ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Check:
    """What one call has bound so far: sizes and axes by name, with the tensor they came from."""

    op: str
    sizes: dict[str, Dimension] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, TensorType] = field(default_factory=dict)
    open: list[_Size] = field(default_factory=list)

    def add(self, label: str, annotation: TensorAnnotation, value: Any) -> None:
        """Take a tensor in; its sizes are checked by `settle`."""
        if value is None and annotation.optional:
            return
        kind = _type_of(self.op, label, annotation, value)
        self.tensors[label] = kind
        if kind.dtype not in annotation.kind.dtypes:
            self.refuse_dtype(label, annotation, kind)
        for axis, (text, size) in enumerate(self.align_axes(label, annotation, kind)):
            if text != "_":
                pattern = _pattern(annotation.kind, text)
                self.open.append(_Size(label, annotation, pattern, size, axis))

    def align_axes(
        self, label: str, annotation: TensorAnnotation, kind: TensorType
    ) -> list[tuple[str, Dimension]]:
        """Each axis that is not covered by "..." with what is written for it."""
        axes, shape = annotation.axes, kind.shape
        start = next((i for i, axis in enumerate(axes) if _is_variadic(axis)), None)
        if len(shape) < len(axes) - (start is not None) or (
            start is None and len(shape) != len(axes)
        ):
            self.refuse_rank(label, annotation, kind)
        if start is None:
            return list(zip(axes, shape, strict=True))
        end = len(shape) - (len(axes) - start - 1)
        if axes[start] != "...":
            self.match_axes(label, annotation, axes[start][1:], shape[start:end])
        rest = [("_", size) for size in shape[start:end]]
        return [
            *zip(axes[:start], shape[:start], strict=True),
            *rest,
            *zip(axes[start + 1 :], shape[end:], strict=True),
        ]

    def match_axes(self, label: str, annotation: TensorAnnotation, name: str, shape: Shape) -> None:
        self.sources.setdefault(f"*{name}", label)
        known = self.shapes.setdefault(name, shape)
        if len(known) != len(shape) or not all(map(equal, known, shape)):
            source = self.sources[f"*{name}"]
            raise ShapeError(
                self.op,
                f"*{name} of {label} is {list(shape)}, not {list(known)}",
                expected=f"{label}: {annotation} with {name} = {list(known)} from {source}",
                got=self.tensors,
                fix=f'pass a {label} with axes {list(known)} there, or rename "*{name}"',
            )

    def settle(self) -> None:
        """Match all sizes, names before the expressions that they occur in."""
        for size in sorted(self.open, key=lambda size: len(str(size.pattern))):
            fresh = symbols_in(size.pattern) - self.sizes.keys()
            if not match_size(size.pattern, size.size, self.sizes):
                self.refuse_size(size)
            self.sources.update(dict.fromkeys(fresh, size.label))
        self.open.clear()

    def refuse_size(self, wrong: _Size) -> NoReturn:
        unknown = sorted(symbols_in(wrong.pattern) - self.sizes.keys())
        known = sorted(symbols_in(wrong.pattern) & self.sizes.keys())
        wanted = substitute(wrong.pattern, self.sizes)
        bound = ", ".join(
            f"{name} = {self.sizes[name]} from {self.sources[name]}" for name in known
        )
        problem = f"axis {wrong.axis} of {wrong.label} is {wrong.size}, not {wanted}"
        expected = f"{wrong.label}: {wrong.annotation}" + (f" with {bound}" if bound else "")
        fix = (
            f"make {wrong.label}.shape[{wrong.axis}] {wanted}, "
            "or write another name for that axis in its annotation"
        )
        if not unknown:
            raise mismatch(
                self.op, wanted, wrong.size,
                what=problem, expected=expected, got=self.tensors, fix=fix,
            )  # fmt: skip
        note = f"{' and '.join(unknown)} are known from no other axis" if unknown[1:] else ""
        raise ShapeError(self.op, problem, expected=expected, got=self.tensors, note=note, fix=fix)

    def refuse_rank(self, label: str, annotation: TensorAnnotation, kind: TensorType) -> NoReturn:
        wanted = len(annotation.axes)
        variadic = any(map(_is_variadic, annotation.axes))
        count = f"at least {wanted - 1}" if variadic else str(wanted)
        missing = wanted - variadic - kind.ndim
        raise ShapeError(
            self.op,
            f"{label} has {kind.ndim} axes, not {count}",
            expected=f"{label}: {annotation}",
            got=self.tensors,
            fix=f"add {missing} in front: {label}[{'None, ' * missing}...]"
            if missing > 0
            else f"take one element of the first: {label}[0], "
            f'or allow more axes: {annotation.kind.name}["...", ...]',
        )

    def refuse_dtype(self, label: str, annotation: TensorAnnotation, kind: TensorType) -> NoReturn:
        allowed = annotation.kind.dtypes
        wanted = next(d for d in (dtypes.float32, dtypes.int64, *allowed) if d in allowed)
        raise DTypeError(
            self.op,
            f"{label} is {kind.dtype.name}",
            expected=f"{label}: {annotation}, one of {', '.join(d.name for d in allowed)}",
            got=self.tensors,
            fix=f'convert it: {label}.astype("{wanted.name}")',
        )


@frozen
class _Size:
    """One axis of one tensor, and what is written for it."""

    label: str
    annotation: TensorAnnotation
    pattern: Dimension
    size: Dimension
    axis: int


def _type_of(op: str, label: str, annotation: TensorAnnotation, value: Any) -> TensorType:
    if isinstance(value, Tensor):
        return value.type
    if isinstance(value, TensorType):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype in _ELEMENTS:
        return TensorType(from_numpy(value.dtype), value.shape)
    raise ArgumentTypeError(
        op,
        f"{label} is not a tensor",
        expected=f"{label}: {annotation}",
        got={label: value},
        fix=f"convert it first: wf.tensor({label})",
    )


_ELEMENTS = {dtype.numpy for dtype in dtypes.DTYPES}
