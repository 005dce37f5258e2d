"""What environment variables set, and what they are told that say something else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOWN = "import weft as wf; print(wf.settings.fastcall, wf.settings.eager_elements)"


def run(folder: Path, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("word", ["off", "0", "False", "no"])
def test_any_usual_word_turns_a_setting_and_the_cache_off(word: str, tmp_path: Path) -> None:
    program = f"{SHOWN}; wf.jit(lambda x: x * 2)(wf.ones(4))"
    result = run(tmp_path, program, WEFT_FASTCALL=word, WEFT_CACHE=word)
    assert result.stdout.split()[0] == "False", result.stderr
    assert not list(tmp_path.iterdir())  # no folder is called after the word


@pytest.mark.parametrize("word", ["on", "1", "TRUE", "yes"])
def test_any_usual_word_leaves_a_setting_on(word: str, tmp_path: Path) -> None:
    assert run(tmp_path, SHOWN, WEFT_FASTCALL=word).stdout.split()[0] == "True"


@pytest.mark.parametrize(
    ("variable", "word"), [("WEFT_FASTCALL", "of"), ("WEFT_EAGER_ELEMENTS", "1e3")]
)
def test_another_word_is_refused_by_name(variable: str, word: str, tmp_path: Path) -> None:
    result = run(tmp_path, SHOWN, **{variable: word})
    assert result.returncode == 1
    assert variable in result.stderr
    assert f"{word!r}" in result.stderr or word in result.stderr
