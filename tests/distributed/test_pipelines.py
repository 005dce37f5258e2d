"""Pipelines: stages on several processes give the gradients of the whole model on one."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import distributed
from weft.distributed.stages.cutting import cut_evenly
from weft.distributed.stages.order import Task, pipeline_order

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(8, 5)).astype(np.float32)
Y = GENERATOR.normal(size=(8, 3)).astype(np.float32)


def _fill(modules: Any) -> Any:
    """Weights that do not depend on the generator, which threads share."""
    generator = np.random.default_rng(1)
    with wf.no_grad():
        for parameter in modules.parameters():
            parameter.copy_(wf.tensor(generator.normal(size=parameter.shape).astype(np.float32)))
    return modules


def _model() -> Any:
    linear, tanh = wf.nn.Linear, wf.nn.Tanh
    return _fill(
        wf.nn.Sequential(linear(5, 7), tanh(), linear(7, 6), tanh(), linear(6, 4), linear(4, 3))
    )


def _gradients_by_accumulation(model: Any, x: np.ndarray, y: np.ndarray, parts: int) -> list[Any]:
    """The gradients of one process that goes through the micro-batches in order."""
    for rows in np.array_split(np.arange(len(x)), parts):
        loss = wf.nn.functional.mse_loss(model(wf.tensor(x[rows])), wf.tensor(y[rows]))
        (loss * (len(rows) / len(x))).backward()
    return [parameter.grad.numpy() for parameter in model.parameters()]


def _dependencies(task: Task, last: int) -> list[Task]:
    is_forward, stage, number = task
    if is_forward:
        return [Task(True, stage - 1, number)] if stage else []
    after = [Task(False, stage + 1, number)] if stage < last else []
    return [Task(True, stage, number), *after]


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved"])
def test_every_order_does_each_task_once_and_ends(name: str, processes: int) -> None:
    for rounds, chunks in product([1, 2, 3], [1] if name == "1f1b" else [1, 2, 3]):
        micro_batches = rounds * processes if name == "interleaved" else rounds + 1
        order = pipeline_order(name, processes, micro_batches, chunks)
        last = processes * chunks - 1
        waiting = [list(tasks) for tasks in order]
        done: set[Task] = set()
        while any(waiting):
            ready = [
                tasks
                for tasks in waiting
                if tasks and done.issuperset(_dependencies(tasks[0], last))
            ]
            assert ready, "the processes wait for each other"
            done.update(tasks.pop(0) for tasks in ready)
        assert len(done) == 2 * micro_batches * processes * chunks == sum(map(len, order))
        for rank, tasks in enumerate(order):
            assert all(task.stage % processes == rank for task in tasks)
            for stage in range(rank, last + 1, processes):
                back = [t.micro_batch for t in tasks if t.stage == stage and not t.is_forward]
                assert back == sorted(back)


def test_one_forward_one_back_keeps_fewer_micro_batches_than_all_forward_first() -> None:
    def most_kept(tasks: list[Task]) -> int:
        kept = np.cumsum([1 if task.is_forward else -1 for task in tasks])
        return int(kept.max())

    assert [most_kept(tasks) for tasks in pipeline_order("1f1b", 4, 8)] == [4, 3, 2, 1]
    assert [most_kept(tasks) for tasks in pipeline_order("gpipe", 4, 8)] == [8] * 4


def test_an_even_cut_has_the_lightest_heaviest_part() -> None:
    generator = np.random.default_rng(2)
    for _ in range(50):
        size = int(generator.integers(1, 8))
        count = int(generator.integers(1, size + 1))
        weights = generator.integers(0, 9, size).tolist()
        places = cut_evenly(weights, count)
        heaviest = max(map(sum, np.split(weights, places)))
        best = min(
            max(map(sum, np.split(weights, cut)))
            for cut in product(range(1, size), repeat=count - 1)
            if list(cut) == sorted(set(cut))
        )
        assert heaviest == best
        assert len(places) == count - 1
        assert sorted(set(places)) == places


@pytest.mark.parametrize(
    ("processes", "options"),
    [
        (2, {"schedule": "gpipe", "micro_batches": 4}),
        (2, {"schedule": "1f1b", "micro_batches": 3}),
        (3, {"schedule": "1f1b", "micro_batches": 4, "cut": [1, 5]}),
        (2, {"schedule": "interleaved", "micro_batches": 4, "chunks": 3}),
        (2, {"schedule": "interleaved", "micro_batches": 6, "chunks": 2, "recompute": True}),
        (1, {"schedule": "gpipe", "micro_batches": 2, "chunks": 2}),
    ],
)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_gradients_are_those_of_one_process(
    processes: int, options: Any, is_compiled: bool
) -> None:
    """Compiled stages round otherwise than the operations one by one; those give the same bits."""
    expected = _gradients_by_accumulation(_model(), X, Y, options["micro_batches"])
    names = [name for name, _ in _model().named_parameters()]

    def run_rank() -> tuple[float, dict[str, np.ndarray]]:
        pipeline = distributed.Pipeline(
            _model(), wf.nn.functional.mse_loss, compile=is_compiled, **options
        )
        loss = pipeline.step(wf.tensor(X), wf.tensor(Y))
        return loss.item(), {name: p.grad.numpy() for name, p in pipeline.named_parameters()}

    found = distributed.run_threads(run_rank, processes, {"stage": processes})
    whole = wf.nn.functional.mse_loss(_model()(wf.tensor(X)), wf.tensor(Y)).item()
    gradients = {name: value for _, part in found for name, value in part.items()}
    assert sorted(gradients) == sorted(names)
    for name, value in zip(names, expected, strict=True):
        tolerance = 1e-6 * np.abs(value).max() if is_compiled else 0.0
        np.testing.assert_allclose(gradients[name], value, rtol=0, atol=tolerance, err_msg=name)
    for loss, _ in found:
        assert loss == pytest.approx(whole, rel=1e-6)


def _train_plain(**options: Any) -> list[np.ndarray]:
    model = _model()
    optimizer = wf.optim.AdamW(model.parameters(), lr=0.05, **options)
    for _ in range(3):
        loss = wf.nn.functional.mse_loss(model(wf.tensor(X)), wf.tensor(Y))
        optimizer.minimize(loss)
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


@pytest.mark.parametrize(("zero", "clip_norm"), [(0, 0.1), (1, None), (2, 0.1)])
def test_pipelines_and_data_parallel_train_as_one_process(
    zero: int, clip_norm: float | None
) -> None:
    def run_rank() -> dict[str, np.ndarray]:
        pipeline = distributed.Pipeline(_model(), wf.nn.functional.mse_loss, micro_batches=2)
        optimizer = wf.optim.AdamW(pipeline.parameters(), lr=0.05, clip_norm=clip_norm)
        pipeline.share(optimizer, zero=zero, data_axis="data")
        own = slice(int(distributed.axis_index("data").item()), None, 2)
        for _ in range(3):
            pipeline.step(wf.tensor(X[own]), wf.tensor(Y[own]))
            optimizer.step()
            optimizer.zero_grad()
        return {name: p.detach().numpy().copy() for name, p in pipeline.named_parameters()}

    found = distributed.run_threads(run_rank, 4, {"data": 2, "stage": 2})
    names = [name for name, _ in _model().named_parameters()]
    expected = dict(zip(names, _train_plain(clip_norm=clip_norm), strict=True))
    assert {name for part in found for name in part} == set(names)
    for part in found:
        for name, value in part.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


def test_float16_steps_are_skipped_on_all_stages_together() -> None:
    def run_rank() -> tuple[float, int]:
        pipeline = distributed.Pipeline(_model(), wf.nn.functional.mse_loss, micro_batches=2)
        optimizer = wf.optim.SGD(pipeline.parameters(), lr=0.1, precision="float16")
        pipeline.share(optimizer)
        pipeline.step(wf.tensor(X), wf.tensor(Y), factor=optimizer.scale(wf.tensor(1.0)))
        if pipeline.rank == 0:
            parameter = pipeline.parameters()[0]
            parameter.grad = parameter.grad * np.inf
        optimizer.step()
        return optimizer.scaling.scale.item(), int(optimizer.steps.item())

    assert distributed.run_threads(run_rank, 2, {"stage": 2}) == [(32768.0, 0)] * 2


class _Tied(wf.nn.Module):
    """A use of another module's weight, transposed."""

    def __init__(self, weight: wf.Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        return x @ self.weight


def test_a_weight_that_two_stages_share_gets_both_gradients() -> None:
    def stages() -> Any:
        first = wf.nn.Linear(5, 4, bias=False)
        return _fill(wf.nn.Sequential(first, wf.nn.Tanh(), _Tied(first.weight)))

    plain = stages()
    target = np.ones((8, 5), np.float32)
    wf.nn.functional.mse_loss(plain(wf.tensor(X)), wf.tensor(target)).backward()
    expected = plain[0].weight.grad.numpy()

    def run_rank() -> tuple[np.ndarray, float]:
        pipeline = distributed.Pipeline(stages(), wf.nn.functional.mse_loss, micro_batches=2)
        optimizer = pipeline.share(wf.optim.SGD(pipeline.parameters(), lr=1.0))
        pipeline.step(wf.tensor(X), wf.tensor(target))
        gradients = [parameter.grad for parameter in optimizer.parameters]
        return gradients[0].numpy(), optimizer._norm(gradients).item()

    for gradient, norm in distributed.run_threads(run_rank, 2, {"stage": 2}):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
        assert norm == pytest.approx(float(np.linalg.norm(expected)), rel=1e-5)


def test_stages_may_pass_several_tensors_and_whole_numbers() -> None:
    def first(x: wf.Tensor, index: wf.Tensor) -> Any:
        return {"both": (x * 2, wf.tanh(x)), "index": index}

    class Last(wf.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = wf.nn.Embedding(4, 5)

        def forward(self, given: Any) -> wf.Tensor:
            one, other = given["both"]
            return one * other + self.table(given["index"])

    index = np.arange(8) % 4

    def modules() -> tuple[Any, Any]:
        return _fill(wf.nn.Linear(5, 5)), _fill(Last())

    def loss_of(outputs: wf.Tensor, target: wf.Tensor) -> wf.Tensor:
        return ((outputs - target) ** 2).mean()

    linear, last = modules()
    outputs = last(first(linear(wf.tensor(X)), wf.tensor(index)))
    loss_of(outputs, wf.tensor(X)).backward()

    class Start(wf.nn.Module):
        def __init__(self, linear: Any) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, x: wf.Tensor, index: wf.Tensor) -> Any:
            return first(self.linear(x), index)

    def run_rank() -> tuple[list[np.ndarray], np.ndarray]:
        own_linear, own_last = modules()
        pipeline = distributed.Pipeline([Start(own_linear), own_last], loss_of, micro_batches=2)
        pipeline.step(wf.tensor(X), wf.tensor(index), wf.tensor(X))
        gradients = [parameter.grad.numpy() for parameter in pipeline.parameters()]
        return gradients, outputs.detach().numpy()

    (start, _), (end, _) = distributed.run_threads(run_rank, 2, {"stage": 2})
    expected = [p.grad.numpy() for p in [*linear.parameters(), *last.parameters()]]
    for one, other in zip([*start, *end], expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_predictions_are_on_all_processes_and_evaluation_takes_no_gradients() -> None:
    expected = _model()(wf.tensor(X)).detach().numpy()

    def run_rank() -> tuple[np.ndarray, float, bool]:
        pipeline = distributed.Pipeline(_model(), wf.nn.functional.mse_loss, micro_batches=4)
        plain = distributed.Pipeline(_model(), micro_batches=4)
        loss, outputs = pipeline.evaluate([wf.tensor(X)], wf.tensor(Y))
        assert all(parameter.grad is None for parameter in pipeline.parameters())
        return plain.predict(wf.tensor(X)).numpy(), loss.item(), outputs is not None

    found = distributed.run_threads(run_rank, 2, {"stage": 2})
    assert [has_outputs for _, _, has_outputs in found] == [False, True]
    for outputs, loss, _ in found:
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
        assert loss == pytest.approx(float(((expected - Y) ** 2).mean()), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"schedule": "zigzag"}, "no such schedule"),
        ({"micro_batches": 0}, "no numbers of things"),
        ({"chunks": 2}, "one chunk of layers"),
        ({"schedule": "interleaved", "chunks": 2, "micro_batches": 3}, "evenly"),
        ({"cut": [0]}, "does not make the stages"),
        ({"cut": [1, 2]}, "does not make the stages"),
        ({"schedule": "gpipe", "chunks": 4}, "6 modules for 8 stages"),
    ],
)
def test_what_cannot_be_a_pipeline_is_refused(options: Any, problem: str) -> None:
    def run_rank() -> None:
        with pytest.raises(wf.ArgumentError, match=problem):
            distributed.Pipeline(_model(), wf.nn.functional.mse_loss, **options)

    distributed.run_threads(run_rank, 2, {"stage": 2})


def test_wrong_models_batches_and_places_are_refused() -> None:
    def run_rank() -> None:
        with pytest.raises(wf.ArgumentTypeError, match="no row of modules"):
            distributed.Pipeline(wf.nn.Linear(2, 2))
        pipeline = distributed.Pipeline(_model(), wf.nn.functional.mse_loss)
        with pytest.raises(wf.ShapeError, match="cannot be cut into micro-batches"):
            pipeline.step(wf.tensor(X), wf.tensor(Y[:3]))
        with pytest.raises(wf.UnsupportedError, match="cannot be part of a compiled function"):
            wf.jit(lambda x, y: pipeline.step(x, y))(wf.tensor(X), wf.tensor(Y))
        with pytest.raises(wf.ArgumentError, match="given no loss"):
            distributed.Pipeline(_model()).step(wf.tensor(X), wf.tensor(Y))

    distributed.run_threads(run_rank, 1, {"stage": 1})


# --- as a setting of the trainer ----------------------------------------------------------------


def _fit(strategy: Any, folder: Any = None, epochs: int = 2, **options: Any) -> dict[str, Any]:
    """Train by the trainer, with a last batch that does not split evenly."""
    model = _model()
    optimizer = wf.optim.AdamW(model.parameters(), lr=0.05, clip_norm=0.5)
    trainer = wf.train.Trainer(
        model, wf.nn.functional.mse_loss, optimizer, metrics=["mae", "r2"], strategy=strategy,
        seed=3, progress=False, checkpoint_folder=folder, **options,
    )  # fmt: skip
    newest = None if folder is None else trainer.checkpoint_folder.latest()
    history = trainer.fit((X[:7], Y[:7]), epochs, (X, Y), batch_size=4, resume=newest is not None)
    weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    return {"weights": weights, "row": history.rows[-1]}


def _check_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected["weights"].items():
        np.testing.assert_allclose(found["weights"][name], value, rtol=2e-5, atol=2e-6)
    for name in ("loss", "val_loss", "val_mae", "val_r2", "mae", "r2"):
        np.testing.assert_allclose(found["row"][name], expected["row"][name], rtol=1e-4)


@pytest.mark.parametrize(
    ("processes", "settings", "options"),
    [
        (2, {"stages": 2, "micro_batches": 2}, {}),
        (2, {"stages": 2, "micro_batches": 2, "schedule": "interleaved", "chunks": 2}, {}),
        (4, {"stages": 2, "micro_batches": 2, "zero": 1}, {"accumulate": 2}),
    ],
)
def test_a_trainer_of_a_pipeline_does_what_one_process_does(
    processes: int, settings: Any, options: Any
) -> None:
    expected = _fit(None, **options)

    def run_rank() -> dict[str, Any]:
        return _fit(wf.train.PipelineStrategy(**settings), **options)

    for found in distributed.run_threads(run_rank, processes):
        _check_same(found, expected)


def test_a_pipelines_checkpoint_is_resumed_by_one_process_and_the_other_way(tmp_path: Any) -> None:
    expected = _fit(None, epochs=3)

    def run_rank(epochs: int, folder: Any) -> dict[str, Any]:
        strategy = wf.train.PipelineStrategy(stages=2, micro_batches=2)
        return _fit(strategy, folder, epochs=epochs)

    distributed.run_threads(lambda: run_rank(2, tmp_path / "pipeline"), 2)
    _check_same(_fit(None, tmp_path / "pipeline", epochs=3), expected)
    _fit(None, tmp_path / "alone", epochs=2)
    for found in distributed.run_threads(lambda: run_rank(3, tmp_path / "alone"), 2):
        _check_same(found, expected)


def test_pipelines_that_the_trainer_cannot_run_are_refused() -> None:
    class Own(wf.train.Trainer):
        def objective(self, model: Any, batch: Any) -> Any:
            raise AssertionError

    def run_rank() -> None:
        with pytest.raises(wf.ArgumentError, match="pipelines of so many stages"):
            wf.train.PipelineStrategy(stages=3)
        model = _model()
        optimizer = wf.optim.SGD(model.parameters(), lr=0.1)
        for kind, options in ((Own, {}), (wf.train.Trainer, {"ema": 0.9})):
            strategy = wf.train.PipelineStrategy(stages=2)
            with pytest.raises(wf.UnsupportedError):
                kind(model, "mse_loss", optimizer, strategy=strategy, progress=False, **options)

    distributed.run_threads(run_rank, 2)
