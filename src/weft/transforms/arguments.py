"""Between functions over trees, which users write, and functions over lists of tensors.

>>> from weft.transforms.arguments import flat_function
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.core import trees
from weft.core.errors import ArgumentError, ArgumentTypeError
from weft.core.trees import TreeStructure
from weft.ir.tensor import Tensor
from weft.ops.operands import as_tensor


@dataclass(slots=True)
class FlatFunction:
    """A function over trees as one over its tensors; remembers the structure of its result."""

    f: Callable[..., Any]
    op: str
    template: list[Any]
    structure: TreeStructure
    places: list[int]
    kwargs: dict[str, Any]
    has_aux: bool = False
    out: TreeStructure | None = field(default=None)
    aux: Any = field(default=None)

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Call the function with these tensors in their places."""
        leaves = list(self.template)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        result = self.f(*trees.unflatten(self.structure, leaves), **self.kwargs)
        if self.has_aux:
            result, self.aux = pair(self.op, result)
        result_leaves, self.out = trees.flatten(result)
        return [as_tensor(self.op, leaf, "result") for leaf in result_leaves]

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        """A tree in the form of the function's result."""
        assert self.out is not None
        return trees.unflatten(self.out, leaves)


def pair(op: str, result: Any) -> tuple[Any, Any]:
    """The two parts of a result with `has_aux=True`."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentTypeError(
            op,
            "with has_aux=True the function returns a pair",
            expected="(result, aux)",
            got={"result": result},
            fix="return loss, aux",
        )
    return result


def flat_function(
    op: str,
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    chosen: Sequence[int] | None = None,
    has_aux: bool = False,
) -> tuple[FlatFunction, list[Tensor]]:
    """f over the tensors in the chosen arguments (default: all), and those tensors."""
    leaves, structure = trees.flatten(args)
    starts = _starts(args)
    wanted = range(len(args)) if chosen is None else chosen
    spans = [range(starts[i], starts[i + 1]) for i in wanted]
    places = [place for span in spans for place in span if is_number(leaves[place])]
    tensors = [as_tensor(op, leaves[place]) for place in places]
    flat = FlatFunction(f, op, leaves, structure, places, kwargs or {}, has_aux)
    return flat, tensors


def is_number(leaf: Any) -> bool:
    """Whether a leaf is something that tensors are made of."""
    return isinstance(leaf, (Tensor, bool, int, float, complex)) or hasattr(leaf, "__array__")


def _starts(args: tuple[Any, ...]) -> list[int]:
    starts = [0]
    for argument in args:
        starts.append(starts[-1] + len(trees.leaves(argument)))
    return starts


def argument_numbers(op: str, argnums: int | Sequence[int], count: int) -> list[int]:
    """Positions of arguments, checked and made non-negative."""
    numbers: list[Any] = list(argnums) if isinstance(argnums, (tuple, list)) else [argnums]
    for number in numbers:
        if type(number) is not int or not -count <= number < count:
            raise ArgumentError(
                op,
                "there is no argument at that position",
                expected=f"argnums from 0 to {count - 1}" if count else "a positional argument",
                got={"argnums": argnums},
                fix="argnums=0 for the first argument" if count else "call it with an argument",
            )
    chosen = [number % count for number in numbers]
    if len(set(chosen)) < len(chosen):
        raise ArgumentError(
            op,
            "an argument is named twice",
            expected="each position once",
            got={"argnums": argnums},
            fix=f"argnums={tuple(dict.fromkeys(chosen))}",
        )
    return chosen
