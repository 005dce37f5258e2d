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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import count, islice
from pathlib import Path

from tests.fuzz import coverage, workers
from tests.fuzz.findings import Findings

CRASH = "WEFT_FUZZ_CRASH"
"""The seed at which a child dies on purpose."""
WAYS = ("jit", "native", "again", "checked", "plain", "torch", "mesh", *workers.ON_CARD)
MEMORY = 12 << 30
"""How many bytes a child may have: a step that asks for more raises, and another is drawn."""
KEPT = 0.2
"""The part of the time that is kept for making failures small, where there are any."""
GRACE = 25.0
"""Seconds after the time is over that failures may still be made small in."""
LEAST = 5.0
"""The fewest seconds that are worth a try."""
MOST = 180.0
"""The most seconds that one failure is made small for."""


def main() -> int:
    """Search, or do a child's part of it; the exit status says whether anything failed."""
    options = _options()
    ways = tuple(options.ways.split(","))
    if options.child:
        return _child(ways, options.coverage, options.threads)
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
    parser.add_argument("--threads", type=int, default=0, help="the threads of each of them")
    parser.add_argument("--minutes", type=float, default=60.0, help="when to stop")
    parser.add_argument("--ways", default=",".join(WAYS), help="what is compared with eager mode")
    parser.add_argument("--coverage", action="store_true", help="count what was reached")
    parser.add_argument("--union", type=Path, help="a file of what all runs that name it reached")
    parser.add_argument("--result", type=Path, help="a JSON file of all that was found")
    parser.add_argument("--scene", help="only programs of a scene, such as rows")
    parser.add_argument("--keep", type=Path, help="a folder for the scripts of what failed")
    parser.add_argument("--minimise", type=int, metavar="SEED", help="make one program small")
    parser.add_argument("--show", type=int, metavar="SEED", help="print one program as it is")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _search(options: argparse.Namespace, ways: tuple[str, ...]) -> int:
    seeds = _seeds(options)
    print(f"seeds {seeds[0]} to {seeds[-1]}; one of them again: --seed N --programs 1", flush=True)
    begun = time.monotonic()
    until = begun + 60 * options.minutes
    threads = options.threads or max(2, (os.cpu_count() or 2) // options.workers)
    found = Findings(seeds[0], seeds[-1])
    search = workers.search(seeds, options.workers, ways, until, options.coverage, threads)
    for outcome in search:
        found.add(outcome, time.monotonic() - begun)
        if outcome.failure is not None:
            print(f"seed {outcome.seed}: {outcome.failure}", flush=True)
        if found.programs % 500 == 0:
            print(f"{found.programs} programs in {found.seconds:.0f} s", flush=True)
        if found.failures and time.monotonic() > until - KEPT * 60 * options.minutes:
            search.close()
    print(found, flush=True)
    if options.coverage:
        if options.union is not None:
            found.reached = coverage.united(options.union, found.reached)
        print(coverage.report(found.reached), flush=True)
    found.write(options.result, options.coverage)
    _make_small(found, options, ways, until)
    return 1 if found.failures else 0


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


# --- failures ------------------------------------------------------------------------------------


def _make_small(
    found: Findings, options: argparse.Namespace, ways: tuple[str, ...], until: float
) -> None:
    """Print the failing programs, made small as far as there is time, several of them at once."""
    with ThreadPoolExecutor(max(1, options.workers)) as pool:
        waiting = {
            pool.submit(_minimised, seed, found.way_of(seed, ways), until + GRACE): seed
            for seed in found.first_of_each_kind()
        }
        for future in as_completed(waiting):
            seed, text = waiting[future], future.result()
            found.scripts[seed] = text
            print(text, flush=True)
            if options.keep is not None:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"seed_{seed}.py").write_text(text, encoding="utf-8")
            found.write(options.result, options.coverage)


def _minimised(seed: int, ways: Sequence[str], until: float) -> str:
    """The script of a failing program made small, by a process of its own."""
    seconds = min(MOST, until - LEAST - time.monotonic())
    late = f"# seed {seed} was not made small: time was over\n"
    if seconds < LEAST:
        return late
    command = [sys.executable, "-m", "tests.fuzz", "--minimise", str(seed)]
    command += ["--minutes", str(seconds / 60), "--ways", ",".join(ways)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=workers.ROOT,
        start_new_session=True,
    ) as child:  # fmt: skip
        try:
            text, errors = child.communicate(timeout=seconds + LEAST)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            text, errors = "", late
    return text or errors


def _minimise(seed: int, ways: tuple[str, ...], minutes: float) -> int:
    from tests.fuzz.generate import generate
    from tests.fuzz.minimise import isolated, minimise

    begun = time.monotonic()
    program = generate(seed)
    failure = isolated(program, ways)
    if failure is None:
        print(f"# seed {seed} does not fail by itself\n{program.script}")
        return 0
    left = minutes - (time.monotonic() - begun) / 60
    small = minimise(program, failure, lambda each: isolated(each, ways), left)
    again = isolated(small, ways) or failure
    comment = "\n".join(f"# {line}" for line in f"seed {seed}: {again}".splitlines())
    print(f"{comment}\n{small.script}")
    return 1


# --- a child -------------------------------------------------------------------------------------


def _child(ways: tuple[str, ...], counted: bool, threads: int) -> int:
    if not (set(ways) & set(workers.ON_CARD) and Path("/dev/nvidiactl").exists()):
        # a card's driver reserves addresses for all of its memory
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    messages = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what programs print is no message
    if counted:
        coverage.install()
    from tests.fuzz.compare import examine
    from tests.fuzz.generate import generate
    from tests.fuzz.run import ways_of

    import weft as wf

    if threads:
        wf.set_num_threads(threads)
    for seed in json.loads(sys.stdin.readline()):
        print(json.dumps({"begins": seed}), file=messages, flush=True)
        if os.environ.get(CRASH) == str(seed):  # as the tests of this want it
            os.kill(os.getpid(), signal.SIGSEGV)
        compared: list[str] = []
        failure = examine(generate(seed), ways_of(seed, ways), compared)
        message = {"ends": seed, "failure": None if failure is None else str(failure)}
        more = {"reached": coverage.take()} if counted else {}
        print(json.dumps({**message, "ways": compared, **more}), file=messages, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
