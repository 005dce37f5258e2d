"""Write docs/reference/generated: a page for each public module, from the docstrings.

The names are those of `__all__` of `weft` and of the modules that it lists, and what a module
without such a list defines. `make docs` makes the pages; they are not kept in the repository.

    python docs/generate_reference.py
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from reference_facts import facts

import weft as wf

FOLDER = Path(__file__).parent / "reference" / "generated"

# The names of `wf` itself, by the modules that define them; the last page takes the rest.
THEMES: dict[str, tuple[str, ...]] = {
    "Tensors, dtypes and devices": (
        "weft.ir.tensor", "weft.core.d", "weft.core.types", "weft.ops.placement",
        "weft.ops.conversion", "weft.ops.composed.datatypes",
    ),
    "Making tensors": ("weft.ops.composed.creation", "weft.ops.composed.ingestion"),
    "Element by element": (
        "weft.ops.arithmetic", "weft.ops.elementary", "weft.ops.comparison", "weft.ops.logic",
        "weft.ops.special", "weft.ops.selection", "weft.ops.composed.elementwise",
    ),
    "Sums and statistics": ("weft.ops.composed.statistics",),
    "Products and convolutions": (
        "weft.ops.composed.products", "weft.ops.composed.convolutions",
        "weft.ops.composed.attention",
    ),
    "Shapes, indices and order": ("weft.ops.composed.",),
    "Control flow": ("weft.ops.composed.control", "weft.script"),
    "Activations, pooling and resizing": (
        "weft.ops.composed.neural", "weft.ops.composed.pooling",
        "weft.ops.composed.interpolation",
    ),
    "Derivatives and transforms": ("weft.transforms", "weft.ops.identity", "weft.ir.autocast"),
    "Annotated shapes": ("weft.transforms.checked",),
    "Compiling and looking inside": ("weft.compiler",),
    "Graphs and sessions": ("weft.graph",),
    "Errors": ("weft.core.errors",),
    "Constants, settings, files and the rest": ("",),
}  # fmt: skip
CODE = re.compile(r"(`+[^`]+`+)")
SPECIAL = re.compile(r"([\\*_\[\]<>${}|~^])")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Page(NamedTuple):
    """One page of the reference: names of one module, as `prefix.name`."""

    title: str
    prefix: str
    module: ModuleType
    names: list[str]


def public_names(module: ModuleType) -> list[str]:
    """What a module offers: its list, or what it defines itself."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(set(listed))
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    )


def public_modules() -> dict[str, ModuleType]:
    """The public modules by the name that users write: wf, wf.nn, wf.nn.functional and others."""
    modules: dict[str, ModuleType] = {}

    def add(prefix: str, module: ModuleType) -> None:
        modules[prefix] = module
        for name in public_names(module):
            value = getattr(module, name)
            if isinstance(value, ModuleType) and value.__name__.startswith("weft"):
                add(f"{prefix}.{name}", value)

    add("wf", wf)
    return modules


def pages() -> list[Page]:
    """All pages of the reference, those of `wf` itself first."""
    listing = []
    for prefix, module in public_modules().items():
        names = [
            name for name in public_names(module) if not inspect.ismodule(getattr(module, name))
        ]
        if module is wf:
            listing += _themes(names)
        elif names:
            listing.append(Page(prefix, prefix, module, names))
    return listing


def _themes(names: list[str]) -> list[Page]:
    by_theme: dict[str, list[str]] = {title: [] for title in THEMES}
    for name in names:
        by_theme[_theme(name)].append(name)
    return [Page(f"wf: {title}", "wf", wf, found) for title, found in by_theme.items() if found]


def _theme(name: str) -> str:
    """The theme whose entry is the longest beginning of the name of the defining module."""
    value = getattr(wf, name)
    home = str(getattr(inspect.unwrap(value) if callable(value) else value, "__module__", ""))
    if hasattr(value, "primitive") and not home.startswith("weft."):
        home = "weft.ops.elementary"  # element-wise functions are made by their family
    fits = [
        (len(start), title)
        for title, starts in THEMES.items()
        for start in starts
        if home.startswith(start)
    ]
    return max(fits)[1]


def render(page: Page, with_facts: bool = True) -> str:
    """One page as Markdown for Sphinx."""
    introduction = markdown(inspect.getdoc(page.module) or "") if page.module is not wf else ""
    entries = [entry(page, name, with_facts) for name in page.names]
    return "\n\n".join([f"# {page.title}", introduction, *entries]) + "\n"


def entry(page: Page, name: str, with_facts: bool) -> str:
    """One public name: its signature, its docstring, and what is known about it."""
    value, full = getattr(page.module, name), f"{page.prefix}.{name}"
    if inspect.isclass(value):
        body = "\n\n".join(_class_parts(value, _twin_text(page, name)))
        return _directive("class", full + signature_text(value), body, ticks=7)
    if callable(value):
        said = facts(page.module, name, value) if with_facts else []
        body = [markdown(inspect.getdoc(value) or ""), " ".join(said)]
        return _directive("function", full + signature_text(value), "\n\n".join(body))
    return _directive("data", full, _data_body(value))


def _data_body(value: Any) -> str:
    shown = ADDRESS.sub("", repr(value))
    doc = inspect.getdoc(value) if type(value).__module__.startswith("weft") else ""
    shown = shown if len(shown) <= 300 else f"{shown[:300]} …"
    return f"```text\n{shown}\n```\n\n{markdown(doc or '')}"


def _twin_text(page: Page, name: str) -> str:
    """Where the function of a layer is: `MSELoss` is `mse_loss` of `wf.nn.functional`."""
    if page.prefix != "wf.nn":
        return ""
    twins = {each.replace("_", ""): each for each in public_names(wf.nn.functional)}
    twin = twins.get(name.lower())
    return f"As a function: {{py:func}}`wf.nn.functional.{twin}`." if twin else ""


def _class_parts(value: type, more: str) -> Iterator[str]:
    """The docstring of a class, what else is said, and the methods that it defines itself."""
    yield from (markdown(inspect.getdoc(value) or ""), more)
    for name, member in sorted(vars(value).items()):
        doc = inspect.getdoc(member)
        if name.startswith("_") or not doc or doc.startswith("See ") or not _is_own(value, name):
            continue
        if isinstance(member, property) or inspect.isdatadescriptor(member):
            yield _directive("property", name, markdown(doc))
        elif isinstance(member, classmethod | staticmethod) or callable(member):
            text = signature_text(getattr(value, name), skip_first=inspect.isfunction(member))
            yield _directive("method", name + text, markdown(doc))


def _is_own(value: type, name: str) -> bool:
    """Whether a docstring is this member's own, and not that of its type or of a base class."""
    member, base = vars(value)[name], getattr(super(value, value), name, None)
    is_held = isinstance(member, staticmethod) or issubclass(value, wf.nn.Module)
    if is_held and getattr(member, "__name__", name) != name:
        return False  # a function of another name, which stands in its own place
    return inspect.getdoc(member) not in {inspect.getdoc(type(member)), inspect.getdoc(base)}


def _directive(kind: str, head: str, body: str, ticks: int = 5) -> str:
    fence = "`" * ticks
    return f"{fence}{{py:{kind}}} {head}\n\n{body.strip()}\n{fence}"


def signature_text(function: Callable[..., Any], skip_first: bool = False) -> str:
    """Names, kinds, types and defaults of the arguments, with types as they were written."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return "()"
    parameters = list(signature.parameters.values())[1 if skip_first else 0 :]
    plain = [each.replace(**_plain(each)) for each in parameters]
    text = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return " ".join(text.split())


def _plain(parameter: inspect.Parameter) -> dict[str, Any]:
    """The annotation without quotes, and a default that can be read."""
    annotation, default = parameter.annotation, parameter.default
    if isinstance(annotation, str):
        annotation = _Text(annotation) if annotation != "Any" else inspect.Parameter.empty
    if default is not inspect.Parameter.empty and repr(default).startswith("<"):
        default = _Text("...")
    return {"annotation": annotation, "default": default}


class _Text:
    """A text that shows itself without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def markdown(doc: str) -> str:
    """A docstring as Markdown: prose with what is special escaped, examples as blocks of code."""
    return "\n".join(_markdown_lines(doc.splitlines()))


def _markdown_lines(lines: list[str]) -> Iterator[str]:
    fence = ""
    for line in lines:
        if not fence and line.lstrip().startswith(">>>"):
            fence = "```pycon"
        elif not fence and line.startswith("    "):
            fence = "```text"
        elif fence and not (line.strip() if "pycon" in fence else line.startswith("    ")):
            fence = ""
            yield "```\n"
        if not fence:
            yield _prose(line)
            continue
        if fence in {"```pycon", "```text"}:
            yield f"\n{fence}"
            fence += " "
        shown = line.removeprefix("    ") if "text" in fence else line
        code = re.sub(r"\s*# doctest:.*", "", shown)
        yield "" if code.strip() == "<BLANKLINE>" else code
    if fence:
        yield "```"


def _prose(line: str) -> str:
    """A line of a docstring with everything escaped that Markdown would read."""
    parts = CODE.split(line)
    plain = [part if i % 2 else SPECIAL.sub(r"\\\1", part) for i, part in enumerate(parts)]
    text = "".join(plain)
    return re.sub(r"^(\s*)([#+=]|\d+[.)] )", r"\1\\\2", text)


def page_name(page: Page) -> str:
    """The name of a page's file, which is its address on the site."""
    return re.sub(r"[^a-z0-9]+", "_", page.title.lower()).strip("_")


def main() -> None:
    """Write all pages anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    listing = pages()
    for page in listing:
        (FOLDER / f"{page_name(page)}.md").write_text(render(page), encoding="utf-8")
    order = "\n".join(page_name(page) for page in listing)
    (FOLDER / "order.txt").write_text(f"{order}\n", encoding="utf-8")
    print(f"{FOLDER}: {len(listing)} pages, {sum(len(page.names) for page in listing)} names")


if __name__ == "__main__":
    main()
