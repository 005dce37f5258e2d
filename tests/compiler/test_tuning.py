"""Ways to make a product, measured and kept on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import weft as wf
from weft.compiler.lowering.matrix_products import Product
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.products import tuning
from weft.compiler.targets.cpu.products.tile_plans import Plan, all_plans, read_plan
from weft.compiler.targets.cpu.target import compile_program
from weft.core.dtypes import DType, float32, float64
from weft.runtime.cache import DiskCache, shared_disk

RNG = np.random.default_rng(2)
SHAPES = [(1, 1, 70, 33), (1, 7, 130, 33), (2, 100, 65, 70), (1, 300, 48, 1100), (3, 20, 1, 9)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store, and nothing remembered."""
    store = DiskCache(str(tmp_path))
    monkeypatch.setattr(tuning, "shared_disk", lambda: store)
    monkeypatch.setattr(tuning, "_plans", {})
    monkeypatch.setattr(tuning, "SECONDS", 0.0)
    return tmp_path


@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_all_ways_give_the_product(
    dtype: DType, shape: tuple[int, int, int, int], turned: tuple[bool, bool]
) -> None:
    product = Product(dtype, shape, turned)
    left, right = tuning._operands(product)
    plain = [np.swapaxes(x, 1, 2) if t else x for x, t in zip((left, right), turned, strict=True)]
    wanted = plain[0].astype(np.float64) @ plain[1]
    found = list(all_plans(product, host()))
    assert len(found) == len(set(found))
    for plan in found:
        with wf.settings.changed(tuning=True):
            made = tuning._compile_product(compile_program, product, plan).run([left, right])[0]
        np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4, err_msg=str(plan))


def test_plans_are_texts() -> None:
    for plan in all_plans(Product(float32, (1, 100, 200, 300), (False, False)), host()):
        assert read_plan(str(plan)) == plan


def test_the_fastest_way_is_kept_on_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    product = Product(float32, (1, 64, 128, 96), (False, True))
    slow = Plan("rows", True, 2048)
    seconds = {str(slow): 0.5}
    monkeypatch.setattr(tuning, "_compile_product", lambda compile_program, product, plan: plan)
    monkeypatch.setattr(tuning, "_seconds", lambda plan, arrays: seconds.get(str(plan), 1.0))
    assert tuning.tuned_plan(compile_program, product) == slow
    assert len([file for file in folder.rglob("*") if file.is_file()]) == 1
    tuning._plans.clear()
    seconds.clear()
    assert tuning.tuned_plan(compile_program, product) == slow, "found on disk"


def test_the_usual_way_stays_where_others_are_hardly_faster(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_compile_product", lambda compile_program, product, plan: plan)
    monkeypatch.setattr(
        tuning, "_seconds", lambda plan, arrays: 1.0 if plan.form == "usual" else 0.96
    )
    assert tuning.tuned_plan(
        compile_program, Product(float32, (1, 64, 128, 96), (False, True))
    ) == Plan("usual")


def test_a_tuned_program_computes_the_same(folder: Path) -> None:
    f = wf.jit(lambda x, w, b: wf.relu(x @ w + b) @ w.T)
    x, w, b = [wf.tensor(RNG.standard_normal(s).astype("f")) for s in ((70, 90), (90, 50), (50,))]
    plain = f(x, w, b).numpy()
    with wf.settings.changed(tuning=True):
        tuned = wf.jit(lambda x, w, b: wf.relu(x @ w + b) @ w.T)(x, w, b).numpy()
    np.testing.assert_allclose(tuned, plain, rtol=1e-4, atol=1e-4)
    assert len(tuning._plans) == 2


def test_products_of_integers_are_tuned_without_the_blas(folder: Path) -> None:
    a, b = (wf.asarray(RNG.integers(-5, 5, shape)) for shape in ((40, 30), (30, 50)))
    with wf.settings.changed(tuning=True):
        found = wf.jit(lambda a, b: a @ b)(a, b)
    np.testing.assert_array_equal(found.numpy(), (a @ b).numpy())


def test_unknown_and_empty_sizes_take_the_usual_way(folder: Path) -> None:
    assert (
        tuning.tuned_plan(compile_program, Product(float32, (1, 0, 4, 5), (False, False))) is None
    )
    with wf.settings.changed(tuning=True):
        f = wf.jit(lambda x, w: x @ w)
        for rows in (60, 70, 80):
            assert f(wf.ones((rows, 8)), wf.ones((8, 4))).shape == (rows, 4)
    assert shared_disk() is not None
