"""What kernels report: an index out of range, seen by the host when it next waits for the card.

A card works beside the host, so no launch can be called back. A kernel that finds an index out of
range leaves it out and writes to a cell that the host reads without a copy. Whoever waits for the
card, or starts the same program again, looks at the cells; the error names the user's line. A
program may be gone before its launches have run, so its cells are known for longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

from weft.compiler.targets.cuda.device import PinnedMemory, device
from weft.core.errors import BoundsError
from weft.core.forks import wait_at_fork
from weft.core.once import made_once
from weft.ir.graph import GraphNode

CELLS = 4096
"""Cells of one page; there are as many pages as launches ask for."""
_ITEM = 4
"""Bytes of a cell."""
_lock = Lock()
wait_at_fork(_lock)


class FaultPages:
    """The cells of one card, each a launch's own."""

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self._pages: list[tuple[int, np.ndarray[Any, Any]]] = []
        self._free: list[int] = []
        self._given: deque[list[int]] = deque()
        """Cells whose program is gone, since somebody waited for the card."""
        self._resting: list[int] = []
        """Such cells from before that: the launches that write to them have run."""
        self._nodes: dict[int, Callable[[], GraphNode]] = {}
        self._used = 0
        """The most cells of a page that were ever taken."""

    def take(self, node: Callable[[], GraphNode]) -> int:
        """The address of a cell for a launch of a node; it stays until it is given back."""
        with _lock:
            if not self._free:
                memory = PinnedMemory(device(self._ordinal), CELLS * _ITEM)
                cells = memory.array(np.int32, (CELLS,))
                cells[:] = 0
                self._pages.append((memory.pointer, cells))
                self._free = [memory.pointer + _ITEM * k for k in reversed(range(CELLS))]
            address = self._free.pop()
            self._used = max(self._used, self._find(address)[1] + 1)
            self._nodes[address] = node
            return address

    def node_at(self, address: int) -> GraphNode:
        """The node of the launch that has a cell."""
        return self._nodes[address]()

    def give(self, addresses: list[int]) -> None:
        """Cells whose program is gone; it takes no lock, as programs are dropped at any time."""
        self._given.append(addresses)

    def reclaim(self) -> None:
        """Use cells again whose program was gone when somebody last waited for the card."""
        with _lock:
            for address in self._resting:
                self._nodes.pop(address, None)
                self._free.append(address)
            self._resting = []
            while self._given:
                self._resting += self._given.popleft()

    def raise_first(self) -> None:
        """Raise the error of the first cell that a kernel wrote to, and clear all."""
        for pointer, cells in self._pages:
            if not cells[: self._used].any():
                continue
            place = int(np.flatnonzero(cells)[0])
            cells[:] = 0
            node = self._nodes.get(pointer + _ITEM * place)
            if node is not None:
                raise _out_of_range(node())

    def _find(self, address: int) -> tuple[np.ndarray[Any, Any], int]:
        for pointer, cells in self._pages:
            if pointer <= address < pointer + CELLS * _ITEM:
                return cells, (address - pointer) // _ITEM
        raise KeyError(address)


def _out_of_range(node: GraphNode) -> BoundsError:
    operands = {f"x{place + 1}": atom.type for place, atom in enumerate(node.operands)}
    return BoundsError(
        node.primitive.name,
        "an index is out of range",
        expected="indices inside the axis that they are for",
        got=operands,
        note="found after the call, as the card works beside the host",
        fix='compute on the CPU to see which: x.to("cpu")',
        at=node.location,
    )


@made_once
def fault_pages(ordinal: int) -> FaultPages:
    """The cells of a card."""
    return FaultPages(ordinal)


def raise_faults(ordinal: int) -> None:
    """Raise what kernels of a card have reported; for whoever has waited for it."""
    pages = fault_pages(ordinal)
    pages.raise_first()
    pages.reclaim()
