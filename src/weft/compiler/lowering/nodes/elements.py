"""Kernels of single elements that groups do not take: bits read anew, and parts of matrices.

>>> import weft as wf
>>> wf.jit(lambda x: wf.bitcast(x, wf.uint32))(wf.tensor([1.0])).tolist()
[1065353216]
"""

from __future__ import annotations

from weft.compiler.lowering.builder import Draft, SingleKernel, kernel_of, nest
from weft.core.shapes import size
from weft.ir import scalars
from weft.ir.loops import Store


@kernel_of("bitcast")
def bitcast(draft: Draft) -> SingleKernel:
    """The same bits as another dtype."""
    i, count = scalars.index("i"), size(draft.shape(-1))
    store = Store(draft.result, i, scalars.bitcast(draft.operands[0][i], draft.result.dtype))
    return draft.kernel(nest([(i, draft.extent(count))], (store,)), count)


@kernel_of("triangle")
def triangle(draft: Draft) -> SingleKernel:
    """The elements on one side of a diagonal, zero elsewhere."""
    rows, columns = draft.shape(0)[-2:]
    i, j = scalars.index("i"), scalars.index("j")
    across = j - i % draft.extent(rows)
    offset = scalars.const(draft.params["offset"], across.dtype)
    lower = draft.params["lower"]
    kept = scalars.less_equal(across, offset) if lower else scalars.less_equal(offset, across)
    at = i * draft.extent(columns) + j
    value = scalars.select(kept, draft.operands[0][at], 0)
    loops = [(i, draft.extent(size(draft.shape(0)[:-1]))), (j, draft.extent(columns))]
    return draft.kernel(nest(loops, (Store(draft.result, at, value),)), size(draft.shape(0)))
