"""Show that a change of the compiler changes no program: plans and kernels, before and after.

    python tools/replay.py record before
    ... change the compiler ...
    python tools/replay.py record after
    python tools/replay.py compare before after

`record` compiles every benchmark at its real sizes, and a program for each kind of launch, and
writes for each what it is compiled to: the graph after the passes, every launch, the memory plan
and the digests of the kernels. The same compiler writes the same folder in every process, whatever
is in the cache. Nothing is run, and no machine code is made of kernels. `compare` prints what
differs, program by program, and exits with status 1 if anything does.
"""

from __future__ import annotations

import argparse
import difflib
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

LINES = 60
"""How many lines of a difference are shown for each program."""
KERNEL = "kernels"
MODULE = "modules"
MACHINE = "machine.txt"


def record(folder: Path, only: list[str]) -> None:
    """Write what each program is compiled to."""
    from programs import explanations
    from reader import SOURCES, machine_text, read, without_machine_code

    import weft as wf

    shutil.rmtree(folder, ignore_errors=True)
    for part in (KERNEL, MODULE):
        (folder / part).mkdir(parents=True)
    start, count = time.perf_counter(), 0
    wf.set_num_threads(2)
    with without_machine_code(), wf.settings.changed(tuning=False, eager="reference"):
        for name, explanation in explanations(only):
            reading = read(explanation)
            _write(folder / f"{name}.txt", reading.text)
            for digest, text in reading.kernels.items():
                _write(folder / KERNEL / f"{digest}.txt", text + "\n")
            count += 1
    for digest, text in SOURCES.items():
        _write(folder / MODULE / f"{digest}.ll", text)
    _write(folder / MACHINE, machine_text())
    kernels = len(list((folder / KERNEL).iterdir()))
    print(
        f"{count} programs, {kernels} kernels, {len(SOURCES)} modules in {folder}: "
        f"{time.perf_counter() - start:.0f} s"
    )


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def compare(old: Path, new: Path) -> bool:
    """Whether two records are equal; what differs is printed."""
    machines = [(folder / MACHINE).read_text(encoding="utf-8") for folder in (old, new)]
    if machines[0] != machines[1]:
        print(f"these records are of different machines:\n{machines[0]}{machines[1]}")
        return False
    names = [{path.name for path in folder.glob("*.txt")} - {MACHINE} for folder in (old, new)]
    for name in sorted(names[0] ^ names[1]):
        print(f"{name.removesuffix('.txt')}: only in {old if name in names[0] else new}")
    differing = [name for name in sorted(names[0] & names[1]) if _print_difference(old, new, name)]
    equal = len(names[0] & names[1]) - len(differing)
    print(f"{equal} of {len(names[0] | names[1])} programs are equal")
    same_kernels, same_modules = (_compare_sets(old, new, part) for part in (KERNEL, MODULE))
    return same_kernels and same_modules and not differing and names[0] == names[1]


def _print_difference(old: Path, new: Path, name: str) -> bool:
    """Whether a program differs; the lines that do are printed."""
    texts = [(folder / name).read_text(encoding="utf-8") for folder in (old, new)]
    if texts[0] == texts[1]:
        return False
    print(f"== {name.removesuffix('.txt')}")
    lines = list(_differing_lines(*[text.splitlines() for text in texts]))
    print("\n".join(lines[:LINES]))
    if len(lines) > LINES:
        print(f"... and {len(lines) - LINES} more lines: diff {old / name} {new / name}")
    return True


def _differing_lines(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    found = difflib.unified_diff(old, new, "before", "after", lineterm="", n=2)
    yield from (line[:240] for line in found)


def _compare_sets(old: Path, new: Path, part: str) -> bool:
    """Whether two records have the same kernels or modules, by digest; it is said how many."""
    before, after = ({path.name for path in (folder / part).iterdir()} for folder in (old, new))
    print(f"{len(before & after)} of {len(before | after)} {part} are equal")
    for folder, names in ((old, before - after), (new, after - before)):
        for name in sorted(names)[:LINES]:
            print(f"  only in {folder / part / name}")
    return before == after


def main(arguments: Sequence[str]) -> int:
    """Run a command; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="write what each program is compiled to")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--only", nargs="*", default=[], help="names of programs")
    comparison = commands.add_parser("compare", help="print what differs between two records")
    comparison.add_argument("old", type=Path)
    comparison.add_argument("new", type=Path)
    given = parser.parse_args(arguments)
    if given.command == "record":
        record(given.folder, given.only)
        return 0
    return 0 if compare(given.old, given.new) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
