"""Plans: the ways in which a product can be made, and which one is chosen.

The usual plan follows from sizes, by what was measured on a few machines. Where `settings.tuning`
is on, a tuner (tuning.py) is asked instead: it has measured the ways on this machine.

>>> from weft.compiler.lowering.matrix_products import Product
>>> from weft.compiler.targets.cpu.machine import host
>>> from weft.core.dtypes import float32
>>> product = Product(float32, (1, 512, 512, 512), (False, False))
>>> turned = Product(float32, (1, 64, 64, 64), (False, True))
>>> usual_plan(product, host()), usual_plan(turned, host()).packed
(Plan(form='rows', packed=True, depth=4096, block=192), True)
>>> [str(plan) for plan in all_plans(product, host())][:2]
['usual', 'rows packed 4096 192']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product as combinations

from weft.compiler.lowering.matrix_products import Product
from weft.compiler.targets.cpu.products.forms import gemm_address
from weft.compiler.targets.cpu.products.tiles import tile_of
from weft.compiler.targets.llvm.machine import Machine
from weft.core.records import frozen
from weft.core.settings import settings

DEPTH = 4096
"""Bytes of a row of the left operand that are multiplied at a time."""
BLOCK = 192
"""Rows that are multiplied by a panel while it is in cache."""
LOW = 48
"""Rows up to which threads divide columns."""
FEW, WIDE = 256, 256
"""The same for a wide right operand, which is then read once; and how many columns that has."""
SMALL = 64 * 1024
"""Elements of a right operand that are quick to reach as they lie."""


@frozen
class Plan:
    """How a product is made: by `rows`, by `columns`, by the `blas`, or as it is `usual`.

    packed: the right operand is copied into panels first; depth: bytes of a row of the left operand
    that are multiplied at a time; block: rows that are multiplied by a panel while it is in cache.
    """

    form: str
    packed: bool = False
    depth: int = DEPTH
    block: int = BLOCK

    def __str__(self) -> str:
        if self.form in ("blas", "usual"):
            return self.form
        return f"{self.form} {'packed' if self.packed else 'plain'} {self.depth} {self.block}"


def read_plan(text: str) -> Plan:
    """The plan that a text stands for.

    >>> read_plan("columns plain 2048 192") == Plan("columns", False, 2048)
    True
    """
    form, *rest = text.split()
    return Plan(form, rest[0] == "packed", int(rest[1]), int(rest[2])) if rest else Plan(form)


TUNER: list[Callable[[Product], Plan | None]] = []
"""Finds the plan that was measured to be the fastest, where there is one."""


def measured_plan(product: Product) -> Plan | None:
    """The plan that was measured; None for the usual way."""
    return TUNER[-1](product) if settings.tuning and TUNER else None


def usual_plan(product: Product, machine: Machine) -> Plan:
    """The plan for tiles that follows from the sizes."""
    stack, rows, columns, terms = product.shape
    is_low = isinstance(rows, int) and rows <= LOW
    known = isinstance(columns, int) and isinstance(terms, int)
    is_quick = is_low or (known and columns * terms <= SMALL)
    is_wide = known and stack == 1 and columns >= WIDE and not product.turned[0]
    by_columns = is_low or (is_wide and isinstance(rows, int) and rows <= FEW)
    packed = not (is_quick and may_stay(product, machine))
    return Plan("columns" if by_columns else "rows", packed)


def may_stay(product: Product, machine: Machine) -> bool:
    """Whether tiles can read the right operand as it lies."""
    tile, columns = tile_of(product.dtype, machine), product.shape[2]
    whole = isinstance(columns, int) and columns % tile.columns == 0
    return not product.turned[1] and (whole or tile.masked)


def all_plans(product: Product, machine: Machine) -> Iterator[Plan]:
    """All plans of a product whose sizes are known, the usual one first."""
    _, rows, _, terms = [int(dim) for dim in product.shape]
    first = usual_plan(product, machine)
    found = dict.fromkeys([Plan("usual")])
    packing = (True, False) if may_stay(product, machine) else (True,)
    depths = [DEPTH, DEPTH // 2, DEPTH // 4, DEPTH * 2]
    for packed, depth in combinations(packing, depths):
        found[Plan("rows", packed, depth)] = None
        if rows <= 4 * LOW:
            found[Plan("columns", packed, depth)] = None
    for block in (BLOCK // 2, BLOCK * 2):
        found[Plan("rows", first.packed, DEPTH, block)] = None
    if gemm_address(product.dtype) is not None:
        found[Plan("blas")] = None
    whole = terms * product.dtype.itemsize
    yield from (plan for plan in found if plan.depth <= DEPTH or whole > DEPTH)
