"""How a row of modules is cut into stages.

>>> import weft as wf
>>> layers = [wf.nn.Linear(8, 8), wf.nn.ReLU(), wf.nn.Linear(8, 8), wf.nn.Linear(8, 8)]
>>> cut_evenly([72, 0, 72, 72], 2)
[1]
>>> [len(stage) for stage in cut_stages(layers, 2, None)]
[2, 2]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import weft as wf

__all__ = ["cut_evenly", "cut_stages", "cut_with_parameters"]


def cut_stages(modules: Any, count: int, cut: Sequence[int] | None) -> list[list[Any]]:
    """The modules of each of `count` stages.

    cut: the places at which a new stage begins; without it, the cut whose largest stage has the
    fewest parameters.
    """
    row = _row_of(modules)
    if len(row) < count:
        raise wf.ArgumentError(
            "distributed.Pipeline",
            f"there are {len(row)} modules for {count} stages",
            expected="at least one module for each stage: processes along the axis times chunks",
            got={"modules": len(row), "stages": count},
            fix="fewer processes or chunks, or a model that is listed in smaller parts",
        )
    if cut is None:
        sizes = [_parameter_count(module) for module in row]
        places = cut_with_parameters(sizes, sizes, count)
    else:
        places = list(cut)
        _check_cut(places, len(row), count)
    bounds = [0, *places, len(row)]
    return [row[start:end] for start, end in pairwise(bounds)]


def cut_evenly(weights: Sequence[float], count: int) -> list[int]:
    """Where to cut a row into non-empty parts so that the heaviest is as light as can be."""
    size = len(weights)
    sums = [0.0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    # least[k][i]: the heaviest of k parts of the first i, and where the last of them begins
    least: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for part in range(1, count + 1):
        before = least[-1]
        least.append(
            {
                end: min(
                    (max(before[start][0], sums[end] - sums[start]), start)
                    for start in before
                    if start < end
                )
                for end in range(part, size - count + part + 1)
            }
        )
    places, end = [], size
    for part in range(count, 1, -1):
        end = least[part][end][1]
        places.append(end)
    return places[::-1]


def cut_with_parameters(
    weights: Sequence[float], parameters: Sequence[int], count: int
) -> list[int]:
    """An even cut by weights in which every part has parameters, where there are enough of them.

    >>> cut_with_parameters([1, 9, 1, 1], [8, 0, 8, 8], 3)  # not before the second
    [2, 3]
    """
    starts = [0, *[place for place, size in enumerate(parameters) if size and place]]
    if not parameters[0] and len(starts) > 1:
        del starts[1]  # what stands before the first parameters belongs to them
    if len(starts) < count:
        return cut_evenly(weights, count)
    bounds = [*starts, len(weights)]
    joined = [sum(weights[start:end]) for start, end in pairwise(bounds)]
    return [starts[place] for place in cut_evenly(joined, count)]


def _row_of(modules: Any) -> list[Any]:
    if callable(modules) and not hasattr(modules, "__getitem__"):
        raise wf.ArgumentTypeError(
            "distributed.Pipeline",
            "this model is no row of modules",
            expected="a Sequential, or a list of modules or functions, each taking what the one "
            "before returns",
            got={"model": type(modules).__name__},
            fix="Pipeline([model.embed, *model.blocks, model.head], loss)",
        )
    return list(modules)


def _parameter_count(module: Any) -> int:
    if not hasattr(module, "parameters"):
        return 0
    return sum(int(parameter.size) for parameter in module.parameters())


def _check_cut(places: Sequence[int], size: int, count: int) -> None:
    whole = all(type(place) is int for place in places)
    is_ordered = whole and list(places) == sorted({*places} & {*range(1, size)})
    if not is_ordered or len(places) != count - 1:
        raise wf.ArgumentError(
            "distributed.Pipeline",
            "this cut does not make the stages",
            expected=f"{count - 1} ascending numbers from 1 to {size - 1}",
            got={"cut": list(places), "modules": size, "stages": count},
            fix="cut=None, which cuts by the number of parameters",
        )
