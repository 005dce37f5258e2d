"""The one way to write LLVM IR: a function as a Python program, `with` for each loop and condition.

A value is its name, of which the builder knows the type. A variable is assigned anew along the way;
where ways meet, the builder writes the phi nodes. A struct names the fields of memory, and a record
reads and writes them.

>>> function = IRBuilder("total", ("ptr %numbers", "i64 %count"), public=True, result="i64")
>>> numbers, count = function.parameters
>>> total = function.variable(0)
>>> with function.loop(0, count) as i:
...     total.value = function.add(total.value, function.number(numbers, i))
>>> function.give(total.value)
>>> print(function.definition)
define i64 @"weft.total"(ptr %numbers, i64 %count) nounwind {
entry:
  br label %loop0
loop0:
  %loop0.0 = phi i64 [0, %entry], [%v6, %go3]
  %loop0.1 = phi i64 [0, %entry], [%v7, %go3]
  %v2 = icmp slt i64 %loop0.1, %count
  br i1 %v2, label %go3, label %done1
go3:
  %v4 = getelementptr i64, ptr %numbers, i64 %loop0.1
  %v5 = load i64, ptr %v4
  %v6 = add i64 %loop0.0, %v5
  %v7 = add i64 %loop0.1, 1
  br label %loop0
done1:
  ret i64 %loop0.0
}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count

from weft.compiler.targets.llvm.ir_types import Type, element, vector_text

_TYPE = re.compile(r"^(?:<[^>]*>|\S+)")
KERNEL = ("ptr %buffers", "ptr %sizes", "i64 %begin", "i64 %end")
"""The parameters of a function that a program calls."""


NULL, TRUE, FALSE = "null", "true", "false"
Operand = str | int
"""A value's name, or a number. One whose type the builder does not know may have it in front."""


@dataclass
class Function:
    """What the lines of one function share: the counter of names, and what must be declared."""

    numbers: count[int] = field(default_factory=count)
    externals: set[tuple[str, int, int]] = field(default_factory=set)
    """Functions of the C library that are called: name, arity, width."""
    tables: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Tables of float32 numbers that are read, by their names."""


@dataclass
class Lines:
    """Instructions in order; each value gets a name of its own."""

    function: Function
    text: list[str] = field(default_factory=list)

    def put(self, instruction: str) -> str:
        """Append an instruction; the name of its value."""
        name = f"%v{next(self.function.numbers)}"
        self.text.append(f"  {name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        """Append an instruction without a value."""
        self.text.append(f"  {instruction}")

    def label(self, name: str) -> None:
        """Begin a block; the one before must have ended."""
        self.text.append(f"{name}:")

    def fresh(self, stem: str) -> str:
        """A new name for a block."""
        return f"{stem}{next(self.function.numbers)}"

    def splat(self, name: str, kind: Type) -> str:
        """A vector with one scalar in each lane."""
        if kind.width == 1:
            return name
        one = self.put(f"insertelement {kind.text} poison, {element(kind.dtype)} {name}, i64 0")
        mask = vector_text("i32", kind.width)
        return self.put(
            f"shufflevector {kind.text} {one}, {kind.text} poison, {mask} zeroinitializer"
        )


class Struct:
    """Fields in memory, laid out as C does: `Struct("ptr function, i64 count")`."""

    def __init__(self, fields: str) -> None:
        pairs = [each.rsplit(maxsplit=1) for each in fields.split(",")]
        self.kinds = [kind.strip() for kind, _ in pairs]
        self.names = tuple([name for _, name in pairs])
        self.text = f"{{ {', '.join(self.kinds)} }}"

    def kind(self, name: str) -> str:
        """The type of a field."""
        return self.kinds[self.names.index(name)]


class LocalVariable:
    """A value that is assigned anew along the way."""

    def __init__(self, start: str, kind: str) -> None:
        self.value, self.kind = start, kind


Jump = tuple[str, list[str]]
"""The block that a jump comes from, and what each variable is there."""


@dataclass
class _Loop:
    """The blocks at the head of a loop and behind it, and the jumps there."""

    head: str
    done: str
    exits: list[Jump] = field(default_factory=list)
    back: Jump | None = None


class IRBuilder(Lines):
    """The text of one function; `public` ones are found as `weft.name`.

    may_unwind: whether what it calls may leave through it: code of others, or a thread that ends.
    may_inline: whether an optimiser may put the text of an internal one where it is called.
    """

    def __init__(
        self, name: str, parameters: Sequence[str] = (), *, public: bool = False,
        result: str = "void", may_unwind: bool = False, may_inline: bool = False,
        attributes: str = "",
    ) -> None:  # fmt: skip
        super().__init__(Function())
        self.result = result
        self.symbol = f'@"weft.{name}"' if public else f"@{name}"
        noinline = "" if public or may_inline else "noinline"
        words = ["" if may_unwind else "nounwind", noinline, attributes]
        tail = " ".join([word for word in words if word] + ["{"])
        linkage = "" if public else "internal "
        self.head = f"define {linkage}{result} {self.symbol}({', '.join(parameters)}) {tail}"
        pairs = [each.rsplit(maxsplit=1) for each in parameters]
        self.parameters = [text for _, text in pairs]
        self.kinds = {NULL: "ptr", TRUE: "i1", FALSE: "i1"} | {text: kind for kind, text in pairs}
        self.declared: set[str] = set()
        self.block = "entry"
        self.variables: list[LocalVariable] = []
        self._loops: list[_Loop] = []
        self._unchanged: dict[str, str] = {}

    @property
    def definition(self) -> str:
        """The finished function."""
        end = ["  ret void"] if self.block else []
        text = "\n".join([self.head, "entry:", *filter(None, self.text), *end, "}"])
        return re.sub(r"%loop\d+\.\d+", lambda found: self._unchanged_value(found[0]), text)

    def put(self, instruction: str, kind: str = "i64") -> str:
        """Append an instruction; the name of its value, which is of a type."""
        name = f"%v{next(self.function.numbers)}"
        self.text.append(f"  {name} = {instruction}")
        if kind != "i64":
            self.kinds[name] = kind
        return name

    def kind(self, *operands: Operand) -> str:
        """The type of operands: that of the first one which is not an integer of 64 bits."""
        for each in operands:
            if not isinstance(each, int) and (each in self.kinds or each[0] == "@"):
                return self.kinds.get(each, "ptr")
        return "i64"

    # --- control flow ----------------------------------------------------------------------------

    def label(self, name: str) -> None:
        """Begin a block; the one before must have ended."""
        super().label(name)
        self.block = name

    def variable(self, start: Operand, kind: str | None = None) -> LocalVariable:
        """A value that loops and conditions from here on may change."""
        self.variables.append(LocalVariable(str(start), kind or self.kind(start)))
        return self.variables[-1]

    @contextmanager
    def loop(self, start: Operand, end: Operand, step: Operand = 1) -> Iterator[str]:
        """A loop from a number to below another one; gives the index."""
        index = self.variable(start)
        with self.repeat():
            now = index.value
            self.leave_unless(self.test("slt", now, end))
            yield now
            if self.block:
                index.value = self.add(now, step)
        self.variables.remove(index)

    @contextmanager
    def groups(self, position: LocalVariable, count: int, end: Operand) -> Iterator[str]:
        """A loop over whole groups of so many, from a position on; gives the first of each."""
        with self.repeat():
            first, behind = position.value, self.add(position.value, count)
            self.leave_unless(self.test("sle", behind, end))
            yield first
            position.value = behind

    @contextmanager
    def repeat(self) -> Iterator[None]:
        """A loop that `leave` and `give` alone end."""
        head, done, before = self.fresh("loop"), self.fresh("done"), self._jump_from_here()
        self._jump(head)
        self.label(head)
        # Which variables the body changes is known after it: lines for their phi nodes stay free.
        first, known = len(self.text), list(self.variables)
        self.text += [""] * len(known)
        for number, variable in enumerate(known):
            variable.value = f"%{head}.{number}"
            self.kinds[variable.value] = variable.kind
        phis = [variable.value for variable in known]
        loop = _Loop(head, done)
        self._loops.append(loop)
        yield
        after = loop.back or self._jump_from_here()
        for number, phi in enumerate(phis):
            start, last = before[1][number], self._unchanged_value(after[1][number])
            if not after[0] or last == phi:
                self._unchanged[phi] = start
            else:
                ways = f"[{start}, %{before[0]}], [{last}, %{after[0]}]"
                self.text[first + number] = f"  {phi} = phi {self.kinds[phi]} {ways}"
        self._jump(head)
        self._loops.pop()
        self._meet(done, loop.exits, len(known))

    def leave(self) -> None:
        """Go on behind the innermost loop."""
        self._loops[-1].exits.append(self._jump_from_here())
        self._jump(self._loops[-1].done)

    def leave_unless(self, condition: str) -> None:
        """Go on behind the innermost loop where a condition does not hold."""
        loop, following = self._loops[-1], self.fresh("go")
        loop.exits.append(self._jump_from_here())
        self.do(f"br i1 {condition}, label %{following}, label %{loop.done}")
        self.label(following)

    def again_if(self, condition: str) -> None:
        """End the innermost loop's body: go round again where a condition holds."""
        loop = self._loops[-1]
        loop.back = self._jump_from_here()
        loop.exits.append(loop.back)
        self.do(f"br i1 {condition}, label %{loop.head}, label %{loop.done}")
        self.block = ""

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """What is done where a condition holds."""
        yes, done, ways = self.fresh("yes"), self.fresh("done"), [self._jump_from_here()]
        self.do(f"br i1 {condition}, label %{yes}, label %{done}")
        self.label(yes)
        yield
        self._join(done, ways)
        self._meet(done, ways, len(ways[0][1]))

    def unless(self, condition: str) -> AbstractContextManager[None]:
        """What is done where a condition does not hold."""
        return self.when(self.put(f"xor i1 {condition}, true", "i1"))

    @contextmanager
    def choose(
        self, condition: str
    ) -> Iterator[tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
        """What is done where a condition holds, and where it does not: two blocks in that order."""
        yes, no, done = self.fresh("yes"), self.fresh("no"), self.fresh("done")
        values, ways = self._jump_from_here()[1], list[Jump]()
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")

        @contextmanager
        def branch(name: str) -> Iterator[None]:
            self._restore(values)
            self.label(name)
            yield
            self._join(done, ways)

        yield branch(yes), branch(no)
        self._meet(done, ways, len(values))

    def give(self, value: Operand | None = None) -> None:
        """Return from the function."""
        self.do("ret void" if value is None else f"ret {self.result} {value}")
        self.block = ""

    def _jump_from_here(self) -> Jump:
        return self.block, [variable.value for variable in self.variables]

    def _jump(self, target: str) -> None:
        """End the block, unless it has ended."""
        if self.block:
            self.do(f"br label %{target}")
        self.block = ""

    def _join(self, done: str, ways: list[Jump]) -> None:
        """Go to where ways meet, unless the block has ended."""
        if self.block:
            ways.append(self._jump_from_here())
        self._jump(done)

    def _meet(self, name: str, ways: list[Jump], known: int) -> None:
        """Begin the block that ways lead to, with phi nodes for variables that differ on them."""
        if not ways:
            return
        self.label(name)
        self._restore(ways[0][1][:known])
        for number, variable in enumerate(self.variables):
            given = [(self._unchanged_value(values[number]), block) for block, values in ways]
            if len({text for text, _ in given}) > 1:
                pairs = ", ".join(f"[{text}, %{block}]" for text, block in given)
                variable.value = self.put(f"phi {variable.kind} {pairs}", variable.kind)

    def _restore(self, values: Sequence[str]) -> None:
        del self.variables[len(values) :]
        for variable, value in zip(self.variables, values, strict=True):
            variable.value = value

    def _unchanged_value(self, name: str) -> str:
        """A value, or the one that a variable had before loops that do not change it."""
        while name in self._unchanged:
            name = self._unchanged[name]
        return name

    # --- numbers ---------------------------------------------------------------------------------

    def combine(self, how: str, a: Operand, b: Operand) -> str:
        """An instruction of two operands, as `and` or `lshr`."""
        kind = self.kind(a, b)
        return self.put(f"{how} {kind} {a}, {b}", kind)

    def add(self, a: Operand, b: Operand) -> str:
        """A sum of integers."""
        return self.combine("add", a, b)

    def sub(self, a: Operand, b: Operand) -> str:
        """A difference of integers."""
        return self.combine("sub", a, b)

    def mul(self, a: Operand, b: Operand) -> str:
        """A product of integers."""
        return self.combine("mul", a, b)

    def count_up(self, number: str) -> str:
        """One more, in a count that cannot overflow."""
        return self.put(f"add nuw nsw i64 {number}, 1")

    def div(self, a: Operand, b: Operand) -> str:
        """A quotient of integers that are not negative."""
        return self.combine("sdiv", a, b)

    def rem(self, a: Operand, b: Operand) -> str:
        """The rest of a division of integers that are not negative."""
        return self.combine("srem", a, b)

    def least(self, a: Operand, b: Operand) -> str:
        """The smaller of two integers."""
        return self.call("llvm.smin.i64", a, b, result="i64")

    def most(self, a: Operand, b: Operand) -> str:
        """The larger of two integers."""
        return self.call("llvm.smax.i64", a, b, result="i64")

    def test(self, how: str, a: Operand, b: Operand) -> str:
        """A comparison, as `slt`."""
        return self.put(f"icmp {how} {self.kind(a, b)} {a}, {b}", "i1")

    def select(self, condition: str, yes: Operand, no: Operand) -> str:
        """One of two values."""
        kind = self.kind(yes, no)
        return self.put(f"select i1 {condition}, {kind} {yes}, {kind} {no}", kind)

    def convert(self, how: str, value: str, kind: str) -> str:
        """A value of another type, as by `trunc`."""
        return self.put(f"{how} {self.kind(value)} {value} to {kind}", kind)

    # --- memory ----------------------------------------------------------------------------------

    def at(self, kind: str, pointer: str, offset: Operand) -> str:
        """The address of an element."""
        return self.put(f"getelementptr {kind}, ptr {pointer}, i64 {offset}", "ptr")

    def load(self, kind: str, pointer: str, align: int | None = None) -> str:
        """What is at an address; aligned as its type is, unless it is said otherwise."""
        tail = "" if align is None else f", align {align}"
        return self.put(f"load {kind}, ptr {pointer}{tail}", kind)

    def store(
        self, value: Operand, pointer: str, kind: str | None = None, align: int | None = None
    ) -> None:
        """Write to an address; aligned as its type is, unless it is said otherwise."""
        tail = "" if align is None else f", align {align}"
        self.do(f"store {kind or self.kind(value)} {value}, ptr {pointer}{tail}")

    def number(self, table: str, place: Operand) -> str:
        """An integer of a table."""
        return self.load("i64", self.at("i64", table, place))

    def pointer(self, table: str, place: Operand) -> str:
        """An address of a table."""
        return self.load("ptr", self.at("ptr", table, place))

    def buffer(self, place: Operand) -> str:
        """The address of a buffer of the call."""
        return self.pointer("%buffers", place)

    def record(self, struct: Struct, pointer: str, index: Operand | None = None) -> Record:
        """The struct at an address, or one of an array of them."""
        return Record(
            self, struct, pointer if index is None else self.at(struct.text, pointer, index)
        )

    def room(self, kind: str, count: Operand = 1, align: int = 8) -> str:
        """Memory on the stack."""
        return self.put(f"alloca {kind}, i64 {count}, align {align}", "ptr")

    def copy(self, target: str, source: str, count: Operand) -> None:
        """Copy so many bytes."""
        self.call("llvm.memcpy.p0.p0.i64", f"ptr {target}", f"ptr {source}", count, FALSE)

    def clear(self, target: str, count: Operand) -> None:
        """Fill so many bytes with zeros."""
        self.call("llvm.memset.p0.i64", f"ptr {target}", "i8 0", count, FALSE)

    def prefetch(self, pointer: str) -> None:
        """Ask for a line of cache that is read soon."""
        self.call("llvm.prefetch.p0", f"ptr {pointer}", "i32 0", "i32 3", "i32 1")

    def memory(self, count: Operand) -> tuple[str, str]:
        """So many bytes that begin a line of cache, and what is to be freed."""
        whole = self.call("malloc", self.add(count, 128), result="ptr")
        up = self.add(self.convert("ptrtoint", whole, "i64"), 63)
        return self.convert("inttoptr", self.combine("and", up, -64), "ptr"), whole

    def free(self, pointer: str) -> None:
        """Give memory back."""
        self.call("free", f"ptr {pointer}")

    # --- atomics ---------------------------------------------------------------------------------

    def load_atomic(self, pointer: str, order: str) -> str:
        """The word at an address, read at once, in a memory order."""
        return self.put(f"load atomic i64, ptr {pointer} {order}, align 8")

    def store_atomic(self, value: Operand, pointer: str, order: str) -> None:
        """Write a word at once, in a memory order."""
        self.do(f"store atomic i64 {value}, ptr {pointer} {order}, align 8")

    def fetch(self, how: str, pointer: str, value: Operand, order: str) -> str:
        """Change a word at once, as by `add`; what it was before."""
        return self.put(f"atomicrmw {how} ptr {pointer}, i64 {value} {order}")

    def exchange(self, pointer: str, old: Operand, new: Operand, order: str) -> tuple[str, str]:
        """Write a word at once if it is the old one; what it was, and whether it was that.

        The order is that of a success; a failure is monotonic.
        """
        pair = self.put(f"cmpxchg ptr {pointer}, i64 {old}, i64 {new} {order} monotonic")
        kinds = enumerate(("i64", "i1"))
        found, is_old = (self.put(f"extractvalue {{ i64, i1 }} {pair}, {n}", k) for n, k in kinds)
        return found, is_old

    # --- calls -----------------------------------------------------------------------------------

    def call(self, function: IRBuilder | str, *operands: Operand, result: str = "void") -> str:
        """Call a function of the module, one at an address, or one that is declared by its name."""
        given = [self._typed_operand(operand) for operand in operands]
        if isinstance(function, IRBuilder):
            result, function = function.result, function.symbol
        elif function[0] not in "%@":
            kinds = ", ".join(_TYPE.findall(each)[0] for each in given)
            self.declared.add(f"declare {result} @{function}({kinds})")
            function = f"@{function}"
        text = f"call {result} {function}({', '.join(given)})"
        if result != "void":
            return self.put(text, result)
        self.do(text)
        return ""

    def _typed_operand(self, operand: Operand) -> str:
        has_type = not isinstance(operand, int) and " " in operand
        return str(operand) if has_type else f"{self.kind(operand)} {operand}"


class Record:
    """A struct in memory: `record["name"]` reads a field, and an assignment writes it."""

    def __init__(self, builder: IRBuilder, struct: Struct, pointer: str) -> None:
        self.builder, self.struct, self.pointer = builder, struct, pointer

    def address(self, name: str) -> str:
        """Where a field is."""
        place = self.struct.names.index(name)
        text = f"getelementptr {self.struct.text}, ptr {self.pointer}, i64 0, i32 {place}"
        return self.builder.put(text, "ptr")

    def __getitem__(self, name: str) -> str:
        """Read a field."""
        return self.builder.load(self.struct.kind(name), self.address(name))

    def __setitem__(self, name: str, value: Operand) -> None:
        """Write a field."""
        self.builder.store(value, self.address(name), self.struct.kind(name))

    def all(self, *names: str) -> list[str]:
        """Read several fields, in the order of their names."""
        return [self[name] for name in names]


def module_text(*parts: IRBuilder | str) -> str:
    """A module of functions, and of other definitions, with declarations of what they call."""
    functions = [part for part in parts if isinstance(part, IRBuilder)]
    declared = sorted(set[str]().union(*(each.declared for each in functions)))
    texts = [part if isinstance(part, str) else part.definition for part in parts]
    return "\n".join([*declared, *texts, ""])
