"""Jobs on a lattice: by sums of exponentials as by Gram sums of the same features; other kernels from the same sums;
rows outside of the box."""

import json
import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from command_line import DORFF
from quick import slow

from dorff import ORFFClassifier, ORFFRegressor, RandomFeatures, frequencies, kernels
from dorff.data import dataset as data_sets
from dorff.data import ingest, open_dataset
from dorff.data.layout import commit
from dorff.engine import SerialEngine
from dorff.errors import DoesNotFitError, InputError, StoppedError
from dorff.fit import FitReport, fit, run
from dorff.fit.streaming import sample_of
from dorff.fit.tune import tune
from dorff.frequencies import lattice as lattice_rule
from dorff.model import Model
from dorff.passes import blocks as leaf_sizes
from dorff.passes import leaf as leaves
from dorff.plan import lattice, make_plan
from dorff.plan.lattice import seen_box, told_box
from dorff.predict import score
from dorff.solvers import stochastic
from dorff.spec.job import Job
from dorff.store import load_model

N, SHARD = 1500, 128
GAUSS = {"type": "gaussian", "lengthscale": 0.4}
FIELD = {"type": "divergence_free", "scalar": GAUSS}
EACH = {"type": "decomposable", "scalar": GAUSS}
MIXED = {**EACH, "output": {"matrix": [[2, 1], [1, 2]]}}


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIGHT_LEAF", "SMALLEST_LEAF", "LARGE_FIRST_LEAF"):
        monkeypatch.setattr(leaf_sizes, name, 2 * SHARD)
    monkeypatch.setattr(lattice, "LATTICE_ROWS", SHARD)


def flow(n: int = N, seed: int = 0, reach: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Places (n, 2) and a divergence-free flow there (n, 2), with noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, [reach, 2.0], (n, 2))
    a, b = 3 * X[:, 0], 2 * X[:, 1]
    return X, np.column_stack([2 * np.cos(a) * np.cos(b), 3 * np.sin(a) * np.sin(b)]) + 0.05 * rng.standard_normal(
        (n, 2)
    )


def write(path: Path, *, append: bool = False, **arrays: np.ndarray) -> None:
    group = zarr.open_group(str(path), mode="a" if append else "w")
    for name, values in arrays.items():
        if append:
            stored = group[name]
            assert isinstance(stored, zarr.Array)
            stored.append(values)
        else:
            chunks, config = (SHARD, *values.shape[1:]), {"write_empty_chunks": True}
            group.create_array(name, data=values, chunks=chunks, config=config)


def job(folder: Path, model: str = "model", **parts: Any) -> Job:
    """A job on `folder`'s data.zarr, whose state is shared by all of its models."""
    body: dict[str, Any] = {
        "data": {"store": "data.zarr"}, "kernel": FIELD, "solve": {"ridge": 1e-5}, "cluster": {"type": "serial"},
        "features": {"count": 600, "sampler": {"type": "lattice", "error": 1e-3}}, "state": "state", "model": model,
    }  # fmt: skip
    for key, value in parts.items():
        body[key] = {**body[key], **value} if isinstance(value, dict) and key in body and key != "kernel" else value
    return Job.model_validate(body, context={"folder": folder})


def fitted(folder: Path, model: str = "model", **parts: Any) -> FitReport:
    return fit(job(folder, model, **parts), engine=SerialEngine())


def values(folder: Path, model: str, X: np.ndarray) -> np.ndarray:
    return load_model(folder / model).predict(X)


@pytest.fixture
def sea(tmp_path: Path) -> Path:
    X, Y = flow()
    rng = np.random.default_rng(3)
    holes = np.where(rng.random(Y.shape) < 0.2, np.nan, Y)
    codes = (Y[:, 0] > 0).astype(np.int64) + (Y[:, 1] > 1)
    walk, three = np.column_stack([X, np.full(N, 7.0)]), np.column_stack([Y, np.sin(X[:, 0])])
    columns = {
        "walk": walk,
        "three": three,
        "weights": rng.uniform(0.2, 2.0, N),
        "groups": np.arange(N) // 50,
        "classes": codes,
    }
    write(tmp_path / "data.zarr", x=X, y=Y, holes=holes, **columns)
    return tmp_path


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "matrix": {"kernel": MIXED},
    "no intercept": {"solve": {"intercept": False}, "kernel": EACH},
    "ridges": {"solve": {"ridge": [1e-6, 1e-4, 1e-2], "select": "kfold", "folds": {"count": 3, "by": "rows"}}},
    "folds of leaves": {"solve": {"ridge": [1e-6, 1e-2], "select": "kfold", "folds": {"count": 3, "by": "leaves"}}},
    "groups": {"solve": {"ridge": [1e-6, 1e-2], "select": "kfold", "folds": {"count": 3, "by": "groups"}}},
    "evidence": {"solve": {"ridge": [1e-6, 1e-2], "select": "evidence"}},
    "weights": {"data": {"weights": "weights"}},
    "missing targets": {"data": {"targets": "holes", "nan": "partial"}, "kernel": EACH},
    "classes": {"data": {"targets": {"classes": "classes"}}, "kernel": EACH,
                "solve": {"class_weight": "balanced"}},
    "standardised": {"solve": {"standardize": True}},
    "tuned": {"kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": "tune"}}},
    "one length-scale each": {"kernel": {**EACH, "scalar": {"type": "gaussian", "lengthscale": [0.3, 0.9]}}},
    "periods": {"features": {"sampler": {"type": "lattice", "error": 1e-3, "periods": [1.5, None]}}},
    "constant input": {"data": {"inputs": "walk", "targets": "three"},
                       "kernel": {"type": "curl_free", "scalar": GAUSS}},
    "posterior": {"solve": {"posterior": True, "conformal": True}},
    "conjugate gradients": {"solve": {"route": "cg"}},
    "iterated matrix": {"kernel": MIXED,
                        "solve": {"route": "cg", "ridge": [1e-5, 1e-3], "select": "kfold",
                                  "folds": {"count": 3, "by": "rows"}}},
    "iterated missing targets": {"data": {"targets": "holes", "nan": "partial"}, "solve": {"route": "cg"}},
    "iterated targets apart": {"data": {"targets": "holes", "nan": "partial"}, "kernel": EACH,
                               "solve": {"route": "cg", "intercept": False}},
    "iterated classes": {"data": {"targets": {"classes": "classes"}}, "kernel": EACH,
                         "solve": {"route": "cg", "calibrate": False}},
    "iterated observations": {"solve": {"route": "cg", "observe": [[1, 1], [0, 1]]}, "data": {"weights": "weights"}},
}  # fmt: skip


@pytest.mark.parametrize("way", [*[*WAYS][::3], *slow(*[*WAYS][1::3], *[*WAYS][2::3])])
def test_a_fit_is_that_of_gram_sums_of_its_features(way: str, sea: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = WAYS[way]
    here = fitted(sea, "by exponentials", **parts)
    with monkeypatch.context() as patched:
        patched.setattr(lattice, "summable", lambda job, recipe: False)
        twin = fitted(sea, "by gram", **{**parts, "state": "elsewhere"})
    X, _ = flow(200, seed=9)
    X = np.column_stack([X, np.full(200, 7.0)]) if way == "constant input" else X
    found, wanted = (values(sea, name, X) for name in ("by exponentials", "by gram"))
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
    assert (here.m, here.kernel, here.ridge) == (twin.m, twin.kernel, twin.ridge) and here.rows_used == twin.rows_used
    if way == "posterior":
        deviations = [load_model(sea / name).std(X) for name in ("by exponentials", "by gram")]
        assert np.abs(deviations[0] - deviations[1]).max() < 1e-4 * deviations[1].max()


def of_scale(kind: str, *lengthscale: float, **scalar: Any) -> dict[str, Any]:
    s = lengthscale[0] if len(lengthscale) == 1 else list(lengthscale)
    return {"type": kind, "scalar": {"type": "gaussian", **scalar, "lengthscale": s}}


UNEVEN = [
    of_scale("divergence_free", 0.15),
    of_scale("decomposable", 0.6),
    of_scale("decomposable", 0.3, 1.2),
    of_scale("curl_free", 0.9, type="matern", nu=3.5),
    {"type": "sum", "terms": [{"weight": 0.3, "kernel": of_scale("curl_free", 0.3)},
                              {"weight": 0.7, "kernel": of_scale("divergence_free", 0.8)}]},
]  # fmt: skip
FOLDS = {"select": "kfold", "folds": {"count": 3, "by": "rows"}}
LISTS: dict[str, dict[str, Any]] = {
    "folds": {"solve": FOLDS},
    "products": {"solve": {**FOLDS, "route": "cg"}},
    "gcv": {"solve": {"select": "gcv"}},
    "low ceiling": {"solve": FOLDS, "features": {"count": 100}, "kernel": UNEVEN},
    "rows left out": {"solve": {"select": "loo"}},
    "without intercept": {"solve": {"select": "gcv", "intercept": False}, "features": {"count": 100}},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", [*list(LISTS)[:2], *slow(*list(LISTS)[2:])])
def test_each_of_several_kernels_has_features_of_its_own(way: str, sea: Path) -> None:
    """The list's sums serve each of its kernels alone, without a row read, and its scores and fit are the same."""
    parts: dict[str, Any] = {**LISTS[way], "solve": {"ridge": [1e-5, 1e-2], **LISTS[way]["solve"]}}
    each = parts.pop("kernel", UNEVEN[::2])
    at, ceiling = flow(100, seed=9)[0], parts.get("features", {}).get("count", 600)
    planned = make_plan(job(sea, "list", kernel=each, **parts))
    several = fitted(sea, "list", kernel=each, **parts)
    features = []
    for number, kernel in enumerate(each):
        own = fitted(sea, f"own {number}", kernel=kernel, **parts)
        assert own.leaves_computed == 0 and own.m <= ceiling
        assert make_plan(job(sea, kernel=kernel, **parts)).costs.m == own.m
        rows = [row for row in several.table if row["candidate"] == number]
        features.append(own.m)
        for row, alone in zip(rows, own.table, strict=True):
            assert (row["m"], row["ridge"]) == (alone["m"], alone["ridge"])
            assert row["value"] == pytest.approx(alone["value"], rel=1e-9)
        if number == several.kernel:
            mine, its = load_model(sea / "list"), load_model(sea / f"own {number}")
            np.testing.assert_array_equal(mine.frequencies, its.frequencies)
            np.testing.assert_allclose(mine.coefficients, its.coefficients, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(mine.predict(at), its.predict(at), rtol=1e-9)
            assert (several.m, several.kernel_error, several.digits) == (own.m, own.kernel_error, own.digits)
    assert len(set(features)) > (2 if ceiling > 100 or len(each) > 3 else 1) and planned.costs.m == max(features)


@pytest.mark.slow
def test_a_fit_of_several_kernels_is_that_of_its_features(sea: Path) -> None:
    """Of the chosen kernel's own, by their values on all rows."""
    found, (X, Y) = fitted(sea, kernel=[UNEVEN[0], UNEVEN[4]], solve={"select": "gcv"}), flow()
    model = load_model(sea / "model")
    F, (m, r, p) = model.feature_map.transform(X), model.weights.shape
    A = np.einsum("na,arp->npar", F, model.weights).reshape(N * p, m * r)
    A, y = (V.reshape(N, p, -1) - V.reshape(N, p, -1).mean(axis=0) for V in (A, Y))
    A, y = A.reshape(N * p, -1), y.reshape(-1)
    h = np.linalg.solve(A.T @ A + N * found.ridge * np.eye(m * r), A.T @ y)
    fit_to = A @ h - A @ model.coefficients.reshape(-1)
    assert found.m == m and np.abs(fit_to).max() < 1e-6 * np.abs(A @ h).max()


def test_a_lattice_that_was_made_for_others_serves_a_kernel_by_its_own_features(sea: Path) -> None:
    """With `drawn_for`, as far as the lattice is fine and wide enough; else the plan refuses."""
    both = {"drawn_for": [of_scale("decomposable", 0.2), of_scale("decomposable", 0.9)]}
    parts: dict[str, Any] = {"kernel": of_scale("decomposable", 0.7), "solve": {"ridge": 1e-2}}
    drawn, own = fitted(sea, "drawn", **parts, features=both), fitted(sea, "own", **parts)
    assert own.reads == 0.0 and (own.m, own.kernel_error) == (drawn.m, drawn.kernel_error)
    np.testing.assert_array_equal(load_model(sea / "own").coefficients, load_model(sea / "drawn").coefficients)
    several = fitted(sea, "several", kernel=[parts["kernel"], both["drawn_for"][0]], solve={"select": "gcv"},
                     features=both)  # fmt: skip
    assert several.reads == 0.0 and len({row["m"] for row in several.table}) == 2
    with pytest.raises(InputError, match=r"'lengthscale': 0\.01.* needs frequencies .* than those of features\.drawn"):
        make_plan(job(sea, kernel=of_scale("decomposable", 0.01), features=both))


def test_an_input_that_one_kernel_alone_sees_varies_for_all(tmp_path: Path) -> None:
    """The long length-scale takes the second input for constant, alone."""
    X, Y = flow(1500)
    write(tmp_path / "data.zarr", x=X * [1.0, 1e-3], y=Y)
    each = [of_scale("decomposable", 0.3, 1.0), of_scale("decomposable", 0.3, 2e-3)]
    solve = {"solve": {"ridge": [1e-5, 1e-3], "select": "gcv"}}
    alone = fitted(tmp_path, "alone", kernel=each[0], **solve, state="alone's")
    both = fitted(tmp_path, "both", kernel=each, **solve)
    again = fitted(tmp_path, "again", kernel=each[0], **solve)
    rows = [row for row in both.table if row["candidate"] == 0]
    assert again.reads == 0.0 and [row["value"] for row in again.table] == pytest.approx([row["value"] for row in rows])
    assert alone.m < again.m == rows[0]["m"] and both.kernel == 1
    assert [row["value"] for row in alone.table] == pytest.approx([row["value"] for row in rows], rel=0.02)


def test_a_length_scale_of_what_does_not_vary_is_not_shown(sea: Path) -> None:
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian"}}
    found = fitted(sea, kernel=kernel, data={"inputs": "walk"})
    (lengths,) = [one["value"] for one in found.choices if one["key"] == "kernel.lengthscale"]
    assert [*lengths] == ["walk0", "walk1"]


def test_kernels_that_need_too_large_a_lattice_together_are_told_to_part(sea: Path) -> None:
    apart = [of_scale("decomposable", s) for s in (0.01, 100.0)]
    with pytest.raises(DoesNotFitError, match=r"raise it to \d+MiB .* or fit kernels of .* in jobs of their own$"):
        make_plan(job(sea, kernel=apart, solve={"select": "gcv"}))
    make_plan(job(sea, kernel=apart[0]))


@pytest.mark.statistical
@pytest.mark.parametrize("select", ["evidence", "gcv"])
def test_route_cg_chooses_by_estimates(select: str, sea: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As route direct does, to the standard errors that it tells; refused of sums without a lattice."""
    solve = {"ridge": [1e-5, 1.01e-5, 1e-2], "select": select}
    wanted = fitted(sea, "direct", solve=solve)
    monkeypatch.setattr(stochastic, "HEAVY", 60)
    found = fitted(sea, "iterated", solve={**solve, "route": "cg"}, state="own")
    assert (found.route, wanted.route) == ("cg", "direct") and found.m == wanted.m
    for one, other in zip(found.table, wanted.table, strict=True):
        assert 0 < one["error"] < 30 and other["error"] is None
        assert abs(one["value"] - other["value"]) < 4 * one["error"]
    assert any("within a standard error" in warning for warning in found.warnings)
    np.testing.assert_allclose(found.noise, wanted.noise, rtol=0.05)
    tuned = tune(job(sea, "tuned", solve={**solve, "route": "cg"}, state="own"), engine=SerialEngine())
    assert [trial.value for trial in tuned.table] == [row["value"] for row in found.table]
    assert any("within a standard error" in warning for warning in tuned.warnings)
    random = {"solve": {**solve, "route": "cg"}, "features": {"sampler": {"type": "orthogonal"}}}
    with pytest.raises(InputError, match=r"ridges to choose from by \w+ \(by kfold it can"):
        make_plan(job(sea, "refused", state="elsewhere", **random))


def of_features(model: Model) -> Model:
    """The same model, whose deviations do not count what a lattice leaves out of the kernel."""
    assert model.posterior is not None
    return replace(model, posterior=replace(model.posterior, unexplained=None))


UNSURE: dict[str, dict[str, Any]] = {
    "field": {},
    "weights": {"data": {"weights": "weights"}},
    "matrix": {"kernel": MIXED, "solve": {"intercept": False}},
    "targets apart": {"data": {"targets": "holes", "nan": "partial"}, "kernel": EACH},
    "observations": {"solve": {"observe": [[1, 1], [0, 1]]}},
    "one length-scale each": {"kernel": {**EACH, "scalar": {"type": "matern", "lengthscale": [0.3, 0.9]}}},
}


@pytest.mark.statistical
@pytest.mark.parametrize("way", ["field", *slow(*list(UNSURE)[1:])])
def test_deviations_of_route_cg_are_those_of_samples(way: str, sea: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right on average, as far from the exact ones as is said, and the same at each run; bands are conformal."""
    parts = dict(UNSURE[way])
    solve = {"ridge": 1e-4, "conformal": True, "folds": {"by": "rows"}, **parts.pop("solve", {})}
    wanted = fitted(sea, "direct", solve=solve, **parts)
    monkeypatch.setattr(stochastic, "HEAVY", 90 if way == "field" else 60)
    found = fitted(sea, "iterated", solve={**solve, "route": "cg"}, **parts)
    assert (found.route, wanted.route) == ("cg", "direct") and found.m == wanted.m > 60
    np.testing.assert_allclose(found.noise, wanted.noise, rtol=0.02)
    X, _ = flow(2000, seed=9)
    exact, sampled = (load_model(sea / name) for name in ("direct", "iterated"))
    ratio = of_features(sampled).std(X) / of_features(exact).std(X)
    assert abs(ratio.mean() - 1.0) < 0.05 and 0.05 < ratio.std() < 0.13 and np.ptp(ratio) < 1.0
    if way == "field":
        fitted(sea, "again", solve={**solve, "route": "cg"})
        np.testing.assert_array_equal(sampled.std(X), load_model(sea / "again").std(X))
    np.testing.assert_allclose(sampled.std(X[:100]), sampled.std(X)[:100], rtol=1e-6)
    assert sampled.conformal is not None and exact.conformal is not None
    np.testing.assert_allclose(sampled.conformal.factor(0.9), exact.conformal.factor(0.9), rtol=0.06)
    draws = np.stack([one.predict(X[:50]) for one in sampled.sample(300)])
    np.testing.assert_allclose(draws.std(axis=0), of_features(sampled).std(X[:50]), rtol=0.25)


def test_route_cg_keeps_held_out_rows_beside_a_posterior(sea: Path) -> None:
    solve = {"ridge": [1e-4, 1e-2], "select": "kfold", "folds": {"count": 3, "by": "rows"}, "route": "cg"}
    fitted(sea, "sure", solve={**solve, "posterior": True}, kernel=EACH)
    fitted(sea, "unsure", solve=solve, kernel=EACH)
    sure, unsure = (load_model(sea / name, held=True) for name in ("sure", "unsure"))
    assert sure.held is not None and sure.held.std is not None and len(sure.held.X) > 100
    assert unsure.held is None and unsure.posterior is None


@pytest.mark.parametrize("route", ["direct", "cg"])
def test_a_long_fit_says_what_it_is_at(
    route: str, sea: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    solve = {"posterior": True, "route": route}
    with caplog.at_level("INFO", "dorff"):
        m = fitted(sea, "short", solve=solve, kernel=EACH).m
        assert not caplog.messages
        monkeypatch.setattr(run, "LONG", 0.0)
        fitted(sea, "long", solve=solve, kernel=EACH)
    solving = f"fit: all rows are summed; solving for {m} features by route {route}"
    assert caplog.messages == [solving, "fit: solved; deviations are next"]


def test_a_posterior_that_takes_too_many_steps_is_refused(sea: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stochastic, "MOST_STEPS", 3)
    monkeypatch.setattr(stochastic, "HEAVY", 20)
    with pytest.raises(InputError, match=r"solve.posterior: deviations need more than 3 steps .* raise the ridge, set"):
        fitted(sea, solve={"route": "cg", "posterior": True}, kernel=EACH)
    assert not (sea / "model").exists()
    for kernel in (EACH, FIELD):
        with pytest.raises(InputError, match="at ridge 0 what the data do not see has no bounds"):
            fitted(sea, solve={"route": "cg", "posterior": True, "ridge": 0}, kernel=kernel)


VIEWS = {"type": "multi_view", "views": [{"name": "place", "inputs": "x", "kernel": EACH},
                                         {"name": "size", "inputs": "size", "kernel": EACH}]}  # fmt: skip
OTHERWISE: dict[str, dict[str, Any]] = {
    "manifold": {
        "manifold": {"graph": {"type": "knn", "neighbours": 4}, "weight": 1e-4},
        "kernel": MIXED,
        "solve": {"posterior": True},
    },
    "views": {"kernel": VIEWS},
    "mixed": {"features": {"precision": "mixed"}, "publish": {"digits": 1.0}},
    "streaming": {"solve": {"route": "streaming"}},
    "loss": {"solve": {"loss": "huber", "tolerance": 1e-6}},
    "quantiles": {"solve": {"loss": {"quantiles": [0.4, 0.5]}}, "kernel": EACH},
}


@pytest.mark.parametrize("way", OTHERWISE)
def test_what_has_no_sums_of_exponentials_goes_by_its_features(way: str, sea: Path) -> None:
    X, _ = flow()
    write(sea / "data.zarr", append=False, x=X, y=flow()[1], size=X[:, :1] * X[:, 1:])
    plan = make_plan(job(sea, **OTHERWISE[way]))
    found = fitted(sea, **OTHERWISE[way])
    assert plan.spec.sums == "gram" and found.rows_used == N
    at, wanted = flow(300, seed=9)
    assert (found.loss is not None) == (way in ("loss", "quantiles"))
    if way == "views":
        at = np.column_stack([at, at[:, 0] * at[:, 1]])
    found_values = values(sea, "model", at)
    if way == "quantiles":
        found_values = found_values[:, 1::2]  # the medians
    error = np.sqrt(np.mean((found_values - wanted) ** 2))
    assert error < 0.07, error  # the noise is 0.05
    assert fitted(sea, **OTHERWISE[way]).outcome == "unchanged"


@pytest.mark.parametrize("way", ["views", "mixed", "streaming"])
def test_sums_of_exponentials_are_no_reason_to_others(way: str, sea: Path) -> None:
    """Neither where these are made, nor where they are there."""
    X, Y = flow()
    write(sea / "data.zarr", append=False, x=X, y=Y, size=X[:, :1] * X[:, 1:])
    fitted(sea, "plain")
    for ridge in (1e-5, 1e-4):
        parts = {**OTHERWISE[way], "solve": {**OTHERWISE[way].get("solve", {}), "ridge": ridge}}
        assert not any("summed anew" in one for one in make_plan(job(sea, **parts)).warnings)
        again = fitted(sea, **parts)
        assert not any("summed anew" in one for one in again.warnings)
    assert way == "streaming" or again.reads == 0.0


def test_a_system_that_lost_its_digits_is_solved_by_the_features_qr(sea: Path) -> None:
    """Of sums of exponentials as of Gram sums; once for each kernel that they serve."""
    first = fitted(sea, "first", solve={"ridge": 1e-15})
    assert first.rung.startswith("qr") and first.passes == 2 and first.digits > 3
    kernel = {**FIELD, "scalar": {"type": "gaussian", "lengthscale": 0.6}}
    other = fitted(sea, "other", solve={"ridge": 1e-15}, kernel=kernel)
    assert other.rung.startswith("qr") and other.leaves_computed == first.leaves_computed / 2  # the second pass alone
    own = fitted(sea, "own", solve={"ridge": 1e-15}, kernel=kernel, state="own's")
    at, _ = flow(100, seed=9)
    assert np.abs(values(sea, "other", at) - values(sea, "own", at)).max() < 0.1 and own.digits > 3


OTHERS: list[Any] = [
    of_scale("divergence_free", 0.6),
    of_scale("divergence_free", 0.3, 0.5),
    of_scale("curl_free", 0.6, type="rational_quadratic", alpha=4.0),
    {**MIXED, "scalar": {"type": "gaussian", "lengthscale": 0.5}},
    [of_scale("decomposable", s) for s in (0.4, 0.6)],
]


@pytest.mark.slow
@pytest.mark.parametrize("others", [OTHERS[1::3], *slow([OTHERS[0], *OTHERS[2:4]])], ids=["several", "others"])
def test_the_sums_answer_other_kernels_without_a_row_read(others: list[Any], sea: Path) -> None:
    """Of other length-scales, one an input, of other families and matrices, for fields; as from an own state."""
    first = fitted(sea, "first")
    assert first.leaves_computed > 2
    X, _ = flow(100, seed=9)
    for number, kernel in enumerate(others):
        rule = {"select": "evidence"} if isinstance(kernel, list) else {}  # nothing is held out, as before
        again = fitted(sea, f"again{number}", kernel=kernel, solve=rule)
        assert (again.leaves_computed, again.reads) == (0, 0.0), kernel
        own = fitted(sea, f"own{number}", kernel=kernel, solve=rule, state=f"state{number}")
        assert own.leaves_computed > 2
        found, wanted = (values(sea, f"{name}{number}", X) for name in ("again", "own"))
        assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()
    for parts, reason in (
        ({"solve": {"standardize": True}}, "another solve.standardize$"),
        ({"data": {"box": [[-1, 3], [-1, 3]]}}, "another data.box$"),
        ({"data": {"box": [[-1, 3], [-1, 3]], "outside": "drop"}}, "another data.outside, data.box$"),
        ({"data": {"nan": "drop"}}, "another data.nan$"),
    ):
        (planned,) = (one for one in make_plan(job(sea, "other", **parts)).warnings if "rows are summed anew" in one)
        assert re.search(reason, planned), planned
    assert fitted(sea, "seed", features={"seed": 3}).reads == 0.0  # nothing is drawn
    # What the lattice does not cover has a pass of its own, nor do others rows, folds or targets; and the first stays.
    for parts, reason in (
        ({"kernel": of_scale("divergence_free", 0.1)}, "their lattice is too coarse or too narrow for this kernel"),
        ({"data": {"weights": "weights"}}, "another choice of arrays"),
        ({"solve": {"select": "kfold", "ridge": [1e-5, 1e-3]}}, "choice of arrays, solve.select or folds"),
    ):
        (planned,) = (one for one in make_plan(job(sea, "other", **parts)).warnings if "rows are summed anew" in one)
        own = fitted(sea, "other", **parts)
        assert reason in planned and planned in own.warnings and own.leaves_computed > 2
        again = fitted(sea, "other", **parts)
        assert again.outcome == "unchanged" and own.warnings == [planned, *again.warnings]
        assert not any("summed anew" in one for one in make_plan(job(sea, "other", **parts)).warnings)
    assert fitted(sea, "first").outcome == "unchanged"
    (planned,) = make_plan(job(sea, data={"weights": "weights", "nan": "drop"})).warnings
    assert planned.endswith("do not serve this job: they are of another data.nan")  # the weighted one, but for that


def test_a_seed_by_which_rows_tell_a_length_scale_has_sums_of_its_own(sea: Path) -> None:
    for kernel, reason in ((of_scale("decomposable", "tune"), "another features.seed"), (FIELD, None)):
        fitted(sea, "first", kernel=kernel, state=f"{reason}'s")
        other = make_plan(job(sea, "other", kernel=kernel, features={"seed": 3}, state=f"{reason}'s"))
        anew = [one for one in other.warnings if "rows are summed anew" in one]
        assert len(anew) == (reason is not None) and all(one.endswith(f"they are of {reason}") for one in anew), anew


def test_sums_that_would_cut_a_lattice_short_serve_no_job(sea: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer length-scale takes every point of a lattice that is hardly finer than needed, not every second."""
    monkeypatch.setattr(lattice_rule, "MOST_GRID", 2**16)
    sampler = {"type": "lattice", "error": 7e-4}

    def of(model: str, s: float, count: int, state: str = "state") -> FitReport:
        scalar = {"type": "gaussian", "lengthscale": s}
        features, kernel = {"count": count, "sampler": sampler}, {"type": "decomposable", "scalar": scalar}
        return fitted(sea, model, kernel=kernel, features=features, state=state)

    of("first", 0.15, 4096)
    alone = of("alone", 0.16, 4096, "another")
    served = of("served", 0.16, 4096)
    assert served.reads == 0.0 and served.m > alone.m
    few = of("few", 0.16, (alone.m + served.m) // 2)
    assert few.reads == 1.0 and few.m == alone.m and few.kernel_error == alone.kernel_error
    assert "needs more than features.count" in few.warnings[0]


@pytest.mark.slow
def test_sums_of_other_rows_or_of_less_care_serve_no_job(sea: Path) -> None:
    """First rows that were rewritten, sums of fewer digits, words that stood for other kernels."""
    rough = {"sampler": {"type": "lattice", "error": 1e-3, "tolerance": 1e-6}}
    kernel = {**FIELD, "scalar": {"type": "gaussian", "lengthscale": 0.5}}
    fitted(sea, "rough", features=rough)
    assert fitted(sea, "careful", kernel=kernel).leaves_computed > 2
    assert fitted(sea, "rough too", kernel={**FIELD, "scalar": {"type": "gaussian", "lengthscale": 0.6}},
                  features=rough).leaves_computed == 0  # fmt: skip
    # Of the same sums: what the model is of, the error too, is in its name.
    finer = {"sampler": {"type": "lattice", "error": 5e-4}}
    assert fitted(sea, "careful", kernel=kernel, features=finer).outcome == "published"
    assert fitted(sea, "careful", kernel=kernel, features=finer).outcome == "unchanged"
    # A word is resolved by its own search; the number that it came to is served by its sums.
    words = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": "median"}}
    median = fitted(sea, "median", kernel=words, state="words")
    assert median.leaves_computed > 2
    number = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": median.lengthscale[0]}}
    assert fitted(sea, "number", kernel=number, state="words").leaves_computed == 0
    tuned = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": "tune"}}
    assert fitted(sea, "tuned", kernel=tuned, state="words").leaves_computed > 2
    stored = zarr.open_group(str(sea / "data.zarr"), mode="a")["y"]
    assert isinstance(stored, zarr.Array)
    stored[0] = [0.0, 1.0]
    assert fitted(sea, "careful", kernel=kernel, features=finer).leaves_computed > 2


@pytest.mark.slow
@pytest.mark.parametrize("route", ["direct", *slow("cg")])
def test_a_search_is_over_the_same_sums(route: str, sea: Path) -> None:
    """`tune` of twelve kernels and ridges reads rows once, and then none."""
    kernels_ = [{"type": "divergence_free", "scalar": {"type": "gaussian", "lengthscale": s}} for s in (0.2, 0.5, 0.8)]
    solve: dict[str, Any] = {"ridge": [1e-7, 1e-5, 1e-3, 1e-1], "select": "kfold", "route": route}
    found = tune(job(sea, kernel=kernels_, solve=solve), engine=SerialEngine())
    assert found.reads == 1.0 and len(found.table) == 12
    assert tune(job(sea, kernel=kernels_, solve=solve), engine=SerialEngine()).reads == 0.0
    few = tune(job(sea, kernel=kernels_, solve=solve, features={"count": 60}, state="few"), engine=SerialEngine())
    (sentence,) = (one for one in few.warnings if "60 features may be off the kernel" in one)
    assert sentence.startswith("kernel[") and not any("may be off" in one for one in found.warnings)
    assert len({trial.m for trial in found.table}) == 3 and "drawn_for" not in found.best.features.model_fields_set
    best = fit(found.best, engine=SerialEngine())
    assert (best.reads, best.m, best.ridge) == (0.0, found.trial.m, found.trial.ridge)
    alone = tune(job(sea, kernel=kernels_[found.trial.kernel], solve=solve), engine=SerialEngine())
    for one, other in zip(alone.table, [row for row in found.table if row.kernel == found.trial.kernel], strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-9)


def around(n: int, seed: int, *, first: float = 0.0, last: float = 360.0) -> tuple[np.ndarray, np.ndarray]:
    """Longitudes and heights (n, 2), and a field of them, with noise, that is the same a turn further."""
    rng = np.random.default_rng(seed)
    X = rng.uniform([first, 0.0], [last, 2.0], (n, 2))
    a, b = np.radians(X[:, 0]), 2 * X[:, 1]
    Y = np.column_stack([np.cos(a) * np.cos(b), np.sin(2 * a + 1) + np.sin(b)])
    return X, Y + 0.05 * rng.standard_normal((n, 2))


def test_along_a_period_there_are_no_ends(tmp_path: Path) -> None:
    """A field around the globe: as good at the seam as elsewhere, rows of any turn, the same a turn further; rows of
    another turn that are appended are inside, and another length-scale reads no row."""
    write(tmp_path / "data.zarr", **dict(zip("xy", around(1536, 0), strict=True)))
    turning = {"sampler": {"type": "lattice", "error": 1e-3, "periods": [360, None]}}
    parts: dict[str, Any] = {"features": turning, "kernel": of_scale("decomposable", 50.0, 0.7)}
    first = fitted(tmp_path, **parts, solve={"ridge": 1e-4})
    (ends,) = [one for one in first.choices if one["key"] == "data.box"]
    assert (
        ends["value"]["x0"] == [0.0, 360.0]
        and "of the rows (0 and the period of an input that has one), " in ends["why"]
    )
    X, Y = around(600, 1, first=-700.0, last=-300.0)
    inside = np.abs(X[:, 1] - 1.0) < 0.95
    write(tmp_path / "data.zarr", append=True, x=X[inside][:500], y=Y[inside][:500])
    again = fitted(tmp_path, **parts, solve={"ridge": 1e-4})
    assert again.rows_used == 2036 and again.leaves_reused >= first.leaves_computed - 1 > 2  # one was cut short
    for kernel in (of_scale("decomposable", 70.0, 0.8), of_scale("curl_free", 45.0, 0.9)):
        assert fitted(tmp_path, "other", **{**parts, "kernel": kernel}).reads == 0.0
    model, (at, _) = load_model(tmp_path / "model"), around(200, 2)
    at[:100, 0] = np.random.default_rng(4).uniform(-5.0, 5.0, 100)
    wanted = np.column_stack([np.cos(np.radians(at[:, 0])) * np.cos(2 * at[:, 1]),
                              np.sin(2 * np.radians(at[:, 0]) + 1) + np.sin(2 * at[:, 1])])  # fmt: skip
    wrong = np.abs(model.predict(at) - wanted).max(axis=1)
    assert wrong.max() < 0.05 and wrong[:100].mean() < 1.5 * wrong[100:].mean()
    for turned in (at + np.array([360.0, 0.0]), at - [3600.0, 0.0]):
        np.testing.assert_allclose(model.predict(turned), model.predict(at), rtol=0, atol=1e-9)
        np.testing.assert_allclose(model.jacobian(turned), model.jacobian(at), rtol=0, atol=1e-9)
        assert model.repeating(turned) == 0
    assert model.repeating(at + np.array([0.0, 9.0])) == len(at)
    # What was summed without the period, or for another one, is of other features.
    for number, periods in enumerate(([180, None], None)):
        sampler = {**turning["sampler"], "periods": periods}
        assert fitted(tmp_path, f"other {number}", **{**parts, "features": {"sampler": sampler}}).leaves_computed > 2


def test_where_all_inputs_have_a_period_no_row_is_looked_at_for_the_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And length-scales are found from places in one period: rows here lie hundreds of them apart."""
    rng = np.random.default_rng(0)
    hours = rng.uniform(0, 24_000, (700, 1)) + 400_000
    Y = np.sin(2 * np.pi * hours / 24 + 1) + 0.05 * rng.standard_normal((700, 1))
    write(tmp_path / "data.zarr", x=hours, y=Y)
    monkeypatch.setattr(lattice, "seen_box", None)
    kernel = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": "tune"}}
    sampler = {"type": "lattice", "periods": [24]}
    found = fitted(tmp_path, kernel=kernel, features={"sampler": sampler}, solve={"ridge": 1e-4})
    assert 2.0 < found.lengthscale[0] < 24.0 and found.m < 40 and not found.warnings
    at = np.linspace(0, 24, 50)[:, None]
    np.testing.assert_allclose(values(tmp_path, "model", at), np.sin(2 * np.pi * at / 24 + 1), atol=0.02)
    parts: dict[str, Any] = {"features": {"sampler": sampler}, "state": "own"}
    median = of_scale("decomposable", 1.0)
    median["scalar"]["lengthscale"] = "median"
    by_median = fitted(tmp_path, kernel=median, **parts, solve={"ridge": 1e-4, "select": "kfold"})
    assert 3.0 < by_median.lengthscale[0] < 12.0 and not any("length" in warning for warning in by_median.warnings)
    sampled = make_plan(job(tmp_path, kernel=median, **parts, solve={"select": "kfold"})).frozen().constants.sampled
    assert sampled is not None and sampled["linear"][0] > 0.1  # there is a slope from 0 to 24, and none over all days
    given: dict[str, Any] = {**parts, "data": {"box": [[5, 7]]}}
    assert fitted(tmp_path, "boxed", kernel=of_scale("decomposable", 5.0), **given).reads == 1.0
    assert fitted(tmp_path, "boxed too", kernel=of_scale("decomposable", 6.0), **given).reads == 0.0
    other = {"features": {"sampler": {**sampler, "periods": [30]}}, "state": "own"}
    (anew,) = (one for one in make_plan(job(tmp_path, kernel=EACH, **other)).warnings if "summed anew" in one)
    assert anew.endswith("another features.sampler.periods"), anew


def test_of_scaled_inputs_a_period_is_scaled_too(tmp_path: Path) -> None:
    """As with length-scales in the inputs' units; what is left out is counted the same."""
    X, Y = around(1000, 0, last=1000.0)
    write(tmp_path / "data.zarr", x=X, y=Y)
    turning: dict[str, Any] = {"sampler": {"type": "lattice", "error": 1e-3, "periods": [360, None]}, "count": 12}
    kernel = of_scale("decomposable", 1.8, 0.4)
    scaled = fitted(tmp_path, "scaled", kernel=kernel, features=turning, solve={"standardize": True})
    s = load_model(tmp_path / "scaled").feature_map.scale
    plain = fitted(tmp_path, "plain", kernel=of_scale("decomposable", 1.8 * s[0], 0.4 * s[1]), features=turning,
                   solve={"standardize": False})  # fmt: skip
    assert 90 < s[0] < 120 and plain.m == scaled.m and plain.kernel_error is not None
    assert 0.02 < plain.kernel_error < 1 and scaled.kernel_error == pytest.approx(plain.kernel_error, rel=1e-6)
    at, _ = around(100, 1)
    np.testing.assert_allclose(values(tmp_path, "scaled", at), values(tmp_path, "plain", at), atol=0.02)


def test_rows_outside_of_the_box_are_refused_or_counted(sea: Path) -> None:
    box = [[0.0, 0.5], [0.0, 2.0]]
    with pytest.raises(
        InputError, match=r"column x0: 0\.\d+ is outside of the box .* from 0\.0 to 0\.5; give a data\.box"
    ):
        fitted(sea, data={"box": box})
    assert not (sea / "state").exists()
    X, Y = flow()
    inside = X[:, 0] <= 0.5
    found = fitted(sea, data={"box": box, "outside": "drop"})
    assert (found.rows_used, found.rows_dropped) == (inside.sum(), N - inside.sum())
    write(sea / "inside.zarr", x=X[inside], y=Y[inside])
    fitted(sea, "alone", data={"store": "inside.zarr", "box": box}, state="alone's")
    at = X[inside][:50]
    np.testing.assert_allclose(values(sea, "model", at), values(sea, "alone", at), atol=1e-3)
    for parts, words in (
        ({"box": [[0, 1]]}, "the least and the largest of each of the 2 inputs"),
        ({"box": [[1, 0], [0, 2]]}, "of x0 1 is more than 0; turn them"),
        ({"box": [0, 1]}, r"must be \[least, largest\] for each input"),
    ):
        with pytest.raises((InputError, ValueError), match=words):
            fitted(sea, data=parts)
    with pytest.raises(ValueError, match="sampler is no lattice"):
        fitted(sea, data={"box": box}, features={"sampler": {"type": "iid"}})


def test_the_first_rows_may_all_be_dropped(tmp_path: Path) -> None:
    X, Y = flow()
    X[:900] += 5.0
    write(tmp_path / "data.zarr", x=X, y=Y)
    done = fitted(tmp_path, data={"box": [[0, 1], [0, 2]], "outside": "drop"})
    assert (done.rows_used, done.rows_dropped) == (N - 900, 900)
    assert np.abs(values(tmp_path, "model", X[900:]) - Y[900:]).std() < 0.07
    write(tmp_path / "data.zarr", append=True, x=X[:600], y=Y[:600])
    with pytest.raises(InputError, match=r"no rows are left .* data\.outside: drop .* beyond data\.box: name the"):
        fitted(tmp_path, data={"box": [[0, 1], [0, 2]], "outside": "drop", "window": 300})


DROPPED: dict[str, dict[str, Any]] = {
    "found": {"kernel": {"type": "decomposable"}, "solve": {"ridge": "auto"}},
    "each": {
        "kernel": EACH,
        "solve": {"standardize": True, "ridge": [1e-6, 1e-4, 1e-2], "select": "kfold", "posterior": True},
    },
    "partial": {"data": {"nan": "partial"}, "solve": {"ridge": [1e-6, 1e-4, 1e-2], "select": "kfold"}},
    "median": {"kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": "median"}}},
    "streaming": {"kernel": EACH, "solve": {"route": "streaming"}},
    "turning": {"kernel": EACH, "features": {"sampler": {"type": "lattice", "periods": [None, np.pi]}}},
}


@pytest.mark.parametrize("way", [*[*DROPPED][::5], *slow(*[*DROPPED][1:5])])
def test_rows_that_are_dropped_tell_nothing(way: str, tmp_path: Path) -> None:
    """Far away and of other values they change no length-scale, scale, choice or score; and a score drops them too."""
    X, Y = flow()
    far = np.zeros(N, dtype=bool)
    far[::11] = True
    write(tmp_path / "whole.zarr", x=np.where(far[:, None], 1e4, X), y=np.where(far[:, None], 1e6, Y))
    write(tmp_path / "inside.zarr", x=X[~far], y=Y[~far])
    more = DROPPED[way]
    data = {"box": [[0, 1], [0, 2]], "outside": "drop"} | more.get("data", {})
    both = [fitted(tmp_path, name, **more | {"data": data | {"store": f"{name}.zarr"}, "state": f"{name}'s"})
            for name in ("whole", "inside")]  # fmt: skip
    assert [one.rows_dropped for one in both] == [far.sum(), 0] and both[0].rows_used == both[1].rows_used
    models = [load_model(tmp_path / name, held=True) for name in ("whole", "inside")]
    for end in ("center", "scale"):
        ends = [getattr(model.feature_map, end) for model in models]
        np.testing.assert_allclose(*ends, rtol=0.02)
    lengths = [np.ravel(one.lengthscale[0]).astype(float) for one in both]
    np.testing.assert_allclose(*lengths, rtol=0.1)
    linear = [one.quality["outputs"][0]["r2_linear"] if one.quality else 0.0 for one in both]
    np.testing.assert_allclose(*linear, atol=0.05)
    np.testing.assert_allclose(*(model.predict(X[:50]) for model in models), atol=0.05)
    assert (held := models[0].held) is None or not far[held.numbers].any()
    assert held is not None or way != "each"
    plan = make_plan(job(tmp_path, "whole", **more | {"data": data | {"store": "whole.zarr"}, "state": "whole's"}))
    assert sample_of(plan, plan.frozen(), 500)[0].X.max() <= 2.0
    scores = [
        score(tmp_path / "whole", tmp_path / f"{name}.zarr", engine=SerialEngine()) for name in ("whole", "inside")
    ]
    aside, along = (models[0].kept(X + np.array(step)) for step in ([6.0, 0.0], [0.0, 6.0]))
    assert not aside.any() and along.all() == (way == "turning")
    assert models[0].kept(np.array([[1.0 + 1e-10, 2.0], [1.0 + 1e-8, 2.0]])).tolist() == [True, False]
    assert [one.rows for one in scores] == [N - far.sum()] * 2 and scores[0].rows_dropped == far.sum()
    assert scores[0].r2 == scores[1].r2 > 0.98


def test_the_box_is_told_by_ingest_or_by_a_first_look_at_the_inputs(tmp_path: Path) -> None:
    """The same either way, with rows that have no numbers, and with rows that are appended."""
    X, Y = flow(900)
    X[7, 0] = np.nan
    np.savez(tmp_path / "a.npz", x=X[:600], y=Y[:600])
    np.savez(tmp_path / "b.npz", x=X[600:], y=Y[600:])
    ingest([tmp_path / "a.npz"], tmp_path / "data.zarr", inputs=["x"], targets=["y"])
    ingest([tmp_path / "b.npz"], tmp_path / "data.zarr", inputs=["x"], targets=["y"], append=True)
    dataset = open_dataset(tmp_path / "data.zarr")
    told, seen = told_box(dataset), seen_box(dataset, "")
    assert told is not None and np.array_equal(told, seen)
    assert np.array_equal(seen, [np.nanmin(X, axis=0), np.nanmax(X, axis=0)])
    assert fitted(tmp_path, data={"nan": "drop"}).rows_used == 899
    commit(tmp_path / "data.zarr", {"ranges": {"x": "elsewhere"}})
    assert told_box(open_dataset(tmp_path / "data.zarr")) is None
    write(tmp_path / "empty.zarr", x=np.full((300, 2), np.nan), y=np.zeros((300, 2)))
    with pytest.raises(InputError, match=r"inputs that are not finite; give data\.box"):
        fitted(tmp_path, data={"store": "empty.zarr", "nan": "drop"}, state="of the empty")


def test_many_rows_without_weight_have_no_part_in_the_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_sets, "RUN_ROWS", SHARD)
    X, Y = flow()
    w = np.where(np.arange(N) // SHARD == 3, 0.0, 1.0)
    X[w == 0] += 100.0
    write(tmp_path / "data.zarr", x=X, y=Y, w=w)
    dataset = open_dataset(tmp_path / "data.zarr", weights="w")
    assert any(w[start:stop].max() == 0 for start, stop in dataset.runs())
    assert np.array_equal(seen_box(dataset, ""), [X[w > 0].min(axis=0), X[w > 0].max(axis=0)])
    assert fitted(tmp_path, data={"weights": "w"}).rows_used == np.count_nonzero(w)


def test_in_a_box_that_is_given_nothing_repeats_itself(tmp_path: Path) -> None:
    """Rows are in its beginning alone; what is predicted at its end is what the kernel says there, and next to 0."""
    X, Y = flow()
    write(tmp_path / "data.zarr", x=X, y=Y)
    fitted(tmp_path, data={"box": [[0, 10], [0, 2]]}, solve={"intercept": False})
    model = load_model(tmp_path / "model")
    assert model.ends is not None and -1.0 < model.ends[0][0] < 0.0 and 10.0 < model.ends[1][0] < 11.0
    at = np.array([[8.0, 1.0], [9.99, 0.01], [0.0, 2.0]])
    assert model.repeating(at) == 0 and np.abs(model.predict(at[:1])).max() < 0.05
    assert model.repeating(at + np.array([11.0, 1.0])) == 3 and model.kept(100 + at).all()


def test_a_plan_refuses_what_a_fit_would(tmp_path: Path) -> None:
    """Several counts, and a box that rows leave or that none lies in, as far as the store says where they are."""
    X, Y = flow(900)
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    ingest([tmp_path / "a.npz"], tmp_path / "data.zarr", inputs=["x"], targets=["y"], shard_rows=SHARD)
    with pytest.raises(InputError, match=r"features\.count: of a lattice .* came 2 of them; give 200 alone"):
        make_plan(job(tmp_path, features={"count": [100, 200]}, solve={"ridge": [1e-5, 1e-3]}))
    narrow, empty = {"box": [[0, 1], [0, 1.5]]}, {"box": [[0, 1], [5, 6]], "outside": "drop"}
    ends = X[:, 1].max()
    with pytest.raises(InputError, match=rf"data\.box: of x1 it is from 0\.0 to 1\.5, but .* to {ends}; make it wider"):
        make_plan(job(tmp_path, data=narrow))
    with pytest.raises(InputError, match=rf"data\.box: of x1 it is from 5\.0 to 6\.0, but .* to {ends}; name the box"):
        make_plan(job(tmp_path, data=empty))
    nearly = {"box": [[0, 1], [0, ends * (1 - 1e-10)]]}
    for allowed in ({**narrow, "outside": "drop"}, {**narrow, "window": 500}, nearly):
        make_plan(job(tmp_path, data=allowed))
    turning = {"sampler": {"type": "lattice", "periods": [None, 9]}}
    make_plan(job(tmp_path, data=narrow, features=turning))
    commit(tmp_path / "data.zarr", {"ranges": {}})
    with pytest.raises(InputError, match=r"none of the first 900 rows .* and lies in data\.box; name the"):
        fitted(tmp_path, data=empty)


@pytest.mark.slow
def test_appended_rows_keep_the_box(sea: Path) -> None:
    """Rows that lie in it are added, and no others; a wider box is another pass."""
    first = fitted(sea)
    X, Y = flow(600, seed=5)
    X = np.clip(X, flow()[0].min(axis=0), flow()[0].max(axis=0))
    more = {"holes": Y, "weights": np.ones(600), "groups": np.arange(600), "classes": np.zeros(600, np.int64)}
    more |= {"walk": np.zeros((600, 3)), "three": np.zeros((600, 3))}
    write(sea / "data.zarr", append=True, x=X, y=Y, **more)
    found = fitted(sea)
    assert found.rows_used == N + 600 and found.leaves_reused > 0 and found.leaves_computed < first.leaves_computed
    whole = fitted(sea, "whole", state="own state")
    assert whole.leaves_reused == 0
    at = X[:50]
    np.testing.assert_allclose(values(sea, "model", at), values(sea, "whole", at), atol=5e-3)
    fitted(sea, "folded", solve={"ridge": [1e-5, 1e-3], "select": "kfold", "folds": {"by": "rows"}})
    write(sea / "data.zarr", append=True, x=X + 1.0, y=Y, **more)
    wider = fitted(sea)
    assert wider.rows_used == N + 1200 and wider.leaves_reused == 0
    assert not any("summed anew" in one for one in wider.warnings)  # the box is why
    dropped = fitted(sea, "dropped", data={"outside": "drop"}, state="drops")
    assert dropped.rows_dropped == 0  # its own box has them
    wide = fitted(sea, data={"box": [[-1, 3], [-1, 4]]})
    assert wide.rows_used == N + 1200 and wide.leaves_reused == 0


def test_a_leaf_that_was_stopped_goes_on_to_the_same_bits(sea: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fitted(sea, "whole", state="whole's")
    stops, told = iter([False, True, False, False, True] + [False] * 99), leaves.stop_requested
    monkeypatch.setattr(leaves, "stop_requested", lambda: next(stops, False))
    for _ in range(2):
        with pytest.raises(StoppedError):
            fitted(sea, "stopped", state="stopped's")
    monkeypatch.setattr(leaves, "stop_requested", told)
    assert fitted(sea, "stopped", state="stopped's").leaves_computed <= whole.leaves_computed
    first, second = (load_model(sea / name) for name in ("whole", "stopped"))
    assert np.array_equal(first.coefficients, second.coefficients)


def test_digits_count_the_tolerance_of_the_sums(sea: Path) -> None:
    """By Cholesky factors and by iterations alike."""
    for route, way in (("direct", {"qr": False}), ("cg", {})):
        digits = []
        for tolerance in (1e-12, 1e-6):
            parts: dict[str, Any] = {"features": {"sampler": {"type": "lattice", "tolerance": tolerance}}}
            parts |= {"solve": {"route": route, **way}, "publish": {"digits": 0.0}, "state": f"{route} {tolerance}"}
            digits.append(fitted(sea, f"{route} of {tolerance}", **parts).digits)
        assert 5.0 < digits[0] - digits[1] < 7.0 or digits[1] == 0.0, (route, digits)


MEDIAN = {**EACH, "scalar": {**GAUSS, "lengthscale": "median"}}
BESIDE = [of_scale("decomposable", 0.35), of_scale("decomposable", 0.45)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "more"),
    [
        (MEDIAN, {}), (MEDIAN, {"solve": {"standardize": True}}), (EACH, {"solve": {"standardize": True}}),
        ([MEDIAN, FIELD], {"solve": {"select": "gcv"}}), (EACH, {"features": {"drawn_for": BESIDE}}),
    ],
    ids=["median", "median scaled", "scaled", "list", "drawn for others"],
)  # fmt: skip
def test_a_fit_says_what_its_lattice_takes(kernel: Any, more: dict[str, Any], sea: Path) -> None:
    """Who does so has enough."""
    counts = [30]
    for name in ("short", "enough"):
        parts = {**more, "features": {**more.get("features", {}), "count": counts[-1]}}
        of_it = " ".join(one for one in fitted(sea, name, kernel=kernel, **parts, state=f"{name}'s").warnings
                         if "may be off the kernel by" in one)  # fmt: skip
        counts += [int(one.replace(",", "")) for one in re.findall("takes about ([0-9,]+);", of_it)]
        assert not of_it or bool(re.match(r"kernel\[[01]\]: the lattice", of_it)) == isinstance(kernel, list)
        assert (of_it != "") == (name == "short"), (counts, of_it)
    assert len(counts) == 2


def test_the_error_of_the_kernel_is_reported(sea: Path) -> None:
    """About what was asked for; where the ceiling is too low for that, what was reached, and a warning."""
    enough, fewer = fitted(sea, "enough"), fitted(sea, "fewer", features={"count": 60}, state="fewer's")
    assert enough.kernel_error is not None and 3e-4 < enough.kernel_error < 1.3e-3
    assert not any("lattice" in one for one in enough.warnings)
    assert fewer.m == 60 and fewer.kernel_error is not None and fewer.kernel_error > 5e-3
    (warning,) = (one for one in fewer.warnings if "the lattice's 60 features may be off the kernel by" in one)
    assert fewer.kernel_error < 1 and f"by {fewer.kernel_error:.1g}, 0.001 was wanted" in warning
    planned = make_plan(job(sea, "planned", features={"count": 60}, state="plan")).foreseen()
    takes = int(warning.partition("takes about ")[2].partition(";")[0].replace(",", ""))
    assert planned == [warning] and 100 < takes < 1000
    assert make_plan(job(sea, "of more", features={"count": takes}, state="more")).foreseen() == []
    assert make_plan(job(sea, "of some", features={"count": takes // 2}, state="some")).foreseen() != []
    other = fitted(sea, "other", features={"sampler": {"type": "orthogonal"}})
    assert other.kernel_error is None
    # The frequency of zero is no error beside an intercept, however heavy.
    wide = fitted(sea, "wide", kernel={**EACH, "scalar": {"type": "gaussian", "lengthscale": 3.0}}, state="wide's")
    assert wide.kernel_error is not None and wide.kernel_error < 1.3e-3


def test_frequencies_of_another_kernel_are_weighed_as_they_are(sea: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of a lattice need no mean of one, whatever kernel it was made for; sums of Gram matrices keep the
    frequencies that they were made of."""
    kernel = {**EACH, "scalar": {"type": "gaussian", "lengthscale": 0.7}}
    monkeypatch.setattr(lattice, "summable", lambda job, recipe: False)
    parts: dict[str, Any] = {"kernel": kernel, "solve": {"ridge": 1e-2}}
    own = fitted(sea, "own", **parts)
    both = [EACH, {**EACH, "scalar": {"type": "gaussian", "lengthscale": 0.9}}]
    other = fitted(sea, "other", **parts, features={"drawn_for": both}, state="other's")
    X, _ = flow(100, seed=9)
    found, wanted = values(sea, "other", X), values(sea, "own", X)
    assert other.m > own.m and np.abs(found - wanted).max() < 5e-3 * np.abs(wanted).max()
    for s in (0.1, 0.7):
        parts["kernel"] = {**EACH, "scalar": {"type": "gaussian", "lengthscale": s}}
        with pytest.raises(InputError, match=r"needs frequencies that lie closer .* those of features\.drawn_for"):
            fitted(sea, "uncovered", **parts, features={"drawn_for": EACH}, state="uncovered's")


def test_a_plan_says_what_there_will_be(sea: Path) -> None:
    plan = make_plan(job(sea))
    assert plan.costs.m == fitted(sea).m < 600
    assert plan.costs.m == make_plan(job(sea)).costs.m
    # Where rows tell the length-scale, or scales, it is a ceiling.
    told = make_plan(job(sea, solve={"standardize": True}))
    assert told.costs.m == 600 > fitted(sea, "scaled", solve={"standardize": True}).m


def test_estimators_have_lattices_too() -> None:
    X, Y = flow()
    kernel = kernels.DivergenceFree(kernels.Gaussian(0.4))
    model = ORFFRegressor(kernel, 600, sampler=frequencies.Lattice(1e-3), ridge=1e-5).fit(X, Y)
    assert model.score(*flow(500, seed=4)) > 0.99 and len(model.model_.frequencies) < 300
    stream = ORFFRegressor(kernel, 600, sampler=frequencies.Lattice(1e-3), ridge=1e-5).partial_fit(X, Y)
    stream.partial_fit(X[:100], Y[:100])
    with pytest.raises(InputError, match="outside of the box"):
        stream.partial_fit(X + 3.0, Y)
    codes = (Y[:, 0] > 0).astype(int)
    classifier = ORFFClassifier(kernels.Gaussian(0.4), 600, sampler=frequencies.Lattice(1e-2)).fit(X, codes)
    assert classifier.score(X, codes) > 0.9
    for standardize in (False, True):
        rows = RandomFeatures(
            kernels.Gaussian(0.4), 600, sampler=frequencies.Lattice(1e-4), standardize=standardize
        ).fit(X)
        F, scale = rows.transform(X[:40]), rows.feature_map_.scale
        exact = kernels.Gaussian(0.4).gram(X[:40] / scale, X[:40] / scale)
        assert np.abs(F @ F.T - exact).max() < 2e-4


@pytest.mark.process
def test_killed_fits_and_workers_give_the_same_bits(tmp_path: Path) -> None:
    """Of a driver that was killed and one that was not, in one process and by two workers."""
    n, shard = 2_400_000, 16_384
    X, Y = flow(n)
    group = zarr.open_group(str(tmp_path / "data.zarr"), mode="w")
    for name, array in {"x": X, "y": Y}.items():
        group.create_array(name, data=array, chunks=(shard, 2), compressors=None)
    words = {"solve": {"ridge": [1e-6, 1e-4], "select": "kfold", "folds": {"count": 3, "by": "rows"}}}
    found = {}
    for name, cluster in (("whole", {"type": "serial"}), ("killed", {"type": "serial"}),
                          ("workers", {"type": "local", "workers": 2, "small_jobs": "workers"})):  # fmt: skip
        body = job(tmp_path, name, **words, state=f"{name}'s", cluster=cluster).model_dump(
            mode="json", exclude_unset=True
        )
        (tmp_path / f"{name}.yaml").write_text(json.dumps(body))
        if name == "killed":
            receipts = tmp_path / "killed's"
            child = subprocess.Popen([DORFF, "fit", str(tmp_path / "killed.yaml")], stderr=subprocess.DEVNULL)
            until = time.monotonic() + 600
            while not any(receipts.glob("*/receipts/*.json")):
                assert child.poll() is None and time.monotonic() < until
                time.sleep(0.01)
            child.kill()
            assert child.wait(600) == -signal.SIGKILL
        done = subprocess.run(
            [DORFF, "fit", str(tmp_path / f"{name}.yaml"), "--json"], capture_output=True, text=True, timeout=600
        )
        report = json.loads(done.stdout)
        assert report["rows_used"] == n and report["peak_bytes"] <= report["plan_peak_bytes"]
        found[name] = report, load_model(tmp_path / name).coefficients
    assert found["killed"][0]["leaves_reused"] > 0 == found["whole"][0]["leaves_reused"]
    assert found["whole"][0]["leaves_computed"] > 2
    assert np.array_equal(found["whole"][1], found["killed"][1])
    assert np.array_equal(found["whole"][1], found["workers"][1])
