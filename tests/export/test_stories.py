"""A language model in C: 200 tokens of stories260K, byte for byte, on several instruction sets."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.scripts import load_script

from weft.compiler.export.linking import build_program, c_compiler, runner
from weft.compiler.export.machines import platform_named

ROOT = Path(__file__).parents[2]
STORIES = ROOT.parent / "shared" / "models" / "stories260K"
EXAMPLE = ROOT / "examples" / "stories_in_c"
STORY = """Once upon a time, there was a little girl named Lily. She loved to play outside in the \
park. One day, she saw a big, red ball. She wanted to play with it, but it was too high.
Lily's mom said, "Lily, let's go to the park." Lily was sad and didn't know what to do. She said, \
"I want to play with your ball, but I can't find it."
Lily was sad and didn't know what to do. She said, "I'm sorry, Lily. I didn't know what to do."
Lily didn't want to help her mom, so she"""
CODE = 64 * 1024
"""The most bytes of code, tables and constants beside the weights."""


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.exists(), reason="the model is not here")
@pytest.mark.parametrize("target", ["host", "aarch64-linux", "riscv64-linux"])
def test_a_c_program_tells_the_story_byte_for_byte(target: str, tmp_path: Path) -> None:
    platform = platform_named(target)
    if c_compiler(platform) is None:
        pytest.skip(f"no C compiler for {target} is found")
    if target != "host" and not any(map(shutil.which, platform.emulators)):
        pytest.skip(f"no emulator of {target} is found")
    shipped = load_script(EXAMPLE / "export.py").export(STORIES, tmp_path / "model", target)
    shutil.copy(EXAMPLE / "stories.c", shipped.folder)
    files = [shipped.folder / name for name in ("stories.c", "model.a")]
    build_program(platform, target, files, tmp_path / "stories")
    command = [*runner(platform, target), str(tmp_path / "stories"), str(STORIES / "tok512.bin")]
    said = subprocess.run([*command, "200"], check=True, capture_output=True)
    assert said.stdout == STORY.encode()
    weights = sum(weight.port.bytes for weight in shipped.interface.program.weights)
    object_bytes = (shipped.folder / "model.o").stat().st_size
    assert object_bytes - weights < CODE + 16 * 1024, "code, and the tables of the object file"
