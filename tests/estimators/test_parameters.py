"""Kernels and samplers in scikit-learn's words: their parameters, their names; short texts of what is fitted."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dorff import ORFFClassifier, ORFFRegressor, frequencies, kernels
from dorff.errors import InputError
from dorff.kernels import median_lengthscale

GAUSSIAN = kernels.Gaussian(0.5)
HELMHOLTZ = 0.3 * kernels.CurlFree(GAUSSIAN) + 0.7 * kernels.DivergenceFree(kernels.Matern(2.0, nu=2.5))


def field(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(seed).uniform(-3, 3, (n, 2))
    return X, np.stack([np.sin(X[:, 0]) + X[:, 1], np.cos(X[:, 1]) + 5.0], axis=1)


def test_parameters_of_kernels_and_samplers_are_parameters():
    estimator = ORFFRegressor(HELMHOLTZ, sampler=frequencies.QMC())
    params = estimator.get_params()
    assert params["kernel__term1__scalar__nu"] == 2.5 and params["kernel__weight0"] == 0.3
    assert params["sampler__sequence"] == "sobol" and "kernel__weight0" not in estimator.get_params(deep=False)
    for name, value in params.items():  # each may be set to what it is
        assert repr(clone(estimator).set_params(**{name: value})) == repr(estimator), name
    other = clone(estimator).set_params(
        kernel__term0__scalar__lengthscale=3.0, kernel__weight1=9.0, kernel__concatenate=True, sampler__scramble=False
    )
    (first, curl), (second, div) = other.kernel.terms()
    assert (first, second, curl.scalar.lengthscale, div.scalar.lengthscale) == (0.3, 9.0, 3.0, 2.0)
    assert other.kernel.concatenated and not other.sampler.scramble
    assert HELMHOLTZ.terms()[0][1].scalar.lengthscale == 0.5  # the one given is as it was
    matrix = kernels.Decomposable(GAUSSIAN, kernels.Graph([[0, 1], [1, 0]]))
    assert ORFFRegressor(matrix).set_params(kernel__output__offset=2.0).kernel.output.offset == 2.0
    both = ORFFRegressor().set_params(kernel__scalar__lengthscale=4.0, kernel=kernels.CurlFree(GAUSSIAN))
    assert both.kernel == kernels.CurlFree(kernels.Gaussian(4.0))


@pytest.mark.parametrize("kernel", [GAUSSIAN, None, "gaussian"])
def test_a_grid_of_length_scales(kernel):
    X, Y = field(200)
    pipeline = make_pipeline(StandardScaler(), ORFFRegressor(kernel, n_features=64, ridge=1e-6))
    grid = {"orffregressor__kernel__lengthscale": [0.01, 1.0]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, Y)
    assert search.best_params_ == {"orffregressor__kernel__lengthscale": 1.0}
    assert search.best_estimator_[-1].model_.kernel.scalar.lengthscale == 1.0


@pytest.mark.parametrize(
    ("kernel", "changes", "message"),
    [
        (
            GAUSSIAN,
            {"kernel__lengthscal": 1.0},
            r"kernel is of type Gaussian; did you mean 'lengthscale'\? it has len",
        ),
        (HELMHOLTZ, {"kernel__term0__scalar__nu": 1.0}, r"kernel__term0__scalar__nu is no parameter: .* Gaussian"),
        (HELMHOLTZ, {"kernel__weight0": -1.0}, "weight of a kernel must be zero or a positive number"),
        (None, {"sampler__scramble": True}, "sampler__scramble is no parameter: sampler is None; it has none"),
        ("matern", {"kernel__nu": 2.5}, "kernel is 'matern', whose .*give kernel__lengthscale too"),
        ("curl_free", {"kernel__measure": "trace"}, "give kernel__scalar__lengthscale too"),
        (None, {"kernels": None}, "Invalid parameter 'kernels' for estimator"),
    ],
)
def test_parameters_that_there_are_not_are_refused(kernel, changes, message):
    with pytest.raises(ValueError, match=message):
        ORFFRegressor(kernel).set_params(**changes)


def test_kernels_by_name():
    """Of targets that say nothing of length-scales these are median distances."""
    X, Y = field(100)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    flat = np.ones((100, 2))
    median = median_lengthscale(X)
    for name, kernel in {
        "matern": kernels.Decomposable(kernels.Matern(median)),
        "curl_free": kernels.CurlFree(kernels.Gaussian(median)),
        "laplacian": kernels.Decomposable(kernels.Laplacian(median_lengthscale(X, absolute=True))),
        "arc_cosine": kernels.Decomposable(kernels.ArcCosine()),
    }.items():
        by_name = ORFFRegressor(name, 64, ridge=1e-6).fit(X, flat).model_
        given = ORFFRegressor(kernel, 64, ridge=1e-6).fit(X, flat).model_
        np.testing.assert_allclose(
            by_name.feature_map.transform(X), given.feature_map.transform(X), atol=1e-6, err_msg=name
        )
        np.testing.assert_allclose(by_name.weights, given.weights, atol=1e-9, err_msg=name)
        assert type(by_name.kernel) is type(given.kernel), name
    one_scale = ORFFRegressor("divergence_free", 64, standardize=True).fit(X * [1.0, 9.0], Y)
    assert np.ptp(one_scale.model_.feature_map.scale) == 0
    simplex = ORFFClassifier("matern", 32, calibrate=False).fit(X, X[:, 0] > 0)
    assert isinstance(simplex.model_.kernel.output, kernels.Factor)
    with pytest.warns(UserWarning, match="coding='one_vs_all' has no effect"):
        ORFFClassifier("decomposable", 32, coding="one_vs_all").fit(X, X[:, 0] > 0)
    made = ORFFRegressor("matern").set_params(kernel__nu=2.5, kernel__lengthscale=3.0).kernel
    assert made == kernels.Matern(3.0, nu=2.5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gausian", r"not 'gausian'; did you mean 'gaussian'\? of those .* will do: gaussian, laplacian, matern"),
        ("mercer", "one of dorff.kernels, not 'mercer'"),
        ("sum", "not 'sum'"),
        (3, "kernel must be one of dorff.kernels, not 3"),
    ],
)
def test_names_that_there_are_not_are_refused(name, message):
    with pytest.raises(InputError, match=message):
        ORFFRegressor(name).fit(*field(10))
    with pytest.raises(InputError, match="needs as many targets as inputs"):
        ORFFRegressor("curl_free").fit(np.ones((9, 3)), np.ones((9, 2)))


def test_what_is_fitted_is_shown_in_a_line():
    X, Y = field(50)
    fitted = ORFFRegressor(HELMHOLTZ, 64).fit(X, Y)
    assert repr(fitted.model_) == "Model(d=2, p=2, m=64, kernel=Sum)"
    assert repr(fitted.model_.feature_map) == "FeatureMap(d=2, m=64, phi=Projected)"
    assert len(repr(fitted)) < 600
