"""Loading a state dictionary: what does not fit is told exactly, and nothing is loaded then.

>>> import weft as wf
>>> try:
...     wf.nn.Linear(1, 1).load_state_dict({"wieght": wf.ones((1, 1)), "bias": wf.ones(1)})
... except wf.WeftError as error:
...     error.fix
'rename entries: wieght -> weight; or pass strict=False'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import weft as wf
from weft.names import explain_attributes, nearest_name
from weft.nn.layout import Place

SHOWN = 8
"""How many names of each kind an error lists."""


class Mismatch(NamedTuple):
    """Names that the module has and the dictionary has not, and the other way round."""

    missing: list[str]
    unexpected: list[str]


explain_attributes(Mismatch, "mismatch")


def check_state(
    places: Sequence[Place], tensors: Sequence[wf.Tensor], state: Mapping[str, Any], strict: bool
) -> Mismatch:
    """The entries that a dictionary lacks, and those it has too many; refused if `strict`."""
    if not isinstance(state, Mapping):
        raise wf.ArgumentTypeError(
            "load_state_dict",
            "a state is a dictionary from names to tensors",
            expected="what net.state_dict() returns",
            got={"state": state},
            fix="net.load_state_dict(other.state_dict())",
        )
    given = {place.index for place in places if place.name in state}
    missing = [p.name for p in places if p.name not in state and p.index not in given]
    names = {place.name for place in places}
    unexpected = [name for name in state if name not in names]
    misshapen = [
        f"{p.name} {list(wf.asarray(state[p.name]).shape)}, not {list(tensors[p.index].shape)}"
        for p in places
        if p.name in state and wf.asarray(state[p.name]).shape != tensors[p.index].shape
    ]
    if misshapen or (strict and (missing or unexpected)):
        raise _misfit_error(missing, unexpected, misshapen, strict)
    return Mismatch(missing, unexpected)


def _misfit_error(
    missing: list[str], unexpected: list[str], misshapen: list[str], strict: bool
) -> wf.WeftError:
    kinds = {"missing": missing, "unexpected": unexpected, "misshapen": misshapen}
    problems = {kind: names for kind, names in kinds.items() if names}
    pairs = [(wrong, nearest_name(wrong, missing)) for wrong in unexpected]
    renamings = [f"{wrong} -> {right}" for wrong, right in pairs if right]
    prefix = _common_prefix(missing, unexpected)
    renaming = (
        f"rename entries: {_list_names(renamings)}"
        if renamings
        else prefix or "load the state of such a module"
    )
    error_class = wf.ShapeError if misshapen else wf.ArgumentError
    return error_class(
        "load_state_dict",
        "the entries do not fit this module: "
        + ", ".join(f"{len(names)} {kind}" for kind, names in problems.items()),
        expected="an entry of the right shape for each name in net.state_dict()",
        got={kind: _list_names(names) for kind, names in problems.items()},
        fix=renaming if misshapen or not strict else f"{renaming}; or pass strict=False",
    )


def _common_prefix(missing: list[str], unexpected: list[str]) -> str:
    """How to rename entries that differ from the names wanted by what stands before all of them."""
    first = next((each for each in unexpected if missing and each.endswith(f".{missing[0]}")), "")
    prefix = first.removesuffix(missing[0]) if first else ""
    if prefix and {f"{prefix}{each}" for each in missing} == set(unexpected):
        return f"rename entries: {{name.removeprefix({prefix!r}): x for name, x in state.items()}}"
    return ""


def _list_names(names: Sequence[str]) -> str:
    rest = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest


def write_entry(tensor: wf.Tensor, value: Any) -> None:
    """Give a handle the value of an entry, in its own dtype; foreign memory is copied."""
    source = value.detach() if isinstance(value, wf.Tensor) else wf.tensor(value)
    with wf.no_grad():
        tensor.copy_(source)
