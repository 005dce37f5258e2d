"""Random numbers."""

from tests.mistakes.entry import Family, mistake

import weft as wf
from weft import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

FAMILY: Family = []


@mistake(
    FAMILY,
    "A probability above one",
    ArgumentError,
    "random.bernoulli",
    problem="p outside the distribution's domain",
    expected="0 <= p <= 1",
    got="p: 1.5",
    fix="wf.random.bernoulli(0.5)",
)
def bad_probability() -> None:
    wf.random.bernoulli(1.5, (3,))


@mistake(
    FAMILY,
    "Dropping with a negative probability",
    ArgumentError,
    "random.dropout",
    problem="p outside the distribution's domain",
    expected="0 <= p <= 1",
    got="p: -0.1",
    fix="wf.random.dropout(x, 0.5)",
)
def dropout_probability() -> None:
    wf.random.dropout(wf.ones(3), p=-0.1)


@mistake(
    FAMILY,
    "A negative standard deviation",
    ArgumentError,
    "random.normal",
    problem="std outside the distribution's domain",
    expected="std >= 0",
    got="std: -1.0",
    fix="wf.random.normal(shape, std=1.0)",
)
def negative_std() -> None:
    wf.random.normal((3,), std=-1.0)


@mistake(
    FAMILY,
    "An interval whose ends are the wrong way round",
    ArgumentError,
    "random.uniform",
    problem="low and high outside the distribution's domain",
    expected="low < high",
    got="low: 1.0   high: 0.0",
    fix="wf.random.uniform(shape, 0.0, 1.0)",
)
def low_high() -> None:
    wf.random.uniform((3,), low=1.0, high=0.0)


@mistake(
    FAMILY,
    "An integer from an empty interval",
    ArgumentError,
    "random.randint",
    problem="low and high outside the distribution's domain",
    expected="low < high",
    got="low: 5   high: 5",
    fix="wf.random.randint(0, 10, shape)",
)
def randint_empty() -> None:
    wf.random.randint(5, 5, (3,))


@mistake(
    FAMILY,
    "A number for a key",
    DTypeError,
    "random.normal",
    problem="this is not a key",
    expected="a key: u32[2]",
    got="key: 0",
    fix="key = wf.random.key(0)",
)
def key_number() -> None:
    wf.random.normal((3,), key=0)


@mistake(
    FAMILY,
    "A tensor that is not a key",
    DTypeError,
    "random.normal",
    problem="this is not a key",
    expected="a key: u32[2]",
    got="key: f32[2]",
    fix="key = wf.random.key(0)",
)
def key_tensor() -> None:
    wf.random.normal((3,), key=wf.zeros(2))


@mistake(
    FAMILY,
    "A seed that is not an integer",
    ArgumentTypeError,
    "random.seed",
    problem="seed is not an integer",
    expected="a Python integer",
    got="seed: 0.5",
    fix="seed=0",
)
def seed_float() -> None:
    wf.random.seed(0.5)


@mistake(
    FAMILY,
    "Normal numbers of an integer dtype",
    DTypeError,
    "random.normal",
    problem="the numbers are real",
    expected="float16, bfloat16, float32, float64",
    got="dtype: weft.int64",
    fix='wf.random.normal(..., dtype="float32").astype("int64")',
)
def random_dtype() -> None:
    wf.random.normal((3,), dtype="int64")


@mistake(
    FAMILY,
    "More distinct choices than there are elements",
    ArgumentError,
    "random.choice",
    problem="not enough elements to choose from",
    expected="at most 3 without replacement",
    got="shape: [5]   elements: 3   replace: False",
    fix="choose with replace=True, or fewer",
)
def choice_more() -> None:
    wf.random.choice(wf.arange(3), (5,), replace=False)


@mistake(
    FAMILY,
    "Probabilities that do not fit the choices",
    ShapeError,
    "random.choice",
    problem="not one chance for each element",
    expected="p: [3]",
    got="p: f64[2]",
    fix="p = wf.ones(3) / 3",
)
def choice_probabilities() -> None:
    wf.random.choice(wf.arange(3), (5,), p=wf.tensor([0.5, 0.5]))


@mistake(
    FAMILY,
    "A shape that is a float",
    ArgumentTypeError,
    "random.uniform",
    problem="float is not a shape",
    expected="an integer or a sequence of integers",
    got="shape: 3.0",
    fix="round sizes down with n // 2 or int(n), as in shape=(2, 3)",
)
def random_shape() -> None:
    wf.random.uniform(3.0)


@mistake(
    FAMILY,
    "A covariance that is not square",
    ShapeError,
    "random.multivariate_normal",
    problem="mean and cov do not go together",
    expected="mean: [..., n], cov: [..., n, n]",
    got="mean: f32[2]   cov: f32[2, 3]",
    fix="cov = wf.eye(mean.shape[-1])",
)
def covariance() -> None:
    wf.random.multivariate_normal(wf.zeros(2), wf.ones((2, 3)))


@mistake(
    FAMILY,
    "A negative rate",
    ArgumentError,
    "random.poisson",
    problem="rate outside the distribution's domain",
    expected="0 <= rate",
    got="rate: -1.0",
    fix="wf.random.poisson(shape, 1.0)",
)
def rate_negative() -> None:
    wf.random.poisson((3,), rate=-1.0)


@mistake(
    FAMILY,
    "Parameters that do not broadcast to the shape",
    ShapeError,
    "random.normal",
    problem="shapes do not broadcast",
    expected="dimensions equal or 1, from the right",
    got="shape: [3]   mean: f32[4]",
    fix="make mean.shape[-1] 3, or 1 to repeat it: mean[..., :1]",
)
def parameter_shape() -> None:
    wf.random.normal((3,), mean=wf.zeros(4))


@mistake(
    FAMILY,
    "The sizes of random numbers as several arguments",
    ArgumentTypeError,
    "normal",
    problem="a shape is one argument",
    expected="a tuple of sizes, and parameters by name",
    got="arguments: (2, 3)",
    fix="wf.random.normal((2, 3))",
)
def random_sizes_apart() -> None:
    wf.random.normal(2, 3)
