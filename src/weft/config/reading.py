"""Settings from a file, a dictionary and the command line, checked as a whole.

>>> from weft.config.reading import read_settings
>>> settings = read_settings({"task": "classifier", "data": {"source": "iris"}}, ["train.epochs=3"])
>>> settings["train"]["epochs"], settings["optimizer"]["kind"]
(3, 'adam')
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from weft.config.documents import Document
from weft.config.keys import SCHEMA
from weft.config.schema import check

__all__ = ["changed_keys", "flat_settings", "read_document", "read_settings"]


def read_settings(
    source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()
) -> dict[str, Any]:
    """All settings, with defaults for what was left out; `overrides` are `key=value`."""
    settings: dict[str, Any] = check(SCHEMA, read_document(source, overrides))
    return settings


def read_document(
    source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()
) -> Document:
    """What a file or a dictionary says, changed by `key=value`, before it is checked."""
    if isinstance(source, Mapping):
        document = Document(copy.deepcopy(dict(source)))
    else:
        document = Document.read(source)
    for text in overrides:
        document.override(text)
    return document


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as keys with dots.

    >>> flat_settings({"optimizer": {"lr": 0.1}, "task": "classifier"})
    {'optimizer.lr': 0.1, 'task': 'classifier'}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The keys that differ between two settings.

    >>> changed_keys({"train": {"epochs": 1, "seed": 0}}, {"train": {"epochs": 2, "seed": 0}})
    ['train.epochs']
    """
    one, other = flat_settings(before), flat_settings(after)
    missing = object()
    keys = dict.fromkeys([*one, *other])
    return [key for key in keys if one.get(key, missing) != other.get(key, missing)]
