"""Text token by token: one compiled step, a cache of fixed room, greedy or by chance.

`LanguageModel` is what can generate: `forward(tokens, cache)` and `new_cache(batch, capacity)`.
Every step has the same shapes, the position is a tensor, so the step is compiled once.

>>> import weft as wf
>>> from weft.models import GPT, GPTConfig
>>> net = GPT(GPTConfig(vocabulary=10, width=8, layers=1, heads=2, context=16))
>>> net.generate([1, 2, 3], max_new_tokens=4, temperature=0.0).shape
(7,)
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

import weft as wf
from weft import nn


class LanguageModel(nn.Module):
    """A network that tells, after each token, what may come next."""

    context: int
    """How many tokens it can look back on; 0 where there is no limit."""

    @abstractmethod
    def forward(self, tokens: wf.Tensor, cache: Any = None) -> Any:
        """tokens [batch, time] -> logits [batch, time, vocabulary]; with a cache also the next."""

    @abstractmethod
    def new_cache(self, batch: int, capacity: int) -> Any:
        """An empty cache with room for this many tokens."""

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
        stop: int | None = None,
    ) -> wf.Tensor:
        """The prompt [time] or [batch, time] and what follows it.

        temperature: 0 takes the likeliest token, larger ones take more chances; top_k: only among
        so many of the likeliest. seed: the same seed draws the same tokens. stop: ends where every
        sequence has had this token. What is longer than the context is continued from its second
        half.
        """
        start = _as_prompt(prompt)
        options = max_new_tokens, temperature, top_k, seed
        columns = [start]
        ended = np.zeros(len(start), bool)
        for token in self.stream(start, *options):
            columns.append(token.numpy()[:, None])
            if stop is not None:
                ended |= columns[-1][:, 0] == stop
                if ended.all():
                    break
        whole = wf.asarray(np.concatenate(columns, axis=1), device=self._device)
        return whole[0] if np.ndim(prompt) == 1 else whole

    def stream(
        self,
        prompt: Any,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
    ) -> Iterator[wf.Tensor]:
        """New tokens [batch], one at a time as they are computed; see `generate`.

        >>> from weft.models import GPT, GPTConfig
        >>> net = GPT(GPTConfig(vocabulary=10, width=8, layers=1, heads=2, context=16))
        >>> len(list(net.stream([1, 2, 3], max_new_tokens=20)))
        20
        """
        tokens = _as_prompt(prompt)
        _check(tokens, max_new_tokens, temperature, top_k)
        choice = wf.tensor(float(temperature) or 1.0), temperature > 0, top_k
        with nn.evaluation_mode(self), wf.no_grad():
            key = wf.random.key(seed, device=self._device)
            yield from self._steps(tokens, max_new_tokens, choice, key)

    def _steps(self, tokens: Any, count: int, choice: Any, key: wf.Tensor) -> Iterator[wf.Tensor]:
        room = self._room(tokens.shape[1] + count)
        seen = list(tokens.T)  # a column for each position
        cache, filled = None, 0
        for _ in range(count):
            if cache is None or filled == room:
                seen = seen[-self.context // 2 :] if len(seen) > room else seen
                cache, filled = self._read(seen[:-1], len(tokens), room), len(seen) - 1
                last = wf.asarray(seen[-1], device=self._device)
            last, key = token_step(self, last, cache, key, *choice)
            seen.append(last.numpy())
            filled += 1
            yield last

    @property
    def _device(self) -> wf.Device:
        """Where the weights are, and so are tokens and caches."""
        return next((p.device for p in self.parameters()), wf.device("cpu"))

    def _room(self, wanted: int) -> int:
        """A power of two, so that prompts of about the same length share a program."""
        room: int = 1 << max(4, math.ceil(math.log2(max(1, wanted))))
        return min(room, self.context) if self.context else room

    def _read(self, columns: list[Any], batch: int, room: int) -> Any:
        """The cache after all tokens of the prompt but the last: one look at all of them."""
        cache = self.new_cache(batch, room)
        if columns:
            tokens = wf.asarray(np.stack(columns, axis=1), device=self._device)
            _, cache = self(tokens, cache)
        return cache


@wf.jit(static_argnames=("by_chance", "top_k"))  # type: ignore[untyped-decorator]
def token_step(
    net: LanguageModel,
    last: wf.Tensor,
    cache: Any,
    key: wf.Tensor,
    temperature: wf.Tensor,
    by_chance: bool,
    top_k: int | None,
) -> tuple[wf.Tensor, wf.Tensor]:
    """The token after `last` [batch], and the next random key; the cache then has `last` in it.

    The cache's tensors are rebound, not returned: their memory is then written where it is new.
    """
    logits, after = net(wf.expand_dims(last, axis=1), cache)
    for held, new in zip(wf.tree.leaves(cache), wf.tree.leaves(after), strict=True):
        held.set_(new)
    scores = logits[:, -1].astype(wf.float32)  # [batch, vocabulary]
    if not by_chance:
        return wf.argmax(scores, axis=-1), key
    keys = wf.random.split(key)  # [2, ...]
    if top_k is not None and top_k < scores.shape[-1]:
        least = wf.topk(scores, top_k)[0][:, -1:]  # [batch, 1]
        scores = wf.where(scores < least, -wf.inf, scores)
    return wf.random.categorical(scores / temperature, key=keys[0]), keys[1]


def _as_prompt(prompt: Any) -> np.ndarray[Any, Any]:
    """[batch, time] of int64."""
    array = np.asarray(prompt)
    if array.ndim not in (1, 2) or array.dtype.kind not in "iu" or array.size == 0:
        raise wf.ArgumentError(
            "generate",
            "the prompt is not a sequence of tokens, or a batch of equally long ones",
            expected="at least one whole number: [time] or [batch, time]",
            got={"prompt": prompt},
            fix="begin with one token, such as the one for a new line: [0]",
        )
    return array.astype(np.int64).reshape(-1, array.shape[-1])


def _check(tokens: Any, count: int, temperature: float, top_k: int | None) -> None:
    if count < 0 or temperature < 0 or (top_k is not None and top_k < 1):
        raise wf.ArgumentError(
            "generate",
            "a number is out of range",
            expected="max_new_tokens >= 0, temperature >= 0, top_k >= 1 or None",
            got={"max_new_tokens": count, "temperature": temperature, "top_k": top_k},
            fix="net.generate(prompt, 100, temperature=0.8, top_k=40)",
        )
