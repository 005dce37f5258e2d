"""Checkpoints are whole or not there; what is damaged or foreign is refused by name."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.train import CheckpointError, CheckpointFolder
from weft.train.packing import pack, unpack

TENSORS = {
    "a.weight": wf.ones((3, 2)),
    "a.bias": wf.zeros(3),
    "half": wf.ones(2).astype("bfloat16"),
}


def saved(folder: CheckpointFolder, *steps: int) -> None:
    for step in steps:
        folder.save({"model": TENSORS, "state": {}}, {"step": step})


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    saved(folder, 3)
    found = folder.load()
    assert found.facts["step"] == 3
    assert found.facts["weft"] == wf.__version__
    for name, tensor in TENSORS.items():
        loaded = found.tensors["model"][name]
        assert loaded.dtype == tensor.dtype
        assert np.array_equal(loaded.numpy(), tensor.numpy())


def test_the_last_ones_are_kept_and_the_newest_is_found(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    saved(folder, 5, 9, 100_000_000, 200_000_000)
    assert [path.name for path in folder.all()] == ["step-100000000", "step-200000000"]
    assert folder.load().facts["step"] == 200_000_000
    folder.save({"model": TENSORS}, {"step": 1}, kind="best")
    assert folder.load(kind="best").facts["step"] == 1
    assert folder.load().facts["step"] == 200_000_000


def test_a_step_that_is_come_to_again_replaces_nothing_until_it_is_written(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=2)
    saved(folder, 4)
    folder.save({"model": {"w": wf.zeros(1)}}, {"step": 4})
    assert list(folder.load().tensors["model"]) == ["w"]
    assert len(folder.all()) == 2


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "truncate":
        path.write_bytes(data[:-5])
    elif how == "remove":
        path.unlink()
    elif how == "header":
        data[20] ^= 1
        path.write_bytes(data)
    else:
        with wf_offset(path, how) as place:
            data[place] ^= 1
        path.write_bytes(data)


class wf_offset:  # noqa: N801  reads like a function
    """Where the first byte of an entry is in a safetensors file."""

    def __init__(self, path: Path, name: str) -> None:
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        self.place = 8 + length + json.loads(data[8 : 8 + length])[name]["data_offsets"][0]

    def __enter__(self) -> int:
        return self.place

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("truncate", "has "),
        ("remove", "is missing"),
        ("header", "was changed: its header"),
        ("a.bias", "was changed: entry 'a.bias'"),
        ("half", "was changed: entry 'half'"),
    ],
)
def test_a_damaged_file_is_refused_by_name_and_the_one_before_still_loads(
    tmp_path: Path, how: str, told: str
) -> None:
    folder = CheckpointFolder(tmp_path)
    saved(folder, 1, 2)
    damage(tmp_path / "step-00000002" / "model.safetensors", how)
    with pytest.raises(CheckpointError) as caught:
        folder.load()
    assert caught.value.problem.startswith(f"step-00000002/model.safetensors {told}")
    assert "remove the folder" in caught.value.fix
    assert folder.load(tmp_path / "step-00000001").facts["step"] == 1


@pytest.mark.parametrize("text", [None, "{", "[]", '{"format": "another"}'])
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str | None) -> None:
    folder = CheckpointFolder(tmp_path)
    saved(folder, 1)
    manifest = tmp_path / "step-00000001" / "manifest.json"
    if text is None:
        manifest.unlink()
    else:
        manifest.write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"step-00000001/manifest\.json"):
        folder.load()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("call", ["fsync", "rename", "write", "mkdir"])
def test_a_disk_that_is_full_loses_no_earlier_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    folder = CheckpointFolder(tmp_path, keep=1)
    saved(folder, 1)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    if call == "write":
        monkeypatch.setattr(Path, "write_text", refuse)
    else:
        monkeypatch.setattr(os, call, refuse)
    with pytest.raises(CheckpointError) as caught:
        saved(folder, 2)
    full = code == errno.ENOSPC
    assert caught.value.problem == (
        "the disk is full" if full else "the checkpoint cannot be written"
    )
    assert "untouched" in caught.value.note
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert folder.load().facts["step"] == 1


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(
    tmp_path: Path,
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    living = tmp_path / f".writing-{os.getppid()}"
    dead = tmp_path / f".writing-{ended.pid}"
    living.mkdir()
    dead.mkdir()
    (dead / "model.safetensors").write_bytes(b"half")
    folder = CheckpointFolder(tmp_path)
    assert folder.latest() is None
    saved(folder, 1)
    assert living.exists()
    assert not dead.exists()


def test_a_checkpoint_of_another_model_is_refused_naming_file_and_entry(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    saved(folder, 1)
    found = folder.load()
    file = tmp_path / "step-00000001" / "model.safetensors"
    wider = {**TENSORS, "a.weight": wf.ones((4, 2))}
    for wanted, told in [
        (wider, "entry 'a.weight' differs"),
        ({**TENSORS, "b": wf.ones(1)}, "entry 'b' is missing"),
        ({"a.weight": TENSORS["a.weight"]}, "entry 'a.bias' is unexpected"),
    ]:
        with pytest.raises(CheckpointError) as caught:
            found.require("model", wanted)
        assert caught.value.problem == f"{file} is of another model: {told}"


def test_any_state_comes_back_as_it_was() -> None:
    state = {
        "moments": [wf.ones(2), wf.zeros(1)],
        "pair": (1, "two", None, 2.5, True),
        "by number": {3: "c", 4: {"$x": 1}},
        "array": np.arange(4),
        "scalar": np.float64(0.1),
        "big": 2**80,
        "empty": {},
    }
    tensors: dict[str, wf.Tensor] = {}
    text = json.loads(json.dumps(pack(state, "s", tensors)))
    back = unpack(text, tensors)
    assert back["pair"] == state["pair"]
    assert back["by number"] == state["by number"]
    assert np.array_equal(back["array"], np.arange(4))
    assert (back["scalar"], back["big"], back["empty"]) == (0.1, 2**80, {})
    assert back["moments"][0].tolist() == [1.0, 1.0]
    with pytest.raises(wf.ArgumentTypeError, match=r"s\.x\.1 cannot be saved"):
        pack({"x": [1, object()]}, "s", {})


def test_at_least_one_is_kept(tmp_path: Path) -> None:
    with pytest.raises(wf.ArgumentError):
        CheckpointFolder(tmp_path, keep=0)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        CheckpointFolder(tmp_path).load()
