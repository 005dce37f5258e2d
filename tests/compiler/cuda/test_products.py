"""Products in PTX: every kind assembles without spills, and plans are chosen by their rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.compiler.cuda.assembling import needs_ptxas, spilled_bytes

from weft.compiler.targets.cuda.products.choice import (
    best_plan,
    estimated_cycles,
    kernel_of,
    launch,
)
from weft.compiler.targets.cuda.products.description import (
    Apply,
    Combine,
    Constant,
    Keep,
    Matrix,
    Plan,
    ProductSpec,
    Scalar,
    Sizes,
    Step,
    Sum,
    Vector,
)
from weft.compiler.targets.cuda.products.functions import register, scalar_function
from weft.compiler.targets.cuda.ptx_writer import Kernel, TensorMap, Value
from weft.core.errors import NameUnknownError, UnsupportedError

LARGE, SQUARE, WIDE = Plan(128, 256, 3), Plan(128, 128, 6), Plan(192, 192, 3)
SMALL, SHARED = Plan(64, 64, 8), Plan(128, 128, 6, split=True)
ALTERNATE = Plan(128, 128, 4, alternate=True)
DIRECT, PLAIN = Plan(64, 128, 4, bulk=False), Plan(64, 64, 2, bulk=False, plain=True)
CLUSTER = Plan(64, 64, 7, bulk=False, plain=True, cluster=7)

BIAS = Combine("add", Vector("bias", "bfloat16"))
EPILOGUES: dict[str, tuple[Step, ...]] = {
    "bias": (BIAS,),
    "gelu and what was before it": (BIAS, Keep("before"), Apply("gelu_tanh")),
    "exact gelu": (BIAS, Apply("gelu_erf")),
    "derivative with sums": (
        Combine("gelu_tanh_derivative", Matrix("before", "bfloat16")),
        Sum("dbias", "rows"),
    ),
    "exact derivative": (Combine("gelu_erf_derivative", Matrix("before", "bfloat16")),),
    "residual": (BIAS, Combine("add", Matrix("x", "bfloat16"))),
    "scales": (Combine("multiply", Scalar("scale")), Combine("multiply", Constant(0.5))),
    "sums of columns": (Apply("relu"), Sum("sums", "columns"), Keep("kept", "float32")),
    "rows": (Combine("multiply", Vector("weights", "float32", per="row")),),
}


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("plan", [LARGE, SQUARE, WIDE, SMALL, SHARED, DIRECT, ALTERNATE], ids=str)
@pytest.mark.parametrize("transposes", [(False, False), (True, True)], ids=str)
def test_products_of_every_layout_assemble_without_spills(
    plan: Plan, transposes: tuple[bool, bool]
) -> None:
    a, b = transposes
    spec = ProductSpec("bfloat16", transpose_a=a, transpose_b=b)
    assert spilled_bytes(kernel_of(spec, plan).text) == 0


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("plan", [LARGE, SHARED], ids=str)
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_assemble_without_spills(name: str, plan: Plan) -> None:
    spec = ProductSpec("bfloat16", transpose_b=True, epilogue=EPILOGUES[name])
    assert spilled_bytes(kernel_of(spec, plan).text) == 0


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize(
    ("spec", "plan"),
    [
        (ProductSpec("float16", "float32", batched=True), SQUARE),
        (ProductSpec("tfloat32", transpose_b=True), LARGE),
        (ProductSpec("bfloat16", "float32", transpose_b=True, epilogue=(BIAS,)), LARGE),
        (ProductSpec("bfloat16", transpose_b=True, aligned_output=False), LARGE),
        (ProductSpec("float32"), Plan(128, 128, 2, bulk=False, plain=True)),
        (ProductSpec("float32", transpose_a=True, transpose_b=True), PLAIN),
        (ProductSpec("tfloat32"), replace(PLAIN, split=True)),
        (ProductSpec("bfloat16", transpose_b=True, epilogue=EPILOGUES["exact gelu"]), ALTERNATE),
        (ProductSpec("bfloat16", aligned=False, batched=True, epilogue=(BIAS,)), PLAIN),
        (ProductSpec("float16", aligned=False, aligned_output=False), PLAIN),
        (ProductSpec("float32", transpose_b=True, epilogue=EPILOGUES["rows"]), CLUSTER),
        (ProductSpec("float32", transpose_a=True, batched=True, aligned=False), CLUSTER),
        (ProductSpec("tfloat32", aligned_output=False), replace(CLUSTER, cluster=1, stages=16)),
    ],
    ids=str,
)
def test_other_dtypes_and_alignments_assemble_without_spills(spec: ProductSpec, plan: Plan) -> None:
    assert spilled_bytes(kernel_of(spec, plan).text) == 0


@pytest.mark.parametrize("size", [64, 512, 1024, 4096])
def test_the_chosen_plan_has_the_least_estimate_and_fits_shared_memory(size: int) -> None:
    spec, sizes = ProductSpec("bfloat16"), Sizes(size, size, size)
    kernel = kernel_of(spec, best_plan(spec, sizes))
    assert kernel.shared_bytes <= 227 * 1024
    cycles = estimated_cycles(spec, kernel.plan, sizes)
    assert cycles <= min(estimated_cycles(spec, plan, sizes) for plan in (LARGE, SQUARE, SMALL))


def test_small_products_get_small_tiles_and_long_sums_are_split() -> None:
    spec = ProductSpec("bfloat16")
    assert best_plan(spec, Sizes(512, 512, 128)).tile_n == 64
    assert best_plan(spec, Sizes(768, 768, 16384)).split
    assert not best_plan(spec, Sizes(16384, 3072, 768)).split


def test_a_split_launch_has_room_for_every_part() -> None:
    spec, sizes = ProductSpec("bfloat16"), Sizes(768, 768, 16384)
    kernel = kernel_of(spec, SHARED)
    how = launch(kernel, sizes, multiprocessors=132)
    tiles, parts = 36, how.words["parts"]
    assert how.blocks == tiles * parts <= 132
    assert how.words["run"] * parts >= 256 > how.words["run"] * (parts - 1)
    assert how.workspace_bytes == tiles * parts * 128 * 128 * 4
    assert how.counters == 2 * tiles


def test_heavy_epilogues_are_hidden_behind_another_consumers_products() -> None:
    epilogue = EPILOGUES["gelu and what was before it"]
    spec = ProductSpec("bfloat16", transpose_b=True, epilogue=epilogue)
    assert best_plan(spec, Sizes(16384, 3072, 768)).alternate
    assert not best_plan(spec, Sizes(256, 256, 256)).alternate


def test_small_products_of_float32_are_shared_by_clusters_that_run_at_once() -> None:
    spec = ProductSpec("float32")
    for size in (Sizes(128, 512, 784), Sizes(128, 10, 512), Sizes(64, 1024, 256)):
        plan = best_plan(spec, size)
        kernel = kernel_of(spec, plan)
        how = launch(kernel, size)
        assert plan.cluster > 1
        assert how.blocks % plan.cluster == 0
        assert how.blocks <= 132
        assert plan.stages * plan.cluster * 16 >= size.k > plan.stages * (plan.cluster - 1) * 16
        assert kernel.shared_bytes <= 227 * 1024
        assert not how.workspace_bytes
    assert best_plan(spec, Sizes(512, 784, 128)).cluster == 1
    older = best_plan(spec, Sizes(128, 512, 784), has_warpgroups=False)
    assert older.cluster <= 1  # cards before Hopper have no clusters
    assert not best_plan(spec, Sizes(4096, 4096, 64)).cluster
    assert not best_plan(ProductSpec("bfloat16", aligned=False), Sizes(128, 512, 784)).cluster


def test_plain_products_of_few_tiles_are_split() -> None:
    spec = ProductSpec("bfloat16", aligned=False)
    few = best_plan(spec, Sizes(128, 512, 784))
    assert few.split
    how = launch(kernel_of(spec, few), Sizes(128, 512, 784), multiprocessors=132)
    assert 16 < how.blocks <= 132
    assert not best_plan(spec, Sizes(4096, 4096, 64)).split


def test_what_tensor_cores_cannot_read_goes_to_the_plain_kernel() -> None:
    sizes = Sizes(100, 100, 100)
    assert best_plan(ProductSpec("bfloat16", aligned=False), sizes).plain
    assert best_plan(ProductSpec("float32"), sizes).plain
    assert best_plan(ProductSpec("tfloat32", transpose_a=True), sizes).plain
    assert not best_plan(ProductSpec("tfloat32", transpose_b=True), sizes).plain


def test_tensor_maps_name_the_axes_as_they_lie_in_memory() -> None:
    kernel = kernel_of(ProductSpec("bfloat16", transpose_a=True, batched=True), SQUARE)
    maps = {each.name: each for each in kernel.parameters if isinstance(each, TensorMap)}
    assert maps["a"].axes == ("m", "k", "batch")
    assert maps["b"].axes == ("n", "k", "batch")
    assert maps["a"].box == (64, 64, 1)
    assert maps["out"].box == (64, 64, 1)


def test_a_registered_function_is_known_to_epilogues() -> None:
    @register("test_square", 1)
    def square(kernel: Kernel, x: Value) -> Value:
        return x * x

    spec = ProductSpec("bfloat16", epilogue=(Apply("test_square"),))
    bare = kernel_of(ProductSpec("bfloat16"), SMALL).text
    text = kernel_of(spec, SMALL).text
    assert text.count("mul.f32") == bare.count("mul.f32") + 32  # sums of a thread


def test_unknown_functions_and_dtypes_are_refused() -> None:
    with pytest.raises(NameUnknownError):
        scalar_function("nothing", 1)
    with pytest.raises(UnsupportedError):
        best_plan(ProductSpec("float64"), Sizes(8, 8, 8))
    with pytest.raises(UnsupportedError):
        kernel_of(ProductSpec("float32", epilogue=(Sum("s", "rows"),)), PLAIN)
