"""Define, then run: graphs, placeholders, variables and sessions.

    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None, 784)); w = wf.Variable(wf.zeros((784, 10)), name="w")
        loss = ...
        train = wf.optim.SGD(lr=0.1).minimize(loss)
    with wf.Session(graph) as session:
        session.run([loss, train], feed_dict={x: batch})

>>> import weft as wf
>>> with wf.Graph() as graph:
...     x = wf.placeholder("float32", (None,), name="x")
...     w = wf.Variable(4.0, name="w")
...     loss = wf.mean((w * x - 3.0 * x) ** 2)
...     train = wf.optim.SGD(lr=0.25).minimize(loss)
>>> with wf.Session(graph) as session:
...     for _ in range(3):
...         _ = session.run([loss, train], feed_dict={x: [1.0, -1.0]})
...     session.run(w).item()
3.125
"""

from weft.graph import files as _files  # noqa: F401  makes graphs read and write files
from weft.graph.building import Graph, current, default_graph, reset_default_graph
from weft.graph.classes import Node, Operation, Placeholder, RegisterGradient, apply
from weft.graph.layers import Model, Net
from weft.graph.session import Session
from weft.graph.variables import (
    Variable,
    adopt,
    constant,
    global_variables,
    global_variables_initializer,
    group,
    identity,
    name_scope,
    placeholder,
    trainable_variables,
)

__all__ = [
    "Graph", "Model", "Net", "Node", "Operation", "Placeholder", "RegisterGradient", "Session",
    "Variable", "adopt", "apply", "constant", "current", "default_graph", "global_variables",
    "global_variables_initializer", "group", "identity", "name_scope", "placeholder",
    "reset_default_graph", "trainable_variables",
]  # fmt: skip
