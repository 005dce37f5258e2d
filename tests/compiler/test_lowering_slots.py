"""Every scalar expression of a primitive against its NumPy reference, at the edges of each dtype.

The samples are checked by `tests/test_primitives.py`; here are zeros of both signs, infinities,
NaN, the least and the greatest numbers, and for two operands all pairs of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft as wf
from weft.core.dtypes import (
    DTYPES,
    DType,
    bool_,
    complex64,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint64,
)
from weft.core.errors import Unsupported
from weft.ir import scalars
from weft.ir.dispatch import bind
from weft.ir.primitive import PRIMITIVES, Primitive, Sample, find
from weft.ir.scalar_functions import lower_element, why_not_lowered
from weft.ir.tensor import wrap
from weft.testing import Array, close_in_ulps, run_lowered

pytestmark = pytest.mark.slow

ELEMENTWISE = [p for p in PRIMITIVES.values() if p.broadcasts]
REAL = [dtype for dtype in DTYPES if not dtype.is_complex]
OPEN_ZEROS = {"maximum", "minimum", "clip", "relu"}
"""Of two zeros with different signs, NumPy takes either."""
CANCELLING = {"logaddexp": 1.0, "lgamma": 2.0}
"""Sums that vanish where their summands do not: steps there are those of numbers of this size."""
APART: dict[str, Callable[..., Any]] = {
    # NumPy takes a lone exponent 1/2 for a square root, and the instruction's reference with it
    "pow": lambda x1, x2: (x2 == 0.5) & ((x1 == 0) | (x1 == -np.inf)),
    # the reference reflects negative numbers, which costs digits near zeros and poles
    "lgamma": lambda x: (x.dtype == np.float64) & (x < 0),
}
"""Operands at which one of the references is wrong, not the lowering."""


def edges(dtype: DType, count: int) -> Array:
    """Numbers of a dtype that special cases are made of; fewer where they come in pairs."""
    if dtype is bool_:
        return np.array([False, True])
    if dtype.is_integer:
        whole = np.iinfo(dtype.numpy)
        near = [0, 1, -1, 2, 3, -7, 100, dtype.bits - 1, dtype.bits]
        inside = [x for x in near if whole.min <= x <= whole.max]
        return np.array([*inside, whole.min, whole.max, whole.max - 1], dtype.numpy)
    limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    ends = [limits.smallest_subnormal, limits.tiny, limits.max]
    positive = [0.0, 0.5, 1.0, 2.0, 3.5, np.inf, *map(float, ends)]
    if count == 1:
        positive += [0.1, 0.3, 0.9, 1.5, 4.5, 7.0, 11.0, 20.0, 30.0, 88.0, 100.0, float(limits.eps)]
    return np.array([*positive, *(-x for x in positive), np.nan], dtype.numpy)


def edge_operands(primitive: Primitive, dtype: DType) -> tuple[Array, ...]:
    """All tuples of edges, as one array per operand."""
    count = len(primitive.samples()[0].operands)
    first = edges(bool_ if primitive.name == "where" else dtype, count)
    second = float32 if primitive.name == "float8_numbers" else dtype  # codes have a scale
    others = edges(second, count)[:: max(1, count - 1)]
    grids = np.meshgrid(first, *[others] * (count - 1), indexing="ij")
    return tuple(grid.ravel() for grid in grids)


def takes(primitive: Primitive, operands: tuple[Array, ...]) -> bool:
    try:
        types = [wrap(x).type for x in operands]
        dtype = primitive.type_rule(*types).dtype  # type: ignore[union-attr]
    except wf.DTypeError:
        return False
    return why_not_lowered(primitive, [t.dtype for t in types], dtype, {}) is None


def edge_cases() -> Iterator[Any]:
    for primitive, dtype in product(ELEMENTWISE, REAL):
        operands = edge_operands(primitive, dtype)
        if takes(primitive, operands):
            yield pytest.param(primitive, operands, id=f"{primitive.name}-{dtype.name}")


@pytest.mark.parametrize(("primitive", "operands"), [*edge_cases()])
def test_lowering_agrees_with_the_reference_at_the_edges(
    primitive: Primitive, operands: tuple[Array, ...]
) -> None:
    compare(primitive, operands)


def compare(primitive: Primitive, operands: tuple[Array, ...], **params: Any) -> None:
    if primitive.name in APART:
        with np.errstate(invalid="ignore"):
            usable = ~APART[primitive.name](*operands)
        operands = tuple(x[usable] for x in operands)
    found = run_lowered(primitive, Sample(operands, params))
    expected = bind(primitive, *map(wrap, operands), **params)._value
    close_in_ulps(found, expected, least=CANCELLING.get(primitive.name, 0.0))
    # ml_dtypes has signs of zero of its own
    if expected.dtype.kind == "f" and primitive.name not in OPEN_ZEROS:
        zeros = (expected == 0) & (found == 0)
        np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(expected[zeros]))


def scattered_cases() -> Iterator[Any]:
    generator = np.random.default_rng(5)
    for primitive, dtype in product(ELEMENTWISE, (float32, float64, int32, uint64)):
        count = len(primitive.samples()[0].operands)
        raw = [np.frombuffer(generator.bytes(800), dtype.numpy) for _ in range(count)]
        if primitive.name == "where":
            raw[0] = raw[0] > 0
        if takes(primitive, tuple(raw)):
            yield pytest.param(primitive, tuple(raw), id=f"{primitive.name}-{dtype.name}")


@pytest.mark.parametrize(("primitive", "operands"), [*scattered_cases()])
def test_lowering_agrees_with_the_reference_on_numbers_of_all_sizes(
    primitive: Primitive, operands: tuple[Array, ...]
) -> None:
    compare(primitive, operands)


UNARY = [p for p in ELEMENTWISE if len(p.samples()[0].operands) == 1 and takes(p, (np.ones(1),))]


@pytest.mark.parametrize("primitive", UNARY, ids=lambda p: p.name)
def test_functions_are_accurate_between_minus_twenty_and_twenty(primitive: Primitive) -> None:
    for dtype in (np.float32, np.float64):
        compare(primitive, (np.linspace(-20.0, 20.0, 203, dtype=dtype),))


@pytest.mark.parametrize("target", [d for d in DTYPES if not d.is_complex], ids=str)
@pytest.mark.parametrize("source", [d for d in DTYPES if not d.is_complex], ids=str)
def test_convert_agrees_with_the_reference_within_range(source: DType, target: DType) -> None:
    numbers = edges(source, 1)
    if source.is_floating and target.is_integer:
        wide = numbers.astype(np.float64)
        limits = np.iinfo(target.numpy)
        numbers = numbers[(wide > float(limits.min) - 1) & (wide < float(limits.max))]
    compare(find("convert"), (numbers,), dtype=target)


@pytest.mark.parametrize("exponent", [-11, -3, -1, 0, 1, 2, 3, 7, 8, 9, 30])
@pytest.mark.parametrize("dtype", [d for d in REAL if d is not bool_], ids=str)
def test_integer_powers_agree_with_the_reference(dtype: DType, exponent: int) -> None:
    if exponent < 0 and (dtype.is_integer or dtype is float16):
        return  # refused; or rounded by the reference before the division, which overflows
    compare(find("integer_pow"), (edges(dtype, 1),), exponent=exponent)


def test_small_powers_of_floats_have_the_bits_of_the_reference() -> None:
    x = np.linspace(-2, 2, 101, dtype=np.float32)
    found = run_lowered(find("integer_pow"), Sample((x,), {"exponent": 7}))
    np.testing.assert_array_equal(found, find("integer_pow").reference(x, exponent=7))


@pytest.mark.parametrize("primitive", ELEMENTWISE, ids=lambda p: p.name)
def test_an_elementwise_primitive_is_lowered_or_says_why_not(primitive: Primitive) -> None:
    if isinstance(primitive.lower, Unsupported):
        assert len(primitive.lower.reason.split()) > 3, primitive.lower.reason
    else:
        assert any(takes(primitive, edge_operands(primitive, dtype)) for dtype in REAL)


def test_16_bit_floats_are_computed_in_float32_and_rounded_once() -> None:
    x = scalars.local("x", float16)
    assert str(lower_element(find("sigmoid"), [x], float16, {})) == (
        "cast<f16>(1 / (exp(-cast<f32>(x)) + 1))"
    )


def test_what_has_no_expression_gives_its_reason() -> None:
    assert "complex" in str(why_not_lowered(find("exp"), [complex64], complex64, {}))
    assert "negative power" in str(why_not_lowered(find("pow"), [int64, int64], int64, {}))
    assert "no function" in str(why_not_lowered(find("reshape"), [float32], float32, {}))
    assert why_not_lowered(find("exp"), [float32], float32, {}) is None


FAULTS: dict[str, Callable[..., Any]] = {
    "log1p": lambda scalar, x: scalar.log(x + 1),
    "expm1": lambda scalar, x: scalar.exp(x) - 1,
    "remainder": lambda scalar, x1, x2: scalar.fmod(x1, x2),
    "floor_divide": lambda scalar, x1, x2: scalar.floor(x1 / x2),
    "maximum": lambda scalar, x1, x2: scalar.select(x1 < x2, x2, x1),
    "logaddexp": lambda scalar, x1, x2: scalar.log(scalar.exp(x1) + scalar.exp(x2)),
    "sign": lambda scalar, x: scalar.cast(x > 0, x.dtype) - scalar.cast(x < 0, x.dtype),
    "round": lambda scalar, x: scalar.floor(x + 0.5),
    "signbit": lambda scalar, x: x < 0,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_careless_lowering_is_found(name: str) -> None:
    primitive = find(name)
    kept = primitive.lower
    object.__setattr__(primitive, "lower", FAULTS[name])
    try:
        with pytest.raises(AssertionError):
            compare(primitive, edge_operands(primitive, float32))
    finally:
        object.__setattr__(primitive, "lower", kept)
