"""The operator Attention: as runtimes compute it, by Weft's fused attention where that serves."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf

onnx = pytest.importorskip("onnx")
helper = onnx.helper
BATCH, HEADS, HEAD, VALUE, PAST = 2, 4, 8, 6, 3


def attention_case(
    shape: str, kv_heads: int, mask: str, *, causal: bool, past: bool, cap: float,
    queries: int = 4, keys: int = 4,
) -> tuple[Any, dict[str, np.ndarray[Any, Any]]]:  # fmt: skip
    """A model of one node, and what it is given."""
    random = np.random.default_rng(0)

    def draw(heads: int, time: int, head: int) -> np.ndarray[Any, Any]:
        x = random.normal(size=(BATCH, heads, time, head)).astype(np.float32)
        return x if shape == "4d" else x.transpose(0, 2, 1, 3).reshape(BATCH, time, -1)

    feeds = {
        "q": draw(HEADS, queries, HEAD),
        "k": draw(kv_heads, keys, HEAD),
        "v": draw(kv_heads, keys, VALUE),
    }
    names, attributes = ["q", "k", "v", "", "", ""], {}
    if mask:
        seen = random.random((queries, keys + PAST * past)) < 0.7
        if mask == "none seen":
            seen[1] = False
        numbers = np.where(seen, random.normal(size=seen.shape), -2.0).astype(np.float32)
        feeds["mask"], names[3] = numbers if mask == "added" else seen, "mask"
    if past:
        for place, name, head in ((4, "past_k", HEAD), (5, "past_v", VALUE)):
            cache = random.normal(size=(BATCH, kv_heads, PAST, head)).astype(np.float32)
            feeds[name], names[place] = cache, name
    while not names[-1]:
        names.pop()
    attributes = {"is_causal": int(causal), "softcap": cap}
    if shape == "3d":
        attributes |= {"q_num_heads": HEADS, "kv_num_heads": kv_heads}
    outputs = ["y", "all_k", "all_v"] if past else ["y"]
    node = helper.make_node("Attention", names, outputs, **attributes)
    kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in feeds.items()}
    inputs = [helper.make_tensor_value_info(n, kinds[n], x.shape) for n, x in feeds.items()]
    results = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph([node], "g", inputs, results)
    imports = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


def run_by_runtime(model: Any, feeds: dict[str, Any]) -> list[Any]:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(model.SerializeToString(), options)
    return list(session.run(None, feeds))


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize(
    ("shape", "kv_heads", "mask"),
    list(product(("3d", "4d"), (HEADS, 2), ("", "seen", "added", "none seen"))),
)
def test_attention_agrees_with_onnx_runtime(shape: str, kv_heads: int, mask: str) -> None:
    for causal, past, cap in product((False, True), (False, True), (0.0, 0.7)):
        model, feeds = attention_case(shape, kv_heads, mask, causal=causal, past=past, cap=cap)
        expected = run_by_runtime(model, feeds)
        found = as_tuple(wf.onnx.load(model)(**feeds))
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=2e-5, atol=2e-6)


def test_queries_that_end_before_the_keys_do_see_the_cache_and_their_own() -> None:
    given: dict[str, Any] = {"causal": True, "past": True, "cap": 0.0, "queries": 3, "keys": 5}
    model, feeds = attention_case("4d", 2, "seen", **given)
    expected = run_by_runtime(model, feeds)[0]
    found = as_tuple(wf.onnx.load(model)(**feeds))[0]
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5, atol=2e-6)


def test_attention_is_one_primitive_of_the_program() -> None:
    model, feeds = attention_case("3d", 2, "", causal=True, past=True, cap=0.0)
    net = wf.onnx.load(model)
    graph = wf.ir.trace(lambda *x: net(*x), *[wf.asarray(x) for x in feeds.values()])
    assert [n.primitive.name for n in graph.nodes].count("attention") == 1
    assert "softmax" not in str(graph)


def test_scores_are_shown_before_and_behind_the_softmax() -> None:
    for mode in range(4):
        model, feeds = attention_case("4d", HEADS, "", causal=False, past=False, cap=0.0)
        node = model.graph.node[0]
        node.output.extend(["k2", "v2", "scores"])
        node.attribute.append(helper.make_attribute("qk_matmul_output_mode", mode))
        model.graph.output.append(
            helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, None)
        )
        _, scores = wf.onnx.load(model)(**feeds)
        plain = np.einsum("bhqd,bhkd->bhqk", feeds["q"], feeds["k"]) / np.sqrt(HEAD)
        weights = np.exp(plain) / np.exp(plain).sum(-1, keepdims=True)
        expected = weights if mode == 3 else plain
        np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_heads_that_share_keys_come_back_from_a_file_as_they_were(tmp_path: Path) -> None:
    wf.random.seed(0)
    q = wf.random.normal((2, 4, 5, 8))
    k, v = wf.random.normal((2, 2, 5, 8)), wf.random.normal((2, 2, 5, 8))

    def f(q: Any, k: Any, v: Any) -> Any:
        return wf.scaled_dot_product_attention(q, k, v, causal=True)

    report = wf.onnx.export(f, (q, k, v), tmp_path / "shared.onnx")
    assert report.operators["Attention"] == 1
    again = wf.onnx.load(tmp_path / "shared.onnx")(q, k, v)
    np.testing.assert_allclose(again.numpy(), f(q, k, v).numpy(), rtol=1e-5, atol=1e-6)
    # Definitions of the operator that deal keys out in turns read the same numbers.
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator
    found = evaluator(str(tmp_path / "shared.onnx")).run(
        None, {"q": q.numpy(), "k": k.numpy(), "v": v.numpy()}
    )[0]
    np.testing.assert_allclose(found, f(q, k, v).numpy(), rtol=1e-5, atol=1e-6)


def test_a_single_axis_of_one_element_stays() -> None:
    text = """g (float[1, 3, 1, 16] x) => (float[1, 3, 1, 16] y) { y = Attention(x, x, x) }"""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]>\n{text}')
    assert wf.onnx.load(model)(wf.ones((1, 3, 1, 16))).shape == (1, 3, 1, 16)
