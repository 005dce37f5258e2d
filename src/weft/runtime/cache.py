"""A store of bytes on disk, found by content: what was compiled once need not be compiled again.

An entry is one file: a header (magic, length, checksum of key and data), then the data. It is
written beside its place and moved there, so a reader sees all of it or nothing, whoever else
writes. Whatever is not such a file of this user's own counts as absent and is written anew. A
folder that cannot be used makes programs slower to compile, never wrong: one warning, no error.

>>> import tempfile
>>> from weft.runtime.cache import DiskCache, entry_key
>>> cache = DiskCache(tempfile.mkdtemp())
>>> key = entry_key(b"a kernel", "weft 0.1.0", "LLVM 22.1", "znver4")
>>> cache.get(key) is None
True
>>> cache.put(key, b"machine code")
>>> cache.get(key)
b'machine code'
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import struct
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from weft.core.errors import ArgumentError
from weft.core.once import made_once
from weft.core.records import frozen
from weft.core.settings import OFF, settings

VARIABLE = "WEFT_CACHE"
"""The environment variable that names the folder; `off`, `0`, `false` and `no` are no cache."""

DEFAULT_LIMIT = 512 * 1024 * 1024
"""How many bytes of entries are kept, the least recently used going first."""

_MAGIC = b"weftcac1"
_HEADER = struct.Struct("<8sQ32s")
_KEY = re.compile(r"[0-9a-f]{64}")
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_TEMPORARY = ".part"
_ABANDONED_SECONDS = 3600.0
_KEPT_SHARE = 0.8  # evicting goes below the limit, so that the next entries need no eviction
# A link is not followed, and a pipe in an entry's place is not waited for.
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def entry_key(content: bytes, *environment: str) -> str:
    """The key of an entry that is made from this content in this environment.

    The environment is everything else that the result depends on: the versions of Weft and of LLVM,
    the processor's name and its features.

    >>> entry_key(b"x", "a", "bc") == entry_key(b"x", "ab", "c")
    False
    """
    digest = hashlib.sha256()
    for part in (content, *[text.encode() for text in environment]):
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)
    return digest.hexdigest()


def default_folder() -> Path | None:
    """Where entries are kept: the setting, `WEFT_CACHE`, or the user's cache folder; None is off.

    >>> folder = default_folder()
    >>> folder is None or folder.is_absolute() or VARIABLE in os.environ
    True
    """
    chosen = getattr(settings, "cache_folder", None) or os.environ.get(VARIABLE, "")
    if chosen:
        return None if str(chosen).lower() in OFF else Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification asks for relative paths to be ignored; without a home there is no cache.
    if os.path.isabs(base):
        return Path(base) / "weft"
    home = os.path.expanduser("~")
    return Path(home) / ".cache" / "weft" if os.path.isabs(home) else None


@frozen
class _Entry:
    """A file in the folder, as eviction sees it."""

    path: str
    size: int
    used: int  # in nanoseconds


class DiskCache:
    """Bytes by key in one folder, shared by all processes of a user and bounded in size."""

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, limit: int = DEFAULT_LIMIT
    ) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()
        self.limit = limit
        self._total: int | None = None  # known after the first write

    def get(self, key: str) -> bytes | None:
        """The bytes that were put under this key; None where there is no sound entry."""
        path = self._path(key)
        if path is None:
            return None
        try:
            return _read(path, key)
        except OSError as error:
            if error.errno not in _ABSENT:
                _warn(f"cannot read {path}: {error.strerror}")
            return None

    def put(self, key: str, data: bytes) -> None:
        """Keep these bytes under this key, in place of what stands there."""
        path = self._path(key)
        if path is None or _HEADER.size + len(data) > self.limit:
            return
        try:
            _make_private(path.parent)
            _write(path, key, data)
            self._account(_HEADER.size + len(data))
        except OSError as error:
            _warn(f"cannot write to {path.parent}: {error.strerror or error}")

    def clear(self) -> None:
        """Remove all entries."""
        if self.folder is not None:
            for entry in _entries(self.folder):
                _remove(entry.path)
        self._total = 0

    def _path(self, key: str) -> Path | None:
        if not _KEY.fullmatch(key):
            raise ArgumentError(
                "DiskCache",
                "this is not a key",
                expected="64 hexadecimal digits",
                got={"key": key},
                fix="DiskCache().get(entry_key(content, version, processor))",
            )
        return None if self.folder is None else self.folder / key

    def _account(self, written: int) -> None:
        """Add to the running total, and evict when it is too much.

        The total is counted once and then kept up by this process alone; it is counted again
        before anything is removed, which takes the other processes' entries into account.
        """
        if self._total is not None and self._total + written <= self.limit:
            self._total += written
        elif self.folder is not None:
            self._total = _evict(list(_entries(self.folder)), self.limit)


# --- one entry ---------------------------------------------------------------------------------


@made_once
def shared_disk() -> DiskCache:
    """The store that all programs share."""
    return DiskCache()


def _checksum(key: str, data: bytes) -> bytes:
    return hashlib.sha256(key.encode() + data).digest()


def _read(path: Path, key: str) -> bytes | None:
    """The data of a sound entry, which is marked as used; None for anything else."""
    descriptor = os.open(path, _READ)
    try:
        if not _is_own_file(os.fstat(descriptor)):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read()
        data = _unpack_entry(content, key)
        if data is not None:
            with suppress(OSError):  # a read-only folder serves as well, in the order of writing
                os.utime(descriptor if os.utime in os.supports_fd else path)
        return data
    finally:
        os.close(descriptor)


def _unpack_entry(content: bytes, key: str) -> bytes | None:
    if len(content) < _HEADER.size:
        return None
    magic, length, checksum = _HEADER.unpack_from(content)
    data = content[_HEADER.size :]
    if magic != _MAGIC or length != len(data) or checksum != _checksum(key, data):
        return None
    return data


def _write(path: Path, key: str, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{token_hex(4)}{_TEMPORARY}")
    header = _HEADER.pack(_MAGIC, len(data), _checksum(key, data))
    try:
        with open(os.open(temporary, _CREATE, 0o600), "wb") as file:
            file.write(header + data)
        os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise


def _remove(path: str | Path) -> None:
    with suppress(OSError):  # another process may have been quicker
        os.unlink(path)


# --- whose files these are ---------------------------------------------------------------------


def _is_ours(status: os.stat_result) -> bool:
    """Whether only this user can write to it, which must be so as entries are executed."""
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_own_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and _is_ours(status)


def _make_private(folder: Path) -> None:
    """Make the folder where it is missing; refuse one that others could put files into."""
    try:
        status = os.stat(folder)
    except FileNotFoundError:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        status = os.stat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{folder} is not a folder")
    if not _is_ours(status):
        raise PermissionError(f"{folder} belongs to another user, or others may write to it")


# --- the folder as a whole ---------------------------------------------------------------------


def _entries(folder: Path) -> Iterator[_Entry]:
    """All entries; what a writer left behind when it was killed is removed on the way."""
    try:
        items = list(os.scandir(folder))
    except OSError:
        return
    for item in items:
        is_temporary = item.name.endswith(_TEMPORARY)
        if not is_temporary and not _KEY.fullmatch(item.name):
            continue
        with suppress(OSError):
            status = item.stat(follow_symlinks=False)
            if is_temporary and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                os.unlink(item.path)
            elif not is_temporary:
                yield _Entry(item.path, status.st_size, status.st_mtime_ns)


def _evict(entries: list[_Entry], limit: int) -> int:
    """Remove the least recently used where there is too much; returns what remains."""
    total = sum(entry.size for entry in entries)
    if total <= limit:
        return total
    for entry in sorted(entries, key=lambda entry: entry.used):
        if total <= limit * _KEPT_SHARE:
            break
        _remove(entry.path)
        total -= entry.size
    return total


# --- the one warning ---------------------------------------------------------------------------


class _Warned:
    """Whether this process has been told that its cache does not work."""

    already = False


def _warn(problem: str) -> None:
    if not _Warned.already:
        _Warned.already = True
        warnings.warn(
            f"weft: the cache of compiled code is not used: {problem}; programs compile anew in "
            f"each process (set {VARIABLE} to a folder of your own, or to {OFF[0]!r})",
            RuntimeWarning,
            stacklevel=2,
        )
