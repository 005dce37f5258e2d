"""Generation: with a cache as without, greedy or by chance, one compiled step for all tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import models

pytestmark = pytest.mark.slow

GPT = models.GPTConfig(vocabulary=13, width=16, layers=2, heads=2, context=16)
LLAMA = models.LlamaConfig(13, 16, 24, layers=2, heads=4, kv_heads=2, context=16)
BUILDS = {
    "GPT": lambda: models.GPT(GPT),
    "GPT2": lambda: models.GPT2(GPT),
    "Llama": lambda: models.Llama(LLAMA),
    "LSTM": lambda: models.LSTMLanguageModel(13, 16, 2),
}
NAMES = sorted(BUILDS)


@pytest.fixture(params=NAMES)
def net(request: pytest.FixtureRequest) -> Any:
    wf.random.seed(5)
    made = BUILDS[request.param]()
    with wf.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter *= 3.0  # so that the likeliest token is not always the same
    return made


def without_cache(net: Any, prompt: Any, count: int) -> list[int]:
    tokens = list(prompt)
    net.eval()
    with wf.no_grad():
        for _ in range(count):
            tokens.append(int(net(wf.asarray([tokens]))[0, -1].numpy().argmax()))
    return tokens


def test_greedy_tokens_are_those_without_a_cache(net: Any) -> None:
    prompt = [1, 5, 2]
    found = net.generate(prompt, 10, temperature=0.0)
    assert found.tolist() == without_cache(net, prompt, 10)
    assert len(set(found.tolist())) > 2


@pytest.mark.parametrize("name", ["GPT", "Llama"])
def test_no_token_sees_a_later_one_at_a_real_size(name: str, rng: np.random.Generator) -> None:
    """Long enough for the kernels that compiled attention uses; exactly, not nearly."""
    config: Any = models.GPTConfig(vocabulary=65, width=64, layers=2, heads=4, context=160)
    if name == "Llama":
        config = models.LlamaConfig(65, 64, 96, layers=2, heads=4, kv_heads=2, context=160)
    net = getattr(models, name)(config).eval()
    tokens = rng.integers(0, 65, (2, 160))
    other = np.where(np.arange(160) < 100, tokens, (tokens + 1) % 65)
    compiled = wf.jit(lambda net, tokens: net(tokens))
    with wf.no_grad():
        for call in (lambda net, tokens: net(tokens), compiled):
            ours, theirs = (call(net, wf.asarray(each)).numpy() for each in (tokens, other))
            assert (ours[:, :100] == theirs[:, :100]).all()
            assert (ours[:, 100] != theirs[:, 100]).any()


def test_the_step_is_compiled_once_for_prompts_of_any_length(net: Any) -> None:
    net.generate([1], 4, temperature=0.0)
    before = len(models.token_step.compilations)
    for prompt in ([1], [3, 4], [1, 2, 3, 4, 5, 6, 7]):
        net.generate(prompt, 8, temperature=0.0)
    assert len(models.token_step.compilations) == before


def test_a_batch_is_as_its_rows(net: Any) -> None:
    prompts = [[1, 2, 3], [7, 8, 9]]
    both = net.generate(prompts, 5, temperature=0.0).tolist()
    assert both == [net.generate(row, 5, temperature=0.0).tolist() for row in prompts]


def test_a_seed_draws_the_same_tokens_again_and_another_others(net: Any) -> None:
    first, again, other = (net.generate([1], 12, seed=s).tolist() for s in (0, 0, 1))
    assert first == again != other


def test_a_network_in_training_comes_back_in_training() -> None:
    config = models.GPTConfig(vocabulary=13, width=16, layers=1, heads=2, context=16, dropout=0.5)
    net = models.GPT(config).train()
    first = net.generate([1], 8, temperature=0.0).tolist()
    assert net.training
    assert first == net.generate([1], 8, temperature=0.0).tolist()  # nothing was dropped
    assert net.h[0].training


def test_only_the_k_likeliest_are_drawn() -> None:
    wf.random.seed(2)
    net = models.GPT(GPT)
    with wf.no_grad():
        logits = net(wf.tensor([[4]]))[0, -1].numpy()
    likeliest = set(np.argsort(logits)[-3:].tolist())
    drawn = {net.generate([4], 1, top_k=3, seed=s).tolist()[-1] for s in range(40)}
    assert drawn <= likeliest
    assert len(drawn) > 1


def test_tokens_are_drawn_with_their_probabilities() -> None:
    wf.random.seed(2)
    net = models.GPT(GPT).eval()
    with wf.no_grad():
        net.wte.weight *= 20.0
        logits = net(wf.tensor([[4]]))[0, -1].numpy() / 0.7
    expected = np.exp(logits - logits.max())
    expected /= expected.sum()
    count = 4000
    drawn = net.generate(np.full((count, 1), 4), 1, temperature=0.7).numpy()[:, 1]
    share = np.bincount(drawn, minlength=13) / count
    assert np.abs(share - expected).max() < 4 * np.sqrt(0.25 / count)


def test_generation_goes_on_beyond_the_context() -> None:
    net = models.GPT(GPT)
    found = net.generate([1, 2], 40, temperature=0.0).tolist()
    assert len(found) == 42
    # when the room is full, the second half of the context is read anew
    seen = found[:17]
    assert seen == without_cache(net, [1, 2], 15)
    assert found[17] == without_cache(net, found[9:17], 1)[-1]


def test_generation_ends_at_the_stop_token() -> None:
    wf.random.seed(5)
    net = models.GPT(GPT)
    whole = net.generate([1], 12, temperature=0.0).tolist()
    stop = whole[4]
    ended = net.generate([1], 12, temperature=0.0, stop=stop).tolist()
    assert ended == whole[: whole.index(stop, 1) + 1]


def test_half_precision_generates_too() -> None:
    net = models.Llama(LLAMA).to("bfloat16")
    assert net.new_cache(1, 4)[0].key.dtype is wf.bfloat16
    assert net.generate([1], 6, temperature=0.0).shape == (7,)


@pytest.mark.parametrize("prompt", [[], [1.5], "text", [[[1]]]])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(wf.ArgumentError, match="the prompt is not a sequence of tokens"):
        models.GPT(GPT).generate(prompt, 3)


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(wf.BoundsError):
        models.GPT(GPT).generate([1, 99], 3)
    with pytest.raises(wf.BoundsError):
        models.GPT(GPT).generate([99], 3)


def test_numbers_out_of_range_are_refused() -> None:
    net = models.GPT(GPT)
    for options in ({"temperature": -1.0}, {"top_k": 0}):
        with pytest.raises(wf.ArgumentError, match="out of range"):
            net.generate([1], 3, **options)
