"""What a step may be: families of operations, each a function that writes one expression.

A family picks operands among the values that are there, and returns the expression's text. It may
be wrong for them: the generator runs each step at once, and takes another where that raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fuzz.contractions import (
    algebra,
    attend,
    convolve,
    fourier,
    pool,
    product,
    recompute,
    sample,
)
from tests.fuzz.derivatives import derive
from tests.fuzz.draw import Draw
from tests.fuzz.elements import (
    assign,
    binary,
    choose,
    compare,
    complexes,
    convert,
    cumulate,
    fix,
    index,
    join,
    look_up,
    move,
    normalise,
    numeric,
    reduce,
    reduce_whole,
    sort,
    truth,
    unary,
    whole,
)
from tests.fuzz.library import compose
from tests.fuzz.loops import control, repeat, watch
from tests.fuzz.randoms import randomise

FAMILIES: dict[Callable[[Draw], Any], float] = {
    unary: 5,
    numeric: 2,
    binary: 4,
    compare: 1,
    choose: 1.5,
    whole: 1,
    truth: 0.5,
    convert: 1.2,
    complexes: 0.4,
    reduce: 3,
    reduce_whole: 0.5,
    cumulate: 1,
    normalise: 2,
    sort: 0.8,
    move: 5,
    join: 2,
    index: 1.5,
    look_up: 0.5,
    assign: 1.5,
    product: 3.5,
    recompute: 0.6,
    attend: 0.7,
    convolve: 1.5,
    pool: 0.7,
    fourier: 0.5,
    algebra: 0.4,
    sample: 0.7,
    control: 2.0,
    randomise: 0.7,
    repeat: 0.7,
    watch: 0.15,
    fix: 0.5,
    derive: 0.6,
    compose: 2.0,
}
"""How often each family is drawn, relative to the others."""
