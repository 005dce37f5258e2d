"""`OnnxModule`: the program of an ONNX file as a module, with its initialisers as parameters."""

from __future__ import annotations

import keyword
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

import weft as wf
from weft import nn
from weft.onnx.importing.program import Node, Port, Program, Slot, all_programs
from weft.onnx.importing.reading import ELEMENTS, Array
from weft.onnx.importing.running import Session, run_program
from weft.onnx.importing.values import Narrow, Value, as_tensor

STATISTICS = {
    "BatchNormalization": (3, 4), "QuantizeLinear": (1, 2), "DequantizeLinear": (1, 2),
    "QLinearConv": (1, 4, 6), "QLinearMatMul": (1, 4, 6), "Resize": (1, 2), "Pad": (2,),
    "Clip": (1, 2),
}  # fmt: skip
"""Inputs that are measured or set, not learned, by operator."""
LISTED = 12
"""How many operators a report lists by name."""


class Group(nn.Module):
    """Initialisers whose names begin with the same word."""


class OnnxModule(nn.Module):
    """A model that was read from an ONNX file.

    Call it with the inputs in order, or by their names; arrays of NumPy are taken, too. One output
    is returned as it is, several as a tuple in the order of `output_names`.
    """

    def __init__(self, program: Program, title: str, largest: int, most_steps: int) -> None:
        self._title, self._largest, self._most_steps = title, largest, most_steps
        self._program = program
        program.slots = _place_tensors(self, program)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs, in the order of positions."""
        return tuple([port.name for port in self._program.required_inputs])

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs, in the order of results."""
        return tuple([port.name for port in self._program.outputs])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of the model."""
        results = self.compute(args, kwargs)
        values = [_plain_value(each) for each in results]
        return values[0] if len(values) == 1 else tuple(values)

    def compute(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Value]:
        """The outputs as they leave the program: narrow numbers keep their type."""
        given = bind_inputs(self._program, args, kwargs)
        states: dict[int, dict[str, Value]] = {}
        for number, name, path, code in self._program.slots:
            tensor: Any = reduce(getattr, path, self)
            value = tensor if code is None else Narrow(ELEMENTS[code], tensor)
            states.setdefault(number, {})[name] = value
        program = self._program
        defaults = {**program.constants, **states.get(program.number, {}), **given}
        inputs = [defaults.get(port.name) for port in program.inputs]
        session = Session(states, self._largest, self._most_steps)
        return run_program(program, inputs, None, session)

    def __repr__(self) -> str:
        counts = Counter(node.operator for node in _all_nodes(self._program))
        listed = ", ".join(f"{name} {count}" for name, count in counts.most_common(LISTED))
        more = f", and {len(counts) - LISTED} more" if len(counts) > LISTED else ""
        learned = [each.size for each in self.parameters()]
        held = [each.size for each in self.buffers()]
        lines = [
            f"OnnxModule({self._title})",
            *[f"  input   {port}" for port in self._program.required_inputs],
            *[f"  output  {port}" for port in self._program.outputs],
            f"  nodes   {counts.total()}: {listed}{more}",
            f"  state   {len(learned)} parameters of {sum(learned)} numbers, "
            f"{len(held)} buffers of {sum(held)}",
        ]
        return "\n".join(lines)


# --- inputs --------------------------------------------------------------------------------------


def bind_inputs(
    program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Value]:
    """The given values by the names of inputs, checked against what the file says of them."""
    required = program.required_inputs
    by_name = {port.name: port for port in program.inputs}
    if len(args) > len(required):
        raise _wrong_inputs(required, f"{len(args)} values are given", args, kwargs)
    given = {port.name: value for port, value in zip(required, args, strict=False)}
    for name, value in kwargs.items():
        if name not in by_name or name in given:
            problem = "is given twice" if name in given else "is no input"
            raise _wrong_inputs(required, f"{name!r} {problem}", args, kwargs)
        given[name] = value
    missing = [port.name for port in required if port.name not in given and port.element]
    if missing:
        raise _wrong_inputs(required, f"{', '.join(missing)} is missing", args, kwargs)
    sizes: dict[str, tuple[str, Any]] = {}
    return {name: _check_input(by_name[name], value, sizes) for name, value in given.items()}


def _wrong_inputs(
    required: Sequence[Port], problem: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> wf.ArgumentError:
    names = ", ".join(port.name for port in required)
    return wf.ArgumentError(
        "onnx module",
        f"the values do not fit the model's inputs: {problem}",
        expected=f"one value for each of: {names}",
        got={"positions": len(args), "names": ", ".join(kwargs) or "none"},
        fix="net(x), or by name: net(**{" + ", ".join(f"{p.name!r}: x" for p in required) + "})",
    )


def _check_input(port: Port, value: Any, sizes: dict[str, tuple[str, Any]]) -> Value:
    """A value as a tensor or sequence, with the element type and sizes that the file says."""
    if value is None or isinstance(value, Narrow):
        return value
    element = port.element
    if isinstance(value, (list, tuple)) and element is None:
        return [_check_input(port, each, sizes) for each in value]
    if isinstance(value, (bool, int, float, list, tuple)):  # a constant: it may decide sizes
        return np.array(value, element.numpy if element is not None else None)
    tensor = value if isinstance(value, wf.Tensor) else as_tensor(np.asarray(value))
    if isinstance(tensor, Narrow):
        return tensor
    if element is not None and not element.is_tensor_type:
        return Narrow(element, tensor)
    if element is not None and tensor.dtype.name != element.name:
        raise wf.DTypeError(
            "onnx module",
            f"the input {port.name!r} has another element type in this model",
            expected=str(port),
            got={port.name: tensor},
            fix=f'x.astype("{element.name}")',
        )
    _check_sizes(port, tensor, sizes)
    return tensor


def _check_sizes(port: Port, tensor: wf.Tensor, sizes: dict[str, tuple[str, Any]]) -> None:
    if port.shape is None:
        return
    if len(port.shape) != tensor.ndim:
        raise _wrong_shape(port, tensor, f"it has {tensor.ndim} axes", "")
    for axis, (expected, size) in enumerate(zip(port.shape, tensor.shape, strict=True)):
        if isinstance(expected, str):
            name, known = sizes.setdefault(expected, (port.name, size))
            if known != size:
                note = f"{expected} is {known} in {name!r}"
                raise _wrong_shape(port, tensor, f"axis {axis} is {size}", note)
        elif expected is not None and expected != size:
            raise _wrong_shape(port, tensor, f"axis {axis} is {size}, not {expected}", "")


def _wrong_shape(port: Port, tensor: wf.Tensor, problem: str, note: str) -> wf.ShapeError:
    return wf.ShapeError(
        "onnx module",
        f"the input {port.name!r} has another shape in this model: {problem}",
        expected=str(port),
        got={port.name: tensor},
        note=note,
        fix="a file of one fixed size takes a batch through wf.vmap: wf.vmap(net)(x[:, None])",
    )


def _plain_value(value: Value) -> Any:
    """A result as users get it: tensors, lists and None."""
    if isinstance(value, Narrow):
        return value.tensor
    if isinstance(value, (list, tuple)):
        return [_plain_value(each) for each in value]
    return as_tensor(value)


# --- state ---------------------------------------------------------------------------------------


def _all_nodes(program: Program) -> Iterator[Node]:
    for each in all_programs(program):
        yield from (node for node in each.nodes if node.body is None)


def _place_tensors(owner: OnnxModule, program: Program) -> tuple[Slot, ...]:
    """Make the programs' values the module's parameters and buffers; say where each one is."""
    slots: list[Slot] = []
    for number, each in enumerate(all_programs(program)):
        each.number = number
        measured = _measured_names(each)
        for name, (array, is_initialiser) in each.tensors.items():
            if _is_constant(each, name, array):
                each.constants[name] = array
                continue
            tensor = as_tensor(array)
            code = None
            if isinstance(tensor, Narrow):
                code = next(c for c, element in ELEMENTS.items() if element is tensor.element)
                tensor = tensor.tensor
            learned = is_initialiser and tensor.dtype.is_floating and name not in measured
            learned = learned and tensor.ndim > 0  # single numbers are constants of formulas
            path = _free_path(owner, name)
            holder = reduce(_group, path[:-1], owner)
            learned = learned and code is None
            setattr(holder, path[-1], nn.Parameter(tensor) if learned else tensor.clone())
            slots.append((number, name, path, code))
    return tuple(slots)


def _is_constant(program: Program, name: str, array: Array) -> bool:
    """Whether a value decides sizes, or is a number or list that may: part of the program then."""
    if name in program.shaping:
        return True
    return array.ndim <= 1 and array.dtype in (np.int64, np.int32, np.bool_) and array.size <= 4096


def _measured_names(program: Program) -> set[str]:
    return {
        node.inputs[place]
        for node in program.nodes
        for place in STATISTICS.get(node.operator, ())
        if place < len(node.inputs)
    }


def _group(owner: Any, name: str) -> Any:
    if name not in owner.__dict__:
        setattr(owner, name, Group())
    return owner.__dict__[name]


def _free_path(owner: Any, name: str) -> tuple[str, ...]:
    """The attributes that a value's name leads through: `conv1.weight` is net.conv1.weight."""
    words = [word or "_" for word in name.split(".")] if len(name) < 1000 else [name[:1000]]
    path: list[str] = []
    for place, word in enumerate(words):
        last = place == len(words) - 1
        word = f"value{word}" if word.startswith("_") else word
        while hasattr(type(owner), word) or keyword.iskeyword(word) or word == "training":
            word += "_"
        held = owner.__dict__ if owner is not None else {}
        while word in held and (last or not isinstance(held[word], Group)):
            word += "_"
        path.append(word)
        owner = held.get(word) if not last else None
        owner = owner if isinstance(owner, Group) else Group()
    return tuple(path)
