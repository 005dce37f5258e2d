"""Making tensors and reading their values."""

# ruff: noqa: ANN003, ANN204

import numpy as np
from tests.mistakes.entry import Family, mistake

import weft as wf
from weft import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    GradientError,
    NameUnknownError,
    ShapeError,
)

FAMILY: Family = []


@mistake(
    FAMILY,
    "A list whose rows have different lengths",
    ShapeError,
    "tensor",
    problem="the nested lists are ragged",
    expected="parts of shape [2] everywhere, as the first",
    got="obj[1]: shape [1]",
    fix="give obj[1] the shape [2], or pad the lists to equal lengths",
)
def ragged_list() -> None:
    wf.tensor([[1.0, 2.0], [3.0]])


@mistake(
    FAMILY,
    "Text in a list of numbers",
    ArgumentTypeError,
    "tensor",
    problem="str is not a number",
    expected="numbers, arrays, or nested lists of these",
    got="element: 'two'",
    fix="leave it out, or encode it as a number first",
)
def strings() -> None:
    wf.tensor([1.0, "two", 3.0])


@mistake(
    FAMILY,
    "None in a list of numbers",
    ArgumentTypeError,
    "tensor",
    problem="NoneType is not a number",
    expected="numbers, arrays, or nested lists of these",
    got="element: None",
    fix="leave it out, or encode it as a number first",
)
def none_in_list() -> None:
    wf.tensor([1.0, None, 3.0])


@mistake(
    FAMILY,
    "A tensor of a dictionary",
    ArgumentTypeError,
    "tensor",
    problem="no tensor can be made of dict",
    expected="a tensor, an array, a number, or nested lists of these",
    got="obj: {'weight': 1.0}",
    fix="list the elements: wf.tensor([1.0, 2.0])",
)
def tensor_of_dict() -> None:
    wf.tensor({"weight": 1.0})


@mistake(
    FAMILY,
    "A dtype that does not exist",
    DTypeError,
    "dtype",
    problem="unknown element type",
    expected="one of bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64,",
    got="dtype: 'flaot64'",
    fix='dtype="float64"',
)
def unknown_dtype() -> None:
    wf.zeros((2, 3), dtype="flaot64")


@mistake(
    FAMILY,
    "A misspelt dtype",
    DTypeError,
    "dtype",
    problem="unknown element type",
    expected="one of bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64,",
    got="dtype: 'flaot32'",
    fix='dtype="float32"',
)
def almost_dtype() -> None:
    wf.ones(3).astype("flaot32")


@mistake(
    FAMILY,
    "A NumPy array of Python objects",
    DTypeError,
    "asarray",
    problem="no tensor can hold these elements",
    expected="one of bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64,",
    got="array: ndarray object[2]",
    fix='convert the array first, for example array.astype("float32")',
)
def object_array() -> None:
    wf.asarray(np.array([{"a": 1}, None], dtype=object))


@mistake(
    FAMILY,
    "A NumPy array of dates",
    DTypeError,
    "asarray",
    problem="no tensor can hold these elements",
    expected="one of bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64,",
    got="array: ndarray datetime64[D][1]",
    fix='convert the array first, for example array.astype("float32")',
)
def dates() -> None:
    wf.asarray(np.array(["2024-02-29"], dtype="datetime64[D]"))


@mistake(
    FAMILY,
    "A NumPy array of a dtype that tensors do not have",
    DTypeError,
    "tensor",
    problem="no tensor can hold these elements",
    expected="one of bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64,",
    got="array: ndarray float128[3]",
    fix='convert the array first, for example array.astype("float32")',
)
def long_double() -> None:
    wf.tensor(np.zeros(3, np.longdouble))


@mistake(
    FAMILY,
    "A number that the dtype cannot hold",
    DTypeError,
    "tensor",
    problem="a number does not fit uint8",
    expected="numbers that uint8 can hold: 0 to 255",
    got="obj: [1, 300]   dtype: weft.uint8",
    fix='choose a wider dtype: dtype="int64" or dtype="float32"',
)
def too_large_integer() -> None:
    wf.tensor([1, 300], dtype="uint8")


@mistake(
    FAMILY,
    "A Python number that does not fit the tensor's dtype",
    DTypeError,
    "add",
    problem="the number does not fit int8",
    expected="a number that int8 can hold: -128 to 127",
    got="number: 1000",
    fix='convert the tensor to a wider dtype first: x.astype("int64")',
)
def large_scalar() -> None:
    wf.tensor([1, 2], dtype="int8") + 1000


@mistake(
    FAMILY,
    "A negative size",
    ShapeError,
    "zeros",
    problem="a dimension is negative",
    expected="dimensions of at least 0",
    got="shape: (2, -3)",
    fix="write the size that is meant in place of -3",
)
def negative_size() -> None:
    wf.zeros((2, -3))


@mistake(
    FAMILY,
    "A size that is not an integer",
    ArgumentTypeError,
    "ones",
    problem="2.5 is not an integer",
    expected="an integer or a sequence of integers",
    got="shape: (2.5, 3)",
    fix="round sizes down with n // 2 or int(n), as in shape=(2, 3)",
)
def fractional_size() -> None:
    wf.ones((2.5, 3))


@mistake(
    FAMILY,
    "A range whose step is zero",
    ArgumentError,
    "arange",
    problem="a step of 0 never arrives",
    expected="a step other than 0",
    got="start: 0   stop: 10   step: 0",
    fix="for equal values use wf.full((n,), value)",
)
def zero_step() -> None:
    wf.arange(0, 10, 0)


@mistake(
    FAMILY,
    "A negative number of points",
    ShapeError,
    "linspace",
    problem="num is not a number of elements",
    expected="an integer of at least 0",
    got="num: -5",
    fix="num=10",
)
def negative_number() -> None:
    wf.linspace(0.0, 1.0, num=-5)


@mistake(
    FAMILY,
    "An identity matrix of negative size",
    ShapeError,
    "eye",
    problem="a dimension is negative",
    expected="dimensions of at least 0",
    got="shape: (-2, -2)",
    fix="write the size that is meant in place of -2",
)
def negative_eye() -> None:
    wf.eye(-2)


@mistake(
    FAMILY,
    "An unknown way to index a grid",
    ArgumentError,
    "meshgrid",
    problem="no indexing is called 'yx'",
    expected='vectors, and indexing="xy" or "ij"',
    got="x1: i64[3]   x2: i64[2]   indexing: yx",
    fix='wf.meshgrid(x.reshape(-1), y.reshape(-1), indexing="ij")',
)
def meshgrid_indexing() -> None:
    wf.meshgrid(wf.arange(3), wf.arange(2), indexing="yx")


@mistake(
    FAMILY,
    "A device that is not there",
    DeviceError,
    "device",
    problem="no such device here",
    expected="'cpu' or 'cuda'",
    got="device: tpu",
    fix="leave device= out, or pass device='cpu'",
)
def unknown_device() -> None:
    wf.zeros(3, device="tpu")


@mistake(
    FAMILY,
    "Memory of another device, through DLPack",
    DeviceError,
    "from_dlpack",
    problem="the array is on a device that the CPU cannot reach",
    expected="memory of the CPU",
    got="x: CudaArray   device: (2, 0)",
    fix="copy it to the CPU first, for example x.cpu()",
)
def foreign_memory() -> None:
    class CudaArray:
        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, **options):
            raise AssertionError("not reached")

    wf.from_dlpack(CudaArray())


@mistake(
    FAMILY,
    "An object that does not speak DLPack",
    ArgumentTypeError,
    "from_dlpack",
    problem="list does not speak DLPack",
    expected="an object with __dlpack__ and __dlpack_device__",
    got="x: [1.0, 2.0]",
    fix="use wf.asarray(x)",
)
def not_dlpack() -> None:
    wf.from_dlpack([1.0, 2.0])


@mistake(
    FAMILY,
    "The length of a tensor without axes",
    ArgumentTypeError,
    "len()",
    problem="a tensor without axes has no length",
    expected="at least one axis",
    got="x: f32[]",
    fix="x.size counts the elements",
)
def length_of_scalar() -> None:
    len(wf.tensor(3.0))


@mistake(
    FAMILY,
    "A loop over a tensor without axes",
    ArgumentTypeError,
    "iter",
    problem="a tensor without axes cannot be iterated",
    expected="at least one axis",
    got="x: f32[]",
    fix="take the number itself: x.item()",
)
def iterating_scalar() -> None:
    for part in wf.tensor(3.0):  # wrong
        print(part)


@mistake(
    FAMILY,
    "The truth of several elements",
    ArgumentError,
    "bool()",
    problem="the truth of a tensor with several elements is ambiguous",
    expected="one element",
    got="x: bool[2]",
    fix="say which you mean: x.any() or x.all(); between tensors write & and |",
)
def truth_of_several() -> None:
    x = wf.tensor([1.0, -1.0])
    if x > 0:  # wrong
        print("positive")


@mistake(
    FAMILY,
    "The item of several elements",
    ArgumentError,
    "item",
    problem="the tensor does not have exactly one element",
    expected="one element",
    got="x: f32[2]",
    fix="index the element first, or use x.tolist()",
)
def item_of_several() -> None:
    wf.tensor([1.0, 2.0]).item()


@mistake(
    FAMILY,
    "A Python number of several elements",
    ArgumentError,
    "float()",
    problem="the tensor does not have exactly one element",
    expected="one element",
    got="x: f32[2]",
    fix="index the element first, or reduce with x.sum() or x.mean()",
)
def float_of_several() -> None:
    losses = wf.tensor([0.5, 0.25])
    float(losses)


@mistake(
    FAMILY,
    "A range as long as a floating-point tensor says",
    DTypeError,
    "index",
    problem="only integer tensors can be used as an index",
    expected="an integer dtype",
    got="x: f32[]",
    fix='convert it first: x.astype("int64")',
)
def fractional_index_tensor() -> None:
    steps = wf.tensor(3.0)
    list(range(steps))


@mistake(
    FAMILY,
    "A method that does not exist",
    NameUnknownError,
    "tensor",
    problem="nothing is called 'summ'",
    expected="a name in dir(x)",
    got="name: summ",
    fix="x.sum",
)
def unknown_method() -> None:
    wf.ones(3).summ()


@mistake(
    FAMILY,
    "A misspelt function",
    NameUnknownError,
    "wf",
    problem="nothing is called 'sofmax'",
    expected="a name in dir(wf)",
    got="name: sofmax",
    fix="wf.softmax",
)
def misspelt_function() -> None:
    wf.sofmax(wf.ones(3))


@mistake(
    FAMILY,
    "PyTorch's name for a function",
    NameUnknownError,
    "wf",
    problem="nothing is called 'cat'",
    expected="a name in dir(wf)",
    got="name: cat",
    fix="wf.concat",
)
def torch_function() -> None:
    wf.cat([wf.ones(2), wf.ones(2)])


@mistake(
    FAMILY,
    "A setting that does not exist",
    NameUnknownError,
    "settings",
    problem="no setting is called 'print_precison'",
    expected="one of full_tracebacks, print_elements",
    got="name: print_precison",
    fix="wf.settings.print_precision",
)
def unknown_setting() -> None:
    with wf.settings.changed(print_precison=8):  # wrong
        print(wf.ones(3))


@mistake(
    FAMILY,
    "A setting that does not exist, assigned",
    NameUnknownError,
    "settings",
    problem="no setting is called 'full_traceback'",
    expected="one of full_tracebacks, print_elements",
    got="name: full_traceback",
    fix="wf.settings.full_tracebacks",
)
def setting_assigned() -> None:
    wf.settings.full_traceback = True


@mistake(
    FAMILY,
    "A NumPy array of a tensor that a derivative is taken of",
    GradientError,
    "numpy",
    problem="outside the framework nothing is recorded for the derivative of this",
    expected="a tensor of which no derivative is taken",
    got="x: f32[2]",
    fix="use weft functions, or give the derivative up on purpose:",
)
def numpy_of_recorded() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    np.asarray(w * 2)


@mistake(
    FAMILY,
    "A function called as a method",
    NameUnknownError,
    "tensor",
    problem="einsum is a function, not a method",
    expected="a name in dir(x)",
    got="name: einsum",
    fix="wf.einsum(subscripts, operands)",
)
def function_as_method() -> None:
    wf.ones((2, 3)).einsum("ij->ji")


@mistake(
    FAMILY,
    "PyTorch's name for a method",
    NameUnknownError,
    "tensor",
    problem="nothing is called 'index_select'",
    expected="a name in dir(x)",
    got="name: index_select",
    fix="x.take(i, axis=0)",
)
def torch_method() -> None:
    wf.ones((2, 3)).index_select(0, [1])


@mistake(
    FAMILY,
    "A Python float of a complex number",
    DTypeError,
    "float()",
    problem="a complex number is not a real one",
    expected="a real dtype",
    got="x: c64[]",
    fix="take x.real, x.imag or abs(x) first",
)
def complex_as_float() -> None:
    float(wf.tensor(1 + 2j))


@mistake(
    FAMILY,
    "A dtype that is None",
    DTypeError,
    "dtype",
    problem="unknown element type",
    expected="one of bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64,",
    got="dtype: None",
    fix='dtype="float32"',
)
def astype_nothing() -> None:
    wf.ones(3).astype(None)


@mistake(
    FAMILY,
    "Sizes as several arguments",
    ArgumentTypeError,
    "zeros",
    problem="a shape is one argument",
    expected="zeros(shape, *, dtype=None, device=None)",
    got="argument 0: 2   argument 1: 3",
    fix="zeros((2, 3))",
)
def sizes_apart() -> None:
    wf.zeros(2, 3)


@mistake(
    FAMILY,
    "An element type that writing would change",
    DTypeError,
    "add_",
    problem="the result has another dtype than the tensor it would replace",
    expected="a result of dtype int64",
    got="x: i64[3]   result: f32[3]",
    fix="give the result its own dtype: x = x + y",
)
def add_in_place_dtype() -> None:
    wf.arange(3).add_(0.5)
