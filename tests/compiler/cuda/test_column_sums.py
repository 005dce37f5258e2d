"""Sums down columns that kernels over rows make: when they do, and that they are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.assembling import needs_ptxas, spilled_bytes
from tests.compiler.cuda.emulated import run_emulated
from tests.compiler.cuda.host_card import HostCard

import weft as wf
from weft.compiler.plan.launch import Launch
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda import target
from weft.compiler.targets.cuda.nvptx import kernels_to_ptx
from weft.compiler.targets.cuda.schedule import schedule
from weft.compiler.targets.cuda.target import CUDA
from weft.core.types import TensorType
from weft.ir.loop_reference import run_reference
from weft.ir.loop_verify import verify_kernel
from weft.ir.loops import Kernel

Array = np.ndarray[Any, Any]


def scaled(x: wf.Tensor) -> wf.Tensor:
    return x / (1.0 + (x * x).sum(axis=-1, keepdims=True))


def both_sums(x: wf.Tensor) -> tuple[wf.Tensor, ...]:
    y = scaled(x)
    return y, y.sum(axis=0), (x * y).sum(axis=0)


def launches_of(f: Callable[..., Any], *types: TensorType) -> list[Launch]:
    plan = plan_program(wf.ir.trace(f, *types), CUDA)
    return [part for launch in plan.launches for part in (launch.members or (launch,))]


def merged_launches(f: Callable[..., Any], *types: TensorType) -> list[Launch]:
    """The launches whose kernels go over chunks of rows."""
    return [each for each in launches_of(f, *types) if "_" in each.name]


def kernel_of(launch: Launch) -> Kernel:
    assert isinstance(launch.kernel, Kernel)
    return launch.kernel


def arrays_for(launch: Launch) -> list[Array]:
    generator = np.random.default_rng(3)
    return [
        np.abs(generator.normal(size=int(np.prod(value.type.shape)))).astype(value.type.dtype.numpy)
        for value in launch.values
    ]


@pytest.mark.parametrize(("rows", "columns"), [(64, 32), (80, 100)])
def test_a_block_sums_its_rows_as_the_reference_does(rows: int, columns: int) -> None:
    (launch,) = merged_launches(both_sums, wf.spec("float32", (rows, columns)))
    kernel = kernel_of(launch)
    verify_kernel(kernel)
    assert schedule(kernel).closing
    arrays = arrays_for(launch)
    expected = [array.copy() for array in arrays]
    run_reference(kernel, expected, ())
    for one, other in zip(run_emulated(kernel, arrays), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5)


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((16384, 768), 1),
        ((64, 64), 1),
        ((48, 64), 0),  # too few rows for chunks
        ((16384, 1280), 1),  # two sums of four teams are 40 KiB
        ((16384, 1284), 0),  # and these are more
        ((16382, 768), 0),  # no chunks that come out even
    ],
)
def test_sums_are_made_beside_rows_where_chunks_and_memory_allow(
    shape: tuple[int, int], count: int
) -> None:
    assert len(merged_launches(both_sums, wf.spec("float32", shape))) == count


def test_rows_that_are_longer_than_a_warp_takes_have_one_team_for_a_chunk() -> None:
    (launch,) = merged_launches(both_sums, wf.spec("float32", (16384, 1280)))
    plan = schedule(kernel_of(launch))
    assert (plan.team, plan.closing) == (64, ())


@needs_ptxas
def test_kernels_with_sums_keep_four_blocks_on_a_multiprocessor() -> None:
    kinds = [wf.spec(dtype, (16384, 768)) for dtype in ("bfloat16", "float32", "float32")]
    found = merged_launches(norm_gradient, *kinds, wf.spec("float32", (768,)))
    assert len(found) == 1
    text = kernels_to_ptx([kernel_of(found[0])])
    assert ".minnctapersm 4" in text
    assert text.count("prefetch.L2") == 3, "of each value of which every row is read"
    assert spilled_bytes(text, "sm_90") <= 128


# --- programs ------------------------------------------------------------------------------------


def norm_gradient(
    given: wf.Tensor, x: wf.Tensor, before: wf.Tensor, weight: wf.Tensor
) -> tuple[wf.Tensor, ...]:
    """The gradients of a layer norm with a residual around it, and of the bias before it."""

    def loss(x: wf.Tensor, weight: wf.Tensor) -> wf.Tensor:
        middle = x - x.mean(axis=-1, keepdims=True)
        normed = middle / wf.sqrt((middle * middle).mean(axis=-1, keepdims=True) + 1e-5)
        return (normed * weight * given.astype("float32")).sum()

    dx, dweight = wf.grad(loss, argnums=(0, 1))(x, weight)
    whole = before + dx
    return whole, dweight, whole.astype("bfloat16").astype("float32").sum(axis=0)


def operands(rows: int = 128, columns: int = 32) -> list[Array]:
    generator = np.random.default_rng(5)
    shapes = [(rows, columns)] * 3 + [(columns,)]
    found = [generator.normal(size=shape).astype(np.float32) for shape in shapes]
    return [found[0].astype(np.float16), *found[1:]]


def test_gradients_of_norms_on_a_card_are_those_of_the_processor(card: HostCard) -> None:
    kinds = [wf.spec(str(array.dtype), array.shape) for array in operands()]
    assert len(merged_launches(norm_gradient, *kinds)) == 1
    found = [
        [y.numpy() for y in wf.jit(norm_gradient)(*[wf.asarray(a).to(place) for a in operands()])]
        for place in ("cuda", "cpu")
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=3e-4, atol=3e-4)


def test_what_a_result_would_be_written_over_is_summed_before(card: HostCard) -> None:
    """The sum reads what the row's result could take the place of."""

    def f(x: wf.Tensor, w: wf.Tensor) -> tuple[wf.Tensor, ...]:
        z = x @ w
        y = scaled(z) + z
        return y @ w, z.sum(axis=0)

    given = [wf.asarray(array) for array in (operands()[1], np.eye(32, dtype=np.float32))]
    (launch,) = merged_launches(f, *[x.type for x in given])
    assert not launch.in_place
    found = [
        [y.numpy() for y in wf.jit(f)(*[x.to(place) for x in given])] for place in ("cuda", "cpu")
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5)


def test_other_targets_keep_sums_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert target.CUDA_LIMITS.plan.column_sum_teams == 4
    kind = wf.spec("float32", (16384, 64))
    assert merged_launches(both_sums, kind)

    def late(x: wf.Tensor) -> tuple[wf.Tensor, ...]:
        """The sums read a product that is made of the rows."""
        y = scaled(x)
        z = y @ y.T[:, :64]
        return y, (z * y).sum(axis=0)

    assert not merged_launches(late, wf.spec("float32", (256, 64)))
