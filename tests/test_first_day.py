"""What someone new writes on the first day: slips whose message says what to write."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn

F = nn.functional
MANY = 10**7
"""Rows of which a square matrix fits no memory."""


def column_of_labels() -> Any:
    return F.cross_entropy(wf.ones((4, 3)), wf.tensor([[0], [1], [2], [0]]))


def columns_of_other_classes() -> Any:
    return F.cross_entropy(wf.ones((4, 3)), wf.ones((4, 2)))


def label_below_zero() -> Any:
    return F.cross_entropy(wf.ones((2, 3)), wf.tensor([0, -1]))


def index_below_zero() -> Any:
    return nn.Embedding(10, 4)(wf.tensor([-1]))


def folder_that_is_not_there() -> Any:
    return wf.save({"a": wf.ones(2)}, "no/such/folder/file.safetensors")


def state_of_a_wrapped_module() -> Any:
    net = nn.Linear(2, 2)
    return net.load_state_dict({f"module.{name}": x for name, x in net.state_dict().items()})


def optimiser_of_a_state() -> Any:
    return wf.optim.SGD(nn.Linear(2, 2).state_dict(), lr=0.1)


def optimiser_of_a_plain_tensor() -> Any:
    return wf.optim.SGD([wf.ones(3)], lr=0.1)


def optimiser_of_a_result() -> Any:
    return wf.optim.SGD([wf.tensor([1.0], requires_grad=True) * 2], lr=0.1)


def tensors_that_are_not_a_list() -> Any:
    return wf.concat(wf.ones(2), wf.ones(3))


def class_called_to_make_a_tensor() -> Any:
    return wf.Tensor([1, 2])


def list_given_to_a_layer() -> Any:
    return nn.Linear(2, 2)([[1.0, 2.0]])


def gradient_asked_of_a_constant() -> Any:
    return wf.full((2,), 1.0, requires_grad=True)


def indices_of_a_maximum() -> Any:
    return wf.ones((2, 3)).max(1).indices


def values_of_a_maximum() -> Any:
    return wf.ones((2, 3)).max(1).values


def weights_filled_through_data() -> Any:
    return nn.init.normal_(nn.Linear(2, 2).weight.data)


def tuple_of_one_array() -> Any:
    loader = wf.data.DataLoader(wf.data.TensorDataset(wf.ones((4, 2))), batch_size=4)
    return [x for (x,) in loader]


def average_updated_as_in_pytorch() -> Any:
    return wf.optim.ExponentialMovingAverage(nn.Linear(2, 2)).update_parameters()


def average_called_as_a_network() -> Any:
    return wf.optim.ExponentialMovingAverage(nn.Linear(2, 2))(wf.ones((1, 2)))


def product_too_large() -> Any:
    x = wf.zeros((MANY, 1))
    return x @ x.T


def compiled_product_too_large() -> Any:
    x = wf.zeros((MANY, 1))
    return wf.jit(lambda x: x @ x.T)(x)


FIXES: dict[Callable[[], Any], str] = {
    column_of_labels: "target.squeeze(1)",
    columns_of_other_classes: "give each of the 3 classes a column, or target.argmax(1)",
    label_below_zero: "leave such elements out of the loss: ignore_index=-1",
    index_below_zero: "use indices from 0 to 9, or leave out those below 0",
    folder_that_is_not_there: "os.makedirs('no/such/folder', exist_ok=True)",
    state_of_a_wrapped_module: "{name.removeprefix('module.'): x for name, x in state.items()}",
    optimiser_of_a_state: "SGD(net.parameters(), ...): a state_dict holds values",
    optimiser_of_a_plain_tensor: "to train it: x.requires_grad_()",
    optimiser_of_a_result: "x.detach().requires_grad_()",
    tensors_that_are_not_a_list: "concat([x1, x2])",
    class_called_to_make_a_tensor: "wf.tensor(data)",
    list_given_to_a_layer: "wf.tensor(numbers)",
    gradient_asked_of_a_constant: "behind it: .requires_grad_()",
    indices_of_a_maximum: "x.argmax(axis=1)",
    values_of_a_maximum: "x.max(axis=1)",
    weights_filled_through_data: "wf.nn.init.normal_(x)",
    tuple_of_one_array: "for x in loader",
    average_updated_as_in_pytorch: "average.update()",
    average_called_as_a_network: "with average.applied(): net(x)",
    product_too_large: "make it in parts",
    compiled_product_too_large: "make it in parts",
}


@pytest.mark.parametrize("slip", FIXES, ids=lambda slip: slip.__name__)
def test_the_message_says_what_to_write_and_where(slip: Callable[[], Any]) -> None:
    with pytest.raises(wf.WeftError, match=re.escape(FIXES[slip])) as caught:
        slip()
    for field in ("expected", "got", "fix", Path(__file__).name):
        assert field in str(caught.value)
    assert (wf.ones(2) + 1).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("name", ["max", "min", "sort"])
def test_an_element_behind_an_axis_by_position_is_refused(name: str) -> None:
    x = wf.tensor([[1.0, 5.0], [4.0, 2.0]])
    first = {"max": lambda: x.max(1)[0], "min": lambda: x.min(1)[0], "sort": lambda: x.sort(1)[0]}
    second = {"max": lambda: x.max(1)[1], "min": lambda: x.min(1)[1], "sort": lambda: x.sort(1)[1]}
    with pytest.raises(wf.ArgumentError, match=rf"x\.{name}\(axis=1\) for the values"):
        first[name]()
    with pytest.raises(wf.ArgumentError, match=rf"x\.arg{name}\(axis=1\) for the places"):
        second[name]()


def test_other_uses_of_an_axis_by_position_go_on() -> None:
    x, place = wf.tensor([[1.0, 5.0], [4.0, 2.0]]), 1
    assert x.max(1).tolist() == [5.0, 4.0]
    assert x.max(1)[place].item() == x.max(axis=1)[1].item() == 4.0
    assert x.max(1)[:1].tolist() == [5.0]
    assert (x.min(0) + 1).tolist() == [2.0, 3.0]
    assert x.sort(0, descending=True).tolist() == [[4.0, 5.0], [1.0, 2.0]]


def test_a_condition_alone_is_sent_to_nonzero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", sys.stdout)
    with pytest.raises(TypeError) as caught:
        wf.where(wf.ones(3) > 0)  # type: ignore[call-arg]
    sys.excepthook(caught.type, caught.value, caught.tb)
    assert any("wf.nonzero(condition)" in note for note in caught.value.__notes__)


def test_slices_of_datasets_are_batches() -> None:
    arrays = wf.data.ArrayDataset(np.arange(4), np.arange(4) * 10)
    assert [column.tolist() for column in arrays[1:3]] == [[1, 2], [10, 20]]
    assert [x.tolist() for x in wf.data.Subset(arrays, [3, 0])[:]] == [[3, 0], [30, 0]]
    tensors = wf.data.TensorDataset(wf.arange(4), wf.arange(4) * 10)
    inputs, labels = wf.data.Subset(tensors, [3, 0])[:]
    assert isinstance(inputs, wf.Tensor)
    assert (inputs.tolist(), labels.tolist()) == ([3, 0], [30, 0])
    assert tensors[:2][1].tolist() == [0, 10]
    rows = wf.data.Subset(wf.data.DataLoader([(1, 2.0), (3, 4.0)], batch_size=1).dataset, [1, 0])
    assert [x.tolist() for x in rows[:]] == [[3, 1], [4.0, 2.0]]


def test_imports_of_several_schedules_say_once_how_they_are_moved_on() -> None:
    with pytest.raises(ImportError) as caught:
        from weft.optim.lr_scheduler import (  # type: ignore[import-not-found]  # noqa: F401
            CosineAnnealingLR,
            StepLR,
        )
    assert str(caught.value).count("for scheduler.step()") == 1
    assert "Cosine(" in str(caught.value)
    assert "Step(" in str(caught.value)
