"""Encrypted weights: they come back, and nothing else does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.deploy import encryption

KEY = bytes(range(32))
OTHER = bytes(reversed(range(32)))


@pytest.fixture
def _has_package() -> None:
    pytest.importorskip("cryptography")


def state() -> dict[str, Any]:
    return {
        "layer.weight": wf.tensor(np.arange(6.0, dtype=np.float32).reshape(2, 3)),
        "layer.half": wf.ones(3, dtype="bfloat16"),
        "step": wf.tensor(7),
        "nothing": wf.zeros((0, 4)),
    }


def written(folder: Path, **given: Any) -> Path:
    path = folder / "weights.enc"
    wf.deploy.save_encrypted(state(), path, key=KEY, **given)
    return path


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return set(found) == set(expected) and all(
        found[name].type == value.type and found[name].numpy().tobytes() == value.numpy().tobytes()
        for name, value in expected.items()
    )


@pytest.mark.usefixtures("_has_package")
@pytest.mark.parametrize("form", ["bytes", "hex", "base64", "callback", "environment"])
def test_weights_come_back_with_the_key(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import base64

    keys: dict[str, Any] = {
        "bytes": KEY, "hex": KEY.hex(), "base64": base64.b64encode(KEY).decode(),
        "callback": lambda: KEY, "environment": None,
    }  # fmt: skip
    monkeypatch.setenv(encryption.VARIABLE, KEY.hex())
    assert same(wf.deploy.load_encrypted(written(tmp_path), key=keys[form]), state())
    assert [each.name for each in tmp_path.iterdir()] == ["weights.enc"]


@pytest.mark.usefixtures("_has_package")
def test_the_file_shows_no_name_and_no_number(tmp_path: Path) -> None:
    data = written(tmp_path).read_bytes()
    assert b"layer" not in data
    assert state()["layer.weight"].numpy().tobytes() not in data
    assert data != written(tmp_path).read_bytes()  # another nonce each time


@pytest.mark.usefixtures("_has_package")
def test_stripped_names_come_back_by_a_module(tmp_path: Path) -> None:
    net = wf.nn.Sequential(wf.nn.Linear(3, 2), wf.nn.Linear(2, 1))
    path = tmp_path / "weights.enc"
    wf.deploy.save_encrypted(net.state_dict(), path, key=KEY, strip_names=True)
    plain = wf.deploy.load_encrypted(path, key=KEY)
    assert sorted(plain) == ["000000", "000001", "000002", "000003"]
    assert same(wf.deploy.load_encrypted(path, key=KEY, like=net), net.state_dict())
    with pytest.raises(wf.ArgumentError, match="4 tensors, and the module 2"):
        wf.deploy.load_encrypted(path, key=KEY, like=wf.nn.Linear(1, 1))


@pytest.mark.usefixtures("_has_package")
def test_a_changed_file_and_another_key_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encryption, "PIECE", 64)  # several pieces
    path = written(tmp_path)
    data = path.read_bytes()
    with pytest.raises(wf.ArgumentError, match="another one") as error:
        wf.deploy.load_encrypted(path, key=OTHER)
    assert OTHER.hex() not in str(error.value)
    size, head = 64 + encryption.TAG_BYTES, encryption.HEADER.size
    swapped = data[:head] + data[head + size : head + 2 * size] + data[head : head + size]
    changed = [data[:-1], data[:head], data + b"x", b"", swapped + data[head + 2 * size :]]
    changed += [
        data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :] for place in range(len(data))
    ]
    for number, wrong in enumerate(changed):
        path.write_bytes(wrong)
        with pytest.raises(wf.ArgumentError, match="cannot be opened"):
            wf.deploy.load_encrypted(path, key=KEY)
            pytest.fail(f"change {number} was not found")


@pytest.mark.usefixtures("_has_package")
@pytest.mark.parametrize("key", [b"short", "zz", "00", bytes(33), lambda: "", 5])
def test_what_is_no_key_is_refused_and_not_shown(key: Any, tmp_path: Path) -> None:
    with pytest.raises(wf.ArgumentError, match="holds no key"):
        wf.deploy.save_encrypted(state(), tmp_path / "x", key=key)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_has_package")
def test_a_key_that_is_not_set_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(encryption.VARIABLE, raising=False)
    with pytest.raises(wf.ArgumentError, match="WEFT_WEIGHTS_KEY is not set"):
        wf.deploy.save_encrypted(state(), tmp_path / "x")


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.startswith("cryptography")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(wf.UnsupportedError, match="cryptography") as error:
        wf.deploy.save_encrypted(state(), tmp_path / "x", key=KEY)
    assert "weft[protect]" in error.value.fix
