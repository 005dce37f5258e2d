"""What a function closes over: tensors and plain values that are as good as arguments of it.

A compiled function must see what its closed-over tensors hold at each call, and what names are
bound to. So the variables from outside that hold tensors, numbers or text, in the function and in
those it calls, are found before it is traced, and read anew at each call. Of objects, classes and
modules these are the attributes that the functions name. Where another function or object stands
in a variable, what it reads is another thing: then the search is made again.

What a function changes itself while it is traced, such as a counter of its calls, is no argument of
it: `Jit` leaves that out again.

>>> import weft as wf
>>> w, scale = wf.tensor(2.0), 3.0
>>> closed_over(lambda x: w * x).values()[0].item()
2.0
>>> closed_over(lambda x: scale * x).values()
[3.0]
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from enum import Enum
from inspect import getattr_static
from operator import getitem
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from weft.compiler.function.plain_values import Plain, Read, holds_tensors, identity_of, is_plain
from weft.core import trees
from weft.core.locations import is_internal
from weft.core.unchanged import Contents
from weft.ir.tensor import Tensor

DEPTH = 6
"""How far functions that call functions, and objects that hold objects, are followed: a bound on
the time of a search, on any machine."""
_OTHERS = ("weft", "numpy", "builtins", "functools", "enum", "logging", "threading")
"""Packages whose objects are not looked into."""
_FUNCTIONS = (FunctionType, MethodType, functools.partial)
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class Outside:
    """The variables that a function reads from outside, as long as they hold the same objects."""

    __slots__ = ("_contents", "_held", "_lengths", "_sizes", "identity", "number", "reads")

    def __init__(
        self,
        reads: list[Read],
        held: list[tuple[Read, Any]],
        containers: Sequence[Any] = (),
        attributes: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.reads = reads
        """How to read each that holds tensors or plain values."""
        self._held = held
        """Variables that hold objects or functions, which were looked into."""
        self._contents = Contents(containers) if containers else None
        self._sizes = [(each, len(each)) for each in attributes]
        self._lengths = [(r, x, len(x)) for r, x in held if isinstance(x, (list, dict))]
        self.identity: Hashable = tuple([identity_of(value, _is_read) for _, value in held])
        """What these objects and functions are."""
        self.number: int | None = None
        """Stands for `identity` in a key, where there are any."""

    def values(self) -> list[Any]:
        """What variables with tensors or plain values hold now, and a number for the others."""
        values = [read() for read in self.reads]
        if self.number is not None:
            values.append(self.number)
        return values

    @property
    def is_empty(self) -> bool:
        """Whether nothing outside is read, or was looked into."""
        return not self.reads and not self._held and not self._sizes and self._contents is None

    def is_valid(self) -> bool:
        """Whether each variable that was looked into holds the same object still.

        And whether these have as many attributes.
        """
        for read, value in self._held:
            if read() is not value:
                return False
        for attributes, count in self._sizes:
            if len(attributes) != count:
                return False
        return self._contents is None or self._contents.is_unchanged()

    def grown_containers(self) -> dict[Hashable, Plain]:
        """The variables, by place, whose containers have other lengths than they had."""
        grown = [Plain("", read) for read, held, length in self._lengths if len(held) != length]
        return {variable.place: variable for variable in grown}

    def drop_plain(self, places: Container[Hashable]) -> None:
        """Leave plain values in these places out."""
        self.reads = [r for r in self.reads if not (isinstance(r, Plain) and r.place in places)]


def closed_over(
    function: Any, modules: Iterable[type[Any]] = (), counted: Container[Hashable] = ()
) -> Outside:
    """How to read each variable from outside that holds tensors or plain values.

    modules: the classes of modules that are its arguments, whose methods it calls. counted: the
    places of variables that it changes itself while it is traced.
    """
    search = _Search(counted=counted)
    search.follow_first(function)
    for kind in modules:
        search.follow_methods(kind, DEPTH)
    return search.finish()


def held_by(objects: Iterable[Any], function: Any, counted: Container[Hashable] = ()) -> Outside:
    """How to read what a function reads of objects that are its arguments."""
    names = _Search()
    names.follow_first(function)
    names.finish()
    search = _Search(names.names, counted)
    for each in objects:
        search.look_inside(each, DEPTH)
    return search.finish()


def is_stateful(value: Any) -> bool:
    """Whether a value is told from others by identity, but may hold other values in each call."""
    if isinstance(value, FunctionType):
        return _is_read(value)
    kind: Any = type(value)
    return issubclass(kind, (MethodType, functools.partial)) or _is_stateful_class(kind)


@functools.cache
def _is_stateful_class(kind: type[Any]) -> bool:
    package = kind.__module__.split(".")[0]
    if package in _OTHERS or issubclass(kind, (type, ModuleType, Enum)):
        return False
    own_hash: Any = kind.__hash__
    is_value = own_hash not in (None, object.__hash__) and package in sys.stdlib_module_names
    return bool(kind.__dictoffset__ or _slots(kind)) and not is_value


def holds_objects(tree: Any) -> bool:
    """Whether there are objects in a tree, or inside of its modules, that are looked into."""
    return any(not trees.is_container(each) for each in _objects_in(tree, set()))


def modules_in(tree: Any) -> set[type[Any]]:
    """The classes of modules in a tree."""
    return {type(each) for each in _objects_in(tree, set()) if trees.is_container(each)}


def _objects_in(tree: Any, seen: set[int]) -> Iterator[Any]:
    """The modules in a tree, and the objects that are no trees, in it and in these modules."""
    if isinstance(tree, Tensor) or id(tree) in seen:
        return
    parts = trees.take_apart(tree)
    if parts is None:
        if is_stateful(tree):
            yield tree
        return
    seen.add(id(tree))
    is_module = trees.is_registered(tree) and hasattr(tree, "__dict__")
    if is_module:
        yield tree
    for part in [*vars(tree).values()] if is_module else parts.children:
        yield from _objects_in(part, seen)


class _Search:
    """Variables that are found, and what was looked into."""

    def __init__(self, names: Iterable[str] = (), counted: Container[Hashable] = ()) -> None:
        self._counted = counted
        self.names: set[str] = set(names)
        """Attributes that the functions which were followed name."""
        self._reads: list[Read] = []
        self._held: list[tuple[Read, Any]] = []
        self._containers: list[Any] = []
        self._objects: list[tuple[Any, int]] = []
        self._modules: set[type[Any]] = set()
        """Classes of modules, which are not made by the function."""
        self._seen: set[int] = set()
        self._package = ""
        """The package of the function that everything else is found by."""
        self._is_in_library = False
        """Whether a library's function is looked at, of which plain values and tensors count."""
        self._kept: list[Any] = []
        """What was seen, so that nothing else gets its number."""

    def finish(self) -> Outside:
        """All that was found, once attributes and methods of objects are followed, too."""
        tried: set[tuple[int, str]] = set()
        grows = True
        while grows:
            grows = False
            for value, depth in [*self._objects]:
                for name in self._names_of(value):
                    if (id(value), name) not in tried:
                        tried.add((id(value), name))
                        grows = True
                        self._attribute(value, name, depth)
        attributes = [vars(value) for value, _ in self._objects if _is_open(value)]
        return Outside(self._reads, self._held, self._containers, attributes)

    def _is_new(self, value: Any) -> bool:
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        self._kept.append(value)
        return True

    def follow_first(self, function: Any) -> None:
        """Find the variables of the function that is compiled."""
        self._package = str(getattr(function, "__module__", "")).split(".")[0]
        self.follow(function, DEPTH)

    def _is_of_library(self, value: Any) -> bool:
        """Whether a function, a class or a module is a library's, and not the user's to change."""
        name = value.__name__ if isinstance(value, ModuleType) else str(value.__module__)
        package = name.split(".")[0]
        return package != self._package and _is_installed(package)

    def follow(self, function: Any, depth: int) -> None:
        """Find the variables from outside of a function, and of those it calls."""
        if depth == 0 or not self._is_new(function):
            return
        if isinstance(function, MethodType):
            self._visit("", functools.partial(getattr, function, "__self__"), depth)
            self.follow(function.__func__, depth)
        elif isinstance(function, functools.partial):
            self._items(function.args, depth)
            self._items(function.keywords, depth)
            self.follow(function.func, depth)
        elif isinstance(function, FunctionType) and _is_read(function):
            outer, is_library = self._is_in_library, self._is_of_library(function)
            self._is_in_library = outer or is_library
            self._variables(function, depth)
            self._is_in_library = outer
        elif hasattr(function, "__wrapped__"):
            self.follow(function.__wrapped__, depth - 1)
        elif trees.is_registered(function) or holds_tensors(function):
            self._reads.append(lambda: function)  # a tree that can be called, such as a module
            self.look_inside(function, depth)
        elif isinstance(function, FunctionType):
            for cell in function.__closure__ or ():
                self._look_past(getattr(cell, "cell_contents", None), depth)
        else:
            self._seen.discard(id(function))
            self.look_into(function, depth)

    def _look_past(self, value: Any, depth: int) -> None:
        """Find what an object of the framework, or a function inside of it, holds of the user's."""
        if is_stateful(value):
            self._visit("", functools.partial(_item, (value,), 0), depth)
        elif type(value).__module__.startswith("weft.") and not trees.is_container(value):
            for name, held in [*getattr(value, "__dict__", {}).items()]:
                # its own tables, such as a compiled function's of its programs, are not the user's
                if is_stateful(held) and not isinstance(held, dict):
                    self._visit("", functools.partial(getattr, value, name, None), depth)

    def _variables(self, function: FunctionType, depth: int) -> None:
        names = _names(function.__code__)
        if not self._is_in_library:
            self.names |= names | _texts(function.__code__)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            self._visit(name, functools.partial(getattr, cell, "cell_contents", None), depth)
        scope = function.__globals__
        for name in sorted(names):
            if name in scope:
                self._visit(name, functools.partial(scope.get, name), depth)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            if isinstance(default, (list, dict, set)) or not is_plain(default):
                self._visit("", functools.partial(_item, (default,), 0), depth)

    def _visit(self, name: str, read: Read, depth: int) -> None:
        """A variable that holds tensors or plain values; functions and objects are looked into."""
        value = read()
        if isinstance(value, Tensor):
            self._reads.append(read)
        elif is_plain(value):
            self._reads.append(Plain(name, read))
        elif trees.is_registered(value) or holds_tensors(value):
            self._reads.append(read)
            self.look_inside(value, depth)
        elif self._is_in_library:
            self.follow(value, depth - 1) if isinstance(value, FunctionType) else None
        elif Plain(name, read).place in self._counted:
            return
        elif not isinstance(value, ModuleType) or not self._is_of_library(value):
            self._held.append((read, value))
            if isinstance(value, (list, tuple, dict)):
                self._items(value, depth - 1)
            elif isinstance(value, _FUNCTIONS) or not hasattr(value, "__dict__"):
                self.follow(value, depth - 1)
            else:
                self.look_into(value, depth - 1)

    def _items(self, container: Any, depth: int) -> None:
        """What a container holds that is no tree of plain values."""
        if depth <= 0 or not self._is_new(container):
            return
        if type(container) in (list, dict):
            self._containers.append(container)
        keys = container if isinstance(container, dict) else range(len(container))
        for key in [*keys]:
            self._visit("", functools.partial(_item, container, key), depth)

    def look_into(self, value: Any, depth: int) -> None:
        """Note an object, a class or a module whose attributes count where functions name them."""
        if depth <= 0 or not self._is_new(value):
            return
        if isinstance(value, _FUNCTIONS):
            self._seen.discard(id(value))
            self.follow(value, depth)
            return
        if hasattr(value, "__wrapped__") and not isinstance(value, type):
            self.follow(value.__wrapped__, depth)
        kind = value if isinstance(value, type) else type(value)
        if not isinstance(value, ModuleType) and kind.__module__.split(".")[0] in _OTHERS:
            self._look_past(value, depth)
            return
        if isinstance(value, type) and self._is_of_library(value):
            return
        self._objects.append((value, depth))
        for name, held in [*getattr(value, "__dict__", {}).items()]:
            if not isinstance(value, (type, ModuleType)) and holds_tensors(held):
                self._visit(name, functools.partial(getattr, value, name, None), depth)

    def look_inside(self, tree: Any, depth: int) -> None:
        """Note objects and functions in a tree that is read as a whole, and methods of modules."""
        for each in _objects_in(tree, set()):
            if trees.is_container(each):
                self.follow_methods(type(each), depth)
            else:
                self.look_into(each, depth)

    def follow_methods(self, kind: type[Any], depth: int) -> None:
        """Note a class of modules, whose attributes are parts of a tree."""
        if kind not in self._modules and kind.__module__.split(".")[0] not in _OTHERS:
            self._modules.add(kind)
            self._objects.append((kind, depth))

    def _names_of(self, value: Any) -> list[str]:
        """The attributes that an object has and a function names.

        Operators are not named, nor are methods that the framework calls, as they override its own.
        """
        own = getattr(value, "__dict__", {})
        if isinstance(value, ModuleType):
            return sorted(self.names.intersection(own))
        kind = value if isinstance(value, type) else type(value)
        methods = dir(kind)
        bases = [base for base in kind.__mro__ if base.__module__.split(".")[0] == "weft"]
        called = {name for base in bases for name in vars(base)}
        unnamed = [name for name in methods if name.startswith("__") or name in called]
        return [*unnamed, *sorted(self.names.intersection([*own, *methods]))]

    def _attribute(self, value: Any, name: str, depth: int) -> None:
        held = getattr_static(value, name, None)
        is_made = isinstance(value, type) and value not in self._modules
        method = _code_of(held, is_made)
        if name in getattr(value, "__dict__", ()) and not isinstance(value, type):
            method = None
        if method is not None:
            if not self._is_of_library(method):
                self.follow(method, depth)
        elif not name.startswith("__") and (
            isinstance(held, MemberDescriptorType) or not hasattr(type(held), "__get__")
            or isinstance(value, ModuleType)
            or name in getattr(value, "__dict__", ())
        ):  # fmt: skip
            self._visit(name, functools.partial(getattr, value, name, None), depth)


def _is_open(value: Any) -> bool:
    """Whether an object may get attributes that are looked for each time."""
    is_object = not isinstance(value, (type, ModuleType)) and not trees.is_registered(value)
    return is_object and hasattr(value, "__dict__")


def _item(container: Any, key: Any) -> Any:
    try:
        return getitem(container, key)
    except (LookupError, TypeError):
        return None


def _code_of(method: Any, is_made: bool) -> FunctionType | None:
    """The function behind an attribute of a class: of a method, compiled or not, or a property.

    is_made: whether objects of the class are made by the function, so that `__init__` is run.
    """
    for name in ("fget", "func", "__func__", "__wrapped__"):
        method = getattr(method, name, method)
    is_users = isinstance(method, FunctionType) and _is_read(method)
    return method if is_users and (is_made or method.__name__ != "__init__") else None


def _slots(kind: type[Any]) -> list[str]:
    """The attributes of a class that have places of their own."""
    return [
        name
        for base in kind.__mro__
        for name, held in vars(base).items()
        if isinstance(held, MemberDescriptorType)
    ]


def _is_read(function: FunctionType) -> bool:
    """Whether a function is not the framework's; one from `python -c` or `exec` has no file."""
    filename = function.__code__.co_filename
    if filename == "<string>":
        return str(function.__globals__.get("__name__")).split(".")[0] != "weft"
    return not is_internal(filename)


@functools.cache
def _is_installed(package: str) -> bool:
    """Whether a package was installed, or came with Python or this library."""
    if package in _OTHERS or package in sys.stdlib_module_names:
        return True
    filename = getattr(sys.modules.get(package), "__file__", None)
    return filename is not None and filename.startswith(_INSTALLED)


def _names(code: CodeType) -> set[str]:
    """The global names and attributes that a function, and the functions inside it, use."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _texts(code: CodeType) -> set[str]:
    """The words in a function that may be attributes: `getattr(x, "name")`."""
    found: set[str] = set()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _texts(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            found.add(constant)
    return found
