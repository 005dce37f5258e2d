"""Operations of one's own in C, in a network that is compiled whole.

    python examples/custom_operator/softclip.py

builds `kernels.c` with the C compiler, defines two operations of it, checks them, and trains a
small network through them.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import weft as wf

SOURCE = Path(__file__).with_name("kernels.c")


def build(folder: Path) -> Path:
    """The library, built from its source."""
    library = folder / "libkernels.so"
    command = [
        os.environ.get("CC", "cc"), "-O3", "-shared", "-fPIC", "-I", wf.custom.include_folder(),
        "-o", str(library), str(SOURCE), "-lm",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return library


def define_softclip(library: wf.custom.Library) -> wf.custom.Operator:
    """limit * tanh(x / limit), whose derivative is an operation of the library too."""
    slope = wf.custom.native(
        "softclip_slope",
        library,
        dtypes=["float32", "float64"],
        attributes={"limit": 1.0},
        type_rule=wf.custom.elementwise("float"),
        operands=2,
        derivatives=[
            wf.custom.linear(lambda ct, t, y, *, limit: slope(ct, y, limit=limit)),
            wf.custom.tangent(lambda d, out, t, y, *, limit: t * (-2 * y / limit**2) * d),
        ],
    )
    return wf.custom.native(
        "softclip",
        library,
        dtypes={"float32": "softclip_f32", "float64": "softclip_f64"},
        attributes={"limit": 1.0},
        type_rule=wf.custom.elementwise("float"),
        derivatives=[wf.custom.tangent(lambda t, out, x, *, limit: slope(t, out, limit=limit))],
        reference=lambda x, *, limit: (limit * np.tanh(x / limit)).astype(x.dtype),
        doc="Numbers pressed softly into -limit to limit.",
    )


def define_nearest(library: wf.custom.Library) -> wf.custom.Operator:
    """The code that is closest to each row; types are ruled by a function of the library."""
    return wf.custom.native(
        "nearest",
        library,
        dtypes={"float32": "nearest_f32"},
        shape="nearest_shape",
        operands=2,
        derivatives=[
            wf.custom.constant("a position has no derivative"),
            wf.custom.constant("a position has no derivative"),
        ],
        reference=lambda x, codes: ((x[:, None] - codes) ** 2).sum(-1).argmin(-1),
        samples=[(np.eye(4, 3, dtype=np.float32), np.eye(3, dtype=np.float32))],
        doc="The row of the codes that is closest to each row.",
    )


def main() -> None:
    """Build, check, train."""
    with tempfile.TemporaryDirectory() as folder:
        library = wf.custom.load_library(build(Path(folder)))
        softclip, nearest = define_softclip(library), define_nearest(library)
        for operation in (softclip, nearest):
            wf.testing.check_primitive(operation)
            print(f"{operation.primitive.name:9} agrees with its reference, eager and compiled")

        wf.random.seed(0)
        x = wf.random.normal((64, 4))
        labels = nearest(x, wf.eye(4))
        net = wf.nn.Sequential(wf.nn.Linear(4, 32), wf.nn.Linear(32, 4))
        optimizer = wf.optim.Adam(net.parameters(), lr=0.03)

        @wf.jit
        def step(net, optimizer, x, labels):  # noqa: ANN001, ANN202
            loss = wf.nn.functional.cross_entropy(net[1](softclip(net[0](x), limit=2.0)), labels)
            optimizer.minimize(loss)
            return loss

        losses = [step(net, optimizer, x, labels).item() for _ in range(200)]
        print(f"loss      {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
