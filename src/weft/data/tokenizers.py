"""From text to numbers and back: by character, by byte, or by pieces learnt with byte pairs.

A tokenizer has a `vocabulary_size`, encodes text to an array of int64 and decodes it again, and is
saved as JSON.

>>> from weft.data import CharacterTokenizer
>>> tokenizer = CharacterTokenizer.from_text("hello")
>>> tokenizer.encode("hole").tolist(), tokenizer.decode([2, 3])
([1, 3, 2, 0], 'lo')
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.optional import require
from weft.files import read_json, read_text, write_text

Tokens = npt.NDArray[np.int64]


class Tokenizer(ABC):
    """The base class of tokenizers: text to numbers and back."""

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """How many different tokens there are."""

    @abstractmethod
    def encode(self, text: str) -> Tokens:
        """The tokens of a text."""

    @abstractmethod
    def decode(self, tokens: Sequence[int] | npt.NDArray[Any]) -> str:
        """The text of tokens."""

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """The settings that are saved to a file."""

    @classmethod
    @abstractmethod
    def _from_settings(cls, settings: dict[str, Any]) -> Self:
        """A tokenizer from the settings in a file."""

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file."""
        text = json.dumps({"kind": type(self).__name__} | self._settings(), ensure_ascii=False)
        write_text("Tokenizer.save", path, text + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The tokenizer that `save` wrote to a file."""
        try:
            settings = read_json(f"{cls.__name__}.load", path)
            if settings.pop("kind") == cls.__name__:
                return cls._from_settings(settings)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise _not_a_tokenizer(cls, path, error) from error
        raise _not_a_tokenizer(cls, path, "of another kind")


class CharacterTokenizer(Tokenizer):
    """One token for each character of a vocabulary.

    A character that is not in the vocabulary is an error, unless `unknown` names a character of the
    vocabulary to stand for it.

    >>> from weft.data import CharacterTokenizer
    >>> CharacterTokenizer("abc?", unknown="?").encode("cab!").tolist()
    [2, 0, 1, 3]
    """

    def __init__(self, vocabulary: Iterable[str], *, unknown: str | None = None) -> None:
        self.vocabulary = "".join(vocabulary)
        self.unknown = unknown
        self._codes = np.array([ord(character) for character in self.vocabulary], np.uint32)
        if len(set(self.vocabulary)) != len(self.vocabulary) or not self.vocabulary:
            raise _bad_vocabulary("has a character twice, or none", self.vocabulary)
        if unknown is not None and unknown not in self.vocabulary:
            raise _bad_vocabulary(f"does not hold unknown={unknown!r}", self.vocabulary)
        self._table = np.full(int(self._codes.max()) + 1, -1, np.int64)  # token by code point
        self._table[self._codes] = np.arange(len(self._codes))

    @classmethod
    def from_text(cls, *texts: str) -> Self:
        """A tokenizer with all characters of these texts, sorted."""
        return cls(sorted(set().union(*texts)))

    @property
    def vocabulary_size(self) -> int:
        """How many characters there are."""
        return len(self.vocabulary)

    def encode(self, text: str) -> Tokens:
        """One token per character."""
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        known = codes < len(self._table)
        tokens = np.where(known, self._table[np.where(known, codes, 0)], -1)
        missing = tokens < 0
        if missing.any():
            tokens[missing] = self._token_of_unknown(text, int(np.argmax(missing)))
        return tokens

    def decode(self, tokens: Sequence[int] | npt.NDArray[Any]) -> str:
        """One character per token."""
        return "".join(self.vocabulary[i] for i in _check_tokens(tokens, self.vocabulary_size))

    def _token_of_unknown(self, text: str, position: int) -> int:
        if self.unknown is not None:
            return self.vocabulary.index(self.unknown)
        raise wf.ArgumentError(
            "CharacterTokenizer.encode",
            "a character is not in the vocabulary",
            expected=f"one of the {self.vocabulary_size} characters of the vocabulary",
            got={f"text[{position}]": repr(text[position])},
            fix="build the vocabulary from all of the text, or name a character with unknown=",
        )

    def _settings(self) -> dict[str, Any]:
        return {"vocabulary": self.vocabulary, "unknown": self.unknown}

    @classmethod
    def _from_settings(cls, settings: dict[str, Any]) -> Self:
        return cls(settings["vocabulary"], unknown=settings["unknown"])


class ByteTokenizer(Tokenizer):
    """One token for each byte of the text in UTF-8; nothing is unknown.

    >>> from weft.data import ByteTokenizer
    >>> ByteTokenizer().encode("é").tolist(), ByteTokenizer().decode([104, 105])
    ([195, 169], 'hi')
    """

    @property
    def vocabulary_size(self) -> int:
        """256, the number of bytes."""
        return 256

    def encode(self, text: str) -> Tokens:
        """One token per byte."""
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64)

    def decode(self, tokens: Sequence[int] | npt.NDArray[Any]) -> str:
        """The bytes as text; invalid UTF-8 becomes the replacement character."""
        return bytes(_check_tokens(tokens, 256)).decode("utf-8", errors="replace")

    def _settings(self) -> dict[str, Any]:
        return {}

    @classmethod
    def _from_settings(cls, settings: dict[str, Any]) -> Self:
        return cls()


class BytePairTokenizer(Tokenizer):
    """Pieces of words, by the `tokenizers` package: trained here, or read from `tokenizer.json`.

    `BytePairTokenizer.train(texts, vocabulary_size=1000)` learns the pieces of these texts;
    `BytePairTokenizer.load("tokenizer.json")` reads the file of a published model.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def train(
        cls, texts: Iterable[str], vocabulary_size: int, *, special: Sequence[str] = ()
    ) -> Self:
        """Learn a byte-level vocabulary of this size from texts."""
        package = _package()
        inner = package.Tokenizer(package.models.BPE())
        inner.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = package.decoders.ByteLevel()
        trainer = package.trainers.BpeTrainer(
            vocab_size=vocabulary_size,
            special_tokens=list(special),
            initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(texts, trainer)
        return cls(inner)

    @property
    def vocabulary_size(self) -> int:
        """How many pieces there are, special ones included."""
        return int(self.inner.get_vocab_size())

    def encode(self, text: str) -> Tokens:
        """The pieces of a text, without special ones at its ends."""
        return np.array(self.inner.encode(text, add_special_tokens=False).ids, np.int64)

    def decode(self, tokens: Sequence[int] | npt.NDArray[Any]) -> str:
        """The text of pieces."""
        ids = _check_tokens(tokens, self.vocabulary_size)
        return str(self.inner.decode(ids, skip_special_tokens=False))

    def save(self, path: str | Path) -> None:
        """Write the package's own `tokenizer.json`."""
        write_text("Tokenizer.save", path, self.inner.to_str(pretty=True))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a `tokenizer.json`."""
        text = read_text(f"{cls.__name__}.load", path)
        package = _package()
        try:
            return cls(package.Tokenizer.from_str(text))
        except Exception as error:  # the package raises nothing more specific
            raise _not_a_tokenizer(cls, path, error) from error

    def __getstate__(self) -> str:
        return str(self.inner.to_str())

    def __setstate__(self, state: str) -> None:
        self.inner = _package().Tokenizer.from_str(state)

    def _settings(self) -> dict[str, Any]:
        return {"tokenizer": self.inner.to_str()}

    @classmethod
    def _from_settings(cls, settings: dict[str, Any]) -> Self:
        return cls(_package().Tokenizer.from_str(settings["tokenizer"]))


def _package() -> Any:
    return require("tokenizers", "tokenizers", "BytePairTokenizer")


def _check_tokens(tokens: Sequence[int] | npt.NDArray[Any], size: int) -> list[int]:
    array = np.asarray(tokens, np.int64).reshape(-1)
    outside = np.flatnonzero((array < 0) | (array >= size))
    if len(outside):
        raise wf.BoundsError(
            "decode",
            "a token is not in the vocabulary",
            expected=f"0 <= token < {size}",
            got={f"tokens[{outside[0]}]": int(array[outside[0]])},
            fix="decode with the tokenizer that the tokens come from",
        )
    token_list: list[int] = array.tolist()
    return token_list


def _bad_vocabulary(problem: str, vocabulary: str) -> wf.WeftError:
    return wf.ArgumentError(
        "CharacterTokenizer",
        f"the vocabulary {problem}",
        expected="different characters, at least one",
        got={"vocabulary": vocabulary[:40]},
        fix="CharacterTokenizer.from_text(text)",
    )


def _not_a_tokenizer(cls: type, path: str | Path, why: object) -> wf.WeftError:
    return wf.ArgumentError(
        f"{cls.__name__}.load",
        "the file does not hold such a tokenizer",
        expected=f"a file that {cls.__name__}.save wrote",
        got={"file": str(path), "found": getattr(why, "problem", str(why))},
        fix="save it again: tokenizer.save(path)",
    )
