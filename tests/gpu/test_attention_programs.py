"""Attention, cross entropy and sorts as parts of programs on a real card, beside the processor."""

from __future__ import annotations

import pytest
from tests.compiler.cuda.attention_cases import (
    ATTENTIONS,
    COMPOSED,
    ENTROPIES,
    check_attention,
    check_attention_gradient,
    check_entropy,
)

import weft as wf

pytestmark = pytest.mark.skipif(not wf.cuda.is_available(), reason="there is no NVIDIA card here")


@pytest.mark.parametrize("name", ENTROPIES)
def test_a_cross_entropy_on_a_card_is_the_processors(name: str) -> None:
    check_entropy(name)


@pytest.mark.parametrize("name", [*ATTENTIONS, *COMPOSED])
def test_attention_on_a_card_is_the_processors(name: str) -> None:
    check_attention(name)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_gradients_of_attention_on_a_card_are_the_processors(name: str) -> None:
    check_attention_gradient(name)
