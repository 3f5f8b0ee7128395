"""What some thousand rows tell before the pass: of rows beside each other, of a linear model, of length-scales."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import scipy.linalg

from dorff.data import RowBlock
from dorff.features import FeatureMap, Recipe, with_lengthscale
from dorff.frequencies import IID, Sampler, default_sampler
from dorff.kernels import Decomposable, FloatArray, Gaussian, MultiView, OperatorKernel, Spectral, median_lengthscale
from dorff.moments.blas import pinned
from dorff.passes import BlockSums, block_rows
from dorff.passes.frozen import Rows
from dorff.solvers import Score, Setting, setting_scores

RUNS, RUN_ROWS = 32, 128  # rows that are looked at: runs of them, spread evenly
LEFT_OUT, NUMBERS = 2**15, 2**22  # rows that are left out one at a time, and numbers that they have, at most
FEATURES: Final = 512  # of the model that they are predicted by
BESIDE: Final = 16  # rows on either side that may be left out too
MOST_TRIED: Final = 512  # rows that are predicted so
LEAST: Final = 16  # rows that tell anything
ALIKE: Final = 0.3  # the share of an error that rows beside tell, from which on rows are dealt in blocks
CORRELATED: Final = 0.5  # errors of rows in order, alike
NOTHING: Final = 0.01  # of a target's variance: an error below it
BLOCKS: Final = 4  # for each fold, at least
MULTIPLES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 0.5)  # of length-scales, the first of equals
CHECKED, WORTH = 1024, 0.01  # unknowns with which the best of them has to be better than 1; by how much of R2
TRIED_FOLDS: Final = 5
_RIDGES: Final = tuple(10.0**power for power in range(-9, 2))
_TINY: Final = 1e-9
LINEAR_FLOPS: Final = 4e8  # of a linear model's decomposition, up to a factor: n d min(n, d) for n rows of d inputs
_LINEAR_RIDGES: Final = (1e-8, 1e-6, 1e-4, 1e-2, 1.0)


@dataclass(frozen=True)
class FirstLook:
    """What `rows` rows told. `dependence` is the share of the least held-out error that rows beside each other tell:
    1 - E1 / E2 of the mean squared errors with a row left out alone (E1), and with `beside` rows on either side (E2),
    each at its best ridge; `correlation` that of the former with the error at the next row. `linear` is the held-out
    R2 of a linear model for each target, by the folds of the pass; None where a target does not vary."""

    rows: int
    beside: int
    dependence: float
    correlation: float
    linear: tuple[float | None, ...] = ()


def sketch(kernel: OperatorKernel, X: FloatArray, seed: int) -> FloatArray:
    """Return a few features (n, m) of scaled inputs X (n, d).

    They are of the kernel's first scalar kernel, without its output matrix; or of a Gaussian if
    that has no spectrum, or sees some of the inputs only.
    """
    scalar = None
    if not isinstance(kernel, MultiView):
        scalar = next(base.scalar for _, base in kernel.terms())
    if not isinstance(scalar, Spectral):
        step = max(1, len(X) // 1000)
        scalar = Gaussian(median_lengthscale(X[::step]))
    sampler: Sampler = IID()
    if scalar.sampler:
        sampler = default_sampler(Decomposable(scalar), X.shape[1])
    recipe = Recipe.of(scalar, sampler, d=X.shape[1], n_features=FEATURES)
    return recipe.among(X, seed).draw(seed).phi.transform(X)


def distance(kernel: OperatorKernel, X: FloatArray) -> float | None:
    """The median distance between scaled rows X (n, d) over the length-scale of a kernel's first term; None where it
    has none, or sees some of the inputs only, and where rows are alike."""
    scalar = None if isinstance(kernel, MultiView) else next(base.scalar for _, base in kernel.terms())
    lengthscale = None if scalar is None else scalar.config().get("lengthscale")
    varying = np.ptp(X, axis=0) > 0
    if lengthscale is None or len(X) < 2 or not varying.any():
        return None
    return float(median_lengthscale((X / lengthscale)[:, varying]))


def sample_runs(start: int, stop: int, runs: int = RUNS, rows: int = RUN_ROWS) -> list[tuple[int, int]]:
    """So many runs of rows from start to stop - 1, spread evenly: all rows where they are few."""
    if stop - start <= runs * rows:
        return [(start, stop)]
    return [(int(at), int(at) + rows) for at in np.linspace(start, stop - rows, runs)]


def left_out_runs(start: int, stop: int, columns: int, most: int | None = None) -> list[tuple[int, int]]:
    """The same of rows of so many columns that are left out one at a time: all of them up to `most`, or `LEFT_OUT`."""
    return sample_runs(start, stop, 64, max(1, min(most or LEFT_OUT, NUMBERS // columns) // 64))


def dependence(F: FloatArray, Y: FloatArray, numbers: Rows) -> tuple[float, float, int]:
    """How much of the error at a row those beside it tell, the correlation of errors of rows in order (`FirstLook`),
    and how many rows on either side are meant; of features F (n, m), targets Y (n, q) and the rows' numbers (n,) in
    order. The first is leave-one-out against h-block cross-validation (Burman, Chow & Nolan 1994) of ridge regression:
    with the hat matrix H of all rows and a row's neighbours B, the residual e without them is the row's entry of (I -
    H_BB)^-1 e_B. Departures: the intercept is that of all rows, and errors below NOTHING need not be told."""
    Y = Y[:, np.ptp(Y, axis=0) > 0] if len(Y) else Y[:, :0]  # those that vary
    Y = (Y - Y.mean(axis=0)) / Y.std(axis=0) if Y.size else Y
    n, beside = len(F), int(np.clip(len(F) // 20, 1, BESIDE))
    if n < LEAST or not Y.shape[1]:
        return 0.0, 0.0, beside
    tried = np.linspace(0, n - 1, min(n, MOST_TRIED)).astype(np.intp)
    wanted = numbers[tried, None] + np.arange(-beside, beside + 1)
    near = np.minimum(np.searchsorted(numbers, wanted), n - 1)
    near[numbers[near] != wanted] = n  # no row
    F = F - F.mean(axis=0)
    values, vectors = scipy.linalg.eigh(F.T @ F, check_finite=False)
    Z, values = F @ vectors, np.maximum(values, 0.0)
    seen, alone, lefts, sizes = Z.T @ Y, [], [], np.sqrt(values + n * np.array(_RIDGES)[:, None])
    for size in sizes:
        roots = Z / size
        lefts.append(Y - roots @ (seen / size[:, None]))
        errors = lefts[-1] / np.maximum(1.0 - np.sum(roots**2, axis=1) - 1.0 / n, _TINY)[:, None]
        alone.append((float(np.mean(errors[tried] ** 2)), _correlation(errors, numbers)))
    at_once = max(1, 2 * beside * len(tried) // n)  # rows tried, whose neighbours are mostly the same
    parts = np.split(near, range(at_once, len(tried), at_once))
    together = np.concatenate([_without(Z, sizes, np.array(lefts), some)[:, :, beside] for some in parts], axis=1)
    (least, correlation), most = min(alone), max(float(np.mean(together**2, axis=(1, 2)).min()), NOTHING)
    return max(0.0, 1.0 - max(least, NOTHING) / most), correlation, beside


def _without(Z: FloatArray, sizes: FloatArray, left: FloatArray, near: Rows) -> FloatArray:
    """Errors (r, t, k, q) at rows `near` (t, k), each k of them left out together, of r fits whose hat matrices' roots
    are Z (n, m) over sizes (r, m), and residuals `left` (r, n, q); n is no row, and has no error."""
    start, stop = near.min(), near[near < len(Z)].max() + 1
    at, k = np.minimum(near, stop) - start, stop - start + 1  # the last is no row
    roots = np.append(Z[start:stop], np.zeros((1, Z.shape[1])), axis=0) / sizes[:, None]
    hat = (roots @ np.swapaxes(roots, 1, 2)).reshape(len(sizes), -1)[:, at[:, :, None] * k + at[:, None, :]]
    errors = np.append(left[:, start:stop], np.zeros_like(left[:, :1]), axis=1)
    return np.asarray(np.linalg.solve((1.0 + _TINY) * np.eye(near.shape[1]) - hat, errors[:, at]))


def _correlation(errors: FloatArray, numbers: Rows) -> float:
    """Of errors (n, q) of scaled targets with those of the next row, the mean of targets'."""
    next_to = np.flatnonzero(np.diff(numbers) == 1)
    errors = errors - errors.mean(axis=0)
    products = np.mean(errors[next_to] * errors[next_to + 1], axis=0) if len(next_to) else np.zeros(errors.shape[1])
    return float(np.mean(products / np.maximum(np.mean(errors**2, axis=0), NOTHING)))


def block_length(rows: int, folds: int) -> int:
    """Rows of a block: a power of two, of which there are at least `BLOCKS` for each fold where there are as many."""
    return int(2 ** max(0, int(np.log2(max(1, rows / (BLOCKS * folds))))))


def linear_r2(X: FloatArray, Y: FloatArray, fold_of: Rows) -> tuple[float | None, ...]:
    """Held-out R2 of each target (q,) by ridge regression on the inputs X (n, d), at the best of a few ridges for it;
    None of targets that do not vary, of few rows, and where all are in one fold. Of wide rows as many as are quick."""
    d = X.shape[1]
    some = slice(None, None, math.ceil(max(1, len(X)) / max(LINEAR_FLOPS / d**2, math.sqrt(LINEAR_FLOPS / d))))
    X, Y, fold_of = X[some], Y[some], fold_of[some]
    folds = np.unique(fold_of)
    if len(folds) < 2 or len(X) < LEAST:
        return tuple(None for _ in range(Y.shape[1]))
    errors, spread = np.zeros((len(_LINEAR_RIDGES), Y.shape[1])), np.sum((Y - Y.mean(axis=0)) ** 2, axis=0)
    for fold in folds:
        train, held = fold_of != fold, fold_of == fold
        centre, mean = X[train].mean(axis=0), Y[train].mean(axis=0)
        size = X[train].std(axis=0)
        A = (X - centre) / np.where(size > 0, size, 1.0)
        U, s, Vt = scipy.linalg.svd(A[train], full_matrices=False, check_finite=False)
        along = U.T @ (Y[train] - mean)
        for at, ridge in enumerate(_LINEAR_RIDGES):
            W = Vt.T @ (along * (s / (s**2 + ridge * len(U)))[:, None])
            errors[at] += np.sum((Y[held] - mean - A[held] @ W) ** 2, axis=0)
    r2 = 1.0 - errors.min(axis=0) / np.where(spread > 0, spread, 1.0)
    return tuple(float(one) if of > 0 else None for one, of in zip(r2, spread, strict=True))


def held_out_multiple(
    setting: Setting,
    rows: RowBlock,
    fold_of: Rows,
    seed: int,
    count: int,
) -> float:
    """Return the multiple of a kernel's length-scales that predicts other folds best.

    The evidence takes errors that rows of a group share for a part of the function, and finds
    length-scales too short. Each of `MULTIPLES` is scored at its best ridge. One that is not 1 has
    to be better by `WORTH`, also with the number of features of the fit (up to `CHECKED`), as few
    features predict better with longer length-scales. It is 1 for skeletons, for few rows and for a
    single fold.

    Folds have to be groups, which lie among each other. Blocks of a walk lie apart, and where there
    is no row the best length-scale may be of any length.

    Parameters
    ----------
    setting : Setting
        The setting of the kernel; m is the number of unknowns of the first comparison. Output
        matrices count as the identity.
    rows : RowBlock
        Sampled rows with all targets, their inputs scaled.
    fold_of : (n,)
        The fold of each row; several are held out together if they are many.
    seed : int
        The seed of the features.
    count : int
        The number of features of the fit.
    """
    folds, fold_of = np.unique(fold_of, return_inverse=True)
    scalars = [base.scalar for _, base in setting.kernel.terms()]
    has_lengthscales = all("lengthscale" in scalar.config() for scalar in scalars)
    if not has_lengthscales or len(folds) < 2 or len(rows) < LEAST:
        return 1.0
    lengthscale = np.asarray(scalars[0].config()["lengthscale"])
    fold_of = fold_of % TRIED_FOLDS

    def score(multiple: float, m: int) -> float:
        kernel = with_lengthscale(setting.kernel, lengthscale * multiple, identity=True)
        multiplied = replace(setting, kernel=kernel, m=m)
        return held_out_score(multiplied, rows, fold_of, seed, IID()).least

    errors = {multiple: score(multiple, setting.m) for multiple in MULTIPLES}
    best = min(MULTIPLES, key=errors.__getitem__)
    if errors[1.0] - errors[best] < WORTH:
        return 1.0
    most_features = max(setting.m, min(CHECKED, count))
    if most_features > setting.m:
        gain = score(1.0, most_features) - score(best, most_features)
        if gain < WORTH:
            return 1.0
    return best


def held_out_score(
    setting: Setting,
    rows: RowBlock,
    fold_of: Rows,
    seed: int,
    sampler: Sampler,
) -> Score:
    """Return the k-fold score of a kernel at its best ridge.

    Parameters
    ----------
    setting : Setting
        The setting of the kernel, and of the number m of unknowns.
    rows : RowBlock
        Sampled rows with all targets, their inputs scaled. Landmarks are chosen among them.
    fold_of : (n,)
        The fold of each row.
    seed : int
        The seed of the features.
    sampler : Sampler
        The sampler of the features.
    """
    d, q = setting.d, rows.Y.shape[1]
    p = q if setting.observe is None else setting.observe.shape[1]
    # Features do not depend on a covariance of outputs, which comes from the folds.
    kernel = setting.kernel.fix(d, p, np.eye(p))
    count = max(2, setting.m // (p if kernel.vector_field else 1))
    recipe = Recipe(kernel, sampler, d, p, count, setting.intercept).among(rows.X, seed)
    drawn = recipe.draw(seed)
    features = FeatureMap(drawn.phi, np.zeros(d), np.ones(d))

    size = block_rows(features.m + 1 + q)
    sums = BlockSums(features, rows.Y.mean(axis=0), block_rows=size)
    for fold in np.unique(fold_of):
        held = rows[fold_of == fold]
        sums.add(held.X, held.Y, int(fold), weights=held.weights)
    folds = [[part] for part in sums.moments().values()]
    drawn_setting = replace(setting, m=features.m, density=drawn.density)
    scores = setting_scores(folds, drawn_setting, None, by="kfold")
    return min(scores, key=lambda score: score.least)


def alike(dependence: float, correlation: float) -> bool:
    """Whether rows beside a row tell so much of its error that they are to be held out together."""
    return dependence > ALIKE or correlation > CORRELATED


def run_length(looked: FirstLook, rows: int, folds: int, *, always: bool = False) -> int:
    """How many rows are held out together: those of a block where they are alike, or `always`, else one."""
    return block_length(rows, folds) if always or alike(looked.dependence, looked.correlation) else 1


def look(kernel: OperatorKernel, X: FloatArray, Y: FloatArray, numbers: Rows, seed: int) -> FirstLook:
    """What a sample's scaled inputs X (n, d), targets Y (n, q) and numbers (n,) tell, but for a linear model."""
    if len(X) < LEAST:
        return FirstLook(len(X), 0, 0.0, 0.0)
    with pinned():
        share, correlation, beside = dependence(sketch(kernel, X, seed), Y, numbers)
    return FirstLook(len(X), beside, share, correlation)
