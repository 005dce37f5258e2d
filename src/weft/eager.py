"""Eager work in units: a function of tensors that runs compiled where it is called by itself.

>>> import weft as wf
>>> from weft.eager import unit
>>> @unit
... def swish(x, slope=1.0):
...     return x * wf.sigmoid(slope * x)
>>> swish(wf.zeros((100, 100))).sum().item()
0.0
"""

from weft.ir.constants import beside_operands, call_beside
from weft.ir.eager import is_large_for_units, unit, update_unit

__all__ = ["beside_operands", "call_beside", "is_large_for_units", "unit", "update_unit"]
