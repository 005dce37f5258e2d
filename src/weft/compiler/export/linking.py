"""Linkers and emulators: what makes libraries and programs of object files, where it is found.

The C compiler of the system, one for another machine, or the wheel `ziglang`, which links for all.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from weft.compiler.export.machines import Platform
from weft.compiler.targets.cpu.machine import host
from weft.core.errors import UnsupportedError

STACK = 256 * 1024
"""The bytes of the stack of a module for the web."""
C_LIBRARY = "crt1.o", "crti.o", "cannot find -lc:"
"""What a linker misses where a compiler is installed without the library of its machine."""
LIMIT = 300
"""Seconds after which a linker or a program that is checked is stopped."""


def runs_here(platform: Platform) -> bool:
    """Whether this machine runs the programs of a platform."""
    here, there = (triple.split("-") for triple in (host().triple, platform.triple))
    same_system = ("linux" in here) == ("linux" in there) and "windows" not in there
    return same_system and _has_instructions(platform)


def c_compiler(platform: Platform, *, static: bool = False) -> list[str] | None:
    """The command of a C compiler that links for a platform; None where none is found.

    A static program needs musl from the wheel `ziglang`, whose glibc is for shared ones alone.
    """
    here, there = (triple.split("-")[0] for triple in (host().triple, platform.triple))
    own = ("cc", "gcc", "clang") if here == there and "linux" in platform.triple else ()
    for name in (*platform.compilers, *own):
        found = shutil.which(name)
        if found is not None:
            return [found, *platform.options]
    zig, triple = _zig(), platform.zig
    if static and "linux" in triple:
        triple = triple.replace("-gnu", "-musl")
    return [*zig, "cc", "-target", triple] if zig and triple else None


def _zig() -> list[str] | None:
    found = shutil.which("zig")
    if found is not None:
        return [found]
    return [sys.executable, "-m", "ziglang"] if find_spec("ziglang") is not None else None


def web_linker() -> list[str] | None:
    """The command of a linker for the web; None where none is found."""
    names = ["wasm-ld", *[f"wasm-ld-{version}" for version in range(25, 11, -1)]]
    found = next((path for name in names if (path := shutil.which(name))), None)
    zig = _zig()
    return [found] if found else [*zig, "wasm-ld"] if zig else None


def is_web(platform: Platform) -> bool:
    """Whether programs of a platform run in browsers."""
    return platform.triple.startswith("wasm")


def link_library(
    platform: Platform, target: str, source: Path, library: Path, functions: Sequence[str]
) -> str:
    """Make a shared library of an object file; why there is none, or nothing where there is."""
    if not platform.shared:
        return ""
    if is_web(platform):
        linker = web_linker()
        exported = [f"--export={name}" for name in (*functions, "__heap_base")]
        options = ["--no-entry", "--allow-undefined", "-z", f"stack-size={STACK}", *exported]
    else:
        linker, options = c_compiler(platform), ["-shared", "-pthread"]
    if linker is None:
        return missing_linker(platform, target)
    _run([*linker, *options, str(source), "-o", str(library)], target)
    return ""


def missing_linker(platform: Platform, target: str) -> str:
    """What is said where no linker is found."""
    wanted = "lld" if is_web(platform) else f"gcc for {target}"
    return f"no linker for {target} was found: install {wanted}, or pip install 'weft[cross]'"


def build_program(
    platform: Platform,
    target: str,
    sources: Sequence[Path],
    program: Path,
    options: Sequence[str] = (),
) -> None:
    """Make a program of C files and object files."""
    is_static = not (runs_here(platform) or platform.board or "macos" in target)
    command = c_compiler(platform, static=is_static)
    if command is None:
        own = platform.compilers[0] if platform.board else "the wheel ziglang"
        raise UnsupportedError(
            "export",
            f"no C compiler for {target} was found",
            expected=f"the system's, one for that machine, or {own}",
            got={"target": target},
            fix=f"install {own}" if platform.board else "pip install 'weft[cross]'",
        )
    static = ["-static"] if is_static else []
    files = [str(path) for path in sources]
    pthread = [] if platform.board else ["-pthread"]
    more = [*static, *pthread, *options, *files, "-o", str(program), "-lm"]
    _run([*command, "-std=c99", "-O1", *more], target)


def runner(platform: Platform, target: str) -> list[str]:
    """What a program of a platform is started by: nothing here, or an emulator."""
    if runs_here(platform):
        return []
    is_windows = "windows" in platform.triple
    found = next((path for name in platform.emulators if (path := shutil.which(name))), None)
    if is_windows and not _has_instructions(platform):  # wine brings a system, not a processor
        found = None
    if found is None:
        raise UnsupportedError(
            "export",
            f"programs for {target} cannot be run here",
            expected="the machine itself"
            + "".join(f", or the emulator {each}" for each in platform.emulators[:1]),
            got={"target": target},
            fix=f"install {platform.emulators[0]}"
            if platform.emulators
            else "build main.c with the library there, and run it",
        )
    is_level = platform.triple.startswith("x86_64") and not is_windows
    return [found, "-cpu", "max"] if is_level else [found]


def _has_instructions(platform: Platform) -> bool:
    """Whether this processor has the instructions of a platform's programs."""
    same = host().triple.split("-")[0] == platform.triple.split("-")[0]
    return same and all(map(host().has_feature, platform.has))


def run_program(command: Sequence[str], folder: Path) -> None:
    """Run a program in a folder; what it says where it fails."""
    _run(command, "the program", folder)


def _run(command: Sequence[str], target: str, folder: Path | None = None) -> None:
    try:
        done = subprocess.run(
            list(command), cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        is_late = isinstance(error, subprocess.TimeoutExpired)
        raise UnsupportedError(
            "export",
            f"{_tool(command)} "
            + (f"did not end within {LIMIT} seconds" if is_late else f"could not be run: {error}"),
            expected=f"a command for {target} that ends well",
            got={"command": " ".join(command)[:400]},
            fix="try it again: at its first use for a machine ziglang builds a C library"
            if "ziglang" in command
            else "run the command by hand to see what it waits for",
        ) from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-2000:]
        lacks_library = any(name in said for name in C_LIBRARY)
        raise UnsupportedError(
            "export",
            f"{_tool(command)} failed for {target}: {said}",
            expected="a command that ends well",
            got={"command": " ".join(command)[:400], "status": done.returncode},
            fix=f"install the C library of {target} (on Debian such as libc6-dev-arm64-cross)"
            if lacks_library
            else "run the command by hand to see all it says",
        )


def _tool(command: Sequence[str]) -> str:
    """What a command is called."""
    return "ziglang" if "ziglang" in command else Path(command[0]).name
