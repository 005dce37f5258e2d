"""How much scratch memory a launch takes, found before it runs.

Kernels of the loop language say it themselves. Functions that were written by hand ask for memory
at their beginning, in sizes that are computed from their table of numbers; so the first lines of
their text are followed here, up to their first loop.

>>> text = '''
... define void @"weft.f"(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) nounwind {
... entry:
...   %v0 = getelementptr i64, ptr %sizes, i64 1
...   %v1 = load i64, ptr %v0
...   %v2 = mul i64 %v1, 4
...   %v3 = call ptr @malloc(i64 %v2)
...   ret void
... }
... '''
>>> requests(text, '@"weft.f"', [3, 100])
[400]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from weft.compiler.plan.launch import Launch, Symbol
from weft.compiler.targets.llvm.emit import is_local
from weft.ir.loops import Kernel, evaluate
from weft.runtime.memory import ALIGNMENT as LINE

TextOf = Callable[[Symbol], tuple[str, str]]
_KNOWN: dict[tuple[str, str], dict[tuple[int, ...], dict[tuple[int, ...], list[int]]]] = {}
"""What functions asked for: by text and name, by the places of the table that they read, and by
the numbers there."""
_FUNCTION = r"^define [^\n]*?{name}\((?P<given>[^)]*)\)[^\n]*\{{\n(?P<body>.*?)^\}}"
_ASSIGNED = re.compile(r"(?:(%\S+) = )?(.*)")
_COMPARED = {"eq": int.__eq__, "ne": int.__ne__, "slt": int.__lt__, "sgt": int.__gt__}
_COMBINED: Mapping[str, Callable[[int, int], int]] = {
    "add": int.__add__, "sub": int.__sub__, "mul": int.__mul__, "and": int.__and__,
    "sdiv": lambda a, b: int(a / b), "srem": lambda a, b: a - b * int(a / b),
}  # fmt: skip


def takes_scratch(launch: Launch, text_of: TextOf) -> bool:
    """Whether a launch takes scratch memory at all."""
    kernel = launch.kernel
    if isinstance(kernel, Kernel):
        return any(not is_local(scratch) for scratch in kernel.scratch)
    return "@malloc(" in text_of(kernel)[0]


def scratch_bytes(launch: Launch, numbers: Sequence[int], text_of: TextOf) -> int:
    """The bytes of scratch memory that one call of a launch takes, each piece in whole lines."""
    kernel = launch.kernel
    if isinstance(kernel, Kernel):
        sizes = dict(zip(kernel.sizes, numbers, strict=True))
        pieces = [
            evaluate(scratch.count, sizes) * scratch.buffer.dtype.itemsize + LINE
            for scratch in kernel.scratch
            if not is_local(scratch)
        ]
    else:
        text, name = text_of(kernel)
        pieces = (
            requests(text, f'@"weft.{name}"', numbers) if takes_scratch(launch, text_of) else []
        )
    return sum(-(-piece // LINE) * LINE + LINE for piece in pieces)


def requests(text: str, name: str, numbers: Sequence[int]) -> list[int]:
    """The sizes that a function of a module asks for, given its table of numbers."""
    known = _KNOWN.setdefault((text, name), {})
    for places, answers in list(known.items()):  # another export may add to it meanwhile
        answer = answers.get(tuple([numbers[place] for place in places]))
        if answer is not None:
            return answer
    follower = _Follower(text, numbers)
    follower.follow(name)
    # Another table with the same numbers in the places that were read leads the same way.
    places = tuple(follower.read)
    known.setdefault(places, {})[tuple([numbers[place] for place in places])] = follower.found
    return follower.found


class _Follower:
    """Follows the integers of a function, from its table to what it asks for."""

    def __init__(self, text: str, numbers: Sequence[int]) -> None:
        self.text, self.numbers = text, numbers
        self.found: list[int] = []
        self.read: dict[int, None] = {}
        """The places of the table that count, in order."""

    def follow(self, name: str) -> None:
        """Follow one function."""
        blocks = _blocks_of(self.text, name)
        values: dict[str, int | str] = {}
        block: str | None = "entry"
        while block is not None and not block.startswith("loop"):
            block = self._block(blocks[block], values)

    def _block(self, lines: Sequence[str], values: dict[str, int | str]) -> str | None:
        """Follow a block; the one that comes after it."""
        for line in lines:
            match = _ASSIGNED.fullmatch(line)
            assert match is not None
            target, instruction = match.groups()
            if instruction.startswith("br label"):
                return instruction.split("%")[1]
            if instruction.startswith("br i1"):
                condition, yes, no = (each.strip() for each in instruction[5:].split(","))
                known = values.get(condition)
                assert isinstance(known, int), line
                return (yes if known else no).split("%")[1]
            if instruction.startswith("ret"):
                return None
            value = self._value(instruction, values)
            if target and value is not None:
                values[target] = value
        return None

    def _value(self, instruction: str, values: Mapping[str, int | str]) -> int | str | None:
        """What an instruction gives: a number, a place in the table, or nothing that counts."""

        def number(text: str) -> int | None:
            known = values.get(text) if text.startswith("%") else int(text)
            return known if isinstance(known, int) else None

        words = instruction.replace(",", "").split()
        if words[0] == "call" and "@malloc(" in instruction:
            size = number(instruction.rsplit(" ", 1)[1].rstrip(")"))
            assert size is not None, instruction
            self.found.append(size)
        elif words[0] == "call" and "ptr %buffers, ptr %sizes" in instruction:
            self.follow(re.findall(r"@[\w.]+", instruction)[0])
        elif words[0] == "getelementptr":
            return _place_in_table(instruction, values)
        elif words[:2] == ["load", "i64"] and isinstance(values.get(words[3]), str):
            place = int(values[words[3]])
            self.read[place] = None
            return int(self.numbers[place])
        elif words[0] in _COMBINED and words[1] == "i64":
            a, b = number(words[2]), number(words[3])
            return None if a is None or b is None else _COMBINED[words[0]](a, b)
        elif words[0] == "icmp" and words[1] in _COMPARED and words[2] == "i64":
            a, b = number(words[3]), number(words[4])
            return None if a is None or b is None else int(_COMPARED[words[1]](a, b))
        return None


@lru_cache(maxsize=256)
def _blocks_of(text: str, name: str) -> dict[str, list[str]]:
    """The lines of each block of a function in a module."""
    match = re.search(_FUNCTION.format(name=re.escape(name)), text, re.MULTILINE | re.DOTALL)
    assert match is not None, name
    blocks: dict[str, list[str]] = {}
    lines = blocks.setdefault("", [])
    for line in match["body"].splitlines():
        if line.endswith(":"):
            lines = blocks.setdefault(line[:-1], [])
        else:
            lines.append(line.strip())
    return blocks


def _place_in_table(instruction: str, values: Mapping[str, int | str]) -> str | None:
    """The place that an address in the table has, as text."""
    plain = re.fullmatch(r"getelementptr i64, ptr %sizes, i64 (\d+)", instruction)
    field = re.fullmatch(r"getelementptr \{.*\}, ptr %sizes, i64 0, i32 (\d+)", instruction)
    found = plain or field
    return None if found is None else found[1]
