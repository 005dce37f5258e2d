"""`weft train` and `weft sweep` of a file of settings; the other commands of such a file.

    weft train recommender.toml optimizer.lr=0.01
    weft eval recommender.toml --folder run

>>> is_settings("run.toml"), is_settings("mine.py"), is_settings("digits")
(True, False, False)
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.cli.mistakes import Mistake
from weft.cli.printing import say
from weft.config.documents import ENDINGS, Document
from weft.config.programs import build_program
from weft.config.reading import read_settings
from weft.config.running import train
from weft.config.schema import ConfigurationError
from weft.config.sweeping import sweep

__all__ = ["is_program_file", "is_settings", "parts_of_file", "row_inputs", "sweep_file",
           "train_file"]  # fmt: skip

FLAGS = {
    "epochs": "train.epochs", "batch_size": "train.batch_size", "folder": "train.folder",
    "checkpoint_every": "train.checkpoint_every", "keep_last": "train.keep_last",
    "seed": "train.seed", "tensorboard": "train.tensorboard", "csv": "train.csv",
    "json": "train.json", "board": "train.board", "plot": "train.plot", "quiet": "train.quiet",
    "device": "strategy.device", "precision": "strategy.precision",
    "accumulate": "strategy.accumulate", "clip_norm": "strategy.clip_norm", "ema": "strategy.ema",
    "compile": "strategy.compile",
}  # fmt: skip
"""Flags of `weft train`, and the keys that they set."""


def is_settings(program: str | None) -> bool:
    """Whether a program is named by a file of settings."""
    return program is not None and Path(program).suffix in ENDINGS


def is_program_file(path: str) -> bool:
    """Whether a file of settings is one of flags, which names the program that it is for."""
    return "program" in Document.read(path).values


def train_file(flags: Namespace) -> int:
    """`weft train FILE.toml key=value ...`."""
    overrides = _overrides(flags)
    result = _run_checked(
        lambda: train(flags.program, overrides, resume=bool(flags.resume)), flags.program, overrides
    )
    for path in result.files:
        say(f"written: {path}")
    if result.sample:
        say(result.sample)
    numbers = {k: v for k, v in result.numbers.items() if isinstance(v, float) and k != "seconds"}
    say("   ".join(f"{name} {value:.4g}" for name, value in numbers.items()))
    folder = result.program.settings["train"]["folder"]
    if folder:
        say(f"checkpoint: {wf.train.CheckpointFolder(folder).latest()}")
    return 0


def sweep_file(flags: Namespace) -> int:
    """`weft sweep FILE.toml key=value ...`."""
    overrides = [f"{key}={value}" for key, value in (
        ("sweep.trials", flags.trials), ("sweep.method", flags.method),
        ("sweep.folder", flags.folder),
    ) if value is not None]  # fmt: skip
    overrides += flags.overrides
    report = _run_checked(
        lambda: sweep(flags.program, overrides, say=say), flags.program, overrides
    )
    say(str(report))
    say(f"page: {report.page}")
    return 0


def parts_of_file(path: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The parts of the program that a file of settings describes."""
    settings = _run_checked(lambda: read_settings(path, overrides), path, overrides)
    return build_program(settings, Path(path).parent).parts


def row_inputs(path: str, overrides: Sequence[str], rows: str) -> Any:
    """The inputs of a program for the rows of a file, in batches."""
    settings = _run_checked(lambda: read_settings(path, overrides), path, overrides)
    program = build_program(settings, Path(path).parent)
    inputs = program.inputs(program.columns(Path(rows)))
    # a trainer takes the last part of a batch for the target, which is not known here
    return wf.data.ArrayDataset(*(x.numpy() for x in inputs), np.zeros(len(inputs[0])))


def _overrides(flags: Namespace) -> list[str]:
    """What flags and arguments set; the arguments are stronger."""
    if flags.set:
        raise Mistake(f"--set is for programs: write {flags.set[0]} without it")
    said = {key: getattr(flags, name, None) for name, key in FLAGS.items()}
    chosen = [f"{key}={_toml_text(value)}" for key, value in said.items() if value is not None]
    return [*chosen, *flags.overrides]


def _toml_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _run_checked(run: Callable[[], Any], source: str, overrides: Sequence[str]) -> Any:
    """What a function returns; mistakes in the file are told as those of the command."""
    try:
        return run()
    except ConfigurationError as error:
        raise Mistake(error.whole_text()) from None
    except FileNotFoundError as error:
        key = _key_of_file(Path(error.filename), source, overrides)
        raise Mistake(
            f"no such file: {error.filename}\n"
            f"paths are seen from the folder of the configuration; another: {key}=FILE"
        ) from None


def _key_of_file(path: Path, source: str, overrides: Sequence[str]) -> str:
    """The key of the settings that names a file of data."""
    tables: list[tuple[str, Any]] = [("data", read_settings(source, overrides)["data"])]
    for key, value in tables:  # tables inside of others are added on the way
        if isinstance(value, Mapping):
            tables += [(f"{key}.{name}", each) for name, each in value.items()]
        elif isinstance(value, str) and Path(source).parent / value == path:
            return key
    return "data.path"
