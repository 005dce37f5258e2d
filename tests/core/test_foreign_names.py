"""The names people bring: every call in the tables runs, and messages give it."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import math
import pickle
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import numpy
import pytest
from docs.generate_names import FOLDER, PAGES, render

import weft as wf
from weft.core import names
from weft.core.foreign import EVERYWHERE, OPTIONS, SPACES, TABLES
from weft.core.names import HOMES, nearest_name, suggestion
from weft.core.names import _as_method as as_method
from weft.nn.state import Mismatch

ENTRIES = [(space, name) for space, table in TABLES.items() for name in table]
REMARKS = [(space, name) for space, name in ENTRIES if TABLES[space][name].startswith("#")]
ELSEWHERE = {"wf.cuda.", "wf.device('cuda", "wf.default_device('cuda", "net.to('cuda"}
"""What needs a card."""
IN_A_GROUP = {"wf.distributed.rank()", "wf.distributed.world_size()"}
"""What needs processes that were started together."""


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, Any]:
    """What the calls of the tables are written over."""
    wf.random.seed(0)
    net = wf.nn.Linear(2, 2)
    optimizer = wf.optim.SGD(net.parameters(), lr=0.1)
    array = numpy.ones((2, 2), dtype="float32")
    batches = [(wf.ones((2, 2)), wf.ones((2, 2)))]
    loss_fn = wf.nn.functional.mse_loss
    return {
        "wf": wf, "math": math, "numpy": numpy, "itertools": itertools,
        "x": wf.tensor([[1.0, 2.0], [3.0, 4.0]]), "y": wf.tensor([[0.5, 1.0], [1.5, 1.0]]),
        "z": wf.tensor([[0.5, 1.0], [1.5, 1.0]]), "v": wf.tensor([1.0, 2.0]),
        "w": wf.tensor([2.0, 3.0]), "v3": wf.ones(3), "w3": wf.ones(3), "value": 0.5, "k": 1,
        "a": wf.ones((2, 2)), "b": wf.ones((2, 2)), "i": wf.tensor([0, 1]),
        "index": wf.tensor([[0], [1]]), "mask": wf.tensor([[True, False], [False, True]]),
        "spd": wf.tensor([[2.0, 0.5], [0.5, 1.0]]), "pairs": wf.ones((3, 2)),
        "probabilities": wf.tensor([0.25, 0.75]), "logits": wf.ones(2), "q": wf.ones((1, 2, 3, 4)),
        "image": wf.ones((1, 1, 4, 4)), "kernel": wf.ones((1, 1, 2, 2)),
        "tokens": wf.ones((3, 1, 8)), "data": [1.0, 2.0], "array": array,
        "buffer": array.tobytes(), "f": lambda x: (x * x).sum(), "net": net,
        "optimizer": optimizer, "loss_fn": loss_fn, "schedule": wf.optim.schedules.Constant(0.1),
        "average": wf.optim.ExponentialMovingAverage(net),
        "scheduler": wf.optim.schedules.Scheduler(optimizer, wf.optim.schedules.Constant(0.1)),
        "mismatch": net.load_state_dict({}, strict=False),
        "dataset": wf.data.ArrayDataset(array), "first": [1], "second": [2], "batches": batches,
        "path": str(tmp_path / "file"), "reference": None,
        "trainer": wf.train.Trainer(net, loss_fn, optimizer, progress=False),
    }  # fmt: skip


@pytest.mark.parametrize(("space", "name"), ENTRIES, ids=lambda part: part)
def test_a_call_of_the_tables_runs(
    space: str,
    name: str,
    surroundings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    call = TABLES[space][name]
    if call.startswith("#"):
        assert len(call) > 12  # what to do instead
    elif call in IN_A_GROUP or (
        any(part in call for part in ELSEWHERE) and not wf.cuda.is_available()
    ):
        compile(call, name, "eval")
    else:
        if "loadtxt" in name:
            Path(surroundings["path"]).write_text("1,2\n3,4\n")
        if space == "jax.nn" and "attention" in name:
            surroundings |= {"k": surroundings["q"], "v": surroundings["q"]}
        block = eval(call, surroundings)
        if hasattr(block, "__enter__") and not isinstance(block, wf.nn.Module):
            with block:
                pass


def resolve(home: str) -> Any:
    first, _, rest = home.partition(".")
    roots = {
        "wf": wf, "x": wf.Tensor, "net": wf.nn.Module, "optimizer": wf.optim.Optimizer,
        "scheduler": wf.optim.schedules.Scheduler, "mismatch": Mismatch,
        "average": wf.optim.ExponentialMovingAverage,
    }  # fmt: skip
    return reduce(getattr, rest.split("."), roots[first]) if rest else roots[first]


@pytest.mark.parametrize("owner", SPACES)
def test_a_name_of_the_tables_is_not_there_and_its_message_is_the_call(owner: str) -> None:
    public = resolve(owner)
    known: dict[str, str] = {}
    for space in SPACES[owner]:
        known = {**TABLES[space], **known}
    own = TABLES[SPACES[owner][0]]
    assert [name for name in own if hasattr(public, name)] == []
    for name, call in known.items():
        if not hasattr(public, name) and owner == "x":
            assert suggestion(name, [], owner) == as_method(call.removeprefix("# "))
        elif not hasattr(public, name):
            assert suggestion(name, [], owner) == call.removeprefix("# ")


METHODS = sorted(
    {call for space in SPACES["x"] for call in TABLES[space].values() if as_method(call) != call}
)


@pytest.mark.parametrize("call", METHODS)
def test_a_call_that_becomes_a_method_gives_the_same(
    call: str, surroundings: dict[str, Any]
) -> None:
    results = [eval(each, surroundings) for each in (call, as_method(call))]
    first, second = (wf.tree.leaves(each) for each in results)
    for a, b in zip(first, second, strict=True):
        numpy.testing.assert_array_equal(a.numpy(), b.numpy())


WRONG_BEFORE = {
    "compile": ("wf", "wf.jit(f)"),
    "utils": ("wf", "wf.data"),
    "Linear": ("wf", "wf.nn.Linear(in_features, out_features)"),
    "cat": ("wf", "wf.concat([x, y], axis=0)"),
    "inv": ("wf", "wf.linalg.inv(x)"),
    "relu_": ("x", "x.copy_(x.relu())"),
    "acosh": ("x", "wf.acosh(x)"),
    "softmax": ("wf.nn", "wf.softmax(x)"),
    "StepLR": ("wf.optim", "wf.optim.schedules.Step(0.1, every=30, factor=0.1)"),
}


@pytest.mark.parametrize("name", WRONG_BEFORE)
def test_a_missing_name_leads_to_the_right_call(name: str) -> None:
    owner, fix = WRONG_BEFORE[name]
    public = wf.ones(2) if owner == "x" else resolve(owner)
    with pytest.raises(wf.NameUnknownError) as caught:
        getattr(public, name)
    assert caught.value.fix.startswith(fix)
    assert caught.value.fix in str(caught.value)  # the fix is read first, then the whole


def test_a_guess_that_is_not_likely_is_not_made() -> None:
    for name in ("utils", "xyz", "amp", "mode", "put", "ger"):
        assert nearest_name(name, wf.__all__) == "", name
    for name in ("int1", "uint4", "qint8", "float3", "conv4d"):  # another number, another thing
        assert nearest_name(name, ["Int", "int16", "UInt64", "float32", "conv2d"]) == "", name
    assert nearest_name("in64", ["int64", "int16"]) == "int64"
    assert nearest_name("int", ["sin", "inf", "sinh", "mint"]) == ""
    assert suggestion("frobnicate", wf.__all__, "wf") == ""
    for wrong, right in (("sofmax", "softmax"), ("arang", "arange"), ("one_hott", "one_hot")):
        assert nearest_name(wrong, wf.__all__) == right
    assert nearest_name("load_statedict", dir(wf.nn.Module)) == "load_state_dict"


def public_functions() -> dict[str, list[Any]]:
    """All that is public and can be called, by its name."""
    functions: dict[str, list[Any]] = {}
    for home in [*HOMES, "net"]:
        public = resolve(home)
        for name in getattr(public, "__all__", None) or dir(public):
            if callable(getattr(public, name, None)):
                functions.setdefault(name, []).append(getattr(public, name))
    functions["zero_grad"].append(wf.optim.Optimizer.zero_grad)
    functions["fit"] = [wf.train.Trainer.fit]
    return functions


def parameters_of(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def test_every_option_is_called_something_here() -> None:
    functions = public_functions()
    known = set().union(*(parameters_of(f) for fs in functions.values() for f in fs))
    assert [here for here in EVERYWHERE.values() if here not in known] == []
    for name, options in OPTIONS.items():
        taken = set().union(*(parameters_of(function) for function in functions[name]))
        for given, text in options.items():
            assert given not in taken, (name, given)
            if not text.startswith("#"):
                call = compile(f"f({text}\n)", name, "eval")
                assert call.co_names or call.co_consts
                assert text.partition("=")[0] in taken, (name, given)


UNKNOWN = {
    "dim": (lambda x: wf.sum(x, dim=0), "axis=0"),
    "keepdim": (lambda x: x.mean(axis=0, keepdim=True), "keepdims=True"),
    "unbiased": (lambda x: x.var(unbiased=False), "correction=0"),
    "std dim": (lambda x: x.std(dim=1), "axis=1, correction=1  # PyTorch divides by n - 1"),
    "max dim": (lambda x: x.max(dim=-1), "their places: x.argmax(axis=-1)"),
    "weights_only": (
        lambda x: wf.load("weights", weights_only=False),
        "net.load_state_dict(wf.load(path))",
    ),
    "rounding_mode": (lambda x: x.div(2, rounding_mode="floor"), "x // y for 'floor'"),
    "inplace": (lambda x: wf.nn.functional.relu(x, inplace=True), "leave it out"),
    "attn_mask": (
        lambda x: wf.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=None),
        "mask=None",
    ),
    "map_location": (lambda x: wf.load("weights", map_location="cpu"), "device='cpu'"),
    "static_argnums": (lambda x: wf.jit(len, static_argnums=1), "static_argnames=("),
    "set_to_none": (lambda x: wf.optim.SGD([x], lr=1).zero_grad(set_to_none=True), "leave it out"),
    "pin_memory": (lambda x: wf.data.DataLoader([1], pin_memory=False), "leave it out"),
    "validation_split": (
        lambda x: wf.train.Trainer(
            wf.nn.Linear(1, 1), None, wf.optim.SGD([x], lr=1), progress=False
        ).fit([], validation_split=0.2),
        "wf.data.random_split(dataset, [0.8, 0.2])",
    ),
    "is_causal": (lambda x: wf.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True),
                  "causal=True"),
    "collate_fn": (lambda x: wf.data.DataLoader([1], collate_fn=None), "collate=function"),
    "learning_rate": (lambda x: wf.optim.Adam([x], learning_rate=0.1), "lr=0.1"),
    "T_max": (lambda x: wf.optim.schedules.Cosine(0.1, T_max=5), "steps=5"),
    "start_dim": (lambda x: x.flatten(start_dim=1), "start_axis=1"),
    "kernal_size": (lambda x: wf.nn.Conv2d(1, 2, kernal_size=3), "kernel_size=3"),
    "foreach": (lambda x: wf.optim.AdamW([x], foreach=True), "leave it out"),
    "generator": (lambda x: wf.random.normal((2,), generator=0), "key=wf.random.key(0)"),
    "nonsense": (lambda x: wf.sum(x, nonsense=0), "leave nonsense out"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_option_leads_to_the_right_one(name: str) -> None:
    call, fix = UNKNOWN[name]
    with pytest.raises(wf.ArgumentTypeError) as caught:
        call(wf.ones((2, 2)).requires_grad_())
    assert fix in caught.value.fix
    assert name.split()[-1] in caught.value.got


def test_an_error_inside_a_function_is_not_taken_for_a_wrong_call() -> None:
    def fails(x: Any) -> Any:
        raise TypeError("my own")

    with pytest.raises(TypeError, match="my own"):
        wf.tree.map_tree(fails, {"x": wf.ones(2)})
    with pytest.raises(TypeError, match="my own"):
        wf.scan(lambda carry, x: fails(x), wf.ones(2), wf.ones(3))


def test_public_functions_are_found_where_they_say_they_are() -> None:
    for home in (wf, wf.linalg, wf.fft, wf.random, wf.nn.functional):
        for name in home.__all__:
            function = getattr(home, name)
            if getattr(function, "explains_arguments", False):
                module = __import__(function.__module__, fromlist=["x"])
                assert getattr(module, function.__qualname__) is function


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_of_names_are_up_to_date(page: str) -> None:
    """`make docs` writes them."""
    assert (FOLDER / page).read_text(encoding="utf-8") == render(page)


@pytest.mark.parametrize(("call", "noted"), [("x.size(0)", True), ("x.ndim()", False)])
def test_a_call_of_the_size_gets_a_note(
    call: str, noted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import weft as wf\nx = wf.ones((2, 3))\n{call}\n")
    with pytest.raises(TypeError) as caught:
        exec(compile(script.read_text(), str(script), "exec"), {})
    sys.excepthook(caught.type, caught.value, caught.tb)
    assert ("x.shape[0] for one" in capsys.readouterr().err) is noted


@pytest.mark.parametrize(
    ("statement", "fix"),
    [
        ("from weft.nn import Dense", "wf.nn.Linear(3, 8, activation='relu')"),
        ("from weft import bmm", "wf.matmul(x, y)"),
        ("from weft.nn import Liner", "wf.nn.Linear"),
        ("from weft.nn.functional import sofmax", "wf.nn.functional.softmax"),
    ],
)
def test_an_import_of_a_missing_name_says_what_to_write(statement: str, fix: str) -> None:
    with pytest.raises(ImportError) as caught:
        exec(statement)
    assert isinstance(caught.value, wf.ImportNameError)
    assert caught.value.fix == fix
    assert caught.value.op == statement


@pytest.mark.parametrize(
    ("statement", "fix"),
    [
        ("from weft.utils.data import DataLoader", "from weft.data import DataLoader"),
        (
            "from weft.utils.data import DataLoader, ConcatDataset as Both",
            "from weft.data import DataLoader; dataset + dataset",
        ),
        ("from weft.nn.utils.rnn import pad_sequence", "wf.data.pad_collate([v, w], value=0)"),
        ("from weft.nn.utils import clip_grad_norm_", "wf.optim.clip_grad_norm(net.parameters()"),
        ("from weft.distributions import Categorical", "wf.random.categorical(logits)"),
        ("import weft.nn.utils.rnn", "wf.optim.clip_grad_norm(net.parameters(), 1.0)"),
        ("from weft.utils.data import DataLoader, nonsense_of_mine", "wf.data  # for torch"),
        ("import weft.numpy as jnp", "wf  # its functions have NumPy's names"),
        ("from weft.optim.lr_scheduler import StepLR", "wf.optim.schedules.Step(0.1, every=30"),
        ("import weft.backends.cudnn as cudnn", "there is nothing to tune: leave it out"),
        ("import weft.keras", "wf.nn, wf.train.Trainer"),
    ],
)
def test_an_import_of_a_missing_module_says_what_to_write(statement: str, fix: str) -> None:
    with pytest.raises(wf.ImportNameError) as caught:
        exec(statement)
    assert caught.value.fix.startswith(fix)


def test_a_module_that_nobody_knows_is_missing_as_any_other() -> None:
    with pytest.raises(ModuleNotFoundError):
        exec("import weft.frobnicate")
    assert importlib.util.find_spec("weft.frobnicate") is None


def test_namespaces_are_modules_to_import() -> None:
    names: dict[str, Any] = {}
    exec("import weft.random as r, weft.linalg as l, weft.fft as f, weft.tree as t", names)
    assert (names["r"], names["l"]) == (wf.random, wf.linalg)
    assert (names["f"], names["t"]) == (wf.fft, wf.tree)


@pytest.mark.parametrize(
    ("owner", "name", "fix"),
    [
        ("optimizer", "param_groups", "optimizer.groups"),
        ("scheduler", "get_last_lr", "[group['lr'].item() for group in optimizer.groups]"),
        ("mismatch", "missing_keys", "mismatch.missing"),
        ("optimizer", "setp", "optimizer.step"),
    ],
)
def test_an_object_says_what_an_attribute_is_called(
    owner: str, name: str, fix: str, surroundings: dict[str, Any]
) -> None:
    with pytest.raises(wf.NameUnknownError) as caught:
        getattr(surroundings[owner], name)
    assert caught.value.fix == fix
    assert getattr(surroundings[owner], "_hidden", None) is None
    assert not hasattr(surroundings[owner], name)


def test_names_for_the_rows_of_a_tensor_are_as_many_as_its_rows() -> None:
    x = wf.tensor([[1.0, 5.0], [3.0, 2.0], [0.0, 4.0]])
    first, second, third = x
    assert (first.tolist(), third.tolist(), second.tolist()) == ([1, 5], [0, 4], [3, 2])
    first, *rest = x
    assert len(rest) == 2
    with pytest.raises(wf.ShapeError, match="2 names for a tensor of 3 rows") as caught:
        _values, _places = x.max(axis=1)
    assert "x.argmax(axis=1)" in caught.value.fix


REFUSED = {
    "randint": (lambda: wf.random.randint(10, (3,)), "wf.random.randint(0, 10, (3,))"),
    "key": (lambda: wf.random.normal(wf.random.key(0), (3,)), "wf.random.normal((3,), key=key)"),
    "list": (lambda: wf.nn.Sequential([wf.nn.ReLU()]), "wf.nn.Sequential(*modules)"),
    "summary": (lambda: wf.nn.Linear(2, 2).summary(), "net.summary(wf.spec("),
    "loss": (lambda: wf.train.Trainer(None, "mse", None), "write 'mse_loss'"),
    "optimizer": (lambda: wf.train.Trainer(None, None, "sgd"), "wf.optim.SGD(model.parameters()"),
    "type": (lambda: wf.ones(2).type(wf.int64), "x.astype('int64')"),
    "type without": (lambda: wf.ones(2).type(), "x.dtype"),
    "split along": (lambda: wf.ones((2, 6)).split(3, dim=1), "wf.split(x, 3, axis=1) for 3 parts"),
    "no arguments": (lambda: wf.nn.Sigmoid(1), "Sigmoid()"),
    "no options": (lambda: wf.nn.Tanh(dim=1), "Tanh()"),
    "transpose of three": (lambda: wf.ones((2, 3, 4)).t(), "x.mT for the last two axes"),
    "metric": (lambda: wf.train.as_metrics(["acc"]), "write 'accuracy'"),
}  # fmt: skip


@pytest.mark.parametrize("habit", REFUSED)
def test_a_habit_of_other_libraries_is_refused_with_the_fix(habit: str) -> None:
    call, fix = REFUSED[habit]
    with pytest.raises(wf.WeftError) as caught:
        call()
    assert caught.value.fix.startswith(fix)


def test_looking_for_a_missing_attribute_is_no_import() -> None:
    assert not hasattr(wf.nn, "Dense")
    assert getattr(wf, "bmm", None) is None
    with pytest.raises(wf.NameUnknownError):
        _ = wf.nn.Dense


def test_what_to_write_instead_is_looked_up_when_an_error_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    find = names.suggestion

    def counting(name: str, *rest: Any) -> str:
        asked.append(name)
        return find(name, *rest)

    monkeypatch.setattr(names, "suggestion", counting)
    x = wf.ones(2)
    assert not hasattr(x, "summ")
    assert asked == []
    with pytest.raises(wf.NameUnknownError) as caught:
        x.summ
    assert asked == []
    assert "fix       x.sum" in str(caught.value)
    assert caught.value.fix in str(caught.value)
    assert asked == ["summ"]


def test_an_error_that_was_not_read_can_be_pickled() -> None:
    with pytest.raises(wf.NameUnknownError) as caught:
        wf.ones(2).summ
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.fix == caught.value.fix != ""


def test_methods_in_a_chain_are_the_operators() -> None:
    x, y = wf.tensor([[1.0, 2.0], [3.0, 4.0]]), wf.tensor([[2.0, 2.0], [2.0, 5.0]])
    assert x.div(2.0).sub(1.0).mul(4.0).add(y, alpha=10).neg().tolist() == [[-18, -20], [-22, -54]]
    assert x.sub(y, alpha=2).tolist() == [[-3, -2], [-1, -6]]
    assert x.eq(y).tolist() == [[False, True], [False, False]]
    assert x.ne(y).tolist() == [[True, False], [True, True]]
    assert x.lt(y).tolist() == [[True, False], [False, True]]
    assert x.le(2).tolist() == [[True, True], [False, False]]
    assert x.gt(y).tolist() == [[False, False], [True, False]]
    assert x.ge(3).tolist() == [[False, False], [True, True]]
    assert x.t().tolist() == [[1, 3], [2, 4]]
    assert wf.tensor([1.0, 2.0]).t().tolist() == [1, 2]


def test_inplace_is_taken_where_pytorch_takes_it_and_changes_nothing() -> None:
    x = wf.tensor([-1.0, 2.0])
    for name in ("ReLU", "ReLU6", "SELU", "SiLU", "Mish", "Hardsigmoid", "Hardswish"):
        layer = getattr(wf.nn, name)
        assert layer(True)(x).tolist() == layer(inplace=True)(x).tolist() == layer()(x).tolist()
    assert wf.nn.LeakyReLU(0.5, inplace=True)(x).tolist() == [-0.5, 2.0]
    assert wf.nn.Hardtanh(0.0, 1.0, True)(x).tolist() == [0.0, 1.0]
    assert wf.nn.Threshold(0.0, 5.0, True)(x).tolist() == [5.0, 2.0]
    assert wf.nn.ELU(1.0, True)(x)[1].item() == 2.0
    assert wf.nn.Dropout(0.5, True).eval()(x).tolist() == x.tolist() == [-1.0, 2.0]


def test_a_class_beside_a_module_still_gets_its_arguments() -> None:
    class Named:
        def __init__(self, label: str = "") -> None:
            self.label = label

    class Net(wf.nn.Module, Named):
        def __init__(self) -> None:
            super().__init__("mine")

    assert Net().label == "mine"
