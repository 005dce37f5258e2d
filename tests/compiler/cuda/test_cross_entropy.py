"""Cross entropy in PTX: it assembles without spills, and what it cannot hold is refused."""

from __future__ import annotations

import pytest
from tests.compiler.cuda.assembling import needs_ptxas, spilled_bytes

from weft.compiler.targets.cuda.cross_entropy import CrossEntropySpec, cross_entropy_kernel
from weft.core.errors import UnsupportedError


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("columns", [8, 50304, 100_000])
def test_cross_entropy_assembles_without_spills(dtype: str, columns: int) -> None:
    kernel = cross_entropy_kernel(CrossEntropySpec(dtype, columns))
    assert spilled_bytes(kernel.text) == 0
    assert kernel.shared_bytes <= 227 * 1024


def test_two_rows_are_held_where_they_fit() -> None:
    assert CrossEntropySpec("bfloat16", 50304).buffers == 2
    assert CrossEntropySpec("bfloat16", 100_000).buffers == 1


@pytest.mark.parametrize(
    ("dtype", "columns"), [("float32", 1024), ("bfloat16", 50257), ("bfloat16", 120_000)]
)
def test_rows_that_cannot_be_copied_whole_are_refused(dtype: str, columns: int) -> None:
    with pytest.raises(UnsupportedError):
        CrossEntropySpec(dtype, columns)
