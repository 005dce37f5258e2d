"""Programs for batches of all sizes, chosen so that a resumed run gives the same bits.

A program for all sizes may sum in another order than one for a single size. Which of them `wf.jit`
has ready depends on what came before, so here the choice depends on the sizes alone: batches of
the first size have a program of their own, and those that differ from it in the same axes share
one for all such sizes. The first sizes are part of a checkpoint. So the last, short batch of an
epoch costs one more compilation, and no number of other sizes costs a third.

>>> import weft as wf
>>> double = Programs(lambda batch: 2 * batch)
>>> [double(wf.ones(n)).shape for n in (4, 4, 3, 2, 4)]
[(4,), (4,), (3,), (2,), (4,)]
>>> double.compilations
2
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft as wf

__all__ = ["Programs"]

Sizes = list[list[int]]
Pattern = tuple[tuple[int, int, int], ...]


class Programs:
    """A function of a batch and of other arguments, compiled as the module describes."""

    def __init__(self, function: Callable[..., Any], compiled: bool = True) -> None:
        self.function, self.compiled = function, compiled
        self.first: dict[str, Sizes] = {}
        self._programs: dict[tuple[str, Pattern], Any] = {}

    def __call__(self, batch: Any, *args: Any) -> Any:
        """The function's result for this batch."""
        if not self.compiled:
            return self.function(batch, *args)
        tensors, structure = wf.tree.flatten(batch)
        kind = f"{structure!r} {' '.join(map(_kind, tensors))}"
        sizes = [list(getattr(tensor, "shape", ())) for tensor in tensors]
        first = self.first.setdefault(kind, sizes)
        pattern = _pattern(first, sizes)
        program = self._programs.get((kind, pattern))
        if program is None:
            program = self._programs[kind, pattern] = wf.jit(self.function)
        if pattern:
            # Having seen the first sizes, it is compiled for all sizes of what differs from them.
            like_first = [
                _zeros_like(tensor, shape) for tensor, shape in zip(tensors, first, strict=True)
            ]
            program.graph(wf.tree.unflatten(structure, like_first), *args)
        return program(batch, *args)

    @property
    def compilations(self) -> int:
        """How many programs were compiled; those that were only looked at do not count."""
        each = [(pattern, len(p.compilations)) for (_, pattern), p in self._programs.items()]
        return sum(count - 1 if pattern else count for pattern, count in each)


def _kind(tensor: Any) -> str:
    return f"{tensor.dtype}{tensor.ndim}" if isinstance(tensor, wf.Tensor) else repr(tensor)


def _pattern(first: Sizes, sizes: Sizes) -> Pattern:
    """Where sizes differ from the first, and which of them differ alike."""
    classes: dict[tuple[int, int], int] = {}
    return tuple(
        (position, axis, classes.setdefault((old, new), len(classes)))
        for position, (before, now) in enumerate(zip(first, sizes, strict=True))
        for axis, (old, new) in enumerate(zip(before, now, strict=True))
        if old != new
    )


def _zeros_like(tensor: Any, shape: list[int]) -> Any:
    is_tensor = isinstance(tensor, wf.Tensor)
    return wf.zeros(tuple(shape), dtype=tensor.dtype, device=tensor.device) if is_tensor else tensor
