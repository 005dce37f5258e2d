"""Reverse mode: going back over the tape.

Cotangents follow the convention that ⟨ct, J t⟩ = ⟨Jᴴ ct, t⟩ with ⟨a, b⟩ = Re Σ conj(a)·b, so the
gradient of a real function of complex numbers points uphill.

>>> import weft as wf
>>> x = wf.tensor(3.0, requires_grad=True)
>>> (x * x).backward()
>>> float(x.grad)
6.0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from weft.core.dtypes import DType
from weft.core.errors import GradientError, Unsupported
from weft.core.shapes import Shape
from weft.core.types import TensorType
from weft.ir.abstract import AbstractTrace
from weft.ir.derivatives import Constant, Joint, Tangent
from weft.ir.dispatch import apply, bind, running
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.tape import Hook, Leaf, Node, Projection
from weft.ir.tensor import Tensor, grad_mode, wrap

AnyNode = Node | Leaf | Projection


@contextmanager
def recording(enabled: bool) -> Iterator[None]:
    """Turn the tape on or off inside a `with` block."""
    before = grad_mode.enabled
    grad_mode.enabled = enabled
    try:
        yield
    finally:
        grad_mode.enabled = before


def reachable(roots: Sequence[AnyNode | None]) -> list[AnyNode]:
    """All nodes behind the roots, latest first."""
    seen: set[AnyNode] = set()
    stack = [root for root in roots if root is not None]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(parent for parent in node.parents if parent is not None)
    return sorted(seen, key=_number, reverse=True)


def between(
    roots: Sequence[AnyNode | None], leaves: Sequence[Leaf]
) -> tuple[list[AnyNode], bool]:
    """The nodes on a way from the roots back to the leaves, latest first.

    Also whether the roots depend on anything else: an older tape, or a leaf made on the way.
    """
    oldest = min((leaf.number for leaf in leaves), default=0)
    found: dict[AnyNode, None] = {}
    stack = [root for root in roots if root is not None]
    elsewhere = any(leaf.parents for leaf in leaves)
    live: set[AnyNode] = set(leaves)
    while stack:
        node = stack.pop()
        if node.number < oldest or (type(node) is Leaf and node not in live and not node.parents):
            elsewhere = True
        elif node not in found:
            found[node] = None
            if node not in live:
                stack.extend(parent for parent in node.parents if parent is not None)
    ascending = sorted(found, key=_number)
    for node in ascending:
        if node not in live and any(parent in live for parent in node.parents):
            live.add(node)
    return [node for node in reversed(ascending) if node in live], elsewhere


def _number(node: AnyNode) -> int:
    return node.number


def backpropagate(
    order: Sequence[AnyNode], seeds: Sequence[tuple[AnyNode | None, Tensor]], release: bool
) -> dict[Leaf, Tensor]:
    """Cotangents of all leaves in `order`, given those of the roots.

    `release` frees each node's operands after use, as `.backward()` does by default.
    """
    live = frozenset(order)
    cotangents: dict[Any, Any] = {}
    for root, seed in seeds:
        if root in live:
            _accumulate(cotangents, root, seed)
    leaves: dict[Leaf, Tensor] = {}
    for node in order:
        cotangent = cotangents.pop(node, None)
        if cotangent is None:
            continue
        if node.hooks:
            cotangent = _hooked(node.hooks, cotangent)
        if type(node) is Node:
            _propagate(cotangents, live, node, cotangent)
            if release:
                node.values = node.out = None
        elif type(node) is Projection:
            results = cotangents.setdefault(node.parents[0], {})
            _accumulate(results, node.index, cotangent)
        elif type(node) is Leaf:
            leaves[node] = cotangent
            if node.parents and node.parents[0] in live:
                _accumulate(cotangents, node.parents[0], cotangent)
    return leaves


def _accumulate(cotangents: dict[Any, Any], key: Any, cotangent: Tensor) -> None:
    before = cotangents.get(key)
    cotangents[key] = cotangent if before is None else before + cotangent


def _hooked(hooks: list[Hook], cotangent: Tensor) -> Tensor:
    for hook in hooks:
        changed = hook(cotangent)
        cotangent = cotangent if changed is None else changed
    return cotangent


def _propagate(
    cotangents: dict[Any, Any], live: frozenset[AnyNode], node: Node, cotangent: Any
) -> None:
    """Add what one node passes back to the cotangents of its parents."""
    primitive, parents, values = node.primitive, node.parents, node.values
    if values is None:
        raise _freed(primitive)
    operands = [
        wrap(value, parent) if type(value) is not float else value
        for value, parent in zip(values, parents, strict=True)
    ]
    wanted = [parent in live for parent in parents]
    if primitive.multiple:
        cotangent = _all_results(node, cotangent)
        out: Any = tuple(wrap(value) for value in node.out)
    else:
        out = wrap(node.out, node)
    if isinstance(primitive.derivatives, Joint):
        backs = primitive.derivatives.vjp(cotangent, out, operands, wanted, **node.params)
        for parent, back in zip(parents, backs, strict=True):
            if parent in live and back is not None:
                _accumulate(cotangents, parent, back)
        return
    for index, want in enumerate(wanted):
        if want:
            back = pull(primitive, index, cotangent, out, operands, node.params)
            if back is not None:
                _accumulate(cotangents, parents[index], back)


def _all_results(node: Node, cotangent: dict[int, Tensor]) -> tuple[Tensor | None, ...]:
    """One cotangent per result: zeros where none came, None where the result has no derivative."""
    results = [wrap(value).type for value in node.out]
    return tuple(
        cotangent.get(index, zeros(kind) if kind.dtype.is_inexact else None)
        for index, kind in enumerate(results)
    )


def pull(
    primitive: Primitive,
    index: int,
    cotangent: Any,
    out: Any,
    operands: list[Tensor],
    params: dict[str, Any],
) -> Tensor | None:
    """The cotangent of one operand."""
    derivative = primitive.derivative(index)
    kind = type(derivative)
    operand = operands[index]
    if kind is Constant:
        return None
    if kind is Tangent:
        rule = derivative.rule  # type: ignore[union-attr]
        if derivative.diagonal:  # type: ignore[union-attr]
            back = _diagonal(rule, cotangent, out, operands, params)
        else:
            back = transpose(lambda t: rule(t, out, *operands, **params), operand.type, cotangent)
    else:
        back = derivative.transpose(cotangent, *operands, **params)  # type: ignore[union-attr]
    if primitive.broadcasts and back.shape != operand.shape:
        back = sum_to(back, operand.shape)
    return back  # type: ignore[no-any-return]


def _diagonal(
    rule: Callable[..., Tensor], cotangent: Tensor, out: Tensor, operands: list[Tensor], params: Any
) -> Tensor:
    """A rule t -> d·t, turned into ct -> conj(d)·ct."""
    if not cotangent.dtype.is_complex:
        return rule(cotangent, out, *operands, **params)
    conj = PRIMITIVES["conj"]
    back: Tensor = bind(conj, rule(bind(conj, cotangent), out, *operands, **params))
    return back


def transpose(f: Callable[[Tensor], Any], kind: TensorType, cotangent: Any) -> Tensor | None:
    """The adjoint of a linear function of one tensor, applied to the cotangent of its result."""
    trace = AbstractTrace()
    with running(trace), recording(True):
        argument = trace.tensor(kind)
        leaf = argument._node = Leaf()
        results = f(argument)
        pairs = zip(results, cotangent, strict=True) if isinstance(results, tuple) else [
            (results, cotangent)
        ]
        seeds = [(r._node, ct) for r, ct in pairs if r is not None and ct is not None]
        order, _ = between([root for root, _ in seeds], [leaf])
        return backpropagate(order, seeds, release=False).get(leaf)


def vjp(
    f: Callable[..., Sequence[Tensor]], *arguments: Tensor
) -> tuple[Sequence[Tensor], Callable[[Sequence[Tensor | None]], list[Tensor | None]]]:
    """The results of f, and the function from their cotangents to those of the arguments.

    Results keep their place on outer tapes, so derivatives nest.
    """
    inner = [wrap(argument._value, Leaf(source=argument._node)) for argument in arguments]
    leaves = [each._node for each in inner]
    with recording(True):
        results = list(f(*inner))
    order, elsewhere = between([result._node for result in results], leaves)

    def pullback(cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        seeds = [(r._node, ct) for r, ct in zip(results, cotangents, strict=True) if ct is not None]
        outer = elsewhere or any(ct._node is not None for _, ct in seeds)
        with recording(outer and grad_mode.enabled):
            found = backpropagate(order, seeds, release=False)
        return [found.get(leaf) for leaf in leaves]

    shown = results if elsewhere else [wrap(result._value) for result in results]
    return shown, pullback


def zeros(kind: TensorType) -> Tensor:
    """A tensor of zeros of that type."""
    return filled(kind.shape, kind.dtype, 0)


def filled(shape: Shape, dtype: DType, value: float) -> Tensor:
    """A tensor of one value."""
    return apply(PRIMITIVES["full"], shape=shape, dtype=dtype, value=value)


def sum_to(tensor: Tensor, shape: Shape) -> Tensor:
    """Undo broadcasting: sum over the axes that it added or stretched."""
    extra = tensor.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(
        axis + extra
        for axis, dim in enumerate(shape)
        if dim == 1 and tensor.shape[axis + extra] != 1
    )
    if axes:
        tensor = bind(PRIMITIVES["reduce_sum"], tensor, axes=axes)
    if tensor.shape != shape:
        tensor = bind(PRIMITIVES["broadcast_to"], _squeezed(tensor, shape), shape=shape)
    return tensor


def _squeezed(tensor: Tensor, shape: Shape) -> Tensor:
    kept = tuple(dim for dim in shape if dim != 1)
    if tensor.shape == kept:
        return apply(PRIMITIVES["reshape"], tensor, shape=shape)
    return tensor


def _freed(primitive: Primitive) -> GradientError:
    return GradientError(
        "backward",
        "the tape was freed by an earlier backward",
        expected="one backward over a tape, or retain_graph=True in the earlier ones",
        got={"operation": primitive.name},
        fix="call loss.backward(retain_graph=True) first, or compute the loss again",
    )
