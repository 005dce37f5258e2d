"""Programs on a real card: every primitive, control flow, training, faults, the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.cuda import epilogue_cases, head_view_cases
from tests.compiler.cuda.device_cases import (
    PROGRAMS,
    SAMPLES,
    check_program,
    check_sample,
    numbers,
    train,
)

import weft as wf
from weft.ir.primitive import Primitive, Sample

pytestmark = pytest.mark.skipif(not wf.cuda.is_available(), reason="there is no NVIDIA card here")


@pytest.mark.parametrize(("primitive", "sample"), SAMPLES)
def test_a_primitive_gives_on_a_card_what_its_reference_gives(
    primitive: Primitive, sample: Sample
) -> None:
    check_sample(primitive, sample)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_on_a_card_what_it_gives_on_the_processor(name: str) -> None:
    check_program(name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", epilogue_cases.PROGRAMS)
def test_a_product_gives_with_what_follows_it_what_references_give(name: str, dtype: str) -> None:
    epilogue_cases.check_epilogue(name, dtype)


@pytest.mark.parametrize("name", head_view_cases.PROGRAMS)
def test_attention_of_views_gives_what_it_gives_on_the_processor(name: str) -> None:
    head_view_cases.check_head_views(name, runs=4)


def test_random_epilogues_give_what_references_give() -> None:
    assert sum(epilogue_cases.check_random(seed) for seed in range(100)) >= 50


def test_memory_that_is_not_there_is_an_error_and_the_process_goes_on() -> None:
    quarter = wf.cuda.memory_stats().total // (4 << 20) // 4
    x = wf.zeros((1024, 1024), device="cuda")
    f = wf.jit(lambda x, rows: wf.broadcast_to(x, (rows, 1024, 1024)) + 1)
    held = f(x, quarter)
    with pytest.raises(wf.OutOfMemoryError):
        f(x, 4 * quarter)
    assert float(held[-1].sum()) == 1024 * 1024
    assert float((x + 1).sum()) == 1024 * 1024


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("count", [40_001, 5_000_000])
def test_extremes_of_many_elements_are_found_by_the_whole_card(count: int, dtype: str) -> None:
    x = wf.asarray(np.random.default_rng(count).normal(size=count) * 1e4).astype(dtype)
    f = wf.jit(lambda x: (wf.max(wf.abs(x)), wf.min(x)))
    for _ in range(3):
        found = [each.astype("float32").item() for each in f(x.to("cuda"))]
        assert found == [each.astype("float32").item() for each in f(x)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", ["uniform", "normal", "exponential", "gumbel"])
def test_numbers_that_are_drawn_on_a_card_have_the_processors_bits(name: str, dtype: str) -> None:
    draw = getattr(wf.random, name)
    for count in (1, 1000, 100_003):
        key = wf.random.key(count)
        there, here = (draw((count,), key=key, dtype=dtype, device=d) for d in ("cuda", "cpu"))
        most = 1e-13 if dtype == "float64" else 0  # its logarithm is another than the C library's
        one, other = (each.numpy().astype(np.float64) for each in (there, here))
        np.testing.assert_allclose(one, other, rtol=most, atol=most)


def test_a_training_step_has_the_processors_losses() -> None:
    np.testing.assert_allclose(train("cuda", 50), train("cpu", 50), rtol=1e-3)


def test_two_runs_have_the_same_bits() -> None:
    assert train("cuda", 30) == train("cuda", 30)


def test_an_index_out_of_range_is_reported_and_the_card_goes_on() -> None:
    x = wf.arange(12, dtype="float32").reshape(4, 3).to("cuda")
    pick = wf.jit(lambda x, i: x[i] * 2)
    bad = pick(x, wf.tensor([1, 1 << 40]).to("cuda"))
    with pytest.raises(wf.BoundsError, match="out of range"):
        bad.numpy()
    assert pick(x, wf.tensor([0, 0]).to("cuda")).tolist() == [[0, 2, 4]] * 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int32"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (64, 64, 64), (130, 70, 33), (257, 512, 100)])
def test_products_of_all_dtypes_and_sizes_are_right(
    dtype: str, sizes: tuple[int, int, int]
) -> None:
    m, n, k = sizes
    for left in (False, True):
        for right in (False, True):
            a, b = numbers(*((k, m) if left else (m, k))), numbers(*((n, k) if right else (k, n)))
            if dtype == "int32":
                a, b = np.round(a * 4), np.round(b * 4)
            x, y = (wf.asarray(each).astype(dtype).to("cuda") for each in (a, b))
            found = wf.jit(lambda x, y, s, t: (x.T if s else x) @ (y.T if t else y))(
                x, y, left, right
            )
            wide = [each.to("cpu").astype("float64").numpy() for each in (x, y)]
            wanted = (wide[0].T if left else wide[0]) @ (wide[1].T if right else wide[1])
            limit = 2e-2 if dtype in ("bfloat16", "float16") else 1e-4
            np.testing.assert_allclose(
                found.to("cpu").astype("float64").numpy(), wanted, rtol=limit, atol=limit * k**0.5
            )


def test_a_thousand_steps_hold_no_more_memory_than_ten() -> None:
    f = wf.jit(lambda x: wf.tanh(x @ x) * 0.1)
    x = wf.asarray(numbers(256, 256)).to("cuda")
    used = []
    for step in range(1000):
        x = f(x)
        if step in (9, 999):
            wf.cuda.synchronize()
            used.append(wf.cuda.memory_stats().used)
    assert used[1] <= used[0]


@pytest.mark.parametrize("shape", [(2, 4, 300, 64), (1, 3, 129, 128), (3, 2, 1024, 64)])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_and_its_gradient_agree_with_products(
    shape: tuple[int, ...], causal: bool
) -> None:
    q, k, v, ct = (
        wf.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32)).to("cuda")
        for seed in range(4)
    )

    def gradients(dtype: str) -> list[wf.Tensor]:
        def f(q: wf.Tensor, k: wf.Tensor, v: wf.Tensor) -> wf.Tensor:
            short = [x.astype("bfloat16").astype(dtype) for x in (q, k, v)]
            out = wf.scaled_dot_product_attention(*short, causal=causal)
            return (out.astype("float32") * ct).sum()

        value, grads = wf.jit(wf.value_and_grad(f, argnums=(0, 1, 2)))(q, k, v)
        return [value, *grads]

    for found, wanted in zip(gradients("bfloat16"), gradients("float32"), strict=True):
        scale = float(wf.abs(wanted).max()) + 1e-6
        assert float(wf.abs(found - wanted).max()) / scale < 3e-2
