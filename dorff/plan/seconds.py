"""How long a job takes: what this machine does in a second, tried briefly, and what each way of solving asks of it."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from dorff.features import FeatureMap, Recipe
from dorff.moments import pinned, syrk
from dorff.passes.blocks import block_rows
from dorff.solvers import MOST_FACTORS, Size, criterion_of
from dorff.solvers.choose import LARGE
from dorff.solvers.ridge_path import MOST_COLUMNS, near_shifts
from dorff.spec.job import Job

# Times k^3 over the rate of `syrk` (measured on one core, k = 1024 to 3072): a factor and what a fit asks of it, its
# inverse, a spectrum, and the QR of as many rows as columns.
CHOLESKY: Final = 1.8
INVERSE: Final = 2.2
EIGH: Final = 13.0
QR: Final = 4.0
#: Times m^2: errors on a fold's rows at one ridge, and a fold's sums.
HELD: Final = 450.0
#: The noise of several targets at one ridge (`solvers.select.noise_models`): of one system for everything times k^3,
#: as it is factored and inverted in each of two to ten steps; of columns apart times k^2, for about five.
NOISE: Final = 35.0
NOISE_APART: Final = 15_000.0
#: A pass of `precision: mixed` over one of `double`.
MIXED: Final = 0.55
#: Conjugate gradients of folds along a path of ridges (`solvers.ridge_path`): the steps of a column, those of a
#: group's longest, and the flops of `syrk` in whose time a number of a matrix comes from memory, once in each step.
STEPS: Final = 22.0
LONGEST: Final = 32.0
READ: Final = 100.0
#: A search for length-scales, in passes of `syrk` over its sample; each length-scale of its own adds to it.
SEARCH: Final = 300.0
NOMINAL: Final = 5e10  # flops of `syrk` a second
PAIRS: Final = 6e8  # of cosine and sine a second
TRIED_WIDTH: Final = 2048  # the rate hardly grows beyond, the memory for it does
TRIED_NUMBERS: Final = 2**22  # of a feature map that is drawn to be tried; a larger one is tried with fewer features
BESIDE: Final = 1.08  # of a pass: reading, checks, receipts
START: Final = 4.0  # seconds of a command before its first leaf and after its last
START_WORKERS: Final = 8.0  # and with workers


@dataclass(frozen=True)
class Pace:
    """What a core does: flops of `syrk` and of a product with few columns a second, and seconds of a number of F."""

    square: float
    thin: float
    number: float

    @classmethod
    def nominal(cls, m: int, map_flops: float) -> "Pace":
        """That of a usual core, by which ways are compared: what a result is may not depend on a clock."""
        return cls(NOMINAL, NOMINAL / 10, map_flops / m / NOMINAL + 0.5 / PAIRS)

    @classmethod
    def of(cls, recipe: Recipe, width: int) -> "Pace":
        """Measured in some tenths of a second of this thread's own time: what else the machine does counts little."""
        tried = min(width, TRIED_WIDTH)
        large = recipe.numbers > TRIED_NUMBERS
        map_ = replace(recipe, n_features=min(recipe.n_features, TRIED_WIDTH)) if large else recipe
        key = json.dumps([map_.question(), map_.d], sort_keys=True, default=str)
        if key not in _numbers:
            _numbers[key] = _number_seconds(map_)
        return cls(_syrk_rate(tried), _thin_rate(tried), _numbers[key])


_numbers = dict[str, float]()  # seconds of a number, by what map it is of


def pace_bytes(recipe: Recipe, width: int) -> int:
    """The most memory of measuring it."""
    tried = min(width, TRIED_WIDTH)
    return 8 * max(tried * (block_rows(tried) + tried), 3 * min(recipe.numbers, TRIED_NUMBERS) + 2**21)


def _best(work: Callable[[], object]) -> float:
    best = math.inf
    with pinned():
        work()  # loops are loaded, pages are there
        for _ in range(3):
            began = time.thread_time()
            work()
            best = min(best, time.thread_time() - began)
    return best


@lru_cache(maxsize=16)
def _syrk_rate(width: int) -> float:
    block = block_rows(width)
    Z, square = np.ones((block, width)), np.zeros((width, width), order="F")
    return block * width * width / _best(lambda: syrk(Z, square))


@lru_cache(maxsize=16)
def _thin_rate(width: int) -> float:
    """Of a product there and back with few columns, as passes of streaming make them."""
    rows, columns = 2**20 // width, 2
    Z, V = np.ones((rows, width)), np.ones((width, columns))
    return 4.0 * rows * width * columns / _best(lambda: Z.T @ (Z @ V))


def _number_seconds(recipe: Recipe) -> float:
    recipe = recipe.among(np.random.default_rng(0).standard_normal((recipe.m, recipe.d)), 0)
    features = FeatureMap(recipe.draw(0).phi, np.zeros(recipe.d), np.ones(recipe.d))
    rows = int(np.clip(2**20 // recipe.m, 8, 256))
    X, out, work = np.ones((rows, recipe.d)), np.empty((rows, recipe.m)), features.workspace(rows)
    return _best(lambda: features(X, out, work)) / (rows * recipe.m)


def solve_work(job: Job, sizes: Sequence[Size], terms: int, *, keeps: bool, path: bool = True, rows: int = 0) -> float:
    """What solving directly takes, in flops of `syrk`: every kernel of these sizes with each number of features and
    each of the combinations of weights of manifold `terms`, the choice among ridges, and the posterior where it is
    kept. `path`: folds of large systems may be solved along a path of ridges; `rows` may be left out one at a time."""
    solving, counts, trials = job.solve, job.features.counts, len(job.solve.ridges)
    single = trials * terms * len(counts) * len(sizes) == 1
    noises = criterion_of(solving.select).noise and not single
    work = 0.0
    for size in (replace(one, m=one.m * count // max(counts)) for one in sizes for count in counts):
        if solving.select == "kfold" and size.folds > 1:
            work += terms * _folds_work(job.solve.ridges, size, path=path)
        elif not single:
            work += terms * (_factors_work(size, trials) + (trials * _noise_work(size) if noises else 0.0))
        if rows:  # leverages, of one trial or of all
            outputs = size.q if size.coupled else 1
            work += (EIGH if trials > 1 else INVERSE) * size.blocks * float(size.k) ** 3
            work += 2.0 * terms * rows * size.k * outputs * (size.k * size.blocks + trials * size.q)
    largest = max(sizes, key=lambda size: size.blocks * size.k**3)
    last = (CHOLESKY if single or solving.select == "kfold" else 0.0) + (INVERSE if keeps else 0.0)
    times = 2.0 if largest.folds > 1 and job.classes is None else 1.0  # it is solved without a fold too
    after = times * largest.blocks * float(largest.k) ** 3 * last
    if largest.coupled and not (noises or job.manifold or job.classes):
        after += _noise_work(largest) * (times if keeps else 1.0)
    return work + after


def _factors_work(size: Size, trials: int) -> float:
    return size.blocks * float(size.k) ** 3 * (CHOLESKY * trials if trials <= MOST_FACTORS else EIGH)


def _folds_work(ridges: Sequence[float], size: Size, *, path: bool) -> float:
    """Of all folds at all ridges, with factors of their own or along a path, as if A's eigenvalues were equal."""
    k, squares = float(size.k), float(size.m) ** 2
    if not path or k < LARGE or size.patterns > 1 or min(ridges) <= 0:
        return size.folds * (_factors_work(size, len(ridges)) + (len(ridges) + 1) * HELD * squares)
    groups, columns = len(near_shifts(np.array(ridges))), size.folds * len(ridges) * (1 if size.coupled else size.r)
    reads = max(groups, math.ceil(columns / MOST_COLUMNS)) * LONGEST * READ * (size.folds * squares + k**2)
    steps = 2.0 * columns * STEPS * (k**2 + squares * (size.q if size.coupled else 1))
    return groups * CHOLESKY * k**3 + reads + steps + size.folds * HELD * squares


def _noise_work(size: Size) -> float:
    if size.q == 1:
        return 0.0
    return NOISE * float(size.k) ** 3 if size.coupled else NOISE_APART * size.blocks * float(size.k) ** 2
