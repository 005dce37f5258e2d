"""WordPiece: words, then the longest known beginnings of what is left of them; BERT's.

>>> from weft.models.wordpiece import WordPieceTokenizer
>>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "play", "##ing", "!"]
>>> tokenizer = WordPieceTokenizer({word: token for token, word in enumerate(words)})
>>> tokenizer.encode("Playing!").tolist(), tokenizer.batch(["play", "playing!"])[0].tolist()
([4, 5, 6], [[2, 4, 3, 0, 0], [2, 4, 5, 6, 3]])
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.tokenizers import Tokenizer, Tokens
from weft.models.pieces import token_of_piece

CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
"""Blocks of characters that are each a word; BERT's own list."""


class WordPieceTokenizer(Tokenizer):
    """Pieces of words by their longest known beginning; a word that has none is unknown."""

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        lowercase: bool = True,
        strip_accents: bool | None = None,
        chinese: bool = True,
        prefix: str = "##",
        longest: int = 100,
        unknown: str = "[UNK]",
    ) -> None:
        self.vocabulary, self.lowercase, self.chinese = dict(vocabulary), lowercase, chinese
        self.strip_accents = lowercase if strip_accents is None else strip_accents
        self.prefix, self.longest, self.unknown = prefix, longest, unknown
        self._words = {token: word for word, token in self.vocabulary.items()}
        if not all(isinstance(part, str) for part in (prefix, unknown)) or type(longest) is not int:
            raise wf.ArgumentTypeError(
                "WordPieceTokenizer",
                "prefix and unknown are texts, and longest is a number",
                expected='prefix="##", unknown="[UNK]", longest=100',
                got={"prefix": prefix, "unknown": unknown, "longest": longest},
                fix="leave them out",
            )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The tokenizer of a parsed `tokenizer.json`."""
        model, normal = data["model"], data.get("normalizer") or {}
        if normal and normal.get("type") != "BertNormalizer":
            raise ValueError(f"normalizer {normal.get('type')}")
        return cls(
            model["vocab"],
            normal.get("lowercase", False),
            normal.get("strip_accents"),
            normal.get("handle_chinese_chars", False),
            model.get("continuing_subword_prefix", "##"),
            model.get("max_input_chars_per_word", 100),
            model.get("unk_token", "[UNK]"),
        )

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest token."""
        return 1 + max(self.vocabulary.values())

    def encode(self, text: str) -> Tokens:
        """The pieces of a text, without the tokens at its ends."""
        tokens = [token for word in self._split_words(text) for token in self._word_tokens(word)]
        return np.array(tokens, np.int64)

    def batch(self, texts: Sequence[str], longest: int = 512) -> tuple[wf.Tensor, wf.Tensor]:
        """Tokens [batch, time] with [CLS], [SEP] and padding, and a mask that is 0 for padding."""
        begin, end = self._token("[CLS]"), self._token("[SEP]")
        rows = [[begin, *self.encode(text)[: longest - 2].tolist(), end] for text in texts]
        time = max(map(len, rows), default=0)
        tokens = np.full((len(rows), time), self._token("[PAD]"), np.int64)
        mask = np.zeros_like(tokens)
        for number, row in enumerate(rows):
            tokens[number, : len(row)], mask[number, : len(row)] = row, 1
        return wf.asarray(tokens), wf.asarray(mask)

    def decode(self, tokens: Sequence[int] | npt.NDArray[Any]) -> str:
        """Words with blanks between them; what encoding dropped, such as case, is not restored."""
        words: list[str] = []
        for token in np.asarray(tokens).reshape(-1).tolist():
            word = self._words.get(token, self.unknown)
            if words and word.startswith(self.prefix):
                words[-1] += word.removeprefix(self.prefix)
            else:
                words.append(word)
        return " ".join(words)

    def _token(self, word: str) -> int:
        return token_of_piece(self.vocabulary, word)

    def _split_words(self, text: str) -> list[str]:
        """Normalised words and marks."""
        clean = "".join(self._clean_characters(text))
        if self.strip_accents:
            parts = unicodedata.normalize("NFD", clean)
            clean = "".join(c for c in parts if unicodedata.category(c) != "Mn")
        clean = clean.lower() if self.lowercase else clean
        spaced = "".join(f" {c} " if _is_mark(c) else c for c in clean)
        return spaced.split()

    def _clean_characters(self, text: str) -> Iterator[str]:
        """Characters without control codes, all blanks alike, Chinese ones set apart."""
        for c in text:
            if c in "\t\n\r" or c.isspace():
                yield " "
            elif c not in "\0\ufffd" and unicodedata.category(c)[0] != "C":
                yield f" {c} " if self.chinese and _is_chinese(c) else c

    def _word_tokens(self, word: str) -> list[int]:
        unknown = [self._token(self.unknown)]
        if len(word) > self.longest:
            return unknown
        tokens, start = [], 0
        while start < len(word):
            prefix = self.prefix if start else ""
            ends = range(len(word), start, -1)
            end = next((e for e in ends if prefix + word[start:e] in self.vocabulary), None)
            if end is None:
                return unknown
            tokens.append(self.vocabulary[prefix + word[start:end]])
            start = end
        return tokens

    def _settings(self) -> dict[str, Any]:
        names = (
            "vocabulary", "lowercase", "strip_accents", "chinese", "prefix", "longest", "unknown",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    @classmethod
    def _from_settings(cls, settings: dict[str, Any]) -> Self:
        return cls(**settings)


def _is_chinese(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in CHINESE)


def _is_mark(character: str) -> bool:
    """Punctuation: Unicode's, and all of ASCII's signs."""
    is_sign = character.isascii() and character.isprintable() and not character.isalnum()
    return (is_sign and character != " ") or unicodedata.category(character).startswith("P")
