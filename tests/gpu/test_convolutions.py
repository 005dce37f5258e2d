"""Convolutions on a real card: exact sums of whole numbers, and the same bits in every run."""

from __future__ import annotations

import pytest
from tests.compiler.cuda.convolution_cases import CASES, check_convolution

import weft as wf

pytestmark = pytest.mark.skipif(not wf.cuda.is_available(), reason="there is no NVIDIA card here")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_and_its_gradients_are_exact(name: str, dtype: str) -> None:
    check_convolution(CASES[name], dtype)
