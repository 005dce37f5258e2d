"""What a `config.json` says: fields that must be there, and values that are understood.

>>> from weft.models.configuration import field_of
>>> field_of({"hidden_size": 64}, "hidden_size")
64
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import weft as wf


def field_of(config: Mapping[str, Any], name: str) -> Any:
    """A field that a model cannot be built without."""
    if name not in config:
        raise wf.ArgumentError(
            "config.json",
            f"the field {name!r} is missing",
            expected=f"{name}, as Hugging Face writes it",
            got={"fields": ", ".join(sorted(config)) or "none"},
            fix="copy the whole config.json of the model",
        )
    return config[name]


def refuse_unless(config: Mapping[str, Any], name: str, known: Collection[Any]) -> None:
    """Refuse a value that would need other code than there is, where a field is given."""
    value = config.get(name)
    if name in config and value not in known:
        raise wf.UnsupportedError(
            "config.json",
            f"there is no code for {name} = {value!r}",
            expected="one of " + ", ".join(map(repr, known)),
            got={name: value},
            fix="load another model of this shape",
        )
