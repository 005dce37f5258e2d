"""Attention, cross entropy and sorts on a card, real or in the host's memory, beside the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.compiler.cuda.device_cases import compare, numbers

import weft as wf
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.target import CUDA

Array = np.ndarray[Any, Any]


def launch_names(f: Callable[..., Any], *arrays: Array) -> list[str]:
    """The names of a program's launches on a card."""
    plan = plan_program(wf.ir.trace(f, *map(wf.asarray, arrays)), CUDA)
    return [launch.name for launch in plan.every_launch()]


# --- attention -----------------------------------------------------------------------------------


def seen_keys(queries: int, keys: int) -> wf.Tensor:
    """A mask that hides keys in no order, and all keys from query 1."""
    i, j = wf.arange(queries)[:, None], wf.arange(keys)
    return ((i * 7 + j * 5) % 3 != 0) & (i != 1)


def added_numbers(queries: int, keys: int) -> wf.Tensor:
    """Numbers to be added, -inf and the lowest float32 among them; those of query 1 are lowest."""
    i, j = wf.arange(queries)[:, None], wf.arange(keys)
    lowest = float(np.finfo(np.float32).min)
    numbers = wf.sin((i * 3 + j).astype("float32"))
    numbers = wf.where((i + j) % 5 == 2, -np.inf, numbers)
    return wf.where((i == 1) | ((i + j) % 5 == 1), lowest, numbers)


def attend(
    dtype: str = "bfloat16", mask: Callable[..., wf.Tensor] | None = None, **options: Any
) -> Callable[[wf.Tensor, wf.Tensor], wf.Tensor]:
    """Attention of queries, [batch, heads, time, head], to others, in 16 bits."""

    def f(q: wf.Tensor, k: wf.Tensor) -> wf.Tensor:
        short, keys = q.astype(dtype), k.astype(dtype)
        given = None if mask is None else mask(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        drawn = {"key": wf.random.key(5)} if "dropout" in options else {}
        out = wf.scaled_dot_product_attention(short, keys, keys + 1, given, **options, **drawn)
        return out.astype("float32")

    return f


def gradients(f: Callable[[wf.Tensor, wf.Tensor], wf.Tensor]) -> Callable[..., Any]:
    """The gradients of attention by both inputs, for a cotangent that varies."""

    def loss(q: wf.Tensor, k: wf.Tensor) -> wf.Tensor:
        return (f(q, k) * wf.sin(q * 9)).sum()

    return wf.grad(loss, argnums=(0, 1))


def _padding(batch: int, heads: int, queries: int, keys: int) -> wf.Tensor:
    """Lengths: the keys of each batch up to one, [batch, 1, 1, keys]."""
    lengths = (wf.arange(batch) * 3 + keys // 2)[:, None, None, None]
    return wf.arange(keys) < lengths


def _each_head(batch: int, heads: int, queries: int, keys: int) -> wf.Tensor:
    slopes = wf.arange(heads, dtype="float32")[:, None, None]
    distance = wf.arange(queries)[:, None] - wf.arange(keys)
    return slopes * distance.astype("float32") * 0.1


def _attend_to_nan(q: wf.Tensor, k: wf.Tensor) -> wf.Tensor:
    """Attention to keys of which number 3 is NaN, and hidden from every other query."""
    short, keys = q.astype("bfloat16"), k.astype("bfloat16")
    i, j = wf.arange(q.shape[2])[:, None], wf.arange(k.shape[2])
    holes = wf.where((j == 3)[:, None], np.nan, keys)
    seen = (i % 2 == 0) | (j != 3)
    return wf.scaled_dot_product_attention(short, holes, keys + 1, seen).astype("float32")


Shape = tuple[int, ...]
ATTENTIONS: dict[str, tuple[Callable[..., Any], Shape, Shape]] = {
    "a mask": (attend(mask=lambda b, h, q, k: seen_keys(q, k)), (2, 2, 21, 64), (2, 2, 38, 64)),
    "a mask of an odd number of keys, causal": (
        attend(mask=lambda b, h, q, k: seen_keys(q, k), causal=True), (1, 2, 21, 64),
        (1, 2, 37, 64),
    ),
    "a mask of whole vectors": (
        attend(mask=lambda b, h, q, k: seen_keys(q, k)), (1, 2, 70, 64), (1, 1, 48, 64),
    ),
    "lengths": (attend(mask=_padding), (3, 2, 9, 64), (3, 1, 20, 64)),
    "numbers that are added": (
        attend(mask=lambda b, h, q, k: added_numbers(q, k)), (1, 2, 21, 64), (1, 2, 38, 64),
    ),
    "numbers of each head, causal": (
        attend("float16", _each_head, causal=True, aligned="end"), (1, 4, 7, 64), (1, 2, 19, 64),
    ),
    "heads of 32": (attend(causal=True), (1, 2, 21, 32), (1, 2, 21, 32)),
    "heads of 96 with a mask": (
        attend(mask=lambda b, h, q, k: seen_keys(q, k)), (1, 2, 21, 96), (1, 2, 30, 96),
    ),
    "heads of 128 with numbers": (
        attend("float16", lambda b, h, q, k: added_numbers(q, k)), (1, 1, 21, 128),
        (1, 1, 30, 128),
    ),
    "heads of 200": (attend(causal=True), (1, 2, 21, 200), (1, 2, 30, 200)),
    "heads of 256 with a mask": (
        attend(mask=lambda b, h, q, k: seen_keys(q, k)), (1, 2, 9, 256), (1, 1, 30, 256),
    ),
    "dropout": (attend(dropout=0.4), (2, 2, 21, 64), (2, 2, 40, 64)),
    "dropout, causal, with a mask, heads of 128": (
        attend("float16", lambda b, h, q, k: seen_keys(q, k), causal=True, dropout=0.4),
        (1, 2, 21, 128), (1, 2, 36, 128),
    ),
    "one query and a cache": (
        attend(mask=lambda b, h, q, k: wf.arange(k) < 17), (2, 4, 1, 64), (2, 2, 40, 64),
    ),
}  # fmt: skip
"""Programs and the shapes of queries and of keys, all of which have a kernel."""
SMALL = {
    "a mask and a smaller head": (
        attend(mask=lambda b, h, q, k: seen_keys(q, k)), (1, 2, 3, 32), (1, 1, 5, 32),
    ),
    "numbers, causal, dropout": (
        attend("float16", _each_head, causal=True, aligned="end", dropout=0.4), (1, 2, 3, 64),
        (1, 2, 4, 64),
    ),
    "heads of 136": (attend(causal=True), (1, 2, 3, 136), (1, 1, 5, 136)),
}  # fmt: skip
"""Programs for a card in the host's memory, which takes long."""
ATTENTIONS |= SMALL
LARGE: dict[str, tuple[Callable[..., Any], Shape, Shape]] = {
    "a mask over several parts": (
        attend(mask=lambda b, h, q, k: seen_keys(q, k)), (2, 2, 333, 64), (2, 1, 416, 64),
    ),
    "a causal mask and another, an odd number of keys": (
        attend(mask=lambda b, h, q, k: seen_keys(q, k), causal=True), (1, 2, 333, 64),
        (1, 2, 333, 64),
    ),
    "a mask of each batch and head": (
        attend("float16", lambda b, h, q, k: wf.sin(
            wf.arange(b * h * q * k, dtype="float32")).reshape(b, h, q, k) > -0.5, causal=True),
        (2, 4, 200, 128), (2, 2, 272, 128),
    ),
    "lengths of long rows": (attend(mask=_padding), (3, 2, 300, 64), (3, 2, 1100, 64)),
    "numbers over several parts": (
        attend(mask=lambda b, h, q, k: added_numbers(q, k)), (1, 2, 200, 64), (1, 2, 390, 64),
    ),
    "numbers that are read eight at a time": (
        attend("float16", mask=_each_head), (2, 2, 200, 64), (2, 2, 392, 64),
    ),
    "numbers of each head, heads of 128": (attend(mask=_each_head), (1, 4, 150, 128),
                                           (1, 2, 257, 128)),
    "heads of 256 over several parts": (attend(causal=True), (2, 2, 300, 256), (2, 1, 300, 256)),
    "heads of 256, masked": (
        attend(mask=lambda b, h, q, k: seen_keys(q, k)), (1, 2, 200, 256), (1, 2, 336, 256),
    ),
    "heads of 160": (attend(), (1, 2, 200, 160), (1, 2, 300, 160)),
    "heads of 40": (attend("float16", causal=True), (1, 2, 300, 40), (1, 2, 300, 40)),
    "dropout over several parts": (attend(dropout=0.3), (2, 2, 333, 64), (2, 2, 400, 64)),
    "dropout, causal, long": (attend(dropout=0.1, causal=True), (1, 2, 2100, 64), (1, 2, 2100, 64)),
    "dropout and a mask, heads of 128": (
        attend("float16", lambda b, h, q, k: seen_keys(q, k), dropout=0.5), (1, 2, 200, 128),
        (1, 1, 288, 128),
    ),
    "dropout, a mask, heads of 256": (
        attend(mask=lambda b, h, q, k: seen_keys(q, k), causal=True, dropout=0.3), (2, 2, 200, 256),
        (2, 1, 272, 256),
    ),
    "a key that is no number": (_attend_to_nan, (1, 2, 150, 64), (1, 2, 160, 64)),
    "a long cache": (
        attend(mask=lambda b, h, q, k: wf.arange(k) < 1500), (2, 8, 1, 64), (2, 2, 2048, 64),
    ),
}  # fmt: skip
"""Sizes of many tiles, which take too long where there is no card."""
COMPOSED: dict[str, tuple[Callable[..., Any], Shape, Shape]] = {
    "more queries than keys, aligned at the end": (
        attend(causal=True, aligned="end"), (1, 2, 12, 64), (1, 2, 7, 64),
    ),
    "heads of 20": (attend(causal=True), (1, 2, 9, 20), (1, 2, 9, 20)),
    "dropout of 7 keys": (attend(dropout=0.4), (1, 2, 9, 64), (1, 2, 7, 64)),
    "a scale below zero": (attend(scale=-0.3), (1, 2, 9, 64), (1, 2, 7, 64)),
    "no scale": (attend(scale=0.0), (1, 2, 9, 64), (1, 2, 7, 64)),
    "wide floats": (
        lambda q, k: wf.scaled_dot_product_attention(
            *[x.astype("float64") for x in (q, k, k)], seen_keys(9, 7)
        ), (1, 2, 9, 64), (1, 2, 7, 64),
    ),
}  # fmt: skip
"""Programs that are made of products."""


def _inputs(name: str) -> tuple[Callable[..., Any], Array, Array]:
    f, q, k = {**ATTENTIONS, **LARGE, **COMPOSED}[name]
    return f, numbers(*q), numbers(*k, 1)[..., 0]


def check_attention_plan(name: str) -> None:
    """Attention and its gradient have the launches that they are for."""
    f, q, k = _inputs(name)
    names = launch_names(f, q, k)
    assert ("attention" in names) == (name not in COMPOSED), names
    if name not in COMPOSED:
        names = launch_names(gradients(f), q, k)
        assert "attention_gradient" in names, names


def check_attention(name: str) -> None:
    """Attention is the CPU's."""
    f, q, k = _inputs(name)
    compare(f, q, k, limit=3e-2)


def check_attention_gradient(name: str) -> None:
    """The gradients of attention are the CPU's."""
    f, q, k = _inputs(name)
    compare(gradients(f), q, k, limit=5e-2)


def check_equal_bits(name: str) -> None:
    """Two runs of a gradient have the same bits."""
    f, q, k = LARGE[name]
    x, y = (wf.asarray(each).to("cuda") for each in (numbers(*q), numbers(*k, 1)[..., 0]))
    compiled = wf.jit(gradients(f))
    first, second = (
        [each.numpy().tobytes() for each in wf.tree.leaves(compiled(x, y))] for _ in range(2)
    )
    assert first == second


def _attend_to_cache(q: wf.Tensor, k: wf.Tensor, place: wf.Tensor) -> wf.Tensor:
    """Attention to the keys of a cache up to a place."""
    seen = wf.arange(k.shape[2]) <= place
    return wf.scaled_dot_product_attention(q, k, k + 1, seen)


def check_cache_plan() -> None:
    """Attention to a cache has a kernel, however long the cache is."""
    kinds = (("bfloat16", ("b", 4, 1, 64)), ("bfloat16", ("b", 2, "n", 64)), ("int64", ()))
    graph = wf.ir.trace(_attend_to_cache, *[wf.spec(*kind) for kind in kinds])
    assert "attention" in [launch.name for launch in plan_program(graph, CUDA).launches]


def check_caches(*lengths: int) -> None:
    """Attention to caches of several lengths, by one compiled function."""
    attend_to = wf.jit(_attend_to_cache)
    for length in lengths:
        q, k = (wf.asarray(numbers(*shape)).astype("bfloat16") for shape in (
            (2, 4, 1, 64), (2, 2, length, 64)))  # fmt: skip
        place = wf.asarray(np.array(length - 3))
        wanted = attend_to(q, k, place).astype("float32").numpy()
        found = attend_to(*[each.to("cuda") for each in (q, k, place)])
        np.testing.assert_allclose(found.astype("float32").numpy(), wanted, rtol=3e-2, atol=3e-2)


# --- cross entropy -------------------------------------------------------------------------------


def _labels(rows: int, columns: int) -> wf.Tensor:
    """Labels over all columns, the last one among them; one row is ignored."""
    places = (wf.arange(rows) * 997 + columns - 1) % columns
    return wf.where(wf.arange(rows) == rows // 2, -100, places)


def entropy(
    dtype: str, *, weighted: bool = False, **options: Any
) -> Callable[[wf.Tensor], tuple[wf.Tensor, wf.Tensor]]:
    """A cross entropy of logits in 16 bits, and its gradient, about 1 where logits are equal."""

    def loss(x: wf.Tensor) -> wf.Tensor:
        columns = x.shape[1]
        weight = 1 + wf.arange(columns, dtype="float32") % 3 if weighted else None
        logits = x.astype(dtype).astype("float32")
        labels = _labels(x.shape[0], columns)
        return wf.nn.functional.cross_entropy(logits, labels, weight, **options)

    def loss_and_gradient(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        value, gradient = wf.value_and_grad(loss)(x)
        return value, gradient * x.shape[1]

    return loss_and_gradient


ENTROPIES: dict[str, tuple[Callable[..., Any], tuple[int, int], bool]] = {
    "mean": (entropy("bfloat16"), (2, 4096), True),
    "sum of rows of any length": (entropy("float16", reduction="sum"), (3, 5000), True),
    "weights of classes": (entropy("bfloat16", weighted=True), (5, 4104), True),
    "a row at a time": (entropy("bfloat16", reduction="sum"), (2, 60_000), True),
    "smoothing": (entropy("bfloat16", label_smoothing=0.1), (5, 4096), False),
    "few columns": (entropy("bfloat16"), (5, 1024), False),
    "rows of no whole 16 bytes": (entropy("bfloat16"), (3, 4097), False),
}  # fmt: skip
"""Programs, shapes, and whether the plan holds their rows."""


def check_entropy_plan(name: str) -> None:
    """The plan reads logits once where rows are held."""
    f, shape, is_held = ENTROPIES[name]
    names = launch_names(f, numbers(*shape))
    assert ("softmax gradient" in names) == is_held, names


def check_entropy(name: str) -> None:
    """Loss and gradient are the CPU's."""
    f, shape, _ = ENTROPIES[name]
    compare(f, numbers(*shape) * 3, limit=1e-2)


# --- sorts ---------------------------------------------------------------------------------------


def _shuffled(shape: tuple[int, ...], dtype: str) -> Array:
    """Numbers of which many are equal; NaN of both signs, zeros of both signs, infinities."""
    draw = np.random.default_rng(sum(shape)).integers(-6, 7, shape)
    if dtype == "bool":
        return draw > 0
    if dtype.startswith(("int", "uint")):
        return (draw % 13 if dtype.startswith("u") else draw * 3).astype(dtype)
    special = {5: np.nan, -5: -np.nan, 4: np.inf, -4: -np.inf, 3: -0.0, 2: 0.0}
    values = np.array([special.get(int(x), x * 0.37) for x in draw.ravel()]).reshape(shape)
    return values.astype(dtype)


SORTS: dict[str, tuple[Callable[..., Any], tuple[int, ...], str]] = {
    "a short row": (wf.sort, (5,), "float32"),
    "a row of several chunks": (wf.sort, (77,), "float32"),
    "rows, descending": (lambda x: wf.sort(x, axis=1, descending=True), (3, 40), "float32"),
    "columns": (lambda x: wf.sort(x, axis=0), (37, 3), "float16"),
    "an axis in the middle": (lambda x: wf.argsort(x, axis=1), (2, 19, 3), "int64"),
    "places, descending": (lambda x: wf.argsort(x, descending=True), (50,), "float64"),
    "places of truth values": (lambda x: wf.argsort(x), (21,), "bool"),
    "small numbers": (lambda x: wf.sort(x), (33,), "uint8"),
    "short floats": (lambda x: wf.sort(x.astype("bfloat16")).astype("float32"), (33,), "float32"),
    "the first few": (lambda x: wf.topk(x, 3), (4, 90), "float32"),
    "the first few of few": (lambda x: wf.topk(x, 2, axis=0), (3, 4), "int32"),
    "most of a row": (lambda x: wf.topk(x, 30, largest=False), (2, 41), "float32"),
    "none": (lambda x: wf.topk(x, 0), (2, 5), "float32"),
    "no rows": (wf.sort, (0, 5), "float32"),
    "a gradient": (wf.grad(lambda x: (wf.sort(x) * wf.arange(9.0)).sum()), (9,), "plain"),
    "a search": (lambda x: wf.searchsorted(wf.sort(x), x), (23,), "float32"),
    "a search from the right": (
        lambda x: wf.searchsorted(wf.sort(x), x, side="right"), (23,), "int64",
    ),
}  # fmt: skip


RUNNING: dict[str, tuple[Callable[..., Any], tuple[int, ...], str]] = {
    "a sum": (lambda x: wf.cumulative_sum(x), (5,), "float32"),
    "a long sum": (lambda x: wf.cumulative_sum(x), (700,), "plain"),
    "sums of rows, back": (lambda x: wf.flip(wf.cumsum(wf.flip(x, axis=1), axis=1), axis=1),
                           (3, 50), "plain"),
    "sums of columns": (lambda x: wf.cumsum(x, axis=0), (37, 3), "float64"),
    "sums of whole numbers": (lambda x: wf.cumsum(x, axis=1), (2, 41, 2), "int32"),
    "sums of small numbers": (lambda x: wf.cumsum(x, axis=0), (60,), "uint8"),
    "products": (lambda x: wf.cumprod(x, axis=0), (29,), "plain"),
    "highest": (lambda x: wf.cummax(x, axis=-1), (3, 60), "float32"),
    "lowest": (lambda x: wf.cummin(x, axis=0), (40,), "float32"),
    "lowest of whole numbers": (lambda x: wf.cummin(x, axis=0), (40,), "int64"),
    "a gradient of a sum": (
        wf.grad(lambda x: (wf.cumsum(x, axis=0) * wf.arange(31.0)).sum()), (31,), "plain",
    ),
    "short floats": (
        lambda x: wf.cumsum(x.astype("bfloat16"), axis=0).astype("float32"), (31,), "plain",
    ),
}  # fmt: skip


def check_running(name: str) -> None:
    """A running form is the CPU's, but for the rounding of a sum in another order."""
    f, shape, dtype = RUNNING[name]
    x = numbers(*shape) if dtype == "plain" else _shuffled(shape, dtype)
    if "sum" in name and x.dtype.kind == "f":
        x = np.nan_to_num(x, posinf=3, neginf=-3)
    assert any("cumulative" in each for each in launch_names(f, x))
    compare(f, x, limit=1e-2 if "short" in name else 2e-6)


def check_sort(name: str) -> None:
    """A sort is the CPU's, to the bit, and no call by reference."""
    f, shape, dtype = SORTS[name]
    x = numbers(*shape) if dtype == "plain" else _shuffled(shape, dtype)
    plan = plan_program(wf.ir.trace(f, wf.asarray(x)), CUDA)
    assert "reference" not in [str(launch.kind) for launch in plan.every_launch()]
    compiled = wf.jit(f)
    wanted = wf.tree.leaves(compiled(wf.asarray(x)))
    for _ in range(3):
        found = wf.tree.leaves(compiled(wf.asarray(x).to("cuda")))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())  # NaN equals NaN
            if one.dtype.is_floating:
                numbers_alone = ~np.isnan(other.numpy())
                signs = [np.signbit(each.numpy())[numbers_alone] for each in (one, other)]
                np.testing.assert_array_equal(*signs)
