"""The parameters of kernels that are written as PTX: addresses, numbers, and tensor maps.

A tensor map holds an address, so it is encoded anew when its value has moved.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Protocol

import numpy as np

from weft.compiler.plan.launch import Launch, Value
from weft.compiler.targets.cuda.array import compute_stream
from weft.compiler.targets.cuda.binding import Binding, Run
from weft.compiler.targets.cuda.device import Memory, device
from weft.compiler.targets.cuda.driver import Driver
from weft.compiler.targets.cuda.modules import Function, load_written_ptx
from weft.compiler.targets.cuda.ptx_writer import Parameter, Pointer, TensorMap, WindowMap
from weft.core.records import frozen

_MAP_TYPES = {"float16": 6, "float32": 7, "bfloat16": 9, "tfloat32": 11}
"""What the driver calls the dtypes of tensor maps."""
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "tfloat32": 4}
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_NO_INTERLEAVE, _SWIZZLE_128, _PROMOTE_128, _ZEROS_OUTSIDE = 0, 3, 2, 0
COUNTERS = 1 << 20
"""Bytes of counters that kernels of one card share: zeros before and after each."""


class EncodedMap:
    """A tensor map of a value that lies without gaps, encoded for the address it has."""

    def __init__(self, driver: Driver, parameter: TensorMap, shape: Sequence[int]) -> None:
        self._driver, self._parameter = driver, parameter
        self._storage = (ctypes.c_ubyte * (_MAP_BYTES + _MAP_ALIGNMENT))()
        first = ctypes.addressof(self._storage)
        self.place = -(-first // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
        rank, item = len(parameter.axes), _ITEM_BYTES[parameter.dtype]
        strides = [item * prod(shape[axis + 1 :]) for axis in reversed(range(rank - 1))]
        self._sizes = (ctypes.c_uint64 * rank)(*reversed(shape))
        self._strides = (ctypes.c_uint64 * max(1, rank - 1))(*strides)
        self._box = (ctypes.c_uint32 * len(parameter.box))(*parameter.box)
        self._steps = (ctypes.c_uint32 * rank)(*[1] * rank)
        self._encoded = -1

    def refresh(self, address: int) -> None:
        """Encode it for an address, if it was for another."""
        if address != self._encoded:
            self.encode(address)
            self._encoded = address

    def encode(self, address: int) -> None:
        """Encode it for an address."""
        self._driver(
            "cuTensorMapEncodeTiled", self.place, _MAP_TYPES[self._parameter.dtype],
            len(self._parameter.box), address, self._sizes, self._strides, self._box, self._steps,
            _NO_INTERLEAVE, _SWIZZLE_128, _PROMOTE_128, _ZEROS_OUTSIDE,
        )  # fmt: skip


@frozen(slots=False)
class Corners:
    """Where windows lie: the first and the last place of each axis, and from one to the next.

    Axes go from the last to the first. The first place is counted from the array's first element,
    the last from the array's last.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    strides: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    """Elements from one to the next along each axis and from image to image; empty: no gaps."""


class EncodedWindows(EncodedMap):
    """A map of the windows of a value, encoded for the address it has."""

    def __init__(
        self, driver: Driver, parameter: TensorMap, shape: Sequence[int], corners: Corners
    ) -> None:
        super().__init__(driver, parameter, shape)
        rank = len(corners.lower)
        self._lower = (ctypes.c_int * rank)(*corners.lower)
        self._upper = (ctypes.c_int * rank)(*corners.upper)
        self._steps = (ctypes.c_uint32 * (rank + 2))(1, *corners.strides, 1)
        if corners.element_strides:
            size = _ITEM_BYTES[parameter.dtype]
            given = [size * count for count in corners.element_strides]
            self._strides = (ctypes.c_uint64 * (rank + 1))(*given)

    def encode(self, address: int) -> None:
        """Encode it for an address."""
        channels, places = self._parameter.box
        self._driver(
            "cuTensorMapEncodeIm2col", self.place, _MAP_TYPES[self._parameter.dtype],
            len(self._sizes), address, self._sizes, self._strides, self._lower, self._upper,
            channels, places, self._steps,
            _NO_INTERLEAVE, _SWIZZLE_128, _PROMOTE_128, _ZEROS_OUTSIDE,
        )  # fmt: skip


def bind_parameters(
    binding: Binding,
    launch: Launch,
    parameters: Sequence[Parameter],
    values: Mapping[str, Value],
    shapes: Mapping[str, Sequence[int]],
    words: Mapping[str, int],
    workspace_bytes: int = 0,
    counters: int = 0,
    cells: Mapping[str, int] | None = None,
    corners: Mapping[str, Corners] | None = None,
) -> tuple[list[int], Callable[[], None] | None]:
    """The addresses of a kernel's parameters, and what encodes its maps anew; None without any.

    `cells` are the addresses of cells of parameters that are no values of the plan, `corners` say
    where the windows of maps of windows lie.
    """
    table: list[int] = []
    maps: list[tuple[EncodedMap, Value]] = []
    for parameter in parameters:
        name = parameter.name
        if isinstance(parameter, TensorMap):
            encoded = _encoded_map(binding.stream.driver, parameter, shapes[name], corners or {})
            binding.keep(encoded)
            maps.append((encoded, values[name]))
            table.append(encoded.place)
        elif cells is not None and name in cells:
            table.append(cells[name])
        elif name == "workspace":
            table.append(binding.workspace_cell(0, workspace_bytes))
        elif name == "counters":
            table.append(binding.number(shared_counters(binding.stream.device.ordinal, counters)))
        elif isinstance(parameter, Pointer):
            table.append(binding.cell(launch, values[name]))
        else:
            word = words[name] if name in words else _stride(name, shapes)
            cell = np.array([word], np.uint32)
            binding.keep(cell)
            table.append(int(cell.ctypes.data))
    if not maps:
        return table, None

    def refresh() -> None:
        for encoded, value in maps:
            encoded.refresh(binding.address(value))

    return table, refresh


def _encoded_map(
    driver: Driver, parameter: TensorMap, shape: Sequence[int], corners: Mapping[str, Corners]
) -> EncodedMap:
    if isinstance(parameter, WindowMap):
        return EncodedWindows(driver, parameter, shape, corners[parameter.name])
    return EncodedMap(driver, parameter, shape)


def _stride(name: str, shapes: Mapping[str, Sequence[int]]) -> int:
    """The number of elements from one row, head or item of a stack to the next."""
    for ending, axis in (("_batch_stride", 0), ("_head_stride", 1), ("_stride", -2)):
        if name.endswith(ending):
            shape = shapes[name.removesuffix(ending)]
            start = axis + 1 if axis >= 0 else len(shape) + axis + 1
            return prod(shape[start:])
    raise KeyError(name)


def written_kernel_run(
    binding: Binding,
    launch: Launch,
    kernel: WrittenKernel,
    blocks: int,
    given: tuple[Mapping[str, Value], Mapping[str, Sequence[int]], Mapping[str, int]],
    workspace_bytes: int = 0,
    counters: int = 0,
    cells: Mapping[str, int] | None = None,
    corners: Mapping[str, Corners] | None = None,
) -> Run:
    """What launches a kernel that is written as PTX, given its values, their shapes and words."""
    table, refresh = bind_parameters(
        binding, launch, kernel.parameters, *given, workspace_bytes, counters, cells, corners
    )
    function = loaded_function(
        kernel.name, kernel.text, kernel.shared_bytes, binding.stream.device.ordinal
    )
    run = binding.kernel_run(function, blocks, kernel.threads, table)
    if refresh is None:
        return run

    def run_with_maps() -> None:
        refresh()
        run()

    return run_with_maps


@cache
def loaded_function(name: str, text: str, shared_bytes: int, ordinal: int) -> Function:
    """The function of a kernel on a card."""
    return load_written_ptx(device(ordinal), text).function(name, shared_bytes)


class WrittenKernel(Protocol):
    """A kernel in PTX, and what a launch must know of it."""

    @property
    def name(self) -> str:
        """The name of its entry."""

    @property
    def text(self) -> str:
        """The whole module."""

    @property
    def threads(self) -> int:
        """The threads of a block."""

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a block."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What it is given, in order."""


@cache
def _counter_memory(ordinal: int) -> Memory:
    stream = compute_stream(ordinal)
    memory = stream.allocate(COUNTERS)
    stream.fill(memory, 0)
    return memory


def shared_counters(ordinal: int, count: int) -> int:
    """The address of 32-bit zeros, which a kernel leaves as zeros."""
    assert 4 * count <= COUNTERS
    return _counter_memory(ordinal).pointer
