"""What is exported of a function: its graph, and what each input and output of it is outside.

An input is an argument that the caller gives at each run, a weight, which stays as it is, or state,
which each run replaces: what the function rebinds in modules, optimisers and closed-over tensors,
and the counter of random numbers. Each has a name that C takes.

>>> import weft as wf
>>> total = wf.zeros(3)
>>> def add(x):
...     total.copy_(total + x)
...     return total * 2
>>> program = exported_program(add, [wf.ones(3)])
>>> [port.name for port in program.inputs], [state.port.name for state in program.states]
(['x'], ['total'])
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from weft.compiler.export.sizes import (
    NO_CHOICE,
    SizeRange,
    check_guards,
    size_range,
    symbols_of,
)
from weft.compiler.function.arguments import Call
from weft.compiler.function.closures import closed_over
from weft.compiler.function.jit import Jit
from weft.compiler.function.recording import Output, Recording, Source
from weft.compiler.function.value_names import Names
from weft.compiler.plan.launch import Sizes, static_shape
from weft.core import trees
from weft.core.arrays import to_host
from weft.core.errors import UnsupportedError
from weft.core.guards import Guards
from weft.core.records import frozen
from weft.core.shapes import Binding, Unifier, size
from weft.core.types import TensorType
from weft.ir.graph import Graph
from weft.ir.tensor import Tensor, wrap

Array = np.ndarray[Any, Any]
KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        "auto bool break case char const continue default do double else enum extern false float "
        "for goto if inline int long register restrict return short signed sizeof static struct "
        "switch true typedef union unsigned void volatile while model weights memory own_memory "
        "own_error own_amounts own_work own_scratch own_workspace",
    )
)
"""What no argument in C may be called."""


@frozen
class Port:
    """A tensor that goes in or out, with its name in C and its place in the graph."""

    name: str
    title: str
    """What the user calls it."""
    type: TensorType
    position: int
    largest: Sizes = field(default_factory=dict)
    """The largest of each size that is a symbol."""

    def shape_at(self, sizes: Sizes) -> tuple[int, ...]:
        """Its shape for some sizes."""
        return static_shape(self.type.shape, sizes)

    @property
    def count(self) -> int:
        """How many elements it has at most."""
        elements = size(self.type.shape)
        if isinstance(elements, int):
            return elements
        return int(SizeRange(self.largest).values_of(elements).max())

    @property
    def bytes(self) -> int:
        """How many bytes it has at most."""
        return self.count * self.type.dtype.itemsize


@frozen(eq=False)
class Weight:
    """A tensor that stays as it is."""

    port: Port
    value: Array


@frozen(eq=False)
class State:
    """A tensor that each run replaces; `read` is the place of its input, if there is one."""

    port: Port
    read: int | None
    value: Array
    """What it is at first."""


@frozen(eq=False)
class ExportedProgram:
    """A graph, and what its inputs and outputs are; a state's port says which output it is."""

    graph: Graph
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights: tuple[Weight, ...]
    states: tuple[State, ...]
    examples: tuple[Array, ...]
    """What the inputs were when the function was traced, of the largest sizes."""
    sizes: SizeRange = NO_CHOICE
    """The sizes that each run chooses."""
    is_stripped: bool = False
    """Whether it tells no names of weights and state, and no lines of the source."""

    def examples_at(self, sizes: Sizes) -> list[Array]:
        """What inputs of some sizes may be: the first elements of the examples."""
        corners = [tuple(slice(size) for size in port.shape_at(sizes)) for port in self.inputs]
        return [
            np.array(x[corner], order="C") for x, corner in zip(self.examples, corners, strict=True)
        ]

    @property
    def fixed_inputs(self) -> tuple[int, ...]:
        """The inputs that stay as they are, by position."""
        return tuple(weight.port.position for weight in self.weights)


def exported_program(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    largest: Mapping[str, Any] | None = None,
) -> ExportedProgram:
    """Trace a call, and say what becomes of its inputs and outputs.

    largest: how large each size may be that is a symbol in the arguments.
    """
    jitted = f if isinstance(f, Jit) else Jit(f)
    leaves = [x for x in trees.leaves((tuple(args), kwargs or {})) if isinstance(x, TensorType)]
    sizes = size_range(list(symbols_of([leaf.shape for leaf in leaves])), largest)
    general: dict[int, TensorType] = {}
    kept: list[Any] = []

    def example(leaf: Any) -> Any:
        if not isinstance(leaf, TensorType):
            return leaf
        tensor = _example(leaf, sizes)
        general[id(tensor)] = leaf
        kept.append(tensor)
        return tensor

    given, named = (trees.map_tree(example, each) for each in (tuple(args), kwargs or {}))
    with Guards(sizes.largest) as guards, Unifier() as unifier:
        call, recording, names = jitted.record(general, unifier, given, named)
    fixed = [binding for binding in unifier.bindings.values() if binding.symbol in sizes.largest]
    if fixed:
        raise _fixed_size(fixed[0])
    check_guards(list(guards.answers), sizes)
    return _Roles(jitted, call, recording, names, sizes).program()


def without_names(program: ExportedProgram) -> ExportedProgram:
    """The program with numbers for names of weights and state; inputs and outputs keep theirs."""

    def numbered_port(port: Port, stem: str, number: int) -> Port:
        return replace(port, name=f"{stem}_{number}", title=f"{stem}_{number}")

    weights = [
        replace(each, port=numbered_port(each.port, "weight", n))
        for n, each in enumerate(program.weights)
    ]
    states = [
        replace(each, port=numbered_port(each.port, "state", n))
        for n, each in enumerate(program.states)
    ]
    return replace(program, weights=tuple(weights), states=tuple(states), is_stripped=True)


def _example(leaf: TensorType, sizes: SizeRange) -> Any:
    """A tensor of a type: random numbers, or zeros of integers."""
    rng, kind = np.random.default_rng(0), leaf.dtype.numpy
    shape = static_shape(leaf.shape, sizes.largest)
    values = rng.normal(size=shape) if leaf.dtype.is_inexact else np.zeros(shape)
    return wrap(values.astype(kind))


class _Roles:
    """Says of each input and output of a recording what it is."""

    def __init__(
        self, jitted: Jit, call: Call, recording: Recording, names: Names, sizes: SizeRange
    ) -> None:
        self.call, self.recording, self.names, self.sizes = call, recording, names, sizes
        self.outside = _outside_names(jitted)
        self.taken: set[str] = {size_name(name).lower() for name in sizes.names}
        given = trees.leaves((call.args, call.kwargs), trees.is_registered)
        self.passed = {id(leaf) for leaf in given if isinstance(leaf, Tensor)}
        self.written = [write.source for write in recording.writes if write.output is not None]

    def program(self) -> ExportedProgram:
        """The program."""
        self._check_gradients()
        inputs, examples, weights = list[Port](), list[Array](), list[Weight]()
        for position, source in enumerate(self.recording.sources):
            if any(map(source.is_same_place, self.written)):
                continue
            value = self._value(source)
            kind = self.recording.graph.inputs[position].type
            title = self._title(source, self.names.inputs[position])
            port = self._port(title, kind, position)
            if id(source.owner(self.call.handles)) in self.passed and not source.gradient:
                inputs.append(port)
                examples.append(value)
            else:
                weights.append(Weight(port, value))
        outputs, states = self._outputs(), self._states()
        # Outputs that nobody asks for, such as gradients that no run reads, are left out.
        graph = self.recording.graph
        kept = [*[port.position for port in outputs], *[s.port.position for s in states]]
        graph = Graph(graph.inputs, graph.nodes, tuple(graph.outputs[n] for n in kept), graph.name)
        outputs = [replace(port, position=n) for n, port in enumerate(outputs)]
        states = [
            replace(state, port=replace(state.port, position=len(outputs) + n))
            for n, state in enumerate(states)
        ]
        return ExportedProgram(
            graph,
            tuple(inputs),
            tuple(outputs),
            tuple(weights),
            tuple(states),
            tuple(examples),
            self.sizes,
        )

    def _states(self) -> list[State]:
        """What a run replaces; a gradient that no run reads is none."""
        found: list[State] = []
        for write in self.recording.writes:
            places = [
                n for n, s in enumerate(self.recording.sources) if s.is_same_place(write.source)
            ]
            if write.output is None or (write.source.gradient and not places):
                continue
            value, read = self._value(write.source), places[0] if places else None
            kind = self.recording.graph.outputs[write.output].type
            title = self._title(write.source, self.names.outputs[write.output])
            if kind.shape != value.shape or kind.dtype.numpy != value.dtype:
                raise _changing_state(title, value, kind)
            found.append(State(self._port(title, kind, write.output), read, value))
        return found

    def _outputs(self) -> list[Port]:
        graph, recording = self.recording.graph, self.recording
        numbers = list(range(len(recording.results)))
        is_leaf = recording.structure is trees.LEAF
        tree = numbers[0] if is_leaf else trees.unflatten(recording.structure, numbers)
        titles = [path for path, _ in trees.flatten_with_paths(tree)]
        return [
            self._port(_output_title(title), graph.outputs[leaf.position].type, leaf.position)
            for title, leaf in zip(titles, recording.results, strict=True)
            if isinstance(leaf, Output)
        ]

    def _value(self, source: Source) -> Array:
        return np.asarray(to_host(source.read(self.call.handles)._value), order="C")

    def _title(self, source: Source, name: str) -> str:
        """What the user calls a tensor; one from outside by the name that the function has."""
        known = self.outside.get(id(source.owner(self.call.handles)), "")
        return known + (".grad" if source.gradient else "") if known else name

    def _port(self, title: str, kind: TensorType, position: int) -> Port:
        if set(symbols_of([kind.shape])) - self.sizes.largest.keys():
            raise _unknown_size(title, kind)
        if kind.dtype.is_complex:
            raise _complex_port(title, kind)
        return Port(c_name(title, self.taken), title, kind, position, self.sizes.largest)

    def _check_gradients(self) -> None:
        """Refuse a step that would add to gradients at its second call, and not at its first."""
        for write in self.recording.writes:
            source, output = write.source, write.output
            is_read = source.argument in self.recording.gradients
            if source.gradient and output is not None and is_read:
                raise _added_gradient(self._title(source, self.names.outputs[output]))


def _outside_names(jitted: Jit) -> dict[int, str]:
    """The names of tensors that a function closes over, by identity: as its own text has them."""
    names: dict[int, str] = {}
    function = jitted.__wrapped__  # type: ignore[attr-defined]
    function = getattr(function, "__func__", function)
    cells = dict(
        zip(
            getattr(getattr(function, "__code__", None), "co_freevars", ()),
            [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()],
            strict=False,
        )
    )
    scope = getattr(function, "__globals__", {})
    used = getattr(getattr(function, "__code__", None), "co_names", ())
    cells |= {name: scope[name] for name in used if name in scope}
    for name, value in cells.items():
        for path, leaf in trees.flatten_with_paths(value):
            if isinstance(leaf, Tensor):
                names.setdefault(id(leaf), _joined_path(name, path))
    for value in closed_over(function).values():
        for path, leaf in trees.flatten_with_paths(value):
            if isinstance(leaf, Tensor):
                names.setdefault(id(leaf), _joined_path("", path))
    return names


def _joined_path(name: str, path: str) -> str:
    """A name, and what is inside of it, as Python has attributes."""
    rest = re.sub(r"\['([^']*)'\]", r".\1", path).lstrip(".")
    is_index = rest.startswith("[")
    return name + ("" if is_index or not name or not rest else ".") + rest


def _output_title(path: str) -> str:
    """The name of a result, by where it is in what the function returns."""
    words = re.findall(r"\w+", path)
    return "_".join(words) if words and not words[0].isdigit() else "_".join(["output", *words])


def c_name(title: str, taken: Collection[str] | set[str]) -> str:
    """A name that C takes and nothing else has; a set of names is told of it.

    >>> c_name("net.layers[0].weight", ["net_layers_0_weight"])
    'net_layers_0_weight_2'
    """
    plain = re.sub(r"\W+", "_", title).strip("_").lower() or "value"
    is_taken = plain in KEYWORDS or re.fullmatch(r"[inp]?\d.*", plain)  # as what is written is
    plain = f"v_{plain}" if is_taken else plain
    name, count = plain, 1
    while name in taken:
        count += 1
        name = f"{plain}_{count}"
    if isinstance(taken, set):
        taken.add(name)
    return name


def size_name(name: str) -> str:
    """What a size is called in C: as the user does, unless C or what is written takes the name.

    >>> size_name("batch"), size_name("N"), size_name("int"), size_name("n1")
    ('batch', 'N', 'int_size', 'n1_size')
    """
    is_taken = name.lower() in KEYWORDS or re.fullmatch(r"[inp]?\d.*", name)
    return f"{name}_size" if is_taken else name


def _changing_state(title: str, value: Array, kind: TensorType) -> UnsupportedError:
    return UnsupportedError(
        "export",
        f"the state {title} has another type after a run than before",
        expected="state that each run replaces by one of the same dtype and shape",
        got={"before": wrap(value).type, "after": kind},
        fix="write into a tensor of a fixed size: cache[:, position] = new",
    )


def _unknown_size(title: str, kind: TensorType) -> UnsupportedError:
    return UnsupportedError(
        "export",
        f"the size of {title} is a symbol",
        expected="arguments whose sizes are numbers",
        got={title: kind},
        fix="export the function once for each size that is wanted",
    )


def _fixed_size(binding: Binding) -> UnsupportedError:
    return UnsupportedError(
        "export",
        f"the function fixes the size {binding.symbol}: {binding.symbol} = {binding.value}",
        expected="a function for all sizes from 1 to the largest",
        got={binding.symbol: binding.value},
        fix="give that size as a number, or let what it meets have the same symbol",
        at=binding.at,
    )


def _complex_port(title: str, kind: TensorType) -> UnsupportedError:
    return UnsupportedError(
        "export",
        f"{title} is complex, which exported programs do not take or give",
        expected="real numbers",
        got={title: kind},
        fix="pass real and imaginary parts as two tensors: z.real, z.imag",
    )


def _added_gradient(title: str) -> UnsupportedError:
    return UnsupportedError(
        "export",
        f"the step would add to {title} when it is called again",
        expected="a step that clears gradients before it computes them",
        got={"gradient": title},
        fix="call optimizer.zero_grad() first in the function",
    )
