"""Making tensors, and questions about dtypes."""

from __future__ import annotations

import array
import math
from inspect import unwrap

import numpy as np
import pytest

import weft as wf
from weft.core.dtypes import DTYPES
from weft.ops.composed import creation, datatypes

# --- of what Python holds ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (3, "int64", ()), (2.5, "float32", ()), (True, "bool", ()), (1j, "complex64", ()),
        ([1, 2], "int64", (2,)), ([1, 2.5], "float32", (2,)), ([[True], [False]], "bool", (2, 1)),
        ([1, 1j], "complex64", (2,)), ([], "float32", (0,)), ([[], []], "float32", (2, 0)),
        ((1, (2)), "int64", (2,)), (range(3), "int64", (3,)), (b"ab", "uint8", (2,)),
        (array.array("f", [1.0]), "float32", (1,)), (np.float64(1), "float64", ()),
        (np.ones((2, 3)), "float64", (2, 3)), (np.ones(2, ">f4"), "float32", (2,)),
        ([np.float64(1.0)], "float64", (1,)), ([np.ones(2, np.int8)], "int8", (1, 2)),
        ([2**62], "int64", (1,)),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("make", [wf.asarray, wf.tensor])
def test_dtypes_and_shapes_of_what_python_holds(
    make: object, data: object, dtype: str, shape: tuple[int, ...]
) -> None:
    made = make(data)
    assert (made.dtype.name, made.shape) == (dtype, shape)


def test_asarray_shares_memory_where_it_can_and_tensor_never_does() -> None:
    data = np.zeros(3, np.float32)
    shared, copied, made = wf.asarray(data), wf.asarray(data, copy=True), wf.tensor(data)
    data[0] = 1.0
    assert shared.tolist() == [1.0, 0.0, 0.0]
    assert copied.tolist() == made.tolist() == [0.0, 0.0, 0.0]
    x = wf.tensor([1.0])
    assert wf.asarray(x) is x
    y = wf.asarray(x, copy=True)
    x[0] = 2.0
    assert y.tolist() == [1.0]


def test_lists_of_tensors_are_joined_and_keep_their_derivatives() -> None:
    x = wf.tensor(2.0, requires_grad=True)
    joined = wf.asarray([[x, x * x], [1.0, 0.0]])
    assert joined.tolist() == [[2.0, 4.0], [1.0, 0.0]]
    wf.sum(joined).backward()
    assert x.grad.item() == 5.0
    assert wf.asarray([wf.tensor([1, 2]), [3, 4]]).dtype is wf.int64


def test_tensor_has_no_history_and_may_be_a_leaf() -> None:
    x = wf.tensor([1.0, 2.0], requires_grad=True)
    y = wf.tensor(x * 2.0)
    assert not y.requires_grad
    assert wf.tensor([1j], requires_grad=True).requires_grad
    assert wf.tensor([1], dtype="bfloat16", requires_grad=True).requires_grad


def test_a_tensor_of_tensors_has_no_history_in_any_mode() -> None:
    a = wf.tensor(2.0, requires_grad=True)
    assert not wf.tensor([a, 2 * a]).requires_grad
    assert not wf.tensor([[a], [2 * a]], dtype="float64").requires_grad
    assert wf.tensor([a, 2 * a], requires_grad=True).is_leaf
    for made in (lambda a: wf.tensor([a, 2 * a]), wf.tensor):
        assert wf.jvp(made, (wf.tensor(1.0),), (wf.tensor(1.0),))[1].sum().item() == 0.0
        assert wf.grad(lambda a, made=made: made(a).sum() + a)(wf.tensor(1.0)).item() == 1.0
        compiled = wf.jit(lambda a, made=made: wf.grad(lambda a: made(a).sum() + a)(a))
        assert compiled(wf.tensor(1.0)).item() == 1.0


def test_objects_with_an_array_method_or_dlpack_are_taken() -> None:
    class Holder:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return np.arange(3)

    assert wf.asarray(Holder()).tolist() == [0, 1, 2]
    data = np.arange(3.0)
    assert np.shares_memory(wf.from_dlpack(data).numpy(), data)
    assert not np.shares_memory(wf.from_dlpack(data, copy=True).numpy(), data)
    x = wf.tensor([1.0])
    assert wf.from_dlpack(x).tolist() == [1.0]


def test_exchange_with_pytorch_shares_memory() -> None:
    torch = pytest.importorskip("torch")
    data = torch.arange(3.0)
    x = wf.from_dlpack(data)
    data[0] = 5.0
    assert x.tolist() == [5.0, 1.0, 2.0]
    assert wf.asarray(torch.ones(2, dtype=torch.int8)).dtype is wf.int8
    with pytest.raises(wf.DTypeError, match="does not hand"):
        wf.from_dlpack(torch.ones(1, requires_grad=True))
    with pytest.raises(wf.DeviceError):
        wf.from_dlpack(torch.ones(1, device="meta"))


class Elsewhere:
    """An array on a GPU that does not exist."""

    def __dlpack__(self, **options: object) -> object:
        raise AssertionError("the memory must not be asked for")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


@pytest.mark.parametrize(
    ("call", "error", "op", "problem", "got", "fix"),
    [
        (lambda: wf.tensor([[1, 2], [3]]), wf.ShapeError, "tensor", "ragged", "obj[1]", "obj[1]"),
        (
            lambda: wf.asarray([[[1], [2]], [[1], [2, 3]]]),
            wf.ShapeError,
            "asarray",
            "ragged",
            "obj[1][1]",
            "pad",
        ),
        (lambda: wf.tensor([1, [2]]), wf.ShapeError, "tensor", "ragged", "obj[1]", "pad"),
        (
            lambda: wf.tensor([wf.ones(2), [1.0]]),
            wf.ShapeError,
            "tensor",
            "ragged",
            "obj[1]",
            "pad",
        ),
        (
            lambda: wf.tensor(["a"]),
            wf.ArgumentTypeError,
            "tensor",
            "str is not a number",
            "'a'",
            "number",
        ),
        (lambda: wf.tensor([1, None]), wf.ArgumentTypeError, "tensor", "NoneType", "None", "leave"),
        (lambda: wf.tensor({1: 2}), wf.ArgumentTypeError, "tensor", "dict", "{1: 2}", "wf.tensor"),
        (lambda: wf.tensor("abc"), wf.ArgumentTypeError, "tensor", "str", "abc", "wf.tensor"),
        (
            lambda: wf.tensor([2**63]),
            wf.DTypeError,
            "tensor",
            "does not fit int64",
            "9223",
            "dtype=",
        ),
        (
            lambda: wf.tensor([2**63, -1]),
            wf.DTypeError,
            "tensor",
            "does not fit int64",
            "9223",
            "dtype=",
        ),
        (
            lambda: wf.tensor([2**70]),
            wf.DTypeError,
            "tensor",
            "does not fit int64",
            "1180",
            "dtype=",
        ),
        (
            lambda: wf.tensor([300], dtype="uint8"),
            wf.DTypeError,
            "tensor",
            "fit uint8",
            "300",
            "dtype=",
        ),
        (
            lambda: wf.tensor([math.nan], dtype="int32"),
            wf.DTypeError,
            "tensor",
            "fit int32",
            "nan",
            "float32",
        ),
        (
            lambda: wf.asarray(np.array([math.inf]), dtype="int8"),
            wf.DTypeError,
            "asarray",
            "fit int8",
            "float64",
            "float32",
        ),
        (
            lambda: wf.tensor([1j], dtype="float32"),
            wf.ArgumentError,
            "tensor",
            "fit float32",
            "1j",
            "real",
        ),
        (
            lambda: wf.tensor([1], requires_grad=True),
            wf.GradientError,
            "tensor",
            "int64 has no",
            "i64",
            "float32",
        ),
        (
            lambda: wf.asarray(np.array(["a"])),
            wf.DTypeError,
            "asarray",
            "no tensor can hold",
            "U1",
            "astype",
        ),
        (
            lambda: wf.asarray([1.0], copy=False),
            wf.ArgumentError,
            "asarray",
            "without a copy",
            "copy",
            "copy=None",
        ),
        (
            lambda: wf.from_dlpack([1.0]),
            wf.ArgumentTypeError,
            "from_dlpack",
            "DLPack",
            "[1.0]",
            "asarray",
        ),
        (
            lambda: wf.from_dlpack(Elsewhere()),
            wf.DeviceError,
            "from_dlpack",
            "device",
            "(2, 0)",
            "cpu",
        ),
        (lambda: wf.asarray(Elsewhere()), wf.DeviceError, "asarray", "device", "(2, 0)", "cpu"),
        (
            lambda: wf.zeros(2, device="tpu"),
            wf.DeviceError,
            "device",
            "no such device",
            "tpu",
            "cpu",
        ),
        (lambda: wf.zeros((2, -1)), wf.ShapeError, "zeros", "negative", "-1", "-1"),
        (lambda: wf.ones(2.5), wf.ArgumentTypeError, "ones", "not a shape", "2.5", "int"),
        (
            lambda: wf.zeros(2, dtype="float31"),
            wf.DTypeError,
            "dtype",
            "unknown",
            "float31",
            "float32",
        ),
        (
            lambda: wf.full(2, math.nan, dtype="int32"),
            wf.DTypeError,
            "full",
            "fit int32",
            "nan",
            "float32",
        ),
        (
            lambda: wf.full(2, 300, dtype="uint8"),
            wf.DTypeError,
            "full",
            "fit uint8",
            "300",
            "int64",
        ),
        (
            lambda: wf.full(2, 1j, dtype="float32"),
            wf.DTypeError,
            "full",
            "fit float32",
            "1j",
            "complex64",
        ),
        (lambda: wf.arange(0, 1, 0), wf.ArgumentError, "arange", "step of 0", "step: 0", "full"),
        (lambda: wf.arange("a"), wf.ArgumentTypeError, "arange", "str", "a", "arange"),
        (
            lambda: wf.arange(300, dtype="uint8"),
            wf.DTypeError,
            "arange",
            "fit uint8",
            "299",
            "int64",
        ),
        (lambda: wf.tril(wf.ones(3)), wf.AxisError, "tril", "matrices", "f32[3]", "[None, :]"),
        (
            lambda: wf.meshgrid(wf.ones(2), indexing="yx"),
            wf.ArgumentError,
            "meshgrid",
            "yx",
            "yx",
            "ij",
        ),
        (
            lambda: wf.meshgrid(wf.ones((2, 2))),
            wf.AxisError,
            "meshgrid",
            "vectors",
            "f32[2, 2]",
            "reshape",
        ),
        (
            lambda: wf.isdtype("int8", "whole"),
            wf.ArgumentError,
            "isdtype",
            "whole",
            "whole",
            "real floating",
        ),
        (lambda: wf.finfo("int8"), wf.DTypeError, "finfo", "int8", "int8", "iinfo"),
        (lambda: wf.iinfo("float32"), wf.DTypeError, "iinfo", "float32", "float32", "finfo"),
        (
            lambda: wf.result_type(),
            wf.ArgumentTypeError,
            "result_type",
            "nothing",
            "()",
            "result_type",
        ),
    ],
)
def test_mistakes_are_refused_with_a_fix(
    call: object, error: type, op: str, problem: str, got: str, fix: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert caught.value.op == op
    assert problem in caught.value.problem
    assert got in caught.value.got
    assert fix in caught.value.fix
    assert caught.value.expected
    assert caught.value.at is not None


# --- of one value ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.short)
def test_constant_tensors_in_every_dtype(dtype: wf.DType) -> None:
    for make, value in ((wf.zeros, 0), (wf.ones, 1), (wf.empty, 0)):
        made = make((2, 0, 3), dtype=dtype)
        assert (made.dtype, made.shape) == (dtype, (2, 0, 3))
        assert make(2, dtype=dtype).tolist() == [value, value]
    like = wf.full_like(wf.zeros(2, dtype=dtype), True)
    assert (like.dtype, like.tolist()) == (dtype, [1, 1])


def test_full_takes_the_dtype_of_its_value() -> None:
    for value, dtype in ((1, "int64"), (0.5, "float32"), (False, "bool"), (1j, "complex64")):
        made = wf.full((2,), value)
        assert (made.dtype.name, made.tolist()) == (dtype, [value, value])
    assert wf.full((2,), wf.tensor(3, dtype="int8")).dtype is wf.int8
    assert wf.full_like(wf.ones(2), 1).dtype is wf.float32
    assert wf.full(2, -1.0, dtype="complex64").tolist() == [-1, -1]


def test_full_of_a_tensor_keeps_its_derivative() -> None:
    x = wf.tensor(2.0, requires_grad=True)
    wf.sum(wf.full((3,), x)).backward()
    assert x.grad.item() == 3.0


# --- of a range --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        ((3,), {}, [0, 1, 2]), ((1, 7, 2), {}, [1, 3, 5]), ((5, 0, -2), {}, [5, 3, 1]),
        ((0, 1, 0.25), {}, [0.0, 0.25, 0.5, 0.75]), ((3, 1), {}, []), ((0,), {}, []),
        ((5, 2, -1), {"dtype": "uint8"}, [5, 4, 3]), ((2.5,), {}, [0.0, 1.0, 2.0]),
        ((2**63, 2**63 + 2), {"dtype": "uint64"}, [2**63, 2**63 + 1]),
        ((1, 3), {"dtype": "bfloat16"}, [1.0, 2.0]), ((0, 3), {"dtype": "complex64"}, [0, 1, 2]),
        ((-128, -126), {"dtype": "int8"}, [-128, -127]),
    ],
)  # fmt: skip
def test_arange(arguments: tuple[float, ...], options: dict[str, str], expected: list) -> None:
    assert wf.arange(*arguments, **options).tolist() == expected


def test_arange_rounds_once() -> None:
    expected = (np.arange(1000) * 0.1 + 0.3).astype(np.float32)
    np.testing.assert_array_equal(wf.arange(0.3, 100.25, 0.1).numpy()[:999], expected[:999])
    assert wf.arange(0, 10, 0.5).dtype is wf.float32


def test_linspace() -> None:
    assert wf.linspace(0, 1, 5).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert wf.linspace(0, 1, 4, endpoint=False).tolist() == [0.0, 0.25, 0.5, 0.75]
    assert wf.linspace(0, 1, 1).tolist() == [0.0]
    assert wf.linspace(0, 1, 0).shape == (0,)
    assert wf.linspace(0, 2j, 3).tolist() == [0j, 1j, 2j]
    assert wf.linspace(0, 9, 4, dtype="int32").tolist() == [0, 3, 6, 9]


def test_matrices_and_grids_agree_with_numpy() -> None:
    for k in (-2, -1, 0, 1, 5):
        np.testing.assert_array_equal(wf.eye(3, 4, k=k).numpy(), np.eye(3, 4, k))
        x = np.arange(24.0).reshape(2, 3, 4)
        np.testing.assert_array_equal(wf.tril(wf.asarray(x), k=k).numpy(), np.tril(x, k))
        np.testing.assert_array_equal(wf.triu(wf.asarray(x), k=k).numpy(), np.triu(x, k))
    assert wf.tril(wf.tensor([[True, True], [True, True]])).dtype is wf.bool
    vectors = [np.arange(2), np.arange(3), np.arange(4)]
    for indexing in ("xy", "ij"):
        found = wf.meshgrid(*vectors, indexing=indexing)
        for one, other in zip(found, np.meshgrid(*vectors, indexing=indexing), strict=True):
            np.testing.assert_array_equal(one.numpy(), other)
    assert wf.meshgrid() == ()


def test_triangles_pass_gradients_only_inside() -> None:
    x = wf.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    wf.sum(wf.tril(x) * 2.0).backward()
    assert x.grad.tolist() == [[2.0, 0.0], [2.0, 2.0]]


def test_shapes_may_be_symbolic_under_type_inference() -> None:
    n = wf.symbol("n")
    kinds = wf.ir.infer(
        lambda x: (wf.zeros((n, 2)), wf.arange(n), wf.eye(n), wf.tril(x), wf.zeros_like(x)),
        wf.spec("float32", ("n", "n")),
    )
    expected = ["f32[n, 2]", "i64[n]", "f32[n, n]", "f32[n, n]", "f32[n, n]"]
    assert [str(kind) for kind in kinds] == expected


# --- dtypes ------------------------------------------------------------------------------------


def test_limits_of_dtypes() -> None:
    for name in ("float16", "float32", "float64"):
        ours, theirs = wf.finfo(name), np.finfo(name)
        assert ours.bits == theirs.bits
        assert (ours.eps, ours.max, ours.min) == (theirs.eps, theirs.max, theirs.min)
        assert ours.smallest_normal == theirs.smallest_normal
        assert isinstance(ours.eps, float)
    assert wf.finfo("bfloat16").eps == 2.0**-7
    assert wf.finfo(wf.complex64).dtype is wf.float32
    assert wf.finfo(wf.ones(1)).bits == 32
    assert (wf.iinfo("uint8").min, wf.iinfo("uint8").max) == (0, 255)
    assert wf.iinfo(wf.tensor([1])).dtype is wf.int64


def test_isdtype_knows_the_kinds_of_the_standard() -> None:
    kinds = {
        "bool": "bool", "signed": "signed integer", "unsigned": "unsigned integer",
        "float": "real floating", "complex": "complex floating",
    }  # fmt: skip
    for dtype in DTYPES:
        assert wf.isdtype(dtype, kinds[dtype.kind])
        assert wf.isdtype(dtype, "numeric") is (dtype is not wf.bool)
        assert wf.isdtype(dtype, "integral") is dtype.is_integer
        assert wf.isdtype(dtype, (dtype, "bool"))
        assert wf.isdtype(dtype, dtype)


def test_casts_follow_promotion() -> None:
    assert wf.can_cast("int8", "int64")
    assert not wf.can_cast("int64", "int8")
    assert not wf.can_cast("int64", "uint64")
    assert wf.can_cast(wf.ones(1), "float64")
    assert wf.result_type(wf.ones(1), 2.5, "float16") is wf.float32
    assert wf.result_type("uint8", "int8") is wf.int16
    assert wf.result_type(np.ones(1), "float32") is wf.float64


def test_the_namespace_says_what_it_can_do() -> None:
    info = datatypes.namespace_info()
    assert info.default_dtypes()["indexing"] is wf.int64
    assert info.default_device() == info.devices()[0] == wf.ones(1).device
    assert set(info.dtypes(kind="real floating")) == {"float32", "float64"}
    assert set(info.dtypes(kind=("bool", "complex floating"))) == {
        "bool",
        "complex64",
        "complex128",
    }
    assert info.capabilities()["boolean indexing"] is True


def test_constants() -> None:
    assert (wf.pi, wf.e, wf.inf, wf.newaxis) == (math.pi, math.e, math.inf, None)
    assert math.isnan(wf.nan)


def test_astype_converts_by_value() -> None:
    x = wf.tensor([1.7, -1.7, 0.0])
    assert wf.astype(x, "int8").tolist() == [1, -1, 0]
    assert wf.astype(x, "bool").tolist() == [True, True, False]
    with pytest.raises(wf.DTypeError):
        wf.astype(wf.tensor([1 + 2j]), "float64")
    assert wf.astype(wf.tensor([2j]), "bool").tolist() == [True]
    assert wf.astype(x, "float32", copy=False) is x
    assert wf.astype(x, "float32") is not x


@pytest.mark.parametrize("name", creation.__all__)
def test_creation_functions_stand_in_the_facade(name: str) -> None:
    # from_dlpack is defined elsewhere, and explains wrong arguments where it becomes public
    assert unwrap(getattr(wf, name)) is unwrap(getattr(creation, name))
