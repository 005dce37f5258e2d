"""From fetches to one program: only what is needed, as a `wf.ir.Graph`.

The program takes what is fed, the cells that are read or assigned, and the generator's state; it
returns what is fetched and the cells' next values. A plan compiles it once, for all sizes.

>>> import weft as wf
>>> with wf.Graph() as graph:
...     x = wf.placeholder("float32", (), name="x")
...     y, unused = x + 1.0, x * 2.0
>>> [node.primitive.name for node in graph.program(y).nodes]
['add']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import weft as wf
from weft.graph.building import PLANNER, Graph, Operation

Atom = wf.ir.Variable | wf.ir.Literal


@dataclass(eq=False, slots=True)
class Plan:
    """One compiled fetch set."""

    program: wf.ir.Graph
    fed: list[wf.ir.Variable]
    cells: list[wf.staging.Cell]
    assigned: list[wf.staging.Cell]
    draws: bool
    """Whether the last two inputs are the generator's key and counter."""
    fetched: int
    begins: bool
    """Whether all variables get their initial values first."""
    programs: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    """What was compiled, by those sizes that are 0 or 1: they broadcast, and never are symbols."""

    def run(self, tensors: Sequence[wf.Tensor]) -> list[wf.Tensor]:
        """The values of the fetches; the next values of cells are written to their handles."""
        fed = tensors[: len(self.fed)]
        pattern = tuple([min(2, size) for tensor in fed for size in tensor.shape])
        step = self.programs.get(pattern)
        if step is None:
            step = self.programs[pattern] = self._make_step()
        values: list[wf.Tensor] = step(*tensors)
        return values

    @property
    def compilations(self) -> int:
        """How often it was compiled."""
        return sum([len(getattr(each, "compilations", ())) for each in self.programs.values()])

    def _make_step(self) -> Any:
        program, count = self.program, self.fetched
        places = [len(self.fed) + self.cells.index(cell) for cell in self.assigned]

        def step(*tensors: wf.Tensor) -> list[wf.Tensor]:
            given = {id(tensor) for tensor in tensors}
            results = wf.ir.interpret(program, *tensors)
            outputs = [
                x.detach() if id(x) in given else x for x in results
            ]  # before handles change
            for place, value in zip(places, outputs[count:], strict=True):
                tensors[place].set_(value)
            return outputs[:count]

        return wf.jit(step) if program.nodes else step  # without work there is no program


@dataclass(frozen=True, slots=True)
class Fetched:
    """One leaf of the fetches: a value of the program, or an operation without a value."""

    atom: Atom | None
    operation: Operation | None


def read_fetch(graph: Graph, leaf: Any) -> Fetched:
    """A leaf of the fetches: a tensor of the graph, an operation, or a name."""
    if isinstance(leaf, str):
        operation = graph.get_operation_by_name(leaf.partition(":")[0])
        leaf = graph.get_tensor_by_name(leaf) if operation.results else operation
    if isinstance(leaf, Operation):
        return Fetched(None, graph.as_operation("run", leaf))
    if isinstance(leaf, wf.Tensor):
        variable = graph.variable_of(leaf)
        return Fetched(variable, graph.operation_of(leaf))
    raise wf.ArgumentTypeError(
        "run",
        "this cannot be fetched",
        expected="tensors and operations of the graph, their names, or trees of them",
        got={"fetch": leaf},
        fix="session.run([loss, train], feed_dict={x: batch})",
    )


def make_plan(graph: Graph, fetched: Sequence[Fetched], fed: Sequence[wf.ir.Variable]) -> Plan:
    """The plan of a fetch set."""
    wanted = [each.operation for each in fetched if each.operation is not None]
    roots = [
        each.operation
        for each in fetched
        if each.operation is not None and each.atom not in set(fed)
    ]
    needed = _with_effects(graph, graph.needed(roots, frozenset(fed)), frozenset(fed))
    _check_fed(needed, fed)
    assigned = graph.assignments([each for each in wanted if each in needed], frozenset(fed))
    outputs: list[Atom] = [each.atom for each in fetched if each.atom is not None]
    count = len(outputs)
    outputs += [operation.results[0] for operation in assigned.values()]
    nodes = [each.node for each in needed if each.node is not None]
    read = {atom for node in nodes for atom in node.operands} | set(outputs)
    used = [each for each in needed if each.kind in ("variable", "constant")]
    cells = [each.target for each in used if each.target is not None]
    cells += [cell for cell in assigned if cell not in cells]
    inputs = [*fed, *[cell.variable for cell in cells]]
    builder = graph.builder
    draws = builder.counter in read or builder.key in read
    if draws:
        inputs += [builder.key, builder.counter]
    program = wf.ir.Graph(tuple(inputs), tuple(nodes), tuple(outputs))
    if builder.known_sizes is not None:
        program = wf.staging.resolve_sizes(program, builder.known_sizes)
    begins = any(each.kind == "initialize" for each in needed)
    return Plan(program, list(fed), cells, list(assigned), draws, count, begins)


def _with_effects(
    graph: Graph, needed: list[Operation], fed: frozenset[wf.ir.Variable]
) -> list[Operation]:
    """The operations needed, and those with effects whose operands are computed anyway."""
    available = {result for each in needed for result in each.results} | fed
    wanted = set(needed)
    for each in graph.operations:
        node = each.node
        if node is None or not node.primitive.impure or each in wanted:
            continue
        operands = {atom for atom in node.operands if isinstance(atom, wf.ir.Variable)}
        if operands <= available and not _is_used(graph, each):
            wanted.add(each)
    return [each for each in graph.operations if each in wanted]


def _is_used(graph: Graph, operation: Operation) -> bool:
    results = set(operation.results)
    return any(
        each.node is not None and not results.isdisjoint(each.node.operands)
        for each in graph.operations
    )


def _check_fed(needed: Sequence[Operation], fed: Sequence[wf.ir.Variable]) -> None:
    known = set(fed)
    missing = [
        each for each in needed if each.kind == "placeholder" and known.isdisjoint(each.results)
    ]
    if missing:
        names = ", ".join(each.name for each in missing)
        kinds = {each.name: each.results[0].type for each in missing}
        raise wf.ArgumentError(
            "run",
            f"the fetches depend on {names}, which {'is' if len(missing) == 1 else 'are'} not fed",
            expected="a value for each placeholder that is needed",
            got=kinds,
            fix=f'feed_dict={{"{missing[0].name}": value}}',
        )


def program_of(graph: Graph, fetches: Any, feeds: Sequence[wf.Tensor] = ()) -> wf.ir.Graph:
    """The program that computes fetches; all placeholders that are needed count as fed."""
    fetched = [read_fetch(graph, leaf) for leaf in wf.tree.leaves(fetches)]
    given = [graph.variable_of(x) for x in feeds]
    roots = [each.operation for each in fetched if each.operation is not None]
    needed = graph.needed(roots, frozenset(given))
    others = [each.results[0] for each in needed if each.kind == "placeholder"]
    return make_plan(graph, fetched, [*given, *[x for x in others if x not in given]]).program


PLANNER.append(program_of)


def initial_values(
    graph: Graph, cells: Sequence[wf.staging.Cell], known: dict[wf.ir.Variable, wf.Tensor]
) -> list[wf.Tensor]:
    """The values that cells begin with; those of cells that they are computed from, too."""
    starts = {cell.variable: cell.initial for cell in graph.builder.cells}

    def start(atom: Any) -> Any:
        while isinstance(atom, wf.ir.Variable) and atom in starts and atom not in known:
            atom = starts[atom]
        return atom

    outputs = tuple([start(cell.initial) for cell in cells])
    nodes = _initial_nodes(graph, outputs, start)
    builder = graph.builder
    key, counter = next_key()
    inputs = {builder.key: key, builder.counter: counter, **known}
    program = wf.ir.Graph(tuple(inputs), tuple(nodes), outputs)
    if builder.known_sizes is not None:
        program = wf.staging.resolve_sizes(program, builder.known_sizes)
    results = wf.ir.interpret(program, *inputs.values())
    return [result.detach() for result in results]


def next_key() -> tuple[wf.Tensor, wf.Tensor]:
    """The key and the counter of one run: a draw of the global generator, which is seeded."""
    state = wf.random.get_state()
    wf.random.set_state(state._replace(counter=state.counter + 1))
    return wf.random.fold_in(state.key, state.counter), wf.zeros_like(state.counter)


def _initial_nodes(graph: Graph, outputs: Sequence[Any], start: Callable[[Any], Any]) -> list[Any]:
    """The nodes behind initial values, with initial values in the place of cells."""
    waiting = [atom for atom in outputs if isinstance(atom, wf.ir.Variable)]
    copied_nodes: dict[int, Any] = {}
    while waiting:
        node = graph.builder.maker(waiting.pop())
        if node is None or id(node) in copied_nodes:
            continue
        operands = tuple([start(atom) for atom in node.operands])
        copied_nodes[id(node)] = replace(node, operands=operands)
        waiting += [atom for atom in operands if isinstance(atom, wf.ir.Variable)]
    return [copied_nodes[id(node)] for node in graph.builder.nodes if id(node) in copied_nodes]
