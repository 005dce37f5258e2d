"""A loader whose batches are shared by processes, which first compare what they read.

>>> import weft as wf
>>> wf.distributed.init()
>>> data = wf.data.ArrayDataset([0, 1, 2, 3])
>>> loader = share_loader(wf.data.DataLoader(data, batch_size=2))
>>> [batch.tolist() for batch in loader]
[[0, 1], [2, 3]]
>>> wf.distributed.shutdown()
"""

from __future__ import annotations

from typing import Any

from weft.collectives import axis_index, axis_size, find_group
from weft.distributed.group import Group

__all__ = ["order_of_batches", "share_loader"]


def share_loader(loader: Any, mesh_axis: str = "data", *, pad: bool | None = None) -> Any:
    """The loader, which gives this process its part of each batch; see `DataLoader.share`.

    Processes along the axis compare their batches and the order of these first: with another seed
    or batch size on one of them some rows would be read twice, and others never.
    """
    group = find_group("distributed.share_loader", mesh_axis)
    if isinstance(group, Group) and group.size > 1:
        group.compare_facts("distributed.share_loader", {"the data": order_of_batches(loader)})
    loader.share(int(axis_index(mesh_axis).item()), axis_size(mesh_axis), pad=pad)
    return loader


def order_of_batches(loader: Any) -> str:
    """How many batches a loader gives out, and in which order, in a text."""
    place = loader.state_dict() if hasattr(loader, "share") else {}
    place.pop("seed", None)  # what an order comes of; that of what is drawn for items is one's own
    try:
        count = len(loader)
    except (TypeError, NotImplementedError):  # of a generator, or of a stream of items
        count = 0
    return f"{count} batches {place}"
