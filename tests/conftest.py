"""What every test may rely on: a printed seed, a generator made from it, hypothesis profiles."""

from __future__ import annotations

import os
import zlib

import hypothesis
import numpy as np
import pytest

SEED_VARIABLE = "WEFT_TEST_SEED"

hypothesis.settings.register_profile(
    "fast", max_examples=50, deadline=None, derandomize=True, print_blob=True
)
hypothesis.settings.register_profile(
    "nightly", max_examples=2000, deadline=None, derandomize=False, print_blob=True
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_configure(config: pytest.Config) -> None:
    # Workers inherit the environment, so a seed drawn here is the seed of all of them.
    if os.environ.setdefault(SEED_VARIABLE, "0") == "random":
        os.environ[SEED_VARIABLE] = str(int.from_bytes(os.urandom(4), "little"))


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {SEED_VARIABLE}={os.environ[SEED_VARIABLE]}"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the printed seed and the test's name, not on the order."""
    seed = [int(os.environ[SEED_VARIABLE]), zlib.crc32(request.node.nodeid.encode())]
    print(f"{SEED_VARIABLE}={seed[0]}")
    return np.random.default_rng(seed)
