"""Run the backend tests of the `onnx` package on Weft, and write the table of results.

    python tools/onnx_backend.py                    # all of them, a summary
    python tools/onnx_backend.py --match lstm       # those whose name matches, with reasons
    python tools/onnx_backend.py --write docs/onnx_operators.md

A test passes if every output has the expected element type and shape, and its numbers are within
the test's own tolerances. A refusal (`UnsupportedError`) is told apart from a failure.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import weft as wf
from weft.onnx.importing.reading import read_tensor
from weft.onnx.importing.values import Narrow, as_tensor, narrow_array

KINDS = ["node", "simple", "pytorch-converted", "pytorch-operator", "real"]
SECONDS = 120
"""How long one test may take."""


@dataclass(frozen=True)
class Result:
    """What became of one test."""

    kind: str
    name: str
    verdict: str
    reason: str = ""


class Overdue(Exception):
    """A test that takes too long."""


def all_cases(match: str = "") -> Iterator[Any]:
    """The backend tests whose name matches."""
    for kind in KINDS:
        for case in load_model_tests(kind=kind):
            if re.search(match, case.name):
                yield case


def run_case(case: Any, jit: bool = False) -> Result:
    """Run one test."""
    if case.kind == "real":
        return Result(case.kind, case.name, "not run", "the model is a download, and there is none")
    before = signal.signal(signal.SIGALRM, _stop)
    signal.alarm(SECONDS)
    try:
        _run(case, jit)
    except wf.UnsupportedError as error:
        return Result(case.kind, case.name, "refused", error.reason or error.problem)
    except (AssertionError, wf.WeftError, Overdue) as error:
        text = " ".join(str(error).split())
        return Result(case.kind, case.name, "failed", f"{type(error).__name__}: {text[:160]}")
    except Exception as error:  # what no caller of Weft should ever see
        traceback.print_exc()
        return Result(case.kind, case.name, "crashed", f"{type(error).__name__}: {error}"[:160])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Result(case.kind, case.name, "passed")


def _stop(*_: object) -> None:
    raise Overdue(f"more than {SECONDS} s")


def _run(case: Any, jit: bool) -> None:
    folder = Path(case.model_dir)
    net = wf.onnx.load(folder / "model.onnx")
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    for data in sorted(folder.glob("test_data_set_*")):
        inputs = _values(data, "input", graph.input)
        expected = _values(data, "output", graph.output)
        outputs = _compiled(net, inputs) if jit else net.compute(inputs, {})
        assert len(outputs) == len(expected), f"{len(outputs)} outputs, not {len(expected)}"
        for own, right in zip(outputs, expected, strict=True):
            _compare(own, right, case.rtol, case.atol)


def _compiled(net: Any, inputs: list[Any]) -> list[Any]:
    """The outputs of the model as one compiled program."""
    if any(isinstance(each, Narrow) for each in inputs):
        return list(net.compute(inputs, {}))
    outputs = wf.jit(lambda *values: net(*values))(*inputs)
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def _values(folder: Path, what: str, infos: Any) -> list[Any]:
    files = sorted(folder.glob(f"{what}_*.pb"), key=lambda path: int(path.stem.split("_")[-1]))
    return [_value(path, info.type) for path, info in zip(files, infos, strict=False)]


def _value(path: Path, kind: Any) -> Any:
    content = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    tensor = onnx.TensorProto.FromString(content)
    if tensor.data_type == onnx.TensorProto.STRING:
        return numpy_helper.to_array(tensor)
    array = read_tensor(tensor, None, path.name)
    if kind.tensor_type.elem_type == onnx.TensorProto.BFLOAT16 and array.dtype == np.uint16:
        array = array.view(ml_dtypes.bfloat16)  # the suite stores these numbers as their bits
    return as_tensor(array)


def _array(value: Any) -> Any:
    if isinstance(value, Narrow):
        return narrow_array(value)
    return value if isinstance(value, np.ndarray) else value.detach().numpy()


def _compare(own: Any, right: Any, rtol: float, atol: float) -> None:
    if isinstance(right, (list, tuple)):
        assert isinstance(own, (list, tuple)), "not a sequence"
        assert len(own) == len(right), f"{len(own)} elements, not {len(right)}"
        for one, other in zip(own, right, strict=True):
            _compare(one, other, rtol, atol)
        return
    if right is None or own is None:
        assert own is right, "one of the two is empty"
        return
    found, wanted = _array(own), _array(right)
    assert found.dtype == wanted.dtype, f"element type {found.dtype}, not {wanted.dtype}"
    assert found.shape == wanted.shape, f"shape {found.shape}, not {wanted.shape}"
    if found.dtype.kind not in "biufc":  # types that NumPy itself does not have
        found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


# --- the table -----------------------------------------------------------------------------------


def summary(results: list[Result]) -> str:
    """How many tests of each kind passed, were refused, failed."""
    lines = ["| tests | all | passed | refused | failed | not run |", "|---|---|---|---|---|---|"]
    for kind in [*KINDS, "all"]:
        counts = Counter(each.verdict for each in results if kind in (each.kind, "all"))
        failed = counts["failed"] + counts["crashed"]
        lines.append(
            f"| {kind} | {counts.total()} | {counts['passed']} | {counts['refused']} | {failed} "
            f"| {counts['not run']} |"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the tests that were asked for."""
    parser = argparse.ArgumentParser(description="the backend tests of onnx, on Weft")
    parser.add_argument("--match", default="", help="a regular expression for names of tests")
    parser.add_argument("--jit", action="store_true", help="compile the models")
    parser.add_argument("--write", help="the page of results to write")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("ONNX_HOME", folder)
        results = [run_case(case, options.jit) for case in all_cases(options.match)]
    for each in results:
        if each.verdict != "passed":
            print(f"{each.verdict:8} {each.name}  {each.reason}")
    print(summary(results))
    print(f"{time.perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
