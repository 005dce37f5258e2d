"""A training that is killed again and again, and its twin that is not; run by test_killing.py.

Prints one line for each process: how it was to end, and how it did. Every training is a process
of its own, forked before anything was computed, so that the signal that kills it, sent by itself or
by its own timer, leaves it no last word.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import weft as wf

EPOCHS = 4
SECONDS = 0.01
EXAMPLES, BATCH = 45, 8  # the last batch of an epoch is short


class Net(wf.nn.Module):
    def __init__(self) -> None:
        self.hidden = wf.nn.Linear(6, 16)
        self.out = wf.nn.Linear(16, 3)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        hidden = wf.relu(self.hidden(x))
        if self.training:
            hidden = hidden * wf.random.bernoulli(0.8, hidden.shape).astype("float32")
        return self.out(hidden)


class Slow(wf.train.Callback):
    """From its first step on it has so long to live, and takes its time, so that moments differ."""

    life = 0.0

    def on_step_end(self, trainer: wf.train.Trainer) -> None:
        if Slow.life:
            if not signal.getitimer(signal.ITIMER_REAL)[0]:
                signal.setitimer(signal.ITIMER_REAL, Slow.life)  # nobody handles its signal
            time.sleep(SECONDS)


def cross_entropy(outputs: wf.Tensor, target: wf.Tensor) -> wf.Tensor:
    return -(wf.log_softmax(outputs, axis=-1) * wf.one_hot(target, 3)).sum(axis=1).mean()


def train(folder: Path, **options: object) -> Net:
    wf.random.seed(1)
    x = wf.random.normal((EXAMPLES, 6))
    y = wf.argmax(x[:, :3], axis=1)
    model = Net()
    optimizer = wf.optim.Adam(model.parameters(), lr=0.01)
    trainer = wf.train.Trainer(
        model,
        cross_entropy,
        optimizer,
        metrics=["accuracy"],
        schedule=wf.optim.schedules.Cosine(0.01, steps=24),
        ema=0.9,
        seed=7,
        checkpoint_folder=folder,
        checkpoint_every=2,
        keep_last=2,
        callbacks=[wf.train.CSVLogger(folder.with_suffix(".csv")), Slow()],
        progress=False,
        **options,
    )
    trainer.fit((x, y), epochs=EPOCHS, validation=(x, y), batch_size=BATCH, resume=True)
    state = model.state_dict() | {f"ema.{k}": v for k, v in trainer.ema.state_dict().items()}
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in trainer.history.rows]
    wf.save({"state": state, "rows": rows}, folder.with_suffix(".safetensors"))
    return model


def killed_at(name: str, number: int) -> None:
    """Let this process die in the middle of its n-th call of one of the system's functions."""
    original, calls = getattr(os, name), iter(range(number))

    def counted(*args: object, **kwargs: object) -> object:
        if next(calls, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(os, name, counted)


def attempt(folder: Path, kill: str, options: dict[str, object]) -> bool:
    """Run the training in a process; whether it came to its end."""
    process = os.fork()
    if process == 0:
        try:
            if kill.startswith("time"):
                Slow.life = float(kill.split()[1])
            if kill.startswith("call"):
                _, name, number = kill.split()
                killed_at(name, int(number))
            train(folder, **options)
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
    status = os.waitpid(process, 0)[1]
    ended = "killed" if os.WIFSIGNALED(status) else f"ended {os.WEXITSTATUS(status)}"
    print(f"{kill or 'alone'}: {ended}", flush=True)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        raise SystemExit(1)
    return not os.WIFSIGNALED(status)


def main(place: Path, seed: int, accumulate: int) -> None:
    options: dict[str, object] = {"accumulate": accumulate}
    attempt(place / "whole", "", options)
    dice = random.Random(seed)
    kills = [f"call fsync {dice.randrange(0, 14)}"]
    kills += [f"call rename {dice.randrange(0, 3)}", f"call replace {dice.randrange(0, 8)}"]
    kills += [f"time {dice.uniform(0.001, 0.12):.3f}" for _ in range(2)]
    dice.shuffle(kills)
    for kill in kills:
        attempt(place / "killed", kill, options)
    attempt(place / "killed", "", options)


if __name__ == "__main__":
    shutil.rmtree(Path(sys.argv[1]), ignore_errors=True)
    Path(sys.argv[1]).mkdir(parents=True)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
