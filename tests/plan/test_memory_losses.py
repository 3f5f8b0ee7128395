"""Memory of fits by other losses than the square: what is planned against the arrays that a whole fit really makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from cases import traced

from dorff.engine import SerialEngine
from dorff.fit import fit
from dorff.kernels.scalar import FloatArray
from dorff.model.losses import Hinge, Huber
from dorff.model.weights import OperatorWeights
from dorff.moments import Accumulator
from dorff.passes import Leaf, Question
from dorff.passes.slopes import BESIDE
from dorff.passes.sweep import Sweep
from dorff.plan import freeze_constants, make_plan
from dorff.plan.costs import DRIVER_BYTES
from dorff.plan.routes import Means, Shape, Way, choose_route, evaluations, points_of
from dorff.plan.seconds import Pace
from dorff.plan.sharing import loss_of
from dorff.solvers import Size
from dorff.solvers.minimise import lbfgs, newton_step
from dorff.solvers.objective import Attempt, Evaluator, LossProblem, State
from dorff.spec.job import Job

GAUSSIAN = {"type": "gaussian", "lengthscale": 2.0}
PLAIN = {"type": "decomposable", "scalar": GAUSSIAN}
KFOLD = {"ridge": [1e-2, 1e-1], "select": "kfold", "folds": {"count": 3, "by": "rows"}}
LEVELS = {"quantiles": [0.1, 0.5, 0.9]}
CASES: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "many features": (4096, 1, 1024, {"solve": {"loss": "huber"}}),
    "many targets": (4096, 24, 64, {"solve": {"loss": LEVELS}}),
    "folds": (4096, 4, 1024, {"solve": {"loss": LEVELS, **KFOLD}}),
    "coupled": (4096, 3, 256, {"kernel": {"type": "divergence_free", "scalar": GAUSSIAN}, "solve": {"loss": "huber"}}),
    "newton": (4096, 4, 512, {"solve": {"loss": {"huber": 0.5}, "solver": "newton"}}),
    "laplace of many": (2048, 40, 256, {"solve": {"loss": "poisson", "posterior": True}}),
    "newton, coupled": (
        4096, 3, 256,
        {"kernel": {**PLAIN, "output": {"matrix": [[2, 1, 0], [1, 2, 1], [0, 1, 2]]}},
         "solve": {"loss": {"huber": 0.5}, "solver": "newton"}},
    ),
    "laplace": (4096, 2, 512, {"solve": {"loss": "poisson", "posterior": True}}),
    "classes": (4096, 8, 256, {"data": {"targets": {"classes": "classes"}}, "solve": {"loss": "multinomial"}}),
    "laplace of classes": (
        4096, 5, 128,
        {"data": {"targets": {"classes": "classes"}}, "solve": {"loss": "multinomial", "posterior": True}},
    ),
    "laplace of many classes": (
        4096, 16, 64,
        {"data": {"targets": {"classes": "classes"}}, "solve": {"loss": "multinomial", "posterior": True}},
    ),
    "gaps": (4096, 3, 512, {"data": {"nan": "partial"}, "solve": {"loss": LEVELS}}),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What libraries hold when they are first used is no job's own."""
    for number, name in enumerate(("folds", "laplace")):
        fit(made_job(name, tmp_path_factory.mktemp(str(number))), engine=SerialEngine())


def made_job(name: str, tmp_path: Path) -> Job:
    n, q, m, parts = CASES[name]
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    y = rng.poisson(np.exp(np.sin(X[:, :1] + np.arange(q)))).astype(np.float64)
    if name == "gaps":
        y[::5, 0] = np.nan
        y[1::7, 1] = np.nan
    codes = np.argmax(X @ rng.standard_normal((3, q)), axis=1)[:, None]
    return job_of(tmp_path, {"x": X, "y": y, "classes": codes}, m, parts)


def job_of(tmp_path: Path, arrays: dict[str, Any], m: int, parts: dict[str, Any]) -> Job:
    group = zarr.open_group(str(tmp_path / "data.zarr"), mode="w")
    for key, values in arrays.items():
        group.create_array(key, data=values, chunks=(1024, values.shape[1]))
    return Job.model_validate(
        {
            "data": {"store": str(tmp_path / "data.zarr"), **parts.get("data", {})},
            "kernel": parts.get("kernel", PLAIN), "features": {"count": m, "sampler": {"type": "iid"}},
            "solve": {"ridge": 1e-2, "standardize": False, "tolerance": 1e-2, **parts["solve"]},
            "cluster": {"type": "serial"}, "state": str(tmp_path / "state"), "model": str(tmp_path / "model"),
        }
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_fit_by_a_loss_holds_what_is_said(name: str, tmp_path: Path) -> None:
    made = made_job(name, tmp_path)
    plan = make_plan(made)
    held = traced(lambda: fit(made, engine=SerialEngine()))
    planned = plan.costs.peak_bytes - DRIVER_BYTES
    assert 0.1 * planned < held <= planned, (held / 2**20, planned / 2**20)


def way(made: Job, size: Size, **more: int) -> Way:
    """How the loss of a job is planned for a system of this size, of which nothing else is held."""
    given: dict[str, Any] = {
        "n": 10_000, "leaves": 1, "map_numbers": 0, "map_flops": 1.0, "leaf_bytes": 0, "solve_bytes": 0,
        "disk_bytes": 0, "read_bytes": 0,
    }  # fmt: skip
    names = ("evaluations", "values", "curved", "squares")
    given |= dict(zip(names, evaluations(made, size.q, size.folds), strict=True))
    given["points"] = points_of(made, size.q)
    shape = Shape(**{**given, **more}, size=size)
    return choose_route(made, shape, Means(workers=1, worker_memory=1e12, pace=Pace.nominal(size.m, 1.0))).way


@pytest.mark.parametrize(("q", "m", "curved"), [(120, 64, False), (24, 512, True)], ids=["values", "curvature"])
def test_a_pass_holds_what_is_said_of_its_values(q: int, m: int, curved: bool, tmp_path: Path) -> None:
    """Where these, or squares weighed by their curvature, are most of what a leaf holds."""
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((4096, 2)), rng.standard_normal((4096, q))
    solve = {"loss": "huber", "solver": "newton"} if curved else {"loss": LEVELS}
    made = job_of(tmp_path, {"x": X, "y": Y}, m, {"solve": solve})
    plan = make_plan(made)
    frozen, loss = freeze_constants(plan), loss_of(made)
    V = 0.1 * rng.standard_normal((frozen.features.m + 1, q * loss.levels))
    place = Sweep(frozen.directory / "sweeps" / "solve" / "one", "one")
    place.write(frozen, V, Question(V, loss, (1.0,) * q, 0.5 if loss.kinked else 0.0, curved).config())
    held = traced(lambda: place.leaf(plan.dataset, Leaf(0, 0, plan.dataset.n)))
    planned = way(made, Size(frozen.features.m, q, q, False), read_bytes=3 * plan.dataset.unit_bytes()).worker_bytes
    assert 0.3 * planned < held <= planned, (held / 2**20, planned / 2**20)


@pytest.mark.parametrize(("m", "q"), [(1024, 1), (128, 160)], ids=["axes", "steps"])
def test_an_iteration_holds_what_is_said(m: int, q: int) -> None:
    """Where the axes of the system, or the steps that are remembered, are most of what the driver holds."""
    rng = np.random.default_rng(0)
    F = rng.standard_normal((2 * m, m))
    S, mean = F.T @ F / len(F), np.zeros(m)
    weights = OperatorWeights(np.ones(m), np.eye(q)[None])
    y = np.abs(rng.standard_normal((len(F), q)))
    loss = Huber(0.3)

    def ask(V: FloatArray, width: float) -> dict[int, FloatArray]:
        terms = loss.terms(F @ V[:-1] + V[-1], y)
        beside = np.array([terms.value.sum(0), terms.smooth.sum(0), terms.slope.sum(0), terms.curvature.sum(0)])
        return {0: np.vstack([F.T @ terms.slope, terms.slope.sum(0), beside])}

    start = np.zeros((m, q)), np.zeros(q)

    def least() -> list[State]:
        problem = LossProblem(loss, weights, np.eye(q), (), True, mean, S, {0: float(len(F))}, start)
        return lbfgs(Evaluator(problem, ask), [Attempt(1e-4)], [start], 1e-9)

    least()
    given = {"data": {"store": "a"}, "solve": {"loss": {"huber": 0.3}}, "state": "s", "model": "m"}
    planned = way(Job.model_validate(given), Size(m, q, q, False)).driver_bytes
    held = traced(least)
    assert 0.3 * planned < held <= planned, (held / 2**20, planned / 2**20)


def test_a_bundle_holds_what_is_said() -> None:
    """Where planes are most of what the driver holds."""
    rng = np.random.default_rng(0)
    m, q = 512, 40
    F = rng.standard_normal((600, m))
    S, mean = F.T @ F / len(F), np.zeros(m)
    weights = OperatorWeights(np.ones(m), np.eye(q)[None])
    y = (rng.standard_normal((len(F), q)) > 0).astype(float)
    loss = Hinge()

    def ask(V: FloatArray, width: float | tuple[float, ...]) -> dict[int, FloatArray]:
        each = []
        for number, part in enumerate(np.split(V, V.shape[1] // q, axis=1)):
            terms = loss.terms(F @ part[:-1] + part[-1], y, width[number] if isinstance(width, tuple) else width)
            beside = [terms.value.sum(0), terms.smooth.sum(0), (terms.slope**2 / 2).sum(0), terms.curvature.sum(0)]
            each.append(np.vstack([F.T @ terms.slope, terms.slope.sum(0), *beside]))
        return {0: np.hstack(each)}

    start = np.zeros((m, q)), np.zeros(q)

    def least() -> list[State]:
        problem = LossProblem(loss, weights, np.eye(q), (), True, mean, S, {0: float(len(F))}, start)
        return lbfgs(Evaluator(problem, ask, 8), [Attempt(1e-3)], [start], 1e-6)

    least()
    given = {"data": {"store": "a"}, "solve": {"loss": "hinge"}, "state": "s", "model": "m"}
    planned = way(Job.model_validate(given), Size(m, q, q, False)).driver_bytes
    held = traced(least)
    assert 0.3 * planned < held <= planned, (held / 2**20, planned / 2**20)


def test_a_newton_step_holds_what_is_said() -> None:
    """Where the moments weighed by curvature, a column's each, are most of what the driver holds."""
    rng = np.random.default_rng(0)
    m, q = 256, 48
    zeros, F = np.zeros(m), rng.standard_normal((2 * m, m + 1))
    start = np.zeros((m, q)), np.zeros(q)
    weights = OperatorWeights(np.ones(m), np.eye(q)[None])
    problem = LossProblem(Huber(0.3), weights, np.eye(q), (), True, zeros, np.eye(m), {0: float(len(F))}, start)
    (state,) = Evaluator(problem, lambda V, width: {0: np.ones((m + 1 + BESIDE, q))})([(Attempt(1e-2), *start)], 0.0)

    def step() -> object:
        weighed = {}
        for column in range(q):
            sums = Accumulator(m, 0, np.zeros(0))
            sums.add(F)
            weighed[column] = sums.moments()
        return newton_step(problem, state, weighed)

    step()
    given = {"data": {"store": "a"}, "solve": {"loss": {"huber": 0.3}, "solver": "newton"}, "state": "s", "model": "m"}
    planned = way(Job.model_validate(given), Size(m, q, q, False)).driver_bytes
    held = traced(step)
    assert 0.3 * planned < held <= planned, (held / 2**20, planned / 2**20)


def test_plain_flops_of_newton_and_laplace() -> None:
    """A Gram matrix of each value in every other pass of Newton's method, and in one for a posterior."""
    given = {"data": {"store": "a"}, "state": "s", "model": "m"}
    size, n = Size(512, 4, 4, False), 10_000
    square = float(n) * 4 * size.width**2
    flops, passes = {}, {}
    for name, more in (("lbfgs", {}), ("newton", {"solver": "newton"}), ("posterior", {"posterior": True})):
        made = Job.model_validate({**given, "solve": {"loss": "poisson", **more}})
        taken = way(made, size)
        flops[name], passes[name] = taken.flops, taken.passes - 1
    assert flops["newton"] - flops["lbfgs"] == pytest.approx(passes["newton"] // 2 * square)
    assert flops["posterior"] - flops["lbfgs"] == pytest.approx(square)
