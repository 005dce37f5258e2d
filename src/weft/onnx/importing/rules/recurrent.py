"""RNN, GRU and LSTM: a scan over time for each direction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft as wf
from weft.onnx.importing.registry import rule
from weft.onnx.importing.running import Call

Tensor = wf.Tensor
Activation = Callable[[Tensor], Tensor]
State = tuple[Tensor, ...]
Cell = Callable[[State, Tensor], State]


def _activation(call: Call, name: str, alpha: float | None, beta: float | None) -> Activation:
    """The function that a name of the format means, with its numbers."""
    a, b = alpha, beta
    functions: dict[str, Activation] = {
        "affine": lambda x: (1.0 if a is None else a) * x + (0.0 if b is None else b),
        "leakyrelu": lambda x: wf.nn.functional.leaky_relu(x, 0.01 if a is None else a),
        "thresholdedrelu": lambda x: wf.where(x > (1.0 if a is None else a), x, 0.0),
        "scaledtanh": lambda x: (1.0 if a is None else a) * wf.tanh((1.0 if b is None else b) * x),
        "hardsigmoid": lambda x: wf.clip(
            (0.2 if a is None else a) * x + (0.5 if b is None else b), 0.0, 1.0
        ),
        "elu": lambda x: wf.nn.functional.elu(x, 1.0 if a is None else a),
        "softsign": lambda x: x / (1 + wf.abs(x)),
    }
    plain = {"Relu": wf.relu, "Tanh": wf.tanh, "Sigmoid": wf.sigmoid, "Softplus": wf.softplus}
    functions.update({key.lower(): function for key, function in plain.items()})
    if name.lower() not in functions:
        raise call.refuse(f"the activation {name!r}")
    return functions[name.lower()]


def _activations(call: Call, defaults: list[str], directions: Any) -> list[list[Activation]]:
    """The activations of each direction."""
    names = call.get("activations") or defaults * directions
    names = names if len(names) == len(defaults) * directions else names * directions
    alphas, betas = (
        list(call.get("activation_alpha") or []),
        list(call.get("activation_beta") or []),
    )
    # Numbers belong to the activations that take one, in order; as many as names in most files.
    chosen = [
        _activation(
            call,
            name,
            alphas[i] if i < len(alphas) else None,
            betas[i] if i < len(betas) else None,
        )
        for i, name in enumerate(names)
    ]
    per = len(defaults)
    return [chosen[i * per : (i + 1) * per] for i in range(directions)]


def _clip_gate(call: Call, x: Tensor) -> Tensor:
    limit = call.get("clip")
    return x if limit is None else wf.clip(x, -limit, limit)


def _split_gates(x: Tensor, count: int) -> list[Tensor]:
    size = x.shape[-1] // count
    return [x[..., i * size : (i + 1) * size] for i in range(count)]


def _run(
    call: Call,
    inputs: Tensor,
    lengths: Tensor | None,
    state: State,
    cell: Cell,
    reverse: bool,
) -> tuple[Tensor, State]:
    """The first state at each step, [time, batch, hidden], and the last state.

    `inputs` is what the steps add, [time, batch, …]. A row that has ended keeps its state, and its
    outputs are zero.
    """
    steps = wf.arange(inputs.shape[0])

    def step(state: State, each: tuple[Tensor, Tensor]) -> tuple[State, Tensor]:
        x, number = each
        new = cell(state, x)
        if lengths is None:
            return new, new[0]
        is_alive = (number < lengths)[:, None]
        kept = tuple(wf.where(is_alive, n, old) for n, old in zip(new, state, strict=True))
        return kept, wf.where(is_alive, new[0], 0.0)

    last, outputs = wf.scan(step, state, (inputs, steps), reverse=reverse)
    return outputs, last


def _recurrent(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    initial: list[Tensor | None],
    make_cell: Callable[[int, Tensor, Tensor | None], Cell],
    project: Callable[[int, Tensor, Tensor], Tensor],
) -> tuple[Tensor, ...]:
    """All directions of a recurrent layer: outputs [time, directions, batch, hidden], states."""
    batch_first = call.get("layout", 0)
    x = wf.swapaxes(x, 0, 1) if batch_first else x
    directions, hidden = w.shape[0], r.shape[-1]
    batch = x.shape[1]
    outputs, finals = [], []
    for d in range(directions):
        state = tuple(
            wf.zeros((batch, hidden), dtype=x.dtype)
            if each is None
            else (each[:, d] if batch_first else each[d])
            for each in initial
        )
        inputs = project(d, x, w[d])
        reverse = call["direction"] == "reverse" or d == 1
        cell = make_cell(d, r[d], None if b is None else b[d])
        out, last = _run(call, inputs, lengths, state, cell, reverse)
        outputs.append(out)
        finals.append(last)
    whole = wf.stack(outputs, axis=1)
    states = [wf.stack([each[i] for each in finals]) for i in range(len(initial))]
    if batch_first:  # [batch, time, directions, hidden] and [batch, directions, hidden]
        whole = wf.permute_dims(whole, (2, 0, 1, 3))
        states = [wf.swapaxes(each, 0, 1) for each in states]
    return whole, *states


def _project(bias: Callable[[int], Tensor | None]) -> Callable[[int, Tensor, Tensor], Tensor]:
    """All steps' inputs times the weight at once, with the bias."""

    def project(d: int, x: Tensor, w: Tensor) -> Tensor:
        product = wf.matmul(x, w.T)
        own = bias(d)
        return product if own is None else product + own

    return project


@rule("RNN")
def rnn(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """A layer of plain recurrent units."""
    functions = _activations(call, ["Tanh"], w.shape[0])
    hidden = r.shape[-1]

    def make_cell(d: int, r: Tensor, _: Tensor | None) -> Cell:
        f = functions[d][0]
        return lambda state, x: (f(_clip_gate(call, x + wf.matmul(state[0], r.T))),)

    project = _project(lambda d: None if b is None else b[d, :hidden] + b[d, hidden:])
    return _recurrent(call, x, w, r, b, lengths, [h], make_cell, project)


@rule("GRU")
def gru(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """A layer of gated recurrent units; the gates are update, reset, hidden."""
    functions = _activations(call, ["Sigmoid", "Tanh"], w.shape[0])
    hidden = r.shape[-1]
    before = call.get("linear_before_reset", 0)

    def make_cell(d: int, r: Tensor, b: Tensor | None) -> Cell:
        f, g = functions[d]
        gates, new = r[: 2 * hidden], r[2 * hidden :]
        inner: Any = 0.0 if b is None else b[5 * hidden :]
        outer: Any = 0.0 if b is None else b[3 * hidden : 5 * hidden]

        def cell(state: State, x: Tensor) -> State:
            old = state[0]
            both = f(_clip_gate(call, x[..., : 2 * hidden] + wf.matmul(old, gates.T) + outer))
            update, reset = _split_gates(both, 2)
            own = x[..., 2 * hidden :]
            if before:
                candidate = own + reset * (wf.matmul(old, new.T) + inner)
            else:
                candidate = own + wf.matmul(reset * old, new.T) + inner
            candidate = g(_clip_gate(call, candidate))
            return ((1.0 - update) * candidate + update * old,)

        return cell

    project = _project(lambda d: None if b is None else b[d, : 3 * hidden])
    return _recurrent(call, x, w, r, b, lengths, [h], make_cell, project)


@rule("LSTM")
def lstm(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    p: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """A layer of long short-term memory; the gates are input, output, forget, cell."""
    functions = _activations(call, ["Sigmoid", "Tanh", "Tanh"], w.shape[0])
    hidden = r.shape[-1]

    def make_cell(d: int, r: Tensor, _: Tensor | None) -> Cell:
        f, g, last = functions[d]
        peep: list[Any] = [0.0] * 3 if p is None else _split_gates(p[d], 3)

        def cell(state: State, x: Tensor) -> State:
            old, memory = state
            parts = _split_gates(x + wf.matmul(old, r.T), 4)
            enter, leave, keep, new = (_clip_gate(call, each) for each in parts)
            enter = f(enter + peep[0] * memory)
            keep = 1.0 - enter if call.get("input_forget") else f(keep + peep[2] * memory)
            memory = keep * memory + enter * g(new)
            return f(leave + peep[1] * memory) * last(memory), memory

        return cell

    project = _project(lambda d: None if b is None else b[d, : 4 * hidden] + b[d, 4 * hidden :])
    return _recurrent(call, x, w, r, b, lengths, [h, c], make_cell, project)
