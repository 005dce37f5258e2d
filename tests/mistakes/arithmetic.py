"""Element by element: arithmetic, comparison, logic."""

# ruff: noqa: RUF005

from tests.mistakes.entry import Family, mistake

import weft as wf
from weft import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

FAMILY: Family = []


@mistake(
    FAMILY,
    "Shapes that do not broadcast",
    ShapeError,
    "add",
    problem="shapes do not broadcast",
    expected="dimensions equal or 1, from the right",
    got="x1: f32[32, 784]   x2: f32[10]",
    fix="make x2.shape[-1] 784, or 1 to repeat it: x2[..., :1]",
)
def unlike_shapes() -> None:
    features = wf.ones((32, 784))
    bias = wf.ones(10)
    features + bias


@mistake(
    FAMILY,
    "A batch that lacks an axis to broadcast along",
    ShapeError,
    "subtract",
    problem="shapes do not broadcast",
    expected="dimensions equal or 1, from the right",
    got="x1: f32[4, 3]   x2: f32[4]",
    fix="line x2 up from the left: x2[..., None]",
)
def missing_axis() -> None:
    x = wf.ones((4, 3))
    mean = x.mean(axis=1)
    x - mean


@mistake(
    FAMILY,
    "None as an operand",
    ArgumentTypeError,
    "multiply",
    problem="x2 is not a tensor",
    expected="a tensor, a NumPy array or a number",
    got="x2: None",
    fix="pass a tensor for x2: does the function that made it return it?",
)
def operand_none() -> None:
    wf.ones(3) * None


@mistake(
    FAMILY,
    "A list as an operand",
    ArgumentTypeError,
    "add",
    problem="x2 is not a tensor",
    expected="a tensor, a NumPy array or a number",
    got="x2: [1, 2, 3]",
    fix="convert it first: wf.tensor(x2)",
)
def operand_list() -> None:
    wf.ones(3) + [1, 2, 3]


@mistake(
    FAMILY,
    "Text as an operand",
    ArgumentTypeError,
    "exp",
    problem="x is not a tensor",
    expected="a tensor, a NumPy array or a number",
    got="x: '1.0'",
    fix="convert it to a number first: float(x)",
)
def operand_text() -> None:
    wf.exp("1.0")


@mistake(
    FAMILY,
    "Bits of floating-point numbers",
    DTypeError,
    "bitwise_and",
    problem="not defined for this dtype, only for integers and booleans",
    expected="bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64",
    got="x1: f32[3]   x2: 1",
    fix='convert first: x.astype("int64")',
)
def bitwise_floats() -> None:
    wf.ones(3) & 1


@mistake(
    FAMILY,
    "A shift of floating-point numbers",
    DTypeError,
    "bitwise_left_shift",
    problem="not defined for this dtype, only for integers",
    expected="int8, int16, int32, int64, uint8, uint16, uint32, uint64",
    got="x1: f32[3]   x2: 2",
    fix='convert first: x.astype("int64")',
)
def shift_floats() -> None:
    wf.bitwise_left_shift(wf.ones(3), 2)


@mistake(
    FAMILY,
    "uint64 with int64, which have no common dtype",
    DTypeError,
    "add",
    problem="dtypes do not promote to a common one",
    expected="integer dtypes with a common wider integer",
    got="a: weft.uint64   b: weft.int64",
    fix='convert one side first, for example x.astype("int64")',
)
def mixed_signs() -> None:
    counts = wf.tensor([1, 2], dtype="uint64")
    counts + wf.tensor([1, 2], dtype="int64")


@mistake(
    FAMILY,
    "Complex numbers put in order",
    DTypeError,
    "less",
    problem="not defined for this dtype, only for real numbers and booleans",
    expected="bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64,",
    got="x1: c64[2]   x2: 2",
    fix="choose a real number: abs(x), x.real or x.imag",
)
def complex_order() -> None:
    z = wf.tensor([1 + 2j, 3 - 1j])
    z < 2


@mistake(
    FAMILY,
    "The maximum of complex numbers",
    DTypeError,
    "max",
    problem="not defined for this dtype, only for real numbers and booleans",
    expected="bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64,",
    got="x: c64[2]",
    fix="choose a real number: abs(x), x.real or x.imag",
)
def complex_maximum() -> None:
    wf.tensor([1 + 2j, 3 - 1j]).max()


@mistake(
    FAMILY,
    "The negative of booleans",
    DTypeError,
    "negative",
    problem="not defined for this dtype, only for numbers",
    expected="int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16,",
    got="x: bool[2]",
    fix='convert first: x.astype("int64")',
)
def negative_bool() -> None:
    mask = wf.tensor([True, False])
    -mask


@mistake(
    FAMILY,
    "The difference of booleans",
    DTypeError,
    "subtract",
    problem="not defined for this dtype, only for numbers",
    expected="int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16,",
    got="x1: bool[2]   x2: bool[2]",
    fix='convert first: x.astype("int64")',
)
def subtract_bool() -> None:
    wf.tensor([True, False]) - wf.tensor([True, True])


@mistake(
    FAMILY,
    "The floor of complex numbers",
    DTypeError,
    "floor",
    problem="not defined for this dtype, only for integers and floats",
    expected="int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16,",
    got="x: c64[1]",
    fix="choose a real number: abs(x), x.real or x.imag",
)
def floor_complex() -> None:
    wf.floor(wf.tensor([1 + 2j]))


@mistake(
    FAMILY,
    "A float added to integers in place",
    DTypeError,
    "+=",
    problem="the result has another dtype than the tensor it would replace",
    expected="a result of dtype int64",
    got="x: i64[3]   result: f32[3]",
    fix="give the result its own dtype: x = x + y",
)
def float_into_int() -> None:
    counts = wf.tensor([1, 2, 3])
    counts += 0.5


@mistake(
    FAMILY,
    "An update in place that would change the shape",
    ShapeError,
    "+=",
    problem="the result has another shape than the tensor it would replace",
    expected="an operand that broadcasts to [3]",
    got="x: f32[3]   result: f32[2, 3]",
    fix="give the result its own shape: x = x + y",
)
def in_place_broadcast() -> None:
    total = wf.zeros(3)
    total += wf.ones((2, 3))


@mistake(
    FAMILY,
    "A choice between shapes that do not broadcast",
    ShapeError,
    "where",
    problem="shapes do not broadcast",
    expected="dimensions equal or 1, from the right",
    got="condition: bool[3]   x1: f32[3]   x2: f32[4]",
    fix="make x2.shape[-1] 3, or 1 to repeat it: x2[..., :1]",
)
def where_shapes() -> None:
    mask = wf.tensor([True, False, True])
    wf.where(mask, wf.ones(3), wf.zeros(4))


@mistake(
    FAMILY,
    "A choice by numbers instead of booleans",
    DTypeError,
    "where",
    problem="the condition is not boolean",
    expected="a condition of dtype bool",
    got="condition: f32[3]   x1: f32[3]   x2: f32[3]",
    fix="compare first: condition != 0",
)
def where_condition() -> None:
    weights = wf.tensor([0.5, 0.0, 2.0])
    wf.where(weights, wf.ones(3), wf.zeros(3))


@mistake(
    FAMILY,
    "`and` between tensors",
    ArgumentError,
    "bool()",
    problem="the truth of a tensor with several elements is ambiguous",
    expected="one element",
    got="x: bool[3]",
    fix="say which you mean: x.any() or x.all(); between tensors write & and |",
)
def and_of_tensors() -> None:
    x = wf.tensor([0.5, 1.5, 2.5])
    (x > 1) and (x < 2)


@mistake(
    FAMILY,
    "An unknown approximation",
    ArgumentError,
    "gelu",
    problem="no approximation is called 'fast'",
    expected='"none" or "tanh"',
    got="approximate: fast",
    fix='wf.gelu(x, approximate="tanh")',
)
def gelu_name() -> None:
    wf.gelu(wf.ones(3), approximate="fast")


@mistake(
    FAMILY,
    "Bounds that are not numbers",
    ArgumentTypeError,
    "clip",
    problem="min is not a tensor",
    expected="a tensor, a NumPy array or a number",
    got="min: 'low'",
    fix="convert it to a number first: float(min)",
)
def clip_strings() -> None:
    wf.clip(wf.ones(3), "low", "high")


@mistake(
    FAMILY,
    "Bits seen as elements of another width",
    DTypeError,
    "bitcast",
    problem="dtypes of different sizes",
    expected="a dtype of 32 bits that is not bool",
    got="x: f32[3]   dtype: weft.int64",
    fix='pass dtype="int32"',
)
def bitcast_width() -> None:
    wf.bitcast(wf.ones(3), "int64")


@mistake(
    FAMILY,
    "Complex numbers made real",
    DTypeError,
    "astype",
    problem="a complex number is not a real one",
    expected="a complex dtype",
    got="x: c64[1]   dtype: float32",
    fix='choose a real number first: x.real.astype("float32"), or abs(x)',
)
def complex_to_real() -> None:
    wf.tensor([1 + 2j]).astype("float32")


@mistake(
    FAMILY,
    "Integers divided in place",
    DTypeError,
    "/=",
    problem="the result has another dtype than the tensor it would replace",
    expected="a result of dtype int64",
    got="x: i64[2]   result: f32[2]",
    fix="give the result its own dtype: x = x / y",
)
def division_in_place() -> None:
    counts = wf.tensor([4, 6])
    counts /= 2


@mistake(
    FAMILY,
    "A comparison of shapes that do not broadcast",
    ShapeError,
    "equal",
    problem="shapes do not broadcast",
    expected="dimensions equal or 1, from the right",
    got="x1: f32[32]   x2: f32[31]",
    fix="make x2.shape[-1] 32, or 1 to repeat it: x2[..., :1]",
)
def comparison_shapes() -> None:
    predictions = wf.zeros(32)
    labels = wf.zeros(31)
    (predictions == labels).mean()
