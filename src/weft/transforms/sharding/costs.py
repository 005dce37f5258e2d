"""What moving and computing cost, in seconds: the numbers that a partitioned program is chosen by.

A collective over n devices moves, per device, of a value of B bytes: all-gather and reduce-scatter
(n-1)/n B, all-reduce twice that, all-to-all (n-1)/n B/n. A value that every device holds is cut,
or kept as a term by one device, without any transfer.

>>> import weft as wf
>>> from weft.ir.sharding import REPLICATED, SUM, Split
>>> value = wf.spec("float32", (256,))
>>> [bytes_moved(value, *pair, 4) for pair in ((SUM, REPLICATED), (SUM, Split(0)), (Split(0), SUM))]
[1536.0, 768.0, 768.0]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir.graph import GraphNode
from weft.ir.kinds import Contraction, Elementwise, Gather, Movement
from weft.ir.sharding import REPLICATED, SUM, Partial, Placement, Split, Strategy

FUSED = 0.2
"""The part of its memory traffic that is left of an operation that is fused with others."""


@frozen
class Costs:
    """How fast the devices along a mesh axis compute, and how fast they exchange.

    bandwidth: bytes per second that a device sends along the axis. latency: seconds before a
    collective's first byte. flops: operations of products per second. memory: bytes per second
    that a device reads and writes. overhead: seconds to start a program, whatever it computes.
    `wf.distributed.measure_costs` measures all of them.
    """

    bandwidth: float = 50e9
    latency: float = 1e-6
    flops: float = 100e12
    memory: float = 1e12
    overhead: float = 0.0

    def transfer(self, moved: float) -> float:
        """The seconds of a collective in which each device sends so many bytes."""
        return self.latency + moved / self.bandwidth if moved else 0.0

    def compute(self, node: GraphNode, strategy: Strategy, count: int) -> float:
        """The seconds that one device works on a node."""
        kind = node.primitive.kind
        operands = [atom.type for atom in node.operands]
        results = [result.type for result in node.results]
        # what is gathered from is read at few places
        read = operands[1:] if isinstance(kind, Gather) else operands
        seconds = sum(map(size_in_bytes, (*read, *results))) / self.memory
        if isinstance(kind, Elementwise | Movement):
            seconds *= FUSED
        if isinstance(kind, Contraction):
            operations = kind.operations(operands, results, node.params)
            seconds += (operations if isinstance(operations, int) else 0) / self.flops
        return seconds / count if strategy.is_divided else seconds


def size_in_bytes(kind: TensorType) -> int:
    """The bytes of a value; sizes that are not known count as 1."""
    elements = prod(dim if isinstance(dim, int) else 1 for dim in kind.shape)
    return elements * max(kind.dtype.bits // 8, 1)


def bytes_moved(kind: TensorType, source: Placement, target: Placement, count: int) -> float:
    """The bytes that each device sends to change the placement of a value."""
    if count == 1 or source in (target, REPLICATED):
        return 0.0
    share = (count - 1) / count * size_in_bytes(kind)
    if isinstance(source, Split):
        return share / count if isinstance(target, Split) else share
    return share if isinstance(target, Split) and source == SUM else 2 * share


def conversions(
    kind: TensorType, source: Placement, wanted: Iterable[Placement], count: int
) -> list[tuple[Placement, Placement]]:
    """The changes of placement that give all wanted ones from one source, cheapest in bytes.

    A value that is gathered for one reader is cut for the others: that costs nothing more.
    """
    targets = [each for each in dict.fromkeys(wanted) if each != source]
    if not targets:
        return []
    through_whole = [(source, REPLICATED), *[(REPLICATED, t) for t in targets if t != REPLICATED]]
    if source == REPLICATED:
        return through_whole[1:]
    indirect = any(_goes_through_whole(source, target) for target in targets)
    if REPLICATED in targets or indirect:
        return through_whole
    one_by_one = [(source, target) for target in targets]
    whole_bytes = bytes_moved(kind, source, REPLICATED, count)
    direct_bytes = sum(bytes_moved(kind, *pair, count) for pair in one_by_one)
    return one_by_one if direct_bytes <= whole_bytes else through_whole


def _goes_through_whole(source: Placement, target: Placement) -> bool:
    """Whether no collective leads from one placement to another at once."""
    if isinstance(target, Partial):
        return True
    return isinstance(source, Partial) and source.combine != "add"


def seconds_of_conversions(
    kind: TensorType, changes: Sequence[tuple[Placement, Placement]], count: int, costs: Costs
) -> float:
    """The seconds of several changes of placement, one after the other."""
    return sum(costs.transfer(bytes_moved(kind, *pair, count)) for pair in changes)
