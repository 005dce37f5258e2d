"""A gradient for each example, by `vmap(grad(...))`, and training that keeps examples private.

`wf.grad` gives the gradient of the loss of one example; `wf.vmap` does it for a batch at once,
without a loop. With these gradients, no example may pull further than a limit, and noise covers who
was there: private training (DP-SGD, Abadi et al., 2016). The network is a pure function of its
weights here, called by `wf.functional_call`.

    python examples/per_sample_gradients.py
    python examples/per_sample_gradients.py --noise 0 --limit 10

It prints that the batched gradients are those of a loop, then the accuracy on unseen digits.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import weft as wf

Weights = dict[str, wf.Tensor]


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Check against a loop, then train."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    train, test = wf.data.sets.load_digits()
    net = wf.models.MLP([64, options.width, 10])
    difference = compare_with_loop(net, train.inputs[:16], train.labels[:16])
    print(f"largest difference to a loop over 16 examples: {difference:.1e}")
    optimizer = wf.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    step = train_step if options.eager else wf.jit(train_step)
    loader = wf.data.DataLoader(
        wf.data.ArrayDataset(train), options.batch, shuffle=True, drop_last=True
    )
    limit, noise = wf.tensor(options.limit), wf.tensor(options.noise)
    clipped, start = 0.0, time.perf_counter()
    for epoch in range(1, options.epochs + 1):
        shares = [step(net, optimizer, *batch, limit, noise).item() for batch in loader]
        clipped = sum(shares) / len(shares)
        if epoch % (options.epochs // 4 or 1) == 0:
            print(f"epoch {epoch:3d}   {100 * clipped:.0f} % of the gradients were shortened")
    speed = options.epochs * len(loader) * options.batch / (time.perf_counter() - start)
    with wf.no_grad():
        right = wf.argmax(net(test.inputs), axis=1) == test.labels
    accuracy = wf.mean(right.astype(wf.float32)).item()
    print(f"{100 * accuracy:.1f} % of unseen digits read right; {speed:.0f} gradients/s")
    return {"difference": difference, "accuracy": accuracy, "clipped": clipped}


def loss_of_one(weights: Weights, net: wf.nn.Module, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    """The loss of one image x [8, 8] with label y, as a function of the weights."""
    scores = wf.functional_call(net, weights, x[None])
    return wf.nn.functional.cross_entropy(scores, y[None])


def gradients(net: wf.nn.Module, x: wf.Tensor, y: wf.Tensor) -> Weights:
    """For each weight a gradient of each example: [batch, *shape of the weight]."""
    weights = {name: p.detach() for name, p in net.named_parameters()}
    return wf.vmap(wf.grad(loss_of_one), in_axes=(None, None, 0, 0))(weights, net, x, y)


def train_step(
    net: wf.nn.Module,
    optimizer: wf.optim.Optimizer,
    x: wf.Tensor,
    y: wf.Tensor,
    limit: wf.Tensor,
    noise: wf.Tensor,
) -> wf.Tensor:
    """Shorten each example's gradient to the limit, add noise to their sum, update."""
    found = gradients(net, x, y)
    squares = [wf.sum(wf.reshape(g, (x.shape[0], -1)) ** 2, axis=1) for g in found.values()]
    norms = wf.sqrt(sum(squares[1:], squares[0]))  # [batch]
    factors = wf.minimum(1.0, limit / wf.maximum(norms, 1e-12))
    for name, parameter in net.named_parameters():
        total = wf.tensordot(factors, found[name], axes=1)  # the sum of the shortened gradients
        drawn = noise * limit * wf.random.normal(parameter.shape)
        parameter.grad = (total + drawn) / x.shape[0]
    optimizer.step()
    optimizer.zero_grad()
    return wf.mean((norms > limit).astype(wf.float32))


def compare_with_loop(net: wf.nn.Module, x: wf.Tensor, y: wf.Tensor) -> float:
    """The largest difference between batched gradients and those taken one after the other."""
    batched = gradients(net, x, y)
    weights = {name: p.detach() for name, p in net.named_parameters()}
    alone: list[Any] = [
        wf.grad(loss_of_one)(weights, net, x[i], y[i]) for i in range(int(x.shape[0]))
    ]
    pairs = [(batched[name], wf.stack([g[name] for g in alone])) for name in batched]
    return max(wf.max(wf.abs(a - b)).item() for a, b in pairs)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument(
        "--limit", type=float, default=1.0, help="the longest gradient of one example"
    )
    parser.add_argument("--noise", type=float, default=1.0, help="its deviation, in limits")
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    options.epochs = min(options.epochs, 5) if options.quick else options.epochs
    return options


if __name__ == "__main__":
    main()
