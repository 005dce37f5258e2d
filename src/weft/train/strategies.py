"""How a trainer uses several processes: `Trainer(strategy="data")`, or "zero1" and "zero2".

Each process takes its part of every batch. Loss and gradients are those of the whole batch on all
processes, whatever the sizes of the parts; files are written by the first process alone.

>>> import weft as wf
>>> from weft.train.strategies import find_strategy
>>> find_strategy(None).size
1
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import weft as wf

__all__ = ["STRATEGIES", "DataStrategy", "Strategy", "find_strategy"]

STRATEGIES = {"data": 0, "zero1": 1, "zero2": 2}
"""The strategies, and what of the optimiser each splits; see `wf.distributed.data_parallel`."""


class Strategy:
    """One process: nothing is shared. What is shared with others is written anew by a subclass."""

    rank = 0
    size = 1

    def share_optimizer(self, optimizer: Any) -> None:
        """Have the optimiser's steps take part."""

    def share_loader(self, loader: Any) -> Any:
        """The loader, which gives this process its part of each batch."""
        return loader

    def own_batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches that this process evaluates."""
        return iter(batches)

    def weigh(self, loss: wf.Tensor, rows: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        """A loss as the mean of all processes' gradients needs it, and what is told of it."""
        return loss, loss.detach()

    def mean_rows(self, rows: wf.Tensor) -> wf.Tensor:
        """The mean of all processes' numbers of rows."""
        return rows

    def read_loss(self, told: wf.Tensor) -> tuple[float, str]:
        """The loss of the whole batch; and where a number is missing, what is known of it."""
        return told.item(), ""

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """The sums of all processes' numbers."""
        return list(numbers)

    def join_metrics(self, metrics: Sequence[Any]) -> None:
        """Make the counts of metrics those of all processes."""

    def write_once(self, write: Any) -> Any:
        """What a function returns that writes files, which one process calls."""
        return write()


class DataStrategy(Strategy):
    """Data parallel training over the mesh axis "data"."""

    def __init__(self, zero: int) -> None:
        if not wf.distributed.is_initialized():
            wf.distributed.init()
        self.zero = zero
        self.rank = wf.distributed.rank()
        self.size = wf.distributed.axis_size("data")

    def share_optimizer(self, optimizer: Any) -> None:
        """See `Strategy`."""
        wf.distributed.data_parallel(optimizer, zero=self.zero)

    def share_loader(self, loader: Any) -> Any:
        """See `Strategy`; batches that are no loader's are the same on all processes."""
        if hasattr(loader, "share"):
            loader.share(self.rank, self.size)
        return loader

    def own_batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """See `Strategy`."""
        return (each for i, each in enumerate(batches) if i % self.size == self.rank)

    def weigh(self, loss: wf.Tensor, rows: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        """See `Strategy`: the mean over all rows, and beside it the loss of this process."""
        own = loss.detach()
        share = rows / self.mean_rows(rows)
        whole = wf.distributed.all_reduce(own * share, "data", op="mean")
        return loss * share, wf.stack([whole, own])

    def mean_rows(self, rows: wf.Tensor) -> wf.Tensor:
        """See `Strategy`."""
        mean: wf.Tensor = wf.distributed.all_reduce(rows, "data", op="mean")
        return mean

    def read_loss(self, told: wf.Tensor) -> tuple[float, str]:
        """See `Strategy`."""
        whole, own = told.tolist()
        if not math.isnan(whole):
            return whole, ""
        flags = wf.distributed.gather_objects(math.isnan(own))
        ranks = [str(rank) for rank, is_nan in enumerate(flags) if is_nan]
        return whole, f" on rank {', '.join(ranks)}" if ranks else ""

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """See `Strategy`."""
        rows = wf.distributed.gather_objects(list(numbers))
        return [sum(column) for column in zip(*rows, strict=True)]

    def join_metrics(self, metrics: Sequence[Any]) -> None:
        """See `Strategy`."""
        states = wf.distributed.gather_objects([metric.state for metric in metrics])
        for metric, each in zip(metrics, zip(*states, strict=True), strict=True):
            metric.state = metric.joined_state(each)

    def write_once(self, write: Any) -> Any:
        """See `Strategy`; the others wait, and an error of the writer is theirs, too."""
        result, error = None, None
        if self.rank == 0:
            try:
                result = write()
            except Exception as raised:
                error = raised
        result, failed = wf.distributed.broadcast_object((result, error))
        if failed is not None:
            raise error or failed
        return result


def find_strategy(name: str | None) -> Strategy:
    """The strategy of a name; None is that of one process."""
    if name is None:
        return Strategy()
    if name not in STRATEGIES:
        raise wf.ArgumentError(
            "train.Trainer",
            "there is no such strategy",
            expected="None, or one of " + ", ".join(STRATEGIES),
            got={"strategy": name},
            fix='strategy="data"',
        )
    return DataStrategy(STRATEGIES[name])
