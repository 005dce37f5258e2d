"""Exported programs against the compiled ones here: a token of a language model, a digit by a CNN.

    python -m benchmarks.exported --target x86-64-v4-linux [--stories FOLDER]

The object file is loaded into this process by LLVM, so that no linker is needed, and called through
its C interface. Both are run by one thread in turns; the figure is the median of the ratios of
neighbouring runs. Without the folder of stories260K its shape is filled with random weights.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

import weft as wf
from weft import models, nn

Measured = tuple[Callable[..., Any], list[wf.Tensor], Callable[[], None]]
"""A function, its arguments, and what takes its state back to the beginning."""
ROUNDS, CAPACITY = 40, 256
SHAPE = models.LlamaConfig(
    width=64, hidden=172, layers=5, heads=8, kv_heads=4, vocabulary=512, context=512, tied=True
)
"""Of stories260K."""


class LoadedProgram:
    """An exported program in this process."""

    def __init__(self, shipped: Any) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine()
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        path = shipped.folder / f"{shipped.interface.name}.o"
        self.engine.add_object_file(llvm.ObjectFileRef.from_path(str(path)))
        self.engine.finalize_object()
        create = ctypes.CFUNCTYPE(ctypes.c_void_p)(self._address("model_create"))
        self.instance = create()
        program = shipped.interface.program
        ports = [*program.inputs, *program.outputs]
        self.arrays = [
            np.zeros(port.shape_at(port.largest), port.type.dtype.numpy) for port in ports
        ]
        names = program.sizes.names
        kinds = [ctypes.c_void_p, *[ctypes.c_int64] * len(names), *[ctypes.c_void_p] * len(ports)]
        run = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(self._address("model_run"))
        places = [array.ctypes.data for array in self.arrays]
        reset = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._address("model_reset"))
        self.reset: Callable[[], None] = lambda: reset(self.instance)
        destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._address("model_destroy"))
        self.destroy: Callable[[], None] = lambda: destroy(self.instance)
        self.run: Callable[..., int] = lambda *sizes: int(run(self.instance, *sizes, *places))
        self.call: Callable[..., int] = lambda *given: int(run(self.instance, *given))

    def _address(self, name: str) -> int:
        return int(self.engine.get_function_address(name))


def stories_step(
    folder: Path | None,
) -> Measured:
    """A token of stories260K, with its cache as state."""
    if folder is not None and folder.exists():
        net = models.load_llama2c(folder / "stories260K.bin").eval()
    else:
        wf.random.seed(0)
        net = models.Llama(SHAPE).eval()
    caches = net.new_cache(1, CAPACITY)

    def step(token: wf.Tensor) -> wf.Tensor:
        logits, after = net(token.reshape(1, 1), caches)
        for old, new in zip(wf.tree.leaves(caches), wf.tree.leaves(after), strict=True):
            old.copy_(new)
        return logits[0, 0].argmax()

    def forget() -> None:
        for held in wf.tree.leaves(caches):
            held.copy_(wf.zeros_like(held))

    return step, [wf.tensor(1)], forget


def digit_reader() -> Measured:
    """A picture of 28 x 28 by two convolutions and a linear layer."""
    wf.random.seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 49, 10),
    ).eval()  # fmt: skip
    return net, [wf.random.normal((1, 1, 28, 28))], lambda: None


def seconds_of(call: Callable[[], Any], times: int) -> float:
    """How long a call takes, on average."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def compare(
    name: str,
    program: Measured,
    target: str,
    times: int,
) -> None:
    """Print how long the compiled and the exported program take."""
    f, arguments, forget = program
    folder = Path(tempfile.mkdtemp()) / "model"
    shipped = wf.export(f, arguments, folder, target=target)
    loaded = LoadedProgram(shipped)
    for array, argument in zip(loaded.arrays, arguments, strict=False):
        array[...] = argument.numpy()
    status = loaded.run()
    assert status == 0, f"status {status}"
    compiled = wf.jit(f)

    def own() -> Any:
        return compiled(*arguments)

    own(), own()
    pairs: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        forget()
        loaded.reset()
        pairs.append((seconds_of(own, times), seconds_of(loaded.run, times)))
    here, there = (statistics.median(each) * 1e6 for each in zip(*pairs, strict=True))
    ratio = statistics.median(theirs / ours for ours, theirs in pairs)
    size = (folder / "model.o").stat().st_size
    print(
        f"{name:8} {target}: compiled {here:7.1f} us, exported {there:7.1f} us, "
        f"exported/compiled {ratio:.2f}, object {size} bytes, {shipped.memory} an instance"
    )


def main() -> None:
    """Measure both programs for each target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", nargs="+", default=["host"])
    parser.add_argument("--stories", type=Path)
    flags = parser.parse_args()
    wf.set_num_threads(1)
    for target in flags.target:
        compare("stories", stories_step(flags.stories), target, 50)
        compare("digits", digit_reader(), target, 200)


if __name__ == "__main__":
    main()
