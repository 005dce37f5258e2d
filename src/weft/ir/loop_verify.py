"""The rules of the loop language, checked.

>>> from weft.core.dtypes import float32
>>> from weft.ir.loops import For, Kernel, Store
>>> from weft.ir.scalars import Buffer, index, size
>>> x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
>>> verify_kernel(Kernel("copy", (x, y), ("n",), (For(i, size("n"), (Store(y, i, x[i]),)),)))
>>> verify_kernel(Kernel("copy", (x, y), (), (Store(y, i, x[i]),)))  # doctest: +ELLIPSIS
Traceback (most recent call last):
weft.core.errors.GraphError: kernel copy: an index or local is used outside its scope
  expected  indices inside their loops, locals after their definition
  got       i: i      in y[i] = …
  fix       put the statement inside For(i, ...)
  at        ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.core.dtypes import INDEX, bool_
from weft.core.errors import GraphError
from weft.ir.loops import (
    Accumulate,
    For,
    Kernel,
    Let,
    Statement,
    Store,
    Update,
    expressions,
    walk,
    written_buffers,
)
from weft.ir.scalars import INSTRUCTIONS, Buffer, Scalar, nodes_in_order

LONGEST_UNROLLED = 64


def verify_kernel(kernel: Kernel) -> None:
    """Raise a GraphError where a kernel breaks a rule of the language."""
    _Check(kernel).run()


@dataclass
class _Check:
    """Goes through a kernel, and raises at the first thing that the loop language forbids."""

    kernel: Kernel
    _vectors: tuple[Scalar, ...] = ()

    def run(self) -> None:
        kernel = self.kernel
        scratch = [s.buffer for s in kernel.scratch]
        names = [b.name for b in (*kernel.buffers, *scratch)] + list(kernel.sizes)
        if len(set(names)) < len(names):
            self._fail("two buffers or sizes have one name", "distinct names", {"names": names})
        if any(b.access == "scratch" for b in kernel.buffers):
            self._fail("a buffer is scratch", "scratch buffers in `scratch`", {"names": names})
        for each in kernel.scratch:
            self._index("the count of scratch", each.count)
            if each.buffer.access != "scratch" or each.count.variables or each.count.buffers:
                self._fail(
                    "scratch memory depends on more than sizes",
                    "a count of sizes",
                    {"buffer": str(each.buffer), "count": str(each.count)},
                )
        self._check_parallel_loops()
        self._body(kernel.body, frozenset())

    def _check_parallel_loops(self) -> None:
        body = self.kernel.body
        parallel = [s for s in walk(body) if isinstance(s, For) and s.is_parallel]
        allowed = [s for s in body if isinstance(s, Let) or s in parallel]
        if parallel and (len(parallel) > 1 or len(allowed) < len(body) or parallel[0] not in body):
            self._fail(
                "a parallel loop is not the outermost one",
                "one, beside Let only",
                {"parallel": [str(loop.index) for loop in parallel]},
            )

    def _body(self, body: tuple[Statement, ...], scope: frozenset[Scalar]) -> None:
        for statement in body:
            match statement:
                case Let(variable, value):
                    self._check_scope(statement, (value,), scope)
                    scope |= {self._check_local(variable, value, scope)}
                case Store():
                    self._store(statement, scope)
                case For():
                    self._check_for(statement, scope)
                case Accumulate():
                    scope = self._accumulate(statement, scope)

    def _store(self, store: Store, scope: frozenset[Scalar]) -> None:
        self._check_scope(store, tuple(expressions(store)), scope)
        self._index("an offset", store.offset)
        known = (*self.kernel.buffers, *(s.buffer for s in self.kernel.scratch))
        if store.buffer not in known or store.buffer.access == "read":
            self._fail(
                "a store to what is not to be written",
                "a buffer of the kernel",
                {"buffer": str(store.buffer)},
            )
        if store.value.dtype is not store.buffer.dtype:
            self._fail(
                "a store of another dtype",
                "the buffer's dtype",
                {"buffer": str(store.buffer), "value": store.value.dtype},
            )
        if store.where is not None and store.where.dtype is not bool_:
            self._fail("a condition is not a bool", "a bool", {"where": store.where.dtype})

    def _check_for(self, loop: For, scope: frozenset[Scalar]) -> None:
        self._loop(loop, scope)
        if loop.kind == "unrolled":
            whole = loop.extent.op == "const" and loop.extent.detail <= LONGEST_UNROLLED
            if not whole:
                self._fail(
                    "a loop cannot be unrolled",
                    f"a number up to {LONGEST_UNROLLED}",
                    {"extent": str(loop.extent)},
                )
        outer = self._vectors
        if loop.is_vector:
            self._check_independent_iterations(loop)
            self._vectors = (*outer, loop.index)
        self._body(loop.body, scope | {loop.index})
        self._vectors = outer

    def _check_independent_iterations(self, loop: For) -> None:
        """Require that a vector loop holds no other, and reads what it writes at one offset."""
        inner = [s for s in walk(loop.body) if isinstance(s, For) and s.is_vector]
        if self._vectors or inner:
            self._fail(
                "a vector loop inside another", "vector loops innermost", {"loop": str(loop.index)}
            )
        offsets = {s.offset for s in walk(loop.body) if isinstance(s, Store)}
        changed = written_buffers(loop.body)
        for statement in walk(loop.body):
            for x in expressions(statement):
                for read in _loads(x, changed):
                    if read.args[0] not in offsets:
                        self._fail(
                            "iterations depend on each other",
                            "independent ones",
                            {"read": str(read), "loop": str(loop.index)},
                        )

    def _accumulate(self, loop: Accumulate, scope: frozenset[Scalar]) -> frozenset[Scalar]:
        self._loop(loop, scope)
        inner = scope | {loop.index} | _defined_locals(loop.body)
        self._body(loop.body, scope | {loop.index})
        for update in loop.updates:
            self._update(update)
            self._check_scope(loop, update.summands, inner)
            if update.init is not None:
                self._check_scope(loop, (update.init,), scope)
        for update in loop.updates:
            scope |= {self._check_local(update.variable, update.value, scope)}
        return scope

    def _update(self, update: Update) -> None:
        instruction = INSTRUCTIONS.get(update.combine)
        dtype = update.variable.dtype
        if instruction is None or dtype not in instruction.dtypes:
            self._fail(
                "an accumulator of a dtype that does not combine so",
                "another",
                {"combine": update.combine, "dtype": dtype},
            )
        times = update.times
        if times is not None and (update.combine != "add" or times.dtype is not dtype):
            self._fail(
                "an accumulator takes a factor that it cannot multiply by",
                "sums, of one floating dtype",
                {"combine": update.combine, "times": times.dtype, "dtype": dtype},
            )
        if update.init is not None and update.init.dtype is not dtype:
            self._fail(
                "an accumulator starts with another dtype",
                "one dtype",
                {"init": update.init.dtype, "dtype": dtype},
            )

    def _loop(self, loop: For | Accumulate, scope: frozenset[Scalar]) -> None:
        self._check_scope(loop, (loop.extent,), scope)
        self._index("an extent", loop.extent)
        if loop.index.op != "index" or loop.index in scope:
            self._fail("a loop's index is taken", "an index of its own", {"index": str(loop.index)})
        if loop.extent.variables & frozenset(self._vectors):
            self._fail(
                "an extent differs between lanes",
                "an extent for all lanes",
                {"extent": str(loop.extent)},
            )

    def _check_local(self, variable: Scalar, value: Scalar, scope: frozenset[Scalar]) -> Scalar:
        names = {v.detail for v in scope}
        if variable.op != "local" or variable.detail in names:
            self._fail(
                "a local is defined twice, or is none",
                "a name of its own",
                {"variable": str(variable)},
            )
        if variable.dtype is not value.dtype:
            self._fail(
                "a local gets a value of another dtype",
                "one dtype",
                {"variable": variable.dtype, "value": value.dtype},
            )
        return variable

    def _index(self, what: str, x: Scalar) -> None:
        if x.dtype is not INDEX:
            self._fail(f"{what} is not an int64", "an int64 expression", {"x": x.dtype})

    def _check_scope(
        self, statement: Statement, values: tuple[Scalar, ...], scope: frozenset[Scalar]
    ) -> None:
        for value in values:
            for missing in value.variables - scope:
                self._fail(
                    "an index or local is used outside its scope",
                    "indices inside their loops, locals after their definition",
                    {missing.detail: str(missing)},
                    note=f"in {_brief(statement)}",
                    fix=f"put the statement inside For({missing}, ...)",
                )
            self._check_loads_and_sizes(value)

    def _check_loads_and_sizes(self, value: Scalar) -> None:
        """Loads are from buffers, and sizes are sizes, of this kernel."""
        known = {*self.kernel.buffers, *(s.buffer for s in self.kernel.scratch)}
        for x in nodes_in_order(value):
            if x.op == "size" and x.detail not in self.kernel.sizes:
                got = {"size": str(x)}
                self._fail("a size that the kernel is not given", "one of its sizes", got)
            if x.op == "load":
                self._index("an offset", x.args[0])
                if x.detail not in known:
                    got = {"buffer": str(x.detail)}
                    self._fail("a load from another kernel's buffer", "one of its buffers", got)

    def _fail(
        self,
        problem: str,
        expected: str,
        got: Mapping[str, object],
        note: str = "",
        fix: str = "correct the lowering that made this kernel: print(kernel)",
    ) -> None:
        raise GraphError(
            f"kernel {self.kernel.name}", problem, expected=expected, got=got, note=note, fix=fix
        )


def _loads(x: Scalar, buffers: frozenset[Buffer]) -> list[Scalar]:
    """The loads from some buffers in an expression."""
    if not x.buffers & buffers:
        return []
    return [each for each in nodes_in_order(x) if each.op == "load" and each.detail in buffers]


def _defined_locals(body: tuple[Statement, ...]) -> frozenset[Scalar]:
    lets = {s.variable for s in body if isinstance(s, Let)}
    return frozenset(
        lets | {u.variable for s in body if isinstance(s, Accumulate) for u in s.updates}
    )


def _brief(statement: Statement) -> str:
    match statement:
        case Store(buffer, offset):
            return f"{buffer.name}[{offset}] = …"
        case Let(variable):
            return f"let {variable} = …"
        case For(index, extent) | Accumulate(index, extent):
            return f"the loop {index} < {extent}"
