"""A card whose memory is the host's: plans for cards run where there is none.

The driver's functions are Python's. Memory is NumPy's, copies happen at once, and a kernel of the
loop language is run by its interpreter, one that is written as PTX by NumPy. So all that lies
between a tensor and a launch is tried here: addresses, cells, memory, loops, graphs, faults.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from threading import RLock
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.emulated import run_text_kernel
from tests.compiler.cuda.epilogues_by_numpy import beside_product, run_epilogue
from tests.compiler.cuda.fake_driver import FakeLibrary
from tests.compiler.cuda.recurrent_by_threads import run_recurrent
from tests.compiler.cuda.window_copies import WindowTable, product_shapes, window_product

import weft as wf
from weft.compiler.graph_passes.cross_entropy import softmax_gradient
from weft.compiler.targets.cuda import (
    bound_program,
    code,
    cross_entropy,
    device,
    driver,
    launcher,
    parameters,
    scans,
    sorting,
    target,
)
from weft.compiler.targets.cuda.attention import binding as attention
from weft.compiler.targets.cuda.attention import exact_binding
from weft.compiler.targets.cuda.attention.backward_memory import tile_queries
from weft.compiler.targets.cuda.attention.description import AttentionKernel
from weft.compiler.targets.cuda.convolution import binding as convolution
from weft.compiler.targets.cuda.convolution.implicit import ConvolutionKernel
from weft.compiler.targets.cuda.cross_entropy import CrossEntropyKernel
from weft.compiler.targets.cuda.device_text import TextKernel
from weft.compiler.targets.cuda.grouped_kernels import GroupedKernel
from weft.compiler.targets.cuda.modules import Function, Module
from weft.compiler.targets.cuda.products import binding as products
from weft.compiler.targets.cuda.products import code_transposes
from weft.compiler.targets.cuda.products.code_casts import CastKernel, CastSpec
from weft.compiler.targets.cuda.products.code_transposes import TransposeKernel
from weft.compiler.targets.cuda.products.description import (
    FLOAT8_PAIRS,
    INTEGER_PAIRS,
    Matrix,
    Operand,
    ProductKernel,
    Scalar,
    Vector,
)
from weft.compiler.targets.cuda.ptx_writer import Pointer, TensorMap, WindowMap
from weft.compiler.targets.cuda.recurrent import binding as recurrent
from weft.compiler.targets.cuda.recurrent.kernel import RecurrentKernel
from weft.compiler.targets.cuda.schedule import schedule
from weft.core.arrays import remove_device
from weft.core.devices import DEVICES
from weft.core.dtypes import as_dtype
from weft.ir.loop_reference import run_reference
from weft.ir.loops import Kernel
from weft.ops.attention import attention as attention_primitive
from weft.ops.attention import attention_gradient
from weft.ops.float8 import FORMATS, float8_codes

FENCE = 64
"""Bytes behind each piece of memory that must stay as they are."""
_PATTERN = 0xA5
UNWRITTEN = 0xFF
"""What new memory holds: NaN in every floating-point type."""


NOT_CAPTURED = {
    "cuMemAllocAsync", "cuMemFreeAsync", "cuMemFreeHost", "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2", "cuCtxSynchronize", "cuStreamSynchronize", "cuStreamWaitEvent",
    "cuEventRecord", "cuModuleUnload",
}  # fmt: skip
"""Calls that a captured stream takes for a part of the graph, or that end the capture."""
MOST_BLOCKS, MOST_THREADS, MOST_SHARED = (1 << 31) - 1, 1024, 227 * 1024


class HostCard(FakeLibrary):
    """The library of a driver for one card."""

    def __init__(self) -> None:
        super().__init__(cards=1)
        self.blocks: dict[int, np.ndarray[Any, Any]] = {}
        self.pinned: dict[int, int] = {}
        """Bytes of pinned memory, by address."""
        self.modules: dict[bytes, list[Kernel]] = {}
        self.written: dict[bytes, Any] = {}
        """Kernels that are written as PTX, by their text."""
        self.loaded: dict[int, Any] = {}
        self.functions: dict[int, Any] = {}
        self.capturing: list[Callable[[], None]] | None = None
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.nodes: dict[int, dict[int, tuple[list[int], Callable[[], None]]]] = {}
        """Of graphs that are built: each node with those before it, and what it does."""
        self.order = Random(3)
        self.native_call = RLock()
        """Held inside of native calls: those of a real driver run no Python, so that no other
        thread goes on in the middle of one."""
        self.launched = 0
        self.text = b""
        self.windows: list[WindowTable] = []
        """Maps of windows, in the order in which they were encoded."""
        self.gradients_of_queries = np.zeros(0)
        """What the pass back leaves for the kernel after it."""

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> None:
        if self.capturing is not None:
            assert name not in NOT_CAPTURED, f"{name} while a stream is captured"
        method = getattr(self, f"do_{name}", None)
        with self.native_call:
            if method is not None:
                method(*arguments)
            else:
                super()._answer(name, arguments)

    # --- memory ----------------------------------------------------------------------------------

    def do_cuMemAllocAsync(self, place: Any, size: int, stream: int) -> None:
        block = np.full(size + FENCE + 256, UNWRITTEN, np.uint8)
        address = -(-block.ctypes.data // 256) * 256
        whole = block[address - block.ctypes.data :][: size + FENCE]
        whole[size:] = _PATTERN
        self.blocks[address] = whole
        place._obj.value = address

    def do_cuMemFreeAsync(self, address: int, stream: int) -> None:
        self.check_fences()
        del self.blocks[address]

    def do_cuMemHostAlloc(self, place: Any, size: int, flags: int) -> None:
        self.do_cuMemAllocAsync(place, size, 0)
        self.pinned[place._obj.value] = size

    def check_fences(self) -> None:
        """Fail where something was written behind the end of memory."""
        for block in list(self.blocks.values()):  # another thread may allocate meanwhile
            assert (block[-FENCE:] == _PATTERN).all(), "memory was written behind its end"

    def memory_at(self, address: int) -> np.ndarray[Any, Any]:
        """The bytes from an address to the end of its memory."""
        for start, block in self.blocks.items():
            if start <= address < start + len(block) - FENCE:
                return block[address - start : len(block) - FENCE]
        if any(start + len(block) - FENCE == address for start, block in self.blocks.items()):
            return np.empty(0, np.uint8)
        raise AssertionError(f"{address:#x} is no memory of the card")

    def _put(self, action: Callable[[], None]) -> None:
        if self.capturing is not None:
            self.capturing.append(action)
        else:
            action()

    def do_cuMemcpyHtoDAsync_v2(self, target: int, source: int, size: int, stream: int) -> None:
        ctypes.memmove(self.memory_at(target)[:size].ctypes.data, source, size)

    def do_cuMemcpyDtoHAsync_v2(self, target: int, source: int, size: int, stream: int) -> None:
        assert len(self.memory_at(source)) >= size
        ctypes.memmove(target, source, size)

    def do_cuMemcpyDtoDAsync_v2(self, target: int, source: int, size: int, stream: int) -> None:
        def copy() -> None:
            self.memory_at(target)[:size] = self.memory_at(source)[:size].copy()

        self._put(copy)

    def do_cuMemsetD8Async(self, target: int, byte: int, size: int, stream: int) -> None:
        self._put(lambda: self.memory_at(target)[:size].fill(byte))

    def do_cuMemsetD16Async(self, target: int, word: int, count: int, stream: int) -> None:
        self._put(lambda: self.memory_at(target)[: 2 * count].view(np.uint16).fill(word))

    def do_cuMemsetD32Async(self, target: int, word: int, count: int, stream: int) -> None:
        self._put(lambda: self.memory_at(target)[: 4 * count].view(np.uint32).fill(word))

    def do_cuMemGetInfo_v2(self, free: Any, total: Any) -> None:
        free._obj.value, total._obj.value = 1 << 33, 1 << 34

    # --- code ------------------------------------------------------------------------------------

    def do_cuLinkAddData_v2(self, state: Any, kind: int, text: bytes, *rest: Any) -> None:
        self.text = text

    def do_cuLinkComplete(self, state: Any, place: Any, size: Any) -> None:
        self._code = ctypes.create_string_buffer(self.text)
        place._obj.value = ctypes.addressof(self._code)
        size._obj.value = len(self.text)

    def do_cuModuleLoadData(self, place: Any, text: bytes) -> None:
        place._obj.value = next(self._handles)
        self.loaded[place._obj.value] = self.modules.get(text, text)

    def do_cuModuleGetFunction(self, place: Any, module: int, name: bytes) -> None:
        place._obj.value = next(self._handles)
        held = self.loaded[module]
        if isinstance(held, list):
            found: Any = held[int(name.decode().removeprefix("weft_k"))]
        else:
            found = self.written[held]
        self.functions[place._obj.value] = found

    def do_cuPointerGetAttribute(self, place: Any, attribute: int, address: int) -> None:
        blocks = self.pinned.items()
        is_known = any(first <= address < first + size for first, size in blocks)
        place._obj.value = int(is_known)

    def do_cuLaunchKernel(self, function: int, *given: Any) -> None:
        blocks, _, _, threads, _, _, shared = given[:7]
        assert 0 < blocks <= MOST_BLOCKS
        assert 0 < threads <= MOST_THREADS
        assert shared <= MOST_SHARED
        self._put(self._launch_of(function, given[0], given[8]))

    def _launch_of(self, function: int, blocks: int, operands: int) -> Callable[[], None]:
        table = ctypes.cast(operands, ctypes.POINTER(ctypes.c_uint64))
        kernel = self.functions[function]
        if isinstance(kernel, Kernel):
            return self._loop_launch(kernel, table)
        if isinstance(kernel, GroupedKernel):
            return self._group_launch(kernel, blocks, table)
        if isinstance(kernel, TextKernel):
            return self._text_launch(kernel, blocks, table)
        return self._written_launch(kernel, table)

    def _loop_launch(self, kernel: Kernel, table: Any) -> Callable[[], None]:
        count = len(kernel.buffers)
        words = [ctypes.c_int64.from_address(table[k]).value for k in range(count)]
        numbers = [
            ctypes.c_int64.from_address(table[count + k]).value for k in range(len(kernel.sizes))
        ]

        def launch() -> None:
            self.launched += 1
            buffers = []
            for address, buffer in zip(words, kernel.buffers, strict=True):
                data = self.memory_at(address) if address else np.empty(0, np.uint8)
                item = buffer.dtype.itemsize
                buffers.append(data[: len(data) // item * item].view(buffer.dtype.numpy))
                assert address % 16 == 0 or buffer.name == "error", "memory is not aligned"
            sizes = dict(zip(kernel.sizes, numbers, strict=True))
            run_reference(kernel, buffers, numbers, 0, kernel.iterations(sizes))
            self.check_fences()

        return launch

    def _group_launch(self, kernel: GroupedKernel, blocks: int, table: Any) -> Callable[[], None]:
        """The members of a group in some order; each has the blocks that it is given."""
        given, count = len(kernel.kinds), len(kernel.members)
        words = [ctypes.c_int64.from_address(table[k]).value for k in range(given + count - 1)]
        starts = [0, *words[given:], blocks]
        launches = []
        for number, member in enumerate(kernel.members):
            own = kernel.kernels[member.kernel]
            places = (ctypes.c_uint64 * len(member.parameters))(
                *[table[place] for place in member.parameters]
            )
            sizes = dict(zip(own.sizes, [words[k] for k in member.parameters[len(own.buffers):]],
                             strict=True))  # fmt: skip
            assert starts[number + 1] - starts[number] == schedule(own).blocks(sizes)
            launches.append(self._loop_launch(own, places))
        self.order.shuffle(launches)

        def launch() -> None:
            for each in launches:
                each()
            self.launched -= len(launches) - 1

        return launch

    def _text_launch(self, kernel: TextKernel, blocks: int, table: Any) -> Callable[[], None]:
        places = range(kernel.parameters)
        words = [ctypes.c_int64.from_address(table[k]).value for k in places]

        def launch() -> None:
            self.launched += 1
            run_text_kernel(kernel, blocks, words)
            self.check_fences()

        return launch

    def do_cuTensorMapEncodeTiled(
        self, place: int, kind: int, rank: int, address: int, sizes: Any, strides: Any, *rest: Any
    ) -> None:
        numbers = ctypes.POINTER(ctypes.c_uint64)
        assert all(stride % 16 == 0 for stride in ctypes.cast(strides, numbers)[: rank - 1])
        assert address % 16 == 0
        steps = ctypes.cast(strides, numbers)[: rank - 1]
        words = [address, rank, *ctypes.cast(sizes, numbers)[:rank], *steps]
        ctypes.memmove(place, struct.pack(f"<{len(words)}Q", *words), 8 * len(words))

    def do_cuTensorMapEncodeIm2col(
        self, place: int, kind: int, rank: int, address: int, sizes: Any, strides: Any,
        lower: Any, upper: Any, channels: int, places: int, steps: Any, *rest: Any,
    ) -> None:  # fmt: skip
        long, short = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_int)
        dims, bytes_apart = ctypes.cast(sizes, long)[:rank], ctypes.cast(strides, long)[: rank - 1]
        first, last = (ctypes.cast(each, short)[: rank - 2] for each in (lower, upper))
        moves = ctypes.cast(steps, short)[:rank]
        assert all(stride % 16 == 0 for stride in bytes_apart)
        assert address % 16 == 0
        assert channels * 2 == 128
        assert places <= 1024
        half = 1 << (16 // (rank - 2) - 1)
        assert all(-half <= corner < half for corner in (*first, *last))
        assert all(1 <= step <= 8 for step in moves)
        counts = tuple(stride // 2 for stride in bytes_apart)
        words = address, len(self.windows)
        self.windows.append(
            WindowTable(tuple(dims), tuple(first), tuple(last), tuple(moves), counts)
        )
        ctypes.memmove(place, struct.pack("<2Q", *words), 16)

    def _written_launch(self, kernel: Any, table: Any) -> Callable[[], None]:
        addresses, words = dict[str, int](), dict[str, int]()
        for place, parameter in enumerate(kernel.parameters):
            if isinstance(parameter, TensorMap | Pointer):
                addresses[parameter.name] = ctypes.c_uint64.from_address(table[place]).value
            else:
                words[parameter.name] = ctypes.c_uint32.from_address(table[place]).value
        if isinstance(kernel, CastKernel):
            return lambda: run_cast(self, kernel.spec, addresses, words)
        if isinstance(kernel, TransposeKernel):
            return lambda: run_transpose(self, addresses, words)
        if isinstance(kernel, CrossEntropyKernel):
            return lambda: run_softmax_gradient(self, kernel, addresses, words)
        if isinstance(kernel, AttentionKernel):
            layouts = {
                parameter.name: _encoded_layout(table[place])
                for place, parameter in enumerate(kernel.parameters)
                if isinstance(parameter, TensorMap)
            }
            return lambda: self._attend(kernel, addresses, words, layouts)
        if isinstance(kernel, ConvolutionKernel):
            [map_place] = [
                table[place]
                for place, parameter in enumerate(kernel.parameters)
                if isinstance(parameter, WindowMap)
            ]
            windows = self.windows[ctypes.c_uint64.from_address(map_place + 8).value]
            return lambda: run_convolution(self, kernel, addresses, words, windows)
        if isinstance(kernel, RecurrentKernel):
            return lambda: self._recur(kernel, addresses, words)
        return self._product_launch(kernel, addresses, words)

    def _recur(
        self, kernel: RecurrentKernel, addresses: dict[str, int], words: dict[str, int]
    ) -> None:
        """All steps of a recurrent layer, thread by thread."""
        self.launched += 1
        run_recurrent(kernel, {n: self.memory_at(a) for n, a in addresses.items()}, words["steps"])

    def _attend(
        self,
        kernel: AttentionKernel,
        addresses: dict[str, int],
        words: dict[str, int],
        layouts: dict[str, Layout],
    ) -> None:
        """Attention on copies without gaps of what lies in parts of other values."""
        if "counters" in addresses:
            counters = self.memory_at(addresses["counters"])[:4].view(np.uint32)
            is_last = "dq_stride" in words
            assert is_last or counters[0] == 0, "the launch before left counters behind"
            counters[0] = 0 if is_last else 1
        if "dq_stride" in words:  # a pointer and strides in elements
            strides = [words[f"dq_{name}stride"] for name in ("batch_", "head_", "")]
            batch, *rest = self.gradients_of_queries.shape
            layouts["dq"] = (batch, *rest), tuple(2 * stride for stride in (*strides, 1))
        copies = {}
        for name, (shape, strides) in layouts.items():
            source = self.memory_at(addresses[name])
            whole = np.lib.stride_tricks.as_strided(source.view(np.uint16), shape, strides)
            cell = ctypes.c_uint64()
            self.do_cuMemAllocAsync(ctypes.byref(cell), whole.size * 2, 0)
            copy = self.memory_at(cell.value).view(np.uint16).reshape(shape)
            copy[:] = whole
            copies[name] = (whole, copy, cell.value)
        run_attention(self, kernel, addresses | {n: c[2] for n, c in copies.items()}, words)
        for name in {"out", "dq", "dk", "dv"} & set(copies):
            copies[name][0][:] = copies[name][1]
        for _, _, address in copies.values():
            self.do_cuMemFreeAsync(address, 0)

    def _product_launch(
        self, kernel: ProductKernel, addresses: dict[str, int], words: dict[str, int]
    ) -> Callable[[], None]:
        spec = kernel.spec
        m, n, k, batch = (words.get(name, 1) for name in ("m", "n", "k", "batch"))

        def array(name: str, dtype: str, *shape: int) -> np.ndarray[Any, Any]:
            known = FORMATS.get(dtype) or as_dtype("float32" if dtype == "tfloat32" else dtype)
            kind = known.numpy
            size = int(np.prod(shape)) * kind.itemsize
            return self.memory_at(addresses[name])[:size].view(kind).reshape(shape)

        def operand(each: Operand) -> np.ndarray[Any, Any]:
            if isinstance(each, Scalar):
                return array(each.name, "float32", 1)
            assert isinstance(each, Vector | Matrix)
            line = (m if each.per == "row" else n,) if isinstance(each, Vector) else (batch, m, n)
            return beside_product(each, array(each.name, each.dtype, *line))

        def launch() -> None:
            self.launched += 1
            pairs = INTEGER_PAIRS | FLOAT8_PAIRS
            left, right = pairs.get(spec.dtype, (spec.dtype, spec.dtype))
            a = array("a", left, batch, *((k, m) if spec.transpose_a else (m, k)))
            b = array("b", right, batch, *((n, k) if spec.transpose_b else (k, n)))
            if spec.dtype == "tfloat32" and not kernel.plan.plain:
                a, b = round_to_eleven_bits(a), round_to_eleven_bits(b)
            a = np.swapaxes(a, 1, 2) if spec.transpose_a else a
            b = np.swapaxes(b, 1, 2) if spec.transpose_b else b
            if spec.dtype in INTEGER_PAIRS:
                array("out", "int32", batch, m, n)[:] = a.astype(np.int32) @ b.astype(np.int32)
                self.check_fences()
                return
            with np.errstate(all="ignore"):
                sums = a.astype(np.float32) @ b.astype(np.float32)
            stored = run_epilogue(spec, sums, operand)
            kinds = {each.name: (each.dtype, (batch, m, n)) for each in spec.outputs}
            for name, values in stored.items():
                dtype, shape = kinds.get(name, ("float32", values.shape))
                array(name, dtype, *shape)[:] = values
            self.check_fences()

        return launch

    # --- graphs ----------------------------------------------------------------------------------

    def do_cuStreamBeginCapture_v2(self, stream: int, mode: int) -> None:
        assert self.capturing is None
        self.capturing = []

    def do_cuStreamEndCapture(self, stream: int, place: Any) -> None:
        assert self.capturing is not None
        place._obj.value = next(self._handles)
        self.graphs[place._obj.value], self.capturing = self.capturing, None

    def do_cuGraphCreate(self, place: Any, flags: int) -> None:
        place._obj.value = next(self._handles)
        self.nodes[place._obj.value] = {}

    def do_cuGraphAddKernelNode_v2(
        self, place: Any, graph: int, after: Any, count: int, parameters: Any
    ) -> None:
        given = parameters._obj
        place._obj.value = next(self._handles)
        earlier = [after[k] for k in range(count)]
        action = self._launch_of(given.function, given.gx, given.operands)
        self.nodes[graph][place._obj.value] = (earlier, action)

    def _any_order(self, graph: int) -> list[Callable[[], None]]:
        """The launches of a graph in some order that it allows: late ones as early as they may."""
        left, found, done = dict(self.nodes[graph]), [], set[int]()
        while left:
            ready = [node for node, (after, _) in left.items() if done.issuperset(after)]
            node = self.order.choice(ready[-2:])
            found.append(left.pop(node)[1])
            done.add(node)
        return found

    def do_cuGraphInstantiateWithFlags(self, place: Any, graph: int, flags: int) -> None:
        place._obj.value = next(self._handles)
        captured = graph not in self.nodes
        self.graphs[place._obj.value] = self.graphs[graph] if captured else self._any_order(graph)

    def do_cuGraphLaunch(self, graph: int, stream: int) -> None:
        for action in self.graphs[graph]:
            action()


def round_to_eleven_bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 as tensor cores read it: tfloat32."""
    bits = array.view(np.uint32).astype(np.uint64) + (1 << 12)
    return (bits & 0xFFFFE000).astype(np.uint32).view(np.float32)


Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""A shape, and the bytes from one index to the next."""


def _encoded_layout(place: int) -> Layout:
    """What a tensor map says of 16-bit numbers, outermost axis first."""
    rank = ctypes.c_uint64.from_address(place + 8).value
    words = (ctypes.c_uint64 * (2 * rank + 1)).from_address(place)
    sizes, strides = words[2 : 2 + rank], words[2 + rank : 2 * rank + 1]
    return tuple(reversed(sizes)), (*reversed(strides), 2)


def run_cast(
    card: HostCard, spec: CastSpec, addresses: dict[str, int], words: dict[str, int]
) -> None:
    """What the kernel that makes codes does."""
    card.launched += 1
    rows, columns = words["rows"], words["columns"]
    kind = as_dtype(spec.dtype).numpy
    source = card.memory_at(addresses["source"])[: rows * columns * kind.itemsize]
    scale = card.memory_at(addresses["scale"])[:4].view(np.float32).reshape(())
    codes = float8_codes.reference(
        source.view(kind).reshape(rows, columns), scale, format=spec.format
    )
    for name in spec.stored:
        target = card.memory_at(addresses[name])[: rows * columns]
        target[:] = (codes.T if name == "turned" else codes).reshape(-1)
    card.check_fences()


def run_transpose(card: HostCard, addresses: dict[str, int], words: dict[str, int]) -> None:
    """What the kernel that transposes bytes does."""
    card.launched += 1
    rows, columns = words["rows"], words["columns"]
    source, target = (
        card.memory_at(addresses[name])[: rows * columns] for name in ("source", "turned")
    )
    target[:] = source.reshape(rows, columns).T.reshape(-1)
    card.check_fences()


def run_softmax_gradient(
    card: HostCard, kernel: CrossEntropyKernel, addresses: dict[str, int], words: dict[str, int]
) -> None:
    """What the kernel of a softmax with its gradient computes."""
    card.launched += 1
    rows, columns = words["rows"], kernel.spec.columns
    kind = as_dtype(kernel.spec.dtype).numpy

    def array(name: str, dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return card.memory_at(addresses[name])[:size].view(dtype).reshape(shape)

    numbers = [array(name, np.float32, rows) for name in ("terms", "factors", "top", "total")]
    operands = array("logits", kind, rows, columns), array("labels", np.int64, rows), *numbers[:2]
    top, total, gradient = softmax_gradient.reference(*operands)
    numbers[2][:], numbers[3][:] = top, total
    array("gradient", kind, rows, columns)[:] = gradient
    card.check_fences()


def run_attention(
    card: HostCard, kernel: AttentionKernel, addresses: dict[str, int], words: dict[str, int]
) -> None:
    """What the kernels of attention and of its gradient compute."""
    card.launched += 1
    spec, kind = kernel.spec, as_dtype(kernel.spec.dtype).numpy
    heads, queries = words["heads"], words["queries"]
    batch = words.get("batch", 0) or len(card.gradients_of_queries)
    keys, shared = words.get("keys", 1), heads // words.get("group", 1)

    def array(name: str, dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return card.memory_at(addresses[name])[:size].view(dtype).reshape(shape)

    tile = tile_queries(spec)
    padded = -(-queries // tile) * tile
    if kernel.name == "attention_padding":
        for name, source, outside, factor in (
            ("logs", "sums", np.inf, np.float32(np.log2(np.e))),
            ("products", "delta", 0.0, np.float32(1)),
        ):
            rows = np.full((batch * heads, padded), outside, np.float32)
            numbers = array(source, np.float32, batch * heads, queries)
            if name == "logs" and spec.guarded:
                numbers = np.where(np.isneginf(numbers), 0, numbers)
            rows[:, :queries] = numbers * (1 if spec.adds else factor)
            array(name, np.float32, batch * heads, padded)[:] = rows
        return
    if kernel.name == "attention_queries":
        out = array("dq", kind, batch, heads, queries, min(words["head"], spec.head))
        out[:] = card.gradients_of_queries.reshape(out.shape)
        return
    run_pass_over_keys(card, kernel, array, (batch, heads, shared, queries, keys), words, addresses)


def run_pass_over_keys(
    card: HostCard,
    kernel: AttentionKernel,
    array: Callable[..., np.ndarray[Any, Any]],
    sizes: tuple[int, int, int, int, int],
    words: dict[str, int],
    addresses: dict[str, int],
) -> None:
    """Attention forward or backward, by the primitives' references."""
    spec, kind = kernel.spec, as_dtype(kernel.spec.dtype).numpy
    batch, heads, shared, queries, keys = sizes
    head = min(words["head"], spec.head)
    q = array("q", kind, batch, heads, queries, head)
    k, v = (array(name, kind, batch, shared, keys, head) for name in ("k", "v"))
    extra: list[np.ndarray[Any, Any]] = []
    if spec.mask:
        item = as_dtype(spec.mask).numpy
        strides = [words[f"mask_{name}_stride"] for name in ("batch", "head", "row")]
        memory = card.memory_at(addresses["mask"])
        whole = memory[: len(memory) // item.itemsize * item.itemsize].view(item)
        last = sum(s * (n - 1) for s, n in zip(strides, (batch, heads, queries), strict=True))
        assert last + keys <= len(whole)
        shape, steps = (batch, heads, queries, keys), [s * item.itemsize for s in (*strides, 1)]
        extra.append(np.lib.stride_tricks.as_strided(whole, shape, steps))
    if spec.drops:
        extra += [array("key", np.uint32, 2), array("data", np.uint64)]
    params = {
        "offset": words["offset"] if spec.causal else None, "scale": spec.scale,
        "guarded": spec.guarded, "kept": spec.kept,
    }  # fmt: skip
    if kernel.name == "attention":
        out, sums = attention_primitive.reference(q, k, v, *extra, **params)
        array("out", kind, batch, heads, queries, head)[:] = out
        array("sums", np.float32, batch, heads, queries)[:] = sums
        return
    tile = tile_queries(spec)
    padded = -(-queries // tile) * tile
    logs, deltas = (
        array(name, np.float32, batch, heads, padded)[:, :, :queries]
        for name in ("logs", "products")
    )
    lse = logs if spec.adds else logs / np.float32(np.log2(np.e))
    ct = array("dout", kind, batch, heads, queries, head)
    found = attention_gradient.reference(q, k, v, lse, ct, deltas, *extra, **params)
    card.gradients_of_queries = found[0]
    array("dk", kind, batch, shared, keys, head)[:] = found[1]
    array("dv", kind, batch, shared, keys, head)[:] = found[2]


def run_convolution(
    card: HostCard,
    kernel: ConvolutionKernel,
    addresses: dict[str, int],
    words: dict[str, int],
    table: WindowTable,
) -> None:
    """What a kernel that reads windows computes, in float32, by the map it was given."""
    card.launched += 1
    spec = kernel.spec
    shapes = product_shapes(kernel.geometry, spec, words, table)
    arrays = {}
    for name, shape in shapes.items():
        kind = as_dtype(spec.output if name == "out" else spec.dtype).numpy
        memory = card.memory_at(addresses[name])
        if shape == table.sizes[::-1]:
            memory = memory[: len(memory) // kind.itemsize * kind.itemsize]
            arrays[name] = table.view(memory.view(kind))
            continue
        size = int(np.prod(shape)) * kind.itemsize
        arrays[name] = memory[:size].view(kind).reshape(shape)
    wide = [arrays[name].astype(np.float32) for name in ("a", "b")]
    arrays["out"][:] = window_product(kernel.geometry, spec, words, table, *wide)
    card.check_fences()


_installed: list[tuple[HostCard, driver.Driver]] = []
"""The one card of this process: programs that were compiled for it stay valid."""


@contextmanager
def host_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCard]:
    """Inside, the machine has one card, in the host's memory."""
    if not _installed:
        made = HostCard()
        _installed.append((made, driver.open_driver(made)))
    card, opened = _installed[0]
    device.device.cache_clear()
    monkeypatch.setattr(device, "load_driver", lambda: opened)
    monkeypatch.setattr(driver, "_opened_driver", lambda: opened)

    def code_of(device: Any, kernel: Kernel, parts: Sequence[Kernel]) -> bytes:
        token = f"module {len(card.modules)}".encode()
        card.modules[token] = list(parts)
        return token

    def code_of_group(device: Any, kernel: GroupedKernel) -> bytes:
        token = f"module {len(card.modules)}".encode()
        card.modules[token] = [kernel]
        return token

    def call_of_words(count: int) -> Callable[..., int]:
        call = launcher.word_call(count)

        def call_alone(*words: int) -> int:
            with card.native_call:
                return call(*words)

        return call_alone

    monkeypatch.setattr(bound_program, "word_call", call_of_words)
    monkeypatch.setattr(code, "kernel_code", code_of)
    monkeypatch.setattr(code, "group_code", code_of_group)
    # other processes of a test run share the cache, and number their modules themselves
    monkeypatch.setattr(target, "stored_program", lambda digest, ordinal, compiled: compiled())
    load = parameters.written_kernel_run

    def run(binding: Any, launch: Any, kernel: Any, *given: Any, **named: Any) -> Any:
        card.written[kernel.text.encode() + b"\0"] = kernel
        return load(binding, launch, kernel, *given, **named)

    writers = (products, convolution, attention, cross_entropy, recurrent, code_transposes)
    for module in writers:
        monkeypatch.setattr(module, "written_kernel_run", run)

    def load_text(kernel: TextKernel, place: device.Device) -> Function:
        card.written[kernel.text.encode()] = kernel
        return Module(place, kernel.text.encode()).function(kernel.name)

    monkeypatch.setattr(sorting, "load_text_kernel", load_text)
    for name, few in (("_THREADS", 8), ("_SMALLEST", 8), ("CHUNK", 16)):
        monkeypatch.setattr(sorting, name, few)  # each thread is one of the CPU's
    monkeypatch.setattr(exact_binding, "SIDE", 4)
    monkeypatch.setattr(scans, "THREADS", 8)
    monkeypatch.setattr(scans, "_WARP", 4)
    monkeypatch.setattr(scans, "RUN", 3)
    sorting.sort_kernels.cache_clear()
    sorting.search_kernel.cache_clear()
    card.calls.clear()
    try:
        yield card
    finally:
        sorting.sort_kernels.cache_clear()
        sorting.search_kernel.cache_clear()
        wf.random.seed(0)  # the counter may be on the card
        place = DEVICES.get("cuda:0")
        if place is not None:
            remove_device(place)
        device.device.cache_clear()
