"""Solve a list of ridges; and the error of a solution on the rows of other moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import final

import numpy as np

from dorff.moments import FloatArray, Kind, Solvable
from dorff.solvers.dense import solve_cholesky
from dorff.solvers.eigen import Ridge, Spectral
from dorff.solvers.problem import Problem, Solution
from dorff.solvers.system import Size

MOST_FACTORS = 8  # as many Cholesky factors take about as long as one `eigh`
_TINY = 1e4  # times rounding: what f is of the targets where nothing is left of it


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
