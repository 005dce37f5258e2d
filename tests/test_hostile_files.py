"""Every format that is read here, spoilt in many ways: equal data, or an error, soon.

`WEFT_FUZZ_CASES` says how many cases of each format are tried, `WEFT_FUZZ_SEED` from where.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import struct
import time
import zipfile
import zlib
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.hostile import spoilt
from tests.models.test_pretrained import (
    BERT,
    GPT2,
    LLAMA,
    bert_shapes,
    drawn,
    gpt2_shapes,
    llama_shapes,
)
from tests.models.test_pretrained import write as write_model
from tests.test_torch_files import WEIGHT
from tests.test_torch_files import archive as torch_archive
from tests.test_torch_files import tensor as torch_view

import weft as wf
from weft import data, models
from weft.cli.commands import _read_array
from weft.cli.configuration import _read as read_toml
from weft.cli.mistakes import Mistake
from weft.graph.files import CHECKSUM, OPERATIONS, TEXT, checksum
from weft.models.tokenization import byte_letters
from weft.runtime.cache import DiskCache, entry_key
from weft.train.checkpoints import CheckpointFolder, _manifest_checksum
from weft.train.loggers import JSONLogger
from weft.train.png import encode

pytestmark = pytest.mark.slow

CASES = int(os.environ.get("WEFT_FUZZ_CASES", "60"))
SEED = int(os.environ.get("WEFT_FUZZ_SEED", "0"))
LONGEST_SECONDS = 20.0
MOST_KILOBYTES = 700_000
REFUSALS = (wf.WeftError, OSError, Mistake)


@dataclass(frozen=True)
class Format:
    """How a good file is made, which file of a folder is spoilt, and how it is read."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    exact: bool = False
    """Whether what is read must be what was written, or refused."""
    sign: Callable[[bytes], bytes] | None = None
    """Puts right the checksum of a spoilt file, as whoever means harm would."""


def plain(value: Any) -> Any:
    """What can be compared with ==."""
    if isinstance(value, wf.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


# --- tensors, checkpoints, graphs ----------------------------------------------------------------

TREE = {"w": wf.ones((3, 2)), "moments": [wf.zeros(2, dtype="complex64"), 7, "text"], "n": (0.5,)}


def make_tree(folder: Path) -> Path:
    wf.save(TREE, folder / "tree.safetensors", {"note": "hello"})
    return folder / "tree.safetensors"


def make_torch_file(folder: Path) -> Path:
    view = torch_view(WEIGHT, 0, (2, 3), (3, 1))
    tree = {"w": view, "steps": 7, "names": ["a", "b"]}
    return torch_archive(folder / "a.pt", tree, [WEIGHT])


def make_checkpoint(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        tensors = {"model": {"w": wf.ones((3, 2)), "b": wf.zeros(3)}, "state": {"m": wf.ones(2)}}
        facts = {"step": 3, "epoch": 1, "state": {"ema": {"$tensor": "m"}, "loss": [0.5, 2]}}
        return CheckpointFolder(folder).save(tensors, facts) / name

    return make


def read_checkpoint(path: Path) -> Any:
    found = CheckpointFolder(path.parents[1]).load(path.parent)
    noted = {name: value for name, value in found.facts.items() if name != "files"}
    return noted, found.tensors, found.state("ema")


def signed_manifest(content: bytes) -> bytes:
    try:
        manifest = json.loads(content)
        manifest["checksum"] = _manifest_checksum(manifest)
        return json.dumps(manifest).encode()
    except (ValueError, TypeError, RecursionError):
        return content


def make_graph(folder: Path) -> Path:
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None, 2), name="x")
        w = wf.Variable(np.arange(6.0, dtype=np.float32).reshape(2, 3), name="w")
        wf.debug.print("x is {:.2f}", x)
        y = wf.cond(wf.sum(x) > 0.0, lambda x: wf.tanh(x @ w), lambda x: x @ w * 2.0, x)
        wf.graph.identity(y, name="y")
        w.assign(w * 2.0)
    graph.save(folder / "graph.weft")
    return folder / "graph.weft"


def read_graph(path: Path) -> Any:
    graph = wf.Graph.load(path)
    try:
        with redirect_stdout(io.StringIO()), wf.Session(graph) as session:
            return session.run("y", {"x": np.ones((1, 2))})
    except KeyError as error:  # a graph without y
        raise wf.GraphError("test", str(error), expected="", got={}, fix="") from None


def sign_graph(path: Path, part: str) -> Callable[[bytes], bytes]:
    def sign(content: bytes) -> bytes:
        tensors, notes = wf.load(path, metadata=True)
        notes[part] = content.decode("utf-8", "replace")
        notes[CHECKSUM] = checksum(notes, tensors)
        other = path.with_name("other.weft")
        wf.save(tensors, other, notes)
        return other.read_bytes()

    return sign


# --- models and tokenizers -----------------------------------------------------------------------


def make_model(config: dict[str, Any], shapes: Any, name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        weights = drawn(shapes(), np.random.default_rng(0))
        write_model(folder, config, weights)
        index = {"weight_map": dict.fromkeys(weights, "model.safetensors")}
        if name.endswith("index.json"):
            (folder / name).write_text(json.dumps(index))
        return folder / name

    return make


def read_model(path: Path) -> Any:
    net = models.load_pretrained(path.parent).net
    return net(wf.tensor([[1, 2, 3]]))


LETTERS = {letter: token for token, letter in enumerate(byte_letters())}
TOKENIZERS: dict[str, dict[str, Any]] = {
    "byte level": {
        "added_tokens": [{"content": "<end>", "id": 300}],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": r"\p{L}+|\s+"}},
                {"type": "ByteLevel", "add_prefix_space": False},
            ],
        },
        "model": {"type": "BPE", "vocab": LETTERS | {"ab": 256}, "merges": ["a b"]},
    },
    "word pieces": {
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "model": {
            "type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1, "##b": 2}, "unk_token": "[UNK]"
        },
    },
    "pieces": {
        "added_tokens": [{"content": "<s>", "id": 1}],
        "model": {
            "type": "BPE", "byte_fallback": True,
            "vocab": {"<unk>": 0, "<s>": 1, "a": 3, "b": 4, "ab": 5}, "merges": ["a b"],
        },
    },
}  # fmt: skip


def make_tokenizer(kind: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZERS[kind]))
        return folder / "tokenizer.json"

    return make


def read_tokenizer(path: Path) -> Any:
    return models.read_tokenizer(path).encode("ab ab").tolist()


def saved_by(tokenizer: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        tokenizer.save(folder / "tokenizer.json")
        return folder / "tokenizer.json"

    return make


def make_llama2c(folder: Path) -> Path:
    sizes = (8, 12, 1, 2, 2, 5, 4)  # width, hidden, layers, heads, shared, vocabulary, context
    count = 5 * 8 + 8 + 4 * 64 + 8 + 3 * 96 + 8 + 4 * 4
    values = np.linspace(-1, 1, count, dtype="<f4")
    (folder / "model.bin").write_bytes(struct.pack("<7i", *sizes) + values.tobytes())
    return folder / "model.bin"


def make_llama2c_tokenizer(folder: Path) -> Path:
    pieces = [b"<unk>", b"<s>", b"</s>", b"a", b"b", b"ab"]
    content = struct.pack("<i", 5)
    for number, piece in enumerate(pieces):
        content += struct.pack("<fi", -number, len(piece)) + piece
    (folder / "tokenizer.bin").write_bytes(content)
    return folder / "tokenizer.bin"


# --- data ----------------------------------------------------------------------------------------


def make_bytes(name: str, content: Callable[[], bytes]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content())
        return folder / name

    return make


IDX = struct.pack(">BBBB2I", 0, 0, 8, 2, 3, 4) + bytes(range(12))
CSV = b'rooms,price,city,ok\n3,1.5,Bern,true\n4,,Ulm,false\n5,2.5,"a, b",true\n'


def make_arrow(folder: Path) -> Path:
    package = pytest.importorskip("pyarrow")
    table = package.table({"x": [1.0, 2.0, None], "s": ["a", "b", "c"], "v": [[1], [2], [3]]})
    with package.ipc.new_file(str(folder / "rows.arrow"), table.schema) as file:
        file.write_table(table)
    return folder / "rows.arrow"


def make_parquet(folder: Path) -> Path:
    package = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = package.table({"x": [1.0, 2.0, None], "s": ["a", "b", "c"], "v": [[1], [2], [3]]})
    parquet.write_table(table, folder / "rows.parquet")
    return folder / "rows.parquet"


def array_bytes(packed: bool) -> bytes:
    file = io.BytesIO()
    array = np.arange(12, dtype=np.float64).reshape(3, 4)
    if packed:
        np.savez_compressed(file, array)
    else:
        np.save(file, array)
    return file.getvalue()


# --- the rest ------------------------------------------------------------------------------------

KEY = entry_key(b"a kernel")
TOML = b'epochs = 3\nfolder = "run"\n[set]\nlr = 0.01\nsizes = [1, [2, 3], {a = 1}]\n'
LOG = b'{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n{"step": 3}\n'


class Stopped:
    """A trainer that goes on after its second step."""

    step = 2


def read_log(path: Path) -> str:
    JSONLogger(path).on_fit_begin(Stopped())
    return path.read_text(encoding="utf-8", errors="replace")


def make_entry(folder: Path) -> Path:
    DiskCache(folder / "cache").put(KEY, b"machine code")
    return next(path for path in (folder / "cache").iterdir() if path.name == KEY)


def read_entry(path: Path) -> bytes:
    found = DiskCache(path.parent).get(KEY)
    if found is None:
        raise OSError("absent")
    return found


def read_image(path: Path) -> Any:
    pytest.importorskip("PIL.Image")
    return data.images.read_image(path)


FORMATS: dict[str, Format] = {
    "torch": Format(make_torch_file, wf.load),
    "tensors": Format(make_tree, wf.load),
    "checkpoint tensors": Format(make_checkpoint("model.safetensors"), read_checkpoint, exact=True),
    "checkpoint manifest": Format(make_checkpoint("manifest.json"), read_checkpoint, exact=True),
    "signed manifest": Format(
        make_checkpoint("manifest.json"), read_checkpoint, sign=signed_manifest
    ),
    "graph": Format(make_graph, read_graph, exact=True),
    "llama config": Format(make_model(LLAMA, llama_shapes, "config.json"), read_model),
    "gpt2 config": Format(make_model(GPT2, gpt2_shapes, "config.json"), read_model),
    "bert config": Format(make_model(BERT, bert_shapes, "config.json"), read_model),
    "index": Format(make_model(LLAMA, llama_shapes, "model.safetensors.index.json"), read_model),
    "llama2.c model": Format(make_llama2c, models.load_llama2c),
    "llama2.c tokenizer": Format(make_llama2c_tokenizer, models.load_llama2c_tokenizer),
    **{f"tokenizer.json of {kind}": Format(make_tokenizer(kind), read_tokenizer)
       for kind in TOKENIZERS},
    "characters": Format(
        saved_by(data.CharacterTokenizer("abc?", unknown="?")), data.CharacterTokenizer.load
    ),
    "saved byte level": Format(
        saved_by(models.ByteLevelTokenizer(LETTERS | {"ab": 256}, [("a", "b")])),
        models.ByteLevelTokenizer.load,
    ),
    "saved pieces": Format(
        saved_by(models.PieceTokenizer([b"a", b"b", b"ab"], [0.0, -1.0, -2.0])),
        models.PieceTokenizer.load,
    ),
    "idx": Format(make_bytes("a-idx2", lambda: IDX), data.read_idx),
    "packed idx": Format(make_bytes("a-idx2.gz", lambda: gzip.compress(IDX)), data.read_idx),
    "csv": Format(make_bytes("a.csv", lambda: CSV), data.read_csv),
    "packed csv": Format(make_bytes("a.csv.gz", lambda: gzip.compress(CSV)), data.read_csv),
    "csv rows": Format(make_bytes("a.csv", lambda: CSV), lambda path: list(data.CSVRows(path))),
    "text": Format(make_bytes("a.txt", lambda: CSV), lambda path: list(data.TextLines(path))),
    "arrow": Format(make_arrow, data.read_arrow),
    "parquet": Format(make_parquet, data.read_parquet),
    "parquet rows": Format(make_parquet, lambda path: list(data.ParquetRows(path))),
    "image": Format(make_bytes("a.png", lambda: encode(np.eye(9, dtype=np.uint8))), read_image),
    "array": Format(make_bytes("a.npy", lambda: array_bytes(False)), _read_array),
    "packed array": Format(make_bytes("a.npz", lambda: array_bytes(True)), _read_array),
    "numbers": Format(make_bytes("a.csv", lambda: b"1,2.5\n3,4\n"), _read_array),
    "settings": Format(make_bytes("run.toml", lambda: TOML), read_toml),
    "log": Format(make_bytes("log.json", lambda: LOG), read_log),
    "cache entry": Format(make_entry, read_entry, exact=True),
}  # fmt: skip


def try_cases(form: Format, path: Path, good: bytes, cases: int) -> None:
    expected = plain(form.read(path))
    for case in range(cases):
        rng = np.random.default_rng([SEED, case])
        content = spoilt(rng, good)
        path.write_bytes(form.sign(content) if form.sign else content)
        begun = time.perf_counter()
        try:
            found = form.read(path)
        except REFUSALS:
            found = None
        except BaseException as error:
            path.with_name("failed").write_bytes(content)
            told = f"case {case} of seed {SEED}: {error!r}\n{content[:400]!r}"
            raise AssertionError(told) from error
        took = time.perf_counter() - begun
        assert took < LONGEST_SECONDS, f"case {case} of seed {SEED} took {took:.1f} s"
        if form.exact and found is not None:
            assert plain(found) == expected, f"case {case} of seed {SEED}: {content[:400]!r}"


def most_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMATS)
def test_a_spoilt_file_is_read_as_it_was_or_refused(name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    path = form.make(tmp_path)
    before = most_memory()
    try_cases(form, path, path.read_bytes(), CASES)
    assert most_memory() - before < MOST_KILOBYTES


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", [TEXT, OPERATIONS])
def test_a_graph_that_was_written_to_do_harm_is_refused(part: str, tmp_path: Path) -> None:
    path = make_graph(tmp_path)
    kept = tmp_path / "kept" / "graph.weft"
    kept.parent.mkdir()
    kept.write_bytes(path.read_bytes())
    _, notes = wf.load(path, metadata=True)
    form = Format(make_graph, read_graph, sign=sign_graph(kept, part))
    before = most_memory()
    try_cases(form, path, notes[part].encode(), CASES)
    assert most_memory() - before < MOST_KILOBYTES


PROGRAMS = [
    str(wf.ir.trace(lambda x: wf.scan(lambda c, y: (c + y, wf.sin(c)), x[0], x),
                    wf.spec("float32", (4, 3)))),
    str(wf.ir.trace(lambda x: wf.einsum("ij,kj->ik", x, x[::2]).sum(axis=0)[None] + wf.pi,
                    wf.spec("float64", ("rows", 3)))),
    str(wf.ir.trace(lambda x: wf.concat([x, wf.tensor([[True, False]])]), wf.spec("bool", (2, 2)))),
]  # fmt: skip


@pytest.mark.parametrize("text", PROGRAMS)
def test_a_spoilt_program_is_a_program_or_refused(text: str) -> None:
    for case in range(CASES):
        rng = np.random.default_rng([SEED, case])
        spoilt_text = spoilt(rng, text.encode()).decode("utf-8", "replace")
        begun = time.perf_counter()
        try:
            str(wf.ir.parse(spoilt_text))
        except wf.WeftError:
            pass
        except BaseException as error:
            told = f"case {case} of seed {SEED}: {error!r}\n{spoilt_text[:600]}"
            raise AssertionError(told) from error
        assert time.perf_counter() - begun < LONGEST_SECONDS


# --- what was made to fill the memory, or to take forever ----------------------------------------


def packed_zeros(megabytes: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    block = bytes(1 << 20)
    return b"".join([packer.compress(block) for _ in range(megabytes)]) + packer.flush()


def png_of(width: int, height: int) -> bytes:
    good = encode(np.eye(2, dtype=np.uint8))
    head = b"IHDR" + struct.pack(">II", width, height) + good[24:29]
    return good[:12] + head + struct.pack(">I", zlib.crc32(head)) + good[33:]


def npz_of_zeros(megabytes: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(megabytes << 20))
    return file.getvalue()


def npy_of(shape: str) -> bytes:
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(8)


def constant_parquet(path: Path) -> None:
    package, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zeros = package.array(np.zeros(1 << 23, np.int8))
    names = [f"c{number}" for number in range(20)]
    table = package.table(dict.fromkeys(names, zeros))
    parquet.write_table(table, path, compression="zstd")


BOMBS: dict[str, tuple[str, Callable[[], bytes], Callable[[Path], Any], str]] = {
    "idx": ("a.gz", lambda: packed_zeros(80), data.read_idx, "it unpacks to more than"),
    "one line": ("a.csv.gz", lambda: packed_zeros(80), data.read_csv, "characters|unpacks"),
    "many rows": (
        "a.csv.gz", lambda: gzip.compress(b"a,b\n" + b"0,0\n" * (17 << 20), 9), data.read_csv,
        "it unpacks to more than",
    ),
    "long text": (
        "a.csv", lambda: b"a\n" + b"x\n" * 100_000 + b"y" * 100_000 + b"\n", data.read_csv,
        "one text is so long",
    ),
    "image": ("a.png", lambda: png_of(60_000, 60_000), data.images.read_image, "cannot be read"),
    "archive": ("a.npz", lambda: npz_of_zeros(80), _read_array, "it unpacks to"),
    "array": ("a.npy", lambda: npy_of("(1 << 40,)".replace("1 << 40", str(1 << 40))), _read_array,
              "do not hold"),
    "array of nothing": ("a.npy", lambda: npy_of(f"(0, {1 << 62}, {1 << 62})"), _read_array,
                         "cannot be read"),
    "settings": ("a.toml", lambda: b"x = " + b"[" * 100_000, read_toml, "is not TOML"),
    "number": ("a.toml", lambda: b"x = " + b"1" * 5000, read_toml, "is not TOML"),
    "long settings": ("a.toml", lambda: b"#" * (2 << 20), read_toml, "cannot be read"),
    "vocabulary": (
        "a.json", lambda: b'{"kind": "CharacterTokenizer", "vocabulary": ' + b"[" * 100_000,
        data.CharacterTokenizer.load, "nested too deeply|does not hold",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BOMBS)
def test_what_unpacks_to_more_than_it_should_is_refused(name: str, tmp_path: Path) -> None:
    file, content, read, reason = BOMBS[name]
    (tmp_path / file).write_bytes(content())
    before = most_memory()
    with pytest.raises(REFUSALS, match=reason) as caught:
        read(tmp_path / file)
    assert str(tmp_path / file) in str(caught.value)
    assert most_memory() - before < MOST_KILOBYTES


def test_a_column_that_stands_for_far_more_than_its_file_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    constant_parquet(path)
    with pytest.raises(wf.ArgumentError, match="it unpacks to far more") as caught:
        data.read_parquet(path)
    assert "ParquetRows" in caught.value.fix
    assert len(data.read_parquet(path, columns=[])) == 0
    assert next(iter(data.ParquetRows(path, columns=["c0"])))["c0"] == 0


READERS: dict[str, Callable[[Path], Any]] = {
    "load": wf.load,
    "Graph.load": wf.Graph.load,
    "read_idx": data.read_idx,
    "read_csv": data.read_csv,
    "CSVRows": lambda path: list(data.CSVRows(path)),
    "TextLines": data.TextLines,
    "tokenize_file": lambda path: data.tokenize_file(path, data.CharacterTokenizer("ab")),
    "read_image": data.images.read_image,
    "read_arrow": data.read_arrow,
    "read_parquet": data.read_parquet,
    "ParquetRows": lambda path: list(data.ParquetRows(path)),
    "tokenizer": data.CharacterTokenizer.load,
    "tokenizer.json": models.read_tokenizer,
    "llama2c": models.load_llama2c,
    "llama2c tokenizer": models.load_llama2c_tokenizer,
    "settings": read_toml,
    "array": lambda path: _read_array(path.rename(path.with_suffix(".npy"))),
    "log": read_log,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "missing"])
def test_every_reader_takes_files_alone(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "it"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    if kind == "missing" and name in ("log", "array"):
        return  # a log begins; the test itself moves the array
    with pytest.raises(REFUSALS) as caught:
        READERS[name](path)
    assert str(tmp_path) in str(caught.value)


def test_a_file_cut_off_under_a_mapping_is_told(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("line\n" * 100_000)
    lines = data.TextLines(path)
    tokens = data.tokenize_file(path, data.CharacterTokenizer("line\n"))
    windows = data.TokenWindows(tokens, 64)
    assert (lines[99_999], windows[0][0].shape) == ("line", (64,))
    kept = tokens[:4]
    os.truncate(path, 100)
    os.truncate(tokens.path, 0)
    assert kept.tolist() == [0, 1, 2, 3]
    for look in (
        lambda: lines[99_999], lambda: windows[5000], lambda: windows.gather(np.array([7000])),
        lambda: np.asarray(tokens), lambda: tokens[3],
    ):  # fmt: skip
        with pytest.raises(wf.ArgumentError, match="became shorter"):
            look()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"vocab_size": 1 << 23}, "larger than the weights"),
        ({"hidden_size": 1 << 22}, "larger than the weights"),
        ({"num_hidden_layers": 1 << 20}, "larger than the weights"),
        ({"intermediate_size": 1 << 23}, "larger than the weights"),
        ({"vocab_size": 1 << 40}, "is no size"),
        ({"vocab_size": -1}, "is no size"),
        ({"num_attention_heads": 0}, "is no size"),
        ({"num_attention_heads": 5}, "cannot be divided"),
        ({"num_key_value_heads": 3}, "cannot be divided"),
        ({"rms_norm_eps": "x"}, "is no number"),
        ({"rope_scaling": [1]}, "no code for"),
        ({"rope_scaling": {"rope_type": ["x"]}}, "no code for"),
        ({"model_type": ["llama"]}, "no network for"),
        ({"max_position_embeddings": 1 << 62}, "is no size"),
    ],
)
def test_sizes_without_weights_take_no_memory(change: Any, problem: str, tmp_path: Path) -> None:
    write_model(tmp_path, LLAMA | change, drawn(llama_shapes(), np.random.default_rng(0)))
    before = most_memory()
    with pytest.raises(wf.WeftError) as caught:
        models.load_pretrained(tmp_path)
    assert problem in caught.value.problem
    assert most_memory() - before < 100_000


def with_pattern(pattern: Any) -> dict[str, Any]:
    changed = json.loads(json.dumps(TOKENIZERS["byte level"]))
    changed["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern
    return changed  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$",
        r"(?:a*)*b",
        r"((a|b)*c*)+",
        r"(\p{L}+\s?)*x",
        r"(a{2,}){3,}",
        "(",
        "[",
        r"a{99999999999}",
        7,
    ],
)
def test_patterns_that_take_forever_or_are_none_are_refused(pattern: Any, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(with_pattern(pattern)))
    with pytest.raises(wf.ArgumentError, match="pattern of words"):
        models.read_tokenizer(path)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?i:'s|'t)|[^\r\n\p{L}]?\p{L}+|\s+(?!\S)|\s+",
        r"(?:ab+)?c",
        r"(a{1,3})+",
        r"[(+]+",
        r"\(+\)*",
    ],
)
def test_patterns_of_published_models_are_taken(pattern: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(with_pattern(pattern)))
    models.read_tokenizer(path)


@pytest.mark.parametrize("token", [1 << 40, -1, 1.5, "x", True])
def test_tokens_that_would_fill_the_memory_are_refused(token: Any, tmp_path: Path) -> None:
    for kind, made in TOKENIZERS.items():
        changed = json.loads(json.dumps(made))
        changed["model"]["vocab"]["zz"] = token
        (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
        with pytest.raises(wf.ArgumentError, match="damaged or of another kind"):
            models.read_tokenizer(tmp_path / "tokenizer.json")
            pytest.fail(kind)


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}]
    writers: dict[str, Callable[[Path], Any]] = {
        "tokenizer.json": data.CharacterTokenizer("ab").save,
        "plot.png": lambda path: wf.train.plot(history, path),
        "page.html": lambda path: wf.tools.show(
            wf.ir.trace(lambda x: x * 2, wf.spec("float32", (2,))), path
        ),
        "words.tokens": lambda path: data.tokenize_file(__file__, data.ByteTokenizer(), path),
        "log.json": lambda path: JSONLogger(path).on_fit_begin(Stopped()),
    }
    for name in writers:
        (tmp_path / name).write_bytes(b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for name, write in writers.items():
        with pytest.raises(wf.ArgumentError, match="No space left"):
            write(tmp_path / name)
        assert (tmp_path / name).read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(writers)
