r"""Files of settings, TOML or YAML, with the line of every key; and settings of the command line.

>>> from weft.config.documents import Document
>>> document = Document.from_toml("[optimizer]\nlr = 0.1\n", "run.toml")
>>> document.values, document.place_of(("optimizer", "lr"))
({'optimizer': {'lr': 0.1}}, 'run.toml, line 2')
>>> document.override("optimizer.lr=0.5")
>>> document.values["optimizer"]["lr"], document.place_of(("optimizer", "lr"))
(0.5, 'the command line')
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import weft as wf
from weft.config.toml_lines import toml_lines
from weft.data.optional import require
from weft.files import read_text

LARGEST = 1 << 20
"""The most bytes of a file of settings."""
MOST_NODES = 20_000
"""The most values of a YAML file, each repeated one counted again."""
DEEPEST = 50
"""The most tables of a YAML file inside of each other."""
COMMAND_LINE = 0
"""The line of what was said on the command line."""
ENDINGS = (".toml", ".yaml", ".yml")

Place = tuple[str | int, ...]

__all__ = ["ENDINGS", "Document", "key_text", "parse_value"]


@dataclass
class Document:
    """Nested settings, where they come from, and the line of each key."""

    values: dict[str, Any]
    lines: dict[Place, int] = field(default_factory=dict)
    name: str = ""

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The settings in a file, by its ending."""
        path = Path(path)
        if path.suffix not in ENDINGS:
            raise wf.ArgumentError(
                "config",
                "this is no file of settings",
                expected=f"a name that ends in {', '.join(ENDINGS)}",
                got={"file": str(path)},
                fix="write the settings in TOML",
            )
        text = read_text("config", path, LARGEST)
        return (
            cls.from_toml(text, path.name)
            if path.suffix == ".toml"
            else cls.from_yaml(text, path.name)
        )

    @classmethod
    def from_toml(cls, text: str, name: str) -> Self:
        """The settings in a text of TOML."""
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # also numbers with too many digits
            raise _reading_error(name, "TOML", error, text) from None
        return cls(values, toml_lines(text), name)

    @classmethod
    def from_yaml(cls, text: str, name: str) -> Self:
        """The settings in a text of YAML, which makes plain values and nothing else."""
        yaml = require("yaml", "PyYAML", "config", extra="yaml")
        loader = _plain_loader(yaml)
        try:
            node = yaml.compose(text, loader)
            lines = dict(_yaml_lines(yaml, node, name))
            values = yaml.load(text, loader)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            if isinstance(error, wf.WeftError):
                raise
            raise _reading_error(name, "YAML", error) from None
        if values is not None and not isinstance(values, dict):
            raise _reading_error(name, "YAML", TypeError("its top is not a table of keys"))
        return cls(values or {}, lines, name)

    def override(self, text: str) -> None:
        """Set one key from `key=value`; the key's parts are joined by dots."""
        key, sign, value = text.partition("=")
        place = _key_place(key.strip()) if sign else ()
        if not place:
            raise wf.ArgumentError(
                "config",
                "this sets nothing",
                expected="key=value, as optimizer.lr=0.01",
                got={"argument": text},
                fix="write the key, =, and its value, without blanks",
            )
        table = self.values
        for length, part in enumerate(place[:-1], 1):
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise wf.ArgumentError(
                    "config",
                    f"{key_text(place[:length])} is a value, and has no keys",
                    expected="a key of a table",
                    got={"argument": text},
                    fix=f"{key_text(place[:length])}=...",
                )
        table[place[-1]] = parse_value(value.strip())
        for known in [known for known in self.lines if known[: len(place)] == place]:
            del self.lines[known]
        self.lines[place] = COMMAND_LINE

    def place_of(self, place: Place) -> str:
        """Where a key stands, or the nearest table around it."""
        for length in range(len(place), -1, -1):
            line = self.lines.get(place[:length])
            if line == COMMAND_LINE:
                return "the command line"
            if line is not None:
                return f"{self.name}, line {line}"
        return self.name or "the settings"


def key_text(place: Place) -> str:
    """A key as it is written: parts joined by dots, numbers in brackets.

    >>> key_text(("features", "a b", "columns", 2))
    'features."a b".columns[2]'
    """
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = re.fullmatch(r"[A-Za-z0-9_-]+", part)
            text += ("." if text else "") + (part if plain else f'"{part}"')
    return text


def parse_value(text: str) -> Any:
    """A value in TOML's notation; anything else is taken as text.

    >>> parse_value("1e-3"), parse_value("true"), parse_value("relu"), parse_value("[1, 2]")
    (0.001, True, 'relu', [1, 2])
    """
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        parsed = {}
    if parsed.keys() == {"value"}:
        return parsed["value"]
    try:
        return float(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _key_place(key: str) -> tuple[str, ...]:
    """The parts of a dotted key, which may be quoted as in TOML; none if it is no key."""
    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except (ValueError, RecursionError):
        return ()
    place = []
    while isinstance(table, dict) and len(table) == 1:
        ((part, table),) = table.items()
        place.append(part)
    return tuple(place) if table == 0 else ()


def _plain_loader(yaml: Any) -> Any:
    """PyYAML's safe loader, which also reads 1e-3 as a number, as version 1.2 of YAML does."""
    loader: Any = type("PlainLoader", (yaml.SafeLoader,), {})
    number = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+")
    loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return loader


def _yaml_lines(yaml: Any, root: Any, name: str) -> Iterator[tuple[Place, int]]:
    """The line of every key. Repeated keys, and aliases that grow without end, are refused."""
    waiting: list[tuple[Place, Any]] = [((), root)] if root is not None else []
    for _ in range(MOST_NODES):
        if not waiting:
            return
        place, node = waiting.pop()
        if len(place) > DEEPEST:
            raise _reading_error(name, "YAML", f"it is nested more than {DEEPEST} deep")
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                line = key.start_mark.line + 1
                if key.value in seen:
                    raise _reading_error(name, "YAML", f"line {line} has {key.value!r} again")
                seen.add(key.value)
                yield (*place, str(key.value)), line
                waiting.append(((*place, str(key.value)), value))
        elif isinstance(node, yaml.SequenceNode):
            for number, value in enumerate(node.value):
                yield (*place, number), value.start_mark.line + 1
                waiting.append(((*place, number), value))
    raise _reading_error(name, "YAML", f"it has more than {MOST_NODES} values")


REMEDIES = {
    "Invalid value": 'a text stands in quotes, as kind = "adam"; true and false are small',
    "Cannot overwrite a value": "keep one of the lines that give this key",
    "Cannot declare": "keep one of the tables of this name",
    "Expected '=' after a key": 'write key = value, with quotes around a text: kind = "adam"',
}
"""What helps against the usual mistakes of TOML's notation, by how the reader calls them."""


def _reading_error(name: str, form: str, reason: object, text: str = "") -> wf.WeftError:
    told = " ".join(str(reason).split())
    place, lines = re.search(r"at line (\d+)", told), text.splitlines()
    number = int(place[1]) if place else len(lines) if "end of document" in told else 0
    got: dict[str, object] = {"file": name}
    if 0 < number <= len(lines):
        got = {f"line {number}": repr(lines[number - 1].strip()[:80])}
    fixes = [fix for start, fix in REMEDIES.items() if told.startswith(start)]
    return wf.ArgumentError(
        "config",
        f"{name} is not {form}: {told}",
        expected=f"a file in {form}",
        got=got,
        fix=fixes[0] if fixes else "mend the line that is named",
    )
