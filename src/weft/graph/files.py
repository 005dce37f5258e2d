"""A graph with its weights in one file: the text of its program, and tensors; no code.

The file is a safetensors file whose metadata holds the program as text, the names of operations as
JSON, a version and a checksum of everything. Reading it checks all of it before anything is made:
the text is parsed by a parser that knows nothing but primitives, and every type is verified.

>>> from weft.graph.files import VERSION
>>> VERSION
1
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import weft as wf
from weft.graph.building import FILES, IMPORTER, Graph, Operation
from weft.graph.session import Session
from weft.graph.variables import FedTensor

Atom = wf.ir.Variable | wf.ir.Literal
VERSION = 1
"""What this version writes, and the newest that it reads."""
TEXT, OPERATIONS = "weft.graph.program", "weft.graph.operations"
NUMBER, CHECKSUM = "weft.graph.version", "weft.graph.checksum"
INPUTS = ("placeholder", "variable", "constant")
WITHOUT_NODE = ("group", "initialize")


# --- writing -------------------------------------------------------------------------------------


def save_graph(graph: Graph, path: Any, session: Session | None = None) -> None:
    """Write a graph and the values of its variables in a session, or the initial ones."""
    if session is not None and session.graph is not graph:
        raise wf.ArgumentError(
            "Graph.save",
            "the session runs another graph",
            expected="a session of the graph that is saved",
            got={"session": session},
            fix="session.graph.save(path, session)",
        )
    graph.builder.settle_if_entered()
    operations = graph.operations
    described = json.dumps(_description_of(graph, operations))
    text = _program(graph, operations)
    values = (session or Session(graph)).cell_values()
    tensors = {f"cell.{number}": value for number, value in enumerate(values)}
    notes = {TEXT: text, OPERATIONS: described, NUMBER: str(VERSION)}
    wf.save(tensors, path, {**notes, CHECKSUM: checksum(notes, tensors)})


def _program(graph: Graph, operations: Sequence[Operation]) -> str:
    """The whole graph as the text of one program."""
    builder = graph.builder
    inputs = [each.results[0] for each in operations if each.kind in INPUTS]
    nodes = [each.node for each in operations if each.node is not None]
    outputs = [graph.variable_of(tensor) for tensor in graph.outputs]
    whole = wf.ir.Graph((builder.key, builder.counter, *inputs), tuple(nodes), tuple(outputs))
    sizes = builder.known_sizes
    return str(whole if sizes is None else wf.staging.resolve_sizes(whole, sizes))


def _description_of(graph: Graph, operations: Sequence[Operation]) -> dict[str, Any]:
    places = {operation: number for number, operation in enumerate(operations)}
    cells = {cell: number for number, cell in enumerate(graph.builder.cells)}
    return {
        "operations": [
            {
                "name": each.name,
                "kind": each.kind,
                "controls": [places[control] for control in each.controls],
                "target": None if each.target is None else cells[each.target],
            }
            for each in operations
        ],
        "trainable": [cell.trainable for cell in graph.builder.cells],
        "updates": [places[update] for update in graph.updates],
    }


def checksum(notes: Mapping[str, str], tensors: Mapping[str, wf.Tensor]) -> str:
    """A digest of everything in a file."""
    digest = hashlib.sha256()
    for name in sorted(key for key in notes if key != CHECKSUM):
        digest.update(f"{name}\0{notes[name]}\0".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}\0{tensor.type}\0".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


# --- reading -------------------------------------------------------------------------------------


def load_graph(path: Any) -> Graph:
    """The graph in a file; a file that is not whole, or not for this version, is refused."""
    tensors, notes = wf.load(path, metadata=True)
    if not isinstance(tensors, dict) or TEXT not in notes or NUMBER not in notes:
        raise _file_error(path, "it holds no graph", "save one: graph.save(path, session)")
    version = notes[NUMBER]
    if not (version.isdecimal() and len(version) < 10) or int(version) > VERSION:
        raise wf.UnsupportedError(
            "Graph.load",
            f"the file is of version {version[:9]}, and this version of Weft reads up to {VERSION}",
            expected=f"a graph of version {VERSION} or earlier",
            got={"path": str(path), "version": version[:20]},
            fix="install the newer Weft that wrote it, or save the graph with this one",
        )
    if notes.get(CHECKSUM) != checksum(notes, tensors):
        raise _file_error(path, "its content is not what was written: the checksum differs")
    try:
        program = wf.ir.parse(notes[TEXT])
        _check_harmless(path, program)
        described = json.loads(notes[OPERATIONS])
        return _Reader(program, described, tensors).graph()
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration,
            RecursionError, MemoryError, AssertionError) as error:  # fmt: skip
        if isinstance(error, wf.WeftError) and error.op == "Graph.load":
            raise
        raise _file_error(path, f"its parts do not fit each other: {_first_line(error)}") from None


def _check_harmless(path: Any, program: wf.ir.Graph) -> None:
    """Refuse what would stop the program of whoever runs a stranger's graph."""
    if any(node.primitive.name == "debug_breakpoint" for node in program.nodes):
        raise _file_error(path, "it holds a breakpoint", "leave wf.debug.breakpoint out, and save")
    for inner in program.subgraphs():
        _check_harmless(path, inner)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


class _Reader:
    """Makes a graph of the parts of a file."""

    def __init__(
        self, program: wf.ir.Graph, described: Any, tensors: Mapping[str, wf.Tensor]
    ) -> None:
        self.program, self.described, self.tensors = program, described, tensors
        self.made = Graph()
        self.values: dict[wf.ir.Variable, wf.Tensor] = {}
        self.inputs = iter(program.inputs[2:])
        self.nodes = iter(program.nodes)
        self.handles: list[wf.Tensor] = []

    def graph(self) -> Graph:
        builder, graph = self.made.builder, self.made
        for variable, known in zip(
            self.program.inputs[:2], (builder.key, builder.counter), strict=True
        ):
            self.values[variable] = builder.tensor(known)
        with graph:
            for entry in self.described["operations"]:
                self.operation(entry)
        if next(self.nodes, None) is not None or next(self.inputs, None) is not None:
            raise ValueError("the program is longer than its description")
        operations = graph.operations
        graph.updates = [operations[place] for place in self.described["updates"]]
        graph.outputs = [self.values[atom] for atom in _variables(self.program.outputs)]
        return graph

    def operation(self, entry: Any) -> None:
        kind, name = entry["kind"], entry["name"]
        if kind in INPUTS:
            self.input(kind, name)
        elif kind in WITHOUT_NODE:
            self.made.add(kind, name)
        else:
            target = entry["target"]
            cell = None if target is None else self.made.builder.cells[target]
            self.made._next = kind, name, cell
            node = next(self.nodes, None)
            if node is None or (kind == "assign") != (cell is not None):
                raise ValueError(f"operation {name} has no node, or no variable")
            if cell is not None and node.results[0].type != cell.variable.type:
                raise ValueError(f"{name} assigns a value of another type")
            self.made.builder.replay(node, self.values)
        operations = self.made._operations
        if operations[-1].name != name:
            raise ValueError(f"operation {name} stands twice")
        controls = [operations[:-1][place] for place in entry["controls"]]
        operations[-1].controls = tuple(controls)

    def input(self, kind: str, name: str) -> None:
        variable = next(self.inputs)
        if kind == "placeholder":
            self.values[variable] = place_input(self.made, name, variable.type)
            return
        number = len(self.made.builder.cells)
        value = self.tensors[f"cell.{number}"]
        if value.type != variable.type:
            raise ValueError(f"{name} has a value of another type")
        handle = wf.Tensor()
        trainable = bool(self.described["trainable"][number])
        cell = self.made.builder.cell(handle, value, name, trainable)
        cell.kind = kind
        self.made._name_cells()
        self.values[variable] = handle


def _variables(atoms: Sequence[Atom]) -> list[wf.ir.Variable]:
    variables = [atom for atom in atoms if isinstance(atom, wf.ir.Variable)]
    if len(variables) < len(atoms):
        raise ValueError("an output is a constant")
    return variables


def place_input(graph: Graph, name: str, kind: wf.TensorType) -> FedTensor:
    """A placeholder of a type whose sizes have names already."""
    placeholder = FedTensor()
    operation = graph.add("placeholder", name)
    graph.builder.placeholder(placeholder, kind)
    placeholder.name = operation.name
    placeholder.declared = tuple([None if isinstance(n, wf.Dim) else n for n in kind.shape])
    graph.fill(operation, placeholder)
    return placeholder


def _file_error(path: Any, problem: str, fix: str = "copy or save the file again") -> wf.WeftError:
    return wf.GraphError(
        "Graph.load",
        f"the file is refused: {problem}",
        expected="a whole file that graph.save wrote",
        got={"path": str(path)},
        fix=fix,
    )


# --- from a function -----------------------------------------------------------------------------


def graph_of(program: wf.ir.Graph, names: Sequence[str], given: dict[str, Any]) -> Graph:
    """A graph of a program; see `Graph.of`."""
    if not isinstance(program, wf.ir.Graph):
        raise wf.ArgumentTypeError(
            "Graph.of",
            "this is not the program of a function",
            expected="a wf.ir.Graph",
            got={"program": program},
            fix="wf.Graph.of(wf.jit(f).graph(x))",
        )
    defaults = [f"input_{place}" for place in range(len(program.inputs))]
    chosen = [*names, *defaults[len(names) :]]
    unknown = [name for name in given if name not in chosen]
    if len(names) > len(program.inputs) or unknown:
        raise wf.ArgumentError(
            "Graph.of",
            "names or values are given for inputs that the program does not have",
            expected=f"names of {len(program.inputs)} inputs, values under these names",
            got={"names": list(names), "values": unknown},
            fix="wf.Graph.of(program, names=['x'])",
        )
    graph = Graph()
    values: dict[wf.ir.Variable, wf.Tensor] = {}
    with graph:
        for name, variable in zip(chosen, program.inputs, strict=True):
            values[variable] = _made_input(graph, name, variable.type, given)
        for node in program.nodes:
            graph.builder.replay(node, values)
        graph.outputs = [_output(graph, atom, values) for atom in program.outputs]
    return graph


def _made_input(graph: Graph, name: str, kind: wf.TensorType, given: dict[str, Any]) -> wf.Tensor:
    if name not in given:
        return place_input(graph, name, kind)
    handle, value = wf.Tensor(), wf.asarray(given[name], dtype=kind.dtype)
    if value.shape != kind.shape:
        raise wf.ShapeError(
            "Graph.of",
            f"{name} is given a value of another shape",
            expected=f"{name}: {kind}",
            got={name: value},
            fix="give the value that the function closed over",
        )
    graph.builder.cell(handle, value.detach(), name, trainable=True)
    graph._name_cells()
    return handle


def _output(graph: Graph, atom: Atom, values: dict[wf.ir.Variable, wf.Tensor]) -> wf.Tensor:
    if isinstance(atom, wf.ir.Literal):
        return graph.builder.mark_value(wf.asarray(atom.value))
    return values[atom]


IMPORTER.append(graph_of)
FILES.extend([save_graph, load_graph])
