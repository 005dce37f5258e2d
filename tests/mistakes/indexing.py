"""Indices: reading, writing, gathering, scattering."""

from tests.mistakes.entry import Family, mistake

import weft as wf
from weft import ArgumentError, ArgumentTypeError, AxisError, BoundsError, DTypeError, ShapeError

FAMILY: Family = []


@mistake(
    FAMILY,
    "An index beyond the end",
    BoundsError,
    "index",
    problem="index 3 is out of range for axis 0 of size 3",
    expected="-3 <= index < 3",
    got="index: 3   axis: 0   size: 3",
    fix="use an index from 0 to 2, or wf.clip(index, 0, 2)",
)
def index_out_of_range() -> None:
    x = wf.arange(3)
    x[3]


@mistake(
    FAMILY,
    "An index beyond the end, in a list of them",
    BoundsError,
    "index",
    problem="index 100 is out of range for axis 0 of size 100",
    expected="-100 <= index < 100",
    got="index: 100   axis: 0   size: 100",
    fix="use an index from 0 to 99, or wf.clip(index, 0, 99)",
)
def index_array_out_of_range() -> None:
    embeddings = wf.zeros((100, 16))
    embeddings[wf.tensor([3, 7, 100])]


@mistake(
    FAMILY,
    "More indices than axes",
    AxisError,
    "index",
    problem="3 indices for 2 axes",
    expected="at most 2 indices",
    got="x: f32[2, 3]",
    fix="leave 1 out, or add axes first: x[..., None]",
)
def too_many_indices() -> None:
    wf.zeros((2, 3))[0, 1, 2]


@mistake(
    FAMILY,
    "Two ellipses",
    ArgumentError,
    "index",
    problem="more than one ellipsis",
    expected="at most one ...",
    got="x: f32[2, 3]",
    fix="write the axes out: x[:, :, 0]",
)
def two_ellipses() -> None:
    wf.zeros((2, 3))[..., 0, ...]


@mistake(
    FAMILY,
    "A floating-point number as an index",
    ArgumentTypeError,
    "index",
    problem="float is not an index",
    expected="integers, slices, None, ..., and tensors or lists of integers or",
    got="index: 2.0",
    fix="convert it first: x[int(i)]",
)
def float_index() -> None:
    wf.arange(10)[2.0]


@mistake(
    FAMILY,
    "A floating-point tensor as an index",
    DTypeError,
    "index",
    problem="indices are neither integers nor booleans",
    expected="integers, or a mask of booleans",
    got="index: f32[]",
    fix='convert first: x[index.astype("int64")]',
)
def float_index_tensor() -> None:
    middle = wf.tensor(10.0) / 2
    wf.arange(10)[middle]


@mistake(
    FAMILY,
    "Text as an index",
    ArgumentTypeError,
    "index",
    problem="str is not an index",
    expected="integers, slices, None, ..., and tensors or lists of integers or",
    got="index: 'first'",
    fix="x[0], x[1:3], x[..., None], x[[0, 2]], x[x > 0]",
)
def text_index() -> None:
    wf.arange(10)["first"]


@mistake(
    FAMILY,
    "A mask of another shape",
    BoundsError,
    "index",
    problem="the mask does not have the shape of what it masks",
    expected="a mask of shape [4]",
    got="x: i64[4]   mask: bool[3]",
    fix="make the mask from the same axes of x, here from axis 0 on",
)
def mask_shape() -> None:
    x = wf.arange(4)
    x[wf.tensor([True, False, True])]


@mistake(
    FAMILY,
    "Lists of indices that do not broadcast",
    ShapeError,
    "index",
    problem="shapes do not broadcast",
    expected="dimensions equal or 1, from the right",
    got="index1: i64[3]   index2: i64[2]",
    fix="make index2.shape[-1] 3, or 1 to repeat it: index2[..., :1]",
)
def index_broadcast() -> None:
    wf.zeros((5, 5))[[0, 1, 2], [0, 1]]


@mistake(
    FAMILY,
    "A slice whose step is zero",
    ArgumentError,
    "index",
    problem="a slice's step is 0 or not known",
    expected="a step other than 0",
    got="slice: slice(None, None, 0)",
    fix="x[::1] for every element, x[::-1] for the opposite order",
)
def zero_slice_step() -> None:
    wf.arange(10)[::0]


@mistake(
    FAMILY,
    "A slice with a fractional bound",
    ArgumentTypeError,
    "index",
    problem="a slice's bound is not an integer",
    expected="integers or None in slices",
    got="slice: slice(None, 5.0, None)",
    fix="round it down first: x[: int(n)], or x[: n // 2]",
)
def fractional_slice() -> None:
    n = 10
    wf.arange(n)[: n / 2]


@mistake(
    FAMILY,
    "Writing a value that does not fit",
    ShapeError,
    "index",
    problem="the value does not broadcast to what it is written to",
    expected="a value that broadcasts to [3]",
    got="x: f32[2, 3]   value: f32[4]",
    fix="give it that shape first: value.reshape((3,))",
)
def written_shape() -> None:
    x = wf.zeros((2, 3))
    x[0] = wf.ones(4)


@mistake(
    FAMILY,
    "Writing floats into integers",
    DTypeError,
    "index",
    problem="int64 can hold only part of a float number",
    expected="values that int64 can hold",
    got="x: i64[3]   value: f32[]",
    fix='convert x first: x = x.astype("float32")',
)
def written_dtype() -> None:
    counts = wf.tensor([1, 2, 3])
    counts[0] = wf.tensor(0.5)


@mistake(
    FAMILY,
    "Writing beyond the end",
    BoundsError,
    "index",
    problem="index 5 is out of range for axis 0 of size 3",
    expected="-3 <= index < 3",
    got="index: 5   axis: 0   size: 3",
    fix="use an index from 0 to 2, or wf.clip(index, 0, 2)",
)
def written_bounds() -> None:
    x = wf.zeros(3)
    x[5] = 1.0


@mistake(
    FAMILY,
    "Taking elements that are not there",
    BoundsError,
    "take",
    problem="index 5 is out of range for axis 0 of size 5",
    expected="-5 <= index < 5",
    got="index: 5   axis: 0   size: 5",
    fix="use an index from 0 to 4, or wf.clip(index, 0, 4)",
)
def take_bounds() -> None:
    wf.take(wf.arange(5), wf.tensor([0, 5]), axis=0)


@mistake(
    FAMILY,
    "Gathering with an index of another number of axes",
    AxisError,
    "gather",
    problem="x and the indices have different ranks, or none",
    expected="indices with 2 axes",
    got="x: f32[32, 10]   indices: i64[32]",
    fix="give the indices the axis they lack: indices[..., None]",
)
def gather_rank() -> None:
    logits = wf.zeros((32, 10))
    labels = wf.zeros(32, dtype="int64")
    wf.gather(logits, 1, labels)


@mistake(
    FAMILY,
    "Gathering with floating-point indices",
    DTypeError,
    "gather",
    problem="indices are not integers",
    expected="an integer dtype",
    got="indices: f32[2, 1]",
    fix='convert first: indices.astype("int64")',
)
def gather_dtype() -> None:
    wf.gather(wf.zeros((2, 3)), 1, wf.zeros((2, 1)))


@mistake(
    FAMILY,
    "Taking along an axis with indices of another number of axes",
    AxisError,
    "take_along_axis",
    problem="x and the indices have different ranks, or none",
    expected="indices with 2 axes",
    got="x: f32[32, 10]   indices: i64[32]",
    fix="give the indices the axis they lack: indices[..., None]",
)
def take_along_axis_rank() -> None:
    wf.take_along_axis(wf.zeros((32, 10)), wf.zeros(32, dtype="int64"), axis=1)


@mistake(
    FAMILY,
    "Scattering a source smaller than its index",
    ShapeError,
    "scatter",
    problem="the source does not fit the places it is written to",
    expected="a source of shape [1, 3], or one that broadcasts to it",
    got="source: f32[1, 2]",
    fix="give one element, or one slice, for each index",
)
def scatter_shape() -> None:
    index = wf.tensor([[0, 1, 2]])
    wf.scatter(wf.zeros((3, 5)), 0, index, wf.ones((1, 2)))


@mistake(
    FAMILY,
    "An unknown reduction",
    ArgumentError,
    "scatter_reduce",
    problem="unknown reduction",
    expected='"sum", "prod", "mean", "amax" or "amin"',
    got="reduce: 'total'",
    fix='reduce="sum"',
)
def scatter_reduction() -> None:
    index = wf.tensor([0, 1])
    wf.scatter_reduce(wf.zeros(3), 0, index, wf.ones(2), reduce="total")


@mistake(
    FAMILY,
    "Adding rows that do not fit",
    ShapeError,
    "index_add",
    problem="the source does not fit the places it is written to",
    expected="a source of shape [2, 3], or one that broadcasts to it",
    got="source: f32[3, 3]",
    fix="give one element, or one slice, for each index",
)
def index_add_shape() -> None:
    wf.index_add(wf.zeros((5, 3)), 0, wf.tensor([0, 4]), wf.ones((3, 3)))


@mistake(
    FAMILY,
    "A class beyond the number of classes",
    BoundsError,
    "one_hot",
    problem="there is no class 3 among 3",
    expected="0 <= index < 3",
    got="indices: i64[2]   num_classes: 3",
    fix="num_classes=4",
)
def one_hot_range() -> None:
    wf.one_hot(wf.tensor([0, 3]), 3)


@mistake(
    FAMILY,
    "Classes that are not integers",
    DTypeError,
    "one_hot",
    problem="indices are not integers",
    expected="an integer dtype",
    got="indices: f32[2]",
    fix='convert first: indices.astype("int64")',
)
def one_hot_float() -> None:
    wf.one_hot(wf.tensor([0.0, 1.0]), 3)


@mistake(
    FAMILY,
    "Counting negative numbers",
    BoundsError,
    "bincount",
    problem="x holds the negative number -1",
    expected="numbers of at least 0",
    got="x: i64[3]",
    fix="move them up first: x - x.min()",
)
def bincount_negative() -> None:
    wf.bincount(wf.tensor([1, -1, 2]))


@mistake(
    FAMILY,
    "A segment for each row, but not for every row",
    ShapeError,
    "segment_sum",
    problem="not one label for each slice of data",
    expected="segment_ids.shape == data.shape[:1]",
    got="data: f32[4, 2]   segment_ids: i64[3]",
    fix="give one label for each entry of data's first axis",
)
def segments_length() -> None:
    wf.segment_sum(wf.ones((4, 2)), wf.tensor([0, 0, 1]))


@mistake(
    FAMILY,
    "A slice larger than the tensor",
    ShapeError,
    "dynamic_slice",
    problem="the box is larger than the tensor",
    expected="sizes of at most the shape of x",
    got="x: i64[5]   start0: i64[]   sizes: (8,)",
    fix="cut the sizes to (5,) at most",
)
def dynamic_slice_size() -> None:
    wf.dynamic_slice(wf.arange(5), (0,), (8,))


@mistake(
    FAMILY,
    "A part beyond the end",
    ArgumentError,
    "narrow",
    problem="the stretch is not inside the axis",
    expected="0 <= start <= start + length <= 5",
    got="x: i64[5]   axis: 0   start: 3   length: 4",
    fix="wf.narrow(x, 0, 0, 5)",
)
def narrow_bounds() -> None:
    wf.narrow(wf.arange(5), 0, 3, 4)


@mistake(
    FAMILY,
    "Selecting by numbers",
    DTypeError,
    "masked_select",
    problem="the mask is not boolean",
    expected="bool",
    got="x: i64[3]   mask: i64[3]",
    fix="compare first: mask != 0",
)
def masked_select_mask() -> None:
    wf.masked_select(wf.arange(3), wf.tensor([1, 0, 1]))


@mistake(
    FAMILY,
    "An in-place method of a part",
    ArgumentError,
    "zero_",
    problem="a part of another tensor was written to",
    expected="a write to the whole tensor, or to a tensor of its own",
    got="part: f32[3]   whole: f32[2, 3]",
    fix="x[0] = 0, or part = x[0].clone() where the whole is to stay as it is",
)
def method_of_a_part() -> None:
    x = wf.ones((2, 3))
    x[0].zero_()


@mistake(
    FAMILY,
    "An index of an index on the left",
    ArgumentError,
    "setitem",
    problem="a part of another tensor was written to",
    expected="a write to the whole tensor, or to a tensor of its own",
    got="part: f32[3]   whole: f32[2, 3]",
    fix="x[0, 1] = value, or part = x[0].clone() where the whole is to stay as it is",
)
def assignment_to_a_part() -> None:
    x = wf.ones((2, 3))
    x[0][1] = 5.0


@mistake(
    FAMILY,
    "A transpose on the left",
    ArgumentError,
    "setitem",
    problem="a part of another tensor was written to",
    expected="a write to the whole tensor, or to a tensor of its own",
    got="part: f32[3, 2]   whole: f32[2, 3]",
    fix="part = x.T.clone(), write to part, then x.copy_(part.T)",
)
def assignment_to_a_transpose() -> None:
    x = wf.ones((2, 3))
    x.T[0] = 7.0
