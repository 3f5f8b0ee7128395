"""What a job will do and cost, computed before a row is read; and the constants it freezes from its first rows."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import zlib
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import psutil

from dorff import frequencies, kernels
from dorff.data import Dataset, open_dataset
from dorff.errors import DoesNotFitError, InputError
from dorff.features import FeatureMap, Recipe
from dorff.kernels.scalar import FloatArray
from dorff.leaf import FoldRule, Pass, freeze, frozen_hash, load_pass
from dorff.moments import syrk
from dorff.solvers import MOST_FACTORS, spread
from dorff.spec import Job, LocalCluster, RemoteCluster
from dorff.threads import pinned

MiB: Final = 2**20
# Resident bytes of a process before it has data: interpreter, libraries, compiled loops, Dask's own, and room for
# what the allocator keeps. Of a worker's, SHARED_BYTES at least are library pages that the driver has counted.
DRIVER_BYTES: Final = 250 * MiB
WORKER_BYTES: Final = 250 * MiB
SHARED_BYTES: Final = 80 * MiB
# A leaf's rows: about 0.8 s of `syrk` for the first, within bounds; overheads are a few hundredths of that.
LEAF_FLOPS: Final = 4e10
SMALLEST_LEAF, LARGE_FIRST_LEAF, LARGEST_LEAF = 2**14, 2**17, 2**18
# Rows for centres, and for the median distance: few, so that a data set that grows had them from the start. Scales
# (`standardize`) take the first leaf, up to so many bytes.
SMALL_SAMPLE, MEDIAN_SAMPLE, SAMPLE_BYTES = 256, 1000, 16 * MiB


@final
@dataclass(frozen=True)
class Leaf:
    """Rows start..stop-1: a run of whole shards, the unit of work."""

    number: int
    start: int
    stop: int


@final
@dataclass(frozen=True)
class Costs:
    """What a job needs. Bytes are peaks: of one worker, of all processes together, and on disk; `kept_level` k keeps
    the moments of every 2^k leaves for later fits."""

    m: int
    leaves: int
    worker_bytes: int
    peak_bytes: int
    disk_bytes: int
    flops: float
    seconds: float
    kept_level: int


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """A job made concrete: data, kernel, leaves, costs and the question that names its moments."""

    job: Job
    dataset: Dataset
    kernel_config: dict[str, Any]
    leaves: tuple[Leaf, ...]
    question: dict[str, Any]
    costs: Costs

    @property
    def directory(self) -> Path:
        """Where the moments of this question are kept; another question has another directory."""
        text = json.dumps(self.question, sort_keys=True)
        return Path(self.job.state) / hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def shift_invariant(self) -> bool:
        """Whether the kernel sees differences of inputs alone, so that centring them changes nothing."""
        return all(base.scalar.shift_invariant for _, base in build_kernel(self.kernel_config).terms())

    def freeze(self) -> None:
        """Freeze the constants that come from data, unless they are frozen and the rows they came from unchanged."""
        name = frozen_hash(self.directory)
        if name is not None:
            sample = load_pass(self.directory, name).question["sample"]
            if sample["rows"] <= self.dataset.n and sample == _named(*self.dataset.read(0, sample["rows"])):
                return
        _freeze(self)

    def frozen(self) -> tuple[Pass, kernels.OperatorKernel]:
        """The pass and the kernel; frozen now if never before."""
        if frozen_hash(self.directory) is None:
            _freeze(self)
        name = frozen_hash(self.directory)
        assert name is not None
        this = load_pass(self.directory, name)
        return this, build_kernel(self.kernel_config, this.question["median_lengthscale"])


def make_plan(job: Job) -> Plan:
    """Plan a job without reading a row.

    Raises InputError for a job that cannot be done, DoesNotFitError for one that is too big.
    """
    dataset = open_dataset(str(job.data.store), inputs=job.data.inputs, targets=job.data.targets)
    config = _read_matrices(job.kernel.model_dump(mode="python"))
    if not dataset.n:
        raise InputError(f"{dataset.path}: has no rows to fit")
    for key, path in (("state", Path(job.state)), ("model", Path(job.model))):
        if path.exists() and not path.is_dir():
            raise InputError(f"{key}: {path} is a file; name a folder, which need not exist yet")
    kernel = build_kernel(config)
    recipe = _recipe(kernel, dataset, job)
    q, m = dataset.q, recipe.m
    leaves = leaf_bounds(dataset.n, dataset.shard_rows, m + 1 + q)
    folds = FoldRule()
    if job.solve.select == "kfold":
        folds = FoldRule(job.solve.folds.count, job.solve.folds.by == "rows", job.features.seed)
        if not folds.by_rows and len(leaves) < folds.count:
            raise InputError(
                f"solve.folds: {folds.count} folds of leaves asked for, but {dataset.path} has only {len(leaves)} "
                "(a leaf is a run of whole shards); use by: rows, or fewer folds"
            )
    block = block_rows(m + 1 + q)
    question = {
        "format": 1, "store": str(Path(dataset.path).resolve()), "rows": dataset.rows_spec(),
        "recipe": recipe.question(), "sampler": recipe.sampler.config(), "count": job.features.count,
        "seed": job.features.seed, "median": config if "median" in json.dumps(config) else None,
        "standardize": job.solve.standardize, "one_scale": kernel.vector_field, "nan": job.data.nan,
        "folds": asdict(folds), "block_rows": block,
        "read_rows": max(dataset.unit_rows, block // dataset.unit_rows * dataset.unit_rows),
    }  # fmt: skip
    plan = Plan(job, dataset, config, leaves, question, _costs(job, dataset, leaves, recipe, question))
    _refuse_what_does_not_fit(plan)
    return plan


def leaf_bounds(n: int, shard_rows: int, width: int) -> tuple[Leaf, ...]:
    """Cut n rows into leaves of whole shards. A leaf's bounds depend on its number, the shard size and the width
    alone: small first, so that small data spread over workers, then growing with the number."""
    base = min(max(LEAF_FLOPS / width**2, SMALLEST_LEAF), LARGE_FIRST_LEAF)
    leaves, start, number = [], 0, 0
    while start < n:
        rows = min(base * (1 + number / 16), LARGEST_LEAF)
        stop = start + max(1, round(rows / shard_rows)) * shard_rows
        leaves.append(Leaf(number, start, min(stop, n)))
        start, number = stop, number + 1
    return tuple(leaves)


def block_rows(width: int) -> int:
    """Rows featurized at a time: a buffer of about 16 MiB, within 256..2048 rows."""
    return int(np.clip(2**21 // width // 256 * 256, 256, 2048))


def build_kernel(config: dict[str, Any], median: dict[str, float] | None = None) -> kernels.OperatorKernel:
    """The operator kernel of a job's `kernel:`, the word median replaced by its value (1 before it is known)."""
    values = median or {}

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            found = {key: replaced(item) for key, item in value.items()}
            if found.get("lengthscale") == "median":
                found["lengthscale"] = values.get("absolute" if found["type"] == "laplacian" else "euclidean", 1.0)
            return found
        return [replaced(item) for item in value] if isinstance(value, list | tuple) else value

    return kernels.from_config(replaced(config))


def _read_matrices(config: Any) -> Any:
    """The same configuration with output matrices that are files read in."""
    if isinstance(config, dict):
        return {
            key: _read_matrix(Path(value)) if key == "matrix" and isinstance(value, str) else _read_matrices(value)
            for key, value in config.items()
        }
    return [_read_matrices(value) for value in config] if isinstance(config, list | tuple) else config


def _read_matrix(path: Path) -> list[list[float]]:
    try:
        matrix = (
            np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path, delimiter=",", ndmin=2)
        )
        rows: list[list[float]] = np.asarray(matrix, dtype=np.float64).tolist()
        return rows
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a matrix of numbers in NPY or comma-separated text ({error})") from error


def _costs(job: Job, dataset: Dataset, leaves: tuple[Leaf, ...], recipe: Recipe, question: dict[str, Any]) -> Costs:
    m, q, block, folds = recipe.m, dataset.q, question["block_rows"], question["folds"]
    width, at_once = m + 1 + q, folds["count"] if folds["by_rows"] else 1
    packed, square = 4 * width * (width + 1), 8 * width * width
    units = question["read_rows"] // dataset.unit_rows
    read = 3 * dataset.unit_bytes() * max(1, units)  # one being read, one waiting, one in use
    blocks = 8 * block * (width + 8) + 8 * recipe.numbers
    leaf = at_once * square + blocks + read
    worker = WORKER_BYTES + leaf + 16 * MiB
    workers = job.cluster.workers if isinstance(job.cluster, LocalCluster) else 1
    solving = _solve_bytes(job, dataset, recipe.kernel, m, folds["count"]) + 16 * recipe.numbers
    if job.cluster.model_dump().get("type") == "serial":
        worker, peak = DRIVER_BYTES + leaf, DRIVER_BYTES + max(leaf, solving)
    else:
        peak = DRIVER_BYTES + max(workers * (worker - SHARED_BYTES), solving)
    flops = float(dataset.n) * width * width + dataset.n * recipe.flops
    level = _kept_level(job, len(leaves), folds["count"] * packed)
    node = packed * (folds["count"] if folds["by_rows"] else min(folds["count"], 2**level))
    disk = ((len(leaves) >> level) + 2 * workers + len(leaves).bit_length()) * node + 16 * width**2
    # Measured no wider than this: the rate hardly grows beyond, the memory for it does.
    tried = min(width, 2048)
    seconds = 1.15 * flops / _syrk_rate(block_rows(tried), tried) / workers
    return Costs(m, len(leaves), worker, peak, disk, flops, seconds, level)


def _solve_bytes(job: Job, dataset: Dataset, kernel: kernels.OperatorKernel, m: int, folds: int) -> int:
    """Bytes of the driver's solve: folds and their sum, unpacked and centred moments, the system, its factor."""
    width, q = m + 1 + dataset.q, dataset.q
    bases = [base for _, base in kernel.terms()]
    shared = len(bases) == 1 and isinstance(bases[0], kernels.Decomposable)
    sample = bases[0].root(np.ones((1, dataset.d))).shape[1] if len(bases) == 1 else q
    k = m if shared else m * min(q, sample)
    many = shared or len(job.solve.ridges) > MOST_FACTORS
    system = (0 if shared else 8 * k * k) + (4 if many else 2) * 8 * k * k
    sums = 4 * width * (width + 1) * (folds + 2) + 8 * width * width + 16 * m * m
    return max(sums + system, 4 * SAMPLE_BYTES)


def _kept_level(job: Job, leaves: int, node_bytes: int) -> int:
    """The smallest k such that the kept moments, one node for 2^k leaves, take a quarter of the free disk at most."""
    budget = _free_disk(Path(job.state)) // 4
    level = 0
    while (leaves >> level) * node_bytes > budget and leaves >> level > 1:
        level += 1
    return level


def _free_disk(path: Path) -> int:
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


@lru_cache(maxsize=16)
def _syrk_rate(block: int, width: int) -> float:
    """Flops a second of one thread's `syrk` at this shape, the best of three short tries."""
    Z, square = np.ones((block, width)), np.zeros((width, width), order="F")
    best = np.inf
    with pinned():
        for _ in range(3):
            began = time.perf_counter()
            syrk(Z, square)
            best = min(best, time.perf_counter() - began)
    return float(block * width * width / best)


def _refuse_what_does_not_fit(plan: Plan) -> None:
    costs, cluster = plan.costs, plan.job.cluster
    if not isinstance(cluster, RemoteCluster) and costs.worker_bytes > 0.95 * cluster.memory:
        raise DoesNotFitError(
            f"a worker needs {costs.worker_bytes / MiB:.0f} MiB but cluster.memory is {cluster.memory / MiB:.0f} MiB; "
            f"raise it to {costs.worker_bytes / 0.94 / MiB:.0f}MiB or lower features.count (now {costs.m})"
        )
    machine = psutil.virtual_memory().total
    if costs.peak_bytes > machine:
        raise DoesNotFitError(
            f"the job needs {costs.peak_bytes / MiB:.0f} MiB at its peak, this machine has {machine / MiB:.0f} MiB; "
            f"lower features.count (now {costs.m}) or cluster.workers"
        )
    held = sum(file.stat().st_size for file in (plan.directory / "nodes").glob("*.moments"))
    free = _free_disk(Path(plan.job.state)) + held
    if costs.disk_bytes > free:
        raise DoesNotFitError(
            f"{plan.job.state}: the moments need {costs.disk_bytes / MiB:.0f} MiB of disk, {free / MiB:.0f} MiB "
            "are free; free some, or put `state` on a larger disk"
        )


def _named(X: FloatArray, Y: FloatArray) -> dict[str, int]:
    """What the frozen constants were computed from: how many first rows, and a checksum of their values."""
    return {"rows": len(X), "crc": zlib.crc32(Y.data, zlib.crc32(X.data))}


def _freeze(plan: Plan) -> None:
    """Compute and write the constants that the pass needs from data, from its first rows."""
    dataset, question, job = plan.dataset, dict(plan.question), plan.job
    rows = SMALL_SAMPLE
    if job.solve.standardize:
        rows = min(plan.leaves[0].stop, max(SMALL_SAMPLE, SAMPLE_BYTES // (8 * (dataset.d + dataset.q))))
    elif question["median"]:
        rows = MEDIAN_SAMPLE
    X, Y = dataset.read(0, min(dataset.n, rows))
    question["sample"] = _named(X, Y)
    good = np.isfinite(X).all(axis=1) & np.isfinite(Y).all(axis=1)
    if not good.any():
        raise InputError(f"{dataset.path}: none of the first {len(X)} rows is free of NaN and infinity; mend the data")
    X, Y = X[good], Y[good]
    scale = np.ones(dataset.d)
    # Features that see more of the inputs than their differences see them as they are, unless scaled.
    center = X.mean(axis=0) if plan.shift_invariant or job.solve.standardize else np.zeros(dataset.d)
    if job.solve.standardize:
        scale = spread(X.var(axis=0), together=question["one_scale"])
    question["median_lengthscale"] = None
    if question["median"]:
        scaled = (X - center) / scale
        question["median_lengthscale"] = {
            "euclidean": kernels.median_lengthscale(scaled),
            "absolute": kernels.median_lengthscale(scaled, absolute=True),
        }
    kernel = build_kernel(plan.kernel_config, question["median_lengthscale"])
    drawn = _recipe(kernel, dataset, job).draw(question["seed"])
    freeze(plan.directory, question, FeatureMap(drawn.phi, center, scale), Y.mean(axis=0), drawn.log_density)


def _recipe(kernel: kernels.OperatorKernel, dataset: Dataset, job: Job) -> Recipe:
    fixed = kernel.fix(dataset.d, dataset.q, np.eye(dataset.q))
    chosen = job.features.sampler.model_dump() if "sampler" in job.features.model_fields_set else None
    sampler = frequencies.from_config(chosen) if chosen else frequencies.default_sampler(kernel)
    return Recipe(fixed, sampler, dataset.d, dataset.q, job.features.count, job.solve.intercept)
