"""Products of 8-bit floats on a real card: exact where sums are, and their digits where not."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.cuda.float8_cases import (
    LAYOUTS,
    SIZES,
    TILES,
    check_eager,
    check_exact,
    check_extremes,
    check_layers,
    check_long_sums,
    force_plan,
)

import weft as wf
from weft.compiler.targets.cuda.capabilities import has_warpgroup_products
from weft.compiler.targets.cuda.products.description import FLOAT8_PAIRS
from weft.ops.float8 import E4M3, numbers_of

pytestmark = pytest.mark.skipif(
    not (wf.cuda.is_available() and has_warpgroup_products(0)), reason="there is no Hopper here"
)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("pair", FLOAT8_PAIRS)
def test_products_of_whole_numbers_are_exact_in_all_layouts(
    pair: str, sizes: tuple[int, int, int]
) -> None:
    for layout in LAYOUTS:
        check_exact(pair, layout, sizes)


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("tile", TILES)
def test_every_tile_is_exact(
    monkeypatch: pytest.MonkeyPatch, tile: tuple[int, int], split: bool
) -> None:
    force_plan(monkeypatch, tile, split=split)
    for sizes in SIZES[2:]:
        check_exact("e5m2 by e4m3", "along rows", sizes)


@pytest.mark.parametrize("shape", [(16, 4), (48, 132), (4096, 1000), (16384, 3072)])
def test_codes_are_transposed(shape: tuple[int, int]) -> None:
    codes = np.random.default_rng(0).integers(0, 120, shape).astype(np.uint8)
    scale = wf.tensor(1.0, device="cuda")

    def f(codes: wf.Tensor, other: wf.Tensor, scale: wf.Tensor) -> wf.Tensor:
        return numbers_of(codes, scale, E4M3).T @ numbers_of(other, scale, E4M3)

    other = np.full((shape[0], 16), 0x38, np.uint8)  # ones
    found = wf.jit(f)(wf.asarray(codes).to("cuda"), wf.asarray(other).to("cuda"), scale)
    numbers = numbers_of(wf.asarray(codes), wf.tensor(1.0), E4M3).astype("float32").numpy()
    sums = numbers.astype(np.float64).sum(0)
    wanted = np.repeat(sums[:, None], 16, 1)
    np.testing.assert_allclose(found.astype("float32").numpy(), wanted, rtol=8e-3)


@pytest.mark.parametrize("columns", [128, 4096, 32768])
def test_long_sums_keep_their_digits(columns: int) -> None:
    check_long_sums(columns)


def test_extremes_are_what_they_are_on_the_processor() -> None:
    check_extremes()


@pytest.mark.parametrize("width", [16, 128, 768])
def test_layers_and_their_gradients_agree_with_the_processors(width: int) -> None:
    check_layers(width)


@pytest.mark.parametrize("width", [16, 256])
def test_eager_layers_agree_with_the_processors(width: int) -> None:
    check_eager(width)


def test_a_small_gpt_learns_as_it_does_in_bfloat16() -> None:
    losses = {}
    for precision in ("bfloat16", "float8"):
        wf.random.seed(0)
        config = wf.models.GPTConfig(vocabulary=64, context=64, layers=2, heads=4, width=128)
        model = wf.models.GPT(config).to("cuda")
        optimizer = wf.optim.AdamW(model.parameters(), lr=1e-3)
        tokens = np.random.default_rng(0).integers(0, 8, (16, 65)).cumsum(axis=1) % 64
        x, y = (wf.asarray(each).to("cuda") for each in (tokens[:, :-1], tokens[:, 1:]))

        @wf.jit
        def step(x: wf.Tensor, y: wf.Tensor, name: str = precision) -> wf.Tensor:
            with wf.autocast(name):
                logits = model(x)  # noqa: B023
                loss = wf.nn.functional.cross_entropy(logits.reshape(-1, 64), y.reshape(-1))
            optimizer.minimize(loss)  # noqa: B023
            return loss

        losses[precision] = [step(x, y).item() for _ in range(60)]
    one, other = losses.values()
    print(one[::10], other[::10])
    assert other[-1] < 0.9 * other[0]
    np.testing.assert_allclose(other, one, atol=0.05)
