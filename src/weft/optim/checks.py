"""What optimisers and schedules accept, and what they say to the rest.

>>> import weft as wf
>>> from weft.optim.checks import check_option
>>> try:
...     check_option("SGD", "momentum", -0.5)
... except wf.ArgumentError as error:
...     error.problem, error.expected, error.fix
('momentum is out of range', 'momentum >= 0', 'momentum=0.9')
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import weft as wf
from weft.names import unknown_option

RANGES: dict[str, tuple[str, Any]] = {
    "lr": ("lr >= 0", 1e-3),
    "weight_decay": ("weight_decay >= 0", 0.01),
    "momentum": ("momentum >= 0", 0.9),
    "eps": ("eps >= 0", 1e-8),
    "lr_decay": ("lr_decay >= 0", 0.0),
    "initial": ("initial >= 0", 0.0),
    "alpha": ("0 <= alpha < 1", 0.99),
    "rho": ("0 <= rho < 1", 0.9),
    "betas": ("two numbers, each 0 <= beta < 1", (0.9, 0.999)),
}
"""The options with a range: what is expected, and a value to begin with."""
BELOW_ONE = {"alpha", "rho", "betas"}


def check_option(op: str, name: str, value: Any) -> None:
    """Refuse a value outside an option's range; tensors, which may change, are not looked into.

    Steps are not recorded, so a tensor that a derivative is taken of is refused.
    """
    for each in value if isinstance(value, tuple | list) else (value,):
        wf.ir.refuse_derivative(op, name, each)
    if name not in RANGES:
        return
    expected, example = RANGES[name]
    values = value if name == "betas" else (value,)
    if name == "betas" and not (isinstance(value, tuple | list) and len(value) == 2):
        raise _out_of_range(op, name, value, expected, example)
    for each in values:
        if isinstance(each, wf.Tensor):
            continue
        if not isinstance(each, int | float) or isinstance(each, bool):
            raise wf.ArgumentTypeError(
                op,
                f"{name} is not a number",
                expected=expected,
                got={name: value},
                fix=f"{name}={example}",
            )
        if not (each >= 0 and math.isfinite(each) and (name not in BELOW_ONE or each < 1)):
            raise _out_of_range(op, name, value, expected, example)


def check_lr(op: str, value: Any, name: str = "lr") -> None:
    """Refuse learning rates that are no numbers from 0 on."""
    if not isinstance(value, int | float) or not (value >= 0 and math.isfinite(value)):
        raise _out_of_range(op, name, value, f"{name} >= 0, a number", 1e-3)


def check_positive(op: str, name: str, value: Any) -> None:
    """Refuse what is not a positive number."""
    if not isinstance(value, int | float) or not (value > 0 and math.isfinite(value)):
        raise _out_of_range(op, name, value, f"{name} > 0, a number", 1)


def check_count(op: str, name: str, value: Any) -> None:
    """Refuse what is not a positive integer."""
    if type(value) is not int or value < 1:
        raise _out_of_range(op, name, value, f"{name} >= 1, an integer", 1)


def check_fraction(op: str, name: str, value: Any) -> None:
    """Refuse what is not a number from 0 to 1."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise _out_of_range(op, name, value, f"0 <= {name} <= 1, a number", 0.5)


def check_known(op: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse names that there are no options for, with the nearest one that there is."""
    known = list(known)
    for name, value in given.items():
        if name not in known:
            raise unknown_option(op, name, value, known)


def check_parameter(op: str, place: str, parameter: Any) -> None:
    """Refuse what cannot be optimised: no tensor, no leaf with a gradient, complex numbers."""
    if not isinstance(parameter, wf.Tensor):
        raise wf.ArgumentTypeError(
            op,
            "a parameter is not a tensor",
            expected="tensors with requires_grad=True",
            got={place: parameter},
            fix=f"{op}(net.parameters(), ...)",
        )
    if not parameter.requires_grad or not parameter.is_leaf:
        raise wf.GradientError(
            op,
            "a parameter gets no gradient",
            expected="leaves with requires_grad=True",
            got={place: parameter},
            fix=_fix_for(op, place, parameter),
        )
    if parameter.dtype.is_complex:
        raise wf.UnsupportedError(
            op,
            "complex parameters are not optimised: their squares have no order",
            expected="real parameters",
            got={place: parameter},
            fix="keep the real and the imaginary part as two parameters",
        )


def _out_of_range(op: str, name: str, value: Any, expected: str, example: Any) -> wf.ArgumentError:
    return wf.ArgumentError(
        op,
        f"{name} is out of range",
        expected=expected,
        got={name: value},
        fix=f"{name}={example}",
    )


def _fix_for(op: str, place: str, parameter: wf.Tensor) -> str:
    """What to write for a tensor that gets no gradient."""
    is_named = place.startswith("parameters[") and not place[len("parameters[") : -1].isdigit()
    if is_named and parameter.is_leaf:  # the names of a state
        return f"{op}(net.parameters(), ...): a state_dict holds values without gradients"
    if not parameter.is_leaf:
        return "pass the leaf that it is computed from, or a new one: x.detach().requires_grad_()"
    return (
        "leave frozen tensors out: [p for p in net.parameters() if p.requires_grad]; "
        "to train it: x.requires_grad_()"
    )
