"""A table of what a network is made of: shapes, parameters, operations and memory.

The network is traced with the types of its inputs; nothing is computed.

>>> import weft as wf
>>> from weft import nn
>>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
>>> table = net.summary(wf.spec("float32", (2, 4)))
>>> print(table)
layer        output     parameters  operations  memory
Sequential   f32[2, 8]          40         160    64 B
  0: Linear  f32[2, 8]          40         144    64 B
  1: ReLU    f32[2, 8]           0          16    64 B
parameters 40, of which 40 are learned: 160 B
operations 160, activations 128 B
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import weft as wf
from weft.nn.layout import PARAMETER, is_module, lay_out, put_together
from weft.notebook import block, preformatted, table


@dataclass(frozen=True, slots=True)
class Row:
    """One module: its dotted name, class, results, parameters, and what its calls cost."""

    name: str
    kind: str
    output: str
    parameters: int
    operations: int
    memory: int
    is_leaf: bool

    @property
    def depth(self) -> int:
        """How deep inside the network it is."""
        return self.name.count(".") + 1 if self.name else 0


@dataclass(frozen=True, slots=True)
class Summary:
    """What `Module.summary` returns; its text is a table.

    >>> wf.nn.Linear(2, 3).summary(wf.ones((4, 2))).parameters
    9
    """

    rows: tuple[Row, ...]
    parameters: int
    learned: int
    parameter_bytes: int

    @property
    def operations(self) -> int:
        """Floating-point operations of one call."""
        return self.rows[0].operations

    @property
    def activation_bytes(self) -> int:
        """The bytes of the results of the innermost modules."""
        return sum(row.memory for row in self.rows if row.is_leaf)

    def __str__(self) -> str:
        header = ("layer", "output", "parameters", "operations", "memory")
        cells = [header, *[_cells(row) for row in self.rows]]
        widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
        lines = [_line(line, widths) for line in cells]
        learned = f"parameters {self.parameters:,}, of which {self.learned:,} are learned"
        lines.append(f"{learned}: {readable_size(self.parameter_bytes)}")
        activations = readable_size(self.activation_bytes)
        lines.append(f"operations {self.operations:,}, activations {activations}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        counts, costs = str(self).splitlines()[-2:]
        rows = [_cells(row) for row in self.rows]
        header = ("layer", "output", "parameters", "operations", "memory")
        return block(table(header, rows), preformatted(f"{counts}\n{costs}"))


def _cells(row: Row) -> tuple[str, ...]:
    own = row.name.rpartition(".")[2]
    label = f"{'  ' * row.depth}{own}: {row.kind}" if row.name else row.kind
    counts = f"{row.parameters:,}", f"{row.operations:,}", readable_size(row.memory)
    return label, row.output, *counts


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
    right = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
    return "  ".join([*left, *right])


def readable_size(count: float) -> str:
    """A number of bytes with its unit.

    >>> readable_size(512), readable_size(3 * 1024 * 1024)
    ('512 B', '3.0 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count} B" if unit == "B" else f"{count:.1f} {unit}"
        count = count / 1024
    return f"{count:.1f} TiB"


@dataclass(slots=True)
class Call:
    """One call of a module inside the network: the types of what it takes and gives."""

    name: str
    module: Any
    given: tuple[Any, Any]
    result: Any


def summarize(net: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Summary:
    """The table of one call; see `Module.summary`."""
    if not args and not kwargs:
        raise wf.ArgumentTypeError(
            "summary",
            "sizes depend on what the network is called with",
            expected="the arguments of a call, as tensors or types",
            got={"arguments": "none"},
            fix='net.summary(wf.spec("float32", (32, 784)))  # the dtype and shape of a batch',
        )
    calls = _calls(net, args, kwargs)
    layout = lay_out(net)
    modules = dict(layout.modules)
    known: dict[Any, int] = {}
    costs: dict[str, int] = {}
    for call in calls:
        costs[call.name] = costs.get(call.name, 0) + _cost(modules[call.name], call, known)
    first = {call.name: call for call in reversed(calls)}
    rows = [_row(name, modules[name], first[name], cost) for name, cost in costs.items()]
    order = {name: number for number, (name, _) in enumerate(layout.modules)}
    rows.sort(key=lambda row: order[row.name])
    return Summary(tuple(rows), *_parameters(net))


def _parameters(net: Any) -> tuple[int, int, int]:
    """How many numbers the parameters are, how many of them are learned, and their bytes."""
    tensors = list(net.parameters())
    learned = sum(x.size for x in tensors if x.requires_grad)
    held = sum(x.size * x.dtype.itemsize for x in tensors)
    return sum(x.size for x in tensors), learned, held


def _row(name: str, module: Any, call: Call, cost: int) -> Row:
    kinds = [leaf for leaf in wf.tree.leaves(call.result) if isinstance(leaf, wf.TensorType)]
    output = ", ".join(map(str, kinds))
    memory = sum(int(kind.size) * kind.dtype.itemsize for kind in kinds)
    layout = lay_out(module)
    indices = {place.index for place in layout.places if place.role == PARAMETER}
    count = sum(int(layout.tensors[index].size) for index in indices)
    is_leaf = len(layout.modules) == 1
    return Row(name, type(module).__name__, output, count, cost, memory, is_leaf)


def _calls(net: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Call]:
    """Trace a copy of the network, and note every module's calls."""
    calls: list[Call] = []

    def run(copy: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        for name, module in lay_out(copy).modules:
            module.__dict__["forward"] = _noting_forward(name, module, module.forward, calls)
        return wf.tree.leaves(copy(*given, **named))

    wf.ir.infer(run, net, args, kwargs)
    return calls


def _noting_forward(
    name: str, module: Any, forward: Callable[..., Any], calls: list[Call]
) -> Callable[..., Any]:
    def note_and_forward(*args: Any, **kwargs: Any) -> Any:
        call = Call(name, module, _types((args, kwargs)), None)
        calls.append(call)
        result = forward(*args, **kwargs)
        call.result = _types(result)
        return result

    return note_and_forward


def _types(tree: Any) -> Any:
    """A tree with the types of its tensors in their place."""

    def kind(leaf: Any) -> Any:
        return leaf.type if isinstance(leaf, wf.Tensor) else leaf

    return wf.tree.map_tree(kind, tree, is_leaf=is_module)


def _cost(module: Any, call: Call, known: dict[Any, int]) -> int:
    """The operations of one call; equal calls of equal modules are traced once."""
    layout = lay_out(module)
    leaves, structure = wf.tree.flatten(call.given)
    key = layout.skeleton, tuple(x.type for x in layout.tensors), structure, tuple(map(str, leaves))
    if key not in known:
        known[key] = wf.flops(wf.ir.trace(_call_copy, _Held(module), *call.given))
    return known[key]


class _Held:
    """A module that tracing takes as it is; what the call writes goes to a copy."""

    def __init__(self, module: Any) -> None:
        self.module = module


def _call_copy(held: _Held, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    layout = lay_out(held.module)
    copy = put_together(layout.skeleton, [tensor.clone() for tensor in layout.tensors])
    return wf.tree.leaves(copy(*args, **kwargs))
