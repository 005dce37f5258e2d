"""The files of a published model: tensors by name, whole or in parts, and JSON objects."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import weft as wf
from weft.files import is_plain_name, read_json
from weft.models.configuration import field_of


def read_weights(folder: str | PathLike[str]) -> dict[str, wf.Tensor]:
    """All tensors of a folder by name: `model.safetensors`, or the parts that an index names."""
    place = Path(folder)
    index = place / "model.safetensors.index.json"
    if not index.exists():
        return _tensors(place / "model.safetensors")
    parts = field_of(read_object(index), "weight_map")
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


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
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
