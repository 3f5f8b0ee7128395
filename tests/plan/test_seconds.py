"""Seconds that are planned against those taken, of every part on this machine, and of whole jobs of every kind.

Times are of the threads' processors, and so hardly those of what else the machine does.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from cases import every_kernel, moments_of, plain_map, rows
from places import ROOT

from dorff import frequencies
from dorff.features import FeatureMap, Recipe
from dorff.kernels.scalar import FloatArray
from dorff.moments import Accumulator, Adder, TriangleAccumulator, by_fold, pooled
from dorff.moments.blas import pinned
from dorff.plan import seconds
from dorff.plan.routes import Means, Shape, choose_route
from dorff.plan.seconds import Pace, solve_work
from dorff.solvers import Setting, Size, choose
from dorff.spec.job import Job

BENCHMARKS: Final = ROOT / "benchmarks"
FEW: Final = [1e-4, 1e-6, 1e-8]
WIDE: Final = [10.0**-power for power in np.linspace(2, 9, 20)]
MANY: Final = [10.0**-power for power in range(1, 11)]


def flops(work: Callable[[], object], *, width: int = 1024, times: int = 3) -> float:
    """Of `syrk` in the time that a call takes: the median of several, each beside one of `syrk`."""
    measured = []
    for _ in range(times):
        seconds._syrk_rate.cache_clear()
        rate = seconds._syrk_rate(width)
        with pinned():
            began = time.thread_time()
            work()
            measured.append((time.thread_time() - began) * rate)
    return float(np.median(measured))


def near(measured: float, planned: float) -> bool:
    return planned / 5 <= measured <= 2.5 * planned  # on machines that do other things too; too much is no harm


def job(count: int | list[int] = 1024, **solve: Any) -> Job:
    scalar = {"type": "gaussian", "lengthscale": 1.0}
    kernel = {"type": "decomposable", "scalar": scalar}
    body = {"data": {"store": "a"}, "kernel": kernel, "state": "s", "model": "m"}
    return Job.model_validate(
        body
        | {
            "features": {"count": count, "sampler": {"type": "orthogonal"}},
            "solve": {"ridge": 1e-6, "select": "gcv"} | solve,
        }
    )


def case(name: str, m: int, method: str = "direct") -> tuple[Setting, FeatureMap, FloatArray, FloatArray]:
    """A setting of a kernel's m features, and rows of two inputs and two targets."""
    kernel = dict(every_kernel(2, 2))[name].fix(2, 2, np.eye(2))
    drawn = frequencies.Orthogonal().draw(kernel, d=2, p=2, count=m // 2, seed=0)
    X, Y = rows(4 * m, 2, 2)
    Y = np.sin(X) + 0.1 * Y / Y.std()
    features = plain_map(3 * drawn.omega)
    density = drawn.omega, drawn.log_density, drawn.serves
    return Setting(kernel, 2, m, density, False, True, method=method), features, X, Y


def size_of(setting: Setting, *, folds: int = 1) -> Size:
    root = setting.weights(setting.kernel)
    return Size(setting.m, 2, root.shape[1], not root.separable, 1, folds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "m", "ridges", "select", "count"),
    [
        ("identity", 1024, FEW, "gcv", 1),
        ("identity", 1024, MANY, "gcv", 1),
        ("identity", 768, MANY, "evidence", 1),
        ("matrix", 768, MANY, "evidence", 1),
        ("identity", 1024, FEW, "kfold", 3),
        ("identity", 1024, WIDE, "kfold", 5),
        ("identity", 448, WIDE, "kfold", 5),
        ("curl trace", 1024, MANY, "gcv", 1),
        ("curl trace", 768, FEW, "evidence", 1),
        ("helmholtz trace", 512, FEW, "evidence", 1),
        ("curl trace", 1024, FEW, "kfold", 3),
        ("curl trace", 1024, WIDE, "kfold", 5),
        ("helmholtz trace", 1024, WIDE, "kfold", 5),
    ],
)
def test_a_choice_takes_what_is_planned(name: str, m: int, ridges: list[float], select: str, count: int) -> None:
    setting, features, X, Y = case(name, m)
    folds = by_fold({(fold, ""): moments_of(features, X[fold::count], Y[fold::count]) for fold in range(count)})
    size = size_of(setting, folds=count)
    planned = solve_work(job(ridge=ridges, select=select), [size], 1, keeps=False)
    apart = select == "kfold" and size.coupled  # noise takes two to ten steps: see the jobs by evidence
    planned -= seconds._noise_work(size) if apart else 0.0

    def fitted() -> None:
        found = choose(folds, [setting], ridges, by=select)
        if not apart:
            setting.noised(pooled(folds), found.fit)

    taken = flops(fitted, times=1)
    assert near(taken, planned), taken / planned


def test_fewer_features_take_less() -> None:
    """A number of features is planned as that, not as the largest."""
    sizes = {m: Size(m, 2, 1, False, 1, 5) for m in (2048, 1024, 512)}

    def work(counts: list[int]) -> float:
        return solve_work(job(count=counts, ridge=WIDE, select="kfold"), [sizes[counts[0]]], 1, keeps=False)

    last = 2 * seconds.CHOLESKY * np.array([0.0, 2048.0**3, 1024.0**3, 512.0**3])  # with all rows, without a fold
    alone = [work([m]) for m in sizes]
    assert work([2048, 1024, 512]) == pytest.approx(sum(alone) - last[2:].sum())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "m", "ridge"), [("identity", 1024, 1e-6), ("helmholtz trace", 512, 1e-4),
                                                  ("helmholtz trace", 1024, 1e-6)])  # fmt: skip
def test_an_iteration_takes_what_is_planned(name: str, m: int, ridge: float) -> None:
    """Within a factor of four, of six where it takes less: how many columns a sketch has is not known before."""
    setting, features, X, Y = case(name, m, "cg")
    size = size_of(setting)
    shape = Shape(
        n=0, size=size, leaves=1, map_numbers=0, map_flops=0.0,
        leaf_bytes=0, solve_bytes=0, disk_bytes=0, read_bytes=0,
    )  # fmt: skip
    pace = Pace.nominal(m, 0.0)
    planned = choose_route(job(route="cg"), shape, Means(1, 0.0, pace)).way.seconds * pace.square
    parts = [moments_of(features, X, Y)]
    taken = flops(lambda: setting.solve(parts, [ridge]), times=1)
    assert planned / 6 <= taken <= 4 * planned, taken / planned


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "times"), [(Accumulator, 1.0), (TriangleAccumulator, seconds.QR)])
def test_rows_take_what_is_planned(kind: type[Adder], times: float) -> None:
    m, n = 1024, 4096
    Z = np.random.default_rng(0).standard_normal((n, m + 2))
    adder = kind(m, 1, np.zeros(1))

    def added() -> None:
        for start in range(0, n, 512):
            adder.add(Z[start : start + 512])

    assert near(flops(added), times * n * (m + 2.0) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["iid", "sorf"])
def test_a_larger_map_takes_what_a_smaller_does(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of features is tried with fewer of them where there are very many."""
    kernel = dict(every_kernel(64, 1))["identity"].fix(64, 1, np.eye(1))
    recipe = Recipe(kernel, frequencies.from_config({"type": sampler}), 64, 1, 4096)
    whole = Pace.of(recipe, 1024).number
    monkeypatch.setattr(seconds, "TRIED_NUMBERS", 0)
    seconds._numbers.clear()
    assert near(Pace.of(recipe, 1024).number, whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "direct, m = 1024", "mixed precision", "posterior", "conformal", "evidence, curl-free", "tuned", "cg",
        "streaming, 1e-9", "manifold", "manifold within leaves",
    ],
)  # fmt: skip
def test_a_job_takes_what_is_planned(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a factor of 2.5: of 1.5 on a machine that does nothing else, see `benchmarks/plan_seconds.py`."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("plan_seconds")
    thousands, m, more = script.JOBS[name]
    found = script.compare(tmp_path / "job", int(1000 * thousands), m, more)
    assert near(found["busy"] / found["planned"], 1.0), found
