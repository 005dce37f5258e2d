"""Products of 8-bit integers as programs, for a real card, or one in the host's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft as wf
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.target import CUDA

Program = tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], str, str]


def _wide(a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
    return a.astype("int32") @ b.astype("int32")


def _quantised_layer(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
    """A layer on numbers of 8 bits: factors, a function, and 8 bits again."""
    y = (x.astype("int32") @ w.astype("int32").T).astype("float32") * 0.01
    return wf.clip(wf.round(wf.relu(y)), 0, 127).astype("int8")


INTEGERS: dict[str, Program] = {
    "both along rows": (
        lambda a, b: a.astype("int32") @ b.astype("int32").T, (40, 32), (24, 32), "int8", "int8",
    ),
    "both across rows": (
        lambda a, b: a.astype("int32").T @ b.astype("int32"), (48, 33), (48, 17), "int8", "int8",
    ),
    "a matrix as it lies": (_wide, (129, 144), (144, 130), "int8", "int8"),
    "without and with signs": (_wide, (65, 64), (64, 70), "uint8", "int8"),
    "with and without signs": (_wide, (65, 64), (64, 70), "int8", "uint8"),
    "without signs": (_wide, (7, 16), (16, 9), "uint8", "uint8"),
    "sums of int64": (
        lambda a, b: a.astype("int64") @ b.astype("int64"), (5, 32), (32, 6), "int8", "int8",
    ),
    "sums that wrap around": (lambda a, b: a @ b, (9, 48), (48, 5), "int8", "int8"),
    "stacks": (_wide, (3, 20, 32), (3, 32, 8), "int8", "int8"),
    "a quantised layer": (_quantised_layer, (50, 64), (40, 64), "int8", "int8"),
    "one row": (_wide, (1, 256), (256, 300), "int8", "int8"),
}  # fmt: skip
"""Functions of two operands, their shapes and dtypes."""


def check_integers(name: str) -> None:
    """Fail unless a program gives on a card what NumPy's integers give on the processor."""
    f, *shapes, left, right = INTEGERS[name]
    random = np.random.default_rng(len(name))
    arrays = []
    for shape, dtype in zip(shapes, (left, right), strict=True):
        limits = np.iinfo(dtype)
        arrays.append(random.integers(limits.min, limits.max + 1, shape).astype(dtype))
    compiled = wf.jit(f)
    plan = plan_program(wf.ir.trace(f, *[wf.spec(a.dtype.name, a.shape) for a in arrays]), CUDA)
    assert any(launch.kind == "product" for launch in plan.launches)
    wanted = compiled(*map(wf.asarray, arrays))
    found = compiled(*[wf.asarray(array).to("cuda") for array in arrays])
    assert found.dtype is wanted.dtype
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())
