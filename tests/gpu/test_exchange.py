"""Memory shared with PyTorch on a card, both ways, with work of both on streams of their own."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.targets.cuda.driver import is_available

pytestmark = pytest.mark.skipif(not is_available(), reason="there is no NVIDIA card here")
torch: Any = pytest.importorskip("torch")

LARGE = 1 << 24
"""Elements of a tensor whose work is still under way when it is handed over."""


def slow_ones() -> wf.Tensor:
    """Ones, at the end of much work that the host does not wait for."""
    x = wf.ones((2048, 2048), device="cuda")
    for _ in range(50):
        x = x @ x / 2048
    return x


@pytest.mark.parametrize("own_stream", [False, True])
def test_torch_reads_what_is_still_computed(own_stream: bool) -> None:
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    for _ in range(5):
        with torch.cuda.stream(stream):
            taken = torch.from_dlpack(slow_ones())
            assert taken.is_cuda
            assert float(taken.sum()) == 2048 * 2048


def test_what_torch_still_computes_is_read() -> None:
    for _ in range(5):
        x = torch.ones((2048, 2048), device="cuda")
        for _ in range(50):
            x = x @ x / 2048
        y = wf.from_dlpack(x)
        assert y._value.pointer == x.data_ptr()
        assert float(y.sum()) == 2048 * 2048


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool", "complex64"])
def test_dtypes_cross_both_ways(dtype: str) -> None:
    x = wf.arange(24).reshape(2, 3, 4).astype(dtype).to("cuda")
    there = torch.from_dlpack(x)
    assert (there.dtype, tuple(there.shape)) == (getattr(torch, dtype), (2, 3, 4))
    assert there.data_ptr() == x._value.pointer
    back = wf.from_dlpack(there.clone())
    np.testing.assert_array_equal(back.cpu().numpy(), x.cpu().numpy())


def test_memory_in_use_by_torch_is_not_used_again() -> None:
    x = wf.full((LARGE,), 3.0, device="cuda")
    taken = torch.from_dlpack(x)
    del x
    gc.collect()
    for value in range(8):
        wf.full((LARGE,), float(value), device="cuda") * 2
    wf.cuda.synchronize()
    assert float(taken.min()) == float(taken.max()) == 3.0
    del taken
    wf.cuda.synchronize()


def test_memory_of_torch_is_not_used_again_while_it_is_read() -> None:
    expected = 0.0
    total = wf.zeros((), device="cuda")
    for number in range(1, 9):
        x = torch.full((LARGE,), float(number), device="cuda")
        total = total + wf.from_dlpack(x).mean()
        expected += number
        del x
    assert float(total) == pytest.approx(expected)
    wf.cuda.synchronize()


def test_the_interface_of_arrays_crosses_both_ways() -> None:
    x = slow_ones()
    assert float(torch.as_tensor(x, device="cuda").sum()) == 2048 * 2048

    class Described:
        __cuda_array_interface__ = torch.arange(6, device="cuda").__cuda_array_interface__

    assert wf.asarray(Described()).tolist() == [0, 1, 2, 3, 4, 5]


def test_what_was_handed_out_is_not_written_to() -> None:
    state = wf.zeros((1024,), device="cuda")
    taken = torch.from_dlpack(state)

    @wf.jit
    def add() -> None:
        state.copy_(state + 1)

    for _ in range(4):
        add()
    assert float(state.sum()) == 4096
    assert float(taken.sum()) == 0
