"""Each status of a fit that is not good comes with a warning that says how good it is and what to do."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import zarr
from sklearn.exceptions import ConvergenceWarning

from dorff import ORFFRegressor, kernels
from dorff.engine import SerialEngine
from dorff.fit import FitReport, fit
from dorff.fit.quality import warnings_of_status
from dorff.solvers import Solution, cg, outputs
from dorff.solvers.scores import Status
from dorff.spec.job import Job

ENDS: dict[Status, dict[str, Any]] = {
    "ok": {"digits": 9.1},
    "ill_conditioned": {"digits": 2.1},
    "not_converged": {"digits": 3.1, "converged": False},
}
GAUSS = {"type": "gaussian", "lengthscale": 0.3}


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (300, 1))
    return X, np.hstack([np.sin(9 * X), np.cos(7 * X)]) + 0.1 * rng.standard_normal((300, 2))


def fitted(folder: Path, **parts: Any) -> FitReport:
    group = zarr.open_group(str(folder / "data.zarr"), mode="w")
    for name, values in zip(("x", "y"), rows(), strict=True):
        group.create_array(name, data=values, chunks=(64, values.shape[1]))
    body = {
        "data": {"store": "data.zarr"},
        "kernel": {"type": "decomposable", "scalar": GAUSS},
        "features": {"count": 100, "sampler": {"type": "orthogonal"}},
        "cluster": {"type": "serial"},
        "state": "state",
        "model": "model",
        "publish": {"digits": 0},
        **parts,
    }
    return fit(Job.model_validate(body, context={"folder": folder}), engine=SerialEngine())


def remedies(report: FitReport) -> list[str]:
    return [sentence for sentence in report.warnings if "raise solve.ridge" in sentence]


@pytest.mark.parametrize("status", get_args(Status))
@pytest.mark.parametrize("rung", ["cg", "cholesky"])
def test_each_status_but_ok_has_a_warning(status: Status, rung: str) -> None:
    solution = Solution(np.zeros((1, 1)), 1e-8, 1e12, rung, **ENDS[status])
    assert solution.status == status
    sentences = list(warnings_of_status(solution))
    assert len(sentences) == (status != "ok")
    assert all("; raise solve.ridge" in sentence for sentence in sentences)
    if rung == "cg" or status == "ill_conditioned":
        assert all(f"{solution.digits:.1f} digits of the fitted values are right" in one for one in sentences)


@pytest.mark.parametrize("sampler", ["lattice", "orthogonal"])
def test_a_job_whose_iterations_end_too_early_warns(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where rounding has made the system indefinite: after a few steps."""
    parts = {"solve": {"ridge": 1e-6, "route": "cg"}, "features": {"count": 100, "sampler": {"type": sampler}}}
    good = fitted(tmp_path, **parts)
    assert (good.status, remedies(good)) == ("ok", [])
    step = cg.ConjugateGradients.step

    def few_steps(columns: cg.ConjugateGradients) -> bool:
        return len(columns.steps[0]) < 1 and step(columns)

    monkeypatch.setattr(cg.ConjugateGradients, "step", few_steps)
    monkeypatch.setattr(cg, "enough", lambda *_: 1e-14)
    report = fitted(tmp_path, **parts, **{"model": "other", "state": "others"})
    assert report.status == "not_converged"
    (sentence,) = remedies(report)
    assert f"{report.digits:.1f} digits of the fitted values are right" in sentence
    assert "set solve.route: direct" in sentence


def test_a_job_with_few_digits_warns(tmp_path: Path) -> None:
    report = fitted(tmp_path, solve={"ridge": 1e-17, "qr": False})
    assert report.status == "ill_conditioned"
    (sentence,) = remedies(report)
    assert f"{report.digits:.1f} digits of the fitted values are right" in sentence


def test_an_output_matrix_that_is_not_found_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In jobs and in estimators."""
    monkeypatch.setattr(outputs, "MOST_ITERATIONS", 2)
    kernel = {"type": "decomposable", "scalar": GAUSS, "output": "learned"}
    report = fitted(tmp_path, kernel=kernel, solve={"ridge": 1e-4})
    assert report.status == "not_converged"
    (sentence,) = remedies(report)
    assert "output matrix 'learned'" in sentence
    learned = kernels.Decomposable(kernels.Gaussian(0.3), "learned")
    with pytest.warns(ConvergenceWarning, match="output matrix 'learned' .*; raise ridge, or give the matrix"):
        ORFFRegressor(learned, n_features=100, ridge=1e-4).fit(*rows())
