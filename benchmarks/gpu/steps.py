"""Training steps and eager operations on a card, beside PyTorch's.

    python benchmarks/gpu/steps.py                all parts, each in a process of its own
    python benchmarks/gpu/steps.py mlp            one part

Times are wall-clock milliseconds of a step in a run of many, which ends with a wait for the card.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from benchmarks.gpu.loading import report, run_parts

import weft as wf

FILE = "steps.jsonl"


def milliseconds(step: Callable[[], object], wait: Callable[[], object], count: int) -> float:
    """The best time of a call, in runs of `count` calls."""
    best = float("inf")
    for _ in range(5):
        wait()
        start = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        best = min(best, (time.perf_counter() - start) / count * 1e3)
    return best


def first_call(step: Callable[[], Any]) -> float:
    """Seconds until the first result is there."""
    start = time.perf_counter()
    float(step())
    return time.perf_counter() - start


def where_time_goes(step: Callable[[], Any], most: int = 25) -> None:
    """Print the launches that take most of a step, by events of the card."""
    found: Counter[str] = Counter()
    count: Counter[str] = Counter()

    def observe(plan: Any, sizes: Any, spans: Any) -> None:
        for launch, (start, end) in zip(plan.launches, spans, strict=True):
            shapes = " ".join(str(v.type) for v in launch.values[:4])
            name = f"{launch.kind} {launch.name} {shapes}"
            found[name] += end - start
            count[name] += 1

    from weft.compiler.targets.cuda.target import CUDA

    with CUDA.watch(observe):
        step()
    total = sum(found.values())
    print(f"  all launches {total / 1e6:.3f} ms, {sum(count.values())} of {len(found)} kinds")
    for name, nanoseconds in found.most_common(most):
        print(f"  {nanoseconds / 1e3:9.1f} us  x{count[name]:<4d} {name}", flush=True)


def weft_step(model: Any, loss_of: Callable[..., Any], *arrays: Any, lr: float = 1e-3) -> Any:
    """A compiled training step with AdamW."""
    optimizer = wf.optim.AdamW(model.parameters(), lr=lr)

    @wf.jit
    def step(*given: wf.Tensor) -> wf.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, *given)
        loss.backward()
        optimizer.step()
        return loss

    return lambda: step(*arrays)


def mlp() -> None:
    """784-512-512-10, batch 128, Adam, float32."""
    sizes = (784, 512, 512, 10)
    x = np.random.default_rng(0).normal(size=(128, 784)).astype(np.float32)
    y = np.arange(128) % 10
    layers = [layer for a, b in pairwise(sizes)
              for layer in (wf.nn.Linear(a, b), wf.nn.ReLU())][:-1]  # fmt: skip
    model = wf.nn.Sequential(*layers).to("cuda")
    step = weft_step(
        model,
        lambda m, x, y: wf.nn.functional.cross_entropy(m(x), y),
        wf.asarray(x).to("cuda"), wf.asarray(y).to("cuda"),
    )  # fmt: skip
    first = first_call(step)
    losses = [float(step()) for _ in range(5)]
    best = milliseconds(step, wf.cuda.synchronize, 200)
    report(FILE, {"part": "mlp", "weft ms": round(best, 4), "first s": round(first, 2),
                  "losses": [round(v, 4) for v in losses]})  # fmt: skip
    where_time_goes(step)


def gpt(batch: int = 16, layers: int = 12) -> None:
    """GPT-124M, batch 16 x 1024, bfloat16 weights."""
    config = wf.models.GPTConfig(
        vocabulary=50304, context=1024, layers=layers, heads=12, width=768, dropout=0.0
    )
    wf.random.seed(0)
    model = wf.models.GPT(config).to("bfloat16").to("cuda")
    tokens = np.random.default_rng(0).integers(0, 50304, (batch, 1025))
    x, y = wf.asarray(tokens[:, :-1]).to("cuda"), wf.asarray(tokens[:, 1:]).to("cuda")

    def loss_of(m: Any, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        logits = m(x)
        return wf.nn.functional.cross_entropy(logits.reshape(-1, 50304), y.reshape(-1))

    step = weft_step(model, loss_of, x, y)
    first = first_call(step)
    losses = [float(step()) for _ in range(3)]
    best = milliseconds(step, wf.cuda.synchronize, 5)
    stats = wf.cuda.memory_stats()
    report(FILE, {"part": f"gpt {layers} layers", "weft ms": round(best, 3),
                  "first s": round(first, 2), "losses": [round(v, 3) for v in losses],
                  "peak GB": round(stats.peak / 1e9, 2)})  # fmt: skip
    where_time_goes(step, 40)


def eager() -> None:
    """The cost of one operation on few elements, in microseconds of the host."""
    import torch

    x, t = wf.ones((64, 64), device="cuda"), torch.ones(64, 64, device="cuda")
    row: dict[str, object] = {"part": "eager us"}
    for name, ours, theirs in (
        ("add", lambda: x + x, lambda: t + t),
        ("exp", lambda: wf.exp(x), lambda: torch.exp(t)),
        ("matmul", lambda: x @ x, lambda: t @ t),
        ("sum", lambda: x.sum(), lambda: t.sum()),
        ("gelu", lambda: wf.gelu(x), lambda: torch.nn.functional.gelu(t)),
        ("softmax", lambda: wf.softmax(x, axis=-1), lambda: torch.softmax(t, -1)),
    ):
        ours(), theirs()
        row[name] = [
            round(1e3 * milliseconds(ours, wf.cuda.synchronize, 500), 2),
            round(1e3 * milliseconds(theirs, torch.cuda.synchronize, 500), 2),
        ]
    report(FILE, row)


PARTS = {"mlp": mlp, "eager": eager, "gpt2": lambda: gpt(layers=2), "gpt": gpt}

if __name__ == "__main__":
    sys.path.insert(0, ".")
    run_parts(PARTS, __file__, 300)
