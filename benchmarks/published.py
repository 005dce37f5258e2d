"""Simulated steps beside published ones: Megatron-LM's and MegaScale's tables of GPT training.

    python benchmarks/published.py

The pipelines of the tables are simulated event by event, with tensor parallel sums inside of stages
and the sum of gradients along data at the end. Rates are those of the machines (A100, 312 TFLOP/s;
NVLink 300 GB/s and InfiniBand 25 GB/s for each card). One number is fitted for each table, to its
first row: the share of the peak that products reach. All other rows are predictions; their errors
are printed. What the tables do not say is assumed: micro-batches of one sequence, four for models
without a pipeline, and two chunks where layers allow it.

Sources: Narayanan et al., "Efficient large-scale language model training on GPU clusters using
Megatron-LM", 2021, arXiv 2104.04473, table 1 (activations are computed again). Jiang et al.,
"MegaScale: scaling large language model training to more than 10,000 GPUs", 2024, arXiv 2402.15627,
tables 1 and 2 (6 chunks).
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

from weft.distributed.stages.order import pipeline_order
from weft.distributed.stages.timeline import simulate_pipeline

PEAK, NVLINK, INFINIBAND = 312e12, 300e9, 25e9
LATENCY = 10e-6
SEQUENCE = 2048


class Run(NamedTuple):
    """One row of a table: a model, how it is divided, and the seconds of a step that were told."""

    name: str
    hidden: int
    layers: int
    tensor: int
    stages: int
    cards: int
    batch: int
    seconds: float
    vocabulary: int = 51200
    chunks: int = 0
    """0: two where there are enough layers."""
    recompute: bool = True
    overlap: bool = False
    """Whether sums over tensors and gradients run beside the work."""


def told_flops(run: Run) -> float:
    """Operations of a step as Megatron-LM counts them, with activations computed again."""
    tokens = run.batch * SEQUENCE
    inner = 1 + SEQUENCE / (6 * run.hidden) + run.vocabulary / (16 * run.layers * run.hidden)
    return 96 * tokens * run.layers * run.hidden**2 * inner


MEGATRON_ROWS = [
    # billions of parameters, hidden, layers, tensor, stages, cards, batch, TFLOP/s of a card
    (1.7, 2304, 24, 1, 1, 32, 512, 137),
    (3.6, 3072, 30, 2, 1, 64, 512, 138),
    (7.5, 4096, 36, 4, 1, 128, 512, 142),
    (18.4, 6144, 40, 8, 1, 256, 1024, 135),
    (39.1, 8192, 48, 8, 2, 512, 1536, 138),
    (76.1, 10240, 60, 8, 4, 1024, 1792, 140),
    (145.6, 12288, 80, 8, 8, 1536, 2304, 148),
    (310.1, 16384, 96, 8, 16, 1920, 2160, 155),
    (529.6, 20480, 105, 8, 35, 2520, 2520, 163),
    (1008.0, 25600, 128, 8, 64, 3072, 3072, 163),
]
MEGASCALE_ROWS = {
    "Megatron-LM 175B": [
        (256, 768, 40.0), (512, 768, 21.2), (768, 768, 15.2), (1024, 768, 11.9),
        (3072, 6144, 29.02), (6144, 6144, 14.78), (8192, 6144, 12.24), (12288, 6144, 8.57),
    ],
    "MegaScale 175B": [
        (256, 768, 32.0), (512, 768, 16.5), (768, 768, 11.5), (1024, 768, 8.9),
        (3072, 6144, 23.66), (6144, 6144, 12.21), (8192, 6144, 9.56), (12288, 6144, 6.34),
    ],
}  # fmt: skip
"""For each system of MegaScale's table 2: cards, batch, seconds of a step."""


def tables() -> dict[str, list[Run]]:
    """The rows of all tables."""
    found: dict[str, list[Run]] = {"Megatron-LM, table 1": []}
    for size, *numbers, rate in MEGATRON_ROWS:
        run = Run(f"{size}B on {numbers[4]}", *map(int, numbers), seconds=0.0)
        seconds = told_flops(run) / (rate * 1e12 * run.cards)
        found["Megatron-LM, table 1"].append(run._replace(seconds=seconds))
    for name, rows in MEGASCALE_ROWS.items():
        found[f"{name}, table 2 of MegaScale"] = [
            Run(
                f"batch {batch} on {cards}", 12288, 96, 8, 8, cards, batch, seconds, 64000,
                chunks=6, recompute=False, overlap=name.startswith("MegaScale"),
            )
            for cards, batch, seconds in rows
        ]  # fmt: skip
    return found


def simulated_seconds(run: Run, share: float) -> float:
    """The seconds of a step, where products reach a share of the peak."""
    data = run.cards // (run.tensor * run.stages)
    own = run.batch // data  # sequences of one pipeline
    size = min(1 if run.stages > 1 else 4, own)
    micro_batches = own // size
    layers = run.layers // run.stages
    chunks = run.chunks or (2 if layers % 2 == 0 and micro_batches % run.stages == 0 else 1)
    chunks = chunks if run.stages > 1 and micro_batches % run.stages == 0 else 1
    tokens = size * SEQUENCE
    # one layer, forward: 24 h² and 4 s h operations for each token, and two sums over tensors
    operations = tokens * (24 * run.hidden**2 + 4 * SEQUENCE * run.hidden)
    compute = operations / run.tensor / (share * PEAK)
    moved = 2 * (run.tensor - 1) / run.tensor * 2 * tokens * run.hidden
    sums = 0.0 if run.overlap or run.tensor == 1 else 2 * (LATENCY + moved / NVLINK)
    forward = compute + sums
    backward = 2 * compute + sums + (forward if run.recompute else 0.0)
    logits = 2 * tokens * run.hidden * run.vocabulary / run.tensor / (share * PEAK)
    count = run.stages * chunks
    each = layers / chunks
    ahead, back = [each * forward] * count, [each * backward] * count
    ahead[-1], back[-1] = ahead[-1] + logits, back[-1] + 2 * logits
    message = 0.0 if run.overlap else LATENCY + 2 * tokens * run.hidden / run.tensor / INFINIBAND
    schedule = "interleaved" if chunks > 1 else "1f1b"
    order = pipeline_order(schedule, run.stages, micro_batches, chunks)
    step = simulate_pipeline(order, ahead, back, message).seconds
    parameters = 12 * run.layers * run.hidden**2 / (run.tensor * run.stages)
    reduce = 2 * (data - 1) / data * 2 * parameters / INFINIBAND
    return step + (0.0 if run.overlap else reduce)


def fitted_share(run: Run) -> float:
    """The share of the peak with which the simulated step takes as long as was told."""
    low, high = 0.05, 1.5
    for _ in range(40):
        middle = (low + high) / 2
        if simulated_seconds(run, middle) > run.seconds:
            low = middle
        else:
            high = middle
    return high


def main() -> None:
    """Print each table with its predictions."""
    for title, runs in tables().items():
        share = fitted_share(runs[0])
        print(f"{title}: products at {share:.3f} of the peak, fitted to the first row")
        errors = []
        for run in runs:
            seconds = simulated_seconds(run, share)
            error = seconds / run.seconds - 1
            print(f"  {run.name:22} told {run.seconds:7.2f} s, simulated {seconds:7.2f} s, "
                  f"{error:+7.1%}")  # fmt: skip
            errors.append(abs(error))
        print(f"  error of the other rows: {statistics.fmean(errors[1:]):.1%} in the mean, "
              f"{max(errors[1:]):.1%} at most")  # fmt: skip


if __name__ == "__main__":
    main()
