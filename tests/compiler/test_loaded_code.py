"""Code is loaded in one stretch a file: what it refers to may lie anywhere."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from tests.compiler import kernels as shared

import weft as wf
from weft.compiler.targets.cpu import engine
from weft.compiler.targets.cpu.engine import (
    call_kernel,
    emit_object,
    load_for_a_while,
    load_text,
)
from weft.core.dtypes import float32
from weft.ir.loops import For, Kernel, Store
from weft.ir.scalars import Buffer, index, size, tan


def test_files_with_constants_and_calls_of_the_c_library_are_loaded_together() -> None:
    x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
    loop = For(i, size("n"), (Store(y, i, tan(x[i]) * 3.5),), "parallel vector")
    tangent = Kernel("tangent", (x, y), ("n",), (loop,))
    codes = [emit_object([tangent]), emit_object([shared.softmax()])]
    addresses, held = load_for_a_while(codes, ["tangent", "softmax"])
    source, target = np.linspace(-1, 1, 35, dtype=np.float32), np.zeros(35, np.float32)
    call_kernel(addresses["tangent"], [source, target], [35], 0, 35)
    np.testing.assert_allclose(target, np.tan(source) * 3.5, rtol=1e-6)
    call_kernel(addresses["softmax"], [source, target], [5, 7], 0, 5)
    np.testing.assert_allclose(target.reshape(5, 7).sum(1), 1.0, rtol=1e-6)
    del held


def test_a_file_that_lacks_a_function_is_an_error_and_not_the_end_of_the_process() -> None:
    text = 'declare double @no_such_function(double)\ndefine double @"weft.f"(double %x) {\n'
    text += "  %y = call double @no_such_function(double %x)\n  ret double %y\n}\n"
    with pytest.raises(RuntimeError, match="Failed to materialize"):
        load_for_a_while([engine.emit_text(text)], ["f"])


def test_text_is_loaded_with_addresses_of_64_bits() -> None:
    text = "@number = global double 4.5\ndefine double @f() {\n"
    text += "  %x = load double, ptr @number\n  ret double %x\n}\n"
    assert load_text(text, "f") != 0


def test_programs_with_products_and_threads_compute_the_same() -> None:
    x = wf.tensor(np.random.default_rng(0).normal(size=(150, 150)).astype(np.float32))

    def f(x: wf.Tensor) -> wf.Tensor:
        return wf.softmax(x @ x * 0.05, axis=-1) @ wf.sin(x)

    compiled = wf.jit(f)
    np.testing.assert_allclose(compiled(x).numpy(), f(x).numpy(), rtol=2e-5, atol=1e-5)
    del compiled
    gc.collect()
