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
from weft.train.checkpoints import _manifest_checksum
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


def rewrite(path: Path, change: Any, signed: bool = True) -> None:
    """Change what a manifest says, and its checksum with it."""
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    if signed:
        manifest["checksum"] = _manifest_checksum(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


def test_no_byte_of_a_manifest_can_be_changed_unnoticed(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    saved(folder, 1)
    manifest = tmp_path / "step-00000001" / "manifest.json"
    data = manifest.read_bytes()
    noticed = json.loads(data)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 + place % 7
        manifest.write_bytes(changed)
        try:
            found = folder.load().facts
        except CheckpointError:
            continue
        assert found == noticed  # blanks between the words


def outside(name: str) -> Any:
    return lambda m: m["files"].update({name: m["files"].pop("model.safetensors")})


HOSTILE: dict[str, Any] = {
    "a folder above": outside("../../outside.safetensors"),
    "an absolute path": outside("/etc/outside.safetensors"),
    "another ending": outside("model.bin"),
    "a zero byte": outside("a\0.safetensors"),
    "files that are none": lambda m: m.update(files=[1]),
    "no files": lambda m: m.pop("files"),
    "a note that is none": lambda m: m["files"].update({"model.safetensors": 7}),
    "a size that is none": lambda m: m["files"]["model.safetensors"].update(bytes="1"),
    "another size": lambda m: m["files"]["model.safetensors"].update(bytes=3),
    "another checksum": lambda m: m["files"]["model.safetensors"].update(sha256="0"),
    "entries that are none": lambda m: m["files"]["model.safetensors"].update(
        entries={"a": []}, sha256="0"
    ),
    "another format": lambda m: m.update(format=["weft checkpoint 2"]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_manifest_that_asks_for_harm_is_refused(tmp_path: Path, name: str) -> None:
    folder = CheckpointFolder(tmp_path / "run")
    saved(folder, 1)
    wf.save({"w": wf.ones(1)}, tmp_path / "outside.safetensors")
    rewrite(tmp_path / "run" / "step-00000001" / "manifest.json", HOSTILE[name])
    with pytest.raises(CheckpointError) as caught:
        folder.load()
    assert str(tmp_path / "run" / "step-00000001") in caught.value.got


def test_links_in_a_checkpoint_are_refused(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    saved(folder, 1)
    file = tmp_path / "step-00000001" / "model.safetensors"
    file.rename(tmp_path / "elsewhere")
    for target in (tmp_path / "elsewhere", Path("/dev/zero"), tmp_path, tmp_path / "nowhere"):
        file.symlink_to(target)
        with pytest.raises(CheckpointError, match=r"model\.safetensors is a link"):
            folder.load()
        file.unlink()
    os.mkfifo(file)
    with pytest.raises(CheckpointError, match="no file"):
        folder.load()
    manifest = file.with_name("manifest.json")
    manifest.rename(tmp_path / "manifest.json")
    manifest.symlink_to(tmp_path / "manifest.json")
    with pytest.raises(CheckpointError, match=r"manifest\.json is a link"):
        folder.load()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 900 + "1" + "}" * 900, "\xff", "9" * 5000]
)
def test_a_manifest_that_cannot_be_taken_apart_is_refused(tmp_path: Path, text: str) -> None:
    folder = CheckpointFolder(tmp_path)
    saved(folder, 1)
    (tmp_path / "step-00000001" / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        folder.load()


def test_manifests_of_the_first_format_are_read(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    saved(folder, 1)
    manifest = tmp_path / "step-00000001" / "manifest.json"
    rewrite(
        manifest, lambda m: (m.pop("checksum"), m.update(format="weft checkpoint 1")), signed=False
    )
    assert folder.load().facts["step"] == 1
    rewrite(manifest, lambda m: m.update(checksum="0" * 64), signed=False)
    with pytest.raises(CheckpointError, match="its checksum differs"):
        folder.load()
    rewrite(
        manifest, lambda m: (m.pop("checksum"), m.update(format="weft checkpoint 2")), signed=False
    )
    with pytest.raises(CheckpointError, match="its checksum differs"):
        folder.load()


def test_names_that_lead_out_of_the_folder_are_not_written(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "run")
    with pytest.raises(wf.ArgumentError, match="cannot be called so"):
        folder.save({"../model": TENSORS}, {"step": 1})
    with pytest.raises(wf.ArgumentError, match="cannot be called so"):
        folder.save({"model": TENSORS}, {"step": 1}, kind="../step")
    assert not (tmp_path / "run").exists()


STATES: dict[str, Any] = {
    "no state": lambda m: m.pop("state"),
    "a state that is none": lambda m: m.update(state=[1, 2]),
    "a tensor that is nowhere": lambda m: m["state"].update(optimizer={"$tensor": "nowhere"}),
    "no random state": lambda m: m["state"].update(random=[1]),
    "no epoch": lambda m: m.pop("epoch"),
    "a history that is none": lambda m: m.update(history={"$tuple": 7}),
    "sizes that are none": lambda m: m["state"].update(sizes=3),
    "a loss that is none": lambda m: m["state"].update(loss=None),
    "metrics that are none": lambda m: m["state"].update(metrics=7, callbacks=None),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_fits_no_trainer_is_refused(tmp_path: Path, name: str) -> None:
    model = wf.nn.Linear(2, 1)

    def trainer() -> Any:
        return wf.train.Trainer(
            model, wf.nn.functional.mse_loss, wf.optim.SGD(model.parameters(), lr=0.1),
            metrics=["mse"], checkpoint_folder=tmp_path, progress=False, compile=False,
        )  # fmt: skip

    trainer().save_checkpoint()
    found = CheckpointFolder(tmp_path).latest()
    assert found is not None
    rewrite(found / "manifest.json", STATES[name])
    with pytest.raises(CheckpointError) as caught:
        trainer().load_checkpoint()
    assert str(found) in caught.value.got


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


def test_checkpoints_that_are_wanted_without_a_folder_are_refused_at_once() -> None:
    net = wf.nn.Linear(2, 1)
    with pytest.raises(wf.ArgumentError, match="there is no folder for checkpoints"):
        wf.train.Trainer(net, "mse_loss", wf.optim.SGD(net.parameters()), checkpoint_every=5)


def test_the_loss_of_a_process_while_state_is_read_is_no_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are left go on after it, as after any other loss."""
    net = wf.nn.Linear(2, 1)
    trainer = wf.train.Trainer(net, "mse_loss", wf.optim.SGD(net.parameters()), progress=False)
    path = trainer.save_checkpoint(tmp_path)
    lost = wf.ProcessError("all_gather", "a process was lost", expected="all", got={}, fix="none")

    def lose(*given: Any) -> None:
        raise lost

    monkeypatch.setattr(trainer.strategy, "load_optimizer", lose)
    with pytest.raises(wf.ProcessError, match="a process was lost"):
        trainer.load_checkpoint(path)
