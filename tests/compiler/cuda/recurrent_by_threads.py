"""Recurrent layers' kernels from their PTX, every thread of them, beside their steps by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.compiler.cuda.ptx_interpreter import Memory
from tests.compiler.cuda.warpgroup_interpreter import run_blocks

import weft as wf
from weft.compiler.function.program_cache import by_reference
from weft.compiler.plan.control_flow import Loop
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.recurrent.description import describe_step
from weft.compiler.targets.cuda.recurrent.kernel import (
    Layout,
    RecurrentKernel,
    best_layout,
    recurrent_kernel,
)
from weft.compiler.targets.cuda.target import CUDA
from weft.core.dtypes import int64
from weft.core.types import TensorType
from weft.ir.graph import Graph

Array = np.ndarray[Any, Any]


def loops_of(kind: str, units: int, batch: int, steps: int = 3, **options: Any) -> list[Loop]:
    """The loops of a recurrent layer of that kind and of its gradient."""
    layer = getattr(wf.nn, kind)(8, units)
    x = wf.spec("float32", (steps, batch, 8))
    return loops_in(wf.ir.trace(wf.grad(lambda x: (layer(x, **options)[0] ** 2).sum()), x))


def loops_in(graph: Graph) -> list[Loop]:
    """The loops of a program."""
    nested = [each.nested for each in plan_program(graph, CUDA).launches]
    return [each.form for each in nested if each is not None and isinstance(each.form, Loop)]


def _drawn(random: np.random.Generator, kind: TensorType, scale: float) -> Array:
    if kind.dtype is int64:  # lengths, or the numbers of steps
        return np.arange(kind.size) % 3
    return np.asarray(random.normal(size=kind.shape) * scale, np.float32)


def check_loop(loop: Loop, steps: int, seed: int = 0, rows: int = 0) -> dict[str, Array]:
    """All steps by the kernel are those by NumPy; returns what the kernel makes."""
    graph = loop.plans[0].graph
    consts, carries = loop.num_consts, loop.num_carry
    form = describe_step(graph, consts, carries)
    layout = Layout(form, rows) if rows else best_layout(form, 132)
    random = np.random.default_rng(7)
    kinds = graph.input_types
    constants = [_drawn(random, kind, max(kind.size, 1) ** -0.25) for kind in kinds[:consts]]
    carry = [_drawn(random, kind, 1.0) for kind in kinds[consts : consts + carries]]
    rows = [_drawn(random, kind.with_shape((steps, *kind.shape)), 1.0)
            for kind in kinds[consts + carries :]]  # fmt: skip
    wanted = [np.zeros((steps, *atom.type.shape), np.float32) for atom in graph.outputs[carries:]]
    now = list(carry)
    for step in reversed(range(steps)) if loop.reverse else range(steps):
        found = by_reference(graph, [*constants, *now, *(np.asarray(row[step]) for row in rows)])
        now = list(found[:carries])
        for target, value in zip(wanted, found[carries:], strict=True):
            target[step] = value

    def named(name: str, arrays: list[Array]) -> dict[str, Array]:
        return {f"{name}{number}": array for number, array in enumerate(arrays)}

    others = named("constant", constants)
    del others[f"constant{form.weights}"]
    given = others | named("carry", carry) | named("row", rows)
    made = named("final", carry) | named("made", wanted)
    memory = Memory(
        {"weights": constants[form.weights], **given,
         **{name: np.full_like(array, np.nan) for name, array in made.items()},
         "exchange": np.full(layout.exchange_bytes // 4, np.nan, np.float32),
         "counters": np.zeros(layout.counters, np.uint32)}
    )  # fmt: skip
    kernel = recurrent_kernel(layout, reverse=loop.reverse)
    run_blocks(kernel, layout.blocks, memory, {}, {"steps": steps}, seed)
    assert not memory.result("counters").any(), "counters are not zeros again"
    made = named("final", now) | named("made", wanted)
    for name, array in made.items():
        np.testing.assert_allclose(memory.result(name), array, rtol=3e-5, atol=3e-6, err_msg=name)
        assert (memory.store_counts(name) == 1).all(), f"{name} is stored not once"
    return {name: memory.result(name).copy() for name in made}


def run_recurrent(kernel: RecurrentKernel, bytes_at: dict[str, Array], steps: int) -> None:
    """Run a kernel on memory of the host, given what begins at each pointer."""
    layout, form = kernel.layout, kernel.layout.form
    rows = steps * form.batch
    parts = {f"{each.role}{each.number}": each for each in form.inputs}
    counts = {
        "weights": len(form.multiplied) * form.products * form.units**2,
        "exchange": layout.exchange_bytes // 4,
        "counters": layout.counters,
    }
    for name in set(bytes_at) - set(counts):
        width = form.units
        if name.startswith("made"):
            width *= len(form.rows[int(name.removeprefix("made"))])
        elif name in parts:
            width *= parts[name].parts
        lines = rows if name.startswith(("row", "made")) else form.batch
        counts[name] = width * lines
        if name in parts and parts[name].lies != "matrix":
            once = steps if name.startswith("row") else 1
            counts[name] = {"vector": width, "line": form.batch, "scalar": once}[parts[name].lies]
    kinds = {name: each.dtype.numpy for name, each in parts.items()}
    arrays = {}
    for name, count in counts.items():
        kind = np.dtype(kinds.get(name, np.float32))
        arrays[name] = bytes_at[name][: count * kind.itemsize].view(kind)
    arrays["counters"] = arrays["counters"].view(np.uint32)
    memory = Memory(arrays)
    run_blocks(kernel, layout.blocks, memory, {}, {"steps": steps})
    for name, array in arrays.items():
        array[:] = memory.result(name)
