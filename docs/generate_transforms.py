"""Write docs/transforms.md: which transform works on which primitive, or why it does not.

Every cell is found by running the transform on the primitive's own samples, so the table says what
the library does, not what it is meant to do.

    python docs/generate_transforms.py
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
import weft.distributed  # which has a primitive of its own
from weft.core.errors import GradientError, Unsupported, WeftError
from weft.ir import batching, forward, reverse
from weft.ir.derivatives import Constant, Joint
from weft.ir.dispatch import bind
from weft.ir.primitive import PRIMITIVES, Primitive, Sample
from weft.ir.tensor import Tensor, wrap

PAGE = Path(__file__).parent / "transforms.md"
NO_FLOATS = "no real or complex operands"

HEAD = """\
# Primitives by transforms

Written by `docs/generate_transforms.py` from the registry: each entry was found by running the
transform on the primitive's samples. *Forward* is `jvp`, *reverse* is `vjp` (`grad`, `.backward`),
*second order* is forward over reverse, *batch* is `vmap`, and *graph* is tracing, the text form,
and reading it back. A dash stands where there is nothing to differentiate: {no_floats}.

{count} primitives. Functions that are not in the table are made of those that are, and so are the
transforms of them.
"""
COLUMNS = ("primitive", "evaluate", "forward", "reverse", "second order", "batch", "graph")

Column = Callable[[Primitive, Sample], None]
Function = Callable[..., list[Tensor]]


def page() -> str:
    """The whole document."""
    groups: dict[str, list[Primitive]] = {}
    for primitive in primitives():
        groups.setdefault(home(primitive), []).append(primitive)
    parts = [HEAD.format(no_floats=NO_FLOATS, count=len(primitives()))]
    for module in sorted(groups):
        parts.append(f"## {module}\n")
        parts.append("\n".join(table(sorted(groups[module], key=lambda each: each.name))) + "\n")
    return "\n".join(parts)


def table(primitives: list[Primitive]) -> Iterator[str]:
    """A Markdown table with one row per primitive."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for primitive in primitives:
        cells = [cell(primitive, column) for column in (evaluate, push, pull, twice, batch, graph)]
        yield f"| `{primitive.name}` | {' | '.join(cells)} |"


def cell(primitive: Primitive, column: Column) -> str:
    """What comes of a transform: yes, a reason, or both where it depends on the call."""
    if column in (push, pull, twice) and (still := constant(primitive)):
        return still
    with redirect_stdout(StringIO()):  # printing is what one of them is for
        reasons = [reason(column, primitive, sample) for sample in primitive.samples()]
    asked = [each for each in reasons if each != NO_FLOATS]
    given = list(dict.fromkeys(each for each in asked if each))
    if not asked:
        return "–"
    return "; ".join((["yes"] if "" in asked else []) + given)


def reason(column: Column, primitive: Primitive, sample: Sample) -> str:
    """Why a transform refuses one sample; empty where it does not."""
    try:
        column(primitive, sample)
    except Unsupported as refusal:
        return refusal.reason
    except GradientError as refusal:
        return refusal.problem
    except NothingMoves:
        return NO_FLOATS
    except WeftError:
        if sample.derivative:  # elsewhere a sample may lie where no derivative exists
            raise
        return NO_FLOATS
    return ""


def constant(primitive: Primitive) -> str:
    """The reason, where the result varies with no operand."""
    derivatives = primitive.derivatives
    if isinstance(derivatives, (Joint, Unsupported)):
        return ""
    count = max(len(sample.operands) for sample in primitive.samples())
    kinds = [primitive.derivative(index) for index in range(count)]
    reasons = dict.fromkeys(kind.reason for kind in kinds if isinstance(kind, Constant))
    if not kinds or any(not isinstance(kind, Constant) for kind in kinds):
        return ""
    return f"constant: {'; '.join(reasons)}"


class NothingMoves(Exception):
    """A sample has no operand, or no result, that has derivatives."""


def evaluate(primitive: Primitive, sample: Sample) -> None:
    """Compute the result."""
    bind(primitive, *tensors(sample), **sample.params)


def push(primitive: Primitive, sample: Sample) -> None:
    """Forward mode along some direction."""
    f, xs = moving(primitive, sample)
    forward.jvp(f, xs, [wrap(np.ones_like(x._value)) for x in xs])


def pull(primitive: Primitive, sample: Sample) -> None:
    """Reverse mode from some cotangents."""
    f, xs = moving(primitive, sample)
    results, pullback = reverse.vjp(f, *xs)
    pullback([reverse.filled_tensor(r.shape, r.dtype, 1) for r in results])


def twice(primitive: Primitive, sample: Sample) -> None:
    """Forward mode over reverse mode."""
    f, xs = moving(primitive, sample)

    def pulled(*inner: Tensor) -> list[Tensor]:
        results, pullback = reverse.vjp(f, *inner)
        backs = pullback([reverse.filled_tensor(r.shape, r.dtype, 1) for r in results])
        return reverse.or_zeros(backs, inner)

    forward.jvp(pulled, xs, [wrap(np.ones_like(x._value)) for x in xs])


def batch(primitive: Primitive, sample: Sample) -> None:
    """All operands stacked along a new first axis."""
    stacked = [wrap(np.stack([x._value, x._value])) for x in tensors(sample)]
    if isinstance(primitive.batch, Unsupported):
        raise primitive.batch
    batching.vmap(lambda *xs: results_of(primitive, xs, sample), 2, stacked, [0] * len(stacked))


def graph(primitive: Primitive, sample: Sample) -> None:
    """Trace, print, and read back."""
    found = wf.ir.trace(lambda *xs: results_of(primitive, xs, sample), *tensors(sample))
    assert wf.ir.parse(str(found)) == found


def tensors(sample: Sample) -> list[Tensor]:
    """The operands of a sample."""
    return [wrap(np.asarray(operand)) for operand in sample.operands]


def results_of(primitive: Primitive, xs: Any, sample: Sample) -> list[Tensor]:
    """The results as a list, one or more."""
    result = bind(primitive, *xs, **sample.params)
    return list(result) if primitive.multiple else [result]


def moving(primitive: Primitive, sample: Sample) -> tuple[Function, list[Tensor]]:
    """The primitive as a function of its inexact operands to its inexact results."""
    operands = tensors(sample)
    places = [i for i, x in enumerate(operands) if x.dtype.is_inexact]

    def f(*xs: Tensor) -> list[Tensor]:
        given = dict(zip(places, xs, strict=True))
        chosen = [given.get(i, x) for i, x in enumerate(operands)]
        return [r for r in results_of(primitive, chosen, sample) if r.dtype.is_inexact]

    xs = [operands[place] for place in places]
    if not xs or not f(*xs):
        raise NothingMoves
    return f, xs


def primitives() -> list[Primitive]:
    """What programs are made of; what the compiler makes of them for itself has no home here."""
    return [primitive for primitive in PRIMITIVES.values() if home(primitive)]


def home(primitive: Primitive) -> str:
    """The module that defines a primitive: the one that has it without importing it."""
    for name, module in sorted(sys.modules.items()):
        if name == "weft.ops.composed.precision":  # which casts the operands of others' functions
            continue
        if name.startswith(("weft.ops", "weft.transforms")) and any(
            getattr(value, "primitive", value) is primitive and attribute not in imported(module)
            for attribute, value in vars(module).items()
        ):
            return name.removeprefix("weft.")
    return ""


def imported(module: Any) -> set[str]:
    """The names that a module imports from others."""
    found = _IMPORTED.get(module.__name__)
    if found is None:
        tree = ast.parse(inspect.getsource(module))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        found = {alias.asname or alias.name for node in imports for alias in node.names}
        _IMPORTED[module.__name__] = found
    return found


_IMPORTED: dict[str, set[str]] = {}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {len(primitives())} primitives")
