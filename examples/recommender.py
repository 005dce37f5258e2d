"""Who clicks on what: DLRM or DeepFM over hashed features and a large table of vectors.

Users, items and shops have ids of any size; each id is hashed to a row of one table. A batch
touches a few hundred of the table's 200,000 rows, and only those are read, differentiated and
updated (`take_rows`, `optimizer.step(rows=...)`). The clicks are made up from hidden tastes:
whether a user likes an item depends on the product of their two vectors, which the network must
find.

    python examples/recommender.py
    python examples/recommender.py --model dlrm --data criteo.txt

It prints the loss and the AUC (0.5 is chance, 1 is perfect) on unseen examples, and how many rows
of the table were ever touched.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

import weft as wf

Parts = tuple[Any, Any, Any]


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Load, train, test."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    ids, dense, clicks = read(options.data) if options.data else invent(options.count)
    count, cut = len(clicks), len(clicks) * 9 // 10
    kind = wf.models.DLRM if options.model == "dlrm" else wf.models.DeepFM
    net = kind(ids.shape[1], options.rows, options.width, dense.shape[1])
    print(f"{options.model}: a table of {options.rows:,} rows, {count:,} examples")
    before = net.table.weight.detach().clone()
    optimizer = wf.optim.Adagrad(net.parameters(), lr=0.05)
    step = train_step if options.eager else wf.jit(train_step)
    generator = np.random.default_rng(0)
    losses, batch = [], min(options.batch, cut)
    for epoch in range(1, options.epochs + 1):
        order = generator.permutation(cut)
        parts = []
        for start in range(0, cut - batch + 1, batch):
            rows = order[start : start + batch]
            examples = (wf.asarray(part[rows]) for part in (ids, dense, clicks))
            parts.append(step(net, optimizer, *examples).item())
        losses.append(sum(parts) / len(parts))
        print(f"epoch {epoch:2d}   loss {losses[-1]:.4f}", flush=True)
    area = auc(net, ids[cut:], dense[cut:], clicks[cut:])
    touched = int(wf.sum(wf.any(net.table.weight.detach() != before, axis=1)).item())
    print(f"AUC on unseen examples {area:.3f}; {touched:,} of {options.rows:,} rows were touched")
    return {
        "first loss": losses[0], "last loss": losses[-1], "auc": area,
        "touched": touched / options.rows,
    }  # fmt: skip


def train_step(
    net: Any, optimizer: wf.optim.Optimizer, ids: wf.Tensor, dense: wf.Tensor, clicks: wf.Tensor
) -> wf.Tensor:
    """Forward, backward, and an update of the network and of the rows that were touched."""
    places = net.places(ids)  # [batch, features]: which row each id is hashed to
    vectors = wf.optim.take_rows(net.table.weight, places)  # [batch, features, width]
    score = net.score(vectors, dense)
    loss = wf.nn.functional.binary_cross_entropy_with_logits(score, clicks)
    loss.backward()
    optimizer.step(rows=[wf.optim.Rows(net.table.weight, places, vectors.grad)])
    optimizer.zero_grad()
    return loss


def auc(net: Any, ids: Any, dense: Any, clicks: Any) -> float:
    """How often a click gets a higher score than no click."""
    with wf.no_grad():
        scores = net(wf.asarray(ids), wf.asarray(dense))
    metric = wf.train.AUC()
    metric.update(scores, wf.asarray(clicks))
    return float(metric.value())


def invent(count: int) -> Parts:
    """Ids [count, 3] of users, items and shops, dense [count, 2], clicks [count] of 0.0 or 1.0."""
    generator = np.random.default_rng(0)
    users, items, shops = 300, 200, 20
    chosen = [generator.integers(0, size, count) for size in (users, items, shops)]
    tastes, kinds = generator.normal(size=(users, 4)), generator.normal(size=(items, 4))
    liking = (tastes[chosen[0]] * kinds[chosen[1]]).sum(axis=1)
    dense = generator.normal(size=(count, 2)).astype(np.float32)
    odds = 1.5 * liking + dense[:, 0] + generator.normal(size=shops)[chosen[2]]
    clicks = generator.random(count) < 1 / (1 + np.exp(-odds))
    # ids as they come in practice: large, and not in a row
    ids = np.stack(chosen, axis=1).astype(np.int64) * 1_000_003 + 77_777_777_777
    return ids, dense, clicks.astype(np.float32)


def read(path: str) -> Parts:
    """A file of Criteo: label, I1 to I13, C1 to C26 (hexadecimal), comma separated."""
    table = wf.data.read_csv(path, dtypes={f"C{i}": str for i in range(1, 27)},
                             fill={f"C{i}": "" for i in range(1, 27)}
                             | {f"I{i}": 0 for i in range(1, 14)})  # fmt: skip
    numbers = np.stack([np.asarray(table[f"I{i}"], np.float32) for i in range(1, 14)], axis=1)
    dense = np.log1p(np.maximum(numbers, 0))
    columns = [[int(x or "0", 16) for x in table[f"C{i}"]] for i in range(1, 27)]
    return np.array(columns, np.int64).T, dense, np.asarray(table["label"], np.float32)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=["deepfm", "dlrm"], default="deepfm")
    parser.add_argument("--data", help="a file of Criteo's clicks")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--count", type=int, default=100_000, help="how many examples to make up")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    if options.quick:
        options.epochs, options.count = min(options.epochs, 2), min(options.count, 20_000)
        options.rows = min(options.rows, 20_000)
    return options


if __name__ == "__main__":
    main()
