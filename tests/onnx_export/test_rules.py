"""Every primitive has a rule or a reason, and what the rules write computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.nightly import NIGHTLY

import weft as wf
import weft.compiler.graph_passes.cross_entropy
import weft.compiler.pipeline
import weft.compiler.targets.cpu.target
import weft.distributed  # which have primitives of their own
from weft.ir.dispatch import bind
from weft.ir.primitive import PRIMITIVES, Primitive, Sample
from weft.onnx import export
from weft.onnx.exporting.rules import RULES

pytest.importorskip("onnx")
SHOWN = len(PRIMITIVES) if NIGHTLY else 1
"""How many samples of each primitive are exported."""
REFUSED = {"bitcast": "the bits of a number cannot be read as another kind"}
"""Primitives whose samples are refused, and why."""
OWN = sorted(name for name, each in PRIMITIVES.items() if not each.fingerprint)


def test_every_primitive_has_a_rule_or_a_reason() -> None:
    assert not [name for name in OWN if name not in RULES]
    assert not [name for name in RULES if name not in PRIMITIVES]
    reasons = [each.reason for each in RULES.values() if isinstance(each, wf.Unsupported)]
    assert all(len(reason) > 20 for reason in reasons)


def is_complex(sample: Sample) -> bool:
    dtypes = [np.asarray(operand).dtype.kind for operand in sample.operands]
    return "c" in dtypes or getattr(sample.params.get("dtype"), "is_complex", False)


def samples() -> Iterator[Any]:
    for name in OWN:
        if isinstance(RULES.get(name), wf.Unsupported):
            continue
        real = [each for each in PRIMITIVES[name].samples() if not is_complex(each)]
        if name in REFUSED:  # what has no elements has a value all the same
            real = [each for each in real if np.asarray(each.operands[0]).size]
        for number, sample in enumerate(real[:SHOWN]):
            yield pytest.param(PRIMITIVES[name], sample, id=f"{name}-{number}")


@pytest.mark.parametrize(("primitive", "sample"), list(samples()))
def test_what_a_rule_writes_agrees_with_the_reference(
    primitive: Primitive, sample: Sample, tmp_path: Path
) -> None:
    def program(*xs: wf.Tensor) -> Any:
        return bind(primitive, *xs, **sample.params)

    arrays = tuple(np.asarray(operand) for operand in sample.operands)
    if primitive.name in REFUSED:
        with pytest.raises(wf.UnsupportedError, match=REFUSED[primitive.name]):
            export(program, arrays, tmp_path / "sample.onnx")
        assert not list(tmp_path.iterdir())
        return
    report = export(program, arrays, tmp_path / "sample.onnx")
    assert report.verification is not None
    assert report.verification.compared >= 1


@pytest.mark.parametrize("dtype", ["int8", "uint16", "uint32", "uint64", "float16", "bfloat16"])
def test_dtypes_that_runtimes_do_not_compute_in_are_converted_and_back(
    dtype: str, tmp_path: Path
) -> None:
    a, b = wf.tensor([1, 7, 3]).astype(dtype), wf.tensor([2, 2, 3]).astype(dtype)

    def program(a: wf.Tensor, b: wf.Tensor) -> tuple[wf.Tensor, ...]:
        return a + b * a, wf.maximum(a, b), wf.where(a > b, a, b), wf.max(a), a % b

    report = export(program, (a, b), tmp_path / "program.onnx")
    assert {kind.dtype.name for kind in report.outputs.values()} == {dtype}


def test_float64_is_computed_by_the_runtime_with_all_its_digits(tmp_path: Path) -> None:
    x = wf.tensor([-0.9, -1e-9, 0.0, 0.3, 0.7], dtype="float64")

    def program(x: wf.Tensor) -> tuple[wf.Tensor, ...]:
        circular = wf.asin(x), wf.acos(x), wf.atan(x * 1e3), wf.tan(x)
        return *circular, wf.sinh(x), wf.cosh(x), wf.asinh(x), wf.acosh(1 + wf.abs(x)), wf.atanh(x)

    report = export(program, (x,), tmp_path / "double.onnx")
    assert report.verification is not None
    assert report.verification.largest < 1e-13
    assert not report.notes


def test_uint64_is_ordered_without_a_sign(tmp_path: Path) -> None:
    x = wf.tensor(np.array([[1 << 63, 3, (1 << 64) - 1, 0]], np.uint64))

    def program(x: wf.Tensor) -> tuple[wf.Tensor, ...]:
        return wf.sort(x), wf.argsort(x), wf.max(x), wf.argmin(x), x > 5, wf.maximum(x, x[:, :1])

    export(program, (x,), tmp_path / "unsigned.onnx")


def test_random_numbers_are_the_same_bits(tmp_path: Path) -> None:
    def draw(key: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        return wf.random.uniform((5,), key=key), wf.random.randint(0, 1000, (3,), key=key)

    report = export(draw, (wf.random.key(11),), tmp_path / "draw.onnx")
    assert report.verification is not None
    assert report.verification.largest == 0.0
