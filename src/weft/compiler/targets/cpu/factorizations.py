"""Factorisations and determinants in compiled programs, by NumPy's own loops over LAPACK.

What the reference calls is called here, by address and without the interpreter's lock, so that
results have the reference's bits, and signs. NumPy computes float32 in float64 and complex64 in
complex128; the kernels widen operands and round results as it does.

>>> import weft as wf
>>> values = wf.jit(wf.linalg.eigvalsh)(wf.tensor([[2.0, 0.0], [0.0, 1.0]]))
>>> values.tolist()
[1.0, 2.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from weft.compiler.plan.launch import Kind, Launch, Sizes, static_shape
from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import symbol_of
from weft.compiler.targets.cpu.lapack import all_finite
from weft.compiler.targets.cpu.numpy_loops import (
    Exceptions,
    InnerLoop,
    LoopCall,
    axes_of,
    inner_loop,
    sizes_of,
)
from weft.compiler.targets.llvm.ir_builder import KERNEL, IRBuilder, module_text
from weft.compiler.targets.llvm.ir_types import Type
from weft.core.dtypes import DType, complex64, complex128, float32, float64, real_of
from weft.core.types import TensorType
from weft.ir.graph import GraphNode, Literal, Variable
from weft.ir.kinds import MatrixFunction
from weft.ops.matrices import smaller_side

MODULE = "numpy.linalg._umath_linalg"
WIDE = {float32: float64, float64: float64, complex64: complex128, complex128: complex128}
"""The dtype in which NumPy computes."""
CODES = {float64: "d", complex128: "D"}
WORK = 50_000
"""About how many products of elements a chunk of a stack should be: they are done several times."""


def factorization_launches(node: GraphNode, error: Literal) -> list[Launch] | None:
    """The launch of a node that loops of NumPy's compute; None for any other."""
    if not node.operands or any(v.type.dtype not in WIDE for v in (*node.operands, *node.results)):
        return None
    if node.primitive.name == "qr":
        return _qr_launches(node, error)
    kind = node.primitive.kind
    return _stack_launches(node, kind, error) if isinstance(kind, MatrixFunction) else None


Value = Variable | Literal
Numbers = Callable[[Sizes], list[int]]


def _launch(
    node: GraphNode, function: int, copies: tuple[Variable, ...], error: Literal, numbers: Numbers
) -> Launch:
    """The launch of a function over stacks of matrices, which is given `copies` to work in."""
    *stack, height, width = node.operands[0].type.shape

    def grain(sizes: Sizes) -> int:
        sides = static_shape((height, width), sizes)
        return max(1, WORK // max(1, math.prod(sides) * max(sides)))

    return Launch(
        Kind.FACTORIZATION,
        node.primitive.name,
        symbol_of(function),
        (*node.operands, *node.results, error, *copies),
        (*node.results, *copies),
        numbers,
        lambda sizes: math.prod(static_shape(tuple(stack), sizes)),
        grain,
        checked=node,
    )


# --- what a function is given, and reads ---------------------------------------------------------


def _find_loop(name: str, operands: Sequence[Value], results: Sequence[Value]) -> InnerLoop | None:
    codes = ["".join(CODES[WIDE[v.type.dtype]] for v in each) for each in (operands, results)]
    return inner_loop(MODULE, name, "->".join(codes))


def _loop_numbers(loop: InnerLoop, values: Sequence[Value], sizes: Sizes) -> list[int]:
    """What `_Numbers.loop` reads: the loop, its sizes, and of each value its elements and steps."""
    lengths: dict[str, int] = {}
    elements, steps = list[int](), list[int]()
    for axes, value in zip(axes_of(loop.signature), values, strict=True):
        shape = static_shape(value.type.shape, sizes)
        own = shape[len(shape) - len(axes) :]
        lengths |= zip(axes, own, strict=True)
        elements.append(math.prod(own))
        behind = [math.prod(own[place + 1 :]) for place in range(len(own))]
        steps += [count * WIDE[value.type.dtype].itemsize for count in behind]
    ordered = [lengths[name] for name in sizes_of(loop.signature)]
    return [loop.function, loop.data, *ordered, *elements, *steps]


class _Numbers:
    """Reads the numbers that a function is given, in order."""

    def __init__(self, out: IRBuilder) -> None:
        self.out, self.place = out, 0

    def number(self) -> str:
        """The next one."""
        self.place += 1
        return self.out.number("%sizes", self.place - 1)

    def pointer(self) -> str:
        """The next one, an address."""
        self.place += 1
        return self.out.pointer("%sizes", self.place - 1)

    def loop(self, signature: str, dtypes: Sequence[DType]) -> tuple[LoopCall, list[str]]:
        """The call of a loop, and how many elements a matrix of each operand and result has."""
        out, axes = self.out, axes_of(signature)
        loop = self.pointer(), self.pointer()
        lengths = [self.number() for _ in sizes_of(signature)]
        elements = [self.number() for _ in axes]
        stack = [out.mul(n, WIDE[d].itemsize) for n, d in zip(elements, dtypes, strict=True)]
        steps = [self.number() for each in axes for _ in each]
        return LoopCall(out, loop, lengths, [*stack, *steps]), elements


class _Span:
    """The part of a buffer that a call computes, in its dtype and, where NumPy wants it, wide."""

    def __init__(self, out: IRBuilder, dtype: DType, buffer: int, elements: str) -> None:
        self.out, self.dtype = out, dtype
        self.first, self.count = (out.mul(each, elements) for each in ("%begin", "%count"))
        self.place = self._start(dtype, buffer)
        self.wide = self.place

    def _start(self, dtype: DType, buffer: int) -> str:
        at = self.out.mul(self.first, dtype.itemsize)
        return self.out.at("i8", self.out.buffer(buffer), at)

    def copy_to(self, buffer: int) -> None:
        """From now on the wide numbers are in a buffer of their own."""
        self.wide = self._start(WIDE[self.dtype], buffer)

    def widen(self) -> None:
        """Write the wide numbers."""
        convert_numbers(self.out, self.dtype, WIDE[self.dtype], self.place, self.wide, self.count)

    def round(self) -> None:
        """Write the numbers that the wide ones are rounded to."""
        convert_numbers(self.out, WIDE[self.dtype], self.dtype, self.wide, self.place, self.count)


def convert_numbers(
    out: IRBuilder, source: DType, target: DType, read: str, written: str, count: str
) -> None:
    """Write the conversion of numbers, or parts of complex numbers, to another width."""
    if source.is_complex:
        count = out.mul(count, 2)
    kinds = [Type(real_of(dtype)).text for dtype in (source, target)]
    if kinds[0] == kinds[1]:
        out.copy(written, read, out.mul(count, real_of(source).itemsize))
        return
    how = "fpext" if kinds[0] == "float" else "fptrunc"
    with out.loop(0, count) as place:
        number = out.load(kinds[0], out.at(kinds[0], read, place))
        out.store(out.convert(how, number, kinds[1]), out.at(kinds[1], written, place))


def _refuse_where(out: IRBuilder, condition: str, buffer: int) -> None:
    """Report that the operands are wrong: the reference then says how."""
    with out.when(condition):
        out.store(1, out.buffer(buffer), "i32")


# --- functions that are one loop -----------------------------------------------------------------


def _stack_launches(node: GraphNode, how: MatrixFunction, error: Literal) -> list[Launch] | None:
    """The launch of a node that one loop computes; None where the loop is not found."""
    values = (*node.operands, *node.results)
    loop = _find_loop(how.loop(node.params), node.operands, node.results)
    if loop is None:
        return None

    def launch_numbers(sizes: Sizes) -> list[int]:
        return [*Exceptions.addresses(), *_loop_numbers(loop, values, sizes)]

    dtypes = tuple([v.type.dtype for v in values])
    function = _stack_address(
        loop.signature, dtypes, len(node.operands), how.may_fail, how.needs_finite
    )
    copies = tuple([_wide_copy(v) for v in values if v.type.dtype not in CODES])
    return [_launch(node, function, copies, error, launch_numbers)]


def _wide_copy(value: Value) -> Variable:
    return Variable(TensorType(WIDE[value.type.dtype], value.type.shape))


@cache
def _stack_address(
    signature: str, dtypes: tuple[DType, ...], operands: int, may_fail: bool, needs_finite: bool
) -> int:
    """The address of a function with a kernel's signature that computes a stack of matrices."""
    out = IRBuilder("stack", KERNEL, public=True, may_unwind=True)
    out.do("%count = sub i64 %end, %begin")
    numbers, error = _Numbers(out), len(dtypes)
    exceptions = Exceptions(out, numbers.pointer(), numbers.pointer())
    call, elements = numbers.loop(signature, dtypes)
    spans = [
        _Span(out, dtype, place, count)
        for place, (dtype, count) in enumerate(zip(dtypes, elements, strict=True))
    ]
    narrow = [span for span in spans if span.dtype not in CODES]
    for place, span in enumerate(narrow):
        span.copy_to(error + 1 + place)
    for span in spans[:operands]:
        if span in narrow:
            span.widen()
    is_ready = _is_finite(out, spans[0]) if needs_finite else "true"
    with out.choose(is_ready) as (ready, refused):
        with ready:
            exceptions.clear()
            call.run([span.wide for span in spans], "%count")
            if may_fail:
                _refuse_where(out, exceptions.has_failed(), error)
        with refused:
            out.store(1, out.buffer(error), "i32")
    for span in spans[operands:]:
        if span in narrow:
            span.round()
    return text_addresses(module_text(out), ["stack"])["stack"]


def _is_finite(out: IRBuilder, span: _Span) -> str:
    kind = Type(real_of(WIDE[span.dtype])).text
    count = out.mul(span.count, 2) if span.dtype.is_complex else span.count
    return all_finite(out, kind, span.wide, count)


# --- Q and R -------------------------------------------------------------------------------------


def _qr_launches(node: GraphNode, error: Literal) -> list[Launch] | None:
    """The launch of Q R: NumPy has a loop for the reflections and R, and one for Q."""
    (x,), (q, r) = node.operands, node.results
    *stack, height, width = x.type.shape
    wide = WIDE[x.type.dtype]
    reflected = _wide_copy(x)  # R, and below its diagonal the reflections that lead to it
    scales = Variable(TensorType(wide, (*stack, smaller_side(height, width))))
    is_complete = node.params["complete"] and q.type.shape[-1] != scales.type.shape[-1]
    first = _find_loop("qr_r_raw", [reflected], [scales])
    second = _find_loop("qr_complete" if is_complete else "qr_reduced", [reflected, scales], [q])
    if first is None or second is None:
        return None

    def launch_numbers(sizes: Sizes) -> list[int]:
        return [
            *Exceptions.addresses(),
            *_loop_numbers(first, [reflected, scales], sizes),
            *_loop_numbers(second, [reflected, scales, q], sizes),
            *static_shape(r.type.shape[-2:], sizes),
        ]

    function = _qr_address(x.type.dtype, first.signature, second.signature)
    return [_launch(node, function, (reflected, scales, _wide_copy(q)), error, launch_numbers)]


@cache
def _qr_address(dtype: DType, first: str, second: str) -> int:
    """The address of a function that writes Q and R of a stack of matrices."""
    out = IRBuilder("stack", KERNEL, public=True, may_unwind=True)
    out.do("%count = sub i64 %end, %begin")
    numbers, error = _Numbers(out), 3
    exceptions = Exceptions(out, numbers.pointer(), numbers.pointer())
    reflect, elements = numbers.loop(first, [dtype] * 2)
    compose, (_, _, q_elements) = numbers.loop(second, [dtype] * 3)
    height, width = numbers.number(), numbers.number()
    x, q = _Span(out, dtype, 0, elements[0]), _Span(out, dtype, 1, q_elements)
    scales = _Span(out, WIDE[dtype], 5, elements[1])
    x.copy_to(4)
    x.widen()
    if dtype not in CODES:
        q.copy_to(6)
    exceptions.clear()
    reflect.run([x.wide, scales.place], "%count")
    compose.run([x.wide, scales.place, q.wide], "%count")
    _refuse_where(out, exceptions.has_failed(), error)
    if dtype not in CODES:
        q.round()
    _write_upper(out, dtype, x, (elements[0], height, width))
    return text_addresses(module_text(out), ["stack"])["stack"]


def _write_upper(out: IRBuilder, dtype: DType, x: _Span, sizes: tuple[str, str, str]) -> None:
    """Write R: what is on and above the diagonal of the first rows of each wide matrix."""
    elements, height, width = sizes
    r = _Span(out, dtype, 2, out.mul(height, width))
    out.clear(r.place, out.mul(r.count, dtype.itemsize))
    rows = out.least(height, width)  # those that the diagonal reaches
    with out.loop(0, "%count") as number, out.loop(0, rows) as row:
        place = out.add(out.mul(row, width), row)  # of the diagonal
        read = out.add(out.mul(number, elements), place)
        written = out.add(out.mul(number, out.mul(height, width)), place)
        convert_numbers(
            out,
            WIDE[dtype],
            dtype,
            out.at("i8", x.wide, out.mul(read, WIDE[dtype].itemsize)),
            out.at("i8", r.place, out.mul(written, dtype.itemsize)),
            out.sub(width, row),
        )
