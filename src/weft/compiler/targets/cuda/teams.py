"""What the threads of a team do together: know their lanes, wait, and combine accumulators.

**Order of accumulation.** A team of t threads that take w neighbours each has t·w partial results:
element i goes to partial i mod t·w, in ascending order. Partials are combined as a tree. With w up
to 2 a warp's tree is the loop language's own: l with l+32, then with l+16, down to l+1; so that
rows of one warp have the bits that they have on the CPU. Otherwise a thread combines its own first,
then the lanes of a warp, then the warps. The order depends on the row's length only.
"""

from __future__ import annotations

from weft.compiler.targets.cuda.machine import WARP
from weft.compiler.targets.cuda.values import DeviceValues
from weft.compiler.targets.llvm.instructions import TABLE
from weft.compiler.targets.llvm.ir_builder import Lines
from weft.compiler.targets.llvm.ir_types import Type
from weft.core.dtypes import float32
from weft.ir.loops import Update

DECLARATIONS = (
    "declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
    "declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()",
    "declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32) convergent",
    "declare void @llvm.nvvm.bar.warp.sync(i32) convergent",
    "declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) convergent",
)
ALL = "i32 -1"


class Team:
    """The threads that run an iteration together: one, a warp or a part of it, or a block."""

    def __init__(self, values: DeviceValues, size: int, name: str) -> None:
        self.values, self.size, self.name = values, size, name
        self.lane = self.number = ""
        self._bases: dict[tuple[int, int], str] = {}
        self._exchanges = False

    def enter(self, thread: str) -> None:
        """Find this thread's lane, its team's number in the block, and who leads."""
        lines = self.values.lines
        own = lines.put(f"and i32 {thread}, {self.size - 1}")
        self.lane = lines.put(f"zext i32 {own} to i64")
        self.values.leader = lines.put(f"icmp eq i32 {own}, 0")
        number = lines.put(f"lshr i32 {thread}, {self.size.bit_length() - 1}")
        self.number = lines.put(f"zext i32 {number} to i64")

    def base(self, width: int, start: int) -> str:
        """The first of a thread's elements of a step; found once, where the function begins."""
        key = (width, start)
        if key not in self._bases:
            lines = self.values.scopes[0].lines
            own = self.lane
            if width > 1:
                own = lines.put(f"mul i64 {own}, {width}")
            self._bases[key] = lines.put(f"add i64 {own}, {start}") if start else own
        return self._bases[key]

    def wait(self) -> None:
        """No thread goes on before all are here, and see what the others have written."""
        lines = self.values.lines
        if self.size <= WARP:
            lines.do(f"call void @llvm.nvvm.bar.warp.sync({ALL})")
        else:
            lines.do("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")

    def globals(self) -> list[str]:
        """The shared memory through which warps combine their results."""
        if not self._exchanges:
            return []
        kind = f"[{WARP} x i64]"
        return [f'@"{self.name}.warps" = internal addrspace(3) global {kind} poison, align 16']

    def combine_threads(self, update: Update, name: str, width: int) -> str:
        """The partial results of all threads made one, which every thread then has."""
        kind = Type(update.variable.dtype, width)
        if width > 2:
            name, kind = self._in_thread(update, kind, name)
        distance = min(WARP, self.size) // 2
        while distance:
            other = self._from_lane(kind, name, distance)
            name = self._combine(update, kind, name, other)
            distance //= 2
        name, kind = self._in_thread(update, kind, name)
        return self._across_warps(update, kind, name) if self.size > WARP else name

    def _combine(self, update: Update, kind: Type, x: str, y: str) -> str:
        return TABLE[update.combine](self.values.lines, kind, x, y)

    def _in_thread(self, update: Update, kind: Type, name: str) -> tuple[str, Type]:
        lines = self.values.lines
        parts = [name]
        if kind.width > 1:
            parts = [
                lines.put(f"extractelement {kind.text} {name}, i64 {lane}")
                for lane in range(kind.width)
            ]
        one = Type(kind.dtype)
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self._combine(update, one, parts[k], parts[k + half]) for k in range(half)]
        return parts[0], one

    def _from_lane(self, kind: Type, name: str, distance: int) -> str:
        """The value of the lane whose number differs in one bit."""
        lines = self.values.lines
        if kind.width == 1:
            return _shuffle(lines, kind, name, distance)
        found = "poison"
        one = Type(kind.dtype)
        for lane in range(kind.width):
            part = lines.put(f"extractelement {kind.text} {name}, i64 {lane}")
            moved = _shuffle(lines, one, part, distance)
            found = lines.put(f"insertelement {kind.text} {found}, {one.text} {moved}, i64 {lane}")
        return found

    def _across_warps(self, update: Update, kind: Type, name: str) -> str:
        """Each warp's result through shared memory, and then the same tree in every warp."""
        self._exchanges = True
        lines, warps = self.values.lines, self.size // WARP
        place = f'ptr addrspace(3) @"{self.name}.warps"'
        memory = kind.memory
        warp, lane = (
            lines.put(f"lshr i64 {self.lane}, 5"),
            lines.put(f"and i64 {self.lane}, {warps - 1}"),
        )
        stored = name if kind.text == memory else lines.put(f"zext {kind.text} {name} to {memory}")
        self.wait()  # nobody reads what was there before
        target = lines.put(f"getelementptr i64, {place}, i64 {warp}")
        lines.do(f"store {memory} {stored}, ptr addrspace(3) {target}, align 8")
        self.wait()
        source = lines.put(f"getelementptr i64, {place}, i64 {lane}")
        found = lines.put(f"load {memory}, ptr addrspace(3) {source}, align 8")
        if kind.text != memory:
            found = lines.put(f"trunc {memory} {found} to {kind.text}")
        distance = warps // 2
        while distance:
            found = self._combine(update, kind, found, _shuffle(lines, kind, found, distance))
            distance //= 2
        return found


class ColumnTeam(Team):
    """One thread of each warp of a block, by lane: warps read neighbours, and share each column.

    Partial results lie in shared memory, a row for each warp, and are combined as a tree: those of
    warp w with those of warp w + half as many as there are, and so on.
    """

    def enter(self, thread: str) -> None:
        """See `Team`: the lane in the team is the warp, the team's number the lane in the warp."""
        lines = self.values.lines
        own = lines.put(f"lshr i32 {thread}, 5")
        self.lane = lines.put(f"zext i32 {own} to i64")
        self.values.leader = lines.put(f"icmp eq i32 {own}, 0")
        number = lines.put(f"and i32 {thread}, {WARP - 1}")
        self.number = lines.put(f"zext i32 {number} to i64")

    def wait(self) -> None:
        """See `Team`: all threads of the block."""
        self.values.lines.do("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")

    def globals(self) -> list[str]:
        """See `Team`."""
        kind = f"[{self.size * WARP} x i64]"
        return [f'@"{self.name}.columns" = internal addrspace(3) global {kind} poison, align 16']

    def combine_threads(self, update: Update, name: str, width: int) -> str:
        """See `Team`."""
        lines, kind = self.values.lines, Type(update.variable.dtype)
        memory, shared = kind.memory, f'ptr addrspace(3) @"{self.name}.columns"'
        stored = name if kind.text == memory else lines.put(f"zext {kind.text} {name} to {memory}")
        self.wait()  # nobody reads what was there before
        row = lines.put(f"mul i64 {self.lane}, {WARP}")
        own = lines.put(f"add i64 {row}, {self.number}")
        target = lines.put(f"getelementptr {memory}, {shared}, i64 {own}")
        lines.do(f"store {memory} {stored}, ptr addrspace(3) {target}")
        self.wait()
        parts: list[str] = []
        for warp in range(self.size):
            place = lines.put(f"add i64 {self.number}, {warp * WARP}")
            source = lines.put(f"getelementptr {memory}, {shared}, i64 {place}")
            found = lines.put(f"load {memory}, ptr addrspace(3) {source}")
            narrow = f"trunc {memory} {found} to {kind.text}"
            parts.append(found if kind.text == memory else lines.put(narrow))
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self._combine(update, kind, parts[k], parts[k + half]) for k in range(half)]
        return parts[0]


def _shuffle(lines: Lines, kind: Type, name: str, distance: int) -> str:
    """A scalar of another lane, in parts of 32 bits."""
    bits = 1 if kind.text == "i1" else kind.dtype.bits
    whole = (
        name if kind.text.startswith("i") else lines.put(f"bitcast {kind.text} {name} to i{bits}")
    )
    if bits == 64:
        low = lines.put(f"trunc i64 {whole} to i32")
        up = lines.put(f"lshr i64 {whole}, 32")
        high = lines.put(f"trunc i64 {up} to i32")
        parts = [_exchange(lines, part, distance) for part in (low, high)]
        wide = [lines.put(f"zext i32 {part} to i64") for part in parts]
        raised = lines.put(f"shl i64 {wide[1]}, 32")
        found = lines.put(f"or i64 {raised}, {wide[0]}")
    elif bits == 32:
        found = _exchange(lines, whole, distance)
    else:
        wide_one = lines.put(f"zext i{bits} {whole} to i32")
        found = lines.put(f"trunc i32 {_exchange(lines, wide_one, distance)} to i{bits}")
    if kind.dtype is float32 or kind.text == "double":
        return lines.put(f"bitcast i{bits} {found} to {kind.text}")
    return found


def _exchange(lines: Lines, name: str, distance: int) -> str:
    function = "@llvm.nvvm.shfl.sync.bfly.i32"
    return lines.put(f"call i32 {function}({ALL}, i32 {name}, i32 {distance}, i32 31)")
