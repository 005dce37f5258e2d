"""The way back over element-wise primitives of small arrays: NumPy's functions, one after another.

A derivative rule is written with tensors, each operation of which looks at types, devices and the
tape. Of small arrays that takes longer than the numbers. So a rule is traced once for a dtype, and
what it applies is called with the arrays themselves: the same functions, and so the same bits.

>>> import numpy as np
>>> import weft as wf
>>> tanh = wf.ir.primitive.PRIMITIVES["tanh"]
>>> rule = array_rule(tanh, np.dtype(np.float32), 1)
>>> out = np.float32([0.5])
>>> [back.tolist() for back in rule(np.ones(1, np.float32), out, out)]
[[0.75]]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core.dtypes import BY_NUMPY
from weft.core.errors import WeftError
from weft.core.types import TensorType
from weft.ir.derivatives import Additive, Linear, Tangent
from weft.ir.graph import Graph, GraphNode, Literal
from weft.ir.kinds import Elementwise
from weft.ir.primitive import Primitive
from weft.ir.tensor import Tensor
from weft.ir.tracing import trace

Array = np.ndarray[Any, Any]
ArrayRule = Callable[..., tuple[Array, ...]]
"""Of the cotangent, the result and the operands: the cotangents of those operands asked for."""
RULES: dict[tuple[Primitive, Any, int], ArrayRule | None] = {}
"""What is known, by primitive, dtype, and a bit for each operand whose cotangent is asked for."""
DTYPES = frozenset([np.dtype(np.float32), np.dtype(np.float64)])
_SHAPE = (2, 3)
"""Any shape: what a rule applies element by element does not depend on it."""


def array_rule(primitive: Primitive, dtype: np.dtype[Any], asked: int) -> ArrayRule | None:
    """The rule for arrays of one shape, with axes, and one dtype.

    None where the derivatives apply anything but NumPy's own functions of elements.
    """
    key = primitive, dtype, asked
    if key not in RULES:
        RULES[key] = _array_rule(primitive, dtype, asked)
    return RULES[key]


def _array_rule(primitive: Primitive, dtype: np.dtype[Any], asked: int) -> ArrayRule | None:
    derivatives = primitive.derivatives
    if not primitive.broadcasts or not isinstance(derivatives, tuple) or dtype not in DTYPES:
        return None
    wanted = [each for place, each in enumerate(derivatives) if asked >> place & 1]

    def backs(cotangent: Tensor, out: Tensor, *operands: Tensor) -> list[Tensor]:
        return [
            each.rule(cotangent, out, *operands)
            if isinstance(each, Tangent)
            else each.transpose(cotangent, *operands)
            for each in wanted
        ]

    for each in wanted:
        is_diagonal = isinstance(each, Tangent) and each.diagonal
        if not is_diagonal and not isinstance(each, (Linear, Additive)):
            return None
    try:
        closure = trace(backs, [TensorType(BY_NUMPY[dtype], _SHAPE)] * (2 + len(derivatives)))
    except WeftError:  # it looks at values
        return None
    return None if closure.captured else _graph_function(closure.graph)


def _graph_function(graph: Graph) -> ArrayRule | None:
    """A graph as a function of arrays, one line for each of its nodes."""
    outputs = [*graph.outputs]
    if not all(map(_is_function_of_numpy, graph.nodes)):
        return None
    if any(isinstance(each, Literal) or each.type.shape != _SHAPE for each in outputs):
        return None
    names: dict[Any, str] = {variable: f"x{place}" for place, variable in enumerate(graph.inputs)}
    known: dict[str, Any] = {}
    lines = [f"def rule({', '.join(names.values())}):"]
    for place, node in enumerate(graph.nodes):
        for atom in node.operands:
            if isinstance(atom, Literal):
                names[id(atom)] = f"c{len(known)}"
                known[names[id(atom)]] = atom.value
        given = [names[id(atom) if isinstance(atom, Literal) else atom] for atom in node.operands]
        names[node.results[0]], known[f"f{place}"] = f"v{place}", node.primitive.reference
        lines.append(f"    v{place} = f{place}({', '.join(given)})")
    lines.append(f"    return {', '.join(names[each] for each in outputs)},")
    exec("\n".join(lines), known)
    rule: ArrayRule = known["rule"]
    return rule


def _is_function_of_numpy(node: GraphNode) -> bool:
    """Whether a node is one of NumPy's functions of elements, beside constants without axes."""
    primitive = node.primitive
    is_function = isinstance(primitive.reference, np.ufunc) and not node.params
    constants = [atom for atom in node.operands if isinstance(atom, Literal)]
    return (
        isinstance(primitive.kind, Elementwise)
        and is_function
        and all(atom.value.ndim == 0 for atom in constants)
    )
