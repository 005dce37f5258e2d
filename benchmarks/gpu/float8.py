"""Products of 8-bit floats beside bfloat16: kernels, what precedes them, layers, and a GPT.

    python -m benchmarks.gpu.float8            all parts, each in a process of its own
    python -m benchmarks.gpu.float8 kernels    one part

cuBLAS's products are those of `torch._scaled_mm`, once with its quick sums (the tensor cores' own)
and once with those that it promotes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from benchmarks.gpu.loading import LoadedKernel, measure, multiprocessors
from benchmarks.gpu.products import prepare
from benchmarks.gpu.reporting import report, run_parts
from benchmarks.gpu.steps import first_call, milliseconds, weft_step, where_time_goes

import weft as wf
from weft.compiler.targets.cuda.products.choice import (
    best_plan,
    kernel_of,
    launch,
    with_most_stages,
)
from weft.compiler.targets.cuda.products.code_transposes import transpose_blocks, transpose_kernel
from weft.compiler.targets.cuda.products.description import (
    FLOAT8_PAIRS,
    Plan,
    ProductSpec,
    Sizes,
)
from weft.ops.float8 import codes_of

FILE = "float8.jsonl"
TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
SHAPES = [
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16384, 3072, 768),
    (16384, 768, 3072),
    (16384, 2304, 768),
    (768, 3072, 16384),
    (16384, 16384, 4096),
    (16384, 4096, 16384),
]
TILES = ((128, 192), (192, 128), (128, 128), (128, 64), (64, 128))


def _operands(pair: str, sizes: Sizes, output: str) -> dict[str, torch.Tensor]:
    """Numbers of the two formats, and room for their product."""
    found = {
        name: torch.randn(rows, sizes.k, device="cuda").to(TYPES[kind])
        for name, rows, kind in zip("ab", (sizes.m, sizes.n), FLOAT8_PAIRS[pair], strict=True)
    }
    kind = torch.float32 if output == "float32" else torch.bfloat16
    return found | {"out": torch.empty(sizes.m, sizes.n, device="cuda", dtype=kind)}


def _launch(
    spec: ProductSpec, plan: Plan, sizes: Sizes, operands: dict[str, torch.Tensor]
) -> Callable[[], None]:
    kernel = kernel_of(spec, plan)
    how = launch(kernel, sizes, multiprocessors())
    given = {
        name: value.view(torch.uint8) if name in "ab" else value
        for name, value in operands.items()
    } | {
        "workspace": torch.empty(max(how.workspace_bytes, 4) // 4, device="cuda"),
        "counters": torch.zeros(max(how.counters, 1), device="cuda", dtype=torch.int32),
    }  # fmt: skip
    loaded = LoadedKernel(kernel.name, kernel.text, kernel.threads, kernel.shared_bytes)
    return loaded.launcher(kernel.parameters, how.blocks, given, how.words)


def _rivals(operands: dict[str, torch.Tensor]) -> dict[str, Callable[[], object]]:
    one = torch.ones((), device="cuda")

    def multiply(quick: bool) -> object:
        return torch._scaled_mm(
            operands["a"], operands["b"].T, one, one, out_dtype=torch.bfloat16,
            use_fast_accum=quick,
        )  # fmt: skip

    return {"cublas": lambda: multiply(False), "cublas, quick sums": lambda: multiply(True)}


def kernels() -> None:
    """Every tile, the chosen plan, cuBLAS, and the same product of bfloat16; errors."""
    pair = "e4m3 by e4m3"
    spec = ProductSpec(pair, "bfloat16", transpose_b=True)
    for shape in SHAPES:
        sizes = Sizes(*shape)
        operands = _operands(pair, sizes, "bfloat16")
        chosen = best_plan(spec, sizes, multiprocessors())
        runs: dict[str, Callable[[], object]] = {
            "chosen": _launch(spec, chosen, sizes, operands),
            **_rivals(operands),
        }
        runs["chosen"]()
        wanted = operands["a"].double() @ operands["b"].double().T if max(shape) < 9000 else None
        error = None
        if wanted is not None:
            error = float((operands["out"].double() - wanted).norm() / wanted.norm())
        for tile in TILES:
            plan = with_most_stages(spec, Plan(*tile, stages=0))
            runs[f"{tile[0]}x{tile[1]}"] = _launch(spec, plan, sizes, operands)
        short = ProductSpec("bfloat16", transpose_b=True)
        runs["bfloat16"] = prepare(short, best_plan(short, sizes, multiprocessors()), sizes)[0]
        times = measure(runs, 12, 5)
        flops = 2 * sizes.m * sizes.n * sizes.k / 1e6
        report(FILE, {"part": "kernels", "shape": shape, **times, "error": error,
                      "tflops": round(flops / times["chosen"]), "plan": str(chosen)})  # fmt: skip
        del operands, runs, wanted
        torch.cuda.empty_cache()


def layers() -> None:
    """A linear layer forward and backward as a program, in both precisions."""
    for rows, width, out in ((16384, 768, 3072), (16384, 4096, 4096), (16384, 4096, 16384)):
        random = np.random.default_rng(0)
        x, w = (
            wf.asarray(random.normal(size=shape).astype(np.float32)).to("cuda")
            for shape in ((rows, width), (out, width))
        )
        short = x.astype("bfloat16")
        ct = wf.asarray(random.normal(size=(rows, out)).astype(np.float32)).to("cuda")
        ct = ct.astype("bfloat16")
        for precision in ("bfloat16", "float8"):

            @wf.jit
            def step(x: Any, w: Any, ct: Any, name: str = precision) -> Any:
                def layer(x: Any, w: Any) -> Any:
                    with wf.autocast(name):
                        return wf.nn.functional.linear(x, w)

                y, back = wf.vjp(layer, x, w)
                return y, back(ct)

            def run(step: Any = step, given: Any = (short, w, ct)) -> Any:
                return step(*given)

            for _ in range(3):
                run()
            best = milliseconds(run, wf.cuda.synchronize, 20)
            shape = [rows, width, out]
            report(FILE, {"part": "layers", "shape": shape, "precision": precision,
                          "ms": round(best, 4)})  # fmt: skip
            where_time_goes(run, 12)


def gpt(batch: int = 16, layers: int = 12, width: int = 768, heads: int = 12) -> None:
    """A GPT's training step and its losses, in both precisions."""
    for precision in ("bfloat16", "float8"):
        config = wf.models.GPTConfig(
            vocabulary=50304, context=1024, layers=layers, heads=heads, width=width, dropout=0.0
        )
        wf.random.seed(0)
        model = wf.models.GPT(config).to("cuda")
        tokens = np.random.default_rng(0).integers(0, 50304, (batch, 1025))
        x, y = (wf.asarray(each).to("cuda") for each in (tokens[:, :-1], tokens[:, 1:]))

        def loss_of(m: Any, x: wf.Tensor, y: wf.Tensor, name: str = precision) -> wf.Tensor:
            with wf.autocast(name):
                logits = m(x)
                return wf.nn.functional.cross_entropy(logits.reshape(-1, 50304), y.reshape(-1))

        step = weft_step(model, loss_of, x, y, lr=3e-4)
        first = first_call(step)
        losses = [float(step()) for _ in range(60)]
        best = milliseconds(step, wf.cuda.synchronize, 3)
        report(FILE, {"part": f"gpt {layers} x {width}", "precision": precision,
                      "ms": round(best, 2), "first s": round(first, 1),
                      "losses": [round(value, 3) for value in losses[::4]],
                      "last losses": [round(value, 3) for value in losses[-6:]],
                      "peak GB": round(wf.cuda.memory_stats().peak / 1e9, 2)})  # fmt: skip
        where_time_goes(step, 24)
        del model, step


def passes() -> None:
    """What comes before a product: highest magnitudes, codes, transposes; GB/s of the least."""
    for rows, columns in ((16384, 768), (16384, 3072), (16384, 4096)):
        x = wf.asarray(np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32))
        one = wf.ones((), device="cuda")
        for dtype in ("bfloat16", "float32"):
            given = x.astype(dtype).to("cuda")
            item = given.dtype.itemsize
            parts = {
                "highest": (_compiled(lambda x: wf.max(wf.abs(x)), given), item),
                "codes": (_compiled(lambda x, s: codes_of(x, s, "e4m3"), given, one), item + 1),
            }
            row = dict[str, object]()
            for name, (run, moved) in parts.items():
                best = milliseconds(run, wf.cuda.synchronize, 20)
                speed = round(moved * rows * columns / best / 1e6)
                row |= {f"{name} us": round(best * 1e3, 1), f"{name} GB/s": speed}
            report(FILE, {"part": "passes", "shape": [rows, columns], "dtype": dtype, **row})
        codes = codes_of(given, one, "e4m3")
        source = torch.from_dlpack(codes)
        target = torch.empty(columns, rows, device="cuda", dtype=torch.uint8)
        kernel = transpose_kernel()
        loaded = LoadedKernel(kernel.name, kernel.text, kernel.threads, kernel.shared_bytes)
        turn = loaded.launcher(
            kernel.parameters, transpose_blocks(rows, columns),
            {"source": source, "turned": target}, {"rows": rows, "columns": columns},
        )  # fmt: skip
        times = measure({"weft": turn, "torch": lambda: target.copy_(source.T)}, 12, 5)  # noqa: B023
        is_right = bool((target == source.T).all())
        report(FILE, {"part": "transposes", "shape": [rows, columns], **times, "right": is_right,
                      "GB/s": round(2 * rows * columns / times["weft"] / 1e3)})  # fmt: skip


def _compiled(f: Callable[..., Any], *given: Any) -> Callable[[], object]:
    compiled = wf.jit(f)
    for _ in range(3):
        compiled(*given)
    return lambda: compiled(*given)


PARTS = {
    "passes": passes,
    "kernels": kernels,
    "layers": layers,
    "gpt": gpt,
    "wide": lambda: gpt(batch=8, layers=4, width=4096, heads=32),
}

if __name__ == "__main__":
    run_parts(PARTS, __file__, 300)
