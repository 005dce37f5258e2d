"""Programs become files of few and high operators, run and compared before they appear."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.nn import functional as F  # noqa: N812
from weft.onnx import Report, export
from weft.onnx.exporting import rules

onnx = pytest.importorskip("onnx")


def numbers(*shape: int) -> wf.Tensor:
    return wf.random.normal(shape, key=wf.random.key(3))


def operators(f: Callable[..., Any], *args: Any, folder: Path, **options: Any) -> dict[str, int]:
    return export(f, args, folder / "program.onnx", **options).operators


BATCH = {"x": {0: "batch"}}
ROWS, IMAGE = numbers(3, 4, 8), numbers(2, 4, 8, 8)
WHOLE: dict[str, tuple[Callable[[], Any], wf.Tensor, list[str]]] = {
    "layer norm": (lambda: nn.LayerNorm(8), ROWS, ["LayerNormalization"]),
    "layer norm over two axes": (lambda: nn.LayerNorm((4, 8)), ROWS, ["LayerNormalization"]),
    "rms norm": (lambda: nn.RMSNorm(8), ROWS, ["RMSNormalization"]),
    "batch norm": (lambda: nn.BatchNorm2d(4), IMAGE, ["BatchNormalization"]),
    "group norm": (lambda: nn.GroupNorm(2, 4), IMAGE, ["GroupNormalization"]),
    "softmax": (lambda: lambda x: wf.softmax(x, axis=1), ROWS, ["Softmax"]),
    "log softmax": (lambda: wf.log_softmax, ROWS, ["LogSoftmax"]),
    "gelu": (lambda: wf.gelu, ROWS, ["Gelu"]),
    "gelu by tanh": (lambda: lambda x: wf.gelu(x, approximate="tanh"), ROWS, ["Gelu"]),
    "elu": (lambda: lambda x: F.elu(x, 0.7), ROWS, ["Elu"]),
    "leaky relu": (lambda: F.leaky_relu, ROWS, ["LeakyRelu"]),
    "hard swish": (lambda: F.hardswish, ROWS, ["HardSwish"]),
    "mish": (lambda: F.mish, ROWS, ["Mish"]),
    "relu6": (lambda: F.relu6, ROWS, ["Clip"]),
    "mean over a symbol": (lambda: lambda x: wf.mean(x, axis=0), ROWS, ["ReduceMean"]),
    "logsumexp": (lambda: lambda x: wf.logsumexp(x, axis=2), ROWS, ["ReduceLogSumExp"]),
    "convolution": (lambda: nn.Conv2d(4, 6, 3, padding=1), IMAGE, ["Conv"]),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), IMAGE, ["ConvTranspose"]),
    "average pool": (lambda: nn.AvgPool2d(2), IMAGE, ["AveragePool"]),
    "linear": (lambda: nn.Linear(8, 3), numbers(2, 8), ["Gemm"]),
    "linear without bias": (lambda: nn.Linear(8, 3, bias=False), numbers(2, 8), ["Gemm"]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_onnx_has_whole_is_one_operator(name: str, tmp_path: Path) -> None:
    make, x, wanted = WHOLE[name]
    assert list(operators(make(), x, folder=tmp_path, dynamic=BATCH)) == wanted


RECURRENT = {
    "lstm": (lambda: nn.LSTM(8, 5), "LSTM", 1),
    "lstm without bias": (lambda: nn.LSTM(8, 5, bias=False), "LSTM", 1),
    "gru of two layers both ways": (
        lambda: nn.GRU(8, 5, num_layers=2, bidirectional=True), "GRU", 4,
    ),
    "rnn with relu": (lambda: nn.RNN(8, 5, nonlinearity="relu"), "RNN", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_are_operators(name: str, tmp_path: Path) -> None:
    make, operator, count = RECURRENT[name]
    found = operators(make(), ROWS, folder=tmp_path, dynamic={"x": {0: "time", 1: "batch"}})
    assert found[operator] == count
    assert not {"Scan", "Loop"} & found.keys()


def test_lengths_are_the_operators_own(tmp_path: Path) -> None:
    net = nn.GRU(8, 5)

    def program(x: wf.Tensor, lengths: wf.Tensor) -> Any:
        return net(x, lengths=lengths)

    lengths = wf.tensor([3, 1, 2, 3])
    assert operators(program, ROWS, lengths, folder=tmp_path)["GRU"] == 1


def test_attention_is_an_operator_where_the_opset_has_it(tmp_path: Path) -> None:
    def attend(q: wf.Tensor, k: wf.Tensor, v: wf.Tensor) -> wf.Tensor:
        return wf.scaled_dot_product_attention(q, k, v, causal=True)

    assert operators(attend, IMAGE, IMAGE, IMAGE, folder=tmp_path) == {"Attention": 1}
    found = operators(attend, IMAGE, IMAGE, IMAGE, folder=tmp_path, opset=18)
    assert (found["Softmax"], found["MatMul"]) == (1, 2)


def test_a_query_that_sees_nothing_gets_zeros(tmp_path: Path) -> None:
    def attend(x: wf.Tensor, mask: wf.Tensor) -> wf.Tensor:
        return wf.scaled_dot_product_attention(x, x, x, mask)

    mask = wf.tensor(np.tri(8, dtype=bool)[None, None])
    mask[:, :, 3] = False
    for opset in (18, 23):
        export(attend, (IMAGE, mask), tmp_path / "attend.onnx", opset=opset)


def test_control_flow_stays(tmp_path: Path) -> None:
    def choose(x: wf.Tensor) -> wf.Tensor:
        return wf.cond(wf.sum(x) > 0, wf.sin, lambda x: x * 2.0, x)

    def double(x: wf.Tensor) -> wf.Tensor:
        return wf.while_loop(lambda x: wf.sum(x) < 1000.0, lambda x: wf.abs(x) * 2.0 + 1.0, x)

    def add_up(x: wf.Tensor) -> Any:
        return wf.scan(lambda total, row: (total + row, total * row), wf.zeros((4, 8)), x)

    assert operators(choose, ROWS, folder=tmp_path, dynamic=BATCH)["If"] == 1
    assert operators(double, ROWS, folder=tmp_path, dynamic=BATCH)["Loop"] == 1
    assert operators(add_up, ROWS, folder=tmp_path, dynamic=BATCH)["Scan"] == 1


def test_a_gradient_is_a_program_like_any_other(tmp_path: Path) -> None:
    net = wf.models.MLP([4, 8, 3])

    def gradients(x: wf.Tensor, y: wf.Tensor) -> Any:
        def loss(parameters: Any) -> wf.Tensor:
            return F.cross_entropy(wf.functional_call(net, parameters, x), y)

        return wf.grad(loss)(dict(net.named_parameters()))

    report = export(gradients, (numbers(5, 4), wf.tensor([0, 1, 2, 0, 1])), tmp_path / "g.onnx")
    assert len(report.outputs) == 4


# --- names, sizes, lines -------------------------------------------------------------------------


def test_names_are_those_of_parameters_and_arguments(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    path = tmp_path / "net.onnx"
    export(net, (numbers(2, 4),), path, dynamic=BATCH)
    message = onnx.load(path)
    onnx.checker.check_model(message, full_check=True)
    names = {each.name for each in message.graph.initializer}
    assert names == {"0.weight", "0.bias", "2.weight", "2.bias"}
    (given,) = message.graph.input
    assert given.name == "x"
    sizes = given.type.tensor_type.shape.dim
    assert (sizes[0].dim_param, sizes[1].dim_value) == ("batch", 4)


def test_a_function_of_a_module_keeps_the_names_too(tmp_path: Path) -> None:
    net = nn.Linear(4, 3)
    path = tmp_path / "f.onnx"
    export(lambda data: {"score": wf.tanh(net(data)), "raw": net(data)}, (numbers(2, 4),), path)
    message = onnx.load(path)
    assert {each.name for each in message.graph.initializer} == {"weight", "bias"}
    assert {each.name for each in message.graph.output} == {"raw", "score"}
    assert net.training


def test_each_node_says_the_users_line(tmp_path: Path) -> None:
    def program(x: wf.Tensor) -> wf.Tensor:
        return wf.sin(x) @ x

    path = tmp_path / "lines.onnx"
    export(program, (numbers(3, 3),), path)
    line = program.__code__.co_firstlineno + 1
    for node in onnx.load(path).graph.node:
        assert f"test_export.py:{line}, in program" in node.doc_string


def test_symbolic_sizes_are_computed_from_the_inputs(tmp_path: Path) -> None:
    def fold(x: wf.Tensor) -> wf.Tensor:
        batch, time, width = x.shape
        halves = wf.reshape(x, (batch, time // 2, 2, width))
        return halves[:, :, 0] + wf.ones((batch, time // 2, width))

    report = export(fold, (numbers(2, 6, 4),), tmp_path / "fold.onnx", dynamic={"x": {0: "batch"}})
    assert report.verification is not None
    assert report.verification.sizes == ({"batch": 2}, {"batch": 5})
    spec = wf.spec("float32", ("batch", "time", 4))
    report = export(
        lambda x: wf.concat([x, wf.zeros_like(x)], axis=1), (spec,), tmp_path / "c.onnx"
    )
    assert str(report.outputs["output"]) == "f32[batch, 2*time, 4]"


def test_large_weights_stand_beside_the_model(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    export(nn.Linear(64, 64), (numbers(2, 64),), path, external_data=True)
    assert {each.name for each in tmp_path.iterdir()} == {"net.onnx", "net.onnx.data"}
    assert path.stat().st_size < 2000
    onnx.checker.check_model(str(path), full_check=True)


# --- verification and refusal --------------------------------------------------------------------


def test_a_wrong_rule_is_found_at_its_line_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rules.RULES, "sin", lambda writer, node, x: writer.op("Cos", x))

    def program(x: wf.Tensor) -> wf.Tensor:
        y = wf.exp(x)
        return wf.sin(y) + 1.0

    with pytest.raises(wf.CheckError) as caught:
        export(program, (ROWS,), tmp_path / "wrong.onnx")
    assert "the file computes other values than Weft: cos" in caught.value.problem
    assert caught.value.at is not None
    assert caught.value.at.line == program.__code__.co_firstlineno + 2
    assert not list(tmp_path.iterdir())
    export(program, (ROWS,), tmp_path / "unseen.onnx", verify=False)


def test_a_rule_that_fixes_a_size_is_found_at_the_second_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fixed(writer: Any, node: Any, x: str) -> str:
        return str(writer.op("Reshape", x, writer.integers(3, 32)))

    monkeypatch.setitem(rules.RULES, "reshape", fixed)
    with pytest.raises(wf.CheckError, match="refuses to run the file"):
        export(
            lambda x: wf.reshape(x, (x.shape[0], 32)), (ROWS,), tmp_path / "f.onnx", dynamic=BATCH
        )
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_named_with_its_line(tmp_path: Path) -> None:
    def program(x: wf.Tensor) -> wf.Tensor:
        y = x @ x.mT
        return wf.linalg.cholesky(y)

    with pytest.raises(wf.UnsupportedError) as caught:
        export(program, (numbers(3, 3),), tmp_path / "c.onnx")
    assert caught.value.problem.startswith("cholesky cannot be written: ONNX has no operator")
    assert caught.value.at is not None
    assert caught.value.at.line == program.__code__.co_firstlineno + 2
    with pytest.raises(wf.UnsupportedError, match="no complex numbers"):
        export(lambda x: wf.real(wf.fft.fft(x)), (ROWS,), tmp_path / "c.onnx")
    assert not list(tmp_path.iterdir())


MISTAKES: dict[str, tuple[type[wf.WeftError], str, dict[str, Any]]] = {
    "an input that is not there": (wf.ArgumentError, "no input is called", {"dynamic": {"y": {}}}),
    "an axis that is not there": (wf.AxisError, "has no axis", {"dynamic": {"x": {5: "n"}}}),
    "an opset that is too old": (wf.ArgumentError, "opset 9 is not written", {"opset": 9}),
    "a size that is fixed": (wf.ShapeError, "fixes the size n of x", {"dynamic": {"x": {0: "n"}}}),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_before_anything_is_written(name: str, tmp_path: Path) -> None:
    kind, problem, options = MISTAKES[name]
    with pytest.raises(kind) as caught:
        export(lambda x: x + wf.ones((3, 1, 1)), (ROWS,), tmp_path / "n.onnx", **options)
    assert problem in caught.value.problem
    assert not list(tmp_path.iterdir())


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(wf.ArgumentError, match="cannot be written there"):
        export(wf.sin, (ROWS,), tmp_path / "missing" / "f.onnx")


def test_a_report_says_what_was_written_and_how_it_was_judged(tmp_path: Path) -> None:
    report: Report = export(wf.sin, (ROWS,), tmp_path / "sin.onnx")
    assert "opset 18, 1 nodes (Sin 1)" in str(report)
    assert "1 values agree to" in str(report)


def test_a_size_that_cannot_grow_is_tried_smaller(tmp_path: Path) -> None:
    table = wf.nn.Embedding(5, 3)

    def f(x: wf.Tensor) -> wf.Tensor:
        return x + table(wf.arange(x.shape[1]))

    whole = wf.ones((2, 5, 3))  # as many as the table has
    report = wf.onnx.export(
        f, (whole,), tmp_path / "f.onnx", dynamic={"x": {0: "batch", 1: "time"}}
    )
    assert report.verification is not None
    first, second = report.verification.sizes
    assert first == {"batch": 2, "time": 5}
    assert second["time"] < 5
    assert second["batch"] > 2


def test_a_size_that_may_be_no_other_is_said(tmp_path: Path) -> None:
    table = wf.nn.Embedding(6, 3)

    def f(x: wf.Tensor) -> wf.Tensor:
        # rows 5, 4, ... of the table, and one that is there for five alone
        return table(x.shape[0] * wf.ones_like(x) * (5 - x.shape[0]) ** 2 * 9)

    report = wf.onnx.export(
        f, (wf.zeros(5, dtype="int64"),), tmp_path / "f.onnx", dynamic={"x": {0: "n"}}
    )
    assert report.verification is not None
    assert report.verification.sizes == ({"n": 5},)
    assert "tried at one size alone" in " ".join(report.verification.notes)


def test_what_a_call_changes_is_noted_because_a_file_has_no_state(tmp_path: Path) -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", wf.zeros(()))
            self.weight = nn.Parameter(wf.ones((4,)))

        def forward(self, x: wf.Tensor) -> wf.Tensor:
            self.count += 1.0
            return x * self.weight * self.count

    counter = Counter()
    report = export(counter, (numbers(3, 4),), tmp_path / "counter.onnx")
    assert report.notes == (
        "a call changes count here, and a file has no state: return the new value to have it",
    )
    assert counter.count.item() == 0.0


def test_a_mean_over_no_axes_is_not_one_over_all(tmp_path: Path) -> None:
    def centred(x: wf.Tensor) -> wf.Tensor:
        return x - wf.mean(x) + wf.logsumexp(x)

    export(wf.vmap(centred), (numbers(5),), tmp_path / "vector.onnx")
    assert operators(wf.vmap(centred), numbers(5, 3), folder=tmp_path)["ReduceMean"] == 1


def test_a_file_that_nothing_here_runs_is_refused_with_both_reasons(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    image = numbers(1, 1, 5, 5).astype("float64")  # no kernel, and a scan that runs backwards

    def program(x: wf.Tensor) -> wf.Tensor:
        rows = wf.conv2d(x, x[:, :, :2, :2])[0, 0]
        return wf.scan(lambda a, b: (a + b, a * b), rows[0], rows, reverse=True)[1]

    with pytest.raises(wf.CheckError, match="refuses to run the file") as caught:
        export(program, (image,), tmp_path / "double.onnx")
    assert "onnxruntime cannot run it" in caught.value.got
    assert "verify=False" in caught.value.fix
    assert not list(tmp_path.iterdir())
