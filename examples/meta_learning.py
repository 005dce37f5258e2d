"""MAML: weights from which a few examples suffice. A gradient through gradients.

Each task is a sine wave of its own height and phase, of which ten points are shown. The network
takes one step of gradient descent on them; the loss on other points of that wave is differentiated
through that step, by `wf.grad` inside of `backward`, for a batch of tasks by `wf.vmap`. What is
learned is a good place to begin. (Finn et al., 2017.)

    python examples/meta_learning.py

It prints the loss after one step, and at the end, on new waves, the loss after each of five steps,
beside a network that was trained on all waves at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import weft as wf

Weights = dict[str, wf.Tensor]
INNER_RATE = 0.02


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Learn to learn, and compare."""
    options = parse(arguments)
    wf.default_device(options.device)
    results = {}
    for name, inner in (("maml", 1), ("all waves at once", 0)):
        wf.random.seed(0)
        net = wf.models.MLP([1, options.width, options.width, 1])
        optimizer = wf.optim.Adam(net.parameters(), lr=3e-3)
        step = train_step if options.eager else wf.jit(train_step, static_argnames=("inner",))
        for number in range(1, options.steps + 1):
            loss = step(net, optimizer, *waves(options.tasks), inner=inner).item()
            if number % (options.steps // 4 or 1) == 0:
                print(f"{name}   step {number:5d}   loss {loss:.3f}", flush=True)
        wf.random.seed(1)
        results[name] = after_steps(net, *waves(100), steps=5)
    print("loss on new waves after 0, 1, ... 5 steps on ten points:")
    for name, losses in results.items():
        print(f"  {name:18}", "  ".join(f"{loss:.3f}" for loss in losses))
    return {
        "maml after 1": results["maml"][1], "maml after 0": results["maml"][0],
        "all after 1": results["all waves at once"][1],
    }  # fmt: skip


def waves(tasks: int) -> tuple[wf.Tensor, wf.Tensor]:
    """Points of waves, ten of each to learn from and ten to be judged by: x, y [tasks, 20, 1]."""
    height = wf.random.uniform((tasks, 1, 1)) * 4.9 + 0.1
    phase = wf.random.uniform((tasks, 1, 1)) * wf.pi
    x = wf.random.uniform((tasks, 20, 1)) * 10 - 5
    return x, height * wf.sin(x + phase)


def fit_loss(weights: Weights, net: wf.nn.Module, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    """The squared error of the network with these weights; x, y [points, 1]."""
    return wf.mean((wf.functional_call(net, weights, x) - y) ** 2)


def adapted(weights: Weights, net: wf.nn.Module, x: wf.Tensor, y: wf.Tensor) -> Weights:
    """The weights after one step of gradient descent on some points."""
    slopes = wf.grad(fit_loss)(weights, net, x, y)
    return {name: w - INNER_RATE * slopes[name] for name, w in weights.items()}


def task_loss(
    weights: Weights, net: wf.nn.Module, x: wf.Tensor, y: wf.Tensor, inner: int
) -> wf.Tensor:
    """The loss on ten points of a wave after so many steps on the other ten."""
    for _ in range(inner):
        weights = adapted(weights, net, x[:10], y[:10])
    return fit_loss(weights, net, x[10:], y[10:])


def train_step(
    net: wf.nn.Module, optimizer: wf.optim.Optimizer, x: wf.Tensor, y: wf.Tensor, inner: int
) -> wf.Tensor:
    """The mean over all tasks; backward goes through their inner steps."""
    weights = dict(net.named_parameters())
    losses = wf.vmap(lambda a, b: task_loss(weights, net, a, b, inner))(x, y)
    loss = wf.mean(losses)
    optimizer.minimize(loss)
    return loss


def after_steps(net: wf.nn.Module, x: wf.Tensor, y: wf.Tensor, steps: int) -> list[float]:
    """The mean loss on new waves after 0, 1, ... steps."""
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def losses(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        return wf.stack([task_loss(weights, net, x, y, inner) for inner in range(steps + 1)])

    return wf.mean(wf.vmap(losses)(x, y), axis=0).tolist()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--tasks", type=int, default=25, help="waves in a step")
    parser.add_argument("--width", type=int, default=40)
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    options.steps = min(options.steps, 400) if options.quick else options.steps
    return options


if __name__ == "__main__":
    main()
