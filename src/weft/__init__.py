"""Weft: tensors, derivatives and transforms, in ordinary Python.

    import weft as wf

    x = wf.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()

This file is the public interface: what it lists in `__all__` is what users may rely on. Heavy parts
are loaded on first use.

>>> import weft as wf
>>> wf.grad(lambda x: (x ** 2).sum())(wf.tensor([1.0, 2.0])).tolist()
[2.0, 4.0]
"""

from __future__ import annotations

import sys as _sys
from importlib import import_module as _import_module
from typing import Any as _Any

from weft import ir
from weft.core import tracebacks as _tracebacks
from weft.core import trees as tree
from weft.core.devices import FINDERS as _FINDERS
from weft.core.devices import Device, device
from weft.core.dtypes import (
    DType,
    bfloat16,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from weft.core.dtypes import (
    bool_ as bool,
)
from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    BoundsError,
    CheckError,
    DeviceError,
    DTypeError,
    GradientError,
    GraphError,
    ImportNameError,
    LeakError,
    MiscompiledError,
    NameUnknownError,
    NanError,
    OutOfMemoryError,
    ProcessError,
    ShapeError,
    TraceError,
    Unsupported,
    UnsupportedError,
    WeftError,
)
from weft.core.names import PUBLIC as _PUBLIC
from weft.core.names import MissingModules as _MissingModules
from weft.core.names import missing_name as _missing_name
from weft.core.settings import settings
from weft.core.shapes import Dim, symbol
from weft.core.types import TensorType, spec
from weft.core.wrong_calls import explain_all as _explain_all
from weft.einops_backend import watch_einops as _watch_einops
from weft.ir import eager as _eager
from weft.ir.autocast import autocast, autocast_dtype
from weft.ir.tensor import Tensor
from weft.ops import collectives as _collectives  # noqa: F401  registers its primitives
from weft.ops import debugging as _debugging  # noqa: F401  registers its primitives
from weft.ops.arithmetic import (
    abs,
    add,
    ceil,
    conj,
    copysign,
    divide,
    floor,
    floor_divide,
    fmod,
    hypot,
    imag,
    maximum,
    minimum,
    multiply,
    negative,
    nextafter,
    positive,
    real,
    remainder,
    round,
    sign,
    square,
    subtract,
    trunc,
)
from weft.ops.comparison import (
    equal,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    not_equal,
    signbit,
)
from weft.ops.composed import datatypes as _datatypes
from weft.ops.composed import fft, linalg, random
from weft.ops.composed.control import case, cond, fori_loop, map, scan, switch, while_loop
from weft.ops.composed.correlation import allclose, corrcoef, cov
from weft.ops.composed.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tensor,
    tril,
    triu,
    zeros,
    zeros_like,
)
from weft.ops.composed.datatypes import (
    can_cast,
    e,
    finfo,
    iinfo,
    inf,
    isdtype,
    nan,
    newaxis,
    pi,
    result_type,
)
from weft.ops.composed.elementwise import (
    deg2rad,
    gelu,
    isclose,
    isneginf,
    isposinf,
    lerp,
    nan_to_num,
    rad2deg,
    silu,
    sinc,
)
from weft.ops.composed.gathering import (
    dynamic_slice,
    dynamic_update_slice,
    gather,
    index_add,
    index_copy,
    index_put,
    masked_fill,
    masked_select,
    put_along_axis,
    scatter,
    scatter_add,
    scatter_reduce,
    take,
    take_along_axis,
)
from weft.ops.composed.interpolation import interpolate
from weft.ops.composed.manipulation import (
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    permute_dims,
    repeat,
    reshape,
    roll,
    squeeze,
    stack,
    swapaxes,
    tile,
    transpose,
    unstack,
)
from weft.ops.composed.neural import (
    glu,
)
from weft.ops.composed.norms import cdist
from weft.ops.composed.padding import pad
from weft.ops.composed.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from weft.ops.composed.precision import (
    average,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    cosine_similarity,
    cumulative_logsumexp,
    cumulative_prod,
    cumulative_sum,
    einsum,
    exp,
    exp2,
    expm1,
    inner,
    log,
    log1p,
    log2,
    log10,
    log_sigmoid,
    log_softmax,
    logaddexp,
    logit,
    logsumexp,
    matmul,
    mean,
    nanmean,
    nansum,
    normalize,
    pow,
    prod,
    reciprocal,
    rsqrt,
    scaled_dot_product_attention,
    segment_mean,
    segment_sum,
    softmax,
    softmin,
    softplus,
    std,
    sum,
    tensordot,
    var,
    vecdot,
    xlog1py,
    xlogy,
)
from weft.ops.composed.products import (
    addmm,
    kron,
    matrix_transpose,
    outer,
)
from weft.ops.composed.rearrangement import (
    as_windows,
    atleast_1d,
    atleast_2d,
    atleast_3d,
    chunk,
    diag,
    diag_embed,
    diagonal,
    flatten,
    hstack,
    narrow,
    ravel,
    rot90,
    split,
    unfold,
    vstack,
)
from weft.ops.composed.searching import (
    argsort,
    bucketize,
    count_nonzero,
    isin,
    nonzero,
    searchsorted,
    sort,
    topk,
)
from weft.ops.composed.segments import (
    bincount,
    histogram,
    one_hot,
    segment_max,
    segment_min,
)
from weft.ops.composed.sets import unique_all, unique_counts, unique_inverse, unique_values
from weft.ops.composed.spectra import (
    bartlett_window,
    blackman_window,
    hamming_window,
    hann_window,
    istft,
    kaiser_window,
    stft,
)
from weft.ops.composed.statistics import (
    all,
    any,
    argmax,
    argmin,
    cummax,
    cummin,
    diff,
    max,
    median,
    min,
    quantile,
)
from weft.ops.conversion import astype, bitcast
from weft.ops.elementary import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cbrt,
    cos,
    cosh,
    relu,
    sigmoid,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
)
from weft.ops.identity import stop_gradient
from weft.ops.logic import (
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
)
from weft.ops.placement import default_device
from weft.ops.selection import clip, where
from weft.ops.special import (
    digamma,
    erf,
    erfc,
    erfinv,
    i0,
    i0e,
    i1,
    i1e,
    lgamma,
    polygamma,
)
from weft.transforms import methods as _methods
from weft.transforms import staging
from weft.transforms.backward import enable_grad, is_grad_enabled, no_grad
from weft.transforms.checked import (
    BFloat16,
    Bool,
    Complex,
    Complex64,
    Complex128,
    Float,
    Float16,
    Float32,
    Float64,
    Int,
    Int8,
    Int16,
    Int32,
    Int64,
    Shaped,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    checked,
)
from weft.transforms.checkpoint import checkpoint
from weft.transforms.custom import custom_derivative
from weft.transforms.gradients import (
    grad,
    hessian,
    hvp,
    jacobian,
    jvp,
    linearize,
    value_and_grad,
    vjp,
)
from weft.transforms.tape_gradients import gradients
from weft.transforms.vmap import vmap

__version__ = "0.1.0"
__array_api_version__ = _datatypes.STANDARD_VERSIONS[-1]
__array_namespace_info__ = _datatypes.namespace_info

__all__ = [
    "ArgumentError", "ArgumentTypeError", "AxisError", "BFloat16", "Bool", "BoundsError",
    "CheckError", "Complex", "Complex64", "Complex128", "DType", "DTypeError", "Device",
    "DeviceError", "Dim", "Float", "Float16", "Float32", "Float64", "GradientError", "Graph",
    "GraphError", "ImportNameError", "Int", "Int8", "Int16", "Int32", "Int64", "LeakError",
    "MiscompiledError", "NameUnknownError", "NanError", "OutOfMemoryError", "ProcessError",
    "Session", "ShapeError", "Shaped", "Tensor", "TensorType", "TraceError", "UInt8", "UInt16",
    "UInt32", "UInt64", "Unsupported", "UnsupportedError", "Variable", "WeftError",
    "__array_api_version__", "__array_namespace_info__", "__version__", "abs", "acos", "acosh",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "add", "addmm", "all", "allclose", "any",
    "arange", "argmax", "argmin", "argsort", "as_windows", "asarray", "asin", "asinh", "astype",
    "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "autocast",
    "autocast_dtype", "average", "avg_pool1d", "avg_pool2d", "avg_pool3d", "bartlett_window",
    "bfloat16", "bincount", "bitcast", "bitwise_and", "bitwise_invert", "bitwise_left_shift",
    "bitwise_or", "bitwise_right_shift", "bitwise_xor", "blackman_window", "bool",
    "broadcast_arrays", "broadcast_shapes", "broadcast_to", "bucketize", "can_cast", "case", "cbrt",
    "cdist", "ceil", "checked", "checkpoint", "chunk", "clip", "compiler", "complex64",
    "complex128", "concat", "concatenate", "cond", "config", "conj", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "copysign", "corrcoef", "cos",
    "cosh", "cosine_similarity", "count_nonzero", "cov", "cuda", "cummax", "cummin", "cumprod",
    "cumsum", "cumulative_logsumexp", "cumulative_prod", "cumulative_sum", "custom",
    "custom_derivative", "data", "debug", "default_device", "deg2rad", "deploy", "device", "diag",
    "diag_embed", "diagonal", "diff", "digamma", "distributed", "divide", "dynamic_slice",
    "dynamic_update_slice", "e", "einsum", "empty", "empty_like", "enable_grad", "equal", "erf",
    "erfc", "erfinv", "estimators", "exp", "exp2", "expand_dims", "explain", "expm1", "export",
    "eye", "fft", "finfo", "flatten", "flip", "float16", "float32", "float64", "floor",
    "floor_divide", "flops", "fmod", "fori_loop", "from_dlpack", "full", "full_like",
    "functional_call", "gather", "gelu", "get_num_threads", "global_variables",
    "global_variables_initializer", "glu", "grad", "gradients", "graph", "greater", "greater_equal",
    "group", "hamming_window", "hann_window", "hessian", "histogram", "hstack", "hvp", "hypot",
    "i0", "i0e", "i1", "i1e", "iinfo", "imag", "index_add", "index_copy", "index_put", "inf",
    "inner", "int8", "int16", "int32", "int64", "interpolate", "ir", "is_grad_enabled", "isclose",
    "isdtype", "isfinite", "isin", "isinf", "isnan", "isneginf", "isposinf", "istft", "jacobian",
    "jit", "jvp", "kaiser_window", "kron", "lerp", "less", "less_equal", "lgamma", "linalg",
    "linearize", "linspace", "load", "log", "log1p", "log2", "log10", "log_sigmoid", "log_softmax",
    "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "logit", "logsumexp",
    "map", "masked_fill", "masked_select", "matmul", "matrix_transpose", "max", "max_pool1d",
    "max_pool2d", "max_pool3d", "maximum", "mean", "median", "meshgrid", "min", "minimum", "models",
    "moveaxis", "multiply", "name_scope", "nan", "nan_to_num", "nanmean", "nansum", "narrow",
    "negative", "newaxis", "nextafter", "nn", "no_grad", "nonzero", "normalize", "not_equal",
    "one_hot", "ones", "ones_like", "onnx", "optim", "outer", "pad", "permute_dims", "pi",
    "placeholder", "polygamma", "positive", "pow", "prepare_inference", "primitive", "prod",
    "put_along_axis", "quantile", "rad2deg", "random", "ravel", "real", "reciprocal", "relu",
    "remainder", "repeat", "reset_default_graph", "reshape", "result_type", "roll", "rot90",
    "round", "rsqrt", "save", "scaled_dot_product_attention", "scan", "scatter", "scatter_add",
    "scatter_reduce", "script", "searchsorted", "segment_max", "segment_mean", "segment_min",
    "segment_sum", "set_num_threads", "settings", "sigmoid", "sign", "signbit", "silu", "sin",
    "sinc", "sinh", "softmax", "softmin", "softplus", "sort", "spec", "split", "sqrt", "square",
    "squeeze", "stack", "staging", "std", "stft", "stop_gradient", "subtract", "sum", "swapaxes",
    "switch", "symbol", "take", "take_along_axis", "tan", "tanh", "tensor", "tensordot", "testing",
    "tile", "timings", "tools", "topk", "train", "trainable_variables", "transpose", "tree", "tril",
    "triu", "trunc", "uint8", "uint16", "uint32", "uint64", "unfold", "unique_all", "unique_counts",
    "unique_inverse", "unique_values", "unstack", "value_and_grad", "var", "vecdot", "vjp", "vmap",
    "vstack", "where", "while_loop", "xlog1py", "xlogy", "zeros", "zeros_like",
]  # fmt: skip

_explain_all(globals(), __all__)
concatenate = concat
cumsum = cumulative_sum
cumprod = cumulative_prod

_LAZY = {
    "Graph": "weft.graph",
    "Session": "weft.graph",
    "Variable": "weft.graph",
    "compiler": "weft.compiler",
    "config": "weft.config",
    "cuda": "weft.cuda",
    "custom": "weft.custom",
    "data": "weft.data",
    "debug": "weft.debug",
    "deploy": "weft.deploy",
    "distributed": "weft.distributed",
    "estimators": "weft.estimators",
    "explain": "weft.compiler.report.explain",
    "export": "weft.exporting",
    "flops": "weft.compiler.fusion.costs",
    "functional_call": "weft.nn",
    "get_num_threads": "weft.runtime.threads",
    "global_variables": "weft.graph",
    "global_variables_initializer": "weft.graph",
    "graph": "weft.graph",
    "group": "weft.graph",
    "jit": "weft.compiler.function.jit",
    "load": "weft.serialization",
    "models": "weft.models",
    "name_scope": "weft.graph",
    "nn": "weft.nn",
    "onnx": "weft.onnx",
    "optim": "weft.optim",
    "placeholder": "weft.graph",
    "reset_default_graph": "weft.graph",
    "prepare_inference": "weft.deploy",
    "primitive": "weft.ops.defining",
    "save": "weft.serialization",
    "script": "weft.script.decorator",
    "set_num_threads": "weft.runtime.threads",
    "testing": "weft.testing",
    "timings": "weft.compiler.report.timings",
    "tools": "weft.tools",
    "train": "weft.train",
    "trainable_variables": "weft.graph",
}
"""Heavy parts, and where they are."""


def __getattr__(name: str) -> _Any:
    """Load a heavy part on first use."""
    if name in _LAZY:
        module = _import_module(_LAZY[name])
        found = module if module.__name__ == f"weft.{name}" else getattr(module, name)
        globals()[name] = found
        _explain_all(globals(), [name])
        return globals()[name]
    if name.startswith("_"):
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    raise _missing_name("wf", name, __all__, _sys._getframe(1))


def __dir__() -> list[str]:
    return __all__


def _compile_unit(*call: _Any) -> _Any:
    """Load the compiler for the first large eager operation."""
    return _import_module("weft.compiler.function.units").compile_unit(*call)


def _ordered_copy(array: _Any) -> _Any:
    """Load the compiler for the first large copy."""
    copies = _import_module("weft.compiler.targets.cpu.runtime.ordered_copies")
    _eager.COPY[0] = copies.ordered_copy
    return copies.ordered_copy(array)


def _new_book() -> _Any:
    return _import_module("weft.compiler.function.fastcall.books").new_book()


def _jit(f: _Any) -> _Any:
    return _import_module("weft.compiler.function.jit").jit(f)


def _find_card(name: str) -> Device:
    """Load the driver for the first tensor on a card."""
    found: Device = _import_module("weft.cuda").find_card(name)
    return found


_FINDERS["cuda"] = _find_card
_eager.COMPILE.append(_compile_unit)
_eager.COPY.append(_ordered_copy)
_eager.JIT.append(_jit)
_eager.BOOKS.append(_new_book)
_methods.NAMESPACE.append(_sys.modules[__name__])
_PUBLIC.append(_sys.modules[__name__])
_sys.modules |= {f"weft.{name}": globals()[name] for name in ("fft", "linalg", "random", "tree")}
_sys.meta_path.append(_MissingModules())
_tracebacks.install()
_watch_einops()
