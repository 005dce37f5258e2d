"""Products, convolutions, matrices, Fourier transforms."""

from tests.mistakes.entry import Family, mistake

import weft as wf
from weft import ArgumentError, ArgumentTypeError, AxisError, DTypeError, ShapeError

FAMILY: Family = []


@mistake(
    FAMILY,
    "Matrices whose inner sizes differ",
    ShapeError,
    "matmul",
    problem="inner dimensions differ",
    expected="a.shape[-1] == b.shape[-2]",
    got="a: f32[32, 784]   b: f32[768, 10]",
    fix="give b 784 rows, or transpose it: b.T",
)
def matmul_inner() -> None:
    hidden = wf.zeros((32, 784))
    weight = wf.zeros((768, 10))
    hidden @ weight


@mistake(
    FAMILY,
    "A matrix product with a number",
    ShapeError,
    "matmul",
    problem="a number has no rows or columns",
    expected="tensors with at least one axis",
    got="a: f32[2, 3]   b: f32[]",
    fix="multiply by a number with a * b",
)
def matmul_scalar() -> None:
    wf.zeros((2, 3)) @ wf.tensor(2.0)


@mistake(
    FAMILY,
    "Stacks of matrices of different lengths",
    ShapeError,
    "matmul",
    problem="shapes do not broadcast",
    expected="dimensions equal or 1, from the right",
    got="a: f32[8, 2, 3]   b: f32[4, 3, 5]",
    fix="make b.shape[-3] 8, or 1 to repeat it: b[..., :1, :, :]",
)
def matmul_batch() -> None:
    wf.zeros((8, 2, 3)) @ wf.zeros((4, 3, 5))


@mistake(
    FAMILY,
    "A matrix product of booleans",
    DTypeError,
    "matmul",
    problem="not defined for this dtype, only for numbers",
    expected="int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16,",
    got="a: bool[1, 1]   b: bool[1, 1]",
    fix='convert first: x.astype("int64")',
)
def matmul_bool() -> None:
    wf.tensor([[True]]) @ wf.tensor([[True]])


@mistake(
    FAMILY,
    "One letter for two sizes",
    ShapeError,
    "einsum",
    problem="axes called 'd' have different sizes",
    expected="one size for each letter",
    got="subscripts: 'btd,bsd->bts'   x1: f32[8, 10, 64]   x2: f32[8, 12, 32]",
    fix="use different letters, or tensors of equal sizes there",
)
def einsum_sizes() -> None:
    q = wf.zeros((8, 10, 64))
    k = wf.zeros((8, 12, 32))
    wf.einsum("btd,bsd->bts", q, k)


@mistake(
    FAMILY,
    "More subscripts than operands",
    ArgumentError,
    "einsum",
    problem="the formula has 2 operands, the call has 1",
    expected='letters for the axes of each operand, as in "ij,jk->ik"',
    got="subscripts: 'ij,jk->ik'",
    fix='name each axis once per operand: einsum("...ij,...jk->...ik", a, b)',
)
def einsum_count() -> None:
    wf.einsum("ij,jk->ik", wf.zeros((2, 3)))


@mistake(
    FAMILY,
    "Fewer letters than axes",
    ArgumentError,
    "einsum",
    problem="'ij' names 2 axes of a tensor with 3",
    expected='letters for the axes of each operand, as in "ij,jk->ik"',
    got="subscripts: 'ij,jk->ik'   x1: f32[2, 3, 4]   x2: f32[4, 5]",
    fix='name each axis once per operand: einsum("...ij,...jk->...ik", a, b)',
)
def einsum_letters() -> None:
    wf.einsum("ij,jk->ik", wf.zeros((2, 3, 4)), wf.zeros((4, 5)))


@mistake(
    FAMILY,
    "A letter that appears only in the result",
    ArgumentError,
    "einsum",
    problem="'k' of the result is not in any operand",
    expected='letters for the axes of each operand, as in "ij,jk->ik"',
    got="subscripts: 'ij->ik'   x1: f32[2, 3]",
    fix='name each axis once per operand: einsum("...ij,...jk->...ik", a, b)',
)
def einsum_output() -> None:
    wf.einsum("ij->ik", wf.zeros((2, 3)))


@mistake(
    FAMILY,
    "Contracting axes of different sizes",
    ShapeError,
    "tensordot",
    problem="paired dimensions differ",
    expected="a.shape[1] == b.shape[0]",
    got="a: f32[2, 3]   b: f32[4, 5]   axes: 1",
    fix="pair axes of equal sizes, or give both 3 elements there",
)
def tensordot_axes() -> None:
    wf.tensordot(wf.zeros((2, 3)), wf.zeros((4, 5)), axes=1)


@mistake(
    FAMILY,
    "A dot product of vectors of different lengths",
    ShapeError,
    "vecdot",
    problem="vectors have different lengths",
    expected="a.shape[-1] == b.shape[-1]",
    got="a: f32[3]   b: f32[4]",
    fix="give both 3 elements there, or choose another axis",
)
def vecdot_sizes() -> None:
    wf.vecdot(wf.zeros(3), wf.zeros(4))


@mistake(
    FAMILY,
    "A cross product outside three dimensions",
    ShapeError,
    "cross",
    problem="the vectors do not have three elements",
    expected="x1.shape[-1] == x2.shape[-1] == 3",
    got="x1: f32[4]   x2: f32[4]",
    fix="pass the axis that holds the vectors: axis=...",
)
def cross_size() -> None:
    wf.linalg.cross(wf.zeros(4), wf.zeros(4))


@mistake(
    FAMILY,
    "A convolution of pictures whose channels stand last",
    ShapeError,
    "conv2d",
    problem="channels differ",
    expected="input channels == weight.shape[1] * groups",
    got="x: f32[8, 32, 24, 3]   weight: f32[16, 3, 5, 5]   groups: 1",
    fix="channels stand on axis 1: x.permute(0, 3, 1, 2)",
)
def conv_channels_last() -> None:
    wf.conv2d(wf.zeros((8, 32, 24, 3)), wf.zeros((16, 3, 5, 5)))


@mistake(
    FAMILY,
    "A convolution of other channels than its kernel has",
    ShapeError,
    "conv2d",
    problem="channels differ",
    expected="input channels == weight.shape[1] * groups",
    got="x: f32[8, 3, 32, 32]   weight: f32[16, 1, 5, 5]   groups: 1",
    fix="give the weight 3 input channels",
)
def conv_channels() -> None:
    images = wf.zeros((8, 3, 32, 32))
    kernel = wf.zeros((16, 1, 5, 5))
    wf.conv2d(images, kernel)


@mistake(
    FAMILY,
    "A convolution of images without a batch axis",
    ShapeError,
    "conv2d",
    problem="the input does not have 2 spatial axes",
    expected="[batch, channels, *2 spatial], or without batch",
    got="x: f32[28, 28]",
    fix="give x 4 axes: x[None, None]",
)
def conv_axes() -> None:
    image = wf.zeros((28, 28))
    wf.conv2d(image, wf.zeros((16, 1, 5, 5)))


@mistake(
    FAMILY,
    "A kernel larger than the image",
    ShapeError,
    "conv2d",
    problem="the kernel is larger than the padded input",
    expected="at least 5 elements along spatial axis 0",
    got="x: f32[1, 1, 3, 3]   weight: f32[1, 1, 5, 5]",
    fix="pad the input, or use a smaller kernel or dilation",
)
def conv_kernel_large() -> None:
    wf.conv2d(wf.zeros((1, 1, 3, 3)), wf.zeros((1, 1, 5, 5)))


@mistake(
    FAMILY,
    "A stride of zero",
    ArgumentError,
    "conv1d",
    problem="stride is not one integer for each of the 1 spatial axes",
    expected="an integer of at least 1, or 1 of them",
    got="stride: 0",
    fix="stride=1",
)
def conv_stride() -> None:
    wf.conv1d(wf.zeros((1, 1, 8)), wf.zeros((1, 1, 3)), stride=0)


@mistake(
    FAMILY,
    "Groups that do not divide the channels",
    ShapeError,
    "conv1d",
    problem="channels differ",
    expected="input channels == weight.shape[1] * groups",
    got="x: f32[1, 3, 8]   weight: f32[4, 1, 3]   groups: 2",
    fix="choose groups that divide the 3 channels",
)
def conv_groups() -> None:
    wf.conv1d(wf.zeros((1, 3, 8)), wf.zeros((4, 1, 3)), groups=2)


@mistake(
    FAMILY,
    "An unknown padding",
    ArgumentError,
    "conv1d",
    problem="unknown padding",
    expected='a number, "valid", or "same" with stride 1',
    got="padding: 'full'   stride: (1,)",
    fix="padding=0",
)
def conv_padding() -> None:
    wf.conv1d(wf.zeros((1, 1, 8)), wf.zeros((1, 1, 3)), padding="full")


@mistake(
    FAMILY,
    "A bias of another length than the result has channels",
    ShapeError,
    "conv1d",
    problem="the bias does not have one element per output channel",
    expected="a bias of shape (4,)",
    got="bias: f32[3]",
    fix="bias = wf.zeros(4)",
)
def conv_bias() -> None:
    wf.conv1d(wf.zeros((1, 1, 8)), wf.zeros((4, 1, 3)), wf.zeros(3))


@mistake(
    FAMILY,
    "A window larger than the image",
    ShapeError,
    "max_pool2d",
    problem="the kernel is larger than the padded input",
    expected="at least 5 elements along spatial axis 0",
    got="x: f32[1, 1, 4, 4]   window: (5, 5)   stride: (5, 5)   padding: ((0,",
    fix="pad the input, or use a smaller kernel or dilation",
)
def pool_window() -> None:
    wf.max_pool2d(wf.zeros((1, 1, 4, 4)), 5)


@mistake(
    FAMILY,
    "Padding wider than half a window",
    ArgumentError,
    "avg_pool1d",
    problem="padding is more than half of the window",
    expected="padding <= kernel_size / 2",
    got="padding: 2   kernel_size: 2",
    fix="pad the input first: wf.pad(x, ...)",
)
def pool_padding() -> None:
    wf.avg_pool1d(wf.zeros((1, 1, 8)), 2, padding=2)


@mistake(
    FAMILY,
    "Pooling a tensor with too few axes",
    ShapeError,
    "max_pool2d",
    problem="the input does not have 2 spatial axes",
    expected="[batch, channels, *2 spatial], or without batch",
    got="x: f32[28]",
    fix="give x 4 axes: x[None, None, None]",
)
def pool_axes() -> None:
    wf.max_pool2d(wf.zeros(28), 2)


@mistake(
    FAMILY,
    "An unknown way to interpolate",
    ArgumentError,
    "interpolate",
    problem="'smooth' is not a mode for 1 spatial axes",
    expected="one of 'nearest', 'nearest-exact', 'area', 'linear'",
    got="x: f32[1, 1, 4]   mode: 'smooth'   align_corners: False",
    fix='mode="linear"',
)
def interpolate_mode() -> None:
    wf.interpolate(wf.zeros((1, 1, 4)), size=8, mode="smooth")


@mistake(
    FAMILY,
    "Interpolating without a size",
    ArgumentError,
    "interpolate",
    problem="exactly one of size and scale_factor is needed",
    expected="size or scale_factor",
    got="x: f32[1, 1, 4]   size: None   scale_factor: None",
    fix="scale_factor=2.0",
)
def interpolate_both() -> None:
    wf.interpolate(wf.zeros((1, 1, 4)))


@mistake(
    FAMILY,
    "A size for more axes than there are",
    ArgumentError,
    "interpolate",
    problem="size is not one integer for each of the 1 spatial axes",
    expected="an integer of at least 1, or 1 of them",
    got="size: (8, 8)",
    fix="size=8",
)
def interpolate_sizes() -> None:
    wf.interpolate(wf.zeros((1, 1, 4)), size=(8, 8))


@mistake(
    FAMILY,
    "The inverse of a matrix that is not square",
    ShapeError,
    "inv",
    problem="the matrix is not square",
    expected="x.shape[-2] == x.shape[-1]",
    got="x: f32[2, 3]",
    fix="make it square, for example x.mT @ x",
)
def not_square() -> None:
    wf.linalg.inv(wf.zeros((2, 3)))


@mistake(
    FAMILY,
    "The inverse of a singular matrix",
    ArgumentError,
    "inv",
    problem="the matrix is singular",
    expected="a matrix with independent columns",
    got="x: f32[2, 2]",
    fix="use the pseudo-inverse, which always exists: wf.linalg.pinv(x)",
)
def singular() -> None:
    wf.linalg.inv(wf.tensor([[1.0, 2.0], [2.0, 4.0]]))


@mistake(
    FAMILY,
    "The Cholesky factor of a matrix that is not positive definite",
    ArgumentError,
    "cholesky",
    problem="the matrix is not positive definite",
    expected="a positive definite matrix",
    got="x: f32[2, 2]",
    fix="move its eigenvalues up: x + 1e-6 * wf.eye(x.shape[-1])",
)
def not_positive() -> None:
    wf.linalg.cholesky(wf.tensor([[1.0, 2.0], [2.0, 1.0]]))


@mistake(
    FAMILY,
    "Solving with a right-hand side of another length",
    ShapeError,
    "solve",
    problem="the number of rows differs",
    expected="a.shape[0] == b.shape[0]",
    got="a: f32[3, 3]   b: f32[4, 1]",
    fix="give b as many rows as a has",
)
def solve_sizes() -> None:
    wf.linalg.solve(wf.eye(3), wf.ones(4))


@mistake(
    FAMILY,
    "The determinant of a vector",
    ShapeError,
    "det",
    problem="not a matrix",
    expected="at least 2 axes: [..., rows, columns]",
    got="x: f32[3]",
    fix="give it two axes, for example x.reshape(1, -1)",
)
def det_vector() -> None:
    wf.linalg.det(wf.ones(3))


@mistake(
    FAMILY,
    "A negative power of a singular matrix",
    ArgumentError,
    "inv",
    problem="the matrix is singular",
    expected="a matrix with independent columns",
    got="x: f32[2, 2]",
    fix="use the pseudo-inverse, which always exists: wf.linalg.pinv(x)",
)
def power_singular() -> None:
    wf.linalg.matrix_power(wf.zeros((2, 2)), -1)


@mistake(
    FAMILY,
    "An unknown norm",
    ArgumentError,
    "matrix_norm",
    problem="unknown order",
    expected="'fro', 'nuc', 1, -1, 2, -2, inf or -inf",
    got="ord: 'frobenius'",
    fix="leave it out for the Frobenius norm: ord='fro'",
)
def norm_order() -> None:
    wf.linalg.matrix_norm(wf.eye(2), ord="frobenius")


@mistake(
    FAMILY,
    "An unknown mode of a factorization",
    ArgumentError,
    "qr",
    problem="unknown mode",
    expected="'reduced' or 'complete'",
    got="mode: 'full'",
    fix="leave it out for the reduced factors: wf.linalg.qr(x)",
)
def qr_mode() -> None:
    wf.linalg.qr(wf.eye(2), mode="full")


@mistake(
    FAMILY,
    "The singular values of a matrix that is not finite",
    ArgumentError,
    "svd",
    problem="the iteration did not converge",
    expected="finite elements",
    got="x: f32[2, 2]",
    fix="find the elements that are not: wf.isfinite(x)",
)
def svd_nan() -> None:
    wf.linalg.svd(wf.tensor([[float("nan"), 1.0], [1.0, 1.0]]))


@mistake(
    FAMILY,
    "An unknown normalization",
    ArgumentError,
    "fft",
    problem="unknown norm",
    expected="'backward', 'ortho' or 'forward'",
    got="norm: 'unitary'",
    fix="leave it out: the inverse is scaled by 1/n",
)
def fft_norm() -> None:
    wf.fft.fft(wf.ones(8), norm="unitary")


@mistake(
    FAMILY,
    "A transform of no points",
    ArgumentError,
    "fft",
    problem="a transform has at least one element, and not more than memory",
    expected="n of at least 1",
    got="n: 0",
    fix="leave n out to transform the whole axis",
)
def fft_length() -> None:
    wf.fft.fft(wf.ones(8), n=0)


@mistake(
    FAMILY,
    "A transform along an axis that is not there",
    AxisError,
    "rfft",
    problem="axis 1 is out of range",
    expected="an integer from -1 to 0",
    got="x: f32[8]   axis: 1",
    fix="axis=0",
)
def fft_axis() -> None:
    wf.fft.rfft(wf.ones(8), axis=1)


@mistake(
    FAMILY,
    "A real transform of complex numbers",
    DTypeError,
    "rfft",
    problem="not defined for this dtype, only for floats",
    expected="float16, bfloat16, float32, float64",
    got="x: c64[2]",
    fix="choose a real number: abs(x), x.real or x.imag",
)
def rfft_complex() -> None:
    wf.fft.rfft(wf.tensor([1j, 2j]))


@mistake(
    FAMILY,
    "A size for other axes than the transform's",
    AxisError,
    "fftn",
    problem="more sizes than axes",
    expected="at most 2 sizes",
    got="x: c64[4, 4]   s: (4, 4, 4)",
    fix="give one size per axis",
)
def fftn_sizes() -> None:
    wf.fft.fftn(wf.ones((4, 4)), s=(4, 4, 4))


@mistake(
    FAMILY,
    "PyTorch's name for causal attention",
    ArgumentTypeError,
    "scaled_dot_product_attention",
    problem="is_causal is called causal here",
    expected="causal=",
    got="is_causal: True",
    fix="causal=True",
)
def causal_option() -> None:
    x = wf.ones((1, 2, 3, 4))
    wf.scaled_dot_product_attention(x, x, x, is_causal=True)
