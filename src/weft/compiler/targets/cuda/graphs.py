"""CUDA graphs: many launches put on a stream by one call.

A graph is captured from what is put on a stream, or built of launches with their dependencies; it
is then instantiated, and run any number of times. Operands of its launches can be changed in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_void_p
from weakref import finalize

from weft.compiler.targets.cuda.device import Device, Stream, destroy, handles
from weft.compiler.targets.cuda.modules import Launch

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
        node, parameters = c_void_p(), launch.parameters()
        self.driver(
            "cuGraphAddKernelNode_v2", byref(node), self.handle, handles(list(after)), len(after),
            byref(parameters),
        )  # fmt: skip
        self.launches.append(launch)
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


@contextmanager
def capture_graph(stream: Stream) -> Iterator[list[Graph]]:
    """What is put on the stream inside becomes a graph, the one element of the list afterwards."""
    graphs: list[Graph] = []
    stream.driver("cuStreamBeginCapture_v2", stream.handle, _THIS_THREAD)
    try:
        yield graphs
    finally:
        place = c_void_p()
        stream.driver("cuStreamEndCapture", stream.handle, byref(place))
        if place.value:
            graphs.append(Graph(stream.device, place.value))
