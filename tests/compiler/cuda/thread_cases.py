"""Threads beside captures, and memory that copies read: on a card, real or in the host's memory."""

from __future__ import annotations

from functools import partial

import numpy as np
from tests.compiler.cuda.device_cases import numbers
from tests.hammer import at_once

import weft as wf
from weft.compiler.targets.cuda.array import compute_stream, upload_array
from weft.compiler.targets.cuda.device import PinnedMemory


def check_captures_beside_threads(sizes: int, rounds: int) -> None:
    """Loops become graphs while other threads read, allocate, compute and wait."""
    array = numbers(4, 6)
    shared = wf.asarray(array).to("cuda")
    done: list[bool] = []

    def capture() -> None:
        try:
            for size in range(3, 3 + sizes):
                xs = wf.asarray(numbers(5, size)).to("cuda")
                total = wf.jit(lambda xs: wf.scan(lambda c, x: (c * 0.5 + x, c), xs[0], xs)[0])
                wanted = total(wf.asarray(numbers(5, size))).numpy()
                for _ in range(rounds):  # from the second on by a graph, where addresses repeat
                    np.testing.assert_allclose(total(xs).numpy(), wanted, rtol=1e-6)
        finally:
            done.append(True)

    def work(number: int) -> None:
        count = 0
        while not done:
            count += 1
            size = 100 * number + count % 37 + 1
            made = wf.full((size,), float(number), device="cuda") + 1.0
            assert made.numpy().tolist() == [number + 1.0] * size
            np.testing.assert_array_equal(shared.numpy(), array)
            if count % 5 == number:
                wf.cuda.synchronize()

    at_once(capture, *[partial(work, number) for number in range(3)])


def check_pinned_uploads(count: int, rounds: int) -> None:
    """Pinned memory that is changed right after its upload: the card has what was there before."""
    wf.zeros((1,), device="cuda")
    stream = compute_stream(0)
    array = PinnedMemory(stream.device, 4 * count).array(np.float32, (count,))
    for number in range(rounds):
        array[:] = number
        there = upload_array(stream, array)
        array[:] = -1.0
        found = there.to_host()
        assert (found.min(), found.max()) == (number, number)


def check_exchanged_axes(dtype: str) -> None:
    """Products of exchanged axes are those of copies, whatever was asked for before."""
    for m, k, n in ((64, 48, 80), (33, 17, 9), (128, 256, 64)):
        a, b = (wf.asarray(numbers(*shape)).astype(dtype) for shape in ((k, m), (k, n)))
        wanted = a.astype("float32").numpy().T @ b.astype("float32").numpy()
        x, y = a.to("cuda"), b.to("cuda")
        found = [(x.T @ y).astype("float32").numpy()]
        turned = x.T
        np.testing.assert_array_equal(
            turned.astype("float32").numpy(), a.astype("float32").numpy().T
        )
        found.append((turned @ y).astype("float32").numpy())
        np.testing.assert_array_equal(*found)
        limit = 1e-5 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(found[0], wanted, rtol=limit, atol=limit * k**0.5)
