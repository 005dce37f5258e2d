"""Products by single warps: which they take, how they are cut, and that every text assembles."""

from __future__ import annotations

import pytest
from tests.compiler.cuda.assembling import needs_ptxas, spilled_bytes
from tests.compiler.cuda.host_card import HostCard
from tests.compiler.cuda.integer_cases import INTEGERS, check_integers

import weft as wf
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.products.choice import best_plan, kernel_of, launch
from weft.compiler.targets.cuda.products.description import INTEGER_PAIRS, ProductSpec, Sizes
from weft.compiler.targets.cuda.products.warp_products import takes_warp_products
from weft.compiler.targets.cuda.target import CUDA

SPECS = {
    f"{dtype} {int(left)}{int(right)}": ProductSpec(
        dtype, output="int32" if dtype in INTEGER_PAIRS else "", transpose_a=left, transpose_b=right
    )
    for dtype in ("bfloat16", "float16", "tfloat32", "int8", "uint8 by int8")
    for left in (False, True)
    for right in (False, True)
}
TAKEN = [name for name, spec in SPECS.items() if takes_warp_products(spec)]
LARGE, SMALL = Sizes(4096, 4096, 512), Sizes(256, 200, 512)


def test_short_floats_are_taken_in_any_order_and_others_along_their_rows() -> None:
    assert TAKEN == [name for name in SPECS if "float16" in name or name.endswith(" 01")]
    assert not takes_warp_products(ProductSpec("bfloat16", aligned=False))
    assert not takes_warp_products(ProductSpec("float32"))


def test_cards_without_warpgroups_have_warps_or_plain_multiplies() -> None:
    spec = ProductSpec("bfloat16")
    plan = best_plan(spec, LARGE, has_warpgroups=False)
    assert (plan.warps, plan.tile_m, plan.split) == (True, 128, False)
    assert best_plan(spec, SMALL, has_warpgroups=False).tile_m == 64
    assert not best_plan(spec, LARGE).warps
    assert best_plan(ProductSpec("float32"), LARGE, has_warpgroups=False).plain
    how = launch(kernel_of(spec, plan), LARGE)
    assert how.blocks == 32 * 32


@needs_ptxas
@pytest.mark.parametrize("sizes", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize(
    "name", [name for name, spec in SPECS.items() if takes_warp_products(spec)]
)
def test_a_kernel_of_warps_assembles_for_ampere_without_spills(name: str, sizes: Sizes) -> None:
    spec = SPECS[name]
    kernel = kernel_of(spec, best_plan(spec, sizes, has_warpgroups=False))
    assert spilled_bytes(kernel.text, "sm_80") == 0


@needs_ptxas
def test_plain_products_assemble_for_ampere() -> None:
    spec = ProductSpec("float32", epilogue=())
    kernel = kernel_of(spec, best_plan(spec, SMALL, has_warpgroups=False))
    assert spilled_bytes(kernel.text, "sm_80") == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_8_bits_are_multiplied_as_such(card: HostCard, name: str) -> None:
    check_integers(name)


def test_integers_whose_rows_are_no_whole_units_are_multiplied_by_loops() -> None:
    kinds = wf.spec("int8", (8, 15)), wf.spec("int8", (15, 8))
    graph = wf.ir.trace(lambda a, b: a.astype("int32") @ b.astype("int32"), *kinds)
    assert all(launch.kind != "product" for launch in plan_program(graph, CUDA).launches)
