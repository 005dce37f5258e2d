"""Eager and compiled programs agree on the edges of every dtype: NaN, infinities, zeros, limits.

Signs of zeros, places of NaN and infinities, integers and truth values are equal to the bit; other
numbers are equal up to rounding. The primitives are those of the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft as wf
from weft.core.dtypes import DTYPES, DType
from weft.core.errors import WeftError
from weft.ir.dispatch import bind
from weft.ir.graph import Graph
from weft.ir.primitive import PRIMITIVES, Primitive, Sample
from weft.ir.tensor import wrap

Array = np.ndarray[Any, Any]
Compiled = Callable[..., Any]


def _has_graphs(primitive: Primitive) -> bool:
    params = [each for sample in primitive.samples() for each in sample.params.values()]
    return any(isinstance(each, Graph | tuple) and "graph(" in str(each) for each in params)


REAL = [dtype for dtype in DTYPES if not dtype.is_complex]
FLOATS = [dtype for dtype in DTYPES if dtype.is_floating]
POINTWISE = [p for _, p in sorted(PRIMITIVES.items()) if p.broadcasts and callable(p.lower)]
FREE = {
    "svd", "qr", "eigh", "eig", "lu", "svdvals", "pinv", "eigvals", "eigvalsh", "adjugate_slope",
}  # fmt: skip
"""Decompositions, whose signs are free, and what is made of them: zeros are what rounding leaves
(tests/ops/test_linalg.py and tests/compiler/test_matrix_functions.py compare these)."""
OTHERS = [
    p
    for _, p in sorted(PRIMITIVES.items())
    if not p.broadcasts and not p.impure and p.name not in FREE and not _has_graphs(p)
]
EXTENDED = {
    f"{name}{side}"
    for name in ("conv", "conv_last")
    for side in ("", "_input_gradient", "_weight_gradient")
}
"""Compiled, these multiply zeros around and between elements, which makes NaN of infinities."""
ZEROS = [0.0, -0.0]
SETS = {
    "zeros": ZEROS,
    "units": [*ZEROS, 1.0, -1.0],
    "open": [*ZEROS, 1.0, np.nan, np.inf, -np.inf],
}
LENGTHS = [1, 3, 16, 17, 65, 200]


def edges(dtype: DType) -> Array:
    """Numbers at which something ends: a range, a precision, a sign."""
    if dtype.kind == "bool":
        return np.array([True, False])
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        values = {0, 1, 2, 3, 7, 8, 31, 32, 63, 64, -1, -2, -7, -8, limits.min, limits.min + 1}
        values |= {limits.max, limits.max // 2}
        return np.array([x for x in sorted(values) if limits.min <= x <= limits.max], dtype.numpy)
    limits = ml_dtypes.finfo(dtype.numpy)
    sizes = [np.inf, 0.0, float(limits.tiny), float(limits.smallest_subnormal), float(limits.max)]
    sizes += [float(limits.max) / 2, float(limits.eps), 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, np.pi]
    sizes += [88.9, 127.5, 128.0, 255.5, 256.0, 710.0, 1e4, 32767.5, 65535.5, 2.0**31, 3e9]
    sizes += [2.0**63, 2.0**64]
    with np.errstate(all="ignore"):
        return np.array([np.nan, *sizes, *[-x for x in sizes]]).astype(dtype.numpy)


def differences(eager: Array, compiled: Array, ulps: float) -> list[int]:
    """Where results differ by more than rounding, or in a sign, a NaN or an infinity."""
    assert eager.shape == compiled.shape
    assert eager.dtype == compiled.dtype
    if eager.dtype.kind == "c":
        parts = [(eager.real, compiled.real), (eager.imag, compiled.imag)]
        return [i for a, b in parts for i in differences(a.copy(), b.copy(), ulps)]
    if eager.dtype.kind in "biu":
        return np.flatnonzero(eager != compiled).tolist()
    limits = ml_dtypes.finfo(eager.dtype)
    x, y = eager.astype(np.float64).ravel(), compiled.astype(np.float64).ravel()
    with np.errstate(all="ignore"):
        known = ~np.isnan(x) & ~np.isnan(y)
        apart = (np.isnan(x) != np.isnan(y)) | (np.isinf(x) != np.isinf(y))
        apart |= known & (np.signbit(x) != np.signbit(y))
        limit = ulps * float(limits.eps) * np.maximum(abs(x), abs(y))
        limit += 2 * float(limits.smallest_subnormal)
        apart |= np.isfinite(x) & np.isfinite(y) & (abs(x - y) > limit)
    return np.flatnonzero(apart).tolist()


def compiled_call(primitive: Primitive, params: Any) -> Compiled:
    """A call of a primitive, compiled once for each type of its operands."""
    return wf.jit(lambda *xs: bind(primitive, *xs, **params))


def agree(
    primitive: Primitive, operands: list[Array], params: Any, ulps: float = 16,
    call: Compiled | None = None,
) -> None:  # fmt: skip
    """A call gives the same eagerly and compiled; one that is compiled already may be given."""
    tensors = [wrap(each) for each in operands]
    try:
        with np.errstate(all="ignore"):
            eager = bind(primitive, *tensors, **params)
    except WeftError:
        return
    compiled = (call or compiled_call(primitive, params))(*tensors)
    pairs = zip(_tuple(eager), _tuple(compiled), strict=True)
    for one, other in pairs:
        apart = differences(one.numpy(), other.numpy(), ulps)
        shown = [
            ([str(x.flat[i]) for x in operands if x.size > i], one.numpy().flat[i].item(),
             other.numpy().flat[i].item())
            for i in apart[:4]
        ]  # fmt: skip
        assert not apart, f"{primitive.name} {operands[0].dtype}: {shown}"


def _tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def _grid(primitive: Primitive, dtype: DType) -> list[Array]:
    """All combinations of edge values, or of the first few where there are three operands."""
    count = len(primitive.samples()[0].operands)
    values = edges(dtype) if count < 3 else edges(dtype)[:12]
    operands = [each.ravel() for each in np.meshgrid(*[values] * count, indexing="ij")]
    if primitive.name == "where":
        operands[0] = operands[0].astype(bool)
    return operands


@pytest.mark.slow
@pytest.mark.parametrize("primitive", POINTWISE, ids=lambda p: p.name)
def test_elements_on_the_edges_are_the_same_compiled(primitive: Primitive) -> None:
    for dtype in REAL:
        ulps = 64 if primitive.name == "lgamma" else 16  # it is 0 near some of these numbers
        agree(primitive, _grid(primitive, dtype), primitive.samples()[0].params, ulps)


@pytest.mark.slow
@pytest.mark.parametrize("primitive", POINTWISE, ids=lambda p: p.name)
def test_elements_of_every_size_are_the_same_compiled(primitive: Primitive) -> None:
    generator = np.random.default_rng(3)
    count = len(primitive.samples()[0].operands)
    for dtype in FLOATS:
        limits = ml_dtypes.finfo(dtype.numpy)
        reach = np.log10(float(limits.tiny)), np.log10(float(limits.max))
        operands = []
        for _ in range(count):
            sizes = [10.0 ** generator.uniform(*reach, 200), 10.0 ** generator.uniform(-3, 3, 200)]
            numbers = np.concatenate([*sizes, generator.uniform(0, 20, 200)])
            numbers *= generator.choice([1, -1], numbers.size)
            generator.shuffle(numbers)
            operands.append(numbers.astype(dtype.numpy))
        if primitive.name == "where":
            operands[0] = operands[0] > 0
        near_zero = primitive.name in ("lgamma", "digamma", "logaddexp")
        ulps = 256 if near_zero else 8
        agree(primitive, operands, primitive.samples()[0].params, ulps)


def _filled(sample: Sample, dtype: DType, values: list[float], seed: int) -> list[Array] | None:
    """A sample's operands with other floats in them; None where it has none."""
    generator = np.random.default_rng(seed)
    arrays = [np.asarray(each) for each in sample.operands]
    floats = [x.dtype.kind == "f" or x.dtype == ml_dtypes.bfloat16 for x in arrays]
    if not any(floats):
        return None
    return [
        generator.choice(np.array(values), size=x.shape).astype(dtype.numpy) if is_float else x
        for x, is_float in zip(arrays, floats, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("primitive", OTHERS, ids=lambda p: p.name)
def test_zeros_and_what_is_not_finite_go_the_same_way_compiled(primitive: Primitive) -> None:
    for number, sample in enumerate(primitive.samples()[:4]):
        call = compiled_call(primitive, sample.params)
        for dtype, (name, values) in product(FLOATS, SETS.items()):
            operands = _filled(sample, dtype, values, number)
            if operands is not None and not (name == "open" and primitive.name in EXTENDED):
                agree(primitive, operands, sample.params, 64, call)


def _rows() -> Iterator[Array]:
    """NaN and zeros of both signs at every place of rows on both sides of a vector's width."""
    generator = np.random.default_rng(0)
    for length in LENGTHS:
        rows = generator.choice(np.array([*ZEROS, -1.0]), size=(6, length))
        rows[1] = -0.0
        rows[2] = np.where(np.arange(length) == length - 1, 0.0, -0.0)
        rows[3] = np.where(np.arange(length) == length // 2, np.nan, rows[3])
        rows[4] = np.where(np.arange(length) == length - 1, np.nan, 1.0)
        rows[5] = np.where(np.arange(length) == 0, -np.inf, np.nan)
        yield rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reduce_max", "reduce_min", "reduce_sum", "reduce_prod"])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_reductions_of_every_length_find_nan_and_order_zeros(name: str, dtype: DType) -> None:
    primitive = PRIMITIVES[name]
    for rows in _rows():
        for x, axes in ((rows, (1,)), (rows.T, (0,)), (rows, (0, 1)), (rows[:, :1], (1,))):
            agree(primitive, [np.ascontiguousarray(x).astype(dtype.numpy)], {"axes": axes}, 64)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["argmax", "argmin", "sort", "argsort"])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_positions_and_orders_are_the_same_with_nan_and_zeros(name: str, dtype: DType) -> None:
    more = [{"descending": False}, {"descending": True}] if "sort" in name else [{}]
    for rows, params in product(_rows(), more):
        agree(PRIMITIVES[name], [rows.astype(dtype.numpy)], {"axis": 1, **params})


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_extremes_put_zeros_in_order_wherever_they_stand(dtype: DType) -> None:
    """Both eagerly and compiled, for contiguous and strided operands of any length."""
    for length in LENGTHS:
        x = np.resize(np.array([0.0, -0.0, -0.0, 0.0]), 2 * length).astype(dtype.numpy)
        y = np.resize(np.array([-0.0, 0.0, -0.0, 0.0]), 2 * length).astype(dtype.numpy)
        for a, b in ((x[:length], y[:length]), (x[::2], y[::2])):
            for transformed in (lambda f: f, wf.jit):
                high = transformed(wf.maximum)(wf.asarray(a), wf.asarray(b)).numpy()
                low = transformed(wf.minimum)(wf.asarray(a), wf.asarray(b)).numpy()
                cut = transformed(wf.relu)(wf.asarray(a)).numpy()
                np.testing.assert_array_equal(np.signbit(high), np.signbit(a) & np.signbit(b))
                np.testing.assert_array_equal(np.signbit(low), np.signbit(a) | np.signbit(b))
                assert not np.signbit(cut).any()


@pytest.mark.slow
@pytest.mark.parametrize("source", REAL, ids=lambda d: d.name)
def test_conversions_are_the_same_compiled(source: DType) -> None:
    generator = np.random.default_rng(1)
    values = edges(source)
    if source.is_floating:
        wide = generator.standard_normal(300) * 10.0 ** generator.uniform(-12, 22, 300)
        with np.errstate(all="ignore"):
            values = np.concatenate([values, wide.astype(source.numpy)])
    for target in REAL:
        agree(PRIMITIVES["convert"], [values], {"dtype": target}, 0)


@pytest.mark.parametrize("transformed", [lambda f: f, wf.jit], ids=["eager", "compiled"])
def test_a_float_becomes_the_nearest_integer_of_the_range_and_nan_0(transformed: Any) -> None:
    x = wf.tensor([np.nan, np.inf, -np.inf, 300.7, -1.9, 1e20, -1e20])
    expected = {
        "int8": [0, 127, -128, 127, -1, 127, -128],
        "uint8": [0, 255, 0, 255, 0, 255, 0],
        "int32": [0, 2**31 - 1, -(2**31), 300, -1, 2**31 - 1, -(2**31)],
        "uint64": [0, 2**64 - 1, 0, 300, 0, 2**64 - 1, 0],
        "bool": [True] * 7,
    }
    for name, numbers in expected.items():
        assert transformed(lambda x, name=name: x.astype(name))(x).tolist() == numbers, name


def test_a_constant_of_both_zeros_is_not_one_number() -> None:
    zeros = np.array([0.0, -0.0] * 5, np.float32)
    found = wf.jit(lambda x: wf.copysign(x, zeros))(wf.ones(10)).numpy()
    np.testing.assert_array_equal(found, np.copysign(np.ones(10, np.float32), zeros))


def test_a_product_that_sums_nothing_keeps_the_sign_of_zeros() -> None:
    x, y = wf.tensor([-0.0, 1.0, -2.0]), wf.tensor([0.0, -0.0, 3.0, 1.0])
    for f in (wf.outer, lambda x, y: wf.einsum("i,j->ij", x, y)):
        found, expected = wf.jit(f)(x, y).numpy(), np.multiply.outer(x.numpy(), y.numpy())
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
        np.testing.assert_array_equal(np.signbit(f(x, y).numpy()), np.signbit(expected))


@pytest.mark.parametrize("depth", [1, 2, 3, 16, 17, 64, 130])
def test_a_product_that_sums_zeros_gives_positive_zero(depth: int) -> None:
    """A sum starts from 0.0, so that only its own terms' signs are lost, eagerly and compiled."""
    for rows, columns in ((1, 1), (1, 5), (5, 1), (5, 7), (40, 40)):
        x, y = wf.full((rows, depth), -0.0), wf.ones((depth, columns))
        for f in (wf.matmul, wf.jit(wf.matmul)):
            assert not np.signbit(f(x, y).numpy()).any(), (rows, columns)
        for g in (wf.vecdot, wf.jit(wf.vecdot)):
            assert not np.signbit(g(x[0], y[:, 0]).numpy()).any()
