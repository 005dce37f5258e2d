"""The target: the one place where a machine is known.

Every stage before it is free of machines; where a decision depends on one, it asks the target that
it was given. `docs/design/targets.md` says how to add one.

>>> target_named("cpu").name
'cpu'
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from weft.compiler.targets.limits import Limits
from weft.core.devices import Device
from weft.core.once import made_once
from weft.ir.graph import Graph, GraphNode, Literal
from weft.ir.loops import Kernel

if TYPE_CHECKING:
    from weft.compiler.graph_passes.graph_pass import Pass
    from weft.compiler.plan.launch import Launch
    from weft.compiler.plan.program_plan import ProgramPlan

Array = np.ndarray[Any, Any]
Donation = tuple[int, int]
"""The positions of an output and of the input whose array it is written to."""
Reuse = tuple[int, Array]
"""The position of an output, and an array that is no input and that it is written to."""
Span = tuple[int, int]
"""When a launch began and ended, in the nanoseconds of `time.perf_counter_ns`."""
Observer: TypeAlias = "Callable[[ProgramPlan, Mapping[str, int], Sequence[Span]], None]"
"""What is told of a run: its plan, the sizes of its symbols, and the launches that were made."""


class Executable(Protocol):
    """What runs a program: a plan with its code, or one that another process has stored."""

    @property
    def donations(self) -> Mapping[int, tuple[int, ...]]:
        """For each output the inputs whose array it may be written to, by position."""

    @property
    def settled_outputs(self) -> Collection[int]:
        """The outputs that are first written when nothing can fail any more, by position."""

    def run(
        self,
        arrays: Sequence[Array],
        donated: Sequence[Donation] = (),
        finished: list[Array] | None = None,
        reused: Sequence[Reuse] = (),
    ) -> list[Array]:
        """The outputs for these inputs.

        An output that is donated an input's array, which the caller must let go of, is written to
        it; those that may be are in `donations`. So is one that is given an array to use again,
        which may be any in `settled_outputs`. Such a run is not stopped by a signal, and where one
        is handled right after it, `finished` has the outputs all the same.
        """

    def recycle(self, array: Array) -> None:
        """Take an array that nobody else holds as memory for an output of a later run."""

    def share_memory(self) -> None:
        """From now on, take memory for each run from what all such programs share.

        Many small programs that run one after the other then need no more than the largest.
        """

    def release(self) -> None:
        """Free the memory that is kept from run to run."""


class Target(Hashable, Protocol):
    """What a machine is asked while a program is made for it, and what makes the program run."""

    @property
    def name(self) -> str:
        """The folder of the target, and what users call the device."""

    def target_at(self, index: int) -> Target:
        """The target of another device of the same kind, by its number."""

    @property
    def limits(self) -> Limits:
        """From which sizes something pays on the machine, and how large its tiles are."""

    def environment(self) -> tuple[str, ...]:
        """What compiled programs depend on beside their plans: the machine, the code generator."""

    # --- questions of the stages before ----------------------------------------------------------

    def has_convolution(self, node: GraphNode) -> bool:
        """Whether a convolution has launches of the target's own once its channels are last."""

    def has_attention(self, node: GraphNode) -> bool:
        """Whether attention, or its gradient, stays one primitive; else it becomes products."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The target's own passes, which come last: operands as its own launches take them."""

    def takes(self, node: GraphNode) -> bool:
        """Whether a node is left to launches of the target's own, and never lowered to loops."""

    def launches(self, node: GraphNode, error: Literal) -> list[Launch] | None:
        """The launches of a node that the target has functions of its own for; None without.

        `error` stands for the cell in which a launch says that its operands are wrong.
        """

    # --- work ahead, beside the caller -----------------------------------------------------------

    def start(self) -> None:
        """Start to make ready what any program needs."""

    def prepare(self, graph: Graph) -> None:
        """Start to make ready what a program of this graph will need."""

    def begin(self, kernels: Sequence[Kernel]) -> None:
        """Start to compile kernels."""

    # --- executables -----------------------------------------------------------------------------

    def executable(self, plan: ProgramPlan) -> Executable:
        """What runs a plan: its kernels compiled, its memory laid out."""

    def stored_executable(self, digest: str, compiled: Callable[[], Executable]) -> Executable:
        """The program of a graph's digest: found on disk, or compiled and stored for others."""

    def watch(self, observe: Observer) -> AbstractContextManager[None]:
        """Inside, time every launch of the target's executables, and tell of each run."""

    def memory_comparison(self) -> Callable[[Array], bool] | None:
        """What tells natively whether objects are as a table says; None where nothing does.

        Tables are those of `weft.runtime.object_words`. There is none where fastcall is off.
        """

    def new_book(
        self, handle_class: type, usual: Mapping[str, Any], places: Mapping[str, int]
    ) -> Any:
        """What knows the calls of one function natively, with none yet; None where nothing does.

        Handles are of a class; `usual` are the objects that tell whether calls are made as usual,
        and `places` how many bytes into handles and settings their attributes stand.
        """

    def listing(self, kernels: Sequence[Kernel]) -> str:
        """The machine code of kernels, as text."""


def default_target() -> Target:
    """The target of programs that name none: the processor."""
    return target_named("cpu")


@made_once
def target_of(device: Device) -> Target:
    """The target that computes on a device."""
    first = target_named(device.family)
    return first if device.index == 0 else first.target_at(device.index)


@cache
def target_named(name: str) -> Target:
    """The target in the folder of that name."""
    target: Target = getattr(import_module(f"weft.compiler.targets.{name}.target"), name.upper())
    return target
