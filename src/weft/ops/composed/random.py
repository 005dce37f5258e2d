"""Random numbers: the namespace `wf.random`.

Every function takes `key=` and is then a pure function of it; without a key the global generator
gives one, and `seed` makes its stream begin anew. Numbers depend on the key and their place alone:
the first rows of a larger sample are those of a smaller one, and what one program draws does not
depend on the device, threads, batching, or on whether it was compiled.

>>> import weft as wf
>>> wf.random.seed(0)
>>> wf.random.uniform((2,)).shape
(2,)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

from weft.core.dtypes import uint32
from weft.core.errors import ArgumentTypeError
from weft.core.names import missing_from
from weft.core.wrong_calls import explain_all
from weft.ir.tensor import Tensor
from weft.ops.composed.random_continuous import (
    beta,
    dirichlet,
    exponential,
    gamma,
    gumbel,
    laplace,
    multivariate_normal,
    normal,
    truncated_normal,
    uniform,
)
from weft.ops.composed.random_discrete import (
    bernoulli,
    binomial,
    categorical,
    choice,
    permutation,
    poisson,
    randint,
    shuffle,
)
from weft.ops.composed.random_dropout import dropout, dropout_mask
from weft.ops.composed.random_keys import (
    GeneratorState,
    bits,
    fold_in,
    get_state,
    key,
    seed,
    set_state,
    split,
)

__all__ = [
    "GeneratorState", "bernoulli", "beta", "binomial", "bits", "categorical", "choice", "dirichlet",
    "dropout", "dropout_mask", "exponential", "fold_in", "gamma", "get_state", "gumbel", "key",
    "laplace", "multivariate_normal", "normal", "permutation", "poisson", "randint", "seed",
    "set_state", "shuffle", "split", "truncated_normal", "uniform",
]  # fmt: skip


def _refuse_sizes(f: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse sizes that are several arguments: the second would be taken for a parameter."""

    @wraps(f)
    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 1 and all(type(each) is int for each in args):
            raise ArgumentTypeError(
                f.__name__,
                "a shape is one argument",
                expected="a tuple of sizes, and parameters by name",
                got={"arguments": args},
                fix=f"wf.random.{f.__name__}({args})",
            )
        if args and isinstance(args[0], Tensor) and args[0].dtype is uint32:
            shape = args[1] if len(args) > 1 else "(2, 3)"
            raise ArgumentTypeError(
                f.__name__,
                "a key is passed by name",
                expected="the shape first",
                got={"arguments": args},
                fix=f"wf.random.{f.__name__}({shape}, key=key)",
            )
        return f(*args, **kwargs)

    return function


for _name in __all__:
    _function = globals()[_name]
    if next(iter(signature(_function).parameters), "") == "shape":
        globals()[_name] = _refuse_sizes(_function)
        globals()[_name].__module__ = __name__  # where pickle finds it
explain_all(globals(), __all__)
__getattr__ = missing_from("wf.random", __all__)
