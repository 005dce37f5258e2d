"""The state of an optimiser by dotted names, and back.

>>> import weft as wf
>>> w = wf.tensor([1.0], requires_grad=True)
>>> optimizer = wf.optim.SGD({"w": w}, lr=0.5, momentum=0.9)
>>> sorted(optimizer.state_dict())[:3]
['groups.0.dampening', 'groups.0.lr', 'groups.0.momentum']
>>> sorted(optimizer.state_dict())[-2:]
['state.w.momentum', 'steps']
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import weft as wf
from weft.optim.groups import Group, settings_dtype, wide_dtype

if TYPE_CHECKING:
    from weft.optim.optimizer import Optimizer


def saved_state(optimizer: Optimizer) -> dict[str, Any]:
    """All tensors and numbers that go on from step to step; the tensors as they are now."""
    parameters = parameters_of_slots(optimizer)
    state = {
        name: _whole_value(optimizer, handle, parameters.get(name))
        for name, handle in named_tensors(optimizer)
    }
    for number, group in enumerate(optimizer.groups):
        for name, value in group.options.items():
            if not isinstance(value, wf.Tensor) and _is_saved(value):
                state[f"groups.{number}.{name}"] = value
    return state


def load_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Put a saved state in place; nothing is changed where something does not fit."""
    op = f"{type(optimizer).__name__}.load_state_dict"
    handles = dict(named_tensors(optimizer))
    wanted = saved_state(optimizer)
    check_names(op, state, wanted)
    for name in handles:
        check_entry(op, name, wanted[name], _in_wanted_dtype(name, state[name], wanted[name]))
    parameters = parameters_of_slots(optimizer)
    for name, handle in handles.items():
        is_split = optimizer.sharing is not None and name in parameters
        value = state[name]
        handle.copy_(optimizer.sharing.own_state(value, parameters[name]) if is_split else value)
    for number, group in enumerate(optimizer.groups):
        for name in group.options:
            key = f"groups.{number}.{name}"
            if key in state and key not in handles:
                value = state[key]
                group.options[name] = tuple(value) if isinstance(value, list) else value


def _in_wanted_dtype(name: str, value: Any, wanted: Any) -> Any:
    """A saved setting in the dtype of its place: that of float64's parameters was once float32."""
    is_setting = name.startswith("groups.") and isinstance(value, wf.Tensor)
    return value.astype(wanted.dtype) if is_setting and value.dtype.is_floating else value


def parameters_of_slots(optimizer: Optimizer) -> dict[str, wf.Tensor]:
    """The parameter that each slot belongs to, by the slot's dotted name."""
    names = [name for group in optimizer.groups for name in group.names]
    together = zip(names, optimizer.parameters, optimizer.state, strict=True)
    return {f"state.{name}.{slot}": p for name, p, slots in together for slot in slots}


def follow_parameters(optimizer: Optimizer) -> None:
    """Bring what is kept to the device and the digits of the parameters; see `Module.to`.

    Single numbers are on the host, where they fit beside any tensor, or where a compiled step that
    ran with all the others has left them.
    """
    sums = [] if optimizer.waiting is None else optimizer.waiting.sums
    device = None
    for position, (parameter, slots) in enumerate(
        zip(optimizer.parameters, optimizer.state, strict=True)
    ):
        kept, device = [*slots.values(), *sums[position : position + 1]], parameter.device
        if kept and kept[0].device is not device:
            for handle in kept:
                handle.set_(handle.to(device))
        if kept and kept[0].dtype is not parameter.dtype:
            wide = wide_dtype(parameter)
            if kept[0].dtype is not wide and kept[0].dtype.is_floating and wide.is_floating:
                for handle in kept:
                    handle.set_(handle.astype(wide))
    for number in _single_numbers(optimizer):
        if number.device is not device and number.device.kind != "cpu":
            number.set_(number.to("cpu"))
    for group in optimizer.groups:
        _follow_digits(group)


def _follow_digits(group: Group) -> None:
    """Give settings that are tensors the digits that they have if parameters were so at first."""
    dtype = settings_dtype(group.parameters)
    if group.options["lr"].dtype is dtype:
        return
    for value in group.options.values():
        if isinstance(value, wf.Tensor):
            value.set_(_with_digits(value, dtype))


def _with_digits(setting: wf.Tensor, dtype: wf.DType) -> wf.Tensor:
    """A setting in another dtype: of a float32 the shortest number that is rounded to it.

    That is what was written: 0.001, and not 0.0010000000474974513. In a trace it is as it is.
    """
    try:
        shortest = float(str(np.float32(setting.item())))
    except wf.TraceError:
        return setting.astype(dtype)
    return wf.tensor(shortest, dtype=dtype)


def _single_numbers(optimizer: Optimizer) -> Iterator[wf.Tensor]:
    """What is kept for no one parameter."""
    yield optimizer.steps
    for group in optimizer.groups:
        yield from [value for value in group.options.values() if isinstance(value, wf.Tensor)]
    if (scaling := optimizer.scaling) is not None:
        yield from (scaling.scale, scaling.good_steps)
    if (waiting := optimizer.waiting) is not None:
        yield waiting.count


def _whole_value(optimizer: Optimizer, handle: wf.Tensor, parameter: wf.Tensor | None) -> wf.Tensor:
    """A copy of what is kept; what processes have parts of is gathered from all of them."""
    if optimizer.sharing is None or parameter is None:
        return handle.clone()
    whole: wf.Tensor = optimizer.sharing.whole_state(handle, parameter)
    return whole.clone()


def named_tensors(optimizer: Optimizer) -> Iterator[tuple[str, wf.Tensor]]:
    """The tensors that an optimiser keeps from step to step, by dotted name."""
    yield "steps", optimizer.steps
    names = [name for group in optimizer.groups for name in group.names]
    for number, group in enumerate(optimizer.groups):
        for option, value in group.options.items():
            if isinstance(value, wf.Tensor):
                yield f"groups.{number}.{option}", value
    for name, slots in zip(names, optimizer.state, strict=True):
        for slot, value in slots.items():
            yield f"state.{name}.{slot}", value
    if (scaling := optimizer.scaling) is not None:
        yield "scaling.scale", scaling.scale
        yield "scaling.good_steps", scaling.good_steps
    if (waiting := optimizer.waiting) is not None:
        yield "waiting.count", waiting.count
        for name, total in zip(names, waiting.sums, strict=True):
            yield f"waiting.{name}", total


def _is_saved(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_saved, value))
    return isinstance(value, bool | int | float | str)


def check_names(op: str, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse a state with names that are missing, or that nothing takes."""
    missing = [name for name in wanted if name not in given]
    unexpected = [name for name in given if name not in wanted]
    if missing or unexpected:
        raise wf.ArgumentError(
            op,
            "the state is of something else",
            expected=f"{len(wanted)} entries, as in state_dict()",
            got={"missing": missing[:4], "unexpected": unexpected[:4]},
            fix="make it with the same parameters and options as the one that was saved",
        )


def check_entry(op: str, name: str, handle: wf.Tensor, value: Any) -> None:
    """Refuse a saved value of another shape or dtype than its place."""
    if not isinstance(value, wf.Tensor) or value.type != handle.type:
        raise wf.ShapeError(
            op,
            f"{name} has another type than its place",
            expected=f"{name}: {handle.type}",
            got={name: value},
            fix="load the state of the same model and optimiser",
        )
