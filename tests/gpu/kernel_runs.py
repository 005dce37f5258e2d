"""Kernels of the loop language by themselves on a card, with NumPy arrays as their buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.compiler.targets.cuda.code import Code, KernelCode
from weft.compiler.targets.cuda.device import Stream, device
from weft.ir.loops import Kernel

Array = np.ndarray[Any, Any]


def card_code(kernel: Kernel) -> KernelCode:
    """A kernel on the first card."""
    return Code([kernel], device()).code_of(kernel)


def run_kernel(
    kernel: Kernel,
    arrays: Sequence[Array],
    sizes: Sequence[int] = (),
    compiled: KernelCode | None = None,
) -> list[Array]:
    """Run a kernel on the first card; flat copies of the arrays after it."""
    target = device()
    target.make_current()
    code = compiled or card_code(kernel)
    stream = Stream(target)
    memories = []
    for array in arrays:
        memory = stream.allocate(array.nbytes)
        stream.upload(memory, array)
        memories.append(memory)
    named = dict(zip(code.sizes, sizes, strict=True))
    launches, held = code.launches(stream, [memory.pointer for memory in memories], named)
    for launch in launches:
        launch(stream)
    results = [np.empty_like(np.ascontiguousarray(array)) for array in arrays]
    for result, memory in zip(results, memories, strict=True):
        stream.download(result, memory)
    stream.synchronize()
    del held
    return results
