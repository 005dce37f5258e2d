r"""Tokenizers of published models: `tokenizer.json` read without any other package.

Three kinds: byte pairs over bytes (GPT-2, Llama 3), pieces with a sign for blanks (Llama 2), and
WordPiece (BERT). `read_tokenizer(path)` finds out which.

>>> from weft.models.tokenization import ByteLevelTokenizer, byte_letters
>>> letters = {letter: token for token, letter in enumerate(byte_letters())}
>>> ByteLevelTokenizer(letters, []).encode("hi").tolist()
[104, 105]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from os import PathLike
from typing import Any, Self

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.tokenizers import Tokenizer, Tokens
from weft.files import read_json
from weft.models.merging import merge_pieces
from weft.models.pieces import PieceTokenizer, lookup, split_added, token_of_piece
from weft.models.unicode import portable_pattern
from weft.models.wordpiece import WordPieceTokenizer

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
BLANK = "\u2581"
MOST_TOKENS = 1 << 24


@cache
def byte_letters() -> list[str]:
    """A letter that can be seen for each byte, as GPT-2's files write them.

    >>> byte_letters()[ord("a")], byte_letters()[ord(" ")]
    ('a', 'Ġ')
    """
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = (code for code in range(256, 512))
    return [chr(byte if byte in shown else next(hidden)) for byte in range(256)]


class ByteLevelTokenizer(Tokenizer):
    """Byte pairs over the bytes of words: GPT-2's and Llama 3's.

    >>> vocabulary = {letter: i for i, letter in enumerate(byte_letters())} | {"hi": 256}
    >>> ByteLevelTokenizer(vocabulary, [("h", "i")]).encode("hi !").tolist()
    [256, 32, 33]
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        added: Mapping[str, int] | None = None,
        pattern: str = GPT2_PATTERN,
    ) -> None:
        self.vocabulary, self.added = dict(vocabulary), dict(added or {})
        self.pattern, self.merges = pattern, [(a, b) for a, b in merges]
        portable_pattern(pattern)  # refuses what is none
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        letters = {letter: byte for byte, letter in enumerate(byte_letters())}
        self._bytes = {
            token: bytes(letters[letter] for letter in piece)
            for piece, token in self.vocabulary.items()
            if all(letter in letters for letter in piece)
        }
        self._bytes |= {token: text.encode() for text, token in self.added.items()}
        self._known: dict[str, list[int]] = {}

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest token."""
        return 1 + max([*self.vocabulary.values(), *self.added.values()])

    def encode(self, text: str) -> Tokens:
        """The pieces of a text; names of added tokens, such as <|endoftext|>, are those tokens."""
        tokens: list[int] = []
        for part, special in split_added(text, self.added):
            if special is None:
                for match in portable_pattern(self.pattern).finditer(part):
                    tokens += self._word(match[0])
            else:
                tokens.append(special)
        return np.array(tokens, np.int64)

    def _word(self, word: str) -> list[int]:
        if word not in self._known:
            letters = [byte_letters()[byte] for byte in word.encode("utf-8", "replace")]
            pieces = merge_pieces(letters, lambda a, b: self._ranks.get((a, b)))
            self._known[word] = [token_of_piece(self.vocabulary, piece) for piece in pieces]
        return self._known[word]

    def decode(self, tokens: Sequence[int] | npt.NDArray[Any]) -> str:
        """The text of tokens; bytes that are no UTF-8 become the replacement character."""
        piece_bytes = [
            lookup(self._bytes, token) for token in np.asarray(tokens).reshape(-1).tolist()
        ]
        return b"".join(piece_bytes).decode("utf-8", errors="replace")

    def _settings(self) -> dict[str, Any]:
        names = ("vocabulary", "merges", "added", "pattern")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def _from_settings(cls, settings: dict[str, Any]) -> Self:
        return cls(**settings)


def read_tokenizer(path: str | PathLike[str]) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`."""
    data = read_json("read_tokenizer", path, "a tokenizer.json")
    try:
        model = data["model"]
        kind = model.get("type") or ("BPE" if "merges" in model else "unknown")
        added = {each["content"]: each["id"] for each in data.get("added_tokens") or ()}
        for tokens in (model["vocab"], added) if kind in ("BPE", "WordPiece") else ():
            _check_tokens(tokens)
        if kind == "WordPiece":
            return WordPieceTokenizer.from_json(data)
        if kind == "BPE" and model.get("byte_fallback"):
            return _piece_tokenizer(model, added)
        if kind == "BPE" and "ByteLevel" in json.dumps(data.get("pre_tokenizer")):
            return ByteLevelTokenizer(model["vocab"], _merges(model), added, _pattern(data))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        told = getattr(error, "problem", f"{type(error).__name__}: {error}")
        raise _unreadable_file(path, told) from error
    raise wf.UnsupportedError(
        "read_tokenizer",
        f"there is no code for a tokenizer of the kind {kind}",
        expected="byte pairs over bytes, byte pairs with byte_fallback, or WordPiece",
        got={"path": str(path)},
        fix="wf.data.BytePairTokenizer.load(path), with the package tokenizers",
    )


def _check_tokens(tokens: Any) -> None:
    """Refuse what are no numbers of pieces; a table is made as long as the largest."""
    numbers = list(tokens.values())
    if not all(type(token) is int and 0 <= token < MOST_TOKENS for token in numbers):
        raise ValueError(f"a vocabulary of other than numbers below {MOST_TOKENS}")
    if not all(isinstance(piece, str) for piece in tokens):
        raise ValueError("a vocabulary of other than texts")


def _merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs, which older files write as text."""
    pairs = [each.split(" ") if isinstance(each, str) else each for each in model["merges"]]
    return [(a, b) for a, b in pairs]


def _pattern(data: Mapping[str, Any]) -> str:
    """The pattern that words are found by: the file's own, or GPT-2's."""
    outer = data["pre_tokenizer"]
    steps = outer.get("pretokenizers", [outer])
    if any(step.get("add_prefix_space") for step in steps if step["type"] == "ByteLevel"):
        raise ValueError("add_prefix_space")
    patterns = [step["pattern"]["Regex"] for step in steps if step["type"] == "Split"]
    if patterns and not isinstance(patterns[0], str):
        raise ValueError("the pattern of words is no text")
    return patterns[0] if patterns else GPT2_PATTERN


def _piece_tokenizer(model: Mapping[str, Any], added: Mapping[str, int]) -> PieceTokenizer:
    """Llama 2's pieces: what is merged earlier has a higher score."""
    size = 1 + max(model["vocab"].values())
    pieces, scores = [b""] * size, [-1e9] * size
    for text, token in model["vocab"].items():
        pieces[token] = text.replace(BLANK, " ").encode()
    for rank, (a, b) in enumerate(_merges(model)):
        scores[model["vocab"][a + b]] = max(scores[model["vocab"][a + b]], -float(rank))
    return PieceTokenizer(pieces, scores, added.get("<s>", 1), added)


def _unreadable_file(path: Any, reason: str) -> wf.ArgumentError:
    return wf.ArgumentError(
        "read_tokenizer",
        f"the file is damaged or of another kind: {reason}",
        expected="a tokenizer.json",
        got={"path": str(path)},
        fix="copy the file again",
    )
