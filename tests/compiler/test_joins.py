"""Joined values are made part by part, in the kernels that compute the parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.fusion.grouping import why_stored
from weft.compiler.lowering.groups import is_lowered
from weft.compiler.pipeline import optimize
from weft.compiler.plan.planning import plan_program
from weft.compiler.plan.verify import verify_plan
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.runtime.program import Program
from weft.compiler.targets.cpu.target import CPU, compile_program
from weft.core.dtypes import float32
from weft.ir import scalars
from weft.ir.scalars import Buffer

RNG = np.random.default_rng(5)


def checked(f: Callable[..., Any], *arrays: np.ndarray) -> Program:
    """The compiled program, after its results were compared with those of the reference."""
    tensors = [wf.tensor(array) for array in arrays]
    program = compile_program(wf.ir.trace(f, *[wf.spec(x.dtype, x.shape) for x in tensors]))
    found = program.run(list(arrays))
    with wf.settings.changed(compiler=False):
        wanted = f(*tensors)
    for got, want in zip(found, wanted, strict=True):
        # sums of 300 numbers that nearly cancel, with or without fused multiplications
        np.testing.assert_allclose(got, want.numpy(), rtol=2e-5, atol=1e-4)
    return program


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(32, 256), (7, 301), (1, 2000), (2000, 1), (513, 3)])
@pytest.mark.parametrize("axis", [0, 1])
def test_computed_parts_are_one_kernel(shape: tuple[int, int], axis: int) -> None:
    def f(a: wf.Tensor, b: wf.Tensor) -> tuple[wf.Tensor, ...]:
        p, q = wf.tanh(a) * b, wf.exp(-a) + b
        return wf.sort(wf.concatenate([p, q, p * q, a], axis=axis), axis=0), p

    program = checked(f, normal(*shape), normal(*shape))
    assert [call.name for call in program.plan.launches] == ["k0", "sort"]


def test_parts_of_different_sizes_change_one_value() -> None:
    def f(a: wf.Tensor, b: wf.Tensor) -> tuple[wf.Tensor, ...]:
        return (wf.concatenate([a, wf.sin(b), b[:0], a * 2], axis=0) @ wf.ones((100, 3)),)

    program = checked(f, normal(33, 100), normal(50, 100))
    packing = [] if host().masked else [False]  # three columns are no whole vectors
    assert [bool(call.updates) for call in program.plan.launches] == [False, True, *packing, False]


@pytest.mark.parametrize("count", [16, 17, 60])
def test_however_many_parts_there_are_none_asks_which_it_belongs_to(count: int) -> None:
    """As gradients that travel together: with a comparison for each part, time was quadratic."""
    arrays = [normal(3 + i % 5, 40) if i % 2 else normal(600 + i) for i in range(count)]

    def f(*parts: wf.Tensor) -> tuple[wf.Tensor, ...]:
        return (wf.concatenate([part.reshape(-1) for part in parts]),)

    assert len(checked(f, *arrays).plan.launches) == count


def test_what_reads_a_join_waits_for_all_its_parts() -> None:
    def f(a: wf.Tensor, b: wf.Tensor) -> tuple[wf.Tensor, ...]:
        joined = wf.concatenate([wf.exp(a), wf.sin(b), wf.cos(a)], axis=1)
        return wf.relu(joined - 0.5), joined, joined.sum(axis=1), wf.flip(joined, axis=1) * a[:, :1]

    checked(f, normal(40, 70), normal(40, 33))


def test_a_part_may_be_given_constant_or_twice() -> None:
    def f(a: wf.Tensor) -> tuple[wf.Tensor, ...]:
        ones = wf.ones((40, 5))
        joined = wf.concatenate([a, ones, a, wf.sigmoid(a)], axis=1)
        return joined, joined @ wf.ones((245, 2))

    checked(f, normal(40, 80))


def test_a_join_of_joins_in_a_loop() -> None:
    def f(h: wf.Tensor, xs: wf.Tensor) -> tuple[wf.Tensor, ...]:
        def step(h: wf.Tensor, x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
            inner = wf.concatenate([wf.tanh(h), x * h], axis=1)
            outer = wf.concatenate([inner, wf.exp(-inner), h], axis=1)
            return wf.tanh(outer @ weight), outer

        return wf.scan(step, h, xs)

    weight = wf.tensor(normal(320, 64) * 0.05)
    checked(f, normal(64, 64), normal(5, 64, 64))


def test_parts_of_many_sizes_with_one_program() -> None:
    f = wf.jit(lambda a, b: wf.sort(wf.concatenate([wf.exp(a), b], axis=0), axis=0))
    for n in (70, 80, 95):
        a, b = normal(n, 64), normal(3, 64)
        wanted = np.sort(np.concatenate([np.exp(a), b]), axis=0)
        np.testing.assert_allclose(f(wf.tensor(a), wf.tensor(b)).numpy(), wanted, rtol=1e-6)
    assert len(f.compilations) == 2


def test_explain_names_the_join() -> None:
    f = wf.jit(lambda a: wf.sort(wf.concatenate([wf.exp(a), a], axis=1), axis=1))
    kernel = f.explain(wf.ones((64, 64))).kernels[0]
    assert [node.primitive.name for node in kernel.nodes] == ["exp", "concatenate"]


def joined(h: wf.Tensor) -> wf.Tensor:
    return wf.concat([h, wf.flip(h, axis=0) * 2, h[:1]], axis=0)


@pytest.mark.parametrize("rows", [21, 22, 64, 300])
@pytest.mark.parametrize("reduced", ["mean", "sum", "max"])
def test_a_join_of_what_was_made_with_a_sum_over_its_rows(rows: int, reduced: str) -> None:
    def f(h: wf.Tensor) -> tuple[wf.Tensor, ...]:
        y = h * (1 + getattr(h, reduced)(axis=0))
        return joined(y), joined(joined(y)).sum(axis=0)

    checked(f, normal(rows, 64))


def test_sums_and_joins_in_turn() -> None:
    def f(h: wf.Tensor) -> tuple[wf.Tensor, ...]:
        for _ in range(3):
            h = joined(h - h.mean(axis=0))
        return h, h.sum(axis=0), h @ h[0]

    checked(f, RNG.standard_normal((80, 64)))


@pytest.mark.parametrize("count", [5, 64, 143])
def test_a_product_of_a_join_of_joins_with_itself(count: int) -> None:
    def f(a: wf.Tensor, rows: wf.Tensor) -> tuple[wf.Tensor, ...]:
        x = joined(joined(a[rows]))
        wide = 4 * count + 3
        z = wf.tanh(x @ x.T * 0.04)[: 4 * count].reshape(4, count, wide)
        return (wf.einsum("bij,bkj->bik", z, z),)

    checked(f, normal(68, 48), RNG.integers(0, 68, count))


def test_two_loops_over_the_rows_of_a_join() -> None:
    def f(a: wf.Tensor) -> tuple[wf.Tensor, ...]:
        x = joined(a)
        last, rows = wf.scan(lambda h, r: (wf.tanh(h * 0.5 + r), h + r), a[0] * 0, joined(x))
        other, more = wf.scan(lambda h, r: (wf.tanh(h * 0.5 - r), h * r), last, joined(rows)[::3])
        return last, rows, other, more

    checked(f, RNG.standard_normal((34, 521)))


def test_a_rolled_value_of_many_sizes() -> None:
    f = wf.jit(lambda x: wf.roll(x, 3, axis=0) * 2)
    for n in (34, 41, 7):
        x = normal(n, 5)
        np.testing.assert_array_equal(f(wf.tensor(x)).numpy(), np.roll(x, 3, axis=0) * 2)


@pytest.mark.parametrize(
    ("x", "y", "lead"),
    [((1, 2), (4, 3), 0), ((4, 2), (1, 3), 0), ((4, 2), (2, 4, 3), 1), ((0, 2), (2, 0, 3), 1)],
)
def test_neighbours_among_zeros_that_a_sum_spreads_are_not_joined(
    x: tuple[int, ...], y: tuple[int, ...], lead: int, rng: np.random.Generator
) -> None:
    def f(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        return wf.pad(x, [(0, 0), (0, 3)]) + wf.pad(y, [(0, 0)] * (1 + lead) + [(2, 0)])

    arguments = [wf.asarray(rng.normal(size=shape)) for shape in (x, y)]
    np.testing.assert_array_equal(wf.jit(f)(*arguments).numpy(), f(*arguments).numpy())


def test_a_part_that_uses_its_values_often_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths through an expression double with each step here; its nodes do not."""
    x = scalars.load(Buffer("x", float32), scalars.index("i"))
    for _ in range(12):
        x = scalars.multiply(x, scalars.add(x, x))
    made: list[Any] = []
    node = scalars.node
    monkeypatch.setattr(scalars, "node", lambda *args: made.append(args) or node(*args))
    guarded = scalars.guard_loads(x, scalars.less(scalars.index("i"), scalars.index("j")))
    assert len(scalars.nodes_in_order(guarded)) > 24
    assert len(made) < 60


def test_joins_within_joins_are_stored_before_what_is_written_doubles_too_often() -> None:
    def f(x: Any) -> Any:
        for _ in range(40):
            x = wf.flip(wf.roll(x, 1, axis=-1))
        return x

    x = wf.asarray(np.arange(12.0).reshape(3, 4))
    graph = optimize(wf.ir.trace(f, x), CPU)
    reasons = why_stored(graph, is_lowered, CPU.limits.fusion).values()
    assert any("joins within each other" in reason for reason in reasons)
    np.testing.assert_array_equal(wf.jit(f)(x).numpy(), f(x).numpy())


def test_the_first_launch_of_a_join_begins_it_wherever_rows_have_put_it() -> None:
    """One part is computed with a product by rows, and so after the other one."""

    def f(x: wf.Tensor, w: wf.Tensor, y: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        half = x / 2
        return wf.concat([x, y], axis=1), wf.softmax(half @ w)

    kinds = [wf.spec("float32", shape) for shape in (("n", 1), (1,), ("n", 1))]
    plan = plan_program(wf.ir.trace(f, *kinds), CPU)
    verify_plan(plan, {"n": 128})
    (join,) = [atom for atom in plan.graph.outputs if atom.type.shape[1:] == (2,)]
    writers = [launch for launch in plan.launches if join in launch.writes]
    assert [join in launch.updates for launch in writers] == [False, True]


def test_a_product_reads_all_parts_of_a_join_where_another_kernel_writes_one_of_them() -> None:
    """The first part is made beside the assignment; the second was fused with the product alone."""

    def f(x: wf.Tensor) -> list[wf.Tensor]:
        y = x.clone()
        y[..., 1:] = x[..., :-1]
        return [y, wf.roll(x, 1, axis=1) @ x.T]

    compiled = wf.jit(f)
    for rows, columns in ((2, 2), (5, 2), (3, 4), (2, 70), (70, 3), (1, 1)):
        x = wf.asarray(np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32))
        for found, wanted in zip(compiled(x), f(x), strict=True):
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 64])
@pytest.mark.parametrize("count", [1, 2, 5, 63, 64, 70])
def test_weighted_sums_over_a_stack_go_in_vectors_over_columns(count: int, columns: int) -> None:
    def mixture(weights: wf.Tensor, *experts: wf.Tensor) -> list[wf.Tensor]:
        stacked = wf.stack(experts, axis=1)
        return [(stacked * weights[:, :, None]).sum(axis=1), (stacked**2).max(axis=1)]

    experts = [normal(7, columns) for _ in range(count)]
    checked(mixture, normal(7, count), *experts)


def test_few_values_that_lie_as_rows_do_are_reduced_over_rows() -> None:
    def kernel_text(count: int) -> str:
        def mixture(weights: wf.Tensor, *experts: wf.Tensor) -> wf.Tensor:
            return (wf.stack(experts, axis=1) * weights[:, :, None]).sum(axis=1)

        kinds = [wf.spec("float32", (8, count)), *[wf.spec("float32", (8, 32))] * count]
        plan = plan_program(wf.ir.trace(mixture, *kinds), CPU)
        return "\n".join(str(lowered.kernel) for lowered in plan.lowered)

    assert "vector j < 32\n      accumulate k < 4" in kernel_text(4)
    # Rows that lie far apart stay as they are.
    scaled = wf.ir.trace(lambda x, s: (x * s[:, None]).sum(axis=1), wf.spec("float32", (8, 12)),
                         wf.spec("float32", (8,)))  # fmt: skip
    (lowered,) = plan_program(scaled, CPU).lowered
    assert "vector i" not in str(lowered.kernel)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_reductions_of_few_neighbours_agree(count: int, dtype: str) -> None:
    def reduced(x: wf.Tensor, y: wf.Tensor) -> list[wf.Tensor]:
        return [
            (x * y).sum(axis=-1),
            x.max(axis=-1),
            (x > y).any(axis=-1),
            (x + y).reshape(7, -1, 2, 3, count).sum(axis=(2, 4)),
            x.sum(axis=(1, 2)),
        ]

    given = [(normal(7, 30, count) * 9).astype(dtype) for _ in range(2)]
    checked(reduced, *given)


def test_reductions_of_few_neighbours_go_in_vectors_over_rows() -> None:
    def kernel_text(f: Callable[[wf.Tensor], wf.Tensor], *shape: int) -> str:
        (lowered,) = plan_program(wf.ir.trace(f, wf.spec("float32", shape)), CPU).lowered
        return str(lowered.kernel)

    assert "vector i < 96\n    accumulate j < 2" in kernel_text(lambda x: x.max(axis=-1), 96, 2)
    pooled = kernel_text(lambda x: x.reshape(4, 2, 16, 2).sum(axis=(1, 3)), 8, 32)
    assert "vector j < 16\n      accumulate k < 2\n        accumulate l < 2" in pooled


def test_the_gradient_of_images_repeated_by_whole_numbers_adds_without_places() -> None:
    def names(size: int) -> set[str]:
        def back(x: wf.Tensor, g: wf.Tensor) -> wf.Tensor:
            return wf.vjp(lambda x: wf.interpolate(x, size=size), x)[1](g)

        kinds = wf.spec("float32", (2, 3, 4, 4)), wf.spec("float32", (2, 3, size, size))
        return {node.primitive.name for node in wf.ir.trace(back, *kinds).nodes}

    assert "scatter_add" in names(10)
    assert "scatter_add" not in names(12)
    image, cotangent = normal(2, 3, 4, 4), normal(2, 3, 12, 12)
    (found,) = wf.vjp(lambda x: wf.interpolate(x, scale_factor=3), wf.tensor(image))[1](
        wf.tensor(cotangent)
    )
    np.testing.assert_allclose(
        found.numpy(), cotangent.reshape(2, 3, 4, 3, 4, 3).sum(axis=(3, 5)), rtol=1e-5, atol=1e-5
    )
