"""Products of numbers that are rounded to 8-bit floats, for a card, real or imitated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.plan.launch import Kind, Launch
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.products import binding
from weft.compiler.targets.cuda.products.choice import kernel_of, with_most_stages
from weft.compiler.targets.cuda.products.description import FLOAT8_PAIRS, Plan
from weft.compiler.targets.cuda.target import CUDA
from weft.nn import functional as F  # noqa: N812
from weft.ops.float8 import E4M3, E5M2, round_to_float8

Array = np.ndarray[Any, Any]
TILES = [(128, 192), (192, 128), (128, 128), (128, 64), (64, 128), (64, 64)]
SIZES = [(64, 64, 64), (1, 8, 16), (130, 200, 144), (300, 72, 1040), (520, 392, 2064)]
LAYOUTS = ("along rows", "across rows", "left across", "right across")


def float8_launches(f: Callable[..., Any], *kinds: Any) -> list[Launch]:
    """The products of a plan for a card that multiply codes."""
    launches = plan_program(wf.ir.trace(f, *kinds), CUDA).every_launch()
    products = [each for each in launches if each.kind is Kind.PRODUCT]
    return [each for each in products if isinstance(each.kernel, tuple)
            and each.kernel[1] in FLOAT8_PAIRS]  # fmt: skip


def product(left: str, right: str, layout: str) -> Callable[..., wf.Tensor]:
    """A product of two rounded matrices that lie along or across the summed axis."""

    def multiply(a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
        x, y = round_to_float8(a, left), round_to_float8(b, right)
        x = x.T if layout in ("across rows", "left across") else x
        return x @ (y if layout in ("across rows", "right across") else y.T)

    return multiply


def operands(layout: str, sizes: tuple[int, int, int]) -> tuple[Array, Array]:
    """Whole numbers that both formats hold, whose sums no instruction rounds."""
    m, n, k = sizes
    random = np.random.default_rng(m + n + k)
    shapes = (
        (k, m) if layout in ("across rows", "left across") else (m, k),
        ((k, n) if layout in ("across rows", "right across") else (n, k)),
    )
    a, b = (random.integers(-3, 4, shape).astype(np.float32) for shape in shapes)
    return a, b


def check_exact(pair: str, layout: str, sizes: tuple[int, int, int]) -> None:
    """A product of whole numbers has no error but that of its dtype."""
    f = product(*FLOAT8_PAIRS[pair], layout)
    a, b = operands(layout, sizes)
    [launch] = float8_launches(f, wf.asarray(a), wf.asarray(b))
    assert launch.kernel[:4] == ("product", pair, "n", "t")  # type: ignore[index]
    wide = a.astype(np.float64), b.astype(np.float64)
    left = wide[0].T if layout in ("across rows", "left across") else wide[0]
    right = wide[1] if layout in ("across rows", "right across") else wide[1].T
    wanted = wf.asarray((left @ right).astype(np.float32)).astype("bfloat16")
    compiled = wf.jit(f)
    for _ in range(3):
        found = compiled(wf.asarray(a).to("cuda"), wf.asarray(b).to("cuda"))
        assert found.dtype is wf.bfloat16
        np.testing.assert_array_equal(
            found.astype("float32").numpy(), wanted.astype("float32").numpy()
        )


def force_plan(patch: pytest.MonkeyPatch, tile: tuple[int, int], *, split: bool) -> None:
    """Have all products of codes cut in one way."""
    chosen = binding.chosen_kernel

    def choose(spec: Any, *rest: Any, **how: Any) -> Any:
        if spec.dtype not in FLOAT8_PAIRS:
            return chosen(spec, *rest, **how)
        return kernel_of(spec, with_most_stages(spec, Plan(*tile, stages=0, split=split)))

    patch.setattr(binding, "chosen_kernel", choose)


def check_long_sums(columns: int, rows: int = 256, limit: float = 1e-3) -> None:
    """Sums of many numbers of one sign keep their digits: steps are added in float32.

    Four instructions add up a step, and each may lose 2⁻¹³ of it.
    """
    random = np.random.default_rng(5)
    a, b = (random.uniform(0.5, 1.5, (rows, columns)).astype(np.float32) for _ in range(2))
    rounded = [
        round_to_float8(wf.asarray(x), E4M3).astype("float32").numpy().astype(np.float64)
        for x in (a, b)
    ]
    wanted = rounded[0] @ rounded[1].T

    def f(a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
        return (round_to_float8(a, E4M3) @ round_to_float8(b, E4M3).T).astype("float32")

    assert len(float8_launches(f, wf.asarray(a), wf.asarray(b))) == 1
    found = wf.jit(f)(wf.asarray(a).to("cuda"), wf.asarray(b).to("cuda")).numpy()
    error = np.abs(found / wanted - 1)
    print(f"long sums of {columns}: largest error {error.max():.2e}, mean {error.mean():.2e}")
    assert error.max() < limit


def check_extremes(rows: int = 64) -> None:
    """Scales that leave float32 together, zeros, infinities and NaN."""
    for_values = wf.jit(product(E4M3, E4M3, "along rows"))
    for_cotangents = wf.jit(product(E5M2, E4M3, "along rows"))

    def run(a: Array, b: Array, f: Callable[..., Any] = for_values) -> Array:
        found = f(wf.asarray(a).to("cuda"), wf.asarray(b).to("cuda"))
        result: Array = found.astype("float32").numpy()
        return result

    a, b = operands("along rows", (rows, 64, 64))
    exact = (a @ b.T).astype(wf.bfloat16.numpy).astype(np.float32)
    for up, down in ((2.0**120, 2.0**-80), (2.0**-90, 2.0**100), (2.0**-60, 2.0**-60)):
        wanted = exact * np.float32(up * down)
        np.testing.assert_array_equal(run(a * np.float32(up), b * np.float32(down)), wanted)
    np.testing.assert_array_equal(run(a * 0, b), exact * 0)
    for odd in (np.nan, np.inf, -np.inf):
        broken = a.copy()
        broken[3, 5] = odd
        found = run(broken, b)
        assert np.isnan(found[3]).all()
        np.testing.assert_array_equal(np.delete(found, 3, 0), np.delete(exact, 3, 0))
        found = run(broken, b, for_cotangents)
        assert not np.isfinite(found[3]).any()
        np.testing.assert_array_equal(np.delete(found, 3, 0), np.delete(exact, 3, 0))


def layer_loss(x: wf.Tensor, w: wf.Tensor, b: wf.Tensor, v: wf.Tensor) -> wf.Tensor:
    """Two layers in a block of float8, as those of a transformer are."""
    with wf.autocast("float8"):
        y = F.linear(F.gelu(F.linear(x, w, b)), v)
    return (y.astype("float32") ** 2).mean()


def check_layers(width: int, limit: float = 6e-2) -> None:
    """Both layers, forward and backward, give on a card what they give on the processor.

    What differs is what bfloat16 rounds: an epilogue sees sums that are not. Where that decides
    between two cotangents of e5m2, they differ by a quarter.
    """
    random = np.random.default_rng(2)
    shapes = (4, 2 * width, width), (2 * width, width), (2 * width,), (width, 2 * width)
    arrays = [random.normal(size=shape).astype(np.float32) * 0.5 for shape in shapes]
    gradients = wf.value_and_grad(layer_loss, argnums=(0, 1, 2, 3))
    kinds = [wf.spec("float32", shape) for shape in shapes]
    found = sorted(each.kernel[1] for each in float8_launches(gradients, *kinds))  # type: ignore[index]
    assert found == ["e4m3 by e4m3"] * 2 + ["e5m2 by e4m3"] * 4
    compiled = wf.jit(gradients)
    there = compiled(*[wf.asarray(each).to("cuda") for each in arrays])
    here = compiled(*map(wf.asarray, arrays))
    for one, other in zip(wf.tree.leaves(there), wf.tree.leaves(here), strict=True):
        got, wanted = one.numpy().astype(np.float64), other.numpy().astype(np.float64)
        error = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
        print(f"{other.type}: {error:.2e}")
        assert error <= limit


def check_eager(width: int, limit: float = 6e-2) -> None:
    """Layers that are called one by one, and their gradients by `backward`."""
    random = np.random.default_rng(3)
    shapes = (3, width, width), (2 * width, width), (2 * width,), (width, 2 * width)
    arrays = [random.normal(size=shape).astype(np.float32) * 0.5 for shape in shapes]
    gradients = {}
    for place in ("cuda", "cpu"):
        given = [wf.asarray(each).to(place).requires_grad_() for each in arrays]
        loss = layer_loss(*given)
        loss.backward()
        gradients[place] = [loss.detach().numpy(), *[each.grad.numpy() for each in given]]
    for one, other in zip(*gradients.values(), strict=True):
        assert np.linalg.norm(one - other) <= limit * np.linalg.norm(other)
