"""The error of a solution on the rows of other moments; R2, as all of dorff says it; and the noise that is left."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

import numpy as np
from scipy.linalg import blas

from dorff.kernels import MultiView, OperatorKernel
from dorff.moments import FloatArray, Kind, Solvable
from dorff.solvers.direct import SpectralSolver, factor_of
from dorff.solvers.problem import Parts, Problem
from dorff.solvers.scores import BlockSolution, RidgeScores, Solution
from dorff.solvers.stochastic import Preconditioned, estimated
from dorff.solvers.system import Block, Spectrum

_TINY = 1e4  # times rounding: what f is of the targets where nothing is left of it
_ROUNDING: Final = 2.0**-46  # of a target's mean: what rounding may leave of a deviation from it
STEPS: Final = 50  # of finding D
CLOSE: Final = 1e-4  # a step that changes no variance by more of itself is the last
LEAST: Final = 1e-10  # of the mean variance: less counts as that much where targets are divided by it


@dataclass(frozen=True, eq=False)
class Spread:
    """Of each target (q,): how many `rows` have it and their `weight`, its summed squares about their mean, by this
    weight, and what of `squares`, or of squared errors, may be `rounding` alone."""

    rows: FloatArray
    weight: FloatArray
    squares: FloatArray
    rounding: FloatArray

    @classmethod
    def of(cls, rows: FloatArray, weight: FloatArray, mean: FloatArray, squares: FloatArray) -> Self:
        """Of each target (q,): the rows that have it, their summed weight, their mean, and the squares about it."""
        return cls(rows, weight, squares, weight * (_ROUNDING * mean) ** 2)

    @classmethod
    def of_moments(cls, parts: Parts) -> Self:
        """Of the rows that the moments were taken of."""
        corners = [(part.n * part.mask, part.mask, part.corner) for part in parts]
        sums = [[n, corner[0, 0] * mask, corner[0, 1:], np.diag(corner)[1:]] for n, mask, corner in corners]
        rows, weight, first, squares = np.sum(sums, axis=0)
        about = first / np.where(weight > 0, weight, 1.0)
        return cls.of(rows, weight, parts[0].y0 + about, np.maximum(squares - first * about, 0.0))

    def each(self, errors: FloatArray) -> FloatArray:
        """R2 (..., q) of every target, of summed squared errors (..., q); NaN where fewer than two rows have it."""
        return np.where(self.rows > 1, _r2(errors, self.squares, self.rounding), np.nan)


class R2(StrEnum):
    """What a model's R2 is of: 1 - squared error / squares about the mean, the one definition of all of dorff. The
    mean of the outputs' own, each over the rows that have it, where there are two: it has no unit, and a target in
    another unit does not change it. Pooled, one quotient of sums over all outputs, where these are of one unit and the
    sums mean something: components of a vector field, of which a coordinate may be almost still, and one-hot rows of
    classes. A target that does not vary has R2 1 where it is met, else 0, up to rounding, as in scikit-learn."""

    MEAN = "mean of outputs"
    POOLED = "pooled"

    @classmethod
    def of(cls, kernels: Iterable[OperatorKernel], observe: FloatArray | None, *, classes: bool = False) -> "R2":
        """What is compared by these kernels: pooled where targets are classes, or one of the kernels is of vector
        fields and the targets are f, or a mean of views of it. Not where they are C f: rows of C may change units."""
        fields = [one for one in kernels if one.vector_field and (observe is None or isinstance(one, MultiView))]
        return cls.POOLED if classes or fields else cls.MEAN

    @classmethod
    def of_info(cls, info: Mapping[str, Any], kernel: OperatorKernel, observe: FloatArray | None) -> "R2":
        """Return what a model's R2 is of: what its `info` says, as several kernels may have been compared.

        A model that does not say has that of its kernel.
        """
        if (kept := info.get("r2_of")) in list(cls):
            return cls(kept)
        return cls.of([kernel], observe, classes=info.get("labels") is not None)

    @property
    def other(self) -> "R2":
        """The definition that this one is not: scores of both can be compared with those of any fit."""
        return R2.MEAN if self is R2.POOLED else R2.POOLED

    def score(self, errors: FloatArray, spread: Spread) -> FloatArray:
        """R2 (...,) of summed squared errors (..., q); NaN for a mean where no target is in two rows."""
        if self is R2.POOLED:
            return _r2(errors.sum(axis=-1), spread.squares.sum(), spread.rounding.sum())
        if not np.any(spread.rows > 1):
            return np.full(errors.shape[:-1], np.nan)
        return np.asarray(np.mean(spread.each(errors)[..., spread.rows > 1], axis=-1))


def row_sums(Y: FloatArray, values: FloatArray, weights: FloatArray) -> FloatArray:
    """(5, q) of targets Y (n, q), NaN where they are missing, and predictions (n, q), by weights (n,): what
    `Spread.of` takes, and the summed squared errors. A row that weighs nothing is not there."""
    there = np.isfinite(Y) & (weights > 0)[:, None]
    w = np.where(there, weights[:, None], 0.0)
    weight = w.sum(axis=0)
    mean = (w * np.where(there, Y, 0.0)).sum(axis=0) / np.where(weight > 0, weight, 1.0)
    squares, errors = ((w * np.where(there, Y - other, 0.0) ** 2).sum(axis=0) for other in (mean, values))
    return np.array([there.sum(axis=0), weight, mean, squares, errors])


def _r2(errors: FloatArray, squares: FloatArray, rounding: FloatArray) -> FloatArray:
    varies = squares > rounding
    return np.where(varies, 1.0 - errors / np.where(varies, squares, 1.0), errors <= rounding)


@dataclass(frozen=True, eq=False)
class FoldErrors:
    """Of each ridge, over all folds: squared errors (ridges, q), how they were found, and the digits left (ridges,).
    Where f has a free scale, `sizes` (ridges,) are its summed squares; all about outputs' means (`about_mean`)."""

    squares: FloatArray
    rungs: list[str]
    digits: FloatArray
    sizes: FloatArray

    @classmethod
    def none(cls, rungs: list[str], q: int) -> Self:
        """Before the first fold."""
        ridges = len(rungs)
        return cls(np.zeros((ridges, q)), rungs, np.full(ridges, np.inf), np.zeros(ridges))

    def add(self, at: int | slice, squares: FloatArray, digits: float | FloatArray, sizes: float | FloatArray) -> None:
        """What a fold gives at one or all of the ridges."""
        self.squares[at] += squares
        self.digits[at] = np.minimum(self.digits[at], digits)
        self.sizes[at] += sizes

    def of_best_scale(self, energy: float, unit: float) -> FloatArray:
        """(ridges,): the summed squared errors of all targets of s f with the best s >= 0, or of 0 where nothing but
        rounding (`unit`) is left of f. The targets' summed squares are `energy`."""
        totals: FloatArray = self.squares.sum(axis=1)
        along = np.maximum(self.sizes + energy - totals, 0.0) / 2
        there = self.sizes > (_TINY * unit) ** 2 * energy
        return energy - np.divide(along**2, self.sizes, out=np.zeros_like(along), where=there)


def about_mean(W: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
    """W (..., q) and bias (..., q) of f less the mean of its q outputs, plus 1 / q, the mean of a one-hot row."""
    return W - W.mean(axis=-1, keepdims=True), bias - bias.mean(axis=-1, keepdims=True) + 1.0 / bias.shape[-1]


def squared_size(moments: Solvable, W: FloatArray, bias: FloatArray) -> float:
    """The summed squares of F W + bias about 1 / q."""
    return float(np.sum(moments.squares(np.vstack([W, bias - 1.0 / len(bias), np.zeros((moments.q, moments.q))]))))


def squared_error(moments: Solvable, W: FloatArray, bias: FloatArray) -> FloatArray:
    """Summed squared error (q,) of f = F W + bias over the rows the moments were taken of; 0 for what they miss. W (m,
    q) and bias (q,) in the targets' units. Never less than what rounding leaves of it (`rounding_level`); of a
    triangle, whose residuals are not squared before they are summed, the square of that."""
    k, V = moments.m + 1, np.vstack([W, bias - moments.y0, -np.eye(moments.q)])
    size = np.diag(moments.corner)[1:] + moments.largest * np.sum(V[:k] ** 2, axis=0)
    error, unit = moments.squares(V), moments.unit
    least = (unit**2 if moments.kind is Kind.TRIANGLE else unit) * size
    return np.where(moments.mask, np.maximum(error, least), 0.0)


def squared_errors(parts: Parts, W: FloatArray, bias: FloatArray, observe: FloatArray | None) -> FloatArray:
    """(q,): those of all parts together, of C f."""
    W, bias = (W, bias) if observe is None else (W @ observe.T, observe @ bias)
    return np.asarray(np.sum([squared_error(part, W, bias) for part in parts], axis=0))


def rounding_level(full: FloatArray, k: int, squares: FloatArray) -> FloatArray:
    """(..., q): the targets' squares and |W|^2 times (a bound of) the largest eigenvalue of the sums `full` (w, w)
    over the k features and ones, for squares |W|^2 (..., q): so large are the terms of a squared error that cancel."""
    largest = np.sqrt(np.einsum("ij,ij->", full[:k, :k], full[:k, :k]))
    return np.asarray(np.diag(full)[k:] + largest * squares)


class NoiseModel(NamedTuple):
    """The noise variances (q,) of the scaled targets, in rows of weight 1, at which the evidence is greatest for a
    ridge, 0 for a target that the intercept uses up; and its log there, of the targets in their own units, with the
    standard `error` of an estimate."""

    variance: FloatArray
    log_evidence: float
    error: float = 0.0


class Reweighed(NamedTuple):
    """`weighed` gives the problem of targets divided by the roots of variances (q,), or its systems that are known by
    their products; a ridge; first variances (q,)."""

    weighed: Callable[[FloatArray], Problem | Preconditioned]
    ridge: float
    noise: FloatArray


def noise_models(parts: Parts, trials: Iterable[Reweighed]) -> Iterator[NoiseModel]:
    """D, and the restricted likelihood at it, of the model in `solvers.uncertainty`, for each trial of these features.
    The steps are MacKay's (1992, eq. 4.10): s_j^2 = |r_j|^2 / (n_j - df_j), r_j and df_j being the residuals and the
    degrees of freedom of target j under D. Departures: the intercept's degrees are off n_j, and as t2 is tied to D
    each side has its share of |h|^2 / t2 and of sum df; of one target it is (RSS + l ridge |h|^2) / n at once. A step
    is a factorisation and its inverse, or of columns apart a division: one spectrum serves all trials."""
    spectra: Sequence[Spectrum] = ()
    for weighed, ridge, noise in trials:
        best = None
        for _ in range(STEPS):
            problem = weighed(noise)
            if spectra and isinstance(problem, Problem):  # columns apart: only the targets' rotations, sizes are new
                pairs = zip(problem.blocks, spectra, strict=True)
                problem = replace(problem, blocks=tuple(replace(new, given=old) for new, old in pairs))
            model, step = _stepped(problem, parts, ridge)
            if best is None or model.log_evidence >= best.log_evidence or model.error == np.inf:
                best = model
            if isinstance(problem, Problem) and all(one.rotation is not None and one.squared for one in problem.blocks):
                spectra = [block.spectrum for block in problem.blocks]
            del problem  # before the next is formed
            if np.abs(np.log(step / noise)).max() <= CLOSE or model.error == np.inf:
                break
            noise = step
        assert best is not None
        yield best


def relative_noise(squares: FloatArray, left: FloatArray) -> FloatArray:
    """Variances (q,) of mean 1 over the entries that are left, in proportion to `squares` over these."""
    each = np.where(left > 0, squares / np.maximum(left, 1.0), 0.0)
    mean = float(left @ each) / max(float(left.sum()), 1.0)
    each = np.maximum(each / mean, LEAST) if mean > 0 else np.ones(len(left))
    return np.where(left > 0, each, 1.0)


def _stepped(of: Problem | Preconditioned, parts: Parts, ridge: float) -> tuple[NoiseModel, FloatArray]:
    """What the relative variances of a problem give, and the next ones."""
    if isinstance(of, Problem):
        problem, each, error = of, [_solved(of, block, parts, ridge) for block in of.blocks], 0.0
    else:
        guess, problem = estimated(of, ridge), of.system.problem
        each, error = [(guess.solved, guess.freedom)], 0.5 * guess.error
    assert problem.noise is not None
    solved, freedom = [one for one, _ in each], sum((own for _, own in each), np.zeros(len(problem.noise)))
    scores = RidgeScores(problem, solved)
    W = problem.weights.combined(problem.coefficients([one.x for one in solved]))
    s2, noise, counts = float(scores.variance[0]), problem.noise, contrasts(problem)
    unit = max(s2, float(np.finfo(np.float64).tiny))
    squares = squared_errors(parts, W * problem.outputs, problem.bias(W), problem.observe) / problem.units**2 / unit
    held = sum(float(one.shrunk.sum()) for one in solved) / unit
    share = counts * noise / max(float(counts @ noise), 1.0)
    free = np.einsum("qp,ps,qs->q", problem.C, problem.free[0], problem.C)  # and so much of it are the intercept's
    spent = problem.intercept * free * sum(one.n * one.mask for one in problem.rows)
    bottom = problem.entries - spent - freedom + share * freedom.sum()
    there = (counts > 0) & (bottom > 0)
    ratio = np.where(there, (squares + share * held) / np.where(there, bottom, 1.0), 1.0)
    model = NoiseModel(np.where(counts > 0, s2 * noise, 0.0), scores.log_evidence, error)
    return model, relative_noise(counts * noise * np.clip(ratio, 1e-3, 1e3), counts)


def contrasts(problem: Problem) -> FloatArray:
    """Entries (q,) of each target, less one for an intercept: by these variances are averaged."""
    return np.maximum(problem.entries - problem.intercept, 0.0)


def _solved(problem: Problem, block: Block, parts: Parts, ridge: float) -> tuple[BlockSolution, FloatArray]:
    """The solution, and of each target the degrees of freedom (q,) that it takes."""
    if block.load is None:
        solved, inverse = factor_of(problem, block, ridge).with_inverse()
        return solved, _freedom(problem, block, parts, inverse)
    solved = SpectralSolver(problem).factor(block, ridge).solve()  # one spectrum for the noise of every step
    assert solved.freedom is not None
    return solved, (block.load**2 / np.where(block.a > 0, block.a, 1.0)) @ solved.freedom


def _freedom(problem: Problem, block: Block, parts: Parts, inverse: FloatArray) -> FloatArray:
    """(q,): tr(G_t inverse), G_t target t's part of the G of everything; the inverse's lower triangle is read."""
    feature, row = block.at
    psi, freedom = problem.weights.psi[feature, row], np.zeros(len(problem.scale))
    centre = problem.centres(feature, psi)
    for part, one in zip(parts, problem.rows, strict=True):
        product = part.full[: part.m, : part.m][np.ix_(feature, feature)].T  # by columns, as LAPACK has the inverse
        product *= inverse
        for j in range(1, len(product)):
            product[:j, j] = 0.0
        seen, away = psi @ problem.C[one.mask].T, centre @ problem.C[one.mask].T
        taken = 2.0 * np.sum(seen * (product @ seen), axis=0) - np.diag(product) @ seen**2
        del product
        reached = blas.dsymm(1.0, inverse, away, lower=1)
        taken += np.sum((one.n * away - 2.0 * one.s[feature, None] * seen) * reached, axis=0)
        freedom[one.mask] += taken
    return freedom


def independent(problem: Problem) -> bool:
    """Whether each target has a problem of its own."""
    V = problem.directions
    return len(problem.scale) == 1 or (V is not None and np.array_equal(V, np.eye(len(V))))


def noise_variance(problem: Problem, solution: Solution) -> FloatArray | None:
    """(q,): of the targets' noise in their own units, for a row of mean weight; None where it takes more than the
    solution. Of targets that are problems of their own: where the evidence is greatest if the ridge is its own too;
    one ridge for all can fit none, and the residuals over the degrees of freedom left depend on it least."""
    if (variance := solution.variance) is None or not independent(problem):
        return None
    if len(variance) > 1 and solution.ridges is None and not problem.penalty_borders:
        if solution.rss is None or solution.freedom is None:
            return None
        left = problem.entries - solution.freedom
        variance = np.where(left > 0, solution.rss / np.where(left > 0, left, 1.0), variance)
    return noise_of(problem, problem.scale, variance)


def noise_of(seen: Problem | Parts, scale: FloatArray, variance: FloatArray) -> FloatArray:
    """(q,) of variances of the scaled targets in rows of weight 1, for one of the mean weight: a factor is nothing."""
    return np.asarray(variance * scale**2 / mean_weight(seen))


def mean_weight(seen: Problem | Parts) -> FloatArray:
    """Of the rows that have a target, (q,)."""
    if isinstance(seen, Problem):
        rows = [(one.n, one.count, one.mask) for one in seen.rows]
    else:
        rows = [(float(part.corner[0, 0]), part.n, part.mask) for part in seen]
    weight, entries = sum(n * mask for n, _, mask in rows), sum(count * mask for _, count, mask in rows)
    return np.asarray(np.where(weight > 0, weight, 1.0) / np.where(weight > 0, entries, 1.0))


def residual_variance(solution: Solution, squares: FloatArray, counts: FloatArray) -> FloatArray:
    """(q,), where nothing is factored: `squares` (q,) left over `counts` (q,) of entries, less one share of freedom.
    These are l ridge |h|^2 over the noise, as they are on average for the ridge of most evidence (MacKay 1992, section
    4), and no more than the unknowns. What the fit, which counts targets alike, has taken on of noisier ones counts as
    a target's own noise, and so does what it misses: right for rows far above the degrees of freedom, else more."""
    assert solution.variance is not None
    variance, total = solution.variance, max(float(counts.sum()), 1.0)
    mean = variance[0] if len(variance) == 1 else np.average(variance, weights=np.maximum(counts, 1e-300))
    share = max(0.0, 1.0 - float(squares.sum()) / max(float(mean) * total, 1e-300))
    left = counts * (1.0 - min(share, solution.h.size / total))
    return np.where(left > 0, squares / np.where(left > 0, left, 1.0), 0.0)
