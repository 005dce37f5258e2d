"""A Transformer that reads one sequence and writes another: dates from words to numbers.

"Tuesday, 3 March 1998" becomes "1998-03-03", letter by letter: an encoder reads all of the words,
a decoder writes the answer and looks at what was read. Dates are made up in several styles. With
`--data` it reads pairs of sentences (Multi30k's train.en.gz, train.de.gz, val...) word by word.

    python examples/translation.py
    python examples/translation.py --data folder/of/multi30k --epochs 5 --width 256

It prints the loss of each epoch, some translations, and how many unseen ones are right.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections import Counter
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np

import weft as wf

PADDING, BEGIN, END, UNKNOWN = range(4)
RESERVED = "<padding>", "<begin>", "<end>", "<unknown>"
STYLES = ("%A, {day} %B %Y", "%B {day}, %Y", "{day} %b %y", "%d.%m.%Y", "the {day} of %B, %Y")
Pairs = list[tuple[list[str], list[str]]]


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Load, train, translate."""
    options = parse(arguments)
    wf.default_device(options.device)
    wf.random.seed(0)
    train, test = read(options.data) if options.data else invent(options.count or 4000)
    train = train[: options.count]
    sources, targets = (vocabulary(train, side) for side in (0, 1))
    net = wf.models.Seq2Seq(len(sources), len(targets), options.width, 4, options.layers)
    batches = encode(train, sources, targets, options.batch)
    total = options.epochs * len(batches)
    schedule = wf.optim.schedules.OneCycle(3e-3, steps=total)
    optimizer = wf.optim.AdamW(net.parameters(), lr=schedule, clip_norm=1.0)
    step = train_step if options.eager else wf.jit(train_step)
    losses = []
    for epoch in range(1, options.epochs + 1):
        parts = [step(net, optimizer, *batch).item() for batch in batches]
        losses.append(sum(parts) / len(parts))
        print(f"epoch {epoch:2d}   loss {losses[-1]:.4f}", flush=True)
    right = translate(net, test[: options.test], sources, list(targets), options.data)
    print(f"{100 * right:.0f} % of {options.test} unseen ones are right to the letter")
    return {"first loss": losses[0], "last loss": losses[-1], "right": right}


def train_step(
    net: wf.models.Seq2Seq, optimizer: wf.optim.Optimizer, source: wf.Tensor, target: wf.Tensor
) -> wf.Tensor:
    """Tell each word of the target from the source and the words before it."""
    scores = net(source, target[:, :-1])  # [batch, time, words]
    flat = wf.reshape(scores, (-1, scores.shape[-1]))
    wanted = wf.reshape(target[:, 1:], (-1,))
    loss = wf.nn.functional.cross_entropy(flat, wanted, ignore_index=PADDING)
    optimizer.minimize(loss)
    return loss


def translate(
    net: wf.models.Seq2Seq, pairs: Pairs, sources: dict[str, int], words: list[str], data: str
) -> float:
    """Show some, and return the share that is exactly right."""
    (source, target), *_ = encode(pairs, sources, {w: i for i, w in enumerate(words)}, len(pairs))
    found = net.translate(source, BEGIN, END, longest=int(target.shape[1])).tolist()
    blank = " " if data else ""
    right = 0
    for number, ((given, wanted), tokens) in enumerate(zip(pairs, found, strict=True)):
        said = [words[token] for token in tokens if token not in (PADDING, END)]
        right += said == wanted
        if number < 4:
            print(f"  {blank.join(given)}  ->  {blank.join(said)}")
    return right / len(pairs)


def vocabulary(pairs: Pairs, side: int) -> dict[str, int]:
    """A number for each word that is not rare; four are reserved."""
    counts = Counter(word for pair in pairs for word in pair[side])
    known = sorted(word for word, count in counts.items() if count > 1)
    return {word: number for number, word in enumerate([*RESERVED, *known])}


def encode(
    pairs: Pairs, sources: dict[str, int], targets: dict[str, int], size: int
) -> list[tuple[wf.Tensor, wf.Tensor]]:
    """Batches of one shape: source [size, n], target [size, m] between its begin and its end."""

    def rows(words: list[list[str]], table: dict[str, int]) -> np.ndarray:
        longest = max(map(len, words)) + 2
        found = np.full((len(words), longest), PADDING, np.int64)
        for row, line in zip(found, words, strict=True):
            tokens = [BEGIN, *(table.get(word, UNKNOWN) for word in line), END]
            row[: len(tokens)] = tokens
        return found

    left = rows([source for source, _ in pairs], sources)
    right = rows([target for _, target in pairs], targets)
    starts = range(0, len(pairs) - size + 1, size)
    return [(wf.asarray(left[i : i + size]), wf.asarray(right[i : i + size])) for i in starts]


def invent(count: int) -> tuple[Pairs, Pairs]:
    """Dates in several styles, letter by letter; one tenth for testing."""
    generator = np.random.default_rng(0)
    pairs: Pairs = []
    for days, style in zip(
        generator.integers(0, 36500, count), generator.integers(0, len(STYLES), count), strict=True
    ):
        day = date(1950, 1, 1) + timedelta(days=int(days))
        text = day.strftime(STYLES[style].replace("{day}", str(day.day)))
        pairs.append((list(text), list(day.isoformat())))
    return pairs[count // 10 :], pairs[: count // 10]


def read(folder: str, longest: int = 20) -> tuple[Pairs, Pairs]:
    """Sentences in two files a part, English first, in small words; long ones are left out."""
    parts = []
    for part in ("train", "val"):
        sides = []
        for language in ("en", "de"):
            text = gzip.decompress((Path(folder) / f"{part}.{language}.gz").read_bytes()).decode()
            sides.append([re.findall(r"\w+|[^\w\s]", line.lower()) for line in text.splitlines()])
        pairs = zip(*sides, strict=True)
        parts.append([pair for pair in pairs if max(map(len, pair)) <= longest])
    return parts[0], parts[1]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was said on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data", help="a folder with train.en.gz, train.de.gz, val.en.gz, val.de.gz"
    )
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--count", type=int, default=None, help="how many pairs to take")
    parser.add_argument("--test", type=int, default=100, help="how many to translate at the end")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--device", help="where to compute, such as cuda; else the CPU")
    parser.add_argument("--quick", action="store_true", help="a few seconds: for tests")
    parser.add_argument("--eager", action="store_true", help="run without compiling")
    options = parser.parse_args(arguments)
    if options.quick:
        options.epochs, options.count, options.test = min(options.epochs, 3), 710, 8
        options.width, options.layers = 32, 1
    return options


if __name__ == "__main__":
    main()
