"""What training in one process gives, with which trainings of several are compared."""

from __future__ import annotations

from inspect import getsource

import numpy as np

import weft as wf


def linear_training() -> tuple[wf.nn.Linear, wf.optim.AdamW, wf.data.DataLoader]:
    """A linear layer of ones, its optimiser, and the batches that it is trained on."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(48, 5)).astype(np.float32)
    y = generator.normal(size=(48, 3)).astype(np.float32)
    model = wf.nn.Linear(5, 3)
    with wf.no_grad():
        for parameter in model.parameters():
            parameter.copy_(wf.ones_like(parameter))
    optimizer = wf.optim.AdamW(model.parameters(), lr=0.05)
    loader = wf.data.DataLoader(wf.data.ArrayDataset(x, y), batch_size=12, shuffle=True, seed=0)
    return model, optimizer, loader


LINEAR_TRAINING = f"""
import numpy as np
import weft as wf

{getsource(linear_training)}
model, optimizer, loader = linear_training()
"""
"""The same, for programs that processes are started with."""


def weight_of_one_process(epochs: int) -> np.ndarray:
    """The layer's weight after a training without anything lost or cut."""
    model, optimizer, loader = linear_training()
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.minimize(((model(inputs) - targets) ** 2).mean())
    weight: np.ndarray = model.weight.detach().numpy()
    return weight
