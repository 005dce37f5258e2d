"""`weft show`, `weft check` and `weft onnx`: what can be done with a network besides training it.

>>> from weft.cli.looking import parsed_type
>>> parsed_type("1x3x224x224"), parsed_type("int64:batch,16"), parsed_type("float32:")
(f32[1, 3, 224, 224], i64[batch, 16], f32[])
"""

from __future__ import annotations

import ast
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from inspect import Parameter, isclass, signature
from pathlib import Path
from typing import Any

import weft as wf
from weft.cli.commands import load_trained_weights
from weft.cli.configuration import read_configuration
from weft.cli.loading import check_settings, find, load
from weft.cli.mistakes import Mistake, unknown_key
from weft.cli.printing import say
from weft.tools.subject import Place
from weft.train.batches import as_loader, batches_of, split

__all__ = [
    "check", "example_inputs", "parsed_type", "show", "step_and_arguments", "trained_or_network",
    "types_for_any_batch",
]  # fmt: skip

RUNS = 5
"""How often a program is run to time its kernels."""


def parsed_type(text: str) -> wf.TensorType:
    """The type that `--input` gives: sizes joined by x or commas, perhaps behind a dtype."""
    dtype, _, sizes = text.rpartition(":")
    numbers = re.fullmatch(r"\d+(x\d+)+", sizes)
    parts = [part for part in sizes.split("x" if numbers else ",") if part]
    for part in parts:
        if re.fullmatch(r"[A-Za-z_]\w*?(x\d+)+|(\d+x)+[A-Za-wyz_]\w*", part):
            commas = re.sub(r"(?<=\d)x|x(?=\d)", ",", part)
            raise Mistake(f"{text!r} is no type: sizes with names need commas: {commas}")
        if not re.fullmatch(r"\d+|[A-Za-z_]\w*", part):
            raise Mistake(f"{text!r} is no type: write 1x3x224x224, or float32:batch,784")
    try:
        return wf.spec(dtype or "float32", tuple(int(p) if p.isdigit() else p for p in parts))
    except wf.WeftError as error:
        raise Mistake(f"{text!r} is no type: {error.problem}; {error.fix}") from None


def show(flags: Namespace) -> int:
    """`weft show`."""
    parts = trained_or_network(flags)
    inputs = example_inputs(parts, flags)
    _summarize(parts, inputs)
    if not (flags.graph or flags.tensorboard):
        return 0
    if inputs is None:
        raise Mistake(f"the sizes of the inputs of {flags.program} are unknown: give --input")
    step, arguments = step_and_arguments(parts, inputs, flags)
    with nullcontext() if flags.train else wf.no_grad():
        explained = step.explain(*arguments)
        is_timed = flags.graph and not flags.no_measure
        profile = _profile_step(step, arguments) if is_timed else None
    if flags.tensorboard:
        say(f"events: {wf.tools.write_graph_events(explained, flags.tensorboard)}")
    if flags.graph:
        model = parts["model"] if isinstance(parts["model"], wf.nn.Module) else None
        say(f"graph: {wf.tools.show(explained, flags.graph, profile=profile, model=model)}")
    return 0


def check(flags: Namespace) -> int:
    """`weft check`: 1 where there are errors."""
    parts = _network(flags.program, flags)
    specs = [parsed_type(each) for each in flags.input or ()] or types_for_any_batch(parts, flags)
    targets = [parsed_type(each) for each in flags.target or ()]
    report = wf.tools.check(
        parts["model"],
        *specs,
        loss=_loss(parts, flags) if flags.loss or targets else None,
        targets=targets,
        name=flags.program,
        at=_definition(flags.program),
    )
    say(report.json() if flags.json else str(report))
    return 1 if report.errors or (flags.strict and report.findings) else 0


# --- what is looked at -------------------------------------------------------------------------


def trained_or_network(flags: Namespace) -> dict[str, Any]:
    """The parts of a program, with the weights of a checkpoint if a folder is named."""
    parts = _network(flags.program, flags)
    if flags.folder and not isinstance(parts["model"], wf.nn.Module):
        raise Mistake(f"{flags.program} is a function: --folder has no weights to give it")
    load_trained_weights(parts["model"], flags)
    return parts


def _network(program: str, flags: Namespace) -> dict[str, Any]:
    """The parts of a program, or the one network or function that is named, or an ONNX file."""
    if Path(program).suffix == ".onnx":
        if not Path(program).is_file():
            raise Mistake(f"no such file: {program}")
        return {"model": wf.onnx.load(program)}
    settings = read_configuration(Namespace(program=program, set=flags.set)).set
    loaded = find(program)
    if isinstance(loaded, wf.nn.Module) or (_takes_tensors(loaded) and flags.input):
        if settings:
            raise Mistake(f"{program} is made already: --set has nothing to set")
        return {"model": loaded}
    if isclass(loaded) and issubclass(loaded, wf.nn.Module):
        return {"model": loaded(**check_settings(loaded, settings))}
    parts = (
        loaded(**check_settings(loaded, settings)) if callable(loaded) else load(program, settings)
    )
    parts = {"model": parts} if isinstance(parts, wf.nn.Module) else dict(parts)
    if "model" not in parts:
        raise Mistake(f"{program} does not define model: name a module, such as {program}:net")
    return parts


def _takes_tensors(found: Any) -> bool:
    """Whether a function needs arguments, so that it builds nothing by itself."""
    if not callable(found) or isclass(found):
        return False
    needed = [p for p in signature(found).parameters.values() if p.default is Parameter.empty]
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in needed)


def _definition(program: str) -> Place | None:
    """The line of the file that defines the named object, found without running the file."""
    place, _, name = program.partition(":")
    path = Path(place)
    if path.suffix != ".py" or not name:
        return None
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        names = [getattr(each, "id", getattr(each, "name", "")) for each in targets]
        if name in names:
            return Place(str(path.resolve()), node.lineno)
    return None


def _loss(parts: dict[str, Any], flags: Namespace) -> Callable[..., Any]:
    """The loss: named, of the program, or the mean of squares, so that there is something."""
    if not flags.loss:
        return parts.get("loss") or _mean_square
    own = sys.modules.get(Path(flags.program.partition(":")[0]).stem)
    function = getattr(own, flags.loss, None) or getattr(wf.nn.functional, flags.loss, None)
    if not callable(function):
        losses = [name for name in dir(wf.nn.functional) if not name.startswith("_")]
        raise unknown_key("loss", flags.loss, losses)
    chosen: Callable[..., Any] = function
    return chosen


def _mean_square(outputs: Any, *targets: Any) -> wf.Tensor:
    leaves = [x for x in wf.tree.leaves(outputs) if x.dtype.is_inexact]
    return sum((leaf.square().mean() for leaf in leaves), wf.tensor(0.0))


# --- what it is given --------------------------------------------------------------------------


def example_inputs(parts: dict[str, Any], flags: Namespace) -> tuple[Any, ...] | None:
    """Tensors of the types that were given, else the inputs of the first batch."""
    if flags.input:
        return tuple(_input_tensor(each) for each in flags.input)
    batch = _batch(parts, flags)
    return None if batch is None else batch[0]


def _batch(parts: dict[str, Any], flags: Namespace) -> Any:
    """The inputs and the targets of the first batch, if there are data."""
    data = parts.get("train_data")
    if data is None:
        return None
    size = getattr(flags, "batch_size", 2)
    loader = as_loader("show", data, size, shuffle=False, seed=None)
    return split(next(iter(batches_of("show", loader))))


def types_for_any_batch(parts: dict[str, Any], flags: Namespace) -> list[wf.TensorType]:
    """The types of the first batch, for any number of examples."""
    batch = _batch(parts, flags)
    if batch is None:
        raise Mistake(f"the types of the inputs of {flags.program} are unknown: give --input")
    types = [wf.asarray(each).type for each in batch[0]]
    return [kind.with_shape((wf.symbol("batch"), *kind.shape[1:])) for kind in types]


def _input_tensor(text: str) -> wf.Tensor:
    kind = parsed_type(text)
    symbols = [str(size) for size in kind.shape if not isinstance(size, int)]
    if symbols:
        raise Mistake(f"--input {text}: give a number for {', '.join(symbols)}, to compile for")
    if kind.dtype.is_inexact:
        return wf.random.normal(kind.shape, key=wf.random.key(0)).astype(kind.dtype)
    return wf.zeros(kind.shape, dtype=kind.dtype)


def _summarize(parts: dict[str, Any], inputs: tuple[Any, ...] | None) -> None:
    model = parts["model"]
    if not isinstance(model, wf.nn.Module):
        return
    if inputs is not None:
        say(str(model.summary(*inputs)))
    else:
        say(f"{model}\n{sum(int(p.size) for p in model.parameters()):,} parameters")


# --- what is compiled --------------------------------------------------------------------------


def step_and_arguments(
    parts: dict[str, Any], inputs: Sequence[Any], flags: Namespace
) -> tuple[Any, list[Any]]:
    """A compiled function, and the arguments to show it with."""
    model = parts["model"]
    if not isinstance(model, wf.nn.Module):
        return wf.jit(model), [*inputs]
    if not flags.train:
        model.eval()
        return wf.jit(lambda net, *inputs: net(*inputs)), [model, *inputs]
    optimizer = parts.get("optimizer") or wf.optim.SGD(model.parameters(), lr=0.01)
    loss = _loss(parts, flags)
    targets = _targets(parts, flags)

    def step(net: Any, optimizer: Any, inputs: Any, targets: Any) -> wf.Tensor:
        outputs = net(*inputs)
        with wf.ir.entered(getattr(loss, "__name__", "loss").strip("_<>")):
            loss_value: wf.Tensor = loss(outputs, *targets)
        optimizer.zero_grad()
        loss_value.backward()
        optimizer.step()
        return loss_value

    return wf.jit(step), [model.train(), optimizer, tuple(inputs), targets]


def _targets(parts: dict[str, Any], flags: Namespace) -> tuple[Any, ...]:
    if flags.target:
        return tuple(_input_tensor(each) for each in flags.target)
    batch = None if flags.input else _batch(parts, flags)
    return () if batch is None or batch[1] is None else (batch[1],)


def _profile_step(step: Any, arguments: Sequence[Any]) -> Any:
    step(*arguments)
    with wf.tools.profile() as profile:
        for _ in range(RUNS):
            step(*arguments)
    return profile
