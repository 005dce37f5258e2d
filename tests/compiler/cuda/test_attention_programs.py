"""Attention, cross entropy and sorts as parts of programs, on a card in the host's memory."""

from __future__ import annotations

import pytest
from tests.compiler.cuda.attention_cases import (
    ATTENTIONS,
    COMPOSED,
    ENTROPIES,
    RUNNING,
    SMALL,
    SORTS,
    check_attention,
    check_attention_gradient,
    check_attention_plan,
    check_cache_plan,
    check_caches,
    check_entropy,
    check_entropy_plan,
    check_running,
    check_sort,
)
from tests.compiler.cuda.host_card import HostCard

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ENTROPIES)
def test_logits_are_read_once_where_rows_are_held(name: str) -> None:
    check_entropy_plan(name)


def test_a_cross_entropy_on_a_card_is_the_processors(card: HostCard) -> None:
    check_entropy("mean")


@pytest.mark.parametrize("name", [*ATTENTIONS, *COMPOSED])
def test_attention_has_a_kernel_where_it_can(name: str) -> None:
    check_attention_plan(name)


@pytest.mark.parametrize("name", SMALL)
def test_attention_on_a_card_is_the_processors(card: HostCard, name: str) -> None:
    check_attention(name)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_of_attention_on_a_card_are_the_processors(card: HostCard, name: str) -> None:
    check_attention_gradient(name)


def test_attention_to_a_cache_has_a_kernel_for_all_lengths(card: HostCard) -> None:
    check_cache_plan()
    check_caches(5, 8, 11)


@pytest.mark.parametrize("name", SORTS)
def test_sorts_on_a_card_are_the_processors(card: HostCard, name: str) -> None:
    check_sort(name)


@pytest.mark.parametrize("name", RUNNING)
def test_running_forms_on_a_card_are_the_processors(card: HostCard, name: str) -> None:
    check_running(name)
