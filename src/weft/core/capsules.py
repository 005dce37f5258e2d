"""The interpreter's capsules: addresses that libraries hand to each other, each under a name.

>>> import ctypes
>>> name, number = b"a number", ctypes.c_int(7)
>>> capsule = new_capsule(ctypes.addressof(number), name, None)
>>> capsule_pointer(capsule, name) == ctypes.addressof(number)
True
"""

from __future__ import annotations

import ctypes

import numpy as np

__all__ = ["capsule_pointer", "new_capsule", "numpy_function"]

capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
"""The address in a capsule of a name, or without one; raises ValueError for another name."""
new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
"""A capsule of an address and a name, both of which must live as long as it does; the last argument
is what is called at its end, or None."""


def numpy_function(place: int) -> int:
    """The address of a function of NumPy's, by its place in the table for extensions."""
    table = capsule_pointer(np._core._multiarray_umath._ARRAY_API, None)  # type: ignore[attr-defined]
    return (ctypes.c_void_p * (place + 1)).from_address(table)[place] or 0
