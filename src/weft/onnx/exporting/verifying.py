"""The file judged by running it: every value in order, against those that Weft computes.

>>> import numpy as np
>>> from weft.onnx.exporting.verifying import difference
>>> difference(np.array([1.0, 2.0]), np.array([1.0, 2.5]))
0.2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.onnx.exporting.programs import OP, Program
from weft.onnx.exporting.protos import require_onnx
from weft.onnx.exporting.writing import Model, evaluate_size

__all__ = ["Verification", "difference", "example_inputs", "verify_file"]

Array = np.ndarray[Any, Any]
TOLERANCES = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 2e-4, "float64": 1e-7}
"""The largest difference that is allowed, as a share of the largest number of a tensor."""
SUM_ROUNDING = 4.0
"""How many units in the last place a sum may be off: of the sum of its terms' magnitudes.

Where these are hidden in one operator of several steps: of the largest term, times √terms.
"""
ADDING = wf.ir.kinds.Reduction, wf.ir.kinds.Contraction, wf.ir.kinds.Cumulative, wf.ir.kinds.Window
"""Kinds of primitives that add terms up, where they are linear in each operand."""
SMALLEST_SCALE = 1e-6
UNUSUAL_SIZE, SIZE_STEP = 2, 3


@dataclass(frozen=True)
class Verification:
    """What was run, at which sizes, how many values were compared, and how far they were apart."""

    runtime: str
    sizes: tuple[dict[str, int], ...]
    compared: int
    largest: float
    notes: tuple[str, ...] = ()


def verify_file(
    path: Path, program: Program, model: Model, renamed: Mapping[str, str], tolerance: float | None
) -> Verification:
    """Run the file at each size and compare; the first value that differs is an error."""
    wanted = _named_values(program, model, renamed)
    runner = _runner(path, [(name, atom.type.dtype) for name, atom, _ in wanted])
    attempts, notes = attempts_of(program), [runner.note] if runner.note else []
    try:
        comparison = _Comparison(program, model, wanted, tolerance).of_all(attempts, runner)
    except wf.CheckError as mismatch:
        if runner.reference is None:
            raise
        try:  # what the standard says, where a runtime has a mind of its own
            judge = runner.reference()
            comparison = _Comparison(program, model, wanted, tolerance).of_all(attempts, judge)
        except Exception:
            raise mismatch from None
        notes.append(f"{runner.name} departs from {judge.name}, which agrees: {_place(mismatch)}")
        runner = judge
    refusals = [each.refusal.problem for each in attempts if each.refusal is not None]
    notes += [f"tried at one size alone: Weft takes no other ({each})" for each in refusals]
    if comparison.moved:
        notes.append(
            f"{comparison.moved} values are moved by rounding before them; each step agrees"
        )
    tried = tuple(each.sizes for each in attempts if each.refusal is None)
    return Verification(runner.name, tried, comparison.compared, comparison.largest, tuple(notes))


def _place(mismatch: wf.CheckError) -> str:
    """Where a runtime computes other values: the value, the operation and the user's line."""
    return f"{mismatch.problem} ({mismatch.got}; {mismatch.at})"


class _Comparison:
    """Values of both sides, in order.

    Rounding may move a value far where numbers cancel, or where a step asks which of two is larger.
    So a value that differs is computed once more by Weft from the file's own values before it.
    """

    def __init__(
        self, program: Program, model: Model, wanted: Sequence[Any], tolerance: float | None
    ) -> None:
        self.program, self.model, self.wanted = program, model, wanted
        self.tolerance = tolerance
        self.compared, self.moved, self.largest = 0, 0, 0.0

    def of_all(self, attempts: Sequence[Attempt], runner: _Runner) -> _Comparison:
        """The comparison after all sizes that the program takes."""
        for attempt in attempts:
            if attempt.refusal is None:
                self.compare(attempt.feeds, runner.run(attempt.feeds), attempt.sizes)
        return self

    def compare(
        self, feeds: Mapping[str, Array], found: Mapping[str, Array], sizes: dict[str, int]
    ) -> None:
        expected = _weft_values(self.program, feeds, [atom for _, atom, _ in self.wanted])
        known: dict[Any, Array] = {}
        for (name, atom, node), ours in zip(self.wanted, expected, strict=True):
            apart = difference(found[name], ours)
            limit = _limit(atom.type.dtype, self.tolerance)
            if limit == 0 and node is not None and _reads_half(node):
                limit = float("inf")  # runtimes keep more digits of float16 than it has
            if apart <= limit:
                self.largest = max(self.largest, apart if limit < 1 else 0.0)
            elif node is not None:
                again, rounding = _value_after(self.program, feeds, known, node, atom)
                apart = difference(found[name], again)
                if not apart <= limit + rounding / _scale(again):
                    raise _mismatch(name, node, found[name], again, apart, limit, sizes, self.model)
                self.moved += 1
            else:
                raise _mismatch(name, node, found[name], ours, apart, limit, sizes, self.model)
            self.compared += 1
            known[atom] = found[name].astype(ours.dtype, copy=False)


def _reads_half(node: Any) -> bool:
    """Whether a node asks something of numbers in 16 bits, of which equal ones may differ."""
    return any(atom.type.dtype is wf.float16 for atom in node.operands)


def _limit(dtype: wf.DType, tolerance: float | None) -> float:
    if not dtype.is_inexact:
        return 0.0
    return TOLERANCES[dtype.name] if tolerance is None else tolerance


def difference(found: Array, expected: Array) -> float:
    """The largest difference as a share of the largest number; infinite where kinds differ."""
    if found.shape != expected.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    a, b = found.astype(np.float64), expected.astype(np.float64)
    if expected.dtype.kind in "biu":
        return float(np.count_nonzero(found != expected))
    finite = np.isfinite(b)
    odd = ~finite
    if not np.array_equal(np.isfinite(a), finite) or not np.array_equal(
        a[odd], b[odd], equal_nan=True
    ):
        return float("inf")
    if not finite.any():
        return 0.0
    return float(np.abs(a[finite] - b[finite]).max()) / _scale(expected)


def _scale(expected: Array) -> float:
    """What a difference is a share of."""
    return max(_magnitude(expected), SMALLEST_SCALE)


def _mismatch(
    name: str, node: Any, found: Array, ours: Array,
    apart: float, limit: float, sizes: dict[str, int], model: Model,
) -> wf.CheckError:  # fmt: skip
    writer = next((each for each in model.root.block.nodes if name in each.outputs), None)
    operator = "" if writer is None else f" of the node {writer.name}"
    at_sizes = f" at {', '.join(f'{k} = {v}' for k, v in sizes.items())}" if sizes else ""
    shapes = "" if found.shape == ours.shape else f", of shape {found.shape} and not {ours.shape}"
    return wf.CheckError(
        OP,
        f"the file computes other values than Weft: {name}{operator}{at_sizes}{shapes}",
        expected=f"a difference of at most {limit:.1e} of the largest number",
        got={"difference": f"{apart:.3e}", "operation": node.primitive.name if node else "input"},
        fix="compute this line in float32, or allow more: tolerance=1e-3; nothing was written",
        at=None if node is None else node.location,
    )


# --- what goes in --------------------------------------------------------------------------------


def _symbols(kind: wf.TensorType) -> list[str]:
    return [name for dim in kind.shape if not isinstance(dim, int) for name in dim.symbols()]


def _sizes_to_try(program: Program) -> list[dict[str, int]]:
    """The sizes of the examples, and others, of which one is to be tried; none if none varies."""
    symbols = sorted({name for kind in program.inputs.values() for name in _symbols(kind)})
    known: dict[str, int] = {}
    for name, kind in program.inputs.items():
        example = program.examples[name]
        if example is None:
            continue
        for dim, size in zip(kind.shape, wf.asarray(example).shape, strict=True):
            text = str(dim)
            if text in symbols:
                known.setdefault(text, int(size))
    first = {name: known.get(name, UNUSUAL_SIZE) for name in symbols}
    # A table of positions may end where the example does: then sizes shrink, all or one.
    larger = {name: size + SIZE_STEP for name, size in first.items()}
    smaller = {name: size - 1 if size > 1 else size + SIZE_STEP for name, size in first.items()}
    mixed = [{**larger, name: smaller[name]} for name in symbols]
    return [first, larger, *mixed, smaller] if symbols else [{}]


@dataclass(frozen=True)
class Attempt:
    """Sizes with inputs of these sizes, and what the program says where it does not take them."""

    sizes: dict[str, int]
    feeds: dict[str, Array]
    refusal: wf.WeftError | None = None


def attempts_of(program: Program) -> list[Attempt]:
    """The sizes of the examples and, where sizes vary, the first others that the program takes."""
    first, *others = _sizes_to_try(program)
    attempts = [Attempt(first, _feeds_at(program, first, 0))]
    for sizes in others:
        feeds, refusal = _feeds_at(program, sizes, 1), None
        try:
            _interpret(program.graph, _arguments(program, feeds))
        except wf.WeftError as error:
            refusal = error
        attempts[1:] = [Attempt(sizes, feeds, refusal)]
        if refusal is None:
            break
    return attempts


def _feeds_at(program: Program, sizes: dict[str, int], attempt: int) -> dict[str, Array]:
    return {name: _example(program, name, sizes, attempt) for name in program.inputs}


def example_inputs(program: Program) -> list[dict[str, Array]]:
    """Inputs of the sizes of the examples and, where sizes vary, of others."""
    return [each.feeds for each in attempts_of(program) if each.refusal is None]


def _example(program: Program, name: str, sizes: dict[str, int], attempt: int) -> Array:
    kind, given = program.inputs[name], program.examples[name]
    shape = tuple(evaluate_size(dim, sizes) for dim in kind.shape)
    values = None if given is None else wf.asarray(given).detach().numpy()
    if values is not None and values.shape == shape:
        return np.asarray(values, order="C")
    random = np.random.default_rng(attempt)
    if values is not None and values.size and not kind.dtype.is_floating:
        return random.choice(values.reshape(-1), shape)
    if kind.dtype.is_floating:
        return random.normal(size=shape).astype(kind.dtype.numpy)
    return random.integers(0, 2, shape).astype(kind.dtype.numpy)


# --- what comes out ------------------------------------------------------------------------------


def _named_values(
    program: Program, model: Model, renamed: Mapping[str, str]
) -> list[tuple[str, Any, Any]]:
    """The values that both sides have, in order: name in the file, variable, Weft node."""
    own = {name for node in model.root.block.nodes for name in node.outputs}
    values, taken = [], set[str]()
    for node in program.graph.nodes:
        for variable in node.results:
            name = model.root.values.get(variable, "")
            if name in own and name not in taken:
                taken.add(name)
                values.append((renamed.get(name, name), variable, node))
    known = {name for name, _, _ in values}
    for (name, _), atom in zip(model.root.block.outputs, program.graph.outputs, strict=True):
        if renamed[name] not in known:
            values.append((renamed[name], atom, None))
    return values


def _weft_values(program: Program, feeds: Mapping[str, Array], atoms: Sequence[Any]) -> list[Array]:
    """The values that Weft computes."""
    variables = tuple(atom for atom in atoms if isinstance(atom, wf.ir.Variable))
    graph = wf.ir.Graph(program.graph.inputs, program.graph.nodes, variables)
    values = dict(zip(variables, _interpret(graph, _arguments(program, feeds)), strict=True))
    return [values[x] if isinstance(x, wf.ir.Variable) else x.value for x in atoms]


def _value_after(
    program: Program, feeds: Mapping[str, Array], known: Mapping[Any, Array], node: Any, atom: Any
) -> tuple[Array, float]:
    """A node's result by Weft from values of the file, and how far rounding may move it.

    A sum is as inexact as its terms are large, whatever is left of them.
    """
    makers = {each: n for n in program.graph.nodes for each in n.results}
    needed, waiting = set[int](), [node]
    while waiting:
        last = waiting.pop()
        needed.add(id(last))
        behind = [makers[x] for x in last.operands if x in makers and x not in known]
        waiting += [each for each in behind if id(each) not in needed]
    nodes = tuple(each for each in program.graph.nodes if id(each) in needed)
    inputs = (*program.graph.inputs, *known)
    operands = tuple(x for n in nodes for x in n.operands if isinstance(x, wf.ir.Variable))
    graph = wf.ir.Graph(inputs, nodes, (atom, *operands))
    arguments = _arguments(program, feeds)
    value, *terms = _interpret(graph, [*arguments, *known.values()])
    if value.dtype.kind in "biu":
        return value, 0.0
    unit = SUM_ROUNDING * float(wf.finfo(atom.type.dtype).eps)
    adds = node.primitive.is_multilinear and isinstance(node.primitive.kind, ADDING)
    if adds and len(nodes) == 1:
        read = dict(zip(operands, terms, strict=True))
        return value, unit * _magnitude(_mass(program, arguments, node, atom, read))
    inexact = [x for x in terms if x.dtype == value.dtype]
    largest = max(map(_magnitude, inexact), default=0.0)
    return value, unit * largest * max([x.size for x in inexact], default=1) ** 0.5


def _mass(
    program: Program, arguments: Sequence[Any], node: Any, atom: Any, read: Mapping[Any, Array]
) -> Array:
    """What a node would add up to if no term had a sign: its result for its operands' sizes."""
    values = [read[x] if x in read else np.asarray(x.value) for x in node.operands]
    signless = [np.abs(x) if x.dtype.kind not in "biu" else x for x in values]
    variables = tuple(wf.ir.Variable(x.type) for x in node.operands)
    step = replace(node, operands=variables)
    graph = wf.ir.Graph((*program.graph.inputs, *variables), (step,), (atom,))
    return _interpret(graph, [*arguments, *signless])[0]


def _arguments(program: Program, feeds: Mapping[str, Array]) -> list[Any]:
    return [*[tensor.detach() for tensor in program.state.values()], *feeds.values()]


def _interpret(graph: Any, arguments: Sequence[Any]) -> list[Array]:
    with wf.no_grad():
        tensors = wf.ir.interpret(graph, *map(wf.asarray, arguments))
    return [tensor.detach().numpy() for tensor in tensors]


def _magnitude(array: Array) -> float:
    numbers = np.abs(array[np.isfinite(array)].astype(np.float64)) if array.size else array
    return float(numbers.max()) if numbers.size else 0.0


# --- who runs it ---------------------------------------------------------------------------------

WIDE = ".wide"
"""Behind the name of a bfloat16 value, that of the same in float32: NumPy has no bfloat16."""


@dataclass(frozen=True)
class _Runner:
    name: str
    fetched: Sequence[str]
    call: Any
    note: str = ""
    reference: Callable[[], _Runner] | None = None
    """The evaluator of the standard for the same file, where this is another."""

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        given = {}
        for name, value in feeds.items():
            is_narrow = value.dtype == wf.bfloat16.numpy
            given[name + WIDE if is_narrow else name] = (
                value.astype(np.float32) if is_narrow else value
            )
        try:
            values = self.call(self.fetched, given)
        except Exception as error:
            raise _refusal(self.name, error, self.note) from error
        names = [name.removesuffix(WIDE) for name in self.fetched]
        return {name: np.asarray(value) for name, value in zip(names, values, strict=True)}


def _runner(path: Path, wanted: Sequence[tuple[str, wf.DType]]) -> _Runner:
    """ONNX Runtime where it is installed and has the operators, else onnx's own evaluator."""
    onnx = require_onnx()
    onnx.checker.check_model(str(path))
    message = onnx.load(path, load_external_data=False)
    fetched = [name + WIDE if dtype is wf.bfloat16 else name for name, dtype in wanted]
    _show_values(onnx, message, fetched)
    inspected = path.with_name(f"{path.name}.values")
    onnx.save(message, inspected)
    note = ""
    if find_spec("onnxruntime") is not None:
        runtime = import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = runtime.InferenceSession(
                str(inspected), options, providers=["CPUExecutionProvider"]
            )
            name = f"onnxruntime {runtime.__version__}"
            return _Runner(
                name, fetched, session.run, "", lambda: _reference(inspected, fetched, "")
            )
        except Exception as error:  # a kernel that it does not have
            note = f"onnxruntime cannot run it: {str(error).splitlines()[0][:200]}"
    return _reference(inspected, fetched, note)


def _reference(path: Path, fetched: Sequence[str], note: str) -> _Runner:
    """The evaluator that the package `onnx` brings along."""
    name = f"onnx.reference {require_onnx().__version__}"
    try:
        evaluator = import_module("onnx.reference").ReferenceEvaluator(str(path))
    except Exception as error:
        raise _refusal(name, error, note) from error
    return _Runner(name, fetched, evaluator.run, note)


def _refusal(name: str, error: Exception, note: str) -> wf.CheckError:
    """What is said where nothing runs the file: why this runtime does not, and the one before."""
    reasons = {"error": str(error).splitlines()[0][:300]} | ({"before": note} if note else {})
    return wf.CheckError(
        OP,
        f"{name} refuses to run the file",
        expected="a file that runs",
        got=reasons,
        fix="compute in float32, for which runtimes have all operators, or export with"
        " verify=False and try the file elsewhere",
    )


def _show_values(onnx: Any, message: Any, fetched: Sequence[str]) -> None:
    """Make values outputs; bfloat16 goes in and comes out as float32."""
    graph, wide, narrow = message.graph, onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16
    present = {value.name for value in graph.output}
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in fetched if name not in present)
    for value in graph.input:
        if value.type.tensor_type.elem_type == narrow:
            name = value.name
            value.name, value.type.tensor_type.elem_type = name + WIDE, wide
            graph.node.insert(0, onnx.helper.make_node("Cast", [name + WIDE], [name], to=narrow))
    graph.node.extend(
        onnx.helper.make_node("Cast", [name.removesuffix(WIDE)], [name], to=wide)
        for name in fetched
        if name.endswith(WIDE)
    )
