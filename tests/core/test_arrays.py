"""The seam to another device: a class of arrays that is no NumPy array, and no GPU."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.core.arrays import CONCRETE, add_device, is_concrete, is_host, remove_device
from weft.core.devices import CPU, Device
from weft.ir.tensor import wrap

MOON = Device("moon")


class MoonArray:
    """Elements that only a copy brings home: nothing in NumPy's protocols reads them."""

    device = MOON
    kind = None

    def __init__(self, elements: np.ndarray[Any, Any]) -> None:
        self._elements = elements.copy()
        self.shape, self.dtype, self.nbytes = elements.shape, elements.dtype, elements.nbytes

    def to_host(self) -> np.ndarray[Any, Any]:
        return self._elements.copy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        raise AssertionError("NumPy read an array that is not in its memory")


@pytest.fixture(autouse=True)
def moon() -> Iterator[None]:
    add_device(MOON, MoonArray, MoonArray)
    yield
    remove_device(MOON)


def on_the_moon(*numbers: float) -> wf.Tensor:
    return wrap(MoonArray(np.array(numbers, np.float32)))


def test_an_array_of_a_device_is_concrete_and_not_in_the_hosts_memory() -> None:
    value = on_the_moon(1.0)._value
    assert is_concrete(value)
    assert not is_host(value)
    assert is_concrete(np.ones(2))
    assert is_host(np.ones(2))
    assert not is_concrete(np.float32(1))


def test_what_is_traced_is_not_concrete() -> None:
    seen: list[bool] = []
    wf.ir.trace(lambda x: (seen.append(is_concrete(x._value)), x)[1], wf.spec("float32", (2,)))
    wf.jvp(lambda x: (seen.append(is_concrete(x._value)), x)[1], (wf.ones(2),), (wf.ones(2),))
    wf.vmap(lambda x: (seen.append(is_concrete(x._value)), x)[1])(wf.ones(2))
    assert seen == [False] * 3


def test_a_tensor_around_it_has_its_shape_dtype_and_device() -> None:
    x = on_the_moon(1.0, 2.0)
    assert (x.shape, x.dtype, x.ndim, x.size) == ((2,), wf.float32, 1, 2)
    assert str(x.type) == "f32[2]"
    assert x.device == MOON == wf.device("moon")
    assert repr(x) == "tensor([1., 2.], dtype=float32, device=moon)"
    assert f"{on_the_moon(1.5):.2f}" == "1.50"


def test_tensors_are_made_of_it_without_a_copy() -> None:
    value = on_the_moon(1.0)._value
    assert wf.asarray(value)._value is value
    assert wf.tensor(value).device == MOON
    assert wf.stop_gradient(wf.asarray(value))._value is value


def test_tensors_move_there_and_back() -> None:
    x = wf.tensor([1.0, 2.0])
    there = x.to("moon")
    assert type(there._value) is MoonArray
    assert there.to(MOON) is there
    back = there.to("cpu")
    assert is_host(back._value)
    assert back.tolist() == [1.0, 2.0]
    assert there.to_device("cpu").device == CPU
    assert MOON in wf.__array_namespace_info__().devices()


def test_a_tensor_on_the_cpu_stays_itself() -> None:
    x = wf.ones(3)
    assert x.device == wf.device("cpu") == wf.Device("cpu")
    assert x.to("cpu") is x
    assert x.to(wf.device("cpu")) is x
    assert x.to("float64").dtype is wf.float64


def test_what_is_differentiated_moves_with_its_derivative_and_what_is_compiled_does_not() -> None:
    leaf = wf.tensor([1.0], requires_grad=True)
    (leaf.to("moon").to("cpu") * 3).sum().backward()
    assert leaf.grad is not None
    assert (leaf.grad.device, leaf.grad.tolist()) == (wf.device("cpu"), [3.0])
    assert leaf.detach().to("moon").device == MOON
    with pytest.raises(wf.UnsupportedError, match="no part on another device"):
        wf.jit(lambda x: x.to("moon"))(wf.ones(2))


@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("add", lambda x, y: x + y),
        ("add", lambda x, y: wf.jvp(lambda x: x + y, (x,), (wf.ones(2),))),
        ("dot", lambda x, y: x @ y),
        ("where", lambda x, y: wf.where(x > 0, x, y)),
        ("concat", lambda x, y: wf.concat([x, y])),
        ("jit", lambda x, y: wf.jit(lambda x, y: x + y)(x, y)),
        ("add", lambda x, y: wf.vmap(lambda x: x + y)(wf.ones((3, 2)))),
    ],
)
def test_operands_on_two_devices_are_refused(op: str, call: Callable[..., Any]) -> None:
    with pytest.raises(wf.DeviceError, match="different devices") as caught:
        call(wf.ones(2), on_the_moon(1.0, 2.0))
    error = caught.value
    assert error.op == op
    assert "on cpu" in str(error)
    assert "f32[2] on moon" in str(error)
    assert error.fix == f'move one of them first: x{3 if op == "where" else 2}.to("cpu")'


def test_the_fix_for_two_devices_helps() -> None:
    x1, x2 = wf.ones(2), on_the_moon(1.0, 2.0)
    assert (x1 + x2.to("cpu")).tolist() == [2.0, 3.0]


def test_a_function_that_closes_over_another_device_is_refused() -> None:
    there = on_the_moon(1.0, 2.0)
    with pytest.raises(wf.DeviceError, match="different devices"):
        wf.jit(lambda x: x + there)(wf.ones(2))
    with pytest.raises(wf.DeviceError, match="different devices"):
        wf.ir.trace(lambda x: x + there, wf.spec("float32", (2,)))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + x,
        lambda x: x + 1.0,
        wf.exp,
        lambda x: x.sum(),
        lambda x: x[0],
        lambda x: x @ x,
        lambda x: x.astype("float64"),
        lambda x: wf.jit(wf.exp)(x),
    ],
)
def test_what_nothing_computes_there_is_refused(call: Callable[..., Any]) -> None:
    with pytest.raises((wf.UnsupportedError, wf.DeviceError)) as caught:
        call(on_the_moon(1.0, 2.0))
    assert "moon" in str(caught.value)
    assert '.to("cpu")' in caught.value.fix


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.numpy().tolist(),
        lambda x: np.asarray(x).tolist(),
        lambda x: [x.item()],
        lambda x: x.tolist(),
        lambda x: [float(bool(x))],
        lambda x: [float(x)],
        lambda x: pickle.loads(pickle.dumps(x)).tolist(),
        lambda x: [float(wf.repeat(wf.ones(1), x.to("cpu").astype("int64")).size)],
    ],
)
def test_what_reads_elements_copies_them_first(read: Callable[..., Any]) -> None:
    assert read(on_the_moon(1.0)) == [1.0]


def test_files_hold_what_was_elsewhere(tmp_path: Path) -> None:
    wf.save({"x": on_the_moon(1.0)}, tmp_path / "x.safetensors")
    loaded = wf.load(tmp_path / "x.safetensors")["x"]
    assert loaded.device == CPU
    assert loaded.tolist() == [1.0]


@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("__dlpack__", lambda x: x.__dlpack__()),
        ("__dlpack_device__", lambda x: x.__dlpack_device__()),
    ],
)
def test_memory_that_the_host_cannot_read_is_not_lent(op: str, call: Callable[..., Any]) -> None:
    with pytest.raises(wf.DeviceError, match="which the host cannot read") as caught:
        call(on_the_moon(1.0))
    assert caught.value.op == op
    assert caught.value.fix == 'copy it first: x.to("cpu")'


def test_the_class_of_a_value_is_compared_in_one_file_only() -> None:
    """`type(value) is np.ndarray` elsewhere would be a third answer to "is it there?"."""
    source = Path(wf.__file__).parent
    texts = {path: path.read_text(encoding="utf-8") for path in source.rglob("*.py")}
    found = [
        f"{path.relative_to(source)}:{node.lineno}"
        for path, text in texts.items()
        if re.search(r"(is|not|in|==|!=)\s+\(?[\w.]*ndarray", text)  # to parse all takes seconds
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Compare)
        and any(ast.unparse(each).endswith("ndarray") for each in node.comparators)
    ]
    assert found == []


def test_tensors_are_made_there() -> None:
    assert wf.zeros(3, device="moon").device == MOON
    assert wf.tensor([1.0, 2.0], device=MOON).tolist() == [1.0, 2.0]
    assert wf.ones_like(on_the_moon(3.0)).device == MOON
    assert wf.ones_like(on_the_moon(3.0), device="cpu").device == CPU
    leaf = wf.tensor([1.0], device="moon", requires_grad=True)
    assert leaf.requires_grad
    with wf.settings.changed(device="moon"):
        assert wf.arange(3).device == MOON
        assert wf.arange(3, device="cpu").device == CPU
        assert wf.asarray(wf.ones(3, device="cpu")).device == CPU
    with pytest.raises(wf.UnsupportedError, match="makes no tensors on moon"):
        wf.jit(lambda x: x + wf.zeros(2, device="moon"))(wf.ones(2))


def test_a_device_without_a_target_is_refused() -> None:
    for make in (lambda: wf.device("cuda"), lambda: wf.ones(2).to("cuda:0"), lambda: wf.device(3)):
        with pytest.raises(wf.DeviceError, match=r"no such device here|no NVIDIA driver") as caught:
            make()
        assert caught.value.op in ("device", "cuda")


def test_a_device_that_is_removed_is_no_device() -> None:
    remove_device(MOON)
    assert MoonArray not in CONCRETE
    with pytest.raises(wf.DeviceError):
        wf.device("moon")
    add_device(MOON, MoonArray, MoonArray)
