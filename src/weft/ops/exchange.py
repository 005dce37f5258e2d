"""Exchange with the rest of Python: numbers, lists, NumPy, DLPack, pickles, copies.

Arrays handed out are read-only views, since tensors are values.

>>> import weft as wf
>>> wf.tensor([1, 2]).numpy().flags.writeable
False
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from opcode import opmap
from types import FrameType
from typing import Any

import numpy as np

from weft.core.arrays import EXCHANGES, is_concrete, is_host, not_on_host
from weft.core.cache_lines import copy_on_line
from weft.core.devices import CPU, is_device
from weft.core.dtypes import as_dtype
from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    GradientError,
    ShapeError,
)
from weft.core.sharing import is_lent
from weft.ir.forward import has_derivative
from weft.ir.tape import Leaf, is_own_leaf
from weft.ir.tensor import Tensor, gradient_touched, host_array, wrap
from weft.ops.conversion import astype
from weft.ops.dlpack import CPU_KIND, CUDA_KIND, export_capsule
from weft.ops.placement import to_device

Array = np.ndarray[Any, Any]


def numpy(x: Tensor) -> Array:
    """The values as a NumPy array on the same memory, read-only."""
    _refuse_derivative("numpy", x)
    view = host_array(x, "numpy").view()
    view.flags.writeable = False
    return view


def _refuse_derivative(op: str, x: Tensor) -> None:
    """What leaves the framework is not recorded: refuse where a derivative would be lost."""
    if has_derivative(x):
        raise GradientError(
            op,
            "outside the framework nothing is recorded for the derivative of this tensor",
            expected="a tensor of which no derivative is taken",
            got={"x": x},
            fix="use weft functions, or give the derivative up on purpose: x.detach().numpy()",
        )


def array(x: Tensor, dtype: Any = None, copy: bool | None = None) -> Array:
    """`np.asarray(x)`: without a copy where the dtype allows it."""
    view = numpy(x)
    if dtype is not None and view.dtype != dtype:
        if copy is False:
            raise ArgumentError(
                "numpy",
                "another dtype cannot be had without a copy",
                expected=f"dtype {view.dtype}",
                got={"x": x, "dtype": dtype, "copy": copy},
                fix="let it copy: np.asarray(x, dtype)",
            )
        return view.astype(dtype)
    return view.copy() if copy else view


def item(x: Tensor) -> Any:
    """The one element as a Python number."""
    value = host_array(x, "item")
    if value.size != 1:
        raise ArgumentError(
            "item",
            "the tensor does not have exactly one element",
            expected="one element",
            got={"x": x},
            fix="index the element first, or use x.tolist()",
        )
    element = value.item()
    return float(element) if x.dtype.is_floating else element


def tolist(x: Tensor) -> Any:
    """The values as nested lists of Python numbers."""
    value = host_array(x, "tolist")
    return (value.astype(np.float32) if value.dtype.kind == "V" else value).tolist()


def truth(x: Tensor) -> bool:
    """`bool(x)` of a tensor with one element."""
    value = host_array(x, "bool()")
    if value.size != 1:
        raise ArgumentError(
            "bool()",
            "the truth of a tensor with several elements is ambiguous",
            expected="one element",
            got={"x": x},
            fix="say which you mean: x.any() or x.all(); between tensors write & and |",
        )
    return bool(value.reshape(())[()])


def as_integer(x: Tensor) -> int:
    """`int(x)` of a tensor with one element."""
    return int(_real_number(x, "int()"))


def as_float(x: Tensor) -> float:
    """`float(x)` of a tensor with one element."""
    return float(_real_number(x, "float()"))


def as_complex(x: Tensor) -> complex:
    """`complex(x)` of a tensor with one element."""
    return complex(item(x))


def index(x: Tensor) -> int:
    """`operator.index(x)` of an integer tensor with one element."""
    if not x.dtype.is_integer:
        raise DTypeError(
            "index",
            "only integer tensors can be used as an index",
            expected="an integer dtype",
            got={"x": x},
            fix='convert it first: x.astype("int64")',
        )
    return int(_real_number(x, "index"))


def _real_number(x: Tensor, purpose: str) -> Any:
    if x.dtype.is_complex:
        raise DTypeError(
            purpose,
            "a complex number is not a real one",
            expected="a real dtype",
            got={"x": x},
            fix="take x.real, x.imag or abs(x) first",
        )
    value = host_array(x, purpose)
    if value.size != 1:
        raise ArgumentError(
            purpose,
            "the tensor does not have exactly one element",
            expected="one element",
            got={"x": x},
            fix="index the element first, or reduce with x.sum() or x.mean()",
        )
    return value.item()


def iterate(x: Tensor) -> Iterator[Tensor]:
    """The parts along the first axis."""
    if x.ndim == 0:
        raise ArgumentTypeError(
            "iter",
            "a tensor without axes cannot be iterated",
            expected="at least one axis",
            got={"x": x},
            fix="take the number itself: x.item()",
        )
    _check_unpacking(x, sys._getframe(1))
    return (x[position] for position in range(len(x)))


def _check_unpacking(x: Tensor, caller: FrameType) -> None:
    """Refuse `values, places = x.max(axis=1)`: of a tensor, names take rows, one each."""
    place, code = caller.f_lasti, caller.f_code.co_code
    if place < 0 or code[place] != _UNPACK or code[place + 1] == len(x):
        return
    fix = "functions give one result each: values = x.max(axis=1), places = x.argmax(axis=1)"
    if code[place + 1] == 1:
        fix = "a batch of one array is the array itself: for x in loader, not for (x,) in loader"
    names = "1 name" if code[place + 1] == 1 else f"{code[place + 1]} names"
    raise ShapeError(
        "unpacking",
        f"{names} for a tensor of {len(x)} rows",
        expected=f"{len(x)} names, or one",
        got={"x": x},
        fix=fix,
    )


_UNPACK = opmap["UNPACK_SEQUENCE"]


def dlpack(
    x: Tensor,
    /,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """The tensor's memory for another library, without a copy unless one is asked for."""
    _refuse_derivative("__dlpack__", x)
    wanted = None if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    own = dlpack_device(x, "__dlpack__")
    to_host_memory = wanted == (CPU_KIND, 0) and own != wanted and copy is not False
    if wanted not in (None, own) and not to_host_memory:
        raise _no_such_copy(x, stream, dl_device)
    if own[0] == CPU_KIND or to_host_memory:
        if stream is not None and own[0] == CPU_KIND:
            raise _no_such_copy(x, stream, dl_device)
        return export_capsule(host_array(x, "__dlpack__"), max_version, copy)
    return EXCHANGES["cuda"].export_array(x._value, stream, max_version, copy)


def _no_such_copy(x: Tensor, stream: Any, dl_device: Any) -> DeviceError:
    place = f"dl_device=None or {dlpack_device(x)}"
    if x.device == CPU:
        problem, expected = "the CPU's memory, which has no streams", f"stream=None, and {place}"
    else:
        problem, expected = f"the memory of {x.device}, and is not copied to a third device", place
    return DeviceError(
        "__dlpack__",
        f"the tensor is in {problem}",
        expected=expected,
        got={"stream": stream, "dl_device": dl_device},
        fix="leave stream= and dl_device= out",
    )


def dlpack_device(x: Tensor, op: str = "__dlpack_device__") -> tuple[int, int]:
    """The device in DLPack's numbers: the CPU is (1, 0), the first card (2, 0)."""
    if x.device == CPU:
        return CPU_KIND, 0
    if x.device.family not in EXCHANGES:
        raise not_on_host(op, x)
    if not is_concrete(x._value):
        host_array(x, op)  # which says that there is no value yet
    return CUDA_KIND, x.device.index


def cuda_array_interface(x: Tensor) -> dict[str, Any]:
    """The memory of a tensor on a card for another library; see `__dlpack__`, which knows more."""
    said = None
    if is_concrete(x._value) and x.device.family in EXCHANGES:
        _refuse_derivative("__cuda_array_interface__", x)
        said = EXCHANGES[x.device.family].array_interface(x._value)
    if said is None:
        raise AttributeError(f"{x.type} on {x.device} has no __cuda_array_interface__")
    return said


def reduce_tensor(x: Tensor) -> tuple[Any, ...]:
    """What a pickle holds: bytes, shape, dtype, and whether a gradient is required."""
    value = host_array(x, "pickle")
    leaf = is_own_leaf(x)
    return restored, (value.tobytes(), value.shape, x.dtype.name, leaf)


def restored(data: bytes, shape: tuple[int, ...], dtype: str, leaf: bool) -> Tensor:
    """The tensor that `reduce_tensor` described."""
    flat = np.frombuffer(bytearray(data), as_dtype(dtype).numpy)
    tensor = wrap(flat.reshape(shape))
    if leaf:
        tensor._node = Leaf(tensor)
    return tensor


def own_value(x: Tensor) -> Tensor:
    """The tensor, in memory that nobody else writes to and that has no gaps."""
    value = x._value
    is_own = not is_host(value) or (value.flags.c_contiguous and not is_lent(value))
    return x if is_own else wrap(copy_on_line(value), x._node)


def copy_handle(x: Tensor) -> Tensor:
    """A new handle on the same value: a leaf stays a leaf, on its own."""
    tensor = wrap(x._value, x._node)
    if is_own_leaf(x):
        tensor._node = Leaf(tensor)
        gradient_touched(x, written=False)
        tensor._grad = None if x._grad is None else copy_handle(x._grad)
    return tensor


def deep_copy(x: Tensor, memo: Any) -> Tensor:
    """The same for `copy.deepcopy`, which shares no memory with others."""
    tensor = copy_handle(x)
    for each in (tensor, tensor._grad):
        if each is not None:
            each._value = own_value(each)._value
    return tensor


def to(x: Tensor, target: Any) -> Tensor:
    """The tensor on a device, or with another dtype."""
    if is_device(target):
        return to_device(x, target)
    dtype = as_dtype(target)
    return astype(x, dtype, copy=False)


def to_cpu(x: Tensor, /) -> Tensor:
    """The tensor in the host's memory: itself where it is there already, else a copy."""
    return to_device(x, "cpu")


def to_cuda(x: Tensor, device: Any = None, /) -> Tensor:
    """The tensor on a card, the first one unless its number or name is given."""
    return to_device(x, f"cuda:{device}" if isinstance(device, int) else device or "cuda")
