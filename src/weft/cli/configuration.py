"""Configuration: flags and a TOML file, of the same keys, the flags being stronger.

    epochs = 10
    folder = "run"
    [set]
    lr = 0.01

>>> read_configuration(Namespace(program="digits", set=["lr=1e-3"])).set
{'lr': 0.001}
"""

from __future__ import annotations

import tomllib
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import weft as wf
from weft.cli.mistakes import Mistake, unknown_key
from weft.config.documents import parse_value
from weft.files import read_text

LARGEST = 1 << 20
"""The most bytes of a file of settings."""

__all__ = ["Configuration", "read_configuration"]


@dataclass
class Configuration:
    """Everything that `weft train` can be told; `set` holds the program's own settings."""

    program: str = ""
    epochs: int = 1
    batch_size: int = 32
    folder: str = ""
    resume: bool = False
    checkpoint_every: int = 0
    keep_last: int = 3
    seed: int = 0
    device: str = ""
    precision: str = ""
    accumulate: int = 1
    clip_norm: float = 0.0
    ema: float = 0.0
    compile: bool = True
    tensorboard: str = ""
    csv: str = ""
    json: str = ""
    board: str = ""
    plot: str = ""
    quiet: bool = False
    set: dict[str, Any] = field(default_factory=dict)


def read_configuration(flags: Namespace) -> Configuration:
    """The file's keys, then the flags that were given."""
    configuration = Configuration()
    if getattr(flags, "config", None):
        for key, value in _read(Path(flags.config)).items():
            _assign(configuration, key, value)
    for each in fields(Configuration):
        value = getattr(flags, each.name, None)
        if each.name == "set":
            configuration.set = {**configuration.set, **dict(map(_assignment, value or []))}
        elif value is not None:
            _assign(configuration, each.name, value)
    if not configuration.program:
        raise Mistake("nothing to train: name a program or a file, or program = ... in the file")
    return configuration


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text("weft", path, LARGEST))
    except FileNotFoundError:
        raise Mistake(f"no such file: {path}") from None
    except (OSError, wf.ArgumentError) as error:
        raise Mistake(f"{path} cannot be read: {getattr(error, 'problem', error)}") from None
    except (ValueError, RecursionError) as error:  # also numbers with too many digits
        raise Mistake(f"{path} is not TOML: {error}") from None


def _assign(configuration: Configuration, key: str, value: Any) -> None:
    kinds: Mapping[str, Any] = {each.name: each.default for each in fields(Configuration)}
    name = key.replace("-", "_")
    if name not in kinds:
        raise unknown_key("key", key, kinds)
    kind = dict if name == "set" else type(kinds[name])
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Mistake(f"{key} must be of type {kind.__name__}, and is {value!r}")
    setattr(configuration, name, value)


def _assignment(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise Mistake(f"--set takes key=value, and got {text!r}")
    return key.strip(), parse_value(value.strip())
