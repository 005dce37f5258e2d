"""NCCL itself, through nccl4py, in a world of one process: all that one card can show.

Two processes of NCCL cannot share a card, so nothing is exchanged here; but libraries are found, a
communicator is made, every call of the engine is one of NCCL's own, on the card's memory, and gives
the right values. tests/distributed/test_nccl.py has several processes, on a stand-in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft as wf
from weft import distributed
from weft.compiler.targets.cuda.driver import is_available
from weft.distributed.engines.nccl import NcclEngine

pytestmark = pytest.mark.skipif(not is_available(), reason="there is no NVIDIA card here")
pytest.importorskip("nccl", reason="nccl4py is not installed")

DTYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
          "float64"]  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[NcclEngine]:
    """The engine of a world of one process; skipped where there is no library of NCCL."""
    try:
        distributed.init("nccl")
    except wf.UnsupportedError as error:
        pytest.skip(f"NCCL cannot be loaded: {error.note}")
    joined: Any = distributed.world().engine
    yield joined
    distributed.shutdown()


def _values(dtype: str) -> np.ndarray:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return np.arange(12).reshape(3, 4).astype(kind)


def test_the_world_is_one_process_of_nccl(engine: NcclEngine) -> None:
    assert isinstance(engine, NcclEngine)
    assert (engine.rank, engine.size, distributed.world_size()) == (0, 1, 1)
    assert engine.communicator.nranks == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_call_of_nccl_gives_what_one_process_has(engine: NcclEngine, dtype: str) -> None:
    x = _values(dtype)
    for how in ("sum", "max", "min"):
        np.testing.assert_array_equal(engine.all_reduce(x, how), x)
    np.testing.assert_array_equal(engine.all_gather(x), x[None])
    np.testing.assert_array_equal(engine.reduce_scatter(x[None]), x)
    np.testing.assert_array_equal(engine.all_to_all(x[None]), x[None])
    np.testing.assert_array_equal(engine.broadcast(x, 0), x)
    np.testing.assert_array_equal(engine.permute(x, [(0, 0)]), x)
    np.testing.assert_array_equal(engine.permute(x, []), np.zeros_like(x))


def test_large_arrays_and_those_without_elements_pass(engine: NcclEngine) -> None:
    large = np.random.default_rng(0).normal(size=5_000_001).astype(np.float32)
    np.testing.assert_array_equal(engine.all_reduce(large, "sum"), large)
    np.testing.assert_array_equal(engine.permute(large, [(0, 0)]), large)
    empty = np.zeros((0, 3), np.float32)
    assert engine.all_gather(empty).shape == (1, 0, 3)
    engine.barrier()


def _each(x: wf.Tensor) -> list[wf.Tensor]:
    d = distributed
    return [
        d.all_reduce(x), d.all_reduce(x, op="mean"), d.all_gather(x), d.reduce_scatter(x),
        d.all_to_all(x), d.broadcast(x), d.permute(x, pairs=[(0, 0)]),
    ]  # fmt: skip


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("compiled", [False, True])
def test_collectives_of_tensors_give_the_same(compiled: bool, device: str) -> None:
    x = wf.tensor(_values("float32"), device=device)
    for result in (wf.jit(_each) if compiled else _each)(x):
        np.testing.assert_array_equal(result.numpy(), x.numpy())


@pytest.mark.usefixtures("engine")
def test_a_step_of_data_parallel_training_is_that_of_one_process() -> None:
    def train(shared: bool) -> np.ndarray:
        layer = wf.nn.Linear(4, 3)
        with wf.no_grad():
            layer.weight.copy_(wf.ones((3, 4)))
            layer.bias.copy_(wf.zeros(3))
        layer.to("cuda")
        optimizer = wf.optim.SGD(layer.parameters(), lr=0.1)
        if shared:
            distributed.data_parallel(optimizer)
        optimizer.minimize((layer(wf.ones((2, 4), device="cuda")) ** 2).mean())
        weight: np.ndarray = layer.weight.detach().numpy()
        return weight

    np.testing.assert_array_equal(train(True), train(False))
