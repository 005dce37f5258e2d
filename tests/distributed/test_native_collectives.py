"""Collectives of compiled programs in real processes: all of them native, along any axis."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.distributed.jobs import launch

import weft as wf
from weft.compiler.graph_passes.collective_axes import move_collective_axes
from weft.ir.dispatch import apply
from weft.ir.primitive import PRIMITIVES

pytest.importorskip("mpi4py")

JOB = """
import ml_dtypes
import numpy as np
import weft as wf
from weft import distributed as d
from weft.collectives import sum_of

d.init(timeout=60)
rank, size = d.rank(), d.world_size()

def each(x):
    results = [d.broadcast(x, "data", root=size - 1), d.permute(x, "data", pairs=[(0, 1)])]
    results.append(d.permute(x, "data", pairs=[(i, (i + 1) % size) for i in range(size)]))
    results.append(d.permute(x, "data", pairs=[]))
    for axis in range(2):
        results.append(d.all_gather(x, "data", axis=axis))
        results += [d.all_to_all(x, "data", split_axis=axis, concat_axis=c) for c in range(3)]
        results += [] if x.dtype == wf.bool else [d.reduce_scatter(x, "data", axis=axis)]
    results += [] if x.dtype == wf.bool else [d.all_reduce(x, "data")]
    results += [] if x.dtype == wf.bool else [d.reduce_to(x, "data", root=r) for r in range(size)]
    results += [d.axis_index("data"), x.astype("int64") * d.axis_index("data")]
    return results + [d.all_reduce(x, "data", op=op) for op in ("max", "min")]

for kind in (np.float32, ml_dtypes.bfloat16, np.int16, np.bool_):
    numbers = np.arange(size * 2 * size * 3 * size * 4) * 5 % 7 - 3
    stack = (numbers > 0 if kind is np.bool_ else numbers).astype(kind)
    stack = stack.reshape(size, 2 * size, 3 * size, 4)
    compiled, own = wf.jit(each), wf.tensor(stack[rank])
    kinds = {str(each.kind) for each in compiled.explain(own).plan.launches}
    assert "collective" in kinds and "reference" not in kinds, kinds
    expected = d.simulate(each, {"data": size})(wf.tensor(stack))
    for found, other in zip(compiled(own), expected, strict=True):
        np.testing.assert_array_equal(found.numpy(), other.numpy()[rank])
other = wf.jit(lambda x: sum_of(x, "data", f"what rank {rank} has"))
try:
    other(wf.ones(3))
except wf.ProcessError as error:
    assert "all_reduce_sum(data) what rank 1 has of f32[3]" in error.got, error
else:
    raise AssertionError("sums of different things were added")
index = wf.jit(lambda: d.axis_index("data"))
assert index().item() == rank
d.bind_axes({"data": 1, "model": size})
try:
    index()
except wf.ArgumentError as error:
    assert "group of another size" in error.problem, error
else:
    raise AssertionError("a program for another group went on")
d.shutdown()
try:
    index()
except wf.ArgumentError as error:
    assert "no group of processes is bound" in error.problem, error
else:
    raise AssertionError("a program for a group went on alone")
print("as the reference", flush=True)
"""


@pytest.mark.slow
def test_all_collectives_of_a_program_are_native_and_give_what_the_reference_gives(
    tmp_path: Path,
) -> None:
    job = launch(tmp_path, JOB, "--threads", "1", processes=3)
    assert job.returncode == 0, job.stdout + job.stderr
    assert job.stdout.count("as the reference") == 3


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("all_gather", {"axis": 2}),
        ("reduce_scatter", {"axis": 1}),
        ("all_to_all", {"split_axis": 1, "concat_axis": 2}),
        ("all_to_all", {"split_axis": 2, "concat_axis": 0}),
        ("all_to_all", {"split_axis": 0, "concat_axis": 1}),
    ],
)
def test_turned_collectives_have_the_type_and_run_along_the_first_axis(
    name: str, own: dict[str, int]
) -> None:
    params = {"mesh_axis": "data", "size": 2, "stacked": False, **own}
    graph = wf.ir.trace(
        lambda x: apply(PRIMITIVES[name], x, **params), wf.spec("bfloat16", (4, 6, 8))
    )
    after = move_collective_axes(graph)
    assert after.output_types == graph.output_types
    (node,) = [each for each in after.nodes if each.primitive.name == name]
    assert all(node.params[key] == 0 for key in own)
    assert name != "reduce_scatter" or node.operands[0].type.dtype.name == "float32"


def test_stacked_collectives_stay_as_they_are() -> None:
    params = {"mesh_axis": "data", "size": 2, "stacked": True, "axis": 1}
    graph = wf.ir.trace(
        lambda x: apply(PRIMITIVES["all_gather"], x, **params), wf.spec("float32", (2, 3, 4))
    )
    assert move_collective_axes(graph) is graph
