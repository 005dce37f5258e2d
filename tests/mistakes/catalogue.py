"""The catalogue of mistakes, family by family, in the order of the page that shows them.

Each family is a module: its docstring is the family's title, its `FAMILY` the entries.
"""

from __future__ import annotations

from types import ModuleType

from tests.mistakes import (
    arithmetic,
    axes,
    control,
    creation,
    gradients,
    graphs,
    habits,
    indexing,
    products,
    randomness,
    transforms,
)
from tests.mistakes.entry import Mistake

FAMILIES: tuple[ModuleType, ...] = (
    creation,
    arithmetic,
    axes,
    indexing,
    products,
    gradients,
    transforms,
    control,
    graphs,
    randomness,
    habits,
)
MISTAKES: tuple[Mistake, ...] = tuple(entry for family in FAMILIES for entry in family.FAMILY)


def title(family: ModuleType) -> str:
    return (family.__doc__ or "").strip().rstrip(".")
