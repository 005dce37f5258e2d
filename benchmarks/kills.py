"""Random kills of processes in training: every run must end, and as an unharmed one does.

    python benchmarks/kills.py --kills 100
    python benchmarks/kills.py --kills 20 --strategy pipeline

Each run trains with the trainer's recovery in four processes; one or two of them, chosen by chance,
are killed at random moments. A run is good if it ends with code 0, if each kill had at most one
step done again, if all that are left have the same weights, and if these are those of an unharmed
run within rounding. Where half of the processes are lost at once, the first among them, the others
must not go on: such a run is good if it ends with that error. With `--engine gloo` killed processes
are started again, and join. With `--strategy` other than "data" those that are left go on from the
last checkpoint, and a run is also good if it ends by the error that they are too few for the mesh.
With `--json FILE` runs are added to those in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

JOB = """
import json, os, signal, threading, time
import numpy as np
import weft as wf
from weft import distributed
from weft.distributed import sharing
from weft.distributed.process_group import restarts

sharing.BUCKET = 1 << 17  # so that small gradients, too, travel while others are computed
plan = json.loads(os.environ["KILLS"])
strategy, every = os.environ["STRATEGY"], int(os.environ["EVERY"])
distributed.init(os.environ["ENGINE"], timeout=60)
generator = np.random.default_rng(0)
x = generator.normal(size=(960, 16)).astype(np.float32)
y = np.sin(x @ generator.normal(size=(16, 4))).astype(np.float32)
wf.random.seed(0)
between = (wf.nn.MixtureOfExperts(160, 160, experts=4, capacity_factor=8.0)
           if strategy == "experts" else wf.nn.Linear(160, 160))
model = wf.nn.Sequential(
    wf.nn.Linear(16, 160), wf.nn.Tanh(), between, wf.nn.Tanh(), wf.nn.Linear(160, 4))
if strategy == "experts":
    distributed.shard_experts(model)
placements = {"0.*": distributed.split(0, "model"), "4.weight": distributed.split(1, "model")}
half = max(distributed.world_size() // 2, 1)
used = {
    "mesh": lambda: wf.train.MeshStrategy(placements, data=half, model=2),
    "pipeline": lambda: wf.train.PipelineStrategy(stages=2),
    "experts": lambda: "data",
}.get(strategy, lambda: strategy)()
folder = None if strategy == "data" else os.environ["OUTPUT"] + "-run"
own, begun = distributed.rank() if not restarts() else int(os.environ["WEFT_RANK"]), 0

def die():
    with open(os.environ["OUTPUT"] + f"-killed-{own}", "a") as file:
        print("killed", file=file, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

class Watch(wf.train.Callback):
    writes = False
    def on_step_begin(self, trainer):
        global begun
        if begun == 0 and str(own) in plan and not restarts():
            timer = threading.Timer(plan[str(own)], die)
            timer.daemon = True
            timer.start()
        begun += 1

trainer = wf.train.Trainer(
    model, "mse_loss", wf.optim.AdamW(model.parameters(), lr=0.01), strategy=used, recover=True,
    callbacks=[Watch()], progress=False, seed=0, checkpoint_folder=folder,
    checkpoint_every=every if folder else None)
loader = wf.data.DataLoader(wf.data.ArrayDataset(x, y), batch_size=48, shuffle=True, seed=0)
start = time.monotonic()
history = trainer.fit(loader, epochs=int(os.environ["EPOCHS"]), validation=(x, y))
members = trainer.strategy.members
weights = [p.numpy() for p in trainer.strategy.model_state(model).values()]
np.savez(os.environ["OUTPUT"] + f"-{own}.npz", *weights)
if not restarts():
    result = {"losses": members.losses, "joined": members.joined, "step": trainer.step,
              "again": begun - trainer.step, "loss": history["val_loss"][-1],
              "training_seconds": time.monotonic() - start}
    with open(os.environ["OUTPUT"] + f"-{own}.json", "w") as file:
        json.dump(result, file)
"""


STRATEGIES = ("data", "zero1", "zero2", "zero3", "mesh", "pipeline", "experts")
EVERY = 10
"""Steps from one checkpoint to the next, where state is divided."""


def run_job(folder: Path, kills: dict[int, float], options: argparse.Namespace) -> dict[str, Any]:
    """One training with kills after so many seconds, by rank; what came of it."""
    script, output = folder / "job.py", folder / f"run-{time.monotonic_ns()}"
    script.write_text(JOB, encoding="utf-8")
    environment = {
        **os.environ, "KILLS": json.dumps(kills), "OUTPUT": str(output), "ENGINE": options.engine,
        "EPOCHS": str(options.epochs), "STRATEGY": options.strategy, "EVERY": str(EVERY),
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }  # fmt: skip
    words = [sys.executable, "-m", "weft.cli", "launch", "-n", str(options.processes)]
    words += ["--engine", options.engine, "--threads", "1", "--timeout", "60"]
    words += ["--restarts", "1"] if options.engine == "gloo" else []
    begin = time.monotonic()
    job = subprocess.run(
        [*words, str(script)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    reports = [json.loads(path.read_text()) for path in folder.glob(f"{output.name}-[0-9].json")]
    weights = sorted(folder.glob(f"{output.name}-[0-9].npz"))
    killed = len(list(folder.glob(f"{output.name}-killed-*")))
    return {
        "code": job.returncode, "reports": reports, "weights": weights, "kills": killed,
        "seconds": time.monotonic() - begin, "error": job.stderr[-2000:],
    }  # fmt: skip


def is_refused(run: dict[str, Any]) -> bool:
    """Whether so many were lost that the others must not go on, or are no mesh, and said so."""
    by_quorum = run["kills"] > 1 and "too few processes are left" in run["error"]
    return bool(run["code"]) and (by_quorum or "are too few for the mesh" in run["error"])


def faults_of(run: dict[str, Any], unharmed: dict[str, Any], again: int) -> list[str]:
    """What is wrong with a run."""
    import numpy as np

    if is_refused(run):
        return []
    if run["code"] or not run["reports"]:
        return [f"ended with {run['code']}: {run['error']}"]
    faults = []
    for report in run["reports"]:
        if report["again"] > again * (len(report["losses"]) + len(report["joined"])):
            faults.append(f"{report['again']} steps done again in {len(report['losses'])} losses")
        if report["step"] != unharmed["reports"][0]["step"]:
            faults.append(f"{report['step']} steps instead of {unharmed['reports'][0]['step']}")
    first, plain = np.load(run["weights"][0]), np.load(unharmed["weights"][0])
    for path in run["weights"][1:]:
        other = np.load(path)
        if any(not np.array_equal(first[name], other[name]) for name in first.files):
            faults.append("processes have different weights")
    apart = max(float(np.abs(first[name] - plain[name]).max()) for name in first.files)
    if apart > 1e-3:
        faults.append(f"weights are {apart:.2e} from those of an unharmed run")
    return faults


def main() -> int:
    """Run until so many processes were killed, or the time is over."""
    options = arguments()
    generator, begin = random.Random(options.seed), time.monotonic()
    written = options.json is not None and options.json.exists()
    rows: list[dict[str, Any]] = json.loads(options.json.read_text())["runs"] if written else []
    wanted = options.kills + sum(row["killed"] for row in rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unharmed = [run_job(folder, {}, options) for _ in range(options.unharmed)]
        for each in unharmed:
            if each["code"]:
                print(each["error"])
                return 1
        plain = unharmed[-1]  # the first one compiles
        latest = 0.4 * plain["reports"][0]["training_seconds"]
        print(f"unharmed: {plain['reports'][0]['step']} steps, {plain['seconds']:.1f} s, "
              f"loss {plain['reports'][0]['loss']:.6f}")  # fmt: skip
        while sum(row["killed"] for row in rows) < wanted:
            if time.monotonic() - begin > options.seconds:
                break
            victims = generator.sample(range(options.processes), generator.choice([1, 2, 2]))
            kills = {rank: generator.uniform(0.0, latest) for rank in victims}
            again = 1 if options.strategy == "data" else EVERY
            row = row_of(run_job(folder, kills, options), plain, victims, again)
            row |= {"engine": options.engine, "strategy": options.strategy, "seed": options.seed}
            row["unharmed_losses"] = [each["reports"][0]["loss"] for each in unharmed]
            rows.append(row)
            print(f"run {len(rows)}: {row['killed']} of {victims} killed, {row['seconds']:.1f} s, "
                  f"{row['outcome']}", flush=True)  # fmt: skip
            if options.json is not None:
                text = json.dumps({"total": total_of(rows), "runs": rows}, indent=1)
                options.json.write_text(text + "\n", encoding="utf-8")
    total = total_of(rows)
    print(", ".join(f"{name}: {value}" for name, value in total.items()))
    return bool(total["bad"])


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--engine", choices=["mpi", "gloo"], default="mpi")
    parser.add_argument("--strategy", choices=STRATEGIES, default="data")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no run after that")
    parser.add_argument("--unharmed", type=int, default=2, help="runs without a kill, for the loss")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="add the runs to those in this file")
    return parser.parse_args()


def row_of(
    run: dict[str, Any], unharmed: dict[str, Any], victims: list[int], again: int
) -> dict[str, Any]:
    """What a run has shown; `again`: how many steps may be done again for each loss."""
    faults, reports = faults_of(run, unharmed, again), run["reports"]
    good = "ended by the rule" if is_refused(run) else "as unharmed"
    return {
        "killed": run["kills"], "victims": victims, "seconds": round(run["seconds"], 2),
        "outcome": "; ".join(faults) or good, "bad": bool(faults), "refused": is_refused(run),
        "steps_again": max([report["again"] for report in reports], default=0),
        "recovery_seconds": [s for report in reports[:1] for _, s in report["losses"]],
        "loss": reports[0]["loss"] if reports else None,
    }  # fmt: skip


def total_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The sums over all runs."""
    recoveries = [seconds for row in rows for seconds in row["recovery_seconds"]]
    return {
        "kills": sum(row["killed"] for row in rows), "runs": len(rows),
        "as unharmed": sum(not row["bad"] and not row["refused"] for row in rows),
        "ended by the rule": sum(row["refused"] for row in rows),
        "bad": sum(row["bad"] for row in rows), "recoveries": len(recoveries),
        "slowest recovery": round(max(recoveries, default=0.0), 3),
        "most steps again": max([row["steps_again"] for row in rows], default=0),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
