"""`rewrite`: laws that users add to the compiler.

Pattern and replacement are functions of tensors. A rule is checked on random operands when it is
added, values and gradients, and refused with a counterexample where the two sides differ. It
matches operands of any rank and size: what matches loosely is matched again by the pattern as it
is for the types found, so a rule never stands for another program than the one it was written as.

>>> import math
>>> import weft as wf
>>> f = lambda x: wf.log(wf.exp(x) * 2.0)
>>> graph = wf.ir.trace(f, wf.spec("float32", (3,)))
>>> with wf.compiler.rewrite(
...     lambda x, c=3.0: wf.log(wf.exp(x) * c), lambda x, c: x + math.log(c), name="shift"
... ):
...     [str(each) for each in wf.explain(graph).passes if each.rewrites]
['rewrites: 3 -> 1 nodes   shift 1']
>>> wf.compiler.rewrites()
()
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import product
from threading import Lock
from typing import Any, NoReturn, Self

import numpy as np

from weft.compiler.graph_passes.dead_code import remove_dead_code
from weft.compiler.graph_passes.inlining import inline
from weft.core.dtypes import DType, bfloat16, float16, float32, float64
from weft.core.errors import ArgumentError, GraphError, Unsupported, WeftError
from weft.core.forks import renew_in_children
from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir import reverse
from weft.ir.autocast import autocast_to
from weft.ir.graph import Graph
from weft.ir.rewriting import Call, Rule, RuleSet, loosened_pattern, pattern_of
from weft.ir.tensor import Tensor, wrap
from weft.ir.tracing import trace
from weft.ir.walking import Tally, is_pure
from weft.ops.operands import DTYPE_CLASSES, as_tensor, check_function

__all__ = ["Rewrite", "rewrite", "rewrites"]

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]
Types = tuple[TensorType, ...]
SHAPES: tuple[tuple[int, ...], ...] = ((3, 3), (2, 3), (4,), (2, 3, 3), (2, 3, 4), ())
"""The shapes that a rule is tried with, for all operands alike, where none are given."""
DTYPES = (float32, float64, bfloat16)
TRIALS = 2
"""How often both sides of a rule are computed, with other numbers each time: a check, and no
machine's."""
STEPS = 512.0
"""How many roundings apart the two sides may be, on any machine."""
OP = "rewrite"


# --- which rules hold ----------------------------------------------------------------------------


class Rewrite:
    """A law that the compiler applies from when it is made until it is removed.

    As a context manager it holds until the end of the block.
    """

    def __init__(self, name: str, rules: Sequence[Rule]) -> None:
        self.name, self.rules = name, tuple(rules)

    def __repr__(self) -> str:
        return f"<rewrite {self.name}>"

    def add(self) -> None:
        """Apply the rule from now on, after those that hold already."""
        with _lock:
            if self not in STANDING[0]:
                STANDING[0] = (*STANDING[0], self)

    def remove(self) -> None:
        """Apply the rule no more."""
        with _lock:
            STANDING[0] = tuple(each for each in STANDING[0] if each is not self)

    def __enter__(self) -> Self:
        self.add()
        return self

    def __exit__(self, *raised: object) -> None:
        self.remove()


Rewrites = tuple[Rewrite, ...]
STANDING: list[Rewrites] = [()]
"""The rules that hold everywhere."""
ONLY: ContextVar[Rewrites | None] = ContextVar("only", default=None)
"""The rules that hold in their place in this thread or task."""
_lock = renew_in_children(Lock())


def rewrites() -> Rewrites:
    """The rules of users that hold now, in the order in which they are tried."""
    only = ONLY.get()
    return STANDING[0] if only is None else only


@contextmanager
def only_these_rules(rules: Rewrites) -> Iterator[None]:
    """Inside a `with` block these rules hold, and no others."""
    token = ONLY.set(rules)
    try:
        yield
    finally:
        ONLY.reset(token)


def apply_rewrites(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph rewritten by the rules that hold now."""
    return _join_rule_sets(rewrites()).apply(graph, tally)


@lru_cache(maxsize=64)
def _join_rule_sets(rules: Rewrites) -> RuleSet:
    return RuleSet("rewrites", *[each.rules for each in rules])


# --- adding a rule -------------------------------------------------------------------------------


@autocast_to(None)
def rewrite(
    pattern: Function,
    replacement: Function,
    *,
    name: str = "",
    on: Sequence[TensorType] | None = None,
    dtypes: str = "float",
    domain: tuple[float, float] = (-4.0, 4.0),
    exact: bool = False,
    lone: bool = False,
) -> Rewrite:
    """Let the compiler put one program in the place of another that computes the same.

    Arguments of the pattern with a default stand for numbers and parameters that may be anything;
    the replacement is given those found, and may return None where the law does not hold.

    on: the types of the operands that the rule is checked with, where not all operands can have
    the same. dtypes: the class of dtypes it holds for. domain: the numbers it holds for.
    exact: whether both sides must be equal to the bit. lone: only where nothing else uses what
    the pattern computes on the way.

    >>> import weft as wf
    >>> rule = wf.compiler.rewrite(lambda x, y: wf.exp(x) * wf.exp(y), lambda x, y: wf.exp(x + y))
    >>> wf.compiler.rewrites()
    (<rewrite exp_multiply>,)
    >>> rule.remove()
    >>> wf.compiler.rewrite(wf.sin, lambda x: x, name="small angles")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    weft.core.errors.ArgumentError: rewrite: small angles: pattern and replacement differ
    ...
    """
    for each in (pattern, replacement):
        check_function(OP, each)
    if dtypes not in DTYPE_CLASSES:
        _refuse("unknown class of dtypes", "one of " + ", ".join(DTYPE_CLASSES),
                {"dtypes": dtypes}, 'dtypes="float"')  # fmt: skip
    sides = _Sides(pattern, replacement, name, dtypes, domain, exact, lone)
    rule = sides.checked_rewrite(None if on is None else tuple(on))
    rule.add()
    return rule


@frozen(slots=False)
class _Sides:
    """A rule that is being checked: its two sides, and what they are checked with."""

    pattern: Function
    replacement: Function
    name: str
    dtypes: str
    domain: tuple[float, float]
    exact: bool
    lone: bool

    @property
    def holes(self) -> dict[str, Any]:
        """The arguments that stand for numbers and parameters, with their samples."""
        parameters = inspect.signature(self.pattern).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    def checked_rewrite(self, on: Types | None) -> Rewrite:
        """The rule, if both sides agree wherever they are tried."""
        count = len(inspect.signature(self.pattern).parameters) - len(self.holes)
        choices = [on] if on is not None else self._choices(count)
        tried = {types: self._trace_pattern(types, may_fail=on is None) for types in choices}
        graphs = {types: graph for types, graph in tried.items() if graph is not None}
        if not graphs:
            _refuse("the pattern takes none of the operands it was tried with",
                    "operands of one type, " + " or ".join(str(list(s)) for s in SHAPES),
                    {"pattern": self.pattern},
                    'say which: on=(wf.spec("float32", (3, 4)), ...)')  # fmt: skip
        name = self.name or _name(self.pattern, self.replacement, next(iter(graphs.values())))
        for types, graph in graphs.items():
            self._check_graph(name, graph)
            _Check(self, name, types).run()
        rules = self._rules(name, graphs)
        for types in graphs:
            self._check_rests(name, rules, types)
        return Rewrite(name, rules)

    def _choices(self, count: int) -> list[Types]:
        dtypes = [d for d in DTYPES if d in DTYPE_CLASSES[self.dtypes]]
        wide = dtypes or list(DTYPE_CLASSES[self.dtypes])[:2]
        return [(TensorType(d, s),) * count for d, s in product(wide, SHAPES)]

    def _trace_pattern(
        self, types: Types, holes: Mapping[str, Any] | None = None, may_fail: bool = True
    ) -> Graph | None:
        """The pattern on operands of these types; None where it does not take them."""
        try:
            return _graph(self.pattern, types, self.holes if holes is None else holes)
        except (WeftError, ValueError, TypeError, IndexError) as error:
            if may_fail and getattr(error, "op", "") != OP:
                return None
            raise

    def _check_graph(self, name: str, graph: Graph) -> None:
        if not all(map(is_pure, graph.nodes)):
            _refuse(f"{name}: the pattern has an effect, or draws random numbers",
                    "operations that do nothing but compute",
                    {"pattern": [n.primitive.name for n in graph.nodes if not is_pure(n)]},
                    "leave the effect outside of the pattern")  # fmt: skip
        if any(len(node.results) != 1 for node in graph.nodes):
            _refuse(f"{name}: the pattern has an operation with several results",
                    "operations of one result each",
                    {"pattern": [n.primitive.name for n in graph.nodes if len(n.results) != 1]},
                    "match a part of the pattern")  # fmt: skip

    def _rules(self, name: str, graphs: Mapping[Types, Graph]) -> list[Rule]:
        """One rule for each form that the pattern takes."""
        allowed, holes = frozenset(DTYPE_CLASSES[self.dtypes]), self.holes

        @lru_cache(maxsize=256)
        def general(types: Types) -> Call | None:
            return (
                None
                if (graph := self._trace_pattern(types)) is None
                else make_pattern(graph, holes)
            )

        def make_pattern(graph: Graph, holes: Mapping[str, Any]) -> Call | None:
            try:
                return pattern_of(name, graph, holes, self.lone)
            except GraphError:
                return None

        def pattern_at(types: Types, found: Mapping[str, Any] | None) -> Call | None:
            if any(kind.dtype not in allowed for kind in types):
                return None
            if found is None:
                return general(types)
            return (
                None
                if (graph := self._trace_pattern(types, found)) is None
                else make_pattern(graph, {})
            )

        forms: dict[Call, Rule] = {}
        for types, graph in graphs.items():
            loose = loosened_pattern(pattern_of(f"rewrite {name}", graph, holes, self.lone))
            forms.setdefault(loose, Rule(
                name, inspect.getdoc(self.replacement) or "", self.pattern, self.replacement,
                types, holes, loose, exact=self.exact, domain=self.domain, at=pattern_at,
            ))  # fmt: skip
        return list(forms.values())

    def _check_rests(self, name: str, rules: Sequence[Rule], types: Types) -> None:
        """Refuse a rule whose replacement it applies to again, without end."""
        tally: Counter[str] = Counter()
        RuleSet(name, rules).apply(_graph(self.replacement, types, self.holes), tally)
        if tally[name]:
            _refuse(f"{name}: the replacement holds the pattern again",
                    "a replacement that the rule does not apply to",
                    {f"x{i + 1}": kind for i, kind in enumerate(types)},
                    "write the simpler form as the replacement")  # fmt: skip


def _graph(f: Function, types: Types, holes: Mapping[str, Any]) -> Graph:
    """A side of a rule as the passes see it."""
    closure = trace(lambda *operands: [_single_tensor(f(*operands, **holes))], types)
    return remove_dead_code(inline(closure.closed_graph()))


def _single_tensor(found: Any) -> Tensor:
    """What a side of a rule gives, if it is one tensor."""
    if isinstance(found, (tuple, list, dict)):
        _refuse("a side of a rule has several results", "one tensor",
                {"returned": f"{len(found)} results"}, "write a rule for each")  # fmt: skip
    return as_tensor(OP, found)


def _name(pattern: Function, replacement: Function, graph: Graph) -> str:
    """The name of a function that has one, or the pattern's operations."""
    for each in (replacement, pattern):
        known = getattr(each, "__name__", "<")
        if not known.startswith("<"):
            return str(known)
    names = dict.fromkeys(node.primitive.name for node in graph.nodes)
    return "_".join(names) or "rewrite"


# --- checking a rule -----------------------------------------------------------------------------


@frozen(slots=False)
class _Check:
    """The two sides of a rule on operands of some types."""

    sides: _Sides
    name: str
    types: Types

    def run(self) -> None:
        """Refuse a rule whose sides give different values, or different gradients."""
        generator = np.random.default_rng(0)
        for _ in range(TRIALS):
            operands = [self._draw_operand(generator, kind) for kind in self.types]
            self._check_values(operands)
            if all(_is_wide(kind.dtype) for kind in self.types if kind.dtype.is_inexact):
                self._check_gradients(operands, generator)

    def _draw_operand(self, generator: np.random.Generator, kind: TensorType) -> Array:
        low, high = self.sides.domain
        shape = tuple(int(dim) for dim in kind.shape)
        drawn = generator.uniform(low, high, shape)
        if kind.dtype.is_complex:
            drawn = drawn + 1j * generator.uniform(low, high, shape)
        return np.asarray(drawn).astype(kind.dtype.numpy)

    def _side(self, side: Function) -> Callable[..., Any]:
        holes = self.sides.holes
        return lambda *operands: _single_tensor(side(*operands, **holes))

    def _check_values(self, operands: Sequence[Array]) -> None:
        left = self._side(self.sides.pattern)(*map(wrap, operands))
        try:
            right = self._side(self.sides.replacement)(*map(wrap, operands))
        except Exception as error:
            if getattr(error, "op", "") == OP:
                raise
            self._refuse_difference(
                operands,
                "the replacement does not take operands of the pattern's",
                {"error": f"{type(error).__name__}: {error}".splitlines()[0]},
            )
        wanted = left.type
        if right.type != wanted and right.ndim:
            self._refuse_difference(operands, "pattern and replacement have different types",
                         {"pattern": left.type, "replacement": right.type})  # fmt: skip
        right_array = np.broadcast_to(right._value, left._value.shape)
        self._compare("pattern and replacement differ", operands, left._value, right_array,
                      0.0 if self.sides.exact else STEPS)  # fmt: skip

    def _check_gradients(self, operands: Sequence[Array], generator: np.random.Generator) -> None:
        moving = [i for i, kind in enumerate(self.types) if kind.dtype.is_inexact]
        out = self._side(self.sides.pattern)(*map(wrap, operands))
        if not moving or not out.dtype.is_inexact:
            return
        ct = wrap(np.asarray(generator.normal(size=out.shape)).astype(out.dtype.numpy))
        found = [self._pull_gradients(side, operands, moving, ct)
                 for side in (self.sides.pattern, self.sides.replacement)]  # fmt: skip
        left, right = found
        if left is None or right is None:  # derivatives are taken before rules are applied
            return
        for place, one, other in zip(moving, left, right, strict=True):
            self._compare(f"the gradients in operand {place + 1} differ", operands, one, other,
                          8 * STEPS)  # fmt: skip

    def _pull_gradients(
        self, side: Function, operands: Sequence[Array], moving: Sequence[int], ct: Tensor
    ) -> list[Array] | None:
        """The gradients of a side; None where it has none."""

        def f(*xs: Tensor) -> list[Tensor]:
            given = dict(zip(moving, xs, strict=True))
            tensors = [given.get(i, wrap(x)) for i, x in enumerate(operands)]
            result = self._side(side)(*tensors)
            return [result + ct * 0.0 if result.shape != ct.shape else result]

        try:
            _, pullback = reverse.vjp(f, *[wrap(operands[i]) for i in moving])
            backs = pullback([ct])
        except Unsupported:
            return None
        zeros = [np.zeros_like(operands[i]) for i in moving]
        return [z if b is None else b._value for z, b in zip(zeros, backs, strict=True)]

    def _compare(
        self, problem: str, operands: Sequence[Array], left: Array, right: Array, steps: float
    ) -> None:
        worst = _farthest_place(left, right, steps)
        if worst is not None:
            got = {"pattern": left[worst].item(), "replacement": right[worst].item()}
            place = f"at {list(worst)}" if worst else ""
            self._refuse_difference(operands, problem, got, place)

    def _refuse_difference(
        self, operands: Sequence[Array], problem: str, got: Mapping[str, Any], place: str = ""
    ) -> NoReturn:
        """Refuse the rule, with the operands that show it."""
        shown = {f"x{i + 1}": f"{kind} {np.array2string(x.ravel()[:6], precision=6)}"
                 for i, (kind, x) in enumerate(zip(self.types, operands, strict=True))}  # fmt: skip
        raise ArgumentError(
            OP,
            f"{self.name}: {problem}",
            expected=f"two sides that agree on numbers from {self.sides.domain[0]:g} to"
            f" {self.sides.domain[1]:g}",
            got={**got, **shown},
            fix="correct one side, or say where the law holds: domain=(0.1, 4.0)",
            note=place,
        )


def _is_wide(dtype: DType) -> bool:
    return dtype not in (float16, bfloat16)


def _farthest_place(left: Array, right: Array, steps: float) -> tuple[int, ...] | None:
    """Where two arrays are further apart than so many roundings; None where they are nowhere."""
    if left.dtype.kind in "biu" or not left.size:
        apart = left != right
    else:
        wide = np.complex128 if left.dtype.kind == "c" else np.float64
        a, b = left.astype(wide), right.astype(wide)
        with np.errstate(all="ignore"):
            scale = 1.0 + float(np.max(np.abs(a[np.isfinite(a)]), initial=0.0))
            near = np.abs(a - b) <= steps * _epsilon(left.dtype) * scale
        apart = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not apart.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(apart)), apart.shape))


def _epsilon(dtype: np.dtype[Any]) -> float:
    one = dtype.type(1)
    return float(np.real(np.nextafter(np.real(one), np.real(one + one)))) - 1.0


def _refuse(problem: str, expected: str, got: Mapping[str, object], fix: str) -> NoReturn:
    raise ArgumentError(OP, problem, expected=expected, got=got, fix=fix)
