"""Losses by name, as metrics are given by name.

>>> as_loss("mse_loss") is wf.nn.functional.mse_loss
True
"""

from __future__ import annotations

from typing import Any

import weft as wf
from weft.names import suggestion
from weft.train.names import unknown

__all__ = ["as_loss"]

_ENDINGS = ("_loss", "entropy", "with_logits", "kl_div")
"""What the names of losses in `wf.nn.functional` end with."""


def as_loss(loss: Any) -> Any:
    """A function of outputs and target, or None; a name is one of `wf.nn.functional`."""
    if isinstance(loss, str):
        known = [name for name in dir(wf.nn.functional) if name.endswith(_ENDINGS)]
        if loss not in known:
            call = suggestion(loss, [], "wf.nn.functional")  # wf.nn.functional.mse_loss(x, y)
            meant = call.partition("(")[0].rpartition(".")[2]
            raise unknown("train.Trainer", "loss", loss, known, meant if meant in known else "")
        return getattr(wf.nn.functional, loss)
    if loss is not None and not callable(loss):
        raise wf.ArgumentError(
            "train.Trainer",
            "the loss is no function",
            expected="a function of outputs and target, or a name such as 'cross_entropy'",
            got={"loss": loss},
            fix="wf.nn.functional.cross_entropy",
        )
    return loss
