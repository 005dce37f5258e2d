"""Functions of an object file whose runs choose sizes: work space, and how much there must be.

The work space of an instance is the memory behind it, or what `malloc` gave last. A run that it
does not hold asks for more where the instance is in memory of its own, and is refused otherwise.
"""

from __future__ import annotations

from weft.compiler.export.bodies import Bodies
from weft.compiler.export.layout import GROWN, HELD, WHOLE, WORK, Footprint
from weft.compiler.export.object_writers import (
    GlobalNeeds,
    ObjectWriter,
    allocate,
    argument_name,
    word,
)
from weft.compiler.targets.llvm.machine import Machine
from weft.core.records import frozen


def begin_work_space(out: ObjectWriter, end: int) -> None:
    """Say at the beginning of an instance of `%bytes` bytes that the rest is work space."""
    out.store("null", out.at("i8", "%model", WHOLE), "ptr")
    out.store("null", out.at("i8", "%model", GROWN), "ptr")
    out.store(out.at("i8", "%model", end), out.at("i8", "%model", WORK), "ptr")
    out.store(out.sub("%bytes", end), out.at("i8", "%model", HELD), "i64")


@frozen(eq=False)
class SizedFunctions:
    """Writes these functions."""

    name: str
    bodies: Bodies
    needs: GlobalNeeds
    machine: Machine
    memory: Footprint

    @property
    def _sizes(self) -> list[str]:
        return [f"i64 %{argument_name(name)}" for name in self.bodies.layout.sizes.names]

    def inits(self, inside: bool) -> list[ObjectWriter]:
        """`NAME_init(memory, weights)`, and `NAME_init_in(memory, bytes, weights)`."""
        weights, size = [] if inside else ["ptr %weights"], word(self.machine)
        whole = ObjectWriter(f"{self.name}_init", ["ptr %model", *weights], "ptr")
        made = whole.call("@own_init", "ptr %model", self.memory.whole, *weights, result="ptr")
        whole.give(made)
        part = ObjectWriter(
            f"{self.name}_init_in", ["ptr %model", f"{size} %given", *weights], "ptr"
        )
        count = "%given" if size == "i64" else part.convert("zext", "%given", "i64")
        with part.when(part.test("ult", count, self.memory.instance)):
            part.give("null")
        part.give(part.call("@own_init", "ptr %model", f"i64 {count}", *weights, result="ptr"))
        return [whole, part]

    def workspace(self) -> ObjectWriter:
        """`NAME_workspace(sizes)`: the bytes of work space of a run, 0 for one that is refused."""
        size = word(self.machine)
        out = ObjectWriter(f"{self.name}_workspace", self._sizes, size, self.needs)
        needed = str(self.bodies.bytes_of_run(out))
        out.give(needed if size == "i64" else out.convert("trunc", needed, size))
        return out

    def scratch(self) -> ObjectWriter:
        """`own_scratch(sizes)`: the bytes of scratch memory of one thread."""
        out = ObjectWriter("own_scratch", self._sizes, "i64", self.needs)
        out.hide()
        out.give(self.memory.scratch.write(out))
        return out

    def work_space(self, heap: bool) -> ObjectWriter:
        """`own_work(model, needed)`: the address of work space that holds so much, or null."""
        out = ObjectWriter("own_work", ["ptr %model", "i64 %needed"], "ptr")
        out.hide()
        work, held, grown = (out.at("i8", "%model", at) for at in (WORK, HELD, GROWN))
        before = out.load("i64", held)
        with out.when(out.test("sge", before, "%needed")):
            out.give(out.load("ptr", work))
        if heap:
            # memory of the caller's stays as it is
            with out.when(out.is_missing(out.load("ptr", out.at("i8", "%model", WHOLE)))):
                out.give("null")
            out.free(out.load("ptr", grown))
            # by half as much again at least, so that sizes which grow by one do not ask each time
            half = out.least(out.add(before, out.div(before, 2)), int(self.memory.work.max()))
            size = out.most("%needed", half)
            model, whole = allocate(out, size, self.machine)
            out.store(whole, grown, "ptr")
            is_missing = out.is_missing(whole)
            out.store(out.select(is_missing, 0, size), held, "i64")
            out.store(out.select(is_missing, "null", model), work, "ptr")
            with out.unless(is_missing):
                out.give(model)
        out.give("null")
        return out
