"""What there is to draw of a graph: items in nested groups, and the values that go between them.

Each node lies in the modules that it was traced in; in them, nodes of one line of the user's, or
of one kernel, lie together. Updates lie in the module whose gradient they apply, parameters in
the module that reads them. All drawings, in whatever format, are drawings of this.

>>> import weft as wf
>>> from weft.tools.picture import Picture
>>> net = wf.nn.Sequential(wf.nn.Linear(2, 2), wf.nn.ReLU())
>>> picture = Picture(wf.ir.trace(net, wf.spec("float32", (1, 2))))
>>> [(item.title, "/".join(part.name for part in item.path)) for item in picture.items][-2:]
[('relu', 'Sequential/1'), ('output 0', '')]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import Any, NamedTuple

import weft as wf

__all__ = ["Item", "Kernel", "Part", "Picture"]

LONGEST = 34
"""How many characters of a node's constants and parameters are shown."""
ALIKE = 3
"""How many nodes of one line make a group."""
PHASES = ("forward", "backward", "update")

Home = tuple[str, tuple[str, ...]]
"""A phase, and the modules that a node lies in."""


class Part(NamedTuple):
    """One level of nesting: a module, a line of the user's, or a kernel; the key tells it apart."""

    kind: str
    name: str
    key: str


class Kernel(NamedTuple):
    """A name, a kind, the nodes in it, and what is known of it."""

    name: str
    kind: str
    nodes: Sequence[Any]
    text: str


@dataclass
class Item:
    """What is drawn as one box: an input, a node or an output."""

    title: str
    kind: str
    small: str = ""
    text: str = ""
    values: list[tuple[str, str]] = field(default_factory=list)
    """The values that it gives, with their types."""
    phase: str = ""
    path: tuple[Part, ...] = ()
    location: Any = None
    kernel: int = -1

    @property
    def label(self) -> str:
        """What is written under it: its values and their types."""
        return ", ".join(f"{name}: {kind}" if name else kind for name, kind in self.values)


class Picture:
    """A graph as items and edges; an edge goes from an item, by the number of its value."""

    def __init__(
        self,
        graph: wf.ir.Graph,
        kernels: Sequence[Kernel] = (),
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        classes: Mapping[str, str] | None = None,
    ) -> None:
        self.graph, self.kernels = graph, list(kernels)
        self.classes = dict(classes or {})
        """The class of a module, by its path, where it is known."""
        self.names = wf.ir.name_variables(graph)
        self.given = dict(zip(graph.inputs, inputs, strict=False))
        self.written = dict(enumerate(outputs))
        self.items: list[Item] = []
        self.edges: list[tuple[int, int, int]] = []
        self.homes = _Homes(graph)
        self._lines = {} if kernels else self._runs()
        self._add_all()
        self._settle_inputs()

    # --- what there is -----------------------------------------------------------------------

    def _add_all(self) -> None:
        """Inputs, nodes and outputs, so that every edge goes from an earlier to a later one.

        What several kernels compute, each for itself, is drawn in each of them.
        """
        places: dict[Any, tuple[int, int]] = {}
        for variable in self.graph.inputs:
            places[variable] = len(self.items), 0
            self._add_input(variable)
        fused = {node for kernel in self.kernels for node in kernel.nodes}
        rest = [node for node in self.graph.nodes if node not in fused]
        for number, kernel in enumerate(self.kernels):
            rest = self._add_ready(rest, places)
            inside, home = dict(places), self._kernel_home(number)
            for node in kernel.nodes:
                self._add_node(node, inside, home, number)
            places = {**inside, **places}
        for node in rest:
            self._add_node(node, places, self._home(node))
        for position, atom in enumerate(self.graph.outputs):
            self._add_output(position, atom, places)

    def _add_input(self, variable: Any) -> None:
        name = self.given.get(variable, self.names[variable])
        kind = str(variable.type)
        item = Item(name, "input", text=f"{name}: {kind}", values=[("", kind)])
        self.items.append(item)

    def _add_output(self, position: int, atom: Any, made: dict[Any, tuple[int, int]]) -> None:
        state = self.written.get(position, "")
        title = f"new {state.rpartition('.')[2]}" if state else f"output {position}"
        text = f"new {state}" if state else title
        item = Item(title, "output", text=f"{text}: {atom.type}", phase=PHASES[0])
        if atom in made:
            source = self.items[made[atom][0]]
            item.phase = source.phase
            item.path = _frame(source.path) if state else ()
        self.items.append(item)
        self._join(atom, made)

    def _add_ready(self, nodes: list[Any], made: dict[Any, tuple[int, int]]) -> list[Any]:
        """Add the nodes whose operands have been added; gives those that are left."""
        left = []
        for node in nodes:
            if all(atom in made for atom in node.operands if atom in self.names):
                self._add_node(node, made, self._home(node))
            else:
                left.append(node)
        return left

    def _add_node(
        self,
        node: Any,
        made: dict[Any, tuple[int, int]],
        home: tuple[str, tuple[Part, ...]],
        kernel: int = -1,
    ) -> None:
        words = [*[self._atom(a) for a in node.operands if a not in self.names], *parameters(node)]
        self.items.append(
            Item(
                node.primitive.name,
                family(node),
                shorten_text(", ".join(words)),
                self._text(node),
                [(self.names[result], str(result.type)) for result in node.results],
                *home,
                node.location,
                kernel,
            )
        )
        for atom in dict.fromkeys(node.operands):
            self._join(atom, made)
        here = len(self.items) - 1
        made.update({result: (here, place) for place, result in enumerate(node.results)})

    def _join(self, atom: Any, made: dict[Any, tuple[int, int]]) -> None:
        """An edge from where a value is made to the last item."""
        if atom in made:
            source, place = made[atom]
            self.edges.append((source, len(self.items) - 1, place))

    def _atom(self, atom: Any) -> str:
        if atom in self.names:
            return str(self.given.get(atom, self.names[atom]))
        return f"{atom.value.item():.6g}" if atom.value.ndim == 0 else f"constant {atom.type}"

    def _text(self, node: Any) -> str:
        results = ", ".join(f"{self.names[r]}: {r.type}" for r in node.results)
        operands = [self._atom(atom) for atom in node.operands]
        return f"{results} = {node.primitive.name}({', '.join([*operands, *parameters(node)])})"

    # --- where it belongs --------------------------------------------------------------------

    def _home(self, node: Any) -> tuple[str, tuple[Part, ...]]:
        phase, modules = self.homes[node]
        line = self._lines.get(node)
        return phase, (*module_parts(modules, self.classes), *([line] if line is not None else []))

    def _kernel_home(self, number: int) -> tuple[str, tuple[Part, ...]]:
        """A kernel lies in the modules that all of its nodes lie in."""
        kernel = self.kernels[number]
        homes = [self.homes[node] for node in kernel.nodes]
        phases = Counter(phase for phase, _ in homes)
        often = [phase for phase, count in phases.items() if count * 4 >= len(homes)]
        phase = max(often, key=_order, default=PHASES[0])
        shared = _common_prefix([modules for _, modules in homes])
        name = f"{shorten_text(kernel.name, 20)} · {_fused_text(kernel.nodes)}"
        return phase, (*module_parts(shared, self.classes), Part("kernel", name, f"k{number}"))

    def _runs(self) -> dict[Any, Part]:
        """The line that a node is grouped under: where several in a row come from it."""
        part_of_node: dict[Any, Part] = {}
        several = self._homes_of_several_lines()
        runs = groupby(self.graph.nodes, key=lambda node: (self.homes[node], node.location))
        for number, ((home, location), run) in enumerate(runs):
            nodes = list(run)
            if location is not None and home in several and len(nodes) >= ALIKE:
                part = Part("line", expression(location), f"l{number}")
                part_of_node.update((node, part) for node in nodes)
        return part_of_node

    def _homes_of_several_lines(self) -> set[Home]:
        lines: dict[Home, set[Any]] = {}
        for node in self.graph.nodes:
            lines.setdefault(self.homes[node], set()).add(node.location)
        beside = any(modules for _, modules in lines)  # a loss stands beside a network
        return {home for home, found in lines.items() if len(found) > 1 or (beside and not home[1])}

    def _settle_inputs(self) -> None:
        """An input lies where its first readers do: a parameter in its module."""
        readers: dict[int, list[Item]] = {}
        for source, target, _ in self.edges:
            readers.setdefault(source, []).append(self.items[target])
        for number, item in enumerate(self.items[: len(self.graph.inputs)]):
            own_readers = readers.get(number, [])
            item.phase = min((each.phase for each in own_readers), key=_order, default=PHASES[0])
            paths = [each.path for each in own_readers if each.phase == item.phase]
            if self._is_held(number):
                item.path = _frame(_common_prefix(paths) or min(paths, key=len, default=()))
            if item.path:  # the full name is in its text
                item.title = item.title.rpartition(".")[2]

    def _is_held(self, number: int) -> bool:
        """Whether an input is part of a module or an optimiser, and no argument of its own."""
        name = self.given.get(self.graph.inputs[number])
        return name is None or "." in name


class _Homes(dict[Any, Home]):
    """The phase and the modules of each node; updates are moved to the module they update."""

    def __init__(self, graph: wf.ir.Graph) -> None:
        super().__init__({node: _recorded_home(node) for node in graph.nodes})
        producer = {result: node for node in graph.nodes for result in node.results}
        self._move_constants(graph, producer)
        updates = [node for node in graph.nodes if self[node][0] == PHASES[2]]
        optimizers = {self[node][1][:1] for node in updates}
        for node in updates:
            near = [producer[atom] for atom in node.operands if atom in producer]
            self._follow(node, near, optimizers)
        readers: dict[Any, list[Any]] = {}
        for node in updates:
            for atom in node.operands:
                if atom in producer:
                    readers.setdefault(producer[atom], []).append(node)
        for node in reversed(updates):
            near = readers.get(node, [])
            if len({self[each][1] for each in near}) == 1:
                self._follow(node, near, optimizers)

    def _move_constants(self, graph: wf.ir.Graph, producer: dict[Any, Any]) -> None:
        """Move nodes without operands to the module of their first reader."""
        given = set(graph.inputs)
        for node in reversed(graph.nodes):
            for atom in node.operands:
                producing_node = producer.get(atom)
                if producing_node is not None and not any(
                    a in producer or a in given for a in producing_node.operands
                ):
                    self[producing_node] = self[node]

    def _follow(self, node: Any, near: Sequence[Any], optimizers: set[tuple[str, ...]]) -> None:
        """Move a node that only the optimiser is known of to where a neighbour is."""
        phase, modules = self[node]
        module_paths = [self[each][1] for each in near if self[each][1][:1] not in optimizers]
        if modules[:1] in optimizers and module_paths and module_paths[0]:
            self[node] = phase, module_paths[0]


def _recorded_home(node: Any) -> Home:
    place = node.location
    if place is None:
        return PHASES[0], ()
    return place.phase, tuple(place.module.split("/")) if place.module else ()


def module_parts(modules: Sequence[str], classes: Mapping[str, str]) -> tuple[Part, ...]:
    """Modules as levels of nesting, each with its class where that is known."""
    inside = [".".join(modules[1 : place + 1]) for place in range(len(modules))]
    kinds = [classes.get(f"{modules[0]}/{name}", "") for name in inside]
    return tuple(
        Part("module", f"{name}: {kind}" if kind else name, name)
        for name, kind in zip(modules, kinds, strict=True)
    )


def module_classes(model: Any) -> dict[str, str]:
    """The class of each module inside of a network, by the network's class and its dotted name.

    >>> import weft as wf
    >>> module_classes(wf.nn.Sequential(wf.nn.Linear(2, 2), wf.nn.ReLU()))
    {'Sequential/0': 'Linear', 'Sequential/1': 'ReLU'}
    """
    root = type(model).__name__
    return {f"{root}/{name}": type(each).__name__ for name, each in model.named_modules() if name}


def _common_prefix(paths: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The parts that several paths begin with."""
    columns = zip(*paths, strict=False)
    alike = takewhile(lambda column: len(set(column)) == 1, columns)
    return tuple(column[0] for column in alike)


def _frame(path: Sequence[Part]) -> tuple[Part, ...]:
    """Where a group's inputs and outputs are drawn: inside a kernel, beside a line."""
    return tuple(part for part in path if part.kind != "line")


def _order(phase: str) -> int:
    return PHASES.index(phase) if phase in PHASES else len(PHASES)


def _fused_text(nodes: Sequence[Any]) -> str:
    """The operations of a kernel as a short text."""
    computing = [n for n in nodes if not isinstance(n.primitive.kind, wf.ir.kinds.Movement)]
    names = dict.fromkeys(node.primitive.name for node in computing or nodes)
    return shorten_text(" + ".join(names), 36)


def family(node: Any) -> str:
    """What kind of operation a node is, for its colour."""
    kinds, kind = wf.ir.kinds, node.primitive.kind
    if isinstance(kind, kinds.Elementwise):
        return "elementwise"
    if isinstance(kind, kinds.Reduction | kinds.Cumulative | kinds.Window):
        return "reduction"
    return "product" if isinstance(kind, kinds.Contraction) else "movement"


def parameters(node: Any) -> list[str]:
    """The parameters of a node that say something."""
    return [f"{k}={_value(v)}" for k, v in node.params.items() if not _is_empty(v)]


def expression(location: Any) -> str:
    """The expression at a place in the source, or the place where there is none."""
    text, _, marks = location.source().partition("\n")
    start = len(marks) - len(marks.lstrip())
    snippet = text[start : len(marks)] if marks else text
    return shorten_text(snippet.strip() or str(location).partition(",")[0], 44)


def place_text(location: Any) -> str:
    """Where something is in the user's code; empty where it is not in a file."""
    return "" if location is None or location.file.startswith("<frozen") else str(location)


def _is_empty(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_is_empty, value))


def _value(value: Any) -> str:
    if isinstance(value, wf.ir.Graph):
        return f"graph of {len(value.nodes)}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_value, value)) + ("," if len(value) == 1 else "") + ")"
    return str(getattr(value, "name", value))


def shorten_text(text: str, longest: int = LONGEST) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def nested_graphs(graph: wf.ir.Graph) -> Iterator[tuple[str, wf.ir.Graph]]:
    """The graphs inside of nodes, such as a loop's body, with a name for each."""
    for node in graph.nodes:
        for key, value in node.params.items():
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, wf.ir.Graph):
                    yield f"{node.primitive.name} · {key}", each
