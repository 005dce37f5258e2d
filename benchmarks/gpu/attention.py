"""Generated attention against cuDNN's and flash attention, through PyTorch on the same card.

    python -m benchmarks.gpu.attention                 all parts, each in a process of its own
    python -m benchmarks.gpu.attention forward_speed   one part

Every element is compared with attention in float32 by PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from benchmarks.gpu.loading import LoadedKernel, measure, multiprocessors
from benchmarks.gpu.reporting import report, run_parts
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.compiler.targets.cuda.attention.backward import backward_kernel, backward_launch
from weft.compiler.targets.cuda.attention.description import AttentionSizes, AttentionSpec
from weft.compiler.targets.cuda.attention.forward import (
    ForwardPlan,
    forward_kernel,
    forward_launch,
    forward_plan,
)
from weft.compiler.targets.cuda.attention.rows import (
    after_kernel,
    after_launch,
    before_kernel,
    before_launch,
    buffer_numbers,
    counter_numbers,
    row_numbers,
)

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
RIVALS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


@dataclass(frozen=True)
class Case:
    """One problem: [batch, heads, time, head], or with `packed` the same as [batch, time, ...]."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    head: int = 64
    causal: bool = True
    dtype: str = "bfloat16"
    packed: bool = False

    @property
    def spec(self) -> AttentionSpec:
        """The kernel's description."""
        return AttentionSpec(self.dtype, self.head, self.causal)

    @property
    def sizes(self) -> AttentionSizes:
        """The launch's sizes; the last query sees all keys."""
        offset = self.keys - self.queries if self.causal else 0
        return AttentionSizes(
            self.batch, self.heads, self.key_heads, self.queries, self.keys, offset
        )

    def tensor(self, heads: int, time: int) -> torch.Tensor:
        """Random queries, keys or values."""
        shape = (self.batch, heads, time, self.head)
        if self.packed:
            shape = (self.batch, time, heads, self.head)
        made = torch.randn(*shape, device="cuda").to(TYPES[self.dtype])
        return made.transpose(1, 2) if self.packed else made

    def operands(self) -> dict[str, torch.Tensor]:
        """Inputs, and results filled with what is no number."""
        q = self.tensor(self.heads, self.queries)
        k, v = (self.tensor(self.key_heads, self.keys) for _ in range(2))
        sums = torch.full((self.batch, self.heads, self.queries), math.nan, device="cuda")
        return {"q": q, "k": k, "v": v, "out": torch.full_like(q, math.nan), "sums": sums}

    def expected(self, operands: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Result and log of the sums in float32."""
        group = self.heads // self.key_heads
        q = operands["q"].float()
        k, v = (operands[name].float().repeat_interleave(group, 1) for name in ("k", "v"))
        scores = q @ k.mT / math.sqrt(self.head)
        if self.causal:
            rows = torch.arange(self.queries, device="cuda")[:, None] + self.sizes.offset
            hidden = torch.arange(self.keys, device="cuda")[None] > rows
            scores = scores.masked_fill(hidden, -math.inf)
        return scores.softmax(-1) @ v, scores.logsumexp(-1)


def prepare_forward(
    case: Case, operands: dict[str, torch.Tensor], plan: ForwardPlan | None = None
) -> Callable[[], None]:
    """A launch of attention."""
    plan = plan or forward_plan(case.spec, case.sizes)
    kernel = forward_kernel(case.spec, plan)
    how = forward_launch(case.sizes, plan, multiprocessors())
    loaded = LoadedKernel(kernel.name, kernel.text, kernel.threads, kernel.shared_bytes)
    return loaded.launcher(kernel.parameters, how.blocks, operands, how.words)


def prepare_backward(
    case: Case, operands: dict[str, torch.Tensor]
) -> dict[str, Callable[[], None]]:
    """The three launches of the backward pass; adds gradients and buffers to the operands."""
    spec, sizes = case.spec, case.sizes
    operands["dout"] = case.tensor(case.heads, case.queries)
    for name in ("q", "k", "v"):
        operands[f"d{name}"] = torch.full_like(operands[name], math.nan)
    for name in ("logs", "products"):
        operands[name] = torch.full((row_numbers(spec, sizes),), math.nan, device="cuda")
    operands["buffer"] = torch.full((buffer_numbers(spec, sizes),), math.nan, device="cuda")
    counters = torch.zeros(counter_numbers(spec, sizes), device="cuda", dtype=torch.int32)
    operands["counters"] = counters
    launches = {
        "before": (before_kernel(spec), before_launch(spec, sizes), operands),
        "pass": (
            backward_kernel(spec),
            backward_launch(spec, sizes, multiprocessors()),
            {**operands, "dq": operands["buffer"]},
        ),
        "after": (after_kernel(spec), after_launch(spec, sizes), operands),
    }
    runs = {}
    for name, (kernel, how, given) in launches.items():
        loaded = LoadedKernel(kernel.name, kernel.text, kernel.threads, kernel.shared_bytes)
        runs[name] = loaded.launcher(kernel.parameters, how.blocks, given, how.words)
    return runs


CHECKED = [
    Case(1, 1, 1, 128, 128),
    Case(2, 3, 3, 256, 256),
    Case(1, 2, 1, 77, 77),
    Case(2, 4, 2, 333, 333, packed=True),
    Case(1, 2, 2, 100, 357),
    Case(1, 2, 2, 1, 1000),
    Case(1, 2, 2, 200, 500, causal=False),
    Case(2, 2, 1, 640, 640, causal=False, dtype="float16"),
    Case(1, 2, 2, 512, 512, head=128),
    Case(2, 4, 1, 300, 411, head=128, packed=True),
    Case(1, 2, 2, 129, 65, head=128, causal=False),
    Case(1, 1, 1, 64, 128, head=256),
    Case(1, 2, 2, 333, 500, head=256),
    Case(2, 4, 2, 300, 411, head=256, packed=True),
    Case(1, 2, 1, 200, 700, head=256, causal=False, dtype="float16"),
    Case(2, 12, 12, 1024, 1024, head=256),
    Case(4, 12, 12, 1024, 1024),
]


def _error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(f"{float((got.float() - wanted).abs().max()):.2e}")


def forward_errors(case: Case, plan: ForwardPlan | None = None) -> dict[str, object]:
    """Errors of the forward pass against float32, and whether they are good."""
    operands = case.operands()
    run = prepare_forward(case, operands, plan)
    run()
    torch.cuda.synchronize()
    out, sums = case.expected(operands)
    errors = [_error(operands["out"], out), _error(operands["sums"], sums)]
    first = operands["out"].clone()
    run()
    torch.cuda.synchronize()
    differs = int((first != operands["out"]).sum())
    return {
        "case": str(case),
        "out": errors[0],
        "sums": errors[1],
        "rounding": _error(out.to(TYPES[case.dtype]), out),
        "differs": differs,
        "good": errors[0] < 0.02 and errors[1] < 1e-4 and differs == 0,
    }


def forward_check() -> None:
    """Every mask, head size and tail against float32."""
    for case in CHECKED:
        report("attention_forward_check.jsonl", forward_errors(case))


SPEED = [
    Case(16, 12, 12, 1024, 1024),
    Case(4, 12, 12, 4096, 4096),
    Case(16, 12, 12, 1024, 1024, causal=False),
    Case(8, 12, 12, 1024, 1024, head=128),
    Case(2, 16, 16, 4096, 4096, head=128),
    Case(8, 12, 12, 1024, 1024, head=256),
    Case(2, 8, 8, 4096, 4096, head=256),
    Case(16, 12, 12, 1024, 1024, packed=True),
]
PLANS = {
    "turns": ForwardPlan(2, 3, True),
    "free": ForwardPlan(2, 3, False),
    "three": ForwardPlan(3, 2, False),
    "three turns": ForwardPlan(3, 2, True),
}


def _rival(operands: dict[str, torch.Tensor], case: Case, name: str) -> Callable[[], object]:
    def run() -> object:
        with sdpa_kernel(RIVALS[name]):
            return F.scaled_dot_product_attention(
                operands["q"], operands["k"], operands["v"], is_causal=case.causal
            )

    return run


def _runs(rival: Callable[[], object]) -> bool:
    """Whether a rival has a kernel for the case."""
    try:
        rival()
    except RuntimeError:
        return False
    return True


def _fitting(plan: ForwardPlan, head: int) -> ForwardPlan:
    """Heads of 128 leave room for two stages."""
    return plan if head == 64 else ForwardPlan(plan.consumers, 2, plan.turns)


def forward_speed() -> None:
    """Plans of the forward kernel against both rivals."""
    for case in SPEED:
        operands = case.operands()
        plans = {
            name: plan for name, plan in PLANS.items() if case.head in (64, plan.consumers * 64)
        }
        runs: dict[str, Callable[[], object]] = {
            name: prepare_forward(case, operands, _fitting(plan, case.head))
            for name, plan in plans.items()
        }
        runs["weft"] = prepare_forward(case, operands)
        rivals = {name: _rival(operands, case, name) for name in RIVALS}
        runs |= {name: rival for name, rival in rivals.items() if _runs(rival)}
        times = measure(runs)
        work = 4 * case.batch * case.heads * case.queries * case.keys * case.head
        work //= 2 if case.causal else 1
        row = {"case": str(case), **times, "tflops": round(work / times["weft"] / 1e6)}
        report("attention_forward_speed.jsonl", row)


def backward_errors(case: Case) -> dict[str, object]:
    """Relative errors of the gradients against float32; bits must be the same in every run."""
    operands = case.operands()
    prepare_forward(case, operands)()
    runs = prepare_backward(case, operands)
    names = ("dq", "dk", "dv")
    results = []
    for _ in range(3):
        for run in runs.values():
            run()
        torch.cuda.synchronize()
        results.append([operands[name].clone() for name in names])
    inputs = [operands[name].float().detach().requires_grad_() for name in ("q", "k", "v")]
    out = case.expected(dict(zip("qkv", inputs, strict=True)))[0]
    wanted = torch.autograd.grad(out, inputs, operands["dout"].float())
    errors = [
        float((got.float() - want).norm() / want.norm())
        for got, want in zip(results[0], wanted, strict=True)
    ]
    differs = sum(
        int((one != other).sum())
        for others in results[1:]
        for one, other in zip(results[0], others, strict=True)
    )
    counters = int(operands["counters"].abs().sum())
    good = max(errors) < 0.01 and differs == 0 and counters == 0
    found = {name: float(f"{error:.2e}") for name, error in zip(names, errors, strict=True)}
    return {"case": str(case), **found, "differs": differs, "counters": counters, "good": good}


def backward_check() -> None:
    """Gradients of every mask, head size and tail."""
    for case in CHECKED:
        report("attention_backward_check.jsonl", backward_errors(case))


def _rival_backward(
    operands: dict[str, torch.Tensor], case: Case, name: str
) -> Callable[[], object]:
    inputs = [operands[each].detach().requires_grad_() for each in ("q", "k", "v")]

    def run() -> object:
        with sdpa_kernel(RIVALS[name]):
            out = F.scaled_dot_product_attention(*inputs, is_causal=case.causal)
            return torch.autograd.grad(out, inputs, operands["dout"])

    return run


def backward_speed() -> None:
    """All three kernels of the backward pass against both rivals."""
    for case in SPEED:
        operands = case.operands()
        prepare_forward(case, operands)()
        runs = prepare_backward(case, operands)

        def every(runs: dict[str, Callable[[], None]] = runs) -> None:
            for run in runs.values():
                run()

        functions: dict[str, Callable[[], object]] = {"weft": every}
        functions |= {"before": runs["before"], "after": runs["after"]}
        rivals = [name for name in RIVALS if _runs(_rival_backward(operands, case, name))]
        for name in rivals:
            functions[f"{name} forward"] = _rival(operands, case, name)
            functions[f"{name} both"] = _rival_backward(operands, case, name)
        times = measure(functions, 20, 5)
        for name in rivals:
            backward = times.pop(f"{name} both") - times.pop(f"{name} forward")
            times[name] = round(backward, 2)
        work = 10 * case.batch * case.heads * case.queries * case.keys * case.head
        work //= 2 if case.causal else 1
        row = {"case": str(case), **times, "tflops": round(work / times["weft"] / 1e6)}
        report("attention_backward_speed.jsonl", row)


PARTS: dict[str, Callable[[], None]] = {
    "forward_check": forward_check,
    "forward_speed": forward_speed,
    "backward_check": backward_check,
    "backward_speed": backward_speed,
}


if __name__ == "__main__":
    run_parts(PARTS, __file__, seconds=120)
