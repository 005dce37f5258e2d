"""The intermediate representation: primitives, graphs, their text, verifier and interpreter.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: x + x, wf.spec("float32", ("batch",)))
>>> wf.ir.verify(graph)
>>> print(graph)  # doctest: +ELLIPSIS
graph(a: f32[batch]) {
  b: f32[batch] = add(a, a)...
  return b
}
"""

from weft.core.scopes import scope
from weft.ir import kinds, ranges
from weft.ir.forward import refuse_derivative
from weft.ir.functions import infer, trace_whole
from weft.ir.functions import trace_function as trace
from weft.ir.graph import Graph, GraphNode, Literal, Variable
from weft.ir.primitive import PRIMITIVES, Mistake, Primitive, Sample
from weft.ir.printing import name_variables
from weft.ir.repeating import Repetition
from weft.ir.scoping import entered, is_tracing
from weft.ir.sizes import specialize
from weft.ir.text import parse
from weft.ir.tracing import interpret
from weft.ir.verify import verify

__all__ = [
    "PRIMITIVES", "Graph", "GraphNode", "Literal", "Mistake", "Primitive", "Repetition", "Sample",
    "Variable", "entered", "infer", "interpret", "is_tracing", "kinds", "name_variables", "parse",
    "ranges", "refuse_derivative", "scope", "specialize", "trace", "trace_whole", "verify",
]  # fmt: skip
