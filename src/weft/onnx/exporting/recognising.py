"""High operators: what Weft makes of many primitives and ONNX has whole.

Each candidate looks at a node, and says which programs it may be the end of and how that program is
written. The largest that matches is taken.

>>> import weft as wf
>>> from weft.onnx.exporting.cleaning import clean_graph
>>> from weft.onnx.exporting.recognising import recognise
>>> from weft.onnx.exporting.writing import Model
>>> graph = clean_graph(wf.ir.trace(wf.softmax, wf.spec("float32", (2, 3))))
>>> [node.primitive.name for node in recognise(Model().root, graph)]
['divide']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.onnx.exporting.blocks import RECOGNISERS, Match
from weft.onnx.exporting.matching import HOLES, Found, Pattern, View
from weft.onnx.exporting.writing import Writer

__all__ = ["Choice", "candidate", "recognise"]

FLOATS = (wf.float16, wf.float32, wf.float64)
SINGLE = (wf.float16, wf.float32)
"""The dtypes of operators that runtimes do not have in float64."""
REMEMBERED = 2048


class Choice(NamedTuple):
    """A program that a node may be the end of, its operands' types, and how it is written."""

    name: str
    program: Callable[..., Any]
    types: Sequence[wf.TensorType]
    write: Callable[[Writer, Any, Sequence[str], Sequence[float]], Any]
    opset: int = 18
    zeros: slice = slice(0, 0)
    """The operands that are left out, by an empty name, where they are zeros."""


Candidate = Callable[[View, Any], Iterator[Choice]]
CANDIDATES: list[Candidate] = []
_patterns: dict[str, Pattern | None] = {}


def candidate(function: Candidate) -> Candidate:
    """Register a candidate."""
    CANDIDATES.append(function)
    return function


def recognise(writer: Writer, graph: Any) -> dict[Any, Match]:
    """The nodes of a graph that are the ends of high operators."""
    view = View(graph)
    matches: dict[Any, Match] = {}
    for node in graph.nodes:
        match = _largest_match(writer, view, node)
        if match is not None:
            matches[node] = match
    return matches


def _largest_match(writer: Writer, view: View, node: Any) -> Match | None:
    if not node.results[0].type.dtype.is_floating:
        return None
    best: tuple[int, Match, Choice] | None = None
    for propose in CANDIDATES:
        for choice in propose(view, node):
            pattern = _pattern(choice)
            if pattern is None or choice.opset > writer.model.allowed:
                continue
            if best is not None and len(pattern.graph.nodes) <= best[0]:
                continue
            found = view.match(pattern, node)
            if found is not None:
                match = Match(_needed_atoms(view, choice, found), _rule_of_choice(choice, found))
                best = len(pattern.graph.nodes), match, choice
    return None if best is None else best[1]


def _needed_atoms(view: View, choice: Choice, found: Found) -> tuple[Any, ...]:
    """What the operator reads; None for operands that are its defaults."""
    atoms = list(found.atoms)
    known = atoms[choice.zeros]
    if all(map(view.is_zero, known)):
        atoms[choice.zeros] = [None] * len(known)
    return tuple(atoms)


def _rule_of_choice(choice: Choice, found: Found) -> Callable[..., Any]:
    def write(writer: Writer, node: Any, values: Sequence[str]) -> Any:
        writer.model.allows(choice.opset)
        return choice.write(writer, node, values, found.numbers)

    return write


def _pattern(choice: Choice) -> Pattern | None:
    """The pattern of a choice, remembered by its name and types."""
    key = f"{choice.name}: {', '.join(map(str, choice.types))}"
    if key not in _patterns:
        if len(_patterns) >= REMEMBERED:
            _patterns.clear()
        try:
            _patterns[key] = Pattern.from_program(choice.program, choice.types)
        except wf.WeftError:  # a program that does not take these types
            _patterns[key] = None
    return _patterns[key]


RECOGNISERS.append(recognise)


# --- activations ---------------------------------------------------------------------------------


def _activation(
    operator: str,
    root: str,
    program: Callable[..., Any],
    opset: int = 18,
    attributes: Callable[[Sequence[float]], dict[str, Any]] = lambda numbers: {},
) -> None:
    """An operator of one operand whose type is that of its result."""

    def write(writer: Writer, node: Any, values: Sequence[str], numbers: Sequence[float]) -> str:
        dtype = node.results[0].type.dtype
        wide = _dtype_of_powers(operator, dtype)
        inputs = [writer.cast(value, dtype, wide) for value in values]
        return writer.cast(writer.op(operator, *inputs, **attributes(numbers)), wide, dtype)

    def propose(view: View, node: Any) -> Iterator[Choice]:
        kind = node.results[0].type
        if node.primitive.name == root and kind.dtype in SINGLE:
            yield Choice(f"{operator} {attributes((0.5, 0.5))}", program, [kind], write, opset)

    candidate(propose)


def _dtype_of_powers(operator: str, dtype: wf.DType) -> wf.DType:
    """The dtype that an operator is written in: exp(11.1) is infinite in float16 already.

    A runtime without a kernel for float16 takes the definition of these, which has such powers.
    """
    has_powers = operator in ("Softplus", "Mish", "ReduceLogSumExp")
    return wf.float32 if has_powers and dtype is wf.float16 else dtype


def _first_is_alpha(numbers: Sequence[float]) -> dict[str, Any]:
    return {"alpha": numbers[0]}


_activation("Gelu", "multiply", wf.gelu, 20)
_activation(
    "Gelu", "multiply", lambda x: wf.gelu(x, approximate="tanh"), 20,
    lambda numbers: {"approximate": "tanh"},
)  # fmt: skip
_activation("Elu", "where", lambda x: F.elu(x, HOLES[0]), attributes=_first_is_alpha)
_activation("Elu", "where", lambda x: F.elu(x, 1.0), attributes=lambda numbers: {"alpha": 1.0})
_activation("Celu", "where", lambda x: F.celu(x, HOLES[0]), attributes=_first_is_alpha)
_activation("Selu", "multiply", F.selu)
_activation("LeakyRelu", "where", lambda x: F.leaky_relu(x, HOLES[0]), attributes=_first_is_alpha)
_activation(
    "HardSigmoid", "where", F.hardsigmoid, attributes=lambda numbers: {"alpha": 1 / 6, "beta": 0.5}
)
_activation("HardSwish", "where", F.hardswish)
_activation("Softplus", "logaddexp", wf.softplus)
_activation("Mish", "multiply", F.mish)
_activation("Softsign", "divide", F.softsign)


@candidate
def _relu6(view: View, node: Any) -> Iterator[Choice]:
    kind = node.results[0].type

    def write(writer: Writer, node: Any, values: Sequence[str], numbers: Sequence[float]) -> str:
        bounds = writer.number(0.0, kind.dtype), writer.number(6.0, kind.dtype)
        return writer.op("Clip", *values, *bounds)

    if node.primitive.name == "where" and kind.dtype in FLOATS:
        yield Choice("relu6", F.relu6, [kind], write)


@candidate
def _softmax(view: View, node: Any) -> Iterator[Choice]:
    kind = node.results[0].type
    name = {"divide": "Softmax", "subtract": "LogSoftmax"}.get(node.primitive.name)
    if name is None or kind.dtype not in FLOATS:
        return
    function = wf.softmax if name == "Softmax" else wf.log_softmax
    for axis in range(kind.ndim):
        yield Choice(
            f"{name} {axis}",
            lambda x, axis=axis: function(x, axis=axis),
            [kind],
            _along_axis(name, axis),
        )


def _along_axis(operator: str, axis: int) -> Callable[..., str]:
    return lambda writer, node, values, numbers: writer.op(operator, *values, axis=axis)


# --- reductions and pooling ----------------------------------------------------------------------


def _behind_shape(view: View, atom: Any, name: str) -> Any:
    """The node of a primitive behind an atom, perhaps with a reshape between."""
    reshaped = view.maker(atom, "reshape")
    return view.maker(reshaped.operands[0] if reshaped else atom, name)


def _write_reduction(operator: str, axes: Sequence[int], keep: bool) -> Callable[..., str]:
    def write(writer: Writer, node: Any, values: Sequence[str], numbers: Sequence[float]) -> str:
        dtype = node.results[0].type.dtype
        wide = _dtype_of_powers(operator, dtype)
        x = writer.cast(values[0], dtype, wide)
        reduced = writer.op(operator, x, writer.integers(*axes), keepdims=int(keep))
        return writer.cast(reduced, wide, dtype)

    return write


@candidate
def _mean(view: View, node: Any) -> Iterator[Choice]:
    if node.primitive.name != "divide":
        return
    total = _behind_shape(view, node.operands[0], "reduce_sum")
    if total is None or total.operands[0].type.dtype not in FLOATS:
        return
    kind, axes = total.operands[0].type, total.params["axes"]
    if not axes or any(kind.shape[axis] == 0 for axis in axes):
        return  # no axes are all of them in ONNX, and runtimes differ on the mean of nothing
    for keep in (False, True):
        yield Choice(
            f"mean {axes} {keep}",
            lambda x, keep=keep: wf.mean(x, axis=axes, keepdims=keep),
            [kind],
            _write_reduction("ReduceMean", axes, keep),
        )


@candidate
def _logsumexp(view: View, node: Any) -> Iterator[Choice]:
    inner = view.maker(node.operands[0], "add") if node.primitive.name == "reshape" else node
    if inner is None or inner.primitive.name != "add":
        return
    chosen = view.maker(inner.operands[0], "where")
    logarithm = view.maker(chosen.operands[2], "log") if chosen else None
    safe = view.maker(logarithm.operands[0], "where") if logarithm else None
    total = _behind_shape(view, safe.operands[2], "reduce_sum") if safe else None
    if total is None or total.operands[0].type.dtype not in FLOATS:
        return
    kind, axes = total.operands[0].type, total.params["axes"]
    for keep in (False, True) if axes else ():
        yield Choice(
            f"logsumexp {axes} {keep}",
            lambda x, keep=keep: wf.logsumexp(x, axis=axes, keepdims=keep),
            [kind],
            _write_reduction("ReduceLogSumExp", axes, keep),
        )


# --- normalisation -------------------------------------------------------------------------------


def _normal_kind(node: Any) -> Any:
    """The type of what may be the end of a normalisation, else None."""
    kind = node.results[0].type
    is_last = node.primitive.name in ("add", "multiply") or node.primitive.name == "convert"
    return kind if is_last and kind.dtype in FLOATS and kind.ndim else None


@candidate
def _layer_norm(view: View, node: Any) -> Iterator[Choice]:
    kind = _normal_kind(node)
    for count in range(1, 0 if kind is None else min(kind.ndim, 3) + 1):
        shape = kind.shape[kind.ndim - count :]
        if not all(isinstance(dim, int) and dim for dim in shape):
            continue
        weight = wf.TensorType(kind.dtype, shape)
        for given in range(3):
            yield Choice(
                f"layer_norm {count} {given}",
                lambda x, w=None, b=None, shape=shape: F.layer_norm(x, shape, w, b, HOLES[0]),
                [kind, *[weight] * given],
                _layer_norm_writing(kind, shape),
            )


def _layer_norm_writing(kind: wf.TensorType, shape: Sequence[Any]) -> Callable[..., str]:
    def write(writer: Writer, node: Any, values: Sequence[str], numbers: Sequence[float]) -> str:
        x, *weights = values
        if not weights:
            weights = [writer.model.constant(np.ones(shape, kind.dtype.numpy))]
        axis = kind.ndim - len(shape)
        return writer.op("LayerNormalization", x, *weights, axis=axis, epsilon=numbers[0])

    return write


@candidate
def _rms_norm(view: View, node: Any) -> Iterator[Choice]:
    kind = _normal_kind(node)
    if kind is None or not isinstance(kind.shape[-1], int) or kind.dtype is wf.float64:
        return
    shape = kind.shape[-1:]

    def write(writer: Writer, node: Any, values: Sequence[str], numbers: Sequence[float]) -> str:
        return writer.op("RMSNormalization", *values, axis=kind.ndim - 1, epsilon=numbers[0])

    weight = wf.TensorType(kind.dtype, shape)
    yield Choice(
        "rms_norm", lambda x, w: F.rms_norm(x, shape, w, eps=HOLES[0]), [kind, weight], write, 23
    )


@candidate
def _channel_norms(view: View, node: Any) -> Iterator[Choice]:
    """Batch normalisation with running statistics, and instance and group normalisation."""
    kind = _normal_kind(node)
    if kind is None or kind.ndim < 2 or not isinstance(kind.shape[1], int):
        return
    channel = wf.TensorType(kind.dtype, kind.shape[1:2])

    def write_batch(writer: Writer, node: Any, values: Any, numbers: Sequence[float]) -> str:
        x, mean, variance, *weights = values
        fills = [np.ones, np.zeros]
        missing = fills[len(weights) :]
        weights += [writer.model.constant(f(channel.shape, kind.dtype.numpy)) for f in missing]
        inputs = [x, *weights, mean, variance]
        return writer.op("BatchNormalization", *inputs, epsilon=numbers[0])

    for given in (0, 2):
        yield Choice(
            f"batch_norm {given}",
            lambda x, mean, var, w=None, b=None: F.batch_norm(x, mean, var, w, b, eps=HOLES[0]),
            [kind, *[channel] * (2 + given)],
            write_batch,
        )
    yield Choice(
        "instance_norm",
        lambda x, w, b: F.instance_norm(x, None, None, w, b, eps=HOLES[0]),
        [kind, channel, channel],
        lambda writer, node, values, numbers: writer.op(
            "InstanceNormalization", *values, epsilon=numbers[0]
        ),
    )


@candidate
def _group_norm(view: View, node: Any) -> Iterator[Choice]:
    kind = _normal_kind(node)
    if kind is None or node.primitive.name != "add" or kind.ndim < 3 or kind.dtype is wf.float64:
        return
    scaled = view.maker(node.operands[0], "multiply")
    joined = view.maker(scaled.operands[0], "reshape") if scaled else None
    shape: Sequence[Any] = joined.operands[0].type.shape if joined else ()
    groups = shape[1] if len(shape) > 2 else None
    if not isinstance(groups, int):
        return
    channel = wf.TensorType(kind.dtype, kind.shape[1:2])
    yield Choice(
        f"group_norm {groups}",
        lambda x, w, b: F.group_norm(x, groups, w, b, eps=HOLES[0]),
        [kind, channel, channel],
        lambda writer, node, values, numbers: writer.op(
            "GroupNormalization", *values, epsilon=numbers[0], num_groups=groups
        ),
        21,
    )
