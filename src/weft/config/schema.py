r"""What a file of settings may say: kinds of values, their bounds, and the tables around them.

A schema is a value: the same one checks files, fills in what was left out, and writes the page that
lists all keys. Every mistake names the key, its line, and what is allowed.

>>> from weft.config.documents import Document
>>> from weft.config.schema import Choice, ConfigurationError, Number, Table, check
>>> schema = Table({"kind": Choice("adam", ["adam", "sgd"], "the rule"), "lr": Number(0.1, "rate")})
>>> check(schema, Document.from_toml("lr = 1", "run.toml"))
{'kind': 'adam', 'lr': 1.0}
>>> try:
...     check(schema, Document.from_toml('\nkind = "adm"', "run.toml"))
... except ConfigurationError as error:
...     print(error.lines, error.keys, error.fix)
['run.toml, line 2'] ['kind'] did you mean 'adam'?
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

import weft as wf
from weft.config.documents import Document, Place, key_text
from weft.names import nearest_name

__all__ = [
    "NEEDED", "Choice", "ConfigurationError", "Flag", "Items", "Kind", "Named", "Number", "Table",
    "Tagged", "Text", "Whole", "check", "described_keys",
]  # fmt: skip

NEEDED: Any = ...
"""The default of a key that must be given."""
USUAL_WORDS = {
    "learning_rate": "lr", "optimiser": "optimizer", "type": "kind", "name": "kind",
    "hidden_units": "hidden", "embedding_dim": "width", "num_epochs": "epochs", "buckets": "hash",
    "vocabulary_size": "vocabulary", "sep": "delimiter", "label": "targets", "keys": "space",
    "params": "space", "parameters": "space", "metric": "monitor", "direction": "mode",
}  # fmt: skip
"""What others call some keys."""
SHOWN = 10
"""The most mistakes that one error tells."""


class Wrong(NamedTuple):
    """One mistake: where it is, what is wrong, what is allowed, and the likely remedy."""

    place: Place
    problem: str
    allowed: str
    value: Any
    fix: str


class ConfigurationError(wf.ArgumentError):
    """A file of settings that says what it may not; `keys` names what is wrong, `lines` where."""

    def __init__(self, document: Document, mistakes: Sequence[Wrong]) -> None:
        first, *others = mistakes
        self.keys = [key_text(wrong.place) for wrong in mistakes]
        self.lines = [document.place_of(wrong.place) for wrong in mistakes]
        super().__init__(
            self.lines[0],
            first.problem,
            expected=first.allowed,
            got={self.keys[0] or "the file": first.value},
            fix=first.fix,
        )
        for place, wrong in list(zip(self.lines[1:], others, strict=True))[: SHOWN - 1]:
            self.add_note(f"{place}: {wrong.problem}; {wrong.fix}")
        if len(others) >= SHOWN:
            self.add_note(f"and {len(others) - SHOWN + 1} more mistakes")

    def whole_text(self) -> str:
        """The message with all that is wrong, for those who do not print the notes of errors."""
        return "\n".join([str(self), *getattr(self, "__notes__", [])])


@dataclass(frozen=True)
class Kind:
    """A kind of value, here any; what stands for it where it is left out, and what it means."""

    default: Any
    meaning: str = ""

    @property
    def allowed_text(self) -> str:
        """What may be written, in words."""
        return "any value"

    def fit(self, value: Any) -> Any:
        """The value as it is used, or NotImplemented where it is none of this kind."""
        return value

    def resolve(self, place: Place, value: Any, wrong: list[Wrong]) -> Any:
        """The value as it is used; mistakes are added to `wrong`."""
        fitted = self.fit(value)
        if fitted is NotImplemented:
            wrong.append(
                Wrong(place, f"{key_text(place)} has a value that is not allowed",
                      self.allowed_text, value, self._remedy(place))
            )  # fmt: skip
            return None
        return fitted

    def _remedy(self, place: Place) -> str:
        if self.default is NEEDED or self.default is None:
            return f"give {key_text(place)} {self.allowed_text}"
        return f"leave it out, or write {key_text(place)} = {_toml_text(self.default)}"

    def absent(self, place: Place, wrong: list[Wrong]) -> Any:
        """What stands for a key that was left out."""
        if self.default is NEEDED:
            wrong.append(
                Wrong(place, f"{key_text(place)} is missing", self.allowed_text, None,
                      f"add {place[-1]} = ...")
            )  # fmt: skip
            return None
        return self.default


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number between bounds."""

    low: int = 0
    high: float = math.inf

    @property
    def allowed_text(self) -> str:
        """See `Kind`."""
        return "a whole number" + _bounds(self.low, self.high)

    def fit(self, value: Any) -> Any:
        """See `Kind`."""
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return value if is_whole and self.low <= value <= self.high else NotImplemented


@dataclass(frozen=True)
class Number(Kind):
    """A number between bounds."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def allowed_text(self) -> str:
        """See `Kind`."""
        return "a number" + _bounds(self.low, self.high)

    def fit(self, value: Any) -> Any:
        """See `Kind`."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return NotImplemented
        return float(value) if self.low <= value <= self.high else NotImplemented


@dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    allowed_text = "true or false"

    def fit(self, value: Any) -> Any:
        """See `Kind`."""
        return value if isinstance(value, bool) else NotImplemented


@dataclass(frozen=True)
class Text(Kind):
    """Any text."""

    allowed_text = "a text"

    def fit(self, value: Any) -> Any:
        """See `Kind`."""
        return value if isinstance(value, str) else NotImplemented


@dataclass(frozen=True)
class Choice(Kind):
    """One of some texts."""

    choices: Sequence[str] = ()

    def __init__(self, default: Any, choices: Sequence[str], meaning: str = "") -> None:
        object.__setattr__(self, "choices", tuple(choices))
        super().__init__(default, meaning)

    @property
    def allowed_text(self) -> str:
        """See `Kind`."""
        return ", ".join(self.choices)

    def fit(self, value: Any) -> Any:
        """See `Kind`."""
        return value if value in self.choices else NotImplemented

    def resolve(self, place: Place, value: Any, wrong: list[Wrong]) -> Any:
        """See `Kind`; the nearest of the choices is offered."""
        if self.fit(value) is not NotImplemented:
            return value
        problem = f"{key_text(place)} is none of the allowed values"
        fix = _did_you_mean(value, self.choices, "choose one of them")
        wrong.append(Wrong(place, problem, self.allowed_text, value, fix))
        return None


@dataclass(frozen=True)
class Items(Kind):
    """A list of values of one kind; a single value may stand for a list of it alone."""

    item: Kind = field(default_factory=lambda: Text(NEEDED))
    least: int = 0

    @property
    def allowed_text(self) -> str:
        """See `Kind`."""
        return f"a list of values, each {self.item.allowed_text}"

    def resolve(self, place: Place, value: Any, wrong: list[Wrong]) -> Any:
        """See `Kind`."""
        if not isinstance(value, list) and self.item.fit(value) is not NotImplemented:
            value = [value]
        if not isinstance(value, list) or len(value) < self.least:
            problem = f"{key_text(place)} is not {'a list' if self.least == 0 else 'long enough'}"
            wrong.append(Wrong(place, problem, self.allowed_text, value, self._remedy(place)))
            return None
        return [self.item.resolve((*place, i), each, wrong) for i, each in enumerate(value)]

    def fit(self, value: Any) -> Any:
        """See `Kind`."""
        mistakes: list[Wrong] = []
        fitted = self.resolve((), value, mistakes)
        return NotImplemented if mistakes else fitted


@dataclass(frozen=True)
class Table(Kind):
    """Keys, each of a kind of its own. Where the default is None, the table may be left out."""

    keys: Mapping[str, Kind] = field(default_factory=dict)
    allowed_text = "a table of keys"

    def __init__(self, keys: Mapping[str, Kind], meaning: str = "", default: Any = NEEDED) -> None:
        object.__setattr__(self, "keys", dict(keys))
        super().__init__(default, meaning)

    def absent(self, place: Place, wrong: list[Wrong]) -> Any:
        """See `Kind`: without a default of its own, a table of its keys' defaults."""
        return self.default if self.default is not NEEDED else self.resolve(place, {}, wrong)

    def resolve(self, place: Place, value: Any, wrong: list[Wrong]) -> Any:
        """See `Kind`."""
        if not isinstance(value, dict):
            problem = f"{key_text(place)} is a value where a table belongs"
            wrong.append(Wrong(place, problem, ", ".join(self.keys), value,
                               f"[{key_text(place)}] and its keys below"))  # fmt: skip
            return None
        wrong += [
            _unknown_key(place, key, value[key], self.keys) for key in value if key not in self.keys
        ]
        return {
            key: kind.resolve((*place, key), value[key], wrong)
            if key in value
            else kind.absent((*place, key), wrong)
            for key, kind in self.keys.items()
        }


@dataclass(frozen=True)
class Named(Kind):
    """Tables under names that the user chooses."""

    each: Kind = field(default_factory=lambda: Table({}))
    allowed_text = "tables under names of your choice"

    def __init__(self, each: Kind, meaning: str = "", default: Any = None) -> None:
        object.__setattr__(self, "each", each)
        super().__init__({} if default is None else default, meaning)

    def resolve(self, place: Place, value: Any, wrong: list[Wrong]) -> Any:
        """See `Kind`."""
        if not isinstance(value, dict):
            problem = f"{key_text(place)} is a value where tables belong"
            wrong.append(
                Wrong(place, problem, self.allowed_text, value, f"[{key_text(place)}.name]")
            )
            return {}
        return {name: self.each.resolve((*place, name), v, wrong) for name, v in value.items()}


@dataclass(frozen=True)
class Tagged(Kind):
    """A table whose key `tag` says which other keys it has."""

    tag: str = "kind"
    tables: Mapping[str, Table] = field(default_factory=dict)
    allowed_text = "a table of keys"

    def __init__(
        self, tag: str, tables: Mapping[str, Table], meaning: str = "", default: Any = NEEDED
    ) -> None:
        object.__setattr__(self, "tag", tag)
        object.__setattr__(self, "tables", dict(tables))
        super().__init__(default, meaning)

    def absent(self, place: Place, wrong: list[Wrong]) -> Any:
        """See `Kind`: a default is the name of the table, or None for no table at all."""
        return None if self.default is None else self.resolve(place, {}, wrong)

    def resolve(self, place: Place, value: Any, wrong: list[Wrong]) -> Any:
        """See `Kind`."""
        tag = Choice(self.default or NEEDED, list(self.tables))
        if not isinstance(value, dict):
            problem = f"{key_text(place)} is a value where a table belongs"
            fix = f"[{key_text(place)}] and its keys below"
            wrong.append(Wrong(place, problem, self.allowed_text, value, fix))
            return None
        inside = (*place, self.tag)
        chosen = (
            tag.resolve(inside, value[self.tag], wrong)
            if self.tag in value
            else tag.absent(inside, wrong)
        )
        if chosen is None:
            return None
        rest = {key: item for key, item in value.items() if key != self.tag}
        known = {self.tag: tag, **self.tables[chosen].keys}
        return Table(known).resolve(place, {self.tag: chosen, **rest}, wrong)


def check(schema: Kind, document: Document) -> Any:
    """The settings of a document with all defaults; what is wrong is raised, all of it at once."""
    wrong: list[Wrong] = []
    resolved = schema.resolve((), document.values, wrong)
    if wrong:
        raise ConfigurationError(document, wrong)
    return resolved


class DescribedKey(NamedTuple):
    """A key in words; `kinds` are those of the tables around it that have it."""

    key: str
    allowed: str
    default: str
    meaning: str
    kinds: tuple[str, ...] = ()


def described_keys(
    schema: Kind, place: Place = (), kinds: tuple[str, ...] = ()
) -> Iterator[DescribedKey]:
    """Every key of a schema."""
    if isinstance(schema, Table):
        for key, kind in schema.keys.items():
            yield from described_keys(kind, (*place, key), kinds)
    elif isinstance(schema, Named):
        yield from described_keys(schema.each, (*place, "NAME"), kinds)
    elif isinstance(schema, Tagged):
        name, choices = key_text((*place, schema.tag)), ", ".join(schema.tables)
        yield DescribedKey(name, choices, _default_text(schema.default), schema.meaning, kinds)
        for tag, table in schema.tables.items():
            yield from described_keys(table, place, (*kinds, tag))
    else:
        default = _default_text(schema.default)
        yield DescribedKey(key_text(place), schema.allowed_text, default, schema.meaning, kinds)


def _default_text(default: Any) -> str:
    return "needed" if default is NEEDED else "none" if default is None else _toml_text(default)


def _unknown_key(place: Place, key: str, value: Any, known: Mapping[str, Kind]) -> Wrong:
    whole = (*place, key)
    fix = _did_you_mean(key, known, _deeper_key(key, place, known) or "remove it")
    return Wrong(whole, f"no key is called {key_text(whole)}", ", ".join(known), value, fix)


def _deeper_key(key: str, place: Place, known: Mapping[str, Kind]) -> str:
    """The advice to write a key with the table that has it, empty where not one table has it."""
    inside = {
        each.key
        for name, kind in known.items()
        for each in described_keys(kind, (*place, name))
        if each.key.endswith(f".{key}") and "NAME" not in each.key
    }
    return f"did you mean {min(inside)!r}?" if len(inside) == 1 else ""


def _did_you_mean(word: Any, known: Any, otherwise: str) -> str:
    if not isinstance(word, str):
        return otherwise
    usual = USUAL_WORDS.get(word)
    close = get_close_matches(word, list(known), 1, 0.6)
    meant = usual if usual in known else nearest_name(word, list(known)) or (close or [""])[0]
    return f"did you mean {meant!r}?" if meant else otherwise


def _bounds(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    if math.isinf(high):
        return f" of at least {low:g}"
    return f" of at most {high:g}" if math.isinf(low) else f" from {low:g} to {high:g}"


def _toml_text(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml_text, value)) + "]"
    return (
        f'"{value}"'
        if isinstance(value, str)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
