"""Attention, cross entropy and sorts as parts of programs on a real card, beside the processor."""

from __future__ import annotations

import pytest
from tests.compiler.cuda.attention_cases import ENTROPIES, check_entropy

import weft as wf

pytestmark = pytest.mark.skipif(not wf.cuda.is_available(), reason="there is no NVIDIA card here")


@pytest.mark.parametrize("name", ENTROPIES)
def test_a_cross_entropy_on_a_card_is_the_processors(name: str) -> None:
    check_entropy(name)
