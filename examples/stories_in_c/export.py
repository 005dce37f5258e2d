"""A language model as a C library: stories260K, a step at a time, with its cache as state.

    python export.py ../../../shared/models/stories260K model --target aarch64-linux
    aarch64-linux-gnu-gcc -static stories.c model/model.a -I model -o stories -lm
    qemu-aarch64-static ./stories ../../../shared/models/stories260K/tok512.bin 200

The folder holds stories260K.bin and tok512.bin, as llama2.c has them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import weft as wf
from weft import models


def next_token_step(net: Any, capacity: int) -> Callable[[wf.Tensor], wf.Tensor]:
    """A function from a token to the next one; what it has seen before is its state."""
    caches = net.new_cache(1, capacity)

    def step(token: wf.Tensor) -> wf.Tensor:
        logits, after = net(token.reshape(1, 1), caches)
        for old, new in zip(wf.tree.leaves(caches), wf.tree.leaves(after), strict=True):
            old.copy_(new)
        return logits[0, 0].argmax()

    return step


def export(folder: Path, output: Path, target: str, capacity: int = 256) -> Any:
    """Write the step of the model in a folder as a library."""
    net = models.load_llama2c(folder / "stories260K.bin").eval()
    return wf.export(next_token_step(net, capacity), [wf.tensor(1)], output, target=target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--target", default="host")
    flags = parser.parse_args()
    print(export(flags.folder, flags.output, flags.target))
