"""The card in the host's memory, as tests of programs are given it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.compiler.cuda.host_card import HostCard, host_card

from weft.compiler.targets.cuda import schedule as schedules


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCard]:
    with host_card(monkeypatch) as card:
        yield card
        card.check_fences()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread of an emulated block is one of the CPU's: the fewer the better."""
    for name in ("BLOCK", "ROW_BLOCK", "UNKNOWN_TEAM"):
        monkeypatch.setattr(schedules, name, 64)
