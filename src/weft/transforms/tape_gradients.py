"""`gradients`: derivatives of tensors with respect to tensors, over the tape that made them.

Eagerly this is what `.backward()` computes, given back instead of accumulated; in a `wf.Graph` it
adds the backward program.

>>> import weft as wf
>>> x = wf.tensor(3.0, requires_grad=True)
>>> y = x * x
>>> (first,) = wf.gradients(y, [x])
>>> first.item(), wf.gradients(first, [x])[0].item()
(6.0, 2.0)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from weft.core.errors import GradientError
from weft.ir.reverse import backpropagate, filled_like, recording
from weft.ir.tape_order import reachable_nodes
from weft.ir.tensor import Tensor
from weft.ops.operands import as_tensor

__all__ = ["gradients"]


def gradients(ys: Any, xs: Any, grad_ys: Any = None) -> list[Tensor | None]:
    """The derivatives of the sum of `ys` with respect to each of `xs`, without `.backward()`.

    ys, xs: a tensor or a sequence of them. grad_ys: a weight for the elements of each y. In a graph
    this adds the backward program; the results can be differentiated again. An x that no y depends
    on has None.

    >>> import weft as wf
    >>> w = wf.tensor([1.0, 2.0], requires_grad=True)
    >>> [g.tolist() for g in wf.gradients((w * w).sum(), [w])]
    [[2.0, 4.0]]
    """
    roots, wanted = _sequence("gradients", ys), _sequence("gradients", xs)
    weights = [None] * len(roots) if grad_ys is None else _sequence("gradients", grad_ys)
    if len(weights) != len(roots):
        _wrong_weights(roots, weights)
    for y in roots:
        if not y.dtype.is_inexact:
            raise _without_derivative(y, "y")
    for x in wanted:
        if not x.dtype.is_inexact:
            raise _without_derivative(x, "x")
    targets = [x._node for x in wanted if x._node is not None]
    order = _nodes_leading_to([y._node for y in roots], targets)
    seeds = [
        (y._node, filled_like(y, 1) if w is None else w)
        for y, w in zip(roots, weights, strict=True)
    ]
    cotangents: dict[Any, Tensor] = {}
    with recording(True), _note_cotangents(targets, cotangents):
        backpropagate(order, seeds)
    return [None if x._node is None else cotangents.get(x._node) for x in wanted]


def _nodes_leading_to(roots: Sequence[Any], targets: Sequence[Any]) -> list[Any]:
    """The nodes behind the roots that lead to a target, latest first."""
    nodes = reachable_nodes(roots)
    live = set(targets)
    for node in reversed(nodes):
        if any(parent in live for parent in node.parents):
            live.add(node)
    return [node for node in nodes if node in live]


@contextmanager
def _note_cotangents(targets: Sequence[Any], found: dict[Any, Tensor]) -> Iterator[None]:
    """Note what arrives at the targets, each of which may lie behind another."""
    before = [(node, node.hooks) for node in dict.fromkeys(targets)]
    for node, hooks in before:
        node.hooks = [*(hooks or ()), partial(found.__setitem__, node)]
    try:
        yield
    finally:
        for node, hooks in before:
            node.hooks = hooks


def _sequence(op: str, given: Any) -> list[Any]:
    if isinstance(given, Tensor) or not isinstance(given, (list, tuple)):
        return [as_tensor(op, given)]
    return [as_tensor(op, each) for each in given]


def _wrong_weights(roots: Sequence[Any], weights: Sequence[Any]) -> NoReturn:
    raise GradientError(
        "gradients",
        "not as many weights as there are ys",
        expected=f"{len(roots)} tensors in grad_ys",
        got={"grad_ys": len(weights)},
        fix="grad_ys=[wf.ones_like(y) for y in ys]",
    )


def _without_derivative(x: Tensor, name: str) -> GradientError:
    return GradientError(
        "gradients",
        f"{name} has no derivative: its elements are not floating-point or complex numbers",
        expected="a float or complex dtype",
        got={name: x},
        fix=f'convert it first: {name}.astype("float32")',
    )
