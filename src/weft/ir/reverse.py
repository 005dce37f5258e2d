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

import warnings
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from weft.core.arrays import CONCRETE, HostArray, filled_array
from weft.core.devices import CPU, Device
from weft.core.dtypes import DType
from weft.core.errors import GradientError
from weft.core.locations import user_location
from weft.core.scopes import BACKWARD, scope, scopes
from weft.core.settings import settings
from weft.core.shapes import Shape
from weft.core.types import TensorType
from weft.ir.abstract import AbstractTrace
from weft.ir.applications import KnownPull, known_pull
from weft.ir.autocast import AUTOCAST, autocast_to
from weft.ir.derivatives import Additive, Constant, Joint, Linear, OperandDerivative
from weft.ir.dispatch import OBSERVERS, active_trace, apply, quiet
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.small_derivatives import RULES, array_rule
from weft.ir.tape import Hook, Leaf, Node, Projection
from weft.ir.tape_order import AnyNode, nodes_between
from weft.ir.tensor import Tensor, Traced, constants_on, grad_mode, traces, wrap

GENERATIONS = 100
"""How many gradients, each at values computed from the one before, are kept without a warning."""


_blocks = count(1)


class recording(ContextDecorator):  # noqa: N801  a context manager, called as a function is
    """Turn the tape on or off inside a `with` block, or in a function; quicker than a generator."""

    __slots__ = ("_before", "asked", "enabled")

    def __init__(self, enabled: bool, asked: bool = False) -> None:
        self.enabled, self.asked = enabled, asked
        """Whether it is on, and whether the user asks for that: graphs then keep to it, too."""
        self._before: list[tuple[bool, int]] = []

    def __enter__(self) -> None:
        self._before.append((grad_mode.enabled, grad_mode.stopped))
        grad_mode.enabled = self.enabled
        if self.asked:
            grad_mode.stopped = 0 if self.enabled else next(_blocks)

    def __exit__(self, *error: object) -> None:
        grad_mode.enabled, grad_mode.stopped = self._before.pop()

    def _recreate_cm(self) -> recording:
        return recording(self.enabled, self.asked)  # a function may be run by several threads


def backpropagate(
    order: Sequence[AnyNode],
    seeds: Sequence[tuple[AnyNode | None, Tensor]],
    *,
    stops: Sequence[AnyNode] = (),
    release: bool = False,
    attach: bool = True,
    are_hooked: bool = True,
) -> dict[AnyNode, Tensor]:
    """Cotangents of all leaves in `order` and of the stops, given those of the roots.

    `release` frees each node's operands after use, as `.backward()` does by default. `attach`
    gives the operands their places on this tape, so that the cotangents are differentiable too.
    are_hooked: whether the hooks of the stops are called; those of a tape around this one are
    called there, with all that comes to a node.
    """
    if AUTOCAST.get() is not None:  # what was cast on the way forth says the dtypes of the way back
        with autocast_to(None):
            return backpropagate(
                order,
                seeds,
                stops=stops,
                release=release,
                attach=attach,
                are_hooked=are_hooked,
            )
    ends = frozenset(stops)
    options = ends, release, attach, frozenset() if are_hooked else ends
    if not traces.recording:
        if len(CONCRETE) == 1:
            return _backpropagate(order, seeds, *options, tracing=False)
        with constants_on(traces.device):  # which changes from node to node
            return _backpropagate(order, seeds, *options, tracing=False)
    with scope(phase=BACKWARD):
        return _backpropagate(order, seeds, *options, tracing=True)


def _backpropagate(
    order: Sequence[AnyNode],
    seeds: Sequence[tuple[AnyNode | None, Tensor]],
    ends: frozenset[AnyNode],
    release: bool,
    attach: bool,
    unhooked: frozenset[AnyNode],
    tracing: bool,
) -> dict[AnyNode, Tensor]:
    live, has_devices = frozenset(order), len(CONCRETE) > 1
    # Of a node with several results, which Projections lead to, a dictionary of their cotangents.
    cotangents: dict[Any, Any] = {}
    for root, seed in seeds:
        if root in live:
            _accumulate(cotangents, root, seed)
    leaves: dict[AnyNode, Tensor] = {}
    is_seen = attach or grad_mode.enabled or bool(traces.stack or OBSERVERS)
    is_plain = not is_seen and traces.keeper is None
    # Latest first: when a node's turn comes, all that was computed from it has added its part.
    for node in order:
        cotangent = cotangents.pop(node, None)
        if cotangent is None:
            continue
        if node.hooks and node not in unhooked:
            cotangent = _apply_hooks(node.hooks, cotangent)
        if ends and node in ends:
            leaves[node] = cotangent
        elif type(node) is Node:
            if tracing:
                scopes.module = _module_of(node.out)
            elif has_devices:
                traces.device = _device_of(cotangent)
            quick = is_plain and type(cotangent) is Tensor and _quick_way(node)
            if not quick or not quick(cotangents, live, node, cotangent):
                _propagate(cotangents, live, node, cotangent, attach)
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


def _device_of(cotangent: Any) -> Device:
    """Where a cotangent is, of one result or of several by number."""
    first: Tensor = next(iter(cotangent.values())) if type(cotangent) is dict else cotangent
    return first.device


def _module_of(out: Any) -> str:
    """The module that computed a value, or the first of several; the present one if not known."""
    first = out[0] if type(out) is tuple else out
    module: str = getattr(first, "module", scopes.module)
    return module


def _accumulate(cotangents: dict[Any, Any], key: Any, cotangent: Tensor) -> None:
    before = cotangents.get(key)
    cotangents[key] = cotangent if before is None else before + cotangent


def _apply_hooks(hooks: list[Hook], cotangent: Tensor) -> Tensor:
    """The cotangent after all hooks; a hook that returns None leaves it as it is."""
    for hook in hooks:
        replacement = hook(cotangent)
        cotangent = cotangent if replacement is None else replacement
    return cotangent


QuickWay = Callable[[dict[Any, Any], frozenset[AnyNode], Node, Tensor], bool]
"""`_propagate` for arrays of the host, with less work; False where it is not to be had."""


def _quick_way(node: Node) -> QuickWay | None:
    """The way with less work that a node may have; None for a tape that was freed."""
    if node.values is None:
        return None
    if node.known is not None:
        return _propagate_known
    return _propagate_view if node.params else _propagate_small


def _propagate_view(
    cotangents: dict[Any, Any], live: frozenset[AnyNode], node: Node, cotangent: Tensor
) -> bool:
    """The quick way of a primitive whose derivative has a form for arrays."""
    array, derivatives = cotangent._value, node.primitive.derivatives
    if type(derivatives) is not tuple or type(derivatives[0]) is not Linear:
        return False
    of_arrays, (parent, *others) = derivatives[0].of_arrays, node.parents
    if of_arrays is None or others or parent not in live or type(array) is not HostArray:
        return False
    back = of_arrays(array, node.values[0].shape, **node.params)  # type: ignore[index]
    if back is None:
        return False
    _accumulate(cotangents, parent, wrap(back))
    return True


def _propagate_small(
    cotangents: dict[Any, Any], live: frozenset[AnyNode], node: Node, cotangent: Tensor
) -> bool:
    """The quick way of an element-wise primitive of small arrays."""
    array, values = cotangent._value, node.values
    if type(array) is not HostArray or not array.ndim or array.size >= settings.eager_elements:
        return False
    dtype, shape = array.dtype, array.shape
    for value in values:  # type: ignore[union-attr]
        if type(value) is not HostArray or value.dtype is not dtype or value.shape != shape:
            return False
    asked, bit = 0, 1
    for parent in node.parents:
        asked, bit = asked | bit if parent in live else asked, bit + bit
    key = node.primitive, dtype, asked
    rule = RULES[key] if key in RULES else array_rule(*key)
    if rule is None:
        return False
    try:
        backs = quiet(rule, array, node.out, *values)  # type: ignore[misc]
    except RuntimeError:  # the context is in use, by another thread
        return False
    place = 0
    for parent in node.parents:
        if parent in live:
            back, before = wrap(backs[place]), cotangents.get(parent)
            cotangents[parent] = back if before is None else before + back
            place += 1
    return True


def _propagate_known(
    cotangents: dict[Any, Any], live: frozenset[AnyNode], node: Node, cotangent: Tensor
) -> bool:
    """The quick way of an application that is remembered."""
    array, pulls = cotangent._value, node.known.pulls
    asked = tuple([parent in live for parent in node.parents])
    if type(array) is not HostArray:
        return False
    if asked not in pulls:
        pulls[asked] = _known_pull(node, asked, cotangent)
    found = pulls[asked]
    backs = None if found is None else found([array, node.out, *node.values])  # type: ignore[misc]
    if backs is None:
        return False
    for parent, back in zip(node.parents, backs, strict=True):
        if back is not None:
            before = cotangents.get(parent)
            cotangents[parent] = wrap(back) if before is None else before + wrap(back)
    return True


def _known_pull(node: Node, asked: Sequence[bool], cotangent: Tensor) -> KnownPull | None:
    """What the way back over an application applies, to give the cotangents asked for."""
    primitive, params, values = node.primitive, node.params, node.values
    assert values is not None

    def backs(cotangent: Tensor, out: Tensor, *operands: Tensor) -> Sequence[Tensor | None]:
        given = [*operands]
        if isinstance(primitive.derivatives, Joint):
            joint: Sequence[Tensor | None] = primitive.derivatives.vjp(
                cotangent, out, given, [*asked], **params
            )
            return joint
        return [
            pull(primitive, index, cotangent, out, given, params) if is_asked else None
            for index, is_asked in enumerate(asked)
        ]

    return known_pull(backs, [each.type for each in (cotangent, *map(wrap, (node.out, *values)))])


def _propagate(
    cotangents: dict[Any, Any],
    live: frozenset[AnyNode],
    node: Node,
    cotangent: Any,
    attach: bool,
) -> None:
    """Add what one node passes back to the cotangents of its parents."""
    values, parents, params = node.values, node.parents, node.params
    if values is None:
        raise _freed_tape_error(node.primitive)
    if not attach and "pull" in params:  # a compiled unit
        backs = params["pull"].pull(node, cotangent)
        if backs is not None:
            _accumulate_all(cotangents, node, backs, [parent in live for parent in parents])
            return
    if attach:
        operands: list[Any] = [
            value if type(value) is float else wrap(value, parent)
            for value, parent in zip(values, parents, strict=False)
        ]
    else:
        operands = [value if type(value) is float else wrap(value) for value in values]
    derivatives = node.primitive.derivatives
    if type(derivatives) is Joint or node.primitive.multiple:
        _propagate_all(cotangents, live, node, operands, cotangent, attach)
        return
    primitive, is_tuple = node.primitive, type(derivatives) is tuple
    out = None if primitive.is_multilinear else wrap(node.out, node if attach else None)
    for index, parent in enumerate(parents):
        if parent not in live:
            continue
        derivative = derivatives[index] if is_tuple else None  # type: ignore[index]
        if type(derivative) is Linear or type(derivative) is Additive:  # as `pull` does it
            back = derivative.transpose(cotangent, *operands, **params)
            if primitive.broadcasts and back is not None:
                shape = values[index].shape
                back = back if back._value.shape == shape else sum_to(back, shape)
        else:
            back = pull(primitive, index, cotangent, out, operands, params)
        if back is not None:
            before = cotangents.get(parent)
            cotangents[parent] = back if before is None else before + back


def _propagate_all(
    cotangents: dict[Any, Any],
    live: frozenset[AnyNode],
    node: Node,
    operands: list[Any],
    cotangent: Any,
    attach: bool,
) -> None:
    """`_propagate` for primitives with several results, or with one rule for all operands."""
    primitive = node.primitive
    wanted = [parent in live for parent in node.parents]
    out: Any
    if primitive.multiple:
        cotangent = _all_results(node, cotangent)
        out = tuple(_result(node, index, attach) for index in range(len(node.out)))
    else:
        out = wrap(node.out, node if attach else None)
    if isinstance(primitive.derivatives, Joint):
        backs = primitive.derivatives.vjp(cotangent, out, operands, wanted, **node.params)
    else:
        backs = [
            pull(primitive, index, cotangent, out, operands, node.params) if want else None
            for index, want in enumerate(wanted)
        ]
    _accumulate_all(cotangents, node, backs, wanted)


def _accumulate_all(
    cotangents: dict[Any, Any], node: Node, backs: Sequence[Tensor | None], wanted: Sequence[bool]
) -> None:
    for parent, back, want in zip(node.parents, backs, wanted, strict=True):
        if want and back is not None:
            _accumulate(cotangents, parent, back)


def _result(node: Node, index: int, attach: bool) -> Tensor:
    """One of several results, with its place on the tape."""
    result = wrap(node.out[index])
    if attach and result.dtype.is_inexact:
        result._node = Projection(node, index)
    return result


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
    operands: list[Any],
    params: dict[str, Any],
) -> Tensor | None:
    """The cotangent of one operand."""
    derivatives = primitive.derivatives
    derivative: OperandDerivative = (
        derivatives[index] if type(derivatives) is tuple else primitive.derivative(index)
    )
    back: Tensor | None
    if isinstance(derivative, (Linear, Additive)):
        back = derivative.transpose(cotangent, *operands, **params)
    elif isinstance(derivative, Constant):
        return None
    elif derivative.diagonal:
        back = _diagonal(derivative.rule, cotangent, out, operands, params)
    else:
        rule = derivative.rule
        kind = operands[index].type
        back = transpose(lambda t: rule(t, out, *operands, **params), kind, cotangent)
    if primitive.broadcasts and back is not None:
        shape = operands[index]._value.shape
        if back._value.shape != shape:
            back = sum_to(back, shape)
    return back


def _diagonal(
    rule: Callable[..., Tensor], cotangent: Tensor, out: Tensor, operands: list[Tensor], params: Any
) -> Tensor:
    """The adjoint of a rule t -> d·t, which is ct -> conj(d)·ct = conj(d·conj(ct))."""
    if not cotangent.dtype.is_complex:
        return rule(cotangent, out, *operands, **params)
    conj = PRIMITIVES["conj"]
    return apply(conj, rule(apply(conj, cotangent), out, *operands, **params))


def transpose(f: Callable[[Tensor], Any], kind: TensorType, cotangent: Any) -> Tensor | None:
    """The adjoint of a linear function of one tensor, applied to the cotangent of its result.

    The function is run on a tensor without a value, which puts it on the tape, and the tape is gone
    back over. A linear function's adjoint needs no value of its argument.
    """
    trace = AbstractTrace(stages=False)
    cotangents = cotangent if isinstance(cotangent, tuple) else (cotangent,)
    trace.device = next((ct.device for ct in cotangents if ct is not None), CPU)
    with active_trace(trace), recording(True):
        argument = trace.tensor(kind)
        leaf = argument._node = Leaf()
        results = f(argument)
        pairs = (
            zip(results, cotangent, strict=True)
            if isinstance(results, tuple)
            else [(results, cotangent)]
        )
        seeds = [(r._node, ct) for r, ct in pairs if r is not None and ct is not None]
        order, _ = nodes_between([root for root, _ in seeds], [leaf], leaf.number)
        back = backpropagate(order, seeds, stops=[leaf]).get(leaf)
    if back is not None and getattr(back._value, "trace", None) is trace:
        raise AssertionError("a derivative rule read the value of the tangent it is linear in")
    return back


def vjp(
    f: Callable[..., Sequence[Tensor]], *arguments: Tensor
) -> tuple[Sequence[Tensor], Callable[[Sequence[Tensor | None]], list[Tensor | None]]]:
    """The results of f, and the function from their cotangents to those of the arguments.

    Results keep their place on outer tapes, so derivatives nest.
    """
    inner = [wrap(argument._value, Leaf(source=argument._node)) for argument in arguments]
    leaves = [each._node for each in inner]
    if grad_mode.enabled and not traces.stack:
        _count_generation(leaves)
    with recording(True):
        results = list(f(*inner))
    oldest = min((leaf.number for leaf in leaves), default=0)
    order, elsewhere = nodes_between([result._node for result in results], leaves, oldest)
    elsewhere = elsewhere or any(leaf.parents for leaf in leaves)

    def pullback(cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        seeds = [(r._node, ct) for r, ct in zip(results, cotangents, strict=True) if ct is not None]
        # The way back goes on the tape only where an outer derivative may go through it.
        outer = elsewhere or any(ct._node is not None for _, ct in seeds)
        deeper = any(_is_traced(tensor) for tensor in (*results, *[ct for _, ct in seeds]))
        with recording((outer or deeper) and grad_mode.enabled):
            by_leaf = backpropagate(order, seeds, stops=leaves, attach=outer)
        return [by_leaf.get(leaf) for leaf in leaves]

    # Results that no outer tape leads to are given without a node, so that memory can be freed.
    visible_results = results if elsewhere else [wrap(result._value) for result in results]
    return visible_results, pullback


def _count_generation(leaves: Sequence[Leaf]) -> None:
    """Note how many derivatives led to these arguments, and warn of a loop that keeps them all.

    The latest derivative that an argument was computed from is found by going back from the latest
    node; older nodes are not looked at.
    """
    sources = {id(leaf.parents[0]): leaf.parents[0] for leaf in leaves if leaf.parents}
    heap = [(-node.number, node) for node in sources.values() if type(node) is not Leaf]
    heapify(heap)
    seen = {-node.number for _, node in heap}
    while heap:
        _, node = heappop(heap)
        if type(node) is Leaf and node.parents:
            for leaf in leaves:
                leaf.generation = node.generation + 1
            if node.generation + 1 == GENERATIONS:
                _warn_of_growth()
            return
        for parent in node.parents:
            if parent is not None and -parent.number not in seen:
                seen.add(-parent.number)
                heappush(heap, (-parent.number, parent))


def _warn_of_growth() -> None:
    warnings.warn(
        f"weft: {GENERATIONS} gradients were taken one after another, each at values that were "
        "computed from the one before, and all of them are kept for a derivative by the first "
        "values, so memory grows with each step; if none is wanted, begin with "
        f"{{name: p.detach() for name, p in net.named_parameters()}} (at {user_location()})",
        RuntimeWarning,
        stacklevel=2,
    )


def _is_traced(tensor: Tensor) -> bool:
    """Whether the value belongs to a trace, behind which there may be an outer tape."""
    return isinstance(tensor._value, Traced)


def zeros(kind: TensorType) -> Tensor:
    """A tensor of zeros of that type."""
    return filled_tensor(kind.shape, kind.dtype, 0)


def or_zeros(found: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    """Derivatives, with zeros in place of None; each has the type of the tensor it belongs to."""
    return [filled_like(x, 0) if f is None else f for f, x in zip(found, like, strict=True)]


def filled_like(x: Tensor, value: float) -> Tensor:
    """A tensor of one value, with the type of another, and on its device."""
    array = x._value
    if type(array) is HostArray and not traces.stack and traces.keeper is None:
        return wrap(np.full(array.shape, value, array.dtype))
    with constants_on(x.device):
        return filled_tensor(x.shape, x.dtype, value)


def filled_tensor(shape: Shape, dtype: DType, value: float) -> Tensor:
    """A tensor of one value."""
    device = traces.device
    if device is not None and device is not CPU and not traces.recording and not OBSERVERS:
        sizes: Any = shape  # without symbols, as no trace records this
        array = filled_array(device, dtype.numpy, sizes, value)
        if array is not None:
            return wrap(array)
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
        tensor = apply(PRIMITIVES["reduce_sum"], tensor, axes=axes)
    if tensor.shape != shape:  # the sum has dropped the stretched axes, which have size 1
        tensor = apply(PRIMITIVES["reshape"], tensor, shape=shape)
    return tensor


def _freed_tape_error(primitive: Primitive) -> GradientError:
    return GradientError(
        "backward",
        "the tape was freed by an earlier backward",
        expected="one backward over a tape, or retain_graph=True in the earlier ones",
        got={"operation": primitive.name},
        fix="call loss.backward(retain_graph=True) first, or compute the loss again",
    )
