"""CUDA graphs: many launches put on a stream by one call.

A graph is captured from what is put on a stream, or built of launches with their dependencies; it
is then instantiated, and run any number of times. Operands of its launches can be changed in place.
Launches that touch different memory need no order: a card runs them side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_void_p
from weakref import finalize

import numpy as np

from weft.compiler.targets.cuda.device import Device, Stream, destroy, handles, hold_quick_calls
from weft.compiler.targets.cuda.modules import KernelNodeParameters, Launch
from weft.core.records import frozen

_THIS_THREAD = 1
"""The mode of capture in which other threads may go on to allocate."""


class Graph:
    """Launches and the order that they need; `instantiate` makes it run."""

    def __init__(self, device: Device, handle: int | None = None) -> None:
        device.make_current()
        self.device, self.driver = device, device.driver
        self.handle = self.driver.handle("cuGraphCreate", 0) if handle is None else handle
        self.launches: list[Launch] = []
        finalize(self, destroy, self.driver, "cuGraphDestroy", self.handle).atexit = False

    def add(self, launch: Launch, after: Sequence[int] = ()) -> int:
        """Add a launch that begins after other nodes; the handle of its node."""
        self.launches.append(launch)
        return self.add_kernel(launch.parameters(), after)

    def add_kernel(self, parameters: KernelNodeParameters, after: Sequence[int] = ()) -> int:
        """Add a kernel, whose operands are read now, behind other nodes; the handle of its node."""
        node = c_void_p()
        self.driver(
            "cuGraphAddKernelNode_v2", byref(node), self.handle, handles(list(after)), len(after),
            byref(parameters),
        )  # fmt: skip
        return node.value or 0

    def count(self) -> int:
        """How many nodes there are."""
        place = c_size_t()
        self.driver("cuGraphGetNodes", self.handle, None, byref(place))
        return place.value

    def instantiate(self) -> ExecutableGraph:
        """What can be run."""
        return ExecutableGraph(self)


class ExecutableGraph:
    """A graph that is ready: a call puts all of it on a stream."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.driver = graph, graph.driver
        self.handle = self.driver.handle("cuGraphInstantiateWithFlags", graph.handle, 0)
        finalize(self, destroy, self.driver, "cuGraphExecDestroy", self.handle).atexit = False

    def __call__(self, stream: Stream) -> None:
        """Put the graph on a stream."""
        self.driver("cuGraphLaunch", self.handle, stream.handle)

    def update(self, node: int, launch: Launch) -> None:
        """Give a node the operands and dimensions of another launch of its function."""
        parameters = launch.parameters()
        self.driver("cuGraphExecKernelNodeSetParams_v2", self.handle, node, byref(parameters))


@frozen
class Span:
    """Memory that a launch touches: from an address to another, and whether it writes there."""

    start: int
    end: int
    is_written: bool


def dependencies(touched: Sequence[Sequence[Span]]) -> list[list[int]]:
    """For launches in order, the earlier ones that each must wait for, and no others wait for.

    >>> x, y = Span(0, 8, False), Span(8, 16, True)
    >>> dependencies([[x, y], [x], [Span(8, 12, False)], [Span(0, 4, True)]])
    [[], [], [0], [0, 1]]
    """
    every = [(number, span) for number, spans in enumerate(touched) for span in spans]
    owners = np.array([number for number, _ in every], np.int64)
    starts, ends = (np.array([getattr(s, n) for _, s in every], np.int64) for n in ("start", "end"))
    written = np.array([span.is_written for _, span in every], bool)
    before: list[int] = []
    """For each launch a bit for every one that ends before it begins."""
    edges: list[list[int]] = []
    seen = 0
    for spans in touched:
        met: set[int] = set()
        for span in spans:
            meets = (starts[:seen] < span.end) & (ends[:seen] > span.start)
            if not span.is_written:
                meets &= written[:seen]
            met.update(owners[:seen][meets].tolist())
        seen += len(spans)
        earlier, direct = 0, list[int]()
        for other in sorted(met, reverse=True):
            if not earlier >> other & 1:
                direct.append(other)
                earlier |= before[other] | 1 << other
        before.append(earlier)
        edges.append(sorted(direct))
    return edges


@contextmanager
def capture_graph(stream: Stream) -> Iterator[list[Graph]]:
    """What is put on the stream inside becomes a graph, the one element of the list afterwards."""
    graphs: list[Graph] = []
    with hold_quick_calls():
        stream.driver("cuStreamBeginCapture_v2", stream.handle, _THIS_THREAD)
        try:
            yield graphs
        finally:
            place = c_void_p()
            stream.driver("cuStreamEndCapture", stream.handle, byref(place))
    if place.value:
        graphs.append(Graph(stream.device, place.value))
