r"""Static libraries: the format of `ar`, with a table of symbols for linkers.

>>> archive({"model.o": b"code"}, ["model_run"])[:8]
b'!<arch>\n'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MAGIC = b"!<arch>\n"
_HEAD = 60
"""The bytes before each member."""


def archive(members: Mapping[str, bytes], symbols: Sequence[str]) -> bytes:
    """A library of object files; the symbols are all of the first one's."""
    names = b"".join(name.encode() + b"\0" for name in symbols)
    # The table: how many there are, where the member of each begins, and their names.
    size = 4 + 4 * len(symbols) + len(names)
    first = len(MAGIC) + _HEAD + size + size % 2
    table = len(symbols).to_bytes(4, "big") + first.to_bytes(4, "big") * len(symbols) + names
    parts = [_member("/", table), *[_member(f"{n}/", data) for n, data in members.items()]]
    return MAGIC + b"".join(parts)


def _member(name: str, data: bytes) -> bytes:
    fields = (f"{name:<16}", f"{0:<12}", f"{0:<6}", f"{0:<6}", f"{644:<8}", f"{len(data):<10}")
    return "".join(fields).encode() + b"`\n" + data + (b"\n" if len(data) % 2 else b"")
