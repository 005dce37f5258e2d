"""Files of settings: lines of keys, mistakes that name them, and settings of the command line."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

import weft as wf
from weft.config.documents import Document, key_text, parse_value
from weft.config.keys import SCHEMA
from weft.config.reading import changed_keys, flat_settings, read_settings
from weft.config.schema import ConfigurationError, check, described_keys
from weft.config.toml_lines import toml_lines

EXAMPLES = Path(__file__).parents[2] / "examples" / "configs"
TOML = '''\
# a comment = 1
task = "classifier"   # [not.a.table]
"a b".c = 1

[data]
source = "iris"
text = """
key = 2
"""
other = \'\'\'x = 1\'\'\'

[[list]]
x = 1
[[list]]
x = [
  1,
  {y = 2},
]
[list.inner]
z = 3
'''


def test_every_key_of_a_toml_file_has_its_line() -> None:
    tomllib.loads(TOML)
    lines = toml_lines(TOML)
    assert lines["task",] == 2
    assert lines["a b", "c"] == 3
    assert lines["data", "source"] == 6
    assert lines["data", "other"] == 10
    assert ("key",) not in lines
    assert ("data", "key") not in lines
    assert lines["list", 0, "x"] == 13
    assert lines["list", 1, "x", 0] == 16
    assert lines["list", 1, "x", 1, "y"] == 17
    assert lines["list", 1, "inner", "z"] == 20


def test_all_keys_of_the_examples_are_found() -> None:
    for path in sorted(EXAMPLES.glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        lines = toml_lines(text)
        written = text.splitlines()

        def look(
            value: Any, place: tuple[Any, ...], lines: Any = lines, written: Any = written
        ) -> None:
            for key, inner in value.items():
                assert key in written[lines[*place, key] - 1]
                if isinstance(inner, dict):
                    look(inner, (*place, key))

        look(tomllib.loads(text), ())


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_every_example_fits_the_schema(path: Path) -> None:
    if path.suffix == ".yaml":
        pytest.importorskip("yaml")
    assert read_settings(path)["task"] in SCHEMA.tables


BASE = 'task = "classifier"\n[data]\nsource = "iris"\n'


@pytest.mark.parametrize(
    ("text", "key", "line", "told"),
    [
        ("[optimizer]\nlearning_rate = 1.0", "optimizer.learning_rate", 5,
         ["did you mean 'lr'?", "kind"]),
        ('[optimizer]\nkind = "adm"', "optimizer.kind", 5, ["did you mean 'adam'?", "sgd"]),
        ("[train]\nepoch = 3", "train.epoch", 5, ["did you mean 'epochs'?"]),
        ("[train]\nepochs = 0", "train.epochs", 5, ["a whole number of at least 1"]),
        ("[train]\nepochs = true", "train.epochs", 5, ["a whole number"]),
        ('[train]\nepochs = "3"', "train.epochs", 5, ["a whole number"]),
        ("[model]\ndropout = 2", "model.dropout", 5, ["from 0 to 0.99"]),
        ("[model]\nhidden = [64, -1]", "model.hidden[1]", 5, ["at least 1"]),
        ('[evaluation]\nmetrics = [\n "auc",\n "acuracy"]', "evaluation.metrics[1]", 7,
         ["did you mean 'accuracy'?"]),
        ("train = 3", "data.train", 4, ["no key is called data.train"]),
        ("optimiser = {lr = 1}", "data.optimiser", 4, ["no key is called"]),
        ("[schedule]\nwarmup = 3", "schedule.kind", 4, ["is missing", "cosine"]),
        ("[export]\nforms = [\"onnx\"]", "export.folder", 4, ["is missing"]),
        ("[strategy]\nsparse = 1", "strategy.sparse", 5, ["true or false"]),
        ("[features]\nx = 3", "features.x", 5, ["a value where a table belongs"]),
        ('[features.x]\nkind = "numbr"', "features.x.kind", 5, ["did you mean 'number'?"]),
        ('[features.x]\nkind = "number"\nhash = 3', "features.x.hash", 6, ["columns, transform"]),
    ],
)  # fmt: skip
def test_a_mistake_names_key_line_and_what_is_allowed(
    text: str, key: str, line: int, told: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check(SCHEMA, Document.from_toml(BASE + text, "run.toml"))
    assert caught.value.keys == [key]
    assert caught.value.lines == [f"run.toml, line {line}"]
    for words in told:
        assert words in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    text = BASE + "[train]\nepoch = 1\nseed = -1\n[optimizer]\nlr = 'x'"
    with pytest.raises(ConfigurationError) as caught:
        check(SCHEMA, Document.from_toml(text, "run.toml"))
    assert caught.value.keys == ["optimizer.lr", "train.epoch", "train.seed"]
    assert "line 6" in caught.value.whole_text()


def test_every_key_can_be_changed_on_the_command_line() -> None:
    document = Document.from_toml(BASE + "[optimizer]\nlr = 0.1\n", "run.toml")
    document.override("optimizer.lr=0.5")
    document.override("model.hidden=[8, 8]")
    document.override('features."a b".kind=number')
    document.override("train.folder=runs/x=1")
    assert document.values["optimizer"]["lr"] == 0.5
    assert document.values["model"]["hidden"] == [8, 8]
    assert document.values["features"] == {"a b": {"kind": "number"}}
    assert document.values["train"]["folder"] == "runs/x=1"
    assert document.place_of(("optimizer", "lr")) == "the command line"
    document.override("optimizer.lr=fast")
    with pytest.raises(ConfigurationError) as caught:
        check(SCHEMA, document)
    assert caught.value.lines == ["the command line"]


@pytest.mark.parametrize("text", ["lr", "=3", "a b=3", "task.x=1", "optimizer..lr=1"])
def test_an_argument_that_sets_nothing_is_refused(text: str) -> None:
    document = Document.from_toml(BASE, "run.toml")
    with pytest.raises(wf.ArgumentError):
        document.override(text)


def test_a_value_of_the_command_line_cannot_bring_keys_along() -> None:
    assert parse_value("1\nother = 2") == "1\nother = 2"


def test_text_that_is_not_toml_is_refused_with_its_line() -> None:
    with pytest.raises(wf.ArgumentError, match="line 2"):
        Document.from_toml("a = 1\nb = = 2", "run.toml")


def test_settings_are_compared_by_key() -> None:
    one = read_settings({"task": "classifier", "data": {"source": "iris"}})
    other = read_settings({"task": "classifier", "data": {"source": "iris"}}, ["train.seed=3"])
    assert changed_keys(one, other) == ["train.seed"]
    assert flat_settings(other)["train.seed"] == 3
    assert changed_keys(one, one) == []


def test_the_list_of_keys_has_every_key_with_its_default() -> None:
    listed = list(described_keys(SCHEMA))
    keys = {each.key for each in listed}
    assert {"optimizer.lr", "features.NAME.hash", "sweep.space.NAME.low", "data.path"} <= keys
    assert all(each.allowed and each.meaning for each in listed)


def test_the_page_of_keys_is_that_of_the_schema() -> None:
    docs = Path(__file__).parents[2] / "docs"
    generator = runpy.run_path(str(docs / "generate_keys.py"))
    written = (docs / "configuration_keys.md").read_text(encoding="utf-8")
    assert written == generator["page"](), "run: python docs/generate_keys.py"


def test_keys_are_written_as_the_file_has_them() -> None:
    assert key_text(("features", "a.b", "columns", 0)) == 'features."a.b".columns[0]'


# --- YAML ----------------------------------------------------------------------------------------


def test_yaml_says_the_same_as_toml() -> None:
    pytest.importorskip("yaml")
    text = "task: classifier\ndata: {source: iris}\noptimizer:\n  lr: 1e-3\n  kind: sgd\n"
    document = Document.from_yaml(text, "run.yaml")
    same = Document.from_toml(BASE + '[optimizer]\nlr = 1e-3\nkind = "sgd"', "run.toml")
    assert check(SCHEMA, document) == check(SCHEMA, same)
    assert document.place_of(("optimizer", "kind")) == "run.yaml, line 5"


def test_a_mistake_in_yaml_names_its_line() -> None:
    pytest.importorskip("yaml")
    text = "task: classifier\ndata:\n  source: iris\ntrain:\n  epoch: 2\n"
    with pytest.raises(ConfigurationError) as caught:
        check(SCHEMA, Document.from_yaml(text, "run.yaml"))
    assert caught.value.lines == ["run.yaml, line 5"]


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system ['true']",
        "a: &x [1]\nb: &y [*x, *x]\n" + "".join(
            f"c{n}: &c{n} [{', '.join([f'*c{n - 1}' if n else '*y'] * 9)}]\n" for n in range(9)
        ),
        "a: 1\na: 2",
        "- 1\n- 2",
        "a: [",
        "a: &x\n  b: *x",
    ],
)  # fmt: skip
def test_yaml_that_runs_code_grows_or_repeats_itself_is_refused(text: str) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(wf.ArgumentError):
        Document.from_yaml(text, "run.yaml")


@pytest.mark.parametrize(
    ("text", "line", "fix"),
    [
        ("task = recommender", "'task = recommender'", "a text stands in quotes"),
        ("[model]\nwidth = 8\nwidth = 9", "'width = 9'", "keep one of the lines"),
        ("[model]\n[model]", "'[model]'", "keep one of the tables"),
        ("task: recommender", "'task: recommender'", "write key = value"),
    ],
)
def test_a_slip_of_notation_is_shown_with_its_line_and_a_remedy(
    text: str, line: str, fix: str
) -> None:
    with pytest.raises(wf.ArgumentError) as caught:
        Document.from_toml(text, "run.toml")
    assert line in caught.value.got
    assert caught.value.fix.startswith(fix)


def test_a_key_without_its_table_is_led_to_it() -> None:
    wrong = {"task": "classifier", "data": {"source": "iris"}}
    with pytest.raises(wf.config.ConfigurationError) as caught:
        wf.config.read_settings(wrong, ["epochs=3"])
    assert caught.value.fix == "did you mean 'train.epochs'?"


def test_a_column_that_a_file_lacks_is_told_in_the_words_of_the_configuration(
    tmp_path: Path,
) -> None:
    (tmp_path / "rows.csv").write_text("a,click\n1,0\n2,1\n3,0\n4,1\n")
    settings = {
        "task": "recommender",
        "data": {"source": "csv", "path": str(tmp_path / "rows.csv")},
        "features": {"b": {"kind": "number"}},
        "targets": {"click": {}},
        "model": {"kind": "dlrm"},
    }
    with pytest.raises(wf.ArgumentError, match="no column 'b'") as caught:
        wf.config.train(settings)
    assert caught.value.expected == "one of a, click"
    assert "features.NAME.columns" in caught.value.fix
