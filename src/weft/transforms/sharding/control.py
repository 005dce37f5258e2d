"""Strategies of control flow: loops and branches whose graphs are divided themselves.

The operands of a loop stay as they come, where they are split along an axis that every step has.
The body is searched on its own, with a carry that goes out as it came in. Conditions and indices
of branches are replicated, so that all devices take the same way and meet in the same collectives.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.graph import Graph, GraphNode
from weft.ir.sharding import REPLICATED, Partial, Placement, Split, Strategy
from weft.ops.control_branch import switch
from weft.ops.control_loop import scan, while_
from weft.transforms.sharding.search import FOLLOW, Candidate, Search, steps_of

__all__: list[str] = []

Placements = Sequence[Placement]


def _without_terms(placement: Placement) -> Placement:
    return REPLICATED if isinstance(placement, Partial) else placement


def _of_step(placement: Placement) -> Placement:
    """How one element along the first axis is placed."""
    if not isinstance(placement, Split) or placement.axis == 0:
        return REPLICATED
    return Split(placement.axis - 1)


def _of_stack(placement: Placement) -> Placement:
    """How values are placed that are stacked along a new first axis."""
    return Split(placement.axis + 1) if isinstance(placement, Split) else placement


def _natural_outputs(search: Search) -> list[Placement]:
    """How outputs come, where nothing asks for them in another way."""
    return [_without_terms(search.placement_of(atom)) for atom in search.graph.outputs]


def _loop_searches(
    search: Search, body: Graph, consts: Placements, carry: Placements, steps: Placements
) -> list[Search]:
    """Searches of a loop's body: with the carry as it comes, and as a step makes it."""
    along, free = search.along, [None] * (len(body.outputs) - len(carry))
    first = Search(body, along, [*consts, *carry, *steps], [None] * len(body.outputs))
    natural = _natural_outputs(first)[: len(carry)]
    carries = dict.fromkeys([tuple(carry), tuple(natural)])
    return [Search(body, along, [*consts, *each, *steps], [*each, *free]) for each in carries]


def _of_scan(search: Search, node: GraphNode, given: Placements) -> list[Candidate]:
    graph = node.params["graph"]
    held = node.params["num_consts"] + node.params["num_carry"]
    consts = list(map(_without_terms, given[: node.params["num_consts"]]))
    carry = list(map(_without_terms, given[node.params["num_consts"] : held]))
    steps = list(map(_of_step, given[held:]))

    def candidate(body: Search) -> Candidate:
        inputs = [body.placed[variable] for variable in graph.inputs]
        outputs = _natural_outputs(body)
        carried = inputs[len(consts) : held]
        strategy = Strategy(
            (*inputs[:held], *map(_of_stack, inputs[held:])),
            (*carried, *map(_of_stack, outputs[len(carried) :])),
        )
        return Candidate(strategy, body.seconds * steps_of(node), {"graph": body})

    return [candidate(body) for body in _loop_searches(search, graph, consts, carry, steps)]


def _of_while(search: Search, node: GraphNode, given: Placements) -> list[Candidate]:
    body, count = node.params["body"], node.params["num_consts"]
    clean = list(map(_without_terms, given))
    candidates = []
    for step in _loop_searches(search, body, clean[:count], clean[count:], []):
        inputs = [step.placed[variable] for variable in body.inputs]
        test = Search(node.params["cond"], search.along, inputs, [REPLICATED])
        strategy = Strategy(tuple(inputs), tuple(inputs[count:]))
        seconds = step.seconds + test.seconds
        candidates.append(Candidate(strategy, seconds, {"body": step, "cond": test}))
    return candidates


def _of_switch(search: Search, node: GraphNode, given: Placements) -> list[Candidate]:
    if node.params["rows"]:  # each row has a branch of its own, so that all run on all rows
        return []
    branches = node.params["branches"]
    inputs = list(map(_without_terms, given[1:]))
    first = Search(branches[0], search.along, inputs, [None] * len(branches[0].outputs))
    outputs = _natural_outputs(first)
    searched = [Search(branch, search.along, inputs, outputs) for branch in branches]
    strategy = Strategy((REPLICATED, *inputs), tuple(outputs))
    seconds = max(each.seconds for each in searched)
    return [Candidate(strategy, seconds, {"branches": tuple(searched)})]


FOLLOW[scan] = _of_scan
FOLLOW[while_] = _of_while
FOLLOW[switch] = _of_switch
