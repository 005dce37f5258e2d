"""What a product is: operands, epilogue, and the kernel that is made of them, all as data.

>>> spec = ProductSpec("bfloat16", transpose_b=True, epilogue=(
...     Combine("add", Vector("bias", "bfloat16")),
...     Keep("before"),
...     Apply("gelu_tanh"),
... ))
>>> [output.name for output in spec.outputs]
['before', 'out']
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any, Self

from weft.compiler.targets.cuda.ptx_writer import Kernel, Parameter
from weft.core.records import frozen
from weft.ir.scalars import Scalar as Expression
from weft.ops.float8 import FORMATS

__all__ = [
    "FLOAT8_PAIRS", "INTEGER_PAIRS", "Apply", "Combine", "Compute", "Constant", "Keep", "Matrix",
    "Operand", "Plan", "ProductKernel", "ProductSpec", "Scalar", "Sizes", "Step", "Sum", "Vector",
    "dtype_bytes", "operands_of",
]  # fmt: skip


INTEGER_PAIRS = {
    "int8": ("int8", "int8"),
    "uint8": ("uint8", "uint8"),
    "int8 by uint8": ("int8", "uint8"),
    "uint8 by int8": ("uint8", "int8"),
}
"""The 8-bit integers that are multiplied with sums of int32: the name of a pair, and its dtypes."""

FLOAT8_PAIRS = {f"{left} by {right}": (left, right) for left in FORMATS for right in FORMATS}
"""The 8-bit floats whose codes are multiplied with sums of float32, likewise."""


def dtype_bytes(dtype: str) -> int:
    """How many bytes an element of an operand takes."""
    if dtype in INTEGER_PAIRS or dtype in FLOAT8_PAIRS:
        return 1
    return {"float32": 4, "tfloat32": 4, "int32": 4}.get(dtype, 2)


@frozen(slots=False)
class Constant:
    """A number that is known when the kernel is written."""

    number: float


@frozen(slots=False)
class Scalar:
    """One float32 in the card's memory."""

    name: str


@frozen(slots=False)
class Vector:
    """One number for each column of the product, or for each of its rows."""

    name: str
    dtype: str
    per: str = "column"


@frozen(slots=False)
class Matrix:
    """One number for each element of the product."""

    name: str
    dtype: str


Operand = Constant | Scalar | Vector | Matrix


@frozen(slots=False)
class Apply:
    """x becomes f(x)."""

    function: str


@frozen(slots=False)
class Combine:
    """x becomes f(x, operand)."""

    function: str
    operand: Operand


@frozen(slots=False)
class Compute:
    """x becomes an expression of x and operands, whose names are those of its locals."""

    expression: Expression
    operands: tuple[Scalar | Vector | Matrix, ...] = ()


@frozen(slots=False)
class Keep:
    """x, as it is at this step, is stored as a result of its own; None means the output's dtype."""

    name: str
    dtype: str | None = None


@frozen(slots=False)
class Sum:
    """Partial sums of x, as it is at this step, in float32 and in a fixed order.

    Over rows: one row of sums for each 64 rows of the product, `[ceil(m / 64), n]`. Over columns:
    one for each tile, `[ceil(n / tile_n), m]`. Who needs the whole sum adds them up.
    """

    name: str
    over: str


Step = Apply | Combine | Compute | Keep | Sum


def operands_of(step: Step) -> tuple[Operand, ...]:
    """What a step reads beside x."""
    if isinstance(step, Compute):
        return step.operands
    return (step.operand,) if isinstance(step, Combine) else ()


@frozen(slots=False)
class ProductSpec:
    """C = A B with an epilogue; sums are of float32.

    `a` is stored as [m, k], or [k, m] where it is transposed; `b` as [k, n], or [n, k]. `dtype` is
    that of both operands, or a pair of 8-bit integers or floats; `tfloat32` is float32 rounded to
    eleven bits. `aligned` says that each row of both operands starts at a multiple of 16 bytes and
    is a whole number of 16 bytes long, `aligned_output` that rows of the results and of the
    epilogue's matrices are.
    """

    dtype: str
    output: str = ""
    transpose_a: bool = False
    transpose_b: bool = False
    batched: bool = False
    epilogue: tuple[Step, ...] = ()
    aligned: bool = True
    aligned_output: bool = True

    def __post_init__(self) -> None:
        if not self.output:
            given = "float32" if self.dtype == "tfloat32" else self.dtype
            object.__setattr__(self, "output", given)

    @property
    def outputs(self) -> list[Matrix]:
        """The matrices that are stored, in the order in which the epilogue stores them."""
        kept = [
            Matrix(step.name, step.dtype or self.output)
            for step in self.epilogue
            if isinstance(step, Keep)
        ]
        return [*kept, Matrix("out", self.output)]

    @property
    def matrices(self) -> list[Matrix]:
        """The matrices that the epilogue reads."""
        read = [each for step in self.epilogue for each in operands_of(step)]
        return list(dict.fromkeys([each for each in read if isinstance(each, Matrix)]))


@frozen(slots=False)
class Sizes:
    """The sizes of one launch."""

    m: int
    n: int
    k: int
    batch: int = 1


@frozen(slots=False)
class Plan:
    """How a product is cut into work.

    Tiles of `tile_m` × `tile_n` are computed from `stages` parts of operands in flight, `group`
    rows of tiles at a time, so that what they read stays in the cache. With `split`, several blocks
    share a tile, each a part of the summed axis; the parts are added up in their order. `bulk`
    stores results by bulk copies, `plain` multiplies without tensor cores. With `alternate`, two
    consumers take whole tiles of 128 rows in turn: one multiplies while the other is in its
    epilogue. With `warps`, single warps multiply, as cards before Hopper do. With `cluster`, so
    many blocks share a small plain tile, each for `stages` steps, by each other's shared memory.
    """

    tile_m: int
    tile_n: int
    stages: int
    group: int = 8
    split: bool = False
    bulk: bool = True
    plain: bool = False
    alternate: bool = False
    warps: bool = False
    cluster: int = 0

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply: each 64 rows of a tile, or two that alternate."""
        return 2 if self.alternate else self.tile_m // 64

    @property
    def blocks_of_rows(self) -> int:
        """Blocks of 64 rows that one consumer multiplies."""
        return self.tile_m // 64 if self.alternate else 1

    def with_stages(self, stages: int) -> Plan:
        """The same cut with another number of stages."""
        return replace(self, stages=stages)


@frozen(slots=False)
class ProductKernel:
    """A kernel, ready for the driver: text, and what a launch must know."""

    spec: ProductSpec
    plan: Plan
    name: str
    text: str
    threads: int
    shared_bytes: int
    parameters: tuple[Parameter, ...] = field(repr=False)

    @classmethod
    def from_text(
        cls, spec: ProductSpec, plan: Plan, kernel: Kernel, shared_bytes: int, **more: Any
    ) -> Self:
        """The kernel whose text is written; `more` is what a special kind of it knows besides."""
        return cls(
            spec=spec,
            plan=plan,
            name=kernel.name,
            text=kernel.text(),
            threads=kernel.threads,
            shared_bytes=shared_bytes,
            parameters=kernel.parameters,
            **more,
        )
