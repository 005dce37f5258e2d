"""The names that programs use, with PyTorch behind them: the same text is then PyTorch's program.

What has no obvious equivalent is missing, and a program that asks for it is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as functional
from tests.fuzz import script

Function = Callable[..., Any]

SAME = [
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "relu",
    "erf",
    "erfc",
    "atan",
    "asinh",
    "square",
    "abs",
    "negative",
    "sign",
    "floor",
    "ceil",
    "round",
    "trunc",
    "exp",
    "expm1",
    "exp2",
    "log",
    "log1p",
    "log2",
    "log10",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sinh",
    "cosh",
    "tan",
    "acos",
    "asin",
    "atanh",
    "acosh",
    "erfinv",
    "digamma",
    "lgamma",
    "isfinite",
    "isnan",
    "isinf",
    "signbit",
    "maximum",
    "minimum",
    "atan2",
    "hypot",
    "logaddexp",
    "copysign",
    "fmod",
    "remainder",
    "xlogy",
    "lerp",
    "nextafter",
    "where",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
    "matmul",
    "outer",
    "inner",
    "einsum",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "broadcast_to",
    "swapaxes",
    "moveaxis",
    "tril",
    "triu",
    "positive",
    "pow",
    "logit",
    "nan_to_num",
    "floor_divide",
    "arange",
]
SINGLE = {
    "silu": functional.silu,
    "softplus": functional.softplus,
    "log_sigmoid": functional.logsigmoid,
    "bitwise_invert": torch.bitwise_not,
    "i0e": torch.special.i0e,
    "i1e": torch.special.i1e,
    "stop_gradient": lambda x: x.detach(),
    "gelu": functional.gelu,
    "xlog1py": torch.special.xlog1py,
    "matrix_transpose": lambda x: x.mT,
    "permute_dims": torch.permute,
    "conj": torch.conj_physical,
    "real": torch.real,
    "imag": torch.imag,
}


def _along(name: str) -> Function:
    """A reduction, with NumPy's words for its options."""
    function = getattr(torch, name)

    def reduced(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        axis = tuple(range(x.ndim)) if axis is None else axis
        return function(x, dim=axis, keepdim=keepdims)

    return reduced


def _spread(name: str) -> Function:
    function = getattr(torch, name)

    def spread(x: Any, axis: Any = None, keepdims: bool = False, correction: int = 0) -> Any:
        axis = tuple(range(x.ndim)) if axis is None else axis
        return function(x, dim=axis, keepdim=keepdims, correction=correction)

    return spread


def _prod(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    if axis is None:
        return torch.prod(x).reshape([1] * x.ndim) if keepdims else torch.prod(x)
    for each in sorted((a % x.ndim for a in _axes(axis)), reverse=True):
        x = torch.prod(x, dim=each, keepdim=keepdims)
    return x


def _axes(axis: Any) -> Sequence[int]:
    return (axis,) if isinstance(axis, int) else axis


def _pad(x: Any, widths: Sequence[tuple[int, int]], mode: str = "constant") -> Any:
    flat = [n for pair in reversed(widths) for n in pair]
    if mode != "constant":
        raise NotImplementedError
    return functional.pad(x, flat)


def _scan(f: Function, init: Any, xs: Any = None, length: int = 0, reverse: bool = False) -> Any:
    ys = []
    order = range(length if xs is None else len(xs))
    for place in reversed(order) if reverse else order:
        init, y = f(init, None if xs is None else xs[place])
        ys.append(y)
    return init, torch.stack(ys[::-1] if reverse else ys)


def _fori_loop(lower: int, upper: int, body: Function, init: Any) -> Any:
    for place in range(lower, upper):
        init = body(place, init)
    return init


def _while_loop(cond: Function, body: Function, init: Any, max_steps: int = 1 << 30) -> Any:
    while max_steps and bool(cond(init)):
        init, max_steps = body(init), max_steps - 1
    return init


def _flip(x: Any, axis: Any = None) -> Any:
    return torch.flip(x, list(range(x.ndim)) if axis is None else list(_axes(axis)))


def _attention(
    q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: Any = None
) -> Any:
    return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)


def _cumulative_sum(x: Any, axis: int, include_initial: bool = False) -> Any:
    total = torch.cumsum(x, axis)
    return (
        torch.cat([torch.zeros_like(total.narrow(axis, 0, 1)), total], axis)
        if include_initial
        else total
    )


def _layer_norm(x: Any, size: int) -> Any:
    return functional.layer_norm(x, (size,))


LAYERS = {
    "linear": functional.linear,
    "layer_norm": _layer_norm,
    "group_norm": functional.group_norm,
    "rms_norm": lambda x, size, eps: functional.rms_norm(x, (size,), eps=eps),
    "mse_loss": functional.mse_loss,
    "smooth_l1_loss": functional.smooth_l1_loss,
    "embedding": functional.embedding,
    "cross_entropy": functional.cross_entropy,
    "local_response_norm": functional.local_response_norm,
}
"""Without norms over a batch: PyTorch 2.13 has wrong derivatives of their tangents."""


def _names() -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(torch, name) for name in SAME}
    found |= SINGLE
    found |= {name: _along(name) for name in ("sum", "mean", "logsumexp", "any", "all")}
    found |= {"max": _along("amax"), "min": _along("amin"), "prod": _prod}
    found |= {name: _spread(name) for name in ("var", "std")}
    for name in (
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "complex64",
        "complex128",
    ):
        found[name] = getattr(torch, name)
    for dims in (1, 2, 3):
        found[f"conv{dims}d"] = getattr(functional, f"conv{dims}d")
        found[f"conv_transpose{dims}d"] = getattr(functional, f"conv_transpose{dims}d")
        found[f"max_pool{dims}d"] = getattr(functional, f"max_pool{dims}d")
        found[f"avg_pool{dims}d"] = getattr(functional, f"avg_pool{dims}d")
    found |= {
        "flip": _flip,
        "pad": _pad,
        "scan": _scan,
        "fori_loop": _fori_loop,
        "while_loop": _while_loop,
        "map": lambda f, xs: torch.stack([f(x) for x in xs]),
        "cond": lambda test, f, g, *xs: f(*xs) if bool(test) else g(*xs),
        "switch": lambda index, fs, *xs: fs[int(index)](*xs),
        "softmax": lambda x, axis=-1: torch.softmax(x, axis),
        "log_softmax": lambda x, axis=-1: torch.log_softmax(x, axis),
        "softmin": lambda x, axis=-1: torch.softmax(-x, axis),
        "argmax": lambda x, axis=None, keepdims=False: torch.argmax(x, axis, keepdims),
        "argmin": lambda x, axis=None, keepdims=False: torch.argmin(x, axis, keepdims),
        "cumulative_prod": lambda x, axis: torch.cumprod(x, axis),
        "cumulative_logsumexp": lambda x, axis: torch.logcumsumexp(x, axis),
        "cummax": lambda x, axis: torch.cummax(x, axis),
        "cummin": lambda x, axis: torch.cummin(x, axis),
        "diff": lambda x, axis: torch.diff(x, dim=axis),
        "concat": lambda xs, axis=0: torch.cat(list(xs), axis),
        "stack": lambda xs, axis=0: torch.stack(xs, axis),
        "hstack": torch.hstack,
        "reshape": lambda x, shape: torch.reshape(x, (shape,) if isinstance(shape, int) else shape),
        "expand_dims": lambda x, axis: x.unsqueeze(axis),
        "squeeze": lambda x, axis: x.squeeze(axis),
        "roll": lambda x, shift, axis: torch.roll(x, shift, axis),
        "repeat": lambda x, count, axis: torch.repeat_interleave(x, count, axis),
        "diagonal": torch.diagonal,
        "diag": torch.diag,
        "rot90": torch.rot90,
        "clip": torch.clip,
        "vecdot": torch.linalg.vecdot,
        "take": lambda x, i, axis: torch.index_select(x, axis, i),
        "gather": torch.gather,
        "take_along_axis": lambda x, i, axis: torch.take_along_dim(x, i, axis),
        "argsort": lambda x, axis=-1: torch.argsort(x, dim=axis, stable=True),
        "sort": lambda x, axis=-1, descending=False: torch.sort(
            x, dim=axis, descending=descending, stable=True
        )[0],
        "tensordot": lambda a, b, axes: torch.tensordot(
            a, b, axes if isinstance(axes, int) else [list(x) for x in axes]
        ),
        "scaled_dot_product_attention": _attention,
        "unfold": lambda x, a, size: x.unfold(a, size, 1),
        "normalize": lambda x, axis: functional.normalize(x, dim=axis),
        "checkpoint": lambda f: f,
        "jit": lambda f: f,
        "vmap": torch.func.vmap,
        "masked_fill": torch.masked_fill,
        "polygamma": torch.polygamma,
        "tile": lambda x, count: torch.tile(x, (count,)),
        "cumulative_sum": _cumulative_sum,
        "quantile": lambda x, q, axis: torch.quantile(x, q, dim=axis),
        "scatter": torch.scatter,
        "index_add": torch.index_add,
        "index_copy": torch.index_copy,
        "scatter_reduce": torch.scatter_reduce,
        "one_hot": lambda i, n, dtype: functional.one_hot(i, n).to(dtype),
        "count_nonzero": lambda x, axis: torch.count_nonzero(x, dim=axis),
        "eye": torch.eye,
        "linalg": torch.linalg,
        "fft": torch.fft,
        "scatter_add": torch.scatter_add,
    }
    return found


def _numbers(dtype: str, shape: tuple[int, ...], seed: int, layout: str = "") -> Any:
    array = script.numbers(dtype, shape, seed, layout).numpy()
    if dtype == "bfloat16":
        return torch.from_numpy(array.astype("float32")).to(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _weights(x: Any) -> Any:
    flat = torch.sin(1.0 + torch.arange(x.numel(), dtype=torch.float64))
    return flat.reshape(x.shape).to(x.dtype)


def _is_inexact(x: Any) -> bool:
    return bool(x.dtype.is_floating_point or x.dtype.is_complex)


def _total(f: Function) -> Function:
    def loss(*xs: Any) -> Any:
        parts = []
        for y in f(*xs):
            if y.dtype.is_complex:
                parts += [(y.real * _weights(y.real)).sum(), y.imag.sum()]
            elif _is_inexact(y):
                parts += [(y * _weights(y)).sum()]
        return sum((part.to(torch.float64) for part in parts[1:]), parts[0].to(torch.float64))

    return loss


def _gradients(f: Function) -> Function:
    def g(*xs: Any) -> list[Any]:
        moved = tuple(i for i, x in enumerate(xs) if _is_inexact(x))
        return list(torch.func.grad(_total(f), argnums=moved)(*xs))

    return g


def _tangents(f: Function) -> Function:
    def g(*xs: Any) -> list[Any]:
        moved = [i for i, x in enumerate(xs) if _is_inexact(x)]

        def part(*ys: Any) -> Any:
            rest = dict(zip(moved, ys, strict=True))
            return tuple(f(*[rest.get(i, x) for i, x in enumerate(xs)]))

        primals = tuple(xs[i] for i in moved)
        ts = tuple(_weights(_flip(x)) for x in primals)
        outs, pushed = torch.func.jvp(part, primals, ts)
        return [*outs, *[t for t in pushed if _is_inexact(t)]]

    return g


def _batched(f: Function) -> Function:
    def g(*xs: Any) -> list[Any]:
        return list(
            torch.func.vmap(lambda *ys: tuple(f(*ys)))(*[torch.stack([x, _flip(x)]) for x in xs])
        )

    return g


def _held(f: Function, x: Any) -> Any:
    with torch.no_grad():
        return f(x)


def _missing(*args: Any) -> Any:
    raise NotImplementedError


def twin_namespace() -> dict[str, Any]:
    """The names of a program, as PyTorch has them."""
    return {
        "wf": SimpleNamespace(**_names()),
        "F": SimpleNamespace(**LAYERS),
        "numbers": _numbers,
        "gradients": _gradients,
        "valued": lambda f: lambda *xs: [*f(*xs), *_gradients(f)(*xs)],
        "tangents": _tangents,
        "batched": _batched,
        "rematerialised": lambda f: f,
        "compiled": lambda f: f,
        "trained": _missing,
        "sampled": _missing,
        "doubled": _missing,
        "held": _held,
    }
