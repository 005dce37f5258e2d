"""Several processes: steps and sums over processes, beside PyTorch's DDP and FSDP on gloo.

    python benchmarks/distributed.py --torch .venv-bench/bin/python

Runs of Weft and of PyTorch take turns, and the median of the rounds is shown. Weft's processes are
started by `weft launch` with this interpreter, PyTorch's with the one that is named.

`overlap` says how much of the time of collectives is hidden: the seconds that a step spends in
launches of collectives, with overlap and without, in turns in the same processes. `split` compares
ZeRO 3 with FSDP: seconds of a step, and bytes of parameters and state that a process holds.
`recovery` kills one of three processes in a training: the seconds until the others train again.

Each row of steps has the loss that the last step gave, over the whole batch, of both sides.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
BYTES = [1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26]
RUNS = {
    "1 process x 1 thread": (1, 1),
    "1 process x 2 threads": (1, 2),
    "2 processes x 1 thread": (2, 1),
}


# --- what a process does ---------------------------------------------------------------------


def main() -> None:
    """Measure, or be one of the processes that are measured."""
    options = arguments()
    if options.worker:
        measure = {"weft": in_weft, "torch": in_torch}[options.worker]
        numbers = measure(options)
        if numbers is not None:
            print("RESULT", json.dumps(numbers), flush=True)
        if options.worker == "torch":
            leave_torch_group()
        return
    compare(options)


def arguments() -> Namespace:
    """The command line."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--torch", default=".venv-bench/bin/python", help="its interpreter")
    parser.add_argument(
        "--works", default="sums,gpt,resnet,overlap,split,recovery", help="which, with commas"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--json", help="write the numbers here; else beside the other results")
    parser.add_argument("--worker", choices=["weft", "torch"])
    parser.add_argument("--work", default="gpt")
    parser.add_argument("--model", default="gpt", help="that of `overlap` and `split`")
    return parser.parse_args()


def times(step: Callable[[], Any], repeats: int, warm: int = 3) -> list[float]:
    """Seconds of each repetition."""
    for _ in range(warm):
        step()
    spans = []
    for _ in range(repeats):
        begin = time.perf_counter()
        step()
        spans.append(time.perf_counter() - begin)
    return spans


def share_of_task(options: Namespace, rank: int, size: int) -> tuple[Any, Any]:
    """The workload, and the task with this process's part of the batch."""
    sys.path.insert(0, str(HERE.parent))
    from suite.workloads import WORKLOADS

    is_model = options.work not in ("overlap", "split")
    workload = WORKLOADS[options.work if is_model else options.model]
    task = workload.task(options.quick, compiled=options.worker == "weft")
    task.data = {name: np.ascontiguousarray(x[rank::size]) for name, x in task.data.items()}
    return workload, task


def in_weft(options: Namespace) -> Any:
    """What one of Weft's processes measures."""
    import weft as wf
    from weft import distributed

    distributed.init()
    rank, size = distributed.rank(), distributed.world_size()
    if options.work == "sums":
        found = weft_sums(options)
        return found if rank == 0 else None
    if options.work == "overlap":
        return weft_overlap(options, rank, size)
    if options.work == "recovery":
        return weft_recovery(rank)
    workload, task = share_of_task(options, rank, size)
    from suite import with_weft

    plain = with_weft.training
    if options.work == "split":
        return weft_split(options, workload, task)
    with_weft.training = lambda task, net, optimizer, loss, data: plain(
        task, net, distributed.data_parallel(optimizer), loss, data
    )
    step = workload.sides["weft"](task)
    results: list[Any] = []
    spans = times(
        lambda: results.append(wf.tree.map_tree(lambda x: x.numpy(), step())), options.steps
    )
    losses = distributed.gather_objects(loss_of(results[-1]))
    row = {"seconds": statistics.median(spans), "loss": statistics.fmean(losses)}
    return row if rank == 0 else None


def loss_of(result: Any) -> float:
    """The loss among what a step gives: its first number."""
    first = result[0] if isinstance(result, (list, tuple)) else result
    return float(np.asarray(first).reshape(-1)[0])


def weft_recovery(rank: int) -> dict[str, float] | None:
    """The seconds from the error that tells of a killed process to a group with its state."""
    import weft as wf
    from weft import distributed

    model = wf.nn.Linear(512, 512)
    optimizer = distributed.data_parallel(wf.optim.AdamW(model.parameters()))
    data = wf.data.ArrayDataset(np.ones((96, 512), np.float32), np.ones((96, 512), np.float32))
    recovery = distributed.Recovery(model, optimizer, wf.data.DataLoader(data, batch_size=12), 4)
    step = wf.jit(lambda m, o, x, y: o.minimize(((m(x) - y) ** 2).mean()))
    for x, y in recovery:
        with recovery.step():
            if rank == 1 and recovery.steps == 9:
                os.kill(os.getpid(), signal.SIGKILL)
            step(model, optimizer, x, y)
    (_, seconds), *_ = recovery.losses
    return {"seconds": seconds, "steps": recovery.steps} if rank == 0 else None


def weft_sums(options: Namespace) -> dict[str, list[float]]:
    """Sums over processes: compiled, and by mpi4py alone in pieces and in place."""
    from mpi4py import MPI

    import weft as wf
    from weft import distributed
    from weft.distributed.engines.mpi import PIECE

    found: dict[str, list[float]] = {"compiled": [], "mpi4py": []}
    total = wf.jit(lambda x: distributed.all_reduce(x))
    for size in sizes_of(options):
        array = np.ones(size // 4, np.float32)
        tensor = wf.tensor(array)
        repeats = max(5, min(200, (1 << 24) // size))
        found["compiled"].append(statistics.median(times(lambda t=tensor: total(t), repeats)))

        def alone(array: np.ndarray = array) -> None:
            for start in range(0, array.size, PIECE // 4):
                MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array[start : start + PIECE // 4])

        found["mpi4py"].append(statistics.median(times(alone, repeats)))
    return found


def weft_overlap(options: Namespace, rank: int, size: int) -> dict[str, Any] | None:
    """Steps with overlap and without, in turns: how long they take, and how long collectives do."""
    from suite import with_weft

    import weft as wf
    from weft import distributed
    from weft.compiler.targets.cpu.target import CPU

    plain = with_weft.training
    with_weft.training = lambda task, net, optimizer, loss, data: plain(
        task, net, distributed.data_parallel(optimizer), loss, data
    )
    exposed: list[float] = []

    def observe(plan: Any, sizes: Any, spans: Any) -> None:
        pairs = zip(plan.launches, spans, strict=False)
        times = [end - start for launch, (start, end) in pairs if launch.kind == "collective"]
        exposed.append(sum(times) / 1e9)

    found: dict[str, dict[str, list[float]]] = {}
    steps = {}
    for name in ("on", "off"):
        with wf.settings.changed(overlap=name == "on"):
            workload, task = share_of_task(options, rank, size)
            steps[name] = workload.sides["weft"](task)
            times(lambda name=name: steps[name]().numpy(), 1)
        found[name] = {"seconds": [], "exposed": [], "processor": []}
    for _ in range(options.steps):
        for name, step in steps.items():
            with wf.settings.changed(overlap=name == "on"):
                distributed.barrier()
                begin = time.process_time()
                found[name]["seconds"] += times(lambda step=step: step().numpy(), 1, warm=0)
                found[name]["processor"].append(time.process_time() - begin)
                exposed.clear()
                distributed.barrier()
                with CPU.watch(observe):
                    step().numpy()
                found[name]["exposed"].append(sum(exposed))
    rows = {name: {k: statistics.median(v) for k, v in row.items()} for name, row in found.items()}
    return rows if rank == 0 else None


def weft_split(options: Namespace, workload: Any, task: Any) -> dict[str, Any] | None:
    """A step with parameters split over processes, and what a process holds of the state."""
    from suite import with_weft

    from weft import distributed

    held: dict[str, Any] = {}
    plain = with_weft.training

    def training(task: Any, net: Any, optimizer: Any, loss: Any, data: Any) -> Any:
        held["whole"] = sum(p.size * p.dtype.itemsize for p in net.parameters())
        called = distributed.shard_model(net, optimizer)
        distributed.data_parallel(optimizer, zero=3)
        held["optimizer"] = optimizer
        return plain(task, called, optimizer, loss, data)

    with_weft.training = training
    step = workload.sides["weft"](task)
    results: list[Any] = []
    spans = times(lambda: results.append(step().numpy()), options.steps)
    losses = distributed.gather_objects(loss_of(results[-1]))
    optimizer = held["optimizer"]
    state = [value for slots in optimizer.state for value in slots.values() if value.ndim]
    own = sum(t.size * t.dtype.itemsize for t in [*optimizer.parameters, *state])
    kept = sum(t.size * t.dtype.itemsize for t in optimizer.parameters)
    whole = held["whole"] * own / kept
    row = {"seconds": statistics.median(spans), "held": own, "whole": whole, "rss": peak_memory()}
    return {**row, "loss": statistics.fmean(losses)} if distributed.rank() == 0 else None


def peak_memory() -> int:
    """The most bytes that this process had in memory."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def sizes_of(options: Namespace) -> list[int]:
    """How many bytes are summed."""
    return BYTES[:4] if options.quick else BYTES


def in_torch(options: Namespace) -> Any:
    """What one of PyTorch's processes measures."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(int(os.environ["THREADS"]))
    if size > 1:
        dist.init_process_group("gloo", rank=rank, world_size=size)
    if options.work == "sums":
        spans = []
        for count in sizes_of(options):
            tensor = torch.ones(count // 4)
            repeats = max(5, min(200, (1 << 24) // count))
            spans.append(statistics.median(times(lambda t=tensor: dist.all_reduce(t), repeats)))
        return {"gloo": spans} if rank == 0 else None
    workload, task = share_of_task(options, rank, size)
    from suite import with_torch

    plain = with_torch.training
    if options.work == "split":
        return torch_split(options, workload, task)
    if size > 1:
        with_torch.training = lambda task, net, optimizer, loss, data: plain(
            task, DistributedDataParallel(net), optimizer, loss, data
        )
    step = workload.sides["torch"](task)
    results: list[float] = []
    spans = times(lambda: results.append(step().item()), options.steps)
    row = {"seconds": statistics.median(spans), "loss": mean_in_torch(results[-1])}
    return row if rank == 0 else None


def mean_in_torch(number: float) -> float:
    """The mean of all processes' numbers."""
    import torch
    import torch.distributed as dist

    total = torch.tensor([number], dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(total)
        total /= dist.get_world_size()
    return float(total)


def leave_torch_group() -> None:
    """End a process of PyTorch's with the others: gloo's threads abort one that just leaves."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def torch_split(options: Namespace, workload: Any, task: Any) -> dict[str, Any] | None:
    """A step of PyTorch with `fully_shard` for each block and the rest, as its manual shows."""
    import torch.distributed as dist
    from suite import with_torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    held: dict[str, Any] = {}
    plain = with_torch.training

    def training(task: Any, net: Any, optimizer: Any, loss: Any, data: Any) -> Any:
        held["whole"] = sum(p.numel() * p.element_size() for p in net.parameters())
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for lists in [m for m in net.modules() if type(m).__name__ == "ModuleList"]:
            for block in lists:
                fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
        settings = {name: optimizer.defaults[name] for name in ("lr", "weight_decay")}
        held["optimizer"] = type(optimizer)(net.parameters(), **settings)
        return plain(task, net, held["optimizer"], loss, data)

    with_torch.training = training
    step = workload.sides["torch"](task)
    results: list[float] = []
    spans = times(lambda: results.append(step().item()), options.steps)
    mean_loss = mean_in_torch(results[-1])
    optimizer = held["optimizer"]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = [v for p in parameters for v in optimizer.state[p].values() if v.ndim]
    bytes_of = lambda t: t.to_local().numel() * t.element_size()  # noqa: E731
    own, kept = sum(map(bytes_of, [*parameters, *state])), sum(map(bytes_of, parameters))
    whole = held["whole"] * own / kept
    row = {"seconds": statistics.median(spans), "held": own, "whole": whole, "rss": peak_memory()}
    return {**row, "loss": mean_loss} if dist.get_rank() == 0 else None


# --- starting them -----------------------------------------------------------------------------


def run(options: Namespace, side: str, work: str, processes: int, threads: int) -> Any:
    """One run of one side; what its first process found."""
    words = [str(HERE), "--worker", side, "--work", work, "--steps", str(options.steps)]
    words += ["--model", options.model, *(["--quick"] if options.quick else [])]
    if side == "weft":
        launch = ["-m", "weft.cli", "launch", "-n", str(processes), "--threads", str(threads)]
        outputs = [finish([start([sys.executable, *launch, *words], {})])[0]]
    else:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        shared = {
            "MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": processes,
            "THREADS": threads, "OMP_NUM_THREADS": threads,
        }  # fmt: skip
        outputs = finish(
            [start([options.torch, *words], {**shared, "RANK": r}) for r in range(processes)]
        )
    for line in "".join(outputs).splitlines():
        if "RESULT" in line:
            return json.loads(line.split("RESULT", 1)[1])
    raise SystemExit(f"{side} {work} gave no result")


def start(words: list[str], variables: dict[str, Any]) -> subprocess.Popen[str]:
    """A process, and what it prints."""
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)


def finish(jobs: list[subprocess.Popen[str]]) -> list[str]:
    """What the processes printed, once all have ended well."""
    outputs = [job.communicate()[0] for job in jobs]
    if any(job.returncode for job in jobs):
        raise SystemExit(f"a process ended with {[job.returncode for job in jobs]}")
    return outputs


def compare(options: Namespace) -> None:
    """Run everything, the sides in turns, and print tables."""
    found: dict[str, Any] = {}
    for work in options.works.split(","):
        table = TABLES.get(work)
        found[work] = steps_table(options, work) if table is None else table(options)
    usual = None if options.quick else HERE.parent / "results" / "distributed.json"
    if path := options.json or usual:
        Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def sums_table(options: Namespace) -> dict[str, list[float]]:
    """Times of sums of float32 over two processes."""
    rounds: dict[str, list[list[float]]] = {}
    for _ in range(options.rounds):
        for side in ("weft", "torch"):
            for name, spans in run(options, side, "sums", 2, 1).items():
                rounds.setdefault(name, []).append(spans)
    found = {name: np.median(spans, axis=0).tolist() for name, spans in rounds.items()}
    print(f"\n{'bytes':>10}" + "".join(f"{name:>14}" for name in found))
    for place, size in enumerate(sizes_of(options)):
        spans = "".join(f"{found[name][place] * 1e6:>11.1f} us" for name in found)
        print(f"{size:>10}{spans}")
    return found


def overlap_table(options: Namespace) -> dict[str, dict[str, float]]:
    """How long collectives hold up a step, with overlap and without."""
    rounds = [run(options, "weft", "overlap", 2, 1) for _ in range(options.rounds)]
    found = {
        name: {k: statistics.median(each[name][k] for each in rounds) for k in rounds[0][name]}
        for name in rounds[0]
    }
    print(f"\n{options.model}, overlap{'step':>12}{'processor':>12}{'in collectives':>16}")
    for name, row in found.items():
        cells = f"{row['seconds'] * 1e3:>9.1f} ms{row['processor'] * 1e3:>9.1f} ms"
        print(f"{name:<{len(options.model) + 9}}{cells}{row['exposed'] * 1e3:>13.1f} ms")
    hidden = 1 - found["on"]["exposed"] / found["off"]["exposed"]
    print(f"hidden: {hidden:.0%} of the time of collectives")
    return found


def split_table(options: Namespace) -> dict[str, dict[str, float]]:
    """ZeRO 3 beside FSDP, both with two processes."""
    rounds: dict[str, list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for side in ("weft", "torch"):
            rounds.setdefault(side, []).append(run(options, side, "split", 2, 1))
    found = {
        side: {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        for side, rows in rounds.items()
    }
    titles = f"{'step':>12}{'state held':>14}{'of 1/n':>8}{'peak memory':>14}{'loss':>10}"
    print(f"\n{options.model}, split{titles}")
    for side, row in found.items():
        share = row["held"] / (row["whole"] / 2)
        cells = f"{row['seconds'] * 1e3:>9.1f} ms{row['held'] / 1e6:>11.2f} MB{share:>8.3f}"
        cells += f"{row['rss'] / 1e6:>11.0f} MB{row['loss']:>10.5f}"
        print(f"{side:<{len(options.model) + 7}}{cells}")
    return found


def recovery_table(options: Namespace) -> dict[str, float]:
    """How long it takes to go on after a process of three was killed."""
    spans = [run(options, "weft", "recovery", 3, 1)["seconds"] for _ in range(options.rounds)]
    found = {"median": statistics.median(spans), "most": max(spans)}
    print(f"\nrecovery: {found['median']:.2f} s in the median, {found['most']:.2f} s at most")
    return found


TABLES: dict[str, Callable[[Namespace], Any]] = {
    "sums": sums_table, "overlap": overlap_table, "split": split_table, "recovery": recovery_table,
}  # fmt: skip


def numbers_of_step(
    options: Namespace, side: str, work: str, processes: int, threads: int
) -> dict[str, float]:
    """Seconds and loss; NaN where the other side's run fails, which ends nothing here."""
    try:
        row: dict[str, float] = run(options, side, work, processes, threads)
    except SystemExit as error:
        if side == "weft":
            raise
        print(f"{side}, {work}, {processes} x {threads}: {error}")
        return {"seconds": float("nan"), "loss": float("nan")}
    return row


def steps_table(options: Namespace, work: str) -> dict[str, dict[str, float]]:
    """Times of training steps of the same global batch."""
    rounds: dict[str, dict[str, list[float]]] = {}
    losses: dict[str, dict[str, float]] = {}
    for _ in range(options.rounds):
        for name, (processes, threads) in RUNS.items():
            for side in ("weft", "torch"):
                row = numbers_of_step(options, side, work, processes, threads)
                rounds.setdefault(name, {}).setdefault(side, []).append(row["seconds"])
                losses.setdefault(name, {})[f"{side} loss"] = row["loss"]
    found = {
        name: {side: float(np.nanmedian(spans)) for side, spans in sides.items()}
        for name, sides in rounds.items()
    }
    print(f"\n{work:<24}{'weft':>12}{'torch':>12}{'ratio':>8}{'losses':>22}")
    for name, sides in found.items():
        weft, torch = sides["weft"], sides["torch"]
        both = " ".join(f"{loss:>10.5f}" for loss in losses[name].values())
        print(f"{name:<24}{weft * 1e3:>9.1f} ms{torch * 1e3:>9.1f} ms{weft / torch:>8.2f} {both}")
    one, two = found["1 process x 1 thread"], found["2 processes x 1 thread"]
    for side in one:
        print(f"{side}: 2 processes reach {one[side] / two[side] / 2:.2f} of perfect scaling")
    return {name: {**sides, **losses[name]} for name, sides in found.items()}


if __name__ == "__main__":
    main()
