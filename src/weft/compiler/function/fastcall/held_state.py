"""A step that writes all its state where it is: from call to call only its arguments differ.

A training step reads and writes every parameter, moment and gradient. Nearly all of them are
written in place, so that after a call each tensor holds the very array that it held before. While
that is so, and nobody else holds these arrays, a call needs no key, no look at each tensor, and
little is written back: some words of memory are compared in one native call, and the program runs.

The words say of each tensor what it holds, and of each array that is written over how many
references there are to it. No tensor is kept alive; one that is gone ends what is known.

>>> counts_references()
True
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any
from weakref import ref

import numpy as np

from weft.compiler.function.compiled_function import Compiled
from weft.compiler.function.donation import (
    objects_held_once,
    reusable_gradients,
    writable_over,
)
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
from weft.core.records import frozen
from weft.core.settings import settings
from weft.ir.autocast import AUTOCAST
from weft.ir.call_keys import static_key
from weft.ir.dispatch import OBSERVERS
from weft.ir.tape import LEAF_HOOKS
from weft.ir.tensor import Tensor, grad_mode, traces, wrap
from weft.runtime.object_words import DICT, END, LIST, WORD, places

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


@cache
def class_place() -> int:
    """How many bytes into an object its class stands."""
    return places([[], [1]], ctypes.c_int64, lambda x: id(type(x)))[0]


def _word_bytes() -> int:
    return ctypes.sizeof(ctypes.c_int64)


def is_plain(value: Any) -> bool:
    """Whether a value is a number or a text, or a tuple of such."""
    kind = type(value)
    return kind in ATOMS or kind is float or (kind is tuple and all(map(is_plain, value)))


def _references(held: object) -> int:
    """The word of an object that counts references, with those that the question adds."""
    return ctypes.c_int64.from_address(id(held)).value


class HeldState:
    """Containers as they are now, by words of memory; neither they nor tensors are kept alive.

    A container's words come before those of what it holds. So whatever is looked at is there: it is
    given, or held by what was found to be as it was. Another object may be where one was before:
    the class of a list is part of its words, and numbers and other leaves are held, so that no
    other one is where they are.
    """

    def __init__(self, same: Callable[[Array], bool]) -> None:
        self._same = same
        self._memories: list[ref[trees.Memory]] = []
        self._nodes: list[tuple[ref[Any], int]] = []
        """Objects, and the addresses of their attributes."""
        self._leaves: list[Any] = []
        self._words: list[int] = []
        self._table: Array | None = None

    def add(self, value: Any) -> bool:
        """Look at a value from now on; False where it cannot be told whether it changes."""
        kind = type(value)
        if isinstance(value, Tensor):
            return kind is Tensor
        if kind is list:
            self._words += (WORD, id(value) + class_place(), id(list))
            self._words += (LIST, id(value), len(value), *map(id, value))
            return all(map(self.add, value))
        if kind is dict:
            return self._add_dict(value)
        if isinstance(value, tuple) and not is_plain(value):
            return self._add_tuple(value)
        parts = None if is_plain(value) else trees.take_apart(value)
        if parts is None:
            self._leaves.append(value)
            return True
        if parts.memory is not None:
            self._memories.append(ref(parts.memory))
            return True
        if not trees.is_of_attributes(value) or not hasattr(value, "__weakref__"):
            return False
        self._nodes.append((ref(value), id(vars(value))))
        return self._add_dict(vars(value))

    def _add_tuple(self, held: tuple[Any, ...]) -> bool:
        first = id(held) + tuple.__basicsize__
        if ctypes.c_int64.from_address(first).value != id(held[0]):
            return False
        head = id(held) + class_place()
        self._words += (WORD, head, id(type(held)), WORD, head + _word_bytes(), len(held))
        for place, item in enumerate(held):
            self._words += (WORD, first + _word_bytes() * place, id(item))
        return all(map(self.add, held))

    def _add_dict(self, held: dict[Any, Any]) -> bool:
        if not all(map(is_plain, held)):
            return False
        self._leaves += held
        self._words += (WORD, id(held) + class_place(), id(dict))
        self._words += (DICT, id(held), len(held), *map(id, chain.from_iterable(held.items())))
        return all(map(self.add, held.values()))

    def is_unchanged(self) -> bool:
        """Whether all containers hold what they held."""
        for remembered in self._memories:
            memory = remembered()
            if memory is None or not memory.holds():
                return False
        for reference, attributes in self._nodes:
            node = reference()
            if node is None or id(vars(node)) != attributes:
                return False
        if self._table is None:
            self._table = np.array([*self._words, END], np.int64)
        return self._same(self._table)


class HeldStep:
    """A call whose state stays where it is."""

    __slots__ = (
        "_arguments",
        "_autocast",
        "_donated",
        "_ended",
        "_fixed",
        "_found",
        "_hooks",
        "_kept_places",
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
        self._hooks = LEAF_HOOKS.count
        self._arguments, self._outside, self._state = known.arguments, known.outside, known.state
        self._sources, self._renewed, self._moved = known.sources, known.renewed, known.moved
        self._donated: list[Donation] = list(found.donated.values())
        self._kept_places = frozenset(output for output, _ in self._donated)
        """The outputs that are written over the arrays of inputs, whose holders are counted."""
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
                if type(x._value) not in CONCRETE or known != _argument_key(x):
                    return None
                given.append(id(x))
            elif not _is_same(known, x):
                return None
        if not all(map(_is_same, self._outside, outside)):
            return None
        if len({*given}) < len(given) or not self._fixed.isdisjoint(given):
            return None
        if not self._same(self._words) or not self._state.is_unchanged():
            return None
        arrays = [args[s]._value if type(s) is int else s()._value for s in self._sources]  # type: ignore[operator, union-attr]
        written = [arrays[place] for _, place in self._donated]
        written += [owner()._grad._value for _, owner in self._renewed]  # type: ignore[union-attr]
        # memory that was lent to another library has a base from then on
        return arrays if all(array.base is None for array in written) else None

    def _is_same_setting(self) -> bool:
        """Whether programs run as they did: nothing is traced, observed or rewritten."""
        return (
            grad_mode.enabled is self._mode
            and AUTOCAST.get() is self._autocast
            and LEAF_HOOKS.count == self._hooks
            and self._found.program is self._program
            and self._found.rules is self._rules is rewrites()
            and settings.compiler
            and settings.in_place_updates
            and not OBSERVERS
            and not traces.stack
            and traces.keeper is None
        )

    def run(self, arrays: list[Any]) -> Any:
        """Run the program; nearly all its state is written over, and is not written back.

        The list of arrays is empty then: what nobody else holds is memory for later runs.
        """
        reused = [(output, owner()._grad._value) for output, owner in self._renewed]  # type: ignore[union-attr]
        assert self._program is not None
        finished: list[Any] = []
        try:
            outputs = self._program.run(arrays, self._donated, finished, reused)
            arrays.clear()
            self._write_moved(outputs)
        except BaseException:  # a signal right after the run: what it wrote belongs together
            self._write_moved(finished)
            raise
        found = self._found
        if found.result is not None:
            return wrap(outputs[found.result])
        return found.recording.rebuild([wrap(array) for array in outputs])

    def _write_moved(self, outputs: Sequence[Any]) -> None:
        """Put outputs into the tensors whose arrays are other ones after each call.

        Where one is that was to stay where it is, the next call is looked at as a whole again.
        """
        if not outputs:
            return
        replaced: list[Any] = []  # no variable holds what is in it: references are counted
        for output, owner, word in self._moved:
            handle = owner()
            if handle is not None and handle._value is not outputs[output]:
                replaced.append(handle._value)
                handle._value = outputs[output]
                self._words[word] = id(outputs[output])
                if output in self._kept_places:
                    self._ended.append(True)
        for output, owner in self._renewed:
            handle = owner()
            if handle is not None and handle._grad._value is not outputs[output]:  # type: ignore[union-attr]
                handle._grad = wrap(outputs[output])
                self._ended.append(True)
        for old in objects_held_once(replaced) if replaced else ():
            self._program.recycle(old)  # type: ignore[union-attr]


def _argument_key(x: Tensor) -> tuple[Any, ...]:
    """What programs depend on of an argument."""
    value = x._value
    if type(value) is HostArray:
        return value.dtype, value.shape, x._node is None, x._grad is None
    return value.kind, x._node is None, x._grad is None


@frozen(eq=False)
class _At:
    """A container by where it is; what it holds is a matter of words."""

    address: int


def _identity_of(x: Any) -> Any:
    """What an argument is told again by: a reference, where it is, or itself as part of a key."""
    if type(x) in (list, dict) or (isinstance(x, tuple) and not is_plain(x)):
        return _At(id(x))
    return static_key(x) if is_plain(x) or not hasattr(x, "__weakref__") else ref(x)


def _is_same(known: Any, x: Any) -> bool:
    """Whether an argument is the one that was known."""
    if type(known) is ref:
        return known() is x
    if type(known) is _At:
        return known.address == id(x)
    return bool(known == static_key(x))


@dataclass(slots=True)
class _Known:
    """What a call was given: its arguments, variables from outside, and tensors that stay."""

    arguments: list[Any]
    """Of a tensor what programs depend on, of others what they are told again by."""
    outside: list[Any]
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
    is_usual = found.drawn is None and found.runs_plainly(handles)
    if found.program is None or not is_usual or not _is_free(found, handles):
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
    same = comparison()
    assert same is not None
    state, arguments = HeldState(same), list[Any]()
    for x in args:
        if type(x) is not Tensor and not state.add(x):
            return None
        arguments.append(_argument_key(x) if type(x) is Tensor else _identity_of(x))
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
    held = [*map(_identity_of, outside)]
    return _Known(arguments, held, state, [*fixed.values()], sources, renewed, [])
