"""`weft export` and `weft onnx`: a model as a library without Python, or as an ONNX file."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
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
from weft.exporting import TARGETS, check_target

__all__ = ["export", "write_onnx"]


def export(flags: Namespace) -> int:
    """`weft export`."""
    _check_words(flags)
    parts = trained_or_network(flags)
    inputs, sizes = _inputs_and_sizes(parts, flags)
    model = parts["model"]
    _check_count(flags.program, model, inputs)
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
        sizes=sizes,
        strip_names=flags.strip_names,
    )
    say(str(shipped))
    if flags.check:
        say(str(shipped.check()))
    return 0


def _check_words(flags: Namespace) -> None:
    """Refuse words that name nothing before a program is loaded, which may take long."""
    try:
        check_target(flags.target)
    except wf.ArgumentError as error:
        meant = f"{error.note} " if error.note else ""
        raise Mistake(f"--target: {error.problem}; {meant}there are {', '.join(TARGETS)}") from None
    if not re.fullmatch(r"[A-Za-z]\w*", flags.name):
        proposal = re.sub(r"\W", "_", flags.name).lstrip("_0123456789") or "model"
        raise Mistake(
            f"--name {flags.name}: functions in C cannot be called so; write --name {proposal}"
        )
    if flags.threads < 1:
        raise Mistake(f"--threads {flags.threads}: a program runs on 1 thread or more")
    if Path(flags.output).is_file():
        raise Mistake(f"-o {flags.output} is a file: name a folder, which is made if need be")


def _inputs_and_sizes(
    parts: dict[str, Any], flags: Namespace
) -> tuple[Sequence[Any], dict[str, int]]:
    """Examples or types of the inputs, and the largest of each size that is a name."""
    types = [parsed_type(each) for each in flags.input or ()]
    for text, kind in zip(flags.input or (), types, strict=True):
        if 0 in [size for size in kind.shape if isinstance(size, int)]:
            raise Mistake(f"--input {text} is empty: sizes are 1 or more")
    largest = dict(map(_largest_size, flags.most or ()))
    names = list(dict.fromkeys(str(s) for t in types for s in t.shape if not isinstance(s, int)))
    for name in names:
        if name not in largest:
            raise Mistake(f"how large may {name} be? Add --most {name}=64, or give a number for it")
    for name in largest:
        if name not in names:
            known = f"; there is {', '.join(names)}" if names else f": --input float32:{name},784"
            raise Mistake(f"--most {name}: no --input has a size of that name{known}")
    if names:
        return types, largest
    inputs = example_inputs(parts, flags)
    if inputs is None:
        raise Mistake(
            f"the sizes of the inputs of {flags.program} are unknown: "
            "give --input for each, such as --input 1x3x224x224"
        )
    return inputs, {}


def _check_count(program: str, model: Any, inputs: Sequence[Any]) -> None:
    """Refuse more or fewer inputs than the model takes."""
    called = model.forward if isinstance(model, wf.nn.Module) else model
    try:
        taken = signature(called)
    except (TypeError, ValueError):  # of a function without a signature nothing is known
        return
    try:
        taken.bind(*inputs)
    except TypeError as error:
        raise Mistake(
            f"{program} takes {taken}, and there {'is' if len(inputs) == 1 else 'are'} "
            f"{len(inputs)} --input: {error}"
        ) from None


def _largest_size(text: str) -> tuple[str, int]:
    """A size and the largest it may be: batch=64."""
    name, _, most = text.partition("=")
    if not most.isdecimal() or int(most) < 1:
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
