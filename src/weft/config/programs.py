"""Programs from configurations: the model, its data, loss, optimiser and trainer.

>>> from weft.config import read_settings
>>> from weft.config.programs import build_program
>>> settings = read_settings({"task": "classifier", "data": {"source": "iris"}})
>>> program = build_program(settings)
>>> program.parts["model"](wf.ones((2, 4))).shape
(2, 3)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.config.columns import Columns, read_columns, split_rows
from weft.config.features import FeatureSpace
from weft.config.keys import OPTIMIZERS
from weft.config.networks import FeatureNetwork, feature_network
from weft.config.targets import Targets
from weft.files import read_text
from weft.train import Trainer
from weft.train.batches import split

__all__ = ["Program", "build_program"]

Settings = Mapping[str, Any]
LARGEST_TEXT = 1 << 30
"""The most bytes of a file of text."""


@dataclass
class Program:
    """All that a configuration describes: `parts` as `weft train` takes them, and `trainer`."""

    settings: Settings
    parts: dict[str, Any]
    learned: dict[str, Any] = field(default_factory=dict)
    """What preprocessing learned from the training data, as JSON has it."""
    tokenizer: Any = None
    space: FeatureSpace | None = None
    targets: Targets | None = None

    def trainer(self, **options: Any) -> Trainer:
        """A trainer of the parts with the settings' strategy; options are those of `Trainer`."""
        strategy, train = self.settings["strategy"], self.settings["train"]
        kind = SparseTrainer if strategy["sparse"] else Trainer
        if strategy["sparse"]:
            _check_sparse(self.parts["model"], strategy)
        chosen: dict[str, Any] = {
            "metrics": self.parts["metrics"],
            "schedule": self.parts.get("schedule"),
            "precision": None if strategy["precision"] == "float32" else strategy["precision"],
            "accumulate": strategy["accumulate"],
            "clip_norm": strategy["clip_norm"] or None,
            "ema": strategy["ema"] or None,
            "compile": strategy["compile"],
            "device": strategy["device"] or None,
            "strategy": None if strategy["kind"] == "one" else strategy["kind"],
            "checkpoint_folder": train["folder"] or None,
            "checkpoint_every": train["checkpoint_every"] or None,
            "keep_last": train["keep_last"],
            "seed": train["seed"],
            "progress": not train["quiet"],
            **options,
        }
        parts = self.parts
        return kind(parts["model"], parts["loss"], parts["optimizer"], **chosen)

    def columns(self, path: Path) -> Columns:
        """The columns of another file of rows, without targets."""
        assert self.space is not None, "only tables have columns"
        texts, numbers = self.space.text_columns(), self.space.number_columns()
        data = {**self.settings["data"], "order": "", "history": None}
        if data["source"] == "clicks":
            data["source"] = "csv"
        return read_columns(data, path.parent, texts, numbers, path.name)

    def inputs(self, columns: Columns) -> tuple[wf.Tensor, ...]:
        """The inputs of the model for columns."""
        assert self.space is not None, "only tables have columns"
        return tuple(map(wf.asarray, self.space.arrays(columns).values()))


class SparseTrainer(Trainer):
    """A trainer that changes only those rows of tables of vectors that a batch touches."""

    _taken: list[tuple[wf.Tensor, wf.Tensor, wf.Tensor]] = []  # noqa: RUF012

    def objective(self, model: Any, batch: Any) -> tuple[Any, Any]:
        """See `Trainer`: rows are taken as leaves of their own."""
        if not model.training:
            return super().objective(model, batch)
        inputs, target = split(batch)
        taken = [
            (table.weight, places, wf.optim.take_rows(table.weight, places))
            for table, places in model.tables(inputs)
        ]
        self._taken = taken
        outputs = model.answer(inputs, [rows for _, _, rows in taken])
        return self.loss_function(outputs, target), outputs

    def touched_rows(self) -> list[wf.optim.Rows]:
        """See `Trainer`."""
        taken, self._taken = self._taken, []
        return [
            wf.optim.Rows(table, places, rows.grad)
            for table, places, rows in taken
            if rows.grad is not None
        ]


def _check_sparse(model: Any, strategy: Settings) -> None:
    """Refuse what updates of single rows cannot be joined with."""
    clash = next(
        (key for key, plain in (("kind", "one"), ("accumulate", 1)) if strategy[key] != plain), ""
    )
    if clash or not isinstance(model, FeatureNetwork):
        raise wf.UnsupportedError(
            "config: strategy.sparse",
            "only one process that updates after every batch can update single rows"
            if clash
            else "this model has no tables of vectors",
            expected='a recommender, strategy.kind = "one", strategy.accumulate = 1',
            got={key: strategy[key] for key in ("kind", "accumulate")},
            fix="strategy.sparse = false",
        )


def build_program(
    settings: Settings, folder: str | Path = ".", learned: Mapping[str, Any] | None = None
) -> Program:
    """What settings describe; paths are seen from `folder`.

    `learned` is what an earlier run learned from its training data: it is used instead of learning
    anew, and no training data are read.
    """
    wf.random.seed(settings["train"]["seed"])
    if settings["task"] == "language_model":
        return _language_model(settings, Path(folder), learned)
    if settings["data"]["source"] in ("digits", "iris", "idx"):
        return _set_classifier(settings, Path(folder))
    return _table_program(settings, Path(folder), learned)


# --- tables --------------------------------------------------------------------------------------


def _table_program(settings: Settings, folder: Path, learned: Mapping[str, Any] | None) -> Program:
    space, targets = FeatureSpace(settings["features"]), Targets(settings["targets"])
    _check_model(settings, space, targets)
    if learned is not None:
        space.load_state(learned["features"])
        targets.classes = list(learned["classes"])
        net = feature_network(settings["model"], space, targets.outputs)
        return Program(settings, {"model": net}, dict(learned), None, space, targets)
    train, validation = _read_rows(settings["data"], folder, space, targets)
    space.fit(train)
    targets.fit(train)
    net = feature_network(settings["model"], space, targets.outputs)
    parts = {
        "model": net,
        "loss": targets.loss,
        "metrics": targets.metrics(settings["evaluation"]["metrics"]),
        **_loaders(settings, *(
            None if rows is None else (*space.arrays(rows).values(), targets.array(rows))
            for rows in (train, validation)
        )),
    }  # fmt: skip
    parts |= _optimizer(settings, net, parts["train_data"])
    state = {"features": space.state(), "classes": targets.classes}
    return Program(settings, parts, state, None, space, targets)


def _check_model(settings: Settings, space: FeatureSpace, targets: Targets) -> None:
    """Refuse models that do not fit the targets or the features."""
    kind = settings["model"]["kind"]
    problem, fix = "", ""
    if settings["task"] == "recommender" and kind != "mmoe" and len(targets.settings) > 1:
        problem, fix = f"the model {kind} has one target", 'model.kind = "mmoe"'
    elif kind == "din" and all(each.pooling != "attention" for each in space.sequences):
        problem = "the model din has no sequence that is pooled by attention"
        fix = '[features.history] kind = "sequence", pooling = "attention", target = "item"'
    elif kind in ("lenet", "resnet18"):
        problem, fix = f"the model {kind} takes images, not rows", 'model.kind = "mlp"'
    if problem:
        raise wf.ArgumentError(
            "config",
            problem,
            expected="a model that fits features and targets",
            got={"features": ", ".join(space.settings), "targets": ", ".join(targets.settings)},
            fix=fix,
        )


def _read_rows(
    data: Settings, folder: Path, space: FeatureSpace, targets: Targets
) -> tuple[Columns, Columns | None]:
    texts = [*space.text_columns(), *targets.text_columns()]
    numbers = [*space.number_columns(), *targets.number_columns()]
    columns = read_columns(data, folder, texts, numbers, data.get("path", ""))
    if data["validation_path"]:
        other = read_columns(data, folder, texts, numbers, data["validation_path"])
        return columns, other
    return split_rows(columns, data["validation"], data["order"], data.get("seed", 0))


def _loaders(settings: Settings, train: Any, validation: Any) -> dict[str, Any]:
    batch, seed = settings["train"]["batch_size"], settings["train"]["seed"]
    parts: dict[str, Any] = {
        "train_data": wf.data.DataLoader(
            wf.data.ArrayDataset(*train), batch, shuffle=True, seed=seed
        )
    }
    if validation is not None:
        held_out = wf.data.ArrayDataset(*validation)
        parts["validation_data"] = wf.data.DataLoader(held_out, batch)
    return parts


# --- sets of images and measures -----------------------------------------------------------------


def _set_classifier(settings: Settings, folder: Path) -> Program:
    data, model = settings["data"], settings["model"]
    if settings["features"] or settings["targets"]:
        raise wf.ArgumentError(
            "config",
            f"the set {data['source']} has inputs and classes of its own",
            expected="no tables [features] and [targets]",
            got={"features": ", ".join(settings["features"])},
            fix='remove them, or data.source = "csv"',
        )
    train, test = _examples(data, folder)
    classes = int(train[1].max()) + 1
    net = _image_network(model, train[0].shape[1:], classes)
    names = settings["evaluation"]["metrics"]
    parts = {
        "model": net,
        "loss": wf.nn.functional.cross_entropy,
        "metrics": wf.train.as_metrics(["accuracy"] if names is None else names),
        **_loaders(settings, train, test),
    }
    parts |= _optimizer(settings, net, parts["train_data"])
    return Program(settings, parts)


def _examples(data: Settings, folder: Path) -> tuple[Any, Any]:
    """Inputs and classes, to train on and to judge by; images have channels before their sides."""
    if data["source"] == "idx":
        pairs = (("images", "labels"), ("validation_images", "validation_labels"))
        sets = [wf.data.from_idx(folder / data[x], folder / data[y]) for x, y in pairs]
        return tuple(tuple(map(np.stack, zip(*one, strict=True))) for one in sets)  # type: ignore[return-value]
    is_digits = data["source"] == "digits"
    loaded = wf.data.sets.load_digits() if is_digits else wf.data.sets.load_iris()
    parts = [(part.inputs.numpy(), part.labels.numpy()) for part in loaded]
    train, test = [(x[:, None] if is_digits else x, y) for x, y in parts]
    return train, test


def _image_network(model: Settings, shape: tuple[int, ...], classes: int) -> wf.nn.Module:
    if model["kind"] == "mlp":
        size = int(np.prod(shape))
        return wf.models.MLP([size, *model["hidden"], classes], dropout=model["dropout"])
    if len(shape) != 3:
        raise wf.ArgumentError(
            "config",
            f"the model {model['kind']} takes images",
            expected="a set of images, as digits or idx",
            got={"inputs": shape},
            fix='model.kind = "mlp"',
        )
    channels, side, _ = shape
    if model["kind"] == "resnet18":
        if channels != 3:
            raise wf.ArgumentError(
                "config",
                "the model resnet18 takes images of three colours",
                expected="images [3, height, width]",
                got={"inputs": shape},
                fix='model.kind = "lenet"',
            )
        return wf.models.resnet18(classes=classes)
    return wf.models.LeNet(classes, side, channels, padding=0 if side >= 16 else 2)


# --- language models -----------------------------------------------------------------------------


def _language_model(settings: Settings, folder: Path, learned: Mapping[str, Any] | None) -> Program:
    model, batch = settings["model"], settings["train"]["batch_size"]
    texts = _texts(settings["data"], folder) if learned is None else ("", "")
    tokenizer = _tokenizer(settings["tokenizer"], texts, learned)
    net = _language_network(model, tokenizer.vocabulary_size)
    if learned is not None:
        return Program(settings, {"model": net}, dict(learned), tokenizer)
    tokens = [tokenizer.encode(text) for text in texts]
    _check_length(tokens[0], model["context"])
    windows = [
        wf.data.TokenWindows(part, model["context"])
        for part in tokens
        if len(part) > model["context"]
    ]
    names = settings["evaluation"]["metrics"]
    seed = settings["train"]["seed"]
    parts: dict[str, Any] = {
        "model": net,
        "loss": next_token_loss,
        "metrics": wf.train.as_metrics(["perplexity"] if names is None else names),
        "train_data": wf.data.DataLoader(
            windows[0], batch, shuffle=True, drop_last=True, seed=seed
        ),
    }
    if len(windows) > 1:
        parts["validation_data"] = wf.data.DataLoader(windows[1], batch)
    parts |= _optimizer(settings, net, parts["train_data"])
    return Program(settings, parts, _tokenizer_state(tokenizer), tokenizer)


def next_token_loss(scores: wf.Tensor, targets: wf.Tensor) -> wf.Tensor:
    """Cross entropy of scores [batch, time, vocabulary] and targets [batch, time]."""
    flat = wf.reshape(scores, (-1, scores.shape[-1]))
    loss: wf.Tensor = wf.nn.functional.cross_entropy(flat, wf.reshape(targets, (-1,)))
    return loss


def _texts(data: Settings, folder: Path) -> tuple[str, str]:
    if data["source"] == "shakespeare":
        return wf.data.sets.load_shakespeare()
    text = read_text("config", folder / data["path"], LARGEST_TEXT)
    cut = round(len(text) * (1 - data["validation"]))
    return text[:cut], text[cut:]


def _check_length(tokens: Any, context: int) -> None:
    if len(tokens) <= context:
        raise wf.ArgumentError(
            "config",
            "the text to train on is shorter than one example",
            expected=f"more than {context} tokens, which are model.context",
            got={"tokens": len(tokens)},
            fix=f"model.context={max(len(tokens) // 2, 1)}",
        )


def _tokenizer(chosen: Settings, texts: tuple[str, str], learned: Mapping[str, Any] | None) -> Any:
    if chosen["kind"] == "byte":
        return wf.data.ByteTokenizer()
    if chosen["kind"] == "pairs":
        if learned is not None:
            raise wf.UnsupportedError(
                "config",
                "pieces that were learned are in a file of their own",
                expected="the tokenizer.json that the export wrote",
                got={"tokenizer.kind": "pairs"},
                fix="wf.data.BytePairTokenizer.load(path)",
            )
        return wf.data.BytePairTokenizer.train([texts[0]], chosen["vocabulary"])
    if learned is not None:
        return wf.data.CharacterTokenizer(learned["vocabulary"])
    return wf.data.CharacterTokenizer.from_text(*texts)


def _tokenizer_state(tokenizer: Any) -> dict[str, Any]:
    is_characters = isinstance(tokenizer, wf.data.CharacterTokenizer)
    return {"vocabulary": list(tokenizer.vocabulary)} if is_characters else {}


def _language_network(model: Settings, vocabulary: int) -> wf.nn.Module:
    sizes = {name: model[name] for name in ("width", "layers", "context")}
    if model["kind"] == "lstm":
        width, layers = model["width"], model["layers"]
        return wf.models.LSTMLanguageModel(vocabulary, width, layers, model["dropout"])
    if model["width"] % model["heads"]:
        raise wf.ArgumentError(
            "config",
            "the width is no multiple of the number of heads",
            expected="model.width = model.heads * width of a head",
            got={"model.width": model["width"], "model.heads": model["heads"]},
            fix=f"model.width={model['heads'] * -(-model['width'] // model['heads'])}",
        )
    sizes |= {"vocabulary": vocabulary, "heads": model["heads"]}
    if model["kind"] == "gpt":
        return wf.models.GPT(wf.models.GPTConfig(**sizes, dropout=model["dropout"]))
    hidden = 8 * -(-model["width"] // 3)
    return wf.models.Llama(wf.models.LlamaConfig(**sizes, hidden=hidden, kv_heads=model["heads"]))


# --- optimisers ----------------------------------------------------------------------------------


def _optimizer(settings: Settings, net: wf.nn.Module, loader: Any) -> dict[str, Any]:
    """The optimiser and its schedule."""
    chosen = {key: value for key, value in settings["optimizer"].items() if key != "kind"}
    for key, value in chosen.items():
        chosen[key] = tuple(value) if isinstance(value, list) else value
    optimizer = OPTIMIZERS[settings["optimizer"]["kind"]](net.parameters(), **chosen)
    if settings["schedule"] is None:
        return {"optimizer": optimizer}
    steps = -(-len(loader) // settings["strategy"]["accumulate"]) * settings["train"]["epochs"]
    schedule = _schedule(settings["schedule"], settings["optimizer"]["lr"], steps)
    return {"optimizer": optimizer, "schedule": schedule}


def _schedule(chosen: Settings, lr: float, steps: int) -> Any:
    kinds, kind = wf.optim.schedules, chosen["kind"]
    steps = chosen.get("steps") or max(steps - chosen.get("warmup", 0), 1)
    if kind == "one_cycle":
        return kinds.OneCycle(lr, steps)
    schedule: Any = kinds.Constant(lr)
    if kind == "cosine":
        schedule = kinds.Cosine(lr, steps, chosen["end"])
    elif kind == "linear":
        schedule = kinds.Linear(lr, chosen["end"], steps)
    elif kind == "step":
        schedule = kinds.Step(lr, chosen["every"], chosen["factor"])
    return kinds.Warmup(schedule, chosen["warmup"]) if chosen["warmup"] else schedule
