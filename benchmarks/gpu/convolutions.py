"""Convolutions of ResNet-50 on a card, beside PyTorch's with channels last.

    python -m benchmarks.gpu.convolutions              all parts, each in a process of its own
    python -m benchmarks.gpu.convolutions layers       one part

Times are microseconds of one call in a run of many, each a graph: ours by the clock, PyTorch's by
events. Below some 20 of them, ours is the time of the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.gpu.loading import measure
from benchmarks.gpu.reporting import report, run_parts
from benchmarks.gpu.steps import milliseconds

import weft as wf
from weft.compiler.graph_passes.channels_last_primitives import (
    conv_last,
    conv_last_input_gradient,
    conv_last_weight_gradient,
)

FILE = "convolutions.jsonl"
# channels, outputs, size, kernel, stride, and how often ResNet-50 has it
LAYERS = (
    (3, 64, 224, 7, 2, 1),
    (64, 64, 56, 1, 1, 1), (64, 64, 56, 3, 1, 3), (64, 256, 56, 1, 1, 4), (256, 64, 56, 1, 1, 2),
    (256, 128, 56, 1, 1, 1), (128, 128, 56, 3, 2, 1), (256, 512, 56, 1, 2, 1),
    (128, 512, 28, 1, 1, 4), (512, 128, 28, 1, 1, 3), (128, 128, 28, 3, 1, 3),
    (512, 256, 28, 1, 1, 1), (256, 256, 28, 3, 2, 1), (512, 1024, 28, 1, 2, 1),
    (256, 1024, 14, 1, 1, 6), (1024, 256, 14, 1, 1, 5), (256, 256, 14, 3, 1, 5),
    (1024, 512, 14, 1, 1, 1), (512, 512, 14, 3, 2, 1), (1024, 2048, 14, 1, 2, 1),
    (512, 2048, 7, 1, 1, 3), (2048, 512, 7, 1, 1, 2), (512, 512, 7, 3, 1, 2),
)  # fmt: skip


def _ours(batch: int, layer: tuple[int, ...], direction: str) -> float:
    channels, outputs, size, kernel, stride, _ = layer
    out = (size - 1) // stride + 1
    params: dict[str, Any] = {
        "strides": (stride, stride), "padding": ((kernel // 2, kernel // 2),) * 2,
        "dilation": (1, 1), "groups": 1,
    }  # fmt: skip
    x = wf.zeros((batch, size, size, channels), dtype="bfloat16", device="cuda") + 1
    y = wf.zeros((batch, out, out, outputs), dtype="bfloat16", device="cuda") + 1
    w = wf.zeros((outputs, channels, kernel, kernel), dtype="bfloat16", device="cuda") + 1
    bind = wf.ir.dispatch.bind
    given: tuple[wf.Tensor, wf.Tensor] = (x, w)
    f = lambda x, w: bind(conv_last, x, w, **params)  # noqa: E731
    if direction == "input":
        spatial, given = (size, size), (y, w)
        f = lambda y, w: bind(conv_last_input_gradient, y, w, spatial=spatial, **params)  # noqa: E731
    elif direction == "weight":
        taps, given = (kernel, kernel), (x, y)
        f = lambda x, y: bind(conv_last_weight_gradient, x, y, kernel=taps, **params)  # noqa: E731
    step = wf.jit(f)
    for _ in range(3):
        step(*given)
    return 1e3 * milliseconds(lambda: step(*given), wf.cuda.synchronize, 30)


def _theirs(batch: int, layer: tuple[int, ...]) -> dict[str, float]:
    channels, outputs, size, kernel, stride, _ = layer
    last = {"memory_format": torch.channels_last}
    x = torch.randn(batch, channels, size, size, device="cuda").to(torch.bfloat16).to(**last)
    w = torch.randn(outputs, channels, kernel, kernel, device="cuda").to(torch.bfloat16).to(**last)
    pad = [kernel // 2] * 2
    y = torch.nn.functional.conv2d(x, w, stride=stride, padding=pad)

    def backward(mask: list[bool]) -> Any:
        return torch.ops.aten.convolution_backward(
            y, x, w, None, [stride] * 2, pad, [1, 1], False, [0, 0], 1, mask
        )

    calls: dict[str, Callable[[], object]] = {
        "forward": lambda: torch.nn.functional.conv2d(x, w, stride=stride, padding=pad),
        "weight": lambda: backward([False, True, False]),
    }
    if channels > 3:
        calls["input"] = lambda: backward([True, False, False])
    return measure(calls, rounds=4, calls=3)


def layers(batch: int = 128) -> None:
    """Each layer of ResNet-50: forward, and both gradients."""
    totals: dict[str, float] = {}
    for layer in LAYERS:
        rival = _theirs(batch, layer)
        row: dict[str, object] = {"layer": layer}
        for direction, time in rival.items():
            whole = _ours(batch, layer, direction)
            row[direction] = [round(whole, 1), round(time, 1)]
            totals[f"{direction} weft"] = totals.get(f"{direction} weft", 0) + whole * layer[-1]
            totals[f"{direction} torch"] = totals.get(f"{direction} torch", 0) + time * layer[-1]
        report(FILE, row)
    report(FILE, {key: round(value / 1e3, 3) for key, value in totals.items()})


PARTS = {"layers": layers}

if __name__ == "__main__":
    run_parts(PARTS, __file__, 300)
