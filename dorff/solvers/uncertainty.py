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

_Kept = dict[int, tuple[FloatArray, FloatArray]]  # of each block its basis, and what rows have along it
STRIPE: Final = 256  # rows of a matrix that are weighed at a time
UNBOUNDED: Final = "posterior: at ridge 0 what the data do not see has no bounds; give a ridge above 0"


class _Noise(NamedTuple):
    """Of the scaled targets in rows of weight 1: their variances (q,), and the mean of these. `prior` (J,) is l ridge
    times the prior's variance, of each direction where there are any: in proportion to its own noise where it has a
    ridge of its own. `alone` (J,) are the variances of directions that are problems of their own, else None. `bounded`
    refuses what the data do not see."""

    variance: FloatArray
    level: float
    prior: FloatArray
    alone: FloatArray | None
    bounded: bool = True

    @classmethod
    def of(cls, problem: Problem, solution: Solution, noise: FloatArray | None) -> "_Noise":
        """Return that of a noise covariance (q, q); of None of variance 1 for scaled targets, whatever the ridge."""
        if noise is None:
            unit = np.ones(len(problem.scale))
            return cls(unit, 1.0, unit, unit, bounded=False)
        assert solution.variance is not None
        variance, counts = np.diag(noise) / problem.scale**2 * mean_weight(problem), contrasts(problem)
        level = float(counts @ variance) / max(float(counts.sum()), 1.0)
        fitted = solution.variance
        prior = level * (np.ones(len(fitted)) if solution.ridges is None else fitted / fitted.mean())
        # A penalty's own target, 0, has no noise: with it f is that of the model of one noise a direction.
        alone = fitted if problem.penalty_borders else variance if independent(problem) else None
        return cls(variance, level, prior, alone)

    @property
    def excess(self) -> FloatArray:
        """(q,): what is above the mean."""
        return self.variance - self.level


def posterior_bytes(size: Size) -> int:
    """The most memory of making a problem and its posterior, or evidence, beside the packed sums: these as squares, G
    and what it becomes with the noise of the targets in it, the inverse, and their product."""
    return size.unpacked + (size.blocks + 3) * 8 * size.k**2 + 8 * size.k * 32 + size.vectors


def posterior(problem: Problem, solution: Solution, noise: FloatArray | None, parts: Parts) -> Posterior:
    """How far f may lie from the fit, for the noise (q, q) of a row of mean weight.

    With K = (G + l ridge I)^-1 the error of x is K (Phi C* e) less l ridge K x, so that its covariance is K (G_D + s2
    l ridge I) K = s2 K + K (G_D - s2 G) K, with G_D of noise D in place of I and s2 its mean: s2 K, the Bayesian
    linear model's (Rasmussen & Williams 2006, eq. 2.8), where D = s2 I or outputs are independent. That of the
    intercept, about the features' means, is of the same form. With penalties it is s2 K, G + l ridge I has theirs, and
    s2 is the one noise of `RidgeScores`. What of the intercept C leaves open stays the fit's: no deviation is counted
    there. By a Cholesky factor's inverse, or the eigenvectors of G. InputError at ridge 0 where G is singular.

    Without noise it is of variance 1 for all scaled targets, whatever the ridge: the covariance of C f at a row, times
    its weight, is then its leverage H (q, q), by which its own targets make their fit."""
    ridge = solution.ridge if solution.ridges is None else solution.ridges
    about, blocks = _Noise.of(problem, solution, noise), list[PosteriorBlock]()
    for block in problem.blocks:
        if block.rotation is None:
            blocks.append(_of_everything(problem, block, ridge, about, parts))
        elif problem.weights.views is not None:
            blocks += _columns(problem, block, ridge, about)
        else:
            blocks.append(_block(problem, block, ridge, about))
    noise = np.diag(about.variance) if noise is None else noise
    return Posterior(tuple(blocks), _intercept(problem, about), noise)


def prior_covariance(problem: Problem, solution: Solution, noise: FloatArray | None) -> FloatArray:
    """Return the covariance (p, p) of f at any x before any row, by the features, in the targets' units.

    The prior of h is N(0, t2 I), with t2 l ridge the noise (`_Noise.prior`); of directions with ridges of their own
    each has a t2 of its own. Features are of k(x, x) = 1: of landmarks, or cosine and sine pairs, whose squares sum to
    the same at every x. Without noise it is of variance 1 for all scaled targets.
    """
    about, weights, scale = _Noise.of(problem, solution, noise), problem.weights, problem.outputs
    if solution.ridges is None:
        level = about.level / (problem.l * solution.ridge)
        return np.asarray(level * _size_at_zero(weights) * np.outer(scale, scale))
    root = weights.root[0]
    V = output_directions(root)
    loading = root @ V
    each = about.prior / (problem.l * solution.ridges)
    covariance = V @ np.diag(each * np.sum(loading**2, axis=0)) @ V.T
    return np.asarray(covariance * np.outer(scale, scale))


def _size_at_zero(weights: OperatorWeights) -> FloatArray:
    """Return sum_a psi_a^T psi_a (p, p) over cosines, or the one root's of landmarks: the kernel at x = z."""
    if weights.separable and np.all(weights.gain == 1.0):
        return np.asarray(weights.root[0].T @ weights.root[0])
    psi = weights.psi[: len(weights.gain) // 2]
    return np.asarray(np.einsum("arp,arq->pq", psi, psi))


def sampled_posterior(of: Preconditioned, solution: Solution, noise: FloatArray) -> Posterior:
    """The same of systems that are known by their products, which fall apart by targets, or not at all: by SAMPLES of
    its coefficients. A variance then has a relative standard error of sqrt(2 / SAMPLES), by chance. InputError at ridge
    0, and where samples need too many steps."""
    system, problem = of.system, of.system.problem
    about, (block,), blocks = _Noise.of(problem, solution, noise), problem.blocks, list[PosteriorBlock]()
    relative = None if about.alone is not None else about.variance / about.level
    if not solution.ridge > 0:
        raise InputError(UNBOUNDED)
    for columns in system.alike():
        X, spread = samples(of, solution.ridge, int(columns[0]), relative), np.full((SAMPLES, 1), 1.0 / SAMPLES)
        if block.rotation is None:
            feature, row = block.at
            whole = _coupled(problem, X, feature, row, problem.weights.psi[feature, row])
            blocks.append(replace(whole, spread=spread * about.level))
            continue
        assert about.alone is not None and block.columns is not None
        at = np.zeros(len(columns), np.int64) if problem.directions is None else block.columns[columns]
        some = replace(block, a=block.a[columns], columns=at, rotation=block.rotation[:, columns])
        blocks.append(_separable(problem, some, X, spread, about.alone[at]))
    return Posterior(tuple(blocks), _intercept(problem, about), noise)


def _intercept(problem: Problem, about: _Noise) -> FloatArray:
    scale, p = problem.outputs, problem.weights.shape[2]
    if not problem.intercept:
        return np.zeros((p, p))
    free, variance = problem.free[0], about.alone
    if variance is None:
        middle = sum(one.n * (problem.C.T * (about.excess * one.mask)) @ problem.C for one in problem.rows)
        scaled = about.level * free + free @ middle @ free
    elif problem.directions is None:
        scaled = variance[0] * free
    else:
        V = problem.directions  # in which the system of the intercept falls apart too
        turn = np.kron(np.eye(problem.weights.count), (V * np.sqrt(variance)) @ V.T)
        scaled = turn @ free @ turn
    return np.asarray(scaled * np.outer(scale, scale))


def _spread(problem: Problem, block: Block, ridge: Ridge, about: _Noise) -> Sequence[FloatArray]:
    """`BlockFactor.inverses`; by the eigenvectors of G where columns hang together by their noise."""
    spectral = about.alone is None and block.rotation is not None
    factor = SpectralSolver(problem).factor(block, ridge) if spectral else factor_of(problem, block, ridge)
    basis, spread = factor.inverses()
    if about.bounded and not np.all(spread > 0):
        raise InputError(UNBOUNDED)
    return basis, spread


def _of_columns(problem: Problem, block: Block, ridge: Ridge, about: _Noise) -> tuple[FloatArray, ...]:
    """Basis (k, k'), spread and variances (c,) of a block's columns; (k', c, c) where they hang together by noise."""
    basis, spread = _spread(problem, block, ridge, about)
    at = np.zeros(len(block.a), np.int64) if problem.directions is None else block.columns
    if about.alone is not None:
        return basis, spread, about.alone[at]
    assert block.load is not None
    noisy = np.multiply.outer(block.spectrum[0], (block.load.T * about.variance) @ block.load)
    noisy += np.diag(about.prior[at] * problem.shifts(block, ridge))
    return basis, spread[:, :, None] * noisy * spread[:, None, :], np.ones(len(block.a))


def _block(problem: Problem, block: Block, ridge: Ridge, about: _Noise) -> PosteriorBlock:
    basis, spread, variance = _of_columns(problem, block, ridge, about)
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


def _columns(problem: Problem, block: Block, ridge: Ridge, about: _Noise) -> Iterator[CoupledBlock]:
    """Of several views with one root: a block for each independent combination of columns, with its rows."""
    assert block.rotation is not None
    basis, spread, variance = _of_columns(problem, block, ridge, about)
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


def _of_everything(problem: Problem, block: Block, ridge: Ridge, about: _Noise, parts: Parts) -> CoupledBlock:
    """Of one system for everything."""
    basis, spread = _spread(problem, block, ridge, about)
    feature, row = (np.asarray(at) for at in block.at)
    psi = problem.weights.psi[feature, row]
    if about.alone is not None:
        return replace(_coupled(problem, basis, feature, row, psi), spread=spread * about.alone[0])
    basis = basis * np.sqrt(spread[:, 0])
    excess = _weighed(problem, feature, psi, parts, about.excess)
    excess = excess @ basis
    excess = basis.T @ excess
    excess[np.diag_indices(len(excess))] += about.level
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
    """Rows left out one at a time: inputs X (n, d), targets Y (n, q), NaN if missing, weights (n,), their features."""

    features: FeatureMap
    X: FloatArray
    Y: FloatArray
    weights: FloatArray

    @cached_property
    def spread(self) -> Spread:
        return Spread.of(*row_sums(self.Y, self.Y, self.weights)[:4])

    def of_first(self, m: int) -> "LeftOut":
        """With the first m features."""
        return self if m == self.features.m else replace(self, features=cut(self.features, None, m)[0])


def left_out(fits: Sequence[tuple[Problem, Solution]], sample: LeftOut, *, free_scale: bool = False) -> FoldErrors:
    """Summed squared errors of each fit on rows of the sample, each predicted by the same fit to all rows but that
    one; all constants, l ridge among them, are those of all rows. `free_scale` is that of a `Setting`. The residual e
    of a row is then (I - H)^-1 e with its leverage H, of the targets that it has (Allen 1974, for several outputs); Y
    - y0 where but for rounding the row alone tells a target, and of fits without digits."""
    q, errors = sample.Y.shape[1], FoldErrors.none(["direct"] * len(fits), sample.Y.shape[1])
    for first, each in _of_one_basis(fits):
        step = min(one.sure.step for one in each)
        for rows in (slice(start, start + step) for start in range(0, len(sample.X), step)):
            F, Y, w = sample.features.transform(sample.X[rows]), sample.Y[rows], sample.weights[rows]
            there, kept, size = np.isfinite(Y), _Kept(), 0.0
            for at, one in enumerate(each, first):
                values = np.where(there, Y - one.residuals(F, Y, w, kept), 0.0)
                if free_scale:
                    values = about_mean(values, np.zeros(q))[0] + 1.0 / q
                    size = float(w @ np.sum((values - 1.0 / q) ** 2, axis=1))
                errors.add(at, w @ np.where(there, Y - values, 0.0) ** 2, one.digits, size)
    return errors


def _of_one_basis(fits: Sequence[tuple[Problem, Solution]]) -> "Iterator[tuple[int, list[_Leverage]]]":
    """Runs of fits whose leverages have a basis in common, with the number of the first: one run is held at a time."""
    run, first = list[_Leverage](), 0
    for at, fit in enumerate(fits):
        one = _Leverage(*fit)
        if run and any(a.basis is not b.basis for a, b in zip(run[0].sure.blocks, one.sure.blocks, strict=True)):
            yield first, run
            run, first = [], at
        run.append(one)
    yield first, run


class _Leverage:
    """C f = F W + bias of a fit, and its rows' leverages. `seen` makes of f the scaled targets, or `directions`."""

    def __init__(self, problem: Problem, solution: Solution) -> None:
        C, self.scale, self.y0, self.directions = problem.C, problem.scale, problem.rows[0].y0, problem.directions
        W, self.digits = problem.weights.combined(solution.h), solution.digits
        self.least = 1.0 if solution.ill_conditioned else 100.0 * problem.unit
        self.W, self.bias = W * problem.outputs @ C.T, C @ problem.bias(W)
        self.seen = C / self.scale[:, None] if self.directions is None else self.directions.T / self.scale @ C
        self.sure = posterior(problem, solution, None, ())

    def residuals(self, F: FloatArray, Y: FloatArray, w: FloatArray, kept: _Kept) -> FloatArray:
        """(n, q) of rows of weights w (n,), each as if it had been left out; `kept` is for the next fit."""
        there, seen, V = np.isfinite(Y), self.seen, self.directions
        left, far = (np.where(there, Y - one, 0.0) / self.scale for one in (F @ self.W + self.bias, self.y0))
        H = seen @ self.sure.intercept_covariance @ seen.T
        H = H if V is None else np.diag(H)
        for number, block in enumerate(self.sure.blocks):
            if number not in kept or kept[number][0] is not block.basis:
                kept[number] = block.basis, block.along(F, seen)
            H = H + (block.covariance if V is None else block.variances)(kept[number][1], seen)
        if V is None:
            rest, turn = np.linalg.eigh(np.eye(len(seen)) - w[:, None, None] * H * there[:, :, None] * there[:, None])
            left, far = (np.einsum("njk,nj->nk", turn, one) for one in (left, far))
        else:
            rest, left, far = 1.0 - w[:, None] * H, left @ V, far @ V
        some = rest > self.least
        left = np.where(some, left / np.where(some, rest, 1.0), far)
        return np.asarray((np.einsum("njk,nk->nj", turn, left) if V is None else left @ V.T) * self.scale)
