"""Programs that the package brings along: `weft train digits`, and so on, on data inside it.

Each is a function whose arguments are the settings that `--set` and configuration files change.

>>> from weft.cli.programs import digits
>>> program = digits(hidden=16, batch=32)
>>> images, labels = next(iter(program["validation_data"]))
>>> sorted(program), program["model"](images).shape
(['loss', 'metrics', 'model', 'optimizer', 'train_data', 'validation_data'], (32, 10))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft as wf
from weft.config.programs import next_token_loss

Program = dict[str, Any]


def digits(hidden: int = 64, lr: float = 0.003, batch: int = 32) -> Program:
    """A perceptron that reads handwritten digits."""
    return _classifier(wf.models.MLP([64, hidden, 10]), _flat_digits(), lr, batch)


def lenet(lr: float = 0.002, batch: int = 32) -> Program:
    """A convolutional network that reads handwritten digits."""
    splits = [
        (part.inputs.reshape(-1, 1, 8, 8), part.labels) for part in wf.data.sets.load_digits()
    ]
    net = wf.models.LeNet(classes=10, size=8, channels=1, padding=2)
    return _classifier(net, splits, lr, batch)


def iris(hidden: int = 16, lr: float = 0.01, batch: int = 16) -> Program:
    """A perceptron that tells three species of iris apart."""
    splits = [(part.inputs, part.labels) for part in wf.data.sets.load_iris()]
    return _classifier(wf.models.MLP([4, hidden, 3]), splits, lr, batch)


def housing(hidden: int = 64, lr: float = 0.003, batch: int = 32) -> Program:
    """A perceptron that guesses prices of houses."""
    train, test = wf.data.sets.load_housing()
    middle, spread = wf.mean(train.inputs, axis=0), wf.std(train.inputs, axis=0) + 1e-6
    splits = [
        ((part.inputs - middle) / spread, part.labels.reshape(-1, 1)) for part in (train, test)
    ]
    net = wf.models.MLP([12, hidden, hidden, 1])
    return {
        "model": net,
        "loss": wf.nn.functional.mse_loss,
        "optimizer": wf.optim.Adam(net.parameters(), lr=lr),
        "metrics": ["mae", "r2"],
        **_loaders(splits, batch),
    }


def shakespeare(
    layers: int = 2, width: int = 64, context: int = 64, lr: float = 0.003, batch: int = 16
) -> Program:
    """A character GPT that learns to write plays."""
    text, unseen = wf.data.sets.load_shakespeare()
    tokenizer = wf.data.CharacterTokenizer.from_text(text, unseen)
    config = wf.models.GPTConfig(
        vocabulary=tokenizer.vocabulary_size,
        width=width,
        layers=layers,
        heads=max(1, width // 32),
        context=context,
    )
    net = wf.models.GPT(config)
    windows = [wf.data.TokenWindows(tokenizer.encode(part), context) for part in (text, unseen)]
    return {
        "model": net,
        "loss": next_token_loss,
        "optimizer": wf.optim.AdamW(net.parameters(), lr=lr),
        "metrics": ["perplexity"],
        "train_data": wf.data.DataLoader(windows[0], batch, shuffle=True, drop_last=True),
        "validation_data": wf.data.DataLoader(windows[1], batch, drop_last=True),
    }


PROGRAMS: dict[str, Callable[..., Program]] = {
    "digits": digits,
    "housing": housing,
    "iris": iris,
    "lenet": lenet,
    "shakespeare": shakespeare,
}


def _flat_digits() -> list[tuple[wf.Tensor, wf.Tensor]]:
    return [(part.inputs.reshape(-1, 64), part.labels) for part in wf.data.sets.load_digits()]


def _classifier(net: wf.nn.Module, splits: list[Any], lr: float, batch: int) -> Program:
    return {
        "model": net,
        "loss": wf.nn.functional.cross_entropy,
        "optimizer": wf.optim.Adam(net.parameters(), lr=lr),
        "metrics": ["accuracy"],
        **_loaders(splits, batch),
    }


def _loaders(splits: list[Any], batch: int) -> Program:
    train, test = (wf.data.TensorDataset(*arrays) for arrays in splits)
    return {
        "train_data": wf.data.DataLoader(train, batch, shuffle=True),
        "validation_data": wf.data.DataLoader(test, batch),
    }
