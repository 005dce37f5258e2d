"""The verifier: whether a graph obeys the rules of the IR.

Every variable is assigned once, before it is used; every node has the operands and parameters its
primitive takes; every result has the type that the primitive's rule gives, where symbolic
dimensions count as equal if they can be made so; graphs in parameters obey the same rules.

>>> import numpy as np
>>> from weft.core.types import spec
>>> from weft.ir.graph import Graph, Variable
>>> from weft.ir.verify import verify
>>> x = Variable(spec("float32", (3,)))
>>> verify(Graph((x,), (), (x,)))
>>> verify(Graph((), (), (x,)))  # doctest: +ELLIPSIS
Traceback (most recent call last):
weft.core.errors.GraphError: verify: an output is not known
...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from weft.core.dtypes import DTYPES
from weft.core.errors import GraphError, WeftError
from weft.core.shapes import Dim, Unifier, equal
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable, graphs_in, param_text
from weft.ir.printing import print_node

_ELEMENTS = {dtype.numpy for dtype in DTYPES}


def verify(graph: Graph) -> None:
    """Refuse a graph that breaks a rule, naming the node and the user's line that made it."""
    _Verifier(graph, "").run()


class _Verifier:
    """One walk over a graph. `place` says where the graph is, if it is inside another."""

    def __init__(self, graph: Graph, place: str) -> None:
        self.graph = graph
        self.place = place
        self.known: set[Variable] = set()
        self.node: GraphNode | None = None

    def run(self) -> None:
        with Unifier() as unifier:
            self.declare(self.graph.inputs)
            for node in self.graph.nodes:
                self.node = node
                unifier.at = node.location
                self.check_node(node)
            self.node = unifier.at = None
            for atom in self.graph.outputs:
                self.check_atom(atom, "an output")

    def declare(self, variables: Sequence[Variable]) -> None:
        for variable in variables:
            if variable in self.known:
                self.fail(
                    "a variable is assigned twice",
                    expected="a variable of its own for each input and result",
                    fix="give each result a new Variable",
                )
            self.known.add(variable)

    def check_node(self, node: GraphNode) -> None:
        for number, atom in enumerate(node.operands):
            self.check_atom(atom, f"operand {number}")
        self.check_params(node)
        self.check_operand_count(node)
        ruled = self.ruled_types(node)
        if len(ruled) != len(node.results):
            self.fail(
                f"{node.primitive.name} has another number of results",
                expected=f"{len(ruled)} results: {', '.join(map(str, ruled))}",
                fix=f"declare {len(ruled)} results",
            )
        for kind, result in zip(ruled, node.results, strict=True):
            self.check_result(kind, result)
        self.declare(node.results)

    def check_atom(self, atom: Atom, what: str) -> None:
        if isinstance(atom, Literal):
            self.check_literal(atom, what)
        elif atom not in self.known:
            self.fail(
                f"{what} is not known",
                expected="an input, a constant, or the result of an earlier node",
                fix="put the node that makes it before this one, or make it an input",
                got={what: atom.type},
            )

    def check_literal(self, literal: Literal, what: str) -> None:
        value: object = literal.value
        if isinstance(value, np.ndarray) and value.dtype.newbyteorder("=") in _ELEMENTS:
            return
        self.fail(
            f"{what} is no constant",
            expected="a NumPy array of one of Weft's dtypes",
            fix='Literal(np.array(value, "float32"))',
            got={what: value},
        )

    def check_params(self, node: GraphNode) -> None:
        for key, value in node.params.items():
            try:
                param_text(value, str)
            except WeftError as error:
                self.fail(
                    f"parameter {key} cannot be written", expected=error.expected, fix=error.fix
                )
            for inner in graphs_in(value):
                place = f"{key} of {node.primitive.name}{self.place}"
                _Verifier(inner, f", in {place}").run()

    def check_operand_count(self, node: GraphNode) -> None:
        derivatives = node.primitive.derivatives
        if isinstance(derivatives, Sequence) and len(derivatives) != len(node.operands):
            self.fail(
                f"{node.primitive.name} has another number of operands",
                expected=f"{len(derivatives)} operands",
                fix=f"give {node.primitive.name} {len(derivatives)} operands",
                got={str(i): atom.type for i, atom in enumerate(node.operands)},
            )

    def ruled_types(self, node: GraphNode) -> tuple[TensorType, ...]:
        """The types of the results by the primitive's rule."""
        try:
            ruled = node.primitive.type_rule(*[a.type for a in node.operands], **node.params)
        except WeftError as error:
            self.fail(
                f"{error.op}: {error.problem}",
                expected=error.expected,
                fix=error.fix,
                note="   ".join(filter(None, [error.got, error.note])),
                cause=error,
            )
        except Exception as error:  # a rule may trip over a parameter of a kind it never sees
            self.fail(
                f"{node.primitive.name} does not take these operands and parameters",
                expected=f"a call as in wf.ir.PRIMITIVES[{node.primitive.name!r}].samples()",
                fix="compare with a graph that wf.ir.trace gives",
                note=f"{type(error).__name__}: {error}",
                cause=error,
            )
        kinds = ruled if isinstance(ruled, tuple) else (ruled,)
        if not all(isinstance(dim, int | Dim) for kind in kinds for dim in kind.shape):
            self.fail(
                f"{node.primitive.name} has no result with these parameters",
                expected="parameters that give whole sizes",
                fix="write integers where sizes stand",
                note=", ".join(map(str, kinds)),
            )
        return kinds

    def check_result(self, kind: TensorType, result: Variable) -> None:
        declared = result.type
        same = kind.dtype is declared.dtype and kind.ndim == declared.ndim
        if not same or not all(map(equal, kind.shape, declared.shape)):
            self.fail(
                "a result has another type than it should",
                expected=f"{kind}",
                fix=f"declare it as {kind}",
                got={"result": declared},
            )

    def fail(
        self,
        problem: str,
        *,
        expected: str,
        fix: str,
        got: Mapping[str, Any] | None = None,
        note: str = "",
        cause: Exception | None = None,
    ) -> NoReturn:
        node = {"node": print_node(self.graph, self.node)} if self.node else {}
        raise GraphError(
            "verify",
            f"{problem}{self.place}",
            expected=expected,
            got={**node, **(got or {})},
            fix=fix,
            note=note,
            at=self.node.location if self.node else None,
        ) from cause
