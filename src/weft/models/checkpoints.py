"""Weights of others, loaded by name into any module, with a report of every name.

    report = wf.models.load_checkpoint(net, "model.safetensors", rename=[("^gamma$", "weight")])
    print(report)

>>> import weft as wf
>>> from weft.models.checkpoints import load_checkpoint
>>> net = wf.nn.Linear(2, 3)
>>> state = {"model.weight": wf.ones((3, 2)), "model.bias": wf.zeros(3), "model.step": wf.tensor(1)}
>>> report = load_checkpoint(net, state, ignored="step")
>>> report.renamed
{'model.weight': 'weight', 'model.bias': 'bias'}
>>> report.unused
{'model.step': 'ignored'}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import weft as wf
from weft import nn
from weft.models.weight_files import read_weights

Renaming = Sequence[tuple[str, str]]
SHOWN = 12


@dataclass(frozen=True)
class KeyReport:
    """What became of every name in a file, and of every name in a module."""

    used: dict[str, str]
    """Name in the file: name in the module, for every tensor that was loaded."""
    unused: dict[str, str]
    """Name in the file: why nothing took it."""
    missing: tuple[str, ...]
    """Names in the module that no tensor of the file was for; they keep what they had."""
    transposed: tuple[str, ...] = ()
    """Names in the file of matrices that were transposed."""
    mismatched: dict[str, str] = field(default_factory=dict)
    """Name in the file: the two shapes that do not fit."""
    tied: tuple[str, ...] = ()
    """Names in the module that share another one's tensor, and need none of their own."""

    @property
    def renamed(self) -> dict[str, str]:
        """The tensors that have another name in the module than in the file."""
        return {theirs: ours for theirs, ours in self.used.items() if theirs != ours}

    @property
    def is_complete(self) -> bool:
        """Whether every name of the module was loaded, and nothing of the file is left over."""
        left = [why for why in self.unused.values() if why != IGNORED]
        return not (self.missing or self.mismatched or left)

    def __str__(self) -> str:
        """One line for each name, the exceptions first."""
        rows = [("wrong shape", name, why) for name, why in self.mismatched.items()]
        rows += [("missing", name, "not in the file") for name in self.missing]
        rows += [("unused", name, why) for name, why in self.unused.items()]
        rows += [("tied", name, "shares another tensor") for name in self.tied]
        for theirs, ours in self.used.items():
            turned = ", transposed" if theirs in self.transposed else ""
            arrow = f"-> {ours}{turned}" if theirs != ours or turned else ""
            rows.append(("used", theirs, arrow))
        counts = Counter(kind for kind, _, _ in rows)
        head = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        width = max((len(name) for _, name, _ in rows), default=0)
        return "\n".join([head, *[f"  {k:<11}  {n:<{width}}  {w}".rstrip() for k, n, w in rows]])


IGNORED = "ignored"
NO_PLACE = "no such name in the module"


def load_checkpoint(
    net: nn.Module,
    source: str | PathLike[str] | Mapping[str, Any],
    *,
    rename: Renaming = (),
    transposed: str = r"(?!)",
    ignored: str = r"(?!)",
    strict: bool = True,
) -> KeyReport:
    """Load weights of a file, a folder or a dictionary by name; what became of each is returned.

    rename: pairs of a pattern and what replaces it in names of the file, in order. transposed and
    ignored: patterns of names in the file (whole ones, or what follows a dot) of matrices that lie
    the other way round, and of what is no weight. A prefix that all names of one side have and the
    other side has not is left out by itself. strict: what is missing, left over or of another
    shape is an error, and nothing is loaded. A shape is never a reason to transpose by itself: a
    square matrix would not say so.
    """
    state = _entries(source)
    assignment, report = match_keys(net, state, rename, transposed, ignored)
    if strict and not report.is_complete:
        raise _incomplete_checkpoint(report)
    net.load_state_dict(assignment, strict=False)
    return report


def match_keys(
    net: nn.Module, state: Mapping[str, Any], rename: Renaming, transposed: str, ignored: str
) -> tuple[dict[str, Any], KeyReport]:
    """The tensors of a file by the names of a module, and what became of every name."""
    own = net.state_dict()
    unused = {name: IGNORED for name in state if _is_named(ignored, name)}
    names = {name: _replace(name, rename) for name in state if name not in unused}
    shorten = _prefix_rule(list(names.values()), list(own))
    assignment: dict[str, Any] = {}
    used, mismatched, turned = dict[str, str](), dict[str, str](), list[str]()
    for theirs, renamed in names.items():
        ours = shorten(renamed)
        if ours not in own:
            unused[theirs] = NO_PLACE
            continue
        if ours in assignment:
            unused[theirs] = f"{ours} was loaded already"
            continue
        tensor = wf.asarray(state[theirs])
        if _is_named(transposed, theirs) and tensor.ndim == 2:
            tensor = tensor.T
            turned.append(theirs)
        if tensor.shape != own[ours].shape:
            mismatched[theirs] = f"{tuple(tensor.shape)} for {ours} {tuple(own[ours].shape)}"
            continue
        assignment[ours], used[theirs] = tensor, ours
    rest = [name for name in own if name not in assignment]
    loaded = {id(own[name]) for name in assignment}
    tied = tuple(name for name in rest if id(own[name]) in loaded)
    wrong = {shorten(names[name]) for name in mismatched}
    missing = tuple(name for name in rest if name not in tied and name not in wrong)
    report = KeyReport(used, unused, missing, tuple(turned), mismatched, tied)
    return assignment, report


def _entries(source: Any) -> Mapping[str, Any]:
    """Tensors by name, of a dictionary, a file or a folder."""
    if isinstance(source, Mapping):
        return source
    path = Path(source)
    content = read_weights(path) if path.is_dir() else wf.load(path)
    if not isinstance(content, Mapping):
        raise wf.ArgumentTypeError(
            "load_checkpoint",
            "the file does not hold tensors by name",
            expected="a safetensors file, a state dictionary of PyTorch, or a folder of parts",
            got={"path": str(path), "content": type(content).__name__},
            fix="net.load_state_dict of the part that holds the weights",
        )
    return content


def _is_named(pattern: str, name: str) -> bool:
    """Whether a pattern is the whole name, or all that follows one of its dots."""
    return re.fullmatch(rf"(?:.*\.)?(?:{pattern})", name) is not None


def _replace(name: str, rename: Renaming) -> str:
    for pattern, replacement in rename:
        name = re.sub(pattern, replacement, name)
    return name


def _prefix_rule(theirs: Sequence[str], ours: Sequence[str]) -> Any:
    """What leaves out a prefix that one side has alone: the one by which most names meet."""
    known = set(ours)
    best, most = ("", ""), sum(name in known for name in theirs)
    heads = {".".join(name.split(".")[:n]) + "." for name in theirs for n in (1, 2)}
    added = {".".join(name.split(".")[:n]) + "." for name in ours for n in (1, 2)}
    for cut, put in [*[(head, "") for head in sorted(heads)], *[("", a) for a in sorted(added)]]:
        met = sum(put + name.removeprefix(cut) in known for name in theirs)
        if met > most:
            best, most = (cut, put), met
    cut, put = best

    def shorten(name: str) -> str:
        changed = put + name.removeprefix(cut)
        return name if name in known and changed not in known else changed

    return shorten


def _incomplete_checkpoint(report: KeyReport) -> wf.ArgumentError:
    left = {name: why for name, why in report.unused.items() if why != IGNORED}
    lines = [f"{name}: {why}" for name, why in report.mismatched.items()]
    lines += [f"missing: {name}" for name in report.missing]
    lines += [f"left over: {name} ({why})" for name, why in left.items()]
    more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return wf.ArgumentError(
        "load_checkpoint",
        "the names of the file are not those of the module: " + "; ".join(lines[:SHOWN]) + more,
        expected="a tensor of the right shape for every name of the module, and no other",
        got={
            "wrong shapes": len(report.mismatched),
            "missing": len(report.missing),
            "left over": len(left),
            "fitting": len(report.used),
        },
        fix="rename=[(pattern, replacement)], transposed=, ignored=; or strict=False, and print it",
    )
