"""Train a small network on handwritten digits and show what it learned.

Run it with `make demo`. It uses only tensors, operations and `backward`: the layers, the loss and
the optimiser are the few lines below. The same seed gives the same numbers, run after run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import weft as wf
from weft.data.sets import Examples, load_digits

HIDDEN = 64
CLASSES = 10
EPOCHS = 30
BATCH = 32
LEARNING_RATE = 0.1
MOMENTUM = 0.9
SHADES = " .:-=+*#%@"


def main() -> None:
    """Load, train, report."""
    wf.random.seed(0)
    train, test = load_digits()
    parameters = initial_parameters(train.inputs.shape[1] * train.inputs.shape[2])
    print(f"{train.labels.size} images to learn from, {test.labels.size} to be tested on")
    start = time.perf_counter()
    for epoch, loss in enumerate(fit(parameters, train), 1):
        show_progress(epoch, loss, time.perf_counter() - start)
    predicted = predict(parameters, test.inputs)
    print()
    show_accuracy(predicted, test.labels)
    show_confusions(predicted, test.labels)
    show_digits(predicted, test)


def initial_parameters(inputs: int) -> list[wf.Tensor]:
    """Weights scaled to keep the variance of what passes through them, and biases of zero."""
    values = [
        wf.random.normal((inputs, HIDDEN)) * inputs**-0.5,
        wf.zeros((HIDDEN,)),
        wf.random.normal((HIDDEN, CLASSES)) * HIDDEN**-0.5,
        wf.zeros((CLASSES,)),
    ]
    return [wf.tensor(value, requires_grad=True) for value in values]


def forward(parameters: list[wf.Tensor], images: wf.Tensor) -> wf.Tensor:
    """One score per image and class."""
    first, first_bias, second, second_bias = parameters
    pixels = images.reshape((images.shape[0], -1))  # [batch, 64]
    hidden = wf.tanh(pixels @ first + first_bias)  # [batch, hidden]
    return hidden @ second + second_bias  # [batch, classes]


def cross_entropy(scores: wf.Tensor, labels: wf.Tensor) -> wf.Tensor:
    """The mean of -log(probability of the true class)."""
    of_truth = scores[wf.arange(labels.size), labels]
    return wf.mean(wf.logsumexp(scores, axis=1) - of_truth)


def fit(parameters: list[wf.Tensor], train: Examples) -> Iterator[float]:
    """Stochastic gradient descent with momentum; yields the mean loss of each epoch."""
    velocities = [wf.zeros_like(parameter) for parameter in parameters]
    for _ in range(EPOCHS):
        losses = []
        order = wf.random.permutation(train.labels.size)
        for start in range(0, order.size, BATCH):
            rows = order[start : start + BATCH]
            loss = cross_entropy(forward(parameters, train.inputs[rows]), train.labels[rows])
            loss.backward()
            descend(parameters, velocities)
            losses.append(loss.item())
        yield sum(losses) / len(losses)


def descend(parameters: list[wf.Tensor], velocities: list[wf.Tensor]) -> None:
    """Move every parameter one step against its gradient, and forget the gradient."""
    with wf.no_grad():
        for parameter, velocity in zip(parameters, velocities, strict=True):
            velocity *= MOMENTUM
            velocity += parameter.grad
            parameter -= LEARNING_RATE * velocity
            parameter.grad = None


def predict(parameters: list[wf.Tensor], images: wf.Tensor) -> wf.Tensor:
    """The class with the highest score for each image."""
    with wf.no_grad():
        return wf.argmax(forward(parameters, images), axis=1)


def show_progress(epoch: int, loss: float, seconds: float) -> None:
    """A bar that grows in place on a terminal; now and then a plain line elsewhere."""
    numbers = f"epoch {epoch:2d}/{EPOCHS}   loss {loss:.4f}   {seconds:.1f} s"
    if sys.stdout.isatty():
        width = 30
        done = width * epoch // EPOCHS
        end = "\n" if epoch == EPOCHS else ""
        print(f"\r{'█' * done}{'░' * (width - done)}  {numbers}", end=end, flush=True)
    elif epoch == 1 or epoch % 5 == 0:
        print(numbers, flush=True)


def show_accuracy(predicted: wf.Tensor, labels: wf.Tensor) -> None:
    """How many of the test images were read right, in all and for each digit."""
    right = predicted == labels
    print(f"test accuracy  {100 * share(right):.1f} %  ({wf.sum(right).item()} of {labels.size})")
    by_class = [share(right[labels == digit]) for digit in range(CLASSES)]
    print("digit       " + "".join(f"{digit:6d}" for digit in range(CLASSES)))
    print("read right  " + "".join(f"{100 * part:5.0f}%" for part in by_class))


def share(truths: wf.Tensor) -> float:
    """The fraction of a boolean tensor that is true."""
    return wf.mean(truths.astype(wf.float32)).item()


def show_confusions(predicted: wf.Tensor, labels: wf.Tensor) -> None:
    """Which digits were taken for which, the most frequent first."""
    counts: dict[tuple[int, int], int] = {}
    for truth, guess in zip(labels.tolist(), predicted.tolist(), strict=True):
        if truth != guess:
            counts[truth, guess] = counts.get((truth, guess), 0) + 1
    worst = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:5]
    mistakes = [f"{truth} read as {guess} ({count}×)" for (truth, guess), count in worst]
    print("mistakes    " + (", ".join(mistakes) or "none"))


def show_digits(predicted: wf.Tensor, test: Examples) -> None:
    """Some images as text: four that were read right, and up to two that were not."""
    right = [row for row, same in enumerate((predicted == test.labels).tolist()) if same]
    wrong = [row for row in range(test.labels.size) if row not in set(right)]
    rows = [*right[:4], *wrong[:2]]
    titles = [f"{test.labels[row].item()} read as {predicted[row].item()}" for row in rows]
    print("\n" + "   ".join(f"{title:16}" for title in titles).rstrip())
    drawings = [draw(test.inputs[row]) for row in rows]
    for line in zip(*drawings, strict=True):
        print("   ".join(line).rstrip())


def draw(image: wf.Tensor) -> list[str]:
    """An image as lines of text, two characters for a pixel, darker characters for more ink."""
    darkest = len(SHADES) - 1
    return ["".join(2 * SHADES[round(ink * darkest)] for ink in line) for line in image.tolist()]


if __name__ == "__main__":
    main()
