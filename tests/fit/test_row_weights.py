"""Weights of rows: a job's fit against weighted least squares by hand, and what a weight means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr

from dorff.data import Classes, class_counts, ingest, open_dataset, verify
from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.fit import FitReport, fit
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.model.calibration import Calibration
from dorff.plan import freeze_constants, make_plan
from dorff.predict import score
from dorff.spec.job import Job
from dorff.store import load_model

N, D, RIDGE = 150, 2, 1e-3
GAUSSIAN = {"type": "gaussian", "lengthscale": 1.2}
KERNELS: dict[str, dict[str, Any]] = {
    "identity": {"type": "decomposable", "scalar": GAUSSIAN},
    "curl_free": {"type": "curl_free", "scalar": GAUSSIAN},
}
RNG = np.random.default_rng(3)
X = RNG.standard_normal((N, D)) * [1.0, 3.0] + 2.0
Y = np.column_stack([np.sin(X[:, 0]) + 4.0, np.cos(X[:, 1]) * 3.0 - 1.0]) + 0.1 * RNG.standard_normal((N, 2))
WEIGHTS = {"none": None, "real": RNG.uniform(0.1, 3.0, N), "whole": RNG.integers(0, 4, N).astype(np.float64)}


def store(path: Path, X: FloatArray, Y: FloatArray, **more: npt.NDArray[Any] | None) -> Path:
    group = zarr.open_group(path, mode="w")
    for name, values in {"x": X, "y": Y, **more}.items():
        if values is not None:
            group.create_array(name, data=values, config={"write_empty_chunks": True})
    return path


def job(store: Path, *, kernel: str = "identity", data: dict[str, Any] | None = None, **solve: Any) -> Job:
    folder = store.with_suffix("")
    described = {
        "data": {"store": str(store), **(data or {})}, "kernel": KERNELS[kernel],
        "features": {"count": 32, "sampler": {"type": "orthogonal"}},
        "solve": {"ridge": RIDGE, "posterior": False, **solve}, "cluster": {"type": "serial"},
        "state": f"{folder}/state", "model": f"{folder}/model",
    }  # fmt: skip
    return Job.model_validate(described)


def fitted(described: Job) -> tuple[Model, FitReport]:
    report = fit(described, engine=SerialEngine())
    return load_model(Path(described.model)), report


def by_hand(
    model: Model, w: FloatArray, *, standardize: bool, intercept: bool, together: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:  # fmt: skip
    """Predictions at X, and the inputs' centre and scale: every mean written out, least squares by `lstsq`.

    Only the frequencies and psi are the model's.
    """
    total = w.sum()
    centre = (w[:, None] * X).sum(axis=0) / total
    variances = [(w[:, None] * (A - (w[:, None] * A).sum(axis=0) / total) ** 2).sum(axis=0) / total for A in (X, Y)]
    variances = [np.full(2, v.mean()) if together else v for v in variances]
    scale, unit = (np.sqrt(v) if standardize else np.ones(2) for v in variances)
    waves = (X - centre) / scale @ model.frequencies.T
    F = np.hstack([np.cos(waves), np.sin(waves)]) / np.sqrt(len(model.frequencies))
    psi = model.operator_weights.psi
    design = np.einsum("na,arp->npar", F, psi).reshape(2 * N, -1)
    ones = np.tile(np.eye(2), (N, 1)) * intercept
    root = np.sqrt(np.repeat(w, 2) / total)[:, None]
    penalty = np.sqrt(RIDGE) * np.eye(design.shape[1])
    A = np.vstack([root * np.hstack([design, ones]), np.hstack([penalty, np.zeros((len(penalty), 2))])])
    b = np.concatenate([root[:, 0] * (Y / unit).ravel(), np.zeros(len(penalty))])
    h = np.linalg.lstsq(A, b, rcond=None)[0]
    return (np.hstack([design, ones]) @ h).reshape(N, 2) * unit, centre, scale


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("weighing", WEIGHTS)
def test_a_job_is_weighted_least_squares(
    tmp_path: Path, weighing: str, standardize: bool, intercept: bool, kernel: str
) -> None:  # fmt: skip
    w = WEIGHTS[weighing]
    data = {} if w is None else {"weights": "w"}
    made = store(tmp_path / "s.zarr", X, Y, w=w)
    described = job(made, kernel=kernel, data=data, standardize=standardize, intercept=intercept)
    model, report = fitted(described)
    w = np.ones(N) if w is None else w
    y0 = freeze_constants(make_plan(described)).constants.y0
    np.testing.assert_allclose(y0, (w[:, None] * Y).sum(axis=0) / w.sum(), rtol=1e-12)
    wanted, centre, scale = by_hand(
        model, w, standardize=standardize, intercept=intercept, together=kernel == "curl_free"
    )
    np.testing.assert_allclose(model.feature_map.center, centre, rtol=1e-12)
    np.testing.assert_allclose(model.feature_map.scale, scale, rtol=1e-12)
    np.testing.assert_allclose(model.predict(X), wanted, rtol=0, atol=1e-8)
    assert report.rows_used == np.count_nonzero(w) and report.rows_dropped == np.sum(w == 0)


def test_whole_weights_are_repeated_rows(tmp_path: Path) -> None:
    w = WEIGHTS["whole"]
    assert w is not None
    often = np.repeat(np.arange(N), w.astype(int))
    options: dict[str, Any] = {"standardize": True, "ridge": [1e-6, 1e-3], "select": "gcv"}
    # Features draw their frequencies from the seed alone, so both jobs have the same.
    model, report = fitted(job(store(tmp_path / "a.zarr", X, Y, w=w[:, None]), data={"weights": "w"}, **options))
    twin, other = fitted(job(store(tmp_path / "b.zarr", X[often], Y[often]), **options))
    np.testing.assert_allclose(model.predict(X), twin.predict(X), rtol=0, atol=1e-8)
    assert report.ridge == other.ridge and report.rows_used == np.count_nonzero(w) < other.rows_used
    heavier = store(tmp_path / "c.zarr", X, Y, w=1e6 * w)  # weights count by their ratios
    np.testing.assert_allclose(fitted(job(heavier, data={"weights": "w"}, **options))[0].predict(X), twin.predict(X),
                               rtol=0, atol=1e-8)  # fmt: skip


def test_rows_of_weight_zero_count_for_nothing(tmp_path: Path) -> None:
    """Not in any sum, mean, bound or count, whatever they hold."""
    w, X_, Y_ = np.ones(N), X.copy(), Y.copy()
    w[::3], X_[::3], Y_[::6] = 0.0, 1e200, np.nan
    options: dict[str, Any] = {"standardize": True, "ridge": [1e-6, 1e-3], "select": "gcv"}
    model, report = fitted(job(store(tmp_path / "a.zarr", X_, Y_, w=w), data={"weights": "w"}, **options))
    twin, other = fitted(job(store(tmp_path / "b.zarr", X[w > 0], Y[w > 0]), **options))
    assert np.array_equal(model.predict(X), twin.predict(X))
    assert (report.rows_used, report.rows_dropped, other.rows_used) == (100, 50, 100)
    assert report.table == other.table and report.condition == other.condition and report.reads == 1.0
    for bound in ("low", "high"):
        assert model.info["data"][bound] == twin.info["data"][bound]


def test_weights_that_are_none_are_refused(tmp_path: Path) -> None:
    weigh = {"weights": "w"}
    for value, words in (
        (-0.5, "row 7, column w: wanted a weight of at least 0, got -0.5"),
        (np.nan, r"row 7 \(shard 0\), column w: expected a finite number, got nan.*nan: drop$"),
    ):
        w = np.ones(N)
        w[7] = value
        made = store(tmp_path / "a.zarr", X, Y, w=w)
        with pytest.raises(InputError, match=words):
            fit(job(made, data=weigh), engine=SerialEngine())
    model, report = fitted(job(made, data={**weigh, "nan": "drop"}))
    twin, _ = fitted(job(store(tmp_path / "b.zarr", np.delete(X, 7, 0), np.delete(Y, 7, 0))))
    assert report.rows_dropped == 1 and np.array_equal(model.predict(X), twin.predict(X))
    with pytest.raises(
        InputError, match="none of the first 150 rows is free of NaN and infinity and weighs more than 0"
    ):
        fit(job(store(tmp_path / "c.zarr", X, Y, w=np.zeros(N)), data=weigh), engine=SerialEngine())


def test_a_column_of_any_array_may_be_the_weights(tmp_path: Path) -> None:
    w = WEIGHTS["real"]
    assert w is not None
    made = store(tmp_path / "s.zarr", X, Y, more=np.column_stack([np.zeros(N), w]), k=np.arange(N - 1))
    group = zarr.open_group(made)
    group.attrs["columns"] = {"more": ["nothing", "area"]}
    assert np.array_equal(open_dataset(made, weights="area").block(20, 90).weights, w[20:90])
    assert np.array_equal(open_dataset(made, weights="y0").block(20, 90).weights, Y[20:90, 0])
    for name, words in (
        ("more", "wanted one column, but array 'more' has 2; name one of them: nothing, area"),
        ("k", "array x has 150 rows but array k has 149"), ("zz", "has no array 'zz'"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            open_dataset(made, weights=name)
    dataset = open_dataset(made, weights="area")
    assert dataset.rows_spec()["weights"] == ["more", 1] and "more" in dataset.arrays
    stamp = dataset.stamp(0, N)
    (made / "more" / "c" / "0" / "0").touch()
    assert dataset.stamp(0, N) != stamp


def test_weights_of_rows_and_of_classes_multiply(tmp_path: Path) -> None:
    codes = (X[:, 0] > 2.5).astype(int) + (X[:, 1] > 4)
    w = WEIGHTS["whole"]
    assert w is not None
    targets = {"targets": {"classes": "k"}}
    made = store(tmp_path / "a.zarr", X, Y, k=codes, w=w)
    counts = np.array([w[codes == label].sum() for label in range(3)])
    dataset = open_dataset(made, targets=Classes("k"), weights="w")
    assert class_counts(dataset) == tuple(counts)
    balanced = w.sum() / (3 * counts)  # scikit-learn's, of weighted counts
    both = store(tmp_path / "b.zarr", X, Y, k=codes, w=w * balanced[codes])
    given = job(made, data={**targets, "weights": "w"}, class_weight="balanced")
    model, twin = (fitted(one)[0] for one in (given, job(both, data={**targets, "weights": "w"})))
    np.testing.assert_allclose(model.predict(X), twin.predict(X), rtol=0, atol=1e-8)
    one, other = (found.info["calibration"] for found in (model, twin))
    np.testing.assert_allclose(one["slope"], other["slope"], rtol=1e-6)
    found = score(Path(given.model), made, engine=SerialEngine(), targets="k")
    right = np.argmax(model.predict(X), axis=1) == codes
    assert found.weights == "w" and found.accuracy == pytest.approx(np.average(right, weights=w), rel=1e-9)
    logs = Calibration.of(one).log_probabilities(model.predict(X))[np.arange(N), codes]
    assert found.log_loss == pytest.approx(-np.average(logs, weights=w), rel=1e-9)


def test_changed_weights_are_new_rows(tmp_path: Path) -> None:
    """Weights are in the digest and the stamp: a fit again sees that they changed."""
    made, w = tmp_path / "s.zarr", np.ones(400)
    rows = np.tile(X, (3, 1))[:400], np.tile(Y, (3, 1))[:400]
    store(made, *rows, w=w)
    first, report = fitted(job(made, data={"weights": "w"}))
    assert fitted(job(made, data={"weights": "w"}))[1].leaves_computed == 0
    w[300:] = 0.25
    store(made, *rows, w=w)
    second, again = fitted(job(made, data={"weights": "w"}))
    assert (report.leaves_computed, again.leaves_computed, again.reads) == (1, 1, 1.0)
    assert first.info["data"]["fingerprint"] != second.info["data"]["fingerprint"]
    twin, _ = fitted(job(store(tmp_path / "t.zarr", *rows, w=w), data={"weights": "w"}))
    assert np.array_equal(second.predict(X), twin.predict(X)) and not np.array_equal(
        first.predict(X), second.predict(X)
    )


def test_ingest_keeps_weights(tmp_path: Path) -> None:
    w = WEIGHTS["real"]
    assert w is not None
    np.savez(tmp_path / "a.npz", x=X[:90], y=Y[:90], w=w[:90])
    lines = ["x0,x1,y0,y1,w", *(",".join(map(repr, row)) for row in np.column_stack([X, Y, w])[90:].tolist())]
    (tmp_path / "b.csv").write_text("\n".join(lines) + "\n")
    made = tmp_path / "s.zarr"
    ingest([tmp_path / "a.npz"], made, inputs=["x"], targets=["y"], weights="w", shard_rows=64)
    ingest([tmp_path / "b.csv"], made, inputs=["x0", "x1"], targets=["y0", "y1"], weights="w", append=True)
    read = open_dataset(made, weights="weights").block(0, N)
    assert np.array_equal(read.X, X) and np.array_equal(read.Y, Y) and read.weights is not None
    assert np.array_equal(read.weights, w) and verify(made) == []
    shard = made / "weights" / "c" / "1" / "0"
    raw = bytearray(shard.read_bytes())
    raw[5] ^= 1
    shard.write_bytes(raw)
    assert [(fault.array, fault.kind) for fault in verify(made)] == [("weights", "damaged")]
    with pytest.raises(InputError, match=r"array weights, chunk .* is damaged"):
        open_dataset(made, weights="weights").block(0, N)
    with pytest.raises(InputError, match="weights: wanted one column of weights, got 2 columns, x0, x1; name one"):
        ingest([tmp_path / "a.npz"], tmp_path / "t.zarr", inputs=["x"], weights="x")
    with pytest.raises(InputError, match="weights: wanted one column of weights, got a constant"):
        ingest([tmp_path / "a.npz"], tmp_path / "t.zarr", inputs=["x"], weights="=1")
    with pytest.raises(InputError, match="append the same"):
        ingest([tmp_path / "a.npz"], made, inputs=["x"], targets=["y"], append=True)
