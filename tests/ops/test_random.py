"""Random numbers: the stream, the distributions, the generator, and what is refused."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
    TraceError,
    Unsupported,
    WeftError,
)
from weft.ops.random_bits import philox

COUNT = 20_000


def sample(name: str, *parameters: object, **options: object) -> np.ndarray:
    key = wf.random.key(123)
    return np.asarray(getattr(wf.random, name)((COUNT,), *parameters, key=key, **options))


# --- the stream --------------------------------------------------------------------------------

KNOWN_ANSWERS = [  # kat_vectors of Random123: counter, key, result of philox4x32 with 10 rounds
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(counter: Any, key: Any, expected: Any) -> None:
    assert philox(counter[0], key, counter[1:]) == expected
    words = philox(np.full(3, counter[0], np.uint64), key, [np.uint64(c) for c in counter[1:]])
    assert [word.tolist() for word in words] == [[word] * 3 for word in expected]


def test_the_stream_never_changes_silently() -> None:
    key = wf.random.key(0)
    assert wf.random.bits((5,), key=key).tolist() == [
        1713891541, 3781805453, 3159862348, 2600524760, 4175744164,
    ]  # fmt: skip
    assert wf.random.bits((2,), dtype="uint64", key=key).tolist() == LITERALS["bits64"]
    assert wf.random.split(key).tolist() == LITERALS["split"]
    assert wf.random.fold_in(key, 7).tolist() == LITERALS["fold_in"]
    assert wf.random.uniform((3,), key=key).tolist() == LITERALS["uniform"]
    np.testing.assert_allclose(wf.random.normal((3,), key=key).numpy(), LITERALS["normal"], 1e-6)
    assert wf.random.randint(0, 100, (6,), key=key).tolist() == LITERALS["randint"]
    assert wf.random.permutation(6, key=key).tolist() == LITERALS["permutation"]
    assert wf.random.poisson((6,), 4.0, key=key).tolist() == LITERALS["poisson"]
    wf.random.seed(0)
    assert wf.random.uniform((2,)).tolist() == LITERALS["seeded"][:2]
    assert wf.random.uniform((2,)).tolist() == LITERALS["seeded"][2:]


LITERALS: dict[str, list] = {
    "bits64": [16242730742183356629, 11169168799798111308],
    "split": [[4104060920, 3988735920], [2859715571, 3165482647]],
    "fold_in": [1299902054, 1244853650],
    "uniform": [0.3990464210510254, 0.8805201649665833, 0.7357127666473389],
    "normal": [0.9911377429962158, -0.9246624112129211, -0.6176091432571411],
    "randint": [29, 8, 68, 51, 29, 89],
    "permutation": [3, 5, 4, 2, 1, 0],
    "poisson": [3, 3, 4, 2, 7, 5],
    "seeded": [0.20144391059875488, 0.3184966444969177, 0.9822515845298767, 0.3057515025138855],
}


@pytest.mark.parametrize("name", ["bits", "uniform", "normal", "laplace", "gamma"])
def test_a_smaller_sample_is_the_beginning_of_a_larger_one(name: Any) -> None:
    draw = getattr(wf.random, name)
    key = wf.random.key(5)
    large = np.asarray(draw((70_003,), key=key))
    for count in (1, 2, 5, 60, 1001):
        assert np.array_equal(np.asarray(draw((count,), key=key)), large[:count])
    assert np.array_equal(np.asarray(draw((3, 4), key=key)).ravel(), large[:12])


PURE = {
    "uniform": lambda key: wf.random.uniform((3,), key=key),
    "normal": lambda key: wf.random.normal((3,), key=key),
    "gamma": lambda key: wf.random.gamma((3,), 0.7, key=key),
    "beta": lambda key: wf.random.beta((3,), 2.0, 0.5, key=key),
    "poisson": lambda key: wf.random.poisson(None, wf.tensor([1.0, 30.0]), key=key),
    "binomial": lambda key: wf.random.binomial((3,), 100, 0.3, key=key),
    "randint": lambda key: wf.random.randint(0, 9, (4,), key=key),
    "permutation": lambda key: wf.random.permutation(5, key=key),
    "categorical": lambda key: wf.random.categorical(wf.zeros(4), key=key),
    "choice": lambda key: wf.random.choice(6, (3,), replace=False, key=key),
    "dropout": lambda key: wf.random.dropout(wf.ones(5), 0.5, key=key),
    "split": lambda key: wf.random.split(key, 3),
    "fold_in": lambda key: wf.random.fold_in(key, 3),
}


@pytest.mark.parametrize("name", PURE)
def test_each_element_of_a_batch_gets_what_its_key_alone_gives(name: Any) -> None:
    keys = wf.random.split(wf.random.key(1), 4)
    found = np.asarray(wf.vmap(PURE[name])(keys))
    assert found.shape[0] == 4
    for row in range(4):
        assert np.array_equal(found[row], np.asarray(PURE[name](keys[row])))


def test_keys_made_of_a_key_do_not_repeat_its_numbers() -> None:
    key = wf.random.key(0)
    words = set(wf.random.bits((4000,), key=key).tolist())
    made = wf.random.split(key, 100).numpy().ravel().tolist()
    made += wf.random.fold_in(key, 0).tolist() + wf.random.fold_in(key, 1).tolist()
    assert not words & set(made)
    assert len(set(made)) == len(made)


def test_fold_in_takes_tensors_and_large_integers() -> None:
    key = wf.random.key(2)
    assert wf.random.fold_in(key, wf.tensor(5)).tolist() == wf.random.fold_in(key, 5).tolist()
    assert wf.random.fold_in(key, 1 << 40).tolist() != wf.random.fold_in(key, 0).tolist()


# --- the global generator ----------------------------------------------------------------------


def test_a_seed_begins_the_stream_anew_and_a_state_continues_it() -> None:
    wf.random.seed(11)
    first = [wf.random.normal((2,)).tolist() for _ in range(3)]
    wf.random.seed(11)
    assert [wf.random.normal((2,)).tolist() for _ in range(3)] == first
    state = wf.random.get_state()
    following = wf.random.uniform((3,)).tolist()
    wf.random.set_state(state)
    assert wf.random.uniform((3,)).tolist() == following
    assert int(state.counter) == 3


def test_threads_never_draw_the_same_key() -> None:
    wf.random.seed(0)
    drawn: list[list[float]] = []

    def work() -> None:
        drawn.extend([wf.random.uniform((2,)).tolist() for _ in range(25)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tuple(pair) for pair in drawn}) == 100
    assert int(wf.random.get_state().counter) == 100


def test_a_draw_without_a_key_inside_vmap_is_refused() -> None:
    with pytest.raises(TraceError) as caught:
        wf.vmap(lambda x: x + wf.random.normal())(wf.ones(3))
    assert caught.value.op == "random.normal"
    assert "key=key" in caught.value.fix


# --- distributions -----------------------------------------------------------------------------


def kolmogorov(drawn: np.ndarray, distribution: Any) -> float:
    """Kolmogorov and Smirnov's distance, times the root of the count: above 1.95 once in 1000."""
    ordered = np.sort(np.asarray(drawn, np.float64))
    expected = np.array([distribution(x) for x in ordered[:: len(ordered) // 2000]])
    places = np.arange(0, len(ordered), len(ordered) // 2000) / len(ordered)
    return float(np.abs(expected - places).max() * math.sqrt(len(ordered)))


def phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def gamma_cdf(a: float) -> Any:
    """By the series of the incomplete gamma function."""

    def distribution(x: float) -> float:
        term = total = 1.0 / a
        n = a
        while term > 1e-16 * total:
            n += 1.0
            term *= x / n
            total += term
        return math.exp(a * math.log(x) - x - math.lgamma(a)) * total if x > 0 else 0.0

    return distribution


CONTINUOUS = {
    "uniform": (("uniform", -1.0, 3.0), lambda x: (x + 1.0) / 4.0),
    "normal": (("normal", 2.0, 3.0), lambda x: phi((x - 2.0) / 3.0)),
    "exponential": (("exponential", 2.0), lambda x: -math.expm1(-x / 2.0)),
    "gumbel": (("gumbel", 1.0, 2.0), lambda x: math.exp(-math.exp(-(x - 1.0) / 2.0))),
    "laplace": (
        ("laplace",),
        lambda x: 0.5 * math.exp(x) if x < 0 else 1.0 - 0.5 * math.exp(-x),
    ),
    "truncated_normal": (
        ("truncated_normal", 0.5, 2.0),
        lambda x: (phi(x) - phi(0.5)) / (phi(2.0) - phi(0.5)),
    ),
    "gamma below one": (("gamma", 0.4), gamma_cdf(0.4)),
    "gamma": (("gamma", 2.5), gamma_cdf(2.5)),
    "beta": (("beta", 2.0, 1.0), lambda x: x * x),
    "beta below one": (("beta", 0.5, 0.5), lambda x: 2.0 / math.pi * math.asin(math.sqrt(x))),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_samples_follow_their_distribution(name: Any, dtype: Any) -> None:
    call, distribution = CONTINUOUS[name]
    drawn = sample(*call, dtype=dtype)
    assert drawn.dtype == np.dtype(dtype)
    assert np.isfinite(drawn).all()
    assert kolmogorov(drawn, distribution) < 1.95


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["uniform", "normal", "exponential", "gumbel", "laplace", "gamma"])
def test_narrow_floats_have_the_moments_of_wide_ones(name: Any, dtype: Any) -> None:
    narrow = sample(name, dtype=dtype).astype(np.float64)
    wide = sample(name)
    assert np.isfinite(narrow).all()
    assert narrow.mean() == pytest.approx(wide.mean(), abs=0.01)
    if name == "uniform":
        assert narrow.max() < 1.0


def test_normal_reaches_far_out() -> None:
    """One number in 10**6 is beyond 4.9 deviations; a float's 24 bits alone would end at 5.4."""
    drawn = np.asarray(wf.random.normal((1_000_000,), key=wf.random.key(3)))
    assert 4.3 < np.abs(drawn).max() < 6.8
    assert abs((drawn**4).mean() - 3.0) < 0.05
    assert abs((np.abs(drawn) > 3.0).mean() - 0.0026998) < 0.0003


def poisson_chance(rate: float) -> Any:
    return lambda k: math.exp(k * math.log(rate) - rate - math.lgamma(k + 1.0))


def binomial_chance(n: int, p: float) -> Any:
    return lambda k: math.comb(n, k) * p**k * (1.0 - p) ** (n - k)


COUNTS = {
    "poisson, few": (("poisson", 2.0), poisson_chance(2.0), 30),
    "poisson, many": (("poisson", 40.0), poisson_chance(40.0), 120),
    "binomial, few": (("binomial", 12, 0.3), binomial_chance(12, 0.3), 12),
    "binomial, many": (("binomial", 200, 0.4), binomial_chance(200, 0.4), 200),
    "binomial, flipped": (("binomial", 30, 0.9), binomial_chance(30, 0.9), 30),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_follow_their_distribution(name: Any) -> None:
    """Pearson's statistic is within 4 deviations of its mean."""
    call, chance, last = COUNTS[name]
    drawn = sample(*call)
    assert drawn.dtype == np.int64
    assert drawn.min() >= 0
    expected = np.array([chance(k) for k in range(last + 1)]) * COUNT
    found = np.bincount(drawn, minlength=last + 1)[: last + 1]
    often = expected > 5
    statistic = ((found - expected) ** 2 / np.where(often, expected, 1.0))[often].sum()
    freedom = often.sum() - 1
    assert abs(statistic - freedom) < 4 * math.sqrt(2 * freedom)


def test_counts_at_the_edges_of_their_parameters() -> None:
    key = wf.random.key(0)
    rates = wf.tensor([0.0, 1e-8, 1e6])
    few, rare, many = wf.random.poisson(None, rates, key=key).tolist()
    assert few == rare == 0
    assert abs(many - 1e6) < 6000
    assert wf.random.binomial((3,), 0, 0.5, key=key).tolist() == [0, 0, 0]
    assert wf.random.binomial((2,), 100, 1.0, key=key).tolist() == [100, 100]
    assert wf.random.binomial((2,), 100, 0.0, key=key).tolist() == [0, 0]


def test_integers_cover_their_range_evenly() -> None:
    drawn = np.asarray(wf.random.randint(-3, 5, (COUNT,), key=wf.random.key(0)))
    counts = np.bincount(drawn + 3)
    assert len(counts) == 8
    assert ((counts - COUNT / 8) ** 2 / (COUNT / 8)).sum() < 7 + 4 * math.sqrt(14)
    small = wf.random.randint(0, 256, (1000,), dtype="uint8", key=wf.random.key(0))
    assert small.dtype == wf.uint8
    assert int(wf.max(small)) > 250
    wide = wf.random.randint(-(2**63), 2**63 - 1, (200,), key=wf.random.key(0)).numpy()
    assert wide.min() < -(2**61)
    assert wide.max() > 2**61
    bounds = wf.random.randint(wf.tensor(4), wf.tensor(6), (50,), key=wf.random.key(0))
    assert set(bounds.tolist()) == {4, 5}


def test_bernoulli_and_dropout_keep_their_share() -> None:
    key = wf.random.key(4)
    assert abs(np.asarray(wf.random.bernoulli(0.3, (COUNT,), key=key)).mean() - 0.3) < 0.015
    dropped = np.asarray(wf.random.dropout(wf.ones(COUNT), 0.25, key=key))
    assert set(np.unique(dropped)) == {0.0, np.float32(1.0 / 0.75)}
    assert abs((dropped == 0).mean() - 0.25) < 0.015
    mask = wf.random.dropout_mask((COUNT,), 0.25, key=key)
    assert np.array_equal(
        np.asarray(mask), np.asarray(wf.random.bernoulli(0.75, (COUNT,), key=key))
    )


def test_dropout_does_nothing_outside_training() -> None:
    x = wf.tensor([1.0, 2.0])
    assert wf.random.dropout(x, 0.9, training=False) is x
    assert wf.random.dropout(x, 0.0) is x
    assert wf.random.dropout(x, 1.0).tolist() == [0.0, 0.0]


def test_the_gradient_of_dropout_is_its_mask() -> None:
    key = wf.random.key(0)
    x = wf.ones(50)
    gradient = wf.grad(lambda x: wf.random.dropout(x, 0.5, key=key).sum())(x)
    assert np.array_equal(np.asarray(gradient), np.asarray(wf.random.dropout(x, 0.5, key=key)))


def test_categories_are_chosen_in_proportion() -> None:
    logits = wf.log(wf.tensor([[0.1, 0.2, 0.7], [1.0, 1.0, 2.0]]))
    drawn = np.asarray(wf.random.categorical(logits, shape=(COUNT, 2), key=wf.random.key(0)))
    shares = [np.bincount(drawn[:, i]) / COUNT for i in (0, 1)]
    np.testing.assert_allclose(shares[0], [0.1, 0.2, 0.7], atol=0.015)
    np.testing.assert_allclose(shares[1], [0.25, 0.25, 0.5], atol=0.015)
    assert wf.random.categorical(logits, axis=0, key=wf.random.key(0)).shape == (3,)


def test_choice_with_and_without_replacement() -> None:
    key = wf.random.key(0)
    drawn = np.asarray(wf.random.choice(3, (COUNT,), p=[0.1, 0.2, 0.7], key=key))
    np.testing.assert_allclose(np.bincount(drawn) / COUNT, [0.1, 0.2, 0.7], atol=0.015)
    assert sorted(wf.random.choice(6, (6,), replace=False, key=key).tolist()) == list(range(6))
    weighted = wf.random.choice(4, (2,), replace=False, p=[0.5, 0.0, 0.5, 0.0], key=key)
    assert sorted(weighted.tolist()) == [0, 2]
    table = wf.reshape(wf.arange(12), (3, 4))
    assert wf.random.choice(table, (2, 5), axis=1, key=key).shape == (3, 2, 5)
    assert wf.random.choice(table, (2,), key=key).shape == (2, 4)


def test_permutations_move_whole_rows() -> None:
    table = wf.reshape(wf.arange(12), (4, 3))
    mixed = wf.random.permutation(table, key=wf.random.key(1))
    assert mixed.tolist() != table.tolist()
    assert sorted(mixed.tolist()) == table.tolist()
    by_column = wf.random.shuffle(table, axis=1, key=wf.random.key(1))
    assert (by_column[:, 0] % 3).tolist() == [by_column[0, 0].item() % 3] * 4
    first = [
        wf.random.permutation(4, key=k)[0].item() for k in wf.random.split(wf.random.key(0), 400)
    ]
    assert min(np.bincount(first)) > 70


def test_vectors_with_a_covariance() -> None:
    cov = wf.tensor([[2.0, 0.5], [0.5, 1.0]])
    drawn = np.asarray(
        wf.random.multivariate_normal(wf.tensor([1.0, -1.0]), cov, (COUNT,), key=wf.random.key(0))
    )
    np.testing.assert_allclose(drawn.mean(0), [1.0, -1.0], atol=0.04)
    np.testing.assert_allclose(np.cov(drawn.T), np.asarray(cov), atol=0.08)


def test_dirichlet_vectors_add_up_to_one() -> None:
    concentration = wf.tensor([0.01, 0.02, 0.03], dtype="float64")
    drawn = np.asarray(wf.random.dirichlet(concentration, (5000,), key=wf.random.key(0)))
    np.testing.assert_allclose(drawn.sum(1), 1.0)
    np.testing.assert_allclose(drawn.mean(0), [1 / 6, 2 / 6, 3 / 6], atol=0.03)


# --- derivatives -------------------------------------------------------------------------------

REPARAMETERISED = {
    "uniform": (-1.0, 2.0),
    "normal": (0.5, 2.0),
    "exponential": (2.0,),
    "gumbel": (0.5, 2.0),
    "laplace": (0.5, 2.0),
    "truncated_normal": (-1.0, 2.0, 0.1, 1.3),
}


@pytest.mark.parametrize("name", REPARAMETERISED)
def test_samples_are_differentiable_in_their_parameters(name: Any) -> None:
    draw = getattr(wf.random, name)
    parameters = [wf.tensor(p, dtype="float64") for p in REPARAMETERISED[name]]
    f = lambda *ps: draw((4,), *ps, key=wf.random.key(0), dtype="float64")  # noqa: E731
    wf.testing.check_grads(f, parameters, order=2)


def test_gamma_samples_keep_their_place_when_the_concentration_moves() -> None:
    """The implicit derivative against differences of the inverse distribution function."""
    key, step = wf.random.key(0), 1e-4
    for a in (1.5, 7.0):
        f = lambda a: wf.random.gamma((8,), a, key=key, dtype="float64")  # noqa: E731
        slopes = wf.jvp(f, (wf.tensor(a, dtype="float64"),), (wf.tensor(1.0, dtype="float64"),))[1]
        for x, slope in zip(f(a).tolist(), slopes.tolist(), strict=True):
            above, below = (_inverse(gamma_cdf(a + h), gamma_cdf(a)(x)) for h in (step, -step))
            assert slope == pytest.approx((above - below) / (2 * step), rel=1e-5)


def _inverse(distribution: Any, place: float) -> float:
    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if distribution(middle) < place else (low, middle)
    return low


def test_the_mean_of_gamma_and_beta_gradients_is_the_gradient_of_the_mean() -> None:
    key = wf.random.key(0)
    a = wf.tensor(0.6, dtype="float64")
    slope = wf.grad(lambda a: wf.mean(wf.random.gamma((COUNT,), a, key=key)))(a).item()
    assert slope == pytest.approx(1.0, abs=0.05)
    slope = wf.grad(lambda a: wf.mean(wf.random.beta((COUNT,), a, 2.0, key=key)))(a).item()
    assert slope == pytest.approx(2.0 / 2.6**2, abs=0.02)


def test_second_derivatives_of_gamma_samples_are_refused_with_the_reason() -> None:
    f = wf.grad(lambda a: wf.random.gamma((), a, key=wf.random.key(0)))
    with pytest.raises(Unsupported, match="first order"):
        wf.grad(f)(wf.tensor(2.0))


# --- mistakes ----------------------------------------------------------------------------------

KEY = wf.random.key(0)
MISTAKES = {
    "p above one": (lambda: wf.random.bernoulli(1.5), ArgumentError, "wf.random.bernoulli(0.5)"),
    "p is nan": (lambda: wf.random.bernoulli(math.nan), ArgumentError, "wf.random.bernoulli(0.5)"),
    "negative std": (lambda: wf.random.normal((2,), std=-1.0), ArgumentError, "std=1.0"),
    "low above high": (lambda: wf.random.uniform((2,), 2.0, 1.0), ArgumentError, "0.0, 1.0"),
    "empty range": (lambda: wf.random.randint(5, 5), ArgumentError, "randint(0, 10, shape)"),
    "range of the dtype": (
        lambda: wf.random.randint(0, 300, dtype="int8"), ArgumentError, 'dtype="int64"',
    ),
    "float bounds": (lambda: wf.random.randint(0.5, 3), DTypeError, "randint(0, 10"),
    "randint of floats": (
        lambda: wf.random.randint(0, 3, dtype="float32"), DTypeError, 'astype("float32")',
    ),
    "normal integers": (
        lambda: wf.random.normal((2,), dtype="int32"), DTypeError, 'astype("int32")',
    ),
    "complex mean": (lambda: wf.random.normal(None, wf.tensor(1j)), DTypeError, "astype"),
    "key of floats": (lambda: wf.random.uniform(key=wf.ones(2)), DTypeError, "wf.random.key(0)"),
    "key is a number": (lambda: wf.random.uniform(key=3), DTypeError, "wf.random.key(0)"),
    "several keys": (
        lambda: wf.random.uniform(key=wf.random.split(KEY)), ShapeError, "wf.vmap",
    ),
    "negative seed": (lambda: wf.random.key(-1), ArgumentError, "wf.random.key(0)"),
    "seed is a float": (lambda: wf.random.seed(0.5), ArgumentTypeError, "seed=0"),
    "float data": (lambda: wf.random.fold_in(KEY, wf.tensor(0.5)), ArgumentTypeError, "int64"),
    "not a state": (lambda: wf.random.set_state(3), ArgumentTypeError, "get_state"),
    "negative shape": (lambda: wf.random.uniform((-1,)), WeftError, ""),
    "parameter wider than the shape": (
        lambda: wf.random.normal((1,), wf.zeros(3)), ShapeError, "leave shape out",
    ),
    "parameter does not broadcast": (
        lambda: wf.random.normal((2,), wf.zeros(3)), ShapeError, "mean",
    ),
    "concentration of zero": (lambda: wf.random.gamma((), 0.0), ArgumentError, "concentration=1.0"),
    "negative rate": (lambda: wf.random.poisson((), -1.0), ArgumentError, "poisson(shape, 1.0)"),
    "half an attempt": (lambda: wf.random.binomial((), 2.5, 0.5), ArgumentError, "10"),
    "too many without replacement": (
        lambda: wf.random.choice(3, (4,), replace=False), ArgumentError, "replace=True",
    ),
    "chances of another length": (
        lambda: wf.random.choice(3, (2,), p=[0.5, 0.5]), ShapeError, "wf.ones(3) / 3",
    ),
    "chances that do not add up": (
        lambda: wf.random.choice(2, (2,), p=[0.5, 0.2]), ArgumentError, "wf.sum(p)",
    ),
    "shape without the logits'": (
        lambda: wf.random.categorical(wf.zeros((2, 3)), shape=(4,)), ShapeError, "(n, 2,)",
    ),
    "no categories": (
        lambda: wf.random.categorical(wf.zeros((0,))), ShapeError, "categorical(wf.zeros(3))",
    ),
    "axis out of range": (
        lambda: wf.random.permutation(wf.ones(3), axis=1), WeftError, "",
    ),
    "dropout of integers": (
        lambda: wf.random.dropout(wf.tensor([1])), DTypeError, 'astype("float32")',
    ),
    "covariance of another size": (
        lambda: wf.random.multivariate_normal(wf.zeros(2), wf.eye(3)), ShapeError, "wf.eye",
    ),
    "concentration without axis": (
        lambda: wf.random.dirichlet(2.0), ShapeError, "dirichlet(wf.ones(3))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_with_the_way_out(name: Any) -> None:
    call, kind, fix = MISTAKES[name]
    with pytest.raises(WeftError) as caught:
        call()
    assert isinstance(caught.value, kind)
    assert caught.value.op.startswith("random.")
    assert fix in caught.value.fix
    assert caught.value.expected
    assert caught.value.got
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


@pytest.mark.parametrize("way", ["jit", "units", "reference"])
def test_a_seed_counts_for_functions_that_were_compiled_before_it(way: str) -> None:
    """The key is read at each call; it was once a constant of the first program."""

    def f(x: wf.Tensor) -> wf.Tensor:
        return wf.random.dropout(x, 0.5)

    x = wf.ones((40, 40))
    run = wf.jit(f) if way == "jit" else f
    masks = []
    for seed in (1, 2, 1):
        wf.random.seed(seed)
        with wf.settings.changed(eager="reference"):
            wanted = f(x).numpy()
        wf.random.seed(seed)
        with wf.settings.changed(eager="reference" if way == "reference" else "native"):
            masks.append(run(x).numpy())
        np.testing.assert_array_equal(masks[-1], wanted)
    assert (masks[0] != masks[1]).any()
    np.testing.assert_array_equal(masks[0], masks[2])
