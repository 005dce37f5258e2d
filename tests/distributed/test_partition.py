"""Partitioned functions compute what plain ones do: layers, training steps, loops, processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.hammer import NIGHTLY

import weft as wf
from weft import nn
from weft.collectives import bound_groups
from weft.distributed import (
    Costs,
    Mesh,
    divided,
    partition,
    replicated,
    shard,
    split,
)
from weft.distributed.engines.threads import run_threads
from weft.nn import functional as F  # noqa: N812
from weft.sharding import REPLICATED, Split

QUICK = Costs(latency=0.0)
SLOW_WORK = Costs(latency=0.0, flops=1e10)
"""Devices for which work is dear beside transfers, so that what can be divided is."""


@pytest.fixture(autouse=not NIGHTLY)
def by_reference() -> Iterator[None]:
    """Programs of all devices in one are large, and take long to compile: at night they are."""
    with wf.settings.changed(compiler=False):
        yield


def mesh_of(costs: Costs = QUICK, **axes: int) -> Mesh:
    return Mesh(costs=dict.fromkeys(axes, costs), **axes)


def numbers(*shape: int, seed: int = 0) -> wf.Tensor:
    return wf.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def assert_close(found: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    found, wanted = (x.detach().numpy() for x in (found, wanted))
    scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * scale)


# --- meshes and placements -----------------------------------------------------------------------


def test_a_mesh_counts_ranks_with_the_last_axis_quickest() -> None:
    mesh = Mesh(data=2, model=3)
    assert [tuple(mesh.coordinates(rank).values()) for rank in range(6)] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Mesh(), "a mesh has no axis"),
        (lambda: Mesh(data=0), "the axis 'data' has no size"),
        (lambda: Mesh(data=2, costs={"other": Costs()}), "there is no axis 'other'"),
        (lambda: Mesh(data=2).coordinates(2), "outside of the mesh"),
        (lambda: Mesh(data=2).check_world(3), "the mesh does not fit the world"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(wf.ArgumentError, match=problem):
        make()


@pytest.mark.parametrize(
    ("placement", "error", "problem"),
    [
        (("data", None), wf.ShapeError, "axis 0 of x does not divide among 2 devices"),
        ((None, "other"), wf.ArgumentError, "no axis 'other'"),
        (("data",), wf.ArgumentError, "does not say how x is placed"),
        ((None, 3), wf.ArgumentError, "does not say how x is placed"),
        (split(2), wf.AxisError, "x has no axis 2"),
        ((None, ("model", "data")), wf.UnsupportedError, "in another order than the mesh"),
    ],
)
def test_a_placement_that_does_not_fit_is_refused(
    placement: Any, error: type[Exception], problem: str
) -> None:
    f = partition(lambda x: x * 2, Mesh(data=2, model=2), [placement])
    with pytest.raises(error, match=problem):
        f(wf.ones((5, 4)))


def test_a_mark_on_an_axis_that_does_not_divide_is_refused() -> None:
    """Elements beyond whole parts would be lost."""

    def in_a_loop(x: wf.Tensor) -> wf.Tensor:
        return wf.scan(lambda carry, _: (shard(carry * 2, ("data", None)), None), x, length=2)[0]

    for f in (lambda x: shard(x * 2, ("data", None)), in_a_loop):
        with pytest.raises(wf.ShapeError, match="axis 0 does not divide among 2 devices") as caught:
            partition(f, Mesh(data=2))(wf.ones((5, 4)))
        assert caught.value.note == "5 % 2 = 1"
    heads = partition(lambda x: shard(x.reshape(2, 3, 2), (None, "model", None)), Mesh(model=2))
    with pytest.raises(wf.ShapeError, match="axis 1 does not divide among 2 devices"):
        heads(wf.ones((2, 6)))


def test_not_one_placement_for_each_argument_is_refused() -> None:
    f = partition(wf.add, Mesh(data=2), [("data",)])
    with pytest.raises(wf.ArgumentError, match="one entry for each positional argument"):
        f(wf.ones(2), wf.ones(2))


def test_marks_do_nothing_without_a_mesh() -> None:
    x = numbers(2, 4)
    for placement in (("data", None), {"model": split(1)}, replicated):
        assert_close(shard(x, placement), x)
        assert_close(wf.grad(lambda x, p=placement: shard(x, p).sum())(x), wf.ones((2, 4)))


@pytest.mark.parametrize("placement", [("data",), "data", 3, {"data": 3}])
def test_a_mark_that_does_not_fit_is_refused(placement: Any) -> None:
    with pytest.raises(wf.ArgumentError, match="does not say how x is placed"):
        shard(wf.ones((2, 2)), placement)


# --- functions -----------------------------------------------------------------------------------


def test_marks_are_read_along_every_mesh_axis() -> None:
    f = lambda x: shard(wf.sort(shard(x, ("data", "model")), axis=1), ("model", "data"))  # noqa: E731
    x = numbers(8, 8)
    parallel = partition(f, mesh_of(data=2, model=2), [replicated])
    assert_close(parallel(x), f(x))
    program = parallel.graph(x)
    assert program.output_types[0].shape == (4, 4)
    assert "shard(" not in str(program)


def test_gradients_are_taken_before_the_program_is_divided() -> None:
    loss = lambda w, x: wf.tanh(x @ w).sum()  # noqa: E731
    w, x = numbers(8, 4), numbers(16, 8, seed=1)
    f = partition(wf.value_and_grad(loss), mesh_of(SLOW_WORK, data=4), [replicated, split(0)])
    for found, wanted in zip(f(w, x), wf.value_and_grad(loss)(w, x), strict=True):
        assert_close(found, wanted)
    assert f.explain(w, x).count("all_reduce") == 2


def test_partitioned_functions_are_compiled_and_differentiated_like_others() -> None:
    f = partition(lambda x: (x * x).sum(), Mesh(data=2), [split(0)])
    x = numbers(4, 3)
    assert_close(wf.jit(lambda x: f(x) * 2)(x), (x * x).sum() * 2)
    assert_close(wf.grad(f)(x), x * 2)


def test_an_explanation_lists_each_transfer_with_its_line_and_its_bytes() -> None:
    f = partition(lambda x: wf.sum(x, axis=0), Mesh(data=2), [split(0)], replicated)
    text = str(f.explain(wf.ones((4, 256))))
    assert "1 transfer on Mesh(data=2), 1 024 bytes sent by each device" in text
    assert "all_reduce" in text
    assert "test_partition.py" in text
    assert "split 0" in f.explain(wf.ones((4, 256))).placements()


@pytest.mark.parametrize("count", [2, 4])
def test_loops_and_branches_are_divided(count: int) -> None:
    def f(x: wf.Tensor, w: wf.Tensor) -> Any:
        def step(h: wf.Tensor, _: Any) -> Any:
            h = wf.tanh(h @ w)
            return h, h.sum()

        h, sums = wf.scan(step, x, wf.arange(3))
        h = wf.cond(sums[0] > 0, lambda h: h * 2, lambda h: wf.sort(h, axis=0), h)
        return wf.while_loop(lambda h: wf.sum(h) > 1.0, lambda h: h / 2, h), sums

    x, w = numbers(8, 8), numbers(8, 8, seed=1) / 4
    divided_f = partition(f, mesh_of(SLOW_WORK, data=count), [split(0), replicated])
    for found, wanted in zip(divided_f(x, w), f(x, w), strict=True):
        assert_close(found, wanted)
    inner = [each for each in divided_f.explain(x, w).transfers if each.times == 3]
    assert {each.collective for each in inner} == {"all_reduce"}


# --- transformers --------------------------------------------------------------------------------


class Block(nn.Module):
    """A block whose values between products are placed by marks."""

    def __init__(self, width: int, heads: int, sequence_parallel: bool) -> None:
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.between = (None, "model" if sequence_parallel else None, None)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, time, width] -> the same."""
        x = shard(x, self.between)
        whole = shard(self.norm_1(x), (None, None, None))
        q, k, v = (self._heads(part(whole)) for part in (self.query, self.key, self.value))
        seen = F.scaled_dot_product_attention(q, k, v, causal=True)
        joined = wf.reshape(wf.swapaxes(seen, 1, 2), x.shape)
        x = shard(x + self.out(joined), self.between)
        hidden = F.gelu(self.up(shard(self.norm_2(x), (None, None, None))))
        return shard(x + self.down(shard(hidden, (None, None, "model"))), self.between)

    def _heads(self, x: wf.Tensor) -> wf.Tensor:
        batch, time, width = x.shape
        parted = wf.reshape(x, (batch, time, self.heads, width // self.heads))
        return shard(wf.swapaxes(parted, 1, 2), (None, "model", None, None))


PLAN = {
    "net.query.*": split(0, "model"), "net.key.*": split(0, "model"),
    "net.value.*": split(0, "model"), "net.up.*": split(0, "model"),
    "net.out.weight": split(1, "model"), "net.down.weight": split(1, "model"),
    "net.*": replicated, "x": replicated,
}  # fmt: skip


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_and_sequence_parallel_blocks_agree_with_a_plain_one(
    sequence_parallel: bool,
) -> None:
    wf.random.seed(0)
    net, x = Block(16, 4, sequence_parallel), numbers(2, 8, 16)
    f = lambda net, x: wf.functional_call(net, dict(net.named_parameters()), x)  # noqa: E731
    parallel = partition(f, mesh_of(Costs(latency=1e-5), model=4), PLAN, replicated)
    assert_close(parallel(net, x), net(x))
    explanation = parallel.explain(net, x)
    moved = [each.collective for each in explanation.transfers]
    if sequence_parallel:  # both products end in a reduce-scatter; norms are gathered
        assert moved.count("reduce_scatter") == 2
        assert "all_reduce" not in moved
    else:
        assert moved == ["all_reduce"] * 2


def gpt_step(net: Any, optimizer: Any, tokens: wf.Tensor) -> wf.Tensor:
    """One step of training; [batch, time + 1] tokens."""
    logits = net(tokens[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def small_gpt() -> tuple[Any, Any]:
    wf.random.seed(0)
    config = wf.models.GPTConfig(vocabulary=16, width=16, layers=1, heads=2, context=8)
    net = wf.models.GPT(config)
    return net, wf.optim.AdamW(net.parameters(), lr=1e-2)


PLANS = {
    "data": (mesh_of(data=2), {"tokens": split(0, "data")}),
    "hybrid": (
        mesh_of(SLOW_WORK, data=2, model=2),
        {
            "tokens": split(0, "data"),
            "net.*.c_fc.*": split(0, "model"),
            "net.*.mlp.c_proj.weight": split(1, "model"),
            "net.wte.weight": split(0, "model"),
        },
    ),
    "zero": (
        mesh_of(data=4),
        {"tokens": split(0, "data"), "optimizer.state*": divided("data"), "net.*": divided("data")},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS if NIGHTLY else ["hybrid"])
def test_a_partitioned_training_step_makes_the_same_updates(name: str) -> None:
    mesh, plan = PLANS[name]
    tokens = wf.asarray(np.random.default_rng(0).integers(0, 16, (4, 9)))
    plain_net, plain_optimizer = small_gpt()
    net, optimizer = small_gpt()
    step = partition(gpt_step, mesh, plan)
    for _ in range(2):
        wanted = gpt_step(plain_net, plain_optimizer, tokens)
        assert_close(step(net, optimizer, tokens), wanted)
    for found, plain in zip(net.parameters(), plain_net.parameters(), strict=True):
        assert_close(found, plain, 2e-4)


@pytest.mark.slow
def test_divided_state_takes_a_share_of_the_memory_on_each_device() -> None:
    mesh, plan = PLANS["zero"]
    net, optimizer = small_gpt()
    tokens = wf.zeros((4, 9), dtype="int64")
    explanation = partition(gpt_step, mesh, plan).explain(net, optimizer, tokens)
    whole = sum(p.size for p in net.parameters()) * 3  # parameters and two moments
    local = sum(int(kind.size) for kind in explanation.graph.input_types if kind.dtype.is_inexact)
    assert local < whole / 4 * 1.1
    assert all(placed["data"] != REPLICATED for placed in explanation.inputs()[1:5])


# --- processes -----------------------------------------------------------------------------------


def test_processes_compute_their_parts_and_agree_with_lockstep() -> None:
    w, x = numbers(8, 8), numbers(4, 8, seed=1)
    f = lambda w, x: wf.softmax(wf.relu(x @ w) @ w.T, axis=-1)  # noqa: E731
    wanted = f(w, x)

    def run_rank(engine: Any) -> Any:
        with bound_groups({"model": engine}):
            parallel = partition(f, Mesh(model=2), [split(1), replicated], replicated)
            program = parallel.graph(w, x)
            return parallel(w, x), program.input_types[0].shape

    for found, shape in run_threads(run_rank, 2):
        assert_close(found, wanted)
        assert shape == (8, 4)


TAKES: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "grad": lambda f: wf.grad(lambda w, x: (f(w, x) ** 3).sum(), argnums=(0, 1)),
    "compiled grad": lambda f: wf.jit(wf.grad(lambda w, x: (f(w, x) ** 3).sum(), argnums=(0, 1))),
    "jvp": lambda f: lambda w, x: wf.jvp(f, (w, x), (x.T, wf.cos(x))),
    "second order": lambda f: wf.grad(
        lambda w, x: (wf.grad(lambda w: (f(w, x) ** 3).sum())(w) ** 2).sum(), argnums=(0, 1)
    ),
    "some of the results": lambda f: wf.grad(lambda w, x: f(w, x)[1:, :3].sum()),
}


@pytest.mark.parametrize("name", TAKES)
@pytest.mark.parametrize("out", [None, replicated, split(0)], ids=str)
def test_derivatives_of_a_partitioned_function_are_of_whole_values_on_every_process(
    name: str, out: Any
) -> None:
    """A device's program, differentiated by itself, would count each result once a device."""
    w, x = numbers(4, 8), numbers(8, 4, seed=1)
    f = lambda w, x: wf.tanh(x @ w) @ w.T  # noqa: E731
    wanted = wf.tree.leaves(TAKES[name](f)(w, x))

    def run_rank(engine: Any) -> Any:
        with bound_groups({"model": engine}):
            parallel = partition(f, Mesh(model=2), [split(1), replicated], out)
            return wf.tree.leaves(TAKES[name](parallel)(w, x))

    for found in run_threads(run_rank, 2):
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_backward_through_a_partitioned_function_gives_the_gradients_of_the_whole(
    is_compiled: bool,
) -> None:
    def gradients(f: Callable[..., Any]) -> list[np.ndarray]:
        w, x = numbers(4, 8), numbers(8, 4, seed=1)
        w.requires_grad_(True)
        x.requires_grad_(True)
        f(w, x).backward()
        return [w.grad.numpy(), x.grad.numpy()]

    def loss(w: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        return (wf.relu(x @ w) ** 2).mean()

    def run_rank(engine: Any) -> Any:
        with bound_groups({"data": engine}), wf.settings.changed(compiler=is_compiled):
            parallel = partition(loss, Mesh(data=2), [replicated, split(0)])
            found = gradients(parallel)
            (made,) = parallel._jit._compiled.values()
            assert bool(made._taped) == is_compiled  # the way back does not go forward again
            return found

    wanted = gradients(loss)
    for found in run_threads(run_rank, 2):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def small_network() -> tuple[Any, Any]:
    rows = iter(range(4))
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    for parameter in net.parameters():
        with wf.no_grad():
            parameter.copy_(numbers(*parameter.shape, seed=next(rows)))
    return net, wf.optim.Adam(net.parameters(), lr=1e-2)


def square_step(net: Any, optimizer: Any, x: wf.Tensor) -> wf.Tensor:
    loss = (net(x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def test_processes_keep_their_parts_of_the_state_between_steps() -> None:
    x = numbers(4, 4, seed=9)
    plain_net, plain_optimizer = small_network()
    losses = [square_step(plain_net, plain_optimizer, x).item() for _ in range(3)]
    plan = {"x": split(0), "net.*": divided("data"), "optimizer.state*": divided("data")}

    def run_rank(engine: Any) -> Any:
        net, optimizer = small_network()
        with bound_groups({"data": engine}):
            step = partition(square_step, Mesh(data=2), plan)
            step.scatter(net, optimizer, x)
            shapes = [parameter.shape for parameter in net.parameters()]
            found = [step(net, optimizer, x).item() for _ in range(3)]
            again = [parameter.shape for parameter in net.parameters()]
            step.gather(net, optimizer, x)
        return shapes, again, found, [each.detach().numpy() for each in net.parameters()]

    for shapes, again, found, parameters in run_threads(run_rank, 2, timeout=120.0):
        assert shapes == again == [(4, 4), (4,), (1, 8), (1,)]
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        for parameter, wanted in zip(parameters, plain_net.parameters(), strict=True):
            np.testing.assert_allclose(parameter, wanted.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_without_processes_all_parts_stay_together() -> None:
    net, optimizer = small_network()
    step = partition(square_step, Mesh(data=2), {"net.*": divided("data")})
    step.scatter(net, optimizer, numbers(4, 4))
    assert [parameter.shape for parameter in net.parameters()] == [(8, 4), (8,), (2, 8), (2,)]


def test_open_inputs_are_placed_as_their_readers_like_them() -> None:
    f = lambda x, w: shard(wf.relu(x @ w), (None, "model")).sum()  # noqa: E731
    explanation = partition(f, Mesh(model=2)).explain(wf.ones((64, 64)), wf.ones((64, 64)))
    assert explanation.inputs()[1]["model"] == Split(1)


SEARCH = """
import weft as wf
from weft.distributed import Mesh, partition
from weft.distributed import split
net = wf.nn.Sequential(wf.nn.Linear(8, 16), wf.nn.ReLU(), wf.nn.Linear(16, 8), wf.nn.LayerNorm(8))
optimizer = wf.optim.Adam(net.parameters(), lr=0.1)
def step(net, optimizer, x):
    loss = (net(x) ** 2).mean()
    optimizer.minimize(loss)
    return loss
divided = partition(step, Mesh(data=2, model=2), {"x": split(0, "data"), "net.0.*": split(0)})
print(divided.graph(net, optimizer, wf.ones((4, 8))).digest())
"""


@pytest.mark.slow
def test_every_process_finds_the_same_program() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", SEARCH],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


@pytest.mark.parametrize("index", [8, 100, -9])
@pytest.mark.parametrize("devices", [2, 4])
def test_an_index_outside_of_a_split_axis_is_out_of_bounds_on_every_device(
    index: int, devices: int
) -> None:
    mesh, table = Mesh(model=devices), wf.tensor(np.arange(16, dtype=np.float32).reshape(8, 2))
    read = partition(lambda x, i: wf.take(x, i, axis=0), mesh, [split(0), replicated])
    write = partition(
        lambda x, i: wf.index_add(x, 0, i, wf.ones((2, 2))), mesh, [split(0), replicated]
    )
    assert read.explain(table, wf.tensor([7, 0])).transfers
    assert read(table, wf.tensor([7, 0])).tolist() == [[14.0, 15.0], [0.0, 1.0]]
    for function in (read, write):
        with pytest.raises(wf.BoundsError, match="out of range"):
            function(table, wf.tensor([0, index]))
