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
from typing import Any, NamedTuple, Self

import weft as wf
from weft import nn
from weft.data.tokenizers import Tokenizer
from weft.models.bert import BERT, BERTConfig
from weft.models.checkpoints import IGNORED, KeyReport
from weft.models.clip import CLIP, CLIPConfig
from weft.models.configuration import field_of, refuse_larger
from weft.models.gpt import GPT2
from weft.models.gpt_config import GPTConfig
from weft.models.llama import Llama
from weft.models.llama_config import LlamaConfig
from weft.models.tokenization import read_tokenizer
from weft.models.vit import ViT, ViTConfig
from weft.models.weight_files import read_object, read_weights
from weft.models.whisper import Whisper, WhisperConfig


class _Pair(NamedTuple):
    net: Any
    tokenizer: Tokenizer | None


class Pretrained(_Pair):
    """A network with its weights, and its tokenizer where the folder holds one.

    `report` says of every name in the files what became of it.
    """

    report: KeyReport

    @classmethod
    def with_report(cls, net: Any, tokenizer: Tokenizer | None, report: KeyReport) -> Self:
        """A pair with the report beside it, so that it unpacks into two."""
        pair = cls(net, tokenizer)
        pair.report = report
        return pair


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


def _vit(config: Mapping[str, Any], state: Mapping[str, Any]) -> nn.Module:
    sizes = ViTConfig.from_json(config)
    refuse_larger(sizes, state)
    head = state.get("classifier.weight")
    labels = 0 if head is None else int(head.shape[0])
    return ViT(replace(sizes, labels=labels, pooler="pooler.dense.weight" in state))


def _clip(config: Mapping[str, Any], state: Mapping[str, Any]) -> nn.Module:
    sizes = CLIPConfig.from_json(config)
    refuse_larger(sizes, state)
    return CLIP(sizes)


def _whisper(config: Mapping[str, Any], state: Mapping[str, Any]) -> nn.Module:
    sizes = WhisperConfig.from_json(config)
    refuse_larger(sizes, state)
    return Whisper(sizes)


_LLAMA = Family(_llama, ignored=r".*rotary_emb\.inv_freq")
FAMILIES = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gpt2": Family(_gpt2, "transformer.", r"h\.\d+\.attn\.(masked_)?bias"),
    "bert": Family(_bert, "bert.", r"embeddings\.position_ids|cls\..*|classifier\..*"),
    "vit": Family(_vit, "vit."),
    "clip": Family(_clip, ignored=r".*\.embeddings\.position_ids"),
    "whisper": Family(_whisper, ignored=r"proj_out\.weight"),
}
"""The families that can be loaded, by the `model_type` of their `config.json`."""


def load_pretrained(folder: str | PathLike[str], dtype: Any = None) -> Pretrained:
    """The network and the tokenizer of a folder; dtype: what the weights are kept in.

    The network is in evaluation mode. Names that are missing, unexpected or of another shape are
    errors that list them.
    """
    place = Path(folder)
    config = read_object(place / "config.json")
    kind = field_of(config, "model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise wf.UnsupportedError(
            "load_pretrained",
            f"there is no network for model_type {kind!r}",
            expected="one of " + ", ".join(FAMILIES),
            got={"folder": str(folder)},
            fix="build the network yourself, and net.load_state_dict(wf.load(path))",
        )
    file = read_weights(place)
    state = rename_entries(kind, file)
    net = FAMILIES[kind].build(config, state)
    if dtype is not None:
        net.to(dtype)
    if getattr(net, "lm_head", 1) is None:
        state.pop("lm_head.weight", None)  # tied: the table of tokens, written twice
    net.load_state_dict(state)
    named = place / "tokenizer.json"
    tokenizer = read_tokenizer(named) if named.exists() else None
    return Pretrained.with_report(net.eval(), tokenizer, _report(kind, file, state, net))


def _report(
    kind: str, file: Mapping[str, Any], state: Mapping[str, Any], net: nn.Module
) -> KeyReport:
    """What became of every name of the files, all of which fitted."""
    prefix = FAMILIES[kind].prefix
    used = {name: short for name in file if (short := name.removeprefix(prefix)) in state}
    unused = {name: IGNORED for name in file if name not in used}
    left = tuple(name for name in net.state_dict() if name not in state)
    return KeyReport(used, unused, (), tied=left)


def rename_entries(kind: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """The entries by our names: without the prefix, and without entries that are no weights."""
    family = FAMILIES[kind]
    short = {name.removeprefix(family.prefix): value for name, value in state.items()}
    return {name: v for name, v in short.items() if not re.fullmatch(family.ignored, name)}
