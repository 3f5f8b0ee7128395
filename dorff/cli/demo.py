"""The whole job on real data: the ocean drifters that ship with dorff."""

import io
import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np
import yaml

from dorff.data import ingest, open_dataset
from dorff.engine import Engine, open_engine
from dorff.errors import InputError
from dorff.fit import FitReport, Progress, fit
from dorff.moments import FloatArray, IntArray
from dorff.plan import make_plan
from dorff.predict import predict, score
from dorff.report import write_report
from dorff.spec.job import Job
from dorff.spec.reader import load_job
from dorff.store import space_on, write_atomic

MARK: Final = ".dorff-demo"
INPUTS: Final = ("x_km", "y_km")
TARGETS: Final = ("u_m_s", "v_m_s")
GROUPS: Final = "track"
JUMP_KM: Final = 20.0  # rows of a track lie within 12 km of the next, tracks 24 km and more apart
SHARD_ROWS: Final = 256

Echo = Callable[[str], None]


@dataclass(frozen=True)
class Search:
    """What is tried: length-scales (km), shares of the curl-free term, ridges; and with how many features."""

    lengthscales: tuple[float, ...] = (30.0, 60.0, 90.0)
    shares: tuple[float, ...] = (0.0, 0.1, 0.3, 1.0)
    ridges: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    features: int = 1024

    @property
    def kernels(self) -> list[tuple[float, float]]:
        return [(share, lengthscale) for lengthscale in self.lengthscales for share in self.shares]


DEFAULT: Final = Search()


@dataclass(frozen=True)
class DemoResult:
    """Where everything is, and the numbers. RMSE is in m/s: `kfold_rmse` of tracks not seen, `rmse` of rows fitted.
    `warnings` are those of the fit."""

    directory: Path
    job: Path
    model: Path
    predictions: Path
    page: Path
    rows: int
    tracks: int
    kfold_rmse: float
    rmse: float
    r2: float
    lengthscale: float
    curl_share: float
    ridge: float
    seconds: float
    warnings: tuple[str, ...]


def run_demo(
    directory: Path | None = None, *, echo: Echo = print, progress: Progress | None = None, search: Search = DEFAULT
) -> DemoResult:
    """Ingest, plan, choose, fit, predict, score and report, all in `directory` (`dorff-demo` if left out). A directory
    of an earlier demo is used again: what it holds is replaced, or gone on with. Raises InputError for a directory that
    holds anything else. `progress` is told the rows done."""
    began = time.perf_counter()
    home = _claim(Path("dorff-demo") if directory is None else Path(directory))
    tracks = track_numbers(_shipped_rows())
    rows = _ingest(home, tracks, echo)
    job = _write_job(home, search)
    with open_engine(job.cluster) as engine:
        report = _fit(job, search, engine, echo, progress)
        predictions, page = home / "field.zarr", home / "report.html"
        shutil.rmtree(predictions, ignore_errors=True)
        points = predict(job.model, home / "grid.zarr", predictions, engine=engine)
        scores = score(job.model, home / "drifters.zarr", engine=engine)
    echo(f"predict  {points:,} grid points -> {predictions.name}")
    echo(f"score    on the {scores.rows:,} rows fitted: R2 {scores.r2:.3f}, RMSE {scores.rmse:.3f} m/s")
    dataset = open_dataset(home / "drifters.zarr")
    title = "Surface currents of the northern Gulf of Mexico (GLAD drifters)"
    write_report(job.model, page, observations=dataset.read(0, dataset.n), title=title)
    share, lengthscale = search.kernels[report.kernel]
    result = DemoResult(
        directory=home,
        job=home / "JOB.yaml",
        model=Path(report.model),
        predictions=predictions,
        page=page,
        rows=rows,
        tracks=len(np.unique(tracks)),
        kfold_rmse=math.sqrt(min(row["value"] for row in report.table)),
        rmse=scores.rmse,
        r2=scores.r2,
        lengthscale=lengthscale,
        curl_share=share,
        ridge=report.ridge,
        seconds=time.perf_counter() - began,
        warnings=tuple(report.warnings),
    )
    chosen = f"{_name(share)}, length-scale {lengthscale:g} km, ridge {result.ridge:g}"
    echo(f"chosen   {chosen}: 5-fold RMSE {result.kfold_rmse:.4f} m/s on tracks not seen")
    echo(f"done     {result.seconds:.1f} s")
    with space_on(result.directory):
        size = sum(path.stat().st_size for path in result.directory.rglob("*") if path.is_file())
    echo(f"look at  {result.page}   ({size / 2**20:,.0f} MiB in {result.directory})")
    echo(f"again    dorff fit {result.job}")
    return result


def _claim(directory: Path) -> Path:
    """The directory, made and marked as the demo's."""
    home = directory.resolve()
    if home.is_file() or (home.is_dir() and any(home.iterdir()) and not (home / MARK).exists()):
        raise InputError(f"{directory}: holds something else than an earlier demo; name a new or an empty directory")
    write_atomic(home / MARK, [b"made by `dorff demo`, which replaces what is here\n"], sync=False)
    return home


def track_numbers(rows: FloatArray) -> IntArray:
    """Return the track that each row (n, 4) of the drifters is on: one ends where positions jump."""
    steps = np.hypot(*np.diff(rows[:, :2], axis=0).T)
    return np.concatenate([[0], np.cumsum(steps > JUMP_KM)])


def _shipped_rows() -> FloatArray:
    """Positions and velocities (n, 4) of the drifters."""
    text = (files("dorff") / "demo_data" / "glad.csv").read_text(encoding="utf-8")
    return np.loadtxt(io.StringIO(text), delimiter=",", skiprows=1)


def _ingest(home: Path, tracks: IntArray, echo: Echo) -> int:
    """The drifters and the grid as CSV files and as Zarr groups, made anew; the number of drifters' rows."""
    shipped = files("dorff") / "demo_data"
    head, *lines = (shipped / "glad.csv").read_text(encoding="utf-8").splitlines()
    numbered = [f"{line},{track}" for line, track in zip(lines, tracks.tolist(), strict=True)]
    text = "\n".join([f"{head},{GROUPS}", *numbered, ""])
    write_atomic(home / "drifters.csv", [text.encode()], sync=False)
    write_atomic(home / "SOURCE.md", [(shipped / "README.md").read_bytes()], sync=False)
    sides = json.loads((shipped / "grid.json").read_bytes())
    axes = [np.linspace(sides[name]["low"], sides[name]["high"], sides[name]["points"]) for name in INPUTS]
    points = np.stack([part.ravel() for part in np.meshgrid(*axes)], axis=1)
    places = [",".join(INPUTS), *(f"{x!r},{y!r}" for x, y in points.tolist())]
    write_atomic(home / "grid.csv", ["\n".join([*places, ""]).encode()], sync=False)
    store, grid = home / "drifters.zarr", home / "grid.zarr"
    for place in (store, grid):
        shutil.rmtree(place, ignore_errors=True)
    source = home / "drifters.csv"
    rows = ingest([source], store, inputs=INPUTS, targets=TARGETS, groups=GROUPS, shard_rows=SHARD_ROWS)
    ingest([home / "grid.csv"], grid, inputs=INPUTS, targets=())
    what = f"{rows:,} velocities on {len(np.unique(tracks))} tracks of GLAD surface drifters"
    echo(f"data     {what}, northern Gulf of Mexico, 2012 (see SOURCE.md)")
    echo(f"ingest   drifters.csv -> drifters.zarr, {-(-rows // SHARD_ROWS)} shards of {SHARD_ROWS} rows")
    return rows


def _write_job(home: Path, search: Search) -> Job:
    """The job as a file, with every kernel that is tried, as `dorff fit` takes it; and read back."""
    described = []  # times s^2, curl-free and divergence-free kernels are I at 0, so that shares are shares
    for share, lengthscale in search.kernels:
        scalar = {"type": "gaussian", "lengthscale": lengthscale}
        terms = [
            {"weight": round(part * lengthscale**2, 9), "kernel": {"type": kind, "scalar": dict(scalar)}}
            for kind, part in (("curl_free", share), ("divergence_free", 1.0 - share))
            if part > 0
        ]
        described.append({"type": "sum", "terms": terms})
    folds = {"count": 5}  # by groups, the tracks, as the data have them
    job = {
        "data": {"store": "drifters.zarr", "inputs": "x", "targets": "y"},
        "kernel": described,
        "features": {"count": search.features, "sampler": {"type": "orthogonal"}, "seed": 0},
        "solve": {"ridge": list(search.ridges), "select": "kfold", "folds": folds, "standardize": False},
        "cluster": {"type": "local", "workers": 2, "memory": "2GiB"},
        "state": "state",
        "model": "model",
    }
    head = "# What `dorff demo` fits: Helmholtz kernels of several weights and length-scales, the best of which wins.\n"
    write_atomic(home / "JOB.yaml", [(head + yaml.safe_dump(job, sort_keys=False)).encode()], sync=False)
    return load_job(home / "JOB.yaml")


def _fit(job: Job, search: Search, engine: Engine, echo: Echo, progress: Progress | None) -> FitReport:
    costs = make_plan(job).costs
    peak, disk = (f"{count / 2**20:,.0f} MiB" for count in (costs.peak_bytes, costs.disk_bytes))
    needs = f"{peak} at the peak of all processes, {disk} of disk, {costs.flops / 1e9:.1f} Gflop"
    echo(f"plan     {costs.m} features, {costs.leaves} leaf, {needs}")
    report = fit(job, engine=engine, progress=progress)
    leaves = f"{report.leaves_reused} of {report.leaves_reused + report.leaves_computed} leaf reused"
    rows = f"{report.rows_used:,} rows used, {report.rows_dropped} dropped"
    echo(f"fit      {leaves}, {rows}, condition {report.condition:.1e} ({report.rung}, {report.status})")
    mixtures = f"{len(search.shares)} mixtures of curl-free and divergence-free"
    tried = f"{len(search.lengthscales)} length-scales x {mixtures} x {len(search.ridges)} ridges"
    for warning in report.warnings:
        echo(f"warning  {warning}")
    echo(f"choice   5-fold ({report.held_by}: tracks): {tried}, from one pass; best RMSE (m/s) of each mixture:")
    for share in search.shares:
        trials = [row for row in report.table if search.kernels[row["candidate"]][0] == share]
        best = min(trials, key=lambda row: float(row["value"]))
        at = f"length-scale {search.kernels[best['candidate']][1]:g} km, ridge {best['ridge']:g}"
        echo(f"           {_name(share):36} {math.sqrt(best['value']):.4f}  ({at})")
    return report


def _name(share: float) -> str:
    if share in (0.0, 1.0):
        return "curl-free alone" if share else "divergence-free alone"
    return f"{share:g} curl-free + {1 - share:g} divergence-free"
