"""Attention, cross entropy and sorts as parts of programs on a real card, beside the processor."""

from __future__ import annotations

import pytest
from tests.compiler.cuda.attention_cases import (
    ATTENTIONS,
    COMPOSED,
    ENTROPIES,
    LARGE,
    RUNNING,
    SORTS,
    check_attention,
    check_attention_gradient,
    check_caches,
    check_entropy,
    check_equal_bits,
    check_running,
    check_sort,
)

import weft as wf

pytestmark = pytest.mark.skipif(not wf.cuda.is_available(), reason="there is no NVIDIA card here")


@pytest.mark.parametrize("name", ENTROPIES)
def test_a_cross_entropy_on_a_card_is_the_processors(name: str) -> None:
    check_entropy(name)


@pytest.mark.parametrize("name", [*ATTENTIONS, *LARGE, *COMPOSED])
def test_attention_on_a_card_is_the_processors(name: str) -> None:
    check_attention(name)


@pytest.mark.parametrize("name", [*ATTENTIONS, *LARGE])
def test_gradients_of_attention_on_a_card_are_the_processors(name: str) -> None:
    check_attention_gradient(name)


def test_attention_to_caches_of_several_lengths_is_the_processors() -> None:
    check_caches(5, 130, 257, 128)


@pytest.mark.parametrize("name", SORTS)
def test_sorts_on_a_card_are_the_processors(name: str) -> None:
    check_sort(name)


@pytest.mark.parametrize("name", RUNNING)
def test_running_forms_on_a_card_are_the_processors(name: str) -> None:
    check_running(name)


@pytest.mark.parametrize("name", LARGE)
def test_two_runs_of_a_gradient_have_the_same_bits(name: str) -> None:
    check_equal_bits(name)
