"""A random program as data: inputs, steps, and how it is called. Its text is a script that runs.

Steps are written against shapes (`x1.shape[0] // 2`), never against numbers, so that a program
means something for any sizes: sizes stand in the inputs alone, and can be made smaller.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from textwrap import indent

from tests.fuzz import script

ENDINGS = ("call", "sizes", "alias", "state", "train", "thread", "tuned", "studied")
"""How a program is called: plainly; with other sizes too; with one tensor in two places; so that
its inputs change in place; as the loss of a training loop; in a second thread; with products that
are made in the way that was measured to be the fastest; explained, and in less memory."""
NAME = re.compile(r"\bx\d+\b")
NAMED = ("sampled", "doubled", "repeated", "held", "constant", "weights")
"""The helpers that steps may call."""
RANDOM = re.compile(r"wf\.random\.(?!key|split|fold_in)")


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor of random numbers: its sizes by name, and how it lies in memory."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    seed: int
    layout: str = ""

    @property
    def text(self) -> str:
        """The line that makes it."""
        layout = f", {self.layout!r}" if self.layout else ""
        shape = "".join(f"{size}, " for size in self.shape).strip()
        return f"{self.name} = numbers({self.dtype!r}, ({shape}), {self.seed}{layout})"


@dataclass(frozen=True, slots=True)
class Step:
    """One value: its name, and the lines that make it; the last line begins with `name = `.

    A body is a function that the lines call; other steps may call it too.
    """

    name: str
    lines: tuple[str, ...]
    body: tuple[str, ...] = ()

    @property
    def reads(self) -> list[str]:
        """The names that it reads."""
        found = NAME.findall("\n".join((*self.body, *self.lines)))
        return [name for name in dict.fromkeys(found) if name != self.name]

    @property
    def text(self) -> str:
        """The step as lines of a script."""
        return "\n".join((*self.body, *self.lines))


@dataclass(frozen=True, slots=True)
class Program:
    """A function of tensors that returns a list, transforms of it, and how it is called."""

    sizes: tuple[tuple[str, int], ...]
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    transforms: tuple[str, ...] = ()
    ending: str = "call"
    optimizer: str = "SGD"

    @property
    def arguments(self) -> str:
        """The names of the inputs, as a list of parameters."""
        return ", ".join(each.name for each in self.inputs)

    def body(self, noisy: bool = False) -> Iterator[str]:
        """The lines of the function; where it is noisy, each value is disturbed by rounding."""
        if noisy:
            yield from (f"{each.name} = noisy({each.name})" for each in self.inputs)
        for step in self.steps:
            for line in step.body:
                yield line
                if noisy and line.startswith("    q = "):
                    yield "    q = noisy(q)"
            yield from step.lines
            if noisy:
                yield f"{step.name} = noisy({step.name})"
        yield f"return [{', '.join(self.outputs)}]"

    def function(self, noisy: bool = False) -> str:
        """The text of the function and its transforms."""
        yields = indent("\n".join(self.body(noisy)), "    ")
        lines = [f"def f({self.arguments}):", yields]
        lines += [f"f = {name}(f)" for name in self.transforms]
        return "\n".join(lines)

    @property
    def values(self) -> str:
        """The lines that make the sizes and the inputs."""
        sizes = [f"{name} = {size}" for name, size in self.sizes]
        return "\n".join([*sizes, *[each.text for each in self.inputs]])

    @property
    def elements(self) -> int:
        """How many elements the largest input has."""
        sizes = dict(self.sizes)
        return max((prod(sizes[name] for name in each.shape) for each in self.inputs), default=1)

    @property
    def helpers(self) -> list[str]:
        """The functions of `tests.fuzz.script` that the script needs."""
        found = ["numbers", *self.transforms]
        found += ["trained"] if self.ending == "train" else []
        found += ["studied"] if self.ending == "studied" else []
        found += ["gradients"] if "valued" in found else []
        found += ["total"] if {"gradients", "trained"} & {*found} else []
        text = self.function()
        found += [name for name in NAMED if f"{name}(" in text]
        found += ["weights"] if {"total", "tangents"} & {*found} else []
        return [name for name in script.PARTS if name in found]

    @property
    def script(self) -> str:
        """The whole program as a script that prints what differs."""
        parts = [inspect.getsource(getattr(script, name)) for name in self.helpers]
        head = "from __future__ import annotations\n\n"
        head += "import numpy as np\nimport weft as wf\nimport weft.nn.functional as F\n"
        head += "import threading\n" if self.ending == "thread" else ""
        if "sampled" in self.helpers:
            head += "from weft.ir.dispatch import bind\nfrom weft.ir.primitive import PRIMITIVES\n"
        return "\n\n".join([head, *parts, self.function(), f"{self.values}\n{self._ending()}\n"])

    @property
    def _seeded(self) -> str:
        """What stands before a call, so that all calls draw the same random numbers."""
        return "wf.random.seed(5) or " if RANDOM.search(self.function()) else ""

    def _ending(self) -> str:
        seeded = self._seeded
        if self.ending == "train":
            ways = [
                f"{seeded}trained(f, {way}, {self.optimizer!r})"
                for way in ("lambda g: g", "wf.jit")
            ]
            return _SHOW.format(
                one=f"{ways[0]}({self.arguments})", other=f"{ways[1]}({self.arguments})"
            )
        if self.ending == "state":
            copies = ", ".join(f"{each.name}.clone()" for each in self.inputs)
            return _STATE.format(copies=copies, seeded=seeded)
        calls = [self.arguments]
        if self.ending == "alias":
            calls.append(", ".join(self.aliased))
        shown = "\n".join(
            _SHOW.format(one=f"{seeded}f({xs})", other=f"{seeded}g({xs})") for xs in calls
        )
        if self.ending == "thread":
            shown = f"{_THREAD.format(call=f'g({self.arguments})')}\n{shown}\nthread.join()"
        if self.ending == "tuned":
            shown = f"wf.settings.tuning = True\n{shown}"
        again = self.other_sizes()[1:] if self.ending == "sizes" else []
        more = [f"{replace(self, sizes=sizes).values}\n{shown}" for sizes in again]
        way = "studied" if self.ending == "studied" else "wf.jit"
        return "\n".join([f"g = {way}(f)", shown, *more])

    @property
    def aliased(self) -> list[str]:
        """The arguments of a call in which one tensor stands in all places that it fits in."""
        first: dict[tuple[str, tuple[str, ...]], str] = {}
        return [first.setdefault((x.dtype, x.shape), x.name) for x in self.inputs]

    def other_sizes(self) -> list[tuple[tuple[str, int], ...]]:
        """The sizes of several calls, of which the first are the program's own."""
        own = self.sizes
        lead = next((each.shape[0] for each in self.inputs if each.shape), "")
        longer = tuple((name, size + 3 * (name == lead)) for name, size in own)
        larger = tuple((name, size + 1 + place % 2) for place, (name, size) in enumerate(own))
        return [own, longer, larger]


_SHOW = """\
for a, b in zip({one}, {other}, strict=True):
    far = np.abs(np.asarray(a, complex) - np.asarray(b, complex))
    print(a.dtype, a.shape, np.max(far, initial=0))"""

_THREAD = """\
thread = threading.Thread(target=lambda: print({call}))
thread.start()"""

_STATE = """\
a, b = ({copies},), ({copies},)
g = wf.jit(f)
for _ in range(3):
    for x, y in zip([*({seeded}f(*a)), *a], [*({seeded}g(*b)), *b], strict=True):
        far = np.abs(np.asarray(x, complex) - np.asarray(y, complex))
        print(x.dtype, x.shape, np.max(far, initial=0))"""


def names_read(steps: Sequence[Step], outputs: Sequence[str]) -> set[str]:
    """All names that some steps and outputs read."""
    return {*outputs, *[name for step in steps for name in step.reads]}
