"""One sitting at a card that is lent for minutes: what is worth most first, nothing lost when cut.

    python benchmarks/gpu/sitting.py                          all parts, for at most 580 seconds
    python benchmarks/gpu/sitting.py                          again: goes on where that one ended
    python benchmarks/gpu/sitting.py --only tests fuzz        parts by the beginning of their name
    python benchmarks/gpu/sitting.py --dry                    tiny sizes, without a card

Each part is a process group of its own with its own limit: a kernel that faults takes the context
of its process, and nothing else. After each part a line with its failures goes to `sitting.jsonl`,
its output to `sitting.log`, in build/sitting and in the folder that OUT names. A part that the end
of the sitting cuts is not counted as done, and comes first the next time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS, LOG, ROWS = "sitting.jsonl", "sitting.log", "gpu.json"
CUT, LOST = "cut by the end of the sitting", "over its limit"
NO_TESTS = 5
"""What pytest ends with where a package that all tests of a file need is missing."""
TESTS = (
    "programs", "kernels", "device", "captures", "rows", "loops", "products", "float8", "attention",
    "attention_programs", "exact_attention", "convolutions", "ordered_scatters", "warp_products",
    "both_devices", "exchange", "nccl", "recurrent",
)  # fmt: skip
"""The files of tests/gpu, in the order of what a failure would mean."""
OPEN_ROWS = (
    "generation-1", "generation-64", "mlp", "eager-add", "eager-product", "lstm", "gpt",
)  # fmt: skip
"""Rows of the comparison that changed since they were measured, or were on a busy machine."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_TAIL = 15


@dataclass(frozen=True)
class Part:
    """A command with its limit in seconds; it is not begun with less than `least` of them left."""

    name: str
    command: tuple[str, ...]
    limit: float
    least: float = 20


def parts(folder: Path, *, dry: bool) -> Iterator[Part]:
    """What a sitting does, what is worth most first."""
    python = sys.executable
    for name in TESTS:
        command = (python, "-m", "pytest", "-q", "-n", "0" if dry else "6", "-p", "no:benchmark",
                   "-rfE", "--tb=short", f"tests/gpu/test_{name}.py")  # fmt: skip
        yield Part(f"tests {name}", command, 150)
    ways, count = ("numpy", "2") if dry else ("cuda,cuda-eager", "1000000")
    fuzz = (python, "-m", "tests.fuzz", "--programs", count, "--seed", str(int(time.time())),
            "--minutes", "4", "--threads", "1", "--workers", "1" if dry else "6",
            "--result", str(folder / "fuzz.json"), "--keep", str(folder / "fuzz"))  # fmt: skip
    yield Part("fuzz", fuzz if dry else (*fuzz, "--ways", ways), 270, least=60)
    steps = (python, "-m", "benchmarks.gpu.steps")
    imitated = (python, "-m", "tests.compiler.cuda.imitated", "benchmarks.gpu.steps")
    yield Part("steps eager_open", (*(imitated if dry else steps), "eager_open"), 90)
    options = ("--card", "cpu", "--quick", "--rounds", "1") if dry else ("--rounds", "4")
    compare = (python, "benchmarks/gpu/compare.py", "--output", str(folder / ROWS), *options,
               "--resume")  # fmt: skip
    ours = ("--frameworks", "weft") if dry else ("--frameworks", "weft", "torch")
    for name in OPEN_ROWS[:1] if dry else OPEN_ROWS:
        yield Part(f"rows {name}", (*compare, "--only", name, *ours), 150, least=40)
    if not dry:
        for name in OPEN_ROWS:
            rivals = ("--frameworks", "weft", "torch-compile", "jax")
            yield Part(f"rivals {name}", (*compare, "--only", name, *rivals), 180, least=60)


def run_part(part: Part, seconds: float, folder: Path) -> dict[str, object]:
    """Run a part for at most so many seconds; what is written down of it."""
    start, limit = time.monotonic(), min(part.limit, seconds)
    with (folder / LOG).open("a", encoding="utf-8") as log:
        log.write(f"\n=== {part.name}: {' '.join(part.command)}\n")
        log.flush()
        place = log.tell()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OUT": str(folder)}
        process = subprocess.Popen(
            part.command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            result: object = process.wait(limit)
        except subprocess.TimeoutExpired:
            result = LOST if limit == part.limit else CUT
        finally:
            _end_group(process)
    text = _text_from(folder / LOG, place)
    return {
        "part": part.name,
        "result": result,
        "seconds": round(time.monotonic() - start, 1),
        "failed": _FAILED.findall(text),
        "end": text.splitlines()[-_TAIL:],
    }


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _text_from(file: Path, place: int) -> str:
    with file.open("rb") as log:
        log.seek(place)
        return log.read().decode(errors="replace")


def done_parts(folder: Path) -> set[str]:
    """The parts that an earlier call has run to their end, or to their own limit."""
    file = folder / RESULTS
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines]
    return {row["part"] for row in rows if row["result"] != CUT}


def hand_out(folder: Path) -> None:
    """Copy what there is to the folder that OUT names."""
    target = os.environ.get("OUT")
    if target and Path(target).resolve() != folder.resolve():
        for file in folder.iterdir():
            if file.is_file():
                shutil.copy(file, target)


def sit(chosen: Sequence[Part], seconds: float, folder: Path) -> bool:
    """Run parts while there is time; whether all that ran have succeeded."""
    end = time.monotonic() + seconds
    known, succeeded = done_parts(folder), True
    for part in chosen:
        left = end - time.monotonic()
        if part.name in known or left < part.least:
            print(f"left out: {part.name}, {'done before' if part.name in known else 'no time'}")
            continue
        row = run_part(part, left, folder)
        with (folder / RESULTS).open("a", encoding="utf-8") as results:
            results.write(json.dumps(row) + "\n")
        hand_out(folder)
        succeeded = succeeded and row["result"] in (0, NO_TESTS, CUT)
        print(f"{part.name}: {row['result']}, {row['seconds']} s", *row["failed"], sep="\n  ")  # type: ignore[misc]
    return succeeded


def main() -> None:
    """Read the command line, and sit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=580)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "sitting")
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--dry", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    every = list(parts(given.folder, dry=given.dry))
    chosen = [part for part in every if part.name.startswith(tuple(given.only))]
    sys.exit(not sit(chosen, given.seconds, given.folder))


if __name__ == "__main__":
    main()
