"""Reading dimensions back from the text that they are printed as.

>>> from weft.core.dimension_text import parse_dim
>>> parse_dim("floor((batch - 1)/2)")
floor((batch - 1)/2)
"""

from __future__ import annotations

import re
from typing import NoReturn

from weft.core.dimensions import Dimension, floor_divide, symbol
from weft.core.errors import GraphError


def parse_dim(text: str) -> Dimension:
    """Read back what `str` of a dimension prints.

    >>> parse_dim("2*batch + 1") == 2 * symbol("batch") + 1
    True
    >>> parse_dim("784")
    784
    """
    return _Parser(text).parse()


class _Parser:
    """A method per rule of the grammar.

    sum = ["-"] product {("+" | "-") product};  product = factor {"*" factor};
    factor = integer | name | "(" sum ")" | "floor(" ["-"] product "/" factor ")"
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = re.findall(r"\d+|[^\W\d]\w*|\S", text)[::-1]

    def parse(self) -> Dimension:
        result = self.sum()
        return result if not self.tokens else self.fail()

    def accept(self, *tokens: str) -> str:
        return self.tokens.pop() if self.tokens and self.tokens[-1] in tokens else ""

    def expect(self, token: str) -> None:
        if not self.accept(token):
            self.fail()

    def sum(self) -> Dimension:
        total = self.signed_product()
        while sign := self.accept("+", "-"):
            product = self.product()
            total = total + product if sign == "+" else total - product
        return total

    def signed_product(self) -> Dimension:
        return -self.product() if self.accept("-") else self.product()

    def product(self) -> Dimension:
        result = self.factor()
        while self.accept("*"):
            result = result * self.factor()
        return result

    def factor(self) -> Dimension:
        token = self.tokens.pop() if self.tokens else ""
        if token.isdecimal():
            return int(token)
        if token == "(":
            result = self.sum()
            self.expect(")")
            return result
        if token == "floor" and self.accept("("):
            return self.floor()
        return symbol(token) if token.isidentifier() else self.fail()

    def floor(self) -> Dimension:
        numerator = self.signed_product()
        self.expect("/")
        denominator = self.factor()
        self.expect(")")
        return floor_divide(numerator, denominator)

    def fail(self) -> NoReturn:
        raise GraphError(
            "parse_dim",
            "this is not a dimension",
            expected="sums and products of integers, names and floor(a/b)",
            got={"text": repr(self.text)},
            fix='parse_dim("2*batch + 1")',
        )
