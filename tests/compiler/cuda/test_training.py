"""Training on a card in the host's memory: batches that are copied ahead, trainers, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.host_card import HostCard, host_card
from tests.test_examples import EXAMPLES as FOLDER
from tests.test_examples import load as load_example

import weft as wf
from weft.cli.application import main
from weft.compiler.targets.cuda import dlpack
from weft.compiler.targets.cuda.array import compute_stream
from weft.data import ArrayDataset, DataLoader

pytestmark = pytest.mark.slow

CPU = wf.device("cpu")
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCard]:
    with host_card(monkeypatch) as card:
        yield card
        dlpack.collect_dropped(wait=True)


def data(count: int = 13) -> tuple[Any, Any]:
    generator = np.random.default_rng(2)
    inputs = generator.normal(size=(count, 4)).astype(np.float32)
    return inputs, np.arange(count) % 3


# --- the loader ----------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_on_a_card_are_those_of_the_host(card: HostCard, prefetch: int) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "prefetch": prefetch}
    here = list(DataLoader(ArrayDataset(*data()), **options))
    there = list(DataLoader(ArrayDataset(*data()), device="cuda", **options))
    assert len(there) == len(here) == 4
    for batch, wanted in zip(there, here, strict=True):
        for one, other in zip(batch, wanted, strict=True):
            assert (one.device, one.type) == (wf.device("cuda"), other.type)
            np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_batch_is_copied_while_the_one_before_it_is_used(card: HostCard) -> None:
    loader = iter(DataLoader(ArrayDataset(*data()), batch_size=4, device="cuda"))
    first = next(loader)
    copies = [given for name, given in card.calls if name == "cuMemcpyHtoDAsync_v2"]
    main = compute_stream(0).handle
    assert len(copies) == 4, "two tensors of each of two batches"
    assert main not in [given[-1] for given in copies]
    # the main stream waits for the copies of the first batch alone
    waits = [given for name, given in card.calls if name == "cuStreamWaitEvent"]
    assert [given[0] for given in waits] == [main]
    assert float(first[0].sum()) == pytest.approx(float(data()[0][:4].sum()), rel=1e-5)


def test_pinned_memory_is_filled_anew_only_after_the_copy_from_it(card: HostCard) -> None:
    loader = iter(DataLoader(ArrayDataset(*data(40)), batch_size=4, device="cuda"))
    for _ in range(6):
        next(loader)
    assert card.names().count("cuMemHostAlloc") == 4, "two tensors in each of two slots"
    own = next(given[-1] for name, given in card.calls if name == "cuMemcpyHtoDAsync_v2")
    recorded: list[int] = []
    events = [each for each in card.calls if each[0] in ("cuEventRecord", "cuEventSynchronize")]
    for name, given in events:
        if name == "cuEventRecord" and given[1] == own:
            # before a slot's event is recorded again, the host has waited for it
            assert given[0] not in recorded
            recorded.append(given[0])
        elif name == "cuEventSynchronize" and given[0] in recorded:
            recorded.remove(given[0])
    assert len(recorded) == 2


def test_memory_of_batches_is_used_again_and_kept_batches_stay_whole(card: HostCard) -> None:
    loader = DataLoader(ArrayDataset(*data(40)), batch_size=4, device="cuda")
    kept = [inputs for inputs, _ in loader]
    np.testing.assert_array_equal(np.concatenate([x.numpy() for x in kept]), data(40)[0])
    del kept
    pointers = set()
    for inputs, _ in loader:
        pointers.add(inputs._value.pointer)
        del inputs, _
    assert len(pointers) <= 6


def test_batches_of_any_layout_and_of_none_reach_a_card(card: HostCard) -> None:
    wide = np.arange(24, dtype=np.float64).reshape(4, 6)
    parts = ArrayDataset(wide.T, np.zeros((6, 0), np.int32), np.array(list("abcdef")))
    (first, second, names), *_ = DataLoader(parts, batch_size=4, device="cuda")
    np.testing.assert_array_equal(first.numpy(), wide.T[:4])
    assert (second.shape, second.device) == ((4, 0), wf.device("cuda"))
    assert list(names) == list("abcd")


def test_an_error_of_the_data_comes_in_its_place(card: HostCard) -> None:
    class Broken(wf.data.Dataset):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            if index == 4:
                raise KeyError("no such example")
            return np.float32(index)

    batches = iter(DataLoader(Broken(), batch_size=2, device="cuda"))
    assert [next(batches).tolist() for _ in range(2)] == [[0.0, 1.0], [2.0, 3.0]]
    with pytest.raises(KeyError, match="no such example"):
        next(batches)


def test_a_loader_resumes_after_what_was_delivered_and_not_after_what_was_copied(
    card: HostCard,
) -> None:
    loader = DataLoader(ArrayDataset(*data()), batch_size=4, device="cuda")
    next(iter(loader))
    state = loader.state_dict()
    assert state["batch"] == 1
    again = DataLoader(ArrayDataset(*data()), batch_size=4)
    again.load_state_dict(state)
    np.testing.assert_array_equal(next(iter(again))[0].numpy(), data()[0][4:8])


# --- trainers and checkpoints --------------------------------------------------------------------


def trainer(device: str, folder: Path | None = None, **options: Any) -> wf.train.Trainer:
    wf.random.seed(5)
    model = wf.nn.Sequential(wf.nn.Linear(4, 8), wf.nn.Dropout(0.2), wf.nn.Linear(8, 3))
    return wf.train.Trainer(
        model,
        wf.nn.functional.cross_entropy,
        wf.optim.AdamW(model.parameters(), lr=0.02),
        metrics=["accuracy"],
        device=device,
        checkpoint_folder=folder,
        seed=1,
        progress=False,
        **options,
    )


def weights(of: wf.train.Trainer) -> list[Any]:
    return [tensor.cpu().numpy() for tensor in of.model.state_dict().values()]


@pytest.mark.parametrize("compile", [True, False])
def test_a_trainer_learns_on_a_card_what_it_learns_on_the_host(
    card: HostCard, compile: bool
) -> None:
    runs = {device: trainer(device, compile=compile, ema=0.9) for device in ("cpu", "cuda")}
    for each in runs.values():
        each.fit(data(), epochs=2, batch_size=4, validation=data(5))
    here, there = runs["cpu"], runs["cuda"]
    assert there.device == wf.device("cuda")
    for one, other in zip(weights(there), weights(here), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    assert there.history.rows[-1]["loss"] == pytest.approx(here.history.rows[-1]["loss"], rel=1e-3)
    assert there.predict(data()[0]).device == wf.device("cuda")


def test_updates_of_several_batches_and_clipped_gradients_are_the_hosts(card: HostCard) -> None:
    runs = [trainer(device, accumulate=2, clip_norm=0.1) for device in ("cuda", "cpu")]
    for each in runs:
        each.fit(data(), epochs=1, batch_size=4)
    for one, other in zip(*map(weights, runs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("first", "second"), [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")])
def test_a_run_goes_on_from_a_checkpoint_on_any_device(
    card: HostCard, tmp_path: Path, first: str, second: str
) -> None:
    whole = trainer(first, tmp_path / "whole")
    whole.fit(data(), epochs=3, batch_size=4)
    begun = trainer(first, tmp_path / "run")
    begun.fit(data(), epochs=1, batch_size=4)
    resumed = trainer(second, tmp_path / "run")
    resumed.fit(data(), epochs=3, batch_size=4, resume=True)
    assert resumed.device == wf.device(second)
    assert resumed.step == whole.step
    for one, other in zip(weights(resumed), weights(whole), strict=True):
        if first == second:
            np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_state_of_another_device_is_loaded_where_a_model_is(card: HostCard) -> None:
    source = wf.nn.Linear(3, 2)
    model = wf.nn.Linear(3, 2, device="cuda")
    optimizer = wf.optim.Adam(model.parameters(), lr=0.1)
    model.load_state_dict(source.state_dict())
    assert {p.device for p in model.parameters()} == {wf.device("cuda")}
    np.testing.assert_array_equal(model.weight.tolist(), source.weight.tolist())
    other = wf.optim.Adam(source.parameters(), lr=0.1)
    (source(wf.ones((1, 3))) ** 2).sum().backward()
    other.step()
    optimizer.load_state_dict(other.state_dict())
    (model(wf.ones((1, 3), device="cuda")) ** 2).sum().backward()
    optimizer.step()
    assert {p.device for p in model.parameters()} == {wf.device("cuda")}


def test_a_file_is_loaded_to_the_device_that_is_asked_for(card: HostCard, tmp_path: Path) -> None:
    tree = {"a": wf.arange(3).to("cuda"), "b": [wf.ones(2), 5]}
    wf.save(tree, tmp_path / "tree.safetensors")
    for device in ("cuda", "cpu"):
        loaded = wf.load(tmp_path / "tree.safetensors", device=device)
        assert loaded["a"].device == loaded["b"][0].device == wf.device(device)
        assert (loaded["a"].tolist(), loaded["b"][1]) == ([0, 1, 2], 5)
    assert wf.load(tmp_path / "tree.safetensors")["a"].device == CPU


# --- from the command line -----------------------------------------------------------------------


def test_the_command_line_trains_and_judges_on_a_card(
    card: HostCard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    settings = ["--set", "hidden=2", "--device", "cuda", "--folder", folder]
    assert main(["train", "iris", "--epochs", "1", "--quiet", *settings]) == 0
    launched = card.launched
    assert launched > 0
    capsys.readouterr()
    assert main(["eval", "iris", "--json", *settings]) == 0
    assert card.launched > launched
    there = json.loads(capsys.readouterr().out)
    assert main(["eval", "iris", "--json", "--set", "hidden=2", "--folder", folder]) == 0
    here = json.loads(capsys.readouterr().out)
    assert there["loss"] == pytest.approx(here["loss"], rel=1e-3)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_takes_a_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    assert load_example(name).parse(["--device", "cuda"]).device == "cuda"


def test_an_example_runs_on_a_card(card: HostCard) -> None:
    example = load_example("linear_regression")
    try:
        there = example.main(["--quick", "--device", "cuda"])
    finally:
        wf.default_device("cpu")
    assert card.launched > 0
    here = example.main(["--quick"])
    for name, value in here.items():
        assert there[name] == pytest.approx(value, rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("way", ["named", "default", "fed"])
def test_a_session_computes_on_a_card_what_it_computes_on_the_processor(
    card: HostCard, way: str, tmp_path: Path
) -> None:
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None, 3), name="x")
        w = wf.Variable(wf.random.uniform((3, 2), -1.0, 1.0), name="w")
        double = wf.Variable(w * 2.0, name="double")
        noise = wf.random.normal((2,))
        loss = wf.mean((x @ w + double.sum() + 0.01 * noise) ** 2)
        optimizer = wf.optim.Adam(lr=0.1)
        step = optimizer.minimize(loss)
    fed = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)

    def losses(device: str) -> list[float]:
        wf.random.seed(3)
        given = wf.asarray(fed, device=device) if way == "fed" else fed
        with wf.default_device(device if way == "default" else "cpu"):
            session = wf.Session(graph, device=None if way == "default" else device)
        with session:
            found = [session.run({"loss": loss, "step": step}, {x: given})["loss"] for _ in "abcd"]
            session.load(w, np.ones((3, 2), np.float32))
            found.append(session.run(loss, {x: given}))
            assert {str(value.device) for value in (*found, *session.cell_values())} == {device}
            graph.save(tmp_path / "graph.weft", session)
        with wf.Session(wf.Graph.load(tmp_path / "graph.weft"), device=device) as again:
            assert again.run("w").tolist() == np.ones((3, 2)).tolist()
        return [value.item() for value in found]

    on_processor = losses("cpu")
    assert len({*on_processor}) == 5
    np.testing.assert_allclose(losses("cuda:0"), on_processor, rtol=1e-5)
