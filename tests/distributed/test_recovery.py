"""Trainings with divided state that go on after a kill, from the last checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.distributed.jobs import launch
from tests.hammer import NIGHTLY

import weft as wf

pytestmark = pytest.mark.slow

DIVIDED = """
import os, signal, sys
import numpy as np
import weft as wf
from weft import distributed
from weft.distributed import split

kind, victims, output = sys.argv[1], [int(each) for each in sys.argv[2].split("-")], sys.argv[3]
is_resumed = victims == [9]
size = int(sys.argv[4])
axes = {"data": size // 2, "expert": 2} if kind == "experts beside data" else None
distributed.init(timeout=30, axes=axes)
own = distributed.rank()
generator = np.random.default_rng(0)
x = generator.normal(size=(48, 8)).astype(np.float32)
y = np.tanh(x @ generator.normal(size=(8, 4))).astype(np.float32)
has_experts = kind.startswith("experts")
between = wf.nn.MixtureOfExperts(16, 8, experts=4, capacity_factor=8.0) if has_experts \\
    else wf.nn.Linear(16, 16)
model = wf.nn.Sequential(wf.nn.Linear(8, 16), wf.nn.Tanh(), between, wf.nn.Linear(16, 4))
with wf.no_grad():
    for parameter in model.parameters():
        values = 0.3 * generator.normal(size=parameter.shape)
        parameter.copy_(wf.tensor(values.astype(np.float32)))
if has_experts:
    where = {"mesh_axis": "expert", "copies": "data"} if axes else {}
    distributed.shard_experts(model, **where)
plan = {"0.*": split(0, "model"), "3.weight": split(1, "model")}
strategy = {
    "mesh": lambda: wf.train.MeshStrategy(plan, data=size // 2, model=2),
    "pipeline": lambda: wf.train.PipelineStrategy(stages=2, zero=2),
    "pipeline over a model axis": lambda: wf.train.PipelineStrategy(stages=2, model=2, plan=plan),
    "experts with zero3": lambda: "zero3",
}.get(kind, lambda: "data")()

class Kill(wf.train.Callback):
    writes = False
    def on_step_begin(self, trainer):
        if own in victims and trainer.step == 7:
            os.kill(os.getpid(), signal.SIGKILL)

optimizer = wf.optim.AdamW(dict(model.named_parameters()), lr=0.02)
loader = wf.data.DataLoader(wf.data.ArrayDataset(x, y), batch_size=12, shuffle=True, seed=0)
trainer = wf.train.Trainer(
    model, "mse_loss", optimizer, strategy=strategy, recover=not is_resumed, metrics=["mae"],
    callbacks=[Kill()], progress=False, seed=0, checkpoint_folder=output + "-run",
    checkpoint_every=5, keep_last=10)
history = trainer.fit(loader, epochs=3, validation=(x, y), resume=is_resumed)
assert trainer.step == 12 and len(history.rows) == 3
if not is_resumed:
    (lost, seconds), = trainer.strategy.members.losses
    assert set(victims) <= set(lost) and seconds < 20, trainer.strategy.members.losses
state = trainer.strategy.model_state(model)
np.savez(f"{output}-{own}.npz", loss=history["loss"], mae=history["val_mae"],
         **{name: value.detach().numpy() for name, value in state.items()})
"""
KINDS = ["mesh", "pipeline", "experts", "experts beside data", "experts with zero3"]


@pytest.mark.parametrize("victims", ["0", "1-3"] if NIGHTLY else ["0"])
@pytest.mark.parametrize("kind", KINDS if NIGHTLY else ["mesh", "pipeline", "experts"])
def test_what_is_divided_goes_on_in_a_smaller_mesh_with_the_bits_of_a_resumed_run(
    kind: str, victims: str, tmp_path: Path
) -> None:
    """Of four, three are left, and the mesh has places for two: the last one is left out."""
    output = str(tmp_path / "trained")
    job = launch(tmp_path, DIVIDED, arguments=(kind, victims, output, "4"), processes=4)
    assert job.returncode == 0, job.stderr
    assert "was lost; the others went on without it" in job.stderr
    paths = sorted(tmp_path.glob("trained-*.npz"))
    assert len(paths) == 2
    first, second = (dict(np.load(path)) for path in paths)
    for path in (tmp_path / "trained-run").iterdir():
        if path.name > "step-00000005":
            shutil.rmtree(path)
    job = launch(tmp_path, DIVIDED, arguments=(kind, "9", output, "2"), processes=2)
    assert job.returncode == 0, job.stderr
    for name, value in np.load(tmp_path / "trained-1.npz").items():
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        np.testing.assert_array_equal(first[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "processes"), [("pipeline", 2), ("mesh", 2), ("pipeline over a model axis", 4)][
        : None if NIGHTLY else 1
    ],
)  # fmt: skip
def test_too_few_processes_for_the_mesh_are_an_error_on_each(
    kind: str, processes: int, tmp_path: Path
) -> None:
    output = str(tmp_path / "trained")
    arguments = (kind, "1", output, str(processes))
    job = launch(tmp_path, DIVIDED, arguments=arguments, processes=processes)
    assert job.returncode == 70, job.stderr  # that of a process that was lost
    left = [rank for rank in range(processes) if rank != 1]
    for rank in left:
        told = f"rank {rank} ended with 1: weft.core.errors.ProcessError: distributed.Recovery: "
        assert told + "those that are left are too few for the mesh" in job.stderr
    latest = wf.train.CheckpointFolder(tmp_path / "trained-run").latest()
    assert latest is not None
    assert latest.name == "step-00000005"
