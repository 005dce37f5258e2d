"""A program from a seed: inputs of chosen sizes, steps that are run as they are drawn, and an end.

>>> from tests.fuzz.generate import generate
>>> generate(7) == generate(7)
True
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.fuzz import scenes, script
from tests.fuzz.draw import Draw, NoOperand, Value
from tests.fuzz.elements import assign
from tests.fuzz.loops import control
from tests.fuzz.operations import FAMILIES
from tests.fuzz.program import ENDINGS, Input, Program, Step

import weft as wf

SOURCE = 20
"""What tells the numbers of programs from those of others that begin with the same seed."""
LARGEST_NUMBER = 200.0
"""Values beyond it are not kept: they would overflow in 16 bits."""
LENGTHS = (3, 9), (10, 18), (19, 45)
"""The fewest and the most steps: most programs are short, as each takes time to compile."""
TRANSFORMED = 8
"""The most steps under several transforms, each of which makes a program a few times as long."""
TRANSFORMS = ("gradients", "valued", "tangents", "batched", "rematerialised", "compiled")
OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta")


def scene_name(seed: int) -> str:
    """The scene of a seed's program, without the program."""
    return scenes.scene(np.random.default_rng([seed, SOURCE])).name


def generate(seed: int) -> Program:
    """The program of a seed."""
    rng = np.random.default_rng([seed, SOURCE])
    scene = scenes.scene(rng)
    ending = _ending(rng, scene.ending)
    sizes, inputs = scenes.inputs(rng, scene, ending)
    wf.random.seed(seed)  # steps may ask the global generator
    drawn = _Growing(rng, scene, sizes, inputs)
    drawn.draw.is_alone = ending != "thread"
    least, most = LENGTHS[int(rng.choice(len(LENGTHS), p=(0.72, 0.21, 0.07)))]
    transforms = () if drawn.is_odd else _transforms(rng, ending, scene.transforms)
    longest = scene.longest if len(transforms) < 2 else TRANSFORMED
    for _ in range(min(longest, int(rng.integers(least, most + 1)))):
        drawn.grow()
    return drawn.program(transforms, ending, str(rng.choice(OPTIMIZERS)))


def _ending(rng: np.random.Generator, liked: str) -> str:
    if liked and rng.random() < 0.25:
        return liked
    return str(rng.choice(ENDINGS, p=(0.49, 0.13, 0.08, 0.08, 0.08, 0.04, 0.02, 0.08)))


def _transforms(
    rng: np.random.Generator, ending: str, liked: Sequence[tuple[str, ...]]
) -> tuple[str, ...]:
    if ending in ("state", "train"):
        return ()
    if liked and rng.random() < 0.5:
        return liked[int(rng.integers(len(liked)))]
    count = int(rng.choice(4, p=(0.5, 0.35, 0.12, 0.03)))
    count = min(count, 1) if ending == "sizes" else count
    shares = (0.35, 0.12, 0.18, 0.15, 0.12, 0.08)
    return tuple(str(rng.choice(TRANSFORMS, p=shares)) for _ in range(count))


class _Growing:
    """A program while steps are added to it, with the values that they gave."""

    def __init__(
        self,
        rng: np.random.Generator,
        scene: scenes.Scene,
        sizes: dict[str, int],
        inputs: Sequence[Input],
    ) -> None:
        self.rng, self.sizes, self.inputs = rng, sizes, inputs
        self.steps: list[Step] = []
        self.space: dict[str, Any] = namespace()
        empty = Program(tuple(sizes.items()), tuple(inputs), (), ())
        exec(empty.values, self.space)
        values = [describe(each.name, self.space[each.name]) for each in inputs]
        self.draw = Draw(rng, values, scene.largest)
        self.is_odd = any(each.layout == "odd" for each in inputs)
        self.families = list(FAMILIES)
        weights = np.array([FAMILIES[family] for family in self.families])
        weights = weights * rng.exponential(1.0, len(weights))  # each program has its own taste
        for place, family in enumerate(self.families):
            weights[place] += 8.0 * scene.liked.count(family.__name__)
        self.weights = weights / weights.sum()

    def grow(self) -> None:
        """Add one step; of those that are drawn the first that can be run."""
        for _ in range(12):
            family = self.families[int(self.rng.choice(len(self.families), p=self.weights))]
            name = f"x{len(self.inputs) + len(self.steps)}"
            try:
                step = _step(name, family, self.draw)
            except NoOperand:
                continue
            if self.runs(step):
                return

    def runs(self, step: Step) -> bool:
        """Whether a step gives a value that is worth keeping; if so it is added."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(step.text, self.space)
        except Exception:
            self.space.pop(step.name, None)
            return False
        result = self.space[step.name]
        if not isinstance(result, wf.Tensor) or result.size > self.draw.largest:
            self.space.pop(step.name)
            return False
        value = describe(step.name, result)
        if not (self.is_odd or value.most <= LARGEST_NUMBER):
            return False
        self.steps.append(step)
        self.draw.values.append(value)
        return True

    def program(self, transforms: tuple[str, ...], ending: str, optimizer: str) -> Program:
        """The program of all steps: its outputs are what nobody reads, and a few others."""
        read = {name for step in self.steps for name in step.reads}
        outputs = [step.name for step in self.steps if step.name not in read]
        count = int(self.rng.choice(4, p=(0.6, 0.2, 0.1, 0.1))) if self.steps else 0
        outputs += [self.steps[int(self.rng.integers(len(self.steps)))].name for _ in range(count)]
        if not any(value.kind == "f" for value in self.draw.values if value.name in outputs):
            outputs.append(next(v.name for v in reversed(self.draw.values) if v.kind == "f"))
        steps = list(self.steps)
        if ending == "state":
            steps += _updates(self.rng, self.draw, len(self.inputs) + len(steps))
        return Program(
            tuple(self.sizes.items()),
            tuple(self.inputs),
            tuple(steps),
            tuple(dict.fromkeys(outputs)),
            transforms,
            ending,
            optimizer,
        )


def _step(name: str, family: Any, draw: Draw) -> Step:
    text = family(draw)
    if family is assign:
        return Step(name, tuple(line.format(r=name) for line in text))
    if family is control:
        return Step(name, (f"{name} = {text[1]}",), text[0])
    return Step(name, (f"{name} = {text}",))


def _updates(rng: np.random.Generator, draw: Draw, number: int) -> list[Step]:
    """Steps that change inputs in place, from what the program has computed."""
    inputs = [v for v in draw.values[:3] if v.kind == "f" and v.ndim]
    updates: list[Step] = []
    for v in inputs:
        others = [x for x in draw.values if x.shape == v.shape and x.dtype == v.dtype]
        other = draw.one_of(others).name
        options = (
            "{v}[...] = {o} * 0.5",
            "{v} *= 0.5",
            "{v}[1:] = {o}[:-1]",
            "{v}.copy_({o})",
            "{v} -= 0.1 * {o}",
            "{v}[:1] += 1",
            "{v}[...] = {v}[::-1]",
        )
        line = draw.one_of(options).format(v=v.name, o=other)
        updates.append(Step(f"x{number}", (line, f"x{number} = {v.name}.clone()")))
        number += 1
    return updates


def describe(name: str, tensor: wf.Tensor) -> Value:
    """What is known of a value."""
    array = tensor.detach().numpy()
    dtype = tensor.dtype
    kind = "c" if dtype.is_complex else "f" if dtype.is_inexact else array.dtype.kind
    most = 0.0
    if kind in "fc" and array.size:
        with np.errstate(all="ignore"):
            most = float(np.max(np.abs(array.astype(complex if kind == "c" else float))))
    return Value(name, kind, tuple(array.shape), most, str(dtype.name))


def namespace() -> dict[str, Any]:
    """The names that scripts use."""
    parts = {name: getattr(script, name) for name in script.PARTS}
    return {"wf": wf, "np": np, "F": wf.nn.functional, **parts}
