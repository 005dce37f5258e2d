"""What runs in which dtype inside of `wf.autocast`: the table, and the functions that follow it.

`TABLE` is the whole policy. A function that stands in it casts its floating-point arguments as its
row says, and what it is made of is then not cast again. The functions below are those of `wf` and
of tensors; the library itself calls the originals, which know nothing of this, so that derivatives,
samples and decompositions have the dtypes that they were written for. Those of `wf.nn.functional`
are marked with `follow_table` where they are defined.

>>> import weft as wf
>>> from weft.ops.composed import precision
>>> with wf.autocast("bfloat16"):
...     {name: getattr(precision, name)(wf.ones((2, 2))).dtype.name for name in ("exp", "mean")}
{'exp': 'float32', 'mean': 'float32'}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

import numpy as np

from weft.core.dtypes import BY_NUMPY, DType, bfloat16, float32
from weft.core.wrong_calls import RECALLS
from weft.ir.autocast import AUTOCAST, FLOAT8, carried_dtype
from weft.ir.eager import unit_like
from weft.ir.tensor import Tensor
from weft.ops import elementary, float8, special
from weft.ops.arithmetic import add
from weft.ops.composed import (
    attention,
    convolutions,
    elementwise,
    matrix_functions,
    neural,
    norms,
    products,
    segments,
    statistics,
)
from weft.ops.operands import as_tensor, convert_to

__all__ = [
    "average", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "cosine_similarity", "cumulative_logsumexp", "cumulative_prod",
    "cumulative_sum", "einsum", "exp", "exp2", "expm1", "inner", "log", "log1p", "log2", "log10",
    "log_sigmoid", "log_softmax", "logaddexp", "logit", "logsumexp", "matmul", "matrix_norm",
    "mean", "multi_dot", "nanmean", "nansum", "norm", "normalize", "pow", "prod", "reciprocal",
    "rsqrt", "scaled_dot_product_attention", "segment_mean", "segment_sum", "softmax", "softmin",
    "softplus", "std", "sum", "tensordot", "var", "vecdot", "vector_norm", "xlog1py", "xlogy",
]  # fmt: skip

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Row(Enum):
    """A row of the table: what a function's floating-point arguments are cast to."""

    LOW = "the dtype of the block, where at least two tensors meet"
    LOWEST = "as products; in float8 where the block is of it and both features are multiples of 16"
    FULL = "float32, from 16 bits"
    OWN = "nothing: it computes in the widest dtype of its arguments, whatever it is made of"


_ROWS: dict[Row, tuple[str, ...]] = {
    Row.LOW: (
        # Products, which are most of the work, and sum in float32 whatever their operands are.
        "matmul", "einsum", "tensordot", "vecdot", "inner", "multi_dot", "bilinear",
        "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
        "scaled_dot_product_attention",
        "rnn_cell", "lstm_cell", "gru_cell", "recurrent_layer",
    ),
    Row.LOWEST: ("linear",),
    Row.FULL: (
        # What leaves the range of float16, or needs more than the 8 bits of bfloat16's digits.
        "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "logaddexp", "logit", "pow",
        "reciprocal", "rsqrt", "xlogy", "xlog1py", "softplus", "log_sigmoid",
        "softmax", "softmin", "log_softmax", "logsumexp", "cumulative_logsumexp",
        # Sums, whose error grows with the number of terms.
        "sum", "prod", "mean", "average", "nansum", "nanmean", "var", "std", "trace",
        "cumulative_sum", "cumulative_prod", "segment_sum", "segment_mean",
        "norm", "vector_norm", "matrix_norm", "normalize", "cosine_similarity",
        "local_response_norm", "pairwise_distance",
        # Losses.
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "gaussian_nll_loss",
        "hinge_embedding_loss", "margin_ranking_loss", "soft_margin_loss",
        "cosine_embedding_loss", "triplet_margin_loss", "cross_entropy", "nll_loss",
        "multi_margin_loss", "ctc_loss", "multilabel_margin_loss",
        "multilabel_soft_margin_loss",
    ),
    Row.OWN: (
        # Statistics of norms are float32 in any case, and their results have the input's dtype.
        "batch_norm", "instance_norm", "layer_norm", "rms_norm", "group_norm",
        "elu", "celu", "selu", "mish",
    ),
}  # fmt: skip
TABLE: dict[str, Row] = {name: row for row, names in _ROWS.items() for name in names}
"""The row of each function that stands in the table; all others are as those of `Row.OWN`."""


FLOAT8_UNIT = 16
"""What both features of a weight are a multiple of in float8: rows are then whole 16 bytes."""


def follow_table(f: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, which inside of `autocast` casts as its row of the table says.

    A unit stays one: it is compiled with its casts. One in the row of float8 takes what it
    multiplies first, and a third operand that is added.
    """
    casting = unit_like(f, _cast_and_call(getattr(f, "__wrapped__", f), TABLE[f.__name__]))
    function = wraps(f)(_switch_by_block(f, casting))
    if f in RECALLS:  # which remembers nothing inside of `autocast`
        RECALLS[function] = RECALLS[f]
    return function


def _cast_and_call(f: Callable[..., Any], row: Row) -> Callable[..., Any]:
    @wraps(f)
    def cast_and_call(*args: Any, **kwargs: Any) -> Any:
        dtype = AUTOCAST.get()
        AUTOCAST.set(None)
        try:
            if row is Row.LOWEST and dtype is FLOAT8:
                return _call_in_float8(f, *args, **kwargs)
            low = carried_dtype(dtype)
            if row is not Row.OWN and low is not None:
                args, kwargs = _cast_arguments(row, low, args, kwargs)
            return f(*args, **kwargs)
        finally:
            AUTOCAST.set(dtype)

    return cast_and_call


def _call_in_float8(f: Callable[..., Any], x: Any, weight: Any, bias: Any = None) -> Any:
    """A linear function of operands that are rounded to 8 bits, as the cotangent of its product is.

    The bias meets neither, so its gradient is the sum of what was not rounded.
    """
    operands = x, weight
    if not _takes_float8(operands):
        (x, weight, bias), _ = _cast_arguments(Row.LOW, bfloat16, (x, weight, bias), {})
        return f(x, weight, bias)
    tensors = [as_tensor(f.__name__, each) for each in operands]
    rounded = [float8.round_to_float8(each, float8.E4M3) for each in tensors]
    product = float8.round_cotangent(f(*rounded), float8.E5M2)
    return product if bias is None else add(product, _cast(bias, 32, bfloat16))


def _takes_float8(operands: tuple[Any, Any]) -> bool:
    """Whether both are real and narrow, and the weight is whole rows of 16 codes either way."""
    dtypes = [_dtype_of(each) for each in operands]
    is_narrow = all(each is not None and each.is_floating and each.bits <= 32 for each in dtypes)
    features = getattr(operands[1], "shape", ())
    is_whole = all(isinstance(each, int) and each % FLOAT8_UNIT == 0 for each in features)
    return is_narrow and is_whole and len(features) == 2


def _switch_by_block(plain: Callable[..., Any], casting: Callable[..., Any]) -> Callable[..., Any]:
    """One function outside of `autocast`, another one inside."""
    autocast = AUTOCAST.get
    parameters = signature(plain).parameters.values()
    takes_operands_only = all(each.kind is Parameter.POSITIONAL_ONLY for each in parameters)

    def unary(x: Any, /) -> Any:
        return plain(x) if autocast() is None else casting(x)

    def binary(x1: Any, x2: Any, /) -> Any:
        return plain(x1, x2) if autocast() is None else casting(x1, x2)

    def function(*args: Any, **kwargs: Any) -> Any:
        return (plain if autocast() is None else casting)(*args, **kwargs)

    if takes_operands_only and len(parameters) <= 2:  # element by element: quicker to call
        return unary if len(parameters) == 1 else binary
    return function


def _cast_arguments(
    row: Row, dtype: DType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    found = [*_float_dtypes((args, tuple(kwargs.values())))]
    if row in (Row.LOW, Row.LOWEST) and (len(found) < 2 or any(kind.bits > 32 for kind in found)):
        return args, kwargs
    bits, wanted = (16, float32) if row is Row.FULL else (32, dtype)
    named = {name: _cast(value, bits, wanted) for name, value in kwargs.items()}
    return _cast(args, bits, wanted), named


def _float_dtypes(value: Any) -> Iterator[DType]:
    """The dtypes of all floating-point and complex arrays among arguments."""
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from _float_dtypes(each)
    elif (dtype := _dtype_of(value)) is not None and dtype.is_inexact:
        yield dtype


def _cast(value: Any, bits: int, wanted: DType) -> Any:
    """A tensor of real numbers with at most so many bits as another dtype; what else it may be."""
    if type(value) in (tuple, list):
        return type(value)([_cast(each, bits, wanted) for each in value])
    dtype = _dtype_of(value)
    if dtype is None or not dtype.is_floating or dtype.bits > bits:
        return value
    return convert_to(value, wanted) if isinstance(value, Tensor) else value.astype(wanted.numpy)


def _dtype_of(value: Any) -> DType | None:
    if isinstance(value, Tensor):
        return value.dtype
    return BY_NUMPY.get(value.dtype) if isinstance(value, np.ndarray) else None


def _public(f: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A function of the library as users call it."""
    function = follow_table(f)
    if function.__module__ != "weft":
        function.__module__ = __name__  # where it is found again by its name, as pickle does
    return function


matmul = _public(products.matmul)
einsum = _public(products.einsum)
tensordot = _public(products.tensordot)
vecdot = _public(products.vecdot)
inner = _public(products.inner)
multi_dot = _public(matrix_functions.multi_dot)
conv1d = _public(convolutions.conv1d)
conv2d = _public(convolutions.conv2d)
conv3d = _public(convolutions.conv3d)
conv_transpose1d = _public(convolutions.conv_transpose1d)
conv_transpose2d = _public(convolutions.conv_transpose2d)
conv_transpose3d = _public(convolutions.conv_transpose3d)
scaled_dot_product_attention = _public(attention.scaled_dot_product_attention)

exp = _public(elementary.exp)
exp2 = _public(elementary.exp2)
expm1 = _public(elementary.expm1)
log = _public(elementary.log)
log1p = _public(elementary.log1p)
log2 = _public(elementary.log2)
log10 = _public(elementary.log10)
logaddexp = _public(elementary.logaddexp)
pow = _public(elementary.pow)
rsqrt = _public(elementary.rsqrt)
xlogy = _public(special.xlogy)
xlog1py = _public(special.xlog1py)
logit = _public(elementwise.logit)
reciprocal = _public(elementwise.reciprocal)
softplus = _public(elementwise.softplus)
log_sigmoid = _public(elementwise.log_sigmoid)
softmax = _public(neural.softmax)
softmin = _public(neural.softmin)
log_softmax = _public(neural.log_softmax)

sum = _public(statistics.sum)
prod = _public(statistics.prod)
mean = _public(statistics.mean)
average = _public(statistics.average)
nansum = _public(statistics.nansum)
nanmean = _public(statistics.nanmean)
var = _public(statistics.var)
std = _public(statistics.std)
logsumexp = _public(statistics.logsumexp)
cumulative_sum = _public(statistics.cumulative_sum)
cumulative_prod = _public(statistics.cumulative_prod)
cumulative_logsumexp = _public(statistics.cumulative_logsumexp)
segment_sum = _public(segments.segment_sum)
segment_mean = _public(segments.segment_mean)
norm = _public(norms.norm)
vector_norm = _public(norms.vector_norm)
matrix_norm = _public(norms.matrix_norm)
normalize = _public(neural.normalize)
cosine_similarity = _public(neural.cosine_similarity)
