"""What rewritten functions call: Python's control flow, or the graph's where a tensor is traced.

Each method looks at the value it was given. A tensor under `jit`, `vmap` or in a `Graph` has no
value yet, so a branch or loop on it becomes a node; everything else is done as Python does it.

>>> import weft as wf
>>> from weft.script.operators import is_traced
>>> is_traced(wf.tensor(1.0)), wf.jit(lambda x: is_traced(x))(wf.tensor(1.0))
(False, True)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.core.dtypes import bool_
from weft.core.errors import TraceError, WeftError
from weft.core.locations import user_location
from weft.core.records import frozen
from weft.ir.dispatch import apply
from weft.ir.tensor import Tensor, host_array, traces
from weft.ops.comparison import less, not_equal
from weft.ops.composed.creation import arange
from weft.ops.composed.manipulation import reshape
from weft.ops.debugging import check_place, debug_check, debug_print
from weft.ops.logic import logical_and, logical_not, logical_or
from weft.ops.operands import as_tensor, convert_to
from weft.ops.selection import where
from weft.script import mistakes, notes
from weft.script.branches import choose, staged_branch
from weft.script.loops import staged_scan, staged_while
from weft.script.regions import RECORDING
from weft.script.state import State, undefined

__all__: list[str] = []

Body = Callable[..., Any]
MUTATING = frozenset({
    "append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update",
    "setdefault", "popitem", "add", "discard",
})  # fmt: skip
"""Methods of Python's containers that change them."""
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge,
    "Eq": operator.eq, "NotEq": operator.ne, "Is": operator.is_, "IsNot": operator.is_not,
    "In": lambda a, b: a in b, "NotIn": lambda a, b: a not in b,
}  # fmt: skip
UPDATES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "Add": (operator.iadd, operator.add), "Sub": (operator.isub, operator.sub),
    "Mult": (operator.imul, operator.mul), "Div": (operator.itruediv, operator.truediv),
    "FloorDiv": (operator.ifloordiv, operator.floordiv), "Mod": (operator.imod, operator.mod),
    "Pow": (operator.ipow, operator.pow), "MatMult": (operator.imatmul, operator.matmul),
    "BitAnd": (operator.iand, operator.and_), "BitOr": (operator.ior, operator.or_),
    "BitXor": (operator.ixor, operator.xor), "LShift": (operator.ilshift, operator.lshift),
    "RShift": (operator.irshift, operator.rshift),
}  # fmt: skip
"""What `x op= y` does, and what it does where x stands for a Python number."""

ENDLESS = 10_000
"""How many steps of a loop that a traced tensor may end are recorded one by one."""


def is_traced(value: Any) -> bool:
    """Whether a value is a tensor that has no value yet."""
    if not isinstance(value, Tensor):
        return False
    try:
        host_array(value, "bool()")
    except TraceError:
        return True
    return False


def truth(test: Tensor) -> Tensor:
    """The truth of a tensor with one element, as a tensor without axes."""
    if test.size != 1:
        raise mistakes.ambiguous_test(test)
    flat = test if test.ndim == 0 else reshape(test, ())
    return flat if flat.dtype is bool_ else not_equal(flat, 0)


class Range:
    """`range(…)` with a traced tensor among its bounds."""

    def __init__(self, *bounds: Any) -> None:
        start, stop, step = {1: (0, *bounds, 1), 2: (*bounds, 1)}.get(len(bounds), bounds)
        self.start, self.stop, self.step = start, stop, step

    def is_inside(self, index: Tensor) -> Tensor:
        """Whether an index is still inside."""
        if isinstance(self.step, int):
            return less(index, self.stop) if self.step > 0 else less(self.stop, index)
        return where(less(0, self.step), less(index, self.stop), less(self.stop, index))

    def first_index(self) -> Tensor:
        """The first index, as a tensor of its own."""
        bounds = [as_tensor("range", each) for each in (self.start, self.stop, self.step)]
        traced = next(each for each in bounds if is_traced(each))
        return convert_to(bounds[0], traced.dtype).clone()


@frozen(slots=False)
class Operators:
    """The runtime of a rewritten function, with the options it was scripted with."""

    converted: Callable[[Any, Operators], Any]
    """The rewritten form of a function that is called, where it has one."""
    max_steps: int | None = None
    unroll: int = 8
    state = State
    undefined = undefined

    # --- branches ------------------------------------------------------------------------------

    def branch(self, test: Any, true: Body, false: Body, state: State) -> None:
        """`if test: … else: …`."""
        if not is_traced(test):
            (true if test else false)()
            return
        stopped = staged_branch(truth(test), true, false, state)
        if stopped is not None:  # one body only raises, so the program goes on with the other
            words = f"{type(stopped.error).__name__}: {stopped.error}"
            require(logical_not(stopped.test), words, "keep the inputs from leading here")
            stopped.other()

    def choice(self, test: Any, true: Body, false: Body) -> Any:
        """`a if test else b`."""
        if is_traced(test):
            return choose(truth(test), true, false)
        return true() if test else false()

    def and_(self, first: Any, rest: Body) -> Any:
        """`a and b`."""
        if not is_traced(first):
            return rest() if first else first
        holds, second = truth(first), rest()
        if _is_truth(first) and _is_truth(second):
            return logical_and(holds, second)
        return choose(holds, lambda: second, lambda: first)

    def or_(self, first: Any, rest: Body) -> Any:
        """`a or b`."""
        if not is_traced(first):
            return first or rest()
        holds, second = truth(first), rest()
        if _is_truth(first) and _is_truth(second):
            return logical_or(holds, second)
        return choose(holds, lambda: first, lambda: second)

    def negation(self, value: Any) -> Any:
        """`not a`."""
        return logical_not(truth(value)) if is_traced(value) else not value

    def chain(self, left: Any, signs: Sequence[str], *rest: Body) -> Any:
        """`a < b < c`, with each operand evaluated once, and only if it is looked at."""
        right = rest[0]()
        first = COMPARISONS[signs[0]](left, right)
        if len(rest) == 1:
            return first
        return self.and_(first, lambda: self.chain(right, signs[1:], *rest[1:]))

    # --- loops ---------------------------------------------------------------------------------

    def repeat(self, test: Body, flags: Body, body: Body, state: State) -> None:
        """`while test: …`, which ends when a flag is set."""
        steps = 0
        while True:
            going = self._goes_on(flags, test)
            if is_traced(going):
                self._stage_while(truth(going), test, flags, body, state)
                return
            if not going:
                return
            if steps == self.max_steps:
                raise mistakes.too_many_steps(steps)
            body()
            steps += 1

    def _goes_on(self, flags: Body, test: Body) -> Any:
        """Whether a loop takes another step: no flag is set, and the test holds."""
        return self.and_(self.no_flag_is_set(*flags()), test)

    def _stage_while(
        self,
        first: Tensor,
        test: Body,
        flags: Body,
        body: Body,
        state: State,
        index: Sequence[Tensor] = (),
    ) -> None:
        def step() -> Any:
            body()
            going = self._goes_on(flags, test)
            return truth(going) if isinstance(going, Tensor) else bool(going)

        still = staged_while(first, step, state, self.max_steps, index)
        if self.max_steps is not None:
            text = f"a while loop is not done after max_steps={self.max_steps}"
            require(logical_not(still), text, "@wf.script(max_steps=…) with a larger number")

    def for_each(self, source: Any, flags: Body, body: Body, state: State) -> None:
        """`for target in source: …`, which ends when a flag is set."""
        if isinstance(source, Range):
            self._stage_counted_loop(source, flags, body, state)
            return
        rows = self._rows(source)
        if rows is None:
            self._in_turn(source, flags, body, state)
            return
        before = state.get()
        try:
            staged_scan(rows, lambda row: self._step_unless_stopped(flags, row, body, state), state)
        except WeftError:
            # Shapes or Python values that change from step to step: one step after the other.
            if not isinstance(rows.shape[0], int):
                raise
            state.put(before)
            self._in_turn(source, flags, body, state)

    def _step_unless_stopped(self, flags: Body, item: Any, body: Body, state: State) -> None:
        """One step of a loop whose number of steps is known, unless a flag is set."""
        going = self.no_flag_is_set(*flags())
        if not is_traced(going):
            body(item)
        elif stopped := staged_branch(going, lambda: body(item), _do_nothing, state, fill=True):
            raise mistakes.raises_in_loop(stopped.error)

    def _rows(self, source: Any) -> Tensor | None:
        """What to scan over, where a loop over it should be one node of the graph."""
        if isinstance(source, Tensor) and source.ndim:
            return source if is_traced(source) or traces.recording else None
        if isinstance(source, range) and traces.recording and len(source) > self.unroll:
            return arange(source.start, source.stop, source.step)
        return None

    def _in_turn(self, source: Iterable[Any], flags: Body, body: Body, state: State) -> None:
        for count, item in enumerate(source):
            self._step_unless_stopped(flags, item, body, state)
            flag_values = flags()
            if any(not is_traced(flag) and flag for flag in flag_values):
                return
            if count >= ENDLESS and any(map(is_traced, flag_values)):
                raise mistakes.endless_loop_error(count)

    def _stage_counted_loop(self, source: Range, flags: Body, body: Body, state: State) -> None:
        index = source.first_index()

        def step() -> None:
            here = index.clone()
            index.set_(index + source.step)
            body(here)

        def test() -> Tensor:
            return source.is_inside(index)

        self._stage_while(truth(test()), test, flags, step, state, [index])

    def no_flag_is_set(self, *flags: Any) -> Any:
        """Whether no flag is set."""
        none_set: Any = True
        for flag in flags:
            none_set = self.and_(none_set, lambda flag=flag: self.negation(flag))
        return none_set

    def return_value(self, flag: Any, result: Body) -> Any:
        """The returned value of a function that may also reach its end without returning."""
        if not is_traced(flag):
            return result() if flag else None
        if result() is not None:
            raise mistakes.falls_off()
        return None

    # --- statements ----------------------------------------------------------------------------

    def check(self, test: Any, message: Body, words: str) -> None:
        """`assert test, message`."""
        if not __debug__:
            return
        if is_traced(test):
            given = message()
            require(truth(test), words if given is None else str(given), f"make {words} hold")
        elif not test:
            given = message()
            raise AssertionError(*([] if given is None else [given]))

    def marked_error(self, error: Any) -> Any:
        """What `raise` raises, marked where it may depend on a traced tensor."""
        exception = error() if isinstance(error, type) else error
        if RECORDING.journals:
            notes.mark_raised(exception)
        return exception

    def touch(self, owner: Any) -> None:
        """Contents or attributes of something are about to be stored to."""
        notes.touch(owner)

    def update(self, sign: str, value: Any, other: Any) -> Any:
        """`value op= other`."""
        in_place, anew = UPDATES[sign]
        if value in notes.numbers:
            return anew(value, other)
        if isinstance(value, (list, dict, set)):
            notes.touch(value)
        return in_place(value, other)

    def python_test(self, test: Any, around: str, construct: str) -> Any:
        """A test that only Python can decide."""
        if is_traced(test):
            raise mistakes.refused_construct(construct, around, test)
        return test

    def plain_items(self, source: Any, around: str) -> Any:
        """The items of a loop that only Python can run."""
        if isinstance(source, Range):
            raise mistakes.refused_construct("for", around, source.first_index())
        return source

    # --- calls ---------------------------------------------------------------------------------

    def callee(self, function: Any) -> Any:
        """The function to call in place of a user's function: its scripted form."""
        try:
            special = SPECIAL.get(function)
        except TypeError:  # what cannot be hashed
            special = None
        if special is not None:
            return special
        owner = getattr(function, "__self__", None)
        if isinstance(owner, (list, dict, set)) and function.__name__ in MUTATING:
            notes.touch(owner)
            return function
        return self.converted(function, self)


def _do_nothing() -> None:
    """The body of a branch that is left out."""


def _is_truth(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dtype is bool_ and value.ndim == 0
    return isinstance(value, bool)


def require(holds: Tensor, text: str, fix: str) -> None:
    """Raise when the program runs and a test does not hold, on the way that leads here."""
    for path in RECORDING.paths:
        holds = logical_or(logical_not(path), holds)
    apply(debug_check, holds, text=text, fix=fix, rows=0, **check_place(user_location()))


# --- functions of Python that tensors take part in ---------------------------------------------


def _range(*bounds: Any) -> Any:
    return Range(*bounds) if any(map(is_traced, bounds)) else range(*bounds)


def _print(*values: Any, sep: str | None = None, **options: Any) -> None:
    staged = RECORDING.journals or any(map(is_traced, values))
    if not staged or options:
        print(*values, sep=sep, **options)  # noqa: T201  the user's
        return
    tensors = [value for value in values if isinstance(value, Tensor)]
    count = iter(range(len(tensors)))
    parts = [
        f"{{{next(count)}}}" if isinstance(v, Tensor) else _escape_braces(str(v)) for v in values
    ]
    text = _escape_braces(" " if sep is None else sep).join(parts)
    apply(debug_print, *tensors, text=text, rows=0)


def _escape_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _minimum(*values: Any, **options: Any) -> Any:
    return _extreme(min, lambda new, old: new < old, values, options)


def _maximum(*values: Any, **options: Any) -> Any:
    return _extreme(max, lambda new, old: new > old, values, options)


def _extreme(
    plain: Callable[..., Any],
    better: Callable[[Any, Any], Any],
    values: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    if options or len(values) < 2 or not any(map(is_traced, values)):
        return plain(*values, **options)
    extreme = values[0]
    for value in values[1:]:
        extreme = where(better(value, extreme), value, extreme)
    return extreme


SPECIAL: dict[Any, Any] = {print: _print, range: _range, min: _minimum, max: _maximum}
