"""`vmap`: a function of one element, applied to a whole batch at once.

>>> import weft as wf
>>> dot = lambda a, b: (a * b).sum()
>>> wf.vmap(dot, in_axes=(0, None))(wf.ones((3, 2)), wf.tensor([1.0, 2.0])).tolist()
[3.0, 3.0, 3.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from weft.core import trees
from weft.core.errors import ArgumentError, AxisError, ShapeError
from weft.core.shapes import Dimension, equal, normalize_axis
from weft.ir import batching
from weft.ir.tensor import Tensor
from weft.ops.operands import check_function
from weft.transforms.arguments import FlatFunction, flat_function

__all__ = ["vmap"]

Axes = Any
"""An axis, None, or a tree of them that is a prefix of the argument's tree."""


def vmap(
    f: Callable[..., Any],
    in_axes: Axes = 0,
    out_axes: Axes = 0,
    *,
    axis_size: int | None = None,
    axis_name: str | None = None,
) -> Callable[..., Any]:
    """A function that applies f to each element along an axis of its arguments.

    in_axes: the axis of each argument (None: the same for all elements), for all arguments, per
    argument, or as trees. out_axes: where the axis stands in the results.
    Keyword arguments are mapped along axis 0.
    axis_name: a mesh axis whose shards the elements are, so that collectives over it run inside.

    >>> import weft as wf
    >>> vmap(wf.sum, in_axes=1)(wf.ones((2, 3))).tolist()
    [2.0, 2.0, 2.0]
    >>> total = lambda x: wf.distributed.all_reduce(x, "data")
    >>> vmap(total, axis_name="data")(wf.tensor([1.0, 2.0])).tolist()
    [3.0, 3.0]
    """
    check_function("vmap", f)

    @wraps(f)
    def map_over_batch(*args: Any, **kwargs: Any) -> Any:
        axes = _argument_axes(in_axes, args) + [0] * len(trees.leaves(kwargs))
        flat, tensors = flat_function("vmap", lambda a, k: f(*a, **k), (args, kwargs))
        tensors = _without_shared_numbers(flat, tensors, axes)
        chosen = [axes[place] for place in flat.places]
        positions = [_position(x, axis) for x, axis in zip(tensors, chosen, strict=True)]
        size = _batch_size(tensors, positions, axis_size)
        results = batching.vmap(flat, size, tensors, positions, axis_name)
        targets = _axis_per_leaf(out_axes, flat.rebuild([x for x, _ in results]), "out_axes")
        return flat.rebuild(
            [
                _place_batch_axis(size, *pair, target)
                for pair, target in zip(results, targets, strict=True)
            ]
        )

    return map_over_batch


def _without_shared_numbers(
    flat: FlatFunction, tensors: Sequence[Tensor], axes: Sequence[int | None]
) -> list[Tensor]:
    """The tensors but for those of Python numbers that all elements share.

    The function gets these as they are: as tensors they would have the default dtype, and fewer
    digits than beside float64.
    """
    kept = [
        (place, tensor)
        for place, tensor in zip(flat.places, tensors, strict=True)
        if axes[place] is not None or type(flat.template[place]) not in (bool, int, float, complex)
    ]
    flat.places = [place for place, _ in kept]
    return [tensor for _, tensor in kept]


def _argument_axes(in_axes: Axes, args: tuple[Any, ...]) -> list[int | None]:
    if isinstance(in_axes, (tuple, list)) and len(in_axes) != len(args):
        raise ArgumentError(
            "vmap",
            "in_axes does not have one entry per argument",
            expected=f"{len(args)} entries",
            got={"in_axes": in_axes},
            fix="give one axis or None for each positional argument",
        )
    wanted = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    return _axis_per_leaf(wanted, args, "in_axes")


def _axis_per_leaf(axes: Axes, tree: Any, name: str) -> list[int | None]:
    """One axis per leaf of a tree, from a tree of axes that is a prefix of it."""
    if axes is None or isinstance(axes, int):
        return [axes] * len(trees.leaves(tree))
    if isinstance(axes, dict) and isinstance(tree, dict) and axes.keys() == tree.keys():
        keys = trees.leaves({key: key for key in tree})
        return [a for key in keys for a in _axis_per_leaf(axes[key], tree[key], name)]
    sequences = isinstance(axes, (tuple, list)) and isinstance(tree, (tuple, list))
    if sequences and len(axes) == len(tree):
        pairs = zip(axes, tree, strict=True)
        return [a for axis, part in pairs for a in _axis_per_leaf(axis, part, name)]
    raise ArgumentError(
        "vmap",
        f"{name} does not fit the structure it describes",
        expected="an axis, None, or a tree of them that is a prefix of the argument's",
        got={name: axes},
        fix=f"use {name}=0, or one entry for each part",
    )


def _position(tensor: Tensor, axis: Any) -> int | None:
    if axis is None:
        return None
    if not isinstance(axis, int) or not -tensor.ndim <= axis < tensor.ndim:
        raise AxisError(
            "vmap",
            "an argument does not have the axis that is mapped over",
            expected=f"an axis from {-tensor.ndim} to {tensor.ndim - 1}, or None",
            got={"argument": tensor, "in_axes": axis},
            fix="in_axes=(0, None) where the first argument alone has a batch axis",
        )
    return axis % tensor.ndim


def _batch_size(
    tensors: Sequence[Tensor], axes: Sequence[int | None], given: int | None
) -> Dimension:
    sizes = [x.shape[axis] for x, axis in zip(tensors, axes, strict=True) if axis is not None]
    sizes = sizes if given is None else [given, *sizes]
    if not sizes:
        raise ArgumentError(
            "vmap",
            "no argument has a batch axis",
            expected="at least one entry of in_axes that is not None",
            got={"in_axes": list(axes)},
            fix="map over an argument, or pass axis_size=",
        )
    if not all(equal(sizes[0], size) for size in sizes[1:]):
        raise ShapeError(
            "vmap",
            "arguments have batches of different sizes",
            expected="one size along all mapped axes",
            got={f"argument {i}": x for i, x in enumerate(tensors) if axes[i] is not None},
            note=" != ".join(str(size) for size in dict.fromkeys(sizes)),
            fix="slice the arguments to one size, or map fewer of them with in_axes=None",
        )
    return sizes[0]


def _place_batch_axis(
    size: Dimension, tensor: Tensor, axis: int | None, target: int | None
) -> Tensor:
    """A result with its batch axis where out_axes wants it."""
    if target is None:
        if axis is not None:
            raise ArgumentError(
                "vmap",
                "a result with out_axes=None varies along the batch",
                expected="a result that is the same for all elements",
                got={"result": tensor},
                fix="use out_axes=0",
            )
        return tensor
    if axis is None:
        tensor, axis = batching.to_front(size, tensor, None), 0
    place = normalize_axis("vmap", target, tensor.ndim, {"result": tensor})
    return batching.move_axis(tensor, axis, place)
