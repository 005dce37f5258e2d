"""The tensor: a handle on a value.

A handle holds a value (an array on some device, see core/arrays.py, or what a transform traces in
its place) and the tape node that made it. Writing to a tensor rebinds its handle; values never
change. The operations themselves are installed by the layer above, each in the slot declared for it
here.

>>> from weft.ir.tensor import Tensor, wrap
>>> import numpy as np
>>> wrap(np.zeros((2, 3), np.float32)).type
f32[2, 3]
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from weft.core.arrays import CONCRETE, HostArray, to_host
from weft.core.devices import CPU, Device
from weft.core.dtypes import BY_NUMPY, DType
from weft.core.errors import ArgumentTypeError, LeakError, TraceError
from weft.core.locations import Location
from weft.core.shapes import Dimension, Shape, size
from weft.core.types import TensorType


class Trace:
    """One running transformation. Its level says how deeply it is nested; the deepest one acts."""

    level: int = 0
    active: bool = True
    name: str = "trace"
    stages: bool = False
    """Whether calls without operands are recorded instead of computed."""
    claims: bool = False
    """Whether it records what is done inside it to tensors of traces outside, too."""
    adopts: bool = False
    """Whether handles that are written to become state of the traced program."""
    device: Device = CPU
    """Where what is traced will be computed, unless something in it says otherwise."""
    is_placed: bool = True
    """Whether that is known; else it is beside the first tensor of a device that is used."""
    spans_devices: bool = False
    """Whether it records moves to other devices, and what is computed there."""
    location: Location | None = None
    axis_name: str | None = None
    """The mesh axis whose shards it holds along its batch axis; see `vmap`."""
    axis_size: Dimension = 1

    stopped: int | None = None
    """The block of `no_grad` that it began in (`GradMode`); None for what never began."""

    def is_stopping(self) -> bool:
        """Whether `no_grad` was entered since it began, so that what it makes is constant."""
        return self.stopped is not None and grad_mode.stopped > self.stopped

    @cached_property
    def part_counts(self) -> dict[str, int]:
        """How often each part was entered; see scoping.py."""
        return {}

    def process_primitive(
        self, primitive: Any, operands: tuple[Tensor, ...], params: dict[str, Any], types: Any
    ) -> Any:
        """The result of a primitive on operands of which at least one belongs to this trace."""
        raise NotImplementedError

    def adopt(self, handle: Tensor) -> None:
        """Remember a handle that is about to be written to."""

    def touch_gradient(self, handle: Tensor, written: bool) -> None:
        """Remember that a handle's gradient was looked at, or replaced."""


class Traced:
    """What stands in a tensor's place while a transform runs: a type, and the trace it is in."""

    __slots__ = ("trace", "type")
    trace: Trace
    type: TensorType

    @property
    def shape(self) -> Shape:
        """The shape of the tensor this stands for."""
        return self.type.shape

    @property
    def device(self) -> Device:
        """Where the tensor that this stands for will be computed."""
        return self.trace.device

    def host_array(self, purpose: str) -> np.ndarray[Any, Any]:
        """The array behind it, for `bool()`, `float()` and the like, or why there is none."""
        raise TraceError(
            purpose,
            f"a tensor traced by {self.trace.name} has no value yet",
            expected="a concrete tensor",
            got={"x": self.type},
            fix=_WITHOUT_VALUE.get(purpose, "compute it outside, on the result"),
        )


_WITHOUT_VALUE = {
    "bool()": "write @wf.script above the function, which compiles if and while; or choose with "
    "wf.where(c, a, b), or between functions with wf.cond(c, f, g, x)",
    "numpy": "use weft functions here: wf.sin(x) in place of np.sin(x)",
    "index": "loop with wf.fori_loop(0, n, body, init), or pass n as a Python integer",
    "int()": "keep it a tensor: x.astype(wf.int64)",
    "float()": "keep it a tensor: x in place of float(x)",
    "item": "keep it a tensor: x in place of x.item()",
}
"""What to do where Python asks a traced tensor for its value."""


class GradMode(threading.local):
    """Whether operations are recorded for `.backward()`, in this thread."""

    enabled: bool = True
    stopped: int = 0
    """The innermost block of `no_grad` that the user has opened; later ones have greater numbers,
    and 0 stands for none, or for `enable_grad` inside of one."""


grad_mode = GradMode()


class Traces(threading.local):
    """The running traces of this thread, outermost first."""

    def __init__(self) -> None:
        self.stack: list[Trace] = []
        self.recording: list[Trace] = []
        """Those of them that take calls without operands; see dispatch.py."""
        self.keeper: Any = None
        """What sees each call in a function that will be run again; see checkpoint.py."""
        self.by_reference = False
        """Whether large tensors are worked on as small ones are; see eager.py."""
        self.device: Device | None = None
        """Where what is made of no operands is made, if that is said; see `constants_on`."""
        self.axis_name: str | None = None
        """The mesh axis of the batch whose rule is running; graphs are batched over it, too."""


traces = Traces()


class constants_on:  # noqa: N801  a context manager, called as a function is
    """Inside, what is made of no operands (zeros, counts, random bits) is made on a device.

    So derivatives, and functions that need a mask or a count, find these beside their operands.
    """

    __slots__ = ("_before", "_device")

    def __init__(self, device: Device | None) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._before, traces.device = traces.device, self._device

    def __exit__(self, *raised: object) -> None:
        traces.device = self._before


def about_to_write(handle: Tensor) -> None:
    """Tell the running traces that a handle will stand for another value, or get a gradient."""
    if traces.keeper is not None:
        traces.keeper.adopt(handle)
    for trace in reversed(traces.stack):
        if trace.adopts:
            trace.adopt(handle)
            return


def gradient_touched(handle: Tensor, *, written: bool) -> None:
    """Tell the running traces that a handle's gradient is looked at, or replaced."""
    for trace in reversed(traces.stack):
        if trace.adopts:
            trace.touch_gradient(handle, written)
            return


class Tensor:
    """A multi-dimensional array of one element type; a value with a derivative."""

    __slots__ = ("__weakref__", "_grad", "_node", "_origin", "_value")
    _value: Any
    _node: Any
    _grad: Tensor | None
    _origin: Any  # what it is a part of; see parts.py

    __add__: ClassVar[Callable[..., Tensor]]
    __radd__: ClassVar[Callable[..., Tensor]]
    __sub__: ClassVar[Callable[..., Tensor]]
    __rsub__: ClassVar[Callable[..., Tensor]]
    __mul__: ClassVar[Callable[..., Tensor]]
    __rmul__: ClassVar[Callable[..., Tensor]]
    __truediv__: ClassVar[Callable[..., Tensor]]
    __rtruediv__: ClassVar[Callable[..., Tensor]]
    __floordiv__: ClassVar[Callable[..., Tensor]]
    __mod__: ClassVar[Callable[..., Tensor]]
    __pow__: ClassVar[Callable[..., Tensor]]
    __rpow__: ClassVar[Callable[..., Tensor]]
    __matmul__: ClassVar[Callable[..., Tensor]]
    __neg__: ClassVar[Callable[..., Tensor]]
    __lt__: ClassVar[Callable[..., Tensor]]
    __le__: ClassVar[Callable[..., Tensor]]
    __gt__: ClassVar[Callable[..., Tensor]]
    __ge__: ClassVar[Callable[..., Tensor]]
    __and__: ClassVar[Callable[..., Tensor]]
    __or__: ClassVar[Callable[..., Tensor]]
    __xor__: ClassVar[Callable[..., Tensor]]
    __invert__: ClassVar[Callable[..., Tensor]]
    __lshift__: ClassVar[Callable[..., Tensor]]
    __rshift__: ClassVar[Callable[..., Tensor]]
    __getitem__: ClassVar[Callable[..., Tensor]]
    __setitem__: ClassVar[Callable[..., None]]
    astype: ClassVar[Callable[..., Tensor]]
    reshape: ClassVar[Callable[..., Tensor]]
    sum: ClassVar[Callable[..., Tensor]]
    mean: ClassVar[Callable[..., Tensor]]
    max: ClassVar[Callable[..., Tensor]]
    detach: ClassVar[Callable[..., Tensor]]
    copy_: ClassVar[Callable[..., Tensor]]
    set_: ClassVar[Callable[..., Tensor]]
    clone: ClassVar[Callable[..., Tensor]]
    to: ClassVar[Callable[..., Tensor]]
    requires_grad_: ClassVar[Callable[..., Tensor]]
    backward: ClassVar[Callable[..., None]]
    item: ClassVar[Callable[..., Any]]
    tolist: ClassVar[Callable[..., Any]]
    numpy: ClassVar[Callable[..., np.ndarray[Any, Any]]]
    requires_grad: bool
    is_leaf: bool
    mT: ClassVar[Any]
    T: ClassVar[Any]

    def __init__(self, *data: Any, **options: Any) -> None:
        # Tensors are made by __new__; a call of the class with data is PyTorch's way to make one.
        if not data and not options:
            return
        raise ArgumentTypeError(
            "Tensor",
            "tensors are not made by their class",
            expected="a function that makes one",
            got={"arguments": data},
            fix="wf.tensor(data), or wf.empty(shape) for sizes",
        )

    if TYPE_CHECKING:  # installed by the layer above, too; a type checker wants its setter

        @property
        def grad(self) -> Tensor | None:
            """The gradient that `.backward()` accumulated, or None."""

        @grad.setter
        def grad(self, value: Tensor | None) -> None: ...

    @property
    def type(self) -> TensorType:
        """The tensor's dtype and shape."""
        value = self._value
        if type(value) in CONCRETE:
            return TensorType(BY_NUMPY[value.dtype], value.shape)
        kind: TensorType = value.type
        return kind

    @property
    def shape(self) -> Shape:
        """The size of each axis."""
        shape: Shape = self._value.shape
        return shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        value = self._value
        if type(value) in CONCRETE:
            return BY_NUMPY[value.dtype]
        dtype: DType = value.type.dtype
        return dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._value.shape)

    @property
    def size(self) -> Dimension:
        """The number of elements."""
        return size(self._value.shape)

    @property
    def device(self) -> Device:
        """Where the values are."""
        value = self._value
        if type(value) is HostArray:
            return CPU
        device: Device = value.device
        return device

    def __len__(self) -> int:
        shape = self.shape
        if not shape:
            raise ArgumentTypeError(
                "len()",
                "a tensor without axes has no length",
                expected="at least one axis",
                got={"x": self},
                fix="x.size counts the elements",
            )
        return int(shape[0])

    __hash__ = object.__hash__


_new = Tensor.__new__


def wrap(value: Any, node: Any = None) -> Tensor:
    """A new handle on a value."""
    tensor = _new(Tensor)
    tensor._value = value
    tensor._node = node
    tensor._grad = tensor._origin = None
    return tensor


def host_array(tensor: Tensor, purpose: str) -> np.ndarray[Any, Any]:
    """The NumPy array behind a tensor, or an error that says why there is none.

    What is on another device is copied, once it is computed there.

    Under `jvp` this is the primal's: Python control flow on values works there.
    """
    value = tensor._value
    if type(value) is HostArray:
        return value
    if type(value) in CONCRETE:
        return to_host(value)
    if not value.trace.active:
        raise leak_error(value, purpose)
    array: np.ndarray[Any, Any] = value.host_array(purpose)
    return array


def leak_error(value: Traced, purpose: str) -> LeakError:
    """The error for a traced tensor that outlived its trace."""
    where = value.trace.location
    return LeakError(
        purpose,
        f"a tensor traced by {value.trace.name} was used after the trace had ended",
        expected="a tensor that the traced function returned",
        got={"x": value.type},
        note=f"traced at {where}" if where is not None else "",
        fix="return the tensor from the function instead of storing it outside",
    )
