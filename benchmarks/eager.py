"""Time the eager mode beside NumPy, PyTorch and JAX, in one run, on the same inputs.

Run it with `make bench`; a library that is not installed is left out. Every case is first checked
to give the same numbers in all libraries. Then the libraries take turns in short rounds, so that
whatever else the machine does hits all of them alike. The best round is the time reported; the
spread says how quiet the machine was. All libraries get the same number of threads: that of the
variable OMP_NUM_THREADS, or one.
"""

from __future__ import annotations

import os

# The libraries read these when they are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
os.environ["MKL_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import gc
import importlib
import importlib.util
import json
import platform
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter_ns
from types import ModuleType
from typing import Any

import numpy as np

Work = Callable[[], Any]
Cases = Mapping[str, Work]
Times = dict[str, dict[str, float]]

ADD_SMALL = "add, 4 elements"
TANH_SMALL = "tanh, 4 elements"
CHAIN_FORWARD = "20 operations, 4 elements"
CHAIN_BOTH = "the same, forward and backward"
ADD_LARGE = "add, 1e6 elements"
TANH_LARGE = "tanh, 1e6 elements"
LARGE_BOTH = "sum(tanh(x w + b)), 1e6, both ways"
MATMUL = "matmul, 512 x 512"
MATMUL_BOTH = "sum(x @ w), 512 x 512, both ways"

# The most that Weft may take, as a multiple of PyTorch's time.
AIMS = {CHAIN_BOTH: 1.2, ADD_LARGE: 1.0, TANH_LARGE: 1.0, LARGE_BOTH: 1.0}

THREADS = int(os.environ["OMP_NUM_THREADS"])
SAMPLE_NS = 2_000_000
RESULTS = Path(__file__).parent / "results" / "eager.json"


def main() -> None:
    """Measure what is installed, print the table, write the results."""
    arguments = _arguments()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    libraries = {
        name: cases(importlib.import_module(module), _inputs())
        for name, (module, cases) in LIBRARIES.items()
        if importlib.util.find_spec(module) is not None
    }
    check_agreement(libraries)
    times = measure(libraries, arguments.rounds)
    print(table(times))
    _write(times, arguments.rounds, arguments.output)


def chain(x: Any, w: Any, b: Any, tanh: Callable[[Any], Any]) -> Any:
    """Twenty operations that each take the result of the one before."""
    for _ in range(5):
        x = tanh(x * w + b) - b
    return x


def numpy_cases(_: ModuleType, inputs: dict[str, np.ndarray]) -> Cases:
    """NumPy: the floor for what has no gradient."""
    x, w, b, large_x, large_w, _, square_x, square_w = inputs.values()
    return {
        ADD_SMALL: lambda: x + w,
        TANH_SMALL: lambda: np.tanh(x),
        CHAIN_FORWARD: lambda: chain(x, w, b, np.tanh),
        ADD_LARGE: lambda: large_x + large_w,
        TANH_LARGE: lambda: np.tanh(large_x),
        MATMUL: lambda: square_x @ square_w,
    }


def weft_cases(wf: ModuleType, inputs: dict[str, np.ndarray]) -> Cases:
    """Weft, by reference."""
    return _tape_cases(wf, lambda array: wf.asarray(array), inputs)


def torch_cases(torch: ModuleType, inputs: dict[str, np.ndarray]) -> Cases:
    """PyTorch, eager."""
    torch.set_num_threads(THREADS)
    return _tape_cases(torch, torch.from_numpy, inputs)


def _tape_cases(
    library: Any, from_numpy: Callable[[np.ndarray], Any], inputs: dict[str, np.ndarray]
) -> Cases:
    """The cases of a library with `requires_grad` and `backward`."""

    def both_ways(function: Callable[..., Any], *names: str) -> Work:
        leaves = [library.tensor(inputs[name], requires_grad=True) for name in names]

        def work() -> Any:
            for leaf in leaves:
                leaf.grad = None
            library.sum(function(*leaves)).backward()
            return leaves[0].grad

        return work

    x, w, b, large_x, large_w, large_b, square_x, square_w = map(from_numpy, inputs.values())
    return {
        ADD_SMALL: lambda: x + w,
        TANH_SMALL: lambda: library.tanh(x),
        CHAIN_FORWARD: lambda: chain(x, w, b, library.tanh),
        CHAIN_BOTH: both_ways(lambda x, w: chain(x, w, b, library.tanh), "x", "w"),
        ADD_LARGE: lambda: large_x + large_w,
        TANH_LARGE: lambda: library.tanh(large_x),
        LARGE_BOTH: both_ways(lambda x, w: library.tanh(x * w + large_b), "large_x", "large_w"),
        MATMUL: lambda: square_x @ square_w,
        MATMUL_BOTH: both_ways(lambda x, w: x @ w, "square_x", "square_w"),
    }


def jax_cases(jax: ModuleType, inputs: dict[str, np.ndarray]) -> Cases:
    """JAX without `jit`: operation by operation, waiting for the result as the others do."""
    tanh = jax.numpy.tanh
    x, w, b, large_x, large_w, large_b, square_x, square_w = map(jax.numpy.asarray, inputs.values())

    def finished(function: Callable[..., Any], *operands: Any) -> Work:
        return lambda: jax.block_until_ready(function(*operands))

    def both_ways(function: Callable[..., Any], *operands: Any) -> Work:
        gradient = jax.grad(lambda x, w: jax.numpy.sum(function(x, w)), argnums=(0, 1))
        return lambda: jax.block_until_ready(gradient(*operands))[0]

    return {
        ADD_SMALL: finished(lambda x, w: x + w, x, w),
        TANH_SMALL: finished(tanh, x),
        CHAIN_FORWARD: finished(lambda x, w: chain(x, w, b, tanh), x, w),
        CHAIN_BOTH: both_ways(lambda x, w: chain(x, w, b, tanh), x, w),
        ADD_LARGE: finished(lambda x, w: x + w, large_x, large_w),
        TANH_LARGE: finished(tanh, large_x),
        LARGE_BOTH: both_ways(lambda x, w: tanh(x * w + large_b), large_x, large_w),
        MATMUL: finished(lambda x, w: x @ w, square_x, square_w),
        MATMUL_BOTH: both_ways(lambda x, w: x @ w, square_x, square_w),
    }


LIBRARIES: dict[str, tuple[str, Callable[[ModuleType, dict[str, np.ndarray]], Cases]]] = {
    "Weft": ("weft", weft_cases),
    "PyTorch": ("torch", torch_cases),
    "JAX": ("jax", jax_cases),
    "NumPy": ("numpy", numpy_cases),
}


def check_agreement(libraries: Mapping[str, Cases]) -> None:
    """Refuse to time libraries that do not compute the same."""
    expected: dict[str, np.ndarray] = {}
    for name, cases in libraries.items():
        for case, work in cases.items():
            result = np.asarray(work())
            np.testing.assert_allclose(
                result,
                expected.setdefault(case, result),
                rtol=1e-3,
                atol=1e-3,
                err_msg=f"{name}: {case}",
            )


def measure(libraries: Mapping[str, Cases], rounds: int) -> dict[str, Times]:
    """Nanoseconds of each case in each library: best, median, and quartile spread of the rounds."""
    samples: dict[tuple[str, str], list[float]] = {}
    counts = {
        (case, name): _calls_per_sample(work)
        for name, cases in libraries.items()
        for case, work in cases.items()
    }
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for (case, name), count in counts.items():
                sample = _time(libraries[name][case], count)
                samples.setdefault((case, name), []).append(sample)
            gc.collect()
    finally:
        gc.enable()
    times: dict[str, Times] = {case: {} for case, _ in counts}
    for (case, name), values in samples.items():
        times[case][name] = _summary(values)
    return times


def _calls_per_sample(work: Work) -> int:
    _time(work, 3)
    return max(1, int(SAMPLE_NS / max(1.0, min(_time(work, 3) for _ in range(3)))))


def _time(work: Work, count: int) -> float:
    repeat = range(count)
    start = perf_counter_ns()
    for _ in repeat:
        work()
    return (perf_counter_ns() - start) / count


def _summary(values: list[float]) -> dict[str, float]:
    median = statistics.median(values)
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (median,) * 3
    return {"best": min(values), "median": median, "spread": (high - low) / median}


def table(times: dict[str, Times]) -> str:
    """Best times in microseconds with their spread, and Weft's as multiples of the others'."""
    names = [name for name in LIBRARIES if any(name in row for row in times.values())]
    others = [name for name in names if name != "Weft"]
    ratios = [f"Weft/{name}" for name in others]
    lines = [["microseconds, best ± spread", *names, *ratios, "aim"]]
    for case, row in times.items():
        cells = [_time_cell(row.get(name)) for name in names]
        cells += [_ratio_cell(row.get("Weft"), row.get(name)) for name in others]
        lines.append([case, *cells, f"≤ {AIMS[case]:.1f}" if case in AIMS else ""])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_table_line(line, widths) for line in lines)


def _table_line(cells: list[str], widths: list[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    row = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
    return "  ".join(row).rstrip()


def _time_cell(time: dict[str, float] | None) -> str:
    return "–" if time is None else f"{time['best'] / 1000:.2f} ±{100 * time['spread']:3.0f} %"


def _ratio_cell(own: dict[str, float] | None, other: dict[str, float] | None) -> str:
    return "–" if own is None or other is None else f"{own['best'] / other['best']:.2f}"


def _inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"": (4,), "large_": (1_000_000,)}
    arrays = {
        prefix + name: _normal(rng, shape) for prefix, shape in shapes.items() for name in "xwb"
    }
    return arrays | {f"square_{name}": _normal(rng, (512, 512)) for name in "xw"}


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def _write(times: dict[str, Times], rounds: int, path: Path) -> None:
    modules = [module for module, _ in LIBRARIES.values() if importlib.util.find_spec(module)]
    report = {
        "machine": {"cpu": _processor(), "threads": THREADS, "python": platform.python_version()},
        "versions": {module: importlib.import_module(module).__version__ for module in modules},
        "rounds": rounds,
        "nanoseconds": times,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the eager mode beside other libraries.")
    parser.add_argument("--rounds", type=int, default=50, help="samples of each case")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go")
    return parser.parse_args()


if __name__ == "__main__":
    main()
