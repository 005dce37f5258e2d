"""Names that are not there: what the user probably meant.

>>> from weft.core.names import nearest_name
>>> nearest_name("sofmax", ["softmax", "softmin", "sort"])
'softmax'
>>> nearest_name("xyz", ["softmax", "softmin", "sort"])
''
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from weft.core.errors import NameUnknownError

ELSEWHERE: dict[str, str] = {
    "absolute": "abs",
    "amax": "max",
    "amin": "min",
    "arccos": "acos",
    "arcsin": "asin",
    "arctan": "atan",
    "arctan2": "atan2",
    "array": "tensor",
    "as_tensor": "asarray",
    "bmm": "matmul",
    "cat": "concat",
    "clamp": "clip",
    "dim": "ndim",
    "div": "divide",
    "double": 'astype("float64")',
    "empty_cache": "release_memory",
    "expand": "broadcast_to",
    "float": 'astype("float32")',
    "from_numpy": "asarray",
    "half": 'astype("float16")',
    "index_select": "take",
    "logdet": "linalg.slogdet",
    "long": 'astype("int64")',
    "manual_seed": "random.seed",
    "max_memory_allocated": "memory_stats().peak",
    "mem_get_info": "memory_stats()",
    "memory_allocated": "memory_stats().used",
    "memory_reserved": "memory_stats().reserved",
    "mm": "matmul",
    "mul": "multiply",
    "ndarray": "Tensor",
    "neg": "negative",
    "norm": "linalg.norm",
    "numel": "size",
    "permute": "permute_dims",
    "power": "pow",
    "rand": "random.uniform",
    "randint": "random.randint",
    "randn": "random.normal",
    "randperm": "random.permutation",
    "reset_peak_memory_stats": "reset_peak_memory",
    "sub": "subtract",
    "t": "T",
    "true_divide": "divide",
    "unsqueeze": "expand_dims",
    "view": "reshape",
}
"""What NumPy's, PyTorch's and JAX's names are called here."""


def nearest_name(name: str, known: Iterable[str]) -> str:
    """The known name that a wrong one is most like, empty where none is."""
    difflib = import_module("difflib")  # only a mistake needs it
    matches: list[str] = difflib.get_close_matches(name, list(known), 1)
    return matches[0] if matches else ""


def unknown_name(op: str, name: str, known: Iterable[str], owner: str) -> NameUnknownError:
    """The error for a name that `owner` does not have."""
    names = [each for each in known if not each.startswith("_")]
    other = ELSEWHERE.get(name, "")
    here = other if other.partition(".")[0].partition("(")[0] in names else ""
    meant = here or nearest_name(name, names)
    return NameUnknownError(
        op,
        f"nothing is called {name!r}",
        expected=f"a name in dir({owner})",
        got={"name": name},
        fix=f"{owner}.{meant}" if meant else f"look for it: dir({owner})",
    )
