"""What few rows add to a posterior: the noise is an estimate, and the ridge was chosen.

`solvers.uncertainty` has the posterior of f for a given noise and a given ridge. Few rows leave both open. The noise
variance has a posterior of its own, which makes that of f a multivariate t distribution: its variances are those of the
given noise times nu / (nu - 2), whatever the number of rows. Ridges that explain the rows as well as the chosen one
give other functions and other variances: of fewer than `FEW_ROWS` rows the posterior is averaged over them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from dorff.model.posterior import CoupledBlock, Posterior, PosteriorBlock
from dorff.moments import FloatArray
from dorff.solvers.problem import Parts, Problem

FEW_ROWS: Final = 128  # below which the rows leave it open which ridge is right
MOST_UNKNOWNS: Final = 2048  # of a system whose eigenvectors are computed to average over ridges
LEAST_WEIGHT: Final = 1e-3  # of a ridge, relative to the largest
LEAST_FREEDOM: Final = 3.0  # with 2 degrees of freedom a t distribution has no variance


def noise_freedom(parts: Parts, *, intercept: bool) -> float:
    """Return the degrees of freedom nu that the noise variance of a target is estimated with.

    Given the ridge, the ratio of the variances of noise and prior is known. The noise variance s2 has then the
    posterior nu s2_hat / chi2(nu), for a prior density proportional to 1 / s2. A prior of h counts as rows that it
    fits, one for each coefficient (Gelman et al. 2013, Bayesian Data Analysis, section 14.8), so that nu is the number
    of rows, less one for an intercept. It is at least 3; of several targets it is the mean.
    """
    rows = np.sum([part.n * part.mask for part in parts], axis=0)
    return max(float(np.mean(rows)) - intercept, LEAST_FREEDOM)


def ridge_weights(ridges: Sequence[float], log_evidences: Sequence[float]) -> FloatArray:
    """Return the posterior probabilities (k,) of k ascending ridges, for a prior that is flat in log ridge.

    Each ridge stands for the interval between the middles to its neighbours.
    """
    values = np.asarray(log_evidences, dtype=np.float64)
    likelihood = np.exp(values - values.max())
    weights = likelihood * np.gradient(np.log(ridges))
    return np.asarray(weights / weights.sum())


def average_posteriors(posteriors: Sequence[Posterior], weights: FloatArray) -> Posterior:
    """Return the Gaussian posterior whose variances are the weighted means of these.

    Parameters
    ----------
    posteriors : sequence of Posterior
        Of the same system at several ridges.
    weights : ndarray of shape (k,)
        Their probabilities.
    """
    blocks = list[PosteriorBlock]()
    for of_ridges in zip(*(one.blocks for one in posteriors), strict=True):
        blocks += _average_blocks(of_ridges, weights)

    each = list(zip(posteriors, weights, strict=True))
    intercept = sum(weight * one.intercept_covariance for one, weight in each)
    noise = sum(weight * one.noise for one, weight in each)
    priors = [weight * one.prior for one, weight in each if one.prior is not None]
    unexplained = [weight * one.unexplained for one, weight in each if one.unexplained is not None]
    return Posterior(
        tuple(blocks),
        np.asarray(intercept),
        np.asarray(noise),
        np.sum(priors, axis=0) if priors else None,
        np.sum(unexplained, axis=0) if unexplained else None,
    )


def _average_blocks(blocks: Sequence[PosteriorBlock], weights: FloatArray) -> list[PosteriorBlock]:
    """Return one block where all have the same basis, else each with its share of the variance."""
    shares = list[PosteriorBlock]()
    for block, weight in zip(blocks, weights, strict=True):
        spread = weight * block.spread
        if spread.ndim == 2:
            spread = spread * block.variance
        shares.append(replace(block, spread=spread, variance=np.ones(len(block.variance))))

    if any(block.basis is not blocks[0].basis for block in blocks):
        return shares
    return [replace(shares[0], spread=np.sum([share.spread for share in shares], axis=0))]


def spread_of_means(problem: Problem, differences: FloatArray, weights: FloatArray) -> CoupledBlock:
    """Return the block whose variances are the weighted squares of differences between functions.

    Parameters
    ----------
    problem : Problem
        The system that all functions solve, at several ridges.
    differences : ndarray of shape (k, m, r)
        Coefficients of each function less those of the model.
    weights : ndarray of shape (k,)
        Their probabilities.
    """
    count, m, r = differences.shape
    feature, row = np.repeat(np.arange(m), r), np.tile(np.arange(r), m)
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
