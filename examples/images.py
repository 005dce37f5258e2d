"""Deep networks for images: the whole ResNet-18 or VGG-19, trained on 32 x 32 pictures.

The package's digits, enlarged to 32 x 32 in three channels, stand in for photographs; with `--data`
it reads the binary files of CIFAR-10. The step is written out: scores, loss, `minimize`, compiled
into one program of forward, backward and update. The images are mirrored by chance if they are
photographs, and the learning rate rises and falls once (one cycle).

    python examples/images.py
    python examples/images.py --model vgg19
    python examples/images.py --data folder/of/cifar10 --epochs 10 --count 50000

It prints the loss and the speed of each epoch, and the accuracy on unseen images.
"""

from __future__ import annotations

import argparse
import gzip
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import weft as wf
from weft.models.resnet import BasicBlock
from weft.models.vgg import VGG19


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Load, train, test."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    train, test = read(options.data) if options.data else enlarged_digits()
    images, labels = (part[: options.count] for part in train)
    net = build(options.model, options.width)
    print(f"{options.model}: {sum(p.size for p in net.parameters()):,} parameters")
    loader = wf.data.DataLoader(
        wf.data.ArrayDataset(images, labels), options.batch, shuffle=True, drop_last=True
    )
    schedule = wf.optim.schedules.OneCycle(options.lr, steps=options.epochs * len(loader))
    optimizer = wf.optim.SGD(net.parameters(), schedule, momentum=0.9, weight_decay=5e-4)
    step = train_step if options.eager else wf.jit(train_step)
    losses = []
    for epoch in range(1, options.epochs + 1):
        start = time.perf_counter()
        parts = [step(net, optimizer, *batch, bool(options.data)).item() for batch in loader]
        losses.append(sum(parts) / len(parts))
        speed = len(parts) * options.batch / (time.perf_counter() - start)
        print(f"epoch {epoch:2d}   loss {losses[-1]:.4f}   {speed:.0f} images/s", flush=True)
    right = accuracy(net, *(part[: options.count] for part in test))
    print(f"{100 * right:.1f} % of the unseen images were told right")
    return {"first loss": losses[0], "last loss": losses[-1], "accuracy": right}


def build(name: str, width: int) -> wf.nn.Module:
    """A network for 32 x 32 images of ten kinds; width 64 is the published one."""
    widths = tuple(width * factor for factor in (1, 2, 4, 8, 8))
    if name == "resnet18":
        return wf.models.ResNet(BasicBlock, (2, 2, 2, 2), 10, small=True, widths=widths[:4])
    return wf.models.VGG(
        VGG19, 10, size=32, hidden=8 * width, dropout=0.1, batch_norm=True, widths=widths
    )


def train_step(
    net: wf.nn.Module, optimizer: wf.optim.Optimizer, x: wf.Tensor, y: wf.Tensor, mirror: bool
) -> wf.Tensor:
    """Forward, backward and update for x [batch, 3, 32, 32], y [batch]."""
    if mirror:
        is_mirrored = wf.random.bernoulli(0.5, (x.shape[0], 1, 1, 1))
        x = wf.where(is_mirrored != 0, wf.flip(x, axis=3), x)
    loss = wf.nn.functional.cross_entropy(net(x), y, label_smoothing=0.05)
    optimizer.minimize(loss)
    return loss


def accuracy(net: wf.nn.Module, images: wf.Tensor, labels: wf.Tensor, batch: int = 64) -> float:
    """The share of images whose kind gets the highest score."""
    net.eval()
    scores = wf.jit(lambda net, x: net(x))
    with wf.no_grad():
        starts = range(0, len(images) - batch + 1, batch) or [0]
        right = [
            wf.argmax(scores(net, images[i : i + batch]), axis=1) == labels[i : i + batch]
            for i in starts
        ]
    net.train()
    return wf.mean(wf.concat(right).astype(wf.float32)).item()


def enlarged_digits() -> list[tuple[wf.Tensor, wf.Tensor]]:
    """The digits as [n, 3, 32, 32], with mean about 0."""
    parts = []
    for inputs, labels in wf.data.sets.load_digits():
        large = wf.interpolate(inputs[:, None] - 0.5, (32, 32), mode="bilinear")
        parts.append((wf.tile(large, (1, 3, 1, 1)), labels))
    return parts


def read(folder: str) -> list[tuple[wf.Tensor, wf.Tensor]]:
    """The files *.bin of CIFAR-10, gzipped or not: a label, then three planes of 32 x 32."""
    paths = [path for path in sorted(Path(folder).iterdir()) if ".bin" in path.name]
    parts = []
    for is_test in (False, True):
        chosen = [path for path in paths if path.name.startswith("test") == is_test]
        if not chosen:
            raise SystemExit(f"{folder} has no {'test' if is_test else 'training'} *.bin file")
        raw = b"".join(gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes()
                       for p in chosen)  # fmt: skip
        table = np.frombuffer(raw, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
        pixels = table[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / np.float32(128) - 1
        parts.append((wf.asarray(pixels), wf.asarray(table[:, 0].astype(np.int64))))
    return parts


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=["resnet18", "vgg19"], default="resnet18")
    parser.add_argument("--data", help="a folder with the binary files of CIFAR-10")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--count", type=int, default=320, help="how many images to take")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="eight images, narrow: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    if options.quick:
        options.count, options.batch, options.width = 8, 8, min(options.width, 8)
        options.epochs = min(options.epochs * 4, 12)
    return options


if __name__ == "__main__":
    main()
