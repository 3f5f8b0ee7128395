"""RandomFeatures: scikit-learn's own checks, products that are the kernel's, every kind of input."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from dorff import ORFFRegressor, RandomFeatures, frequencies, kernels
from dorff.errors import InputError

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (300, 2)) + 7.0
Y = np.sin(X.sum(axis=1))


@parametrize_with_checks([RandomFeatures(n_features=16)])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (kernels.Matern(1.5, nu=2.5), {}),
        (kernels.Gaussian(2.0), {"sampler": frequencies.Quadrature()}),  # whose centre needs a column of its own
        (kernels.ArcCosine(), {}),
        (kernels.Gaussian(1.0), {"standardize": True}),
    ],
)
def test_products_of_features_are_the_kernel(kernel, options):
    features = RandomFeatures(kernel, 8192, **options).fit(X)
    F = features.transform(X[:40])
    seen = X / X.std(axis=0) if "standardize" in options else X
    exact = kernel.gram(seen[:40], seen[:40])
    assert np.abs(F @ F.T - exact).max() < 0.06 * np.abs(exact).max()
    if kernel.shift_invariant:  # a rule's weights, its centre's too, sum to 1
        assert np.allclose(np.sum(F**2, axis=1), 1.0)
    assert F.shape[1] == features.feature_map_.m == len(features.get_feature_names_out()) <= 8192


def test_features_are_those_of_the_regressor():
    for options in ({}, {"standardize": True, "sampler": frequencies.IID(), "random_state": 3}):
        model = ORFFRegressor(kernels.Matern(1.3), 32, **options).fit(X, Y).model_
        features = RandomFeatures(kernels.Matern(1.3), 32, **options).fit_transform(X)
        assert np.array_equal(features, model.feature_map.transform(X))
    assert np.array_equal(RandomFeatures(None, 32).fit_transform(X), RandomFeatures("gaussian", 32).fit_transform(X))


def test_in_a_pipeline_with_a_grid():
    pipeline = make_pipeline(RandomFeatures(n_features=64), Ridge(1e-6))
    search = GridSearchCV(pipeline, {"randomfeatures__kernel__lengthscale": [0.01, 1.0]}, cv=3).fit(X, Y)
    assert search.best_params_ == {"randomfeatures__kernel__lengthscale": 1.0} and search.best_score_ > 0.9
    frame = (
        RandomFeatures(n_features=8).set_output(transform="pandas").fit_transform(pd.DataFrame(X, columns=["a", "b"]))
    )
    assert list(frame.columns) == [f"randomfeatures{i}" for i in range(8)]


def test_every_kind_of_input_agrees_with_numpy(tmp_path):
    wanted = RandomFeatures(n_features=16).fit_transform(X)
    zarr.create_array(tmp_path / "x", data=X, chunks=(64, 2))
    lazy = RandomFeatures(n_features=16).fit_transform(da.from_array(X, chunks=(100, 1)))
    assert isinstance(lazy, da.Array) and np.allclose(lazy, wanted, atol=1e-12)
    stored = RandomFeatures(n_features=16).fit_transform(zarr.open_array(tmp_path / "x", mode="r"))
    assert isinstance(stored, np.ndarray) and np.allclose(stored, wanted, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": kernels.CurlFree(kernels.Gaussian(1.0))}, "kernel must be a scalar kernel or its name"),
        ({"kernel": "curl_free"}, "kernel must be a scalar kernel or its name, .* not 'curl_free'"),
        ({"kernel": "gausian"}, "did you mean 'gaussian'"),
        ({"n_features": 2.5}, "n_features must be a whole number, not 2.5"),
        ({"sampler": "iid"}, "sampler must be one of dorff.frequencies"),
        ({"random_state": -1}, "random_state must be 0 or more"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        RandomFeatures(**options).fit(X)
    with pytest.warns(UserWarning, match="sampler=IID.. has no effect"):
        RandomFeatures(kernels.Polynomial(2), 16, sampler=frequencies.IID()).fit(X)
