"""Handwritten digits: a perceptron, and LeNet, which looks at neighbourhoods.

1,442 images of 8 x 8 pixels are in the package; with `--data` it reads MNIST's files. The same
trainer trains both networks; only the model differs.

    python examples/digits.py
    python examples/digits.py --model lenet
    python examples/digits.py --model lenet --data folder/of/mnist --epochs 2

It prints a line for each epoch, the accuracy on unseen digits, and what was taken for what.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import weft as wf
from weft.data.sets import Examples, Split, load_digits


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Load, train, show."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    train, test = read(options.data) if options.data else load_digits()
    size = int(train.inputs.shape[-1])
    if options.model == "mlp":
        net = wf.models.MLP([size * size, 128, 10])
    else:
        net = wf.models.LeNet(size=size, padding=2 if size < 16 else 0)
    print(f"{options.model}: {sum(p.size for p in net.parameters()):,} parameters")
    trainer = wf.train.Trainer(
        net,
        wf.nn.functional.cross_entropy,
        wf.optim.Adam(net.parameters(), lr=1e-3 if size > 8 else 3e-3),
        metrics=["accuracy"],
        compile=not options.eager,
        progress=not options.quick,
        seed=0,
    )
    images, unseen = (part.inputs[:, None] for part in (train, test))  # [n, 1, size, size]
    if options.quick:
        images, unseen, test = images[:512], unseen[:128], Examples(*(x[:128] for x in test))
    labels = train.labels[: len(images)]
    history = trainer.fit((images, labels), options.epochs, (unseen, test.labels), batch_size=64)
    accuracy = history.last["val_accuracy"]
    print(f"{100 * accuracy:.1f} % of {len(test.labels)} unseen digits were read right")
    show_mistakes(wf.argmax(trainer.predict(unseen), axis=1), test.labels)
    return {"first loss": history["loss"][0], "accuracy": accuracy}


def show_mistakes(guesses: wf.Tensor, labels: wf.Tensor) -> None:
    """Which digits were taken for which, the most frequent first."""
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (labels.numpy(), guesses.numpy()), 1)
    np.fill_diagonal(counts, 0)
    for place in np.argsort(-counts, axis=None)[:3]:
        truth, guess = divmod(int(place), 10)
        if counts[truth, guess]:
            print(f"  {truth} read as {guess}: {counts[truth, guess]} times")


def read(folder: str) -> Split:
    """MNIST's four files, gzipped or not, with ink from 0 to 1."""
    parts = []
    for name in ("train", "t10k"):
        paths = sorted(Path(folder).glob(f"{name}-*-idx*"))
        if len(paths) != 2:
            raise SystemExit(f"{folder} has no {name}-images-idx3-ubyte and {name}-labels-…")
        images, labels = (wf.data.read_idx(path) for path in paths)
        ink = wf.asarray(images.astype(np.float32) / np.float32(255))
        parts.append(Examples(ink, wf.asarray(labels.astype(np.int64))))
    return Split(*parts)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=["mlp", "lenet"], default="mlp")
    parser.add_argument("--data", help="a folder with MNIST's files")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    quick = 2 if options.model == "lenet" else 5
    options.epochs = min(options.epochs, quick) if options.quick else options.epochs
    return options


if __name__ == "__main__":
    main()
