"""What a definition says is what the compiler does: kinds, costs and lowerings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
import weft.compiler.pipeline  # which has primitives of its own
from weft.compiler.fusion.grouping import Group, group, why_stored
from weft.compiler.lowering.groups import context_of, is_lowered, lower
from weft.compiler.lowering.nodes import NODE_KERNELS, require_lowering
from weft.compiler.targets.cpu.target import CPU
from weft.core.dtypes import float32
from weft.core.errors import Unsupported
from weft.ir import scalars
from weft.ir.dispatch import apply
from weft.ir.kinds import Control, Elementwise, Kind, Movement, Opaque, Reduction, Window
from weft.ir.loops import Kernel
from weft.ir.primitive import PRIMITIVES, Primitive, Sample
from weft.ir.scalar_functions import element_cost, lower_element
from weft.ir.tensor import Tensor
from weft.ir.walking import keeps_elements
from weft.ops.movement import transpose
from weft.ops.reduction import reduced_type, reduction

Array = np.ndarray[Any, Any]


# --- costs ---------------------------------------------------------------------------------------


def functions_of(primitive: Primitive) -> set[str]:
    """The dear instructions in a primitive's expression of one float32."""
    count = len(primitive.samples()[0].operands)
    places = [scalars.local(f"x{i}", float32) for i in range(count)]
    try:
        nodes = scalars.nodes_in_order(lower_element(primitive, places, float32, {}))
    except (Unsupported, wf.DTypeError):
        return set()
    dear = {n for n, each in scalars.INSTRUCTIONS.items() if each.cost >= scalars.FUNCTION}
    return dear & {node.op for node in nodes}


FUNCTIONS = {
    name: found
    for name, primitive in sorted(PRIMITIVES.items())
    if primitive.broadcasts and (found := functions_of(primitive))
}


def test_every_dear_instruction_is_that_of_a_primitive() -> None:
    dear = {n for n, each in scalars.INSTRUCTIONS.items() if each.cost >= scalars.FUNCTION}
    assert set.union(*FUNCTIONS.values()) == dear
    assert {"atan", "tan", "lgamma", "log2", "cbrt"} < dear


def kernels_of(f: Any, *types: wf.TensorType) -> list[Kernel]:
    """The kernels of the groups that a function's nodes are cut into."""
    graph = wf.ir.trace(f, *types)
    steps = group(graph, is_lowered, CPU.limits.fusion)
    context = context_of(graph, CPU.limits.lowering, steps)
    return [lower(step, context, "k").kernel for step in steps if isinstance(step, Group)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_dear_value_that_several_kernels_read_is_computed_once(name: str) -> None:
    primitive = PRIMITIVES[name]
    count = len(primitive.samples()[0].operands)

    def f(*operands: Tensor) -> Any:
        y = apply(primitive, *operands)
        return y.sum(axis=0), (y * 2).sum(axis=1), y.T * 3 + 1

    kernels = kernels_of(f, *[wf.spec("float32", (256, 256))] * count)
    for function in FUNCTIONS[name]:
        assert sum(f"{function}(" in str(kernel) for kernel in kernels) == 1, function
    assert len(kernels) > 1


def test_what_costs_little_is_computed_by_each_kernel_that_reads_it() -> None:
    def f(x: Tensor) -> Any:
        y = x * 2
        return y.sum(axis=0), (y + 1).sum(axis=1), y.T * 3 + 1

    graph = wf.ir.trace(f, wf.spec("float32", (256, 256)))
    assert graph.nodes[0].primitive is PRIMITIVES["multiply"]
    assert graph.nodes[0].results[0] not in why_stored(graph, is_lowered, CPU.limits.fusion)


def test_the_cost_of_an_element_depends_on_its_dtype() -> None:
    divide = PRIMITIVES["remainder"]
    whole = element_cost(divide, [wf.int32, wf.int32], wf.int32, {})
    assert whole < scalars.FUNCTION <= element_cost(divide, [float32, float32], float32, {})


def test_a_power_of_many_factors_is_a_function() -> None:
    power = PRIMITIVES["integer_pow"]
    costs = [element_cost(power, [float32], float32, {"exponent": n}) for n in (2, 3, 20)]
    assert costs == [1, 2, scalars.FUNCTION]


# --- lowerings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_something_says_how_a_primitive_is_compiled(name: str) -> None:
    require_lowering(PRIMITIVES[name])


def test_every_kernel_is_that_of_a_primitive() -> None:
    assert set(NODE_KERNELS) <= set(PRIMITIVES)


def define(kind: Kind, **slots: Any) -> Primitive:
    return Primitive(
        "kind_of_tests",
        "The same value.",
        kind=kind,
        type_rule=lambda x, **params: x,
        reference=lambda x, **params: x,
        derivatives=Unsupported("for tests"),
        batch=Unsupported("for tests"),
        samples=tuple,
        **slots,
    )


@pytest.fixture(autouse=True)
def without_the_primitive_of_tests() -> Iterator[None]:
    yield
    PRIMITIVES.pop("kind_of_tests", None)


@pytest.mark.parametrize("kind", [Elementwise(), Movement(), Opaque(), Window("add")])
def test_a_primitive_without_a_lowering_is_refused(kind: Kind) -> None:
    with pytest.raises(wf.ArgumentError, match="nothing says how kind_of_tests is compiled"):
        require_lowering(define(kind))


def test_a_program_with_such_a_primitive_is_not_compiled() -> None:
    primitive = define(Opaque())
    with pytest.raises(wf.ArgumentError, match="nothing says how"):
        wf.jit(lambda x: apply(primitive, x))(wf.ones(3))


@pytest.mark.parametrize("kind", [Reduction("add"), Control()])
def test_some_kinds_say_by_themselves_how_they_are_compiled(kind: Kind) -> None:
    require_lowering(define(kind))


def test_a_reason_is_what_a_program_says_of_a_call_by_reference() -> None:
    primitive = define(Opaque(), lower=Unsupported("the moon is not full"))
    require_lowering(primitive)
    text = str(wf.jit(lambda x: apply(primitive, x)).explain(wf.ones(3)))
    assert "the moon is not full" in text


def test_only_what_works_by_elements_broadcasts() -> None:
    with pytest.raises(TypeError, match="its kind is Elementwise"):
        define(Opaque(), broadcasts=True)


# --- kinds of one's own --------------------------------------------------------------------------


def is_native(f: Any, *operands: Tensor) -> bool:
    report = wf.jit(f).explain(*operands)
    return all(kernel.kind == "kernel" for kernel in report.kernels)


def test_a_movement_of_ones_own_is_written_into_its_readers() -> None:
    def read(reader: Any, node: Any, index: Any) -> Any:
        rows, columns = node.operands[0].type.shape
        first, second = index
        return reader.element_at(
            node.operands[0], (first * -1 + (rows - 1), second * -1 + (columns - 1))
        )

    turn = define(Movement(read))
    x = wf.asarray(np.arange(12.0, dtype=np.float32).reshape(3, 4))
    f = lambda x: apply(turn, x) * 2 + x  # noqa: E731
    assert is_native(f, x)
    assert wf.jit(f)(x).tolist() == (x.numpy()[::-1, ::-1] * 2 + x.numpy()).tolist()
    assert len(kernels_of(f, x.type)) == 1


@pytest.mark.parametrize("shape", [(6, 5), (512, 64), (64, 4096)])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_a_reduction_of_ones_own_combines_what_it_says_of_each_element(
    shape: tuple[int, int], axes: tuple[int, ...]
) -> None:
    squares = Primitive(
        "kind_of_tests",
        "The sum of squares.",
        kind=Reduction("add"),
        lower=lambda scalar, x, axes: x * x,
        type_rule=reduced_type,
        reference=lambda x, axes: np.sum(x * x, axis=axes),
        derivatives=Unsupported("for tests"),
        batch=Unsupported("for tests"),
        samples=lambda: [Sample((np.ones((2, 3), np.float32),), {"axes": (0,)})],
    )
    numbers = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    f = lambda x: apply(squares, x + 1, axes=axes)  # noqa: E731
    assert is_native(f, wf.asarray(numbers))
    expected = ((numbers.astype(np.float64) + 1) ** 2).sum(axis=axes)
    np.testing.assert_allclose(wf.jit(f)(wf.asarray(numbers)).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_a_reduction_combines_of_short_floats_is_not_rounded(dtype: str) -> None:
    squares = reduction(
        "kind_of_tests",
        doc="The sum of squares.",
        reference=lambda x, axes: np.sum(x.astype(np.float32) ** 2, axis=axes).astype(x.dtype),
        derivative=PRIMITIVES["reduce_any"].derivative(0),
        combine="add",
        lower=lambda scalar, x, axes: x * x,
        dtypes="float",
        identity=True,
    )
    x = wf.asarray(np.full((8, 1000), 1.03125, np.float32)).astype(dtype)
    f = lambda x: apply(squares, x, axes=(1,))  # noqa: E731
    assert wf.jit(f)(x).tolist() == f(x).tolist()


def test_a_transposition_keeps_elements_and_a_padding_does_not() -> None:
    keeps = wf.ir.trace(lambda x: apply(transpose, x, order=(1, 0)), wf.spec("float32", (2, 3)))
    pads = wf.ir.trace(lambda x: wf.pad(x, ((1, 1), (0, 0))), wf.spec("float32", (2, 3)))
    assert [keeps_elements(graph.nodes[0]) for graph in (keeps, pads)] == [True, False]
