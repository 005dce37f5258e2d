"""What statements touch in memory, and what is known of offsets."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from weft.ir.loops import Accumulate, For, Statement, Store, expressions, walk, written_buffers
from weft.ir.scalars import Buffer, Scalar, coefficient, nodes_in_order


def accesses(body: tuple[Statement, ...]) -> Iterator[tuple[Buffer, Scalar]]:
    """Each buffer that statements touch, with the offset."""
    for statement in walk(body):
        if isinstance(statement, Store):
            yield statement.buffer, statement.offset
        for root in expressions(statement):
            for x in nodes_in_order(root):
                if x.op == "load":
                    yield x.detail, x.args[0]


def buffers_read(body: tuple[Statement, ...]) -> frozenset[Buffer]:
    """The buffers that statements load from."""
    found: frozenset[Buffer] = frozenset()
    for statement in walk(body):
        for root in expressions(statement):
            found |= root.buffers
    return found


def load_offsets(buffer: Buffer, body: tuple[Statement, ...]) -> set[Scalar]:
    """The offsets at which a buffer is read."""
    return {
        x.args[0]
        for statement in walk(body)
        for root in expressions(statement)
        for x in nodes_in_order(root)
        if x.op == "load" and x.detail is buffer
    }


def touches(buffer: Buffer, body: tuple[Statement, ...]) -> bool:
    """Whether statements read or write a buffer."""
    return buffer in written_buffers(body) or buffer in buffers_read(body)


def is_injective(offset: Scalar, loop: For, around: list[For | Accumulate]) -> bool:
    """Whether no two iterations of a loop lead to one offset, by all loops' extents and steps."""
    spans: list[tuple[int, int]] = []
    for each in around:
        step = coefficient(offset, each.index)
        if step is None or step.op != "const" or each.extent.op != "const":
            return False
        if step.detail != 0:
            spans.append((abs(int(step.detail)), max(1, int(each.extent.detail))))
        elif each is loop:
            return False
    if offset.variables - {each.index for each in around}:
        return False
    reach = 0
    for step_size, extent in sorted(spans):
        if step_size <= reach:
            return False
        reach += step_size * (extent - 1)
    return True


def multiple_of(x: Scalar, factor: int) -> bool:
    """Whether a number is known to be a multiple of a power of two.

    >>> from weft.ir.scalars import index
    >>> multiple_of(index("i") * 768 + 256, 16), multiple_of(index("i") * 3, 2)
    (True, False)
    """
    return factor == 1 or _powers_of_two(x) % factor == 0


def _powers_of_two(x: Scalar) -> int:
    """A power of two, up to 16, that a number is a multiple of."""
    if x.op == "const":
        number = int(x.detail)
        return 16 if number == 0 else min(16, number & -number)
    if x.op == "select":
        return min(_powers_of_two(x.args[1]), _powers_of_two(x.args[2]))
    parts = [_powers_of_two(arg) for arg in x.args]
    if x.op in ("add", "subtract", "minimum", "maximum"):
        return min(parts)
    return min(16, prod(parts)) if x.op == "multiply" else 1
