"""What runs in which dtype inside of `wf.autocast`: the table, for the layers above.

>>> from weft.precision import TABLE
>>> TABLE["matmul"].value
'the dtype of the block, where at least two tensors meet'
"""

from weft.ir.autocast import without_float8
from weft.ops.composed.precision import TABLE, Row, follow_table

__all__ = ["TABLE", "Row", "follow_table", "without_float8"]
