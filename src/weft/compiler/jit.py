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

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, update_wrapper
from inspect import signature
from sys import getrefcount
from typing import Any

import numpy as np

from weft.compiler import stored
from weft.compiler.closures import Read, closed_over
from weft.compiler.explain import Explanation, explanation
from weft.compiler.memory_report import MemoryReport, memory_report
from weft.compiler.naming import names_of
from weft.compiler.program import Program
from weft.compiler.recomputation import Fit, fitted, parse_bytes
from weft.compiler.runner import Runner
from weft.compiler.tracing import Recording, Source, record
from weft.compiler.user_rules import Rewrites, exactly, rewrites
from weft.core import trees
from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    NanError,
    TraceError,
    WeftError,
)
from weft.core.settings import settings
from weft.core.shapes import Dim, Dimension, Unifier, match_size, symbol
from weft.core.types import TensorType
from weft.ir.dispatch import OBSERVERS
from weft.ir.graph import Graph, is_local
from weft.ir.sizes import resolve_graph, specialize
from weft.ir.tensor import Tensor, grad_mode, wrap
from weft.ops.control import run, silent
from weft.ops.control_call import EVALUATOR, call_graph
from weft.ops.debugging import has_nan
from weft.ops.operands import check_function
from weft.ops.random_bits import GENERATOR

__all__ = ["Compilation", "Jit", "jit"]

PROGRAMS = 64
"""How many compiled forms of one function are kept."""
RUNNERS = 256
"""How many programs are kept for all functions together."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Compilation:
    """One compilation of a function: for which types, and what had changed since the last."""

    types: tuple[TensorType, ...]
    reason: str


class Compilations(list[Compilation]):
    """The compilations of a function, in order; its text is a table."""

    def __repr__(self) -> str:
        types = [", ".join(map(str, each.types)) or "no tensors" for each in self]
        width = max(map(len, types), default=0)
        rows = [
            f"  {kinds:<{width}}  {each.reason}" for kinds, each in zip(types, self, strict=True)
        ]
        return "\n".join([f"{len(self)} compilations", *rows])


@dataclass(slots=True)
class Call:
    """A call taken apart: the tensor handles in its arguments, and the key of its program.

    `family` is the key without the sizes, `kind` that without what is there of gradients.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    handles: list[Tensor]
    kind: Hashable
    family: Hashable = field(init=False)
    key: Hashable = field(init=False)

    def __post_init__(self) -> None:
        self.distinguish(frozenset())

    def distinguish(self, looked_at: frozenset[int]) -> None:
        """Let it matter whether these arguments have a gradient."""
        cleared = [self.handles[position]._grad is None for position in sorted(looked_at)]
        self.family = (self.kind, *cleared) if cleared else self.kind
        self.key = (self.family, *[handle._value.shape for handle in self.handles])


@dataclass(slots=True)
class Compiled:
    """One compiled form of a function."""

    recording: Recording
    program: Runner | None = None
    outside: list[tuple[Source, TensorType]] = field(init=False)
    donated: list[tuple[int, int]] = field(default_factory=list)
    """Outputs that may be written to an input's own array, and those inputs."""
    rules: Rewrites = ()
    """The rules of users that the program was compiled with."""
    budget: int | None = None
    """The bytes that a run may need."""
    _fit: Fit | None = None

    def __post_init__(self) -> None:
        pairs = zip(self.recording.sources, self.recording.graph.input_types, strict=True)
        self.outside = [(source, kind) for source, kind in pairs if source.handle is not None]

    @property
    def fit(self) -> Fit:
        """The graph that is compiled: as recorded, or, with a budget, one that fits it."""
        if self.budget is None:
            return Fit(self.recording.graph)
        if self._fit is None:
            self._fit = fitted(self.recording.graph, self.budget, self._judged)
        return self._fit

    def _judged(self, graph: Graph) -> MemoryReport:
        made = program(graph)
        return memory_report(made, {}, donated(self.recording, made))

    def fits(self) -> bool:
        """Whether tensors from outside that no variable was found for are as they were."""
        return not self.outside or all(
            (held := source.held()) is None or held.type == kind for source, kind in self.outside
        )

    def __call__(self, handles: Sequence[Tensor]) -> Any:
        """Run it on the tensors in a call's arguments, and write back the state that it changed."""
        recording = self.recording
        inputs = [source.read(handles) for source in recording.sources]
        if _is_plain(inputs, recording):
            outputs = [wrap(array) for array in self._run([x._value for x in inputs])]
        else:
            outputs = list(call_graph(recording.graph, *inputs))
        del inputs
        replaced = _write_back(recording, handles, outputs)
        if replaced and self.program is not None:
            for old, references in zip(replaced, _references(replaced), strict=True):
                if references == _UNSHARED:
                    self.program.recycle(old)
        return recording.rebuild(outputs)

    def _run(self, arrays: list[Array]) -> Sequence[Array]:
        if not settings.compiler or OBSERVERS:
            return observed(self.recording.graph, arrays)
        if self.program is None or self.rules is not rewrites():
            self._fit = self._fit if self.rules is rewrites() else None
            self.rules = rewrites()
            self.program = runner(self.fit.graph)
            self.donated = donated(self.recording, self.program)
        return self.program.run(arrays, _let_go(arrays, self.donated) if self.donated else ())


@dataclass(slots=True)
class Family:
    """Calls that differ in sizes only: the first sizes seen, and programs for all sizes."""

    first: list[TensorType]
    programs: list[tuple[list[TensorType], Compiled]] = field(default_factory=list)
    fixed: bool = False
    """Whether the function must know its sizes."""

    def find(self, types: Sequence[TensorType]) -> Compiled | None:
        """A program that takes these sizes."""
        return next((made for general, made in self.programs if _takes(general, types)), None)

    def generalized(self, types: Sequence[TensorType]) -> list[TensorType] | None:
        """The types with a symbol for each dimension that was seen with another size.

        Dimensions that changed alike are one symbol. Sizes of 0 and 1 broadcast, and stay numbers.
        """
        if self.fixed:
            return None
        known = self.programs[-1][0] if self.programs else self.first
        names: dict[tuple[Dimension, Dimension], Dim] = {}
        shapes = []
        for old, new in zip(known, types, strict=True):
            pairs = list(zip(old.shape, new.shape, strict=True))
            if any(a != b and (b in (0, 1) or a in (0, 1)) for a, b in pairs):
                return None
            shapes.append(
                tuple(a if a == b else names.setdefault((a, b), _fresh(names, a)) for a, b in pairs)
            )
        return [new.with_shape(shape) for new, shape in zip(types, shapes, strict=True)]

    def reason(self, types: Sequence[TensorType]) -> str:
        """What changed, in words."""
        known = self.programs[-1][0] if self.programs else self.first
        changed = [
            f"axis {axis} of tensor {position}: {a} then {b}"
            for position, (old, new) in enumerate(zip(known, types, strict=True))
            for axis, (a, b) in enumerate(zip(old.shape, new.shape, strict=True))
            if a != b
        ]
        return "a second size: " + ", ".join(changed)


def _fresh(names: dict[Any, Dim], old: Dimension) -> Dim:
    return old if isinstance(old, Dim) else symbol(f"n{len(names)}")


def _takes(general: Sequence[TensorType], types: Sequence[TensorType]) -> bool:
    known: dict[str, Dimension] = {}
    return all(
        match_size(pattern, dim, known) and (pattern == dim or dim > 1)
        for kind, actual in zip(general, types, strict=True)
        for pattern, dim in zip(kind.shape, actual.shape, strict=True)
    )


class Jit:
    """A function that is compiled for each new combination of types it is called with."""

    def __init__(self, f: Callable[..., Any], budget: int | None = None) -> None:
        self._f, self._budget = f, budget
        self._compiled: OrderedDict[Hashable, Compiled] = OrderedDict()
        self._families: dict[Hashable, Family] = {}
        self._plain: OrderedDict[Hashable, Compiled] = OrderedDict()
        self._looked_at: dict[Hashable, frozenset[int]] = {}
        """For calls of one kind, arguments whose having a gradient matters."""
        self._outside: list[Read] | None = None
        self.compilations = Compilations()
        update_wrapper(self, f, updated=())  # a module's attributes stay its own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled function, compiling it first if need be."""
        key = None if kwargs or self._outside != [] else _plain_key(args)
        found = None if key is None else self._plain.get(key)
        if found is not None and found.fits():
            return found(args)
        call = self._read(args, kwargs)
        found = self._find(call)
        if key is not None:
            self._plain[key] = found
            while len(self._plain) > PROGRAMS:
                self._plain.popitem(last=False)
        return found(call.handles)

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        if self._outside is None:
            self._outside = closed_over(self._f)
        call = _read(args, kwargs, [read() for read in self._outside])
        call.distinguish(self._looked_at.get(call.kind, frozenset()))
        return call

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph of a call with these arguments; nothing is run."""
        return self._find(self._read(args, kwargs)).recording.graph

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The compiled program of a call with these arguments; nothing is run."""
        return program(self._find(self._read(args, kwargs)).fit.graph)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What a call with these arguments is compiled to, and why; nothing is run."""
        call = self._read(args, kwargs)
        found = self._find(call)
        recording, fit = found.recording, found.fit
        types = [source.read(call.handles).type for source in recording.sources]
        outside = [read() for read in self._outside or ()]
        names = names_of(self._f, (call.args, call.kwargs, outside), recording)
        given = lambda made: donated(recording, made)  # noqa: E731
        return explanation(fit.graph, types, given, names, fit.recomputed)

    def memory(self, *args: Any, **kwargs: Any) -> MemoryReport:
        """What a call with these arguments will allocate; nothing is run."""
        return self.explain(*args, **kwargs).memory

    def loops(self, *args: Any, **kwargs: Any) -> str:
        """The kernels of a call with these arguments, in the loop language."""
        return self.explain(*args, **kwargs).loops

    def assembly(self, *args: Any, **kwargs: Any) -> str:
        """The kernels of a call with these arguments, in the machine's instructions."""
        return self.explain(*args, **kwargs).assembly

    def _find(self, call: Call) -> Compiled:
        found = self._compiled.get(call.key)
        if found is None or not found.fits():
            found = self._compiled[call.key] = self._compile(call)
            if len(self._compiled) > PROGRAMS:
                self._compiled.popitem(last=False)
        else:
            self._compiled.move_to_end(call.key)
        return found

    def _compile(self, call: Call) -> Compiled:
        """A program for these types; for all sizes of a dimension once it is seen with a second."""
        types = [handle.type for handle in call.handles]
        family = self._families.get(call.family)
        if family is None:
            reason = (
                "other dtypes, ranks or values of arguments" if self._families else "first call"
            )
            made = self._compile_for(call, types, reason)
            self._families[call.family] = Family(types)
            return made
        found = family.find(types)
        if found is not None:
            return found
        general = family.generalized(types) if self._budget is None else None
        if general is not None:
            try:
                made = self._compile_for(call, general, family.reason(types))
            except WeftError:  # the function needs to know the size
                family.fixed = True
            else:
                family.programs.append((general, made))
                return made
        reason = "which the function depends on" if self._budget is None else "fitted by itself"
        return self._compile_for(call, types, f"another size, {reason}")

    def _compile_for(self, call: Call, types: Sequence[TensorType], reason: str) -> Compiled:
        with Unifier() as unifier:
            recording = record(call.handles, lambda: self._f(*call.args, **call.kwargs), types)
        if unifier.bindings:
            graph = resolve_graph(recording.graph, unifier.resolve)
            recording = replace(recording, graph=graph)
        if any(isinstance(result, Dim) for result in recording.results):
            raise _size_returned(recording)
        self.compilations.append(Compilation(tuple(types), reason))
        looked_at = self._looked_at.get(call.kind, frozenset()) | recording.gradients
        if looked_at:
            self._looked_at[call.kind] = looked_at
            call.distinguish(looked_at)
        return Compiled(recording, budget=self._budget)


def jit(
    f: Callable[..., Any] | None = None,
    *,
    static_argnames: Sequence[str] = (),
    memory: str | int | None = None,
) -> Any:
    """Compile a function whole: forward, backward and updates of state in one program.

    Arguments are trees of tensors and of values that are part of the program's key. Tensors that
    the function rebinds (parameters, moments, gradients, the generator's counter) are written back.
    Whatever is no tensor is static; `static_argnames` may say so for readers.

    With a budget such as `memory="300MB"` the program computes values twice instead of keeping
    them, until what `step.memory(...).peak` says fits; it is then compiled for each size by itself.
    Where that does not suffice, the first call raises an error that says by how much.
    """
    budget = None if memory is None else parse_bytes("jit", memory)
    if f is None:
        return lambda function: jit(function, static_argnames=static_argnames, memory=memory)
    check_function("jit", f)
    for name in static_argnames:
        _check_parameter(f, name)
    return Jit(f, budget)


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


def program(graph: Graph) -> Program:
    """The compiled form of a graph, with all that can be asked of it."""
    return _program(graph, rewrites())


@lru_cache(maxsize=256)
def _program(graph: Graph, rules: Rewrites) -> Program:
    with exactly(rules):
        return Program(graph)


def runner(graph: Graph) -> Runner:
    """What runs a graph; equal graphs are compiled once, and found on disk by later processes."""
    rules = rewrites()
    key = graph.digest(), rules
    found = _runners.get(key)
    if found is None:
        is_known_here_only = rules or any(map(is_local, graph.nodes))
        if is_known_here_only:
            found = _program(graph, rules)
        else:
            found = stored.runner(key[0], lambda: _program(graph, rules))
        _runners[key] = found
        if len(_runners) > RUNNERS:
            _runners.popitem(last=False)
    return found


_runners: OrderedDict[tuple[str, Rewrites], Runner] = OrderedDict()


def evaluate(graph: Graph, arrays: Sequence[Array]) -> Sequence[Array]:
    """The outputs of a graph, compiled; by reference where `settings.compiler` is off."""
    if not settings.compiler or OBSERVERS:
        return observed(graph, arrays)
    return runner(graph).run(arrays)


def observed(graph: Graph, arrays: Sequence[Array]) -> Sequence[Array]:
    """The outputs by reference, or compiled under observation.

    Where compiled outputs hold NaN, the reference is run too, for its observers to find the node.
    """
    if not settings.compiler:
        return by_reference(graph, arrays)
    outputs = runner(graph).run([array.copy() for array in arrays])
    if any(map(has_nan, outputs)):
        by_reference(silent(graph), arrays)
        raise _only_compiled(outputs)
    return outputs


def _only_compiled(outputs: Sequence[Array]) -> NanError:
    """NaN that the reference does not make: rounding beside an edge, or a mistake of ours."""
    return NanError(
        "jit",
        "the compiled program gives NaN, and the reference does not",
        expected="numbers only, inside wf.debug.nans()",
        got={f"output {i}": wrap(out) for i, out in enumerate(outputs) if has_nan(out)},
        fix="run by reference: with wf.settings.changed(compiler=False)",
    )


def by_reference(graph: Graph, arrays: Sequence[Array]) -> Sequence[Array]:
    """The outputs of a graph, each node by its reference."""
    types = [wrap(array).type for array in arrays]
    return run(specialize(graph, types), arrays)


EVALUATOR.append(evaluate)


def _read(args: tuple[Any, ...], kwargs: dict[str, Any], outside: list[Any]) -> Call:
    leaves, structure = trees.flatten((args, kwargs, outside) if outside else (args, kwargs))
    handles = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    keys = [_tensor_key(x) if isinstance(x, Tensor) else _static_key(x) for x in leaves]
    same = list(map(id, handles))  # a handle that is given twice is one input of the program
    shared = tuple(map(same.index, same)) if len(set(same)) < len(same) else ()
    family = (structure, grad_mode.enabled, shared, *keys)
    return Call(args, kwargs, handles, family)


def _plain_key(args: tuple[Any, ...]) -> Hashable | None:
    """The key of a call whose arguments are nothing but tensors, and are not traced; else None."""
    key: list[Hashable] = [grad_mode.enabled]
    for x in args:
        if type(x) is not Tensor or type(x._value) is not np.ndarray:
            return None
        key.append((x._value.dtype, x._value.shape, x._node is None, x._grad is None))
    return tuple(key) if len(set(map(id, args))) == len(args) else None


def _tensor_key(x: Tensor) -> Hashable:
    """What a program depends on beside sizes: dtype, rank, and whether there is a tape."""
    value = x._value
    dtype = value.dtype if type(value) is np.ndarray else x.dtype
    return dtype, len(value.shape), x._node is None


def _size_returned(recording: Recording) -> TraceError:
    return TraceError(
        "jit",
        "the function returns a size that is not known while it is traced",
        expected="tensors, and values that do not depend on sizes",
        got={"results": recording.results},
        fix="return the tensor, and take its shape from the result",
    )


def _static_key(leaf: Any) -> Hashable:
    try:
        hash(leaf)
    except TypeError:
        raise ArgumentTypeError(
            "jit",
            "an argument is neither a tensor nor a value that can be compared",
            expected="tensors, numbers, strings, or containers of them",
            got={"argument": leaf},
            fix="convert arrays first: wf.asarray(x)",
        ) from None
    # As text, -0.0 is another number than 0.0, and NaN is the same as NaN.
    return type(leaf), repr(leaf) if isinstance(leaf, (float, complex)) else leaf


def _is_plain(inputs: Sequence[Tensor], recording: Recording) -> bool:
    """Whether nothing but the values is asked for: no transform, no later derivative."""
    if any(type(x._value) is not np.ndarray for x in inputs):
        return False
    recorded = grad_mode.enabled and recording.differentiable
    return not recorded or all(x._node is None for x in inputs)


def _references(arrays: list[Array]) -> list[int]:
    """How many references to each array there are, with those of the list and of this question."""
    return [getrefcount(array) for array in arrays]


def donated(recording: Recording, program: Runner) -> list[tuple[int, int]]:
    """Outputs that replace the state whose array they may be written to, and those inputs."""
    found: list[tuple[int, int]] = []
    for write in recording.writes:
        source, output = write.source, write.output
        is_counter = source.argument is None and source.handle is None
        if output is None or source.gradient or is_counter:
            continue
        inputs = program.donations.get(output, ())
        found += [(output, given) for given in inputs if recording.sources[given] == source]
    return found


def _let_go(arrays: list[Array], pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those pairs whose input's array nobody but one handle, and the list, holds."""
    return [
        pair for pair in pairs if getrefcount(arrays[pair[1]]) == _HELD and _is_own(arrays[pair[1]])
    ]


def _is_own(array: Array) -> bool:
    flags = array.flags
    return bool(flags.owndata and flags.carray)


def _held_references() -> int:
    """The references to an array that one handle and a list hold, counted as `_let_go` does."""
    handle = wrap(np.empty(1))
    arrays = [handle._value]
    counts = [getrefcount(arrays[place]) for place in (0,)]
    return counts[0]


_HELD = _held_references()


def _count(held: object) -> int:
    return getrefcount(held)


def _count_of_one() -> int:
    """The count of something that one variable holds."""
    made = wrap(None)
    return _count(made)


_ALONE = _count_of_one()

_UNSHARED = _references([np.empty(1)])[0]
"""The references to an array that only a list holds; interpreters count differently."""


def _write_back(
    recording: Recording, handles: Sequence[Tensor], outputs: Sequence[Tensor]
) -> list[Array]:
    """Write state back; the arrays that were replaced."""
    replaced: list[Array] = []
    for write in recording.writes:
        owner = write.source.owner(handles)
        if owner is None:
            continue
        value = None if write.output is None else outputs[write.output]._value
        if write.source.gradient:
            old = owner._grad
            owner._grad = None if value is None else wrap(value)
            if old is not None and _count(old) == _ALONE and type(old._value) is np.ndarray:
                replaced.append(old._value)
        elif owner is GENERATOR.counter:
            GENERATOR.advance(wrap(value))
        else:
            if type(owner._value) is np.ndarray:
                replaced.append(owner._value)
            owner._value = value
    return replaced
