"""`checkpoint`: recompute in the backward pass instead of remembering.

>>> import weft as wf
>>> f = wf.checkpoint(lambda x: wf.exp(wf.sin(x)))
>>> round(float(wf.grad(f)(wf.tensor(0.5))), 4)
1.4174
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from math import isqrt
from typing import Any

from weft.core import trees
from weft.core.dtypes import DType
from weft.core.errors import ArgumentError
from weft.core.types import TensorType
from weft.ir.autocast import AUTOCAST, autocast_to
from weft.ir.derivatives import Joint
from weft.ir.dispatch import apply
from weft.ir.kinds import Contraction
from weft.ir.lifting import Lifting, lift
from weft.ir.primitive import find
from weft.ir.reverse import backpropagate, recording
from weft.ir.tape import Leaf, Node, Projection
from weft.ir.tape_order import AnyNode, nodes_between
from weft.ir.tensor import Tensor, Traced, grad_mode, wrap
from weft.ops.composed import random
from weft.ops.identity import barrier
from weft.ops.operands import check_function
from weft.transforms.keeping import FirstRun, SecondRun, Wanted

__all__ = ["checkpoint"]

Policy = str | int | Callable[[str, tuple[TensorType, ...]], bool] | None
NOTHING = 0.0
"""Stands on the tape for what is no leaf."""
_POLICIES: dict[str | None, Wanted] = {
    None: lambda primitive, types: False,
    "nothing": lambda primitive, types: False,
    "products": lambda primitive, types: isinstance(find(primitive).kind, Contraction),
}


def checkpoint(
    f: Callable[..., Any] | Sequence[Callable[..., Any]], *, policy: Policy = None
) -> Callable[..., Any]:
    """A function that computes what f does and keeps only its arguments for the backward pass.

    f runs a second time when a derivative is needed, with the same random numbers and the same
    state; what has an effect, such as a print, happens once. It may take and return trees, and use
    tensors from outside. What else is kept of its inside, and not computed again, says the policy:

    - None or "nothing": no more;
    - "products": the results of products, convolutions and attention, so that normalisation,
      activations, dropout and pooling are what is computed again;
    - a function of a primitive's name and the types of its results: those for which it is true.
      Loops, choices and compiled functions are one primitive each: scan, while, switch, call.

    A sequence of functions, each of which takes what the one before returns, is a chain. It is cut
    into segments that are checkpointed: √n of n functions with policy="sqrt", which is what None
    means here, or of as many functions as a number says. What is then kept is what goes from
    segment to segment, and the inside of one of them. With another policy each function is a
    segment by itself.

    >>> import weft as wf
    >>> chain = wf.checkpoint([wf.sin] * 9)
    >>> round(float(wf.grad(chain)(wf.tensor(0.5))), 4)
    0.4112
    >>> layer = wf.checkpoint(lambda x: wf.tanh(x @ x).sum(), policy="products")
    >>> round(float(wf.grad(layer)(wf.eye(2)).sum()), 4)
    5.6799
    """
    if isinstance(f, (list, tuple)):
        return _chain_segments(f, policy)
    check_function("checkpoint", f)
    assert callable(f)
    return _with_replay(f, _policy_function(policy, '"products", "nothing", or a function', policy))


def _policy_function(policy: Policy, expected: str, given: Policy) -> Wanted:
    """What a policy keeps of the inside of a function."""
    if callable(policy):
        return policy
    if isinstance(policy, (str, type(None))) and policy in _POLICIES:
        return _POLICIES[policy]
    raise ArgumentError(
        "checkpoint",
        "this is no policy",
        expected=f"{expected} of a primitive's name and its results' types",
        got={"policy": given},
        fix='policy="products"',
    )


def _chain_segments(
    functions: Sequence[Callable[..., Any]], policy: Policy
) -> Callable[[Any], Any]:
    """The functions one after the other, all segments but the last checkpointed.

    The last one's second run would come at once, and save nothing.
    """
    for function in functions:
        check_function("checkpoint", function)
    length = _length(len(functions), policy)
    whole = policy is None or policy == "sqrt" or isinstance(policy, int)
    expected = '"sqrt", how many functions a segment has, "products", "nothing", or a function'
    wanted = _policy_function(None if whole else policy, expected, policy)
    starts = range(0, len(functions), length)
    segments = [_in_turn(functions[start : start + length]) for start in starts]
    return _in_turn([*[_with_replay(f, wanted) for f in segments[:-1]], *segments[-1:]])


def _length(count: int, policy: Policy) -> int:
    """How many functions a segment has."""
    if policy is None or policy == "sqrt":
        return max(1, isqrt(max(0, count - 1)) + 1)
    if not isinstance(policy, int):
        return 1
    if type(policy) is int and policy > 0:
        return policy
    raise ArgumentError(
        "checkpoint",
        "this is no policy for a sequence of functions",
        expected="how many functions a segment has, at least one",
        got={"policy": policy},
        fix='policy="sqrt"',
    )


def _in_turn(functions: Sequence[Callable[..., Any]]) -> Callable[[Any], Any]:
    return partial(_run_in_turn, tuple(functions))


def _run_in_turn(functions: Sequence[Callable[..., Any]], x: Any) -> Any:
    for function in functions:
        x = function(x)
    return x


def _with_replay(f: Callable[..., Any], wanted: Wanted) -> Callable[..., Any]:
    """The function as one node of the tape, which runs it again in reverse mode."""

    @wraps(f)
    def run_with_replay(*args: Any, **kwargs: Any) -> Any:
        if not grad_mode.enabled:
            return f(*args, **kwargs)
        kept = trees.map_tree(_alias, (args, kwargs))
        state = random.get_state()
        start = Leaf().number
        with FirstRun(wanted, quick=wanted in _POLICIES.values()) as first:
            results, structure = trees.flatten(f(*args, **kwargs))
        tensors = [result for result in results if isinstance(result, Tensor)]
        first.forget(tensors)
        outside = _nodes_before([tensor._node for tensor in tensors], start)
        draws = random.get_state()[1]._value is not state[1]._value
        replay = Replay(f, kept, state, draws, AUTOCAST.get(), outside, first)
        held = tuple([_held_value(each) for each in outside])
        node = Node(replay, {}, held, tuple(outside), tuple(t._value for t in tensors))  # type: ignore[arg-type]
        number = {id(tensor): index for index, tensor in enumerate(tensors)}
        shown = [_projection_of(result, node, number) for result in results]
        return trees.unflatten(structure, shown)

    return run_with_replay


def _alias(leaf: Any) -> Any:
    return wrap(leaf._value, leaf._node) if isinstance(leaf, Tensor) else leaf


def _held_value(node: AnyNode) -> Any:
    """What a leaf holds now."""
    handle = _handle_of(node)
    return NOTHING if handle is None else handle._value


def _handle_of(node: AnyNode) -> Tensor | None:
    return node.handle() if type(node) is Leaf and node.handle is not None else None


@contextmanager
def _leaves_as_before(nodes: Sequence[AnyNode], operands: Sequence[Any]) -> Iterator[None]:
    """A block in which leaves hold what they held in the first run, wherever they are read."""
    pairs = [
        (handle, operand._value)
        for node, operand in zip(nodes, operands, strict=True)
        if isinstance(operand, Tensor)
        and (handle := _handle_of(node)) is not None
        and handle._value is not operand._value
    ]
    if not pairs:
        yield
        return
    with Lifting():
        for handle, value in pairs:
            lift(handle)
            handle._value = value
        yield


def _projection_of(result: Any, node: Node, number: dict[int, int]) -> Any:
    """The result as a product of the one node that stands for the whole function."""
    if not isinstance(result, Tensor) or result._node is None:
        return result
    return wrap(result._value, Projection(node, number[id(result)]))


def _nodes_before(roots: Sequence[AnyNode | None], start: int) -> list[AnyNode]:
    """The nodes from before `start` that the roots were computed from."""
    older_nodes: dict[AnyNode, None] = {}
    seen: set[AnyNode] = set()
    stack = [root for root in roots if root is not None]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.number < start:
            older_nodes[node] = None
        else:
            stack.extend(parent for parent in node.parents if parent is not None)
    return list(older_nodes)


@dataclass(slots=True)
class Replay:
    """Stands on the tape for a function that is run again when its derivative is needed."""

    f: Callable[..., Any]
    arguments: Any
    state: Any
    draws: bool
    """Whether the first run drew from the generator. Else nothing is to read its counter, of which
    loops and choices know by then whether their functions draw."""
    autocast: DType | None
    """What products were cast to in the first run."""
    outside: list[AnyNode]
    first: FirstRun
    name: str = "checkpoint"
    multiple: bool = True

    @property
    def derivatives(self) -> Joint:
        """Reverse mode by running the function again; forward mode never comes here."""
        return Joint(self._no_jvp, self._vjp)

    def _no_jvp(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("forward mode runs the function itself")

    def _vjp(
        self, cotangents: Sequence[Tensor | None], out: Any, operands: Any, wanted: Any
    ) -> list[Tensor | None]:
        before = random.get_state()
        if self.draws:
            random.set_state(trees.map_tree(_fence_argument, self.state))
        try:
            held = _leaves_as_before(self.outside, operands)
            with held, recording(True), autocast_to(self.autocast), SecondRun(self.first):
                args, kwargs = trees.map_tree(_fence_argument, self.arguments)
                results = trees.leaves(self.f(*args, **kwargs))
        finally:
            if self.draws:
                random.set_state(before)
        tensors = [result for result in results if isinstance(result, Tensor)]
        seeds = [(t._node, ct) for t, ct in zip(tensors, cotangents, strict=True) if ct is not None]
        oldest = min(node.number for node in self.outside)
        order, _ = nodes_between([root for root, _ in seeds], self.outside, oldest)
        attach = any(each._node is not None for each in out)
        cotangent_of = backpropagate(
            order, seeds, stops=self.outside, attach=attach, are_hooked=False
        )
        return [cotangent_of.get(node) for node in self.outside]


def _fence_argument(leaf: Any) -> Any:
    """An argument of the second run, kept apart from the first in a graph."""
    if isinstance(leaf, Tensor) and isinstance(leaf._value, Traced):
        return apply(barrier, leaf)
    return _alias(leaf)
