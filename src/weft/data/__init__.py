"""Data: what models learn from. So far, two small sets that travel inside the package.

>>> from weft.data import sets
>>> sets.load_iris().train.inputs.shape
(120, 4)
"""

from weft.data import sets

__all__ = ["sets"]
