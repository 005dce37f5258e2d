"""Checks that layers share: indices and labels within range, names of options.

>>> import weft as wf
>>> check_range("embedding", wf.tensor([0, 2]), 3, "index").tolist()
[0, 2]
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

import weft as wf

Array = np.ndarray[Any, Any]


def values_of(x: wf.Tensor) -> Array | None:
    """The array behind a tensor; None inside a transform, where there is none."""
    try:
        return x.detach().numpy()
    except wf.TraceError:
        return None


def check_range(op: str, index: Any, count: Any, name: str) -> wf.Tensor:
    """Indices from 0 to count - 1, checked at once where they are known.

    Inside a transform they are checked when the program runs: negative ones, which would count
    from the end, are moved out of range.
    """
    places: wf.Tensor = wf.asarray(index)
    if not places.dtype.is_integer:
        raise wf.DTypeError(
            op,
            f"each {name} is a whole number",
            expected="an integer dtype",
            got={name: places},
            fix='x.astype("int64")',
        )
    values = values_of(places)
    if values is None:
        return wf.where(places < 0, count, places)
    outside = (values < 0) | (values >= count)
    if outside.any():
        place = tuple(map(int, np.argwhere(outside)[0]))
        raise _range_error(op, name, values[place], place, count)
    return places


def _range_error(
    op: str, name: str, value: Any, place: tuple[int, ...], count: Any
) -> wf.BoundsError:
    names = "indices" if name == "index" else f"{name}s"
    rest = f"make room for {int(value) + 1}" if value >= 0 else "leave out those below 0"
    if value < 0 and name == "label":
        rest = f"leave such elements out of the loss: ignore_index={int(value)}"
    where = f" at {', '.join(map(str, place))}" if place else ""
    return wf.BoundsError(
        op,
        f"the {name} {int(value)}{where} is out of range",
        expected=f"0 <= {name} < {count}",
        got={name: int(value), "position": list(place)},
        fix=f"use {names} from 0 to {count - 1}, or {rest}",
    )


def refuse_where(
    op: str,
    name: str,
    x: wf.Tensor,
    is_wrong: Callable[[Array], Array],
    problem: str,
    *,
    expected: str,
    fix: str,
) -> None:
    """Refuse a tensor some of whose numbers are wrong; inside a transform they are not known."""
    values = values_of(x)
    if values is None:
        return
    wrong = np.asarray(is_wrong(values))
    if wrong.any():
        first = float(values[wrong].flat[0])
        raise wf.ArgumentError(op, problem, expected=expected, got={name: first}, fix=fix)


def choose(op: str, name: str, value: Any, choices: Collection[Any]) -> None:
    """Refuse an option that is not one of the choices."""
    if value not in choices:
        raise wf.ArgumentError(
            op,
            f"there is no such {name}",
            expected="one of " + ", ".join(map(repr, choices)),
            got={name: repr(value)},
            fix=f"{name}={next(iter(choices))!r}",
        )


def needs_axes(op: str, count: int, **tensors: wf.Tensor) -> None:
    """Refuse tensors with fewer axes."""
    for name, x in tensors.items():
        if x.ndim < count:
            raise wf.ShapeError(
                op,
                f"{name} has {x.ndim} axes",
                expected=f"at least {count} axes",
                got={name: x},
                fix=f"give it more: {name}[None]" if x.ndim else f"{name}.reshape({'1, ' * count})",
            )


def same_shape(op: str, x: wf.Tensor, target: wf.Tensor) -> None:
    """Refuse a prediction and a target of different shapes, which would broadcast silently."""
    if not wf.staging.same_shape(x.shape, target.shape):
        raise wf.ShapeError(
            op,
            "the prediction and the target have different shapes",
            expected="x.shape == target.shape",
            got={"x": x, "target": target},
            fix="reshape the target: target.reshape(x.shape)",
        )


def refuse_whole_masks(op: str, name: str, mask: wf.Tensor, shown: str) -> None:
    """Refuse 0 and 1 as a mask of attention: added to scores, they would hide nothing."""
    if mask.dtype is not wf.bool and not mask.dtype.is_floating:
        raise wf.DTypeError(
            op,
            "the mask holds whole numbers, which neither hide nor show",
            expected="truth values, or floats that are added to the scores",
            got={name: mask},
            fix=f"{name}={shown}, if 1 is what counts",
        )


def refuse_lists(layer: str, error: AttributeError, args: tuple[Any, ...]) -> None:
    """Explain an attribute that was missed because a layer was called with a list."""
    if isinstance(error.obj, list) and any(error.obj is each for each in args):
        raise wf.ArgumentTypeError(
            layer,
            "a list was given where a tensor is taken",
            expected="a tensor, or a NumPy array",
            got={"argument": error.obj},
            fix="wf.tensor(numbers)",
        ) from None


def parameter_replaced(owner: str, name: str, value: wf.Tensor) -> wf.ArgumentTypeError:
    """The error for a tensor that is no leaf with a gradient, in the place of a parameter."""
    return wf.ArgumentTypeError(
        owner,
        f"the parameter {name} would be replaced by a tensor that is not one",
        expected="a leaf that requires a gradient",
        got={name: value},
        fix=f"wf.nn.Parameter(value), or write to it: with wf.no_grad(): net.{name}.copy_(value)",
    )
