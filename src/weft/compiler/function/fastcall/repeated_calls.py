"""Which call of a function was made before: the one question that the fast path answers.

>>> import weft as wf
>>> f, x = wf.jit(lambda x, n: x * n), wf.ones(3)
>>> first = f(x, 2)
>>> run, handles = f._repeated.recognise((x, 2), {}, ())
>>> run(handles).tolist(), f._repeated.recognise((x, 3), {}, ())
([2.0, 2.0, 2.0], None)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from weft.compiler.function.arguments import PROGRAMS
from weft.compiler.function.compiled_function import Compiled
from weft.compiler.function.fastcall.held_state import HeldStep, held_step
from weft.compiler.function.fastcall.last_call import KnownCall, known_call
from weft.compiler.function.fastcall.native_state import ModuleState, module_state
from weft.compiler.function.fastcall.quick_key import ATOMS, quick_key
from weft.core.settings import settings
from weft.ir.eager import NativeCalls
from weft.ir.tensor import Tensor

PATIENCE = 16
"""How much is spent on remembering calls before one is made again; counted in calls, and no
machine's."""
RENEWAL = 4
"""How many calls that are known pay for one that is remembered in the last one's place."""
Run = Callable[[list[Any]], Any]


class RepeatedCalls:
    """What is remembered of the calls of one function."""

    __slots__ = ("_by_key", "_hits", "_native", "_patience", "_told", "last", "step")

    def __init__(self) -> None:
        self._native = NativeCalls(is_strict=True)
        self._told: dict[Hashable, ModuleState | None] = {}
        """By their keys and modules: the calls that native code was told of."""
        self.last: KnownCall | None = None
        self.step: HeldStep | None = None
        self._by_key: OrderedDict[Hashable, Compiled] = OrderedDict()
        self._patience = PATIENCE
        self._hits = 0
        """How many calls native code had found when that was last looked at."""

    def recognise(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outside: Sequence[Any],
        is_closed: Callable[[], bool] = lambda: False,
    ) -> tuple[Run, list[Any]] | None:
        """What runs this call, and what it is given, if one just like it was made before.

        is_closed: whether it reads nothing but its arguments, so that native code may know it.
        """
        if not settings.fastcall:
            return None
        step = self.step
        if step is not None and not kwargs:
            arrays = step.arrays(args, outside)
            if arrays is not None:
                self._patience = min(PATIENCE, self._patience + 1)
                return step.run, arrays
            self.step = None
        last = self.last
        if last is not None and not kwargs:
            handles = last.handles(args, outside)
            if handles is not None and last.found.fits():
                if self._patience < PATIENCE:
                    self._patience += 1
                return last.run, handles
        known = quick_key(args, kwargs, outside)
        if known is None:
            return None
        key, handles = known
        found = self._find(key)
        if found is None or not found.fits():
            return None
        hits = self._native.hits
        self._patience = min(PATIENCE, self._patience + hits - self._hits)
        self._hits = hits
        if self._patience >= RENEWAL and not kwargs:
            self._patience -= RENEWAL
            if found.recording.writes and not found.spans_devices:
                return partial(self._run_step, key, args, outside, found), handles
            self.last = known_call(args, outside, handles, found)
            if self.last is not None and not outside and is_closed():
                self._tell_native(key, args, handles, found)
        return found, handles

    @property
    def native(self) -> Callable[..., Any] | None:
        """What gives the result of a call that native code knows, or None; where it knows any."""
        return self._native.recall

    def forget_native(self) -> None:
        """Let native code know no call any more."""
        if self._told:
            self._native, self._told, self._hits = NativeCalls(is_strict=True), {}, 0

    def _tell_native(
        self, key: Hashable, args: tuple[Any, ...], handles: Sequence[Tensor], found: Compiled
    ) -> None:
        """Let native code find a call of tensors and modules that gives one value, where it can."""
        given = [x for x in args if type(x) is Tensor]
        modules = [x for x in args if type(x) is not Tensor and type(x) not in ATOMS]
        call = key, *map(id, modules)
        before = self._told.get(call)
        if call in self._told and before is None:
            return
        if len(self._told) >= PROGRAMS:
            self._told.clear()
        self._told[call] = None
        is_one_value = found.result == 0 and len(found.output_types) == 1
        are_plain = all(x._node is None and x._grad is None for x in given)
        if not is_one_value or not are_plain or not found.is_pure(handles):
            return
        inputs = [handles[place] for place in found.places or ()]
        state = module_state(modules, inputs)
        numbers = {id(x): place for place, x in enumerate(inputs)}
        order = [numbers[id(x)] for x in given if id(x) in numbers]
        if before is not None:
            before.is_alive[0] = 0  # a module holds something else now
        if state is not None and len(order) == len(given):
            self._told[call] = state if modules else None
            self._native.add(args, {}, found, inputs, order, state)

    def _run_step(
        self,
        key: Hashable,
        args: tuple[Any, ...],
        outside: Sequence[Any],
        found: Compiled,
        handles: Sequence[Tensor],
    ) -> Any:
        """Run a call that writes state, and remember it: best as one whose state stays.

        What is remembered is the state that it leaves. Where that is of another kind than what it
        was given, such as a longer cache or a gradient where there was none, the next call has a
        program of its own.
        """
        result = found(handles)
        left = quick_key(args, {}, outside)
        if left is None or left[0] != key or not found.fits():
            return result
        self.step = held_step(args, outside, handles, found)
        if self.step is None:
            self.last = known_call(args, outside, handles, found)
        return result

    def _find(self, key: Hashable) -> Compiled | None:
        try:
            return self._by_key.get(key)
        except TypeError:  # it cannot be hashed: an error that the other way explains
            return None

    def key(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], outside: Sequence[Any]
    ) -> tuple[Hashable, list[Tensor]] | None:
        """What a call can be remembered by, which must be asked before the function is traced."""
        return quick_key(args, kwargs, outside) if settings.fastcall else None

    def remember(
        self,
        key: tuple[Hashable, list[Tensor]] | None,
        handles: Sequence[Tensor],
        found: Compiled,
    ) -> None:
        """Remember the program of a call, if its key names all tensors that the program takes."""
        if key is None or [*map(id, key[1])] != [*map(id, handles)]:
            return
        self._by_key[key[0]] = found
        while len(self._by_key) > PROGRAMS:
            self._by_key.popitem(last=False)
