"""Attention of float32 in one pass over the keys: values, gradients, and text."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.compiler.cuda.assembling import PTXAS, needs_ptxas
from tests.compiler.cuda.exact_attention_cases import EXACT, check_exact
from tests.compiler.cuda.host_card import HostCard

import weft as wf
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.attention.exact_backward import (
    exact_keys_kernel,
    exact_queries_kernel,
)
from weft.compiler.targets.cuda.attention.exact_forward import exact_forward_kernel
from weft.compiler.targets.cuda.attention.exact_tiles import ExactSpec
from weft.compiler.targets.cuda.machine import OLDEST
from weft.compiler.targets.cuda.nvptx import text_to_ptx
from weft.compiler.targets.cuda.target import CUDA

KERNELS = {
    "forward": exact_forward_kernel(ExactSpec(64, True, 0.125)),
    "queries": exact_queries_kernel(ExactSpec(96, False, 0.1, "bool")),
    "keys": exact_keys_kernel(ExactSpec(64, True, 0.125, "float32", True)),
    "forward, dropout": exact_forward_kernel(ExactSpec(128, True, 0.125, kept=0.9)),
    "queries, dropout": exact_queries_kernel(ExactSpec(64, True, 0.1, "bool", kept=0.9)),
    "keys, dropout": exact_keys_kernel(ExactSpec(128, False, 0.1, kept=0.5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_attention_of_float32_is_the_processors_with_its_gradients(
    card: HostCard, name: str
) -> None:
    check_exact(name)


@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [
        ((1, 2, 19, 6), "float32", {}),
        ((1, 2, 19, 132), "float32", {}),
        ((1, 2, 19, 8), "float64", {}),
        ((1, 2, 15, 8), "float32", {}),
        ((1, 2, 19, 8), "float32", {"dropout": 0.5}),  # rows are no whole blocks of random words
        ((1, 2, 20, 8), "float32", {"dropout": 1.0}),
    ],
)
def test_other_attention_is_made_of_products(
    shape: tuple[int, ...], dtype: str, options: dict[str, float]
) -> None:
    def attend(x: wf.Tensor) -> wf.Tensor:
        key = {"key": wf.random.key(1)} if options else {}
        return wf.scaled_dot_product_attention(x, x, x, **options, **key)

    plan = plan_program(wf.ir.trace(attend, wf.spec(dtype, shape)), CUDA)
    assert all(launch.name != "exact attention" for launch in plan.launches)


def test_tensor_cores_make_attention_where_float32_may_be_rounded() -> None:
    graph = wf.ir.trace(wf.scaled_dot_product_attention, *[wf.spec("float32", (1, 2, 19, 8))] * 3)
    with wf.settings.changed(float32_products="tfloat32"):
        plan = plan_program(graph, CUDA)
    assert "exact attention" not in [launch.name for launch in plan.launches]


@pytest.mark.slow
def test_a_row_of_the_lowest_numbers_sees_all_keys_alike(card: HostCard) -> None:
    x = np.random.default_rng(0).normal(size=(1, 1, 16, 4)).astype(np.float32)
    mask = np.full((16, 16), np.finfo(np.float32).min)
    attend = wf.jit(lambda x, mask: wf.scaled_dot_product_attention(x, x, x, mask))
    found = attend(*[wf.asarray(each).to("cuda") for each in (x, mask)]).numpy()
    np.testing.assert_allclose(found[0, 0], [x.mean(axis=2)[0, 0]] * 16, rtol=1e-5)


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("name", KERNELS)
def test_it_assembles_for_the_oldest_card(name: str, tmp_path: Path) -> None:
    source = tmp_path / "kernel.ptx"
    source.write_text(text_to_ptx(KERNELS[name].text))
    command = [str(PTXAS), f"-arch={OLDEST}", str(source), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
