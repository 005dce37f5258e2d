"""Products that do what follows them, on a card in the host's memory: values, plans, refusals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.compiler.cuda.epilogue_cases import PROGRAMS, check_epilogue, check_random
from tests.compiler.cuda.host_card import HostCard, host_card

pytestmark = pytest.mark.slow


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCard]:
    with host_card(monkeypatch) as card:
        yield card
        card.check_fences()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_product_gives_with_what_follows_it_what_references_give(
    card: HostCard, name: str
) -> None:
    check_epilogue(name, "float32" if name in ("tanh", "relu") else "bfloat16")


def test_random_epilogues_give_what_references_give(card: HostCard) -> None:
    assert sum(check_random(seed) for seed in range(24)) >= 12
