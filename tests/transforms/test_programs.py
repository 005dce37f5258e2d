"""Programs as people write them: a scalar engine, regression by hand, the examples of API.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf

# --- a scalar engine in micrograd's spirit ---


def test_the_expression_of_the_micrograd_readme() -> None:
    a = wf.tensor(-4.0, dtype="float64", requires_grad=True)
    b = wf.tensor(2.0, dtype="float64", requires_grad=True)
    c = a + b
    d = a * b + b**3
    c = c + c + 1
    c = c + 1 + c + (-a)
    d = d + d * 2 + wf.relu(b + a)
    d = d + 3 * d + wf.relu(b - a)
    e = c - d
    f = e**2
    g = f / 2.0
    g = g + 10.0 / f
    assert g.item() == pytest.approx(24.7041, abs=1e-4)
    g.backward()
    assert a.grad.item() == pytest.approx(138.8338, abs=1e-4)
    assert b.grad.item() == pytest.approx(645.5773, abs=1e-4)


def test_in_place_operators_mean_what_micrograd_means_by_them() -> None:
    a = wf.tensor(-4.0, dtype="float64", requires_grad=True)
    b = wf.tensor(2.0, dtype="float64", requires_grad=True)
    c = a + b
    d = a * b + b**3
    c += c + 1
    c += 1 + c + (-a)
    d += d * 2 + (b + a).relu()
    d += 3 * d + (b - a).relu()
    e = c - d
    f = e**2
    g = f / 2.0
    g += 10.0 / f
    g.backward()
    assert g.item() == pytest.approx(24.7041, abs=1e-4)
    assert a.grad.item() == pytest.approx(138.8338, abs=1e-4)
    assert b.grad.item() == pytest.approx(645.5773, abs=1e-4)


class Neuron:
    """A neuron of scalars, as in micrograd's nn.py."""

    def __init__(self, inputs: int, generator: np.random.Generator) -> None:
        self.w = [wf.tensor(v, requires_grad=True) for v in generator.uniform(-1, 1, inputs)]
        self.b = wf.tensor(0.0, dtype="float64", requires_grad=True)

    def __call__(self, xs: list[Any]) -> wf.Tensor:
        return wf.tanh(sum((w * x for w, x in zip(self.w, xs, strict=True)), self.b))

    def parameters(self) -> list[wf.Tensor]:
        return [*self.w, self.b]


def test_a_network_of_scalars_learns(rng: np.random.Generator) -> None:
    hidden = [Neuron(3, rng) for _ in range(4)]
    last = Neuron(4, rng)
    xs = [[2.0, 3.0, -1.0], [3.0, -1.0, 0.5], [0.5, 1.0, 1.0], [1.0, 1.0, -1.0]]
    ys = [1.0, -1.0, -1.0, 1.0]
    parameters = [p for neuron in [*hidden, last] for p in neuron.parameters()]
    losses = []
    for _ in range(40):
        predictions = [last([n(x) for n in hidden]) for x in xs]
        loss = sum((p - y) ** 2 for p, y in zip(predictions, ys, strict=True))
        for p in parameters:
            p.grad = None
        loss.backward()
        with wf.no_grad():
            for p in parameters:
                p -= 0.1 * p.grad
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


# --- linear regression by hand ---


@pytest.mark.parametrize("clearing", ["None", "zero_"])
def test_a_linear_regression_by_hand(clearing: str, rng: np.random.Generator) -> None:
    x = wf.tensor(rng.normal(size=(100, 3)), dtype="float32")
    truth = wf.tensor([[1.5], [-2.0], [0.5]])
    y = x @ truth + 0.3
    w = wf.zeros((3, 1)).requires_grad_()
    b = wf.tensor(0.0, requires_grad=True)
    for _ in range(500):
        loss = ((x @ w + b - y) ** 2).mean()
        loss.backward()
        with wf.no_grad():
            w -= 0.1 * w.grad
            b -= 0.1 * b.grad
        if clearing == "None":
            w.grad = b.grad = None
        else:
            w.grad.zero_()
            b.grad.zero_()
    assert w.is_leaf
    np.testing.assert_allclose(w.detach().numpy(), truth.numpy(), atol=1e-3)
    assert b.item() == pytest.approx(0.3, abs=1e-3)


def test_the_same_regression_with_pure_functions(rng: np.random.Generator) -> None:
    x = wf.tensor(rng.normal(size=(100, 3)), dtype="float32")
    y = x @ wf.tensor([1.5, -2.0, 0.5]) + 0.3
    params = {"w": wf.zeros(3), "b": wf.tensor(0.0)}

    def loss(p: dict[str, wf.Tensor]) -> wf.Tensor:
        return ((x @ p["w"] + p["b"] - y) ** 2).mean()

    for _ in range(300):
        gradients = wf.grad(loss)(params)
        params = {name: p - 0.1 * gradients[name] for name, p in params.items()}
    np.testing.assert_allclose(params["w"].numpy(), [1.5, -2.0, 0.5], atol=1e-3)


def test_newton_s_method_with_a_hessian() -> None:
    def rosenbrock(x: wf.Tensor) -> wf.Tensor:
        return (1.0 - x[0]) ** 2 + 100.0 * (x[1] - x[0] ** 2) ** 2

    x = wf.tensor([-1.2, 1.0], dtype="float64")
    for _ in range(10):
        x = x - wf.linalg.solve(wf.hessian(rosenbrock)(x), wf.grad(rosenbrock)(x)[:, None])[:, 0]
    np.testing.assert_allclose(x.numpy(), [1.0, 1.0], atol=1e-8)


# --- the function of the surveys ---


def survey(x1: Any, x2: Any) -> Any:
    """ln(x1) + x1·x2 − sin(x2), the example of Baydin et al. 2018."""
    return wf.log(x1) + x1 * x2 - wf.sin(x2)


def test_the_survey_s_function_by_reverse_mode() -> None:
    x1, x2 = wf.tensor(2.0, requires_grad=True), wf.tensor(5.0, requires_grad=True)
    y = survey(x1, x2)
    y.backward()
    assert round(y.item(), 3) == 11.652
    assert round(x1.grad.item(), 3) == 5.5
    assert round(x2.grad.item(), 3) == 1.716


def test_the_survey_s_function_by_forward_mode() -> None:
    primals = (wf.tensor(2.0), wf.tensor(5.0))
    y, d1 = wf.jvp(survey, primals, (wf.tensor(1.0), wf.tensor(0.0)))
    _, d2 = wf.jvp(survey, primals, (wf.tensor(0.0), wf.tensor(1.0)))
    assert (round(y.item(), 3), round(d1.item(), 3), round(d2.item(), 3)) == (11.652, 5.5, 1.716)


def test_the_survey_s_function_read_as_a_program() -> None:
    graph = wf.grad(survey, argnums=(0, 1)).graph(wf.spec("float32", ()), wf.spec("float32", ()))
    found = wf.ir.interpret(wf.ir.parse(str(graph)), wf.tensor(2.0), wf.tensor(5.0))
    assert [round(d.item(), 3) for d in found] == [5.5, 1.716]


# --- API.md, Tensors ---


def test_the_tensor_examples_of_the_api() -> None:
    x = wf.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    assert (x.shape, x.ndim, x.size, str(x.device)) == ((2, 2), 2, 4, "cpu")
    assert x.dtype == wf.float32
    x = x.detach()
    assert x.T.tolist() == x.mT.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert x.numpy().tolist() == x.tolist()
    assert x.sum().item() == 10.0
    assert x.to("cpu").device == x.device
    assert x.to(wf.float64).dtype == x.astype(wf.float64).dtype == wf.float64
    y = wf.ones((2, 2))
    assert (x @ y).tolist() == [[3.0, 3.0], [7.0, 7.0]]
    assert (x + y).tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert x[1:, None].shape == (1, 1, 2)
    mask, idx = x > 2.0, wf.tensor([1, 0])
    assert x[mask].tolist() == [3.0, 4.0]
    assert x[idx].tolist() == [[3.0, 4.0], [1.0, 2.0]]
    earlier = x + 0.0
    x[0] = 1.0
    x += y
    assert x.tolist() == [[2.0, 2.0], [4.0, 5.0]]
    assert earlier.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_the_creation_functions_of_the_api() -> None:
    assert wf.zeros((2,)).tolist() == [0.0, 0.0]
    assert wf.ones(2).tolist() == [1.0, 1.0]
    assert wf.full((2,), 7.0).tolist() == [7.0, 7.0]
    assert wf.arange(3).tolist() == [0, 1, 2]
    assert wf.linspace(0.0, 1.0, 3).tolist() == [0.0, 0.5, 1.0]
    assert wf.eye(2).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert wf.empty((2, 3)).shape == (2, 3)
    like = wf.tensor([1, 2])
    for function in (wf.zeros_like, wf.ones_like, wf.empty_like):
        assert function(like).dtype == wf.int64
    assert wf.full_like(like, 5).tolist() == [5, 5]
    array = np.arange(3.0)
    shared = wf.asarray(array)
    assert np.shares_memory(shared.numpy(), array)
    assert np.shares_memory(np.asarray(shared), array)
    assert wf.from_dlpack(array).tolist() == [0.0, 1.0, 2.0]


def test_scalars_are_weak_and_the_default_float_is_single() -> None:
    assert wf.tensor(1.0).dtype == wf.float32
    assert (wf.ones(2, dtype="float16") * 2.0).dtype == wf.float16
    assert (wf.ones(2, dtype="bfloat16") + 1).dtype == wf.bfloat16
    assert (wf.tensor([1], dtype="int8") + 1).dtype == wf.int8


def test_the_random_examples_of_the_api() -> None:
    wf.random.seed(0)
    first = wf.random.normal((3,))
    wf.random.seed(0)
    assert wf.random.normal((3,)).tolist() == first.tolist()
    assert wf.random.uniform((2,)).shape == (2,)
    assert wf.random.randint(0, 5, (4,)).shape == (4,)
    assert wf.random.permutation(4).shape == (4,)
    key = wf.random.key(0)
    assert wf.random.normal((3,), key=key).tolist() == wf.random.normal((3,), key=key).tolist()


# --- API.md, Gradients ---


def test_the_gradient_examples_of_the_api() -> None:
    x = wf.tensor([1.0, 2.0], requires_grad=True)
    loss = (x**2).sum()
    loss.backward()
    assert x.grad.tolist() == [2.0, 4.0]
    with pytest.raises(wf.GradientError):
        loss.backward()
    assert not x.detach().requires_grad
    with wf.no_grad():
        assert not (x * 2).requires_grad
    assert not wf.stop_gradient(x).requires_grad

    f = lambda a: (a**2).sum()  # noqa: E731
    xs, ts = (wf.tensor([1.0, 2.0]),), (wf.tensor([1.0, 0.0]),)
    assert wf.grad(f)(*xs).tolist() == [2.0, 4.0]
    assert wf.value_and_grad(f)(*xs)[0].item() == 5.0
    assert wf.vjp(f, *xs)[1](wf.tensor(1.0))[0].tolist() == [2.0, 4.0]
    assert wf.jvp(f, xs, ts)[1].item() == 2.0
    assert wf.linearize(f, *xs)[1](*ts).item() == 2.0
    for mode in ("reverse", "forward"):
        assert wf.jacobian(f, mode=mode)(*xs).tolist() == [2.0, 4.0]
    assert wf.hessian(f)(*xs).tolist() == [[2.0, 0.0], [0.0, 2.0]]
    assert wf.hvp(f, xs, ts).tolist() == [2.0, 0.0]
    assert wf.vmap(f, in_axes=0, out_axes=0)(wf.ones((3, 2))).tolist() == [2.0, 2.0, 2.0]
    assert wf.grad(wf.checkpoint(f))(*xs).tolist() == [2.0, 4.0]
    wf.testing.check_grads(f, [x.astype("float64") for x in xs], order=2,
                           modes=("forward", "reverse"))  # fmt: skip


# --- PyTorch as an independent reference ---


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def both(torch: Any, *arrays: np.ndarray) -> tuple[list[wf.Tensor], list[Any]]:
    """The same leaves in both frameworks."""
    ours = [wf.tensor(array, requires_grad=True) for array in arrays]
    theirs = [torch.tensor(array, requires_grad=True) for array in arrays]
    return ours, theirs


def agree(ours: list[wf.Tensor], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-9, atol=1e-11)


def test_a_perceptron_agrees_with_torch(torch: Any, rng: np.random.Generator) -> None:
    shapes = [(5, 4), (4, 8), (8,), (8, 3), (3,)]
    ours, theirs = both(torch, *[rng.normal(size=shape) for shape in shapes])
    labels = np.array([0, 2, 1, 1, 0])

    x, w1, b1, w2, b2 = ours
    scores = wf.log_softmax(wf.tanh(x @ w1 + b1) @ w2 + b2, axis=-1)
    (-wf.take_along_axis(scores, wf.tensor(labels)[:, None], axis=1)).mean().backward()
    x, w1, b1, w2, b2 = theirs
    scores = torch.tanh(x @ w1 + b1) @ w2 + b2
    torch.nn.functional.cross_entropy(scores, torch.tensor(labels)).backward()
    agree(ours, theirs)


def test_a_convolutional_network_agrees_with_torch(torch: Any, rng: np.random.Generator) -> None:
    shapes = [(2, 3, 8, 8), (4, 3, 3, 3), (6, 4, 3, 3), (6 * 2 * 2, 3)]
    ours, theirs = both(torch, *[rng.normal(size=shape) for shape in shapes])

    x, k1, k2, w = ours
    y = wf.max_pool2d(wf.relu(wf.conv2d(x, k1, padding=1)), 2)
    y = wf.avg_pool2d(wf.gelu(wf.conv2d(y, k2, padding=1)), 2)
    (y.reshape(2, -1) @ w).sum().backward()
    x, k1, k2, w = theirs
    functional = torch.nn.functional
    y = functional.max_pool2d(torch.relu(functional.conv2d(x, k1, padding=1)), 2)
    y = functional.avg_pool2d(functional.gelu(functional.conv2d(y, k2, padding=1)), 2)
    (y.reshape(2, -1) @ w).sum().backward()
    agree(ours, theirs)


def test_attention_agrees_with_torch(torch: Any, rng: np.random.Generator) -> None:
    ours, theirs = both(torch, *[rng.normal(size=(2, 2, 5, 4)) for _ in range(3)])
    weights = rng.normal(size=(2, 2, 5, 4))

    q, k, v = ours  # [batch, heads, time, head]
    mask = wf.tril(wf.ones((5, 5), dtype="bool"))
    scores = wf.where(mask, q @ k.mT / 2.0, -wf.inf)
    ((wf.softmax(scores, axis=-1) @ v) * wf.tensor(weights)).sum().backward()
    q, k, v = theirs
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    (out * torch.tensor(weights)).sum().backward()
    agree(ours, theirs)


def test_double_backward_agrees_with_torch(torch: Any, rng: np.random.Generator) -> None:
    ours, theirs = both(torch, rng.normal(size=(3, 4)), rng.normal(size=(4, 2)))

    def penalty(x: Any, w: Any, tanh: Any) -> None:
        out = (tanh(x @ w) ** 3).sum()
        out.backward(create_graph=True)
        gradients = [x.grad, w.grad]
        x.grad = w.grad = None
        sum((g**2).sum() for g in gradients).backward()

    penalty(*ours, wf.tanh)
    with pytest.warns(UserWarning, match="create_graph"):
        penalty(*theirs, torch.tanh)
    agree(ours, theirs)


def test_complex_gradients_agree_with_torch(torch: Any, rng: np.random.Generator) -> None:
    arrays = [rng.normal(size=3) + 1j * rng.normal(size=3) for _ in range(2)]
    ours, theirs = both(torch, *arrays)
    a, b = ours
    (wf.abs(wf.exp(a) * b + wf.conj(a)) ** 2).sum().backward()
    a, b = theirs
    (torch.abs(torch.exp(a) * b + torch.conj(a)) ** 2).sum().backward()
    agree(ours, theirs)


def test_hooks_and_accumulation_agree_with_torch(torch: Any) -> None:
    ours, theirs = both(torch, np.array([1.0, 2.0, 3.0]))
    for (x,) in (ours, theirs):
        y = x * 2.0
        y.register_hook(lambda g: g * 3.0)
        y.retain_grad()
        (y * y).sum().backward(retain_graph=True)
        (y * x).sum().backward()
        kept = y.grad.tolist()
        assert kept == [6 * 2.0 * v * 2.0 / 2.0 + 3.0 * v for v in (1.0, 2.0, 3.0)]
    agree(ours, theirs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch.func
def test_functional_transforms_agree_with_torch(torch: Any, rng: np.random.Generator) -> None:
    x, w = rng.normal(size=(4,)), rng.normal(size=(4, 4))
    ours = lambda v: (wf.sin(wf.tensor(w) @ v) * v).sum()  # noqa: E731
    theirs = lambda v: (torch.sin(torch.tensor(w) @ v) * v).sum()  # noqa: E731
    func = torch.func
    a, b = wf.tensor(x), torch.tensor(x)
    for one, other in [
        (wf.grad(ours), func.grad(theirs)),
        (wf.hessian(ours), func.hessian(theirs)),
        (wf.jacobian(wf.grad(ours)), func.jacrev(func.grad(theirs))),
    ]:
        np.testing.assert_allclose(one(a).numpy(), other(b).numpy(), rtol=1e-9)
