"""Every optimiser against its formula, against PyTorch's, and compiled against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.optim import references

import weft as wf

STEPS = 10
optim = wf.optim


class Case(NamedTuple):
    name: str
    make: Callable[[Any], Any]
    reference: Callable[[int], references.Step]
    torch: Callable[[Any, Any], Any] | None = None
    tolerance: float = 1e-5


def both(reference: Callable[[], references.Step]) -> Callable[[int], references.Step]:
    return lambda ndim: reference()


CASES = [
    Case(
        "sgd",
        lambda p: optim.SGD(p, lr=0.05),
        both(lambda: references.sgd(0.05)),
        lambda t, p: t.SGD(p, lr=0.05),
    ),
    Case(
        "sgd-momentum",
        lambda p: optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
        both(lambda: references.sgd(0.05, 0.9, decay=0.1)),
        lambda t, p: t.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
    ),
    Case(
        "sgd-dampening",
        lambda p: optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.5),
        both(lambda: references.sgd(0.05, 0.9, 0.5)),
        lambda t, p: t.SGD(p, lr=0.05, momentum=0.9, dampening=0.5),
    ),
    Case(
        "sgd-nesterov",
        lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
        both(lambda: references.sgd(0.05, 0.9, nesterov=True)),
        lambda t, p: t.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    ),
    Case(
        "adam",
        lambda p: optim.Adam(p, lr=0.05),
        both(lambda: references.adam(0.05)),
        lambda t, p: t.Adam(p, lr=0.05),
    ),
    Case(
        "adam-decay",
        lambda p: optim.Adam(p, lr=0.05, betas=(0.8, 0.99), weight_decay=0.1, amsgrad=True),
        both(lambda: references.adam(0.05, (0.8, 0.99), decay=0.1, amsgrad=True)),
        lambda t, p: t.Adam(p, lr=0.05, betas=(0.8, 0.99), weight_decay=0.1, amsgrad=True),
    ),
    Case(
        "adamw",
        lambda p: optim.AdamW(p, lr=0.05, weight_decay=0.2),
        both(lambda: references.adam(0.05, decay=0.2, coupled=False)),
        lambda t, p: t.AdamW(p, lr=0.05, weight_decay=0.2),
    ),
    Case(
        "adamw-amsgrad",
        lambda p: optim.AdamW(p, lr=0.05, eps=1e-4, amsgrad=True),
        both(lambda: references.adam(0.05, eps=1e-4, decay=0.01, coupled=False, amsgrad=True)),
        lambda t, p: t.AdamW(p, lr=0.05, eps=1e-4, amsgrad=True),
    ),
    Case(
        "rmsprop",
        lambda p: optim.RMSprop(p, lr=0.01),
        both(lambda: references.rmsprop(0.01)),
        lambda t, p: t.RMSprop(p, lr=0.01),
    ),
    Case(
        "rmsprop-centered",
        lambda p: optim.RMSprop(p, 0.01, alpha=0.9, momentum=0.5, centered=True, weight_decay=0.1),
        both(lambda: references.rmsprop(0.01, 0.9, momentum=0.5, centered=True, decay=0.1)),
        lambda t, p: t.RMSprop(p, 0.01, alpha=0.9, momentum=0.5, centered=True, weight_decay=0.1),
    ),
    Case(
        "adagrad",
        lambda p: optim.Adagrad(p, lr=0.1),
        both(lambda: references.adagrad(0.1)),
        lambda t, p: t.Adagrad(p, lr=0.1),
    ),
    Case(
        "adagrad-decay",
        lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.1, initial=0.5),
        both(lambda: references.adagrad(0.1, 0.1, 0.5, decay=0.1)),
        lambda t, p: t.Adagrad(
            p, lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.5
        ),
    ),
    Case(
        "adadelta",
        lambda p: optim.Adadelta(p, weight_decay=0.1),
        both(lambda: references.adadelta(decay=0.1)),
        lambda t, p: t.Adadelta(p, weight_decay=0.1),
    ),
    Case(
        "nadam",
        lambda p: optim.NAdam(p, lr=0.05, weight_decay=0.1),
        both(lambda: references.nadam(0.05, decay=0.1)),
        lambda t, p: t.NAdam(p, lr=0.05, weight_decay=0.1),
    ),
    Case(
        "radam",
        lambda p: optim.RAdam(p, lr=0.05, betas=(0.9, 0.99), weight_decay=0.1),
        both(lambda: references.radam(0.05, (0.9, 0.99), decay=0.1)),
        lambda t, p: t.RAdam(p, lr=0.05, betas=(0.9, 0.99), weight_decay=0.1),
    ),
    Case(
        "adamax",
        lambda p: optim.Adamax(p, lr=0.05, weight_decay=0.1),
        both(lambda: references.adamax(0.05, decay=0.1)),
        lambda t, p: t.Adamax(p, lr=0.05, weight_decay=0.1),
    ),
    Case(
        "sparse-adam",
        lambda p: optim.SparseAdam(p, lr=0.05),
        both(lambda: references.adam(0.05)),
    ),
    Case(
        "adafactor",
        lambda p: optim.Adafactor(p, lr=0.05, weight_decay=0.1),
        both(lambda: references.adafactor(0.05, decay=0.1)),
        lambda t, p: t.Adafactor(p, lr=0.05, weight_decay=0.1),
    ),
    Case(
        "rprop",
        lambda p: optim.Rprop(p, lr=0.05),
        both(lambda: references.rprop(0.05)),
        lambda t, p: t.Rprop(p, lr=0.05),
    ),
    Case(
        "asgd",
        lambda p: optim.ASGD(p, lr=0.05, lambd=0.1, weight_decay=0.1),
        both(lambda: references.asgd(0.05, 0.1, decay=0.1)),
        lambda t, p: t.ASGD(p, lr=0.05, lambd=0.1, weight_decay=0.1),
    ),
    Case("lamb", lambda p: optim.Lamb(p, lr=0.05), both(lambda: references.lamb(0.05))),
    Case(
        "lamb-decay",
        lambda p: optim.Lamb(p, lr=0.05, weight_decay=0.1),
        both(lambda: references.lamb(0.05, decay=0.1)),
    ),
    Case(
        "lion",
        lambda p: optim.Lion(p, lr=0.05, weight_decay=0.1),
        both(lambda: references.lion(0.05, decay=0.1)),
    ),
    Case(
        "muon",
        lambda p: optim.Muon(p, lr=0.05, adamw_lr=0.1),
        lambda ndim: (
            references.muon(0.05) if ndim == 2 else references.adam(0.1, decay=0.01, coupled=False)
        ),
        tolerance=1e-4,
    ),
]
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def values() -> list[np.ndarray[Any, Any]]:
    draw = np.random.default_rng(3)
    return [draw.normal(size=(4, 3)).astype("f4"), draw.normal(size=(3,)).astype("f4")]


DATA = np.random.default_rng(4).normal(size=(8, 4)).astype("f4")


def loss_of(w: Any, b: Any, x: Any) -> Any:
    """Works on tensors of Weft and of PyTorch alike."""
    hidden = x @ w + b
    return (hidden * hidden * hidden.cos()).mean() + (w * w).sum() * 0.1


def tensors() -> list[wf.Tensor]:
    return [wf.tensor(value, requires_grad=True) for value in values()]


def step(parameters: list[wf.Tensor], optimizer: Any, x: wf.Tensor) -> wf.Tensor:
    loss = loss_of(*parameters, x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def trained(case: Case, run: Callable[..., Any] = step) -> tuple[list[Any], Any]:
    parameters = tensors()
    optimizer = case.make(parameters)
    for _ in range(STEPS):
        run(parameters, optimizer, wf.tensor(DATA))
    return [array(p) for p in parameters], optimizer


def array(tensor: wf.Tensor) -> Any:
    return tensor.detach().numpy()


def relative(actual: Any, expected: Any) -> float:
    return float(np.max(np.abs(actual - expected)) / np.max(np.abs(expected)))


@by_name
def test_ten_steps_follow_the_formula(case: Case) -> None:
    gradient = wf.grad(loss_of, argnums=(0, 1))
    expected = [value.astype("f8") for value in values()]
    rules = [case.reference(value.ndim) for value in expected]
    for _ in range(STEPS):
        found = gradient(*[wf.tensor(v) for v in expected], wf.tensor(DATA.astype("f8")))
        pairs = zip(rules, expected, found, strict=True)
        expected = [rule(p, g.numpy()) for rule, p, g in pairs]
    actual, _ = trained(case)
    for a, e in zip(actual, expected, strict=True):
        assert relative(a, e) < case.tolerance


@by_name
def test_ten_steps_are_those_of_torch(case: Case) -> None:
    torch = pytest.importorskip("torch")
    if case.torch is None:
        pytest.skip("torch has no such optimiser, or computes it in bfloat16")
    parameters = [torch.tensor(value, requires_grad=True) for value in values()]
    optimizer = case.torch(torch.optim, parameters)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(*parameters, torch.tensor(DATA)).backward()
        optimizer.step()
    actual, _ = trained(case)
    for a, e in zip(actual, parameters, strict=True):
        assert relative(a, e.detach().numpy()) < case.tolerance


def test_muon_is_near_torch_which_iterates_in_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    w = torch.tensor(values()[0], requires_grad=True)
    mine = wf.tensor(values()[0], requires_grad=True)
    theirs = torch.optim.Muon([w], lr=0.05)
    optimizer = optim.Muon([mine], lr=0.05)
    for _ in range(STEPS):
        theirs.zero_grad()
        (w**4).sum().backward()
        theirs.step()
        optimizer.minimize((mine**4).sum())
    assert relative(array(mine), w.detach().numpy()) < 0.02


@pytest.mark.slow
@by_name
def test_a_compiled_step_is_the_eager_step(case: Case) -> None:
    compiled = wf.jit(step)
    eager, first = trained(case)
    native, second = trained(case, compiled)
    for a, b in zip(native, eager, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    for a, b in zip(wf.tree.leaves(first.state), wf.tree.leaves(second.state), strict=True):
        np.testing.assert_allclose(a.numpy(), array(b), rtol=2e-4, atol=2e-6)
    assert second.steps.item() == STEPS
    assert len(compiled.compilations) == 1


@by_name
def test_another_learning_rate_does_not_compile_again(case: Case) -> None:
    compiled = wf.jit(step)
    parameters = tensors()
    optimizer = case.make(parameters)
    compiled(parameters, optimizer, wf.tensor(DATA))
    before = array(parameters[0]).copy()
    optimizer.lr = 0.0
    compiled(parameters, optimizer, wf.tensor(DATA))
    assert len(compiled.compilations) == 1
    if case.name != "rprop":  # whose rate is the size of its first step alone
        assert np.array_equal(array(parameters[0]), before)


@by_name
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_resumed_run_has_the_same_bits(case: Case, compiled: bool, tmp_path: Any) -> None:
    run = wf.jit(step) if compiled else step
    x = wf.tensor(DATA)
    whole = tensors()
    optimizer = case.make(whole)
    for _ in range(3):
        run(whole, optimizer, x)
    wf.save({"model": whole, "optimizer": optimizer.state_dict()}, tmp_path / "run")
    for _ in range(3):
        run(whole, optimizer, x)
    saved = wf.load(tmp_path / "run")
    resumed = [wf.tensor(array(p), requires_grad=True) for p in saved["model"]]
    again = case.make(resumed)
    again.load_state_dict(saved["optimizer"])
    for _ in range(3):
        run(resumed, again, x)
    for a, b in zip(resumed, whole, strict=True):
        assert np.array_equal(array(a), array(b))


def test_groups_have_their_own_options() -> None:
    w, b = tensors()
    optimizer = optim.SGD([{"params": [w]}, {"params": b, "lr": 0.0}], lr=0.5)
    before = array(w).copy(), array(b).copy()
    step([w, b], optimizer, wf.tensor(DATA))
    assert not np.array_equal(array(w), before[0])
    assert np.array_equal(array(b), before[1])
    optimizer.groups[1]["lr"] = 0.25
    assert [group["lr"].item() for group in optimizer.groups] == [0.5, 0.25]


def test_maximize_climbs() -> None:
    w = wf.tensor([1.0, -2.0], requires_grad=True)
    optim.SGD([w], lr=0.5, maximize=True).minimize((w * w).sum())
    assert w.tolist() == [2.0, -4.0]


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    w, b = tensors()
    optimizer = optim.AdamW([w, b], lr=0.5, weight_decay=0.5)
    (w * w).sum().backward()
    optimizer.step()
    assert np.array_equal(array(b), values()[1])


def test_parameters_in_16_bits_are_updated_from_float32() -> None:
    w = wf.tensor([1.0, 2.0], dtype=wf.bfloat16, requires_grad=True)
    optimizer = optim.Adam([w], lr=0.25)
    assert optimizer.state[0]["mean"].dtype is wf.float32
    optimizer.minimize((w * w).sum())
    assert w.dtype is wf.bfloat16
    assert w.astype("float32").tolist() == [0.75, 1.75]


def test_parameters_in_float64_stay_so() -> None:
    w = wf.tensor([1.0, 2.0], dtype=wf.float64, requires_grad=True)
    optimizer = optim.Adam([w], lr=0.25)
    optimizer.minimize((w * w).sum())
    assert w.dtype is wf.float64
    np.testing.assert_allclose(array(w), [0.75, 1.75], rtol=1e-6)


@by_name
def test_steps_in_float64_follow_the_formula_in_all_its_digits(case: Case) -> None:
    w, b = (wf.tensor(value.astype("f8"), requires_grad=True) for value in values())
    optimizer = case.make([w, b])
    expected, rules = [array(w).copy(), array(b).copy()], [case.reference(2), case.reference(1)]
    x = wf.tensor(DATA.astype("f8"))
    for _ in range(STEPS):
        loss_of(w, b, x).backward()
        gradients = array(w.grad).copy(), array(b.grad).copy()
        optimizer.step()
        optimizer.zero_grad()
        expected = [f(p, g) for f, p, g in zip(rules, expected, gradients, strict=True)]
        for got, wanted in zip((w, b), expected, strict=True):
            np.testing.assert_allclose(array(got), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_learning_rates_of_parameters_in_float64_are_not_rounded_to_float32(compiled: bool) -> None:
    w = wf.tensor([1.0], dtype=wf.float64, requires_grad=True)
    optimizer = optim.SGD([w], lr=0.1)
    update = wf.jit(lambda w, o: o.minimize((w * 1.0).sum())) if compiled else None

    def step() -> float:
        before = w.item()
        _ = optimizer.minimize((w * 1.0).sum()) if update is None else update(w, optimizer)
        return before - w.item()

    assert step() == pytest.approx(0.1, rel=1e-14)
    optimizer.lr = 0.3
    assert step() == pytest.approx(0.3, rel=1e-14)
    optimizer.lr = optim.schedules.Exponential(0.7, factor=0.9)
    assert step() == pytest.approx(0.7 * 0.9**2, rel=1e-14)
    narrow = optim.SGD([w, wf.tensor([1.0], requires_grad=True)], lr=0.1)
    assert (optimizer.lr.dtype, narrow.lr.dtype) == (wf.float64, wf.float32)


def test_a_learning_rate_that_was_saved_in_float32_is_read() -> None:
    w = wf.tensor([1.0], dtype=wf.float64, requires_grad=True)
    optimizer = optim.SGD([w], lr=0.1)
    state = optimizer.state_dict()
    optimizer.load_state_dict({**state, "groups.0.lr": wf.tensor(0.5)})
    assert optimizer.lr.dtype is wf.float64
    assert optimizer.lr.item() == 0.5


def test_a_number_given_as_a_tensor_can_change_without_compiling() -> None:
    compiled = wf.jit(step)
    parameters = tensors()
    optimizer = optim.SGD(parameters, lr=0.1, momentum=wf.tensor(0.9))
    compiled(parameters, optimizer, wf.tensor(DATA))
    optimizer.groups[0]["momentum"] = 0.0
    before = [p.detach() for p in parameters]
    gradient = wf.grad(loss_of)(*before, wf.tensor(DATA))
    compiled(parameters, optimizer, wf.tensor(DATA))
    assert len(compiled.compilations) == 1
    np.testing.assert_allclose(
        array(parameters[0]), (before[0] - 0.1 * gradient).numpy(), rtol=1e-5
    )


def test_an_optimizer_closed_over_is_state_too() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    optimizer = optim.SGD([w], lr=0.25, momentum=0.5)

    @wf.jit
    def run() -> wf.Tensor:
        loss = (w * w).sum()
        optimizer.minimize(loss)
        return loss

    run(), run()
    assert len(run.compilations) == 1
    assert optimizer.steps.item() == 2
    assert w.tolist() == [0.0, 0.0]


def test_the_text_of_an_optimizer_says_what_it_does() -> None:
    text = repr(optim.AdamW(tensors(), lr=1e-3, clip_norm=1.0))
    assert text.startswith("AdamW(\n  2 parameters, 15 elements: lr=0.001, betas=(0.9, 0.999)")
    assert "clip_norm=1.0" in text
    assert "Cosine(lr=0.1, steps=10" in repr(
        optim.SGD(tensors(), lr=optim.schedules.Cosine(0.1, 10))
    )


def test_a_closure_is_called_with_gradients_on() -> None:
    w = wf.tensor([1.0], requires_grad=True)
    optimizer = optim.SGD([w], lr=0.25)

    def closure() -> wf.Tensor:
        loss = (w * w).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 1.0
    assert w.tolist() == [0.5]


# Rows of tables.


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.Adagrad], ids=lambda m: m.__name__)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_touched_rows_go_as_the_dense_gradient_would(make: Any, compiled: bool) -> None:
    start = np.random.default_rng(0).normal(size=(20, 3)).astype("f4")
    indices = wf.tensor([[3, 7], [3, 11]])
    sparse, dense = (wf.tensor(start, requires_grad=True) for _ in range(2))
    ours, theirs = make([sparse], lr=0.1), make([dense], lr=0.1)

    def run(table: wf.Tensor, optimizer: Any, indices: wf.Tensor) -> None:
        rows = optim.take_rows(table, indices)
        (rows**3).sum().backward()
        optimizer.step(rows=[optim.Rows(table, indices, rows.grad)])

    run_it = wf.jit(run) if compiled else run
    for _ in range(3):
        run_it(sparse, ours, indices)
        theirs.minimize((dense[indices] ** 3).sum())
    np.testing.assert_allclose(array(sparse), array(dense), rtol=1e-5)
    assert np.array_equal(array(sparse)[[0, 4, 19]], start[[0, 4, 19]])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_no_rows_leave_the_table_as_it_is(compiled: bool) -> None:
    table = wf.ones((4, 2)).requires_grad_()
    optimizer = optim.Adagrad([table], lr=0.1)

    def run(table: wf.Tensor, optimizer: Any, indices: wf.Tensor) -> None:
        optimizer.step(rows=[optim.Rows(table, indices, wf.ones((*indices.shape, 2)))])

    run_it = wf.jit(run) if compiled else run
    run_it(table, optimizer, wf.zeros((0,), dtype="int64"))
    assert table.tolist() == [[1.0, 1.0]] * 4
    run_it(table, optimizer, wf.tensor([2, 2]))
    assert table.tolist()[:2] == [[1.0, 1.0]] * 2
    assert max(table.tolist()[2]) < 1.0


def test_rows_are_refused_where_the_rule_needs_the_whole_tensor() -> None:
    table = wf.ones((4, 2)).requires_grad_()
    rows = [optim.Rows(table, wf.tensor([1]), wf.ones((1, 2)))]
    with pytest.raises(wf.UnsupportedError, match="alike"):
        optim.Lamb([table]).step(rows=rows)
    with pytest.raises(wf.ArgumentError, match="not one of"):
        optim.SGD([wf.ones(2).requires_grad_()]).step(rows=rows)


def test_sparse_adam_leaves_rows_without_a_gradient_as_they_are() -> None:
    table = wf.tensor(values()[0], requires_grad=True)
    optimizer = optim.SparseAdam([table], lr=0.1)
    theirs = wf.tensor(values()[0], requires_grad=True)
    dense = optim.Adam([theirs], lr=0.1)
    for rows in ([0, 2], [2], [0, 3]):
        optimizer.minimize((table[wf.tensor(rows)] ** 2).sum())
        dense.minimize((theirs[wf.tensor(rows)] ** 2).sum())
    assert array(table)[1].tolist() == values()[0][1].tolist()
    assert relative(array(table)[2], array(theirs)[2]) > 0  # Adam moved on without a gradient
    means = optimizer.state[0]["mean"].numpy()
    assert not means[1].any()
    assert means[2].any()


def test_options_of_new_optimizers_that_make_no_sense_are_refused() -> None:
    w = wf.tensor([1.0], requires_grad=True)
    for make in (
        lambda: optim.Rprop([w], etas=(1.5, 1.2)),
        lambda: optim.Rprop([w], step_sizes=(1.0, 0.1)),
        lambda: optim.Adafactor([w], d=0.5),
        lambda: optim.Adafactor([w], eps=(-1.0, 1e-3)),
    ):
        with pytest.raises(wf.ArgumentError):
            make()


def test_an_optimizer_without_a_rule_says_what_it_lacks() -> None:
    class Plain(wf.optim.Optimizer):
        """No rule."""

    parameter = wf.ones(2).requires_grad_()
    optimizer = Plain([parameter], {"lr": 0.1})
    parameter.sum().backward()
    with pytest.raises(NotImplementedError, match="Plain has no update rule: override `rule`"):
        optimizer.step()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("make", [wf.optim.Adam, wf.optim.SGD, wf.optim.RMSprop])
def test_an_optimiser_has_the_digits_of_parameters_that_became_float64(
    make: Callable[..., wf.optim.Optimizer], compiled: bool
) -> None:
    options = {"momentum": 0.9} if make is wf.optim.SGD else {}

    def trained(is_late: bool) -> wf.Tensor:
        net = wf.nn.Linear(3, 2)
        net.load_state_dict({"weight": wf.ones((2, 3)) / 4, "bias": wf.zeros(2)})
        optimizer = None if not is_late else make(net.parameters(), lr=0.001, **options)
        net.to("float64")
        optimizer = optimizer or make(net.parameters(), lr=0.001, **options)

        def step(net: wf.nn.Module, optimizer: wf.optim.Optimizer, x: wf.Tensor) -> wf.Tensor:
            loss = wf.sum(net(x) ** 2)
            optimizer.minimize(loss)
            return loss

        x = wf.arange(6.0, dtype="float64").reshape((2, 3))
        optimizer.step()  # nothing has a gradient yet
        for _ in range(4):
            (wf.jit(step) if compiled else step)(net, optimizer, x)
        weight: wf.Tensor = net.weight.detach()
        assert optimizer.groups[0]["lr"].dtype is wf.float64
        net.to("float32")
        step(net, optimizer, x.astype("float32"))
        assert net.weight.dtype is wf.float32
        assert optimizer.groups[0]["lr"].dtype is wf.float32
        return weight

    np.testing.assert_allclose(trained(True).numpy(), trained(False).numpy(), rtol=1e-14)
