"""A page that reads a drawn digit, without a server: a network in WebAssembly inside of one file.

    python export.py digit.html

It trains a small network on the digits in the package, exports it for `wasm32`, and writes a page
that holds the module. Open it in any browser, and draw.
"""

from __future__ import annotations

import argparse
import base64
import tempfile
from pathlib import Path
from typing import Any

import weft as wf
from weft.data.sets import load_digits

PAGE = Path(__file__).with_name("page.html")


def train(epochs: int) -> Any:
    """A perceptron that reads digits of 8 x 8 pixels."""
    wf.random.seed(0)
    examples, unseen = load_digits()
    net = wf.models.MLP([64, 64, 10])
    trainer = wf.train.Trainer(
        net,
        wf.nn.functional.cross_entropy,
        wf.optim.Adam(net.parameters(), lr=3e-3),
        metrics=["accuracy"],
        progress=False,
        seed=0,
    )
    flat = [part.inputs.reshape(len(part.labels), 64) for part in (examples, unseen)]
    trainer.fit((flat[0], examples.labels), epochs, (flat[1], unseen.labels), batch_size=64)
    return net.eval()


def write_page(net: Any, path: Path) -> None:
    """Export a network, and write a page that holds it."""
    with tempfile.TemporaryDirectory() as place:
        shipped = wf.export(
            lambda image: wf.softmax(net(image), axis=-1)[0],
            [wf.spec("float32", (1, 64))],
            Path(place, "model"),
            target="wasm32",
        )
        module = base64.b64encode((shipped.folder / "model.wasm").read_bytes()).decode()
        script = (shipped.folder / "main.mjs").read_text()
    page = PAGE.read_text().replace("MODULE", module)
    path.write_text(page.replace("SCRIPT", script.replace("export async", "async")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    flags = parser.parse_args()
    write_page(train(flags.epochs), flags.page)
