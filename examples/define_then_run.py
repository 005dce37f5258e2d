"""Define, then run: house prices by a graph with placeholders, variables and a session.

The program is built first, without computing anything: placeholders for a batch, a network of
variables, a loss, and Adam's updates as operations. A session then runs it, fed batch by batch.
The trained graph is written to one file, and read back as a program that needs none of this code.

    python examples/define_then_run.py
    python examples/define_then_run.py --save prices.weft

It prints R² on houses that were not seen (1 is perfect, 0 is no better than always telling the
mean), for the session and for the graph that was read back.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import weft as wf
from weft.data.sets import load_housing


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Build, train, save, load, compare."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    (x, y), (x_test, y_test) = read()
    graph = build(x.shape[1])
    with wf.Session(graph) as session:
        order = np.random.default_rng(0)
        for epoch in range(1, options.epochs + 1):
            for rows in np.array_split(order.permutation(len(x)), -(-len(x) // 32)):
                session.run("Adam/minimize", feed_dict={"x": x[rows], "y": y[rows]})
            if epoch == 1 or epoch % (options.epochs // 5 or 1) == 0:
                loss = session.run("loss", feed_dict={"x": x, "y": y})
                print(f"epoch {epoch:3d}   loss {loss.item():.4f}")
        guesses = session.run("price", feed_dict={"x": x_test})
        path = options.save or Path(tempfile.mkdtemp()) / "prices.weft"
        graph.save(path, session)
        print(f"{session.compilations} programs were compiled")
    with wf.Session(wf.Graph.load(path)) as session:
        again = session.run("price", feed_dict={"x": x_test})
    found = {"r2": r2(guesses, y_test), "loaded": r2(again, y_test)}
    print(f"R² on {len(y_test)} unseen houses: {found['r2']:.3f}, read back {found['loaded']:.3f}")
    return found


def build(features: int) -> wf.Graph:
    """Two hidden layers, the mean squared error, and Adam."""
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None, features), name="x")
        y = wf.placeholder("float32", (None, 1), name="y")
        hidden = wf.relu(dense(x, features, 64, "layer1"))
        hidden = wf.relu(dense(hidden, 64, 64, "layer2"))
        price = named(dense(hidden, 64, 1, "layer3"), "price")
        loss = named(wf.mean((price - y) ** 2), "loss")
        wf.optim.Adam(lr=2e-3).minimize(loss)
    return graph


def dense(x: wf.Tensor, inputs: int, outputs: int, name: str) -> wf.Tensor:
    """x w + b, of variables that begin at random."""
    with wf.name_scope(name):
        bound = float(np.sqrt(6 / inputs))
        w = wf.Variable(wf.random.uniform((inputs, outputs), -bound, bound), name="w")
        b = wf.Variable(wf.zeros((outputs,)), name="b")
        return x @ w + b


def named(x: wf.Tensor, name: str) -> wf.Tensor:
    """The same value, under a name by which it can be fetched."""
    return wf.graph.identity(x, name=name)


def read() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The houses in the package, all columns with mean 0 and deviation 1; labels [n, 1]."""
    train, test = load_housing()
    centre, spread = (f(train.inputs, axis=0).numpy() for f in (wf.mean, wf.std))
    middle, width = (f(train.labels).item() for f in (wf.mean, wf.std))
    parts = [
        (
            (p.inputs.numpy() - centre) / (spread + 1e-6),
            (p.labels.numpy()[:, None] - middle) / width,
        )
        for p in (train, test)
    ]
    return parts[0], parts[1]


def r2(guesses: wf.Tensor, labels: np.ndarray) -> float:
    """The share of the labels' variance that the guesses explain."""
    errors = ((guesses.numpy() - labels) ** 2).sum()
    return float(1 - errors / ((labels - labels.mean()) ** 2).sum())


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--save", help="where to write the trained graph")
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    options = parser.parse_args(arguments)
    options.epochs = min(options.epochs, 20) if options.quick else options.epochs
    return options


if __name__ == "__main__":
    main()
