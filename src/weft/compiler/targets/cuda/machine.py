"""The cards that code is generated for, as the LLVM target's record of a machine.

>>> card("sm_90").triple, card("sm_90").width
('nvptx64-nvidia-cuda', 1)
"""

from __future__ import annotations

from functools import cache

from weft.compiler.targets.llvm.machine import Machine

TRIPLE = "nvptx64-nvidia-cuda"
OLDEST = "sm_80"
"""Code for this processor runs on all later ones: the driver compiles it for the card it finds."""
WARP = 32
"""Threads that run in step."""


@cache
def card(processor: str = OLDEST) -> Machine:
    """A card by the name that LLVM and ptxas have for it."""
    return Machine(TRIPLE, processor, "+ptx80", width=1, masked=False, half=True)
