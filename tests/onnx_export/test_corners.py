"""What rules write is right in the corners: infinities, zeros, the ends of integers, and tails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.dispatch import bind
from weft.ir.kinds import Elementwise
from weft.ir.primitive import PRIMITIVES
from weft.onnx import export
from weft.onnx.exporting.rules import RULES

pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
Array = np.ndarray[Any, Any]
DTYPES = ("float32", "float64", "float16", "int32", "int64", "int8", "uint8", "uint32", "bool")
NAMES = sorted(
    name
    for name, each in PRIMITIVES.items()
    if isinstance(each.kind, Elementwise)
    and not isinstance(RULES.get(name, wf.Unsupported("")), wf.Unsupported)
    and name not in ("bitcast", "convert", "where", "clip", "real", "imag")
)
ROOM = {"lgamma": 1.0, "digamma": 1.0, "cos": 1.0, "sin": 1.0, "tan": 1e4}
"""Functions that are zero, or without bound, where large numbers cancel: exact beside these."""
BY_THE_RUNTIME = {("sigmoid", "float64"), ("sigmoid", "float16"), ("sigmoid", "float32")}
"""ONNX Runtime's Sigmoid is 0 from -19 on in float32, and from -37 on in float64."""


def corners(dtype: str) -> Array:
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.array([False, True])
    if kind.kind == "f":
        limits = np.finfo(kind)
        ends = [np.inf, -np.inf, np.nan, limits.max, -limits.max, limits.tiny, 0.0, -0.0]
        plain = [1, -1, 0.5, -0.5, 2, -3, 7.5, 11, 88, -104, 710, 1e4, 1e-30, -1e-30, 1e30, -1e30]
        return np.array([*ends, *[x for x in plain if abs(x) < limits.max]], kind)
    whole = np.iinfo(kind)
    small = [0, 1, 2, 3, 7, *([-1, -2, -7] if kind.kind == "i" else [])]
    return np.array([*small, whole.max, whole.max - 1, whole.min], kind)


def runs(path: Path, arrays: Sequence[Array]) -> Array | None:
    """What the runtime computes; None where it has no kernel."""
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except runtime.capi.onnxruntime_pybind11_state.NotImplemented:
        return None
    names = [each.name for each in session.get_inputs()]
    result: Array = session.run(None, dict(zip(names, arrays, strict=True)))[0]
    return result


def is_close(found: Array, wanted: Array, room: float) -> Array:
    """Whether elements are equal, both not numbers, or some units in the last place apart."""
    if wanted.dtype.kind in "biu":
        return np.asarray(found == wanted)
    limits, a, b = np.finfo(wanted.dtype), found.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.abs(a - b) <= 64 * limits.eps * np.maximum(np.abs(b), room) + limits.tiny
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)) | apart)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_every_element_agrees_at_special_values(name: str, tmp_path: Path) -> None:
    primitive = PRIMITIVES[name]
    real = [
        sample
        for sample in primitive.samples()
        if all(np.asarray(operand).dtype.kind != "c" for operand in sample.operands)
    ]
    for dtype in DTYPES:
        values, count = corners(dtype), len(real[0].operands)
        pairs = [np.repeat(values, values.size), np.tile(values, values.size)]
        arrays = [values] if count == 1 else pairs
        if name == "pow" and dtype.startswith("int"):
            arrays[1] = np.abs(np.clip(arrays[1], -7, 7))  # integers have no negative powers

        def program(*xs: Any) -> Any:
            return bind(primitive, *xs, **real[0].params)

        try:
            wanted = program(*map(wf.asarray, arrays)).numpy()
            export(program, tuple(arrays), tmp_path / "corner.onnx", verify=False)
        except (wf.DTypeError, wf.ArgumentError, wf.UnsupportedError):
            continue
        found = runs(tmp_path / "corner.onnx", arrays)
        if found is None or (name, dtype) in BY_THE_RUNTIME:
            continue
        good = is_close(found, wanted, ROOM.get(name, 0.0))
        wrong = [(*(x[i] for x in arrays), found[i], wanted[i]) for i in np.flatnonzero(~good)]
        assert not wrong, (dtype, wrong[:5])


def test_a_float_divided_down_by_infinity_or_zero_is_what_it_is_here(tmp_path: Path) -> None:
    x = wf.tensor([1.0, -1.0, 0.0, np.inf, -np.inf, np.nan, 7.0, -7.0])
    export(lambda x, y: x // y, (x[:, None], x), tmp_path / "divide.onnx")
    found = runs(tmp_path / "divide.onnx", [x[:, None].numpy(), x.numpy()])
    np.testing.assert_array_equal(found, (x[:, None] // x).numpy())


def test_integers_divided_by_zero_or_minus_one_do_not_end_the_process(tmp_path: Path) -> None:
    x = wf.tensor(np.array([-(2**31), -7, 0, 5, 2**31 - 1], np.int32))
    y = wf.tensor(np.array([0, -1, 3, 2**31 - 1], np.int32))
    for number, f in enumerate((lambda x, y: x // y, lambda x, y: x % y, wf.fmod)):
        path = tmp_path / f"divide{number}.onnx"
        report = export(f, (x[:, None], y), path)
        assert report.verification is not None
        assert report.verification.runtime.startswith("onnxruntime")
    simple = export(lambda x: x // 3, (x,), tmp_path / "constant.onnx")
    assert "Where" not in simple.operators  # the divisor is known to be harmless


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "uint32"])
def test_products_of_integers_keep_the_last_bits(dtype: str, tmp_path: Path) -> None:
    x = np.array([[3] * 40, [2] * 40, [101] * 40], dtype)
    export(lambda x: wf.prod(x, axis=1, dtype=dtype), (wf.asarray(x),), tmp_path / "prod.onnx")
    found = runs(tmp_path / "prod.onnx", [x])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, np.prod(x, axis=1, dtype=dtype))


def test_integers_are_convolved_and_pooled_without_rounding(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for dtype in ("int8", "uint8", "int16"):
        limits = np.iinfo(dtype)
        x, w = (random.integers(limits.min, limits.max, shape, dtype=dtype) for shape in SHAPES)
        report = export(wf.conv1d, (wf.asarray(x), wf.asarray(w)), tmp_path / f"{dtype}.onnx")
        assert report.operators["Conv"] == 1
    wide = wf.asarray(random.integers(-(2**31), 2**31 - 1, (1, 2, 9), dtype=np.int32))
    with pytest.raises(wf.UnsupportedError, match="floats would round it"):
        export(wf.conv1d, (wide, wide[:, :, :3]), tmp_path / "wide.onnx")


SHAPES = (2, 3, 40), (4, 3, 5)


def test_a_sum_in_which_large_numbers_cancel_is_judged_by_its_terms(tmp_path: Path) -> None:
    x = wf.tanh(wf.linspace(-3.0, 3.0, 40001)) * 1.37  # half of them add up first
    report = export(wf.sum, (x,), tmp_path / "sum.onnx")
    assert report.verification is not None
    assert report.verification.runtime.startswith("onnxruntime")


def test_the_weights_gradient_of_a_grouped_convolution_is_one_convolution(tmp_path: Path) -> None:
    x, w = wf.random.normal((3, 6, 9, 8)), wf.random.normal((4, 3, 3, 2))

    def gradient(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        found: wf.Tensor = wf.grad(lambda w: wf.conv2d(x, w, stride=2, groups=2).sum())(w)
        return found

    report = export(gradient, (x, w), tmp_path / "conv.onnx", dynamic={"x": {0: "batch"}})
    assert report.operators["Conv"] == 1
    assert report.verification is not None
    assert len(report.verification.sizes) == 2


def test_what_a_runtime_computes_otherwise_than_the_standard_is_noted(tmp_path: Path) -> None:
    x = wf.tensor([[1.0, np.nan, 3.0]])  # of which ONNX Runtime says that the largest is 3
    report = export(lambda x: wf.max(x, axis=1), (x,), tmp_path / "max.onnx")
    assert report.verification is not None
    assert report.verification.runtime.startswith("onnx.reference")
    assert "departs from onnx.reference" in report.notes[0]
    assert "reduce_max" in report.notes[0]
