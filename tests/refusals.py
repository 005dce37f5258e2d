"""Calls that are refused, each with an error that says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import weft as wf

Refusal = tuple[Callable[[], object], type[wf.WeftError], str, str]
"""A call, the kind of its error, the operation that it names, and a part of the problem."""


def check_refusal(refusal: Refusal, file: str) -> None:
    """Make a call of a file, which must be refused with all that an error has."""
    call, kind, op, problem = refusal
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert error.op == op
    assert problem in error.problem
    assert error.expected
    assert error.got
    assert error.fix
    assert error.at is not None
    assert error.at.file == file
