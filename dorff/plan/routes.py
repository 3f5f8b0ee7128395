"""How the system will be solved: what each way would cost, which one is taken, and why."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Final, NamedTuple

import numpy as np

from dorff.data import Dataset
from dorff.data.dataset import OPENING_BYTES
from dorff.errors import DoesNotFitError, InputError
from dorff.model import evaluation_bytes
from dorff.passes.blocks import product_rows
from dorff.plan.graph_sizes import MiB
from dorff.plan.lattice import LatticeCosts
from dorff.plan.seconds import BESIDE, CHOLESKY, EIGH, INVERSE, NOMINAL, Pace
from dorff.plan.sharing import loss_of
from dorff.solvers import LARGEST_DIRECT, Size, cg_bytes, sampled_bytes
from dorff.solvers.bundle import MOST_COLUMNS, POINTS, plane_bytes
from dorff.solvers.descent import FEW, MOST_ROWS
from dorff.solvers.stochastic import HEAVY, PROBES, SAMPLES, heavy_bytes, sample_bytes
from dorff.spec.job import Job

EXPECTED_PASSES: Final = 40  # before the pass; a run tells how many it will be when it has seen a sample
MOST_PASSES: Final = 500
ESTIMATES: Final = ("kfold", "evidence", "gcv")  # what route cg chooses by, of sums over a lattice
MOST_RUN: Final = 2**16  # rows of a descent's shard
RUN_NUMBERS: Final = 2**20  # of their inputs and targets
SMOOTH_PASSES: Final = 12  # of a loss at one ridge
KINKED_PASSES: Final = 40
RIDGES: Final = 4  # that are tried where they are left to the rows
VALUE_COPIES: Final = 14  # of a block's values, with slopes, targets and what they are made of
VALUE_WORK: Final = 200.0  # flops of a value's loss and slope
REMEMBERED: Final = 52  # vectors of coefficients
LATTICE_ITERATIONS: Final = 100  # of those on a lattice: 15 to 500 by kernel and ridge
WHOLE_ITERATIONS: Final = 5  # where all of the system is factored
ITERATIONS: Final = 30  # of conjugate gradients on moments, and the sketch's columns: 32 to 1024 by kernel and ridge
SKETCH: Final = 512
MOST_DUAL: Final = 6144  # rows by rows of the sample that preconditions streaming
LEAST_DUAL: Final = 512
# Direct solves tell most, moments serve later jobs: so many times another way's seconds a way must take to be left.
LEAVE: Final = 8.0


def sample_rows(m: int, t: int, n: int) -> int:
    """Rows of the sample that preconditions a system of t targets coupled to one: a fifth of the features, bounded."""
    return int(min(n, np.clip(m // 5, LEAST_DUAL, MOST_DUAL) // t))


@dataclass(frozen=True)
class Shape:
    """What a solve costs depends on: n rows, the largest `size` of a system, leaves, and the numbers and flops of the
    feature map for one row, as its recipe tells them. Of the direct way the bytes of a leaf, of the driver's solve and
    on disk, and `solve_work`, the flops of `syrk` in whose time the driver solves; of any leaf the bytes for reading,
    of any solve those beside the system. A row's sums take `times` as long as `syrk`; or what `light` says, of
    features on a lattice. An iteration solves `solves` systems, and of a lattice's it estimates GCV or the evidence
    of `estimates`, which takes `probe_bytes` more. So many `posteriors` are needed. A loss that is not the square is
    evaluated so many times, at `values` of a row each, those of all folds together, and at `points` times as many where
    a bundle has points of its own; in `squares` passes `curved` values
    have a Gram matrix each, weighed by the curvature; where the values are coupled one system for all outputs is made
    of them, and takes `tied_bytes`. `steps` are those of a descent."""

    n: int
    size: Size
    leaves: int
    map_numbers: int
    map_flops: float
    leaf_bytes: int
    solve_bytes: int
    disk_bytes: int
    read_bytes: int
    beside_bytes: int = 0
    solve_work: float = 0.0
    times: float = 1.0
    solves: float = 1.0
    estimates: float = 0.0
    light: LatticeCosts | None = None
    probe_bytes: int = 0
    posteriors: int = 0
    evaluations: int = 0
    values: int = 0
    curved: int = 0
    squares: int = 0
    steps: "Steps | None" = None
    points: int = 1
    tied_bytes: int = 0

    @property
    def columns(self) -> int:
        """Columns of a product."""
        return self.size.q if self.size.coupled else self.size.r


class Steps(NamedTuple):
    """Of a descent: its passes, the rows of a batch, the values of a target, the vectors of coefficients that a point
    is, the columns of a row, and what reading a shard of them takes."""

    epochs: int
    batch: int
    levels: int
    vectors: int
    columns: int
    run_bytes: int


@dataclass(frozen=True)
class Means:
    """What the job says there is: workers, and bytes of each; and what one core does. Not what there happens to be,
    such as free disk or the driver's memory: these refuse a fit, and make no other of it."""

    workers: int
    worker_memory: float
    pace: Pace


@dataclass(frozen=True)
class Way:
    """One way to solve: bytes of a worker and of the driver beside what each process has anyway, bytes on disk, flops
    of a pass, passes, seconds in all and of a further pass; and why it cannot be taken, "" where it can."""

    name: str
    worker_bytes: int
    driver_bytes: int
    disk_bytes: int
    flops: float
    passes: int
    seconds: float
    against: str = ""
    pass_seconds: float = 0.0


class Route(NamedTuple):
    """The way taken, why, and all of them."""

    way: Way
    reason: str
    ways: tuple[Way, ...]

    @property
    def name(self) -> str:
        return self.way.name


def choose_route(job: Job, shape: Shape, means: Means, *, learned: bool = False, candidates: int = 1) -> Route:
    """The way that the job names; or the first of direct, cg and streaming that is possible and within eight times the
    seconds of the fastest, on a machine of nominal speed: the same job takes the same way everywhere. `learned` says
    that an output matrix is, `candidates` how many kernels there are. Raises InputError where the job names a way that
    cannot do what it asks for, DoesNotFitError, with the numbers, where that way is too big."""
    wanted = job.solve.route
    by = {"cg": ESTIMATES if shape.light is not None else ("kfold",), "streaming": ()}
    asks = {way: _asks(job, learned, candidates, by=rules) for way, rules in by.items()}
    kinds = (_direct, _cg, _streaming) if shape.steps is None else (_stepping,)
    ways = tuple(_checked(way, shape, means, asks.get(way.name, "")) for way in (of(shape, means) for of in kinds))
    if wanted != "auto":
        (way,) = (way for way in ways if way.name == wanted)
        if way.against:
            fault = InputError if asks.get(wanted) else DoesNotFitError
            names = " or ".join(one.name for one in ways if one.name != wanted and not one.against)
            remedy = f"set solve.route: {names}, or auto" if names else "lower features.count"
            raise fault(f"solve.route: {wanted} cannot be taken: {way.against}; {remedy}")
        return Route(way, f"{wanted}, as the job says{_sampled(job, way)}", ways)
    leave = math.inf if job.posteriors else LEAVE  # that of another way is one of samples
    if not (possible := [way for way in ways if not way.against]):
        return Route(ways[0], f"direct, though {ways[0].against}: nothing else can be taken", ways)
    nominal = replace(means, pace=Pace.nominal(shape.size.m, shape.map_flops))
    seconds = {way.name: way.seconds for way in (of(shape, nominal) for of in kinds)}
    fastest = min(seconds[way.name] for way in possible)
    way = next(way for way in possible if seconds[way.name] <= leave * fastest)
    return Route(way, _reason(way, ways[: ways.index(way)]) + _sampled(job, way), ways)


def _sampled(job: Job, way: Way) -> str:
    """What to know of deviations that are not exact."""
    error = 100.0 / math.sqrt(2.0 * SAMPLES)
    sampled = way.name == "cg" and job.posteriors > 0
    return f"; deviations are of {SAMPLES} samples, each within about {error:.0f}% of the exact one" * sampled


def _reason(way: Way, passed: Sequence[Way]) -> str:
    """Why the way is taken, and those that tell more are not."""
    passes = f" in {way.passes} passes" if way.passes > 1 else ""
    cost = f"{way.name}: about {_time(way.seconds)}{passes}, {_bytes(way.driver_bytes)} to solve"
    why = [f"{one.name} cannot be taken: {one.against}" for one in passed if one.against]
    why += [f"{one.name} would take {_time(one.seconds)}" for one in passed if not one.against]
    return "; ".join([cost, *why])


def _asks(job: Job, learned: bool, candidates: int, *, by: Sequence[str]) -> str:
    """What asks for a factor, "" if nothing; a choice by a rule of `by` does not. Without any there are no moments."""
    solving, folds, estimates = job.solve, "kfold" in by, "evidence" in by
    choices = (len(solving.ridges), "ridges"), (candidates, "kernels"), (len(job.features.counts), "counts of features")
    can = solving.select in by
    rule = f" by {solving.select} (by {' or '.join(by)} it can)" if by else ""
    several: Sequence[tuple[bool, str]] = (
        *((count > 1 and not can, f"{count} {what} to choose from{rule}") for count, what in choices),
        (solving.select == "kfold" and not folds, "select: kfold"),
        (solving.select == "loo", "select: loo"),
        (solving.ridge_per_output, "ridge_per_output"),
        (solving.posterior is True and not estimates, "posterior: true"),
        (solving.conformal and not estimates, "conformal: true"),
        (learned, "output: learned"),
        (bool(job.manifold), "manifold"),
        (solving.other_loss and not solving.descends, "another loss than the square"),
        (not folds and not isinstance(job.data.targets, str | tuple) and solving.calibrate, "calibrate: true"),
    )
    if wanted := ", ".join(what for applies, what in several if applies):
        return f"it solves one system and knows nothing of its inverse, but the job asks for {wanted}"
    mixed = not folds and job.features.precision == "mixed"
    return "its products are summed in double precision, but the job asks for precision: mixed" if mixed else ""


def _direct(shape: Shape, means: Means) -> Way:
    way = _of_sums("direct", shape, means, shape.solve_bytes, shape.solve_work / means.pace.square)
    return _with_loss(way, shape, means) if shape.evaluations else way


def _with_loss(way: Way, shape: Shape, means: Means) -> Way:
    """The same with a loss's evaluations, each a pass: slopes of every value, and in the driver the axes of the system
    with what an iteration remembers."""
    size, width = shape.size, shape.size.width
    fits = 1 + size.folds * (size.folds > 1)
    columns, values = shape.values // fits, shape.values * shape.points
    rows, k = product_rows(width), size.m * size.r * (columns // size.q)
    block = 8 * rows * (width + 8 + VALUE_COPIES * values)
    worker = shape.read_bytes + 8 * shape.map_numbers + block + 4 * 8 * (width + 8) * values * (1 + size.folds)
    system = size.k if size.coupled else size.m
    driver = size.held + 8 * (5 * system**2 + 3 * width**2) + 8 * 2 * REMEMBERED * k * fits
    driver += plane_bytes(size.m, columns, fits) if shape.points > 1 else 0
    if shape.curved:  # squares in a leaf, and as they are added; then unpacked, beside the system
        worker += 2 * shape.curved * 8 * width**2
        driver += 8 * size.m * size.r * (size.r + size.q)
        if shape.tied_bytes:
            driver += shape.tied_bytes
        else:
            driver += 3 * shape.curved * 8 * width**2 + 4 * 8 * size.k**2
    row = size.m * means.pace.number + (4.0 * width + VALUE_WORK) * values / means.pace.thin
    seconds = shape.evaluations * BESIDE * shape.n * row / min(means.workers, shape.leaves)
    seconds += EIGH * float(system) ** 3 / means.pace.square
    squares = float(shape.n) * shape.squares * shape.curved * width**2
    seconds += BESIDE * squares / means.pace.square / min(means.workers, shape.leaves)
    flops = way.flops + shape.evaluations * shape.n * (shape.map_flops + 4.0 * width * values) + squares
    disk = way.disk_bytes + 8 * (width + 8) * values * (shape.evaluations + 2 * shape.leaves)
    worker, driver = max(way.worker_bytes, worker), max(way.driver_bytes, driver + shape.beside_bytes)
    way = replace(way, worker_bytes=worker, driver_bytes=driver, disk_bytes=disk, flops=flops)
    return replace(way, passes=way.passes + shape.evaluations, seconds=way.seconds + seconds)


def loss_passes(job: Job, *, kinked: bool) -> int:
    """How many passes a loss takes, roughly, before the pass."""
    ridges = RIDGES if job.solve.ridge == "auto" else len(job.solve.ridges)
    each = KINKED_PASSES if kinked else SMOOTH_PASSES
    return each * (1 + (ridges if ridges > 1 else 0))


def evaluations(job: Job, q: int, folds: int) -> tuple[int, int, int, int]:
    """Of a job whose loss is not the square: how many passes it takes, how many values of a row these see, of how many
    there are weighted Gram matrices, and in how many passes (Newton's method, Laplace's approximation)."""
    loss = loss_of(job)
    passes, values = loss_passes(job, kinked=loss.kinked), q * loss.levels
    squares = (passes // 2 if job.solve.solver == "newton" else 0) + (job.solve.posterior is True)
    curved = len(loss.combinations(values)) if squares else 0
    return passes, values * (1 + folds * (folds > 1)), curved, squares


def points_of(job: Job, q: int) -> int:
    """Return how many functions a pass evaluates of each fit by the job's loss."""
    loss = loss_of(job)
    return POINTS if loss.kinked and q * loss.levels <= MOST_COLUMNS and not job.manifold else 1


def _cg(shape: Shape, means: Means) -> Way:
    size = shape.size
    if shape.light is not None:
        return _fourier(shape, shape.light, means)
    driver = size.held + cg_bytes(size) + shape.beside_bytes
    rank = min(SKETCH, size.k // 2)
    sketch = 2.0 * size.width**2 * size.patterns * rank * (size.q if size.coupled else 1)
    sketch += 4 / 3 * rank**2 * (40.0 * rank + 12.0 * size.k)  # as its columns are doubled
    steps = 2.0 * size.width**2 * size.patterns * shape.columns * ITERATIONS
    solve = sketch / means.pace.square + steps / (means.pace.thin / 2)
    return _of_sums("cg", shape, means, driver, shape.solves * solve)


def _fourier(shape: Shape, light: LatticeCosts, means: Means) -> Way:
    """Conjugate gradients whose products are Fourier transforms."""
    size = shape.size
    held = light.packed * size.patterns * (size.folds + 2) + shape.probe_bytes
    samples = sample_bytes(size) if shape.posteriors else 0
    samples += evaluation_bytes(size.m, squares=4 * size.q * light.points) * (shape.posteriors > 1)
    driver = held + samples + 48 * light.points + heavy_bytes(size) + 96 * size.k * shape.columns + shape.beside_bytes
    block, whole = min(size.k, HEAVY // 2), min(size.k, HEAVY)  # or less, as the weights and the ridge want it
    product, few = 10.0 * light.points * log2(light.points) * size.patterns, shape.columns
    steps = 20.0 * LATTICE_ITERATIONS * few * (product + 4.0 * block**2)
    work = shape.solves * (CHOLESKY * block**3 + steps)
    # All that may be is factored, and inverted; random vectors beside the columns, whose products take less of each.
    steps = 8.0 * (WHOLE_ITERATIONS if whole == size.k else LATTICE_ITERATIONS) * (few + PROBES)
    work += shape.estimates * ((CHOLESKY + INVERSE) * whole**3 + steps * (product + 4.0 * whole**2))
    # Samples take two iterations for their root, and one to solve; of a system of all columns where noise ties them.
    runs = 3.0 * SAMPLES * (1 if size.coupled else size.r)
    work += shape.posteriors * (CHOLESKY * whole**3 + runs * steps / (few + PROBES) * (product + 4.0 * whole**2))
    return _of_sums("cg", shape, means, driver, work / means.pace.square)


def _of_sums(name: str, shape: Shape, means: Means, driver: int, solve: float) -> Way:
    """One pass that sums, and so many seconds of solving in the driver."""
    row = shape.size.m * means.pace.number + shape.times * shape.size.width**2 / means.pace.square
    flops = float(shape.size.width) ** 2 + shape.map_flops
    if shape.light is not None:
        row, flops = shape.light.seconds, shape.light.seconds * NOMINAL
    sums = BESIDE * shape.n * row / min(means.workers, shape.leaves)
    held = shape.leaf_bytes, driver, shape.disk_bytes
    return Way(name, *held, shape.n * flops, 1, sums + solve, pass_seconds=sums)


def _streaming(shape: Shape, means: Means) -> Way:
    size, columns = shape.size, shape.columns
    m, width = size.m, size.width
    vectors = 8 * width * max(columns, 1 + size.q)
    block = 8 * product_rows(width) * (width + 8)
    worker = shape.read_bytes + block + 8 * shape.map_numbers + (2 + 2 * size.patterns) * vectors
    t = size.q if size.coupled else 1
    dual = sample_rows(m, t, shape.n) * t
    summed = 4 * size.patterns * vectors  # of the first pass, as they are used, and of another being read
    driver = sampled_bytes(dual, m, size.k) + shape.beside_bytes + 10 * 8 * size.k * columns + summed
    disk = vectors * size.patterns * (MOST_PASSES + 2 + 2 * shape.leaves)  # a total of each pass stays until the end
    flops = shape.map_flops + 4.0 * width * columns
    row = m * means.pace.number + 4.0 * width * columns / means.pace.thin
    sample = dual * (float(dual) * m / t + CHOLESKY * dual * dual) / means.pace.square
    passes = BESIDE * shape.n * row / min(means.workers, shape.leaves) + 2 * dual / t * row
    seconds = EXPECTED_PASSES * passes + sample
    return Way("streaming", worker, driver, disk, shape.n * flops, EXPECTED_PASSES, seconds, pass_seconds=passes)


def _stepping(shape: Shape, means: Means) -> Way:
    """A descent in the driver, after a first pass on the workers: these are gone when it begins."""
    steps, size = shape.steps, shape.size
    assert steps is not None
    first = _streaming(replace(shape, steps=None, size=replace(size, coupled=False, r=1)), means)
    m, values, k = size.m, size.q * steps.levels, size.m * size.r * steps.levels
    rows, few = min(steps.batch, shape.n), min(MOST_ROWS, shape.n)
    tied = size.r * steps.levels if size.coupled else 1  # a direction is of all coefficients, or of those of a column
    directions = min(rows, few // FEW + 1)
    moving = 8 * (rows * (3 * m + VALUE_COPIES * values) + k * (3 * steps.vectors + 8) + 6 * m * values)
    sampled = 8 * few * (m + 5 * m * tied // 2 + few + 3 * steps.columns + VALUE_COPIES * values)
    sums = 8 * size.patterns * size.width * (1 + size.q)
    driver = max(moving + steps.run_bytes, sampled) + 8 * directions * m * tied + 4 * sums + shape.beside_bytes
    disk = sums * (2 + 2 * shape.leaves) + 2 * 8 * steps.vectors * k
    work = (4.0 * m + VALUE_WORK) * values + (4.0 * directions + 40.0) * k / rows
    epoch = BESIDE * shape.n * (m * means.pace.number + work / means.pace.thin)
    seconds, flops = first.pass_seconds + steps.epochs * epoch, shape.n * (shape.map_flops + work)
    return Way("streaming", first.worker_bytes, driver, disk, flops, 1 + steps.epochs, seconds, pass_seconds=epoch)


def steps_of(job: Job, dataset: Dataset) -> Steps | None:
    """The steps of a job that descends."""
    solve = job.solve
    if not solve.descends:
        return None
    rows, columns = run_rows(dataset), dataset.d + dataset.q + 3  # and numbers, weights, groups
    held = 8 * 2 * rows * columns  # in use, as they came and in their order
    held += OPENING_BYTES + rows // dataset.unit_rows * (dataset.unit_bytes() - OPENING_BYTES)  # and the next
    return Steps(solve.epochs, solve.batch, loss_of(job).levels, 4 if solve.solver == "adam" else 2, columns, held)


def run_rows(dataset: Dataset) -> int:
    """Rows of a descent's shards: of so many whole units as `RUN_NUMBERS` and `MOST_RUN` let be, or of one."""
    most = min(MOST_RUN, RUN_NUMBERS // (dataset.d + dataset.q))
    return max(1, most // dataset.unit_rows) * dataset.unit_rows


def _checked(way: Way, shape: Shape, means: Means, asks: str) -> Way:
    against = ""
    if way.name == "direct" and shape.size.k > LARGEST_DIRECT:
        against = f"its system has {shape.size.k} unknowns, and LAPACK's 32-bit numbers reach {LARGEST_DIRECT}"
    elif way.name == "streaming" and shape.light is not None:
        against = "one pass is enough for the sums of a lattice"
    elif asks:
        against = asks
    elif way.worker_bytes > means.worker_memory:
        against = f"a worker needs {_bytes(way.worker_bytes)} and has {_bytes(means.worker_memory)}"
    return replace(way, against=against)


def _bytes(count: float) -> str:
    return f"{count / MiB:,.0f} MiB"


def _time(seconds: float) -> str:
    return f"{max(seconds, 1.0):,.0f} s" if seconds < 7200 else f"{seconds / 3600:,.0f} h"
