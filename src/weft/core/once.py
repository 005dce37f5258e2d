"""What is made once in a process, also where several threads ask for it at the same moment.

`functools.cache` calls its function again for a thread that asks while another one is in it, and
keeps the last result. That is right for values, and wrong for what has an identity or owns
something: a stream, memory, loaded code, which the other thread would go on using.

>>> @made_once
... def stream(number: int) -> object:
...     return object()
>>> stream(0) is stream(0), stream(0) is stream(1)
(True, False)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache, wraps
from threading import RLock
from typing import Any, TypeVar

from weft.core.forks import renew_in_children

Function = TypeVar("Function", bound=Callable[..., Any])


def made_once(function: Function) -> Function:
    """A function that is called once for the same arguments, by whichever thread comes first.

    Others wait for its result. A call that raises is made again. `cache_clear` forgets all.
    """
    known: dict[Hashable, Any] = {}
    lock = renew_in_children(RLock())

    @wraps(function)
    def make(*args: Hashable, **kwargs: Hashable) -> Any:
        key = args, tuple(kwargs.items())
        with lock:
            if key not in known:
                known[key] = function(*args, **kwargs)
            return known[key]

    found: Any = cache(make)  # what is there already is found without the lock

    def forget() -> None:
        with lock:
            known.clear()
            cached_clear()

    cached_clear, found.cache_clear = found.cache_clear, forget
    result: Function = found
    return result
