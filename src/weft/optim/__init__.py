"""Optimisers, schedules, clipping, averages of weights and mixed precision.

    optimizer = wf.optim.AdamW(net.parameters(), lr=1e-3, clip_norm=1.0)
    loss.backward(); optimizer.step(); optimizer.zero_grad()      # or optimizer.minimize(loss)

The same lines run eagerly and inside `wf.jit`, where the updates are part of the compiled step.

>>> import weft as wf
>>> w = wf.tensor([1.0, 2.0], requires_grad=True)
>>> optimizer = wf.optim.SGD([w], lr=0.25)
>>> optimizer.minimize((w * w).sum())
>>> w.tolist()
[0.5, 1.0]
"""

from weft.names import explain_all as _explain_all
from weft.names import explain_attributes as _explain_attributes
from weft.names import missing_from as _missing_from
from weft.optim import rules, schedules
from weft.optim.adam_variants import Adafactor, Adamax, NAdam, RAdam, SparseAdam
from weft.optim.averaging import ExponentialMovingAverage
from weft.optim.classic import ASGD, Rprop
from weft.optim.clipping import clip_grad_norm, clip_grad_value
from weft.optim.groups import Group
from weft.optim.lbfgs import LBFGS
from weft.optim.optimizer import Optimizer
from weft.optim.optimizers import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    Lamb,
    Lion,
    Muon,
    RMSprop,
)
from weft.optim.precision import LossScale, mixed
from weft.optim.rows import Rows, take_rows

__all__ = [
    "ASGD", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax",
    "ExponentialMovingAverage", "Group", "Lamb", "Lion", "LossScale", "Muon", "NAdam", "Optimizer",
    "RAdam", "RMSprop", "Rows", "Rprop", "SparseAdam", "clip_grad_norm", "clip_grad_value", "mixed",
    "rules", "schedules", "take_rows",
]  # fmt: skip

_explain_all(globals(), __all__)
_explain_attributes(Optimizer, "optimizer")
_explain_attributes(ExponentialMovingAverage, "average")
__getattr__ = _missing_from("wf.optim", __all__)
