"""The parameters of kernels that are written as PTX: addresses, numbers, and tensor maps.

A tensor map holds an address, so it is encoded anew when its value has moved.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from weft.compiler.plan.launch import Launch, Value
from weft.compiler.targets.cuda.array import compute_stream
from weft.compiler.targets.cuda.binding import Binding, Region, in_order
from weft.compiler.targets.cuda.device import Memory, device
from weft.compiler.targets.cuda.driver import Driver
from weft.compiler.targets.cuda.launcher import Record, Run, encode_map, encode_windows, set_cell
from weft.compiler.targets.cuda.modules import Function, load_written_ptx
from weft.compiler.targets.cuda.ptx_writer import Parameter, Pointer, TensorMap, WindowMap
from weft.compiler.targets.cuda.views import View
from weft.core.errors import UnsupportedError
from weft.core.once import made_once
from weft.core.records import frozen

Array = np.ndarray[Any, Any]
_MAP_TYPES = {"uint8": 0, "float16": 6, "float32": 7, "bfloat16": 9, "tfloat32": 11}
"""What the driver calls the dtypes of tensor maps."""
_ITEM_BYTES = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "tfloat32": 4}
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_NO_INTERLEAVE, _SWIZZLE_128, _PROMOTE_128, _ZEROS_OUTSIDE = 0, 3, 2, 0
COUNTERS = 8 << 20
"""Bytes of counters that kernels of one card share: zeros before and after each. The gradient of
attention has one for each 64 queries of a head."""


def map_regions(
    place: int, encoded: Array, arguments: Array, arrays: Sequence[Any], pointers: Sequence[int]
) -> Iterator[Region]:
    """The memory of a map: itself, the address it is for, and the driver's arguments."""
    yield Region(place, _MAP_BYTES)
    yield Region.of_array(encoded, is_cleared=True)
    yield Region.of_array(arguments, pointers)
    for array in arrays:
        yield Region(ctypes.addressof(array), ctypes.sizeof(array))


class EncodedMap:
    """A tensor map of a value that lies without gaps, or of a view, encoded for its address."""

    def __init__(
        self,
        driver: Driver,
        parameter: TensorMap,
        shape: Sequence[int],
        view_strides: Sequence[int] = (),
    ) -> None:
        self._storage = (ctypes.c_ubyte * (_MAP_BYTES + _MAP_ALIGNMENT))()
        first = ctypes.addressof(self._storage)
        self.place = -(-first // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
        rank, item = len(parameter.box), _ITEM_BYTES[parameter.dtype]
        steps = view_strides or [prod(shape[axis + 1 :]) for axis in range(rank)]
        strides = [item * step for step in reversed(steps[:-1])]
        driver.function("cuTensorMapEncodeTiled")  # an old driver has none
        arrays: tuple[Any, ...] = (
            (ctypes.c_uint64 * rank)(*reversed(shape)),
            (ctypes.c_uint64 * max(1, rank - 1))(*strides),
            (ctypes.c_uint32 * rank)(*parameter.box),
            (ctypes.c_uint32 * rank)(*[1] * rank),
        )
        self._encoded: Array = np.array([-1], np.int64)
        """The address that it is encoded for."""
        self._arguments: Array = np.array(
            [self.place, _MAP_TYPES[parameter.dtype], rank, *map(ctypes.addressof, arrays),
             _NO_INTERLEAVE, _SWIZZLE_128, _PROMOTE_128, _ZEROS_OUTSIDE], np.int64,
        )  # fmt: skip
        self._held = arrays

    def memory_regions(self) -> Iterator[Region]:
        """See `Binding`."""
        pointers = 0, 3, 4, 5, 6
        yield from map_regions(self.place, self._encoded, self._arguments, self._held, pointers)

    def refresh_record(self, cell: int) -> Record:
        """What encodes it for the address in a cell, if it was for another."""
        return encode_map(cell, self._encoded.ctypes.data, self._arguments.ctypes.data)


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


class EncodedWindows:
    """A map of the windows of a value, encoded for the address it has."""

    def __init__(
        self, driver: Driver, parameter: TensorMap, shape: Sequence[int], corners: Corners
    ) -> None:
        self._storage = (ctypes.c_ubyte * (_MAP_BYTES + _MAP_ALIGNMENT))()
        first = ctypes.addressof(self._storage)
        self.place = -(-first // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
        rank, item = len(parameter.axes), _ITEM_BYTES[parameter.dtype]
        contiguous = [prod(shape[axis + 1 :]) for axis in reversed(range(rank - 1))]
        strides = [item * step for step in corners.element_strides or contiguous]
        driver.function("cuTensorMapEncodeIm2col")  # an old driver has none
        arrays: tuple[Any, ...] = (
            (ctypes.c_uint64 * rank)(*reversed(shape)),
            (ctypes.c_uint64 * (rank - 1))(*strides),
            (ctypes.c_int * (rank - 2))(*corners.lower),
            (ctypes.c_int * (rank - 2))(*corners.upper),
            (ctypes.c_uint32 * rank)(1, *corners.strides, 1),
        )
        *before, steps = map(ctypes.addressof, arrays)
        self._encoded: Array = np.array([-1], np.int64)
        self._arguments: Array = np.array(
            [self.place, _MAP_TYPES[parameter.dtype], rank, *before, *parameter.box, steps,
             _NO_INTERLEAVE, _SWIZZLE_128, _PROMOTE_128, _ZEROS_OUTSIDE], np.int64,
        )  # fmt: skip
        self._held = arrays

    def memory_regions(self) -> Iterator[Region]:
        """See `Binding`."""
        pointers = 0, 3, 4, 5, 6, 9
        yield from map_regions(self.place, self._encoded, self._arguments, self._held, pointers)

    def refresh_record(self, cell: int) -> Record:
        """What encodes it for the address in a cell, if it was for another."""
        return encode_windows(cell, self._encoded.ctypes.data, self._arguments.ctypes.data)


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
) -> tuple[list[int], Run]:
    """The addresses of a kernel's parameters, and what encodes its maps where values have moved.

    `cells` are the addresses of cells of parameters that are no values of the plan, `corners` say
    where the windows of maps of windows lie.
    """
    table: list[int] = []
    maps: list[Record] = []
    for parameter in parameters:
        name = parameter.name
        if isinstance(parameter, TensorMap):
            where = None if corners is None else corners.get(name)
            place, records = _bind_map(
                binding, launch, parameter, values[name], shapes[name], where
            )
            table.append(place)
            maps += records
        elif cells is not None and name in cells:
            table.append(cells[name])
        elif name == "workspace":
            table.append(binding.workspace_cell(0, workspace_bytes))
        elif name == "counters":
            table.append(counters_cell(binding, counters))
        elif isinstance(parameter, Pointer):
            whole, offset, _ = _place_of(values[name])
            assert offset == 0, "a pointer is to the beginning of a value"
            table.append(binding.cell(launch, whole))
        else:
            word = words[name] if name in words else _stride(name, values, shapes)
            number = np.array([_checked_word(name, word)], np.uint32)
            binding.keep(number)
            table.append(int(number.ctypes.data))
    return table, binding.native_run(*maps)


def _checked_word(name: str, word: int) -> int:
    """A number that a kernel is given as 32 bits."""
    if not 0 <= word < 1 << 32:
        raise UnsupportedError(
            "cuda",
            "a kernel counts the elements between two rows or items of a stack in 32 bits",
            expected="fewer than 2^32 elements",
            got={name: word},
            fix="multiply the items of the stack one by one, or fewer rows at a time",
        )
    return word


def _bind_map(
    binding: Binding,
    launch: Launch,
    parameter: TensorMap,
    value: Value,
    shape: Sequence[int],
    corners: Corners | None,
) -> tuple[int, list[Record]]:
    """Where the map of a value is, and what encodes it anew where the value has moved."""
    whole, offset, strides = _place_of(value)
    encoded: EncodedMap | EncodedWindows
    if isinstance(parameter, WindowMap):
        assert corners is not None
        assert not strides, "windows are read of values that lie without gaps"
        encoded = EncodedWindows(binding.stream.driver, parameter, shape, corners)
    else:
        encoded = EncodedMap(binding.stream.driver, parameter, shape, strides)
    binding.keep(encoded)
    cell, records = binding.cell(launch, whole), list[Record]()
    if offset:  # a part of a value: its address is that of the whole, and so many bytes
        base, cell = cell, binding.number(0)
        records.append(set_cell(cell, base, offset))
    return encoded.place, [*records, encoded.refresh_record(cell)]


def _place_of(value: Value) -> tuple[Value, int, tuple[int, ...]]:
    """The value in whose memory a value lies, where in bytes, and its strides if it is a view."""
    if not isinstance(value, View) or value.base is None:
        return value, 0, ()
    return value.base, value.offset * value.type.dtype.itemsize, value.strides


def _stride(name: str, values: Mapping[str, Value], shapes: Mapping[str, Sequence[int]]) -> int:
    """The number of elements from one row, head or item of a stack to the next."""
    for ending, axis in (("_batch_stride", 0), ("_head_stride", 1), ("_stride", -2)):
        if name.endswith(ending):
            operand = name.removesuffix(ending)
            value, shape = values.get(operand), shapes[operand]
            if isinstance(value, View):
                return value.strides[axis]
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
    return in_order([refresh, binding.kernel_run(function, blocks, kernel.threads, table)])


@made_once
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


@made_once
def _counter_memory(ordinal: int) -> Memory:
    stream = compute_stream(ordinal)
    memory = stream.allocate(COUNTERS)
    stream.fill(memory, b"\0", memory.count)
    return memory


def counters_address(ordinal: int) -> int:
    """Where the counters of a card begin."""
    return _counter_memory(ordinal).pointer


def counters_cell(binding: Binding, count: int, *, is_alone: bool = False) -> int:
    """The address of a cell with that of 32-bit zeros, which a launch leaves as zeros.

    is_alone: no other launch that counts may run beside it.
    """
    if 4 * count > COUNTERS:
        raise UnsupportedError(
            "cuda",
            "a launch counts more tiles than there are counters for",
            expected=f"at most {COUNTERS // 4} half tiles",
            got={"half tiles": count},
            fix="compute the gradient for parts of the batch, one after the other",
        )
    zeros = counters_address(binding.stream.device.ordinal)
    return binding.counter_cell(zeros, COUNTERS, 4 * count, is_alone=is_alone)
