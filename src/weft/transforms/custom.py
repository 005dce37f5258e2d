"""`custom_derivative`: a function with a derivative of one's own.

>>> import weft as wf
>>> @wf.custom_derivative
... def double(x):
...     return x * 2
>>> @double.jvp
... def double_jvp(primals, tangents):
...     return double(*primals), tangents[0] * 100
>>> float(wf.grad(double)(wf.tensor(1.0)))
100.0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from weft.core import trees
from weft.core.errors import GradientError
from weft.core.trees import TreeStructure
from weft.ir import batching, reverse
from weft.ir.autocast import AUTOCAST, autocast_to
from weft.ir.derivatives import joint
from weft.ir.dispatch import apply_multiple, deepest_trace
from weft.ir.forward import ForwardTrace
from weft.ir.graph import Graph
from weft.ir.kinds import Control
from weft.ir.primitive import Primitive, Sample
from weft.ir.reverse import recording
from weft.ir.tape import Node, Projection
from weft.ir.tensor import Tensor, Traced, grad_mode, traces, wrap
from weft.ir.tracing import Closure, interpret, trace
from weft.ops.operands import as_tensor, check_function
from weft.transforms.vmap import vmap

__all__ = ["custom_derivative"]

_numbers = count(1)
RULES: WeakValueDictionary[str, Rule] = WeakValueDictionary()


class Rule:
    """A derivative given by the user, over flat lists of tensors; a parameter of graphs.

    Its text is a name, under which it is found again in the process that made it.
    """

    def __init__(
        self,
        name: str,
        push: Callable[..., tuple[list[Tensor], list[Tensor]]] | None,
        pull: Callable[..., tuple[list[Tensor], Callable[..., list[Tensor | None]]]] | None,
    ) -> None:
        self.name = f"{name}#{next(_numbers)}"
        self.push = push
        self.pull = pull
        RULES[self.name] = self

    def __repr__(self) -> str:
        return repr(self.name)


def _rule(rule: Rule | str) -> Rule:
    if isinstance(rule, Rule):
        return rule
    registered = RULES.get(rule)
    if registered is None:
        raise GradientError(
            "custom_derivative",
            "the derivative belongs to a function of another process",
            expected="the name of a custom_derivative function that is alive",
            got={"rule": rule},
            fix="define the function again, and trace it in this process",
        )
    return registered


def _push(primals: Sequence[Tensor], tangents: Sequence[Tensor | None], rule: Rule) -> Any:
    """Results and tangents by the user's rule, or None where only reverse mode was given."""
    if rule.push is None:
        raise GradientError(
            "jvp",
            f"{rule.name.split('#')[0]} has a derivative for reverse mode only",
            expected="a rule for forward mode",
            got={"function": rule.name.split("#")[0]},
            fix="give one with @f.jvp",
        )
    return rule.push(primals, reverse.or_zeros(tangents, primals))


def _pull(
    cotangents: Sequence[Tensor | None],
    primals: Sequence[Tensor],
    wanted: Sequence[bool],
    rule: Rule,
    graph: Graph | None,
) -> list[Tensor | None]:
    if graph is not None:  # a compiled call keeps saved values behind its operands
        primals = primals[: len(graph.inputs)]
    if rule.pull is not None:
        _, pullback = rule.pull(primals)
        return pullback(cotangents)
    backs: list[Tensor | None] = []
    for index, (primal, want) in enumerate(zip(primals, wanted, strict=True)):

        def tangents_along(t: Tensor, index: int = index) -> tuple[Tensor, ...]:
            tangents = [t if i == index else None for i in range(len(primals))]
            return tuple(_push(primals, tangents, rule)[1])

        backs.append(
            reverse.transpose(tangents_along, primal.type, tuple(cotangents)) if want else None
        )
    return backs


def _batch(
    size: Any, operands: tuple[Tensor, ...], axes: tuple[int | None, ...], graph: Graph, rule: Any
) -> Any:
    fronts = [batching.to_front(size, x, axis) for x, axis in zip(operands, axes, strict=True)]
    axis_name = traces.axis_name
    batched_rule = _batched_rule(_rule(rule), axis_name)

    def run(*xs: Tensor) -> list[Tensor]:
        return [
            batching.to_front(size, *pair)
            for pair in batching.vmap(
                lambda *each: interpret(graph, *each), size, xs, [0] * len(xs), axis_name
            )
        ]

    batched = trace(run, [x.type for x in fronts])
    results = apply_multiple(custom, *fronts, graph=batched.closed_graph(), rule=batched_rule)
    return results, (0,) * len(results)


def _batched_rule(rule: Rule, axis_name: str | None) -> Rule:
    """The rule for a whole batch at once, along axis 0 of everything."""
    push = vmap(rule.push, axis_name=axis_name) if rule.push is not None else None
    pull = None
    if rule.pull is not None:
        pull_one = rule.pull
        results_of = vmap(lambda xs: pull_one(xs)[0], axis_name=axis_name)
        back = vmap(lambda xs, cts: pull_one(xs)[1](cts), axis_name=axis_name)

        def pull(xs: Any) -> Any:
            return results_of(xs), lambda cts: back(xs, cts)

    return Rule(rule.name.split("#")[0], push, pull)


def _sample() -> list[Sample]:
    rule = _SAMPLE_RULE
    kind = wrap(np.zeros(3, np.float32)).type
    graph = trace(lambda x: [x * x], [kind]).graph
    return [Sample((np.array([0.5, 1.0, 1.5], np.float32),), {"graph": graph, "rule": rule})]


custom = Primitive(
    "custom",
    "A graph whose derivative is given by a rule of the user's.",
    kind=Control(),
    type_rule=lambda *operands, graph, rule: graph.output_types,
    reference=lambda *arrays, graph, rule: tuple(
        result._value for result in _interpret_untaped(graph, arrays)
    ),
    derivatives=joint(
        jvp=lambda primals, tangents, out, graph, rule: tuple(
            _push(primals, tangents, _rule(rule))[1]
        ),
        vjp=lambda cts, out, primals, wanted, graph, rule, pull=None: _pull(
            cts, primals, wanted, _rule(rule), graph
        ),
    ),
    batch=_batch,
    samples=_sample,
    multiple=True,
)


def _interpret_untaped(graph: Graph, arrays: Sequence[Any]) -> tuple[Tensor, ...]:
    with recording(False):
        return interpret(graph, *[wrap(array) for array in arrays])


_SAMPLE_RULE = Rule(
    "square",
    lambda primals, tangents: ([primals[0] * primals[0]], [tangents[0] * primals[0] * 2.0]),
    None,
)


class custom_derivative:  # noqa: N801 (a decorator)
    """Give a function a derivative of its own, with `.jvp` or `.vjp`.

    `@f.jvp def rule(primals, tangents): return out, tangent_out` serves both modes, if its
    operations are linear in the tangents. `@f.vjp def rule(*args): return out, pullback`
    with `pullback(cotangent)` returning one cotangent per argument serves reverse mode.

    >>> import weft as wf
    >>> @wf.custom_derivative
    ... def sign(x):
    ...     return wf.sign(x)
    >>> @sign.jvp
    ... def _(primals, tangents):
    ...     return wf.sign(primals[0]), tangents[0]  # as if it were the identity
    >>> wf.grad(sign)(wf.tensor(-2.0)).item()
    1.0
    """

    __name__: str

    def __init__(self, f: Callable[..., Any]) -> None:
        check_function("custom_derivative", f)
        self._f = f
        self._jvp: Callable[..., Any] | None = None
        self._vjp: Callable[..., Any] | None = None
        update_wrapper(self, f, updated=())

    def jvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule for forward mode: (primals, tangents) to (out, tangent_out)."""
        self._jvp = rule
        return rule

    def vjp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule for reverse mode: arguments to (out, pullback)."""
        self._vjp = rule
        return rule

    def __call__(self, *args: Any) -> Any:
        """Call the function; its derivative, if one is taken, is the rule's."""
        leaves, structure = trees.flatten(args)
        tensors = [as_tensor(self.__name__, leaf) for leaf in leaves]
        if self._jvp is None and self._vjp is None:
            raise GradientError(
                self.__name__,
                "the function has no derivative of its own",
                expected="a rule given with @f.jvp or @f.vjp",
                got={"function": self.__name__},
                fix=f"@{self.__name__}.jvp before the first call",
            )
        call = _Call(self, structure)
        return call.rebuild(call.run(tensors))


class _Call:
    """One call of a custom_derivative function: its rules over flat lists, and how it is run."""

    def __init__(self, owner: custom_derivative, structure: TreeStructure) -> None:
        self.owner = owner
        self.structure = structure
        self.out: TreeStructure | None = None
        as_called = autocast_to(AUTOCAST.get())  # rules cast as the function did
        self.rule = Rule(
            owner.__name__,
            as_called(self._push) if owner._jvp is not None else None,
            as_called(self._pull) if owner._vjp is not None else None,
        )

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        assert self.out is not None
        return trees.unflatten(self.out, leaves)

    def _flat(self, *tensors: Tensor) -> list[Tensor]:
        result = self.owner._f(*trees.unflatten(self.structure, tensors))
        leaves, self.out = trees.flatten(result)
        return [as_tensor(self.rule.name, leaf) for leaf in leaves]

    def _push(self, primals: Sequence[Tensor], tangents: Sequence[Tensor]) -> Any:
        assert self.owner._jvp is not None
        result, tangent = self.owner._jvp(
            trees.unflatten(self.structure, primals), trees.unflatten(self.structure, tangents)
        )
        out, self.out = trees.flatten(result)
        moved = trees.leaves(tangent)
        _check_types(self.owner.__name__, "a tangent", moved, out)
        return out, moved

    def _pull(self, primals: Sequence[Tensor]) -> Any:
        assert self.owner._vjp is not None
        result, pullback = self.owner._vjp(*trees.unflatten(self.structure, primals))
        out, self.out = trees.flatten(result)

        def pull(cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
            backs = pullback(self.rebuild(cotangents))
            given = backs if isinstance(backs, tuple) else (backs,)
            cotangents_of_primals = [
                leaf for back in given for leaf in trees.leaves(back, is_leaf=_is_none)
            ]
            _check_types(self.owner.__name__, "a cotangent", cotangents_of_primals, primals)
            return cotangents_of_primals

        return out, pull

    def run(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        """Compute now where the values are known; otherwise stage the primitive."""
        trace_of = deepest_trace(tensors, self.rule.name)
        if trace_of is None:
            return self._run_now(tensors)
        if isinstance(trace_of, ForwardTrace):
            pairs = [trace_of.primal_and_tangent(tensor) for tensor in tensors]
            primals = [primal for primal, _ in pairs]
            out, tangents = _push(primals, [tangent for _, tangent in pairs], self.rule)
            inside = [x for x in (*out, *tangents) if trace_of.primal_and_tangent(x)[0] is not x]
            _check_closes_over_nothing(self.owner.__name__, inside)
            results = [trace_of.tensor(o, t) for o, t in zip(out, tangents, strict=True)]
            return self._record_rule(tensors, results)
        closure = trace(self._flat, [tensor.type for tensor in tensors])
        return apply_multiple(
            custom, *tensors, graph=_without_captures(closure, self.rule.name), rule=self.rule
        )

    def _run_now(self, tensors: list[Tensor]) -> Sequence[Tensor]:
        results = self._flat(*[wrap(t._value) for t in tensors])
        traced = [r for r in results if r._node is not None or isinstance(r._value, Traced)]
        _check_closes_over_nothing(self.owner.__name__, traced)
        return self._record_rule(tensors, [wrap(result._value) for result in results])

    def _record_rule(self, tensors: list[Tensor], results: list[Tensor]) -> list[Tensor]:
        """The results, with the rule on the tape behind them."""
        parents = tuple(tensor._node for tensor in tensors)
        if grad_mode.enabled and any(parent is not None for parent in parents):
            values = tuple(tensor._value for tensor in tensors)
            params = {"graph": None, "rule": self.rule}
            node = Node(custom, params, values, parents, tuple(r._value for r in results))
            for index, result in enumerate(results):
                result._node = Projection(node, index) if result.dtype.is_inexact else None
        return results


def _check_types(
    name: str, what: str, given: Sequence[Tensor | None], like: Sequence[Tensor]
) -> None:
    """Refuse derivatives that do not belong to the tensors they are given for."""
    pairs = zip(given, like, strict=False)
    if len(given) != len(like) or any(
        g is not None and x.dtype.is_inexact and g.type != x.type for g, x in pairs
    ):
        raise GradientError(
            name,
            f"the rule returns {what} that does not fit",
            expected=f"one {what.split()[-1]} for each of: {', '.join(str(x.type) for x in like)}",
            got={"returned": ", ".join(str(getattr(g, "type", g)) for g in given)},
            fix="return a tensor of the same shape and dtype for each, or None for zero",
        )


def _is_none(value: Any) -> bool:
    return value is None


def _without_captures(closure: Closure, name: str) -> Graph:
    """The graph of a function that closes over nothing that a transform works on."""
    recorded = [x for x in closure.captured if x._node is not None and grad_mode.enabled]
    traced = [x for x in closure.captured if isinstance(x._value, Traced)]
    _check_closes_over_nothing(name.split("#")[0], [*recorded, *traced])
    return closure.closed_graph()


def _check_closes_over_nothing(name: str, found: Sequence[Tensor]) -> None:
    """Refuse a function that closes over a tensor of which a derivative or a batch is taken."""
    if found:
        raise GradientError(
            name,
            "the function closes over a tensor of which a derivative is taken or a batch is made",
            expected="every such tensor among the arguments, where the rule sees it",
            got={"x": found[0]},
            fix="pass the tensor as an argument, or take it as a constant: x.detach()",
        )
