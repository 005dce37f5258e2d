"""The search from the command line; see `python -m tests.fuzz --help`."""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path

from tests.fuzz import coverage, workers

CRASH = "WEFT_FUZZ_CRASH"
"""The seed at which a child dies on purpose."""
ALIKE = 3
"""How many failures of one kind are made small."""
WAYS = ("jit", "native", "checked", "plain", "torch")
MEMORY = 12 << 30
"""How many bytes a child may have: a step that asks for more raises, and another is drawn."""


def main() -> int:
    """Search, or do a child's part of it; the exit status says whether anything failed."""
    options = _options()
    ways = tuple(options.ways.split(","))
    if options.child:
        return _child(ways, options.coverage)
    if options.minimise is not None:
        return _minimise(options.minimise, ways, options.minutes)
    if options.show is not None:
        from tests.fuzz.generate import generate

        print(generate(options.show).script)
        return 0
    return _search(options, ways)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=500, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the first program")
    parser.add_argument("--workers", type=int, default=2, help="how many processes")
    parser.add_argument("--minutes", type=float, default=60.0, help="when to stop")
    parser.add_argument("--ways", default=",".join(WAYS), help="what is compared with eager mode")
    parser.add_argument("--coverage", action="store_true", help="count what was reached")
    parser.add_argument("--union", type=Path, help="a file of what all runs that name it reached")
    parser.add_argument("--scene", help="only programs of a scene, such as rows")
    parser.add_argument("--keep", type=Path, help="a folder for the scripts of what failed")
    parser.add_argument("--minimise", type=int, metavar="SEED", help="make one program small")
    parser.add_argument("--show", type=int, metavar="SEED", help="print one program as it is")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _search(options: argparse.Namespace, ways: tuple[str, ...]) -> int:
    seeds = _seeds(options)
    print(f"seeds {seeds[0]} to {seeds[-1]}; one of them again: --seed N --programs 1")
    begun = time.monotonic()
    until = begun + 60 * options.minutes
    done, reached, failures = 0, Counter[str](), dict[int, str]()
    for seed, failure, more in workers.search(
        seeds, options.workers, ways, until, options.coverage
    ):
        done, reached = done + 1, reached + more
        if failure is not None:
            failures[seed] = failure
            print(f"seed {seed}: {failure}", flush=True)
        if done % 500 == 0:
            print(f"{done} programs in {time.monotonic() - begun:.0f} s", flush=True)
    seconds = time.monotonic() - begun
    print(f"{done} programs in {seconds:.0f} s, {len(failures)} failed", *sorted(failures))
    if options.coverage:
        reached = reached if options.union is None else coverage.united(options.union, reached)
        print(coverage.report(reached), flush=True)
    for seed in _first_of_each_kind(failures):
        print(_minimised(seed, ways, options.keep), flush=True)
    return 1 if failures else 0


def _seeds(options: argparse.Namespace) -> Sequence[int]:
    """The seeds from the first on, all of them or those of one scene."""
    if options.scene is None:
        return range(options.seed, options.seed + options.programs)
    from tests.fuzz.generate import scene_name
    from tests.fuzz.scenes import SCENES

    names = [each.name for each in SCENES]
    if options.scene not in names:
        raise SystemExit(f"no scene is called {options.scene!r}; there are {', '.join(names)}")
    alike = (seed for seed in count(options.seed) if scene_name(seed) == options.scene)
    return list(islice(alike, options.programs))


def _first_of_each_kind(failures: dict[int, str]) -> list[int]:
    """The seeds that are made small: of failures that are alike only a few."""
    kinds: dict[str, list[int]] = {}
    for seed, failure in sorted(failures.items()):
        kinds.setdefault(failure.split(" (")[0], []).append(seed)
    return sorted(seed for alike in kinds.values() for seed in alike[:ALIKE])


def _minimised(seed: int, ways: tuple[str, ...], folder: Path | None) -> str:
    """The script of a failing program made small, by a process of its own."""
    command = [sys.executable, "-m", "tests.fuzz", "--minimise", str(seed), "--minutes", "3"]
    command += ["--ways", ",".join(ways)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=workers.ROOT, check=False)
    text = ended.stdout or ended.stderr
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"seed_{seed}.py").write_text(text, encoding="utf-8")
    return text


def _minimise(seed: int, ways: tuple[str, ...], minutes: float) -> int:
    from tests.fuzz.generate import generate
    from tests.fuzz.minimise import isolated, minimise

    program = generate(seed)
    failure = isolated(program, ways)
    if failure is None:
        print(f"# seed {seed} does not fail by itself\n{program.script}")
        return 0
    small = minimise(program, failure, lambda each: isolated(each, ways), minutes)
    again = isolated(small, ways) or failure
    comment = "\n".join(f"# {line}" for line in f"seed {seed}: {again}".splitlines())
    print(f"{comment}\n{small.script}")
    return 1


def _child(ways: tuple[str, ...], counted: bool) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    if counted:
        coverage.install()
    from tests.fuzz.compare import examine
    from tests.fuzz.generate import generate

    for seed in json.loads(sys.stdin.readline()):
        print(json.dumps({"begins": seed}), flush=True)
        if os.environ.get(CRASH) == str(seed):  # as the tests of this want it
            os.kill(os.getpid(), signal.SIGSEGV)
        failure = examine(generate(seed), ways)
        message = {"failure": None if failure is None else str(failure)}
        more = {"reached": coverage.take()} if counted else {}
        print(json.dumps({**message, **more}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
