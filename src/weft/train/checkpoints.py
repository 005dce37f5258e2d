"""Checkpoints: folders of safetensors files and a JSON manifest, complete or not there at all.

A checkpoint is written into a hidden folder, every file is forced to the disk, and only then is
the folder renamed, which is one atomic step: a process that is killed leaves the earlier
checkpoints and perhaps a hidden folder, which the next save removes. The manifest holds the size
and checksum of every file and of every entry, and one of itself, so what was damaged later is
refused by name. The files lie in the folder itself: a name that leads elsewhere, or a link, is
refused. Manifests of Weft's first format have no checksum of their own, and are read without.

>>> import tempfile
>>> import weft as wf
>>> folder = CheckpointFolder(tempfile.mkdtemp())
>>> _ = folder.save({"model": {"w": wf.ones(2)}}, {"step": 7})
>>> found = folder.load(folder.latest())
>>> found.facts["step"], found.tensors["model"]["w"].tolist()
(7, [1.0, 1.0])
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.files import is_plain_name, open_file, read_json
from weft.train.packing import unpack

__all__ = ["Checkpoint", "CheckpointError", "CheckpointFolder"]

FORMAT = "weft checkpoint 2"
UNSIGNED_FORMAT = "weft checkpoint 1"
"""The format before manifests had a checksum."""
MANIFEST = "manifest.json"
CHECKSUM = "checksum"
LARGEST_MANIFEST = 1 << 26
WRITING = ".writing-"
READ_BYTES = 1 << 20

Tensors = Mapping[str, wf.Tensor]


class CheckpointError(wf.WeftError, RuntimeError):
    """A checkpoint that cannot be written, or is not what it says it is."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and checked: where, what was noted, and tensors by file."""

    path: Path
    facts: dict[str, Any]
    tensors: dict[str, dict[str, wf.Tensor]]

    def require(self, group: str, wanted: Tensors) -> dict[str, wf.Tensor]:
        """The tensors of one file; refused unless names, shapes and dtypes match the given state.

        >>> import pathlib
        >>> import weft as wf
        >>> found = Checkpoint(pathlib.Path("step-00000007"), {}, {"model": {"w": wf.ones(2)}})
        >>> try:
        ...     found.require("model", {"w": wf.ones(3)})
        ... except CheckpointError as error:
        ...     print(error.problem)
        step-00000007/model.safetensors is of another model: entry 'w' differs
        """
        held = self.tensors.get(group, {})
        for name in dict.fromkeys([*wanted, *held]):
            here, there = wanted.get(name), held.get(name)
            if here is None or there is None or _kind(here) != _kind(there):
                raise self._mismatch_error(group, name, here, there)
        return held

    def state(self, name: str) -> Any:
        """A part of the state that was noted, with its tensors in place."""
        try:
            return unpack(self.facts["state"][name], self.tensors["state"])
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            told = f"does not hold the state {name!r}: {type(error).__name__} {error}"
            raise _damage_error(self.path / MANIFEST, told, "the state of a trainer") from None

    def _mismatch_error(self, group: str, name: str, here: Any, there: Any) -> CheckpointError:
        what = "missing" if there is None else "unexpected" if here is None else "differs"
        verb = "differs" if what == "differs" else f"is {what}"
        return CheckpointError(
            "train.checkpoint",
            f"{self.path / group}.safetensors is of another model: entry {name!r} {verb}",
            expected="nothing of this name" if here is None else f"{name}: {here.type}",
            got={name: "nothing" if there is None else there},
            fix="build the model as it was when it was saved, or choose another checkpoint_folder",
        )


def _kind(tensor: wf.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape


class CheckpointFolder:
    """The checkpoints of one run, of one kind or more, the last `keep` of each."""

    def __init__(self, path: str | os.PathLike[str], keep: int = 3) -> None:
        if keep < 1:
            raise wf.ArgumentError(
                "train.checkpoint",
                "the last checkpoint must be kept",
                expected="keep at least 1",
                got={"keep": keep},
                fix="keep=1",
            )
        self.path = Path(path)
        self.keep = keep

    def save(
        self, groups: Mapping[str, Tensors], facts: Mapping[str, Any], kind: str = "step"
    ) -> Path:
        """Write one file of tensors for each group and the manifest; then remove the oldest.

        `facts["step"]` names and orders the checkpoints.
        """
        for name in (*groups, kind):
            _check_name(name)
        with self._remove_if_unfinished():
            self.path.mkdir(parents=True, exist_ok=True)
            self._remove_unfinished()
            unfinished = self.path / f"{WRITING}{os.getpid()}"
            unfinished.mkdir()
            files = {f"{group}.safetensors": tensors for group, tensors in groups.items()}
            noted = {
                name: write_file(unfinished / name, tensors) for name, tensors in files.items()
            }
            noted_beside = {"format": FORMAT, "weft": wf.__version__, "kind": kind, **facts}
            write_manifest(unfinished / MANIFEST, {**noted_beside, "files": noted})
            sync_path(unfinished)
            final = self._unused_path(f"{kind}-{facts['step']:08d}")
            unfinished.rename(final)
            sync_path(self.path)
        for old in self.all(kind)[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        return final

    def all(self, kind: str = "step") -> list[Path]:
        """The checkpoints of a kind, oldest first."""
        folders = [path for path in self.path.glob(f"{kind}-*") if path.is_dir()]
        return sorted(folders, key=_order)

    def latest(self, kind: str = "step") -> Path | None:
        """The newest checkpoint of a kind, if there is one."""
        return next(reversed(self.all(kind)), None)

    def load(self, path: str | os.PathLike[str] | None = None, kind: str = "step") -> Checkpoint:
        """A checkpoint, the newest unless another is given; all its checksums are checked."""
        chosen = self.latest(kind) if path is None else Path(path)
        if chosen is None or not chosen.is_dir():
            raise CheckpointError(
                "train.checkpoint",
                "there is no checkpoint",
                expected=f"a folder called {kind}-... with a {MANIFEST}",
                got={"folder": str(chosen or self.path)},
                fix="fit(..., resume=False) begins anew",
            )
        manifest = read_manifest(chosen)
        tensors = {
            name.removesuffix(".safetensors"): read_file(chosen / name, noted)
            for name, noted in manifest["files"].items()
        }
        return Checkpoint(chosen, manifest, tensors)

    def _unused_path(self, name: str) -> Path:
        """A name that no checkpoint has: a run that was resumed may come to a step again."""
        number, path = 2, self.path / name
        while path.exists():
            number, path = number + 1, self.path / f"{name}-{number}"
        return path

    def _remove_unfinished(self) -> None:
        """Remove the files that killed processes left; those of a living process stay."""
        for path in self.path.glob(f"{WRITING}*"):
            process = path.name.removeprefix(WRITING)
            if not process.isdecimal() or int(process) == os.getpid() or not _is_alive(process):
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _remove_if_unfinished(self) -> Iterator[None]:
        """Remove what was written if it could not be finished, and say why."""
        try:
            yield
        except (OSError, wf.ArgumentError) as error:
            shutil.rmtree(self.path / f"{WRITING}{os.getpid()}", ignore_errors=True)
            raise _write_error(self.path, error) from error


def _order(path: Path) -> tuple[int, int]:
    """The step in a folder's name, and how often it was come to."""
    numbers = [int(part) for part in path.name.split("-")[1:] if part.isdecimal()]
    return (numbers[0] if numbers else -1, numbers[1] if len(numbers) > 1 else 1)


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


# --- writing -----------------------------------------------------------------------------------


def write_file(path: Path, tensors: Tensors) -> dict[str, Any]:
    """Write a file to the disk; its size and checksums."""
    wf.save(dict(tensors), path)
    sync_path(path)
    return {
        "bytes": path.stat().st_size,
        "sha256": _checksum(path),
        "entries": {name: _entry_checksum(tensor) for name, tensor in tensors.items()},
    }


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest, with a checksum over its own content."""
    read_back = json.loads(json.dumps(manifest))
    text = json.dumps({**read_back, CHECKSUM: _manifest_checksum(read_back)}, indent=1) + "\n"
    if len(text) > LARGEST_MANIFEST:
        raise wf.ArgumentError(
            "train.checkpoint",
            f"what is noted beside the tensors has {len(text)} bytes",
            expected=f"at most {LARGEST_MANIFEST} bytes of numbers and texts",
            got={"facts": ", ".join(manifest)},
            fix="return arrays in place of long lists from state_dict()",
        )
    path.write_text(text, encoding="utf-8")
    sync_path(path)


def _manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """A digest of all that a manifest says, however it is laid out."""
    noted = {name: value for name, value in manifest.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(noted, sort_keys=True).encode()).hexdigest()


def _check_name(name: str) -> None:
    if not is_plain_name(name) or "[" in name:
        raise wf.ArgumentError(
            "train.checkpoint",
            "a group of tensors, or a kind of checkpoint, cannot be called so",
            expected="a word that can be the name of a file",
            got={"name": name},
            fix='folder.save({"model": model.state_dict()}, {"step": 1}, kind="step")',
        )


def sync_path(path: Path) -> None:
    """Force a file's or folder's content to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with open_file("train.checkpoint", path) as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _entry_checksum(tensor: wf.Tensor) -> int:
    array = np.ascontiguousarray(tensor.detach().numpy())
    return zlib.crc32(array.reshape(-1).view(np.uint8).data)


def _write_error(folder: Path, error: Exception) -> CheckpointError:
    full = any(os.strerror(code) in str(error) for code in (errno.ENOSPC, errno.EDQUOT))
    return CheckpointError(
        "train.checkpoint",
        "the disk is full" if full else "the checkpoint cannot be written",
        expected="room and permission to write a checkpoint",
        got={"folder": str(folder), "error": getattr(error, "problem", str(error))},
        fix="make room, then go on from the last checkpoint: fit(..., resume=True)",
        note="earlier checkpoints are untouched",
    )


# --- reading -----------------------------------------------------------------------------------


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint."""
    file = path / MANIFEST
    if file.is_symlink():
        raise _damage_error(file, "is a link", "a file in the folder of the checkpoint")
    try:
        manifest = read_json("train.checkpoint", file)
    except FileNotFoundError:
        raise _damage_error(file, "is missing", MANIFEST) from None
    except (OSError, wf.ArgumentError) as error:
        raise _damage_error(file, getattr(error, "problem", str(error)), MANIFEST) from None
    known = (FORMAT, UNSIGNED_FORMAT)
    if not isinstance(manifest, dict) or manifest.get("format") not in known:
        raise _damage_error(file, "is of another format", FORMAT)
    checksum = manifest.get(CHECKSUM)
    try:
        is_same = checksum == _manifest_checksum(manifest)
    except RecursionError:
        raise _damage_error(file, "is nested too deeply", MANIFEST) from None
    if not is_same and (checksum is not None or manifest["format"] == FORMAT):
        raise _damage_error(file, "was changed: its checksum differs", "what was written")
    if not isinstance(manifest.get("files"), dict) or not all(
        is_plain_name(name) and name.endswith(".safetensors") and _is_note(noted)
        for name, noted in manifest["files"].items()
    ):
        raise _damage_error(file, "does not name files beside it, with sizes and checksums", FORMAT)
    return manifest


def _is_note(noted: Any) -> bool:
    """Whether this is a manifest's entry for a file."""
    return (
        isinstance(noted, dict)
        and isinstance(noted.get("bytes"), int)
        and isinstance(noted.get("sha256"), str)
        and isinstance(noted.get("entries"), dict)
    )


def read_file(path: Path, noted: Mapping[str, Any]) -> dict[str, wf.Tensor]:
    """The tensors of a file that is as it was written."""
    if not os.path.lexists(path):
        raise _damage_error(path, "is missing", f"{noted['bytes']} bytes")
    if path.is_symlink() or not path.is_file():
        raise _damage_error(path, "is a link, or no file", "a file in the folder of the checkpoint")
    size = path.stat().st_size
    if size != noted["bytes"]:
        raise _damage_error(path, f"has {size} bytes", f"{noted['bytes']} bytes")
    try:
        if _checksum(path) != noted["sha256"]:
            raise _damage_error(
                path, f"was changed: {_changed_entry(path, noted)}", "what was written"
            )
        loaded = wf.load(path)
    except (OSError, wf.ArgumentError, wf.UnsupportedError) as error:
        raise _damage_error(path, getattr(error, "problem", str(error)), "a whole file") from None
    if not isinstance(loaded, dict):
        raise _damage_error(path, "does not hold tensors by name", "tensors by name")
    return loaded


def _changed_entry(path: Path, noted: Mapping[str, Any]) -> str:
    """Which entry of a file is not as it was written."""
    try:
        tensors = wf.load(path)
    except (wf.WeftError, OSError, ValueError):
        return "its header"
    for name, checksum in noted["entries"].items():
        if name not in tensors or _entry_checksum(tensors[name]) != checksum:
            return f"entry {name!r}"
    return "its header"


def _damage_error(path: Path, problem: str, expected: str) -> CheckpointError:
    return CheckpointError(
        "train.checkpoint",
        f"{path.parent.name}/{path.name} {problem}",
        expected=expected,
        got={"file": str(path)},
        fix=f"remove the folder {path.parent} to go on from the checkpoint before it",
    )
