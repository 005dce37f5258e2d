"""`jit`: a Python function over tensors, compiled whole.

>>> import weft as wf
>>> w = wf.tensor([1.0, 2.0], requires_grad=True)
>>> @wf.jit
... def step(w, x):
...     loss = ((w * x) ** 2).sum()
...     loss.backward()
...     with wf.no_grad():
...         w -= 0.1 * w.grad
...     w.grad = None
...     return loss
>>> step(w, wf.tensor([1.0, 1.0])).item(), [round(v, 4) for v in w.tolist()]
(5.0, [0.8, 1.6])
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial, update_wrapper
from inspect import signature
from itertools import count
from typing import Any
from weakref import ref

from weft.compiler.function.arguments import (
    PROGRAMS,
    Call,
    Family,
    General,
    arrays_as_tensors,
    read_call,
    sizes_of,
)
from weft.compiler.function.changing_values import ChangingValues
from weft.compiler.function.closures import (
    Outside,
    closed_over,
    held_by,
    holds_objects,
    is_stateful,
    modules_in,
)
from weft.compiler.function.compiled_function import Compiled
from weft.compiler.function.donation import expected_donations, gradients_beside
from weft.compiler.function.fastcall.repeated_calls import RepeatedCalls
from weft.compiler.function.plain_values import ATOMS, Plain
from weft.compiler.function.program_cache import program, split_executable
from weft.compiler.function.recording import Recording, record
from weft.compiler.function.value_names import Names, names_of
from weft.compiler.memory_budget.search import parse_bytes
from weft.compiler.report.device_report import DeviceExplanation, DeviceMemory
from weft.compiler.report.explain import Explanation, explanation
from weft.compiler.report.memory_use import MemoryReport
from weft.compiler.targets.target import Executable
from weft.core import trees
from weft.core.errors import ArgumentError, ShapeError, TraceError
from weft.core.guards import Guard, Guards
from weft.core.records import frozen
from weft.core.shapes import Dim, Unifier, is_static, symbol
from weft.core.types import TensorType
from weft.ir.graph import Graph
from weft.ir.sizes import resolve_graph
from weft.ops.operands import check_function

__all__ = ["Compilation", "Jit", "jit"]


@frozen
class Compilation:
    """One compilation of a function: for which types, and what had changed since the last."""

    types: tuple[TensorType, ...]
    reason: str


IDENTITIES = 1024
"""How many combinations of functions and objects outside are told apart until all are forgotten."""
FACTORS = (1, 2, 4, 8, 16, 32, 64)
"""What sizes are taken for multiples of, one after the other, until shapes agree."""


class Compilations(list[Compilation]):
    """The compilations of a function, in order; its text is a table."""

    def __repr__(self) -> str:
        types = [", ".join(map(str, each.types)) or "no tensors" for each in self]
        width = max(map(len, types), default=0)
        rows = [
            f"  {kinds:<{width}}  {each.reason}" for kinds, each in zip(types, self, strict=True)
        ]
        return "\n".join([f"{len(self)} compilations", *rows])


class Jit:
    """A function that is compiled for each new combination of types it is called with."""

    def __init__(
        self, f: Callable[..., Any], budget: int | None = None, own_sizes: int = 1
    ) -> None:
        self._f, self._budget = f, budget
        self._own_sizes = own_sizes
        """How many sizes have a program of their own, before there is one for all.

        With 0 there is one for all from the first call on.
        """
        self._compiled: OrderedDict[Hashable, Compiled] = OrderedDict()
        self._families: dict[Hashable, Family] = {}
        self._looked_at: dict[Hashable, frozenset[int]] = {}
        """For calls of one kind, arguments whose having a gradient matters."""
        self._outside: Outside | None = None
        self._of_objects: dict[tuple[int, ...], tuple[Sequence[Any], Outside | None]] = {}
        """What objects among the arguments hold, by these objects."""
        self._identities: dict[Hashable, int] = {}
        """A number for the functions and objects that were found in the variables outside."""
        self._numbers = count()
        self._is_traced = False
        """Whether it was traced since the variables outside were found: there may be others."""
        self._takes_objects = False
        """Whether an argument was once an object that may hold other values in each call."""
        self._modules: set[type[Any]] = set()
        """The classes of modules that were arguments."""
        self._counted: dict[Hashable, Plain] = {}
        """Plain variables, by place, that the function changes itself while it is traced."""
        self._changing = ChangingValues()
        self._repeated = RepeatedCalls()
        self.compilations = Compilations()
        update_wrapper(self, f, updated=())  # a module's attributes stay its own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled function, compiling it first if need be."""
        if self._is_traced:
            self._is_traced, self._outside, self._of_objects = False, None, {}
            self._repeated.forget_native()
        elif self._repeated.native is not None:
            result = self._repeated.native(*args, **kwargs)
            if result is not None:
                return result
        outside = self.values_outside(args, kwargs)
        recognised = self._repeated.recognise(args, kwargs, outside, self._reads_nothing_else)
        if recognised is not None:
            run, handles = recognised
            return run(handles)
        converted = arrays_as_tensors(args, kwargs)
        if converted is not None:
            return self(*converted[0], **converted[1])
        if self._looks_further(args, kwargs):
            outside = self.values_outside(args, kwargs)
        key = self._repeated.key(args, kwargs, outside)
        call, before = self._read(args, kwargs), len(self.compilations)
        found = self._find(call)
        if len(self.compilations) > before:
            self._changing.note(getattr(self, "__name__", "it"), self._plain_values(args, kwargs))
        if call.handles:  # else it is computed on the default device, which may change
            self._repeated.remember(key, call.handles, found)
        return found(call.handles)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """A copy holds the function, of the copy where it is a method, and compiles it anew.

        One that a module or a class names is told by its name, as functions are.
        """
        name = getattr(self, "__qualname__", "")
        named: Any = sys.modules.get(getattr(self, "__module__", ""))
        for part in name.split("."):
            named = getattr(named, part, None)
        return name if named is self else (Jit, (self._f, self._budget, self._own_sizes))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method of an object, where the function was compiled as one of its class."""
        return self if instance is None else BoundJit(self, instance)

    def _reads_nothing_else(self) -> bool:
        """Whether calls depend on their arguments alone."""
        return not self._takes_objects and self._variables().is_empty

    def _variables(self) -> Outside:
        """The variables that the function closes over."""
        outside = self._outside
        if outside is None or not outside.is_valid():
            outside = self._outside = self._with_number(
                closed_over(self._f, self._modules, self._counted)
            )
        return outside

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        args, kwargs = arrays_as_tensors(args, kwargs) or (args, kwargs)
        self._looks_further(args, kwargs)
        call = read_call(args, kwargs, self.values_outside(args, kwargs))
        call.distinguish(self._looked_at.get(call.kind, frozenset()))
        return call

    def values_outside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """What the function closes over, and what objects among its arguments hold."""
        values = self._variables().values()
        if self._takes_objects:
            values += self._variables_of_objects(args, kwargs).values()
        return values

    def _with_number(self, outside: Outside) -> Outside:
        """Variables without those that the function counts in, and a number for what they hold."""
        outside.drop_plain(self._counted)
        if outside.identity != ():
            number = self._identities.get(outside.identity)
            if number is None:
                if len(self._identities) >= IDENTITIES:
                    self._identities.clear()
                number = self._identities[outside.identity] = next(self._numbers)
            outside.number = number
        return outside

    def _looks_further(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether arguments are the first ones of a class, which later calls look into, too."""
        modules = modules_in((args, kwargs)) - self._modules
        if modules:
            self._modules |= modules
            self._outside = None
        has_objects = not self._takes_objects and holds_objects((args, kwargs))
        self._takes_objects = self._takes_objects or has_objects
        return bool(modules) or has_objects

    def _variables_of_objects(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outside:
        """What is held by arguments that are objects of the user's own classes."""
        leaves = trees.leaves((args, kwargs), trees.is_registered)
        objects = [x for x in leaves if trees.is_registered(x) or is_stateful(x)]
        key = (*map(id, objects),)
        owners, outside = self._of_objects.get(key, ((), None))
        is_known = all(owner() is x for owner, x in zip(owners, objects, strict=False))
        if outside is None or not is_known or not outside.is_valid():
            if len(self._of_objects) >= PROGRAMS:
                self._of_objects.clear()
            outside = self._with_number(held_by(objects, self._f, self._counted))
            self._of_objects[key] = [*map(_reference, objects)], outside
        return outside

    def _plain_values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The numbers and text that a call is given or reads from outside, by name."""
        values = {read.name: read() for read in self._plain_reads(args, kwargs)}
        try:
            values |= signature(self._f).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):  # of a function that has no signature
            values |= kwargs
        return {name: value for name, value in values.items() if type(value) in ATOMS}

    def _plain_reads(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Plain]:
        found = [self._variables()]
        if self._takes_objects:
            found.append(self._variables_of_objects(args, kwargs))
        return [read for each in found for read in each.reads if isinstance(read, Plain)]

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph of a call with these arguments; nothing is run."""
        return self._find(self._read(args, kwargs)).recording.graph

    def record(
        self,
        general: Mapping[int, TensorType],
        unifier: Unifier,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Call, Recording, Names]:
        """A call with these arguments, traced, with names for what it reads and writes.

        Some arguments may have other types, by identity: with symbols for sizes.
        """
        call = self._read(args, kwargs)
        types = [general.get(id(handle), handle.type) for handle in call.handles]
        recording = self._record_for(call, types, unifier)
        outside = self.values_outside(args, kwargs)
        return call, recording, names_of(self._f, (call.args, call.kwargs, outside), recording)

    def program(self, *args: Any, **kwargs: Any) -> Executable:
        """The compiled program of a call with these arguments; nothing is run."""
        found = self._find(self._read(args, kwargs))
        if found.spans_devices:
            return split_executable(found.fit.graph, found.recording.places, found.device)
        return program(found.fit.graph, found.fixed, found.target)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation | DeviceExplanation:
        """What a call with these arguments is compiled to, and why; nothing is run."""
        call = self._read(args, kwargs)
        found = self._find(call)
        recording, fit = found.recording, found.fit
        types = [source.read(call.handles).type for source in recording.sources]
        if found.spans_devices:
            return found.device_explanation(types)
        outside = self.values_outside(args, kwargs)
        names = names_of(self._f, (call.args, call.kwargs, outside), recording)
        given = lambda made: expected_donations(recording, made)  # noqa: E731
        made = explanation(
            fit.graph, types, found.target, given, names, fit.recomputed, found.fixed
        )
        return replace(made, beside=tuple(gradients_beside(recording, made.plan)))

    def memory(self, *args: Any, **kwargs: Any) -> MemoryReport | DeviceMemory:
        """What a call with these arguments will allocate; nothing is run."""
        call = self._read(args, kwargs)
        found = self._find(call)
        return found.memory([source.read(call.handles).type for source in found.recording.sources])

    def loops(self, *args: Any, **kwargs: Any) -> str:
        """The kernels of a call with these arguments, in the loop language."""
        return self.explain(*args, **kwargs).loops

    def assembly(self, *args: Any, **kwargs: Any) -> str:
        """The kernels of a call with these arguments, in the machine's instructions."""
        return self.explain(*args, **kwargs).assembly

    def _find(self, call: Call) -> Compiled:
        types = [handle.type for handle in call.handles]
        if not all(is_static(kind.shape) for kind in types):
            # inside a trace for all sizes, whose guards and unifier note what is needed here
            recording = self._record_call(call, types)
            return self._make_program(call, types, recording, "inside of a function for all sizes")
        found = self._compiled.get(call.key)
        if found is None or not found.fits():
            found = self._compiled[call.key] = self._compile(call)
            if len(self._compiled) > PROGRAMS:
                self._compiled.popitem(last=False)
        else:
            self._compiled.pop(call.key, None)  # another thread may have dropped it
            self._compiled[call.key] = found
        return found

    def _compile(self, call: Call) -> Compiled:
        """A program for these types, or for all sizes once some have programs of their own."""
        types = [handle.type for handle in call.handles]
        family = self._families.get(call.family)
        if family is None and not self._own_sizes:
            family = self._add_family(call, _with_other_sizes(types))
        if family is None:
            reason = (
                "other dtypes, ranks or values of arguments" if self._families else "first call"
            )
            made = self._compile_for(call, types, reason)
            self._add_family(call, types)
            return made
        if family.grant_own(types, self._own_sizes):
            return self._compile_for(call, types, "another size")
        found = family.find(types)
        if found is not None:
            return found
        program, needs_size = self._general_program(call, types, family)
        if program is not None:
            family.add(program)
            return program.made
        reason = "which the function depends on" if self._budget is None else "fitted by itself"
        made = self._compile_for(call, types, f"another size, {reason}")
        family.fixed = family.fixed or needs_size  # a wrong call says nothing of others
        return made

    def _add_family(self, call: Call, types: list[TensorType]) -> Family:
        """Keep the sizes of a new kind of calls; its key holds objects that calls were given."""
        family = self._families[call.family] = Family([types])
        if len(self._families) > PROGRAMS:
            self._families.pop(next(iter(self._families)), None)
        return family

    def _general_program(
        self, call: Call, types: Sequence[TensorType], family: Family
    ) -> tuple[General | None, bool]:
        """A program for all sizes that takes these; without one, whether its trace has failed.

        Where shapes do not agree for all sizes, they may for all even ones, or multiples of more:
        what is halved and doubled has its size again.
        """
        tried: list[TensorType] | None = None
        for factor in FACTORS if self._budget is None else ():
            general = family.generalize_types(types, factor)
            if general is None or general == tried:
                break
            tried = general
            try:
                program = self._compile_general(call, general, family.reason(types, general))
            except ShapeError:
                continue
            except Exception:  # the function needs to know the size, or fails for any
                break
            return (program, False) if program.takes(types) else (None, False)
        return None, tried is not None

    def _compile_general(self, call: Call, general: Sequence[TensorType], reason: str) -> General:
        """A program for all sizes; what it took for granted of them are its guards."""
        sizes = sizes_of(general, [handle.type for handle in call.handles])
        with Guards(sizes or {}) as guards, Unifier() as unifier:
            made = self._compile_for(call, general, reason, unifier)
        bound = [symbol(name) - unifier.resolve(symbol(name)) for name in unifier.bindings]
        equal = [Guard(each, "zero", True) for each in bound if isinstance(each, Dim)]
        return General(general, (*guards.answers, *equal), made)

    def _compile_for(
        self,
        call: Call,
        types: Sequence[TensorType],
        reason: str,
        unifier: Unifier | None = None,
    ) -> Compiled:
        return self._make_program(call, types, self._record_for(call, types, unifier), reason)

    def _record_for(
        self, call: Call, types: Sequence[TensorType], unifier: Unifier | None = None
    ) -> Recording:
        with unifier or Unifier() as unifier:
            recording = self._record_call(call, types)
        if unifier.bindings:
            graph = resolve_graph(recording.graph, unifier.resolve)
            recording = replace(recording, graph=graph)
        return recording

    def _record_call(self, call: Call, types: Sequence[TensorType]) -> Recording:
        outside = self._variables()
        plain = [(read, read.key()) for read in self._plain_reads(call.args, call.kwargs)]
        recording = record(
            call.handles, lambda: self._f(*call.args, **call.kwargs), types, call.device
        )
        changed: dict[Hashable, Plain] = {
            read.place: read for read, key in plain if key is not None and read.key() != key
        }
        changed |= outside.grown_containers()
        if changed:
            self._counted |= changed
            self._variables().drop_plain(changed)
            self._of_objects = {}
            call.kind = self._read(call.args, call.kwargs).kind
            call.distinguish(self._looked_at.get(call.kind, frozenset()))
        self._is_traced = True
        return recording

    def _make_program(
        self, call: Call, types: Sequence[TensorType], recording: Recording, reason: str
    ) -> Compiled:
        if any(isinstance(result, Dim) for result in recording.results):
            raise _size_returned(recording)
        self.compilations.append(Compilation(tuple(types), reason))
        looked_at = self._looked_at.get(call.kind, frozenset()) | recording.gradients
        if looked_at:
            self._looked_at[call.kind] = looked_at
            call.distinguish(looked_at)
        return Compiled(
            recording,
            budget=self._budget,
            fixed=call.fixed_inputs(recording),
            device=call.device,
        )


class BoundJit:
    """A compiled method of one object: calls and reports take the object first.

    >>> import weft as wf
    >>> class Scale:
    ...     def __init__(self, factor): self.factor = wf.tensor(factor)
    ...     @wf.jit
    ...     def __call__(self, x): return self.factor * x
    >>> double = Scale(2.0)
    >>> double(wf.tensor(3.0)).item(), len(double.__call__.explain(wf.tensor(3.0)).kernels)
    (6.0, 1)
    """

    def __init__(self, function: Jit, instance: Any) -> None:
        self.__func__, self.__self__ = function, instance

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is the method of the object's copy."""
        return BoundJit, (self.__func__, self.__self__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled function with the object as its first argument."""
        return self.__func__(self.__self__, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__func__, name)
        is_of_calls = callable(found) and name in vars(Jit) and not name.startswith("_")
        return partial(found, self.__self__) if is_of_calls else found


def jit(
    f: Callable[..., Any] | None = None,
    *,
    static_argnames: str | Sequence[str] = (),
    memory: str | int | None = None,
) -> Any:
    """Compile a function whole: forward, backward and updates of state in one program.

    Arguments are trees of tensors and of values that are part of the program's key. Tensors that
    the function rebinds (parameters, moments, gradients, the generator's counter) are written back.
    Whatever is no tensor is static; `static_argnames` may say so for readers. Python values that
    the function closes over, functions that it calls, and attributes of objects, classes and
    modules that it names, count as they are at each call; NumPy arrays of more than a few elements
    that are written to are better passed as arguments.

    With a budget such as `memory="300MB"` the program computes values twice instead of keeping
    them, until what `step.memory(...).peak` says fits; it is then compiled for each size by itself.
    Where that does not suffice, the first call raises an error that says by how much.

    >>> import weft as wf
    >>> @wf.jit
    ... def distance(x, y):
    ...     return wf.sqrt(((x - y) ** 2).sum())
    >>> distance(wf.tensor([0.0, 3.0]), wf.tensor([4.0, 0.0])).item()
    5.0
    >>> len(distance.explain(wf.ones(2), wf.zeros(2)).kernels)
    1
    """
    budget = None if memory is None else parse_bytes("jit", memory)
    if f is None:
        return lambda function: jit(function, static_argnames=static_argnames, memory=memory)
    check_function("jit", f)
    for name in (static_argnames,) if isinstance(static_argnames, str) else static_argnames:
        _check_parameter(f, name)
    return Jit(f, budget)


def _reference(value: Any) -> Callable[[], Any]:
    """What gives an object as long as it is there; one that knows no references is kept."""
    try:
        return ref(value)
    except TypeError:
        return lambda: value


def _check_parameter(f: Callable[..., Any], name: str) -> None:
    parameters = signature(f).parameters
    if name not in parameters and all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
        raise ArgumentError(
            "jit",
            f"the function has no argument called {name!r}",
            expected="one of " + ", ".join(parameters),
            got={"static_argnames": name},
            fix="name an argument of the function",
        )


def _with_other_sizes(types: Sequence[TensorType]) -> list[TensorType]:
    """The types with each axis of another size, as if a call before had had them."""
    return [kind.with_shape(tuple([size + 1 for size in kind.shape])) for kind in types]


def _size_returned(recording: Recording) -> TraceError:
    return TraceError(
        "jit",
        "the function returns a size that is not known while it is traced",
        expected="tensors, and values that do not depend on sizes",
        got={"results": recording.results},
        fix="return the tensor, and take its shape from the result",
    )
