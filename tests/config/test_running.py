"""Training from files: every model, exact resumption, exports, sweeps, and their commands."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.cli import main
from weft.config.features import FeatureSpace, column_names
from weft.config.networks import feature_network
from weft.config.programs import build_program
from weft.config.reading import read_settings
from weft.config.sweeping import RESULT, sweep

CONFIGS = Path(__file__).parents[2] / "examples" / "configs"
DATASETS = Path(os.environ.get("WEFT_DATASETS", Path(__file__).parents[3] / "shared" / "datasets"))
FEATURES = {
    "user": {"kind": "category", "hash": 50},
    "item": {"kind": "category"},
    "history": {"kind": "sequence", "share": "item", "length": 5, "pooling": "attention",
                "target": "item"},
    "price": {"kind": "number", "transform": "log"},
    "age": {"kind": "bucket", "count": 4},
    "user_shop": {"kind": "cross", "columns": ["user", "shop"], "hash": 100},
}  # fmt: skip


def clicks(kind: str, **model: Any) -> dict[str, Any]:
    return {
        "task": "recommender",
        "data": {"source": "clicks", "rows": 600},
        "features": FEATURES,
        "targets": {"click": {}},
        "model": {"kind": kind, "width": 4, **model},
        "optimizer": {"kind": "adam", "lr": 0.01},
        "train": {"epochs": 2, "batch_size": 100, "quiet": True},
    }


def weights_of(model: Any) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


# --- features ------------------------------------------------------------------------------------


def test_ranges_of_columns_are_written_out() -> None:
    assert column_names("C1..C3") == ["C1", "C2", "C3"]
    assert column_names(["a..b", "x"]) == ["a..b", "x"]


def table(**columns: list[Any]) -> dict[str, Any]:
    return {name.replace("__", ":"): np.array(values) for name, values in columns.items()}


def space_of(**features: dict[str, Any]) -> FeatureSpace:
    described = {
        "task": "recommender", "data": {"source": "clicks"}, "model": {"kind": "deepfm"},
        "features": features, "targets": {"click": {}},
    }  # fmt: skip
    return FeatureSpace(read_settings(described)["features"])


def test_a_vocabulary_is_of_the_training_rows_alone() -> None:
    space = space_of(city={"kind": "category", "least": 2})
    space.fit(table(city=["Bern", "Ulm", "Bern", "Ulm", "Rom", ""]))
    assert space.rows == 4  # missing, unknown, Bern, Ulm
    ids = space.arrays(table(city=["Bern", "Ulm", "Rom", "Oslo", ""]))["ids"][:, 0]
    assert ids.tolist() == [2, 3, 1, 1, 0]


def test_shared_features_have_one_vocabulary_and_the_same_rows() -> None:
    space = space_of(
        shop={"kind": "category"}, item={"kind": "category"},
        history={"kind": "sequence", "share": "item", "length": 3},
    )  # fmt: skip
    space.fit(table(shop=["s", "s"], item=["a", "b"], history=["c|d", ""]))
    arrays = space.arrays(table(shop=["s"], item=["c"], history=["x|a|c|d"]))
    assert space.rows == 3 + 6
    assert arrays["history"].tolist() == [[5, 7, 8]]  # the last three: a, c and d
    assert arrays["ids"].tolist() == [[2, 7]]


def test_a_short_sequence_is_filled_with_the_row_of_missing_cells() -> None:
    space = space_of(history={"kind": "sequence", "hash": 10, "length": 3})
    space.fit(table(history=["a"]))
    ids = space.arrays(table(history=["a|b", ""]))["history"]
    assert ids[1].tolist() == [0, 0, 0]
    assert ids[0, 2] == 0
    assert ids[0, :2].min() > 0


def test_hashing_is_the_same_on_every_machine_and_differs_between_features() -> None:
    space = space_of(a={"kind": "category", "hash": 1000}, b={"kind": "category", "hash": 1000})
    space.fit(table(a=["x"], b=["x"]))
    ids = space.arrays(table(a=["x"], b=["x"]))["ids"][0]
    assert ids.tolist() == [314, 1794]


def test_numbers_are_scaled_by_the_training_rows_and_gaps_are_the_mean() -> None:
    space = space_of(price={"kind": "number"})
    space.fit(table(number__price=[1.0, 3.0, math.nan]))
    dense = space.arrays(table(number__price=[2.0, math.nan, 4.0]))["dense"]
    assert dense[:, 0].tolist() == [0.0, 0.0, 2.0]


def test_buckets_count_from_one_and_gaps_are_zero() -> None:
    space = space_of(age={"kind": "bucket", "boundaries": [18, 30]})
    space.fit(table(number__age=[20.0]))
    ids = space.arrays(table(number__age=[10.0, 18.0, 29.9, 30.0, math.nan]))["ids"][:, 0]
    assert (space.rows, ids.tolist()) == (4, [1, 2, 2, 3, 0])


def test_a_cross_is_of_both_cells_and_missing_if_one_is() -> None:
    space = space_of(both={"kind": "cross", "columns": ["a", "b"], "hash": 0})
    space.fit(table(a=["x", "x", "xy"], b=["y", "", "z"]))
    ids = space.arrays(table(a=["x", "xy", "x", ""], b=["y", "z", "z", "y"]))["ids"][:, 0]
    assert ids.tolist() == [2, 3, 1, 0]


def test_a_feature_can_share_only_with_one_that_has_rows() -> None:
    with pytest.raises(wf.NameUnknownError, match="item"):
        space_of(item={"kind": "category"}, history={"kind": "sequence", "share": "itm"})


# --- networks ------------------------------------------------------------------------------------


def test_padding_changes_no_answer() -> None:
    settings = read_settings(clicks("din"))
    space = FeatureSpace({"item": settings["features"]["item"],
                          "history": settings["features"]["history"]})  # fmt: skip
    space.fit(table(item=["a", "b"], history=["a|b", "b"]))
    net = feature_network(settings["model"], space, 1).eval()
    ids = wf.asarray(space.arrays(table(item=["a"], history=["b|a"]))["ids"])
    history = wf.asarray(space.arrays(table(item=["a"], history=["b|a"]))["history"])
    answer = net(ids, history).item()
    with wf.no_grad():
        padding = net.body.table.weight.numpy().copy()
        padding[space.missing_row("history")] = 100.0
        net.body.table.weight.set_(wf.asarray(padding))
    assert net(ids, history).item() == answer


@pytest.mark.parametrize("kind", ["dlrm", "deepfm", "wide_deep", "din"])
@pytest.mark.slow
def test_sparse_updates_train_as_whole_gradients_do(kind: str) -> None:
    results = []
    for sparse in ("false", "true"):
        settings = clicks(kind)
        settings["optimizer"] = {"kind": "adagrad", "lr": 0.05}
        chosen = [f"strategy.sparse={sparse}", "strategy.compile=false", "train.epochs=1"]
        results.append(wf.config.train(settings, chosen))
    one, other = (result.model.state_dict() for result in results)
    for name, value in one.items():
        np.testing.assert_allclose(value.numpy(), other[name].numpy(), rtol=2e-4, atol=2e-6)


def test_several_targets_need_a_model_for_several() -> None:
    settings = clicks("deepfm")
    settings["targets"] = {"click": {}, "rating": {"kind": "number"}}
    with pytest.raises(wf.ArgumentError, match="mmoe"):
        build_program(read_settings(settings))


def test_a_metric_that_fits_no_target_is_refused() -> None:
    settings = {**clicks("deepfm"), "evaluation": {"metrics": ["mae"]}}
    with pytest.raises(wf.NameUnknownError, match="auc"):
        build_program(read_settings(settings))


def test_nothing_is_learned_from_the_rows_that_are_held_out(tmp_path: Path) -> None:
    rows = [f"a,{number},{number % 2},{number}" for number in range(8)]
    rows += ["late,1000,1,8", "late,1000,0,9"]
    (tmp_path / "rows.csv").write_text("\n".join(["item,price,click,time", *rows]))
    settings = {
        "task": "recommender", "model": {"kind": "deepfm", "width": 2},
        "data": {"source": "csv", "path": "rows.csv", "order": "time", "validation": 0.2},
        "features": {"item": {"kind": "category"}, "price": {"kind": "number"}},
        "targets": {"click": {}},
    }  # fmt: skip
    program = build_program(read_settings(settings), tmp_path)
    learned = program.learned["features"]["learned"]
    assert learned["item"] == ["a"]
    assert learned["price"][0] == 3.5
    dense, ids, target = next(iter(program.parts["validation_data"]))
    assert ids.tolist() == [[1], [1]]  # the row of unknown cells
    assert target.tolist() == [1.0, 0.0]
    assert dense.min().item() > 100


# --- training ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_task_learns_something() -> None:
    for kind in ("deepfm", "din"):
        result = wf.config.train(
            clicks(kind), ["data.rows=2000", "train.epochs=4", "optimizer.lr=0.03"]
        )
        assert result.numbers["val_auc"] > 0.6
    several = clicks("mmoe")
    several["targets"] = {"click": {}, "rating": {"kind": "number", "weight": 0.2}}
    numbers = wf.config.train(several).numbers
    assert {"val_click_auc", "val_rating_mae"} <= numbers.keys()
    text = {
        "task": "language_model", "data": {"source": "shakespeare"},
        "model": {"kind": "lstm", "width": 8, "context": 1000}, "optimizer": {"lr": 0.05},
        "train": {"batch_size": 64, "quiet": True}, "evaluation": {"sample": 5, "prompt": "KING"},
    }  # fmt: skip
    result = wf.config.train(text)
    assert result.numbers["val_perplexity"] < 40
    assert result.sample.startswith("KING")


@pytest.mark.slow
def test_a_run_that_was_interrupted_ends_with_the_same_bits(tmp_path: Path) -> None:
    settings = clicks("wide_deep", dropout=0.1)
    whole = wf.config.train(settings, [f"train.folder={tmp_path / 'whole'}"])
    parts = [f"train.folder={tmp_path / 'parts'}", "train.checkpoint_every=2"]

    class Stop(wf.train.Callback):
        def on_step_end(self, trainer: Any) -> None:
            if trainer.step == 6:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wf.config.train(settings, parts, callbacks=[Stop()])
    resumed = wf.config.train(settings, parts, resume=True)
    assert weights_of(resumed.model) == weights_of(whole.model)


def test_a_run_is_not_resumed_with_other_settings(tmp_path: Path) -> None:
    settings = {"task": "classifier", "data": {"source": "iris"},
                "train": {"folder": str(tmp_path / "run"), "quiet": True}}  # fmt: skip
    wf.config.train(settings)
    with pytest.raises(wf.ArgumentError, match=r"optimizer\.lr"):
        wf.config.train(settings, ["optimizer.lr=0.5"], resume=True)
    with pytest.raises(wf.ArgumentError, match="earlier run"):
        wf.config.train(settings)
    more = wf.config.train(settings, ["train.epochs=2"], resume=True)
    assert len(more.history) == 2


def test_what_was_exported_judges_rows_as_the_trained_model_does(tmp_path: Path) -> None:
    settings = clicks("deepfm")
    del settings["features"]["history"]
    result = wf.config.train(
        settings, ["train.epochs=1", f"export.folder={tmp_path / 'out'}", "strategy.compile=false"]
    )
    program = wf.config.load_exported(tmp_path / "out")
    rows = tmp_path / "rows.csv"
    rows.write_text("user,item,shop,price,age\nuser1,item3,shop2,10.5,\nnew,new,,,20\n")
    columns = program.columns(rows)
    answers = program.parts["model"](*program.inputs(columns))
    expected = result.model.eval()(*result.program.inputs(columns))
    assert answers.tolist() == expected.tolist()
    assert len(set(answers.tolist())) == 2


# --- sweeps --------------------------------------------------------------------------------------


def swept(folder: Path, **sweep_settings: Any) -> dict[str, Any]:
    return {
        "task": "classifier", "data": {"source": "iris"},
        "train": {"quiet": True, "epochs": 2}, "strategy": {"compile": False},
        "sweep": {"folder": str(folder), "monitor": "val_accuracy", **sweep_settings},
    }  # fmt: skip


def test_a_sweep_tries_all_of_a_grid_and_writes_a_page(tmp_path: Path) -> None:
    space = {"optimizer.lr": {"choices": [0.0, 0.05]}, "model.hidden": {"choices": [[16], [16, 8]]}}
    report = sweep(swept(tmp_path, method="grid", space=space))
    tried = [tuple(map(str, trial.config.values())) for trial in report.trials]
    assert tried == [("0.0", "[16]"), ("0.0", "[16, 8]"), ("0.05", "[16]"), ("0.05", "[16, 8]")]
    assert report.best.config["optimizer.lr"] == 0.05
    page = report.page.read_text(encoding="utf-8")
    assert page.count("<tr") == 5
    assert page.count("<svg") == 3
    assert "http" not in page


def test_a_sweep_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    space = {"optimizer.lr": {"low": 1e-3, "high": 1e-1, "log": True}}
    whole = sweep(swept(tmp_path / "whole", trials=3, space=space))
    told: list[str] = []

    def stop(text: str) -> None:
        told.append(text)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(swept(tmp_path / "parts", trials=3, space=space), say=stop)
    second = (tmp_path / "parts" / "trial-0001" / RESULT).stat().st_mtime_ns
    report = sweep(swept(tmp_path / "parts", trials=3, space=space))
    assert (tmp_path / "parts" / "trial-0001" / RESULT).stat().st_mtime_ns == second
    assert [t.config for t in report.trials] == [t.config for t in whole.trials]
    assert [t.value for t in report.trials] == [t.value for t in whole.trials]
    with pytest.raises(wf.ArgumentError, match="other settings"):
        sweep(swept(tmp_path / "parts", trials=3, seed=1, space=space))


@pytest.mark.slow
def test_a_trial_that_fails_is_told_and_others_go_on(tmp_path: Path) -> None:
    settings = {
        "task": "language_model", "data": {"source": "text", "path": "text.txt"},
        "model": {"width": 8, "layers": 1, "heads": 2, "context": 4},
        "train": {"quiet": True, "batch_size": 8}, "strategy": {"compile": False},
        "sweep": {"folder": str(tmp_path / "sweep"), "method": "grid",
                  "space": {"model.heads": {"choices": [3, 2]}}},
    }  # fmt: skip
    (tmp_path / "text.txt").write_text("the quick brown fox " * 10)
    report = sweep(settings, folder=tmp_path)
    assert "multiple" in report.trials[0].failure
    assert report.best.config == {"model.heads": 2}


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ({"optimizer.rate": {"choices": [1]}}, "optimizer.rate"),
        ({"optimizer.lr": {"low": 1.0}}, "does not say"),
        ({"optimizer.lr": {"low": 0.0, "high": 1.0, "log": True}}, "does not say"),
        ({}, "does not say"),
    ],
)
def test_a_sweep_of_what_is_no_key_or_no_range_is_refused(
    tmp_path: Path, space: dict[str, Any], told: str
) -> None:
    with pytest.raises(wf.ArgumentError, match=told):
        sweep(swept(tmp_path / "sweep", space=space))
    assert not (tmp_path / "sweep").exists()


def test_optuna_learns_from_finished_trials(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    space = {
        "optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "model.hidden": {"choices": [[4], [8]]},
    }
    sweep(swept(tmp_path, method="optuna", trials=2, space=space))
    report = sweep(swept(tmp_path, method="optuna", trials=4, space=space))
    assert len(report.trials) == 4
    assert all(trial.config["model.hidden"] in ([4], [8]) for trial in report.trials)


# --- commands ------------------------------------------------------------------------------------


def write_criteo(path: Path, rows: int = 60) -> None:
    generator = np.random.default_rng(0)
    names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    lines = [",".join(names)]
    for _ in range(rows):
        numbers = [str(x) if x % 5 else "" for x in generator.integers(0, 100, 13)]
        cells = [f"{x:08x}" if x else "" for x in generator.integers(0, 9, 26)]
        lines.append(",".join([str(generator.integers(2)), *numbers, *cells]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_movies(folder: Path) -> None:
    generator = np.random.default_rng(0)
    ratings = ["userId,movieId,rating,timestamp"]
    for time in range(200):
        rating = generator.integers(1, 6)
        ratings.append(f"{generator.integers(9)},{generator.integers(20)},{rating}.0,{time}")
    movies = ["movieId,title,genres", *(f'{i},"A, {i}",Drama|Kind{i % 3}' for i in range(18))]
    for name, lines in (("ratings", ratings), ("movies", movies)):
        text = "\n".join(lines).encode()
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dlrm", "deepfm", "wide_deep", "din", "mmoe"])
def test_the_examples_train_on_files_of_the_same_form(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_bytes((CONFIGS / f"{name}.toml").read_bytes())
    write_criteo(tmp_path / "criteo_sample.txt")
    write_movies(tmp_path)
    code = main(["train", "config.toml", "--epochs", "1", "strategy.compile=false", "--quiet"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "val_loss" in out


@pytest.mark.slow
@pytest.mark.skipif(not (DATASETS / "criteo-sample").exists(), reason="the data are not here")
def test_criteo_and_movielens_are_trained_on(tmp_path: Path) -> None:
    criteo = DATASETS / "criteo-sample" / "criteo_sample.txt"
    films = DATASETS / "movielens-latest-small"
    result = wf.config.train(CONFIGS / "deepfm.toml", [f"data.path={criteo}", "train.quiet=true"])
    assert result.numbers["loss"] < 0.6
    result = wf.config.train(
        CONFIGS / "din.toml",
        [f"data.path={films / 'ratings.csv.gz'}", f"data.join.path={films / 'movies.csv.gz'}",
         "train.quiet=true", "train.epochs=1", f"export.folder={tmp_path}"],
    )  # fmt: skip
    assert result.numbers["val_auc"] > 0.6


def test_the_command_trains_judges_and_predicts_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_criteo(tmp_path / "rows.csv")
    (tmp_path / "run.toml").write_text(
        'task = "recommender"\n[data]\nsource = "csv"\npath = "rows.csv"\n'
        '[features.x]\nkind = "category"\ncolumns = ["C1", "C2"]\n[targets.label]\n'
        '[model]\nkind = "deepfm"\nwidth = 4\n[train]\nfolder = "run"\n'
    )
    assert main(["train", "run.toml", "--quiet", "strategy.compile=false"]) == 0
    assert "checkpoint: run" in capsys.readouterr().out
    assert main(["eval", "run.toml", "--folder", "run", "--json"]) == 0
    assert "auc" in json.loads(capsys.readouterr().out)
    assert main(["predict", "run.toml", "--folder", "run", "--input", "rows.csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 60
    assert main(["train", "run.toml", "--quiet"]) == 1  # the folder is used
    assert "resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["optimizer.kind=adamm"], "did you mean 'adam'?"),
        (["--set", "lr=1"], "--set is for programs"),
        (["data.path=nowhere.csv"], "nowhere.csv"),
    ],
)
def test_mistakes_of_the_command_are_told_without_a_traceback(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'task = "classifier"\n[data]\nsource = "csv"\npath = "rows.csv"\n'
        '[features.a]\nkind = "number"\n[targets.b]\n'
    )
    assert main(["train", str(file), *arguments]) != 0
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
