"""Generated kernels beside PyTorch's on one card: element-wise, rows, long sums, copies.

    python benchmarks/gpu/kernels.py [--out results.json] [--rounds 30]

Each contender is put 20 times into a CUDA graph; rounds of all contenders follow each other, and
the best round counts. Weft's kernels run on memory of their own through the driver; PyTorch's,
eager and compiled, on theirs. Times are microseconds of one launch; `share` is how long a copy of
as many bytes takes, over Weft's time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as functional

import weft as wf
from weft.compiler.plan.planning import WrittenKernels, plan_program
from weft.compiler.targets.cpu.target import CPU
from weft.compiler.targets.cuda.code import Code
from weft.compiler.targets.cuda.device import Event, Memory, Stream, device
from weft.compiler.targets.cuda.graphs import ExecutableGraph, capture_graph
from weft.ir.tracing import trace

REPEATS = 20
"""Launches of one timed graph."""


@dataclass
class Case:
    """One thing to compute: for Weft, for PyTorch, on operands of given shapes."""

    name: str
    dtype: str
    shapes: list[tuple[int, ...]]
    weft: Callable[..., Any]
    torch: Callable[..., Any]
    moved: int
    """Bytes that must be read and written."""
    limit: float = 2e-2
    """The greatest difference to PyTorch's result, relative to its greatest element."""
    operands: list[torch.Tensor] = field(default_factory=list)


def cases() -> list[Case]:
    """What is measured."""
    rows, wide, narrow, long = 16384, 3072, 768, 1 << 26
    return [
        Case("gelu tanh 16384x3072", "bfloat16", [(rows, wide)],
             lambda x: wf.gelu(x, approximate="tanh"),
             lambda x: functional.gelu(x, approximate="tanh"), rows * wide * 4),
        Case("gelu erf 16384x3072", "bfloat16", [(rows, wide)], wf.gelu, functional.gelu,
             rows * wide * 4),
        Case("add 16384x3072", "bfloat16", [(rows, wide), (rows, wide)], lambda x, y: x + y,
             lambda x, y: x + y, rows * wide * 6),
        Case("layer norm 16384x768", "bfloat16", [(rows, narrow), (narrow,), (narrow,)],
             lambda x, w, b: wf.nn.functional.layer_norm(x, (narrow,), w, b),
             lambda x, w, b: functional.layer_norm(x, (narrow,), w, b), rows * narrow * 4),
        Case("softmax 16384x768", "bfloat16", [(rows, narrow)], lambda x: wf.softmax(x, axis=-1),
             lambda x: torch.softmax(x, -1), rows * narrow * 4),
        Case("softmax 16384x768 float32", "float32", [(rows, narrow)],
             lambda x: wf.softmax(x, axis=-1), lambda x: torch.softmax(x, -1), rows * narrow * 8),
        Case("softmax 4096x4096 float32", "float32", [(4096, 4096)],
             lambda x: wf.softmax(x, axis=-1), lambda x: torch.softmax(x, -1), 4096 * 4096 * 8),
        Case("sum of 2^26", "float32", [(long,)], lambda x: x.sum(), lambda x: x.sum(), long * 4,
             1e-4),
        Case("sum of rows 16384x768", "float32", [(rows, narrow)], lambda x: x.sum(axis=-1),
             lambda x: x.sum(-1), rows * narrow * 4, 1e-4),
        Case("copy 2^26", "float32", [(long,)], lambda x: x * 1.0 + 0.0,
             lambda x: x * 1.0 + 0.0, long * 8, 0.0),
    ]  # fmt: skip


class WeftContender:
    """Weft's kernels for a case, recorded as a graph."""

    def __init__(self, case: Case, stream: Stream) -> None:
        target = stream.device
        types = [wf.spec(case.dtype, shape) for shape in case.shapes]
        start = perf_counter()
        program = plan_program(
            trace(lambda *xs: [case.weft(*xs)], types).graph, CPU, (), WrittenKernels()
        )
        lowered = program.every_lowered
        code = Code([each.kernel for each in lowered], target)
        kernels = [code.code_of(each.kernel) for each in lowered]
        self.first_ms = (perf_counter() - start) * 1e3
        memory: dict[Any, int] = {}
        self.held: list[Memory] = []
        for variable, operand in zip(program.graph.inputs, case.operands, strict=True):
            memory[variable] = operand.data_ptr()
        launches = []
        for each, kernel in zip(lowered, kernels, strict=True):
            pointers = [self._pointer(memory, value, stream) for value in each.values]
            given = [each.known[name] for name in each.kernel.sizes]
            sizes = dict(zip(kernel.sizes, given, strict=True))
            made, held = kernel.launches(stream, pointers, sizes)
            launches += made
            self.held += held
        self.result = memory[program.graph.outputs[0]]
        for launch in launches:
            launch(stream)
        stream.synchronize()
        with capture_graph(stream) as graphs:
            for _ in range(REPEATS):
                for launch in launches:
                    launch(stream)
        self.graph: ExecutableGraph = graphs[0].instantiate()
        self.stream, self.events = stream, (Event(target), Event(target))
        self.launches = launches

    def _pointer(self, memory: dict[Any, int], value: Any, stream: Stream) -> int:
        if value not in memory:
            count = value.type.dtype.itemsize
            for dim in value.type.shape:
                count *= dim
            self.held.append(stream.allocate(count))
            memory[value] = self.held[-1].pointer
        return memory[value]

    def __call__(self) -> float:
        """Microseconds of one round."""
        first, last = self.events
        first.record(self.stream)
        self.graph(self.stream)
        last.record(self.stream)
        last.synchronize()
        return last.milliseconds_since(first) * 1e3 / REPEATS

    def difference(self, expected: torch.Tensor) -> float:
        """The greatest difference to PyTorch's result, relative to its greatest element."""
        found = torch.empty_like(expected)
        target = _At(found.data_ptr())
        count = found.numel() * found.element_size()
        torch.cuda.synchronize()  # its memory may have been in use before
        self.stream.copy(target, _At(self.result), count)  # type: ignore[arg-type]
        self.stream.synchronize()
        wide, other = found.double(), expected.double()
        return float((wide - other).abs().max() / other.abs().max().clamp_min(1e-30))


@dataclass
class _At:
    """Memory of PyTorch's, for a copy."""

    pointer: int


class TorchContender:
    """PyTorch's way, recorded as a graph."""

    def __init__(self, function: Callable[..., Any], operands: list[torch.Tensor]) -> None:
        start = perf_counter()
        for _ in range(3):
            function(*operands)
        torch.cuda.synchronize()
        self.first_ms = (perf_counter() - start) * 1e3
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(REPEATS):
                self.kept = function(*operands)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def __call__(self) -> float:
        """Microseconds of one round."""
        self.events[0].record()
        self.graph.replay()
        self.events[1].record()
        self.events[1].synchronize()
        return self.events[0].elapsed_time(self.events[1]) * 1e3 / REPEATS


def copy_rate(stream: Stream) -> float:
    """Bytes that the card's own copy reads and writes in a microsecond."""
    count = 1 << 30
    source, target = stream.allocate(count), stream.allocate(count)
    first, last = Event(stream.device), Event(stream.device)
    best = float("inf")
    for _ in range(10):
        first.record(stream)
        stream.copy(target, source, count)
        last.record(stream)
        last.synchronize()
        best = min(best, last.milliseconds_since(first))
    return 2 * count / best / 1e3


def measured(case: Case, stream: Stream, rounds: int, rate: float) -> dict[str, Any]:
    """The best times of all contenders for a case."""
    kind = getattr(torch, case.dtype)
    torch.manual_seed(0)
    case.operands = [torch.randn(shape, device="cuda", dtype=kind) for shape in case.shapes]
    torch.cuda.synchronize()
    ours = WeftContender(case, stream)
    contenders = {
        "weft": ours,
        "torch": TorchContender(case.torch, case.operands),
        "torch.compile": TorchContender(torch.compile(case.torch), case.operands),
    }
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, contender in contenders.items():
            best[name] = min(best[name], contender())
    expected = case.torch(*[x.float() for x in case.operands]).to(kind)
    limit = case.moved / rate
    return {
        "case": case.name,
        "microseconds": {name: round(time, 2) for name, time in best.items()},
        "copy": round(limit, 2),
        "share": round(limit / best["weft"], 3),
        "difference": ours.difference(expected),
        "first_ms": {name: round(each.first_ms, 1) for name, each in contenders.items()},
        "registers": [launch.function.resources() for launch in ours.launches],
    }


def calls(stream: Stream) -> dict[str, float]:
    """Microseconds of the host for an allocation and for a launch."""
    count = 2000

    def timed(work: Callable[[], Any]) -> float:
        best = float("inf")
        for _ in range(5):
            start = perf_counter()
            for _ in range(count):
                work()
            best = min(best, perf_counter() - start)
            stream.synchronize()
        return round(best / count * 1e6, 3)

    kept: dict[int, list[int]] = {4096: [stream.allocate(4096).pointer]}

    def from_lists() -> None:
        free = kept[4096]
        free.append(free.pop())

    return {
        "allocate and free in the driver's pool": timed(lambda: stream.allocate(4096)),
        "the same from lists of free memory, alone": timed(from_lists),
        "torch.empty": timed(lambda: torch.empty(1024, device="cuda")),
    }


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.zeros(1, device="cuda")
    target = device()
    stream = Stream(target)
    rate = copy_rate(stream)
    found: dict[str, Any] = {"card": target.name, "copy_bytes_per_us": round(rate), "cases": []}
    found["calls_us"] = calls(stream)
    print(found, flush=True)
    for case in cases():
        try:
            row = measured(case, stream, options.rounds, rate)
        except Exception as error:  # the other cases are measured all the same
            row = {"case": case.name, "error": repr(error)[:2000]}
        found["cases"].append(row)
        print(json.dumps(row), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
