"""Derivatives of functions: in both modes, of any order, over trees.

>>> import weft as wf
>>> f = lambda x1, x2: wf.log(x1) + x1 * x2 - wf.sin(x2)
>>> [round(float(g), 4) for g in wf.grad(f, argnums=(0, 1))(2.0, 5.0)]
[5.5, 1.7163]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any, Literal

from weft.core import trees
from weft.core.errors import ArgumentError, ArgumentTypeError, GradientError, ShapeError
from weft.ir import batching, forward, reverse, tape_order
from weft.ir.dispatch import active_trace, apply
from weft.ir.functions import trace_function
from weft.ir.graph import Graph, Variable
from weft.ir.primitive import PRIMITIVES
from weft.ir.tensor import Tensor
from weft.ir.tracing import Closure, GraphTrace, interpret
from weft.ir.walking import without_dead_nodes
from weft.ops.arithmetic import conj
from weft.ops.composed.creation import eye
from weft.ops.operands import as_tensor, check_function, scalar_tensor
from weft.transforms.arguments import (
    FlatFunction,
    argument_numbers,
    flat_function,
    is_number,
)
from weft.transforms.backward import check_differentiable

__all__ = [
    "grad", "hessian", "hvp", "jacobian", "jvp", "linearize", "value_and_grad", "vjp",
]  # fmt: skip

ArgNums = int | Sequence[int]
_SHOWN = ("__module__", "__name__", "__qualname__", "__doc__")


class Derivative:
    """A function made by a transform: call it, or look at its graph."""

    def __init__(self, f: Callable[..., Any], call: Callable[..., Any]) -> None:
        self._call = call
        update_wrapper(self, f, assigned=_SHOWN, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """The derivative as a program, for arguments or types like these."""
        return trace_function(self._call, *args, **kwargs)


def value_and_grad(
    f: Callable[..., Any], argnums: ArgNums = 0, has_aux: bool = False
) -> Derivative:
    """A function that returns f's scalar value and its gradient.

    argnums: which arguments to differentiate; a gradient has the form of its argument.
    has_aux: f returns (value, anything), and so does this.

    >>> import weft as wf
    >>> value, gradient = value_and_grad(lambda x: (x ** 2).sum())(wf.tensor([1.0, 3.0]))
    >>> float(value), gradient.tolist()
    (10.0, [2.0, 6.0])
    """
    check_function("grad", f)

    def call(*args: Any, **kwargs: Any) -> Any:
        numbers = argument_numbers("grad", argnums, len(args))
        for number in numbers:
            _check_argument(args[number])
        flat, tensors = flat_function("grad", f, args, kwargs, numbers, has_aux)
        moving = _inexact_positions(tensors)
        results, pullback = reverse.vjp(
            _of_moving_tensors(flat, tensors, moving), *[tensors[i] for i in moving]
        )
        value = _scalar(results, flat)
        backs = pullback([reverse.filled_like(value, 1)])
        leaves = _gradient_leaves(tensors, moving, backs)
        gradients = _as_arguments([args[number] for number in numbers], leaves)
        gradient = gradients[0] if isinstance(argnums, int) else tuple(gradients)
        return ((value, flat.aux) if has_aux else value), gradient

    return Derivative(f, call)


def grad(f: Callable[..., Any], argnums: ArgNums = 0, has_aux: bool = False) -> Derivative:
    """A function that returns the gradient of f, a scalar function of tensors or trees of them.

    >>> import weft as wf
    >>> grad(wf.sin)(wf.tensor(0.0)).item()
    1.0
    """
    both = value_and_grad(f, argnums, has_aux)

    def call(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return Derivative(f, call)


def _check_argument(argument: Any) -> None:
    if not isinstance(argument, float):
        leaves = trees.leaves(argument)
        if len(leaves) == 1 and leaves[0] is argument:
            check_differentiable("grad", as_tensor("grad", argument))


def _inexact_positions(tensors: Sequence[Tensor]) -> list[int]:
    """The positions of the tensors that have derivatives."""
    return [i for i, tensor in enumerate(tensors) if tensor.dtype.is_inexact]


def _of_moving_tensors(
    flat: FlatFunction, tensors: Sequence[Tensor], moving: Sequence[int]
) -> Callable[..., list[Tensor]]:
    """The flat function of the differentiable tensors alone."""

    def f(*xs: Tensor) -> list[Tensor]:
        given = dict(zip(moving, xs, strict=True))
        return flat(*[given.get(i, tensor) for i, tensor in enumerate(tensors)])

    return f


def _scalar(results: Sequence[Tensor], flat: FlatFunction) -> Tensor:
    if len(results) != 1 or results[0].shape != () or not results[0].dtype.is_floating:
        raise GradientError(
            "grad",
            "the function does not return a real scalar",
            expected="one floating-point tensor without axes",
            got={"result": flat.rebuild([r.type for r in results])},
            fix="reduce the result, for example .sum() or .mean(), or use wf.jacobian",
        )
    return results[0]


def _gradient_leaves(
    tensors: Sequence[Tensor], moving: Sequence[int], backs: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """One gradient per tensor: zeros where nothing depends on it, None where none is defined."""
    leaves: list[Tensor | None] = [None] * len(tensors)
    for place, back in zip(moving, backs, strict=True):
        leaves[place] = reverse.filled_like(tensors[place], 0) if back is None else back
    return leaves


def _as_arguments(arguments: Sequence[Any], leaves: Sequence[Tensor | None]) -> list[Any]:
    """Gradients in the form of the arguments; leaves that are not numbers have None."""
    flat, structure = trees.flatten(list(arguments))
    numbers = iter(leaves)
    filled = [next(numbers) if is_number(leaf) else None for leaf in flat]
    rebuilt: list[Any] = trees.unflatten(structure, filled)
    return rebuilt


def vjp(
    f: Callable[..., Any], *primals: Any, has_aux: bool = False
) -> tuple[Any, Callable[..., Any]] | tuple[Any, Callable[..., Any], Any]:
    """f(*primals), and the function from its result's cotangent to those of the primals.

    >>> import weft as wf
    >>> y, pullback = vjp(lambda x: x * x, wf.tensor([1.0, 2.0]))
    >>> pullback(wf.ones(2))[0].tolist()
    [2.0, 4.0]
    """
    check_function("vjp", f)
    flat, tensors = flat_function("vjp", f, primals, has_aux=has_aux)
    moving = _inexact_positions(tensors)
    results, pull = reverse.vjp(
        _of_moving_tensors(flat, tensors, moving), *[tensors[i] for i in moving]
    )

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        cotangents = _check_cotangents("vjp", cotangent, flat, results)
        leaves = _gradient_leaves(tensors, moving, pull(cotangents))
        return tuple(_as_arguments(list(primals), leaves))

    out = flat.rebuild(results)
    return (out, pullback, flat.aux) if has_aux else (out, pullback)


def _check_cotangents(
    op: str, given: Any, flat: FlatFunction, results: Sequence[Tensor]
) -> list[Tensor]:
    """Cotangents, checked against the results they belong to."""
    leaves, structure = trees.flatten(given)
    if structure != flat.out:
        raise ArgumentError(
            op,
            "the cotangent has another structure than the result",
            expected=str(flat.out),
            got={"cotangent": structure},
            fix="pass one cotangent for each tensor that the function returns",
        )
    tensors = [_tensor_like(op, leaf, result) for leaf, result in zip(leaves, results, strict=True)]
    for tensor, result in zip(tensors, results, strict=True):
        _check_same_type(op, tensor, result, "cotangent", "the function's result")
    return tensors


def _tensor_like(op: str, given: Any, other: Tensor, name: str = "cotangent") -> Tensor:
    """A given value as a tensor; a Python number takes the dtype of `other`."""
    if type(given) in (int, float):
        return scalar_tensor(op, given, other.dtype)
    return as_tensor(op, given, name)


def _check_same_type(op: str, given: Tensor, wanted: Tensor, name: str, other: str) -> None:
    if given.type != wanted.type:
        raise ShapeError(
            op,
            f"the {name} has another type than {other}",
            expected=str(wanted.type),
            got={name: given},
            fix=f"a {name} of the same type: wf.ones({wanted.shape}, dtype={wanted.dtype.name!r})",
        )


def jvp(
    f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> Any:
    """f(*primals), and the change of its result when the primals change by the tangents.

    >>> import weft as wf
    >>> y, dy = jvp(lambda x: x ** 3, (wf.tensor(2.0),), (wf.tensor(1.0),))
    >>> float(y), float(dy)
    (8.0, 12.0)
    """
    check_function("jvp", f)
    _check_tuples("jvp", primals, tangents)
    flat, xs = flat_function("jvp", f, tuple(primals), has_aux=has_aux)
    directions = _tangents(primals, tangents, xs)
    results, output_tangents = forward.jvp(flat, xs, directions)
    out = (flat.rebuild(results), flat.rebuild(reverse.or_zeros(output_tangents, results)))
    return (*out, flat.aux) if has_aux else out


def _check_tuples(op: str, primals: Any, tangents: Any) -> None:
    for name, value in (("primals", primals), ("tangents", tangents)):
        if not isinstance(value, (tuple, list)):
            raise ArgumentTypeError(
                op,
                f"{name} are not in a tuple",
                expected="one tuple for the primals, one for the tangents",
                got={name: value},
                fix=f"wf.{op}(f, (x,), (t,))",
            )


def _tangents(primals: Any, tangents: Any, xs: Sequence[Tensor]) -> list[Tensor | None]:
    leaves, structure = trees.flatten(tuple(tangents))
    values, wanted = trees.flatten(tuple(primals))
    if structure != wanted:
        raise ArgumentError(
            "jvp",
            "primals and tangents have different structures",
            expected=str(wanted),
            got={"tangents": structure},
            fix="pass one tangent for each primal: wf.jvp(f, (x,), (t,))",
        )
    moving = [leaf for leaf, value in zip(leaves, values, strict=True) if is_number(value)]
    given = [_tensor_like("jvp", leaf, x, "tangent") for leaf, x in zip(moving, xs, strict=True)]
    for tensor, x in zip(given, xs, strict=True):
        _check_same_type("jvp", tensor, x, "tangent", "its primal")
    return [t if t.dtype.is_inexact else None for t in given]


def linearize(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """f(*primals), and its derivative there as a linear function that does not run f again.

    >>> import weft as wf
    >>> y, push = linearize(lambda x: x * x, wf.tensor(3.0))
    >>> float(push(wf.tensor(1.0))), float(push(wf.tensor(2.0)))
    (6.0, 12.0)
    """
    check_function("linearize", f)
    flat, xs = flat_function("linearize", f, primals)
    results, closure = _linear_graph(flat, xs)

    def push(*tangents: Any) -> Any:
        directions = _tangents(primals, tangents, xs)
        given = reverse.or_zeros(directions, xs)
        return flat.rebuild(interpret(closure.graph, *given, *closure.captured))

    return flat.rebuild(results), push


class LinearTrace(GraphTrace):
    """Records only what depends on tangents; everything else is computed at once."""

    stages = False
    is_placed = False
    name = "linearize"


def _linear_graph(flat: FlatFunction, xs: Sequence[Tensor]) -> tuple[list[Tensor], Closure]:
    recorder, since = LinearTrace(), tape_order.next_node_number()
    with active_trace(recorder):
        inputs = [Variable(x.type) for x in xs]
        tangents = [
            recorder.tensor(variable) if variable.type.dtype.is_inexact else None
            for variable in inputs
        ]
        results, output_tangents = forward.jvp(flat, xs, tangents)
        outputs = tuple(recorder.atom(t) for t in reverse.or_zeros(output_tangents, results))
    graph = Graph((*inputs, *recorder.captures), tuple(recorder.nodes), outputs)
    captured = tape_order.off_finished_tapes(recorder.captured, since)
    return results, Closure(without_dead_nodes(graph), tuple(captured))


def jacobian(
    f: Callable[..., Any], argnums: int = 0, mode: Literal["reverse", "forward"] = "reverse"
) -> Derivative:
    """A function that returns all derivatives of f's results with respect to one argument.

    The axes of the result come first, then those of the argument. mode: "reverse" costs one pass
    per element of the result, "forward" one per element of the argument. Functions of complex
    numbers to complex numbers are taken to be holomorphic.

    >>> import weft as wf
    >>> jacobian(lambda x: x * x)(wf.tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    check_function("jacobian", f)
    if mode not in ("reverse", "forward"):
        raise ArgumentError(
            "jacobian",
            "unknown mode",
            expected='"reverse" or "forward"',
            got={"mode": mode},
            fix='wf.jacobian(f, mode="reverse")',
        )

    def call(*args: Any, **kwargs: Any) -> Any:
        number = argument_numbers("jacobian", argnums, len(args))
        _check_argument(args[number[0]])
        flat, tensors = flat_function("jacobian", f, args, kwargs, number)
        moving = _inexact_positions(tensors)
        xs = [tensors[i] for i in moving]
        rows_of = _reverse_rows if mode == "reverse" else _forward_rows
        rows = rows_of(_of_moving_tensors(flat, tensors, moving), xs)
        leaves = [_in_places(row, moving, len(tensors)) for row in rows]
        return flat.rebuild([_as_arguments([args[number[0]]], row)[0] for row in leaves])

    return Derivative(f, call)


def _in_places(row: Sequence[Tensor], places: Sequence[int], count: int) -> list[Tensor | None]:
    """A row for all leaves of the argument: None for those without derivatives."""
    given = dict(zip(places, row, strict=True))
    return [given.get(place) for place in range(count)]


def _check_jacobian(results: Sequence[Tensor], xs: Sequence[Tensor], mode: str) -> None:
    """Refuse results without derivatives, and modes that would see half of a complex number."""
    for result in results:
        if not result.dtype.is_inexact:
            raise GradientError(
                "jacobian",
                "a result is not a floating-point or complex tensor",
                expected="results that vary smoothly",
                got={"result": result},
                fix="leave it out of what the function returns",
            )
        if mode == "reverse":
            mixed = result.dtype.is_complex and any(not x.dtype.is_complex for x in xs)
        else:
            mixed = not result.dtype.is_complex and any(x.dtype.is_complex for x in xs)
        if mixed:
            other = "forward" if mode == "reverse" else "reverse"
            raise GradientError(
                "jacobian",
                f"{mode} mode sees only the real part of this derivative",
                expected="real numbers, or complex arguments and results",
                got={"result": result, "argument": xs[0]},
                fix=f'wf.jacobian(f, mode="{other}")',
            )


def _reverse_rows(flat: Callable[..., list[Tensor]], xs: Sequence[Tensor]) -> list[list[Tensor]]:
    """One row per result: its Jacobian with respect to each argument."""
    results, pull = reverse.vjp(flat, *xs)
    _check_jacobian(results, xs, "reverse")
    rows = []
    for position, result in enumerate(results):

        def backs(seed: Tensor, position: int = position) -> list[Tensor]:
            seeds = [seed if i == position else None for i in range(len(results))]
            cotangents_of_xs = reverse.or_zeros(pull(seeds), xs)
            return (
                [conj(back) for back in cotangents_of_xs]
                if seed.dtype.is_complex
                else cotangents_of_xs
            )

        rows_with_axes = batching.vmap(backs, result.size, [_basis(result)], [0])
        fronts = [batching.to_front(result.size, tensor, axis) for tensor, axis in rows_with_axes]
        rows.append(
            [
                apply(PRIMITIVES["reshape"], front, shape=(*result.shape, *x.shape))
                for front, x in zip(fronts, xs, strict=True)
            ]
        )
    return rows


def _forward_rows(flat: Callable[..., list[Tensor]], xs: Sequence[Tensor]) -> list[list[Tensor]]:
    """The Jacobian's rows by forward mode, which gives one column at a time."""
    columns = []
    for position, x in enumerate(xs):

        def tangents_along(tangent: Tensor, position: int = position) -> list[Tensor]:
            tangents = [tangent if i == position else None for i in range(len(xs))]
            results, output_tangents = forward.jvp(flat, xs, tangents)
            _check_jacobian(results, xs, "forward")
            return reverse.or_zeros(output_tangents, results)

        columns_with_axes = batching.vmap(tangents_along, x.size, [_basis(x)], [0])
        fronts = [batching.to_front(x.size, tensor, axis) for tensor, axis in columns_with_axes]
        columns.append([_elements_last(front, x) for front in fronts])
    return [list(row) for row in zip(*columns, strict=True)]


def _elements_last(front: Tensor, x: Tensor) -> Tensor:
    """The argument's elements, which stand on axis 0, moved behind the result's axes."""
    turned = batching.move_axis(front, 0, front.ndim - 1)
    return apply(PRIMITIVES["reshape"], turned, shape=(*front.shape[1:], *x.shape))


def _basis(tensor: Tensor) -> Tensor:
    """All tensors of this type with a single one in them, stacked."""
    identity = eye(tensor.size, dtype=tensor.dtype)
    return apply(PRIMITIVES["reshape"], identity, shape=(tensor.size, *tensor.shape))


def hessian(f: Callable[..., Any], argnums: int = 0) -> Derivative:
    """A function that returns the second derivatives of a scalar function.

    >>> import weft as wf
    >>> hessian(lambda x: (x ** 3).sum())(wf.tensor([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    return jacobian(grad(f, argnums), argnums, mode="forward")


def hvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The Hessian of a scalar function at the primals, times the tangents, without the Hessian.

    >>> import weft as wf
    >>> hvp(lambda x: (x ** 3).sum(), (wf.tensor([1.0, 2.0]),), (wf.ones(2),)).tolist()
    [6.0, 12.0]
    """
    _check_tuples("hvp", primals, tangents)
    numbers = tuple(range(len(primals)))
    gradient = grad(f, argnums=numbers if len(numbers) > 1 else 0)
    return jvp(gradient, primals, tangents)[1]
