"""About a minute of training: a small GPT learns to write like Shakespeare, letter by letter.

Run it with `make demo`. It shows what the network writes before it has learned anything, trains
with a progress bar on the plays in the package, and shows what it writes then. The loss is drawn
into a PNG file, and the network is kept as a checkpoint, both in build/demo.

    python examples/demo.py --seconds 300 --width 192 --layers 6     # longer, larger, better
    python examples/demo.py --resume                                 # go on from the checkpoint
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shakespeare import build, build_optimizer, next_character_loss, write

import weft as wf

PROMPT = "ROMEO:\n"
RATES = 0.02, 0.005
"""Learning rates of the matrices and of all other weights."""


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Write, learn, write again."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    text, unseen = wf.data.sets.load_shakespeare()
    tokenizer = wf.data.CharacterTokenizer.from_text(text, unseen)
    net = build(tokenizer.vocabulary_size, options)
    print(f"a GPT of {sum(p.size for p in net.parameters()):,} weights; {len(text):,} characters")
    show("before", write(net, tokenizer, PROMPT, options.length))

    folder = Path(options.folder)
    trainer = wf.train.Trainer(
        net,
        next_character_loss,
        build_optimizer(net, *RATES),
        callbacks=[Clock(options.seconds, options.epochs)],
        compile=not options.eager,
        checkpoint_folder=run_folder(folder, options.resume),
        keep_last=1,
    )
    train, held_out = loaders(text, unseen, tokenizer, options)
    history = trainer.fit(train, validation=held_out, resume=options.resume)

    show("after", write(net, tokenizer, PROMPT, options.length))
    plot = history.plot(folder / "loss.png")
    network = trainer.checkpoint_folder.latest()
    print(f"loss on unseen text: {history.last['val_loss']:.3f} (guessing: {math.log(65):.3f})")
    print(f"the curve is in {plot}, the network in {network}")
    print(NEXT.format(python=os.path.relpath(sys.executable)))
    return {"first loss": history["val_loss"][0], "loss": history.last["val_loss"]}


NEXT = """
What to try next, where python is {python}:
  python examples/demo.py --resume --seconds 120     go on from the checkpoint
  python examples/shakespeare.py                     the larger one: a few minutes, loss below 1.6
  python examples/digits.py --model lenet            images; examples/ has many such files
  make help                                          everything else"""


class Clock(wf.train.Callback):
    """As many epochs as there is time for; the learning rate falls with the time that is left."""

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds, self.most = seconds, most
        self.start, self.first = 0.0, 0

    def on_fit_begin(self, trainer: Any) -> None:
        """Start the clock, and guess."""
        self.start, self.first = time.perf_counter(), trainer.epoch
        trainer.total_epochs = trainer.epoch + min(20, self.most)

    def on_step_begin(self, trainer: Any) -> None:
        """A short rise, then a fall; a new rate does not compile the step again."""
        spent = (time.perf_counter() - self.start) / self.seconds
        factor = min(1.0, (trainer.step + 1) / 20) * max(0.02, 1 - spent)
        for group, rate in zip(trainer.optimizer.groups, RATES, strict=True):
            group["lr"] = factor * rate

    def on_epoch_end(self, trainer: Any) -> None:
        """Reckon how many more there will be."""
        spent, done = time.perf_counter() - self.start, trainer.epoch - self.first
        more = max(0, round((self.seconds - spent) / spent * done))
        trainer.total_epochs = trainer.epoch + min(more, self.most - done)


def loaders(text: str, unseen: str, tokenizer: Any, options: argparse.Namespace) -> tuple[Any, Any]:
    """Short epochs of windows from anywhere in the text, and a piece of unseen text."""
    windows = wf.data.TokenWindows(tokenizer.encode(text), options.context, stride=1)
    sampler = wf.data.RandomSampler(windows, num_samples=options.batch * 40, replacement=True)
    train = wf.data.DataLoader(windows, options.batch, sampler=sampler)
    held_out = wf.data.TokenWindows(tokenizer.encode(unseen[:6000]), options.context)
    return train, wf.data.DataLoader(held_out, options.batch, drop_last=True)


def show(title: str, text: str) -> None:
    """A sample between lines."""
    print(f"\n--- {title} {'-' * (68 - len(title))}\n{text}\n{'-' * 73}\n", flush=True)


def run_folder(folder: Path, resume: bool) -> Path:
    """A new folder for this run's checkpoints, or that of the last run to go on with."""
    runs = sorted(folder.glob("run-*"))
    if resume and not runs:
        raise SystemExit(f"there is no run in {folder} to go on with: leave --resume out")
    chosen = runs[-1] if resume else folder / time.strftime("run-%Y%m%d-%H%M%S")
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=50.0, help="how long to train")
    parser.add_argument("--epochs", type=int, default=10_000, help="at most so many")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--length", type=int, default=300, help="characters to write")
    parser.add_argument("--folder", default="build/demo", help="where the results go")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    if options.quick:
        options.epochs, options.width, options.layers, options.context = 3, 32, 1, 32
    return options


if __name__ == "__main__":
    main()
