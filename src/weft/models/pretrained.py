"""Published models from a folder: `config.json`, `model.safetensors`, `tokenizer.json`.

    net, tokenizer = wf.models.load_pretrained("folder")

Nothing is downloaded, and no pickle is opened.

>>> from weft.models.pretrained import rename_entries
>>> rename_entries("gpt2", {"transformer.wte.weight": 1, "transformer.h.0.attn.bias": 2})
{'wte.weight': 1}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import weft as wf
from weft import nn
from weft.data.tokenizers import Tokenizer
from weft.files import is_plain_name, read_json
from weft.models.bert import BERT, BERTConfig
from weft.models.configuration import field_of, refuse_larger
from weft.models.gpt import GPT2
from weft.models.gpt_config import GPTConfig
from weft.models.llama import Llama
from weft.models.llama_config import LlamaConfig
from weft.models.tokenization import read_tokenizer


class Pretrained(NamedTuple):
    """A network with its weights, and its tokenizer where the folder holds one."""

    net: Any
    tokenizer: Tokenizer | None


@dataclass(frozen=True)
class Family:
    """How the files of one family of models are read."""

    build: Callable[[Mapping[str, Any], Mapping[str, Any]], nn.Module]
    prefix: str = ""
    """What some files have before every name."""
    ignored: str = r"(?!)"
    """Names of what is no weight: tables that are computed, heads of the training."""


def _llama(config: Mapping[str, Any], state: Mapping[str, Any]) -> nn.Module:
    sizes = LlamaConfig.from_json(config)
    refuse_larger(sizes, state)
    return Llama(replace(sizes, tied=sizes.tied and "lm_head.weight" not in state))


def _gpt2(config: Mapping[str, Any], state: Mapping[str, Any]) -> nn.Module:
    sizes = GPTConfig.from_json(config)
    refuse_larger(sizes, state)
    return GPT2(sizes)


def _bert(config: Mapping[str, Any], state: Mapping[str, Any]) -> nn.Module:
    sizes = BERTConfig.from_json(config)
    refuse_larger(sizes, state)
    return BERT(replace(sizes, pooler="pooler.dense.weight" in state))


_LLAMA = Family(_llama, ignored=r".*rotary_emb\.inv_freq")
FAMILIES = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "gpt2": Family(_gpt2, "transformer.", r"h\.\d+\.attn\.(masked_)?bias"),
    "bert": Family(_bert, "bert.", r"embeddings\.position_ids|cls\..*|classifier\..*"),
}
"""The families that can be loaded, by the `model_type` of their `config.json`."""


def load_pretrained(folder: str | PathLike[str], dtype: Any = None) -> Pretrained:
    """The network and the tokenizer of a folder; dtype: what the weights are kept in.

    The network is in evaluation mode. Names that are missing, unexpected or of another shape are
    errors that list them.
    """
    place = Path(folder)
    config = _read_json(place / "config.json")
    kind = field_of(config, "model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise wf.UnsupportedError(
            "load_pretrained",
            f"there is no network for model_type {kind!r}",
            expected="one of " + ", ".join(FAMILIES),
            got={"folder": str(folder)},
            fix="build the network yourself, and net.load_state_dict(wf.load(path))",
        )
    state = rename_entries(kind, read_weights(place))
    net = FAMILIES[kind].build(config, state)
    if dtype is not None:
        net.to(dtype)
    if getattr(net, "lm_head", 1) is None:
        state.pop("lm_head.weight", None)  # tied: the table of tokens, written twice
    net.load_state_dict(state)
    named = place / "tokenizer.json"
    return Pretrained(net.eval(), read_tokenizer(named) if named.exists() else None)


def read_weights(folder: str | PathLike[str]) -> dict[str, wf.Tensor]:
    """All tensors of a folder by name: `model.safetensors`, or the parts that an index names."""
    place = Path(folder)
    index = place / "model.safetensors.index.json"
    if not index.exists():
        return _tensors(place / "model.safetensors")
    parts = field_of(_read_json(index), "weight_map")
    if not isinstance(parts, dict) or not all(isinstance(name, str) for name in parts.values()):
        raise _unreadable_file(
            index, "its weight_map is not the names of files by the names of tensors"
        )
    tensors: dict[str, wf.Tensor] = {}
    for name in sorted(set(parts.values())):
        if not is_plain_name(name):
            raise _unreadable_file(index, f"a part lies outside the folder: {name}")
        tensors |= _tensors(place / name)
    if lost := sorted(set(parts) - set(tensors)):
        raise _unreadable_file(index, f"no part holds {', '.join(lost[:4])}")
    return tensors


def _tensors(path: Path) -> dict[str, wf.Tensor]:
    tensors = wf.load(path)
    if not isinstance(tensors, dict) or not all(isinstance(x, wf.Tensor) for x in tensors.values()):
        raise _unreadable_file(path, "it does not hold tensors by name")
    return tensors


def rename_entries(kind: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """The entries by our names: without the prefix, and without entries that are no weights."""
    family = FAMILIES[kind]
    short = {name.removeprefix(family.prefix): value for name, value in state.items()}
    return {name: v for name, v in short.items() if not re.fullmatch(family.ignored, name)}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json("load_pretrained", path)
    except (OSError, wf.ArgumentError) as error:
        raise _unreadable_file(path, getattr(error, "problem", str(error))) from error
    if not isinstance(content, dict):
        raise _unreadable_file(path, "it is no JSON object")
    return content


def _unreadable_file(path: Path, reason: str) -> wf.ArgumentError:
    return wf.ArgumentError(
        "load_pretrained",
        f"{path.name} cannot be read: {reason}",
        expected="a folder with config.json and model.safetensors, as Hugging Face writes them",
        got={"path": str(path)},
        fix="copy the whole folder of the model",
    )
