"""Posteriors of few rows: the noise variance is an estimate, and the ridge was selected.

`solvers.uncertainty` computes the posterior of f for a given noise variance and a given ridge. Few
rows determine neither of them well.

The noise variance has a posterior of its own, which makes that of f a multivariate t distribution.
Its variances are those of the given noise times nu / (nu - 2), whatever the number of rows
(`Posterior.inflated`). Ridges that explain the rows as well as the selected ridge give other
functions and other variances: for fewer than `FEW_ROWS` rows the posterior is averaged over them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from dorff.model.posterior import CoupledBlock, Posterior, PosteriorBlock
from dorff.moments import FloatArray
from dorff.solvers.problem import Parts, Problem

FEW_ROWS: Final = 128  # rows below which posteriors are averaged over ridges
MOST_UNKNOWNS: Final = 2048  # of a system whose eigenvectors are computed to average over ridges
LEAST_WEIGHT: Final = 1e-3  # of a ridge, relative to the largest
LEAST_FREEDOM: Final = 3.0  # with 2 degrees of freedom a t distribution has no variance


def noise_freedom(parts: Parts, *, intercept: bool) -> float:
    """Return the degrees of freedom nu that the noise variance of a target is estimated with.

    Given the ridge, the ratio of the variances of noise and prior is known. The noise variance s2
    then has the posterior nu s2_hat / chi2(nu), for a prior density proportional to 1 / s2. The
    prior of h counts as rows that it fits, one for each coefficient (Gelman et al. 2013, Bayesian
    Data Analysis, section 14.8), so that nu is the number of rows, less one for an intercept.

    Parameters
    ----------
    parts : sequence of moments
        Moments of the rows, one for each pattern of missing targets.
    intercept : bool
        Whether the model has an intercept.

    Returns
    -------
    float
        The mean of nu over the targets; at least `LEAST_FREEDOM`.
    """
    target_rows = np.sum([part.n * part.mask for part in parts], axis=0)
    return max(float(np.mean(target_rows)) - intercept, LEAST_FREEDOM)


def ridge_weights(ridges: Sequence[float], log_evidences: Sequence[float]) -> FloatArray:
    """Return the posterior probabilities of ridges, for a prior that is flat in log ridge.

    Each ridge stands for the interval between the midpoints to its neighbours.

    Parameters
    ----------
    ridges : sequence of k floats
        Above 0, in ascending order.
    log_evidences : sequence of k floats
        Log evidence at each ridge.

    Returns
    -------
    ndarray of shape (k,)
    """
    values = np.asarray(log_evidences, dtype=np.float64)
    likelihood = np.exp(values - values.max())
    weights = likelihood * np.gradient(np.log(ridges))
    return np.asarray(weights / weights.sum())


def average_posteriors(posteriors: Sequence[Posterior], weights: FloatArray) -> Posterior:
    """Return the Gaussian posterior whose variances are the weighted means of those of posteriors.

    Parameters
    ----------
    posteriors : sequence of k Posterior
        Posteriors of the same system at several ridges.
    weights : ndarray of shape (k,)
        Probabilities of the ridges.
    """
    blocks = list[PosteriorBlock]()
    for ridge_blocks in zip(*(posterior.blocks for posterior in posteriors), strict=True):
        blocks += _average_blocks(ridge_blocks, weights)

    intercepts, noises = list[FloatArray](), list[FloatArray]()
    priors, unexplained = list[FloatArray](), list[FloatArray]()
    for posterior, weight in zip(posteriors, weights, strict=True):
        intercepts.append(weight * posterior.intercept_covariance)
        noises.append(weight * posterior.noise)
        if posterior.prior is not None:
            priors.append(weight * posterior.prior)
        if posterior.unexplained is not None:
            unexplained.append(weight * posterior.unexplained)
    return Posterior(
        blocks=tuple(blocks),
        intercept_covariance=np.asarray(sum(intercepts)),
        noise=np.asarray(sum(noises)),
        prior=np.sum(priors, axis=0) if priors else None,
        unexplained=np.sum(unexplained, axis=0) if unexplained else None,
    )


def _average_blocks(
    blocks: Sequence[PosteriorBlock],
    weights: FloatArray,
) -> list[PosteriorBlock]:
    """Return one block if all blocks have the same basis, else each block times its weight."""
    weighted_blocks = list[PosteriorBlock]()
    for block, weight in zip(blocks, weights, strict=True):
        spread = weight * block.spread
        if spread.ndim == 2:
            spread = spread * block.variance
        unit_variance = np.ones(len(block.variance))
        weighted_blocks.append(replace(block, spread=spread, variance=unit_variance))

    if any(block.basis is not blocks[0].basis for block in blocks):
        return weighted_blocks
    total_spread = np.sum([block.spread for block in weighted_blocks], axis=0)
    return [replace(weighted_blocks[0], spread=total_spread)]


def spread_of_means(
    problem: Problem,
    differences: FloatArray,
    weights: FloatArray,
) -> CoupledBlock:
    """Return the block whose variances are the weighted squares of differences of functions.

    Parameters
    ----------
    problem : Problem
        The system that the functions solve, at several ridges.
    differences : ndarray of shape (k, m, r)
        Coefficients of each function less those of the model.
    weights : ndarray of shape (k,)
        Probabilities of the functions.
    """
    count, m, r = differences.shape
    feature = np.repeat(np.arange(m), r)
    row = np.tile(np.arange(r), m)
    psi = problem.weights.psi[feature, row]
    return CoupledBlock(
        basis=np.ascontiguousarray(differences.reshape(count, m * r).T),
        spread=np.asarray(weights)[:, None],
        variance=np.ones(1),
        feature=feature,
        row=row,
        loading=psi * problem.outputs,
        centre=problem.centres(feature, psi) * problem.outputs,
    )
