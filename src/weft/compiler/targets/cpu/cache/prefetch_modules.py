"""Modules that are begun with before a program asks for them, as its graph says that it will.

The functions of products, of convolutions and of the driver are modules of their own, the same for
all programs: LLVM compiles them while the passes go over the graph.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: x @ x, wf.spec("float32", (64, 64)))
>>> sorted(name for name, _ in _used(graph))
['dot']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from weft.compiler.targets.cpu.cache.kernels import begin_text
from weft.compiler.targets.cpu.convolution import gathered
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.products import gemm, tiles
from weft.compiler.targets.cpu.products.forms import GEMM
from weft.compiler.targets.cpu.runtime import driver, entry_points, grouped_launch, row_blocks
from weft.compiler.targets.cpu.runtime.thread_pool import thread_pool
from weft.core.dtypes import DType
from weft.ir.graph import Graph
from weft.runtime.compile_queue import BACKGROUND


def begin_modules(graph: Graph) -> None:
    """Start with the modules that the program of a graph will call, as far as that can be seen."""
    begin_driver()
    for name, dtype in sorted(_used(graph), key=str):
        if dtype in GEMM:
            _begin(name, dtype)


def begin_driver() -> None:
    """Start with what runs any program: its driver, and the pool of threads."""
    _begin("driver", None)


def _used(graph: Graph) -> set[tuple[str, DType]]:
    """The primitives with modules of their own, and their dtypes, also in graphs that it holds."""
    found = {
        (node.primitive.name, node.operands[0].type.dtype)
        for node in graph.nodes
        if node.primitive.name in _MODULES
    }
    return found.union(*map(_used, graph.subgraphs()))


@cache
def _begin(name: str, dtype: DType | None) -> None:
    for text in _MODULES[name](dtype):
        begin_text(text)
    if name == "driver":
        BACKGROUND.submit(thread_pool)


def _driver(dtype: DType | None) -> Iterator[str]:
    yield driver.source()
    entry = entry_points.source()
    if entry is not None:
        yield entry


def _products(dtype: DType | None) -> Iterator[str]:
    assert dtype is not None
    yield gemm.source(tiles.tile_of(dtype, host()))
    yield from (row_blocks.source(), grouped_launch.source())


def _convolutions(dtype: DType | None) -> Iterator[str]:
    assert dtype is not None
    yield gathered.source(tiles.tile_of(dtype, host()))


_MODULES: dict[str, Callable[[DType | None], Iterator[str]]] = {
    "driver": _driver,
    "dot": _products,
    "conv": _convolutions,
    "conv_input_gradient": _convolutions,
    "conv_weight_gradient": _convolutions,
}
"""The text of the modules that a primitive needs."""
