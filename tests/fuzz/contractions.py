"""Families of products, convolutions and linear algebra; see `operations`."""

from __future__ import annotations

import numpy as np
from tests.fuzz.draw import Draw, NoOperand, Value

from weft.core.errors import Unsupported
from weft.ir.primitive import PRIMITIVES

MULTIPLICATIONS = 40_000_000
"""The most multiplications of a product, which is also computed by NumPy, four times."""

CONVOLVED = 300_000_000
"""The same of a convolution."""

# --- products ------------------------------------------------------------------------------------

TILED_CHANNELS = 16
"""From how many channels on a convolution may be computed in tiles."""


def product(draw: Draw) -> str:
    """A product of two values, or of one with itself, in any order of axes."""
    if draw.chance(0.25):
        return _outer(draw)
    if draw.chance(0.4) and any(v.kind in "iu" and v.ndim == 2 for v in draw.values):
        return _whole(draw)
    a = draw.value("fiuc", 2, 4, where=lambda v: v.size * v.shape[-2] <= MULTIPLICATIONS)
    if draw.chance(0.3):
        options = (
            "{a} @ wf.matrix_transpose({a})",
            "wf.matrix_transpose({a}) @ {a}",
            "wf.einsum('...ij,...kj->...ik', {a}, {a})",
            "wf.einsum('...ij,...ik->...jk', {a}, {a})",
            "{a} @ {a}",
            "wf.tanh({a}) @ wf.matrix_transpose({a} * 0.5)",
        )
        if a.size * a.shape[-1] <= MULTIPLICATIONS and draw.chance(0.4):
            options = PACKED
        return draw.one_of(options).format(a=a.name)
    inner = a.shape[-1]
    fits = [
        v for v in draw.values if v.kind == a.kind and v.dtype == a.dtype and v.ndim in (1, 2, 3)
    ]
    fits = [v for v in fits if _is_affordable(a, v, inner, draw.largest)]
    rights = [v for v in fits if v.shape[-2:][0] == inner]
    turned = [v for v in fits if v.ndim > 1 and v.shape[-1] == inner]
    if turned and draw.chance(0.4):
        b = draw.one_of(turned)
        options = (
            "{a} @ wf.matrix_transpose({b})",
            "wf.einsum('...ij,...kj->...ik', {a}, {b})",
            "F.linear({a}, {b})",
            "wf.tensordot({a}, {b}, axes=((-1,), (-1,)))",
        )
        return draw.one_of(options).format(a=a.name, b=b.name)
    if not rights:
        raise NoOperand
    b = draw.one_of(rights)
    options = (
        "{a} @ {b}",
        "wf.matmul({a}, {b})",
        "wf.tanh({a} @ {b} * 0.3)",
        "wf.tensordot({a}, {b}, axes=1)",
        "0.5 * ({a} @ {b})",
        "{a} @ {b}[..., 0]",
        "{a}[..., 0, :] @ {b}",
        "wf.tanh({a}[0] @ {b}) * 0.7 + 1",
        "wf.relu({a} @ {b} + 0.1)",
        "wf.softmax({a} @ {b}, axis=-1)",
    )
    return draw.one_of(options).format(a=a.name, b=b.name)


RECOMPUTED = (
    "wf.checkpoint(lambda q: wf.tanh(q @ {b}))({a})",
    "wf.checkpoint(lambda q: wf.sin(q @ {b}) * wf.cos(q @ {b}))({a})",
    "wf.checkpoint(lambda q: wf.tanh(q @ {b}))(wf.sin({a}))",
    "wf.checkpoint(lambda q: wf.sin(wf.tanh(q @ {b}) * 0.5))({a} * 2)",
    "wf.checkpoint(lambda q, w: wf.sin(wf.tanh(q) @ w + 0.1))({a} * 0.5, {b})",
)
"""Products that the way back makes again, behind a barrier."""
PACKED = (
    "{a} @ wf.tanh(wf.matrix_transpose({a}) @ {a} * 0.05)",
    "wf.matrix_transpose({a}) @ wf.relu({a} @ (wf.matrix_transpose({a}) @ {a}) * 0.02)",
    "{a} @ wf.sin(wf.einsum('...ij,...ik->...jk', {a}, {a}) * 0.05)",
)
"""Products whose right operand is made of another product, block by block of its rows."""


def recompute(draw: Draw) -> str:
    """A product in a checkpoint: of a value that others may read, with another one or itself."""
    a = draw.value("f", 2, 2, where=lambda v: v.size * v.shape[0] <= MULTIPLICATIONS)
    inner = a.shape[1]
    fits = [v for v in draw.values if (v.ndim, v.dtype, v.shape[:1]) == (2, a.dtype, (inner,))]
    fits = [v for v in fits if _is_affordable(a, v, inner, draw.largest)]
    b = draw.one_of(fits).name if fits else f"wf.matrix_transpose({a.name})"
    return draw.one_of(RECOMPUTED).format(a=a.name, b=b)


def _whole(draw: Draw) -> str:
    """A product of whole numbers, in wider sums: of inputs, what is moved, and constants."""
    a = draw.value("iu", 2, 2, where=lambda v: v.size * max(v.shape) <= MULTIPLICATIONS)
    fits = [v for v in draw.values if v.kind in "iu" and v.ndim == 2 and v.shape[0] == a.shape[1]]
    b = draw.one_of(fits).name if fits else f"wf.matrix_transpose({a.name})"
    numbers = f"np.arange(int({a.name}.shape[1]) * 3).reshape(-1, 3) % {draw.one_of([100, 300])}"
    options = (
        "{a}.astype(wf.{d}) @ {b}.astype(wf.{d})",
        "{a}.astype(wf.{d}) @ wf.matrix_transpose({a}.astype(wf.{d}))",
        "{a}.astype(wf.{d})[::-1] @ {b}.astype(wf.{d})[:, 1:]",
        "({a}.astype(wf.{d}) + 1) @ {b}.astype(wf.{d})",
        "{a}.astype(wf.{d}) @ wf.flip({b}.astype(wf.{d}), axis=-1)",
        "{a}.astype(wf.{d}) @ wf.asarray({n}).astype(wf.{d})",
        "wf.matrix_transpose({a}) @ {a}",
    )
    dtype = draw.one_of(["int32", "int32", "int64"])
    return draw.one_of(options).format(a=a.name, b=b, d=dtype, n=numbers)


def _is_affordable(a: Value, b: Value, inner: int, largest: int) -> bool:
    """Whether a product of all rows with all columns is neither too large nor too slow."""
    elements = (a.size // max(1, inner)) * (b.size // max(1, inner))
    return elements <= largest and elements * inner <= MULTIPLICATIONS


def _outer(draw: Draw) -> str:
    v = draw.value("fi", 1, 1)
    fits = [
        x for x in draw.values if x.dtype == v.dtype and x.ndim == 1 and x.size * v.size < 600_000
    ]
    if not fits:
        raise NoOperand
    w = draw.one_of(fits)
    options = [
        "{v}[:, None] @ {w}[None, :]",
        "wf.outer({v}, {w})",
        "wf.reshape({v}, (-1, 1)) @ wf.reshape({w}, (1, -1))",
        "({v} * 2)[:, None] @ {w}[None, :]",
        "wf.einsum('i,j->ij', {v}, {w})",
    ]
    if w.shape == v.shape:
        options += [
            "{v} @ {w}",
            "0.5 * ({v} @ {w})",
            "wf.inner({v}, {w})",
            "wf.vecdot({v}, {w})",
            "wf.einsum('i,i', {v}, {w})",
        ]
    return draw.one_of(options).format(v=v.name, w=w.name)


def attend(draw: Draw) -> str:
    """Attention, as one call or written out, with masks that are there or follow from less."""
    v = draw.value("f", 2, 4, where=_may_attend)
    h = v.name if v.ndim > 2 else f"{v.name}[None]"
    k = _keys(draw, v, h)
    mask = draw.one_of(MASKS) if draw.chance(0.6) else ""
    options = (
        "wf.scaled_dot_product_attention({h}, {k}, {k}{m})",
        "wf.scaled_dot_product_attention({h}, {k}, wf.sin({k}){m}, causal=True)",
        "wf.scaled_dot_product_attention({h}, {k}, {k}{m}, causal=True, aligned='end')",
        "wf.scaled_dot_product_attention({h}, {k} * 0.5, {k}{m}, scale=0.3)",
        "wf.scaled_dot_product_attention({h}, {k}, {k}[..., :1]{m})",
        "wf.scaled_dot_product_attention({h}, {k}, {k}{m}, scale=wf.sigmoid(wf.mean({h})))",
        "wf.scaled_dot_product_attention({h}, {k}, {k}{m}, dropout=0.3, key=wf.random.key(3))",
        "wf.softmax({h} @ wf.matrix_transpose({k}) * 0.2, axis=-1) @ {k}",
    )
    if mask.startswith("("):  # truth values
        options += (
            "wf.softmax(wf.where({n}, {h} @ wf.matrix_transpose({k}), -1e9), axis=-1) @ {k}",
        ) * 2
    text = draw.one_of(options).replace("{m}", f", {mask}" if mask else "").replace("{n}", mask)
    for name, part in (("{i}", ROWS), ("{j}", COLUMNS)):
        text = text.replace(name, part)
    return text.replace("{h}", h).replace("{k}", k)


ROWS, COLUMNS = "wf.arange({h}.shape[-2])[:, None]", "wf.arange({k}.shape[-2])"
"""The numbers of queries, and of keys."""
MASKS = (
    "(wf.abs({i} - {j}) < 3)",
    "({i} + 1 >= {j})",
    "({i} // 4 == {j} // 4)",
    "({h}[..., :1] >= wf.matrix_transpose({k}[..., :1]))",
    "({h} @ wf.matrix_transpose({k}) > 0)",
    "-0.1 * wf.abs({i} - {j}).astype({h}.dtype)",
    "wf.where({i} < {j}, -1.5, 0.25).astype({h}.dtype)",
    "{h} @ wf.matrix_transpose({k}) * 0.5",
    "wf.tanh({h}[..., :1]) * wf.matrix_transpose({k}[..., :1])",
)
"""Which keys a query sees, or what is added to its scores: most follow from rows and columns."""


def _may_attend(v: Value) -> bool:
    """Whether a value is small enough: scores in the thousands leave few digits to gradients,
    which take probabilities from scores and the logarithm of their sum."""
    return v.size <= 8192 and v.most <= 8


def _keys(draw: Draw, v: Value, h: str) -> str:
    """Keys for some queries: the same, a part of them, or of another value."""
    fits = [
        f"{x.name}"
        for x in draw.values
        if (x.ndim, x.dtype) == (v.ndim, v.dtype)
        and (*x.shape[:-2], x.shape[-1]) == (*v.shape[:-2], v.shape[-1])
        and _may_attend(x)
    ]
    parts = [h, f"{h}[..., :2, :]", f"{h}[..., :1, :, :]"]
    if draw.chance(0.5):
        return draw.one_of([h, *parts])
    other = draw.one_of(fits)
    return other if v.ndim > 2 else f"{other}[None]"


# --- convolutions --------------------------------------------------------------------------------


def convolve(draw: Draw) -> str:
    """A convolution or its transpose; the weights are a part of a value."""
    x = draw.value("f", 3, 5, where=lambda v: 0 not in v.shape)
    dims = x.ndim - 2
    weights = [v for v in draw.values if _are_weights(v, x)]
    if not weights:
        raise NoOperand
    smaller = [v for v in weights if v.shape[2:] != x.shape[2:]]
    w = draw.one_of(smaller if smaller and draw.chance(0.8) else weights)
    if draw.chance(0.4):
        return f"wf.conv{dims}d({x.name}, {w.name}, padding={draw.one_of([0, 1])})"
    if draw.chance(0.05):
        given = ", ".join(f"wf.round({each.name} * 3).astype(wf.int32)" for each in (x, w))
        return f"wf.conv{dims}d({given}, padding=1)"
    k = draw.one_of([1, 2, 3, 3, 5])
    cut = ", ".join(f":{k}" for _ in range(dims))
    stride, dilation = draw.one_of([1, 1, 2]), draw.one_of([1, 1, 2])
    padding = draw.one_of([0, 1, 2, "'same'" if stride == 1 else 1])
    if draw.chance(0.2):
        size = padding if isinstance(padding, int) else 0
        weight = f"{w.name}[:{x.name}.shape[1], :, {cut}]"
        more = ", output_padding=1" if stride == 2 and draw.chance(0.4) else ""
        call = f"{x.name}, {weight}, stride={stride}, padding={size}{more}"
        return f"wf.conv_transpose{dims}d({call})"
    weight, more = f"{w.name}[:, :, {cut}]", f"dilation={dilation}"
    if draw.chance(0.15):
        weight, more = f"wf.moveaxis({w.name}[:1, :, {cut}], 0, 1)", f"groups={x.name}.shape[1]"
    call = f"{x.name}, {weight}, stride={stride}, padding={padding}, {more}"
    return f"wf.conv{dims}d({call})"


def _are_weights(v: Value, x: Value) -> bool:
    """Whether a value can be the weights of a convolution of another one."""
    alike = (v.kind, v.ndim, v.dtype, v.shape[1:2]) == ("f", x.ndim, x.dtype, x.shape[1:2])
    # Padding times an infinite weight is NaN in one kernel, and left out in another; an infinity in
    # a tile of an image of many channels makes the whole tile NaN, and on cards one of 16 bits in
    # the row of an image of few channels that a window is read with.
    is_apart = x.shape[1] < TILED_CHANNELS and x.dtype not in ("float16", "bfloat16")
    images = is_apart or bool(np.isfinite(x.most))
    alike = alike and images and bool(np.isfinite(v.most))
    return alike and 0 not in v.shape and x.size // x.shape[1] * v.size <= CONVOLVED


def pool(draw: Draw) -> str:
    """Windows over the last axes."""
    dims = draw.one_of([1, 2, 2, 3])
    x = draw.value("f", dims + 2, dims + 2)
    k, s = draw.one_of([1, 2, 3]), draw.one_of([1, 2])
    options = (
        f"wf.max_pool{dims}d({{x}}, {k}, {s})",
        f"wf.avg_pool{dims}d({{x}}, {k}, {s})",
        f"wf.max_pool{dims}d({{x}}, 3, 2, padding=1)",
        f"wf.max_pool{dims}d({{x}}, 2, 1, padding=1, dilation=2)",
        f"wf.max_pool{dims}d({{x}}, 2, 3, ceil_mode=True)",
        f"wf.avg_pool{dims}d({{x}}, 3, 2, padding=1, ceil_mode=True, count_include_pad=False)",
        f"wf.avg_pool{dims}d({{x}}, 2, 1, padding=1)",
        f"wf.adaptive_avg_pool{dims}d({{x}}, 1)",
        f"wf.adaptive_max_pool{dims}d({{x}}, 2)",
        "wf.interpolate({x}, scale_factor=2)",
        f"wf.max_pool{dims}d({{x}}, 2, return_indices=True)[1]",
    )
    return draw.one_of(options).format(x=x.name)


# --- libraries -----------------------------------------------------------------------------------


def fourier(draw: Draw) -> str:
    """A Fourier transform."""
    v = draw.value("f", 1, where=lambda v: v.dtype in ("float32", "float64") and v.shape[-1] > 1)
    options = (
        "wf.fft.rfft({v})",
        "wf.fft.fft({v})",
        "wf.fft.irfft(wf.fft.rfft({v}))",
        "wf.fft.irfft(wf.fft.rfft({v}) * 0.5)",
        "wf.real(wf.fft.ifft({v}))",
        "wf.abs(wf.fft.rfft({v})) + 1",
        "wf.fft.fftshift({v})",
    )
    return draw.one_of(options).format(v=v.name)


def algebra(draw: Draw) -> str:
    """Linear algebra of a matrix that is positive definite."""
    v = draw.value(
        "f",
        2,
        3,
        where=lambda v: (
            v.dtype in ("float32", "float64") and 0 < v.shape[-1] < 9 and 0 < v.shape[-2] < 9
        ),
    )
    m = "({v} @ wf.matrix_transpose({v}) * 0.3 + 2 * wf.eye({v}.shape[-2], dtype={v}.dtype))"
    options = (
        "wf.linalg.inv({m})",
        "wf.linalg.cholesky({m})",
        "wf.linalg.det({m})",
        "wf.linalg.slogdet({m})[1]",
        "wf.linalg.solve({m}, {v})",
        "wf.linalg.eigvalsh({m})",
        "wf.sort(wf.abs(wf.linalg.eigvals({v} @ wf.matrix_transpose({v}) + 1)))",
        "(lambda w, z: (z * w[..., None, :]) @ wf.matrix_transpose(z))(*wf.linalg.eigh({m}))",
        "(lambda u, s, w: (u * s[..., None, :]) @ w)(*wf.linalg.svd({m}, full_matrices=False))",
        "wf.linalg.lu({m})[-1]",
        "wf.linalg.adjoint({v})",
        "wf.linalg.matrix_power({m}, 2)",
        "wf.linalg.matrix_exp({m} * 0.1)",
        "wf.linalg.norm({v})",
        "wf.linalg.solve_triangular(wf.linalg.cholesky({m}), {v}, upper=False)",
        "wf.linalg.svdvals({v})",
        "wf.linalg.pinv({m})",
        "wf.abs(wf.linalg.qr({m})[1])",
    )
    return draw.one_of(options).replace("{m}", m).format(v=v.name)


SKIPPED = {
    "debug_print",
    "debug_breakpoint",
    "debug_check",
    "eig",
    "eigvals",
    "custom",
    "svd",
    "eigh",
}
"""Primitives whose samples print, stop, or have results that are not unique."""


def sample(draw: Draw) -> str:
    """A sample of any primitive, moved a little by a value of the program."""
    v = draw.value("f", where=lambda v: v.size > 0)
    names = [name for name in sorted(PRIMITIVES) if name not in SKIPPED]
    if draw.chance(0.2):  # what the compiler alone writes, and no program holds otherwise
        names = [name for name in names if isinstance(PRIMITIVES[name].batch, Unsupported)]
    name = draw.one_of(names)
    primitive = PRIMITIVES[name]
    count = len(list(primitive.samples()))
    picked = "[0]" if primitive.multiple else ""
    return f"sampled({name!r}, {int(draw.rng.integers(count))}, {v.name}){picked}"
