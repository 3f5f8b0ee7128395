"""What a job needs, computed before the pass: memory, disk, flops, seconds; and what will not fit refused."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import numpy as np
import psutil

from dorff import __version__, solvers
from dorff.data import Dataset
from dorff.data.dataset import OPENING_BYTES
from dorff.errors import DoesNotFitError, InputError
from dorff.features import Recipe
from dorff.features.lengthscale_search import FEATURES, ROWS
from dorff.frequencies.landmarks import MAX_ROWS, PROPOSALS
from dorff.kernels import Decomposable, MultiView, OperatorKernel
from dorff.model import evaluation_bytes, most_rows, operator_weights
from dorff.moments import MOST_PATTERNS, Kind
from dorff.passes import Config, PassSpec
from dorff.passes.blocks import Leaf, most_sums
from dorff.plan.graph_sizes import GiB, MiB
from dorff.plan.lattice import LatticeCosts, lattice_costs, own_recipes
from dorff.plan.lengthscale import tunes
from dorff.plan.manifold_terms import ManifoldTerm, TermCosts, term_costs, weight_grid
from dorff.plan.routes import Means, Route, Shape, Way, choose_route, evaluations, points_of, steps_of
from dorff.plan.sampled import RUN_ROWS, RUNS, left_out_runs
from dorff.plan.seconds import INVERSE, MIXED, NOMINAL, QR, SEARCH, START, START_WORKERS, Pace, pace_bytes, solve_work
from dorff.plan.sharing import loss_of
from dorff.solvers.by_loss import laplace_bytes
from dorff.spec.checks import AUTO
from dorff.spec.job import Job
from dorff.storage.files import free_bytes
from dorff.storage.location import is_remote, locate

# Resident bytes of a process before it has data: interpreter, libraries, loops, Dask's own. The most that was measured
# of any sampler, on a machine's first run, which compiles the loops, was 275 of a serial fit, 293 of the driver of
# workers and what Python starts beside them, 245 of a worker; 228, 250 and 229 once they are compiled. Of a worker's,
# SHARED_BYTES at least are library pages that the driver has counted; 114 were measured.
DRIVER_BYTES: Final = 300 * MiB
WORKER_BYTES: Final = 250 * MiB
SHARED_BYTES: Final = 100 * MiB
SMALL_POSTERIOR: Final = 256 * MiB  # that a model may grow by without being asked to
TUNING_BYTES: Final = 96 * MiB  # of finding a length-scale
ESTIMATES: Final = {"gcv": 1.0, "evidence": 5.0}  # of a trial: of evidences one in each of five steps to the noise

SAMPLE_BYTES: Final = 16 * MiB  # of the rows that constants are frozen from


@dataclass(frozen=True)
class Costs:
    """What a job needs. Bytes are peaks: of one worker, of all processes together, and on disk; `kept_level` k keeps
    the moments of every 2^k leaves for later fits. `rank` r is the largest of the kernels; `exact_is_cheaper` says
    that m r >= p n (Minh 2016, eq. 75): the exact model's system is then the smaller one. `flops` and `seconds` are
    those of all `passes`, `route` is how the system is solved and `reason` why so; `others` are the ways that the job
    may ask for instead. `fewer` names what of a graph makes the largest tasks large, "" where other tasks are the
    largest. `pass_seconds` are those of one pass: by streaming a further one, else that of all rows."""

    m: int
    rank: int
    exact_is_cheaper: bool
    leaves: int
    worker_bytes: int
    peak_bytes: int
    disk_bytes: int
    flops: float
    seconds: float
    kept_level: int
    route: str
    reason: str
    passes: int
    fewer: str = ""
    others: tuple[Way, ...] = ()
    pass_seconds: float = 0.0

    def of_passes(self, passes: float) -> Self:
        """The costs of a fit by streaming that takes so many passes, or of one whose sums miss such a share of rows."""
        seconds = self.seconds + (passes - self.passes) * self.pass_seconds
        return replace(self, passes=math.ceil(passes), seconds=seconds, flops=passes / self.passes * self.flops)

    @property
    def leaf_seconds(self) -> float:
        """Seconds that a usual core takes for a leaf."""
        return self.flops / NOMINAL / self.passes / self.leaves

    def cluster_for(self, word: str, job: Job) -> Config:
        """What `cluster` of this job may say, of type slurm or kubernetes, to do its work in an hour or so: two leaves
        a worker at least, memory with a tenth to spare, twice the time that is expected, a day at most."""
        seconds = self.flops / NOMINAL
        workers = max(1, min(math.ceil(seconds / 3600), self.leaves // 2))
        quarters = min(max(1, math.ceil(2 * max(seconds / workers, self.leaf_seconds) / 900)), 96)
        more = {"walltime": f"{quarters // 4:02}:{quarters % 4 * 15:02}:00"}
        if word == "kubernetes":
            more = {"image": f"registry.example.org/dorff:{__version__}"}
            more |= {} if is_remote(job.state) else {"claim": "dorff"}
            more |= {"env_from": "dorff-s3"} if any(map(is_remote, (job.data.store, job.state, job.model))) else {}
        return {"type": word, "workers": workers, "memory": f"{math.ceil(1.1 * self.worker_bytes / GiB)}GiB", **more}


def estimate(
    job: Job,
    dataset: Dataset,
    leaves: Sequence[Leaf],
    recipe: Recipe,
    candidates: Sequence[OperatorKernel],
    spec: PassSpec,
    terms: Sequence[ManifoldTerm] = (),
) -> Costs:
    """The costs of a job whose features are those of `recipe` and whose kernel is one of `candidates`."""
    fixed = [kernel.fix(dataset.d, recipe.p, np.eye(recipe.p)) for kernel in candidates]
    of_sums = spec.sums is Kind.TOEPLITZ  # features of its own for each kernel
    each = own_recipes(recipe, fixed) if of_sums else [recipe] * len(fixed)
    m, q = max(one.m for one in each), dataset.q
    patterns = min(MOST_PATTERNS, 2 ** min(q, 30) - 1) if spec.partial and dataset.labels is None else 1
    width, qr, folds = m + 1 + q, spec.sums is Kind.TRIANGLE, spec.folds.count
    workers = job.cluster.workers
    light = lattice_costs(each, spec) if of_sums else None
    packed = 4 * width * (width + 1) if light is None else light.packed
    leaf, read = _leaf_bytes(dataset, recipe, spec, patterns, light)
    sizes = [_size(job, kernel, one.m, dataset, patterns, folds) for kernel, one in zip(fixed, each, strict=True)]
    # Beside the system: features, and of classes held-out rows' decision values and copies of them.
    beside = _beside_bytes(job, dataset, recipe) + (sum(map(_own_bytes, each)) if of_sums else 0)
    runs = left_out_runs(0, dataset.rows, dataset.d + q, most_left_out(job))
    rows = sum(stop - start for start, stop in runs) if any(leaves_out(job, size.k) for size in sizes) else 0
    left_out = 24 * rows * (dataset.d + q) + (evaluation_bytes(m) if rows else 0)
    solving = beside + left_out + max(_solve_bytes(job, *one, qr=qr) for one in zip(fixed, sizes, strict=True))
    solving += packed * patterns * max(2 * folds, folds + 2) if of_sums else 0
    level, disk = _disk_bytes(job, len(leaves), spec, patterns, packed, workers)
    rank = max(size.r for size in sizes)
    flops = (3.0 if qr else 1.0) * dataset.rows * width * width + dataset.rows * recipe.flops
    if light is not None:
        flops = dataset.rows * light.seconds * NOMINAL
    sums = term_costs(terms, m, recipe.flops, workers)
    fewer = sums.fewer if sums.task_bytes + 8 * recipe.numbers > leaf else ""
    leaf, solving = max(leaf, sums.task_bytes + 8 * recipe.numbers), solving + sums.held_bytes
    disk, flops = disk + sums.disk_bytes, flops + sums.flops
    measured = light is None and (recipe.lattice or not recipe.on_lattice)
    pace = Pace.of(recipe, width) if measured else Pace.nominal(m, recipe.flops)
    keeps = any(keeps_posterior(job, _unknowns(job, *one)) for one in zip(fixed, sizes, strict=True))
    alone = any(isinstance(one, MultiView) or solvers.learned_term(one) is not None for one in candidates)
    path = not (alone or qr or job.manifold or job.solve.observe)  # else each fold needs factors of its own
    tried = rows if job.solve.select == "loo" else 0
    work = solve_work(job, sizes, len(weight_grid(terms)), keeps=keeps, path=path, rows=tried)
    largest = solvers.Size(m, q, rank, any(size.coupled for size in sizes), patterns, folds)
    shape = Shape(
        dataset.rows, largest, len(leaves), recipe.numbers, recipe.flops, leaf + 16 * MiB, solving, disk, read, beside,
        work, QR if qr else MIXED if spec.mixed else 1.0, *iterations(job, len(fixed), folds), light,
        solvers.probe_bytes(largest) * (job.solve.select in ("evidence", "gcv")), job.posteriors,
        *(evaluations(job, q, folds) if job.solve.other_loss else (0, 0, 0, 0)), steps_of(job, dataset),
        points_of(job, q) if job.solve.other_loss else 1, tied_bytes=_tied_bytes(job, largest),
    )  # fmt: skip
    route = _route(job, shape, pace, workers, candidates)
    if qr:
        route = Route(route.ways[0], "direct, by the triangle of a QR of the features", ())
    way, serial = route.way, job.cluster.in_driver
    if route.name == "streaming":  # workers and driver hold theirs at once
        leaf, disk, flops = way.worker_bytes, way.disk_bytes, way.passes * way.flops
    elif job.solve.other_loss:
        leaf, disk, flops = max(leaf, way.worker_bytes), max(disk, way.disk_bytes), way.flops + sums.flops
        solving = max(solving, way.driver_bytes)
    worker = (DRIVER_BYTES if serial else WORKER_BYTES + 16 * MiB) + leaf
    here = workers if job.cluster.on_this_machine else 1
    all_workers = leaf if serial else here * (worker - SHARED_BYTES)
    sample = min(SAMPLE_BYTES, 8 * dataset.rows * (dataset.d + q))  # that tells constants
    least = max(
        4 * sample, TUNING_BYTES if spec.tuning else 0, pace_bytes(recipe, width), landmark_bytes(recipe, dataset.rows)
    )
    seconds = way.seconds + _beside_seconds(job, dataset, shape, pace, sums, spec)
    if not terms and job.cluster.of_work(flops / NOMINAL) is not job.cluster:
        seconds -= START_WORKERS - START
    driver = max(solving if route.name == "direct" else way.driver_bytes, least)
    together = (route.name == "streaming" or job.solve.other_loss) and not job.solve.descends
    peak = DRIVER_BYTES + (all_workers + driver if together else max(all_workers, driver))
    return Costs(
        m, rank, m * rank >= q * dataset.rows, len(leaves), worker, peak, disk, flops, seconds, level,
        route.name, route.reason, way.passes + sum(len(term.sources) for term in terms), fewer,
        tuple(one for one in route.ways if one.name != way.name and not one.against), way.pass_seconds,
    )  # fmt: skip


def iterations(job: Job, kernels: int, folds: int) -> tuple[float, float]:
    """How many systems of all features are solved, and how many scores estimated; one of fewer by their square."""
    counts = np.array(job.features.counts)
    trials = len(job.solve.ridges) * kernels * float(np.sum((counts / counts.max()) ** 2))
    each = ESTIMATES.get(job.solve.select, 0.0) * (trials > 1)
    estimates = each * trials + ESTIMATES["evidence"] * (job.posteriors + _more_folds(job, folds))
    return 1.0 + folds * trials * (job.solve.select == "kfold"), estimates


def _more_folds(job: Job, folds: int) -> int:
    """How many folds beside the first conformal bands may hold out: all, where groups or blocks are exchangeable.

    Whether rows are held out in blocks is not known before they are read, if the job leaves it to them."""
    if not job.solve.conformal or job.criterion != "kfold" or job.solve.folds.by in ("rows", AUTO):
        return 0
    return folds - 1


def _beside_seconds(job: Job, dataset: Dataset, shape: Shape, pace: Pace, sums: TermCosts, spec: PassSpec) -> float:
    """What no way of solving spares: to start, to find length-scales, manifold terms, and held-out rows evaluated."""
    workers, serial = min(job.cluster.workers, shape.leaves), job.cluster.in_driver
    size, seconds = shape.size, START if serial else START_WORKERS
    seconds += (sums.feature_rows * size.m * pace.number) / workers
    work = sums.work / workers
    if spec.tuning:
        each = dataset.d if any(tunes(one) for words in spec.words for one in words or ()) else 1
        work += SEARCH * (1.0 + each / 10.0) * min(ROWS, dataset.rows) * float(FEATURES) ** 2
    if leaves_out(job, size.k) and job.solve.select != "loo":
        work += INVERSE * float(size.k) ** 3 + 2.0 * RUNS * RUN_ROWS * float(size.k) ** 2
    if job.solve.conformal:
        more = _more_folds(job, size.folds)
        work += more * INVERSE * float(size.k) ** 3
        held = dataset.rows / size.folds * (1 + more)
        seconds, work = seconds + held * size.m * pace.number, work + held * float(size.k) ** 2 * size.q
    return seconds + work / pace.square


def _leaf_bytes(
    dataset: Dataset, recipe: Recipe, spec: PassSpec, patterns: int, light: LatticeCosts | None = None
) -> tuple[int, int]:
    """Bytes of a leaf, and those of them that are for reading."""
    width, block, folds = recipe.m + 1 + dataset.q, spec.block_rows, spec.folds
    packed, square = 4 * width * (width + 1), 8 * width * width
    units = spec.read_rows // dataset.unit_rows
    read = 3 * dataset.unit_bytes() * max(1, units)  # one being read, one waiting, one in use
    parts = patterns * (folds.count if folds.by_rows else 1)
    if light is not None:  # many units at a time, that are opened once
        read = 3 * (OPENING_BYTES + max(1, units) * (dataset.unit_bytes() - OPENING_BYTES))
        return parts * light.each + light.once + 8 * recipe.numbers + read, read
    leaf = parts * square + 8 * block * (width + 8) + 8 * recipe.numbers + read
    if spec.sums is Kind.TRIANGLE:  # a block by columns too; two triangles are merged as squares
        return max(leaf + 8 * block * width, 2 * square + 2 * packed), read
    if spec.mixed:  # a block and a square of half the width
        leaf += 4 * block * width + square // 2
    return leaf, read


def _beside_bytes(job: Job, dataset: Dataset, recipe: Recipe) -> int:
    """The driver's while it solves, beside the system: features, and of classes held-out decision values and copies."""
    calibrated = dataset.labels is not None and job.solve.calibrate
    return 16 * recipe.numbers + (5 * 8 * dataset.q * most_rows(dataset.q) if calibrated else 0)


def landmark_bytes(recipe: Recipe, rows: int) -> int:
    """Return the peak memory, in bytes, of choosing the landmarks of a recipe among a sample of so many rows."""
    if recipe.landmarks is None:
        return 0
    sample = min(MAX_ROWS, rows)
    return 8 * sample * (min(recipe.n_features, sample) + 4 * PROPOSALS + 2 * recipe.d)


def _own_bytes(recipe: Recipe) -> int:
    """Of a kernel's own features on a lattice, and of their law."""
    each = 1 if recipe.lattice is None else len(recipe.lattice.beside)
    return 8 * recipe.frequencies * (2 * recipe.d + 1 + (1 + recipe.d) * each)


def _disk_bytes(job: Job, leaves: int, spec: PassSpec, patterns: int, packed: int, workers: int) -> tuple[int, int]:
    """The level of the tree whose nodes are kept, in a quarter of the free disk, and all bytes on disk at a time."""
    folds, level = spec.folds, 0
    most = free_bytes(locate(job.state)) // 4 // (folds.count * patterns * packed)
    while leaves >> level > max(most, 1):
        level += 1
    node = packed * patterns * (folds.count if folds.by_rows else min(folds.count, 2**level))
    return level, ((leaves >> level) + most_sums(leaves, workers)) * node + 4 * packed


def _route(job: Job, shape: Shape, pace: Pace, workers: int, candidates: Sequence[OperatorKernel]) -> Route:
    process = DRIVER_BYTES if job.cluster.in_driver else WORKER_BYTES
    means = Means(workers, 0.95 * job.cluster.memory - process, pace)
    learned = any([solvers.learned_term(kernel) is not None for kernel in candidates])
    return choose_route(job, shape, means, learned=learned, candidates=len(candidates))


def _shared(kernel: OperatorKernel) -> bool:
    """Whether it is one scalar kernel times a matrix; of views, each of them with the same matrix."""
    if isinstance(kernel, MultiView):
        views = [view.kernel for view in kernel.views]
        terms = [one for view in views for _, one in view.terms()]
        outputs = {json.dumps(one.output.config()) for one in terms if isinstance(one, Decomposable)}
        return all(_shared(view) and len(view.terms()) == 1 for view in views) and len(outputs) == 1
    bases = [base for _, base in kernel.terms()]
    return all(isinstance(base, Decomposable) for base in bases) and len({base.scalar for base in bases}) == 1


def _apart(kernel: OperatorKernel) -> bool:
    """Whether the output matrix is diagonal."""
    return solvers.untouched(operator_weights(kernel, 1, None).root[0])


def _rank(kernel: OperatorKernel, d: int) -> int:
    """r of a kernel with its output matrices written out; of views, the largest of a view's."""
    if isinstance(kernel, MultiView):
        return max(_rank(view.kernel, view.d) for view in kernel.views)
    roots = [base.root(np.ones((1, d))) for _, base in kernel.terms()]
    return min(sum(len(root[0]) for root in roots), len(roots[0][0, 0]))


def _size(job: Job, kernel: OperatorKernel, m: int, dataset: Dataset, patterns: int, folds: int) -> solvers.Size:
    """What the bytes of solving for a kernel depend on, its output matrices written out."""
    # All rows of psi are in one system where the outputs of a manifold term need not commute with the kernel's matrix.
    coupled = not _shared(kernel) or any(term.outputs not in (None, "identity") for term in job.manifold)
    if not coupled and patterns > 1:
        coupled = isinstance(kernel, MultiView) or job.solve.observe is not None or not _apart(kernel)
    return solvers.Size(m, dataset.q, _rank(kernel, dataset.d), coupled, patterns, folds, len(job.solve.ridges))


def _solve_bytes(job: Job, kernel: OperatorKernel, size: solvers.Size, *, qr: bool) -> int:
    """Bytes of the driver's direct solve: folds' sums, the posterior, and of bands a second fit and rows evaluated."""
    square, solving = 8 * size.k**2, solvers.triangle_bytes(size) if qr else solvers.solve_bytes(size)
    unknowns = _unknowns(job, kernel, size)
    noise, rows = solvers.criterion_of(job.solve.select).noise, leaves_out(job, size.k)
    if noise or size.coupled or rows or _tied(kernel, size):  # the noise of each target is found, or leverages
        solving = max(solving, solvers.posterior_bytes(size))
    if keeps_posterior(job, unknowns):
        kept = max(8 * unknowns**2, size.blocks * square)
        solving = max(solving, solvers.posterior_bytes(size)) + kept - size.blocks * square
        solving += 4 * 8 * _tied(kernel, size)
        solving += kept * (job.solve.observe is not None and not size.coupled)  # it is written out once more
        if job.solve.conformal:
            solving = max(solving + kept, 2 * kept + evaluation_bytes(size.m, squares=size.m**2))
    counts = size.packed * (size.folds + 1) if len(job.features.counts) > 1 else 0  # of the first features
    need = max(2 * size.folds * size.packed, size.held + counts + solving)  # twice while they are collected
    if job.solve.select == "kfold" and size.patterns == 1 and job.solve.observe is None and not job.manifold:
        ridges = len(job.solve.ridges)
        path = solvers.path_bytes(size.m, size.q, unknowns=size.k, folds=size.folds, ridges=ridges)
        need = max(need, counts + path)
    return need


def _unknowns(job: Job, kernel: OperatorKernel, size: solvers.Size) -> int:
    """Those of a posterior that is kept, whose square has as many entries."""
    if isinstance(kernel, MultiView) and not size.coupled:  # each target has a posterior of its own
        return math.isqrt(size.m**2 * size.q)
    unknowns = size.k if job.solve.observe is None else size.m * size.r
    return math.isqrt(unknowns**2 + _tied(kernel, size))


def _tied_bytes(job: Job, size: solvers.Size) -> int:
    """Return the memory of a posterior by a loss whose values are coupled, in bytes; 0 where there is none."""
    loss = loss_of(job)
    if not loss.coupled or job.solve.posterior is not True:
        return 0
    return laplace_bytes(loss, size.m, size.r, size.q)


def _tied(kernel: OperatorKernel, size: solvers.Size) -> int:
    """The numbers of the covariances of columns that noise ties together, of systems with a column each."""
    return 0 if size.coupled or isinstance(kernel, MultiView) or _apart(kernel) else size.m * size.r**2


def most_left_out(job: Job) -> int | None:
    """Rows that are left out one at a time, None of the usual: fewer where they choose nothing, and only judge."""
    return None if job.solve.select == "loo" else RUNS * RUN_ROWS


def leaves_out(job: Job, k: int) -> bool:
    """Whether rows left out one at a time judge a fit of k unknowns: to choose, or if cheap where k-fold does not."""
    small = job.classes is None and 8 * k * k <= SMALL_POSTERIOR
    return job.solve.select == "loo" or (job.solve.select != "kfold" and small)


def keeps_posterior(job: Job, k: int) -> bool:
    """Whether a model of systems of k unknowns keeps its posterior: `auto` does up to SMALL_POSTERIOR bytes."""
    if not job.solve.by_squares:
        return False  # what squares would leave of it is not the loss'
    return job.posteriors > 0 or (job.solve.posterior is not False and 8 * k * k <= SMALL_POSTERIOR)


def refuse_small_workers(job: Job, costs: Costs) -> None:
    """DoesNotFitError, with the numbers, if a worker has too little memory; InputError if it ends before a leaf."""
    given = job.cluster.memory
    if costs.worker_bytes > 0.95 * given:
        fewer = costs.fewer and f"{costs.fewer} or "
        problem = f"a worker needs {costs.worker_bytes / MiB:.0f} MiB but cluster.memory is {given / MiB:.0f} MiB"
        enough = f"{costs.worker_bytes / 0.94 / MiB:.0f}MiB"
        remedy = f"raise it to {enough} or lower {fewer}features.count (now {costs.m}){_by_leaves(job, costs)}"
        raise DoesNotFitError(f"{problem}; {remedy}")
    if costs.leaf_seconds > job.cluster.lifetime:
        problem = f"a leaf takes a usual core about {costs.leaf_seconds:.0f} s, but a worker ends after"
        remedy = f"raise the walltime, or lower features.count (now {costs.m})"
        raise InputError(f"cluster.walltime: {problem} {job.cluster.lifetime:.0f} s; {remedy}")


def refuse_small_machine(job: Job, costs: Costs, directory: Path) -> None:
    """DoesNotFitError, with the numbers and what to do, where this machine's memory or the disk is too small."""
    machine = psutil.virtual_memory().total
    workers = job.cluster.workers if job.cluster.on_this_machine else 1
    free = free_bytes(locate(job.state)) + locate(directory / "nodes").bytes_below("*.moments")
    each = WORKER_BYTES if job.cluster.on_this_machine and not job.cluster.in_driver else 0
    fitting = [
        way.name
        for way in costs.others
        if way.disk_bytes <= free and DRIVER_BYTES + way.driver_bytes + workers * (each + way.worker_bytes) <= machine
    ]
    instead = f", or set solve.route: {' or '.join(fitting)} (another result)" if fitting else ""
    if costs.peak_bytes > machine:
        needs = f"the job needs {costs.peak_bytes / MiB:.0f} MiB at its peak"
        remedy = f"lower features.count (now {costs.m}) or cluster.workers{_by_leaves(job, costs)}{instead}"
        raise DoesNotFitError(f"{needs}, this machine has {machine / MiB:.0f} MiB; {remedy}")
    if costs.disk_bytes > free:
        problem = f"the moments need {costs.disk_bytes / MiB:.1f} MiB of disk, {free / MiB:.1f} MiB are free"
        remedy = f"free some, put `state` on a larger disk{instead}"
        raise DoesNotFitError(f"{job.state}: {problem}; {remedy}")


def asked_of_buckets(job: Job, dataset: Dataset, costs: Costs) -> dict[str, int]:
    """Requests and bytes read of a first fit whose data, state or model are in buckets, roughly; empty where none are.
    A shard of an array is looked at three times and, in a pass, opened and looked at twice; further chunks are brought
    one by one. Rows of the sample and those that are left out one at a time are read by whole chunks."""
    of_data, of_state, of_model = is_remote(dataset.path), is_remote(job.state), is_remote(job.model)
    if not (of_data or of_state or of_model):
        return {}
    rest = dataset.shard_rows // dataset.unit_rows - 1
    files = -(-dataset.rows // dataset.shard_rows) * len(dataset.arrays)
    data = 250 + files * (3 + costs.passes * 4 * (1 + rest))
    state = 170 + 10 * costs.leaves * costs.passes
    read = 8 * (dataset.d + dataset.q) * (costs.passes * dataset.rows + 2 * RUNS * dataset.unit_rows) * of_data
    read += 8 * (costs.m + 1 + dataset.q) ** 2 * costs.leaves * of_state
    return {"requests": data * of_data + state * of_state + 320 * of_model, "bytes_read": read}


def _by_leaves(job: Job, costs: Costs) -> str:
    """Where they are remedies: a leaf's sums are of one fold then, and those of a lattice serve fewer kernels."""
    folds, alone = job.solve.folds, ", or fit kernels of very different length-scales in jobs of their own"
    apart = job.solve.select == "kfold" and folds.by == "rows" and costs.leaves >= folds.count
    return ", or set solve.folds.by: leaves" * apart + alone * (job.features.kind == "lattice" and len(job.kernels) > 1)
