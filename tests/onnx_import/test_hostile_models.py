"""Models from strangers: an error or a result, soon, in little memory; never a crash."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.nightly import NIGHTLY
from tests.onnx_import.mutations import inputs_of, mutate, seed_models, spoil_input

import weft as wf

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper

CASES = int(os.environ.get("WEFT_FUZZ_CASES", "10000" if NIGHTLY else "300"))
SEED = int(os.environ.get("WEFT_FUZZ_SEED", "0"))
LONGEST_SECONDS = 30.0
MOST_KILOBYTES = 1_500_000


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    """A few gigabytes of addresses beyond those in use: what asks for more fails at once."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (3 << 30), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits on memory")
@pytest.mark.usefixtures("bounded_memory")
def test_spoilt_models_are_refused_or_run() -> None:
    cases = [
        (case.name, (Path(case.model_dir) / "model.onnx").read_bytes(), inputs_of(case))
        for case in seed_models()
    ]
    assert len(cases) > 40
    ran = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(CASES):
        rng = np.random.default_rng([SEED, number])
        name, content, inputs = cases[number % len(cases)]
        started = time.perf_counter()
        ran += loads_and_runs(rng, mutate(rng, content), inputs)
        assert time.perf_counter() - started < LONGEST_SECONDS, (name, number)
    assert ran > CASES // 50  # else the mutations are too coarse to say anything
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < MOST_KILOBYTES


def loads_and_runs(rng: np.random.Generator, content: bytes, inputs: list[Any]) -> bool:
    """Whether a model runs; what it raises must be an error of Weft's."""
    try:
        net = wf.onnx.load(content, largest=1 << 24, most_steps=200)
        with wf.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = [spoil_input(rng, x) if isinstance(x, np.ndarray) else x for x in inputs]
            net(*given)
    except wf.WeftError:
        return False
    return True


# --- external data -------------------------------------------------------------------------------


def write_model(folder: Path, location: str, offset: str = "0", length: str = "8") -> Path:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", 1, [2])],
            [helper.make_tensor_value_info("y", 1, [2])],
            [external_tensor(location, offset, length)],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def external_tensor(location: str, offset: str, length: str) -> Any:
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[2], data_location=1)
    for key, value in {"location": location, "offset": offset, "length": length}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def test_external_data_beside_the_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\0" * 4 + np.array([1, 2], np.float32).tobytes())
    net = wf.onnx.load(write_model(tmp_path, "weights.bin", "4"))
    assert net(wf.zeros(2)).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "location",
    ["../weights.bin", "/etc/passwd", "a/../../weights.bin", "link.bin", "folder/weights.bin",
     "C:\\weights.bin", "..\\weights.bin", "", "weights\0.bin", ".", "pipe"],
)  # fmt: skip
def test_external_data_never_leaves_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    outside = tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    for place in (tmp_path, outside):
        (place / "weights.bin").write_bytes(b"\0" * 8)
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    (folder / "folder").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    with pytest.raises(wf.ArgumentError):
        wf.onnx.load(write_model(folder, location))


@pytest.mark.parametrize(
    ("offset", "length"), [("0", "9"), ("4", "8"), ("-4", "8"), ("9" * 30, "8"), ("x", "8")]
)
def test_external_data_beyond_its_file_is_refused(tmp_path: Path, offset: str, length: str) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\0" * 8)
    with pytest.raises(wf.ArgumentError, match="external"):
        wf.onnx.load(write_model(tmp_path, "weights.bin", offset, length))


def test_external_data_needs_a_folder(tmp_path: Path) -> None:
    content = write_model(tmp_path, "weights.bin").read_bytes()
    with pytest.raises(wf.ArgumentError, match="not read from one"):
        wf.onnx.load(content)


# --- files that ask for too much -----------------------------------------------------------------


def model_of(text: str) -> Any:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18, "own" : 1]>\n{text}')


def refusal(text: str, *inputs: Any, **limits: int) -> wf.WeftError:
    with pytest.raises(wf.WeftError) as caught:
        wf.onnx.load(model_of(text), **limits)(*inputs)
    return caught.value


def test_a_tensor_of_more_elements_than_bytes_is_refused() -> None:
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[2**40, 2**20], raw_data=b"1234")
    graph = helper.make_graph([], "g", [], [helper.make_tensor_value_info("w", 1, None)], [tensor])
    with pytest.raises(wf.ArgumentError, match="takes"):
        wf.onnx.load(helper.make_model(graph))


@pytest.mark.parametrize(
    "node",
    ["Expand(x, n)", "ConstantOfShape(n)", "Tile(x, n)", "RandomNormal<shape=[1099511627776]>()",
     "Pad(x, pads)"],
)  # fmt: skip
def test_a_value_larger_than_allowed_is_refused(node: str) -> None:
    sizes = "int64[1] n = {1099511627776}, int64[2] pads = {0, 1099511627776}"
    error = refusal(f"g (float[1] x) => (float[?] y) <{sizes}> {{ y = {node} }}", wf.ones(1))
    assert "node" in error.op
    assert error.fix


def test_a_loop_without_end_is_stopped() -> None:
    text = """g (float[1] x) => (float[1] y) <bool yes = {1}, int64 n = {9223372036854775807}> {
        y = Loop (n, yes, x) <body = step (int64 i, bool c, float[1] v) => (bool d, float[1] w) {
            d = Identity(c)
            w = Add(v, v)
        }>
    }"""
    error = refusal(text, wf.ones(1), most_steps=50)
    assert "50 steps" in error.problem


def test_a_cycle_is_refused_with_the_node() -> None:
    error = refusal("g (float[1] x) => (float[1] y) { y = Add(x, z)  z = Add(x, y) }")
    assert "nothing computes before" in error.problem
    assert "cycle" in error.fix


def test_functions_that_call_themselves_or_explode_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weft.onnx.importing.program.MOST_NODES", 1000)
    itself = """g (float[1] x) => (float[1] y) { y = own.f(x) }
    <domain: "own", opset_import: ["" : 18, "own" : 1]> f (a) => (b) { b = own.f(a) }"""
    assert "calls itself" in refusal(itself).problem
    parts = ["g (float[1] x) => (float[1] y) { y = own.f0(x) }"]
    for i in range(40):  # two to the fortieth nodes
        inner = f"c = own.f{i + 1}(a)  b = own.f{i + 1}(c)" if i < 39 else "b = Neg(a)"
        header = '<domain: "own", opset_import: ["" : 18, "own" : 1]>'
        parts.append(f"{header} f{i} (a) => (b) {{ {inner} }}")
    assert "too many nodes" in refusal("\n".join(parts)).problem


def nested_model(depth: int) -> bytes:
    """A choice inside of a choice, and so on, written byte by byte."""

    def encode(number: int, content: bytes) -> bytes:
        size, lengths = len(content), b""
        while size > 127:
            lengths, size = lengths + bytes([size & 127 | 128]), size >> 7
        return bytes([number << 3 | 2]) + lengths + bytes([size]) + content

    leaf = encode(1, encode(1, b"x") + encode(2, b"y") + encode(4, b"Identity"))
    leaf += encode(12, encode(1, b"y"))
    graph = leaf
    for _ in range(depth):
        branches = [(b"then_branch", graph), (b"else_branch", leaf)]
        attributes = [
            encode(5, encode(1, name) + encode(6, inner) + b"\xa0\x01\x05")
            for name, inner in branches
        ]
        node = encode(1, b"c") + encode(2, b"y") + encode(4, b"If") + b"".join(attributes)
        graph = encode(1, node) + encode(12, encode(1, b"y"))
    for name, kind in (("c", 9), ("x", 1)):
        info = helper.make_tensor_value_info(name, kind, [])
        graph += encode(11, info.SerializeToString())
    return encode(7, graph) + encode(8, b"\x10\x12")  # version 18 of the operators


def test_graphs_in_graphs_are_run_or_refused() -> None:
    assert wf.onnx.load(nested_model(20))(wf.tensor(True), wf.tensor(2.0)).item() == 2.0
    for depth in (40, 300):
        with pytest.raises(wf.ArgumentError, match=r"Depth|deep"):
            wf.onnx.load(nested_model(depth))


@pytest.mark.parametrize(
    "node",
    ["Split<num_outputs=1099511627776>(x)", "LRN<size=1099511627776>(x)",
     "MaxPool<kernel_shape=[1099511627776]>(x)", "Dropout(x)",
     'MaxPool<kernel_shape=[1099511627776], auto_pad="SAME_UPPER">(x)',
     "AveragePool<kernel_shape=[2], pads=[1099511627776, 0]>(x)",
     "Col2Im<dilations=[1]>(x, huge, huge)"],
)  # fmt: skip
@pytest.mark.skipif(sys.platform != "linux", reason="needs limits on memory")
@pytest.mark.usefixtures("bounded_memory")
def test_large_attributes_cost_no_memory(node: str) -> None:
    sizes = "int64[1] huge = {1099511627776}"
    text = f"g (float[1, 4, 8] x) => (float[?, ?, ?] y) <{sizes}> {{ y = {node} }}"
    started = time.perf_counter()
    with contextlib.suppress(wf.WeftError):
        wf.onnx.load(model_of(text))(wf.ones((1, 4, 8)))
    assert time.perf_counter() - started < LONGEST_SECONDS


def test_counts_outside_of_a_table_are_refused() -> None:
    text = """g (int64[3] x) => (float[1] y) {
        y = TfIdfVectorizer<mode="TF", min_gram_length=1, max_gram_length=2, max_skip_count=0,
            ngram_counts=[-9223372036854775808, 0], ngram_indexes=[0], pool_int64s=[1, 2]>(x)
    }"""
    assert "ngram_counts" in refusal(text, wf.tensor([1, 2, 3])).problem


def test_an_unknown_operator_is_told_with_node_and_fix() -> None:
    error = refusal("g (float[1] x) => (float[1] y) { [here] y = Frobnicate(x) }")
    assert isinstance(error, wf.UnsupportedError)
    assert "here" in error.got
    assert "Frobnicate" in error.problem
    assert error.fix


def test_strings_are_refused_with_a_reason() -> None:
    error = refusal("g (string[1] x) => (string[1] y) { y = Identity(x) }")
    assert "strings" in error.problem


def test_what_is_no_model_is_refused() -> None:
    for content in (b"", b"{}", b"\x80\x04pickle", os.urandom(100)):
        with pytest.raises(wf.ArgumentError):
            wf.onnx.load(content)
    with pytest.raises(wf.ArgumentTypeError):
        wf.onnx.load(7)


def test_wrong_attributes_are_refused_when_the_file_is_read() -> None:
    assert (
        "kind" in refusal('g (float[1] x) => (float[1] y) { y = Softmax<axis="one">(x) }').problem
    )
    tensor = numpy_helper.from_array(np.ones(3, np.float32), "w")
    tensor.dims[0] = 5
    graph = helper.make_graph([], "g", [], [helper.make_tensor_value_info("w", 1, None)], [tensor])
    with pytest.raises(wf.ArgumentError, match="bytes"):
        wf.onnx.load(helper.make_model(graph))
