"""Numbers that are given as tensors: followed by derivatives and traces, or refused.

Each parameter of each public function that takes a number gets a tensor without axes. Its
derivative is that of finite differences, or the call is refused with an error of the house; what
is traced gives the values of an eager call, or is refused. Never a constant without a word.

Calls that work are found by trying arguments that fit the annotations, so a new function is walked
without being named here.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.nn import functional, init

Function = Callable[..., Any]
Call = tuple[list[Any], dict[str, Any]]


def public() -> dict[str, Function]:
    """What can be called with tensors and numbers, by name."""
    spaces = {
        "": wf,
        "linalg.": wf.linalg,
        "fft.": wf.fft,
        "random.": wf.random,
        "nn.functional.": functional,
    }
    found = {
        prefix + name: getattr(space, name)
        for prefix, space in spaces.items()
        for name in space.__all__
        if inspect.isfunction(getattr(space, name)) and name not in WITHOUT_NUMBERS
    }
    methods = {n: getattr(wf.Tensor, n) for n in dir(wf.Tensor) if n[0] != "_" and n[-1] != "_"}
    found |= {f"Tensor.{n}": m for n, m in methods.items() if callable(m)}
    layers = {n: getattr(wf.nn, n) for n in wf.nn.__all__ if n not in WITHOUT_NUMBERS}
    found |= {f"nn.{n}": Applied(c) for n, c in layers.items() if is_module(c)}
    initial = {n: f for n, f in vars(init).items() if n[-1:] == "_" and inspect.isfunction(f)}
    found |= {f"nn.init.{name}": partial(made_by, f) for name, f in initial.items()}
    return {name: f for name, f in found.items() if name not in CONSTANT}


def made_by(initialise: Function, *args: Any, **options: Any) -> wf.Tensor:
    """What an initialiser makes of a new tensor."""
    made: wf.Tensor = initialise(wf.zeros((3, 3), dtype="float64"), *args, **options)
    return made


def is_module(each: Any) -> bool:
    return inspect.isclass(each) and issubclass(each, wf.nn.Module)


class Applied:
    """What a layer makes of the first inputs that it takes."""

    def __init__(self, layer: type[wf.nn.Module]) -> None:
        self.layer = layer
        self.inputs: tuple[wf.Tensor, ...] | None = None

    def __call__(self, *args: Any, **options: Any) -> Any:
        layer = self.layer(*args, **options)
        for inputs in INPUTS if self.inputs is None else ():
            if works(layer, list(inputs), {}):
                self.inputs = inputs
                break
        return layer(*self.inputs or ())


WITHOUT_NUMBERS = {
    "no_grad", "enable_grad", "symbol", "is_grad_enabled", "while_loop", "save", "load", "group",
    "global_variables_initializer", "placeholder", "set_num_threads", "get_num_threads", "seed",
    "set_state", "get_state", "reset_default_graph", "timings", "explain", "flops",
}  # fmt: skip
"""What takes no data, may never end, or changes the process."""
CONSTANT = {"stop_gradient", "tensor", "Tensor.detach", "random.beta"}
"""What makes a constant on purpose; and samples drawn by rejection, whose implicit derivative is
not that of one stream of bits."""

_generator = np.random.default_rng(0)


def drawn(*shape: int, low: float = 0.1, high: float = 0.9) -> wf.Tensor:
    return wf.tensor(_generator.uniform(low, high, shape))


LINE, SIGNED, SQUARE = drawn(3), drawn(3, 3, low=-2.0, high=2.0), drawn(3, 3) + 3 * wf.eye(3)
IMAGE, BATCH, PLACES = drawn(1, 2, 6, 6), drawn(2, 4, 3), wf.tensor([0, 1, 2])
TENSORS = [LINE, SIGNED, SQUARE, IMAGE, BATCH, PLACES]
ANYTHING: list[Any] = [LINE, SIGNED, 0.7, 2, (3,), [LINE, LINE], PLACES, SQUARE, BATCH]
SIGNS = wf.tensor([1.0, -1.0, 1.0])
INPUTS = [
    (SIGNED,), (BATCH,), (IMAGE,), (LINE, LINE), (LINE, SIGNS), (SIGNED, PLACES), (SIGNED,) * 2,
    (SIGNED, SQUARE, drawn(3, 3)), (LINE, LINE[::-1], SIGNS), (BATCH,) * 3, (PLACES,),
    (drawn(1, 2, 4, 4, 4),),
]  # fmt: skip
VALUES = (0.4, 1.5, 2.0, 3.0)
STEP = 1e-4


def choices(parameter: inspect.Parameter) -> list[Any]:
    """Arguments that may fit a required parameter, by its annotation."""
    named = str(parameter.annotation)
    if "float" in named:
        return [0.7, LINE]
    if named == "int" or named.startswith("int |"):
        return [2, 1, 3]
    return TENSORS if "Tensor" in named else ANYTHING


def parameters(f: Function) -> list[inspect.Parameter]:
    if isinstance(f, partial):
        return list(inspect.signature(f.args[0]).parameters.values())[1:]
    shown = inspect.signature(f.layer if isinstance(f, Applied) else f)
    return list(shown.parameters.values())


def total(made: Any) -> wf.Tensor | None:
    """A weighted sum of all real and imaginary parts of a result; None where it has none."""
    parts = [x for x in wf.tree.leaves(made) if isinstance(x, wf.Tensor) and x.dtype.is_inexact]
    sums = []
    for number, x in enumerate(parts):
        weights = wf.tensor(np.cos(np.arange(x.size) + number).reshape(x.shape))
        for part in (wf.real(x), wf.imag(x)) if x.dtype.is_complex else (x,):
            sums += [(part.astype("float64") * weights).sum()]
    return wf.stack(sums).sum() if sums else None


def outcome(f: Function, args: list[Any], options: dict[str, Any]) -> Any:
    wf.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return total(f(*args, **options))


def working_calls(f: Function, count: int = 3, tries: int = 150) -> Iterator[Call]:
    """Calls of a function that give numbers; flags also the other way round."""
    known = parameters(f)
    free = [p for p in known if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    is_layer = isinstance(f, Applied)
    flags = [p.name for p in known if type(p.default) is bool and not is_layer]
    count = 1 if is_layer else count
    for combination in itertools.islice(itertools.product(*map(choices, free)), tries):
        pairs = list(zip(free, combination, strict=True))
        args = [value for p, value in pairs if p.kind is not p.KEYWORD_ONLY]
        options = {p.name: value for p, value in pairs if p.kind is p.KEYWORD_ONLY}
        if works(f, args, options):
            yield args, options
            for flag in flags:
                if works(f, args, {**options, flag: not defaults(f)[flag]}):
                    yield args, {**options, flag: not defaults(f)[flag]}
            count -= 1
            if not count:
                return


def defaults(f: Function) -> dict[str, Any]:
    return {p.name: p.default for p in parameters(f)}


def works(f: Function, args: list[Any], options: dict[str, Any]) -> bool:
    try:
        found = outcome(f, args, options)
        return found is not None and bool(wf.isfinite(found))
    except Exception:  # what does not work is not walked
        return False


def with_number(f: Function, call: Call, p: inspect.Parameter) -> Callable[[Any], Any] | None:
    """The call as a function of one parameter; None where it cannot be given."""
    args, options = call
    places = [q.name for q in parameters(f) if q.kind is not q.KEYWORD_ONLY]
    if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
        return None
    if p.name in places and places.index(p.name) < len(args):
        at = places.index(p.name)
        return lambda a: outcome(f, [*args[:at], a, *args[at + 1 :]], options)
    if p.kind is p.POSITIONAL_ONLY:
        before = [defaults(f)[name] for name in places[len(args) : places.index(p.name)]]
        return lambda a: outcome(f, [*args, *before, a], options)
    return lambda a: outcome(f, args, {**options, p.name: a})


def slope(g: Callable[[Any], Any], at: float) -> float | None:
    """The derivative by finite differences; None where it is 0, unclear or not defined."""
    try:
        low, middle, high = (float(g(number(at + step))) for step in (-STEP, 0, STEP))
    except Exception:  # the parameter takes no such number
        return None
    smooth = abs(high - 2 * middle + low) <= 0.05 * abs(high - low) + 1e-7
    return (high - low) / (2 * STEP) if smooth and low != middle != high else None


def number(value: float) -> wf.Tensor:
    return wf.tensor(value, dtype="float64")


def refused_or(check: Callable[[], None]) -> None:
    """A check, or the refusal of the house in its place."""
    try:
        check()
    except wf.WeftError as error:
        if not all([error.op, error.problem, error.expected, error.got, error.fix]):
            raise


def check_number(g: Callable[[Any], Any], at: float, expected: float) -> None:
    """A number that matters, in a tensor: reverse mode, forward mode, traced."""

    def close(found: Any) -> None:
        assert float(found) == pytest.approx(expected, rel=1e-2, abs=1e-4)

    def reverse() -> None:
        a = wf.tensor(at, dtype="float64", requires_grad=True)
        g(a).backward()
        close(0.0 if a.grad is None else a.grad)

    def forward() -> None:
        close(wf.jvp(g, (number(at),), (number(1.0),))[1])

    def traced() -> None:
        graph = wf.ir.trace(g, wf.spec("float64", ()))
        low, high = (wf.ir.interpret(graph, number(at + step))[0] for step in (-STEP, STEP))
        close((high - low) / (2 * STEP))

    for check in (reverse, forward, traced):
        refused_or(check)


def walk(f: Function) -> list[str]:
    """The parameters of a function that take numbers which matter, each checked.

    Random numbers begin anew: where dropout by chance leaves nothing, no number matters.
    """
    wf.random.seed(1)
    checked: list[str] = []
    for call in working_calls(f):
        for p in parameters(f):
            if isinstance(f, Applied) and "float" not in str(p.annotation):
                continue
            g = with_number(f, call, p)
            slopes = ((at, slope(g, at)) for at in VALUES) if g is not None else ()
            for at, expected in slopes:
                if g is not None and expected is not None:
                    check_number(g, at, expected)
                    checked.append(p.name)
                    break
    return checked


FUNCTIONS = public()


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_number_in_a_tensor_is_followed_or_refused(name: str) -> None:
    walk(FUNCTIONS[name])


WALKED = {
    "linspace": {"start", "stop"},
    "arange": {"step"},
    "full": {"fill_value"},
    "var": {"correction"},
    "std": {"correction"},
    "fft.fftfreq": {"d"},
    "random.normal": {"mean", "std"},
    "random.dropout": {"p"},
    "nn.functional.leaky_relu": {"negative_slope"},
    "nn.functional.scaled_dot_product_attention": {"scale", "dropout"},
    "nn.functional.gaussian_nll_loss": {"eps"},
    "nn.functional.layer_norm": {"eps"},
    "nn.functional.poisson_nll_loss": {"eps"},
    "nn.init.constant_": {"value"},
    "nn.LayerNorm": {"eps"},
    "nn.Dropout": {"p"},
    "nn.PReLU": {"init"},
    "nn.Embedding": {"max_norm"},
    "nn.ELU": {"alpha"},
    "Tensor.std": {"correction"},
}
"""Some of what the walk must reach."""


@pytest.mark.parametrize("name", WALKED)
def test_the_walk_reaches_numbers(name: str) -> None:
    assert WALKED[name] <= set(walk(FUNCTIONS[name]))


def check_option(optimizer: Function, option: str) -> None:
    a = wf.tensor(0.5, requires_grad=True)

    def made(a: wf.Tensor) -> None:
        optimizer([wf.nn.Parameter(LINE)], **{"lr": 0.1, option: a})

    with pytest.raises(wf.WeftError) as caught:
        made(a)
    assert option in caught.value.problem
    with pytest.raises(wf.WeftError) as caught:
        wf.jvp(made, (a,), (a,))
    assert option in caught.value.problem


def is_optimizer(each: Any) -> bool:
    return inspect.isclass(each) and issubclass(each, wf.optim.Optimizer)


@pytest.mark.parametrize(
    "name", [n for n in wf.optim.__all__ if is_optimizer(getattr(wf.optim, n)) and n != "Optimizer"]
)
def test_an_option_of_an_optimizer_is_a_constant(name: str) -> None:
    options = inspect.signature(getattr(wf.optim, name)).parameters.values()
    numbers = [p.name for p in options if isinstance(p.default, float) or p.name == "lr"]
    assert numbers
    for option in numbers:
        check_option(getattr(wf.optim, name), option)


def test_the_ends_of_a_line_have_derivatives() -> None:
    start, stop = wf.tensor(1.0, requires_grad=True), wf.tensor(3.0, requires_grad=True)
    line = wf.linspace(start, stop, 5)
    assert line.tolist() == [1.0, 1.5, 2.0, 2.5, 3.0]
    line.backward(wf.tensor([1.0, 1.0, 1.0, 1.0, 10.0]))
    assert (start.grad.item(), stop.grad.item()) == (2.5, 11.5)
    compiled = wf.jit(lambda a: wf.linspace(a, 2.0, 3, endpoint=False))
    assert compiled(wf.tensor(0.5)).tolist() == wf.linspace(0.5, 2.0, 3, endpoint=False).tolist()
    assert compiled(wf.tensor(1.0)).tolist() == wf.linspace(1.0, 2.0, 3, endpoint=False).tolist()
    assert wf.linspace(start, 2j, 2).dtype is wf.complex64
    assert wf.linspace(start, 2.0, 1).tolist() == [1.0]
    assert wf.linspace(start, 2.0, 0).shape == (0,)


def test_the_scale_of_attention_has_a_derivative() -> None:
    q, k, v = (drawn(2, 4, 3) for _ in range(3))

    def attended(scale: Any) -> wf.Tensor:
        return (wf.scaled_dot_product_attention(q, k, v, scale=scale, causal=True) * v).sum()

    wf.testing.check_grads(attended, (wf.tensor(0.3, dtype="float64"),))
    assert wf.jit(attended)(wf.tensor(0.3)).item() == pytest.approx(attended(0.3).item())
    assert wf.jit(attended)(wf.tensor(0.6)).item() == pytest.approx(attended(0.6).item())


def test_a_constant_in_a_tensor_is_a_number() -> None:
    a = wf.tensor(1.0, requires_grad=True)
    x = wf.tensor([1.0, 3.0])
    assert wf.var(x, correction=a.detach()).item() == wf.var(x, correction=1).item()
    with wf.no_grad():
        assert wf.arange(0, a * 3).tolist() == [0.0, 1.0, 2.0]
