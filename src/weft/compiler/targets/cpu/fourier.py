"""Fourier transforms in compiled programs, by the loops of NumPy's pocketfft.

A launch transforms along one axis; several axes are one launch each, the last axis first. Rows are
divided over threads. The loops are those that the reference calls. Single precision is computed as
such here, where NumPy takes double precision if nothing is scaled.

>>> import weft as wf
>>> wf.jit(wf.fft.rfft)(wf.ones(4)).tolist()
[(4+0j), 0j, 0j]
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from weft.compiler.plan.launch import Kind, Launch, Sizes, Value, static_shape
from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import symbol_of
from weft.compiler.targets.cpu.numpy_loops import InnerLoop, LoopCall, inner_loop
from weft.compiler.targets.llvm.ir_builder import KERNEL, IRBuilder, Struct, module_text
from weft.core.dtypes import DType, complex64, complex128, float32, float64, real_of
from weft.ir.graph import GraphNode, Variable
from weft.ir.kinds import Transform
from weft.ops.fourier import OPPOSITE

MODULE = "numpy.fft._pocketfft_umath"
CODES = {float32: "f", float64: "d", complex64: "F", complex128: "D"}
WORK = 32_768
"""About how many elements, times the logarithm of a row's length, a chunk of rows should have."""
ROWS = 8
"""Rows that pocketfft transforms side by side: a chunk has a multiple of them."""


def transform_launches(node: GraphNode) -> list[Launch] | None:
    """The launches of a Fourier transform; None for any other node."""
    kind, params = node.primitive.kind, node.params
    if not isinstance(kind, Transform) or any(_loop(node, kind, n) is None for n in (1, 2)):
        return None
    axes = params["axes"] if "axes" in params else (params["axis"],)
    if not axes:
        return None
    # The axes' transforms, the last first; all but the last launch write to memory between.
    between = [Variable(node.results[0].type) for _ in axes[1:]]
    values: list[Value] = [node.operands[0], *between, node.results[0]]
    return [
        _launch(node, kind, axis, (values[place], values[place + 1]))
        for place, axis in enumerate(reversed(axes))
    ]


def _loop(node: GraphNode, kind: Transform, n: int) -> InnerLoop | None:
    """NumPy's loop for a row of n numbers."""
    source, target = node.operands[0].type.dtype, node.results[0].type.dtype
    codes = CODES[source] + CODES[real_of(source)], CODES[target]
    return inner_loop(MODULE, kind.loop(node.params, n), "->".join(codes))


def _launch(node: GraphNode, kind: Transform, axis: int, values: tuple[Value, Value]) -> Launch:
    source, target = values
    assert isinstance(target, Variable)
    norm = node.params["norm"]
    norm = OPPOSITE[norm] if kind.is_inverse(node.params) else norm

    def shapes(sizes: Sizes) -> tuple[int, int, int, int]:
        """How many elements are before, along (in source and target) and after the axis."""
        shape = static_shape(source.type.shape, sizes)
        before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        return before, shape[axis], static_shape(target.type.shape, sizes)[axis], after

    def launch_numbers(sizes: Sizes) -> list[int]:
        before, read, written, after = shapes(sizes)
        n = max(read, written)  # half of a spectrum is never longer than the row
        loop = _loop(node, kind, n)
        assert loop is not None
        group = before if after == 1 else after  # rows that are one step apart
        lines = []
        for value, length in ((source, read), (target, written)):
            size = value.type.dtype.itemsize
            lines += [length * size if after == 1 else size, after * size, length * after * size]
        scale = _scale(norm, n, real_of(source.type.dtype))
        return [loop.function, loop.data, *scale, read, written, max(1, group), *lines]

    def grain(sizes: Sizes) -> int:
        _, read, written, _ = shapes(sizes)
        n = max(read, written)
        return max(ROWS, WORK // (n * n.bit_length()) // ROWS * ROWS)

    def rows(sizes: Sizes) -> int:
        before, _, _, after = shapes(sizes)
        return before * after

    function, name = symbol_of(_rows_address()), node.primitive.name
    return Launch(Kind.TRANSFORM, name, function, values, (target,), launch_numbers, rows, grain)


def _scale(norm: str, n: int, dtype: DType) -> tuple[int, int]:
    """The factor of a transform, as the two halves of a word: its bits, or those and zeros."""
    one = dtype.numpy.type(1)
    factors = {"backward": one, "ortho": one / np.sqrt(dtype.numpy.type(n)), "forward": one / n}
    bits = np.zeros(8 // dtype.itemsize, dtype.numpy)
    bits[0] = factors[norm]
    low, high = bits.view(np.uint32).tolist()
    return low, high


_TABLE = Struct(
    "ptr function, ptr data, i64 low, i64 high, i64 read, i64 written, i64 group,"
    "i64 source_row, i64 source_step, i64 source_group,"
    "i64 target_row, i64 target_step, i64 target_group"
)


@cache
def _rows_address() -> int:
    """The address of a function with a kernel's signature that transforms rows of any dtype."""
    out = IRBuilder("rows", KERNEL, public=True, may_unwind=True)
    table = out.record(_TABLE, "%sizes")
    scale = out.room("i64")
    out.store(out.combine("or", out.combine("shl", table["high"], 32), table["low"]), scale)
    lengths = table.all("read", "written")
    steps = [table["source_row"], "0", *table.all("target_row", "source_step", "target_step")]
    call = LoopCall(out, (table["function"], table["data"]), lengths, steps)
    source, target, row = out.buffer(0), out.buffer(1), out.variable("%begin", "i64")
    with out.repeat():
        out.leave_unless(out.test("slt", row.value, "%end"))
        number, within = (how(row.value, table["group"]) for how in (out.div, out.rem))
        count = out.least(out.sub(table["group"], within), out.sub(out.parameters[3], row.value))
        first = [
            out.add(out.mul(number, table[f"{name}_group"]), out.mul(within, table[f"{name}_row"]))
            for name in ("source", "target")
        ]
        call.run([out.at("i8", source, first[0]), scale, out.at("i8", target, first[1])], count)
        row.value = out.add(row.value, count)
    return text_addresses(module_text(out), ["rows"])["rows"]
