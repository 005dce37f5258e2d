"""Modules that are begun with before a program asks for them, as its graph says that it will.

The functions of products, of convolutions and of the driver are modules of their own, the same for
all programs: LLVM compiles them while the passes go over the graph.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: x @ x, wf.spec("float32", (64, 64)))
>>> sorted(form for form, _ in _used_forms(graph))
['product']
"""

from __future__ import annotations

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
from weft.ir.kinds import Contraction
from weft.runtime.compile_queue import BACKGROUND


def begin_modules(graph: Graph) -> None:
    """Start with the modules that the program of a graph will call, as far as that can be seen."""
    begin_driver()
    for form, dtype in sorted(_used_forms(graph), key=str):
        if dtype in GEMM:
            _begin_contractions(form, dtype)


def begin_driver() -> None:
    """Start with what runs any program: its driver, and the pool of threads."""
    _begin_driver_once()


def _used_forms(graph: Graph) -> set[tuple[str, DType]]:
    """The forms of contractions and their dtypes, also in graphs that the graph holds."""
    found = {
        (node.primitive.kind.form, node.operands[0].type.dtype)
        for node in graph.nodes
        if isinstance(node.primitive.kind, Contraction)
    }
    return found.union(*map(_used_forms, graph.subgraphs()))


@cache
def _begin_driver_once() -> None:
    begin_text(driver.source())
    entry = entry_points.source()
    if entry is not None:
        begin_text(entry)
    BACKGROUND.submit(thread_pool)


@cache
def _begin_contractions(form: str, dtype: DType) -> None:
    for text in _modules(form, dtype):
        begin_text(text)


def _modules(form: str, dtype: DType) -> list[str]:
    """The modules that contractions of a form call; attention is made of loops."""
    tile = tiles.tile_of(dtype, host())
    if form == "product":
        return [gemm.source(tile), row_blocks.source(), grouped_launch.source()]
    return [gathered.source(tile)] if form == "convolution" else []
