"""Names that people bring from other libraries, and what they are called here.

The tables are read where a name or an option is not there, by the pages *Coming from …* and by the
test that runs every call in them. They are loaded by the first mistake, not by `import weft`.

>>> from weft.core.foreign import foreign_call
>>> foreign_call("bmm", "wf"), foreign_call("Dense", "wf.nn")
('wf.matmul(x, y)', "wf.nn.Linear(3, 8, activation='relu')")
>>> foreign_call("nothing_like_it", "wf")
''
"""

from __future__ import annotations

from weft.core.foreign.jax_names import JAX
from weft.core.foreign.keras_names import KERAS
from weft.core.foreign.numpy_names import NUMPY
from weft.core.foreign.options import EVERYWHERE, OPTIONS
from weft.core.foreign.torch_names import TORCH

__all__ = ["EVERYWHERE", "OPTIONS", "SPACES", "TABLES", "foreign_call"]

TABLES: dict[str, dict[str, str]] = {**TORCH, **NUMPY, **JAX, **KERAS}
"""Namespace of another library, name, and the call written out."""

SPACES: dict[str, tuple[str, ...]] = {
    "wf": ("torch", "numpy", "jax", "jax.lax", "tensorflow"),
    "x": ("torch.Tensor", "numpy.ndarray", "torch", "numpy", "jax.lax"),
    "net": ("torch.nn.Module", "keras.Model"),
    "optimizer": ("torch.optim.Optimizer",),
    "scheduler": ("torch.optim.lr_scheduler.LRScheduler",),
    "average": ("torch.optim.swa_utils.AveragedModel",),
    "mismatch": ("torch.nn.Module.load_state_dict",),
    "wf.nn": ("torch.nn", "keras.layers", "keras.losses", "flax.linen"),
    "wf.nn.functional": (
        "torch.nn.functional",
        "jax.nn",
        "keras.activations",
        "keras.losses by name",
        "torch",
    ),
    "wf.nn.init": ("torch.nn.init",),
    "wf.optim": ("torch.optim", "optax", "keras.optimizers", "torch.optim.lr_scheduler"),
    "wf.optim.schedules": (
        "torch.optim.lr_scheduler",
        "keras.optimizers.schedules",
        "optax",
    ),
    "wf.data": ("torch.utils.data",),
    "wf.train": ("keras.callbacks",),
    "wf.linalg": ("torch.linalg", "torch"),
    "wf.random": ("jax.random", "numpy.random", "torch"),
    "wf.tree": ("jax.tree",),
    "wf.distributed": ("torch.distributed", "jax.lax"),
    "wf.cuda": ("torch.cuda",),
}
"""Whose names are expected where: the namespaces to look in, the likeliest first."""

MODULES: dict[str, tuple[str, ...]] = {
    "wf.distributions": ("torch.distributions",),
    "wf.nn.utils": ("torch.nn.utils",),
    "wf.nn.utils.rnn": ("torch.nn.utils.rnn",),
    "wf.optim.lr_scheduler": ("torch.optim.lr_scheduler",),
    "wf.utils.data": ("torch.utils.data",),
}
"""Modules that are imported by a name of another library: the namespaces of what is in them."""


def foreign_call(name: str, owner: str) -> str:
    """What a name that was looked for in `owner` is called here, empty where no table has it."""
    for space in SPACES.get(owner) or MODULES.get(owner, ()):
        if name in TABLES[space]:
            return TABLES[space][name]
    return ""
