"""Kernels of single elements that groups do not take: bits read anew, and parts of matrices.

>>> import weft as wf
>>> wf.jit(lambda x: wf.bitcast(x, wf.uint32))(wf.tensor([1.0])).tolist()
[1065353216]
"""

from __future__ import annotations

from weft.compiler.lowering.builder import KernelBuilder, NodeKernel, kernel_of, nest
from weft.core.shapes import size
from weft.ir import scalars
from weft.ir.loops import Store


@kernel_of("bitcast")
def bitcast(builder: KernelBuilder) -> NodeKernel:
    """The same bits as another dtype."""
    i, count = scalars.index("i"), size(builder.shape(-1))
    store = Store(builder.result, i, scalars.bitcast(builder.operands[0][i], builder.result.dtype))
    return builder.kernel(nest([(i, builder.extent(count))], (store,)), count)


@kernel_of("triangle")
def triangle(builder: KernelBuilder) -> NodeKernel:
    """The elements on one side of a diagonal, zero elsewhere."""
    rows, columns = builder.shape(0)[-2:]
    i, j = scalars.index("i"), scalars.index("j")
    across = j - i % builder.extent(rows)
    offset = scalars.const(builder.params["offset"], across.dtype)
    lower = builder.params["lower"]
    kept = scalars.less_equal(across, offset) if lower else scalars.less_equal(offset, across)
    at = i * builder.extent(columns) + j
    value = scalars.select(kept, builder.operands[0][at], 0)
    loops = [(i, builder.extent(size(builder.shape(0)[:-1]))), (j, builder.extent(columns))]
    return builder.kernel(nest(loops, (Store(builder.result, at, value),)), size(builder.shape(0)))
