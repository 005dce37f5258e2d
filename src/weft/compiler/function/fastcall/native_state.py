"""What native code is told of modules that a call was given: words by which they are as they were.

>>> import gc
>>> import weft as wf
>>> net, x = wf.nn.Linear(3, 2), wf.ones(3)
>>> weights = [net.weight, net.bias]
>>> state = module_state([net], [*weights, x])
>>> int(state.is_alive[0]), module_state([[1, 2]], [x])
(1, None)
>>> del net, weights
>>> collected, alive = gc.collect() >= 0, int(state.is_alive[0])
>>> alive
0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np

from weft.compiler.function.fastcall.memory_words import (
    container_words,
    count_words,
    tensor_words,
)
from weft.core import trees
from weft.core.sharing import is_lent
from weft.ir.tape import LEAF_HOOKS
from weft.ir.tensor import Tensor
from weft.runtime.object_words import END

Array = np.ndarray[Any, Any]


class ModuleState:
    """The tensors of modules, by what tells that all of them are as they were; none is held."""

    __slots__ = ("__weakref__", "_counts", "_refs", "arrays", "handles", "is_alive", "words")

    def __init__(
        self,
        memories: Sequence[trees.Memory],
        words: Sequence[int],
        inputs: Sequence[Tensor],
        counts: Sequence[int],
    ) -> None:
        fixed = [tensor for memory in memories for tensor in memory.children]
        own = {*map(id, fixed)}
        self.handles = [*own]
        """The addresses of the tensors."""
        self.arrays = [id(x._value) if id(x) in own else 0 for x in inputs]
        """Of each input of a program the address of the array that it is, or 0 for another one."""
        self.words = np.array([*words, *tensor_words(fixed)[:-1].tolist(), END], np.int64)
        """See `weft.runtime.object_words`."""
        self._counts = counts  # their objects must live, so that no other one is where they are
        self.is_alive = is_alive = np.ones(1, np.int64)
        """0 once an object that the words speak of is no more."""

        def end(gone: object) -> None:
            is_alive[0] = 0

        self._refs = [ref(each, end) for each in (*memories, *[x._value for x in fixed])]


def module_state(objects: Sequence[Any], inputs: Sequence[Tensor]) -> ModuleState | None:
    """What is told of modules whose tensors are inputs; None where they do not say all of it."""
    memories: list[trees.Memory] = []
    counts = [LEAF_HOOKS.count]
    words = count_words(LEAF_HOOKS, counts[0])
    for each in objects:
        parts = trees.take_apart(each)
        memory = None if parts is None else parts.memory
        held = None if memory is None else memory.held_contents()
        if memory is None or held is None or any(is_lent(x._value) for x in memory.children):
            return None
        memories.append(memory)
        containers, changes = held
        counts.append(changes.count)
        words += container_words(containers) + count_words(changes, counts[-1])
    return ModuleState(memories, words, inputs, counts)
