"""Native functions in loops: LLVM IR written with Python's `with` for each loop.

>>> function = Writing("count", ("ptr %to", "i64 %n"))
>>> with function.loop(0, "%n") as i:
...     function.do(f"store i64 {i}, ptr %to")
>>> print(function.text.splitlines()[0])
define internal void @count(ptr %to, i64 %n) nounwind noinline {
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from weft.compiler.targets.cpu.llvm.ir_text import Type
from weft.core.dtypes import DType

KERNEL = ("ptr %buffers", "ptr %sizes", "i64 %begin", "i64 %end")
"""The parameters of a function that a program calls."""


class Writing:
    """The text of one function; `public` ones are found as `weft.name`."""

    def __init__(self, name: str, parameters: Sequence[str], *, public: bool = False) -> None:
        symbol, kind = (f'"weft.{name}"', "") if public else (name, "internal ")
        tail = "nounwind" if public else "nounwind noinline"
        self.head = f"define {kind}void @{symbol}({', '.join(parameters)}) {tail} {{"
        self.block = "entry"
        self.lines: list[str] = []
        self.numbers = count()

    @property
    def text(self) -> str:
        """The finished function."""
        return "\n".join([self.head, "entry:", *self.lines, "  ret void", "}"])

    def fresh(self, stem: str) -> str:
        """A new name for a block."""
        return f"{stem}{next(self.numbers)}"

    def put(self, instruction: str) -> str:
        """Append an instruction; the name of its value."""
        name = f"%v{next(self.numbers)}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        """Append an instruction without a value."""
        self.lines.append(f"  {instruction}")

    def label(self, name: str) -> None:
        """Begin a block; the one before must have ended."""
        self.lines.append(f"{name}:")
        self.block = name

    @contextmanager
    def loop(self, start: str | int, end: str | int, step: str | int = 1) -> Iterator[str]:
        """A loop; gives the name of its index."""
        before, head = self.block, self.fresh("loop")
        body, done = self.fresh("body"), self.fresh("done")
        self.do(f"br label %{head}")
        self.label(head)
        index, following = f"%{head}.i", f"%{head}.next"
        place = len(self.lines)
        self.lines.append("")
        more = self.put(f"icmp slt i64 {index}, {end}")
        self.do(f"br i1 {more}, label %{body}, label %{done}")
        self.label(body)
        yield index
        self.lines.append(f"  {following} = add i64 {index}, {step}")
        latch = self.block
        self.do(f"br label %{head}")
        self.lines[place] = f"  {index} = phi i64 [{start}, %{before}], [{following}, %{latch}]"
        self.label(done)

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """What is done where a condition holds."""
        yes, done = self.fresh("yes"), self.fresh("done")
        self.do(f"br i1 {condition}, label %{yes}, label %{done}")
        self.label(yes)
        yield
        self.do(f"br label %{done}")
        self.label(done)

    # --- numbers -----------------------------------------------------------------------------

    def add(self, a: str | int, b: str | int) -> str:
        """A sum of integers."""
        return self.put(f"add i64 {a}, {b}")

    def sub(self, a: str | int, b: str | int) -> str:
        """A difference of integers."""
        return self.put(f"sub i64 {a}, {b}")

    def mul(self, a: str | int, b: str | int) -> str:
        """A product of integers."""
        return self.put(f"mul i64 {a}, {b}")

    def div(self, a: str | int, b: str | int) -> str:
        """A quotient of integers that are not negative."""
        return self.put(f"sdiv i64 {a}, {b}")

    def rem(self, a: str | int, b: str | int) -> str:
        """The rest of a division of integers that are not negative."""
        return self.put(f"srem i64 {a}, {b}")

    def least(self, a: str | int, b: str | int) -> str:
        """The smaller of two integers."""
        return self.put(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def most(self, a: str | int, b: str | int) -> str:
        """The larger of two integers."""
        return self.put(f"call i64 @llvm.smax.i64(i64 {a}, i64 {b})")

    def test(self, how: str, a: str | int, b: str | int) -> str:
        """A comparison of integers, as `slt`."""
        return self.put(f"icmp {how} i64 {a}, {b}")

    # --- memory ------------------------------------------------------------------------------

    def at(self, kind: str, pointer: str, offset: str | int) -> str:
        """The address of an element."""
        return self.put(f"getelementptr {kind}, ptr {pointer}, i64 {offset}")

    def number(self, table: str, place: str | int) -> str:
        """An integer of a table."""
        return self.put(f"load i64, ptr {self.at('i64', table, place)}")

    def buffer(self, place: int) -> str:
        """The address of a buffer of the call."""
        return self.put(f"load ptr, ptr {self.at('ptr', '%buffers', place)}")

    def copy(self, target: str, source: str, count: str) -> None:
        """Copy so many bytes."""
        self.do(
            f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {count}, i1 false)"
        )

    def clear(self, target: str, count: str) -> None:
        """Fill so many bytes with zeros."""
        self.do(f"call void @llvm.memset.p0.i64(ptr {target}, i8 0, i64 {count}, i1 false)")

    def memory(self, count: str | int) -> tuple[str, str]:
        """So many bytes that begin a line of cache, and what is to be freed."""
        wanted = self.add(count, 128)
        whole = self.put(f"call ptr @malloc(i64 {wanted})")
        up = self.add(self.put(f"ptrtoint ptr {whole} to i64"), 63)
        return self.put(f"inttoptr i64 {self.put(f'and i64 {up}, -64')} to ptr"), whole

    def free(self, pointer: str) -> None:
        """Give memory back."""
        self.do(f"call void @free(ptr {pointer})")


def declarations(dtype: DType, lanes: int) -> list[str]:
    """What functions of a dtype call."""
    kind = Type(dtype, lanes)
    lines = [
        "declare ptr @malloc(i64)",
        "declare void @free(ptr)",
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
        "declare i64 @llvm.smin.i64(i64, i64)",
        "declare i64 @llvm.smax.i64(i64, i64)",
        f"declare {kind.text} @llvm.fma.{kind.suffix}({', '.join([kind.text] * 3)})",
    ]
    if lanes > 1:
        given = f"ptr, i32, {kind.mask}, {kind.text}"
        lines.append(f"declare {kind.text} @llvm.masked.load.{kind.suffix}.p0({given})")
        given = f"{kind.text}, ptr, i32, {kind.mask}"
        lines.append(f"declare void @llvm.masked.store.{kind.suffix}.p0({given})")
    return lines
