"""Parts: tensors that show elements of another tensor, and why they are not written to.

Tensors are values: a write gives one handle another value. What `x[0]`, `x.T` or `x.reshape(-1)`
return has a handle of its own, so a write to it would not reach x, without a word. A part
therefore knows the tensors that it was taken from, by weak references. While one of them is alive,
and the loss could be seen, assigning into the part and its in-place methods are refused.

>>> import weft as wf
>>> x = wf.zeros((2, 3))
>>> try:
...     x[0].fill_(1.0)
... except wf.ArgumentError as error:
...     print(error.fix)
x[0] = value, or part = x[0].clone() where the whole is to stay as it is
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Any
from weakref import ref

from weft.core.errors import ArgumentError
from weft.ir.tensor import Tensor

CHOSEN = "chosen"
"""How a tensor that may be another one, as a traced test says, is a part of that."""

VALUES: dict[str, str] = {"zero_": "0", "fill_": "value"}
"""What an in-place method writes, as it stands in an assignment; others write `values`."""


def as_part(result: Tensor, whole: Tensor, how: Any) -> Tensor:
    """A result, marked as a part of a tensor.

    how: the part's key, an expression in x, or a function that gives either, and its options.
    """
    if result is not whole:
        result._origin = (ref(whole), how, living_origin(whole._origin))
    return result


def as_choice(result: Tensor, sources: Sequence[Tensor]) -> None:
    """Mark a tensor that is one of others, if a traced test says so, and them.

    In Python it would be the same object, and what is written to one could be read from the other.
    """
    for source in sources:
        if source is not result:
            result._origin = (ref(source), CHOSEN, living_origin(result._origin))
            source._origin = (ref(result), CHOSEN, living_origin(source._origin))


def possible_origins(origin: Any) -> list[Tensor]:
    """The living tensors that a tensor with this origin may be."""
    tensors = []
    while origin is not None:
        tensor = origin[0]() if origin[1] is CHOSEN else None
        tensors += [] if tensor is None else [tensor]
        origin = origin[2]
    return tensors


def refuse_choice(op: str, tensor: Tensor) -> None:
    """Refuse any write to a tensor that may be another one, which is alive."""
    others = possible_origins(tensor._origin)
    if others:
        raise ArgumentError(
            op,
            "whether this is the same tensor as another one depends on a traced tensor",
            expected="a write to a tensor that is one and the same, whatever the test says",
            got={"x": tensor, "other": others[0]},
            fix="give it a value of its own: x = x + 1 in place of x += 1, or y = x.clone()",
        )


def living_origin(origin: Any) -> Any:
    """The first origin in the chain whose tensor is alive, with the origins behind it.

    So a chain of parts, each of the one before, does not grow with its length.
    """
    while origin is not None and origin[0]() is None:
        origin = origin[2]
    return origin


def refuse_part(op: str, tensor: Tensor, key: Any = None) -> None:
    """Refuse a write to a part of a tensor that is alive; `key` is that of an assignment."""
    origin = living_origin(tensor._origin)
    if origin is None:
        return
    refuse_choice(op, tensor)
    near = origin is tensor._origin
    raise ArgumentError(
        op,
        "a part of another tensor was written to",
        expected="a write to the whole tensor, or to a tensor of its own",
        got={"part": tensor, "whole": origin[0]()},
        fix=_advice(op, _description_of(origin[1]) if near else None, key),
    )


def _description_of(how: Any) -> Any:
    """How a part was taken, as a key or an expression."""
    if type(how) is tuple and len(how) == 2 and callable(how[0]):
        return how[0](**how[1])
    return how


def _advice(op: str, how: Any, key: Any) -> str:
    if how is None:
        return "write to the whole by its own index, as in x[0, 1] = value, or to part.clone()"
    if how == "x.detach()":
        write = "x[i] = value" if op == "setitem" else f"x.{op}()"
        return f"with wf.no_grad(): {write}, or part = x.detach().clone()"
    part_text = how if isinstance(how, str) else f"x[{_text(how)}]"
    assignment = _whole_write(op, how, key)
    if assignment is None:
        steps = f"part = {part_text}.clone(), write to part, then {_put_back(how)}"
        return f"{steps}; leave that out where x is to stay as it is"
    return f"{assignment}, or part = {part_text}.clone() where the whole is to stay as it is"


def _whole_write(op: str, how: Any, key: Any) -> str | None:
    """The same write as one assignment to the whole; None where it takes more."""
    if isinstance(how, str):
        return None
    if op != "setitem":
        return f"x[{_text(how)}] = {VALUES.get(op, 'values')}"
    indices = how if type(how) is tuple else (how,)
    further = key if type(key) is tuple else (key,)
    if all(type(index) is int for index in indices) and all(_is_plain(k) for k in further):
        return f"x[{_text((*indices, *further))}] = value"
    return None


def _put_back(how: Any) -> str:
    if not isinstance(how, str):
        return f"x[{_text(how)}] = part"
    if how == "x.T":
        return "x.copy_(part.T)"
    if how.startswith("x.reshape"):
        return "x.copy_(part.reshape(x.shape))"
    return "write part to x by an index of x"


def _is_plain(index: Any) -> bool:
    return index is None or type(index) in (int, slice, EllipsisType)


def _text(key: Any) -> str:
    """A key as it is written between brackets."""
    if type(key) is tuple:
        return ", ".join(map(_text, key)) + ("," if len(key) == 1 else "")
    if key is Ellipsis:
        return "..."
    if type(key) is slice:
        ends = [_text(end) if end is not None else "" for end in (key.start, key.stop, key.step)]
        return ":".join(ends if ends[2] else ends[:2])
    return repr(key) if _is_plain(key) else "i"
