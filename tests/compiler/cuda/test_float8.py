"""Products of 8-bit floats: what becomes one, how it is cut, and that every text assembles."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.assembling import needs_ptxas, spilled_bytes
from tests.compiler.cuda.float8_cases import (
    LAYOUTS,
    TILES,
    check_eager,
    check_exact,
    check_extremes,
    check_layers,
    check_long_sums,
    float8_launches,
    force_plan,
    layer_loss,
    product,
)
from tests.compiler.cuda.host_card import HostCard
from tests.compiler.cuda.ptx_interpreter import Memory, run_kernel

import weft as wf
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda import target
from weft.compiler.targets.cuda.products import float8, fused
from weft.compiler.targets.cuda.products.choice import best_plan, kernel_of, with_most_stages
from weft.compiler.targets.cuda.products.code_casts import CastSpec, cast_kernel
from weft.compiler.targets.cuda.products.code_transposes import (
    is_transposed_codes,
    transpose_blocks,
    transpose_kernel,
    transposed_codes,
)
from weft.compiler.targets.cuda.products.description import (
    FLOAT8_PAIRS,
    Combine,
    Plan,
    ProductSpec,
    Scalar,
    Sizes,
    Vector,
)
from weft.compiler.targets.cuda.target import CUDA
from weft.core.dtypes import as_dtype
from weft.ir.graph import GraphNode
from weft.ops.float8 import (
    E4M3,
    E5M2,
    codes_of,
    float8_codes,
    numbers_of,
    round_to_float8,
)
from weft.ops.movement import reshape

FEW = [(1, 8, 16), (18, 20, 48)]
SCALES = (
    Combine("multiply", Scalar("scale")),
    Combine("add", Vector("bias", "bfloat16")),
)


def spec_of(pair: str, output: str = "bfloat16") -> ProductSpec:
    return ProductSpec(pair, output, transpose_b=True, epilogue=SCALES)


# The kernel.


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("output", ["bfloat16", "float32"])
@pytest.mark.parametrize("pair", FLOAT8_PAIRS)
def test_every_tile_assembles_without_spills(pair: str, output: str) -> None:
    for tile in TILES:
        for split in (False, True):
            spec = spec_of(pair, output)
            plan = with_most_stages(spec, Plan(*tile, stages=0, split=split))
            assert spilled_bytes(kernel_of(spec, plan).text) == 0


def test_codes_are_multiplied_as_what_they_are() -> None:
    kernel = kernel_of(spec_of("e5m2 by e4m3"), Plan(128, 128, 4))
    assert kernel.text.count("wgmma.mma_async.sync.aligned.m64n128k32.f32.e5m2.e4m3") == 4
    maps = [each for each in kernel.parameters if each.name in "ab"]
    assert [(each.dtype, each.box) for each in maps] == [("uint8", (128, 128))] * 2  # type: ignore[union-attr]


def test_each_step_begins_at_zero_and_is_added_in_float32() -> None:
    text = kernel_of(spec_of("e4m3 by e4m3"), Plan(64, 64, 4)).text
    products = re.findall(r"wgmma.mma_async\S+ \{(.*?)\}, \S+, \S+, (%\w+), 1, 1;", text)
    first, *others = [adds for _, adds in products]
    [always] = set(others)
    assert f"not.pred {first}, {always};" in text  # whatever the step is
    step_sums = products[0][0].split(", ")
    start = text.index("wgmma.wait_group.sync.aligned 0")
    added = re.findall(r"add.f32 (%\w+), (%\w+), (%\w+);", text[start:])[: len(step_sums)]
    assert [part for _, _, part in added] == step_sums
    totals = [total for total, _, _ in added]
    assert totals == [total for _, total, _ in added]
    assert not {*totals} & {*step_sums}
    assert all(f"mov.f32 {total}, 0f00000000;" in text for total in totals)
    assert text.count("wgmma.wait_group.sync.aligned 0") == 1


def test_a_plan_is_a_tile_whose_sums_find_room_twice() -> None:
    for sizes in (Sizes(16384, 4096, 4096), Sizes(64, 64, 64), Sizes(512, 512, 65536)):
        plan = best_plan(spec_of("e4m3 by e4m3"), sizes)
        assert (plan.tile_m, plan.tile_n) in TILES
        assert not any([plan.alternate, plan.plain, plan.warps])


@pytest.mark.parametrize(("rows", "columns"), [(16, 4), (48, 132), (64, 128), (16, 1028), (160, 8)])
def test_bytes_are_transposed(rows: int, columns: int) -> None:
    kernel = transpose_kernel()
    source = np.random.default_rng(rows).integers(0, 256, (rows, columns)).astype(np.uint8)
    memory = Memory({"source": source, "turned": np.zeros((columns, rows), np.uint8)})
    words = {"rows": rows, "columns": columns}
    blocks = transpose_blocks(rows, columns)
    run_kernel(kernel.text, kernel.threads, blocks, kernel.shared_bytes, memory, words)
    np.testing.assert_array_equal(memory.result("turned"), source.T)
    assert (memory.store_counts("turned") == 1).all()


@needs_ptxas
def test_the_kernel_that_transposes_bytes_assembles() -> None:
    assert spilled_bytes(transpose_kernel().text) == 0


def test_bytes_that_no_kernel_exchanges_are_moved_by_loops() -> None:
    def calls(f: Callable[..., Any], *shape: int, dtype: str = "uint8") -> bool:
        [node] = wf.ir.trace(f, wf.spec(dtype, shape)).nodes
        return is_transposed_codes(transposed_codes(node)[0])

    assert calls(lambda x: x.T, 32, 20)
    assert calls(lambda x: wf.permute_dims(x, (2, 0, 1)), 4, 8, 20)
    assert not calls(lambda x: x.T, 24, 20)
    assert not calls(lambda x: x.T, 32, 18)
    assert not calls(lambda x: x.mT, 4, 16, 16)
    assert not calls(lambda x: x.T, 32, 20, dtype="int16")
    assert not calls(lambda x: x.T, 0, 16)


@pytest.mark.parametrize("stored", [("codes",), ("turned",), ("codes", "turned")], ids=str)
@pytest.mark.parametrize("format", [E4M3, E5M2])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_codes_are_made_in_both_orders(dtype: str, format: str, stored: tuple[str, ...]) -> None:
    rows, columns = 32, 136
    random = np.random.default_rng(len(dtype))
    x = random.normal(size=(rows, columns)) * np.exp2(random.integers(-16, 16, (rows, columns)))
    x[3, :10] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 464, 464.5, 61440, -61439, 1e30]
    with np.errstate(over="ignore"):
        x = x.astype(as_dtype(dtype).numpy)
    scale = np.array([0.5], np.float32)
    shapes = {"codes": (rows, columns), "turned": (columns, rows)}
    targets = {name: np.zeros(shapes[name], np.uint8) for name in stored}
    memory = Memory({"source": x, "scale": scale, **targets})
    kernel = cast_kernel(CastSpec(dtype, format, stored))
    words = {"rows": rows, "columns": columns}
    blocks = transpose_blocks(rows, columns)
    run_kernel(kernel.text, kernel.threads, blocks, kernel.shared_bytes, memory, words)
    wanted = float8_codes.reference(x, scale[0], format=format)
    for name in stored:
        np.testing.assert_array_equal(memory.result(name), wanted.T if name == "turned" else wanted)
        assert (memory.store_counts(name) == 1).all()


@needs_ptxas
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_kernels_that_make_codes_assemble(dtype: str) -> None:
    for format in (E4M3, E5M2):
        text = cast_kernel(CastSpec(dtype, format, ("codes", "turned"))).text
        assert spilled_bytes(text) == 0


def test_codes_of_what_lies_in_memory_are_made_by_one_kernel() -> None:
    kinds = [wf.spec("float32", shape) for shape in ((64, 32), (48, 32), (48,), (16, 48))]
    gradients = wf.grad(layer_loss, argnums=(0, 1, 2, 3))
    launches = plan_program(wf.ir.trace(gradients, *kinds), CUDA).every_launch()
    made = [len(each.values) - 2 for each in launches if each.kernel == ("codes",)]
    # input and both weights are read in both orders but the first weight, and so are two
    # cotangents and the activation between the layers
    assert sorted(made) == [2, 2, 2, 2, 2, 2]
    assert not any(each.kernel == ("transposed_codes",) for each in launches)


def test_codes_of_what_is_nowhere_stored_are_written_by_loops() -> None:
    def f(a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
        return product(E4M3, E4M3, "across rows")(wf.sin(a), b)

    launches = plan_program(
        wf.ir.trace(f, *[wf.spec("bfloat16", (64, 64))] * 2), CUDA
    ).every_launch()
    kinds = [each.kernel for each in launches if isinstance(each.kernel, tuple)]
    assert kinds.count(("codes",)) == 1
    assert kinds.count(("transposed_codes",)) == 1


# What becomes one.


def test_rounded_operands_of_linear_layers_are_multiplied_as_codes() -> None:
    kinds = [wf.spec("float32", shape) for shape in ((64, 32), (48, 32), (48,), (16, 48))]
    launches = float8_launches(wf.grad(layer_loss, argnums=(0, 1, 2, 3)), *kinds)
    assert len(launches) == 6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_codes_are_transposed_where_they_lie_across(layout: str) -> None:
    shapes = {
        "along rows": ((64, 32), (48, 32)), "across rows": ((32, 64), (32, 48)),
        "left across": ((32, 64), (48, 32)), "right across": ((64, 32), (32, 48)),
    }[layout]  # fmt: skip
    kinds = [wf.spec("bfloat16", shape) for shape in shapes]
    assert len(float8_launches(product(E4M3, E5M2, layout), *kinds)) == 1


def _one_side(a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    return round_to_float8(a, E4M3) @ b.T


def _scales_of_rows(a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    scales = a[:, :1]
    rows = numbers_of(codes_of(a, scales, E4M3), scales, E4M3)
    return rows @ round_to_float8(b, E4M3).T


PLAIN: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], str]] = {
    "one operand that is not rounded": (_one_side, (64, 32), (48, 32), "bfloat16"),
    "rows that are no whole 16 bytes": (
        product(E4M3, E4M3, "along rows"), (64, 24), (48, 24), "bfloat16",
    ),
    "a scale for each row": (_scales_of_rows, (64, 32), (48, 32), "float32"),
    "nothing to sum": (product(E4M3, E4M3, "along rows"), (64, 0), (48, 0), "bfloat16"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_other_products_stay_in_bfloat16(name: str) -> None:
    f, *shapes, dtype = PLAIN[name]
    assert not float8_launches(f, *[wf.spec(dtype, shape) for shape in shapes])


def test_cards_before_hopper_multiply_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "has_warpgroup_products", lambda ordinal: False)
    f, kinds = product(E4M3, E4M3, "along rows"), [wf.spec("bfloat16", (64, 64))] * 2
    assert not float8_launches(f, *kinds)
    launches = plan_program(wf.ir.trace(f, *kinds), CUDA).every_launch()
    assert [each.kernel[1] for each in launches if each.kind == "product"] == ["bfloat16"]


# What they give, on a card in the host's memory.


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pair", ["e4m3 by e4m3", "e5m2 by e4m3"])
def test_products_are_exact(card: HostCard, pair: str, layout: str) -> None:
    for sizes in FEW:
        check_exact(pair, layout, sizes)


def test_forced_tiles_are_exact(card: HostCard, monkeypatch: pytest.MonkeyPatch) -> None:
    force_plan(monkeypatch, (64, 64), split=True)
    check_exact("e4m3 by e5m2", "along rows", (70, 40, 144))


def test_long_sums(card: HostCard) -> None:
    check_long_sums(512, rows=16)


def test_extremes(card: HostCard) -> None:
    check_extremes()


def test_layers_and_gradients(card: HostCard) -> None:
    check_layers(16)


def test_eager_layers_and_gradients(card: HostCard) -> None:
    check_eager(16)


# Faults put in on purpose, each of which a check above sees.

Broken = tuple[Any, str, Callable[..., Any], Callable[[int], None]]


def check_across_rows(rows: int) -> None:
    check_exact("e5m2 by e4m3", "across rows", (rows, 64, 64))


def reshaped(node: GraphNode) -> list[GraphNode]:
    shape = node.results[0].type.shape
    return [replace(node, primitive=reshape, params={"shape": shape})]


FAULTS: dict[str, Broken] = {
    "scales are left out": (fused._Description, "_scaling", lambda *_: [], check_extremes),
    "codes stay where they lie": (float8, "_in_order", lambda node: [node], check_across_rows),
    "bytes are not exchanged": (float8, "transposed_codes", reshaped, check_across_rows),
}


@pytest.mark.parametrize(("number", "name"), [*enumerate(FAULTS)])
def test_a_fault_turns_a_check_red(
    card: HostCard, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    holder, attribute, fault, check = FAULTS[name]
    check(20)
    monkeypatch.setattr(holder, attribute, fault)
    with pytest.raises((AssertionError, ValueError)):  # or there is no such product
        check(24 + 4 * number)  # programs are kept: these rows are in no other test
