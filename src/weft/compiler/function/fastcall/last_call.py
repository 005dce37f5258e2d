"""A call that is just like the last one: found without a key.

Even a quick key names dtype and shape of each of a module's tensors, and takes as long as a small
program runs. While a module is as it was, which it remembers, and its tensors hold the same arrays,
nothing about them needs to be asked again: some words of memory are compared in one native call
(`memory_words.py`). What else is given is looked at piece by piece.

Nothing is kept alive. An array that is gone ends what is known, so that another one in its place is
not taken for it.

>>> import weft as wf
>>> f, x = wf.jit(lambda x, n: x * n), wf.ones(3)
>>> first, second = f(x, 2), f(x, 2)
>>> known_call((x, 2), (), [x], next(iter(f._compiled.values()))).handles((x, 2), ()) == [x]
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

from weft.compiler.function.compiled_function import Compiled
from weft.compiler.function.fastcall.memory_words import comparison, tensor_words
from weft.compiler.function.fastcall.quick_key import ATOMS, collect
from weft.core import trees
from weft.core.arrays import HostArray, is_host
from weft.core.sharing import is_lent
from weft.ir.autocast import AUTOCAST
from weft.ir.tape import LEAF_HOOKS
from weft.ir.tensor import Tensor, grad_mode


@dataclass(slots=True)
class _Remembered:
    """An object, such as a module, that remembers which tensors it holds."""

    owner: ref[Any]
    memory: ref[trees.Memory]


@dataclass(slots=True)
class _Other:
    """Anything else, by what is part of a call's key."""

    key: list[Any]


class KnownCall:
    """What the arguments of a call were, and the program that it ran."""

    __slots__ = (
        "_autocast", "_described", "_ended", "_fixed", "_hooks", "_is_pure", "_mode", "_places",
        "_quick", "_refs", "_same", "_words", "found",
    )  # fmt: skip

    def __init__(
        self,
        described: list[Any],
        fixed: list[Tensor],
        handles: Sequence[Tensor],
        found: Compiled,
    ) -> None:
        same = comparison()
        assert same is not None
        self.found, self._described, self._is_pure = found, described, found.is_pure(handles)
        self._same = same
        self._mode, self._autocast = grad_mode.enabled, AUTOCAST.get()
        self._hooks = LEAF_HOOKS.count
        are_all = found.places == [*range(len(handles))]
        self._places = None if are_all else found.places
        find = getattr(found.program, "quick_call", None)
        inputs = handles if found.places is None else [handles[place] for place in found.places]
        self._quick = None if find is None else find([x._value for x in inputs])
        """What runs the program with less work, or declines."""
        self._fixed = frozenset(map(id, fixed))
        self._words = tensor_words(fixed)
        ended: list[bool] = []
        self._ended = ended
        self._refs = [ref(x._value, lambda _: ended.append(True)) for x in fixed]

    def handles(self, args: tuple[Any, ...], outside: Sequence[Any]) -> list[Tensor] | None:
        """The tensors of a call, if it is just like the one that is known."""
        values = (*args, *outside) if outside else args
        if len(values) != len(self._described) or grad_mode.enabled is not self._mode:
            return None
        if AUTOCAST.get() is not self._autocast or LEAF_HOOKS.count != self._hooks:
            return None
        handles: list[Tensor] = []
        given: list[Tensor] = []
        for x, known in zip(values, self._described, strict=True):
            if type(x) is Tensor:
                value = x._value
                if type(value) is not HostArray or known != (
                    (value.dtype, value.shape, x._node is None, x._grad is None)
                ):
                    return None
                handles.append(x)
                given.append(x)
            elif type(known) is _Remembered:
                memory = known.memory() if known.owner() is x else None
                if memory is None or not memory.holds():
                    return None
                handles += memory.children
            elif type(known) is _Other:
                inner = _tensors_inside(x, known)
                if inner is None:
                    return None
                handles += inner
                given += inner
            elif len(known) != 2 or known != (type(x), x):
                return None
        return handles if self._are_distinct(given) else None

    def _are_distinct(self, given: Sequence[Tensor]) -> bool:
        """Whether no tensor is given twice, and those of modules hold what they held."""
        same = [*map(id, given)]
        if self._ended or not self._fixed.isdisjoint(same) or not self._same(self._words):
            return False
        return len(same) < 2 or len({*same}) == len(same)

    def run(self, handles: Sequence[Tensor]) -> Any:
        """Run the program."""
        found = self.found
        if not self._is_pure:
            return found(handles)
        arrays, places = [x._value for x in handles], self._places
        if places is not None:
            arrays = [arrays[n] for n in places]
        quick = self._quick
        if quick is not None and found.is_ready():
            outputs = quick(arrays)
            if outputs is not None:
                return found.returned_value(outputs)
        return found.apply(arrays)


def _tensors_inside(x: Any, known: _Other) -> list[Tensor] | None:
    """The tensors in an argument, if all that a key says of it is as it was."""
    key: list[Any] = []
    handles: list[Tensor] = []
    return handles if collect((x,), key, handles) and key == known.key else None


def known_call(
    args: tuple[Any, ...], outside: Sequence[Any], handles: Sequence[Tensor], found: Compiled
) -> KnownCall | None:
    """What can be told again of a call with these tensors; None where that is not possible."""
    described: list[Any] = []
    fixed: list[Tensor] = []
    if comparison() is None:
        return None
    for x in (*args, *outside):
        if type(x) is Tensor:
            value = x._value
            described.append((value.dtype, value.shape, x._node is None, x._grad is None))
        elif type(x) in ATOMS:
            described.append((type(x), x))
        elif (parts := trees.take_apart(x)) is not None and parts.memory is not None:
            described.append(_Remembered(ref(x), ref(parts.memory)))
            fixed += parts.children
        else:
            described.append(_Other([]))
            collect((x,), described[-1].key, [])
    can_be_known = _can_be_known(fixed, handles, found)
    return KnownCall(described, fixed, handles, found) if can_be_known else None


def _can_be_known(fixed: Sequence[Tensor], handles: Sequence[Tensor], found: Compiled) -> bool:
    """Whether what modules hold can be told again, and is not what the call changes."""
    are_arrays = all(type(x) is Tensor and is_host(x._value) for x in (*fixed, *handles))
    if not are_arrays or len({*map(id, handles)}) != len(handles):
        return False
    if any(is_lent(x._value) for x in fixed):
        return False
    written = {id(write.source.owner(handles)) for write in found.recording.writes}
    return written.isdisjoint(map(id, fixed))
