"""The cache on disk: shared, bounded, and never the reason for a wrong result or an error."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weft.core.errors import ArgumentError
from weft.runtime import cache as module
from weft.runtime.cache import DiskCache, default_folder, entry_key

KEY = entry_key(b"kernel", "weft", "llvm", "cpu")
OTHER = entry_key(b"another kernel", "weft", "llvm", "cpu")
DATA = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def _nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Warned, "already", False)


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "store")


@pytest.fixture
def entry(cache: DiskCache) -> Path:
    cache.put(KEY, DATA)
    assert cache.folder is not None
    return cache.folder / KEY


def names(cache: DiskCache) -> set[str]:
    assert cache.folder is not None
    return set(os.listdir(cache.folder))


def test_what_was_put_is_got_by_another_cache_of_the_folder(cache: DiskCache) -> None:
    cache.put(KEY, DATA)
    cache.put(OTHER, b"")
    assert cache.folder is not None
    again = DiskCache(str(cache.folder))
    assert (again.get(KEY), again.get(OTHER)) == (DATA, b"")
    assert names(cache) == {KEY, OTHER}


def test_nothing_is_made_by_looking(cache: DiskCache) -> None:
    assert cache.get(KEY) is None
    assert cache.folder is not None
    assert not cache.folder.exists()


def test_a_key_depends_on_every_part_of_the_environment() -> None:
    parts = ["weft 0.1.0", "llvm 22", "znver4", "+avx512f"]
    keys = {entry_key(b"kernel", *parts), entry_key(b"kernels", *parts)}
    for index in range(4):
        changed = [*parts[:index], parts[index] + "x", *parts[index + 1 :]]
        keys.add(entry_key(b"kernel", *changed))
    assert len(keys) == 6


@pytest.mark.parametrize("key", ["", "../x", "A" * 64, "a" * 63, "/" + "a" * 63])
def test_what_is_no_key_is_refused(cache: DiskCache, key: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        cache.get(key)
    assert caught.value.op == "DiskCache"


def test_the_later_bytes_stand(cache: DiskCache) -> None:
    cache.put(KEY, b"first")
    cache.put(KEY, b"second")
    assert cache.get(KEY) == b"second"


def test_files_are_private(cache: DiskCache, entry: Path) -> None:
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    assert stat.S_IMODE(entry.parent.stat().st_mode) == 0o700


# Entries that are not what they should be.


def _flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half a header": lambda content: content[:20],
    "header only": lambda content: content[:48],
    "truncated": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "other magic": lambda content: _flip(content, 0),
    "other length": lambda content: _flip(content, 8),
    "other checksum": lambda content: _flip(content, 16),
    "other data": lambda content: _flip(content, 1000),
    "zeros": lambda content: bytes(len(content)),
    "text": lambda content: b"hello",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_entry_is_ignored_and_rewritten(
    cache: DiskCache, entry: Path, damage: Callable[[bytes], bytes]
) -> None:
    entry.write_bytes(damage(entry.read_bytes()))
    assert cache.get(KEY) is None
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA


def test_an_entry_under_another_key_is_ignored(cache: DiskCache, entry: Path) -> None:
    entry.rename(entry.with_name(OTHER))
    assert cache.get(OTHER) is None


def test_a_link_is_ignored_and_replaced(cache: DiskCache, entry: Path) -> None:
    target = entry.with_name("elsewhere")
    entry.rename(target)
    entry.symlink_to(target)
    assert cache.get(KEY) is None
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA
    assert not entry.is_symlink()


def test_a_pipe_is_ignored_and_replaced(cache: DiskCache, entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry)
    assert cache.get(KEY) is None
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA


def test_an_entry_that_others_may_write_is_ignored(cache: DiskCache, entry: Path) -> None:
    entry.chmod(0o666)
    assert cache.get(KEY) is None


def test_an_entry_of_another_user_is_ignored_and_rewriting_is_refused(
    cache: DiskCache, entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: entry.stat().st_uid + 1)
    assert cache.get(KEY) is None
    with pytest.warns(RuntimeWarning, match="belongs to another user"):
        cache.put(KEY, DATA)


def test_a_folder_that_others_may_write_is_not_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="others may write"):
        DiskCache(tmp_path).put(KEY, DATA)
    assert list(tmp_path.iterdir()) == []


# Folders that cannot be used: one warning, and no cache.


def failing(code: int) -> Callable[..., Iterator[None]]:
    def fail(*arguments: object, **options: object) -> Iterator[None]:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("function", ["open", "replace", "mkdir", "stat"])
def test_what_cannot_be_written_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int
) -> None:
    cache = DiskCache(tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(module.os, function, failing(code))
        with pytest.warns(RuntimeWarning, match="cache of compiled code is not used"):
            cache.put(KEY, DATA)
        cache.put(OTHER, DATA)  # a second warning would be an error
        DiskCache(tmp_path / "more").put(KEY, DATA)
    assert cache.get(KEY) is None
    assert not [name for _, _, files in os.walk(tmp_path) for name in files]
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA


def test_a_disk_that_fills_up_while_writing_leaves_nothing_behind(
    cache: DiskCache, entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk:
        def __init__(self, descriptor: int, mode: str) -> None:
            self.descriptor = descriptor

        def __enter__(self) -> FullDisk:
            return self

        def __exit__(self, *exception: object) -> None:
            os.close(self.descriptor)

        def write(self, data: bytes) -> int:
            os.write(self.descriptor, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "open", FullDisk, raising=False)
        with pytest.warns(RuntimeWarning, match="No space left"):
            cache.put(OTHER, DATA)
    assert names(cache) == {KEY}
    assert cache.get(KEY) == DATA


def test_an_entry_that_cannot_be_read_is_absent(
    cache: DiskCache, entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.os, "open", failing(errno.EACCES))
    with pytest.warns(RuntimeWarning, match="cannot read"):
        assert cache.get(KEY) is None
    assert cache.get(KEY) is None


def test_a_file_in_the_place_of_the_folder_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        module._Warned.already = False
        cache = DiskCache(folder)
        assert cache.get(KEY) is None
        with pytest.warns(RuntimeWarning):
            cache.put(KEY, DATA)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder_still_serves(cache: DiskCache, entry: Path) -> None:
    entry.parent.chmod(0o500)
    assert cache.get(KEY) == DATA
    with pytest.warns(RuntimeWarning, match="cannot write"):
        cache.put(OTHER, DATA)
    entry.parent.chmod(0o700)


def test_an_entry_that_cannot_be_marked_as_used_still_serves(
    cache: DiskCache, entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(module.os, "utime", refuse)
    assert cache.get(KEY) == DATA


def test_a_missing_folder_is_made_again(cache: DiskCache, entry: Path) -> None:
    entry.unlink()
    entry.parent.rmdir()
    assert cache.get(KEY) is None
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA


# How much is kept.


def fill(cache: DiskCache, count: int, size: int) -> list[str]:
    """Entries of this size in all, each used a second after the one before it."""
    keys = [entry_key(str(index).encode()) for index in range(count)]
    for index, key in enumerate(keys):
        cache.put(key, bytes(size - 48))
        assert cache.folder is not None
        if (cache.folder / key).exists():
            os.utime(cache.folder / key, (index, index))
    return keys


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "store", limit=10_000)
    keys = fill(cache, 10, 1000)
    assert names(cache) == set(keys)
    assert cache.get(keys[0]) is not None  # used again, so it stays
    cache.put(KEY, bytes(952))
    assert names(cache) == {keys[0], *keys[4:], KEY}


def test_the_size_is_bounded_also_over_processes(tmp_path: Path) -> None:
    for start in range(0, 40, 4):
        cache = DiskCache(tmp_path / "store", limit=10_000)
        for index in range(start, start + 4):
            cache.put(entry_key(b"", str(index)), bytes(952))
    assert sum(path.stat().st_size for path in (tmp_path / "store").iterdir()) <= 10_000


def test_what_is_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "store", limit=100)
    cache.put(KEY, bytes(53))
    assert cache.get(KEY) is None
    cache.put(KEY, bytes(52))
    assert cache.get(KEY) == bytes(52)


def test_what_killed_writers_left_is_removed_and_foreign_files_are_not(tmp_path: Path) -> None:
    for name in ("old.part", "new.part", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    os.utime(tmp_path / "old.part", (0, 0))
    os.utime(tmp_path / "notes.txt", (0, 0))
    tmp_path.chmod(0o700)
    DiskCache(tmp_path, limit=60).put(KEY, b"")
    assert set(os.listdir(tmp_path)) == {KEY, "new.part", "notes.txt"}


def test_clearing_removes_the_entries(cache: DiskCache, entry: Path) -> None:
    cache.clear()
    assert names(cache) == set()
    assert cache.get(KEY) is None


# Where it is.


def test_the_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_folder() == tmp_path / ".cache" / "weft"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_folder() == tmp_path / ".cache" / "weft"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert default_folder() == tmp_path / "x" / "weft"
    monkeypatch.setenv("WEFT_CACHE", "~/mine")
    assert DiskCache().folder == tmp_path / "mine"
    assert DiskCache("/elsewhere").folder == Path("/elsewhere")


def test_the_cache_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "off")
    cache = DiskCache()
    cache.put(KEY, DATA)
    cache.clear()
    assert cache.folder is None
    assert cache.get(KEY) is None


def test_no_home_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(module.os.path, "expanduser", lambda path: path)
    assert default_folder() is None


# Several processes at once: forked from one fresh interpreter, which has a single thread.

WRITERS = """
import os, sys
from weft.runtime.cache import DiskCache, entry_key

cache = DiskCache(sys.argv[1], limit=int(sys.argv[2]))
shared = [entry_key(b"shared", str(i)) for i in range(10)]

def write(number):
    for turn in range(8):
        for index, key in enumerate(shared):
            data = bytes([index]) * 5000
            assert cache.get(key) in (None, data)
            cache.put(key, data)
        own = entry_key(b"own", number, str(turn))
        cache.put(own, number.encode() * 1000)
        assert cache.get(own) in (None, number.encode() * 1000)

def forked(number):
    child = os.fork()
    if not child:
        code = 1
        try:
            write(str(number))
            code = 0
        finally:
            os._exit(code)
    return child

children = [forked(number) for number in range(8)]
sys.exit(max([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [10**8, 60_000])
def test_eight_processes_may_write_the_same_and_different_keys(tmp_path: Path, limit: int) -> None:
    folder = tmp_path / "deep" / "store"
    command = [sys.executable, "-W", "error", "-c", WRITERS, str(folder), str(limit)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    kept = list(folder.iterdir())
    assert not [path for path in kept if path.suffix == ".part"]
    cache = DiskCache(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(cache.get(path.name) is not None for path in kept)
    assert (len(kept) == 10 + 8 * 8) == (limit == 10**8)
