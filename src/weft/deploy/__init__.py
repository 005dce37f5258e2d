"""Networks made ready for use: prepared for inference, pruned, and kept in encrypted files.

>>> import weft as wf
>>> "prepare_inference" in dir(wf.deploy)
True
"""

from weft.deploy.encryption import load_encrypted, save_encrypted
from weft.deploy.heads import HeadPruning, prune_heads
from weft.deploy.inference import Prepared, prepare_inference
from weft.deploy.pruning import Pruning, prune_channels, prune_weights

__all__ = [
    "HeadPruning", "Prepared", "Pruning", "load_encrypted", "prepare_inference", "prune_channels",
    "prune_heads", "prune_weights", "save_encrypted",
]  # fmt: skip
