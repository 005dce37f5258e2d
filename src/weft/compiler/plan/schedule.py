"""The schedule: in which order the calls of a program run, and which of them run as one.

Calls that do not wait for each other are a *grouped launch*: one pass of the pool over all their
chunks. Updates of state, which nobody waits for, go to the end and are one grouped launch there.
The order is changed only where less memory is then live at once, and depends on nothing but the
program.

>>> tasks = [Task((), ("a",)), Task(("a",), ("b",)), Task(("a",), ("c",))]
>>> schedule(tasks, {"a": 64, "b": 64, "c": 64}, large=64.0)
[(0,), (1, 2)]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field

from weft.core.records import frozen

Launch = tuple[int, ...]
"""The tasks that run as one, by number."""

WINDOW = 8
"""How many launches a task may be moved forward to join another: what it moves past stays live, on
any machine."""
TOLERATED = 1.02
"""How much more memory an order may need that has fewer launches: what users are asked to bear."""
SLACK = 1 << 20
"""And how many bytes more, where there is little to begin with."""


@frozen
class Task:
    """A call to be placed: the values it reads and writes, and how it may be moved.

    A value that is both read and written was begun by another task, and is changed. work: in
    chunks; joins: it may be part of a grouped launch; pinned: it has an effect, or may fail, and
    keeps its place among its like; replaces: the inputs that it may be written over, in bytes;
    phase: tasks of different phases do not run as one.
    """

    reads: tuple[Hashable, ...]
    writes: tuple[Hashable, ...]
    work: float = 1.0
    joins: bool = True
    pinned: bool = False
    replaces: Mapping[Hashable, int] = field(default_factory=dict)
    phase: int = 0


def schedule(
    tasks: Sequence[Task],
    sizes: Mapping[Hashable, int],
    large: float,
    large_update: float | None = None,
    gathered_bytes: int = 0,
    side_by_side: int = 0,
) -> list[Launch]:
    """The launches, in order; `sizes` are the bytes of the values that are no inputs or outputs.

    A task of `large` chunks or more runs alone, an update of `large_update`. With `gathered_bytes`,
    tasks that read inputs alone are brought to the start, and those that only updates wait for to
    the end, if they read no more than so many bytes. Where up to `side_by_side` launches run beside
    each other, updates do not wait for the last large launch if they can do without it.
    """
    plain: list[Launch] = [(number,) for number in range(len(tasks))]
    allowed = peak(plain, tasks, sizes) * TOLERATED + SLACK
    updates = _updates(tasks, sizes)
    largest = large if large_update is None else large_update
    tail = _small_as_one(updates, tasks, largest)
    # The boldest plan first: each next one moves less, and so keeps less alive. Groups hold all
    # their values at once, which is why fewer launches may take more memory than the plain order.
    for gathered, window in ((gathered_bytes, WINDOW), (0, WINDOW), (0, 0)):
        first = _preparations(tasks, updates) if gathered else []
        last = _preliminaries(tasks, updates, first, sizes, gathered) if gathered else []
        elsewhere = {*updates, *first, *last}
        body = [number for number in range(len(tasks)) if number not in elsewhere]
        head = [
            *_levels(first, tasks, largest),
            *_grouped_tasks(body, tasks, window, large),
            *_levels(last, tasks, large),
        ]
        if peak([*head, *tail], tasks, sizes) <= allowed:
            ordered = _reorder_launches(head, tail, tasks, sizes)
            is_short = len(ordered) + len(tail) < side_by_side
            return [*ordered, *(_without_last(ordered, tail, tasks) if is_short else tail)]
    return _reorder_launches(plain, [], tasks, sizes)


def peak(launches: Sequence[Launch], tasks: Sequence[Task], sizes: Mapping[Hashable, int]) -> int:
    """The most bytes that are live during one launch."""
    last = _last_readers(launches, tasks)
    # A value is alive from the launch that begins it to the last one that touches it, both
    # included: what a launch writes is there beside all that it reads.
    live = most = 0
    for place, launch in enumerate(launches):
        live += sum(
            sizes.get(value, 0) for value in _values_of_launch(launch, tasks, _written_values)
        )
        most = max(most, live)
        ended = {v for v in _values_of_launch(launch, tasks, _all) if last[v] == place}
        live -= sum(sizes.get(value, 0) for value in ended)
    return most


def _last_readers(launches: Sequence[Launch], tasks: Sequence[Task]) -> dict[Hashable, int]:
    return {
        value: place
        for place, launch in enumerate(launches)
        for value in _values_of_launch(launch, tasks, _all)
    }


def _written_values(task: Task) -> Iterable[Hashable]:
    """What takes memory from here on."""
    return [value for value in task.writes if value not in task.reads]


def _all(task: Task) -> Iterable[Hashable]:
    return (*task.reads, *task.writes)


def _values_of_launch(
    launch: Launch, tasks: Sequence[Task], values: Callable[[Task], Iterable[Hashable]]
) -> dict[Hashable, None]:
    """The values of all tasks of a launch, each once."""
    return dict.fromkeys(value for number in launch for value in values(tasks[number]))


# --- grouped launches ----------------------------------------------------------------------------


def _updates(tasks: Sequence[Task], sizes: Mapping[Hashable, int]) -> list[int]:
    """Tasks that replace state, and that nobody waits for.

    Where they go last, all others have read the state, and nothing can fail after them. What must
    wait for them is memory that is held: a gradient each, and not more.
    """
    read = {value for task in tasks for value in task.reads}
    return [
        number
        for number, task in enumerate(tasks)
        if task.replaces and task.joins and not read & set(task.writes) and _is_light(task, sizes)
    ]


def _is_light(task: Task, sizes: Mapping[Hashable, int]) -> bool:
    held = sum(sizes.get(value, 0) for value in task.reads)
    return held <= 2 * sum(task.replaces.values())


def _preparations(tasks: Sequence[Task], updates: Sequence[int]) -> list[int]:
    """Tasks that wait for nothing: they read values that no task writes, and at least one.

    What they may be written over is read by nobody else: others would have to come before.
    """
    written = {value for task in tasks for value in task.writes}
    readers = Counter(value for task in tasks for value in set(task.reads))
    late = set(updates)
    found: list[int] = []
    for number, task in enumerate(tasks):
        is_free = task.joins and not task.pinned and number not in late
        is_sole = all(readers[value] == 1 for value in task.replaces)
        if is_free and is_sole and task.reads and written.isdisjoint(task.reads):
            found.append(number)
    return found


def _preliminaries(
    tasks: Sequence[Task],
    updates: Sequence[int],
    early: Sequence[int],
    sizes: Mapping[Hashable, int],
    most: int,
) -> list[int]:
    """Tasks that only updates wait for, and others such: the last parts of sums, mostly.

    They read little: more would no longer be in cache at the end.

    What another task may be written over has its readers before that task, and they stay there.
    """
    readers: dict[Hashable, set[int]] = {}
    for number, task in enumerate(tasks):
        for value in task.reads:
            readers.setdefault(value, set()).add(number)
    late, kept = set(updates), {*updates, *early}
    replaced = {v for number, task in enumerate(tasks) if number not in late for v in task.replaces}
    found: list[int] = []
    # From behind, so that a task whose readers have all been moved back is seen after them.
    for number in reversed(range(len(tasks))):
        task = tasks[number]
        waiting = set[int]().union(*[readers.get(value, set()) for value in task.writes])
        is_free = not task.pinned and not task.replaces and replaced.isdisjoint(task.reads)
        is_last = bool(waiting) and waiting <= late
        is_short = task.joins and sum(sizes.get(value, most) for value in task.reads) <= most
        if number not in kept and is_free and is_last and is_short:
            late.add(number)
            found.append(number)
    return found[::-1]


def _small_as_one(independent: Sequence[int], tasks: Sequence[Task], large: float) -> list[Launch]:
    """Tasks that do not wait for each other: large ones alone, all others as one."""
    alone: list[Launch] = [(number,) for number in independent if tasks[number].work >= large]
    small = tuple(number for number in independent if tasks[number].work < large)
    return [*alone, small] if small else alone


def _without_last(
    head: Sequence[Launch], tail: Sequence[Launch], tasks: Sequence[Task]
) -> list[Launch]:
    """The updates, those apart that wait for the last launch that runs alone."""
    alone = [place for place, (first, *_) in enumerate(head) if not tasks[first].joins]
    if not alone:
        return list(tail)
    late = {value for number in head[alone[-1]] for value in tasks[number].writes}
    for number in [number for launch in head[alone[-1] + 1 :] for number in launch]:
        if not late.isdisjoint(tasks[number].reads):
            late.update(tasks[number].writes)
    parts = [
        tuple(number for number in launch if late.isdisjoint(tasks[number].reads) == is_free)
        for launch in tail
        for is_free in (True, False)
    ]
    return [part for part in parts if part]


def _levels(order: Sequence[int], tasks: Sequence[Task], large: float) -> list[Launch]:
    """Tasks as few groups, one behind the other: each as soon as those it waits for are done."""
    level: dict[Hashable, int] = {}
    levels: list[list[int]] = []
    for number in order:
        task = tasks[number]
        place = max([level.get(value, -1) for value in task.reads], default=-1) + 1
        level.update(dict.fromkeys(task.writes, place))
        levels += [[] for _ in range(place + 1 - len(levels))]
        levels[place].append(number)
    return [launch for each in levels for launch in _small_as_one(each, tasks, large)]


def _grouped_tasks(
    order: Sequence[int], tasks: Sequence[Task], window: int, large: float
) -> list[Launch]:
    """Tasks in order, each moved forward to the last launch in the window that it may join."""
    launches: list[list[int]] = []
    place: dict[Hashable, int] = {}
    for number in order:
        task = tasks[number]
        # A member of a group may not read what another member writes: they run side by side.
        earliest = max([place.get(value, -1) for value in task.reads], default=-1) + 1
        nearest = max(earliest, len(launches) - window)
        hosts = range(len(launches) - 1, nearest - 1, -1) if _is_small(task, large) else ()
        firsts = ((p, tasks[launches[p][0]]) for p in hosts)
        suitable = (p for p, t in firsts if _is_small(t, large) and t.phase == task.phase)
        host = next(suitable, len(launches))
        if host == len(launches):
            launches.append([])
        launches[host].append(number)
        place.update(dict.fromkeys(task.writes, host))
    return [tuple(launch) for launch in launches]


def _is_small(task: Task, large: float) -> bool:
    return task.joins and task.work < large


# --- order ---------------------------------------------------------------------------------------


def _reorder_launches(
    head: list[Launch], tail: list[Launch], tasks: Sequence[Task], sizes: Mapping[Hashable, int]
) -> list[Launch]:
    """The launches in an order that needs less memory, if one is found."""
    found = _order_by_freed_memory(head, tail, tasks, sizes)
    needed = peak([*head, *tail], tasks, sizes)
    return found if peak([*found, *tail], tasks, sizes) * TOLERATED < needed else head


def _order_by_freed_memory(
    head: list[Launch], tail: list[Launch], tasks: Sequence[Task], sizes: Mapping[Hashable, int]
) -> list[Launch]:
    """Of the launches that can run, the first that frees what it takes; else the first."""
    waiting = _launches_before(head, tasks)
    readers: dict[Hashable, int] = {}
    for launch in (*head, *tail):
        for value in _values_of_launch(launch, tasks, _all):
            readers[value] = readers.get(value, 0) + 1
    followers: dict[int, list[int]] = {}
    for place, needed in enumerate(waiting):
        for other in needed:
            followers.setdefault(other, []).append(place)
    counts = [len(needed) for needed in waiting]
    ready = [place for place, count in enumerate(counts) if count == 0]
    order: list[Launch] = []
    while ready:
        place = next((p for p in ready if _gain(head[p], tasks, sizes, readers) >= 0), ready[0])
        ready.remove(place)
        order.append(head[place])
        for value in _values_of_launch(head[place], tasks, _all):
            readers[value] -= 1
        for follower in followers.get(place, ()):
            counts[follower] -= 1
            if counts[follower] == 0:
                ready.append(follower)
        ready.sort()
    return order


def _gain(
    launch: Launch,
    tasks: Sequence[Task],
    sizes: Mapping[Hashable, int],
    readers: Mapping[Hashable, int],
) -> int:
    """The bytes that are free after a launch and were not before."""
    ended = sum(sizes.get(v, 0) for v in _values_of_launch(launch, tasks, _all) if readers[v] == 1)
    return ended - sum(sizes.get(v, 0) for v in _values_of_launch(launch, tasks, _written_values))


def _launches_before(head: Sequence[Launch], tasks: Sequence[Task]) -> list[set[int]]:
    """For each launch those that must come before it."""
    writer: dict[Hashable, int] = {}
    readers: dict[Hashable, set[int]] = {}
    found: list[set[int]] = []
    pinned = -1
    for place, launch in enumerate(head):
        needed = {writer[v] for n in launch for v in tasks[n].reads if v in writer}
        # Who writes over an input comes after all that read it.
        replaced = {v for n in launch if not tasks[n].joins for v in tasks[n].replaces}
        if replaced or any(tasks[number].pinned for number in launch):
            needed |= {pinned} if pinned >= 0 else set()
        if any(tasks[number].pinned for number in launch):
            pinned = place
        needed = needed.union(*[readers.get(value, ()) for value in replaced])
        for value in (v for number in launch for v in tasks[number].reads):
            readers.setdefault(value, set()).add(place)
        found.append(needed)
        writer.update((value, place) for number in launch for value in tasks[number].writes)
    return found
