"""Recurrent layers as the operators RNN, GRU and LSTM.

The pattern is `recurrent_layer` itself: products with the input, and a scan whose body is a step of
the cell. ONNX keeps the gates in another order, so the rows of the weights are moved.

>>> from weft.onnx.exporting.recurrence import GATE_ORDER
>>> GATE_ORDER["lstm"]
(0, 3, 1, 2)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.onnx.exporting.matching import View
from weft.onnx.exporting.recognising import Choice, candidate
from weft.onnx.exporting.writing import Writer

OPERATORS = {"lstm": "LSTM", "gru": "GRU", "tanh": "RNN", "relu": "RNN"}
GATE_ORDER: dict[str, tuple[int, ...]] = {
    "lstm": (0, 3, 1, 2),  # input, forget, cell, output -> input, output, forget, cell
    "gru": (1, 0, 2),  # reset, update, new -> update, reset, new
}


@candidate
def _recurrent_layer(view: View, node: Any) -> Iterator[Choice]:
    if node.primitive.name != "scan" or len(node.operands) < 3:
        return
    gates, x = node.operands[-1], _input_of_gates(view, node.operands[-1])
    held = node.params["num_consts"]
    state = node.operands[held : held + node.params["num_carry"]]
    if x is None or gates.type.ndim != 3 or not all(part.type.ndim == 2 for part in state):
        return
    hidden, rows = state[0].type.shape[-1], gates.type.shape[-1]
    if not isinstance(hidden, int) or not isinstance(rows, int) or not hidden:
        return
    kinds = {(2, 4): ["lstm"], (1, 3): ["gru"], (1, 1): ["tanh", "relu"]}
    for kind in kinds.get((len(state), rows // hidden), []):
        yield from _choices(kind, node, x.type, state[0].type, rows, hidden)


def _choices(
    kind: str, node: Any, x: wf.TensorType, state: wf.TensorType, rows: int, hidden: int
) -> Iterator[Choice]:
    """With and without biases and lengths."""
    count, dtype = node.params["num_carry"], x.dtype
    weights = [wf.TensorType(dtype, (rows, x.shape[-1])), wf.TensorType(dtype, (rows, hidden))]
    bias = wf.TensorType(dtype, (rows,))
    lengths = wf.TensorType(wf.int64, state.shape[:1])
    reverse = node.params["reverse"]
    for biases in (2, 0):
        for has_lengths in (False, True):

            def run(x: wf.Tensor, *rest: wf.Tensor, biases: int = biases) -> Any:
                parts, others = rest[:count], rest[count:]
                given = (*others[:2], *(others[2:4] if biases else (None, None)))
                ends = others[2 + biases] if len(others) > 2 + biases else None
                return F.recurrent_layer(kind, x, parts, given, ends, reverse)

            yield Choice(
                f"{kind} {biases} {has_lengths} {reverse}",
                run,
                [x, *[state] * count, *weights, *[bias] * biases, *[lengths] * has_lengths],
                _rule_of_layer(kind, count, biases, reverse, hidden),
                zeros=slice(1, 1 + count),
            )


def _input_of_gates(view: View, gates: Any) -> Any:
    """The layer's input behind its product with the weights."""
    total = view.maker(gates, "add")
    product = view.maker(total.operands[0] if total else gates, "dot")
    return product.operands[0] if product else None


def _rule_of_layer(
    kind: str, count: int, biases: int, reverse: bool, hidden: int
) -> Callable[..., Sequence[str]]:
    def write(
        writer: Writer, node: Any, values: Sequence[str], numbers: Sequence[float]
    ) -> Sequence[str]:
        x, *rest = values
        state, (w_ih, w_hh), others = rest[:count], rest[count : count + 2], rest[count + 2 :]
        first = writer.integers(0)
        inputs = [x, *[_stack_direction(writer, each, kind, hidden) for each in (w_ih, w_hh)]]
        ordered = [_reorder_gates(writer, each, kind, hidden) for each in others[:biases]]
        inputs.append(_join_biases(writer, ordered))
        ends = others[biases:]
        inputs.append(writer.op("Cast", ends[0], to=wf.int32) if ends else "")
        inputs += [writer.op("Unsqueeze", each, first) if each else "" for each in state]
        while not inputs[-1]:
            inputs.pop()
        outputs = writer.ops(
            OPERATORS[kind],
            inputs,
            count + 1,
            hidden_size=hidden,
            direction="reverse" if reverse else None,
            linear_before_reset=1 if kind == "gru" else None,
            activations=["Relu"] if kind == "relu" else None,
        )
        lasts = [writer.op("Squeeze", each, first) for each in outputs[1:]]
        return [*lasts, writer.op("Squeeze", outputs[0], writer.integers(1))]

    return write


def _reorder_gates(writer: Writer, value: str, kind: str, hidden: int) -> str:
    """The rows of a weight in the order of ONNX's gates; those of a parameter are moved here."""
    if kind not in GATE_ORDER:
        return value
    rows = np.concatenate([np.arange(hidden) + gate * hidden for gate in GATE_ORDER[kind]])
    known = writer.model.constants.get(value)
    if known is not None:
        return writer.model.constant(known[rows], f"{value}.gates")
    return writer.op("Gather", value, writer.integers(*rows), axis=0)


def _stack_direction(writer: Writer, value: str, kind: str, hidden: int) -> str:
    """A weight with an axis for its one direction."""
    ordered = _reorder_gates(writer, value, kind, hidden)
    known = writer.model.constants.get(ordered)
    if known is not None:
        return writer.model.constant(known[None], f"{value}.stacked")
    return writer.op("Unsqueeze", ordered, writer.integers(0))


def _join_biases(writer: Writer, biases: Sequence[str]) -> str:
    """Both biases as one row; an empty name where there are none."""
    if not biases:
        return ""
    known = [writer.model.constants.get(each) for each in biases]
    arrays = [each for each in known if each is not None]
    if len(arrays) == len(biases):
        return writer.model.constant(np.concatenate(arrays)[None], f"{biases[0]}.joined")
    row = writer.op("Concat", *biases, axis=0)
    return writer.op("Unsqueeze", row, writer.integers(0))
