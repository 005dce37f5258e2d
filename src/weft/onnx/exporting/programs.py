"""What is exported: a function or a module, traced with its parameters as named inputs.

>>> import weft as wf
>>> from weft.onnx.exporting.programs import trace_program
>>> program = trace_program(wf.nn.Linear(2, 3), (wf.spec("float32", ("batch", 2)),), {})
>>> list(program.state), list(program.inputs), program.graph.output_types
(['bias', 'weight'], ['x'], (f32[batch, 3],))
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import weft as wf
from weft.onnx.exporting.cleaning import clean_graph

__all__ = ["Program", "trace_program"]

OP = "onnx.export"
Dynamic = Mapping[str, Mapping[int, Any] | Sequence[Any]]


@dataclass(frozen=True)
class Program:
    """A traced program: its graph takes the state, in the order of its names, and the inputs."""

    graph: Any
    state: dict[str, wf.Tensor]
    inputs: dict[str, wf.TensorType]
    examples: dict[str, Any]
    """The tensor that was given for each input, or None where only its type was."""
    outputs: list[str]
    name: str
    leaves: list[Any]
    structure: Any
    places: list[int]
    """Where among the leaves of the arguments the inputs are."""
    written: list[str]
    """The inputs, parameters and buffers that a call leaves changed, which a file cannot do."""

    def arguments(self, inputs: Sequence[Any]) -> Any:
        """The arguments of a call with these inputs."""
        values = list(self.leaves)
        for place, value in zip(self.places, inputs, strict=True):
            values[place] = value
        return wf.tree.unflatten(self.structure, values)


def trace_program(f: Callable[..., Any], args: Any, dynamic: Dynamic) -> Program:
    """Trace f; modules are traced as in inference."""
    if not callable(f):
        raise wf.ArgumentTypeError(
            OP,
            "this cannot be called",
            expected="a module or a function of tensors",
            got={"f": f},
            fix="wf.onnx.export(net, (x,), path)",
        )
    arguments = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    leaves, structure = wf.tree.flatten(arguments)
    names = _input_names(f, arguments)
    places = [place for place, leaf in enumerate(leaves) if _is_array(leaf)]
    types = _with_symbols({names[p]: _type_of(leaves[p]) for p in places}, dynamic)
    state, modules = _state_of(f), _modules_of(f)
    outputs: list[str] = []

    def run(held: dict[str, wf.Tensor], inputs: Sequence[wf.Tensor]) -> Any:
        for name, tensor in held.items():
            with wf.no_grad():
                state[name].copy_(tensor)
        values = list(leaves)
        for place, tensor in zip(places, inputs, strict=True):
            values[place] = tensor
        result = f(*wf.tree.unflatten(structure, values))
        outputs[:] = _output_names(result)
        return result, {name: state[name] for name in held}, list(inputs)

    kinds = {name: tensor.type for name, tensor in state.items()}
    with wf.nn.evaluation_mode(*modules.values()):
        graph = wf.ir.trace(run, kinds, list(types.values()))
    ordered = {name: state[name] for name in sorted(state)}
    _refuse_fixed_sizes(types, graph.input_types[len(state) :])
    graph, written = _without_writes(graph, len(outputs), [*ordered, *types])
    return Program(
        clean_graph(graph),
        ordered,
        types,
        {names[p]: None if isinstance(leaves[p], wf.TensorType) else leaves[p] for p in places},
        outputs,
        getattr(f, "__name__", type(f).__name__).strip("<>"),
        leaves,
        structure,
        places,
        written,
    )


COPIES = ("broadcast_to", "stop_gradient")
"""What a parameter goes through as it is copied, without a derivative, when the call begins."""


def _without_writes(graph: Any, count: int, names: Sequence[str]) -> tuple[Any, list[str]]:
    """A graph with its first results alone, and the inputs that its other results do not keep."""
    makers = {result: node for node in graph.nodes for result in node.results}
    written = []
    for name, before, after in zip(names, graph.inputs, graph.outputs[count:], strict=True):
        kept = after
        while kept in makers and makers[kept].primitive.name in COPIES:
            (kept,) = makers[kept].operands
        if kept is not before:
            written.append(name)
    return wf.ir.Graph(graph.inputs, graph.nodes, graph.outputs[:count]), written


# --- inputs and outputs --------------------------------------------------------------------------


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (wf.Tensor, wf.TensorType)) or hasattr(leaf, "__array__")


def _type_of(leaf: Any) -> wf.TensorType:
    return leaf if isinstance(leaf, wf.TensorType) else wf.asarray(leaf).type


def _input_names(f: Callable[..., Any], arguments: Sequence[Any]) -> list[str]:
    """The names of all leaves: the parameter's, and behind it the path inside a tree."""
    called = f.forward if isinstance(f, wf.nn.Module) else f
    try:
        parameters = [*inspect.signature(called).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for number, argument in enumerate(arguments):
        parameter = parameters[min(number, len(parameters) - 1)] if parameters else None
        name = f"input_{number}" if parameter is None else parameter.name
        if parameter is not None and parameter.kind is parameter.VAR_POSITIONAL:
            name = f"{name}_{number - len(parameters) + 1}"
        paths = wf.tree.flatten(argument)[1].paths()
        names += [_plain_name(f"{name}.{path}" if path else name) for path in paths]
    return names


def _plain_name(path: str) -> str:
    """A path in a tree as a name: state[0].h is state_0_h."""
    return re.sub(r"\W+", "_", path).strip("_")


def _output_names(result: Any) -> list[str]:
    paths = wf.tree.flatten(result)[1].paths()
    if len(paths) == 1:
        return [_plain_name(paths[0]) if re.search("[A-Za-z]", paths[0]) else "output"]
    plain = [_plain_name(path) for path in paths]
    return [name if name[:1].isalpha() else f"output_{name}" for name in plain]


def _with_symbols(types: dict[str, wf.TensorType], dynamic: Dynamic) -> dict[str, wf.TensorType]:
    """The types of the inputs with symbols in the place of the sizes that may vary."""
    for name in dynamic:
        if name not in types:
            raise wf.ArgumentError(
                OP,
                f"no input is called {name!r}",
                expected=f"one of {', '.join(types)}",
                got={"dynamic": dict(dynamic)},
                fix=f'dynamic={{"{next(iter(types), "x")}": {{0: "batch"}}}}',
            )
    return {name: _dynamic_type(name, kind, dynamic.get(name, {})) for name, kind in types.items()}


def _dynamic_type(name: str, kind: wf.TensorType, axes: Any) -> wf.TensorType:
    entries = axes.items() if isinstance(axes, Mapping) else enumerate(axes)
    shape = list(kind.shape)
    for axis, size in entries:
        if size is None:
            continue
        if not -kind.ndim <= axis < kind.ndim:
            raise wf.AxisError(
                OP,
                f"{name} has no axis {axis}",
                expected=f"an axis from 0 to {kind.ndim - 1}",
                got={name: kind},
                fix=f'dynamic={{"{name}": {{0: "batch"}}}}',
            )
        shape[axis] = wf.symbol(size) if isinstance(size, str) else size
    return wf.TensorType(kind.dtype, tuple(shape))


def _refuse_fixed_sizes(asked: dict[str, wf.TensorType], traced: Sequence[wf.TensorType]) -> None:
    """A size that was to vary and that the program fixes is an error, not a surprise later."""
    for (name, kind), found in zip(asked.items(), traced, strict=True):
        for axis, (wanted, size) in enumerate(zip(kind.shape, found.shape, strict=True)):
            if not isinstance(wanted, int) and isinstance(size, int):
                raise wf.ShapeError(
                    OP,
                    f"the program fixes the size {wanted} of {name} to {size}",
                    expected=f"a program for every size of axis {axis} of {name}",
                    got={name: kind},
                    fix=f"leave {wanted} out of dynamic, or do not combine it with a fixed size",
                )


# --- modules and their state ---------------------------------------------------------------------


def _modules_of(f: Any) -> dict[str, wf.nn.Module]:
    """The modules that a function uses, by the names that it knows them by."""
    if isinstance(f, wf.nn.Module):
        return {"": f}
    if inspect.ismethod(f):
        return {"": f.__self__} if isinstance(f.__self__, wf.nn.Module) else _modules_of(f.__func__)
    if isinstance(f, functools.partial):
        return _modules_of(f.func)
    if not inspect.isfunction(f):
        return _modules_of(f.__wrapped__) if hasattr(f, "__wrapped__") else {}
    variables = inspect.getclosurevars(f)
    scope = {**variables.globals, **variables.nonlocals}
    modules = {name: each for name, each in scope.items() if isinstance(each, wf.nn.Module)}
    return dict(zip([""], modules.values(), strict=True)) if len(modules) == 1 else modules


def _state_of(f: Any) -> dict[str, wf.Tensor]:
    """Parameters and buffers by name; one that has several names has the first."""
    state: dict[str, wf.Tensor] = {}
    seen: set[int] = set()
    for prefix, module in _modules_of(f).items():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                state[f"{prefix}.{name}" if prefix else name] = tensor
    return state
