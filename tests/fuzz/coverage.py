"""Which primitives, kinds of launches, kernels and branches of the selector programs reach.

Branches are counted by rewriting the selector's modules as they are imported: each test of an `if`,
of a conditional expression, of a `while` or in a comprehension says whether it came out true or
false. Launches and kernels are read off each section that is compiled.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).parents[2] / "src"
SELECTOR = (
    "weft.compiler.fusion.grouping",
    "weft.compiler.fusion.split_reduction",
    "weft.compiler.targets.cpu.products.forms",
    "weft.compiler.plan.launch",
    "weft.compiler.plan.control_flow",
    "weft.compiler.plan.horizontal_fusion",
    "weft.compiler.plan.planning",
    "weft.compiler.targets.cpu.target",
    "weft.compiler.targets.cpu.runtime.grouped_launch",
    "weft.compiler.plan.in_place",
    "weft.compiler.lowering.nodes",
    "weft.compiler.targets.cpu.products.tile_plans",
    "weft.compiler.targets.cpu.products.select",
    "weft.compiler.plan.row_fusion",
    "weft.compiler.targets.cpu.products.low_precision",
    "weft.compiler.targets.cpu.products.gemv",
    "weft.compiler.targets.cpu.convolution.plans",
    "weft.compiler.targets.cpu.convolution.select",
    "weft.compiler.targets.cpu.convolution.winograd_select",
)
"""The modules that choose how a node is computed."""
REACHED: Counter[str] = Counter()

ELSEWHERE = {
    r"branch \S*forms:.*(function|library) is None: true": "NumPy brings a BLAS along here",
    r"branch \S*forms:.*before <= 1": "threads of the BLAS are the machine's choice",
    r"branch \S*tile_plans:.*gemm_address.*: false": "NumPy brings a BLAS along here",
    r"branch \S*tile_plans:\d+ (rest|self\.packed|self\.form)": "a plan's text, for the disk",
    r"branch \S*target:.*primitive\.native": "a user's library: tests/custom",
    r"branch \S*target:\d+ functions is None: true": "an interpreter without a lock",
    r"branch \S*nodes:.*found\[0\]\.copied": "asked by tests of primitives alone",
    r"branch \S*nodes:.*Reduction \| Control.*: false": "refused: tests/compiler/test_kinds.py",
    r"branch \S*split_reduction:\d+ each\.": "a user's reduction: tests/compiler/test_kinds.py",
    r"branch \S*split_reduction:.*lower is None: false": "likewise",
    r"branch \S*low_precision:\d+ words is None: true": "refused: tests of primitives alone",
    r"branch \S*launch:.*isinstance\(value, Graph\): true": "a loop that fails, as no program may",
    r"branch \S*cpu\.target:\d+ sums is not None: true": "processes: tests/distributed",
    r"branch \S*planning:\d+ settings\.overlap: false": "processes: tests/distributed",
    r"branch \S*select:\d+ machine == host\(\): false": "another machine: tests/export",
    r"branch \S*row_fusion:\d+ not limits\.fused": "other targets: tests/compiler/cuda",
    r"branch \S*(grouping|split_reduction):.*(lines|isinstance\(before)": (
        "millions of elements on a card: tests/compiler/test_chunks_of_two_axes.py"
    ),
    r"primitive debug_": "prints and stops: tests/test_debug.py",
    r"primitive eig$": "the phase of an eigenvector is free: tests/ops/test_linalg.py",
}
"""What no program is expected to reach, as patterns, and why."""


@dataclass(frozen=True, slots=True)
class Need:
    """What cannot be reached on a machine that lacks something, as patterns."""

    feature: str
    is_there: Callable[[Any], bool]
    """Whether a machine has it."""
    patterns: tuple[str, ...]


def _has_blas() -> bool:
    from weft.compiler.targets.cpu.products.forms import blas

    return blas() is not None


NEEDS = (
    Need(
        "a BLAS that NumPy brings along",
        lambda machine: _has_blas(),
        (
            r"branch \S*forms:\d+ (function|library) is None: false",
            r"branch \S*forms:\d+ (left|right): ",
            r"branch \S*tile_plans:.*gemm_address.*: true",
            r"branch \S*products\.select:\d+ plan\.form == 'blas': true",
        ),
    ),
    Need(
        "AVX-512",
        lambda machine: machine.width == 16,
        (
            r"branch \S*low_precision:\d+ (words\.terms|self\.is_|not self\.is_|side|turned)",
            r"branch \S*low_precision:\d+ (kind\.dtype is|form is None|isinstance\(left)",
            r"branch \S*low_precision:\d+ self\.node\.results",
            r"branch \S*low_precision:.*(is_held\(words\)|is not dot_wide for node.*): false",
            r"branch \S*low_precision:\d+ count == 0: false",
            r"branch \S*low_precision:.*has_instruction.*: true",
            r"branch \S*low_precision:\d+ words is None or product is None: false",
            r"branch \S*target:\d+ wide is not None: true",
            r"branch \S*forms:\d+ form_of\(node\) is not None: false",
        ),
    ),
    Need(
        "a processor without instructions for sums of products of bytes",
        lambda machine: machine.width < 16 or not machine.has_feature("avx512vnni"),
        (r"branch \S*low_precision:\d+ words is None or product is None: true",),
    ),
    Need(
        "a processor without masks of vectors",
        lambda machine: not machine.masked,
        (r"branch \S*convolution\.select:\d+ _has_whole_vectors.*: false",),
    ),
    Need(
        "32 registers of vectors, which AVX-512 and ARM have",
        lambda machine: machine.registers == 32,
        (r"branch \S*gemv:.*registers == 32: true",),
    ),
    Need(
        "16 registers of vectors, which x86-64 has without AVX-512",
        lambda machine: machine.registers == 16,
        (r"branch \S*gemv:.*registers == 32: false",),
    ),
    Need(
        "a processor without vectors",
        lambda machine: machine.width == 1,
        (r"branch \S*gemv:\d+ (v\.type\.width == 1: true|lanes > 1: false)",),
    ),
    Need(
        "a processor with vectors",
        lambda machine: machine.width > 1,
        (
            r"branch \S*gemv:\d+ (v\.type\.width == 1: false|lanes > 1: true)",
            r"branch \S*gemv:\d+ width == 1: ",
        ),
    ),
)
"""What depends on the machine that code is made for, and on what is installed there."""


def take() -> dict[str, int]:
    """What was reached since it was last asked for."""
    found = dict(REACHED)
    REACHED.clear()
    return found


def united(file: Path, reached: Counter[str]) -> Counter[str]:
    """What this run and the runs before it reached; the file is written anew."""
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    both = Counter(before) + reached
    file.write_text(json.dumps(both, indent=0, sort_keys=True), encoding="utf-8")
    return both


# --- branches ------------------------------------------------------------------------------------


class _Marked(ast.NodeTransformer):
    """A module in which each test says how it came out."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.tests: list[str] = []

    def marked(self, test: ast.expr) -> ast.expr:
        text = ast.unparse(test)
        if text == "TYPE_CHECKING":
            return test
        key = f"{self.module.removeprefix('weft.compiler.')}:{test.lineno} {text}"
        self.tests.append(key)
        call = ast.Call(ast.Name("__reached__", ast.Load()), [ast.Constant(key), test], [])
        return ast.copy_location(call, test)

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        node.test = self.marked(node.test)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        node.test = self.marked(node.test)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.ifs = [self.marked(test) for test in node.ifs]
        return node


def _path(module: str) -> Path:
    plain = ROOT / Path(*module.split("."))
    return plain / "__init__.py" if plain.is_dir() else plain.with_suffix(".py")


def _parsed(module: str) -> tuple[ast.Module, list[str]]:
    tree = ast.parse(_path(module).read_text(encoding="utf-8"))
    marks = _Marked(module)
    return ast.fix_missing_locations(marks.visit(tree)), marks.tests


@cache
def branches() -> tuple[str, ...]:
    """All branches of the selector."""
    tests = [test for module in SELECTOR for test in _parsed(module)[1]]
    return tuple(f"branch {test}: {way}" for test in tests for way in ("true", "false"))


def _mark(key: str, value: Any) -> Any:
    REACHED[f"branch {key}: {'true' if value else 'false'}"] += 1
    return value


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with its tests marked."""

    def get_code(self, fullname: str) -> CodeType | None:
        return compile(_parsed(fullname)[0], self.get_filename(fullname), "exec")

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__reached__"] = _mark
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the selector's modules before others do."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in SELECTOR:
            return None
        file = _path(name)
        places = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            name, file, loader=_Loader(name, str(file)), submodule_search_locations=places
        )


# --- launches ------------------------------------------------------------------------------------


def install() -> None:
    """Count from now on; the compiler must not have been imported."""
    assert "weft" not in sys.modules, "coverage is installed before weft is imported"
    sys.meta_path.insert(0, _Finder())
    from weft.compiler.function import jit
    from weft.compiler.lowering.nodes import NODE_KERNELS
    from weft.compiler.plan import planning

    plan_graph, record = planning.plan_graph, jit.record

    def counted(*args: Any, **kwargs: Any) -> Any:
        plan = plan_graph(*args, **kwargs)
        parts = [part for launch in plan.launches for part in launch.nested_launches()]
        REACHED.update(f"launch {_kind(part)}" for part in parts)
        return plan

    def recorded(*args: Any, **kwargs: Any) -> Any:
        recording = record(*args, **kwargs)
        REACHED.update(f"primitive {name}" for name in _primitives(recording.graph))
        return recording

    planning.plan_graph = counted
    jit.record = recorded  # type: ignore[attr-defined]
    NODE_KERNELS.update({name: _counted(name, write) for name, write in NODE_KERNELS.items()})


def _counted(name: str, write: Any) -> Any:
    def kernel(builder: Any) -> Any:
        made = write(builder)
        if made is not None:
            REACHED[f"node {name}"] += 1
        return made

    return kernel


def _primitives(graph: Any) -> set[str]:
    """The primitives of a recorded graph, and of the graphs inside."""
    from weft.ir.walking import graphs_of

    inner = [name for node in graph.nodes for g in graphs_of(node) for name in _primitives(g)]
    return {*inner, *[node.primitive.name for node in graph.nodes]}


def _kind(call: Any) -> str:
    if call.members:
        return "grouped launch"
    if call.stages:
        return "row fusion"
    if call.nested is not None:
        return f"control {call.name}"
    if call.node is not None:
        return "reference"
    if call.group is not None:
        return "sum" if call.name.startswith("sum") else "group"
    return call.name if not call.name.startswith("k") else "single"


def expected() -> list[str]:
    """All that should be reached."""
    from weft.compiler.lowering.nodes import NODE_KERNELS
    from weft.compiler.targets.cpu import target  # it brings primitives of its own
    from weft.ir.primitive import PRIMITIVES

    assert target.CPU.passes
    launches = (
        "group", "row fusion", "grouped launch", "reference", "copy", "dot", "dots", "sums", "pack",
        "conv", "control scan", "control switch", "control while",
    )  # fmt: skip
    found = [f"primitive {name}" for name in sorted(PRIMITIVES)]
    found += [f"launch {name}" for name in launches]
    found += [f"node {name}" for name in sorted(NODE_KERNELS)]
    return [*found, *branches()]


def missing_feature(name: str, machine: Any) -> str | None:
    """What a machine lacks that a branch needs; None where the branch can be reached on it."""
    lacking = (need for need in NEEDS if not need.is_there(machine))
    found = (each.feature for each in lacking if any(re.match(p, name) for p in each.patterns))
    return next(found, None)


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of what is to be reached: how much was, what was not, and what cannot be here."""

    reached: int
    unreached: list[str]
    impossible: dict[str, str]
    """What this machine cannot reach, and what it lacks."""

    @property
    def possible(self) -> int:
        """How much can be reached on this machine."""
        return self.reached + len(self.unreached)


def parts(reached: Counter[str]) -> dict[str, Part]:
    """What was reached of each kind, but for what no program is expected to reach."""
    from weft.compiler.targets.cpu.machine import host

    found = {}
    every = [name for name in expected() if not any(re.match(p, name) for p in ELSEWHERE)]
    for kind in ("primitive", "launch", "node", "branch"):
        named = [name for name in every if name.split()[0] == kind]
        missed = [name for name in named if not reached[name]]
        lacking = {name: missing_feature(name, host()) for name in missed}
        found[kind] = Part(
            len(named) - len(missed),
            [name for name, feature in lacking.items() if feature is None],
            {name: feature for name, feature in lacking.items() if feature is not None},
        )
    return found


def summary(reached: Counter[str]) -> dict[str, Any]:
    """The same as data that can be written to a file."""
    kinds = parts(reached)
    numbers = {kind: [part.reached, part.possible] for kind, part in kinds.items()}
    return {
        "machine": _machine(),
        "reached": numbers,
        "unreached": [name for part in kinds.values() for name in part.unreached],
        "impossible": {name: why for p in kinds.values() for name, why in p.impossible.items()},
    }


def report(reached: Counter[str]) -> str:
    """How much was reached, what this machine cannot reach and why, and all else that was not."""
    lines, kinds = [], parts(reached)
    for kind, part in kinds.items():
        lines.append(f"{kind}: {part.reached} of {part.possible} reached")
        lines += [f"  not reached: {name}" for name in part.unreached]
        lines += [
            f"  cannot occur on this machine, needs {feature}: {name}"
            for name, feature in part.impossible.items()
        ]
    left = sum(len(part.unreached) for part in kinds.values())
    seen = sorted({name for name in reached if name.startswith("launch ")})
    seen_launches = "seen: " + ", ".join(seen)
    return "\n".join([*lines, seen_launches, _machine(), f"unreached: {left or 'none'}"])


def _machine() -> str:
    from weft.compiler.targets.cpu.machine import host, level_of

    return f"machine: {host().processor}, {level_of(host())}"
