"""Weights in encrypted files: AES-256-GCM, with a key from the environment, a function, or bytes.

    wf.deploy.save_encrypted(net.state_dict(), "weights.enc")     # key: WEFT_WEIGHTS_KEY
    net.load_state_dict(wf.deploy.load_encrypted("weights.enc"))

A file is a header and pieces of 1 MiB, each sealed on its own. The header and a piece's number are
part of what is sealed, and so is whether it is the last: a file that was changed, cut off, put
together from others or given another header is refused before anything of it is read. What this
protects, and what not, is in docs/prepare_inference.md.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import secrets
import struct
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.serialization import BY_NAME, NAMES

__all__ = ["load_encrypted", "save_encrypted"]

VARIABLE = "WEFT_WEIGHTS_KEY"
"""The variable of the environment that holds the key, if nothing else is said."""
KEY_BYTES, TAG_BYTES = 32, 16
PIECE = 1 << 20
MAGIC = b"WEFTENC1"
HEADER = struct.Struct("<8s8sQ")
"""What the file is, the random beginning of its nonces, and how many bytes are inside."""
Key = bytes | str | Callable[[], bytes | str] | None


def save_encrypted(
    state: Mapping[str, Any],
    path: str | PathLike[str],
    *,
    key: Key = None,
    strip_names: bool = False,
) -> None:
    """Write tensors by name into an encrypted file, whole or not at all.

    key: 32 bytes, or their text in hexadecimal or base64; or a function that gives them; else the
    variable WEFT_WEIGHTS_KEY. strip_names: tensors are called by numbers in the order of their
    names, so that the file does not tell of the network's parts even to those who have the key.
    """
    cipher = _cipher("save_encrypted", key)
    names = sorted(state)
    entries = {f"{n:06d}" if strip_names else name: state[name] for n, name in enumerate(names)}
    plain = _safetensors(entries)
    header = HEADER.pack(MAGIC, secrets.token_bytes(8), len(plain))
    place = Path(path)
    part = place.with_name(f".{place.name}.part")
    try:
        with open(part, "wb") as file:
            file.write(header)
            for number, start in enumerate(range(0, max(1, len(plain)), PIECE)):
                is_last = start + PIECE >= len(plain)
                nonce, sealed = _seal_names(header, number, is_last)
                file.write(cipher.encrypt(nonce, plain[start : start + PIECE], sealed))
        os.replace(part, place)
    finally:
        part.unlink(missing_ok=True)


def load_encrypted(
    path: str | PathLike[str], *, key: Key = None, like: wf.nn.Module | None = None
) -> dict[str, wf.Tensor]:
    """The tensors of an encrypted file by name.

    like: a module whose names the tensors get, where they were written with `strip_names`.
    """
    cipher = _cipher("load_encrypted", key)
    data = Path(path).read_bytes()
    plain = b"".join(_opened_pieces(cipher, data, path))
    tensors = _tensors(plain)
    if like is None:
        return tensors
    names = sorted(like.state_dict())
    if len(names) != len(tensors):
        raise _unreadable_file(
            path, f"it holds {len(tensors)} tensors, and the module {len(names)}"
        )
    return dict(zip(names, [tensors[each] for each in sorted(tensors)], strict=True))


def _opened_pieces(cipher: Any, data: bytes, path: Any) -> Iterator[bytes]:
    invalid = import_module("cryptography.exceptions").InvalidTag
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise _unreadable_file(path, "it is no encrypted file of Weft")
    header, (_, _, length) = data[: HEADER.size], HEADER.unpack_from(data)
    count = max(1, -(-length // PIECE))
    if len(data) != HEADER.size + length + count * TAG_BYTES:
        raise _unreadable_file(path, "it is cut off, or longer than it says")
    sealed_piece = PIECE + TAG_BYTES
    for number in range(count):
        start = HEADER.size + number * sealed_piece
        nonce, names = _seal_names(header, number, number == count - 1)
        try:
            yield cipher.decrypt(nonce, data[start : start + sealed_piece], names)
        except invalid:
            raise _unreadable_file(
                path, "the key is another one, or the file was changed"
            ) from None


def _seal_names(header: bytes, number: int, is_last: bool) -> tuple[bytes, bytes]:
    """The nonce of a piece, no two of which are alike, and what is sealed beside its bytes."""
    start = header[8:16]
    return start + struct.pack("<I", number), header + struct.pack("<QB", number, is_last)


def _safetensors(entries: Mapping[str, Any]) -> bytes:
    """Tensors as a safetensors file has them, in memory: nothing plain is written to a disk."""
    header: dict[str, Any] = {}
    data: list[bytes] = []
    end = 0
    for name, value in entries.items():
        tensor = wf.asarray(value).detach()
        if tensor.dtype not in NAMES:
            raise wf.UnsupportedError(
                "save_encrypted",
                f"{name} is of a dtype that files of weights do not hold",
                expected="one of " + ", ".join(each.name for each in NAMES),
                got={name: tensor},
                fix="write real and imaginary parts as two tensors",
            )
        data.append(np.asarray(tensor.numpy(), order="C").tobytes())
        begin, end = end, end + len(data[-1])
        kind, shape = NAMES[tensor.dtype], [int(size) for size in tensor.shape]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *data])


def _tensors(plain: bytes) -> dict[str, wf.Tensor]:
    """The tensors in memory; who has the key wrote them, so they are what they say."""
    start = 8 + int.from_bytes(plain[:8], "little")
    tensors: dict[str, wf.Tensor] = {}
    for name, entry in json.loads(plain[8:start]).items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(plain[start + begin : start + end], BY_NAME[entry["dtype"]].numpy)
        tensors[name] = wf.asarray(array.reshape(entry["shape"]))
    return tensors


def _cipher(op: str, key: Key) -> Any:
    """What seals and opens, with the key that was given."""
    try:
        ciphers = import_module("cryptography.hazmat.primitives.ciphers.aead")
    except ImportError as error:
        raise wf.UnsupportedError(
            op,
            "encryption needs the package cryptography",
            expected="cryptography",
            got={"installed": False},
            fix="pip install 'weft[protect]'",
        ) from error
    return ciphers.AESGCM(_key_bytes(op, key() if callable(key) else key))


def _key_bytes(op: str, key: bytes | str | None) -> bytes:
    given = os.environ.get(VARIABLE) if key is None else key
    found = _decoded_text(given) if isinstance(given, str) else given
    if not isinstance(found, bytes) or len(found) != KEY_BYTES:
        where = f"the variable {VARIABLE}" if key is None else "key"
        raise wf.ArgumentError(
            op,
            f"{where} holds no key" if given is not None else f"{where} is not set",
            expected=f"{KEY_BYTES} bytes, or their text in hexadecimal or base64",
            got={"bytes": len(found) if isinstance(found, bytes) else None},  # never the key
            fix=f'export {VARIABLE}=$(python -c "import secrets; print(secrets.token_hex(32))")',
        )
    return found


def _decoded_text(text: str) -> bytes | None:
    try:
        return bytes.fromhex(text)
    except ValueError:
        pass
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _unreadable_file(path: Any, why: str) -> wf.ArgumentError:
    return wf.ArgumentError(
        "load_encrypted",
        f"the file cannot be opened: {why}",
        expected="a file that wf.deploy.save_encrypted wrote, and its key",
        got={"path": str(path)},
        fix=f"check the key ({VARIABLE}), and copy the file again",
    )
