"""Products of tensors: matrices, inner and outer products, and Einstein's notation.

All of them are arranged so that the work is done by the one primitive `dot`.

>>> import weft as wf
>>> wf.einsum("ij,ij->i", wf.ones((2, 3)), wf.ones((2, 3))).tolist()
[3.0, 3.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from weft.core.errors import ArgumentError, ArgumentTypeError, AxisError, ShapeError
from weft.core.shapes import (
    Dimension,
    Shape,
    broadcast_shapes,
    equal,
    normalize_axes,
    normalize_axis,
    require_equal,
    size,
)
from weft.ir.batching import move_axis
from weft.ir.dispatch import apply
from weft.ir.eager import unit
from weft.ir.elsewhere import from_sources
from weft.ir.remembered_calls import remember_calls
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import add, conj, multiply
from weft.ops.contraction import NONE, ROWS_BY_COLUMNS, dot, plain_product
from weft.ops.movement import broadcast_to, reshape, slice_, transpose
from weft.ops.operands import alias, as_sequence, as_tensor, promote_operands, wrong_dtype
from weft.ops.reduction import reduce_sum

__all__ = [
    "addmm", "einsum", "inner", "kron", "matmul", "matrix_transpose", "outer", "tensordot",
    "vecdot",
]  # fmt: skip


# --- matrices ----------------------------------------------------------------------------------


@unit
def addmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta x + alpha (a @ b): a product added to a matrix, or to what broadcasts to it.

    >>> import weft as wf
    >>> wf.addmm(wf.ones(2), wf.eye(2), wf.eye(2), alpha=2).tolist()
    [[3.0, 1.0], [1.0, 3.0]]
    """
    product = matmul(a, b)
    scaled = product if _is_one(alpha) else multiply(product, alpha)
    return add(x if _is_one(beta) else multiply(x, beta), scaled)


def _is_one(value: Any) -> bool:
    return type(value) in (int, float) and value == 1


@from_sources
@unit
def matmul(x1: Any, x2: Any, /) -> Tensor:
    """The matrix product over the last axis of x1 and the last but one of x2.

    Axes before those broadcast. A vector on the left is a row, one on the right a column, and its
    axis is dropped from the result.

    >>> import weft as wf
    >>> wf.matmul(wf.tensor([[1.0, 2.0], [3.0, 4.0]]), wf.tensor([1.0, 1.0])).tolist()
    [3.0, 7.0]
    """
    plain = plain_product(x1, x2)
    if plain is not None:
        return plain
    a, b = _promoted_numbers("matmul", x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(
            "matmul",
            "a number has no rows or columns",
            expected="tensors with at least one axis",
            got={"a": a, "b": b},
            fix="multiply by a number with a * b",
        )
    _check_inner("matmul", a, b)
    if a.ndim == 2 and b.ndim == 2:
        return apply(dot, a, b, contract=ROWS_BY_COLUMNS, batch=NONE)
    if a.ndim == 1 or b.ndim <= 2:
        return apply(dot, a, b, contract=((a.ndim - 1,), (max(b.ndim - 2, 0),)), batch=NONE)
    return _stacked_product(a, b)


def _promoted_numbers(op: str, x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    a, b = promote_operands(op, (x1, x2))
    if not (a.dtype.is_inexact or a.dtype.is_integer):
        raise wrong_dtype(op, "number", {"a": a, "b": b})
    return a, b


def _check_inner(op: str, a: Tensor, b: Tensor) -> None:
    row = -2 if b.ndim > 1 else -1
    columns, rows = a.shape[-1], b.shape[row]
    if columns == rows:
        return
    fix = f"give b {columns} rows" if b.ndim > 1 else f"give b {columns} elements"
    if a.ndim > 1 and a.shape[-2] == rows:
        fix += ", or transpose a: a.mT" if a.ndim > 2 else ", or transpose a: a.T"
    elif b.ndim > 1:
        fix += ", or transpose it: b.mT" if b.ndim > 2 else ", or transpose it: b.T"
    require_equal(
        op,
        columns,
        rows,
        expected=f"a.shape[-1] == b.shape[{row}]",
        got={"a": a, "b": b},
        fix=fix,
        what="inner dimensions differ",
    )


def _stacked_product(a: Tensor, b: Tensor) -> Tensor:
    """Stacks of matrices, broadcast against each other."""
    stacks = [(*a.shape[:-2], 1, 1), (*b.shape[:-2], 1, 1)]
    stack = broadcast_shapes("matmul", stacks, {"a": a, "b": b})[:-2]
    a = _broadcast(a, (*stack, *a.shape[-2:]))
    b = _broadcast(b, (*stack, *b.shape[-2:]))
    lead = tuple(range(len(stack)))
    last = len(stack) + 1
    return apply(dot, a, b, contract=((last,), (last - 1,)), batch=(lead, lead))


def _broadcast(x: Tensor, shape: Shape) -> Tensor:
    return x if x.shape == shape else apply(broadcast_to, x, shape=shape)


def matrix_transpose(x: Any, /) -> Tensor:
    """The tensor with its last two axes exchanged.

    >>> import weft as wf
    >>> wf.matrix_transpose(wf.ones((2, 3, 4))).shape
    (2, 4, 3)
    """
    tensor = as_tensor("matrix_transpose", x)
    if tensor.ndim < 2:
        raise ShapeError(
            "matrix_transpose",
            "the tensor has no rows and columns",
            expected="at least two axes",
            got={"x": tensor},
            fix="give it two axes, for example x.reshape(1, -1)",
        )
    lead = tensor.ndim - 2
    return apply(transpose, tensor, order=(*range(lead), lead + 1, lead))


# --- inner and outer products ------------------------------------------------------------------


@unit
def tensordot(
    x1: Any, x2: Any, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Tensor:
    """The product summed over pairs of axes: the last n of x1 with the first n of x2, or as listed.

    >>> import weft as wf
    >>> wf.tensordot(wf.ones((2, 3)), wf.ones((3, 2)), axes=((0, 1), (1, 0))).item()
    6.0
    """
    a, b = _promoted_numbers("tensordot", x1, x2)
    left, right = _paired_axes(a, b, axes)
    for i, j in zip(left, right, strict=True):
        require_equal(
            "tensordot",
            a.shape[i],
            b.shape[j],
            expected=f"a.shape[{i}] == b.shape[{j}]",
            got={"a": a, "b": b, "axes": axes},
            fix=f"pair axes of equal sizes, or give both {a.shape[i]} elements there",
            what="paired dimensions differ",
        )
    return apply(dot, a, b, contract=(left, right), batch=NONE)


def _paired_axes(
    a: Tensor, b: Tensor, axes: int | tuple[Sequence[int], Sequence[int]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if isinstance(axes, int):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise AxisError(
                "tensordot",
                f"there are no {axes} axes to pair",
                expected=f"axes from 0 to {min(a.ndim, b.ndim)}",
                got={"a": a, "b": b, "axes": axes},
                fix=f"axes={min(a.ndim, b.ndim)}",
            )
        return tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))
    pair = as_sequence("tensordot", "axes", axes)
    left = normalize_axes("tensordot", pair[0] if pair else (), a.ndim, {"a": a})
    right = normalize_axes("tensordot", pair[1] if len(pair) > 1 else (), b.ndim, {"b": b})
    if len(left) != len(right) or len(pair) != 2:
        raise AxisError(
            "tensordot",
            "not as many axes of one side as of the other",
            expected="two sequences of equal length",
            got={"a": a, "b": b, "axes": axes},
            fix="axes=((-1,), (0,))",
        )
    return left, right


@unit
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Tensor:
    """The inner product Σ conj(x1)·x2 along an axis; the other axes broadcast.

    >>> import weft as wf
    >>> wf.vecdot(wf.tensor([1.0, 2.0]), wf.tensor([3.0, 4.0])).item()
    11.0
    """
    a, b = _promoted_numbers("vecdot", x1, x2)
    got = {"a": a, "b": b}
    a = move_axis(a, normalize_axis("vecdot", axis, a.ndim, got), a.ndim - 1)
    b = move_axis(b, normalize_axis("vecdot", axis, b.ndim, got), b.ndim - 1)
    require_equal(
        "vecdot",
        a.shape[-1],
        b.shape[-1],
        expected=f"a.shape[{axis}] == b.shape[{axis}]",
        got=got,
        fix=f"give both {a.shape[-1]} elements there, or choose another axis",
        what="vectors have different lengths",
    )
    lead = broadcast_shapes("vecdot", [a.shape[:-1], b.shape[:-1]], got)
    stack = tuple(range(len(lead)))
    a = _broadcast(conj(a) if a.dtype.is_complex else a, (*lead, a.shape[-1]))
    b = _broadcast(b, (*lead, b.shape[-1]))
    last = (len(lead),)
    return apply(dot, a, b, contract=(last, last), batch=(stack, stack))


def inner(x1: Any, x2: Any, /) -> Tensor:
    """The product summed over the last axis of both, without conjugation; numbers just multiply.

    >>> import weft as wf
    >>> wf.inner(wf.tensor([1.0, 2.0]), wf.tensor([[3.0, 4.0], [5.0, 6.0]])).tolist()
    [11.0, 17.0]
    """
    a, b = _promoted_numbers("inner", x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    return tensordot(a, b, axes=((-1,), (-1,)))


@remember_calls
def outer(x1: Any, x2: Any, /) -> Tensor:
    """The product of each element of one vector with each of the other.

    >>> import weft as wf
    >>> wf.outer(wf.tensor([1.0, 2.0]), wf.tensor([3.0, 4.0])).tolist()
    [[3.0, 4.0], [6.0, 8.0]]
    """
    a, b = _promoted_numbers("outer", x1, x2)
    flat = [x if x.ndim == 1 else apply(reshape, x, shape=(x.size,)) for x in (a, b)]
    return apply(dot, *flat, contract=NONE, batch=NONE)


def kron(x1: Any, x2: Any, /) -> Tensor:
    """Kronecker's product: each element of x1 replaced by itself times x2.

    >>> import weft as wf
    >>> wf.kron(wf.tensor([1.0, 2.0]), wf.tensor([1.0, 1.0])).tolist()
    [1.0, 1.0, 2.0, 2.0]
    """
    a, b = _promoted_numbers("kron", x1, x2)
    rank = max(a.ndim, b.ndim)
    a, b = (apply(reshape, x, shape=(1,) * (rank - x.ndim) + x.shape) for x in (a, b))
    product = apply(dot, a, b, contract=NONE, batch=NONE)  # [*a, *b]
    order = tuple([axis for i in range(rank) for axis in (i, i + rank)])
    shape = tuple([m * n for m, n in zip(a.shape, b.shape, strict=True)])
    return apply(reshape, apply(transpose, product, order=order), shape=shape)


# --- Einstein's notation -----------------------------------------------------------------------

Labels = tuple[str, ...]
"""One label per axis: a letter, or "...0", "...1", … for the axes that an ellipsis stands for."""


@unit
def einsum(subscripts: str, /, *operands: Any) -> Tensor:
    """The sum of products that a formula describes, as in "ij,jk->ik".

    Each operand's axes are named by letters; axes of one name run together, and those that are not
    named behind the arrow are summed over. Without an arrow the result has the letters that occur
    once, in alphabetical order. "..." stands for any axes in front, which broadcast.

    >>> import weft as wf
    >>> wf.einsum("ii->i", wf.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [1.0, 4.0]
    >>> wf.einsum("...i,i", wf.ones((2, 3)), wf.ones(3)).tolist()
    [3.0, 3.0]
    """
    inputs, output = _parse(subscripts, len(operands))
    tensors = promote_operands("einsum", operands)
    got = {f"x{i + 1}": tensor for i, tensor in enumerate(tensors)}
    if not (tensors[0].dtype.is_inexact or tensors[0].dtype.is_integer):
        raise wrong_dtype("einsum", "number", {**got})
    named = [_expand(subscripts, labels, x, got) for labels, x in zip(inputs, tensors, strict=True)]
    ellipsis = max((tuple(n for n in names if len(n) > 1) for names in named), key=len)
    wanted = _result(subscripts, inputs, output, ellipsis, got)
    sizes = _sizes(subscripts, named, tensors, got)
    terms = [_distinct_labels(x, names, sizes) for x, names in zip(tensors, named, strict=True)]
    return _contract_all(terms, wanted, sizes)


def _parse(subscripts: str, count: int) -> tuple[list[str], str | None]:
    """The formula's inputs and its output, None where there is no arrow."""
    if not isinstance(subscripts, str):
        raise ArgumentTypeError(
            "einsum",
            "the formula is not a string",
            expected='letters for the axes of each operand, as in "ij,jk->ik"',
            got={"subscripts": subscripts},
            fix='the formula comes first: wf.einsum("ij,jk->ik", a, b)',
        )
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    for part in (*inputs, right):
        letters = part.replace("...", "", 1)
        if letters and not (letters.isalpha() and letters.isascii()):
            raise _formula_error(subscripts, f"{part!r} is not a list of letters")
    if len(inputs) != count:
        problem = f"the formula has {len(inputs)} operands, the call has {count}"
        raise _formula_error(subscripts, problem)
    return inputs, right if arrow else None


def _formula_error(subscripts: str, problem: str, got: dict[str, Any] | None = None) -> Exception:
    return ArgumentError(
        "einsum",
        problem,
        expected='letters for the axes of each operand, as in "ij,jk->ik"',
        got={"subscripts": repr(subscripts), **(got or {})},
        fix='name each axis once per operand: einsum("...ij,...jk->...ik", a, b)',
    )


def _expand(subscripts: str, part: str, x: Tensor, got: dict[str, Any]) -> Labels:
    """A label for each axis of an operand; those of an ellipsis are counted from the right."""
    before, ellipsis, after = part.partition("...")
    hidden = x.ndim - len(before) - len(after)
    if hidden < 0 or (hidden and not ellipsis):
        problem = f"{part!r} names {len(before) + len(after)} axes of a tensor with {x.ndim}"
        raise _formula_error(subscripts, problem, got)
    return (*before, *[f"...{i}" for i in range(hidden, 0, -1)], *after)


def _result(
    subscripts: str, inputs: list[str], output: str | None, ellipsis: Labels, got: dict[str, Any]
) -> Labels:
    """The labels of the result."""
    letters = "".join(inputs).replace(".", "")
    if output is None:
        once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        return (*ellipsis, *once)
    before, dots, after = output.partition("...")
    for letter in before + after:
        if letter not in letters or (before + after).count(letter) > 1:
            known = "is not in any operand" if letter not in letters else "is named twice"
            raise _formula_error(subscripts, f"{letter!r} of the result {known}", got)
    return (*before, *(ellipsis if dots else ()), *after)


def _sizes(
    subscripts: str, named: list[Labels], tensors: Sequence[Tensor], got: dict[str, Any]
) -> dict[str, Dimension]:
    """The size that each label has; 1 gives way to any other."""
    sizes: dict[str, Dimension] = {}
    for names, tensor in zip(named, tensors, strict=True):
        for name, dim in zip(names, tensor.shape, strict=True):
            known = sizes.setdefault(name, dim)
            if known == 1:
                sizes[name] = dim
            elif dim != 1 and not equal(known, dim):
                raise ShapeError(
                    "einsum",
                    f"axes called {name[0] if len(name) == 1 else '...'!r} have different sizes",
                    expected="one size for each letter",
                    got={"subscripts": repr(subscripts), **got},
                    note=f"{known} != {dim}",
                    fix="use different letters, or tensors of equal sizes there",
                )
    return sizes


Term = tuple[Tensor, Labels]


def _distinct_labels(x: Tensor, names: Labels, sizes: dict[str, Dimension]) -> Term:
    """An operand with distinct labels: repeated ones become a diagonal, sizes of 1 are dropped."""
    # An axis of size 1 whose label is larger elsewhere broadcasts, as if it were not there.
    stretched = [i for i, name in enumerate(names) if x.shape[i] != sizes[name]]
    if stretched:
        keep = [i for i in range(x.ndim) if i not in stretched]
        x = apply(reshape, x, shape=tuple([x.shape[i] for i in keep]))
        names = tuple([names[i] for i in keep])
    while len(set(names)) < len(names):
        name = next(name for name in names if names.count(name) > 1)
        first = names.index(name)
        second = names.index(name, first + 1)
        x = _diagonal(x, first, second)
        names = (*[n for i, n in enumerate(names) if i not in (first, second)], name)
    return x, names


def _diagonal(x: Tensor, first: int, second: int) -> Tensor:
    """The elements where two axes agree, along a new last axis: every (n+1)-th of n·n."""
    rest = [axis for axis in range(x.ndim) if axis not in (first, second)]
    square = apply(transpose, x, order=(*rest, first, second))  # [*rest, n, n]
    lead, count = square.shape[:-2], square.shape[-1]
    flat = apply(reshape, square, shape=(*lead, count * count))
    return apply(
        slice_,
        flat,
        starts=(0,) * flat.ndim,
        stops=flat.shape,
        strides=(*[1] * len(lead), count + 1),
    )


def _contract_all(terms: list[Term], wanted: Labels, sizes: dict[str, Dimension]) -> Tensor:
    """The product of all terms, pair by pair; first the pair whose contraction shrinks most."""
    while len(terms) > 1:
        pairs = combinations(range(len(terms)), 2)
        i, j = min(pairs, key=lambda pair: _cost(terms, pair, wanted, sizes))
        others = [term for index, term in enumerate(terms) if index not in (i, j)]
        needed = {name for _, names in others for name in names} | set(wanted)
        terms = [*others, _contract(terms[i], terms[j], needed)]
    x, names = _sum_unneeded(terms[0], set(wanted))
    order = tuple([names.index(name) for name in wanted])
    return alias(x) if names == wanted else apply(transpose, x, order=order)


def _cost(
    terms: list[Term], pair: tuple[int, int], wanted: Labels, sizes: dict[str, Dimension]
) -> int:
    """How many elements contracting a pair adds; symbols count as 64."""
    i, j = pair
    others = {n for k, (_, names) in enumerate(terms) if k not in pair for n in names}
    left, right = set(terms[i][1]), set(terms[j][1])
    result = (left | right) & (others | set(wanted))
    return _estimate(result, sizes) - _estimate(left, sizes) - _estimate(right, sizes)


def _estimate(names: set[str], sizes: dict[str, Dimension]) -> int:
    known = [sizes[name] for name in names]
    total = size([dim if isinstance(dim, int) else 64 for dim in known])
    assert isinstance(total, int)
    return total


def _sum_unneeded(term: Term, needed: set[str]) -> Term:
    """A term summed over the labels that nothing else needs."""
    x, names = term
    axes = tuple([i for i, name in enumerate(names) if name not in needed])
    if not axes:
        return term
    return apply(reduce_sum, x, axes=axes), tuple([n for n in names if n in needed])


def _contract(left: Term, right: Term, needed: set[str]) -> Term:
    """Two terms in one: shared labels that are needed run together, others are summed over."""
    # Labels of one term alone that nobody needs are summed before the product, which is cheaper.
    a, p = _sum_unneeded(left, needed | set(right[1]))
    b, q = _sum_unneeded(right, needed | set(p))
    shared = [name for name in p if name in q]
    together = tuple([name for name in shared if name in needed])
    over = tuple([name for name in shared if name not in needed])
    contract = (tuple([p.index(n) for n in over]), tuple([q.index(n) for n in over]))
    batch = (tuple([p.index(n) for n in together]), tuple([q.index(n) for n in together]))
    free = [name for name in (*p, *q) if name not in shared]
    return apply(dot, a, b, contract=contract, batch=batch), (*together, *free)
