"""What a budget of memory costs: the same step in less memory, and a deeper chain in the same.

    python benchmarks/memory.py

For a training step of a GPT the table has the peak that is predicted and the processor's time for
budgets below what the step needs. For chains of layers it has the time of a layer in a chain of ten
times the depth whose arena is that of the short one, and what the policies of `wf.checkpoint` save.
Times are those of the processor, the least of several runs that take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from time import process_time
from typing import Any

import weft as wf

RUNS = 5
WIDTH, ROWS, HIDDEN = 256, 512, 2048
Layer = Callable[[wf.Tensor, Sequence[wf.Tensor]], wf.Tensor]
Step = Any
"""A compiled step, bound to its arguments by `Run`."""


class Run:
    """A compiled function with the arguments of a call."""

    def __init__(self, step: Step, *args: Any) -> None:
        self.step, self.args = step, args

    def __call__(self) -> None:
        """Run it."""
        self.step(*self.args)

    @property
    def memory(self) -> Any:
        """What the call will allocate."""
        return self.step.memory(*self.args)


def seconds(*runs: Run) -> list[float]:
    """The least processor time of each, run in turns."""
    for run in runs:
        run()
    best = [float("inf")] * len(runs)
    for _ in range(RUNS):
        for place, run in enumerate(runs):
            start = process_time()
            run()
            best[place] = min(best[place], process_time() - start)
    return best


# --- a GPT in less memory ------------------------------------------------------------------------


def gpt(layers: int, memory: int | None = None) -> Run:
    """A training step of a GPT of width 256 on 8 texts of 256 tokens."""
    wf.random.seed(0)
    config = wf.models.GPTConfig(vocabulary=256, context=256, layers=layers, width=WIDTH, heads=8)
    net = wf.models.GPT(config)
    optimizer = wf.optim.AdamW(net.parameters(), 1e-3)

    def step(tokens: wf.Tensor, targets: wf.Tensor) -> wf.Tensor:
        logits = net(tokens).reshape(-1, 256)
        loss = wf.nn.functional.cross_entropy(logits, targets.reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    tokens = wf.random.randint(0, 256, (8, 256))
    return Run(wf.jit(step, memory=memory), tokens, tokens)


def less_memory(layers: int, parts: Sequence[float]) -> None:
    """Print what budgets of parts of the peak cost."""
    whole = gpt(layers)
    needed = whole.memory.peak
    print(f"\nGPT, {layers} layers, width {WIDTH}, 8 x 256 tokens, AdamW: {needed / 1e6:.1f} MB")
    print("| budget | peak, MB | computed again | choosing, s | time |\n|---|---|---|---|---|")
    for part in parts:
        try:
            run, start = gpt(layers, int(part * needed)), process_time()
            report = run.memory
        except MemoryError as error:
            print(f"| {part:.0%} | {str(error).splitlines()[0]} | | | |")
            continue
        chosen = process_time() - start
        free, bound = seconds(whole, run)
        cells = [f"{part:.0%}", f"{report.peak / 1e6:.1f}", f"{len(report.recomputed)}"]
        print(f"| {' | '.join(cells)} | {chosen:.1f} | {bound / free:.2f} |", flush=True)


# --- ten times the depth in the same memory ------------------------------------------------------


def feed_forward(x: wf.Tensor, weights: Sequence[wf.Tensor]) -> wf.Tensor:
    """A layer norm, a hidden layer, and the sum with what came in."""
    into, out = weights
    return x + wf.gelu(wf.nn.functional.layer_norm(x, WIDTH) @ into) @ out


def gated(x: wf.Tensor, weights: Sequence[wf.Tensor]) -> wf.Tensor:
    """The same with a gate."""
    into, gate, out = weights
    inner = wf.nn.functional.layer_norm(x, WIDTH)
    return x + (wf.gelu(inner @ into) * (inner @ gate)) @ out


def transformer(x: wf.Tensor, weights: Sequence[wf.Tensor]) -> wf.Tensor:
    """A block of a transformer: causal attention of 8 heads over 256 tokens, and a hidden layer."""
    shared, mixed, into, out = weights
    inner = wf.nn.functional.layer_norm(x, WIDTH) @ shared
    heads = wf.permute_dims(inner.reshape(-1, 256, 3, 8, WIDTH // 8), (2, 0, 3, 1, 4))
    seen = wf.scaled_dot_product_attention(heads[0], heads[1], heads[2], causal=True)
    x = x + wf.permute_dims(seen, (0, 2, 1, 3)).reshape(-1, WIDTH) @ mixed
    return feed_forward(x, (into, out))


CHAINS: dict[str, tuple[Layer, list[tuple[int, int]]]] = {
    "layer norm, hidden layer": (feed_forward, [(WIDTH, HIDDEN), (HIDDEN, WIDTH)]),
    "layer norm, gated hidden layer": (
        gated, [(WIDTH, HIDDEN // 2), (WIDTH, HIDDEN // 2), (HIDDEN // 2, WIDTH)]
    ),
    "transformer": (
        transformer,
        [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)],
    ),
}  # fmt: skip


def _applied(layer: Layer, weights: Sequence[wf.Tensor], x: wf.Tensor) -> wf.Tensor:
    return layer(x, weights)


def chain(name: str, depth: int, memory: int | None = None, policy: Any = "plain") -> Run:
    """A step of gradient descent of a chain of layers, checkpointed by hand if with a policy."""
    layer, shapes = CHAINS[name]
    wf.random.seed(0)
    weights = [[wf.random.normal(shape) * 0.05 for shape in shapes] for _ in range(depth)]

    def loss(weights: list[list[wf.Tensor]], x: wf.Tensor) -> wf.Tensor:
        layers: list[Callable[..., Any]] = [partial(_applied, layer, each) for each in weights]
        if policy != "plain":
            layers = [wf.checkpoint(layers, policy=policy)]
        for each in layers:
            x = each(x)
        return (x * x).mean()

    def step(weights: list[list[wf.Tensor]], x: wf.Tensor) -> Any:
        value, slopes = wf.value_and_grad(loss)(weights, x)
        pairs = [zip(w, d, strict=True) for w, d in zip(weights, slopes, strict=True)]
        return value, [[w - 0.01 * d for w, d in layer] for layer in pairs]

    return Run(wf.jit(step, memory=memory), weights, wf.random.normal((ROWS, WIDTH)))


def deeper(name: str, depth: int, times: int = 10) -> None:
    """Print what a layer costs in a chain that many times as deep, in the same arena."""
    short, free = chain(name, depth), chain(name, depth * times).memory
    arena = short.memory.arena
    long = chain(name, depth * times, free.peak - free.arena + arena)
    report = long.memory
    one, many = seconds(short, long)
    cells = [name, f"{depth}, {depth * times}", f"{arena / 1e6:.1f}", f"{free.arena / 1e6:.1f}"]
    cells += [f"{report.arena / 1e6:.1f}", f"{one / depth * 1e3:.2f}"]
    cells += [f"{many / depth / times * 1e3:.2f}", f"{many / times / one:.2f}"]
    print(f"| {' | '.join(cells)} |", flush=True)


def by_hand(name: str, depth: int) -> None:
    """Print what the policies of `checkpoint` save, and what a layer then costs."""
    plain = chain(name, depth)
    for policy in ("sqrt", "nothing", "products"):
        kept = chain(name, depth, policy=policy)
        one, other = seconds(plain, kept)
        cells = [name, f"{depth}", policy, f"{plain.memory.arena / 1e6:.1f}"]
        cells += [f"{kept.memory.arena / 1e6:.1f}", f"{other / one:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4, help="of the GPT")
    parser.add_argument("--depth", type=int, default=8, help="of the short chains")
    options = parser.parse_args()
    print("| chain | layers | arena, MB | long | with a budget | ms a layer | then | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name in CHAINS:
        deeper(name, options.depth)
    print("\n| chain | layers | policy | arena, MB | checkpointed | ratio |")
    print("|---|---|---|---|---|---|")
    for name in CHAINS:
        by_hand(name, 4 * options.depth)
    less_memory(options.layers, (0.8, 0.6, 0.5))


if __name__ == "__main__":
    main()
