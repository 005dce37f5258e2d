"""The text of the native functions that find and run calls; see `native_calls.py`.

`run` runs a program on arrays that fit, `recall` finds a call in a book and runs it. Both leave to
Python whatever is not exactly as noted.

>>> from weft.compiler.targets.cpu.runtime.array_fields import fields
>>> fields() is None or "weft.recall" in module_source(fields())
True
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.targets.cpu.runtime.array_fields import Fields
from weft.compiler.targets.cpu.runtime.driver import INTERRUPTED, WATCH_RECORD
from weft.compiler.targets.cpu.runtime.word_comparison import COMPARED_BY, compare_function
from weft.compiler.targets.llvm.ir_builder import NULL, IRBuilder, Record, Struct, module_text

MOST_OPERANDS = 64
"""A program with more operands, or results, is left to Python: what is around it is little."""
_CONTIGUOUS_AND_ALIGNED = 0x101
MISSED, DONE, RAISED = 0, 1, 2
"""How a run ended: it is left to Python, all is well, or a signal's handler has raised."""

RUN = Struct(
    "i64 busy, ptr owner, ptr calls, i64 count, ptr addresses, ptr error, ptr parallel_for,"
    "ptr slots, i64 inputs, i64 outputs, ptr kinds, i64 workspace, i64 planned, ptr planned_slots,"
    "ptr offsets"
)
"""What a run is: whether it is under way, what keeps all of this alive, the driver's arguments, the
slots of arrays, their kinds (dtype, count of axes, sizes), and what the plan lays out."""
CALL = Struct(
    "ptr next, i64 given, i64 named, ptr names, ptr arguments, i64 is_final, ptr mode,"
    "ptr elements, ptr run, ptr places, ptr is_alive, ptr words, i64 held, ptr held_handles,"
    "ptr held_arrays"
)
"""A call that is known: how many arguments it has, the names of the last ones, each argument (the
object that it is, or null for a tensor), whether a place on the tape is another way, whether
gradients are recorded (or null where that is the same), the setting `eager_elements`, and what runs
it. With such a mode, tensors must have neither place nor gradient, and be different ones.

Then which input each tensor is; and of state, such as a module, what says that it is still there,
the words by which it is as it was, its tensors, and of each input the array that is part of it."""
FUNCTIONS = (
    "Py_IncRef", "Py_DecRef", "PyEval_SaveThread", "PyEval_RestoreThread", "PyErr_Clear",
    "PyErr_Restore", "PyErr_SetNone", *COMPARED_BY, "PyList_New", "PyList_SetItem",
    "PyTuple_Size", "PyTuple_GetItem", "PyObject_GetAttr", "PyContextVar_Get",
    "PyType_GenericAlloc",
)  # fmt: skip
WORDS = (
    "new_array", "execute", "None", "True", "ndarray", "KeyboardInterrupt", "watchers", "watch",
)  # fmt: skip
PLACES = (
    "value", "node", "gradient", "origin", "compiler", "fastcall", "eager", "elements",
)  # fmt: skip
"""Where in a handle its array and the rest stand, and where in the settings these are."""
USUAL = (
    "handle_class", "settings", "settings_class", "native", "observers", "rules", "no_rules",
    "traces", "stack", "keeper", "device", "by_reference", "False", "grad_mode", "enabled",
    "autocast", "only_rules",
)  # fmt: skip
"""What says that a call is made as usual: objects, and names of their attributes."""
KNOWN = Struct(
    ", ".join(
        [f"ptr {name}" for name in (*FUNCTIONS, *WORDS, *USUAL)]
        + [f"i64 {name}_place" for name in PLACES]
    )
)


class _CallBuilder(IRBuilder):
    """The text of a function that reads the interpreter's objects."""

    def __init__(
        self, name: str, parameters: Sequence[str], places: Fields, result: str, *,
        public: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(name, parameters, public=public, result=result, may_unwind=True)
        self.places = places
        self.known = self.record(KNOWN, "@known")

    def ask(self, function: str, *operands: str | int, result: str = "ptr") -> str:
        """Call a function of the interpreter's."""
        return self.call(self.known[function], *operands, result=result)

    def field(self, item: str, place: str | int, kind: str = "ptr") -> str:
        """A field of an object, so many bytes into it."""
        return self.load(kind, self.at("i8", item, place))

    def elements_address(self, array: str) -> str:
        """Where the elements of an array are."""
        return self.field(array, self.places.data)

    def is_object(self, item: str, name: str) -> str:
        """Whether an object is one of those that are known."""
        return self.test("eq", item, self.known[name])

    def answer_none(self) -> None:
        """Leave the call to Python."""
        none = self.known["None"]
        self.ask("Py_IncRef", none, result="void")
        self.give(none)

    def give_unless(self, condition: str, value: str | int) -> None:
        """Return a value where a condition does not hold."""
        with self.unless(condition):
            self.give(value)


def _fits_function(places: Fields) -> IRBuilder:
    """`fits(array, kind)`: whether it is an array without gaps of this dtype and shape."""
    out = _CallBuilder("fits", ("ptr %array", "ptr %kind"), places, "i1")
    array, kind = out.parameters
    out.give_unless(out.is_object(out.field(array, places.kind), "ndarray"), "false")
    flags = out.combine("and", out.field(array, places.flags, "i32"), _CONTIGUOUS_AND_ALIGNED)
    out.give_unless(out.test("eq", flags, _CONTIGUOUS_AND_ALIGNED), "false")
    out.give_unless(out.test("eq", out.field(array, places.dtype), out.pointer(kind, 0)), "false")
    axes = out.convert("sext", out.field(array, places.axes, "i32"), "i64")
    out.give_unless(out.test("eq", axes, out.number(kind, 1)), "false")
    sizes = out.field(array, places.sizes)
    with out.loop(0, axes) as n:
        wanted = out.number(kind, out.add(n, 2))
        out.give_unless(out.test("eq", out.number(sizes, n), wanted), "false")
    out.give("true")
    return out


def _new_results_function(places: Fields) -> IRBuilder:
    """`new_results(run, results)`: make the arrays of a run's results; whether there was room."""
    out = _CallBuilder("new_results", ("ptr %run", "ptr %results"), places, "i1")
    run, results = out.record(RUN, out.parameters[0]), out.parameters[1]
    inputs, outputs, kinds = run.all("inputs", "outputs", "kinds")
    with out.loop(0, outputs) as n:
        kind = out.pointer(kinds, out.add(inputs, n))
        dtype = out.pointer(kind, 0)
        out.ask("Py_IncRef", dtype, result="void")  # which the function takes
        made = out.ask(
            "new_array", out.known["ndarray"], dtype,
            out.convert("trunc", out.number(kind, 1), "i32"), out.at("i64", kind, 2),
            NULL, NULL, "i32 0", NULL,
        )  # fmt: skip
        with out.when(out.test("eq", made, NULL)):
            out.ask("PyErr_Clear", result="void")  # Python says what there is no room for
            _drop(out, results, n)
            out.give("false")
        out.store(made, out.at("ptr", results, n))
    out.give("true")
    return out


def _drop(out: _CallBuilder, objects: str, count: str) -> None:
    """Give up the first of some references."""
    with out.loop(0, count) as n:
        out.ask("Py_DecRef", out.pointer(objects, n), result="void")


def _run_function(places: Fields, new_results: IRBuilder) -> IRBuilder:
    """`run(run, inputs, results)`: run a program on arrays that fit; how it ended."""
    names = ("ptr %run", "ptr %inputs", "ptr %results")
    out = _CallBuilder("run", names, places, "i64")
    run, inputs, results = out.record(RUN, out.parameters[0]), *out.parameters[1:]
    out.give_unless(out.test("eq", run["busy"], 0), MISSED)  # in another thread, or in a signal
    owner, input_count, output_count = run.all("owner", "inputs", "outputs")
    workspace = out.variable(NULL)
    with out.when(out.test("ne", run["workspace"], 0)):
        base, workspace.value = out.memory(run["workspace"])
        out.give_unless(out.test("ne", workspace.value, NULL), MISSED)
        with out.loop(0, run["planned"]) as n:
            slot, offset = out.number(run["planned_slots"], n), out.number(run["offsets"], n)
            out.store(out.at("i8", base, offset), out.at("ptr", run["addresses"], slot))
    with out.unless(out.call(new_results, out.parameters[0], results)):
        out.free(workspace.value)
        out.give(MISSED)
    run["busy"] = 1
    out.ask("Py_IncRef", owner, result="void")
    addresses, slots, error = run.all("addresses", "slots", "error")
    for arrays, first, count in ((inputs, 0, input_count), (results, input_count, output_count)):
        with out.loop(0, count) as n:
            array = out.pointer(arrays, n)
            out.ask("Py_IncRef", array, result="void")  # its tensor may be rebound meanwhile
            slot = out.number(slots, out.add(n, first))
            out.store(out.elements_address(array), out.at("ptr", addresses, slot))
    out.store(0, error, "i32")
    thread = out.ask("PyEval_SaveThread")
    given = run.all("calls", "count", "addresses", "error", "parallel_for")
    out.call(out.known["execute"], *given, result="i64")
    out.ask("PyEval_RestoreThread", thread, result="void")
    out.free(workspace.value)
    said = out.load("i32", error)
    run["busy"] = 0
    _drop(out, inputs, input_count)
    _drop(out, results, output_count)
    out.ask("Py_DecRef", owner, result="void")
    with out.when(out.test("eq", said, 0)):
        out.give(DONE)
    _drop(out, results, output_count)
    out.give_unless(out.test("eq", said, INTERRUPTED), MISSED)
    watch = out.record(WATCH_RECORD, out.known["watch"])
    places_of_raised = [watch.address(name) for name in ("kind", "raised", "trace")]
    raised = [out.load("ptr", place) for place in places_of_raised]
    for place in places_of_raised:
        out.store(NULL, place)
    with out.choose(out.test("eq", raised[0], NULL)) as (is_lost, is_there):
        with is_lost:
            out.ask("PyErr_SetNone", out.known["KeyboardInterrupt"], result="void")
        with is_there:
            out.ask("PyErr_Restore", *raised, result="void")
    out.give(RAISED)
    return out


def _run_arrays_function(places: Fields, fits: IRBuilder, run: IRBuilder) -> IRBuilder:
    """`run_arrays(words, arrays)`: of a list of arrays the list of results, or None."""
    out = _CallBuilder("run_arrays", ("ptr %self", "ptr %given"), places, "ptr", public=True)
    record = out.elements_address(out.parameters[0])
    inputs, results = out.room("ptr", MOST_OPERANDS), out.room("ptr", MOST_OPERANDS)
    words = out.record(RUN, record)
    count, outputs, kinds = words.all("inputs", "outputs", "kinds")
    given = out.parameters[1]
    with out.unless(out.test("eq", out.ask("PyList_Size", given, result="i64"), count)):
        out.ask("PyErr_Clear", result="void")  # it is no list
        out.answer_none()
    watchers = out.ask("PyList_Size", out.known["watchers"], result="i64")
    with out.when(out.test("ne", watchers, 0)):
        out.answer_none()
    with out.loop(0, count) as n:
        array = out.ask("PyList_GetItem", given, n)
        with out.unless(out.call(fits, array, out.pointer(kinds, n))):
            out.answer_none()
        out.store(array, out.at("ptr", inputs, n))
    said = out.call(run, record, inputs, results)
    with out.when(out.test("eq", said, MISSED)):
        out.answer_none()
    with out.when(out.test("eq", said, RAISED)):
        out.give(NULL)
    made = out.ask("PyList_New", outputs)
    with out.loop(0, outputs) as n:
        out.ask("PyList_SetItem", made, n, out.pointer(results, n), result="i32")
    out.give(made)
    return out


def _attribute_is(out: _CallBuilder, owner: str, name: str, wanted: str) -> str:
    """Whether an attribute of an object that is known is another one."""
    found = out.ask("PyObject_GetAttr", out.known[owner], out.known[name])
    with out.when(out.test("eq", found, NULL)):
        out.ask("PyErr_Clear", result="void")
        out.give("false")
    out.ask("Py_DecRef", found, result="void")  # what it may be lives on
    return out.is_object(found, wanted)


def _is_usual_function(places: Fields) -> IRBuilder:
    """`is_usual()`: whether nobody traces, observes, casts, rewrites or asks for another way."""
    out = _CallBuilder("is_usual", (), places, "i1")
    chosen, known = out.known["settings"], out.known
    out.give_unless(out.is_object(out.field(chosen, places.kind), "settings_class"), "false")
    for place, wanted in (("compiler", "True"), ("fastcall", "True"), ("eager", "native")):
        held = out.field(chosen, known[f"{place}_place"])
        out.give_unless(out.is_object(held, wanted), "false")
    for name in ("watchers", "observers"):
        count = out.ask("PyList_Size", known[name], result="i64")
        out.give_unless(out.test("eq", count, 0), "false")
    rules = out.ask("PyList_GetItem", known["rules"], 0)
    out.give_unless(out.is_object(rules, "no_rules"), "false")
    found = out.room("ptr")
    for name in ("autocast", "only_rules"):
        out.ask("PyContextVar_Get", known[name], NULL, found, result="i32")
        value = out.load("ptr", found)
        out.ask("Py_DecRef", value, result="void")
        out.give_unless(out.is_object(value, "None"), "false")
    for name, wanted in (("keeper", "None"), ("device", "None"), ("by_reference", "False")):
        out.give_unless(_attribute_is(out, "traces", name, wanted), "false")
    stack = out.ask("PyObject_GetAttr", known["traces"], known["stack"])
    out.give_unless(out.test("ne", stack, NULL), "false")
    out.ask("Py_DecRef", stack, result="void")
    depth = out.ask("PyList_Size", stack, result="i64")
    out.give(out.test("eq", depth, 0))
    return out


def _matches_function(places: Fields, fits: IRBuilder, compare: IRBuilder) -> IRBuilder:
    """`matches(call, given, count, names, arrays)`: whether a call is the one that is known.

    The arrays of its inputs are written, and behind them whether one has a place on the tape.
    """
    parameters = ("ptr %call", "ptr %given", "i64 %count", "ptr %names", "ptr %arrays")
    out = _CallBuilder("matches", parameters, places, "i1")
    call, given, count, names, arrays = out.record(CALL, out.parameters[0]), *out.parameters[1:]
    out.give_unless(out.test("eq", call["given"], count), "false")
    is_alive = call["is_alive"]
    with out.when(out.test("ne", is_alive, NULL)):
        out.give_unless(out.test("ne", out.load("i64", is_alive), 0), "false")
    named = out.variable(0)
    with out.when(out.test("ne", names, NULL)):
        named.value = out.ask("PyTuple_Size", names, result="i64")
    out.give_unless(out.test("eq", call["named"], named.value), "false")
    elements = out.field(out.known["settings"], out.known["elements_place"])
    out.give_unless(out.test("eq", call["elements"], elements), "false")
    with out.loop(0, named.value) as n:
        name = out.ask("PyTuple_GetItem", names, n)
        out.give_unless(out.test("eq", name, out.pointer(call["names"], n)), "false")
    kinds = out.record(RUN, call["run"])["kinds"]
    tensors, has_node = out.variable(0), out.variable(0)
    with out.loop(0, out.add(count, named.value)) as n:
        item, wanted = out.pointer(given, n), out.pointer(call["arguments"], n)
        with out.choose(out.test("eq", wanted, NULL)) as (is_tensor, is_object):
            with is_tensor:
                kind = out.field(item, places.kind)
                out.give_unless(out.is_object(kind, "handle_class"), "false")
                value = out.field(item, out.known["value_place"])
                place = out.number(call["places"], tensors.value)
                out.give_unless(out.call(fits, value, out.pointer(kinds, place)), "false")
                out.store(value, out.at("ptr", arrays, place))
                tensors.value = out.add(tensors.value, 1)
                node = out.field(item, out.known["node_place"])
                has_node.value = out.select(out.is_object(node, "None"), has_node.value, 1)
                with out.when(out.test("ne", call["mode"], NULL)):
                    _give_false_unless_alone(out, item, call, given, n)
            with is_object:
                out.give_unless(out.test("eq", item, wanted), "false")
    out.store(has_node.value, out.at("i64", arrays, MOST_OPERANDS))
    with out.when(out.test("ne", is_alive, NULL)):
        out.give_unless(out.call(compare, call["words"]), "false")
        with out.loop(0, out.record(RUN, call["run"])["inputs"]) as n:
            held = out.pointer(call["held_arrays"], n)
            with out.when(out.test("ne", held, NULL)):
                out.store(held, out.at("ptr", arrays, n))
    out.give("true")
    return out


def _give_false_unless_alone(
    out: _CallBuilder, item: str, call: Record, given: str, place: str
) -> None:
    """Return where a handle has a place on the tape, a gradient, or is there once more."""
    for name in ("node", "gradient"):
        held = out.field(item, out.known[f"{name}_place"])
        out.give_unless(out.is_object(held, "None"), "false")
    for others, count in ((given, place), (call["held_handles"], call["held"])):
        with out.loop(0, count) as n:
            out.give_unless(out.test("ne", out.pointer(others, n), item), "false")


_RECALLED = ("ptr %self", "ptr %given", "i64 %count", "ptr %names")
"""What a function that takes any arguments is given: what it belongs to, the arguments, how many
have no name, and the names of the others."""


def _find_function(places: Fields, matches: IRBuilder) -> IRBuilder:
    """`find(book, given, count, names, arrays)`: the call that is known, or null."""
    out = _CallBuilder("find", (*_RECALLED, "ptr %arrays"), places, "ptr")
    place = out.variable(out.load("ptr", out.elements_address(out.parameters[0])))
    with out.repeat():
        with out.when(out.test("eq", place.value, NULL)):
            out.give(NULL)
        with out.when(out.call(matches, place.value, *out.parameters[1:])):
            out.give(place.value)
        place.value = out.record(CALL, place.value)["next"]
    return out


def _recall_function(
    places: Fields, is_usual: IRBuilder, find: IRBuilder, run: IRBuilder
) -> IRBuilder:
    """`recall(book, *args, **kwargs)`: the result of a call that is known, or None.

    To ask the interpreter may run other code, so what was found before is found once more.
    """
    out = _CallBuilder("recall", _RECALLED, places, "ptr", public=True)
    arrays, result = out.room("ptr", MOST_OPERANDS + 1), out.room("ptr")
    first = out.call(find, *out.parameters, arrays)
    with out.when(out.test("eq", first, NULL)):
        out.answer_none()
    is_final, mode = out.record(CALL, first).all("is_final", "mode")
    has_node = out.number(arrays, MOST_OPERANDS)
    is_recorded = out.combine("and", has_node, is_final)
    wanted = out.variable(mode)
    with out.when(out.test("ne", is_recorded, 0)):
        wanted.value = out.known["False"]
    with out.when(out.test("ne", wanted.value, NULL)):
        enabled = out.ask("PyObject_GetAttr", out.known["grad_mode"], out.known["enabled"])
        with out.when(out.test("eq", enabled, NULL)):
            out.give(NULL)
        out.ask("Py_DecRef", enabled, result="void")
        with out.unless(out.test("eq", enabled, wanted.value)):
            out.answer_none()
    with out.unless(out.call(is_usual)):
        out.answer_none()
    call = out.call(find, *out.parameters, arrays)
    is_same_node = out.test("eq", out.number(arrays, MOST_OPERANDS), has_node)
    with out.unless(out.combine("and", out.test("eq", call, first), is_same_node)):
        out.answer_none()
    said = out.call(run, out.record(CALL, call)["run"], arrays, result)
    with out.when(out.test("eq", said, MISSED)):
        out.answer_none()
    with out.when(out.test("eq", said, RAISED)):
        out.give(NULL)
    hits = out.at("i64", out.elements_address(out.parameters[0]), 1)
    out.store(out.add(out.load("i64", hits), 1), hits)
    _give_handle(out, out.load("ptr", result))
    return out


def _give_handle(out: _CallBuilder, value: str) -> None:
    """Return a new handle on an array."""
    handle = out.ask("PyType_GenericAlloc", out.known["handle_class"], 0)
    with out.when(out.test("eq", handle, NULL)):
        out.ask("Py_DecRef", value, result="void")
        out.give(NULL)
    out.store(value, out.at("i8", handle, out.known["value_place"]))
    none = out.known["None"]
    for name in ("node", "gradient", "origin"):
        out.ask("Py_IncRef", none, result="void")
        out.store(none, out.at("i8", handle, out.known[f"{name}_place"]))
    out.give(handle)


def module_source(places: Fields) -> str:
    """The text of the module, for arrays whose fields are at these places."""
    set_up = IRBuilder("set_up", ("ptr %table",), public=True)
    set_up.copy("@known", set_up.parameters[0], 8 * len(KNOWN.names))
    fits, new_results = _fits_function(places), _new_results_function(places)
    run, is_usual = _run_function(places, new_results), _is_usual_function(places)
    compare = compare_function(KNOWN)
    matches = _matches_function(places, fits, compare)
    find = _find_function(places, matches)
    return module_text(
        f"@known = internal global {KNOWN.text} zeroinitializer", set_up, fits, new_results, run,
        is_usual, compare, matches, find, _run_arrays_function(places, fits, run),
        _recall_function(places, is_usual, find, run),
    )  # fmt: skip
