"""The tests that follow from each primitive's definition: the registry times the checks.

Nothing here knows a primitive by name. A new one is tested by having been defined.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import testing
from weft.core.errors import Unsupported
from weft.ir.derivatives import Constant, Every, Joint
from weft.ir.dispatch import bind
from weft.ir.kinds import Opaque
from weft.ir.primitive import PRIMITIVES, Primitive, Sample, find
from weft.ir.tensor import wrap
from weft.ir.verify import verify

DOCS = Path(__file__).parents[1] / "docs"
EACH = [pytest.param(primitive, id=name) for name, primitive in sorted(PRIMITIVES.items())]
CHECKS = [pytest.param(check, id=check.__name__.removeprefix("check_")) for check in testing.CHECKS]
CHECKED_BY_HAND = {
    "eig",  # the phase of an eigenvector is free, so differences of it mean nothing
    "straight_through", "rounding_cotangent",  # a derivative that is not the function's own
}  # fmt: skip
every_primitive = pytest.mark.parametrize("primitive", EACH)


@pytest.mark.parametrize("check", CHECKS)
@every_primitive
def test_each_sample_passes(
    primitive: Primitive, check: Callable[[Primitive, Sample], None]
) -> None:
    for number, sample in enumerate(primitive.samples()):
        try:
            check(primitive, sample)
        except Exception as error:
            error.add_note(f"sample {number} of {primitive.name}: {testing._show(sample)}")
            raise


@every_primitive
def test_listed_mistakes_are_refused_with_all_fields(primitive: Primitive) -> None:
    testing.check_mistakes(primitive)


@every_primitive
def test_operands_are_left_alone(primitive: Primitive) -> None:
    for sample in primitive.samples():
        arrays = [np.array(operand) for operand in sample.operands]
        bind(primitive, *[wrap(array) for array in arrays], **sample.params)
        for array, operand in zip(arrays, sample.operands, strict=True):
            np.testing.assert_array_equal(array, np.asarray(operand))


@every_primitive
def test_results_are_the_same_twice(primitive: Primitive) -> None:
    for sample in primitive.samples():
        operands = [wrap(np.asarray(operand)) for operand in sample.operands]
        first, second = (_tuple(bind(primitive, *operands, **sample.params)) for _ in range(2))
        for one, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())


@every_primitive
def test_a_graph_of_each_sample_is_correct_and_gives_what_a_call_gives(
    primitive: Primitive,
) -> None:
    for sample in primitive.samples():
        operands = [wrap(np.asarray(operand)) for operand in sample.operands]

        def call(*xs: Any, params: Any = sample.params) -> Any:
            return bind(primitive, *xs, **params)

        graph = wf.ir.trace(call, *operands)
        verify(graph)
        found, expected = wf.ir.interpret(graph, *operands), _tuple(call(*operands))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.numpy(), other.numpy())


@every_primitive
def test_the_definition_is_whole(primitive: Primitive) -> None:
    assert primitive.doc.endswith((".", "…")), primitive.doc
    assert "\n" not in primitive.doc, primitive.doc
    assert primitive.name.isidentifier()
    assert primitive.name == primitive.name.lower()
    samples = list(primitive.samples())
    assert samples
    assert all(isinstance(sample, Sample) for sample in samples)
    for slot in (primitive.derivatives, primitive.batch):
        assert not isinstance(slot, Unsupported) or len(slot.reason.split()) > 3
    for reason in _constant_reasons(primitive, len(samples[0].operands)):
        assert len(reason.split()) > 2, reason


@every_primitive
def test_there_is_one_derivative_per_operand(primitive: Primitive) -> None:
    derivatives = primitive.derivatives
    if isinstance(derivatives, (Unsupported, Every, Joint)):
        return
    for sample in primitive.samples():
        assert len(derivatives) == len(sample.operands)


@every_primitive
def test_some_sample_takes_each_derivative_that_is_claimed(primitive: Primitive) -> None:
    """A rule that no sample reaches would be a rule that no test sees."""
    derivatives = primitive.derivatives
    if isinstance(derivatives, (Unsupported, Every, Joint)) or primitive.name in CHECKED_BY_HAND:
        return
    for index, derivative in enumerate(derivatives):
        if isinstance(derivative, Constant):
            continue
        moved = [
            sample
            for sample in primitive.samples()
            if sample.derivative and np.asarray(sample.operands[index]).size
            and wrap(np.asarray(sample.operands[index])).dtype.is_inexact
        ]  # fmt: skip
        assert moved, f"no sample differentiates operand {index} of {primitive.name}"


def test_there_are_about_120_primitives() -> None:
    print(len(PRIMITIVES), *sorted(PRIMITIVES))
    assert len(PRIMITIVES) >= 100


def test_a_primitive_is_found_under_its_name_alone() -> None:
    assert all(name == primitive.name for name, primitive in PRIMITIVES.items())
    with pytest.raises(wf.ArgumentError, match="exists"):
        Primitive("sin", "Again.", *[None] * 5, kind=Opaque())  # type: ignore[arg-type]


def test_an_unknown_primitive_is_refused() -> None:
    with pytest.raises(wf.NameUnknownError) as caught:
        find("sine")
    assert caught.value.got == "name: sine"


@pytest.mark.slow
def test_the_table_of_transforms_is_up_to_date() -> None:
    generator = runpy.run_path(str(DOCS / "generate_transforms.py"))
    assert generator["page"]() == (DOCS / "transforms.md").read_text(encoding="utf-8"), (
        "run: python docs/generate_transforms.py"
    )


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _constant_reasons(primitive: Primitive, operands: int) -> list[str]:
    derivatives = primitive.derivatives
    if isinstance(derivatives, (Unsupported, Joint)):
        return []
    kinds = [primitive.derivative(index) for index in range(operands)]
    return [kind.reason for kind in kinds if isinstance(kind, Constant)]
