"""Names of functions that say *that* there is a value, and not *which*: bare participles.

A function is named by what it returns (`packed_weights`) or does (`fuse_epilogue`). A participle,
an adjective or a preposition alone (`joined`, `made`, `within`) says neither, and a search for it
finds half of the library. A verb that fits everything (`process`, `handle`) says no more.

>>> [name for name in ("_joined", "joined_rows", "within", "process", "padding") if is_bare(name)]
['_joined', 'within', 'process']
"""

from __future__ import annotations

_NOUNS_AND_VERBS = """
    binding embed embedding feed housing listing need padding recording rounding scaling seed speed
    string training warning
"""
_IRREGULAR_PARTICIPLES = """
    begun born bought bound broken brought built caught chosen cut done drawn driven fallen fed
    forgotten found frozen given gone grown held hidden kept known laid led left lent lost made
    meant met overwritten paid proven rebuilt rewritten risen said seen sent shaken shown shrunk
    sought spent split spread stolen struck swept taken taught thrown told torn unbound understood
    undone unknown withdrawn won worn woven written
"""
_QUALIFIERS = """
    about above absent across after again ahead alike alone along always anew apart approximate
    around at available away back bare before behind below beside best between beyond both
    cheapest circular dear deep each early either elsewhere endless every exactly
    fastest few first foreign frugal full further here highest inexact inner inside largest
    last late latest lazy least like live loose lowest many misshapen most near nearest new
    newest noisy nothing odd of one onto others outer outside outward over own partial plain
    positive possible prompt pure rarely reachable readable replaceable rest right same second
    several short silent single small smaller smallest some special static there three through
    together trailing trivial twice unchosen under unfit unheld unhidden unlike unreadable
    unwritten upper usual whole wide widest within without worst writable wrong
"""
_VAGUE_VERBS = "do go handle manage perform process"

NOUNS_AND_VERBS = frozenset(_NOUNS_AND_VERBS.split())
"""Words that end like a participle, and name a thing or an action."""
BARE_WORDS = frozenset(f"{_IRREGULAR_PARTICIPLES} {_QUALIFIERS} {_VAGUE_VERBS}".split())
"""Words that need a noun beside them, though they do not end in -ed or -ing."""


def is_bare(name: str) -> bool:
    """Whether a name is one word that only says what was done to a value, or where it is."""
    word = name.strip("_")
    if "_" in word or word in NOUNS_AND_VERBS or name.startswith("__"):
        return False
    return word.endswith(("ed", "ing")) or word in BARE_WORDS
