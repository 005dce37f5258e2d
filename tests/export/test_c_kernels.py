"""The loop language in C: every instruction, cast and reduction against the reference."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.nightly import NIGHTLY

from weft.compiler.export.c_kernels import c_function, helper_text
from weft.compiler.export.linking import c_compiler
from weft.compiler.export.machines import platform_named
from weft.core.dtypes import DTYPES, DType, bool_, float32, float64, int32, int64
from weft.ir import scalars
from weft.ir.loop_reference import run_reference
from weft.ir.loops import Accumulate, For, Kernel, Store, Update
from weft.ir.scalars import INSTRUCTIONS, Buffer, Scalar

Array = np.ndarray[Any, Any]
HEAD = "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n"
REAL = [dtype for dtype in DTYPES if not dtype.is_complex]
EDGES = [0, 1, 2, 3, 7, 100, 127, 128, 255, 32767, 65535, 2**31 - 1, 2**31, 2**63 - 1]
NUMBERS = [0.0, -0.0, 0.3, -0.7, 1.0, 2.5, -3.5, 127.5, 1e-6, 6e-8, 300.0, -70000.0, 3e9, 1e19]

COMPARED = 1000 if NIGHTLY else 48
"""How many of all pairs of samples an instruction is tried with."""

pytestmark = pytest.mark.skipif(
    c_compiler(platform_named("host")) is None, reason="no C compiler is found"
)


def samples(dtype: DType) -> Array:
    """Numbers at the edges of a dtype."""
    with np.errstate(all="ignore"):
        if dtype is bool_:
            return np.array([False, True])
        if dtype.is_floating:
            return np.array([*NUMBERS, np.inf, -np.inf, np.nan]).astype(dtype.numpy)
        whole = [*EDGES, *[-each for each in EDGES]]
        wrapped = [int(scalars.const(each, dtype).detail) for each in whole]
        return np.array(wrapped, dtype.numpy)


def elementwise(name: str, dtypes: Sequence[DType], make: Callable[..., Scalar]) -> Kernel:
    inputs = [Buffer(f"x{n}", dtype) for n, dtype in enumerate(dtypes)]
    i = scalars.index("i")
    value = make(*[buffer[i] for buffer in inputs])
    out = Buffer("out", value.dtype, "write")
    loop = For(i, scalars.size("n"), (Store(out, i, value),), "parallel")
    return Kernel(name, (*inputs, out), ("n",), (loop,))


def compiled(kernels: Sequence[Kernel], folder: Path) -> Any:
    """The functions of kernels, in this process."""
    helpers: set[str] = set()
    functions = [c_function(each.name, each, helpers) for each in kernels]
    own = [helper_text(each, DTYPES) for each in sorted(helpers)]
    text = "\n".join([HEAD, *own, *functions])
    (folder / "k.c").write_text(text.replace("static void", "void"))
    command = c_compiler(platform_named("host"))
    assert command is not None
    options = ["-std=c99", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-ffp-contract=off"]
    files = [str(folder / "k.c"), "-o", str(folder / "k.so"), "-lm"]
    subprocess.run([*command, *options, *files], check=True)
    return ctypes.CDLL(str(folder / "k.so"))


def agree(library: Any, kernel: Kernel, inputs: Sequence[Array], tolerance: float = 0.0) -> None:
    """Run a kernel both ways."""
    count = len(inputs[0])
    kind = kernel.buffers[-1].dtype.numpy
    found, wanted = np.zeros(count, kind), np.zeros(count, kind)
    run_reference(kernel, [*inputs, wanted], [count], 0, count)
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in (*inputs, found)]
    getattr(library, kernel.name)(*pointers, *map(ctypes.c_int64, (count, 0, count)))
    with np.errstate(all="ignore"):
        a, b = (each if each.dtype.kind in "iub" else each.astype("f8") for each in (found, wanted))
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=0, err_msg=str(kernel), equal_nan=True)
    if tolerance == 0 and a.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(a[a == 0]), np.signbit(b[a == 0]), str(kernel))


@pytest.mark.slow
def test_every_instruction_agrees_with_its_reference(tmp_path: Path) -> None:
    kernels: list[tuple[Kernel, list[Array]]] = []
    rng = np.random.default_rng(0)
    for name, instruction in INSTRUCTIONS.items():
        function = getattr(scalars, f"{name}_" if name in ("and", "or", "not") else name)
        for dtype in [each for each in DTYPES if each in instruction.dtypes]:
            kinds = [dtype] * instruction.arity
            kernel = elementwise(f"{name}_of_{dtype}", kinds, function)
            grids = np.meshgrid(*[samples(dtype)] * instruction.arity)
            chosen = rng.permutation(grids[0].size)[:COMPARED]
            kernels.append((kernel, [grid.reshape(-1)[chosen] for grid in grids]))
    library = compiled([kernel for kernel, _ in kernels], tmp_path)
    for kernel, inputs in kernels:
        op = kernel.name.rpartition("_of_")[0]
        is_function = INSTRUCTIONS[op].cost > 1 and inputs[0].dtype.kind == "f" and op != "fmod"
        precise = 1e-6 if inputs[0].dtype == np.float32 else 1e-12
        agree(library, kernel, inputs, precise if is_function else 0.0)


@pytest.mark.slow
def test_every_cast_agrees_with_its_reference(tmp_path: Path) -> None:
    pairs = [(a, b) for a in REAL for b in REAL if a is not b]
    kernels = [elementwise(f"{b}_of_{a}", [a], lambda x, b=b: scalars.cast(x, b)) for a, b in pairs]
    same = [(a, b) for a, b in pairs if a.bits == b.bits and bool_ not in (a, b)]
    kernels += [
        elementwise(f"{b}_bits_{a}", [a], lambda x, b=b: scalars.bitcast(x, b)) for a, b in same
    ]
    library = compiled(kernels, tmp_path)
    for kernel, (source, _) in zip(kernels, [*pairs, *same], strict=True):
        agree(library, kernel, [samples(source)])


@pytest.mark.slow
def test_sums_keep_their_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    i, k, n = scalars.index("i"), scalars.index("k"), scalars.size("n")
    kernels = []
    for dtype in (float32, float64, int32, int64):
        x, out = Buffer("x0", dtype), Buffer("out", dtype, "write")
        for combine in ("add", "multiply", "maximum"):
            total = scalars.local("total", dtype)
            for kind in ("parallel", "parallel vector"):
                update = Update(total, combine, x[k], x[i])  # type: ignore[arg-type]
                sums = Accumulate(k, n, (update,))
                body = For(i, n, (sums, Store(out, i, total)), kind)  # type: ignore[arg-type]
                name = f"{combine}_{dtype}_{kind[9:]}"
                kernels.append(Kernel(name, (x, out), ("n",), (body,)))
    library = compiled(kernels, tmp_path)
    for kernel in kernels:
        dtype = kernel.buffers[0].dtype
        agree(library, kernel, [(rng.normal(size=70) * 3).astype(dtype.numpy)])
