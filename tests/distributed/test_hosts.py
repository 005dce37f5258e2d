"""Hosts, imitated by network namespaces: a link that is cut, and a host that is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.distributed.one_process import LINEAR_TRAINING, weight_of_one_process

JOB = """
import sys, time
from pathlib import Path
import weft as wf
from weft import distributed

distributed.init()
mean = wf.jit(lambda x: distributed.all_reduce(x, "data") / 2)
x = wf.ones((1000,))
for step in range(600):
    x = mean(x)
    time.sleep(0.05)
    if step == 4 and distributed.rank() == 0:
        Path(sys.argv[1]).touch()
print("went on", flush=True)
"""
RECOVERING_JOB = (
    """
import os, sys, time
from pathlib import Path
from weft import distributed

distributed.init("gloo")
own = distributed.rank()
"""
    + LINEAR_TRAINING
    + """
optimizer = distributed.data_parallel(optimizer)
recovery = distributed.Recovery(model, optimizer, loader, epochs=5)

@wf.jit
def step(model, optimizer, x, y):
    optimizer.minimize(((model(x) - y) ** 2).mean())

for inputs, targets in recovery:
    with recovery.step():
        if recovery.steps == 4:
            Path(f"{sys.argv[1]}-{own}").touch()
            while not Path(sys.argv[1]).exists():
                time.sleep(0.01)
        step(model, optimizer, inputs, targets)
assert recovery.steps == 20
np.save(f"{sys.argv[1]}-weight-{own}.npy", model.weight.detach().numpy())
print("went on", recovery.losses, flush=True)
"""
)
STAND_IN = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1; shift
exec ip netns exec "$host" unshare -u -i bash -c "hostname $host; cd {folder}; $*"
"""
"""What Open MPI calls in the place of ssh."""

needs_mpi = pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")


def _run(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two network namespaces with a link between them; skipped where that is not allowed."""
    names = [f"weft{os.getpid()}a", f"weft{os.getpid()}b"]
    devices = [f"wf{os.getpid()}a", f"wf{os.getpid()}b"]
    if shutil.which("ip") is None or not _run("ip", "netns", "add", names[0]):
        pytest.skip("network namespaces are not allowed here")
    folders = [Path("/etc/netns") / name for name in names]
    try:
        _run("ip", "netns", "add", names[1])
        _run("ip", "link", "add", devices[0], "type", "veth", "peer", "name", devices[1])
        table = f"127.0.0.1 localhost\n10.79.0.1 {names[0]}\n10.79.0.2 {names[1]}\n"
        for number, (name, device, folder) in enumerate(zip(names, devices, folders, strict=True)):
            _run("ip", "link", "set", device, "netns", name)
            _run("ip", "-n", name, "addr", "add", f"10.79.0.{number + 1}/24", "dev", device)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", device, "up")
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(table)
        yield names
    finally:
        for name in names:
            _end_all(name)
            _run("ip", "netns", "del", name)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _end_all(host: str) -> None:
    """Kill everything on a host."""
    listed = subprocess.run(["ip", "netns", "pids", host], capture_output=True, check=False)
    for word in listed.stdout.split():
        try:
            os.kill(int(word), signal.SIGKILL)
        except ProcessLookupError:
            continue


def _job(hosts: list[str], folder: Path, harm: Callable[[], Any]) -> tuple[int, str, str, float]:
    """Run a job of two processes on two hosts, harmed once it trains; how it ended, and when."""
    script, stand_in, begun = folder / "job.py", folder / "ssh", folder / "begun"
    script.write_text(JOB)
    stand_in.write_text(STAND_IN.format(folder=folder))
    stand_in.chmod(0o755)
    environment = {**os.environ, "PRTE_MCA_plm_ssh_agent": str(stand_in)}
    environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
    words = [sys.executable, "-m", "weft.cli", "launch", "-n", "2", "--hosts", ",".join(hosts)]
    words += ["--timeout", "4", "--threads", "1", str(script), str(begun)]
    job = subprocess.Popen(
        [str(stand_in), hosts[0], *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    limit = time.monotonic() + 120
    while not begun.exists() and job.poll() is None and time.monotonic() < limit:
        time.sleep(0.1)
    assert begun.exists(), job.communicate()[1]
    harm()
    start = time.monotonic()
    stdout, stderr = job.communicate(timeout=120)
    return job.returncode, stdout, stderr, time.monotonic() - start


@pytest.mark.slow
@needs_mpi
def test_a_cut_link_is_noticed_by_both_halves_and_neither_goes_on(
    hosts: list[str], tmp_path: Path
) -> None:
    device = f"wf{os.getpid()}a"
    code, stdout, stderr, seconds = _job(
        hosts, tmp_path, lambda: _run("ip", "-n", hosts[0], "link", "set", device, "down")
    )
    assert code == 75, stderr
    assert "went on" not in stdout
    for rank in (0, 1):
        assert f"rank {rank} waited longer than 4 s in operation" in stderr
    assert "job.py:8" in stderr
    assert seconds < 60


@pytest.mark.slow
@needs_mpi
def test_the_loss_of_a_host_is_never_a_success(hosts: list[str], tmp_path: Path) -> None:
    """Open MPI's own launcher ends with 0 then."""
    code, stdout, stderr, seconds = _job(hosts, tmp_path, lambda: _end_all(hosts[1]))
    assert code not in (0, None), stderr
    assert "went on" not in stdout
    assert "lost" in stderr
    assert seconds < 60


def _recovering_job(
    hosts: list[str], folder: Path, device: str
) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a job of gloo, a process for each host named, whose link is cut once all of them train.

    How it ended, and the seconds since the cut.
    """
    script, stand_in, begun = folder / "job.py", folder / "ssh", folder / "begun"
    script.write_text(RECOVERING_JOB)
    stand_in.write_text(STAND_IN.format(folder=folder))
    stand_in.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    count = len(hosts)
    words = [sys.executable, "-m", "weft.cli", "launch", "-n", str(count), "--hosts"]
    words += [",".join(hosts), "--engine", "gloo", "--folder", str(folder), "--timeout", "4"]
    words += ["--threads", "1", str(script), str(begun)]
    job = subprocess.Popen(
        [str(stand_in), hosts[0], *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    marks = [folder / f"begun-{rank}" for rank in range(count)]
    limit = time.monotonic() + 120
    while not all(m.exists() for m in marks) and job.poll() is None and time.monotonic() < limit:
        time.sleep(0.1)
    assert all(mark.exists() for mark in marks), job.communicate()[1]
    _run("ip", "-n", hosts[0], "link", "set", device, "down")
    begun.touch()
    start = time.monotonic()
    stdout, stderr = job.communicate(timeout=120)
    done = subprocess.CompletedProcess(words, job.returncode, stdout, stderr)
    return done, time.monotonic() - start


@pytest.mark.slow
@pytest.mark.parametrize("alone", [0, 2])
def test_of_a_cut_group_of_gloo_the_half_with_a_quorum_goes_on(
    alone: int, hosts: list[str], tmp_path: Path
) -> None:
    """The process that is alone ends: also where it is the first one, beside the launcher."""
    pytest.importorskip("xoscar", reason="the engine gloo is not installed")
    placed = [hosts[(rank == alone) ^ (alone == 0)] for rank in range(3)]
    job, seconds = _recovering_job(placed, tmp_path, f"wf{os.getpid()}a")
    assert job.returncode == 0, job.stderr
    left = [rank for rank in range(3) if rank != alone]
    assert job.stdout.count("went on") == 2
    assert f"[{alone}] went on" not in job.stdout
    assert f"rank {alone} was lost; the others went on without it" in job.stderr
    assert f"rank {alone} ended with exit code 1" in job.stderr
    assert f"rank {alone} was last in all_reduce at" in job.stderr
    line = RECOVERING_JOB.splitlines().index("        step(model, optimizer, inputs, targets)") + 1
    assert f"job.py:{line}" in job.stderr
    weights = [np.load(tmp_path / f"begun-weight-{rank}.npy") for rank in left]
    np.testing.assert_array_equal(*weights)
    np.testing.assert_allclose(weights[0], weight_of_one_process(5), rtol=1e-5, atol=1e-6)
    assert seconds < 60
