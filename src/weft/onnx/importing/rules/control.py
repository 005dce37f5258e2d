"""If, Loop and Scan, and sequences and optionals.

A choice or a count that is known runs as Python does: one branch, so many steps. In a traced
program others become `wf.cond`, `wf.scan` and `wf.while_loop`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import weft as wf
from weft.onnx.importing.program import Program
from weft.onnx.importing.reading import Array
from weft.onnx.importing.registry import rule
from weft.onnx.importing.rules.movement import cut_parts, whole_axis
from weft.onnx.importing.running import Call
from weft.onnx.importing.values import Value, as_tensor, host_value

Tensor = wf.Tensor
UNROLLED = 64
"""Steps that a loop of a traced program may have to be written out, where it must be."""


@rule("If")
def choose(call: Call, condition: Any) -> tuple[Value, ...]:
    """The results of one of two graphs."""
    then, other = call["then_branch"], call["else_branch"]
    known = host_value(condition)
    if known is not None:
        return tuple(call.run(then if bool(known.reshape(-1)[0]) else other, []))

    def branch(program: Program) -> Any:
        return lambda: tuple(as_tensor(value) for value in call.run(program, []))

    return tuple(wf.cond(condition.reshape(()), branch(then), branch(other)))


@rule("Loop")
def loop(call: Call, count: Any, condition: Any, *carried: Value) -> tuple[Value, ...]:
    """A graph run again and again; its last outputs are stacked."""
    limit = None if count is None else host_value(count)
    going = None if condition is None else host_value(condition)
    steps = None if limit is None else int(limit.reshape(-1)[0])
    if (count is None or limit is not None) and (condition is None or going is not None):
        done = _loop_step_by_step(call, steps, going is None or bool(going.reshape(-1)[0]), carried)
        if done is not None:
            return done
    return _traced_loop(call, count, condition, carried)


def _loop_step_by_step(
    call: Call, steps: int | None, going: bool, carried: tuple[Value, ...]
) -> tuple[Value, ...] | None:
    """The loop as Python runs it; None where it is traced, and too long or not known to end."""
    body: Program = call["body"]
    state, number = list(carried), 0
    collected: list[list[Value]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]
    while going and (steps is None or number < steps):
        outputs = call.run(body, [np.array(number, np.int64), np.array(going), *state])
        more = host_value(outputs[0])
        if more is None or (number == UNROLLED and wf.ir.is_tracing() and not _holds_lists(state)):
            return None
        going = bool(more.reshape(-1)[0])
        state = outputs[1 : 1 + len(state)]
        for values, value in zip(collected, outputs[1 + len(state) :], strict=True):
            values.append(as_tensor(value))
        number += 1
        if number >= call.scope.session.most_steps:
            raise call.refuse(f"a loop of more than {number} steps; allow more in wf.onnx.load")
    return (*state, *[_stack(call, each, i, body) for i, each in enumerate(collected)])


def _holds_lists(state: list[Value]) -> bool:
    return any(isinstance(each, list) for each in state)


def _stack(call: Call, values: list[Value], place: int, body: Program) -> Tensor:
    if values:
        return wf.stack(values)
    port = body.outputs[len(body.outputs) - (call.count - (len(call.node.inputs) - 2)) + place]
    sizes = [size if isinstance(size, int) else 0 for size in port.shape or ()]
    return wf.zeros((0, *sizes), dtype=port.element.name if port.element else "float32")


def _traced_loop(
    call: Call, count: Any, condition: Any, carried: tuple[Value, ...]
) -> tuple[Value, ...]:
    """The loop as part of a program: of known length with stacked outputs, else without."""
    body: Program = call["body"]
    if _holds_lists(list(carried)):
        raise call.refuse("a traced loop over a sequence whose length is not known")
    state = tuple(as_tensor(each) for each in carried)
    stacked = len(body.outputs) - 1 - len(state)
    limit = None if count is None else host_value(count)
    start = wf.tensor(True) if condition is None else as_tensor(condition).reshape(())

    def run(number: Tensor, going: Tensor, inner: tuple[Tensor, ...]) -> list[Tensor]:
        return [as_tensor(each) for each in call.run(body, [number, going, *inner])]

    if stacked:
        if limit is None or not _always_goes_on(body):
            raise call.refuse("a traced loop that collects as many values as its data decide")

        def step(inner: Any, number: Tensor) -> Any:
            outputs = run(number, start, inner)
            return tuple(outputs[1 : 1 + len(state)]), tuple(outputs[1 + len(state) :])

        last, collected = wf.scan(step, state, wf.arange(int(limit.reshape(-1)[0])))
        return (*last, *collected)
    bound = wf.tensor(np.iinfo(np.int64).max) if count is None else as_tensor(count).reshape(())

    def advance(carry: Any) -> Any:
        outputs = run(carry[0], carry[1], carry[2])
        return carry[0] + 1, outputs[0].reshape(()), tuple(outputs[1:])

    most = None if limit is None else int(limit.reshape(-1)[0])
    last = wf.while_loop(
        lambda carry: wf.logical_and(carry[1], carry[0] < bound),
        advance,
        (wf.tensor(0), start, state),
        # With a bound there is a derivative, which takes as many steps.
        max_steps=most if most is not None and 0 < most <= call.scope.session.most_steps else None,
    )
    return tuple(last[2])


def _always_goes_on(body: Program) -> bool:
    """Whether the body hands its condition on as it is, or says yes."""
    name, given = body.outputs[0].name, body.inputs[1].name if len(body.inputs) > 1 else ""
    sources = {
        out: node.inputs[0]
        for node in body.nodes
        if node.operator == "Identity"
        for out in node.outputs
    }
    while name in sources:
        name = sources[name]
    constant = body.constants.get(name)
    return name == given or (constant is not None and bool(constant.reshape(-1)[0]))


@rule("Scan", since=9)
def scan(call: Call, *inputs: Value) -> tuple[Value, ...]:
    """A graph over slices of values, which carries a state along."""
    body: Program = call["body"]
    count = call["num_scan_inputs"]
    held = len(inputs) - count
    if not 0 < count <= len(inputs) or len(body.outputs) < held:
        raise ValueError(f"{count} of {len(inputs)} inputs are scanned")
    outs = len(body.outputs) - held
    axes = call.get("scan_input_axes") or [0] * count
    directions = call.get("scan_input_directions") or [0] * count
    xs = []
    for x, axis, backward in zip(inputs[held:], axes, directions, strict=True):
        moved = wf.moveaxis(x, whole_axis(axis, x.ndim), 0)
        xs.append(wf.flip(moved, axis=0) if backward else moved)
    state = tuple(as_tensor(each) for each in inputs[:held])

    def step(inner: Any, slices: Any) -> Any:
        outputs = [as_tensor(each) for each in call.run(body, [*inner, *slices])]
        return tuple(outputs[:held]), tuple(outputs[held:])

    last, stacked = wf.scan(step, state, tuple(xs))
    out_axes = call.get("scan_output_axes") or [0] * outs
    backwards = call.get("scan_output_directions") or [0] * outs
    results = []
    for y, axis, backward in zip(stacked, out_axes, backwards, strict=True):
        y = wf.flip(y, axis=0) if backward else y
        results.append(wf.moveaxis(y, 0, whole_axis(axis, y.ndim)))
    return (*last, *results)


@rule("Scan", since=8)
def scan_of_batches(call: Call, lengths: Value, *inputs: Value) -> tuple[Value, ...]:
    """The first form of Scan: over the second axis, for each element of a batch."""
    if lengths is not None:
        raise call.refuse("Scan of version 8 with lengths")
    body: Program = call["body"]
    held = len(inputs) - call["num_scan_inputs"]
    if not 0 <= held < len(inputs):
        raise ValueError(f"{len(inputs) - held} of {len(inputs)} inputs are scanned")
    state = tuple(as_tensor(each) for each in inputs[:held])
    xs = tuple(wf.moveaxis(as_tensor(each), 1, 0) for each in inputs[held:])

    def scan_step(inner: Any, slices: Any) -> Any:
        outputs = [as_tensor(each) for each in call.run(body, [*inner, *slices])]
        return tuple(outputs[:held]), tuple(outputs[held:])

    last, stacked = wf.scan(wf.vmap(scan_step), state, xs)
    return (*last, *[wf.moveaxis(each, 0, 1) for each in stacked])


# --- sequences and optionals ---------------------------------------------------------------------


@rule("SequenceEmpty")
def empty_sequence(call: Call) -> list[Value]:
    """A sequence without elements."""
    return []


@rule("SequenceConstruct", narrow=True)
def sequence_of(call: Call, *values: Value) -> list[Value]:
    """A sequence of the inputs."""
    return list(values)


def _place(call: Call, position: Any, default: int) -> int:
    return default if position is None else int(position.reshape(-1)[0])


@rule("SequenceInsert", known=(2,), narrow=True)
def insert(call: Call, values: list[Value], value: Value, position: Array | None = None) -> Any:
    """A sequence with one more element."""
    place = _place(call, position, len(values))
    if not -len(values) <= place <= len(values):
        raise IndexError(f"position {place} of a sequence of {len(values)}")
    place = place + len(values) if place < 0 else place
    return [*values[:place], value, *values[place:]]


@rule("SequenceErase", known=(1,))
def erase(call: Call, values: list[Value], position: Array | None = None) -> list[Value]:
    """A sequence without one of its elements."""
    rest = list(values)
    del rest[_place(call, position, -1)]
    return rest


@rule("SequenceAt", known=(1,))
def element_at(call: Call, values: list[Value], position: Array) -> Value:
    """One element of a sequence."""
    return values[_place(call, position, 0)]


@rule("SequenceLength")
def length(call: Call, values: list[Value]) -> Array:
    """How many elements a sequence has."""
    return np.array(len(values), np.int64)


@rule("ConcatFromSequence")
def join_sequence(call: Call, values: list[Value]) -> Tensor:
    """The elements of a sequence joined along an axis, old or new."""
    tensors = [as_tensor(each) for each in values]
    joined = wf.stack if call["new_axis"] else wf.concat
    return joined(tensors, axis=call["axis"])


@rule("SplitToSequence", known=(1,))
def split_to_sequence(call: Call, x: Tensor, sizes: Array | None = None) -> list[Value]:
    """The parts of a value along an axis, as a sequence."""
    axis = whole_axis(call["axis"], x.ndim)
    whole = int(x.shape[axis])
    if sizes is None:
        parts = cut_parts(x, [1] * whole, axis)
        return parts if call["keepdims"] else [wf.squeeze(each, axis=axis) for each in parts]
    if sizes.ndim == 0:
        step = int(sizes)
        counts = [min(step, whole - start) for start in range(0, whole, step)]
        return list(cut_parts(x, counts, axis))
    return list(cut_parts(x, sizes.tolist(), axis))


@rule("SequenceMap", narrow=True)
def map_sequence(call: Call, *inputs: Value) -> tuple[Value, ...]:
    """A graph run on each element of sequences; other inputs go to every run."""
    count = len(inputs[0])
    body: Program = call["body"]
    results: list[list[Value]] = [[] for _ in body.outputs]
    for number in range(count):
        given = [each[number] if isinstance(each, list) else each for each in inputs]
        for values, value in zip(results, call.run(body, given), strict=True):
            values.append(value)
    return tuple(results)


@rule("Optional", narrow=True)
def optional(call: Call, value: Value = None) -> Value:
    """A value that may be left out."""
    return value


@rule("OptionalHasElement", narrow=True)
def has_element(call: Call, value: Value = None) -> Array:
    """Whether there is a value."""
    return np.array(value is not None)


@rule("OptionalGetElement", narrow=True)
def get_element(call: Call, value: Value) -> Value:
    """The value, which must be there."""
    if value is None:
        raise ValueError("the optional value is empty")
    return value
