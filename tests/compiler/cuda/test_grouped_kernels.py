"""Launches that are one: the same bits as one by one, in as few launches as parameters allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.assembling import needs_ptxas, spilled_bytes
from tests.compiler.cuda.emulated import run_emulated, run_text_kernel
from tests.compiler.cuda.host_card import HostCard
from tests.compiler.cuda.sample_kernels import program_of

import weft as wf
from weft.compiler.plan.launch import Kind
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda import grouped_kernels, schedule
from weft.compiler.targets.cuda.device_text import TextKernel
from weft.compiler.targets.cuda.grouped_kernels import (
    Group,
    GroupedLaunch,
    join_launches,
    layout_in_group,
)
from weft.compiler.targets.cuda.nvptx import text_to_ptx
from weft.compiler.targets.cuda.target import CUDA
from weft.core.dtypes import INDEX, DType, bfloat16, float32
from weft.ir.loops import For, Kernel, Let, Store
from weft.ir.scalars import Buffer, cast, const, index, local, size

Array = np.ndarray[Any, Any]


def update_kernel(dtype: DType = float32) -> Kernel:
    """w is changed by a gradient of some dtype and a number that all updates share."""
    w, g, r = Buffer("w", float32, "both"), Buffer("g", dtype), Buffer("r", float32)
    i, x = index("i"), local("x", float32)
    step = cast(g[i], float32) if dtype is not float32 else g[i]
    body = (Let(x, w[i] - r[const(0, INDEX)] * step), Store(w, i, x * x))
    return Kernel("update", (w, g, r), ("n",), (For(i, size("n"), body, "parallel vector"),))


class Launches:
    """Launches on arrays of the host, and the cells in which a group finds their addresses."""

    def __init__(self) -> None:
        self.cells: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        self.launches: list[GroupedLaunch] = []
        self.given: list[tuple[Kernel, list[Array], list[int]]] = []

    def add(self, kernel: Kernel, arrays: list[Array], *sizes: int) -> None:
        plan = layout_in_group(kernel)
        assert plan is not None
        blocks = plan.blocks(dict(zip(plan.kernel.sizes, sizes, strict=True)))
        cells = tuple([self._cell(self.cells, array.ctypes.data) for array in arrays])
        numbers = tuple([self._cell(self.numbers, number) for number in sizes])
        self.launches.append(GroupedLaunch(plan, cells, numbers, blocks))
        self.given.append((kernel, arrays, list(sizes)))

    def _cell(self, cells: dict[int, int], word: int) -> int:
        return cells.setdefault(word, len(self.cells) + len(self.numbers))

    def run(self) -> list[Group]:
        """Run them as groups on the emulated card."""
        words = {cell: word for cells in (self.cells, self.numbers) for word, cell in cells.items()}
        groups = join_launches(self.launches)
        for group in groups:
            given = [*[words[cell] for cell in group.cells], *group.starts]
            text = TextKernel(group.kernel.name, group.kernel.text(), group.threads, len(given))
            run_text_kernel(text, group.blocks, given)
        return groups

    def expected(self) -> list[list[Array]]:
        """What each gives by itself."""
        return [run_emulated(kernel, arrays, sizes) for kernel, arrays, sizes in self.given]

    def check(self) -> list[Group]:
        wanted = self.expected()
        groups = self.run()
        for (kernel, arrays, _), results in zip(self.given, wanted, strict=True):
            for one, other in zip(arrays, results, strict=True):
                assert one.tobytes() == other.tobytes(), kernel
        return groups


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread of a block is one of the CPU's: the fewer the better."""
    for name in ("BLOCK", "ROW_BLOCK"):
        monkeypatch.setattr(schedule, name, 32)


def numbers(count: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def narrow(array: Array) -> Array:
    return array.astype(bfloat16.numpy)


# --- kernels -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
def test_updates_of_all_sizes_are_one_launch_with_the_bits_of_many() -> None:
    launches, rate = Launches(), numbers(1, 0)
    for number, count in enumerate((1, 127, 128, 129, 3, 256, 5)):  # 32 threads take 128 elements
        launches.add(update_kernel(), [numbers(count, number), numbers(count, 9), rate], count)
    (group,) = launches.check()
    assert len(group.kernel.kernels) == 1
    assert group.blocks == 1 + 1 + 1 + 2 + 1 + 2 + 1
    assert group.kernel.kinds.count("p") == 2 * 7 + 1, "what all of them read is given once"


@pytest.mark.usefixtures("small_blocks")
def test_kernels_of_other_bodies_and_dtypes_join_those_of_as_many_threads() -> None:
    launches, rate = Launches(), numbers(1, 0)
    launches.add(update_kernel(), [numbers(200, 1), numbers(200, 2), rate], 200)
    launches.add(update_kernel(bfloat16), [numbers(77, 3), narrow(numbers(77, 4)), rate], 77)
    (rows,) = program_of(lambda x: wf.softmax(x, axis=-1), [wf.spec("float32", (3, 40))]).lowered
    launches.add(rows.kernel, [numbers(120, 5), numbers(120, 6)])
    launches.add(update_kernel(bfloat16), [numbers(9, 8), narrow(numbers(9, 9)), rate], 9)
    (group,) = launches.check()
    assert len(group.kernel.kernels) == 3


@pytest.mark.usefixtures("small_blocks")
def test_one_tensor_in_two_launches_is_one_parameter() -> None:
    launches, rate, gradient = Launches(), numbers(1, 0), numbers(130, 1)
    for seed in (2, 3):
        launches.add(update_kernel(), [numbers(130, seed), gradient, rate], 130)
    (group,) = launches.check()
    assert group.kernel.kinds == "pppip"


@pytest.mark.usefixtures("small_blocks")
def test_a_group_of_one_and_members_without_elements_do_no_harm() -> None:
    launches, rate = Launches(), numbers(1, 0)
    launches.add(update_kernel(), [numbers(7, 2), numbers(7, 1), rate], 7)
    launches.check()
    launches = Launches()
    for count in (0, 7, 0, 0, 9, 0):
        launches.add(update_kernel(), [numbers(max(count, 1), 2), numbers(9, 1), rate], count)
    launches.check()


def test_groups_end_where_parameters_would_be_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [numbers(4, seed) for seed in range(21)]
    launches = Launches()
    for number in range(10):
        launches.add(update_kernel(), [arrays[2 * number], arrays[2 * number + 1], arrays[20]], 4)
    assert [len(group.kernel.members) for group in join_launches(launches.launches)] == [10]
    # three words for each, and two that all share
    for words, expected in ((32, [10]), (31, [9, 1]), (14, [4, 4, 2]), (1, [1] * 10)):
        monkeypatch.setattr(grouped_kernels, "MOST_WORDS", words)
        groups = join_launches(launches.launches)
        assert [len(group.kernel.members) for group in groups] == expected


def test_groups_hold_a_few_different_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_kernels, "MOST_KERNELS", 1)
    launches, rate = Launches(), numbers(1, 0)
    for dtype in (float32, bfloat16, bfloat16):
        gradient = numbers(8, 1).astype(dtype.numpy)
        launches.add(update_kernel(dtype), [numbers(8, 2), gradient, rate], 8)
    groups = join_launches(launches.launches)
    assert [len(group.kernel.members) for group in groups] == [1, 2]


@needs_ptxas
def test_a_group_of_as_many_launches_as_fit_is_assembled_without_spills() -> None:
    launches, rate = Launches(), numbers(1, 0)
    kept = [numbers(8, seed) for seed in range(400)]
    for number in range(200):
        launches.add(update_kernel(), [kept[2 * number], kept[2 * number + 1], rate], 8)
    group, *_ = join_launches(launches.launches)
    assert len(group.kernel.members) > 150
    assert spilled_bytes(text_to_ptx(group.kernel.text())) == 0


# --- programs ------------------------------------------------------------------------------------

SHAPES = [(7, 13), (13,), (1,), (0, 4), (3, 5, 2), (100, 33), (1,)]


def adam(dtypes: list[str], device: str = "cpu") -> tuple[Any, Any]:
    """Parameters of all shapes, and their optimiser."""
    generator = np.random.default_rng(1)
    arrays = [generator.normal(size=shape).astype(np.float32) for shape in SHAPES]
    parameters = [
        wf.nn.Parameter(wf.asarray(array).astype(dtype).to(device))
        for array, dtype in zip(arrays, dtypes, strict=True)
    ]
    return parameters, wf.optim.AdamW(parameters, lr=0.05)


def test_updates_of_a_model_are_one_launch_of_a_plan() -> None:
    parameters, optimizer = adam(["float32"] * len(SHAPES))

    @wf.jit
    def step() -> wf.Tensor:
        optimizer.zero_grad()
        loss = sum([(p * p + p).sum() for p in parameters], start=wf.tensor(0.0))
        loss.backward()
        optimizer.step()
        return loss

    plan = plan_program(step.graph(), CUDA)
    *_, last = plan.launches
    assert last.kind is Kind.GROUPED
    inputs = set(plan.graph.inputs)
    updates = [
        part
        for launch in plan.launches
        for part in (launch.members or (launch,))
        if any(operand in inputs and operand.type.shape > (1,) for _, operand in part.in_place)
    ]
    assert len(updates) == 4, "one has no element, and those of one element are one kernel"
    assert set(updates) <= set(last.members)


def steps(dtypes: list[str], device: str) -> list[Any]:
    """Losses and parameters after some steps, in which one parameter is used twice."""
    parameters, optimizer = adam(dtypes, device)
    x = wf.asarray(np.full(13, 3.0, np.float32)).to(device)

    @wf.jit
    def step(x: wf.Tensor) -> wf.Tensor:
        optimizer.zero_grad()
        terms = [(p.astype("float32") ** 2).sum() for p in parameters]
        loss = sum(terms, start=(parameters[1].astype("float32") * x).sum())
        loss.backward()
        optimizer.step()
        return loss

    losses = [float(step(x)) for _ in range(3)]
    return [losses, *[p.astype("float32").tolist() for p in parameters]]


def test_steps_of_mixed_dtypes_on_a_card_are_those_of_the_processor(card: HostCard) -> None:
    dtypes = ["float32", "bfloat16", "float32", "float32", "float16", "bfloat16", "float64"]
    wanted = steps(dtypes, "cpu")
    before = card.launched
    found = steps(dtypes, "cuda")
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            np.asarray(one, np.float64).ravel(), np.asarray(other, np.float64).ravel(), rtol=2e-2
        )
    assert card.launched > before
