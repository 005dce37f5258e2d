"""The shape of the library, read from its syntax trees: layers, cycles, names, sizes, import time.

The table `MAY_IMPORT` is the one place that says which layer may import which. Each check is a
function from modules to a list of faults, so that each is tested on a fault made on purpose.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path

import pytest
from tests.naming import is_bare

import weft
import weft.compiler.pipeline  # which has primitives of its own
from weft.ir.primitive import PRIMITIVES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

# Layer -> the layers it may import beside itself. The facade is `weft/*.py`: the public API.
FACADE = "facade"
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "runtime": {"core"},
    "ir": {"core"},
    "ops": {"core", "ir"},
    "transforms": {"core", "ir", "ops"},
    "compiler": {"core", "runtime", "ir", "ops"},
    "script": {"core", "ir", "ops", "transforms"},
    FACADE: {"core", "runtime", "ir", "ops", "transforms", "compiler"},
}
# What users work with: each may import the facade and the others of its kind, nothing underneath.
SURFACE = {
    "nn", "optim", "data", "train", "graph", "distributed", "deploy", "tools", "models", "cli",
    "config", "estimators", "onnx",
}  # fmt: skip
MAY_IMPORT |= {name: {FACADE, *SURFACE} - {name} for name in SURFACE}

# The compiler's own table: folder -> the folders of the compiler it may import beside itself.
# `target` is the interface in targets/target.py. No stage imports a target, and no target another;
# what a machine knows is asked of the target that a program is made for.
# `limits` is targets/limits.py: the numbers of a machine, as a record without code.
PASSES, TARGET = {"graph_passes", "target", "limits"}, {"target", "limits"}
STAGES: dict[str, set[str]] = {
    "limits": set(),
    "target": {"graph_passes", "plan", "limits"},  # the first two for the type checker alone
    "graph_passes": {"fusion", "lowering", *TARGET},
    "pipeline": PASSES,
    "fusion": {"limits"},
    "lowering": {"fusion", "limits"},
    "plan": {"fusion", "lowering", "pipeline", *PASSES},
    "memory_budget": {"fusion", "lowering", "pipeline", "report", *TARGET},
    "report": {"fusion", "lowering", "pipeline", "plan", "function", *TARGET},
    "function": {"fusion", "graph_passes", "memory_budget", "plan", "report", *TARGET},
    # the one place behind targets: it writes plans for other machines as files
    "export": {"function", "plan", "targets.cpu", "targets.llvm", "targets.plain", *TARGET},
    "targets.llvm": set(),  # what the processor and cards share: LLVM's text of kernels
    "targets.cpu": {"fusion", "lowering", "graph_passes", "plan", "targets.llvm", *TARGET},
    "targets.plain": {"plan", *TARGET},
    "targets.cuda": {"fusion", "lowering", "graph_passes", "plan", "targets.llvm", *TARGET},
}

# Where the names of primitives mean something else: scalar instructions, and what users call.
OTHER_NAMES = {
    "weft.ir.scalars": "the vocabulary of scalar instructions",
    "weft.ir.loop_reference": "operators of scalar instructions",
    "weft.compiler.targets.llvm": "tables over scalar instructions",
    "weft.compiler.targets.cpu.engine": "functions of the C library",
    "weft.compiler.export.c_kernels": "tables over scalar instructions",
    "weft.compiler.targets.cuda": "tables over scalar instructions",
    "weft.core.foreign": "names of other libraries",
    "weft.transforms.methods": "methods of tensors",
    "weft.transforms.numpy_functions": "functions of NumPy",
    "weft.transforms.torch_methods": "methods of tensors",
    "weft.nn.init": "activations, by name",
    "weft.nn.functional.activations": "activations, by name",
}
# Functions that are still named by a bare participle or the like: these numbers only go down.
BARE_NAMES = {"compiler": 8, "core": 1, "onnx": 1, "ops": 1}
# Numbers of the compiler's stages that are no machine's, by module and why. All others stand in
# the `Limits` of a target.
NO_MACHINES_NUMBERS: dict[str, dict[str, set[str]]] = {
    "a bound on the compiler's own work or memory": {
        "function.arguments": {"PROGRAMS"},
        "function.changing_values": {"MANY"},
        "function.closures": {"DEPTH"},
        "function.fastcall.repeated_calls": {"PATIENCE", "RENEWAL"},
        "function.jit": {"FACTORS", "IDENTITIES"},
        "function.plain_values": {"DEEPEST", "FEW", "MANY"},
        "function.program_cache": {"DRAFTS", "KEPT"},
        "function.split_program": {"KEPT"},
        "function.units": {"OWN_SIZES"},
        "fusion.grouping": {"DEEPEST", "NEIGHBOURS", "NESTED"},
        "graph_passes.attention.causal": {"_LARGEST"},
        "graph_passes.attention.polynomials": {"MOST"},
        "graph_passes.common_subexpressions": {"_COMPARED"},
        "graph_passes.folding": {"SMALL", "_CHEAP"},
        "pipeline": {"ROUNDS"},
    },
    "how far, and how long, is searched": {
        "memory_budget.candidates": {
            "APART", "FARTHEST", "LENGTHS", "NEAREST", "PATIENCE", "PRUNED", "SHORTER", "SMALL",
        },
        "memory_budget.model": {"WAIT"},
        "memory_budget.search": {
            "ATTEMPTS", "CLOSE", "EXPLORED", "HOPELESS", "NOTES", "REFINED", "ROUNDS", "USUAL",
        },
        "plan.column_sums": {"NEAR"},
        "plan.schedule": {"WINDOW"},
    },
    "rounding, and the formats of numbers and arrays": {
        "function.donation": {"_PLAIN"},
        "fusion.long_sums": {"BLOCK", "SERIAL_BLOCK"},
        "graph_passes.attention.sites": {"HIDDEN"},
        "graph_passes.complex_numbers.functions": {"FAR"},
        "graph_passes.complex_numbers.split": {"LARGE_POWER"},
        "graph_passes.folding": {"_EXACT"},
        "graph_passes.laws.conversions": {"_DIGITS"},
        "graph_passes.laws.reductions": {"LONG"},
        "graph_passes.user_rules": {"STEPS", "TRIALS"},
        "lowering.nodes.attention": {"LOWEST"},
    },
    "units, and what parameters mean": {
        "fusion.grouping": {"LOOP"},
        "graph_passes.attention.masks": {"COMPUTED"},
        "graph_passes.channels_last_primitives": {"PLAIN"},
        "graph_passes.user_rules": {"SHAPES"},
        "memory_budget.search": {"RELEASED", "_UNITS"},
    },
    "what is asked of users, or assumed of programs": {
        "fusion.costs": {"USUAL_SIZE"},
        "lowering.matrix_products": {"UNKNOWN"},
        "plan.horizontal_fusion": {"USUAL"},
        "plan.schedule": {"SLACK", "TOLERATED"},
    },
    "the formats of exported programs, and how they are tried": {
        "export.archive": {"_HEAD"},
        "export.c_kernels": {"DEEPEST"},
        "export.checking": {"RUNS", "TOLERANCE"},
        "export.fused": {"SPLIT"},
        "export.layout": {"ERROR", "GROWN", "HELD", "SCRATCH", "WEIGHTS", "WHOLE", "WORK"},
        "export.linking": {"LIMIT", "STACK"},
        "export.sizes": {"MOST_CHOICES", "_DEGREE", "_SAMPLES"},
        "export.threads": {
            "MOST_THREADS", "POOL_BYTES", "RECORD_BYTES", "_PATIENT", "_WATCHED",
        },
    },
    "how much a report says": {
        "memory_budget.search": {"NAMED"},
        "report.explain": {"LISTED"},
        "report.memory_use": {"BAR", "CHARTED", "LISTED", "NAME"},
        "report.notebook": {"LISTED"},
    },
}  # fmt: skip
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "impl"}
MARKER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
LONGEST_FILE = 600
LONGEST_FUNCTION = 60
LONGEST_IMPORT_SECONDS = 0.25
USUAL_NUMPY_SECONDS = 0.13

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """One imported name: `target` is dotted and absolute; `lazy` stands inside a function."""

    target: str
    line: int
    lazy: bool
    typing_only: bool

    @property
    def name(self) -> str:
        return self.target.rpartition(".")[2]


@dataclass(frozen=True)
class Module:
    """One source file of the library, under its dotted name."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def layer(self) -> str:
        """The folder under `weft` that holds the module, or the facade."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 2 or (self.is_package and len(parts) == 2) else FACADE

    @cached_property
    def imports(self) -> list[Import]:
        return list(self._imports(self.tree, lazy=False, typing_only=False))

    @cached_property
    def exports(self) -> set[str]:
        """The names that the module lists in `__all__`."""
        lists = [node.value for node in self.tree.body if _is_public_list(node)]
        return {
            part.value
            for listed in lists
            for part in ast.walk(listed)
            if isinstance(part, ast.Constant)
        }

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in _statements(self.tree) if isinstance(node, Function)]

    def _imports(self, parent: ast.AST, lazy: bool, typing_only: bool) -> Iterator[Import]:
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for target in self._targets(node):
                    yield Import(target, node.lineno, lazy, typing_only)
            elif not isinstance(node, ast.expr):  # most of a file, and no import is in there
                inside = lazy or isinstance(node, Function)
                yield from self._imports(node, inside, typing_only or _is_typing_block(node))

    def _targets(self, node: ast.Import | ast.ImportFrom) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        parts = self.name.split(".")
        package = parts if self.is_package else parts[:-1]
        anchor = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*anchor, node.module] if node.module else anchor)
        return [f"{base}.{alias.name}" for alias in node.names]


def _statements(parent: ast.AST) -> Iterator[ast.AST]:
    """What a node holds at any depth, without expressions."""
    for node in ast.iter_child_nodes(parent):
        if not isinstance(node, ast.expr):
            yield node
            yield from _statements(node)


def _is_typing_block(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


@cache  # to parse all of it takes seconds
def read_library() -> list[Module]:
    gc.disable()  # millions of nodes, which all stay: to look for cycles takes as long again
    try:
        library = [_read_module(path) for path in sorted((SOURCE / "weft").rglob("*.py"))]
        assert all(module.tree for module in library)
    finally:
        gc.freeze()
        gc.enable()
    return library


def _read_module(path: Path) -> Module:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    return Module(name, path.read_text(encoding="utf-8"), is_package)


def _requirements(entries: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", entry)[0].replace("-", "_").lower() for entry in entries}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIRED = _requirements(PROJECT["dependencies"])
OPTIONAL = _requirements([*chain(*PROJECT["optional-dependencies"].values())]) - REQUIRED


# The checks: each takes the library's modules and returns its faults, one line each.


def layer_faults(library: list[Module]) -> list[str]:
    """Imports that the table does not allow; what is only for the type checker counts too."""
    by_name = {module.name: module for module in library}
    faults = [
        f"{module.name}: its folder {module.layer} is not in the table of layers"
        for module in library
        if module.layer not in MAY_IMPORT
    ]
    for module in library:
        allowed = {module.layer, *MAY_IMPORT.get(module.layer, set())}
        for entry in module.imports:
            target = _resolve(entry.target, by_name)
            is_typing_facade = module.layer == FACADE and entry.typing_only
            if target and by_name[target].layer not in allowed and not is_typing_facade:
                faults.append(f"{module.name}:{entry.line} imports {target}")
    return faults


def stage_of(name: str) -> str | None:
    """The compiler's folder that holds a module; None for the rest of the library."""
    parts = name.split(".")
    if parts[:2] != ["weft", "compiler"] or len(parts) == 2:
        return None
    if parts[2] != "targets":
        return parts[2]
    if len(parts) > 3 and parts[3] == "limits":
        return "limits"
    return "target" if len(parts) < 4 or parts[3] == "target" else f"targets.{parts[3]}"


def stage_faults(library: list[Module]) -> list[str]:
    """Imports inside the compiler that its table does not allow."""
    by_name = {module.name: module for module in library}
    faults = []
    for module in library:
        stage = stage_of(module.name)
        if stage is None:
            continue
        if stage not in STAGES:
            faults.append(f"{module.name}: its folder {stage} is not in the table of stages")
            continue
        for entry in module.imports:
            target = _resolve(entry.target, by_name)
            other = stage_of(target) if target else None
            if other is not None and other not in {stage, *STAGES[stage]}:
                faults.append(f"{module.name}:{entry.line} imports {target}")
    return faults


def surface_faults(library: list[Module]) -> list[str]:
    """Names that layer 5 takes from `weft` though they are not in its `__all__`."""
    public = {*weft.__all__, *SURFACE}
    faults = []
    for module in library:
        if module.layer not in SURFACE:
            continue
        aliases = _names_of_weft(module)
        used = {
            (node.attr, node.lineno)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in aliases
        }
        used |= {
            (entry.target.removeprefix("weft."), entry.line)
            for entry in module.imports
            if re.fullmatch(r"weft\.\w+", entry.target)
        }
        private = sorted((line, name) for name, line in used if name not in public)
        faults += [f"{module.name}:{line} uses weft.{name}" for line, name in private]
    return faults


def cycle_faults(library: list[Module]) -> list[str]:
    """Modules that import themselves by way of others, at run time."""
    by_name = {module.name: module for module in library}
    edges = {
        module.name: {
            target
            for entry in module.imports
            if not entry.typing_only
            and (target := _resolve(entry.target, by_name))
            and target != module.name
        }
        for module in library
    }
    return sorted(name for name in edges if name in _reachable(name, edges))


def third_party_faults(library: list[Module]) -> list[str]:
    """Imports of packages that the project does not require, or does not even name as optional."""
    known = {"weft", "__future__", *sys.stdlib_module_names}
    faults = []
    for module in library:
        for entry in module.imports:
            package = entry.target.split(".")[0]
            allowed = REQUIRED | OPTIONAL if entry.lazy or entry.typing_only else REQUIRED
            if package not in known | allowed:
                faults.append(f"{module.name}:{entry.line} imports {package}")
    return faults


def local_import_faults(library: list[Module]) -> list[str]:
    """Imports inside functions of anything but an optional dependency."""
    return [
        f"{module.name}:{entry.line} imports {entry.target} inside a function"
        for module in library
        for entry in module.imports
        if entry.lazy and entry.target.split(".")[0] not in OPTIONAL
    ]


def name_faults(library: list[Module]) -> list[str]:
    """Modules whose name says nothing."""
    return [
        module.name
        for module in library
        if FORBIDDEN_NAMES & set(module.name.strip("_").split("."))
    ]


def bare_name_faults(library: list[Module]) -> list[str]:
    """Folders with more functions than allowed that are named by a bare participle or the like.

    What a module or a package exports in `__all__` is left alone, with the methods users may call.
    """
    public = {f"{module.name}.{name}" for module in library for name in module.exports}
    for module in library:
        public |= {entry.target for entry in module.imports if entry.name in module.exports}
    bare: dict[str, set[str]] = {}
    for module in library:
        for path, owner in _function_paths(module.tree):
            if is_bare(path.rpartition(".")[2]) and f"{module.name}.{owner}" not in public:
                bare.setdefault(module.layer, set()).add(f"{module.name}.{path}")
    return [
        f"{layer}: {len(paths)} instead of {BARE_NAMES.get(layer, 0)}: {', '.join(sorted(paths))}"
        for layer, paths in bare.items()
        if len(paths) > BARE_NAMES.get(layer, 0)
    ]


def annotation_faults(library: list[Module]) -> list[str]:
    """Functions with a parameter or a result that has no type."""
    return [
        f"{module.name}:{function.lineno} {function.name}"
        for module in library
        for function in module.functions
        if function.returns is None or not all(map(_is_annotated, _parameters(function)))
    ]


def size_faults(library: list[Module]) -> list[str]:
    """Files and functions too long to be read in one go."""
    faults = []
    for module in library:
        lines = len(module.text.splitlines())
        if lines > LONGEST_FILE:
            faults.append(f"{module.name}: {lines} lines")
        for function in module.functions:
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            if length > LONGEST_FUNCTION:
                faults.append(f"{module.name}:{function.lineno} {function.name}: {length} lines")
    return faults


def primitive_list_faults(library: list[Module]) -> list[str]:
    """Lists of primitives outside of `ops`: what is true of a primitive stands in its definition.

    A law about one primitive, or two, names them; three in a collection are a list that drifts.
    """
    faults = []
    for module in library:
        if module.layer == "ops" or module.name.startswith(tuple(OTHER_NAMES)):
            continue
        nodes = [*ast.walk(module.tree)]
        public = {id(node.value) for node in nodes if _is_public_list(node)}
        for node in nodes:
            named = _primitives_in(node) if id(node) not in public else []
            if len(named) >= 3:
                line = getattr(node, "lineno", 0)
                faults.append(f"{module.name}:{line} lists {', '.join(sorted(named))}")
    return faults


def machine_number_faults(library: list[Module]) -> list[str]:
    """Numbers of a stage that no list says are no machine's: they belong to the target's limits."""
    allowed: dict[str, set[str]] = {}
    for modules in NO_MACHINES_NUMBERS.values():
        for name, constants in modules.items():
            allowed.setdefault(f"weft.compiler.{name}", set()).update(constants)
    return [
        f"{module.name}:{line} {name}"
        for module in library
        if (stage := stage_of(module.name)) and not stage.startswith(("target", "limits"))
        for name, line in _numeric_constants(module)
        if name not in allowed.get(module.name, set())
    ]


def _numeric_constants(module: Module) -> Iterator[tuple[str, int]]:
    """The names that a module or a class gives to numbers, or to collections of numbers."""
    bodies = [module.tree.body]
    bodies += [node.body for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
    for node in chain(*bodies):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
        if _holds_numbers(value):
            yield from ((name, node.lineno) for name in names if name.isupper())


def _holds_numbers(node: ast.expr) -> bool:
    """Whether an expression is a number, computed from numbers, or a collection with some."""
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.UnaryOp):
        return _holds_numbers(node.operand)
    if isinstance(node, ast.BinOp):
        return _holds_numbers(node.left) or _holds_numbers(node.right)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(_holds_numbers, node.elts))
    return isinstance(node, ast.Dict) and any(map(_holds_numbers, node.values))


def marker_faults(library: list[Module]) -> list[str]:
    """Promises left in the code."""
    return [
        f"{module.name}:{number} {line.strip()}"
        for module in library
        for number, line in enumerate(module.text.splitlines(), 1)
        if MARKER.search(line)
    ]


def _function_paths(parent: ast.AST, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Functions as `function`, `Class.method` and `outer.inner`, and what users know them by.

    That is the class for a method without an underscore, and the function itself for any other.
    """
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, Function):
            is_method = isinstance(parent, ast.ClassDef) and not node.name.startswith("_")
            path = prefix + node.name
            yield path, prefix.rstrip(".") if is_method else path
        inner = isinstance(node, Function | ast.ClassDef)
        yield from _function_paths(node, f"{prefix}{node.name}." if inner else prefix)


def _is_public_list(node: ast.AST) -> bool:
    """Whether a node says what a module's users may import."""
    return isinstance(node, ast.Assign) and "__all__" in map(ast.unparse, node.targets)


def _primitives_in(node: ast.AST) -> set[str]:
    """The primitives that a list, tuple or set holds, or that a dictionary is looked up by."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        parts: list[ast.expr] = node.elts
    elif isinstance(node, ast.Dict):
        parts = [key for key in node.keys if key is not None]
    else:
        return set()
    return {label for part in parts if (label := _label(part)) in PRIMITIVES}


def _label(node: ast.expr) -> str:
    """What an expression may name a primitive by: a text, a name, an attribute, or a look-up."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return node.id.rstrip("_")
    if isinstance(node, ast.Attribute):
        return _label(node.value) if node.attr == "primitive" else node.attr.rstrip("_")
    if isinstance(node, ast.Subscript):
        return _label(node.slice)
    return _label(node.args[0]) if isinstance(node, ast.Call) and len(node.args) == 1 else ""


def _resolve(target: str, by_name: dict[str, Module]) -> str | None:
    """The library's module that an imported name is, or is in; None for a foreign name."""
    while target and target not in by_name:
        target = target.rpartition(".")[0]
    return target or None


def _reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(edges[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(edges[name])
    return seen


def _parameters(function: Function) -> list[ast.arg]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    if positional and positional[0].arg in ("self", "cls"):
        positional = positional[1:]
    starred = [argument for argument in (arguments.vararg, arguments.kwarg) if argument]
    return [*positional, *arguments.kwonlyargs, *starred]


def _is_annotated(argument: ast.arg) -> bool:
    return argument.annotation is not None


def _names_of_weft(module: Module) -> set[str]:
    return {
        alias.asname or alias.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "weft"
    }


Check = Callable[[list[Module]], list[str]]
CHECKS: list[Check] = [
    layer_faults,
    stage_faults,
    surface_faults,
    cycle_faults,
    third_party_faults,
    local_import_faults,
    name_faults,
    bare_name_faults,
    annotation_faults,
    size_faults,
    marker_faults,
    primitive_list_faults,
    machine_number_faults,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_library_has_no(check: Check) -> None:
    assert check(read_library()) == []


def test_every_number_that_is_no_machines_is_still_there() -> None:
    present = {
        f"{module.name.removeprefix('weft.compiler.')}.{name}"
        for module in read_library()
        for name, _ in _numeric_constants(module)
    }
    listed = [
        f"{module}.{name}"
        for modules in NO_MACHINES_NUMBERS.values()
        for module, names in modules.items()
        for name in names
    ]
    assert [name for name in listed if name not in present] == []
    assert len(listed) == len(set(listed))


# One wrong library per check, so that a check that sees nothing does not pass for a clean library.


def library_of(**texts: str) -> list[Module]:
    """Modules by dotted name under `weft`, with `_` for the dots, beside a facade."""
    modules = [Module("weft", "", is_package=True)]
    modules += [Module(f"weft.{name.replace('_', '.')}", text) for name, text in texts.items()]
    return modules


FAULTS: list[tuple[Check, list[Module]]] = [
    (layer_faults, library_of(core_shapes="from weft.ops import add", ops_add="")),
    (layer_faults, library_of(core_shapes="from ..ops import add", ops_add="")),
    (layer_faults, library_of(ir_graph="import weft")),
    (layer_faults, library_of(transforms_vmap="import weft.compiler.jit", compiler_jit="")),
    (layer_faults, library_of(nn_linear="from weft.ops.add import add", ops_add="")),
    (layer_faults, library_of(kernels_add="")),
    (
        stage_faults,
        library_of(compiler_plan_a="import weft.compiler.targets.cpu.b", compiler_targets_cpu_b=""),
    ),
    (
        stage_faults,
        library_of(
            compiler_targets_cuda_a="import weft.compiler.targets.cpu.b", compiler_targets_cpu_b=""
        ),
    ),
    (stage_faults, library_of(compiler_fusion_a="import weft.compiler.plan.b", compiler_plan_b="")),
    (stage_faults, library_of(compiler_drawer_a="")),
    (surface_faults, library_of(nn_linear="import weft as wf\nwf._tape")),
    (surface_faults, library_of(nn_linear="from weft import registry")),
    (cycle_faults, library_of(ir_a="import weft.ir.b", ir_b="from weft.ir import a")),
    (cycle_faults, library_of(ir_a="import weft.ir.b", ir_b="def f():\n    import weft.ir.a")),
    (third_party_faults, library_of(core_shapes="import torch")),
    (third_party_faults, library_of(core_shapes="def f():\n    import unheard_of")),
    (local_import_faults, library_of(core_shapes="def f():\n    import math")),
    (name_faults, library_of(core_utils="")),
    (bare_name_faults, library_of(nn_a="def joined(): ...")),
    (bare_name_faults, library_of(nn_a="class A:\n    def within(self): ...")),
    (bare_name_faults, library_of(nn_a='__all__ = ["f"]\ndef f():\n    def made(): ...')),
    (bare_name_faults, library_of(nn_a='__all__ = ["A"]\nclass A:\n    def _made(self): ...')),
    (annotation_faults, library_of(core_shapes="def f(x): ...")),
    (annotation_faults, library_of(core_shapes="def f(*, x) -> int: ...")),
    (annotation_faults, library_of(core_shapes="def f(**options) -> int: ...")),
    (size_faults, library_of(core_shapes="x = 1\n" * 601)),
    (size_faults, library_of(core_shapes="def f() -> None:\n" + "    f()\n" * 60)),
    (marker_faults, library_of(core_shapes="x = 1  # TODO: y")),
    (primitive_list_faults, library_of(compiler_fuse='x = {"reduce_sum", "reduce_max", "dot"}')),
    (primitive_list_faults, library_of(compiler_fuse='x = {"exp": 1, "sin": 2, "tanh": 3}')),
    (primitive_list_faults, library_of(compiler_fuse="if node in (conv, dot, while_):\n    f()")),
    (primitive_list_faults, library_of(tools_look='x = [find("exp"), ops.sin, P["tanh"]]')),
    (primitive_list_faults, library_of(ir_walk="x = (exp.primitive, sin.primitive, pad, 1)")),
    (machine_number_faults, library_of(compiler_fusion_tiles="ROW = 32 * 1024")),
    (machine_number_faults, library_of(compiler_plan_blocks="LEAST, MOST = 24, 96")),
    (machine_number_faults, library_of(compiler_lowering_sums="class Writer:\n    LANES = 16")),
    (machine_number_faults, library_of(compiler_plan_rates="RATES: dict = {'bytes': 6e9}")),
]


@pytest.mark.parametrize(
    ("check", "library"),
    FAULTS,
    ids=[f"{check.__name__}-{i}" for i, (check, _) in enumerate(FAULTS)],
)
def test_an_injected_fault_is_seen(check: Check, library: list[Module]) -> None:
    assert len(check(library)) > 0


FINE: list[tuple[Check, list[Module]]] = [
    (layer_faults, library_of(ops_add="from weft.core import shapes", core_shapes="")),
    (
        stage_faults,
        library_of(compiler_lowering_a="import weft.compiler.fusion.b", compiler_fusion_b=""),
    ),
    (surface_faults, library_of(nn_linear="import weft as wf\nwf.tensor\nfrom weft import tensor")),
    (cycle_faults, library_of(ir_a="import weft.ir.b", ir_b="import weft.ir.c", ir_c="")),
    (
        cycle_faults,
        library_of(ir_a="import weft.ir.b", ir_b="if TYPE_CHECKING:\n    import weft.ir.a"),
    ),
    (local_import_faults, library_of(core_shapes="def f():\n    import torch")),
    (bare_name_faults, library_of(nn_a="def joined_rows(): ...\ndef padding(): ...")),
    (bare_name_faults, library_of(nn_a='__all__ = ["joined"]\ndef joined(): ...')),
    (
        bare_name_faults,
        library_of(
            nn_a="class A:\n    def made(self): ...",
            nn="from weft.nn.a import A\n__all__ = ['A']",
        ),
    ),
    (annotation_faults, library_of(core_shapes="class A:\n    def f(self, x: int) -> int: ...")),
    (primitive_list_faults, library_of(ops_fuse='x = {"reduce_sum", "reduce_max", "dot"}')),
    (primitive_list_faults, library_of(compiler_fuse='x = ("reduce_sum", "reduce_max")')),
    (primitive_list_faults, library_of(nn_all='__all__ = ["relu", "sigmoid", "tanh"]')),
    (machine_number_faults, library_of(compiler_targets_cpu_tiles="ROW = 32 * 1024")),
    (machine_number_faults, library_of(compiler_fusion_names='KINDS = ("sum", "product")')),
]


@pytest.mark.parametrize(
    ("check", "library"), FINE, ids=[f"{check.__name__}-{i}" for i, (check, _) in enumerate(FINE)]
)
def test_what_is_allowed_is_not_a_fault(check: Check, library: list[Module]) -> None:
    assert check(library) == []


# What happens when the package is imported, seen from a fresh interpreter.


def fresh_python(program: str, **environment: str) -> str:
    command = [sys.executable, "-c", program]
    given = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=given).stdout


def test_the_repository_holds_no_folder_that_a_run_left_behind() -> None:
    command = ["git", "ls-tree", "-d", "--name-only", "HEAD"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    folders = {".ci", "benchmarks", "docs", "examples", "scripts", "src", "tests", "tools"}
    assert set(listed.stdout.split()) == folders


def test_importing_weft_imports_nothing_optional() -> None:
    program = "import sys; old = set(sys.modules); import weft; print(*set(sys.modules) - old)"
    imported = {name.split(".")[0] for name in fresh_python(program).split()}
    unexpected = imported - {"weft"} - REQUIRED - sys.stdlib_module_names
    # Extension modules may register private, undotted names of their own.
    assert {name for name in unexpected if not name.startswith("_")} == set()


def test_importing_weft_loads_no_layer_5() -> None:
    loaded = set(fresh_python("import sys, weft; print(*sys.modules)").split())
    assert {name for name in SURFACE if f"weft.{name}" in loaded} == set()


@pytest.mark.slow
def test_importing_weft_takes_under_a_quarter_of_a_second(tmp_path: Path) -> None:
    """Of processor time; on a machine that is slow to import NumPy itself, the limit grows alike.

    Each run is judged by its own NumPy, as others may fill the caches in one and not in the next.
    Compiled modules are kept, as they are for users, whatever the tests are told about them.
    """
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    program = (
        "from time import process_time; start = process_time(); import numpy, ml_dtypes;"
        "middle = process_time(); import weft; print(middle - start, process_time() - start)"
    )
    runs = [tuple(map(float, fresh_python(program, **kept).split())) for _ in range(11)]
    of_limit = [
        whole / (LONGEST_IMPORT_SECONDS * max(1.0, numpy_alone / USUAL_NUMPY_SECONDS))
        for numpy_alone, whole in runs
    ]
    assert min(of_limit) < 1, f"seconds of NumPy, and of all, in each run: {runs}"
