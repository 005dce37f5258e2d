"""Loops of a plan that are one launch: which they are, and what binds them to memory."""

from __future__ import annotations

from weft.compiler.plan.control_flow import Loop
from weft.compiler.plan.launch import Launch, Value
from weft.compiler.targets.cuda.binding import Binding, Run
from weft.compiler.targets.cuda.capabilities import has_warp_products
from weft.compiler.targets.cuda.parameters import counters_cell, written_kernel_run
from weft.compiler.targets.cuda.recurrent.description import StepForm, describe_step
from weft.compiler.targets.cuda.recurrent.kernel import (
    block_count,
    counter_count,
    exchange_bytes,
    recurrent_kernel,
    why_no_kernel,
)
from weft.core.errors import Unsupported

__all__ = ["recurrent_run"]

IS_CHOSEN = False
"""Whether loops take the kernel: no card has run it yet."""


def recurrent_run(binding: Binding, launch: Launch, loop: Loop) -> Run | None:
    """What runs all steps of a loop in one kernel; None where it is no recurrent layer."""
    form, steps = _form(binding, loop), loop.limit(binding.sizes)
    if form is None or steps < 1:
        return None
    consts, carry, node = loop.num_consts, loop.num_carry, loop.node
    values: dict[str, Value] = {"weights": node.operands[form.weights]}
    for name, atoms in (
        ("constant", node.operands[:consts]), ("carry", node.operands[consts : consts + carry]),
        ("row", node.operands[consts + carry :]), ("final", node.results[:carry]),
        ("made", node.results[carry:]),
    ):  # fmt: skip
        values |= {f"{name}{number}": atom for number, atom in enumerate(atoms)}
    cells = {
        "exchange": binding.workspace_cell(0, exchange_bytes(form)),
        # Blocks wait for each other, so all must run at once: no other such launch may have some
        # of the card.
        "counters": counters_cell(binding, counter_count(form), is_alone=True),
    }
    kernel = recurrent_kernel(form, reverse=loop.reverse)
    given = (values, dict[str, tuple[int, ...]](), {"steps": steps})
    return written_kernel_run(binding, launch, kernel, block_count(form), given, cells=cells)


def _form(binding: Binding, loop: Loop) -> StepForm | None:
    """What a step of a loop is, if there is a kernel for it."""
    device = binding.stream.device
    if not IS_CHOSEN or len(loop.plans) != 1 or not has_warp_products(device.ordinal):
        return None
    try:
        form = describe_step(loop.plans[0].graph, loop.num_consts, loop.num_carry)
    except Unsupported:
        return None
    return None if why_no_kernel(form, device.multiprocessors) else form
