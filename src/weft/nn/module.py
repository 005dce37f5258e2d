"""`Module`: a part of a network, whose attributes are its tree.

Tensors that are assigned to attributes become parameters (leaves that require a gradient) or
buffers (any other tensor); modules become children, alone or in lists, tuples and dictionaries.
Everything else is configuration: it is part of the program that `wf.jit` compiles, so that
changing it compiles anew. A module is a tree like any other: `wf.grad`, `wf.vmap` and `wf.jit` take
it as an argument.

>>> import weft as wf
>>> from weft import nn
>>> class Scale(nn.Module):
...     def __init__(self):
...         self.factor = nn.Parameter(wf.tensor([2.0, 3.0]))
...     def forward(self, x):
...         return self.factor * x
>>> net = Scale()
>>> net(wf.tensor([1.0, 1.0])).tolist(), list(net.state_dict())
([2.0, 3.0], ['factor'])
>>> gradient = wf.grad(lambda net, x: net(x).sum())(net, wf.tensor([5.0, 7.0]))
>>> gradient.factor.tolist()
[5.0, 7.0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from itertools import count
from typing import Any, ClassVar, Self
from weakref import WeakSet

import weft as wf
from weft.eager import call_beside
from weft.names import nearest_name, suggestion, takes_no_arguments
from weft.nn.functional.checks import parameter_replaced, refuse_lists
from weft.nn.layout import (
    BUFFER,
    CHANGES,
    CONTAINERS,
    INTERNAL,
    PARAMETER,
    TRANSIENT,
    Place,
    dotted_name,
    is_module,
    lay_out,
    put_together,
    rebuild,
    role_of,
    take_apart,
)
from weft.nn.naming import enter_module
from weft.nn.notebook import module_html
from weft.nn.state import Mismatch, check_state, write_entry
from weft.nn.summary import Summary, summarize

Hook = Callable[..., Any]
is_tracing = wf.ir.is_tracing
_numbers = count()


def takes_device(constructor: Callable[..., None]) -> Callable[..., None]:
    """Give the constructor of a layer its option `device`: where its parameters are made."""

    @wraps(constructor)
    def __init__(self: Any, *args: Any, device: Any = None, **kwargs: Any) -> None:  # noqa: N807
        if device is None:
            constructor(self, *args, **kwargs)
            return
        with wf.default_device(device):
            constructor(self, *args, **kwargs)

    return __init__


def Parameter(data: Any, requires_grad: bool = True) -> wf.Tensor:  # noqa: N802  as in PyTorch
    """A tensor that a module learns: a leaf of its own that requires a gradient.

    >>> Parameter([1.0, 2.0]).requires_grad
    True
    """
    value = wf.asarray(data) if not isinstance(data, wf.Tensor) else data
    return value.detach().clone().requires_grad_(requires_grad)


class Waiting:
    """The layers that have no parameters yet, because they were not called."""

    layers: ClassVar[WeakSet[Any]] = WeakSet()


def _refuse_waiting(net: Module, modules: list[Any]) -> None:
    """Refuse to list the parameters of a network that does not have all of them yet."""
    waiting = [each for each in modules if each in Waiting.layers]
    if waiting:
        raise wf.UnsupportedError(
            type(net).__name__,
            "a lazy layer has no parameters before it is called",
            expected="a call of the network with a batch first",
            got={"layers": ", ".join(type(each).__name__ for each in waiting)},
            fix="net(batch)",
        )


class HookHandle:
    """What `register_forward_hook` returns: `remove()` takes the hook off, also after `with`.

    >>> net = wf.nn.Linear(2, 1)
    >>> handle = net.register_forward_hook(lambda module, given, result: result * 0)
    >>> net(wf.ones((1, 2))).item()
    0.0
    >>> handle.remove()
    """

    def __init__(self, owner: Module, name: str, number: int) -> None:
        self._owner, self._name, self._number = owner, name, number

    def remove(self) -> None:
        """Take the hook off; a second time does nothing."""
        getattr(self._owner, self._name).pop(self._number, None)
        CHANGES.count += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class Module:
    """The base of all layers and networks; `forward` says what calling it computes.

    >>> import weft as wf
    >>> class Double(wf.nn.Module):
    ...     def __init__(self, features):
    ...         self.inner = wf.nn.Linear(features, 1)
    ...     def forward(self, x):
    ...         return 2 * self.inner(x)
    >>> [name for name, _ in Double(3).named_parameters()]
    ['inner.weight', 'inner.bias']
    """

    training: bool
    _roles: dict[str, str]
    _hooks: dict[int, Hook]
    _pre_hooks: dict[int, Hook]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """An empty module, so that a subclass need not call `super().__init__()`."""
        module = super().__new__(cls)
        empty: dict[str, Any] = {"_roles": {}, "_hooks": {}, "_pre_hooks": {}, "_layout": None}
        module.__dict__.update(empty, training=True)
        return module

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do; arguments that no subclass takes are refused."""
        following = super().__init__
        if (args or kwargs) and getattr(following, "__objclass__", None) is object:
            raise takes_no_arguments(type(self).__name__, args, kwargs)
        following(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; each subclass defines it."""
        name = type(self).__name__
        raise wf.UnsupportedError(
            name,
            "this module does not say what it computes",
            expected=f"a method forward in class {name}",
            got={"arguments": ", ".join(type(a).__name__ for a in args) or "none"},
            fix="def forward(self, x): ...",
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` between the hooks."""
        if wf.staging.BUILDING and wf.staging.current_builder() is not None:
            wf.graph.adopt(self)
        if is_tracing():
            with enter_module(self):
                return self._run(args, kwargs)
        if not self._hooks and not self._pre_hooks:
            try:
                return call_beside(self.forward, args, kwargs)
            except AttributeError as error:
                refuse_lists(type(self).__name__, error, args)
                raise
        return self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for hook in tuple(self._pre_hooks.values()):
            changed = hook(self, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        if is_tracing():  # whose constants are part of its program; scripts follow this call
            result = self.forward(*args, **kwargs)
        else:
            result = call_beside(self.forward, args, kwargs)
        for hook in tuple(self._hooks.values()):
            changed = hook(self, args, result)
            result = result if changed is None else changed
        return result

    # --- attributes --------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        """Tensors get their role here. Writing to a buffer rebinds its handle, as `copy_` does."""
        old: Any = self.__dict__.get(name)
        role = self._roles.get(name)
        if role is not None and value is old:
            return  # what `self.count += 1` assigns
        if isinstance(value, wf.Tensor):
            if role in (BUFFER, TRANSIENT) and _replaces(old, value):
                old.set_(value)
                return
            if role == PARAMETER and role_of(value) != PARAMETER:
                raise parameter_replaced(type(self).__name__, name, value)
            transient_role = role if role == TRANSIENT else None
            self._roles[name] = (
                PARAMETER if role_of(value) == PARAMETER else transient_role or BUFFER
            )
        else:
            self._roles.pop(name, None)
        CHANGES.count += 1
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._roles.pop(name, None)
        CHANGES.count += 1
        object.__delattr__(self, name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        known = [each for each in dir(self) if not each.startswith("_")]
        raise wf.NameUnknownError(
            type(self).__name__,
            f"this module has nothing called {name!r}",
            expected="an attribute that was set, or a method of modules",
            got={"name": name},
            fix=suggestion(name, known, "net") or "look for it: dir(net)",
        )

    def __getstate__(self) -> dict[str, Any]:
        """All but the remembered layout, for copies and pickles."""
        return {**self.__dict__, "_layout": None}

    def register_buffer(self, name: str, tensor: wf.Tensor | None, persistent: bool = True) -> None:
        """Hold a tensor that is not learned; one that is not persistent is not saved.

        >>> net = Module()
        >>> net.register_buffer("mask", wf.ones(2), persistent=False)
        >>> net.mask.tolist(), net.state_dict()
        ([1.0, 1.0], {})
        """
        setattr(self, name, tensor)
        if tensor is not None:
            self._roles[name] = BUFFER if persistent else TRANSIENT
            CHANGES.count += 1

    def register_parameter(self, name: str, tensor: wf.Tensor | None) -> None:
        """Hold a tensor that is learned, or None where it is left out."""
        setattr(self, name, tensor if tensor is None else Parameter(tensor))

    def add_module(self, name: str, module: Module | None) -> None:
        """Hold a module under a name that is computed."""
        setattr(self, name, module)

    # --- what is inside ----------------------------------------------------------------------

    def _places(self, roles: tuple[str, ...], recurse: bool) -> Iterator[tuple[str, Any]]:
        """Tensors of certain roles by name, each once."""
        layout = lay_out(self)
        if Waiting.layers:
            _refuse_waiting(self, [each for _, each in layout.modules])
        seen: set[int] = set()
        for place in layout.places:
            inside = recurse or place.owner is self
            if place.role in roles and inside and place.index not in seen:
                seen.add(place.index)
                yield place.name, layout.tensors[place.index]

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, wf.Tensor]]:
        """The parameters, each once, with their dotted names.

        They are leaves: what is computed from them, such as p - lr * g, is recorded. A loop that
        updates a dict of them by hand begins with {name: p.detach() for name, p in ...}.

        >>> [name for name, _ in wf.nn.Linear(2, 3).named_parameters()]
        ['weight', 'bias']
        """
        for name, tensor in self._places((PARAMETER,), recurse):
            yield dotted_name(prefix, name), tensor

    def parameters(self, recurse: bool = True) -> Iterator[wf.Tensor]:
        """The parameters, each once.

        >>> sum(p.size for p in wf.nn.Linear(2, 3).parameters())
        9
        """
        return (tensor for _, tensor in self._places((PARAMETER,), recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, wf.Tensor]]:
        """The tensors that are not learned, with their dotted names."""
        for name, tensor in self._places((BUFFER, TRANSIENT), recurse):
            yield dotted_name(prefix, name), tensor

    def buffers(self, recurse: bool = True) -> Iterator[wf.Tensor]:
        """The tensors that are not learned."""
        return (tensor for _, tensor in self._places((BUFFER, TRANSIENT), recurse))

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all inside it, each once, with their dotted names.

        >>> [name for name, _ in wf.nn.Sequential(wf.nn.ReLU(), wf.nn.Tanh()).named_modules()]
        ['', '0', '1']
        """
        for name, module in lay_out(self).modules:
            yield dotted_name(prefix, name) if name else prefix, module

    def modules(self) -> Iterator[Module]:
        """This module and all inside it, each once."""
        return (module for _, module in lay_out(self).modules)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly inside this one, with their names."""
        for name, value in self.__dict__.items():
            if name in INTERNAL:
                continue
            if is_module(value):
                yield name, value
            elif isinstance(value, (list, tuple, dict)):
                yield from _children(name, value)

    def children(self) -> Iterator[Module]:
        """The modules directly inside this one."""
        return (module for _, module in self.named_children())

    def get_submodule(self, name: str) -> Module:
        """The module of a dotted name.

        >>> wf.nn.Sequential(wf.nn.Linear(1, 2)).get_submodule("0").out_features
        2
        """
        modules = dict(self.named_modules())
        if name not in modules:
            raise _unknown_name("get_submodule", name, modules)
        return modules[name]

    # --- state -------------------------------------------------------------------------------

    def state_dict(self, prefix: str = "") -> dict[str, wf.Tensor]:
        """The present values of parameters and persistent buffers by dotted name: a snapshot.

        >>> {name: x.shape for name, x in wf.nn.Linear(2, 3).state_dict().items()}
        {'weight': (3, 2), 'bias': (3,)}
        """
        layout = lay_out(self)
        return {
            dotted_name(prefix, place.name): layout.tensors[place.index].detach()
            for place in layout.places
            if place.role != TRANSIENT
        }

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Mismatch:
        """Take the values of a dictionary such as `state_dict` returns, all or none.

        strict: missing and unexpected names are errors; else they are returned. A shape that does
        not fit is always an error. Of tied weights one name is enough.

        >>> a, b = wf.nn.Linear(2, 3), wf.nn.Linear(2, 3)
        >>> b.load_state_dict(a.state_dict())
        Mismatch(missing=[], unexpected=[])
        """
        layout = lay_out(self)
        places = [place for place in layout.places if place.role != TRANSIENT]
        mismatch = check_state(places, layout.tensors, state, strict)
        for place in places:
            if place.name in state:
                write_entry(layout.tensors[place.index], state[place.name])
        return mismatch

    def train(self, mode: bool = True) -> Self:
        """Put the module and all inside it in training mode, or in evaluation mode."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Put the module and all inside it in evaluation mode.

        >>> wf.nn.Dropout(0.5).eval()(wf.ones(2)).tolist()
        [1.0, 1.0]
        """
        return self.train(False)

    def to(self, target: Any) -> Self:
        """Convert floating-point tensors to another dtype, or move all tensors to a device.

        The handles stay the same, so that an optimiser of the parameters stays valid.

        >>> wf.nn.Linear(1, 1).to("float64").weight.dtype
        weft.float64
        """
        with wf.no_grad():
            for tensor in lay_out(self).tensors:
                _convert(tensor, target)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze the parameters, or thaw them; they stay parameters."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self) -> None:
        """Clear the gradients of all parameters."""
        for parameter in self.parameters():
            parameter.grad = None

    def apply(self, function: Callable[[Module], Any]) -> Self:
        """Call a function on every module inside, then on this one."""
        for module in reversed(list(self.modules())):
            function(module)
        return self

    # --- hooks -------------------------------------------------------------------------------

    def register_forward_pre_hook(self, hook: Hook) -> HookHandle:
        """Call `hook(module, args)` before each `forward`; what it returns replaces the arguments.

        >>> double = wf.nn.Identity()
        >>> handle = double.register_forward_pre_hook(lambda module, args: 2 * args[0])
        >>> double(wf.tensor(3.0)).item(), handle.remove(), double(wf.tensor(3.0)).item()
        (6.0, None, 3.0)
        """
        return self._register("_pre_hooks", hook)

    def register_forward_hook(self, hook: Hook) -> HookHandle:
        """Call `hook(module, args, result)` after each `forward`; what it returns replaces it.

        Under `wf.jit` hooks are called while the function is traced, with traced tensors.
        """
        return self._register("_hooks", hook)

    def _register(self, name: str, hook: Hook) -> HookHandle:
        number = next(_numbers)
        getattr(self, name)[number] = hook
        CHANGES.count += 1
        return HookHandle(self, name, number)

    # --- text --------------------------------------------------------------------------------

    def summary(self, *args: Any, **kwargs: Any) -> Summary:
        """A table of the modules: results, parameters, operations and memory of one call.

        Tensors may be given as types, such as `wf.spec("float32", (8, 3, 32, 32))`; nothing is
        computed.

        >>> wf.nn.Linear(2, 3).summary(wf.spec("float32", (4, 2))).operations  # 2·4·2·3 + 4·3
        60
        """
        return summarize(self, args, kwargs)

    def extra_repr(self) -> str:
        """What `repr` shows between the brackets, beside the modules inside."""
        return ""

    def _repr_html_(self) -> str:
        return module_html(self)

    def __repr__(self) -> str:
        name, extra = type(self).__name__, self.extra_repr()
        lines = [f"({key}): {child!r}" for key, child in self.named_children()]
        if not lines:
            return f"{name}({extra})"
        body = "\n".join([extra, *lines] if extra else lines).replace("\n", "\n  ")
        return f"{name}(\n  {body}\n)"


CONTAINERS.append(Module)
wf.tree.register_node(Module, take_apart, rebuild)


def _replaces(old: Any, new: wf.Tensor) -> bool:
    return isinstance(old, wf.Tensor) and old.type == new.type


def _children(name: str, value: Any) -> Iterator[tuple[str, Module]]:
    """Modules in an attribute, which may be a container of them."""
    if is_module(value):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _children(f"{name}.{index}", each)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _children(f"{name}.{key}", each)


def _convert(tensor: wf.Tensor, target: Any) -> None:
    converted = tensor.to(target)
    if converted.device != tensor.device:
        gradient = tensor.grad
        tensor.set_(converted)
        tensor.grad = None if gradient is None else gradient.to(target)
    elif tensor.dtype.is_inexact and converted.dtype is not tensor.dtype:
        tensor.grad = None
        tensor.set_(converted)


def _unknown_name(op: str, name: str, known: Any) -> wf.NameUnknownError:
    meant = nearest_name(name, known)
    return wf.NameUnknownError(
        op,
        f"the module has nothing called {name!r}",
        expected="a dotted name of the module's",
        got={"name": name},
        fix=f"use {meant!r}" if meant else "look at the names: dict(net.named_modules())",
    )


def functional_call(net: Module, params: Any, *args: Any, **kwargs: Any) -> Any:
    """The pure form of a call: `net` with other parameters, given by name, as a tree or a module.

    What `params` leaves out is the net's own; buffers that the call writes to are the net's own,
    too, unless they are given.

    >>> net = wf.nn.Linear(2, 1, bias=False)
    >>> functional_call(net, {"weight": wf.tensor([[2.0, 3.0]])}, wf.tensor([1.0, 10.0])).tolist()
    [32.0]
    """
    if not isinstance(net, Module):
        raise _no_module(net)
    layout = lay_out(net)
    tensors = list(layout.tensors)
    places = {place.name: place for place in layout.places}
    for name, value in _named_tensors(params):
        if name not in places:
            raise _unknown_name("functional_call", name, places)
        tensors[places[name].index] = _check_shape(places[name], layout.tensors, value)
    return put_together(layout.skeleton, tensors)(*args, **kwargs)


def _no_module(net: Any) -> wf.ArgumentTypeError:
    return wf.ArgumentTypeError(
        "functional_call",
        "this is no module",
        expected="a wf.nn.Module",
        got={"net": net},
        fix="call a plain function as it is: f(params, x)",
    )


def _named_tensors(params: Any) -> Iterator[tuple[str, Any]]:
    """Dotted names and tensors in a dictionary, a nested tree of them, or a module."""
    if is_module(params):
        yield from params._places((PARAMETER, BUFFER, TRANSIENT), True)
        return
    if not isinstance(params, Mapping):
        raise wf.ArgumentTypeError(
            "functional_call",
            "parameters are given by name",
            expected="a dictionary such as dict(net.named_parameters()), or a module",
            got={"params": params},
            fix="functional_call(net, dict(net.named_parameters()), x)",
        )
    yield from _entries(params, "")


def _entries(params: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _entries(value, dotted_name(prefix, name))
        else:
            yield dotted_name(prefix, name), value


def _check_shape(place: Place, tensors: tuple[Any, ...], value: Any) -> wf.Tensor:
    tensor = wf.asarray(value)
    own = tensors[place.index]
    if tensor.shape != own.shape:
        raise wf.ShapeError(
            "functional_call",
            f"{place.name} has another shape in this module",
            expected=f"{place.name}: {own.type}",
            got={place.name: tensor},
            fix="map a stack of parameters: wf.vmap(lambda p: wf.functional_call(net, p, x))",
        )
    return tensor
