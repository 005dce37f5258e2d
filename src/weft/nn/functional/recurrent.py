"""Recurrent cells, and one layer of them along time.

A cell's gates stand one after the other along the first axis of its weights, in PyTorch's order.

>>> import weft as wf
>>> w = wf.ones((1, 1))
>>> rnn_cell(wf.zeros((1, 1)), wf.zeros((1, 1)), w, w).tolist()
[[0.0]]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft as wf
from weft.eager import unit
from weft.nn.functional.products import linear
from weft.precision import follow_table

State = tuple[wf.Tensor, ...]
Step = Callable[[wf.Tensor, wf.Tensor, State], State]
"""(gates from the input, gates from the hidden state, state) -> the next state."""


def _tanh_step(from_input: wf.Tensor, from_hidden: wf.Tensor, state: State) -> State:
    return (wf.tanh(from_input + from_hidden),)


def _relu_step(from_input: wf.Tensor, from_hidden: wf.Tensor, state: State) -> State:
    return (wf.relu(from_input + from_hidden),)


def _lstm_step(from_input: wf.Tensor, from_hidden: wf.Tensor, state: State) -> State:
    """Gates: input, forget, cell, output."""
    i, f, g, o = wf.split(from_input + from_hidden, 4, axis=-1)
    cell = wf.sigmoid(f) * state[1] + wf.sigmoid(i) * wf.tanh(g)
    return wf.sigmoid(o) * wf.tanh(cell), cell


def _gru_step(from_input: wf.Tensor, from_hidden: wf.Tensor, state: State) -> State:
    """Gates: reset, update, new."""
    r, z, n = wf.split(from_input, 3, axis=-1)
    r_hidden, z_hidden, n_hidden = wf.split(from_hidden, 3, axis=-1)
    new = wf.tanh(n + wf.sigmoid(r + r_hidden) * n_hidden)
    keep = wf.sigmoid(z + z_hidden)
    return (new + keep * (state[0] - new),)


STEPS: dict[str, Step] = {
    "tanh": _tanh_step,
    "relu": _relu_step,
    "lstm": _lstm_step,
    "gru": _gru_step,
}
GATES = {"tanh": 1, "relu": 1, "lstm": 4, "gru": 3}
"""How many blocks of `hidden_size` rows the weights of each kind have."""


def _cell(
    kind: str,
    x: wf.Tensor,
    state: State,
    w_ih: wf.Tensor,
    w_hh: wf.Tensor,
    b_ih: wf.Tensor | None,
    b_hh: wf.Tensor | None,
) -> State:
    return STEPS[kind](linear(x, w_ih, b_ih), linear(state[0], w_hh, b_hh), state)


@follow_table
@unit(weights=("w_ih", "w_hh", "b_ih", "b_hh"))
def rnn_cell(
    x: wf.Tensor,
    h: wf.Tensor,
    w_ih: wf.Tensor,
    w_hh: wf.Tensor,
    b_ih: wf.Tensor | None = None,
    b_hh: wf.Tensor | None = None,
    nonlinearity: str = "tanh",
) -> wf.Tensor:
    """tanh(x W_ihᵀ + b_ih + h W_hhᵀ + b_hh): x [batch, in], h [batch, hidden].

    >>> rnn_cell(wf.ones((1, 1)), wf.ones((1, 1)), wf.ones((1, 1)), wf.ones((1, 1)),
    ...          nonlinearity="relu").tolist()
    [[2.0]]
    """
    return _cell(nonlinearity, x, (h,), w_ih, w_hh, b_ih, b_hh)[0]


@follow_table
@unit(weights=("w_ih", "w_hh", "b_ih", "b_hh"))
def lstm_cell(
    x: wf.Tensor,
    state: tuple[wf.Tensor, wf.Tensor],
    w_ih: wf.Tensor,
    w_hh: wf.Tensor,
    b_ih: wf.Tensor | None = None,
    b_hh: wf.Tensor | None = None,
) -> tuple[wf.Tensor, wf.Tensor]:
    """One step of an LSTM: x [batch, in], (h, c) [batch, hidden], weights [4 hidden, ...].

    >>> zero = wf.zeros((1, 1))
    >>> lstm_cell(zero, (zero, wf.ones((1, 1))), wf.zeros((4, 1)), wf.zeros((4, 1)))[1].tolist()
    [[0.5]]
    """
    h, c = _cell("lstm", x, state, w_ih, w_hh, b_ih, b_hh)
    return h, c


@follow_table
@unit(weights=("w_ih", "w_hh", "b_ih", "b_hh"))
def gru_cell(
    x: wf.Tensor,
    h: wf.Tensor,
    w_ih: wf.Tensor,
    w_hh: wf.Tensor,
    b_ih: wf.Tensor | None = None,
    b_hh: wf.Tensor | None = None,
) -> wf.Tensor:
    """One step of a GRU: x [batch, in], h [batch, hidden], weights [3 hidden, ...].

    >>> gru_cell(wf.zeros((1, 1)), wf.ones((1, 1)), wf.zeros((3, 1)), wf.zeros((3, 1))).tolist()
    [[0.5]]
    """
    return _cell("gru", x, (h,), w_ih, w_hh, b_ih, b_hh)[0]


@follow_table
@unit(weights=("weights",))
def recurrent_layer(
    kind: str,
    x: wf.Tensor,
    state: State,
    weights: tuple[wf.Tensor | None, ...],
    lengths: wf.Tensor | None = None,
    reverse: bool = False,
) -> tuple[wf.Tensor, State]:
    """One direction of one layer: x [time, batch, in], state [batch, hidden] each.

    weights: for the input, for the state, their biases or None, and where hidden states are
    projected before they go on, the matrix that does it, [projected, hidden].
    The products with the input are one for all steps. With lengths [batch], steps past a
    sequence's end leave its state as it is and give zeros; in reverse, a sequence so begins at its
    own last step.

    >>> w = wf.ones((1, 1)), wf.ones((1, 1)), None, None
    >>> y, (h,) = recurrent_layer("relu", wf.ones((3, 1, 1)), (wf.zeros((1, 1)),), w)
    >>> y.flatten().tolist(), h.item()
    ([1.0, 2.0, 3.0], 3.0)
    """
    w_ih, w_hh, b_ih, b_hh, *projection = weights
    assert w_ih is not None
    assert w_hh is not None
    state_weight: wf.Tensor = w_hh
    gates = linear(x, w_ih, b_ih)  # [time, batch, gates * hidden]

    def step(carry: State, given: Any) -> tuple[State, wf.Tensor]:
        number, from_input = given
        after = STEPS[kind](from_input, linear(carry[0], state_weight, b_hh), carry)
        if projection and projection[0] is not None:
            after = linear(after[0], projection[0]), *after[1:]
        if lengths is None:
            return after, after[0]
        runs = wf.expand_dims(number < lengths, axis=1)  # [batch, 1]
        next_state = tuple(wf.where(runs, new, old) for new, old in zip(after, carry, strict=True))
        return next_state, wf.where(runs, after[0], 0.0)

    last, outputs = wf.scan(step, state, (wf.arange(x.shape[0]), gates), reverse=reverse)
    return outputs, last
