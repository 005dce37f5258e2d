"""Every way to divide a primitive gives what the plain primitive gives; the search may choose any.

Nothing here knows a primitive by name, apart from the list of those that are not divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tests.distributed.random_placements import MESHES, partition_at_random
from tests.hammer import NIGHTLY

import weft as wf
from weft.core.dtypes import from_numpy
from weft.ir.derivatives import Joint
from weft.ir.dispatch import bind
from weft.ir.graph import Graph, GraphNode, Variable
from weft.ir.kinds import Control
from weft.ir.primitive import PRIMITIVES, Primitive, Sample
from weft.ir.reverse import vjp
from weft.ir.sharding import REPLICATED, SUM, Split, Strategy, split_axes
from weft.ir.tensor import Tensor, wrap
from weft.ir.tracing import interpret
from weft.transforms.sharding.costs import Costs
from weft.transforms.sharding.emit import local_program
from weft.transforms.sharding.partition import partition_graph
from weft.transforms.sharding.search import Along, Candidate, Search
from weft.transforms.sharding.strategies import has_rule, strategies_of

COUNTS = (2, 3, 4, 8) if NIGHTLY else (2,)
UNDIVIDED = {"debug_print", "debug_breakpoint", "debug_check", "as_parts", "of_parts"}
"""Primitives that every device computes whole, and those of programs that are divided already."""
EACH = [pytest.param(each, id=name) for name, each in sorted(PRIMITIVES.items())]
QUICK = EACH if NIGHTLY else EACH[::16]


class ForcedSearch(Search):
    """A search that must take one strategy for all nodes."""

    def __init__(self, graph: Graph, along: Along, strategy: Strategy) -> None:
        self.strategy = strategy
        whole = [REPLICATED] * len(graph.inputs)
        super().__init__(graph, along, whole, [REPLICATED] * len(graph.outputs))

    def candidates(self, node: GraphNode) -> list[Candidate]:
        """See `Search`."""
        return [Candidate(self.strategy, 0.0)]


def graph_of(primitive: Primitive, sample: Sample) -> Graph:
    """A graph of one node."""
    arrays = [np.asarray(operand) for operand in sample.operands]
    kinds = [wf.TensorType(from_numpy(array.dtype), array.shape) for array in arrays]
    found = primitive.type_rule(*kinds, **sample.params)
    inputs = tuple(map(Variable, kinds))
    results = tuple(map(Variable, found if primitive.multiple else (found,)))
    node = GraphNode(primitive, inputs, dict(sample.params), results)
    return Graph(inputs, (node,), results)


def run_forced(graph: Graph, strategy: Strategy, count: int, inputs: Sequence[Tensor]) -> Any:
    """What all devices give when each computes by a strategy: [count, ...] for each output."""
    search = ForcedSearch(graph, Along("a", count, Costs()), strategy)
    program = local_program(search)
    f = wf.vmap(
        lambda *xs: list(interpret(program, *xs)), in_axes=None, axis_name="a", axis_size=count
    )
    return f(*inputs)


def assert_close(found: Any, wanted: Any) -> None:
    found, wanted = (np.asarray(wf.asarray(each)) for each in (found, wanted))
    assert found.dtype == wanted.dtype
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted)
        return
    coarse = wanted.dtype.itemsize == 2
    wide = "complex128" if wanted.dtype.kind == "c" else "float64"
    np.testing.assert_allclose(
        found.astype(wide), wanted.astype(wide), rtol=2e-2 if coarse else 2e-5, atol=1e-5
    )


def check_strategies(primitive: Primitive, count: int) -> int:
    """Compare all strategies of all samples; how many there were."""
    compared = 0
    for number, sample in enumerate(primitive.samples()):
        graph = graph_of(primitive, sample)
        tensors = [wrap(np.asarray(operand)) for operand in sample.operands]
        wanted = interpret(graph, *tensors)
        for strategy in strategies_of(graph.nodes[0], count)[1:]:
            compared += 1
            try:
                found = run_forced(graph, strategy, count, tensors)
                for all_devices, one in zip(found, wanted, strict=True):
                    for device in range(count):
                        assert_close(all_devices[device], one)
            except Exception as error:
                error.add_note(f"sample {number} of {primitive.name} by {strategy}")
                raise
    return compared


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("primitive", EACH)
def test_every_strategy_gives_what_the_whole_primitive_gives(
    primitive: Primitive, count: int
) -> None:
    if not primitive.impure:
        check_strategies(primitive, count)


def test_primitives_without_a_rule_are_known() -> None:
    without = {
        name
        for name, primitive in PRIMITIVES.items()
        if not has_rule(primitive)
        and not isinstance(primitive.kind, Control)  # which control.py divides
        and not primitive.type_rule.__module__.startswith("weft.compiler")  # made afterwards
    }
    assert without == UNDIVIDED


def test_most_primitives_have_samples_that_are_divided() -> None:
    divided = [each for each in PRIMITIVES.values() if any(_divided_samples(each))]
    assert len(divided) > 0.85 * len(PRIMITIVES)


def _divided_samples(primitive: Primitive) -> Iterator[bool]:
    for sample in primitive.samples():
        node = graph_of(primitive, sample).nodes[0]
        yield any(each.is_divided for count in (2, 3) for each in strategies_of(node, count))


def gradient_of(primitive: Primitive, sample: Sample) -> Any:
    """A function from the operands to the cotangents of those that have a derivative."""

    def gradient(*operands: Tensor) -> list[Tensor]:
        def f(*xs: Tensor) -> list[Tensor]:
            out = bind(primitive, *xs, **sample.params)
            results = out if primitive.multiple else [out]
            return [each for each in results if each.dtype.is_inexact]

        outputs, pullback = vjp(f, *operands)
        cotangents = pullback([each * 0.5 + 0.25 for each in outputs])
        return [each for each in cotangents if each is not None]

    return gradient


def has_gradient(primitive: Primitive, sample: Sample) -> bool:
    derivatives = primitive.derivatives
    known = isinstance(derivatives, tuple | Joint) or hasattr(derivatives, "at")
    inexact = any(np.asarray(x).dtype.kind in "fc" for x in sample.operands)
    return sample.derivative and known and inexact and not primitive.impure


@pytest.mark.parametrize("primitive", QUICK)
def test_partitioned_samples_and_their_gradients_agree_with_plain_ones(
    primitive: Primitive,
) -> None:
    seed = sum(map(ord, primitive.name))
    for number, sample in enumerate(primitive.samples()):
        if not has_gradient(primitive, sample) or primitive.name == "eig":
            continue
        tensors = [wrap(np.asarray(operand)) for operand in sample.operands]
        try:
            wanted = gradient_of(primitive, sample)(*tensors)
        except wf.UnsupportedError:
            continue
        first = seed + number
        for mesh in (first, first + 5, first + 10) if NIGHTLY else (first,):
            partitioned = partition_at_random(gradient_of(primitive, sample), mesh)
            for found, one in zip(partitioned(*tensors), wanted, strict=True):
                assert_close(found, one)


# --- faults made on purpose ----------------------------------------------------------------------


def _wrong_dot(operands: Any, results: Any, params: Any, count: int) -> Iterator[Strategy]:
    """Terms of a product that are taken for the whole of it."""
    yield Strategy((Split(1), Split(0)), (REPLICATED,))


def _transposed_reshape(operands: Any, results: Any, params: Any, count: int) -> Iterator[Strategy]:
    """The innermost axis on one side for the outermost on the other."""
    shape = results[0].shape
    if shape:
        yield split_axes((operands[0].ndim - 1,), (0,), shape=(shape[0] // count, *shape[1:]))


@pytest.mark.parametrize(("name", "wrong"), [("dot", _wrong_dot), ("reshape", _transposed_reshape)])
def test_a_wrong_rule_is_found(name: str, wrong: Any) -> None:
    primitive = PRIMITIVES[name]
    right = primitive.sharding
    object.__setattr__(primitive, "sharding", wrong)
    try:
        with pytest.raises(AssertionError):
            check_strategies(primitive, 2)
    finally:
        object.__setattr__(primitive, "sharding", right)


def test_a_partial_sum_through_what_is_not_linear_is_found() -> None:
    primitive = PRIMITIVES["exp"]
    object.__setattr__(
        primitive, "sharding", lambda *_: [Strategy((SUM,), (SUM,), is_divided=False)]
    )
    try:
        with pytest.raises(AssertionError):
            check_strategies(primitive, 2)
    finally:
        object.__setattr__(primitive, "sharding", None)


# --- what the search chooses ---------------------------------------------------------------------


def transfers_of(f: Any, count: int, inputs: Sequence[Any], *kinds: Any) -> list[str]:
    graph = wf.ir.trace(f, *kinds)
    whole = {"a": [REPLICATED] * len(graph.outputs)}
    done = partition_graph(graph, {"a": (count, Costs())}, {"a": list(inputs)}, whole)
    return [each.collective for each in done.transfers]


def test_a_product_split_along_its_rows_moves_nothing_but_its_result() -> None:
    x, w = wf.spec("float32", (64, 32)), wf.spec("float32", (32, 16))
    assert transfers_of(wf.matmul, 2, [Split(0), REPLICATED], x, w) == ["all_gather"]


def test_terms_are_summed_once_behind_all_linear_operations() -> None:
    x = wf.spec("float32", (512, 256))
    f = lambda x: wf.sum(-(x * 3.0), axis=0).reshape(16, 16).T  # noqa: E731
    assert transfers_of(f, 4, [Split(0)], x) == ["all_reduce"]


def test_a_value_that_is_gathered_for_one_reader_is_cut_for_the_others() -> None:
    x = wf.spec("float32", (64, 64))
    f = lambda x: (wf.sort(x, axis=0), wf.sort(x, axis=1), wf.linalg.inv(x))  # noqa: E731
    assert transfers_of(f, 2, [Split(0)], x) == ["all_gather"]


def test_placements_spread_backward_to_inputs_that_are_open() -> None:
    kinds = [wf.spec("float32", (64, 64))] * 2
    graph = wf.ir.trace(lambda x, w: wf.distributed.shard(wf.tanh(x @ w), (None, "a")), *kinds)
    search = Search(graph, Along("a", 2, Costs()), [REPLICATED, None], [None])
    assert [search.placed[each] for each in graph.inputs] == [REPLICATED, Split(1)]


def test_random_numbers_are_those_of_the_whole_program_on_every_mesh() -> None:
    f = lambda: wf.random.normal((8, 4), key=wf.random.key(3)) + 0.0  # noqa: E731
    with wf.settings.changed(eager="reference"):  # as the parts are computed here
        wanted = f().numpy()
    for seed in range(2 * len(MESHES)):
        np.testing.assert_array_equal(partition_at_random(f, seed)().numpy(), wanted)
