"""Where data come from: tables, text, images, databases, and what a broken file is told."""

from __future__ import annotations

import gzip
import os
import pickle
import sqlite3
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.data import transforms

import weft as wf
from weft import data
from weft.data import (
    ByteTokenizer,
    CharacterTokenizer,
    CSVRows,
    DataLoader,
    SQLRows,
    TextLines,
    TokenWindows,
    from_csv,
    read_csv,
    read_idx,
    read_sql,
    tokenize_file,
)
from weft.data.optional import require

DATASETS = Path(os.environ.get("WEFT_DATASETS", Path(__file__).parents[3] / "shared" / "datasets"))

TABLE = """name, size,count,big,ok
"a, b",1.5,1,9007199254740993,true
c,NA,2,-1,False
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return path


def test_a_csv_file_gives_typed_columns(table: Path) -> None:
    found = read_csv(table)
    assert found["name"].tolist() == ["a, b", "c"]
    np.testing.assert_array_equal(found["size"], np.array([1.5, np.nan], np.float32))
    assert found["big"].tolist() == [9007199254740993, -1]
    assert found["ok"].tolist() == [True, False]
    kinds = {name: str(column.dtype) for name, column in found.items()}
    assert list(kinds.values()) == ["<U4", "float32", "int64", "int64", "bool"]


def test_columns_types_and_fillings_are_chosen(table: Path) -> None:
    found = read_csv(
        table,
        columns=["count", "size"],
        dtypes={"count": "float64", "size": "float64"},
        fill={"size": -1},
    )
    assert list(found) == ["count", "size"]
    assert found["size"].tolist() == [1.5, -1.0]
    assert found["count"].dtype == np.float64


def test_a_compressed_file_without_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv.gz"
    path.write_bytes(gzip.compress(b"note\n1;2\n\n3;4\n"))
    found = read_csv(path, header=False, delimiter=";", skip_rows=1)
    assert {name: column.tolist() for name, column in found.items()} == {"0": [1, 3], "1": [2, 4]}
    named = read_csv(path, header=["x", "y"], delimiter=";", skip_rows=1)
    assert named["y"].tolist() == [2, 4]


def test_numbers_read_from_csv_are_those_written(tmp_path: Path, rng: np.random.Generator) -> None:
    numbers = rng.normal(size=(200, 3)) * 10.0 ** rng.integers(-20, 20, (200, 3))
    path = tmp_path / "numbers.csv"
    np.savetxt(path, numbers, delimiter=",", header="a,b,c", comments="", fmt="%.17g")
    found = read_csv(path, dtypes=dict.fromkeys("abc", "float64"))
    np.testing.assert_array_equal(np.stack(list(found.values()), axis=1), numbers)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a,b\n1,2\n3\n", {}, ["line 3 has 1 cells", "2 cells"]),
        ("a,b\n1,x\n", {"dtypes": {"b": "int64"}}, ["column 'b'", "row 0: 'x'", "int64"]),
        ("a,b\n1,\n", {"dtypes": {"b": "int64"}}, ["row 0: ''", "fill="]),
        ("a,b\n1,2\n", {"columns": ["c"]}, ["no column 'c'", "a, b"]),
        ("a,b\n1,maybe\n", {"dtypes": {"b": "bool"}}, ["row 0: 'maybe'"]),
        ("", {}, ["empty"]),
    ],
)
def test_a_broken_table_is_told_where(
    tmp_path: Path, text: str, options: dict[str, Any], words: list[str]
) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(text)
    with pytest.raises(wf.WeftError) as caught:
        read_csv(path, **options)
    assert all(word in str(caught.value) for word in words)


def test_a_table_becomes_inputs_and_target(table: Path) -> None:
    inputs, target = from_csv(table, target="ok", inputs=["count", "big"])[1]
    assert (inputs.tolist(), bool(target)) == ([2.0, -1.0], False)
    with pytest.raises(wf.ArgumentError, match="'name'"):
        from_csv(table, target="ok")


def test_rows_stream_from_a_csv_file(table: Path) -> None:
    rows = list(CSVRows(table, columns=["count", "size"], dtypes={"size": "float32"}))
    assert rows[0] == {"count": "1", "size": 1.5}
    assert np.isnan(rows[1]["size"])
    with pytest.raises(wf.ArgumentError, match="'name'"):
        list(CSVRows(table, dtypes={"name": "int64"}))


# Text.


def test_lines_are_read_without_loading_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes("eins\r\nzwölf\n\nlast".encode())
    lines = TextLines(path)
    assert list(lines) == ["eins", "zwölf", "", "last"]
    copied = pickle.dumps(lines)
    assert b"eins" not in copied
    assert list(pickle.loads(copied)) == list(lines)
    path.write_bytes(b"")
    assert len(TextLines(path)) == 0
    path.write_bytes(b"fine\n\xff\n")
    with pytest.raises(wf.ArgumentError, match=r"it is no text in UTF-8: line 2") as caught:
        TextLines(path)[1]
    assert str(path) in caught.value.got


def test_tokenizers_return_the_text_and_survive_a_file(tmp_path: Path) -> None:
    text = "to be, or nöt 🙂"
    path = tmp_path / "tokenizer.json"
    for tokenizer in (CharacterTokenizer.from_text(text), ByteTokenizer()):
        tokens = tokenizer.encode(text)
        assert tokens.dtype == np.int64
        assert tokens.max() < tokenizer.vocabulary_size
        assert tokenizer.decode(tokens) == text
        tokenizer.save(path)
        again = type(tokenizer).load(path)
        np.testing.assert_array_equal(again.encode(text), tokens)
    with pytest.raises(wf.ArgumentError, match="does not hold such a tokenizer"):
        CharacterTokenizer.load(path)
    path.write_text("{")
    with pytest.raises(wf.ArgumentError, match="does not hold"):
        ByteTokenizer.load(path)


def test_what_is_not_in_a_vocabulary_is_named() -> None:
    tokenizer = CharacterTokenizer("ab")
    with pytest.raises(wf.ArgumentError) as caught:
        tokenizer.encode("abxa")
    assert caught.value.got == "text[2]: 'x'"
    with pytest.raises(wf.BoundsError):
        tokenizer.decode([0, 2])
    for vocabulary, unknown in (("aa", None), ("", None), ("ab", "?")):
        with pytest.raises(wf.ArgumentError, match="vocabulary"):
            CharacterTokenizer(vocabulary, unknown=unknown)


def test_windows_give_each_token_once_and_its_successor() -> None:
    windows = TokenWindows(np.arange(23, dtype=np.uint8), length=5)
    assert len(windows) == 4
    inputs = np.concatenate([x for x, _ in windows])
    np.testing.assert_array_equal(inputs, np.arange(20))
    assert all((y == x + 1).all() and x.dtype == np.int64 for x, y in windows)
    assert len(TokenWindows(np.arange(23), 5, stride=1)) == 18
    batch = windows.gather(np.array([3, 1]))
    np.testing.assert_array_equal(batch[1], np.stack([windows[3][1], windows[1][1]]))
    with pytest.raises(wf.ArgumentError, match="too few tokens"):
        TokenWindows(np.arange(5), 5)


def test_a_text_file_is_tokenised_on_disk(tmp_path: Path) -> None:
    text = data.sets.load_shakespeare().test
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    tokenizer = CharacterTokenizer.from_text(text)
    tokens = tokenize_file(path, tokenizer)
    np.testing.assert_array_equal(tokens[:], tokenizer.encode(text))
    assert tokens.dtype == np.uint8
    assert tokenize_file(path, ByteTokenizer())[:5].tobytes() == text[:5].encode()
    inputs, targets = next(iter(DataLoader(TokenWindows(tokens, 32), 4, shuffle=True)))
    assert inputs.shape == targets.shape == (4, 32)
    assert inputs[:, 1:].tolist() == targets[:, :-1].tolist()


def test_byte_pairs_are_learnt_and_kept(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    text = data.sets.load_shakespeare().test[:20000]
    tokenizer = data.BytePairTokenizer.train([text], 400, special=["<end>"])
    tokens = tokenizer.encode(text)
    assert tokenizer.vocabulary_size == 400
    assert len(tokens) < 0.7 * len(text)
    assert tokenizer.decode(tokens) == text
    tokenizer.save(tmp_path / "tokenizer.json")
    again = data.BytePairTokenizer.load(tmp_path / "tokenizer.json")
    np.testing.assert_array_equal(again.encode(text), tokens)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(tokenizer)).encode(text), tokens)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(wf.ArgumentError, match="does not hold"):
        data.BytePairTokenizer.load(tmp_path / "tokenizer.json")


# IDX, images.


def idx(array: np.ndarray, kind: int) -> bytes:
    heading = struct.pack(">BBBB", 0, 0, kind, array.ndim)
    return heading + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize(("kind", "dtype"), [(8, ">u1"), (11, ">i2"), (12, ">i4"), (13, ">f4")])
def test_idx_files_are_read(tmp_path: Path, kind: int, dtype: str) -> None:
    array = np.arange(12).reshape(2, 3, 2).astype(dtype)
    plain, packed = tmp_path / "a-idx3", tmp_path / "a-idx3.gz"
    plain.write_bytes(idx(array, kind))
    packed.write_bytes(gzip.compress(idx(array, kind)))
    for path in (plain, packed):
        found = read_idx(path)
        np.testing.assert_array_equal(found, array)
        assert found.dtype.isnative


@pytest.mark.parametrize("content", [b"", b"PNG!....", idx(np.zeros(4, "u1"), 8)[:-1], b"\0\0\x08"])
def test_a_broken_idx_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken"
    path.write_bytes(content)
    with pytest.raises(wf.ArgumentError) as caught:
        read_idx(path)
    assert "broken" in caught.value.got
    (tmp_path / "broken.gz").write_bytes(b"not gzip")
    with pytest.raises(wf.ArgumentError, match="decompressed"):
        read_idx(tmp_path / "broken.gz")


def test_mnist_is_read_when_it_is_there() -> None:
    folder = DATASETS / "mnist"
    if not folder.exists():
        pytest.skip("no MNIST here")
    digits = data.from_idx(
        folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz"
    )
    image, label = digits[0]
    assert (len(digits), image.shape, label) == (10000, (1, 28, 28), 7)
    assert (image.dtype, image.min(), image.max()) == (np.float32, 0.0, 1.0)


def test_images_in_folders_have_the_class_of_their_folder(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for name, value in (("cat", 0), ("dog", 255)):
        (tmp_path / name).mkdir()
        for number in range(2):
            pixels = np.full((4, 6, 3), value, np.uint8)
            pixels[..., 2] = 51
            pillow.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    images = data.ImageFolder(tmp_path)
    assert (images.classes, len(images)) == (["cat", "dog"], 4)
    image, label = images[2]
    assert (image.shape, label) == ((3, 4, 6), 1)
    np.testing.assert_allclose(image[:, 0, 0], [1.0, 1.0, 0.2])
    assert data.ImageFolder(tmp_path, size=(8, 2), mode="L")[0][0].shape == (1, 8, 2)
    (tmp_path / "cat" / "1.png").write_bytes(b"half a file")
    with pytest.raises(wf.ArgumentError) as caught:
        list(images)
    assert "1.png" in caught.value.got


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(wf.ArgumentError, match="no images"):
        data.ImageFolder(tmp_path)


# Databases, Arrow, Hugging Face.


@pytest.fixture
def database(tmp_path: Path) -> str:
    path = str(tmp_path / "rows.db")
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE points (id INTEGER, x REAL, kind TEXT)")
    rows = [(i, None if i == 3 else i / 2, f"k{i % 2}") for i in range(10)]
    connection.executemany("INSERT INTO points VALUES (?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path


QUERY = "SELECT id, x FROM points WHERE id >= ? ORDER BY id"


def test_rows_of_a_database_stream_in_order(database: str) -> None:
    rows = SQLRows(transforms.Connect(database), QUERY, [4], fetch=2)
    assert [row["id"] for row in rows] == [row["id"] for row in rows] == [4, 5, 6, 7, 8, 9]
    here, there = (
        [
            (batch["id"].tolist(), batch["x"].tolist())
            for batch in DataLoader(rows, 4, num_workers=n)
        ]
        for n in (0, 1)
    )
    assert here == there == [([4, 5, 6, 7], [2.0, 2.5, 3.0, 3.5]), ([8, 9], [4.0, 4.5])]


def test_a_query_becomes_columns(database: str) -> None:
    connection = transforms.Connect(database)()
    found = read_sql(connection, "SELECT * FROM points ORDER BY id")
    assert found["id"].dtype == np.int64
    assert np.flatnonzero(np.isnan(found["x"])).tolist() == [3]
    assert found["kind"].tolist()[:2] == ["k0", "k1"]
    with pytest.warns(UserWarning, match="ORDER BY"):
        read_sql(connection, "SELECT id FROM points")
    with pytest.raises(sqlite3.OperationalError) as caught:
        read_sql(connection, "SELECT nothing FROM points ORDER BY id")
    assert "SELECT nothing" in caught.value.__notes__[0]
    connection.close()


def test_parquet_and_arrow_files_give_columns(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"x": [1.5, None, 2.5], "n": [1, 2, 3], "s": ["a", "b", "c"], "v": [[1, 2]] * 3}
    table = pyarrow.table(columns)
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    with pyarrow.ipc.new_file(str(tmp_path / "t.arrow"), table.schema) as writer:
        writer.write_table(table)
    for found in (
        data.read_parquet(tmp_path / "t.parquet"),
        data.read_arrow(tmp_path / "t.arrow"),
        data.from_arrow(table),
    ):
        assert (found["n"].tolist(), found["s"].tolist()) == ([1, 2, 3], ["a", "b", "c"])
        np.testing.assert_array_equal(found["x"], [1.5, np.nan, 2.5])
        assert found["v"].shape == (3, 2)
    rows = list(data.ParquetRows(tmp_path / "t.parquet", columns=["n", "s"], fetch=2))
    assert rows[2] == {"n": 3, "s": "c"}
    with pytest.raises(wf.ArgumentError, match="no column 'z'"):
        data.read_parquet(tmp_path / "t.parquet", columns=["z"])
    with pytest.raises(wf.ArgumentError, match="missing cells"):
        data.from_arrow(pyarrow.table({"s": ["a", None]}))


def test_hugging_face_datasets_give_items_and_streams() -> None:
    datasets = pytest.importorskip("datasets")
    source = datasets.Dataset.from_dict(
        {"tokens": [[1, 2], [3, 4]], "label": [0, 1], "t": ["a", "b"]}
    )
    for dataset in (source, source.to_iterable_dataset()):
        loaded = data.from_huggingface(dataset, columns=["tokens", "label"])
        batch = next(iter(DataLoader(loaded, 2)))
        assert batch["tokens"].tolist() == [[1, 2], [3, 4]]
        assert batch["label"].tolist() == [0, 1]
    with pytest.raises(wf.ArgumentError, match="no column 'z'"):
        data.from_huggingface(source, columns=["z"])


def test_a_dictionary_of_datasets_is_refused_with_the_fix() -> None:
    class DatasetDict(dict[str, Any]):
        """As of Hugging Face: datasets by the names of their splits."""

        column_names: ClassVar = {"train": ["x"]}

    with pytest.raises(wf.ArgumentTypeError) as caught:
        data.from_huggingface(DatasetDict(train=[{"x": 1}]), columns=["x"])
    assert caught.value.fix == "wf.data.from_huggingface(dataset['train'])"


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(wf.UnsupportedError) as caught:
        require("weft_no_such_package", "no-such-package", "read_nothing")
    assert caught.value.fix == "pip install no-such-package"
