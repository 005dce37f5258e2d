"""Functions of other libraries on our tensors, and ours in theirs, where they are installed."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import weft as wf

# --- einops --------------------------------------------------------------------------------------


def test_einops_rearranges_tensors_eager_compiled_and_back() -> None:
    einops = pytest.importorskip("einops")
    x = wf.random.normal((2, 3, 4, 4), key=wf.random.key(0))

    def patches(t: wf.Tensor) -> wf.Tensor:
        t = einops.rearrange(t, "b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2)
        return einops.repeat(einops.reduce(t, "b n d -> b d", "mean"), "b d -> b n d", n=3)

    expected = patches(x.numpy())
    np.testing.assert_allclose(patches(x).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(wf.jit(patches)(x).numpy(), expected, rtol=1e-6)
    gradient = wf.grad(lambda t: (patches(t) ** 2).sum())(x)
    assert gradient.shape == x.shape
    compiled = wf.jit(patches)
    for size in (2, 5, 7):
        batch = wf.ones((size, 3, 4, 4))
        assert compiled(batch).shape == (size, 3, 12)


def test_einops_packs_stacks_and_multiplies() -> None:
    einops = pytest.importorskip("einops")
    x, y = wf.ones((2, 3)), wf.ones((2, 4, 3))
    packed, shapes = einops.pack([x, y], "b * c")
    assert packed.shape == (2, 5, 3)
    assert [part.shape for part in einops.unpack(packed, shapes, "b * c")] == [(2, 3), (2, 4, 3)]
    assert einops.rearrange([x, x], "n b c -> b n c").shape == (2, 2, 3)
    product = einops.einsum(x, wf.ones((3, 5)), "b c, c d -> b d")
    assert product.tolist() == [[3.0] * 5] * 2
    assert einops.reduce(wf.tensor([1.0, 5.0]), "n -> ", "max").item() == 5.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "order", ["import gc, weft as wf, einops; gc.collect()", "import einops, weft as wf"]
)
def test_einops_knows_tensors_whichever_was_imported_first(order: str) -> None:
    pytest.importorskip("einops")
    program = f"{order}; assert einops.rearrange(wf.ones((2, 3)), 'a b -> b a').shape == (3, 2)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_importing_weft_imports_none_of_the_others() -> None:
    program = (
        "import sys, weft; others = ('einops', 'sklearn', 'pandas', 'polars', 'yaml', 'optuna');"
        "assert not [name for name in others if name in sys.modules]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# --- scikit-learn --------------------------------------------------------------------------------


def test_a_missing_package_is_named_with_its_extra() -> None:
    program = (
        "import sys, weft as wf; sys.modules['sklearn'] = None\n"
        "try: wf.estimators.WeftClassifier()\n"
        "except wf.UnsupportedError as error: print(error.fix)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=120, capture_output=True, text=True
    )
    assert result.stdout.strip() == 'pip install "weft[sklearn]"'


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["WeftClassifier", "WeftRegressor"])
def test_scikit_learns_checks_of_estimators_pass(kind: str) -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    estimator = getattr(wf.estimators, kind)((16,), epochs=12, lr=0.02)
    failed = []
    pairs = list(checks.estimator_checks_generator(estimator))
    assert len(pairs) > 30
    for each, check in pairs:
        try:
            check(each)
        except Exception as error:
            if type(error).__name__ != "SkipTest":
                failed.append(f"{check}: {type(error).__name__}: {error}")
    assert failed == []


def test_a_classifier_works_in_pipelines_and_searches() -> None:
    pytest.importorskip("sklearn")
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    (x, y), (unseen, answers) = wf.data.sets.load_iris()
    names = np.array(["a", "b", "c"])[y.numpy()]
    net = make_pipeline(StandardScaler(), wf.estimators.WeftClassifier((8,), random_state=0))
    search = GridSearchCV(net, {"weftclassifier__epochs": [1, 10]}, cv=2)
    search.fit(x.numpy(), names)
    assert search.best_params_ == {"weftclassifier__epochs": 10}
    found = search.predict(unseen.numpy())
    assert np.mean(found == np.array(["a", "b", "c"])[answers.numpy()]) > 0.8


def test_an_estimator_takes_a_network_of_ones_own_and_survives_pickling() -> None:
    pytest.importorskip("sklearn")
    x = np.random.default_rng(0).normal(size=(80, 3))
    y = np.stack([x.sum(axis=1), x[:, 0]], axis=1)
    net = wf.estimators.WeftRegressor(module=wf.nn.Linear, epochs=40, lr=0.05, random_state=1)
    net.fit(x, y)
    assert net.score(x, y) > 0.95
    again = pickle.loads(pickle.dumps(net))
    assert again.predict(x).tolist() == net.predict(x).tolist()


def test_fitting_leaves_the_global_random_state_alone() -> None:
    pytest.importorskip("sklearn")
    wf.random.seed(7)
    expected = wf.random.normal((3,)).tolist()
    wf.random.seed(7)
    wf.estimators.WeftRegressor((4,), epochs=1, random_state=3).fit(np.eye(4), np.arange(4.0))
    assert wf.random.normal((3,)).tolist() == expected


# --- frames --------------------------------------------------------------------------------------


def check_frame(frame: Any) -> None:
    table = wf.data.from_frame(frame)
    assert table["count"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(table["price"], [1.5, np.nan, 2.0])
    assert table["city"].tolist() == ["Bern", "", "Ulm"]
    assert table["open"].tolist() == [True, False, True]
    batch = next(iter(wf.data.DataLoader(wf.data.ArrayDataset(table), batch_size=2)))
    assert batch["count"].tolist() == [1, 2]
    assert list(wf.data.from_frame(frame, columns=["city"])) == ["city"]
    with pytest.raises(wf.ArgumentError, match="prize"):
        wf.data.from_frame(frame, columns=["prize"])


COLUMNS: dict[str, list[Any]] = {
    "count": [1, 2, 3], "price": [1.5, None, 2.0], "city": ["Bern", None, "Ulm"],
    "open": [True, False, True],
}  # fmt: skip


def test_a_dictionary_is_taken_as_a_frame() -> None:
    check_frame(COLUMNS)


def test_columns_of_pandas_are_taken() -> None:
    pandas = pytest.importorskip("pandas")
    check_frame(pandas.DataFrame(COLUMNS))
    check_frame(pandas.DataFrame(COLUMNS).convert_dtypes())
    frame = pandas.DataFrame({"kind": pandas.Categorical(["b", "a", "b"])})
    assert wf.data.from_frame(frame)["kind"].tolist() == ["b", "a", "b"]
    assert wf.asarray(pandas.Series([1.0, 2.0])).tolist() == [1.0, 2.0]


def test_columns_of_polars_are_taken() -> None:
    polars = pytest.importorskip("polars")
    check_frame(polars.DataFrame(COLUMNS))
    assert wf.asarray(polars.Series([1.0, 2.0])).tolist() == [1.0, 2.0]


# --- Arrow and Hugging Face ----------------------------------------------------------------------


def test_arrays_go_to_arrow_and_back() -> None:
    pytest.importorskip("pyarrow")
    table = {"x": np.arange(12, dtype=np.float32).reshape(3, 2, 2), "y": wf.tensor([1, 2, 3])}
    back = wf.data.from_arrow(wf.data.to_arrow(table))
    assert back["y"].tolist() == [1, 2, 3]
    assert np.stack([np.stack(row) for row in back["x"]]).tolist() == table["x"].tolist()


def test_datasets_of_hugging_face_go_both_ways() -> None:
    datasets = pytest.importorskip("datasets")
    table = {"x": np.ones((4, 2), np.float32), "y": np.arange(4)}
    dataset = datasets.Dataset(wf.data.to_arrow(table))
    ours = wf.data.from_huggingface(dataset, columns=["x", "y"])
    batch = next(iter(wf.data.DataLoader(ours, batch_size=4)))
    assert batch["x"].shape == (4, 2)
    assert batch["y"].tolist() == [0, 1, 2, 3]
