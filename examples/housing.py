"""House prices: a network of two hidden layers, trained by `wf.train.Trainer`.

The Boston houses of 1970 are in the package: twelve measures of a district, one price. The trainer
compiles the step, shows progress, and tells after each epoch how well it does on houses that it
has not seen (R²: 1 is perfect, 0 is no better than always telling the mean).

    python examples/housing.py
    python examples/housing.py --data houses.csv --target price

It prints a line for each epoch, then some prices beside what the network says.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import weft as wf
from weft.data.sets import Examples, Split, load_housing


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Load, train, show."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    train, test = scaled(read(options.data, options.target) if options.data else load_housing())
    net = wf.models.MLP([train.inputs.shape[1], 64, 64, 1])
    batches = -(-train.labels.shape[0] // 32)
    schedule = wf.optim.schedules.Cosine(3e-3, steps=options.epochs * batches)
    trainer = wf.train.Trainer(
        net,
        wf.nn.functional.mse_loss,
        wf.optim.AdamW(net.parameters(), lr=schedule, weight_decay=1.0),
        metrics=["r2"],
        compile=not options.eager,
        progress=not options.quick,
        seed=0,
    )
    history = trainer.fit(train, options.epochs, validation=test)
    guesses = trainer.predict(test.inputs)
    print("price, in deviations from the mean   said")
    for price, guess in list(zip(test.labels.tolist(), guesses.tolist(), strict=True))[:5]:
        print(f"{price[0]:36.2f}  {guess[0]:5.2f}")
    print(f"R² on {test.labels.shape[0]} unseen houses: {history.last['val_r2']:.3f}")
    return {"first loss": history["loss"][0], "r2": history.last["val_r2"]}


def scaled(split: Split) -> Split:
    """All columns with mean 0 and deviation 1, by what the training part says; labels [n, 1]."""

    def scale(values: wf.Tensor, known: wf.Tensor) -> wf.Tensor:
        return (values - wf.mean(known, axis=0)) / (wf.std(known, axis=0) + 1e-6)

    train = split.train
    parts = [
        Examples(
            scale(part.inputs, train.inputs), wf.expand_dims(scale(part.labels, train.labels), 1)
        )
        for part in split
    ]
    return Split(*parts)


def read(path: str, target: str | None) -> Split:
    """A CSV file of numbers; every fifth row is for testing."""
    table = wf.data.read_csv(path)
    labels = np.asarray(table.pop(target or list(table)[-1]), np.float32)
    inputs = np.stack([np.asarray(column, np.float32) for column in table.values()], axis=1)
    is_test = np.arange(len(labels)) % 5 == 4
    parts = [(inputs[rows], labels[rows]) for rows in (~is_test, is_test)]
    return Split(*(Examples(wf.asarray(x), wf.asarray(y)) for x, y in parts))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="a CSV file of numbers with a header")
    parser.add_argument("--target", help="the column to predict; without it, the last")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    options.epochs = min(options.epochs, 12) if options.quick else options.epochs
    return options


if __name__ == "__main__":
    main()
