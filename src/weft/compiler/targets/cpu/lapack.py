"""LAPACK, called from compiled programs: Cholesky, triangles, LU, linear systems, inverses.

The library is the one that NumPy brings along; where it is not found the primitive is called by
reference. Of complex matrices there are triangles and LU here; `factorizations` has the others.
LAPACK has columns one after the other,
so that it sees the transpose Aᵀ of a matrix A with rows. Nothing is turned for that: A X = B is
Xᵀ Aᵀ = Bᵀ, a system with the unknown on the left, which LAPACK solves on the memory of X itself.

>>> import weft as wf
>>> solve = wf.jit(wf.linalg.solve)
>>> solve(wf.tensor([[0.0, 2.0], [4.0, 0.0]]), wf.tensor([[2.0], [4.0]])).tolist()
[[1.0], [1.0]]
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, reduce

from weft.compiler.plan.launch import Kind, Launch, Sizes, substitute_all
from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import finder, remember_address, symbol_of
from weft.compiler.targets.cpu.products.forms import blas
from weft.compiler.targets.llvm.ir_builder import KERNEL, IRBuilder, module_text
from weft.compiler.targets.llvm.ir_types import Type
from weft.core.dtypes import (
    INDEX,
    DType,
    as_dtype,
    complex64,
    complex128,
    float32,
    float64,
    real_of,
)
from weft.core.shapes import size
from weft.core.types import TensorType
from weft.ir.graph import GraphNode, Literal, Variable
from weft.ops.matrices import smaller_side

LETTERS = {float32: "s", float64: "d", complex64: "c", complex128: "z"}
"""What LAPACK calls the dtypes."""
_COMPLEX = ("triangular_solve", "lu")
"""The primitives whose functions are those of complex numbers, too."""
WORK = 250_000
"""About how many floating-point operations a chunk of a stack of matrices should be."""


def lapack_launches(node: GraphNode, error: Literal) -> list[Launch] | None:
    """The launch of a node that LAPACK computes; None for any other."""
    if node.primitive.name not in _WRITERS:
        return None
    dtype = node.operands[0].type.dtype
    if dtype.is_complex and node.primitive.name not in _COMPLEX:
        return None
    if any(routine_address(name, dtype) is None for name in _ROUTINES):
        return None
    *stack, rows, _ = node.operands[0].type.shape
    columns = node.operands[-1].type.shape[-1]
    scratch = _scratch(node)

    def launch_numbers(sizes: Sizes) -> list[int]:
        addresses = [routine_address(name, dtype) or 0 for name in _ROUTINES]
        flags = [int(node.params.get(name, False)) for name in ("lower", "unit")]
        return [substitute_all(rows, sizes), substitute_all(columns, sizes), *flags, *addresses]

    def grain(sizes: Sizes) -> int:
        order, width = launch_numbers(sizes)[:2]
        return max(1, WORK // max(1, order * order * max(order, width)))

    def count(sizes: Sizes) -> int:
        is_work = launch_numbers(sizes)[0] or node.primitive.name == "lu"
        return int(substitute_all(size(stack), sizes)) if is_work else 0

    return [
        Launch(
            Kind.FACTORIZATION,
            node.primitive.name,
            symbol_of(_function_address(node.primitive.name, dtype)),
            (*node.operands, *node.results, error, *scratch),
            (*node.results, *scratch),
            launch_numbers,
            count,
            grain,
            checked=node,
        )
    ]


def _scratch(node: GraphNode) -> tuple[Variable, ...]:
    """Memory for the factors of each matrix and its pivots, where the factors are no result."""
    kind = node.operands[0].type
    if node.primitive.name == "lu":  # and for the order of the rows
        places = TensorType(INDEX, kind.shape[:-1])
        pivots = TensorType(INDEX, (*kind.shape[:-2], smaller_side(*kind.shape[-2:])))
        return Variable(kind), Variable(pivots), Variable(places)
    if node.primitive.name not in _ELIMINATING:
        return ()
    return Variable(kind), Variable(TensorType(INDEX, kind.shape[:-1]))


# --- the library ---------------------------------------------------------------------------------

_ROUTINES = ("potrf", "trsm", "getrf")


@cache
def routine_address(name: str, dtype: DType) -> int | None:
    """Where NumPy's library has a routine; None where it cannot be found."""
    routine = getattr(blas(), f"scipy_{LETTERS.get(dtype)}{name}_64_", None)
    if routine is None:
        return None
    address = ctypes.cast(routine, ctypes.c_void_p).value
    return None if address is None else remember_address(address, "routine", name, dtype.name)


finder("routine", lambda name, dtype: routine_address(name, as_dtype(dtype)))


@cache
def _function_address(name: str, dtype: DType) -> int:
    """The address of a function with a kernel's signature that computes a stack of matrices."""
    out = IRBuilder("stack", KERNEL, public=True, may_unwind=True)
    _WRITERS[name](_Routines(out, dtype))
    return text_addresses(module_text(out), ["stack"])["stack"]


# --- the functions -------------------------------------------------------------------------------


def all_finite(out: IRBuilder, kind: str, numbers: str, count: str) -> str:
    """Write the question whether all numbers are finite: the sum of each times zero is zero.

    Where they are not, no matrix is singular: whether a pivot is zero is a matter of chance.
    """
    total = out.variable("0.0", kind)
    with out.loop(0, count) as place:
        number = out.load(kind, out.at(kind, numbers, place))
        nothing = out.put(f"fmul {kind} {number}, 0.0", kind)
        total.value = out.put(f"fadd {kind} {total.value}, {nothing}", kind)
    return out.put(f"fcmp oeq {kind} {total.value}, 0.0", "i1")


class _Routines:
    """Writes calls of LAPACK's routines, which take all they are given by address."""

    def __init__(self, out: IRBuilder, dtype: DType) -> None:
        self.out, self.bytes = out, dtype.itemsize
        self.real, self.parts = Type(real_of(dtype)).text, 2 if dtype.is_complex else 1
        # complex numbers are moved as integers of their size, and looked at by their parts
        self.kind = f"i{8 * dtype.itemsize}" if dtype.is_complex else self.real
        names = [out.number("%sizes", place) for place in range(4)]
        self.order, self.columns, self.lower, self.unit = names
        self.routines = {
            name: out.pointer("%sizes", 4 + place) for place, name in enumerate(_ROUTINES)
        }
        self.info, self.one = out.room("i64"), out.room(self.real, self.parts)
        self.store_one(self.one)
        self.square = out.mul(self.order, self.order)
        self.at_order, self.at_columns = self.at_integer(self.order), self.at_integer(self.columns)
        self.letters = {letter: self.at_byte(ord(letter)) for letter in "LNRU"}

    def at_integer(self, value: str) -> str:
        """The address of an integer; LAPACK wants lines of at least one element."""
        at = self.out.room("i64")
        self.out.store(self.out.most(value, 1), at)
        return at

    def at_byte(self, value: int) -> str:
        """The address of a letter."""
        at = self.out.room("i8")
        self.out.store(value, at, "i8")
        return at

    def item(self, buffer: int, number: str, elements: str) -> str:
        """Where a matrix of a stack begins."""
        return self.out.at(self.kind, self.out.buffer(buffer), self.out.mul(number, elements))

    def store_one(self, target: str) -> None:
        """Store the number 1."""
        for place, part in enumerate(("1.0", "0.0")[: self.parts]):
            self.out.store(part, self.out.at(self.real, target, place), self.real)

    def is_zero(self, number: str) -> str:
        """Whether the number at an address is 0, all parts of it."""
        tests = []
        for place in range(self.parts):
            part = self.out.load(self.real, self.out.at(self.real, number, place))
            tests.append(self.out.put(f"fcmp oeq {self.real} {part}, 0.0", "i1"))
        return reduce(lambda one, other: self.out.put(f"and i1 {one}, {other}", "i1"), tests)

    def move(self, target: str, source: str) -> None:
        """Copy one element."""
        self.out.store(self.out.load(self.kind, source), target)

    def copy(self, target: str, source: str, elements: str) -> None:
        """Copy so many elements."""
        self.out.copy(target, source, self.out.mul(elements, self.bytes))

    def refuse_where(self, condition: str, buffer: int) -> None:
        """Report that the operands are wrong: the reference then says how."""
        with self.out.when(condition):
            self.out.store(1, self.out.buffer(buffer), "i32")

    def fill_with_nan(self, target: str, elements: str) -> None:
        """Give elements the value of what is no number."""
        with self.out.loop(0, elements) as place:
            self.out.store("0x7FF8000000000000", self.out.at(self.kind, target, place), self.kind)

    def is_failed(self) -> str:
        """Whether the last routine that says so has failed."""
        return self.out.test("ne", self.out.load("i64", self.info), 0)

    def solve_left(self, triangle: str, matrix: str, unknown: str, diagonal: str) -> None:
        """Solve Y M = C for Y in the place of C, M a triangle of a matrix: U or L."""
        letters = self.letters["R"], triangle, self.letters["N"], diagonal
        operands = self.one, matrix, self.at_order, unknown, self.at_columns
        sizes = self.at_columns, self.at_order
        lengths = ("i64 1",) * 4  # of the letters, as Fortran wants it
        self.out.call(self.routines["trsm"], *letters, *sizes, *operands, *lengths)


_WRITERS: dict[str, Callable[[_Routines], None]] = {}
"""What writes the function of a primitive."""
_ELIMINATING = ("solve", "inv")
"""The primitives that eliminate, and need memory for the factors."""


def _native_function_of(
    name: str,
) -> Callable[[Callable[[_Routines], None]], Callable[[_Routines], None]]:
    """Say of which primitive a function writes the native function."""

    def register(write: Callable[[_Routines], None]) -> Callable[[_Routines], None]:
        _WRITERS[name] = write
        return write

    return register


@_native_function_of("cholesky")
def _write_cholesky(routines: _Routines) -> None:
    """L of L Lᵀ = A, in the lower triangle of rows, which LAPACK takes for an upper one."""
    out, order = routines.out, routines.order
    with out.loop("%begin", "%end") as number:
        source = routines.item(0, number, routines.square)
        target = routines.item(1, number, routines.square)
        with out.loop(0, order) as row:
            start, length = out.mul(row, order), out.count_up(row)
            line = out.at(routines.kind, target, start)
            routines.copy(line, out.at(routines.kind, source, start), length)
            rest = out.mul(out.sub(order, length), routines.bytes)
            out.clear(out.at(routines.kind, line, length), rest)
        operands = routines.letters["U"], routines.at_order, target, routines.at_order
        out.call(routines.routines["potrf"], *operands, routines.info, "i64 1")
        routines.refuse_where(routines.is_failed(), 2)


@_native_function_of("triangular_solve")
def _write_triangular_solve(routines: _Routines) -> None:
    """X of A X = B for a triangle A: a lower one of rows is an upper one of columns."""
    out, order = routines.out, routines.order
    letters = routines.letters
    is_lower, is_unit = (out.test("ne", flag, 0) for flag in (routines.lower, routines.unit))
    triangle = out.select(is_lower, letters["U"], letters["L"])
    diagonal = out.select(is_unit, letters["U"], letters["N"])
    sides = out.mul(order, routines.columns)
    with out.loop("%begin", "%end") as number:
        matrix = routines.item(0, number, routines.square)
        unknown = routines.item(2, number, sides)
        routines.copy(unknown, routines.item(1, number, sides), sides)
        with out.unless(is_unit), out.loop(0, order) as row:
            pivot = out.at(routines.kind, matrix, out.mul(row, out.count_up(order)))
            routines.refuse_where(routines.is_zero(pivot), 3)
        with out.when(out.test("sgt", sides, 0)):
            routines.solve_left(triangle, matrix, unknown, diagonal)


@_native_function_of("solve")
def _write_solve(routines: _Routines) -> None:
    """X of A X = B, by elimination with pivots."""
    sides = routines.out.mul(routines.order, routines.columns)
    with routines.out.loop("%begin", "%end") as number:
        unknown = routines.item(2, number, sides)
        routines.copy(unknown, routines.item(1, number, sides), sides)
        _write_elimination(routines, number, unknown, error=3)


@_native_function_of("inv")
def _write_inverse(routines: _Routines) -> None:
    """X of A X = 1."""
    out, order = routines.out, routines.order
    with out.loop("%begin", "%end") as number:
        unknown = routines.item(1, number, routines.square)
        out.clear(unknown, out.mul(routines.square, routines.bytes))
        with out.loop(0, order) as row:
            place = out.at(routines.kind, unknown, out.mul(row, out.count_up(order)))
            out.store("1.0", place, routines.kind)
        _write_elimination(routines, number, unknown, error=2)


def _write_elimination(routines: _Routines, number: str, unknown: str, error: int) -> None:
    """Solve Y M = C in the place of C, where M = P L U are the columns that A's rows are."""
    out, letters = routines.out, routines.letters
    factors = routines.item(error + 1, number, routines.square)
    routines.copy(factors, routines.item(0, number, routines.square), routines.square)
    pivots = out.at("i64", out.buffer(error + 2), out.mul(number, routines.order))
    sizes = routines.at_order, routines.at_order
    out.call(routines.routines["getrf"], *sizes, factors, routines.at_order, pivots, routines.info)
    failed = routines.is_failed()
    with out.when(failed):
        matrix = routines.item(0, number, routines.square)
        finite = all_finite(out, routines.kind, matrix, routines.square)
        routines.refuse_where(finite, error)
        with out.when(out.put(f"xor i1 {finite}, true", "i1")):
            routines.fill_with_nan(unknown, out.mul(routines.order, routines.columns))
    has_sides = out.test("sgt", routines.columns, 0)
    with out.when(out.put(f"and i1 {has_sides}, {out.put(f'xor i1 {failed}, true', 'i1')}", "i1")):
        routines.solve_left(letters["U"], factors, unknown, letters["N"])
        routines.solve_left(letters["L"], factors, unknown, letters["U"])
        _write_swaps(routines, unknown, pivots)


def _write_swaps(routines: _Routines, unknown: str, pivots: str) -> None:
    """Put rows where they were before the pivots were chosen: the last one first."""
    out, kind, columns = routines.out, routines.kind, routines.columns
    with out.loop(0, routines.order) as step:
        row = out.sub(out.sub(routines.order, 1), step)
        other = out.sub(out.number(pivots, row), 1)
        with out.when(out.test("ne", row, other)):
            lines = [out.at(kind, unknown, out.mul(each, columns)) for each in (row, other)]
            with out.loop(0, columns) as column:
                places = [out.at(kind, line, column) for line in lines]
                values = [out.load(kind, place) for place in places]
                out.store(values[1], places[0])
                out.store(values[0], places[1])


@_native_function_of("lu")
def _write_lu(routines: _Routines) -> None:
    """P, L and U with A = P L U: LAPACK has the columns of A, which are written out for it."""
    out, kind = routines.out, routines.kind
    height, width = routines.order, routines.columns
    both, depth = out.mul(height, width), out.least(height, width)
    with out.loop("%begin", "%end") as number:
        matrix = routines.item(0, number, both)
        factors = routines.item(5, number, both)  # [column, row]
        with out.loop(0, height) as row, out.loop(0, width) as column:
            source = out.at(kind, matrix, out.add(out.mul(row, width), column))
            routines.move(out.at(kind, factors, out.add(out.mul(column, height), row)), source)
        pivots = out.at("i64", out.buffer(6), out.mul(number, depth))
        with out.when(out.test("sgt", both, 0)):
            operands = routines.at_order, routines.at_columns, factors, routines.at_order
            out.call(routines.routines["getrf"], *operands, pivots, routines.info)
        _write_permutation(routines, number, pivots, depth)
        lower = routines.item(2, number, out.mul(height, depth))
        out.clear(lower, out.mul(out.mul(height, depth), routines.bytes))
        with out.loop(0, depth) as column:
            routines.store_one(out.at(kind, lower, out.mul(column, out.count_up(depth))))
            with out.loop(out.count_up(column), height) as row:
                source = out.at(kind, factors, out.add(out.mul(column, height), row))
                routines.move(out.at(kind, lower, out.add(out.mul(row, depth), column)), source)
        upper = routines.item(3, number, out.mul(depth, width))
        out.clear(upper, out.mul(out.mul(depth, width), routines.bytes))
        with out.loop(0, depth) as row, out.loop(row, width) as column:
            source = out.at(kind, factors, out.add(out.mul(column, height), row))
            routines.move(out.at(kind, upper, out.add(out.mul(row, width), column)), source)


def _write_permutation(routines: _Routines, number: str, pivots: str, depth: str) -> None:
    """P: the columns of the identity in the order that exchanges of rows by pivots lead to."""
    out, height = routines.out, routines.order
    order = out.at("i64", out.buffer(7), out.mul(number, height))
    with out.loop(0, height) as row:
        out.store(row, out.at("i64", order, row))
    with out.loop(0, depth) as row:
        other = out.sub(out.number(pivots, row), 1)
        places = [out.at("i64", order, each) for each in (row, other)]
        values = [out.load("i64", place) for place in places]
        out.store(values[1], places[0])
        out.store(values[0], places[1])
    square = out.mul(height, height)
    target = routines.item(1, number, square)
    out.clear(target, out.mul(square, routines.bytes))
    with out.loop(0, height) as column:
        place = out.add(out.mul(out.number(order, column), height), column)
        routines.store_one(out.at(routines.kind, target, place))
