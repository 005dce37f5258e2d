"""Stamps: digests of this package's own code, so that what it made is found by the same code only.

A stamp is of the files' contents. Times and sizes would say less: archives give all files one time,
and an instruction is replaced by another of as many letters. Reading the files costs no more than
asking for their times.

>>> len(source_stamp("core")), source_stamp("core") == source_stamp("core", "ir")
(64, False)
"""

from __future__ import annotations

import os
import sys
from functools import cache
from hashlib import sha256

import ml_dtypes
import numpy as np

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@cache
def source_stamp(*parts: str) -> str:
    """A digest of all files in these folders of the package."""
    stamp = sha256()
    for part in parts:
        for folder, inside, names in os.walk(os.path.join(_PACKAGE, part)):
            inside[:] = sorted(set(inside) - {"__pycache__"})
            for name in sorted(names):
                path = os.path.join(folder, name)
                with open(path, "rb", buffering=0) as file:
                    content = file.read()
                head = f"{os.path.relpath(path, _PACKAGE)} {len(content)}\n"
                stamp.update(head.encode())
                stamp.update(content)
    return stamp.hexdigest()


@cache
def program_sources() -> str:
    """A stamp of the code that makes programs: they are found by the code that made them only."""
    # constants are folded, and numbers written into tables, by NumPy
    numbers = f"{np.__version__} {ml_dtypes.__version__} {sys.byteorder}"
    return f"{source_stamp('core', 'ir', 'ops', 'compiler', 'runtime')} {numbers}"
