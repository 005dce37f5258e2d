"""Running a function on types alone: no values, no graph.

>>> import weft as wf
>>> wf.ir.infer(lambda x: x @ x.T, wf.spec("float32", ("n", 3)))
f32[n, n]
"""

from __future__ import annotations

from typing import Any

from weft.core.types import TensorType
from weft.ir.primitive import Primitive
from weft.ir.tensor import Tensor, Trace, Traced, wrap


class Abstract(Traced):
    """A tensor of which only the type is known."""

    __slots__ = ()


class AbstractTrace(Trace):
    """Computes types and nothing else."""

    name = "type inference"
    is_placed = False

    def __init__(self, *, stages: bool = True) -> None:
        self.stages = stages

    def tensor(self, kind: TensorType) -> Tensor:
        """A tensor of that type in this trace."""
        value = Abstract()
        value.trace = self
        value.type = kind
        return wrap(value)

    def process_primitive(
        self, primitive: Primitive, operands: tuple[Tensor, ...], params: dict[str, Any], types: Any
    ) -> Any:
        """See `Trace`."""
        if primitive.multiple:
            return tuple(self.tensor(kind) for kind in types)
        return self.tensor(types)
