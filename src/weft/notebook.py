"""Pieces of HTML for what notebooks show: for those who write `_repr_html_` of their own.

>>> from weft.notebook import opening, preformatted
>>> "a &lt; b" in opening("more", preformatted("a < b"))
True
"""

from weft.core.html import bar, block, opening, preformatted, table

__all__ = ["bar", "block", "opening", "preformatted", "table"]
