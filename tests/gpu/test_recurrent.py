"""Recurrent layers as one kernel on a real card, beside the processor."""

from __future__ import annotations

import pytest
from tests.compiler.cuda.recurrent_cases import LARGE, check_layer

import weft as wf

pytestmark = pytest.mark.skipif(not wf.cuda.is_available(), reason="there is no NVIDIA card here")


@pytest.mark.parametrize("name", LARGE)
def test_a_layer_on_a_card_is_the_processors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_layer(name, monkeypatch)
