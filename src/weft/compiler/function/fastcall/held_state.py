"""A step that writes all its state where it is: from call to call only its arguments differ.

A training step reads and writes every parameter, moment and gradient. On a card all of them are
written in place, so that after a call each tensor holds the very array that it held before. While
that is so, and nobody else holds these arrays, a call needs no key, no look at each tensor, and
little is written back: some words of memory are compared in one native call, and the program runs.

The words say of each tensor what it holds, and of each array that is written over how many
references there are to it. Nothing is kept alive; a tensor that is gone ends what is known.

>>> counts_references()
True
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from weakref import ref

import numpy as np

from weft.compiler.function.compiled_function import Compiled
from weft.compiler.function.donation import reusable_gradients, writable_over
from weft.compiler.function.fastcall.memory_words import (
    VALUES,
    comparison,
    tensor_slots,
    tensor_words,
)
from weft.compiler.function.fastcall.quick_key import ATOMS
from weft.compiler.function.recording import Write
from weft.compiler.graph_passes.user_rules import rewrites
from weft.compiler.targets.target import Donation
from weft.core import trees
from weft.core.arrays import CONCRETE, HostArray
from weft.core.settings import settings
from weft.core.unchanged import Contents
from weft.ir.autocast import AUTOCAST
from weft.ir.dispatch import OBSERVERS
from weft.ir.tensor import Tensor, grad_mode, traces, wrap
from weft.runtime.object_words import END, WORD

Array = np.ndarray[Any, Any]


@cache
def counts_references() -> bool:
    """Whether the first word of an object counts the references to it."""
    if platform.python_implementation() != "CPython":
        return False
    held = [Tensor.__new__(Tensor)]
    first = _references(held[0])
    held.append(held[0])
    second = _references(held[0])
    held.pop()
    return (second, _references(held[0])) == (first + 1, first)


def _references(held: object) -> int:
    """The word of an object that counts references, with those that the question adds."""
    return ctypes.c_int64.from_address(id(held)).value


class HeldState:
    """Containers and tensors as they are now."""

    def __init__(self) -> None:
        self.contents = Contents()
        self.memories: list[ref[trees.Memory]] = []

    def add(self, value: Any) -> bool:
        """Look at a value from now on; False where it cannot be told whether it changes."""
        kind = type(value)
        if kind in ATOMS or kind is float or isinstance(value, Tensor):
            return kind is Tensor or not isinstance(value, Tensor)
        if kind is tuple:
            return all(map(self.add, value))
        if kind is list or kind is dict:
            self.contents.add(value)
            return all(map(self.add, value.values() if kind is dict else value))
        parts = trees.take_apart(value)
        if parts is None:
            return True  # a leaf, which whoever holds it compares by identity
        if parts.memory is not None:
            self.memories.append(ref(parts.memory))
            return True
        if not trees.is_of_attributes(value):
            return False
        self.contents.add(vars(value))
        return all(map(self.add, parts.children))

    def is_unchanged(self) -> bool:
        """Whether all containers hold what they held."""
        for remembered in self.memories:
            memory = remembered()
            if memory is None or not memory.holds():
                return False
        return self.contents.is_unchanged()


class HeldStep:
    """A call whose state stays where it is."""

    __slots__ = (
        "_arguments",
        "_autocast",
        "_donated",
        "_ended",
        "_fixed",
        "_found",
        "_mode",
        "_moved",
        "_outside",
        "_program",
        "_refs",
        "_renewed",
        "_rules",
        "_same",
        "_sources",
        "_state",
        "_words",
    )  # fmt: skip

    def __init__(self, found: Compiled, known: _Known, words: Array) -> None:
        same = comparison()
        assert same is not None
        self._found, self._program, self._rules = found, found.program, found.rules
        self._mode, self._autocast = grad_mode.enabled, AUTOCAST.get()
        self._arguments, self._outside, self._state = known.arguments, known.outside, known.state
        self._sources, self._renewed, self._moved = known.sources, known.renewed, known.moved
        self._donated: list[Donation] = list(found.donated.values())
        self._same, self._words = same, words
        ended: list[bool] = []
        self._ended = ended
        self._refs = [ref(x, lambda _: ended.append(True)) for x in known.fixed]
        self._fixed = frozenset(map(id, known.fixed))

    def arrays(self, args: tuple[Any, ...], outside: Sequence[Any]) -> list[Any] | None:
        """The arrays of all inputs of a call, if only its arguments differ from the known one."""
        if self._ended or not self._is_same_setting() or len(args) != len(self._arguments):
            return None
        given: list[int] = []
        for x, known in zip(args, self._arguments, strict=True):
            if type(x) is Tensor:
                value = x._value
                if type(value) is HostArray or type(value) not in CONCRETE:
                    return None
                if known != (value.kind, x._node is None, x._grad is None):
                    return None
                given.append(id(x))
            elif (known() is not x) if type(known) is ref else known != (type(x), x):
                return None
        for x, read in zip(outside, self._outside, strict=True):
            if read() is not x:
                return None
        if len({*given}) < len(given) or not self._fixed.isdisjoint(given):
            return None
        if not self._same(self._words) or not self._state.is_unchanged():
            return None
        return [args[s]._value if type(s) is int else s()._value for s in self._sources]  # type: ignore[operator, union-attr]

    def _is_same_setting(self) -> bool:
        """Whether programs run as they did: nothing is traced, observed or rewritten."""
        return (
            grad_mode.enabled is self._mode
            and AUTOCAST.get() is self._autocast
            and self._found.program is self._program
            and self._found.rules is self._rules is rewrites()
            and settings.compiler
            and settings.in_place_updates
            and not OBSERVERS
            and not traces.stack
            and traces.keeper is None
        )

    def run(self, arrays: Sequence[Any]) -> Any:
        """Run the program; nearly all its state is written over, and is not written back."""
        reused = [(output, owner()._grad._value) for output, owner in self._renewed]  # type: ignore[union-attr]
        assert self._program is not None
        outputs = self._program.run(arrays, self._donated, None, reused)
        for output, owner, word in self._moved:
            array = outputs[output]
            owner()._value = array  # type: ignore[union-attr]
            self._words[word] = id(array)
        found = self._found
        if found.result is not None:
            return wrap(outputs[found.result])
        return found.recording.rebuild([wrap(array) for array in outputs])


@dataclass(slots=True)
class _Known:
    """What a call was given: its arguments, variables from outside, and tensors that stay."""

    arguments: list[Any]
    """Of a tensor its kind, of an object a reference, of a number itself and its class."""
    outside: list[Callable[[], Any]]
    state: HeldState
    fixed: list[Tensor]
    sources: list[int | ref[Tensor]]
    """For each input of the program: which argument it is, or what holds it."""
    renewed: list[tuple[int, ref[Tensor]]]
    """The outputs that are gradients, and the tensors that these are of."""
    moved: list[tuple[int, ref[Tensor], int]]
    """Outputs that tensors hold from then on, the tensors, and where words say what they hold."""


def held_step(
    args: tuple[Any, ...], outside: Sequence[Any], handles: Sequence[Tensor], found: Compiled
) -> HeldStep | None:
    """What can be told again of a call that was made just now; None where its state moves."""
    if comparison() is None or not counts_references() or not settings.in_place_updates:
        return None
    if found.program is None or found.drawn is not None or not _is_free(found, handles):
        return None
    known = _describe(args, outside, handles, found)
    if known is None or not _follow(known, found, handles):
        return None
    words = [*tensor_words(known.fixed)[:-1].tolist()]
    slots = tensor_slots()
    assert slots is not None
    counted: list[int] = []
    for _, owner in known.renewed:
        gradient = owner()._grad  # type: ignore[union-attr]
        words += (WORD, id(gradient) + slots[VALUES.index("value")], id(gradient._value))  # type: ignore[union-attr]
        counted += (id(gradient), id(gradient._value))  # type: ignore[union-attr]
        gradient = None
    for place in found.donated:
        counted.append(id(found.recording.sources[place].read(handles)._value))
    for address in counted:  # none of them is held by this function any more
        words += (WORD, address, ctypes.c_int64.from_address(address).value)
    return HeldStep(found, known, np.array([*words, END], np.int64))


def _is_free(found: Compiled, handles: Sequence[Tensor]) -> bool:
    """Whether nobody else holds what a call may write over."""
    arrays = [source.read(handles)._value for source in found.recording.sources]
    types = found.recording.graph.output_types
    if len(reusable_gradients(found.renewed, handles, types)) < len(found.renewed):
        return False
    return len(writable_over(arrays, found.donated)) == len(found.donated)


def _follow(known: _Known, found: Compiled, handles: Sequence[Tensor]) -> bool:
    """Note which writes put another array into a tensor; False where one is of another kind."""
    inputs = dict(found.donated.values())
    renewed = {output for output, _ in known.renewed}
    numbers = {id(x): number for number, x in enumerate(known.fixed)}
    for write in found.recording.writes:
        owner = write.source.owner(handles)
        if owner is None or write.source.is_counter or id(owner) not in numbers:
            return False
        if write.source.gradient:
            is_cleared = write.output is None and owner._grad is None
            if not is_cleared and write.output not in renewed:
                return False
        elif write.output is None:
            return False
        elif not _is_in_place(found, write, owner, inputs):
            word = 3 * (len(VALUES) * numbers[id(owner)] + VALUES.index("value")) + 2
            known.moved.append((write.output, ref(owner), word))
    return True


def _is_in_place(found: Compiled, write: Write, owner: Tensor, inputs: Mapping[int, int]) -> bool:
    """Whether a write changes the elements of an array alone: the tensor holds no other one."""
    assert write.output is not None
    place = inputs.get(write.output)
    if place is None or not found.recording.sources[place].is_same_place(write.source):
        return False
    array, kind = owner._value, found.recording.graph.output_types[write.output]
    is_alike = array.dtype == kind.dtype.numpy and array.shape == kind.shape
    return type(array) is not HostArray and array.base is None and is_alike


def _describe(
    args: tuple[Any, ...], outside: Sequence[Any], handles: Sequence[Tensor], found: Compiled
) -> _Known | None:
    """What a call was given; None where it cannot be told again."""
    state, arguments = HeldState(), list[Any]()
    for x in args:
        if type(x) is Tensor:
            if getattr(x._value, "kind", None) is None:
                return None
            arguments.append((x._value.kind, x._node is None, x._grad is None))
        elif type(x) in ATOMS:
            arguments.append((type(x), x))
        elif state.add(x) and hasattr(x, "__weakref__"):
            arguments.append(ref(x))
        else:
            return None
    if not all(map(state.add, outside)):
        return None
    given = {id(x): place for place, x in enumerate(args) if type(x) is Tensor}
    sources: list[int | ref[Tensor]] = []
    fixed = {id(x): x for x in handles if id(x) not in given}
    for source in found.recording.sources:
        owner = source.owner(handles)
        if owner is None or source.gradient:
            return None
        place = given.get(id(owner))
        sources.append(ref(owner) if place is None else place)
        if place is None:
            fixed[id(owner)] = owner
    owners = [(output, source.owner(handles)) for source, output in found.renewed]
    renewed = [(output, ref(owner)) for output, owner in owners if owner is not None]
    held: list[Callable[[], Any]] = [
        ref(x) if hasattr(x, "__weakref__") else partial(_itself, x) for x in outside
    ]
    return _Known(arguments, held, state, [*fixed.values()], sources, renewed, [])


def _itself(x: Any) -> Any:
    return x
