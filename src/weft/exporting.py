"""`wf.export`: a function as a library for any machine, without Python.

    wf.export(net, [x], "model/", target="aarch64-linux")

writes an object file, a static library, a C header, a main program that shows their use and, where
a linker is found, a shared library.

>>> import tempfile
>>> import weft as wf
>>> shipped = wf.export(lambda x: wf.exp(x) * 2, [wf.ones(3)], tempfile.mkdtemp() + "/model")
>>> [name for name in shipped.files if name.endswith((".h", ".o", ".a"))]
['model.a', 'model.h', 'model.o']
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weft.compiler.export.archive import archive
from weft.compiler.export.checking import Check, check_program
from weft.compiler.export.header import Interface, header_text
from weft.compiler.export.layout import Blob, inside_blob, shipped_arrays
from weft.compiler.export.linking import is_web, link_library, missing_linker, web_linker
from weft.compiler.export.machines import HOST, Platform, machine_for, platform_named
from weft.compiler.export.main_programs import main_text, script_text
from weft.compiler.export.object_code import object_file
from weft.compiler.export.program import Port, exported_program
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cpu.ahead import AheadTarget
from weft.core.errors import ArgumentError, UnsupportedError
from weft.core.records import frozen
from weft.ir.tensor import wrap
from weft.serialization import save

__all__ = ["Export", "export"]

Array = np.ndarray[Any, Any]
LARGEST_INSIDE = 64 << 20
"""Bytes of weights up to which they are put inside of the object file, if nothing else is said."""


@frozen
class Export:
    """What was written: the folder, the files in it, and how large the program is."""

    folder: Path
    files: tuple[str, ...]
    target: str
    memory: int
    """Bytes of an instance."""
    called: tuple[str, ...]
    """The functions of the C library that it calls, beside memcpy and memset."""
    notes: tuple[str, ...]
    """What was left out, and what it needs."""
    interface: Interface
    platform: Platform

    def check(self) -> Check:
        """Run the program here or in an emulator, and compare it with Weft on the examples.

        An error says where numbers differ, or what is missing to run it.
        """
        if is_web(self.platform) and web_linker() is None:
            raise UnsupportedError(
                "export",
                missing_linker(self.platform, self.target),
                expected="a linker for WebAssembly",
                got={"target": self.target},
                fix="pip install 'weft[cross]', or install lld",
            )
        name = self.interface.name
        return check_program(self.interface, self.platform, self.folder, ["main.c", f"{name}.o"])

    def __str__(self) -> str:
        lines = [f"{self.folder}: for {self.target}, {self.memory} bytes an instance"]
        lines += [f"  {name}" for name in self.files]
        return "\n".join([*lines, *self.notes])


def export(
    f: Callable[..., Any],
    args: Sequence[Any],
    folder: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    target: str = HOST,
    name: str = "model",
    weights: str | None = None,
    memory: str = "heap",
    check: bool = False,
) -> Export:
    """Write a function as a library in C's convention, for this machine or another.

    The function is traced with `args`: tensors among them are what the program is given at each
    run, and tensors that it closes over or that modules hold are weights, or state where the
    function replaces them. `weights="beside"` leaves the weights in a safetensors file, which the
    caller maps; `memory="static"` leaves out the functions that ask for memory. With `check` the
    program is run and compared at once. `docs/export.md` has all of it.

    >>> import os, tempfile, weft as wf
    >>> folder = os.path.join(tempfile.mkdtemp(), "double")
    >>> "double.h" in wf.export(lambda x: 2 * x, [wf.ones(3)], folder, name="double").files
    True
    """
    _check_choices(name, weights, memory)
    platform = platform_named(target)
    program = exported_program(f, args, dict(kwargs or {}))
    arrays = shipped_arrays(program)
    beside = weights == "beside" or (
        weights is None and sum(port.bytes for port, _ in arrays) > LARGEST_INSIDE
    )
    heap = memory == "heap" and not is_web(platform)
    with _new_folder(Path(folder)) as place:
        blob, file, offset = _write_weights(place, name, arrays) if beside else (None, "", 0)
        machine = machine_for(target)
        plan = plan_program(program.graph, AheadTarget(machine), program.fixed_inputs)
        made = object_file(
            name, program, plan, blob or inside_blob(arrays), machine, inside=not beside, heap=heap
        )
        about = Interface(name, program, target, made.memory, heap, file, offset, made.messages)
        _write_texts(place, about, platform)
        (place / f"{name}.o").write_bytes(made.code)
        (place / f"{name}.a").write_bytes(archive({f"{name}.o": made.code}, made.functions))
        note = _link(place, about, platform, made.functions)
        files = tuple(sorted(each.name for each in place.iterdir()))
    notes = (note,) if note else ()
    done = Export(Path(folder), files, target, made.memory, made.called, notes, about, platform)
    if check:
        done.check()
    return done


def _link(place: Path, about: Interface, platform: Platform, functions: Sequence[str]) -> str:
    library = f"{about.name}.wasm" if is_web(platform) else f"lib{about.name}{platform.shared}"
    return link_library(
        platform, about.target, place / f"{about.name}.o", place / library, functions
    )


def _write_texts(place: Path, about: Interface, platform: Platform) -> None:
    (place / f"{about.name}.h").write_text(header_text(about))
    if is_web(platform):
        (place / "main.mjs").write_text(script_text(about))
    else:
        (place / "main.c").write_text(main_text(about))


def _write_weights(
    place: Path, name: str, arrays: Sequence[tuple[Port, Array]]
) -> tuple[Blob, str, int]:
    """Write the weights beside the code: where each is in the file, its name, where they begin."""
    file = f"{name}.safetensors"
    save({port.title: wrap(array) for port, array in arrays}, place / file)
    with open(place / file, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        entries = json.loads(stream.read(length))
    offsets = {port.name: entries[port.title]["data_offsets"][0] for port, _ in arrays}
    return Blob(tuple(arrays), offsets), file, 8 + length


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder whose files are moved into another when all of them are there; else none is."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise _not_writable(folder, error) from None
    try:
        yield place
        try:
            folder.mkdir(exist_ok=True)
            for each in sorted(place.iterdir()):
                os.replace(each, folder / each.name)
        except OSError as error:
            raise _not_writable(folder, error) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _not_writable(folder: Path, error: OSError) -> ArgumentError:
    return ArgumentError(
        "export",
        f"the folder could not be written: {error.strerror or error}",
        expected="a folder that may be written to, or a name for a new one",
        got={"folder": str(folder)},
        fix="choose another folder",
    )


def _check_choices(name: str, weights: str | None, memory: str) -> None:
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise ArgumentError(
            "export",
            "the name is none that functions in C may begin with",
            expected="letters, digits and underscores, a letter first",
            got={"name": repr(name)},
            fix='name="model"',
        )
    for word, value, known in (
        ("weights", weights, (None, "inside", "beside")),
        ("memory", memory, ("heap", "static")),
    ):
        if value not in known:
            raise ArgumentError(
                "export",
                f"{word} cannot be {value!r}",
                expected="one of " + ", ".join(repr(each) for each in known),
                got={word: repr(value)},
                fix=f"{word}={known[-1]!r}",
            )
