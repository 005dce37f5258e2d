"""The card in the host's memory, as tests of programs are given it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.compiler.cuda.host_card import HostCard, host_card


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCard]:
    with host_card(monkeypatch) as card:
        yield card
        card.check_fences()
