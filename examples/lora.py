"""LoRA: a trained network learns something new through a few added weights.

A small GPT learns Shakespeare's English. Then it is frozen, and thin matrices beside its linear
layers learn first names: a few percent of the weights, which are all that has to be stored for
the new skill. Merged into the frozen ones, they cost nothing when the network is used.
(Hu et al., 2021.)

    python examples/lora.py
    python examples/lora.py --rank 16 --steps 2000

It prints both losses before and after, and names that the network invents.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

import weft as wf


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train on plays, adapt to names, merge."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    plays = wf.data.sets.load_shakespeare().train
    names = "\n".join(wf.data.sets.load_names().train)
    tokenizer = wf.data.CharacterTokenizer.from_text(plays)
    tokens, new = (tokenizer.encode(text) for text in (plays, names))
    config = wf.models.GPTConfig(
        tokenizer.vocabulary_size, options.width, options.layers, heads=4, context=32
    )
    net = wf.models.GPT(config)
    fit(net, list(net.parameters()), tokens, options.steps, options.eager)
    before = loss_on(net, new)
    frozen = {name: p.detach().clone() for name, p in net.named_parameters()}

    wf.models.add_lora(net, rank=options.rank, targets=("h.*",))
    added = wf.models.lora_parameters(net)
    share = sum(p.size for p in added.values()) / sum(p.size for p in frozen.values())
    print(f"added: {len(added)} matrices, {100 * share:.1f} % of the weights")
    fit(net, list(added.values()), new, options.steps, options.eager)
    after = loss_on(net, new)
    kept = all(
        wf.all(p == frozen[name.replace(".base", "")]).item()
        for name, p in net.named_parameters()
        if name not in added
    )
    wf.models.merge_lora(net)
    merged = loss_on(net, new)
    print(f"loss on names: {before:.3f} before, {after:.3f} after, {merged:.3f} merged")
    print(f"the old weights are untouched: {kept}")
    invented = net.generate(tokenizer.encode("\n"), 60, temperature=0.7)
    print("invented:", ", ".join(tokenizer.decode(invented.numpy()).split()))
    return {"before": before, "after": after, "merged": merged, "kept": float(kept), "share": share}


def fit(net: wf.nn.Module, weights: list[wf.Tensor], tokens: Any, steps: int, eager: bool) -> None:
    """Train only these weights of the network on windows of the text."""
    optimizer = wf.optim.AdamW(weights, lr=wf.optim.schedules.Cosine(5e-3, steps=steps))
    step = train_step if eager else wf.jit(train_step)
    windows = wf.data.TokenWindows(tokens, length=32, stride=1)
    generator = np.random.default_rng(0)
    for number in range(1, steps + 1):
        batch = windows.gather(generator.integers(0, len(windows), 32))
        loss = step(net, optimizer, *(wf.asarray(part) for part in batch)).item()
        if number % (steps // 3 or 1) == 0:
            print(f"step {number:5d}   loss {loss:.3f}", flush=True)


def train_step(
    net: wf.nn.Module, optimizer: wf.optim.Optimizer, inputs: wf.Tensor, targets: wf.Tensor
) -> wf.Tensor:
    """Forward, backward, and an update of what the optimiser was given."""
    loss = text_loss(net, inputs, targets)
    optimizer.minimize(loss)
    return loss


def text_loss(net: wf.nn.Module, inputs: wf.Tensor, targets: wf.Tensor) -> wf.Tensor:
    """Cross entropy of the next character; inputs, targets [batch, time]."""
    scores = net(inputs)  # [batch, time, vocabulary]
    flat = wf.reshape(scores, (-1, scores.shape[-1]))
    return wf.nn.functional.cross_entropy(flat, wf.reshape(targets, (-1,)))


def loss_on(net: wf.nn.Module, tokens: Any) -> float:
    """The loss on the first windows of a text."""
    windows = wf.data.TokenWindows(tokens, length=32)
    inputs, targets = (wf.asarray(part) for part in windows.gather(np.arange(64)))
    with wf.no_grad():
        return text_loss(net, inputs, targets).item()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    if options.quick:
        options.steps, options.width, options.layers = min(options.steps, 60), 32, 1
    return options


if __name__ == "__main__":
    main()
