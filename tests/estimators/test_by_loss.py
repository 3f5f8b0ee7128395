"""Estimators with a loss that is not the square: the least objective of their features, for every kind of array."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from dorff import ORFFClassifier, ORFFRegressor, frequencies, graphs, kernels
from dorff.errors import DoesNotFitError, InputError
from dorff.estimators import array_sums
from dorff.frequencies import Orthogonal
from dorff.kernels.scalar import FloatArray
from dorff.model.losses import Huber, as_loss

N, K = 900, kernels.Gaussian(1.5)
X = np.random.default_rng(0).standard_normal((N, 2))
NOISE = np.random.default_rng(1).standard_normal((N, 2))
Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2]) + 0.3 * NOISE * (1.0 + np.abs(X[:, :1]))
LABELS = np.array(["a", "b", "c"])[np.argmax(np.column_stack([X, -X.sum(axis=1)]) + 0.3 * NOISE[:, :1] * [1, 2, 3], 1)]
COUNTS = np.random.default_rng(2).poisson(np.exp(np.sin(X))).astype(np.float64)
LOSSES: tuple[tuple[Any, FloatArray], ...] = (
    ("huber", Y), ({"huber": 0.3}, Y[:, 0]), ({"epsilon_insensitive": 0.2}, Y), ({"quantiles": [0.1, 0.9]}, Y),
    ({"quantiles": [0.25, 0.5, 0.75], "coupling": 0.2}, Y[:, 0]), ("poisson", COUNTS), ("logistic", (Y > 0.2) * 1.0),
    ("hinge", (Y[:, 0] > 0.2) * 1.0),
)  # fmt: skip


def regressor(loss: Any, **more: Any) -> ORFFRegressor:
    return ORFFRegressor(
        K, 40, **{"loss": loss, "ridge": 1e-3, "tol": 1e-7, "standardize": False, **more}, sampler=Orthogonal()
    )


def objective(one: Any, loss: Any, targets: FloatArray, weights: FloatArray | None = None) -> float:
    """Written out: the mean loss of the rows and ridge |h|^2."""
    w, of, model = np.ones(N) if weights is None else weights, as_loss(loss), one.model_
    f = model.predict(X)
    value = of.terms(f, of.spread(targets.reshape(N, -1))).value
    return float(w @ value.sum(axis=1) / w.sum() + one.ridge_ * np.sum(model.coefficients**2))


def test_a_hinge_ends_by_its_gap_where_classes_are_separable() -> None:
    """1,001 passes were not enough without the bundle."""
    data, labels = (part[:800] for part in load_digits(return_X_y=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        one = ORFFClassifier(None, 256, loss="hinge", ridge=3e-5, calibrate=False).fit(data, labels)
    assert one.duality_gap_ <= 1e-4 * one.objective_
    assert one.n_passes_ < 200
    assert one.score(data, labels) > 0.99


@pytest.mark.parametrize(
    ("loss", "y"), LOSSES, ids=lambda value: str(value)[:40] if not isinstance(value, np.ndarray) else ""
)
def test_the_objective_is_that_of_the_model(loss: Any, y: FloatArray) -> None:
    weights = np.random.default_rng(3).uniform(0.0, 2.0, N)
    tol = 1e-5 if as_loss(loss).kinked else 1e-7
    one = regressor(loss, tol=tol).fit(X, y, sample_weight=weights)
    assert one.objective_ == pytest.approx(objective(one, loss, y, weights), rel=1e-9)
    assert one.n_passes_ > 2 and one.rung_ == "lbfgs" and one.duality_gap_ >= 0 and one.gradient_norm_ < 1.0
    rng = np.random.default_rng(0)
    for size in (1e-1, 1e-2):
        for _ in range(4):
            model = one.model_
            step = size * rng.standard_normal(model.coefficients.shape) / np.sqrt(model.coefficients.size)
            moved = type(model)(**{**vars_of(model), "coefficients": model.coefficients + step})
            other = type("Other", (), {"model_": moved, "ridge_": one.ridge_})
            assert objective(other, loss, y, weights) > one.objective_ * (1 - 10 * tol)
    shape = one.predict(X[:7]).shape
    levels, flat = as_loss(loss).levels, y.ndim == 1
    assert shape == ((7,) if flat and levels == 1 else (7, levels * (1 if flat else 2)))


def vars_of(model: Any) -> dict[str, Any]:
    return {name: getattr(model, name) for name in model.__dataclass_fields__}


def test_every_kind_of_array_gives_the_same(tmp_path: Path) -> None:
    """Threads and schedulers change no bit; other chunks change rounding, which the tolerance is far above."""
    loss, tol = {"quantiles": [0.2, 0.8]}, 1e-5
    plain = regressor(loss, tol=tol).fit(X, Y)
    assert np.array_equal(regressor(loss, tol=tol, n_jobs=2).fit(X, Y).model_.coefficients, plain.model_.coefficients)
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    for name, values in {"x": X, "y": Y}.items():
        group.create_array(name, data=values, chunks=(128, 2))
    for x, y in ((group["x"], group["y"]), (da.from_array(X, chunks=(200, 2)), da.from_array(Y, chunks=(200, 2)))):
        other = regressor(loss, tol=tol).fit(x, y)
        assert other.objective_ == pytest.approx(plain.objective_, rel=2 * tol)
        np.testing.assert_allclose(np.asarray(other.predict(X)), plain.predict(X), atol=0.02)


def test_what_is_predicted_and_scored() -> None:
    one = regressor("poisson").fit(X, COUNTS)
    np.testing.assert_allclose(one.predict(X), np.exp(one.model_.predict(X)))
    assert 0.1 < one.score(X, COUNTS) < 1.0
    with pytest.raises(InputError, match="return_std: a fit by loss poisson has no deviations of targets; leave noise"):
        one.predict(X[:5], return_std=True, noise=True)
    assert np.all(one.posterior_model_.std(X[:5]) > 0)
    median = regressor({"quantiles": [0.1, 0.45, 0.9]}, tol=1e-4).fit(X, Y)
    values = median.predict(X).reshape(N, 2, 3)
    np.testing.assert_allclose(median.model_.observed(median.model_.predict(X)), values[:, :, 1])
    assert 0.5 < median.score(X, Y) < 1.0
    np.testing.assert_allclose((Y[:, :, None] <= values).mean(axis=0), [[0.1, 0.45, 0.9]] * 2, atol=0.03)
    with pytest.raises(AttributeError, match="a fit by loss quantiles has no noise, evidence or posterior"):
        _ = median.posterior_model_
    assert not hasattr(median, "log_evidence_")
    with pytest.raises(InputError, match="return_std: a fit by loss quantiles has no deviations of targets; leave it"):
        median.predict(X[:5], return_std=True)


@pytest.mark.parametrize(("loss", "y"), [("poisson", COUNTS), ("logistic", (Y[:, 0] > 0.2) * 1.0)])
def test_deviations_of_rates_and_probabilities_are_those_of_samples_of_f(loss: str, y: FloatArray) -> None:
    """Within four standard errors of a standard deviation of so many draws, at the rows and away from them."""
    one, draws = regressor(loss).fit(X, y), 4000
    at = np.vstack([X[:6], [[4.0, -4.0]]])
    values, std = one.predict(at, return_std=True)
    np.testing.assert_array_equal(values, one.predict(at))
    functions = one.posterior_model_.sample(draws, seed=3)
    drawn = as_loss(loss).outcome(np.array([function.predict(at) for function in functions])).reshape(draws, *std.shape)
    away = (drawn - drawn.mean(axis=0)) ** 2
    error = away.std(axis=0) / np.sqrt(draws) / (2.0 * std)
    assert np.all(np.abs(drawn.std(axis=0) - std) < 4.0 * error)
    lazy = one.predict(da.from_array(at, chunks=(3, 2)), return_std=True)
    np.testing.assert_allclose(np.asarray(lazy[1]), std, rtol=1e-12)


def test_missing_targets_count_for_nothing() -> None:
    gaps = Y.copy()
    gaps[::3, 0] = np.nan
    one = regressor("huber", missing="partial").fit(X, gaps)
    apart = regressor("huber").fit(X[np.isfinite(gaps[:, 0])], gaps[np.isfinite(gaps[:, 0]), 0])
    # Its share of the objective is over all rows: so many times the ridge is that of these rows alone.
    share = float(np.mean(np.isfinite(gaps[:, 0])))
    again = regressor("huber", ridge=1e-3 / share).fit(X[np.isfinite(gaps[:, 0])], gaps[np.isfinite(gaps[:, 0]), 0])
    far = [float(np.abs(one.predict(X)[:, 0] - other.predict(X)).max()) for other in (again, apart)]
    assert far[0] < 1e-2 and far[0] < far[1]


def test_the_ridge_is_chosen_by_the_loss_of_rows_held_out() -> None:
    one = regressor({"quantiles": [0.1, 0.9]}, ridge=[1e-6, 1e-3, 10.0], cv=3, tol=1e-4).fit(X, Y)
    ridges, losses = one.cv_losses_.T
    assert list(ridges) == [1e-6, 1e-3, 10.0] and one.ridge_ == ridges[np.argmin(losses)] < 10.0
    auto = regressor("huber", ridge="auto", tol=1e-3).fit(X, Y)
    ridges, losses = auto.cv_losses_.T
    at = int(np.argmin(losses))
    assert auto.ridge_ == ridges[at] and 0 < at < len(ridges) - 1  # its neighbours were tried
    with pytest.raises(InputError, match="several ridges are compared by the loss of rows held out, and none are"):
        regressor("huber", ridge=[1e-3, 1.0], cv=None).fit(X, Y)


def test_classes_by_likelihood_are_those_of_scikit_learn() -> None:
    one = ORFFClassifier(K, 40, loss="multinomial", coding="one_vs_all", ridge=1e-3, calibrate=False, tol=1e-9)
    one.fit(X, LABELS)
    F = one.model_.feature_map.transform(X)
    peer = LogisticRegression(C=1.0 / (2 * N * 1e-3), tol=1e-10, max_iter=10_000).fit(F, LABELS)
    np.testing.assert_allclose(one.predict_proba(X), peer.predict_proba(F), atol=2e-4)
    np.testing.assert_allclose(one.predict_log_proba(X), np.log(one.predict_proba(X)))
    assert list(one.classes_) == ["a", "b", "c"] and np.mean(one.predict(X) == peer.predict(F)) > 0.995


@pytest.mark.parametrize("loss", ["multinomial", "logistic", "hinge", "squared_hinge", "simplex"])
def test_classes_by_every_loss(loss: str) -> None:
    plain = ORFFClassifier(K, 40, ridge=1e-3).fit(X, LABELS)
    one = ORFFClassifier(K, 40, ridge=1e-3, loss=loss, class_weight="balanced").fit(X, LABELS)
    assert one.score(X, LABELS) > plain.score(X, LABELS) - 0.03
    p = one.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    assert np.mean(p.argmax(axis=1) == np.searchsorted(one.classes_, LABELS)) > plain.score(X, LABELS) - 0.03
    assert one.quality_.accuracy > 0.6
    bare = ORFFClassifier(K, 40, ridge=1e-3, loss=loss, calibrate=False).fit(X, LABELS)
    assert hasattr(bare, "predict_proba") == (loss in ("multinomial", "logistic"))


def test_few_labels_and_a_manifold() -> None:
    """Unlabelled rows pull f together along the graph; without the term they are nothing."""
    y = np.array(LABELS, dtype=object)
    y[np.random.default_rng(4).permutation(N)[30:]] = -1
    options: dict[str, Any] = {"ridge": 1e-4, "loss": "simplex", "calibrate": False, "tol": 1e-2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        one = ORFFClassifier(K, 40, manifold=1e-2, **options).fit(X, y)
        alone = ORFFClassifier(K, 40, **options).fit(X[y != -1], y[y != -1].astype(str))
    roughness = [
        float(np.square(np.diff(m.model_.predict(X[np.argsort(X[:, 0])]), axis=0)).mean()) for m in (one, alone)
    ]
    assert roughness[0] < 0.8 * roughness[1]
    assert np.mean(one.transduction_ == LABELS) > 0.6


def test_views_and_observations() -> None:
    kernel = kernels.MultiView([([0], K), ([1], K)])
    one = ORFFRegressor(kernel, 40, loss={"huber": 0.5}, ridge=1e-3, standardize=False, tol=1e-6).fit(X, Y[:, 0])
    assert one.predict(X).shape == (N,) and one.predict(X, views=[0]).shape == (N,) and one.score(X, Y[:, 0]) > 0.3
    C = [[1.0, 0.5, 0.0], [0.0, 1.0, 1.0]]
    seen = regressor("huber", observe=C).fit(X, Y)
    assert seen.predict(X).shape == (N, 3) and seen.score(X, Y) > 0.3


def test_a_term_couples_outputs_and_not_quantiles() -> None:
    """Of the identity over rows the term is written out: each quantile's f_i^T Q f_i."""
    Q, loss, weight = np.array([[2.0, 1.0], [1.0, 1.0]]), {"quantiles": [0.3, 0.5, 0.9]}, 1e-4
    term = graphs.Manifold(graphs.Identity(), weight=weight, outputs=Q)
    one = regressor(loss, manifold=term, tol=1e-5).fit(X, Y)
    f = one.model_.predict(X).reshape(N, 2, 3)
    added = weight * float(np.einsum("npj,pq,nqj->", f, Q, f))
    assert one.objective_ == pytest.approx(objective(one, loss, Y) + added, rel=1e-9) and added > 0.01 * one.objective_


def test_a_laplace_posterior_counts_terms() -> None:
    weight, ridge = 1e-5, 1e-3
    one = regressor("poisson", manifold=graphs.Manifold(graphs.Identity(), weight=weight), ridge=ridge, tol=1e-9)
    one.fit(X, COUNTS)
    F = np.hstack([one.model_.feature_map.transform(X), np.ones((N, 1))])
    for output in range(2):
        rate = np.exp(one.model_.predict(X)[:, output])
        H = (F * rate[:, None]).T @ F + 2.0 * N * (weight * F.T @ F + ridge * np.diag([1.0] * (F.shape[1] - 1) + [0.0]))
        exact = np.sqrt(np.einsum("nk,kj,nj->n", F[:20], np.linalg.inv(H), F[:20]))
        np.testing.assert_allclose(one.posterior_model_.std(X[:20])[:, output], exact, rtol=1e-6)


@pytest.mark.parametrize(("classes", "coding"), [(2, "simplex"), (2, "one_vs_all"), (3, "simplex"), (3, "one_vs_all")])
@pytest.mark.parametrize("intercept", [True, False])
def test_a_multinomial_posterior_is_the_inverse_of_the_hessian(classes: int, coding: str, intercept: bool) -> None:
    """Rasmussen & Williams 2006, section 3.5: a row's second derivative is diag(p) - p p^T, for all classes together.

    What no probability depends on, a constant for all classes, has no deviation in the intercept.
    """
    ridge, labels = 1e-3, LABELS if classes == 3 else (LABELS == "a") * 1
    weights = np.random.default_rng(3).uniform(0.0, 2.0, N)
    one = ORFFClassifier(
        K, 20, loss="multinomial", ridge=ridge, coding=coding, tol=1e-9, intercept=intercept, calibrate=False,
        standardize=False, posterior=True, sampler=Orthogonal(),
    ).fit(X, labels, sample_weight=weights)  # fmt: skip
    model = one.posterior_model_
    root = model.operator_weights.root[0]
    F = model.feature_map.transform(X)
    J = np.einsum("na,jc->najc", F * model.operator_weights.gain, root).reshape(N, -1, classes)
    if intercept:
        J = np.concatenate([J, np.broadcast_to(np.eye(classes), (N, classes, classes))], axis=1)
    p = one.predict_proba(X)
    seen = weights[:, None, None] * (p[:, :, None] * np.eye(classes) - p[:, :, None] * p[:, None, :])
    H = np.einsum("nic,ncd,njd->ij", J, seen, J, optimize=True)
    penalty = np.full(len(H), 2.0 * weights.sum() * ridge)
    penalty[len(penalty) - intercept * classes :] = 0.0
    inverse = np.linalg.pinv(H + np.diag(penalty), rcond=1e-11, hermitian=True)
    exact = np.einsum("nic,ij,njd->ncd", J[:20], inverse, J[:20], optimize=True)
    compared = np.eye(classes) - 1.0 / classes  # in which softmax differs
    found = compared @ model.covariance(X[:20]) @ compared
    np.testing.assert_allclose(found, compared @ exact @ compared, rtol=1e-5, atol=1e-7 * exact.max())


@pytest.mark.parametrize("loss", ["multinomial", "logistic"])
@pytest.mark.parametrize("calibrate", [True, False])
def test_deviations_of_probabilities_are_those_of_samples_of_f(loss: str, calibrate: bool) -> None:
    """With the error of quasi-Monte Carlo beside that of so many draws."""
    one = ORFFClassifier(K, 40, loss=loss, ridge=1e-3, calibrate=calibrate, posterior=True, sampler=Orthogonal())
    one.fit(X, LABELS)
    at, draws = np.vstack([X[:6], [[4.0, -4.0]]]), 4000
    p, std = one.predict_proba(at, return_std=True)
    np.testing.assert_array_equal(p, one.predict_proba(at))
    made = one.calibration_.probabilities if calibrate else as_loss(loss).probabilities
    drawn = np.array([made(function.predict(at)) for function in one.posterior_model_.sample(draws, seed=3)])
    away = (drawn - drawn.mean(axis=0)) ** 2
    error = away.std(axis=0) / np.sqrt(draws) / (2.0 * std)
    assert np.all(np.abs(drawn.std(axis=0) - std) < 4.0 * error + 0.003)
    lazy = one.predict_proba(da.from_array(at, chunks=(3, 2)), return_std=True)
    np.testing.assert_allclose(np.asarray(lazy[1]), std, rtol=1e-9)


def test_a_posterior_of_classes_that_there_is_not() -> None:
    with pytest.raises(InputError, match="posterior: a fit by loss hinge has none; take multinomial or logistic"):
        ORFFClassifier(K, 40, loss="hinge", posterior=True).fit(X, LABELS)
    one = ORFFClassifier(K, 40, loss="multinomial", ridge=1e-3, tol=1e-2).fit(X, LABELS)
    with pytest.raises(InputError, match="posterior: the fit keeps none; fit with posterior=True"):
        one.predict_proba(X[:2], return_std=True)
    assert not hasattr(one, "posterior_model_")


def test_a_posterior_of_classes_beyond_all_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    free = type("Free", (), {"available": 1e5})
    monkeypatch.setattr("dorff.estimators.descended.psutil.virtual_memory", lambda: free)
    with pytest.raises(DoesNotFitError, match="posterior: one system of 40 features times 2 for all 3 classes needs"):
        ORFFClassifier(K, 40, loss="multinomial", posterior=True, sampler=Orthogonal()).fit(X, LABELS)


def test_a_laplace_posterior_by_landmarks_is_the_processs_own() -> None:
    """With all rows as landmarks, by Rasmussen & Williams 2006, eq. 3.24; far from the rows it is the prior's."""
    ridge, inputs = 1e-3, X[:60]
    ones = (Y[:60, 0] > 0.2) * 1.0
    how = {"loss": "logistic", "tol": 1e-9, "intercept": False, "standardize": False}
    one = ORFFRegressor(K, 60, ridge=ridge, sampler=frequencies.Landmarks(), **how).fit(inputs, ones)
    at = np.vstack([inputs[:5] + 0.3, [[4.0, 4.0], [50.0, 50.0]]])
    prior = 1.0 / (2.0 * len(inputs) * ridge)
    p = one.predict(inputs)
    data = prior * K.gram(inputs, inputs) + np.diag(1.0 / (p * (1.0 - p)))
    across = prior * K.gram(at, inputs)
    exact = prior - np.einsum("ni,ij,nj->n", across, np.linalg.inv(data), across)
    np.testing.assert_allclose(one.posterior_model_.std(at)[:, 0] ** 2, exact, rtol=1e-5)
    assert exact[-1] == pytest.approx(prior)


@pytest.mark.parametrize("rows", [array_sums.FEW_ROWS, 100], ids=["gram", "exponentials"])
@pytest.mark.parametrize(("loss", "y"), [({"quantiles": [0.1, 0.9]}, Y), ("poisson", COUNTS), ("huber", Y)], ids=str)
def test_features_on_a_lattice_are_evaluated(
    loss: Any, y: FloatArray, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From least squares' fit by either sums on; the objective is the model's, and near that of random features."""
    monkeypatch.setattr(array_sums, "FEW_ROWS", rows)
    tol = 1e-4 if as_loss(loss).kinked else 1e-7
    how = {"loss": loss, "ridge": 1e-3, "tol": tol, "standardize": False}
    one = ORFFRegressor(K, 400, sampler=frequencies.Lattice(1e-4), **how).fit(X, y)
    assert one.objective_ == pytest.approx(objective(one, loss, y), rel=1e-9)
    random = ORFFRegressor(K, 400, sampler=Orthogonal(), **how).fit(X, y)
    assert one.objective_ == pytest.approx(random.objective_, rel=0.01)


def test_what_a_lattice_leaves_out_is_in_the_laplace_posterior() -> None:
    """Against the process's own, as by landmarks; without what a coarse one leaves out it would be too small."""
    ridge, inputs, found = 1e-3, X[:60], list[FloatArray]()
    ones = (Y[:60, 0] > 0.2) * 1.0
    how = {"loss": "logistic", "tol": 1e-9, "intercept": False, "standardize": False}
    at = np.vstack([inputs[:5], inputs.min(axis=0), inputs.max(axis=0)])
    for error in (1e-4, 0.05):
        one = ORFFRegressor(K, 400, ridge=ridge, sampler=frequencies.Lattice(error), **how).fit(inputs, ones)
        prior, p = 1.0 / (2.0 * len(inputs) * ridge), one.predict(inputs)
        across = prior * K.gram(at, inputs)
        data = prior * K.gram(inputs, inputs) + np.diag(1.0 / (p * (1.0 - p)))
        exact = prior - np.einsum("ni,ij,nj->n", across, np.linalg.inv(data), across)
        found.append(one.posterior_model_.std(at)[:, 0] ** 2 / exact)
    np.testing.assert_allclose(found[0], 1.0, rtol=0.02)
    posterior = one.posterior_model_.posterior
    assert posterior is not None and posterior.unexplained is not None
    assert np.all(found[1] > 0.97) and np.any(found[1] - posterior.unexplained[0, 0] / exact < 0.96)


def test_targets_are_compared_with_the_quantile_nearest_to_the_median() -> None:
    for levels, at in (([0.4, 0.8, 0.9], 0), ([0.05, 0.1, 0.2], 2)):
        one = regressor({"quantiles": levels}, tol=1e-3).fit(X, Y[:, 0])
        f = one.model_.predict(X)
        np.testing.assert_allclose(one.model_.observed(f)[:, 0], f[:, at])


def test_newton_comes_to_the_same() -> None:
    one, other = (regressor("poisson", solver=solver, tol=1e-9).fit(X, COUNTS) for solver in ("lbfgs", "newton"))
    assert other.rung_ == "newton" and other.objective_ == pytest.approx(one.objective_, rel=1e-8)


def test_too_few_passes_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    from dorff.solvers import objective as of_loss

    monkeypatch.setattr(of_loss.Evaluator.__init__, "__defaults__", (5,))
    with pytest.warns(ConvergenceWarning, match="passes were not enough to come within tol=1e-09"):
        regressor({"quantiles": [0.1, 0.9]}, tol=1e-9).fit(X, Y)


def test_a_search_over_losses() -> None:
    search = GridSearchCV(ORFFRegressor(K, 40, ridge=1e-3), {"loss": ["squared", Huber(0.5), "huber"]}, cv=2).fit(X, Y)
    assert len(search.cv_results_["params"]) == 3 and search.best_score_ > 0.5
    assert not hasattr(regressor("huber"), "partial_fit") and hasattr(regressor("squared"), "partial_fit")


@pytest.mark.parametrize(
    ("loss", "y", "sentence"),
    [
        ("poisson", Y, "loss: poisson is for counts from 0 to 1e.13, but y, row 1, column 1 has -"),
        ("poisson", np.where(COUNTS > 1, 2e13, 0.0), "loss: poisson is for counts from 0 to 1e.13, but .* has 2e.13;"),
        ("logistic", COUNTS, "loss: logistic is for classes, or targets of 0 and 1, but y, row "),
        ("multinomial", Y, "loss: multinomial is for classes; use ORFFClassifier, or take another loss"),
        ({"quantiles": [1.5]}, Y, "quantiles: wanted a list of numbers between 0 and 1, got"),
        ("nosuch", Y, "loss must be one of squared, huber"),
    ],
)  # fmt: skip
def test_a_loss_that_does_not_fit_is_refused(loss: Any, y: FloatArray, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        regressor(loss).fit(X, y)
    if sentence.startswith("loss: ") and "Classifier" not in sentence:
        with pytest.raises(InputError, match=sentence[:30]):
            regressor(loss).fit(da.from_array(X, chunks=(300, 2)), da.from_array(y, chunks=(300, 2)))


def test_what_else_is_refused() -> None:
    for one, sentence in (
        (ORFFClassifier(K, 40, loss="huber"), "loss: huber is for numbers, and y are classes; take"),
        (ORFFClassifier(K, 40, loss="simplex", coding="one_vs_all"), "simplex needs values along the codes"),
        (ORFFClassifier(K, 40, loss="hinge", solver="newton"), "newton does not go with loss hinge"),
        (ORFFClassifier(K, 40, loss="hinge", tol=0.0), "tol must be a number between 0 and 1, not 0.0"),
    ):
        with pytest.raises(InputError, match=sentence):
            one.fit(X, LABELS)


@pytest.mark.slow
@parametrize_with_checks(
    [
        ORFFRegressor(loss="huber", n_features=32),
        # A row of weight 2 is the same row twice only where no row is held out: one kernel, one ridge, no calibration.
        ORFFClassifier(K, 32, loss="multinomial", ridge=1e-3, calibrate=False),
    ]
)
def test_it_is_an_estimator(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.mark.parametrize("loss", ["huber", {"quantiles": [0.5]}, "multinomial"], ids=["huber", "median", "classes"])
def test_a_fit_without_rows_has_never_seen_them(loss: Any) -> None:
    """Targets that are noise, and more features than rows: to begin at the fit to all rows, and to end soon, would make
    the loss of rows held out small."""
    rng = np.random.default_rng(0)
    inputs, noise = rng.standard_normal((150, 4)), rng.standard_normal(150)
    of_classes = loss == "multinomial"
    kind: Any = ORFFClassifier if of_classes else ORFFRegressor
    targets: Any = np.digitize(noise, [-0.4, 0.4]) if of_classes else noise
    model = kind(kernels.Gaussian(2.0), 400, loss=loss, ridge=[1e-8, 1e-3], cv=3, tol=1e-2).fit(inputs, targets)
    r = np.abs(noise - np.median(noise))
    level = {"huber": np.mean(np.where(r < 1.35, r**2, 2.7 * r - 1.35**2)), "multinomial": np.log(3.0)}
    of_constant = level.get(loss, 0.0) if isinstance(loss, str) else np.mean(r) / 2.0
    assert (model.cv_losses_[:, 1] > 0.95 * of_constant).all(), (model.cv_losses_, of_constant)


def test_a_score_of_rates_is_of_what_targets_see() -> None:
    """C mixes the logarithms of rates: exp(C f), not C exp(f)."""
    C = np.array([[1.0, 0.5], [0.3, 1.0]])
    model = regressor("poisson", observe=C, tol=1e-4).fit(X, COUNTS)
    rates = np.exp(model.model_.predict(X) @ C.T)
    assert model.score(X, COUNTS) == pytest.approx(r2_score(COUNTS, rates), abs=1e-12)


def test_a_loss_that_is_set_after_the_fit_changes_no_prediction() -> None:
    model = regressor("poisson", tol=1e-3).fit(X, COUNTS)
    rates, score = model.predict(X), model.score(X, COUNTS)
    model.set_params(loss="huber")
    np.testing.assert_array_equal(model.predict(X), rates)
    assert model.score(X, COUNTS) == score
