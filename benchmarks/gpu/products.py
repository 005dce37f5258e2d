"""Generated products against cuBLAS, through PyTorch on the same card.

    python -m benchmarks.gpu.products            all parts, each in a process of its own
    python -m benchmarks.gpu.products speed      one part

Every element is compared with PyTorch's product of the same operands in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from benchmarks.gpu.loading import LoadedKernel, measure, multiprocessors
from benchmarks.gpu.reporting import report, run_parts

import weft as wf
from weft.compiler.pipeline import optimize
from weft.compiler.targets.cuda.products.choice import best_plan, kernel_of, launch
from weft.compiler.targets.cuda.products.cluster_products import (
    CLUSTERS,
    MOST_STEPS,
    STEP,
    TILE,
)
from weft.compiler.targets.cuda.products.description import (
    Apply,
    Combine,
    Compute,
    Constant,
    Keep,
    Matrix,
    Plan,
    ProductSpec,
    Scalar,
    Sizes,
    Step,
    Sum,
    Vector,
    operands_of,
)
from weft.compiler.targets.cuda.products.fused import describe_fused
from weft.compiler.targets.cuda.target import CUDA
from weft.ir.scalars import Scalar as Expression
from weft.ir.scalars import nodes_in_order

TYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "tfloat32": torch.float32,
}


def _tensor(*shape: int, dtype: str, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, device="cuda") * scale).to(TYPES[dtype])


def _operands(spec: ProductSpec, sizes: Sizes) -> dict[str, torch.Tensor]:
    m, n, k = sizes.m, sizes.n, sizes.k
    front = (sizes.batch,) if spec.batched else ()
    found = {
        "a": _tensor(*front, *((k, m) if spec.transpose_a else (m, k)), dtype=spec.dtype),
        "b": _tensor(*front, *((n, k) if spec.transpose_b else (k, n)), dtype=spec.dtype),
    }
    for output in spec.outputs:
        shape = (*front, m, n)
        found[output.name] = torch.full(
            shape, float("nan"), device="cuda", dtype=TYPES[output.dtype]
        )
    for matrix in spec.matrices:
        found[matrix.name] = _tensor(*front, m, n, dtype=matrix.dtype)
    for operand in [each for step in spec.epilogue for each in operands_of(step)]:
        if isinstance(operand, Vector):
            size = n if operand.per == "column" else m
            found[operand.name] = _tensor(size, dtype=operand.dtype)
        elif isinstance(operand, Scalar):
            found[operand.name] = torch.randn(1, device="cuda")
    return found


def prepare(
    spec: ProductSpec, plan: Plan, sizes: Sizes
) -> tuple[Callable[[], None], dict[str, torch.Tensor]]:
    """A launch of a product, and its operands."""
    operands = _operands(spec, sizes)
    front = sizes.batch if spec.batched else 1
    for step in spec.epilogue:
        if isinstance(step, Sum):
            lines = -(-sizes.m // 64) if step.over == "rows" else -(-sizes.n // plan.tile_n)
            length = sizes.n if step.over == "rows" else sizes.m
            operands[step.name] = torch.full((front, lines, length), float("nan"), device="cuda")
    kernel = kernel_of(spec, plan)
    how = launch(kernel, sizes, multiprocessors())
    operands["workspace"] = torch.empty(max(how.workspace_bytes, 4) // 4, device="cuda")
    operands["counters"] = torch.zeros(max(how.counters, 1), device="cuda", dtype=torch.int32)
    loaded = LoadedKernel(kernel.name, kernel.text, kernel.threads, kernel.shared_bytes)
    return loaded.launcher(kernel.parameters, how.blocks, operands, how.words), operands


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "relu": torch.relu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "add": torch.add,
    "multiply": torch.mul,
    "subtract": torch.sub,
}


def _derivative(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def apply(cotangent: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        point = x.detach().clone().requires_grad_()
        return torch.autograd.grad(function(point), point, cotangent)[0]

    return apply


for _name in ("relu", "gelu_tanh", "gelu_erf"):
    FUNCTIONS[f"{_name}_derivative"] = _derivative(FUNCTIONS[_name])


EXPRESSIONS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.div,
    "negative": torch.neg, "absolute": torch.abs, "minimum": torch.minimum,
    "maximum": torch.maximum, "sqrt": torch.sqrt, "less": torch.lt, "less_equal": torch.le,
    "equal": torch.eq, "not_equal": torch.ne, "select": torch.where, "power_of_two": torch.exp2,
    "reciprocal": torch.reciprocal, "fma": lambda x, y, z: x * y + z,
    "and": torch.bitwise_and, "or": torch.bitwise_or,
}  # fmt: skip
"""What the instructions of expanded expressions mean."""


def evaluate(expression: Expression, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """An expanded expression of an epilogue, by PyTorch."""
    done: dict[Expression, torch.Tensor] = {}
    for each in nodes_in_order(expression):
        operands = [done[arg] for arg in each.args]
        if each.op == "local":
            done[each] = values[each.detail]
        elif each.op == "const":
            number = each.detail - (1 << 32) if each.detail == 1 << 31 else each.detail
            kind = torch.int32 if each.dtype.is_integer else None
            done[each] = torch.tensor(number, device="cuda", dtype=kind)
        elif each.op == "bitcast":
            done[each] = operands[0].view(torch.int32 if each.dtype.is_integer else torch.float32)
        elif each.op == "cast":
            is_rounded = each.dtype.name in ("bfloat16", "float16")
            done[each] = operands[0].to(TYPES[each.dtype.name]) if is_rounded else operands[
                0].float()  # fmt: skip
        else:
            done[each] = EXPRESSIONS[each.op](*operands)
    return done[expression]


def expected(spec: ProductSpec, operands: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What every result should be, in float32."""
    a, b = operands["a"].float(), operands["b"].float()
    x = (a.mT if spec.transpose_a else a) @ (b.mT if spec.transpose_b else b)
    results = {}
    for step in spec.epilogue:
        if isinstance(step, Apply):
            x = FUNCTIONS[step.function](x)
        elif isinstance(step, Combine):
            operand = step.operand
            if isinstance(operand, Constant):
                other = torch.tensor(operand.number, device="cuda")
            else:
                other = operands[operand.name].float()
                if isinstance(operand, Vector) and operand.per == "row":
                    other = other[:, None]
            x = FUNCTIONS[step.function](x, other)
        elif isinstance(step, Compute):
            given = {each.name: operands[each.name].float() for each in step.operands}
            for each in step.operands:
                if isinstance(each, Vector) and each.per == "row":
                    given[each.name] = given[each.name][:, None]
            x = evaluate(step.expression, {"x": x, **given}).expand_as(x)
        elif isinstance(step, Keep):
            results[step.name] = x
        else:
            results[step.name] = x.sum(-2 if step.over == "rows" else -1)
    return results | {"out": x}


def errors(spec: ProductSpec, plan: Plan, sizes: Sizes) -> dict[str, float]:
    """The relative error of each result, and how many elements differ from run to run."""
    run, operands = prepare(spec, plan, sizes)
    wanted = expected(spec, operands)
    run()
    torch.cuda.synchronize()
    found = {}
    first = {name: operands[name].clone() for name in wanted}
    for name, value in wanted.items():
        got = operands[name].double()
        if got.dim() == 3 and not (spec.batched and name in {o.name for o in spec.outputs}):
            got = got.sum(1)
            got = got if spec.batched else got[0]
        difference = (got - value.double()).norm() / value.double().norm()
        found[name] = float(f"{float(difference):.2e}")
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    for name in wanted:
        found["differs"] = found.get("differs", 0) + int(
            (operands[name].view(torch.uint8) != first[name].view(torch.uint8)).sum()
        )
    return found


BIAS_GELU = (
    Combine("add", Vector("bias", "bfloat16")),
    Keep("before"),
    Apply("gelu_tanh"),
)
GELU_BACKWARD = (
    Combine("gelu_tanh_derivative", Matrix("before", "bfloat16")),
    Sum("dbias", "rows"),
)
RESIDUAL = (Combine("add", Vector("bias", "bfloat16")), Combine("add", Matrix("x", "bfloat16")))


def _traced(f: Callable[..., Any], *kinds: Any) -> tuple[Step, ...]:
    """The epilogue that the compiler describes for a function of the product and operands."""
    return describe_fused(optimize(wf.ir.trace(f, *kinds), CUDA)).steps


def traced_epilogues(dtype: str = "bfloat16") -> dict[str, tuple[Step, ...]]:
    """Epilogues as plans have them; rows are a multiple of 64."""
    a, b, x = (wf.spec(dtype, shape) for shape in ((640, 64), (64, 584), (640, 584)))
    vector, wide = wf.spec(dtype, (584,)), wf.spec("float32", (640, 584))
    row, one = wf.spec("float32", (640, 1)), wf.spec("float32", ())

    def gelu(a: Any, b: Any, c: Any, approximate: str = "none") -> Any:
        before = a @ b + c
        return before, wf.gelu(before, approximate=approximate)

    def derivative(a: Any, b: Any, x: Any, function: Any = wf.gelu) -> Any:
        given = a @ b
        found = wf.vjp(function, x)[1](given)
        found = found[0] if isinstance(found, tuple | list) else found
        rows = found.reshape(10, 64, 584).astype("float32").sum(axis=1)
        return found, rows

    return {
        "bias": _traced(lambda a, b, c: a @ b + c, a, b, vector),
        "gelu, kept": _traced(gelu, a, b, vector),
        "gelu of tanh, kept": _traced(lambda *given: gelu(*given, "tanh"), a, b, vector),
        "derivative of gelu, sums": _traced(derivative, a, b, x),
        "derivative of silu, sums": _traced(
            lambda a, b, x: derivative(a, b, x, wf.silu), a, b, x
        ),
        "derivative of relu": _traced(
            lambda a, b, x: derivative(a, b, x, wf.relu)[0], a, b, x
        ),
        "residual of float32": _traced(
            lambda a, b, c, x: x + (a @ b + c).astype("float32"), a, b, vector, wide
        ),
        "rows, a scalar, a residual": _traced(
            lambda a, b, r, s, x: (a @ b * r * s + x).astype(dtype), a, b, row, one, x
        ),
        "to float32": _traced(lambda a, b: (a @ b).astype("float32"), a, b),
        "tanh and sigmoid": _traced(
            lambda a, b, c: (lambda p: wf.tanh(p) * wf.sigmoid(p + c))(a @ b), a, b, vector
        ),
    }  # fmt: skip


def checked_cases() -> list[tuple[str, ProductSpec, Sizes, list[Plan]]]:
    """Every layout, dtype and epilogue at awkward sizes, with the plans that can make it."""
    tiles = [Plan(128, 256, 3), Plan(128, 128, 4), Plan(64, 64, 4), Plan(64, 128, 4, bulk=False)]
    tiles += [Plan(192, 192, 2), Plan(128, 192, 2)]
    tiles += [replace(plan, split=True) for plan in tiles]
    tiles.append(Plan(128, 128, 4, alternate=True))
    cases = []
    for ta in (False, True):
        for tb in (False, True):
            spec = ProductSpec("bfloat16", transpose_a=ta, transpose_b=tb)
            cases.append((f"layout {ta:d}{tb:d}", spec, Sizes(520, 776, 328), tiles))
    batched = ProductSpec("float16", "float32", batched=True, transpose_a=True)
    cases.append(("batched f16 to f32", batched, Sizes(200, 136, 72, 5), tiles))
    tf32 = ProductSpec("tfloat32", transpose_b=True)
    cases.append(("tf32", tf32, Sizes(300, 260, 1000), tiles))
    odd = ProductSpec("bfloat16", transpose_b=True, aligned_output=False)
    cases.append(("odd columns", odd, Sizes(129, 257, 64), tiles))
    for dtype in ("float32", "bfloat16", "float16"):
        for layout in range(4):
            spec = ProductSpec(
                dtype, transpose_a=layout > 1, transpose_b=layout % 2 == 1,
                aligned=False, aligned_output=False, batched=layout == 0,
                epilogue=(Combine("add", Vector("bias", dtype)), Apply("gelu_erf")),
            )  # fmt: skip
            plain = [Plan(side, side, 2, bulk=False, plain=True) for side in (64, 128)]
            plain.append(replace(plain[0], split=True))
            cases.append((f"plain {dtype} {layout}", spec, Sizes(131, 77, 101, 3), plain))
    exact = ProductSpec("float32", transpose_a=True)
    plain = [Plan(side, side, 2, bulk=False, plain=True) for side in (64, 128)]
    plain += [replace(plan, split=True) for plan in plain]
    cases.append(("plain aligned", exact, Sizes(260, 132, 1000), plain))
    cases += cluster_cases()
    epilogues = {
        "bias gelu": BIAS_GELU,
        "gelu backward": GELU_BACKWARD,
        "residual": RESIDUAL,
        "erf": (Combine("add", Vector("row", "float32", per="row")), Apply("gelu_erf")),
        "erf backward": (Combine("gelu_erf_derivative", Matrix("x", "bfloat16")),),
        "scales": (Combine("multiply", Scalar("scale")), Combine("multiply", Constant(0.5))),
        "sums": (
            Apply("relu"),
            Sum("rows", "rows"),
            Sum("columns", "columns"),
            Keep("kept", "float32"),
        ),
        "two matrices": (
            Combine("add", Matrix("x", "bfloat16")),
            Combine("multiply", Matrix("y", "float32")),
        ),
    }  # fmt: skip
    for dtype in ("bfloat16", "float16"):
        for name, epilogue in traced_epilogues(dtype).items():
            is_wide = name in ("residual of float32", "to float32")
            spec = ProductSpec(
                dtype, "float32" if is_wide else dtype, transpose_b=True, epilogue=epilogue
            )
            plans_of = [tiles[0], tiles[3], tiles[4], tiles[7], tiles[-1]]
            if dtype == "float16":
                plans_of = tiles[-1:]
            cases.append((f"traced {dtype} {name}", spec, Sizes(456, 584, 200), plans_of))
            several = Sizes(2048, 1096, 712)
            cases.append((f"traced {dtype} {name}, several", spec, several, plans_of[-1:]))
    for name, epilogue in epilogues.items():
        spec = ProductSpec("bfloat16", transpose_b=True, epilogue=epilogue)
        cases.append((name, spec, Sizes(456, 584, 200), [*tiles[:6], tiles[7], tiles[-1]]))
        several = [Plan(128, 128, 4, alternate=True), Plan(192, 192, 2)]
        cases.append((f"{name}, several tiles", spec, Sizes(2000, 3000, 712), several))
    return cases


def cluster_cases() -> list[tuple[str, ProductSpec, Sizes, list[Plan]]]:
    """Small products of float32 in every layout, with and without rows of whole 16 bytes."""
    plans = [
        Plan(TILE, TILE, stages=stages, bulk=False, plain=True, cluster=cluster)
        for cluster, stages in ((1, 13), (2, 7), (4, 4), (7, 2), (8, 2))
    ]
    epilogue = (Combine("add", Vector("bias", "float32")), Keep("kept"), Apply("relu"))
    cases = []
    for layout in range(4):
        for size in (Sizes(132, 68, 200), Sizes(129, 67, 195), Sizes(5, 131, 208, 3)):
            lines = (size.m if layout > 1 else size.k), (size.k if layout % 2 else size.n)
            spec = ProductSpec(
                "float32", transpose_a=layout > 1, transpose_b=layout % 2 == 1,
                batched=size.batch > 1, aligned=all(line % 4 == 0 for line in lines),
                aligned_output=size.n % 4 == 0, epilogue=epilogue,
            )  # fmt: skip
            cases.append((f"cluster {layout} {size}", spec, size, plans))
    return cases


def wrong_results(spec: ProductSpec, found: Mapping[str, float]) -> list[str]:
    """The results whose error is too large, or whose bits differ from run to run."""
    limit = 1e-5 if spec.dtype == "float32" else 4e-3
    return [
        name
        for name, error in found.items()
        if not (error == 0 if name == "differs" else error < limit)
    ]


def check() -> None:
    """All cases with all plans; prints those that are wrong, and how many."""
    bad = 0
    for name, spec, sizes, plans in checked_cases():
        for plan in plans:
            found = errors(spec, plan, sizes)
            wrong = wrong_results(spec, found)
            bad += bool(wrong)
            if wrong or plan is plans[0]:
                row = {"case": name, "plan": str(plan), "wrong": wrong, **found}
                report("products_check.jsonl", row)
    report("products_check.jsonl", {"bad": bad})


SPEED = [
    ("NT", 512, 512, 128),
    ("NT", 1024, 1024, 1024),
    ("NT", 2048, 2048, 2048),
    ("NT", 16384, 3072, 768),
    ("NT", 16384, 768, 3072),
    ("NT", 16384, 2304, 768),
    ("NT", 16384, 768, 768),
    ("NT", 16384, 50304, 768),
    ("NN", 16384, 768, 3072),
    ("NN", 16384, 768, 50304),
    ("TN", 3072, 768, 16384),
    ("TN", 2304, 768, 16384),
    ("TN", 768, 768, 16384),
    ("TN", 50304, 768, 16384),
    ("NN", 8192, 8192, 8192),
    ("NT", 128, 512, 784),
    ("NT", 64, 50304, 768),
    ("NT", 64, 2304, 768),
]


def _rival(spec: ProductSpec, operands: dict[str, torch.Tensor]) -> Callable[[], object]:
    a = operands["a"].mT if spec.transpose_a else operands["a"]
    b = operands["b"].mT if spec.transpose_b else operands["b"]
    out = torch.empty_like(operands["out"])
    return lambda: torch.matmul(a, b, out=out)


def speed(dtype: str = "bfloat16") -> None:
    """The chosen plans against cuBLAS."""
    for layout, *shape in SPEED:
        sizes = Sizes(*shape)
        spec = ProductSpec(dtype, transpose_a=layout[0] == "T", transpose_b=layout[1] == "T")
        plan = best_plan(spec, sizes, multiprocessors())
        run, operands = prepare(spec, plan, sizes)
        rounds = 15 if sizes.m * sizes.n * sizes.k > 1 << 36 else 40
        times = measure({"weft": run, "cublas": _rival(spec, operands)}, rounds)
        flops = 2 * sizes.m * sizes.n * sizes.k / 1e6
        report(
            "products_speed.jsonl",
            {
                "layout": layout,
                "shape": shape,
                "dtype": dtype,
                **times,
                "ratio": round(times["weft"] / times["cublas"], 3),
                "tflops": round(flops / times["weft"]),
                "plan": str(plan),
            },
        )
        del operands, run
        torch.cuda.empty_cache()


EPILOGUE_PLANS = {
    "128x256": Plan(128, 256, 3),
    "192x192": Plan(192, 192, 2),
    "alternate": Plan(128, 128, 4, alternate=True),
}
TRACED = traced_epilogues()
EPILOGUE_CASES = [
    ("traced gelu, kept", TRACED["gelu, kept"], Sizes(16384, 3072, 768), True),
    ("traced derivative, sums", TRACED["derivative of gelu, sums"], Sizes(16384, 3072, 768), False),
    (
        "traced derivative",
        TRACED["derivative of gelu, sums"][:1],
        Sizes(16384, 3072, 768),
        False,
    ),
    ("bias gelu with auxiliary", BIAS_GELU, Sizes(16384, 3072, 768), True),
    ("gelu backward with bias sums", GELU_BACKWARD, Sizes(16384, 3072, 768), False),
    ("bias and residual", RESIDUAL, Sizes(16384, 768, 3072), True),
    ("bias", BIAS_GELU[:1], Sizes(16384, 2304, 768), True),
]


def epilogues() -> None:
    """Products with their epilogues against the bare product."""
    for name, epilogue, sizes, transpose_b in EPILOGUE_CASES:
        spec = ProductSpec("bfloat16", transpose_b=transpose_b, epilogue=epilogue)
        plan = best_plan(spec, sizes, multiprocessors())
        run, _ = prepare(spec, plan, sizes)
        bare, others = prepare(replace(spec, epilogue=()), plan, sizes)
        runs: dict[str, Callable[[], object]] = {"fused": run, "bare": bare}
        for label, other in EPILOGUE_PLANS.items():
            runs[label] = prepare(spec, other, sizes)[0]
        times = measure({**runs, "cublas": _rival(spec, others)})
        report("products_epilogues.jsonl", {"case": name, **times, "plan": str(plan)})


def _compared_plans() -> dict[str, Plan]:
    found = {}
    for tile in ((128, 256), (192, 192), (128, 192), (128, 128), (64, 128), (64, 64)):
        staged = tile[0] * tile[1] * 2
        stages = min(8, (225 * 1024 - staged) // ((tile[0] + tile[1]) * 128))
        for split in (False, True):
            found[f"{tile[0]}x{tile[1]}{' split' * split}"] = Plan(
                *tile, stages=stages, split=split
            )
    found["alternate"] = Plan(128, 128, 6, alternate=True)
    return found


COMPARED = [
    SPEED[1],
    SPEED[2],
    SPEED[3],
    SPEED[4],
    SPEED[5],
    SPEED[6],
    SPEED[8],
    SPEED[10],
    SPEED[11],
    SPEED[12],
    *SPEED[15:],
]


def plans() -> None:
    """All plans at some sizes, for the rule that chooses among them."""
    for layout, *shape in COMPARED:
        sizes = Sizes(*shape)
        spec = ProductSpec("bfloat16", transpose_a=layout[0] == "T", transpose_b=layout[1] == "T")
        runs: dict[str, Callable[[], object]] = {}
        for label, plan in _compared_plans().items():
            try:
                runs[label] = prepare(spec, plan, sizes)[0]
            except RuntimeError as error:
                report("products_plans.jsonl", {"plan": str(plan), "error": str(error)})
        operands = _operands(spec, sizes)
        times = measure({**runs, "cublas": _rival(spec, operands)}, 12)
        report("products_plans.jsonl", {"layout": layout, "shape": shape, **times})


FLOAT32 = [
    (2048, 2048, 2048),
    (4096, 4096, 1024),
    (256, 512, 784),
    (128, 512, 784),
    (128, 512, 512),
    (128, 10, 512),
    (512, 784, 128),
    (8192, 8192, 8192),
]


def float32() -> None:
    """Exact float32 and tfloat32 against cuBLAS's."""
    torch.backends.cuda.matmul.allow_tf32 = False
    for shape in FLOAT32:
        sizes = Sizes(*shape)
        for dtype in ("float32", "tfloat32"):
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tfloat32"
            whole = sizes.n % 4 == 0
            spec = ProductSpec(dtype, transpose_b=True, aligned_output=whole)
            plan = best_plan(spec, sizes, multiprocessors())
            run, operands = prepare(spec, plan, sizes)
            times = measure({"weft": run, "cublas": _rival(spec, operands)}, 8, 4)
            row = {"shape": shape, "dtype": dtype, **times, "plan": str(plan)}
            report("products_float32.jsonl", row)


SMALL = [
    ("NT", 128, 512, 784),
    ("NT", 128, 512, 512),
    ("NT", 128, 10, 512),
    ("NN", 128, 512, 10),
    ("NN", 128, 512, 512),
    ("TN", 512, 784, 128),
    ("TN", 512, 512, 128),
    ("TN", 10, 512, 128),
    ("NT", 64, 1024, 256),
    ("NT", 256, 512, 784),
    ("NT", 512, 512, 512),
    ("NT", 1024, 1024, 128),
    ("NN", 640, 640, 640),
]


def small() -> None:
    """Small products of float32: every way to share tiles, and whether all are right."""
    torch.backends.cuda.matmul.allow_tf32 = False
    for layout, *shape in SMALL:
        sizes = Sizes(*shape)
        turned = layout[0] == "T", layout[1] == "T"
        lines = (sizes.m if turned[0] else sizes.k), (sizes.k if turned[1] else sizes.n)
        spec = ProductSpec(
            "float32", transpose_a=turned[0], transpose_b=turned[1],
            aligned=all(line % 4 == 0 for line in lines), aligned_output=sizes.n % 4 == 0,
        )  # fmt: skip
        runs, wrong = dict[str, Callable[[], object]](), dict[str, object]()
        for plan in small_plans(spec, sizes):
            name = f"cluster {plan.cluster}" if plan.cluster else f"plain {plan.tile_m}"
            name += " split" * plan.split
            runs[name], operands = prepare(spec, plan, sizes)
            bad = wrong_results(spec, errors(spec, plan, sizes))
            wrong |= {name: bad} if bad else {}
        one = torch.ones(1, device="cuda")
        runs |= {"cublas": _rival(spec, operands), "least": lambda: one.add_(1)}  # noqa: B023
        row = {"layout": layout, "shape": shape, **measure(runs, 12), "wrong": wrong}
        chosen = str(best_plan(spec, sizes, multiprocessors()))
        report("products_small.jsonl", {**row, "chosen": chosen})


def small_plans(spec: ProductSpec, sizes: Sizes) -> list[Plan]:
    """Plain tiles, and tiles that clusters of each size share."""
    sides = [Plan(side, side, stages=2, bulk=False, plain=True) for side in (64, 128)]
    found = [replace(plan, split=split) for plan in sides for split in (False, True)]
    steps = -(-sizes.k // STEP)
    for cluster in CLUSTERS:
        run = -(-steps // cluster)
        if run <= MOST_STEPS and (cluster - 1) * run < steps:
            found.append(Plan(TILE, TILE, run, bulk=False, plain=True, cluster=cluster))
    return found


PARTS = {
    "check": check, "speed": speed, "epilogues": epilogues, "plans": plans, "float32": float32,
    "small": small,
}  # fmt: skip


if __name__ == "__main__":
    run_parts(PARTS, __file__, seconds=150)
