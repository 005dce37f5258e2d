"""The benchmarks run and their results agree between libraries; how fast is not judged here."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The comparison's parts, by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return lambda name: importlib.import_module(f"suite.{name}")


FEW_WORKLOADS = ("--only", "small", "softmax", "gpt", "lenet-adam")


@pytest.mark.parametrize(
    ("only", "counts"),
    [
        (FEW_WORKLOADS, {"small": 5, "functions": 2, "training": 1, "inference": 1}),
        pytest.param(
            (),
            {"small": 5, "functions": 52, "training": 6, "inference": 3},
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["few", "every"],
)
def test_the_eager_benchmark_times_workloads_and_writes_them_down(
    tmp_path: Path, only: tuple[str, ...], counts: dict[str, int]
) -> None:
    output = tmp_path / "eager.json"
    options = ["--all", "--quick", "--rounds", "1", "--frameworks", "weft", *only]
    result = run("eager.py", *options, "--output", str(output))
    written = json.loads(output.read_text(encoding="utf-8"))
    assert {group: len(rows) for group, rows in written["groups"].items()} == counts
    for rows in written["groups"].values():
        for name, row in rows.items():
            assert 0 < row["times"]["weft"]["wall"]["best"], name
            assert row["differences"] == {"weft": 0.0}, name
    assert "softmax, 1K, both ways" in result.stdout
    for name in ("gpt",) if only else ("gpt", "resnet"):
        memory = written["memory"][name]["weft"]
        assert memory["peak_bytes"] > memory["import_bytes"] > 0, name
    for caches in ("cold", "warm"):
        assert written["first"]["lenet-adam"]["weft"][caches]["first_seconds"] > 0


def test_the_eager_benchmark_runs_what_was_asked_for_and_leaves_the_results_alone() -> None:
    results = BENCHMARKS / "results" / "eager.json"
    before = results.read_bytes()
    options = ["--quick", "--rounds", "1", "--frameworks", "weft", "--weft", "reference"]
    result = run("eager.py", *options, "--only", "concat", "chain", "--sizes", "2K", "4K")
    titles = [line.split("  ")[0] for line in result.stdout.splitlines() if " ±" in line]
    concats = ["concat, 2K", "concat, 4K", "concat, 2K, both ways", "concat, 4K, both ways"]
    chains = ["20 operations, 4 elements", "20 operations, 4 elements, both ways"]
    assert [title for title in titles if not title.startswith("µs")] == [*chains, *concats]
    assert "WEFT_EAGER=reference" in result.stdout
    assert results.read_bytes() == before


def test_functions_and_their_sizes_are_read_from_a_name(suite: Any) -> None:
    functions = suite("eager.functions")
    assert functions.parts("split_heads-64K-backward") == ("split_heads", 1 << 16, True)
    assert functions.parts("conv2d-196K") == ("conv2d", 8 * 32 * 28 * 28, False)
    for size in (*functions.SIZES, 1000):
        assert functions.count(functions.label(size)) == size
    with pytest.raises(KeyError, match="nothing-1K"):
        suite("eager").workload("nothing-1K")


def test_operands_have_about_as_many_elements_as_the_name_says(suite: Any) -> None:
    functions, workload = suite("eager.functions"), suite("eager").workload
    for name in functions.names(functions.SIZES):
        key, count, _ = functions.parts(name)
        arrays = workload(name).task(False, False).data
        first = next(iter(arrays.values()))
        size = first.size * (64 if key == "embedding" else 2 if key == "concat" else 1)
        assert 0.75 * count <= size <= count, name


def test_a_side_whose_values_differ_is_not_timed(suite: Any) -> None:
    measuring = suite("measuring")
    row = {"weft": {"values": [[1.0, 2.0]]}, "torch": {"values": [[1.0, 2.1]]}}
    measuring._refuse_differences(row, 1e-3)
    assert "error" not in row["weft"]
    assert row["torch"]["error"] == "values differ by 5.0e-02, more than 1e-03"


def test_the_digest_of_gradients_sees_each_array_in_its_own_size(suite: Any) -> None:
    digest = suite("eager.functions").sampled
    large, small = np.full(1000, 1e4), np.arange(1000) * 1e-4
    changed = small.copy()
    changed[-1] += 1e-3
    one, other = np.array(digest([large, small])), np.array(digest([large, changed]))
    assert np.abs(one - other).max() > 1e-3 * np.abs(one).max()


def test_memory_is_compared_above_the_import(suite: Any) -> None:
    digest = suite("eager.report").memory_digest
    own = {"import_bytes": 50, "peak_bytes": 150}
    other = {"import_bytes": 200, "peak_bytes": 300}
    assert digest({"weft": own, "torch": other}) == {"peak": 0.5, "above_import": 1.0}
    assert digest({"weft": own, "torch": {"error": "it failed"}}) == {}


def test_the_comparison_measures_workloads_in_a_process_of_their_own(tmp_path: Path) -> None:
    output = tmp_path / "compare.json"
    names = ["matmul-batched", "chain", "mlp", "lstm", "deepfm", "generation", "overhead"]
    encoders = {"minilm-12-infer", "minilm-128-infer"}
    options = ["--quick", "--rounds", "1", "--frameworks", "weft", "--output", str(output)]
    result = run("compare.py", *options, "--only", *names, "minilm")
    found = json.loads(output.read_text(encoding="utf-8"))
    inferences = {"mlp-infer", "lstm-infer", "deepfm-infer", *encoders}
    assert set(found["rows"]) == {*names, *inferences}
    for name, row in found["rows"].items():
        assert "error" not in row["weft"], (name, row)
        for clock in ("wall", "processor"):
            assert 0 < row["weft"][clock]["best"] <= row["weft"][clock]["median"], name
        assert found["profiles"][name]["kernels"], name
        assert found["digests"][name]["differences"] == {"weft": 0.0}, name
        assert found["conditions"][name]["seconds"] > 0, name
    assert 0 < found["digests"]["mlp"]["share_of_peak"]["weft"] < 1
    for name in ("mlp", "lstm", "deepfm"):
        losses = [values[0] for values in found["rows"][name]["weft"]["values"]]
        assert losses == sorted(losses, reverse=True), name
    start = found["start_up"]["mlp"]["weft"]
    assert start["cold"]["peak_bytes"] > start["cold"]["import_bytes"] > 0
    assert found["limits"]["flops"] > 1e8
    assert "load average" in result.stdout
    ElementTree.fromstring(output.with_suffix(".svg").read_text(encoding="utf-8"))


def test_a_resumed_comparison_measures_only_what_is_missing(tmp_path: Path) -> None:
    output = tmp_path / "compare.json"
    options = ["--quick", "--rounds", "1", "--frameworks", "weft", "--no-start-up"]
    options += ["--output", str(output)]
    run("compare.py", *options, "--only", "overhead")
    first = json.loads(output.read_text(encoding="utf-8"))["rows"]
    run("compare.py", *options, "--resume", "--only", "matmul-256")
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found["rows"]["overhead"] == first["overhead"]
    assert set(found["digests"]) == {"overhead", "matmul-256"}
    command = [sys.executable, str(BENCHMARKS / "compare.py"), "--resume", "--output", str(output)]
    other = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert other.returncode == 1
    assert "other sizes or threads" in other.stderr


def test_the_comparison_on_a_card_runs_in_pieces(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    options = ["--card", "cpu", "--quick", "--rounds", "1", "--frameworks", "weft"]
    for piece in ("eager-add", "generation-64"):
        more = ["--no-start-up", "--resume", "--output", str(output), "--only", piece]
        result = run("gpu/compare.py", *options, *more)
    rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert sorted(rows) == ["eager-add", "generation-64"]
    for row in rows.values():
        assert row["weft"]["wall"]["best"] > 0
        assert row["weft"]["card"]["peak_bytes"] > 0
    assert "tokens a second" in result.stdout
    assert output.with_suffix(".svg").read_text(encoding="utf-8").startswith("<svg")


def test_every_workload_of_a_card_has_a_title_and_peers_of_its_own(suite: Any) -> None:
    workloads = suite("workloads.card").WORKLOADS
    titles = [workload.title for workload in workloads.values()]
    assert len({*titles}) == len(titles) == 23
    parts = {name.partition("-")[0] for name in workloads}
    assert parts >= {"matmul", "rows", "attention", "gpt", "resnet50", "mlp", "lstm", "deepfm"}
    assert all({"weft", "torch"} <= set(workload.sides) for workload in workloads.values())


def test_a_framework_that_fails_is_an_answer_and_not_the_end(suite: Any, tmp_path: Path) -> None:
    processes = suite("processes")
    with processes.WorkerProcess("weft", Path(sys.executable), 1, tmp_path, True) as worker:
        answer = worker.ask("prepare", workload="nothing")
        assert answer["error"] == "KeyError: 'nothing'"
        assert worker.ask("hello")["version"]
    dead = processes.WorkerProcess("onnx", Path("/bin/false"), 1, tmp_path, True)
    silence = pytest.raises(processes.WorkerFailure, match="ONNX Runtime gave no answer to hello")
    with dead as worker, silence:
        worker.ask("hello")


def test_a_worker_that_dies_is_started_anew(suite: Any, tmp_path: Path) -> None:
    processes = suite("processes")
    with processes.WorkerProcess("weft", Path(sys.executable), 1, tmp_path, True) as worker:
        first = worker.number
        assert worker.ask("hello")["version"]
        os.kill(first, signal.SIGKILL)
        with pytest.raises(processes.WorkerFailure, match="Weft gave no answer"):
            worker.ask("prepare", workload="overhead")
        assert worker.ask("hello")["version"]
        assert worker.number != first


def test_values_that_differ_are_named_with_their_difference(suite: Any) -> None:
    agreement = suite("measuring").agreement
    row = {
        "weft": {"values": [[1.0], [2.0]]},
        "torch": {"values": [[1.0], [2.001]]},
        "jax": {"values": [[1.0], [float("nan")]]},
        "keras": {"error": "it failed"},
    }
    assert agreement({"weft": row["weft"], "torch": row["torch"]}, 1e-3) == ""
    assert agreement(row, 1e-4) == "values differ from weft's: torch by 5.0e-04, jax by nan"


def test_the_ratio_is_that_to_the_best_peer(suite: Any) -> None:
    times = {"weft": 2.0, "torch": 8.0, "jax": 4.0}
    row = {name: {"wall": {"best": best}} for name, best in times.items()}
    assert suite("report").ratio(row, "wall") == 0.5
    assert suite("report").ratio(row, "wall", ("torch",)) == 0.25
    assert suite("report").ratio({"weft": row["weft"]}, "wall") is None
    assert suite("report").ratio(row, "wall", ("onnx",)) is None


def test_an_aim_is_judged_against_its_rivals(suite: Any) -> None:
    workload = suite("workloads").WORKLOADS["mlp-infer"]
    times = {"weft": 2.0, "torch": 1.0, "onnx": 4.0}
    row = {name: {"wall": {"best": best}, "values": [[best]]} for name, best in times.items()}
    found = suite("report").digest(row, workload, {"flops": 1e9, "bytes": 1e6, "threads": 2}, False)
    assert (found["best_peer"], found["ratio"]) == ("torch", 2.0)
    assert (found["ratio_to_rivals"], found["met"]) == (0.5, True)
    least = 4 * (784 * 512 + 512 * 512 + 512 * 10) / 1e6  # bound by the bytes of the weights
    assert found["share_of_peak"]["onnx"] == pytest.approx(least / 4.0)
    assert found["note"] == "values differ from weft's: torch by 5.0e-01, onnx by 1.0e+00"


def test_first_calls_and_memory_are_compared_where_both_sides_are_there(suite: Any) -> None:
    digest = suite("report").start_digest
    sizes = {"weft": (1.0, 100), "jax": (4.0, 300), "torch": (2.0, 200)}
    states = {
        name: {"cold": {"first_seconds": first}, "warm": {"peak_bytes": peak}}
        for name, (first, peak) in sizes.items()
    }
    expected = {"first_call_to_jax": 0.25, "peak_memory_to_best_peer": 0.5}
    assert digest({**states, "keras": {"error": "it failed"}}) == expected
    assert set(digest({"weft": states["weft"]}).values()) == {None}


def test_inference_is_there_for_every_framework_and_aims_at_onnx_runtime(suite: Any) -> None:
    everyone = {"weft", "torch", "jax", "keras"}
    for name, workload in suite("workloads").WORKLOADS.items():
        assert everyone <= set(workload.sides), name
        if name.endswith("-infer"):
            assert "onnx" in workload.sides, name
            assert (workload.aim, workload.rivals) == (1.0, ("onnx",)), name


def test_counted_operations_are_those_of_the_products(suite: Any) -> None:
    workloads = suite("workloads").WORKLOADS
    flops = {name: workload.flops(workload.sizes) for name, workload in workloads.items()}
    assert flops["matmul-512"] == 2 * 512**3
    layers = [784 * 512, 512 * 512, 512 * 10]
    assert flops["mlp-infer"] == 2 * sum(layers)
    assert flops["mlp"] == 2 * 128 * (3 * sum(layers) - layers[0])
    assert 0.55e9 < flops["resnet-infer"] / 2 < 0.56e9  # 0.56 G multiplications are its size


def test_inputs_are_the_same_whoever_asks(suite: Any) -> None:
    for workload in suite("workloads").WORKLOADS.values():
        one, two = workload.task(True, True), workload.task(True, False)
        for a, b in ((one.weights, two.weights), (one.data, two.data)):
            assert list(a) == list(b)
            assert all((a[name] == b[name]).all() for name in a)
