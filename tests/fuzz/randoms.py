"""The family of random numbers: drawn with a key of the program, or by the global generator.

Samples of a dtype are made of that dtype's own bits, so a draw names its dtype: the program in
float64 then draws the same numbers as all others.
"""

from __future__ import annotations

from tests.fuzz.draw import Draw

LARGEST = 3000
"""The most elements of a draw by rejection, which loops until all are accepted."""
FEW = (
    "wf.random.gamma(None, wf.abs({v}) + 0.4, dtype='float64'{k}).astype({v}.dtype)",
    "wf.random.gamma(None, wf.abs({v}) + 1.2, wf.sigmoid({v}), dtype='float64'{k})"
    ".astype({v}.dtype)",
    "wf.random.beta(None, wf.abs({v}) + 0.5, 1.5, dtype='float64'{k}).astype({v}.dtype)",
    "wf.random.dirichlet(wf.abs({v}) + 0.5, dtype='float64'{k}).astype({v}.dtype)",
    "wf.random.poisson({v}.shape, 2.5{k})",
    "wf.random.binomial({v}.shape, 7, 0.3{k})",
    "wf.random.truncated_normal({v}.shape, dtype='float32'{k}).astype({v}.dtype)",
)
"""Draws by rejection, or by a function that takes long."""
MANY = (
    "wf.random.normal({v}.shape, dtype='float32'{k}).astype({v}.dtype) * {v}",
    "{v} + 0.1 * wf.random.normal({v}.shape, dtype='float64'{k}).astype({v}.dtype)",
    "wf.random.normal({v}.shape, mean={v}, std=0.5, dtype='float32'{k}).astype({v}.dtype)",
    "wf.random.uniform({v}.shape, dtype='float32'{k}).astype({v}.dtype)",
    "wf.random.uniform({v}.shape, dtype='float64'{k}).astype({v}.dtype) - {v}",
    "wf.random.exponential({v}.shape, dtype='float32'{k}).astype({v}.dtype)",
    "wf.random.gumbel({v}.shape, dtype='float32'{k}).astype({v}.dtype)",
    "wf.random.laplace({v}.shape, dtype='float32'{k}).astype({v}.dtype)",
    "wf.random.dropout({v}, 0.3{k})",
    "wf.random.dropout_mask({v}.shape, 0.5{k})",
    "wf.random.bernoulli(wf.sigmoid({v}).astype('float32'){k})",
    "wf.random.randint(-3, 9, {v}.shape{k})",
    "wf.random.bits({v}.shape{k})",
    "wf.random.bits({v}.shape, dtype='uint64'{k})",
)
LINES = (
    "wf.random.permutation({v}{k})",
    "wf.random.permutation({v}.shape[0]{k})",
    "wf.random.choice({v}, (5,){k})",
    "wf.random.categorical({v}.astype('float32'){k})",
    "wf.random.choice({v}, (1,), replace=False{k})",
)
"""Draws along an axis."""


def randomise(draw: Draw) -> str:
    """Random numbers; their key follows from whole numbers of the program, where it has some."""
    v = draw.value("f")
    options = MANY if draw.chance(0.55) or not v.ndim else LINES
    if v.size <= LARGEST and draw.chance(0.4):
        options = FEW
    return draw.one_of(options).format(v=v.name, k=_key(draw))


def _key(draw: Draw) -> str:
    """A key as an option of a call; none where the global generator is to be asked."""
    if draw.is_alone and draw.chance(0.4):
        return ""
    key = f"wf.random.key({int(draw.rng.integers(1000))})"
    if draw.chance(0.3):
        return f", key=wf.random.split({key}, 3)[1]"
    found = [x.name for x in draw.values if x.kind in "iub"]
    number = draw.one_of(found) if found else f"({draw.value('f').name} > 0.25)"
    return f", key=wf.random.fold_in({key}, wf.sum({number}).astype('int64'))"
