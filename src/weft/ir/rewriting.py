"""Rewriting: laws as rules, and the walk over a graph that applies them.

A rule's left side is a program, traced once to a pattern. It matches any dtype and any rank: what
counts are primitives, numbers and parameters. Arguments with a default stand for numbers and
parameters that may be anything; the default is the sample that the rule is checked with. The right
side is a program over the operands found, or None where the law does not hold for them.

    simplify = RuleSet("simplify")

    @simplify.rule(lambda x: x * 1)
    def multiply_by_one(x):
        \"\"\"x * 1 = x\"\"\"
        return x

>>> import weft as wf
>>> rules = RuleSet("example")
>>> @rules.rule(lambda x, c=8.0: x / c, exact=False)
... def divide(x: Tensor, c: float) -> Tensor:
...     return x * (1.0 / c)
>>> graph = wf.ir.trace(lambda x: wf.sin(x) / 2.0, wf.spec("float32", (3,)))
>>> print(rules.apply(graph))  # doctest: +ELLIPSIS
graph(a: f32[3]) {
  b: f32[3] = sin(a)...
  c: f32[3] = multiply(b, 0.5)...
  return c
}
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, permutations
from typing import Any, NoReturn

import numpy as np

from weft.core.dtypes import float32
from weft.core.errors import GraphError, TraceError
from weft.core.locations import Location
from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir.dispatch import active_trace, apply
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.tensor import Tensor, Trace, wrap
from weft.ir.tracing import Staged, trace
from weft.ir.walking import Tally, Walk, same_atom

__all__ = ["Rule", "RuleSet", "loosened_pattern", "pattern_of"]

Number = bool | int | float | complex
Program = Callable[..., Any]

DEEPEST = 32
"""How many rewrites may lead to one another before what stands there is left as it is."""
_SAMPLE = TensorType(float32, (2, 3))


# --- patterns ----------------------------------------------------------------------------------


@frozen
class Place:
    """Any operand, the same wherever the place stands."""

    index: int


@frozen
class Constant:
    """One number, of any dtype and shape; the sign of a zero counts."""

    value: Number


@frozen
class Hole:
    """Any number or parameter, the same wherever the hole stands."""

    name: str


@frozen
class Call:
    """A primitive on operands that match; `plans` are the ways to pair them with the patterns.

    Each plan takes the operands that can fail first first. `lone` asks for no other use.
    """

    primitive: Primitive
    plans: tuple[tuple[tuple[int, Pattern], ...], ...]
    arity: int
    params: tuple[tuple[str, Any], ...]
    lone: bool = False


Pattern = Place | Constant | Hole | Call
Found = dict[int | str, Any]
"""What a match has found: atoms by place, numbers and parameters by name."""
Goals = tuple[Pattern, Atom, Any] | None
"""What is left to match: a pattern, an atom, and further goals."""


def _call(
    primitive: Primitive, operands: Sequence[Pattern], params: Mapping[str, Any], lone: bool
) -> Call:
    orders: Iterable[tuple[int, ...]] = [tuple(range(len(operands)))]
    if primitive.commutative:
        orders = permutations(range(2))
    plans: dict[tuple[tuple[int, Pattern], ...], None] = {}
    for order in orders:
        plan = sorted(zip(order, operands, strict=True), key=lambda pair: type(pair[1]) is Place)
        plans[tuple(plan)] = None
    return Call(primitive, tuple(plans), len(operands), tuple(params.items()), lone)


def _pattern(
    graph: Graph, holes: Mapping[str, Any], lone: bool, fail: Callable[[str, str], NoReturn]
) -> Call:
    """The pattern that a traced left side stands for."""
    known: dict[Variable, Pattern] = {
        variable: Place(index) for index, variable in enumerate(graph.inputs)
    }
    last = graph.outputs[0]

    def read(atom: Atom) -> Pattern:
        if isinstance(atom, Variable):
            return known[atom]
        if atom.value.ndim:
            fail("a constant in the left side has axes", "numbers as constants")
        value = atom.value.item()
        name = next((n for n, sample in holes.items() if _same_parameter(sample, value)), None)
        return Constant(value) if name is None else Hole(name)

    def param(value: Any) -> Any:
        name = next((n for n, sample in holes.items() if _same_parameter(sample, value)), None)
        return value if name is None else Hole(name)

    for node in graph.nodes:
        params = {key: param(value) for key, value in node.params.items()}
        operands = [read(atom) for atom in node.operands]
        inner = lone and node.results[0] is not last
        known[node.results[0]] = _call(node.primitive, operands, params, inner)
    root = known.get(last) if isinstance(last, Variable) else None
    if not isinstance(root, Call):
        fail("the left side computes nothing", "an operation on the arguments")
    return root


Kind = tuple[Primitive | None, bool]
"""What is known of an operand at a glance: what makes it, and whether it is one number."""


def _can_match(pattern: Call, kinds: tuple[Kind, ...]) -> bool:
    """Whether some plan fits operands of these kinds, each taken for itself."""
    return len(kinds) == pattern.arity and any(
        all(_kind_fits(operand, kinds[index]) for index, operand in plan) for plan in pattern.plans
    )


def _kind_fits(pattern: Pattern, kind: Kind) -> bool:
    if isinstance(pattern, Call):
        return kind[0] is pattern.primitive
    return kind[1] or isinstance(pattern, Place)


def _same_parameter(sample: Any, value: Any) -> bool:
    return bool(isinstance(sample, tuple) == isinstance(value, tuple) and sample == value)


def _solve(goals: Goals, found: Found, walk: _RuleWalk) -> Found | None:
    """The bindings that satisfy all goals, added to those found before; None if there are none."""
    if goals is None:
        return found
    pattern, atom, rest = goals
    if type(pattern) is Place:
        known = found.get(pattern.index)
        if known is None:
            return _solve(rest, {**found, pattern.index: atom}, walk)
        return _solve(rest, found, walk) if same_atom(known, atom) else None
    if type(pattern) is Call:
        node = walk.maker(atom)
        if node is None or (pattern.lone and walk.uses[node.results[0]] > 1):
            return None
        return _solve_call(pattern, node, rest, found, walk)
    number = walk.uniform(atom)
    if number is None:
        return None
    if type(pattern) is Constant:
        return _solve(rest, found, walk) if _same_number(pattern.value, number.item()) else None
    assert type(pattern) is Hole
    noted = _with_hole(found, pattern.name, number.item())
    return None if noted is None else _solve(rest, noted, walk)


def _solve_call(
    pattern: Call, node: GraphNode, rest: Goals, found: Found, walk: _RuleWalk
) -> Found | None:
    if node.primitive is not pattern.primitive or len(node.operands) != pattern.arity:
        return None
    for key, wanted in pattern.params:
        given = node.params[key]
        if type(wanted) is Hole:
            noted = _with_hole(found, wanted.name, given)
            if noted is None:
                return None
            found = noted
        elif wanted != given:
            return None
    for plan in pattern.plans:
        goals = rest
        for index, operand in reversed(plan):
            goals = (operand, node.operands[index], goals)
        solution = _solve(goals, found, walk)
        if solution is not None:
            return solution
    return None


def _with_hole(found: Found, name: str, value: Any) -> Found | None:
    """The bindings with a hole's value; None if the hole has another value already."""
    if name not in found:
        return {**found, name: value}
    return found if found[name] == value else None


def _same_number(a: Number, b: Number) -> bool:
    if a != b or isinstance(a, bool) != isinstance(b, bool):
        return False
    return a != 0 or _signs(a) == _signs(b)


def _signs(value: Number) -> tuple[float, float]:
    real, imaginary = (value.real, value.imag) if isinstance(value, complex) else (value, 0.0)
    return math.copysign(1.0, real), math.copysign(1.0, imaginary)


# --- rules -------------------------------------------------------------------------------------


@frozen
class Rule:
    """A law: a program, the program that may stand for it, and how exactly it does.

    exact: whether both give the same elements, NaN for NaN; otherwise the same up to rounding,
    on operands from the domain. signed_zeros: whether -0.0 and 0.0 are told apart.
    cases: further values of the holes to check the law with.
    at: the pattern for operands of given types, and for given holes or with holes; what `pattern`
    matches is then matched again by that. None where there is none.
    """

    name: str
    law: str
    left: Program
    right: Program
    types: tuple[TensorType, ...]
    holes: Mapping[str, Any]
    pattern: Call
    exact: bool = True
    signed_zeros: bool = True
    domain: tuple[float, float] = (-2.0, 2.0)
    cases: tuple[Mapping[str, Any], ...] = ()
    at: Callable[[tuple[TensorType, ...], Mapping[str, Any] | None], Call | None] | None = None


class RuleSet:
    """Laws under a name, in the order in which they are tried; `parts` are taken over whole."""

    def __init__(self, name: str, *parts: Iterable[Rule]) -> None:
        self.name = name
        self.rules: list[Rule] = []
        self._by_root: dict[Primitive, list[Rule]] = {}
        self._by_kinds: dict[tuple[Primitive, tuple[Kind, ...]], list[Rule]] = {}
        for rule in chain.from_iterable(parts):
            self._add(rule)

    def _add(self, rule: Rule) -> None:
        self.rules.append(rule)
        self._by_root.setdefault(rule.pattern.primitive, []).append(rule)
        self._by_kinds.clear()

    def has(self, primitive: Primitive) -> bool:
        """Whether some rule is about a primitive."""
        return primitive in self._by_root

    def candidates(self, primitive: Primitive, kinds: tuple[Kind, ...]) -> list[Rule]:
        """The rules that a node can match, by what its operands are made by."""
        key = primitive, kinds
        matching_rules = self._by_kinds.get(key)
        if matching_rules is None:
            rules = self._by_root[primitive]
            matching_rules = [rule for rule in rules if _can_match(rule.pattern, kinds)]
            self._by_kinds[key] = matching_rules
        return matching_rules

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def rule(
        self,
        left: Program,
        *,
        name: str = "",
        on: TensorType | Sequence[TensorType] = _SAMPLE,
        lone: bool = False,
        exact: bool = True,
        signed_zeros: bool = True,
        domain: tuple[float, float] = (-2.0, 2.0),
        cases: Sequence[Mapping[str, Any]] = (),
    ) -> Callable[[Program], Program]:
        """Add the law that a program is equal to the function this decorates.

        name: the function's own unless given. on: the types of the operands that the law is
        checked with. lone: whether nothing else may use what is computed on the way, for laws
        that would have it computed twice. The others are fields of `Rule`.
        """

        def add(right: Program) -> Program:
            parameters = inspect.signature(left).parameters.values()
            holes = {p.name: p.default for p in parameters if p.default is not p.empty}
            count = len(parameters) - len(holes)
            types = (on,) * count if isinstance(on, TensorType) else tuple(on)
            rule = replace(
                _check_rule(name or right.__name__, left, right, types, holes, lone),
                exact=exact,
                signed_zeros=signed_zeros,
                domain=domain,
                cases=tuple(cases),
            )
            self._add(rule)
            return right

        return add

    def apply(self, graph: Graph, tally: Tally | None = None) -> Graph:
        """The graph rewritten by these rules, from the inputs on, until none applies."""
        return _RuleWalk(graph, self, tally).run()


def pattern_of(name: str, graph: Graph, holes: Mapping[str, Any], lone: bool = False) -> Call:
    """The pattern that a graph of one output stands for, with holes where their samples stand."""

    def fail(problem: str, expected: str) -> NoReturn:
        got = {"operands": list(graph.input_types), **holes}
        fix = "write operations on the arguments, and numbers"
        raise GraphError(name, problem, expected=expected, got=got, fix=fix)

    pattern = _pattern(graph, holes, lone, fail)
    if missing := holes.keys() - _holes_in(pattern):
        fail(f"{', '.join(sorted(missing))} is not found again in the pattern",
             "arguments with a default that are passed on as they are")  # fmt: skip
    return pattern


def loosened_pattern(pattern: Call) -> Call:
    """The pattern with any numbers and any parameters."""
    fresh = count()

    def loosen_part(part: Pattern) -> Pattern:
        if type(part) is Place:
            return part
        return loosen(part) if type(part) is Call else Hole(f"#{next(fresh)}")

    def loosen(call: Call) -> Call:
        parts = {id(part): loosen_part(part) for _, part in call.plans[0]}
        plans = tuple([tuple([(i, parts[id(p)]) for i, p in plan]) for plan in call.plans])
        return replace(call, plans=plans, params=())

    return loosen(pattern)


def _check_rule(
    name: str,
    left: Program,
    right: Program,
    types: tuple[TensorType, ...],
    holes: dict[str, Any],
    lone: bool,
) -> Rule:
    """The rule, if both sides have the same types on its own sample."""

    def fail(problem: str, expected: str) -> NoReturn:
        got = {"operands": list(types), **holes}
        fix = "see weft/ir/rewriting.py for what a rule may be"
        raise GraphError(f"rule {name}", problem, expected=expected, got=got, fix=fix)

    graph = trace(lambda *operands: [left(*operands, **holes)], types).closed_graph()
    pattern = _pattern(graph, holes, lone, fail)
    if missing := holes.keys() - _holes_in(pattern):
        fail(f"{', '.join(sorted(missing))} is not found again in the left side",
             "samples that are passed on as they are, each its own")  # fmt: skip
    kinds: list[TensorType] = []

    def right_side(*operands: Tensor) -> list[Tensor]:
        result = right(*operands, **holes)
        if result is None:
            fail("the rule declines its own sample", "a sample for which the law holds")
        tensor = result if isinstance(result, Tensor) else _scalar(result, graph.output_types[0])
        kinds.append(tensor.type)
        return [tensor]

    trace(right_side, types)
    wanted = graph.output_types[0]
    if kinds[0] != wanted and not (
        pattern.primitive.broadcasts and _broadcasts_to(kinds[0], wanted)
    ):
        fail(f"the right side is of type {kinds[0]}", f"the type of the left side, {wanted}")
    return Rule(name, inspect.getdoc(right) or "", left, right, types, holes, pattern)


def _holes_in(pattern: Any) -> set[str]:
    if isinstance(pattern, Hole):
        return {pattern.name}
    if not isinstance(pattern, Call):
        return set()
    parts = [value for _, value in pattern.params] + [each for _, each in pattern.plans[0]]
    return set().union(*map(_holes_in, parts))


def _scalar(value: Number, kind: TensorType) -> Tensor:
    """A number as a tensor without axes, in the dtype of a type; broadcasting does the rest."""
    return wrap(np.array(value, kind.dtype.numpy))


def _broadcasts_to(kind: TensorType, wanted: TensorType) -> bool:
    """Whether a tensor of one type broadcasts to another."""
    missing = wanted.ndim - kind.ndim
    return (
        kind.dtype is wanted.dtype
        and missing >= 0
        and all(a in (1, b) for a, b in zip(kind.shape, wanted.shape[missing:], strict=True))
    )


# --- applying rules ----------------------------------------------------------------------------


class _Recorder(Trace):
    """Puts what the right side of a rule computes into the graph of a walk."""

    name = "rewriting"
    stages = True

    def __init__(self, walk: _RuleWalk) -> None:
        self.walk = walk
        self.at: Location | None = None

    def tensor(self, atom: Atom) -> Tensor:
        """The tensor that stands for an atom."""
        if isinstance(atom, Literal):
            return wrap(atom.value)
        value = Staged()
        value.trace = self
        value.type = atom.type
        value.variable, value.stopped = atom, False
        return wrap(value)

    def atom(self, tensor: Tensor) -> Atom:
        """The atom of a tensor in the graph."""
        value = tensor._value
        return value.variable if isinstance(value, Staged) else Literal(value)

    def process_primitive(
        self, primitive: Primitive, operands: tuple[Tensor, ...], params: dict[str, Any], types: Any
    ) -> Any:
        """See `Trace`."""
        kinds = types if primitive.multiple else (types,)
        atoms = tuple([self.atom(operand) for operand in operands])
        results = tuple([Variable(kind) for kind in kinds])
        put = self.walk.put_new(GraphNode(primitive, atoms, params, results, self.at))
        tensors = tuple([self.tensor(atom) for atom in put])
        return tensors if primitive.multiple else tensors[0]


class _RuleWalk(Walk):
    """Tries the rules of each node's primitive, and on what they put in its place."""

    def __init__(self, graph: Graph, rules: RuleSet, tally: Tally | None) -> None:
        super().__init__(graph, tally)
        self.rules = rules
        self.depth = 0
        self.recorder = _Recorder(self)
        self.uses = _use_counts(graph)
        self._kinds: dict[Atom, Kind] = {}

    def walk_nested(self, graph: Graph) -> Graph:
        return _RuleWalk(graph, self.rules, self.tally).run()

    def run(self) -> Graph:
        with active_trace(self.recorder):
            return super().run()

    def put_new(self, node: GraphNode) -> Sequence[Atom]:
        """Add a node that the old graph does not have."""
        self.uses.update(node.operands)
        atoms = self.put(node)
        self._count(node.results, atoms)
        return atoms

    def _follow(self, results: Sequence[Variable], atoms: Sequence[Atom]) -> None:
        super()._follow(results, atoms)
        self._count(results, atoms)

    def _count(self, results: Sequence[Variable], atoms: Sequence[Atom]) -> None:
        """What stands for a result is used where that was used."""
        for variable, atom in zip(results, atoms, strict=True):
            if atom is not variable:
                self.uses[atom] += self.uses[variable]

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        if self.depth == DEEPEST or not self.rules.has(node.primitive):
            return None
        kinds = tuple([self._kinds.get(atom) or self._kind(atom) for atom in node.operands])
        for rule in self.rules.candidates(node.primitive, kinds):
            bindings = _solve_call(rule.pattern, node, None, {}, self)
            if bindings is not None and rule.at is not None:
                bindings = self._match_again(rule, node, bindings)
            atom = None if bindings is None else self._replacement(rule, node, bindings)
            if atom is not None:
                self.tally[rule.name] += 1
                self.uses.subtract(node.operands)
                return (atom,)
        return None

    def _match_again(self, rule: Rule, node: GraphNode, found: Found) -> Found | None:
        """The bindings of the left side, traced again for operands of the types found.

        A hole's sample may also stand elsewhere by chance, as a size, so that what the holes hold
        is put into the left side in the end.
        """
        assert rule.at is not None
        types = tuple([found[index].type for index in range(len(rule.types))])
        pattern = rule.at(types, None)
        again = None if pattern is None else _solve_call(pattern, node, None, {}, self)
        if again is None or not rule.holes:
            return again
        holes: dict[Any, Any] = {name: again[name] for name in rule.holes}
        exact = rule.at(tuple([again[index].type for index in range(len(types))]), holes)
        last = None if exact is None else _solve_call(exact, node, None, {}, self)
        return None if last is None else {**last, **holes}

    def _kind(self, atom: Atom) -> Kind:
        node = self.maker(atom)
        kind = (None if node is None else node.primitive, self.uniform(atom) is not None)
        self._kinds[atom] = kind
        return kind

    def _replacement(self, rule: Rule, node: GraphNode, found: Found) -> Atom | None:
        self.recorder.at = node.location
        self.depth += 1
        try:
            tensors = [self.recorder.tensor(found[index]) for index in range(len(rule.types))]
            result = rule.right(*tensors, **{name: found[name] for name in rule.holes})
            return None if result is None else self._in_type_of_node(rule, node, result)
        except TraceError as error:
            if error.op != "dimension":
                raise
            return None  # whether the law holds depends on a size that is not known
        finally:
            self.depth -= 1

    def _in_type_of_node(self, rule: Rule, node: GraphNode, result: Tensor | Number) -> Atom:
        """The result in the type of the node, which may be left to broadcasting."""
        wanted = node.results[0].type
        tensor = result if isinstance(result, Tensor) else _scalar(result, wanted)
        atom = self.recorder.atom(tensor)
        if atom.type == wanted:
            return atom
        if not _broadcasts_to(atom.type, wanted) or not node.primitive.broadcasts:
            raise GraphError(
                f"rule {rule.name}",
                "the replacement has another type",
                expected=f"{wanted}",
                got={"replacement": atom.type},
                fix="return None where the law does not hold",
                at=node.location,
            )
        number = self.uniform(atom)
        if number is not None:
            return self.constant(number, wanted, node)
        spread = apply(PRIMITIVES["broadcast_to"], tensor, shape=wanted.shape)
        return self.recorder.atom(spread)


def _use_counts(graph: Graph) -> Counter[Atom]:
    """How often each atom is an operand or an output."""
    uses: Counter[Atom] = Counter(chain.from_iterable([node.operands for node in graph.nodes]))
    uses.update(graph.outputs)
    return uses
