"""Training steps and eager operations on a card, beside PyTorch's.

    python -m benchmarks.gpu.steps                all parts, each in a process of its own
    python -m benchmarks.gpu.steps mlp            one part

Times are wall-clock milliseconds of a step in a run of many, which ends with a wait for the card.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from benchmarks.gpu.reporting import report, run_parts

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


def gpt(batch: int = 16, layers: int = 12, *, mixed: bool = False) -> None:
    """GPT-124M, batch 16 x 1024; bfloat16 weights, or float32 ones inside of autocast."""
    config = wf.models.GPTConfig(
        vocabulary=50304, context=1024, layers=layers, heads=12, width=768, dropout=0.0
    )
    wf.random.seed(0)
    model = wf.models.GPT(config).to("cuda")
    if not mixed:
        model = model.to("bfloat16")
    tokens = np.random.default_rng(0).integers(0, 50304, (batch, 1025))
    x, y = wf.asarray(tokens[:, :-1]).to("cuda"), wf.asarray(tokens[:, 1:]).to("cuda")

    def loss_of(m: Any, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        with wf.autocast("bfloat16", enabled=mixed):
            logits = m(x)
            return wf.nn.functional.cross_entropy(logits.reshape(-1, 50304), y.reshape(-1))

    step = weft_step(model, loss_of, x, y)
    first = first_call(step)
    losses = [float(step()) for _ in range(3)]
    best = milliseconds(step, wf.cuda.synchronize, 5)
    stats = wf.cuda.memory_stats()
    name = f"gpt {layers} layers" + (", mixed" if mixed else "")
    report(FILE, {"part": name, "weft ms": round(best, 3),
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


def eager_open(count: int = 300) -> None:
    """Eager calls that changed since they were measured, in microseconds beside PyTorch's.

    Without PyTorch's on a card, as where the card is imitated, ours alone.
    """
    x, number, steps = wf.ones((64, 64), device="cuda"), [0], 16
    ours: dict[str, Callable[[], object]] = {
        "x.T @ x": lambda: x.T @ x,
        "x.T": lambda: x.T,
        "dropout": lambda: wf.nn.functional.dropout(x, 0.1),
        "x[:, t]": lambda: x[:, _next_number(number, steps)],
        "zeros": lambda: wf.zeros((64, 64), device="cuda"),
        "normal": lambda: wf.random.normal((64, 64), device="cuda"),
        "read": lambda: x.numpy(),
    }
    theirs: dict[str, Callable[[], object]] = {}
    try:
        import torch

        t = torch.ones(64, 64, device="cuda")
        theirs = {
            "x.T @ x": lambda: t.T @ t,
            "x.T": lambda: t.T,
            "dropout": lambda: torch.nn.functional.dropout(t, 0.1),
            "x[:, t]": lambda: t[:, _next_number(number, steps)],
            "zeros": lambda: torch.zeros((64, 64), device="cuda"),
            "normal": lambda: torch.randn((64, 64), device="cuda"),
            "read": lambda: t.cpu(),
        }
    except (ImportError, AssertionError, RuntimeError):
        count = 2
    for name, call in ours.items():
        call()
        row: dict[str, object] = {"part": "eager us", "call": name}
        row["weft"] = round(1e3 * milliseconds(call, wf.cuda.synchronize, count), 2)
        if theirs:
            theirs[name]()
            row["torch"] = round(1e3 * milliseconds(theirs[name], torch.cuda.synchronize, count), 2)
        report(FILE, row)


def _next_number(held: list[int], stop: int) -> int:
    """Numbers from 0 on, again and again: a place that changes from call to call."""
    held[0] = (held[0] + 1) % stop
    return held[0]


def resnet(batch: int = 128) -> None:
    """ResNet-50 at 224, bfloat16 weights."""
    wf.random.seed(0)
    model = wf.models.resnet50().to("bfloat16").to("cuda")
    images = np.random.default_rng(0).normal(size=(batch, 3, 224, 224)).astype(np.float32)
    x = wf.asarray(images).astype("bfloat16").to("cuda")
    y = wf.asarray(np.arange(batch) % 1000).to("cuda")
    step = weft_step(
        model, lambda m, x, y: wf.nn.functional.cross_entropy(m(x).astype("float32"), y), x, y
    )
    first = first_call(step)
    losses = [float(step()) for _ in range(3)]
    best = milliseconds(step, wf.cuda.synchronize, 5)
    report(FILE, {"part": "resnet50", "weft ms": round(best, 3), "first s": round(first, 2),
                  "losses": [round(v, 3) for v in losses],
                  "peak GB": round(wf.cuda.memory_stats().peak / 1e9, 2)})  # fmt: skip
    where_time_goes(step, 40)


def lstm() -> None:
    """Two layers of 256, batch 64 × 64 steps, float32."""
    wf.random.seed(0)
    model = wf.nn.LSTM(128, 256, 2).to("cuda")
    x = wf.asarray(np.random.default_rng(0).normal(size=(64, 64, 128)).astype(np.float32)).to(
        "cuda"
    )
    step = weft_step(model, lambda m, x: (m(x)[0] ** 2).mean(), x)
    first = first_call(step)
    best = milliseconds(step, wf.cuda.synchronize, 10)
    report(FILE, {"part": "lstm", "weft ms": round(best, 3), "first s": round(first, 2)})


def torch_gpt() -> None:
    """The same GPT by PyTorch, eager and compiled."""
    import torch
    import torch.nn.functional as F  # noqa: N812
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(768), nn.LayerNorm(768)
            self.qkv, self.out = nn.Linear(768, 2304), nn.Linear(768, 768)
            self.up, self.down = nn.Linear(768, 3072), nn.Linear(3072, 768)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, time, width = x.shape
            q, k, v = (
                part.view(batch, time, 12, 64).transpose(1, 2)
                for part in self.qkv(self.first(x)).split(width, dim=2)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, time, width))
            return x + self.down(F.gelu(self.up(self.second(x))))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(50304, 768), nn.Embedding(1024, 768)
            self.blocks = nn.Sequential(*[Block() for _ in range(12)])
            self.norm = nn.LayerNorm(768)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.tokens(x) + self.places(torch.arange(x.shape[1], device="cuda"))
            return self.norm(self.blocks(h)) @ self.tokens.weight.T

    row: dict[str, object] = {"part": "torch gpt"}
    tokens = torch.randint(0, 50304, (16, 1025), device="cuda")
    for name in ("eager", "compiled", "eager mixed", "compiled mixed"):
        is_mixed = name.endswith("mixed")
        model = GPT().cuda()
        if not is_mixed:
            model = model.to(torch.bfloat16)
        run: Any = torch.compile(model) if name.startswith("compiled") else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

        def step(run: Any = run, optimizer: Any = optimizer, mixed: bool = is_mixed) -> Any:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
                logits = run(tokens[:, :-1])
                loss = F.cross_entropy(logits.view(-1, 50304), tokens[:, 1:].reshape(-1))
            loss.backward()
            optimizer.step()
            return loss

        torch.cuda.reset_peak_memory_stats()
        first = first_call(step)
        for _ in range(3):
            step()
        row[name] = round(milliseconds(step, torch.cuda.synchronize, 5), 3)
        row[f"{name} first s"] = round(first, 2)
        row[f"{name} peak GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
    report(FILE, row)


def torch_resnet() -> None:
    """ResNet-50 by PyTorch with channels last, bfloat16."""
    import torch
    import torch.nn.functional as F  # noqa: N812
    import torchvision

    model = torchvision.models.resnet50().cuda().to(torch.bfloat16)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(128, 3, 224, 224, device="cuda").to(torch.bfloat16)
    x = x.to(memory_format=torch.channels_last)
    y = torch.arange(128, device="cuda") % 1000

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        step()
    best = milliseconds(step, torch.cuda.synchronize, 5)
    report(FILE, {"part": "torch resnet50", "eager": round(best, 3)})


PARTS = {
    "mlp": mlp,
    "eager": eager,
    "eager_open": eager_open,
    "gpt": gpt,
    "gpt_mixed": lambda: gpt(mixed=True),
    "torch_gpt": torch_gpt,
    "resnet": resnet,
    "torch_resnet": torch_resnet,
    "lstm": lstm,
}

if __name__ == "__main__":
    run_parts(PARTS, __file__, 300)
