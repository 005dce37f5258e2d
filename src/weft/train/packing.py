"""State taken apart for a file: tensors and arrays by name, and the rest as JSON with their names.

>>> import weft as wf
>>> tensors = {}
>>> text = pack({"step": 3, "moment": wf.tensor([1.0])}, "optimizer", tensors)
>>> text, list(tensors)
({'step': 3, 'moment': {'$tensor': 'optimizer.moment'}}, ['optimizer.moment'])
>>> unpack(text, tensors)["moment"].tolist()
[1.0]
"""

from __future__ import annotations

from typing import Any

import numpy as np

import weft as wf

__all__ = ["pack", "unpack"]

PLAIN = (bool, int, float, str, type(None))


def pack(value: Any, path: str, tensors: dict[str, wf.Tensor]) -> Any:
    """JSON for a value; its tensors are put under their paths into `tensors`."""
    if isinstance(value, wf.Tensor):
        tensors[path] = value.detach()
        return {"$tensor": path}
    if isinstance(value, np.generic):
        return pack(value.item(), path, tensors)
    if isinstance(value, np.ndarray):
        tensors[path] = wf.asarray(value)
        return {"$array": path}
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        items = [pack(item, f"{path}.{i}", tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, dict):
        return _packed_dict(value, path, tensors)
    raise wf.ArgumentTypeError(
        "train.checkpoint",
        f"the state {path} cannot be saved",
        expected="tensors, arrays, numbers, texts, and lists, tuples and dictionaries of them",
        got={path: value},
        fix="return such values from state_dict()",
    )


def _packed_dict(value: dict[Any, Any], path: str, tensors: dict[str, wf.Tensor]) -> Any:
    items = [(key, pack(item, f"{path}.{key}", tensors)) for key, item in value.items()]
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return dict(items)
    return {"$items": [[pack(key, path, tensors), item] for key, item in items]}


def unpack(value: Any, tensors: dict[str, wf.Tensor]) -> Any:
    """The value that `pack` took apart."""
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return tensors[value["$tensor"]]
    if "$array" in value:
        return np.array(tensors[value["$array"]].numpy())
    if "$tuple" in value:
        return tuple(unpack(item, tensors) for item in value["$tuple"])
    if "$items" in value:
        return {unpack(key, tensors): unpack(item, tensors) for key, item in value["$items"]}
    return {key: unpack(item, tensors) for key, item in value.items()}
