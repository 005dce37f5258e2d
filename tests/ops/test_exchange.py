"""Exchange with the rest of Python: numbers, NumPy, DLPack, copies and pickles."""

from __future__ import annotations

import copy
import itertools
import operator
import pickle
from typing import Any

import numpy as np
import pytest

import weft as wf

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32",
    "float64", "complex64", "complex128",
]  # fmt: skip
INTEGERS = [name for name in DTYPES if "int" in name]
INF, NAN = float("inf"), float("nan")

# --- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_without_axes_is_a_number(dtype: str) -> None:
    x = wf.asarray(1, dtype=dtype)
    assert (x.shape, x.ndim, x.size) == ((), 0, 1)
    assert bool(x) is True
    assert complex(x) == 1 + 0j
    if not dtype.startswith("complex"):
        assert (int(x), float(x)) == (1, 1.0)
        assert type(int(x)) is int
        assert type(float(x)) is float
    if dtype in INTEGERS:
        assert operator.index(x) == 1
        assert [10, 20, 30][x] == 20


def test_python_s_numbers_of_edge_values() -> None:
    assert float(wf.asarray(-INF)) == -INF
    assert np.isnan(float(wf.asarray(NAN)))
    assert int(wf.asarray(-2.9)) == -2
    assert bool(wf.asarray(NAN)) is True
    assert int(wf.asarray(2**64 - 1, dtype="uint64")) == 2**64 - 1
    assert complex(wf.asarray(1 - 2j)) == 1 - 2j


NO_NUMBERS = {
    "bool of several": (lambda: bool(wf.ones(2)), wf.ArgumentError),
    "bool of none": (lambda: bool(wf.ones(0)), wf.ArgumentError),
    "int of several": (lambda: int(wf.ones(2)), wf.ArgumentError),
    "float of complex": (lambda: float(wf.asarray(1j)), wf.DTypeError),
    "int of complex": (lambda: int(wf.asarray(1j)), wf.DTypeError),
    "index of a float": (lambda: [1, 2][wf.asarray(1.0)], wf.DTypeError),
    "index of a bool": (lambda: operator.index(wf.asarray(True)), wf.DTypeError),
    "iteration over no axes": (lambda: list(wf.asarray(1.0)), wf.ArgumentTypeError),
    "length of no axes": (lambda: len(wf.asarray(1.0)), TypeError),
}


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_what_is_no_number_is_refused(name: str) -> None:
    call, error = NO_NUMBERS[name]
    with pytest.raises(error):
        call()


# --- NumPy, DLPack, copies ---------------------------------------------------------------------


def test_numpy_and_tensors_share_memory() -> None:
    array = np.arange(6.0).reshape(2, 3)
    x = wf.asarray(array)
    for view in (x.numpy(), np.asarray(x), np.from_dlpack(x), wf.from_dlpack(array).numpy()):
        assert np.shares_memory(view, array)
    for view in (x.numpy(), np.asarray(x), np.from_dlpack(x)):
        assert not view.flags.writeable
    assert np.shares_memory(x.T.numpy(), array)
    assert np.shares_memory(x[1:].numpy(), array)


def test_copies_are_made_when_asked_for() -> None:
    array = np.arange(3.0)
    x = wf.asarray(array)
    made = [
        wf.asarray(array, copy=True).numpy(),
        wf.asarray(x, copy=True).numpy(),
        wf.from_dlpack(array, copy=True).numpy(),
        wf.from_dlpack(x, copy=True).numpy(),
        wf.tensor(array).numpy(),
        np.array(x),
        np.from_dlpack(x, copy=True),
    ]
    assert not any(np.shares_memory(each, array) for each in made)
    assert np.shares_memory(wf.asarray(x, copy=False).numpy(), array)
    assert np.shares_memory(wf.reshape(x, (3, 1), copy=False).numpy(), array)
    for refused in (
        lambda: wf.asarray(x, dtype="float32", copy=False),
        lambda: wf.asarray([1.0], copy=False),
        lambda: np.asarray(x, dtype=np.float32, copy=False),
        lambda: wf.reshape(wf.ones((2, 3)).T, (6,), copy=False),
    ):
        with pytest.raises(ValueError, match="copy"):
            refused()


def test_memory_is_handed_out_to_old_consumers_of_dlpack_too() -> None:
    x = wf.ones(3)
    frozen = wf.broadcast_to(wf.ones(1), (3,))
    versions = (None, (0, 8), (1, 1))
    for tensor, version, copied in itertools.product((x, frozen), versions, (None, True)):
        capsule = tensor.__dlpack__(max_version=version, copy=copied, dl_device=(1, 0))
        assert type(capsule).__name__ == "PyCapsule"
    assert type(x.__dlpack__(copy=False)).__name__ == "PyCapsule"
    with pytest.raises(BufferError):
        frozen.__dlpack__(copy=False)
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError):
        x.__dlpack__(stream=1)
    with pytest.raises(wf.GradientError):
        wf.tensor([1.0], requires_grad=True).__dlpack__()


@pytest.mark.parametrize("dtype", [*DTYPES, "float16", "bfloat16"])
def test_torch_and_tensors_share_memory(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x = wf.asarray([[1, 0, 1], [0, 1, 1]], dtype=dtype)
    theirs = torch.from_dlpack(x)
    assert str(theirs.dtype) == f"torch.{dtype}"
    assert theirs.data_ptr() == x.numpy().ctypes.data
    assert theirs.tolist() == x.tolist()
    back = wf.from_dlpack(theirs.T)
    assert (back.dtype, back.shape) == (x.dtype, (3, 2))
    assert np.shares_memory(back.numpy(), x.numpy())
    assert back.tolist() == x.T.tolist()
    assert np.shares_memory(wf.asarray(theirs).numpy(), x.numpy())


@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_pickles_and_copies_are_equal(dtype: str, shape: tuple[int, ...]) -> None:
    x = wf.ones(shape, dtype=dtype)
    for made in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x)):
        assert made is not x
        assert (made.dtype, made.shape, made.tolist()) == (x.dtype, x.shape, x.tolist())


def test_pickles_keep_the_order_of_views() -> None:
    x = wf.asarray(np.arange(6.0).reshape(2, 3)).T[::-1]
    assert pickle.loads(pickle.dumps(x)).tolist() == x.tolist()


def test_a_copied_leaf_is_a_leaf_of_its_own() -> None:
    x = wf.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    for made in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert made.requires_grad
        assert made.is_leaf
        (made * 3.0).sum().backward()
        made.grad.zero_()
    assert x.grad.tolist() == [2.0, 4.0]


def test_writing_to_a_copy_leaves_the_original_alone() -> None:
    x = wf.asarray([1.0, 2.0])
    made = [copy.copy(x), copy.deepcopy(x), x.clone(), wf.from_dlpack(x), wf.asarray(x, copy=True)]
    made += [wf.astype(x, "float32", copy=True), wf.reshape(x, (2,), copy=True), x[:].clone(), +x]
    for each in made:
        each[0] = 9.0
        assert x.tolist() == [1.0, 2.0]


OWN_COPIES: dict[str, Any] = {
    "clone": lambda x: x.clone(),
    "deepcopy": copy.deepcopy,
    "parameter": wf.nn.Parameter,
    "copy_": lambda x: wf.zeros(x.shape, dtype=x.dtype).copy_(x),
    "parameter without a gradient": lambda x: wf.nn.Parameter(x, requires_grad=False),
    "module": lambda x: copy.deepcopy(wf.nn.ParameterList([wf.nn.Parameter(x)]))[0],
}


@pytest.mark.parametrize("way", OWN_COPIES)
@pytest.mark.parametrize("part", ["whole", "rows", "columns", "transposed", "shown again"])
def test_copies_stay_as_they_are_when_foreign_memory_changes(way: str, part: str) -> None:
    memory = np.arange(12, dtype=np.float32).reshape(3, 4)
    parts = {
        "whole": memory, "rows": memory[1:], "columns": memory[:, ::2], "transposed": memory.T,
        "shown again": np.broadcast_to(memory[0], (2, 4)),
    }  # fmt: skip
    source = wf.asarray(parts[part])
    found, wanted = OWN_COPIES[way](source), parts[part].copy()
    memory[:] = -1
    assert source.tolist() == np.full(wanted.shape, -1.0).tolist(), "it is the user's memory"
    assert found.tolist() == wanted.tolist()
    assert found._value.flags.c_contiguous


def test_a_clone_of_own_memory_is_not_copied() -> None:
    x = wf.ones((3, 4)) * 2
    assert x.clone()._value is x._value
    assert copy.deepcopy(x)._value is x._value


def test_a_deep_copy_takes_its_gradient_along_and_stays_a_leaf() -> None:
    x = wf.asarray(np.ones(3, np.float32)).requires_grad_()
    (x * 2).sum().backward()
    other = copy.deepcopy(x)
    assert other.grad is not None
    assert (other.is_leaf, other.requires_grad, other.grad.tolist()) == (True, True, [2.0] * 3)
    assert other.grad is not x.grad


def test_a_clone_keeps_its_history() -> None:
    x = wf.asarray(np.ones((2, 3), np.float32)).requires_grad_()
    (x.T.clone() * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[3.0] * 3] * 2
    grad = wf.grad(lambda x: (x.T.clone() ** 2).sum())(wf.asarray(np.ones((2, 2), np.float32)))
    assert grad.tolist() == [[2.0, 2.0]] * 2
