"""Loops of a plan that are one launch: which they are, and what binds them to memory."""

from __future__ import annotations

from weft.compiler.plan.control_flow import Loop
from weft.compiler.plan.launch import Launch, Value
from weft.compiler.targets.cuda.binding import Binding, Run
from weft.compiler.targets.cuda.capabilities import has_warp_products
from weft.compiler.targets.cuda.parameters import counters_cell, written_kernel_run
from weft.compiler.targets.cuda.recurrent.description import describe_step
from weft.compiler.targets.cuda.recurrent.kernel import Layout, best_layout, recurrent_kernel
from weft.core.dtypes import int64
from weft.core.errors import Unsupported

__all__ = ["recurrent_run"]

TAKES_LENGTHS = False
"""Whether steps that read whole numbers (where rows end) take the kernel: no card has run these."""


def recurrent_run(binding: Binding, launch: Launch, loop: Loop) -> Run | None:
    """What runs all steps of a loop in one kernel; None where it is no recurrent layer."""
    layout, steps = _layout(binding, loop), loop.limit(binding.sizes)
    if layout is None or steps < 1:
        return None
    consts, carry, node = loop.num_consts, loop.num_carry, loop.node
    values: dict[str, Value] = {"weights": node.operands[layout.form.weights]}
    for name, atoms in (
        ("constant", node.operands[:consts]), ("carry", node.operands[consts : consts + carry]),
        ("row", node.operands[consts + carry :]), ("final", node.results[:carry]),
        ("made", node.results[carry:]),
    ):  # fmt: skip
        values |= {f"{name}{number}": atom for number, atom in enumerate(atoms)}
    cells = {
        "exchange": binding.workspace_cell(0, layout.exchange_bytes),
        # Blocks wait for each other, so all must run at once: no other such launch may have some
        # of the card.
        "counters": counters_cell(binding, layout.counters, is_alone=True),
    }
    kernel = recurrent_kernel(layout, reverse=loop.reverse)
    given = (values, dict[str, tuple[int, ...]](), {"steps": steps})
    return written_kernel_run(binding, launch, kernel, layout.blocks, given, cells=cells)


def _layout(binding: Binding, loop: Loop) -> Layout | None:
    """How the steps of a loop are cut into blocks, if there is a kernel for them."""
    device = binding.stream.device
    if len(loop.plans) != 1 or not has_warp_products(device.ordinal):
        return None
    try:
        form = describe_step(loop.plans[0].graph, loop.num_consts, loop.num_carry)
        layout = best_layout(form, device.multiprocessors)
    except Unsupported:
        return None
    reads_lengths = any(each.dtype is int64 for each in form.inputs)
    return None if reads_lengths and not TAKES_LENGTHS else layout
