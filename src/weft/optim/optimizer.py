"""What all optimisers share: groups of parameters, state, and the one loop that applies a rule.

An optimiser holds the same handles as the model. Its state and its learning rates are tensors that
are there from the beginning, so a compiled step is compiled once: `optimizer.lr = 0.01` writes a
handle. Other numbers, such as betas, are part of the program unless they are given as tensors.

>>> import weft as wf
>>> w = wf.tensor([1.0, 2.0], requires_grad=True)
>>> optimizer = wf.optim.SGD([w], lr=0.1, momentum=0.9)
>>> @wf.jit
... def step(w, optimizer):
...     loss = (w * w).sum()
...     optimizer.minimize(loss)
...     return loss
>>> losses = [step(w, optimizer).item() for _ in range(3)]
>>> optimizer.lr = 0.01
>>> losses[0], step(w, optimizer).item() < losses[2], len(step.compilations)
(5.0, True, 1)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import weft as wf
from weft.eager import is_large_for_units, update_unit
from weft.optim import rules
from weft.optim.checks import (
    check_count,
    check_known,
    check_positive,
)
from weft.optim.clipping import gradient_norm, scaled_to_norm
from weft.optim.graphs import minimize_in_graph
from weft.optim.groups import Group, Parameters, group_text, read_groups, wide_dtype
from weft.optim.nodes import tree_node
from weft.optim.precision import LossScale, all_finite, check_precision, mixed
from weft.optim.rows import Rows, summed_by_row
from weft.optim.rules import Rule, Settings, State, Updated
from weft.optim.schedules import Schedule
from weft.optim.states import follow_parameters, load_state, saved_state


class Shared(TypedDict, total=False):
    """The options that every optimiser takes."""

    maximize: bool
    """Climb instead of descend."""
    clip_norm: float | None
    """The largest norm of all gradients together."""
    clip_value: float | None
    """The largest absolute value of a gradient's element."""
    accumulate: int
    """How many calls of `step` make one update, with the mean of their gradients."""
    precision: Any
    """What `optimizer.mixed` computes in: "bfloat16", "float16", "float8" or None. With "float16"
    the loss is scaled, and a step whose gradients overflow is skipped."""


class Optimizer:
    """Base of all optimisers: a subclass gives the options, the state's slots and the rule.

    parameters: tensors, a dict of them, pairs of name and tensor, or groups: a list of dicts with
    "params" and options that differ from the optimiser's own. A parameter without a gradient is
    left alone in that step.
    """

    rowwise = True
    """Whether the rule treats all elements alike, so that it can be applied to some rows only."""
    sharing: Any = None
    """How processes share gradients and state; see `wf.distributed.data_parallel`."""
    _rule: Rule | None = None
    """The update rule, whatever the options are; else `rule` is overridden."""
    _slots: tuple[str, ...] = ()
    """What the rule keeps, from zeros on, whatever the options are; else `slots` is overridden."""
    _is_scaled = False
    _options: dict[str, Any] | None = None
    """The options of an optimiser that waits for its parameters, in a graph."""

    def __init__(
        self,
        parameters: Parameters | None,
        options: dict[str, Any],
        *,
        maximize: bool = False,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        precision: Any = None,
        **unknown: Any,
    ) -> None:
        op = type(self).__name__
        check_known(op, unknown, [*options, *Shared.__annotations__])
        for name, limit in (("clip_norm", clip_norm), ("clip_value", clip_value)):
            if limit is not None:
                check_positive(op, name, limit)
        check_count(op, "accumulate", accumulate)
        self.maximize = maximize
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.accumulate = accumulate
        self.precision = check_precision(op, precision)
        self.is_unscaled = False
        if parameters is None:
            self._options = options
            return
        self._begin(parameters, options)

    def _begin(self, parameters: Parameters, options: dict[str, Any]) -> None:
        self.groups = self._divide_groups(read_groups(type(self).__name__, parameters, options))
        self.steps = wf.tensor(0)
        self.state = self.initial_states()
        self.scaling = LossScale() if self.precision == "float16" else None
        self.waiting = _Waiting.zeros_for(self.parameters) if self.accumulate > 1 else None

    @property
    def is_deferred(self) -> bool:
        """Whether the parameters are still to come: those that a graph's loss depends on."""
        return self._options is not None

    def take(self, parameters: Parameters) -> None:
        """Give an optimiser that waits for its parameters these."""
        assert self._options is not None
        self._begin(parameters, self._options)
        del self._options

    def _divide_groups(self, groups: list[Group]) -> list[Group]:
        """The groups, where a subclass treats some parameters in another way than the rest."""
        return groups

    def rule(self, options: Mapping[str, Any]) -> Rule:
        """The update rule of a group with these options: that of the class, if it has one."""
        if self._rule is None:
            raise NotImplementedError(f"{type(self).__name__} has no update rule: override `rule`")
        return self._rule

    def slots(self, options: Mapping[str, Any]) -> dict[str, float]:
        """The state that the rule keeps for each parameter, with its initial value."""
        return dict.fromkeys(self._slots, 0.0)

    def initial_states(self) -> list[State]:
        """What is kept for each parameter before the first step."""
        return [self._initial_state(p, g.options) for g in self.groups for p in g.parameters]

    def _initial_state(self, p: wf.Tensor, options: Mapping[str, Any]) -> State:
        slots = self.slots(options).items()
        return {name: wf.full_like(p, value, dtype=wide_dtype(p)) for name, value in slots}

    @property
    def parameters(self) -> list[wf.Tensor]:
        """The parameters of all groups."""
        return [parameter for group in self.groups for parameter in group.parameters]

    @property
    def lr(self) -> wf.Tensor:
        """The learning rate of the first group, a handle; assigning sets that of all groups."""
        rate: wf.Tensor = self.groups[0].options["lr"]
        return rate

    @lr.setter
    def lr(self, value: float | wf.Tensor | Schedule) -> None:
        for group in self.groups:
            group["lr"] = value

    def zero_grad(self) -> None:
        """Clear the gradients of all parameters."""
        for parameter in self.parameters:
            parameter.grad = None
        self.is_unscaled = False

    def mixed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A module or function that computes in the optimiser's precision; see `mixed`."""
        return mixed(function, self.precision)

    def scale(self, loss: wf.Tensor) -> wf.Tensor:
        """The loss as `backward` must see it: times the loss scale with precision="float16"."""
        self._is_scaled = True
        if self.scaling is None:
            return loss
        follow_parameters(self)
        return loss * self.scaling.scale

    def unscale(self) -> None:
        """Take the loss scale out of the gradients now, to see or change them before `step`."""
        if self.scaling is None or self.is_unscaled:
            return
        with wf.no_grad():
            unscaled = self.scaling.unscaled([p.grad for p in self.parameters])
            for parameter, gradient in zip(self.parameters, unscaled, strict=True):
                parameter.grad = gradient
        self.is_unscaled = True

    def minimize(self, loss: wf.Tensor) -> Any:
        """Go back from the loss, update the parameters, and clear their gradients.

        In a `wf.Graph` this adds operations, and returns the one to fetch; an optimiser that was
        given no parameters takes the trainable variables that the loss depends on.
        """
        if wf.staging.builder_of(loss) is not None:
            return minimize_in_graph(self, loss)
        minimized_by = getattr(type(loss), "minimized_by", None)
        if minimized_by is not None:  # a node that is bound to types in its first run
            return minimized_by(loss, self)
        self._check_parameters()
        self.scale(loss).backward()
        self.step()
        self.zero_grad()
        return None

    def step(self, closure: Callable[[], Any] | None = None, *, rows: Sequence[Rows] = ()) -> Any:
        """Update the parameters from their gradients, and the rows given of some tables.

        A closure computes the loss and its gradients first; its result is returned.
        """
        self._check_parameters()
        loss = None if closure is None else _evaluate(closure)
        self._check_scaled()
        follow_parameters(self)
        if any(is_large_for_units(int(p.size)) for p in self.parameters):
            _apply_compiled(self, list(rows))
        else:
            self._apply(rows)
        self.is_unscaled = False
        return loss

    def _apply(self, rows: Sequence[Rows] = ()) -> None:
        """One update of everything, by operations on tensors alone."""
        scope = wf.ir.scope(type(self).__name__, phase="update")
        with wf.no_grad(), wf.autocast(enabled=False), scope:
            tables = [self._read_rows(each) for each in rows]
            gradients, apply = self._prepare_gradients([p.grad for p in self.parameters], tables)
            step = self._count_step(apply)
            settings = [self._settings(group, step) for group in self.groups]
            are_late = [self.waiting is not None and p.grad is None for p in self.parameters]
            self._update(gradients, settings, apply, are_late)
            for table, gradient in zip(tables, gradients[len(self.state) :], strict=True):
                self._update_rows(table, gradient, settings, apply)

    def _prepare_gradients(
        self, dense: list[wf.Tensor | None], tables: list[_Table]
    ) -> tuple[list[wf.Tensor | None], wf.Tensor | None]:
        """The gradients to apply, first the parameters', then the rows'; and whether to apply."""
        if self.sharing is not None:
            if tables:
                raise _no_rows(type(self).__name__, self.parameters[tables[0].position])
            dense = self.sharing.mean_gradients(dense)
        gradients = [*dense, *[table.gradient for table in tables]]
        if self.maximize:
            gradients = [None if g is None else -g for g in gradients]
        apply: wf.Tensor | None = None
        if self.scaling is not None:
            if not self.is_unscaled:
                gradients = self.scaling.unscaled(gradients)
            apply = all_finite(gradients)
            apply = apply if self.sharing is None else self.sharing.agree(apply)
            self.scaling.update(apply)
        if self.waiting is not None:
            gradients, apply = self.waiting.add_gradients(
                gradients, self.parameters, apply, self.accumulate
            )
        if (limit := self.clip_value) is not None:
            gradients = [None if g is None else wf.clip(g, -limit, limit) for g in gradients]
        if self.clip_norm is not None:
            gradients = scaled_to_norm(gradients, self._norm(gradients), self.clip_norm)
        return gradients, apply

    def _norm(self, gradients: list[wf.Tensor | None]) -> wf.Tensor:
        if self.sharing is None:
            return gradient_norm(gradients)
        norm: wf.Tensor = self.sharing.norm(gradients, gradient_norm)
        return norm

    def _count_step(self, apply: wf.Tensor | None) -> wf.Tensor:
        """The number of this update, from 1; the counter is written where it is applied."""
        number = self.steps + 1
        for group in self.groups:
            if (schedule := group.options["schedule"]) is not None:
                rate = group.options["lr"]
                rate.copy_(schedule(self.steps.astype(rate.dtype)))
        _write(self.steps, number, apply)
        return number

    def _settings(self, group: Group, step: wf.Tensor) -> Settings:
        return Settings(group.options, step.astype(group.options["lr"].dtype))

    def _update(
        self,
        gradients: Sequence[wf.Tensor | None],
        settings: Sequence[Settings],
        apply: wf.Tensor | None,
        are_late: Sequence[bool],
    ) -> None:
        """Apply the rules; `are_late`: parameters with no gradient but what may wait for them."""
        position, repetition = 0, wf.ir.Repetition()
        updated: list[tuple[wf.Tensor, wf.Tensor]] = []
        for number, (group, setting) in enumerate(zip(self.groups, settings, strict=True)):
            rule = self.rule(group.options)
            for parameter in group.parameters:
                gradient, state = gradients[position], self.state[position]
                is_late = are_late[position]
                position += 1
                if gradient is None:
                    continue
                wide = wide_dtype(parameter)
                own = parameter if self.sharing is None else self.sharing.part(parameter)
                old = own.astype(wide, copy=False)
                operands = old, gradient.astype(wide, copy=False), state, setting
                if rule.__module__ == rules.__name__:
                    new, slots = _repeat_rule(repetition, number, rule, *operands)
                else:  # a user's, which may do more than return new values
                    new, slots = rule(*operands)
                if is_late:
                    new, slots = _kept_without_gradient(new, slots, old, state, gradient)
                updated.append((parameter, new))
                for name, value in slots.items():
                    _write(state[name], value, apply)
        self._write_parameters(updated, apply)

    def _write_parameters(
        self, updated: Sequence[tuple[wf.Tensor, wf.Tensor]], apply: wf.Tensor | None
    ) -> None:
        """Write new values; where processes have a part of each, they are gathered first."""
        parameters = [parameter for parameter, _ in updated]
        values = [new.astype(parameter.dtype, copy=False) for parameter, new in updated]
        if self.sharing is not None:
            values = self.sharing.whole(values, parameters)
        for parameter, value in zip(parameters, values, strict=True):
            _write(parameter, value, apply)

    def _read_rows(self, rows: Rows) -> _Table:
        table, indices, gradient = rows
        position = next((i for i, p in enumerate(self.parameters) if p is table), None)
        if position is None:
            raise _foreign_table(type(self).__name__, table)
        if not self.rowwise or self.waiting is not None or self.clip_norm is not None:
            raise _no_rows(type(self).__name__, table)
        flat = indices.reshape(-1)
        matrix = gradient.reshape(flat.shape[0], *table.shape[1:])
        return _Table(position, flat, summed_by_row(flat, matrix))

    def _update_rows(
        self,
        table: _Table,
        gradient: wf.Tensor | None,
        settings: Sequence[Settings],
        apply: wf.Tensor | None,
    ) -> None:
        """Apply the rule to the touched rows of a parameter and of its state, and put them back."""
        assert gradient is not None
        counts = [number for number, group in enumerate(self.groups) for _ in group.parameters]
        number = counts[table.position]
        parameter, state = self.parameters[table.position], self.state[table.position]
        wide = wide_dtype(parameter)
        old = wf.take(parameter, table.indices, axis=0).astype(wide, copy=False)
        held = {name: wf.take(slot, table.indices, axis=0) for name, slot in state.items()}
        rule = self.rule(self.groups[number].options)
        new, slots = rule(old, gradient.astype(wide, copy=False), held, settings[number])
        _write_rows(parameter, table.indices, new, old, apply)
        for name, value in slots.items():
            _write_rows(state[name], table.indices, value, held[name], apply)

    def _check_parameters(self) -> None:
        if self.is_deferred:
            raise wf.ArgumentError(
                type(self).__name__,
                "the optimiser was given no parameters",
                expected="parameters, or the loss of a wf.Graph to minimize",
                got={"parameters": None},
                fix=f"wf.optim.{type(self).__name__}(net.parameters(), lr=...)",
            )

    def _check_scaled(self) -> None:
        if self.scaling is not None and not self._is_scaled:
            raise wf.GradientError(
                type(self).__name__,
                "the loss was not scaled before backward",
                expected='with precision="float16", gradients of optimizer.scale(loss)',
                got={"precision": self.precision},
                fix="optimizer.scale(loss).backward(), or optimizer.minimize(loss)",
            )
        self._is_scaled = False

    def state_dict(self) -> dict[str, Any]:
        """Everything that goes on from step to step, by dotted name; `wf.save` writes it."""
        return saved_state(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict()` of the same kind of optimiser over the same parameters."""
        load_state(self, state)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}("]
        for group in self.groups:
            size = sum(int(p.size) for p in group.parameters)
            lines.append(
                f"  {len(group.parameters)} parameters, {size} elements: {group_text(group)}"
            )
        given = {name: getattr(self, name) for name in Shared.__annotations__}
        extra = [f"  {k}={v!r}" for k, v in given.items() if v is not None and v is not False]
        shown = [line for line in extra if line != "  accumulate=1"]
        return "\n".join([*lines, *shown, ")"])


def _repeat_rule(
    repetition: wf.ir.Repetition,
    group: int,
    rule: Rule,
    parameter: wf.Tensor,
    gradient: wf.Tensor,
    state: State,
    settings: Settings,
) -> Updated:
    """What a rule returns; in a trace it is called once for parameters of one type in a group."""

    def new_values() -> list[wf.Tensor]:
        new, slots = rule(parameter, gradient, state, settings)
        return [new, *[slots[name] for name in state]]

    tensors = [parameter, gradient, *state.values()]
    new, *values = repetition((group, *state), new_values, tensors)
    return new, dict(zip(state, values, strict=True))


def _kept_without_gradient(
    new: wf.Tensor, slots: State, old: wf.Tensor, state: State, gradient: wf.Tensor
) -> Updated:
    """What a rule gave where a gradient was waiting; else the parameter and its state as before."""
    is_there = wf.any(wf.not_equal(gradient, 0.0))
    kept = {name: wf.where(is_there, value, state[name]) for name, value in slots.items()}
    return wf.where(is_there, new, old), kept


@update_unit
def _apply_compiled(optimizer: Optimizer, rows: list[Rows]) -> None:
    """One update, as one compiled unit where it is done eagerly."""
    optimizer._apply(rows)


class _Table(NamedTuple):
    position: int
    indices: wf.Tensor
    gradient: wf.Tensor


@dataclass(eq=False)
class _Waiting:
    """Gradients that wait for the rest of their batch, and how many there are."""

    sums: list[wf.Tensor]
    count: wf.Tensor

    @classmethod
    def zeros_for(cls, parameters: Sequence[wf.Tensor]) -> _Waiting:
        return cls([wf.zeros_like(p, dtype=wide_dtype(p)) for p in parameters], wf.tensor(0))

    def add_gradients(
        self,
        gradients: Sequence[wf.Tensor | None],
        parameters: Sequence[wf.Tensor],
        finite: wf.Tensor | None,
        wanted: int,
    ) -> tuple[list[wf.Tensor | None], wf.Tensor]:
        """The mean of all that wait, and whether it is complete; gradients not finite are left out.

        A parameter that has no gradient now may have had one in an earlier part of the batch.
        """
        count = self.count + (1 if finite is None else finite.astype(wf.int64))
        enough = wf.equal(count, wanted)
        complete = enough if finite is None else enough & finite
        totals: list[wf.Tensor | None] = []
        for total, gradient, parameter in zip(self.sums, gradients, parameters, strict=True):
            if gradient is None:
                new = total.clone()  # the handle is about to be written to
            else:
                new = total + gradient.astype(total.dtype, copy=False) / wanted
                new = new if finite is None else wf.where(finite, new, total)
            total.copy_(wf.where(complete, 0.0, new))
            totals.append(new if parameter.requires_grad else None)
        self.count.copy_(wf.where(complete, 0, count))
        return totals, complete


def _write(handle: wf.Tensor, value: wf.Tensor, apply: wf.Tensor | None) -> None:
    chosen = value.astype(handle.dtype, copy=False)
    handle.set_(chosen if apply is None else wf.where(apply, chosen, handle))


def _write_rows(
    handle: wf.Tensor,
    indices: wf.Tensor,
    new: wf.Tensor,
    old: wf.Tensor,
    apply: wf.Tensor | None,
) -> None:
    chosen = new if apply is None else wf.where(apply, new, old)
    handle.copy_(wf.index_copy(handle, 0, indices, chosen.astype(handle.dtype, copy=False)))


def _evaluate(closure: Callable[[], Any]) -> Any:
    with wf.enable_grad():
        return closure()


def _foreign_table(op: str, table: Any) -> wf.ArgumentError:
    return wf.ArgumentError(
        op,
        "the table is not one of the optimiser's parameters",
        expected="rows of a parameter that the optimiser was made with",
        got={"table": table},
        fix=f"{op}([table], ...)",
    )


def _no_rows(op: str, table: wf.Tensor) -> wf.UnsupportedError:
    return wf.UnsupportedError(
        op,
        "updates of some rows need a rule that treats all elements alike, and every gradient",
        expected="an element-wise rule, without clip_norm and accumulate",
        got={"table": table},
        fix="give the table an optimiser of its own: wf.optim.Adam([table])",
    )


_STATE = ("groups", "state", "steps", "scaling", "waiting")
tree_node(Optimizer, _STATE, ignored=("_is_scaled",))
