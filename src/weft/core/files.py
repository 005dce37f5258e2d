"""Files of which nothing is known: read within bounds, and written whole or not at all.

Whoever made a file may have cut it off, changed it, or made it to do harm. So readers take files
alone, not devices, pipes or folders; they read no more than they can use; and what does not fit is
an error that names the file. A writer fills a file beside its place and then puts it there at once:
whatever happens, the path holds the old file or the whole new one.

>>> import tempfile
>>> path = tempfile.mkdtemp() + "/sizes.json"
>>> write_text("example", path, '{"width": 3}')
>>> read_json("example", path)
{'width': 3}
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from weft.core.errors import ArgumentError

__all__ = [
    "Unpacked", "damaged", "is_plain_name", "open_file", "parse_json", "read_bytes", "read_json",
    "read_text", "replacing", "unpack_gzip", "unpacked_limit", "write_bytes", "write_text",
]  # fmt: skip

AnyPath = str | os.PathLike[str]
LARGEST_TEXT = 1 << 26
"""The most bytes of a text that is taken apart at once: 64 MiB, more than any vocabulary has."""
UNPACKED = 1 << 26
"""What any compressed file may unpack to, however small it is: 64 MiB."""
UNPACKED_TIMES = 100
"""How many times its own size a compressed file may unpack to beyond that."""
_BLOCK = 1 << 20
# A pipe in a file's place is not waited for.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


# --- reading -------------------------------------------------------------------------------------


def open_file(op: str, path: AnyPath) -> BinaryIO:
    """A file to read from; devices, pipes, sockets and folders are refused, an OSError passes."""
    try:
        handle = os.open(path, _READ | getattr(os, "O_CLOEXEC", 0))
    except ValueError as error:  # a zero byte in a path
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = next((name for name, test in _KINDS.items() if test(mode)), "no file")
        raise ArgumentError(
            op,
            f"the file could not be read: it is {kind}",
            expected="a file",
            got={"path": str(path)},
            fix="give the path of a file",
        )
    return open(handle, "rb")


_KINDS: dict[str, Callable[[int], bool]] = {
    "a folder": stat.S_ISDIR,
    "a pipe": stat.S_ISFIFO,
    "a socket": stat.S_ISSOCK,
    "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
}


def read_bytes(op: str, path: AnyPath, largest: int | None = None) -> bytes:
    """The content of a file that has at most so many bytes."""
    with open_file(op, path) as file:
        if largest is None:
            return file.read()
        size = os.fstat(file.fileno()).st_size
        content = file.read(largest + 1) if size <= largest else b""
    if size > largest or len(content) > largest:
        raise damaged(
            op, path, f"it has {size} bytes", f"at most {largest} bytes", "is it another file?"
        )
    return content


def read_text(op: str, path: AnyPath, largest: int = LARGEST_TEXT) -> str:
    """The text of a file in UTF-8."""
    try:
        return read_bytes(op, path, largest).decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged(op, path, f"it is no UTF-8: {error.reason} at byte {error.start}") from None


def read_json(op: str, path: AnyPath, expected: str = "a JSON file") -> Any:
    """The value in a JSON file."""
    return parse_json(op, path, read_text(op, path), expected)


def parse_json(
    op: str, path: AnyPath, text: str | bytes, expected: str = "JSON", what: str = "it", **how: Any
) -> Any:
    """The JSON value of a file's text; `how` is passed to `json.loads`."""
    try:
        return json.loads(text, **how)
    except RecursionError:
        raise damaged(op, path, f"{what} is not JSON: nested too deeply", expected) from None
    except ValueError as error:  # also of what is no UTF-8, and of numbers with too many digits
        raise damaged(op, path, f"{what} is not JSON: {error}", expected) from None


def is_plain_name(name: object) -> bool:
    """Whether a name in a file is that of a file beside it, and leads nowhere else.

    >>> is_plain_name("model.safetensors"), is_plain_name("../x"), is_plain_name("C:x")
    (True, False, False)
    """
    if not isinstance(name, str) or not name or len(name) > 255:
        return False
    return name.isprintable() and name not in (".", "..") and not set(name) & set('/\\:"*?<>|')


def damaged(
    op: str,
    path: AnyPath,
    reason: str,
    expected: str = "a whole file, as it was written",
    fix: str = "copy the file again, or write it anew",
) -> ArgumentError:
    """The error for a file that is not what its name says."""
    return ArgumentError(
        op,
        f"{Path(path).name} is damaged or of another kind: {reason}",
        expected=expected,
        got={"path": str(path)},
        fix=fix,
    )


# --- compressed files ----------------------------------------------------------------------------


def unpacked_limit(packed: int, least: int = UNPACKED) -> int:
    """The most that so many bytes may unpack to; a few may stand for more than the memory holds.

    >>> unpacked_limit(1000) == UNPACKED, unpacked_limit(10**9)
    (True, 100000000000)
    """
    return max(least, UNPACKED_TIMES * packed)


class Unpacked(gzip.GzipFile):
    """A gzipped file to read from, which ends in an error where it unpacks to too much."""

    def __init__(self, op: str, path: AnyPath, least: int = UNPACKED) -> None:
        self._op, self._path = op, path
        self._packed = open_file(op, path)
        self._limit = unpacked_limit(os.fstat(self._packed.fileno()).st_size, least)
        self._left = self._limit
        super().__init__(fileobj=self._packed, mode="rb")

    def read(self, size: int | None = -1) -> bytes:
        """See `gzip`."""
        return self._read_counted(lambda: super(Unpacked, self).read(self._allowed_size(size)))

    def read1(self, size: int = -1) -> bytes:
        """See `gzip`."""
        return self._read_counted(lambda: super(Unpacked, self).read1(self._allowed_size(size)))

    def readinto(self, buffer: Any) -> int:
        """See `gzip`."""
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        """See `gzip`."""
        try:
            super().close()
        finally:
            self._packed.close()

    def _allowed_size(self, size: int | None) -> int:
        return self._left + 1 if size is None or size < 0 else min(size, self._left + 1)

    def _read_counted(self, read: Callable[[], bytes]) -> bytes:
        try:
            content = read()
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(self._op, self._path, f"it cannot be decompressed: {error}") from None
        self._left -= len(content)
        if self._left < 0:
            raise damaged(
                self._op,
                self._path,
                f"it unpacks to more than {self._limit} bytes",
                f"at most {UNPACKED_TIMES} times the size of the file, if that is much",
                f"if you trust it, unpack it first: gzip -d {Path(self._path).name}",
            )
        return content

    def check(self) -> None:
        """Unpack the whole file once to see that it is intact; nothing is kept."""
        while self.read(_BLOCK):
            pass


def unpack_gzip(op: str, path: AnyPath) -> bytes:
    """The content of a gzipped file."""
    with Unpacked(op, path) as file:
        return file.read()


# --- writing -------------------------------------------------------------------------------------


def write_text(op: str, path: AnyPath, text: str) -> None:
    """Put a text in UTF-8 in a file's place at once."""
    write_bytes(op, path, text.encode("utf-8"))


def write_bytes(op: str, path: AnyPath, content: bytes) -> None:
    """Write a file so that others see the old content or the new one, never a part."""
    with replacing(op, path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(op: str, path: AnyPath) -> Iterator[BinaryIO]:
    """A new file that takes the place of a path when all of it is on the disk; links stay links."""
    try:
        place = Path(os.path.realpath(path))
        if place.exists() and not place.is_file():  # replacing a device would remove it
            raise OSError(errno.EINVAL, "this is no file")
        handle, name = tempfile.mkstemp(prefix=f".{place.name}.", suffix=".tmp", dir=place.parent)
    except (OSError, ValueError) as error:  # a zero byte in a path is a ValueError
        raise _not_writable(op, path, error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _keep_mode(place, name)
        os.replace(name, place)
        _sync_folder(place.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise _not_writable(op, path, error) from None
        raise


def _keep_mode(path: Path, name: str) -> None:
    """Give the new file the old one's permissions, or the usual ones if there was no old file."""
    mask = os.umask(0)
    os.umask(mask)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask
    os.chmod(name, mode)


def _sync_folder(folder: Path) -> None:
    """Bring the new name to the disk too, where the system lets folders be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _not_writable(op: str, path: AnyPath, error: Exception) -> ArgumentError:
    folder = Path(path).parent
    fix = "choose another path, or free some space"
    if not folder.exists():
        fix = f"make the folder first: os.makedirs({str(folder)!r}, exist_ok=True)"
    return ArgumentError(
        op,
        f"the file could not be written: {getattr(error, 'strerror', None) or error}",
        expected="a folder that exists, may be written to and has space",
        got={"path": str(path)},
        note="what was there before is unchanged",
        fix=fix,
    )
