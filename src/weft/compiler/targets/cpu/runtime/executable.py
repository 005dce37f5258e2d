"""Executables: memory, arrays and one native call for the tables of a program.

Every value that is stored has a slot: inputs and outputs are addresses of the caller's arrays,
constants live with the program, and everything else lies in one arena, planned by lifetime.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from threading import Lock, get_ident
from typing import Any
from weakref import WeakSet, finalize

import numpy as np

from weft.compiler.plan.launch import Sizes, Value
from weft.compiler.plan.program_plan import read_sizes, symbols_of
from weft.compiler.targets.cpu.products.forms import one_thread_each
from weft.compiler.targets.cpu.runtime.array_fields import write_addresses
from weft.compiler.targets.cpu.runtime.driver import (
    HELD,
    INTERRUPTED,
    UNANSWERED,
    WATCHERS,
    Run,
    execute,
    execute_address,
    handles_signals,
    interruption,
)
from weft.compiler.targets.cpu.runtime.entry_points import BLOCK, entries
from weft.compiler.targets.cpu.runtime.native_calls import (
    NativeRun,
    ProgramTables,
    make_native_run,
)
from weft.compiler.targets.cpu.runtime.preparation import Preparation
from weft.compiler.targets.cpu.runtime.tables import State, Tables
from weft.compiler.targets.target import Donation, Reuse
from weft.core.forks import in_child
from weft.core.sharing import notify_change
from weft.ir.graph import Graph, Variable
from weft.ir.group_cells import leave_sums
from weft.ir.groups import stands_for_process
from weft.ir.walking import has_collectives
from weft.runtime.arena import LARGE, Arena, Block
from weft.runtime.results import check_room, too_large

Array = np.ndarray[Any, Any]

RECYCLED = 4096
"""Bytes from which an array is worth being used again."""
SPARE = 64
"""How many arrays of one type are kept for that."""
BOUND = 32
"""How many sets of sizes a program keeps its tables for."""


SHARED = Arena()
"""The memory of programs that share it: each takes a block for a run, and gives it back."""
LARGE_PROGRAMS = Arena()
"""The same of compiled functions that need much: the steps of two networks that are trained in
turns, or the sizes of one function, do not hold a block each."""
RUNS = 2
"""How often a program runs by the short way before it is made one native function."""
Shapes = tuple[tuple[int, ...], ...]
Ready = tuple[Tables, Array, list[tuple[Any, Any]], Sizes]
"""Tables that are in place, the block of the later calls, the outputs, and the sizes."""


class CpuExecutable(ABC):
    """What runs tables; whoever makes them says what goes in, what comes out, and where it is."""

    graph: Graph
    """Its inputs and outputs are those of the tables."""
    state: State
    slots: Mapping[Value, int]
    donations: Mapping[int, tuple[int, ...]]
    settled_outputs: Collection[int]
    once: int
    """How many calls come first that read nothing but inputs which stay the same."""

    def __init__(self, fixed: Collection[int] = ()) -> None:
        self.fixed = sorted(fixed)
        """The positions of inputs that are expected to stay the same."""
        self._prepared = Preparation(self.fixed) if fixed else None
        self._tables: OrderedDict[tuple[int, ...], Tables] = OrderedDict()
        self._spare: dict[tuple[tuple[int, ...], np.dtype[Any]], list[Array]] = {}
        self._lock = Lock()
        _executables.add(self)
        self._runner: int | None = None
        self._arena = Arena()
        self._block: Block | None = None
        self._execute = execute()
        made = entries()
        self._launch = made.launch if made is not None else None
        self._launched: tuple[Tables, Array, Array] | None = None
        """The last tables that were launched, the block of all calls and that of the later ones."""
        self._written: tuple[list[int], dict[int, int]] = [], {}
        """Outputs that were last written to given arrays, and of each new array its place there."""
        self._ready: OrderedDict[Shapes, Ready] = OrderedDict()
        """What was launched for inputs of some shapes, and is still in place."""
        self._only: Ready | None = None
        """The same for a program without symbols."""
        self._shares = False
        """Whether it takes its memory from what programs share."""
        self._native: NativeRun | None = None
        """What runs the program without the way here, for arrays of the kinds that it was given."""
        self._runs_before_native = RUNS
        """How often the program is still run before that is made; 0 once it was tried."""

    @abstractmethod
    def root(self, value: Value) -> Value:
        """The value whose memory a value shares."""

    @abstractmethod
    def tables(self, sizes: Sizes) -> Tables:
        """The tables for some sizes."""

    @property
    @abstractmethod
    def calls_blas(self) -> bool:
        """Whether any call is one of the BLAS, which has threads of its own."""

    @property
    @abstractmethod
    def is_flat(self) -> bool:
        """Whether its calls are native and no plans inside, so that runs share nothing else."""

    @abstractmethod
    def by_reference(self, inputs: list[Array]) -> list[Array]:
        """The outputs, each node by its reference."""

    @abstractmethod
    def failure(self, tables: Tables, ended: int, inputs: list[Array]) -> BaseException:
        """What went wrong in the last of so many calls."""

    @cached_property
    def symbols(self) -> list[str]:
        """The sizes that are known at run time only."""
        return symbols_of(self.graph)

    @cached_property
    def _blas_threads(self) -> Callable[[], AbstractContextManager[None]]:
        return one_thread_each if self.calls_blas else nullcontext

    def run(
        self,
        arrays: Sequence[Array],
        donated: Sequence[Donation] = (),
        finished: list[Array] | None = None,
        reused: Sequence[Reuse] = (),
    ) -> list[Array]:
        """See `Executable`."""
        if not donated and not reused:
            made = None if self._native is None else self._native.run(arrays)
            if made is None:
                made = self._run_ready(arrays)
            if made is not None:
                return made
        thread = get_ident()
        if self._runner == thread:  # a call back, such as a breakpoint, calls the program
            return self.by_reference([np.require(array, requirements="C") for array in arrays])
        if stands_for_process() and self._meets_others:
            # Another thread, which stands for another process, waits for this one in a collective.
            return self.by_reference([np.require(array, requirements="C") for array in arrays])
        with self._lock:
            try:
                self._runner = thread
                if not donated and not reused:
                    return self._run_anew(arrays, (), [])
                written = [*[(output, arrays[place]) for output, place in donated], *reused]
                return self._run_written(arrays, written, [] if finished is None else finished)
            except BaseException:
                self._give_up()
                raise
            finally:
                self._leave()

    def quick_call(
        self, arrays: Sequence[Array]
    ) -> Callable[[Sequence[Array]], list[Array] | None] | None:
        """What runs the program with less work than `run`, for those who ask `run` where it fails.

        None where a run is more than one native call.
        """
        if not self._is_direct or not self._are_new:
            return None
        self._remember_natively(arrays)
        return self._run_ready if self._native is None else self._native.run

    def _remember_natively(self, arrays: Sequence[Array]) -> None:
        """Let later runs be one native function, where the program can be and has no symbols."""
        self._runs_before_native = 0
        if self._native is None and not self.symbols:
            self._native = self.native_run(arrays)

    def native_run(self, arrays: Sequence[Array]) -> NativeRun | None:
        """The program for arrays of these kinds as one native function, once it was run for them.

        None where more is to be seen to: weights that stay packed, other processes, loops, calls
        back, much memory between launches.
        """
        if not (self._is_direct and self._are_new and self.is_flat) or self._prepared is not None:
            return None
        shapes = tuple([each.shape for each in arrays])
        ready = self._ready.get(shapes) if self.symbols else self._only
        if ready is None or self._meets_others:
            return None
        tables, _, outputs, _ = ready
        slots = self._held_slots
        found = ProgramTables(
            tables.given, tables.addresses, self.state.error.ctypes.data, slots, tables.planned,
            tables.offsets, tables.plan.peak, (tables, slots),
        )  # fmt: skip
        inputs = [(each.dtype, each.shape) for each in arrays]
        return make_native_run(found, inputs, [(dtype, shape) for shape, dtype in outputs])

    def _run_ready(self, arrays: Sequence[Array]) -> list[Array] | None:
        """A run that is one native call, where all is in place for arrays of such shapes.

        None, and nothing was run, where there is more to see to: an array that has gaps, a call
        back, somebody who watches.
        """
        if self._runner is not None or WATCHERS or self._spare or self._meets_others:
            return None
        with self._lock:
            if self.symbols:
                ready = self._ready.get(tuple([array.shape for array in arrays]))
            else:
                ready = self._only
            if ready is None:
                return None
            tables, block, made, sizes = ready
            self._runner = get_ident()
            try:
                if sizes:
                    self.state.sizes = sizes
                if tables.plan.peak and self._shares:
                    self._place(tables)
                prepared = self._prepared
                if prepared is not None and not prepared.holds(tables, arrays):
                    return None
                outputs = [np.empty(shape, dtype) for shape, dtype in made]
                said = self._launch(block, *arrays, *outputs)  # type: ignore[misc]
                if said is None:
                    raise self._run_failure(tables, int(block[1]), int(block[-1]), arrays)
            except BaseException:
                self._give_up()
                raise
            finally:
                self._leave()
            if self._runs_before_native:
                self._runs_before_native -= 1
                if not self._runs_before_native:
                    self._remember_natively(arrays)
        return outputs if said else None

    def _give_up(self) -> None:
        """After an error: what was to be prepared may be half-made."""
        self._forget()
        if self._meets_others:
            leave_sums()  # they write to the memory of this run

    def _leave(self) -> None:
        """Let the next run begin, with memory of its own."""
        if self._shares and self._block is not None:
            self._arena.give(self._block)
            self._block = None
        self._runner = None

    @cached_property
    def _meets_others(self) -> bool:
        """Whether any operation waits for other processes."""
        return has_collectives(self.graph)

    def share_memory(self) -> None:
        """See `Executable`."""
        if self._prepared is None:
            with self._lock:
                self._arena, self._block, self._shares = SHARED, None, True

    def _run_written(
        self, arrays: Sequence[Array], written: Sequence[Reuse], finished: list[Array]
    ) -> list[Array]:
        """A run that writes to given arrays, not stopped in the middle: signals wait."""
        before, is_meant = HELD.value, handles_signals()
        try:
            if is_meant:
                HELD.value = before + 1
            return self._run_anew(arrays, written, finished)
        finally:
            if is_meant:
                HELD.value = before

    def _run_anew(
        self, arrays: Sequence[Array], written: Sequence[Reuse], finished: list[Array]
    ) -> list[Array]:
        """A run for which tables, memory and preparation are looked up."""
        sizes = self.read_sizes(arrays) if self.symbols else _NO_SIZES
        tables = self.tables_for(sizes)
        self._place(tables)
        self.state.sizes = sizes
        if self._is_direct and not WATCHERS:
            made = self._make_arrays(tables, sizes, written)
            block = self._block_for(tables, arrays, sizes)
            block[-1] = -1
            try:
                said = self._launch(block, *arrays, *made)  # type: ignore[misc]
            finally:  # also where a signal was handled as the launch returned
                if written and block[-1] == block[1] and not self.state.error[0]:
                    _tell_of(written)
                    finished += self._assemble_outputs(arrays, made, tables, sizes)
            if said is None:
                raise self._run_failure(tables, int(block[1]), int(block[-1]), arrays)
            if said:
                return finished if written else self._assemble_outputs(arrays, made, tables, sizes)
            if self._launched is not None and block is self._launched[1]:
                self._forget()  # what was to be prepared was not
        return self._run_by_steps(tables, arrays, written, sizes, finished)

    def _run_failure(
        self, tables: Tables, wanted: int, ended: int, inputs: Sequence[Array]
    ) -> BaseException:
        """What went wrong in a run that wanted so many calls and came to the end of some."""
        said = int(self.state.error[0])
        if said == INTERRUPTED:
            return interruption()
        if said == UNANSWERED:
            return KeyboardInterrupt()  # the interpreter has shown what was raised, and dropped it
        return self.failure(tables, tables.given[1] - wanted + ended, list(inputs))

    @cached_property
    def _is_direct(self) -> bool:
        """Whether a run is one native call: addresses of inputs and new outputs, and the driver."""
        return self._launch is not None and self._blas_threads is nullcontext

    def _block_for(self, tables: Tables, inputs: Sequence[Array], sizes: Sizes) -> Array:
        """What a launch is given: without the first calls where what they make is there."""
        if self._launched is None or self._launched[0] is not tables:
            later = self.once if self._prepared is not None else 0
            self._launched = (
                tables,
                self._argument_block(tables, 0),
                self._argument_block(tables, later),
            )
        _, whole, rest = self._launched
        if self._are_new:
            outputs = [(shape, kind) for _, shape, kind in tables.outputs]
            if not self.symbols:
                self._only = tables, rest, outputs, sizes
            else:
                self._ready[tuple([each.shape for each in inputs])] = tables, rest, outputs, sizes
                if len(self._ready) > BOUND:
                    self._ready.popitem(last=False)
        prepared = self._prepared
        if prepared is None or prepared.holds(tables, inputs):
            return rest
        prepared.note_run(tables, inputs)
        return whole

    def _argument_block(self, tables: Tables, skipped: int) -> Array:
        words = *tables.given_after(skipped), self._own_slots, execute_address(), 0
        assert len(words) == len(BLOCK)
        return np.array(words, np.int64)

    def _run_by_steps(
        self,
        tables: Tables,
        arrays: Sequence[Array],
        written: Sequence[Reuse],
        sizes: Sizes,
        finished: list[Array],
    ) -> list[Array]:
        """A run that is watched, has threads of the BLAS, or arrays that must be copied."""
        table, error = tables.given[2], self.state.error
        inputs = write_addresses(arrays, table)
        made = self._make_arrays(tables, sizes, written)
        write_addresses([*inputs, *made], table, self._own_slots)
        error[0] = 0
        given = self._without_preparation(tables, arrays)
        watcher = WATCHERS[-1] if WATCHERS else None
        ended: list[int] = []
        try:
            with self._blas_threads():
                # One call of a native method: a signal is handled before or after it.
                ended += (
                    map(self._execute, *zip(given, strict=True))
                    if watcher is None
                    else [watcher(self, Run(tables, sizes, given, inputs, made, written))]
                )
        finally:
            if written and ended and not error[0]:
                _tell_of(written)
                finished += self._assemble_outputs(inputs, made, tables, sizes)
        if error[0]:
            raise self._run_failure(tables, given[1], ended[0], inputs)
        return finished if written else self._assemble_outputs(inputs, made, tables, sizes)

    def _without_preparation(self, tables: Tables, inputs: Sequence[Array]) -> tuple[int, ...]:
        """What the driver is given: without the first calls where what they make is there.

        What watches a program may ask for all its calls.
        """
        prepared = self._prepared
        if prepared is None:
            return tables.given
        is_whole = bool(WATCHERS) and WATCHERS[-1].every_launch
        if is_whole or not prepared.holds(tables, inputs):
            prepared.note_run(tables, inputs)
            return tables.given
        return tables.given_after(self.once)

    def read_sizes(self, inputs: Sequence[Any]) -> dict[str, int]:
        """The sizes of the symbols, given inputs, or anything that has their shapes."""
        return read_sizes(self.graph, inputs)

    def tables_for(self, sizes: Sizes) -> Tables:
        """The tables for some sizes, which are kept."""
        key = tuple([sizes[name] for name in self.symbols]) if sizes else ()
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = self.tables(sizes)
            if len(self._tables) > BOUND:
                self._tables.popitem(last=False)
        return found

    def _place(self, tables: Tables) -> None:
        """Put the planned values into the program's block of memory, which all sizes share."""
        if self._block is None or self._block.size < tables.plan.peak:
            self._block = None  # it goes before its successor comes
            if not self._shares and tables.plan.peak >= LARGE:
                SHARED.release()  # a large program of its own follows eager work
                if self._prepared is None:  # nothing in it outlives a run
                    self._arena, self._shares = LARGE_PROGRAMS, True
                    finalize(self, LARGE_PROGRAMS.release).atexit = False
            self._block = self._arena.take(tables.plan)
            if not self._shares:
                self._forget_ready()
                self._forget()
        if tables.base != self._block.address:
            # in this order: a signal may come in between
            tables.addresses[tables.planned] = self._block.address + tables.offsets
            tables.base = self._block.address

    def _forget_ready(self) -> None:
        self._only = None
        self._ready.clear()

    def _forget(self) -> None:
        if self._prepared is not None:
            self._prepared.forget()

    def release(self) -> None:
        """Free the memory that is kept from run to run."""
        with self._lock:
            self._forget()
            self._forget_ready()
            self._block = self._launched = self._native = None
            self._tables.clear()
            self._spare.clear()

    def forget_other_threads(self) -> None:
        """Begin anew where another thread, which a forked child does not have, was inside."""
        if self._lock.locked() and self._runner != get_ident():
            self._lock, self._runner = Lock(), None
            self.release()

    def recycle(self, array: Array) -> None:
        """Take an array that nobody else holds as memory for an output of a later run.

        State that a program replaces at every run thus alternates between two arrays, and no
        memory is asked of the system.
        """
        notify_change(array)
        if array.nbytes >= RECYCLED and array.base is None and array.flags.carray:
            spare = self._spare.setdefault((array.shape, array.dtype), [])
            if len(spare) < SPARE:
                spare.append(array)

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        spare = self._spare.get((shape, dtype))
        return spare.pop() if spare else np.empty(shape, dtype)

    @cached_property
    def _made_values(self) -> list[Variable]:
        """The values that a run makes new arrays for."""
        roots = [self.root(atom) for atom in self.graph.outputs]
        given = set(self.graph.inputs)
        return [*dict.fromkeys(v for v in roots if isinstance(v, Variable) and v not in given)]

    @cached_property
    def _are_new(self) -> bool:
        """Whether each output is made by the program, in memory of its own."""
        return self._made_values == list(self.graph.outputs)

    @cached_property
    def _output_places(self) -> list[tuple[int, bool]]:
        """Of each output its place among inputs and new arrays, -1 for a constant; if it is a view.

        Outputs that share memory are views, each in its shape.
        """
        places: dict[Value, int] = {
            v: n for n, v in enumerate([*self.graph.inputs, *self._made_values])
        }
        pairs = [(atom, self.root(atom)) for atom in self.graph.outputs]
        return [(places.get(root, -1), atom is not root) for atom, root in pairs]

    def _make_arrays(self, tables: Tables, sizes: Sizes, written: Sequence[Reuse]) -> list[Array]:
        """Arrays for what the program makes: new ones, and those that it is given to write to."""
        if not tables.outputs:
            tables.outputs = [
                (self.slots[v], tables.shape(v, sizes), v.type.dtype.numpy)
                for v in self._made_values
            ]
            check_room([v.type for v in self._made_values], tables.outputs)
        if not written:
            make = self._empty if self._spare else np.empty
            try:
                return [make(shape, dtype) for _, shape, dtype in tables.outputs]
            except MemoryError as error:
                raise too_large([v.type for v in self._made_values], tables.outputs) from error
        outputs = [output for output, _ in written]
        if self._written[0] != outputs:
            before = len(self.graph.inputs)
            slots = [self._output_places[output][0] - before for output in outputs]
            self._written = outputs, {slot: n for n, slot in enumerate(slots)}
        places = self._written[1]
        return [
            self._empty(shape, dtype) if position not in places else written[places[position]][1]
            for position, (_, shape, dtype) in enumerate(tables.outputs)
        ]

    def _assemble_outputs(
        self, inputs: Sequence[Array], made: list[Array], tables: Tables, sizes: Sizes
    ) -> list[Array]:
        """The outputs, of what went in and of what was made."""
        if self._are_new:
            return made
        arrays, outputs = [*inputs, *made], list[Array]()
        if self._plain_places is not None:
            return [arrays[place] for place in self._plain_places]
        for atom, (place, is_view) in zip(self.graph.outputs, self._output_places, strict=True):
            if place < 0:
                outputs.append(self.root(atom).value)  # type: ignore[union-attr]
            elif is_view:
                flat = arrays[place].reshape(-1).view(atom.type.dtype.numpy)
                outputs.append(flat.reshape(tables.shape(atom, sizes)))  # type: ignore[arg-type]
            else:
                outputs.append(arrays[place])
        return outputs

    @cached_property
    def _plain_places(self) -> list[int] | None:
        """Where outputs are among inputs and new arrays, if none is a constant or a view."""
        are_plain = all(place >= 0 and not is_view for place, is_view in self._output_places)
        return [place for place, _ in self._output_places] if are_plain else None

    @cached_property
    def _held_slots(self) -> Array:
        """The slots of inputs and new arrays, one after the other."""
        values: list[Value] = [*self.graph.inputs, *self._made_values]
        return np.array([self.slots[v] for v in values] or [0], np.int64)

    @cached_property
    def _own_slots(self) -> int:
        """Where these stand."""
        return int(self._held_slots.ctypes.data)


_executables: WeakSet[CpuExecutable] = WeakSet()


def _forget_other_threads() -> None:
    """In a forked child no other thread is inside of a program."""
    for each in list(_executables):
        each.forget_other_threads()


in_child(_forget_other_threads)


def _tell_of(written: Sequence[Reuse]) -> None:
    """Tell those who watch the arrays that were written over."""
    for _, array in written:
        notify_change(array)


_NO_SIZES: dict[str, int] = {}
