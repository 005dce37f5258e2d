"""Families of operations on elements, along axes, and of moves; see `operations`."""

from __future__ import annotations

from tests.fuzz.draw import Draw, Value

# --- element by element --------------------------------------------------------------------------

UNARY = [
    "sin({})",
    "cos({})",
    "tanh({})",
    "sigmoid({})",
    "relu({})",
    "gelu({})",
    "silu({})",
    "softplus({})",
    "erf({})",
    "erfc({})",
    "atan({})",
    "asinh({})",
    "square({})",
    "abs({})",
    "negative({})",
    "cbrt({})",
    "sign({})",
    "floor({})",
    "ceil({})",
    "round({})",
    "trunc({})",
    "exp(-abs({}))",
    "expm1(-abs({}))",
    "exp2(-abs({}))",
    "log(abs({})+0.5)",
    "log1p(abs({}))",
    "log2(abs({})+0.5)",
    "log10(abs({})+0.5)",
    "sqrt(abs({})+0.1)",
    "rsqrt(abs({})+0.5)",
    "reciprocal(abs({})+0.5)",
    "sinh(tanh({}))",
    "cosh(tanh({}))",
    "tan(tanh({})*0.9)",
    "acos(tanh({})*0.9)",
    "asin(tanh({})*0.9)",
    "atanh(tanh({})*0.9)",
    "acosh(abs({})+1.5)",
    "erfinv(tanh({})*0.9)",
    "digamma(abs({})+0.5)",
    "lgamma(abs({})+0.5)",
    "polygamma(1,abs({})+0.5)",
    "i0e({})",
    "i1e({})",
    "log_sigmoid({})",
    "sinc({})",
    "logit(sigmoid(tanh({})))",
    "isfinite({})",
    "isnan({})",
    "isinf({})",
    "signbit({})",
    "stop_gradient({})",
    "clip({},-0.5,0.7)",
    "nan_to_num({}, posinf=9.0, neginf=-9.0)",
    "clip({},min=-0.25)",
    "pow(abs({})+0.5,1.5)",
    "pow({},3)",
    "positive({})",
]
HEAVY = ["digamma(", "lgamma(", "polygamma(", "erfinv(", "i0e(", "i1e("]
"""Functions whose kernels take long to compile."""


LONG = 20_000
"""Elements beyond which NumPy takes long for them, too."""


def unary(draw: Draw) -> str:
    """A function of one value, with what keeps it in its domain."""
    v = draw.value("f")
    text: str = draw.one_of(UNARY)
    if any(name in text for name in HEAVY) and (v.size > LONG or draw.chance(0.7)):
        text = draw.one_of(UNARY[:10])
    text = text.replace("abs(", "wf.abs(").replace("tanh(", "wf.tanh(").replace("wf.awf", "wf.a")
    text = text.replace("(sigmoid(", "(wf.sigmoid(")
    text = text if text.startswith("wf.") else f"wf.{text}"
    text = text.replace("wf.awf.tanh(", "wf.atanh(").replace("wf.wf.", "wf.")
    text = text.replace(",", ", ").replace("+0", " + 0").replace("+1", " + 1").replace("*0", " * 0")
    return text.format(v.name)


def numeric(draw: Draw) -> str:
    """A number with a value, on either side."""
    v = draw.value("f")
    number = draw.one_of(["0.5", "2", "1.25", "-1.5", "0", "1", "3.0", "-1", "0.1"])
    text = draw.one_of(["{v} * {n}", "{n} * {v}", "{v} + {n}", "{n} - {v}", "{v} - {n}"])
    if number != "0" and draw.chance(0.2):
        text = "{v} / {n}"
    return text.format(v=v.name, n=number)


def binary(draw: Draw) -> str:
    """A function of two values that broadcast."""
    a = draw.value("f")
    b = draw.like(a)
    options = (
        "{a} + {b}",
        "{a} - {b}",
        "{a} * {b}",
        "{a} * {b} + {a}",
        "{a} / (wf.abs({b}) + 0.5)",
        "wf.maximum({a}, {b})",
        "wf.minimum({a}, {b})",
        "wf.atan2({a}, wf.abs({b}) + 0.5)",
        "wf.hypot({a}, {b})",
        "wf.logaddexp({a}, {b})",
        "wf.copysign({a}, {b})",
        "wf.fmod({a}, wf.abs({b}) + 0.5)",
        "wf.remainder({a}, wf.abs({b}) + 0.5)",
        "wf.floor_divide({a}, wf.abs({b}) + 0.5)",
        "wf.pow(wf.abs({a}) + 0.5, {b})",
        "wf.xlogy({a}, wf.abs({b}) + 0.5)",
        "wf.xlog1py({a}, wf.abs({b}))",
        "wf.lerp({a}, {b}, 0.25)",
        "wf.nextafter({a}, {b})",
        "wf.tanh({a}) * wf.tanh({b})",
        "{a} * 2 - {b} * {b}",
    )
    return draw.one_of(options).format(a=a.name, b=b.name)


def compare(draw: Draw) -> str:
    """A comparison."""
    a = draw.value("fiu")
    b = draw.like(a)
    if draw.chance(0.3):
        return f"{a.name} {draw.one_of(['<', '>', '<=', '>=', '==', '!='])} 0"
    return f"{a.name} {draw.one_of(['<', '>', '<=', '>=', '==', '!='])} {b.name}"


def choose(draw: Draw) -> str:
    """A choice between values, element by element."""
    a = draw.value("fiuc")
    b, condition = draw.like(a), draw.like(a, "b")
    options = (
        "wf.where({c}, {a}, {b})",
        "wf.where({c}, {a}, 0)",
        "wf.masked_fill({a}, {c}, 2)",
        "wf.masked_fill({a}, {c}, 0.3)",  # which no dtype holds exactly
    )
    return draw.one_of(options).format(a=a.name, b=b.name, c=condition.name)


def whole(draw: Draw) -> str:
    """Functions of whole numbers."""
    a = draw.value("iu")
    b = draw.like(a)
    options = (
        "{a} + {b}",
        "{a} - {b}",
        "{a} * {b}",
        "wf.negative({a})",
        "wf.abs({a})",
        "wf.square({a})",
        "wf.bitwise_and({a}, {b})",
        "wf.bitwise_or({a}, {b})",
        "wf.bitwise_xor({a}, {b})",
        "wf.bitwise_invert({a})",
        "wf.bitwise_left_shift({a}, wf.bitwise_and({b}, 3))",
        "wf.bitwise_right_shift({a}, wf.bitwise_and({b}, 3))",
        "wf.maximum({a}, {b})",
        "wf.minimum({a}, {b})",
        "wf.floor_divide({a}, wf.bitwise_or({b}, 1))",
        "wf.sign({a})",
        "wf.remainder({a}, wf.bitwise_or({b}, 1))",
        "wf.fmod({a}, wf.bitwise_or({b}, 1))",
        "wf.clip({a}, 1, 4)",
        "wf.pow({a}, 2)",
        "{a} // 3",
        "{a} % 3",
    )
    return draw.one_of(options).format(a=a.name, b=b.name)


def truth(draw: Draw) -> str:
    """Functions of truth values."""
    a = draw.value("b")
    b = draw.like(a)
    options = (
        "wf.logical_and({a}, {b})",
        "wf.logical_or({a}, {b})",
        "wf.logical_xor({a}, {b})",
        "wf.logical_not({a})",
        "wf.bitwise_and({a}, {b})",
        "wf.bitwise_or({a}, {b})",
    )
    return draw.one_of(options).format(a=a.name, b=b.name)


def fix(draw: Draw) -> str:
    """A value with a constant, which is written into the program."""
    v = draw.value("f", 1, where=lambda v: v.size > 0)
    options = (
        "{v} * wf.reshape(constant({v}), {v}.shape)",
        "wf.checkpoint(lambda q: wf.reshape(q, {v}.shape) * {v})(constant({v}))",
        "wf.checkpoint(lambda q: wf.tanh(wf.reshape(q, {v}.shape)) + 1)(constant({v})) - {v}",
        "wf.index_add(constant({v}), 0, wf.arange({v}.size) // 2, wf.reshape({v}, -1))",
        "wf.scatter(constant({v}), 0, wf.arange({v}.size)[::-1] // 2 * 2, wf.reshape({v}, -1))",
        "wf.take(constant({v}), wf.argsort(wf.reshape({v}, -1)))",
        "(constant({v}[0]) + 1) @ wf.reshape({v}[0], -1)",
    )
    if v.ndim > 2 and draw.chance(0.4):
        options = ("F.group_norm(wf.reshape(constant({v}), {v}.shape) + {v}[:, :1], {g})",)
    return draw.one_of(options).format(v=v.name, g=groups(draw, v))


def groups(draw: Draw, v: Value) -> str:
    """How many groups the channels of a value are divided into."""
    if v.ndim < 2:
        return "1"
    parts = [part for part in range(1, v.shape[1] + 1) if v.shape[1] % part == 0] or [1]
    return f"{v.name}.shape[1] // {draw.one_of(parts)}"


FLOATS = ("float32", "float32", "float64", "float16", "bfloat16")
WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def convert(draw: Draw) -> str:
    """Another dtype."""
    v = draw.value("fiubc")
    if v.kind == "f" and draw.chance(0.3):
        return f"wf.clip(wf.round({v.name} * 3), 0, 9).astype(wf.{draw.one_of(WHOLE)})"
    if v.kind == "i" and draw.chance(0.15):
        return f"wf.bitcast({v.name}, wf.u{v.dtype})"
    if v.kind == "c":
        return f"{v.name}.astype(wf.{draw.one_of(['complex64', 'complex128'])})"
    kinds = FLOATS if v.kind == "f" or draw.chance(0.6) else WHOLE
    return f"{v.name}.astype(wf.{draw.one_of(kinds)})"


def complexes(draw: Draw) -> str:
    """Complex numbers, and back."""
    if draw.chance(0.5):
        v = draw.value("c")
        options = (
            "wf.real({})",
            "wf.imag({})",
            "wf.conj({})",
            "wf.abs({})",
            "{0} * {0}",
            "-{}",
            "wf.exp({} * 0.25)",
            "wf.sin({} * 0.25)",
            "wf.tanh({} * 0.25)",
        )
        return draw.one_of(options).format(v.name)
    v = draw.value("f", where=lambda v: v.dtype in ("float32", "float64"))
    return f"{v.name} * 1j + {draw.like(v).name}"


# --- along axes ----------------------------------------------------------------------------------


FEW = 64
"""The most numbers below 1 that are multiplied: the product of many is below all that float32 has,
and a step such as floor tells 0 from what is next to it."""


def reduce(draw: Draw) -> str:
    """A reduction over some axes."""
    v = draw.value("f", 1)
    name = draw.one_of(
        ["sum", "sum", "mean", "max", "min", "var", "std", "logsumexp", "prod", "argmax", "argmin"]
    )
    axes, keep = draw.axes(v), draw.one_of(["", ", keepdims=True"])
    if name in ("argmax", "argmin"):
        axes = str(draw.axis(v))
    operand = _factors(v) if name == "prod" else v.name
    turned = [x.name for x in draw.values if v.ndim == 2 and _is_turned(x, v)]
    if turned and name in ("sum", "mean", "max") and draw.chance(0.4):
        operand = f"wf.matrix_transpose({draw.one_of(turned)}) * {v.name}"
    more = ", correction=1" if name == "var" and draw.chance(0.2) else ""
    return f"wf.{name}({operand}, axis={axes}{keep}{more})"


def _factors(v: Value) -> str:
    """Numbers made of a value whose product is a number still, and no underflow."""
    return f"wf.tanh({v.name})" if v.size <= FEW else f"(1 + 0.1 * wf.tanh({v.name}))"


def _is_turned(x: Value, v: Value) -> bool:
    return x.dtype == v.dtype and x.shape == v.shape[::-1]


def reduce_whole(draw: Draw) -> str:
    """A reduction of whole numbers or truth values."""
    v = draw.value("iub", 1)
    names = (
        ["any", "all", "sum", "count_nonzero"] if v.kind == "b" else ["sum", "max", "min", "prod"]
    )
    return f"wf.{draw.one_of(names)}({v.name}, axis={draw.axes(v)})"


def cumulate(draw: Draw) -> str:
    """A scan along an axis."""
    v = draw.value("f", 1)
    options = (
        "wf.cumulative_sum({v}, axis={a})",
        "wf.cumulative_prod({f}, axis={a})",
        "wf.cumulative_logsumexp({v}, axis={a})",
        "wf.cummax({v}, axis={a})[0]",
        "wf.cummin({v}, axis={a})[0]",
        "wf.cummax({v}, axis={a})[1]",
        "wf.cummin({v}, axis={a})[1]",
        "wf.flip(wf.cumulative_sum(wf.flip({v}, axis={a}), axis={a}), axis={a})",
        "wf.diff({v}, axis={a})",
        "wf.cumulative_sum({v}, axis={a}, include_initial=True)",
    )
    return draw.one_of(options).format(v=v.name, a=draw.axis(v), f=_factors(v))


FEWEST = 3
"""The fewest numbers that are divided by their length as they are: one alone becomes its sign, and
a derivative of that is what rounding leaves of 0."""


def normalise(draw: Draw) -> str:
    """What is made of whole rows."""
    v = draw.value("f", 1)
    options = [
        "wf.softmax({v}, axis={a})",
        "wf.log_softmax({v}, axis={a})",
        "wf.softmin({v}, axis={a})",
        "wf.normalize({n}, axis={a})",
        "F.layer_norm({v}, {v}.shape[-1])",
        "F.rms_norm({v}, {v}.shape[-1], eps=1e-5)",
        "{v} - wf.mean({v}, axis={a}, keepdims=True)",
        "{v} / (1 + wf.max(wf.abs({v}), axis={a}, keepdims=True))",
        "{v} * (1 + wf.mean({v}, axis={a}))",
    ]
    if v.ndim > 1:
        options += [
            "F.batch_norm({v}, training=True)",
            "F.group_norm({v}, 1)",
            "F.group_norm({v}, {g})",
            "F.local_response_norm({v}, 2)",
            "F.instance_norm({v})",
        ]
    scales = [x.name for x in draw.values if x.shape == v.shape[-1:] and x.dtype == v.dtype]
    if v.ndim > 1 and scales and draw.chance(0.5):
        options = [
            "F.rms_norm({v}, {v}.shape[-1], {w}, eps=1e-5)",
            "F.layer_norm({v}, {v}.shape[-1], {w}, {w})",
        ]
    w = draw.one_of(scales or [v.name])
    chosen, axis = draw.one_of(options), draw.axis(v)
    n = v.name
    if v.shape[axis] < FEWEST:
        n = f"wf.concat([{n}, wf.ones_like({n})], axis={axis})"
    return chosen.format(v=v.name, a=axis, g=groups(draw, v), w=w, n=n)


def sort(draw: Draw) -> str:
    """Orders."""
    v = draw.value("fiu", 1)
    options = (
        "wf.sort({v}, axis={a})",
        "wf.argsort({v}, axis={a})",
        "wf.sort({v}, axis={a}, descending=True)",
        "wf.topk({v}, min(2, {v}.shape[{a}]), axis={a})[0]",
        "wf.topk({v}, {v}.shape[{a}] // 2, axis={a})[1]",
        "wf.topk({v}, 1, axis={a}, largest=False)[0]",
        "wf.median({v}, axis={a})",
        "wf.searchsorted(wf.sort(wf.reshape({v}, -1)), {v})",
        "wf.quantile({v}, 0.3, axis={a})",
    )
    return draw.one_of(options).format(v=v.name, a=draw.axis(v))


# --- moves ---------------------------------------------------------------------------------------


def move(draw: Draw) -> str:
    """A view or a copy in another order."""
    v = draw.value("fiubc", 1)
    a = draw.axis(v)
    options = [
        "wf.reshape({v}, -1)",
        "wf.flip({v}, axis={a})",
        "wf.expand_dims({v}, axis={a})",
        "wf.squeeze({v}[:1], axis=0)",
        "{v}[1:]",
        "{v}[:-1]",
        "{v}[::2]",
        "{v}[::-1]",
        "{v}[: {v}.shape[0] // 2]",
        "{v}[..., 1:]",
        "{v}[..., :1]",
        "{v}[..., None]",
        "{v}[None]",
        "wf.roll({v}, 1, axis={a})",
        "{v}[0]",
        "{v}[-1]",
        "wf.repeat({v}, 2, axis={a})",
        "{v}[..., ::-2]",
        "wf.reshape({v}, ({v}.shape[-1], -1))",
        "wf.pad({v}, (({v}.ndim - 1) * [(0, 0)]) + [(1, 2)])",
        "wf.reshape({v}, (1, *{v}.shape))",
        "wf.broadcast_to({v}, (2, *{v}.shape))",
        "wf.tile({v}, 2)",
        "wf.reshape({v}, ({v}.shape[0], -1))",
        "{v}.clone()",
    ]
    if v.kind == "f" and v.shape[-1] > 1:
        options += [
            "wf.pad({v}, (({v}.ndim - 1) * [(0, 0)]) + [(1, 1)], mode='reflect')",
            "wf.pad({v}, [(1, 0)] + ({v}.ndim - 1) * [(0, 0)], mode='edge')",
            "wf.unfold({v}, -1, 2)",
            "wf.as_windows({v}, 2, axis=-1, step=2)",
        ]
    if v.ndim > 1:
        order = tuple(int(p) for p in draw.rng.permutation(v.ndim))
        options += [
            "wf.swapaxes({v}, 0, -1)",
            "wf.matrix_transpose({v})",
            f"wf.permute_dims({{v}}, {order})",
            "wf.moveaxis({v}, 0, -1)",
            "wf.reshape({v}, ({v}.shape[0] * {v}.shape[1], *{v}.shape[2:]))",
            "{v}[:, 0]",
            "{v}[:, 1:]",
            "{v}[1:, :-1]",
            "wf.diagonal({v})",
            "wf.rot90({v})",
            "wf.matrix_transpose({v})[::-1]",
            "wf.flip({v})",
        ] * 2
        if v.kind == "f":
            options += ["wf.tril({v})", "wf.triu({v}, k=1)"]
    if v.ndim == 1 and v.size <= 200:
        options += ["wf.diag({v})"]
    return draw.one_of(options).format(v=v.name, a=a)


JOINS = [
    "(lambda c: wf.stack([{v} + c[::2], wf.cumulative_sum(c, axis=0)[::2]]))"
    "(wf.concat([{o}, {v} * 2], axis=0))",
    "(lambda c: wf.concat([wf.sin({v}) * c[1::2], wf.sort(c, axis=0)], axis=0))"
    "(wf.concat([{o}, {v}], axis=0))",
    "(lambda c: c + wf.concat([{v} * c[::2], {o}], axis=0))(wf.concat([{v}, {o}], axis=0))",
]
"""Joins that are read as a whole, and at places of several parts by what reads a part as well."""


def join(draw: Draw) -> str:
    """Several values side by side; often parts of one."""
    v = draw.value("fiubc", 1)
    a = draw.axis(v)
    others = [x.name for x in draw.values if x.shape == v.shape and x.dtype == v.dtype]
    o = draw.one_of(others)
    options = [
        "wf.concat([{v}, {o}], axis={a})",
        "wf.stack([{v}, {o}], axis={a})",
        "wf.concat([{v}, {v}, {o}[:1]], axis=0)",
        "wf.concat([{v}[1:], {v}[:1]], axis=0)",
        "wf.concat([{o}, wf.flip({v}, axis={a})], axis={a})",
        "wf.concat([wf.flip({v}, axis=0), {v}[:0], {o}], axis=0)",
        "wf.stack([{v}, {v}], axis=-1)",
        "wf.concat([{v}[..., ::2], {o}[..., 1::2]], axis=-1)",
        "wf.hstack([{v}, {o}])",
    ]
    if v.kind == "f":
        options += [
            "wf.concat([{v}, wf.flip({o}, axis=0) * 2, {v}[:1]], axis=0)",
            "wf.concat([{v}, wf.sin({v})], axis={a})",
            "wf.concat([{v} * 2, {o} + 1, {v}], axis=-1)",
        ]
        if draw.chance(0.4):
            options = JOINS
    wide = [x for x in draw.values if _is_twice(x, v)]
    if v.kind == "f" and wide and draw.chance(0.5):
        w = draw.one_of(wide).name
        options = [f"{w}[::2] + {{v}}", f"wf.sin({{v}}) * {w}[1::2]", f"{w}[::-2] - {{o}}"]
    return draw.one_of(options).format(v=v.name, o=o, a=a)


def _is_twice(x: Value, v: Value) -> bool:
    """Whether a value may be two of another's shape, one behind the other."""
    return x.dtype == v.dtype and x.shape == (2 * v.shape[0], *v.shape[1:])


def index(draw: Draw) -> str:
    """Elements by their places."""
    v = draw.value("fiuc", 1)
    a = draw.axis(v)
    i = draw.index(v, a)
    options = [
        "wf.take({v}, {i}, axis={a})",
        "{v}[{first}]",
        "wf.index_add({v}, {a}, {i}, wf.take({v}, {i}, axis={a}))",
        "wf.index_copy({v}, {a}, wf.arange({v}.shape[{a}])[::2], "
        "wf.take({v}, wf.arange({v}.shape[{a}])[::2] * 0, axis={a}))",
        "wf.take_along_axis({v}, wf.argsort({v}, axis={a}), axis={a})",
        "wf.gather({v}, {a}, wf.argsort({v}, axis={a}))",
        "wf.segment_sum({v}, {first}[:1] + 0 * wf.arange({v}.shape[0]), {v}.shape[0])",
        "wf.scatter({v}, {a}, wf.argsort({v}, axis={a}), {v})",
        "wf.scatter_add({v}, {a}, wf.argsort({v}, axis={a}) // 2, {v})",
        "wf.scatter_reduce({v}, {a}, wf.argsort({v}, axis={a}) // 2, {v}, {r!r})",
        "wf.dynamic_slice({v}, [wf.argmax(wf.reshape({v}, -1)) % 3] + [0] * ({v}.ndim - 1), "
        "[1, *{v}.shape[1:]])",
        "wf.dynamic_update_slice({v}, {v}[:1], "
        "[wf.argmax(wf.reshape({v}, -1)) % 5] + [0] * ({v}.ndim - 1))",
        "wf.put_along_axis({v}, wf.argmax({v}, axis={a}, keepdims=True), 0, axis={a})",
        "wf.put_along_axis({v}, wf.argmax({v}, axis={a}, keepdims=True), 0.3, axis={a})",
        "wf.index_add({v}, {a}, {i}, 0.3)",
        "wf.tensor([0.3, wf.mean({v}), wf.max({v})])",
    ]
    first = draw.index(v, 0)
    r = draw.one_of(["sum", "amax", "amin", "mean", "prod"])
    return draw.one_of(options).format(v=v.name, a=a, i=i, first=first, r=r)


def look_up(draw: Draw) -> str:
    """Rows of a table, rows that are hot, and a loss of classes."""
    v = draw.value("f", 2, 2, where=lambda v: 0 not in v.shape)
    i = draw.index(v, 0)
    options = (
        "F.embedding({i}, {v})",
        "wf.one_hot({i}, {v}.shape[0], dtype=wf.{d}) @ {v}",
        "F.cross_entropy({v}, wf.arange({v}.shape[0]) % {v}.shape[1])",
        "wf.glu(wf.concat([{v}, {v}], axis=-1))",
        "F.mse_loss({v}, wf.flip({v}, axis=0))",
        "F.smooth_l1_loss({v}, {v} * 0.5)",
    )
    return draw.one_of(options).format(v=v.name, i=i, d=v.dtype)


def assign(draw: Draw) -> tuple[str, ...]:
    """A copy of which parts are written; the name of the copy is a place to be filled."""
    v = draw.value("fiub", 1)
    o = draw.one_of([x.name for x in draw.values if x.shape == v.shape and x.dtype == v.dtype])
    writes = (
        "{{r}}[0] = {o}[-1]",
        "{{r}}[:1] = 1",
        "{{r}}[1:] = {o}[:-1]",
        "{{r}}[...] = {o}",
        "{{r}}[::2] = 0",
        "{{r}}[-1] = {o}[0]",
        "{{r}}[:] = {o}",
        "{{r}}[:, 0] = 1",
        "{{r}}[..., 1:] = {o}[..., :-1]",
        "{{r}}[{o} > 0] = 1",
        "{{r}} += {o}",
        "{{r}} *= 2",
        "{{r}}[1:] += {o}[1:]",
        "{{r}}[{i}] = 0",
        "{{r}}[0:] = 1",
        "{{r}}[::-1] = {o}",
    )
    count = int(draw.rng.integers(1, 4))
    i = draw.index(v, 0)
    lines = [draw.one_of(writes).format(o=o, i=i) for _ in range(count)]
    return (f"{{r}} = {v.name}.clone()", *lines)
