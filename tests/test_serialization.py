"""Files: what is written is read again, whole or not at all, by other programs too."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip


def example(dtype: str, shape: tuple[int, ...] = (3, 2)) -> wf.Tensor:
    draw = np.random.default_rng(0)
    values = draw.integers(0, 2 if dtype == "bool" else 100, shape)
    imaginary = 1j if dtype.startswith("complex") else 0
    return wf.tensor(values + values * imaginary).astype(dtype)


def same(a: wf.Tensor, b: wf.Tensor) -> bool:
    return a.type == b.type and a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("map_file", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back(dtype: str, map_file: bool, tmp_path: Path) -> None:
    tensors = {f"x{n}": example(dtype, shape) for n, shape in enumerate([(3, 2), (), (0, 4), (5,)])}
    wf.save(tensors, tmp_path / "file")
    loaded = wf.load(tmp_path / "file", map_file=map_file)
    assert loaded.keys() == tensors.keys()
    assert all(same(loaded[name], x) for name, x in tensors.items())


def test_all_dtypes_in_one_file_come_back(tmp_path: Path) -> None:
    tensors = {dtype: example(dtype, (3,)) for dtype in DTYPES}
    wf.save(tensors, tmp_path / "file")
    loaded = wf.load(tmp_path / "file")
    assert all(same(loaded[name], x) for name, x in tensors.items())


def test_special_numbers_keep_their_bits(tmp_path: Path) -> None:
    x = wf.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    wf.save({"x": x}, tmp_path / "file")
    assert same(wf.load(tmp_path / "file")["x"], x)


def test_a_transposed_tensor_is_written_in_order(tmp_path: Path) -> None:
    x = wf.arange(6).reshape(2, 3).T
    wf.save({"x": x}, tmp_path / "file")
    assert wf.load(tmp_path / "file")["x"].tolist() == [[0, 3], [1, 4], [2, 5]]


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers()), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(TREES)
@settings(max_examples=50, deadline=None)
def test_any_tree_of_values_comes_back(tree: Any) -> None:
    with TemporaryDirectory() as folder:
        wf.save(tree, Path(folder) / "file")
        assert wf.load(Path(folder) / "file") == tree


def test_a_tree_with_tensors_comes_back(tmp_path: Path) -> None:
    tree = {"net": [wf.ones(2), {"b": wf.zeros(1)}], "net.0": wf.full((1,), 5.0), "step": 3}
    wf.save(tree, tmp_path / "file")
    loaded = wf.load(tmp_path / "file")
    assert loaded["net"][0].tolist() == [1.0, 1.0]
    assert loaded["net"][1]["b"].tolist() == [0.0]
    assert loaded["net.0"].tolist() == [5.0]
    assert loaded["step"] == 3


def test_metadata_is_kept(tmp_path: Path) -> None:
    wf.save({"x": wf.ones(1)}, tmp_path / "file", metadata={"epoch": "3", "ünï": "çödé"})
    tree, metadata = wf.load(tmp_path / "file", metadata=True)
    assert metadata == {"epoch": "3", "ünï": "çödé"}
    assert list(tree) == ["x"]


def test_a_module_is_saved_by_its_state(tmp_path: Path) -> None:
    net = wf.nn.Linear(3, 2)
    wf.save(net, tmp_path / "file")
    assert same(wf.load(tmp_path / "file")["weight"], net.weight.detach())


def test_what_was_loaded_can_be_trained_and_the_file_stays(tmp_path: Path) -> None:
    wf.save({"w": wf.ones(100_000)}, tmp_path / "file")
    before = (tmp_path / "file").read_bytes()
    w = wf.load(tmp_path / "file")["w"].requires_grad_(True)
    optimizer = wf.optim.SGD([w], lr=0.25)
    step = wf.jit(lambda w, optimizer: optimizer.minimize((w * w).sum()))
    for _ in range(3):
        step(w, optimizer)
    assert w[0].item() == 0.125
    assert (tmp_path / "file").read_bytes() == before


def test_a_file_that_is_mapped_may_be_replaced(tmp_path: Path) -> None:
    wf.save({"x": wf.ones(10_000)}, tmp_path / "file")
    old = wf.load(tmp_path / "file")["x"]
    wf.save({"x": wf.zeros(10)}, tmp_path / "file")
    assert old.sum().item() == 10_000
    assert wf.load(tmp_path / "file")["x"].shape == (10,)


def test_a_failed_save_leaves_the_old_file_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wf.save({"x": wf.ones(3)}, tmp_path / "file")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(wf.ArgumentError, match="No space left") as caught:
        wf.save({"x": wf.zeros(3)}, tmp_path / "file")
    assert "unchanged" in caught.value.note
    assert wf.load(tmp_path / "file")["x"].tolist() == [1.0, 1.0, 1.0]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_saved_file_has_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    wf.save({"x": wf.ones(3)}, tmp_path / "file")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == stat.S_IMODE(
        (tmp_path / "plain").stat().st_mode
    )


# Damage. Each takes the bytes of a good file and spoils them.


def with_header(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def spoil(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        text = json.dumps(change(header) or header).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + length :]

    return spoil


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "too few"),
    "seven bytes": (lambda data: data[:7], "too few"),
    "within the header": (lambda data: data[:20], "within its header"),
    "elements cut": (lambda data: data[:-1], "cut off"),
    "elements added": (lambda data: data + b"x", "belong to nothing"),
    "another format": (lambda data: b"PK\x03\x04" + b"\xff" * 100, "another format"),
    "no JSON": (lambda data: (16).to_bytes(8, "little") + b"{" * 16, "not JSON"),
    "not text": (lambda data: (8).to_bytes(8, "little") + b"\xff" * 8, "not JSON"),
    "a long header": (
        lambda data: (60_000_000).to_bytes(8, "little") + b" " * 60_000_000,
        "said to have 60000000 bytes",
    ),
    "a dtype that is none": (
        with_header(lambda h: h["a"].update(dtype=[])),
        "there is no dtype for",
    ),
    "too many axes": (with_header(lambda h: h["a"].update(shape=[2] + [1] * 99)), "no tensor has"),
    "a huge empty shape": (
        with_header(lambda h: h["a"].update(shape=[0, 1 << 61, 1 << 61], data_offsets=[0, 0])),
        "no tensor has",
    ),
    "a deep tree": (
        with_header(lambda h: {**h, "__metadata__": {"weft.tree": '["list", [' * 5000}}),
        "own notes",
    ),
    "a whole deep tree": (
        with_header(
            lambda h: {
                **h,
                "__metadata__": {"weft.tree": '["list",[' * 900 + '["value",1]' + "]]" * 900},
            }
        ),
        "own notes",
    ),
    "a value that is none": (
        with_header(lambda h: {**h, "__metadata__": {"weft.tree": '["value", {"a": 1}]'}}),
        "own notes",
    ),
    "complex parts of nothing": (
        with_header(lambda h: {**h, "__metadata__": {"weft.complex": "[[1]]"}}),
        "own notes",
    ),
    "deep JSON": (lambda data: (99999).to_bytes(8, "little") + b"[" * 99999, "not JSON"),
    "a list": (lambda data: (8).to_bytes(8, "little") + b"[]      ", "not a JSON object"),
    "a name twice": (
        lambda data: data.replace(b'"b":{"dtype"', b'"a":{"dtype"'),
        "a name stands twice",
    ),
    "no dtype": (with_header(lambda h: h["a"].pop("dtype") and None), "no dtype"),
    "negative size": (with_header(lambda h: h["a"].update(shape=[-2, -1])), "not sizes"),
    "size as text": (with_header(lambda h: h["a"].update(shape=["2"])), "not sizes"),
    "huge size": (with_header(lambda h: h["a"].update(shape=[1 << 70])), "not sizes"),
    "another shape": (with_header(lambda h: h["a"].update(shape=[3])), "not its shape's size"),
    "overlap": (with_header(lambda h: h["b"].update(data_offsets=[0, 8])), "overlap"),
    "hole": (
        with_header(lambda h: h["b"].update(data_offsets=[12, 20])),
        "leave a hole",
    ),
    "metadata": (with_header(lambda h: {**h, "__metadata__": {"x": 1}}), "not text"),
    "tree": (
        with_header(lambda h: {**h, "__metadata__": {"weft.tree": '["tensor", "c"]'}}),
        "own notes",
    ),
    "tree of nonsense": (
        with_header(lambda h: {**h, "__metadata__": {"weft.tree": "7"}}),
        "own notes",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    spoil, reason = DAMAGE[name]
    path = tmp_path / "file"
    wf.save({"a": wf.ones(2), "b": wf.zeros(2)}, path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises((wf.ArgumentError, wf.UnsupportedError)) as caught:
        wf.load(path)
    assert reason in caught.value.problem
    assert str(path) in caught.value.got


@pytest.mark.slow
@given(st.integers(0, 200), st.integers(0, 255))
@settings(max_examples=100, deadline=None)
def test_one_wrong_byte_never_crashes(place: int, value: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        wf.save({"a": wf.ones(2), "b": [wf.zeros(2), 3]}, path)
        data = bytearray(path.read_bytes())
        data[place % len(data)] = value
        path.write_bytes(data)
        with contextlib.suppress(wf.WeftError):
            wf.load(path)


def test_a_file_that_is_cut_off_after_it_was_read_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "file"
    wf.save({"x": wf.ones(100_000), "y": wf.zeros(3)}, path)
    loaded = wf.load(path)
    os.truncate(path, 10)
    assert loaded["x"].sum().item() == 100_000
    assert loaded["x"]._value.base is not loaded["y"]._value.base  # each can be freed by itself


def test_devices_pipes_and_folders_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.symlink("/dev/zero", tmp_path / "device")
    for name, kind in {"pipe": "a pipe", "device": "a device", ".": "a folder"}.items():
        with pytest.raises(wf.ArgumentError, match=f"could not be read: it is {kind}"):
            wf.load(tmp_path / name)
        with pytest.raises(wf.ArgumentError, match="could not be written: this is no file"):
            wf.save({"x": wf.ones(1)}, tmp_path / name)
    assert os.path.islink(tmp_path / "device")


def test_a_link_to_a_file_stays_one(tmp_path: Path) -> None:
    os.symlink(tmp_path / "real", tmp_path / "link")
    wf.save({"x": wf.ones(1)}, tmp_path / "link")
    assert os.path.islink(tmp_path / "link")
    assert wf.load(tmp_path / "real")["x"].tolist() == [1.0]


def test_trees_without_end_are_refused(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep: Any = 1
    for _ in range(50_000):
        deep = {"a": deep}
    for tree in (endless, deep):
        with pytest.raises(wf.ArgumentError, match="nested more than"):
            wf.save(tree, tmp_path / "file")
    nested: Any = wf.ones(1)
    for _ in range(150):
        nested = [nested]
    wf.save(nested, tmp_path / "file")
    assert repr(wf.load(tmp_path / "file")) == repr(nested)


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(wf.ArgumentError, match="too much beside the tensors"):
        wf.save({"text": "x" * (1 << 24)}, tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_elements_of_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    wf.save({"a": wf.ones(2)}, path)
    path.write_bytes(with_header(lambda h: h["a"].update(dtype="F8_E4M3"))(path.read_bytes()))
    with pytest.raises(wf.UnsupportedError, match="no dtype"):
        wf.load(path)


@pytest.mark.parametrize(
    ("tree", "problem"),
    [({"x": object()}, "cannot be written"), ({(1, 2): 3}, "neither text"), ({1.5}, "cannot be")],
)
def test_values_that_have_no_place_in_a_file_are_refused(
    tree: Any, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(wf.ArgumentTypeError) as caught:
        wf.save(tree, tmp_path / "file")
    assert problem in caught.value.problem
    assert not (tmp_path / "file").exists()


def test_wrong_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(wf.ArgumentError, match="could not be written"):
        wf.save({"x": wf.ones(1)}, tmp_path / "missing" / "file")
    with pytest.raises(wf.ArgumentError, match="could not be read"):
        wf.load(tmp_path / "missing")
    with pytest.raises(wf.ArgumentError, match="could not be read"):
        wf.load(tmp_path)
    with pytest.raises(wf.ArgumentTypeError, match="metadata is text"):
        wf.save({"x": wf.ones(1)}, tmp_path / "file", metadata={"epoch": 3})  # type: ignore[dict-item]


# The other implementation of the format.


def test_the_safetensors_package_reads_our_files(tmp_path: Path) -> None:
    theirs = pytest.importorskip("safetensors.numpy")
    tensors = {d: example(d) for d in DTYPES if d not in ("bfloat16", "complex64", "complex128")}
    wf.save(tensors, tmp_path / "file", metadata={"a": "b"})
    loaded = theirs.load_file(tmp_path / "file")
    assert loaded.keys() == tensors.keys()
    for name, x in tensors.items():
        np.testing.assert_array_equal(loaded[name], x.numpy())


def test_we_read_files_of_the_safetensors_package(tmp_path: Path) -> None:
    theirs = pytest.importorskip("safetensors.numpy")
    arrays = {"odd": np.arange(3, dtype="i1"), "wide": np.arange(4.0), "zero": np.array(7, "i4")}
    theirs.save_file(arrays, str(tmp_path / "file"), metadata={"format": "np"})
    loaded, metadata = wf.load(tmp_path / "file", metadata=True)
    assert metadata == {"format": "np"}
    for name, expected in arrays.items():
        np.testing.assert_array_equal(loaded[name].numpy(), expected)
        assert loaded[name].numpy().dtype == expected.dtype


def test_both_understand_bfloat16_alike(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("safetensors.torch")
    theirs.save_file({"x": torch.tensor([1.5, -2.25]).bfloat16()}, str(tmp_path / "file"))
    assert same(wf.load(tmp_path / "file")["x"], wf.tensor([1.5, -2.25]).astype("bfloat16"))


def test_the_state_of_the_generator_is_saved_and_goes_on(tmp_path: Path) -> None:
    wf.random.seed(3)
    wf.random.normal((5,))
    wf.save({"random": wf.random.get_state()}, tmp_path / "run.safetensors")
    expected = wf.random.normal((3,)).tolist()
    wf.random.set_state(wf.load(tmp_path / "run.safetensors")["random"])
    assert wf.random.normal((3,)).tolist() == expected


def test_a_named_tuple_is_refused_with_the_tuple_to_save(tmp_path: Path) -> None:
    pair = wf.topk(wf.tensor([1.0, 3.0]), 1)
    with pytest.raises(wf.ArgumentTypeError, match=r"tuple\(value\)"):
        wf.save({"pair": pair}, tmp_path / "pair.safetensors")
