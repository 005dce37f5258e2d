"""Complex numbers in compiled programs: pairs of real ones, which agree with the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cpu.target import CPU
from weft.compiler.targets.plain.target import PLAIN
from weft.ir.dispatch import apply
from weft.ir.primitive import PRIMITIVES
from weft.ops.conversion import of_parts

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]
SHAPES = [(), (0, 3), (2, 1, 19)]


def numbers(shape: tuple[int, ...], dtype: str = "complex64", seed: int = 0) -> Array:
    generator = np.random.default_rng(seed)
    parts = generator.standard_normal((2, *shape))
    return np.asarray(parts[0] + 1j * parts[1]).astype(dtype)


def close(found: Array, wanted: Array, rough: float = 1.0) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    single = found.dtype in (np.complex64, np.float32)
    scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0))
    limit = (3e-6 if single else 1e-14) * rough
    np.testing.assert_allclose(found, wanted, rtol=limit, atol=limit * scale)


def agree(f: Function, *arrays: Array, native: bool = True, rough: float = 1.0) -> None:
    """The function gives the same eagerly, compiled in checked memory, and by the plain target."""
    operands = [wf.tensor(array) for array in arrays]
    wanted = f(*operands).numpy()
    assert not native or wf.jit(f).explain(*operands).references == []
    with wf.testing.checked_memory():
        close(wf.jit(f)(*operands).numpy(), wanted, rough)
    graph = wf.ir.trace(f, *[wf.spec(str(array.dtype), array.shape) for array in arrays])
    plan = plan_program(graph, PLAIN)
    close(PLAIN.executable(plan).run(list(arrays))[0], wanted, rough)


FUNCTIONS: dict[str, Function] = {
    "sums and products": lambda z, w: (z * w - w + 2j) * z,
    "quotient": lambda z, w: z / w,
    "conjugate": lambda z, w: wf.conj(z) * w,
    "square": lambda z, w: wf.square(z) - w,
    "powers": lambda z, w: z**3 + w**-2 + z**0,
    "general power": lambda z, w: z ** (w * 0.5),
    "length": lambda z, w: wf.abs(z) + wf.real(w),
    "sign": lambda z, w: wf.sign(z),
    "exp": lambda z, w: wf.exp(z),
    "exp2": lambda z, w: 2**z,
    "expm1": lambda z, w: wf.expm1(z),
    "log": lambda z, w: wf.log(z),
    "log1p": lambda z, w: wf.log1p(z),
    "log2": lambda z, w: wf.log2(z) + wf.log10(w),
    "sqrt": lambda z, w: wf.sqrt(z),
    "rsqrt": lambda z, w: wf.rsqrt(z),
    "sin": lambda z, w: wf.sin(z),
    "cos": lambda z, w: wf.cos(z),
    "tan": lambda z, w: wf.tan(z),
    "sinh": lambda z, w: wf.sinh(z),
    "cosh": lambda z, w: wf.cosh(z),
    "tanh": lambda z, w: wf.tanh(z),
    "questions": lambda z, w: (z == w) | wf.isfinite(z) & ~wf.isnan(w) | wf.isinf(z),
    "choice": lambda z, w: wf.where(wf.real(z) < wf.imag(w), z, w),
    "other dtypes": lambda z, w: z.astype("complex128") * w.astype("complex128"),
    "from real numbers": lambda z, w: wf.real(z).astype("complex64") * 2j,
    "sum": lambda z, w: (z * w).sum(),
    "mean of rows": lambda z, w: z.mean(axis=-1) if z.ndim else z,
    "running sum": lambda z, w: wf.cumulative_sum(z, axis=0) if z.ndim else z,
    "turned": lambda z, w: z.mT + w.mT if z.ndim > 1 else z,
    "reversed": lambda z, w: wf.flip(z) * w,
    "flat": lambda z, w: (z * w).reshape(-1) + 1,
    "flat operand": lambda z, w: z.reshape(-1) * 1j,
    "joined": lambda z, w: wf.stack([z, w, z * w]),
    "padded": lambda z, w: wf.pad(z, 2) if z.ndim else z,
    "cut": lambda z, w: z[..., ::2] - 1 if z.ndim else z,
}


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_complex_numbers_agree_with_the_reference(name: str, dtype: str) -> None:
    f = FUNCTIONS[name]
    for shape in SHAPES if dtype == "complex64" else SHAPES[2:]:
        if name in ("mean of rows", "sign") and 0 in shape:
            continue
        agree(f, numbers(shape, dtype), numbers(shape, dtype, 1), rough=20.0)


@pytest.mark.parametrize(
    "f", [wf.sqrt, wf.log, wf.exp, wf.tanh, wf.sin, lambda z: 1 / z, lambda z: z / (3 + 4j), wf.abs]
)
def test_borders_and_large_numbers_agree_with_the_reference(f: Function) -> None:
    parts = [0.0, -0.0, 1.0, -1.0, 1e-30, 3e18, -3e18, 30.0]
    x, y = np.meshgrid(parts, parts)
    z = x + 1j * y
    if f not in (wf.exp, wf.sin, wf.tanh):
        z = np.concatenate([z.ravel(), [1e30 + 1e30j, np.inf + 1j, -np.inf + 1j]])
    else:
        z = z[(np.abs(x) <= 30) & (np.abs(y) <= 30)]
    with np.errstate(all="ignore"):
        wanted = f(wf.tensor(z.astype("complex64"))).numpy()
        found = wf.jit(f)(wf.tensor(z.astype("complex64"))).numpy()
    for one, other in ((found.real, wanted.real), (found.imag, wanted.imag)):
        np.testing.assert_allclose(one, other, rtol=3e-5, atol=1e-37)


def test_powers_of_zero_are_those_of_the_reference() -> None:
    exponents = wf.tensor(np.array([-1, 1j, -1 + 1j, 0.5, 1 - 1j, 2, 0, -0.5], np.complex64))
    zeros = wf.zeros_like(exponents)
    wanted = [np.nan, np.nan, np.nan, 0, 0, 0, 1, np.nan]
    for power in (wf.pow, wf.jit(wf.pow)):
        found = power(zeros, exponents).numpy()
        np.testing.assert_array_equal(found.real, wanted)
        np.testing.assert_array_equal(found.imag, np.array(wanted) * 0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_products_of_complex_matrices_agree_with_the_reference(dtype: str) -> None:
    a, b = numbers((4, 9, 17), dtype), numbers((4, 17, 6), dtype, 1)
    agree(lambda a, b: a @ b, a, b)
    agree(lambda a, b: wf.conj(a[0]).T @ wf.conj(b[0].T).T[:9], a, b)
    agree(lambda a: a[0] @ a[1, 2], a)
    x, w = numbers((2, 3, 12), dtype), numbers((5, 3, 4), dtype, 1)
    agree(lambda x, w: wf.conv1d(x, w, padding=1), x, w)


def test_rows_are_picked_and_written() -> None:
    z, w = numbers((6, 5)), numbers((3, 5), seed=1)
    index = np.array([4, 0, 4])
    agree(lambda z, i: z[i] * 1j, z, index)
    agree(lambda z, w, i: wf.index_add(z, 0, i, w), z, w, index)


@pytest.mark.parametrize("f", [wf.asin, wf.acosh, wf.atan, lambda z: wf.prod(z)])
def test_functions_without_a_rule_take_whole_numbers(f: Function) -> None:
    agree(lambda z: f(z * 0.5) * 2, numbers((9,)), native=False, rough=10.0)


def test_numbers_with_names_in_loops_and_choices() -> None:
    def f(z: wf.Tensor, c: wf.Tensor) -> wf.Tensor:
        z, rows = wf.scan(lambda z, c: (z * z * 0.1 + c, wf.abs(z)), z, c)
        return wf.cond(wf.real(z[0]) > 0, lambda z: z * 1j, lambda z: -z, z) + rows.sum()

    agree(f, numbers((5,)), numbers((4, 5), seed=1), rough=10.0)


@pytest.mark.slow
def test_derivatives_and_batches_agree_with_eager_ones() -> None:
    def loss(z: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return (wf.abs(wf.exp(z @ w) / (2 + z)) ** 2).sum() + wf.real(wf.sqrt(w)).sum()

    z, w = numbers((3, 3), "complex128"), numbers((3, 3), "complex128", 1)
    agree(wf.grad(loss), z, w, rough=100.0)
    batched = wf.vmap(wf.grad(loss), in_axes=(0, None))
    agree(lambda z, w: batched(wf.stack([z, w]), w), z, w, rough=100.0)


def test_a_convolution_by_transforms_and_its_gradient() -> None:
    def convolve(kernel: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        spectrum = wf.fft.rfft(x) * wf.fft.rfft(kernel)
        return (wf.tanh(wf.fft.irfft(spectrum, n=x.shape[-1])) ** 2).sum()

    kernel, x = numbers((1, 48), "complex128").real, numbers((4, 48), "complex128", 1).real
    agree(wf.grad(convolve), kernel.copy(), x.copy(), rough=100.0)


def test_an_operand_that_is_given_up_is_read_before_it_is_overwritten() -> None:
    z = numbers((1000,))

    @wf.jit
    def step(state: dict[str, wf.Tensor]) -> dict[str, wf.Tensor]:
        return {"z": state["z"] * state["z"] * 0.5 + wf.conj(state["z"])}

    state, wanted = {"z": wf.tensor(z)}, z
    for _ in range(3):
        state, wanted = step(state), wanted * wanted * np.float32(0.5) + np.conj(wanted)
    np.testing.assert_allclose(state["z"].numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_sizes_that_are_symbols() -> None:
    f = wf.jit(lambda z: (z * z).sum(axis=0) + z[1:])
    for rows in (3, 4, 9, 2, 17):
        z = numbers((rows, 3))
        close(f(wf.tensor(z)).numpy(), (z * z).sum(axis=0) + z[1:], 10.0)


def test_neighbours_are_one_kernel_that_reads_and_writes_whole_numbers() -> None:
    kinds = [wf.spec("complex64", (4096,))] * 2
    graph = wf.ir.trace(lambda z, w: wf.exp(z * w) / (z + 1j), *kinds)
    (launch,) = plan_program(graph, CPU).launches
    assert [str(value.type) for value in launch.values] == ["f32[4096, 2]"] * 3


def in_complex_numbers(array: Array) -> Array:
    """Real floats with another part; whole numbers, such as places, as they are."""
    if array.dtype.kind != "f":
        return array
    turned = np.flip(array.reshape(-1)).reshape(array.shape)
    with np.errstate(invalid="ignore"):  # of infinities
        return np.asarray(array + 1j * turned, np.complex64)


def of_complex_numbers() -> list[Any]:
    """A sample of each primitive that takes complex numbers, if it has none of its own."""
    found = []
    for name, primitive in PRIMITIVES.items():
        if primitive is of_parts:  # its operand is real
            continue
        for sample in primitive.samples():
            if primitive.multiple or primitive.impure or any(map(callable, sample.params.values())):
                continue
            operands = [in_complex_numbers(np.asarray(each)) for each in sample.operands]
            types = [wf.spec(str(each.dtype), each.shape) for each in operands]
            if not any(each.dtype.kind == "c" for each in operands):
                continue
            try:
                primitive.type_rule(*types, **sample.params)
                primitive.reference(*operands, **sample.params)
            except wf.WeftError:  # such as a matrix that has no root any more
                continue
            found.append(pytest.param(primitive, operands, sample.params, id=name))
            break
    return found


@pytest.mark.parametrize(("primitive", "operands", "params"), of_complex_numbers())
def test_every_primitive_that_takes_complex_numbers_is_compiled_right(
    primitive: Any, operands: list[Array], params: dict[str, Any]
) -> None:
    def f(*xs: wf.Tensor) -> wf.Tensor:
        return apply(primitive, *[x * 1 if x.dtype.is_complex else x for x in xs], **params)

    wanted = np.asarray(primitive.reference(*operands, **params))
    found = wf.jit(f)(*[wf.asarray(each) for each in operands]).numpy()
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(found[finite], wanted[finite], rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool"])
def test_every_second_element_is_read_without_what_lies_behind_the_last(dtype: str) -> None:
    """Checked memory ends at a page that nothing may read."""
    for length in (33, 34):
        x = np.arange(length).astype(dtype)
        compiled = wf.jit(lambda x: (wf.logical_not(x[::2]), x[1::2]))
        with wf.testing.checked_memory():
            evens, odds = compiled(wf.tensor(x))
        np.testing.assert_array_equal(evens.numpy(), ~x[::2].astype(bool))
        np.testing.assert_array_equal(odds.numpy(), x[1::2])
