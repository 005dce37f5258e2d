"""NumPy: the floor of what has no gradient."""

from __future__ import annotations

from typing import Any

import numpy as np


def as_numpy(value: Any) -> np.ndarray:
    """What a step returned."""
    return np.asarray(value)
