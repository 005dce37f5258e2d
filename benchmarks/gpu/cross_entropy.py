"""Generated cross entropy, loss and gradient, against torch.compile on the same card."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from benchmarks.gpu.loading import LoadedKernel, measure, multiprocessors, report

from weft.compiler.targets.cuda.cross_entropy import CrossEntropySpec, cross_entropy_kernel

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def check_and_time(rows: int, columns: int, dtype: str, timed: bool) -> None:
    """One size: errors against float32, and times."""
    logits = (torch.randn(rows, columns, device="cuda") * 2).to(TYPES[dtype])
    labels = torch.randint(0, columns, (rows,), device="cuda", dtype=torch.int32)
    labels[rows // 2] = -100
    operands = {
        "logits": logits,
        "labels": labels,
        "scale": torch.full((1,), 1 / rows, device="cuda"),
        "losses": torch.full((rows,), float("nan"), device="cuda"),
        "gradient": torch.full_like(logits, float("nan")),
    }
    if dtype == "float16":
        operands["scale"] *= rows
    kernel = cross_entropy_kernel(CrossEntropySpec(dtype, columns))
    loaded = LoadedKernel(kernel.name, kernel.text, kernel.threads, kernel.shared_bytes)
    blocks = min(rows, multiprocessors())
    run = loaded.launcher(kernel.parameters, blocks, operands, {"rows": rows})
    run()
    torch.cuda.synchronize()
    count = min(rows, 2048)  # as many rows as float32 has room for beside the rest
    point = logits[:count].float().requires_grad_()
    losses = F.cross_entropy(point, labels[:count].long(), reduction="none")
    gradient = torch.autograd.grad(losses.sum(), point)[0] * operands["scale"]
    difference = (operands["gradient"][:count].float() - gradient).norm() / gradient.norm()
    row: dict[str, object] = {
        "rows": rows,
        "columns": columns,
        "dtype": dtype,
        "loss": float((operands["losses"][:count] - losses).abs().max()),
        "gradient": float(difference),
        "written": bool(operands["gradient"].isfinite().all()),
    }
    if timed:
        long = labels.long()
        compiled = torch.compile(lambda x: F.cross_entropy(x.float(), long))
        variable = logits.clone().requires_grad_()

        def rival() -> object:
            return torch.autograd.grad(compiled(variable), variable)

        copied = torch.empty_like(logits)
        row |= measure(
            {"weft": run, "compiled": rival, "copy": lambda: copied.copy_(logits)}, 10, 3
        )
    report("cross_entropy.jsonl", row)


def main() -> None:
    """All sizes."""
    check_and_time(300, 1000, "float16", timed=False)
    check_and_time(77, 50304, "bfloat16", timed=False)
    check_and_time(200, 100_000, "bfloat16", timed=False)
    check_and_time(16384, 50304, "bfloat16", timed=True)
    check_and_time(16384, 32000, "bfloat16", timed=True)


if __name__ == "__main__":
    main()
