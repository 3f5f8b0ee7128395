"""The criterion "loo" of the regressor: refits without each row by its own means, every kind of array, what it is not
for."""

import itertools
import warnings

import dask.array as da
import numpy as np
import pytest
import zarr
from cases import rows

from dorff import ORFFRegressor, kernels
from dorff.errors import InputError, QualityWarning
from dorff.frequencies import Orthogonal

N = 24
GAUSS = kernels.Gaussian(0.7)
VIEWS = kernels.MultiView([(1, GAUSS), ([1], kernels.Decomposable(kernels.Gaussian(1.2), [[1.0, 0.4], [0.4, 2.0]]))])
SAME_VIEWS = kernels.MultiView([(1, GAUSS), ([1], 0.5 * kernels.Decomposable(GAUSS))])
HELMHOLTZ = 0.3 * kernels.CurlFree(GAUSS) + 0.7 * kernels.DivergenceFree(GAUSS)


def regressor(kernel, ridge, **options):
    return ORFFRegressor(
        kernel, 16, ridge=ridge, standardize=False, **{"cv": None, "criterion": "loo"} | options, sampler=Orthogonal()
    )


@pytest.mark.parametrize("missing", ["refuse", "partial"])
@pytest.mark.parametrize("kernel", [kernels.Decomposable(GAUSS), HELMHOLTZ, VIEWS, SAME_VIEWS])
def test_errors_are_those_of_fits_without_each_row(kernel, missing):
    (X, Y), w = rows(N, 2, 2), np.linspace(0.5, 2.0, N)
    if missing == "partial":
        Y[::5, 1] = np.nan
    model = regressor(kernel, [1e-3, 1e-1], missing=missing).fit(X, Y, w)
    errors, left = [], np.isfinite(Y)
    for ridge in (1e-3, 1e-1):
        values = np.empty(Y.shape)
        for i, rest in enumerate(~np.eye(N, dtype=bool)):
            again = regressor(kernel, ridge * w.sum() / w[rest].sum(), missing=missing, criterion="gcv")
            values[i] = again.fit(X[rest], Y[rest], w[rest]).predict(X[[i]])[0]
        errors.append(np.sum(np.where(left, Y - values, 0.0) ** 2 * w[:, None]) / (w @ left).sum())
    np.testing.assert_allclose(model.cv_errors_, errors, rtol=1e-8)
    assert model.ridge_ == [1e-3, 1e-1][int(np.argmax(model.cv_scores_))]


def test_the_default_ridges_extend_themselves():
    X, Y = rows(60, 2, 1)
    model = ORFFRegressor(GAUSS, 16, criterion="loo").fit(X, Y)
    assert len(model.cv_scores_) >= 11 and model.ridge_ > 0
    assert not hasattr(model, "gcv_")


def test_every_kind_of_array_gives_the_same(tmp_path, monkeypatch):
    """Of a sample of the rows, too: runs of them, whatever the chunks."""
    monkeypatch.setattr("dorff.plan.sampled.LEFT_OUT", 128)
    X, Y = rows(700, 2, 2)
    stored = [zarr.create_array(tmp_path / name, data=one, chunks=(90, 2)) for name, one in (("X", X), ("Y", Y))]
    lazy = [da.from_array(one, chunks=(110, 2)) for one in (X, Y)]
    first, *others = (regressor(HELMHOLTZ, [1e-3, 1e-1]).fit(*both).cv_errors_ for both in ((X, Y), stored, lazy))
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-9)
    monkeypatch.setattr("dorff.plan.sampled.LEFT_OUT", 2**15)
    every = regressor(HELMHOLTZ, [1e-3, 1e-1]).fit(X, Y).cv_errors_
    assert 1e-6 < np.max(np.abs(every / first - 1)) < 0.3


def test_manifold_terms_and_what_it_is_not_for():
    X, Y = rows(N, 2, 1)
    Y[::3] = np.nan
    weights = [0.0, 1e-3]
    model = regressor(GAUSS, [1e-3, 1e-2], manifold=weights).fit(X, Y)
    assert model.trials_.shape == (4, 2) and np.isfinite(model.cv_scores_).all()
    alone = regressor(GAUSS, [1e-3, 1e-2]).fit(X[np.isfinite(Y[:, 0])], Y[np.isfinite(Y[:, 0])])
    np.testing.assert_allclose(model.cv_errors_[:2], alone.cv_errors_, rtol=1e-9)
    with pytest.raises(InputError, match="leave-one-out reads rows once more"):
        alone.partial_fit(X[1:2], Y[1:2])
    with pytest.warns(UserWarning, match="criterion='loo' has no effect: with cv"):
        regressor(GAUSS, [1e-3, 1e-2], cv=3).fit(X[1::3], Y[1::3])


def noisy_waves(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two inputs and a target (n,), a third of whose deviation is noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 2))
    return X, np.sin(4.0 * X[:, 0]) * np.cos(3.0 * X[:, 1]) + 0.3 * rng.standard_normal(n)


@pytest.mark.filterwarnings("ignore::dorff.errors.QualityWarning")
def test_of_few_rows_ridges_are_compared_by_rows_left_out() -> None:
    """GCV may take the smallest ridge of all where a fit has as many degrees of freedom as there are rows."""
    ridges, (at, truth) = [10.0**power for power in range(-12, 2)], noisy_waves(1000, 99)
    scores = {"auto": [], "gcv": []}
    for seed, (criterion, found) in itertools.product(range(12), scores.items()):
        X, y = noisy_waves(20, seed)
        fitted = ORFFRegressor(GAUSS, 128, sampler=Orthogonal(), ridge=ridges, cv=None, criterion=criterion).fit(X, y)
        assert hasattr(fitted, "cv_errors_" if criterion == "auto" else "gcv_")
        found.append(fitted.score(at, truth))
    assert min(scores["auto"]) > -1.0 and min(scores["gcv"]) < -2.0
    many = ORFFRegressor(GAUSS, 128, sampler=Orthogonal(), ridge=ridges, cv=None).fit(*noisy_waves(200, 0))
    assert hasattr(many, "gcv_") and not hasattr(many, "cv_errors_")


def test_gcv_of_few_rows_that_rows_left_out_speak_against_is_warned_of() -> None:
    ridges, said = [10.0**power for power in range(-12, 2)], 0
    for seed in range(12):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ORFFRegressor(GAUSS, 128, sampler=Orthogonal(), ridge=ridges, cv=None, criterion="gcv").fit(
                *noisy_waves(20, seed)
            )
        texts = [str(one.message) for one in caught if issubclass(one.category, QualityWarning)]
        said += any(text.startswith("gcv chose ridge") and text.endswith("leave criterion out") for text in texts)
    assert 2 <= said < 12
