"""Files of `torch.save`: their tensors are read without PyTorch, and nothing else is done."""

from __future__ import annotations

import collections
import io
import os
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.torch_files import ALLOWED, STORAGES

# --- an archive as torch.save writes it, from opcodes ---------------------------------------------


class Named:
    """Something that is pickled as a name alone, or as a call of it."""

    def __init__(self, module: str, name: str, *args: Any) -> None:
        self.module, self.name, self.args = module, name, args


class Storage:
    """Elements that are pickled as a reference."""

    def __init__(self, kind: str, key: str, array: np.ndarray[Any, Any]) -> None:
        self.kind, self.key, self.array = kind, key, array


class Writer(pickle._Pickler):  # type: ignore[misc]
    """Writes names that need not exist here."""

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Storage):
            return None
        kind = Named("torch", value.kind)
        return "storage", kind, value.key, "cpu", len(value.array)

    def save(self, value: Any, save_persistent_id: bool = True) -> None:
        if not isinstance(value, Named):
            super().save(value, save_persistent_id)
            return
        self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
        if value.args:
            super().save(value.args)
            self.write(pickle.REDUCE)


def tensor(storage: Storage, offset: int, shape: Any, strides: Any) -> Named:
    rest = (False, collections.OrderedDict())
    return Named("torch._utils", "_rebuild_tensor_v2", storage, offset, shape, strides, *rest)


def archive(
    path: Path, tree: Any, storages: list[Storage], root: str = "model", **more: bytes
) -> Path:
    """A file as torch.save writes it."""
    out = io.BytesIO()
    Writer(out, 2).dump(tree)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{root}/data.pkl", out.getvalue())
        file.writestr(f"{root}/byteorder", b"little")
        for storage in storages:
            file.writestr(f"{root}/data/{storage.key}", storage.array.tobytes())
        file.writestr(f"{root}/version", b"3\n")
        for name, content in more.items():
            file.writestr(f"{root}/{name}", content)
    return path


ELEMENTS = np.arange(6, dtype=np.float32)
WEIGHT = Storage("FloatStorage", "0", ELEMENTS)


def test_a_state_dictionary_is_read(tmp_path: Path) -> None:
    tree = collections.OrderedDict(
        {"weight": tensor(WEIGHT, 0, (2, 3), (3, 1)), "bias": tensor(WEIGHT, 3, (2,), (2,))}
    )
    state = wf.load(archive(tmp_path / "model.pt", tree, [WEIGHT]))
    assert type(state) is dict
    assert state["weight"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert state["bias"].tolist() == [3.0, 5.0]
    net = wf.nn.Linear(3, 2)
    net.load_state_dict(state)
    assert net.bias.tolist() == [3.0, 5.0]
    assert wf.load(tmp_path / "model.pt", metadata=True)[1] == {}


def test_views_parameters_numbers_and_text_are_read(tmp_path: Path) -> None:
    parameter = Named("torch._utils", "_rebuild_parameter", tensor(WEIGHT, 0, (3, 2), (1, 3)),
                      True, collections.OrderedDict())  # fmt: skip
    shape = Named("torch", "Size", (2, 3))
    empty, single = tensor(WEIGHT, 0, (0, 4), (4, 1)), tensor(WEIGHT, 5, (), ())
    tree = {"step": 7, "lr": 0.5, "names": ["a", None, True], "p": parameter, "shape": shape,
            "empty": empty, "single": single, 3: (1, 2)}  # fmt: skip
    found = wf.load(archive(tmp_path / "a.pth", tree, [WEIGHT]))
    assert found["p"].tolist() == ELEMENTS.reshape(2, 3).T.tolist()
    assert (found["step"], found["lr"], found["names"]) == (7, 0.5, ["a", None, True])
    assert (found["shape"], found["empty"].shape, found["single"].item()) == ((2, 3), (0, 4), 5.0)
    assert found[3] == (1, 2)


@pytest.mark.parametrize("kind", STORAGES)
def test_every_element_type_is_read(kind: str, tmp_path: Path) -> None:
    dtype = STORAGES[kind]
    storage = Storage(kind, "7", np.array([0, 1, 1, 0]).astype(dtype.numpy))
    path = archive(tmp_path / "x.pt", {"x": tensor(storage, 0, (2, 2), (2, 1))}, [storage])
    found = wf.load(path)["x"]
    assert found.dtype is dtype
    assert found.astype("float32" if not dtype.is_complex else dtype).tolist() == [[0, 1], [1, 0]]


def call_of_system(path: Path) -> Any:
    return Named("os", "system", f"touch {path / 'harm'}")


def test_no_code_is_run_and_no_class_is_made(tmp_path: Path) -> None:
    for number, tree in enumerate(
        (
            call_of_system(tmp_path),
            Named("builtins", "eval", "1"),
            Named("posix", "system", f"touch {tmp_path / 'harm'}"),
            {"net": Named("mine.models", "Net", 3)},
            Named("torch.nn.modules.linear", "Linear"),
            Named("torch._utils", "_rebuild_tensor_v3", 1),
            Named("torch", "load", "x"),
        )
    ):
        path = archive(tmp_path / f"{number}.pt", tree, [])
        with pytest.raises(wf.UnsupportedError, match="neither a tensor nor plain data") as caught:
            wf.load(path)
        assert "state_dict()" in caught.value.fix
    assert not os.path.exists(tmp_path / "harm")


def raw(path: Path, program: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/data.pkl", program)
        file.writestr("a/data/0", ELEMENTS.tobytes())
    return path


ORDERED = b"ccollections\nOrderedDict\n"
PROGRAMS = {
    "a state for a constructor": ORDERED + b"}X\x01\x00\x00\x00aK\x01sb.",
    "slots for a constructor": ORDERED + b"N}X\x07\x00\x00\x00meaningK\x01s\x86b.",
    "a call of an element type": b"ctorch\nFloatStorage\n)R.",
    "a call with wrong arguments": b"ctorch._utils\n_rebuild_tensor_v2\n)R.",
    "a new object": ORDERED + b")\x81.",
    "an unknown reference": b"(X\x07\x00\x00\x00storageK\x01K\x02K\x03K\x04tQ.",
    "a reference that is text": b"PX\n.",
    "nothing": b"",
    "an unknown code": b"\xff.",
    "an empty stack": b"R.",
    "a set": b"\x80\x04\x8f.",
    "bytes": b"\x80\x03C\x02ab.",
    "a dictionary of pairs": b"\x80\x02}K\x01K\x02\x86K\x03s.",
    "one that holds itself": b"]q\x00h\x00a.",
    "an extension": b"\x82\x01.",
    "a value remembered at a place far away": b"\x80\x02K\x01r\xff\xff\xff\x7f.",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_pickle_that_is_no_tree_is_refused(name: str, tmp_path: Path) -> None:
    before = dict(ALLOWED)
    with pytest.raises((wf.ArgumentError, wf.UnsupportedError)):
        wf.load(raw(tmp_path / "x.pt", PROGRAMS[name]))
    assert before == ALLOWED


VIEWS = {
    "beyond the end": (4, (3,), (1,)),
    "far beyond": (0, (2, 3), (1000000, 1)),
    "more than there is": (0, (1 << 40,), (0,)),
    "from before the start": (-1, (2,), (1,)),
    "backwards": (5, (2,), (-1,)),
    "without strides": (0, (2, 3), (1,)),
    "of a negative size": (0, (-2,), (1,)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_tensor_that_is_no_view_of_its_storage_is_refused(name: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "x.pt", {"x": tensor(WEIGHT, *VIEWS[name])}, [WEIGHT])
    with pytest.raises(wf.ArgumentError, match="damaged"):
        wf.load(path)


def test_storages_that_are_not_what_is_said_are_refused(tmp_path: Path) -> None:
    tree = {"x": tensor(WEIGHT, 0, (2,), (1,))}
    with pytest.raises(wf.ArgumentError, match="damaged"):
        wf.load(archive(tmp_path / "absent.pt", tree, []))
    short = Storage("FloatStorage", "0", ELEMENTS[:3])
    with pytest.raises(wf.ArgumentError, match="another length"):
        wf.load(archive(tmp_path / "short.pt", tree, [short]))


def test_packed_archives_and_programs_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/data.pkl", b"N" * 100000)
    with pytest.raises(wf.ArgumentError, match="packed"):
        wf.load(tmp_path / "packed.pt")
    script = archive(tmp_path / "script.pt", {}, [], **{"code/net.py": b"import os"})
    with pytest.raises(wf.UnsupportedError, match="TorchScript"):
        wf.load(script)
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as file:
        file.writestr("x.npy", b"")
    with pytest.raises(wf.ArgumentError, match="it is an archive, but"):
        wf.load(tmp_path / "other.npz")


def test_formats_from_before_archives_are_refused_with_the_fix(tmp_path: Path) -> None:
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
    (tmp_path / "old.pt").write_bytes(magic + pickle.dumps(1001, protocol=2))
    with tarfile.open(tmp_path / "older.pt", "w") as file:
        file.addfile(tarfile.TarInfo("storages"))
    for name in ("old.pt", "older.pt"):
        with pytest.raises(wf.UnsupportedError, match="before version") as caught:
            wf.load(tmp_path / name)
        assert "torch.save(torch.load(path), path)" in caught.value.fix


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    whole = archive(tmp_path / "x.pt", {"x": tensor(WEIGHT, 0, (6,), (1,))}, [WEIGHT]).read_bytes()
    for length in (4, 30, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.pt").write_bytes(whole[:length])
        with pytest.raises(wf.ArgumentError):
            wf.load(tmp_path / "cut.pt")


def test_what_pytorch_wrote_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.LSTM(4, 2))
    optimizer = torch.optim.AdamW(net.parameters())
    net[1](net[0](torch.ones(5, 3))).sum().backward()
    optimizer.step()
    x = torch.arange(12.0).reshape(3, 4)
    tree = {
        "net": net.state_dict(), "optimizer": optimizer.state_dict(), "t": x.T, "part": x[1:, 2],
        "half": x.half(), "brain": x.bfloat16(), "mask": x > 3, "parameter": net[0].weight,
        "complex": torch.complex(x, x), "size": x.shape, "epoch": 3, "name": "run",
    }  # fmt: skip
    torch.save(tree, tmp_path / "x.pt")
    found = wf.load(tmp_path / "x.pt")
    for name in ("t", "part", "half", "mask", "complex"):
        np.testing.assert_array_equal(found[name].numpy(), tree[name].numpy())
    assert found["brain"].astype("float32").tolist() == x.tolist()
    assert (found["size"], found["epoch"], found["name"]) == ((3, 4), 3, "run")
    ours = wf.nn.Sequential(wf.nn.Linear(3, 4), wf.nn.BatchNorm1d(4), wf.nn.LSTM(4, 2))
    ours.load_state_dict(found["net"])
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[name].numpy(), value.numpy())
    state = optimizer.state_dict()["state"][0]["exp_avg"]
    np.testing.assert_array_equal(found["optimizer"]["state"][0]["exp_avg"].numpy(), state.numpy())
    torch.save(net, tmp_path / "whole.pt")
    with pytest.raises(wf.UnsupportedError, match="Sequential"):
        wf.load(tmp_path / "whole.pt")
