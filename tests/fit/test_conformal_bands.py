"""Conformal bands of a fit: what is exchangeable, how many of it stand behind a level, and what a fit says of that."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dorff.data import ingest
from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.fit import FitReport, fit, run_pass
from dorff.fit.choice import solve_pass
from dorff.fit.held import Held, HeldErrors, independent_length
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.model.calibration import Conformal
from dorff.plan import make_plan
from dorff.spec.job import Job
from dorff.store import load_model
from tests.command_line import call

KERNEL = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 1.0}}
TOO_FEW = "promise no bands of 95%"


def noise(rng: np.random.Generator, n: int) -> FloatArray:
    """Errors (n,), each 0.97 of the one before and a part of its own; of variance 1."""
    errors = rng.normal(size=n)
    for row in range(1, n):
        errors[row] = 0.97 * errors[row - 1] + np.sqrt(1 - 0.97**2) * errors[row]
    return errors


def groups_of(count: int, rows: int = 60, seed: int = 0) -> dict[str, FloatArray]:
    """Rows of groups whose errors go together."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (count * rows, 2))
    errors = np.concatenate([noise(rng, rows) for _ in range(count)])
    return {
        "x": X,
        "y": (np.sin(X[:, 0]) + 0.5 * errors)[:, None],
        "group": np.repeat(np.arange(float(count)), rows),
    }


def job(folder: Path, arrays: dict[str, FloatArray], **solve: Any) -> Job:
    np.savez(folder / "rows.npz", **arrays)
    groups = "group" if "group" in arrays else None
    ingest([folder / "rows.npz"], folder / "rows.zarr", inputs=["x"], targets=["y"], groups=groups)
    return Job.model_validate(
        {
            "data": {"store": str(folder / "rows.zarr")},
            "kernel": KERNEL,
            "features": {"count": 64, "sampler": {"type": "orthogonal"}},
            "solve": {"conformal": True, "ridge": [1e-4, 1e-2, 1.0], **solve},
            "cluster": {"type": "serial"},
            "state": str(folder / "state"),
            "model": str(folder / "model"),
        }
    )


def fitted(described: Job) -> tuple[Model, Conformal, FitReport]:
    report = fit(described, engine=SerialEngine())
    model = load_model(Path(report.model))
    assert model.conformal is not None
    return model, model.conformal, report


def said(report: FitReport) -> str:
    return "\n".join(report.warnings)


@pytest.mark.parametrize("by", ["auto", "rows", "blocks"])
def test_independent_rows_are_the_unit_however_they_are_held_out(by: str, tmp_path: Path) -> None:
    """The bands are those of single rows of one fold, to the bit, and no warning speaks of their number."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (800, 2))
    described = job(tmp_path, {"x": X, "y": np.sin(X[:, :1]) + 0.3 * rng.normal(size=(800, 1))}, folds={"by": by})
    _, conformal, report = fitted(described)
    plan = make_plan(described)
    passed = run_pass(plan, SerialEngine())
    held = Held.of(plan, solve_pass(plan, passed), passed, posterior=True)
    assert held is not None
    errors = held.errors()
    assert errors is not None
    assert conformal.unit == "rows" and conformal.rows == (held.n,)
    np.testing.assert_array_equal(conformal.factors, Conformal.fit(np.abs(errors.errors)).factors)
    assert TOO_FEW not in said(report) and "conformal" not in said(report)
    assert report.bands == {"unit": "rows", "units": held.n, "highest": conformal.highest, "scope": conformal.scope}


def test_few_groups_promise_no_high_level(tmp_path: Path) -> None:
    """All groups are held out in turn, and G of them are enough for levels up to G / (G + 1)."""
    model, conformal, report = fitted(job(tmp_path, groups_of(6)))
    assert (conformal.unit, conformal.units, conformal.rows) == ("groups", (6,), (360,))
    assert conformal.highest == 0.855
    with pytest.raises(
        InputError, match=r"level 0.95: 6 held-out groups.* ask for 0.855 or less, or fit to more groups"
    ):
        model.band(np.zeros((1, 2)), 0.95)
    low, high = model.band(np.zeros((1, 2)), 0.8)
    plain = model.band(np.zeros((1, 2)), 0.95, conformal=False)  # plain ones are there still
    assert np.all(low < high) and np.all(plain[0] < plain[1])
    assert f"6 held-out groups {TOO_FEW}" in said(report) and "give more groups" in said(report)
    assert "solve.select" not in said(report) and "conformal bands hold what" not in said(report)
    assert report.bands is not None and report.bands["units"] == 6


def test_where_one_fold_is_held_out_its_groups_alone_count(tmp_path: Path) -> None:
    _, conformal, report = fitted(job(tmp_path, groups_of(30), select="gcv"))
    assert conformal.unit == "groups" and conformal.units[0] < 15
    assert f"{conformal.units[0]} held-out groups {TOO_FEW}" in said(report)
    assert "set solve.select: kfold, by which all groups are held out in turn, or give more groups" in said(report)


def test_enough_groups_say_what_holds(tmp_path: Path) -> None:
    """On the command line, in the report of the fit, and on the page."""
    described = job(tmp_path, groups_of(24))
    (tmp_path / "job.yaml").write_text(described.model_dump_json(exclude_unset=True), encoding="utf-8")
    text = call("fit", tmp_path / "job.yaml").stdout
    holds = "rows of new groups, on average over groups (24 were held out, enough for levels up to 96%)"
    assert f"hold of {holds}" in text and TOO_FEW not in text
    model = load_model(tmp_path / "model")
    assert np.all(model.factor(0.95) > 0) and model.conformal is not None and model.conformal.units == (24,)
    call("report", tmp_path / "model", "-o", tmp_path / "page.html")
    assert f"Conformal bands hold what they say of {holds}" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_walk_is_held_out_in_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(2000, 2))
    _, conformal, report = fitted(job(tmp_path, {"x": X, "y": (np.sin(X[:, 0]) + noise(rng, 2000))[:, None]}))
    assert report.held_by == "blocks" and conformal.unit == "blocks" and conformal.block_rows >= 16
    assert 19 <= conformal.units[0] <= 2000 // conformal.block_rows + 1
    assert report.bands is not None and "nothing is promised of rows after them" in str(report.bands["scope"])


LEVELS_APART = {"ridge": [1e-4, 1e-3]}


def levels_apart(count: int, seed: int) -> dict[str, FloatArray]:
    """Groups with a level each that inputs of the group tell: plain bands hold too few rows of a new group."""
    rng = np.random.default_rng(seed)
    X = np.repeat(rng.uniform(-2, 2, (count, 2)), 16, axis=0) + 0.02 * rng.normal(size=(16 * count, 2))
    Y = np.repeat(rng.normal(size=(count, 1)), 16, axis=0) + 0.05 * rng.normal(size=(16 * count, 1))
    return {"x": X, "y": Y + 3 * np.sin(X[:, :1]), "group": np.repeat(np.arange(float(count)), 16)}


HOLDS = "conformal bands hold what they say of rows of new groups, on average"
NOR = "nor can conformal bands promise them, of 17 held-out groups"


@pytest.mark.parametrize(("count", "seed", "words"), [(40, 0, HOLDS), (17, 3, NOR)])
def test_narrow_plain_bands_are_told_what_conformal_ones_hold(
    count: int, seed: int, words: str, tmp_path: Path
) -> None:
    short = {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 0.3}}
    described = job(tmp_path, levels_apart(count, seed), **LEVELS_APART)
    described = Job.model_validate(
        described.model_dump(exclude_unset=True) | {"kernel": short, "features": {"count": 256}}
    )
    _, _, report = fitted(described)
    assert "bands of 95% hold" in said(report) and words in said(report), report.warnings
    assert (TOO_FEW in said(report)) is (count < 19)


def errors_of(values: FloatArray, longest: int) -> list[HeldErrors]:
    return [HeldErrors(np.arange(len(values)), values, None, longest)]


@pytest.mark.parametrize("n", [100, 1000, 20000])
def test_independent_errors_make_blocks_of_one_row(n: int) -> None:
    rng = np.random.default_rng(n)
    values = rng.normal(size=(n, 2))
    values[::7, 1] = np.nan
    assert independent_length(errors_of(values, 64)) == 1
    assert independent_length(errors_of(np.where(values > 2, np.inf, values), 64)) == 1


def test_dependent_errors_make_blocks_that_are_longer_than_their_memory() -> None:
    rng = np.random.default_rng(0)
    values = noise(rng, 8192)[:, None]
    assert 64 <= independent_length(errors_of(values, 1024)) <= 256  # the memory is 33 rows
    assert independent_length(errors_of(values, 16)) == 16  # but not longer than what is held out together
    sizes = np.exp(noise(rng, 8192))[:, None] * rng.normal(size=(8192, 1))  # of no correlation, but of like sizes
    assert independent_length(errors_of(sizes, 1024)) >= 8
    assert independent_length(errors_of(rng.normal(size=(10, 1)), 8)) == 8  # nothing can be said of so few


@pytest.mark.parametrize("size", [-1e3, 1e3])
def test_a_few_very_large_errors_are_no_correlation(size: float) -> None:
    """The variance of all errors would be theirs, and their product the covariance."""
    values = np.random.default_rng(3).normal(size=(4096, 1))
    values[[1001, 1002, 3005, 3006]] = size
    assert independent_length(errors_of(values, 64)) == 1


def test_one_fold_is_held_out_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fold was held out with is gone before the next one is solved: the plan has memory for one."""
    alive: list[weakref.ref[Any]] = []
    solve = Held.of.__func__  # type: ignore[attr-defined]

    def counted(cls: type[Held], *arguments: Any, **options: Any) -> Held | None:
        assert not [one for one in alive if one() is not None]
        held = solve(cls, *arguments, **options)
        alive.extend([weakref.ref(held), weakref.ref(held.model.posterior)])
        return held  # type: ignore[no-any-return]

    monkeypatch.setattr(Held, "of", classmethod(counted))
    fitted(job(tmp_path, groups_of(6)))
    assert len(alive) == 2 * 5  # folds
