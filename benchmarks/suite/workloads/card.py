"""What is measured on a card: the same work as on processors at a card's sizes, and single kernels.

Products, rows and attention are compiled functions in bfloat16; eager ones are calls of one
operation, put on the card one after the other. Losses of training steps are compared as on
processors, within what mixed precision leaves of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from suite import with_jax, with_torch, with_weft
from suite.task import Arrays, Step, Task, Workload, normal
from suite.workloads import deepfm, generation, gpt, lstm, mlp, resnet50

NARROW = "bfloat16"
Function = Callable[..., Any]


def _drawn(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Operands of some shapes."""
    drawn = [normal(rng, *shape) for shape in sizes["shapes"]]
    return {}, {f"x{number}": array for number, array in enumerate(drawn)}


def kernel(
    title: str,
    shapes: Sequence[tuple[int, ...]],
    name: str,
    quick: Sequence[tuple[int, ...]],
    dtype: str = NARROW,
    tolerance: float = 2e-2,
) -> Workload:
    """A compiled function of tensors of some shapes, in the words of each framework."""

    def in_weft(task: Task) -> Step:
        return with_weft.calling(task, _weft_function(name), *with_weft.tensors(task.data, dtype))

    def in_torch(task: Task) -> Step:
        operands = with_torch.tensors(task.data, dtype)
        if name == "attention-training":
            return _torch_attention_gradient(task, operands)
        return with_torch.calling(task, _torch_function(name), *operands)

    def in_jax(task: Task) -> Step:
        return with_jax.calling(_jax_function(name), *with_jax.tensors(task.data, dtype))

    return Workload(
        title=title,
        sides={"weft": in_weft, "torch": in_torch, "jax": in_jax},
        sizes={"shapes": shapes},
        quick={"shapes": quick},
        inputs=_drawn,
        tolerance=tolerance,
        aim=1.0,
    )


def eager(title: str, shapes: Sequence[tuple[int, ...]], name: str) -> Workload:
    """One operation, called again and again."""

    def in_weft(task: Task) -> Step:
        return partial(_weft_function(name), *with_weft.tensors(task.data))

    def in_torch(task: Task) -> Step:
        return partial(_torch_function(name), *with_torch.tensors(task.data))

    def in_jax(task: Task) -> Step:
        return with_jax.calling_eagerly(_jax_function(name), *with_jax.tensors(task.data))

    return Workload(
        title=title,
        sides={"weft": in_weft, "torch": in_torch, "jax": in_jax},
        sizes={"shapes": shapes},
        quick={},
        inputs=_drawn,
        aim=1.0,
    )


def _weft_function(name: str) -> Function:
    """An operation in Weft's words."""
    import weft as wf

    attention = partial(wf.nn.functional.scaled_dot_product_attention, causal=True)

    def gradient(*heads: Any) -> Any:
        total = lambda *heads: attention(*heads).astype("float32").sum()  # noqa: E731
        return wf.grad(total, argnums=(0, 1, 2))(*heads)[0]

    found: dict[str, Function] = {
        "product": lambda a, b: a @ b,
        "add": lambda a, b: a + b,
        "exp": wf.exp,
        "sum": lambda x: x.sum(),
        "sums": lambda x: x.sum(axis=-1),
        "gelu": wf.gelu,
        "softmax": lambda x: wf.softmax(x, axis=-1),
        "norm": lambda x, w, b: wf.nn.functional.layer_norm(x, x.shape[-1:], w, b),
        "attention": attention,
        "attention-training": gradient,
    }
    return found[name]


def _torch_function(name: str) -> Function:
    """An operation in PyTorch's words."""
    import torch
    from torch.nn import functional as F  # noqa: N812

    found: dict[str, Function] = {
        "product": lambda a, b: a @ b,
        "add": lambda a, b: a + b,
        "exp": torch.exp,
        "sum": lambda x: x.sum(),
        "sums": lambda x: x.sum(-1),
        "gelu": F.gelu,
        "softmax": lambda x: torch.softmax(x, -1),
        "norm": lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
        "attention": partial(F.scaled_dot_product_attention, is_causal=True),
    }
    return found[name]


def _torch_attention_gradient(task: Task, heads: list[Any]) -> Step:
    """Attention and its gradient, the way that training goes."""
    import torch

    attention = _torch_function("attention")
    total = with_torch.compiled(task, lambda *heads: attention(*heads).float().sum())
    leaves = [x.requires_grad_() for x in heads]
    return lambda: torch.autograd.grad(total(*leaves), leaves)[0]


def _jax_function(name: str) -> Function:
    """An operation in JAX's words."""
    import jax
    from jax import numpy as jnp

    def attention(*heads: Any) -> Any:
        turned = [jnp.swapaxes(x, 1, 2) for x in heads]
        return jnp.swapaxes(jax.nn.dot_product_attention(*turned, is_causal=True), 1, 2)

    def gradient(*heads: Any) -> Any:
        total = lambda *heads: attention(*heads).astype(jnp.float32).sum()  # noqa: E731
        return jax.grad(total, argnums=(0, 1, 2))(*heads)[0]

    found: dict[str, Function] = {
        "product": lambda a, b: a @ b,
        "add": lambda a, b: a + b,
        "exp": jnp.exp,
        "sum": lambda x: x.sum(),
        "sums": lambda x: x.sum(-1),
        "gelu": partial(jax.nn.gelu, approximate=False),
        "softmax": lambda x: jax.nn.softmax(x, -1),
        "norm": lambda x, w, b: with_jax.norm({"n.weight": w, "n.bias": b}, "n", x),
        "attention": attention,
        "attention-training": gradient,
    }
    return found[name]


def _on_card(workload: Workload, **changes: Any) -> Workload:
    """A processor's workload with other sizes, without the sides that have no card here."""
    sides = {name: workload.sides[name] for name in ("weft", "torch", "jax")}
    sizes = {**workload.sizes, **changes.pop("sizes", {})}
    return replace(workload, sides=sides, sizes=sizes, rivals=(), **changes)


ROWS, WIDE, WIDTH = 16384, 3072, 768
HEADS = (16, 12, 1024, 64)
GPT = {"vocabulary": 50304, "width": 768, "layers": 12, "heads": 12, "context": 1024, "batch": 16}
SQUARE = (64, 64)


def _sequences(arrays: Sequence[np.ndarray]) -> list[float]:
    """How many tokens there are: in bfloat16 two may be as likely as each other."""
    return [float(array.size) for array in arrays]


SIZES = ((1024, 1024, 1024), (8192, 8192, 8192), (ROWS, WIDTH, WIDE), (ROWS, WIDE, WIDTH))
PRODUCTS = {
    f"matmul-{m}x{k}x{n}": replace(
        kernel(f"product {m}×{k}×{n}, bfloat16", [(m, k), (k, n)], "product", [SQUARE] * 2),
        flops=partial(lambda m, k, n, sizes: 2.0 * m * k * n, m, k, n),
    )
    for m, k, n in SIZES
}
SHORT = (4, WIDTH)
KERNELS = {
    "rows-gelu": kernel("GELU 16384×3072, bfloat16", [(ROWS, WIDE)], "gelu", [SHORT]),
    "rows-softmax": kernel("softmax 16384×768, bfloat16", [(ROWS, WIDTH)], "softmax", [SHORT]),
    "rows-norm": kernel(
        "layer norm 16384×768, bfloat16", [(ROWS, WIDTH), (WIDTH,), (WIDTH,)], "norm",
        [SHORT, (WIDTH,), (WIDTH,)],
    ),
    "rows-sums": kernel(
        "sums of rows 16384×768, float32", [(ROWS, WIDTH)], "sums", [SHORT], "float32", 1e-3
    ),
    "attention": kernel(
        "causal attention 16×12×1024×64, bfloat16", [HEADS] * 3, "attention", [(1, 2, 16, 64)] * 3
    ),
    "attention-training": kernel(
        "the same with its gradient", [HEADS] * 3, "attention-training", [(1, 2, 16, 64)] * 3,
        tolerance=5e-2,
    ),
}  # fmt: skip
STEPS = {
    "gpt": _on_card(
        gpt.WORKLOADS["gpt"],
        title="GPT-124M, batch 16×1024, AdamW, mixed precision",
        sizes={**GPT, "precision": NARROW},
        tolerance=2e-2,
    ),
    "resnet50": resnet50.WORKLOADS["resnet50"],
    "mlp": _on_card(mlp.WORKLOADS["mlp"], aim=0.5),
    "lstm": _on_card(
        lstm.WORKLOADS["lstm"], title="LSTM 2 layers, width 256, batch 64×64, Adam",
        sizes={"batch": 64},
    ),
    "deepfm": _on_card(
        deepfm.WORKLOADS["deepfm"], title="DeepFM 26 features, 260 000×16, batch 4096, Adagrad",
        sizes={"batch": 4096},
    ),
}  # fmt: skip
GENERATION = {
    f"generation-{batch}": _on_card(
        generation.WORKLOADS["generation"],
        title=f"GPT-124M, 100 tokens of {batch}, with a cache, bfloat16",
        sizes={**GPT, "batch": batch, "dtype": NARROW},
        quick={**gpt.QUICK, "context": 128, "tokens": 10, "batch": batch},
        tolerance=0.0,
        digest=_sequences,
        aim=1.0,
    )
    for batch in (1, 64)
}
EAGER = {
    f"eager-{name}": eager(f"eager {name}, 64×64", [SQUARE] * count, name)
    for name, count in (
        ("add", 2), ("exp", 1), ("product", 2), ("sum", 1), ("gelu", 1), ("softmax", 1),
    )
}  # fmt: skip
WORKLOADS: dict[str, Workload] = {**PRODUCTS, **KERNELS, **STEPS, **GENERATION, **EAGER}
