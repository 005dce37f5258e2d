"""Knowledge distillation: a small network learns from a large one, with few true labels.

A teacher reads digits well. Its student has a fortieth of the weights and only 60 labelled images;
but it may ask the teacher about all others. It learns not the teacher's answers but its shades of
doubt: probabilities, softened by a temperature (Hinton et al., 2015). Beside it, the same student
learns from the 60 labels alone.

    python examples/distillation.py

It prints the accuracy of the teacher and of both students on unseen digits.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np

import weft as wf
from weft.nn import functional as F  # noqa: N812

TEMPERATURE = 3.0
LABELLED = 60


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train three networks."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    train, test = wf.data.sets.load_digits()
    teacher = wf.models.MLP([64, 256, 256, 10], dropout=0.2)
    student, alone = (wf.models.MLP([64, 24, 10]) for _ in range(2))
    for network, name in ((teacher, "teacher"), (student, "student")):
        print(f"{name}: {sum(p.size for p in network.parameters()):,} parameters")
    from_labels = learn_labels if options.eager else wf.jit(learn_labels)
    from_teacher = learn_answers if options.eager else wf.jit(learn_answers)

    optimizer = wf.optim.Adam(teacher.parameters(), lr=2e-3)
    for rows in batches(len(train.labels), options.epochs):
        from_labels(teacher, optimizer, train.inputs[rows], train.labels[rows])
    teacher.eval()

    optimizer = wf.optim.Adam(alone.parameters(), lr=5e-3)
    for rows in batches(LABELLED, options.epochs * len(train.labels) // LABELLED, LABELLED):
        from_labels(alone, optimizer, train.inputs[rows], train.labels[rows])

    optimizer = wf.optim.Adam(student.parameters(), lr=5e-3)
    for rows in batches(len(train.labels), 2 * options.epochs):
        from_teacher(student, optimizer, train.inputs[rows], teacher)

    results = {
        name: accuracy(network, test.inputs, test.labels)
        for name, network in (("teacher", teacher), ("alone", alone), ("student", student))
    }
    for name, right in results.items():
        print(f"{name:8} {100 * right:.1f} % of unseen digits")
    return results


def learn_labels(
    net: wf.nn.Module, optimizer: wf.optim.Optimizer, x: wf.Tensor, y: wf.Tensor
) -> wf.Tensor:
    """One step towards true labels."""
    loss = F.cross_entropy(net(x), y)
    optimizer.minimize(loss)
    return loss


def learn_answers(
    student: wf.nn.Module, optimizer: wf.optim.Optimizer, x: wf.Tensor, teacher: wf.nn.Module
) -> wf.Tensor:
    """One step towards the teacher's softened probabilities [batch, classes]."""
    with wf.no_grad():
        wanted = wf.softmax(teacher(x) / TEMPERATURE, axis=1)
    # times the temperature's square: gradients then are as large as those of labels
    loss = F.cross_entropy(student(x) / TEMPERATURE, wanted) * TEMPERATURE**2
    optimizer.minimize(loss)
    return loss


def batches(count: int, epochs: int, size: int = 64) -> Iterator[wf.Tensor]:
    """Row numbers in a random order, epoch after epoch."""
    generator = np.random.default_rng(0)
    for _ in range(epochs):
        order = generator.permutation(count)
        for start in range(0, count - size + 1, size):
            yield wf.asarray(order[start : start + size])


def accuracy(net: wf.nn.Module, x: wf.Tensor, y: wf.Tensor) -> float:
    """The share that was read right."""
    net.eval()
    with wf.no_grad():
        right = wf.argmax(net(x), axis=1) == y
    return wf.mean(right.astype(wf.float32)).item()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    options.epochs = min(options.epochs, 6) if options.quick else options.epochs
    return options


if __name__ == "__main__":
    main()
