"""Keys: where random numbers come from, said explicitly or kept by the global generator.

A key is a tensor of two uint32 words. The same key gives the same numbers always and everywhere, so
each key is used once: `split` makes many of one, `fold_in` one for each number.

>>> import weft as wf
>>> wf.random.key(7).tolist()
[7, 0]
>>> first, second = wf.random.split(wf.random.key(7))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from weft.core.arrays import can_compute_on, is_concrete, is_host, move
from weft.core.devices import CPU, Device
from weft.core.dtypes import DEFAULT_FLOAT, DType, as_dtype, bool_, result_type, uint32, uint64
from weft.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from weft.core.shapes import Shape, broadcast_shapes, check_shape, equal
from weft.ir.dispatch import apply
from weft.ir.number_arrays import counted_part
from weft.ir.tensor import Tensor, traces, wrap
from weft.ops.composed.ingestion import ingest
from weft.ops.operands import DTYPE_CLASSES, as_tensor, convert_to, scalar_tensor
from weft.ops.placement import takes_device
from weft.ops.random_bits import DRAW, FOLD, GENERATOR, SPLIT, fold_key, random_bits, seed_key

__all__ = ["GeneratorState", "bits", "fold_in", "get_state", "key", "seed", "set_state", "split"]

_ZERO = np.zeros((), np.uint64)


class GeneratorState(NamedTuple):
    """Where the global generator stands: its key, and how many draws were made."""

    key: Tensor
    counter: Tensor


@takes_device
def key(seed: int, *, device: Any = None) -> Tensor:
    """The key of a seed from 0 to 2**64 - 1.

    >>> import weft as wf
    >>> wf.random.uniform((2,), key=wf.random.key(0)).tolist()
    [0.3990464210510254, 0.8805201649665833]
    """
    return seed_key(_integer("random.key", "seed", seed))


def split(key: Tensor, n: int = 2) -> Tensor:
    """As many new keys as asked for, one in each row, independent of each other and of the key.

    >>> import weft as wf
    >>> wf.random.split(wf.random.key(0), 3).shape
    (3, 2)
    """
    _check_key("random.split", key)
    count = check_shape("random.split", n)
    return apply(random_bits, key, _no_data(), shape=(*count, 2), dtype=uint32, domain=SPLIT)


def fold_in(key: Tensor, data: Any) -> Tensor:
    """A new key made of a key and an integer, such as the number of a step or a layer.

    >>> import weft as wf
    >>> wf.random.fold_in(wf.random.key(0), 1).shape
    (2,)
    """
    _check_key("random.fold_in", key)
    if isinstance(data, Tensor):
        if not data.dtype.is_integer or data.ndim != 0:
            raise ArgumentTypeError(
                "random.fold_in",
                "the data is not one integer",
                expected="a Python integer or an integer tensor without axes",
                got={"data": data},
                fix='data.astype("int64")',
            )
        return fold_key(key, convert_to(data, uint64))
    number = _integer("random.fold_in", "data", data)
    return fold_key(key, scalar_tensor("random.fold_in", number % (1 << 64), uint64))


def seed(seed: int) -> None:
    """Begin the global generator's stream from a seed.

    >>> import weft as wf
    >>> wf.random.seed(0)
    >>> first = wf.random.normal((3,))
    >>> wf.random.seed(0)
    >>> bool(wf.all(wf.random.normal((3,)) == first))
    True
    """
    GENERATOR.seed(_integer("random.seed", "seed", seed))


def get_state() -> GeneratorState:
    """Where the global generator stands; `set_state` continues from there.

    >>> import weft as wf
    >>> state = wf.random.get_state()
    >>> first = wf.random.uniform()
    >>> wf.random.set_state(state)
    >>> first.item() == wf.random.uniform().item()
    True
    """
    return GeneratorState(*GENERATOR.state())


def set_state(state: GeneratorState) -> None:
    """Continue from what `get_state` gave. See there."""
    given: object = state
    if not isinstance(given, tuple) or len(given) != 2:
        raise ArgumentTypeError(
            "random.set_state",
            "this is not a state of the generator",
            expected="what wf.random.get_state() returned",
            got={"state": state},
            fix="state = wf.random.get_state(); ...; wf.random.set_state(state)",
        )
    _check_key("random.set_state", state[0])
    counter = as_tensor("random.set_state", state[1], "counter")
    GENERATOR.restore(state[0], convert_to(counter, uint64))


@takes_device
def bits(
    shape: Any = (), *, dtype: Any = uint32, key: Tensor | None = None, device: Any = None
) -> Tensor:
    """Random words in which every bit is 0 or 1 with equal chance; uint32 or uint64.

    >>> import weft as wf
    >>> wf.random.bits((2,), key=wf.random.key(0)).tolist()
    [1713891541, 3781805453]
    """
    return drawn_bits(
        key_or_next("random.bits", key), check_shape("random.bits", shape), as_dtype(dtype)
    )


# --- what the distributions share --------------------------------------------------------------


def _no_data() -> Tensor:
    """What stands beside a key that nothing is folded into.

    It is made anew each time: a tensor that is held would be state that programs read.
    """
    return wrap(_ZERO)


def drawn_bits(key: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """Words for a key that was checked."""
    return apply(random_bits, key, _no_data(), shape=shape, dtype=dtype, domain=DRAW)


def derived_keys(key: Tensor, count: int) -> list[Tensor]:
    """Several keys made of one, for a distribution that draws more than once."""
    return [fold_key(key, wrap(np.array(number, np.uint64))) for number in range(count)]


def key_or_next(op: str, key: Tensor | None) -> Tensor:
    """The key that was passed, or the global generator's next."""
    if key is None:
        return _next_key(op)
    _check_key(op, key)
    return _where_constants_are(key)


def _next_key(op: str) -> Tensor:
    """The global generator's next key, where constants are made."""
    device = traces.device
    if device is None or device is CPU or traces.recording or not can_compute_on(device):
        return _where_constants_are(GENERATOR.draw(op))
    base, number = GENERATOR.draw_number(op)
    if number is None:  # that is the key
        return base
    if is_host(base._value):
        return wrap(key_of_draw(base._value, number, device))
    return fold_key(_where_constants_are(base), wrap(move(np.array(number, np.uint64), device)))


def key_of_draw(base: Any, number: int, device: Device) -> Any:
    """The key of a draw on a device, which needs no launch: keys are copied there in blocks."""

    def rows(numbers: Any) -> Any:
        keys = np.broadcast_to(base, (*numbers.shape, 2))
        folded = random_bits.reference(keys, numbers, shape=(2,), dtype=uint32, domain=FOLD)
        return np.tile(folded, 2)  # 16 bytes

    return counted_part(number, ("key", base.tobytes()), rows, device, (2,))


def _where_constants_are(key: Tensor) -> Tensor:
    """A key on the device on which numbers are drawn from it."""
    device = traces.device
    if device is None or traces.recording or not is_concrete(key._value):
        return key
    return wrap(move(key._value, device))


def _check_key(op: str, key: object) -> None:
    if not isinstance(key, Tensor) or key.dtype is not uint32:
        raise DTypeError(
            op,
            "this is not a key",
            expected="a key: u32[2]",
            got={"key": key},
            fix="key = wf.random.key(0)",
        )
    if key.shape != (2,):
        raise ShapeError(
            op,
            "this is not one key",
            expected="a key: u32[2]",
            got={"key": key},
            fix="take one, key[0], or map over them: wf.vmap(lambda key: ...)(keys)",
        )


def _integer(op: str, name: str, value: object) -> int:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    raise ArgumentTypeError(
        op,
        f"{name} is not an integer",
        expected="a Python integer",
        got={name: value},
        fix=f"{name}=0",
    )


def read_parameters(
    op: str, shape: Any, dtype: Any, **parameters: Any
) -> tuple[Shape, DType, list[Any]]:
    """The result's shape and dtype, and the parameters as tensors of that dtype.

    Without a shape it is that of the parameters together; without a dtype it is the parameters'
    common one, float32 for Python numbers. Python numbers stay as they are.
    """
    values = {name: _parameter(op, name, value) for name, value in parameters.items()}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    target = float_dtype(op, dtype, tensors)
    got: dict[str, object] = dict(tensors)
    common_shape = broadcast_shapes(op, [value.shape for value in tensors.values()], got)
    wanted = common_shape if shape is None else check_shape(op, shape)
    whole = broadcast_shapes(op, [wanted, common_shape], {"shape": list(wanted), **got})
    if len(whole) != len(wanted) or not all(map(equal, whole, wanted)):
        raise ShapeError(
            op,
            "a parameter does not broadcast to the shape",
            expected=f"parameters that broadcast to {list(wanted)}",
            got={"shape": list(wanted), **got},
            fix=f"wf.{op}({whole}, ...), or leave shape out",
        )
    converted = [
        convert_to(value, target) if isinstance(value, Tensor) else value
        for value in values.values()
    ]
    return wanted, target, converted


def _parameter(op: str, name: str, value: Any) -> Any:
    if type(value) in (int, float):
        return value
    tensor = as_tensor(op, value, name)
    if tensor.dtype.is_complex or tensor.dtype is bool_:
        raise DTypeError(
            op,
            f"{name} is not real",
            expected="a real number or tensor",
            got={name: value},
            fix=f'{name}.astype("float32")',
        )
    return tensor


def float_dtype(op: str, dtype: Any, tensors: dict[str, Tensor]) -> DType:
    """The dtype asked for, or the parameters' common one."""
    if dtype is None:
        floats = [t.dtype for t in tensors.values() if t.dtype.is_floating]
        return result_type(op, floats) if floats else DEFAULT_FLOAT
    target = as_dtype(dtype)
    if not target.is_floating:
        raise DTypeError(
            op,
            "the numbers are real",
            expected=", ".join(d.name for d in DTYPE_CLASSES["float"]),
            got={"dtype": target},
            fix=f'wf.{op}(..., dtype="float32").astype("{target.name}")',
        )
    return target


def require(
    op: str,
    holds: Callable[..., Any],
    expected: str,
    fix: str,
    **parameters: Any,
) -> None:
    """Refuse parameters outside a distribution's domain; traced ones cannot be looked at."""
    values = parameters.values()
    if all(type(value) is float for value in values) and holds(*values):
        return  # most calls; what is not in the domain is refused below
    arrays = [_parameter_value(op, name, value) for name, value in parameters.items()]
    broadcast_shapes(op, [array.shape for array in arrays], parameters)
    if all(map(is_host, arrays)) and not np.all(holds(*arrays)):
        names = " and ".join(parameters)
        raise ArgumentError(
            op,
            f"{names} outside the distribution's domain",
            expected=expected,
            got={n: _plain_value(v) for n, v in parameters.items()},
            fix=fix,
        )


def _parameter_value(op: str, name: str, value: Any) -> Any:
    """A parameter's array, or what is traced in its place."""
    if isinstance(value, Tensor):
        return value._value
    if isinstance(value, (list, tuple)):
        value = ingest(op, value, None)[0]
    return as_tensor(op, value, name)._value


def _plain_value(value: Any) -> object:
    array = value._value if isinstance(value, Tensor) else np.asarray(value)
    return array.item() if array.ndim == 0 else array.tolist()
