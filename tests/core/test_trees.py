"""Trees come apart and together again without loss; the first path where two differ is named."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.dtypes import float32
from weft.core.errors import ArgumentError, ArgumentTypeError
from weft.core.shapes import symbol
from weft.core.trees import (
    flatten,
    flatten_with_paths,
    leaves,
    map_tree,
    register_leaf,
    register_node,
    unflatten,
)
from weft.core.types import TensorType


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Layer:
    weight: Any
    bias: Any = None
    name: str = field(default="layer", metadata={"static": True})


@dataclass
class Checked:
    value: Any

    def __post_init__(self) -> None:
        assert isinstance(self.value, int)


@dataclass
class Loose:
    shape: Any = field(metadata={"static": True})


class Module:
    def __init__(self, training: bool = True, **children: Any) -> None:
        self.training = training
        self.children = children


class Net(Module):
    pass


def module_parts(module: Module) -> tuple[dict[str, Any], bool]:
    return dict(module.children), module.training


def make_module(kind: type[Module], children: dict[str, Any], training: bool) -> Module:
    return kind(training, **children)


register_node(Module, module_parts, make_module)


def nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.one_of(st.text(max_size=3), st.integers(0, 3), st.tuples(st.integers(0, 3)))
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Layer, inner, inner, st.sampled_from(["a", "b"])),
        st.dictionaries(st.sampled_from("ab"), inner).map(OrderedDict),
    )


trees = st.recursive(st.one_of(st.none(), st.integers(), st.text(max_size=2)), nest, max_leaves=10)


@given(trees)
def test_unflatten_undoes_flatten(tree: Any) -> None:
    found, structure = flatten(tree)
    again = unflatten(structure, found)
    assert again == tree
    assert repr(again) == repr(tree)  # the order of insertion too
    assert len(found) == structure.num_leaves == len(structure.paths())


@given(trees)
def test_structures_of_equal_trees_are_equal_and_hash_alike(tree: Any) -> None:
    first = flatten(tree)[1]
    second = flatten(map_tree(lambda leaf: 0, tree))[1]
    assert first == second
    assert hash(first) == hash(second)
    assert repr(first) == repr(second)


@given(trees)
def test_paths_are_all_different(tree: Any) -> None:
    paths = flatten(tree)[1].paths()
    assert len(set(paths)) == len(paths)


@given(trees)
def test_mapping_the_identity_changes_nothing(tree: Any) -> None:
    assert map_tree(lambda leaf: leaf, tree) == tree
    assert map_tree(lambda a, b: (a, b), tree, tree) == map_tree(lambda a: (a, a), tree)


def test_the_order_of_insertion_does_not_matter_but_is_kept() -> None:
    first, second = {"b": 1, "a": 2}, {"a": 20, "b": 10}
    assert flatten(first)[1] == flatten(second)[1]
    assert leaves(first) == [2, 1]
    assert list(map_tree(lambda x, y: x + y, first, second).items()) == [("b", 11), ("a", 22)]


def test_keys_without_an_order_keep_that_of_insertion() -> None:
    assert leaves({"b": 1, 0: 2}) == [1, 2]
    with pytest.raises(ArgumentError, match="at the root"):
        map_tree(lambda x, y: x, {"b": 1, 0: 2}, {0: 2, "b": 1})


def test_containers_keep_their_class() -> None:
    tree = {"p": Point(1, 2), "o": OrderedDict(b=1), "d": defaultdict(int, k=2), "t": (3,)}
    doubled = map_tree(lambda leaf: 2 * leaf, tree)
    assert doubled == {"p": Point(2, 4), "o": OrderedDict(b=2), "d": {"k": 4}, "t": (6,)}
    assert doubled["d"].default_factory is int
    assert isinstance(doubled["o"], OrderedDict)


def test_paths_read_like_the_code_that_reaches_the_leaf() -> None:
    tree = {"layers": [Layer(1), Layer(2, 3)], "a b": {4: Point(5, 6)}, "n": None}
    assert flatten_with_paths(tree) == [
        ("['a b'][4].x", 5),
        ("['a b'][4].y", 6),
        ("layers[0].weight", 1),
        ("layers[1].weight", 2),
        ("layers[1].bias", 3),
    ]
    assert flatten_with_paths(7) == [("", 7)]
    assert flatten_with_paths([7]) == [("[0]", 7)]


def test_structures_print_like_the_tree() -> None:
    tree = {"l": [Layer(1), (2,)], "m": Net(a=1), "d": defaultdict(list)}
    assert repr(flatten(tree)[1]) == (
        "{'d': defaultdict({}), 'l': [Layer(weight=*, bias=None, name='layer'), (*,)], "
        "'m': Net(a=*, True)}"
    )


def test_static_fields_are_structure_and_init_is_not_run() -> None:
    assert leaves(Layer(1, 2, "a")) == [1, 2]
    assert flatten(Layer(1, 2, "a"))[1] != flatten(Layer(1, 2, "b"))[1]
    assert map_tree(str, Layer(1, 2, "a")) == Layer("1", "2", "a")
    assert map_tree(str, Checked(1)).value == "1"


def test_static_values_that_cannot_be_hashed_are_refused() -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        flatten(Loose([2, 3]))
    assert caught.value.problem == "the static part of Loose cannot be hashed"
    assert "tuple" in caught.value.fix


def test_registered_classes_and_their_subclasses_are_containers() -> None:
    net = Net(training=False, body=Module(w=1), head=[2])
    assert flatten_with_paths(net) == [("body.w", 1), ("head[0]", 2)]
    again = map_tree(lambda leaf: leaf + 1, net)
    assert type(again) is Net
    assert again.training is False
    assert leaves(again) == [2, 3]
    assert flatten(Net(a=1))[1] != flatten(Module(a=1))[1]


def test_a_class_is_registered_once() -> None:
    with pytest.raises(ArgumentError, match="Module is registered already"):
        register_node(Module, module_parts, make_module)


def test_values_of_the_framework_and_unknown_classes_are_leaves() -> None:
    class Words(dict[str, int]):
        pass

    values = [symbol("n") + 1, float32, TensorType(float32, (2,)), Layer, Words(a=1), "text"]
    assert leaves(values) == values


def test_registration_reaches_classes_already_seen() -> None:
    @dataclass
    class Late:
        value: int

    class Later(Late):
        pass

    assert leaves([Late(1), Later(2)]) == [1, 2]
    register_leaf(Late)
    assert leaves([Late(1), Later(2)]) == [Late(1), Later(2)]


def test_a_predicate_ends_the_descent() -> None:
    tree = [None, (1, 2)]
    assert leaves(tree, is_leaf=lambda node: node is None) == [None, 1, 2]
    assert map_tree(type, tree, is_leaf=lambda node: isinstance(node, tuple)) == [None, tuple]


def test_none_is_a_container_without_leaves() -> None:
    assert flatten(None)[0] == []
    assert unflatten(flatten(None)[1], []) is None


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_wrong_number_of_leaves_is_refused(count: int) -> None:
    with pytest.raises(ArgumentError) as caught:
        unflatten(flatten([1, 2])[1], range(count))
    assert caught.value.expected == "2 leaves, for [*, *]"
    assert caught.value.got == f"leaves: {count} of them"


@pytest.mark.parametrize(
    ("first", "second", "place", "wanted", "found"),
    [
        ({"a": [1, 2]}, {"a": [1, (2,)]}, "at a[1]", "a leaf", "(*,)"),
        ({"a": 1}, {"a": 1, "b": 2}, "at b", "nothing", "a value"),
        ({"a": {"w": 1}}, {"a": {}}, "at a.w", "a value", "nothing"),
        ([1, 2], [1], "at [1]", "a value", "nothing"),
        ([1], (1,), "at the root", "[*]", "(*,)"),
        ([1], [None], "at [0]", "a leaf", "None"),
        ([Loose(1)], [Loose(2)], "at [0]", "Loose(shape=1)", "Loose(shape=2)"),
        ([1], list(range(100)), "at [1]", "nothing", "a value"),
        (1, list(range(100)), "at the root", "a leaf", "list of 100"),
    ],
)
def test_trees_that_differ_are_refused_by_their_first_path(
    first: Any, second: Any, place: str, wanted: str, found: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        map_tree(lambda *rows: rows, first, first, second)
    error = caught.value
    assert error.op == "map_tree"
    assert error.problem == f"the trees differ in structure {place}"
    assert error.expected.endswith(f"{place}: {wanted}")
    assert error.note == f"{place}: {found}"
    assert place in error.fix
    assert "rest[1]: " in error.got
