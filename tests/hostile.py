"""Files spoilt on purpose: the ways in which a good file becomes a bad one.

A mutation takes a generator and the bytes of a file. Some are blind (bytes turned, cut off, added,
moved), some know what readers trip over (numbers that are too large, deep brackets, names that lead
elsewhere).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

Mutation = Callable[[np.random.Generator, bytes], bytes]

NUMBERS = [
    b"-1", b"0", b"1e999", b"-0.0", b"NaN", b"9223372036854775807", b"18446744073709551616",
    b"4611686018427387904", b"99999999999999999999999999", b"1" * 5000, b"null", b"true", b'"x"',
    b"[]", b"{}", b"1.5", b"16777217",
]  # fmt: skip
WORDS = [
    b"../../../../etc/passwd", b"/etc/passwd", b"/dev/zero", b"..", b"", b"\x00", b"__class__",
    b"a" * 300, b"\\ud800", b"\xff\xfe", b"{0.__init__.__globals__}", b"$tensor", b"C:\\x",
]  # fmt: skip
NESTS = [b"[" * 3000, b'{"a":' * 3000, b"(" * 3000, b"[" * 90_000, b"graph(" * 2000]


def place(rng: np.random.Generator, data: bytes) -> int:
    return int(rng.integers(0, max(len(data), 1)))


def turn_a_byte(rng: np.random.Generator, data: bytes) -> bytes:
    at = place(rng, data)
    return data[:at] + bytes([int(rng.integers(0, 256))]) + data[at + 1 :]


def turn_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    for _ in range(int(rng.integers(2, 30))):
        data = turn_a_byte(rng, data)
    return data


def turn_a_bit_in_the_head(rng: np.random.Generator, data: bytes) -> bytes:
    at = int(rng.integers(0, max(1, min(len(data), 64))))
    return data[:at] + bytes([(data[at] if data else 0) ^ (1 << int(rng.integers(0, 8)))]) + (
        data[at + 1 :]
    )  # fmt: skip


def cut_off(rng: np.random.Generator, data: bytes) -> bytes:
    return data[: place(rng, data)]


def cut_out(rng: np.random.Generator, data: bytes) -> bytes:
    at = place(rng, data)
    return data[:at] + data[at + int(rng.integers(1, 40)) :]


def extend(rng: np.random.Generator, data: bytes) -> bytes:
    return data + rng.bytes(int(rng.integers(1, 100)))


def insert(rng: np.random.Generator, data: bytes) -> bytes:
    at = place(rng, data)
    return data[:at] + rng.bytes(int(rng.integers(1, 20))) + data[at:]


def move_a_part(rng: np.random.Generator, data: bytes) -> bytes:
    start, at = place(rng, data), place(rng, data)
    return data[:at] + data[start : start + int(rng.integers(1, 200))] + data[at:]


def replace_a_match(rng: np.random.Generator, data: bytes, form: bytes, by: list[bytes]) -> bytes:
    found = list(re.finditer(form, data))
    if not found:
        return turn_a_byte(rng, data)
    match = found[int(rng.integers(0, len(found)))]
    return data[: match.start()] + by[int(rng.integers(0, len(by)))] + data[match.end() :]


def replace_a_number(rng: np.random.Generator, data: bytes) -> bytes:
    return replace_a_match(rng, data, rb"-?\d+(?:\.\d+)?", NUMBERS)


def replace_a_word(rng: np.random.Generator, data: bytes) -> bytes:
    return replace_a_match(rng, data, rb"[A-Za-z_][\w.]*", WORDS)


def replace_a_value(rng: np.random.Generator, data: bytes) -> bytes:
    return replace_a_match(rng, data, rb'"[^"\n]*"|\d+|\[[^][]*\]', NUMBERS)


def nest(rng: np.random.Generator, data: bytes) -> bytes:
    at = place(rng, data)
    return data[:at] + NESTS[int(rng.integers(0, len(NESTS)))] + data[at:]


def write_a_size(rng: np.random.Generator, data: bytes) -> bytes:
    at = place(rng, data[:200])
    sizes = [0, 1, 255, 2**16, 2**24 - 1, 2**31 - 1, 2**32 - 1]
    size = sizes[int(rng.integers(0, len(sizes)))]
    order = "big" if rng.integers(0, 2) else "little"
    return data[:at] + size.to_bytes(4, order) + data[at + 4 :]  # type: ignore[arg-type]


MUTATIONS: list[Mutation] = [
    turn_a_byte, turn_bytes, turn_a_bit_in_the_head, cut_off, cut_out, extend, insert, move_a_part,
    replace_a_number, replace_a_word, replace_a_value, nest, write_a_size,
]  # fmt: skip


def spoilt(rng: np.random.Generator, data: bytes) -> bytes:
    """The bytes of a file after one mutation or two."""
    for _ in range(int(rng.integers(1, 3))):
        data = MUTATIONS[int(rng.integers(0, len(MUTATIONS)))](rng, data)
    return data
