"""The programs that the package brings along learn something in one epoch."""

from __future__ import annotations

import math

import pytest

import weft as wf
from weft.cli.programs import PROGRAMS

pytestmark = pytest.mark.slow

GUESSING = {"digits": math.log(10), "lenet": math.log(10), "iris": math.log(3), "housing": 590.0}


@pytest.mark.parametrize("name", sorted(GUESSING))
def test_a_program_is_better_than_guessing_after_an_epoch(name: str) -> None:
    wf.random.seed(0)
    program = PROGRAMS[name]()
    trainer = wf.train.Trainer(
        program["model"], program["loss"], program["optimizer"], progress=False
    )
    history = trainer.fit(program["train_data"], 1, program["validation_data"])
    assert history.last["val_loss"] < GUESSING[name]


def test_the_language_model_learns_from_a_few_batches() -> None:
    wf.random.seed(0)
    program = PROGRAMS["shakespeare"](layers=1, width=32, context=16, batch=8)
    trainer = wf.train.Trainer(
        program["model"], program["loss"], program["optimizer"], progress=False
    )
    batches = [batch for batch, _ in zip(program["train_data"], range(60), strict=False)]
    losses = [float(trainer.train_on(batch)) for batch in batches]
    assert sum(losses[-5:]) < sum(losses[:5]) - 1.0
