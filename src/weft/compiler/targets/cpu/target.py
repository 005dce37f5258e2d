"""The processor as a target: which nodes have native functions of their own, and what runs plans.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> graph = wf.ir.trace(lambda a, b: a @ b, *[wf.spec("float32", (512, 512))] * 2)
>>> [launch.name for launch in plan_program(graph, CPU).launches]
['pack', 'dot']
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from weft.compiler.graph_passes.collective_axes import move_collective_axes
from weft.compiler.graph_passes.graph_pass import Pass
from weft.compiler.lowering.matrix_products import Product
from weft.compiler.plan.launch import (
    Kind,
    Launch,
    Sizes,
    one,
    static_shape,
    substitute_all,
)
from weft.compiler.plan.planning import plan_program
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cpu.cache.kernels import begin, environment
from weft.compiler.targets.cpu.cache.prefetch_modules import begin_driver, begin_modules
from weft.compiler.targets.cpu.cache.program_store import stored_program
from weft.compiler.targets.cpu.checking.memory import start as start_checking
from weft.compiler.targets.cpu.collectives import collective_launches
from weft.compiler.targets.cpu.convolution import select as convolutions
from weft.compiler.targets.cpu.engine import assembly
from weft.compiler.targets.cpu.factorizations import factorization_launches
from weft.compiler.targets.cpu.fourier import transform_launches
from weft.compiler.targets.cpu.lapack import lapack_launches
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.products.forms import PANEL, arrange_products, product_of
from weft.compiler.targets.cpu.products.loop_weights import turn_loop_weights
from weft.compiler.targets.cpu.products.low_precision import shorten_products, wide_launches
from weft.compiler.targets.cpu.products.select import product_launches
from weft.compiler.targets.cpu.products.tile_plans import TUNER
from weft.compiler.targets.cpu.products.tuning import tuned_plan
from weft.compiler.targets.cpu.runtime.entry_points import entries
from weft.compiler.targets.cpu.runtime.launch_timing import watched_launches
from weft.compiler.targets.cpu.runtime.library_kernels import Layout, failure
from weft.compiler.targets.cpu.runtime.native_calls import Book, begin_books, new_book
from weft.compiler.targets.cpu.runtime.program import Program
from weft.compiler.targets.cpu.sorting import sort_launches
from weft.compiler.targets.limits import Limits, LoweringLimits
from weft.compiler.targets.llvm.machine import Machine
from weft.compiler.targets.target import Array, Executable, Observer
from weft.ir.graph import Graph, GraphNode, Literal
from weft.ir.loops import Kernel
from weft.ops.contraction import dot
from weft.runtime.freed_memory import keep_freed_memory

PANEL_CHUNKS = 8.0
"""How many chunks of element operations take as long as a panel of a product."""


class CpuTarget:
    """This computer's processor."""

    name = "cpu"
    limits = Limits(lowering=LoweringLimits(divided_reduction_elements=1 << 18))

    @property
    def machine(self) -> Machine:
        """What code is generated for."""
        return host()

    @property
    def passes(self) -> tuple[Pass, ...]:
        """See `Target`."""
        shorten = partial(shorten_products, machine=self.machine)
        return (
            Pass("collective axes", move_collective_axes, "on what is sent: as engines take it"),
            Pass("loop weights", turn_loop_weights, "on loops as they are: packed once, not read"),
            Pass("short products", shorten, "those that the machine has instructions for"),
            Pass("product operands", arrange_products, "on what is left: as products take them"),
        )

    def target_at(self, index: int) -> CpuTarget:
        """See `Target`: all processors are one."""
        return self

    def environment(self) -> tuple[str, ...]:
        """See `Target`."""
        return environment()

    def has_convolution(self, node: GraphNode) -> bool:
        """See `Target`."""
        taps = self.limits.lowering.unrolled_depthwise_taps
        return convolutions.is_native(node, taps, self.machine)

    def has_attention(self, node: GraphNode) -> bool:
        """See `Target`."""
        queries = node.operands[0].type.shape[-2]
        return not isinstance(queries, int) or queries >= self.limits.passes.attention_queries

    def takes(self, node: GraphNode) -> bool:
        """See `Target`."""
        return node.primitive is dot and product_of(node) is not None

    def launches(self, node: GraphNode, error: Literal) -> list[Launch] | None:
        """See `Target`."""
        generated = self.generated_launches(node)
        if generated is not None:
            return generated
        sums = collective_launches(node, error)
        if sums is not None:
            return sums
        systems = lapack_launches(node, error)
        if systems is not None:
            return systems
        factors = factorization_launches(node, error) or transform_launches(node)
        if factors is not None:
            return factors
        return [_library_launch(node, error)] if node.primitive.native is not None else None

    def generated_launches(self, node: GraphNode) -> list[Launch] | None:
        """The launches of a node whose functions are generated for the machine; None without."""
        machine = self.machine
        product = product_of(node) if node.primitive is dot else None
        if product is not None:
            return _weighed_products(node, product, product_launches(node, product, machine))
        wide = wide_launches(node, machine)
        if wide is not None:
            return _weighed_products(node, *wide)
        convolution = convolutions.convolution_launches(node, machine)
        if convolution is not None:
            return [_weighed_convolution(launch, node) for launch in convolution]
        return sort_launches(node)

    def start(self) -> None:
        """See `Target`."""
        keep_freed_memory()
        begin_driver()

    def prepare(self, graph: Graph) -> None:
        """See `Target`."""
        begin_modules(graph)

    def begin(self, kernels: Sequence[Kernel]) -> None:
        """See `Target`."""
        begin(kernels)

    def executable(self, plan: ProgramPlan) -> Program:
        """See `Target`."""
        return Program(plan)

    def stored_executable(self, digest: str, compiled: Callable[[], Executable]) -> Executable:
        """See `Target`."""
        return stored_program(digest, compiled)

    def watch(self, observe: Observer) -> AbstractContextManager[None]:
        """See `Target`."""
        return watched_launches(observe)

    def memory_comparison(self) -> Callable[[Array], bool] | None:
        """See `Target`."""
        functions = entries()
        return None if functions is None else functions.same

    def new_book(
        self, handle_class: type, usual: Mapping[str, Any], places: Mapping[str, int]
    ) -> Book | None:
        """See `Target`."""
        begin_books(handle_class, usual, places)
        return new_book()

    def listing(self, kernels: Sequence[Kernel]) -> str:
        """See `Target`."""
        return assembly(kernels)


CPU = CpuTarget()


def compile_program(graph: Graph, fixed: Collection[int] = ()) -> Program:
    """Compile a graph; inputs at the positions `fixed` are expected to stay the same.

    >>> import numpy as np
    >>> import weft as wf
    >>> program = compile_program(wf.ir.trace(lambda x: wf.exp(x) * 2, wf.spec("float32", (3,))))
    >>> program.run([np.zeros(3, np.float32)])[0].tolist()
    [2.0, 2.0, 2.0]
    """
    return CPU.executable(plan_program(graph, CPU, fixed))


start_checking()
TUNER.append(partial(tuned_plan, compile_program))


def _weighed_products(
    node: GraphNode, product: Product, launches: Sequence[Launch]
) -> list[Launch]:
    """The launches of a product with how long each takes."""

    def work(sizes: Sizes) -> float:
        shape = [substitute_all(dim, sizes) for dim in product.shape]
        return PANEL_CHUNKS * math.prod(shape) * 2 / PANEL

    def copying_work(sizes: Sizes) -> float:
        return substitute_all(node.operands[1].type.size, sizes) / CPU.limits.plan.chunk_operations

    return [_with_work(each, copying_work if each.kind is Kind.PACK else work) for each in launches]


def _weighed_convolution(launch: Launch, node: GraphNode) -> Launch:
    def work(sizes: Sizes) -> float:
        return PANEL_CHUNKS * convolutions.flops(node, sizes) / PANEL

    def copying_work(sizes: Sizes) -> float:
        return substitute_all(launch.values[0].type.size, sizes) / CPU.limits.plan.chunk_operations

    return _with_work(launch, work if launch.kind is Kind.CONVOLUTION else copying_work)


def _with_work(launch: Launch, work: Callable[[Sizes], float]) -> Launch:
    return replace(launch, work=work)


def _library_launch(node: GraphNode, error: Literal) -> Launch:
    """The launch of a library's function, for a primitive that has one."""
    native, types = node.primitive.native, [atom.type for atom in node.operands]
    layout = Layout(native, native.kernel(types), len(types), native.values(node.params))
    buffers = (*node.operands, *node.results)

    def launch_numbers(sizes: Sizes) -> list[int]:
        return layout.call_table(
            [(v.type.dtype, static_shape(v.type.shape, sizes)) for v in buffers]
        )

    given = (Literal(layout.data), error, Literal(layout.message))
    return Launch(
        Kind.LIBRARY, node.primitive.name, ("foreign",), (*buffers, *given), node.results,
        launch_numbers, one, one, checked=node,
        report=lambda: failure(native.name, layout.message, types, node.location),
    )  # fmt: skip
