"""`weft export`: a model as a library for a machine, without Python."""

from __future__ import annotations

from argparse import Namespace

import weft as wf
from weft.cli.commands import say
from weft.cli.looking import example_inputs, trained_or_network
from weft.cli.mistakes import Mistake

__all__ = ["export"]


def export(flags: Namespace) -> int:
    """`weft export`."""
    parts = trained_or_network(flags)
    inputs = example_inputs(parts, flags)
    if inputs is None:
        raise Mistake(f"the sizes of the inputs of {flags.program} are unknown: give --input")
    model = parts["model"]
    if isinstance(model, wf.nn.Module):
        model.eval()
    shipped = wf.export(
        model,
        list(inputs),
        flags.output,
        target=flags.target,
        name=flags.name,
        form=flags.form,
        weights=flags.weights,
        memory=flags.memory,
    )
    say(str(shipped))
    if flags.check:
        say(str(shipped.check()))
    return 0
