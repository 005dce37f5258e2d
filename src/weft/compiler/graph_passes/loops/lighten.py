"""Loops: what need not be done in every step of a scan is done before it, after it, or once.

- What depends on constants only is computed before the loop.
- A product of a constant and of what depends on no carry is one product over all steps, before the
  loop; one that only goes into an output is one product behind it. So a recurrent layer multiplies
  inside its loop by nothing but the recurrent weights.
- A sum of products over the steps, as the gradient of a weight is, is one product behind the loop.
- Two scans over the same operands with the same carry, as the derivative's and the function's own
  are, are one. What a later product or loop computes again from a loop's values is kept by it: the
  loop of a recurrent layer's derivative goes over the gates' sums, not over their parts.
- A carry that no step changes is a constant; an output that is an input is that input.

>>> import weft as wf
>>> def f(w, h, xs):
...     return wf.scan(lambda h, x: (wf.tanh(h + x @ w), None), h, xs)[0]
>>> kinds = [wf.spec("float32", shape) for shape in ((3, 3), (2, 3), (5, 2, 3))]
>>> graph = wf.ir.trace(f, *kinds)
>>> [node.primitive.name for node in lighten_loops(graph, limits=PassLimits()).nodes]
['dot', 'scan']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from weft.compiler.graph_passes.loops.scan_parts import (
    Carry,
    Loop,
    is_movable,
    is_movement,
    needed_nodes,
)
from weft.compiler.targets.limits import PassLimits
from weft.core.shapes import is_static
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable, structure
from weft.ir.primitive import PRIMITIVES
from weft.ir.walking import Tally, Walk, is_pure, same_atom
from weft.ops.contraction import dot
from weft.ops.control import batched_graph
from weft.ops.control_loop import scan
from weft.ops.reduction import reduce_sum

__all__ = ["lighten_loops"]


def lighten_loops(graph: Graph, tally: Tally | None = None, *, limits: PassLimits) -> Graph:
    """The graph with less work inside of its scans."""
    return _Lighten(graph, tally, limits).run()


class _Lighten(Walk):
    """Tries the rules on each scan until none applies."""

    def __init__(self, graph: Graph, tally: Tally | None, limits: PassLimits) -> None:
        super().__init__(graph, tally)
        self.limits = limits
        self._courses: dict[GraphNode, tuple[object, ...]] = {}

    def walk_nested(self, graph: Graph) -> Graph:
        return _Lighten(graph, self.tally, self.limits).run()

    def course(self, node: GraphNode) -> tuple[object, ...]:
        """What the carry of a scan is in each step, worked out once."""
        if node not in self._courses:
            self._courses[node] = _course(Loop.from_scan(node))
        return self._courses[node]

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        if node.primitive is dot:
            return _kept_product(self, node)
        if node.primitive is not scan:
            return None
        for rule in _RULES:
            results = rule(self, Loop.from_scan(node))
            if results is not None:
                self.tally[rule.__name__.strip("_")] += 1
                return results
        return None

    @cached_property
    def readers(self) -> Counter[Atom]:
        """How many nodes and outputs read each value of the graph as it was."""
        read = [atom for node in self.graph.nodes for atom in {*node.operands}]
        return Counter([*read, *self.graph.outputs])

    def replace_made(self, old: GraphNode, new: GraphNode) -> None:
        """Put a node in the place of one that was put before."""
        self.nodes[self.nodes.index(old)] = new
        self.makers.update(dict.fromkeys(new.results, new))
        self.changed = True


# --- what need not be a carry, an input, an output ---------------------------------------------


def _take_out_unchanged_carries(walk: _Lighten, loop: Loop) -> Sequence[Atom] | None:
    """A carry that no step changes is a constant, and known before the loop."""
    kept = [each for each in loop.carry if each.end is each.variable]
    if not kept or loop.needs_more_than(len(loop.carry) - len(kept) + len(loop.ys)):
        return None
    loop.consts += [(each.variable, each.start) for each in kept]
    changing = loop.carry = [each for each in loop.carry if each.end is not each.variable]
    ends, ys = loop.put(walk)
    value_after = dict(zip([each.variable for each in changing], ends, strict=True))
    value_after.update({each.variable: each.start for each in kept})
    order = loop.node.params["graph"].inputs[loop.node.params["num_consts"] :]
    return [*[value_after[v] for v in order if v in value_after], *ys]


def _passed_on(walk: _Lighten, loop: Loop) -> Sequence[Atom] | None:
    """An output that is what the loop goes over is that; one that comes twice is made once."""
    outside: dict[Atom, Atom] = dict(loop.xs)
    wanted = list(loop.ys)
    loop.ys = [y for y in dict.fromkeys(wanted) if y not in outside or isinstance(y, Literal)]
    if len(loop.ys) == len(wanted) or loop.needs_more_than(len(loop.carry) + len(loop.ys)):
        return None
    own = list(loop.ys)
    ends, ys = loop.put(walk)
    outside.update(zip(own, ys, strict=True))
    return [*ends, *[outside[y] for y in wanted]]


def _given_twice(walk: _Lighten, loop: Loop) -> Sequence[Atom] | None:
    """An operand that comes twice is given once."""
    renamed: dict[Atom, Atom] = {}
    for part in (loop.consts, loop.xs):
        first: dict[Atom, Variable] = {}
        for variable, operand in part:
            if isinstance(operand, Variable) and operand in first:
                renamed[variable] = first[operand]
            first.setdefault(operand, variable)
    if not renamed:
        return None
    loop.consts = [pair for pair in loop.consts if pair[0] not in renamed]
    loop.xs = [pair for pair in loop.xs if pair[0] not in renamed]
    loop.nodes = [_rename_operands(node, renamed) for node in loop.nodes]
    loop.ys = [renamed.get(y, y) for y in loop.ys]
    for each in loop.carry:
        each.end = renamed.get(each.end, each.end)
    ends, ys = loop.put(walk)
    return [*ends, *ys]


def _rename_operands(node: GraphNode, names: dict[Atom, Atom]) -> GraphNode:
    operands = tuple([names.get(atom, atom) for atom in node.operands])
    return GraphNode(node.primitive, operands, node.params, node.results, node.location)


# --- before the loop ---------------------------------------------------------------------------


def _compute_before_loop(walk: _Lighten, loop: Loop) -> Sequence[Atom] | None:
    """What depends on constants is computed once; products of them and of xs for all steps."""
    levels = loop.levels()
    fixed = _invariants(loop, levels)
    stepped = _early_products(loop, levels, walk.limits) if loop.carry else []
    if not fixed and not stepped:
        return None
    consts, xs = [v for v, _ in loop.consts], [v for v, _ in loop.xs]
    once = Graph(tuple(consts), tuple(_needed_nodes(loop.nodes, fixed)), tuple(fixed))
    computed_once = walk.splice(once, [operand for _, operand in loop.consts])
    steps = Graph((*consts, *xs), tuple(_needed_nodes(loop.nodes, stepped)), tuple(stepped))
    marks = (False,) * len(consts) + (True,) * len(xs)
    for_all = batched_graph(steps, loop.length, marks, (True,) * len(stepped))
    operands = [operand for _, operand in (*loop.consts, *loop.xs)]
    stacked = _splice(walk, for_all, operands, loop) if stepped else []
    loop.consts += list(zip(fixed, computed_once, strict=True))
    loop.xs += list(zip(stepped, stacked, strict=True))
    ends, ys = loop.put(walk)
    return [*ends, *ys]


def _needed_nodes(nodes: Sequence[GraphNode], outputs: Iterable[Atom]) -> list[GraphNode]:
    """The nodes that some outputs need, and no others."""
    needed = set(outputs)
    kept = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.results):
            kept.append(node)
            needed.update(node.operands)
    return kept[::-1]


def _splice(walk: Walk, graph: Graph, operands: Sequence[Atom], loop: Loop) -> list[Atom]:
    """Put a derived graph, whose nodes are from no line, at the loop's."""
    nodes = tuple(
        GraphNode(n.primitive, n.operands, n.params, n.results, loop.node.location)
        for n in graph.nodes
    )
    return walk.splice(Graph(graph.inputs, nodes, graph.outputs), operands)


def _invariants(loop: Loop, levels: dict[Atom, int]) -> list[Variable]:
    """Values worth computing once that the rest of a step reads; movement stays in the loop."""
    stay = [node for node in loop.nodes if levels[node.results[0]] > 0]
    wanted = [*[a for node in stay for a in node.operands], *loop.ys]
    wanted += [each.end for each in loop.carry]
    worthwhile: dict[Variable, None] = {}
    seen: set[Atom] = set()
    while wanted:
        atom = wanted.pop()
        node = loop.makers.get(atom) if isinstance(atom, Variable) else None
        if node is None or atom in seen or levels[atom] > 0:
            continue
        seen.add(atom)
        if is_movement(node) or _makes_more_than_it_reads(node):
            wanted += node.operands
        else:
            worthwhile[node.results[0]] = None
    return [v for v in loop.makers if v in worthwhile]


def _makes_more_than_it_reads(node: GraphNode) -> bool:
    """Whether a node makes more than it reads, so that it is better computed again."""
    read = [_elements(atom) for atom in node.operands]
    made_elements = _elements(node.results[0])
    read_elements = [size for size in read if size is not None]
    return (
        made_elements is not None
        and len(read_elements) == len(read)
        and made_elements > max(read_elements, default=0)
    )


def _elements(atom: Atom) -> int | None:
    return int(atom.type.size) if is_static(atom.type.shape) else None


def _early_products(loop: Loop, levels: dict[Atom, int], limits: PassLimits) -> list[Variable]:
    """Products of a constant and of what depends on xs, which a step reads."""
    products = []
    for node in loop.nodes:
        if node.primitive is not dot or levels[node.results[0]] != 1:
            continue
        sides = sorted(node.operands, key=lambda atom: levels.get(atom, 0))
        if levels.get(sides[0], 0) == 0 and _product_of_all_steps_pays(node, sides[1], limits):
            products.append(node.results[0])
    return products


def _product_of_all_steps_pays(node: GraphNode, stepped: Atom, limits: PassLimits) -> bool:
    """Whether a product over all steps is not too large, and better than one in each step."""
    made_elements, read = _elements(node.results[0]), _elements(stepped)
    if made_elements is None or read is None:
        return True
    inner = [stepped.type.shape[axis] for axis in _contracted_axes(node, stepped)]
    rows = read
    for size in inner:
        rows //= max(1, int(size))
    return made_elements <= limits.step_product_growth * read and rows < limits.tall_product_rows


def _contracted_axes(node: GraphNode, operand: Atom) -> tuple[int, ...]:
    side = 0 if node.operands[0] is operand else 1
    return tuple(node.params["contract"][side])


# --- behind the loop ---------------------------------------------------------------------------


def _summed_products(walk: _Lighten, loop: Loop) -> Sequence[Atom] | None:
    """A carry to which each step adds a product is one product behind the loop."""
    levels = loop.levels()
    for number, each in enumerate(loop.carry):
        term = _added_term(loop, each)
        if term is None or not _is_worth_stacking(loop, term, levels):
            continue
        places = [loop.place(atom) for atom in term.operands]
        del loop.carry[number]
        wanted = len(loop.node.results) - len(loop.carry) - 1
        ends, ys = loop.put(walk)
        operands = [ys[n] if part is loop.ys else part[n][1] for part, n in places]
        total = walk.make(term.primitive, *operands, like=term, **_over_steps(term))
        start = walk.uniform(each.start)
        is_empty = start is not None and bool((start == 0).all())  # products and sums begin with 0
        result = total if is_empty else walk.make(PRIMITIVES["add"], each.start, total, like=term)
        return [*ends[:number], result, *ends[number:], *ys[:wanted]]
    return None


def _added_term(loop: Loop, carry: Carry) -> GraphNode | None:
    """The product or sum that a step adds to a carry and to nothing else."""
    node = loop.makers.get(carry.end) if isinstance(carry.end, Variable) else None
    if node is None or node.primitive.name != "add" or loop.uses[carry.variable] != 1:
        return None
    if carry.variable not in node.operands or loop.uses[carry.end] != 1:
        return None
    other = node.operands[1 - node.operands.index(carry.variable)]
    term = loop.makers.get(other) if isinstance(other, Variable) else None
    if term is None or term.primitive not in (dot, reduce_sum) or loop.uses[other] != 1:
        return None
    return term if other.type == carry.variable.type else None


def _is_worth_stacking(loop: Loop, term: GraphNode, levels: dict[Atom, int]) -> bool:
    """Whether what all steps would multiply is there anyway, or smaller than their sum."""
    if any(levels.get(atom, 0) == 0 for atom in term.operands):
        return False
    there = {*[variable for variable, _ in loop.xs], *loop.ys}
    new = [_elements(atom) for atom in term.operands if atom not in there]
    made_elements = _elements(term.results[0])
    if made_elements is None or any(size is None for size in new):
        return term.primitive is dot or not new
    return sum(size or 0 for size in new) <= 2 * made_elements


def _over_steps(term: GraphNode) -> dict[str, Any]:
    """The parameters of a product or a sum that also goes over the steps, which are in front."""
    if term.primitive is reduce_sum:
        return {**term.params, "axes": (0, *[axis + 1 for axis in term.params["axes"]])}
    left, right = [(0, *[axis + 1 for axis in axes]) for axes in term.params["contract"]]
    batch = tuple(tuple(axis + 1 for axis in axes) for axes in term.params["batch"])
    return {**term.params, "contract": (left, right), "batch": batch}


def _late_products(walk: _Lighten, loop: Loop) -> Sequence[Atom] | None:
    """An output that is a product with a constant is one product behind the loop."""
    const_operands: dict[Atom, Atom] = dict(loop.consts)
    for number, y in enumerate(loop.ys):
        node = loop.makers.get(y) if isinstance(y, Variable) else None
        if node is None or node.primitive is not dot or loop.uses[y] != 1:
            continue
        constant = [atom in const_operands or isinstance(atom, Literal) for atom in node.operands]
        if sum(constant) != 1:
            continue
        stepped = node.operands[constant.index(False)]
        if not loop.carry or not _pays_late(loop, node, stepped, walk.limits):
            continue
        return _multiply_behind(walk, loop, number, node, stepped)
    return None


def _pays_late(loop: Loop, node: GraphNode, stepped: Atom, limits: PassLimits) -> bool:
    there = {*[variable for variable, _ in loop.xs], *loop.ys}
    made_elements, read = _elements(node.results[0]), _elements(stepped)
    if stepped in there or made_elements is None or read is None:
        return True
    return read <= limits.step_product_growth * made_elements


def _multiply_behind(
    walk: _Lighten, loop: Loop, number: int, node: GraphNode, stepped: Atom
) -> Sequence[Atom]:
    """The loop with what is multiplied as an output, and the product of all steps of it."""
    const_operands: dict[Atom, Atom] = dict(loop.consts)
    del loop.ys[number]
    count = len(loop.ys)
    part, place = loop.place(stepped)
    ends, ys = loop.put(walk)
    stacked = ys[place] if part is loop.ys else part[place][1]
    marks = tuple(atom is stepped for atom in node.operands)
    inputs = tuple(Variable(atom.type) for atom in node.operands)
    one = GraphNode(dot, inputs, node.params, (Variable(node.results[0].type),), node.location)
    product = batched_graph(Graph(inputs, (one,), one.results), loop.length, marks, (True,))
    operands = [
        stacked if atom is stepped else const_operands.get(atom, atom) for atom in node.operands
    ]
    product_results = _splice(walk, product, operands, loop)
    return [*ends, *ys[:number], *product_results, *ys[number:count]]


# --- loops that share their work ---------------------------------------------------------------


def _same_carry(walk: _Lighten, loop: Loop) -> Sequence[Atom] | None:
    """A loop with the carry of an earlier one is that, with more outputs."""
    if not loop.carry or not all(map(is_pure, loop.nodes)):
        return None
    course = _course(loop)
    for other in walk.nodes:
        if other.primitive is scan and walk.course(other) == course:
            joined_results = _join_loops(walk, Loop.from_scan(other), loop)
            if joined_results is not None:
                return joined_results
    return None


def _course(loop: Loop) -> tuple[object, ...]:
    """What the carry is in each step: equal for loops with equal carries."""
    nodes = _needed_nodes(loop.nodes, [each.end for each in loop.carry])
    read = {atom: None for node in nodes for atom in node.operands}
    read.update(dict.fromkeys([each.end for each in loop.carry]))
    operand_of = {**dict(loop.consts), **dict(loop.xs)}
    inputs = [atom for atom in read if isinstance(atom, Variable) and atom in operand_of]
    stepped = {variable for variable, _ in loop.xs}
    carry = [each.variable for each in loop.carry]
    ends = tuple(each.end for each in loop.carry)
    return (
        structure(Graph((*inputs, *carry), tuple(nodes), ends)),
        tuple((_identity(operand_of[atom]), atom in stepped) for atom in inputs),
        tuple(_identity(each.start) for each in loop.carry),
        str(loop.length),
        loop.node.params["reverse"],
    )


def _identity(atom: Atom) -> object:
    return atom if isinstance(atom, Variable) else (str(atom.type), atom.value.tobytes())


def _join_loops(walk: _Lighten, first: Loop, loop: Loop) -> Sequence[Atom] | None:
    """The results of a loop as those of an earlier one with the same carry."""
    place = walk.nodes.index(first.node)
    later = {result for node in walk.nodes[place:] for result in node.results}
    names: dict[Atom, Atom] = {}
    for mine, theirs in ((loop.consts, first.consts), (loop.xs, first.xs)):
        variable_of = {_identity(operand): variable for variable, operand in theirs}
        for variable, operand in mine:
            if operand in later:
                return None
            if _identity(operand) not in variable_of:
                variable_of[_identity(operand)] = Variable(variable.type, variable.name)
                theirs.append((variable_of[_identity(operand)], operand))
            names[variable] = variable_of[_identity(operand)]
    for own, other in zip(loop.carry, first.carry, strict=True):
        names[own.variable] = other.variable
    for node in loop.nodes:
        results = tuple(Variable(result.type, result.name) for result in node.results)
        operands = tuple(names.get(atom, atom) for atom in node.operands)
        first.nodes.append(GraphNode(node.primitive, operands, node.params, results, node.location))
        names.update(zip(node.results, results, strict=True))
    extended = _extend_outputs(walk, first, [names.get(y, y) for y in loop.ys])
    return [*extended.results[: len(loop.carry)], *extended.results[len(first.node.results) :]]


def _extend_outputs(walk: _Lighten, loop: Loop, ys: Sequence[Atom]) -> GraphNode:
    """A scan that has been put, with more outputs; its results stay what they were."""
    loop.ys += ys
    extended_scan = loop.rebuild_scan()
    results = (*loop.node.results, *extended_scan.results[len(loop.node.results) :])
    extended_scan = GraphNode(
        scan, extended_scan.operands, extended_scan.params, results, extended_scan.location
    )
    walk.replace_made(loop.node, extended_scan)
    return extended_scan


def _kept_product(walk: _Lighten, node: GraphNode) -> Sequence[Atom] | None:
    """A product of a loop's output and a constant that each step has made already is kept by it."""
    stacked, constant = node.operands
    maker = walk.maker(stacked)
    if maker is None or maker.primitive is not scan or node.params["batch"] != ((), ()):
        return None
    loop = Loop.from_scan(maker)
    place = maker.results.index(stacked) - len(loop.carry)
    const_operands: dict[Atom, Atom] = dict(loop.consts)
    for inner in loop.nodes if place >= 0 else ():
        if inner.primitive is not dot or inner.operands[0] is not loop.ys[place]:
            continue
        other = inner.operands[1]
        if not same_atom(const_operands.get(other, other), constant):
            continue
        if _shifted_product_axes(inner.params) == _product_axes(node.params):
            walk.tally["kept_product"] += 1
            return [_extend_outputs(walk, loop, [inner.results[0]]).results[-1]]
    return None


def _kept_value(walk: _Lighten, loop: Loop) -> Sequence[Atom] | None:
    """What a loop computes again from an earlier one's values is kept by that, if it is smaller."""
    makers = dict.fromkeys(walk.maker(operand) for _, operand in loop.xs)
    for maker in [node for node in makers if node is not None and node.primitive is scan]:
        first = Loop.from_scan(maker)
        same = _recomputed_values(loop, first)
        freed = {value: _freed_elements(walk, loop, first, value, same) for value in same}
        best = max(freed, key=lambda value: freed[value], default=None)
        if best is not None and freed[best] > 0:
            kept = same[best]
            if kept not in first.ys:
                maker = _extend_outputs(walk, first, [kept])
            place = len(first.carry) + first.ys.index(kept)
            loop.xs = [(best, maker.results[place]), *_still_read(loop, best)]
            ends, ys = loop.put(walk)
            return [*ends, *ys]
    return None


def _recomputed_values(loop: Loop, first: Loop) -> dict[Variable, Atom]:
    """Values of a loop's steps that the steps of an earlier one have made, and what they are there.

    They depend on no carry, only on what the earlier loop has given out, or goes over, too. Loops
    with one body share its variables, so a name says nothing of a value: only what is known counts.
    """
    if str(loop.length) != str(first.length):
        return {}
    stacked = dict(zip(first.node.results[len(first.carry) :], first.ys, strict=True))
    stacked.update({operand: variable for variable, operand in first.xs})  # type: ignore[misc]
    const_variables = {_identity(operand): variable for variable, operand in first.consts}
    there: dict[Atom, Atom] = {v: stacked[x] for v, x in loop.xs if x in stacked}
    there.update(
        {
            v: const_variables[_identity(x)]
            for v, x in loop.consts
            if _identity(x) in const_variables
        }
    )
    already_made: dict[Variable, Atom] = {}
    for node in filter(is_movable, loop.nodes):
        if not all(isinstance(atom, Literal) or atom in there for atom in node.operands):
            continue
        operands = [there.get(atom, atom) for atom in node.operands]
        for other in first.nodes:
            if _is_same(node, other, operands):
                already_made[node.results[0]] = there[node.results[0]] = other.results[0]
    return already_made


def _is_same(node: GraphNode, other: GraphNode, operands: Sequence[Atom]) -> bool:
    """Whether a node with these operands is another one."""
    if node.primitive is not other.primitive or len(operands) != len(other.operands):
        return False
    pairs = zip(operands, other.operands, strict=True)
    # as text, since -0.0 equals 0.0 and True equals 1
    return all(same_atom(a, b) for a, b in pairs) and repr(node.params) == repr(other.params)


def _freed_elements(
    walk: _Lighten, loop: Loop, first: Loop, value: Variable, same: dict[Variable, Atom]
) -> int:
    """How many elements fewer are kept if a loop is given a value instead of computing it again."""
    stays = {variable for variable, _ in _still_read(loop, value)}
    total = 0
    for variable, operand in loop.xs:
        is_between = walk.readers[operand] == (1 if operand in first.node.results else 2)
        if variable not in stays and is_between:
            total += _elements(variable) or 0
    return total - (0 if same[value] in first.ys else _elements(value) or total)


def _still_read(loop: Loop, value: Variable) -> Iterator[tuple[Variable, Atom]]:
    """What a loop goes over that its steps read when a value is given to them."""
    ends = [*[each.end for each in loop.carry], *loop.ys]
    nodes = [node for node in loop.nodes if value not in node.results]
    read = {*ends, *[atom for node in needed_nodes(nodes, ends) for atom in node.operands]}
    yield from [pair for pair in loop.xs if pair[0] in read]


def _product_axes(params: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(tuple(map(tuple, params[key])) for key in ("contract", "batch"))


def _shifted_product_axes(params: dict[str, Any]) -> tuple[Any, ...]:
    """The parameters of a product whose left operand has the steps in front."""
    (left, right), batch = _product_axes(params)
    return (tuple(axis + 1 for axis in left), right), batch


_RULES: tuple[Callable[[_Lighten, Loop], Sequence[Atom] | None], ...] = (
    _take_out_unchanged_carries, _given_twice, _passed_on, _compute_before_loop, _summed_products,
    _late_products, _same_carry, _kept_value,
)  # fmt: skip
