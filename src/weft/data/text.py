"""Text files: memory-mapped lines, tokens that lie on disk, and windows of them to learn from.

Nothing here reads a whole file into memory unless asked to; a worker process opens the file again
instead of receiving its content.

>>> from weft.data import CharacterTokenizer, TokenWindows
>>> text = "to be or not to be"
>>> windows = TokenWindows(CharacterTokenizer.from_text(text).encode(text), length=4)
>>> inputs, targets = windows[0]
>>> inputs.tolist(), targets.tolist()
([6, 4, 0, 1], [4, 0, 1, 2])
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.dataset import Dataset, check_count, checked_index
from weft.data.tokenizers import ByteTokenizer, Tokenizer
from weft.files import damaged, open_file, replacing

_CHUNK = 1 << 20
"""How many characters are tokenised at a time."""


class MappedArray:
    """A one-dimensional array in a file; it travels to other processes as a path.

    What is asked for is copied out of the file, after a look at whether it is still there: a system
    ends a process that reads where a mapped file was cut off.

    >>> import numpy as np, pickle, tempfile, os
    >>> from weft.data.text import MappedArray
    >>> path = os.path.join(tempfile.mkdtemp(), "numbers.bin")
    >>> np.arange(4, dtype=np.uint16).tofile(path)
    >>> pickle.loads(pickle.dumps(MappedArray(path, np.uint16)))[1:3].tolist()
    [1, 2]
    """

    def __init__(self, path: str | Path, dtype: npt.DTypeLike) -> None:
        self.path = Path(path)
        self.dtype = np.dtype(dtype)
        with open_file("MappedArray", self.path) as file:
            size = os.fstat(file.fileno()).st_size
        if size % self.dtype.itemsize:
            raise wf.ArgumentError(
                "MappedArray",
                "the file does not hold whole numbers of this type",
                expected=f"a multiple of {self.dtype.itemsize} bytes",
                got={"file": str(path), "bytes": size},
                fix="give the dtype that the file was written with",
            )
        # An empty file cannot be mapped.
        self._array = np.memmap(self.path, self.dtype, "r") if size else np.empty(0, self.dtype)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, rows: Any) -> Any:
        self._check_length()
        selected = np.array(self._array[rows])
        return selected if selected.ndim else selected[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise wf.ArgumentError(
                "MappedArray",
                "the numbers of a file are given as a copy",
                expected="copy=True, or no such wish",
                got={"copy": copy},
                fix="np.asarray(x)",
            )
        self._check_length()
        return np.array(self._array, dtype)

    def _check_length(self) -> None:
        size = os.stat(self.path).st_size
        if size < self._array.nbytes:
            raise wf.ArgumentError(
                "MappedArray",
                "the file became shorter while it was in use",
                expected=f"{self._array.nbytes} bytes",
                got={"file": str(self.path), "bytes": size},
                fix="write a new file and put it in place: os.replace(new, path)",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedArray, (self.path, self.dtype)


class TextLines(Dataset):
    r"""The lines of a UTF-8 file, memory-mapped, without their line ends.

    >>> import os, tempfile
    >>> from weft.data import TextLines
    >>> path = os.path.join(tempfile.mkdtemp(), "words.txt")
    >>> with open(path, "w") as file: _ = file.write("one\ntwo\nthree")
    >>> lines = TextLines(path)
    >>> len(lines), lines[2]
    (3, 'three')
    """

    def __init__(self, path: str | Path) -> None:
        self._bytes = MappedArray(path, np.uint8)
        starts = range(0, len(self._bytes), _CHUNK)
        chunk_ends = [
            np.flatnonzero(self._bytes[i : i + _CHUNK] == ord("\n")) + i + 1 for i in starts
        ]
        ends = np.concatenate([np.empty(0, np.int64), *chunk_ends])
        if len(self._bytes) and (not len(ends) or ends[-1] != len(self._bytes)):
            ends = np.append(ends, len(self._bytes))
        self._edges = np.concatenate([[0], ends]).astype(np.int64)

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __getitem__(self, index: int, /) -> str:
        line = checked_index(index, len(self))
        raw: bytes = self._bytes[self._edges[line] : self._edges[line + 1]].tobytes()
        try:
            return raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise _no_text(self._bytes.path, f"line {line + 1}: {error}") from None


class TokenWindows(Dataset):
    """Pairs (inputs, targets) for a language model: windows of tokens, and the same one further.

    Windows begin every `stride` tokens (each token once, when nothing is said); `stride=1` gives
    every window there is. Items are int64[length].

    >>> import numpy as np
    >>> from weft.data import TokenWindows
    >>> windows = TokenWindows(np.arange(10), length=3)
    >>> len(windows), windows[2][0].tolist(), windows[2][1].tolist()
    (3, [6, 7, 8], [7, 8, 9])
    """

    def __init__(
        self, tokens: npt.NDArray[Any] | MappedArray | wf.Tensor, length: int, stride: int = 0
    ) -> None:
        self.tokens = np.asarray(tokens) if isinstance(tokens, wf.Tensor) else tokens
        self.length = check_count("TokenWindows", "length", length)
        self.stride = check_count("TokenWindows", "stride", stride or length)
        if len(tokens) <= length:
            raise wf.ArgumentError(
                "TokenWindows",
                "there are too few tokens for one window and its targets",
                expected=f"at least {length + 1} tokens",
                got={"tokens": len(tokens), "length": length},
                fix=f"length={max(1, len(tokens) - 1)}",
            )

    def __len__(self) -> int:
        return (len(self.tokens) - 1 - self.length) // self.stride + 1

    def __getitem__(self, index: int, /) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        start = checked_index(index, len(self)) * self.stride
        window = np.asarray(self.tokens[start : start + self.length + 1], np.int64)
        return window[:-1], window[1:]

    def gather(self, indices: npt.NDArray[np.int64]) -> Any:
        """A whole batch at once, where the data behind allow it."""
        starts = indices[:, None] * self.stride
        windows = np.asarray(self.tokens[starts + np.arange(self.length + 1)], np.int64)
        return windows[:, :-1], windows[:, 1:]


def tokenize_file(
    path: str | Path, tokenizer: Tokenizer, target: str | Path | None = None
) -> MappedArray:
    """Tokenise a text file piece by piece into a file of numbers, and map that into memory.

    The result lies beside the text as `<name>.<tokenizer>.tokens`, or at `target`, and is always
    made anew. The bytes of a text are its byte tokens already: nothing is written for them. Pieces
    end at line ends, where byte pairs do not reach across in the usual vocabularies.

    >>> import os, tempfile
    >>> from weft.data import CharacterTokenizer, tokenize_file
    >>> path = os.path.join(tempfile.mkdtemp(), "text.txt")
    >>> with open(path, "w") as file: _ = file.write("abba")
    >>> tokenize_file(path, CharacterTokenizer("ab"))[:].tolist()
    [0, 1, 1, 0]
    """
    if isinstance(tokenizer, ByteTokenizer) and target is None:
        return MappedArray(path, np.uint8)
    dtype = np.min_scalar_type(max(0, tokenizer.vocabulary_size - 1))
    target = Path(target or f"{path}.{type(tokenizer).__name__}.tokens")
    with replacing("tokenize_file", target) as file:
        for piece in _text_chunks(path):
            file.write(tokenizer.encode(piece).astype(dtype).tobytes())
    return MappedArray(target, dtype)


def _text_chunks(path: str | Path) -> Iterator[str]:
    with io.TextIOWrapper(open_file("tokenize_file", path), "utf-8", newline="") as file:
        try:
            while piece := file.read(_CHUNK):
                yield piece + file.readline()
        except UnicodeDecodeError as error:
            raise _no_text(path, str(error)) from None


def _no_text(path: str | Path, reason: str) -> wf.WeftError:
    return damaged("read_text", path, f"it is no text in UTF-8: {reason}", "text in UTF-8")
