"""The sample of held-out rows that a fit keeps beside its model: which rows, what is said of them, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from dorff.data import ingest
from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.fit import fit
from dorff.fit import held as held_rows
from dorff.fit.passes import Fitted
from dorff.model import Model
from dorff.model.calibration import HeldSample
from dorff.report.page import render
from dorff.spec.job import Job
from dorff.store import load_model

N, SEED = 400, 3
RNG = np.random.default_rng(5)
X = RNG.uniform(-1, 1, (N, 2))
Y = np.column_stack([np.sin(3 * X[:, 0]) + X[:, 1], X[:, 0] * X[:, 1]]) + 0.1 * RNG.standard_normal((N, 2))
TRIAL = np.arange(N) // 20 + 7


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    np.savez(folder / "rows.npz", x=X, y=Y, trial=TRIAL, label=(Y[:, 0] > 0).astype(int))
    ingest([folder / "rows.npz"], folder / "rows.zarr", inputs=["x"], targets=["y"], groups="trial")
    return folder / "rows.zarr"


def job(store: Path, folder: Path, *, kernel: Any = None, data: dict[str, Any] | None = None, **solve: Any) -> Job:
    gaussian = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 0.7}}
    described = {
        "data": {"store": str(store), **(data or {})}, "kernel": kernel or gaussian,
        "features": {"count": 32, "sampler": {"type": "orthogonal"}, "seed": SEED}, "cluster": {"type": "serial"},
        "solve": {"ridge": [1e-5, 1e-3], "select": "kfold", "folds": {"by": "rows"}} | solve,
        "state": str(folder / "state"), "model": str(folder / "model"),
    }  # fmt: skip
    return Job.model_validate(described)


def fitted(described: Job) -> Model:
    fit(described, engine=SerialEngine())
    return load_model(Path(described.model), held=True)


def sample_of(model: Model) -> HeldSample:
    assert model.held is not None
    return model.held


def by_hand(model: Model, rows: Any, ridge: float) -> Any:
    """Predictions of all rows by ridge regression on these rows."""
    F = np.column_stack([model.feature_map.transform(X), np.ones(N)])
    penalty = ridge * len(X[rows]) * np.diag([1.0] * (F.shape[1] - 1) + [0.0])
    return F @ np.linalg.solve(F[rows].T @ F[rows] + penalty, F[rows].T @ Y[rows])


def test_the_sample_is_a_fold_predicted_without_it(store: Path, tmp_path: Path) -> None:
    model = fitted(job(store, tmp_path))
    held = sample_of(model)
    assert 40 < len(held.numbers) < 120 and np.all(np.diff(held.numbers) > 0)
    assert_array_equal(held.X, X[held.numbers])
    assert_array_equal(held.Y, Y[held.numbers])
    rest = np.setdiff1d(np.arange(N), held.numbers)
    assert_allclose(held.values, by_hand(model, rest, model.info["report"]["ridge"])[held.numbers], atol=1e-8)
    assert np.abs(held.values - model.predict(held.X)).max() > 1e-4  # which has seen these rows
    assert held.groups is None and held.std is not None and np.all(held.std > 0.05)
    assert 0.85 < held.coverage(model.factor(0.95)).min() <= 1
    assert_array_equal(held.coverage(1.0), np.mean(np.abs(held.Y - held.values) <= held.std, axis=0))


@pytest.mark.slow
def test_it_can_be_left_out(store: Path, tmp_path: Path) -> None:
    """At once, with the sums that are there; what it tells of bands stays."""
    kept = fitted(job(store, tmp_path))
    described = job(store, tmp_path)
    without = described.model_copy(update={"publish": described.publish.model_copy(update={"sample": False})})
    report = fit(without, engine=SerialEngine())
    model = load_model(tmp_path / "model", held=True)
    assert report.outcome == "published" and report.leaves_computed == 0 and model.held is None
    assert not list(Path(report.model).rglob("*held*")) and kept.held is not None
    assert report.quality == kept.info["report"]["quality"] | {"outputs": report.quality["outputs"], "classes": ()}
    assert [one["inside"] for one in report.quality["outputs"]] == pytest.approx(kept.held.coverage(1.959964))
    assert fit(without, engine=SerialEngine()).outcome == "unchanged"
    assert "keeps none of these rows" in render(model, Path(report.model)) and "Residuals" not in render(
        model, Path("m")
    )


def test_groups_are_called_what_their_column_says(store: Path, tmp_path: Path) -> None:
    held = sample_of(fitted(job(store, tmp_path, folds={"by": "groups"})))
    assert_array_equal(held.groups, TRIAL[held.numbers])
    assert np.all(np.isin(TRIAL, held.groups) == np.isin(np.arange(N), held.numbers))  # whole groups


def test_of_more_rows_than_are_kept_some_are_drawn_from_all(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_rows, "SAMPLE_ROWS", 25)
    held = sample_of(fitted(job(store, tmp_path)))
    assert len(held.numbers) == 25 and held.numbers[0] < 80 and held.numbers[-1] > 320
    grouped = sample_of(fitted(job(store, tmp_path / "groups", folds={"by": "groups"})))
    assert len(grouped.numbers) == 25 and len(np.unique(TRIAL[grouped.numbers])) > 1
    assert_array_equal(grouped.groups, TRIAL[grouped.numbers])


def test_bands_and_the_sample_come_of_one_solve(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solved, without = list[int](), Fitted.without

    def counted(fit: Fitted, fold: int) -> Fitted:
        solved.append(fold)
        return without(fit, fold)

    monkeypatch.setattr(Fitted, "without", counted)
    model = fitted(job(store, tmp_path, select="gcv", conformal=True))
    assert solved == [0] and model.conformal is not None
    held = sample_of(model)
    shares = held.coverage(model.conformal.factor(0.9))  # by its own rows, all of which are kept
    assert np.all(np.abs(shares - 0.9) <= 2 / len(held.Y))


@pytest.mark.parametrize("by", ["rows", "groups"])
def test_where_one_fold_is_held_out_the_fit_is_judged_by_it_alone(by: str, store: Path, tmp_path: Path) -> None:
    """Not by fits to that fold alone, a fifth of the rows, on all others."""
    described = job(store, tmp_path, select="gcv", conformal=True, folds={"by": by})
    quality = fit(described, engine=SerialEngine()).quality
    held = sample_of(load_model(Path(described.model), held=True))
    assert quality is not None and quality["rows"] == len(held.numbers) < N / 3
    Y_of = Y[held.numbers]
    rmse, of_mean = np.sqrt(np.mean(held.residuals**2, axis=0)), np.std(Y_of, axis=0)
    assert_allclose([one["rmse"] for one in quality["outputs"]], rmse, rtol=1e-9)
    assert_allclose([one["r2"] for one in quality["outputs"]], 1.0 - (rmse / of_mean) ** 2, rtol=1e-9)


def test_missing_targets_are_missing(tmp_path: Path) -> None:
    partial = np.where(np.arange(2 * N).reshape(N, 2) % 5 == 0, np.nan, Y)
    np.savez(tmp_path / "rows.npz", x=X, y=partial)
    ingest([tmp_path / "rows.npz"], tmp_path / "rows.zarr", inputs=["x"], targets=["y"])
    held = sample_of(fitted(job(tmp_path / "rows.zarr", tmp_path, data={"nan": "partial"})))
    assert_array_equal(np.isnan(held.residuals), np.isnan(partial[held.numbers]))
    assert np.isnan(held.Y).any() and np.isfinite(held.coverage(1.0)).all()


def test_without_a_posterior_there_are_no_deviations(store: Path, tmp_path: Path) -> None:
    held = sample_of(fitted(job(store, tmp_path, posterior=False)))
    assert held.std is None and "held_std" not in held.arrays()
    with pytest.raises(InputError, match="without deviations say nothing of bands"):
        held.coverage(1.96)


def test_where_no_fold_is_held_out_nothing_is_kept(store: Path, tmp_path: Path) -> None:
    assert fitted(job(store, tmp_path / "gcv", select="gcv", folds={})).held is None


@pytest.mark.slow
def test_what_cg_solves_and_classes_have_no_sample(store: Path, tmp_path: Path) -> None:
    assert fitted(job(store, tmp_path / "cg", route="cg")).held is None
    np.savez(tmp_path / "labels.npz", x=X, label=(Y[:, 0] > 0).astype(int))
    ingest([tmp_path / "labels.npz"], tmp_path / "labels.zarr", inputs=["x"], targets=[], classes="label")
    classes = job(tmp_path / "labels.zarr", tmp_path, data={"targets": {"classes": "classes"}})
    assert fitted(classes).held is None


def test_it_is_read_where_it_is_asked_for_alone(store: Path, tmp_path: Path) -> None:
    model = fitted(job(store, tmp_path))
    assert load_model(tmp_path / "model").held is None
    damaged = tmp_path / "model" / "v000001" / "held_values" / "c" / "0" / "0"
    damaged.write_bytes(damaged.read_bytes()[::-1])
    assert load_model(tmp_path / "model").posterior is not None
    with pytest.raises(InputError, match="array held_values is damaged"):
        load_model(tmp_path / "model", held=True)
    assert "kernels" not in model.info


def test_kernels_that_were_compared_keep_their_names(store: Path, tmp_path: Path) -> None:
    kernels = [{"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": scale}} for scale in (0.7, 0.05)]
    info = fitted(job(store, tmp_path, kernel=kernels)).info
    assert info["kernels"] == ["lengthscale 0.7", "lengthscale 0.05"] and info["report"]["kernel"] == 0


def sample(**changes: Any) -> dict[str, Any]:
    parts = {"numbers": np.arange(3), "X": np.ones((3, 2)), "Y": np.ones((3, 1)), "values": np.ones((3, 1))}
    return HeldSample(**{**parts, "std": np.ones((3, 1)), "groups": np.ones(3), **changes}).arrays()


def test_arrays_that_fit_come_back() -> None:
    assert HeldSample.of_arrays({}, 2, 1) is None
    some = HeldSample.of_arrays(sample(std=None, Y=np.full((3, 1), np.nan)), 2, 1)
    assert some is not None and some.std is None and some.groups is not None and len(some.arrays()) == 5


@pytest.mark.parametrize(
    "arrays",
    [
        sample(X=np.ones((3, 3))), sample(numbers=np.arange(3.0)), sample(std=np.ones((2, 1))),
        sample(values=np.full((3, 1), np.nan)), sample(groups=np.arange(3)), sample(values=None),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(arrays: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="array held_"):
        HeldSample.of_arrays(arrays, 2, 1)
