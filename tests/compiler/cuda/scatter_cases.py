"""Scatters over a whole card: programs, tried on a card in the host's memory and on a real one.

Numbers are whole and small, so that sums are exact in any order: results are compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft as wf
from weft.compiler.targets.cuda import ordered_scatters
from weft.optim.rows import summed_by_row

Array = np.ndarray[Any, Any]


def _draw(count: int, rows: int, seed: int = 0) -> Array:
    """Rows, half of which are one of three."""
    random = np.random.default_rng(seed + count + rows)
    few = random.integers(0, 3, count)
    return np.where(random.random(count) < 0.5, few, random.integers(0, rows, count))


def _whole(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    random = np.random.default_rng(seed + sum(shape))
    low = 0 if dtype.startswith("u") or dtype == "bool" else -4
    return random.integers(low, 5, shape).astype(dtype)


def _sums(rows: int, columns: int, dtype: str) -> Callable[[int], tuple[Any, ...]]:
    def case(count: int) -> tuple[Any, ...]:
        table, updates = _whole(rows, columns, dtype=dtype), _whole(count, columns, dtype=dtype)
        return lambda x, i, u: wf.index_add(x, 0, i, u), table, _draw(count, rows), updates

    return case


def _copies(rows: int, columns: int, dtype: str) -> Callable[[int], tuple[Any, ...]]:
    def case(count: int) -> tuple[Any, ...]:
        updates = np.arange(count * columns).reshape(count, columns).astype(dtype)
        table = _whole(rows, columns, dtype=dtype)
        return lambda x, i, u: wf.index_copy(x, 0, i, u), table, _draw(count, rows), updates

    return case


def _reductions(how: str, dtype: str) -> Callable[[int], tuple[Any, ...]]:
    def case(count: int) -> tuple[Any, ...]:
        updates = _whole(count, 3, dtype=dtype)
        if how == "prod":
            updates = np.sign(updates) + (updates == 0)  # products of 1 and -1
        elif dtype == "float32":
            updates[count // 2] = np.nan, -0.0, np.inf
        table = _whole(17, 3, dtype=dtype)
        index = np.broadcast_to(_draw(count, 17)[:, None], (count, 3)).copy()

        def program(x: wf.Tensor, i: wf.Tensor, u: wf.Tensor) -> wf.Tensor:
            return wf.scatter_reduce(x, 0, i, u, reduce=how)

        return program, table, index, updates

    return case


def _all_to_one(count: int) -> tuple[Any, ...]:
    index = np.full(count, 5)
    return lambda x, i, u: wf.index_add(x, 0, i, u), _whole(9, 2), index, _whole(count, 2)


def _counts(count: int) -> tuple[Any, ...]:
    index = _draw(count, 50)
    return lambda i: wf.index_add(wf.zeros((50,), dtype="int64"), 0, i, i * 0 + 1), index


def _places_of_two_indices(count: int) -> tuple[Any, ...]:
    def program(x: wf.Tensor, i: wf.Tensor, j: wf.Tensor, u: wf.Tensor) -> wf.Tensor:
        return wf.index_put(x, (i, j), u)

    updates = np.arange(2.0 * count, dtype=np.float32).reshape(count, 2)
    return program, _whole(7, 11, 2), _draw(count, 7), _draw(count, 11, 1), updates


def _embedding_gradient(count: int) -> tuple[Any, ...]:
    def program(table: wf.Tensor, i: wf.Tensor, ct: wf.Tensor) -> wf.Tensor:
        def total(table: wf.Tensor) -> wf.Tensor:
            rows = wf.nn.functional.embedding(i, table.astype("bfloat16"))
            return (rows.astype("float32") * ct).sum()

        return wf.grad(total)(table)

    return program, _whole(13, 6), _draw(count, 13).reshape(2, -1), _whole(2, count // 2, 6)


def _gradients_of_rows(count: int) -> tuple[Any, ...]:
    return summed_by_row, _draw(count, 40), _whole(count, 3)


def _where_elements_go(count: int) -> tuple[Any, ...]:
    return lambda x: wf.argsort(wf.argsort(x, descending=True)), _whole(count)


def _matrix_of_its_diagonal(count: int) -> tuple[Any, ...]:
    return wf.diag, _whole(count)


def _two_tables(count: int) -> tuple[Any, ...]:
    def program(x: wf.Tensor, y: wf.Tensor, i: wf.Tensor, u: wf.Tensor) -> Any:
        return wf.index_add(x, 0, i, u), wf.index_copy(y, 0, i, u * 2)

    return program, _whole(19, 3), _whole(19, 3, seed=1), _draw(count, 19), _whole(count, 3)


SCATTERS: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "rows added": _sums(29, 5, "float32"),
    "rows of four words added": _sums(500, 4, "float32"),
    "whole numbers added": _sums(8, 1, "int32"),
    "short whole numbers added": _sums(31, 2, "uint8"),
    "float64 added": _sums(31, 3, "float64"),
    "float16 added": _sums(31, 3, "float16"),
    "all added to one": _all_to_one,
    "counts": _counts,
    "rows copied": _copies(29, 5, "float32"),
    "rows of 16 bytes copied": _copies(29, 4, "float32"),
    "rows of 8 bytes copied": _copies(29, 4, "float16"),
    "rows of 3 bytes copied": _copies(29, 3, "uint8"),
    "complex rows copied": _copies(29, 3, "complex64"),
    "highest": _reductions("amax", "float32"),
    "lowest of whole numbers": _reductions("amin", "int64"),
    "products": _reductions("prod", "float32"),
    "places of two indices": _places_of_two_indices,
    "the gradient of an embedding": _embedding_gradient,
    "gradients of rows": _gradients_of_rows,
    "where elements go": _where_elements_go,
    "a matrix of its diagonal": _matrix_of_its_diagonal,
    "two tables with the same indices": _two_tables,
}


def sums_in_chunks(places: Array, updates: Array, rows: int) -> Array:
    """What rows of zeros become by adding updates, in the order in which kernels do so.

    Updates lie in the order of their places. Chunks of them are added up side by side; what a chunk
    has for a row that began before it is added afterwards, chunk after chunk.
    """
    order = np.argsort(places, kind="stable")
    row_of, updates = places[order], updates[order]
    table = np.zeros((rows, updates.shape[1]), updates.dtype)
    parts: dict[int, list[Array]] = {}
    chunk = ordered_scatters.CHUNK
    for first in range(0, len(row_of), chunk):
        own = row_of[first : first + chunk]
        for row in np.unique(own):
            members = first + np.flatnonzero(own == row)
            began_before = first > 0 and row_of[first - 1] == row
            total = updates[members[0]] if began_before else table[row] + updates[members[0]]
            for member in members[1:]:
                total = total + updates[member]
            if began_before:
                parts.setdefault(int(row), []).append(total)
            else:
                table[row] = total
    for number, later in parts.items():
        for part in later:
            table[number] += part
    return table


def check_order_of_sums(count: int, rows: int) -> None:
    """Fail unless the gradient of a table adds its updates in the order of `sums_in_chunks`."""
    random = np.random.default_rng(5)
    places = random.integers(0, rows, count)
    updates = random.normal(size=(count, 7)).astype(np.float32)
    add = wf.jit(lambda x, i, u: wf.grad(lambda table: (table[i] * u).sum())(x))
    table = np.zeros((rows, 7), np.float32)
    found = add(*[wf.asarray(x).to("cuda") for x in (table, places, updates)])
    np.testing.assert_array_equal(found.numpy(), sums_in_chunks(places, updates, rows))


def check_scatter(name: str, count: int) -> None:
    """Fail unless a program gives on a card the bits that it gives on the processor."""
    program, *arrays = SCATTERS[name](count)
    compiled = wf.jit(program)
    wanted = compiled(*map(wf.asarray, arrays))
    found = compiled(*[wf.asarray(array).to("cuda") for array in arrays])
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for there, here in pairs:
        np.testing.assert_array_equal(there.numpy(), here.numpy())
