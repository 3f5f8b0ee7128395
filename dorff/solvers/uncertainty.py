"""How sure a fit is: the noise of each target, the evidence, and the posterior, from the system that gave the fit.

One model serves every kernel: y = C f + e, f a Gaussian process of covariance t2 K for the kernel K as it stands, a
flat prior on the intercept, and e of one variance a target, D = diag(s_1^2 .. s_q^2), over the row's weight. The ridge
ties t2 to the noise: l ridge t2 is the mean of D, over the entries observed. D is what the evidence is greatest at.
The fit itself is the ridge's, which counts all targets alike: it is the mean of the posterior where D = s2 I, and else
an estimate whose error has the covariance that is given here as the posterior's.

Independent outputs (a diagonal output matrix, C = I) have one model for their evidence, which is compared with that of
other kernels. Their noise and posterior are of models of their own, each with a t2 tied to its own noise: what is said
of each depends neither on the others nor on their units."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import scipy.linalg

from dorff.errors import InputError
from dorff.features import FeatureMap, cut
from dorff.model.posterior import CoupledBlock, Posterior, PosteriorBlock, SeparableBlock
from dorff.model.weights import OperatorWeights
from dorff.moments import FloatArray
from dorff.solvers.direct import SpectralSolver, factor_of
from dorff.solvers.outputs import output_directions
from dorff.solvers.problem import Parts, Problem
from dorff.solvers.scores import Ridge, Solution
from dorff.solvers.select import FoldErrors, Spread, about_mean, contrasts, independent, mean_weight, row_sums
from dorff.solvers.stochastic import SAMPLES, Preconditioned, samples
from dorff.solvers.system import Block, IntArray, Size

STRIPE: Final = 256  # rows of a matrix that are weighed at a time
UNBOUNDED: Final = "posterior: at ridge 0 what the data do not see has no bounds; give a ridge above 0"


class _Noise(NamedTuple):
    """Noise of the scaled targets in rows of weight 1.

    Attributes
    ----------
    variance : ndarray of shape (q,)
        Variances of the targets.
    level : float
        Mean of the variances.
    prior : ndarray of shape (J,)
        l ridge times the variance of the prior, of each direction if there are directions. That
        of a direction with a ridge of its own is in proportion to its own noise.
    alone : ndarray of shape (J,) or None
        Variances of directions that are problems of their own; None if there are none.
    bounded : bool
        Whether a posterior that is not bounded is an error.
    """

    variance: FloatArray
    level: float
    prior: FloatArray
    alone: FloatArray | None
    bounded: bool = True

    @classmethod
    def from_covariance(
        cls,
        problem: Problem,
        solution: Solution,
        noise: FloatArray | None,
    ) -> "_Noise":
        """Return the noise of a covariance (q, q).

        Without a covariance it has variance 1 for scaled targets, whatever the ridge.
        """
        if noise is None:
            unit = np.ones(len(problem.scale))
            return cls(variance=unit, level=1.0, prior=unit, alone=unit, bounded=False)

        assert solution.variance is not None
        variance = np.diag(noise) / problem.scale**2 * mean_weight(problem)
        counts = contrasts(problem)
        level = float(counts @ variance) / max(float(counts.sum()), 1.0)

        fitted = solution.variance
        relative = np.ones(len(fitted))
        if solution.ridges is not None:
            relative = fitted / fitted.mean()

        alone = None
        if problem.penalty_borders:
            # A penalty's own target, 0, has no noise: f is that of one noise for each direction.
            alone = fitted
        elif independent(problem):
            alone = variance
        return cls(variance=variance, level=level, prior=level * relative, alone=alone)

    @property
    def excess(self) -> FloatArray:
        """(q,): what is above the mean."""
        return self.variance - self.level


def posterior_bytes(size: Size) -> int:
    """The most memory of making a problem and its posterior, or evidence, beside the packed sums: these as squares, G
    and what it becomes with the noise of the targets in it, the inverse, and their product."""
    return size.unpacked + (size.blocks + 3) * 8 * size.k**2 + 8 * size.k * 32 + size.vectors


def posterior(
    problem: Problem,
    solution: Solution,
    noise: FloatArray | None,
    parts: Parts,
) -> Posterior:
    """Return the posterior of f, about the fit.

    With K = (G + l ridge I)^-1 the error of x is K (Phi C* e) less l ridge K x. Its covariance is
    K (G_D + s2 l ridge I) K = s2 K + K (G_D - s2 G) K, with G_D for noise D in place of I, and s2
    the mean of D. It is s2 K, that of the Bayesian linear model (Rasmussen & Williams 2006,
    eq. 2.8), if D = s2 I or if outputs are independent. The covariance of the intercept, about the
    features' means, has the same form.

    With penalties it is s2 K, where G + l ridge I includes them and s2 is the one noise of
    `RidgeScores`. Combinations of the intercept that C does not observe are those of the fit, with
    no variance.

    Parameters
    ----------
    problem : Problem
        The system of the fit; it is solved by a Cholesky factor, or by the eigenvectors of G.
    solution : Solution
        Solution of the system at one ridge, or at one ridge for each direction.
    noise : ndarray of shape (q, q) or None
        Noise covariance of the targets of a row of mean weight. None is variance 1 for all scaled
        targets, whatever the ridge: the covariance of C f at a row, times the row's weight, is
        then its leverage H (q, q), the derivative of its fit by its own targets.
    parts : sequence of moments
        Moments of the rows.

    Raises
    ------
    InputError
        At ridge 0, if G is singular and there is a noise.
    """
    ridge = solution.ridge if solution.ridges is None else solution.ridges
    noise_model = _Noise.from_covariance(problem, solution, noise)
    blocks = list[PosteriorBlock]()
    for block in problem.blocks:
        if block.rotation is None:
            blocks.append(_of_everything(problem, block, ridge, noise_model, parts))
        elif problem.weights.views is not None:
            blocks += _columns(problem, block, ridge, noise_model)
        else:
            blocks.append(_block(problem, block, ridge, noise_model))
    return Posterior(
        blocks=tuple(blocks),
        intercept_covariance=_intercept(problem, noise_model),
        noise=np.diag(noise_model.variance) if noise is None else noise,
    )


def prior_covariance(
    problem: Problem,
    solution: Solution,
    noise: FloatArray | None,
) -> FloatArray:
    """Return the prior covariance of f at an x where k(x, x) = 1, in the targets' units.

    The prior of h is N(0, t2 I), where t2 l ridge is the noise (`_Noise.prior`). Directions with
    ridges of their own have a t2 each. The features are those of landmarks, or pairs of cosine and
    sine, whose squares have the same sum at every x.

    Parameters
    ----------
    problem : Problem
        The system of the fit.
    solution : Solution
        Solution of the system, at a ridge above 0.
    noise : ndarray of shape (q, q) or None
        Noise covariance of the targets; None is variance 1 for scaled targets, whatever the ridge.

    Returns
    -------
    ndarray of shape (p, p)
    """
    noise_model = _Noise.from_covariance(problem, solution, noise)
    weights, scale = problem.weights, problem.outputs
    if solution.ridges is None:
        prior_variance = noise_model.level / (problem.l * solution.ridge)
        scaled = prior_variance * _kernel_at_zero(weights)
    else:
        root = weights.root[0]
        directions = output_directions(root)
        sizes = np.sum((root @ directions) ** 2, axis=0)
        prior_variances = noise_model.prior / (problem.l * solution.ridges)
        scaled = directions @ np.diag(prior_variances * sizes) @ directions.T
    return np.asarray(scaled * np.outer(scale, scale))


def _kernel_at_zero(weights: OperatorWeights) -> FloatArray:
    """Return the kernel at x = z (p, p): sum_a psi_a^T psi_a over cosines, or of the one root."""
    if weights.separable and np.all(weights.gain == 1.0):  # landmarks
        return np.asarray(weights.root[0].T @ weights.root[0])
    psi = weights.psi[: len(weights.gain) // 2]
    return np.asarray(np.einsum("arp,arq->pq", psi, psi))


def sampled_posterior(of: Preconditioned, solution: Solution, noise: FloatArray) -> Posterior:
    """The same of systems that are known by their products, which fall apart by targets, or not at all: by SAMPLES of
    its coefficients. A variance then has a relative standard error of sqrt(2 / SAMPLES), by chance. InputError at ridge
    0, and where samples need too many steps."""
    system, problem = of.system, of.system.problem
    noise_model = _Noise.from_covariance(problem, solution, noise)
    (block,), blocks = problem.blocks, list[PosteriorBlock]()
    relative = None if noise_model.alone is not None else noise_model.variance / noise_model.level
    if not solution.ridge > 0:
        raise InputError(UNBOUNDED)
    for columns in system.alike():
        X, spread = samples(of, solution.ridge, int(columns[0]), relative), np.full((SAMPLES, 1), 1.0 / SAMPLES)
        if block.rotation is None:
            feature, row = block.at
            whole = _coupled(problem, X, feature, row, problem.weights.psi[feature, row])
            blocks.append(replace(whole, spread=spread * noise_model.level))
            continue
        assert noise_model.alone is not None and block.columns is not None
        at = np.zeros(len(columns), np.int64) if problem.directions is None else block.columns[columns]
        some = replace(block, a=block.a[columns], columns=at, rotation=block.rotation[:, columns])
        blocks.append(_separable(problem, some, X, spread, noise_model.alone[at]))
    return Posterior(tuple(blocks), _intercept(problem, noise_model), noise)


def _intercept(problem: Problem, noise_model: _Noise) -> FloatArray:
    scale, p = problem.outputs, problem.weights.shape[2]
    if not problem.intercept:
        return np.zeros((p, p))
    free, variance = problem.free[0], noise_model.alone
    if variance is None:
        middle = np.zeros((p, p))
        for rows in problem.rows:
            excess = noise_model.excess * rows.mask
            middle += rows.n * (problem.C.T * excess) @ problem.C
        scaled = noise_model.level * free + free @ middle @ free
    elif problem.directions is None:
        scaled = variance[0] * free
    else:
        V = problem.directions  # in which the system of the intercept falls apart too
        turn = np.kron(np.eye(problem.weights.count), (V * np.sqrt(variance)) @ V.T)
        scaled = turn @ free @ turn
    return np.asarray(scaled * np.outer(scale, scale))


def _spread(problem: Problem, block: Block, ridge: Ridge, noise_model: _Noise) -> Sequence[FloatArray]:
    """`BlockFactor.inverses`; by the eigenvectors of G where columns hang together by their noise."""
    spectral = noise_model.alone is None and block.rotation is not None
    factor = SpectralSolver(problem).factor(block, ridge) if spectral else factor_of(problem, block, ridge)
    basis, spread = factor.inverses()
    if noise_model.bounded and not np.all(spread > 0):
        raise InputError(UNBOUNDED)
    return basis, spread


def _of_columns(problem: Problem, block: Block, ridge: Ridge, noise_model: _Noise) -> tuple[FloatArray, ...]:
    """Basis (k, k'), spread and variances (c,) of a block's columns; (k', c, c) where they hang together by noise."""
    basis, spread = _spread(problem, block, ridge, noise_model)
    at = np.zeros(len(block.a), np.int64) if problem.directions is None else block.columns
    if noise_model.alone is not None:
        return basis, spread, noise_model.alone[at]
    assert block.load is not None
    noisy = np.multiply.outer(block.spectrum[0], (block.load.T * noise_model.variance) @ block.load)
    noisy += np.diag(noise_model.prior[at] * problem.shifts(block, ridge))
    return basis, spread[:, :, None] * noisy * spread[:, None, :], np.ones(len(block.a))


def _block(problem: Problem, block: Block, ridge: Ridge, noise_model: _Noise) -> PosteriorBlock:
    basis, spread, variance = _of_columns(problem, block, ridge, noise_model)
    C = problem.observe
    if problem.intercept and C is not None and np.linalg.matrix_rank(C) < C.shape[1]:
        # The intercept takes the features' means in what C sees alone: no one centre serves all outputs.
        gain, root, into = problem.weights.gain, problem.weights.root, _into(problem, block)
        k, r = len(gain), root.shape[1]
        turned = np.einsum("ai,ijl,jr->aril", basis, _roots(spread, variance), into, optimize=True)
        feature, row = np.repeat(np.arange(k), r), np.tile(np.arange(r), k)
        return _coupled(problem, turned.reshape(k * r, -1), feature, row, gain[feature, None] * root[0][row])
    return _separable(problem, block, basis, spread, variance)


def _into(problem: Problem, block: Block) -> FloatArray:
    """(c, r): where a block's columns go in h."""
    assert block.rotation is not None
    into = np.zeros((len(block.a), problem.weights.root.shape[1]))
    into[:, block.at] = block.rotation.T
    return into


def _separable(
    problem: Problem, block: Block, basis: FloatArray, spread: FloatArray, variance: FloatArray
) -> SeparableBlock:
    gain, into = problem.weights.gain, _into(problem, block)
    loading = into @ problem.weights.root[0] * problem.outputs
    return SeparableBlock(basis, spread, variance, gain, gain * _centre(problem, block), loading, into)


def _columns(problem: Problem, block: Block, ridge: Ridge, noise_model: _Noise) -> Iterator[CoupledBlock]:
    """Of several views with one root: a block for each independent combination of columns, with its rows."""
    assert block.rotation is not None
    basis, spread, variance = _of_columns(problem, block, ridge, noise_model)
    for lift in _roots(spread, variance).transpose(2, 0, 1) @ block.rotation.T:  # (k', r)
        rows, k = np.flatnonzero(np.any(lift != 0, axis=0)), len(basis)
        feature, row = np.repeat(np.arange(k), len(rows)), np.tile(rows, k)
        turned = (basis[:, None] * lift.T[rows]).reshape(len(feature), -1)
        yield _coupled(problem, turned, feature, row, problem.weights.psi[feature, row])


def _roots(spread: FloatArray, variance: FloatArray) -> FloatArray:
    """T (k', c, c): T_i T_i^T are the covariances of the columns' coordinates."""
    c = len(variance)
    if spread.ndim == 3:
        return np.asarray(np.linalg.cholesky(spread))
    diagonal = np.sqrt(np.broadcast_to(spread, (len(spread), c)) * variance)
    return np.asarray(diagonal[:, :, None] * np.eye(c))


def _centre(problem: Problem, block: Block) -> FloatArray:
    """The features' weighted mean (m,) over a block's rows, penalties among them; zeros without an intercept."""
    direction = 0 if block.columns is None else int(block.columns[0])
    there = [(rows.s, rows.n) for rows in problem.rows if problem.directions is None or rows.mask[direction]]
    if problem.directions is not None:
        penalties, along = problem.penalty_borders, problem.directions[:, direction]
        shares = [float(np.sum((one.C @ along) ** 2)) for one in penalties]
        there += [(one.s * share, one.n * share) for one, share in zip(penalties, shares, strict=True)]
    n = sum(n for _, n in there)
    if not problem.intercept or n == 0:
        return np.zeros(len(problem.weights.gain))
    return np.asarray(sum(s for s, _ in there) / n)


def _of_everything(problem: Problem, block: Block, ridge: Ridge, noise_model: _Noise, parts: Parts) -> CoupledBlock:
    """Of one system for everything."""
    basis, spread = _spread(problem, block, ridge, noise_model)
    feature, row = (np.asarray(at) for at in block.at)
    psi = problem.weights.psi[feature, row]
    if noise_model.alone is not None:
        return replace(_coupled(problem, basis, feature, row, psi), spread=spread * noise_model.alone[0])
    basis = basis * np.sqrt(spread[:, 0])
    excess = _weighed(problem, feature, psi, parts, noise_model.excess)
    excess = excess @ basis
    excess = basis.T @ excess
    excess[np.diag_indices(len(excess))] += noise_model.level
    root = scipy.linalg.cholesky(excess, lower=True, overwrite_a=True, check_finite=False)
    del excess
    return _coupled(problem, basis @ root, feature, row, psi)


def _weighed(problem: Problem, feature: IntArray, psi: FloatArray, parts: Parts, variance: FloatArray) -> FloatArray:
    """G (k, k) of the rows, each target times its `variance` (q,), about what the intercept takes of the features."""
    G, centre = np.zeros((len(psi), len(psi))), problem.centres(feature, psi)
    for part, one in zip(parts, problem.rows, strict=True):
        C, S = problem.C[one.mask], part.full[: part.m, : part.m]
        seen, away, e = psi @ C.T, centre @ C.T, variance[one.mask]
        summed = one.s[feature, None] * seen
        for start in range(0, len(G), STRIPE):
            some = slice(start, start + STRIPE)
            stripe = S[np.ix_(feature[some], feature)]
            stripe *= (seen[some] * e) @ seen.T
            stripe += ((one.n * away[some] - summed[some]) * e) @ away.T
            stripe -= (away[some] * e) @ summed.T
            G[some] += stripe
    return G


def _coupled(problem: Problem, basis: FloatArray, feature: IntArray, row: IntArray, psi: FloatArray) -> CoupledBlock:
    """Of x with covariance basis basis^T; `psi` (k, p) are the rows that x goes with."""
    scale, width = problem.outputs, basis.shape[1]
    centre = problem.centres(feature, psi) * scale
    return CoupledBlock(basis, np.ones((width, 1)), np.ones(1), feature, row, psi * scale, centre)


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Rows that are left out one at a time.

    Attributes
    ----------
    features : FeatureMap
        Features of the rows.
    X : ndarray of shape (n, d)
        Inputs.
    Y : ndarray of shape (n, q)
        Targets; NaN if missing.
    weights : ndarray of shape (n,)
        Weights of the rows.
    """

    features: FeatureMap
    X: FloatArray
    Y: FloatArray
    weights: FloatArray

    @cached_property
    def spread(self) -> Spread:
        """The targets' weighted spread about their means."""
        return Spread.of(*row_sums(self.Y, self.Y, self.weights)[:4])

    def of_first(self, m: int) -> "LeftOut":
        """Return the rows with the first m features."""
        if m == self.features.m:
            return self
        return replace(self, features=cut(self.features, None, m)[0])


def leave_one_out_errors(
    fits: Sequence[tuple[Problem, Solution]],
    sample: LeftOut,
    *,
    free_scale: bool = False,
) -> FoldErrors:
    """Return the summed squared errors of fits on rows that are left out one at a time.

    A row is predicted by the same fit to all rows but that one. All constants, l ridge among them,
    are those of all rows. The residual of a row is (I - H)^-1 e, where e is its residual in the
    fit to all rows and H its leverage, for the targets that it has (Allen 1974, for several
    outputs). It is Y - y0 if the row alone determines a target, but for rounding, and for fits
    without digits.

    Parameters
    ----------
    fits : sequence of (Problem, Solution)
        Fits to all rows, at several ridges.
    sample : LeftOut
        The rows that are left out.
    free_scale : bool
        Whether the scale of f is free, as in `Setting`.
    """
    q = sample.Y.shape[1]
    errors = FoldErrors.none(["direct"] * len(fits), q)
    first_fit = 0
    for leverages in _group_by_basis(fits):
        step = min(leverage.posterior.step for leverage in leverages)
        for start in range(0, len(sample.X), step):
            rows = slice(start, start + step)
            F = sample.features.transform(sample.X[rows])
            Y, weights = sample.Y[rows], sample.weights[rows]
            is_observed = np.isfinite(Y)
            projections = _ProjectionCache()
            for number, leverage in enumerate(leverages, first_fit):
                residuals = leverage.residuals(F, Y, weights, projections)
                values, size = np.where(is_observed, Y - residuals, 0.0), 0.0
                if free_scale:
                    values, _ = about_mean(values, np.zeros(q))
                    values = values + 1.0 / q
                    size = float(weights @ np.sum((values - 1.0 / q) ** 2, axis=1))
                squares = np.where(is_observed, Y - values, 0.0) ** 2
                errors.add(number, weights @ squares, leverage.digits, size)
        first_fit += len(leverages)
    return errors


def _group_by_basis(fits: Sequence[tuple[Problem, Solution]]) -> "Iterator[list[_Leverage]]":
    """Yield the leverages of successive fits whose bases are the same, one group at a time."""
    group = list[_Leverage]()
    for problem, solution in fits:
        leverage = _Leverage(problem, solution)
        if group and not leverage.has_basis_of(group[0]):
            yield group
            group = []
        group.append(leverage)
    yield group


class _ProjectionCache:
    """Projections of the same rows on the bases of a posterior's blocks, of the last fit."""

    def __init__(self) -> None:
        self._bases: dict[int, FloatArray] = {}
        self._projections: dict[int, FloatArray] = {}

    def project(
        self,
        number: int,
        block: PosteriorBlock,
        F: FloatArray,
        observe: FloatArray,
    ) -> FloatArray:
        """Return `PosteriorBlock.along` of block `number`, computed once for a basis."""
        if self._bases.get(number) is not block.basis:
            self._bases[number] = block.basis
            self._projections[number] = block.along(F, observe)
        return self._projections[number]


class _Leverage:
    """A fit C f = F W + bias, and the leverages of its rows.

    Attributes
    ----------
    digits : float
        Correct digits of the fit.
    posterior : Posterior
        Posterior for noise of variance 1, whose covariances are leverages.
    """

    def __init__(self, problem: Problem, solution: Solution) -> None:
        C = problem.C
        W = problem.weights.combined(solution.h)
        self._W = W * problem.outputs @ C.T
        self._bias = C @ problem.bias(W)
        self._scale = problem.scale
        self._y0 = problem.rows[0].y0
        self._directions = problem.directions
        # From f to the scaled targets, or to independent directions of these.
        self._observe = C / self._scale[:, None]
        if self._directions is not None:
            self._observe = self._directions.T / self._scale @ C
        # 1 - H below which a row determines a target alone.
        self._least_remainder = 1.0 if solution.ill_conditioned else 100.0 * problem.unit
        self.digits = solution.digits
        self.posterior = posterior(problem, solution, None, ())

    def has_basis_of(self, leverage: "_Leverage") -> bool:
        """Return whether the blocks of two posteriors have the same bases."""
        pairs = zip(leverage.posterior.blocks, self.posterior.blocks, strict=True)
        return all(block.basis is own_block.basis for block, own_block in pairs)

    def residuals(
        self,
        F: FloatArray,
        Y: FloatArray,
        weights: FloatArray,
        projections: _ProjectionCache,
    ) -> FloatArray:
        """Return the residuals (n, q) of rows, each predicted without itself.

        Parameters
        ----------
        F : ndarray of shape (n, m)
            Features.
        Y : ndarray of shape (n, q)
            Targets; NaN if missing.
        weights : ndarray of shape (n,)
            Weights of the rows.
        projections : _ProjectionCache
            Projections of these rows, for this fit and the next.
        """
        is_observed = np.isfinite(Y)
        fitted = np.where(is_observed, Y - (F @ self._W + self._bias), 0.0) / self._scale
        unfitted = np.where(is_observed, Y - self._y0, 0.0) / self._scale
        H = self._leverages(F, projections)
        if self._directions is not None:
            remainder = 1.0 - weights[:, None] * H
            fitted, unfitted = fitted @ self._directions, unfitted @ self._directions
            left_out = self._left_out(remainder, fitted, unfitted)
            return np.asarray(left_out @ self._directions.T * self._scale)

        pairs_observed = weights[:, None, None] * H * is_observed[:, :, None]
        pairs_observed = pairs_observed * is_observed[:, None]
        remainder, vectors = np.linalg.eigh(np.eye(len(self._observe)) - pairs_observed)
        fitted = np.einsum("njk,nj->nk", vectors, fitted)
        unfitted = np.einsum("njk,nj->nk", vectors, unfitted)
        left_out = self._left_out(remainder, fitted, unfitted)
        return np.asarray(np.einsum("njk,nk->nj", vectors, left_out) * self._scale)

    def _leverages(self, F: FloatArray, projections: _ProjectionCache) -> FloatArray:
        """Return H (n, q, q) of rows of weight 1, or (n, J) if directions are independent."""
        observe = self._observe
        H = observe @ self.posterior.intercept_covariance @ observe.T
        if self._directions is not None:
            H = np.diag(H)
        for number, block in enumerate(self.posterior.blocks):
            projection = projections.project(number, block, F, observe)
            if self._directions is None:
                H = H + block.covariance(projection, observe)
            else:
                H = H + block.variances(projection, observe)
        return H

    def _left_out(
        self,
        remainder: FloatArray,
        fitted: FloatArray,
        unfitted: FloatArray,
    ) -> FloatArray:
        """Return residuals over 1 - H, and those without a fit where that is rounding."""
        is_determined = remainder > self._least_remainder
        quotient = fitted / np.where(is_determined, remainder, 1.0)
        return np.where(is_determined, quotient, unfitted)
