"""Which way the vectors of a reduction go: along each row, or over neighbouring rows.

Along a row a vector holds partial results of one sum, over rows it holds sums of its own. What is
read side by side in memory decides, and how long the rows are.

>>> import weft as wf
>>> from weft.compiler.fusion.grouping import Group, group
>>> from weft.compiler.lowering.groups import is_lowered
>>> from weft.compiler.targets.cpu.target import CPU
>>> def is_over_rows(axis: int) -> bool:
...     graph = wf.ir.trace(lambda x: wf.sum(x, axis=axis), wf.spec("float32", (8, 9)))
...     (found,) = group(graph, is_lowered, CPU.limits.fusion)
...     return rows_in_vectors(found, CPU.limits.lowering)
>>> is_over_rows(0), is_over_rows(1)
(True, False)
"""

from __future__ import annotations

from weft.compiler.fusion.grouping import Group
from weft.compiler.targets.limits import LoweringLimits
from weft.core.shapes import size
from weft.ir.affine_index import offset
from weft.ir.loops import PARTIALS


def rows_in_vectors(group: Group, limits: LoweringLimits) -> bool:
    """Whether neighbouring elements belong to different rows: then rows go in vectors."""
    if not group.inner or not group.outer or not all(map(group.per_row, group.roots)):
        return False
    inner = range(len(group.outer), len(group.outer + group.inner))
    reads = [offset(i, v.type.shape) for root in group.roots for v, i in root.reads]
    # What is one number for a row, such as its mean, says nothing about how rows lie.
    long = [read for read in reads if any(read.factor(loop) != 0 for loop in inner)] or reads
    row, column = inner.start - 1, inner.stop - 1
    if any(read.factor(row) == 1 and read.factor(column) != 1 for read in long):
        return True
    # A few values for each row, such as the parts of a stack or pairs that lie side by side: they
    # are too few for partial results, and along a row hardly anything is read.
    count = size(group.inner)
    is_short = isinstance(count, int) and count < PARTIALS
    factors = [read.factor(row) for read in reads]
    near = range(1 + limits.near_row_elements)
    return is_short and any(factors) and all(type(f) is int and f in near for f in factors)
