"""`prepare_inference`: a copy of a network with nothing in it that only training needs.

>>> import weft as wf
>>> net = wf.nn.Sequential(wf.nn.Conv2d(1, 4, 3), wf.nn.BatchNorm2d(4), wf.nn.Dropout(0.5))
>>> prepared = wf.prepare_inference(net, wf.spec("float32", ("batch", 1, 8, 8)))
>>> prepared.folded, prepared.removed, type(prepared.module[1]).__name__
({'1': '0'}, ['2'], 'Identity')
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.onnx.exporting.matching import HOLES, Pattern, View
from weft.onnx.exporting.programs import Program, trace_program
from weft.onnx.exporting.verifying import difference, example_inputs

__all__ = ["Prepared", "prepare_inference"]

OP = "prepare_inference"
TOLERANCE = 1e-3
"""How far folding may move a result, as a share of its largest number."""
NORMS = (wf.nn.BatchNorm1d, wf.nn.BatchNorm2d, wf.nn.BatchNorm3d)
DROPOUTS = (wf.nn.Dropout,)


@dataclass(frozen=True)
class Prepared:
    """A network for inference, and what was done to it; calling it runs it compiled."""

    module: wf.nn.Module
    folded: dict[str, str]
    """For each batch norm that is gone, the layer that took it in."""
    removed: list[str]
    """The dropouts that are gone."""
    parameters: tuple[int, int]
    """How many numbers it had, and has."""
    largest: float
    """How far the results are from those of the network before, as a share of the largest."""
    _compiled: Callable[..., Any] = field(repr=False, compare=False, default=lambda: None)

    def __call__(self, *args: Any) -> Any:
        """The results, without anything recorded for derivatives."""
        with wf.no_grad():
            return self._compiled(*args)

    def __str__(self) -> str:
        before, after = self.parameters
        lines = [f"{before:,} numbers before, {after:,} after; results within {self.largest:.1e}"]
        lines += [f"  {norm} is part of {layer}" for norm, layer in self.folded.items()]
        lines += [f"  {name} is gone" for name in self.removed]
        return "\n".join(lines)


def prepare_inference(net: wf.nn.Module, *examples: Any) -> Prepared:
    """A copy of a network for inference: batch norms folded, dropouts gone, weights fixed.

    examples: tensors like those that it will be called with, or types. A batch norm becomes part of
    the convolution or linear layer whose result it alone reads; the copy is compared with the
    network on examples, and compiled when it is called. The network itself is left as it is.
    """
    if not isinstance(net, wf.nn.Module):
        raise wf.ArgumentTypeError(
            OP,
            "this is no module",
            expected="a wf.nn.Module",
            got={"net": net},
            fix="give the network: wf.prepare_inference(net, x)",
        )
    prepared = copy.deepcopy(net)
    prepared.eval()
    program = trace_program(prepared, examples, {})
    folded = {}
    for fold in _folds(prepared, program):
        _apply_fold(prepared, fold)
        folded[fold.norm] = fold.layer
    removed = [name for name, each in prepared.named_modules() if isinstance(each, DROPOUTS)]
    for name in (*folded, *removed):
        replace_module(prepared, name, wf.nn.Identity())
    prepared.requires_grad_(False)
    largest = _compare(program, prepared)
    counts = tuple(sum(p.size for _, p in each.named_parameters()) for each in (net, prepared))
    return Prepared(
        prepared, folded, removed, (int(counts[0]), int(counts[1])), largest, wf.jit(prepared)
    )


# --- what can be folded --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fold:
    """A batch norm and the layer before it, by their names."""

    norm: str
    layer: str
    epsilon: float


def _folds(net: wf.nn.Module, program: Program) -> list[_Fold]:
    """The batch norms whose input is the result of a layer that nothing else reads."""
    graph, view = program.graph, View(program.graph)
    names = dict(zip(graph.inputs, program.state, strict=False))
    reads: dict[Any, int] = {}
    for atom in (*[x for node in graph.nodes for x in node.operands], *graph.outputs):
        reads[atom] = reads.get(atom, 0) + 1
    folds: dict[str, _Fold] = {}  # a batch norm with weights holds one without
    inputs: dict[str, set[Any]] = {}
    for node in graph.nodes:
        found = _batch_norm(view, node)
        if found is None:
            continue
        x, mean = found.atoms[:2]
        norm = names.get(mean, "").rpartition(".")[0]
        inputs.setdefault(norm, set()).add(x)
        layer = _layer_behind(view, x, names, reads)
        if layer is not None and _is_foldable(net, norm, layer):
            folds[norm] = _Fold(norm, layer, found.numbers[0])
    return [fold for norm, fold in folds.items() if len(inputs[norm]) == 1]


def _batch_norm(view: View, node: Any) -> Any:
    """What a node reads, if it is the end of a batch norm with running statistics."""
    kind = node.results[0].type
    if kind.ndim < 2 or not kind.dtype.is_floating or not isinstance(kind.shape[1], int):
        return None
    channel = wf.TensorType(kind.dtype, kind.shape[1:2])
    for given in (2, 0):
        pattern = Pattern.from_program(
            lambda x, mean, var, w=None, b=None: F.batch_norm(x, mean, var, w, b, eps=HOLES[0]),
            [kind, *[channel] * (2 + given)],
        )
        found = None
        if pattern is not None and pattern.root.primitive is node.primitive:
            found = view.match(pattern, node)
        if found is not None:
            return found
    return None


def _layer_behind(view: View, x: Any, names: dict[Any, str], reads: dict[Any, int]) -> str | None:
    """The layer that makes a value which batch norm alone reads (once, or twice less its mean)."""
    total = view.maker(x, "add")
    product = view.maker(total.operands[0] if total else x, "conv", "dot")
    if product is None or reads[x] > 1 or reads[product.results[0]] > 1:
        return None
    weight = product.operands[1]
    turned = view.maker(weight, "transpose")
    if reads[weight] > 1:
        return None
    weight = turned.operands[0] if turned else weight
    if names.get(weight, "").rpartition(".")[2] != "weight" or reads[weight] > 1:
        return None
    return names[weight].rpartition(".")[0]


def _is_foldable(net: wf.nn.Module, norm: str, layer: str) -> bool:
    if not norm or not layer or not isinstance(net.get_submodule(norm), NORMS):
        return False
    holder = net.get_submodule(layer)
    return isinstance(holder, (wf.nn.Conv1d, wf.nn.Conv2d, wf.nn.Conv3d, wf.nn.Linear)) and not (
        getattr(holder, "activation", None)
    )


def _apply_fold(net: wf.nn.Module, fold: _Fold) -> None:
    """Multiply the weights by what batch norm multiplies with, and shift the bias."""
    norm: Any = net.get_submodule(fold.norm)
    layer: Any = net.get_submodule(fold.layer)
    mean, variance = norm.running_mean.detach(), norm.running_var.detach()
    scale = wf.rsqrt(variance + fold.epsilon)
    shift = wf.zeros_like(mean)
    if norm.weight is not None:
        scale = scale * norm.weight.detach()
    if norm.bias is not None:
        shift = norm.bias.detach()
    before = wf.zeros_like(mean) if layer.bias is None else layer.bias.detach()
    column = wf.reshape(scale, (-1, *[1] * (layer.weight.ndim - 1)))
    layer.weight = wf.nn.Parameter(layer.weight.detach() * column)
    layer.bias = wf.nn.Parameter((before - mean) * scale + shift)


def replace_module(net: wf.nn.Module, name: str, module: wf.nn.Module) -> None:
    """Put another module under a dotted name."""
    owner, _, own = name.rpartition(".")
    holder: Any = net.get_submodule(owner) if owner else net
    if own.isdigit() and isinstance(holder, (wf.nn.Sequential, wf.nn.ModuleList)):
        holder[int(own)] = module
    else:
        setattr(holder, own, module)


def _compare(program: Program, prepared: wf.nn.Module) -> float:
    """How far a changed network is from the traced program, on examples."""
    largest = 0.0
    for feeds in example_inputs(program):
        arguments = [wf.asarray(x) for x in feeds.values()]
        with wf.no_grad():
            state = [tensor.detach() for tensor in program.state.values()]
            expected = wf.ir.interpret(program.graph, *state, *arguments)
            results = wf.tree.leaves(prepared(*program.arguments(arguments)))
        for ours, theirs in zip(expected, results, strict=True):
            largest = max(largest, _difference(theirs, ours))
    if not largest <= TOLERANCE:
        raise wf.CheckError(
            OP,
            "the prepared network gives other results",
            expected=f"results within {TOLERANCE:.0e} of the largest number",
            got={"difference": f"{largest:.2e}"},
            fix="prepare it in float64, or leave its layers as they are: net.eval()",
        )
    return largest


def _difference(theirs: wf.Tensor, ours: wf.Tensor) -> float:
    arrays: Sequence[np.ndarray[Any, Any]] = [x.detach().numpy() for x in (theirs, ours)]
    return difference(*arrays)
