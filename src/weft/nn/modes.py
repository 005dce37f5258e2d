"""Evaluation mode for a while: each module, frozen parts included, has its own mode back after it.

>>> from weft import nn
>>> net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
>>> frozen = net[1].eval()
>>> with evaluation_mode(net):
...     inside = [module.training for module in net.modules()]
>>> inside, [module.training for module in net.modules()]
([False, False, False], [True, True, False])
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft.nn.module import Module


@contextmanager
def evaluation_mode(*modules: Module) -> Iterator[None]:
    """Modules are in evaluation mode inside a `with` block, and in their own modes after it.

    >>> import weft as wf
    >>> drop = wf.nn.Dropout(0.5)
    >>> with wf.nn.evaluation_mode(drop):
    ...     drop(wf.ones(2)).tolist()
    [1.0, 1.0]
    >>> drop.training
    True
    """
    before = [(inner, inner.training) for module in modules for inner in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for inner, training in before:
            inner.training = training
