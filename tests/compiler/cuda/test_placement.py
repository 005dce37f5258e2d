"""Where tensors are made and moved: default devices, `device=`, and copies with derivatives."""

from __future__ import annotations

import inspect
import json
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.compiler.cuda.host_card import HostCard

import weft as wf

CPU = wf.device("cpu")


def test_a_block_makes_tensors_on_its_device_in_its_own_thread(card: HostCard) -> None:
    elsewhere: list[wf.Device] = []
    with wf.default_device("cuda") as place:
        assert wf.ones(3).device == wf.random.normal((2,)).device == place
        other = threading.Thread(target=lambda: elsewhere.append(wf.ones(3).device))
        other.start()
        other.join()
    assert wf.ones(3).device == elsewhere[0] == CPU


def test_a_call_by_itself_sets_the_default_device(card: HostCard) -> None:
    wf.default_device("cuda")
    try:
        assert wf.arange(3).device == wf.device("cuda")
    finally:
        wf.default_device("cpu")
    assert wf.arange(3).device == CPU


def test_a_compiled_function_of_nothing_runs_on_the_default_device(card: HostCard) -> None:
    f = wf.jit(lambda: wf.linspace(0.0, 1.0, 3) + wf.ones(3))
    with wf.default_device("cuda") as place:
        assert f().device == place
        np.testing.assert_allclose(f().numpy(), [1.0, 1.5, 2.0])
    assert f().device == CPU


def test_what_is_written_stays_on_its_device(card: HostCard) -> None:
    x = wf.zeros((3, 2), device="cuda")
    x[1] = 5
    x[0] = [1.0, 2.0]
    x[[2]] = wf.tensor([3.0, 4.0])
    assert (x.device, x.tolist()) == (wf.device("cuda"), [[1, 2], [5, 5], [3, 4]])
    x.copy_(wf.ones((3, 2)))
    assert (x.device, x.tolist()) == (wf.device("cuda"), [[1, 1]] * 3)
    x.zero_()
    assert (x.device, x.tolist()) == (wf.device("cuda"), [[0, 0]] * 3)


MAKERS = {
    "random.uniform": lambda device: wf.random.uniform((3,), device=device),
    "random.normal": lambda device: wf.random.normal((3,), 0.0, 1.0, device=device),
    "random.randint": lambda device: wf.random.randint(0, 9, (3,), device=device),
    "random.permutation": lambda device: wf.random.permutation(5, device=device),
    "random.bits": lambda device: wf.random.bits((3,), device=device),
    "random.key": lambda device: wf.random.key(3, device=device),
    "fft.fftfreq": lambda device: wf.fft.fftfreq(5, device=device),
    "fft.rfftfreq": lambda device: wf.fft.rfftfreq(5, device=device),
    "eye": lambda device: wf.eye(3, device=device),
    "astype": lambda device: wf.astype(wf.arange(3), "float32", device=device),
    "zeros_like": lambda device: wf.zeros_like(wf.arange(3), device=device),
    "method": lambda device: wf.arange(3).to(device),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_tensor_is_made_on_the_device_that_is_asked_for(card: HostCard, name: str) -> None:
    wf.random.seed(7)
    there = MAKERS[name]("cuda")
    wf.random.seed(7)
    here = MAKERS[name]("cpu")
    assert (there.device, here.device) == (wf.device("cuda"), CPU)
    assert there.type == here.type
    # numbers that are drawn there are made by NumPy's logarithm here
    np.testing.assert_allclose(there.numpy(), here.numpy(), rtol=1e-6)


def test_tensors_go_to_a_card_and_back_by_the_names_of_other_libraries(card: HostCard) -> None:
    x = wf.arange(3)
    assert x.cuda().device == x.cuda(0).device == x.cuda("cuda:0").device == wf.device("cuda")
    assert x.cpu() is x
    assert x.cuda().cpu().tolist() == [0, 1, 2]


LAYERS = {
    "Linear": lambda **options: wf.nn.Linear(3, 4, **options),
    "Conv2d": lambda **options: wf.nn.Conv2d(2, 3, 3, **options),
    "ConvTranspose1d": lambda **options: wf.nn.ConvTranspose1d(2, 3, 3, **options),
    "Embedding": lambda **options: wf.nn.Embedding(5, 4, **options),
    "BatchNorm1d": lambda **options: wf.nn.BatchNorm1d(3, **options),
    "LayerNorm": lambda **options: wf.nn.LayerNorm(3, **options),
    "LSTM": lambda **options: wf.nn.LSTM(3, 4, **options),
    "GRUCell": lambda **options: wf.nn.GRUCell(3, 4, **options),
    "MultiheadAttention": lambda **options: wf.nn.MultiheadAttention(4, 2, **options),
    "TransformerEncoderLayer": lambda **options: wf.nn.TransformerEncoderLayer(4, 2, **options),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_made_on_the_device_that_is_asked_for(card: HostCard, name: str) -> None:
    wf.random.seed(1)
    there = LAYERS[name](device="cuda")
    wf.random.seed(1)
    here = LAYERS[name]()
    assert {p.device for p in there.parameters()} == {wf.device("cuda")}
    wanted = here.state_dict()
    for label, tensor in there.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), wanted[label].numpy(), err_msg=label)


def test_every_layer_with_a_dtype_takes_a_device() -> None:
    for name in wf.nn.__all__:
        layer = getattr(wf.nn, name)
        if inspect.isclass(layer) and issubclass(layer, wf.nn.Module):
            options = inspect.signature(layer).parameters
            assert ("dtype" in options) == ("device" in options), name


def test_a_move_has_a_derivative_that_goes_back_over_it(card: HostCard) -> None:
    x = wf.tensor([1.0, 2.0, 3.0], requires_grad=True)
    weight = wf.tensor([2.0, 3.0, 4.0], device="cuda", requires_grad=True)
    # there, back again, and there: with rules that make constants on both sides
    y = (wf.cumprod(wf.pad(x * x, (1, 0)) + 1.0, axis=0)[1:].to("cuda") * weight).to("cpu")
    z = wf.cumsum(y, axis=0).to("cuda")
    z.sum().backward()
    assert x.grad is not None
    assert weight.grad is not None
    assert (x.grad.device, weight.grad.device) == (CPU, wf.device("cuda"))
    leaf, other = x.detach().requires_grad_(), weight.detach().cpu().requires_grad_()
    products = wf.cumprod(wf.pad(leaf * leaf, (1, 0)) + 1.0, axis=0)[1:] * other
    wf.cumsum(products, axis=0).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), leaf.grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(weight.grad.numpy(), other.grad.numpy(), rtol=1e-5)


def test_a_move_is_followed_by_forward_mode_and_over_a_batch(card: HostCard) -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        return (x.to("cuda") ** 2).to("cpu") * x

    x = wf.tensor([1.0, 2.0])
    value, tangent = wf.jvp(f, (x,), (wf.ones(2),))
    assert (value.tolist(), tangent.tolist()) == ([1.0, 8.0], [3.0, 12.0])
    assert wf.vmap(f)(wf.stack([x, x])).tolist() == [[1.0, 8.0]] * 2
    second = wf.grad(wf.grad(lambda a: f(a).sum()))(wf.tensor(2.0))
    assert (second.item(), second.device) == (12.0, CPU)


def test_memory_that_runs_out_names_the_largest_tensors_and_the_process_goes_on(
    card: HostCard,
) -> None:
    held = wf.ones((300, 1000), device="cuda"), wf.ones((77, 3), device="cuda")
    card.results["cuMemAllocAsync"] = 2
    try:
        for make in (
            lambda: wf.zeros((40_000, 70), device="cuda"),
            lambda: held[1].to("cpu").to("cuda").reshape(-1, 1) + wf.ones((1, 3000), device="cuda"),
            lambda: wf.jit(lambda x: wf.exp(x[:, :, None] + wf.ones(3000)))(held[1]),
        ):
            with pytest.raises(wf.OutOfMemoryError, match="cuda:0 has no room for") as caught:
                make()
            text = str(caught.value)
            assert "f32[300, 1000] (1.1 MiB)" in text
            assert "wf.jit(memory=...)" in caught.value.fix
    finally:
        del card.results["cuMemAllocAsync"]
    assert wf.zeros((40_000, 70), device="cuda").device == held[0].device
    assert (held[1] + 1).sum().item() == 462.0


def test_a_profile_has_the_launches_of_a_card_by_its_events(card: HostCard, tmp_path: Path) -> None:
    x = wf.asarray(np.ones((8, 8), np.float32)).to("cuda")
    step = wf.jit(lambda x: (wf.sort(wf.exp(x), axis=1), (x * 2).to("cpu").sum()))
    with wf.tools.profile(tmp_path / "trace.json") as profile:
        for _ in range(3):
            step(x)
    on = Counter((call.device, call.kernel.name.rstrip("0123456789")) for call in profile.calls)
    assert on["cuda", "sort"] == 3
    assert any(device == "cpu" for device, _ in on)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["cat"] for event in events} == {"cpu", "cuda"}
    assert "sort" in str(profile)


def test_memory_is_counted_and_its_peak_begins_anew(card: HostCard) -> None:
    before = wf.cuda.memory_stats().used
    held = [wf.ones((1 << 18,), device="cuda"), wf.ones((1 << 18,), device="cuda")]
    stats = wf.cuda.memory_stats()
    assert stats.used - before == 2 << 20
    held.pop()
    assert wf.cuda.memory_stats().peak >= stats.used > wf.cuda.memory_stats().used
    wf.cuda.reset_peak_memory()
    assert wf.cuda.memory_stats().peak == wf.cuda.memory_stats().used


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("empty_cache", "wf.cuda.release_memory()"),
        ("max_memory_allocated", "wf.cuda.memory_stats().peak"),
        ("syncronize", "wf.cuda.synchronize"),
    ],
)
def test_names_of_other_libraries_lead_to_ours(name: str, fix: str) -> None:
    with pytest.raises(wf.NameUnknownError) as caught:
        getattr(wf.cuda, name)
    assert caught.value.fix == fix


OPTIMIZERS = {
    "Adam": wf.optim.Adam,
    "SGD": lambda p: wf.optim.SGD(p, lr=0.1),
    "momentum": lambda p: wf.optim.SGD(p, lr=0.1, momentum=0.9),
    "two parts of a batch": lambda p: wf.optim.AdamW(p, accumulate=2, clip_norm=1.0),
    "float16": lambda p: wf.optim.SGD(p, lr=0.1, momentum=0.9, precision="float16"),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimiser_stays_valid_when_its_parameters_are_moved(
    card: HostCard, name: str, compiled: bool
) -> None:
    def losses(places: list[str]) -> list[float]:
        wf.random.seed(0)
        model = wf.nn.Linear(3, 2)
        optimizer = OPTIMIZERS[name](model.parameters())

        def step(x: wf.Tensor) -> wf.Tensor:
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            optimizer.scale(loss).backward()
            optimizer.step()
            return loss

        run, found = wf.jit(step) if compiled else step, []
        for place in places:
            model.to(place)
            found += [run(wf.ones((4, 3), device=place)).item() for _ in range(3)]
            assert {str(p.device) for p in model.parameters()} == {str(wf.device(place))}
        return found

    here = losses(["cpu", "cpu", "cpu"])
    np.testing.assert_allclose(losses(["cuda", "cpu", "cuda"]), here, rtol=1e-4)
    np.testing.assert_allclose(losses(["cpu", "cuda", "cuda"]), here, rtol=1e-4)
