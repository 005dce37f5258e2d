"""Faults put in on purpose: each must turn at least one of the checks red.

A fault replaces a slot of a primitive, or a function of the library, for the length of one check.
Every check is run without the fault too, before and after, so that it is the fault it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests import laws

import weft as wf
from weft import testing
from weft.core.types import TensorType
from weft.ir import batching, dispatch, forward, graph, printing, reverse, tape, text, tracing
from weft.ir.derivatives import additive, constant, joint, linear, tangent
from weft.ir.primitive import PRIMITIVES, Sample
from weft.ir.tensor import Tensor, wrap
from weft.ops import families, operands
from weft.transforms import backward, checkpoint, custom

Check = Callable[[], None]


class Fault(NamedTuple):
    """What is broken, how, and the check that must see it."""

    name: str
    broken: Callable[[], AbstractContextManager[None]]
    check: Check


@contextmanager
def slot(name: str, **slots: Any) -> Iterator[None]:
    """A primitive with other slots."""
    primitive = PRIMITIVES[name]
    before = {key: getattr(primitive, key) for key in slots}
    for key, value in slots.items():
        object.__setattr__(primitive, key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            object.__setattr__(primitive, key, value)


@contextmanager
def patched(*places: Any, value: Any) -> Iterator[None]:
    """A function of the library replaced, under each (module, name) it is known by."""
    before = [getattr(owner, name) for owner, name in places]
    for owner, name in places:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), old in zip(places, before, strict=True):
            setattr(owner, name, old)


# The library as it is, for faults that change a part of it.
BACKPROPAGATE = reverse.backpropagate
PROPAGATE = reverse._propagate
STRUCTURE = graph.structure
NUMBER_TEXT = printing.number_text
PARAM_TEXT = graph.param_text
LIVE = tracing.without_dead_nodes
MOVE_AXIS = batching.move_axis
RESULT_TYPE = operands.result_type


# --- the checks ---


def derived(name: str) -> Check:
    """All checks that follow from the definition of a primitive."""
    return lambda: testing.check_primitive(PRIMITIVES[name])


def double(*shape: int) -> Tensor:
    size = int(np.prod(shape))
    return wf.asarray(np.sin(1.0 + np.arange(size, dtype=np.float64)).reshape(shape))


def diamond(x: Tensor, y: Tensor) -> list[Tensor]:
    """Values that are used twice, broadcast, transposed, and a constant."""
    a = wf.sin(x) * y
    b = a + a.T.sum(axis=1) * 0.1
    return [b * a / 3.14159, wf.concat([a, b], axis=1)]


def holds(law: Callable[..., None], f: Any = diamond) -> Check:
    arguments = (double(2, 3), double(3))
    return lambda: law(f, arguments)


def refuses(error: type[Exception], call: Callable[[], object]) -> bool:
    try:
        call()
    except error:
        return True
    return False


def second_backward_is_refused() -> None:
    x = wf.tensor(3.0, requires_grad=True)
    y = x * x
    y.backward()
    assert refuses(wf.GradientError, y.backward)


def gradients_accumulate() -> None:
    x = wf.tensor(3.0, requires_grad=True)
    (x * 2.0).backward()
    (x * 5.0).backward()
    assert x.grad.item() == 7.0


def scalars_are_weak() -> None:
    half = wf.ones(2, dtype="float16")
    assert (half * 2.0).dtype == wf.float16
    assert (wf.tensor([1, 2], dtype="int8") + 1).dtype == wf.int8
    assert (wf.tensor([1, 2]) * wf.ones(2)).dtype == wf.float32


def writing_changes_nothing_earlier() -> None:
    x = wf.tensor([1.0, 2.0])
    y = x * 1.0
    x += 1.0
    x[0] = 9.0
    assert y.tolist() == [1.0, 2.0]
    assert x.tolist() == [9.0, 3.0]


def no_grad_ends() -> None:
    with wf.no_grad():
        pass
    assert wf.is_grad_enabled()
    assert (wf.tensor(1.0, requires_grad=True) * 2.0).requires_grad


def perturbations_are_kept_apart() -> None:
    def slope(f: Any) -> Any:
        return lambda x: wf.jvp(f, (x,), (wf.tensor(1.0),))[1]

    assert slope(lambda x: x * slope(lambda y: x + y)(wf.tensor(1.0)))(wf.tensor(1.0)).item() == 1.0


def leaks_are_refused() -> None:
    kept: list[Tensor] = []
    wf.vmap(lambda x: kept.append(x) or x)(wf.ones(2))
    assert refuses(wf.LeakError, lambda: kept[0] + 1.0)


def checkpoints_draw_the_same_numbers() -> None:
    x = wf.ones(20).requires_grad_()
    seen: list[Any] = []

    def f(y: Tensor) -> Tensor:
        noise = wf.random.normal((20,))
        seen.append(noise.numpy())
        return (y * noise).sum()

    wf.checkpoint(f)(x).backward()
    np.testing.assert_array_equal(x.grad.numpy(), seen[0])


def custom_rules_hold_under_vmap() -> None:
    @wf.custom_derivative
    def f(x: Tensor) -> Tensor:
        return x * x

    f.jvp(lambda p, t: (f(*p), 100.0 * t[0]))
    assert wf.vmap(wf.grad(f))(wf.ones(2)).tolist() == [100.0, 100.0]
    assert wf.grad(lambda x: wf.vmap(f)(x).sum())(wf.ones(2)).tolist() == [100.0, 100.0]


def large_values_make_no_difference() -> None:
    def gradient() -> Any:
        a, b = double(2, 3).requires_grad_(), double(3, 2).requires_grad_()
        ((a @ b) * wf.exp(a[:, :2]) / 3.0 + a.T[:2]).sum().backward()
        return a.grad.numpy(), b.grad.numpy()

    expected = gradient()
    with patched((tape, "LARGE"), (families, "LARGE"), value=0):
        found = gradient()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def loops_differentiate_what_they_close_over() -> None:
    gradient = wf.grad(lambda x: wf.fori_loop(0, 2, lambda i, y: y * x, x))
    assert gradient(wf.tensor(2.0)).item() == 12.0


def stopped_is_stopped() -> None:
    assert wf.grad(lambda x: x * wf.stop_gradient(x))(wf.tensor(3.0)).item() == 3.0


# --- what is broken ---


def multiplied(derivatives: Sequence[Any], factor: float) -> list[Any]:
    rule = derivatives[0].rule
    return [tangent(lambda t, *rest, **params: factor * rule(t, *rest, **params), diagonal=True)]


def of(name: str) -> Any:
    return PRIMITIVES[name]


def wrong_type(name: str, change: Callable[[TensorType], TensorType]) -> Any:
    rule = of(name).type_rule
    return lambda *types, **params: change(rule(*types, **params))


def detached(x: Tensor) -> Tensor:
    return wrap(x._value.primal._value if isinstance(x._value, forward.Dual) else x._value)


FLIP_BATCH = of("flip").batch
DOT_TYPE = of("dot").type_rule
CUMULATIVE_BATCH = of("cumulative_sum").batch


PRIMITIVE_FAULTS = [
    Fault(
        "a derivative that is another function's",
        lambda: slot("sin", derivatives=(tangent(lambda t, out, x: t * x, diagonal=True),)),
        derived("sin"),
    ),
    Fault(
        "a derivative that is off by a factor",
        lambda: slot("exp", derivatives=tuple(multiplied(of("exp").derivatives, 1.01))),
        derived("exp"),
    ),
    Fault(
        "a derivative with the wrong sign for one operand",
        lambda: slot(
            "subtract",
            derivatives=(
                additive(lambda ct, a, b: ct),
                additive(lambda ct, a, b: ct),
            ),
        ),
        derived("subtract"),
    ),
    Fault(
        "a transpose that forgets to conjugate",
        lambda: slot(
            "multiply",
            derivatives=(linear(lambda ct, a, b: ct * b), linear(lambda ct, a, b: ct * a)),
        ),
        derived("multiply"),
    ),
    Fault(
        "a transpose that forgets the other operand",
        lambda: slot(
            "multiply",
            derivatives=(linear(lambda ct, a, b: ct), of("multiply").derivatives[1]),
        ),
        derived("multiply"),
    ),
    Fault(
        "a derivative that is right to first order only",
        lambda: slot(
            "sin", derivatives=(tangent(lambda t, out, x: t * wf.cos(detached(x)), diagonal=True),)
        ),
        derived("sin"),
    ),
    Fault(
        "an operand called constant that is not",
        lambda: slot("log", derivatives=(constant("for no reason at all"),)),
        derived("log"),
    ),
    Fault(
        "a sum whose transpose does not broadcast",
        lambda: slot("reduce_sum", derivatives=(linear(lambda ct, x, axes: ct),)),
        derived("reduce_sum"),
    ),
    Fault(
        "a transpose that keeps the order of axes",
        lambda: slot(
            "transpose",
            derivatives=(linear(lambda ct, x, order: wf.permute_dims(ct, order)),),
        ),
        derived("transpose"),
    ),
    Fault(
        "a batching rule that does not shift the axes",
        lambda: slot(
            "reduce_sum",
            batch=lambda size, operands, places, /, **params: (
                dispatch.apply(of("reduce_sum"), MOVE_AXIS(operands[0], places[0], 0), **params),
                0,
            ),
        ),
        derived("reduce_sum"),
    ),
    Fault(
        "a batching rule that reports the wrong axis",
        lambda: slot(
            "flip",
            batch=lambda *arguments, **params: (FLIP_BATCH(*arguments, **params)[0], 1),
        ),
        derived("flip"),
    ),
    Fault(
        "a batching rule that only works for the first axis",
        lambda: slot(
            "cumulative_sum",
            batch=lambda size, operands, places, /, **params: CUMULATIVE_BATCH(
                size, operands, (0,), **params
            ),
        ),
        derived("cumulative_sum"),
    ),
    Fault(
        "a batching rule that broadcasts operands against the batch",
        lambda: slot(
            "add", batch=lambda size, operands, axes: (dispatch.apply(of("add"), *operands), 0)
        ),
        derived("add"),
    ),
    Fault(
        "a type rule with the wrong dtype",
        lambda: slot("less", type_rule=wrong_type("less", lambda kind: kind.with_dtype(wf.uint8))),
        derived("less"),
    ),
    Fault(
        "a type rule with the wrong shape",
        lambda: slot(
            "transpose",
            type_rule=wrong_type("transpose", lambda kind: kind.with_shape(kind.shape[::-1])),
        ),
        derived("transpose"),
    ),
    Fault(
        "a type rule that lets wrong shapes through",
        lambda: slot(
            "dot",
            type_rule=lambda a, b, **params: DOT_TYPE(a, a if a.ndim == b.ndim else b, **params),
        ),
        lambda: testing.check_mistakes(of("dot")),
    ),
    Fault(
        "a reference with a wrong constant",
        lambda: slot("log2", reference=lambda x: (np.log(x) * 1.44).astype(x.dtype)),
        derived("log2"),
    ),
    Fault(
        "a reference of another dtype than ruled",
        lambda: slot("tanh", reference=lambda x: np.tanh(x).astype(np.float64)),
        derived("tanh"),
    ),
    Fault(
        "a reference that ignores a parameter",
        lambda: slot("reduce_sum", reference=lambda x, axes: np.asarray(np.sum(x))),
        derived("reduce_sum"),
    ),
    Fault(
        "a convolution whose weight gradient is flipped",
        lambda: slot(
            "conv_weight_gradient",
            reference=_flipped(of("conv_weight_gradient").reference),
        ),
        derived("conv"),
    ),
    Fault(
        "a sort that loses its derivative's permutation",
        lambda: slot("sort", derivatives=(linear(lambda ct, x, **params: ct),)),
        derived("sort"),
    ),
    Fault(
        "a factorization that is transposed",
        lambda: slot(
            "cholesky",
            reference=lambda x, **params: np.swapaxes(np.linalg.cholesky(x), -1, -2),
        ),
        derived("cholesky"),
    ),
    Fault(
        "a scan whose cotangents are twice too large",
        lambda: slot("scan", derivatives=_doubled(of("scan").derivatives)),
        derived("scan"),
    ),
    Fault(
        "a switch that takes the derivative of its first branch",
        lambda: slot("switch", reference=_always_first(of("switch").reference)),
        derived("switch"),
    ),
]


def _flipped(reference: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays, **params: np.flip(reference(*arrays, **params), axis=-1).copy()


def _doubled(derivatives: Any) -> Any:
    def vjp(*arguments: Any, **params: Any) -> list[Any]:
        backs = derivatives.vjp(*arguments, **params)
        return [None if back is None else back * 2.0 for back in backs]

    return joint(derivatives.jvp, vjp)


def _always_first(reference: Callable[..., Any]) -> Callable[..., Any]:
    return lambda index, *arrays, **params: reference(np.zeros_like(index), *arrays, **params)


def _ascending(*arguments: Any, **options: Any) -> Any:
    order, *rest = arguments
    return BACKPROPAGATE(list(reversed(order)), *rest, **options)


def _keeping(*arguments: Any, **options: Any) -> Any:
    return BACKPROPAGATE(*arguments, **(options | {"release": False}))


def _last_wins(cotangents: Any, live: Any, node: Any, cotangent: Any, attach: bool) -> None:
    before = dict(cotangents)
    PROPAGATE(cotangents, live, node, cotangent, attach)
    for key in before:
        if key in cotangents and key in node.parents:
            cotangents[key] = before[key]


def _any_dual(self: forward.ForwardTrace, tensor: Tensor) -> Any:
    value = tensor._value
    return (value.primal, value.tangent) if isinstance(value, forward.Dual) else (tensor, None)


def _all_emptied(primitive: Any, values: Any, out: Any) -> Any:
    return tuple(tape._without_large_value(value) for value in values), tape._without_large_value(
        out
    )


def _in_memory(tensor: Tensor, result: Tensor, op: str) -> Tensor:
    tensor._value[...] = result._value
    return tensor


def _sharing(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: x if type(y) is float and y == 1.0 else function(x, y)


@contextmanager
def _off_for_good(enabled: bool) -> Iterator[None]:
    tape.grad_mode.enabled = enabled
    yield


@contextmanager
def written_in_memory() -> Iterator[None]:
    """`x * 1.0` shares memory with x, and writing goes to memory: values change."""
    names = [(wf.Tensor, "__iadd__"), (wf.Tensor, "__setitem__"), (wf.Tensor, "__mul__")]
    before = [getattr(owner, name) for owner, name in names]

    def add(self: Tensor, other: Any) -> Tensor:
        self._value += other
        return self

    def write(self: Tensor, key: Any, value: Any) -> None:
        self._value[key] = value

    for (owner, name), value in zip(names, [add, write, _sharing(before[2])], strict=True):
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in zip(names, before, strict=True):
            setattr(owner, name, value)


def _rounded(value: Any, dtype: Any) -> str | None:
    return f"{float(value):.3g}" if dtype.is_floating else NUMBER_TEXT(value, dtype)


def _without_params(program: Any) -> str:
    lines = STRUCTURE(program).splitlines()
    return "\n".join(line.partition(";")[0] for line in lines)


def _without_first(program: Any) -> Any:
    return graph.Graph(program.inputs, LIVE(program).nodes[1:], program.outputs)


LIBRARY_FAULTS = [
    Fault(
        "broadcasting that reverse mode does not undo",
        lambda: patched((reverse, "sum_to"), value=lambda tensor, shape: tensor),
        derived("add"),
    ),
    Fault(
        "broadcasting undone along the wrong axis",
        lambda: patched(
            (reverse, "sum_to"),
            value=lambda tensor, shape: reverse.zeros(TensorType(tensor.dtype, shape)),
        ),
        derived("add"),
    ),
    Fault(
        "the tape walked from its beginning",
        lambda: patched((reverse, "backpropagate"), value=_ascending),
        holds(laws.law_reverse_is_forward),
    ),
    Fault(
        "only the first of several contributions to a cotangent",
        lambda: patched((reverse, "_propagate"), value=_last_wins),
        holds(laws.law_reverse_is_forward),
    ),
    Fault(
        "a diagonal rule that is not conjugated",
        lambda: patched(
            (reverse, "_diagonal"),
            value=lambda rule, ct, out, operands, params: rule(ct, out, *operands, **params),
        ),
        derived("exp"),
    ),
    Fault(
        "a tape that is not freed",
        lambda: patched((backward, "backpropagate"), value=_keeping),
        second_backward_is_refused,
    ),
    Fault(
        "a gradient that replaces the one before",
        lambda: patched(
            (backward, "_accumulate"),
            value=lambda handle, cotangent, attach: setattr(handle, "_grad", cotangent),
        ),
        gradients_accumulate,
    ),
    Fault(
        "a tape that keeps too little",
        lambda: patched((tape, "keep"), (families, "keep"), value=_all_emptied),
        large_values_make_no_difference,
    ),
    Fault(
        "writing that changes memory",
        written_in_memory,
        writing_changes_nothing_earlier,
    ),
    Fault(
        "recording that stays off",
        lambda: _restoring_mode(patched((backward, "recording"), value=_off_for_good)),
        no_grad_ends,
    ),
    Fault(
        "tangents of several operands that are not added",
        lambda: patched((forward, "_plus"), value=lambda a, b: a),
        derived("multiply"),
    ),
    Fault(
        "perturbations of different levels confused",
        lambda: patched((forward.ForwardTrace, "primal_and_tangent"), value=_any_dual),
        perturbations_are_kept_apart,
    ),
    Fault(
        "a leaked tensor that is not called so",
        lambda: patched((dispatch, "leak_error"), value=lambda value, purpose: KeyError(purpose)),
        leaks_are_refused,
    ),
    Fault(
        "an axis that is not moved",
        lambda: patched(
            (batching, "move_axis"), (families, "move_axis"), value=lambda x, source, target: x
        ),
        derived("add"),
    ),
    Fault(
        "numbers printed with three digits",
        lambda: patched((printing, "number_text"), value=_rounded),
        holds(laws.law_text_is_read_back),
    ),
    Fault(
        "booleans among parameters printed as numbers",
        lambda: patched(
            (printing, "param_text"),
            value=lambda v, nested: PARAM_TEXT(int(v) if isinstance(v, bool) else v, nested),
        ),
        derived("sort"),
    ),
    Fault(
        "tuples of one printed as numbers",
        lambda: patched(
            (printing, "param_text"),
            value=lambda v, nested: PARAM_TEXT(
                v[0] if isinstance(v, tuple) and len(v) == 1 else v, nested
            ),
        ),
        derived("reduce_sum"),
    ),
    Fault(
        "numbers read as if they were single precision",
        lambda: patched(
            (text, "read_number"),
            value=lambda written, dtype: printing.read_number(written, wf.float32).astype(
                dtype.numpy
            ),
        ),
        holds(laws.law_text_is_read_back, lambda x, y: [x * 0.1 + y]),
    ),
    Fault(
        "graphs compared without their parameters",
        lambda: patched((graph, "structure"), value=_without_params),
        holds(laws.law_different_programs_differ),
    ),
    Fault(
        "a graph that loses a node",
        lambda: patched((tracing, "without_dead_nodes"), value=_without_first),
        holds(laws.law_a_traced_program_computes_the_same),
    ),
    Fault(
        "Python scalars that widen a dtype",
        lambda: patched(
            (operands, "result_type"),
            value=lambda op, kinds: RESULT_TYPE(
                op, [wf.float64 if isinstance(kind, (int, float)) else kind for kind in kinds]
            ),
        ),
        scalars_are_weak,
    ),
    Fault(
        "a checkpoint that draws new random numbers",
        lambda: patched((checkpoint.random, "set_state"), value=lambda state: None),
        checkpoints_draw_the_same_numbers,
    ),
    Fault(
        "a batch that forgets a user's rule",
        lambda: patched((custom, "_batched_rule"), value=lambda rule: custom._SAMPLE_RULE),
        custom_rules_hold_under_vmap,
    ),
    Fault(
        "stop_gradient that lets derivatives through",
        lambda: patched((wf, "stop_gradient"), value=lambda x: x),
        stopped_is_stopped,
    ),
    Fault(
        "a graph that takes closed-over tensors for constants",
        lambda: patched(
            (tracing.GraphTrace, "atom"),
            value=lambda self, tensor: (
                tensor._value.variable
                if isinstance(tensor._value, tracing.Staged)
                else tracing.Literal(np.asarray(tensor._value))
            ),
        ),
        loops_differentiate_what_they_close_over,
    ),
]


@contextmanager
def _restoring_mode(fault: AbstractContextManager[None]) -> Iterator[None]:
    try:
        with fault:
            yield
    finally:
        tape.grad_mode.enabled = True


FAULTS = [*PRIMITIVE_FAULTS, *LIBRARY_FAULTS]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name.replace(" ", "_") for fault in FAULTS])
def test_a_fault_turns_a_check_red(fault: Fault) -> None:
    fault.check()
    with fault.broken(), pytest.raises(Exception) as caught:  # noqa: PT011 (whatever it is)
        fault.check()
    print(repr(caught.value)[:200])
    fault.check()


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 25
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_a_slot_is_put_back() -> None:
    before = of("sin").derivatives
    with slot("sin", derivatives=()):
        assert of("sin").derivatives == ()
    assert of("sin").derivatives is before


def test_samples_reach_the_checks() -> None:
    """A check that saw no sample would be green whatever is broken."""
    seen: list[Sample] = []
    with patched((testing, "CHECKS"), value=(lambda primitive, sample: seen.append(sample),)):
        testing.check_primitive(of("sin"))
    assert len(seen) == len(of("sin").samples())
