"""Jobs of real processes, started by `weft launch` over Open MPI."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.distributed.jobs import launch
from tests.distributed.one_process import LINEAR_TRAINING, weight_of_one_process
from tests.hammer import NIGHTLY

import weft as wf

pytest.importorskip("mpi4py")
if not (Path(sys.executable).with_name("mpiexec").exists() or shutil.which("mpiexec")):
    pytest.skip("mpiexec is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _clean_shared_memory() -> Iterator[None]:
    """Killed processes leave segments of the engine behind."""
    shared = Path("/dev/shm")
    before = set(shared.iterdir()) if shared.exists() else set()
    yield
    for path in set(shared.iterdir()) - before if shared.exists() else ():
        if path.name.startswith(("vader_segment", "sm_segment", "smsc", "ompi")):
            path.unlink(missing_ok=True)


COLLECTIVES = """
import numpy as np
import ml_dtypes
import weft as wf
from weft import distributed
from weft.ir import group_cells
from weft.ir.group_cells import cell_of, is_native

distributed.init(world_size=2)
rank = distributed.rank()
shards = np.arange(12, dtype=np.float32).reshape(2, 6)

def each(x):
    return [
        distributed.all_reduce(x, "data"), distributed.all_reduce(x, "data", op="max"),
        distributed.all_reduce(x.astype("bfloat16"), "data", op="mean"),
        distributed.all_gather(x, "data"), distributed.reduce_scatter(x, "data"),
        distributed.all_to_all(x, "data"), distributed.broadcast(x, "data", root=1),
        distributed.permute(x, "data", pairs=[(0, 1)]), distributed.axis_index("data"),
        distributed.all_reduce(x > 3, "data", op="min"),
    ]

expected = distributed.simulate(each, {"data": 2})(wf.tensor(shards))
for run in (each, wf.jit(each)):
    for one, other in zip(run(wf.tensor(shards[rank])), expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy()[rank])
large = np.random.default_rng(rank).normal(size=1_500_000).astype(np.float32)
both = [np.random.default_rng(r).normal(size=1_500_000).astype(np.float32) for r in range(2)]
np.testing.assert_array_equal(distributed.all_reduce(wf.tensor(large)).numpy(), both[0] + both[1])
compiled = wf.jit(lambda x: distributed.all_reduce(x * 2) + 1)
np.testing.assert_array_equal(compiled(wf.tensor(large)).numpy(), (both[0] + both[1]) * 2 + 1)
assert is_native("world")
assert cell_of("world")[group_cells.STARTED] == cell_of("world")[group_cells.ENDED] == 1
moves = wf.jit(lambda x: (distributed.all_gather(x * 2), distributed.reduce_scatter(x + 1)))
gathered, scattered = moves(wf.tensor(large))
np.testing.assert_array_equal(gathered.numpy(), np.concatenate(both) * 2)
half = slice(rank * 750_000, (rank + 1) * 750_000)
np.testing.assert_array_equal(scattered.numpy(), (both[0] + 1)[half] + (both[1] + 1)[half])
assert cell_of("world")[group_cells.STARTED] == cell_of("world")[group_cells.ENDED] == 3
empty = wf.jit(lambda x: (distributed.all_gather(x), distributed.reduce_scatter(x)))
assert [part.shape for part in empty(wf.ones((0, 3)))] == [(0, 3), (0, 3)]
wrong = wf.jit(lambda x: distributed.all_reduce(x) + 1)
try:
    wrong(wf.ones(3 + rank))
except wf.ProcessError as error:
    assert "rank 1 differs" in error.problem, error
    assert "f32[4]" in error.got, error
else:
    raise AssertionError("processes with other shapes went on")
assert distributed.broadcast_object({"from": rank}, root=1) == {"from": 1}
assert distributed.gather_objects(rank) == [0, 1]
distributed.barrier()
print("rank", rank, "is content")
"""


def test_collectives_of_processes_give_what_the_reference_gives(tmp_path: Path) -> None:
    job = launch(tmp_path, COLLECTIVES)
    assert job.returncode == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == ["[0] rank 0 is content", "[1] rank 1 is content"]


LOSS = """
import os, signal, sys
import weft as wf
wf.distributed.init()
wf.distributed.barrier()
if wf.distributed.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == "kill" else sys.exit(3)
wf.distributed.all_reduce(wf.ones(3))
"""


def test_a_killed_process_is_an_error_on_the_other_and_of_the_job(tmp_path: Path) -> None:
    job = launch(tmp_path, LOSS, "--timeout", "20", arguments=("kill",))
    assert job.returncode == 70
    assert "rank 1 failed first" in job.stderr
    assert "its last was operation 1: barrier(world)  at" in job.stderr
    assert "job.py:5" in job.stderr
    assert "a process of the group was lost" in job.stderr


def test_the_exit_code_of_the_first_failure_is_the_jobs(tmp_path: Path) -> None:
    job = launch(tmp_path, LOSS, "-n", "3", arguments=("exit",))
    assert job.returncode == 3
    assert job.stderr.startswith("rank 1 failed first, with exit code 3")
    for rank in (0, 2):  # which waited for it
        assert f"rank {rank} ended with 1" in job.stderr


UNEQUAL = """
import sys
import weft as wf
wf.distributed.init(timeout=40)
total = wf.jit(wf.distributed.all_reduce) if sys.argv[1] == "jit" else wf.distributed.all_reduce
for batch in range(3 if wf.distributed.rank() else 4):
    total(wf.ones(3))
"""


@pytest.mark.parametrize("way", ["eager", "jit"])
def test_who_waits_for_a_process_whose_script_is_over_ends_soon(way: str, tmp_path: Path) -> None:
    job = launch(tmp_path, UNEQUAL, arguments=(way,))
    assert job.returncode == 75
    assert job.stderr.startswith("rank 0 failed first, with exit code 75")
    assert "waits for rank 1, whose script is over, in operation" in job.stderr
    assert "job.py:7" in job.stderr


def test_processes_that_exchange_nothing_are_told_so(tmp_path: Path) -> None:
    """As where `data_parallel` was forgotten: each trains a model of its own."""
    script = "import weft as wf\nwf.distributed.init()\nprint(wf.distributed.rank())\n"
    job = launch(tmp_path, script)
    assert job.returncode == 0
    assert "the 2 processes exchanged nothing" in job.stderr
    job = launch(tmp_path, script + "wf.distributed.barrier()\n")
    assert job.returncode == 0
    assert "exchanged nothing" not in job.stderr


STOPPED = """
import os, signal
import weft as wf
wf.distributed.init(timeout=3)
for step in range(9):
    wf.distributed.barrier()
    if step == 5 and wf.distributed.rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_stopped_process_ends_the_job_with_the_code_of_those_that_waited(tmp_path: Path) -> None:
    job = launch(tmp_path, STOPPED)
    assert job.returncode == 75
    assert job.stderr.startswith("rank 0 failed first, with exit code 75")
    assert "rank 1 ended with 70: late: others waited for it" in job.stderr


ENDLESS = """
import os, time
from pathlib import Path
import weft as wf
wf.distributed.init(timeout=60)
Path(os.environ["OUTPUT"], str(os.getpid())).touch()
while True:
    wf.distributed.all_reduce(wf.ones(3))
    time.sleep(0.01)
"""


@pytest.mark.parametrize("engine", ["mpi", "gloo"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=str)
def test_processes_end_with_their_launcher(
    number: int, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Slurm, Kubernetes or a time limit ends it, or the system for want of memory."""
    if engine == "gloo":
        pytest.importorskip("xoscar", reason="the engine gloo is not installed")
    started = tmp_path / "started"
    started.mkdir()
    monkeypatch.setenv("OUTPUT", str(started))
    script = tmp_path / "job.py"
    script.write_text(ENDLESS, encoding="utf-8")
    words = [sys.executable, "-m", "weft.cli", "launch", "-n", "2", "--engine", engine]
    job = subprocess.Popen([*words, "--folder", str(tmp_path), str(script)])
    _wait_for(lambda: len(list(started.iterdir())) == 2)
    job.send_signal(number)
    assert job.wait(timeout=60) == (128 + number if number == signal.SIGTERM else -number)
    _wait_for(lambda: not any(Path("/proc", each.name).exists() for each in started.iterdir()))
    if number == signal.SIGTERM:
        assert not list(tmp_path.glob("weft-job-*"))


def _wait_for(is_so: Callable[[], bool]) -> None:
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError("it did not become so within a minute")


RECOVERY = (
    """
import os, signal
from weft import distributed

distributed.init(timeout=30)
"""
    + LINEAR_TRAINING
    + """
optimizer = distributed.data_parallel(optimizer)
recovery = distributed.Recovery(model, optimizer, loader, epochs=2)

@wf.jit
def step(model, optimizer, x, y):
    optimizer.minimize(((model(x) - y) ** 2).mean())

own = distributed.rank()
for inputs, targets in recovery:
    with recovery.step():
        if own == 1 and recovery.steps == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        step(model, optimizer, inputs, targets)
(lost, seconds), = recovery.losses
assert lost == [1] and seconds < 20, recovery.losses  # a tenth of a second on an idle machine
assert recovery.steps == 8 and distributed.world_size() == 2
np.save(f"{os.environ['OUTPUT']}-{own}.npy", model.weight.detach().numpy())
"""
)


def test_the_others_go_on_after_a_kill_and_train_as_if_nothing_had_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTPUT", str(tmp_path / "weight"))
    job = launch(tmp_path, RECOVERY, processes=3)
    assert job.returncode == 0, job.stderr
    assert "rank 1 was lost; the others went on without it" in job.stderr
    first, third = (np.load(tmp_path / f"weight-{rank}.npy") for rank in (0, 2))
    np.testing.assert_array_equal(first, third)
    np.testing.assert_allclose(first, weight_of_one_process(2), rtol=1e-5, atol=1e-6)


TRAINER = (
    """
import os, signal
from weft import distributed

distributed.init(timeout=30)
"""
    + LINEAR_TRAINING
    + """
own, victim, when = distributed.rank(), *map(int, os.environ["VICTIM"].split(":"))

class Kill(wf.train.Callback):
    writes = False
    def on_step_begin(self, trainer):
        if own == victim and trainer.step == when:
            os.kill(os.getpid(), signal.SIGKILL)

class Noted(wf.train.Callback):
    writes = True
    def on_epoch_end(self, trainer):
        with open(os.environ["OUTPUT"] + "-epochs", "a") as file:
            print(trainer.epoch, own, file=file)

trainer = wf.train.Trainer(
    model, "mse_loss", optimizer, strategy="data", recover=True,
    metrics=["mae"], callbacks=[Kill(), Noted()], progress=False, seed=0,
    checkpoint_folder=os.environ["OUTPUT"] + "-run",
)
history = trainer.fit(loader, epochs=2, validation=loader.dataset.arrays)
(lost, seconds), = trainer.strategy.members.losses
assert lost == [victim] and seconds < 20, trainer.strategy.members.losses
assert trainer.step == 8 and trainer.epoch == 2 and len(history.rows) == 2
assert distributed.world_size() == 2
np.savez(f"{os.environ['OUTPUT']}-{own}.npz", weight=model.weight.detach().numpy(),
         loss=history["loss"], validation=history["val_loss"])
"""
)


@pytest.mark.parametrize("victim", ["0:4", "1:5"] if NIGHTLY else ["0:4"])  # the writer is lost
def test_a_trainer_goes_on_after_a_kill(
    victim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTPUT", str(tmp_path / "trained"))
    monkeypatch.setenv("VICTIM", victim)
    job = launch(tmp_path, TRAINER, processes=3)
    assert job.returncode == 0, job.stderr
    left = [rank for rank in range(3) if rank != int(victim[0])]
    first, second = (np.load(tmp_path / f"trained-{rank}.npz") for rank in left)
    for name in ("weight", "loss", "validation"):
        np.testing.assert_array_equal(first[name], second[name])
    np.testing.assert_allclose(first["weight"], weight_of_one_process(2), rtol=1e-5, atol=1e-6)
    noted = (tmp_path / "trained-epochs").read_text().split("\n")
    assert noted == ["1 0", "2 0" if victim[0] == "1" else "2 1", ""]
    assert wf.train.CheckpointFolder(tmp_path / "trained-run").latest() is not None


RESTORED = (
    """
import os, signal, sys
from weft import distributed

distributed.init(timeout=30)
"""
    + LINEAR_TRAINING
    + """
output, strategy, is_resumed = os.environ["OUTPUT"], sys.argv[1], sys.argv[2] == "resume"
own = distributed.rank()

class Kill(wf.train.Callback):
    writes = False
    def on_step_begin(self, trainer):
        if own == 0 and trainer.step == 7 and not is_resumed:
            os.kill(os.getpid(), signal.SIGKILL)

trainer = wf.train.Trainer(
    model, "mse_loss", optimizer, strategy=strategy, recover=not is_resumed, metrics=["mae"],
    callbacks=[Kill()], progress=False, seed=0, checkpoint_folder=output + "-run",
    checkpoint_every=5, keep_last=10)
history = trainer.fit(loader, epochs=3, validation=loader.dataset.arrays, resume=is_resumed)
if not is_resumed:
    (lost, seconds), = trainer.strategy.members.losses
    assert lost == [0] and seconds < 20, trainer.strategy.members.losses
assert trainer.step == 12 and len(history.rows) == 3 and distributed.world_size() == 2
weight = trainer.strategy.model_state(model)["weight"].detach().numpy()
np.savez(f"{output}-{own}.npz", weight=weight, loss=history["loss"], mae=history["val_mae"])
"""
)


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"] if NIGHTLY else ["zero3"])
def test_split_state_goes_on_from_the_last_checkpoint_with_the_bits_of_a_resumed_run(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTPUT", str(tmp_path / "trained"))
    job = launch(tmp_path, RESTORED, arguments=(strategy, "begin"), processes=3)
    assert job.returncode == 0, job.stderr
    assert "rank 0 was lost; the others went on without it" in job.stderr
    first, second = (dict(np.load(tmp_path / f"trained-{rank}.npz")) for rank in (1, 2))
    for path in (tmp_path / "trained-run").iterdir():
        if path.name > "step-00000005":
            shutil.rmtree(path)
    job = launch(tmp_path, RESTORED, arguments=(strategy, "resume"), processes=2)
    assert job.returncode == 0, job.stderr
    for name, value in np.load(tmp_path / "trained-1.npz").items():
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_array_equal(first[name], value)
    np.testing.assert_allclose(first["weight"], weight_of_one_process(3), rtol=1e-5, atol=1e-6)


RESTORED_LOOP = (
    """
import os, signal, sys
from weft import distributed

distributed.init(timeout=30)
"""
    + LINEAR_TRAINING
    + """
own, zero = distributed.rank(), int(sys.argv[1])
called = distributed.shard_model(model, optimizer) if zero == 3 else model
optimizer = distributed.data_parallel(optimizer, zero=zero)
checkpoints = distributed.ShardedCheckpoints(os.environ["OUTPUT"] + "-run")
recovery = distributed.Recovery(model, optimizer, loader, 2, checkpoints=checkpoints, every=3)

@wf.jit
def step(model, optimizer, x, y):
    optimizer.minimize(((model(x) - y) ** 2).mean())

steps = 0
for inputs, targets in recovery:
    with recovery.step():
        if own == 1 and recovery.steps == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        step(called, optimizer, inputs, targets)
        steps += 1
assert [lost for lost, _ in recovery.losses] == [[1]] and recovery.members == [0, 2]
assert recovery.steps == 8 and steps in (9, 12), (recovery.steps, steps)  # one or four again
weight = distributed.whole_state(model)["weight"].detach().numpy()
np.save(f"{os.environ['OUTPUT']}-{own}.npy", weight)
"""
)


@pytest.mark.parametrize("zero", [1, 2, 3] if NIGHTLY else [1])
def test_a_loop_with_split_state_goes_on_from_its_sharded_checkpoints(
    zero: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTPUT", str(tmp_path / "weight"))
    job = launch(tmp_path, RESTORED_LOOP, arguments=(str(zero),), processes=3)
    assert job.returncode == 0, job.stderr
    first, third = (np.load(tmp_path / f"weight-{rank}.npy") for rank in (0, 2))
    np.testing.assert_array_equal(first, third)
    np.testing.assert_allclose(first, weight_of_one_process(2), rtol=1e-5, atol=1e-6)
    assert not list((tmp_path / "weight-run").glob(".writing*"))
