"""Products behind DequantizeLinear: sums of integers, exact where float32 is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
Array = np.ndarray[Any, Any]


def model_of(
    operator: str, x: Array, weight: Array, scales: tuple[Any, Any], zeros: tuple[Any, Any],
    axis: int = 1, bias: Array | None = None, **attributes: Any,
) -> Any:  # fmt: skip
    """x and weight, each behind a DequantizeLinear, and a product of them."""
    given = {
        "weight": weight, "sx": np.asarray(scales[0], np.float32),
        "sw": np.asarray(scales[1], np.float32), "zx": np.asarray(zeros[0], x.dtype),
        "zw": np.asarray(zeros[1], weight.dtype),
    }  # fmt: skip
    if bias is not None:
        given["bias"] = bias
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["a"]),
        helper.make_node("Identity", ["a"], ["a2"]),
        helper.make_node("DequantizeLinear", ["weight", "sw", "zw"], ["b"], axis=axis),
        helper.make_node(
            operator, ["a2", "b", *(["bias"] if bias is not None else [])], ["y"], **attributes
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in given.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def drawn(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    info = np.iinfo(kind)
    return rng.integers(info.min, info.max + 1, shape).astype(kind)


def exact(x: Array, zero: Any, scale: Any) -> Array:
    """Numbers in float64, which holds all sums here."""
    return (x.astype(np.float64) - np.asarray(zero, np.float64)) * np.asarray(scale, np.float64)


def products_of(net: Any, x: Array) -> list[str]:
    """The dtypes of the products and convolutions that a compiled module has."""
    graph = wf.jit(net).graph(wf.asarray(x))
    names = ("dot", "convolution", "conv")
    return [n.operands[0].type.dtype.name for n in graph.nodes if n.primitive.name in names]


@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("by_column", [False, True])
def test_a_product_of_matrices_is_exact(
    kinds: tuple[str, str], by_column: bool, rng: np.random.Generator
) -> None:
    x, weight = drawn(rng, (5, 3000), kinds[0]), drawn(rng, (3000, 7), kinds[1])
    scale = rng.uniform(0.01, 0.1, 7).astype(np.float32) if by_column else np.float32(0.03)
    zeros = (np.asarray(7, kinds[0]), np.full(7, 3) if by_column else 3)
    net = wf.onnx.load(model_of("MatMul", x, weight, (0.05, scale), zeros))
    assert products_of(net, x) == ["int32"]
    expected = exact(x, 7, np.float32(0.05)) @ exact(weight, 3, scale)
    for run in (net, wf.jit(net)):
        found = run(wf.asarray(x)).numpy()
        np.testing.assert_allclose(found, expected, rtol=3e-7, atol=1e-6)


def test_a_product_with_a_transposed_weight_and_a_bias_is_exact(rng: np.random.Generator) -> None:
    x, weight = drawn(rng, (4, 2000), "uint8"), drawn(rng, (6, 2000), "int8")
    scale, bias = rng.uniform(0.01, 0.1, 6).astype(np.float32), np.ones(6, np.float32)
    model = model_of(
        "Gemm", x, weight, (0.5, scale), (128, np.zeros(6)), axis=0, bias=bias, transB=1
    )
    net = wf.onnx.load(model)
    assert products_of(net, x) == ["int32"]
    expected = exact(x, 128, 0.5) @ (exact(weight, 0, scale[:, None])).T + 1
    np.testing.assert_allclose(net(wf.asarray(x)).detach().numpy(), expected, rtol=3e-7, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "group", "kind"),
    [((8, 20, 3, 3), 1, "float32"), ((6, 1, 3, 3), 6, "float32"), ((8, 900, 1, 1), 1, "int32")],
)
def test_a_convolution_is_one_of_whole_numbers(
    shape: tuple[int, ...], group: int, kind: str, rng: np.random.Generator
) -> None:
    x, weight = drawn(rng, (2, shape[1] * group, 6, 5), "uint8"), drawn(rng, shape, "int8")
    scale = rng.uniform(0.01, 0.1, shape[0]).astype(np.float32)
    pads = [0] * 4 if shape[2] == 1 else [1] * 4
    model = model_of(
        "Conv", x, weight, (0.25, scale), (11, np.zeros(shape[0])), axis=0, group=group, pads=pads
    )
    net = wf.onnx.load(model)
    assert products_of(net, x) == [kind]
    plain = exact(x, 11, 0.25), exact(weight, 0, scale[:, None, None, None])
    expected = wf.conv2d(*[wf.tensor(v) for v in plain], padding=pads[0], groups=group).numpy()
    for run in (net, wf.jit(net)):
        found = run(wf.asarray(x)).numpy()
        # Winograd's algorithm, where it is chosen, has fractions between whole numbers.
        largest = float(np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=3e-7, atol=3e-7 * largest)


def test_sums_that_integers_might_not_hold_are_of_floats(rng: np.random.Generator) -> None:
    x, weight = drawn(rng, (1, 40_000), "uint8"), drawn(rng, (40_000, 2), "uint8")
    net = wf.onnx.load(model_of("MatMul", x, weight, (0.1, 0.1), (0, 0)))
    assert products_of(net, x) == ["float32"]
    big = drawn(rng, (1, 64, 5, 5), "uint8")
    filters = drawn(rng, (2, 64, 3, 3), "int8")
    net = wf.onnx.load(model_of("Conv", big, filters, (0.1, 0.1), (0, 0)))
    expected = wf.conv2d(wf.tensor(exact(big, 0, 0.1)), wf.tensor(exact(filters, 0, 0.1)))
    np.testing.assert_allclose(net(wf.asarray(big)).numpy(), expected.numpy(), rtol=1e-4)


def test_scales_along_the_terms_are_those_of_floats(rng: np.random.Generator) -> None:
    x, weight = drawn(rng, (3, 8), "uint8"), drawn(rng, (8, 4), "int8")
    scale = rng.uniform(0.01, 0.1, 8).astype(np.float32)
    net = wf.onnx.load(model_of("MatMul", x, weight, (0.1, scale), (0, np.zeros(8)), axis=0))
    assert products_of(net, x) == ["float32"]
    expected = exact(x, 0, 0.1) @ exact(weight, 0, scale[:, None])
    np.testing.assert_allclose(net(wf.asarray(x)).numpy(), expected, rtol=1e-5)


def test_a_quantised_value_that_something_else_reads_is_there(rng: np.random.Generator) -> None:
    x, weight = drawn(rng, (3, 8), "uint8"), drawn(rng, (8, 8), "int8")
    model = model_of("MatMul", x, weight, (0.1, 0.2), (5, 0))
    model.graph.output.append(helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, None))
    _, seen = wf.onnx.load(model)(wf.asarray(x))
    np.testing.assert_allclose(seen.numpy(), exact(x, 5, 0.1), rtol=1e-6)
