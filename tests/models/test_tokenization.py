"""Tokenizers: the files of published models, hard strings with known tokens, and the way back."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import models
from weft.models.merging import merge_pieces
from weft.models.tokenization import byte_letters
from weft.models.unicode import portable_pattern

TABLES = Path(__file__).parents[3] / "shared" / "datasets" / "tokenizers"
here = pytest.mark.skipif(not TABLES.exists(), reason="the tables are not here")


def cases(name: str) -> list[tuple[str, list[int]]]:
    texts = (TABLES / f"{name}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = (TABLES / f"{name}.out").read_text().split("\n")
    return [(text, [*map(int, line.split())]) for text, line in zip(texts, lines, strict=True)]


def gpt2_tables() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary and the merges that its ranks stand for."""
    lines = gzip.decompress((TABLES / "r50k_base.tiktoken.gz").read_bytes()).split(b"\n")
    ranks = {base64.b64decode(a): int(b) for a, b in (line.split() for line in lines if line)}

    def written(piece: bytes) -> str:
        return "".join(byte_letters()[byte] for byte in piece)

    def merge(piece: bytes, limit: int) -> tuple[str, str]:
        def rank(a: bytes, b: bytes) -> float | None:
            found = ranks.get(a + b, limit)
            return found if found < limit else None

        left, right = merge_pieces([piece[i : i + 1] for i in range(len(piece))], rank)
        return written(left), written(right)

    merges = [merge(piece, rank) for piece, rank in ranks.items() if len(piece) > 1]
    return {written(piece): rank for piece, rank in ranks.items()}, merges


@pytest.mark.slow
@here
def test_hard_strings_have_gpt2s_tokens(tmp_path: Path) -> None:
    vocabulary, merges = gpt2_tables()
    end = {"id": 50256, "content": "<|endoftext|>", "special": True}
    data = {
        "added_tokens": [end],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = models.read_tokenizer(tmp_path / "tokenizer.json")
    for text, tokens in cases("gpt-2"):
        assert tokenizer.encode(text).tolist() == tokens, text
        assert tokenizer.decode(tokens) == text
    assert tokenizer.encode("a<|endoftext|>").tolist() == [64, 50256]
    assert tokenizer.vocabulary_size == 50257


@here
def test_hard_strings_have_berts_tokens(tmp_path: Path) -> None:
    words = gzip.decompress((TABLES / "bert_uncased_vocab.txt.gz").read_bytes()).decode()
    vocabulary = {word: token for token, word in enumerate(words.rstrip("\n").split("\n"))}
    normal = {"type": "BertNormalizer", "lowercase": True, "handle_chinese_chars": True}
    data = {"normalizer": normal, "model": {"type": "WordPiece", "vocab": vocabulary}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = models.read_tokenizer(tmp_path / "tokenizer.json")
    for text, tokens in cases("bert-bge"):
        assert tokenizer.encode(text).tolist() == tokens, text
    assert tokenizer.decode(tokenizer.encode("embeddings work")) == "embeddings work"


def pieces_file(path: Path) -> Path:
    """A small tokenizer as Llama 2's: pieces with a sign for blanks, and bytes."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    names = ["<unk>", "<s>", "</s>", *bytes_, "▁", "a", "b", "▁a", "ab", "▁ab"]
    vocabulary = {name: token for token, name in enumerate(names)}
    merges = ["▁ a", "a b", "▁a b", "▁ ab"]
    model = {"type": "BPE", "byte_fallback": True, "vocab": vocabulary, "merges": merges}
    added = [{"id": i, "content": names[i], "special": True} for i in range(3)]
    path.write_text(json.dumps({"added_tokens": added, "model": model}))
    return path


def test_pieces_are_joined_by_rank_and_unknown_letters_become_bytes(tmp_path: Path) -> None:
    tokenizer = models.read_tokenizer(pieces_file(tmp_path / "tokenizer.json"))
    first = 3 + 256
    assert tokenizer.encode("ab b").tolist() == [first + 5, first, first + 2]
    assert tokenizer.encode("é").tolist() == [first, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.encode("<s>ab").tolist() == [1, first + 5]
    for text in ("ab b", "é a", "b"):
        assert tokenizer.decode([1, *tokenizer.encode(text)]) == text


def test_a_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    letters = {letter: token for token, letter in enumerate(byte_letters())}
    words = {"[PAD]": 0, "[UNK]": 1, "a": 2, "##b": 3}
    made: list[Any] = [
        models.ByteLevelTokenizer(letters | {"ab": 256}, [("a", "b")], {"<end>": 257}),
        models.WordPieceTokenizer(words),
        models.read_tokenizer(pieces_file(tmp_path / "pieces.json")),
    ]
    for tokenizer in made:
        tokenizer.save(tmp_path / "saved.json")
        again = type(tokenizer).load(tmp_path / "saved.json")
        assert again.encode("ab").tolist() == tokenizer.encode("ab").tolist()
        assert again.vocabulary_size == tokenizer.vocabulary_size


def test_a_token_that_is_not_there_is_refused() -> None:
    letters = {letter: token for token, letter in enumerate(byte_letters())}
    for tokenizer in (models.ByteLevelTokenizer(letters, []), models.PieceTokenizer([b"a"], [0.0])):
        with pytest.raises(wf.BoundsError, match="not in the vocabulary"):
            tokenizer.decode([256])


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for text in ("{", "[]", "{}", json.dumps({"model": {"type": "BPE", "vocab": {}}})):
        path.write_text(text)
        with pytest.raises((wf.ArgumentError, wf.UnsupportedError)):
            models.read_tokenizer(path)
    path.write_text(json.dumps({"model": {"type": "Unigram", "vocab": []}}))
    with pytest.raises(wf.UnsupportedError, match="no code for a tokenizer of the kind Unigram"):
        models.read_tokenizer(path)


def test_a_long_text_is_joined_as_by_the_plain_rule(rng: np.random.Generator) -> None:
    ranks = {("a", "b"): 0, ("ab", "a"): 1, ("b", "b"): 2, ("aba", "bb"): 3, ("a", "a"): 4}
    for _ in range(50):
        text = ["ab"[i] for i in rng.integers(0, 2, 30)]
        parts = list(text)
        while True:  # the best pair, the leftmost of equals, until there is none
            found = [(ranks[p], i) for i, p in enumerate(zip(parts, parts[1:])) if p in ranks]  # noqa: B905, RUF007
            if not found:
                break
            _, at = min(found)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        assert merge_pieces(text, lambda a, b: ranks.get((a, b))) == parts


def test_llama_3s_pattern_can_be_read() -> None:
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    found = [match[0] for match in portable_pattern(pattern).finditer("It's 12345 naïve!!\n\n  ok")]
    assert found == ["It", "'s", " ", "123", "45", " naïve", "!!\n\n", " ", " ok"]
