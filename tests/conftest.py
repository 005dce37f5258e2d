"""What every test may rely on: a seed, a cache of its own, hypothesis profiles."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from tests.nightly import NIGHTLY

from weft.compiler.pipeline import VERIFYING
from weft.compiler.targets.cpu.machine import host, level_of

SEED_VARIABLE = "WEFT_TEST_SEED"
CACHE_VARIABLE = "WEFT_CACHE"
BETWEEN_WHOLE_COLLECTIONS = 4000
"""So many tests share one collection of garbage that looks through everything."""
BYTECODE = Path(__file__).parents[1] / "build" / "bytecode"
_tests_begun = itertools.count(1)

hypothesis.settings.register_profile(
    "fast", max_examples=50, deadline=None, derandomize=True, print_blob=True
)
hypothesis.settings.register_profile(
    "nightly", max_examples=2000, deadline=None, derandomize=False, print_blob=True
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--few", type=int, metavar="N", help="of each test with many cases, N spread evenly"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not NIGHTLY:
        _leave_out(config, items, {item for item in items if item.get_closest_marker("nightly")})
    most = config.getoption("few")
    if most is None:
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = set[pytest.Item]()
    for of_test in cases.values():
        step = max(1, -(-len(of_test) // most))
        left_out |= {item for place, item in enumerate(of_test) if place % step}
    _leave_out(config, items, left_out)


def _leave_out(config: pytest.Config, items: list[pytest.Item], left_out: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_configure(config: pytest.Config) -> None:
    # Workers inherit the environment, so a seed drawn here is the seed of all of them.
    if os.environ.setdefault(SEED_VARIABLE, "0") == "random":
        os.environ[SEED_VARIABLE] = str(int.from_bytes(os.urandom(4), "little"))
    if not hasattr(config, "workerinput"):
        _give_cache(config)
        _give_bytecode()
    if not getattr(config.option, "cov_source", None):  # which makes Python's own code slow
        VERIFYING.append(True)  # a graph after every pass, every kernel, and every plan


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while many thousand tests are gathered, which all stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Leave what was there before a test out of the collections of garbage in it.

    To look through all tests and all programs that are kept for cycles takes a second, and frees
    memory of other tests while one counts its own. That is done once in many tests.
    """
    if next(_tests_begun) % BETWEEN_WHOLE_COLLECTIONS == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def _temporary_folder(config: pytest.Config) -> str:
    """A folder for this run alone, which its workers and their processes share."""
    folder = tempfile.mkdtemp(prefix="weft-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


def _give_cache(config: pytest.Config) -> None:
    """A cache for this run alone.

    What an earlier run left on disk would hide a mistake in the code that makes it.
    """
    if os.environ.get(CACHE_VARIABLE) != "off":
        os.environ[CACHE_VARIABLE] = _temporary_folder(config)


def _give_bytecode() -> None:
    """Where compiled modules are not to be kept beside their sources, they are in `build`.

    All processes of all runs import the same ones. What is older than its source is made anew.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(BYTECODE)
        sys.dont_write_bytecode = False


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {SEED_VARIABLE}={os.environ[SEED_VARIABLE]}, machine: {level_of(host())}"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the printed seed and the test's name, not on the order."""
    seed = [int(os.environ[SEED_VARIABLE]), zlib.crc32(request.node.nodeid.encode())]
    print(f"{SEED_VARIABLE}={seed[0]}")
    return np.random.default_rng(seed)
