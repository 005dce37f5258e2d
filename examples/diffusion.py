"""A diffusion model: it learns to take noise away, and makes new examples out of pure noise.

Points on two interlocking half circles are drowned in noise step by step; a network learns to tell
the noise at each step. Going backwards from noise, step by step, gives new points on the half
circles. With `--on digits` the same is done with images and a U-Net. (Ho et al., 2020.)

    python examples/diffusion.py
    python examples/diffusion.py --on digits --steps 1500

It prints the loss, then new examples, and how far they are from real ones, beside noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import weft as wf


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, then draw."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    real = half_circles(2000) if options.on == "points" else digits()
    if options.on == "points":
        net: wf.nn.Module = wf.models.PointDenoiser(width=2, hidden=options.width)
    else:
        net = wf.models.ImageDenoiser(1, (options.width // 4, options.width // 2), 32)
    process = wf.models.Diffusion(net, steps=options.times)
    schedule = wf.optim.schedules.Cosine(3e-3, steps=options.steps)
    optimizer = wf.optim.Adam(process.parameters(), lr=schedule)
    step = train_step if options.eager else wf.jit(train_step)
    generator = np.random.default_rng(0)
    losses = []
    for number in range(1, options.steps + 1):
        rows = generator.integers(0, len(real), options.batch)
        losses.append(step(process, optimizer, real[wf.asarray(rows)]).item())
        if number % (options.steps // 5 or 1) == 0:
            recent = np.mean(losses[-50:])
            print(f"step {number:5d}   loss {recent:.4f}", flush=True)
    drawn = process.sample((200 if options.on == "points" else 6, *real.shape[1:]))
    show_points(drawn) if options.on == "points" else show_images(drawn)
    distance = distance_to(real, drawn)
    blind = distance_to(real, wf.random.normal(drawn.shape))
    print(f"mean distance to the nearest real example: {distance:.3f}; of noise: {blind:.3f}")
    return {
        "first loss": float(np.mean(losses[:20])), "last loss": float(np.mean(losses[-20:])),
        "distance": distance, "blind": blind,
    }  # fmt: skip


def train_step(
    process: wf.models.Diffusion, optimizer: wf.optim.Optimizer, batch: wf.Tensor
) -> wf.Tensor:
    """Noise at times drawn by chance, told by the network; backward, update."""
    loss = process.loss(batch)
    optimizer.minimize(loss)
    return loss


def half_circles(count: int) -> wf.Tensor:
    """Points [count, 2] on two half circles, with mean about 0."""
    angle = wf.random.uniform((count,)) * wf.pi
    is_upper = wf.arange(count) % 2 == 0
    x = wf.where(is_upper, wf.cos(angle), 1 - wf.cos(angle)) - 0.5
    y = wf.where(is_upper, wf.sin(angle), 0.5 - wf.sin(angle)) - 0.25
    return wf.stack([x, y], axis=1) + 0.03 * wf.random.normal((count, 2))


def digits() -> wf.Tensor:
    """The package's images [n, 1, 8, 8], ink from -1 to 1."""
    return wf.data.sets.load_digits().train.inputs[:, None] * 2 - 1


def distance_to(real: wf.Tensor, drawn: wf.Tensor) -> float:
    """The mean over drawn examples of the distance to the nearest real one."""
    flat, known = (wf.reshape(x, (len(x), -1)) for x in (drawn, real))
    squares = wf.sum(flat**2, axis=1)[:, None] + wf.sum(known**2, axis=1) - 2 * flat @ known.T
    return wf.mean(wf.sqrt(wf.maximum(wf.min(squares, axis=1), 0.0))).item()


def show_points(points: wf.Tensor, height: int = 16, width: int = 48) -> None:
    """Points as crosses."""
    lines = [[" "] * width for _ in range(height)]
    for x, y in points.tolist():
        row, column = int((1 - y) / 2 * height), int((x + 1.7) / 3.4 * width)
        if 0 <= row < height and 0 <= column < width:
            lines[row][column] = "x"
    print("\n".join("".join(line) for line in lines))


def show_images(images: wf.Tensor) -> None:
    """Images side by side."""
    shades = " .:-=+*#%@"
    for row in range(8):
        lines = [image[0, row].tolist() for image in images]
        inks = [[min(9, max(0, int(5 * (ink + 1)))) for ink in line] for line in lines]
        print("   ".join("".join(2 * shades[ink] for ink in line) for line in inks))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--on", choices=["points", "digits"], default="points")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--times", type=int, default=100, help="steps from example to noise")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    if options.quick:
        options.steps, options.times, options.width = min(options.steps, 300), 40, 32
    return options


if __name__ == "__main__":
    main()
