"""Kernels that wait for nothing of each other as one launch: its blocks are those of all of them.

A launch of few elements takes some microseconds of a card that is mostly idle, and the updates of a
model's parameters are one for each. Here the grid has the blocks of every member, one member behind
the other. A block finds its member by halving (each begins at a block that is a parameter), takes
that member's pointers and sizes, and does what it would have done alone, so that the bits are
the same. Members of one kernel share its code. There is no table in memory: pointers are parameters
of the launch, of which there may be 4 KiB.

>>> from weft.core.dtypes import float32
>>> from weft.ir.loops import For, Store
>>> from weft.ir.scalars import Buffer, index, size
>>> x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
>>> copy = Kernel("copy", (x, y), ("n",), (For(i, size("n"), (Store(y, i, x[i]),),
...                                            "parallel vector"),))
>>> group = GroupedKernel((copy,), (Member(0, (0, 1, 2)), Member(0, (3, 4, 2))), "ppipp")
>>> group.text().count("store"), group.text().count("%start1")
(2, 3)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from weft.compiler.targets.cuda.device_text import DeviceBuilder
from weft.compiler.targets.cuda.emit import DeviceEmitter, device_module, scratch_bytes, symbol
from weft.compiler.targets.cuda.machine import card
from weft.compiler.targets.cuda.schedule import Schedule, schedule
from weft.compiler.targets.cuda.splitting import split_kernel
from weft.core.records import frozen
from weft.ir.loops import Kernel

MOST_WORDS = 500
"""Parameters of a launch, of 8 bytes each: every driver takes 4 KiB of them."""
MOST_KERNELS = 12
"""Different kernels in a group at most: each is compiled with every group that it is in."""
_KINDS = {"p": "ptr addrspace(1)", "i": "i64"}


@frozen
class Member:
    """A launch in a group: the number of its kernel, and where its parameters are.

    First its buffers, then its sizes, by number among the parameters of the group.
    """

    kernel: int
    parameters: tuple[int, ...]


@frozen(slots=False)
class GroupedKernel:
    """Launches as one: their kernels, each once, the launches, and what the parameters are.

    Members of one kernel follow one another. `kinds` has a letter for each parameter: a pointer or
    an integer. Behind them stand the first blocks of all members but the first.
    """

    kernels: tuple[Kernel, ...]
    members: tuple[Member, ...]
    kinds: str

    @property
    def name(self) -> str:
        """The name of the function."""
        return symbol("k0")

    def text(self) -> str:
        """The module of the group's function in LLVM's language."""
        plans = [
            schedule(replace(kernel, name=f"part{number}"))
            for number, kernel in enumerate(self.kernels)
        ]
        kinds = [f"{_KINDS[kind]} %given{place}" for place, kind in enumerate(self.kinds)]
        starts = [f"i64 %start{number}" for number in range(1, len(self.members))]
        out = DeviceBuilder(self.name, [*kinds, *starts], plans[0].block, blocks=0)
        own = [
            [place for place, member in enumerate(self.members) if member.kernel == number]
            for number in range(len(plans))
        ]
        emitters: list[DeviceEmitter] = []
        firsts = {places[0]: number for number, places in enumerate(own)}

        def run_kernel(first: int) -> None:
            number = firsts[first]
            emitters.append(self._run_kernel(out, plans[number], own[number]))

        _find_member(out, sorted(firsts), run_kernel)
        # Memory of a thread, and what all kernels read instead of elements that are not there.
        out.text[:0] = [*emitters[0].entry, *(x for each in emitters[1:] for x in each.entry[2:])]
        return device_module(emitters, [out.definition], card())

    def _run_kernel(self, out: DeviceBuilder, plan: Schedule, own: list[int]) -> DeviceEmitter:
        """Write a kernel for the blocks of its members, each with its own parameters."""
        given = [out.variable(f"%given{place}") for place in self.members[own[0]].parameters]
        block = out.variable(out.block_number)

        def take_parameters(member: int) -> None:
            for variable, place in zip(given, self.members[member].parameters, strict=True):
                variable.value = f"%given{place}"
            first = f"%start{member}" if member else 0
            block.value = out.sub(out.block_number, first)
            out.leave()

        with out.repeat():  # which each of the ways leaves: they meet behind it
            _find_member(out, own, take_parameters)
        emitter = DeviceEmitter(plan, card(), out.function, [each.value for each in given])
        out.text += emitter.run_block(f"trunc i64 {block.value} to i32")
        out.give()
        return emitter


def _find_member(out: DeviceBuilder, members: Sequence[int], found: Callable[[int], None]) -> None:
    """Lead a block, by halving, to the last of these members that does not begin behind it."""
    if len(members) == 1:
        found(members[0])
        return
    middle = len(members) // 2
    is_before = out.test("slt", out.block_number, f"%start{members[middle]}")
    with out.choose(is_before) as (before, after):
        with before:
            _find_member(out, members[:middle], found)
        with after:
            _find_member(out, members[middle:], found)


def layout_in_group(kernel: Kernel) -> Schedule | None:
    """A kernel laid out as a part of a group; None where it needs several launches or memory."""
    parts = split_kernel(kernel).kernels
    plan = schedule(parts[0]) if len(parts) == 1 else None
    return None if plan is None or scratch_bytes(plan) is None else plan


@frozen
class GroupedLaunch:
    """A launch that may be joined: its kernel, laid out, and cells with its buffers and sizes."""

    plan: Schedule
    buffers: tuple[int, ...]
    sizes: tuple[int, ...]
    blocks: int

    @property
    def kernel(self) -> Kernel:
        """What it runs."""
        return self.plan.kernel


@frozen
class Group:
    """Launches that are joined, and the cells of the parameters that they share.

    `starts` has the first block of each member but the first.
    """

    kernel: GroupedKernel
    cells: tuple[int, ...]
    starts: tuple[int, ...]
    blocks: int
    threads: int


def join_launches(launches: Sequence[GroupedLaunch]) -> list[Group]:
    """Launches as few groups: of blocks of as many threads, and of parameters that fit."""
    groups: list[Group] = []
    by_threads: dict[int, list[GroupedLaunch]] = {}
    for launch in launches:
        by_threads.setdefault(launch.plan.block, []).append(launch)
    for alike in by_threads.values():
        waiting: list[GroupedLaunch] = []
        for launch in alike:
            if waiting and not _fits([*waiting, launch]):
                groups.append(_group(waiting))
                waiting = []
            waiting.append(launch)
        groups.append(_group(waiting))
    return groups


def _fits(launches: Sequence[GroupedLaunch]) -> bool:
    cells = {cell for launch in launches for cell in (*launch.buffers, *launch.sizes)}
    kernels = {launch.kernel.digest for launch in launches}
    return len(cells) + len(launches) <= MOST_WORDS and len(kernels) <= MOST_KERNELS


def _group(launches: Sequence[GroupedLaunch]) -> Group:
    cells: dict[int, int] = {}
    kinds: list[str] = []
    kernels: dict[str, tuple[int, Kernel]] = {}
    for launch in launches:
        kernels.setdefault(launch.kernel.digest, (len(kernels), launch.kernel))
    launches = sorted(launches, key=lambda launch: kernels[launch.kernel.digest][0])
    members: list[Member] = []
    for launch in launches:
        for kind, given in (("p", launch.buffers), ("i", launch.sizes)):
            for cell in given:
                if cell not in cells:
                    cells[cell] = len(cells)
                    kinds.append(kind)
        places = [cells[cell] for cell in (*launch.buffers, *launch.sizes)]
        members.append(Member(kernels[launch.kernel.digest][0], tuple(places)))
    kernel = GroupedKernel(
        tuple(each for _, each in kernels.values()), tuple(members), "".join(kinds)
    )
    *starts, blocks = accumulate(launch.blocks for launch in launches)
    return Group(kernel, tuple(cells), tuple(starts), blocks, launches[0].plan.block)
