"""The text form of graphs, read back: `parse(str(graph)) == graph`, locations aside.

Each method of the parser reads one construct of the language that printing.py writes. What is read
is verified, so a parsed graph is a correct one.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: x * 2.0, wf.spec("float32", (3,)))
>>> wf.ir.parse(str(graph)) == graph
True
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from weft.core.dimension_text import parse_dim
from weft.core.dimensions import Dim, Dimension, is_negative
from weft.core.dtypes import DType, as_dtype, bool_, float32, int64
from weft.core.errors import GraphError, WeftError
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.primitive import PRIMITIVES
from weft.ir.printing import print_graph, read_number
from weft.ir.verify import verify

__all__ = ["parse", "print_graph"]

T = TypeVar("T")


def parse(text: str) -> Graph:
    """The graph that a text describes; its types are checked.

    >>> print(parse("graph(x: f32[2]) { return x, 1.5 }"))
    graph(a: f32[2]) {
      return a, 1.5
    }
    """
    parser = _Parser(text)
    try:
        graph = parser.graph()
    except RecursionError:
        parser.fail("fewer brackets inside each other")
    if parser.next.kind != "end":
        parser.fail("the end of the text")
    verify(graph)
    return graph


class Token(NamedTuple):
    """A word of the text: its kind, what is written, and where."""

    kind: str
    text: str
    place: int


_REAL = r"(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|inf|nan)"
_ESCAPE = r"""\\(?:[\\'"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"""
_SPACE = re.compile(r"(?:\s|\#[^\n]*)*")
_WORD = re.compile(
    rf"""(?P<dimension><[^<>\n]*>)
    | (?P<bytes>0x[0-9a-f]*)
    | (?P<string>'(?:[^'\\\n]|{_ESCAPE})*'|"(?:[^"\\\n]|{_ESCAPE})*")
    | (?P<number>[-+]?{_REAL}(?:j|[-+]{_REAL}j)?(?!\w))
    | (?P<type>[a-z]+\d*\[[^\[\]\n]*\])
    | (?P<name>[^\W\d][\w.]*)
    | (?P<mark>[][(){{}}:,=])""",
    re.VERBOSE,
)


def _tokens(text: str) -> Iterator[Token]:
    """The tokens of a text; text that is no token ends the list, as kind "wrong"."""
    place = _skip_space(text, 0)
    while place < len(text):
        match = _WORD.match(text, place)
        if match is None:
            yield Token("wrong", text[place], place)
            return
        kind = match.lastgroup or ""
        yield Token(kind, match[kind], place)
        place = _skip_space(text, match.end())
    yield Token("end", "", place)


def _skip_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


class _Parser:
    """Reads words from left to right, no further than the one after the next.

    So a text that is none is refused at its first wrong word, however long it is.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = _tokens(text)
        self.next = next(self._tokens)
        """The word that comes next; the last one stays."""
        self.after = next(self._tokens, self.next)

    def advance(self) -> None:
        """Go on to the word after the next."""
        self.next, self.after = self.after, next(self._tokens, self.after)

    def take(self, kind: str, expected: str) -> Token:
        """The next word, which must be of this kind."""
        token = self.next
        if token.kind != kind:
            self.fail(expected)
        self.advance()
        return token

    def skip(self, text: str) -> bool:
        """Whether the next word is this one; if so it is taken."""
        token = self.next
        is_next = token.text == text and token.kind in ("mark", "name")
        if is_next:
            self.advance()
        return is_next

    def require(self, text: str) -> None:
        """Take the next word, which must be this one."""
        if not self.skip(text):
            self.fail(repr(text))

    def fail(self, expected: str, token: Token | None = None) -> NoReturn:
        """Refuse the text at a word, by default the next one."""
        place = (token or self.next).place
        line = self.text.count("\n", 0, place) + 1
        excerpt = self.text[place : place + 40].split("\n")[0] or "the end of the text"
        raise GraphError(
            "parse",
            f"line {line} is not a graph's",
            expected=expected,
            got={f"line {line}": excerpt},
            fix="compare with the text that print(graph) gives",
        )

    def comma_list(self, end: str, item: Callable[[], T]) -> list[T]:
        """Items with commas between them, up to an end mark, which is taken."""
        items: list[T] = []
        while not self.skip(end):
            if items:
                self.require(",")
                if self.skip(end):
                    break
            items.append(item())
        return items

    def attempt(self, read: Callable[[], T], expected: str, token: Token) -> T:
        """What `read` gives; where it refuses, the text is refused at the word."""
        try:
            return read()
        except (WeftError, ValueError, OverflowError, SyntaxError):
            self.fail(expected, token)

    # --- graphs and nodes ---

    def graph(self) -> Graph:
        """A graph: graph(inputs) { nodes return outputs }."""
        known: dict[str, Variable] = {}
        self.require("graph")
        self.require("(")
        inputs = self.comma_list(")", lambda: self.declaration(known))
        self.require("{")
        nodes = []
        while not self.skip("return"):
            nodes.append(self.node(known))
        outputs = self.comma_list("}", lambda: self.operand(known))
        return Graph(tuple(inputs), tuple(nodes), tuple(outputs))

    def declaration(self, known: dict[str, Variable]) -> Variable:
        """A name and its type, as in a: f32[3]."""
        token = self.take("name", "a name and its type, as in a: f32[3]")
        self.require(":")
        if token.text in known:
            self.fail(f"a name other than {token.text}, which is taken", token)
        known[token.text] = Variable(self.type(), token.text)
        return known[token.text]

    def node(self, known: dict[str, Variable]) -> GraphNode:
        """A node: results = primitive(operands, key=parameter)."""
        declared: dict[str, Variable] = {}
        results = self.comma_list("=", lambda: self.declaration(declared))
        token = self.take("name", "the name of a primitive")
        if token.text not in PRIMITIVES:
            self.fail("the name of a primitive, one in wf.ir.PRIMITIVES", token)
        self.require("(")
        operands: list[Atom] = []
        params: dict[str, Any] = {}
        self.comma_list(")", lambda: self.argument(known, operands, params))
        for name in declared:
            if name in known:
                self.fail(f"a name other than {name}, which is taken", token)
        known.update(declared)
        return GraphNode(PRIMITIVES[token.text], tuple(operands), params, tuple(results))

    def argument(
        self, known: dict[str, Variable], operands: list[Atom], params: dict[str, Any]
    ) -> None:
        """An operand, or key=parameter."""
        token = self.next
        if token.kind != "name" or self.after.text != "=":
            return operands.append(self.operand(known))
        self.advance()
        self.advance()
        if token.text in params:
            self.fail(f"a parameter other than {token.text}, which is given already", token)
        params[token.text] = self.parameter()
        return None

    # --- constants ---

    def operand(self, known: dict[str, Variable]) -> Atom:
        """A variable, or a constant."""
        token = self.next
        if token.kind == "type":
            return self.array(self.type())
        if token.kind == "number" or token.text in ("True", "False"):
            return Literal(self.number(_default_dtype(token.text)))
        self.take("name", "a variable or a constant")
        if token.text in known:
            return known[token.text]
        if self.next.kind != "number":
            self.fail("a variable that is declared before", token)
        return Literal(self.number(self.dtype(token)))

    def number(self, dtype: DType) -> np.ndarray[Any, Any]:
        """One element of a constant."""
        token = self.next
        read = read_number(token.text, dtype) if token.kind in ("number", "name") else None
        if read is None:
            self.fail(f"a number that {dtype.name} can hold")
        self.advance()
        return read

    def array(self, kind: TensorType) -> Literal:
        """The elements of a constant of this type, in decimal or in hexadecimal."""
        shape = tuple([dim for dim in kind.shape if isinstance(dim, int)])
        if len(shape) < kind.ndim:
            self.fail("a constant whose size is known")
        if self.next.kind == "bytes":
            return Literal(self.packed_elements(kind.dtype, shape))
        elements = list(self.elements(kind.dtype, shape))
        return Literal(np.array(elements, kind.dtype.numpy).reshape(shape))

    def packed_elements(self, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """The elements of a constant from their bytes in hexadecimal."""
        token = self.take("bytes", "bytes in hexadecimal")
        count = int(np.prod(shape, dtype=object))
        if len(token.text) != 2 + 2 * count * dtype.itemsize:
            self.fail(f"{count} elements of {dtype.itemsize} bytes", token)
        data = np.frombuffer(bytes.fromhex(token.text[2:]), dtype.numpy.newbyteorder("<"))
        return data.astype(dtype.numpy).reshape(shape)

    def elements(self, dtype: DType, shape: tuple[int, ...]) -> Iterator[np.ndarray[Any, Any]]:
        """The numbers of nested lists of this shape; `[]` where there are none."""
        if not shape:
            yield self.number(dtype)
            return
        self.require("[")
        for index in range(shape[0] if 0 not in shape else 0):
            if index:
                self.require(",")
            yield from self.elements(dtype, shape[1:])
        self.require("]")

    # --- types and parameters ---

    def type(self) -> TensorType:
        """A dtype and dimensions, as in f32[3]."""
        token = self.take("type", "a type, as in f32[3]")
        short, _, dims = token.text[:-1].partition("[")
        parts = dims.split(",") if dims.strip() else []
        shape = tuple([self.dimension(part, token) for part in parts])
        return TensorType(self.dtype(token._replace(text=short)), shape)

    def dtype(self, token: Token) -> DType:
        """A dtype from its name, long or short."""
        return self.attempt(lambda: as_dtype(token.text), "the name of a dtype", token)

    def dimension(self, text: str, token: Token) -> Dimension:
        """A size that is not negative."""
        dim = self.attempt(lambda: parse_dim(text), "a dimension", token)
        return dim if not is_negative(dim) else self.fail("dimensions of at least 0", token)

    def parameter(self) -> Any:
        """A graph, a tuple, a number, a string, None, a dtype, a type, or a dimension."""
        token = self.next
        if token.text == "graph":
            return self.graph()
        if self.skip("("):
            return tuple(self.comma_list(")", self.parameter))
        if token.kind == "type":
            return self.type()
        self.advance()
        readers: dict[str, Callable[[], Any]] = {
            "dimension": lambda: _symbolic(token.text),
            "string": lambda: ast.literal_eval(token.text),
            "number": lambda: _python_number(token.text),
            "name": lambda: _WORDS[token.text] if token.text in _WORDS else as_dtype(token.text),
        }
        if token.kind not in readers:
            self.fail("a parameter", token)
        return self.attempt(readers[token.kind], "a parameter", token)


_WORDS = {"True": True, "False": False, "None": None}


def _default_dtype(text: str) -> DType:
    if text in _WORDS:
        return bool_
    return int64 if re.fullmatch(r"[-+]?\d+", text) else float32


def _python_number(text: str) -> int | float | complex:
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    return complex(text) if text.endswith("j") else float(text)


def _symbolic(text: str) -> Dim:
    dim = parse_dim(text[1:-1])
    if isinstance(dim, int):
        raise GraphError(
            "parse",
            "a constant is written without <>",
            expected="a symbolic dimension between < and >",
            got={"text": text},
            fix=f"write {dim}",
        )
    return dim
