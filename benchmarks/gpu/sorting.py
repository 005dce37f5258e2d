"""Sorts, first few, running sums and masked attention through Weft's calls, beside PyTorch's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from benchmarks.gpu.reporting import report

import weft as wf

FILE = "sorting.jsonl"


def microseconds(call: Callable[[], object], wait: Callable[[], object], count: int) -> float:
    """The best time of a call, in runs of `count` calls."""
    call()
    call()
    best = float("inf")
    for _ in range(3):
        wait()
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        best = min(best, (time.perf_counter() - start) / count * 1e6)
    return round(best, 1)


def beside(name: str, weft: Callable[..., Any], rival: Callable[..., Any], *shape: int) -> None:
    """Time one function of a float32 array."""
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    ours, theirs = wf.asarray(x).to("cuda"), torch.from_numpy(x).cuda()
    compiled = wf.jit(weft)
    row = {
        "case": f"{name} {'x'.join(map(str, shape))}",
        "weft": microseconds(lambda: compiled(ours), wf.cuda.synchronize, 20),
        "torch": microseconds(lambda: rival(theirs), torch.cuda.synchronize, 20),
    }
    report(FILE, row)


def attention(name: str, **options: Any) -> None:
    """Masked attention and its gradient, batch 8, 12 heads, 1024 tokens of 64, in bfloat16."""
    shape = (8, 12, 1024, 64)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    mask = np.random.default_rng(1).random((1024, 1024)) > 0.1
    bias = np.where(mask, 0, -1e4).astype(np.float32)
    given = {"bool": mask, "float": bias, "": None}[options.pop("mask", "")]
    ours = wf.asarray(x).to("cuda").astype("bfloat16")
    theirs = torch.from_numpy(x).cuda().bfloat16().requires_grad_()
    our_mask = None if given is None else wf.asarray(given).to("cuda")
    their_mask = None if given is None else torch.from_numpy(given).cuda()
    if their_mask is not None and their_mask.dtype != torch.bool:
        their_mask = their_mask.bfloat16()
    key = wf.random.key(0).to("cuda")

    def run(x: wf.Tensor) -> wf.Tensor:
        drawn = {"key": key} if "dropout" in options else {}
        return wf.scaled_dot_product_attention(x, x, x, our_mask, **options, **drawn)

    def rival() -> torch.Tensor:
        return F.scaled_dot_product_attention(
            theirs, theirs, theirs, their_mask, dropout_p=options.get("dropout", 0.0),
            is_causal=options.get("causal", False),
        )  # fmt: skip

    def rival_gradient() -> object:
        out = rival()
        return torch.autograd.grad(out, theirs, out)

    forward = wf.jit(run)
    both = wf.jit(wf.grad(lambda x: (run(x).astype("float32") ** 2).sum() * 0.5))
    report(FILE, {
        "case": f"attention {name}",
        "weft forward": microseconds(lambda: forward(ours), wf.cuda.synchronize, 20),
        "torch forward": microseconds(rival, torch.cuda.synchronize, 20),
        "weft both": microseconds(lambda: both(ours), wf.cuda.synchronize, 10),
        "torch both": microseconds(rival_gradient, torch.cuda.synchronize, 10),
    })  # fmt: skip


def main() -> None:
    """All cases."""
    attention("causal", causal=True)
    attention("mask", mask="bool")
    attention("numbers", mask="float")
    attention("dropout", dropout=0.1, causal=True)
    beside("sort", lambda x: wf.sort(x), lambda x: x.sort(), 1 << 20)
    beside("sort", lambda x: wf.sort(x), lambda x: x.sort(), 4096, 1024)
    beside("topk 50", lambda x: wf.topk(x, 50), lambda x: x.topk(50), 64, 50304)
    beside("topk 2", lambda x: wf.topk(x, 2), lambda x: x.topk(2), 16384, 64)
    beside("cumsum", lambda x: wf.cumsum(x, axis=-1), lambda x: x.cumsum(-1), 1 << 22)
    beside("cumsum", lambda x: wf.cumsum(x, axis=-1), lambda x: x.cumsum(-1), 4096, 1024)
    beside("cumsum of columns", lambda x: wf.cumsum(x, axis=0), lambda x: x.cumsum(0), 1024, 4096)


if __name__ == "__main__":
    main()
