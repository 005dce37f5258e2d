"""Operations of one's own: in Python by `wf.primitive`, in C or C++ by `wf.custom.native`.

A native operation is a function in a shared library that was built with `weft_kernel.h`, one for
each dtype. Compiled programs call it without going through Python, eager code by the same way.

    library = wf.custom.load_library("libsoftclip.so")
    softclip = wf.custom.native(
        "softclip", library, dtypes={"float32": "softclip_f32"}, attributes={"limit": 1.0},
        type_rule=lambda x, *, limit: x,
    )
    softclip(wf.tensor([0.5, 7.0]), limit=2.0)

>>> from pathlib import Path
>>> import weft as wf
>>> [file.name for file in Path(wf.custom.include_folder()).iterdir()]
['weft_kernel.h']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from inspect import Parameter, signature
from typing import Any
from uuid import uuid4

import numpy as np

from weft.compiler.lowering.builder import nest
from weft.compiler.targets.cpu.runtime.library_kernels import (
    INTEGERS,
    REALS,
    TEXT,
    Native,
    kernel_of_library,
)
from weft.core.dtypes import DType, as_dtype
from weft.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, Unsupported
from weft.core.shapes import is_static
from weft.core.types import TensorType
from weft.ir import loops, scalars
from weft.ir.derivatives import Derivatives, additive, constant, every, joint, linear, tangent
from weft.ir.primitive import LOCAL, Mistake, Sample
from weft.ops.defining import (
    REQUIRED,
    Arguments,
    Definition,
    Elementwise,
    Operator,
    check_name,
    checked_rule,
    elementwise,
    operands_by_name,
    primitive,
    refuse,
    type_of,
)
from weft.ops.families import elementwise_samples
from weft.runtime.libraries import (
    CAPSULE,
    HEADER,
    Library,
    capsule_address,
    load_library,
    shapes_by_rule,
)

__all__ = [
    "Elementwise", "Library", "Mistake", "Operator", "Sample", "Unsupported", "additive",
    "constant", "elementwise", "every", "include_folder", "joint", "linear", "load_library",
    "loops", "native", "nest", "primitive", "scalars", "tangent",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Rule = Callable[..., Any]
Kernels = Mapping[Any, Any] | Sequence[Any]
_KINDS: dict[type, int] = {bool: INTEGERS, int: INTEGERS, float: REALS, str: TEXT}
_LARGEST = 1 << 63


def include_folder() -> str:
    """The folder of `weft_kernel.h`, for a C compiler's -I.

    >>> import weft as wf
    >>> wf.custom.include_folder().endswith("include")
    True
    """
    return str(HEADER.parent)


def native(
    name: str,
    library: Library | None,
    *,
    dtypes: Kernels,
    attributes: Mapping[str, Any] | None = None,
    type_rule: Rule | Elementwise | None = None,
    shape: str | None = None,
    operands: int | None = None,
    results: int = 1,
    derivatives: Derivatives | Unsupported | None = None,
    batch: Rule | str | Unsupported | None = None,
    reference: Callable[..., Any] | None = None,
    samples: Sequence[Any] | Callable[[], Sequence[Any]] = (),
    mistakes: Sequence[Mistake] = (),
    doc: str = "",
) -> Operator:
    """Define an operation whose kernels are functions of a shared library.

    dtypes: the function for each dtype, as in {"float32": "softclip_f32"}; names of dtypes alone
    stand for functions such as softclip_f32. A tuple of dtypes is for operands that differ. With
    library=None the functions are capsules named "weft_kernel_1", such as pybind11 makes.
    attributes: the default of each attribute, or its type where it must be given.
    type_rule: as for `wf.primitive`; or shape, the name of a function of the library that fills in
    the types, of so many `operands`.
    reference: NumPy code that gives the same, which `wf.testing.check_primitive` compares with.
    The others are as for `wf.primitive`.
    """
    check_name(name)
    takes = _arguments(name, attributes or {}, type_rule, operands)
    kinds = {key: _kind(name, key, value) for key, value in (attributes or {}).items()}
    kernels, origin = _kernels(name, library, dtypes, takes.operands)
    implementation = Native(name, kernels, kinds, reference)
    rule = _type_rule(implementation, library, type_rule, shape, results)
    dense = isinstance(type_rule, Elementwise)
    return Definition(name, takes, type_rule or rule, results, dense).make_operator(
        doc=doc or f"The operation {name}, by a kernel of a library.",
        type_rule=rule,
        reference=_kernel_function(implementation, rule, results),
        derivatives=derivatives,
        batch=batch,
        samples=samples or (lambda: _samples(implementation, takes, type_rule)),
        mistakes=lambda: mistakes,
        native=implementation,
        fingerprint=f"{origin} {sorted(kinds.items())}",
    )


# --- what a native operation takes ---------------------------------------------------------------


def _arguments(
    name: str, attributes: Mapping[str, Any], rule: Any, operands: int | None
) -> Arguments:
    """The operands that the type rule names, or `operands` of them; attributes as declared."""
    count = operands
    if count is None and callable(rule):
        kinds = [each.kind for each in signature(rule).parameters.values()]
        count = sum(kind <= Parameter.POSITIONAL_OR_KEYWORD for kind in kinds)
    declared = {k: REQUIRED if isinstance(v, type) else v for k, v in attributes.items()}

    def fit_argument(op: str, key: str, default: Any, value: Any) -> Any:
        return _fit_attribute(op, key, attributes[key], value)

    return Arguments(count or 1, declared, fit_argument)


def _kind(op: str, name: str, declared: Any) -> int:
    """How an attribute is passed to a kernel: integers, reals or text."""
    values = declared if isinstance(declared, (tuple, list)) else (declared,)
    kinds = {_KINDS.get(v if isinstance(v, type) else type(v)) for v in values} or {INTEGERS}
    common_kind = kinds.pop() if len(kinds) == 1 else None
    if common_kind is None or (common_kind == TEXT and isinstance(declared, (tuple, list))):
        raise ArgumentTypeError(
            op,
            f"attribute {name} is of no kind that a kernel can be given",
            expected="a number, a boolean, a string, a tuple of numbers, or one of their types",
            got={name: declared},
            fix=f"attributes={{{name!r}: 1.0}}",
        )
    return common_kind


def _fit_attribute(op: str, name: str, declared: Any, value: Any) -> Any:
    """An attribute's value in the kind that was declared; refused where it is of another."""
    several = isinstance(declared, (tuple, list))
    kind = _kind(op, name, declared)
    values = value if isinstance(value, tuple) else (value,)
    number = (int, float) if kind == REALS else int
    fits = isinstance(value, tuple) == several and all(
        isinstance(v, str if kind == TEXT else number) for v in values
    )
    if kind == INTEGERS and fits:
        fits = all(-_LARGEST <= v < _LARGEST for v in values)
    if not fits or (kind == TEXT and "\0" in value):
        raise ArgumentTypeError(
            op,
            f"attribute {name} is of another kind",
            expected=f"a value like {declared!r}",
            got={name: repr(value)},
            fix=f"{op}(x, {name}={declared!r})",
        )
    if kind != REALS:
        return value
    return tuple(map(float, values)) if several else float(value)


# --- kernels -------------------------------------------------------------------------------------


def _kernels(
    name: str, library: Library | None, dtypes: Kernels, operands: int | None
) -> tuple[dict[tuple[DType, ...], int], str]:
    """The kernel for each key of dtypes, and what tells them from others."""
    if isinstance(dtypes, Mapping):
        listed = {_key(name, key, operands): value for key, value in dtypes.items()}
    else:
        keys = [_key(name, each, operands) for each in dtypes]
        listed = {key: "_".join([name, *[dtype.short for dtype in key]]) for key in keys}
    if not listed:
        refuse(name, "there is no kernel", expected="a function for one dtype at least",
               got={"dtypes": dtypes},
               fix=f'dtypes={{"float32": "{name}_f32"}}')  # fmt: skip
    addresses = {key: _address(name, library, value) for key, value in listed.items()}
    if library is None:
        return addresses, LOCAL + uuid4().hex
    shown = [f"{[d.name for d in key]}={symbol}" for key, symbol in listed.items()]
    return addresses, "#" + sha256(" ".join([library.digest, *shown]).encode()).hexdigest()


def _key(op: str, given: Any, operands: int | None) -> tuple[DType, ...]:
    try:
        key = tuple(as_dtype(each) for each in (given if isinstance(given, tuple) else (given,)))
    except DTypeError as error:
        raise error.called(op) from None
    if len(key) not in (1, operands):
        refuse(op, "the dtypes of a kernel are not those of the operands",
               expected=f"one dtype, or {operands}", got={"dtypes": given},
               fix="give one dtype where all operands have the same")  # fmt: skip
    return key


def _address(op: str, library: Library | None, given: Any) -> int:
    if library is not None and not isinstance(library, Library):
        raise ArgumentTypeError(
            op,
            "this is not a library",
            expected="what wf.custom.load_library gives, or None beside capsules",
            got={"library": library},
            fix="wf.custom.load_library(path)",
        )
    if library is not None and isinstance(given, str):
        address = library.symbol(given)
        return kernel_of_library(address, str(library.path), library.digest, given)
    kernel_address = None if isinstance(given, str) else capsule_address(given)
    if kernel_address is None:
        raise ArgumentTypeError(
            op,
            "this is not a kernel",
            expected=f"the name of a function beside a library, or a capsule named {CAPSULE!r}",
            got={"library": library, "kernel": given},
            fix="load the library first: wf.custom.load_library(path)",
        )
    _CAPSULES.append(given)
    return kernel_address


_CAPSULES: list[object] = []
"""Capsules whose functions are in use; what they belong to must not go."""


# --- rules ---------------------------------------------------------------------------------------


def _type_rule(
    implementation: Native, library: Library | None, rule: Any, shape: str | None, results: int
) -> Rule:
    """The type rule given, for operands that there is a kernel for."""
    name = implementation.name
    if (rule is None and shape is None) or (shape is not None and library is None):
        refuse(name, "the definition has no type rule",
               expected="type_rule, or shape, the name of a function of the library",
               got={"type_rule": rule, "shape": shape},
               fix="type_rule=lambda x: x")  # fmt: skip
    if shape is not None:
        assert library is not None
        rule = _by_shape_function(implementation, library.symbol(shape), results)
    inner = checked_rule(name, rule, results)

    def type_rule(*types: TensorType, **params: Any) -> Any:
        implementation.kernel(types)
        kinds = inner(*types, **params)
        if isinstance(rule, Elementwise) and any(t.shape != types[0].shape for t in types):
            raise ShapeError(
                name,
                "operands of a kernel have different shapes",
                expected="one shape",
                got=operands_by_name(types),
                fix="broadcast them first: wf.broadcast_arrays(x1, x2)",
            )
        return kinds

    return type_rule


def _by_shape_function(implementation: Native, address: int, results: int) -> Rule:
    """A type rule that asks a function of the library."""

    def rule(*types: TensorType, **params: Any) -> Any:
        if not all(is_static(kind.shape) for kind in types):
            raise ShapeError(
                implementation.name,
                "the shape function needs to know all sizes",
                expected="sizes that are numbers",
                got=operands_by_name(types),
                fix="give a type rule in Python, which can compute with symbols",
            )
        result_types = shapes_by_rule(address, types, results, implementation.values(params))
        if isinstance(result_types, str):
            raise ArgumentError(
                implementation.name,
                result_types,
                expected="operands that the shape function takes",
                got=operands_by_name(types),
                fix=f"see what the shape function of {implementation.name} checks",
            )
        return result_types[0] if results == 1 else tuple(result_types)

    return rule


def _kernel_function(implementation: Native, rule: Rule, results: int) -> Rule:
    """The kernel as a function of arrays."""

    def compute(*arrays: Array, **params: Any) -> Any:
        ruled = rule(*[type_of(array) for array in arrays], **params)
        kernel_results = implementation.run(arrays, ruled if results != 1 else (ruled,), params)
        return tuple(kernel_results) if results != 1 else kernel_results[0]

    return compute


def _samples(implementation: Native, takes: Arguments, rule: Any) -> list[Sample]:
    """Operands of an element-wise operation, of one shape and of dtypes that have a kernel."""
    if not isinstance(rule, Elementwise):
        return []
    count = takes.operands or 1
    drawn = elementwise_samples(implementation.name, count, rule.dtypes, rule.domain)
    arrays = [[np.asarray(x) for x in sample.operands] for sample in drawn]
    known = {key[0] for key in implementation.kernels}
    return [
        sample
        for sample, operands in zip(drawn, arrays, strict=True)
        if type_of(operands[0]).dtype in known and len({x.shape for x in operands}) == 1
    ]
