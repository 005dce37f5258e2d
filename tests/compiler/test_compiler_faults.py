"""Faults put into the compiler on purpose: each turns a named check red, by an assertion.

A fault replaces one function of the compiler for the length of one check. Every check is run
without the fault first, so that it is the fault it sees; an error of another kind than an
assertion, such as a mistake in the fault itself, does not count.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft as wf
from weft.compiler.function import compiled_function, donation, recording
from weft.compiler.fusion import element_reads, grouping
from weft.compiler.graph_passes import common_subexpressions, dead_code
from weft.compiler.graph_passes.attention import sites
from weft.compiler.graph_passes.loops import lighten
from weft.compiler.lowering import (
    convolution_sizes,
    divided_reductions,
    group_reuse,
    groups,
    node_reuse,
)
from weft.compiler.lowering import matrix_products as forms
from weft.compiler.plan import control_flow, horizontal_fusion, order, planning, row_fusion
from weft.compiler.targets.cpu import target as cpu_target
from weft.compiler.targets.cpu.checking.fences import Fences, noted_faults
from weft.compiler.targets.cpu.checking.memory import NAN
from weft.compiler.targets.cpu.convolution import plans as convolution_plans
from weft.compiler.targets.cpu.convolution import select as convolution_calls
from weft.compiler.targets.cpu.engine import call_kernel, compile_kernels
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.products import select as product_calls
from weft.compiler.targets.cpu.runtime import control_tables, grouped_launch
from weft.compiler.targets.cpu.runtime.preparation import Preparation
from weft.compiler.targets.cpu.target import compile_program
from weft.compiler.targets.llvm import blocks, instructions, values
from weft.core import dimensions
from weft.core.dtypes import float32
from weft.ir import affine_index, loop_digest
from weft.ir.graph import Graph, Variable
from weft.ir.kinds import Movement, Reduction
from weft.ir.loop_reference import run_reference
from weft.ir.loops import Accumulate, For, Kernel, Store, Update
from weft.ir.primitive import Primitive
from weft.ir.scalars import Buffer, const, index, local, maximum, size
from weft.ops import movement
from weft.ops.control import run as run_by_reference
from weft.ops.reduction import reduce_max
from weft.runtime import memory

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


class Fault(NamedTuple):
    """What is broken: an attribute or an entry, what it becomes, and the check that sees it."""

    name: str
    owner: Any
    attribute: str
    broken: Callable[[Function], Any]
    check: Callable[[], None]
    applies: Callable[[], bool] = lambda: True
    """Whether this machine's code has the part that is broken."""


@contextmanager
def put_in(fault: Fault) -> Iterator[None]:
    is_primitive = isinstance(fault.owner, Primitive)  # frozen, and without a dictionary
    if is_primitive:
        before = getattr(fault.owner, fault.attribute)
    else:
        slots = fault.owner if isinstance(fault.owner, dict) else vars(fault.owner)
        before = slots[fault.attribute]

    def put(value: Any) -> None:
        if isinstance(fault.owner, dict):
            fault.owner[fault.attribute] = value
        elif is_primitive:
            object.__setattr__(fault.owner, fault.attribute, value)
        else:
            setattr(fault.owner, fault.attribute, value)

    put(fault.broken(before))
    try:
        yield
    finally:
        put(before)


# --- the checks ----------------------------------------------------------------------------------


def numbers(*shape: int, dtype: str = "float32") -> Array:
    count = int(np.prod(shape))
    return (np.sin(1.0 + np.arange(count)) + 0.01).astype(dtype).reshape(shape)


def traced(f: Function, arrays: Sequence[Array]) -> Graph:
    return wf.ir.trace(f, *[wf.spec(str(a.dtype), a.shape) for a in arrays])


def agrees(f: Function, *arrays: Array) -> Callable[[], None]:
    """The program gives the numbers of the graph, node by node by reference.

    It runs in the checking mode, so that a fault does not damage the process.
    """

    def check() -> None:
        graph = traced(f, arrays)
        wanted = run_by_reference(graph, list(arrays))
        program = compile_program(graph)
        with wf.testing.checked_memory():
            found = program.run(list(arrays))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)

    return check


def keeps_memory(f: Function, *arrays: Array) -> Callable[[], None]:
    """The program passes the checking mode."""

    def check() -> None:
        program = compile_program(traced(f, arrays))
        with wf.testing.checked_memory():
            program.run(list(arrays))

    return check


def serves_all_sizes(f: Function, *rows: int) -> Callable[[], None]:
    """One program with a size that is not known passes the checking mode, size after size."""

    def check() -> None:
        program = compile_program(wf.ir.trace(f, wf.spec("float32", (wf.symbol("n"), 5))))
        for count in rows:
            with wf.testing.checked_memory():
                program.run([numbers(count, 5)])

    return check


def kernel_agrees(kernel: Kernel, count: int) -> Callable[[], None]:
    """A kernel's machine code does what the loop language's interpreter does."""

    def check() -> None:
        x = np.where(np.arange(count) % 7 == 3, np.nan, numbers(count)).astype(np.float32)
        found, wanted = np.zeros(count, np.float32), np.zeros(count, np.float32)
        address = compile_kernels([kernel])[kernel.name]
        call_kernel(address, [x, found], [count], 0, kernel.iterations({"n": count}))
        run_reference(kernel, [x, wanted], [count])
        np.testing.assert_array_equal(found, wanted)

    return check


def elementwise_kernel() -> Kernel:
    x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
    body = Store(y, i, maximum(x[i] * 2 + 1, const(0.5, float32)))
    return Kernel("elements", (x, y), ("n",), (For(i, size("n"), (body,), "parallel vector"),))


def sum_kernel() -> Kernel:
    x, y, i, total = (
        Buffer("x", float32), Buffer("y", float32, "write"), index("i"), local("t", float32),
    )  # fmt: skip
    j = index("j")
    add = Accumulate(j, size("n"), (Update(total, "maximum", x[j]),))
    return Kernel("top", (x, y), ("n",), (For(i, size("n"), (add, Store(y, i, total))),))


def kernels_have_keys_of_their_own() -> None:
    """Kernels that differ in anything but names differ in their digests."""
    x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")

    def scaled(factor: float, name: str) -> Kernel:
        body = (For(i, size("n"), (Store(y, i, x[i] * factor),), "parallel vector"),)
        return Kernel(name, (x, y), ("n",), body)

    assert scaled(2.0, "a").digest == scaled(2.0, "b").digest
    assert scaled(2.0, "a").digest != scaled(3.0, "a").digest


def kernel_keeps_to_its_buffers() -> None:
    """A kernel's machine code touches nothing behind the end of its buffers."""
    kernel = elementwise_kernel()
    address = compile_kernels([kernel])[kernel.name]
    fences = Fences(NAN, at_end=True)
    buffers = [fences.buffer(4 * 101) for _ in kernel.buffers]
    with noted_faults():
        call_kernel(address, [b.data.view(np.float32) for b in buffers], [101], 0, 101)
        damage = fences.damage()
    fences.release()
    assert damage is None


def training_agrees() -> None:
    """Compiled training steps leave the weights that eager steps do, and touch nobody's array."""

    def trained(jit: bool) -> tuple[Array, Array]:
        wf.random.seed(1)
        net = wf.nn.Sequential(wf.nn.Linear(6, 40), wf.nn.Tanh(), wf.nn.Linear(40, 2))
        optimizer = wf.optim.Adam(net.parameters(), lr=0.05)

        def step(x: wf.Tensor) -> wf.Tensor:
            loss = (net(x) ** 2).mean() + wf.random.uniform(()) * 0
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        run = wf.jit(step) if jit else step
        first = net[0].weight.detach().numpy()  # somebody looks at the first weights all the time
        shown = first.copy()
        for _ in range(3):
            run(wf.asarray(numbers(20, 6)))
        np.testing.assert_array_equal(first, shown)
        return net[0].weight.detach().numpy(), net[2].bias.detach().numpy()

    for one, other in zip(trained(True), trained(False), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def views_are_not_written_over() -> None:
    """A compiled update of a tensor whose array is a view leaves the base alone."""
    base = np.ones((4, 2048), np.float32)
    state = wf.asarray(base[1])

    @wf.jit
    def step() -> None:
        state.copy_(state * 2 + 1)

    before = base.copy()
    for _ in range(3):
        step()
    assert state.numpy()[0] == 15.0
    np.testing.assert_array_equal(base, before)


def held_arrays_are_not_used_again() -> None:
    """What was read from state before a call is as it was after the call, and after others."""
    state = wf.zeros((64, 64))

    @wf.jit
    def step() -> None:
        state.copy_(state + 1)

    kept = []
    for _ in range(5):
        kept.append(np.asarray(state.numpy()))
        step()
    assert [array[0, 0] for array in kept] == [0.0, 1.0, 2.0, 3.0, 4.0]


def prepared_weights_are_made_anew() -> None:
    """A weight that a compiled step has written over in its place is packed again."""
    net = wf.nn.Linear(512, 1024, bias=False)
    net.weight.requires_grad = False
    x = wf.asarray(numbers(128, 512))
    infer = wf.jit(lambda x: net(x))

    @wf.jit
    def double() -> None:
        net.weight.copy_(net.weight * 2)

    for _ in range(3):
        double()
        for _ in range(3):
            found = infer(x).numpy()
        np.testing.assert_allclose(found, net(x).numpy(), rtol=1e-3, atol=1e-3)


def equality_of_sizes_is_decided_anew() -> None:
    """A branch on the size of an argument is that of each call."""
    f = wf.jit(lambda x: x * 2 if x.shape[0] == 7 else x * 3)
    assert [f(wf.ones(n))[0].item() for n in (5, 6, 7, 8, 7, 9)] == [3, 3, 2, 3, 2, 3]


def transcendentals_are_computed_once() -> None:
    """A function that costs much and that several kernels read is stored, not computed again."""

    def f(x: wf.Tensor) -> Any:
        y = wf.exp(x)
        return y.sum(axis=0), (y * 2).sum(axis=1), y.T * 3 + 1

    program = compile_program(wf.ir.trace(f, wf.spec("float32", (256, 256))))
    assert sum(str(each.kernel).count("exp(") for each in program.plan.every_lowered) == 1


def signed_zeros_are_told_apart() -> None:
    """Two constants that differ in the sign of zero are two."""

    def f(x: wf.Tensor) -> Any:
        return wf.atan2(wf.tensor([0.0, 0.0]), x), wf.atan2(wf.tensor([-0.0, -0.0]), x)

    found = compile_program(wf.ir.trace(f, wf.spec("float32", (2,)))).run(
        [np.full(2, -1, np.float32)]
    )
    assert [array[0] > 0 for array in found] == [True, False]


def effects_happen() -> None:
    """What is printed in a program that is compiled is printed, in the order of the program."""

    def f(x: wf.Tensor) -> wf.Tensor:
        wf.debug.print("one {}", x.sum())
        y = x * 2
        wf.debug.print("two {}", y.sum())
        return y

    text = io.StringIO()
    with redirect_stdout(text):
        compile_program(wf.ir.trace(f, wf.spec("float32", (2,)))).run([np.ones(2, np.float32)])
    assert text.getvalue() == "one 2.\ntwo 4.\n"


# --- programs ------------------------------------------------------------------------------------

X, W, V = numbers(96, 64), numbers(64, 80), numbers(80)
BIG, WIDE = numbers(300, 200), numbers(200, 330)
IMAGE, TAPS = numbers(2, 3, 11, 13), numbers(5, 3, 3, 3)
DEEP_IMAGE, DEEP_TAPS = numbers(2, 32, 20, 20), numbers(32, 32, 3, 3)


def softmax_of_product(x: wf.Tensor, w: wf.Tensor, v: wf.Tensor) -> wf.Tensor:
    return wf.softmax(wf.tanh(x @ w + v), axis=-1) * 2


def long_chain(x: wf.Tensor) -> wf.Tensor:
    """Values of one size that live and die one after the other, all in the arena."""
    y = wf.linalg.inv(x @ x.T + 50 * wf.eye(96))
    z = wf.linalg.inv(y @ x @ x.T + 9 * wf.eye(96))
    return (z @ y).sum(axis=0) + (y * z.T).sum(axis=0)


def many_updates(x: wf.Tensor, w: wf.Tensor, v: wf.Tensor) -> Any:
    return x * 2 + 1, w * 3, v - 1, wf.exp(x).sum(axis=1)


def read_across(x: wf.Tensor) -> wf.Tensor:
    """A value that one kernel reads at its own place and at another."""
    y = wf.linalg.inv(x @ x.T + 50 * wf.eye(96))
    return wf.linalg.inv(y.T * 2 + y + wf.eye(96))


def accumulated_backwards(x: wf.Tensor) -> Any:
    return wf.scan(lambda c, row: (c * 0.5 + row, c - row), x[0] * 0, x, reverse=True)


def swapped(x: wf.Tensor) -> Any:
    """A loop whose carries change places, so that none may stay where it is."""
    return wf.scan(lambda c, row: ((c[1] + row, c[0] * 0.5), c[0]), (x[0], x[1]), x)


def equal_nodes_with_other_params(x: wf.Tensor) -> Any:
    return wf.cumsum(x, axis=0), wf.cumsum(x, axis=1)


def two_maps(x: wf.Tensor) -> wf.Tensor:
    g = lambda q: wf.sin(q) * q  # noqa: E731  one body, used twice
    return wf.grad(lambda x: wf.map(g, wf.map(g, x)).sum())(x)


def joined(x: wf.Tensor) -> wf.Tensor:
    return wf.concat([x[:, 1:], x[:, :1], x * 2], axis=1)


def moved(x: wf.Tensor) -> wf.Tensor:
    return wf.flip(x[3:90:2, 5:], axis=1) + wf.pad(x[:44, :50], ((0, 0), (5, 4))) * x[0, 5:]


def convolved(x: wf.Tensor, w: wf.Tensor) -> Any:
    return wf.conv2d(x, w, stride=2, padding=1)


def convolution_gradients(x: wf.Tensor, w: wf.Tensor) -> Any:
    return wf.grad(lambda x, w: (wf.conv2d(x, w, padding=1) ** 2).sum(), argnums=(0, 1))(x, w)


def attended(x: wf.Tensor) -> wf.Tensor:
    """Causal attention as it is written by hand."""
    q = x.reshape(1, 2, 128, 64)
    seen = wf.arange(128)[:, None] >= wf.arange(128)[None, :]
    scores = wf.where(seen, q @ (q * 0.5).mT / 8.0, -wf.inf)
    return wf.softmax(scores, axis=-1) @ (q + 1)


FAULTS: list[Fault] = [
    # --- plans of memory
    Fault(
        "a live range is one launch too short",
        planning,
        "live_ranges",
        lambda f: lambda *given: [replace(b, last=max(b.first, b.last - 1)) for b in f(*given)],
        keeps_memory(long_chain, X),
    ),
    Fault(
        "a buffer is half as large as its value",
        planning,
        "byte_count",
        lambda f: lambda kind: f(kind) // 2,
        keeps_memory(long_chain, X),
    ),
    Fault(
        "all buffers lie at the beginning",
        memory,
        "_best_gap",
        lambda f: lambda begins, ends, size: 0,
        keeps_memory(long_chain, X),
    ),
    Fault(
        "a kept stacking is that of other sizes",
        memory._Stacking,
        "offsets",
        lambda f: lambda self, sizes: np.zeros(len(sizes), np.int64),
        serves_all_sizes(
            lambda x: wf.cumsum(x, axis=0) @ wf.cumsum(x, axis=1).T @ wf.sort(x, axis=0),
            8,
            90,
            33,
        ),
    ),
    Fault(
        "a plan lets a result take any place it is hinted at",
        memory,
        "_reused_operands",
        lambda f: (
            lambda buffers, places, sizes: {
                n: m
                for n, b in enumerate(buffers)
                for m, other in enumerate(buffers)
                if m < n and sizes[m] == sizes[n] and other.first < b.first <= other.last
            }
        ),
        keeps_memory(long_chain, X),
    ),
    Fault(
        "a kernel claims to read every operand in its own place",
        groups._Lowering,
        "in_place",
        lambda f: (
            lambda self, *given, **named: tuple(
                (root.variable, value)
                for root in self.group.roots
                for value in self.outside
                if isinstance(value, Variable) and value.type == root.variable.type
            )
        ),
        keeps_memory(read_across, X),
    ),
    # --- donation and state
    Fault(
        "a view counts as an array of its own",
        donation,
        "_PLAIN",
        lambda flags: 0,
        views_are_not_written_over,
    ),
    Fault(
        "an array that somebody holds is donated",
        compiled_function,
        "writable_over",
        lambda f: lambda arrays, by_input: [*by_input.values()],
        held_arrays_are_not_used_again,
    ),
    Fault(
        "state that a step writes is lost",
        recording,
        "_writes_to_handle",
        lambda f: lambda held, put, replaced: f(held, put, replaced)[:0],
        training_agrees,
    ),
    Fault(
        "prepared weights are never made anew",
        Preparation,
        "forget",
        lambda f: lambda self: None,
        prepared_weights_are_made_anew,
    ),
    # --- order
    Fault(
        "launches run backwards where nothing forbids it but what they read",
        horizontal_fusion,
        "schedule",
        lambda f: lambda *given: f(*given)[::-1],
        keeps_memory(long_chain, X),
    ),
    Fault(
        "calls do not wait for what they read",
        order,
        "_sort_places",
        lambda f: lambda needs, wishes: list(range(len(needs)))[::-1],
        agrees(long_chain, X),
    ),
    # --- one kernel for several groups and nodes
    Fault(
        "groups that differ in parameters share a kernel",
        group_reuse.Signature,
        "_node",
        lambda f: lambda self, node: f(self, replace(node, params={})),
        agrees(lambda x: (x.sum(axis=0), wf.sort(x, axis=0).sum(axis=1)), numbers(32, 32)),
    ),
    Fault(
        "nodes that differ in parameters share a kernel",
        node_reuse,
        "_key",
        lambda f: lambda node: (node.primitive, tuple(a.type for a in node.operands)),
        agrees(equal_nodes_with_other_params, numbers(64, 64)),
    ),
    Fault(
        "equal operations on unlike operands are merged",
        common_subexpressions,
        "_param_key",
        lambda f: lambda value: None,
        agrees(lambda x: (x.sum(axis=0), x.sum(axis=1)), numbers(64, 64)),
    ),
    # --- chunks, fusions of rows, grouped launches, sums
    Fault(
        "the last iteration of a kernel is not run",
        Kernel,
        "iterations",
        lambda f: lambda self, sizes: max(0, f(self, sizes) - 1),
        keeps_memory(lambda x: wf.exp(x) * 2, X),
    ),
    Fault(
        "the last block of a divided reduction is not computed",
        divided_reductions,
        "parallel_blocks",
        lambda f: lambda loop, parts: replace(f(loop, parts), extent=loop.extent - 1),
        keeps_memory(lambda x: x.max(), numbers(1 << 18)),
    ),
    Fault(
        "half of the blocks of a divided reduction are left out",
        divided_reductions,
        "combined_parts",
        lambda f: lambda loop, parts: f(replace(loop, extent=loop.extent // 2), parts),
        agrees(lambda x: x.max() + x.sum(), numbers(1 << 18)),
    ),
    Fault(
        "a row fusion's blocks are one row too high for its scratch memory",
        row_fusion.RowBlocks,
        "places",
        lambda f: lambda self, sizes, height: f(self, sizes, max(1, height // 2)),
        keeps_memory(softmax_of_product, BIG, WIDE, numbers(330)),
    ),
    Fault(
        "a row fusion leaves its last block out",
        row_fusion._Fusion,
        "launch",
        lambda f: (
            lambda self: (
                lambda call: replace(call, extent=lambda sizes: max(1, call.extent(sizes) - 1))
            )(f(self))
        ),
        agrees(softmax_of_product, BIG, WIDE, numbers(330)),
    ),
    Fault(
        "a value that others read is kept in a row fusion's scratch memory",
        row_fusion._Fusion,
        "is_local",
        lambda f: (
            lambda self, value: (
                self.finder.root(value) in self.width
                and self.finder.root(value) not in self.finder.outputs
            )
        ),
        agrees(
            lambda x, w: (lambda y: (y.sum(axis=0), wf.linalg.inv(y @ y.T + wf.eye(96))))(
                wf.tanh(x @ w)
            ),
            X,
            W,
        ),
    ),
    Fault(
        "members of a grouped launch are given each other's buffers",
        grouped_launch,
        "table",
        lambda f: lambda members, *rest: f([replace(m, values=()) for m in members], *rest),
        agrees(many_updates, X, W, V),
    ),
    Fault(
        "a grouped launch leaves its last chunk out",
        horizontal_fusion,
        "_group_launches",
        lambda f: (
            lambda launches: (
                lambda launch: (
                    replace(launch, extent=lambda sizes: launch.extent(sizes) - 1)
                    if launch.members
                    else launch
                )
            )(f(launches))
        ),
        agrees(many_updates, X, W, V),
    ),
    Fault(
        "a chunk of rows is summed from its neighbour's rows",
        grouping,
        "chunk_index",
        lambda f: lambda own, node, rows, *rest: f(own, node, rows - 1, *rest),
        agrees(lambda x, w: (wf.tanh(x @ w)).sum(axis=0), BIG, WIDE),
    ),
    # --- movement
    Fault(
        "a slice forgets where it begins",
        movement.slice_,
        "kind",
        lambda kind: Movement(
            lambda reader, node, index: reader.element_at(node.operands[0], index)
        ),
        agrees(lambda x: x[3:90, 5:] * 2, X),
    ),
    Fault(
        "a flip is one element off",
        movement.flip,
        "kind",
        lambda kind: Movement(
            lambda reader, node, index: kind.read(
                reader,
                node,
                tuple(i + -1 if a in node.params["axes"] else i for a, i in enumerate(index)),
            )
        ),
        keeps_memory(lambda x: wf.flip(x, axis=1) * 2, X),
    ),
    Fault(
        "padding reads where there is nothing",
        groups._Elements,
        "choice",
        lambda f: lambda self, conditions, inside, outside: inside,
        keeps_memory(lambda x: wf.pad(x, ((1, 1), (2, 2))) * 2, X),
    ),
    Fault(
        "the last part of a join is read outside of it",
        groups._Elements,
        "only_where",
        lambda f: lambda self, conditions, element: element,
        keeps_memory(joined, numbers(8, 31)),
    ),
    Fault(
        "a broadcast operand moves along",
        element_reads,
        "align_index",
        lambda f: lambda index, operand, result: index[len(result) - len(operand) :],
        agrees(lambda x: wf.exp(x) * x[:, :1], X),
    ),
    Fault(
        "an index loses a stride",
        affine_index.Affine,
        "__mul__",
        lambda f: lambda self, factor: self if factor == 2 else f(self, factor),
        agrees(moved, X),
    ),
    # --- kernels and machine code
    Fault(
        "the greatest is combined as the least",
        reduce_max,
        "kind",
        lambda kind: Reduction("minimum"),
        agrees(lambda x: x.max(axis=1), X),
    ),
    Fault(
        "kernels that differ in a constant have one key",
        loop_digest._Writer,
        "put",
        lambda f: lambda self, part: None if isinstance(part, tuple) else f(self, part),
        kernels_have_keys_of_their_own,
    ),
    Fault(
        "a maximum loses NaN",
        instructions.TABLE,
        "maximum",
        lambda f: lambda lines, kind, x, y: instructions.intrinsic(lines, "maxnum", kind, x, y),
        kernel_agrees(elementwise_kernel(), 100),
    ),
    Fault(
        "an addition is a subtraction",
        instructions.TABLE,
        "add",
        lambda f: (
            lambda lines, kind, x, y: (
                lines.put(f"fsub {kind.text} {x}, {y}")
                if kind.dtype.is_floating
                else f(lines, kind, x, y)
            )
        ),
        kernel_agrees(elementwise_kernel(), 100),
    ),
    Fault(
        "a vector is stored one element late",
        values.Values,
        "_move_pointer",
        lambda f: (
            lambda self, buffer, origin, base: f(self, buffer, f(self, buffer, origin, "1"), base)
        ),
        kernel_agrees(elementwise_kernel(), 64),
    ),
    Fault(
        "what is behind the last whole vector is left out",
        blocks.Control,
        "end_of_whole_steps",
        lambda f: lambda self, start, stop, step, extent: stop,
        kernel_keeps_to_its_buffers,
    ),
    # --- products
    Fault(
        "a product reads its left operand with the right one's stride",
        product_calls._Generated,
        "table",
        lambda f: (
            lambda self, sizes: (lambda given: [*given[:3], given[3] + 1, *given[4:]])(
                f(self, sizes)
            )
        ),
        keeps_memory(lambda x, w: x @ w, BIG, WIDE),
    ),
    Fault(
        "the last row of a product is left out",
        product_calls._Generated,
        "in_rows",
        lambda f: lambda self, sizes: f(self, sizes) - 1,
        agrees(lambda x, w: x @ w, BIG, WIDE),
    ),
    Fault(
        "an operand is packed into one panel too few",
        product_calls._Generated,
        "count",
        lambda f: lambda self, columns: max(1, f(self, columns) - 1),
        agrees(lambda x, w: x @ w, numbers(500, 300), numbers(300, 333)),
    ),
    Fault(
        "a transposed operand is taken as it lies",
        forms,
        "_is_transpose",
        lambda f: lambda *given, **named: None if f(*given, **named) is None else False,
        agrees(lambda x: x @ x.T, numbers(64, 64)),
    ),
    # --- convolutions and attention
    Fault(
        "a convolution begins one place too far left",
        convolution_sizes,
        "sizes_of",
        lambda f: (
            lambda x, w, y, params: (
                lambda found: replace(found, low=tuple(low + 1 for low in found.low))
            )(f(x, w, y, params))
        ),
        agrees(convolved, IMAGE, TAPS),
    ),
    Fault(
        "a convolution steps by one whatever its stride",
        convolution_plans,
        "_window_starts",
        lambda f: lambda a, *rest: f(replace(a, strides=(1, 1, 1)), *rest),
        agrees(convolved, IMAGE, TAPS),
    ),
    Fault(
        "vectors of cotangents reach beyond their end",
        convolution_calls,
        "_has_whole_vectors",
        lambda f: lambda outputs, dtype, machine: True,
        keeps_memory(convolution_gradients, IMAGE, TAPS),
        lambda: not host().masked,
    ),
    Fault(
        "a causal mask lets the next key through",
        sites,
        "causal_offset",
        lambda f: lambda *given: (lambda found: None if found is None else found + 1)(f(*given)),
        agrees(attended, numbers(256, 64)),
    ),
    # --- sorting
    Fault(
        "sorting goes the other way",
        cpu_target,
        "sort_launches",
        lambda f: (
            lambda node: (
                f(
                    replace(
                        node, params={**node.params, "descending": not node.params["descending"]}
                    )
                )
                if "descending" in node.params
                else f(node)
            )
        ),
        agrees(lambda x: wf.sort(x, axis=0), X),
    ),
    # --- loops and choices
    Fault(
        "every carry stays where it is",
        control_flow,
        "carries_in_place",
        lambda f: (
            lambda node, body: [
                (n, node.params["num_consts"] + n) for n in range(node.params.get("num_carry", 0))
            ]
        ),
        keeps_memory(swapped, X),
    ),
    Fault(
        "a loop backwards begins at the front",
        control_tables._LoopTables,
        "_moving_bindings",
        lambda f: (
            lambda self, *given: f(replace(self, loop=replace(self.loop, reverse=False)), *given)
        ),
        keeps_memory(accumulated_backwards, X),
    ),
    Fault(
        "outputs that are inputs are not copied",
        control_tables,
        "_targets",
        lambda f: lambda *given: (f(*given)[0], []),
        keeps_memory(lambda x: wf.scan(lambda c, row: (c + row, (c, row)), x[0], x), X),
    ),
    Fault(
        "a branch is run with the memory of another",
        control_flow.Choice,
        "bytes",
        lambda f: lambda self, sizes: 64,
        keeps_memory(
            lambda x: wf.cond(
                x.sum() > 1e9,
                lambda x: x,
                lambda x: wf.cumsum(wf.cumsum(wf.softmax(x, axis=0), axis=1), axis=0) * 2,
                x,
            ),
            X,
        ),
    ),
    Fault(
        "what depends on a step is done once before the loop",
        planning,
        "_split_preparation",
        lambda f: (
            lambda launches, graph, fixed, root: f(
                launches, graph, range(len(graph.inputs)) if fixed else fixed, root
            )
        ),
        agrees(
            lambda x, w: wf.scan(lambda c, row: (wf.cumsum(row) @ w @ w.T + c, c), x[0], x)[0],
            numbers(12, 64),
            W,
        ),
    ),
    # --- passes
    Fault(
        "loops with one body take over each other's values",
        lighten,
        "_recomputed_values",
        lambda f: (
            lambda loop, first: {
                node.results[0]: other.results[0]
                for node in loop.nodes
                for other in first.nodes
                if node.primitive is other.primitive
                and node.results[0].type == other.results[0].type
            }
        ),
        agrees(two_maps, numbers(5)),
    ),
    Fault(
        "what is done for its effect is dead code",
        dead_code,
        "_has_effect",
        lambda f: lambda node: False,
        effects_happen,
    ),
    Fault(
        "everything is recomputed by each of its readers",
        grouping,
        "is_function",
        lambda f: lambda node: False,
        transcendentals_are_computed_once,
    ),
    Fault(
        "sizes are compared by how they are written",
        dimensions,
        "asked_outside",
        lambda f: lambda: False,
        equality_of_sizes_is_decided_anew,
    ),
    Fault(
        "constants are told apart by their values alone",
        common_subexpressions,
        "_literal_key",
        lambda f: lambda atom: tuple(np.ravel(atom.value).tolist()),
        signed_zeros_are_told_apart,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_in_the_compiler_turns_its_check_red(fault: Fault) -> None:
    if not fault.applies():
        pytest.skip("this machine has no such code")
    with wf.settings.changed(fastcall=True, in_place_updates=True):
        fault.check()
        with put_in(fault), pytest.raises(AssertionError):
            fault.check()


def test_there_are_many_faults_and_each_has_a_name() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names)) >= 40
