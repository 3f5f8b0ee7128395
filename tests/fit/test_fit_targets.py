"""Jobs whose targets are classes, have gaps, or are observed through an operator; jobs that name several kernels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from command_line import answer, call

from dorff import ORFFRegressor, kernels, load_model
from dorff.data import Classes, ingest, open_dataset
from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.fit import fit
from dorff.fit.tune import tune
from dorff.kernels.scalar import FloatArray
from dorff.model.calibration import Calibration
from dorff.plan import make_plan
from dorff.predict import predict, score
from dorff.solvers import R2
from dorff.spec.job import Job

N, SHARD = 6000, 512
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (N, 2))
GAUSSIAN = {"type": "gaussian", "lengthscale": 0.6}


def job(store: Path, folder: Path, **changes: Any) -> Job:
    """A small serial job; `changes` replace whole sections, or parts of them where they are mappings."""
    body: dict[str, Any] = {
        "data": {"store": str(store)}, "kernel": {"type": "decomposable", "scalar": GAUSSIAN},
        "features": {"count": 96, "sampler": {"type": "orthogonal"}, "seed": 1},
        "solve": {"ridge": 1e-5}, "cluster": {"type": "serial"},
        "state": str(folder / "state"), "model": str(folder / "model"),
    }  # fmt: skip
    for key, value in changes.items():
        body[key] = (
            {**body[key], **value} if isinstance(value, dict) and key in ("data", "solve", "features") else value
        )
    return Job.model_validate(body)


def labels_of(X: FloatArray) -> np.ndarray:
    angle = np.arctan2(X[:, 1], X[:, 0]) + 2 * np.hypot(*X.T)
    return np.array(["red", "green", "blue"])[np.floor(angle / (2 * np.pi) * 3).astype(int) % 3]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    np.savez(folder / "a.npz", x=X, c=labels_of(X))
    ingest([folder / "a.npz"], folder / "a.zarr", inputs=["x"], targets=[], classes="c", shard_rows=SHARD)
    return folder / "a.zarr"


@pytest.mark.parametrize("output", ["simplex", "identity"])
def test_a_classifier_from_ingest_to_score(classes: Path, tmp_path: Path, output: str) -> None:
    kernel = {"type": "decomposable", "scalar": GAUSSIAN, "output": output}
    made = job(classes, tmp_path, kernel=kernel, data={"targets": {"classes": "classes"}})
    report = fit(made)
    model = load_model(report.model)
    assert report.rows_used == N and model.info["labels"] == list(
        open_dataset(classes, targets=Classes("classes")).labels
    )
    assert model.info["calibration"]["rows"] > N // 10  # a fifth of the rows was held out
    predict(tmp_path / "model", classes, tmp_path / "p.zarr", engine=SerialEngine())
    group = zarr.open_group(str(tmp_path / "p.zarr"), mode="r")
    p, codes = np.asarray(group["y"][...]), np.asarray(group["classes"][...])[:, 0]
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_array_equal(codes, p.argmax(axis=1))
    found = np.array(model.info["labels"])[codes]
    scores = score(tmp_path / "model", classes, engine=SerialEngine())
    assert scores.accuracy == np.mean(found == labels_of(X)) > 0.93
    logs = Calibration.of(model.info["calibration"]).log_probabilities(model.predict(X))
    truth = open_dataset(classes, targets=Classes("classes")).codes(0, N)
    assert scores.log_loss == pytest.approx(-logs[np.arange(N), truth].mean(), rel=1e-9)
    # Predictions are a data set of labels in their turn.
    again = open_dataset(tmp_path / "p.zarr", inputs="y", targets=Classes("classes"))
    assert again.labels == tuple(model.info["labels"]) and np.array_equal(again.codes(0, N), codes)


def test_probabilities_are_calibrated_on_rows_that_were_held_out(tmp_path: Path) -> None:
    """Labels that are noise: on its own rows a fit is sure of them, on others it must not be."""
    rng = np.random.default_rng(5)
    np.savez(tmp_path / "a.npz", x=rng.standard_normal((300, 4)), c=rng.integers(0, 2, 300))
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=[], classes="c")
    noise = job(tmp_path / "a.zarr", tmp_path, data={"targets": {"classes": "classes"}}, features={"count": 256},
                solve={"ridge": 1e-8})  # fmt: skip
    fit(noise)
    scores = score(tmp_path / "model", tmp_path / "a.zarr", engine=SerialEngine())
    assert scores.accuracy is not None and scores.accuracy > 0.9  # it knows its rows by heart
    assert scores.log_loss is not None and scores.log_loss > 0.6  # and says that this is worth nothing: log 2 = 0.69


def test_class_weights_are_frozen_and_named(classes: Path, tmp_path: Path) -> None:
    data = {"targets": {"classes": "classes"}}
    dataset = open_dataset(classes, targets=Classes("classes"))
    counts = dict(zip(dataset.target_columns, np.bincount(dataset.codes(0, N)), strict=True))
    balanced = {label: N / (3 * count) for label, count in counts.items()}
    fit(job(classes, tmp_path, data=data, solve={"class_weight": "balanced"}))
    by_name = tmp_path / "by name"
    fit(job(classes, by_name, data=data, solve={"class_weight": balanced}))
    np.testing.assert_allclose(load_model(tmp_path / "model").coefficients, load_model(by_name / "model").coefficients)
    plain = tmp_path / "plain"
    fit(job(classes, plain, data=data))
    assert not np.allclose(load_model(plain / "model").coefficients, load_model(by_name / "model").coefficients)
    with pytest.raises(InputError, match="has no class 'pink'"):
        make_plan(job(classes, tmp_path, data=data, solve={"class_weight": {"pink": 2.0}}))


def test_the_command_line_scores_a_classifier(classes: Path, tmp_path: Path) -> None:
    made = job(classes, tmp_path, data={"targets": {"classes": "classes"}})
    (tmp_path / "job.yaml").write_text(made.model_dump_json())
    assert call("fit", tmp_path / "job.yaml").exit_code == 0
    done = call("score", tmp_path / "model", classes, "--workers", "1", "--json")
    assert json.loads(done.stdout)["accuracy"] > 0.9
    assert "accuracy" in call("score", tmp_path / "model", classes, "--workers", "1").stdout
    assert call("report", tmp_path / "model", "-o", tmp_path / "page.html").exit_code == 0
    assert json.loads(call("inspect", tmp_path / "model", "--json").stdout)["kind"] == "model"
    wrong = call("score", tmp_path / "model", classes, "--targets", "x", "--workers", "1")
    assert wrong.exit_code == 3 and "x" in wrong.stderr
    several = call("score", tmp_path / "model", classes, "--targets", "classes,x", "--workers", "1")
    assert several.exit_code == 3 and "scored by one array of labels, not by classes, x" in several.stderr


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FloatArray]:
    """Three targets, some missing in a third of the rows; a few rows have none."""
    Y = np.column_stack([np.sin(3 * X[:, 0]), np.cos(2 * X[:, 1]), X.prod(axis=1)]) + 0.01 * RNG.standard_normal((N, 3))
    Y[::3, 0] = np.nan
    Y[1::5, 2] = np.nan
    Y[7::500] = np.nan
    folder = tmp_path_factory.mktemp("gaps")
    np.savez(folder / "a.npz", x=X, y=Y)
    ingest([folder / "a.npz"], folder / "a.zarr", inputs=["x"], targets=["y"], shard_rows=SHARD)
    return folder / "a.zarr", Y


@pytest.mark.parametrize("solve", [{"ridge": 1e-5}, {"ridge": [1e-6, 1e-4], "standardize": True},
                                   {"ridge": [1e-6, 1e-4], "select": "kfold", "folds": {"count": 3, "by": "rows"}}],
                         ids=["ridge", "gcv", "kfold"])  # fmt: skip
def test_rows_that_miss_targets_take_part(
    gaps: tuple[Path, FloatArray], tmp_path: Path, solve: dict[str, Any]
) -> None:  # fmt: skip
    store, Y = gaps
    with pytest.raises(InputError, match="drop or partial"):
        fit(job(store, tmp_path / "a"))
    report = fit(job(store, tmp_path, data={"nan": "partial"}, solve=solve))
    none = np.isnan(Y).all(axis=1).sum()
    assert (report.rows_used, report.rows_dropped) == (N - none, none) and none > 0
    regressor = ORFFRegressor(
        kernels.Gaussian(0.6), 96, ridge=solve["ridge"], random_state=1, missing="partial",
        cv=3 if "select" in solve else None, standardize=solve.get("standardize", False),
    ).fit(X, Y)  # fmt: skip
    truth = np.column_stack([np.sin(3 * X[:, 0]), np.cos(2 * X[:, 1]), X.prod(axis=1)])
    for model in (load_model(report.model), regressor.model_):
        assert np.abs(model.predict(X) - truth).max() < 0.05
    assert regressor.ridge_ == report.ridge
    # Whole rows only: fewer, and the same up to noise.
    dropped = fit(job(store, tmp_path / "b", data={"nan": "drop"}))
    assert dropped.rows_used < 0.6 * N


def test_an_operator_between_the_field_and_the_targets(tmp_path: Path) -> None:
    """A divergence-free field of which only u is measured: d v / d y = - d u / d x follows."""
    field = np.column_stack([-X[:, 1], X[:, 0]]) * np.exp(-2 * np.sum(X**2, axis=1, keepdims=True))
    np.savez(tmp_path / "a.npz", x=X, y=field[:, :1])
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=["y"], shard_rows=SHARD)
    made = job(tmp_path / "a.zarr", tmp_path, kernel={"type": "divergence_free", "scalar": GAUSSIAN},
               solve={"ridge": 1e-9, "observe": [[1.0, 0.0]]}, features={"count": 256})  # fmt: skip
    report = fit(made)
    model = load_model(report.model)
    assert model.p == 2 and model.observe is not None and model.predict(X[:5]).shape == (5, 2)
    inside = np.abs(X).max(axis=1) < 0.8
    found = model.predict(X[inside])
    assert np.abs(found - field[inside])[:, 0].max() < 0.02
    x, y = X[inside].T
    np.testing.assert_allclose(model.jacobian(X[inside])[:, 1, 1], -4 * x * y * np.exp(-2 * (x**2 + y**2)), atol=0.1)
    scores = score(tmp_path / "model", tmp_path / "a.zarr", engine=SerialEngine())
    assert scores.r2 > 0.999 and len(scores.per_output) == 1
    predict(tmp_path / "model", tmp_path / "a.zarr", tmp_path / "p.zarr", engine=SerialEngine())
    assert np.asarray(zarr.open_array(str(tmp_path / "p.zarr" / "y"), mode="r")[...]).shape == (N, 2)
    with pytest.raises(InputError, match=r"a row for each of the 1 targets .* it is \(2, 2\)"):
        make_plan(job(tmp_path / "a.zarr", tmp_path, solve={"observe": [[1.0, 0.0], [0.0, 1.0]]}))


@pytest.fixture(scope="module")
def swirl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    field = np.column_stack([-X[:, 1], X[:, 0]]) * np.exp(-2 * np.sum(X**2, axis=1, keepdims=True))
    folder = tmp_path_factory.mktemp("swirl")
    np.savez(folder / "a.npz", x=X, y=field + 0.3 * RNG.standard_normal((N, 2)))
    ingest([folder / "a.npz"], folder / "a.zarr", inputs=["x"], targets=["y"], shard_rows=SHARD)
    return folder / "a.zarr"


@pytest.mark.parametrize("select", ["gcv", "kfold"])
def test_one_pass_serves_every_kernel_that_a_job_names(swirl: Path, tmp_path: Path, select: str) -> None:
    wide = {"type": "gaussian", "lengthscale": 0.9}
    several = [
        {"type": "curl_free", "scalar": GAUSSIAN},
        {"type": "decomposable", "scalar": wide},
        {"type": "divergence_free", "scalar": wide},
    ]
    solve = {"ridge": [1e-6, 1e-3], "select": select, "folds": {"count": 3, "by": "rows"}}
    report = fit(job(swirl, tmp_path, kernel=several, solve=solve, features={"count": 256}))
    assert report.kernel == 2 and len(report.table) == 6
    best = min(report.table, key=lambda row: row["value"])
    assert (best["candidate"], best["ridge"]) == (2, report.ridge)
    model = load_model(report.model)
    assert isinstance(model.kernel, kernels.DivergenceFree)
    jacobian = model.jacobian(X[:200])
    assert np.abs(jacobian[:, 0, 0] + jacobian[:, 1, 1]).max() < 1e-10 * np.abs(jacobian).max()
    # Another order, another choice among the same kernels: the same moments.
    again = fit(job(swirl, tmp_path, kernel=several, solve={**solve, "ridge": 1e-2}, features={"count": 256}))
    assert again.leaves_computed == 0
    # Frequencies are the mixture's: each kernel's features estimate its gram.
    plan = make_plan(job(swirl, tmp_path, kernel=several, solve=solve, features={"count": 256}))
    assert plan.costs.rank == 2


def test_kernels_of_several_spectra_need_frequencies_with_a_density(swirl: Path, tmp_path: Path) -> None:
    several = [{"type": "decomposable", "scalar": {**GAUSSIAN, "lengthscale": s}} for s in (0.5, 1.0)]
    with pytest.raises(InputError, match="sampler"):
        make_plan(job(swirl, tmp_path, kernel=several, features={"sampler": {"type": "rom"}}))


@pytest.mark.parametrize("output", ["learned", {"learned": "frobenius"}, "covariance",
                                    {"graph": [[0.0, 1.0], [1.0, 0.0]], "offset": 0.1}, {"factor": [[1.0], [2.0]]}],
                         ids=str)  # fmt: skip
def test_output_matrices_of_every_kind(swirl: Path, tmp_path: Path, output: Any) -> None:
    report = fit(job(swirl, tmp_path, kernel={"type": "decomposable", "scalar": GAUSSIAN, "output": output},
                     solve={"ridge": [1e-5, 1e-3]}))  # fmt: skip
    model = load_model(report.model)
    assert report.status == "ok" and np.isfinite(model.predict(X[:10])).all()
    assert model.weights.shape[1] == (1 if "factor" in output else 2)
    assert call("inspect", tmp_path / "model").exit_code == 0


def test_plan_says_when_the_exact_model_is_the_smaller_one(swirl: Path, tmp_path: Path) -> None:
    few, many = (make_plan(job(swirl, tmp_path, features={"count": count})).costs for count in (256, 2 * N))
    assert not few.exact_is_cheaper and many.exact_is_cheaper
    (tmp_path / "job.yaml").write_text(job(swirl, tmp_path, features={"count": 2 * N}).model_dump_json())
    assert "exact" in call("plan", tmp_path / "job.yaml").stdout


POLYNOMIAL = {"type": "decomposable", "scalar": {"type": "polynomial", "degree": 2}}
ARC = {"type": "decomposable", "scalar": {"type": "arc_cosine", "order": 1}}
PLAIN = {"type": "decomposable", "scalar": GAUSSIAN}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("several", "said"),
    [
        ([POLYNOMIAL, PLAIN], "features of its own"), ([PLAIN, ARC], "features of its own"),
        ([ARC, {**ARC, "scalar": {**ARC["scalar"], "order": 0}}], "features of its own"),
        ([PLAIN, {"type": "sum", "terms": 2 * [{"weight": 1, "kernel": PLAIN}], "concatenate": True}], "concatenated"),
    ],
)  # fmt: skip
def test_kernels_that_cannot_share_features_are_no_list(
    swirl: Path, tmp_path: Path, several: list[dict[str, Any]], said: str
) -> None:  # fmt: skip
    with pytest.raises(InputError, match=said):
        make_plan(job(swirl, tmp_path, kernel=several))
    two = [ARC, {**ARC, "output": "covariance"}]  # one scalar kernel: its features are shared
    assert fit(job(swirl, tmp_path, kernel=two, solve={"ridge": [1e-4, 1e-2]})).status == "ok"


def test_a_list_is_scored_in_one_unit(tmp_path: Path) -> None:
    """Standardised, a curl-free kernel has one scale for all targets; then so has every kernel it is compared with."""
    Y = np.column_stack([np.sin(3 * X[:, 0]), 1000 * np.cos(2 * X[:, 1])])
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=["y"])
    solve = {"ridge": [1e-4], "standardize": True}
    both = [{"type": "curl_free", "scalar": GAUSSIAN}, PLAIN]
    found = fit(job(tmp_path / "a.zarr", tmp_path, kernel=both, solve=solve))
    assert np.ptp(load_model(found.model).target_scale) == 0
    alone = fit(job(tmp_path / "a.zarr", tmp_path / "alone", kernel=PLAIN, solve=solve))
    assert np.ptp(load_model(alone.model).target_scale) > 0


def test_a_class_that_is_never_predicted_is_no_damage(tmp_path: Path) -> None:
    labels = np.where(np.arange(600) == 7, "rare", labels_of(X[:600]))
    np.savez(tmp_path / "a.npz", x=X[:600], c=labels)
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=[], classes="c")
    fit(
        job(
            tmp_path / "a.zarr",
            tmp_path,
            data={"targets": {"classes": "classes"}},
            features={"count": 8, "sampler": {"type": "orthogonal"}},
        )
    )
    predict(tmp_path / "model", tmp_path / "a.zarr", tmp_path / "p.zarr", engine=SerialEngine())
    assert call("verify", tmp_path / "p.zarr").exit_code == 0
    assert "rare" in call("inspect", tmp_path / "p.zarr").stdout


def test_held_out_errors_of_classes_are_those_of_the_best_scale(classes: Path, tmp_path: Path) -> None:
    solve = {"ridge": [1e-5, 1e-3], "select": "kfold", "folds": {"count": 3, "by": "rows"}}
    jobs = [
        job(classes, tmp_path, data={"targets": {"classes": "classes"}}, solve={**solve, "ridge_per_output": apart})
        for apart in (False, True)
    ]
    together, apart = (tune(one).table for one in jobs)
    by_ridge = {trial.ridge: trial.value for trial in apart if trial.ridges is None}
    assert all(trial.value < by_ridge[trial.ridge] for trial in together)  # at the best scale of f


def test_classes_stay_zeros_and_ones_when_inputs_are_standardised(classes: Path, tmp_path: Path) -> None:
    fit(job(classes, tmp_path, data={"targets": {"classes": "classes"}}, solve={"standardize": True}))
    np.testing.assert_array_equal(load_model(tmp_path / "model").target_scale, 1.0)


@pytest.mark.slow
def test_very_few_rows_of_classes(tmp_path: Path) -> None:
    """Too few to hold any out for certain: fitted all the same."""
    for n in (4, 6, 8):
        np.savez(tmp_path / "a.npz", x=X[:n], c=np.arange(n) % 2)
        ingest([tmp_path / "a.npz"], tmp_path / f"{n}.zarr", inputs=["x"], targets=[], classes="c")
        for seed in range(6):
            made = job(tmp_path / f"{n}.zarr", tmp_path / f"{n} {seed}",
            features={"count": 8, "sampler": {"type": "orthogonal"}, "seed": seed},
                       data={"targets": {"classes": "classes"}})  # fmt: skip
            assert load_model(fit(made).model).info["calibration"]["slope"] > 0


def test_one_class_is_no_choice(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X[:99], c=np.repeat("red", 99))
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=[], classes="c")
    with pytest.raises(InputError, match=r"data.targets: .*a.zarr has one class only, red; a classifier needs"):
        make_plan(job(tmp_path / "a.zarr", tmp_path, data={"targets": {"classes": "classes"}}))


@pytest.mark.parametrize("kernel", [PLAIN, {"type": "decomposable", "scalar": GAUSSIAN, "output": "covariance"}])
def test_a_target_that_a_fold_does_not_have(tmp_path: Path, kernel: dict[str, Any]) -> None:
    Y = np.column_stack([np.sin(X[:90]), np.full(90, np.nan)])
    Y[:2, 2] = 1.0
    Y[5::7, 0] = np.nan
    np.savez(tmp_path / "a.npz", x=X[:90], y=Y)
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=["y"])
    solve = {"ridge": [1e-3, 1e-1], "select": "kfold", "folds": {"count": 2, "by": "rows"}}
    for seed in range(3):
        made = job(tmp_path / "a.zarr", tmp_path / str(seed), kernel=kernel, data={"nan": "partial"}, solve=solve,
                   features={"seed": seed})  # fmt: skip
        assert np.isfinite(load_model(fit(made).model).predict(X[:9])).all()
    none = np.where(np.arange(3) == 2, np.nan, Y)
    with pytest.raises(InputError, match="column 2: no row"):
        ORFFRegressor(kernels.Gaussian(0.6), 64, missing="partial").fit(X[:90], none)


def test_scores_leave_out_what_is_missing(gaps: tuple[Path, FloatArray], tmp_path: Path) -> None:
    store, Y = gaps
    model = load_model(fit(job(store, tmp_path, data={"nan": "partial"})).model)
    scores = score(tmp_path / "model", store, engine=SerialEngine())
    residual = Y - model.predict(X)
    assert scores.rmse == pytest.approx(np.sqrt(np.nanmean(residual**2)))
    about = np.nansum((Y - np.nanmean(Y, axis=0)) ** 2, axis=0)
    assert scores.r2 == pytest.approx(np.mean(1 - np.nansum(residual**2, axis=0) / about))
    pooled = score(tmp_path / "model", store, engine=SerialEngine(), r2_of=R2.POOLED)
    assert pooled.r2 == pytest.approx(1 - np.nansum(residual**2) / about.sum())
    np.savez(tmp_path / "none.npz", x=X, y=np.full_like(Y, np.nan))
    ingest([tmp_path / "none.npz"], tmp_path / "none.zarr", inputs=["x"], targets=["y"])
    with pytest.raises(InputError, match=r"none\.zarr: no row has finite inputs and a target to score"):
        score(tmp_path / "model", tmp_path / "none.zarr", engine=SerialEngine())


@pytest.mark.process
@pytest.mark.parametrize(("count", "kernel"), [(512, "curl_free"), (1024, "decomposable")])
def test_memory_keeps_to_the_plan_with_patterns_and_folds(tmp_path: Path, count: int, kernel: str) -> None:
    rng = np.random.default_rng(1)
    n, q = 40_000, 3
    x, y = rng.standard_normal((n, q)), rng.standard_normal((n, q))
    for number, pattern in enumerate(((0,), (1,), (2,), (0, 1), (1, 2), (0, 2))):
        y[number::7, list(pattern)] = np.nan
    np.savez(tmp_path / "a.npz", x=x, y=y)
    ingest([tmp_path / "a.npz"], tmp_path / "a.zarr", inputs=["x"], targets=["y"])
    made = job(tmp_path / "a.zarr", tmp_path, kernel={"type": kernel, "scalar": GAUSSIAN}, features={"count": count},
               data={"nan": "partial"}, solve={"select": "kfold", "folds": {"count": 3, "by": "rows"}})  # fmt: skip
    (tmp_path / "job.yaml").write_text(made.model_dump_json())
    report = answer("fit", tmp_path / "job.yaml")
    assert report["peak_bytes"] <= report["plan_peak_bytes"]


def test_append_keeps_balanced_weights_of_the_first_fit(tmp_path: Path) -> None:
    def part(name: str, rows: slice, rare: int) -> Path:
        c = np.where(np.arange(N)[rows] % rare == 0, "a", "b")
        np.savez(tmp_path / f"{name}.npz", x=X[rows], c=c)
        return tmp_path / f"{name}.npz"

    data = {"targets": {"classes": "classes"}}
    store = tmp_path / "a.zarr"
    ingest([part("one", slice(0, 2048), 5)], store, inputs=["x"], targets=[], classes="c", shard_rows=SHARD)
    first = fit(job(store, tmp_path, data=data, solve={"class_weight": "balanced", "calibrate": False}))
    ingest([part("two", slice(2048, 4096), 2)], store, inputs=["x"], targets=[], classes="c", append=True)
    again = fit(job(store, tmp_path, data=data, solve={"class_weight": "balanced", "calibrate": False}))
    assert again.rows_used == 2 * first.rows_used
    frozen = {"a": 2048 / (2 * 410), "b": 2048 / (2 * 1638)}
    whole = tmp_path / "whole"
    fit(job(store, whole, data=data, solve={"class_weight": frozen, "calibrate": False}))
    np.testing.assert_allclose(
        load_model(again.model).coefficients, load_model(whole / "model").coefficients, rtol=1e-8, atol=1e-12
    )
