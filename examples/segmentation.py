"""A small U-Net that finds digits in noise: a class for each pixel of an image.

Digits from the package are laid at a random place of a 32 x 32 canvas of noise; the network tells
for each pixel whether it is ink. New images are made for every step, so it cannot learn them by
heart. Quality is the overlap: pixels that both call ink, over pixels that either does.

    python examples/segmentation.py

It prints the loss now and then, the overlap on unseen digits, and one image with what was found.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import weft as wf

SIDE = 32


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, then look at one image."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    train, test = wf.data.sets.load_digits()
    generator = np.random.default_rng(0)
    net = wf.models.UNet(channels=1, classes=2, widths=(8, 16) if options.quick else (16, 32, 64))
    optimizer = wf.optim.Adam(net.parameters(), lr=5e-3)
    step = train_step if options.eager else wf.jit(train_step)
    first = loss = 0.0
    for number in range(1, options.steps + 1):
        images, ink = canvases(train.inputs.numpy(), options.batch, generator)
        loss = step(net, optimizer, images, ink).item()
        first = first or loss
        if number == 1 or number % (options.steps // 5 or 1) == 0:
            print(f"step {number:4d}   loss {loss:.4f}", flush=True)
    images, ink = canvases(test.inputs.numpy(), options.batch, generator)
    with wf.no_grad():
        found = wf.argmax(net(images), axis=1)
    both, either = wf.sum(found * ink).item(), wf.sum(wf.maximum(found, ink)).item()
    show(images[0, 0], found[0])
    print(f"overlap on unseen digits: {both / max(either, 1):.3f}")
    return {"first loss": first, "last loss": loss, "overlap": both / max(either, 1)}


def train_step(
    net: wf.nn.Module, optimizer: wf.optim.Optimizer, images: wf.Tensor, ink: wf.Tensor
) -> wf.Tensor:
    """Forward, backward and update; ink counts as much as the ten times larger background."""
    weight = wf.tensor([0.2, 1.0])
    loss = wf.nn.functional.cross_entropy(net(images), ink, weight)
    optimizer.minimize(loss)
    return loss


def canvases(
    digits: npt.NDArray[np.float32], count: int, generator: np.random.Generator
) -> tuple[wf.Tensor, wf.Tensor]:
    """Noise with an enlarged digit: images [count, 1, 32, 32], ink [count, 32, 32]."""
    images = np.zeros((count, SIDE, SIDE), np.float32)
    for image in images:
        digit = digits[generator.integers(len(digits))].repeat(2, axis=0).repeat(2, axis=1)
        top, left = generator.integers(0, SIDE - 16, size=2)
        image[top : top + 16, left : left + 16] = digit
    ink = (images > 0.5).astype(np.int64)
    noisy = images + generator.normal(0, 0.3, images.shape).astype(np.float32)
    return wf.asarray(noisy[:, None]), wf.asarray(ink)


def show(image: wf.Tensor, found: wf.Tensor) -> None:
    """What the network saw, and what it called ink."""
    shades = " .:-=+*#%@"
    for seen, marks in zip(image[::2].tolist(), found[::2].tolist(), strict=True):
        left = "".join(shades[min(9, max(0, int(9 * value)))] for value in seen)
        print(left, "|", "".join("#" if mark else " " for mark in marks))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    options.steps = min(options.steps, 40) if options.quick else options.steps
    options.batch = min(options.batch, 8) if options.quick else options.batch
    return options


if __name__ == "__main__":
    main()
