"""`weft export` and `weft onnx`: a model as a library without Python, or as an ONNX file."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import weft as wf
from weft.cli.looking import (
    example_inputs,
    parsed_type,
    trained_or_network,
    types_for_any_batch,
)
from weft.cli.mistakes import Mistake
from weft.cli.printing import say

__all__ = ["export", "write_onnx"]


def export(flags: Namespace) -> int:
    """`weft export`."""
    parts = trained_or_network(flags)
    types = [parsed_type(each) for each in flags.input or ()] if flags.most else None
    inputs: Sequence[Any] | None = types or example_inputs(parts, flags)
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
        threads=flags.threads,
        sizes=dict(map(_largest_size, flags.most or ())),
        strip_names=flags.strip_names,
    )
    say(str(shipped))
    if flags.check:
        say(str(shipped.check()))
    return 0


def _largest_size(text: str) -> tuple[str, int]:
    """A size and the largest it may be: batch=64."""
    name, _, most = text.partition("=")
    if not most.isdecimal():
        raise Mistake(f"--most {text} says no largest size: write --most batch=64")
    return name, int(most)


def write_onnx(flags: Namespace) -> int:
    """`weft onnx`."""
    parts = trained_or_network(flags)
    specs = [parsed_type(each) for each in flags.input or ()] or types_for_any_batch(parts, flags)
    report = wf.onnx.export(
        parts["model"],
        tuple(specs),
        flags.output,
        opset=flags.opset,
        verify=not flags.no_verify,
    )
    say(str(report))
    return 0
