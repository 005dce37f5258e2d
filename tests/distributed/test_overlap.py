"""Overlap: collectives that run beside computation, with the bits of those that are waited for."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.jobs import launch

import weft as wf
from weft.compiler.plan.launch import Kind, Launch
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cpu import collectives
from weft.compiler.targets.cpu.communication_thread import make_queue
from weft.compiler.targets.cpu.target import CPU
from weft.ir.dispatch import apply
from weft.ir.primitive import PRIMITIVES

LARGE = wf.spec("float32", (1 << 15,))
SQUARE = wf.spec("float32", (512, 512))


def _sum(x: wf.Tensor, axis: str = "data") -> wf.Tensor:
    total: wf.Tensor = apply(PRIMITIVES["all_reduce_sum"], x, mesh_axis=axis, size=2, stacked=False)
    return total


def _launches(f: Any, *kinds: Any) -> list[Launch]:
    return list(plan_program(wf.ir.trace(f, *kinds), CPU).launches)


def _names(f: Any, *kinds: Any) -> list[str]:
    return [
        each.name.removeprefix("all_reduce_sum").strip() or "whole"
        for each in _launches(f, *kinds)
        if each.kind is Kind.COLLECTIVE
    ]


def test_a_sum_begins_where_its_operand_is_there_and_is_waited_for_where_it_is_read() -> None:
    def step(x: wf.Tensor, y: wf.Tensor) -> tuple[wf.Tensor, ...]:
        return _sum(x * 2) + 1, y @ y @ y

    names = [launch.name for launch in _launches(step, LARGE, SQUARE)]
    begins, waits = names.index("all_reduce_sum begin"), names.index("all_reduce_sum wait")
    assert any("dot" in name for name in names[begins:waits])
    assert begins <= 2


def test_gradients_of_the_last_layers_are_under_way_while_those_before_are_computed() -> None:
    def step(x: wf.Tensor, weights: list[wf.Tensor]) -> list[wf.Tensor]:
        def loss(weights: list[wf.Tensor]) -> wf.Tensor:
            hidden = x
            for weight in weights:
                hidden = wf.tanh(hidden @ weight)
            return hidden.sum()

        pairs = list(zip(weights, wf.grad(loss)(weights), strict=True))
        return [weight - _sum(gradient) for weight, gradient in reversed(pairs)]

    kind = wf.spec("float32", (512, 512))
    launches = _launches(lambda x, *weights: step(x, list(weights)), kind, *[kind] * 4)
    begins = [n for n, each in enumerate(launches) if each.name.endswith("begin")]
    products = [n for n, each in enumerate(launches) if each.kind is Kind.PRODUCT]
    assert len(begins) == 3
    assert [sum(n > begin for n in products) for begin in begins] == [3, 2, 1]


def test_what_nothing_stands_behind_stays_whole() -> None:
    assert _names(lambda x: _sum(x) + 1, LARGE) == ["whole"]
    assert _names(lambda x, y: (_sum(x), _sum(y)), LARGE, LARGE) == ["whole", "whole"]


def test_small_sums_begin_no_overlap() -> None:
    small = wf.spec("float32", (8,))
    assert _names(lambda x, y: (_sum(x) + 1, y @ y), small, SQUARE) == ["whole"]


def test_only_sums_over_one_axis_are_under_way_at_once() -> None:
    def step(x: wf.Tensor, y: wf.Tensor) -> tuple[wf.Tensor, ...]:
        return _sum(x) + 1, _sum(x * 2, "model") + 1, y @ y

    under_way = 0
    for launch_ in _launches(step, LARGE, SQUARE):
        if launch_.name.endswith("begin"):
            under_way += 1
        elif launch_.name.endswith("wait"):
            under_way -= 1
        assert under_way <= 1


def test_collectives_keep_their_order_and_each_that_begins_is_waited_for() -> None:
    def step(x: wf.Tensor, y: wf.Tensor) -> tuple[wf.Tensor, ...]:
        first = _sum(x)
        second = _sum(x + 3)
        return first.sum() + second.sum(), _sum(y @ y), y @ y @ y

    names = _names(step, LARGE, SQUARE)
    assert names.count("begin") == names.count("wait") == 3
    begun = 0
    for name in names:
        begun += {"begin": 1, "wait": -1, "whole": 0}[name]
        assert begun >= 0
        assert not (name == "whole" and begun), "a whole one runs beside those under way"


def test_parameters_that_are_split_are_gathered_one_module_ahead_and_no_further() -> None:
    width, layers = 256, 8

    def peak(overlap: bool) -> int:
        rows = [
            layer for _ in range(layers) for layer in (wf.nn.Linear(width, width), wf.nn.Tanh())
        ]
        net = wf.nn.Sequential(*rows)
        optimizer = wf.optim.SGD(net.parameters(), lr=0.1)
        called = wf.distributed.shard_model(net, optimizer)
        wf.distributed.data_parallel(optimizer, zero=3)

        def step(net: Any, optimizer: Any, x: wf.Tensor) -> wf.Tensor:
            loss = (net(x) ** 2).mean()
            optimizer.minimize(loss)
            return loss

        with wf.settings.changed(overlap=overlap):
            plan = wf.jit(step).explain(called, optimizer, wf.ones((8, width))).plan
        names = [launch_.name for launch_ in plan.launches]
        assert overlap == ("all_gather begin" in names)
        return int(plan.planner.plan_for({}).peak)

    module = 4 * width * width
    whole, beside = (
        wf.distributed.run_threads(lambda overlap=overlap: peak(overlap), 2)[0]
        for overlap in (False, True)
    )
    assert whole < beside <= whole + 2 * module
    assert beside < layers * module


def test_overlap_can_be_turned_off() -> None:
    with wf.settings.changed(overlap=False):
        names = _names(lambda x, y: (_sum(x) + 1, y @ y), LARGE, SQUARE)
    assert names == ["whole"]


JOB = """
import sys
import numpy as np
import weft as wf
from weft import distributed
from weft.distributed import sharing

distributed.init(timeout=60)
sharing.BUCKET = 1 << 18
rank, size = distributed.rank(), distributed.world_size()
generator = np.random.default_rng(rank)
x = wf.tensor(generator.normal(size=(32, 160)).astype(np.float32))
table = wf.tensor(np.ones((9, 160), np.float32))

def train(overlap, zero, indices, clip_norm=None):
    with wf.settings.changed(overlap=overlap):
        wf.random.seed(0)
        layers = [layer for _ in range(5) for layer in (wf.nn.Linear(160, 160), wf.nn.Tanh())]
        net = wf.nn.Sequential(*layers)
        optimizer = distributed.data_parallel(
            wf.optim.AdamW(net.parameters(), lr=0.01, clip_norm=clip_norm), zero=zero)

        def step(net, optimizer, x, indices):
            loss = ((net(x) - table[indices]) ** 2).mean()
            optimizer.minimize(loss)
            return loss

        compiled = wf.jit(step)
        for _ in range(3):
            compiled(net, optimizer, x, indices)
        names = [each.name for each in compiled.explain(net, optimizer, x, indices).plan.launches]
        assert overlap == any(name.endswith("begin") for name in names), names
        return [p.detach().numpy().copy() for p in net.parameters()]

indices = wf.tensor(np.arange(32) % 9)
for zero, clip_norm in ((0, None), (1, 0.1), (2, None)):
    found = [train(overlap, zero, indices, clip_norm) for overlap in (True, False)]
    for one, other in zip(*found):
        assert np.array_equal(one, other), "bits differ"
print("same bits", flush=True)

@wf.jit
def checked(x, y, indices):
    total = distributed.all_reduce(x, "data")
    return total + 1, (y @ y)[indices]

large, square = wf.ones((1 << 18,)), wf.ones((160, 160))
for turn in range(3):
    try:
        checked(large, square, wf.tensor([0, 999 if rank == 1 else 0]))
        failed = False
    except IndexError:
        failed = True
    assert failed == (rank == 1), (rank, failed)
    assert distributed.all_reduce(wf.ones(2)).tolist() == [size, size]
print("went on", flush=True)

other = wf.ones((1 << 18,)) if rank else wf.ones((1 << 17,))
try:
    checked(other, square, wf.tensor([0]))
except wf.ProcessError as error:
    print("named:", error.problem, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [pytest.param(2, marks=pytest.mark.nightly), 3])
def test_bits_are_the_same_and_failures_beside_sums_are_told(
    tmp_path: Path, processes: int
) -> None:
    job = launch(tmp_path, JOB, "--threads", "1", processes=processes)
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("same bits") == processes
    assert job.stdout.count("went on") == processes
    assert job.stdout.count("named: processes disagree on what to do: rank") == processes


def test_a_queue_outlives_the_interpreters_arrays_as_its_thread_does() -> None:
    """Freed, its memory could become a lock of the interpreter, which wakes the thread."""
    addresses = collectives._addresses()
    made = make_queue(addresses["serve"], addresses["drain"])
    if made is None:
        pytest.skip("no semaphores here")
    queue, empty = made
    empty()
    seen = weakref.ref(queue)
    del made, queue, empty
    gc.collect()
    assert seen() is not None
