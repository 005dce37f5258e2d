"""Networks made ready for use: prepared for inference, and pruned.

>>> import weft as wf
>>> "prepare_inference" in dir(wf.deploy)
True
"""

from weft.deploy.inference import Prepared, prepare_inference
from weft.deploy.pruning import Pruning, prune_channels, prune_weights

__all__ = ["Prepared", "Pruning", "prepare_inference", "prune_channels", "prune_weights"]
