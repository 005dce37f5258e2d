"""What the commands do.

>>> from weft.cli.commands import round_numbers
>>> round_numbers({"loss": 0.123456789, "name": "x"})
{'loss': 0.123457, 'name': 'x'}
"""

from __future__ import annotations

import io
import json
import math
import os
import runpy
import sys
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.cli.configuration import Configuration, read_configuration
from weft.cli.from_files import is_program_file, is_settings, row_inputs, train_file
from weft.cli.loading import NEEDED, load, require
from weft.cli.mistakes import Mistake, unknown_key
from weft.cli.printing import say
from weft.files import open_file, replacing, unpacked_limit

__all__ = ["bench", "evaluate", "load_trained", "predict", "train"]


def train(flags: Namespace) -> int:
    """`weft train`."""
    if is_settings(flags.program) and not is_program_file(flags.program):
        return train_file(flags)
    if is_settings(flags.program):
        flags.config, flags.program = flags.program, None
    if flags.overrides:
        raise Mistake(f"a program's settings are given by --set {flags.overrides[0]}")
    chosen = read_configuration(flags)
    wf.random.seed(chosen.seed)
    parts = load(chosen.program, chosen.set)
    require(parts, chosen.program, *NEEDED)
    if chosen.resume and not chosen.folder:
        raise Mistake("--resume needs --folder, where the checkpoints are")
    trainer = _trainer(parts, chosen)
    history = trainer.fit(
        parts["train_data"],
        chosen.epochs,
        parts.get("validation_data"),
        batch_size=chosen.batch_size,
        resume=chosen.resume,
    )
    if chosen.plot and len(history):
        say(f"plot: {history.plot(chosen.plot)}")
    if chosen.folder:
        say(f"checkpoint: {trainer.checkpoint_folder.latest()}")
    return 0


def _trainer(parts: Mapping[str, Any], chosen: Configuration) -> Any:
    logs: list[tuple[str, Any]] = [
        (chosen.tensorboard, wf.train.TensorBoard),
        (chosen.csv, wf.train.CSVLogger),
        (chosen.json, wf.train.JSONLogger),
        (chosen.board, partial(wf.train.RunLog, settings=_settings_of(chosen))),
    ]
    return wf.train.Trainer(
        parts["model"],
        parts["loss"],
        parts["optimizer"],
        metrics=parts.get("metrics", ()),
        callbacks=[*parts.get("callbacks", ()), *(kind(path) for path, kind in logs if path)],
        schedule=parts.get("schedule"),
        precision=chosen.precision or None,
        accumulate=chosen.accumulate,
        clip_norm=chosen.clip_norm or None,
        ema=chosen.ema or None,
        compile=chosen.compile,
        checkpoint_folder=chosen.folder or None,
        checkpoint_every=chosen.checkpoint_every or None,
        keep_last=chosen.keep_last,
        seed=chosen.seed,
        progress=not chosen.quiet,
        device=chosen.device or None,
    )


def _settings_of(chosen: Configuration) -> dict[str, Any]:
    """What was chosen for a run, to compare it with others by."""
    names = ("program", "epochs", "batch_size", "seed", "precision", "accumulate", "clip_norm")
    return {**{name: getattr(chosen, name) for name in names}, **chosen.set}


def evaluate(flags: Namespace) -> int:
    """`weft eval`."""
    trainer, parts = load_trained(flags)
    held_out = "validation_data" if parts.get("validation_data") is not None else "train_data"
    require(parts, flags.program, "loss", held_out)
    numbers = round_numbers(trainer.evaluate(parts[held_out], batch_size=flags.batch_size))
    if flags.json:
        say(json.dumps(numbers))
    else:
        width = max(map(len, numbers))
        for name, value in numbers.items():
            say(f"{name:<{width}}  {value}")
    return 0


def predict(flags: Namespace) -> int:
    """`weft predict`."""
    trainer, parts = load_trained(flags)
    if flags.input and is_settings(flags.program) and flags.input.endswith((".csv", ".parquet")):
        data = row_inputs(flags.program, flags.set or [], flags.input)
    elif flags.input:
        data = wf.asarray(_read_array(Path(flags.input)))
    else:
        require(parts, flags.program, "validation_data")
        data = parts["validation_data"]
    outputs = trainer.predict(data, batch_size=flags.batch_size)
    if not isinstance(outputs, wf.Tensor):
        raise Mistake(f"the model gives {type(outputs).__name__}, not one tensor to write")
    array = outputs.detach().numpy()
    if flags.output:
        with replacing("weft predict", flags.output) as file:
            np.save(file, array)
        say(f"{list(array.shape)} written to {flags.output}")
    else:
        rows = array.reshape(len(array), -1).tolist()
        say("\n".join(",".join(f"{x:.6g}" for x in row) for row in rows))
    return 0


def bench(flags: Namespace) -> int:
    """`weft bench`."""
    folder = Path(flags.directory)
    benchmarks = {path.stem: path for path in sorted(folder.glob("*.py")) if path.stem[0] != "_"}
    if not benchmarks:
        raise Mistake(f"no benchmarks in {folder}: run this in a checkout of the project")
    if flags.name is None:
        say("\n".join(["benchmarks:", *(f"  weft bench {name}" for name in benchmarks)]))
        return 0
    if flags.name not in benchmarks:
        raise unknown_key("benchmark", flags.name, benchmarks)
    before, sys.argv = sys.argv, [str(benchmarks[flags.name]), *flags.arguments]
    try:
        runpy.run_path(str(benchmarks[flags.name]), run_name="__main__")
    finally:
        sys.argv = before
    return 0


def load_trained(flags: Namespace) -> tuple[Any, dict[str, Any]]:
    """The program, with the weights of a checkpoint if a folder is named."""
    chosen = read_configuration(Namespace(program=flags.program, set=flags.set))
    parts = load(chosen.program, chosen.set)
    require(parts, chosen.program, "model")
    trainer = wf.train.Trainer(
        parts["model"],
        parts.get("loss"),
        parts.get("optimizer") or wf.optim.SGD(parts["model"].parameters(), lr=0.0),
        metrics=parts.get("metrics", ()),
        progress=False,
        device=flags.device,
    )
    load_trained_weights(parts["model"], flags)
    return trainer, parts


def load_trained_weights(model: Any, flags: Namespace) -> None:
    """Load the weights of a checkpoint if a folder is named."""
    if flags.folder:
        kind = "best" if flags.best else "step"
        folder = wf.train.CheckpointFolder(flags.folder)
        if folder.latest(kind) is None:
            raise Mistake(f"no checkpoint called {kind}-... in {flags.folder}")
        model.load_state_dict(_weights(folder.load(kind=kind), model))


def _weights(found: wf.train.Checkpoint, model: Any) -> dict[str, Any]:
    """The weights in a checkpoint; their averages, where the training had an ema."""
    averaged = found.state("ema") or {}
    prefix = "averages."
    chosen = {name.removeprefix(prefix): t for name, t in averaged.items() if prefix in name}
    return {**found.require("model", model.state_dict()), **chosen}


def _read_array(path: Path) -> Any:
    """The inputs in a file, floats in float32."""
    if not path.is_file():
        raise Mistake(f"no such file: {path}")
    try:
        array = _array_of(path)
    except Mistake:
        raise
    except Exception as error:  # NumPy raises whatever its parsers trip over
        raise Mistake(f"{path} cannot be read: {getattr(error, 'problem', error)}") from None
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _array_of(path: Path) -> Any:
    if path.suffix == ".npy":
        with open_file("weft predict", path) as file:
            return _array_in(path, file, os.fstat(file.fileno()).st_size)
    if path.suffix == ".npz":
        return _first_array(path)
    if path.suffix == ".csv":
        with io.TextIOWrapper(open_file("weft predict", path), "utf-8") as file:
            return np.loadtxt(file, delimiter=",", ndmin=2)
    raise Mistake(f"{path} is neither .npy, .npz nor .csv")


def _first_array(path: Path) -> Any:
    """The first array of an archive, if it says how large it is."""
    with open_file("weft predict", path) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if not members:
            raise Mistake(f"{path} cannot be read: it holds no array")
        size = members[0].file_size
        if size > unpacked_limit(os.fstat(file.fileno()).st_size):
            raise Mistake(f"{path} cannot be read: it unpacks to {size} bytes")
        with archive.open(members[0]) as member:
            return _array_in(path, member, size)


def _array_in(path: Path, file: Any, size: int) -> Any:
    """The array of a .npy file, which may not say that it is larger than the file."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise Mistake(f"{path} cannot be read: its format is of version {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else None
    shape, _, dtype = (read or np.lib.format.read_array_header_2_0)(file)
    if dtype.hasobject or math.prod(shape) * max(dtype.itemsize, 1) > size:
        raise Mistake(f"{path} cannot be read: {size} bytes do not hold {dtype}{list(shape)}")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def round_numbers(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers to six digits, arrays as lists."""
    return {name: _round_value(value) for name, value in numbers.items()}


def _round_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return float(f"{value:.6g}") if isinstance(value, float) else value
