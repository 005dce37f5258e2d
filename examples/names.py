"""First names from an LSTM: it reads 25,627 names letter by letter, then invents some.

A name is padded to one length; what is padding is not counted in the loss. The trainer compiles the
step; new names are drawn letter by letter by the model's `generate`, whose step is compiled, too.

    python examples/names.py
    python examples/names.py --data names.txt --epochs 10

It prints a line for each epoch, new names, and the loss per letter on unseen names beside that of
counting pairs of letters, which knows only the letter before.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import weft as wf

LETTERS = ".abcdefghijklmnopqrstuvwxyz"
NOT_COUNTED = -100


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Load, train, invent."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    train, test = read(options.data) if options.data else wf.data.sets.load_names()
    train, test = train[: options.count], test[: options.count]
    longest = max(map(len, (*train, *test)))
    examples, held_out = encode(train, longest), encode(test, longest)
    net = wf.models.LSTMLanguageModel(len(LETTERS), width=32 if options.quick else 128)
    schedule = wf.optim.schedules.Cosine(5e-3, steps=options.epochs * -(-len(train) // 128))
    trainer = wf.train.Trainer(
        net,
        letter_loss,
        wf.optim.Adam(net.parameters(), lr=schedule, clip_norm=1.0),
        compile=not options.eager,
        progress=not options.quick,
        seed=0,
    )
    history = trainer.fit(examples, options.epochs, held_out, batch_size=128)
    print("invented:", ", ".join(invent(net, seed) for seed in range(4 if options.quick else 12)))
    pairs = pair_loss(train, test)
    print(f"loss per letter: {history.last['val_loss']:.3f}; counting pairs: {pairs:.3f}")
    return {
        "first loss": history["loss"][0], "loss": history.last["val_loss"], "pairs": pairs
    }  # fmt: skip


def letter_loss(scores: wf.Tensor, targets: wf.Tensor) -> wf.Tensor:
    """Cross entropy of scores [batch, time, letters] where targets [batch, time] are letters."""
    flat = wf.reshape(scores, (-1, len(LETTERS)))
    return wf.nn.functional.cross_entropy(flat, targets.reshape(-1), ignore_index=NOT_COUNTED)


def encode(names: Sequence[str], longest: int) -> tuple[wf.Tensor, wf.Tensor]:
    """Inputs that begin with a dot, and targets that end with one: [names, longest + 1] each."""
    inputs = np.zeros((len(names), longest + 1), np.int64)
    targets = np.full_like(inputs, NOT_COUNTED)
    for row, name in enumerate(names):
        letters = [LETTERS.index(letter) for letter in name]
        inputs[row, 1 : len(name) + 1] = letters
        targets[row, : len(name) + 1] = [*letters, 0]
    return wf.asarray(inputs), wf.asarray(targets)


def invent(net: wf.models.LSTMLanguageModel, seed: int) -> str:
    """Letters until a dot comes."""
    tokens = net.generate([0], max_new_tokens=15, temperature=0.8, seed=seed, stop=0).tolist()
    return "".join(LETTERS[token] for token in tokens[1:]).rstrip(".")


def pair_loss(train: Sequence[str], test: Sequence[str]) -> float:
    """The loss per letter of a table of how often each letter follows each, plus one."""

    def pairs(names: Sequence[str]) -> npt.NDArray[np.int64]:
        found = np.zeros((27, 27), np.int64)
        for name in names:
            letters = [LETTERS.index(letter) for letter in f".{name}."]
            np.add.at(found, (letters[:-1], letters[1:]), 1)
        return found

    counts = pairs(train) + 1
    logs = np.log(counts / counts.sum(axis=1, keepdims=True))
    seen = pairs(test)
    return float(-(seen * logs).sum() / seen.sum())


def read(path: str) -> tuple[list[str], list[str]]:
    """One name on each line; every fifth is for testing."""
    names = [line.strip().lower() for line in Path(path).read_text().splitlines()]
    names = [name for name in names if name and set(name) <= set(LETTERS[1:])]
    return [name for place, name in enumerate(names) if place % 5 != 4], names[4::5]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="a text file with a name on each line")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--count", type=int, default=None, help="how many names to take")
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    if options.quick:
        options.epochs, options.count = min(options.epochs, 2), 1280
    return options


if __name__ == "__main__":
    main()
