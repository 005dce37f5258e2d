"""Scenes: the named sizes and the inputs that a program begins with, and what it likes to do.

Most programs are of all kinds. The others begin with what one part of the compiler is for, such as
images and kernels for convolutions, at sizes on both sides of that part's thresholds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tests.fuzz.draw import LARGEST
from tests.fuzz.program import Input
from tests.fuzz.sizes import thresholds

Generator = np.random.Generator
Shapes = tuple[tuple[str, ...], ...]
SMALL = (0, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 11, 13)
LAYOUTS = ("turned", "reversed", "strided", "broadcast")
WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
FLOATS = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Scene:
    """Shapes by the names of their sizes, of which a few are drawn; how sizes are drawn; families
    that are drawn more often, for which the first two shapes are there; the most elements of a
    value; and how often the scene is drawn."""

    name: str
    shapes: Shapes
    sizes: Callable[[Generator], dict[str, int]]
    liked: tuple[str, ...] = ()
    largest: int = LARGEST
    share: float = 1.0
    longest: int = 45
    """The most steps."""
    transforms: tuple[tuple[str, ...], ...] = ()
    """Transforms one of which is taken by half of the programs."""
    ending: str = ""
    """How a quarter of the programs are called."""
    dtype: str = ""
    """The dtype of most inputs, where kernels of one dtype are what the scene is for."""


def size(rng: Generator, most: int = 130) -> int:
    """A small number, or one on either side of a threshold of the compiler."""
    if rng.random() < 0.6:
        return int(rng.choice(SMALL))
    return threshold(rng, 2048 if rng.random() < 0.12 else most)


def threshold(rng: Generator, most: int) -> int:
    """A threshold up to some number, or one beside it."""
    near = [number for number in thresholds() if number <= most]
    return int(rng.choice(near)) + int(rng.integers(-1, 2))


def _any_sizes(rng: Generator) -> dict[str, int]:
    sizes = {name: size(rng) for name in "ABC"}
    return sizes | {"D": int(rng.choice([1, 2, 3, 4, 5])), "E": int(rng.choice([1, 2, 3]))}


def _product_sizes(rng: Generator) -> dict[str, int]:
    return {name: threshold(rng, 1100 if rng.random() < 0.3 else 330) for name in "ABC"} | {"D": 2}


def _image_sizes(rng: Generator) -> dict[str, int]:
    channels = (1, 2, 3, 4, 7, 8, 9, 16, 17, 32, 33, 63, 64, 65)
    return {
        "A": int(rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14, 17, 28])),
        "B": int(rng.choice(channels)),
        "C": int(rng.choice(channels)),
        "D": int(rng.choice([1, 2, 3, 3, 3, 5, 7])),
        "E": int(rng.choice([1, 2, 3, 8, 9])),
    }


def _tile_sizes(rng: Generator) -> dict[str, int]:
    """Channels and tiles enough for Winograd's method, of whole panels and of others."""
    wide = (31, 32, 40, 40, 48, 56, 64, 80, 96)
    sizes = {"A": (4, 8, 9, 12, 16), "B": wide, "C": wide, "D": (3,), "E": (1, 2, 8, 9)}
    return {name: int(rng.choice(options)) for name, options in sizes.items()}


def _wide_image_sizes(rng: Generator) -> dict[str, int]:
    """Channels whose transformed weights are too many to stay in cache."""
    wide = (336, 344, 352, 384)
    return {"A": 4, "B": int(rng.choice(wide)), "C": int(rng.choice(wide)), "D": 3, "E": 8}


def _line_sizes(rng: Generator) -> dict[str, int]:
    sizes = {"A": (4095, 4097, 9000), "B": (3, 8, 16), "C": (3, 8, 17), "D": (1, 3, 5), "E": (1, 2)}
    return {name: int(rng.choice(options)) for name, options in sizes.items()}


def _row_sizes(rng: Generator) -> dict[str, int]:
    """Rows that are summed chunk by chunk, and blocks of them that are multiplied."""
    rows, columns = (63, 64, 64, 80, 128, 130, 192, 256), (15, 16, 16, 17, 32, 48, 64)
    return {
        "A": int(rng.choice(rows)),
        "B": int(rng.choice(columns)),
        "C": int(rng.choice(columns)),
        "D": int(rng.choice([1, 2, 3])),
    }


def _vector_sizes(rng: Generator) -> dict[str, int]:
    long = int(rng.choice([4095, 4096, 4097, 16384, 16385, 32768, 65537, 262143, 262144, 262147]))
    return {"A": long, "B": threshold(rng, 520), "C": int(rng.choice([1, 2, 3, 16]))}


def _head_sizes(rng: Generator) -> dict[str, int]:
    return {
        "A": int(rng.choice([0, 1, 2, 15, 16, 17, 31, 33, 64, 65])),
        "B": int(rng.choice([0, 1, 2, 7, 16, 17, 48, 64, 65])),
        "C": int(rng.choice([1, 2, 4, 8, 15, 16, 17, 32, 64])),
        "D": int(rng.choice([1, 2, 3])),
        "E": int(rng.choice([1, 2])),
    }


GRADIENTS = ("gradients",), ("valued",), ("rematerialised", "gradients"), ("compiled",)
SCENES = (
    Scene(
        "any",
        (("A", "B"), ("B", "C"), ("B",), ("A", "B"), ("A",), ("D", "A", "B"), (),
         ("E", "D", "A", "C"), ("D", "D"), ("E", "D", "A", "A"), ("B", "D", "E", "E")),
        _any_sizes, share=0.62,
    ),
    Scene(
        "products",
        (("A", "B"), ("B", "C"), ("C",), ("B",), ("A", "B"), ("D", "A", "B"), ("D", "B", "C"),
         ("A",)),
        _product_sizes, ("product", "product", "numeric", "reduce", "join"), 1_200_000, 0.12, 9,
        ending="tuned",
    ),
    Scene(
        "images",
        (("E", "C", "A", "A"), ("B", "C", "D", "D"), ("C",), ("E", "C", "A"), ("B", "C", "D"),
         ("E", "C", "D", "D", "D")),
        _image_sizes, ("convolve", "convolve", "pool", "normalise"), 300_000, 0.1, 9, GRADIENTS,
        "sizes",
    ),
    Scene(
        "tiles",
        (("E", "C", "A", "A"), ("B", "C", "D", "D"), ("C",), ("E", "B", "A", "A")),
        _tile_sizes, ("convolve",) * 8, 300_000, 0.04, 3, GRADIENTS, "sizes", "float32",
    ),
    Scene(
        "wide images",
        (("E", "C", "A", "A"), ("B", "C", "D", "D"), ("E", "B", "A", "A"), ("C",)),
        _wide_image_sizes, ("convolve",) * 8, 1_500_000, 0.01, 2, GRADIENTS, dtype="float32",
    ),
    Scene(
        "lines",
        (("E", "C", "A"), ("B", "C", "D"), ("C",), ("E", "C", "A")),
        _line_sizes, ("convolve", "convolve", "pool"), 400_000, 0.015, 4, GRADIENTS,
    ),
    Scene(
        "rows",
        (("A", "B"), ("A", "B"), ("B", "A"), ("B",), ("A",), ("B", "C"), ("D", "A", "B")),
        _row_sizes,
        ("reduce", "reduce", "binary", "product", "product", "normalise", "move", "join", "fix",
         "derive", "recompute"),
        80_000, 0.1, 14, GRADIENTS,
    ),
    Scene(
        "vectors",
        (("A",), ("A",), ("B",), ("A", "C"), ("C",)),
        _vector_sizes, ("reduce", "cumulate", "sort", "index", "product"), 1_200_000, 0.05, 7,
    ),
    Scene(
        "heads",
        (("E", "D", "A", "C"), ("E", "D", "B", "C"), ("A", "C"), ("B", "C"), ("E", "D", "A", "C")),
        _head_sizes, ("attend", "attend", "product", "move"), 200_000, 0.09, 12,
    ),
    Scene(
        "samples",
        (("A", "B"), ("B",), (), ("D", "A", "B")),
        _any_sizes, ("sample",) * 6 + ("control", "control", "repeat", "repeat"), share=0.04,
        longest=12, ending="studied",
    ),
)  # fmt: skip


def scene(rng: Generator) -> Scene:
    """A scene, which is the first that a program draws."""
    shares = np.array([each.share for each in SCENES])
    return SCENES[int(rng.choice(len(SCENES), p=shares / shares.sum()))]


def inputs(rng: Generator, drawn: Scene, ending: str) -> tuple[dict[str, int], list[Input]]:
    """The sizes of a scene, and its inputs: most are floats of one dtype."""
    sizes = drawn.sizes(rng)
    if ending == "sizes":  # symbols stand for sizes from 1 up
        sizes = {name: max(each, 2) for name, each in sizes.items()}
    main = drawn.dtype or str(rng.choice(FLOATS, p=(0.58, 0.2, 0.12, 0.1)))
    order = [int(place) for place in rng.permutation(len(drawn.shapes))]
    places = {*order[: int(rng.integers(2, 6))], *((0, 1) if drawn.liked else ())}
    shapes = [drawn.shapes[place] for place in sorted(places)]
    largest = max(drawn.largest, LARGEST * 8)
    shapes = [s for s in shapes if np.prod([sizes[name] for name in s]) <= largest] or [("A",)]
    kinds = [(main, shape) for shape in shapes]
    if rng.random() < 0.4:
        kinds.append((str(rng.choice(WHOLE)), ("A",)))
    if rng.random() < (0.4 if "product" in drawn.liked else 0.1):
        kind = str(rng.choice(("int8", "int8", "uint8", "int32", "int64")))
        kinds += [(kind, shape) for shape in shapes if len(shape) == 2]
    if rng.random() < 0.06:
        kinds.append((str(rng.choice(("complex64", "complex128"))), ("A",)))
    odd = ending == "call" and rng.random() < 0.06
    made = [_input(rng, number, *kind, odd) for number, kind in enumerate(kinds)]
    used = {name for each in made for name in each.shape}
    return {name: each for name, each in sizes.items() if name in used}, made


def _input(rng: Generator, number: int, dtype: str, shape: tuple[str, ...], odd: bool) -> Input:
    layout = str(rng.choice(LAYOUTS)) if shape and rng.random() < 0.2 else ""
    if odd and "float" in dtype and rng.random() < 0.6:
        layout = "odd"
    return Input(f"x{number}", dtype, shape, int(rng.integers(1000)), layout)
