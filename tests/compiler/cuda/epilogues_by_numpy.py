"""What a product with an epilogue computes, by NumPy, from the description that its kernel has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.compiler.targets.cuda.products.description import (
    Compute,
    Constant,
    Keep,
    Operand,
    ProductSpec,
    Sum,
    Vector,
    operands_of,
)
from weft.core.dtypes import bfloat16, float16, float32
from weft.ir.scalars import Scalar, nodes_in_order

Array = np.ndarray[Any, Any]
ROWS_OF_SUM = 64

_NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "negative": np.negative, "absolute": np.absolute, "minimum": np.minimum,
    "maximum": np.maximum, "sqrt": np.sqrt, "less": np.less, "less_equal": np.less_equal,
    "equal": np.equal, "not_equal": np.not_equal, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "not": np.invert, "shift_left": np.left_shift, "select": np.where,
    "power_of_two": np.exp2, "reciprocal": np.reciprocal,
}  # fmt: skip


def evaluate_expression(x: Scalar, values: Mapping[str, Array]) -> Array:
    """An expanded expression for many elements at once."""
    done: dict[Scalar, Any] = {}
    for each in nodes_in_order(x):
        operands = [done[arg] for arg in each.args]
        match each.op:
            case "local":
                done[each] = values[each.detail]  # a float32, whatever its dtype is
            case "const":
                kind = float32 if each.dtype in (bfloat16, float16) else each.dtype
                done[each] = kind.numpy.type(each.detail)
            case "cast":
                # a local of a 16-bit dtype is in a register as it came, not rounded
                is_local = each.args[0].op in ("local", "const")
                done[each] = operands[0] if is_local and each.dtype is float32 else np.asarray(
                    operands[0]
                ).astype(each.dtype.numpy)  # fmt: skip
            case "bitcast":
                done[each] = np.asarray(operands[0]).view(each.dtype.numpy)
            case "fma":
                wide = [np.asarray(operand, np.float64) for operand in operands]
                done[each] = (wide[0] * wide[1] + wide[2]).astype(np.float32)
            case _:
                done[each] = _NUMPY[each.op](*operands).astype(each.dtype.numpy)
    return np.asarray(done[x], np.float32)


def run_epilogue(
    spec: ProductSpec, sums: Array, operand: Callable[[Operand], Array]
) -> dict[str, Array]:
    """All that an epilogue stores, by name, given the sums and the operands, in float32."""
    stored: dict[str, Array] = {}
    x = sums
    with np.errstate(all="ignore"):
        for step in spec.epilogue:
            if isinstance(step, Compute):
                given = {each.name: operand(each) for each in operands_of(step)}  # type: ignore[union-attr]
                x = evaluate_expression(step.expression, {"x": x, **given})
                x = np.broadcast_to(x, sums.shape)
            elif isinstance(step, Keep):
                stored[step.name] = x
            elif isinstance(step, Sum):
                assert step.over == "rows"
                blocks = [x[0, first : first + ROWS_OF_SUM]
                          for first in range(0, x.shape[1], ROWS_OF_SUM)]  # fmt: skip
                stored[step.name] = np.stack([block.sum(axis=0) for block in blocks])
            else:
                raise AssertionError(f"{step} is not in plans")
    return stored | {"out": x}


def beside_product(operand: Operand, values: Array) -> Array:
    """An operand of an epilogue, as it broadcasts against a stack of matrices."""
    assert not isinstance(operand, Constant)
    wide = values.astype(np.float32)
    if isinstance(operand, Vector):
        return wide[:, None] if operand.per == "row" else wide
    return wide
