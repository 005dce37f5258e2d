"""Accumulations over the same elements as one loop, and several of their steps at once.

Each sum of a kernel is written as a loop of its own. On a processor the second one finds its
elements in cache; the threads of a card are too many for that. A thread that sums alone waits for
each element it reads, so it reads some of them before it adds them.

>>> from weft.core.dtypes import INDEX, float32
>>> from weft.ir.scalars import const, index, local
>>> x, y, k = Buffer("x", float32), Buffer("y", float32, "write"), index("k")
>>> first, second = local("a", float32), local("b", float32)
>>> body = (
...     Accumulate(k, const(8, INDEX), (Update(first, "add", x[k]),)),
...     Store(y, const(0, INDEX), first),
...     Accumulate(k, const(8, INDEX), (Update(second, "add", x[k] * x[k]),)),
...     Store(y, const(1, INDEX), second),
... )
>>> print(merge_accumulations(Kernel("sums", (x, y), (), body)))
kernel sums(x: read f32, y: write f32; )
  accumulate k < 8
    a: f32 add= x[k]
    b: f32 add= x[k] * x[k]
  y[0] = a
  y[1] = b
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.compiler.fusion.long_sums import substitute_scalars
from weft.core.dtypes import INDEX, float32
from weft.ir.loops import Accumulate, For, Kernel, Let, Statement, Store, Update, expressions
from weft.ir.scalars import Buffer, Scalar, const, nodes_in_order


def merge_accumulations(kernel: Kernel) -> Kernel:
    """The kernel with accumulations of one extent merged, where none needs another's result."""
    return replace(kernel, body=_merge_body(kernel.body))


def _merge_body(body: Sequence[Statement]) -> tuple[Statement, ...]:
    merged: list[Statement] = []
    for statement in body:
        if isinstance(statement, For):
            merged.append(replace(statement, body=_merge_body(statement.body)))
            continue
        place = _place_to_join(statement, merged) if isinstance(statement, Accumulate) else None
        if place is None:
            merged.append(statement)
            continue
        earlier = merged[place]
        assert isinstance(earlier, Accumulate)
        assert isinstance(statement, Accumulate)
        known = {statement.index: earlier.index}
        more = [_with_index(update, known) for update in statement.updates]
        merged[place] = replace(earlier, updates=(*earlier.updates, *more))
    return tuple(merged)


def _place_to_join(loop: Accumulate, before: Sequence[Statement]) -> int | None:
    """The place of an earlier accumulation that a loop may be a part of; None without one."""
    if loop.body:
        return None
    used = frozenset[Scalar]().union(*(root.variables for root in expressions(loop)))
    read = frozenset[Buffer]().union(*(root.buffers for root in expressions(loop)))
    for place in reversed(range(len(before))):
        statement = before[place]
        if isinstance(statement, Accumulate):
            if any(update.variable in used for update in statement.updates):
                return None
            if not statement.body and statement.extent is loop.extent:
                return place
        elif isinstance(statement, Let):
            if statement.variable in used:
                return None
        elif not isinstance(statement, Store) or statement.buffer in read:
            return None
    return None


def _with_index(update: Update, known: dict[Scalar, Scalar]) -> Update:
    """An update of another loop's index."""
    value = substitute_scalars(update.value, known)
    init, times = (
        None if part is None else substitute_scalars(part, known)
        for part in (update.init, update.times)
    )
    return replace(update, value=value, init=init, times=times)


MOST_LOADS = 16
"""Loads that a thread has under way at once, at most."""
_FACTORS = (8, 7, 6, 5, 4, 3, 2)


def unroll_sums(kernel: Kernel) -> Kernel:
    """The kernel with sums of float32 that take several terms in each step.

    >>> from weft.core.dtypes import INDEX
    >>> from weft.ir.scalars import const, index, local
    >>> x, y, k = Buffer("x", float32), Buffer("y", float32, "write"), index("k")
    >>> total = local("t", float32)
    >>> body = (
    ...     Accumulate(k, const(9, INDEX), (Update(total, "add", x[k]),)),
    ...     Store(y, const(0, INDEX), total),
    ... )
    >>> print(unroll_sums(Kernel("sum", (x, y), (), body)))
    kernel sum(x: read f32, y: write f32; )
      accumulate k < 3
        t: f32 add= x[k * 3] + x[k * 3 + 1] + x[k * 3 + 2]
      y[0] = t
    """
    return replace(kernel, body=_unroll_body(kernel.body))


def _unroll_body(body: Sequence[Statement]) -> tuple[Statement, ...]:
    return tuple(
        replace(statement, body=_unroll_body(statement.body))
        if isinstance(statement, For)
        else _unroll_loop(statement)
        if isinstance(statement, Accumulate)
        else statement
        for statement in body
    )


def _unroll_loop(loop: Accumulate) -> Accumulate:
    """The loop with several terms a step, if its extent is known and its updates are sums."""
    is_plain = not loop.body and loop.extent.op == "const"
    for update in loop.updates:
        is_sum = update.combine == "add" and update.times is None
        is_plain = is_plain and is_sum and update.variable.dtype is float32
    if not is_plain:
        return loop
    loads = {x for update in loop.updates for x in nodes_in_order(update.value) if x.op == "load"}
    count, extent = len(loads), int(loop.extent.detail)
    fitting = [each for each in _FACTORS if extent % each == 0 and each * count <= MOST_LOADS]
    if not fitting or extent <= fitting[0]:
        return loop
    factor = fitting[0]
    updates = [
        replace(update, value=_sum_of_terms(update.value, loop.index, factor))
        for update in loop.updates
    ]
    return Accumulate(loop.index, const(extent // factor, INDEX), tuple(updates))


def _sum_of_terms(value: Scalar, index: Scalar, factor: int) -> Scalar:
    """The values of some neighbouring steps, added up in their order."""
    terms = [substitute_scalars(value, {index: index * factor + step}) for step in range(factor)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
