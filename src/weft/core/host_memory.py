"""How much memory the machine has left.

Systems that promise more memory than they have end a process when it writes there, without an
error. So whoever takes much asks here first.

>>> fits_memory(1000)
True
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["CHECKED_BYTES", "available_memory", "fits_memory"]

CHECKED_BYTES = 1 << 28
"""Fewer bytes than these are not worth asking the system about."""


def fits_memory(needed: int) -> bool:
    """Whether so many bytes can be had, as far as the system says."""
    if needed < CHECKED_BYTES:
        return True
    available = available_memory()
    return available is None or needed <= available


def available_memory() -> int | None:
    """How many more bytes this process can have; None where the system does not say."""
    candidates = [_available_on_machine(), _available_in_group()]
    return min([size for size in candidates if size is not None], default=None)


def _available_on_machine() -> int | None:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _available_in_group() -> int | None:
    """The bytes that the container's limit leaves; None if there is no limit."""
    limit, used = _text("/sys/fs/cgroup/memory.max"), _text("/sys/fs/cgroup/memory.current")
    if not limit.strip().isdecimal() or not used.strip().isdecimal():
        return None
    return max(0, int(limit) - int(used))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
