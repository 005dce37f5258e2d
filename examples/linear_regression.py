"""Linear regression by hand: tensors, a loss, `backward`, and an update written out.

Nothing here is hidden in a layer or an optimiser. A plane with noise is drawn and found again, and
the answer is compared with that of the normal equations. The whole step is compiled by `wf.jit`;
without it the same lines run at once.

    python examples/linear_regression.py
    python examples/linear_regression.py --data houses.csv     # the last column is predicted

It prints the loss now and then, and at the end the weights beside the exact ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import weft as wf


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Load, descend, compare."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    x, y = read(options.data) if options.data else invent()
    w = wf.zeros(x.shape[1]).requires_grad_()
    b = wf.zeros(()).requires_grad_()
    step = descend if options.eager else wf.jit(descend)
    for epoch in range(1, options.epochs + 1):
        loss = step(w, b, x, y)
        if epoch == 1 or epoch % (options.epochs // 5 or 1) == 0:
            print(f"epoch {epoch:4d}   loss {loss.item():.5f}")
    exact = solve(x, y)
    found = wf.concat([w.detach(), b.detach()[None]])
    print("found ", [round(value, 3) for value in found.tolist()])
    print("exact ", [round(value, 3) for value in exact.tolist()])
    return {"loss": loss.item(), "difference": wf.max(wf.abs(found - exact)).item()}


def descend(w: wf.Tensor, b: wf.Tensor, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    """One step down the slope of the mean squared error; w and b are changed in place."""
    loss = wf.mean((x @ w + b - y) ** 2)  # x [examples, features] @ w [features]
    loss.backward()
    with wf.no_grad():
        for parameter in (w, b):
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
    return loss


def solve(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    """The weights, then the bias, at which the loss has no slope: the normal equations."""
    rows = wf.concat([x, wf.ones((x.shape[0], 1))], axis=1)
    return wf.linalg.solve(rows.T @ rows, rows.T @ y)


def invent() -> tuple[wf.Tensor, wf.Tensor]:
    """Points near a plane."""
    x = wf.random.normal((200, 3))
    y = x @ wf.tensor([1.5, -2.0, 0.5]) + 0.25 + 0.1 * wf.random.normal((200,))
    return x, y


def read(path: str) -> tuple[wf.Tensor, wf.Tensor]:
    """The columns of a CSV file, each scaled to mean 0 and deviation 1; the last is y."""
    columns = wf.data.read_csv(path).values()
    table = np.stack([np.asarray(column, np.float32) for column in columns], axis=1)
    table = (table - table.mean(axis=0)) / table.std(axis=0)
    return wf.asarray(table[:, :-1]), wf.asarray(table[:, -1])


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="a CSV file of numbers with a header")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    options.epochs = min(options.epochs, 60) if options.quick else options.epochs
    return options


if __name__ == "__main__":
    main()
