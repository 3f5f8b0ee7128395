"""Solve a list of ridges; the error of a solution on the rows of other moments, and R2, as all of dorff says it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Final, Self, final

import numpy as np

from dorff.kernels import MultiView, OperatorKernel
from dorff.moments import FloatArray, Kind, Solvable
from dorff.solvers.dense import solve_cholesky
from dorff.solvers.eigen import Ridge, Spectral
from dorff.solvers.problem import Problem, Solution
from dorff.solvers.system import Size

MOST_FACTORS = 8  # as many Cholesky factors take about as long as one `eigh`
_TINY = 1e4  # times rounding: what f is of the targets where nothing is left of it
_ROUNDING: Final = 2.0**-46  # of a target's mean: what rounding may leave of a deviation from it


def solve(problem: Problem, ridges: Sequence[Ridge], *, scores: bool = False) -> list[Solution]:
    """One solution a ridge: Cholesky for a few ridges, one `eigh` for many, and for all where Cholesky fails.

    A ridge may be (p,), one for each of the problem's directions. `scores` asks for GCV scores and evidences, which
    the `eigh` always gives.
    """
    apart = any(np.ndim(ridge) > 0 for ridge in ridges)
    if len(ridges) <= MOST_FACTORS and not apart and all(block.plain for block in problem.blocks):
        tried = (solve_cholesky(problem, float(ridge), scores=scores) for ridge in ridges)
        found = list(takewhile(lambda solution: solution is not None, tried))
        if len(found) == len(ridges):
            return [solution for solution in found if solution is not None]
    spectral = Spectral(problem)
    return [spectral.solve(ridge) for ridge in ridges]


def solve_bytes(size: Size) -> int:
    """The most memory of making a problem and of `solve`, beside the packed sums: these as squares, and of every block
    G, of one of them two more while it is assembled; or every G and its eigenvectors, and while these are found a copy
    of G and LAPACK's workspace, which is twice as large (dsyevd)."""
    square = 8 * size.k**2
    return size.vectors + max(size.unpacked + (size.blocks + 2) * square, (2 * size.blocks + 2) * square)


@final
@dataclass(frozen=True, eq=False)
class Spread:
    """Of each target (q,): how many `rows` have it, its summed squares about their mean, by the rows' weight, and what
    of `squares`, or of squared errors, may be `rounding` alone."""

    rows: FloatArray
    squares: FloatArray
    rounding: FloatArray

    @classmethod
    def of(cls, rows: FloatArray, weight: FloatArray, mean: FloatArray, squares: FloatArray) -> Self:
        """Of each target (q,): the rows that have it, their summed weight, their mean, and the squares about it."""
        return cls(rows, squares, weight * (_ROUNDING * mean) ** 2)

    @classmethod
    def of_moments(cls, parts: Sequence[Solvable]) -> Self:
        """Of the rows that the moments were taken of."""
        corners = [(part.n * part.mask, part.mask, part.corner) for part in parts]
        sums = [[n, corner[0, 0] * mask, corner[0, 1:], np.diag(corner)[1:]] for n, mask, corner in corners]
        rows, weight, first, squares = np.sum(sums, axis=0)
        about = first / np.where(weight > 0, weight, 1.0)
        return cls.of(rows, weight, parts[0].y0 + about, np.maximum(squares - first * about, 0.0))

    def each(self, errors: FloatArray) -> FloatArray:
        """R2 (..., q) of every target, of summed squared errors (..., q); NaN where fewer than two rows have it."""
        return np.where(self.rows > 1, _r2(errors, self.squares, self.rounding), np.nan)


@final
class R2(StrEnum):
    """What a model's R2 is of: 1 - squared error / squares about the mean, the one definition of all of dorff.

    The mean of the outputs' own, each over the rows that have it, where there are two: it has no unit, and a target
    in another unit does not change it. Pooled, one quotient of sums over all outputs, where these are of one unit and
    the sums mean something: components of a vector field, of which a coordinate may be almost still, and one-hot rows
    of classes. A target that does not vary has R2 1 where it is met, else 0, both up to rounding (scikit-learn's
    convention).
    """

    MEAN = "mean of outputs"
    POOLED = "pooled"

    @classmethod
    def of(cls, kernels: Iterable[OperatorKernel], observe: FloatArray | None, *, classes: bool = False) -> R2:
        """What is compared by these kernels: pooled where targets are classes, or one of the kernels is of vector
        fields and the targets are f, or a mean of views of it. Not where they are C f: rows of C may change units."""
        fields = [one for one in kernels if one.vector_field and (observe is None or isinstance(one, MultiView))]
        return cls.POOLED if classes or fields else cls.MEAN

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


def known_r2(r2: FloatArray | float) -> float | None:
    """One R2 as a number; None where it is not known."""
    return None if np.isnan(r2) else float(r2)


def _r2(errors: FloatArray, squares: FloatArray, rounding: FloatArray) -> FloatArray:
    varies = squares > rounding
    return np.where(varies, 1.0 - errors / np.where(varies, squares, 1.0), errors <= rounding)


@final
@dataclass(frozen=True, eq=False)
class FoldErrors:
    """Of each ridge, over the rows of all folds: summed squared errors (ridges, q), by which way they were found, and
    the digits (ridges,) that rounding leaves of the fits at least.

    Where f has a free scale, `sizes` (ridges,) are its summed squares; both these and the errors are about the mean of
    the outputs at each row (`about_mean`).
    """

    squares: FloatArray
    rungs: list[str]
    digits: FloatArray
    sizes: FloatArray | None = None

    def totals(self, energy: float, unit: float) -> FloatArray:
        """(ridges,): the summed squared errors of all targets; where f has a free scale those of s f with the best
        s >= 0, or of 0 where nothing but rounding (`unit`) is left of f. The targets' summed squares are `energy`."""
        totals: FloatArray = self.squares.sum(axis=1)
        if self.sizes is None:
            return totals
        along = np.maximum(self.sizes + energy - totals, 0.0) / 2
        there = self.sizes > (_TINY * unit) ** 2 * energy
        return energy - np.divide(along**2, self.sizes, out=np.zeros_like(along), where=there)


def about_mean(W: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
    """W (..., q) and bias (..., q) of f less the mean of its q outputs, plus 1 / q, the mean of a one-hot row."""
    return W - W.mean(axis=-1, keepdims=True), bias - bias.mean(axis=-1, keepdims=True) + 1.0 / bias.shape[-1]


def squared_size(moments: Solvable, W: FloatArray, bias: FloatArray) -> float:
    """The summed squares of F W + bias about 1 / q."""
    V = np.vstack([W, bias - 1.0 / len(bias), np.zeros((moments.q, moments.q))])
    return float(np.sum(moments.squares(V)))


def squared_error(moments: Solvable, W: FloatArray, bias: FloatArray) -> FloatArray:
    """Summed squared error (q,) of f = F W + bias over the rows the moments were taken of; 0 for what they miss.

    W (m, q) and bias (q,) in the targets' units. Never less than what rounding leaves of it (`rounding_level`); of a
    triangle, whose residuals are not squared before they are summed, the square of that.
    """
    k, full, V = moments.m + 1, moments.full, np.vstack([W, bias - moments.y0, -np.eye(moments.q)])
    size = rounding_level(full, k, np.sum(V[:k] ** 2, axis=0))
    if moments.kind is Kind.TRIANGLE:
        error, least = moments.squares(V), moments.unit**2 * size
    else:
        error, least = np.sum(V * (full @ V), axis=0), moments.unit * size
    return np.where(moments.mask, np.maximum(error, least), 0.0)


def rounding_level(full: FloatArray, k: int, squares: FloatArray) -> FloatArray:
    """(..., q): the targets' squares and |W|^2 times (a bound of) the largest eigenvalue of the sums `full` (w, w)
    over the k features and ones, for squares |W|^2 (..., q): so large are the terms of a squared error that cancel."""
    largest = np.sqrt(np.einsum("ij,ij->", full[:k, :k], full[:k, :k]))
    return np.asarray(np.diag(full)[k:] + largest * squares)
