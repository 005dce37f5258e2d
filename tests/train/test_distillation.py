"""A model that learns from another one: the loss, its gradients, and what stays as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn, train
from weft.nn import functional as F  # noqa: N812


def parts() -> tuple[nn.Module, nn.Module, wf.Tensor, wf.Tensor]:
    wf.random.seed(0)
    teacher = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3))
    x = wf.random.normal((48, 4))
    return teacher, nn.Linear(4, 3), x, (x[:, 0] > 0).astype("int64")


def trainer_of(student: nn.Module, distillation: Any, **given: Any) -> train.Trainer:
    optimizer = wf.optim.SGD(student.parameters(), lr=0.1)
    return train.Trainer(
        student, "cross_entropy", optimizer, progress=False, distillation=distillation, **given
    )


@pytest.mark.parametrize("compiled", [True, False])
def test_a_step_is_that_of_the_formula(compiled: bool) -> None:
    teacher, student, x, y = parts()
    other = nn.Linear(4, 3)
    other.load_state_dict(student.state_dict())
    weight, temperature = 0.3, 4.0
    trainer = trainer_of(
        student, train.Distillation(teacher, weight, temperature), compile=compiled
    )
    history = trainer.fit((x, y), epochs=1, batch_size=48)
    with wf.no_grad():
        wanted = wf.softmax(teacher.eval()(x) / temperature, axis=1)
    outputs = other(x)
    soft = -wf.mean(wf.sum(wanted * F.log_softmax(outputs / temperature, axis=1), axis=1))
    loss = 0.7 * F.cross_entropy(outputs, y) + 0.3 * soft * temperature**2
    wf.optim.SGD(other.parameters(), lr=0.1).minimize(loss)
    assert history["loss"][0] == pytest.approx(float(loss), rel=1e-5)
    for ours, theirs in zip(student.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(
            ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-6
        )


def test_the_teacher_stays_as_it_was_and_is_no_constant_of_the_program() -> None:
    teacher, student, x, y = parts()
    before = {name: t.detach().numpy().copy() for name, t in teacher.state_dict().items()}
    distillation = train.Distillation(
        teacher, 1.0, loss=lambda ours, theirs: ((ours - theirs) ** 2).mean()
    )
    trainer = trainer_of(student, distillation)
    trainer.fit((x, y), epochs=3, batch_size=48)
    for name, value in teacher.state_dict().items():
        np.testing.assert_array_equal(value.detach().numpy(), before[name])
    assert all(p.grad is None for p in teacher.parameters())
    assert not teacher.training
    assert trainer.train_programs.compilations == 1
    with wf.no_grad():
        for parameter in teacher.parameters():
            parameter.copy_(parameter * -3)
    expected = float(((student(x) - teacher(x)) ** 2).mean())
    found = trainer.fit((x, y), epochs=1, batch_size=48)["loss"][-1]
    assert found == pytest.approx(expected, rel=1e-4)
    assert trainer.train_programs.compilations == 1


@pytest.mark.slow
def test_a_student_of_a_teacher_does_better_than_one_of_few_labels() -> None:
    wf.random.seed(3)
    x = wf.random.normal((400, 4))
    labels = (x[:, 0] * x[:, 1] > 0).astype("int64")
    teacher = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    learn = wf.optim.Adam(teacher.parameters(), lr=0.02)
    train.Trainer(teacher, "cross_entropy", learn, progress=False).fit(
        (x, labels), epochs=40, batch_size=100
    )
    noise = wf.random.bernoulli(0.4, (400,)).astype("int64")
    wrong = wf.where(noise > 0, 1 - labels, labels)  # many labels are wrong
    right: dict[float, float] = {}
    for weight in (0.0, 1.0):
        wf.random.seed(4)
        student = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2))
        optimizer = wf.optim.Adam(student.parameters(), lr=0.02)
        train.Trainer(
            student, "cross_entropy", optimizer, progress=False,
            distillation=train.Distillation(teacher, weight),
        ).fit((x, wrong), epochs=40, batch_size=100)  # fmt: skip
        right[weight] = float((student(x).argmax(1) == labels).astype("float32").mean())
    assert right[1.0] > right[0.0] + 0.05


def test_evaluation_is_the_trainers_own_loss() -> None:
    teacher, student, x, y = parts()
    trainer = trainer_of(student, train.Distillation(teacher, 0.9))
    expected = float(F.cross_entropy(student(x), y))
    assert trainer.evaluate((x, y), batch_size=48)["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_loss_of_ones_own_compares_the_answers() -> None:
    teacher, student, x, y = parts()
    distillation = train.Distillation(
        teacher, 1.0, loss=lambda ours, theirs: ((ours - theirs) ** 2).mean()
    )
    expected = float(((student(x) - teacher.eval()(x)) ** 2).mean())
    history = trainer_of(student, distillation).fit((x, y), epochs=1, batch_size=48)
    assert history["loss"][0] == pytest.approx(expected, rel=1e-5)


def test_what_cannot_be_is_refused() -> None:
    teacher, _, x, y = parts()
    with pytest.raises(wf.ArgumentError, match="weight"):
        train.Distillation(teacher, 1.5)
    with pytest.raises(wf.ArgumentError, match="temperature"):
        train.Distillation(teacher, temperature=0)
    with pytest.raises(wf.ArgumentTypeError, match="no module"):
        train.Distillation(lambda x: x)  # type: ignore[arg-type]
    wide = nn.Linear(4, 5)
    with pytest.raises(wf.ShapeError, match="other shapes"):
        trainer_of(wide, train.Distillation(teacher)).fit((x, y), epochs=1, batch_size=48)
