"""Functions that travel to worker processes: they must be importable there, and quick to import."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.data import Dataset, item_generator, worker_info


class Numbers(Dataset):
    """0, 1, 2 … as items."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int, /) -> int:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return index


class Lengths(Dataset):
    """Item i is an array of i + 1 ones."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int, /) -> np.ndarray:
        return np.ones(index + 1, np.float32)


class Unpicklable(Exception):
    """An exception that cannot be sent."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__("no way back")


def noisy(item: Any, generator: np.random.Generator) -> Any:
    return item + generator.normal(size=3)


def noisy_inside(item: Any) -> Any:
    return item + item_generator().normal(size=3)


def as_record(item: int) -> dict[str, Any]:
    return {"x": np.full((2, 3), item, np.float32), "pair": (item, item / 2), "name": f"n{item}"}


def fail_at_seven(item: int) -> int:
    if item == 7:
        raise KeyError("seven")
    return item


def fail_unpicklably(item: int) -> int:
    raise Unpicklable(1, 2)


def leave(item: int) -> int:
    raise SystemExit(0)


def exit_at_seven(item: int) -> int:
    if item == 7:
        os._exit(3)
    return item


def kill_at_seven(item: int) -> int:
    if item == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def growing(item: int) -> np.ndarray:
    return np.full((item + 1) * 5000, item, np.float64)


def write_to(item: np.ndarray) -> np.ndarray:
    item += 1
    return item


def where(item: int) -> int:
    info = worker_info()
    return -1 if info is None else info.count


def process(item: int) -> int:
    return os.getpid()


def squares() -> Iterator[int]:
    for number in range(23):
        yield number**2


def is_even(item: int) -> bool:
    return item % 2 == 0


def wait_for_ever(item: int) -> int:
    while item >= 4:
        signal.pause()
    return item


def set_flag(index: int) -> None:
    os.environ["WEFT_TEST_FLAG"] = str(index)


def flag(item: int) -> int:
    return int(os.environ.get("WEFT_TEST_FLAG", "-1"))


class Connect:
    """Opens a database file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path)
