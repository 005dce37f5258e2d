r"""Programs: what `weft train` trains, from a registered name or from a user's file.

A program is a function of settings that returns a dictionary, or a file with these names:

    model, loss, optimizer, train_data     needed to train
    validation_data                        to be judged by
    metrics, callbacks, schedule           as for wf.train.Trainer

In a file the function is called `build`, or is named behind a colon (`mine.py:small`). Its
parameters, which must have defaults, are the settings: `def build(lr=1e-3, width=64)` is what
`--set lr=0.01` sets.

>>> import tempfile, pathlib
>>> file = pathlib.Path(tempfile.mkdtemp()) / "mine.py"
>>> _ = file.write_text("def build(lr=0.1):\n    return {'model': lr}\n")
>>> load(str(file), {"lr": 0.5})
{'model': 0.5}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any

from weft.cli.from_files import is_settings, parts_of_file
from weft.cli.mistakes import Mistake, unknown_key
from weft.cli.registry import program_of

__all__ = ["load", "settings_of"]

PARTS = (
    "model", "loss", "optimizer", "train_data", "validation_data", "metrics", "callbacks",
    "schedule",
)  # fmt: skip
NEEDED = PARTS[:4]


def load(program: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a program with these settings."""
    if is_settings(program):
        return parts_of_file(program, [f"{k}={json.dumps(v)}" for k, v in settings.items()])
    loaded = find(program)
    if isinstance(loaded, ModuleType):
        if settings:
            raise Mistake(
                f"{program} has no settings: it defines no function build(...), so --set "
                f"{next(iter(settings))}=... has nothing to set"
            )
        return {name: getattr(loaded, name) for name in PARTS if hasattr(loaded, name)}
    parts = loaded(**check_settings(loaded, settings))
    if not isinstance(parts, Mapping):
        raise Mistake(f"{program}: build(...) returned {type(parts).__name__}, not a dictionary")
    for name in parts:
        if name not in PARTS:
            raise unknown_key("part of a program", name, PARTS)
    return dict(parts)


def require(parts: Mapping[str, Any], program: str, *needed: str) -> None:
    """Refuse a program that lacks something."""
    missing = [name for name in needed if name not in parts]
    if missing:
        raise Mistake(f"{program} does not define {', '.join(missing)}")


def find(program: str) -> Any:
    """The function or the module that a name or a file stands for."""
    place, _, attribute = program.partition(":")
    path = Path(place)
    if path.suffix != ".py":
        if path.exists():
            raise Mistake(f"{place} is not a Python file")
        return program_of(place)
    module = _import_file(path)
    if attribute and not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_")]
        raise unknown_key(f"object in {place}", attribute, public)
    chosen = getattr(module, attribute or "build", module)
    if attribute and not callable(chosen):
        raise Mistake(f"{attribute} in {place} is not a function that builds a program")
    return chosen


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise Mistake(f"no such file: {path}")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None, f"{path} ends in .py"
    assert spec.loader is not None, f"{path} ends in .py"
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return module


def settings_of(build: Callable[..., Any]) -> dict[str, Any]:
    """The settings of a program and their defaults.

    >>> settings_of(lambda lr=0.1, width=64: None)
    {'lr': 0.1, 'width': 64}
    """
    parameters = signature(build).parameters.values()
    named = [
        p for p in parameters if p.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)
    ]
    return {p.name: None if p.default is Parameter.empty else p.default for p in named}


def check_settings(build: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with numbers as the defaults have them; an unknown one is refused."""
    known = settings_of(build)
    kinds = [p.kind for p in signature(build).parameters.values()]
    for key in settings:
        if key not in known and Parameter.VAR_KEYWORD not in kinds:
            raise unknown_key("setting", key, known)
    return {key: _fit_setting(key, value, known.get(key)) for key, value in settings.items()}


def _fit_setting(key: str, value: Any, default: Any) -> Any:
    """A value of the default's kind: 1 will do for 1.0, but a text not for a number."""
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if default is None or isinstance(value, type(default)):
        return value
    if isinstance(default, (bool, int, float, str)):
        wanted = type(default).__name__
        raise Mistake(f"{key} is {default!r} by default: {value!r} is not of type {wanted}")
    return value
