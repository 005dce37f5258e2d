"""The table of `wf.autocast`: every function in it, in the dtype that its row says."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.precision import TABLE, Row

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "mixed_precision.md"
LOW = (wf.bfloat16, wf.float16)
PRODUCTS = (Row.LOW, Row.LOWEST)


class Maker:
    """Tensors of one dtype and side for the calls below: numbers between 0.25 and 0.75."""

    def __init__(self, dtype: wf.DType, side: int) -> None:
        self.dtype, self.n = dtype, side
        self._generator = np.random.default_rng(3)

    def __call__(self, *shape: int) -> wf.Tensor:
        values = self._generator.uniform(0.25, 0.75, shape or (self.n, self.n))
        return wf.tensor(values.astype(np.float32)).astype(self.dtype)

    def labels(self, count: int) -> wf.Tensor:
        return wf.tensor(np.arange(count) % 2)

    def signs(self, count: int) -> wf.Tensor:
        return wf.tensor(np.where(np.arange(count) % 2 == 0, 1.0, -1.0).astype(np.float32))


Arguments = tuple[Any, ...]
CALLS: dict[str, tuple[Callable[..., Any], Callable[[Maker], Arguments]]] = {
    "matmul": (lambda a, b: a @ b, lambda m: (m(), m())),
    "einsum": (lambda a, b: wf.einsum("ij,kj->ik", a, b), lambda m: (m(), m())),
    "tensordot": (lambda a, b: wf.tensordot(a, b, axes=1), lambda m: (m(), m())),
    "vecdot": (wf.vecdot, lambda m: (m(), m())),
    "inner": (wf.inner, lambda m: (m(), m())),
    "multi_dot": (lambda *each: wf.linalg.multi_dot(each), lambda m: (m(), m(), m())),
    "linear": (F.linear, lambda m: (m(), m(), m(m.n))),
    "bilinear": (F.bilinear, lambda m: (m(m.n, 3), m(m.n, 2), m(4, 3, 2), m(4))),
    "conv1d": (wf.conv1d, lambda m: (m(2, 3, m.n), m(4, 3, 3), m(4))),
    "conv2d": (wf.conv2d, lambda m: (m(2, 3, m.n, 5), m(4, 3, 3, 3), m(4))),
    "conv3d": (wf.conv3d, lambda m: (m(2, 3, m.n, 4, 4), m(4, 3, 3, 3, 3))),
    "conv_transpose1d": (wf.conv_transpose1d, lambda m: (m(2, 3, m.n), m(3, 4, 3))),
    "conv_transpose2d": (wf.conv_transpose2d, lambda m: (m(2, 3, m.n, 4), m(3, 4, 3, 3))),
    "conv_transpose3d": (wf.conv_transpose3d, lambda m: (m(2, 3, m.n, 3, 3), m(3, 4, 2, 2, 2))),
    "scaled_dot_product_attention": (
        lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask),
        lambda m: (m(2, m.n, 8), m(2, m.n, 8), m(2, m.n, 8), m(m.n, m.n)),
    ),
    "rnn_cell": (F.rnn_cell, lambda m: (m(m.n, 3), m(m.n, 4), m(4, 3), m(4, 4), m(4), m(4))),
    "lstm_cell": (
        lambda x, h, c, a, b: F.lstm_cell(x, (h, c), a, b)[0],
        lambda m: (m(m.n, 3), m(m.n, 4), m(m.n, 4), m(16, 3), m(16, 4)),
    ),
    "gru_cell": (F.gru_cell, lambda m: (m(m.n, 3), m(m.n, 4), m(12, 3), m(12, 4))),
    "recurrent_layer": (
        lambda x, h, a, b: F.recurrent_layer("tanh", x, (h,), (a, b, None, None))[0],
        lambda m: (m(3, m.n, 3), m(m.n, 4), m(4, 3), m(4, 4)),
    ),
    **{
        name: (getattr(wf, name), lambda m: (m(),))
        for name in (
            "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "logit", "reciprocal",
            "rsqrt", "softplus", "log_sigmoid", "softmax", "softmin", "log_softmax", "logsumexp",
            "sum", "prod", "mean", "average", "nansum", "nanmean", "var", "std", "normalize",
        )
    },
    **{
        name: (getattr(wf, name), lambda m: (m(), m()))
        for name in ("logaddexp", "xlogy", "xlog1py", "cosine_similarity")
    },
    **{
        name: (partial(getattr(wf, name), axis=1), lambda m: (m(),))
        for name in ("cumulative_logsumexp", "cumulative_sum", "cumulative_prod")
    },
    "pow": (lambda x: x**2, lambda m: (m(),)),
    "trace": (wf.linalg.trace, lambda m: (m(),)),
    "segment_sum": (lambda x, s: wf.segment_sum(x, s, 2), lambda m: (m(), m.labels(m.n))),
    "segment_mean": (lambda x, s: wf.segment_mean(x, s, 2), lambda m: (m(), m.labels(m.n))),
    "norm": (wf.linalg.norm, lambda m: (m(),)),
    "vector_norm": (wf.linalg.vector_norm, lambda m: (m(),)),
    "matrix_norm": (wf.linalg.matrix_norm, lambda m: (m(),)),
    "local_response_norm": (lambda x: F.local_response_norm(x, 3), lambda m: (m(2, m.n, m.n),)),
    **{
        name: (getattr(F, name), lambda m: (m(), m()))
        for name in (
            "pairwise_distance", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
            "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div",
            "poisson_nll_loss", "soft_margin_loss", "multilabel_soft_margin_loss",
        )
    },
    "gaussian_nll_loss": (F.gaussian_nll_loss, lambda m: (m(), m(), m())),
    "triplet_margin_loss": (F.triplet_margin_loss, lambda m: (m(), m(), m())),
    "hinge_embedding_loss": (F.hinge_embedding_loss, lambda m: (m(m.n), m.signs(m.n))),
    "margin_ranking_loss": (F.margin_ranking_loss, lambda m: (m(m.n), m(m.n), m.signs(m.n))),
    "cosine_embedding_loss": (F.cosine_embedding_loss, lambda m: (m(), m(), m.signs(m.n))),
    "cross_entropy": (F.cross_entropy, lambda m: (m(), m.labels(m.n))),
    "nll_loss": (F.nll_loss, lambda m: (m(), m.labels(m.n))),
    "multi_margin_loss": (F.multi_margin_loss, lambda m: (m(), m.labels(m.n))),
    "multilabel_margin_loss": (
        lambda x: F.multilabel_margin_loss(x, wf.zeros(x.shape, dtype="int64")),
        lambda m: (m(),),
    ),
    "ctc_loss": (
        lambda x: F.ctc_loss(x, wf.tensor([[1]]), wf.tensor([4]), wf.tensor([1])),
        lambda m: (m(4, 1, m.n),),
    ),
    "batch_norm": (lambda x: F.batch_norm(x, training=True), lambda m: (m(m.n, 3, m.n),)),
    "instance_norm": (F.instance_norm, lambda m: (m(m.n, 3, m.n),)),
    "layer_norm": (lambda x, w: F.layer_norm(x, x.shape[-1], w), lambda m: (m(), m(m.n))),
    "rms_norm": (lambda x, w: F.rms_norm(x, x.shape[-1], w), lambda m: (m(), m(m.n))),
    "group_norm": (lambda x: F.group_norm(x, 2), lambda m: (m(2, 4, m.n),)),
    **{name: (getattr(F, name), lambda m: (m(),)) for name in ("elu", "celu", "selu", "mish")},
}  # fmt: skip
"""How each function of the table is called."""


def dtype_in_block(name: str, given: wf.DType, block: wf.DType) -> wf.DType:
    """The dtype that the table says of a result."""
    row = TABLE[name]
    if row in PRODUCTS:
        return block
    return wf.float32 if row is Row.FULL else given


def without_derivative(arguments: Arguments, dtype: wf.DType) -> Arguments:
    return tuple(
        x.astype(dtype) if isinstance(x, wf.Tensor) and x.dtype.is_floating else x
        for x in arguments
    )


def test_every_function_of_the_table_is_called_here() -> None:
    assert set(CALLS) == set(TABLE)


def test_the_page_has_the_same_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`" in line]
    listed = [name for line in rows[:-1] for name in re.findall(r"`(\w+)`", line.split("|")[2])]
    assert len(rows) == 7
    assert sorted(listed) == sorted(TABLE)


@pytest.mark.parametrize("side", [4, 32], ids=["small", "large"])
@pytest.mark.parametrize("way", ["eager", "jit"])
@pytest.mark.parametrize("name", CALLS)
def test_the_result_has_the_dtype_of_its_row(name: str, way: str, side: int) -> None:
    call, make = CALLS[name]
    run = wf.jit(call) if way == "jit" else call
    for block in LOW if side == 4 else LOW[:1]:
        for given in (wf.float32, block):
            arguments = make(Maker(given, side))
            with wf.autocast(block):
                result = run(*arguments)
            assert result.dtype is dtype_in_block(name, given, block), given
    assert wf.autocast_dtype() is None
    assert run(*make(Maker(wf.float32, side))).dtype is wf.float32


@pytest.mark.parametrize("name", CALLS)
def test_the_result_is_that_of_arguments_cast_by_hand(name: str) -> None:
    call, make = CALLS[name]
    given = wf.bfloat16 if TABLE[name] is Row.FULL else wf.float32
    arguments = make(Maker(given, 8))
    cast_to = wf.bfloat16 if TABLE[name] in PRODUCTS else wf.float32
    cast_to = given if TABLE[name] is Row.OWN else cast_to
    expected = call(*without_derivative(arguments, cast_to))
    with wf.autocast("bfloat16"):
        result = call(*arguments)
    np.testing.assert_array_equal(result.numpy(), expected.numpy())


@pytest.mark.parametrize("name", CALLS)
def test_a_block_of_float8_is_one_of_bfloat16_but_for_its_row(name: str) -> None:
    call, make = CALLS[name]
    arguments = make(Maker(wf.float32, 16))
    with wf.autocast("bfloat16"):
        expected = call(*arguments)
    with wf.autocast("float8"):
        result = call(*arguments)
    assert result.dtype is expected.dtype
    is_same = np.array_equal(result.numpy(), expected.numpy())
    assert is_same is (TABLE[name] is not Row.LOWEST)


@pytest.mark.parametrize("name", [name for name in CALLS if TABLE[name] is not Row.OWN])
def test_float64_is_left_as_it_is(name: str) -> None:
    call, make = CALLS[name]
    arguments = without_derivative(make(Maker(wf.float32, 4)), wf.float64)
    with wf.autocast("bfloat16"):
        assert call(*arguments).dtype is wf.float64


@pytest.mark.parametrize("name", [name for name in CALLS if TABLE[name] in PRODUCTS])
def test_gradients_have_the_dtypes_of_their_tensors(name: str) -> None:
    call, make = CALLS[name]
    tensors = [x.requires_grad_() for x in make(Maker(wf.float32, 16))]
    with wf.autocast("bfloat16"):
        call(*tensors).sum().backward()
    assert {x.grad.dtype for x in tensors if x.grad is not None} == {wf.float32}
    exact = [x.detach().clone().requires_grad_() for x in tensors]
    call(*exact).sum().backward()
    for x, y in zip(tensors, exact, strict=True):
        if y.grad is not None:
            scale = float(abs(y.grad).max()) + 1e-6
            assert np.abs(x.grad.numpy() - y.grad.numpy()).max() < 0.05 * scale + 0.02


@pytest.mark.parametrize("name", [n for n in F.activations.ACTIVATIONS if n != "cube"])
def test_activations_keep_16_bits_unless_the_table_says_otherwise(name: str) -> None:
    x = wf.ones((4, 8), dtype="bfloat16")
    with wf.autocast("bfloat16"):
        result = F.activate(name, x)
    assert result.dtype is (wf.float32 if name in TABLE and TABLE[name] is Row.FULL else x.dtype)


def test_methods_and_operators_follow_the_table() -> None:
    x, h = wf.ones((3, 3)), wf.ones((3, 3), dtype="bfloat16")
    with wf.autocast("bfloat16"):
        assert (x @ x).dtype is wf.bfloat16
        assert x.dot(x).dtype is wf.bfloat16
        assert (np.ones((3, 3), np.float32) @ x).dtype is wf.bfloat16
        for result in (
            h.sum(),
            h.mean(axis=0),
            h.exp(),
            h.log(),
            h**2,
            2**h,
            h.softmax(),
            h.trace(),
        ):
            assert result.dtype is wf.float32
        assert (h + x).dtype is wf.float32
        assert (h * h).dtype is wf.bfloat16
        assert wf.concat([h, x]).dtype is wf.float32


def test_writes_in_place_keep_their_dtype() -> None:
    x, h = wf.ones((2, 2)), wf.full((2, 2), 2.0, dtype="bfloat16")
    with wf.autocast("bfloat16"):
        x @= x
        h **= 2
    assert x.dtype is wf.float32
    assert h.dtype is wf.bfloat16
    assert h.tolist() == [[4.0, 4.0], [4.0, 4.0]]


def test_integers_truth_values_and_complex_numbers_are_not_cast() -> None:
    whole = wf.tensor([[1, 2], [3, 4]])
    with wf.autocast("bfloat16"):
        assert (whole @ whole).dtype is wf.int64
        assert whole.sum().dtype is wf.int64
        z = whole.astype("complex64")
        assert (z @ z).dtype is wf.complex64
        assert wf.exp(z).dtype is wf.complex64
        assert (wf.ones((2, 2)) @ z).dtype is wf.complex64


def test_a_sum_written_as_a_formula_is_no_product() -> None:
    x = wf.full((300,), 1.01)
    with wf.autocast("bfloat16"):
        assert wf.einsum("i->", x).dtype is wf.float32


def test_samples_are_the_same_inside_and_outside() -> None:
    def draw() -> list[Any]:
        wf.random.seed(5)
        half = wf.random.normal((3, 400), dtype="bfloat16")
        joint = wf.random.multivariate_normal(wf.zeros(2), wf.eye(2), (4,))
        return [half, joint, wf.random.gamma((5,), 2.0), wf.random.categorical(wf.zeros(9))]

    outside = draw()
    with wf.autocast("bfloat16"):
        inside = draw()
    for a, b in zip(outside, inside, strict=True):
        assert a.dtype is b.dtype
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_linear_algebra_computes_as_outside() -> None:
    x = wf.tensor([[4.0, 1.3], [1.3, 3.0]])
    functions = (wf.linalg.inv, wf.linalg.pinv, wf.linalg.matrix_exp, wf.linalg.det)
    outside = [f(x) for f in functions]
    with wf.autocast("bfloat16"):
        inside = [f(x) for f in functions]
    for a, b in zip(outside, inside, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
