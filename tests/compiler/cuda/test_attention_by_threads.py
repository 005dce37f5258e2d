"""The backward pass of attention, run from its PTX: every thread, copy, product and barrier of it.

The interpreter is strict, so these tests are of order and of memory as much as of numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.compiler.cuda import attention_by_threads
from tests.compiler.cuda.attention_by_threads import Problem, check_backward, run_backward

from weft.compiler.targets.cuda.attention.backward import backward_kernel
from weft.compiler.targets.cuda.attention.description import (
    AttentionKernel,
    AttentionSizes,
    AttentionSpec,
    padded_head,
)

pytestmark = pytest.mark.slow


def problem(
    head: int,
    queries: int,
    keys: int,
    *,
    causal: bool,
    heads: int = 1,
    dtype: str = "bfloat16",
    **hiding: Any,
) -> Problem:
    """Attention of one head of keys; the last query sees all keys."""
    spec = AttentionSpec(dtype, padded_head(head), causal, head**-0.5, **hiding)
    offset = keys - queries if causal else 0
    strides = (0, 0, keys)
    return Problem(spec, AttentionSizes(1, heads, 1, queries, keys, offset, head, strides))


PROBLEMS = {
    "heads of 64": problem(64, 130, 140, causal=True),
    "heads of 128 without a mask": problem(128, 65, 130, causal=False, dtype="float16"),
    "heads of 256": problem(256, 65, 200, causal=True),
    "heads of 256 without a mask": problem(256, 100, 130, causal=False, dtype="float16"),
    "heads of 200 that share their keys": problem(200, 30, 70, causal=True, heads=2),
    "heads of 256, a mask and dropout": problem(
        256, 30, 80, causal=False, mask="bool", aligned=16, kept=0.6, guarded=True
    ),
    "heads of 256, numbers that are added": problem(
        256, 30, 90, causal=True, mask="float32", aligned=2
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_are_the_reference_with_the_same_bits_in_any_order_of_warps(name: str) -> None:
    first, second = (check_backward(PROBLEMS[name], seed) for seed in (0, 1))
    assert all(first[each].tobytes() == second[each].tobytes() for each in first)


def test_blocks_take_several_heads_one_after_the_other() -> None:
    check_backward(problem(256, 20, 100, causal=False, heads=1), multiprocessors=1)


def _without(text: str, line: str, count: int) -> str:
    """A text without the line of that number among those that begin so."""
    lines = text.splitlines()
    places = [place for place, each in enumerate(lines) if each.startswith(line)]
    del lines[places[count]]
    return "\n".join(lines) + "\n"


FAULTS = {
    "changes are not shown to products": ("fence.proxy.async.shared::cta", 0, "not shown"),
    "nobody waits for both consumers' changes": ("bar.sync 3, 256", 0, "no order"),
    "products are not waited for": ("wgmma.wait_group.sync.aligned 0", 0, "product is done"),
    "weights are packed behind the fence": ("wgmma.fence.sync.aligned", 1, "behind the fence"),
    "an addition is not waited for": ("cp.async.bulk.wait_group 0", 0, "one place"),
    "nobody counts an addition": ("red.release.gpu.global.add.u32", 0, "do not come"),
}
"""A line of the kernel, which one of its kind, and what is said where it is missing."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_kernel_without_one_of_its_waits_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, count, message = FAULTS[name]

    def broken_kernel(spec: AttentionSpec) -> AttentionKernel:
        kernel = backward_kernel(spec)
        return replace(kernel, text=_without(kernel.text, line, count))

    monkeypatch.setattr(attention_by_threads, "backward_kernel", broken_kernel)
    with pytest.raises(AssertionError, match=message):
        for seed in range(4):
            run_backward(problem(256, 128, 256, causal=False), seed)
