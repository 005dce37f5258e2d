"""Training from a file: a recommender, a classifier or a language model without any code.

    weft train recommender.toml optimizer.lr=0.01
    result = wf.config.train("recommender.toml", ["optimizer.lr=0.01"])

>>> import weft as wf
>>> settings = wf.config.read_settings({"task": "classifier", "data": {"source": "digits"}})
>>> settings["model"]["kind"], settings["train"]["batch_size"]
('mlp', 32)
"""

from weft.config.programs import Program, build_program
from weft.config.reading import read_settings
from weft.config.running import Result, load_exported, train
from weft.config.schema import ConfigurationError
from weft.config.sweeping import SweepReport, SweepTrial, sweep
from weft.names import explain_all as _explain_all
from weft.names import missing_from as _missing_from

__all__ = [
    "ConfigurationError", "Program", "Result", "SweepReport", "SweepTrial", "build_program",
    "load_exported", "read_settings", "sweep", "train",
]  # fmt: skip

_explain_all(globals(), __all__)
__getattr__ = _missing_from("wf.config", __all__)
