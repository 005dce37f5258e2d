"""Tuning: the ways to make a product are measured, and the fastest one is kept on disk.

With `wf.settings.tuning` on, each product of known sizes is timed in all its ways when it is first
compiled, on this machine and with its threads: some tens of milliseconds each. Results are kept
beside compiled kernels, and found by later processes. Depths of sums differ between the ways, so
that results may differ in their last bits from those without tuning; they are the same every time.

>>> import weft as wf
>>> with wf.settings.changed(tuning=True):
...     wf.jit(lambda a, b: a @ b)(wf.ones((8, 4)), wf.ones((4, 8)))[0, 0].item()
4.0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from weft.compiler.lowering.matrix_products import Product
from weft.compiler.targets.cpu.cache.kernels import environment
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.products.tile_plans import TUNER, Plan, all_plans, read_plan
from weft.compiler.targets.cpu.runtime.program import Program
from weft.core.shapes import is_static
from weft.core.types import TensorType
from weft.ir.graph import Graph, GraphNode, Variable
from weft.ops.contraction import dot
from weft.runtime.cache import entry_key, shared_disk
from weft.runtime.stamps import source_stamp
from weft.runtime.threads import get_num_threads

__all__ = ["tuned_plan"]

SECONDS = 0.01
"""How long one way is repeated."""
CLEAR = 0.95
"""The share of the usual way's time that another must stay under to be preferred."""
ROUNDS = 3
"""How often the ways take turns: a machine that is busy for a while is busy for all."""


Compile = Callable[[Graph], Program]
"""Compiles a graph for this processor."""


def tuned_plan(compile_program: Compile, product: Product) -> Plan | None:
    """The fastest way to make a product of known sizes; measured, if nobody has done it yet."""
    if not is_static(product.shape) or 0 in product.shape:
        return None
    found = _plans.get(product)
    if found is None:
        key = entry_key(f"{product}".encode(), *_circumstances())
        data = shared_disk().get(key)
        if data is None:
            data = str(_fastest_plan(compile_program, product)).encode()
            shared_disk().put(key, data)
        found = _plans[product] = read_plan(data.decode())
    return found


def _circumstances() -> tuple[str, ...]:
    """What times depend on beside the product."""
    return (str(get_num_threads()), source_stamp("compiler"), *environment())


_plans: dict[Product, Plan] = {}


def _fastest_plan(compile_program: Compile, product: Product) -> Plan:
    """The way that took the least time, or the usual one, which comes first, if it is close."""
    arrays = _operands(product)
    runs = {
        plan: _compile_product(compile_program, product, plan)
        for plan in all_plans(product, host())
    }
    best = dict.fromkeys(runs, np.inf)
    for _ in range(ROUNDS):
        for plan, program in runs.items():
            best[plan] = min(best[plan], _seconds(program, arrays))
    first, *_ = runs
    quickest = min(best, key=best.__getitem__)
    return quickest if best[quickest] < CLEAR * best[first] else first


def _seconds(program: Program, arrays: list[np.ndarray]) -> float:
    """The least time of a run."""
    best, end = np.inf, perf_counter() + SECONDS / ROUNDS
    while True:
        start = perf_counter()
        program.run(arrays)
        now = perf_counter()
        best = min(best, now - start)
        if now > end:
            return float(best)


def _compile_product(compile_program: Compile, product: Product, plan: Plan) -> Program:
    """A program of nothing but the product, made in one way."""
    with _force_plan(plan):
        return compile_program(_graph(product))


@contextmanager
def _force_plan(plan: Plan) -> Iterator[None]:
    TUNER.append(lambda product: plan)
    try:
        yield
    finally:
        TUNER.pop()


def _graph(product: Product) -> Graph:
    left, right = [Variable(TensorType(product.dtype, shape)) for shape in _shapes(product)]
    stack, rows, columns, _ = product.shape
    result = Variable(TensorType(product.dtype, (stack, rows, columns)))
    inner = (1 if product.turned[0] else 2,), (2 if product.turned[1] else 1,)
    params = {"contract": inner, "batch": ((0,), (0,))}
    node = GraphNode(dot, (left, right), params, (result,), None)
    return Graph((left, right), (node,), (result,))


def _shapes(product: Product) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of the operands as they lie."""
    stack, rows, columns, terms = [int(dim) for dim in product.shape]
    left, right = product.turned
    return (
        (stack, terms, rows) if left else (stack, rows, terms),
        (stack, columns, terms) if right else (stack, terms, columns),
    )


def _operands(product: Product) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape).astype(product.dtype.numpy) for shape in _shapes(product)]
