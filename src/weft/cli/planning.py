"""`weft plan`: on which mesh, and how placed, a training step takes least time.

>>> from weft.cli.planning import parsed_link
>>> parsed_link("400Gb/s"), parsed_link("25 GB/s")
(50000000000.0, 25000000000.0)
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import weft as wf
from weft.cli.looking import example_inputs, step_and_arguments, trained_or_network
from weft.cli.mistakes import Mistake
from weft.cli.printing import say
from weft.distributed import measuring

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
    costs = _costs_of(flags)
    found = wf.distributed.plan(
        step.__wrapped__, *arguments, devices=flags.devices, memory=flags.memory, costs=costs
    )
    pipelines = _pipelines_of(arguments[0], wf.tree.leaves(inputs), flags, costs)
    found = found if pipelines is None else found.beside(pipelines)
    say(str(found))
    say(f"chosen: {found.best.mesh}, {found.best.state}")
    return 0


def _costs_of(flags: Namespace) -> wf.distributed.Costs:
    """The costs that are given, read from a file, or measured now."""
    if flags.costs is not None:
        return wf.distributed.read_costs(flags.costs)
    if not flags.measure:
        return wf.distributed.Costs(
            bandwidth=parsed_link(flags.link), latency=flags.latency, flops=flags.flops
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(flags.save_costs or Path(folder) / "costs.json")
        _measure_in_processes(flags.devices, path)
        costs = wf.distributed.read_costs(path)
    say(f"measured: {costs.flops / 1e9:.2f} GFLOP/s, {costs.memory / 1e9:.2f} GB/s of memory, "
        f"links {costs.bandwidth / 1e9:.3f} GB/s after {costs.latency * 1e6:.1f} us, "
        f"{costs.overhead * 1e6:.1f} us to start a program")  # fmt: skip
    return costs


def _measure_in_processes(count: int, path: Path) -> None:
    """Measure in as many processes as there are devices, all of them on this machine."""
    script = measuring.__file__
    words = [sys.executable, "-m", "weft.cli", "launch", "-n", str(count), script, str(path)]
    if count == 1:
        words = [sys.executable, script, str(path)]
    job = subprocess.run(words, capture_output=True, text=True, check=False)
    if job.returncode or not path.exists():
        raise Mistake(f"could not measure in {count} processes: {job.stderr.strip()}")


def _pipelines_of(
    network: Any, inputs: Sequence[wf.Tensor], flags: Namespace, costs: wf.distributed.Costs
) -> Any:
    """The plan of pipelines for a network that is a row of modules; None for any other."""
    if flags.devices < 2 or not isinstance(network, wf.nn.Sequential) or len(network) < 2:
        return None
    return wf.distributed.plan_pipeline(
        network, inputs[0], devices=flags.devices, memory=flags.memory, costs=costs
    )
