"""Checking derivatives and primitives against independent references.

`check_primitive` derives all tests of a primitive from its samples; `check_grads` checks a
function's derivatives against finite differences; `numeric_grad` is those differences. Inside
`checked_memory()`, compiled programs run in the checking mode; see `compiler.checking.memory`.

>>> import weft as wf
>>> x = wf.tensor(3.0, dtype="float64")
>>> round(wf.testing.numeric_grad(lambda x: x * x, x).item(), 6)
6.0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from weft.compiler.lowering.nodes import single_kernel
from weft.compiler.targets.cpu.checking.memory import checked_memory
from weft.compiler.targets.cpu.target import CPU, compile_program
from weft.core import trees
from weft.core.dtypes import from_numpy
from weft.core.errors import ArgumentError, Unsupported, WeftError
from weft.ir import batching, forward, reverse, scalars
from weft.ir.derivatives import Constant, Joint
from weft.ir.dispatch import bind
from weft.ir.graph import Graph, Literal
from weft.ir.kinds import Elementwise
from weft.ir.loop_reference import run_reference
from weft.ir.loop_verify import verify_kernel
from weft.ir.loops import For, Kernel, Store
from weft.ir.primitive import Primitive, Sample
from weft.ir.scalar_functions import lower_element
from weft.ir.scalars import Buffer
from weft.ir.tensor import Tensor, host_array, wrap
from weft.ir.text import parse
from weft.ir.tracing import trace

__all__ = ["check_grads", "check_primitive", "checked_memory", "numeric_grad", "numeric_jvp"]

Array = np.ndarray[Any, Any]
Flat = Callable[..., Sequence[Tensor]]


def numeric_grad(f: Callable[..., Tensor], *args: Any, argnums: int = 0) -> Any:
    """The gradient of a scalar function by central differences, in the dtype of the argument.

    >>> import weft as wf
    >>> slope = numeric_grad(lambda x: x**3, wf.tensor(2.0, dtype="float64"))
    >>> round(float(slope), 4)
    12.0
    """
    leaves, structure = trees.flatten(args[argnums])
    arrays = [np.array(host_array(leaf, "numeric_grad")) for leaf in leaves]

    def value() -> float:
        argument = trees.unflatten(structure, [wrap(array.copy()) for array in arrays])
        result = f(*args[:argnums], argument, *args[argnums + 1 :])
        return float(host_array(result, "numeric_grad"))

    return trees.unflatten(structure, [wrap(_differences(value, array)) for array in arrays])


def _differences(value: Callable[[], float], array: Array) -> Array:
    """Central differences of `value` in each element of an array that it reads."""
    step = _step(array.dtype)
    gradient = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + step
        above = value()
        array[index] = kept - step
        below = value()
        array[index] = kept
        gradient[index] = (above - below) / (2 * step)
    return gradient


def _step(dtype: np.dtype[Any]) -> float:
    """Where rounding and truncation errors of a central difference are about equal."""
    return 1e-5 if dtype in (np.float64, np.complex128) else 1e-2


def numeric_jvp(f: Flat, primals: Sequence[Tensor], tangents: Sequence[Tensor]) -> list[Array]:
    """The directional derivative by central differences."""
    step = 1e-2 if _is_narrow([*primals, *f(*primals)]) else 1e-6

    def outputs_at(sign: float) -> list[Array]:
        moved = [
            wrap(np.asarray(p._value + sign * step * t._value, p._value.dtype))
            for p, t in zip(primals, tangents, strict=True)
        ]
        return [np.asarray(result._value) for result in f(*moved)]

    pairs = zip(outputs_at(1.0), outputs_at(-1.0), strict=True)
    return [(_in_double(above) - _in_double(below)) / (2 * step) for above, below in pairs]


def _is_narrow(tensors: Sequence[Tensor]) -> bool:
    """Whether finite differences have only single precision to work with."""
    return any(tensor.dtype.bits // (1 + tensor.dtype.is_complex) < 64 for tensor in tensors)


def _in_double(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int = 2,
    modes: Sequence[str] = ("forward", "reverse"),
    tolerance: float | None = None,
) -> None:
    """Compare derivatives of f, up to an order and in both modes, with finite differences.

    >>> import weft as wf
    >>> check_grads(wf.sin, [wf.tensor([0.5, 1.0], dtype="float64")])
    """
    leaves, structure = trees.flatten(tuple(args))

    def flat(*xs: Tensor) -> list[Tensor]:
        return trees.leaves(f(*trees.unflatten(structure, list(xs))))

    _check_orders(flat, leaves, order, modes, tolerance)


def _check_orders(
    f: Flat, xs: Sequence[Tensor], order: int, modes: Sequence[str], tolerance: float | None
) -> None:
    generator = np.random.default_rng(0)
    tangents = [_random_like(generator, x) for x in xs]
    expected = numeric_jvp(f, xs, tangents)
    limit = tolerance or (2e-2 if _is_narrow([*xs, *f(*xs)]) else 1e-5)
    if "forward" in modes:
        results, output_tangents = forward.jvp(f, xs, tangents)
        for result, one, other in zip(results, output_tangents, expected, strict=True):
            _close("forward mode", _array(one, result), other, limit)
    if "reverse" in modes:
        _check_adjoint(f, xs, tangents, expected, generator, limit)
    if order > 1 and "reverse" in modes:
        _check_orders(_pullback_function(f, xs, generator), xs, order - 1, modes, limit * 10)


def _check_adjoint(
    f: Flat,
    xs: Sequence[Tensor],
    tangents: Sequence[Tensor],
    pushed: Sequence[Array],
    generator: np.random.Generator,
    limit: float,
) -> None:
    """⟨ct, J t⟩ = ⟨Jᴴ ct, t⟩."""
    results, pullback = reverse.vjp(f, *xs)
    cotangents = [_random_like(generator, result) for result in results]
    backs = pullback(cotangents)
    left = sum(_inner_product(ct._value, p) for ct, p in zip(cotangents, pushed, strict=True))
    right = sum(
        _inner_product(back._value, t._value)
        for back, t in zip(backs, tangents, strict=True)
        if back is not None
    )
    for back, x in zip(backs, xs, strict=True):
        assert back is None or back.type == x.type, f"cotangent {back.type} of a {x.type}"
    _close("reverse mode", np.asarray(right), np.asarray(left), limit)


def _pullback_function(f: Flat, xs: Sequence[Tensor], generator: np.random.Generator) -> Flat:
    """x -> Jᴴ(x) ct for fixed ct: the function whose derivative is f's second."""
    cotangents = [_random_like(generator, result) for result in f(*xs)]

    def pullback_at(*inner: Tensor) -> list[Tensor]:
        _, pullback = reverse.vjp(f, *inner)
        backs = pullback(cotangents)
        return [b if b is not None else x * 0.0 for b, x in zip(backs, inner, strict=True)]

    return pullback_at


def _random_like(generator: np.random.Generator, tensor: Tensor) -> Tensor:
    array = generator.normal(size=tensor.shape)
    if tensor.dtype.is_complex:
        array = array + 1j * generator.normal(size=tensor.shape)
    return wrap(np.asarray(array).astype(tensor.dtype.numpy))


def _inner_product(a: Array, b: Array) -> float:
    return float(np.sum(np.conj(_in_double(np.asarray(a))) * _in_double(np.asarray(b))).real)


def _array(tangent: Tensor | None, result: Tensor) -> Array:
    return np.zeros(result.shape) if tangent is None else tangent._value


def _close(what: str, found: Array, expected: Array, limit: float) -> None:
    scale = 1.0 + float(np.max(np.abs(expected), initial=0.0))
    np.testing.assert_allclose(
        _in_double(np.asarray(found)), _in_double(np.asarray(expected)),
        rtol=limit, atol=limit * scale, err_msg=what,
    )  # fmt: skip


def check_primitive(primitive: Any) -> None:
    """All tests that follow from a primitive's definition, on each of its samples.

    It takes a primitive, or a function that applies one, as `@wf.primitive` makes them.

    >>> import weft as wf
    >>> check_primitive(wf.square)
    """
    primitive = getattr(primitive, "primitive", primitive)
    samples = list(primitive.samples())
    if not samples:
        raise ArgumentError(
            "check_primitive",
            f"{primitive.name} has no samples",
            expected="a definition with samples of correct calls",
            got={"samples": samples},
            fix="@wf.primitive(..., samples=[(np.ones(3), np.ones(3))])",
        )
    for number, sample in enumerate(samples):
        for check in (*CHECKS, *COMPILED_CHECKS):
            try:
                check(primitive, sample)
            except Exception as error:
                error.add_note(
                    f"{check.__name__}: {primitive.name}, sample {number}: {_show(sample)}"
                )
                raise
    check_mistakes(primitive)


def _show(sample: Sample) -> str:
    shapes = [f"{np.asarray(x).dtype}{np.shape(x)}" for x in sample.operands]
    return f"{shapes} {dict(sample.params)}"


def check_type_agrees_with_reference(primitive: Primitive, sample: Sample) -> None:
    """The type rule gives the type that the reference's result has."""
    tensors = [wrap(np.asarray(x)) for x in sample.operands]
    ruled = primitive.type_rule(*[t.type for t in tensors], **sample.params)
    results = bind(primitive, *tensors, **sample.params)
    result_types = tuple(r.type for r in results) if primitive.multiple else results.type
    assert result_types == ruled, f"type rule says {ruled}, reference gives {result_types}"


def check_derivatives(primitive: Primitive, sample: Sample) -> None:
    """Both modes to second order agree with finite differences."""
    if isinstance(primitive.derivatives, Unsupported) or not sample.derivative:
        return
    operands = _wide_operands(primitive, sample)
    moving = [i for i, x in enumerate(operands) if x.dtype.kind in "fc" and x.size]
    if not moving:
        return
    f = _of_operands(primitive, sample, operands, moving)
    xs = [wrap(operands[i]) for i in moving]
    if f(*xs):
        _check_orders(f, xs, 2, ("forward", "reverse"), None)


def _of_operands(
    primitive: Primitive, sample: Sample, operands: Sequence[Array], moving: Sequence[int]
) -> Flat:
    """The primitive as a function of its floating-point operands, to its inexact results."""

    def f(*xs: Tensor) -> list[Tensor]:
        given = dict(zip(moving, xs, strict=True))
        tensors = [given.get(i, wrap(x)) for i, x in enumerate(operands)]
        result = bind(primitive, *tensors, **sample.params)
        results = result if primitive.multiple else (result,)
        return [r for r in results if r.dtype.is_inexact]

    return f


def _wide_operands(primitive: Primitive, sample: Sample) -> list[Array]:
    """The operands in double precision, where the primitive takes that."""
    arrays = [np.asarray(x) for x in sample.operands]
    wide = [_widen_array(array) for array in arrays]
    try:
        primitive.type_rule(*[wrap(array).type for array in wide], **sample.params)
    except WeftError:
        return arrays
    return wide


def _widen_array(array: Array) -> Array:
    dtype = from_numpy(array.dtype)
    if not dtype.is_inexact:
        return array
    return array.astype(np.complex128 if dtype.is_complex else np.float64)


def check_batching_agrees_with_a_loop(primitive: Primitive, sample: Sample) -> None:
    """The batching rule gives what a loop over the batch gives, for each choice of axes."""
    if isinstance(primitive.batch, Unsupported):
        return
    operands = [np.asarray(x) for x in sample.operands]
    for axes in _batch_axes(operands):
        variants = [operands, [_other_values(x) for x in operands]]
        stacked = [
            wrap(x if axis is None else np.stack([v[i] for v in variants], axis))
            for i, (x, axis) in enumerate(zip(operands, axes, strict=True))
        ]

        def f(*xs: Tensor) -> Sequence[Tensor]:
            result = bind(primitive, *xs, **sample.params)
            return result if primitive.multiple else (result,)

        batched_results = [_batch_axis_first(*pair) for pair in batching.vmap(f, 2, stacked, axes)]
        for position in range(2):
            chosen = [
                wrap(x if axis is None else variants[position][i])
                for i, (x, axis) in enumerate(zip(operands, axes, strict=True))
            ]
            for one, other in zip(batched_results, f(*chosen), strict=True):
                assert one.dtype == other._value.dtype, f"batched {axes}: {one.dtype}"
                _close(f"batched along {axes}", one[position], other._value, 1e-4)


def _batch_axis_first(tensor: Tensor, axis: int | None) -> Array:
    array = host_array(tensor, "vmap")
    return np.stack([array, array]) if axis is None else np.moveaxis(array, axis, 0)


def _batch_axes(operands: Sequence[Array]) -> Iterator[tuple[int | None, ...]]:
    """Each operand alone, along its first and last axis; and all operands together."""
    count = len(operands)
    for i, operand in enumerate(operands):
        for axis in {0, operand.ndim}:
            yield tuple(axis if j == i else None for j in range(count))
    if count > 1:
        yield (0,) * count
        yield tuple(operand.ndim for operand in operands)


def _other_values(array: Array) -> Array:
    """Other values of the same dtype that are as valid as the given ones."""
    if from_numpy(array.dtype).is_inexact:
        return np.asarray(array * 0.875).astype(array.dtype)
    return array


def check_text_round_trip(primitive: Primitive, sample: Sample) -> None:
    """A graph of the primitive prints and parses back to an equal graph."""
    tensors = [wrap(np.asarray(x)) for x in sample.operands]

    def f(*xs: Tensor) -> Sequence[Tensor]:
        result = bind(primitive, *xs, **sample.params)
        return result if primitive.multiple else (result,)

    graph = trace(f, [t.type for t in tensors]).graph
    again = parse(str(graph))
    assert isinstance(again, Graph)
    assert again == graph, f"{graph}\nparses to\n{again}"


ULPS = 4
"""How many steps of the result's dtype a lowering may be away from the reference."""


def check_lowering_agrees_with_reference(primitive: Primitive, sample: Sample) -> None:
    """The scalar expression of one element, interpreted, gives what the reference gives."""
    tensors = [wrap(np.asarray(x)) for x in sample.operands]
    if not isinstance(primitive.kind, Elementwise) or isinstance(primitive.lower, Unsupported):
        return
    expected = bind(primitive, *tensors, **sample.params)
    try:
        lowered_result = run_lowered(primitive, sample)
    except Unsupported:
        return
    close_in_ulps(lowered_result.reshape(expected.shape), expected._value, least=1.0)


def run_lowered(primitive: Primitive, sample: Sample) -> Array:
    """The flat result of a primitive's scalar expression, by the loop language's reference."""
    operands = np.broadcast_arrays(*sample.operands)
    types = [wrap(x).type for x in operands]
    dtype = primitive.type_rule(*types, **sample.params).dtype  # type: ignore[union-attr]
    sources = [Buffer(f"x{i}", kind.dtype) for i, kind in enumerate(types)]
    target, place = Buffer("out", dtype, "write"), scalars.index("i")
    value = lower_element(primitive, [source[place] for source in sources], dtype, sample.params)
    body = For(place, scalars.size("n"), (Store(target, place, value),))
    out = np.empty(operands[0].size, dtype.numpy)
    kernel = Kernel(primitive.name, (*sources, target), ("n",), (body,))
    run_reference(kernel, [*[np.ravel(x) for x in operands], out], [out.size])
    return out


def close_in_ulps(found: Array, expected: Array, least: float = 0.0) -> None:
    """Floats are NaN or infinite at the same places, and few steps apart; other results are equal.

    `least`: the size from which on steps are counted, for sums of numbers that cancel. The steps of
    a complex number are those of its size, as its parts are sums that cancel.
    """
    assert found.dtype == expected.dtype, f"{found.dtype} != {expected.dtype}"
    if expected.dtype.kind == "c":
        sizes = np.maximum(np.maximum(np.abs(expected.real), np.abs(expected.imag)), least)
        for one, other in ((found.real, expected.real), (found.imag, expected.imag)):
            np.testing.assert_array_equal(np.isfinite(one), np.isfinite(other))
            finite = np.isfinite(other)
            steps = 2 * ULPS * np.finfo(other.dtype).eps * sizes[finite]
            assert np.all(np.abs(one - other)[finite] <= steps), f"{found!r} is not {expected!r}"
        return
    if not from_numpy(expected.dtype).is_floating:
        np.testing.assert_array_equal(found, expected)
        return
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
    with np.errstate(invalid="ignore"):
        apart = np.abs(_in_double(found) - _in_double(expected))
    one = expected.dtype.type(1)
    epsilon = float(np.nextafter(one, one + one)) - 1.0
    exempt = np.isnan(expected) | (apart <= ULPS * epsilon * least)
    steps = np.where(exempt, np.uint64(0), _steps_between(found, expected))
    worst = int(np.argmax(steps)) if steps.size else 0
    assert np.max(steps, initial=0) <= ULPS, (
        f"{found.flat[worst]!r} is {steps.flat[worst]} steps from {expected.flat[worst]!r}"
    )


def _steps_between(x: Array, y: Array) -> Array:
    """How many representable numbers lie from one to the other, for each pair."""
    a, b = _place(x), _place(y)
    return np.asarray(np.maximum(a, b).view(np.uint64) - np.minimum(a, b).view(np.uint64))


def _place(x: Array) -> Array:
    """The place of each number among all of its dtype, counted from 0."""
    bits = np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}").astype(np.int64).reshape(x.shape)
    highest = 1 << (8 * x.dtype.itemsize - 1)
    return np.asarray(np.where(bits < 0, -(bits & (highest - 1)), bits), np.int64)


def check_constants(primitive: Primitive, sample: Sample) -> None:
    """An operand called constant has no influence that finite differences can see."""
    derivatives = primitive.derivatives
    if isinstance(derivatives, (Unsupported, Joint)) or not sample.derivative:
        return
    operands = _wide_operands(primitive, sample)
    for index, operand in enumerate(operands):
        constant = isinstance(primitive.derivative(index), Constant)
        if constant and operand.dtype.kind in "fc" and operand.size:
            f = _of_operands(primitive, sample, operands, [index])
            xs = [wrap(operand)]
            for difference in numeric_jvp(f, xs, [wrap(np.ones_like(operand))]):
                _close("constant operand", difference, np.zeros(difference.shape), 1e-5)


def check_mistakes(primitive: Primitive) -> None:
    """Every listed mistake is refused with its error, and all fields are filled."""
    for mistake in primitive.mistakes():
        tensors = [wrap(np.asarray(x)) for x in mistake.operands]
        try:
            bind(primitive, *tensors, **mistake.params)
        except WeftError as error:
            assert isinstance(error, mistake.error), f"{type(error)} for {mistake.problem}"
            assert mistake.problem in error.problem, f"{error.problem!r} != {mistake.problem!r}"
            assert error.op and error.expected and error.got and error.fix
        else:
            raise AssertionError(f"{primitive.name} accepted: {mistake.problem}")


def check_operands_are_left_alone(primitive: Primitive, sample: Sample) -> None:
    """A call changes none of its operands, and gives the same twice."""
    arrays = [np.array(x) for x in sample.operands]
    first, second = (_results(primitive, sample, arrays) for _ in range(2))
    for array, operand in zip(arrays, sample.operands, strict=True):
        np.testing.assert_array_equal(array, np.asarray(operand), err_msg="an operand was changed")
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other, err_msg="a second call gives something else")


def check_library_agrees_with_reference(primitive: Primitive, sample: Sample) -> None:
    """The kernel of a shared library gives what the NumPy code beside it gives."""
    reference = None if primitive.native is None else primitive.native.reference
    if reference is None:
        return
    arrays = [np.asarray(x) for x in sample.operands]
    with np.errstate(all="ignore"):
        expected = reference(*arrays, **sample.params)
    wanted = expected if primitive.multiple else (expected,)
    for one, other in zip(_results(primitive, sample, arrays), wanted, strict=True):
        assert one.dtype == np.asarray(other).dtype, f"{one.dtype} != {np.asarray(other).dtype}"
        _close("kernel and reference", one, np.asarray(other), 1e-5)


def check_loops_agree_with_reference(primitive: Primitive, sample: Sample) -> None:
    """The loops of a primitive, run by the loop language's reference, give what it gives."""
    if primitive.loops is None:
        return
    (node,) = _graph(primitive, sample).nodes
    error = Literal(np.zeros(1, np.int32))
    written = single_kernel(node, {}, error, CPU.limits.lowering)
    if written is None:
        return
    verify_kernel(written.kernel)
    arrays = [np.asarray(x) for x in sample.operands]
    (expected,) = _results(primitive, sample, arrays)
    out = np.zeros(expected.size, expected.dtype)
    given = dict(zip(node.operands, [np.ravel(x).copy() for x in arrays], strict=True))
    buffers = [given.get(v, error.value if v is error else out) for v in written.values]
    sizes = [written.known[name] for name in written.kernel.sizes]
    run_reference(written.kernel, buffers, sizes)
    close_in_ulps(out.reshape(expected.shape), expected, least=1.0)


def check_compiled_agrees_with_reference(primitive: Primitive, sample: Sample) -> None:
    """A compiled program of the primitive gives what a call gives."""
    arrays = [np.asarray(x) for x in sample.operands]
    compiled_results = compile_program(_graph(primitive, sample)).run(arrays)
    for one, other in zip(compiled_results, _results(primitive, sample, arrays), strict=True):
        assert one.dtype == other.dtype, f"{one.dtype} != {other.dtype}"
        assert one.shape == other.shape, f"{one.shape} != {other.shape}"
        if primitive.native is not None:
            np.testing.assert_array_equal(one, other)
        elif isinstance(primitive.lower, Unsupported):
            _close("compiled", one, other, 1e-5)
        else:
            close_in_ulps(one, other, least=1.0)


def _graph(primitive: Primitive, sample: Sample) -> Graph:
    """A graph of one call; its constants are inputs."""
    types = [wrap(np.asarray(x)).type for x in sample.operands]

    def f(*xs: Tensor) -> Sequence[Tensor]:
        result = bind(primitive, *xs, **sample.params)
        return result if primitive.multiple else (result,)

    return trace(f, types).graph


def _results(primitive: Primitive, sample: Sample, arrays: Sequence[Array]) -> list[Array]:
    result = bind(primitive, *[wrap(array) for array in arrays], **sample.params)
    return [each._value for each in (result if primitive.multiple else (result,))]


CHECKS: tuple[Callable[[Primitive, Sample], None], ...] = (
    check_type_agrees_with_reference, check_derivatives, check_constants,
    check_batching_agrees_with_a_loop, check_text_round_trip, check_lowering_agrees_with_reference,
)  # fmt: skip

COMPILED_CHECKS: tuple[Callable[[Primitive, Sample], None], ...] = (
    check_operands_are_left_alone,
    check_library_agrees_with_reference,
    check_loops_agree_with_reference,
    check_compiled_agrees_with_reference,
)
"""What `check_primitive` checks beyond; the suite checks it of the library's own in other ways."""
