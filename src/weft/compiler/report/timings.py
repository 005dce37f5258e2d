"""Timings: when each call of each compiled program began and ended, as its target measures it.

>>> import weft as wf
>>> f = wf.jit(lambda x: wf.sort(wf.exp(x), axis=1))
>>> with wf.timings() as calls:
...     _ = f(wf.ones((8, 8)))
>>> [(call.kernel.name, call.kernel.primitives, call.seconds > 0) for call in calls]
[('k0', ['exp'], True), ('sort', ['sort'], True)]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import get_native_id

from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.report.explain import KernelReport, kernel_reports
from weft.compiler.targets.target import Span, target_of
from weft.core.arrays import ON_COMPUTING, computing_devices
from weft.core.devices import Device
from weft.core.records import frozen

__all__ = ["TimedCall", "timings"]


@frozen
class TimedCall:
    """One call of a kernel: which run of which program, from when to when, in nanoseconds."""

    kernel: KernelReport
    program: int
    run: int
    start: int
    end: int
    thread: int
    device: str = "cpu"
    """What kind of machine ran it."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end - self.start) / 1e9


@contextmanager
def timings() -> Iterator[list[TimedCall]]:
    """Time every call of compiled programs inside; times are those of `time.perf_counter_ns`.

    Calls on a card are timed by its own events, whatever the host does meanwhile.
    """
    found: list[TimedCall] = []
    observer, watched = _Observer(found), set[str]()
    with ExitStack() as stack:

        def watch(device: Device) -> None:
            if device.family not in watched:  # one target watches all devices of its kind
                watched.add(device.family)
                stack.enter_context(target_of(device).watch(observer))

        for device in computing_devices():
            watch(device)
        ON_COMPUTING.append(watch)
        stack.callback(ON_COMPUTING.remove, watch)
        yield found


class _Observer:
    """Appends the times of launches, with what each of them computes."""

    def __init__(self, found: list[TimedCall]) -> None:
        self.found = found
        self.runs = 0
        self.known: dict[tuple[int, tuple[tuple[str, int], ...]], list[KernelReport]] = {}
        self.plans: list[ProgramPlan] = []  # held, so that an identity is not used twice

    def __call__(self, plan: ProgramPlan, sizes: Mapping[str, int], spans: Sequence[Span]) -> None:
        kernels = self._kernels(plan, sizes)
        number, thread = self.plans.index(plan), get_native_id()
        for kernel, (start, end) in zip(kernels, spans, strict=False):
            device = plan.target.name
            self.found.append(TimedCall(kernel, number, self.runs, start, end, thread, device))
        self.runs += 1

    def _kernels(self, plan: ProgramPlan, sizes: Mapping[str, int]) -> list[KernelReport]:
        key = id(plan), tuple(sorted(sizes.items()))
        if key not in self.known:
            self.known[key] = kernel_reports(plan, sizes)
            if plan not in self.plans:
                self.plans.append(plan)
        return self.known[key]
