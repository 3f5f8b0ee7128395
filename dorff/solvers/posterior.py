"""The posterior of a fit, from the system that gave it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.linalg import lapack

from dorff.errors import InputError
from dorff.moments import FloatArray
from dorff.posterior import CoupledBlock, Posterior, PosteriorBlock, SeparableBlock
from dorff.solvers.dense import factored
from dorff.solvers.problem import Problem, Solution
from dorff.solvers.system import Block, IntArray

Spread = tuple[FloatArray, FloatArray]  # basis (k, k'), spread (k', c): the columns' inverses basis diag(s_j) basis^T


def noise_covariance(problem: Problem, solution: Solution) -> FloatArray:
    """(q, q): of the targets' noise in their own units, for a row of mean weight.

    The mean is over the rows that see a direction, so that a constant factor of all weights changes nothing.
    """
    assert solution.variance is not None
    V, totals = np.eye(len(problem.scale)) if problem.directions is None else problem.directions, problem.totals
    some = totals.weight > 0
    mean = np.where(some, totals.weight, 1.0) / np.where(some, totals.entries, 1.0)
    scaled: FloatArray = (V * (solution.variance / mean)) @ V.T
    return scaled * np.outer(problem.scale, problem.scale)


def posterior(problem: Problem, solution: Solution) -> Posterior:
    """Of the Bayesian linear model (`dorff.solvers.scores`) at the solution's ridge and noise variance.

    x has covariance s2 (G + l ridge I)^-1, column by column, and the intercept s2 times the inverse of its own system
    about the features' means; with penalties G and that system have theirs. What of the intercept C leaves open stays
    the fit's: no deviation is counted there.
    A Cholesky factor's inverse where one serves all columns, else the eigenvectors of G. InputError at ridge 0 where G
    is singular.
    """
    assert solution.variance is not None
    ridge = solution.ridge if solution.ridges is None else solution.ridges
    variance, blocks = solution.variance, list[PosteriorBlock]()
    for block in problem.blocks:
        spread = _spread(problem, block, ridge)
        if block.rotation is not None and problem.weights.views is not None:
            blocks += _columns(problem, block, spread, variance)
        else:
            blocks.append(_block(problem, block, spread, variance))
    return Posterior(tuple(blocks), _intercept(problem, solution.variance), noise_covariance(problem, solution))


def _outputs(problem: Problem) -> FloatArray:
    """The outputs' scale (p,)."""
    return problem.scale if problem.observe is None else np.full(problem.weights.shape[2], problem.scale[0])


def _intercept(problem: Problem, variance: FloatArray) -> FloatArray:
    scale, p = _outputs(problem), problem.weights.shape[2]
    if not problem.intercept:
        return np.zeros((p, p))
    if problem.directions is None:
        scaled = variance[0] * problem.free[0]
    else:
        V = problem.directions  # in which the system of the intercept falls apart too
        turn = np.kron(np.eye(problem.weights.count), (V * np.sqrt(variance)) @ V.T)
        scaled = turn @ problem.free[0] @ turn
    return np.asarray(scaled * np.outer(scale, scale))


def _spread(problem: Problem, block: Block, ridge: float | FloatArray) -> Spread:
    shift = problem.shifts(block, ridge)
    found = factored(block, float(shift[0])) if block.plain and np.ptp(shift) == 0 else None
    if found is not None:
        inverse, _ = lapack.dtrtri(found.lower, lower=1, overwrite_c=1)
        return np.tril(inverse).T, np.ones((len(inverse), 1))
    values, vectors = block.spectrum
    inverse = values[:, None] * block.a + shift
    if not np.all(inverse > np.where(shift > 0, 0.0, block.floor * inverse.max(initial=0.0))):
        raise InputError("posterior: at ridge 0 what the data do not see has no bounds; give a ridge above 0")
    return vectors, 1.0 / inverse


def _block(problem: Problem, block: Block, spread: Spread, variance: FloatArray) -> PosteriorBlock:
    gain, root, scale = problem.weights.gain, problem.weights.root, _outputs(problem)
    if block.rotation is None:
        feature, row = block.at
        psi = problem.weights.psi[feature, row]
        return _coupled(problem, spread, variance, np.asarray(feature), np.asarray(row), psi)
    into = np.zeros((len(block.a), root.shape[1]))
    into[:, block.at] = block.rotation.T
    if problem.intercept and problem.observe is not None and np.linalg.matrix_rank(problem.observe) < len(scale):
        # The intercept takes the features' means in what C sees alone: no one centre serves all outputs.
        k, r = len(gain), root.shape[1]
        basis = np.asarray(np.kron(spread[0], into.T), dtype=np.float64)
        width = spread[0].shape[1], len(block.a)
        each: FloatArray = np.broadcast_to(spread[1], width).reshape(-1, 1)
        feature, row = np.repeat(np.arange(k), r), np.tile(np.arange(r), k)
        return _coupled(problem, (basis, each), variance, feature, row, gain[feature, None] * root[0][row])
    of_columns = variance[block.columns] if problem.directions is not None else np.full(len(block.a), variance[0])
    loading = into @ root[0] * scale
    return SeparableBlock(*spread, of_columns, gain, gain * _centre(problem, block), loading, into)


def _columns(problem: Problem, block: Block, spread: Spread, variance: FloatArray) -> Iterator[CoupledBlock]:
    """Of several views with one root: a block a column, with the rows of the root that it turns to."""
    assert block.rotation is not None and block.columns is not None
    k, basis = len(spread[0]), spread[0]
    for j, turn in enumerate(block.rotation.T):
        rows = np.flatnonzero(turn)
        feature, row = np.repeat(np.arange(k), len(rows)), np.tile(rows, k)
        own = spread[1][:, [j if spread[1].shape[1] > 1 else 0]]
        psi, turned = problem.weights.psi[feature, row], np.kron(basis, turn[rows, None])
        yield _coupled(problem, (turned, own), variance[block.columns[[j]]], feature, row, psi)


def _centre(problem: Problem, block: Block) -> FloatArray:
    """The features' weighted mean (m,) over the rows that a block is of, penalties among them; zeros without an
    intercept."""
    direction = 0 if block.columns is None else int(block.columns[0])
    there = [(rows.s, rows.n) for rows in problem.rows if problem.directions is None or rows.mask[direction]]
    if problem.directions is not None:
        shares = [float(np.sum((pull.C @ problem.directions[:, direction]) ** 2)) for pull in problem.pulls]
        there += [(pull.s * share, pull.n * share) for pull, share in zip(problem.pulls, shares, strict=True)]
    n = sum(n for _, n in there)
    if not problem.intercept or n == 0:
        return np.zeros(len(problem.weights.gain))
    return np.asarray(sum(s for s, _ in there) / n)


def _coupled(
    problem: Problem, spread: Spread, variance: FloatArray, feature: IntArray, row: IntArray, psi: FloatArray
) -> CoupledBlock:  # fmt: skip
    """`psi` (k, p) are the rows that x goes with; what the intercept takes of each is its centre."""
    scale, centre = _outputs(problem), np.zeros_like(psi)
    if problem.intercept:
        for one in problem.sights:
            centre += one.s[feature, None] * ((psi @ one.C.T) @ one.C)
        centre = centre @ problem.free[0]
    return CoupledBlock(*spread, variance[:1], feature, row, psi * scale, centre * scale)
