"""A variational autoencoder: digits to eight numbers and back, and new digits out of nothing.

The encoder tells a normal distribution for each image, the decoder paints an image from a draw. The
loss is what is lost on the way, plus how far the distributions are from the standard normal one; so
a draw from that one can be painted, too. (Kingma and Welling, 2013.)

    python examples/autoencoder.py
    python examples/autoencoder.py --data train-images-idx3-ubyte.gz --hidden 400 --latent 16

It prints the loss of each epoch, then images beside what came back, then invented ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import weft as wf


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Load, train, paint."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    train, test = read(options.data) if options.data else digits()
    net = wf.models.VAE(int(train[0].size), options.hidden, options.latent)
    optimizer = wf.optim.Adam(net.parameters(), lr=3e-3)
    loader = wf.data.DataLoader(
        wf.data.ArrayDataset(train), options.batch, shuffle=True, drop_last=True
    )
    step = train_step if options.eager else wf.jit(train_step)
    losses = []
    for epoch in range(1, options.epochs + 1):
        parts = [step(net, optimizer, batch).item() for batch in loader]
        losses.append(sum(parts) / len(parts))
        if epoch % (options.epochs // 5 or 1) == 0:
            print(f"epoch {epoch:3d}   loss {losses[-1]:.3f}", flush=True)
    net.eval()
    with wf.no_grad():
        back = wf.sigmoid(net(test).logits)
    flat = wf.reshape(test, back.shape)
    error = wf.mean((back - flat) ** 2).item()
    blind = wf.mean((wf.mean(wf.reshape(train, (len(train), -1)), axis=0) - flat) ** 2).item()
    print("given, and what came back:")
    show([flat[0], back[0], flat[1], back[1], flat[2], back[2]])
    print("invented:")
    show(list(net.sample(6)))
    print(f"squared error {error:.4f} per pixel; always the mean image: {blind:.4f}")
    return {"first loss": losses[0], "last loss": losses[-1], "error": error, "blind": blind}


def train_step(net: wf.models.VAE, optimizer: wf.optim.Optimizer, images: wf.Tensor) -> wf.Tensor:
    """Forward with a draw by chance, backward, update."""
    loss = net.loss(images)
    optimizer.minimize(loss)
    return loss


def show(images: list[wf.Tensor]) -> None:
    """Images side by side, darker characters for more ink."""
    shades = " .:-=+*#%@"
    side = int(images[0].size ** 0.5)
    for row in range(side):
        lines = [image[row * side : (row + 1) * side].tolist() for image in images]
        print("   ".join("".join(2 * shades[int(9.99 * ink)] for ink in line) for line in lines))


def digits() -> tuple[wf.Tensor, wf.Tensor]:
    """The images of the package."""
    train, test = wf.data.sets.load_digits()
    return train.inputs, test.inputs


def read(path: str) -> tuple[wf.Tensor, wf.Tensor]:
    """The images of an IDX file; every tenth is for testing."""
    images = wf.data.read_idx(path).astype(np.float32) / np.float32(255)
    is_test = np.arange(len(images)) % 10 == 9
    return wf.asarray(images[~is_test]), wf.asarray(images[is_test])


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="an IDX file of images, such as MNIST's")
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--latent", type=int, default=8)
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    options.epochs = min(options.epochs, 12) if options.quick else options.epochs
    return options


if __name__ == "__main__":
    main()
