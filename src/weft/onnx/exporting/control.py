"""Loops, branches and calls.

A loop's constants are not passed to its body: the body of an ONNX loop sees the values around it.

>>> from weft.onnx.exporting.rules import RULES
>>> "scan" in RULES
True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import weft as wf
from weft.onnx.exporting.blocks import inline, write_nodes
from weft.onnx.exporting.rules import refuse, rule
from weft.onnx.exporting.writing import Block, Writer


@rule("call")
def _call(writer: Writer, node: Any, *operands: str) -> Sequence[str]:
    graph = wf.ir.specialize(node.params["graph"], [x.type for x in node.operands])
    return inline(writer, graph, operands)


@rule("custom")
def _custom(writer: Writer, node: Any, *operands: str) -> Sequence[str]:
    return inline(writer, node.params["graph"], operands)


def _finish(writer: Writer, names: Sequence[str], kinds: Sequence[wf.TensorType]) -> None:
    """Make values the outputs of a block; each is made in the block, and no name stands twice."""
    own = {name for node in writer.block.nodes for name in node.outputs}
    taken: set[str] = set()
    for value, kind in zip(names, kinds, strict=True):
        name = value if value in own and value not in taken else writer.op("Identity", value)
        taken.add(name)
        writer.block.outputs.append((name, kind))


def _finish_graph(writer: Writer, graph: Any) -> None:
    names = [writer.value(atom) for atom in graph.outputs]
    _finish(writer, names, [atom.type for atom in graph.outputs])


# --- branches ------------------------------------------------------------------------------------


@rule("switch")
def _switch(writer: Writer, node: Any, index: str, *operands: str) -> Sequence[str]:
    branches, rows = node.params["branches"], node.params["rows"]
    kind = node.operands[0].type
    number = writer.cast(index, kind.dtype, wf.int64)
    if rows:
        return _switch_rows(writer, node, number, operands)
    return _switch_from(writer, branches, 0, number, operands)


def _switch_from(
    writer: Writer, branches: Sequence[Any], first: int, number: str, operands: Sequence[str]
) -> Sequence[str]:
    """The branch `first` if that is the number, else one of those after it."""
    if first == len(branches) - 1:
        return inline(writer, branches[first], operands)
    chosen = _branch(writer, branches[first], operands)
    others = writer.nested_writer()
    names = _switch_from(others, branches, first + 1, number, operands)
    _finish(others, names, [atom.type for atom in branches[first].outputs])
    test = writer.op("Equal", number, writer.number(first, wf.int64))
    count = len(branches[first].outputs)
    return writer.ops("If", [test], count, then_branch=chosen, else_branch=others.block)


def _branch(writer: Writer, graph: Any, operands: Sequence[str]) -> Block:
    inner = writer.nested_writer()
    names = inline(inner, graph, operands)
    _finish(inner, names, [atom.type for atom in graph.outputs])
    return inner.block


def _switch_rows(writer: Writer, node: Any, number: str, operands: Sequence[str]) -> Sequence[str]:
    """All branches, and of each row the one that its number names."""
    branches, kind = node.params["branches"], node.operands[0].type
    columns = [inline(writer, branch, operands) for branch in branches]
    chosen = list(columns[0])
    for position, result in enumerate(node.results):
        column = [*kind.shape, *[1] * (result.type.ndim - kind.ndim)]
        rows = writer.reshape(number, column) if result.type.ndim > kind.ndim else number
        for branch, names in enumerate(columns[1:], start=1):
            test = writer.op("Equal", rows, writer.number(branch, wf.int64))
            dtype = result.type.dtype
            wide = wf.int32 if dtype is wf.bool or (dtype.is_integer and dtype.bits < 32) else dtype
            pair = [writer.cast(each, dtype, wide) for each in (names[position], chosen[position])]
            chosen[position] = writer.cast(writer.op("Where", test, *pair), wide, dtype)
    return chosen


# --- loops ---------------------------------------------------------------------------------------


def _step_input(writer: Writer, variable: Any, hint: str) -> str:
    name = writer.model.fresh(hint)
    writer.values[variable] = name
    writer.block.inputs.append((name, variable.type))
    return name


@rule("scan")
def _scan(writer: Writer, node: Any, *operands: str) -> Sequence[str]:
    params = node.params
    graph, consts, carry = params["graph"], params["num_consts"], params["num_carry"]
    held = consts + carry
    if len(operands) == held:
        return _counted_loop(writer, node, operands)
    if isinstance(params["length"], int) and params["length"] == 0:
        rows = [each.type for each in node.results[carry:]]
        empty = [writer.model.constant(np.zeros(k.shape, k.dtype.numpy)) for k in rows]
        return [*operands[consts:held], *empty]
    inner = writer.nested_writer()
    inner.values.update(zip(graph.inputs[:consts], operands[:consts], strict=True))
    for variable in graph.inputs[consts:held]:
        _step_input(inner, variable, "state")
    for variable in graph.inputs[held:]:
        _step_input(inner, variable, "step")
    write_nodes(inner, graph)
    _finish_graph(inner, graph)
    xs, ys = len(operands) - held, len(graph.outputs) - carry
    backwards = [1] if params["reverse"] else []
    return writer.ops(
        "Scan",
        operands[consts:],
        len(graph.outputs),
        body=inner.block,
        num_scan_inputs=xs,
        scan_input_directions=backwards * xs or None,
        scan_output_directions=backwards * ys or None,
    )


def _counted_loop(writer: Writer, node: Any, operands: Sequence[str]) -> Sequence[str]:
    """A scan over nothing: a loop of so many steps."""
    params = node.params
    graph, consts, carry = params["graph"], params["num_consts"], params["num_carry"]
    inner = writer.nested_writer()
    inner.values.update(zip(graph.inputs[:consts], operands[:consts], strict=True))
    inner.block.inputs.append((writer.model.fresh("number"), wf.spec("int64", ())))
    going = writer.model.fresh("going")
    inner.block.inputs.append((going, wf.spec("bool", ())))
    for variable in graph.inputs[consts:]:
        _step_input(inner, variable, "state")
    write_nodes(inner, graph)
    inner.block.outputs.append((inner.op("Identity", going), wf.spec("bool", ())))
    _finish_graph(inner, graph)
    count = writer.op("Squeeze", writer.model.size(params["length"]), writer.integers(0))
    inputs = [count, writer.number(True, wf.bool), *operands[consts:]]
    results = list(writer.ops("Loop", inputs, len(graph.outputs), body=inner.block))
    if params["reverse"]:
        results[carry:] = [_reverse_rows(writer, name) for name in results[carry:]]
    return results


def _reverse_rows(writer: Writer, name: str) -> str:
    last, axis = writer.integers(-1), writer.integers(0)
    return writer.op("Slice", name, last, writer.integers(-(2**63)), axis, last)


@rule("while")
def _while(writer: Writer, node: Any, *operands: str) -> Sequence[str]:
    params = node.params
    cond, body, consts = params["cond"], params["body"], params["num_consts"]
    inner = writer.nested_writer()
    inner.values.update(zip(body.inputs[:consts], operands[:consts], strict=True))
    inner.block.inputs.append((writer.model.fresh("number"), wf.spec("int64", ())))
    inner.block.inputs.append((writer.model.fresh("going"), wf.spec("bool", ())))
    for variable in body.inputs[consts:]:
        _step_input(inner, variable, "state")
    write_nodes(inner, body)
    after = [inner.value(atom) for atom in body.outputs]
    (going,) = inline(inner, cond, [*operands[:consts], *after])
    kinds = [wf.spec("bool", ()), *[atom.type for atom in body.outputs]]
    _finish(inner, [going, *after], kinds)
    (start,) = inline(writer, cond, operands)
    limit = params["max_steps"]
    count = "" if limit is None else writer.number(limit, wf.int64)
    inputs = [count, start, *operands[consts:]]
    return writer.ops("Loop", inputs, len(body.outputs), body=inner.block)


# --- primitives that no traced program has --------------------------------------------------------

_COMPILERS = "the compiler alone makes it, and never in a traced program"
refuse("dot_wide", _COMPILERS)
refuse("computed_attention", _COMPILERS)
refuse("computed_attention_gradient", _COMPILERS)
refuse("conv_last", _COMPILERS)
refuse("conv_last_input_gradient", _COMPILERS)
refuse("conv_last_weight_gradient", _COMPILERS)
refuse("softmax_gradient", _COMPILERS)
refuse("window_max_gradient", _COMPILERS)

_EAGER = "eager work on other devices than the host has it, and no trace does"
refuse("lay_at", _EAGER)
refuse("roll_at", _EAGER)
refuse("slice_at", _EAGER)

_COLLECTIVES = "it speaks to other processes, and a file is a program of one"
refuse("all_gather", _COLLECTIVES)
refuse("all_reduce_max", _COLLECTIVES)
refuse("all_reduce_min", _COLLECTIVES)
refuse("all_reduce_sum", _COLLECTIVES)
refuse("all_to_all", _COLLECTIVES)
refuse("broadcast_shard", _COLLECTIVES)
refuse("permute_shards", _COLLECTIVES)
refuse("reduce_scatter", _COLLECTIVES)
refuse("reduce_shards", _COLLECTIVES)
refuse("shard_index", _COLLECTIVES)
