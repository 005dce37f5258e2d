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
from weft.onnx.importing import rules as _rules_entered  # noqa: F401  enters them into the table
from weft.onnx.importing.program import NO_RULE, REFUSED
from weft.onnx.importing.reading import read_tensor
from weft.onnx.importing.registry import RULES
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
    return Result(case.kind, case.name, "passed")


def run_in_time(case: Any, jit: bool) -> Result:
    """Run one test, for a limited time."""
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(SECONDS)
    try:
        return run_case(case, jit)
    finally:
        signal.alarm(0)


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
    """The outputs of the model as one compiled program; what decides sizes is a constant of it."""
    shaping = net._program.shaping
    inputs = [x.tensor if isinstance(x, Narrow) else x for x in inputs]
    traced = [
        isinstance(value, wf.Tensor) and port.name not in shaping
        for port, value in zip(net._program.inputs, inputs, strict=False)
    ]

    def call(*tensors: Any) -> Any:
        rest = iter(tensors)
        return net(*[next(rest) if own else x for x, own in zip(inputs, traced, strict=True)])

    given = [x for x, own in zip(inputs, traced, strict=True) if own]
    inputs = [x.numpy() if isinstance(x, wf.Tensor) else x for x in inputs]
    outputs = wf.jit(call)(*given)
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
    if isinstance(right, Narrow) and isinstance(own, wf.Tensor):  # compiled: in a wider type
        own = Narrow(right.element, own)
    found, wanted = _array(own), _array(right)
    assert found.dtype == wanted.dtype, f"element type {found.dtype}, not {wanted.dtype}"
    assert found.shape == wanted.shape, f"shape {found.shape}, not {wanted.shape}"
    if found.dtype.kind not in "biufc":  # types that NumPy itself does not have
        found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


# --- the table -----------------------------------------------------------------------------------

CAUSES = {
    "bernoulli|training_dropout": "random numbers: those of another generator are stored",
    "FLOAT_to_BFLOAT16": "the stored numbers are cut off, where the standard rounds to the nearest",
    "qlinearmatmul_.D_int8": "the stored numbers wrap around, where the standard limits them",
    "adam_multiple": "the stored numbers need an epsilon of 0.01, which the node does not have",
    "attention_(3d|4d_gqa)": "the stored numbers have mistakes that the standard corrects later: "
    "heads of 3-axis inputs are not transposed, and keys are shared in turns",
    "attention_4d_with_qk_matmul_softcap": "the stored numbers cap scores behind the mask",
    "dft_inverse": "2e-7 instead of 0: the transform is computed in float32",
}
"""Why tests fail, by names of tests."""
HEAD = """# Operators of ONNX

This page is written by `python tools/onnx_backend.py --write docs/onnx_operators.md`. It says
which operators [`wf.onnx.load`](onnx.md) takes, and what the backend tests of the package
`onnx` {version} say of them: 1,450 tests of single operators, 23 of small models, 117 of layers
that PyTorch exported, and nine large networks ("real"), which are downloads and were not run.
ONNX Runtime 1.31.1 passes 1,365 of the same tests through its Python binding.

"""


def page(results: list[Result]) -> str:
    """The page of results."""
    parts = [HEAD.format(version=onnx.__version__), "## Tests\n\n", summary(results), "\n\n"]
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in results:
        if each.verdict != "passed":
            reasons.setdefault((each.verdict, _cause(each)), []).append(each.name)
    parts.append("| | why | tests |\n|---|---|---|\n")
    for (verdict, reason), names in sorted(reasons.items()):
        listed = ", ".join(f"`{name.removeprefix('test_')}`" for name in sorted(names))
        parts.append(f"| {verdict} | {reason} | {len(names)}: {listed} |\n")
    parts += ["\n## Operators with a rule\n\n", _rules(), "\n## Operators by their function\n\n"]
    parts += ["What the standard defines by other operators is computed by these: ", _functions()]
    parts += ["\n\n## Operators that are refused\n\n", _missing(), "\n"]
    return "".join(parts)


def _cause(result: Result) -> str:
    if result.verdict == "failed":
        for pattern, cause in CAUSES.items():
            if re.search(pattern, result.name):
                return cause
    return result.reason.replace("|", "/")


def _rules() -> str:
    """The rules, by domain; a number says since which version of the operator a rule holds."""
    lines = []
    for domain in sorted({domain for domain, _ in RULES}):
        names = []
        for (own, operator), rules in sorted(RULES.items()):
            if own == domain:
                versions = [str(each.since) for each in rules]
                names.append(operator + (f" ({', '.join(versions)})" if len(versions) > 1 else ""))
        lines.append(f"- `{domain or 'ai.onnx'}`: {', '.join(names)}\n")
    return "".join(lines)


def _schemas() -> dict[tuple[str, str], Any]:
    return {(each.domain, each.name): each for each in onnx.defs.get_all_schemas()}


def _functions() -> str:
    names = [
        name
        for (domain, name), schema in sorted(_schemas().items())
        if (domain, name) not in RULES
        and (schema.has_function or schema.has_context_dependent_function)
    ]
    return ", ".join(names) + "."


def _missing() -> str:
    lines = []
    for (domain, name), schema in sorted(_schemas().items()):
        computed = schema.has_function or schema.has_context_dependent_function
        if (domain, name) in RULES or computed or name == "Constant":
            continue
        lines.append(f"- `{domain or 'ai.onnx'}` {name}: {REFUSED.get(name, NO_RULE)}")
    return "\n".join(lines)


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
    results = [run_in_time(case, options.jit) for case in all_cases(options.match)]
    for each in results:
        if each.verdict != "passed":
            print(f"{each.verdict:8} {each.name}  {each.reason}")
    print(summary(results))
    print(f"{time.perf_counter() - started:.0f} s")
    if options.write:
        Path(options.write).write_text(page(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
