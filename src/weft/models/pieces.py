"""Pieces of text with blanks in them, and what all tokenizers here share.

>>> from weft.models.pieces import PieceTokenizer
>>> pieces = [b"<unk>", b"<s>", b"</s>", b" ", b"a", b"b", b" a", b" ab"]
>>> tokenizer = PieceTokenizer(pieces, [0, 0, 0, -9, -8, -7, -2, -1])
>>> tokenizer.encode("ab").tolist(), tokenizer.decode([1, 7, 5])
([7], 'abb')
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.tokenizers import Tokenizer, Tokens
from weft.models.merging import merge_pieces

BYTE_PIECE = re.compile(rb"<0x([0-9A-F]{2})>")


class PieceTokenizer(Tokenizer):
    """Pieces of a text with blanks in it, the one with the highest score first: Llama 2's.

    Pieces are bytes; those like <0x0A> stand for one byte. A text begins with a blank, which
    `decode` takes away again after the token `begin`.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        scores: Sequence[float],
        begin: int = 1,
        added: Mapping[str, int] | None = None,
    ) -> None:
        self.pieces, self.scores, self.begin = list(pieces), list(scores), begin
        self.added = dict(added or {})
        self._by_token = dict(enumerate(self.pieces))
        self._tokens = {piece: token for token, piece in reversed(self._by_token.items())}

    @property
    def vocabulary_size(self) -> int:
        """How many pieces there are."""
        return len(self.pieces)

    def encode(self, text: str) -> Tokens:
        """The pieces of a text, without the token that begins one."""
        tokens: list[int] = []
        for part, special in split_added(text, self.added):
            tokens += self._part(" " + part) if special is None else [special]
        return np.array(tokens, np.int64)

    def _part(self, text: str) -> list[int]:
        letters = [letter.encode("utf-8", "replace") for letter in text]
        pieces: list[bytes] = []
        for letter in letters:
            is_known = letter in self._tokens
            pieces += [letter] if is_known else [b"<0x%02X>" % byte for byte in letter]
        merged_pieces = merge_pieces(pieces, self._rank)
        return [self._tokens.get(piece, 0) for piece in merged_pieces]

    def _rank(self, a: bytes, b: bytes) -> float | None:
        token = self._tokens.get(a + b)
        return None if token is None else -self.scores[token]

    def decode(self, tokens: Sequence[int] | npt.NDArray[Any]) -> str:
        """The text of tokens; the tokens that begin and end one are not shown."""
        out: list[bytes] = []
        before = self.begin
        for token in np.asarray(tokens).reshape(-1).tolist():
            piece = lookup(self._by_token, token)
            if token not in (self.begin, self.begin + 1):
                byte = BYTE_PIECE.fullmatch(piece)
                shown = bytes([int(byte[1], 16)]) if byte else piece
                out.append(shown.removeprefix(b" ") if before == self.begin else shown)
            before = token
        return b"".join(out).decode("utf-8", errors="replace")

    def _settings(self) -> dict[str, Any]:
        pieces = [piece.decode("latin-1") for piece in self.pieces]
        rest = {"scores": self.scores, "begin": self.begin, "added": self.added}
        return {"pieces": pieces} | rest

    @classmethod
    def _from_settings(cls, settings: dict[str, Any]) -> Self:
        pieces = [piece.encode("latin-1") for piece in settings.pop("pieces")]
        return cls(pieces, **settings)


def split_added(text: str, added: Mapping[str, int]) -> Iterator[tuple[str, int | None]]:
    """Parts of a text and, for those that are the name of an added token, that token.

    >>> list(split_added("a<s>b", {"<s>": 1}))
    [('a', None), ('<s>', 1), ('b', None)]
    """
    if not added:
        parts = [text]
    else:
        names = sorted(added, key=len, reverse=True)
        parts = re.split("(" + "|".join(map(re.escape, names)) + ")", text)
    for part in parts:
        if part:
            yield part, added.get(part)


def token_of_piece(vocabulary: Mapping[str, int], piece: str) -> int:
    """The token of a piece, which must be one of the vocabulary's."""
    if piece not in vocabulary:
        raise wf.BoundsError(
            "encode",
            "a piece of the text is not in the vocabulary",
            expected=f"one of {len(vocabulary)} pieces",
            got={"piece": piece},
            fix="take the tokenizer.json that the model was published with",
        )
    return vocabulary[piece]


def lookup(table: Mapping[int, bytes], token: int) -> bytes:
    """The bytes of a token, which must be one of the vocabulary's."""
    if token not in table:
        raise wf.BoundsError(
            "decode",
            "a token is not in the vocabulary",
            expected=f"one of {len(table)} tokens",
            got={"token": token},
            fix="decode with the tokenizer that the tokens come from",
        )
    return table[token]
