"""The backend tests of the `onnx` package: each does what the table in the docs says of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.nightly import NIGHTLY

pytest.importorskip("onnx")

from tools.onnx_backend import all_cases, run_case

EVERY = 1 if NIGHTLY else 5
PAGE = Path(__file__).parents[2] / "docs" / "onnx_operators.md"
LEAST = 1450
"""How many of the tests must pass."""


def exceptions() -> set[str]:
    """The tests that the page says do not pass."""
    text = PAGE.read_text(encoding="utf-8").partition("## Operators with a rule")[0]
    rows = [line for line in text.splitlines() if re.match(r"\| (failed|refused|not run) ", line)]
    return {f"test_{name}" for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_page_lists_few_enough_exceptions() -> None:
    whole = re.search(r"^\| all \| (\d+) \| (\d+) ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert whole is not None
    assert int(whole[1]) - len(exceptions()) == int(whole[2]) >= LEAST


@pytest.mark.slow
def test_every_backend_test_does_what_the_page_says() -> None:
    wrong = []
    known = exceptions()
    for number, case in enumerate(sorted(all_cases(), key=lambda case: str(case.name))):
        if number % EVERY == 0:
            result = run_case(case)
            if (result.verdict == "passed") == (case.name in known):
                wrong.append(result)
    assert wrong == []


@pytest.mark.skipif(not NIGHTLY, reason="compiles 1,500 models")
def test_compiled_models_give_the_same_or_refuse() -> None:
    known = exceptions()
    results = [run_case(case, jit=True) for case in all_cases() if case.name not in known]
    wrong = {each.name for each in results if each.verdict not in ("passed", "refused")}
    # The branches of one have different structures. The stored transforms have zeros where float32
    # gives 2e-7, which is more than the suite tolerates.
    assert {name for name in wrong if "_dft" not in name} == {"test_if_opt"}
    assert sum(each.verdict == "passed" for each in results) >= LEAST
