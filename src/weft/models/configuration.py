"""What a `config.json` says: fields that must be there, and values that are understood.

>>> from weft.models.configuration import field_of
>>> field_of({"hidden_size": 64}, "hidden_size")
64
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import weft as wf

LARGEST_SIZE = 1 << 24


class Sizes(Protocol):
    """The sizes of a model."""

    @property
    def matrix_elements(self) -> int:
        """How many numbers its matrices hold."""


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


def size_of(
    config: Mapping[str, Any], name: str, default: int | None = None, least: int = 1
) -> int:
    """A size: an integer, positive unless less is allowed, and no larger than any model has.

    >>> size_of({"hidden_size": 64}, "hidden_size")
    64
    """
    value = field_of(config, name) if default is None else config.get(name, default)
    if type(value) is not int or not least <= value < LARGEST_SIZE:
        raise wf.ArgumentError(
            "config.json",
            f"{name} is no size",
            expected=f"an integer from {least} to {LARGEST_SIZE - 1}",
            got={name: value},
            fix="copy the whole config.json of the model",
        )
    return value


def number_of(config: Mapping[str, Any], name: str, default: float) -> float:
    """A number that is finite and not negative."""
    value = config.get(name, default)
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise wf.ArgumentError(
            "config.json",
            f"{name} is no number that a model can have",
            expected="a number of at least 0",
            got={name: value},
            fix="copy the whole config.json of the model",
        )
    return float(value)


def refuse_larger(sizes: Sizes, state: Mapping[str, Any]) -> None:
    """Refuse sizes whose weights are not in the file, before memory is taken for them."""
    held = sum(getattr(value, "size", 0) for value in state.values())
    if sizes.matrix_elements > held:
        raise wf.ArgumentError(
            "load_pretrained",
            "the sizes in config.json are larger than the weights beside it",
            expected=f"at least {sizes.matrix_elements} numbers",
            got={"numbers": held, "config": sizes},
            fix="copy the whole folder of the model",
        )


def refuse_uneven(op: str, width: int, heads: int, shared: int) -> None:
    """Refuse heads that a width cannot be divided into, or that cannot share keys and values."""
    if width % heads or heads % shared:
        raise wf.ArgumentError(
            op,
            "the width cannot be divided into the heads",
            expected="width % heads == 0, and heads % kv_heads == 0",
            got={"width": width, "heads": heads, "kv_heads": shared},
            fix="copy the whole config.json of the model",
        )


def refuse_unless(config: Mapping[str, Any], name: str, known: Collection[Any]) -> None:
    """Refuse a value that would need other code than there is, where a field is given."""
    value = config.get(name)
    if name in config and (isinstance(value, list | dict) or value not in known):
        raise wf.UnsupportedError(
            "config.json",
            f"there is no code for {name} = {value!r}",
            expected="one of " + ", ".join(map(repr, known)),
            got={name: value},
            fix="load another model of this shape",
        )
