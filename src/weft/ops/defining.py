"""`primitive`: operations of the user's own, as whole as the library's.

A type rule and a NumPy reference are enough to use an operation everywhere: eagerly, in graphs, in
compiled programs (by reference), and under `vmap`, one element after the other. Derivatives, a
batching rule and a lowering make it differentiable, batched at once, and part of compiled kernels.

>>> import weft as wf
>>> @wf.primitive(
...     type_rule=wf.custom.elementwise("float"),
...     derivatives=[wf.custom.tangent(lambda t, out, x, *, scale: 3 * scale * x * x * t)],
...     lower=lambda scalar, x, scale: scale * x * x * x,
... )
... def cube(x, *, scale=1.0):
...     "The third power, scaled."
...     return (scale * x * x * x).astype(x.dtype)
>>> cube(wf.tensor([1.0, 2.0])).tolist()
[1.0, 8.0]
>>> wf.jit(wf.grad(lambda x: cube(x, scale=2.0)))(wf.tensor(2.0)).item()
24.0
>>> wf.testing.check_primitive(cube)
>>> cube.remove()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter, getdoc, signature
from typing import Any, NoReturn
from uuid import uuid4

import numpy as np

from weft.core.dtypes import BY_NUMPY, from_numpy
from weft.core.errors import ArgumentError, ArgumentTypeError, DTypeError, Unsupported, WeftError
from weft.core.names import nearest_name
from weft.core.records import frozen
from weft.core.shapes import broadcast_shapes
from weft.core.types import TensorType
from weft.ir.batching import move_axis, to_front
from weft.ir.derivatives import Derivatives, Every, Joint, Tangent
from weft.ir.derivatives import OperandDerivative as Kind
from weft.ir.dispatch import bind
from weft.ir.graph import param_text
from weft.ir.kinds import Opaque
from weft.ir.primitive import LOCAL, PRIMITIVES, Lower, Mistake, Primitive, Sample
from weft.ir.scalar_functions import why_not_lowered
from weft.ir.tensor import Tensor
from weft.ops.composed.control import map as map_elements
from weft.ops.families import ELEMENTWISE, RESULTS, Domain, batch_broadcast, elementwise_samples
from weft.ops.operands import DTYPE_CLASSES, as_tensor, promote_operands, wrong_dtype

__all__ = ["Elementwise", "Operator", "elementwise", "primitive"]

Array = np.ndarray[Any, Any]
Rule = Callable[..., Any]
REQUIRED: Any = Parameter.empty
"""Stands for the default of an attribute that has none."""


# --- what a definition says ----------------------------------------------------------------------


@frozen
class Elementwise:
    """The type rule of an operation on elements: one dtype of a class, shapes that broadcast.

    result: "same", "bool", "real" or "complex": the dtype of the result. domain: where samples
    for the tests are taken from.
    """

    dtypes: str = "inexact"
    result: str = "same"
    domain: Domain | tuple[Domain, ...] = (-2.0, 2.0)

    def rule(self, name: str) -> Rule:
        """The type rule under an operation's name."""
        allowed, result = frozenset(DTYPE_CLASSES[self.dtypes]), RESULTS[self.result]

        def type_rule(*types: TensorType, **params: Any) -> TensorType:
            got = operands_by_name(types)
            if any(kind.dtype not in allowed or kind.dtype is not types[0].dtype for kind in types):
                raise wrong_dtype(name, self.dtypes, got)
            shape = broadcast_shapes(name, [kind.shape for kind in types], got)
            return TensorType(result(types[0].dtype), shape)

        return type_rule


def elementwise(
    dtypes: str = "inexact",
    *,
    result: str = "same",
    domain: Domain | tuple[Domain, ...] = (-2.0, 2.0),
) -> Elementwise:
    """The type rule of an operation that works element by element, on operands that broadcast.

    >>> import weft as wf
    >>> rule = wf.custom.elementwise("float").rule("f")
    >>> rule(wf.spec("float32", (3, 1)), wf.spec("float32", (4,)))
    f32[3, 4]
    """
    for name, given, known in (("dtypes", dtypes, DTYPE_CLASSES), ("result", result, RESULTS)):
        if given not in known:
            suggestion = nearest_name(str(given), list(known)) or next(iter(known))
            raise ArgumentError(
                "elementwise",
                f"{name} is not a class of dtypes",
                expected="one of " + ", ".join(known),
                got={name: repr(given)},
                fix=f'{name}="{suggestion}"',
            )
    return Elementwise(dtypes, result, domain)


@frozen
class Arguments:
    """What an operation takes: how many operands (None for any number), and which attributes.

    An attribute's value is its default, or `REQUIRED`. `fitted(op, name, default, value)` gives a
    value as the operation takes it.
    """

    operands: int | None
    attributes: Mapping[str, Any]
    fitted: Callable[[str, str, Any, Any], Any] = lambda op, name, default, value: value

    @property
    def defaults(self) -> dict[str, Any]:
        """The attributes that need not be given."""
        return {k: plain_value(v) for k, v in self.attributes.items() if v is not REQUIRED}

    def params(self, op: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """All attributes of a call, in the order of the definition."""
        unknown = [name for name in given if name not in self.attributes]
        missing = [k for k, v in self.attributes.items() if v is REQUIRED and k not in given]
        if unknown or missing:
            name = (unknown or missing)[0]
            what = f"there is no attribute {name!r}" if unknown else f"attribute {name} is missing"
            raise ArgumentError(
                op,
                what,
                expected="attributes: " + (", ".join(self.attributes) or "none"),
                got=given,
                fix=f"leave it out: {op}(x)" if unknown else f"{op}(x, {name}=...)",
            )
        return {
            k: self.fitted(op, k, v, _attribute(op, k, given.get(k, v)))
            for k, v in self.attributes.items()
        }


def arguments_of(op: str, reference: Callable[..., Any]) -> Arguments:
    """What a function takes: positional arguments are operands, keyword-only ones attributes."""
    operands, attributes, count = 0, {}, False
    for each in signature(reference).parameters.values():
        if each.kind is Parameter.KEYWORD_ONLY:
            attributes[each.name] = each.default
        elif each.kind is Parameter.VAR_POSITIONAL:
            count = True
        elif each.kind is Parameter.VAR_KEYWORD or each.default is not Parameter.empty:
            refuse(
                op, f"argument {each.name} is neither an operand nor an attribute",
                expected="operands without defaults, attributes behind a *: f(x, *, scale=1.0)",
                got={"signature": str(signature(reference))},
                fix=f"write {each.name} behind a *",
            )  # fmt: skip
        else:
            operands += 1
    return Arguments(None if count else operands, attributes)


def _attribute(op: str, name: str, value: Any) -> Any:
    """An attribute as it stands in graphs."""
    plain_attribute = plain_value(value)
    try:
        param_text(plain_attribute, str)
    except WeftError:
        raise ArgumentTypeError(
            op,
            f"attribute {name} is not a value that graphs can hold",
            expected="numbers, strings, None, dtypes, or tuples of these",
            got={name: value},
            fix="pass a tensor as an operand",
        ) from None
    return plain_attribute


def plain_value(value: Any) -> Any:
    """Lists as tuples, NumPy's numbers as Python's."""
    if isinstance(value, (list, tuple)):
        return tuple(plain_value(each) for each in value)
    return value.item() if isinstance(value, np.generic) else value


class Operator:
    """A function that applies one primitive of the user's own to tensors."""

    def __init__(
        self, primitive: Primitive, arguments: Arguments, dtypes: str | None, dense: bool
    ) -> None:
        self.primitive, self.arguments = primitive, arguments
        self._dtypes, self._dense = dtypes, dense
        self.__name__ = self.__qualname__ = primitive.name
        self.__doc__ = primitive.doc

    def __call__(self, *operands: Any, **attributes: Any) -> Any:
        """Apply it: a tensor, or a tuple of them."""
        name, wanted = self.primitive.name, self.arguments.operands
        if wanted is not None and len(operands) != wanted:
            raise ArgumentError(
                name,
                "another number of operands",
                expected=f"{wanted} operands",
                got=operands_by_name(operands) or {"operands": "none"},
                fix=f"{name}({', '.join(operands_by_name(('',) * wanted))})",
            )
        params = self.arguments.params(name, attributes)
        if self._dtypes is not None and operands:
            tensors = promote_operands(name, operands, self._dtypes)
            if self._dense:
                tensors = _broadcast_tensors(name, tensors)
            return bind(self.primitive, *tensors, **params)
        return bind(self.primitive, *[as_tensor(name, x) for x in operands], **params)

    def __repr__(self) -> str:
        return f"<operator {self.primitive.name}>"

    def remove(self) -> None:
        """Let the name be free again; graphs that hold the operation keep it."""
        if PRIMITIVES.get(self.primitive.name) is self.primitive:
            del PRIMITIVES[self.primitive.name]


# --- the definition ------------------------------------------------------------------------------


def primitive(
    reference: Callable[..., Any] | None = None,
    *,
    type_rule: Rule | Elementwise | None = None,
    name: str = "",
    derivatives: Derivatives | Unsupported | None = None,
    batch: Rule | str | Unsupported | None = None,
    lower: Lower | None = None,
    loops: Callable[[Any], Any] | None = None,
    results: int = 1,
    impure: bool = False,
    samples: Sequence[Any] | Callable[[], Sequence[Any]] = (),
    mistakes: Sequence[Mistake] = (),
) -> Any:
    """Define an operation by its NumPy reference, which this decorates.

    The reference's positional arguments are arrays, its keyword-only ones attributes.

    type_rule(*types, **attributes): the type of the result, or a tuple of `results` types;
    or `wf.custom.elementwise(...)`.
    derivatives: one per operand (`wf.custom.linear`, `additive`, `tangent`, `constant`), or
    `every` or `joint` for all of them.
    batch(size, operands, axes, **attributes): (result, axis); "leading" where axes in front of
    all operands may be added at will. By default elements are taken one after the other.
    lower(scalars, *elements, **attributes): one element, of an element-wise operation.
    loops(builder): the kernel of any other operation, in the loop language.
    samples: operands of correct calls, from which `wf.testing.check_primitive` derives its tests.

    >>> import numpy as np
    >>> import weft as wf
    >>> @wf.primitive(type_rule=lambda x: wf.TensorType(x.dtype, x.shape[:-1]))
    ... def spread(x):
    ...     "The largest element of each row less the smallest."
    ...     return np.ptp(x, axis=-1)
    >>> wf.jit(spread)(wf.tensor([[1.0, 4.0], [2.0, 2.5]])).tolist()
    [3.0, 0.5]
    >>> spread.remove()
    """
    slots = {
        "derivatives": derivatives, "batch": batch, "lower": lower, "loops": loops,
        "impure": impure, "samples": samples, "mistakes": lambda: mistakes,
    }  # fmt: skip

    def define(f: Callable[..., Any]) -> Operator:
        return _define_operator(f, name or getattr(f, "__name__", ""), type_rule, results, slots)

    return define if reference is None else define(reference)


def _define_operator(
    reference: Callable[..., Any], name: str, given: Any, results: int, slots: dict[str, Any]
) -> Operator:
    """The operator of a reference and what else was given."""
    check_name(name)
    if given is None or not callable(getattr(given, "rule", given)):
        refuse(name, "the definition has no type rule",
               expected="type_rule, a function from the operands' types to the result's",
               got={"type_rule": given},
               fix="@wf.primitive(type_rule=lambda x: x)")  # fmt: skip
    rule = checked_rule(name, given, results)
    return Definition(name, arguments_of(name, reference), given, results).make_operator(
        doc=(getdoc(reference) or f"The operation {name}.").partition("\n")[0],
        type_rule=rule,
        reference=checked_reference(name, reference, rule, results),
        fingerprint=LOCAL + uuid4().hex,
        **slots,
    )


@frozen
class Definition:
    """What the slots of a definition are made from."""

    name: str
    arguments: Arguments
    type_rule: Rule | Elementwise
    results: int
    dense: bool = False
    """Whether element-wise operands are broadcast before the operation sees them."""

    def make_operator(
        self,
        *,
        derivatives: Any,
        batch: Any,
        samples: Any,
        lower: Any = None,
        loops: Any = None,
        **slots: Any,
    ) -> Operator:
        """The operator, checked on its samples; nothing is registered where a check fails."""
        if lower is not None:
            self._check_lower(lower)
        if loops is not None and (not callable(loops) or self.results != 1):
            refuse(self.name, "loops are not a function that writes the kernel of one result",
                   expected="loops=write, with write(builder) giving builder.kernel(...)",
                   got={"loops": loops, "results": self.results},
                   fix="leave loops out")  # fmt: skip
        new_primitive = Primitive(
            self.name,
            kind=ELEMENTWISE if isinstance(self.type_rule, Elementwise) else Opaque(),
            derivatives=self._derivatives(derivatives),
            batch=self._batch(batch, lambda: new_primitive),
            samples=lambda: self._samples(samples),
            multiple=self.results != 1,
            broadcasts=isinstance(self.type_rule, Elementwise) and not self.dense,
            lower=self._lower(lower, loops),
            loops=loops,
            **slots,
        )
        rule = self.type_rule
        dtypes = rule.dtypes if isinstance(rule, Elementwise) else None
        operator = Operator(new_primitive, self.arguments, dtypes, self.dense)
        try:
            self._check(new_primitive)
        except BaseException:
            operator.remove()
            raise
        return operator

    def _lower(self, given: Any, loops: Any) -> Lower | Unsupported | None:
        if given is None and loops is None:
            return Unsupported(f"{self.name} has no loops yet")
        return given  # type: ignore[no-any-return]

    def _derivatives(self, given: Any) -> Derivatives | Unsupported:
        if given is None:
            return Unsupported(f"{self.name} was defined without derivatives")
        if isinstance(given, (Unsupported, Every, Joint)):
            return given
        if not isinstance(given, (list, tuple)) or not all(isinstance(d, Kind) for d in given):
            refuse(self.name, "the derivatives are not of the kinds there are",
                   expected="a list of linear, additive, tangent or constant; every, or joint",
                   got={"derivatives": given},
                   fix="derivatives=[wf.custom.tangent(lambda t, out, x: ...)]")  # fmt: skip
        wanted = self.arguments.operands
        if wanted != len(given):
            refuse(self.name, "there is not one derivative for each operand",
                   expected="wf.custom.every(...)" if wanted is None else f"{wanted} derivatives",
                   got={"derivatives": len(given)},
                   fix='give those that are missing: wf.custom.constant("why")')  # fmt: skip
        if not isinstance(self.type_rule, Elementwise):
            return tuple(given)
        return tuple(replace(d, diagonal=True) if isinstance(d, Tangent) else d for d in given)

    def _batch(self, given: Any, made: Callable[[], Primitive]) -> Rule | Unsupported:
        if given is None and isinstance(self.type_rule, Elementwise) and not self.dense:
            return lambda size, operands, axes, **params: batch_broadcast(
                made(), operands, axes, **params
            )
        if given == "leading" or (given is None and self.dense):
            return all_in_front(made)
        if given is None:
            return one_after_the_other(made)
        if not callable(given) and not isinstance(given, Unsupported):
            refuse(self.name, "the batching rule is not one",
                   expected='a function, "leading", None or Unsupported("why")',
                   got={"batch": given}, fix="leave it out")  # fmt: skip
        return given  # type: ignore[no-any-return]

    def _samples(self, given: Any) -> list[Sample]:
        listed = given() if callable(given) else given
        defaults = self.arguments.defaults
        if len(listed) == 0 and isinstance(self.type_rule, Elementwise):
            count, rule = self.arguments.operands or 2, self.type_rule
            listed = elementwise_samples(self.name, count, rule.dtypes, rule.domain)
        samples = [each if isinstance(each, Sample) else _sample(each) for each in listed]
        return [replace(each, params={**defaults, **each.params}) for each in samples]

    def _check_lower(self, lower: Any) -> None:
        if not isinstance(self.type_rule, Elementwise) or self.results != 1:
            refuse(self.name, "a scalar expression is for element-wise operations of one result",
                   expected="type_rule=wf.custom.elementwise(...) beside lower",
                   got={"type_rule": self.type_rule, "results": self.results},
                   fix="write loops=... for other operations")  # fmt: skip

    def _check(self, made: Primitive) -> None:
        """Refuse what contradicts itself: on each sample, the reference; the scalar expression."""
        missing = [k for k, v in self.arguments.attributes.items() if v is REQUIRED]
        for sample in [] if missing else made.samples():
            arrays = [np.asarray(x) for x in sample.operands]
            with np.errstate(all="ignore"):
                made.reference(*arrays, **sample.params)
            if not isinstance(made.lower, Unsupported):
                self._check_expression(made, arrays, sample.params)

    def _check_expression(
        self, made: Primitive, arrays: Sequence[Array], params: Mapping[str, Any]
    ) -> None:
        kinds = [type_of(x) for x in arrays]
        result = made.type_rule(*kinds, **params)
        assert isinstance(result, TensorType)
        try:
            why_not_lowered(made, [kind.dtype for kind in kinds], result.dtype, params)
        except Exception as error:
            refuse(self.name, "the scalar expression cannot be written",
                   expected="lower(scalars, x, ...) made of functions of weft.ir.scalars",
                   got={"error": f"{type(error).__name__}: {error}", **operands_by_name(kinds)},
                   fix="use the operators of scalars, or functions such as scalars.exp(x)",
                   cause=error)  # fmt: skip


def _broadcast_tensors(name: str, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Tensors of one shape, by broadcasting."""
    shape = broadcast_shapes(name, [x.shape for x in tensors], operands_by_name(tensors))
    spread = PRIMITIVES["broadcast_to"]
    return tuple(x if x.shape == shape else bind(spread, x, shape=shape) for x in tensors)


def _sample(given: Any) -> Sample:
    operands = given if isinstance(given, tuple) else (given,)
    return Sample(tuple(np.asarray(getattr(x, "_value", x)) for x in operands))


# --- rules that are derived ----------------------------------------------------------------------


def checked_rule(name: str, rule: Rule | Elementwise, results: int) -> Rule:
    """A type rule whose results are looked at before anything relies on them."""
    if isinstance(rule, Elementwise):
        return rule.rule(name)

    def type_rule(*types: TensorType, **params: Any) -> Any:
        kinds = rule(*types, **params)
        if results == 1 and isinstance(kinds, TensorType):
            return kinds
        several = tuple(kinds) if isinstance(kinds, (tuple, list)) else (kinds,)
        if len(several) != results or not all(isinstance(kind, TensorType) for kind in several):
            refuse(name, "the type rule does not give the types of the results",
                   expected=f"{results} wf.TensorType" + (" in a tuple" if results != 1 else ""),
                   got={"returned": kinds, **operands_by_name(types)},
                   fix="return wf.TensorType(x.dtype, x.shape)")  # fmt: skip
        return several if results != 1 else several[0]

    return type_rule


def checked_reference(name: str, reference: Callable[..., Any], rule: Rule, results: int) -> Rule:
    """A reference that cannot write to its operands, and gives what the type rule says."""

    def refer(*arrays: Array, **params: Any) -> Any:
        ruled = rule(*[type_of(array) for array in arrays], **params)
        out = reference(*[_read_only(array) for array in arrays], **params)
        if results == 1:
            return _check_result(name, out, ruled, arrays)
        if not isinstance(out, (tuple, list)) or len(out) != results:
            refuse(name, "the reference gives another number of results",
                   expected=f"a tuple of {results} arrays", got={"returned": type(out).__name__},
                   fix=f"return {results} arrays, or change results=")  # fmt: skip
        return tuple(_check_result(name, f, k, arrays) for f, k in zip(out, ruled, strict=True))

    return refer


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _check_result(name: str, found: Any, ruled: TensorType, arrays: Sequence[Array]) -> Array:
    """A result in memory of its own, if it has the ruled type."""
    array = np.asarray(found)
    if array.shape != ruled.shape or array.dtype != ruled.dtype.numpy:
        known = array.dtype in BY_NUMPY
        refuse(name, "the reference contradicts the type rule",
               expected=f"{ruled}, as the type rule says of these operands",
               got={"result": type_of(array) if known else array,
                    **operands_by_name([type_of(a) for a in arrays])},
               fix="correct the type rule, or convert the result: result.astype(x.dtype)",
               error=DTypeError if known and array.shape == ruled.shape else ArgumentError,
        )  # fmt: skip
    return array.copy() if array.base is not None or not array.flags.writeable else array


def one_after_the_other(made: Callable[[], Primitive]) -> Rule:
    """The batching rule of an operation that knows none: a loop over the batch."""

    def batch(size: Any, operands: tuple[Tensor, ...], axes: Any, /, **params: Any) -> Any:
        moving = tuple(
            move_axis(x, axis, 0)
            for x, axis in zip(operands, axes, strict=True)
            if axis is not None
        )

        def apply_to_one(parts: tuple[Tensor, ...]) -> Any:
            given = iter(parts)
            pairs = zip(operands, axes, strict=True)
            return bind(made(), *[x if a is None else next(given) for x, a in pairs], **params)

        out = map_elements(apply_to_one, moving)
        return (out, (0,) * len(out)) if made().multiple else (out, 0)

    return batch


def all_in_front(made: Callable[[], Primitive]) -> Rule:
    """The batching rule of an operation that takes stacks: the batch is one more axis in front."""

    def batch(size: Any, operands: tuple[Tensor, ...], axes: Any, /, **params: Any) -> Any:
        fronts = [to_front(size, x, axis) for x, axis in zip(operands, axes, strict=True)]
        out = bind(made(), *fronts, **params)
        return (out, (0,) * len(out)) if made().multiple else (out, 0)

    return batch


# --- words ---------------------------------------------------------------------------------------


def type_of(array: Array) -> TensorType:
    """The type of an array's tensor."""
    return TensorType(from_numpy(array.dtype), array.shape)


def operands_by_name(operands: Sequence[Any]) -> dict[str, Any]:
    """Operands under the names that errors call them by."""
    return {"x": operands[0]} if len(operands) == 1 else {
        f"x{index + 1}": each for index, each in enumerate(operands)
    }  # fmt: skip


def check_name(name: object) -> None:
    """Refuse what cannot be the name of a primitive."""
    is_word = isinstance(name, str) and name.isidentifier() and name == name.lower()
    if not is_word or name == "graph":
        refuse(
            "primitive", f"{name!r} cannot be the name of an operation",
            expected="small letters, digits and _, which do not begin with a digit",
            got={"name": name}, fix='name="my_operation"',
        )  # fmt: skip


def refuse(
    op: str,
    problem: str,
    *,
    expected: str,
    got: Mapping[str, object],
    fix: str,
    error: type[WeftError] = ArgumentError,
    cause: BaseException | None = None,
) -> NoReturn:
    """Raise the error for a wrong definition."""
    raise error(op, problem, expected=expected, got=got, fix=fix) from cause
