"""Modules that hold modules: in a row, in a list, in a dictionary.

>>> import weft as wf
>>> from weft import nn
>>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
>>> net(wf.ones((5, 4))).shape, len(net)
((5, 2), 3)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, overload

import weft as wf
from weft.nn.module import Module, Parameter


class _Row(Module):
    """Modules under the names 0, 1, 2 and so on."""

    def _row(self) -> list[Module]:
        return list(self.children())

    def _refill(self, modules: Iterable[Module]) -> None:
        for name, _ in list(self.named_children()):
            delattr(self, name)
        for index, module in enumerate(modules):
            setattr(self, str(index), _check_module(type(self).__name__, module))

    def __len__(self) -> int:
        return len(self._row())

    def __iter__(self) -> Iterator[Module]:
        return iter(self._row())

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Module | Self:
        row = self._row()
        if isinstance(index, slice):
            return self._same_container(row[index])
        return row[self._index(index, len(row))]

    def _same_container(self, modules: list[Module]) -> Self:
        return type(self)(*modules)

    def _index(self, index: int, length: int) -> int:
        if not -length <= index < length:
            raise wf.BoundsError(
                type(self).__name__,
                "there is no module at that position",
                expected=f"an index from {-length} to {length - 1}",
                got={"index": index},
                fix=f"index {length - 1} is the last" if length else "append a module first",
            )
        return index % length

    def __setitem__(self, index: int, module: Module) -> None:
        names = [name for name, _ in self.named_children()]
        name = names[self._index(index, len(names))]
        setattr(self, name, _check_module(type(self).__name__, module))

    def __delitem__(self, index: int) -> None:
        row = self._row()
        del row[self._index(index, len(row))]
        self._refill(row)

    def append(self, module: Module) -> Self:
        """Add a module at the end."""
        setattr(self, str(len(self)), _check_module(type(self).__name__, module))
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Add a module before a position."""
        row = self._row()
        row.insert(index, module)
        self._refill(row)
        return self


class Sequential(_Row):
    """Modules one after the other; each takes what the one before it returned.

    Given a dictionary, the modules have its names.

    >>> import weft as wf
    >>> net = Sequential({"double": wf.nn.Identity(), "act": wf.nn.ReLU()})
    >>> net(wf.tensor([-1.0, 2.0])).tolist(), net.act
    ([0.0, 2.0], ReLU())
    """

    def __init__(self, *modules: Any) -> None:
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                setattr(self, name, _check_module("Sequential", module))
        else:
            self._refill(modules)

    def forward(self, x: Any) -> Any:
        """Pass x through all modules."""
        for module in self.children():
            x = module(x)
        return x


class ModuleList(_Row):
    """A list of modules; how they are called is the owner's affair.

    >>> import weft as wf
    >>> layers = ModuleList([wf.nn.Linear(2, 2) for _ in range(3)])
    >>> len(layers), list(layers.state_dict())[-1]
    (3, '2.bias')
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self._refill(modules)

    def _same_container(self, modules: list[Module]) -> Self:
        return type(self)(modules)


class ModuleDict(Module):
    """Modules by name.

    >>> import weft as wf
    >>> heads = ModuleDict({"age": wf.nn.Linear(2, 1)})
    >>> "age" in heads, list(heads.keys()), heads["age"].in_features
    (True, ['age'], 2)
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        self.update(modules or {})

    def _dict(self) -> dict[str, Module]:
        return dict(self.named_children())

    def __getitem__(self, name: str) -> Module:
        return self.get_submodule(name)

    def __setitem__(self, name: str, module: Module) -> None:
        _refuse_method("ModuleDict", type(self), name)
        setattr(self, name, _check_module("ModuleDict", module))

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self._dict()

    def __len__(self) -> int:
        return len(self._dict())

    def __iter__(self) -> Iterator[str]:
        return iter(self._dict())

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._dict().keys()

    def values(self) -> Iterable[Module]:
        """The modules."""
        return self._dict().values()

    def items(self) -> Iterable[tuple[str, Module]]:
        """The names and modules."""
        return self._dict().items()

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add modules by name, or replace them."""
        for name, module in modules.items():
            self[name] = module


class ParameterList(Module):
    """A list of parameters, under the names 0, 1, 2 and so on; tensors become parameters.

    >>> weights = ParameterList([wf.ones(2), wf.zeros(3)])
    >>> len(weights), weights[1].requires_grad, list(weights.state_dict())
    (2, True, ['0', '1'])
    """

    def __init__(self, parameters: Iterable[Any] = ()) -> None:
        self.extend(parameters)

    def _list(self) -> list[wf.Tensor]:
        return [self.__dict__[name] for name in self._roles]

    def __len__(self) -> int:
        return len(self._roles)

    def __iter__(self) -> Iterator[wf.Tensor]:
        return iter(self._list())

    @overload
    def __getitem__(self, index: int) -> wf.Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[wf.Tensor]: ...
    def __getitem__(self, index: int | slice) -> wf.Tensor | list[wf.Tensor]:
        return self._list()[index]

    def __setitem__(self, index: int, parameter: Any) -> None:
        setattr(self, str(range(len(self))[index]), _as_parameter(parameter))

    def append(self, parameter: Any) -> Self:
        """Add a parameter at the end."""
        setattr(self, str(len(self)), _as_parameter(parameter))
        return self

    def extend(self, parameters: Iterable[Any]) -> Self:
        """Add parameters at the end."""
        for parameter in parameters:
            self.append(parameter)
        return self

    def extra_repr(self) -> str:
        """See `Module`."""
        return ", ".join(str(each.type) for each in self)


class ParameterDict(Module):
    """Parameters by name; tensors become parameters.

    >>> weights = ParameterDict({"scale": wf.ones(2)})
    >>> weights["shift"] = wf.zeros(2)
    >>> list(weights.keys()), weights["scale"].requires_grad
    (['scale', 'shift'], True)
    """

    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        self.update(parameters or {})

    def _dict(self) -> dict[str, wf.Tensor]:
        return {name: self.__dict__[name] for name in self._roles}

    def __getitem__(self, name: str) -> wf.Tensor:
        return getattr(self, name)  # type: ignore[no-any-return]

    def __setitem__(self, name: str, parameter: Any) -> None:
        _refuse_method("ParameterDict", type(self), name)
        setattr(self, name, _as_parameter(parameter))

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self._roles

    def __len__(self) -> int:
        return len(self._roles)

    def __iter__(self) -> Iterator[str]:
        return iter(self._dict())

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._dict().keys()

    def values(self) -> Iterable[wf.Tensor]:
        """The parameters."""
        return self._dict().values()

    def items(self) -> Iterable[tuple[str, wf.Tensor]]:
        """The names and parameters."""
        return self._dict().items()

    def update(self, parameters: Mapping[str, Any]) -> None:
        """Add parameters by name, or replace them."""
        for name, parameter in parameters.items():
            self[name] = parameter

    def extra_repr(self) -> str:
        """See `Module`."""
        return ", ".join(f"{name}: {each.type}" for name, each in self.items())


def _as_parameter(value: Any) -> wf.Tensor:
    is_parameter = isinstance(value, wf.Tensor) and value.is_leaf and value.requires_grad
    return value if is_parameter else Parameter(value)


def _refuse_method(op: str, kind: type, name: str) -> None:
    """Refuse a name that a container's methods have."""
    if hasattr(kind, name):
        raise wf.ArgumentError(
            op,
            f"{name} is a method of modules",
            expected="a name that is free",
            got={"name": name},
            fix=f"call it {name}_",
        )


def _check_module(op: str, module: Any) -> Module:
    if op == "Sequential" and isinstance(module, (list, tuple)):
        raise wf.ArgumentTypeError(
            op,
            "modules are arguments, not a list",
            expected="Sequential(module, module, ...)",
            got={"module": module},
            fix="wf.nn.Sequential(*modules)",
        )
    if not isinstance(module, Module):
        raise wf.ArgumentTypeError(
            op,
            "something that is no module was given",
            expected="instances of nn.Module",
            got={"module": module},
            fix="wf.nn.ReLU() in place of wf.relu; an instance in place of a class: nn.ReLU()",
        )
    return module
