"""What a placeholder is fed: checked, and converted where nothing is lost but rounding.

>>> import weft as wf
>>> from weft.graph.feeding import read_feed
>>> kind = wf.spec("float32", ("n", 2))
>>> read_feed("x", kind, (None, 2), [[1, 2]]).type
f32[1, 2]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import weft as wf


def read_feed(name: str, kind: wf.TensorType, declared: Sequence[Any], value: Any) -> wf.Tensor:
    """The value as a tensor of the placeholder's type, or an error that names the placeholder."""
    if wf.staging.builder_of(value) is not None:
        raise wf.ArgumentTypeError(
            "run",
            f"{name} is fed a tensor of a graph, which has no value",
            expected=f"numbers for {name}",
            got={name: value},
            fix=f'feed_dict={{"{name}": session.run(value)}}',
        )
    given = _read(name, kind, value).detach()
    if given.dtype is not kind.dtype:
        given = _convert_fed_value(name, kind, given)
    wanted = kind.shape
    fits = len(wanted) == given.ndim and all(
        isinstance(a, wf.Dim) or a == b for a, b in zip(wanted, given.shape, strict=True)
    )
    if not fits:
        raise wf.ShapeError(
            "run",
            f"{name} is fed a value of another shape",
            expected=f"{name}: {kind.dtype.name} of shape {_declared_shape(declared, wanted)}",
            got={name: given},
            fix=f"reshape what is fed as {name}, or declare it with None for sizes that vary",
        )
    return given


def _read(name: str, kind: wf.TensorType, value: Any) -> wf.Tensor:
    """A fed value as a tensor; Python numbers keep all digits until they are converted."""
    if not isinstance(value, list | tuple | bool | int | float | complex):
        return wf.asarray(value)
    try:
        return wf.asarray(np.asarray(value))
    except ValueError as error:
        raise wf.ShapeError(
            "run",
            f"{name} is fed lists of which no tensor can be made",
            expected=f"{name}: {kind}",
            got={name: value},
            note=str(error).splitlines()[0],
            fix="give all rows the same length",
        ) from None


def check_sizes(
    name: str, kind: wf.TensorType, given: wf.Tensor, sizes: dict[str, tuple[Any, str]]
) -> None:
    """Refuse sizes that must be the same as another placeholder's, and are not."""
    for axis, (wanted, size) in enumerate(zip(kind.shape, given.shape, strict=True)):
        if not isinstance(wanted, wf.Dim):
            continue
        known, other = sizes.setdefault(str(wanted), (size, f"axis {axis} of {name}"))
        if known != size:
            raise wf.ShapeError(
                "run",
                f"{name} is fed a value whose size does not fit what else is fed",
                expected=f"axis {axis} of {name} as large as {other}: {known}",
                got={name: given},
                fix="feed batches of the same size",
            )


def _convert_fed_value(name: str, kind: wf.TensorType, given: wf.Tensor) -> wf.Tensor:
    """The value in the placeholder's dtype, where that is a wider kind of number, or the same."""
    if _level(given.dtype) > _level(kind.dtype) or kind.dtype is wf.bool:
        raise _wrong_dtype(name, kind, given)
    converted = given.astype(kind.dtype)
    if kind.dtype.is_integer and not bool(wf.all(wf.equal(converted.astype(given.dtype), given))):
        raise _wrong_dtype(name, kind, given)
    return converted


def _level(dtype: wf.DType) -> int:
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating else int(dtype.is_integer)


def _wrong_dtype(name: str, kind: wf.TensorType, given: wf.Tensor) -> wf.DTypeError:
    return wf.DTypeError(
        "run",
        f"{name} is fed a value of another dtype",
        expected=f"{name}: {kind.dtype.name}",
        got={name: given},
        fix=f'convert it first: np.asarray(value, "{kind.dtype.name}")',
    )


def _declared_shape(declared: Sequence[Any], wanted: Sequence[Any]) -> str:
    """A shape as it was declared, where it is still open."""
    pairs = zip(declared, wanted, strict=True)
    return str(tuple([d if isinstance(w, wf.Dim) else w for d, w in pairs]))
