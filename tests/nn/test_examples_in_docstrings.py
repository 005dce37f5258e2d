"""Every class of wf.nn shows how it is used."""

from __future__ import annotations

import inspect

import weft as wf


def test_every_class_of_nn_has_an_example() -> None:
    classes = {name: getattr(wf.nn, name) for name in wf.nn.__all__}
    without = [
        name
        for name, each in classes.items()
        if inspect.isclass(each) and ">>>" not in (each.__dict__.get("__doc__") or "")
    ]
    assert without == []
