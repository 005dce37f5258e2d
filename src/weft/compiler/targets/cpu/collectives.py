"""Sums over processes in compiled programs: the engine's own function, called by address.

The launch reads the cell of its mesh axis (ir/group_cells.py) when it runs, so that a program goes
on with the group that is bound then. Large sums go in pieces, for which the engine keeps its
scratch memory. Before the data, processes compare a number that stands for the call: where they
differ, the launch fails on all of them.
"""

from __future__ import annotations

from functools import cache

from weft.compiler.plan.launch import Kind, Launch, Sizes, one, substitute_all
from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import finder
from weft.compiler.targets.llvm.ir_builder import KERNEL, IRBuilder, module_text
from weft.core.shapes import size
from weft.ir import group_cells
from weft.ir.graph import GraphNode, Literal, Variable
from weft.ir.kinds import Collective

__all__ = ["PIECE", "collective_launches"]

PIECE = 1 << 21
"""Bytes of one call of the engine."""
_REDUCTIONS = {f"all_reduce_{each}": i for i, each in enumerate(group_cells.OPERATIONS)}
_INTEGERS = group_cells.FIRST_TYPE + group_cells.TYPES.index("int64")
_MAXIMUM = group_cells.FIRST_OPERATION + group_cells.OPERATIONS.index("max")


def collective_launches(node: GraphNode, error: Literal) -> list[Launch] | None:
    """The launch of a sum, maximum or minimum over processes; None for any other node."""
    primitive, params = node.primitive, node.params
    if not isinstance(primitive.kind, Collective) or primitive.name not in _REDUCTIONS:
        return None
    operand, (result,) = node.operands[0], node.results
    dtype, mesh_axis = operand.type.dtype, params["mesh_axis"]
    if params["stacked"] or params["size"] == 1 or dtype.name not in group_cells.TYPES:
        return None
    kind = group_cells.FIRST_TYPE + group_cells.TYPES.index(dtype.name)
    operation = group_cells.FIRST_OPERATION + _REDUCTIONS[primitive.name]
    shown = f"{primitive.name}({mesh_axis}) of {operand.type}"
    place = "" if node.location is None else f" at {node.location}"

    def describe(count: int) -> str:
        return f"{primitive.name}({mesh_axis}) of {count} {dtype.name}"

    def numbers(sizes: Sizes) -> list[int]:
        count = substitute_all(size(operand.type.shape), sizes)
        digest = group_cells.describe_call(describe(count), place)
        return [count, dtype.itemsize, kind, operation, digest, params["size"]]

    return [
        Launch(
            Kind.COLLECTIVE, primitive.name, ("collective",),
            (operand, result, error, Literal(group_cells.cell_of(mesh_axis))), (result,),
            numbers, one, one, checked=node,
            report=lambda: group_cells.failure_of(mesh_axis, shown),
            in_place=((result, operand),) if isinstance(operand, Variable) else (),
        )
    ]  # fmt: skip


def _all_reduce() -> IRBuilder:
    """`all_reduce(...)`: compare the call with the others', then sum piece by piece."""
    out = IRBuilder("all_reduce", KERNEL, public=True, may_unwind=True)
    buffers, sizes, _, _ = out.parameters
    source, target, error, cell = (out.pointer(buffers, place) for place in range(4))
    words = [out.number(sizes, place) for place in range(6)]
    count, item, kind, operation, digest, members = words
    function, group = (out.pointer(cell, place) for place in (0, group_cells.COMMUNICATOR))
    started = out.add(out.number(cell, group_cells.STARTED), 1)
    out.store(digest, out.at("i64", cell, group_cells.DIGEST))
    out.store(started, out.at("i64", cell, group_cells.STARTED))

    def fail(code: str) -> None:
        out.store(code, out.at("i64", cell, group_cells.CODE))
        out.store(started, out.at("i64", cell, group_cells.ENDED))
        out.store(1, error, "i32")
        out.give()

    def reduce(read: str, written: str, many: str, of: str, by: str) -> None:
        code = out.call(function, read, written, many, of, by, group, result="i32")
        with out.when(out.test("ne", code, 0)):
            fail(out.convert("sext", code, "i64"))

    present = out.number(cell, group_cells.SIZE)
    is_other = out.combine("and", out.test("ne", present, 0), out.test("ne", present, members))
    with out.when(is_other):
        fail(str(group_cells.OTHER_SIZE))
    with out.when(out.test("ne", out.number(cell, group_cells.CHECKS), 0)):
        own, both = out.room("[2 x i64]"), out.room("[2 x i64]")
        out.store(digest, own)
        out.store(out.sub(0, digest), out.at("i64", own, 1))
        integers, maximum = out.pointer(cell, _INTEGERS), out.pointer(cell, _MAXIMUM)
        reduce(own, both, "i32 2", integers, maximum)
        agreed = out.test("eq", out.number(both, 0), out.sub(0, out.number(both, 1)))
        with out.unless(agreed):
            fail(str(group_cells.DIFFERENT))
    is_same, in_place = out.test("eq", source, target), out.pointer(cell, group_cells.IN_PLACE)
    handle, by = out.pointer(cell, kind), out.pointer(cell, operation)
    step = out.div(PIECE, item)
    with out.loop(0, count, step) as start:
        many = out.convert("trunc", out.least(out.sub(count, start), step), "i32")
        offset = out.mul(start, item)
        read = out.select(is_same, in_place, out.at("i8", source, offset))
        reduce(read, out.at("i8", target, offset), many, handle, by)
    out.store(started, out.at("i64", cell, group_cells.ENDED))
    return out


@cache
def collective_address() -> int:
    """The address of the native function, which has a kernel's signature."""
    return text_addresses(module_text(_all_reduce()), ["all_reduce"])["all_reduce"]


finder("collective", collective_address)
