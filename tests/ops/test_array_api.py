"""The Array API standard 2024.12: what its own test suite does not see.

Every name and signature of the standard, values against NumPy where the suite compares only types,
and operators with scalars and arrays on either side. How tensors leave for Python's numbers, NumPy
and DLPack is in test_exchange.py.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf

# --- names and signatures ----------------------------------------------------------------------

CONSTANTS = ["e", "inf", "nan", "newaxis", "pi"]
DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32",
    "float64", "complex64", "complex128",
]  # fmt: skip
UNARY = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_invert", "ceil", "conj",
    "cos", "cosh", "exp", "expm1", "floor", "imag", "isfinite", "isinf", "isnan", "log", "log1p",
    "log2", "log10", "logical_not", "negative", "positive", "real", "reciprocal", "round", "sign",
    "signbit", "sin", "sinh", "square", "sqrt", "tan", "tanh", "trunc",
]  # fmt: skip
BINARY = [
    "add", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal",
    "hypot", "less", "less_equal", "logaddexp", "logical_and", "logical_or", "logical_xor",
    "maximum", "minimum", "multiply", "nextafter", "not_equal", "pow", "remainder", "subtract",
]  # fmt: skip
MAIN = """
    __array_namespace_info__()
    all(x, /, *, axis=None, keepdims=False)
    any(x, /, *, axis=None, keepdims=False)
    arange(start, /, stop=None, step=1, *, dtype=None, device=None)
    argmax(x, /, *, axis=None, keepdims=False)
    argmin(x, /, *, axis=None, keepdims=False)
    argsort(x, /, *, axis=-1, descending=False, stable=True)
    asarray(obj, /, *, dtype=None, device=None, copy=None)
    astype(x, dtype, /, *, copy=True, device=None)
    broadcast_arrays(*arrays)
    broadcast_shapes(*shapes)
    broadcast_to(x, /, shape)
    can_cast(from_, to, /)
    clip(x, /, min=None, max=None)
    concat(arrays, /, *, axis=0)
    count_nonzero(x, /, *, axis=None, keepdims=False)
    cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False)
    cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False)
    diff(x, /, *, axis=-1, n=1, prepend=None, append=None)
    empty(shape, *, dtype=None, device=None)
    empty_like(x, /, *, dtype=None, device=None)
    expand_dims(x, /, axis)
    eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)
    finfo(type, /)
    flip(x, /, *, axis=None)
    from_dlpack(x, /, *, device=None, copy=None)
    full(shape, fill_value, *, dtype=None, device=None)
    full_like(x, /, fill_value, *, dtype=None, device=None)
    iinfo(type, /)
    isdtype(dtype, kind)
    isin(x1, x2, /, *, invert=False)
    linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True)
    matmul(x1, x2, /)
    matrix_transpose(x, /)
    max(x, /, *, axis=None, keepdims=False)
    mean(x, /, *, axis=None, keepdims=False)
    meshgrid(*arrays, indexing='xy')
    min(x, /, *, axis=None, keepdims=False)
    moveaxis(x, source, destination, /)
    nonzero(x, /)
    ones(shape, *, dtype=None, device=None)
    ones_like(x, /, *, dtype=None, device=None)
    permute_dims(x, /, axes)
    prod(x, /, *, axis=None, dtype=None, keepdims=False)
    repeat(x, repeats, /, *, axis=None)
    reshape(x, /, shape, *, copy=None)
    result_type(*arrays_and_dtypes)
    roll(x, /, shift, *, axis=None)
    searchsorted(x1, x2, /, *, side='left', sorter=None)
    sort(x, /, *, axis=-1, descending=False, stable=True)
    squeeze(x, /, axis)
    stack(arrays, /, *, axis=0)
    std(x, /, *, axis=None, correction=0.0, keepdims=False)
    sum(x, /, *, axis=None, dtype=None, keepdims=False)
    take(x, indices, /, *, axis=None)
    take_along_axis(x, indices, /, *, axis=-1)
    tensordot(x1, x2, /, *, axes=2)
    tile(x, repetitions, /)
    tril(x, /, *, k=0)
    triu(x, /, *, k=0)
    unique_all(x, /)
    unique_counts(x, /)
    unique_inverse(x, /)
    unique_values(x, /)
    unstack(x, /, *, axis=0)
    var(x, /, *, axis=None, correction=0.0, keepdims=False)
    vecdot(x1, x2, /, *, axis=-1)
    where(condition, x1, x2, /)
    zeros(shape, *, dtype=None, device=None)
    zeros_like(x, /, *, dtype=None, device=None)
"""
LINALG = """
    cholesky(x, /, *, upper=False)
    cross(x1, x2, /, *, axis=-1)
    det(x, /)
    diagonal(x, /, *, offset=0)
    eig(x, /)
    eigh(x, /)
    eigvals(x, /)
    eigvalsh(x, /)
    inv(x, /)
    matmul(x1, x2, /)
    matrix_norm(x, /, *, keepdims=False, ord='fro')
    matrix_power(x, n, /)
    matrix_rank(x, /, *, rtol=None)
    matrix_transpose(x, /)
    outer(x1, x2, /)
    pinv(x, /, *, rtol=None)
    qr(x, /, *, mode='reduced')
    slogdet(x, /)
    solve(x1, x2, /)
    svd(x, /, *, full_matrices=True)
    svdvals(x, /)
    tensordot(x1, x2, /, *, axes=2)
    trace(x, /, *, offset=0, dtype=None)
    vecdot(x1, x2, /, *, axis=-1)
    vector_norm(x, /, *, axis=None, keepdims=False, ord=2)
"""
FFT = """
    fft(x, /, *, n=None, axis=-1, norm='backward')
    fftfreq(n, /, *, d=1.0, dtype=None, device=None)
    fftn(x, /, *, s=None, axes=None, norm='backward')
    fftshift(x, /, *, axes=None)
    hfft(x, /, *, n=None, axis=-1, norm='backward')
    ifft(x, /, *, n=None, axis=-1, norm='backward')
    ifftn(x, /, *, s=None, axes=None, norm='backward')
    ifftshift(x, /, *, axes=None)
    ihfft(x, /, *, n=None, axis=-1, norm='backward')
    irfft(x, /, *, n=None, axis=-1, norm='backward')
    irfftn(x, /, *, s=None, axes=None, norm='backward')
    rfft(x, /, *, n=None, axis=-1, norm='backward')
    rfftfreq(n, /, *, d=1.0, dtype=None, device=None)
    rfftn(x, /, *, s=None, axes=None, norm='backward')
"""
INFO = """
    capabilities()
    default_device()
    default_dtypes(*, device=None)
    devices()
    dtypes(*, device=None, kind=None)
"""
METHODS = """
    __array_namespace__(self, /, *, api_version=None)
    __dlpack__(self, /, *, stream=None, max_version=None, dl_device=None, copy=None)
    __dlpack_device__(self, /)
    to_device(self, device, /, *, stream=None)
"""
ATTRIBUTES = ["dtype", "device", "mT", "ndim", "shape", "size", "T"]
ARITHMETIC = [
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor",
    "lshift", "rshift",
]  # fmt: skip
SPECIAL = [
    "abs", "bool", "complex", "eq", "float", "ge", "getitem", "gt", "index", "int", "invert",
    "le", "lt", "ne", "neg", "pos", "setitem",
]  # fmt: skip

SIGNATURES = [
    *((wf, f"{name}(x, /)") for name in UNARY),
    *((wf, f"{name}(x1, x2, /)") for name in BINARY),
    *(
        (space, line.strip())
        for space, lines in (
            (wf, MAIN),
            (wf.linalg, LINALG),
            (wf.fft, FFT),
            (wf.__array_namespace_info__(), INFO),
            (wf.Tensor, METHODS),
        )
        for line in lines.strip().splitlines()
    ),
]


def standard_function(signature: str) -> inspect.Signature:
    made: dict[str, Any] = {}
    exec(f"def {signature}: ...", made)
    return inspect.signature(made[signature.partition("(")[0]])


@pytest.mark.parametrize(("space", "expected"), SIGNATURES, ids=[text for _, text in SIGNATURES])
def test_a_function_takes_the_standard_s_arguments(space: Any, expected: str) -> None:
    given = inspect.signature(getattr(space, expected.partition("(")[0])).parameters
    for place, wanted in enumerate(standard_function(expected).parameters.values()):
        if wanted.name == "self":
            continue
        own = given[wanted.name]
        assert own.kind == wanted.kind
        if wanted.default is not wanted.empty:
            assert own.default == wanted.default
        if wanted.kind in (wanted.POSITIONAL_ONLY, wanted.POSITIONAL_OR_KEYWORD):
            assert list(given).index(wanted.name) == place


def test_every_name_of_the_standard_is_public() -> None:
    functions = re.findall(r"^ +(\w+)\(", MAIN, re.MULTILINE)
    names = [*CONSTANTS, *DTYPES, *UNARY, *BINARY, *functions, "__array_api_version__", "linalg"]
    assert set(names) - set(wf.__all__) == set()
    assert "fft" in wf.__all__
    assert set(re.findall(r"^ +(\w+)\(", LINALG, re.MULTILINE)) - set(dir(wf.linalg)) == set()
    assert set(re.findall(r"^ +(\w+)\(", FFT, re.MULTILINE)) - set(dir(wf.fft)) == set()


def test_tensors_have_every_operator_and_attribute() -> None:
    operators = [f"__{way}{name}__" for way in ("", "r", "i") for name in ARITHMETIC]
    names = [*ATTRIBUTES, *operators, *(f"__{name}__" for name in SPECIAL)]
    assert [name for name in names if not hasattr(wf.Tensor, name)] == []


# --- the namespace and what it says of itself --------------------------------------------------


def test_a_tensor_knows_its_namespace() -> None:
    x = wf.ones(2)
    assert x.__array_namespace__() is wf
    assert x.__array_namespace__(api_version="2022.12") is wf
    assert wf.__array_api_version__ == "2025.12"
    with pytest.raises(wf.ArgumentError) as caught:
        x.__array_namespace__(api_version="1999.12")
    assert (caught.value.op, caught.value.got) == ("__array_namespace__", "api_version: 1999.12")


def test_what_comes_in_several_comes_as_a_tuple() -> None:
    x = wf.arange(2)
    several = [
        wf.meshgrid(x, x), wf.meshgrid(), wf.broadcast_arrays(x, x), wf.broadcast_arrays(),
        wf.unstack(x), wf.__array_namespace_info__().devices(),
    ]  # fmt: skip
    assert {type(each) for each in several} == {tuple}


@pytest.mark.parametrize(
    "shapes",
    [(), ((),), ((2, 1), (3,)), ((5, 1, 1), (1, 4, 1), (1,)), ((0,), (1,)), ((3, 0), (1, 1))],
)
def test_shapes_broadcast_as_arrays_do(shapes: tuple[tuple[int, ...], ...]) -> None:
    assert wf.broadcast_shapes(*shapes) == np.broadcast_shapes(*shapes)
    symbolic = wf.spec("float32", ("rows", 1)).shape
    assert wf.broadcast_shapes(symbolic, (1, 3)) == (symbolic[0], 3)


@pytest.mark.parametrize(
    ("shapes", "kind", "got"),
    [
        (((2, 3), (4,)), wf.ShapeError, "shape1: (2, 3)   shape2: (4,)"),
        (((0,), (2,)), wf.ShapeError, "shape1: (0,)   shape2: (2,)"),
        (((2, -1),), wf.ShapeError, "shape: (2, -1)"),
        (((2, None),), wf.ArgumentTypeError, "shape: (2, None)"),
        (("ab",), wf.ArgumentTypeError, "shape: 'ab'"),
    ],
)
def test_shapes_that_do_not_broadcast_are_refused(shapes: Any, kind: Any, got: str) -> None:
    with pytest.raises(kind) as caught:
        wf.broadcast_shapes(*shapes)
    assert (caught.value.op, caught.value.got) == ("broadcast_shapes", got)


def test_the_namespace_says_what_it_can_do() -> None:
    info = wf.__array_namespace_info__()
    assert info.capabilities() == {
        "boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64
    }  # fmt: skip
    assert info.devices() == (info.default_device(),) == (wf.ones(1).device,)
    assert info.default_dtypes(device="cpu") == {
        "real floating": wf.asarray(1.0).dtype,
        "complex floating": wf.asarray(1j).dtype,
        "integral": wf.asarray(1).dtype,
        "indexing": wf.argmax(wf.ones(2)).dtype,
    }
    assert list(info.dtypes()) == sorted(DTYPES, key=list(info.dtypes()).index)
    assert set(info.dtypes(kind=("bool", "unsigned integer"))) == {
        "bool", "uint8", "uint16", "uint32", "uint64"
    }  # fmt: skip
    assert all(getattr(wf, name) is dtype for name, dtype in info.dtypes().items())
    with pytest.raises(wf.DeviceError):
        info.dtypes(device="cuda")


# --- values where the suite compares only types ------------------------------------------------

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
INF, NAN = float("inf"), float("nan")
FLOAT_EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, -7.0, 1e-8, -60.0, 90.0, INF, -INF, NAN]
IN_NUMPY = {"atan2": np.arctan2, "pow": np.power}


def edges(dtype: str) -> np.ndarray[Any, Any]:
    """Numbers at and between the limits of a dtype."""
    kind = getattr(wf, dtype).numpy
    if dtype == "bool":
        return np.array([False, True])
    if dtype in INTEGERS:
        limits = np.iinfo(kind)
        near = [n for n in (-7, -3, -1, 0, 1, 2, 5) if limits.min <= n]
        return np.array([limits.min, *near, limits.max], kind)
    return np.array(FLOAT_EDGES).astype(kind)


def assert_same(got: wf.Tensor, expected: Any, tolerance: float = 0.0) -> None:
    """Equal dtypes, shapes and values, with the signs of zeros; or close where rounding differs."""
    want = np.asarray(expected)
    array = got.numpy()
    assert (array.dtype, array.shape) == (want.dtype, want.shape)
    if array.dtype.kind not in "fcV":
        assert np.array_equal(array, want)
        return
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    array, want = array.astype(wide), want.astype(wide)
    np.testing.assert_allclose(array, want, rtol=tolerance, atol=tolerance)
    if tolerance == 0 and wide is np.float64:
        known = ~np.isnan(want)
        assert np.array_equal(np.signbit(array)[known], np.signbit(want)[known])


BY_CLASS = [
    *itertools.product(("atan2", "hypot", "logaddexp", "copysign", "nextafter"), FLOATS),
    *itertools.product(("maximum", "minimum", "remainder", "floor_divide"), FLOATS + INTEGERS),
    *((name, "bool") for name in ("logical_and", "logical_or", "logical_xor")),
]


@pytest.mark.parametrize(("name", "dtype"), BY_CLASS)
def test_pairs_of_edge_values_give_what_numpy_gives(name: str, dtype: str) -> None:
    values = edges(dtype)
    x1, x2 = values[:, None], values[None, :]
    if dtype in INTEGERS and name in ("remainder", "floor_divide"):
        x2 = x2[x2 != 0][None, :]
    with np.errstate(all="ignore"):
        expected = IN_NUMPY.get(name, getattr(np, name, None))(x1, x2)
        if name == "floor_divide" and dtype in FLOATS:  # the standard's infinities, not Python's
            infinite = np.isinf(x1) & np.isfinite(x2)
            expected = np.where(infinite, x1 / x2, expected).astype(values.dtype)
            flat = np.isfinite(x1) & np.isinf(x2)
            expected = np.where(flat, x1 / x2, expected).astype(values.dtype)
        if (
            name in ("maximum", "minimum") and dtype in FLOATS
        ):  # NumPy leaves the order of zeros open
            ordered = x1 + x2 if name == "maximum" else -(-x1 - x2)
            expected = np.where((x1 == 0) & (x2 == 0), ordered, expected).astype(values.dtype)
    assert_same(getattr(wf, name)(wf.asarray(x1), wf.asarray(x2)), expected)


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_of_uint64_with_signed_integers_are_exact(name: str) -> None:
    function = getattr(operator, name)
    left = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    for dtype in ("int8", "int64"):
        right = edges(dtype)[:, None]
        assert_same(function(wf.asarray(left), wf.asarray(right)), function(left, right))
        assert_same(function(wf.asarray(right), wf.asarray(left)), function(right, left))


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor", "logical_not"])
def test_logic_is_for_booleans(name: str) -> None:
    arguments = [wf.asarray([True, False])] * (1 if name == "logical_not" else 2)
    expected = getattr(np, name)(*[x.numpy() for x in arguments])
    assert getattr(wf, name)(*arguments).tolist() == expected.tolist()


@pytest.mark.parametrize("exponent", [2.0**31, -(2.0**31), 2**40, 1e30, INF, -INF, NAN])
def test_powers_with_large_exponents_are_numpy_s(exponent: float) -> None:
    values = np.array([0.0, 0.5, 1.0, -1.0, 2.0], np.float32)
    with np.errstate(all="ignore"):
        assert_same(wf.asarray(values) ** exponent, values**exponent)


def test_logaddexp_is_exact_far_apart_and_close_together() -> None:
    x = wf.asarray([1000.0, -1000.0, 0.0], dtype=wf.float64)
    y = wf.asarray([0.0, -1000.0, 1e-20], dtype=wf.float64)
    assert_same(wf.logaddexp(x, y), np.logaddexp(x.numpy(), y.numpy()))


AXES = [None, 0, -1, (0, 2), (0, 1, 2), ()]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", AXES[:-1], ids=str)
@pytest.mark.parametrize(("keepdims", "correction"), [(False, 0), (True, 1), (False, 1.5)])
def test_spread_is_numpy_s(
    rng: np.random.Generator, dtype: str, axis: Any, keepdims: bool, correction: float
) -> None:
    values = rng.normal(100.0, 2.0, (3, 4, 5)).astype(dtype)
    for name in ("var", "std"):
        got = getattr(wf, name)(
            wf.asarray(values), axis=axis, correction=correction, keepdims=keepdims
        )
        exact = getattr(np, name)(
            values.astype("float64"), axis=axis, ddof=correction, keepdims=keepdims
        )
        assert_same(got, np.asarray(exact, dtype), 1e-5 if dtype == "float32" else 1e-11)


@pytest.mark.parametrize("correction", [1, 1.5, 4])
def test_the_spread_of_too_few_elements_is_not_a_number(correction: float) -> None:
    for function in (wf.var, wf.std):
        assert wf.all(wf.isnan(function(wf.ones((3, 1)), axis=1, correction=correction)))
        assert wf.all(wf.isnan(function(wf.ones((3, 0)), axis=1, correction=correction)))


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "min", "any", "all"])
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_reductions_are_numpy_s(rng: np.random.Generator, name: str, axis: Any) -> None:
    values = rng.normal(size=(3, 4, 5))
    values = values > 0 if name in ("any", "all") else values
    for keepdims in (False, True):
        got = getattr(wf, name)(wf.asarray(values), axis=axis, keepdims=keepdims)
        assert_same(got, getattr(np, name)(values, axis=axis, keepdims=keepdims), 1e-12)


LINEAR: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "cholesky": (wf.linalg.cholesky, np.linalg.cholesky),
    "cholesky upper": (
        lambda x: wf.linalg.cholesky(x, upper=True),
        lambda x: np.linalg.cholesky(x, upper=True),
    ),
    "det": (wf.linalg.det, np.linalg.det),
    "eigvalsh": (wf.linalg.eigvalsh, np.linalg.eigvalsh),
    "inv": (wf.linalg.inv, np.linalg.inv),
    "matrix_power 3": (lambda x: wf.linalg.matrix_power(x, 3), lambda x: x @ x @ x),
    "matrix_power -2": (
        lambda x: wf.linalg.matrix_power(x, -2),
        lambda x: np.linalg.matrix_power(x, -2),
    ),
    "matrix_rank": (wf.linalg.matrix_rank, np.linalg.matrix_rank),
    "pinv": (wf.linalg.pinv, np.linalg.pinv),
    "slogdet sign": (lambda x: wf.linalg.slogdet(x).sign, lambda x: np.linalg.slogdet(x).sign),
    "slogdet": (
        lambda x: wf.linalg.slogdet(x).logabsdet,
        lambda x: np.linalg.slogdet(x).logabsdet,
    ),
    "solve": (lambda x: wf.linalg.solve(x, x[..., :2]), lambda x: np.linalg.solve(x, x[..., :2])),
    "svdvals": (wf.linalg.svdvals, np.linalg.svdvals),
    "trace": (
        lambda x: wf.linalg.trace(x, offset=1),
        lambda x: np.linalg.trace(x, offset=1),
    ),
    **{
        f"matrix_norm {order}": (
            lambda x, order=order: wf.linalg.matrix_norm(x, ord=order),
            lambda x, order=order: np.linalg.matrix_norm(x, ord=order),
        )
        for order in (1, 2, -1, -2, INF, -INF, "fro", "nuc")
    },
    **{
        f"vector_norm {order}": (
            lambda x, order=order: wf.linalg.vector_norm(x, axis=-1, ord=order),
            lambda x, order=order: np.linalg.vector_norm(x, axis=-1, ord=order),
        )
        for order in (0, 1, 2, 3.5, -1, -2, INF, -INF)
    },
    "vecdot": (lambda x: wf.linalg.vecdot(x, x), lambda x: np.vecdot(x, x)),
    "vecdot axis": (
        lambda x: wf.linalg.vecdot(x, x * 2, axis=-2),
        lambda x: np.linalg.vecdot(x, x * 2, axis=-2),
    ),
    "cross": (
        lambda x: wf.linalg.cross(x[..., :3], x[..., 1:]),
        lambda x: np.linalg.cross(x[..., :3], x[..., 1:]),
    ),
    "outer": (
        lambda x: wf.linalg.outer(x[0, 0], x[0, 1]),
        lambda x: np.linalg.outer(x[0, 0], x[0, 1]),
    ),
    "tensordot": (
        lambda x: wf.linalg.tensordot(x, x, axes=((0, 2), (0, 1))),
        lambda x: np.tensordot(x, x, axes=((0, 2), (0, 1))),
    ),
    "matmul": (lambda x: wf.linalg.matmul(x, x[0]), lambda x: x @ x[0]),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_algebra_is_numpy_s(rng: np.random.Generator, name: str, dtype: str) -> None:
    matrices = rng.normal(size=(2, 4, 4)) + (1j * rng.normal(size=(2, 4, 4)) if "c" in dtype else 0)
    positive = (matrices @ matrices.conj().mT + np.eye(4)).astype(dtype)
    ours, theirs = LINEAR[name]
    expected = np.asarray(theirs(positive))
    tolerance = 2e-4 if dtype in ("float32", "complex64") else 1e-11
    assert_same(ours(wf.asarray(positive)), expected, tolerance * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (2, 5, 3), (0, 3), (2, 0, 0)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_factors_multiply_back(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str
) -> None:
    values = rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype[0] == "c" else 0)
    x = wf.asarray(values)
    for full in (False, True):
        u, s, vh = wf.linalg.svd(x, full_matrices=full)
        rank = s.shape[-1]
        assert_same((u[..., :rank] * s[..., None, :]) @ vh[..., :rank, :], values, 1e-12)
        assert_same(
            u.mT.conj() @ u,
            np.broadcast_to(np.eye(u.shape[-1], dtype=dtype), (u.mT @ u).shape),
            1e-12,
        )
        q, r = wf.linalg.qr(x, mode="complete" if full else "reduced")
        assert_same(q @ r, values, 1e-12)
        assert_same(wf.triu(r), r.numpy())
    hermitian = x @ x.mT.conj()
    w, v = wf.linalg.eigh(hermitian)
    assert_same((v * w[..., None, :].astype(dtype)) @ v.mT.conj(), hermitian.numpy(), 1e-12)
    assert bool(wf.all(w[..., 1:] >= w[..., :-1]))


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_fourier_transforms_are_numpy_s(rng: np.random.Generator, name: str, norm: Any) -> None:
    values = rng.normal(size=(3, 6))
    values = values if name in ("rfft", "ihfft") else values + 1j * rng.normal(size=(3, 6))
    for n, axis in itertools.product((None, 4, 9), (0, -1)):
        expected = getattr(np.fft, name)(values, n=n, axis=axis, norm=norm)
        got = getattr(wf.fft, name)(wf.asarray(values), n=n, axis=axis, norm=norm)
        assert_same(got, expected, 1e-12)


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_fourier_transforms_of_several_axes_are_numpy_s(
    rng: np.random.Generator, name: str
) -> None:
    values = rng.normal(size=(3, 4, 6))
    for s, axes in [(None, None), (None, (0, 2)), ((2, 5), (1, 2)), ((4, 4), (2, 0))]:
        expected = getattr(np.fft, name)(values, s=s, axes=axes)
        got = getattr(wf.fft, name)(wf.asarray(values), s=s, axes=axes)
        assert_same(got, expected, 1e-12)


# --- operators ---------------------------------------------------------------------------------

OPERATORS = {
    name: getattr(operator, name)
    for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge"
    )
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_python_numbers_are_weak_on_either_side(name: str) -> None:
    function = OPERATORS[name]
    is_comparison = name in ("eq", "ne", "lt", "le", "gt", "ge")
    for dtype, number in [("float32", 2.5), ("float16", 2), ("int8", 3), ("uint8", 3)]:
        values = np.array([1, 2, 3], getattr(wf, dtype).numpy)
        if name == "truediv" and dtype in INTEGERS:
            continue
        for left, right in [(wf.asarray(values), number), (number, wf.asarray(values))]:
            plain = [x.numpy() if isinstance(x, wf.Tensor) else x for x in (left, right)]
            got = function(left, right)
            assert type(got) is wf.Tensor
            assert got.dtype is (wf.bool if is_comparison else getattr(wf, dtype))
            assert_same(got, function(*plain), 1e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("name", ["and_", "or_", "xor", "lshift", "rshift"])
def test_bits_of_integers_and_python_integers(name: str) -> None:
    function = getattr(operator, name)
    values = np.array([1, 2, 5], np.int16)
    assert_same(function(wf.asarray(values), 3), function(values, 3))
    assert_same(function(3, wf.asarray(values)), function(3, values))


@pytest.mark.parametrize("name", [*OPERATORS, "matmul"])
def test_an_array_on_the_left_gives_a_tensor(name: str) -> None:
    function = OPERATORS.get(name, operator.matmul)
    array = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    x = wf.asarray([[2.0, 1.0], [1.0, 3.0]])
    got = function(array, x)
    assert type(got) is wf.Tensor
    assert_same(got, function(array, x.numpy()), 1e-6)
    number = function(np.float32(2.0), x) if name != "matmul" else got
    assert type(number) is wf.Tensor


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"])
def test_in_place_operators_keep_the_handle_and_leave_others_alone(name: str) -> None:
    x = wf.asarray([1.0, 4.0])
    before, other, same = x.numpy().copy(), x.clone(), x
    x = getattr(operator, f"i{name}")(x, 2)
    assert x is same
    assert_same(x, OPERATORS[name](before, np.float32(2)), 1e-6)
    assert other.tolist() == [1.0, 4.0]


def test_in_place_operators_refuse_another_dtype_or_shape() -> None:
    x = wf.asarray([1, 2])
    with pytest.raises(wf.DTypeError):
        x += 0.5
    with pytest.raises(wf.ShapeError):
        x += wf.ones((3, 2), dtype="int64")
    assert x.tolist() == [1, 2]


def test_comparison_with_none_is_by_identity() -> None:
    x = wf.ones(2)
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True


def test_a_float_in_numpys_clothes_is_as_weak_as_the_float() -> None:
    x = wf.ones(2)
    assert (x * np.sqrt(2.0)).dtype is wf.float32
    assert (np.float64(2.0) * x).dtype is wf.float32
    assert (x * np.float32(2)).dtype is wf.float32
    assert (x * np.array(2.0)).dtype is wf.float64
    assert wf.asarray(np.float64(1)).dtype is wf.float64
