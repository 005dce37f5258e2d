"""What became of a program with parts on several devices: its parts, its moves, memory of each.

>>> import weft as wf
>>> from weft.compiler.plan.device_plan import device_plan
>>> from weft.core.devices import CPU
>>> graph = wf.ir.trace(lambda x: wf.exp(x) * 2, wf.spec("float32", (3,)))
>>> report = device_explanation(device_plan(graph, (CPU,), CPU))
>>> len(report.kernels), report.memory.peaks
(1, {'cpu': 24})
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from textwrap import indent

from weft.compiler.fusion.costs import bytes_of
from weft.compiler.plan.device_plan import DevicePlan, Located, Segment, Transfer
from weft.compiler.report.explain import Explanation, KernelReport, explanation
from weft.compiler.report.memory_use import MemoryReport
from weft.compiler.report.text import count_text
from weft.compiler.targets.target import target_of
from weft.core.devices import CPU
from weft.core.records import frozen
from weft.ir.graph import Graph
from weft.runtime.arena import readable_size

__all__ = ["DeviceExplanation", "DeviceMemory"]


@frozen
class DeviceMemory:
    """Bytes by device: the most that lie in its memory at once, and what each segment needs.

    State that is written in place of its old value is counted twice.
    """

    peaks: Mapping[str, int]
    segments: tuple[tuple[str, MemoryReport], ...]

    @property
    def peak(self) -> int:
        """The peaks of all devices."""
        return sum(self.peaks.values())

    def __str__(self) -> str:
        lines = [f"peak on {name} {readable_size(size)}" for name, size in self.peaks.items()]
        for number, (name, report) in enumerate(self.segments):
            lines += [f"segment {number} on {name}", indent(str(report), "  ")]
        return "\n".join(lines)


@frozen(slots=False)
class DeviceExplanation:
    """What a graph with parts on several devices was compiled to; `print` it, or read its fields.

    plan: segments and transfers in order. segments: what became of each segment.
    """

    plan: DevicePlan
    segments: tuple[Explanation, ...]

    @property
    def graph(self) -> Graph:
        """The graph, as recorded."""
        return self.plan.graph

    @property
    def kernels(self) -> list[KernelReport]:
        """The calls of all segments, in order."""
        return [kernel for segment in self.segments for kernel in segment.kernels]

    @property
    def flops(self) -> int:
        """The floating-point operations of all segments."""
        return sum(segment.flops for segment in self.segments)

    @property
    def bytes(self) -> int:
        """The bytes that all kernels read and write."""
        return sum(segment.bytes for segment in self.segments)

    @property
    def loops(self) -> str:
        """The kernels in the loop language."""
        return "\n\n".join(segment.loops for segment in self.segments if segment.loops)

    @property
    def assembly(self) -> str:
        """The kernels in the instructions of their machines."""
        return "\n\n".join(segment.assembly for segment in self.segments if segment.assembly)

    @property
    def moved_bytes(self) -> int:
        """The bytes that are moved between devices."""
        return sum(bytes_of(each.value.type, {}) for each in self.plan.transfers)

    @cached_property
    def memory(self) -> DeviceMemory:
        """What it will allocate on each device."""
        reports = [segment.memory for segment in self.segments]
        names = [str(segment.device) for segment in self.plan.segments]
        peaks = _peaks(self.plan, reports)
        return DeviceMemory(peaks, tuple(zip(names, reports, strict=True)))

    def __str__(self) -> str:
        parts = count_text(len(self.segments), "segment", "segments")
        moves = count_text(len(self.plan.transfers), "transfer", "transfers")
        lines = [f"{parts} and {moves} of {readable_size(self.moved_bytes)}"]
        explained = iter(self.segments)
        for step in self.plan.steps:
            lines += ["", str(step)]
            if isinstance(step, Segment):
                lines.append(indent(str(next(explained)), "  "))
        return "\n".join(lines)


def device_explanation(plan: DevicePlan) -> DeviceExplanation:
    """What becomes of a program whose sizes are known; each segment is planned for its device."""
    return DeviceExplanation(
        plan,
        tuple(
            explanation(each.graph, each.graph.input_types, target_of(each.device))
            for each in plan.segments
        ),
    )


def _peaks(plan: DevicePlan, reports: list[MemoryReport]) -> dict[str, int]:
    """The most bytes on each device: values until their last reader, and what segments use."""
    places = [place or CPU for place in plan.inputs]
    inputs = [*zip(plan.graph.inputs, places, strict=True)]
    kept = {*inputs, *plan.outputs}
    reads = [_reads(step) for step in plan.steps]
    live: dict[Located, int] = {each: bytes_of(each[0].type, {}) for each in inputs}
    peaks = {str(device): 0 for _, device in kept} | {str(s.device): 0 for s in plan.segments}
    segments = iter(reports)
    for number, step in enumerate(plan.steps):
        used = {}
        if isinstance(step, Segment):
            report = next(segments)
            used = {str(step.device): report.arena + report.temporary + report.constants}
            made = [(value, step.device) for value in step.graph.outputs]
        else:
            made = [(step.value, step.device)]
        live.update({each: bytes_of(each[0].type, {}) for each in made})
        for name in peaks:
            held = sum(size for (_, device), size in live.items() if str(device) == name)
            peaks[name] = max(peaks[name], held + used.get(name, 0))
        later = {each for read in reads[number + 1 :] for each in read} | kept
        live = {each: size for each, size in live.items() if each in later}
    return peaks


def _reads(step: Segment | Transfer) -> list[Located]:
    if isinstance(step, Transfer):
        return [(step.value, step.source)]
    return [(value, step.device) for value in step.graph.inputs]
