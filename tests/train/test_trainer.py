"""The trainer learns, compiled and eagerly alike, and does what each of its arguments says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.train import CheckpointError, Trainer


def squared(outputs: wf.Tensor, target: wf.Tensor) -> wf.Tensor:
    return ((outputs - target) ** 2).mean()


def data(count: int = 40) -> tuple[wf.Tensor, wf.Tensor]:
    x = wf.random.normal((count, 3), key=wf.random.key(1))
    return x, wf.tanh(x @ wf.tensor([[1.0], [-2.0], [0.5]]))


def network(width: int = 5) -> Any:
    wf.random.seed(3)
    return wf.nn.Sequential(wf.nn.Linear(3, width), wf.nn.Tanh(), wf.nn.Linear(width, 1))


def trainer_of(model: Any, make: Callable[..., Any] = wf.optim.Adam, **options: Any) -> Trainer:
    optimizer = make(model.parameters(), lr=options.pop("lr", 0.02))
    return Trainer(model, options.pop("loss", squared), optimizer, progress=False, **options)


def weights(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.array(tensor.numpy()) for name, tensor in model.state_dict().items()}


def assert_same(a: Any, b: Any, **tolerance: float) -> None:
    for name, value in weights(a).items():
        if tolerance:
            np.testing.assert_allclose(value, weights(b)[name], **tolerance)
        else:
            assert np.array_equal(value, weights(b)[name]), name


def test_a_model_learns_digits() -> None:
    train, test = wf.data.sets.load_digits()
    wf.random.seed(0)
    model = wf.nn.Sequential(wf.nn.Linear(64, 32), wf.nn.ReLU(), wf.nn.Linear(32, 10))

    def cross_entropy(outputs: wf.Tensor, target: wf.Tensor) -> wf.Tensor:
        chosen = wf.take_along_axis(wf.log_softmax(outputs, axis=-1), target[:, None], axis=1)
        return -chosen.mean()

    trainer = trainer_of(model, loss=cross_entropy, lr=0.005, metrics=["accuracy", "f1"], seed=0)
    history = trainer.fit(
        (train.inputs.reshape(-1, 64), train.labels),
        epochs=8,
        validation=(test.inputs.reshape(-1, 64), test.labels),
    )
    assert history["val_accuracy"][-1] > 0.93
    assert history["val_f1"][-1] > 0.93
    assert history["loss"][-1] < 0.2 < history["loss"][0]


def test_compiled_and_eager_training_agree() -> None:
    made = []
    for compiled in (True, False):
        model = network()
        trainer = trainer_of(
            model, compile=compiled, seed=0, metrics=["mse"], ema=0.9, clip_norm=0.5
        )
        history = trainer.fit(data(), epochs=3, batch_size=16, validation=data())
        made.append((model, history))
    assert_same(made[0][0], made[1][0], rtol=1e-5, atol=1e-6)
    for name in ("loss", "mse", "val_loss", "val_mse"):
        np.testing.assert_allclose(made[0][1][name], made[1][1][name], rtol=1e-5)


def test_the_last_short_batch_costs_one_compilation_and_other_sizes_none() -> None:
    model = network()
    trainer = trainer_of(model)
    x, y = data(100)
    sizes = [16, 16, 9, 16, 5, 12, 3, 7]
    starts = np.cumsum([0, *sizes])
    pieces = [(x[a : a + n], y[a : a + n]) for a, n in zip(starts, sizes, strict=False)]
    trainer.fit(pieces, epochs=2)
    assert trainer.train_programs.compilations == 2


def test_the_loss_of_an_epoch_weighs_examples_not_batches() -> None:
    model = network()
    trainer = trainer_of(model, make=wf.optim.SGD, lr=0.0, metrics=["mse"])
    history = trainer.fit(data(10), epochs=1, batch_size=7)
    x, y = data(10)
    with wf.no_grad():
        wanted = squared(model(x), y).item()
    assert history["loss"][0] == pytest.approx(wanted, rel=1e-5)
    assert history["mse"][0] == pytest.approx(wanted, rel=1e-5)
    assert trainer.evaluate(data(10), batch_size=3)["loss"] == pytest.approx(wanted, rel=1e-5)


def test_accumulated_batches_are_one_large_batch() -> None:
    x, y = data(20)
    parts = [(x[i : i + 3], y[i : i + 3]) for i in range(0, 20, 3)]  # the last has two
    groups = [(x[:9], y[:9]), (x[9:18], y[9:18]), (x[18:], y[18:])]
    small, large = network(), network()
    accumulating = trainer_of(small, accumulate=3)
    accumulating.fit(parts, epochs=4)
    trainer_of(large).fit(groups, epochs=4)
    assert accumulating.step == 12
    assert_same(small, large, rtol=2e-4, atol=1e-5)


def test_the_average_of_the_weights_is_what_is_judged() -> None:
    model = network()
    trainer = trainer_of(model, ema=0.5, lr=0.1)
    trainer.fit(data(), epochs=2)
    before = weights(model)
    judged = trainer.evaluate(data())["loss"]
    assert all(np.array_equal(before[name], value) for name, value in weights(model).items())
    with trainer.ema.applied(), wf.no_grad():
        x, y = data()
        assert judged == pytest.approx(squared(model(x), y).item(), rel=1e-5)


def test_the_gradient_is_clipped() -> None:
    model = network()
    before = weights(model)
    trainer = trainer_of(model, make=wf.optim.SGD, lr=1.0, clip_norm=0.01)
    x, y = data()
    trainer.fit([(x, 100 * y)])
    moved = math.sqrt(sum(float(((v - before[k]) ** 2).sum()) for k, v in weights(model).items()))
    assert moved == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_learns_and_keeps_float32_weights(precision: str) -> None:
    model = network()
    trainer = trainer_of(model, precision=precision)
    history = trainer.fit(data(), epochs=10, batch_size=8)
    assert history["loss"][-1] < 0.3 * history["loss"][0]
    assert {tensor.dtype for tensor in model.state_dict().values()} == {wf.float32}


@pytest.mark.parametrize("compile", [True, False])
def test_the_trainer_runs_model_and_loss_inside_of_autocast(compile: bool) -> None:
    seen: list[Any] = []

    def loss(outputs: wf.Tensor, target: wf.Tensor) -> wf.Tensor:
        seen.append((outputs.dtype, wf.autocast_dtype()))
        return squared(outputs, target)

    trainer = trainer_of(
        network(), loss=loss, precision="bfloat16", metrics=["mae"], compile=compile
    )
    trainer.fit([data()])
    trainer.evaluate([data()])
    assert set(seen) == {(wf.bfloat16, wf.bfloat16)}
    assert trainer.predict(data()[0]).dtype is wf.float32
    assert wf.autocast_dtype() is None
    plain = trainer_of(network(), loss=loss, precision="float32")
    plain.fit([data()])
    assert seen[-1] == (wf.float32, None)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(wf.ArgumentError, match="unknown precision"):
        trainer_of(network(), precision="float4")


def test_gradients_are_shown_without_the_scale_of_the_loss() -> None:
    found = {}
    for precision in ("float32", "float16"):
        trainer = trainer_of(network(), precision=precision)
        trainer.keep_gradients()
        trainer.fit([data()])
        found[precision] = trainer.gradients
    for name, gradient in found["float32"].items():
        rounded = found["float16"][name].numpy()
        np.testing.assert_allclose(rounded, gradient.numpy(), rtol=0.02, atol=1e-3)


def test_schedules_of_every_kind_set_the_rate() -> None:
    schedules = wf.optim.schedules
    for schedule in (schedules.Linear(0.1, 0.0, steps=10), lambda step: 0.1 - 0.01 * step):
        trainer = trainer_of(network(), schedule=schedule)
        logger = wf.train.LearningRateLogger()
        trainer.callbacks.append(logger)
        trainer.fit(data(40), epochs=1, batch_size=8)
        np.testing.assert_allclose(
            [rate for _, rate in logger.rates], 0.1 - 0.01 * np.arange(5), rtol=1e-5
        )
    model = network()
    optimizer = wf.optim.SGD(model.parameters(), lr=0.0)
    plateau = schedules.Plateau(optimizer, factor=0.5, patience=0)
    optimizer.lr = 1e-20
    trainer = Trainer(model, squared, optimizer, schedule=plateau, progress=False)
    trainer.fit(data(), epochs=3, validation=data())
    assert optimizer.lr.item() == pytest.approx(0.25e-20)
    stepped = schedules.Scheduler(optimizer, schedules.Exponential(0.1, 0.5))
    Trainer(model, squared, optimizer, schedule=stepped, progress=False).fit(data(8), batch_size=4)
    assert optimizer.lr.item() == pytest.approx(0.025)


def test_an_objective_of_ones_own_is_trained() -> None:
    class Autoencoding(Trainer):
        def objective(self, model: Any, batch: Any) -> tuple[Any, Any]:
            outputs = model(batch)
            return ((outputs - batch[:, :1]) ** 2).mean(), outputs

    model = network()
    optimizer = wf.optim.Adam(model.parameters(), lr=0.02)
    trainer = Autoencoding(model, None, optimizer, progress=False)
    x, _ = data()
    history = trainer.fit([x[:20], x[20:]], epochs=20)
    assert history["loss"][-1] < 0.3 * history["loss"][0]


class WeightedLoss:
    """A loss with a number that the user changes between epochs."""

    weight = 1.0

    def __call__(self, outputs: wf.Tensor, target: wf.Tensor) -> wf.Tensor:
        return self.weight * squared(outputs, target)


class OwnObjective(Trainer):
    """A trainer with such a number of its own."""

    weight = 1.0

    def objective(self, model: Any, batch: Any) -> tuple[Any, Any]:
        outputs = model(batch[0])
        return self.weight * squared(outputs, batch[1]), outputs


@pytest.mark.parametrize("form", ["function", "object", "objective", "distillation"])
def test_numbers_of_a_loss_may_change_between_epochs(form: str) -> None:
    found = []
    for compiled in (True, False):
        model, loss, options = network(), WeightedLoss(), {"progress": False, "compile": compiled}
        optimizer = wf.optim.SGD(model.parameters(), lr=0.01)
        owner: Any = loss
        if form == "objective":
            trainer = owner = OwnObjective(model, None, optimizer, **options)  # type: ignore[arg-type]
        elif form == "distillation":
            owner = options["distillation"] = wf.train.Distillation(network(), loss=squared)  # type: ignore[assignment]
            trainer = Trainer(model, squared, optimizer, **options)  # type: ignore[arg-type]
        else:
            function = lambda x, y, loss=loss: loss(x, y)  # noqa: E731
            given = loss if form == "object" else function
            trainer = Trainer(model, given, optimizer, **options)  # type: ignore[arg-type]
        trainer.fit(data(), epochs=2, batch_size=20)
        owner.weight = 0.125
        trainer.fit(data(), epochs=4, batch_size=20)
        found.append(model)
    assert_same(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_batches_may_be_dictionaries_and_have_several_inputs() -> None:
    class Two(wf.nn.Module):
        def __init__(self) -> None:
            self.line = wf.nn.Linear(3, 1)

        def forward(self, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
            return self.line(a) + self.line(b)

    x, y = data(8)
    trainer_of(Two()).fit([(x, x, y)], epochs=2)
    trainer = trainer_of(wf.nn.Linear(3, 1), loss=lambda out, batch: squared(out, batch["y"]))
    trainer.objective = lambda model, batch: (  # type: ignore[method-assign]
        squared(model(batch["x"]), batch["y"]),
        None,
    )
    trainer.fit([{"x": x, "y": y}], epochs=2)


def test_predictions_are_those_of_the_model_in_order() -> None:
    model = network()
    trainer = trainer_of(model)
    x, y = data(10)
    with wf.no_grad():
        wanted = model(x).numpy()
    np.testing.assert_allclose(trainer.predict(x, batch_size=4).numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose(trainer.predict((x, y), batch_size=4).numpy(), wanted, rtol=1e-6)
    assert model.training


def test_training_twice_goes_on() -> None:
    once, twice = network(), network()
    trainer_of(once, seed=1).fit(data(), epochs=4)
    trainer = trainer_of(twice, seed=1)
    trainer.fit(data(), epochs=2)
    history = trainer.fit(data(), epochs=2)
    assert history["epoch"] == [1, 2, 3, 4]
    assert_same(once, twice)


class Interrupted(Exception):
    pass


def interrupted_at(step: int) -> wf.train.Callback:
    def end(trainer: Trainer) -> None:
        if trainer.step == step:
            raise Interrupted

    return wf.train.LambdaCallback(on_step_end=end)


@pytest.mark.parametrize(
    ("kind", "step"),
    [("loader", 1), ("loader", 7), ("loader", 10), ("batches", 3), ("batches", 9)],
)
def test_a_run_resumed_in_mid_epoch_ends_with_the_same_bits(
    tmp_path: Path, step: int, kind: str
) -> None:
    x, y = data(40)
    pieces = [(x[i : i + 9], y[i : i + 9]) for i in range(0, 40, 9)]

    def run(folder: Path, callbacks: list[Any], resume: bool) -> tuple[Any, Any]:
        model = network()
        trainer = trainer_of(
            model, seed=5, metrics=["mae"], ema=0.8, checkpoint_folder=folder, checkpoint_every=2,
            callbacks=[wf.train.EarlyStopping("val_loss", 9, restore_best=True), *callbacks],
            schedule=wf.optim.schedules.Cosine(0.05, steps=15),
        )  # fmt: skip
        given = (x, y) if kind == "loader" else pieces
        return model, trainer.fit(given, 3, (x, y), batch_size=9, resume=resume)

    whole, history = run(tmp_path / "whole", [], False)
    with pytest.raises(Interrupted):
        run(tmp_path / "cut", [interrupted_at(step)], False)
    resumed, again = run(tmp_path / "cut", [], True)
    assert_same(whole, resumed)
    for name in ("epoch", "step", "loss", "mae", "val_loss"):
        assert history[name] == again[name]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_resumed_run_in_16_bits_ends_with_the_same_bits(tmp_path: Path, precision: str) -> None:
    x, y = data(40)
    steep = [(x[i : i + 8], y[i : i + 8] * (1000.0 if i == 16 else 1.0)) for i in range(0, 40, 8)]

    def run(folder: Path, callbacks: list[Any], resume: bool) -> Trainer:
        trainer = trainer_of(
            network(), precision=precision, seed=5, checkpoint_folder=folder, checkpoint_every=1,
            callbacks=callbacks,
        )  # fmt: skip
        if trainer.optimizer.scaling is not None:
            trainer.optimizer.scaling.interval = 3
        trainer.fit(steep, 3, resume=resume)
        return trainer

    whole = run(tmp_path / "whole", [], False)
    with pytest.raises(Interrupted):
        run(tmp_path / "cut", [interrupted_at(4)], False)
    resumed = run(tmp_path / "cut", [], True)
    assert_same(whole.model, resumed.model)
    state, again = whole.optimizer.state_dict(), resumed.optimizer.state_dict()
    for name, value in state.items():
        if isinstance(value, wf.Tensor):
            np.testing.assert_array_equal(value.numpy(), again[name].numpy(), err_msg=name)
    if precision == "float16":
        assert state["scaling.scale"].item() < 65536.0  # some steps were skipped
        assert state["steps"].item() < 15


def test_a_used_folder_is_not_mixed_with_a_new_run(tmp_path: Path) -> None:
    trainer_of(network(), checkpoint_folder=tmp_path).fit(data())
    with pytest.raises(wf.ArgumentError, match="earlier run"):
        trainer_of(network(), checkpoint_folder=tmp_path).fit(data())


def test_a_checkpoint_of_another_model_or_optimiser_is_refused(tmp_path: Path) -> None:
    trainer_of(network(), checkpoint_folder=tmp_path).fit(data())
    with pytest.raises(CheckpointError, match=r"model\.safetensors is of another model: entry '0"):
        trainer_of(network(6), checkpoint_folder=tmp_path).fit(data(), resume=True)
    other = trainer_of(network(), make=wf.optim.SGD, checkpoint_folder=tmp_path)
    with pytest.raises(CheckpointError, match=r"state\.safetensors does not fit this trainer"):
        other.fit(data(), resume=True)
    with pytest.raises(CheckpointError, match="another length"):
        trainer_of(network(), checkpoint_folder=tmp_path).fit(data(30), resume=True)


def test_a_checkpoint_can_be_loaded_by_hand(tmp_path: Path) -> None:
    model, other = network(), network()
    trainer_of(model, checkpoint_folder=tmp_path).fit(data(), epochs=2)
    trainer = trainer_of(other)
    trainer.load_checkpoint(tmp_path)
    assert_same(model, other)
    assert (trainer.epoch, trainer.step) == (2, 4)
    with pytest.raises(wf.ArgumentError, match="no folder"):
        trainer_of(network()).save_checkpoint()
    with pytest.raises(wf.ArgumentError, match="no folder to resume"):
        trainer_of(network()).fit(data(), resume=True)


class Once:
    def __iter__(self) -> Iterator[Any]:
        return iter([])


X, Y = data(6)
BAD_DATA: list[tuple[Any, type[Exception], str]] = [
    ([(X, Y), (X[:0], Y[:0])], wf.ArgumentError, "batch 1 is empty"),
    ([(X, Y), (X, Y[:4])], wf.ShapeError, "batch 1 is ragged"),
    ((X, Y[:4]), wf.ShapeError, "differ in number"),
    (Once(), wf.ArgumentError, "the data is empty"),
    (iter([(X, Y)]), wf.ArgumentTypeError, "only once"),
    (X, wf.ArgumentTypeError, "this is not data"),
    (7, wf.ArgumentTypeError, "this is not data"),
]


@pytest.mark.parametrize(("given", "kind", "told"), BAD_DATA, ids=[case[2] for case in BAD_DATA])
def test_bad_data_is_refused_by_name(given: Any, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        trainer_of(network()).fit(given)


def test_a_loss_that_is_no_number_is_refused() -> None:
    with pytest.raises(wf.ShapeError, match="not one number"):
        trainer_of(network(), loss=lambda out, y: (out - y) ** 2).fit(data())
    with pytest.raises(wf.NanError, match="batch 1 of epoch 1 is NaN"):
        trainer_of(network()).fit([(X, Y), (X, Y * float("nan"))])


def test_senseless_arguments_are_refused() -> None:
    with pytest.raises(wf.ArgumentError, match="accumulate"):
        trainer_of(network(), accumulate=0)
    model = network()
    optimizer = wf.optim.SGD(model.parameters(), lr=0.1, accumulate=2)
    with pytest.raises(wf.ArgumentError, match="both the trainer and the optimiser"):
        Trainer(model, squared, optimizer, accumulate=2)
    with pytest.raises(wf.UnsupportedError, match="several times in a step"):
        Trainer(model, squared, wf.optim.LBFGS(model.parameters()))


def test_data_sets_and_streams_of_batches_are_trained_on() -> None:
    x, y = data(20)
    pairs = wf.data.ArrayDataset(x, y)
    stream = wf.data.from_iterable(list(pairs)).batch(5)
    for given, steps in [(pairs, 3), (pairs.batch(5), 4), (stream, 4)]:
        trainer = trainer_of(network())
        history = trainer.fit(given, epochs=2, batch_size=8)
        assert trainer.step == 2 * steps
        assert history["loss"][1] < history["loss"][0]


def test_frozen_parts_stay_in_evaluation_mode_through_fit_and_evaluate() -> None:
    net = wf.nn.Sequential(wf.nn.Linear(3, 4), wf.nn.BatchNorm1d(4), wf.nn.Linear(4, 1))
    net[1].eval()
    trainer = trainer_of(net)
    trainer.fit(data(), epochs=2, validation=data(10))
    trainer.predict(data()[0])
    assert [module.training for module in net.modules()] == [True, True, False, True]
    assert net[1].running_mean.tolist() == [0.0] * 4
    net.eval()
    trainer.fit(data(), epochs=1)
    assert all(module.training for module in net.modules())


@pytest.mark.parametrize("compiled", [True, False])
def test_gradients_from_before_are_no_part_of_a_fit(compiled: bool) -> None:
    class Interrupt(wf.train.Callback):
        def on_step_end(self, trainer: Trainer) -> None:
            if trainer.batches == 1:
                raise KeyboardInterrupt

    found = []
    for interrupted in (False, True):
        net = network()
        trainer = trainer_of(net, wf.optim.SGD, accumulate=2, seed=0, compile=compiled)
        if interrupted:
            state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
            trainer.callbacks.append(Interrupt())
            with pytest.raises(KeyboardInterrupt):
                trainer.fit(data(), batch_size=10)
            trainer.callbacks.clear()
            net.load_state_dict(state)
            squared(net(data()[0]), data()[1]).backward()
        trainer.fit(data(), batch_size=10)
        found.append(net)
    assert_same(*found)
