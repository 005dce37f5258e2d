"""Products by single warps on a real card, as cards before Hopper compute them: exact sums."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.cuda.integer_cases import INTEGERS, check_integers

import weft as wf
from weft.compiler.targets.cuda.products import binding

pytestmark = pytest.mark.skipif(not wf.cuda.is_available(), reason="there is no NVIDIA card here")

SIZES = [
    (1, 1, 1), (1, 8, 8), (64, 64, 64), (65, 72, 8), (128, 128, 192), (129, 136, 200),
    (300, 40, 72), (2048, 2048, 64), (7, 9, 11),
]  # fmt: skip


def _whole_numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("sizes", SIZES)
def test_products_of_warps_are_exact_in_all_layouts(
    monkeypatch: pytest.MonkeyPatch, dtype: str, sizes: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(binding, "has_warpgroup_products", lambda ordinal: False)
    m, n, k = sizes
    for left in (False, True):
        for right in (False, True):
            a = _whole_numbers(0, *((k, m) if left else (m, k)))
            b = _whole_numbers(1, *((n, k) if right else (k, n)))
            x, y = (wf.asarray(each).astype(dtype).to("cuda") for each in (a, b))
            f = wf.jit(lambda x, y, s=left, t=right: (x.T if s else x) @ (y.T if t else y))
            wanted = (a.T if left else a) @ (b.T if right else b)
            rounded = wf.asarray(wanted).astype(dtype).astype("float32").numpy()
            np.testing.assert_array_equal(f(x, y).astype("float32").numpy(), rounded)


def test_stacks_of_products_of_warps_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "has_warpgroup_products", lambda ordinal: False)
    a, b = _whole_numbers(0, 3, 70, 64), _whole_numbers(1, 3, 64, 40)
    x, y = (wf.asarray(each).astype("bfloat16").to("cuda") for each in (a, b))
    found = wf.jit(lambda x, y: x @ y)(x, y).astype("float32").numpy()
    rounded = wf.asarray(a @ b).astype("bfloat16").astype("float32").numpy()
    np.testing.assert_array_equal(found, rounded)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_8_bits_are_multiplied_as_such(name: str) -> None:
    check_integers(name)


@pytest.mark.parametrize("sizes", [(2048, 2048, 512), (4096, 256, 1024), (64, 4096, 4096)])
def test_products_of_8_bit_integers_are_exact(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    random = np.random.default_rng(m)
    a, b = (random.integers(-128, 128, (rows, k)).astype(np.int8) for rows in (m, n))
    f = wf.jit(lambda a, b: a.astype("int32") @ b.astype("int32").T)
    found = f(wf.asarray(a).to("cuda"), wf.asarray(b).to("cuda")).numpy()
    wanted = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.int64)
    np.testing.assert_array_equal(found, wanted)
