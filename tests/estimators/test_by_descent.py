"""Estimators fitted by descent: scikit-learn's checks, optima of other fits, passes, kinds of arrays, refusals."""

import pickle
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from dorff import (
    DoublyStochasticClassifier,
    DoublyStochasticRegressor,
    ORFFClassifier,
    ORFFRegressor,
    StochasticORFFClassifier,
    StochasticORFFRegressor,
    frequencies,
    kernels,
    load_model,
)
from dorff.errors import InputError
from dorff.estimators.descents import batches
from dorff.frequencies import Orthogonal
from dorff.model.losses import Quantiles
from dorff.solvers.descent import Average, Cosine, InverseTime
from dorff.store import save_model

GAUSSIAN = kernels.Gaussian(1.5)
HELMHOLTZ = 0.3 * kernels.CurlFree(GAUSSIAN) + 0.7 * kernels.DivergenceFree(GAUSSIAN)
COUPLED = kernels.Decomposable(GAUSSIAN, [[2.0, 0.5], [0.5, 1.0]])
NOT_EXACT = {
    "check_sample_weight_equivalence_on_dense_data": "a row of weight 2 is not two rows, which are shuffled apart",
    "check_sample_weight_equivalence_on_sparse_data": "the same",
}


def field(n=600, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 2))
    Y = np.stack([np.sin(X[:, 0]) + X[:, 1], np.cos(X[:, 1]) + 5.0], axis=1)
    return X, Y + 0.1 * rng.standard_normal((n, 2))


def classes(n=600, seed=0):
    X, _ = field(n, seed)
    return X, np.array(["a", "b", "c"])[(X[:, 0] > 0) + (X[:, 1] > 1).astype(int)]


@parametrize_with_checks(
    [
        StochasticORFFRegressor(kernels.Gaussian(3.0), 32, epochs=60),
        StochasticORFFClassifier(kernels.Gaussian(3.0), 32, epochs=60),
        DoublyStochasticRegressor(kernels.Gaussian(3.0), n_features=32, epochs=15),
        DoublyStochasticClassifier(kernels.Gaussian(3.0), n_features=32, epochs=15),
    ],
    expected_failed_checks=lambda _: NOT_EXACT,
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("kernel", [COUPLED, HELMHOLTZ], ids=["coupled", "helmholtz"])
def test_the_square_comes_to_the_fit_by_sums(kernel, standardize):
    """Same features, ridge and scales: the predictions, in the targets' units, agree to 3% of their deviation."""
    X, Y = field()
    same = {"ridge": 1e-3, "standardize": standardize}
    exact = ORFFRegressor(kernel, 64, **same, sampler=Orthogonal()).fit(X, Y)
    fitted = StochasticORFFRegressor(kernel, 64, epochs=60, **same).fit(X, Y)
    assert np.array_equal(fitted.model_.frequencies, exact.model_.frequencies)
    assert np.abs(fitted.predict(X) - exact.predict(X)).max() < 0.03 * Y.std(axis=0).min()
    assert abs(fitted.score(X, Y) - exact.score(X, Y)) < 1e-3


def test_adam_and_no_intercept_come_near_it_too():
    X, Y = field()
    exact = ORFFRegressor(COUPLED, 64, ridge=1e-3, intercept=False).fit(X, Y)
    for options in ({}, {"solver": "adam", "schedule": Cosine(600)}):
        fitted = StochasticORFFRegressor(COUPLED, 64, ridge=1e-3, intercept=False, epochs=60, **options).fit(X, Y)
        assert np.array_equal(fitted.model_.intercept, np.zeros(2))
        assert fitted.score(X, Y) > exact.score(X, Y) - 5e-3


@pytest.mark.parametrize("loss", ["multinomial", "logistic", "hinge", "squared_hinge", "simplex"])
def test_losses_of_labels(loss):
    X, y = classes()
    fitted = StochasticORFFClassifier(GAUSSIAN, 64, loss=loss).fit(X, y)
    assert fitted.score(X, y) > 0.95 and fitted.model_.info["labels"] == ["a", "b", "c"]
    if loss == "simplex":
        assert np.abs(fitted.decision_function(X).sum(axis=1)).max() < 1e-9
    if loss in ("multinomial", "logistic"):
        p = fitted.predict_proba(X)
        assert np.allclose(p.sum(axis=1), 1.0) and np.allclose(np.exp(fitted.predict_log_proba(X)), p)
        assert np.array_equal(fitted.classes_[p.argmax(axis=1)], fitted.predict(X))
    else:
        assert not hasattr(fitted, "predict_proba")


def test_losses_of_numbers():
    X, Y = field(1500)
    rng = np.random.default_rng(0)
    rate = np.exp(np.sin(X[:, 0]) + 1)
    fitted = StochasticORFFRegressor(GAUSSIAN, 64, loss="poisson", ridge=1e-4).fit(X, rng.poisson(rate))
    assert np.mean(np.abs(fitted.predict(X) / rate - 1)) < 0.2
    spoiled = Y[:, 0] + 50.0 * (rng.uniform(size=len(Y)) < 0.05)
    robust, least = (
        StochasticORFFRegressor(GAUSSIAN, 64, loss=loss).fit(X, spoiled) for loss in ({"huber": 0.3}, "squared")
    )
    assert robust.score(X, Y[:, 0]) > 0.97 > least.score(X, Y[:, 0])
    high = StochasticORFFRegressor(GAUSSIAN, 64, loss=Quantiles((0.9,)), ridge=1e-4).fit(X, Y)
    assert np.all(np.abs(np.mean(high.predict(X) > Y, axis=0) - 0.9) < 0.03)


@pytest.mark.parametrize("options", [{}, {"solver": "adam"}], ids=["sgd", "adam"])
def test_passes_of_fit_are_those_of_partial_fit(options):
    """A fit of three passes has the bits of three calls, and goes on from there."""
    X, Y = field(200)
    whole = StochasticORFFRegressor(COUPLED, 32, epochs=3, **options).fit(X, Y)
    parts = StochasticORFFRegressor(COUPLED, 32, **options)
    for _ in range(3):
        parts.partial_fit(X, Y)
    assert whole.steps_ == parts.steps_ == 12
    assert np.array_equal(whole.model_.coefficients, parts.model_.coefficients)
    again = clone(whole).set_params(epochs=4).fit(X, Y)
    assert np.array_equal(again.predict(X), whole.partial_fit(X, Y).predict(X))


def test_parts_of_rows_are_steps_after_each_other():
    """Two calls are the core's steps over the first rows, then over the others, with constants of the first."""
    X, Y = field(200)
    fitted = StochasticORFFRegressor(COUPLED, 32).partial_fit(X[:120], Y[:120])
    course = replace(fitted._stream)
    for x, y, _ in batches(X[120:], Y[120:], (0, 1), 64):
        course.add(x, y, np.ones(len(x)))
    fitted.partial_fit(X[120:], Y[120:])
    assert fitted.steps_ == course.steps == 4
    assert np.array_equal(fitted.model_.coefficients, course.how.coefficients(course.at.mean)[0])


@pytest.mark.parametrize("make", [StochasticORFFRegressor, DoublyStochasticRegressor])
def test_zarr_and_dask_are_read_by_chunks(make, tmp_path):
    """Chunks are shards: Zarr and Dask of the same chunks take the same steps; NumPy's order is another."""
    X, Y = field(4096 + 500)
    lazy = []
    for name, values in (("x", X), ("y", Y)):
        zarr.create_array(tmp_path / name, data=values, chunks=(2048, 2), config={"write_empty_chunks": True})
        lazy.append(zarr.open_array(tmp_path / name, mode="r"))
    options = {"n_features": 32, "epochs": 1, "random_state": 3}
    by_zarr = make(COUPLED, **options).fit(*lazy)
    by_dask = make(COUPLED, **options).fit(da.from_array(X, chunks=(2048, 2)), da.from_array(Y, chunks=(2048, 2)))
    by_numpy = make(COUPLED, **options).fit(X, Y)
    assert by_zarr.steps_ == by_dask.steps_ == by_numpy.steps_ + 0 == 72
    at = field(50, seed=1)[0]
    assert np.array_equal(by_zarr.predict(at), by_dask.predict(at))
    assert not np.array_equal(by_zarr.predict(at), by_numpy.predict(at))
    assert min(one.score(X, Y) for one in (by_zarr, by_numpy)) > 0.95
    lazily = by_dask.predict(da.from_array(at, chunks=(20, 2)))
    assert isinstance(lazily, da.Array) and np.allclose(lazily.compute(), by_dask.predict(at))
    assert np.allclose(pickle.loads(pickle.dumps(by_zarr)).predict(at), by_zarr.predict(at))


@pytest.mark.parametrize("of", [da.from_array, np.asarray], ids=["dask", "numpy"])
def test_each_row_comes_once_a_pass(of):
    X, y = np.arange(100.0)[:, None], np.arange(100.0)[:, None]
    X, y = (of(one, chunks=(30, 1)) if of is da.from_array else of(one) for one in (X, y))
    for order in ((0, 0), (0, 1)):
        parts = list(batches(X, y, order, 8))
        assert all(np.array_equal(a[:, 0], i) and np.array_equal(b[:, 0], i) for a, b, i in parts)
        assert sorted(np.concatenate([i for _, _, i in parts]).tolist()) == list(range(100))


def test_labels_of_every_kind_give_the_same(tmp_path):
    X, text = classes(3000)
    y = np.searchsorted(["a", "b", "c"], text)
    zarr.create_array(tmp_path / "y", data=y, chunks=(1000,), config={"write_empty_chunks": True})
    options = {"n_features": 32, "epochs": 1}
    stored = StochasticORFFClassifier(GAUSSIAN, **options).fit(X, zarr.open_array(tmp_path / "y", mode="r"))
    lazy = StochasticORFFClassifier(GAUSSIAN, **options).fit(
        da.from_array(X, chunks=(1000, 2)), da.from_array(y, chunks=1000)
    )
    plain = StochasticORFFClassifier(GAUSSIAN, **options).fit(X, y)
    assert min(one.score(X, y) for one in (stored, lazy, plain)) > 0.95
    parts = StochasticORFFClassifier(GAUSSIAN, **options).partial_fit(X, y, classes=[0, 1, 2])
    assert np.array_equal(parts.model_.coefficients, plain.model_.coefficients)


def test_models_are_published(tmp_path):
    X, Y = field()
    fitted = StochasticORFFRegressor(HELMHOLTZ, 64, epochs=2, standardize=True).fit(X, Y)
    save_model(fitted.model_, tmp_path / "numbers")
    assert np.array_equal(load_model(str(tmp_path / "numbers")).predict(X), fitted.predict(X))
    X, y = classes()
    labelled = StochasticORFFClassifier(GAUSSIAN, 64).fit(X, y)
    save_model(labelled.model_, tmp_path / "labels")
    model = load_model(str(tmp_path / "labels"))
    assert np.array_equal(np.array(model.info["labels"])[model.predict(X).argmax(axis=1)], labelled.predict(X))


def test_a_doubly_stochastic_fit_is_an_explicit_model():
    """Its predictions are those of one sum over all frequencies, in the targets' units."""
    X, Y = field(300)
    fitted = DoublyStochasticRegressor(HELMHOLTZ, n_features=16, epochs=2, standardize=True, ridge=1e-3).fit(X, Y)
    model, at = fitted.model_, field(40, seed=1)[0]
    expansion, x = model.expansion, (at - model.center) / model.scale
    blocks = [replace(expansion, kept={}).block(t) for t in range(fitted.steps_)]
    omega = np.concatenate([phi.omega for phi, _ in blocks])
    angles = x @ omega.T
    psi = np.concatenate([weights.psi for _, weights in blocks])
    D, T = 8, len(blocks)
    cosines = (np.arange(T)[:, None] * 2 * D + np.arange(D)).ravel()
    h = expansion.alpha.reshape(T * 2 * D, -1)
    W = np.einsum("arp,ar->ap", psi, h)
    f = (np.cos(angles) @ W[cosines] + np.sin(angles) @ W[cosines + D]) / np.sqrt(D) + expansion.b
    assert fitted.steps_ == 10 and np.allclose(fitted.predict(at), f * model.target_scale + model.intercept)
    assert len(np.unique(np.round(omega, 12), axis=0)) == T * D


def test_weights_of_rows_and_classes_count():
    X, y = classes()
    heavy = StochasticORFFClassifier(GAUSSIAN, 32, class_weight={"a": 50.0}).fit(X, y)
    plain = StochasticORFFClassifier(GAUSSIAN, 32).fit(X, y)
    by_rows = StochasticORFFClassifier(GAUSSIAN, 32).fit(X, y, sample_weight=np.where(y == "a", 50.0, 1.0))
    counts = [np.sum(one.predict(X) == "a") for one in (plain, heavy, by_rows)]
    assert counts[0] < counts[1] and abs(counts[1] - counts[2]) <= 0.02 * len(X)
    X, Y = field()
    Y[300:] += 100.0
    kept = StochasticORFFRegressor(COUPLED, 64).fit(X, Y, sample_weight=np.arange(600) < 300)
    assert kept.score(X[:300], Y[:300]) > 0.95


def test_a_last_step_is_not_a_mean_of_steps():
    X, Y = field()
    last, mean, suffix = (
        StochasticORFFRegressor(COUPLED, 32, epochs=2, average=average).fit(X, Y).predict(X)
        for average in (False, True, Average(first=19))
    )
    assert not np.allclose(last, mean) and np.allclose(last, suffix)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StochasticORFFRegressor(loss="hinge"), "loss: wanted one of numbers or counts, .* got 'hinge'; use"),
        (lambda: StochasticORFFRegressor(loss=Quantiles((0.1, 0.9))), "loss: wanted .* a value for each target"),
        (lambda: StochasticORFFClassifier(loss="squared"), "loss: wanted one of labels, .* got 'squared'"),
        (lambda: StochasticORFFRegressor(loss="nothing"), "loss must be one of"),
        (lambda: StochasticORFFRegressor(ridge=[1e-3, 1.0]), "ridge must be one number >= 0, not .* GridSearchCV"),
        (lambda: StochasticORFFRegressor(ridge=-1.0), "ridge must be a number >= 0"),
        (lambda: StochasticORFFRegressor(epochs=0), "epochs must be a whole number of 1 or more, not 0; leave it"),
        (lambda: StochasticORFFRegressor(batch_size=1.5), "batch_size must be a whole number of 1 or more, not 1.5"),
        (lambda: StochasticORFFRegressor(rate=0), "rate must be a number above 0, or 'auto', not 0"),
        (lambda: StochasticORFFRegressor(schedule="cosine"), "schedule must be a Schedule or None, not 'cosine'; give"),
        (lambda: StochasticORFFRegressor(solver="lbfgs"), "solver must be 'sgd' or 'adam', not 'lbfgs'; leave"),
        (lambda: StochasticORFFRegressor(average=3), "average must be True, False or an Average, not 3; give"),
        (lambda: StochasticORFFRegressor(sampler=frequencies.Lattice(1e-3)), "sampler: a lattice is for sums of rows"),
        (lambda: StochasticORFFRegressor(kernels.Decomposable(GAUSSIAN, "learned")), "kernel: output 'learned'"),
        (lambda: StochasticORFFRegressor(GAUSSIAN, 32, rate=1e9), "rate: the descent did not stay finite .* lower it"),
        (
            lambda: StochasticORFFRegressor(GAUSSIAN, 32, loss="poisson"),
            "loss: poisson is for counts from 0 to 1e.13, but y, row .*, column 0 has -",
        ),
        (lambda: DoublyStochasticRegressor(kernels.Polynomial(2), n_features=6), "Orthogonal gives every step"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    X, Y = field(60)
    y = (Y[:, 0] > 0).astype(int) if isinstance(make(), ORFFClassifier) else Y - Y.mean()
    with pytest.raises(InputError, match=message):
        make().fit(X, y)


def test_other_refusals():
    X, Y = field(60)
    fitted = StochasticORFFRegressor(GAUSSIAN, 32, epochs=1).fit(X, Y)
    with pytest.raises(InputError, match="y has 1 targets, but partial_fit began with 2"):
        fitted.partial_fit(X, Y[:, 0])
    with pytest.raises(InputError, match="a descent keeps no sums"):
        fitted.posterior_model_  # noqa: B018
    assert not hasattr(fitted, "noise_")
    double = DoublyStochasticRegressor(GAUSSIAN, n_features=16, epochs=1).fit(X, Y)
    with pytest.raises(InputError, match=r"X must be \(rows, 2\)"):
        double.model_.predict(X[:, :1])
    with pytest.raises(InputError, match="views: only a MultiView kernel has any"):
        double.predict(X, views=[0])


def test_a_schedule_is_a_parameter():
    X, Y = field(100)
    one = StochasticORFFRegressor(GAUSSIAN, 32, schedule=InverseTime(5.0), epochs=2)
    assert clone(one).get_params()["schedule"] == InverseTime(5.0)
    assert "cv" not in one.get_params() and "manifold" not in one.get_params()
    assert not np.allclose(one.fit(X, Y).predict(X), clone(one).set_params(schedule=None).fit(X, Y).predict(X))


@pytest.mark.parametrize("kind", [StochasticORFFRegressor, DoublyStochasticRegressor])
def test_what_is_set_between_two_parts_is_refused_and_changes_no_prediction(kind):
    """A model that began by one loss goes on by it, and says what it was fitted by."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    y = rng.poisson(np.exp(1.0 + np.sin(X[:, 0]))).astype(np.float64)
    model = kind(GAUSSIAN, n_features=32, loss="poisson", ridge=1e-3, random_state=0).partial_fit(X, y)
    rates = model.predict(X)
    assert rates.min() > 0
    model.set_params(loss={"huber": 1.0})
    np.testing.assert_array_equal(model.predict(X), rates)
    with pytest.raises(InputError, match=r"began with loss 'poisson' and ridge 0[.]001, and goes on with these"):
        model.partial_fit(X, y)
    with pytest.raises(InputError, match="not with loss 'poisson' and ridge 1; call fit to begin again"):
        model.set_params(loss="poisson", ridge=1.0).partial_fit(X, y)
    assert model.set_params(loss={"huber": 1.0}).fit(X, y).model_.info["loss"] == {"huber": 1.0}


def test_targets_of_rows_that_weigh_nothing_are_not_looked_at():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    y, w = rng.poisson(np.exp(np.sin(X[:, 0]))).astype(np.float64), np.ones(300)
    some = StochasticORFFRegressor(GAUSSIAN, 32, loss="poisson", random_state=0)
    y[7], w[7] = -1.0, 0.0
    assert np.isfinite(some.fit(X, y, sample_weight=w).predict(X)).all()
    with pytest.raises(InputError, match="y, row 7, column 0 has -1"):
        some.fit(X, y)
