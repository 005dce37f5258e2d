"""Laws that hold for every program, as functions of a program and its arguments.

`test_laws.py` checks them on programs drawn at random; `test_faults.py` checks that they break when
the library is broken on purpose. A program is a function of float64 tensors that returns a list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import weft as wf
from weft import Tensor
from weft.core import trees

Program = Callable[..., list[Tensor]]
Arguments = Sequence[Tensor]


def close(found: Any, expected: Any, what: str = "", limit: float = 1e-8) -> None:
    """Equal up to rounding, tree by tree."""
    ones, others = trees.leaves(found), trees.leaves(expected)
    assert len(ones) == len(others), what
    for one, other in zip(ones, others, strict=True):
        a, b = np.asarray(one), np.asarray(other)
        assert a.shape == b.shape, f"{what}: {a.shape} != {b.shape}"
        scale = 1.0 + float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
        np.testing.assert_allclose(a, b, rtol=limit, atol=limit * scale, err_msg=what)


def total(f: Program) -> Callable[..., Tensor]:
    """A scalar function that depends on each element of each result differently."""

    def loss(*xs: Tensor) -> Tensor:
        parts = [(out * weights(out)).sum() for out in f(*xs)]
        return sum(parts[1:], parts[0])

    return loss


def weights(like: Tensor) -> Tensor:
    """Numbers of no special kind, in the shape of a tensor."""
    return wf.reshape(wf.sin(1.0 + wf.arange(like.size, dtype=wf.float64)), like.shape)


def directions(xs: Arguments, phase: float = 0.5) -> tuple[Tensor, ...]:
    """A tangent for each argument."""
    return tuple(wf.cos(phase + 3.0 * weights(x)) for x in xs)


def positions(xs: Arguments) -> tuple[int, ...]:
    """`argnums` for all arguments."""
    return tuple(range(len(xs)))


# --- graphs ---


def law_a_traced_program_computes_the_same(f: Program, xs: Arguments) -> None:
    """interpret(trace(f))(x) = f(x)"""
    graph = wf.ir.trace(f, *xs)
    wf.ir.verify(graph)
    close(wf.ir.interpret(graph, *xs), f(*xs), str(graph))


def law_text_is_read_back(f: Program, xs: Arguments) -> None:
    """parse(print(g)) = g, and it computes the same"""
    graph = wf.ir.trace(f, *xs)
    again = wf.ir.parse(str(graph))
    assert again == graph
    assert again.digest() == graph.digest()
    close(wf.ir.interpret(again, *xs), wf.ir.interpret(graph, *xs))


def law_types_are_inferred(f: Program, xs: Arguments) -> None:
    """infer(f) = the types of f(x)"""
    assert wf.ir.infer(f, *xs) == [out.type for out in f(*xs)]


def law_different_programs_differ(f: Program, xs: Arguments) -> None:
    """A graph is not equal to that of the program with one more operation, or another constant."""
    graphs = [
        wf.ir.trace(f, *xs),
        wf.ir.trace(lambda *ys: [-out for out in f(*ys)], *xs),
        wf.ir.trace(lambda *ys: [out * 2.0 for out in f(*ys)], *xs),
        wf.ir.trace(lambda *ys: [out * 3.0 for out in f(*ys)], *xs),
        wf.ir.trace(lambda *ys: [wf.sum(out) for out in f(*ys)], *xs),
        wf.ir.trace(lambda *ys: [wf.flip(out.reshape(1, -1), axis=0) for out in f(*ys)], *xs),
        wf.ir.trace(lambda *ys: [wf.flip(out.reshape(1, -1), axis=1) for out in f(*ys)], *xs),
    ]
    assert len({graph.digest() for graph in graphs}) == len(graphs)
    assert len({str(graph) for graph in graphs}) == len(graphs)


# --- derivatives ---


def law_reverse_is_forward(f: Program, xs: Arguments) -> None:
    """⟨ct, J t⟩ = ⟨Jᵀ ct, t⟩, and both are what finite differences say"""
    ts = directions(xs)
    outs, pushed = wf.jvp(f, xs, ts)
    _, pullback = wf.vjp(f, *xs)
    cts = [weights(out) for out in outs]
    left = sum(float((ct * t).sum()) for ct, t in zip(cts, pushed, strict=True))
    right = sum(float((b * t).sum()) for b, t in zip(pullback(cts), ts, strict=True))
    close(np.array(right), np.array(left), "adjoint")


def law_jacobians_agree(f: Program, xs: Arguments) -> None:
    """The Jacobian row by row is the Jacobian column by column"""
    for number in positions(xs):
        back = wf.jacobian(f, argnums=number, mode="reverse")(*xs)
        front = wf.jacobian(f, argnums=number, mode="forward")(*xs)
        close(back, front, f"argument {number}")


def law_derivatives_are_finite_differences(f: Program, xs: Arguments) -> None:
    """Both modes are what central differences say"""
    wf.testing.check_grads(f, xs, order=1, tolerance=1e-4)


def law_jvp_is_linear(f: Program, xs: Arguments) -> None:
    """J (2 t − 3 u) = 2 J t − 3 J u"""
    ts, us = directions(xs, 0.5), directions(xs, 2.5)
    mixed = tuple(2.0 * t - 3.0 * u for t, u in zip(ts, us, strict=True))
    one, other = wf.jvp(f, xs, ts)[1], wf.jvp(f, xs, us)[1]
    expected = [2.0 * a - 3.0 * b for a, b in zip(one, other, strict=True)]
    close(wf.jvp(f, xs, mixed)[1], expected)


def law_linearize_is_jvp(f: Program, xs: Arguments) -> None:
    """linearize(f, x)(t) = jvp(f, x, t)"""
    ts = directions(xs)
    out, push = wf.linearize(f, *xs)
    expected = wf.jvp(f, xs, ts)
    close(out, expected[0], "value")
    close(push(*ts), expected[1], "tangent")


def law_backward_is_grad(f: Program, xs: Arguments) -> None:
    """`.backward()` leaves in the leaves what `grad` returns"""
    leaves = [wf.tensor(x, requires_grad=True) for x in xs]
    loss = total(f)(*leaves)
    if not loss.requires_grad:
        return
    loss.backward()
    expected = wf.grad(total(f), argnums=positions(xs))(*xs)
    found = [wf.zeros_like(x) if x.grad is None else x.grad for x in leaves]
    close(found, list(expected))


def law_hessian_is_symmetric(f: Program, xs: Arguments) -> None:
    """⟨u, H t⟩ = ⟨t, H u⟩, and H t is the same by jvp(grad) and by grad(jvp)"""
    loss = total(f)
    ts, us = directions(xs, 0.5), directions(xs, 2.5)
    gradient = wf.grad(loss, argnums=positions(xs))
    pushed = wf.jvp(gradient, xs, ts)[1]
    pulled = wf.grad(lambda *ys: wf.jvp(loss, ys, ts)[1], argnums=positions(xs))(*xs)
    close(pushed, pulled, "jvp(grad) = grad(jvp)", 1e-7)
    twice = wf.grad(
        lambda *ys: sum((g * t).sum() for g, t in zip(gradient(*ys), ts, strict=True)),
        argnums=positions(xs),
    )(*xs)
    close(twice, pulled, "grad(grad) = grad(jvp)", 1e-7)
    other = wf.jvp(gradient, xs, us)[1]
    left = sum(float((u * h).sum()) for u, h in zip(us, pushed, strict=True))
    right = sum(float((t * h).sum()) for t, h in zip(ts, other, strict=True))
    close(np.array(left), np.array(right), "symmetry", 1e-7)


def law_checkpoint_changes_nothing(f: Program, xs: Arguments) -> None:
    """grad(checkpoint(f)) = grad(f)"""
    expected = wf.value_and_grad(total(f), argnums=positions(xs))(*xs)
    found = wf.value_and_grad(total(wf.checkpoint(f)), argnums=positions(xs))(*xs)
    close(found, expected)


def law_the_graph_of_a_gradient_computes_it(f: Program, xs: Arguments) -> None:
    """interpret(trace(grad(f))) = grad(f)"""
    gradient = wf.grad(total(f), argnums=positions(xs))
    graph = gradient.graph(*xs)
    wf.ir.verify(graph)
    close(list(wf.ir.interpret(graph, *xs)), list(gradient(*xs)))
    assert wf.ir.parse(str(graph)) == graph


def law_differentiating_a_graph_is_differentiating_its_program(f: Program, xs: Arguments) -> None:
    """grad(interpret(trace(f))) = grad(f)"""
    graph = wf.ir.trace(f, *xs)

    def interpreted(*ys: Tensor) -> list[Tensor]:
        return list(wf.ir.interpret(graph, *ys))

    numbers = positions(xs)
    close(wf.grad(total(interpreted), numbers)(*xs), wf.grad(total(f), numbers)(*xs))


# --- batches ---


def batches(xs: Arguments) -> list[tuple[Tensor, ...]]:
    """Three variants of the arguments."""
    return [tuple(x * scale for x in xs) for scale in (1.0, 0.5, -0.75)]


def stacked(rows: Sequence[Sequence[Tensor]], axis: int = 0) -> list[Tensor]:
    """The tensors at each place, along a new axis."""
    return [wf.stack(list(column), axis=axis) for column in zip(*rows, strict=True)]


def law_vmap_is_a_loop(f: Program, xs: Arguments) -> None:
    """vmap(f) = the stacked results of f, for all arguments and for each alone"""
    rows = batches(xs)
    close(wf.vmap(f)(*stacked(rows)), stacked([f(*row) for row in rows]), "all")
    last = wf.vmap(f, in_axes=-1, out_axes=-1)(*stacked(rows, -1))
    close(last, stacked([f(*row) for row in rows], -1), "last axis")
    for place in positions(xs):
        axes = tuple(0 if i == place else None for i in positions(xs))
        given = [stacked(rows)[i] if i == place else x for i, x in enumerate(xs)]
        calls = [[row[i] if i == place else x for i, x in enumerate(xs)] for row in rows]
        found = wf.vmap(f, in_axes=axes)(*given)
        close(found, stacked([f(*call) for call in calls]), f"argument {place}")


def law_vmap_of_grad_is_a_loop_of_grads(f: Program, xs: Arguments) -> None:
    """vmap(grad(f)) = the stacked gradients"""
    gradient = wf.grad(total(f), argnums=positions(xs))
    rows = batches(xs)
    found = wf.vmap(gradient)(*stacked(rows))
    close(list(found), stacked([gradient(*row) for row in rows]))


def law_grad_of_vmap_is_vmap_of_grad(f: Program, xs: Arguments) -> None:
    """grad(Σ vmap(f)) = vmap(grad(f))"""
    numbers = positions(xs)
    given = stacked(batches(xs))
    one = wf.grad(lambda *ys: wf.vmap(total(f))(*ys).sum(), argnums=numbers)(*given)
    other = wf.vmap(wf.grad(total(f), argnums=numbers))(*given)
    close(one, other)


def law_vmap_of_jvp_is_jvp_of_vmap(f: Program, xs: Arguments) -> None:
    """vmap(jvp(f)) = jvp(vmap(f))"""
    given = tuple(stacked(batches(xs)))
    ts = directions(given)
    one = wf.vmap(lambda ys, us: wf.jvp(f, ys, us)[1])(given, ts)
    other = wf.jvp(wf.vmap(f), given, ts)[1]
    close(one, other)


def law_a_batched_program_is_traced(f: Program, xs: Arguments) -> None:
    """interpret(trace(vmap(f))) = vmap(f) = vmap(interpret(trace(f)))"""
    given = stacked(batches(xs))
    graph = wf.ir.trace(wf.vmap(f), *given)
    expected = wf.vmap(f)(*given)
    close(list(wf.ir.interpret(graph, *given)), expected)
    inner = wf.ir.trace(f, *xs)
    close(wf.vmap(lambda *ys: list(wf.ir.interpret(inner, *ys)))(*given), expected)


LAWS = [law for name, law in list(globals().items()) if name.startswith("law_")]
