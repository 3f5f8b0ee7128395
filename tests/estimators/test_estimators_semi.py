"""Estimators with manifold terms: dense twins, rows without targets, trials, views."""

import pickle
from collections.abc import Sequence

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr
from cases import laplacian
from scipy.linalg import LinAlgWarning
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from dorff import ORFFClassifier, ORFFRegressor, kernels, load_model
from dorff.data.edges import write_graph
from dorff.errors import InputError
from dorff.estimators.arrays import GivenFolds
from dorff.frequencies import Orthogonal
from dorff.graphs import KNN, Identity, Manifold, local_graph
from dorff.store import save_model

GAUSSIAN = kernels.Gaussian(1.0)
COUPLED = kernels.Decomposable(GAUSSIAN, [[2.0, 0.5], [0.5, 1.0]])
TWO = kernels.MultiView([(2, GAUSSIAN), ([2], kernels.Gaussian(0.7))], names=["plane", "line"])


def rows(n: int = 40, d: int = 2, labelled: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, d) and targets (n, 2) far from zero, NaN but for the first `labelled` of a shuffled order."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, d))
    Y = np.stack([np.sin(X[:, 0]) + X[:, -1], np.cos(X[:, -1]) + 5.0], axis=1) + 0.1 * rng.standard_normal((n, 2))
    Y[rng.permutation(n)[labelled:]] = np.nan
    return X, Y


def moons(n: int = 200, each: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, labels with -1 but for `each` of a class, and all labels."""
    X, y = make_moons(n, noise=0.05, random_state=seed)
    some = np.full(n, -1)
    for label in (0, 1):
        here = np.flatnonzero(y == label)[:each]
        some[here] = label
    return X, some, y


def dense(
    fitted: ORFFRegressor, X: np.ndarray, Y: np.ndarray, terms: Sequence[tuple[float, np.ndarray, np.ndarray]],
    w: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """f (n, p) at X by the normal equations of Minh's (2016) eq. 67, every unknown written out: of the features and
    weights fitted, terms (weight, L, Q), and row weights w (n,)."""
    model = fitted.model_
    F, psi, p = model.feature_map.transform(X), model.weights, len(model.intercept)
    n, (m, r, _) = len(X), psi.shape
    D = np.einsum("na,arp->npar", F, psi).reshape(n, p, m * r)
    if fitted.intercept:
        D = np.concatenate([D, np.broadcast_to(np.eye(p), (n, p, p))], axis=2)
    C = np.eye(p) if model.observe is None else model.observe
    there = ~np.isnan(Y) * (1.0 if w is None else w[:, None])
    total = there[:, 0].sum()
    A = np.einsum("nq,qp,npi,qs,nsj->ij", there, C, D, C, D, optimize=True) / total
    A[np.arange(m * r), np.arange(m * r)] += fitted.ridge_
    for weight, L, Q in terms:
        A += weight * np.einsum("npi,nk,pq,kqj->ij", D, L, Q, D, optimize=True)
    right = np.einsum("nq,nq,qp,npi->i", there, np.nan_to_num(Y), C, D, optimize=True) / total
    return D @ np.linalg.lstsq(A, right, rcond=None)[0]


def near(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-8) -> bool:
    return bool(np.abs(np.asarray(a) - np.asarray(b)).max() <= tolerance * np.abs(b).max())


def scaled(fitted: ORFFRegressor, X: np.ndarray) -> np.ndarray:
    return (X - fitted.model_.feature_map.center) / fitted.model_.feature_map.scale


# --- what is fitted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("options", [{}, {"intercept": False}, {"sample_weight": True}])
@pytest.mark.parametrize("kernel", [GAUSSIAN, COUPLED, kernels.CurlFree(GAUSSIAN)])
def test_a_fit_is_the_dense_one(kernel, options, normalised) -> None:
    X, Y = rows()
    w = np.random.default_rng(5).uniform(0.5, 2.0, len(X)) if options.get("sample_weight") else None
    options = {key: value for key, value in options.items() if key != "sample_weight"}
    Q = np.array([[1.0, -0.5], [-0.5, 2.0]])
    term = Manifold(KNN(4), 0.03, laplacian="normalised" if normalised else "unnormalised", outputs=Q)
    fitted = ORFFRegressor(kernel, 24, ridge=1e-2, manifold=term, **options).fit(X, Y, w)
    L = laplacian(local_graph(scaled(fitted, X), KNN(4)), normalised=normalised).toarray()
    assert near(fitted.predict(X), dense(fitted, X, Y, [(0.03, L, Q)], w))
    assert not near(fitted.predict(X), dense(fitted, X, Y, [], w), 1e-3)


def test_neighbours_are_found_among_all_rows_in_scaled_inputs() -> None:
    X, Y = rows(60)
    X[:, 1] *= 100.0
    fitted = ORFFRegressor(GAUSSIAN, 24, ridge=1e-2, standardize=True, manifold=0.05, graph=KNN(3)).fit(X, Y)
    assert np.allclose(fitted.model_.feature_map.scale, X.std(axis=0))  # of all rows, not of the labelled ones
    L = laplacian(local_graph(X / X.std(axis=0), KNN(3))).toarray()
    seen = ~np.isnan(Y[:, 0])
    # Targets are scaled apart; f of each is g times its scale, and both have the same system.
    again = dense(fitted, X, Y, [(0.05, L, np.eye(2))])
    assert seen.sum() == 12 and near(fitted.predict(X), again)
    assert fitted.model_.info["report"]["rows_unlabelled"] == 48 and fitted.model_.info["report"]["rows_used"] == 12


def test_graphs_of_the_user(tmp_path) -> None:
    X, Y = rows()
    rng = np.random.default_rng(1)
    W = np.triu(rng.uniform(size=(40, 40)) * (rng.uniform(size=(40, 40)) < 0.1), 1)
    W += W.T
    paths = [tmp_path / "edges.parquet", tmp_path / "edges.zarr"]
    for path in paths:
        write_graph(path, scipy.sparse.csr_array(W))
    fits = [
        ORFFRegressor(GAUSSIAN, 16, ridge=1e-2, manifold=0.01, graph=graph).fit(X, Y)
        for graph in (W, scipy.sparse.csr_array(W), scipy.sparse.coo_matrix(W), *paths)
    ]
    expected = dense(fits[0], X, Y, [(0.01, np.diag(W.sum(axis=1)) - W, np.eye(2))])
    assert all(near(fitted.predict(X), expected) for fitted in fits)
    with pytest.raises(InputError, match="wanted one node a row, 39, got a graph of 40"):
        fits[-1].fit(X[1:], Y[1:])


def test_targets_on_disk_and_in_dask_are_taken_into_memory(tmp_path) -> None:
    X, Y = rows()
    estimator = ORFFRegressor(GAUSSIAN, 16, ridge=1e-2, manifold=0.01)
    for y in (Y, Y[:, 0]):
        expected = estimator.fit(X, y).predict(X)
        stored = zarr.create_array(tmp_path / f"y{y.ndim}", data=y, chunks=(7, *y.shape[1:]))
        for given in (stored, da.from_array(y, chunks=11)):
            assert np.array_equal(clone(estimator).fit(X, given).predict(X), expected)
    _, some, _ = moons(40, each=5)
    stored = zarr.create_array(tmp_path / "labels", data=some, chunks=(7,))
    fitted = ORFFClassifier(GAUSSIAN, 16, manifold=0.01)
    assert np.array_equal(fitted.fit(X, stored).predict(X), clone(fitted).fit(X, some).predict(X))


def test_several_terms_with_their_own_scales() -> None:
    X, Y = rows()
    W = local_graph(X, KNN(3, "binary"))
    L = laplacian(W).toarray()
    terms = [
        Manifold(KNN(3, "binary"), 2.0, scale="mean"),
        Manifold(Identity(), 0.1, outputs=np.ones((2, 2)), scale="mean"),
        Manifold(KNN(3, "binary"), 0.001, power=2),
    ]
    fitted = ORFFRegressor(GAUSSIAN, 16, ridge=1e-2, manifold=terms).fit(X, Y)
    each = [(2.0 / (W.nnz / 2), L, np.eye(2)), (0.1 / 40, np.eye(40), np.ones((2, 2))), (0.001, L @ L, np.eye(2))]
    assert fitted.manifold_ == (2.0, 0.1, 0.001)
    assert near(fitted.predict(X), dense(fitted, X, Y, each))


def test_a_weight_of_zero_is_a_fit_to_the_labelled_rows() -> None:
    X, Y = rows()
    seen = ~np.isnan(Y[:, 0])
    fitted = ORFFRegressor(GAUSSIAN, 16, ridge=1e-2, manifold=0.0, sampler=Orthogonal()).fit(X, Y)
    assert fitted.manifold_ == (0.0,)
    assert fitted.score(X, Y) == pytest.approx(ORFFRegressor.score(fitted, X[seen], Y[seen]), rel=1e-12)
    assert near(fitted.predict(X), dense(fitted, X, Y, []))
    plain = ORFFRegressor(GAUSSIAN, 16, ridge=1e-2, sampler=Orthogonal()).fit(X[seen], Y[seen])
    again = plain.fit(X[seen], Y[seen]).model_
    assert np.array_equal(again.weights, fitted.model_.weights)  # the same frequencies, about another centre
    assert not hasattr(plain, "manifold_")


def test_partly_observed_rows_and_observed_combinations() -> None:
    X, Y = rows()
    Y[np.flatnonzero(~np.isnan(Y[:, 0]))[:4], 1] = np.nan
    with pytest.raises(InputError, match="has NaN beside other targets; give missing='partial'"):
        ORFFRegressor(GAUSSIAN, 16, manifold=0.01).fit(X, Y)
    fitted = ORFFRegressor(GAUSSIAN, 16, ridge=1e-2, manifold=0.01, missing="partial").fit(X, Y)
    L = laplacian(local_graph(X, KNN())).toarray()
    assert near(fitted.predict(X), dense(fitted, X, Y, [(0.01, L, np.eye(2))]))
    X, Y = rows()
    C = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]])
    fitted = ORFFRegressor(GAUSSIAN, 16, ridge=1e-2, manifold=0.01, observe=C).fit(X, Y)
    assert near(fitted.predict(X), dense(fitted, X, Y, [(0.01, L, np.eye(3))]))


def test_deviations_shrink_where_neighbours_are() -> None:
    """The posterior of a fit with a term is that of the term's prior: dense precision, inverted."""
    X, Y = rows()
    fitted = ORFFRegressor(GAUSSIAN, 16, ridge=1e-2, manifold=0.05, intercept=False, sampler=Orthogonal()).fit(
        X, Y[:, 0]
    )
    F, seen = fitted.model_.feature_map.transform(X), ~np.isnan(Y[:, 0])
    L = laplacian(local_graph(X, KNN())).toarray()
    precision = F[seen].T @ F[seen] + seen.sum() * (1e-2 * np.eye(16) + 0.05 * F.T @ L @ F)
    shape = np.sqrt(np.einsum("ni,ij,nj->n", F, np.linalg.inv(precision), F))
    with pytest.raises(InputError, match="choose by kfold"):
        _ = fitted.log_evidence_
    assert not hasattr(fitted, "log_evidence_") and "log_evidence_" not in dir(fitted)
    _, std = fitted.predict(X, return_std=True)
    drawn = fitted.posterior_model_.posterior.unexplained[0, 0]  # how far f depends on the draw of the features
    assert near(np.sqrt(std**2 - drawn), shape * np.sqrt(fitted.noise_[0, 0]))


# --- trials -------------------------------------------------------------------------------------------------


def test_trials_are_compared_by_held_out_labelled_rows() -> None:
    X, Y = rows(60, labelled=20)
    ridges, weights, cv = [1e-3, 1e-2], [0.0, 0.01, 0.1], 4
    fitted = ORFFRegressor(GAUSSIAN, 16, ridge=ridges, manifold=weights, cv=cv).fit(X, Y)
    assert fitted.cv_errors_.shape == (6,) and fitted.trials_.shape == (6, 2)
    best = int(np.argmin(fitted.cv_errors_))
    assert (fitted.ridge_, *fitted.manifold_) == tuple(fitted.trials_[best])
    assert sorted(map(tuple, fitted.trials_)) == [(ridge, weight) for ridge in ridges for weight in weights]
    seen = np.flatnonzero(~np.isnan(Y[:, 0]))
    folds = GivenFolds.balanced(np.zeros(20, np.int64), cv, 0).of
    assert np.array_equal(np.bincount(folds), [5, 5, 5, 5])
    L = laplacian(local_graph(X, KNN())).toarray()
    for error, (ridge, weight) in zip(fitted.cv_errors_, fitted.trials_, strict=True):
        found = 0.0
        for fold in range(cv):
            held = seen[folds == fold]
            train = Y.copy()
            train[held] = np.nan  # it stays in the graph
            fitted.ridge_ = ridge
            found += ((dense(fitted, X, train, [(weight, L, np.eye(2))])[held] - Y[held]) ** 2).sum()
        assert near(error, found / 40)
    given = [(np.delete(np.arange(60), rows_), rows_) for rows_ in _splits(seen, folds)]
    again = ORFFRegressor(GAUSSIAN, 16, ridge=ridges, manifold=weights, cv=given).fit(X, Y)
    assert near(again.cv_errors_, fitted.cv_errors_)
    assert clone(again).set_params(cv=KFold(4)).fit(X, Y).cv_errors_.shape == (6,)


def test_units_of_the_targets_change_no_choice() -> None:
    """Targets so large that their rounding is above the features' own sums."""
    rng = np.random.default_rng(0)
    X, seen = rng.standard_normal((200, 3)), rng.random(200) < 0.2
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(200)
    fits = [
        ORFFRegressor(kernels.Gaussian(1.5), 100, ridge=[1e-6, 1e-3], manifold=[1e-5, 1e-3], graph=KNN(6), cv=4).fit(
            X, np.where(seen, scale * y, np.nan)
        )
        for scale in (1.0, 1e-8, 1e8)
    ]
    for fitted, scale in zip(fits, (1.0, 1e-8, 1e8), strict=True):
        np.testing.assert_allclose(fitted.cv_errors_ / scale**2, fits[0].cv_errors_, rtol=1e-5)


def _splits(seen: np.ndarray, folds: np.ndarray) -> list[np.ndarray]:
    """Held-out rows of all 60, so that those that are seen are in these folds."""
    of = np.arange(60) % 4
    of[seen] = folds
    return [np.flatnonzero(of == fold) for fold in range(4)]


def test_folds_are_even_in_every_class() -> None:
    codes = np.repeat([0, 1, 2], [7, 4, 1])
    folds = GivenFolds.balanced(codes, 3, 0)
    assert folds.count == 3 and np.array_equal(np.bincount(folds.of), [4, 4, 4])
    for code in (0, 1):
        counts = np.bincount(folds.of[codes == code], minlength=3)
        assert counts.max() - counts.min() == 1
    assert not np.array_equal(folds.of, GivenFolds.balanced(codes, 3, 1).of)


# --- classes ------------------------------------------------------------------------------------------------


def test_the_term_helps_where_labels_are_few() -> None:
    X, some, y = moons()
    options = {"kernel": kernels.Gaussian(0.4), "n_features": 200, "ridge": 1e-4}
    seen = some >= 0
    without = ORFFClassifier(**options, calibrate=False).fit(X[seen], some[seen]).score(X, y)
    fitted = ORFFClassifier(**options, manifold=0.1, graph=KNN(6)).fit(X, some)
    assert fitted.score(X, y) > 0.97 > 0.9 > without
    assert np.array_equal(fitted.classes_, [0, 1])
    assert np.array_equal(fitted.transduction_[seen], some[seen])
    assert np.array_equal(fitted.transduction_[~seen], fitted.predict(X[~seen]))


@pytest.mark.parametrize("names", [["b", "a"], [True, False], [7, 3], [2.0, 5.0]])
def test_labels_of_every_kind(names) -> None:
    X, some, _ = moons(60, each=5)
    labels = np.array([-1 if code < 0 else names[code] for code in some], dtype=object)
    options = {"kernel": kernels.Gaussian(0.4), "n_features": 32, "manifold": 0.1}
    fitted, coded = ORFFClassifier(**options).fit(X, labels), ORFFClassifier(**options).fit(X, some)
    assert fitted.classes_.tolist() == sorted(names)
    swapped = sorted(names) != names
    assert near(fitted.predict_proba(X)[:, ::-1] if swapped else fitted.predict_proba(X), coded.predict_proba(X), 1e-6)
    assert fitted.transduction_.tolist() == [names[code] for code in coded.transduction_]
    assert fitted.model_.info["labels"] == sorted(names)


def test_weights_of_classes_are_compared_at_the_best_scale() -> None:
    """A term makes f small, which changes no class: the folds' errors are those of f times one number."""
    X, some, _ = moons(200, each=12)
    options = {"kernel": kernels.Gaussian(0.4), "n_features": 128, "ridge": 1e-4, "graph": KNN(6), "calibrate": False}
    seen, weights = np.flatnonzero(some >= 0), (1e-3, 1.0, 1e3)
    fitted = ORFFClassifier(**options, manifold=weights, cv=3).fit(X, some)
    folds, wanted, plain = GivenFolds.balanced(some[seen], 3, 0).of, [], []
    for weight in weights:
        f = np.empty((24, 2))
        for fold in range(3):
            rest = some.copy()
            rest[seen[folds == fold]] = -1
            alone = ORFFClassifier(**options, manifold=weight).fit(X, rest)
            f[folds == fold] = alone.model_.predict(X[seen[folds == fold]])
        error = np.eye(2)[some[seen]] - 0.5
        plain.append(np.mean((f - 0.5 - error) ** 2))
        f = f - f.mean(axis=1, keepdims=True)
        wanted.append(np.mean((np.sum(f * error) / np.sum(f**2) * f - error) ** 2))
    assert near(fitted.cv_errors_, wanted)
    assert fitted.manifold_ == (weights[np.argmin(wanted)],) != (weights[np.argmin(plain)],)


def test_only_labelled_rows_calibrate() -> None:
    X, some, y = moons(200, each=20)
    fitted = ORFFClassifier(kernels.Gaussian(0.4), 64, ridge=1e-6, manifold=0.1).fit(X, some)
    assert fitted.calibration_.rows == 40
    proba = fitted.predict_proba(X)
    assert np.allclose(proba.sum(axis=1), 1.0) and np.array_equal(
        fitted.classes_[proba.argmax(axis=1)], fitted.predict(X)
    )
    assert -np.log(proba[np.arange(200), y]).mean() < 0.3


def test_without_a_manifold_minus_one_is_a_class() -> None:
    X, some, _ = moons(60, each=10)
    assert ORFFClassifier(n_features=16).fit(X, some).classes_.tolist() == [-1, 0, 1]
    assert not hasattr(ORFFClassifier(n_features=16).fit(X, some), "transduction_")


def test_weights_of_classes_are_of_labelled_rows() -> None:
    X, some, _ = moons(80, each=6)
    some[np.flatnonzero(some == 1)[:4]] = -1
    fitted = ORFFClassifier(n_features=16, manifold=0.1, class_weight="balanced").fit(X, some)
    assert np.allclose(fitted.class_weight_, [8 / 12, 8 / 4])


def test_beside_scikit_learns_own() -> None:
    """The convention is theirs: the same y goes into SelfTrainingClassifier, with ours inside."""
    X, some, y = moons(100, each=10)
    inner = ORFFClassifier(kernels.Gaussian(0.4), 32)
    theirs = SelfTrainingClassifier(inner).fit(X, some)
    ours = clone(inner).set_params(manifold=0.1).fit(X, some)
    assert theirs.transduction_.shape == ours.transduction_.shape
    assert theirs.score(X, y) > 0.8 and ours.score(X, y) > 0.9


# --- views --------------------------------------------------------------------------------------------------


def test_views_are_the_dense_fit() -> None:
    X, Y = rows(d=3)
    within = Manifold(KNN(4), 0.02, view="line", outputs=np.array([[2.0, 1.0], [1.0, 1.0]]))
    terms = [Manifold(Identity(), 0.05, between=True), within, Manifold(KNN(5), 0.01)]
    fitted = ORFFRegressor(TWO, 24, ridge=1e-2, manifold=terms).fit(X, Y)
    inputs = scaled(fitted, X)
    line, both = (laplacian(local_graph(Z, KNN(k))).toarray() for Z, k in ((inputs[:, 2:], 4), (inputs, 5)))
    each = [
        (0.05, np.eye(40), np.kron([[1.0, -1.0], [-1.0, 1.0]], np.eye(2))),
        (0.02, line, np.kron([[0.0, 0.0], [0.0, 1.0]], within.outputs)),
        (0.01, both, np.eye(4)),
    ]
    f = dense(fitted, X, Y, each)
    assert fitted.predict(X).shape == (40, 2)
    assert near(fitted.predict(X), (f[:, :2] + f[:, 2:]) / 2)
    assert near(fitted.predict(X, views=["plane"]), f[:, :2]) and near(fitted.predict(X, views=[1]), f[:, 2:])


def test_a_view_that_is_missing() -> None:
    X, Y = rows(d=3)
    fitted = ORFFRegressor(TWO, 24, ridge=1e-2, manifold=Manifold(Identity(), 0.05, between=True)).fit(X, Y)
    whole = fitted.predict(X, views=["plane"])
    blind = X.copy()
    blind[:, 2] = np.nan
    assert np.array_equal(fitted.predict(blind, views=["plane"]), whole)
    lazy = fitted.predict(da.from_array(blind, chunks=(7, 3)), views=["plane"])
    assert isinstance(lazy, da.Array) and near(lazy.compute(), whole)
    with pytest.raises(ValueError, match="contains NaN"):
        fitted.predict(blind)
    with pytest.raises(InputError, match="X, row 0, column 2: expected a finite number"):
        fitted.predict(blind, views=["line"])
    seen = ~np.isnan(Y[:, 0])
    plain = ORFFRegressor(TWO, 24, ridge=1e-2, standardize=True).fit(X[seen], Y[seen])
    again = clone(plain).fit(da.from_array(X[seen], chunks=(5, 3)), da.from_array(Y[seen], chunks=(5, 2)))
    assert near(again.predict(X), plain.predict(X))
    one = ORFFRegressor(TWO, 24, ridge=1e-2).fit(X[seen], Y[seen, 0])
    assert one.predict(blind, views=["plane"]).shape == (40,) and one.predict(X).shape == (40,)
    mean, std = one.predict(X, return_std=True)
    assert mean.shape == std.shape == (40,) and np.all(std > 0)
    mean, std = one.predict(blind, return_std=True, noise=True, views=["plane"])
    assert near(mean, one.predict(blind, views=["plane"])) and std.shape == (40,)
    assert near(std, one.posterior_model_.std(blind, noise=True, views=["plane"])[:, 0])
    assert one.score(X[:10], one.predict(X[:10])) == 1.0
    assert one.score(blind, whole[:, 0], views=["plane"]) == r2_score(whole[:, 0], one.predict(X, views=["plane"]))
    assert one.score(X, one.predict(blind, views=["plane"]), views=["line"]) < 1.0


def test_classes_of_views(tmp_path) -> None:
    X, some, y = moons(120, each=6)
    X = np.hstack([X, X[:, :1] * X[:, 1:]])
    terms = [Manifold(Identity(), 0.001, between=True), Manifold(KNN(6), 0.01, view="plane")]
    fitted = ORFFClassifier(TWO, 64, ridge=1e-4, manifold=terms).fit(X, some)
    assert fitted.predict_proba(X).shape == (120, 2) and fitted.decision_function(X).shape == (120,)
    blind = X.copy()
    blind[:, 2] = np.nan
    assert fitted.score(blind, y, views=["plane"]) == (fitted.predict(blind, views=["plane"]) == y).mean() > 0.9
    proba = fitted.predict_proba(blind, views=["plane"])
    assert np.array_equal(fitted.classes_[proba.argmax(axis=1)], fitted.predict(blind, views=["plane"]))
    assert np.allclose(np.log(proba), fitted.predict_log_proba(blind, views=[0]))
    assert np.allclose(np.diff(fitted.model_.predict(blind, views=["plane"]), axis=1)[:, 0],
                       fitted.decision_function(blind, views=["plane"]))  # fmt: skip
    again = load_model(save_model(fitted.model_, tmp_path / "model"))
    assert np.array_equal(again.predict(X), fitted.model_.predict(X))


# --- refusals -----------------------------------------------------------------------------------------------

X, Y = rows()
REFUSED = {
    "no labels": ({"manifold": 0.1}, np.full_like(Y, np.nan), "all are unlabelled"),
    "several weights": (
        {"manifold": [0.1, 1.0], "ridge": 1e-6, "cv": None},
        Y,
        "2 combinations of ridge and weights .* give cv=5",
    ),
    "several ridges": ({"manifold": 0.1, "ridge": [1e-4, 1e-3], "cv": None}, Y, "2 combinations .* give cv=5"),
    "many folds": ({"manifold": [0.1, 1.0], "cv": 13}, Y, "n_samples = 12"),
    "short graph": ({"manifold": 0.1, "graph": np.zeros((39, 39))}, Y, r"a matrix 40 x 40, got shape \(39, 39\)"),
    "one-sided graph": ({"manifold": 0.1, "graph": np.eye(40, k=1)}, Y, "symmetric"),
    "negative graph": ({"manifold": 0.1, "graph": -np.ones((40, 40))}, Y, "finite weights of at least 0"),
    "no matrix": ({"manifold": 0.1, "graph": object()}, Y, "square matrix of weights"),
    "negative weight": ({"manifold": -0.1}, Y, "finite numbers of at least 0, got -0.1"),
    "negative weights": ({"manifold": [0.1, -0.1], "cv": 3}, Y, "finite numbers of at least 0"),
    "no weight": ({"manifold": []}, Y, "got none"),
    "word": ({"manifold": "much"}, Y, "got 'much'"),
    "a type's name": ({"manifold": 0.1, "graph": "knn"}, Y, r"got 'knn'; for its type give graphs.KNN\(10\)"),
    "another's": ({"manifold": 0.1, "graph": "identity"}, Y, r"got 'identity'; for its type give graphs.Identity\(\)"),
    "no path": ({"manifold": 0.1, "graph": "knm"}, Y, "knm: wanted a graph, a Zarr group or Parquet files"),
    "mixed": ({"manifold": [Manifold(KNN(), 0.1), 0.1]}, Y, "weights and terms in one list"),
    "two graphs": ({"manifold": Manifold(KNN(), 0.1), "graph": KNN()}, Y, "leave graph out"),
    "graph alone": ({"graph": KNN()}, Y, "give its weight too"),
    "no views": ({"manifold": Manifold(Identity(), 0.1, between=True)}, Y, "views of a MultiView kernel"),
    "unknown view": ({"kernel": TWO, "manifold": Manifold(KNN(), 0.1, view="side")}, Y, "there is no view 'side'"),
    "outputs": ({"manifold": Manifold(KNN(), 0.1, outputs=np.eye(3))}, Y, "outputs"),
    "observed views": ({"kernel": TWO, "observe": np.eye(2)}, np.ones((40, 2)), "leave observe out"),
    "lengths": ({"manifold": 0.1}, Y[:-1], "inconsistent numbers of samples|rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name) -> None:
    options, y, words = REFUSED[name]
    options = {"kernel": GAUSSIAN, "n_features": 16} | options
    inputs = np.hstack([X, X[:, :1]]) if options["kernel"] is TWO else X
    with pytest.raises(ValueError, match=words):
        ORFFRegressor(**options).fit(inputs, y)


@pytest.mark.parametrize("gap", [None, np.nan, pd.NA, pd.NaT], ids=repr)
@pytest.mark.parametrize("kind", [list, pd.Series, lambda labels: np.array(labels, dtype=object)])
def test_labels_that_are_missing(gap, kind) -> None:
    X, y = rows(6)[0], kind(["a", "b", "a", gap, "b", -1])
    with pytest.raises(InputError, match=r"y, row 3 is .*; a row without a label has the number -1: put it there"):
        ORFFClassifier(GAUSSIAN, 16, manifold=0.1).fit(X, y)


def test_refusals_of_classes_and_of_predictions() -> None:
    X, some, _ = moons(40, each=3)
    estimator = ORFFClassifier(GAUSSIAN, 16, ridge=1e-6, manifold=0.1)
    for y, words in {
        "all": (np.full(40, -1), "all of its 40 rows are unlabelled"),
        "one": (np.where(some == 1, -1, some), "one class only"),
        "text": (some.astype(str), "has '-1' as text"),
    }.values():
        with pytest.raises(InputError, match=words):
            estimator.fit(X, y)
    with pytest.raises(InputError, match="manifold: an estimator has all rows of X in memory"):
        estimator.fit(da.from_array(X), some)
    lazy = estimator.fit(X, da.from_array(some))
    assert np.array_equal(lazy.predict(X), clone(estimator).fit(X, some).predict(X))
    with pytest.raises(InputError, match="only a MultiView kernel"):
        lazy.predict(X, views=["plane"])
    weights = np.where(some < 0, 1.0, 0.0)
    with pytest.raises(InputError, match="so that no row counts"):
        ORFFRegressor(GAUSSIAN, 16, manifold=0.1).fit(X, np.where(some < 0, np.nan, some), weights)


# --- life among other estimators ----------------------------------------------------------------------------


WEIGHTS = {"check_sample_weight_equivalence_on_dense_data": "the graph has every row once, at any weight"}
CLASSES = {"check_classifiers_classes": "-1 is no class; scikit-learn exempts its own by their names"}
EXPECTED = {"ORFFRegressor": WEIGHTS, "ORFFClassifier": WEIGHTS | CLASSES}


@pytest.mark.slow
@parametrize_with_checks(
    [ORFFRegressor(n_features=16, manifold=1e-3, graph=KNN(3)), ORFFClassifier(n_features=16, manifold=1e-3)],
    expected_failed_checks=lambda estimator: EXPECTED[type(estimator).__name__],
)
def test_scikit_learns_checks(estimator, check) -> None:
    check(estimator)


def test_parameters_travel() -> None:
    X, some, _ = moons(40, each=5)
    estimator = ORFFClassifier(GAUSSIAN, 16, ridge=1e-6, manifold=[Manifold(KNN(4), (0.1, 1.0))], cv=2)
    fitted = clone(estimator).fit(X, some)
    assert fitted.trials_.shape == (2, 2) and fitted.cv_errors_.shape == (2,)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))
    assert fitted.set_params(manifold=0.1, graph=KNN(3), cv=None).fit(X, some).manifold_ == (0.1,)
    assert not hasattr(fitted, "cv_errors_")
    assert "manifold=0.1" in repr(fitted)
    plain = fitted.set_params(manifold=None, graph=None).fit(X, some)
    assert not hasattr(plain, "manifold_") and not hasattr(plain, "trials_") and not hasattr(plain, "transduction_")
    found = cross_val_predict(ORFFRegressor(GAUSSIAN, 16, manifold=0.1), *rows(30, labelled=30), cv=3)
    assert found.shape == (30, 2)


def test_a_fit_without_digits_warns() -> None:
    X, y = make_moons(60, noise=0.05, random_state=0)
    y[10:] = -1
    with pytest.warns(LinAlgWarning, match="leaves 0.0 digits of the fitted values, .*; raise ridge, or lower"):
        ORFFClassifier(kernels.Gaussian(0.4), 64, manifold=1e12, ridge=1e-9).fit(X, y)
