"""One R2 everywhere: of the score, the gate, k-fold, tuning, the page and the estimator, against scikit-learn's and
k-fold by hand."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import r2_score

from dorff import ORFFRegressor, kernels
from dorff.data import RowBlock, ingest
from dorff.engine import SerialEngine
from dorff.errors import GateError, InputError
from dorff.fit import FitReport, fit
from dorff.fit.publish import check_same_r2
from dorff.fit.tune import tune
from dorff.kernels.scalar import FloatArray
from dorff.passes import FoldRule
from dorff.predict import score
from dorff.report.figures import from_info
from dorff.solvers import R2, Spread, row_sums
from dorff.spec.job import Job
from dorff.store import load_model, read_history, save_model
from tests.cases import LAW, moments_of, plain_map
from tests.command_line import call

GAUSS = kernels.Gaussian(0.6)
N, SEED, COUNT = 400, 3, 3
RIDGES = [1e-7, 1e-4, 1e-1]
UNITS = np.array([1.0, 1e6, 1e-6])
RNG = np.random.default_rng(5)
X = RNG.uniform(-1, 1, (N, 2))
W = RNG.uniform(0.2, 3.0, N)
# The second is all noise: in its large unit it would choose the largest ridge, which is the worst for the others.
PLAIN = np.column_stack([np.sin(5 * X[:, 0]), np.zeros(N), np.cos(4 * X[:, 0] * X[:, 1])]) + np.column_stack(
    [0.05 * RNG.standard_normal(N), RNG.standard_normal(N), 0.05 * RNG.standard_normal(N)]
)
Y = PLAIN * UNITS + [3.0, -2e6, 0.0]


def said(*words: object) -> Any:
    """The JSON of a command, in this process."""
    done = call(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def r2(Y: FloatArray, values: FloatArray, weights: FloatArray | None = None, of: R2 = R2.MEAN) -> float:
    sums = row_sums(Y, values, np.ones(len(Y)) if weights is None else weights)
    return float(of.score(sums[4], Spread.of(*sums[:4])))


@LAW
@given(
    st.integers(2, 40), st.integers(1, 4), st.integers(0, 2**32 - 1), st.booleans(),
    st.lists(st.sampled_from([1e-6, 0.03, 1.0, 1e3, 1e6]), min_size=4, max_size=4),
)  # fmt: skip
def test_r2_is_scikit_learns_and_has_no_unit(n: int, q: int, seed: int, weighted: bool, units: list[float]) -> None:
    rng = np.random.default_rng(seed)
    Y = rng.standard_normal((n, q)) * rng.uniform(0.1, 10, q) + rng.uniform(-5, 5, q)
    values, w = Y + rng.standard_normal((n, q)), rng.uniform(0.1, 4, n) if weighted else np.ones(n)
    found, scale = r2(Y, values, w), np.array(units[:q])
    assert found == pytest.approx(r2_score(Y, values, sample_weight=w), rel=1e-9)
    assert r2(Y, values, w, R2.POOLED) == pytest.approx(
        1 - np.sum(w[:, None] * (Y - values) ** 2) / np.sum(w[:, None] * (Y - np.average(Y, 0, w)) ** 2), rel=1e-9
    )
    assert r2(Y * scale, values * scale, w) == pytest.approx(found, rel=1e-6, abs=1e-9)
    closer = Y + (values - Y) * rng.uniform(0.2, 0.99, q)  # every output's error falls
    assert r2(Y, closer, w) > found


def test_targets_that_do_not_vary_count_one_or_nothing() -> None:
    for level in (0.0, 0.1, -7e5):  # the mean of many 0.1 is not 0.1
        Y = np.column_stack([PLAIN[:, 0], np.full(N, level)])
        met, missed = Y.copy(), Y + np.array([0.0, 1e-3])
        met[:, 1] += 1e-16 * level
        assert r2(Y, met) == 1.0 and r2(Y, missed) == 0.5
        exact = r2_score(Y[:, :1], Y[:, :1] + 0.1), 1.0
        assert r2(Y, met + np.array([0.1, 0.0])) == pytest.approx(np.mean(exact))
    assert r2(np.ones((4, 2)), np.ones((4, 2)), of=R2.POOLED) == 1.0
    assert r2(np.ones((4, 2)), np.zeros((4, 2)), of=R2.POOLED) == 0.0


def test_targets_are_scored_on_the_rows_that_have_them() -> None:
    Y, values = PLAIN.copy(), PLAIN + 0.3
    Y[::3, 0], Y[1:, 1] = np.nan, np.nan
    there, w = ~np.isnan(Y[:, 0]), W.copy()
    w[:30] = 0.0
    Y[0, 1] = np.nan
    Y[40, 1] = 2.0  # one row alone says nothing
    each = [
        r2_score(Y[there, 0], values[there, 0], sample_weight=w[there]),
        r2_score(Y[:, 2], values[:, 2], sample_weight=w),
    ]
    assert r2(Y, values, w) == pytest.approx(np.mean(each), rel=1e-12)
    Y[3, 1] = 9.0  # a second one, that weighs nothing
    assert r2(Y, values, w) == pytest.approx(np.mean(each), rel=1e-12)
    assert np.isnan(r2(Y[:1], values[:1]))


def test_sums_of_features_say_of_targets_what_their_rows_do() -> None:
    """Of targets far from 0 too, whose deviations may be rounding."""
    far, about = PLAIN + np.array([3.0, -2e6, 0.0]), np.array([2.0, -2e6, 1.0])
    found = Spread.of_moments([moments_of(plain_map(np.eye(2)), X, far, y0=about)])
    wanted = Spread.of(*row_sums(far, far, np.ones(N))[:4])
    for name in ("rows", "squares", "rounding"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-6), name
    assert found.rounding[1] > 1e10 * found.rounding[0] > 0


def test_fields_and_classes_are_pooled_and_all_else_is_not() -> None:
    plain, curl = kernels.Decomposable(GAUSS), kernels.CurlFree(GAUSS)
    field, eye = 0.3 * curl + 0.7 * kernels.DivergenceFree(GAUSS), np.eye(2)
    views = {name: kernels.MultiView([([0, 1], one), ([2, 3], plain)]) for name, one in (("f", curl), ("p", plain))}
    mean = np.hstack([eye, eye]) / 2
    for given_kernels, observe, expected in (
        ([plain], None, R2.MEAN), ([curl], None, R2.POOLED), ([field], None, R2.POOLED),
        ([plain, field], None, R2.POOLED), ([field], eye, R2.MEAN), ([views["f"]], mean, R2.POOLED),
        ([views["p"]], mean, R2.MEAN),
    ):  # fmt: skip
        assert R2.of(given_kernels, observe) is expected
        assert R2.of(given_kernels, observe, classes=True) is R2.POOLED


# A job of targets in three units, by k-fold.


def write(folder: Path, Y: FloatArray, name: str = "sea") -> Path:
    np.savez(folder / f"{name}.npz", x=X, y=Y, w=W)
    ingest([folder / f"{name}.npz"], folder / f"{name}.zarr", inputs=["x"], targets=["y"], weights="w", shard_rows=128)
    return folder / f"{name}.zarr"


def job(folder: Path, **changes: Any) -> dict[str, Any]:
    scalar = {"type": "gaussian", "lengthscale": 0.6}
    return {
        "data": {"store": str(folder / "sea.zarr"), "weights": "weights"},
        "kernel": {"type": "decomposable", "scalar": scalar},
        "features": {"count": 40, "sampler": {"type": "orthogonal"}, "seed": SEED},
        "solve": {"ridge": RIDGES, "select": "kfold", "folds": {"count": COUNT, "by": "rows"}},
        "cluster": {"type": "serial"}, "state": str(folder / "state"), "model": str(folder / "model"),
    } | changes  # fmt: skip


def run(folder: Path, **changes: Any) -> FitReport:
    return fit(Job.model_validate(job(folder, **changes)), engine=SerialEngine())


def held_out_values(F: FloatArray, Y: FloatArray, ridge: float, fold: np.ndarray) -> FloatArray:
    """Every row predicted by weighted least squares of the other folds' rows."""
    found, m = np.empty_like(Y), F.shape[1]
    for held in range(COUNT):
        train = fold != held
        root = np.sqrt(W[train] / W[train].sum())[:, None]
        A = np.vstack([root * np.column_stack([F[train], np.ones(train.sum())]), np.sqrt(ridge) * np.eye(m, m + 1)])
        h = np.linalg.lstsq(A, np.vstack([root * Y[train], np.zeros((m, Y.shape[1]))]), rcond=None)[0]
        found[~train] = F[~train] @ h[:m] + h[m]
    return found


def by_hand(model: Path, Y: FloatArray) -> list[float]:
    """Held-out R2 of each ridge, by scikit-learn."""
    F = load_model(model).feature_map.transform(X)
    fold = FoldRule(COUNT, by_rows=True, seed=SEED).of(RowBlock(np.arange(N), X, Y))
    return [r2_score(Y, held_out_values(F, Y, ridge, fold), sample_weight=W) for ridge in RIDGES]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FitReport]:
    folder = tmp_path_factory.mktemp("units")
    write(folder, Y)
    return folder, run(folder)


def test_kfold_chooses_by_the_r2_that_everyone_sees(fitted: tuple[Path, FitReport]) -> None:
    folder, report = fitted
    wanted = by_hand(Path(report.model), Y)
    assert [row["r2"] for row in report.table] == pytest.approx(wanted, rel=1e-8)
    best = int(np.argmax(wanted))
    assert (report.ridge, report.score) == (RIDGES[best], report.table[best]["r2"])
    assert report.r2_of == "mean of outputs" and report.score_by == "kfold"
    loudest = min(report.table, key=lambda row: row["value"])  # all outputs' squared errors in one sum
    assert loudest["ridge"] > report.ridge and loudest["r2"] < report.score - 0.01
    assert load_model(folder / "model").info["report"]["score"] == report.score
    assert read_history(folder / "model")[-1]["r2_of"] == "mean of outputs"


@pytest.mark.slow
def test_tune_report_and_inspect_say_the_same(fitted: tuple[Path, FitReport]) -> None:
    folder, report = fitted
    path = folder / "job.json"
    path.write_text(json.dumps(job(folder)))
    found = said("tune", path, "-o", folder / "tuned")
    assert (found["best"]["r2"], found["r2_of"], found["best"]["ridge"]) == (report.score, report.r2_of, report.ridge)
    assert [row["r2"] for row in found["table"]] == [row["r2"] for row in report.table]
    csv = (folder / "tuned" / "path.csv").read_text().splitlines()
    assert csv[0].endswith(",r2,error") and [float(line.split(",")[-2]) for line in csv[1:]] == [
        row["r2"] for row in report.table
    ]
    text = call("tune", path, "-o", folder / "tuned").stdout
    assert f"by held-out R2 is ridge {report.ridge:.3g}, 40 features: R2 {report.score:.4f}, mean of outputs;" in text
    assert report.quality is not None
    other = report.quality["r2_by_definition"]["pooled"]
    assert f"held-out R2 {report.score:.4f}, mean of outputs (kfold; pooled {other:.4f})" in call("fit", path).stdout
    assert call("report", folder / "model", "-o", folder / "page.html").exit_code == 0
    page = (folder / "page.html").read_text()
    assert f"{report.score:.4g}" in page.split("Held-out R2 (mean of outputs)")[1][:120]
    assert "Root of 1 - R2 on held-out rows" in page
    (drawn,) = from_info(load_model(folder / "model").info)
    assert drawn.best[0] == report.ridge and drawn.best[1] ** 2 == pytest.approx(1 - report.score, rel=1e-12)
    kept = said("inspect", folder / "model")
    assert (kept["report"]["score"], kept["report"]["r2_of"]) == (report.score, report.r2_of)


def test_score_says_the_mean_over_outputs(fitted: tuple[Path, FitReport], tmp_path: Path) -> None:
    folder, _ = fitted
    values = load_model(folder / "model").predict(X)
    found = said("score", folder / "model", folder / "sea.zarr", "--workers", 1)
    assert found["r2_of"] == "mean of outputs" and found["weights"] == "weights"
    assert found["r2"] == pytest.approx(r2_score(Y, values, sample_weight=W), rel=1e-9)
    assert found["r2"] == pytest.approx(np.mean([one["r2"] for one in found["per_output"].values()]), rel=1e-12)
    pooled = said("score", folder / "model", folder / "sea.zarr", "--workers", 1, "--pooled")
    about = 1 - np.sum(W @ (Y - values) ** 2) / np.sum(W @ (Y - np.average(Y, axis=0, weights=W)) ** 2)
    assert pooled["r2_of"] == "pooled" and pooled["r2"] == pytest.approx(about, rel=1e-9)
    assert abs(pooled["r2"] - found["r2"]) > 0.1
    assert said("score", folder / "model", folder / "sea.zarr", "--workers", 1, "--mean")["r2"] == found["r2"]
    both = call("score", folder / "model", folder / "sea.zarr", "--mean", "--pooled")
    assert both.exit_code == 3 and "--pooled and --mean: are two kinds of R2; give one" in both.stderr
    text = call("score", folder / "model", folder / "sea.zarr", "--workers", 1).stdout
    assert f"r2 {found['r2']:.4f} (mean of outputs; pooled {pooled['r2']:.4f})" in text
    for one in (found, pooled):
        assert one["r2_by_definition"] == {"mean of outputs": found["r2"], "pooled": pooled["r2"]}
    # Rows in many parts, of a target far from 0.
    serial = score(folder / "model", folder / "sea.zarr", engine=SerialEngine(shuffle=1))
    assert serial.r2 == pytest.approx(found["r2"], rel=1e-12)


def test_the_estimator_the_gate_and_the_score_agree(tmp_path: Path) -> None:
    write(tmp_path, Y)
    holdout = write(tmp_path, Y, "held")
    for kernel, of in ((kernels.Decomposable(GAUSS), "mean of outputs"), (kernels.CurlFree(GAUSS), "pooled")):
        targets = Y[:, :2] * [1.0, 1e-4]
        estimator = ORFFRegressor(kernel, 32, ridge=1e-4).fit(X, targets)
        save_model(estimator.model_, tmp_path / of)
        np.savez(tmp_path / "two.npz", x=X, y=targets)
        ingest([tmp_path / "two.npz"], tmp_path / f"{of}.zarr", inputs=["x"], targets=["y"])
        found = score(tmp_path / of, tmp_path / f"{of}.zarr", engine=SerialEngine())
        values = estimator.predict(X)
        plain = 1 - np.sum((targets - values) ** 2) / np.sum((targets - targets.mean(axis=0)) ** 2)
        assert found.r2_of == of
        assert found.r2 == pytest.approx(r2_score(targets, values) if of.startswith("mean") else plain, rel=1e-9)
        assert estimator.score(X, targets) == pytest.approx(found.r2, rel=1e-9)
        both = estimator.score(X, targets, sample_weight=W)
        assert both != pytest.approx(found.r2, rel=1e-6)
        if of.startswith("mean"):
            assert both == pytest.approx(r2_score(targets, values, sample_weight=W), rel=1e-9)
    solve = {"ridge": 1e-4}
    report = run(tmp_path, solve=solve, publish={"holdout": str(holdout), "margin": 0.01})
    assert report.score == score(tmp_path / "model", holdout, engine=SerialEngine()).r2
    values = load_model(tmp_path / "model").predict(X)
    assert report.score == pytest.approx(r2_score(Y, values, sample_weight=W), rel=1e-9)


def test_weights_count_in_every_score(tmp_path: Path) -> None:
    """A part of the rows, of weight 100, is smooth; the rest, of weight 1, is noise in a larger unit."""
    heavy = X[:, 0] < 0.4
    w, noise = np.where(heavy, 100.0, 1.0), RNG.standard_normal(N)
    y = np.where(heavy, np.sin(5 * X[:, 0]), 3 * noise)[:, None]
    w[7], y[7] = 0.0, 1e3
    np.savez(tmp_path / "sea.npz", x=X, y=y, w=w)
    for name, weigh in (("sea", "w"), ("held", "w"), ("bare", None)):
        ingest([tmp_path / "sea.npz"], tmp_path / f"{name}.zarr", inputs=["x"], targets=["y"], weights=weigh)
    model, sea, bare = tmp_path / "model", tmp_path / "sea.zarr", tmp_path / "bare.zarr"
    report, kept = run(tmp_path), w > 0
    values = load_model(model).predict(X)
    found = said("score", model, sea, "--workers", 1)
    r2 = r2_score(y[kept], values[kept], sample_weight=w[kept])
    rmse = np.sqrt(np.average((y - values)[:, 0] ** 2, weights=w))
    assert found["weights"] == "weights" and (found["rows"], found["rows_dropped"]) == (N - 1, 1)
    assert found["r2"] == pytest.approx(r2, rel=1e-9) and found["rmse"] == pytest.approx(rmse, rel=1e-9)
    assert found["per_output"]["y0"] == {"r2": found["r2"], "rmse": found["rmse"]}
    assert report.score == pytest.approx(found["r2"], abs=0.05) and found["r2"] > 0.8
    text = call("score", model, sea, "--workers", 1).stdout
    assert f"all ({N - 1} rows by weights, 1 left out (dropped, of weight 0, or with NaN or infinity))" in text
    even = said("score", model, bare, "--workers", 1)
    assert even["weights"] is None and even["r2"] == pytest.approx(r2_score(y, values), rel=1e-9)
    assert score(model, sea, engine=SerialEngine(), weights="").r2 == even["r2"]
    # The gate: both models by the weights of the job, where the data set has them.
    held = tmp_path / "held.zarr"
    for number, (holdout, weighed, old) in enumerate([(held, True, found), (bare, True, None), (held, False, None)]):
        data = {"store": str(sea), **({"weights": "weights"} if weighed else {})}
        before = score(model, holdout, engine=SerialEngine(), weights=None if weighed else "").r2
        changes = {"solve": {"ridge": 10.0**-number}, "publish": {"holdout": str(holdout), "margin": 1e9}}
        gate = run(tmp_path, data=data, **changes)
        assert gate.score == said("score", model, holdout, "--workers", 1)["r2"]
        assert read_history(model)[-1]["old_score"] == before == (old or {"r2": before})["r2"]


def test_cv_scores_are_by_hand_and_choose(tmp_path: Path) -> None:
    fold = np.arange(N) % COUNT
    splits = [(np.flatnonzero(fold != held), np.flatnonzero(fold == held)) for held in range(COUNT)]
    estimator = ORFFRegressor(kernels.Decomposable(GAUSS), 40, ridge=RIDGES, cv=splits).fit(X, Y, W)
    F = estimator.model_.feature_map.transform(X)
    values = [held_out_values(F, Y, ridge, fold) for ridge in RIDGES]
    np.testing.assert_allclose(estimator.cv_scores_, [r2_score(Y, one, sample_weight=W) for one in values], rtol=1e-8)
    assert estimator.ridge_ == RIDGES[int(np.argmax(estimator.cv_scores_))]
    assert RIDGES[int(np.argmin(estimator.cv_errors_))] != estimator.ridge_
    assert not hasattr(estimator.set_params(cv=None).fit(X, Y), "cv_scores_")


def test_the_gate_hears_every_output(tmp_path: Path) -> None:
    """One output that goes bad is hidden by none in a larger unit."""
    write(tmp_path, Y)
    rule = {"holdout": str(write(tmp_path, Y, "held")), "margin": 0.05}
    first = run(tmp_path, publish=rule)
    worse = Y.copy()
    worse[:, 2] = RNG.permutation(worse[:, 2])  # of the smallest unit
    write(tmp_path, worse, "later")
    data = {"store": str(tmp_path / "later.zarr"), "weights": "weights"}
    with pytest.raises(GateError, match=r"held-out score .* more than publish\.margin"):
        run(tmp_path, data=data, publish=rule)
    refused = read_history(tmp_path / "model")[-1]
    assert refused["old_score"] == first.score and refused["score"] < first.score - 0.2


def test_the_gate_compares_by_one_definition(tmp_path: Path) -> None:
    """A fit's own folds give it the R2 of both definitions; a holdout is scored by one for both models."""
    np.savez(tmp_path / "two.npz", x=X, y=PLAIN[:, :2])
    ingest([tmp_path / "two.npz"], tmp_path / "sea.zarr", inputs=["x"], targets=["y"])
    data, scalar = {"store": str(tmp_path / "sea.zarr")}, {"type": "gaussian", "lengthscale": 0.6}
    curl, rule = {"type": "curl_free", "scalar": scalar}, {"margin": 9.0}
    assert run(tmp_path, data=data, kernel=curl, publish=rule).r2_of == "pooled"
    quality = load_model(tmp_path / "model").info["report"]["quality"]
    run(tmp_path, data=data, publish=rule)
    line = read_history(tmp_path / "model")[-1]
    means = [one["r2"] for one in quality["outputs"]]
    assert line["old_score"] == pytest.approx(sum(means) / len(means), rel=1e-12)
    assert abs(line["old_score"] - quality["r2"]) > 1e-6
    ingest([tmp_path / "two.npz"], tmp_path / "held.zarr", inputs=["x"], targets=["y"])
    held = {"holdout": str(tmp_path / "held.zarr"), "margin": 9.0}
    again = run(tmp_path, data=data, kernel=curl, publish=held)
    line = read_history(tmp_path / "model")[-1]
    assert again.score == line["score"] and line["old_score"] == pytest.approx(
        score(tmp_path / "model" / "v000002", tmp_path / "held.zarr", engine=SerialEngine(), r2_of=R2.POOLED).r2
    )
    # A damaged current model is known by what history says of it, which is of one definition too.
    (tmp_path / "model" / again.model.rsplit("/", 1)[-1] / "coefficients" / "zarr.json").unlink()
    with pytest.raises(GateError, match="its score is an R2 pooled, this one's is mean of outputs"):
        run(tmp_path, data=data, publish=rule)


def test_the_score_of_an_older_dorff_was_pooled() -> None:
    """It says nothing of itself; of a single target there is one R2."""
    for q, observe in ((1, None), (2, None), (3, np.ones((1, 3)))):
        kernel = kernels.Decomposable(GAUSS)
        model = ORFFRegressor(kernel, 8, ridge=1e-3, observe=observe).fit(X, PLAIN[:, : 1 if q == 3 else q]).model_
        check_same_r2({}, R2.POOLED, model)
        check_same_r2({"r2_of": "mean of outputs"}, R2.MEAN, model)
        if q == 2:
            for of, told in ((R2.MEAN, {}), (R2.POOLED, {"r2_of": "mean of outputs"})):
                with pytest.raises(InputError, match="its score is an R2"):
                    check_same_r2(told, of, model)
        else:
            check_same_r2({}, R2.MEAN, model)


def test_kernels_that_are_compared_have_one_definition(tmp_path: Path) -> None:
    """Independent outputs that win against a field's are scored as a field's, then and later."""
    np.savez(tmp_path / "two.npz", x=X, y=PLAIN[:, ::2] * [1.0, 3.0])
    ingest([tmp_path / "two.npz"], tmp_path / "sea.zarr", inputs=["x"], targets=["y"])
    scalar, data = {"type": "gaussian", "lengthscale": 0.6}, {"store": str(tmp_path / "sea.zarr")}
    several: list[dict[str, Any]] = [{"type": name, "scalar": scalar} for name in ("curl_free", "decomposable")]
    report = run(tmp_path, data=data, kernel=several)
    assert report.kernel == 1 and report.r2_of == "pooled"
    assert report.score == max(row["r2"] for row in report.table)
    found = score(tmp_path / "model", tmp_path / "sea.zarr", engine=SerialEngine())
    Y, values = PLAIN[:, ::2] * [1.0, 3.0], load_model(tmp_path / "model").predict(X)
    assert found.r2_of == "pooled" and found.r2 == pytest.approx(r2(Y, values, of=R2.POOLED), rel=1e-9)
    tuned = tune(Job.model_validate(job(tmp_path, data=data, kernel=several)), engine=SerialEngine())
    assert tuned.r2_of is R2.POOLED
    for trial in tuned.table:
        assert trial.r2 == pytest.approx(1 - trial.value * N * 2 / (N * Y.var(axis=0).sum()), rel=1e-9)
    assert tuned.trial.r2 == max(trial.r2 for trial in tuned.table if trial.r2 is not None)
    for measure in ("trace", "unbounded"):  # of the second the winner alone would have the same sums
        several[0]["measure"] = measure
        one = tune(Job.model_validate(job(tmp_path, data=data, kernel=several)), engine=SerialEngine())
        best = fit(one.best, engine=SerialEngine())
        assert one.trial.kernel == 1 and best.r2_of == "pooled" and best.score == pytest.approx(one.trial.r2, rel=1e-9)


def test_fits_of_any_two_kernels_have_an_r2_in_common(tmp_path: Path) -> None:
    """Each says both definitions, of which the pages and the numbers of two jobs can be compared."""
    targets = PLAIN[:, ::2] * [1.0, 3.0]
    np.savez(tmp_path / "two.npz", x=X, y=targets)
    ingest([tmp_path / "two.npz"], tmp_path / "sea.zarr", inputs=["x"], targets=["y"])
    scalar, data = {"type": "gaussian", "lengthscale": 0.6}, {"store": str(tmp_path / "sea.zarr")}
    for name in ("curl_free", "decomposable"):
        report = run(tmp_path, data=data, kernel={"type": name, "scalar": scalar}, model=str(tmp_path / name))
        assert report.quality is not None
        both = report.quality["r2_by_definition"]
        assert report.r2_of == ("pooled" if name == "curl_free" else "mean of outputs")
        assert both[report.r2_of] == report.quality["r2"] == pytest.approx(report.score, rel=1e-9)
        outputs = report.quality["outputs"]
        variances = [one["rmse_mean"] ** 2 for one in outputs]
        r2 = [one["r2"] for one in outputs]
        assert both["mean of outputs"] == pytest.approx(np.mean(r2), rel=1e-9)
        assert both["pooled"] == pytest.approx(np.average(r2, weights=variances), rel=1e-9)
        assert abs(both["pooled"] - both["mean of outputs"]) > 1e-4

        assert call("report", tmp_path / name, "-o", tmp_path / "page.html").exit_code == 0
        page = (tmp_path / "page.html").read_text()
        for definition, value in both.items():
            assert f"{value:.4g}" in page.split(f"Held-out R2 ({definition})")[1][:120]
        # The linear model of the verdict is judged by the same definition as the fit.
        linear = [one["r2_linear"] for one in outputs]
        wanted = np.average(linear, weights=variances if name == "curl_free" else None)
        assert f"(R² {wanted:.3f})" in page.split("linear model of the same inputs")[1][:120]


def test_a_score_needs_two_rows_of_a_target(tmp_path: Path) -> None:
    write(tmp_path, Y)
    run(tmp_path)
    np.savez(tmp_path / "one.npz", x=X[:1], y=Y[:1])
    ingest([tmp_path / "one.npz"], tmp_path / "one.zarr", inputs=["x"], targets=["y"])
    with pytest.raises(InputError, match="no target is in two rows"):
        score(tmp_path / "model", tmp_path / "one.zarr", engine=SerialEngine())
    gaps = Y[:4].copy()
    gaps[1:, 1], gaps[:, 2] = np.nan, np.nan
    np.savez(tmp_path / "gaps.npz", x=X[:4], y=gaps)
    ingest([tmp_path / "gaps.npz"], tmp_path / "gaps.zarr", inputs=["x"], targets=["y"])
    model = load_model(tmp_path / "model")
    save_model(replace(model, info={**model.info, "data": {**model.info["data"], "nan": "partial"}}), tmp_path / "some")
    found = said("score", tmp_path / "some", tmp_path / "gaps.zarr", "--workers", 1)
    assert [one["r2"] for one in found["per_output"].values()] == [
        pytest.approx(r2_score(gaps[:, 0], model.predict(X[:4])[:, 0])), None, None,
    ]  # fmt: skip
    assert found["r2"] == found["per_output"]["y0"]["r2"]
    assert "r2 unknown" in call("score", tmp_path / "some", tmp_path / "gaps.zarr", "--workers", 1).stdout
    fitted = ORFFRegressor(GAUSS, 16).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match="two rows or more"):
            fitted.score(X[:1], Y[:1])


def test_parts_of_the_rows_that_differ_are_one(tmp_path: Path) -> None:
    """Targets that drift: most of their squares are between the runs of rows that are scored apart."""
    n = 150_000
    x = np.linspace(-1, 1, n)[:, None]
    y = np.column_stack([1e6 + 3e3 * x[:, 0] ** 3, np.where(x[:, 0] < 0.8, 0.0, 1.0)])
    w = np.random.default_rng(0).uniform(0, 2, n) * (x[:, 0] + 1)
    np.savez(tmp_path / "drift.npz", x=x, y=y, w=w)
    ingest([tmp_path / "drift.npz"], tmp_path / "drift.zarr", inputs=["x"], targets=["y"], weights="w")
    estimator = ORFFRegressor(GAUSS, 8, ridge=1e-3).fit(x[::300], y[::300])
    save_model(estimator.model_, tmp_path / "m")
    found = score(tmp_path / "m", tmp_path / "drift.zarr", engine=SerialEngine(shuffle=2))
    assert found.rows == n and found.r2 == pytest.approx(r2_score(y, estimator.predict(x)), rel=1e-9)
    found = score(tmp_path / "m", tmp_path / "drift.zarr", engine=SerialEngine(shuffle=2), weights="weights")
    assert found.r2 == pytest.approx(r2_score(y, estimator.predict(x), sample_weight=w), rel=1e-9)
    pooled = score(tmp_path / "m", tmp_path / "drift.zarr", engine=SerialEngine(), r2_of=R2.POOLED)
    error, about = (np.sum((y - other) ** 2) for other in (estimator.predict(x), y.mean(axis=0)))
    assert pooled.r2 == pytest.approx(1 - error / about, rel=1e-9)
