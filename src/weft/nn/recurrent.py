"""Recurrent layers: RNN, LSTM and GRU, stacked, in both directions, over sequences of any length.

>>> import weft as wf
>>> from weft import nn
>>> lstm = nn.LSTM(3, 5, num_layers=2, bidirectional=True)
>>> y, (h, c) = lstm(wf.ones((7, 2, 3)), lengths=wf.tensor([7, 4]))
>>> y.shape, h.shape, y[6, 1].sum().item()
((7, 2, 10), (4, 2, 5), 0.0)
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.nn import init
from weft.nn.functional.checks import choose, values_of
from weft.nn.functional.recurrent import GATES, STEPS, State
from weft.nn.module import Module, Parameter, takes_device


class _Recurrent(Module):
    """Layers of one kind of cell; weights are named as PyTorch's: weight_ih_l0_reverse."""

    kind: ClassVar[str]
    states: ClassVar[int] = 1

    @takes_device
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, dropout
        self.bidirectional = bidirectional
        self._check_sizes()
        for layer in range(num_layers):
            width = input_size if layer == 0 else self._output_size * self._directions
            for suffix in self._suffixes(layer):
                self._make_parameters(suffix, width, dtype)
        self.reset_parameters()

    @property
    def _cell(self) -> str:
        return self.kind

    @property
    def _output_size(self) -> int:
        """How wide the output of one direction is, and the state that goes with it."""
        return self.hidden_size

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        return [f"l{layer}", f"l{layer}_reverse"][: self._directions]

    def _check_sizes(self) -> None:
        if self.hidden_size < 1 or self.num_layers < 1 or not 0.0 <= self.dropout <= 1.0:
            raise wf.ArgumentError(
                type(self).__name__,
                "a size is not positive, or dropout is no probability",
                expected="hidden_size >= 1, num_layers >= 1, 0 <= dropout <= 1",
                got={"hidden_size": self.hidden_size, "num_layers": self.num_layers,
                     "dropout": self.dropout},
                fix=f"{type(self).__name__}(input_size, 16)",
            )  # fmt: skip

    def _make_parameters(self, suffix: str, width: int, dtype: Any) -> None:
        rows = GATES[self._cell] * self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, width),
            "weight_hh": (rows, self._output_size),
        }
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if self._output_size != self.hidden_size:
            shapes |= {"weight_hr": (self._output_size, self.hidden_size)}
        for name, shape in shapes.items():
            setattr(self, f"{name}_{suffix}", Parameter(wf.empty(shape, dtype=dtype)))

    def _weights(self, suffix: str) -> Any:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        return tuple(self.__dict__.get(f"{name}_{suffix}") for name in names)

    def reset_parameters(self) -> None:
        """Draw new parameters, uniform within 1 / √hidden_size."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(self, x: wf.Tensor, state: Any = None, lengths: Any = None) -> Any:
        """The outputs of the last layer at all steps, and the last state of every layer.

        x: [time, batch, input], [batch, time, input] with batch_first, or [time, input].
        state: [layers * directions, batch, hidden] each; zeros by default. lengths: [batch].
        """
        alone = x.ndim == 2
        x = self._time_first(x, alone)  # [time, batch, input]
        given = self._initial_state(x, state, alone)
        lengths = self._checked_lengths(x, lengths)
        lasts: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            x, ends = self._layer(layer, x, given, lengths)
            lasts += ends
        # For each kind of state, [layers · directions, batch, hidden].
        stacked = tuple(wf.stack(list(column)) for column in zip(*lasts, strict=True))
        return self._results(x, stacked, alone)

    def _layer(
        self, layer: int, x: wf.Tensor, given: State, lengths: wf.Tensor | None
    ) -> tuple[wf.Tensor, list[State]]:
        """One layer's outputs, [time, batch, directions · hidden], and each direction's last state.

        PyTorch numbers the states of a layer's two directions one after the other.
        """
        outputs, ends = [], []
        for direction, suffix in enumerate(self._suffixes(layer)):
            number = layer * self._directions + direction
            state = tuple(part[number] for part in given)
            weights = self._weights(suffix)
            y, end = F.recurrent_layer(self._cell, x, state, weights, lengths, direction == 1)
            outputs.append(y)
            ends.append(end)
        return outputs[0] if len(outputs) == 1 else wf.concat(outputs, axis=-1), ends

    def _time_first(self, x: wf.Tensor, alone: bool) -> wf.Tensor:
        """The input as [time, batch, input]; a single sequence is a batch of one."""
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            order = "batch, time" if self.batch_first else "time, batch"
            raise wf.ShapeError(
                type(self).__name__,
                "the input does not have the axes or the features of this layer",
                expected=f"[{order}, {self.input_size}], or [time, {self.input_size}]",
                got={"x": x},
                fix=f"{type(self).__name__}({x.shape[-1] if x.ndim else 1}, {self.hidden_size})",
            )
        if alone:
            return wf.expand_dims(x, axis=1)
        return wf.swapaxes(x, 0, 1) if self.batch_first else x

    def _initial_state(self, x: wf.Tensor, state: Any, alone: bool) -> State:
        """The states to begin with, [layers · directions, batch, hidden] each; zeros by default."""
        rows = (self.num_layers * self._directions, x.shape[1])
        shapes = [(*rows, self._output_size), (*rows, self.hidden_size)][: self.states]
        if state is None:
            return tuple(wf.zeros(shape, dtype=x.dtype) for shape in shapes)
        parts = state if isinstance(state, (tuple, list)) else (state,)
        parts = tuple(wf.expand_dims(part, axis=1) if alone else part for part in parts)
        if [part.shape for part in parts] != shapes:
            raise wf.ShapeError(
                type(self).__name__,
                "the state does not fit the layers and the batch",
                expected=" and ".join(str(list(shape)) for shape in shapes),
                got={f"state[{i}]": part for i, part in enumerate(parts)},
                fix="leave it out for zeros",
            )
        return parts

    def _checked_lengths(self, x: wf.Tensor, lengths: Any) -> wf.Tensor | None:
        if lengths is None:
            return None
        given: wf.Tensor = wf.asarray(lengths)
        values = values_of(given) if given.shape == (x.shape[1],) else None
        outside = values is not None and ((values < 0) | (values > x.shape[0])).any()
        if given.shape != (x.shape[1],) or given.dtype.is_inexact or outside:
            raise wf.ArgumentError(
                type(self).__name__,
                "there is not one length within the time axis for each sequence",
                expected=f"{x.shape[1]} integers from 0 to {x.shape[0]}",
                got={"lengths": given.tolist() if values is not None else given},
                fix="leave lengths out where all sequences are whole",
            )
        return given if given.device is x.device else given.to(x.device)  # as lists are given

    def _results(self, y: wf.Tensor, stacked: State, alone: bool) -> Any:
        """The outputs in the layout of the input, and the state as PyTorch gives it."""
        if alone:
            y = wf.squeeze(y, axis=1)
            stacked = tuple(wf.squeeze(part, axis=1) for part in stacked)
        elif self.batch_first:
            y = wf.swapaxes(y, 0, 1)
        return y, stacked if self.states > 1 else stacked[0]

    def extra_repr(self) -> str:
        """See `Module`."""
        parts = [f"{self.input_size}, {self.hidden_size}"]
        for name, default in (
            ("num_layers", 1), ("bias", True), ("batch_first", False), ("dropout", 0.0),
            ("bidirectional", False),
        ):  # fmt: skip
            value = getattr(self, name)
            parts += [] if value == default else [f"{name}={value}"]
        return ", ".join(parts)


class RNN(_Recurrent):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu.

    >>> y, h = RNN(2, 3)(wf.ones((4, 1, 2)))
    >>> y.shape, h.shape
    ((4, 1, 3), (1, 1, 3))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        **options: Any,
    ) -> None:
        choose("RNN", "nonlinearity", nonlinearity, ("tanh", "relu"))
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, num_layers, **options)

    @property
    def _cell(self) -> str:
        return self.nonlinearity


class LSTM(_Recurrent):
    """Long short-term memory; the state is (h, c).

    >>> y, (h, c) = LSTM(2, 3, batch_first=True)(wf.ones((1, 4, 2)))
    >>> y.shape, c.shape
    ((1, 4, 3), (1, 1, 3))

    proj_size: hidden states are multiplied by `weight_hr`, to that size, before they go on.

    >>> y, (h, c) = LSTM(2, 5, proj_size=3)(wf.ones((4, 1, 2)))
    >>> y.shape, h.shape, c.shape
    ((4, 1, 3), (1, 1, 3), (1, 1, 5))
    """

    kind, states = "lstm", 2

    def __init__(
        self, input_size: int, hidden_size: int, *args: Any, proj_size: int = 0, **options: Any
    ) -> None:
        if not 0 <= proj_size < max(hidden_size, 1):
            raise wf.ArgumentError(
                "LSTM",
                "a projection is not smaller than what it projects",
                expected=f"0 <= proj_size < {hidden_size}",
                got={"hidden_size": hidden_size, "proj_size": proj_size},
                fix=f"proj_size={hidden_size // 2}",
            )
        self.proj_size = proj_size
        super().__init__(input_size, hidden_size, *args, **options)

    @property
    def _output_size(self) -> int:
        return self.proj_size or self.hidden_size

    def extra_repr(self) -> str:
        """See `Module`."""
        return super().extra_repr() + (f", proj_size={self.proj_size}" if self.proj_size else "")


class GRU(_Recurrent):
    """Gated recurrent units.

    >>> y, h = GRU(2, 3)(wf.ones((4, 2)))
    >>> y.shape, h.shape
    ((4, 3), (1, 3))
    """

    kind = "gru"


class _RecurrentCell(Module):
    """One step: weight_ih [gates * hidden, in], weight_hh [gates * hidden, hidden], biases."""

    kind: ClassVar[str]
    states: ClassVar[int] = 1

    @takes_device
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = GATES[self._cell] * hidden_size
        self.weight_ih = Parameter(wf.empty((rows, input_size), dtype=dtype))
        self.weight_hh = Parameter(wf.empty((rows, hidden_size), dtype=dtype))
        self.bias_ih = Parameter(wf.empty((rows,), dtype=dtype)) if bias else None
        self.bias_hh = Parameter(wf.empty((rows,), dtype=dtype)) if bias else None
        bound = 1 / math.sqrt(hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    @property
    def _cell(self) -> str:
        return self.kind

    def forward(self, x: wf.Tensor, state: Any = None) -> Any:
        """[batch, in] and the state [batch, hidden] -> the next state."""
        shape = (*x.shape[:-1], self.hidden_size)
        if state is None:
            state = (wf.zeros(shape, dtype=x.dtype),) * self.states
        parts = tuple(state) if isinstance(state, (tuple, list)) else (state,)
        # The parts of all gates from the input and from the state: [batch, gates · hidden].
        from_input = F.linear(x, self.weight_ih, self.bias_ih)
        from_state = F.linear(parts[0], self.weight_hh, self.bias_hh)
        next_state = STEPS[self._cell](from_input, from_state, parts)
        return next_state if self.states > 1 else next_state[0]

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"{self.input_size}, {self.hidden_size}, bias={self.bias}"


class RNNCell(_RecurrentCell):
    """One step of an RNN.

    >>> RNNCell(2, 3)(wf.ones((1, 2))).shape
    (1, 3)
    """

    @takes_device
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        choose("RNNCell", "nonlinearity", nonlinearity, ("tanh", "relu"))
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, bias, dtype)

    @property
    def _cell(self) -> str:
        return self.nonlinearity


class LSTMCell(_RecurrentCell):
    """One step of an LSTM.

    >>> h, c = LSTMCell(2, 3)(wf.ones((1, 2)))
    >>> h.shape
    (1, 3)
    """

    kind, states = "lstm", 2


class GRUCell(_RecurrentCell):
    """One step of a GRU.

    >>> GRUCell(2, 3)(wf.ones((1, 2))).shape
    (1, 3)
    """

    kind = "gru"
