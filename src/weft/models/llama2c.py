"""Models and tokenizers in the files of the program llama2.c.

A model file is seven int32 sizes and then float32 weights; a tokenizer file is a list of pieces
with scores.

>>> from weft.models.llama2c import half_split
>>> import numpy as np
>>> half_split(np.array([[0], [1], [2], [3]]), heads=1)[:, 0].tolist()
[0, 2, 1, 3]
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from os import PathLike
from typing import Any

import numpy as np

import weft as wf
from weft.files import read_bytes
from weft.models.llama import Llama
from weft.models.llama_config import LlamaConfig
from weft.models.pieces import PieceTokenizer

Array = np.ndarray[Any, Any]
SIZES = struct.Struct("<7i")


def load_llama2c(path: str | PathLike[str]) -> Llama:
    """The Llama in a llama2.c model file of version 0."""
    data = read_bytes("load_llama2c", path)
    config, is_tied = _read_config(path, data)
    shapes = _shapes(config)
    if len(data) % 4 or len(data) == SIZES.size:
        raise _damaged_file(path, f"{len(data) - SIZES.size} bytes are not whole numbers")
    flat = np.frombuffer(data, "<f4", offset=SIZES.size)
    tables = config.context * config.head_width  # two tables of angles, computed here anew
    head = 0 if is_tied else config.vocabulary * config.width
    if flat.size != sum(map(math.prod, shapes.values())) + tables + head:
        raise _damaged_file(path, f"{flat.size} numbers do not make a model of these sizes")
    arrays = dict(_cut_weights(flat, shapes))
    if not is_tied:
        arrays["head"] = flat[-head:].reshape(config.vocabulary, config.width)
    net = Llama(config)
    net.load_state_dict(dict(_named_weights(arrays, config)))
    return net


def load_llama2c_tokenizer(path: str | PathLike[str], size: int | None = None) -> PieceTokenizer:
    """The tokenizer in a llama2.c tokenizer file: pieces with scores."""
    data = read_bytes("load_llama2c_tokenizer", path)
    pieces: list[bytes] = []
    scores: list[float] = []
    place = 4  # after the length of the longest piece
    try:
        while place < len(data) and len(pieces) != size:
            score, length = struct.unpack_from("<fi", data, place)
            place += 8 + length
            if length < 0 or place > len(data):
                raise _damaged_file(path, f"piece {len(pieces)} is cut off")
            pieces.append(data[place - length : place])
            scores.append(score)
    except struct.error:
        raise _damaged_file(path, f"piece {len(pieces)} is cut off") from None
    return PieceTokenizer(pieces, scores)


def half_split(rows: Array, heads: int) -> Array:
    """Rows of a projection reordered: neighbours that turn as a pair come into different halves."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[-1])  # [heads, head / 2, 2, width]
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _read_config(path: Any, data: bytes) -> tuple[LlamaConfig, bool]:
    if len(data) < SIZES.size:
        raise _damaged_file(path, f"it has {len(data)} bytes")
    width, hidden, layers, heads, kv_heads, vocabulary, context = SIZES.unpack_from(data)
    sizes = (width, hidden, layers, heads, kv_heads, abs(vocabulary), context)
    if min(sizes) < 1 or max(sizes) > 1 << 24 or width % heads or heads % kv_heads:
        raise _damaged_file(path, f"its sizes are {sizes}")
    named = {"vocabulary": abs(vocabulary), "width": width, "hidden": hidden, "layers": layers}
    is_tied = vocabulary > 0
    more = {"heads": heads, "kv_heads": kv_heads, "context": context, "tied": is_tied}
    return LlamaConfig(**named, **more), is_tied


def _shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """What follows the sizes, in order: Hugging Face's names, and shapes over all layers."""
    layers, width, hidden = config.layers, config.width, config.hidden
    shared = config.kv_heads * config.head_width
    return {
        "embed_tokens": (config.vocabulary, width),
        "input_layernorm": (layers, width),
        "self_attn.q_proj": (layers, width, width),
        "self_attn.k_proj": (layers, shared, width),
        "self_attn.v_proj": (layers, shared, width),
        "self_attn.o_proj": (layers, width, width),
        "post_attention_layernorm": (layers, width),
        "mlp.gate_proj": (layers, hidden, width),
        "mlp.down_proj": (layers, width, hidden),
        "mlp.up_proj": (layers, hidden, width),
        "norm": (width,),
    }


def _cut_weights(flat: Array, shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, Array]]:
    place = 0
    for name, shape in shapes.items():
        end = place + math.prod(shape)
        yield name, flat[place:end].reshape(shape)
        place = end


def _named_weights(arrays: dict[str, Array], config: LlamaConfig) -> Iterator[tuple[str, Array]]:
    heads = {"self_attn.q_proj": config.heads, "self_attn.k_proj": config.kv_heads}
    for name, array in arrays.items():
        if name == "head":
            yield "lm_head.weight", array
        elif name in ("embed_tokens", "norm"):
            yield f"model.{name}.weight", array
        else:
            for number, rows in enumerate(array):
                turned = half_split(rows, heads[name]) if name in heads else rows
                yield f"model.layers.{number}.{name}.weight", turned


def _damaged_file(path: Any, reason: str) -> wf.ArgumentError:
    return wf.ArgumentError(
        "load_llama2c",
        f"the file is damaged or of another kind: {reason}",
        expected="a whole llama2.c file of version 0",
        got={"path": str(path)},
        fix="copy the file again",
    )
