"""Attention in PTX: every kind assembles without spills, and launches cover all queries."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.cuda.assembling import needs_ptxas, spilled_bytes

from weft.compiler.targets.cuda.attention.backward import backward_kernel, backward_launch
from weft.compiler.targets.cuda.attention.description import AttentionSizes, AttentionSpec
from weft.compiler.targets.cuda.attention.forward import (
    ForwardPlan,
    forward_kernel,
    forward_launch,
    forward_plan,
)
from weft.compiler.targets.cuda.attention.hiding import keep_threshold
from weft.compiler.targets.cuda.attention.rows import (
    after_kernel,
    after_launch,
    before_kernel,
    before_launch,
    buffer_numbers,
    counter_numbers,
    row_numbers,
)
from weft.compiler.targets.cuda.ptx_writer import TensorMap
from weft.core.errors import UnsupportedError

KINDS = [
    (64, ForwardPlan(2, 3)),
    (64, ForwardPlan(3, 2, turns=True)),
    (128, ForwardPlan(2, 2)),
]


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("head", "plan"), KINDS, ids=str)
def test_forward_assembles_without_spills(head: int, plan: ForwardPlan, causal: bool) -> None:
    kernel = forward_kernel(AttentionSpec("bfloat16", head, causal), plan)
    assert spilled_bytes(kernel.text) == 0
    assert kernel.shared_bytes <= 227 * 1024


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("head", [64, 128, 256])
def test_backward_assembles_with_next_to_no_spills(head: int, causal: bool) -> None:
    kernel = backward_kernel(AttentionSpec("bfloat16", head, causal))
    assert spilled_bytes(kernel.text) <= 64  # of a few numbers outside of the loop over queries
    assert kernel.shared_bytes <= 227 * 1024


FORWARD_HIDING = [
    AttentionSpec("bfloat16", 64, mask="bool", aligned=16, guarded=True),
    AttentionSpec("float16", 128, mask="float16", aligned=8, kept=0.9),
    AttentionSpec("bfloat16", 256, causal=False, mask="bool"),
]
BACKWARD_HIDING = [
    AttentionSpec("bfloat16", 64, mask="bool", aligned=16, kept=0.9, guarded=True),
    AttentionSpec("float16", 128, causal=False, mask="float32"),
    AttentionSpec("bfloat16", 256, mask="bool", aligned=16, kept=0.9, guarded=True),
    AttentionSpec("float16", 256, causal=False, mask="float32"),
]


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("spec", FORWARD_HIDING, ids=lambda spec: f"{spec.head} {spec.mask}")
def test_forward_with_masks_and_dropout_assembles_without_spills(spec: AttentionSpec) -> None:
    kernel = forward_kernel(spec, forward_plan(spec, AttentionSizes(1, 1, 1, 512, 512)))
    assert spilled_bytes(kernel.text) == 0
    assert kernel.shared_bytes <= 227 * 1024


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("spec", BACKWARD_HIDING, ids=lambda spec: f"{spec.head} {spec.mask}")
def test_backward_with_masks_and_dropout_assembles_with_few_spills(spec: AttentionSpec) -> None:
    assert spilled_bytes(backward_kernel(spec).text) <= 112


def test_a_weight_stays_where_its_uniform_number_is_below_the_share() -> None:
    words = np.random.default_rng(0).integers(0, 1 << 32, 4096, dtype=np.uint32)
    for kept in (0.9, 0.5, 1 / 3, 1e-7, 1 - 2**-24):
        uniform = (words >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
        assert ((uniform < np.float32(kept)) == (words < keep_threshold(kept))).all()


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("head", [64, 128, 256])
def test_kernels_around_the_backward_pass_assemble_without_spills(head: int) -> None:
    spec = AttentionSpec("float16", head)
    assert spilled_bytes(before_kernel(spec).text) == 0
    assert spilled_bytes(after_kernel(spec).text) == 0


def test_backward_buffers_hold_whole_tiles_of_every_head() -> None:
    spec, sizes = AttentionSpec("bfloat16", 64), AttentionSizes(2, 3, 3, 130, 130)
    assert row_numbers(spec, sizes) == 2 * 3 * 256
    assert buffer_numbers(spec, sizes) == 2 * 3 * 256 * 64
    assert counter_numbers(spec, sizes) == 2 * 3 * 4
    assert after_launch(spec, sizes).blocks == 2 * 3 * 4
    assert before_launch(spec, sizes).blocks == 2 * 3 * 256 * 8 // 256
    # Two blocks of keys are one pair, under a causal mask.
    assert backward_launch(spec, sizes).blocks == 2 * 3


def test_blocks_of_both_sides_of_a_large_head_have_buffers_of_their_own() -> None:
    spec, sizes = AttentionSpec("bfloat16", 256), AttentionSizes(2, 3, 3, 130, 130)
    assert row_numbers(spec, sizes) == 2 * 3 * 192
    assert buffer_numbers(spec, sizes) == 2 * 3 * 192 * 256
    assert counter_numbers(spec, sizes) == after_launch(spec, sizes).blocks == 2 * 3 * 3 * 4
    assert backward_launch(spec, sizes).blocks == 2 * 3 * 2


def test_more_keys_than_run_side_by_side_are_refused() -> None:
    sizes = AttentionSizes(1, 1, 1, 64, 40_000)
    with pytest.raises(UnsupportedError):
        backward_launch(AttentionSpec("bfloat16", 64), sizes)
    assert forward_launch(sizes, ForwardPlan()).blocks == 1


def test_maps_have_the_axes_of_heads_and_boxes_of_one_row_of_bytes() -> None:
    kernel = forward_kernel(AttentionSpec("float16", 128), ForwardPlan())
    maps = {each.name: each for each in kernel.parameters if isinstance(each, TensorMap)}
    assert maps["q"].box == maps["out"].box == (64, 64, 1, 1)
    assert maps["k"].box == maps["v"].box == (64, 128, 1, 1)
    assert maps["k"].axes == ("head", "keys", "heads", "batch")


def test_a_launch_has_a_block_for_each_tile_until_the_card_is_full() -> None:
    plan = ForwardPlan(consumers=2)
    few = forward_launch(AttentionSizes(1, 2, 1, 129, 129), plan, multiprocessors=132)
    assert few.blocks == 4  # two tiles of 128 queries for each of two heads
    assert few.words["group"] == 2
    many = forward_launch(AttentionSizes(16, 12, 12, 1024, 1024), plan, multiprocessors=132)
    assert many.blocks == 132


def test_long_sequences_of_small_heads_get_a_third_consumer() -> None:
    spec = AttentionSpec("bfloat16", 64)
    assert forward_plan(spec, AttentionSizes(4, 12, 12, 4096, 4096)).consumers == 3
    assert forward_plan(spec, AttentionSizes(16, 12, 12, 1024, 1024)).consumers == 2


def test_other_dtypes_and_heads_are_refused() -> None:
    for dtype, head in (("float32", 64), ("bfloat16", 80)):
        with pytest.raises(UnsupportedError):
            AttentionSpec(dtype, head)
