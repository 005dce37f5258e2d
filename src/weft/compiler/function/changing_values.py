"""Tells the user once of a function that is compiled again and again for new numbers or text.

What is no tensor is part of a program, so that each new value of it is a new program. That is right
for options, of which there are few, and a trap for a learning rate that changes in every step.

>>> changing = ChangingValues()
>>> for step in range(3):
...     changing.note("f", {"rate": 0.1 * step, "mode": "sum"})
>>> changing.names, changing.times
(['rate'], 2)
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from weft.ir.call_keys import number_key

MANY = 16
"""Programs made for new values until the user is told."""


class ChangingValues:
    """Which plain values of a function's calls changed when it was compiled, and how often."""

    __slots__ = ("_last", "names", "times")

    def __init__(self) -> None:
        self._last: Mapping[str, Any] = {}
        self.names: list[str] = []
        self.times = 0

    def note(self, function: str, values: Mapping[str, Any], stacklevel: int = 3) -> None:
        """Note a call that was compiled, with its plain values by name."""
        last, self._last = self._last, values
        changed = [
            name
            for name, value in values.items()
            if name in last and number_key(value) != number_key(last[name])
        ]
        if not changed:
            return
        self.times += 1
        self.names += [name for name in changed if name not in self.names]
        if self.times == MANY:
            warnings.warn(self._text(function, values), UserWarning, stacklevel=stacklevel)

    def _text(self, function: str, values: Mapping[str, Any]) -> str:
        name = next((each for each in self.names if type(values.get(each)) is float), "")
        name = name or self.names[0]
        fix = f"{name} = wf.tensor({values.get(name)!r})"
        return (
            f"{function} was compiled {MANY + 1} times, as {', '.join(self.names)} had ever new "
            "values, and what is no tensor is part of the program\n"
            f"  fix       make numbers that change tensors: {fix}; "
            f"{function}.compilations lists the reasons"
        )
