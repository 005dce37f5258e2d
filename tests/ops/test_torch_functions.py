"""Functions that PyTorch's users expect: laws hold for each, and PyTorch gives the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests import laws

import weft as wf

F = wf.nn.functional
GENERATOR = np.random.default_rng(7)


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return GENERATOR.uniform(0.2, 1.5, shape)


A, B, LINE, STACK = drawn(3, 4), drawn(4, 2), drawn(5), drawn(2, 3, 3)
IMAGE, COLUMNS, SIGNAL = drawn(1, 2, 4, 5), drawn(1, 8, 12), drawn(2, 16)
GRID = GENERATOR.uniform(-1.1, 1.1, (1, 3, 2, 2))
THETA = drawn(1, 2, 3)
SPD = A @ A.T + np.eye(3)
PLACES = np.array([0, 2, 2, 1])
WINDOW = np.hanning(9)[:8]

Case = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]


def ours(name: str, *args: Any, space: Any = wf, **options: Any) -> Callable[..., list[wf.Tensor]]:
    return lambda *xs: [getattr(space, name)(*xs, *args, **options)]


def both(name: str, *inputs: Any, ours_in: Any = wf, theirs_in: str = "", **options: Any) -> Case:
    """A function of the same name and options here and there."""

    def theirs(torch: Any, *xs: Any) -> Any:
        space = torch
        for part in filter(None, theirs_in.split(".")):
            space = getattr(space, part)
        return getattr(space, name)(*xs, **options)

    return ours(name, space=ours_in, **options), theirs, inputs


FUNCTIONS = "nn.functional"
CASES: dict[str, Case] = {
    "addmm": both("addmm", drawn(2), A, B, beta=0.5, alpha=2.0),
    "addmm plain": both("addmm", drawn(3, 2), A, B),
    "cdist": both("cdist", A, drawn(2, 4)),
    "cdist by 1": both("cdist", A, drawn(2, 4), p=1.0),
    "cov": both("cov", A, correction=0),
    "cov of a line": both("cov", LINE),
    "corrcoef": both("corrcoef", A),
    "diag_embed": both("diag_embed", A),
    "diag_embed aside": (
        ours("diag_embed", -1, 0, 2),
        lambda torch, x: torch.diag_embed(x, -1, 0, 2),
        (A,),
    ),
    "logdet": both("logdet", SPD, ours_in=wf.linalg),
    "scatter_reduce": (
        lambda x, s: [wf.scatter_reduce(x, 0, wf.tensor(PLACES), s, "prod")],
        lambda torch, x, s: torch.scatter_reduce(x, 0, torch.tensor(PLACES), s, "prod"),
        (drawn(4), drawn(4)),
    ),
    "index_put": (
        lambda x, v: [wf.index_put(x, (wf.tensor(PLACES[1:]),), v, accumulate=True)],
        lambda torch, x, v: torch.index_put(x, (torch.tensor(PLACES[1:]),), v, accumulate=True),
        (A, drawn(3, 4)),
    ),
    "index_put last": (
        lambda x, v: [wf.index_put(x, (wf.tensor([0, 2]), wf.tensor([1, 3])), v)],
        lambda torch, x, v: torch.index_put(x, (torch.tensor([0, 2]), torch.tensor([1, 3])), v),
        (A, drawn(2)),
    ),
    "fft2": (
        lambda x: [wf.real(wf.fft.fft2(x)), wf.imag(wf.fft.fft2(x))],
        lambda torch, x: torch.view_as_real(torch.fft.fft2(x)).unbind(-1),
        (A,),
    ),
    "rfft2": (
        lambda x: [wf.fft.irfft2(wf.fft.rfft2(x) * 2.0)],
        lambda torch, x: torch.fft.irfft2(torch.fft.rfft2(x) * 2.0),
        (drawn(3, 4),),
    ),
    "stft": (
        lambda x, w: (lambda y: [wf.real(y), wf.imag(y)])(wf.stft(x, 8, 3, window=w)),
        lambda torch, x, w: torch.view_as_real(
            torch.stft(x, 8, 3, window=w, return_complex=True)
        ).unbind(-1),
        (SIGNAL, WINDOW),
    ),
    "stft short": (
        lambda x, w: (lambda y: [wf.real(y), wf.imag(y)])(
            wf.stft(x, 8, 2, 6, w, center=False, normalized=True)
        ),
        lambda torch, x, w: torch.view_as_real(
            torch.stft(x, 8, 2, 6, w, center=False, normalized=True, return_complex=True)
        ).unbind(-1),
        (SIGNAL, np.hanning(7)[:6] + 0.1),
    ),
    "istft": (
        lambda x, w: [wf.istft(wf.stft(x, 8, 2, window=w) * 2.0, 8, 2, window=w, length=15)],
        lambda torch, x, w: torch.istft(
            torch.stft(x, 8, 2, window=w, return_complex=True) * 2.0, 8, 2, window=w, length=15
        ),
        (SIGNAL, WINDOW),
    ),
    "unfold": both(
        "unfold", IMAGE, ours_in=F, theirs_in=FUNCTIONS,
        kernel_size=(2, 3), padding=1, stride=(2, 1), dilation=(1, 2),
    ),
    "fold": both(
        "fold", COLUMNS, ours_in=F, theirs_in=FUNCTIONS, output_size=(4, 5), kernel_size=2
    ),
    "fold padded": both(
        "fold", drawn(1, 4, 30), ours_in=F, theirs_in=FUNCTIONS,
        output_size=(4, 5), kernel_size=2, padding=1, stride=1,
    ),
    "affine_grid": (
        lambda t: [F.affine_grid(t, (1, 2, 4, 3))],
        lambda torch, t: torch.nn.functional.affine_grid(t, (1, 2, 4, 3), align_corners=False),
        (THETA,),
    ),
    "multilabel_soft_margin_loss": both(
        "multilabel_soft_margin_loss", A, np.eye(3, 4), ours_in=F, theirs_in=FUNCTIONS
    ),
    "multilabel_margin_loss": (
        lambda x: [F.multilabel_margin_loss(x, wf.tensor([[1, 3, -1, 2], [0, -1, 0, 0],
                                                           [3, 2, 1, 0]]))],
        lambda torch, x: torch.nn.functional.multilabel_margin_loss(
            x, torch.tensor([[1, 3, -1, 2], [0, -1, 0, 0], [3, 2, 1, 0]])
        ),
        (A,),
    ),
}  # fmt: skip
for mode in ("bilinear", "nearest"):
    for padding_mode in ("zeros", "border", "reflection"):
        for align_corners in (True, False):
            CASES[f"grid_sample {mode} {padding_mode} {align_corners}"] = both(
                "grid_sample", IMAGE, GRID, ours_in=F, theirs_in=FUNCTIONS,
                mode=mode, padding_mode=padding_mode, align_corners=align_corners,
            )  # fmt: skip
CASES["grid_sample of volumes"] = both(
    "grid_sample", drawn(1, 1, 3, 2, 4), GENERATOR.uniform(-1, 1, (1, 2, 2, 2, 3)), ours_in=F,
    theirs_in=FUNCTIONS, align_corners=True,
)  # fmt: skip

LAWS = [
    laws.law_a_traced_program_computes_the_same,
    laws.law_reverse_is_forward,
    laws.law_derivatives_are_finite_differences,
    laws.law_vmap_is_a_loop,
]
SLOW = {"grid_sample bilinear reflection True", "grid_sample bilinear zeros True"}


@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith("grid_sample") or n in SLOW])
def test_the_laws_hold(name: str) -> None:
    function, _, inputs = CASES[name]
    xs = [wf.tensor(x) for x in inputs]
    for law in LAWS:
        law(function, xs)
    laws.close(wf.jit(function)(*xs), function(*xs), limit=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_pytorch_computes_the_same(name: str) -> None:
    torch = pytest.importorskip("torch")
    function, theirs, inputs = CASES[name]
    xs = [wf.tensor(x, requires_grad=True) for x in inputs]
    ts = [torch.tensor(x, requires_grad=True) for x in inputs]
    found, expected = function(*xs), theirs(torch, *ts)
    expected = expected if isinstance(expected, (tuple, list)) else [expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            one.detach().numpy(), other.detach().numpy(), rtol=1e-6, atol=1e-8
        )
    sum(((out * laws.weights(out)).sum() for out in found), wf.tensor(0.0)).backward()
    total = 0.0
    for out, like in zip(expected, found, strict=True):
        total = total + (out * torch.tensor(laws.weights(like).numpy())).sum()
    total.backward()
    for x, t in zip(xs, ts, strict=True):
        if t.grad is not None:
            gradient = np.zeros(x.shape) if x.grad is None else x.grad.numpy()
            np.testing.assert_allclose(gradient, t.grad.numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett", "kaiser"])
def test_windows_are_numpys_and_periodic_ones_a_row_longer(name: str) -> None:
    function = getattr(wf, f"{name}_window")
    beta = (12.0,) if name == "kaiser" else ()
    reference = getattr(np, {"hann": "hanning"}.get(name, name))
    for n in (0, 1, 2, 9):
        np.testing.assert_allclose(
            function(n, False, dtype="float64").numpy(), reference(n, *beta), atol=1e-12
        )
    np.testing.assert_allclose(function(8, dtype="float64").numpy(), reference(9, *beta)[:8],
                               atol=1e-12)  # fmt: skip
    assert function(4).dtype is wf.float32


def test_buckets_are_searched_from_the_left_or_the_right() -> None:
    edges, x = wf.tensor([1.0, 2.0, 4.0]), wf.tensor([[0.0, 1.0], [2.5, 9.0]])
    assert wf.bucketize(x, edges).tolist() == [[0, 0], [2, 3]]
    assert wf.bucketize(x, edges, right=True).tolist() == [[0, 1], [2, 3]]


def test_all_close_is_one_truth() -> None:
    x = wf.tensor([1.0, float("nan")])
    assert not bool(wf.allclose(x, x))
    assert bool(wf.allclose(x, x, equal_nan=True))
    assert bool(wf.jit(lambda a, b: wf.allclose(a, b, atol=0.2))(wf.ones(2), wf.ones(2) * 1.1))


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_products_at_one_place_have_derivatives_where_factors_are_zero(zeros: int) -> None:
    factors = np.array([2.0, 3.0, 5.0])
    factors[:zeros] = 0.0
    index = wf.tensor([0, 0, 0])

    def product(x: wf.Tensor, src: wf.Tensor) -> wf.Tensor:
        return wf.scatter_reduce(x, 0, index, src, "prod").sum()

    x = wf.tensor([7.0], dtype="float64")
    of_x, of_factors = wf.grad(product, argnums=(0, 1))(x, wf.tensor(factors))
    assert of_x.tolist() == [factors.prod()]
    others = [7.0 * np.delete(factors, i).prod() for i in range(3)]
    np.testing.assert_allclose(of_factors.numpy(), others)
    integers = wf.scatter_reduce(wf.tensor([2]), 0, index, wf.tensor([3, 5, 7]), "prod")
    assert integers.tolist() == [210]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pooled_values_go_back_to_where_they_were_found(rank: int) -> None:
    x = wf.tensor(drawn(2, 3, *[4] * rank))
    pool, unpool = getattr(wf, f"max_pool{rank}d"), getattr(F, f"max_unpool{rank}d")
    y, places = pool(x, 2, return_indices=True)
    back = unpool(y, places, 2)
    assert back.shape == x.shape
    assert pool(back, 2).tolist() == y.tolist()
    assert bool(((back == 0) | (back == x)).all())
    assert unpool(y[0], places[0], 2).tolist() == back[0].tolist()
    assert unpool(y, places, 2, output_size=(4,) * rank).tolist() == back.tolist()


def test_methods_in_place_write_to_the_handle_and_can_be_chained() -> None:
    average, new = wf.tensor([1.0, 2.0]), wf.tensor([3.0, 6.0])
    assert average.mul_(0.5).add_(new, alpha=0.5) is average
    assert average.tolist() == [2.0, 4.0]
    assert average.sub_(1.0).div_(2.0).pow_(2.0).neg_().clip_(-1.0, 0.0).tolist() == [-0.25, -1.0]
    assert average.lerp_(new, 1.0).tolist() == [3.0, 6.0]
    assert average.masked_fill_(wf.tensor([True, False]), 0.0).tolist() == [0.0, 6.0]


def test_methods_for_shapes_and_element_types_are_pytorchs() -> None:
    x = wf.arange(6.0)
    assert x.view(2, 3).unsqueeze(0).expand(4, -1, -1).shape == (4, 2, 3)
    assert x.view(2, -1).cumsum(1).tolist() == [[0.0, 1.0, 3.0], [3.0, 7.0, 12.0]]
    assert x.where(x > 2, -1.0).tolist() == [-1.0, -1.0, -1.0, 3.0, 4.0, 5.0]
    assert x.masked_fill(x > 2, 0.0).tolist() == [0.0, 1.0, 2.0, 0.0, 0.0, 0.0]
    names = ("float", "double", "half", "bfloat16", "long", "int", "short", "char", "byte", "bool")
    assert [getattr(x, name)().dtype.name for name in names] == [
        "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
        "bool",
    ]  # fmt: skip
    assert x.long().type_as(x).dtype is wf.float32


def test_more_methods_are_pytorchs() -> None:
    x = wf.arange(6.0).view(2, 3)
    assert x.clamp(1, 4).tolist() == [[1.0, 1.0, 2.0], [3.0, 4.0, 4.0]]
    assert x.clamp(min=2).tolist() == [[2.0, 2.0, 2.0], [3.0, 4.0, 5.0]]
    assert x.clone().clamp_(max=1).tolist() == [[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert x.contiguous() is x
    assert (x.numel(), x[:, :1].expand_as(x).tolist()[1]) == (6, [3.0, 3.0, 3.0])
    assert x.view_as(x.T).shape == x.reshape_as(x.T).shape == (3, 2)
    assert wf.equal(x.mm(x.T), x @ x.T).all()
    assert wf.equal(x[None].bmm(x.T[None]), (x @ x.T)[None]).all()
    assert x.double().new_zeros(2, 3).dtype is wf.float64
    assert x.new_ones((2,)).tolist() == [1.0, 1.0]
    assert x.new_full((2,), 7.0, dtype="int32").dtype is wf.int32


def test_public_functions_can_be_pickled() -> None:
    for f in (wf.reshape, wf.sum, wf.round, wf.random.normal, wf.linalg.qr, F.mse_loss, F.relu):
        assert pickle.loads(pickle.dumps(f)) is f


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("sizes", [None, (6, 7), (3, 8)])
def test_hermitian_images_are_transformed_as_lines_are(
    norm: str, sizes: tuple[int, int] | None
) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(3, 4, 5)) + 1j * generator.normal(size=(3, 4, 5))
    rows, columns = sizes or (None, None)
    expected = np.fft.hfft(np.fft.fft(x, rows, -2, norm), columns, -1, norm)
    result = wf.fft.hfft2(wf.asarray(x), s=sizes, norm=norm)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-10, atol=1e-10)
    inverse = np.fft.ifft(np.fft.ihfft(x.real, columns, -1, norm), rows, -2, norm)
    found = wf.fft.ihfft2(wf.asarray(x.real), s=sizes, norm=norm)
    np.testing.assert_allclose(found.numpy(), inverse, rtol=1e-10, atol=1e-10)
