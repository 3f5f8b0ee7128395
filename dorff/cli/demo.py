"""The whole job on real data: the ocean drifters that ship with dorff."""

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import yaml

from dorff.data import ingest, open_dataset
from dorff.engine import Engine, open_engine
from dorff.errors import InputError
from dorff.fit import FitReport, Progress, fit
from dorff.fit.tune import TuneResult, tune
from dorff.plan import make_plan
from dorff.predict import predict, score
from dorff.report import Candidate, write_report
from dorff.spec.job import Job
from dorff.spec.reader import load_job
from dorff.store import space_on, write_atomic

MARK: Final = ".dorff-demo"
INPUTS: Final = ("x_km", "y_km")
TARGETS: Final = ("u_m_s", "v_m_s")
SHARD_ROWS: Final = 256

Echo = Callable[[str], None]


@final
@dataclass(frozen=True)
class Search:
    """What is tried: length-scales (km), shares of the curl-free term, ridges; and with how many features."""

    lengthscales: tuple[float, ...] = (10.0, 15.0, 20.0)
    shares: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0)
    ridges: tuple[float, ...] = (1e-5, 3e-5, 1e-4)
    features: int = 1024

    @property
    def kernels(self) -> list[tuple[float, float]]:
        """(share, length-scale) of every kernel."""
        return [(share, lengthscale) for lengthscale in self.lengthscales for share in self.shares]


DEFAULT: Final = Search()


@final
@dataclass(frozen=True)
class DemoResult:
    """Where everything is, and the numbers. RMSE is in m/s: `kfold_rmse` of rows not seen, `rmse` of rows fitted."""

    directory: Path
    job: Path
    model: Path
    predictions: Path
    page: Path
    rows: int
    kfold_rmse: float
    rmse: float
    r2: float
    lengthscale: float
    curl_share: float
    ridge: float
    seconds: float


def run_demo(
    directory: Path | None = None, *, echo: Echo = print, progress: Progress | None = None, search: Search = DEFAULT
) -> DemoResult:
    """Ingest, plan, choose, fit, predict, score and report, all in `directory` (`dorff-demo` if left out).

    A directory of an earlier demo is used again: what it holds is replaced, or gone on with. Raises InputError
    for a directory that holds anything else. `progress` is told the rows done by all passes together."""
    began = time.perf_counter()
    home = _claim(Path("dorff-demo") if directory is None else Path(directory))
    rows = _ingest(home, echo)
    texts = [_description(share, scale, search.ridges, search.features) for share, scale in search.kernels]
    jobs = [Job.model_validate(text, context={"folder": home}) for text in texts]  # one a kernel, with all ridges
    with open_engine(jobs[0].cluster) as engine:
        tuned = _choose(jobs, search, engine, echo, _counting(progress, passes=len(search.lengthscales)))
        job = _write_job(home, search, tuned)
        report = _fit(job, engine, echo)
        predictions, page = home / "field.zarr", home / "report.html"
        shutil.rmtree(predictions, ignore_errors=True)
        points = predict(job.model, home / "grid.zarr", predictions, engine=engine)
        scores = score(job.model, home / "drifters.zarr", engine=engine)
    echo(f"predict  {points:,} grid points -> {predictions.name}")
    echo(f"score    on the {scores.rows:,} rows fitted: R2 {scores.r2:.3f}, RMSE {scores.rmse:.3f} m/s")
    dataset = open_dataset(home / "drifters.zarr")
    write_report(
        job.model,
        page,
        observations=dataset.read(0, dataset.n),
        candidates=_candidates(search, tuned),
        title="Surface currents of the northern Gulf of Mexico (GLAD drifters)",
    )
    share, lengthscale = search.kernels[tuned.trial.job]
    result = DemoResult(
        directory=home, job=home / "JOB.yaml", model=Path(report.model), predictions=predictions, page=page,
        rows=rows, kfold_rmse=math.sqrt(report.table[0]["value"]), rmse=scores.rmse, r2=scores.r2,
        lengthscale=lengthscale, curl_share=share, ridge=report.ridge, seconds=time.perf_counter() - began,
    )  # fmt: skip
    _say_where(result, echo)
    return result


def _claim(directory: Path) -> Path:
    """The directory, made and marked as the demo's."""
    home = directory.resolve()
    if home.is_file() or (home.is_dir() and any(home.iterdir()) and not (home / MARK).exists()):
        raise InputError(f"{directory}: holds something else than an earlier demo; name a new or an empty directory")
    write_atomic(home / MARK, [b"made by `dorff demo`, which replaces what is here\n"], sync=False)
    return home


def _ingest(home: Path, echo: Echo) -> int:
    """The drifters and the grid as CSV files and as Zarr groups, made anew; the number of drifters' rows."""
    shipped = files("dorff") / "demo_data"
    write_atomic(home / "drifters.csv", [(shipped / "glad.csv").read_bytes()], sync=False)
    write_atomic(home / "SOURCE.md", [(shipped / "README.md").read_bytes()], sync=False)
    sides = json.loads((shipped / "grid.json").read_bytes())
    axes = [np.linspace(sides[name]["low"], sides[name]["high"], sides[name]["points"]) for name in INPUTS]
    points = np.stack([part.ravel() for part in np.meshgrid(*axes)], axis=1)
    lines = [",".join(INPUTS), *(f"{x!r},{y!r}" for x, y in points.tolist())]
    write_atomic(home / "grid.csv", ["\n".join([*lines, ""]).encode()], sync=False)
    store, grid = home / "drifters.zarr", home / "grid.zarr"
    for place in (store, grid):
        shutil.rmtree(place, ignore_errors=True)
    rows = ingest([home / "drifters.csv"], store, inputs=INPUTS, targets=TARGETS, shard_rows=SHARD_ROWS)
    ingest([home / "grid.csv"], grid, inputs=INPUTS, targets=())
    echo(f"data     {rows:,} velocities of GLAD surface drifters, northern Gulf of Mexico, 2012 (see SOURCE.md)")
    echo(f"ingest   drifters.csv -> drifters.zarr, {-(-rows // SHARD_ROWS)} shards of {SHARD_ROWS} rows")
    return rows


def _description(share: float, lengthscale: float, ridge: Sequence[float] | float, count: int) -> dict[str, Any]:
    """What JOB.yaml says. Times s^2, curl-free and divergence-free kernels are I at 0, so that shares are shares."""
    ridges, scalar = np.asarray(ridge).tolist(), {"type": "gaussian", "lengthscale": lengthscale}
    parts = {"curl_free": share, "divergence_free": 1.0 - share}
    terms = [
        {"weight": round(part * lengthscale**2, 9), "kernel": {"type": kind, "scalar": dict(scalar)}}
        for kind, part in parts.items()
        if part > 0
    ]
    return {
        "data": {"store": "drifters.zarr", "inputs": "x", "targets": "y"},
        "kernel": {"type": "sum", "terms": terms},
        "features": {"count": count, "sampler": {"type": "orthogonal"}, "seed": 0},
        "solve": {"ridge": ridges, "select": "kfold", "folds": {"count": 5, "by": "rows"}},
        "cluster": {"type": "local", "workers": 2, "memory": "2GiB"},
        "state": "state",
        "model": "model",
    }


def _choose(jobs: Sequence[Job], search: Search, engine: Engine, echo: Echo, progress: Progress | None) -> TuneResult:
    echo(
        f"tune     5-fold (rows): {len(search.lengthscales)} length-scales x {len(search.shares)} mixtures of "
        f"curl-free and divergence-free x {len(search.ridges)} ridges, {search.features} features"
    )
    began = time.perf_counter()
    tuned = tune(jobs, engine=engine, progress=progress)
    echo(
        f"         {len(tuned.table)} fits from {tuned.passes} passes over the data, "
        f"{time.perf_counter() - began:.1f} s; best RMSE (m/s) of each mixture:"
    )
    for share in search.shares:
        trials = [trial for trial in tuned.table if search.kernels[trial.job][0] == share]
        best = min(trials, key=lambda trial: trial.value)
        echo(
            f"           {_name(share):36} {math.sqrt(best.value):.4f}  "
            f"(length-scale {search.kernels[best.job][1]:g} km, ridge {best.ridge:g})"
        )
    return tuned


def _name(share: float) -> str:
    if share in (0.0, 1.0):
        return "curl-free alone" if share else "divergence-free alone"
    return f"{share:g} curl-free + {1 - share:g} div.-free"


def _candidates(search: Search, tuned: TuneResult) -> list[Candidate]:
    names = [f"{_name(share)}, {lengthscale:g} km" for share, lengthscale in search.kernels]
    scores = [[(one.ridge, one.value) for one in tuned.table if one.job == number] for number in range(len(names))]
    return [Candidate(name, tuple(pairs)) for name, pairs in zip(names, scores, strict=True)]


def _write_job(home: Path, search: Search, tuned: TuneResult) -> Job:
    share, lengthscale = search.kernels[tuned.trial.job]
    text = yaml.safe_dump(_description(share, lengthscale, tuned.trial.ridge, search.features), sort_keys=False)
    head = "# The best of what `dorff demo` tried. `dorff fit` with this file fits it again.\n"
    write_atomic(home / "JOB.yaml", [(head + text).encode()], sync=False)
    return load_job(home / "JOB.yaml")


def _fit(job: Job, engine: Engine, echo: Echo) -> FitReport:
    costs = make_plan(job).costs
    echo(
        f"plan     the best of them: {costs.m} features, {costs.leaves} leaf, {costs.peak_bytes / 2**20:,.0f} MiB "
        f"at the peak of all processes, {costs.disk_bytes / 2**20:,.0f} MiB of disk, {costs.flops / 1e9:.1f} Gflop"
    )
    report = fit(job, engine=engine)
    peak = "" if report.peak_bytes is None else f", peak {report.peak_bytes / 2**20:,.0f} MiB"
    echo(
        f"fit      {report.leaves_reused} of {report.leaves_reused + report.leaves_computed} leaf reused, "
        f"{report.rows_used:,} rows used, {report.rows_dropped} dropped{peak}, "
        f"condition {report.condition:.1e} ({report.rung}, {report.status})"
    )
    return report


def _counting(progress: Progress | None, *, passes: int) -> Progress | None:
    """Turns the rows of one pass after another into rows of all passes."""
    if progress is None:
        return None
    finished = 0

    def count(rows: int, total: int) -> None:
        nonlocal finished
        progress(finished * total + rows, passes * total)
        finished += rows == total

    return count


def _say_where(result: DemoResult, echo: Echo) -> None:
    echo(
        f"chosen   {_name(result.curl_share)}, length-scale {result.lengthscale:g} km, ridge {result.ridge:g}: "
        f"5-fold RMSE {result.kfold_rmse:.4f} m/s on rows not seen"
    )
    echo(f"done     {result.seconds:.1f} s")
    with space_on(result.directory):
        size = sum(path.stat().st_size for path in result.directory.rglob("*") if path.is_file())
    echo(f"look at  {result.page}   ({size / 2**20:,.0f} MiB in {result.directory})")
    echo(f"again    dorff fit {result.job}")
