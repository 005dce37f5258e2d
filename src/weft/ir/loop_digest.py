"""What a kernel does, as a short name: equal for kernels that differ in names only.

A kernel is written down part by part, and each expression, variable and buffer under a number once,
where it is met first. So the text grows with the kernel, not with the paths through it, and a field
that statements get one day is part of it, too.

>>> from weft.core.dtypes import float32
>>> from weft.ir.scalars import Buffer, index
>>> digest((Buffer("x", float32)[index("i")],)) == digest((Buffer("y", float32)[index("j")],))
True
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from weft.ir.scalars import Buffer, Scalar

_VARIABLES = frozenset({"index", "size", "local"})


def digest(parts: tuple[Any, ...]) -> str:
    """The name of statements, expressions, buffers and tuples of them."""
    writer = _Writer()
    for part in parts:
        writer.put(part)
    return blake2b("\n".join(writer.lines).encode(), digest_size=16).hexdigest()


class _Writer:
    """Lines that a kernel can be read back from, but for its names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._numbers: dict[Scalar | Buffer, int] = {}

    def put(self, part: Any) -> None:
        """Add a part to the text that is hashed."""
        kind = type(part)
        if kind is Scalar:
            self.lines.append(str(self._scalar(part)))
        elif kind is Buffer:
            self.lines.append(str(self._buffer(part)))
        elif kind is tuple:
            self.lines.append(f"({len(part)}")
            for each in part:
                self.put(each)
        elif hasattr(kind, "__dataclass_fields__"):
            self.lines.append(kind.__name__)
            for name in kind.__dataclass_fields__:
                self.put(getattr(part, name))
        else:
            self.lines.append(repr(part))

    def _buffer(self, buffer: Buffer) -> int:
        known = self._numbers.get(buffer)
        if known is None:
            known = self._define(buffer, f"{buffer.dtype} {buffer.access}")
        return known

    def _scalar(self, x: Scalar) -> int:
        numbers = self._numbers
        pending = [x]
        while pending:
            current = pending[-1]
            if current in numbers:
                pending.pop()
                continue
            missing = [arg for arg in current.args if arg not in numbers]
            if missing:
                pending += missing
            else:
                pending.pop()
                self._define(current, self._text(current))
        return numbers[x]

    def _text(self, x: Scalar) -> str:
        if x.op in _VARIABLES:
            return f"{x.op} {x.dtype}"
        numbers, detail = self._numbers, x.detail
        own = self._buffer(detail) if type(detail) is Buffer else repr(detail)
        return f"{x.op} {x.dtype} {[numbers[arg] for arg in x.args]} {own}"

    def _define(self, thing: Scalar | Buffer, text: str) -> int:
        number = self._numbers[thing] = len(self._numbers)
        self.lines.append(f"{number} = {text}")
        return number
