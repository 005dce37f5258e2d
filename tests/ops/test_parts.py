"""Parts of tensors: a write that would not reach the whole is refused, in every mode."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
from tests.quiet import wait_for_quiet

import weft as wf

Part = Callable[[wf.Tensor], wf.Tensor]
Write = Callable[[wf.Tensor], object]

PARTS: dict[str, Part] = {
    "index": lambda x: x[0],
    "slice": lambda x: x[1:],
    "column": lambda x: x[:, 0],
    "ellipsis": lambda x: x[...],
    "new axis": lambda x: x[None],
    "opposite": lambda x: x[::-1],
    "part of a part": lambda x: x[0:1][0],
    "T": lambda x: x.T,
    "row of T": lambda x: x.T[0],
    "mT": lambda x: x.mT,
    "transpose": lambda x: x.transpose(1, 0),
    "permute_dims": lambda x: wf.permute_dims(x, (0, 1)),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "moveaxis": lambda x: wf.moveaxis(x, 0, 0),
    "reshape": lambda x: x.reshape(-1),
    "same shape": lambda x: x.reshape(x.shape),
    "ravel": lambda x: x.ravel(),
    "flatten": lambda x: x.flatten(),
    "squeeze": lambda x: x[None].squeeze(),
    "expand_dims": lambda x: x.expand_dims(0),
    "flip": lambda x: wf.flip(x, axis=0),
    "row of a loop": lambda x: next(iter(x)),
    "unpacked": lambda x: (lambda first, *rest: first)(*x),
    "split": lambda x: x.split(2, axis=0)[0],
    "chunk": lambda x: x.chunk(2)[1],
    "narrow": lambda x: x.narrow(0, 0, 1),
    "unstack": lambda x: wf.unstack(x)[0],
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(0, 1),
    "real": lambda x: x.real,
    "detach": lambda x: x.detach(),
}

WRITES: dict[str, Write] = {
    "zero_": lambda part: part.zero_(),
    "fill_": lambda part: part.fill_(2.0),
    "copy_": lambda part: part.copy_(wf.tensor(2.0)),
    "set_": lambda part: part.set_(wf.tensor(2.0)),
    "add_": lambda part: part.add_(2.0),
    "sub_": lambda part: part.sub_(2.0),
    "mul_": lambda part: part.mul_(2.0),
    "div_": lambda part: part.div_(2.0),
    "pow_": lambda part: part.pow_(2.0),
    "neg_": lambda part: part.neg_(),
    "clip_": lambda part: part.clip_(2.0, 3.0),
    "clamp_": lambda part: part.clamp_(2.0, 3.0),
    "lerp_": lambda part: part.lerp_(wf.tensor(2.0), 0.5),
    "masked_fill_": lambda part: part.masked_fill_(wf.tensor(True), 2.0),
    "__setitem__": lambda part: part.__setitem__(0, 2.0),
    "init": lambda part: wf.nn.init.constant_(part, 2.0),
}

MODES: dict[str, Callable[[Write], Write]] = {
    "eager": lambda f: f,
    "jit": wf.jit,
    "vmap": lambda f: lambda x: wf.vmap(f)(x[None]),
    "grad": lambda f: lambda x: wf.vjp(lambda y: (f(y), y)[1], x),
    "jvp": lambda f: lambda x: wf.jvp(lambda y: (f(y), y)[1], (x,), (x,)),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("part", PARTS)
def test_a_write_to_a_part_is_refused_while_its_whole_is_alive(part: str, write: str) -> None:
    x = wf.ones((2, 3))
    with pytest.raises(wf.ArgumentError) as caught:
        WRITES[write](PARTS[part](x))
    assert caught.value.problem == "a part of another tensor was written to"
    assert "whole: f32[" in caught.value.got
    assert x.tolist() == wf.ones((2, 3)).tolist()


@pytest.mark.parametrize("part", PARTS)
def test_the_same_holds_where_operations_are_recorded(part: str) -> None:
    x = wf.ones((2, 3), dtype="float64").requires_grad_()
    with wf.no_grad(), pytest.raises(wf.ArgumentError, match="a part of another tensor"):
        PARTS[part](x).zero_()
    with pytest.raises(wf.ArgumentError, match="a part of another tensor"):
        PARTS[part](x).zero_()


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("mode", MODES)
def test_the_same_line_is_refused_in_every_mode(mode: str, write: str) -> None:
    def f(x: wf.Tensor) -> None:
        WRITES[write](x[0])

    with pytest.raises(wf.ArgumentError, match="a part of another tensor"):
        MODES[mode](f)(wf.ones((2, 3)))


def test_a_part_is_refused_by_a_compiled_function_that_wrote_to_whole_tensors_before() -> None:
    step = wf.jit(lambda x: x.mul_(2.0).sum())
    for _ in range(8):
        assert step(wf.ones(3)).item() == 6.0
    x = wf.ones((2, 3))
    for part in (x[0], x.reshape(-1)[:3], x.detach()[1]):
        with pytest.raises(wf.ArgumentError, match="a part of another tensor"):
            step(part)
    assert x.tolist() == [[1.0] * 3] * 2
    assert step(wf.ones((2, 3))[0]).item() == step(x[0].clone()).item() == 6.0


@wf.script
def scripted(x: wf.Tensor) -> wf.Tensor:
    if x.sum() > 0:
        x[0].zero_()
    return x


def test_a_scripted_function_refuses_it_too() -> None:
    for f in (scripted, wf.jit(scripted)):
        with pytest.raises(wf.ArgumentError, match="a part of another tensor"):
            f(wf.ones((2, 3)))


def test_every_method_that_writes_is_among_the_writes() -> None:
    named = {name for name in dir(wf.Tensor) if name.endswith("_") and not name.startswith("_")}
    assert named - {"requires_grad_"} <= set(WRITES)


def test_parts_of_parameters_are_refused() -> None:
    lin = wf.nn.Linear(3, 2)
    with wf.no_grad(), pytest.raises(wf.ArgumentError) as caught:
        lin.weight[0].fill_(0.0)
    assert caught.value.fix.startswith("x[0] = value, or part = x[0].clone()")
    with pytest.raises(wf.ArgumentError):
        wf.nn.init.zeros_(lin.weight[0])
    with wf.no_grad(), pytest.raises(wf.ArgumentError):
        lin.state_dict()["weight"].zero_()


FIXES: dict[str, tuple[Write, str]] = {
    "x[0] = 0": (lambda x: x[0].zero_(), "x[0] = 0, or"),
    "x[0, 1] = value": (lambda x: x[0].__setitem__(1, 5.0), "x[0, 1] = value, or"),
    "x[:, 0] = values": (lambda x: x[:, 0].copy_(wf.ones(2)), "x[:, 0] = values, or"),
    "a slice of it": (lambda x: x[::2, 1:].zero_(), "x[::2, 1:] = 0, or"),
    "two steps": (
        lambda x: x[:, 0].__setitem__(1, 5.0),
        "part = x[:, 0].clone(), write to part, then x[:, 0] = part",
    ),
    "T": (lambda x: x.T.__setitem__(0, 7.0), "then x.copy_(part.T)"),
    "reshape": (lambda x: x.reshape(-1).zero_(), "then x.copy_(part.reshape(x.shape))"),
    "detach": (lambda x: x.detach().zero_(), "with wf.no_grad(): x.zero_()"),
    "diagonal": (lambda x: x.diagonal().zero_(), "part = wf.diagonal(x).clone()"),
    "far": (lambda x: x.T[0].zero_(), "write to the whole by its own index"),
}


@pytest.mark.parametrize("name", FIXES)
def test_the_fix_says_how_to_write_to_the_whole(name: str) -> None:
    write, fix = FIXES[name]
    x = wf.ones((2, 3))
    with pytest.raises(wf.ArgumentError) as caught:
        write(x)
    assert fix in caught.value.fix


def fresh() -> wf.Tensor:
    y = wf.arange(6.0).reshape(2, 3)
    y[0, 0] = 5.0
    return y


def renamed(x: Any = None) -> wf.Tensor:
    h = wf.ones((2, 3)) * 2.0
    h = h.T
    h = h[1:]
    h[0] = 5.0
    return h


def augmented(x: Any = None) -> wf.Tensor:
    whole = wf.ones((2, 3))
    y = whole[0]
    y += 1
    y *= 2
    whole[1] += y
    return whole


def gathered(x: Any = None) -> wf.Tensor:
    whole = wf.ones((2, 3))
    y = whole[[0, 1]]
    y[0] = 5.0
    return whole + y


def cloned(x: Any = None) -> wf.Tensor:
    whole = wf.ones((2, 3))
    y = whole[0].clone()
    y[1] = 5.0
    z = wf.reshape(whole, (3, 2), copy=True)
    z.zero_()
    return whole + y


@pytest.mark.parametrize("f", [fresh, renamed, augmented, gathered, cloned])
def test_tensors_of_their_own_are_written_to_in_every_mode(f: Callable[[], wf.Tensor]) -> None:
    expected = f().tolist()
    assert wf.jit(f)().tolist() == expected
    assert wf.vmap(lambda x: f() + x)(wf.zeros(2)).tolist() == [expected, expected]
    assert wf.vjp(lambda x: f() + x, wf.zeros(()))[0].tolist() == expected


def test_the_values_of_what_was_written() -> None:
    assert fresh().tolist() == [[5.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert renamed().tolist() == [[5.0, 5.0], [2.0, 2.0]]
    assert augmented().tolist() == [[1.0, 1.0, 1.0], [5.0, 5.0, 5.0]]
    assert gathered().tolist() == [[6.0, 6.0, 6.0], [2.0, 2.0, 2.0]]
    assert cloned().tolist() == [[2.0, 6.0, 2.0], [2.0, 6.0, 2.0]]


def test_a_part_does_not_keep_its_whole_alive() -> None:
    x = wf.ones((2, 3))
    part, handle = x[0], weakref.ref(x)
    del x
    wait_for_quiet()
    assert handle() is None
    part[0] = 5.0
    assert part.tolist() == [5.0, 1.0, 1.0]


def test_a_chain_of_parts_does_not_grow() -> None:
    x = wf.ones(100)
    for _ in range(50):
        x = x[1:]
    assert x._origin is None or x._origin[2] is None
    y = wf.ones(100).requires_grad_() * 1.0
    for _ in range(50):
        y = y[1:]
    assert y._origin[2] is None


def test_a_leaf_made_of_a_part_is_a_tensor_of_its_own() -> None:
    x = wf.ones((2, 3))
    w = x[0].requires_grad_()
    held = wf.nn.Parameter(x[1], requires_grad=False)
    (w * w).sum().backward()
    wf.optim.SGD([w], lr=0.5).step()
    held.zero_()
    assert w.tolist() == [0.0, 0.0, 0.0]
    assert held.tolist() == [0.0, 0.0, 0.0]
    assert x.tolist() == wf.ones((2, 3)).tolist()


def test_a_running_statistic_may_not_be_a_part() -> None:
    stats = wf.zeros((2, 3))
    with pytest.raises(wf.ArgumentError, match="a part of another tensor"):
        wf.nn.functional.batch_norm(wf.ones((4, 3)), stats[0], stats[1], training=True)
