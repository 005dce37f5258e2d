"""Eager work on large tensors: where a function runs as one compiled unit, and where by reference.

This is the whole policy. A function marked as a `unit` (an activation, a normalisation, attention,
a loss), and every primitive that is applied by itself, runs compiled when it is called eagerly, on
arrays of the host, of which one is large: a primitive's has `settings.eager_elements` elements or
many times that, a unit's an eighth of it. Everything else is computed by reference: small tensors,
calls inside of a trace, under an observer such as `debug.nans`, and arguments that no key can be
made of. So which way a call goes depends on its arguments and the settings alone, never on time or
on what is in a cache. Joins, whose bits are the same either way, are the one exception: see
`REPEATED`.

The compiler fills `COMPILE`; without it all work is done by reference.

>>> import weft as wf
>>> x = wf.ones((256, 256))
>>> with wf.settings.changed(eager="reference"):
...     expected = wf.gelu(x)
>>> bool((abs(wf.gelu(x) - expected) < 1e-6).all())
True
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar, overload

from weft.core.arrays import CONCRETE, HostArray, can_compute_on
from weft.core.devices import CPU
from weft.core.errors import WeftError
from weft.core.settings import settings
from weft.core.wrong_calls import RECALLS, Recall
from weft.ir.autocast import AUTOCAST
from weft.ir.call_keys import DEEPEST, SIMPLE, plain_key, static_key
from weft.ir.constants import beside_operands
from weft.ir.dispatch import OBSERVERS, bind
from weft.ir.kinds import Contraction, Cumulative, Random, Reduction, Sort, Window
from weft.ir.number_arrays import number_reader
from weft.ir.primitive import PRIMITIVES
from weft.ir.tensor import Tensor, grad_mode, traces

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Run = Callable[[Sequence[Tensor]], Any]
Orders = dict[int, tuple[int, ...]]
"""The order in which the axes of tensors lie in memory, by the place of the tensor."""
Compile = Callable[
    [Callable[..., Any], tuple[Any, ...], dict[str, Any], Sequence[str], Orders], Run | None
]
COMPILE: list[Compile] = []
"""Makes what runs a call of a function, given its tensors; None where it cannot be compiled."""
JIT: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = []
"""Compiles a function with the state that it writes; filled where `COMPILE` is."""
BOOKS: list[Callable[[], Any]] = []
"""Makes what native code knows the calls of a function by, or None; filled where `COMPILE` is."""
COPY: list[Callable[[Any], Any]] = []
"""Copies an array whose axes lie in memory in another order; None where NumPy is to do it."""
FORMS = 1024
"""How many calls of one function are known by their key before all are forgotten."""
SETTINGS = 32
"""With how many settings a function is compiled for the same types; one that is called with ever
new ones goes on by reference."""

COMPOSED = 8
"""Units run compiled from this part of `eager_elements` on. They are several primitives, each of
which costs by reference about as much as the call of a program does. What is smaller still, most
of what people try by hand, compiles nothing."""

WORTHWHILE: dict[type, int] = {
    Contraction: 16, Cumulative: 16, Random: 4, Reduction: 8, Sort: 16, Window: 4,
}  # fmt: skip
"""The kinds of primitives that run compiled by themselves, beside element-wise ones, and from how
many times `eager_elements` on. Others move elements, which NumPy does by views or as quickly, or
are opaque."""
CHEAP, DIFFERENTIATED = 256, 16
"""The same for element-wise ones: sums and products, which NumPy does as quickly on one core, so
that they are compiled where threads divide them, and functions whose derivative is more than one
operation."""

REPEATED = {"concatenate": 64}
"""Primitives of which calls run compiled that are made again and again, from how many times
`eager_elements` on: NumPy joins row by row. They move elements, so that their bits are the same
either way; and a join that grows with every call is not compiled for each of its sizes."""

DRAWN = 1 << 20
"""Random words from which they are drawn by compiled code: fewer are there before it is."""
COPIED = 64
"""The same for copies of arrays whose axes lie in memory in another order."""


@overload
def unit(f: Callable[Parameters, Result]) -> Callable[Parameters, Result]: ...
@overload
def unit(
    *, weights: Sequence[str] = (), numbers: Sequence[str] = ()
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]: ...


def unit(f: Any = None, *, weights: Sequence[str] = (), numbers: Sequence[str] = ()) -> Any:
    """Mark a function of tensors and settings as one unit of eager work.

    weights: the arguments that are parts of a model. Programs are compiled for their sizes, of
    which there are few; sizes of other arguments become symbols when they are seen to change.
    numbers: the arguments that are Python floats and only computed with, beside tensors of one
    dtype. A program reads them, so that there is one for all values: the function is given tensors.
    """
    if f is None:
        return lambda function: _unit(function, weights, numbers)
    return _unit(f, weights, numbers)


def _unit(
    f: Callable[..., Any], weights: Sequence[str], numbers: Sequence[str] = ()
) -> Callable[..., Any]:
    native = NativeCalls()
    forms, plain = Forms(f, weights, COMPOSED, native), beside_operands(f)
    read_numbers = number_reader(f, numbers, forms.is_large) if numbers else None

    def recall(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if traces.stack or OBSERVERS or AUTOCAST.get() is not None:
            return None
        if read_numbers is not None:
            args, kwargs = read_numbers(args, kwargs)
        known = forms.find_known(args, kwargs)
        if known is None:
            return None
        run, handles = known
        try:
            return run(handles)
        except (WeftError, Declined):
            return None

    @wraps(f)
    def function(*args: Any, **kwargs: Any) -> Any:
        if native.recall is not None:
            result = native.recall(*args, **kwargs)
            if result is not None:
                return result
        if traces.stack or OBSERVERS:
            return plain(*args, **kwargs)
        given = args, kwargs
        if read_numbers is not None and AUTOCAST.get() is None:
            given = read_numbers(args, kwargs)
        run, handles = forms.find(*given)
        if run is None:
            return plain(*args, **kwargs)
        try:
            return run(handles)
        except (WeftError, Declined):  # an index out of range, say: the reference names the line
            return plain(*args, **kwargs)

    RECALLS[function] = Recall(recall, native)
    function.weights = weights  # type: ignore[attr-defined]
    return function


def unit_like(other: Callable[..., Any], f: Callable[..., Any]) -> Callable[..., Any]:
    """A function as a unit of the same weights as another one; as it is where that is no unit."""
    return _unit(f, other.weights) if hasattr(other, "weights") else f


def view_unit(f: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """Mark a function that gives views of a tensor: only the way back from them is one unit."""
    forms = Forms(f)

    @wraps(f)
    def function(*args: Any, **kwargs: Any) -> list[Tensor]:
        first = args[0] if args else None
        if type(first) is not Tensor or first._node is None or not grad_mode.enabled:
            return f(*args, **kwargs)
        if traces.stack or traces.keeper is not None or OBSERVERS:
            return f(*args, **kwargs)
        run, handles = forms.find(args, kwargs)
        if run is None or not hasattr(run, "attach"):
            return f(*args, **kwargs)
        grad_mode.enabled = False
        try:
            results = f(*args, **kwargs)
        finally:
            grad_mode.enabled = True
        return results if run.attach(handles, results) else f(*args, **kwargs)

    return function


def is_large_for_units(elements: float) -> bool:
    """Whether a tensor of so many elements lets a unit run compiled."""
    return elements * COMPOSED >= settings.eager_elements


def update_unit(f: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that writes to the tensors of its arguments, such as an optimiser's update.

    It runs as one compiled unit whatever the sizes; who calls it asks whether that is worth it.
    """
    compiled: list[Callable[..., Any]] = []

    @wraps(f)
    def function(*args: Any) -> Any:
        if traces.stack or traces.keeper is not None or OBSERVERS or not is_native():
            return f(*args)
        if not compiled:
            compiled.append(JIT[0](f))
        try:
            return compiled[0](*args)
        except WeftError:  # in tracing, before anything is written: the reference names the line
            return f(*args)

    return function


def is_native() -> bool:
    """Whether large tensors are worked on by compiled code."""
    return (
        settings.eager == "native"
        and settings.compiler
        and not traces.by_reference
        and bool(COMPILE)
    )


def by_reference(f: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Mark a function whose results must have the same bits for any size.

    So samples are: those of a smaller shape are the first ones of a larger one.
    """

    @wraps(f)
    def function(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        before, traces.by_reference = traces.by_reference, True
        try:
            return f(*args, **kwargs)
        finally:
            traces.by_reference = before

    return function


class Forms:
    """The compiled forms of one function, by all that they depend on."""

    __slots__ = ("_by_key", "_compiled", "_function", "_known", "_native", "_share", "_weights")

    def __init__(
        self,
        function: Callable[..., Any],
        weights: Sequence[str] = (),
        share: float = 1,
        native: NativeCalls | None = None,
    ) -> None:
        self._function, self._weights = function, weights
        self._native = native
        """What is told of each call that is made again."""
        self._share = share
        """Arrays are large that have this part of `eager_elements`."""
        self._by_key: dict[Hashable, Run | None] = {}
        self._known: dict[Hashable, tuple[Run | None, float, bool]] = {}
        """By plain keys: what runs a call, how many elements count for `eager_elements`, and
        whether native code is to be told of it.

        None for what ran by reference, as it does while there are too few of them.
        """
        self._compiled: Counter[Hashable] = Counter()
        """With how many settings it was compiled, by the types of its tensors."""

    def find(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Run | None, Sequence[Tensor]]:
        """What runs a call, and its tensors; None where it is to run by reference."""
        key, given = plain_key(args, kwargs) if AUTOCAST.get() is None else (None, [])
        known = None if key is None else self._known.get(key)
        if known is not None:
            run, elements, is_new = known
            if run is None and not self.is_large(elements):
                return None, ()
            if self._is_used(run, elements):
                if is_new:
                    self._tell_native(key, args, kwargs, given)
                return run, given
        run, handles = self._find_first(args, kwargs)
        is_kept = key is not None and (run is not None or traces.device is None)
        if is_kept and all(map(_is_contiguous, given)):
            if len(self._known) >= FORMS:
                self._known = {}
            self._known[key] = run, _elements_counted(given), self._native is not None
        return run, handles

    def find_known(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Run, Sequence[Tensor]] | None:
        """What `find` gives if such a call was made before; for calls without `autocast`.

        Where the first argument is small or has gaps, as of most calls that run otherwise, nothing
        is looked for.
        """
        first = args[0]._value if args and type(args[0]) is Tensor else None
        if type(first) is HostArray and (
            not self.is_large(first.size) or not first.flags.c_contiguous
        ):
            return None
        key, given = plain_key(args, kwargs)
        unknown = None, 0, False
        run, elements, is_new = unknown if key is None else self._known.get(key, unknown)
        if run is None or not self._is_used(run, elements):
            return None
        if is_new:
            self._tell_native(key, args, kwargs, given)
        return run, given

    def _tell_native(
        self,
        key: Hashable,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: Sequence[Tensor],
    ) -> None:
        """Let native code find a call that is made again, where it can."""
        run, elements, _ = self._known[key]
        self._known[key] = run, elements, False
        if self._native is not None and run is not None:
            self._native.add(args, kwargs, run, given)

    def _is_used(self, run: Run | None, elements: float) -> bool:
        return run is not None and self.is_large(elements) and is_native()

    def is_large(self, elements: float) -> bool:
        """Whether an array of so many elements lets a call run compiled."""
        return elements * self._share >= settings.eager_elements

    def _find_first(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Run | None, Sequence[Tensor]]:
        """The same for a call that is not known by its plain key."""
        call = Arguments(self._share)
        if traces.device is not None and traces.device is not CPU:
            call.parts.append(traces.device)
            call.is_large = True
        try:
            call.parts.extend(kwargs)
            call.read(args)
            call.read(kwargs.values())
        except Declined:
            return None, ()
        if not call.is_large or not is_native():
            return None, ()
        autocast = AUTOCAST.get()
        if autocast is not None:
            call.parts.append(autocast)
        key = tuple(call.parts)
        try:
            run = self._by_key[key]
        except KeyError:
            run = self._compile(key, args, kwargs, call)
        except TypeError:  # an argument that cannot be hashed
            return None, ()
        return run, call.handles if not call.orders or run is None else call.as_stored()

    def _compile(
        self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any], call: Arguments
    ) -> Run | None:
        types = tuple([(each._value.dtype, each._value.shape) for each in call.handles])
        run = None
        if self._compiled[types] < SETTINGS:
            self._compiled[types] += 1
            run = COMPILE[0](self._function, args, kwargs, self._weights, call.orders)
        if len(self._by_key) >= FORMS:
            self._by_key = {}  # at once, as other threads look into it; programs are kept elsewhere
            self._known = {}
            self._compiled = Counter()
        self._by_key[key] = run
        return run


def _is_contiguous(tensor: Tensor) -> bool:
    contiguous: bool = tensor._value.flags.c_contiguous
    return contiguous


def _elements_counted(handles: Sequence[Tensor]) -> float:
    """The elements of the largest tensor; no end of them where one is on another device."""
    if any(type(handle._value) is not HostArray for handle in handles):
        return math.inf
    return max([handle._value.size for handle in handles], default=0)


class NativeCalls:
    """The calls of one function that native code finds and runs, with little work for each.

    It does so where nothing is traced, observed or cast, for arrays of the host without gaps, of
    the dtypes and shapes that were given before, with the same bits. All else it leaves to Python.
    """

    __slots__ = ("_book", "_is_final", "_is_strict", "recall")

    def __init__(self, *, is_final: bool = True, is_strict: bool = False) -> None:
        self._book: Any = None
        self._is_final, self._is_strict = is_final, is_strict
        """Whether it leaves calls with a place on the tape alone, else the caller sees to that; and
        also those with gradients, the same tensor twice, or gradients recorded where they were not.
        """
        self.recall: Callable[..., Any] | None = None
        """The result of a call, or None for one that is to be made otherwise."""

    @property
    def hits(self) -> int:
        """How many calls native code has found."""
        return 0 if self._book is None else int(self._book.hits)

    def add(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        run: Any,
        inputs: Sequence[Tensor],
        places: Sequence[int] | None = None,
        state: Any = None,
    ) -> None:
        """Know a call from now on, that was run before for tensors of the same kinds.

        places: which inputs the tensors among the arguments are, if not those in order.
        state: what tells that modules among them are as they were.
        """
        if AUTOCAST.get() is not None or traces.stack or traces.device is not None:
            return  # what it ran is not what calls that are made as usual run
        native = getattr(run, "native_run", None)
        arguments = *args, *kwargs.values()
        are_fixed = state is not None or all(map(_is_fixed, arguments))
        if native is None or not BOOKS or not are_fixed:
            return
        found = native([each._value for each in inputs])
        if found is None:
            return
        if self._book is None:
            self._book = BOOKS[0]()
        if self._book is not None:
            mode = grad_mode.enabled if self._is_strict else None
            self._book.add(
                arguments, [*kwargs], found, run, is_final=self._is_final, mode=mode,
                places=places, state=state,
            )  # fmt: skip
            self.recall = self._book.recall


_FIXED = SIMPLE | {float}


def _is_fixed(argument: Any) -> bool:
    """Whether an argument is a tensor, or an object that says the same for ever."""
    kind = type(argument)
    if kind is tuple:
        return all(type(each) in _FIXED for each in argument)
    return kind is Tensor or kind in _FIXED


class Declined(Exception):
    """A call must run by reference: a tensor is traced, elsewhere, or a part that it writes to."""


class Arguments:
    """The arguments of a call, taken apart: its tensors, and what its program depends on."""

    __slots__ = ("handles", "is_large", "orders", "parts", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        self.handles: list[Tensor] = []
        self.parts: list[Any] = []
        self.orders: Orders = {}
        """Of tensors whose axes lie in memory in another order, that order."""
        self.is_large = False

    def read(self, values: Any, depth: int = 0) -> None:
        """Take values apart; containers in containers up to a depth."""
        if depth > DEEPEST:
            raise Declined
        least, parts = settings.eager_elements / self.share, self.parts
        for value in values:
            kind = type(value)
            if kind is Tensor or isinstance(value, Tensor):  # it may be lifted, by a checkpoint
                array = value._value
                if type(array) is not HostArray:
                    if type(array) not in CONCRETE or not can_compute_on(array.device):
                        raise Declined
                    self.is_large = True
                    if array.kind is not None:  # without gaps, as all such arrays are
                        parts.append(array.kind)
                        self.handles.append(value)
                        continue
                    parts.append(array.device)
                parts.append(array.dtype)
                parts.append(array.shape)
                if array.size >= least:
                    self.is_large = True
                if not array.flags.c_contiguous:
                    order = memory_order(array)
                    parts.append(order)
                    if order is not None:
                        self.orders[len(self.handles)] = order
                self.handles.append(value)
            elif kind in SIMPLE:
                parts.append(kind)
                parts.append(value)
            elif kind is tuple or kind is list:
                parts.append(kind)
                parts.append(len(value))
                self.read(value, depth + 1)
            else:
                parts.append(static_key(value))

    def as_stored(self) -> list[Tensor]:
        """The tensors, each with its axes in the order of memory."""
        transpose = PRIMITIVES["transpose"]
        return [
            bind(transpose, handle, order=self.orders[place]) if place in self.orders else handle
            for place, handle in enumerate(self.handles)
        ]


def memory_order(array: Any) -> tuple[int, ...] | None:
    """The order in which the axes of an array lie in memory; None for their own, or no one order.

    >>> import numpy as np
    >>> memory_order(np.zeros((2, 3, 4)).transpose(2, 0, 1)), memory_order(np.zeros((4, 6))[:, :3])
    ((1, 2, 0), None)
    """
    strides = array.strides
    if min(strides, default=1) <= 0:
        return None
    order = tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))
    return None if order == tuple(range(len(strides))) else order
