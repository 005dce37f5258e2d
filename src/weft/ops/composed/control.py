"""Control flow that is part of the program: branches and loops over traced functions.

Each function given here is traced once to a graph, whether the call is made eagerly or inside
`jit`, so it means the same in both: Python side effects happen once, at the trace. Arguments,
carries and results are trees of tensors. Tensors that a function closes over take part in
derivatives and batching like any argument, and draws from the global generator of `wf.random`
continue through branches and loops.

>>> import weft as wf
>>> wf.fori_loop(0, 5, lambda i, total: total + i, wf.tensor(0)).item()
10
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.dtypes import bool_, int32
from weft.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, WeftError
from weft.core.records import frozen
from weft.core.shapes import Dim, Dimension, check_size, equal
from weft.core.trees import TreeStructure, flatten, unflatten
from weft.core.types import TensorType
from weft.ir.constants import beside_operands
from weft.ir.dispatch import apply_multiple
from weft.ir.graph import Graph, Variable
from weft.ir.tensor import Tensor, wrap
from weft.ir.tracing import trace
from weft.ops import control_branch, control_loop
from weft.ops.arithmetic import add
from weft.ops.comparison import less
from weft.ops.control import same_type
from weft.ops.control_call import call_graph as call_graph
from weft.ops.operands import as_sequence, as_tensor, as_tensor_in, check_function, convert_to
from weft.ops.random_bits import GENERATOR

__all__ = ["case", "cond", "fori_loop", "map", "scan", "switch", "while_loop"]

Function = Callable[..., Any]


@frozen
class Recorded:
    """A function over trees, traced: its graph of (arguments, counter, captured tensors)."""

    name: str
    graph: Graph
    captured: tuple[Tensor, ...]
    structure: TreeStructure
    """Of the results."""
    draws: bool
    """Whether it draws from the global generator; then its last output is the counter."""

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of the results, without the counter's."""
        types = self.graph.output_types
        return types[:-1] if self.draws else types


# --- branches ----------------------------------------------------------------------------------


@beside_operands
def cond(pred: Any, true_fn: Function, false_fn: Function, /, *operands: Any) -> Any:
    """The result of `true_fn(*operands)` if `pred` holds, else that of `false_fn(*operands)`.

    Both functions are traced, also for a concrete `pred`; only the chosen one is computed. Their
    results must agree in structure, shapes and dtypes.

    >>> import weft as wf
    >>> x = wf.tensor(3.0)
    >>> wf.cond(x > 0.0, lambda x: x * 2.0, lambda x: -x, x).item()
    6.0
    """
    index = convert_to(_predicate("cond", pred), int32)
    functions = {"false_fn": false_fn, "true_fn": true_fn}
    return _branch("cond", index, functions, operands)


@beside_operands
def switch(index: Any, branches: Sequence[Function], /, *operands: Any) -> Any:
    """The result of `branches[index](*operands)`; an index that names no branch is refused.

    All branches are traced; only the chosen one is computed.

    >>> import weft as wf
    >>> wf.switch(1, [wf.sin, wf.exp, wf.cos], wf.tensor(0.0)).item()
    1.0
    """
    branches = as_sequence("switch", "branches", branches)
    if not branches:
        raise ArgumentError(
            "switch",
            "no branches",
            expected="at least one function",
            got={"branches": branches},
            fix="switch(index, [f, g], x)",
        )
    chosen = as_tensor("switch", index, "index")
    if not chosen.dtype.is_integer or chosen.ndim != 0:
        raise ArgumentTypeError(
            "switch",
            "the index is not one integer",
            expected="a Python integer or an integer tensor without axes",
            got={"index": index},
            fix='index.astype("int32"), or wf.vmap for many indices',
        )
    functions = {f"branches[{i}]": f for i, f in enumerate(branches)}
    return _branch("switch", chosen, functions, operands)


@beside_operands
def case(pairs: Sequence[tuple[Any, Function]], /, *operands: Any, default: Function) -> Any:
    """The result of the first function whose predicate holds, else of `default`.

    >>> import weft as wf
    >>> x = wf.tensor(0.0)
    >>> wf.case([(x > 1.0, wf.sin), (x > -1.0, wf.cos)], x, default=wf.exp).item()
    1.0
    """
    check_function("case", default)
    pairs = as_sequence("case", "pairs", pairs)
    if not pairs:
        return default(*operands)
    first, *rest = pairs
    if not isinstance(first, (tuple, list)) or len(first) != 2:
        raise ArgumentTypeError(
            "case",
            "not a pair of a predicate and a function",
            expected="(predicate, function) for each case",
            got={"pair": first},
            fix="wf.case([(x > 1.0, f)], x, default=g)",
        )
    pred, function = first
    return cond(pred, function, lambda *xs: case(rest, *xs, default=default), *operands)


def _branch(
    op: str, index: Tensor, functions: dict[str, Function], operands: tuple[Any, ...]
) -> Any:
    leaves, structure = _tensors(op, operands)
    types = _types(leaves)
    recorded = [_record(op, name, f, structure, types) for name, f in functions.items()]
    first = recorded[-1]
    for other in recorded[:-1]:
        _check_equal_types(op, first, other)
    counters = [GENERATOR.state()[1]] if any(each.draws for each in recorded) else []
    consts, graphs = _unify_captures(recorded, len(types), bool(counters))
    given = (*consts, *leaves, *counters)
    results = apply_multiple(control_branch.switch, index, *given, branches=tuple(graphs), rows=0)
    return unflatten(first.structure, _hand_over_counter(results, bool(counters)))


# --- loops -------------------------------------------------------------------------------------


@beside_operands
def scan(
    f: Function,
    init: Any,
    xs: Any = None,
    /,
    length: Dimension | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Carry a state along the first axis of `xs`: `f(carry, x)` gives the next carry and a `y`.

    Returns the last carry and the `y`s, stacked. `xs` may be a tree, or None with a `length`;
    `reverse` goes from the last element to the first, and leaves each y at the place of its x.
    The carry keeps its structure, shapes and dtypes; a Python number in `init` takes the dtype that
    `f` gives it. In reverse mode the carry of every step is kept, and steps are computed again.

    >>> import weft as wf
    >>> total, sums = wf.scan(lambda c, x: (c + x, c + x), 0.0, wf.tensor([1.0, 2.0, 3.0]))
    >>> total.item(), sums.tolist()
    (6.0, [1.0, 3.0, 6.0])
    """
    scanned, outer = _tensors("scan", xs, "xs")
    steps = _length(scanned, outer, length)
    kinds = [x.type.with_shape(x.shape[1:]) for x in scanned]

    arguments = flatten((init, xs))[1]

    def record(carry: Sequence[Tensor]) -> Recorded:
        return _check_pair(_record("scan", "f", f, arguments, [*_types(carry), *kinds]))

    carry, recorded = _record_stable_carry("scan", init, record)
    counters = [GENERATOR.state()[1]] if recorded.draws else []
    consts, (graph,) = _unify_captures([recorded], len(carry) + len(kinds), recorded.draws)
    graph = _counter_to_carry(graph, len(consts), len(carry), recorded.draws)
    results = apply_multiple(
        control_loop.scan,
        *consts,
        *carry,
        *counters,
        *scanned,
        graph=graph,
        num_consts=len(consts),
        num_carry=len(carry) + len(counters),
        length=steps,
        reverse=bool(reverse),
    )
    held = len(carry) + len(counters)
    last = _hand_over_counter(results[:held], recorded.draws)
    inner, stacked = recorded.structure.children
    return unflatten(inner, last), unflatten(stacked, results[held:])


def map(f: Function, xs: Any, /) -> Any:
    """The results of `f` on each element of `xs` along its first axis, stacked.

    One element after the other, in the memory of one; `wf.vmap` takes all at once.

    >>> import weft as wf
    >>> wf.map(lambda x: x * x, wf.tensor([1.0, 2.0, 3.0])).tolist()
    [1.0, 4.0, 9.0]
    """
    check_function("map", f)
    return scan(lambda carry, x: (carry, f(x)), (), xs)[1]


@beside_operands
def while_loop(
    cond_fn: Function, body_fn: Function, init: Any, /, *, max_steps: int | None = None
) -> Any:
    """The carry after `carry = body_fn(carry)` as long as `cond_fn(carry)` holds.

    At most `max_steps` times where that is given; a derivative in reverse mode needs it.

    >>> import weft as wf
    >>> wf.while_loop(lambda x: x < 100.0, lambda x: x * 2.0, wf.tensor(3.0)).item()
    192.0
    """
    _check_max_steps(max_steps)

    arguments = flatten((init,))[1]

    def record(carry: Sequence[Tensor]) -> Recorded:
        return _record("while_loop", "body_fn", body_fn, arguments, _types(carry))

    carry, body = _record_stable_carry("while_loop", init, record)
    test = _record("while_loop", "cond_fn", cond_fn, arguments, _types(carry))
    _check_test(test)
    counters = [GENERATOR.state()[1]] if body.draws else []
    consts, graphs = _unify_captures([test, body], len(carry), body.draws)
    results = apply_multiple(
        control_loop.while_,
        *consts,
        *carry,
        *counters,
        cond=replace(graphs[0], outputs=graphs[0].outputs[:1]),
        body=graphs[1],
        num_consts=len(consts),
        max_steps=max_steps,
    )
    return unflatten(body.structure, _hand_over_counter(results, body.draws))


@beside_operands
def fori_loop(lower: Any, upper: Any, body: Function, init: Any, /) -> Any:
    """The carry after `carry = body(i, carry)` for each i from `lower` to before `upper`.

    Python integers as bounds make a loop of known length, which reverse mode goes back over; with
    a tensor as a bound it is a `while_loop`, which has forward mode only.

    >>> import weft as wf
    >>> wf.fori_loop(0, 3, lambda i, x: x * 2.0, wf.tensor(1.0)).item()
    8.0
    """
    check_function("fori_loop", body)
    if isinstance(lower, int) and isinstance(upper, int):
        steps = check_size("fori_loop", "upper", max(upper - lower, 0))

        def step(state: Any, _: Any) -> Any:
            i, carry = state
            return (add(i, 1), body(i, carry)), None

        return scan(step, (wrap(np.array(lower)), init), length=steps)[0][1]
    first, last = (_bound_tensor(name, x) for name, x in (("lower", lower), ("upper", upper)))
    dtype = last.dtype if isinstance(lower, int) else first.dtype
    first, last = convert_to(first, dtype), convert_to(last, dtype)
    state = (first, init)
    return while_loop(
        lambda state: less(state[0], last), lambda state: (add(state[0], 1), body(*state)), state
    )[1]


# --- tracing -----------------------------------------------------------------------------------


def _tensors(op: str, tree: Any, name: str = "operands") -> tuple[list[Tensor], TreeStructure]:
    """The leaves as tensors, and the structure."""
    leaves, structure = flatten(tree)
    paths = [_path(name, path) for path in structure.paths()]
    return [as_tensor(op, x, path) for x, path in zip(leaves, paths, strict=True)], structure


def _types(tensors: Sequence[Tensor]) -> list[TensorType]:
    return [tensor.type for tensor in tensors]


def _path(name: str, path: str) -> str:
    return f"{name}{path if path.startswith('[') or not path else '.' + path}"


def _record(
    op: str,
    name: str,
    f: Function,
    arguments: TreeStructure,
    types: Sequence[TensorType],
) -> Recorded:
    """Trace a function over trees; `arguments` is the structure of the tuple of its arguments."""
    check_function(op, f)
    structures: list[TreeStructure] = []
    counter = GENERATOR.state()[1].type
    draws = False

    def flat(*tensors: Tensor) -> list[Tensor]:
        nonlocal draws
        with GENERATOR.use_counter(tensors[-1]) as handle:
            results, structure = _tensors(op, f(*unflatten(arguments, tensors[:-1])), name)
        structures.append(structure)
        draws = handle._value is not tensors[-1]._value
        return [*results, handle] if draws else results

    closure = trace(flat, [*types, counter])
    return Recorded(name, closure.graph, closure.captured, structures[0], draws)


def _unify_captures(
    recorded: Sequence[Recorded], count: int, draws: bool
) -> tuple[list[Tensor], list[Graph]]:
    """What any of the functions captured, and their graphs of (captured, arguments, counter).

    If any function draws, all graphs end in the counter.
    """
    consts: dict[tuple[int, int], Tensor] = {}
    for each in recorded:
        for tensor in each.captured:
            consts.setdefault(_identity(tensor), tensor)
    graphs = []
    for each in recorded:
        inputs, counter = each.graph.inputs[:count], each.graph.inputs[count]
        places = zip(each.captured, each.graph.inputs[count + 1 :], strict=True)
        own = {_identity(tensor): variable for tensor, variable in places}
        captured = [own.get(key) or Variable(tensor.type) for key, tensor in consts.items()]
        outputs = each.graph.outputs
        if draws:
            inputs = (*inputs, counter)
            outputs = outputs if each.draws else (*outputs, counter)
        graphs.append(Graph((*captured, *inputs), each.graph.nodes, outputs))
    return list(consts.values()), graphs


def _identity(tensor: Tensor) -> tuple[int, int]:
    return id(tensor._value), id(tensor._node)


def _counter_to_carry(graph: Graph, num_consts: int, num_carry: int, draws: bool) -> Graph:
    """The counter, which is last, moved to the end of the carry."""
    if not draws:
        return graph
    held = num_consts + num_carry
    inputs = (*graph.inputs[:held], graph.inputs[-1], *graph.inputs[held:-1])
    outputs = graph.outputs
    outputs = (*outputs[:num_carry], outputs[-1], *outputs[num_carry:-1])
    return Graph(inputs, graph.nodes, outputs)


def _hand_over_counter(results: Sequence[Tensor], draws: bool) -> Sequence[Tensor]:
    """The results without the counter, which the generator takes over."""
    if not draws:
        return results
    GENERATOR.advance(results[-1])
    return results[:-1]


def _record_stable_carry(
    op: str,
    init: Any,
    record: Callable[[Sequence[Tensor]], Recorded],
) -> tuple[list[Tensor], Recorded]:
    """The carry, with Python numbers in the dtype that the function gives them; and the trace."""
    given = flatten(init)[0]
    carry, structure = _tensors(op, init, "init")
    recorded = record(carry)
    _check_structure(op, structure, recorded)
    types = recorded.types
    wider = [
        as_tensor_in(op, leaf, t.dtype, "init") if _is_weak(leaf, c, t) else c
        for leaf, c, t in zip(given, carry, types, strict=False)
    ]
    if any(a is not b for a, b in zip(wider, carry, strict=True)):
        carry, recorded = wider, record(wider)
    paths = [_path("init", path) for path in structure.paths()]
    for path, c, t in zip(paths, carry, recorded.types, strict=False):
        if not same_type(c.type, t):
            raise _carry_error(op, recorded.name, path, c.type, t)
    return carry, recorded


def _is_weak(leaf: Any, carry: Tensor, result: TensorType) -> bool:
    """Whether a leaf is a Python number to which the function gives another dtype."""
    is_number = type(leaf) in (bool, int, float, complex)
    return is_number and result.shape == () and result.dtype is not carry.dtype


# --- refusing ----------------------------------------------------------------------------------


def _predicate(op: str, pred: Any) -> Tensor:
    tensor = as_tensor(op, pred, "pred")
    if tensor.dtype is not bool_ or tensor.ndim != 0:
        raise ArgumentTypeError(
            op,
            "the predicate is not one truth value",
            expected="a bool, or a bool tensor without axes",
            got={"pred": pred},
            fix="compare and reduce: wf.any(x > 0), or wf.where for a choice by element",
        )
    return tensor


def _bound_tensor(name: str, value: Any) -> Tensor:
    tensor = as_tensor("fori_loop", value, name)
    if not tensor.dtype.is_integer or tensor.ndim != 0:
        raise ArgumentTypeError(
            "fori_loop",
            "a bound is not one integer",
            expected="a Python integer or an integer tensor without axes",
            got={name: value},
            fix=f'{name}.astype("int64")',
        )
    return tensor


def _check_max_steps(max_steps: object) -> None:
    if max_steps is None or (type(max_steps) is int and max_steps >= 0):
        return
    raise ArgumentError(
        "while_loop",
        "max_steps is not a number of steps",
        expected="a Python integer of at least 0, or None",
        got={"max_steps": max_steps},
        fix="while_loop(cond, body, init, max_steps=100)",
    )


def _check_test(test: Recorded) -> None:
    if test.draws:
        raise ArgumentError(
            "while_loop",
            "the condition draws from the global generator, which it cannot advance",
            expected="draws in the body, or an explicit key",
            got={"cond_fn": "draws random numbers"},
            fix="draw in body_fn and keep the number in the carry",
        )
    if test.types != (TensorType(bool_, ()),):
        raise ArgumentTypeError(
            "while_loop",
            "the condition is not one truth value",
            expected="cond_fn(carry) -> bool[]",
            got={"cond_fn": list(test.types)},
            fix="compare and reduce: lambda x: wf.any(x > 0)",
        )


def _check_pair(recorded: Recorded) -> Recorded:
    if recorded.structure.kind is not tuple or len(recorded.structure.children) != 2:
        raise ArgumentTypeError(
            "scan",
            "the function does not return a pair",
            expected="f(carry, x) -> (carry, y)",
            got={"f": recorded.structure},
            fix="return carry, y (y may be None)",
        )
    return recorded


def _check_structure(op: str, wanted: TreeStructure, recorded: Recorded) -> None:
    result_structure = recorded.structure.children[0] if op == "scan" else recorded.structure
    if result_structure != wanted:
        raise ArgumentError(
            op,
            f"{recorded.name} changes the structure of the carry",
            expected=f"the structure of init: {wanted}",
            got={"init": wanted, recorded.name: result_structure},
            fix=f"return a carry structured as {wanted}",
        )


def _carry_error(op: str, name: str, path: str, a: TensorType, b: TensorType) -> WeftError:
    """The error for a carry that comes out of a step with another type."""
    kind, fix = (
        (DTypeError, f'make {path} {b.dtype.name}: {path}.astype("{b.dtype.name}")')
        if a.dtype is not b.dtype
        else (ShapeError, f"give {path} the shape {list(b.shape)}, or keep its shape in {name}")
    )
    return kind(
        op,
        f"{name} changes the type of the carry at {path}",
        expected=f"{name} to give {a} there, as {path} has",
        got={path: a, name: b},
        fix=fix,
    )


def _check_equal_types(op: str, first: Recorded, other: Recorded) -> None:
    if first.structure != other.structure:
        raise ArgumentError(
            op,
            "the branches return different structures",
            expected=f"results structured as {first.name}'s: {first.structure}",
            got={first.name: first.structure, other.name: other.structure},
            fix=f"return {first.structure} from {other.name}",
        )
    paths = [_path("result", path) for path in first.structure.paths()]
    for path, a, b in zip(paths, first.types, other.types, strict=True):
        if not same_type(a, b):
            kind, change = (
                (DTypeError, f'.astype("{a.dtype.name}")')
                if a.dtype is not b.dtype
                else (ShapeError, f".reshape({a.shape})")
            )
            raise kind(
                op,
                f"the branches return different types at {path}",
                expected=f"{a} from every branch",
                got={first.name: a, other.name: b},
                fix=f"in {other.name} return {path}{change}",
            )


def _length(xs: Sequence[Tensor], structure: TreeStructure, length: Any) -> Dimension:
    """The common length of what is scanned over, and of `length` where it is given."""
    if length is not None and (isinstance(length, bool) or not isinstance(length, (int, Dim))):
        length = _integer_length(length)
    common_length: Dimension | None = length
    source = "length"
    for path, x in zip(structure.paths(), xs, strict=True):
        name = _path("xs", path)
        if x.ndim == 0:
            raise ShapeError(
                "scan",
                f"{name} has no axis to scan over",
                expected="tensors with at least one axis",
                got={name: x},
                fix=f"close over {name} in the function instead",
            )
        if common_length is not None and not equal(common_length, x.shape[0]):
            raise ShapeError(
                "scan",
                "lengths differ",
                expected=f"a first axis of {common_length}, as {source} has",
                got={source: common_length, name: x},
                note=f"{common_length} != {x.shape[0]}",
                fix=f"{name}[:{common_length}]",
            )
        common_length, source = x.shape[0], name
    if common_length is None or (isinstance(common_length, int) and common_length < 0):
        raise ArgumentError(
            "scan",
            "the number of steps is not known",
            expected="xs with a first axis, or length of at least 0",
            got={"length": length},
            fix="scan(f, init, None, length=10)",
        )
    return common_length


def _integer_length(length: object) -> int:
    if isinstance(length, np.integer):
        return int(length)
    raise ArgumentTypeError(
        "scan",
        "length is not an integer",
        expected="a Python integer",
        got={"length": length},
        fix="scan(f, init, None, length=10)",
    )
