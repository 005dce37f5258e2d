"""A run from a configuration: trained, judged, resumed to the bit, and exported.

>>> import weft as wf
>>> result = wf.config.train({
...     "task": "classifier", "data": {"source": "iris"}, "optimizer": {"lr": 0.02},
...     "train": {"epochs": 5, "quiet": True},
... })
>>> result.numbers["val_accuracy"] > 0.8
True
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import weft as wf
from weft.config.programs import Program, build_program
from weft.config.reading import changed_keys, flat_settings, read_settings
from weft.files import read_json, write_text
from weft.train.resuming import refuse_used_folder

__all__ = ["Result", "load_exported", "train"]

SETTINGS = "settings.json"
LEARNED = "learned.json"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
MAY_CHANGE = (
    "train.epochs", "train.keep_last", "train.quiet", "train.board", "train.csv", "train.json",
    "train.tensorboard", "train.plot", "train.folder", "strategy.device", "strategy.kind",
    "export", "export.", "sweep", "sweep.", "evaluation.sample", "evaluation.prompt",
)  # fmt: skip
"""What may differ where a run is resumed: keys, and with a point at the end all keys of a table."""


@dataclass
class Result:
    """What came of a run: the program, its history, the last row of numbers, and what was said."""

    program: Program
    history: wf.train.History
    files: list[str]
    sample: str = ""

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers of the last epoch."""
        return self.history.last

    @property
    def model(self) -> Any:
        """The trained model."""
        return self.program.parts["model"]


def train(
    source: str | Path | Mapping[str, Any],
    overrides: Iterable[str] = (),
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    callbacks: Iterable[Any] = (),
) -> Result:
    """Train what a file or a dictionary describes; `overrides` are texts `key=value`.

    Paths of data are seen from the folder of the file, or from `folder`; those of what is written
    from where the program runs. With `resume`, a run goes on from the newest checkpoint in
    `train.folder`, and its settings must be those that it began with.
    """
    settings = read_settings(source, overrides)
    return train_settings(settings, _home(source, folder), resume=resume, callbacks=callbacks)


def _home(source: str | Path | Mapping[str, Any], folder: str | Path | None) -> Path:
    if folder is not None:
        return Path(folder)
    return Path() if isinstance(source, Mapping) else Path(source).parent


def train_settings(
    settings: Mapping[str, Any],
    home: Path,
    *,
    resume: bool = False,
    callbacks: Iterable[Any] = (),
) -> Result:
    """Train what checked settings describe."""
    chosen = settings["train"]
    if settings["strategy"]["kind"] != "one":
        wf.distributed.init()
    if resume:
        _check_unchanged(settings)
    program = build_program(settings, home)
    trainer = program.trainer(callbacks=[*callbacks, *_callbacks(settings)])
    if chosen["folder"] and not resume:
        refuse_used_folder(trainer.checkpoint_folder)
    if chosen["folder"] and trainer.strategy.rank == 0:
        Path(chosen["folder"]).mkdir(parents=True, exist_ok=True)
        write_text("config", Path(chosen["folder"]) / SETTINGS, json.dumps(settings, indent=1))
    history = trainer.fit(
        program.parts["train_data"],
        chosen["epochs"],
        program.parts.get("validation_data"),
        resume=resume,
    )
    result = Result(program, history, [])
    if trainer.strategy.rank == 0:
        _finish(result, trainer)
    return result


def _callbacks(settings: Mapping[str, Any]) -> list[Any]:
    chosen, judged = settings["train"], settings["evaluation"]
    log = partial(wf.train.RunLog, settings=flat_settings(settings))
    kinds = (
        ("board", log), ("csv", wf.train.CSVLogger), ("json", wf.train.JSONLogger),
        ("tensorboard", wf.train.TensorBoard),
    )  # fmt: skip
    callbacks: list[Any] = [kind(chosen[name]) for name, kind in kinds if chosen[name]]
    if judged["patience"]:
        callbacks.append(wf.train.EarlyStopping(judged["monitor"], judged["patience"]))
    if judged["keep_best"]:
        callbacks.append(wf.train.BestCheckpoint(judged["monitor"]))
    return callbacks


def _check_unchanged(settings: Mapping[str, Any]) -> None:
    """Refuse to resume a run with other settings than it has."""
    folder = settings["train"]["folder"]
    if not folder:
        raise wf.ArgumentError(
            "config",
            "there is no folder to resume from",
            expected="train.folder, where the checkpoints are",
            got={"train.folder": ""},
            fix='train.folder = "run"',
        )
    path = Path(folder) / SETTINGS
    if not path.exists():
        return
    before = read_json("config", path)
    after = json.loads(json.dumps(settings))
    changed = [key for key in changed_keys(before, after) if not _may_change(key)]
    if changed:
        one, other = flat_settings(before), flat_settings(after)
        raise wf.ArgumentError(
            "config",
            f"{changed[0]} is not what the run in {folder} began with",
            expected=f"{changed[0]} = {one.get(changed[0])!r}",
            got={key: other.get(key) for key in changed[:5]},
            fix="resume with the same settings, or begin a run in another folder: train.folder=...",
        )


def _may_change(key: str) -> bool:
    return any(key == each or (each.endswith(".") and key.startswith(each)) for each in MAY_CHANGE)


# --- what is written at the end ------------------------------------------------------------------


def _finish(result: Result, trainer: Any) -> None:
    """Draw, sample and export."""
    settings = result.program.settings
    if settings["train"]["plot"] and len(result.history):
        result.files.append(str(result.history.plot(settings["train"]["plot"])))
    judged = settings["evaluation"]
    if judged["sample"] and result.program.tokenizer is not None:
        result.sample = _sample(result.program, judged["prompt"], judged["sample"])
    if settings["export"] is not None:
        if trainer.ema is not None:
            with trainer.ema.applied():
                result.files += _export(result.program, settings["export"])
        else:
            result.files += _export(result.program, settings["export"])


def _sample(program: Program, prompt: str, count: int) -> str:
    """What a language model writes behind a prompt."""
    model, tokenizer = program.parts["model"].eval(), program.tokenizer
    begin = tokenizer.encode(prompt or "\n")
    context = program.settings["model"]["context"]
    room = count if program.settings["model"]["kind"] == "lstm" else context - len(begin)
    seed = program.settings["train"]["seed"]
    tokens = model.generate(begin, max_new_tokens=max(min(count, room), 1), seed=seed)
    return str(tokenizer.decode(tokens.numpy()))


def _export(program: Program, chosen: Mapping[str, Any]) -> list[str]:
    """Write weights, settings and what was learned; ONNX and libraries where wanted."""
    folder = Path(chosen["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    model = program.parts["model"].eval()
    wf.save(model.state_dict(), folder / WEIGHTS)
    settings = json.dumps(program.settings, indent=1)
    write_text("config", folder / SETTINGS, settings)
    write_text("config", folder / LEARNED, json.dumps(program.learned))
    if isinstance(program.tokenizer, wf.data.BytePairTokenizer):
        program.tokenizer.save(folder / TOKENIZER)
    batch = next(iter(program.parts["train_data"]))
    inputs = tuple(map(wf.asarray, batch[:-1]))
    files = [str(folder / WEIGHTS)]
    if "onnx" in chosen["forms"]:
        batch_size = wf.symbol("batch")
        types = tuple(x.type.with_shape((batch_size, *x.shape[1:])) for x in inputs)
        wf.onnx.export(model, types, folder / "model.onnx")
        files.append(str(folder / "model.onnx"))
    if "library" in chosen["forms"]:
        wf.export(model, list(inputs), folder / "library")
        files.append(str(folder / "library"))
    return files


def load_exported(folder: str | Path) -> Program:
    """The program that an export wrote, with its weights and all that preprocessing learned.

    Rows of another file are judged by `program.parts["model"](*program.inputs(columns))`, where
    `columns` are `program.columns(path)`.
    """
    folder = Path(folder)
    settings = read_json("config", folder / SETTINGS)
    learned = read_json("config", folder / LEARNED)
    program = build_program(settings, folder, learned)
    program.parts["model"].load_state_dict(wf.load(folder / WEIGHTS))
    program.parts["model"].eval()
    return program
