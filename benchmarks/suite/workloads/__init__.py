"""Every workload, by its name."""

from suite.task import CARD, Workload
from suite.workloads import (
    card,
    chain,
    deepfm,
    generation,
    gpt,
    lenet,
    lstm,
    minilm,
    mlp,
    overhead,
    products,
    resnet,
)

PARTS = products, chain, mlp, lenet, gpt, resnet, lstm, deepfm, minilm, generation, overhead
ON_PROCESSORS: dict[str, Workload] = {
    name: workload
    for training in (True, False)
    for part in PARTS
    for name, workload in part.WORKLOADS.items()
    if training != name.endswith("-infer")
}
WORKLOADS = card.WORKLOADS if CARD else ON_PROCESSORS
