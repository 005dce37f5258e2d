"""The layout of a module: which tensors it holds, under which names, and all the rest of it.

A module is taken apart into its tensors, each once however often it occurs, and a `Skeleton` that
holds everything else and can be compared: equal skeletons run the same program. So weights that
are tied stay tied when a transform puts a module together again from other tensors.

>>> from weft import nn
>>> from weft.nn.layout import lay_out
>>> layout = lay_out(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
>>> [place.name for place in layout.places]
['0.weight', '0.bias']
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from operator import is_
from types import BuiltinFunctionType, FunctionType
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

import weft as wf

PARAMETER, BUFFER, TRANSIENT = "parameter", "buffer", "transient"
"""What a tensor is to its module; a transient buffer is not saved."""
ATOMS = frozenset([bool, int, float, str, type(None), FunctionType, BuiltinFunctionType, type])
DICTIONARIES = ("_hooks", "_pre_hooks", "_roles")
INTERNAL = frozenset([*DICTIONARIES, "_layout"])
"""Attributes of a module that are not part of its tree."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor stands: its number among the module's tensors."""

    index: int


@dataclass(frozen=True, slots=True)
class Again:
    """A module that occurred before: its number among the modules."""

    number: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A list, tuple, dictionary or other container with tensors or modules in it."""

    structure: wf.tree.TreeStructure
    parts: tuple[Part, ...]
    exact: Hashable
    """What tells the structure from equal ones, such as dictionaries filled in another order."""


@dataclass(frozen=True, slots=True)
class Static:
    """A value that is no tensor; two are equal if their keys are."""

    key: Hashable
    value: Any = field(compare=False)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Skeleton:
    """A module without its tensors; compared often, so its hash is computed once."""

    kind: type
    items: tuple[tuple[str, Part], ...]
    code: int

    def __hash__(self) -> int:
        return self.code

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Skeleton) or self.code != other.code:
            return False
        return self.kind is other.kind and self.items == other.items

    def __repr__(self) -> str:
        return self.kind.__name__


Part = Slot | Again | Branch | Static | Skeleton
_SKELETONS: WeakValueDictionary[int, Skeleton] = WeakValueDictionary()
"""Skeletons in use, by their hash: an equal one is the same one, so that it is found at once."""


@dataclass(frozen=True, slots=True)
class Place:
    """One occurrence of a tensor: its dotted name, its role, its number, and whose it is."""

    name: str
    role: str
    index: int
    owner: Any


@dataclass(frozen=True, slots=True)
class Layout:
    """A module taken apart."""

    tensors: tuple[Any, ...]
    places: tuple[Place, ...]
    modules: tuple[tuple[str, Any], ...]
    skeleton: Skeleton
    names: tuple[str, ...]
    """The first name of each tensor."""
    parts: wf.tree.Parts
    """The module as a node of a tree."""


CHANGES = wf.tree.ChangeCount()
"""How often any module's attributes were set, or its hooks."""


class Guard:
    """Tells whether modules are as they were when a walk came to them, by what they hold.

    Names and values of attributes, and what is in lists and dictionaries among them, are looked at
    each time; whether a module has another dictionary where `CHANGES` has counted something since.
    """

    __slots__ = ("__weakref__", "_changes", "_held", "_own", "_owners", "children", "is_blind")

    def __init__(self) -> None:
        self.children: tuple[Any, ...] = ()
        """The tensors that were found."""
        self._changes = CHANGES.count
        self._owners: list[Any] = []
        self._own: list[dict[str, Any]] = []
        self._held = wf.tree.Contents()
        self.is_blind = False
        """Whether something was met whose changes are not seen."""

    def watch(self, module: Any) -> None:
        """Look at a module's attributes from now on."""
        own = module.__dict__
        self._owners.append(module)
        self._own.append(own)
        self._held.add(own)
        for name in DICTIONARIES:
            self._held.add(own[name])

    def watch_value(self, value: Any) -> None:
        """Look at what an attribute holds from now on."""
        kind = type(value)
        if kind is list or kind is dict:
            self._held.add(value)
        elif is_dataclass(kind) and not is_module(value):
            self._watch_record(value)
            return
        elif kind is not tuple:
            opaque = wf.tree.is_container(value) and not is_module(value) and value is not None
            self.is_blind |= opaque or isinstance(value, np.ndarray)
            return
        for each in value.values() if kind is dict else value:
            self.watch_value(each)

    def _watch_record(self, record: Any) -> None:
        """Look at the fields of a dataclass, such as a model's configuration."""
        if hasattr(record, "__dict__"):
            self._held.add(vars(record))
        elif not record.__dataclass_params__.frozen:
            self.is_blind = True
        for each in fields(record):
            self.watch_value(getattr(record, each.name, None))

    def held_contents(self) -> tuple[list[Any], wf.tree.ChangeCount] | None:
        """What containers hold, and a count: while both are the same, it holds; None if blind."""
        return None if self.is_blind or not self.holds() else (self._held.by_container(), CHANGES)

    def holds(self) -> bool:
        """Whether nothing has changed."""
        if self.is_blind or not self._held.is_unchanged():
            return False
        changes = CHANGES.count
        if self._changes != changes:
            if not all(map(is_, [module.__dict__ for module in self._owners], self._own)):
                return False
            self._changes = changes
        return True


class Remembered:
    """A module's last layout, and what tells whether it is still valid."""

    __slots__ = ("pair",)

    def __init__(self) -> None:
        self.pair: tuple[Layout, Guard] | None = None


CONTAINERS: list[type] = []
"""The class of modules, put here by the file that defines it."""


def is_module(value: Any) -> bool:
    """Whether a value is a module."""
    return isinstance(value, CONTAINERS[0])


def lay_out(module: Any) -> Layout:
    """The layout of a module, remembered until something in it is another object."""
    pair = (module.__dict__["_layout"] or _remembered_layout(module)).pair
    if pair is not None and pair[1].holds():
        return pair[0]
    folding = _Folding()
    layout = folding.run(module)
    _remembered_layout(module).pair = layout, folding.guard
    return layout


def _remembered_layout(module: Any) -> Remembered:
    """Where a module's layout is kept: one object as long as the module is there."""
    known: Remembered | None = module.__dict__["_layout"]
    if known is None:
        known = module.__dict__["_layout"] = Remembered()
    return known


def dotted_name(prefix: str, name: object) -> str:
    """A name below a prefix."""
    return f"{prefix}.{name}" if prefix else str(name)


def leaf_names(structure: wf.tree.TreeStructure, prefix: str) -> Iterator[str]:
    """The dotted name of each leaf of a tree."""
    if structure.kind is None:
        yield prefix
    for key, child in zip(structure.keys, structure.children, strict=True):
        yield from leaf_names(child, dotted_name(prefix, key))


class _Folding:
    """One walk over a module."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.indices: dict[int, int] = {}
        self.places: list[Place] = []
        self.modules: list[tuple[str, Any]] = []
        self.numbers: dict[int, int] = {}
        self.open: set[int] = set()
        self.seen_changes = True
        self.guard = Guard()

    def run(self, module: Any) -> Layout:
        """Take the module apart."""
        skeleton = self.module(module, "")
        assert isinstance(skeleton, Skeleton)
        if self.seen_changes:  # else it holds what may be changed, which is its own
            known = _SKELETONS.setdefault(skeleton.code, skeleton)
            skeleton = known if known == skeleton else skeleton
        names: dict[int, str] = {}
        for place in self.places:
            names.setdefault(place.index, place.name)
        first = tuple([names[index] for index in range(len(self.tensors))])
        tensors = self.guard.children = tuple(self.tensors)
        parts = wf.tree.Parts(first, tensors, skeleton, memory=self.guard)
        return Layout(tensors, tuple(self.places), tuple(self.modules), skeleton, first, parts)

    def module(self, module: Any, prefix: str) -> Part:
        """A module; where it occurs again, its tensors get their other names, and no more."""
        known = self.numbers.get(id(module))
        if id(module) in self.open:
            return Again(self.numbers[id(module)])
        if known is None:
            self.numbers[id(module)] = len(self.numbers)
            self.modules.append((prefix, module))
            _remembered_layout(module)
            self.guard.watch(module)
        self.open.add(id(module))
        items = self._items(module, prefix)
        self.open.discard(id(module))
        if known is not None:
            return Again(known)
        return Skeleton(type(module), items, hash((type(module), items)))

    def _items(self, module: Any, prefix: str) -> tuple[tuple[str, Part], ...]:
        """The attributes: tensors before modules, as in PyTorch's state dictionaries."""
        everything = list(module.__dict__.items())  # at once: another thread may add some
        named = [item for item in everything if item[0] not in INTERNAL]
        named.sort(key=lambda item: is_module(item[1]))
        items = [(name, self._part(module, name, value, prefix)) for name, value in named]
        inner = [(name, tuple(module.__dict__[name].items())) for name in DICTIONARIES]
        items += [(name, self._static_part(value)) for name, value in inner]
        return tuple(items)

    def _part(self, owner: Any, name: str, value: Any, prefix: str) -> Part:
        if name in owner._roles:
            return self._slot(owner, name, value, prefix)
        if type(value) in ATOMS or (type(value) is tuple and ATOMS.issuperset(map(type, value))):
            return Static(exact_key(value), value)
        if is_module(value):
            return self.module(value, dotted_name(prefix, name))
        return self._container(owner, name, value, prefix)

    def _container(self, owner: Any, name: str, value: Any, prefix: str) -> Part:
        self.guard.watch_value(value)
        leaves, structure = wf.tree.flatten(value, is_leaf=is_module)
        names = list(leaf_names(structure, name))
        held = [
            is_module(leaf) or isinstance(leaf, wf.Tensor) or local in owner._roles
            for local, leaf in zip(names, leaves, strict=True)
        ]
        if not any(held):
            return self._static_part(value)
        self.seen_changes = False
        parts = [
            self._fold_member(owner, local, leaf, prefix) if is_held else self._static_part(leaf)
            for local, leaf, is_held in zip(names, leaves, held, strict=True)
        ]
        return Branch(structure, tuple(parts), structure.exact(exact_key))

    def _fold_member(self, owner: Any, local: str, leaf: Any, prefix: str) -> Part:
        if is_module(leaf):
            return self.module(leaf, dotted_name(prefix, local))
        owner._roles.setdefault(local, role_of(leaf))
        return self._slot(owner, local, leaf, prefix)

    def _slot(self, owner: Any, local: str, tensor: Any, prefix: str) -> Slot:
        index = self.indices.get(id(tensor), len(self.tensors))
        if index == len(self.tensors):
            self.tensors.append(tensor)
            if isinstance(tensor, wf.Tensor):  # another leaf, such as None, may stand anywhere
                self.indices[id(tensor)] = index
        self.places.append(Place(dotted_name(prefix, local), owner._roles[local], index, owner))
        return Slot(index)

    def _static_part(self, value: Any) -> Static:
        try:
            hash(value)
        except TypeError:
            self.seen_changes = False
            return Static(content_key(value), value)
        return Static(exact_key(value), value)


def exact_key(value: Any) -> Hashable:
    """What tells a value that can be hashed from those that are equal to it.

    0.0 and -0.0 are equal and not the same, as 1 and True are; NaN is the same and not equal.
    """
    if type(value) is tuple:
        return tuple, *map(exact_key, value)
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    return type(value), value


def content_key(value: Any) -> Hashable:
    """What makes two values that cannot be hashed equal: their contents, else their identity."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    leaves, structure = wf.tree.flatten(value)
    if structure.kind is None:
        return id(value)
    return structure, structure.exact(exact_key), tuple([_leaf_key(leaf) for leaf in leaves])


def _leaf_key(leaf: Any) -> Hashable:
    try:
        hash(leaf)
    except TypeError:
        return content_key(leaf)
    return exact_key(leaf)


def role_of(tensor: Any) -> str:
    """A leaf that requires a gradient is a parameter, any other tensor is a buffer."""
    is_parameter = isinstance(tensor, wf.Tensor) and tensor.requires_grad and tensor.is_leaf
    return PARAMETER if is_parameter else BUFFER


def put_together(skeleton: Skeleton, tensors: Sequence[Any]) -> Any:
    """A module of a skeleton with other tensors; no `__init__` is run."""
    return _Unfolding(tensors).part(skeleton)


class _Unfolding:
    """One module put together."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = _distinct_handles(tensors)
        self.modules: list[Any] = []
        self.makers: dict[type, Callable[[Any], Any]] = {
            Static: lambda part: part.value,
            Slot: lambda part: self.tensors[part.index],
            Again: lambda part: self.modules[part.number],
            Branch: lambda part: wf.tree.unflatten(part.structure, map(self.part, part.parts)),
            Skeleton: self.module,
        }

    def part(self, part: Part) -> Any:
        """The value that a part stands for."""
        return self.makers[type(part)](part)

    def module(self, skeleton: Skeleton) -> Any:
        """A module, known before its attributes are made, since they may refer to it."""
        module: Any = object.__new__(skeleton.kind)
        self.modules.append(module)
        attributes = {name: self.part(part) for name, part in skeleton.items}
        for name in DICTIONARIES:
            attributes[name] = dict(attributes[name])
        module.__dict__.update(attributes, _layout=None)
        return module


def _distinct_handles(tensors: Sequence[Any]) -> list[Any]:
    """The tensors, each with its own handle: parameters that were not tied stay so."""
    seen: set[int] = set()
    handles = []
    for tensor in tensors:
        repeated = isinstance(tensor, wf.Tensor) and id(tensor) in seen
        handles.append(tensor.clone() if repeated else tensor)
        seen.add(id(tensor))
    return handles


def take_apart(module: Any) -> wf.tree.Parts:
    """The tensors by name, and the skeleton: a module as a node of a tree."""
    return lay_out(module).parts


def rebuild(kind: type, tensors: Mapping[str, Any], skeleton: Skeleton) -> Any:
    """The inverse of `take_apart`."""
    return put_together(skeleton, list(tensors.values()))
