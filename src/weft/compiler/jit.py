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
from dataclasses import dataclass
from functools import lru_cache, update_wrapper
from typing import Any

import numpy as np

from weft.core import trees
from weft.compiler.program import Program
from weft.core.errors import ArgumentTypeError
from weft.core.settings import settings
from weft.core.types import TensorType
from weft.ir.graph import Graph
from weft.ir.tensor import Tensor, grad_mode, wrap
from weft.compiler.tracing import Recording, record
from weft.ops.control import run
from weft.ops.control_call import EVALUATOR, call_graph
from weft.ops.random_bits import GENERATOR

__all__ = ["Compilation", "Jit", "jit"]

PROGRAMS = 64
"""How many compiled forms of one function are kept."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """One compilation of a function: for which types, and what had changed since the last."""

    types: tuple[TensorType, ...]
    reason: str


@dataclass(slots=True)
class Call:
    """A call taken apart: its leaves, the handles among them, and the key of its program."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    handles: list[Tensor]
    key: Hashable


class Jit:
    """A function that is compiled for each new combination of types it is called with."""

    def __init__(self, f: Callable[..., Any], static_argnames: Sequence[str] = ()) -> None:
        self._f = f
        self._static = frozenset(static_argnames)
        self._programs: OrderedDict[Hashable, Recording] = OrderedDict()
        self.compilations: list[Compilation] = []
        update_wrapper(self, f)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled function, compiling it first if need be."""
        call = self._read(args, kwargs)
        recording = self._recording(call)
        inputs = [source.read(call.handles) for source in recording.sources]
        if _is_plain(inputs, recording):
            arrays = evaluate(recording.graph, [x._value for x in inputs])
            outputs = [wrap(array) for array in arrays]
        else:
            outputs = list(call_graph(recording.graph, *inputs))
        _write_back(recording, call.handles, outputs)
        return recording.rebuild(outputs)

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph of a call with these arguments; nothing is run."""
        return self._recording(self._read(args, kwargs)).graph

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        leaves, structure = trees.flatten((args, kwargs))
        handles: list[Tensor] = []
        keys: list[Hashable] = [structure, grad_mode.enabled]
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                handles.append(leaf)
                grad = None if leaf._grad is None else leaf._grad.type
                keys.append((leaf.type, leaf._node is None, grad))
            else:
                keys.append(_static_key(leaf))
        return Call(args, kwargs, handles, tuple(keys))

    def _recording(self, call: Call) -> Recording:
        found = self._programs.get(call.key)
        if found is None:
            found = record(call.handles, lambda: self._f(*call.args, **call.kwargs))
            self.compilations.append(
                Compilation(tuple(h.type for h in call.handles), self._reason())
            )
            self._programs[call.key] = found
            if len(self._programs) > PROGRAMS:
                self._programs.popitem(last=False)
        else:
            self._programs.move_to_end(call.key)
        return found

    def _reason(self) -> str:
        return "first call" if not self.compilations else "other types or values of arguments"


def jit(f: Callable[..., Any] | None = None, *, static_argnames: Sequence[str] = ()) -> Any:
    """Compile a function whole: forward, backward and updates of state in one program.

    Arguments are trees of tensors and of values that are part of the program's key. Tensors that
    the function rebinds (parameters, moments, gradients, the generator's counter) are written back.
    """
    if f is None:
        return lambda function: Jit(function, static_argnames)
    return Jit(f, static_argnames)


def evaluate(graph: Graph, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """The outputs of a graph, compiled; by reference where `settings.compiler` is off."""
    if not settings.compiler:
        return list(run(graph, arrays))
    return program(graph).run(arrays)


@lru_cache(maxsize=256)
def program(graph: Graph) -> Program:
    """The compiled form of a graph; equal graphs are compiled once."""
    return Program(graph)


EVALUATOR.append(evaluate)


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
    return type(leaf), leaf


def _is_plain(inputs: Sequence[Tensor], recording: Recording) -> bool:
    """Whether nothing but the values is asked for: no transform, no later derivative."""
    if any(type(x._value) is not np.ndarray for x in inputs):
        return False
    recorded = grad_mode.enabled and recording.differentiable
    return not recorded or all(x._node is None for x in inputs)


def _write_back(recording: Recording, handles: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    for write in recording.writes:
        owner = write.source.owner(handles)
        if owner is None:
            continue
        value = None if write.output is None else outputs[write.output]._value
        if write.source.gradient:
            owner._grad = None if value is None else wrap(value)
        elif owner is GENERATOR.counter:
            GENERATOR.advance(wrap(value))
        else:
            owner._value = value
