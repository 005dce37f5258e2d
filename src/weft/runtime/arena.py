"""The arena: the one piece of memory that a program's buffers lie in, kept from call to call.

A program takes a block for a call and gives it back; two calls at once get two blocks. `account`
counts what is allocated here, so that a plan's prediction can be compared with what happened.

>>> from weft.runtime.arena import Arena, account
>>> from weft.runtime.memory import Lifetime, plan
>>> arena, needed = Arena(), plan([Lifetime("x", 1000, 0, 0)])
>>> block = arena.take(needed)
>>> block.address % 64, block.size
(0, 1024)
>>> arena.give(block)
>>> arena.take(needed) is block
True
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import numpy.typing as npt

from weft.core.errors import OutOfMemoryError
from weft.core.forks import renew_in_children
from weft.core.host_memory import CHECKED_BYTES, available_memory
from weft.core.records import frozen
from weft.runtime.memory import ALIGNMENT, MemoryPlan


@dataclass
class Account:
    """How many bytes are allocated now, and the most there have been since the last `reset`."""

    current: int = 0
    peak: int = 0
    _lock: Lock = field(default_factory=lambda: renew_in_children(Lock()), repr=False)

    def add(self, size: int) -> None:
        """Count an allocation, or with a negative size a release."""
        with self._lock:
            self.current += size
            self.peak = max(self.peak, self.current)

    def reset(self) -> None:
        """Let the peak start again from what is allocated now."""
        with self._lock:
            self.peak = self.current


account = Account()
"""What is allocated in this process by `allocate`."""


@frozen(eq=False)
class Block:
    """A piece of memory with an aligned address; it is freed when nothing holds it any more."""

    memory: npt.NDArray[np.uint8]
    address: int

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.memory.size


def allocate(size: int) -> Block:
    """New memory, not initialised, counted in `account` for as long as it lives.

    >>> allocate(100).address % 64
    0
    """
    whole = np.empty(size + ALIGNMENT, np.uint8)
    skipped = -whole.ctypes.data % ALIGNMENT
    memory = whole[skipped : skipped + size]
    account.add(size)
    # The slice keeps the whole alive, also where only an array made from the slice is left.
    weakref.finalize(whole, account.add, -size).atexit = False
    return Block(memory, memory.ctypes.data)


LARGE = 32 << 20
"""The bytes from which a block that is much too large is not kept for ever."""
WASTED = 64
"""How many times in a row such a block may be taken for a quarter of it or less."""


class Arena:
    """The blocks of one program, of at most `limit` bytes each where there is a limit.

    Programs of all sizes may share an arena. A large block that only small ones take any more goes
    back to the system: what a network's weights were drawn in is no memory for its training.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._free: list[Block] = []
        self._wasted = 0

    def take(self, plan: MemoryPlan) -> Block:
        """A block that holds the plan: the one given back last if it is large enough."""
        try:
            block = self._free.pop()
            if block.size >= plan.peak and not self._is_wasted(block, plan):
                return block
            del block  # it goes before its successor comes
        except IndexError:
            pass
        return self._allocate(plan)

    def _is_wasted(self, block: Block, plan: MemoryPlan) -> bool:
        """Whether a large block was taken for little once more, and that is often enough."""
        if block.size < LARGE or 4 * plan.peak > block.size:
            self._wasted = 0
            return False
        self._wasted = (self._wasted + 1) % WASTED
        return self._wasted == 0

    def give(self, block: Block) -> None:
        """Take a block back for the next call."""
        self._free.append(block)

    def release(self) -> None:
        """Free the blocks that are not in use."""
        self._free.clear()

    def _allocate(self, plan: MemoryPlan) -> Block:
        if self.limit is not None and plan.peak > self.limit:
            raise _out_of_memory(plan, self.limit, "was given")
        available = available_memory() if plan.peak >= CHECKED_BYTES else None
        if available is not None and plan.peak > available:
            # Where the system promises more than it has, writing would end the process.
            raise _out_of_memory(plan, available, "can have")
        try:
            return allocate(plan.peak)
        except MemoryError:
            raise _out_of_memory(plan, available_memory(), "can have") from None


def _out_of_memory(plan: MemoryPlan, available: int | None, verb: str) -> OutOfMemoryError:
    largest = plan.largest_live()
    limit = "less" if available is None else readable_size(available)
    got = {buffer.name: readable_size(plan.sizes[buffer.name]) for buffer in largest}
    got |= {b.name: f"{got[b.name]} ({b.at})" for b in largest if b.at is not None}
    return OutOfMemoryError(
        "memory",
        f"the program needs {readable_size(plan.peak)} at once, and {verb} {limit}",
        expected=f"at most {limit}",
        got=got,
        note="the largest values that live together",
        fix="use a smaller batch, 16-bit floats, or wf.checkpoint(f) around its parts",
        at=next((buffer.at for buffer in largest if buffer.at is not None), None),
    )


def readable_size(size: int) -> str:
    """Bytes as people write them.

    >>> readable_size(1536), readable_size(3 * 10**9)
    ('1.5 kB', '3.0 GB')
    """
    amount = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{size} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
