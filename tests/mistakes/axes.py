"""Axes, shapes and the order of elements."""

from tests.mistakes.entry import Family, mistake

import weft as wf
from weft import ArgumentError, ArgumentTypeError, AxisError, ShapeError

FAMILY: Family = []


@mistake(
    FAMILY,
    "An axis that the tensor does not have",
    AxisError,
    "sum",
    problem="axis 2 is out of range",
    expected="an integer from -2 to 1",
    got="x: f32[32, 784]   axis: 2",
    fix="pick one, for example the last: axis=1",
)
def axis_out_of_range() -> None:
    x = wf.ones((32, 784))
    x.sum(axis=2)


@mistake(
    FAMILY,
    "The same axis twice",
    AxisError,
    "mean",
    problem="axis 1 is named twice",
    expected="an integer from -2 to 1",
    got="x: f32[2, 3]   axis: (1, -1)",
    fix="name each axis once: axis=(1,)",
)
def repeated_axis() -> None:
    wf.ones((2, 3)).mean(axis=(1, -1))


@mistake(
    FAMILY,
    "An axis that is not an integer",
    AxisError,
    "max",
    problem="axis 1.0 is not an integer",
    expected="an integer from -2 to 1",
    got="x: f32[2, 3]   axis: 1.0",
    fix="pick one, for example the last: axis=1",
)
def fractional_axis() -> None:
    wf.ones((2, 3)).max(axis=1.0)


@mistake(
    FAMILY,
    "PyTorch's name for an axis",
    ArgumentTypeError,
    "sum",
    problem="dim is called axis here, as in NumPy",
    expected="axis=",
    got="dim: 0",
    fix="axis=0",
)
def dim_method() -> None:
    wf.ones((2, 3)).sum(dim=0)


@mistake(
    FAMILY,
    "PyTorch's name for keepdims",
    ArgumentTypeError,
    "mean",
    problem="keepdim is called keepdims here, as in NumPy",
    expected="keepdims=",
    got="keepdim: True",
    fix="keepdims=True",
)
def keepdim_keyword() -> None:
    wf.ones((2, 3)).mean(axis=0, keepdim=True)


@mistake(
    FAMILY,
    "The largest of no elements",
    ShapeError,
    "max",
    problem="nothing to reduce: the tensor is empty along the axes",
    expected="at least one element along each reduced axis",
    got="x: f32[0]   axis: (0,)",
    fix="test x.size first, or join a default element with wf.concat",
)
def reduce_empty() -> None:
    wf.zeros(0).max()


@mistake(
    FAMILY,
    "The place of the largest of no elements",
    ShapeError,
    "argmax",
    problem="nothing to reduce: the tensor is empty along the axes",
    expected="at least one element along each reduced axis",
    got="x: f32[3, 0]   axis: (1,)",
    fix="test x.size first, or join a default element with wf.concat",
)
def argmax_empty() -> None:
    wf.argmax(wf.zeros((3, 0)), axis=1)


@mistake(
    FAMILY,
    "Sorting along an axis that is not there",
    AxisError,
    "sort",
    problem="axis 1 is out of range",
    expected="an integer from -1 to 0",
    got="x: f32[3]   axis: 1",
    fix="axis=0",
)
def sort_axis() -> None:
    wf.sort(wf.tensor([3.0, 1.0, 2.0]), axis=1)


@mistake(
    FAMILY,
    "More of the largest than there are elements",
    ArgumentError,
    "topk",
    problem="there are no 5 elements along axis 0",
    expected="0 <= k <= 3",
    got="x: f32[3]   k: 5   axis: 0",
    fix="take them all: k=3",
)
def topk_too_many() -> None:
    wf.topk(wf.tensor([3.0, 1.0, 2.0]), 5)


@mistake(
    FAMILY,
    "A quantile outside 0 to 1",
    ArgumentError,
    "quantile",
    problem="a fraction is outside 0 to 1",
    expected="0 <= q <= 1",
    got="q: 95",
    fix="divide percentages by 100",
)
def quantile_range() -> None:
    wf.quantile(wf.arange(5.0), 95)


@mistake(
    FAMILY,
    "A shape with another number of elements",
    ShapeError,
    "reshape",
    problem="the number of elements differs",
    expected="shapes with the same number of elements",
    got="x: f32[32, 28, 28]   shape: [32, 780]",
    fix="let one dimension be found: x.reshape(32, -1)",
)
def reshape_size() -> None:
    images = wf.zeros((32, 28, 28))
    images.reshape(32, 780)


@mistake(
    FAMILY,
    "Two sizes to be inferred",
    ShapeError,
    "reshape",
    problem="more than one dimension is -1",
    expected="at most one -1, beside dimensions that are not 0",
    got="x: f32[4, 6]   shape: [-1, -1]",
    fix="write out all dimensions but one",
)
def reshape_two_unknown() -> None:
    wf.zeros((4, 6)).reshape(-1, -1)


@mistake(
    FAMILY,
    "A size that cannot be inferred",
    ShapeError,
    "reshape",
    problem="24 elements do not divide into parts of 5",
    expected="beside -1, dimensions whose product divides 24",
    got="x: f32[4, 6]   shape: [5, -1]",
    fix="keep the first axis: x.reshape(4, -1)",
)
def reshape_not_divisible() -> None:
    wf.zeros((4, 6)).reshape(5, -1)


@mistake(
    FAMILY,
    "An order that does not name every axis",
    AxisError,
    "permute_dims",
    problem="order is not a permutation of the axes",
    expected="each of 0 to 2 once",
    got="x: f32[2, 3, 4]   order: (0, 1)",
    fix="name every axis once, for example (2, 1, 0)",
)
def transpose_missing() -> None:
    wf.permute_dims(wf.zeros((2, 3, 4)), (0, 1))


@mistake(
    FAMILY,
    "The transpose of a stack of matrices",
    ShapeError,
    "T",
    problem="only a tensor with two axes has a transpose",
    expected="x.ndim == 2",
    got="x: f32[8, 2, 3]",
    fix="x.mT for stacks of matrices, wf.permute_dims(x, axes) for any order",
)
def transposed_stack() -> None:
    wf.zeros((8, 2, 3)).T


@mistake(
    FAMILY,
    "Squeezing an axis of more than one element",
    ShapeError,
    "squeeze",
    problem="axis 1 has size 3",
    expected="axes of size 1",
    got="x: f32[1, 3]   axis: 1",
    fix="index the axis to take one element of it: wf.take(x, 0, axis=1)",
)
def squeeze_long() -> None:
    wf.squeeze(wf.zeros((1, 3)), axis=1)


@mistake(
    FAMILY,
    "A new axis beyond the end",
    AxisError,
    "expand_dims",
    problem="axis 4 is out of range",
    expected="an integer from -3 to 2",
    got="x: f32[2, 3]   axis: 4",
    fix="pick one, for example the last: axis=2",
)
def expand_axis() -> None:
    wf.expand_dims(wf.zeros((2, 3)), axis=4)


@mistake(
    FAMILY,
    "Broadcasting to a shape that does not fit",
    ShapeError,
    "broadcast_to",
    problem="the tensor does not broadcast to the shape on axis -1",
    expected="each dimension of x equal to the shape's from the right, or 1",
    got="x: f32[2, 3]   shape: [2, 4]",
    fix="write 3 for 4 in the shape",
)
def broadcast_to_shape() -> None:
    wf.broadcast_to(wf.zeros((2, 3)), (2, 4))


@mistake(
    FAMILY,
    "Joining tensors whose other sizes differ",
    ShapeError,
    "concat",
    problem="sizes differ on axis 1",
    expected="equal sizes on every axis but 0",
    got="x1: f32[2, 3]   x2: f32[2, 4]",
    fix="pad or slice the tensors to equal sizes on the other axes",
)
def concat_sizes() -> None:
    wf.concat([wf.zeros((2, 3)), wf.zeros((2, 4))], axis=0)


@mistake(
    FAMILY,
    "Joining tensors of different numbers of axes",
    ShapeError,
    "concat",
    problem="tensors of different rank, or without the axis to join",
    expected="at least one tensor, and all of one rank above 0",
    got="x1: f32[2, 3]   x2: f32[3]",
    fix="give the smaller ones an axis first: x[None]",
)
def concat_ranks() -> None:
    wf.concat([wf.zeros((2, 3)), wf.zeros(3)])


@mistake(
    FAMILY,
    "Joining no tensors",
    ArgumentTypeError,
    "concat",
    problem="not a sequence of tensors",
    expected="a tuple or list of at least one tensor",
    got="arrays: []",
    fix="wf.concat([x, y])",
)
def concat_nothing() -> None:
    wf.concat([])


@mistake(
    FAMILY,
    "Stacking tensors of different shapes",
    ShapeError,
    "stack",
    problem="the tensors have different shapes",
    expected="tensors of one shape",
    got="x1: f32[3]   x2: f32[4]",
    fix="pad or slice them to one shape, or join them along an axis: wf.concat",
)
def stack_shapes() -> None:
    wf.stack([wf.zeros(3), wf.zeros(4)])


@mistake(
    FAMILY,
    "Stacking no tensors",
    ArgumentTypeError,
    "stack",
    problem="not a sequence of tensors",
    expected="a tuple or list of at least one tensor",
    got="arrays: []",
    fix="wf.stack([x, y])",
)
def stack_nothing() -> None:
    wf.stack([])


@mistake(
    FAMILY,
    "Splitting into parts of unequal size",
    ArgumentError,
    "split",
    problem="10 elements do not make 3 equal parts",
    expected="a number that divides the size of the axis",
    got="x: i64[10]   indices_or_sections: 3   axis: 0",
    fix="allow a smaller last part: wf.chunk(x, 3, axis=0)",
)
def split_uneven() -> None:
    wf.split(wf.arange(10), 3, axis=0)


@mistake(
    FAMILY,
    "A negative number of repetitions",
    ShapeError,
    "tile",
    problem="a dimension is negative",
    expected="dimensions of at least 0",
    got="shape: (-1,)",
    fix="write the size that is meant in place of -1",
)
def tile_negative() -> None:
    wf.tile(wf.arange(3), (-1,))


@mistake(
    FAMILY,
    "Elements repeated a negative number of times",
    ArgumentError,
    "repeat",
    problem="repeats do not fit the axis",
    expected="one number of at least 0, or 3 of them",
    got="x: i64[3]   repeats: -2   axis: 0",
    fix="wf.repeat(x, 2, axis=0)",
)
def repeat_negative() -> None:
    wf.repeat(wf.arange(3), -2)


@mistake(
    FAMILY,
    "One count per element, but not for every element",
    ArgumentError,
    "repeat",
    problem="repeats do not fit the axis",
    expected="one number of at least 0, or 3 of them",
    got="x: i64[3]   repeats: i64[2]   axis: 0",
    fix="wf.repeat(x, 2, axis=0)",
)
def repeat_counts() -> None:
    wf.repeat(wf.arange(3), wf.tensor([1, 2]))


@mistake(
    FAMILY,
    "More shifts than axes",
    ArgumentError,
    "roll",
    problem="not as many shifts as axes",
    expected="one shift for each axis, or one for all",
    got="shift: (1, 2, 3)   axis: (0, 1)",
    fix="wf.roll(x, (1, 2), axis=(0, 1))",
)
def roll_lengths() -> None:
    wf.roll(wf.zeros((2, 3)), (1, 2, 3), axis=(0, 1))


@mistake(
    FAMILY,
    "Padding for more axes than there are",
    ArgumentError,
    "pad",
    problem="the widths do not fit the tensor",
    expected="integers of at least 0: one, a pair, or a pair for each of 2 axes",
    got="x: f32[2, 3]   pad_width: ((1, 1), (1, 1), (1, 1))",
    fix="pad_width=[(1, 1), (1, 1)]",
)
def pad_axes() -> None:
    wf.pad(wf.zeros((2, 3)), ((1, 1), (1, 1), (1, 1)))


@mistake(
    FAMILY,
    "An unknown way to pad",
    ArgumentError,
    "pad",
    problem="unknown mode",
    expected='"constant", "reflect", "edge", "symmetric", "wrap"',
    got="mode: 'sideways'",
    fix='mode="constant"',
)
def pad_mode() -> None:
    wf.pad(wf.zeros((2, 3)), 1, mode="sideways")


@mistake(
    FAMILY,
    "Flattening axes in the wrong order",
    ArgumentError,
    "flatten",
    problem="the first axis comes after the last",
    expected="start_axis <= end_axis",
    got="x: f32[2, 3, 4]   start_axis: 2   end_axis: 1",
    fix="wf.flatten(x, 1, 2)",
)
def flatten_order() -> None:
    wf.flatten(wf.zeros((2, 3, 4)), 2, 1)


@mistake(
    FAMILY,
    "The diagonal of a tensor with three axes",
    ShapeError,
    "diag",
    problem="the tensor has 3 axes",
    expected="a line or a matrix",
    got="x: f32[2, 2, 2]",
    fix="wf.diagonal(x, axis1=-2, axis2=-1) for stacks of matrices",
)
def diag_axes() -> None:
    wf.diag(wf.zeros((2, 2, 2)))


@mistake(
    FAMILY,
    "An unknown side",
    ArgumentError,
    "searchsorted",
    problem="unknown side",
    expected='"left" or "right"',
    got="side: 'middle'",
    fix='side="left"',
)
def searchsorted_side() -> None:
    wf.searchsorted(wf.arange(5.0), wf.tensor([2.5]), side="middle")


@mistake(
    FAMILY,
    "Searching in a matrix",
    ShapeError,
    "searchsorted",
    problem="x1 is not a line",
    expected="x1 with one axis",
    got="x1: f32[2, 2]   x2: f32[1]",
    fix="flatten and sort it first: wf.sort(x1.reshape(-1))",
)
def searchsorted_matrix() -> None:
    wf.searchsorted(wf.zeros((2, 2)), wf.tensor([2.5]))


@mistake(
    FAMILY,
    "Windows larger than the axis",
    ArgumentError,
    "unfold",
    problem="windows that do not fit the axis",
    expected="0 <= size <= 5 and step >= 1",
    got="x: f32[5]   axis: 0   size: 8   step: 1",
    fix="wf.unfold(x, 0, size=5, step=1)",
)
def windows_large() -> None:
    wf.unfold(wf.arange(5.0), 0, 8)


@mistake(
    FAMILY,
    "Two axes to exchange",
    AxisError,
    "transpose",
    problem="two axes name an order, not the axes to exchange",
    expected="an order of all axes, as in NumPy",
    got="x: f32[2, 3]   axes: (0, 1)",
    fix="x.swapaxes(0, 1)",
)
def transpose_pair() -> None:
    wf.ones((2, 3)).transpose(0, 1)


@mistake(
    FAMILY,
    "The places of the largest elements, as PyTorch gives them",
    ArgumentError,
    "max",
    problem="this means one thing in PyTorch and another in NumPy",
    expected="an axis by name: the result is one tensor, of values",
    got="x: f32[2, 3]   axis: 1   element: 1",
    fix="x.argmax(axis=1) for the places, x.max(axis=1)[1] for that element of the values",
)
def second_of_a_maximum() -> None:
    wf.ones((2, 3)).max(1)[1]


@mistake(
    FAMILY,
    "A number that splits by count or by size",
    ArgumentError,
    "split",
    problem="this means one thing in PyTorch and another in NumPy",
    expected="an axis by name, or the size of the parts",
    got="x: i64[6]   indices_or_sections: 2",
    fix="wf.split(x, 2, axis=0) for 2 parts, wf.split(x, size=2, axis=0) for parts of size 2",
)
def split_doubtful() -> None:
    wf.arange(6).split(2)


@mistake(
    FAMILY,
    "Sizes that might be places",
    ArgumentError,
    "split",
    problem="this means one thing in PyTorch and another in NumPy",
    expected="an axis by name, or the size of the parts",
    got="x: i64[6]   indices_or_sections: [1, 2, 3]",
    fix="wf.split(x, [1, 3], axis=0) for parts of these sizes",
)
def split_sizes() -> None:
    wf.arange(6).split([1, 2, 3])


@mistake(
    FAMILY,
    "Parts that are not said",
    ArgumentError,
    "split",
    problem="the parts are not said, or twice",
    expected="a number of parts, places to cut at, or the size of a part",
    got="indices_or_sections: None   size: None",
    fix="wf.split(x, 2, axis=0)",
)
def split_nothing() -> None:
    wf.arange(6).split()


@mistake(
    FAMILY,
    "The whole repeated, or each element",
    ArgumentError,
    "repeat",
    problem="this means one thing in PyTorch and another in NumPy",
    expected="an axis by name",
    got="x: f32[2, 3]   repeats: (2, 1)",
    fix="x.tile((2, 1)) for all of it, x.repeat(2, axis=0) for each element",
)
def repeat_doubtful() -> None:
    wf.ones((2, 3)).repeat(2, 1)


@mistake(
    FAMILY,
    "Fewer sizes than axes",
    ShapeError,
    "expand",
    problem="not one size for each axis",
    expected="2 sizes or more, new axes first, -1 where an axis stays",
    got="x: f32[1, 3]   sizes: (4,)",
    fix="x.expand(-1, -1)",
)
def expand_sizes() -> None:
    wf.ones((1, 3)).expand(4)


@mistake(
    FAMILY,
    "An option by position",
    ArgumentTypeError,
    "sum",
    problem="options are passed by name",
    expected="sum(x, /, *, axis=None, dtype=None, keepdims=False)",
    got="argument 0: f32[2, 3]   argument 1: 1",
    fix="sum(x, axis=1)",
)
def axis_by_position() -> None:
    wf.sum(wf.ones((2, 3)), 1)


@mistake(
    FAMILY,
    "An argument that is missing",
    ArgumentTypeError,
    "take",
    problem="missing a required argument: 'indices'",
    expected="take(x, indices, /, *, axis=None)",
    got="argument 0: f32[2, 3]",
    fix="take(x, indices, /, *, axis=None)",
)
def missing_argument() -> None:
    wf.take(wf.ones((2, 3)))
