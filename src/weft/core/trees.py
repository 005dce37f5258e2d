"""Trees: nested containers taken apart into leaves and a structure, and put together again.

Containers are `None` (without leaves), dict, list, tuple, named tuples, dataclass instances and the
classes given to `register_node`; everything else is a leaf. The structure holds all that is not a
leaf, so `unflatten(structure, leaves)` gives an equal tree back. Dictionaries are flattened in the
order of their keys, where keys can be ordered, so that the order of insertion does not matter.

>>> from weft.core.trees import flatten, map_tree, unflatten
>>> leaves, structure = flatten({"layers": [{"w": 1, "b": 2}], "scale": 3})
>>> leaves, structure.paths()
([2, 1, 3], ['layers[0].b', 'layers[0].w', 'scale'])
>>> unflatten(structure, [20, 10, 30])
{'layers': [{'w': 10, 'b': 20}], 'scale': 30}
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import field, fields, is_dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from weft.core.devices import Device
from weft.core.dtypes import DType
from weft.core.errors import ArgumentError, ArgumentTypeError
from weft.core.locations import Location
from weft.core.records import frozen
from weft.core.shapes import Dim
from weft.core.types import TensorType
from weft.core.unchanged import ChangeCount as ChangeCount
from weft.core.unchanged import Contents as Contents
from weft.core.unchanged import Held

T = TypeVar("T")
Keys: TypeAlias = tuple[Hashable, ...]
IsLeaf: TypeAlias = Callable[[Any], bool]


@frozen(repr=False)
class TreeStructure:
    """A tree without its leaves. Equal structures take each other's leaves.

    >>> flatten((1, {"a": None, "b": 2}))[1]
    (*, {'a': None, 'b': *})
    """

    kind: type | None  # the container's class; None for a leaf
    keys: Keys = ()  # of the children: names or positions
    children: tuple[TreeStructure, ...] = ()
    static: Hashable = None  # what else makes the container, such as static fields
    order: Keys = field(default=(), compare=False)  # of a dict's insertion

    @property
    def num_leaves(self) -> int:
        """How many leaves the tree has.

        >>> flatten([1, None, (2, 3)])[1].num_leaves
        3
        """
        return 1 if self.kind is None else sum(child.num_leaves for child in self.children)

    def exact(self, key: Callable[[Any], Hashable]) -> Hashable:
        """What tells it from a structure that is equal, and may be another thing to a program.

        The order in which dictionaries were filled, the classes of their keys, and static values by
        a key, as 1, 1.0 and True are equal.

        >>> first, other = (flatten(tree)[1] for tree in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
        >>> first == other, first.exact(repr) == other.exact(repr)
        (True, False)
        """
        own = self.order, *map(type, self.order), None if self.static is None else key(self.static)
        return own, *[child.exact(key) for child in self.children if child.kind is not None]

    def paths(self) -> list[str]:
        """The readable path of each leaf; that of a tree that is a leaf is empty.

        >>> flatten({"params": {"w": 1, "a b": 2}, "steps": [3]})[1].paths()
        ["params['a b']", 'params.w', 'steps[0]']
        """
        return list(_paths(self, ""))

    def __repr__(self) -> str:
        if self.kind is None:
            return "*"
        container = _container(self.kind)
        return container.show(self) if container else self.kind.__name__


LEAF = TreeStructure(None)


def flatten(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], TreeStructure]:
    """The leaves, in order, and the structure; `is_leaf` ends the descent where it answers True.

    >>> flatten([1, (2, None)])
    ([1, 2], [*, (*, None)])
    >>> flatten([1, (2, None)], is_leaf=lambda node: isinstance(node, tuple))
    ([1, (2, None)], [*, *])
    """
    leaves: list[Any] = []
    try:
        return leaves, _walk(tree, leaves, is_leaf)
    except RecursionError:
        raise endless_tree_error("flatten", tree) from None


def endless_tree_error(op: str, tree: object) -> ArgumentError:
    """The error for a tree that is too deep to be walked."""
    return ArgumentError(
        op,
        "a tree is nested too deeply, or holds itself",
        expected="containers inside each other to a depth of some hundreds",
        got={"tree": f"a {type(tree).__name__}"},
        fix="give the leaves in one list",
    )


def unflatten(structure: TreeStructure, leaves: Iterable[Any]) -> Any:
    """The tree of this structure with these leaves.

    >>> unflatten(flatten({"w": 1, "b": (2, 3)})[1], "xyz")
    {'w': 'z', 'b': ('x', 'y')}
    """
    values = list(leaves)
    if len(values) != structure.num_leaves:
        raise ArgumentError(
            "unflatten",
            "the number of leaves does not fit the structure",
            expected=f"{structure.num_leaves} leaves, for {structure}",
            got={"leaves": f"{len(values)} of them"},
            fix="give one leaf for each of structure.paths()",
        )
    return _build(structure, iter(values))


def leaves(tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The leaves in order.

    >>> leaves({"w": 1, "b": [2, None]})
    [2, 1]
    """
    return flatten(tree, is_leaf)[0]


def map_tree(
    function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf | None = None
) -> Any:
    """The tree of `function` over the leaves of one tree, or of several of equal structure.

    >>> map_tree(lambda x, y: x + y, {"w": 1, "b": 2}, {"b": 20, "w": 10})
    {'w': 11, 'b': 22}
    """
    first, structure = flatten(tree, is_leaf)
    columns = [first]
    for position, other in enumerate(rest, start=1):
        column, other_structure = flatten(other, is_leaf)
        if other_structure != structure:
            raise _mismatch(structure, other_structure, position)
        columns.append(column)
    return _build(structure, iter([function(*row) for row in zip(*columns, strict=True)]))


def flatten_with_paths(tree: Any, is_leaf: IsLeaf | None = None) -> list[tuple[str, Any]]:
    """The leaves in order, each with its readable path.

    >>> flatten_with_paths({"layers": [{"weight": 1}, {"weight": 2}]})
    [('layers[0].weight', 1), ('layers[1].weight', 2)]
    """
    leaves, structure = flatten(tree, is_leaf)
    return list(zip(structure.paths(), leaves, strict=True))


def register_node(
    cls: type[T],
    flatten: Callable[[T], tuple[dict[Any, Any], Hashable] | Parts],
    unflatten: Callable[[type[T], dict[Any, Any], Any], T],
    *,
    attributes: bool = False,
) -> None:
    """Make a class and its subclasses containers.

    `flatten(node)` gives the children by name and a hashable rest; from them,
    `unflatten(kind, children, rest)` makes a node of the class `kind`, which may be a subclass.
    attributes: the children and the rest are attributes, and the same as long as these are.

    >>> class Pair:
    ...     def __init__(self, left, right): self.left, self.right = left, right
    >>> register_node(Pair, lambda pair: (vars(pair), None), lambda kind, sides, _: kind(**sides))
    >>> flatten_with_paths(Pair(1, [2]))
    [('left', 1), ('right[0]', 2)]
    """

    def split_node(node: T) -> Parts:
        flattened = flatten(node)
        if isinstance(flattened, Parts):  # remembered by the class, and checked when it was made
            return flattened
        children, static = flattened
        _check_static(cls, static)
        return Parts(tuple(children), tuple(children.values()), static)

    def join(structure: TreeStructure, children: list[Any]) -> T:
        named = dict(zip(structure.keys, children, strict=True))
        return unflatten(structure.kind or cls, named, structure.static)

    _register(cls, Container(split_node, join, _show_call))
    if attributes:
        _of_attributes.add(cls)


def take_apart(node: Any) -> Parts | None:
    """A container taken apart one level; None for a leaf.

    >>> take_apart({"b": 2, "a": [1]}).children, take_apart(3)
    ([[1], 2], None)
    """
    container = _container(type(node))
    return None if container is None else container.split(node)


def is_container(node: Any) -> bool:
    """Whether a node is taken apart; it may have no leaves.

    >>> is_container([]), is_container(None), is_container("text")
    (True, True, False)
    """
    return _container(type(node)) is not None


def is_registered(node: Any) -> bool:
    """Whether a node is of a class that `register_node` made a container.

    >>> is_registered([1, 2]), is_registered(1)
    (False, False)
    """
    bases = [base for base in type(node).__mro__ if base in _registered and base not in _BUILT_IN]
    return bool(bases) and _registered[bases[0]] is not None


def is_of_attributes(node: Any) -> bool:
    """Whether a container has the same parts as long as its attributes are the same objects.

    So have dataclasses that keep their fields in a dictionary, and classes that say so.
    """
    kind = type(node)
    if any(base in _of_attributes for base in kind.__mro__):
        return True
    if not is_dataclass(kind) or is_registered(node) or not hasattr(node, "__dict__"):
        return False
    return all(field.name in vars(node) for field in fields(kind))


_of_attributes: set[type] = set()


def register_leaf(cls: type[T]) -> type[T]:
    """Make a class and its subclasses leaves, though they are dataclasses or named tuples.

    >>> from dataclasses import dataclass
    >>> @register_leaf
    ... @dataclass
    ... class Version:
    ...     major: int
    >>> leaves([Version(1)])
    [Version(major=1)]
    """
    _register(cls, None)
    return cls


# --- containers --------------------------------------------------------------------------------


class Memory(Protocol):
    """Remembers how an object was taken apart, and can tell whether that is still so."""

    @property
    def children(self) -> Sequence[Any]:
        """The parts that the node was flattened into."""

    def holds(self) -> bool:
        """Whether it would be taken apart into the same again."""

    def held_contents(self) -> tuple[Sequence[Held], ChangeCount] | None:
        """Containers with what they hold, and a count: it holds while all of that is the same.

        None where that does not say it.
        """


class Parts(NamedTuple):
    """The keys, children and static data of a container, one level deep."""

    keys: Keys
    children: Sequence[Any]
    static: Hashable = None
    order: Keys = ()
    memory: Memory | None = None
    """Who remembers it, if anybody does."""


class Container(NamedTuple):
    """How the instances of a class are taken apart, put together and shown."""

    split: Callable[[Any], Parts]
    join: Callable[[TreeStructure, list[Any]], Any]
    show: Callable[[TreeStructure], str]


def _split_sequence(node: Sequence[Any]) -> Parts:
    return Parts(tuple(range(len(node))), node)


def _split_dict(node: dict[Hashable, Any]) -> Parts:
    order = tuple(node)
    try:
        keys = tuple(sorted(order))  # type: ignore[type-var]
    except TypeError:
        keys = order
    return Parts(keys, [node[key] for key in keys], order=order)


def _split_defaultdict(node: defaultdict[Hashable, Any]) -> Parts:
    return _split_dict(node)._replace(static=node.default_factory)


def _ordered_items(structure: TreeStructure, children: list[Any]) -> dict[Hashable, Any]:
    if structure.keys == structure.order:
        return dict(zip(structure.keys, children, strict=True))
    by_key = dict(zip(structure.keys, children, strict=True))
    return {key: by_key[key] for key in structure.order}


def _join_defaultdict(structure: TreeStructure, children: list[Any]) -> Any:
    factory: Any = structure.static
    return defaultdict(factory, _ordered_items(structure, children))


def _named_tuple_container(cls: Any) -> Container:
    names: Keys = cls._fields
    return Container(
        lambda node: Parts(names, node),
        lambda structure, children: cls._make(children),
        _show_call,
    )


def _dataclass_container(cls: Any) -> Container:
    """Fields are children, or structure if their metadata says static; `__init__` is not run."""
    names = [f.name for f in fields(cls) if not f.metadata.get("static")]
    static_names = [f.name for f in fields(cls) if f.metadata.get("static")]

    def split_dataclass(node: Any) -> Parts:
        static = tuple([(name, getattr(node, name)) for name in static_names])
        _check_static(cls, static)
        return Parts(tuple(names), [getattr(node, name) for name in names], static)

    def join(structure: TreeStructure, children: list[Any]) -> Any:
        node = object.__new__(cls)
        static: Any = structure.static
        for name, value in (*zip(names, children, strict=True), *static):
            object.__setattr__(node, name, value)
        return node

    return Container(split_dataclass, join, _show_call)


def _check_static(cls: type, static: Hashable) -> None:
    try:
        hash(static)
    except TypeError:
        raise ArgumentTypeError(
            "flatten",
            f"the static part of {cls.__name__} cannot be hashed",
            expected="static values that are immutable, such as numbers, strings and tuples",
            got={"static": static},
            fix="make it a tuple, or leave static out of the field's metadata",
        ) from None


def _named_children(structure: TreeStructure) -> Iterator[tuple[Hashable, TreeStructure]]:
    return zip(structure.keys, structure.children, strict=True)


def _kind_name(structure: TreeStructure) -> str:
    return "a leaf" if structure.kind is None else structure.kind.__name__


def _show_call(structure: TreeStructure) -> str:
    parts = [f"{key}={child}" for key, child in _named_children(structure)]
    static = structure.static
    if isinstance(static, tuple) and is_dataclass(structure.kind):
        parts += [f"{name}={value!r}" for name, value in static]
    elif static is not None:
        parts.append(repr(static))
    return f"{_kind_name(structure)}({', '.join(parts)})"


def _show_dict(structure: TreeStructure) -> str:
    text = ", ".join([f"{key!r}: {child}" for key, child in _named_children(structure)])
    return f"{{{text}}}" if structure.kind is dict else f"{_kind_name(structure)}({{{text}}})"


def _show_list(structure: TreeStructure) -> str:
    return f"[{', '.join(map(repr, structure.children))}]"


def _show_tuple(structure: TreeStructure) -> str:
    text = ", ".join(map(repr, structure.children))
    return f"({text},)" if len(structure.children) == 1 else f"({text})"


_registered: dict[type, Container | None] = {  # None: a leaf
    type(None): Container(lambda node: Parts((), ()), lambda structure, _: None, lambda _: "None"),
    list: Container(_split_sequence, lambda structure, children: children, _show_list),
    tuple: Container(_split_sequence, lambda structure, children: tuple(children), _show_tuple),
    dict: Container(_split_dict, _ordered_items, _show_dict),
    OrderedDict: Container(
        _split_dict,
        lambda structure, children: OrderedDict(_ordered_items(structure, children)),
        _show_dict,
    ),
    defaultdict: Container(_split_defaultdict, _join_defaultdict, _show_dict),
    **dict.fromkeys((DType, Device, Dim, Location, TensorType)),
}
_BUILT_IN = frozenset(
    _registered
)  # subclasses of these are leaves: how to rebuild one is not known
_containers = dict(_registered)  # by exact class, filled on first sight


def _register(cls: type, container: Container | None) -> None:
    if cls in _registered:
        raise ArgumentError(
            "register_node",
            f"{cls.__name__} is registered already",
            expected="each class registered once",
            got={"cls": cls},
            fix="leave the second registration out",
        )
    _registered[cls] = container
    _containers.clear()
    _containers.update(_registered)


def _container(cls: type) -> Container | None:
    try:
        return _containers[cls]
    except KeyError:
        return _containers.setdefault(cls, _infer_container(cls))


def _infer_container(cls: type) -> Container | None:
    for base in cls.__mro__[1:]:
        if base in _registered and base not in _BUILT_IN:
            return _registered[base]
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _named_tuple_container(cls)
    return _dataclass_container(cls) if is_dataclass(cls) else None


# --- walks -------------------------------------------------------------------------------------


def _walk(tree: Any, found: list[Any], is_leaf: IsLeaf | None) -> TreeStructure:
    kind = type(tree)
    container = _container(kind)
    if container is None or (is_leaf is not None and is_leaf(tree)):
        found.append(tree)
        return LEAF
    keys, children, static, order, _ = container.split(tree)
    parts = tuple([_walk(child, found, is_leaf) for child in children])
    return TreeStructure(kind, keys, parts, static, order)


def _build(structure: TreeStructure, values: Iterator[Any]) -> Any:
    if structure.kind is None:
        return next(values)
    container = _container(structure.kind)
    assert container is not None, f"{structure.kind} was a container when it was flattened"
    return container.join(structure, [_build(child, values) for child in structure.children])


def _paths(structure: TreeStructure, prefix: str) -> Iterator[str]:
    if structure.kind is None:
        yield prefix
    for key, child in _named_children(structure):
        yield from _paths(child, _extend(prefix, key))


def _extend(prefix: str, key: Hashable) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f"{prefix}.{key}" if prefix else key
    return f"{prefix}[{key!r}]"


# --- mismatch ----------------------------------------------------------------------------------


def _mismatch(first: TreeStructure, other: TreeStructure, position: int) -> ArgumentError:
    path, wanted, actual = _first_difference(first, other, "")
    place = f"at {path}" if path else "at the root"
    return ArgumentError(
        "map_tree",
        f"the trees differ in structure {place}",
        expected=f"every tree structured as the first, {place}: {wanted}",
        got={"first": first, f"rest[{position - 1}]": other},
        note=f"{place}: {actual}",
        fix=f"make it {wanted} {place} in both trees",
    )


def _first_difference(a: TreeStructure, b: TreeStructure, path: str) -> tuple[str, str, str]:
    """The path where two structures part, with what stands there in each."""
    lone = [key for key in (*a.keys, *b.keys) if (key in a.keys) != (key in b.keys)]
    if a.kind is not b.kind or a.static != b.static or (a.keys != b.keys and not lone):
        return path, _summary(a), _summary(b)
    if lone:
        wanted, actual = ("a value", "nothing") if lone[0] in a.keys else ("nothing", "a value")
        return _extend(path, lone[0]), wanted, actual
    for key, left, right in zip(a.keys, a.children, b.children, strict=True):
        if left != right:
            return _first_difference(left, right, _extend(path, key))
    raise AssertionError("the structures are equal")


def _summary(structure: TreeStructure) -> str:
    if structure.kind is None:
        return "a leaf"
    text = repr(structure)
    return text if len(text) <= 60 else f"{_kind_name(structure)} of {len(structure.keys)}"
