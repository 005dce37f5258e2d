"""What cards of a compute capability have. Where there is no card, plans are made for the newest.

>>> has_warpgroup_products(0) in (True, False)
True
"""

from __future__ import annotations

from weft.compiler.targets.cuda.device import device
from weft.compiler.targets.cuda.driver import is_available

HOPPER = (9, 0)
AMPERE = (8, 0)


def has_warpgroup_products(ordinal: int) -> bool:
    """Whether four warps multiply together, and bulk copies bring their operands: Hopper alone."""
    return not is_available() or device(ordinal).capability == HOPPER


def has_warp_products(ordinal: int) -> bool:
    """Whether single warps multiply short floats: since Ampere."""
    return not is_available() or device(ordinal).capability >= AMPERE


def multiprocessor_count(ordinal: int = 0) -> int:
    """The multiprocessors of a card; those of an H200 where there is none, and plans are made."""
    return device(ordinal).multiprocessors if is_available() else 132
