"""`weft plan`: on which mesh, and how placed, a training step takes least time.

>>> from weft.cli.planning import parsed_link
>>> parsed_link("400Gb/s"), parsed_link("25 GB/s")
(50000000000.0, 25000000000.0)
"""

from __future__ import annotations

import re
from argparse import Namespace

import weft as wf
from weft.cli.looking import example_inputs, step_and_arguments, trained_or_network
from weft.cli.mistakes import Mistake
from weft.cli.printing import say

__all__ = ["parsed_link", "plan"]

UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def parsed_link(text: str) -> float:
    """The bytes per second of a link, from bits (b) or bytes (B) per second."""
    found = re.fullmatch(r"([\d.]+)\s*([KMGT]?)(b|B)/s", text)
    if found is None:
        raise Mistake(f"{text!r} is no speed of a link: write 400Gb/s, or 50GB/s")
    number, unit, kind = found.groups()
    return float(number) * UNITS[unit] / (8 if kind == "b" else 1)


def plan(flags: Namespace) -> int:
    """`weft plan`."""
    parts = trained_or_network(flags)
    inputs = example_inputs(parts, flags)
    if inputs is None:
        raise Mistake(f"the sizes of the inputs of {flags.program} are unknown: give --input")
    flags.train = True
    step, arguments = step_and_arguments(parts, inputs, flags)
    costs = wf.distributed.Costs(
        bandwidth=parsed_link(flags.link), latency=flags.latency, flops=flags.flops
    )
    found = wf.distributed.plan(
        step.__wrapped__, *arguments, devices=flags.devices, memory=flags.memory, costs=costs
    )
    say(str(found))
    say(f"chosen: {found.best.mesh}, state {found.best.state}")
    return 0
