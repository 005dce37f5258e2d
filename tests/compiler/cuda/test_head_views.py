"""Attention that reads heads where they lie, on a card in the host's memory."""

from __future__ import annotations

import pytest
from tests.compiler.cuda.head_view_cases import PROGRAMS, check_head_views
from tests.compiler.cuda.host_card import host_card

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", PROGRAMS)
def test_attention_of_views_gives_what_it_gives_on_the_processor(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with host_card(monkeypatch) as card:
        check_head_views(name, runs=1)
        card.check_fences()
