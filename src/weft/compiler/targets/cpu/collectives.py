"""Collectives of compiled programs: the engine's own functions, called by address.

The launch reads the cell of its mesh axis (ir/group_cells.py) when it runs, so that a program goes
on with the group that is bound then. Large sums go in pieces, for which the engine keeps its
scratch memory. Gathering, scattering and exchanging are native along the first axis, where blocks
lie one behind the other (graph_passes/collective_axes.py). A sum that is scattered is an exchange
of blocks, which are added in the order of processes: the library's own way takes longer. Before the
data, processes compare a number that stands for the call: where they differ, the launch fails on
all of them.

A launch that others need not wait for is made of two: one that leaves the call to a thread, and one
that waits for it; see communication_thread.py and plan/overlap.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from weft.compiler.plan.launch import (
    Kind,
    Launch,
    Sizes,
    no_numbers,
    one,
    substitute_all,
)
from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import finder
from weft.compiler.targets.cpu.communication_thread import (
    CALL,
    begin,
    drain,
    make_queue,
    meet,
    serve,
    wait,
)
from weft.compiler.targets.llvm.ir_builder import KERNEL, NULL, IRBuilder, Operand, module_text
from weft.core.errors import UnsupportedError
from weft.core.shapes import size
from weft.ir import group_cells
from weft.ir.graph import GraphNode, Literal, Variable
from weft.ir.kinds import Collective

__all__ = ["PIECE", "collective_launches"]

PIECE = 1 << 21
"""Bytes of one call of the engine."""
_REDUCTIONS = {f"all_reduce_{each}": i for i, each in enumerate(group_cells.OPERATIONS)}
_INTEGERS = group_cells.FIRST_TYPE + group_cells.TYPES.index("int64")
_SUM = group_cells.FIRST_OPERATION + group_cells.OPERATIONS.index("sum")
_MAXIMUM = group_cells.FIRST_OPERATION + group_cells.OPERATIONS.index("max")
LARGEST = 1 << 31
"""The elements that one call of the engine cannot count."""


_BY_SIZE = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64", 16: "complex128"}
"""The dtype as which elements of so many bytes are moved."""


def collective_launches(node: GraphNode, error: Literal) -> list[Launch] | None:
    """The launch of a collective that is called natively; None for any other node."""
    primitive, params = node.primitive, node.params
    if not isinstance(primitive.kind, Collective) or params["stacked"] or params["size"] == 1:
        return None
    if not node.operands:
        return [_index_launch(node, error)]
    native = _native_call(node)
    if native is None:
        return None
    operand, (result,) = node.operands[0], node.results
    dtype, mesh_axis, members = operand.type.dtype, params["mesh_axis"], params["size"]
    name, kind, operation = native
    how = "".join(f" {params[key]}" for key in ("root", "pairs", "what") if key in params)
    shown = f"{primitive.name}({mesh_axis}){how} of {operand.type}"
    place = "" if node.location is None else f" at {node.location}"

    def describe(count: int) -> str:
        return f"{primitive.name}({mesh_axis}){how} of {count} {dtype.name}"

    def launch_numbers(sizes: Sizes) -> list[int]:
        count = substitute_all(size(operand.type.shape), sizes)
        if name != "all_reduce" and count >= LARGEST:
            raise UnsupportedError(
                primitive.name,
                "one call of the engine cannot move so many elements",
                expected=f"fewer than {LARGEST} elements",
                got={"elements": count},
                fix="move it in parts",
            )
        digest = group_cells.describe_call(describe(count), place, params.get("what", ""))
        which, root = list(_FUNCTIONS).index(name), params.get("root", 0)
        common = [count, dtype.itemsize, kind, operation, digest, members, which, root]
        return common + (_partners(params["pairs"], members) if "pairs" in params else [])

    is_sum = name == "all_reduce"
    whole = Launch(
        Kind.COLLECTIVE, primitive.name, ("collective", name),
        (operand, result, error, Literal(group_cells.cell_of(mesh_axis))), (result,),
        launch_numbers, one, one, checked=node,
        report=lambda: group_cells.failure_of(mesh_axis, shown),
        in_place=((result, operand),) if is_sum and isinstance(operand, Variable) else (),
    )  # fmt: skip
    return [replace(whole, halves=_halves(whole, name))]


def _index_launch(node: GraphNode, error: Literal) -> Launch:
    """The launch that writes which process this is, which the group's cell says."""
    (result,), mesh_axis, members = node.results, node.params["mesh_axis"], node.params["size"]
    shown = f"{node.primitive.name}({mesh_axis})"
    return Launch(
        Kind.COLLECTIVE, node.primitive.name, ("collective", "shard_index"),
        (result, error, Literal(group_cells.cell_of(mesh_axis))), (result,),
        lambda sizes: [members], one, one, checked=node,
        report=lambda: group_cells.failure_of(mesh_axis, shown),
    )  # fmt: skip


def _halves(whole: Launch, name: str) -> Callable[[], tuple[Launch, Launch]]:
    """What gives the launch that leaves a collective to the thread, and the one that waits."""

    def make() -> tuple[Launch, Launch]:
        assert whole.checked is not None
        addresses = _addresses()
        group_cells.set_queue(
            whole.checked.params["mesh_axis"],
            lambda: make_queue(addresses["serve"], addresses["drain"]),
        )
        (operand, _, error, cell), (result,) = whole.values, whole.writes
        call = Literal(np.zeros(len(CALL.names), np.int64))
        begins = replace(
            whole, name=f"{whole.name} begin", kernel=("collective", "begin"),
            values=(*whole.values, call),
        )  # fmt: skip
        # A sum is made in place of its result; what others read must stay until they have.
        read = () if name == "all_reduce" else (operand,)
        waits = replace(
            whole, name=f"{whole.name} wait", kernel=("collective", "wait"),
            values=(result, error, cell, call, *read), updates=(result,), in_place=(),
            numbers=no_numbers,
        )  # fmt: skip
        return begins, waits

    return make


def _native_call(node: GraphNode) -> tuple[str, int, int] | None:
    """The native function of a collective, and the places of dtype and operation in a cell."""
    name, dtype = node.primitive.name, node.operands[0].type.dtype
    first, types = group_cells.FIRST_TYPE, group_cells.TYPES
    if name in _REDUCTIONS and dtype.name in types:
        operation = group_cells.FIRST_OPERATION + _REDUCTIONS[name]
        return "all_reduce", first + types.index(dtype.name), operation
    is_scattered = name == "reduce_scatter" and node.params["axis"] == 0
    if (is_scattered or name == "reduce_shards") and dtype.name in types:
        return name, first + types.index(dtype.name), _SUM
    along = [node.params.get(key, 0) for key in ("axis", "split_axis", "concat_axis")]
    if name in _MOVING and not any(along):
        return name, first + types.index(_BY_SIZE[dtype.itemsize]), _SUM
    return None


def _partners(pairs: Sequence[tuple[int, int]], members: int) -> list[int]:
    """For each process whom it sends to, and then for each from whom it receives; -1 for none.

    >>> _partners([(0, 1)], 2)
    [1, -1, -1, 0]
    """
    targets, sources = dict(pairs), {target: source for source, target in pairs}
    ranks = range(members)
    return [targets.get(rank, -1) for rank in ranks] + [sources.get(rank, -1) for rank in ranks]


_FUNCTIONS: dict[str, Callable[[], IRBuilder]] = {}
"""What writes the native function of each collective; sums over processes are the first."""
_MOVING: set[str] = set()
"""Collectives that move elements, whatever they are."""


def _native(*, moves: bool = False) -> Callable[[Callable[[], IRBuilder]], Any]:
    """Note what writes the function of the collective whose name it has."""

    def note(write: Callable[[], IRBuilder]) -> Callable[[], IRBuilder]:
        name = write.__name__.removeprefix("_")
        _FUNCTIONS[name] = write
        if moves:
            _MOVING.add(name)
        return write

    return note


class _Call:
    """A native function under construction: its operands, and what all collectives begin with."""

    def __init__(self, name: str) -> None:
        self.out = out = IRBuilder(name, KERNEL, public=True, may_unwind=True)
        buffers, sizes, first, _ = out.parameters
        self.is_beside = out.test("ne", first, 0)
        self.source, self.target, self.error, self.cell = (
            out.pointer(buffers, place) for place in range(4)
        )
        words = [out.number(sizes, place) for place in range(6)]
        self.count, self.item, kind, operation, digest, self.members = words
        self.group = out.pointer(self.cell, group_cells.COMMUNICATOR)
        self.started = out.add(out.number(self.cell, group_cells.STARTED), 1)
        out.store(digest, out.at("i64", self.cell, group_cells.DIGEST))
        out.store(self.started, out.at("i64", self.cell, group_cells.STARTED))
        self._details = out.at("i64", sizes, 7)
        self._compare(digest)
        self.kind, self.operation = out.pointer(self.cell, kind), out.pointer(self.cell, operation)

    def detail(self, place: Operand) -> str:
        """A number that is this collective's own.

        First the root, then for each process whom it sends to, and from whom it receives.
        """
        return self.out.number(self._details, place)

    def fail(self, code: str) -> None:
        """Leave with a code."""
        out = self.out
        out.store(code, out.at("i64", self.cell, group_cells.CODE))
        out.store(self.started, out.at("i64", self.cell, group_cells.ENDED))
        out.store(1, self.error, "i32")
        out.give()

    def end(self) -> IRBuilder:
        """The function, which ends here in order."""
        self.out.store(self.started, self.out.at("i64", self.cell, group_cells.ENDED))
        return self.out

    def call(self, place: int, *operands: str, freed: str | None = None) -> None:
        """Call a function of the cell; leave where it fails, having freed what was taken."""
        code = self.out.call(self.out.pointer(self.cell, place), *operands, result="i32")
        self._leave_after(code, freed)

    def _leave_after(self, code: str, freed: str | None = None) -> None:
        """Leave where a function has given a code, having freed what was taken."""
        out = self.out
        with out.when(out.test("ne", code, "0")):
            if freed is not None:
                out.free(freed)
            self.fail(out.convert("sext", code, "i64"))

    def reduce(self, read: str, written: str, many: str, of: str, by: str) -> None:
        """A sum over processes of so many elements."""
        self.call(group_cells.FUNCTION, read, written, many, of, by, self.group)

    def _compare(self, digest: str) -> None:
        """Leave where the group has another size, or a process is about to do something else."""
        out, cell = self.out, self.cell
        present = out.number(cell, group_cells.SIZE)
        is_other = out.test("ne", present, self.members)
        with out.when(out.combine("and", out.test("ne", present, 0), is_other)):
            self.fail(str(group_cells.OTHER_SIZE))
        checks = out.test("ne", out.number(cell, group_cells.CHECKS), 0)
        with out.when(out.combine("or", checks, self.is_beside)):
            own, both = out.room("[2 x i64]"), out.room("[2 x i64]")
            out.store(digest, own)
            out.store(out.sub(0, digest), out.at("i64", own, 1))
            integers, maximum = out.pointer(cell, _INTEGERS), out.pointer(cell, _MAXIMUM)
            operands = (own, both, "i32 2", integers, maximum, self.group)
            with out.choose(out.test("eq", out.pointer(cell, group_cells.ISSUE), NULL)) as (
                in_one,
                begun,
            ):
                with in_one:
                    self.call(group_cells.FUNCTION, *operands)
                with begun:
                    self._leave_after(meet(out, cell, self.is_beside, operands))
            agreed = out.test("eq", out.number(both, 0), out.sub(0, out.number(both, 1)))
            with out.unless(agreed):
                self.fail(str(group_cells.DIFFERENT))


@_native()
def _all_reduce() -> IRBuilder:
    """`all_reduce(...)`: compare the call with the others', then sum piece by piece."""
    return _sum_pieces(_Call("all_reduce")).end()


@_native()
def _reduce_shards() -> IRBuilder:
    """`reduce_shards(...)`: the sum, which all processes but one then write zeros over."""
    call = _sum_pieces(_Call("reduce_shards"))
    out = call.out
    with out.unless(out.test("eq", out.number(call.cell, group_cells.RANK), call.detail(0))):
        out.clear(call.target, out.mul(call.count, call.item))
    return call.end()


def _sum_pieces(call: _Call) -> _Call:
    """The call, with code that sums over processes piece by piece."""
    out = call.out
    is_same = out.test("eq", call.source, call.target)
    in_place = out.pointer(call.cell, group_cells.IN_PLACE)
    step = out.div(PIECE, call.item)
    with out.loop(0, call.count, step) as start:
        many = out.convert("trunc", out.least(out.sub(call.count, start), step), "i32")
        offset = out.mul(start, call.item)
        read = out.select(is_same, in_place, out.at("i8", call.source, offset))
        call.reduce(read, out.at("i8", call.target, offset), many, call.kind, call.operation)
    return call


def _shard_index() -> IRBuilder:
    """`shard_index(result, error, cell)`: the number of this process; no other group will do."""
    out = IRBuilder("shard_index", KERNEL, public=True)
    buffers, sizes, _, _ = out.parameters
    target, error, cell = (out.pointer(buffers, place) for place in range(3))
    is_same = out.test("eq", out.number(cell, group_cells.SIZE), out.number(sizes, 0))
    with out.unless(is_same):
        out.store(group_cells.OTHER_SIZE, out.at("i64", cell, group_cells.CODE))
        out.store(1, error, "i32")
        out.give()
    out.store(out.number(cell, group_cells.RANK), target)
    return out


@_native(moves=True)
def _all_gather() -> IRBuilder:
    """`all_gather(...)`: the blocks of all processes, one behind the other."""
    call = _Call("all_gather")
    many = call.out.convert("trunc", call.count, "i32")
    sent, received = (call.source, many, call.kind), (call.target, many, call.kind)
    call.call(group_cells.GATHER, *sent, *received, call.group)
    return call.end()


@_native()
def _reduce_scatter() -> IRBuilder:
    """`reduce_scatter(...)`: exchange blocks, and add those for this process in their order."""
    call = _Call("reduce_scatter")
    out = call.out
    block = out.div(call.count, call.members)
    bytes_of_block = out.mul(block, call.item)
    many = out.convert("trunc", block, "i32")
    received, whole = out.memory(out.mul(call.count, call.item))
    sent, taken = (call.source, many, call.kind), (received, many, call.kind)
    call.call(group_cells.EXCHANGE, *sent, *taken, call.group, freed=whole)
    out.copy(call.target, received, bytes_of_block)
    with out.loop(1, call.members) as process:
        other = out.at("i8", received, out.mul(process, bytes_of_block))
        operands = (other, call.target, many, call.kind, call.operation)
        call.call(group_cells.COMBINE, *operands, freed=whole)
    out.free(whole)
    return call.end()


@_native(moves=True)
def _all_to_all() -> IRBuilder:
    """`all_to_all(...)`: block i goes to process i; those that come lie one behind the other."""
    call = _Call("all_to_all")
    many = call.out.convert("trunc", call.out.div(call.count, call.members), "i32")
    sent, received = (call.source, many, call.kind), (call.target, many, call.kind)
    call.call(group_cells.EXCHANGE, *sent, *received, call.group)
    return call.end()


@_native(moves=True)
def _broadcast_shard() -> IRBuilder:
    """`broadcast_shard(...)`: the operand of one process, sent from where the results lie."""
    call = _Call("broadcast_shard")
    out = call.out
    many, root = (out.convert("trunc", each, "i32") for each in (call.count, call.detail(0)))
    out.copy(call.target, call.source, out.mul(call.count, call.item))
    call.call(group_cells.BROADCAST, call.target, many, call.kind, root, call.group)
    return call.end()


@_native(moves=True)
def _permute_shards() -> IRBuilder:
    """`permute_shards(...)`: send to one process, receive from one; zeros where none sends."""
    call = _Call("permute_shards")
    out = call.out
    rank = out.number(call.cell, group_cells.RANK)
    to, giver = (
        call.detail(out.add(1, rank)),
        call.detail(out.add(out.add(1, call.members), rank)),
    )
    nobody = out.number(call.cell, group_cells.NOBODY)
    with out.when(out.test("slt", giver, 0)):
        out.clear(call.target, out.mul(call.count, call.item))
    target, source = (
        out.convert("trunc", out.select(out.test("slt", each, 0), nobody, each), "i32")
        for each in (to, giver)
    )
    many = out.convert("trunc", call.count, "i32")
    sent = (call.source, many, call.kind, target, "i32 0")
    received = (call.target, many, call.kind, source, "i32 0")
    call.call(group_cells.PASS, *sent, *received, call.group, out.room("[8 x i64]"))
    return call.end()


@cache
def _addresses() -> dict[str, int]:
    """The addresses of all functions here: collectives, their halves, and the thread's."""
    functions = [make() for make in _FUNCTIONS.values()]
    others = {"begin": begin(functions), "wait": wait(), "serve": serve(), "drain": drain()}
    others["shard_index"] = _shard_index()
    names = [*_FUNCTIONS, *others]
    return text_addresses(module_text(*functions, *others.values()), names)


def collective_address(name: str) -> int:
    """The address of a native function, which has a kernel's signature."""
    return _addresses()[name]


finder("collective", collective_address)
