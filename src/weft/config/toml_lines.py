r"""The line of every key of a TOML text, which the standard library's reader does not tell.

The text was read by `tomllib` before, so that it is known to be well formed.

>>> from weft.config.toml_lines import toml_lines
>>> toml_lines('a = 1\n[b]\nc = {d = 2}\n[[e]]\nf = [\n 3,\n]\n')[("e", 0, "f", 0)]
6
"""

from __future__ import annotations

import re

__all__ = ["toml_lines"]

Place = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_PART = re.compile(r"""[ \t]*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))[ \t]*""")
_TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"""{1,3}|' + r"'''.*?'''{1,3}|" + r'"(?:[^"\\]|\\.)*"|' + r"'[^']*'",
    re.DOTALL,
)
_PLAIN = re.compile(r"[^,\]}#\n]*")


def toml_lines(text: str) -> dict[Place, int]:
    """Each key, with its tables and numbers in lists, and the line on which it stands."""
    reader = _Reader(text)
    reader.read()
    return reader.lines


class _Reader:
    """A place in the text, and the keys before it."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line, self.counted = text, 0, 1, 0
        self.lines: dict[Place, int] = {}
        self.lengths: dict[Place, int] = {}

    def read(self) -> None:
        """Go through the whole text."""
        table: Place = ()
        while self._skip_blank():
            if self.text.startswith("[", self.at):
                table = self._header()
            else:
                self._pair(table)

    def _skip_blank(self) -> bool:
        """Skip blanks, ends of lines and comments; whether anything is left."""
        match = _BLANK.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at < len(self.text)

    def _header(self) -> Place:
        """`[table]` or `[[table]]`: the place of what follows."""
        repeated = self.text.startswith("[[", self.at)
        self.at += 2 if repeated else 1
        parts = self._key()
        self.at += 2 if repeated else 1
        place: Place = ()
        for part in parts[:-1]:
            self._note((*place, part))
            place = self._newest_table((*place, part))
        place = (*place, parts[-1])
        self._note(place)
        if repeated:
            self.lengths[place] = self.lengths.get(place, 0) + 1
        place = self._newest_table(place)
        self._note(place)
        return place

    def _newest_table(self, place: Place) -> Place:
        """A place, or where it is a list of tables, that of the newest."""
        length = self.lengths.get(place)
        return place if length is None else (*place, length - 1)

    def _pair(self, table: Place) -> None:
        """`key = value`, where the key may have dots."""
        place = table
        for part in self._key():
            place = (*place, part)
            self._note(place)
        self.at += 1  # the sign =
        self._value(place)

    def _key(self) -> list[str]:
        parts = []
        while match := _PART.match(self.text, self.at):
            self.at = match.end()
            parts.append(next(part for part in match.groups() if part is not None))
            if not self.text.startswith(".", self.at):
                break
            self.at += 1
        return parts

    def _value(self, place: Place) -> None:
        """Go over a value, and note what stands inside it."""
        self._skip_blank()
        start = self.text[self.at]
        if start == "[":
            self._list(place)
        elif start == "{":
            self._inline_table(place)
        else:
            match = (_TEXT if start in "\"'" else _PLAIN).match(self.text, self.at)
            self.at = match.end() if match else len(self.text)

    def _list(self, place: Place) -> None:
        self.at += 1
        number = 0
        while self._skip_blank() and self.text[self.at] != "]":
            self._note((*place, number))
            self._value((*place, number))
            number += 1
            self._skip_comma()
        self.at += 1

    def _inline_table(self, place: Place) -> None:
        self.at += 1
        while self._skip_blank() and self.text[self.at] != "}":
            self._pair(place)
            self._skip_comma()
        self.at += 1

    def _skip_comma(self) -> None:
        if self._skip_blank() and self.text[self.at] == ",":
            self.at += 1

    def _note(self, place: Place) -> None:
        """Remember the line of a place; that of the first mention stays."""
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = self.at
        self.lines.setdefault(place, self.line)
