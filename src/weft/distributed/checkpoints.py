"""Checkpoints that all processes write, each its part, and that any number of processes reads.

    checkpoints = wf.distributed.ShardedCheckpoints("run")
    checkpoints.save(step, model, optimizer)
    facts = checkpoints.load(model, optimizer)

A save copies this process's part of every tensor, and returns; a thread writes the file. The first
process waits for the files of all others, and then renames the folder, which is one atomic step: a
checkpoint is complete or not there at all. Parts are of the flat elements, so that reading joins
them whatever the number of files. Files and manifest have checksums, as in `train.checkpoints`.

A `Pipeline` may stand in the model's place: the processes that hold a stage write its tensors,
under the model's own names, so that one process, or any other pipeline, reads them.

>>> import tempfile
>>> import weft as wf
>>> model = wf.nn.Linear(2, 1)
>>> optimizer = wf.optim.Adam(model.parameters())
>>> checkpoints = ShardedCheckpoints(tempfile.mkdtemp())
>>> checkpoints.save(7, model, optimizer, {"epoch": 2})
>>> checkpoints.wait()
>>> checkpoints.load(model, optimizer)["epoch"]
2
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import weft as wf
from weft.distributed.mesh import Mesh
from weft.distributed.parameters import (
    gather_value,
    is_part,
    is_tensor_part,
    own_value,
    part_facts,
    state_handles,
    whole_shape,
)
from weft.distributed.process_group import (
    barrier,
    broadcast_object,
    gather_objects,
    is_initialized,
    mesh_axes,
    world,
)
from weft.distributed.sharing import GradientSharing
from weft.distributed.stages.pipeline import Pipeline
from weft.optim.states import named_tensors, parameters_of_slots
from weft.train.checkpoints import (
    FORMAT,
    MANIFEST,
    WRITING,
    CheckpointError,
    CheckpointFolder,
    read_file,
    read_manifest,
    sync_path,
    write_file,
    write_manifest,
)

__all__ = ["ShardedCheckpoints"]

Array = np.ndarray[Any, Any]


Writer = tuple[int, int]
"""Which of the processes that write a tensor this one is, and how many they are."""


class AlongModel(NamedTuple):
    """What processes along a model axis do with a tensor of which each has a part."""

    gather: Callable[[], wf.Tensor]
    take: Callable[[wf.Tensor], wf.Tensor]
    is_here: bool
    """Whether it belongs to a stage of this process, which then takes part in gathering it."""


class _Entry(NamedTuple):
    """One tensor of a checkpoint: its name, its handle, and the shape of the whole."""

    name: str
    handle: wf.Tensor
    shape: tuple[int, ...]
    own_part: Callable[[wf.Tensor], wf.Tensor] | None
    """Of a handle that holds this process's part alone: how that is taken of the whole."""
    writer: Writer | None
    """None where other processes write it: those with another stage, or with the same part."""
    other_name: str = ""
    """The name that a pipeline would have given it, by the model's name of its parameter."""
    along_model: AlongModel | None = None
    """Of a part along a model axis: how the whole is gathered, and this process's part taken."""


class ShardedCheckpoints:
    """The checkpoints of a run in a folder that all processes see, the last `keep` of them.

    timeout: seconds that the first process waits for the files of the others.
    """

    def __init__(self, path: str | os.PathLike[str], keep: int = 3, timeout: float = 600.0) -> None:
        self._folder = CheckpointFolder(path, keep)
        self._timeout = timeout
        self._writer: threading.Thread | None = None
        self._error: BaseException | None = None
        self._token = ""
        """What the names of unfinished folders of this group end with."""
        self._is_written, self._is_given_up = threading.Event(), threading.Event()

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder.path

    def save(
        self, step: int, model: Any, optimizer: Any = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Write a checkpoint of this step beside what follows; the one before is waited for.

        model: a module, or the `Pipeline` that trains one.
        """
        self.wait()
        rank, size = _place()
        self._agree_on_token(rank)
        self._is_written.clear()
        self._is_given_up.clear()
        entries = list(_entries(model, optimizer))
        copied = {entry.name: _own_part(entry) for entry in entries}
        parts = {name: part for name, part in copied.items() if part is not None}
        shapes = {entry.name: list(entry.shape) for entry in entries if entry.name in parts}
        noted = {"step": step, "shards": size, **(facts or {})}
        self._writer = threading.Thread(
            target=self._write, args=(step, rank, size, parts, shapes, noted), daemon=False
        )
        self._writer.start()

    def wait(self) -> None:
        """Return once the last save is written; its error is raised here."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def settle(self) -> None:
        """Return once all have written their files; a process that is lost meanwhile is an error.

        On the first process the checkpoint is then there.
        """
        if self._writer is not None:
            self._is_written.wait()
            barrier()
        self.wait()

    def give_up(self) -> None:
        """Leave the last save unfinished if it is: the group that wrote it is no more."""
        self._is_given_up.set()
        if self._writer is not None:
            self._writer.join()
        self._writer = self._error = None
        self._token = ""

    def latest(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        return self._folder.latest()

    def load(
        self, model: Any, optimizer: Any = None, path: str | os.PathLike[str] | None = None
    ) -> dict[str, Any] | None:
        """Put the newest checkpoint, or that at a path, in place; what was noted beside it.

        None where there is no checkpoint. Nothing is changed where a tensor does not fit.
        """
        chosen = self._folder.latest() if path is None else Path(path)
        if chosen is None:
            return None
        manifest = read_manifest(chosen)
        files = [read_file(chosen / name, noted) for name, noted in manifest["files"].items()]
        entries = list(_entries(model, optimizer))
        whole = {entry.name: _join_parts(chosen, entry, manifest, files) for entry in entries}
        with wf.no_grad():
            for entry in entries:
                value = whole[entry.name]
                if entry.along_model is not None:
                    value = entry.along_model.take(value)
                elif entry.own_part is not None:
                    value = entry.own_part(value)
                entry.handle.copy_(value)
        return manifest

    def _agree_on_token(self, rank: int) -> None:
        """Have a name for unfinished folders that no group before had: they may have left files."""
        if self._token:
            return
        if rank == 0:
            for path in self.path.glob(f"{WRITING}step-*"):
                shutil.rmtree(path, ignore_errors=True)
        token = os.urandom(4).hex()
        self._token = broadcast_object(token) if is_initialized() else token

    def _write(
        self, step: int, rank: int, size: int, parts: Mapping[str, Array],
        shapes: Mapping[str, list[int]], noted: dict[str, Any],
    ) -> None:  # fmt: skip
        try:
            unfinished = self.path / f"{WRITING}step-{step:08d}-{self._token}"
            unfinished.mkdir(parents=True, exist_ok=True)
            name = f"shard-{rank:05d}.safetensors"
            held = {key: wf.tensor(part) for key, part in parts.items() if part.size}
            description = write_file(unfinished / name, held)
            note = {"files": {name: description}, "shapes": shapes}
            _write_note(unfinished / f"{name}.json", note)
            self._is_written.set()
            if rank == 0:
                self._finish(unfinished, step, size, noted)
        except BaseException as error:  # raised by `wait`, in the thread that saves
            self._error = error
        finally:
            self._is_written.set()

    def _finish(self, unfinished: Path, step: int, size: int, noted: dict[str, Any]) -> None:
        """Wait for all files, write the manifest, and give the folder its name."""
        deadline = time.monotonic() + self._timeout
        names = [f"shard-{rank:05d}.safetensors" for rank in range(size)]
        notes = [unfinished / f"{name}.json" for name in names]
        while missing := [note.name for note in notes if not note.exists()]:
            if self._is_given_up.is_set():
                return
            if time.monotonic() > deadline:
                raise CheckpointError(
                    "distributed.checkpoint",
                    "files of other processes are missing",
                    expected=f"{size} files within {self._timeout:g} s",
                    got={"missing": missing[:4]},
                    fix="look at the other processes; earlier checkpoints are untouched",
                )
            time.sleep(0.01)
        files: dict[str, Any] = {}
        shapes: dict[str, Any] = {}
        for path in notes:
            note = json.loads(path.read_text(encoding="utf-8"))
            files |= note["files"]
            shapes |= note["shapes"]
            path.unlink()
        facts = {"format": FORMAT, "weft": wf.__version__, "kind": "step", **noted}
        write_manifest(unfinished / MANIFEST, {**facts, "shapes": shapes, "files": files})
        sync_path(unfinished)
        final = self.path / f"step-{step:08d}"
        shutil.rmtree(final, ignore_errors=True)
        unfinished.rename(final)
        sync_path(self.path)
        for old in self._folder.all()[: -self._folder.keep]:
            shutil.rmtree(old, ignore_errors=True)


def _place() -> tuple[int, int]:
    return (world().rank, world().size) if is_initialized() else (0, 1)


def _entries(model: Any, optimizer: Any) -> Iterator[_Entry]:
    """All tensors that training goes on from."""
    stages = model if isinstance(model, Pipeline) else None
    has_stages = optimizer is not None and getattr(optimizer.sharing, "stage_axis", None)
    _check_stages(model, bool(has_stages))
    writes = _writer_of_stages(stages) if stages is not None else (lambda handle: _place())
    if stages is not None:
        stages.scatter()
    handles = state_handles(model if stages is None else stages.model)
    for name, handle in handles.items():
        known = part_facts(handle)
        take = None if known is None else partial(own_value, parameter=handle)
        axis = None if known is None or stages is not None else known.mesh_axis
        writer = writes(handle) if axis is None else _writer_along(axis)
        entry = _Entry(f"model.{name}", handle, whole_shape(handle), take, writer)
        yield entry if stages is None else _along_model(entry, handle, stages, None)
    if optimizer is None:
        return
    is_split = optimizer.sharing is not None and optimizer.sharing.has_parts
    parameters = parameters_of_slots(optimizer)
    names = {id(handle): name for name, handle in handles.items()}
    for name, handle in named_tensors(optimizer):
        parameter = parameters.get(name)
        of_part = parameter is not None and (is_split or is_part(parameter))
        like = parameter if of_part and parameter is not None else handle
        own, other, take, writer = f"optimizer.{name}", "", None, writes(parameter)
        if of_part and parameter is not None:
            known = part_facts(parameter)
            take = partial(optimizer.sharing.own_state, parameter=parameter)
            if stages is None:
                axis = optimizer.sharing.mesh_axis if known is None else known.mesh_axis
                writer = _writer_along(axis)
        if parameter is not None:
            other = f"optimizer.state.{names.get(id(parameter))}.{name.rpartition('.')[2]}"
        if stages is not None and other:
            own = other
        entry = _Entry(own, handle, whole_shape(like), take, writer, other)
        if stages is not None and parameter is not None:
            entry = _along_model(entry, parameter, stages, optimizer.sharing)
        yield entry


def _along_model(
    entry: _Entry, parameter: wf.Tensor, pipeline: Pipeline, sharing: GradientSharing | None
) -> _Entry:
    """An entry for a parameter, or for what is kept for it, which a plan may have split."""
    if not is_tensor_part(parameter):
        return entry
    owners = {id(handle): process for handle, process in pipeline.owners}
    gather = gather_value if sharing is None else sharing.whole_state
    take = own_value if sharing is None else sharing.own_state
    along = AlongModel(
        lambda: gather(entry.handle, parameter),
        lambda value: take(value, parameter),
        owners[id(parameter)] == pipeline.rank,
    )
    return entry._replace(own_part=None, along_model=along)


def _writer_along(mesh_axis: str) -> Writer | None:
    """Who writes what processes along an axis have parts of: the first ones along all others."""
    rank, size = _place()
    axes = mesh_axes()
    if mesh_axis not in axes:
        return rank, size  # the axis of all processes
    mesh = Mesh(costs=None, **axes)
    places = mesh.coordinates(rank)
    is_first = not any(place for name, place in places.items() if name != mesh_axis)
    return (places[mesh_axis], axes[mesh_axis]) if is_first else None


def _writer_of_stages(pipeline: Pipeline) -> Callable[[wf.Tensor | None], Writer | None]:
    """For each tensor of a pipeline, or for None what all stages have, who writes it.

    The processes that hold a stage have increasing ranks along the axis of batches, as parts of
    an optimiser's state do. Of those along a model axis the first one writes.
    """
    rank, _ = _place()
    split = pipeline.tensor_parallel
    own_place = pipeline.rank, 0 if split is None else split.group.rank
    places = gather_objects(own_place)
    beside = [other for other, place in enumerate(places) if place == (pipeline.rank, 0)]
    own = (beside.index(rank), len(beside)) if rank in beside else None
    owners = {id(handle): process for handle, process in pipeline.owners}

    def writer(handle: wf.Tensor | None) -> Writer | None:
        process = 0 if handle is None else owners[id(handle)]
        return own if process == pipeline.rank else None

    return writer


def _check_stages(model: Any, has_stages: bool) -> None:
    """Refuse a model without the pipeline that holds its stages."""
    is_whole = isinstance(model, Pipeline) or not any(is_tensor_part(p) for p in model.parameters())
    if is_whole and (isinstance(model, Pipeline) or not has_stages):
        return
    raise wf.UnsupportedError(
        "distributed.ShardedCheckpoints",
        "each process of a pipeline has other tensors, or parts of them along a model axis",
        expected="the pipeline itself, in place of its model",
        got={"optimizer of stages": has_stages},
        fix="checkpoints.save(step, pipeline, optimizer)",
    )


def _own_part(entry: _Entry) -> Array | None:
    """A copy of this process's part of a tensor's flat elements; None where others write it."""
    handle = entry.handle
    if entry.along_model is not None and entry.along_model.is_here:
        handle = entry.along_model.gather()  # one at a time
    if entry.writer is None:
        return None
    rank, size = entry.writer
    count = int(np.prod(entry.shape, dtype=np.int64))
    each = -(-count // size)
    begin, end = min(rank * each, count), min((rank + 1) * each, count)
    flat = handle.detach().numpy().reshape(-1)
    return np.array(flat[: end - begin] if entry.own_part is not None else flat[begin:end])


def _join_parts(
    path: Path, entry: _Entry, manifest: Mapping[str, Any], files: list[dict[str, wf.Tensor]]
) -> wf.Tensor:
    """A whole tensor, from the parts in all files."""
    shapes = manifest.get("shapes", {})
    name = entry.other_name if entry.name not in shapes and entry.other_name else entry.name
    shape = shapes.get(name)
    parts = [file[name] for file in files if name in file]
    found = sum(int(part.size) for part in parts)
    fits = shape == list(entry.shape) and found == np.prod(entry.shape, dtype=np.int64)
    if not fits or any(part.dtype != entry.handle.dtype for part in parts):
        raise CheckpointError(
            "distributed.checkpoint",
            f"{path.name} is of another model: entry {entry.name!r} differs",
            expected=f"{entry.handle.dtype}{list(entry.shape)}",
            got={"shape": shape, "elements": found},
            fix="build the model and optimiser as they were when it was saved",
        )
    return wf.concat(parts).reshape(entry.shape)


def _write_note(path: Path, note: Mapping[str, Any]) -> None:
    """Write what is noted of a file, at once: who looks sees all of it."""
    unfinished = path.with_suffix(".writing")
    unfinished.write_text(json.dumps(note), encoding="utf-8")
    os.replace(unfinished, path)
