"""A character GPT that learns to write like Shakespeare.

The plays are in the package: a million characters. The network sees some characters and tells the
next one; its weights are stepped by Muon, its embeddings by AdamW. Then it writes on by itself,
with a cache of what it has read.

    python examples/shakespeare.py                       # a few minutes on two cores
    python examples/shakespeare.py --data text.txt --steps 5000 --width 256 --layers 6

It prints a line for each epoch with the loss on unseen text (guessing gives 4.17, pairs of letters
2.5; below 1.6 it writes words), and a sample. `--save` keeps the weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import weft as wf

Windows = wf.data.TokenWindows


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Load, train, write."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(options.seed)
    text, unseen = read(options.data) if options.data else wf.data.sets.load_shakespeare()
    tokenizer = wf.data.CharacterTokenizer.from_text(text, unseen)
    net = build(tokenizer.vocabulary_size, options)
    print(f"{sum(p.size for p in net.parameters()):,} parameters, {len(text):,} characters")
    train, test = loaders(text, unseen, tokenizer, options)
    trainer = wf.train.Trainer(
        net,
        next_character_loss,
        build_optimizer(net, *(cycle(lr, options.steps) for lr in (options.lr, options.lr / 4))),
        compile=not options.eager,
        progress=not options.quick,
    )
    history = trainer.fit(train, options.epochs, test)
    if options.save:
        wf.save(net.state_dict(), options.save)
    print(write(net, tokenizer, "\n", 100 if options.quick else 500))
    print(f"loss on unseen text: {history.last['val_loss']:.4f}")
    return {"first loss": history["loss"][0], "loss": history.last["val_loss"]}


def build(vocabulary: int, options: argparse.Namespace) -> wf.models.GPT:
    """A GPT of the size that was asked for."""
    config = wf.models.GPTConfig(
        vocabulary=vocabulary,
        width=options.width,
        layers=options.layers,
        heads=options.width // 32,
        context=options.context,
        dropout=options.dropout,
        bias=False,
    )
    return wf.models.GPT(config)


def build_optimizer(net: wf.models.GPT, inner_lr: Any, outer_lr: Any) -> wf.optim.Optimizer:
    """Muon for the matrices in the layers, AdamW for the tables of tokens and positions."""
    inner = [p for name, p in net.named_parameters() if p.ndim == 2 and name.startswith("h.")]
    outer = [p for name, p in net.named_parameters() if p.ndim != 2 or not name.startswith("h.")]
    groups = [
        {"params": inner, "lr": inner_lr, "orthogonal": True},
        {"params": outer, "adamw_lr": outer_lr, "orthogonal": False},
    ]
    return wf.optim.Muon(groups, weight_decay=0.01, betas=(0.9, 0.98))


def cycle(lr: float, steps: int) -> wf.optim.schedules.Schedule:
    """A short rise, then a long fall to nothing."""
    rise = max(1, steps // 20)
    fall = wf.optim.schedules.Linear(lr, 0.0, steps=max(1, steps - rise))
    return wf.optim.schedules.Warmup(fall, steps=rise)


def loaders(
    text: str, unseen: str, tokenizer: wf.data.Tokenizer, options: argparse.Namespace
) -> tuple[Any, Any]:
    """Windows from anywhere in the text, as many as the steps take; all unseen text in order."""
    windows = Windows(tokenizer.encode(text), options.context, stride=1)
    count = options.batch * options.steps // options.epochs
    sampler = wf.data.RandomSampler(windows, num_samples=count, replacement=True)
    held_out = Windows(tokenizer.encode(unseen[: options.unseen]), options.context)
    test = wf.data.DataLoader(held_out, options.batch, drop_last=True)
    return wf.data.DataLoader(windows, options.batch, sampler=sampler, drop_last=True), test


def next_character_loss(scores: wf.Tensor, targets: wf.Tensor) -> wf.Tensor:
    """Cross entropy of scores [batch, time, vocabulary] and targets [batch, time]."""
    flat = wf.reshape(scores, (-1, scores.shape[-1]))
    return wf.nn.functional.cross_entropy(flat, wf.reshape(targets, (-1,)))


def write(net: wf.models.GPT, tokenizer: wf.data.Tokenizer, prompt: str, length: int) -> str:
    """The prompt and what the network writes after it."""
    tokens = net.generate(tokenizer.encode(prompt), length, temperature=0.8, seed=0)
    return tokenizer.decode(tokens.numpy())


def read(path: str) -> tuple[str, str]:
    """A text file; its last tenth is for testing."""
    text = Path(path).read_text(encoding="utf-8")
    return text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="a text file")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--epochs", type=int, default=8, help="how often to look at unseen text")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--unseen", type=int, default=None, help="characters to be tested on")
    parser.add_argument("--save", help="where to write the weights, as .safetensors")
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    if options.quick:
        options.width, options.layers, options.context, options.batch = 32, 1, 32, 16
        options.steps, options.epochs, options.unseen = min(options.steps, 120), 2, 5000
    return options


if __name__ == "__main__":
    main()
