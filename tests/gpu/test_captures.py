"""What the imitated card cannot show: captures beside threads, and copies that run later."""

from __future__ import annotations

import pytest
from tests.compiler.cuda.thread_cases import (
    check_captures_beside_threads,
    check_exchanged_axes,
    check_pinned_uploads,
)

import weft as wf

pytestmark = pytest.mark.skipif(not wf.cuda.is_available(), reason="there is no NVIDIA card")


def test_captures_beside_threads() -> None:
    check_captures_beside_threads(sizes=24, rounds=6)


def test_pinned_memory_may_be_changed_after_an_upload() -> None:
    check_pinned_uploads(1 << 24, 10)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_products_of_exchanged_axes(dtype: str) -> None:
    check_exchanged_axes(dtype)
