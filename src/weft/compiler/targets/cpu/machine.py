"""What code is generated for: the processor, and how wide its vectors are.

It is the one this runs on, or a lesser one that `wf.settings.machine` or `WEFT_MACHINE` names, such
as "x86-64-v3". Whatever depends on what a processor can do asks the one record of it, so that what
is written, compiled and kept on disk is for the same processor.

>>> host().width in (1, 4, 8, 16)
True
>>> host(width=1).width
1
>>> machine_named("x86-64", "x86_64-unknown-linux-gnu", LEVELS["x86-64-v3"]).width
4
"""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import replace
from functools import cache

import llvmlite.binding as llvm

from weft.compiler.targets.llvm.machine import ARM, Machine
from weft.core.errors import ArgumentError
from weft.core.settings import settings

VARIABLE = "WEFT_MACHINE"
"""The environment variable that names the machine; the setting comes first."""

_BASELINE = frozenset(["cmov", "cx8", "fxsr", "mmx", "sse", "sse2"])
_SECOND = _BASELINE | {"cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"}
_THIRD = _SECOND | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}
_WIDE = frozenset(["avx512f", "avx512bw", "avx512vl", "avx512dq"])
_FOURTH = _THIRD | _WIDE | {"avx512cd"}
LEVELS = {
    "x86-64": _BASELINE,
    "x86-64-v2": _SECOND,
    "x86-64-v3": _THIRD,
    "x86-64-v4": _FOURTH,
    "aarch64": frozenset[str](),
}
"""The machines that may be named, each with what it has; of one kind, the lesser first.

All that is asked of ARM is there in its first 64-bit form, which LLVM does not list.
"""


def level_of(machine: Machine) -> str:
    """The greatest of the machines with a name that it can do all of; empty if none."""
    levels = [
        name for name in _levels(machine.triple) if all(map(machine.has_feature, LEVELS[name]))
    ]
    return levels[-1] if levels else ""


def available_machines() -> list[str]:
    """The names of the machines that the processor here can stand in for, the lesser first.

    >>> bool({"x86-64", "aarch64"} & {*available_machines()})
    True
    """
    triple, _, has = _processor()
    return [name for name in _levels(triple) if LEVELS[name] <= has]


def host(width: int | None = None) -> Machine:
    """The machine that code is made for, with vectors of its own width or of another one."""
    machine = _chosen_machine()
    if width is None or width == machine.width:
        return machine
    return replace(machine, width=width, masked=machine.masked and width > 1)


def _chosen_machine() -> Machine:
    """The machine of this process: what was compiled for one is not mixed with another's."""
    name = settings.machine or os.environ.get(VARIABLE, "")
    first = _first_name(name)
    if name != first:
        raise ArgumentError(
            "settings.machine",
            "code for another machine was made in this process",
            expected=f"the machine that it began with: {first or 'this one'}",
            got={"machine": repr(name)},
            fix=f"set it before the first program, or start another process with {VARIABLE}={name}",
        )
    return _machine_of_name(name)


_names: list[str] = []


def _first_name(name: str) -> str:
    if not _names:
        _machine_of_name(name)  # one that is refused is not the first
        _names.append(name)
    return _names[0]


@cache
def _machine_of_name(name: str) -> Machine:
    triple, features, has = _processor()
    if name:
        return machine_named(name, triple, has)
    return replace(machine_of(triple, llvm.get_host_cpu_name(), has), features=features)


@cache
def _processor() -> tuple[str, str, frozenset[str]]:
    """What the processor here is, all that it has and has not, and what it has."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    has = frozenset(feature for feature, present in features.items() if present)
    return llvm.get_process_triple(), features.flatten(), has


def machine_named(name: str, triple: str, has: Set[str]) -> Machine:
    """A machine by name. One that has more than the processor here `has` is refused."""
    if name not in _levels(triple):
        raise ArgumentError(
            "settings.machine",
            f"no machine of this kind is called {name!r}",
            expected="one of " + ", ".join(_levels(triple)),
            got={"machine": repr(name), "here": triple},
            fix="leave it out to make code for this machine",
        )
    missing = sorted(LEVELS[name] - has)
    if missing:
        able = [each for each in _levels(triple) if LEVELS[each] <= has]
        raise ArgumentError(
            "settings.machine",
            f"this processor cannot run code for {name}",
            expected="one of " + ", ".join(able),
            got={"machine": repr(name), "missing here": ", ".join(missing)},
            fix=f"{VARIABLE}={able[-1] if able else ''}",
        )
    processor = "generic" if triple.startswith(ARM) else name
    return machine_of(triple, processor, LEVELS[name])


def _levels(triple: str) -> list[str]:
    """The names of machines of one kind."""
    is_arm = triple.startswith(ARM)
    return [name for name in LEVELS if (name == "aarch64") is is_arm]


def machine_of(triple: str, processor: str, has: Set[str], abi: str = "") -> Machine:
    """The machine with a triple and a processor, by what it has."""
    is_arm = triple.startswith(ARM)
    wide = has >= _WIDE
    has_four_lanes = is_arm or not has.isdisjoint(("sse2", "simd128"))
    width = 16 if wide else 8 if "avx2" in has else 4 if has_four_lanes else 1
    half = is_arm or "f16c" in has
    permuted = (16,) * wide + (8,) * ("avx2" in has)
    features = ",".join(f"+{feature}" for feature in sorted(has))
    return Machine(triple, processor, features, width, wide, half, permuted, abi)
