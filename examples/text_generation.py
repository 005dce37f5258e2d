"""Text token by token from GPT-2- and Llama-shaped networks, with a cache of keys and values.

Without a cache, every new token means reading the whole text again. With one, each step looks at
one token only; all steps have the same shapes, so one compiled program serves them all. Here a
small network learns a passage of Shakespeare by heart and recites it both ways.

    python examples/text_generation.py
    python examples/text_generation.py --model gpt2
    python examples/text_generation.py --data folder --prompt "Once upon a time"

`--data` is a folder with a published model (config.json, model.safetensors, tokenizer.json), or one
with the two .bin files of llama2.c. It prints the text, whether both ways agree, and tokens per
second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Get a network, and let it write."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    loss, passage = 0.0, ""
    if options.data:
        net, tokenizer = read(options.data)
    else:
        passage = wf.data.sets.load_shakespeare().train[: options.passage]
        tokenizer = wf.data.CharacterTokenizer.from_text(passage)
        net = build(options.model, tokenizer.vocabulary_size)
        loss = learn_by_heart(net, tokenizer.encode(passage), options)
    prompt = tokenizer.encode(options.prompt or passage[:14])
    count = options.count or len(passage) - 14
    net.generate(prompt, count, temperature=0.0)  # compiles
    start = time.perf_counter()
    text = net.generate(prompt, count, temperature=0.0)
    cached = count / (time.perf_counter() - start)
    start = time.perf_counter()
    again = without_cache(net, prompt, min(count, 20))
    slow = min(count, 20) / (time.perf_counter() - start)
    print(tokenizer.decode(text.numpy()))
    agree = text.tolist()[: len(again)] == again
    print(f"\nwith the cache {cached:.0f} tokens/s, without {slow:.0f}; they agree: {agree}")
    right = np.mean(text.numpy() == tokenizer.encode(passage)[: len(text)]) if passage else 1.0
    return {"loss": loss, "agree": float(agree), "right": float(right)}


def read(folder: str) -> tuple[Any, Any]:
    """A network with its weights, and its tokenizer."""
    binaries = sorted(Path(folder).glob("*.bin"), key=lambda path: -path.stat().st_size)
    if len(binaries) == 2:
        weights, pieces = binaries
        return wf.models.load_llama2c(weights), wf.models.load_llama2c_tokenizer(pieces)
    return wf.models.load_pretrained(folder)


def build(name: str, vocabulary: int) -> wf.models.LanguageModel:
    """A small network in the shape of a published one."""
    if name == "gpt2":
        sizes = wf.models.GPTConfig(vocabulary, width=64, layers=2, heads=4, context=256)
        return wf.models.GPT2(sizes)
    config = wf.models.LlamaConfig(
        vocabulary=vocabulary, width=64, hidden=128, layers=2, heads=4, kv_heads=2, context=256
    )
    return wf.models.Llama(config)


def learn_by_heart(net: Any, tokens: Any, options: argparse.Namespace) -> float:
    """Overfit on one passage, on purpose."""
    optimizer = wf.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.0)
    step = train_step if options.eager else wf.jit(train_step)
    inputs, targets = wf.asarray(tokens[None, :-1]), wf.asarray(tokens[None, 1:])
    loss = 0.0
    for number in range(1, options.steps + 1):
        loss = step(net, optimizer, inputs, targets).item()
        if number == 1 or number % (options.steps // 4 or 1) == 0:
            print(f"step {number:4d}   loss {loss:.4f}", flush=True)
    return loss


def train_step(
    net: wf.nn.Module, optimizer: wf.optim.Optimizer, inputs: wf.Tensor, targets: wf.Tensor
) -> wf.Tensor:
    """Forward, backward and update; inputs and targets [batch, time]."""
    scores = net(inputs)  # [batch, time, vocabulary]
    flat = wf.reshape(scores, (-1, scores.shape[-1]))
    loss = wf.nn.functional.cross_entropy(flat, wf.reshape(targets, (-1,)))
    optimizer.minimize(loss)
    return loss


def without_cache(net: wf.models.LanguageModel, prompt: Any, count: int) -> list[int]:
    """The likeliest tokens, each after reading everything again."""
    tokens = [int(token) for token in prompt]
    net.eval()
    with wf.no_grad():
        for _ in range(count):
            scores = net(wf.tensor([tokens]))[0, -1]
            tokens.append(int(wf.argmax(scores).item()))
    return tokens


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=["llama", "gpt2"], default="llama")
    parser.add_argument("--data", help="a folder with a published model")
    parser.add_argument("--prompt", help="what the text begins with")
    parser.add_argument("--count", type=int, default=None, help="how many tokens to write")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--passage", type=int, default=240, help="how many characters to learn")
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    if options.quick:
        options.steps, options.passage = min(options.steps, 60), 60
    if options.data and not options.count:
        options.count = 100
    return options


if __name__ == "__main__":
    main()
