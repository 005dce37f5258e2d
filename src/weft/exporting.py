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

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weft.compiler.export.archive import archive
from weft.compiler.export.c_code import SOURCE, source_file
from weft.compiler.export.checking import Check, check_program
from weft.compiler.export.header import Interface, header_text, run_parameters
from weft.compiler.export.layout import Blob, Footprint, inside_blob, shipped_arrays
from weft.compiler.export.linking import is_web, link_library, missing_linker, web_linker
from weft.compiler.export.machines import HOST, PLATFORMS, Platform, machine_for, platform_named
from weft.compiler.export.main_programs import main_text, script_text
from weft.compiler.export.object_code import object_file
from weft.compiler.export.program import ExportedProgram, Port, exported_program, without_names
from weft.compiler.export.threads import check_threads
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cpu.ahead import AheadTarget
from weft.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from weft.core.records import frozen
from weft.ir.tensor import wrap
from weft.ops.operands import check_function
from weft.serialization import save

__all__ = ["Export", "export"]

Array = np.ndarray[Any, Any]
LARGEST_INSIDE = 64 << 20
"""Bytes of weights up to which they are put inside of the object file, if nothing else is said."""

TARGETS = (HOST, *PLATFORMS)
"""The names of machines that programs are exported for."""

CHOICES: dict[str, tuple[str | None, ...]] = {
    "form": ("object", "c"),
    "weights": (None, "inside", "beside"),
    "memory": ("heap", "static"),
}


@frozen
class Export:
    """What was written: the folder, the files in it, and how large the program is."""

    folder: Path
    files: tuple[str, ...]
    target: str
    form: str
    called: tuple[str, ...]
    """The functions of the C library that it calls, beside memcpy and memset."""
    notes: tuple[str, ...]
    """What was left out, and what it needs."""
    interface: Interface
    platform: Platform

    @property
    def memory(self) -> int:
        """Bytes of an instance."""
        return self.interface.memory

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
        code = f"{self.interface.name}.{'c' if self.form == 'c' else 'o'}"
        return check_program(self.interface, self.platform, self.folder, ["main.c", code])

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
    form: str = "object",
    weights: str | None = None,
    memory: str = "heap",
    threads: int = 1,
    sizes: Mapping[str, int] | None = None,
    strip_names: bool = False,
    check: bool = False,
) -> Export:
    """Write a function as a library in C's convention, for this machine or another.

    The function is traced with `args`: tensors (or types) among them are what the program is given
    at each run, and tensors that it closes over or that modules hold are weights, or state where
    the function replaces them. `weights="beside"` leaves the weights in a safetensors file, which
    the caller maps; `memory="static"` leaves out the functions that ask for memory; `form="c"`
    writes one file in C99 instead, for machines that LLVM does not know; an instance runs on
    `threads` threads of its own. Sizes that are symbols in types among the arguments are chosen at
    each run, up to the largest that `sizes` says of each. `strip_names` leaves names of weights and
    state and lines of the source out. With `check` the program is run and compared at once.
    `docs/export.md` has all of it.

    >>> import os, tempfile, weft as wf
    >>> folder = os.path.join(tempfile.mkdtemp(), "double")
    >>> "double.h" in wf.export(lambda x: 2 * x, [wf.ones(3)], folder, name="double").files
    True
    """
    check_function("export", f)
    _check_arguments(args, kwargs, sizes)
    _check_choices(name, form=form, weights=weights, memory=memory)
    platform = platform_named(target)
    check_threads(threads, platform, target, form, memory)
    program = exported_program(f, args, dict(kwargs or {}), sizes)
    program = without_names(program) if strip_names else program
    arrays = shipped_arrays(program)
    beside = weights == "beside" or (
        weights is None and sum(port.bytes for port, _ in arrays) > LARGEST_INSIDE
    )
    heap = memory == "heap" and not is_web(platform)
    with _new_folder(Path(folder), name) as place:
        blob, file, offset = (
            _write_weights(place, name, arrays) if beside else (inside_blob(arrays), "", 0)
        )
        job = _Job(place, name, program, blob, heap, file, offset, target, threads)
        made = _write_source(job) if form == "c" else _write_object(job, platform)
        _write_texts(place, made.about, platform, form)
        files = tuple(sorted(each.name for each in place.iterdir()))
    done = Export(Path(folder), files, target, form, made.called, made.notes, made.about, platform)
    if check:
        done.check()
    return done


@frozen
class _Job:
    """What is to be written, and where."""

    place: Path
    name: str
    program: ExportedProgram
    blob: Blob
    heap: bool
    weights_file: str
    weights_offset: int
    target: str
    threads: int

    def interface(self, memory: Footprint, messages: tuple[str, ...]) -> Interface:
        """What the header says."""
        return Interface(
            self.name, self.program, self.target, memory.whole, memory.instance, self.heap,
            self.weights_file, self.weights_offset, messages, self.threads,
        )  # fmt: skip


@frozen
class _Written:
    """What was written: its interface, what it calls, and what is missing."""

    about: Interface
    called: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _write_object(job: _Job, platform: Platform) -> _Written:
    """Write the object file and its libraries."""
    name, program, place, machine = job.name, job.program, job.place, machine_for(job.target)
    target = AheadTarget(machine, fixed_sizes=not program.sizes.largest)
    plan = plan_program(program.graph, target, program.fixed_inputs)
    inside = not job.weights_file
    made = object_file(
        name, program, plan, job.blob, machine, inside=inside, heap=job.heap, threads=job.threads
    )
    (place / f"{name}.o").write_bytes(made.code)
    (place / f"{name}.a").write_bytes(archive({f"{name}.o": made.code}, made.functions))
    library = f"{name}.wasm" if is_web(platform) else f"lib{name}{platform.shared}"
    files = place / f"{name}.o", place / library
    note = link_library(platform, job.target, *files, made.functions)
    about = job.interface(made.memory, made.messages)
    return _Written(about, made.called, (note,) if note else ())


def _write_source(job: _Job) -> _Written:
    """Write the program in C."""
    name, program = job.name, job.program
    plan = plan_program(program.graph, SOURCE, program.fixed_inputs)
    parameters, inside = run_parameters(name, program), not job.weights_file
    made = source_file(name, program, plan, job.blob, parameters, inside=inside, heap=job.heap)
    (job.place / f"{name}.c").write_text(made.text)
    return _Written(job.interface(made.memory, made.messages))


def _write_texts(place: Path, about: Interface, platform: Platform, form: str) -> None:
    (place / f"{about.name}.h").write_text(header_text(about))
    if is_web(platform) and form == "object":
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
def _new_folder(folder: Path, name: str) -> Iterator[Path]:
    """A folder whose files are moved into another when all of them are there; else none is.

    What an earlier export of this name left there, and this one does not write, is deleted.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise _not_writable(folder, error) from None
    try:
        yield place
        try:
            folder.mkdir(exist_ok=True)
            digests = {each.name: _digest(each) for each in sorted(place.iterdir())}
            record = folder / f".{name}.export"
            for stale in _stale_files(record, digests):
                stale.unlink()
            (place / record.name).write_text(json.dumps(digests, indent=1))
            for each in [*digests, record.name]:
                os.replace(place / each, folder / each)
        except OSError as error:
            raise _not_writable(folder, error) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _stale_files(record: Path, written: Collection[str]) -> list[Path]:
    """The files of the export that a record tells of, as it left them, that none replaces now."""
    try:
        known = json.loads(record.read_text())
        files = {record.parent / each: digest for each, digest in known.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return []
    return [
        file
        for file, digest in files.items()
        if file.name not in written
        and file.parent == record.parent  # whoever wrote the record, nothing else is deleted
        and file.is_file()
        and not file.is_symlink()
        and _digest(file) == digest
    ]


def _digest(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _not_writable(folder: Path, error: OSError) -> ArgumentError:
    return ArgumentError(
        "export",
        f"the folder could not be written: {error.strerror or error}",
        expected="a folder that may be written to, or a name for a new one",
        got={"folder": str(folder)},
        fix="choose another folder",
    )


def check_target(target: str) -> None:
    """Refuse a machine that is none, with the name that is likely meant."""
    platform_named(target)


def _check_arguments(args: Any, kwargs: Any, sizes: Any) -> None:
    mappings = kwargs or {}, sizes or {}
    if not isinstance(args, (list, tuple)) or not all(isinstance(x, Mapping) for x in mappings):
        raise ArgumentTypeError(
            "export",
            "the arguments of the call that is traced are no sequence",
            expected="args: a list or tuple; kwargs and sizes: mappings",
            got={"args": args, "kwargs": kwargs, "sizes": sizes},
            fix="wf.export(net, [x], folder)",
        )


def _check_choices(name: Any, **chosen: str | None) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name):
        raise ArgumentError(
            "export",
            "the name is none that functions in C may begin with",
            expected="letters, digits and underscores, a letter first",
            got={"name": repr(name)},
            fix='name="model"',
        )
    for word, value in chosen.items():
        if value not in CHOICES[word]:
            raise ArgumentError(
                "export",
                f"{word} cannot be {value!r}",
                expected="one of " + ", ".join(repr(each) for each in CHOICES[word]),
                got={word: repr(value)},
                fix=f"{word}={CHOICES[word][-1]!r}",
            )
