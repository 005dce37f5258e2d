"""`minimize` in a graph: the optimiser's own step, staged, with its state as variables.

>>> import weft as wf
>>> with wf.Graph() as graph:
...     w = wf.Variable([1.0, 2.0], name="w")
...     train = wf.optim.Adam(lr=0.5).minimize(wf.sum(w * w))
>>> train
<group 'Adam/minimize'>
>>> [cell.name for cell in graph.cells()][:3]
['w', 'Adam/steps', 'Adam/groups.0.lr']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import weft as wf
from weft.optim.states import named_tensors

if TYPE_CHECKING:
    from weft.optim.optimizer import Optimizer


def minimize_in_graph(optimizer: Optimizer, loss: wf.Tensor) -> Any:
    """An operation that goes back from the loss and updates the parameters."""
    builder = wf.staging.builder_of(loss)
    graph: Any = getattr(builder, "graph", None)
    op = type(optimizer).__name__
    if graph is None or loss.size != 1 or not loss.dtype.is_floating:
        raise _not_a_loss(op, loss)
    with graph:
        graph.builder.settle()
        with graph.names.scope(op):
            return _minimize(optimizer, graph, loss)


def _minimize(optimizer: Optimizer, graph: Any, loss: wf.Tensor) -> Any:
    if optimizer.is_deferred:
        optimizer.take(_learned_variables(type(optimizer).__name__, graph, loss))
    for name, handle in named_tensors(optimizer):
        graph.builder.adopt_cell(handle, name, follows=".lr" in name)
    for parameter in optimizer.parameters:
        graph.builder.adopt_cell(parameter, trainable=True)
    _step(optimizer, loss)
    updates = [
        graph.operation_of(graph.assign(cell, value, f"update/{cell.name}"))
        for cell, value in graph.builder.written_cells()
    ]
    return graph.add("group", "minimize", controls=[*updates, *_state_updates(graph, loss)])


def _step(optimizer: Optimizer, loss: wf.Tensor) -> None:
    """The optimiser's step from the gradients of this loss alone."""
    parameters = optimizer.parameters
    before = [parameter.grad for parameter in parameters]
    gradients = wf.gradients(optimizer.scale(loss), parameters)
    if all(gradient is None for gradient in gradients):
        raise _without_gradients(type(optimizer).__name__, loss)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.detach()
    try:
        optimizer.step()
    finally:
        for parameter, old in zip(parameters, before, strict=True):
            parameter.grad = old


def _learned_variables(op: str, graph: Any, loss: wf.Tensor) -> dict[str, wf.Tensor]:
    """The trainable variables that a loss depends on, by name."""
    pairs = [(cell.name, cell.handle) for cell in graph.cells(trainable=True)]
    held = [(name, owner) for name, owner in pairs if owner is not None]
    needed = {id(each.target) for each in graph.needed([graph.operation_of(loss)])}
    cells = {cell.name for cell in graph.cells(trainable=True) if id(cell) in needed}
    learned = {name: owner for name, owner in held if name in cells}
    if not learned:
        raise _without_gradients(op, loss)
    return learned


def _state_updates(graph: Any, loss: wf.Tensor) -> list[Any]:
    """The updates of modules' state, such as running means, that need nothing more to be fed."""
    fed = {x for x in graph.needed([graph.operation_of(loss)]) if x.kind == "placeholder"}
    last = {update.target: update for update in graph.updates}
    return [
        update
        for update in last.values()
        if fed.issuperset(x for x in graph.needed([update]) if x.kind == "placeholder")
    ]


def _not_a_loss(op: str, loss: wf.Tensor) -> wf.GradientError:
    return wf.GradientError(
        op,
        "the loss is not one real number of a graph",
        expected="a tensor of a wf.Graph with one floating-point element",
        got={"loss": loss},
        fix="optimizer.minimize(wf.mean(loss))",
    )


def _without_gradients(op: str, loss: wf.Tensor) -> wf.GradientError:
    return wf.GradientError(
        op,
        "the loss depends on none of the variables to be trained",
        expected="a loss computed from trainable variables",
        got={"loss": loss},
        fix="w = wf.Variable(initial, trainable=True), and compute the loss from it",
    )
