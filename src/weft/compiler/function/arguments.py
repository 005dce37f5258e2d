"""Calls taken apart: the tensors in their arguments, and the key that finds their program.

The key says what programs depend on, sizes apart. It takes time to make, so a call that is made
again is found by other ways before (`fastcall/`).

>>> import weft as wf
>>> x = wf.ones((2, 3))
>>> call, again, other = (read_call(({"a": x, "n": n},), {}, []) for n in (3, 3, 4))
>>> call.handles == [x], call.key == again.key, call.key == other.key
(True, True, False)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import gcd
from typing import Any

import numpy as np

from weft.compiler.function.compiled_function import Compiled
from weft.compiler.function.recording import Recording
from weft.core import trees
from weft.core.arrays import can_compute_on, check_one_device, is_concrete
from weft.core.devices import CPU, Device, as_device
from weft.core.dimensions import guard_holds, symbols_in
from weft.core.errors import ArgumentTypeError, UnsupportedError
from weft.core.guards import Guard
from weft.core.records import frozen
from weft.core.shapes import Dim, Dimension, match_size, symbol
from weft.core.types import TensorType
from weft.ir.autocast import AUTOCAST
from weft.ir.call_keys import number_key, static_key
from weft.ir.tape import node_key
from weft.ir.tensor import Tensor, grad_mode, traces
from weft.ops.operands import as_tensor

PROGRAMS = 64
"""How many compiled forms of one function are kept: a bound on memory, on any machine."""


@dataclass(slots=True)
class Call:
    """A call taken apart: the tensor handles in its arguments, and the key of its program.

    `family` is the key without the sizes, `kind` that without what is there of gradients.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    handles: list[Tensor]
    kind: Hashable
    device: Device = CPU
    """Where it is computed."""
    family: Hashable = field(init=False)
    key: Hashable = field(init=False)

    def __post_init__(self) -> None:
        self.distinguish(frozenset())

    def distinguish(self, looked_at: frozenset[int]) -> None:
        """Let it matter whether these arguments have a gradient."""
        cleared = [self.handles[position]._grad is None for position in sorted(looked_at)]
        self.family = (self.kind, *cleared) if cleared else self.kind
        self.key = (self.family, *[handle._value.shape for handle in self.handles])

    def fixed_inputs(self, recording: Recording) -> tuple[int, ...]:
        """The inputs of a recording that are likely to be the same in many calls, by position.

        They are what objects hold, such as modules, and what the function closes over, where the
        call does not write it. While a call trains what it reads, memory is worth more than time,
        and a call whose derivative may be asked for is run by the tape.
        """
        taped = any(handle._node is not None for handle in self.handles)
        if taped and grad_mode.enabled and recording.differentiable:
            return ()
        written = [write.source for write in recording.writes]
        owners = [source.owner(self.handles) for source in written]
        if any(owner is not None and owner.requires_grad for owner in owners):
            return ()
        given = trees.leaves((self.args, self.kwargs), trees.is_registered)
        passed = {id(leaf) for leaf in given if isinstance(leaf, Tensor)}
        return tuple(
            position
            for position, source in enumerate(recording.sources)
            if not source.gradient
            and (source.argument is not None or source.handle is not None)
            and not any(map(source.is_same_place, written))
            and id(source.owner(self.handles)) not in passed
        )


@frozen
class General:
    """A program for all sizes that give the answers which its function was traced with."""

    types: Sequence[TensorType]
    guards: Sequence[Guard]
    made: Compiled

    def takes(self, types: Sequence[TensorType]) -> bool:
        """Whether it is right for these sizes."""
        sizes = sizes_of(self.types, types)
        return sizes is not None and all(guard_holds(guard, sizes) for guard in self.guards)


@dataclass(slots=True)
class Family:
    """Calls that differ in sizes only: sizes with programs of their own, and programs for all."""

    own: list[list[TensorType]]
    """The first sizes seen."""
    programs: list[General] = field(default_factory=list)
    fixed: bool = False
    """Whether the function must know its sizes."""

    def find(self, types: Sequence[TensorType]) -> Compiled | None:
        """A program that takes these sizes."""
        return next((each.made for each in self.programs if each.takes(types)), None)

    def grant_own(self, types: list[TensorType], most: int) -> bool:
        """Whether these sizes have a program of their own, as the first `most` that ask get one."""
        if types not in self.own:
            if len(self.own) >= most:
                return False
            self.own.append(types)
        return True

    def add(self, program: General) -> None:
        """Keep one more program, and not too many of them."""
        self.programs = [*self.programs, program][-PROGRAMS:]

    def generalize_types(
        self, types: Sequence[TensorType], factor: int = 1
    ) -> list[TensorType] | None:
        """The types with a symbol for each dimension that was seen with another size.

        Dimensions that changed alike are one symbol, which is two where they differ later. Sizes of
        0 and 1 broadcast, and stay numbers. factor: new symbols stand for multiples of it, or of
        what it has in common with the sizes.
        """
        if self.fixed:
            return None
        known = self._known_types()
        taken = {name for old in known for dim in old.shape for name in symbols_in(dim)}
        symbols = _Symbols(taken, factor)
        shapes = []
        for old, new in zip(known, types, strict=True):
            pairs = list(zip(old.shape, new.shape, strict=True))
            if any(a != b and (b in (0, 1) or a in (0, 1)) for a, b in pairs):
                return None
            shapes.append(tuple(a if a == b else symbols.symbol_of(a, b) for a, b in pairs))
        return [new.with_shape(shape) for new, shape in zip(types, shapes, strict=True)]

    def _known_types(self) -> Sequence[TensorType]:
        return self.programs[-1].types if self.programs else self.own[0]

    def reason(self, types: Sequence[TensorType], general: Sequence[TensorType]) -> str:
        """What changed, in words."""
        if [*general] == [*self._known_types()]:
            sizes = sizes_of(general, types) or {}
            told = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            return f"sizes that the function tells apart: {told}"
        changed = [
            f"axis {axis} of tensor {position}: {a} then {b}"
            for position, (old, new) in enumerate(zip(self._known_types(), types, strict=True))
            for axis, (a, b) in enumerate(zip(old.shape, new.shape, strict=True))
            if a != b
        ]
        return "a second size: " + ", ".join(changed)


class _Symbols:
    """The symbols of dimensions that were seen with other sizes, by what they were and are."""

    def __init__(self, taken: set[str], factor: int) -> None:
        self._taken, self._most = taken, factor
        self._known: dict[tuple[Dimension, Dimension], Dimension] = {}

    def symbol_of(self, old: Dimension, new: Dimension) -> Dimension:
        """That of all that changed alike: the one they had, but where others keep it a new one."""
        known = self._known.get((old, new))
        if known is None:
            known = self._known[old, new] = self._new_symbol(old, new)
        return known

    def _new_symbol(self, old: Dimension, new: Dimension) -> Dimension:
        fits = isinstance(old, Dim) and int(new) % _factor(old) == 0
        if fits and old not in self._known.values():
            return old
        name = next(name for name in (f"n{k}" for k in count()) if name not in self._taken)
        self._taken.add(name)
        return symbol(name) * gcd(_factor(old), int(new), self._most)


def _factor(dim: Dimension) -> int:
    """The greatest number that a dimension is a multiple of, whatever its symbols are."""
    return dim if isinstance(dim, int) else gcd(*[factor for _, factor in dim.terms])


def sizes_of(general: Sequence[TensorType], types: Sequence[TensorType]) -> dict[str, int] | None:
    """The size of each symbol in general types, given a call's; None where they do not fit."""
    known: dict[str, Dimension] = {}
    fits = all(
        match_size(pattern, dim, known) and (pattern == dim or dim > 1)
        for kind, actual in zip(general, types, strict=True)
        for pattern, dim in zip(kind.shape, actual.shape, strict=True)
    )
    return {name: int(size) for name, size in known.items()} if fits else None


def shared_places(handles: Sequence[Tensor]) -> tuple[int, ...]:
    """Where each handle was first given; nothing if none was given twice.

    A handle that is given twice is one input of the program.
    """
    same = [*map(id, handles)]
    if len({*same}) == len(same):
        return ()
    first: dict[int, int] = {}
    return tuple([first.setdefault(each, place) for place, each in enumerate(same)])


def arrays_as_tensors(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """A call's arguments with tensors in place of NumPy's arrays; None where there are none."""
    leaves, structure = trees.flatten((args, kwargs))
    if not any(isinstance(leaf, np.ndarray) for leaf in leaves):
        return None
    tensors = [as_tensor("jit", x) if isinstance(x, np.ndarray) else x for x in leaves]
    converted: tuple[tuple[Any, ...], dict[str, Any]] = trees.unflatten(structure, tensors)
    return converted


def read_call(args: tuple[Any, ...], kwargs: dict[str, Any], outside: list[Any]) -> Call:
    """A call, given what the function closes over."""
    leaves, structure = trees.flatten((args, kwargs, outside) if outside else (args, kwargs))
    handles = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    device = _device_of(handles)
    keys = [_tensor_key(x) if isinstance(x, Tensor) else _static_key(x) for x in leaves]
    modes = (grad_mode.enabled, AUTOCAST.get())
    places = (device,) if device is CPU else tuple([handle.device for handle in handles])
    family = (structure, structure.exact(static_key), modes, shared_places(handles), places, *keys)
    return Call(args, kwargs, handles, family, device)


def _device_of(handles: Sequence[Tensor]) -> Device:
    """The device of a call: the first that is not the host; an error where it has no target.

    Operands on several devices are refused where they meet. Single numbers of the host fit beside
    any; a call without tensors is computed where constants are made.
    """
    placed = next((handle for handle in handles if handle.device != CPU), None)
    if placed is None and traces.recording:
        return traces.recording[-1].device  # constants of a program for it
    if placed is None:
        return CPU if handles else traces.device or as_device(None)
    if not can_compute_on(placed.device):
        check_one_device("jit", handles)
        raise UnsupportedError(
            "jit",
            f"nothing is compiled for {placed.device} yet",
            expected="tensors on the CPU",
            got={"x": f"{placed.type} on {placed.device}"},
            fix='copy the tensors first: x.to("cpu")',
        )
    return placed.device


def _tensor_key(x: Tensor) -> Hashable:
    """What a program depends on beside sizes: dtype, rank, and whether there is a tape."""
    value = x._value
    dtype = value.dtype if is_concrete(value) else x.dtype
    return dtype, len(value.shape), node_key(x._node)


def _static_key(leaf: Any) -> Hashable:
    key = number_key(leaf)
    try:
        hash(key)
    except TypeError:
        raise ArgumentTypeError(
            "jit",
            "an argument is neither a tensor nor a value that can be compared",
            expected="tensors, numbers, strings, or containers of them",
            got={"argument": leaf},
            fix="convert arrays first: wf.asarray(x)",
        ) from None
    return key
