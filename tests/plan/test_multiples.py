"""Length-scales that tell rows of other groups, where those of most evidence take for signal what
stays along a track."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick import slow
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, PredefinedSplit, cross_val_predict
from sklearn.preprocessing import StandardScaler

from dorff import ORFFClassifier, ORFFRegressor
from dorff.data import RowBlock, ingest
from dorff.engine import SerialEngine
from dorff.estimators import array_sums, parameters
from dorff.fit import FitReport, fit
from dorff.kernels import CurlFree, Decomposable, Gaussian, OperatorKernel
from dorff.kernels.scalar import FloatArray, IntArray
from dorff.plan import constants as survey
from dorff.plan import make_plan
from dorff.plan import sampled as look_at
from dorff.plan.lengthscale import multiplied
from dorff.plan.sampled import MULTIPLES, held_out_multiple
from dorff.solvers import Setting
from tests.plan.test_defaults import job, stored

Tracks = tuple[FloatArray, FloatArray, IntArray]


def tracks(seed: int, *, rows: int = 200, count: int = 10) -> Tracks:
    """Positions that wander, velocities of one eddy, and an error that stays along a track."""
    rng = np.random.default_rng(seed)
    X = np.concatenate(
        [rng.uniform(-4, 4, 2) + np.cumsum(0.15 * rng.normal(size=(rows, 2)), axis=0) for _ in range(count)]
    )
    error = np.zeros((count * rows, 2))
    for row in range(1, len(error)):
        error[row] = (0.98 * error[row - 1] if row % rows else 0.0) + 0.08 * rng.normal(size=2)
    eddy = 0.5 * np.column_stack([-X[:, 1], X[:, 0]]) * np.exp(-np.sum(X**2, axis=1) / 20)[:, None]
    return X, eddy + error, np.repeat(np.arange(count), rows)


def rows_of(X: FloatArray, Y: FloatArray, weights: FloatArray | None = None) -> RowBlock:
    return RowBlock(np.arange(len(X)), X, Y, weights)


def multiple(kernel: OperatorKernel, X: FloatArray, Y: FloatArray, fold_of: IntArray, m: int = 256) -> float:
    return held_out_multiple(Setting(kernel, X.shape[1], m, None, True, True), rows_of(X, Y), fold_of, 0, m)


def lengths(report: FitReport) -> FloatArray:
    return np.ravel(np.asarray(report.lengthscale[0], dtype=float))


@pytest.mark.statistical
@pytest.mark.parametrize("seed", [0, *slow(1, 2)])
def test_it_is_that_of_the_exact_kernel(seed: int) -> None:
    """By kernel ridge regression with the exact kernel on the same folds; and the worst multiple is much worse."""
    X, Y, of = tracks(seed, rows=100)
    X, Y, fold_of = StandardScaler().fit_transform(X), StandardScaler().fit_transform(Y), of % 5
    exact = {}
    for factor in MULTIPLES:
        grid = {"alpha": [10.0**power for power in range(-4, 4)]}
        gamma = 0.5 / (0.2 * factor) ** 2
        search = GridSearchCV(KernelRidge(kernel="rbf", gamma=gamma), grid, cv=PredefinedSplit(fold_of)).fit(X, Y)
        exact[factor] = r2_score(Y, cross_val_predict(search.best_estimator_, X, Y, cv=PredefinedSplit(fold_of)))
    best = multiple(Decomposable(Gaussian(0.2)), X, Y, fold_of)
    assert exact[best] > max(exact.values()) - 0.03 and exact[best] > min(exact.values()) + 0.2, (best, exact)
    assert best > 1


@pytest.mark.statistical
def test_length_scales_that_are_right_stay_and_few_rows_tell_nothing() -> None:
    rng = np.random.default_rng(3)
    X = rng.uniform(-3, 3, (800, 2))
    Y = np.sin(X[:, :1]) * np.cos(X[:, 1:]) + 0.1 * rng.normal(size=(800, 1))
    fold_of = rng.integers(0, 5, 800)
    assert multiple(Decomposable(Gaussian(1.4)), X, Y, fold_of) in (1.0, 2.0)
    assert multiple(Decomposable(Gaussian(0.2)), X, Y, fold_of) in (8.0, 4.0)
    assert multiple(Decomposable(Gaussian(2.8)), X, Y, fold_of) in (0.5, 1.0)
    assert multiple(Decomposable(Gaussian(0.2)), X[:15], Y[:15], fold_of[:15]) == 1.0
    assert multiple(Decomposable(Gaussian(0.2)), X, Y, np.zeros(800, int)) == 1.0


@pytest.mark.statistical
def test_few_features_do_not_choose_what_more_would_not() -> None:
    """Without noise few features tell a longer length-scale better, by any rows that are held out."""
    rng = np.random.default_rng(5)
    X, of = rng.uniform(-3, 3, (1500, 2)), rng.integers(0, 5, 1500)
    Y = np.sin(3 * X[:, :1]) * np.cos(3 * X[:, 1:])
    setting = Setting(Decomposable(Gaussian(0.35)), 2, 48, None, True, True)
    rows = rows_of(X, Y)
    assert held_out_multiple(setting, rows, of, 0, 48) > 1 == held_out_multiple(setting, rows, of, 0, 768)


@pytest.mark.statistical
def test_what_is_gained_has_to_be_worth_it() -> None:
    rng = np.random.default_rng(6)
    X, of = rng.uniform(-3, 3, (600, 2)), rng.integers(0, 5, 600)
    Y = np.sin(X[:, :1]) + np.cos(X[:, 1:]) + 0.01 * rng.normal(size=(600, 1))
    assert multiple(Decomposable(Gaussian(0.9)), X, Y, of) == 1.0, "all of them tell 99.9% of it"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(look_at, "WORTH", 0.0)
        assert multiple(Decomposable(Gaussian(0.9)), X, Y, of) > 1


@pytest.mark.statistical
def test_rows_of_little_weight_tell_little_and_many_folds_are_put_together() -> None:
    X, Y, of = tracks(0, rows=60)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(900, 2))
    noise = rows_of(inputs, 5.0 * np.sin(8.0 * inputs))  # which takes a short length-scale
    setting = Setting(Decomposable(Gaussian(0.1)), 2, 128, None, True, True)
    best = held_out_multiple(setting, rows_of(X, Y), of, 0, 128)
    w = np.concatenate([np.ones(len(X)), np.full(900, 1e-9)])
    both = rows_of(np.vstack([X, noise.X]), np.vstack([Y, noise.Y]), w)
    folds = np.concatenate([of, rng.integers(0, 10, 900)])
    assert best > 1 and held_out_multiple(setting, both, folds, 0, 128) == best
    assert held_out_multiple(setting, replace(both, weights=None), folds, 0, 128) != best
    assert held_out_multiple(setting, rows_of(X, Y), of % 5, 0, 128) == best, "ten folds are five"
    assert held_out_multiple(setting, rows_of(X, Y), of + 100, 0, 128) == best


@pytest.mark.statistical
def test_rows_without_weight_change_no_length_scale_of_an_estimator() -> None:
    X, Y, of = tracks(1, rows=60)
    rng = np.random.default_rng(2)
    n = 2 * len(X)
    inputs, targets, groups, w = rng.normal(size=(n, 2)), 9 * rng.normal(size=(n, 2)), np.repeat(of, 2), np.zeros(n)
    inputs[::2], targets[::2], w[::2] = X, Y, 1.0
    plain = ORFFRegressor(n_features=64).fit(X, Y, groups=of)
    weighed = ORFFRegressor(n_features=64).fit(inputs, targets, w, groups=groups)
    (one, rows), (other, same) = plain_look(plain, X, Y, None), plain_look(plain, inputs, targets, w)
    assert one.rows == other.rows == len(rows) == len(same) and np.array_equal(rows.Y, same.Y)
    scales = [np.ravel(fit.model_.kernel.config()["scalar"]["lengthscale"]) for fit in (plain, weighed)]
    assert np.all(np.abs(np.log(scales[1] / scales[0])) < np.log(1.5)), scales


def plain_look(model: ORFFRegressor, X: FloatArray, Y: FloatArray, w: FloatArray | None) -> Any:
    n = len(X)
    read = array_sums.RowsRead.of(X, Y, parameters.runs_read(n, tunes=False, looks=True))
    return parameters.looked_at(model.model_.kernel, read, lambda rows: rows, w, n=n, seed=0)


@pytest.mark.parametrize("drawn", [0.25, "tune"])
def test_frequencies_that_are_drawn_for_another_kernel_keep_theirs(
    drawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "held_out_multiple", lambda *_: 16.0)
    X, Y, of = tracks(0, rows=60)

    def kernel(kind: str, lengthscale: Any, **more: Any) -> dict[str, Any]:
        return {"type": "decomposable", "scalar": {"type": kind, "lengthscale": lengthscale, **more}}

    described = job(
        stored(tmp_path / "a.zarr", X, Y, of=of), tmp_path, solve={"standardize": True},
        features={"count": 128, "drawn_for": kernel("matern", drawn, nu=2.5)}, kernel=kernel("gaussian", "tune"),
    )  # fmt: skip
    constants = survey.constants_of(make_plan(described))
    assert constants.tuned is not None and "times" not in str(constants.tuned)


@pytest.mark.statistical
def test_one_each_and_a_field_and_observed_sums_have_theirs() -> None:
    X, Y, of = tracks(0, rows=100)
    X = (X - X.mean(axis=0)) / X.std()
    assert multiple(Decomposable(Gaussian([0.1, 0.12])), X, Y, of % 5) > 1
    assert multiple(CurlFree(Gaussian(0.1)), X, X * np.exp(-(X**2).sum(axis=1))[:, None], of % 5) > 1
    setting = Setting(Decomposable(Gaussian(0.1)), 2, 256, None, True, True, np.ones((1, 2)))
    assert held_out_multiple(setting, rows_of(X, Y.sum(axis=1, keepdims=True)), of % 5, 0, 256) > 1
    classes = np.eye(2)[(Y[:, 0] > 0).astype(int)]
    setting = Setting(Decomposable(Gaussian(0.1)), 2, 256, None, False, True, free_scale=True)
    assert held_out_multiple(setting, rows_of(X, classes), of % 5, 0, 256) > 1


def test_kernels_of_one_search_have_one_multiple_and_numbers_are_kept() -> None:
    def config(lengthscale: Any, **more: Any) -> dict[str, Any]:
        scalar = {"type": "gaussian", "lengthscale": lengthscale}
        return {"type": "decomposable", "scalar": scalar, "output": "identity", **more}

    seen = []

    def twice(kernel: OperatorKernel) -> float:
        seen.append(kernel)
        return 2.0 * len(seen)

    words = [config("tune"), config("tune", output=[[2.0, 0.0], [0.0, 1.0]]), config(3.0), config("tune each")]
    tuned = [config(0.5), config(0.5, output=[[2.0, 0.0], [0.0, 1.0]]), config(3.0), config([1.0, 2.0])]
    configs, factors = multiplied(words, tuned, twice)
    assert factors == [2.0, 2.0, 1.0, 4.0] and len(seen) == 2
    assert [one["scalar"]["lengthscale"] for one in configs] == [1.0, 1.0, 3.0, [4.0, 8.0]]
    assert [one["output"] for one in configs] == [one["output"] for one in tuned]


@pytest.mark.statistical
@pytest.mark.parametrize("kernel", [None, *slow({"type": "divergence_free"}, "sum")], ids=str)
def test_a_job_of_tracks_tells_other_tracks(kernel: object, tmp_path: Path) -> None:
    """Better than with the length-scales of most evidence, which folds by rows keep; and it says so."""
    X, Y, of = tracks(1)
    given: dict[str, Any] = {"features": {"count": 256}}
    if kernel == "sum":
        parts = [{"weight": 0.5, "kernel": {"type": one}} for one in ("curl_free", "divergence_free")]
        kernel = {"type": "sum", "terms": parts}
    given["kernel"] = kernel or {"type": "decomposable", "scalar": {"type": "gaussian"}}
    store = stored(tmp_path / "a.zarr", X, Y, of=of)
    report = fit(job(store, tmp_path / "own", **given), engine=SerialEngine())
    by_rows = fit(job(store, tmp_path / "rows", **given, solve={"folds": {"by": "rows"}}), engine=SerialEngine())
    factor = lengths(report) / lengths(by_rows)
    assert factor[0] in (2.0, 4.0, 8.0) and np.ptp(factor) < 1e-9
    assert report.tuned.endswith(f"times {factor[0]:g}, by groups that were held out")
    assert by_rows.tuned == "converged"
    numbers = (by_rows.lengthscale[0], report.lengthscale[0])
    r2 = []
    for at, number in enumerate(numbers):
        described = job(store, tmp_path / str(at), **given)
        text = described.model_dump(mode="json")["kernel"]
        spec = _with(text, number)
        fixed = job(store, tmp_path / str(at), **given | {"kernel": spec, "solve": {"standardize": True}})
        done = fit(fixed, engine=SerialEngine())
        assert done.tuned is None and done.quality is not None
        r2.append(np.mean([one["r2"] for one in done.quality["outputs"]]))
    assert r2[1] > r2[0] + 0.02, r2


def _with(config: Any, lengthscale: Any) -> Any:
    if isinstance(config, dict):
        return {key: lengthscale if key == "lengthscale" else _with(one, lengthscale) for key, one in config.items()}
    return [_with(one, lengthscale) for one in config] if isinstance(config, list) else config


@pytest.mark.parametrize("by", ["rows", "blocks", "groups", *slow("leaves")])
def test_a_job_asks_where_folds_are_of_groups(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = list[Setting]()

    def four(setting: Setting, *_: Any) -> float:
        settings.append(setting)
        return 4.0

    count, m, rows = (2048, 512, 4000) if by == "leaves" else (64, 64, 30)
    X, Y, of = tracks(0, rows=rows)
    monkeypatch.setattr(survey, "held_out_multiple", four)
    kernels = [{"type": "divergence_free"}, {"type": "decomposable"}]
    described = job(
        stored(tmp_path / "a.zarr", X, Y, of=of, shard_rows=2048), tmp_path, features={"count": count}, kernel=kernels,
        solve={"folds": {"by": by, "count": 2}, "intercept": False},
    )  # fmt: skip
    constants = survey.constants_of(make_plan(described))
    assert constants.tuned is not None
    assert [one is not None and "; times 4, by" in one for one in constants.tuned] == [by == "groups"] * 2
    assert [(one.m, one.intercept, one.standardize) for one in settings] == [(m, False, True)] * 2 * (by == "groups")
    assert all(one.one_scale and not one.free_scale for one in settings)


def test_a_job_of_classes_asks_for_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = list[Setting]()
    monkeypatch.setattr(survey, "held_out_multiple", lambda setting, *_: settings.append(setting) or 1.0)
    X, Y, of = tracks(0, rows=30)
    np.savez(tmp_path / "a.npz", x=X, c=np.where(Y[:, 0] > 0, "up", "down"), of=of)
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=[], classes="c", groups="of")
    described = job(tmp_path / "a.zarr", tmp_path, features={"count": 64})
    survey.constants_of(make_plan(described))
    assert [(one.free_scale, one.standardize) for one in settings] == [(True, False)]


@pytest.mark.statistical
@pytest.mark.parametrize("how", ["rows", "auto", "groups", "splits", "shuffled"])
def test_an_estimator_asks_where_folds_are_of_groups(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "held_out_multiple", lambda *_: 4.0)
    X, Y, of = tracks(0, rows=30)
    cv = {"rows": 5, "splits": GroupKFold(3), "shuffled": KFold(3, shuffle=True)}.get(how, "auto")
    groups = of if how in ("groups", "splits") else None

    by_rows = ORFFRegressor("gaussian", n_features=64, cv=5).fit(X, Y)
    plain = np.ravel(by_rows.model_.kernel.config()["scalar"]["lengthscale"])
    model = ORFFRegressor("gaussian", n_features=64, cv=cv).fit(X, Y, groups=groups)
    own = np.ravel(model.model_.kernel.config()["scalar"]["lengthscale"])
    np.testing.assert_allclose(own / plain, 4.0 if how in ("groups", "splits") else 1.0)


@pytest.mark.statistical
def test_estimators_tell_other_tracks_too() -> None:
    X, Y, of = tracks(2)
    model = ORFFRegressor(n_features=256).fit(X, Y, groups=of)
    by_rows = ORFFRegressor("gaussian", n_features=256, cv=5).fit(X, Y)
    ((_, term),) = model.model_.kernel.terms()
    assert isinstance(term.scalar, Gaussian), "errors that stay along a track are no rough function"

    def length(one: ORFFRegressor) -> FloatArray:
        return np.ravel(one.model_.kernel.config()["scalar"]["lengthscale"])

    factor = length(model) / length(by_rows)
    assert factor[0] in (2.0, 4.0, 8.0) and np.ptp(factor) < 1e-9
    given = Decomposable(Gaussian(length(by_rows).tolist()))
    fixed = ORFFRegressor(given, n_features=256, standardize=True).fit(X, Y, groups=of)
    assert np.array_equal(length(fixed), length(by_rows)), "what was given is kept"
    assert np.mean(model.quality_.r2) > np.mean(fixed.quality_.r2) + 0.02
    classes = ORFFClassifier(n_features=256).fit(X, Y[:, 1] > 0, groups=of)
    plain = ORFFClassifier(n_features=256, cv=5).fit(X, Y[:, 1] > 0)
    assert length(classes)[0] > length(plain)[0]


def test_what_has_no_length_scale_is_left_as_it_is() -> None:
    X, Y, of = tracks(0, rows=30)
    model = ORFFRegressor("arc_cosine", n_features=64).fit(X, Y, groups=of)
    assert np.isfinite(model.ridge_) and "lengthscale" not in model.model_.kernel.config()["scalar"]
