"""Generated cross entropy, loss and gradient, against torch.compile on the same card."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from benchmarks.gpu.loading import LoadedKernel, measure, multiprocessors
from benchmarks.gpu.reporting import report

from weft.compiler.targets.cuda.cross_entropy import CrossEntropySpec, cross_entropy_kernel

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def prepare(
    rows: int, columns: int, dtype: str
) -> tuple[Callable[[], None], dict[str, torch.Tensor]]:
    """A launch of softmax and gradient, and its operands; one row has no label."""
    logits = (torch.randn(rows, columns, device="cuda") * 2).to(TYPES[dtype])
    labels = torch.randint(0, columns, (rows,), device="cuda")
    labels[rows // 2] = -100
    factors = torch.full((rows,), 1.0 if dtype == "float16" else 1 / rows, device="cuda")
    factors[rows // 2] = 0
    operands = {
        "logits": logits,
        "labels": labels,
        "terms": -factors,
        "factors": factors,
        "top": torch.full((rows,), float("nan"), device="cuda"),
        "total": torch.full((rows,), float("nan"), device="cuda"),
        "gradient": torch.full_like(logits, float("nan")),
    }
    kernel = cross_entropy_kernel(CrossEntropySpec(dtype, columns))
    loaded = LoadedKernel(kernel.name, kernel.text, kernel.threads, kernel.shared_bytes)
    blocks = min(rows, multiprocessors())
    return loaded.launcher(kernel.parameters, blocks, operands, {"rows": rows}), operands


def errors(rows: int, columns: int, dtype: str) -> dict[str, float]:
    """The greatest error of a log of a sum, and the gradient's relative one, against float32."""
    run, operands = prepare(rows, columns, dtype)
    run()
    torch.cuda.synchronize()
    point = operands["logits"].float().requires_grad_()
    losses = F.cross_entropy(point, operands["labels"], reduction="none")
    gradient = torch.autograd.grad(losses.sum(), point)[0] * operands["factors"][:, None]
    difference = (operands["gradient"].float() - gradient).norm() / gradient.norm()
    sums = operands["top"] + operands["total"].log()
    loss = (sums - point.detach().logsumexp(1)).abs().max()
    return {"loss": float(loss), "gradient": float(difference)}


CHECKED = [(300, 1000, "float16"), (77, 50304, "bfloat16"), (200, 100_000, "bfloat16")]


def times(rows: int, columns: int) -> dict[str, float]:
    """Softmax and gradient against PyTorch, eager and compiled, and a copy of the logits."""
    run, operands = prepare(rows, columns, "bfloat16")
    labels, logits = operands["labels"], operands["logits"]
    compiled = torch.compile(lambda x: F.cross_entropy(x.float(), labels))
    variable = logits.clone().requires_grad_()
    copied = torch.empty_like(logits)
    functions: dict[str, Callable[[], object]] = {
        "weft": run,
        "eager": lambda: torch.autograd.grad(F.cross_entropy(variable, labels), variable),
        "compiled": lambda: torch.autograd.grad(compiled(variable), variable),
        "copy": lambda: copied.copy_(logits),
    }
    return measure(functions, 10, 3)


def main() -> None:
    """All sizes."""
    for rows, columns, dtype in CHECKED:
        found = errors(rows, columns, dtype)
        row = {"rows": rows, "columns": columns, "dtype": dtype, **found}
        report("cross_entropy.jsonl", row)
    for rows, columns in ((16384, 50304), (16384, 32000)):
        report("cross_entropy.jsonl", {"rows": rows, "columns": columns, **times(rows, columns)})


if __name__ == "__main__":
    main()
