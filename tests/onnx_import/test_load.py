"""Models that are read: names, calls, derivatives, compiled programs with sizes as symbols."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf

onnx = pytest.importorskip("onnx")
ReferenceEvaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator
helper, numpy_helper = onnx.helper, onnx.numpy_helper


def model_of(text: str, opset: int = 18, **initialisers: Any) -> Any:
    header = f'<ir_version: 9, opset_import: ["" : {opset}, "own" : 1]>'
    model = onnx.parser.parse_model(f"{header}\n{text}")
    for node in model.graph.node:  # the text form has no dots in names
        node.input[:] = [name.replace("__", ".") for name in node.input]
    for name, value in initialisers.items():
        array = np.asarray(value)
        model.graph.initializer.append(numpy_helper.from_array(array, name.replace("__", ".")))
    return model


def load(text: str, opset: int = 18, **initialisers: Any) -> Any:
    return wf.onnx.load(model_of(text, opset, **initialisers))


def reference(model: Any, *inputs: Any) -> list[Any]:
    names = [each.name for each in model.graph.input]
    session = ReferenceEvaluator(model)
    return list(session.run(None, dict(zip(names, inputs, strict=True))))


WEIGHT = np.arange(6, dtype=np.float32).reshape(3, 2) / 10
PERCEPTRON = """g (float[batch, 3] x) => (float[batch, 2] y) {
    product = MatMul(x, layer__weight)
    sum = Add(product, layer__bias)
    y = Tanh(sum)
}"""


def perceptron() -> Any:
    return load(PERCEPTRON, layer__weight=WEIGHT, layer__bias=np.ones(2, np.float32))


# --- the module ----------------------------------------------------------------------------------


def test_initialisers_are_parameters_under_their_names() -> None:
    net = perceptron()
    assert {name: each.shape for name, each in net.named_parameters()} == {
        "layer.weight": (3, 2),
        "layer.bias": (2,),
    }
    assert net.layer.weight.requires_grad
    net.load_state_dict({"layer.weight": wf.zeros((3, 2)), "layer.bias": wf.zeros(2)})
    assert net(wf.ones((1, 3))).tolist() == [[0.0, 0.0]]


def test_inputs_are_given_by_position_or_by_name() -> None:
    net, x = perceptron(), np.ones((2, 3), np.float32)
    expected = np.tanh(x @ WEIGHT + 1)
    for y in (net(x), net(wf.asarray(x)), net(x=x)):
        np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-6)
    assert net.input_names == ("x",)
    assert net.output_names == ("y",)


def test_several_outputs_are_a_tuple_in_order() -> None:
    net = load("g (float[n] x) => (float[n] a, float[n] b) { a = Neg(x)  b = Abs(x) }")
    a, b = net(wf.tensor([1.0, -2.0]))
    assert a.tolist() == [-1.0, 2.0]
    assert b.tolist() == [1.0, 2.0]


def test_the_report_says_what_the_model_holds() -> None:
    text = repr(perceptron())
    for part in ("x: float32[batch, 3]", "MatMul 1", "2 parameters of 8 numbers", "opset 18"):
        assert part in text


@pytest.mark.parametrize(
    ("inputs", "named", "kind"),
    [
        ([np.ones((2, 3))], {}, wf.DTypeError),
        ([np.ones((2, 4), np.float32)], {}, wf.ShapeError),
        ([np.ones(3, np.float32)], {}, wf.ShapeError),
        ([], {}, wf.ArgumentError),
        ([1.0, 2.0], {}, wf.ArgumentError),
        ([], {"z": 1.0}, wf.ArgumentError),
    ],
    ids=["dtype", "size", "rank", "missing", "many", "name"],
)
def test_inputs_that_do_not_fit_are_refused(
    inputs: list[Any], named: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        perceptron()(*inputs, **named)
    assert "x" in str(caught.value)


def test_sizes_of_one_name_must_agree() -> None:
    net = load("g (float[n] a, float[n] b) => (float[m] y) { y = Concat<axis=0>(a, b) }")
    with pytest.raises(wf.ShapeError, match="n is 2"):
        net(wf.ones(2), wf.ones(3))


def test_names_that_are_no_attributes_are_held_all_the_same() -> None:
    initialisers = [
        numpy_helper.from_array(np.full(1, number, np.float32), name)
        for number, name in enumerate(
            ["forward", "a", "a.b", "_x", "0", "train.weight", "/m/W", "a."]
        )
    ]
    names = [each.name for each in initialisers]
    nodes = [helper.make_node("Sum", names, ["y"])]
    outputs = [helper.make_tensor_value_info("y", 1, [1])]
    graph = helper.make_graph(nodes, "g", [], outputs, initialisers)
    net = wf.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    assert net().item() == sum(range(8))
    assert len(net.state_dict()) == 8


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.onnx.importing import reading

    reading.onnx_module.cache_clear()
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(wf.UnsupportedError, match=r"weft\[onnx\]"):
        wf.onnx.load("model.onnx")


def test_a_saved_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of("g (float[n] x) => (float[n] y) { y = Neg(x) }").SerializeToString())
    assert wf.onnx.load(path)(wf.ones(1)).tolist() == [-1.0]
    assert wf.onnx.load(str(path))(wf.ones(1)).tolist() == [-1.0]


# --- transforms ----------------------------------------------------------------------------------


def test_derivatives_are_those_of_the_same_function() -> None:
    net, x = perceptron(), wf.ones((2, 3))
    found = wf.grad(lambda net: net(x).sum())(net)

    def same(weight: Any, bias: Any) -> Any:
        return wf.tanh(x @ weight + bias).sum()

    weight, bias = wf.grad(same, argnums=(0, 1))(wf.asarray(WEIGHT), wf.ones(2))
    np.testing.assert_allclose(found.layer.weight.detach().numpy(), weight.numpy(), rtol=1e-6)
    np.testing.assert_allclose(found.layer.bias.detach().numpy(), bias.numpy(), rtol=1e-6)


def test_a_model_that_was_read_can_be_trained_compiled() -> None:
    net = perceptron()
    optimizer = wf.optim.SGD(net.parameters(), lr=0.5)

    @wf.jit
    def step(net: Any, optimizer: Any, x: Any) -> Any:
        loss = (net(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(net, optimizer, wf.ones((4, 3))).item() for _ in range(5)]
    assert losses[-1] < losses[0] / 2


SHAPES = """g (float[b, t, 4] x) => (float[b, t, 2, 2] y, int64[3] s) <int64[1] two = {2}> {
    s = Shape(x)
    first = Shape<start=0, end=2>(x)
    target = Concat<axis=0>(first, two, two)
    parts = Reshape(x, target)
    one = Constant<value_ints=[1]>()
    zero = Constant<value_ints=[0]>()
    n = Gather(s, one)
    half = Div(n, two)
    late = Slice(parts, zero, n, one)
    row = ReduceMean<keepdims=1>(x)
    shape = Concat<axis=0>(s, one)
    wide = Expand(row, s)
    flat = Reshape(wide, target)
    y = Add(late, flat)
}"""


def test_chains_of_shapes_leave_one_program_for_all_sizes() -> None:
    net = load(SHAPES)
    run = wf.jit(net)
    for batch, time in ((2, 3), (4, 3), (7, 5), (9, 6)):
        x = np.random.default_rng(batch).normal(size=(batch, time, 4)).astype(np.float32)
        y, sizes = run(wf.asarray(x))
        expected = x.reshape(batch, time, 2, 2) + x.mean()
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6)
        assert sizes.tolist() == [batch, time, 4]
        np.testing.assert_allclose(net(x)[0].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert len(run.compilations) <= 3  # the first sizes, then a symbol for each axis that changed


def test_a_model_of_one_size_takes_a_batch_through_vmap() -> None:
    net = load("g (float[1, 3] x) => (float[1, 3] y) { y = Softmax(x) }")
    x = wf.asarray(np.random.default_rng(0).normal(size=(5, 1, 3)).astype(np.float32))
    expected = wf.softmax(x, axis=-1).numpy()
    np.testing.assert_allclose(wf.vmap(net)(x).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(wf.jit(wf.vmap(net))(x).numpy(), expected, rtol=1e-6)
    with pytest.raises(wf.ShapeError, match="vmap"):
        net(x[:, 0])


# --- control flow --------------------------------------------------------------------------------

CHOICE = """g (float[n] x, bool c) => (float[n] y) {
    y = If(c) <
        then_branch = yes () => (float[n] a) { a = Mul(x, w) },
        else_branch = no () => (float[n] b) { b = Neg(x) }
    >
}"""


def test_a_choice_is_python_s_or_the_program_s() -> None:
    net = load(CHOICE, w=np.array(3.0, np.float32))
    x = wf.tensor([1.0, 2.0])
    for run in (net, wf.jit(net)):
        assert run(x, wf.tensor(True)).tolist() == [3.0, 6.0]
        assert run(x, wf.tensor(False)).tolist() == [-1.0, -2.0]
    gradient = wf.grad(lambda x, c: net(x, c).sum())(x, wf.tensor(True))
    assert gradient.tolist() == [3.0, 3.0]


LOOP = """g (float[n] x, int64 count) => (float[n] last, float[k, n] all) <bool yes = {1}> {
    last, all = Loop(count, yes, x) <
        body = step (int64 i, bool going, float[n] v) => (bool next, float[n] w, float[n] out) {
            next = Identity(going)
            number = CastLike(i, v)
            w = Add(v, number)
            out = Identity(w)
        }
    >
}"""


def test_a_loop_of_known_length_collects_its_values() -> None:
    net = load(LOOP)
    x = wf.tensor([1.0, 2.0])
    for count in (3, 70):
        states = np.cumsum(np.arange(count, dtype=np.float32))[:, None] + x.numpy()
        for run in (lambda x, n=count: net(x, n), wf.jit(lambda x, n=count: net(x, n))):
            last, collected = run(x)
            np.testing.assert_allclose(collected.numpy(), states, rtol=1e-6)
            np.testing.assert_allclose(last.numpy(), states[-1], rtol=1e-6)
    assert net(x, 0)[1].shape[0] == 0


WHILE = """g (float x) => (float y) <bool yes = {1}, float hundred = {100}> {
    y = Loop(, yes, x) <
        body = step (int64 i, bool going, float v) => (bool next, float w) {
            w = Add(v, v)
            next = Less(w, hundred)
        }
    >
}"""


def test_a_loop_that_its_data_end_is_compiled_too() -> None:
    net = load(WHILE)
    assert net(wf.tensor(3.0)).item() == 192.0 == wf.jit(net)(wf.tensor(3.0)).item()


def test_a_traced_loop_that_collects_by_its_data_is_refused() -> None:
    net = load(LOOP)
    with pytest.raises(wf.UnsupportedError, match="node 'Loop_0'"):
        wf.jit(net)(wf.ones(2), wf.tensor(3))


def test_sizes_that_depend_on_data_are_refused_in_a_trace_alone() -> None:
    net = load("g (float[n] x) => (int64[1, k] y) { y = NonZero(x) }")
    assert net(wf.tensor([0.0, 2.0, 3.0])).tolist() == [[1, 2]]
    with pytest.raises(wf.UnsupportedError, match="depends on data"):
        wf.jit(net)(wf.tensor([0.0, 2.0, 3.0]))


# --- functions, quantised numbers, narrow types --------------------------------------------------


def test_functions_of_the_model_take_attributes_of_their_call() -> None:
    text = """g (float[n] x) => (float[n] y) { y = own.scaled<by=3.0>(x) }
    <domain: "own", opset_import: ["" : 18]>
    scaled <by> (a) => (b) { k = Constant<value_float: float = @by>()  b = Mul(a, k) }"""
    net = load(text)
    assert net(wf.ones(2)).tolist() == [3.0, 3.0]
    assert wf.jit(net)(wf.ones(2)).tolist() == [3.0, 3.0]


def test_quantised_products_agree_with_the_reference() -> None:
    text = """g (uint8[2, 3] a) => (uint8[2, 2] y) <
        float sa = {0.5}, uint8 za = {3}, int8[3, 2] b = {1, -2, 3, 4, -5, 6},
        float[2] sb = {0.1, 0.2}, int8[2] zb = {0, 1}, float sy = {0.25}, uint8 zy = {100}>
    { y = QLinearMatMul(a, sa, za, b, sb, zb, sy, zy) }"""
    a = np.array([[0, 7, 9], [200, 3, 1]], np.uint8)
    scale = np.array([0.1, 0.2], np.float32)
    b = np.array([[1, -2], [3, 4], [-5, 6]]) - np.array([0, 1])
    numbers = (a.astype(int) - 3) @ b * 0.5 * scale
    expected = np.clip(np.rint(numbers / 0.25) + 100, 0, 255).astype(np.uint8)
    net = load(text, opset=21)
    assert net(a).tolist() == expected.tolist() == wf.jit(net)(wf.asarray(a)).tolist()


def test_weights_of_four_bits_are_buffers_and_dequantise_exactly() -> None:
    weight = helper.make_tensor("w", onnx.TensorProto.INT4, [4], [-8, 7, 1, -1])
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["d"]),
             helper.make_node("Mul", ["x", "d"], ["y"])]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [4])],
        [helper.make_tensor_value_info("y", 1, [4])],
        [weight, numpy_helper.from_array(np.array(0.5, np.float32), "s")],
    )  # fmt: skip
    net = wf.onnx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    assert [name for name, _ in net.named_buffers()] == ["w", "s"]
    assert not list(net.parameters())
    for run in (net, wf.jit(net)):
        assert run(wf.ones(4)).tolist() == [-4.0, 3.5, 0.5, -0.5]


def test_every_number_of_float8_is_rounded_as_ml_dtypes_rounds_it() -> None:
    import ml_dtypes

    numbers = np.concatenate(
        [np.random.default_rng(0).normal(size=500) * 10.0**e for e in range(-6, 4)]
    ).astype(np.float32)
    for code, kind in ((17, ml_dtypes.float8_e4m3fn), (19, ml_dtypes.float8_e5m2)):
        net = load(
            f"g (float[n] x) => (float[n] y) {{ a = Cast<to={code}>(x)  y = Cast<to=1>(a) }}", 19
        )
        largest = float(ml_dtypes.finfo(kind).max)
        expected = np.clip(numbers, -largest, largest).astype(kind).astype(np.float32)
        assert np.array_equal(net(numbers).numpy(), expected)
        assert np.array_equal(wf.jit(net)(wf.asarray(numbers)).numpy(), expected)


def test_arithmetic_on_narrow_numbers_is_refused() -> None:
    text = "g (float[n] x) => (float[n] y) { a = Cast<to=17>(x)  b = Add(a, a)  y = Cast<to=1>(b) }"
    with pytest.raises(wf.UnsupportedError, match="float8e4m3fn"):
        load(text, 19)(wf.ones(2))


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 21])
def test_versions_of_an_operator_differ_as_the_standard_says(opset: int) -> None:
    text = "g (float[2, 2, 2] x) => (float[2, 2, 2] y) { y = Softmax<axis=1>(x) }"
    x = np.random.default_rng(0).normal(size=(2, 2, 2)).astype(np.float32)
    rows = np.exp(x) / np.exp(x).sum(axis=(1, 2) if opset < 13 else 1, keepdims=True)
    np.testing.assert_allclose(load(text, opset)(x).numpy(), rows, rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "indices", "updates"),
    [((3, 0), (2, 1), (2, 0)), ((3, 4), (0, 2), (0,)), ((0, 4), (0, 1), (0, 4))],
)
def test_slices_without_elements_are_written_and_read(
    shape: tuple[int, ...], indices: tuple[int, ...], updates: tuple[int, ...]
) -> None:
    x, rows = np.zeros(shape, np.float32), np.zeros(indices, np.int64)
    slices = ", ".join(map(str, updates))
    header = f"g (float[a, b] x, int64[c, d] i, float[{slices}] u) => (float[a, b] y)"
    scatter = load(header + " {y = ScatterND(x, i, u)}")
    assert scatter(x, rows, np.ones(updates, np.float32)).shape == shape
    gather = load("g (float[a, b] x, int64[c, d] i) => (float y) {y = GatherND(x, i)}")
    assert gather(x, rows).shape == (indices[0], *shape[indices[1] :])


def test_an_error_of_a_node_names_it() -> None:
    net = load("g (float[n] a, float[m] b) => (float[k] y) { [sum_of_both] y = Add(a, b) }")
    with pytest.raises(wf.ShapeError, match=r"node 'sum_of_both' \(Add\)"):
        net(wf.ones(2), wf.ones(3))


def test_random_models_agree_with_the_reference_evaluator() -> None:
    text = """g (float[b, 3, 8, 8] x) => (float[b, 4] y) {
        c = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(x, k)
        r = LeakyRelu<alpha=0.1>(c)
        p = GlobalAveragePool(r)
        f = Flatten(p)
        y = Gemm<transB=1>(f, w)
    }"""
    rng = np.random.default_rng(1)
    model = model_of(
        text,
        k=rng.normal(size=(5, 3, 3, 3)).astype(np.float32),
        w=rng.normal(size=(4, 5)).astype(np.float32),
    )
    x = rng.normal(size=(2, 3, 8, 8)).astype(np.float32)
    found = wf.onnx.load(model)(x).detach().numpy()
    np.testing.assert_allclose(found, reference(model, x)[0], rtol=1e-4, atol=1e-5)


def test_what_was_exported_is_read_back_as_the_same_function(tmp_path: Path) -> None:
    net = wf.nn.Sequential(wf.nn.Linear(4, 8), wf.nn.GELU(), wf.nn.LayerNorm(8)).eval()
    recurrent = wf.nn.LSTM(4, 6).eval()
    x = wf.asarray(np.random.default_rng(0).normal(size=(5, 2, 4)).astype(np.float32))
    for number, function in enumerate((net, lambda x: recurrent(x)[0])):
        path = tmp_path / f"{number}.onnx"
        wf.onnx.export(function, (x,), path)
        with wf.no_grad():
            found, expected = wf.onnx.load(path)(x), function(x)
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
