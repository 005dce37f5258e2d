"""Products of tensors: values by NumPy, ranks, dtypes, einsum's grammar, mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.core.errors import ArgumentError, AxisError, DTypeError, ShapeError
from weft.ops.contraction import NONE, ROWS_BY_COLUMNS, dot
from weft.testing import check_grads


def normal(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(sum(shape) + len(shape))
    x = generator.normal(size=shape) * 3
    if dtype.startswith("complex"):
        x = x + 1j * generator.normal(size=shape)
    return np.asarray(x).astype(dtype)


def agree(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


RANKS = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((0, 3), (3, 4)),
    ((2, 0), (0, 4)),
]


@pytest.mark.parametrize(("a", "b"), RANKS)
@pytest.mark.parametrize("dtype", ["float32", "complex64", "int32"])
def test_matmul_agrees_with_numpy(a: tuple[int, ...], b: tuple[int, ...], dtype: str) -> None:
    x, y = normal(*a, dtype=dtype), normal(*b, dtype=dtype)
    found = wf.matmul(wf.asarray(x), wf.asarray(y))
    agree(found, x @ y)
    assert found.dtype.name == dtype


@pytest.mark.parametrize(("a", "b"), RANKS[:9])
def test_matmul_has_derivatives(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check_grads(wf.matmul, [wf.asarray(normal(*a, dtype="float64")) for a in (a, b)])


def test_matmul_promotes_and_multiplies_16_bit_floats_in_float32() -> None:
    assert wf.matmul(wf.ones((2, 2)).astype("int8"), wf.ones((2, 2))).dtype is wf.float32
    x = wf.ones((1, 2048)).astype("bfloat16")
    assert float(wf.matmul(x, x.T)) == 2048.0


def test_a_plain_product_makes_no_copies() -> None:
    x = normal(4, 3)
    stack = normal(5, 3, 4)
    assert np.shares_memory(wf.matrix_transpose(wf.asarray(x)).numpy(), x)
    out = dot.reference(stack, stack, contract=((0, 1), (0, 1)), batch=NONE)
    np.testing.assert_allclose(out, np.tensordot(stack, stack, ((0, 1), (0, 1))), rtol=1e-5)
    out = dot.reference(x.T, x, contract=ROWS_BY_COLUMNS, batch=NONE)
    np.testing.assert_allclose(out, x.T @ x, rtol=1e-5)


def test_matmul_explains_inner_dimensions_that_differ() -> None:
    with pytest.raises(ShapeError) as caught:
        wf.matmul(wf.ones((32, 784)), wf.ones((768, 10)))
    error = caught.value
    assert (error.op, error.problem) == ("matmul", "inner dimensions differ")
    assert error.expected == "a.shape[-1] == b.shape[-2]"
    assert error.got == "a: f32[32, 784]   b: f32[768, 10]"
    assert error.note == "784 != 768"
    assert error.fix == "give b 784 rows, or transpose it: b.T"
    assert error.at is not None
    assert error.at.function == "test_matmul_explains_inner_dimensions_that_differ"


@pytest.mark.parametrize(
    ("call", "error", "problem"),
    [
        (lambda: wf.matmul(wf.ones((2, 3)), wf.tensor(2.0)), ShapeError, "no rows or columns"),
        (lambda: wf.matmul(wf.ones((2, 3)), wf.ones(4)), ShapeError, "inner dimensions differ"),
        (
            lambda: wf.matmul(wf.ones((2, 4, 3)), wf.ones((5, 3, 4))),
            ShapeError,
            "do not broadcast",
        ),
        (
            lambda: wf.matmul(wf.tensor([[True]]), wf.tensor([[True]])),
            DTypeError,
            "not defined for this dtype",
        ),
        (lambda: wf.matrix_transpose(wf.ones(3)), ShapeError, "no rows and columns"),
        (lambda: wf.tensordot(wf.ones(3), wf.ones(3), axes=2), AxisError, "no 2 axes"),
        (
            lambda: wf.tensordot(wf.ones((2, 3)), wf.ones((2, 3)), axes=((0, 1), (0,))),
            AxisError,
            "not as many axes",
        ),
        (
            lambda: wf.tensordot(wf.ones((2, 3)), wf.ones((2, 3)), axes=1),
            ShapeError,
            "paired dimensions differ",
        ),
        (lambda: wf.vecdot(wf.ones(3), wf.ones(4)), ShapeError, "different lengths"),
        (lambda: wf.einsum("ij,jk", wf.ones((2, 3))), ArgumentError, "has 2 operands"),
        (lambda: wf.einsum("ij->ijk", wf.ones((2, 3))), ArgumentError, "not in any operand"),
        (lambda: wf.einsum("ij->ii", wf.ones((2, 3))), ArgumentError, "named twice"),
        (lambda: wf.einsum("ijk->i", wf.ones((2, 3))), ArgumentError, "names 3 axes"),
        (lambda: wf.einsum("i1->i", wf.ones((2, 3))), ArgumentError, "not a list of letters"),
        (lambda: wf.einsum("ii->i", wf.ones((2, 3))), ShapeError, "different sizes"),
        (lambda: wf.einsum("i->", wf.tensor([True])), DTypeError, "not defined for this dtype"),
    ],
)
def test_wrong_products_are_refused(call: Any, error: Any, problem: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert problem in caught.value.problem
    assert caught.value.op
    assert caught.value.expected
    assert caught.value.got
    assert caught.value.fix


@pytest.mark.parametrize(
    ("formula", "shapes"),
    [
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("ij,jk", ((2, 3), (3, 4))),
        ("ik,kj -> ji", ((2, 3), (3, 4))),
        ("bij,bjk->bik", ((5, 2, 3), (5, 3, 4))),
        ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))),
        ("...ij,...jk->...ik", ((5, 2, 3), (3, 4))),
        ("b...,b...->...", ((3, 1, 4), (3, 2, 1))),
        ("a...b->...", ((2, 3, 4),)),
        ("...", ((2, 3),)),
        ("ii->i", ((3, 3),)),
        ("ii", ((3, 3),)),
        ("iii->i", ((2, 2, 2),)),
        ("iij,jk->ik", ((3, 3, 2), (2, 4))),
        ("ba", ((2, 3),)),
        ("ijk->", ((2, 3, 4),)),
        ("i,j,k->ijk", ((2,), (3,), (4,))),
        ("ij,jk,kl,lm->im", ((2, 3), (3, 4), (4, 5), (5, 2))),
        ("ij,ij->ij", ((2, 3), (2, 3))),
        ("ij,ij->", ((2, 3), (2, 3))),
        ("i,i->i", ((0,), (0,))),
        (",i->i", ((), (3,))),
    ],
)
def test_einsum_agrees_with_numpy(formula: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    arrays = [normal(*shape, dtype="float64") for shape in shapes]
    tensors = [wf.asarray(x) for x in arrays]
    agree(wf.einsum(formula, *tensors), np.asarray(np.einsum(formula, *arrays)))
    if all(x.size for x in arrays):
        check_grads(lambda *xs: wf.einsum(formula, *xs), tensors)


def test_einsum_reads_a_diagonal_without_touching_the_rest() -> None:
    x = wf.tensor([[1.0, float("nan")], [float("inf"), 4.0]])
    assert wf.einsum("ii->i", x).tolist() == [1.0, 4.0]


def test_other_products_agree_with_numpy() -> None:
    a, b = normal(2, 3), normal(3, 2)
    x, y = wf.asarray(a), wf.asarray(b)
    agree(wf.kron(x, y), np.kron(a, b))
    agree(wf.kron(x, wf.asarray(a[0])), np.kron(a, a[0]))
    agree(wf.outer(wf.asarray(a[0]), wf.asarray(b[0])), np.outer(a[0], b[0]))
    agree(wf.inner(x, wf.asarray(b.T)), np.inner(a, b.T))
    agree(wf.inner(x, 2.0), np.inner(a, 2.0))
    agree(wf.tensordot(x, y, axes=((0, 1), (1, 0))), np.tensordot(a, b, ((0, 1), (1, 0))))
    agree(wf.tensordot(x, y, axes=0), np.tensordot(a, b, 0))
    agree(wf.tensordot(x, y, axes=1), np.tensordot(a, b, 1))


def test_vecdot_conjugates_its_first_operand() -> None:
    a, b = normal(2, 1, 4, dtype="complex64"), normal(3, 4, dtype="complex64")
    agree(wf.vecdot(wf.asarray(a), wf.asarray(b)), (a.conj() * b).sum(-1))
    agree(wf.vecdot(wf.asarray(b), wf.asarray(b), axis=0), (b.conj() * b).sum(0))
    along_first = wf.jit(lambda x, y: wf.vecdot(x, y, axis=0))
    agree(along_first(wf.asarray(b), wf.asarray(b)), (b.conj() * b).sum(0))


def test_products_work_under_vmap() -> None:
    a, b = normal(5, 2, 3), normal(3, 4)
    found = wf.vmap(lambda x: wf.matmul(x, wf.asarray(b)))(wf.asarray(a))
    agree(found, a @ b)
    agree(wf.vmap(lambda x: wf.einsum("ij,ij->i", x, x))(wf.asarray(a)), (a * a).sum(-1))
