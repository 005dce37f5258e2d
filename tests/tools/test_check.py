"""`wf.tools.check`: what is found, where, and what is not mistaken for a mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import weft as wf
from weft.nn import functional as F  # noqa: N812

X = wf.spec("float32", ("batch", 4))
VECTOR = wf.spec("float32", ("n",))


def rules(program: Any, *specs: Any, **options: Any) -> list[str]:
    return [each.rule for each in wf.tools.check(program, *specs, **options).findings]


def line_of(finding: Any) -> str:
    assert Path(finding.at.file) == Path(__file__)
    text: str = Path(__file__).read_text(encoding="utf-8").splitlines()[finding.at.line - 1]
    return text.strip()


class Faulty(wf.nn.Module):
    def __init__(self) -> None:
        self.used = wf.nn.Linear(4, 8)
        self.unused = wf.nn.Linear(8, 3)
        self.rounded = wf.nn.Linear(8, 8)
        self.parts = [wf.nn.Linear(8, 2)]

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        hidden = self.used(x)
        lost = wf.tanh(hidden) * 2  # noqa: F841  which is found
        steps = wf.round(self.rounded(hidden))
        return self.parts[0](hidden + steps)


def test_parameters_and_values_that_go_nowhere_are_found_with_their_lines() -> None:
    report = wf.tools.check(Faulty(), X)
    found = {each.rule: each for each in report.findings}
    assert set(found) == {"zero gradient", "unused parameter", "lost value"}
    assert "unused.weight and unused.bias" in found["unused parameter"].problem
    assert line_of(found["unused parameter"]) == "self.unused = wf.nn.Linear(8, 3)"
    assert line_of(found["lost value"]).startswith("lost = wf.tanh(hidden)")
    assert "rounded.weight and rounded.bias" in found["zero gradient"].problem
    assert line_of(found["zero gradient"]) == "steps = wf.round(self.rounded(hidden))"
    assert not report.ok
    assert report.signature == "f32[batch, 4] -> f32[batch, 2]"


def test_what_autograd_says_of_the_parameters_agrees() -> None:
    net = Faulty()
    net(wf.ones((2, 4))).sum().backward()
    zero = {
        name for name, p in net.named_parameters() if p.grad is None or not p.grad.numpy().any()
    }
    report = wf.tools.check(net, X)
    told = " ".join(f.problem for f in report.findings if f.rule != "lost value").split()
    assert zero == {name for name, _ in net.named_parameters() if name in told}


def test_a_frozen_parameter_needs_no_gradient() -> None:
    net = Faulty()
    net.rounded.requires_grad_(False)
    assert "zero gradient" not in rules(net, X)


@pytest.mark.parametrize(
    "blocked",
    [
        wf.stop_gradient,
        lambda y: wf.argmax(y, axis=-1).astype("float32"),
        lambda y: wf.sign(y),
        lambda y: wf.relu(-wf.exp(y) - 1),
        lambda y: y * 0.0,
        lambda y: wf.where(wf.relu(y) < 0, y, 0.0),
    ],
)
def test_gradients_that_are_always_zero_are_errors(blocked: Any) -> None:
    net = wf.nn.Linear(4, 3)
    report = wf.tools.check(net, X, loss=lambda y: blocked(y).sum())
    assert [each.rule for each in report.errors] == ["zero gradient"]
    value = blocked(net(wf.ones((2, 4)))).sum()
    if value.requires_grad:  # and where autograd can be asked, it finds nothing either
        value.backward()
        assert net.weight.grad is None or not net.weight.grad.numpy().any()


@pytest.mark.parametrize(
    "passing",
    [
        wf.relu,
        lambda y: y + wf.stop_gradient(wf.round(y) - y),
        lambda y: wf.relu(-wf.exp(y) + 1),
        lambda y: wf.where(y > 0, y, 0.0),
        lambda y: wf.cond(y.sum() > 0, lambda v: v, lambda v: v * 2, y),
    ],
)
def test_gradients_that_may_come_through_are_no_errors(passing: Any) -> None:
    assert wf.tools.check(wf.nn.Linear(4, 3), X, loss=lambda y: passing(y).sum()).ok


def test_shape_errors_are_told_with_symbolic_sizes() -> None:
    report = wf.tools.check(wf.nn.Linear(5, 3), X)
    (error,) = report.errors
    assert error.rule == "ShapeError"
    assert "f32[batch, 4]" in error.got
    assert error.fix
    assert report.signature.endswith("-> error")


def test_an_error_of_the_program_itself_is_found_at_its_line() -> None:
    def broken(x: wf.Tensor) -> wf.Tensor:
        raise KeyError("no such thing")

    (error,) = wf.tools.check(broken, X).errors
    assert error.rule == "KeyError"
    assert line_of(error) == 'raise KeyError("no such thing")'


def test_float64_that_no_input_has_is_found_once_where_it_comes_in() -> None:
    def widening(x: wf.Tensor) -> wf.Tensor:
        y = x.astype("float64")
        return (y * 2).mean()

    (found,) = wf.tools.check(widening, X).findings
    assert found.rule == "float64"
    assert line_of(found) == 'y = x.astype("float64")'
    assert rules(lambda x: (x * 2).mean(), wf.spec("float64", ("batch", 4))) == []


def test_integer_division_that_becomes_a_float_is_found() -> None:
    whole = wf.spec("int64", ("n",))
    assert rules(lambda a, b: (a // b).astype("float32"), whole, whole) == ["integer division"]
    assert rules(lambda a, b: a // b, whole, whole) == []


def test_mixed_precision_is_found() -> None:
    half, brain = wf.spec("float16", ("n",)), wf.spec("bfloat16", ("n",))
    assert rules(lambda a, b: a * b, half, brain) == ["mixed precision"]
    assert rules(lambda a, b: a * b, half, VECTOR) == ["mixed precision"]
    assert rules(lambda a, b: a * b, half, half) == []
    assert rules(lambda a, b: a.astype("float32").sum() * b, half, VECTOR) == []


def test_a_broadcast_of_a_vector_against_a_column_is_found() -> None:
    column = wf.spec("float32", ("n", 1))
    assert rules(lambda a, b: ((a - b) ** 2).mean(), VECTOR, column) == ["broadcast"]
    assert rules(lambda a, b: (a[:, None] - b).mean(), VECTOR, column) == []
    row = wf.spec("float32", ("m",))
    assert rules(lambda a, b: (a * b).sum(), row, column) == []


def test_branches_that_are_never_taken_are_found() -> None:
    (found,) = wf.tools.check(lambda x: wf.where(wf.abs(x) < 0, x, x + 1), VECTOR).findings
    assert (found.rule, "second" in found.problem) == ("dead branch", True)
    mask = wf.ones((3,), dtype="bool")
    assert rules(lambda x: wf.where(mask, x, 0.0), wf.spec("float32", (3,))) == ["dead branch"]
    always = rules(lambda x: wf.cond((x**2).sum() >= 0, wf.sin, wf.cos, x), VECTOR)
    assert always == ["dead branch"]
    assert rules(lambda x: wf.cond(x.sum() >= 0, wf.sin, wf.cos, x), VECTOR) == []
    causal = wf.tril(wf.ones((3, 3))) > 0
    assert rules(lambda x: wf.where(causal, x, 0.0), wf.spec("float32", (3, 3))) == []


def test_what_is_drawn_at_random_is_no_constant_and_nothing_is_drawn_for_it() -> None:
    wf.random.seed(5)
    expected = wf.random.normal((3,)).tolist()
    wf.random.seed(5)
    assert rules(lambda x: F.dropout(x, 0.5), wf.spec("float32", (3,))) == []
    assert wf.random.normal((3,)).tolist() == expected


@pytest.mark.parametrize(
    ("risky", "safe"),
    [
        (lambda x: wf.log(wf.relu(x)), lambda x: wf.log(wf.relu(x) + 1e-6)),
        (lambda x: wf.log(wf.sigmoid(x)), wf.log_sigmoid),
        (lambda x: wf.log(wf.softmax(x)), wf.log_softmax),
        (lambda x: wf.sqrt((x * x).sum()), lambda x: wf.sqrt((x * x).sum() + 1e-6)),
        (lambda x: x / wf.relu(x), lambda x: x / (1 + wf.relu(x))),
        (lambda x: x / wf.abs(x).sum(), lambda x: x / wf.clip(wf.abs(x).sum(), 1e-6, None)),
        (lambda x: wf.sqrt(wf.tanh(x)), lambda x: wf.sqrt(wf.tanh(x) + 2)),
    ],
)
def test_numbers_at_risk_are_found_and_what_is_guarded_is_not(risky: Any, safe: Any) -> None:
    assert rules(risky, VECTOR) == ["not finite"]
    assert rules(safe, VECTOR) == []
    assert wf.tools.check(risky, VECTOR).ok


def test_a_loss_is_one_real_number() -> None:
    net = wf.nn.Linear(4, 3)
    assert "loss" in rules(net, X, loss=lambda y: y)
    target = wf.spec("int64", ("batch",))
    assert rules(net, X, loss=F.cross_entropy, targets=[target]) == []


def test_inputs_that_change_nothing_and_sizes_that_are_fixed_are_found() -> None:
    assert rules(lambda a, b: a * 2, VECTOR, VECTOR) == ["unused input"]
    assert rules(lambda x: x + wf.ones(3), VECTOR) == ["fixed size"]


@pytest.mark.parametrize(
    ("make", "spec"),
    [
        (lambda: wf.nn.LSTM(4, 3), wf.spec("float32", (5, 2, 4))),
        (lambda: wf.nn.TransformerEncoderLayer(8, 2, 16), wf.spec("float32", ("b", 5, 8))),
        (
            lambda: wf.nn.Sequential(
                wf.nn.Conv2d(3, 4, 3), wf.nn.BatchNorm2d(4), wf.nn.Dropout(0.5), wf.nn.MaxPool2d(2)
            ),
            wf.spec("float32", ("b", 3, 8, 8)),
        ),
    ],
    ids=["lstm", "transformer", "convolutions"],
)
def test_layers_of_the_library_have_no_faults(make: Any, spec: wf.TensorType) -> None:
    net = make()
    before = {name: x.tolist() for name, x in net.state_dict().items()}
    report = wf.tools.check(net, spec, loss=lambda y: wf.tree.leaves(y)[0].mean())
    assert report.findings == ()
    assert {name: x.tolist() for name, x in net.state_dict().items()} == before


def test_a_report_is_text_and_json() -> None:
    report = wf.tools.check(Faulty(), X, name="mine")
    text = str(report)
    assert "error: zero gradient: rounded.weight and rounded.bias can never learn" in text
    assert "  fix       " in text
    assert f"{Path(__file__).name}:" in text
    assert "mine: 1 error and 2 warnings" in text
    found = json.loads(report.json())
    assert (found["program"], found["errors"], found["warnings"]) == ("mine", 1, 2)
    assert {each["severity"] for each in found["findings"]} == {"error", "warning"}
    assert all(each["line"] > 0 and each["file"] == __file__ for each in found["findings"])


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(wf.ArgumentTypeError, match="neither a function nor a module"):
        wf.tools.check(wf.ones(3), VECTOR)
