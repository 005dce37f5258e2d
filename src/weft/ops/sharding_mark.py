"""`shard`: a mark on a value that says how it is placed on a mesh.

Without a mesh the mark is the identity. `weft.distributed.partition` reads it.

>>> import weft as wf
>>> from weft.ops.sharding_mark import shard_mark
>>> shard_mark.name
'shard'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.errors import ArgumentError
from weft.core.types import TensorType
from weft.ir.derivatives import linear
from weft.ir.dispatch import apply
from weft.ir.kinds import Movement
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.sharding import REPLICATED, Placement, Split
from weft.ir.tensor import Tensor
from weft.ops import movement_reads as reads

__all__: list[str] = []

Axes = tuple[tuple[str, ...], ...]
"""For each axis of a value the mesh axes that it is split along, the outer one first."""


def _check_marks(x: TensorType, axes: Axes, whole: tuple[str, ...] | None) -> TensorType:
    named = [name for names in axes for name in names]
    if len(axes) != x.ndim or len(set(named)) != len(named):
        raise ArgumentError(
            "shard",
            "not one entry for each axis, or a mesh axis that is named twice",
            expected=f"{x.ndim} entries, and each mesh axis at most once",
            got={"x": x, "axes": axes},
            fix='shard(x, ("data", None)) for a value with two axes',
        )
    return x


def _batch(
    size: Any, operands: tuple[Tensor, ...], places: tuple[int, ...], /, axes: Axes, whole: Any
) -> tuple[Tensor, int]:
    place = places[0]
    wider = (*axes[:place], (), *axes[place:])
    return apply(shard_mark, operands[0], axes=wider, whole=whole), place


def _sample(*axes: tuple[str, ...], whole: tuple[str, ...] | None = None) -> Sample:
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    return Sample((x,), {"axes": axes, "whole": whole})


shard_mark: Primitive = Primitive(
    "shard",
    "The same value, placed on a mesh as it says; `whole` are the mesh axes it is not split along, "
    "None for all others.",
    kind=Movement(reads.of_identity),
    type_rule=_check_marks,
    reference=lambda x, axes, whole: x,
    derivatives=[linear(lambda ct, x, axes, whole: apply(shard_mark, ct, axes=axes, whole=whole))],
    batch=_batch,
    samples=lambda: [_sample(("data",), ()), _sample((), ("data", "model"), whole=("other",))],
    mistakes=lambda: [
        Mistake(
            (np.ones(2, np.float32),), {"axes": (), "whole": None}, ArgumentError, "not one entry"
        )
    ],
)


def placement_along(params: Mapping[str, Any], mesh_axis: str) -> Placement | None:
    """What a mark asks for along one mesh axis; None where it leaves that open."""
    for axis, names in enumerate(params["axes"]):
        if mesh_axis in names:
            return Split(axis)
    whole = params["whole"]
    return REPLICATED if whole is None or mesh_axis in whole else None
