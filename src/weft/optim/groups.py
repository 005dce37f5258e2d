"""Groups of parameters with options of their own, and how users give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import weft as wf
from weft.optim.checks import check_known, check_option, check_parameter, check_positive
from weft.optim.schedules import Schedule

__all__ = ["Group", "Parameters", "group_text", "read_groups", "settings_dtype",
           "wide_dtype"]  # fmt: skip

Parameters = Iterable[Any] | Mapping[str, wf.Tensor]


def settings_dtype(parameters: Sequence[wf.Tensor]) -> wf.DType:
    """The dtype of settings that are tensors: float64 where all parameters are as wide."""
    is_wide = bool(parameters) and all(wf.finfo(p.dtype).bits == 64 for p in parameters)
    return wf.float64 if is_wide else wf.float32


def wide_dtype(parameter: wf.Tensor) -> wf.DType:
    """The dtype that a rule computes in: float32 for 16-bit parameters."""
    return parameter.dtype if parameter.dtype.bits >= 32 else wf.float32


@dataclass(eq=False)
class Group:
    """Parameters with options of their own; `group["lr"] = 0.1` changes one."""

    parameters: list[wf.Tensor]
    options: dict[str, Any]
    names: tuple[str, ...] = field(metadata={"static": True})
    owner: str = field(metadata={"static": True})

    def __getitem__(self, name: str) -> Any:
        check_known(self.owner, {name: "..."}, self.options)
        return self.options[name]

    def __setitem__(self, name: str, value: Any) -> None:
        check_known(self.owner, {name: value}, self.options)
        if name == "lr":
            self._set_lr(value)
            return
        check_option(self.owner, name, value)
        held = self.options[name]
        if isinstance(held, wf.Tensor):
            held.copy_(value)
        else:
            self.options[name] = value

    def handle(self, name: str) -> wf.Tensor:
        """The tensor that holds an option; from now on changing it does not compile again."""
        value = self[name]
        if not isinstance(value, wf.Tensor):
            check_positive(self.owner, name, value)
            value = self.options[name] = wf.tensor(float(value), dtype=self.options["lr"].dtype)
        return value

    def _set_lr(self, value: Any) -> None:
        self.options["schedule"] = value if isinstance(value, Schedule) else None
        first = value(0) if isinstance(value, Schedule) else value
        check_option(self.owner, "lr", first)
        if "lr" in self.options:
            self.options["lr"].copy_(first)
        else:
            rate = wf.zeros((), dtype=settings_dtype(self.parameters))
            self.options["lr"] = rate.copy_(first)


def read_groups(op: str, parameters: Parameters, options: Mapping[str, Any]) -> list[Group]:
    """The parameter groups that a user gave, checked."""
    entries = _entries(op, parameters)
    grouped = bool(entries) and all(isinstance(entry, Mapping) for entry in entries)
    wanted = entries if grouped else [{"params": entries}]
    groups, count = [], 0
    for entry in wanted:
        group = _read_group(op, entry, options, count)
        count += len(group.parameters)
        groups.append(group)
    if count == 0:
        raise wf.ArgumentError(
            op,
            "there is nothing to optimise",
            expected="at least one parameter",
            got={"parameters": []},
            fix=f"{op}(net.parameters(), ...); a generator can be read only once",
        )
    _check_once(op, [p for group in groups for p in group.parameters])
    return groups


def _entries(op: str, parameters: Any) -> list[Any]:
    if isinstance(parameters, wf.Tensor) or not isinstance(parameters, Iterable):
        raise wf.ArgumentTypeError(
            op,
            "parameters are not a collection of tensors",
            expected="net.parameters(), or a list of tensors",
            got={"parameters": parameters},
            fix=f"{op}(net.parameters(), ...)",
        )
    return list(parameters.items() if isinstance(parameters, Mapping) else parameters)


def _read_group(op: str, entry: Any, options: Mapping[str, Any], start: int) -> Group:
    given = {name: value for name, value in entry.items() if name != "params"}
    given = {name: value for name, value in entry.items() if name != "params"}
    check_known(op, given, ["params", *options])
    chosen = {**options, **given}
    for name, value in chosen.items():
        if name != "lr":
            check_option(op, name, value)
    if "params" not in entry:
        raise wf.ArgumentError(
            op,
            "a group has no parameters",
            expected='{"params": [...], ...}',
            got={"group": list(entry)},
            fix='{"params": net.parameters(), "lr": 1e-3}',
        )
    params = entry["params"]
    entries = [params] if isinstance(params, wf.Tensor) else _entries(op, params)
    pairs = [each if isinstance(each, tuple) else (None, each) for each in entries]
    names = [name if name is not None else str(start + i) for i, (name, _) in enumerate(pairs)]
    for name, (_, parameter) in zip(names, pairs, strict=True):
        check_parameter(op, f"parameters[{name}]", parameter)
    group = Group([p for _, p in pairs], {}, tuple(names), op)
    rate = chosen.pop("lr")
    group.options.update({k: tuple(v) if isinstance(v, list) else v for k, v in chosen.items()})
    group._set_lr(rate)
    return group


def _check_once(op: str, parameters: Sequence[wf.Tensor]) -> None:
    seen: dict[int, int] = {}
    for position, parameter in enumerate(parameters):
        if id(parameter) in seen:
            raise wf.ArgumentError(
                op,
                "a parameter is given twice",
                expected="each parameter in one group",
                got={"parameter": parameter},
                note=f"as number {seen[id(parameter)]} and {position}",
                fix="leave it out of one of the groups",
            )
        seen[id(parameter)] = position


def group_text(group: Group) -> str:
    """The options of a group, as an optimiser shows them."""
    hidden = {name for name, value in group.options.items() if value is None}
    schedule = group.options["schedule"]
    options = {name: _option_text(v) for name, v in group.options.items() if name not in hidden}
    first = {"lr": repr(schedule) if schedule is not None else options.pop("lr")}
    rest = {k: v for k, v in options.items() if k not in ("lr", "schedule")}
    return ", ".join(f"{name}={value}" for name, value in {**first, **rest}.items())


def _option_text(value: Any) -> str:
    if not isinstance(value, wf.Tensor):
        return repr(value)
    try:
        return f"{value.item():.6g}"
    except wf.TraceError:
        return "traced"
