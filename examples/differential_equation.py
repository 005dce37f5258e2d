"""A network that solves a differential equation: a swinging spring with friction.

The equation u'' + 2 d u' + w² u = 0 with u(0) = 1, u'(0) = 0 is itself the loss: the network u(t)
is differentiated twice by `wf.grad`, for each time by `wf.vmap`, and the loss is then
differentiated once more, by the network's weights. No solution is shown to it.
(Raissi et al., 2019.)

    python examples/differential_equation.py

It prints the loss now and then, and the solution beside the exact one.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import weft as wf

FRICTION, FREQUENCY = 0.4, 3.0
LAST = 3.0


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Solve, compare."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    net = wf.models.MLP([1, options.width, options.width, 1], activation="tanh")
    schedule = wf.optim.schedules.Cosine(1e-2, steps=options.steps)
    optimizer = wf.optim.Adam(net.parameters(), lr=schedule)
    times = wf.linspace(0.0, options.last, 48)
    step = train_step if options.eager else wf.jit(train_step)
    losses = []
    for number in range(1, options.steps + 1):
        losses.append(step(net, optimizer, times).item())
        if number == 1 or number % (options.steps // 5 or 1) == 0:
            print(f"step {number:5d}   loss {losses[-1]:.6f}", flush=True)
    with wf.no_grad():
        found = wf.vmap(lambda t: solution(net, t))(times)
    exact = exact_solution(times)
    for place in range(0, len(times), 8):
        shown = (times[place].item(), found[place].item(), exact[place].item())
        print("t = {:.2f}   u = {:7.4f}   exact {:7.4f}".format(*shown))
    error = wf.max(wf.abs(found - exact)).item()
    print(f"largest error {error:.4f}")
    return {"first loss": losses[0], "last loss": losses[-1], "error": error}


def solution(net: wf.nn.Module, t: wf.Tensor) -> wf.Tensor:
    """u(t) for one time: the start, u(0) = 1 and u'(0) = 0, is built in."""
    return 1 + t**2 * net(wf.reshape(t, (1, 1)))[0, 0]


def residual(net: wf.nn.Module, t: wf.Tensor) -> wf.Tensor:
    """How far u is from the equation at one time."""

    def u(t: wf.Tensor) -> wf.Tensor:
        return solution(net, t)

    speed = wf.grad(u)
    acceleration = wf.grad(speed)
    return acceleration(t) + 2 * FRICTION * speed(t) + FREQUENCY**2 * u(t)


def train_step(net: wf.nn.Module, optimizer: wf.optim.Optimizer, times: wf.Tensor) -> wf.Tensor:
    """The mean square of the residual at all times; backward, update."""
    loss = wf.mean(wf.vmap(lambda t: residual(net, t))(times) ** 2)
    optimizer.minimize(loss)
    return loss


def exact_solution(t: wf.Tensor) -> wf.Tensor:
    """The formula for weak friction."""
    rate = math.sqrt(FREQUENCY**2 - FRICTION**2)
    return wf.exp(-FRICTION * t) * (wf.cos(rate * t) + FRICTION / rate * wf.sin(rate * t))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--last", type=float, default=LAST, help="solve until this time")
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    if options.quick:
        options.steps, options.last = min(options.steps, 400), 1.0
    return options


if __name__ == "__main__":
    main()
