"""Names of functions that say *that* there is a value, and not *which*: bare participles.

A function is named by what it returns (`packed_weights`) or does (`fuse_epilogue`). A participle,
an adjective or a preposition alone (`joined`, `made`, `within`) says neither, and a search for it
finds half of the library.

>>> [name for name in ("_joined", "joined_rows", "within", "padding") if is_bare(name)]
['_joined', 'within']
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
    across after again ahead alike alone along apart around at away back before beside between
    beyond both each either elsewhere every foreign further here highest inside largest last latest
    least like live loose lowest misshapen nearest nothing of others outer outside over own plain
    readable same several short silent smaller smallest some static there through together trailing
    under unfit unless unlike unreadable whole wide widest within without wrong
"""

NOUNS_AND_VERBS = frozenset(_NOUNS_AND_VERBS.split())
"""Words that end like a participle, and name a thing or an action."""
BARE_WORDS = frozenset(_IRREGULAR_PARTICIPLES.split()) | frozenset(_QUALIFIERS.split())
"""Words that need a noun beside them, though they do not end in -ed or -ing."""


def is_bare(name: str) -> bool:
    """Whether a name is one word that only says what was done to a value, or where it is."""
    word = name.strip("_")
    if "_" in word or word in NOUNS_AND_VERBS or name.startswith("__"):
        return False
    return word.endswith(("ed", "ing")) or word in BARE_WORDS
