"""Programs with parts on the processor and on a card, and programs that were stored, on a card."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.compiler.cuda.device_cases import check_threads
from tests.compiler.cuda.two_device_cases import CASES, check_moves, check_training

import weft as wf

pytestmark = pytest.mark.skipif(not wf.cuda.is_available(), reason="there is no card")


@pytest.mark.parametrize("name", CASES)
def test_compiled_moves_are_eager_moves(name: str) -> None:
    check_moves(name)


def test_a_network_on_two_devices_is_trained_by_one_program() -> None:
    check_training()


def test_eager_calls_of_several_threads_do_not_mix_their_operands() -> None:
    for _ in range(20):
        check_threads()


_TRAINING = """
from tests.compiler.cuda.device_cases import train
from weft.compiler.targets.cuda import stored_programs
found, thaw = [], stored_programs.thaw_program
def count(data, *given):
    found.append(data is not None)
    return thaw(data, *given)
stored_programs.thaw_program = count
print(*train("cuda", 5), sum(found))
"""


def test_a_second_process_finds_the_programs_of_the_first(tmp_path: Path) -> None:
    outputs = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", _TRAINING], capture_output=True, text=True, check=True,
            env={**os.environ, "WEFT_CACHE": str(tmp_path)},
        )  # fmt: skip
        outputs.append(run.stdout.split())
    assert outputs[0][:-1] == outputs[1][:-1]
    assert int(outputs[0][-1]) == 0
    assert int(outputs[1][-1]) > 0
